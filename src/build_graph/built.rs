//! Results of builds in the graph.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use kiln_spirv::Parameter;

use super::artifact::{Artifact, SignatureSource};
use super::footprint::Footprint;
use super::input::BuildInput;
use super::link::similar_names;
use super::plan::{BuildPlan, LinkedModule};
use crate::args::ElementType;
use crate::backend;
use crate::cache::store::Storage;
use crate::device::Device;
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::source::module::Module;

/// Origin of a program: a compile, or the cache that it was loaded from.
///
/// # Examples
///
/// ```no_run
/// use kiln::build::Origin;
///
/// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
/// match rt.build(&module).await?.origin() {
///     Origin::Compiled => println!("the driver compiled it"),
///     origin => println!("found in a cache: {origin}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The driver built the program for this request, or for one that was made while the build ran.
    Compiled,
    /// The program was in memory, from an earlier request.
    Memory,
    /// The program was loaded from the disk.
    Disk,
    /// The program was loaded from a remote cache.
    Remote,
    /// Other code built the program, and the application gave it to the runtime.
    Given,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Compiled => "compiled",
            Self::Memory => "memory",
            Self::Disk => "disk",
            Self::Remote => "remote",
            Self::Given => "given",
        })
    }
}

/// A program in the build graph. Each reference keeps the program usable, even after it is evicted.
pub(crate) struct Built {
    artifact: Artifact,
    kernels: Box<[BuiltKernel]>,
    device: Device,
    key: BuildKey,
    origin: Origin,
    build_log: Box<str>,
    binary_bytes: AtomicUsize,
    /// Share in the memory of the driver; `None` for SPIR-V, and for programs that no driver of code has.
    footprint: Option<Footprint>,
    parts: Box<[LinkedModule]>,
    recipe: Option<Recipe>,
    /// Whether the modules were marked as untrusted in any request that received the program.
    is_untrusted: AtomicBool,
    /// Whether the store has the program, once that is known.
    storage: OnceLock<Storage>,
}

/// Source of a program, from which its kernels are fused and checked.
pub(super) struct Recipe {
    pub(super) plan: BuildPlan,
    /// Text that the plan's only module was translated from, if it was translated for this build.
    pub(super) text: Option<BuildInput>,
}

/// Properties of a program that its driver does not report.
pub(crate) struct BuildMetadata<'a> {
    pub(crate) origin: Origin,
    /// Messages of the compiler that built the program.
    pub(crate) build_log: &'a str,
    /// Size of the program's binary in bytes.
    pub(crate) size: usize,
    /// Share of the program in the memory of its driver, if it is known.
    pub(crate) footprint: Option<Footprint>,
    /// Modules that the program was linked from; empty if it was not linked.
    pub(crate) parts: Box<[LinkedModule]>,
    /// `None` for a program that other code built.
    pub(super) recipe: Option<Recipe>,
    /// Preferred source of the signatures of its kernels.
    pub(crate) signature_source: SignatureSource,
}

struct BuiltKernel {
    name: Box<str>,
    /// The driver's kernel; `None` for a kernel of SPIR-V.
    native: Option<Arc<dyn backend::Kernel>>,
    parameters: Box<[Parameter]>,
    /// Element type of each parameter, if it is known.
    elements: Box<[Option<ElementType>]>,
}

impl Built {
    pub(super) fn new(
        artifact: Artifact,
        device: Device,
        key: BuildKey,
        metadata: BuildMetadata<'_>,
        parameters: impl Fn(&str) -> Option<Vec<Parameter>>,
    ) -> Self {
        let kernels = artifact.kernels().into_iter().map(|kernel| {
            let declared = parameters(kernel.name);
            let parameters =
                merge_parameters(metadata.signature_source, kernel.parameters, declared.as_deref());
            let elements = parameters.iter().map(ElementType::of).collect();
            let native = kernel.native.cloned();
            BuiltKernel { name: kernel.name.into(), native, parameters, elements }
        });
        let kernels = kernels.collect();
        let BuildMetadata { origin, build_log, size, footprint, parts, recipe, .. } = metadata;
        let build_log = build_log.into();
        let is_untrusted = recipe.as_ref().is_some_and(|recipe| recipe.plan.is_untrusted());
        Self {
            kernels,
            artifact,
            device,
            key,
            origin,
            build_log,
            binary_bytes: size.into(),
            footprint,
            parts,
            recipe,
            is_untrusted: is_untrusted.into(),
            storage: OnceLock::new(),
        }
    }

    /// Returns whether the store has the program.
    pub(super) fn storage(&self) -> Storage {
        self.storage.get().cloned().unwrap_or(Storage::Pending)
    }

    /// Notes whether the store has the program. What is noted first stays.
    pub(super) fn set_storage(&self, storage: Storage) {
        self.storage.get_or_init(|| storage);
    }

    /// Returns the plan that the program was built from; `None` if other code built it.
    pub(crate) fn plan(&self) -> Option<&BuildPlan> {
        self.recipe.as_ref().map(|recipe| &recipe.plan)
    }

    /// Returns the text that the plan's only module was translated from, if it was translated for the build.
    pub(super) fn text(&self) -> Option<&BuildInput> {
        self.recipe.as_ref()?.text.as_ref()
    }

    /// Whether everything that is compiled from this program must be compiled outside this process.
    pub(crate) fn is_untrusted(&self) -> bool {
        self.is_untrusted.load(Relaxed)
    }

    /// Marks the program as untrusted, because a request that does not trust its modules received it. The
    /// program itself stays as it is. Everything compiled from it later, for any request, is compiled as
    /// untrusted.
    pub(crate) fn distrust(&self) {
        self.is_untrusted.store(true, Relaxed);
    }

    /// Returns the key of the program in every cache.
    pub(crate) fn key(&self) -> BuildKey {
        self.key
    }

    /// Returns the origin of the program before it was in memory.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the compiler's messages.
    pub(crate) fn build_log(&self) -> &str {
        &self.build_log
    }

    /// Returns the names of its kernels with their parameters, as far as these are known.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = (&str, &[Parameter])> {
        self.kernels.iter().map(|kernel| (&*kernel.name, &*kernel.parameters))
    }

    /// Returns the SPIR-V if this node is SPIR-V and not a driver's program.
    pub(crate) fn spirv(&self) -> Option<&Module> {
        self.artifact.spirv()
    }

    /// Returns the driver's program or object. Fails for SPIR-V.
    pub(crate) fn native(&self) -> Result<&dyn backend::Program> {
        self.artifact.native()
    }

    /// Returns the modules that the program was linked from; empty if it was not linked.
    pub(crate) fn parts(&self) -> &[LinkedModule] {
        &self.parts
    }

    /// Returns the bytes from which the program can be loaded again.
    pub(crate) fn binary(&self) -> Result<Vec<u8>> {
        self.artifact.binary()
    }

    /// Returns the weight against the memory limit in bytes: the size of its binary, and the estimate of what the driver
    /// takes besides.
    pub(super) fn weight(&self) -> u64 {
        let besides = self.footprint.as_ref().map_or(0, Footprint::bytes);
        self.binary_bytes() as u64 + besides
    }

    /// Returns the size of its binary in bytes.
    pub(super) fn binary_bytes(&self) -> usize {
        self.binary_bytes.load(Relaxed)
    }

    /// Corrects the size of the binary. A cache that holds the program has to weigh it again.
    pub(super) fn set_binary_bytes(&self, bytes: usize) {
        self.binary_bytes.store(bytes, Relaxed);
    }

    /// Returns the device that the program was built for.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(super) fn resolve(self: &Arc<Self>, name: &str) -> Result<ResolvedKernel> {
        if let Some(at) = name.find('\0') {
            return Err(Error::invalid(format!(
                "the kernel name {name:?} contains a NUL character at byte {at}; remove it"
            )));
        }
        let mut kernels = self.kernels.iter().enumerate();
        let native = kernels.find_map(|(index, kernel)| {
            let native = kernel.native.as_ref().filter(|_| *kernel.name == *name)?;
            Some((index, Arc::clone(native)))
        });
        let (index, native) =
            native.ok_or_else(|| unknown_kernel_error(name, &self.kernel_names()))?;
        Ok(ResolvedKernel { native, built: Arc::clone(self), index })
    }

    pub(super) fn kernel_names(&self) -> Vec<&str> {
        self.kernels.iter().map(|kernel| &*kernel.name).collect()
    }
}

/// Returns the error for a program without a kernel of this name. `names` has those of its kernels.
pub(super) fn unknown_kernel_error(name: &str, names: &[&str]) -> Error {
    let message = match names {
        [] => format!("the program has no kernel `{name}`; it has no kernels"),
        names => {
            // PoCL's headers rename its built-in functions this way, and also kernels that have the name of
            // a built-in function.
            let is_built_in = names.iter().any(|known| *known == format!("_cl_{name}"));
            let hint = match similar_names(name, names.iter().copied()).first() {
                _ if is_built_in => {
                    "; it has the name of a built-in function of OpenCL C, which PoCL renames: \
                     give it another name"
                        .to_owned()
                }
                Some(similar) => format!("; did you mean `{similar}`?"),
                None => String::new(),
            };
            format!("the program has no kernel `{name}`; it has: {}{hint}", names.join(", "))
        }
    };
    Error::new(ErrorKind::UnknownKernel, message)
}

/// Merges the parameters that the driver reports with those from the module or the stored entry.
fn merge_parameters(
    source: SignatureSource,
    driver: &[Parameter],
    declared: Option<&[Parameter]>,
) -> Box<[Parameter]> {
    match declared {
        Some(declared) if driver.is_empty() => declared.into(),
        Some(declared) if driver.len() == declared.len() && source == SignatureSource::Module => {
            declared.into()
        }
        Some(declared) if driver.len() == declared.len() => {
            let both = driver.iter().zip(declared).map(|(driver, declared)| {
                Parameter::new(
                    driver.name.clone().or_else(|| declared.name.clone()),
                    driver.type_name.clone().or_else(|| declared.type_name.clone()),
                    driver.address_space.or(declared.address_space),
                    driver.access.or(declared.access),
                    driver.size.or(declared.size),
                )
            });
            both.collect()
        }
        // Different counts mean that the two sources do not describe the same signature.
        _ => driver.into(),
    }
}

/// A kernel of an existing program, ready to launch.
pub(crate) struct ResolvedKernel {
    pub(crate) native: Arc<dyn backend::Kernel>,
    pub(crate) built: Arc<Built>,
    index: usize,
}

/// A weak reference to a kernel: it does not keep the program alive.
pub(crate) struct WeakKernel {
    built: Weak<Built>,
    index: usize,
}

impl WeakKernel {
    /// Whether this refers to `kernel`, regardless of the handle used. A program that has been freed is never
    /// mistaken for another one: the weak reference keeps its address from being reused.
    pub(crate) fn is(&self, kernel: &ResolvedKernel) -> bool {
        self.index == kernel.index && self.built.as_ptr() == Arc::as_ptr(&kernel.built)
    }
}

impl ResolvedKernel {
    /// Returns the label of the module that contains the kernel, if it has one.
    pub(crate) fn label(&self) -> Option<&str> {
        self.built.plan()?.label_of(self.name())
    }

    /// Returns the name that users know the kernel by. The driver may know it by another one.
    pub(crate) fn name(&self) -> &str {
        &self.built.kernels[self.index].name
    }

    pub(crate) fn downgrade(&self) -> WeakKernel {
        WeakKernel { built: Arc::downgrade(&self.built), index: self.index }
    }

    /// Returns the parameters as far as the driver or the module states them.
    pub(crate) fn parameters(&self) -> &[Parameter] {
        &self.built.kernels[self.index].parameters
    }

    /// Returns the element types of the parameters, as far as the names of their types are known.
    pub(crate) fn elements(&self) -> &[Option<ElementType>] {
        &self.built.kernels[self.index].elements
    }
}
