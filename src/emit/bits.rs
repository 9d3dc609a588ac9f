//! Instructions of single bits that OpenCL C 1.2 has no function for, as functions of the text.
//!
//! Shifts stay below the width, for what lies beyond is taken modulo the width in OpenCL C.

use rspirv::spirv::Op;

use super::types::{Lanes, Scalar};
use super::{Emitter, malformed};
use crate::error::Result;

impl Emitter<'_> {
    /// The function that reverses the order of bits.
    pub(super) fn bit_reverse(&mut self, lanes: Lanes) -> Result<String> {
        let width = integer_width(lanes)?;
        let name = self.names.beside_kernels(format!("bit_reverse_{lanes}"));
        let text = format!(
            "\nstatic {lanes} {name}({lanes} from)\n{{\n    \
                 {lanes} to = ({lanes})(0);\n    \
                 for (int i = 0; i < {width}; ++i) {{\n        \
                     to = ({lanes})((to << ({lanes})(1)) | (from & ({lanes})(1)));\n        \
                     from = ({lanes})(from >> ({lanes})(1));\n    \
                 }}\n    \
                 return to;\n}}\n"
        );
        self.helpers.insert(name.clone(), text);
        Ok(name)
    }

    /// The function that puts some bits into others, or takes some out.
    pub(super) fn bit_field(&mut self, op: Op, lanes: Lanes) -> Result<String> {
        let width = integer_width(lanes)?;
        let (name, insert, result) = match op {
            Op::BitFieldInsert => (
                "insert",
                format!("{lanes} insert, "),
                "(base & ~(mask << at)) | ((insert & mask) << at)",
            ),
            // From the sign bit of the field on, all are like it.
            Op::BitFieldSExtract => ("extract_signed", String::new(), "(field ^ sign) - sign"),
            _ => ("extract", String::new(), "field"),
        };
        let name = self.names.beside_kernels(format!("bit_field_{name}_{lanes}"));
        let scalar = lanes.single();
        let all = if width == 64 {
            "0xfffffffffffffffful".to_owned()
        } else {
            format!("{:#x}u", u32::MAX >> (32 - width))
        };
        let mut text = format!(
            "\nstatic {lanes} {name}({lanes} base, {insert}uint offset, uint count)\n{{\n    \
                 {lanes} at = ({lanes})(({scalar})offset);\n    \
                 {lanes} mask = ({lanes})(({scalar})(count == 0 ? 0 : {all} >> ({width} - count)));\n"
        );
        if op != Op::BitFieldInsert {
            text += &format!("    {lanes} field = ({lanes})((base >> at) & mask);\n");
        }
        if op == Op::BitFieldSExtract {
            text += &format!("    {lanes} sign = ({lanes})(mask ^ (mask >> ({lanes})(1)));\n");
        }
        text += &format!("    return ({lanes})({result});\n}}\n");
        self.helpers.insert(name.clone(), text);
        Ok(name)
    }
}

fn integer_width(lanes: Lanes) -> Result<u32> {
    match lanes.scalar {
        Scalar::Int(width) => Ok(width),
        _ => Err(malformed("an instruction of bits")),
    }
}
