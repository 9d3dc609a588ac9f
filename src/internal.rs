//! Entry points into Kiln for its own tests, benchmarks and fuzz targets.
//!
//! This module is not part of the public interface: it exists only with the feature `internal`, and changes
//! without notice.

#[cfg(fuzzing)]
pub mod fuzzing {
    //! Entry points of the fuzz targets in `fuzz/`, which are built with `--cfg fuzzing`.

    pub use kiln_compiler::bounds::fuzzing as bounds;
    pub use kiln_compiler::fusion::fuzzing as fusion;
    pub use kiln_spirv::fuzzing as spirv;
}

pub mod spirv {
    //! The SPIR-V compiler on plain bytes.

    use crate::error::Result;
    use kiln_compiler::opencl_c;
    use kiln_spirv::{Input, Module, Options, merge, read};

    /// Reads a module's reflection data, then parses the module and assembles it again.
    ///
    /// # Errors
    ///
    /// [`InvalidModule`](crate::ErrorKind::InvalidModule) if the bytes are not a valid module.
    pub fn reassemble(bytes: Vec<u8>) -> Result<Vec<u8>> {
        let (bytes, reflection) = read(bytes)?;
        std::hint::black_box(reflection);
        Ok(Module::parse(bytes)?.assemble())
    }

    /// Links modules, given with the names that error messages use for them.
    ///
    /// # Errors
    ///
    /// Fails like [`reassemble`], and with [`BuildFailed`](crate::ErrorKind::BuildFailed) if the modules do not
    /// fit together.
    pub fn link(modules: &[(&str, &[u8])], keep_exports: bool) -> Result<Vec<u8>> {
        let mut parsed = Vec::new();
        for &(name, bytes) in modules {
            parsed.push((name, Module::parse(bytes).map_err(|error| error.within(name))?));
        }
        let inputs: Vec<_> = parsed.iter().map(|(name, module)| Input { name, module }).collect();
        let merged = merge(&inputs, Options { keep_exports, allow_unresolved: false })?;
        Ok(merged.module.assemble())
    }

    /// Translates a module to OpenCL C 1.2.
    ///
    /// # Errors
    ///
    /// Fails like [`reassemble`], and with [`Unsupported`](crate::ErrorKind::Unsupported) for code that OpenCL
    /// C cannot express.
    pub fn emit(bytes: &[u8]) -> Result<String> {
        opencl_c::opencl_c(&Module::parse(bytes)?)
    }
}

pub mod bounds {
    //! Proof that launches, described by plain data, stay inside their memory.

    use std::collections::BTreeSet;

    use rspirv::spirv::{Op, OpenclStd100Op as Extended};

    use crate::error::Result;
    use kiln_compiler::NdRange;
    use kiln_compiler::bounds;
    use kiln_spirv::Access;
    use kiln_spirv::edit::{Meaning, OPCODES};
    use kiln_spirv::{Module, read};

    pub use kiln_compiler::bounds::Argument;

    /// Returns the names of the instructions, and of the functions of OpenCL, through which ranges of integers are
    /// calculated.
    #[must_use]
    pub fn instructions_with_ranges() -> BTreeSet<String> {
        let has_range = |meaning: Option<Meaning>| meaning.is_some_and(|meaning| meaning.has_range);
        let ops = (0..u32::from(OPCODES)).filter_map(Op::from_u32);
        let ops = ops.filter(|op| has_range(Meaning::of(*op))).map(|op| format!("{op:?}"));
        let functions = (0..256).filter_map(Extended::from_u32);
        let functions = functions.filter(|function| has_range(Meaning::of_function(*function)));
        ops.chain(functions.map(|function| format!("{function:?}"))).collect()
    }

    /// Kernel whose launches are checked.
    #[derive(Debug)]
    pub struct Kernel(bounds::Kernel);

    /// Verdict on a launch.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Report {
        /// Number of instructions that touch memory.
        pub accesses: usize,
        /// Instructions that are not proven to stay inside their memory, in words.
        pub guarded: Vec<String>,
        /// Positions of the scalars on whose values the verdict depends.
        pub constants: BTreeSet<usize>,
    }

    impl Kernel {
        /// Prepares a kernel of a module, whose values are defined first, as in a checked program.
        ///
        /// # Errors
        ///
        /// [`InvalidModule`](crate::ErrorKind::InvalidModule) if the bytes are not a valid module, and
        /// [`Unsupported`](crate::ErrorKind::Unsupported) if launches of the kernel cannot be checked.
        pub fn new(module: &[u8], name: &str) -> Result<Self> {
            let (bytes, reflection) = read(module.to_vec())?;
            let parameters = reflection.parameters(name).unwrap_or_default().iter().enumerate();
            let read_only = parameters.filter(|(_, known)| known.access == Some(Access::Read));
            let read_only = read_only.map(|(at, _)| at).collect();
            let mut module = Module::parse(bytes)?;
            bounds::define(&mut module)?;
            bounds::Kernel::of(&module, name, &[], &read_only).map(Self)
        }

        /// Checks a launch. Where the driver chooses the size of the work-groups, some of them may be smaller
        /// than others unless `uniform_groups` is set.
        ///
        /// # Errors
        ///
        /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the arguments do not fit the kernel, and
        /// [`Unsupported`](crate::ErrorKind::Unsupported) if the launch cannot be checked.
        pub fn check(
            &self,
            range: &NdRange,
            arguments: &[Argument],
            uniform_groups: bool,
            few_constants: bool,
        ) -> Result<Report> {
            let launch = bounds::Launch { range, arguments, uniform_groups, few_constants };
            let report = bounds::check(&self.0, &launch)?;
            let guarded = if report.is_proven() { Vec::new() } else { report.describe(&self.0) };
            Ok(Report { accesses: report.accesses.len(), guarded, constants: report.constants })
        }

        /// Returns the SPIR-V of the variant that guards what is not proven about a launch, and the positions of
        /// the arguments whose lengths in bytes it takes after all others.
        ///
        /// # Errors
        ///
        /// Fails like [`check`](Self::check), and with [`Unsupported`](crate::ErrorKind::Unsupported) for an
        /// access that cannot be guarded.
        pub fn guard(
            &self,
            range: &NdRange,
            arguments: &[Argument],
            uniform_groups: bool,
        ) -> Result<(Vec<u8>, Vec<usize>)> {
            let launch = bounds::Launch { range, arguments, uniform_groups, few_constants: true };
            let report = bounds::check(&self.0, &launch)?;
            let guarded = bounds::variant(&self.0, Some(&report), &[])?;
            Ok((guarded.module.assemble(), guarded.lengths))
        }
    }
}

pub mod translate {
    //! Translation of OpenCL C to SPIR-V.

    use std::future::Future;

    use crate::build_graph::BuildInput;
    use crate::error::Result;
    use crate::runtime::Runtime;
    use crate::source::module::Module;
    use crate::source::translate;

    /// Returns the SPIR-V of a module for the runtime's device, translated with the options of a build.
    pub fn spirv_of(
        runtime: &Runtime,
        module: &Module,
        options: &str,
    ) -> impl Future<Output = Result<Module>> + Send + use<> {
        let (graph, device) = runtime.graph();
        let (graph, input) = (graph.clone(), BuildInput::with_options(module.clone(), options));
        async move { graph.spirv_of(&input, device).await }
    }

    /// Returns the options that the device's compiler needs for the SPIR-V.
    ///
    /// # Errors
    ///
    /// Fails for options that cannot be split into words.
    pub fn options_for_device(options: &str) -> Result<String> {
        translate::options_for_device(options)
    }
}

pub mod fusion {
    //! Fusion of launches that are described by plain data.

    use std::collections::{BTreeSet, HashMap};

    use crate::device::{DeviceInfo, Workarounds};
    use crate::error::Result;
    use kiln_compiler::fusion::{
        Examinations, FusionForm, Internalization, Launches, Memory, Place, Plan, Programs, Region,
        Slot, Target, Trust, Width,
    };
    use kiln_compiler::{NdRange, NdSize};
    use kiln_spirv::Module;

    /// Launch of a module's kernel.
    #[derive(Clone, Debug)]
    pub struct Launch {
        /// Index of the module.
        pub module: usize,
        /// Name of the kernel.
        pub kernel: String,
        /// Nd-range of the launch.
        pub range: NdRange,
        /// Arguments, in order.
        pub arguments: Vec<Argument>,
        /// Values of specialization constants, as ids and bytes.
        pub constants: Vec<(u32, Vec<u8>)>,
    }

    /// Argument of a launch.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub enum Argument {
        /// Slice of a buffer.
        Buffer {
            /// Number of the buffer.
            buffer: u32,
            /// Start of the slice, in bytes.
            offset: usize,
            /// Length of the slice, in bytes.
            length: usize,
        },
        /// Value, as bytes.
        Scalar(Vec<u8>),
        /// Local memory, by its size in bytes.
        Local(usize),
    }

    /// Kernel fused from several launches.
    #[derive(Debug)]
    pub struct Fused {
        /// SPIR-V module of the kernel.
        pub spirv: Vec<u8>,
        /// Name of the kernel.
        pub kernel: String,
        /// Nd-range of the kernel.
        pub range: NdRange,
        /// Arguments of the kernel, each by its launch and its position among the launch's arguments.
        pub parameters: Vec<(usize, usize)>,
        /// Buffers some of whose contents are kept in variables.
        pub kept: Vec<u32>,
        /// Buffers that the kernel no longer uses.
        pub internalized: Vec<u32>,
        /// Buffers among `internalized` that are local memory of work-groups.
        pub local: Vec<u32>,
        /// Number of barriers between the launches.
        pub barriers: usize,
    }

    /// Options of fusion.
    #[derive(Clone, Copy, Debug)]
    pub struct FusionOptions {
        /// Form that all dead buffers get; they stay in memory if it is not provable. If `None`, they get a
        /// form that is provable.
        pub into: Option<Internalization>,
        /// Maximum number of work-items whose work one work-item of the new kernel does.
        pub width: usize,
        /// Whether launches stay functions of their own in a kernel with barriers.
        pub separate_functions: bool,
        /// Whether barriers order a work-item's own memory accesses.
        pub order_own_accesses: bool,
        /// Whether functions get vectors of three components as vectors of four.
        pub widen_vectors: bool,
        /// Form of the new kernel.
        pub form: FusionForm,
    }

    impl FusionOptions {
        /// Returns the options that suit a device.
        #[must_use]
        pub fn of(device: &DeviceInfo) -> Self {
            let Workarounds { separate_functions, order_own_accesses, widen_vectors, .. } =
                Workarounds::of(device);
            Self { separate_functions, order_own_accesses, widen_vectors, ..Self::default() }
        }
    }

    impl Default for FusionOptions {
        fn default() -> Self {
            Self {
                into: None,
                width: 1,
                separate_functions: false,
                order_own_accesses: true,
                widen_vectors: false,
                form: FusionForm::Direct,
            }
        }
    }

    /// Local memory of a work-group, in bytes, that every device except an embedded one has.
    const LOCAL_LIMIT: usize = 32 << 10;

    /// Returns an nd-range with a global size, an offset and a local size.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if their numbers of dimensions differ.
    pub fn range(global: NdSize, offset: Option<NdSize>, local: Option<NdSize>) -> Result<NdRange> {
        let mut range = NdRange::from(global);
        offset.map_or(Ok(()), |offset| range.set_offset(offset))?;
        local.map_or(Ok(()), |local| range.set_local(local))?;
        Ok(range)
    }

    /// Memories of a plan, numbered in the order in which their buffers are first used.
    #[derive(Default)]
    struct Memories {
        by_buffer: HashMap<u32, Memory>,
        buffers: Vec<u32>,
    }

    impl Memories {
        /// Returns the memory of a buffer. Adds it if it is new.
        fn memory_of(&mut self, buffer: u32) -> Memory {
            let Self { by_buffer, buffers } = self;
            *by_buffer.entry(buffer).or_insert_with(|| {
                buffers.push(buffer);
                Memory(buffers.len() as u32 - 1)
            })
        }

        /// Returns the number of the buffer that a memory stands for.
        fn buffer_of(&self, memory: Memory) -> u32 {
            self.buffers.get(memory.0 as usize).copied().unwrap_or_default()
        }
    }

    /// Converts a launch to a slot of a plan.
    fn slot(launch: &Launch, memories: &mut Memories) -> Slot {
        let arguments = launch.arguments.iter().map(|argument| match argument {
            &Argument::Buffer { buffer, offset, length } => {
                let memory = memories.memory_of(buffer);
                kiln_compiler::fusion::Argument::Buffer(Region { memory, offset, length })
            }
            Argument::Scalar(bytes) => kiln_compiler::fusion::Argument::Scalar(bytes.clone()),
            Argument::Local(bytes) => kiln_compiler::fusion::Argument::Local(*bytes),
        });
        Slot {
            module: launch.module,
            kernel: launch.kernel.clone(),
            range: launch.range,
            arguments: arguments.collect(),
            constants: launch.constants.clone(),
        }
    }

    /// Plan of launches, and what is needed to interpret it.
    struct Described {
        modules: Vec<Module>,
        memories: Memories,
        plan: Plan,
    }

    impl Described {
        fn new(
            modules: &[&[u8]],
            launches: &[Launch],
            dead: &[u32],
            options: FusionOptions,
        ) -> Result<Self> {
            let modules =
                modules.iter().map(|&module| Module::parse(module)).collect::<Result<Vec<_>>>()?;
            let mut memories = Memories::default();
            let slots = launches.iter().map(|launch| slot(launch, &mut memories)).collect();
            let dead: BTreeSet<_> = dead.iter().map(|&buffer| memories.memory_of(buffer)).collect();
            let plan = Plan {
                modules: vec![[0; 32]; modules.len()],
                slots,
                constants: BTreeSet::new(),
                forms: dead.iter().filter_map(|&memory| Some((memory, options.into?))).collect(),
                dead,
                target: Target {
                    version: modules
                        .iter()
                        .map(|module| module.header.version)
                        .max()
                        .unwrap_or((1, 0)),
                    local_memory: LOCAL_LIMIT,
                    separate_functions: options.separate_functions,
                    order_own_accesses: options.order_own_accesses,
                    widen_vectors: options.widen_vectors,
                },
            };
            Ok(Self { modules, memories, plan })
        }
    }

    /// Searches for kernels that do the work of launches, as a fusion scope does, and returns the number of parts and the
    /// number of launches in fused kernels. `dead` lists the buffers whose contents are not read afterwards.
    ///
    /// # Errors
    ///
    /// As for [`fuse`].
    pub fn search(
        modules: &[&[u8]],
        launches: &[Launch],
        dead: &[u32],
        options: FusionOptions,
    ) -> Result<(usize, usize)> {
        let Described { modules, plan, .. } = Described::new(modules, launches, dead, options)?;
        let modules: Vec<_> = modules.iter().collect();
        let width = Width { most: options.width, least_left: 0 };
        let launches = Launches { width, ..Launches::of(&plan, &modules) };
        let outcome = launches.fuse(&launches.whole(), options.form)?;
        if outcome.fused.is_ok() {
            return Ok((1, plan.slots.len()));
        }
        let parts = launches.partition();
        let fused = parts.iter().filter(|part| !part.candidates.is_empty());
        Ok((parts.len(), fused.map(|part| part.slots.len()).sum()))
    }

    /// Fuses launches, or returns the reason why they cannot be fused. `dead` lists the buffers whose contents
    /// are not read afterwards.
    ///
    /// # Errors
    ///
    /// [`InvalidModule`](crate::ErrorKind::InvalidModule) if a module is not valid, and
    /// [`UnknownKernel`](crate::ErrorKind::UnknownKernel) or
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the launches do not fit the modules.
    pub fn fuse(
        modules: &[&[u8]],
        launches: &[Launch],
        dead: &[u32],
        options: FusionOptions,
    ) -> Result<Result<Fused, String>> {
        let Described { modules, memories, plan } =
            Described::new(modules, launches, dead, options)?;
        let number = |memory: Memory| memories.buffer_of(memory);
        let module_refs: Vec<_> = modules.iter().collect();
        let examinations = Examinations::default();
        let programs = Programs { modules: &module_refs, examinations: &examinations };
        let width = Width { most: options.width, least_left: 0 };
        let outcome =
            kiln_compiler::fusion::fuse(&plan, programs, Trust::ProofOnly, width, options.form)?;
        let kept = outcome.judgements.iter().filter(|judgement| judgement.promotion.is_ok());
        let kept = kept.map(|judgement| number(judgement.memory)).collect();
        Ok(outcome.fused.map(|fused| {
            let first =
                |places: &Vec<Place>| places.first().map(|place| (place.slot, place.argument));
            Fused {
                spirv: fused.module.assemble(),
                kernel: fused.kernel,
                range: fused.range,
                parameters: fused.parameters.iter().filter_map(first).collect(),
                kept,
                internalized: fused.internalized.into_iter().map(number).collect(),
                local: fused.local.into_iter().map(number).collect(),
                barriers: fused.barriers.len(),
            }
        }))
    }
}
