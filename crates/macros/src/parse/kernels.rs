//! From declarations of kernels to what launches take.

use std::rc::Rc;

use super::parser::{KernelDefinition, ParameterDeclaration};
use super::types::{
    ImageAccess, Qualified, SAMPLER, Scalar, Space, Type, is_image, lanes_in_memory, size_type,
};
use crate::signature::{Element, Kernel, Parameter, Passing, Shape};

/// Returns the signature of a kernel.
pub(crate) fn kernel(definition: KernelDefinition) -> Kernel {
    let KernelDefinition { name, place, comment, declaration, parameters } = definition;
    let parameters = parameters.iter().map(|declared| {
        parameter(declared).map_err(|why| {
            format!("{}: parameter `{}`: {why}", declared.place, declared.declaration)
        })
    });
    Kernel { name, place: Some(place), comment, declaration, parameters: parameters.collect() }
}

fn parameter(declared: &ParameterDeclaration) -> Result<Parameter, String> {
    let resolved = declared.ty.ty.resolved();
    let (passing, element) = match &resolved.ty {
        Type::Pointer(pointee) => pointer(pointee)?,
        // A parameter of an array is a pointer; qualifiers in front of a name of the array are those of its
        // elements.
        Type::Array(element, _) => pointer(&Qualified {
            ty: element.ty.clone(),
            is_const: element.is_const || declared.ty.is_const || resolved.is_const,
            space: element.space.or(declared.ty.space).or(resolved.space),
            access: None,
        })?,
        Type::Image(kind) => image(kind, declared.ty.access.or(resolved.access)),
        Type::Sampler => (Passing::Value, sampler()),
        Type::Structure(structure) if structure.has_pointers => {
            return Err("a structure that contains pointers is not a valid argument; pass the \
                        buffers as parameters of their own"
                .to_owned());
        }
        _ => (Passing::Value, element(&declared.ty.ty)?),
    };
    let (name, declaration) = (declared.name.clone(), declared.declaration.clone());
    Ok(Parameter { name, declaration, passing, element })
}

/// Returns how an image is passed. Without a stated access, kernels only read.
pub(crate) fn image(kind: &str, access: Option<ImageAccess>) -> (Passing, Element) {
    let passing = match access {
        Some(ImageAccess::ReadOnly) | None => Passing::ReadImage,
        Some(ImageAccess::Writable) => Passing::Image,
    };
    (passing, Element::new(kind, Shape::Image, None))
}

pub(crate) fn sampler() -> Element {
    Element::new(SAMPLER, Shape::Sampler, None)
}

/// Returns how a pointer to elements is passed.
fn pointer(pointee: &Qualified) -> Result<(Passing, Element), String> {
    let resolved = pointee.ty.resolved();
    let element = element_behind_pointer(pointee, &resolved)?;
    let passing = match pointee.space.or(resolved.space) {
        Some(Space::Local) => Passing::Local,
        Some(Space::Constant) => Passing::ReadBuffer,
        Some(Space::Global) if pointee.is_const || is_const(&resolved) => Passing::ReadBuffer,
        Some(Space::Global) => Passing::Buffer,
        Some(Space::Private | Space::Generic) | None => {
            return Err("the pointer names none of the address spaces that a kernel can take: \
                        declare it as `global`, `constant` or `local`"
                .to_owned());
        }
    };
    Ok((passing, element))
}

fn element_behind_pointer(pointee: &Qualified, resolved: &Qualified) -> Result<Element, String> {
    match &resolved.ty {
        Type::Pointer(_) => Err(
            "a pointer to pointers is not a valid argument; pass one buffer, and offsets into it"
                .to_owned(),
        ),
        Type::Function => Err("a pointer to a function is not a valid argument".to_owned()),
        Type::Void => Ok(Element::new("void", Shape::Rust("u8"), None)),
        _ => element(&pointee.ty),
    }
}

/// Whether a type is `const`, or an array of `const` elements.
fn is_const(ty: &Qualified) -> bool {
    let mut ty = ty.clone();
    loop {
        let resolved = ty.ty.resolved();
        if ty.is_const || resolved.is_const {
            return true;
        }
        match resolved.ty {
            Type::Array(element, _) => ty = Qualified::clone(&element),
            _ => return false,
        }
    }
}

/// Returns the element that a type of OpenCL C is in memory.
pub(crate) fn element(ty: &Type) -> Result<Element, String> {
    let resolved = ty.resolved().ty;
    let names = ty.names();
    let name = names.first().cloned().unwrap_or_else(|| Rc::from("type"));
    let shape = match &resolved {
        Type::Scalar(Scalar::Bool) => {
            return Err(
                "`bool` is not a valid argument of kernels; declare `uchar` or `int`".to_owned()
            );
        }
        Type::Scalar(scalar) => scalar_shape(*scalar),
        Type::Vector(scalar, lanes) => {
            let component = element(&Type::Scalar(*scalar))?;
            Shape::Array(Box::new(component), lanes_in_memory(*lanes))
        }
        Type::Array(inner, Some(length)) => Shape::Array(Box::new(element(&inner.ty)?), *length),
        // clang knows the length.
        Type::Array(inner, None) if ty.spelling().is_some() => {
            Shape::Array(Box::new(element(&inner.ty)?), 0)
        }
        Type::Array(_, None) => return Err("the length of the array is not known".to_owned()),
        Type::Structure(structure) => {
            let keyword = structure.keyword;
            if names.is_empty() {
                return Err(format!("a {keyword} without a name is not a valid argument; name it"));
            }
            Shape::Stated(format!("`{keyword} {name}` needs a type of Rust with the same layout"))
        }
        Type::Enumeration(_) => {
            Shape::Stated(format!("`enum {name}` needs a type of Rust, such as `u32`"))
        }
        Type::Unknown(_) => Shape::Stated(format!(
            "`{name}` is not declared: include its declaration, or state its type"
        )),
        Type::Image(_) | Type::Sampler => {
            return Err(format!(
                "`{name}` is not a valid element of a buffer; declare each one as a parameter of its own"
            ));
        }
        Type::Unsupported(name) => return Err(unsupported(name)),
        Type::Void => return Err("`void` is not a value".to_owned()),
        Type::Alias(_) | Type::Pointer(_) | Type::Function => {
            return Err("this is not a valid argument of a kernel".to_owned());
        }
    };
    Ok(Element {
        names,
        shape,
        layout: ty.layout(),
        spelling: ty.spelling(),
        needs_clang: ty.has_unknown_layout(),
    })
}

/// Returns how Rust represents a scalar of OpenCL C.
pub(crate) fn scalar_shape(scalar: Scalar) -> Shape {
    match scalar.in_rust() {
        Some(name) => Shape::Rust(name),
        None => Shape::Stated(format!(
            "`{}` has no counterpart in Rust's standard library: state a type with its bits, such as \
             `u16`",
            scalar.name()
        )),
    }
}

/// Explains why a type is not a valid argument.
pub(crate) fn unsupported(name: &str) -> String {
    if is_image(name) {
        return format!(
            "`{name}` is not a valid argument, because Kiln has no such images; declare another kind, such \
             as `image2d_t`"
        );
    }
    match size_type(name) {
        Some(instead) => format!(
            "`{name}` is not a valid argument of kernels, because its size depends on the device; \
             declare `{instead}`"
        ),
        None => format!("`{name}` is not a valid argument of a launch"),
    }
}
