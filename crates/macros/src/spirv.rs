//! Reads the signatures of kernels from SPIR-V.

use std::collections::HashMap;
use std::rc::Rc;

use kiln_spirv::edit::{Instruction, View, Words};
use rspirv::spirv::{
    AccessQualifier, Decoration, Dim, ExecutionModel, FunctionParameterAttribute, Op, StorageClass,
};

use crate::parse::kernels::{element, image, sampler, scalar_shape, unsupported};
use crate::parse::type_named;
use crate::parse::types::{ImageAccess, Layout, Scalar, Type, lanes_in_memory, structure_layout};
use crate::signature::{Element, Kernel, Parameter, Passing, Shape};

/// Maximum depth of types inside types.
const MAX_DEPTH: usize = 16;

/// Way to keep the types of the source in a module.
const KEEP_TYPES: &str = "keep the source's types in the module, with the option \
                          `--preserve-ocl-kernel-arg-type-metadata-through-string` of llvm-spirv";

/// Returns the kernels of a module.
///
/// # Errors
///
/// With the reason, if the bytes are not a module.
pub(crate) fn kernels(bytes: &[u8]) -> Result<Vec<Kernel>, String> {
    let words = Words::new(bytes.to_vec()).map_err(|error| error.message().to_owned())?;
    let mut module = Module::default();
    for instruction in words.instructions() {
        // An instruction without all of its operands states nothing.
        let _ = module.add(&instruction);
    }
    Ok(module.kernels())
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
    declarations: HashMap<u32, (Op, Vec<u32>)>,
    layouts: HashMap<u32, Layout>,
    constants: HashMap<u32, u32>,
    /// Type and id of the parameters of each function.
    functions: HashMap<u32, Vec<(u32, u32)>>,
    function: Option<u32>,
}

impl Module {
    fn add(&mut self, i: &Instruction<'_>) -> Option<()> {
        match i.op()? {
            Op::EntryPoint => {
                let View::EntryPoint { model, function, name, .. } = i.view() else { return None };
                if model == ExecutionModel::Kernel as u32 {
                    self.entry_points.push((name.get()?.to_owned(), function));
                }
            }
            Op::Name => {
                let (id, name) = i.named()?;
                self.names.insert(id, name.to_owned());
            }
            Op::String => self.add_string(i.text()?)?,
            Op::Decorate => {
                let View::Decorate { target, decoration, parameters } = i.view() else {
                    return None;
                };
                let decorations = self.decorations.entry(target).or_default();
                decorations.add(Decoration::from_u32(decoration)?, parameters.get(0));
            }
            Op::GroupDecorate => {
                let View::GroupDecorate { group, targets } = i.view() else { return None };
                let group = *self.decorations.get(&group)?;
                for target in targets.iter() {
                    self.decorations.entry(target).or_default().merge(group);
                }
            }
            Op::Constant => _ = self.constants.insert(i.result()?, i.literal()?.get(0)?),
            Op::Function => {
                self.function = i.result();
                self.functions.insert(i.result()?, Vec::new());
            }
            Op::FunctionParameter => {
                let parameters = self.functions.get_mut(&self.function?)?;
                parameters.push((i.result_type()?, i.result()?));
            }
            Op::FunctionEnd => self.function = None,
            // Other instructions that have no type define a type, or nothing.
            op if i.result_type().is_none() => {
                let id = i.result()?;
                self.declarations.insert(id, (op, i.words_from(1).collect()));
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
        let (opcode, operands) = match self.declaration(ty) {
            Some((opcode, operands)) => (Some(opcode), operands),
            None => (None, &[][..]),
        };
        let class = operands.first().copied().and_then(StorageClass::from_u32);
        let is = |known| class == Some(known);
        let (passing, element) = match opcode {
            Some(Op::TypePointer) if decorations.by_value && is(StorageClass::Function) => {
                (Passing::Value, self.element(operands.get(1).copied(), declared)?)
            }
            Some(Op::TypePointer | Op::TypeUntypedPointerKHR) => {
                let passing = passing(class, is_const || decorations.not_written)?;
                let pointee = operands.get(1).copied();
                (passing, self.element(pointee, declared.and_then(|name| name.strip_suffix('*')))?)
            }
            Some(Op::TypeImage) => {
                let read_only = AccessQualifier::ReadOnly as u32;
                let is_written = operands.get(7).is_some_and(|it| *it != read_only);
                let access = if is_written { ImageAccess::Writable } else { ImageAccess::ReadOnly };
                image(image_kind(operands)?, Some(access))
            }
            Some(Op::TypeSampler) => (Passing::Value, sampler()),
            _ => (Passing::Value, self.element(Some(ty), declared)?),
        };
        let name =
            self.names.get(&id).filter(|name| !name.is_empty()).map(|name| Rc::from(&**name));
        let declaration = declared.unwrap_or_default().to_owned();
        Ok(Parameter { name, declaration, passing, element })
    }

    fn declaration(&self, ty: u32) -> Option<(Op, &[u32])> {
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
            Op::TypeInt | Op::TypeFloat => {
                let scalar = self.scalar(ty).ok_or_else(unknown)?;
                Ok(Element::new(scalar.name(), scalar_shape(scalar), layout))
            }
            Op::TypeVector => {
                let scalar = word(0).and_then(|it| self.scalar(it)).ok_or_else(unknown)?;
                let name = format!("{}{}", scalar.name(), word(1).unwrap_or_default());
                type_named(&name)
                    .filter(|ty| matches!(ty, Type::Vector(..)))
                    .map(|ty| element(&ty))
                    .ok_or_else(unknown)?
            }
            Op::TypeArray => {
                let length =
                    word(1).and_then(|length| self.constants.get(&length)).ok_or_else(unknown)?;
                let inner = word(0).ok_or_else(unknown)?;
                let element =
                    self.element_of(inner, self.layouts.get(&inner).copied(), depth + 1)?;
                let shape = Shape::Array(Box::new(element), u64::from(*length));
                Ok(Element { names: Vec::new(), ..Element::new("", shape, layout) })
            }
            Op::TypeStruct => match self.names.get(&ty).map(|name| source_name(name)) {
                Some(name) if !name.is_empty() => Ok(stated(name, layout)),
                _ => Err(format!("the module does not name the structure; {KEEP_TYPES}")),
            },
            Op::TypePointer | Op::TypeUntypedPointerKHR => {
                Err("a pointer to pointers is not a valid argument".to_owned())
            }
            Op::TypeEvent => Err(unsupported("event_t")),
            Op::TypeDeviceEvent => Err(unsupported("clk_event_t")),
            Op::TypeReserveId => Err(unsupported("reserve_id_t")),
            Op::TypeQueue => Err(unsupported("queue_t")),
            Op::TypePipe => Err(unsupported("pipe")),
            _ => Err(unknown()),
        }
    }

    /// Returns the scalar of a type. SPIR-V for OpenCL does not keep whether an integer is signed.
    fn scalar(&self, ty: u32) -> Option<Scalar> {
        let (opcode, operands) = self.declaration(ty)?;
        let is_signed = operands.get(1) == Some(&1);
        Some(match (opcode, operands.first()?, is_signed) {
            (Op::TypeInt, 8, false) => Scalar::UChar,
            (Op::TypeInt, 8, true) => Scalar::Char,
            (Op::TypeInt, 16, false) => Scalar::UShort,
            (Op::TypeInt, 16, true) => Scalar::Short,
            (Op::TypeInt, 32, false) => Scalar::UInt,
            (Op::TypeInt, 32, true) => Scalar::Int,
            (Op::TypeInt, 64, false) => Scalar::ULong,
            (Op::TypeInt, 64, true) => Scalar::Long,
            (Op::TypeFloat, 16, _) => Scalar::Half,
            (Op::TypeFloat, 32, _) => Scalar::Float,
            (Op::TypeFloat, 64, _) => Scalar::Double,
            _ => return None,
        })
    }

    /// Computes the layout of a type from those of its parts.
    fn layout(&self, ty: u32) -> Option<Layout> {
        let (opcode, operands) = self.declaration(ty)?;
        match opcode {
            Op::TypeInt | Op::TypeFloat => {
                let size = self.scalar(ty)?.size();
                Some(Layout { size, align: size })
            }
            Op::TypeVector => {
                let lanes = u8::try_from(*operands.get(1)?).ok().filter(|lanes| *lanes <= 16)?;
                let size = self.scalar(*operands.first()?)?.size() * lanes_in_memory(lanes);
                Some(Layout { size, align: size })
            }
            Op::TypeArray => {
                let Layout { size, align } = *self.layouts.get(operands.first()?)?;
                let length = *self.constants.get(operands.get(1)?)?;
                Some(Layout { size: size.checked_mul(u64::from(length))?, align })
            }
            Op::TypeStruct => {
                let packed = self.decorations.get(&ty).is_some_and(|it| it.packed);
                let members = operands.iter().map(|member| self.layouts.get(member).copied());
                structure_layout(false, members, packed, None)
            }
            _ => None,
        }
    }
}

impl Decorations {
    fn add(&mut self, decoration: Decoration, value: Option<u32>) {
        use FunctionParameterAttribute as Attribute;
        match decoration {
            Decoration::CPacked => self.packed = true,
            Decoration::NonWritable => self.not_written = true,
            Decoration::FuncParamAttr => match value.and_then(Attribute::from_u32) {
                Some(Attribute::ByVal) => self.by_value = true,
                Some(Attribute::NoWrite | Attribute::NoReadWrite) => self.not_written = true,
                _ => {}
            },
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
fn passing(class: Option<StorageClass>, is_read_only: bool) -> Result<Passing, String> {
    match class {
        Some(StorageClass::UniformConstant) => Ok(Passing::ReadBuffer),
        Some(StorageClass::CrossWorkgroup) if is_read_only => Ok(Passing::ReadBuffer),
        Some(StorageClass::CrossWorkgroup) => Ok(Passing::Buffer),
        Some(StorageClass::Workgroup) => Ok(Passing::Local),
        _ => Err("the pointer is in none of the storage classes that a kernel can take".to_owned()),
    }
}

/// Returns the name of an image's type in OpenCL C, from the operands of its declaration.
fn image_kind(operands: &[u32]) -> Result<&'static str, String> {
    let [_, dimensions, is_depth, is_array, is_multisampled, ..] = *operands else {
        return Err("the module does not state the kind of the image: it is damaged".to_owned());
    };
    match (Dim::from_u32(dimensions), is_array, is_depth, is_multisampled) {
        (Some(Dim::Dim1D), 0, 0, 0) => Ok("image1d_t"),
        (Some(Dim::Dim1D), 1, 0, 0) => Ok("image1d_array_t"),
        (Some(Dim::Dim2D), 0, 0, 0) => Ok("image2d_t"),
        (Some(Dim::Dim2D), 1, 0, 0) => Ok("image2d_array_t"),
        (Some(Dim::Dim3D), 0, 0, 0) => Ok("image3d_t"),
        (Some(Dim::DimBuffer), 0, 0, 0) => Ok("image1d_buffer_t"),
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
