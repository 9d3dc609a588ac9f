//! Descriptions of types in the syntax of OpenCL C, for error messages.

use std::fmt::Write;

use rspirv::spirv::{Op, StorageClass};

use super::types::{Declarations, Type, constant_scalar, source_struct};

/// Length, in bytes, from which on a description is cut off. Types can share parts, so that a full
/// description could be longer than the module.
const MAX_BYTES: usize = 200;
const MAX_DEPTH: usize = 8;

/// Returns a description of a type, such as `float(global float*, uint)`. Integers are named as unsigned if
/// their sign is not kept.
pub(super) fn describe(ty: u32, declarations: &impl Declarations) -> String {
    let mut text = String::new();
    add(&mut text, ty, declarations, 0);
    text
}

fn add(text: &mut String, id: u32, declarations: &impl Declarations, depth: usize) {
    if text.len() > MAX_BYTES || depth > MAX_DEPTH {
        if !text.ends_with("..") {
            text.push_str("..");
        }
        return;
    }
    let Some(ty) = declarations.declaration(id) else {
        text.push('?');
        return;
    };
    let part = |text: &mut String, index| match ty.word(index) {
        Some(id) => add(text, id, declarations, depth + 1),
        None => text.push('?'),
    };
    match ty.op() {
        Some(Op::TypeVoid) => text.push_str("void"),
        Some(Op::TypeVector) => {
            part(text, 1);
            let _ = write!(text, "{}", ty.word(2).unwrap_or_default());
        }
        Some(Op::TypeArray) => {
            part(text, 1);
            let length = ty.word(2).and_then(|length| declarations.declaration(length));
            match length.filter(|length| length.op() == Some(Op::Constant)).and_then(|l| l.word(2))
            {
                Some(length) => _ = write!(text, "[{length}]"),
                None => text.push_str("[]"),
            }
        }
        Some(Op::TypeStruct) => match declarations.name(id).filter(|name| name.len() < MAX_BYTES) {
            Some(name) => text.push_str(&source_struct(name).unwrap_or_else(|| name.to_owned())),
            None => text.push_str("struct"),
        },
        Some(Op::TypePointer) => {
            text.push_str(space(ty.word(1)));
            part(text, 2);
            text.push('*');
        }
        Some(Op::TypeUntypedPointerKHR) => {
            text.push_str(space(ty.word(1)));
            text.push_str("void*");
        }
        Some(Op::TypeFunction) => {
            part(text, 1);
            text.push('(');
            for (position, parameter) in ty.words_from(2).enumerate() {
                if text.len() > MAX_BYTES {
                    text.push_str("..");
                    break;
                }
                text.push_str(if position > 0 { ", " } else { "" });
                add(text, parameter, declarations, depth + 1);
            }
            text.push(')');
        }
        _ => match Type::declared(&ty) {
            Some(Type::Image(image)) => text.push_str(image.name.unwrap_or("image")),
            Some(Type::Handle(name)) => text.push_str(name),
            Some(ty) if constant_scalar(ty).is_some() => {
                text.push_str(constant_scalar(ty).map_or("?", |(name, _)| name));
            }
            _ => text.push_str(&ty.name()),
        },
    }
}

fn space(class: Option<u32>) -> &'static str {
    match class.and_then(StorageClass::from_u32) {
        Some(StorageClass::CrossWorkgroup) => "global ",
        Some(StorageClass::UniformConstant) => "constant ",
        Some(StorageClass::Workgroup) => "local ",
        Some(StorageClass::Generic) => "generic ",
        Some(StorageClass::Function) => "private ",
        Some(StorageClass::Input) => "input ",
        _ => "",
    }
}
