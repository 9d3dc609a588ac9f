//! Unrolls short loops, such as those over the neighbours of a stencil. Compilers for CPUs turn the
//! work-items of a work-group into iterations of a loop. They vectorise that loop only if it contains no
//! other loop. Where it contains the loop over the rows of a strip, the calls for neighbours have to stand
//! side by side.

use std::collections::HashMap;

use kiln_spirv::edit::{Class, Definitions, Instruction, Role, Section, Stream, View};
use kiln_spirv::{Module, Result};
use rspirv::spirv::Op;

use crate::analysis::constants::constant;

/// Maximum number of iterations of a loop that is unrolled.
const MAX_ITERATIONS: usize = 16;

/// Maximum number of words of an unrolled loop.
const MAX_WORDS: usize = 1 << 12;

/// Unrolls the loops of a function that are a single block and run a constant number of times.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if an instruction is unknown.
pub(super) fn unroll(module: &mut Module, function: u32) -> Result<()> {
    let Some(at) = module.functions.iter().position(|known| known.id == function) else {
        return Ok(());
    };
    let snapshot = module.clone();
    let definitions = snapshot.definitions();
    let mut writer =
        Writer { definitions: &definitions, new: Stream::default(), copies: HashMap::new() };
    let mut block = Vec::new();
    for i in snapshot.functions[at].body.iter() {
        let is_start = i.op() == Some(Op::Label);
        if is_start {
            writer.block(module, &block)?;
            block.clear();
        }
        block.push(i);
    }
    writer.block(module, &block)?;
    let Writer { new, copies, .. } = writer;
    module.functions[at].body = new;
    decorate(module, &copies);
    Ok(())
}

/// Loop that consists of one block.
struct Loop<'a, 'm> {
    label: u32,
    /// Label of the block after the loop.
    exit: u32,
    /// Types, results, first values and next values of the phis.
    phis: Vec<[u32; 4]>,
    /// Instructions other than the label, the phis and the branch.
    body: Vec<&'a Instruction<'m>>,
    iterations: usize,
}

impl<'a, 'm> Loop<'a, 'm> {
    /// Returns the loop that a block is, if it can be unrolled.
    fn of(definitions: &Definitions<'_>, block: &'a [Instruction<'m>]) -> Option<Self> {
        let (first, rest) = block.split_first()?;
        let label = first.result().filter(|_| first.op() == Some(Op::Label))?;
        let is_part = |i: &&Instruction<'_>| {
            let is_frame = matches!(i.class(), Some(Class::Line | Class::End));
            !is_frame && i.op() != Some(Op::LoopMerge)
        };
        let rest: Vec<_> = rest.iter().filter(is_part).collect();
        let (branch, rest) = rest.split_last()?;
        let View::BranchIf { condition, yes, no, .. } = branch.view() else { return None };
        let (stays, exit) = match (yes == label, no == label) {
            (true, false) => (true, no),
            (false, true) => (false, yes),
            _ => return None,
        };
        let (mut phis, mut body) = (Vec::new(), Vec::new());
        for &i in rest {
            if i.op() != Some(Op::Phi) {
                body.push(i);
                continue;
            }
            let (ty, id) = i.result_type().zip(i.result())?;
            let incoming: Vec<_> = i.incoming().collect();
            let &[(a, from_a), (b, from_b)] = incoming.as_slice() else { return None };
            phis.push(match (from_a == label, from_b == label) {
                (false, true) => [ty, id, a, b],
                (true, false) => [ty, id, b, a],
                _ => return None,
            });
        }
        let iterations = iterations(definitions, &phis, &body, condition, stays)?;
        let words: usize = body.iter().map(|i| i.words().len()).sum();
        (words * iterations <= MAX_WORDS).then_some(Self { label, exit, phis, body, iterations })
    }
}

/// Returns the number of times that a loop runs, if it is constant and at most [`MAX_ITERATIONS`].
fn iterations(
    definitions: &Definitions<'_>,
    phis: &[[u32; 4]],
    body: &[&Instruction<'_>],
    condition: u32,
    stays: bool,
) -> Option<usize> {
    let mut known: HashMap<u32, i128> = HashMap::new();
    let value = |known: &HashMap<u32, i128>, id: u32| {
        known.get(&id).copied().or_else(|| constant(definitions, id))
    };
    for count in 1..=MAX_ITERATIONS {
        let next = phis.iter().filter_map(|&[_, id, first, next]| {
            Some((id, value(&known, if count == 1 { first } else { next })?))
        });
        known = next.collect();
        for i in body {
            if let Some(id) = i.result()
                && let Some(result) = evaluate(definitions, i, |id| value(&known, id))
            {
                known.insert(id, result);
            }
        }
        let is_true = *known.get(&condition)? != 0;
        if is_true != stays {
            return Some(count);
        }
    }
    None
}

/// Evaluates a sum, a difference or a comparison of numbers that are small enough not to wrap.
fn evaluate(
    definitions: &Definitions<'_>,
    i: &Instruction<'_>,
    value: impl Fn(u32) -> Option<i128>,
) -> Option<i128> {
    let (left, right) = i.both()?;
    let (a, b) = (value(left)?, value(right)?);
    let are_positive = a >= 0 && b >= 0;
    let result = match i.op()? {
        Op::IAdd => a + b,
        Op::ISub => a - b,
        Op::IEqual => i128::from(a == b),
        Op::INotEqual => i128::from(a != b),
        Op::SLessThan => i128::from(a < b),
        Op::SLessThanEqual => i128::from(a <= b),
        Op::SGreaterThan => i128::from(a > b),
        Op::SGreaterThanEqual => i128::from(a >= b),
        Op::ULessThan if are_positive => i128::from(a < b),
        Op::ULessThanEqual if are_positive => i128::from(a <= b),
        Op::UGreaterThan if are_positive => i128::from(a > b),
        Op::UGreaterThanEqual if are_positive => i128::from(a >= b),
        _ => return None,
    };
    let ty = definitions.get(i.result_type()?)?;
    let limit = match ty.op()? {
        Op::TypeBool => 2,
        Op::TypeInt => 1_i128 << (ty.width()?.checked_sub(1)?),
        _ => return None,
    };
    (-limit <= result && result < limit).then_some(result)
}

struct Writer<'a, 'm> {
    definitions: &'a Definitions<'m>,
    new: Stream,
    /// Instructions of which an id is a copy.
    copies: HashMap<u32, Vec<u32>>,
}

impl Writer<'_, '_> {
    /// Writes a block, unrolled if it is a loop that can be.
    fn block(&mut self, module: &mut Module, block: &[Instruction<'_>]) -> Result<()> {
        let Some(own) = Loop::of(self.definitions, block) else {
            block.iter().for_each(|i| self.new.push_instruction(i));
            return Ok(());
        };
        self.new.push(Op::Label, [own.label]);
        let mut values: HashMap<u32, u32> = HashMap::new();
        for at in 0..own.iterations {
            let is_last = at + 1 == own.iterations;
            let current = |id: u32| values.get(&id).copied().unwrap_or(id);
            let phis = own.phis.iter();
            let phis = phis.map(|&[ty, id, first, next]| {
                (ty, id, if at == 0 { first } else { current(next) })
            });
            let phis: Vec<_> = phis.collect();
            values.clear();
            for (ty, id, value) in phis {
                if is_last {
                    // The last values keep their ids, for the code after the loop.
                    self.new.push(Op::CopyObject, [ty, id, value]);
                } else {
                    values.insert(id, value);
                }
            }
            for i in &own.body {
                if let Some(id) = i.result().filter(|_| !is_last) {
                    let copy = module.fresh_id()?;
                    values.insert(id, copy);
                    self.copies.entry(id).or_default().push(copy);
                }
                self.new.push_renumbered(i, self.definitions, |id, role| {
                    let is_type = role == Role::ResultType;
                    Ok(if is_type { id } else { values.get(&id).copied().unwrap_or(id) })
                })?;
            }
        }
        self.new.push(Op::Branch, [own.exit]);
        let end = block.last().filter(|i| i.op() == Some(Op::FunctionEnd));
        end.into_iter().for_each(|end| self.new.push_instruction(end));
        Ok(())
    }
}

/// Gives copies the decorations of their originals.
fn decorate(module: &mut Module, copies: &HashMap<u32, Vec<u32>>) {
    let mut new = Stream::default();
    for i in module.section(Section::Annotations).iter() {
        let op = i.op().filter(|_| i.class() == Some(Class::Decoration));
        let (Some(op), Some(target)) = (op, i.target()) else { continue };
        for &copy in copies.get(&target).into_iter().flatten() {
            new.push(op, [copy].into_iter().chain(i.words_from(1)));
        }
    }
    module.section_mut(Section::Annotations).append(&new);
}
