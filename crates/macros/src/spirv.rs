//! Reads the signatures of kernels from SPIR-V.

use std::collections::HashMap;
use std::rc::Rc;

use crate::parse::kernels::{element, image, sampler, scalar_shape, unsupported};
use crate::parse::type_named;
use crate::parse::types::{ImageAccess, Layout, Scalar, Type, lanes_in_memory, structure_layout};
use crate::signature::{Element, Kernel, Parameter, Passing, Shape};

const MAGIC: u32 = 0x0723_0203;
const HEADER_WORDS: usize = 5;

/// Maximum depth of types inside types.
const MAX_DEPTH: usize = 16;

/// Way to keep the types of the source in a module.
const KEEP_TYPES: &str = "keep the source's types in the module, with the option \
                          `--preserve-ocl-kernel-arg-type-metadata-through-string` of llvm-spirv";

mod op {
    pub(super) const NAME: u32 = 5;
    pub(super) const STRING: u32 = 7;
    pub(super) const ENTRY_POINT: u32 = 15;
    pub(super) const TYPE_INT: u32 = 21;
    pub(super) const TYPE_FLOAT: u32 = 22;
    pub(super) const TYPE_VECTOR: u32 = 23;
    pub(super) const TYPE_IMAGE: u32 = 25;
    pub(super) const TYPE_SAMPLER: u32 = 26;
    pub(super) const TYPE_ARRAY: u32 = 28;
    pub(super) const TYPE_STRUCT: u32 = 30;
    pub(super) const TYPE_POINTER: u32 = 32;
    pub(super) const TYPE_EVENT: u32 = 34;
    pub(super) const TYPE_DEVICE_EVENT: u32 = 35;
    pub(super) const TYPE_RESERVE_ID: u32 = 36;
    pub(super) const TYPE_QUEUE: u32 = 37;
    pub(super) const TYPE_PIPE: u32 = 38;
    pub(super) const TYPE_UNTYPED_POINTER: u32 = 4417;
    pub(super) const CONSTANT: u32 = 43;
    pub(super) const FUNCTION: u32 = 54;
    pub(super) const FUNCTION_PARAMETER: u32 = 55;
    pub(super) const FUNCTION_END: u32 = 56;
    pub(super) const DECORATE: u32 = 71;
    pub(super) const GROUP_DECORATE: u32 = 74;
}

/// Values of operands.
mod operand {
    pub(super) const KERNEL: u32 = 6;
    pub(super) const C_PACKED: u32 = 10;
    pub(super) const NON_WRITABLE: u32 = 24;
    pub(super) const PARAMETER_ATTRIBUTE: u32 = 38;
    pub(super) const BY_VALUE: u32 = 2;
    pub(super) const NO_WRITE: u32 = 6;
    pub(super) const NO_READ_WRITE: u32 = 7;
    pub(super) const UNIFORM_CONSTANT: u32 = 0;
    pub(super) const WORKGROUP: u32 = 4;
    pub(super) const CROSS_WORKGROUP: u32 = 5;
    pub(super) const FUNCTION: u32 = 7;
    pub(super) const READ_ONLY: u32 = 0;
    pub(super) const DIM_1D: u32 = 0;
    pub(super) const DIM_2D: u32 = 1;
    pub(super) const DIM_3D: u32 = 2;
    pub(super) const DIM_BUFFER: u32 = 5;
}

/// Whether bytes begin like SPIR-V.
pub(crate) fn is_spirv(bytes: &[u8]) -> bool {
    let first = bytes.first_chunk().map(|word| u32::from_le_bytes(*word));
    first.is_some_and(|word| word == MAGIC || word == MAGIC.swap_bytes())
}

/// Returns the kernels of a module.
///
/// # Errors
///
/// With the reason, if the bytes are not SPIR-V, or if an instruction has no valid length.
pub(crate) fn kernels(bytes: &[u8]) -> Result<Vec<Kernel>, String> {
    let words = words(bytes)?;
    let mut module = Module::default();
    let mut rest = words.get(HEADER_WORDS..).unwrap_or_default();
    while let Some(&first) = rest.first() {
        let length = (first >> 16) as usize;
        let Some(instruction) = rest.get(1..length) else {
            let at = words.len() - rest.len();
            return Err(format!("damaged: the instruction at word {at} has no valid length"));
        };
        // An instruction without all of its operands states nothing.
        let _ = module.add(first & 0xffff, instruction);
        rest = &rest[length..];
    }
    Ok(module.kernels())
}

/// Returns the words of a module in the byte order of this machine.
fn words(bytes: &[u8]) -> Result<Vec<u32>, String> {
    let (words, rest) = bytes.as_chunks();
    if !is_spirv(bytes) {
        return Err("not SPIR-V, which begins with 0x07230203".to_owned());
    }
    if !rest.is_empty() || words.len() < HEADER_WORDS {
        return Err(
            "not whole words of SPIR-V behind a header: it was truncated or changed".to_owned()
        );
    }
    let is_little = words.first().is_some_and(|word| u32::from_le_bytes(*word) == MAGIC);
    let word = if is_little { u32::from_le_bytes } else { u32::from_be_bytes };
    Ok(words.iter().map(|bytes| word(*bytes)).collect())
}

#[derive(Clone, Copy, Default)]
struct Decorations {
    by_value: bool,
    not_written: bool,
    packed: bool,
}

#[derive(Default)]
struct Module {
    /// Name and function of each kernel.
    entry_points: Vec<(String, u32)>,
    names: HashMap<u32, String>,
    /// Types and qualifiers of parameters in the source, by kernel.
    types: HashMap<String, String>,
    qualifiers: HashMap<String, String>,
    decorations: HashMap<u32, Decorations>,
    /// Opcode and operands, behind the id, of each type.
    declarations: HashMap<u32, (u32, Vec<u32>)>,
    layouts: HashMap<u32, Layout>,
    constants: HashMap<u32, u32>,
    /// Type and id of the parameters of each function.
    functions: HashMap<u32, Vec<(u32, u32)>>,
    function: Option<u32>,
}

impl Module {
    fn add(&mut self, opcode: u32, operands: &[u32]) -> Option<()> {
        let word = |at: usize| operands.get(at).copied();
        match opcode {
            op::ENTRY_POINT if word(0)? == operand::KERNEL => {
                self.entry_points.push((string(operands.get(2..)?)?, word(1)?));
            }
            op::NAME => {
                self.names.insert(word(0)?, string(&operands[1..])?);
            }
            op::STRING => self.add_string(&string(operands.get(1..)?)?)?,
            op::DECORATE => {
                let decorations = self.decorations.entry(word(0)?).or_default();
                decorations.add(word(1)?, word(2));
            }
            op::GROUP_DECORATE => {
                let group = *self.decorations.get(&word(0)?)?;
                for target in &operands[1..] {
                    self.decorations.entry(*target).or_default().merge(group);
                }
            }
            op::CONSTANT => {
                self.constants.insert(word(1)?, word(2)?);
            }
            op::FUNCTION => {
                self.function = word(1);
                self.functions.insert(word(1)?, Vec::new());
            }
            op::FUNCTION_PARAMETER => {
                let parameters = self.functions.get_mut(&self.function?)?;
                parameters.push((word(0)?, word(1)?));
            }
            op::FUNCTION_END => self.function = None,
            20..=38 | op::TYPE_UNTYPED_POINTER => {
                let id = word(0)?;
                self.declarations.insert(id, (opcode, operands[1..].to_vec()));
                // Types and constants come before the types that use them.
                let layout = self.layout(id)?;
                self.layouts.insert(id, layout);
            }
            _ => {}
        }
        Some(())
    }

    /// Records metadata about the source, such as `kernel_arg_type.saxpy.float,float*,float*,`.
    fn add_string(&mut self, text: &str) -> Option<()> {
        let (what, rest) = text.split_once('.')?;
        let (kernel, list) = rest.rsplit_once('.')?;
        let lists = match what {
            "kernel_arg_type" => &mut self.types,
            "kernel_arg_type_qual" => &mut self.qualifiers,
            _ => return None,
        };
        lists.insert(kernel.to_owned(), list.to_owned());
        Some(())
    }

    fn kernels(&self) -> Vec<Kernel> {
        let mut kernels: Vec<Kernel> = Vec::new();
        for (name, function) in &self.entry_points {
            if kernels.iter().all(|kernel| *kernel.name != **name) {
                kernels.push(self.kernel(name, *function));
            }
        }
        kernels
    }

    fn kernel(&self, name: &str, function: u32) -> Kernel {
        let parameters = self.functions.get(&function).map(Vec::as_slice).unwrap_or_default();
        let types = entries(self.types.get(name), parameters.len());
        let qualifiers = entries(self.qualifiers.get(name), parameters.len());
        let parameter = |(at, &(ty, id)): (usize, &(u32, u32))| {
            let declared = types.get(at).copied().filter(|name| !name.is_empty());
            let is_const =
                qualifiers.get(at).is_some_and(|it| it.split(' ').any(|it| it == "const"));
            self.parameter(ty, id, declared, is_const).map_err(|why| match self.names.get(&id) {
                Some(name) => format!("parameter `{name}`: {why}"),
                None => format!("parameter {at}: {why}"),
            })
        };
        let parameters = parameters.iter().enumerate().map(parameter).collect();
        Kernel {
            name: name.into(),
            place: None,
            comment: Vec::new(),
            declaration: String::new(),
            parameters,
        }
    }

    fn parameter(
        &self,
        ty: u32,
        id: u32,
        declared: Option<&str>,
        is_const: bool,
    ) -> Result<Parameter, String> {
        let decorations = self.decorations.get(&id).copied().unwrap_or_default();
        let (opcode, operands) = self.declaration(ty).unwrap_or_default();
        let class = operands.first().copied();
        let (passing, element) = match opcode {
            op::TYPE_POINTER if decorations.by_value && class == Some(operand::FUNCTION) => {
                (Passing::Value, self.element(operands.get(1).copied(), declared)?)
            }
            op::TYPE_POINTER | op::TYPE_UNTYPED_POINTER => {
                let passing = passing(class, is_const || decorations.not_written)?;
                let pointee = operands.get(1).copied();
                (passing, self.element(pointee, declared.and_then(|name| name.strip_suffix('*')))?)
            }
            op::TYPE_IMAGE => {
                let is_written = operands.get(7).is_some_and(|it| *it != operand::READ_ONLY);
                let access = if is_written { ImageAccess::Writable } else { ImageAccess::ReadOnly };
                image(image_kind(operands)?, Some(access))
            }
            op::TYPE_SAMPLER => (Passing::Value, sampler()),
            _ => (Passing::Value, self.element(Some(ty), declared)?),
        };
        let name =
            self.names.get(&id).filter(|name| !name.is_empty()).map(|name| Rc::from(&**name));
        let declaration = declared.unwrap_or_default().to_owned();
        Ok(Parameter { name, declaration, passing, element })
    }

    fn declaration(&self, ty: u32) -> Option<(u32, &[u32])> {
        self.declarations.get(&ty).map(|(opcode, operands)| (*opcode, &**operands))
    }

    /// Returns the element that a type is in memory. `declared` is its name in the source.
    fn element(&self, ty: Option<u32>, declared: Option<&str>) -> Result<Element, String> {
        let layout = ty.and_then(|ty| self.layouts.get(&ty).copied());
        if let Some(declared) = declared.map(str::trim) {
            if declared.ends_with('*') {
                return Err("a pointer to pointers is not a valid argument".to_owned());
            }
            match type_named(declared) {
                Some(Type::Unknown(_) | Type::Structure(_) | Type::Enumeration(_)) => {
                    return Ok(stated(without_keyword(declared), layout));
                }
                Some(Type::Void) => return Ok(Element::new("void", Shape::Rust("u8"), None)),
                Some(ty) => return element(&ty),
                None => {}
            }
        }
        let ty = ty.ok_or_else(|| {
            format!("the module does not state what the pointer points to; {KEEP_TYPES}")
        })?;
        self.element_of(ty, layout, 0)
    }

    fn element_of(&self, ty: u32, layout: Option<Layout>, depth: usize) -> Result<Element, String> {
        let unknown = || format!("its type is not one of OpenCL C; {KEEP_TYPES}");
        let (opcode, operands) = self.declaration(ty).ok_or_else(unknown)?;
        let word = |at: usize| operands.get(at).copied();
        if depth > MAX_DEPTH {
            return Err("its type is nested too deeply".to_owned());
        }
        match opcode {
            op::TYPE_INT | op::TYPE_FLOAT => {
                let scalar = self.scalar(ty).ok_or_else(unknown)?;
                Ok(Element::new(scalar.name(), scalar_shape(scalar), layout))
            }
            op::TYPE_VECTOR => {
                let scalar = word(0).and_then(|it| self.scalar(it)).ok_or_else(unknown)?;
                let name = format!("{}{}", scalar.name(), word(1).unwrap_or_default());
                type_named(&name)
                    .filter(|ty| matches!(ty, Type::Vector(..)))
                    .map(|ty| element(&ty))
                    .ok_or_else(unknown)?
            }
            op::TYPE_ARRAY => {
                let length =
                    word(1).and_then(|length| self.constants.get(&length)).ok_or_else(unknown)?;
                let inner = word(0).ok_or_else(unknown)?;
                let element =
                    self.element_of(inner, self.layouts.get(&inner).copied(), depth + 1)?;
                let shape = Shape::Array(Box::new(element), u64::from(*length));
                Ok(Element { names: Vec::new(), ..Element::new("", shape, layout) })
            }
            op::TYPE_STRUCT => match self.names.get(&ty).map(|name| source_name(name)) {
                Some(name) if !name.is_empty() => Ok(stated(name, layout)),
                _ => Err(format!("the module does not name the structure; {KEEP_TYPES}")),
            },
            op::TYPE_POINTER | op::TYPE_UNTYPED_POINTER => {
                Err("a pointer to pointers is not a valid argument".to_owned())
            }
            op::TYPE_EVENT => Err(unsupported("event_t")),
            op::TYPE_DEVICE_EVENT => Err(unsupported("clk_event_t")),
            op::TYPE_RESERVE_ID => Err(unsupported("reserve_id_t")),
            op::TYPE_QUEUE => Err(unsupported("queue_t")),
            op::TYPE_PIPE => Err(unsupported("pipe")),
            _ => Err(unknown()),
        }
    }

    /// Returns the scalar of a type. SPIR-V for OpenCL does not keep whether an integer is signed.
    fn scalar(&self, ty: u32) -> Option<Scalar> {
        let (opcode, operands) = self.declaration(ty)?;
        let is_signed = operands.get(1) == Some(&1);
        Some(match (opcode, operands.first()?, is_signed) {
            (op::TYPE_INT, 8, false) => Scalar::UChar,
            (op::TYPE_INT, 8, true) => Scalar::Char,
            (op::TYPE_INT, 16, false) => Scalar::UShort,
            (op::TYPE_INT, 16, true) => Scalar::Short,
            (op::TYPE_INT, 32, false) => Scalar::UInt,
            (op::TYPE_INT, 32, true) => Scalar::Int,
            (op::TYPE_INT, 64, false) => Scalar::ULong,
            (op::TYPE_INT, 64, true) => Scalar::Long,
            (op::TYPE_FLOAT, 16, _) => Scalar::Half,
            (op::TYPE_FLOAT, 32, _) => Scalar::Float,
            (op::TYPE_FLOAT, 64, _) => Scalar::Double,
            _ => return None,
        })
    }

    /// Computes the layout of a type from those of its parts.
    fn layout(&self, ty: u32) -> Option<Layout> {
        let (opcode, operands) = self.declaration(ty)?;
        match opcode {
            op::TYPE_INT | op::TYPE_FLOAT => {
                let size = self.scalar(ty)?.size();
                Some(Layout { size, align: size })
            }
            op::TYPE_VECTOR => {
                let lanes = u8::try_from(*operands.get(1)?).ok().filter(|lanes| *lanes <= 16)?;
                let size = self.scalar(*operands.first()?)?.size() * lanes_in_memory(lanes);
                Some(Layout { size, align: size })
            }
            op::TYPE_ARRAY => {
                let Layout { size, align } = *self.layouts.get(operands.first()?)?;
                let length = *self.constants.get(operands.get(1)?)?;
                Some(Layout { size: size.checked_mul(u64::from(length))?, align })
            }
            op::TYPE_STRUCT => {
                let packed = self.decorations.get(&ty).is_some_and(|it| it.packed);
                let members = operands.iter().map(|member| self.layouts.get(member).copied());
                structure_layout(false, members, packed, None)
            }
            _ => None,
        }
    }
}

impl Decorations {
    fn add(&mut self, decoration: u32, value: Option<u32>) {
        match (decoration, value) {
            (operand::C_PACKED, _) => self.packed = true,
            (operand::NON_WRITABLE, _) => self.not_written = true,
            (operand::PARAMETER_ATTRIBUTE, Some(operand::BY_VALUE)) => self.by_value = true,
            (operand::PARAMETER_ATTRIBUTE, Some(operand::NO_WRITE | operand::NO_READ_WRITE)) => {
                self.not_written = true;
            }
            _ => {}
        }
    }

    fn merge(&mut self, group: Self) {
        self.by_value |= group.by_value;
        self.not_written |= group.not_written;
        self.packed |= group.packed;
    }
}

/// Returns how a pointer to a storage class is passed.
fn passing(class: Option<u32>, is_read_only: bool) -> Result<Passing, String> {
    match class {
        Some(operand::UNIFORM_CONSTANT) => Ok(Passing::ReadBuffer),
        Some(operand::CROSS_WORKGROUP) if is_read_only => Ok(Passing::ReadBuffer),
        Some(operand::CROSS_WORKGROUP) => Ok(Passing::Buffer),
        Some(operand::WORKGROUP) => Ok(Passing::Local),
        _ => Err("the pointer is in none of the storage classes that a kernel can take".to_owned()),
    }
}

/// Returns the name of an image's type in OpenCL C, from the operands of its declaration.
fn image_kind(operands: &[u32]) -> Result<&'static str, String> {
    let [_, dimensions, is_depth, is_array, is_multisampled, ..] = *operands else {
        return Err("the module does not state the kind of the image: it is damaged".to_owned());
    };
    match (dimensions, is_array, is_depth, is_multisampled) {
        (operand::DIM_1D, 0, 0, 0) => Ok("image1d_t"),
        (operand::DIM_1D, 1, 0, 0) => Ok("image1d_array_t"),
        (operand::DIM_2D, 0, 0, 0) => Ok("image2d_t"),
        (operand::DIM_2D, 1, 0, 0) => Ok("image2d_array_t"),
        (operand::DIM_3D, 0, 0, 0) => Ok("image3d_t"),
        (operand::DIM_BUFFER, 0, 0, 0) => Ok("image1d_buffer_t"),
        (_, _, 1, _) => Err(unsupported("image2d_depth_t")),
        (_, _, _, 1) => Err(unsupported("image2d_msaa_t")),
        _ => Err("the image is of a kind that OpenCL C does not have".to_owned()),
    }
}

/// Returns the element for a type that the application states.
fn stated(name: &str, layout: Option<Layout>) -> Element {
    let why = format!("`{name}` needs a type of Rust with the same layout");
    Element::new(name, Shape::Stated(why), layout)
}

fn without_keyword(name: &str) -> &str {
    let name = name.trim();
    let keywords = ["struct ", "union ", "enum "];
    keywords.iter().find_map(|keyword| name.strip_prefix(keyword)).unwrap_or(name).trim()
}

/// Returns the source's name of a structure, from its name in the module, such as `struct.Particle` or
/// `struct.Particle.1`.
fn source_name(name: &str) -> &str {
    let name = name.split_once('.').map_or(name, |(_, rest)| rest);
    name.split('.').next().unwrap_or(name)
}

/// Returns the entries of a list, each followed by a comma, or none if their number is not `expected`.
fn entries(list: Option<&String>, expected: usize) -> Vec<&str> {
    let entries: Vec<_> = list.map_or("", String::as_str).split_terminator(',').collect();
    if entries.len() == expected { entries } else { Vec::new() }
}

/// Returns the string that words begin with; `None` if it is not UTF-8.
fn string(words: &[u32]) -> Option<String> {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    String::from_utf8(bytes.take_while(|byte| *byte != 0).collect()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_the_kinds_of_opencl_c() {
        for (operands, expected) in [
            ([0, 0, 0, 0, 0], "image1d_t"),
            ([0, 0, 0, 1, 0], "image1d_array_t"),
            ([0, 5, 0, 0, 0], "image1d_buffer_t"),
            ([0, 1, 0, 0, 0], "image2d_t"),
            ([0, 1, 0, 1, 0], "image2d_array_t"),
            ([0, 2, 0, 0, 0], "image3d_t"),
        ] {
            assert_eq!(image_kind(&operands).as_deref(), Ok(expected), "{operands:?}");
        }
        for (operands, expected) in [
            (&[0, 1, 1, 0, 0][..], "`image2d_depth_t` is not a valid argument"),
            (&[0, 1, 0, 1, 1], "`image2d_msaa_t` is not a valid argument"),
            (&[0, 3, 0, 0, 0], "a kind that OpenCL C does not have"),
            (&[0, 1], "damaged"),
        ] {
            let why = image_kind(operands).expect_err("Kiln has no such images");
            assert!(why.contains(expected), "{operands:?}: {why}");
        }
    }
}
