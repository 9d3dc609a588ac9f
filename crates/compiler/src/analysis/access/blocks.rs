//! Basic blocks of a function: the order of their evaluation, and the blocks that every run passes.

use std::collections::{HashMap, HashSet};

use kiln_spirv::edit::{
    Class, Definitions, Function, Instruction, Location, Section, View, located, operand_ids,
};
use kiln_spirv::{Dominators, Error, Module, reverse_postorder};
use rspirv::spirv::Op;

/// Maximum number of blocks in a function. A kernel with more blocks is not worth fusing.
const MAX_BLOCKS: usize = 1024;

/// Returns the error for a function that has no [`Blocks`]. `subject` names the function.
pub(super) fn no_blocks_error(function: Option<&Function>, subject: &str) -> Error {
    let count = function
        .map_or(0, |function| function.body.iter().filter(|i| i.op() == Some(Op::Label)).count());
    if count > MAX_BLOCKS {
        return Error::unsupported(format!(
            "{subject} has {count} basic blocks; a function with more than {MAX_BLOCKS} is too large to determine which \
             bytes it accesses"
        ));
    }
    Error::unsupported(format!("the control flow of {subject} cannot be analyzed"))
}

pub(super) struct Blocks<'m> {
    pub(super) parameters: Vec<u32>,
    pub(super) all: Vec<Block<'m>>,
    /// Indices of the reachable blocks in evaluation order: each block but the first comes after one that
    /// leads to it, and loops are entered at their head.
    pub(super) order: Vec<usize>,
    labels: HashMap<u32, usize>,
}

pub(super) struct Block<'m> {
    pub(super) label: u32,
    pub(super) body: Vec<(Location, Instruction<'m>)>,
    /// Indices of the blocks that its last instruction may branch to.
    pub(super) next: Vec<usize>,
    pub(super) previous: Vec<usize>,
}

impl<'m> Blocks<'m> {
    /// Collects the blocks of the function with the given index. Returns `None` if the function has no
    /// body, or one that cannot be followed.
    pub(super) fn of(
        module: &'m Module,
        definitions: &Definitions<'m>,
        function: usize,
    ) -> Option<Self> {
        let body = &module.functions.get(function)?.body;
        let stream = (Section::COUNT + function) as u32;
        let (mut parameters, mut all) = (Vec::new(), Vec::<Block<'m>>::new());
        let mut is_open = false;
        for (location, instruction) in located((stream, body)) {
            match instruction.op()? {
                Op::FunctionParameter => parameters.push(instruction.result()?),
                // The block before has to end with a branch.
                Op::Label if is_open => return None,
                Op::Label => {
                    let label = instruction.result()?;
                    let (next, previous) = (Vec::new(), Vec::new());
                    all.push(Block { label, body: Vec::new(), next, previous });
                    is_open = true;
                }
                _ if instruction.class().is_some_and(Class::is_frame) => {}
                _ => {
                    if !is_open {
                        return None;
                    }
                    all.last_mut()?.body.push((location, instruction));
                    is_open = !instruction.class().is_some_and(Class::is_terminator);
                }
            }
        }
        if all.is_empty() || all.len() > MAX_BLOCKS || is_open {
            return None;
        }
        let labels: HashMap<_, _> = all.iter().enumerate().map(|(at, b)| (b.label, at)).collect();
        for at in 0..all.len() {
            let (_, last) = *all[at].body.last()?;
            let (mut next, mut count) = (Vec::<usize>::new(), 0);
            operand_ids(&last, definitions, |id| {
                count += 1;
                next.extend(labels.get(&id));
            })
            .ok()?;
            let has_all = match last.op()? {
                Op::Branch => next.len() == count,
                // The first operand is the condition or the selector.
                Op::BranchConditional | Op::Switch => next.len() + 1 == count,
                _ => true,
            };
            if !has_all {
                return None;
            }
            next.dedup();
            for &target in &next {
                all[target].previous.push(at);
            }
            all[at].next = next;
        }
        let order = reverse_postorder(all.len(), |at| &all[at].next);
        Some(Self { parameters, all, order, labels })
    }

    pub(super) fn index(&self, label: u32) -> Option<usize> {
        self.labels.get(&label).copied()
    }

    /// Returns whether a block may run more than once.
    pub(super) fn is_in_loop(&self, at: usize) -> bool {
        let (mut seen, mut found) = (vec![false; self.all.len()], vec![at]);
        while let Some(from) = found.pop() {
            for &next in &self.all[from].next {
                if !std::mem::replace(&mut seen[next], true) {
                    found.push(next);
                }
            }
        }
        seen[at]
    }

    /// Returns the estimated number of instructions that a call runs.
    pub(super) fn weight(&self, definitions: &Definitions<'_>) -> u64 {
        let mut sum = 0_u64;
        for (at, block) in self.all.iter().enumerate() {
            let weights = block.body.iter().map(|(_, i)| weight(i, definitions));
            let own = weights.fold(0, u64::saturating_add);
            let depth = self.heads().filter(|&head| self.is_in_loop_of(at, head)).count() as u32;
            sum = sum.saturating_add(own.saturating_mul(ITERATIONS.saturating_pow(depth.min(4))));
        }
        sum
    }

    /// Returns the blocks at which loops begin: a block that comes later in the order leads back to them.
    fn heads(&self) -> impl Iterator<Item = usize> + '_ {
        let position = |at: usize| self.order.iter().position(|&known| known == at);
        (0..self.all.len()).filter(move |&at| {
            let own = position(at);
            own.is_some() && self.all[at].previous.iter().any(|&from| position(from) >= own)
        })
    }

    /// Returns whether a block belongs to the loop that begins at `head`: the head leads to it, and it leads
    /// back to the head without leaving through a block that comes before the head.
    fn is_in_loop_of(&self, at: usize, head: usize) -> bool {
        let position = |at: usize| self.order.iter().position(|&known| known == at);
        let first = position(head);
        let (mut seen, mut found) = (vec![false; self.all.len()], vec![at]);
        while let Some(from) = found.pop() {
            for &next in &self.all[from].next {
                if next == head && position(at) >= first {
                    return true;
                }
                if position(next) > first && !std::mem::replace(&mut seen[next], true) {
                    found.push(next);
                }
            }
        }
        false
    }

    /// Returns, for each block, whether it ends the function. `OpUnreachable` does not count as an end.
    pub(super) fn returns(&self) -> Vec<bool> {
        let lasts = self.all.iter().map(|block| block.body.last());
        lasts.map(|last| last.is_some_and(|(_, last)| returns(last))).collect()
    }

    /// Returns the block that immediately dominates each block; `None` for the first block and for blocks
    /// that are not reachable.
    pub(super) fn parents(&self) -> Vec<Option<usize>> {
        if self.all.len() == 1 {
            return vec![None];
        }
        let dominators = self.dominators();
        (0..self.all.len()).map(|at| dominators.parent(at)).collect()
    }

    /// Returns the dominators of the blocks.
    pub(super) fn dominators(&self) -> Dominators {
        let blocks = self.all.iter().enumerate();
        let edges = blocks.flat_map(|(at, block)| block.next.iter().map(move |&next| (at, next)));
        Dominators::of(self.all.len(), edges, 0)
    }

    /// Returns, for each block, whether every run that ends passes it. Only edges for which `is_live`
    /// returns true are taken.
    pub(super) fn certain(&self, is_live: impl Fn(usize, usize) -> bool) -> Vec<bool> {
        // A common exit node follows all blocks that return. No run can bypass the exit's dominators.
        let end = self.all.len();
        let mut edges = Vec::new();
        for (at, (block, returns)) in self.all.iter().zip(self.returns()).enumerate() {
            let next = block.next.iter().copied().filter(|&next| is_live(at, next));
            edges.extend(next.chain(returns.then_some(end)).map(|next| (at, next)));
        }
        let dominators = Dominators::of(end + 1, edges, 0);
        let Some(passed) = dominators.all(end) else { return vec![true; end] };
        let passed: HashSet<_> = passed.collect();
        (0..end).map(|at| passed.contains(&at)).collect()
    }
}

/// Number of iterations that a loop is estimated to have.
const ITERATIONS: u64 = 8;

/// Returns the number of simple instructions that take as long as an instruction.
fn weight(i: &Instruction<'_>, definitions: &Definitions<'_>) -> u64 {
    let ty = i.result_type().and_then(|ty| definitions.get(ty));
    let components = ty.and_then(|ty| ty.vector()).map_or(1, |(_, count)| u64::from(count));
    match i.op() {
        // Functions of the library, such as `exp`, take some tens of instructions.
        Some(Op::ExtInst) if !is_simple(i) => components.saturating_mul(16),
        Some(Op::FDiv) => components.saturating_mul(4),
        _ => 1,
    }
}

/// Returns whether a function of OpenCL's library is about as fast as an addition.
fn is_simple(i: &Instruction<'_>) -> bool {
    use rspirv::spirv::OpenclStd100Op as Extended;
    matches!(
        i.extended().and_then(|(_, function)| Extended::from_u32(function)),
        Some(
            Extended::fma
                | Extended::mad
                | Extended::fabs
                | Extended::fmin
                | Extended::fmax
                | Extended::fclamp
                | Extended::s_clamp
                | Extended::u_clamp
                | Extended::s_min
                | Extended::s_max
                | Extended::u_min
                | Extended::u_max
                | Extended::s_abs
                | Extended::vloadn
                | Extended::vstoren
        )
    )
}

fn returns(instruction: &Instruction<'_>) -> bool {
    instruction.class() != Some(Class::Branch) && instruction.op() != Some(Op::Unreachable)
}

/// Returns the function that `function` forwards to: `function` calls it with its own parameters in
/// order, and does nothing else. Returns `None` if there is no such function with a body in the module, or if its
/// parameters have other types than those of `function`, whose arguments are given by launches.
pub(super) fn forwarded(module: &Module, function: u32) -> Option<u32> {
    let forwarding = module.functions.iter().find(|known| known.id == function)?;
    let (mut parameters, mut called) = (Vec::new(), None);
    for instruction in forwarding.body.iter() {
        match instruction.op()? {
            Op::FunctionParameter => parameters.push(instruction.result()?),
            Op::FunctionCall if called.is_none() => {
                let is_same = instruction.arguments().eq(parameters.iter().copied());
                called = instruction.called().filter(|_| is_same);
                called?;
            }
            Op::Label | Op::Return => {}
            _ if instruction.class().is_some_and(Class::is_frame) => {}
            _ => return None,
        }
    }
    let called = called?;
    let called = module.functions.iter().find(|known| known.id == called)?;
    let is_same = parameter_types(called).eq(parameter_types(forwarding));
    (is_same && !called.is_declaration()).then_some(called.id)
}

fn parameter_types(function: &Function) -> impl Iterator<Item = Option<u32>> {
    let parameters = function.body.iter().filter(|i| i.op() == Some(Op::FunctionParameter));
    parameters.map(|i| i.result_type())
}

/// Returns the variables whose address is used only for loads and a single store. Lifetime markers do not
/// count.
pub(super) fn spilled(blocks: &Blocks<'_>, definitions: &Definitions<'_>) -> HashSet<u32> {
    let instructions = || blocks.all.iter().flat_map(|block| &block.body).map(|(_, i)| i);
    let mut stores: HashMap<u32, usize> = HashMap::new();
    for variable in instructions().filter(|i| i.op() == Some(Op::Variable)) {
        if let Some(id) = variable.result() {
            let is_set = matches!(variable.view(), View::Variable { initial: Some(_), .. });
            stores.insert(id, is_set.into());
        }
    }
    let mut escaped = HashSet::new();
    // Translators cast a variable's address for the instructions that mark its lifetime.
    let casts = instructions().filter(|i| i.op() == Some(Op::Bitcast));
    let casts = casts.filter_map(|i| Some((i.result()?, i.operand()?)));
    let lifetime_casts: HashMap<u32, u32> =
        casts.filter(|(_, variable)| stores.contains_key(variable)).collect();
    for i in instructions() {
        let used = operand_ids(i, definitions, |id| {
            let variable = lifetime_casts.get(&id).copied().unwrap_or(id);
            let Some(count) = stores.get_mut(&variable) else { return };
            match i.view() {
                View::Load { pointer, .. } if pointer == id && variable == id => {}
                View::Store { value, .. } if value != id && variable == id => *count += 1,
                View::Lifetime { .. } => {}
                View::Unary { .. } if variable == id && i.op() == Some(Op::Bitcast) => {}
                _ => _ = escaped.insert(variable),
            }
        });
        if used.is_err() {
            return HashSet::new();
        }
    }
    let once = stores.into_iter().filter(|&(id, count)| count == 1 && !escaped.contains(&id));
    once.map(|(id, _)| id).collect()
}
