//! Translates SPIR-V kernel modules to OpenCL C 1.2, for devices whose drivers do not accept SPIR-V, and for
//! fused kernels whose sources are all text if a driver accepts both.
//!
//! The translation is a pure function from a module to text. The same module yields the same text. The text's
//! results equal those of the module to the last bit, as far as the specification determines them: each
//! instruction is a separate statement, so that nothing is contracted or reordered.
//!
//! Only code that the kernels reach is emitted. Values keep the module's [`names`] or ids, and blocks become
//! labels, so that the text can be read beside the disassembly. A construct that OpenCL C 1.2 cannot express is
//! refused by its name in the specification. Two features that OpenCL C 1.2 lacks are emulated:
//!
//! * Generic address space ([`generic`]): the address space of each pointer is inferred, and a function is
//!   emitted once for each combination of address spaces that it is called with.
//! * Variables of local memory in functions: they are declared in kernels, and other functions get pointers to
//!   them.
//!
//! Types are translated in [`types`], constants in [`constants`], functions in [`function`], those that objects
//! share in [`linkage`], and their control flow in [`blocks`]. Instructions are translated in [`arithmetic`],
//! [`booleans`], [`bits`], [`memory`], [`images`], [`synchronize`], [`collective`] and [`builtins`].

mod arithmetic;
mod bits;
mod blocks;
mod booleans;
mod builtins;
mod collective;
mod constants;
mod function;
mod generic;
mod images;
mod linkage;
mod memory;
mod names;
mod options;
mod print;
mod synchronize;
#[cfg(test)]
mod tests;
mod types;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;

use kiln_spirv::edit::{Definitions, Function, Instruction, Location, Section, View, invalid};
use kiln_spirv::{Demand, Error, Module, Result};
use rspirv::spirv::{
    Decoration, ExecutionMode, ExecutionModel, FunctionParameterAttribute, Op, StorageClass,
};

use linkage::Linked;
use names::Names;
use types::Space;

pub use options::options;

/// Version of the translation, which is part of the keys of the programs that are built with it.
///
/// Each change of the text emitted for a module must raise it, so that no cache serves the output of an older
/// version. `tests::EMITTED` detects such changes.
pub const VERSION: u32 = 13;

/// The OpenCL C text of a module.
#[derive(Debug)]
pub struct Text {
    /// Text.
    pub code: String,
    /// Features that the text requires of a device.
    pub demands: BTreeSet<Demand>,
}

/// Translates a module to OpenCL C 1.2: its kernels, and everything they use. Specialization constants have
/// their defaults.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported), with the name of the construct that cannot be expressed,
/// or of a function that is imported; [`InvalidModule`](kiln_spirv::ErrorKind::InvalidModule) if the module breaks
/// a rule of the specification that matters here.
pub fn opencl_c(module: &Module) -> Result<String> {
    Ok(specialized(module, &[])?.code)
}

/// Like [`opencl_c`], with values for specialization constants, by `SpecId` and as bytes in the module's form.
///
/// # Errors
///
/// Fails like [`opencl_c`].
pub fn specialized(module: &Module, values: &[(u32, Vec<u8>)]) -> Result<Text> {
    let mut emitter = Emitter::of(module, values, Linked::new())?;
    emitter.kernels()?;
    Ok(emitter.finish())
}

/// Like [`specialized`], for an object that is linked with others: with the functions that the module exports,
/// and with declarations of those that it imports.
///
/// # Errors
///
/// As for [`opencl_c`], except that imports are no error. Exported functions cannot have parameters of the
/// generic address space, or variables of local memory.
pub fn object(module: &Module, values: &[(u32, Vec<u8>)]) -> Result<Text> {
    let mut emitter = Emitter::of(module, values, linkage::linked(module))?;
    emitter.exports()?;
    emitter.kernels()?;
    Ok(emitter.finish())
}

fn unsupported(what: impl std::fmt::Display) -> Error {
    Error::unsupported(format!(
        "Kiln cannot express {what} in OpenCL C 1.2; only a device that accepts SPIR-V can run it"
    ))
}

fn malformed(what: impl std::fmt::Display) -> Error {
    invalid(format!(
        "the SPIR-V module is not valid in {what}; check it with `spirv-val`, and rebuild it"
    ))
}

/// Returns the error for an instruction whose operands do not have the format of its opcode.
fn damaged(instruction: &Instruction<'_>) -> Error {
    malformed(instruction.name())
}

/// Returns the type and the id of the result of an instruction.
fn typed(instruction: &Instruction<'_>) -> Result<(u32, u32)> {
    let result = instruction.result_type().zip(instruction.result());
    result.ok_or_else(|| damaged(instruction))
}

/// State of a translation: the indexed module, and the parts of the text that are needed so far.
struct Emitter<'m> {
    module: &'m Module,
    definitions: Definitions<'m>,
    functions: HashMap<u32, &'m Function>,
    names: Names,
    decorations: Decorations,
    /// Linkage of the ids that the text shares with other objects; empty for a whole program.
    linked: Linked<'m>,
    /// Bits of the values given for specialization constants, by id.
    specialized: HashMap<u32, u64>,
    /// Bits of constant integers and Booleans, by id.
    integers: HashMap<u32, u64>,
    pointer_bytes: u32,
    /// Whether memory of one type may be accessed as another.
    puns: bool,
    /// Whether the module uses generic pointers at all.
    has_generic: bool,
    /// Execution modes of each function.
    execution_modes: HashMap<u32, Vec<Instruction<'m>>>,

    demands: BTreeSet<Demand>,
    /// Extensions that the text uses and that no demand implies.
    extensions: BTreeSet<&'static str>,
    opaque: BTreeSet<u32>,
    /// Definitions of aggregate types by their location in the module, which orders them. `constants` is
    /// ordered likewise.
    aggregates: BTreeMap<Location, String>,
    accesses: BTreeMap<String, String>,
    helpers: BTreeMap<String, String>,
    constants: BTreeMap<Location, String>,
    /// Emitted functions, by id and the address spaces of their generic parameters.
    instances: HashMap<(u32, Vec<Space>), function::Instance>,
    /// Functions whose emission is in progress.
    calling: Vec<u32>,
    nesting: u32,
    /// Alignments of types in bytes, by id.
    alignments: HashMap<u32, u32>,
    /// Number of words of the emitted function bodies, each counted as often as it is emitted.
    words: usize,
    /// Number of parts of all constants that were written.
    constant_parts: u32,
    code: String,
}

impl<'m> Emitter<'m> {
    fn of(module: &'m Module, values: &[(u32, Vec<u8>)], linked: Linked<'m>) -> Result<Self> {
        let has_model = || module.section(Section::MemoryModel).iter().next().is_some();
        let pointer_bytes = match module.address_bytes() {
            Some(bytes) => bytes,
            None if has_model() => {
                return Err(unsupported("an addressing model without a size of addresses"));
            }
            None => return Err(malformed("its memory model")),
        };
        let mut emitter = Self {
            module,
            definitions: module.definitions(),
            functions: module.functions.iter().map(|function| (function.id, function)).collect(),
            names: Names::of(module, linked.values().map(|linkage| linkage.name)),
            decorations: Decorations::of(module),
            linked,
            specialized: HashMap::new(),
            integers: HashMap::new(),
            pointer_bytes,
            puns: false,
            has_generic: generic::has_generic(module),
            execution_modes: HashMap::new(),
            demands: BTreeSet::new(),
            extensions: BTreeSet::new(),
            opaque: BTreeSet::new(),
            aggregates: BTreeMap::new(),
            accesses: BTreeMap::new(),
            helpers: BTreeMap::new(),
            constants: BTreeMap::new(),
            instances: HashMap::new(),
            calling: Vec::new(),
            nesting: 0,
            alignments: HashMap::new(),
            words: 0,
            constant_parts: 0,
            code: String::new(),
        };
        emitter.puns = emitter.may_pun();
        for mode in module.section(Section::ExecutionModes).iter() {
            let (View::ExecutionMode { entry, .. } | View::ExecutionModeId { entry, .. }) =
                mode.view()
            else {
                return Err(damaged(&mode));
            };
            emitter.execution_modes.entry(entry).or_default().push(mode);
        }
        emitter.specialize(values);
        emitter.evaluate_all();
        Ok(emitter)
    }

    fn specialize(&mut self, values: &[(u32, Vec<u8>)]) {
        for id in self.decorations.ids() {
            let spec_id = self.decoration(id, Decoration::SpecId).and_then(<[u32]>::first);
            let value = values.iter().find(|(given, _)| Some(given) == spec_id);
            if let Some((_, bytes)) = value {
                let bits = bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
                self.specialized.insert(id, bits);
            }
        }
    }

    /// Returns whether memory of one type may be accessed as another. C compilers assume that it is not;
    /// compilers of SPIR-V must not assume so.
    fn may_pun(&self) -> bool {
        let entries = self.module.section(Section::EntryPoints).iter();
        let kernels = entries.filter_map(|entry| entry.entry_point());
        let mut kernels = kernels.filter_map(|(function, _)| self.functions.get(&function));
        kernels.any(|kernel| self.takes_several_types(kernel)) || self.has_casts()
    }

    /// Returns whether a kernel takes buffers of several types, which may be the same memory. Byte buffers do
    /// not count, because bytes alias with all other types in C, too.
    fn takes_several_types(&self, kernel: &Function) -> bool {
        let is_byte = |ty: &Instruction<'_>| matches!(ty.view(), View::TypeInt { width: 8, .. });
        let body = kernel.body.iter();
        let parameters = body.filter(|inside| inside.op() == Some(Op::FunctionParameter));
        let types = parameters.filter_map(|parameter| {
            let pointer = self.definitions.get(parameter.result_type()?)?;
            let View::TypePointer { class, pointee } = pointer.view() else { return None };
            (class == StorageClass::CrossWorkgroup as u32).then_some(pointee)
        });
        let mut types =
            types.filter(|&ty| !self.definitions.get(ty).is_some_and(|ty| is_byte(&ty)));
        let first = types.next();
        types.any(|ty| Some(ty) != first)
    }

    fn has_casts(&self) -> bool {
        let bodies = self.module.functions.iter().flat_map(|function| function.body.iter());
        bodies.chain(self.module.section(Section::Globals).iter()).any(|instruction| {
            match instruction.op() {
                Some(Op::ConvertUToPtr | Op::TypeUntypedPointerKHR) => true,
                Some(Op::SpecConstantOp) => matches!(
                    instruction.view(),
                    View::SpecConstantOp { operation, .. } if operation == Op::Bitcast as u32
                ),
                Some(Op::Bitcast) => instruction
                    .result_type()
                    .and_then(|ty| self.definitions.get(ty))
                    .is_some_and(|ty| ty.op() == Some(Op::TypePointer)),
                _ => false,
            }
        })
    }

    fn definition(&self, id: u32) -> Result<Instruction<'m>> {
        self.definitions.get(id).ok_or_else(|| malformed(format!("id {id}, which is not defined")))
    }

    /// Returns whether an id is defined in a function.
    fn is_in_function(&self, id: u32) -> bool {
        let location = self.definitions.location(id);
        location.and_then(|at| at.function(self.definitions.module())).is_some()
    }

    fn type_of(&self, value: u32) -> Result<u32> {
        let definition = self.definition(value)?;
        definition
            .result_type()
            .ok_or_else(|| malformed(format!("id {value}, which is not a value")))
    }

    /// Returns whether all parts of a constant are undefined.
    fn is_undefined(&self, value: u32) -> bool {
        let (mut pending, mut seen) = (vec![value], HashSet::new());
        while let Some(value) = pending.pop() {
            if !seen.insert(value) {
                continue;
            }
            match self.definitions.get(value) {
                Some(part) if part.op() == Some(Op::Undef) => {}
                Some(part) if part.op() == Some(Op::ConstantComposite) => {
                    pending.extend(part.parts());
                }
                _ => return false,
            }
        }
        true
    }

    /// Returns the integer type that has as many bits as a pointer.
    fn bits_of_pointers(&self) -> &'static str {
        if self.pointer_bytes == 4 { "uint" } else { "ulong" }
    }

    fn name(&self, id: u32, prefix: &str) -> String {
        self.names.get(id, prefix)
    }

    fn decoration(&self, id: u32, decoration: Decoration) -> Option<&[u32]> {
        self.decorations.get(id, decoration).next().map(Vec::as_slice)
    }

    fn decorated(&self, id: u32, decoration: Decoration) -> bool {
        self.decoration(id, decoration).is_some()
    }

    fn has_attribute(&self, parameter: u32, attribute: FunctionParameterAttribute) -> bool {
        let mut all = self.decorations.get(parameter, Decoration::FuncParamAttr);
        all.any(|operands| operands.first() == Some(&(attribute as u32)))
    }

    /// Returns the linkage name of an id that the module imports.
    fn import(&self, id: u32) -> Option<&'m str> {
        let linkages = self.module.linkages();
        linkages.iter().find(|linkage| linkage.target == id).map(|linkage| linkage.name)
    }

    /// Emits all kernels of the module.
    fn kernels(&mut self) -> Result<()> {
        for entry in self.module.section(Section::EntryPoints).iter() {
            if entry.op() != Some(Op::EntryPoint) {
                continue;
            }
            let View::EntryPoint { model, function, name, .. } = entry.view() else {
                return Err(damaged(&entry));
            };
            if model != ExecutionModel::Kernel as u32 {
                return Err(unsupported("an entry point that is not a kernel"));
            }
            let name = name.get().ok_or_else(|| malformed("an entry point's name"))?;
            self.kernel(function, name).map_err(|error| error.within(name))?;
        }
        Ok(())
    }

    fn kernel(&mut self, id: u32, name: &str) -> Result<()> {
        if !is_identifier(name) {
            return Err(unsupported(format!("the kernel name `{name}`")));
        }
        let attributes = self.attributes(id)?;
        self.emit_function(id, &[], Some((name, &attributes)))?;
        Ok(())
    }

    /// Returns a kernel's execution modes as attributes.
    fn attributes(&self, kernel: u32) -> Result<String> {
        let mut attributes = String::new();
        for mode in self.execution_modes.get(&kernel).into_iter().flatten() {
            let (number, parameters, is_id) = match mode.view() {
                View::ExecutionMode { mode, parameters, .. } => (mode, parameters, false),
                View::ExecutionModeId { mode, parameters, .. } => (mode, parameters, true),
                _ => return Err(damaged(mode)),
            };
            let parameter = |index| parameters.get(index).ok_or_else(|| damaged(mode));
            let sizes = || -> Result<String> {
                let mut sizes = Vec::new();
                for index in 0..3 {
                    let size = parameter(index)?;
                    sizes.push(if is_id { self.integer(size)? } else { size.into() }.to_string());
                }
                Ok(sizes.join(", "))
            };
            match ExecutionMode::from_u32(number) {
                Some(ExecutionMode::LocalSize | ExecutionMode::LocalSizeId) => {
                    let _ =
                        writeln!(attributes, "__attribute__((reqd_work_group_size({})))", sizes()?);
                }
                Some(ExecutionMode::LocalSizeHint | ExecutionMode::LocalSizeHintId) => {
                    let _ =
                        writeln!(attributes, "__attribute__((work_group_size_hint({})))", sizes()?);
                }
                Some(ExecutionMode::VecTypeHint) => {
                    if let Some(ty) = hinted_vector(parameter(0)?) {
                        let _ = writeln!(attributes, "__attribute__((vec_type_hint({ty})))");
                    }
                }
                // These hold for the whole text anyway.
                Some(
                    ExecutionMode::ContractionOff
                    | ExecutionMode::DenormPreserve
                    | ExecutionMode::SignedZeroInfNanPreserve
                    | ExecutionMode::RoundingModeRTE,
                ) => {}
                Some(other) => return Err(unsupported(format!("execution mode {other:?}"))),
                None => return Err(unsupported(format!("execution mode {number}"))),
            }
        }
        Ok(attributes)
    }

    fn finish(self) -> Text {
        let mut text = String::from(
            "// OpenCL C 1.2, translated from SPIR-V: numbers in names are the ids of the module.\n\
             #pragma OPENCL FP_CONTRACT OFF\n",
        );
        let demanded = self.demands.iter().copied().filter_map(extension);
        for extension in demanded.chain(self.extensions.iter().copied()) {
            let _ = writeln!(text, "#pragma OPENCL EXTENSION {extension} : enable");
        }
        text.push('\n');
        for &opaque in &self.opaque {
            let _ = writeln!(text, "struct {};", self.name(opaque, "type_"));
        }
        let types = self.aggregates.values().chain(self.accesses.values());
        for part in types.chain(self.helpers.values()).chain(self.constants.values()) {
            text += part;
        }
        Text { code: text + &self.code, demands: self.demands }
    }
}

/// Returns the name of the vector type that `VecTypeHint` encodes; `None` if there is no such type.
fn hinted_vector(encoded: u32) -> Option<String> {
    let kind = match encoded & 0xffff {
        0 => "char",
        1 => "short",
        2 => "int",
        3 => "long",
        5 => "float",
        // Half and double precision are not supported everywhere.
        _ => return None,
    };
    match encoded >> 16 {
        0 | 1 => Some(kind.to_owned()),
        count @ (2 | 3 | 4 | 8 | 16) => Some(format!("{kind}{count}")),
        _ => None,
    }
}

/// Decorations of ids, both their own and those of their groups.
struct Decorations {
    own: HashMap<(u32, Decoration), BTreeSet<Vec<u32>>>,
    /// Groups of each id. A group's decorations are looked up on demand, because a small module can apply a
    /// large group many times.
    groups: HashMap<u32, BTreeSet<u32>>,
}

impl Decorations {
    fn of(module: &Module) -> Self {
        let (mut own, mut groups) =
            (HashMap::<_, BTreeSet<_>>::new(), HashMap::<_, BTreeSet<_>>::new());
        for annotation in module.section(Section::Annotations).iter() {
            match annotation.view() {
                View::Decorate { target, decoration, parameters }
                    if annotation.op() == Some(Op::Decorate) =>
                {
                    if let Some(decoration) = Decoration::from_u32(decoration) {
                        let operands = parameters.iter().collect();
                        own.entry((target, decoration)).or_default().insert(operands);
                    }
                }
                View::GroupDecorate { group, targets } => {
                    for target in targets.iter() {
                        groups.entry(target).or_default().insert(group);
                    }
                }
                _ => {}
            }
        }
        Self { own, groups }
    }

    fn ids(&self) -> Vec<u32> {
        self.own.keys().map(|&(id, _)| id).chain(self.groups.keys().copied()).collect()
    }

    /// Returns the operands of each decoration of this kind that an id has. Groups are not members of groups.
    fn get(&self, id: u32, decoration: Decoration) -> impl Iterator<Item = &Vec<u32>> {
        let groups = self.groups.get(&id).into_iter().flatten();
        let ids = std::iter::once(id).chain(groups.copied());
        ids.filter_map(move |id| self.own.get(&(id, decoration))).flatten()
    }
}

/// Returns the extension of OpenCL C 1.2 that provides a feature.
fn extension(feature: Demand) -> Option<&'static str> {
    Some(match feature {
        Demand::Half => "cl_khr_fp16",
        Demand::Double => "cl_khr_fp64",
        Demand::LongAtomics => "cl_khr_int64_base_atomics",
        Demand::ExtendedLongAtomics => "cl_khr_int64_extended_atomics",
        Demand::Subgroups => "cl_khr_subgroups",
        _ => return None,
    })
}

/// Returns whether a kernel can have the name. Other reserved words are left to the compiler to reject.
fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}
