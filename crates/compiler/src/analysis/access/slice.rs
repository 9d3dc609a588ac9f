//! Scalars that determine which addresses a kernel accesses and how often its loops run, not only whether
//! its code runs.

use std::collections::{BTreeSet, HashMap, HashSet};

use kiln_spirv::edit::{Class, Definitions, Instruction, View, operand_ids};
use rspirv::spirv::Op;

use super::blocks::Blocks;
use crate::analysis::vector_access::VectorAccess;

/// Returns the indices of a function's parameters from which addresses or the bounds of loops are
/// calculated, in the function and in the functions that it calls.
pub(crate) fn controlling_parameters(
    definitions: &Definitions<'_>,
    function: u32,
) -> BTreeSet<usize> {
    parameters_in(Slice::default(), definitions, function)
}

/// Returns the indices of a function's parameters on which addresses, branches, or whether divisions and shifts
/// are defined depend, in the function and in the functions that it calls.
pub(crate) fn deciding_parameters(definitions: &Definitions<'_>, function: u32) -> BTreeSet<usize> {
    parameters_in(Slice { has_decisions: true, ..Slice::default() }, definitions, function)
}

/// Returns the indices of the function's parameters in a slice.
fn parameters_in(
    mut slice: Slice,
    definitions: &Definitions<'_>,
    function: u32,
) -> BTreeSet<usize> {
    let module = definitions.module();
    let functions: HashMap<_, _> =
        module.functions.iter().enumerate().map(|(at, known)| (known.id, at)).collect();
    let (mut seen, mut pending) = (HashSet::from([function]), vec![function]);
    let mut parameters = Vec::new();
    while let Some(id) = pending.pop() {
        let Some(&at) = functions.get(&id) else { continue };
        let Some(blocks) = Blocks::of(module, definitions, at) else { continue };
        for block in &blocks.all {
            let called = block.body.iter().filter(|(_, i)| i.op() == Some(Op::FunctionCall));
            pending.extend(called.filter_map(|(_, i)| i.called()).filter(|&id| seen.insert(id)));
        }
        slice.add(id, &blocks, definitions);
        if id == function {
            parameters.clone_from(&blocks.parameters);
        }
    }
    slice.close(definitions);
    let parameters = parameters.iter().enumerate().filter(|(_, id)| slice.needed.contains(id));
    parameters.map(|(at, _)| at).collect()
}

/// Values from which addresses or the bounds of loops are calculated (a backward slice).
#[derive(Default)]
struct Slice {
    /// Whether all branches count, and operations that are not defined for all operands.
    has_decisions: bool,
    needed: HashSet<u32>,
    /// Values that are needed, but not followed yet.
    pending: Vec<u32>,
    /// Values stored to each variable.
    stored: HashMap<u32, Vec<u32>>,
    /// Arguments passed to each parameter of a called function.
    passed: HashMap<u32, Vec<u32>>,
    /// Parameters of each function, by the function's id.
    parameters: HashMap<u32, Vec<u32>>,
    calls: Vec<(u32, Vec<u32>)>,
    returned: HashMap<u32, Vec<u32>>,
}

impl Slice {
    /// Adds a function: the values needed there, and its stores, calls and results.
    fn add(&mut self, function: u32, blocks: &Blocks<'_>, definitions: &Definitions<'_>) {
        self.parameters.insert(function, blocks.parameters.clone());
        for (at, block) in blocks.all.iter().enumerate() {
            for (_, i) in &block.body {
                let roots: Vec<u32> = match i.view() {
                    View::Chain { .. } | View::PtrChain { .. } => {
                        let indexes = i.chain().map(|(_, indexes)| indexes);
                        indexes.into_iter().flatten().collect()
                    }
                    View::CopyMemorySized { size, .. } => vec![size],
                    View::ImageRead { coordinate, .. }
                    | View::ImageSample { coordinate, .. }
                    | View::ImageWrite { coordinate, .. } => vec![coordinate],
                    View::BranchIf { condition: value, .. }
                    | View::Switch { selector: value, .. }
                        if self.has_decisions || blocks.is_in_loop(at) =>
                    {
                        vec![value]
                    }
                    View::Binary { left, right } if self.has_decisions && is_partial(i) => {
                        vec![left, right]
                    }
                    View::ExtractDynamic { vector, index } if self.has_decisions => {
                        vec![vector, index]
                    }
                    View::InsertDynamic { vector, part, index } if self.has_decisions => {
                        vec![vector, part, index]
                    }
                    View::ExtInst { .. } => {
                        let vector = VectorAccess::of(definitions, i);
                        vector.map(|vector| vector.offset).into_iter().collect()
                    }
                    View::Store { pointer, value, .. } => {
                        self.stored.entry(pointer).or_default().push(value);
                        Vec::new()
                    }
                    View::Call { function, arguments } => {
                        self.calls.push((function, arguments.iter().collect()));
                        Vec::new()
                    }
                    View::Return { value } => {
                        self.returned.entry(function).or_default().push(value);
                        Vec::new()
                    }
                    _ => Vec::new(),
                };
                self.pending.extend(roots);
            }
        }
    }

    /// Follows needed values to the values that they are calculated from.
    fn close(&mut self, definitions: &Definitions<'_>) {
        for (called, arguments) in std::mem::take(&mut self.calls) {
            let parameters = self.parameters.get(&called).into_iter().flatten();
            for (&parameter, argument) in parameters.zip(arguments) {
                self.passed.entry(parameter).or_default().push(argument);
            }
        }
        while let Some(id) = self.pending.pop() {
            if !self.needed.insert(id) {
                continue;
            }
            self.pending.extend(self.passed.get(&id).into_iter().flatten());
            self.pending.extend(self.stored.get(&id).into_iter().flatten());
            let Some(i) = definitions.get(id) else { continue };
            if i.op() == Some(Op::FunctionCall) {
                let called = i.called().and_then(|called| self.returned.get(&called));
                self.pending.extend(called.into_iter().flatten());
            }
            // An analysed kernel has no instruction that cannot be followed.
            _ = operand_ids(&i, definitions, |id| self.pending.push(id));
        }
    }
}

/// Returns whether an operation is not defined for all operands.
fn is_partial(i: &Instruction<'_>) -> bool {
    matches!(i.class(), Some(Class::Division | Class::Shift))
}
