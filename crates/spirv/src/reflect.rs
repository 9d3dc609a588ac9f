//! Reads the interface of a module: kernels and their parameters, specialization constants and symbols.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rspirv::spirv::{
    Capability, Decoration, ExecutionModel, FunctionParameterAttribute, LinkageType, Op,
    StorageClass,
};

use super::grammar::Shape;
use super::module::Linkage;
use super::names::{user_name, user_symbol};
use super::record::{self, DEBUG_ENTRY_POINT, INSTRUCTION_SETS};
use super::types::{Declarations, Type, constant_scalar};
use super::words::{ByteOrder, Header, Instruction, Instructions, Words, byte_order};
use super::{Reflection, Symbol};
use crate::signature::{Access, AddressSpace, Parameter, SpecializationConstant};

/// Maximum length of a name of a type or value, in bytes; longer names are dropped. Many parameters can refer
/// to one name, so that without a limit a small module could cause large allocations.
const MAX_NAME_BYTES: usize = 512;

pub(super) fn reflect(words: &Words) -> Reflection {
    let mut index = Index::default();
    for instruction in words.instructions() {
        // An instruction that lacks operands is skipped; the driver reports it.
        let _ = index.add(&instruction);
    }
    let (exports, imports) = index.symbols();
    Reflection {
        exports,
        imports,
        kernels: index.kernels(),
        specialization_constants: index.specialization_constants(),
        parameters: index.parameters(),
        has_function_pointers: index.has_function_pointers,
        recorded_options: record::options(&index.command_lines),
    }
}

/// Returns the names that a module probably exports, without reading its functions: all symbols with a linkage
/// other than `Import`, which includes those behind kernels. Returns `None` for bytes that are not in
/// little-endian order. The names of a damaged module end where the damage begins.
#[must_use]
pub fn exported_names(bytes: &[u8]) -> Option<Vec<&str>> {
    if byte_order(bytes) != Some(ByteOrder::Little) {
        return None;
    }
    let words = bytes.as_chunks().0.get(Header::WORDS..).unwrap_or_default();
    let globals = Instructions::of(words).take_while(|i| i.opcode() != Op::Function as u16);
    let decorations = globals.filter(|i| i.opcode() == Op::Decorate as u16);
    let linkages = decorations.filter_map(|i| Linkage::of(&i));
    let exports = linkages.filter(|linkage| linkage.kind != LinkageType::Import);
    Some(exports.map(|linkage| linkage.name).collect())
}

/// Index of the instructions that reflection needs, by their subject. Its size is linear in the module's
/// size.
#[derive(Default)]
struct Index<'m> {
    /// Name and function of each kernel, in the module's order.
    entry_points: Vec<(&'m str, u32)>,
    declared: HashMap<&'m str, Declared<'m>>,
    names: HashMap<u32, &'m str>,
    decorations: HashMap<u32, Decorations<'m>>,
    /// The instructions that declare types.
    declarations: HashMap<u32, Instruction<'m>>,
    /// Ids with a linkage decoration, in the module's order.
    linked: Vec<u32>,
    /// Ids of `linked` that are functions or variables.
    symbols: HashSet<u32>,
    has_function_pointers: bool,
    /// Ids of the instruction sets that record command lines.
    recording_sets: Vec<u32>,
    /// Strings, if there is such a set.
    strings: HashMap<u32, &'m str>,
    /// Command lines that the producer recorded.
    command_lines: Vec<&'m str>,
    constants: Vec<Constant<'m>>,
    /// Type and id of each parameter of the kernels' functions; `None` until the function has been read.
    functions: HashMap<u32, Option<Vec<(u32, u32)>>>,
    /// Function whose parameters follow, if it belongs to a kernel.
    function: Option<u32>,
}

/// Declarations of a kernel's parameters in the source, in order.
#[derive(Clone, Copy, Default)]
struct Declared<'m> {
    types: Option<&'m str>,
    qualifiers: Option<&'m str>,
}

#[derive(Clone, Copy, Default)]
struct Decorations<'m> {
    by_value: bool,
    not_written: bool,
    built_in: bool,
    spec_id: Option<u32>,
    linkage: Option<(&'m str, LinkageType)>,
}

struct Constant<'m> {
    ty: u32,
    id: u32,
    value: Value<'m>,
}

enum Value<'m> {
    Bool(bool),
    Literal(&'m [u8]),
}

impl<'m> Index<'m> {
    fn add(&mut self, instruction: &Instruction<'m>) -> Option<()> {
        let word = |index| instruction.word(index);
        match instruction.op()? {
            Op::EntryPoint if word(0)? == ExecutionModel::Kernel as u32 => {
                // A kernel whose name is not UTF-8 cannot be requested, so it is left out.
                let (name, function) = (instruction.string(2)?, word(1)?);
                self.entry_points.push((user_name(name), function));
                self.functions.entry(function).or_default();
            }
            Op::ExtInstImport if INSTRUCTION_SETS.contains(&instruction.string(1)?) => {
                self.recording_sets.push(word(0)?);
            }
            Op::String => {
                let text = instruction.string(1)?;
                if !self.recording_sets.is_empty() {
                    self.strings.insert(word(0)?, text);
                }
                self.add_declared(text)?;
            }
            Op::ExtInst
                if self.recording_sets.contains(&word(2)?) && word(3)? == DEBUG_ENTRY_POINT =>
            {
                self.command_lines.push(self.strings.get(&word(7)?)?);
            }
            Op::Name => {
                let name = instruction.string(1).filter(|name| is_short(name))?;
                self.names.insert(word(0)?, user_symbol(name));
            }
            Op::Capability => {
                self.has_function_pointers |= word(0)? == Capability::FunctionPointersINTEL as u32;
            }
            Op::Decorate => {
                let target = word(0)?;
                let decorations = self.decorations.entry(target).or_default();
                if word(1) == Some(Decoration::LinkageAttributes as u32) {
                    self.linked.push(target);
                }
                decorations.add(instruction)?;
            }
            Op::GroupDecorate => {
                let group = *self.decorations.get(&word(0)?)?;
                for target in instruction.words_from(1) {
                    self.linked.extend(group.linkage.map(|_| target));
                    self.decorations.entry(target).or_default().merge(group);
                }
            }
            Op::SpecConstantTrue => self.add_constant(instruction, Value::Bool(true))?,
            Op::SpecConstantFalse => self.add_constant(instruction, Value::Bool(false))?,
            Op::SpecConstant => {
                self.add_constant(instruction, Value::Literal(instruction.bytes_from(2)))?;
            }
            Op::Function => {
                self.add_symbol(word(1)?);
                // Entry points come before all functions.
                self.function = word(1).filter(|id| self.functions.contains_key(id));
                *self.functions.get_mut(&self.function?)? = Some(Vec::new());
            }
            Op::FunctionParameter => {
                let function = self.functions.get_mut(&self.function?)?.as_mut()?;
                function.push((word(0)?, word(1)?));
            }
            Op::Variable | Op::UntypedVariableKHR => self.add_symbol(word(1)?),
            _ if Shape::of(instruction.opcode()).is_type => {
                self.declarations.insert(word(0)?, *instruction);
            }
            _ => {}
        }
        Some(())
    }

    /// Records clang's metadata about the source, such as `kernel_arg_type.saxpy.float,float*,float*,` and
    /// `kernel_arg_type_qual.saxpy.,const,,`.
    fn add_declared(&mut self, string: &'m str) -> Option<()> {
        let (what, rest) = string.split_once('.')?;
        // A kernel's name may contain dots; its types do not.
        let (kernel, list) = rest.rsplit_once('.')?;
        let kernel = user_name(kernel);
        match what {
            "kernel_arg_type" => self.declared.entry(kernel).or_default().types = Some(list),
            "kernel_arg_type_qual" => {
                self.declared.entry(kernel).or_default().qualifiers = Some(list);
            }
            _ => {}
        }
        Some(())
    }

    fn add_constant(&mut self, instruction: &Instruction<'m>, value: Value<'m>) -> Option<()> {
        let (ty, id) = (instruction.word(0)?, instruction.word(1)?);
        self.constants.push(Constant { ty, id, value });
        Some(())
    }

    fn add_symbol(&mut self, id: u32) {
        if self.decorations.get(&id).is_some_and(|decorations| decorations.linkage.is_some()) {
            self.symbols.insert(id);
        }
    }

    /// Returns the exports and the imports.
    fn symbols(&self) -> (Vec<Symbol>, Vec<Symbol>) {
        let (mut exports, mut imports) = (Vec::new(), Vec::new());
        let mut seen = HashSet::new();
        for id in self.linked.iter().filter(|id| self.symbols.contains(id)) {
            let Some(&Decorations { built_in, linkage: Some((name, linkage)), .. }) =
                self.decorations.get(id)
            else {
                continue;
            };
            // Imports of built-in values of the device, such as the global id, are resolved by its driver.
            if !seen.insert(*id) || (built_in && linkage == LinkageType::Import) {
                continue;
            }
            let symbol = Symbol { name: name.to_owned(), linkage };
            let list = if linkage == LinkageType::Import { &mut imports } else { &mut exports };
            list.push(symbol);
        }
        (exports, imports)
    }

    fn kernels(&self) -> Vec<String> {
        let mut seen = HashSet::new();
        let names = self.entry_points.iter().map(|&(name, _)| name);
        names.filter(|name| seen.insert(*name)).map(str::to_owned).collect()
    }

    fn specialization_constants(&self) -> Vec<SpecializationConstant> {
        let mut constants: Vec<_> = self
            .constants
            .iter()
            .filter_map(|constant| self.specialization_constant(constant))
            .collect();
        // Constants that share an id are set by one value.
        constants.sort_by_key(|constant| constant.id);
        constants.dedup_by_key(|constant| constant.id);
        constants
    }

    fn specialization_constant(&self, constant: &Constant<'m>) -> Option<SpecializationConstant> {
        // A constant without a `SpecId` follows from others and cannot be set.
        let id = self.decorations.get(&constant.id)?.spec_id?;
        let ty = self.ty(constant.ty)?;
        let (type_name, bytes) = constant_scalar(ty)?;
        let default = match constant.value {
            Value::Bool(value) if ty == Type::Bool => vec![value.into()],
            // Literals narrower than a word are extended to one.
            Value::Literal(words) if ty != Type::Bool => words.get(..bytes)?.to_vec(),
            _ => return None,
        };
        let name = self.names.get(&constant.id).map(|&name| name.to_owned());
        Some(SpecializationConstant { id, name, type_name: type_name.to_owned(), default })
    }

    fn parameters(&self) -> HashMap<String, Arc<[Parameter]>> {
        let mut by_kernel = HashMap::new();
        // Kernels that share a function share its parameters, which may be many.
        let mut by_function = HashMap::new();
        for &(kernel, function) in &self.entry_points {
            let Some(Some(parameters)) = self.functions.get(&function) else {
                continue;
            };
            let parameters = by_function
                .entry(function)
                .or_insert_with(|| self.parameters_of(kernel, parameters));
            by_kernel.entry(kernel.to_owned()).or_insert_with(|| Arc::clone(parameters));
        }
        by_kernel
    }

    fn parameters_of(&self, kernel: &str, parameters: &[(u32, u32)]) -> Arc<[Parameter]> {
        let declared = self.declared.get(kernel).copied().unwrap_or_default();
        let types = entries(declared.types, parameters.len());
        let qualifiers = entries(declared.qualifiers, parameters.len());
        parameters
            .iter()
            .enumerate()
            .map(|(position, &(ty, id))| {
                let qualifiers = qualifiers.get(position).copied().unwrap_or_default();
                let declared = types.get(position).copied().filter(|name| !name.is_empty());
                self.parameter(ty, id, declared, qualifiers)
            })
            .collect()
    }

    /// Returns the description of a parameter. `declared` is its type in the source, if known.
    fn parameter(&self, ty: u32, id: u32, declared: Option<&str>, qualifiers: &str) -> Parameter {
        let decorations = self.decorations.get(&id).copied().unwrap_or_default();
        let read_only =
            decorations.not_written || qualifiers.split(' ').any(|word| word == "const");
        // The type name from the module is used only if that from the source is unknown.
        let (address_space, access, type_name) = match self.ty(ty) {
            // The argument is the struct itself, although the parameter's type is a pointer.
            Some(Type::Pointer { class: StorageClass::Function, pointee })
                if decorations.by_value =>
            {
                (Some(AddressSpace::Private), None, self.struct_name(pointee))
            }
            Some(Type::Pointer { class, .. } | Type::UntypedPointer { class }) => {
                let address_space = address_space(class);
                let access = match address_space {
                    Some(AddressSpace::Constant) => Some(Access::Read),
                    Some(AddressSpace::Global) => Some(read_if(read_only)),
                    _ => None,
                };
                (address_space, access, None)
            }
            Some(Type::Image(image)) => {
                let access = read_if(image.read_only);
                (Some(AddressSpace::Global), Some(access), self.value_name(ty))
            }
            Some(Type::Pipe) => (Some(AddressSpace::Global), Some(Access::ReadWrite), None),
            Some(_) => (Some(AddressSpace::Private), None, self.value_name(ty)),
            None => (None, None, None),
        };
        // The type that the source declares for a pipe is that of its packets.
        let declared = declared.filter(|_| self.ty(ty) != Some(Type::Pipe));
        Parameter {
            name: self.names.get(&id).map(|&name| name.to_owned()),
            type_name: declared.map(str::to_owned).or(type_name),
            address_space,
            access,
            size: self.value_size(ty),
        }
    }
}

impl Declarations for Index<'_> {
    fn declaration(&self, id: u32) -> Option<Instruction<'_>> {
        self.declarations.get(&id).copied()
    }

    fn name(&self, id: u32) -> Option<&str> {
        self.names.get(&id).copied()
    }
}

impl<'m> Decorations<'m> {
    fn add(&mut self, decorate: &Instruction<'m>) -> Option<()> {
        match Decoration::from_u32(decorate.word(1)?)? {
            Decoration::SpecId => self.spec_id = Some(decorate.word(2)?),
            Decoration::BuiltIn => self.built_in = true,
            Decoration::LinkageAttributes => {
                let linkage = Linkage::of(decorate)?;
                self.linkage = Some((linkage.name, linkage.kind));
            }
            Decoration::NonWritable => self.not_written = true,
            Decoration::FuncParamAttr => {
                match FunctionParameterAttribute::from_u32(decorate.word(2)?)? {
                    FunctionParameterAttribute::ByVal => self.by_value = true,
                    FunctionParameterAttribute::NoWrite
                    | FunctionParameterAttribute::NoReadWrite => self.not_written = true,
                    _ => {}
                }
            }
            _ => {}
        }
        Some(())
    }

    fn merge(&mut self, group: Self) {
        self.by_value |= group.by_value;
        self.not_written |= group.not_written;
        self.built_in |= group.built_in;
        self.spec_id = self.spec_id.or(group.spec_id);
        self.linkage = self.linkage.or(group.linkage);
    }
}

/// Returns whether a name is within the limit, and not empty.
fn is_short(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_BYTES
}

/// Returns the entries of a list, each followed by a comma, or none if their number is not `expected`.
fn entries(list: Option<&str>, expected: usize) -> Vec<&str> {
    let entries: Vec<_> = list.unwrap_or_default().split_terminator(',').collect();
    if entries.len() == expected { entries } else { Vec::new() }
}

fn address_space(class: StorageClass) -> Option<AddressSpace> {
    match class {
        StorageClass::CrossWorkgroup => Some(AddressSpace::Global),
        StorageClass::UniformConstant => Some(AddressSpace::Constant),
        StorageClass::Workgroup => Some(AddressSpace::Local),
        _ => None,
    }
}

/// Returns the access of a parameter. It is never [`Access::Write`], because no signature states that all of
/// a buffer is written.
fn read_if(read_only: bool) -> Access {
    if read_only { Access::Read } else { Access::ReadWrite }
}
