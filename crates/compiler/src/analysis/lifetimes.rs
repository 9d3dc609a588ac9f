//! Uses of variables outside of their lifetimes.
//!
//! After `OpLifetimeStop`, the contents of a variable are undefined, and a compiler may give its memory to another
//! variable. A write to it then changes that variable, so that nothing is known of either.

use std::collections::{BTreeSet, HashMap};

use kiln_spirv::edit::{Definitions, Instruction, Location, Section, located, operand_ids};
use rspirv::spirv::Op;

use super::blocks::{Block, blocks};

/// Returns the ends of lifetimes after which the variable may be used before its lifetime starts anew. The end of a
/// lifetime that is not that of a single variable of the same function counts, too.
pub(crate) fn broken(definitions: &Definitions<'_>) -> BTreeSet<Location> {
    let functions = (Section::COUNT as u32..).zip(&definitions.module().functions);
    let stops =
        |body: &kiln_spirv::edit::Stream| body.iter().any(|i| i.op() == Some(Op::LifetimeStop));
    let functions = functions.filter(|(_, function)| stops(&function.body));
    let broken = functions.flat_map(|(stream, function)| {
        let (_, blocks) = blocks(definitions, located((stream, &function.body)));
        let origins = origins(definitions, &blocks);
        Search { definitions, blocks, origins }.broken()
    });
    broken.collect()
}

/// Returns, for each pointer that is made of variables of a function, these variables.
fn origins(definitions: &Definitions<'_>, blocks: &[Block<'_>]) -> HashMap<u32, BTreeSet<u32>> {
    let mut origins = HashMap::<u32, BTreeSet<u32>>::new();
    let instructions = || blocks.iter().flat_map(|block| &block.body);
    for (_, i) in instructions().filter(|(_, i)| i.op() == Some(Op::Variable)) {
        origins.extend(i.result().map(|id| (id, BTreeSet::from([id]))));
    }
    let is_pointer = |i: &Instruction<'_>| {
        let ty = i.result_type().and_then(|ty| definitions.get(ty));
        ty.is_some_and(|ty| ty.op() == Some(Op::TypePointer))
    };
    loop {
        let mut is_changed = false;
        for (_, i) in instructions().filter(|(_, i)| is_pointer(i)) {
            let Some(result) = i.result() else { continue };
            let all = operands(definitions, i);
            let all: BTreeSet<_> =
                all.iter().filter_map(|id| origins.get(id)).flatten().copied().collect();
            let known = origins.entry(result).or_default();
            let before = known.len();
            known.extend(all);
            is_changed |= known.len() != before;
        }
        if !is_changed {
            return origins;
        }
    }
}

/// Returns the ids of an instruction's operands.
fn operands(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Vec<u32> {
    let mut all = Vec::new();
    // The module is valid: otherwise the kernel would have been refused.
    _ = operand_ids(i, definitions, |id| all.push(id));
    all
}

struct Search<'a, 'm> {
    definitions: &'a Definitions<'m>,
    blocks: Vec<Block<'m>>,
    /// Variables that each pointer is made of.
    origins: HashMap<u32, BTreeSet<u32>>,
}

impl Search<'_, '_> {
    fn broken(&self) -> Vec<Location> {
        let mut broken = Vec::new();
        for (at, block) in self.blocks.iter().enumerate() {
            for (position, (location, i)) in block.body.iter().enumerate() {
                if i.op() == Some(Op::LifetimeStop) {
                    let variable = self.variable(i);
                    if variable.is_none_or(|v| self.is_used_after(v, (at, position))) {
                        broken.push(*location);
                    }
                }
            }
        }
        broken
    }

    /// Returns the variable that a marker is about, if it is about one alone.
    fn variable(&self, marker: &Instruction<'_>) -> Option<u32> {
        let all = self.origins.get(&marker.pointer()?)?;
        all.first().copied().filter(|_| all.len() == 1)
    }

    /// Whether a variable may be used after the instruction at a position of a block, before its lifetime starts.
    fn is_used_after(&self, variable: u32, (at, position): (usize, usize)) -> bool {
        let (mut seen, mut found) = (vec![false; self.blocks.len()], vec![(at, position + 1)]);
        while let Some((at, from)) = found.pop() {
            let rest = self.blocks[at].body.iter().skip(from);
            let mut effects = rest.filter_map(|(_, i)| self.effect(i, variable));
            match effects.next() {
                Some(Effect::Use) => return true,
                Some(Effect::Start) => {}
                None => {
                    for &next in &self.blocks[at].next {
                        if !std::mem::replace(&mut seen[next], true) {
                            found.push((next, 0));
                        }
                    }
                }
            }
        }
        false
    }

    fn effect(&self, i: &Instruction<'_>, variable: u32) -> Option<Effect> {
        match i.op()? {
            Op::LifetimeStart => (self.variable(i) == Some(variable)).then_some(Effect::Start),
            Op::LifetimeStop => None,
            // Pointers are not uses before something accesses them.
            op if op != Op::FunctionCall
                && i.result().is_some_and(|id| self.origins.contains_key(&id)) =>
            {
                None
            }
            _ => {
                let all = operands(self.definitions, i);
                let mut all = all.iter().filter_map(|id| self.origins.get(id));
                all.any(|origins| origins.contains(&variable)).then_some(Effect::Use)
            }
        }
    }
}

/// Effect of an instruction on a variable whose lifetime has ended.
enum Effect {
    Start,
    Use,
}
