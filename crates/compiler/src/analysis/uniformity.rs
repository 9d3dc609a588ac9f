//! Divergence of the work-items of a work-group: which of them reach an instruction.
//!
//! A value is uniform if all work-items of a work-group have the same. It is divergent if it depends on a
//! work-item's id or on memory, or if it is joined where work-items come from different branches. A block is
//! divergent if a divergent branch decides whether it runs.

use std::collections::{BTreeSet, HashMap, HashSet};

use kiln_spirv::edit::{
    Definitions, Effect, Instruction, Location, Meaning, Section, View, located, operand_ids,
};
use kiln_spirv::{Dominators, Module, reverse_postorder};
use rspirv::spirv::{BuiltIn, GroupOperation, Op, Scope, StorageClass};

use super::blocks::{Block, blocks};
use super::images::reads_changing;
use super::vector_access::extended;

/// Returns the instructions that all work-items of a work-group have to reach together, and that are not proven
/// to be reached so.
pub(crate) fn divergent_collectives(definitions: &Definitions<'_>) -> BTreeSet<Location> {
    let module = definitions.module();
    let has_collectives = |function: &kiln_spirv::edit::Function| {
        function.body.iter().any(|i| i.op().is_some_and(needs_all))
    };
    if !module.functions.iter().any(has_collectives) {
        return BTreeSet::new();
    }
    let functions = (Section::COUNT as u32..).zip(&module.functions);
    let functions: Vec<_> = functions
        .map(|(stream, known)| Function::of(definitions, known.id, located((stream, &known.body))))
        .collect();
    let mut search = Search {
        definitions,
        built_ins: module.built_ins().collect(),
        parameters: functions.iter().map(|known| (known.id, known.parameters.clone())).collect(),
        divergent: HashSet::new(),
        divergent_calls: HashSet::new(),
        divergent_blocks: functions.iter().map(|known| vec![false; known.blocks.len()]).collect(),
        functions,
    };
    search.close();
    search.found()
}

/// Returns an instruction that all work-items of a work-group have to reach together, or a call of a function with one,
/// in a function that has a loop which is entered in several places. Compilers for CPUs split loops at barriers, and
/// PoCL (3.1) ends the process for such a loop.
pub(crate) fn collective_beside_irreducible_loop(
    definitions: &Definitions<'_>,
) -> Option<Location> {
    let module = definitions.module();
    let collectives = Collectives::of(module);
    let mut all = (Section::COUNT as u32..).zip(&module.functions);
    all.find_map(|(stream, function)| {
        let mut body = located((stream, &function.body));
        let (location, _) = body.find(|(_, i)| collectives.include(i))?;
        let (_, blocks) = blocks(definitions, located((stream, &function.body)));
        has_irreducible_loop(&blocks).then_some(location)
    })
}

/// Instructions that all work-items of a work-group have to reach together, with the calls of functions that have one.
pub(crate) struct Collectives {
    /// Functions that have such an instruction, or call one that has.
    functions: HashSet<u32>,
}

impl Collectives {
    pub(crate) fn of(module: &Module) -> Self {
        let mut known = Self { functions: HashSet::new() };
        loop {
            let before = known.functions.len();
            for function in &module.functions {
                if function.body.iter().any(|i| known.include(&i)) {
                    known.functions.insert(function.id);
                }
            }
            if before == known.functions.len() {
                return known;
            }
        }
    }

    pub(crate) fn include(&self, i: &Instruction<'_>) -> bool {
        match i.op() {
            Some(Op::FunctionCall) => i.called().is_some_and(|called| self.are_in(called)),
            Some(op) => needs_all(op),
            None => true,
        }
    }

    pub(crate) fn are_in(&self, function: u32) -> bool {
        self.functions.contains(&function)
    }
}

/// Returns whether a block is reached again from one that it does not dominate.
fn has_irreducible_loop(blocks: &[Block<'_>]) -> bool {
    let order = reverse_postorder(blocks.len(), |at| &blocks[at].next);
    let mut position = vec![usize::MAX; blocks.len()];
    order.iter().enumerate().for_each(|(at, &block)| position[block] = at);
    let edges = blocks.iter().enumerate();
    let edges = edges.flat_map(|(at, block)| block.next.iter().map(move |&next| (at, next)));
    let dominators = Dominators::of(blocks.len(), edges.clone(), 0);
    let dominates = |one: usize, other: usize| {
        dominators.all(other).is_none_or(|mut all| all.any(|block| block == one))
    };
    let mut back = edges.filter(|&(from, to)| position[to] <= position[from]);
    back.any(|(from, to)| position[from] != usize::MAX && !dominates(to, from))
}

/// Returns whether an instruction has to be reached by all work-items of a work-group.
fn needs_all(op: Op) -> bool {
    Meaning::of(op).is_none_or(|meaning| meaning.effect == Effect::Group)
}

struct Function<'m> {
    id: u32,
    parameters: Vec<u32>,
    blocks: Vec<Block<'m>>,
    /// Operands of each instruction of each block.
    operands: Vec<Vec<Vec<u32>>>,
    /// For each block, the blocks that may run right before it.
    previous: Vec<Vec<usize>>,
    /// For each block, the value that its branch depends on, if it has one.
    conditions: Vec<Option<u32>>,
    deciding: Deciding,
}

/// Blocks whose branch decides whether another block runs.
struct Deciding {
    /// For each block, those that decide about it directly. They may themselves be decided by others.
    direct: Vec<Vec<usize>>,
    /// Whether each block never ends. Such blocks are decided by every branch.
    is_endless: Vec<bool>,
}

impl<'m> Function<'m> {
    fn of(
        definitions: &Definitions<'m>,
        id: u32,
        body: impl Iterator<Item = (Location, Instruction<'m>)>,
    ) -> Self {
        let (parameters, blocks) = blocks(definitions, body);
        let operands_of = |i: &Instruction<'m>| {
            let mut operands = Vec::new();
            _ = operand_ids(i, definitions, |id| operands.push(id));
            operands
        };
        let operands = blocks.iter().map(|block| {
            let all = block.body.iter().map(|(_, i)| operands_of(i));
            all.collect()
        });
        let operands = operands.collect();
        let mut previous = vec![Vec::new(); blocks.len()];
        for (at, block) in blocks.iter().enumerate() {
            for &next in &block.next {
                previous[next].push(at);
            }
        }
        let condition = |block: &Block<'m>| block.body.iter().find_map(|(_, i)| i.condition());
        let conditions = blocks.iter().map(condition).collect();
        let deciding = Deciding::of(&blocks);
        Self { id, parameters, blocks, operands, previous, conditions, deciding }
    }
}

impl Deciding {
    /// Returns which blocks decide about others: their control dependences (J. Ferrante, K. J. Ottenstein and J. D.
    /// Warren, The Program Dependence Graph and Its Use in Optimization, 1987).
    fn of(blocks: &[Block<'_>]) -> Self {
        let end = blocks.len();
        // From the end backwards: a common node follows all blocks without a successor.
        let mut edges = Vec::new();
        for (at, block) in blocks.iter().enumerate() {
            edges.extend(block.next.iter().map(|&next| (next, at)));
            edges.extend(block.next.is_empty().then_some((end, at)));
        }
        let dominators = Dominators::of(end + 1, edges, end);
        let is_endless = |at: usize| dominators.parent(at).is_none();
        let mut direct = vec![Vec::new(); blocks.len()];
        for (at, block) in blocks.iter().enumerate().filter(|(_, block)| block.next.len() > 1) {
            let stop = dominators.parent(at);
            for &next in &block.next {
                let mut runner = Some(next);
                while let Some(node) = runner.filter(|node| Some(*node) != stop && *node != end) {
                    // The branches of a block come one after another.
                    if direct[node].last() != Some(&at) {
                        direct[node].push(at);
                    }
                    runner = dominators.parent(node);
                }
            }
        }
        Self { direct, is_endless: (0..end).map(is_endless).collect() }
    }
}

struct Search<'a, 'm> {
    definitions: &'a Definitions<'m>,
    built_ins: HashMap<u32, u32>,
    functions: Vec<Function<'m>>,
    /// For each function, whether work-items of a work-group may differ in whether they run each block.
    divergent_blocks: Vec<Vec<bool>>,
    parameters: HashMap<u32, Vec<u32>>,
    /// Ids of divergent values. A function's id stands for its result.
    divergent: HashSet<u32>,
    /// Functions that are called where work-items diverge.
    divergent_calls: HashSet<u32>,
}

impl<'m> Search<'_, 'm> {
    fn close(&mut self) {
        loop {
            let before = (self.divergent.len(), self.divergent_calls.len());
            for at in 0..self.functions.len() {
                self.find_blocks(at);
                self.function(at);
            }
            if before == (self.divergent.len(), self.divergent_calls.len()) {
                return;
            }
        }
    }

    /// Finds more divergent blocks of a function, given the divergent values.
    fn find_blocks(&mut self, at: usize) {
        let function = &self.functions[at];
        let values = &self.divergent;
        let branches = function.conditions.iter();
        let branches: Vec<_> =
            branches.map(|id| id.is_some_and(|id| values.contains(&id))).collect();
        let is_called = self.divergent_calls.contains(&function.id);
        let Deciding { direct, is_endless } = &function.deciding;
        let divergent = &mut self.divergent_blocks[at];
        let any_branch = branches.contains(&true);
        let decided = |block: usize, divergent: &[bool]| {
            is_called
                || (any_branch && is_endless[block])
                || direct[block].iter().any(|&by| branches[by] || divergent[by])
        };
        let mut is_changed = true;
        while std::mem::take(&mut is_changed) {
            for block in 0..direct.len() {
                if !divergent[block] && decided(block, divergent) {
                    (divergent[block], is_changed) = (true, true);
                }
            }
        }
    }

    /// Finds more divergent values of a function, and calls of other functions where work-items diverge.
    fn function(&mut self, at: usize) {
        let mut calls = Vec::new();
        let mut values = std::mem::take(&mut self.divergent);
        let (function, divergent) = (&self.functions[at], &self.divergent_blocks[at]);
        for (block, own) in function.blocks.iter().enumerate() {
            let is_divergent = divergent[block];
            // Work-items that come to a block from different branches join other values there. In a loop that
            // some leave before others, they do so, too.
            let mut previous = function.previous[block].iter();
            let joins_divergent = previous.any(|&from| {
                divergent[from] || function.conditions[from].is_some_and(|id| values.contains(&id))
            });
            for ((_, i), operands) in own.body.iter().zip(&function.operands[block]) {
                let Some(op) = i.op() else { continue };
                let combines = needs_all(op) && self.gives_all_the_same(op, i);
                let depends = !combines && operands.iter().any(|id| values.contains(id));
                let is_source = match op {
                    Op::Load => self.is_divergent_load(i),
                    Op::Phi => joins_divergent || is_divergent,
                    Op::ImageRead => reads_changing(self.definitions, i),
                    Op::ExtInst => {
                        let function = extended(self.definitions, i).and_then(Meaning::of_function);
                        function.is_none_or(|meaning| !meaning.is_uniform)
                    }
                    _ if needs_all(op) => !combines,
                    _ => Meaning::of(op).is_none_or(|meaning| !meaning.is_uniform),
                };
                // A value that leaves a loop which some work-items leave before others differs between them.
                let leaves = is_divergent && op != Op::FunctionCall;
                if let Some(result) = i.result()
                    && (depends || is_source || leaves)
                {
                    values.insert(result);
                }
                match op {
                    Op::FunctionCall => {
                        let called = i.called().unwrap_or_default();
                        let parameters = self.parameters.get(&called).into_iter().flatten();
                        for (&parameter, argument) in parameters.zip(i.arguments()) {
                            if values.contains(&argument) {
                                values.insert(parameter);
                            }
                        }
                        if is_divergent {
                            calls.push(called);
                            values.extend(i.result());
                        }
                    }
                    Op::ReturnValue if depends || is_divergent => _ = values.insert(function.id),
                    _ => {}
                }
            }
        }
        self.divergent = values;
        self.divergent_calls.extend(calls);
    }

    /// Returns whether a function of the work-group gives all its work-items the same result: one that combines their
    /// values, over the whole group. Each work-item has its own result of a scan, each sub-group its own of a function
    /// of the sub-group.
    fn gives_all_the_same(&self, op: Op, i: &Instruction<'m>) -> bool {
        let (scope, combines) = match i.view() {
            View::GroupVote { scope, .. } => (scope, matches!(op, Op::GroupAll | Op::GroupAny)),
            View::GroupReduce { scope, operation, .. } => {
                (scope, operation == GroupOperation::Reduce as u32)
            }
            _ => return false,
        };
        let scope = self.definitions.get(scope).and_then(|i| i.literal()?.get(0));
        combines && scope == Some(Scope::Workgroup as u32)
    }

    fn is_divergent_load(&self, i: &Instruction<'m>) -> bool {
        let Some(pointer) = i.pointer() else { return true };
        if let Some(&built_in) = self.built_ins.get(&pointer) {
            let built_in = BuiltIn::from_u32(built_in);
            return !matches!(
                built_in,
                Some(
                    BuiltIn::WorkgroupId
                        | BuiltIn::WorkgroupSize
                        | BuiltIn::EnqueuedWorkgroupSize
                        | BuiltIn::NumWorkgroups
                        | BuiltIn::GlobalSize
                        | BuiltIn::GlobalOffset
                        | BuiltIn::WorkDim
                )
            );
        }
        // Constant memory is the same for all work-items: launches do not write what they are given as constant.
        let class = self.definitions.type_of(pointer).and_then(|ty| ty.storage_class());
        class != Some(StorageClass::UniformConstant as u32)
    }

    fn found(&self) -> BTreeSet<Location> {
        let mut found = BTreeSet::new();
        for (function, divergent) in self.functions.iter().zip(&self.divergent_blocks) {
            for (at, block) in function.blocks.iter().enumerate() {
                if divergent[at] {
                    let own = block.body.iter().filter(|(_, i)| i.op().is_some_and(needs_all));
                    found.extend(own.map(|(location, _)| *location));
                }
            }
        }
        found
    }
}
