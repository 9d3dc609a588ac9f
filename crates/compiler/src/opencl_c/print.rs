//! Translation of `printf`.

use kiln_spirv::Result;
use kiln_spirv::edit::Address;
use rspirv::spirv::{Op, StorageClass};

use super::function::Body;
use super::malformed;

/// Maximum number of steps from a use of a string to its variable.
const MAX_STEPS: usize = 16;

impl Body<'_, '_> {
    /// Returns a call of `printf`.
    ///
    /// Strings are written as literals if their contents are known: NVIDIA's compiler accepts no others.
    pub(super) fn printf(&mut self, operands: &[u32]) -> Result<String> {
        let mut texts = Vec::new();
        for (at, &operand) in operands.iter().enumerate() {
            texts.push(match self.text(operand) {
                Some(text) => text,
                None if at == 0 => format!("(constant char *){}", self.value(operand)?),
                None => self.value(operand)?,
            });
        }
        if texts.is_empty() {
            return Err(malformed("printf"));
        }
        Ok(format!("(uint)printf({})", texts.join(", ")))
    }

    /// Returns the literal of the string to whose start a pointer points.
    fn text(&self, pointer: u32) -> Option<String> {
        let emitter = &*self.emitter;
        let mut at = emitter.definition(pointer).ok()?;
        for _ in 0..MAX_STEPS {
            let from = match at.row()?.address {
                Address::Copy => at.derived_from()?,
                Address::Part => {
                    let is_first = |index| matches!(emitter.evaluate(index), Ok(Some(0)));
                    let (base, mut indexes) = at.chain()?;
                    Some(base).filter(|_| indexes.all(is_first))?
                }
                _ => break,
            };
            at = emitter.definition(from).ok()?;
        }
        let (class, contents) = at.variable()?;
        let contents = contents.filter(|_| class == StorageClass::UniformConstant as u32)?;
        let contents = emitter.definition(contents).ok()?;
        if contents.op() != Some(Op::ConstantComposite) {
            return None;
        }
        let mut literal = String::from("\"");
        for byte in contents.parts() {
            match u8::try_from(emitter.evaluate(byte).ok()??).ok()? {
                0 => return Some(literal + "\""),
                byte @ (b' ' | b'!' | b'#'..=b'>' | b'@'..=b'[' | b']'..=b'~') => {
                    literal.push(char::from(byte));
                }
                // Question marks are escaped, too: two of them may begin a trigraph.
                byte => literal.push_str(&format!("\\{byte:03o}")),
            }
        }
        // The string has no terminating zero.
        None
    }
}
