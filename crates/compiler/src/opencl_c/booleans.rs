//! Boolean instructions.
//!
//! A Boolean is `bool`, for which operators yield 0 or 1. A vector of Booleans is a vector of `char`, each 0 or
//! -1.

use kiln_spirv::Result;
use rspirv::spirv::Op;

use super::function::Body;
use super::malformed;

impl Body<'_, '_> {
    /// Returns the text of an instruction that computes with Booleans or selects by them, or `None` for another
    /// instruction.
    pub(super) fn logic(&mut self, op: Op, ty: u32, operands: &[u32]) -> Result<Option<String>> {
        let get = |index: usize| -> Result<u32> {
            operands.get(index).copied().ok_or_else(|| malformed(format!("Op{op:?}")))
        };
        Ok(Some(match op {
            Op::Any => self.truth("any", get(0)?)?,
            Op::All => self.truth("all", get(0)?)?,
            Op::LogicalAnd => self.logical("&&", "&", operands)?,
            Op::LogicalOr => self.logical("||", "|", operands)?,
            Op::LogicalNotEqual => self.logical("!=", "^", operands)?,
            Op::LogicalEqual => {
                let text = self.logical("==", "^", operands)?;
                if self.emitter.lanes(ty)?.is_vector() { format!("~({text})") } else { text }
            }
            Op::LogicalNot => {
                let symbol = if self.emitter.lanes(ty)?.is_vector() { '~' } else { '!' };
                format!("{symbol}{}", self.value(get(0)?)?)
            }
            Op::Select => self.select(ty, get(0)?, get(1)?, get(2)?)?,
            _ => return Ok(None),
        }))
    }

    fn truth(&mut self, name: &str, value: u32) -> Result<String> {
        let is_vector = self.emitter.lanes(self.emitter.type_of(value)?)?.is_vector();
        let value = self.value(value)?;
        Ok(if is_vector { format!("{name}({value}) != 0") } else { value })
    }

    fn logical(&mut self, scalar: &str, vector: &str, operands: &[u32]) -> Result<String> {
        let &[a, b] = operands else { return Err(malformed("an instruction with two operands")) };
        let lanes = self.emitter.lanes(self.emitter.type_of(a)?)?;
        Ok(format!(
            "{} {} {}",
            self.value(a)?,
            if lanes.is_vector() { vector } else { scalar },
            self.value(b)?
        ))
    }

    fn select(&mut self, ty: u32, condition: u32, yes: u32, no: u32) -> Result<String> {
        let is_vector = self.emitter.lanes(self.emitter.type_of(condition)?)?.is_vector();
        let (choice, yes, no) = (self.value(condition)?, self.value(yes)?, self.value(no)?);
        if !is_vector {
            return Ok(format!("{choice} ? {yes} : {no}"));
        }
        let lanes = self.emitter.lanes(ty)?;
        let choice = match lanes.width() {
            8 => choice,
            _ => format!("convert_{}({choice})", lanes.signed()),
        };
        Ok(format!("select({no}, {yes}, {choice})"))
    }
}
