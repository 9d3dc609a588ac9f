//! Types that refer to one another in a cycle, such as a struct with a pointer to its own kind.

use std::collections::HashMap;

use petgraph::algo::kosaraju_scc;
use petgraph::graph::DiGraph;
use rspirv::spirv::Op;

use super::super::grammar::Role;
use super::super::index::located;
use super::super::intern::interned;
use super::super::module::Section;
use super::super::words::Instruction;
use super::Source;
use crate::error::Result;
use crate::grammar;

/// Calls `f` with each type or constant of a module, after those that it refers to. Those that refer to one
/// another are passed in one call.
pub(super) fn each_group(
    source: &Source<'_>,
    mut f: impl FnMut(&[Instruction<'_>]) -> Result<()>,
) -> Result<()> {
    let globals = source.module.section(Section::Globals).iter();
    let mut globals = globals.filter(|instruction| interned(instruction).is_some());
    if !refers_forwards(source)? {
        return globals.try_for_each(|instruction| f(&[instruction]));
    }
    let instructions: Vec<_> = globals.collect();
    let positions = instructions.iter().zip(0_u32..).filter_map(|(i, at)| Some((i.result()?, at)));
    let positions: HashMap<_, _> = positions.collect();
    let mut graph = DiGraph::<(), ()>::new();
    instructions.iter().for_each(|_| _ = graph.add_node(()));
    for (instruction, at) in instructions.iter().zip(0_u32..) {
        grammar::ids(instruction, &source.definitions, |operand, role| {
            let used = instruction.word(operand).and_then(|id| positions.get(&id));
            if let Some(&used) = used.filter(|_| role != Role::Result) {
                graph.add_edge(at.into(), used.into(), ());
            }
        })?;
    }
    // `kosaraju_scc` returns each component after those that its edges lead to.
    for mut nodes in kosaraju_scc(&graph) {
        nodes.sort_unstable();
        let group: Vec<_> = nodes.into_iter().map(|node| instructions[node.index()]).collect();
        f(&group)?;
    }
    Ok(())
}

/// Returns whether a type or constant refers to one that is declared later.
fn refers_forwards(source: &Source<'_>) -> Result<bool> {
    let globals = source.module.section(Section::Globals);
    let mut found = false;
    for (location, instruction) in located((Section::Globals as u32, globals)) {
        if interned(&instruction).is_some() {
            grammar::ids(&instruction, &source.definitions, |operand, role| {
                let id = instruction.word(operand).unwrap_or_default();
                found |= role != Role::Result && source.definitions.is_global_from(id, location);
            })?;
        }
    }
    Ok(found)
}

/// Returns the length of an array type as two words, because it is a constant of 32 or of 64 bits, depending
/// on the compiler. Returns `None` for other types, and for a length that is unknown before specialization.
pub(super) fn array_length(array: &Instruction<'_>, source: &Source<'_>) -> Option<[u32; 2]> {
    if array.op() != Some(Op::TypeArray) {
        return None;
    }
    let length = source.definitions.get(array.word(2)?)?;
    let is_constant = length.op() == Some(Op::Constant);
    is_constant.then_some([length.word(2)?, length.word(3).unwrap_or_default()])
}

/// Type in a group of types that refer to one another.
pub(super) struct Member<'t> {
    pub(super) id: u32,
    pub(super) opcode: u16,
    pub(super) operands: Vec<Operand>,
    pub(super) traits: &'t [u32],
}

#[derive(Clone, Copy)]
pub(super) enum Operand {
    /// Id of a member, in the source.
    Member(u32),
    /// A literal, or an id of the result.
    Other(u32),
}

/// Returns the ids of the members in a canonical order, and words that describe the group. Neither depends
/// on the ids or on where the members are declared: equal groups of several modules have equal descriptions.
///
/// If each member looks like another, the order of declaration decides. Equal groups may then be taken for
/// different ones, but different groups are never taken for equal.
pub(super) fn describe(members: &[Member<'_>]) -> (Vec<u32>, Box<[u32]>) {
    let mut labels: Vec<_> = members.iter().map(|member| words(member, |_| 0)).zip(0..).collect();
    labels.sort_unstable();
    let unique = labels.chunk_by(|one, other| one.0 == other.0).find(|alike| alike.len() == 1);
    let root: usize = unique.unwrap_or(&labels)[0].1;

    // Members are numbered in the order in which they are reached from the root.
    let positions: HashMap<_, _> = members.iter().zip(0..).map(|(m, at)| (m.id, at)).collect();
    let (mut order, mut numbers) = (vec![root], HashMap::from([(root, 0)]));
    let mut description = Vec::new();
    let mut next = 0;
    while let Some(&at) = order.get(next) {
        next += 1;
        description.extend(words(&members[at], |id| {
            let member = positions[&id];
            *numbers.entry(member).or_insert_with(|| {
                order.push(member);
                order.len() as u32 - 1
            })
        }));
    }
    (order.into_iter().map(|at| members[at].id).collect(), description.into())
}

/// Returns words that describe a member. `number` returns the number that stands for another member.
fn words(member: &Member<'_>, mut number: impl FnMut(u32) -> u32) -> Vec<u32> {
    let mut words =
        vec![member.opcode.into(), member.operands.len() as u32, member.traits.len() as u32];
    for &operand in &member.operands {
        words.extend(match operand {
            Operand::Member(id) => [1, number(id)],
            Operand::Other(word) => [0, word],
        });
    }
    words.extend(member.traits);
    words
}
