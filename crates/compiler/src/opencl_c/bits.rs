//! Bit instructions for which OpenCL C 1.2 has no function, as helper functions in the text.
//!
//! Shift amounts stay below the width, because OpenCL C takes larger ones modulo the width.

use kiln_spirv::Result;
use rspirv::spirv::Op;

use super::types::{Lanes, Scalar};
use super::{Emitter, malformed, unsupported};

impl Emitter<'_> {
    /// Reinterprets the bits of a scalar or vector as another type of the same number of bits. The first
    /// component has the lowest bits.
    ///
    /// OpenCL C has `as_type` for its own types. In SPIR-V, a vector of Booleans has one bit per component, so
    /// its bits go through an integer, as do those of integers of other widths.
    pub(super) fn bit_cast(&mut self, from: Lanes, to: Lanes, text: &str) -> Result<String> {
        if from == to {
            return Ok(text.to_owned());
        }
        let bits = |lanes: Lanes| lanes.bits() * lanes.count;
        if bits(from) != bits(to) {
            return Err(malformed("OpBitcast between types of different sizes"));
        }
        let is_own = |lanes: Lanes| lanes.scalar != Scalar::Bool && !lanes.is_odd();
        if is_own(from) && is_own(to) && (from.count == to.count || bits(from).is_power_of_two()) {
            return Ok(format!("as_{to}({text})"));
        }
        if bits(from) > 64 {
            return Err(unsupported(format!("OpBitcast of {from} to {to}")));
        }
        let whole = Lanes { scalar: Scalar::Int(bits(from)), count: 1 };
        let text = match from {
            _ if from == whole => text.to_owned(),
            _ if is_own(from) && !whole.is_odd() => format!("as_{whole}({text})"),
            _ => format!("{}({text})", self.joined(from, whole)?),
        };
        Ok(match to {
            _ if to == whole => text,
            _ if is_own(to) && !whole.is_odd() => format!("as_{to}({text})"),
            _ => format!("{}({text})", self.parted(whole, to)?),
        })
    }

    /// Adds a helper function that joins the bits of several values to one integer, and returns the helper's
    /// name.
    fn joined(&mut self, from: Lanes, whole: Lanes) -> Result<String> {
        if !from.is_vector() {
            return Err(unsupported(format!("OpBitcast of {from} to an integer of its bits")));
        }
        let of_bools = if from.scalar == Scalar::Bool { "_of_bools" } else { "" };
        let name = self.names.beside_fixed(format!("bit_join{of_bools}_{from}"));
        let parts: Vec<_> = (0..from.count)
            .map(|at| match from.scalar {
                Scalar::Bool => format!("({whole})(from.s{at:x} & 1) << {at}"),
                Scalar::Int(width) => format!("({whole})from.s{at:x} << {}", at * width),
                Scalar::Float(width) => {
                    let bits = from.single().with(Scalar::Int(width));
                    format!("({whole})as_{bits}(from.s{at:x}) << {}", at * width)
                }
            })
            .collect();
        let text = format!(
            "\nstatic {whole} {name}({from} from)\n{{\n    return ({whole})({});\n}}\n",
            parts.join(" | ")
        );
        self.helpers.insert(name.clone(), text);
        Ok(name)
    }

    /// Adds a helper function that parts the bits of one integer into several values, and returns the helper's
    /// name.
    fn parted(&mut self, whole: Lanes, to: Lanes) -> Result<String> {
        if !to.is_vector() {
            return Err(unsupported(format!("OpBitcast of an integer of its bits to {to}")));
        }
        let to_bools = if to.scalar == Scalar::Bool { "_to_bools" } else { "" };
        let name = self.names.beside_fixed(format!("bit_part{to_bools}_{to}"));
        let parts: Vec<_> = (0..to.count)
            .map(|at| match to.scalar {
                Scalar::Bool => format!("-(char)(from >> {at} & 1)"),
                Scalar::Int(width) => format!("({})(from >> {})", to.single(), at * width),
                Scalar::Float(width) => {
                    let bits = to.single().with(Scalar::Int(width));
                    format!("as_{}(({bits})(from >> {}))", to.single(), at * width)
                }
            })
            .collect();
        let text = format!(
            "\nstatic {to} {name}({whole} from)\n{{\n    return ({to})({});\n}}\n",
            parts.join(", ")
        );
        self.helpers.insert(name.clone(), text);
        Ok(name)
    }

    /// Adds a helper function that reverses the order of bits, and returns the helper's name.
    pub(super) fn bit_reverse(&mut self, lanes: Lanes) -> Result<String> {
        let width = integer_width(lanes)?;
        let name = self.names.beside_fixed(format!("bit_reverse_{lanes}"));
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

    /// Adds a helper function that inserts or extracts a bit field, and returns the helper's name.
    pub(super) fn bit_field(&mut self, op: Op, lanes: Lanes) -> Result<String> {
        let width = integer_width(lanes)?;
        let (name, insert, result) = match op {
            Op::BitFieldInsert => (
                "insert",
                format!("{lanes} insert, "),
                "(base & ~(mask << at)) | ((insert & mask) << at)",
            ),
            // All bits above the sign bit of the field get its value.
            Op::BitFieldSExtract => ("extract_signed", String::new(), "(field ^ sign) - sign"),
            _ => ("extract", String::new(), "field"),
        };
        let name = self.names.beside_fixed(format!("bit_field_{name}_{lanes}"));
        let scalar = lanes.single();
        let all = if width > 32 {
            format!("{:#x}ul", u64::MAX >> (64 - width))
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
        _ => Err(malformed("a bit instruction")),
    }
}
