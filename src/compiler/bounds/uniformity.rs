//! Divergence of the work-items of a work-group: which of them reach an instruction.
//!
//! A value is uniform if all work-items of a work-group have the same. It is divergent if it depends on a
//! work-item's id or on memory, or if it is joined where work-items come from different branches. A block is
//! divergent if a divergent branch decides whether it runs.

use std::collections::{BTreeSet, HashMap, HashSet};

use petgraph::algo::dominators::simple_fast;
use petgraph::graph::DiGraph;
use rspirv::spirv::{BuiltIn, Op, StorageClass};

use super::blocks::{Block, blocks};
use super::images::reads_changing;
use super::refusal::is_collective;
use crate::compiler::spirv::edit::{
    Definitions, Instruction, Location, Role, Section, ids, is_atomic, located,
};

/// Returns the instructions that all work-items of a work-group have to reach together, and that are not proven
/// to be reached so.
pub(super) fn divergent_collectives(definitions: &Definitions<'_>) -> BTreeSet<Location> {
    let module = definitions.module();
    let has_collectives = |function: &crate::compiler::spirv::edit::Function| {
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
        functions,
    };
    search.close();
    search.found()
}

/// Returns whether an instruction has to be reached by all work-items of a work-group.
fn needs_all(op: Op) -> bool {
    is_collective(op) && op != Op::MemoryBarrier
}

struct Function<'m> {
    id: u32,
    parameters: Vec<u32>,
    blocks: Vec<Block<'m>>,
    /// For each block, the blocks whose branch decides whether it runs.
    deciding: Vec<BTreeSet<usize>>,
}

impl<'m> Function<'m> {
    fn of(
        definitions: &Definitions<'m>,
        id: u32,
        body: impl Iterator<Item = (Location, Instruction<'m>)>,
    ) -> Self {
        let (parameters, blocks) = blocks(definitions, body);
        let deciding = deciding(&blocks);
        Self { id, parameters, blocks, deciding }
    }
}

/// Returns, for each block, the blocks whose branch decides whether it runs, directly or through others.
fn deciding(blocks: &[Block<'_>]) -> Vec<BTreeSet<usize>> {
    let end = blocks.len();
    let mut graph = DiGraph::<(), ()>::new();
    let nodes: Vec<_> = (0..=end).map(|_| graph.add_node(())).collect();
    for (at, block) in blocks.iter().enumerate() {
        for &next in &block.next {
            graph.add_edge(nodes[next], nodes[at], ());
        }
        if block.next.is_empty() {
            graph.add_edge(nodes[end], nodes[at], ());
        }
    }
    let dominators = simple_fast(&graph, nodes[end]);
    // A block that never ends is decided by every branch.
    let is_endless = |at: usize| dominators.immediate_dominator(nodes[at]).is_none();
    let mut direct = vec![BTreeSet::new(); blocks.len()];
    for (at, block) in blocks.iter().enumerate().filter(|(_, block)| block.next.len() > 1) {
        let stop = dominators.immediate_dominator(nodes[at]);
        for &next in &block.next {
            let mut runner = Some(nodes[next]);
            while let Some(node) = runner.filter(|node| Some(*node) != stop && *node != nodes[end])
            {
                direct[node.index()].insert(at);
                runner = dominators.immediate_dominator(node);
            }
        }
        for other in (0..blocks.len()).filter(|&other| is_endless(other)) {
            direct[other].insert(at);
        }
    }
    loop {
        let before: usize = direct.iter().map(BTreeSet::len).sum();
        for at in 0..direct.len() {
            let more: Vec<_> = direct[at].iter().flat_map(|&by| direct[by].clone()).collect();
            direct[at].extend(more);
        }
        if before == direct.iter().map(BTreeSet::len).sum::<usize>() {
            return direct;
        }
    }
}

struct Search<'a, 'm> {
    definitions: &'a Definitions<'m>,
    built_ins: HashMap<u32, u32>,
    functions: Vec<Function<'m>>,
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
                self.function(at);
            }
            if before == (self.divergent.len(), self.divergent_calls.len()) {
                return;
            }
        }
    }

    /// Returns whether the branch at the end of a block is divergent.
    fn branches(&self, function: &Function<'m>, at: usize) -> bool {
        let last = function.blocks[at].body.iter().rev().map(|(_, i)| i);
        let mut last = last.filter(|i| matches!(i.op(), Some(Op::BranchConditional | Op::Switch)));
        last.next().and_then(|i| i.word(0)).is_some_and(|id| self.divergent.contains(&id))
    }

    /// Returns whether work-items of a work-group may differ in whether they run a block.
    fn is_divergent(&self, function: &Function<'m>, at: usize) -> bool {
        self.divergent_calls.contains(&function.id)
            || function.deciding[at].iter().any(|&by| self.branches(function, by))
    }

    fn function(&mut self, at: usize) {
        let (mut values, mut calls) = (Vec::new(), Vec::new());
        let function = &self.functions[at];
        for (block, own) in function.blocks.iter().enumerate() {
            let is_divergent = self.is_divergent(function, block);
            // Work-items that come to a block from different branches join other values there. In a loop that
            // some leave before others, they do so, too.
            let joins_divergent = function.blocks.iter().enumerate().any(|(from, other)| {
                other.next.contains(&block)
                    && (self.is_divergent(function, from) || self.branches(function, from))
            });
            for (_, i) in &own.body {
                let Some(op) = i.op() else { continue };
                let mut operands = Vec::new();
                _ = ids(i, self.definitions, |word, role| {
                    if role == Role::Operand {
                        operands.extend(i.word(word));
                    }
                });
                let depends = operands.iter().any(|id| self.divergent.contains(id));
                let is_source = match op {
                    Op::Load => self.is_divergent_load(i),
                    Op::Phi => joins_divergent || is_divergent,
                    _ if is_atomic(op) => true,
                    Op::Undef => true,
                    Op::ImageRead => reads_changing(self.definitions, i),
                    Op::ExtInst => self.has_pointer(i),
                    _ => false,
                };
                // A value that leaves a loop which some work-items leave before others differs between them.
                let leaves = is_divergent && op != Op::FunctionCall;
                if let Some(result) = i.result()
                    && (depends || is_source || leaves)
                {
                    values.push(result);
                }
                match op {
                    Op::FunctionCall => {
                        let called = i.word(2).unwrap_or_default();
                        let parameters = self.parameters.get(&called).into_iter().flatten();
                        for (&parameter, argument) in parameters.zip(i.words_from(3)) {
                            if self.divergent.contains(&argument) {
                                values.push(parameter);
                            }
                        }
                        if is_divergent {
                            calls.push(called);
                            values.extend(i.result());
                        }
                    }
                    Op::ReturnValue if depends || is_divergent => values.push(function.id),
                    _ => {}
                }
            }
        }
        self.divergent.extend(values);
        self.divergent_calls.extend(calls);
    }

    /// Returns whether a function is passed a pointer, as functions that load are, such as `vload4`.
    fn has_pointer(&self, i: &Instruction<'m>) -> bool {
        i.words_from(4).any(|id| {
            let ty = self.definitions.type_of(id);
            ty.is_some_and(|ty| ty.op() == Some(Op::TypePointer))
        })
    }

    fn is_divergent_load(&self, i: &Instruction<'m>) -> bool {
        let Some(pointer) = i.word(2) else { return true };
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
        // Constant memory is the same for all work-items.
        let class = self.definitions.type_of(pointer).and_then(|ty| ty.word(1));
        class != Some(StorageClass::UniformConstant as u32)
    }

    fn found(&self) -> BTreeSet<Location> {
        let mut found = BTreeSet::new();
        for function in &self.functions {
            for (at, block) in function.blocks.iter().enumerate() {
                if self.is_divergent(function, at) {
                    let own = block.body.iter().filter(|(_, i)| i.op().is_some_and(needs_all));
                    found.extend(own.map(|(location, _)| *location));
                }
            }
        }
        found
    }
}
