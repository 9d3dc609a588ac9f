//! Order in which a kernel's own instructions run, and the conditions under which they run.

use std::collections::HashMap;
use std::rc::Rc;

use kiln_spirv::edit::{Definitions, Location, View};

use super::blocks::Blocks;
use super::symbols::{Condition, Symbol, Symbols};

/// Control flow of a kernel's function: the edges that are taken with the values that its analysis relied
/// on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow {
    blocks: Vec<Block>,
    returns: Vec<bool>,
}

#[derive(Clone, Debug)]
struct Block {
    /// Word offsets in the function's body at which the block's instructions begin.
    instructions: Vec<u32>,
    next: Vec<usize>,
    branch: Option<Branch>,
}

/// Conditional branch at the end of a block.
#[derive(Clone, Debug)]
struct Branch {
    condition: Rc<Symbol>,
    yes: usize,
    no: usize,
}

impl Flow {
    pub(super) fn of(
        blocks: &Blocks<'_>,
        definitions: &Definitions<'_>,
        symbols: &mut Symbols<'_>,
        is_live: impl Fn(usize, usize) -> bool,
    ) -> Self {
        let all = blocks.all.iter().enumerate().map(|(at, block)| {
            let last = block.body.last().map(|(_, last)| *last);
            let branch = last.and_then(|branch| {
                let View::BranchIf { condition, yes, no, .. } = branch.view() else { return None };
                let (yes, no) = (blocks.index(yes)?, blocks.index(no)?);
                let condition = symbols.of(definitions, condition)?;
                (yes != no).then_some(Branch { condition, yes, no })
            });
            Block {
                instructions: block.body.iter().map(|(location, _)| location.offset).collect(),
                next: block.next.iter().copied().filter(|&next| is_live(at, next)).collect(),
                branch,
            }
        });
        Self { blocks: all.collect(), returns: blocks.returns() }
    }

    /// Returns the block of an instruction.
    fn block(&self, at: Location) -> Option<usize> {
        self.blocks.iter().position(|block| block.instructions.binary_search(&at.offset).is_ok())
    }

    /// Returns, for each block, whether it is reached from `from` along edges for which `open` returns
    /// true. `from` itself counts only if an edge leads back to it.
    fn reached(&self, from: usize, open: impl Fn(usize, usize) -> bool) -> Vec<bool> {
        let mut seen = vec![false; self.blocks.len()];
        let mut found = vec![from];
        while let Some(at) = found.pop() {
            for &next in self.blocks[at].next.iter().filter(|&&next| open(at, next)) {
                if !std::mem::replace(&mut seen[next], true) {
                    found.push(next);
                }
            }
        }
        seen
    }

    /// Returns whether the second instruction may run after the first one.
    pub(crate) fn may_follow(&self, first: Location, second: Location) -> bool {
        let (Some(a), Some(b)) = (self.block(first), self.block(second)) else { return true };
        (a == b && first.offset < second.offset) || self.reached(a, |_, _| true)[b]
    }

    /// Returns whether the second instruction never runs before the first one has run.
    pub(crate) fn precedes(&self, first: Location, second: Location) -> bool {
        let (Some(a), Some(b)) = (self.block(first), self.block(second)) else { return false };
        if a == b {
            return first.offset < second.offset;
        }
        b != 0 && (a == 0 || !self.reached(0, |_, to| to != a)[b])
    }

    /// Returns conditions that hold whenever an instruction runs.
    pub(crate) fn conditions(&self, at: Location) -> Vec<Condition> {
        let Some(block) = self.block(at).filter(|&block| block != 0) else { return Vec::new() };
        let mut found = Vec::new();
        for (from, Branch { condition, yes, no }) in self.branches() {
            for (target, holds) in [(*yes, true), (*no, false)] {
                let is_edge = |a: usize, b: usize| a == from && b == target;
                if !self.reached(0, |a, b| !is_edge(a, b))[block] {
                    Condition { symbol: Rc::clone(condition), holds }.split(&mut found);
                }
            }
        }
        found
    }

    /// Returns whether an instruction runs in all runs that end, where `decide` returns the values of
    /// branch conditions that are known.
    pub(crate) fn runs_where(
        &self,
        at: Location,
        decide: impl Fn(&Symbol) -> Option<bool>,
    ) -> bool {
        let Some(block) = self.block(at) else { return false };
        let decided: HashMap<_, _> = self
            .branches()
            .filter_map(|(from, branch)| {
                let holds = decide(&branch.condition)?;
                Some((from, if holds { branch.yes } else { branch.no }))
            })
            .collect();
        let open = |from: usize, to: usize| {
            to != block && decided.get(&from).is_none_or(|&target| target == to)
        };
        let reached = self.reached(0, open);
        block == 0 || !(0..self.blocks.len()).any(|at| self.returns[at] && (at == 0 || reached[at]))
    }

    /// Returns whether every run that ends passes one of some instructions.
    pub(crate) fn always_passes(&self, any: &[Location]) -> bool {
        let Some(blocks) = any.iter().map(|&at| self.block(at)).collect::<Option<Vec<_>>>() else {
            return false;
        };
        let reached = self.reached(0, |_, to| !blocks.contains(&to));
        let may_end = |at: usize| self.returns[at] && (at == 0 || reached[at]);
        !blocks.is_empty() && (blocks.contains(&0) || !(0..self.blocks.len()).any(may_end))
    }

    /// Returns the conditional branches of which both targets are live, each with its block.
    fn branches(&self) -> impl Iterator<Item = (usize, &Branch)> {
        let blocks = self.blocks.iter().enumerate();
        blocks.filter(|(_, block)| block.next.len() == 2).filter_map(|(at, block)| {
            let branch = block.branch.as_ref()?;
            Some((at, branch))
        })
    }
}
