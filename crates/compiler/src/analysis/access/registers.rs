//! Variables of functions that become values, as LLVM's pass `mem2reg` does.
//!
//! Code that is not optimised keeps every variable and every parameter in memory. The analysis follows values,
//! not memory that is written in several places. So each variable that is only loaded and stored as a whole is
//! replaced by the values that are stored to it, with phis where these meet. Other variables, such as arrays,
//! stay.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use kiln_spirv::edit::Context as _;
use kiln_spirv::edit::{
    Definitions, ExtendedSet, Instruction, Interner, Role, Section, Stream, View, operand_ids,
    string_words,
};
use kiln_spirv::{Dominators, Module, Result};
use rspirv::spirv::{Decoration, Op, StorageClass};

use super::blocks::Blocks;

/// Maximum number of variables times blocks in a function. Larger functions stay as they are.
const MAX_STATES: usize = 1 << 18;

/// Replaces the variables of all functions that can become values. Functions for which `is_fixed` returns true
/// stay as they are.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if an instruction is unknown.
pub(crate) fn keep_in_registers(
    module: &mut Module,
    is_fixed: impl Fn(&Definitions<'_>, u32) -> bool,
) -> Result<()> {
    let is_variable = |i: Instruction<'_>| i.op() == Some(Op::Variable);
    if !module.functions.iter().any(|function| function.body.iter().any(is_variable)) {
        return Ok(());
    }
    let snapshot = module.clone();
    let definitions = snapshot.definitions();
    let mut writer = Writer::new(module, &definitions);
    for (at, function) in snapshot.functions.iter().enumerate() {
        let Some(blocks) = Blocks::of(&snapshot, &definitions, at) else { continue };
        let variables = variables(&blocks, &definitions);
        let is_small = variables.len() * blocks.all.len() <= MAX_STATES;
        // A function's first block has no predecessors in a valid module.
        let is_followed = is_small && blocks.all[0].previous.is_empty();
        if variables.is_empty() || !is_followed || is_fixed(&definitions, function.id) {
            continue;
        }
        let values = Values::of(&mut writer, &blocks, &variables)?;
        writer.write(at, &values, &variables)?;
    }
    writer.finish();
    Ok(())
}

/// Variable that becomes values.
struct Variable {
    /// Type of its values.
    ty: u32,
    /// Value at the start of the function.
    initial: Option<u32>,
    /// Ids of the casts of its address that mark its lifetime.
    casts: Vec<u32>,
}

/// Returns the variables whose addresses are used only to load and store whole values, by their ids.
fn variables(blocks: &Blocks<'_>, definitions: &Definitions<'_>) -> BTreeMap<u32, Variable> {
    let module = definitions.module();
    let annotations = module.section(Section::Annotations).iter();
    let volatile: HashSet<_> =
        annotations.filter_map(|i| i.decoration(Decoration::Volatile)).map(|(id, _)| id).collect();
    let instructions = || blocks.all.iter().flat_map(|block| &block.body).map(|(_, i)| i);
    let mut found = BTreeMap::new();
    for i in instructions().filter(|i| i.op() == Some(Op::Variable)) {
        let pointer = i.result_type().and_then(|ty| definitions.get(ty));
        let ty = pointer.and_then(|ty| ty.pointee());
        if let (Some(id), Some(ty), View::Variable { class, initial }) = (i.result(), ty, i.view())
            && class == StorageClass::Function as u32
            && !volatile.contains(&id)
        {
            found.insert(id, Variable { ty, initial, casts: Vec::new() });
        }
    }
    let mut casts = HashMap::new();
    for i in instructions().filter(|i| i.op() == Some(Op::Bitcast)) {
        if let (Some(cast), Some(id)) = (i.result(), i.operand())
            && let Some(variable) = found.get_mut(&id)
        {
            variable.casts.push(cast);
            casts.insert(cast, id);
        }
    }
    let mut escaped = BTreeSet::new();
    for i in instructions() {
        let used = operand_ids(i, definitions, |id| {
            let origin = casts.get(&id).copied().unwrap_or(id);
            let Some(variable) = found.get(&origin) else { return };
            let is_cast = origin != id;
            let is_followed = match i.view() {
                View::Load { pointer, access } => {
                    !is_cast
                        && pointer == id
                        && i.result_type() == Some(variable.ty)
                        && !access.is_volatile()
                }
                View::Store { value, access, .. } => {
                    let stored = definitions.get(value);
                    let ty = stored.and_then(|stored| stored.result_type());
                    !is_cast && value != id && ty == Some(variable.ty) && !access.is_volatile()
                }
                View::Unary { .. } if i.op() == Some(Op::Bitcast) => !is_cast,
                View::Lifetime { .. } => true,
                _ => !is_cast && is_debug_info(definitions, i),
            };
            if !is_followed {
                escaped.insert(origin);
            }
        });
        if used.is_err() {
            return BTreeMap::new();
        }
    }
    found.retain(|id, _| !escaped.contains(id));
    found
}

fn is_debug_info(definitions: &Definitions<'_>, i: &Instruction<'_>) -> bool {
    let set = i.extended().filter(|_| i.op() == Some(Op::ExtInst));
    let set = set.map(|(set, _)| definitions.extended_set(set));
    matches!(
        set,
        Some(ExtendedSet::DebugInfo | ExtendedSet::OpenClDebugInfo100 | ExtendedSet::NonSemantic)
    )
}

/// Phi that joins the values of a variable.
struct Phi {
    variable: u32,
    id: u32,
    /// Value and label for each block that leads to the phi's.
    operands: Vec<[u32; 2]>,
}

/// Values that replace the variables of a function.
struct Values {
    /// Value in place of each load's result.
    loaded: HashMap<u32, u32>,
    /// Phis at the start of each block, by the block's label.
    phis: HashMap<u32, Vec<Phi>>,
}

impl Values {
    /// Places the phis, and finds the value in place of each load.
    fn of(
        writer: &mut Writer<'_, '_>,
        blocks: &Blocks<'_>,
        variables: &BTreeMap<u32, Variable>,
    ) -> Result<Self> {
        let graph = Graph::of(blocks);
        let mut phis: Vec<Vec<Phi>> = blocks.all.iter().map(|_| Vec::new()).collect();
        for (variable, touched) in touched(blocks, variables) {
            for at in graph.joins(blocks, &touched) {
                let id = writer.module.fresh_id()?;
                phis[at].push(Phi { variable, id, operands: Vec::new() });
            }
        }
        let mut loaded = HashMap::new();
        // Values of the variables at the end of each block. Blocks that never run have none.
        let mut ends: Vec<Option<BTreeMap<u32, u32>>> = vec![None; blocks.all.len()];
        let unreached = (0..blocks.all.len()).filter(|at| !blocks.order.contains(at));
        for at in blocks.order.iter().copied().chain(unreached) {
            let mut values = match graph.dominator(at).and_then(|from| ends[from].clone()) {
                Some(values) => values,
                None => initial(variables),
            };
            values.extend(phis[at].iter().map(|phi| (phi.variable, phi.id)));
            for (_, i) in &blocks.all[at].body {
                match i.view() {
                    View::Load { pointer, .. } if variables.contains_key(&pointer) => {
                        let Some((ty, result)) = i.result_type().zip(i.result()) else { continue };
                        let value = match values.get(&pointer) {
                            Some(&value) => value,
                            None => writer.undefined(ty)?,
                        };
                        loaded.insert(result, value);
                    }
                    View::Store { pointer, value, .. } if variables.contains_key(&pointer) => {
                        values.insert(pointer, loaded.get(&value).copied().unwrap_or(value));
                    }
                    _ => {}
                }
            }
            ends[at] = Some(values);
        }
        let mut by_label = HashMap::new();
        for (at, mut own) in phis.into_iter().enumerate().filter(|(_, own)| !own.is_empty()) {
            let previous: BTreeSet<_> = blocks.all[at].previous.iter().copied().collect();
            for phi in &mut own {
                for &from in &previous {
                    let value = ends[from].as_ref().and_then(|end| end.get(&phi.variable));
                    let value = match value {
                        Some(&value) => value,
                        None => writer.undefined(variables[&phi.variable].ty)?,
                    };
                    phi.operands.push([value, blocks.all[from].label]);
                }
            }
            by_label.insert(blocks.all[at].label, own);
        }
        Ok(Self { loaded, phis: by_label })
    }

    /// Returns the value in place of an id.
    fn value(&self, mut id: u32) -> u32 {
        for _ in 0..=self.loaded.len() {
            match self.loaded.get(&id) {
                Some(&value) => id = value,
                None => break,
            }
        }
        id
    }
}

/// Writer of functions without their variables.
struct Writer<'w, 'm> {
    module: &'w mut Module,
    /// Definitions of the module before it was changed.
    definitions: &'w Definitions<'m>,
    interner: Interner,
    /// Undefined values, by their types. A variable that was not stored to has such a value.
    undefined: HashMap<u32, u32>,
    names: HashMap<u32, &'m str>,
    /// Ids that are no longer defined.
    dropped: HashSet<u32>,
}

impl<'w, 'm> Writer<'w, 'm> {
    fn new(module: &'w mut Module, definitions: &'w Definitions<'m>) -> Self {
        let names = definitions.module().section(Section::Names).iter();
        let names = names.filter_map(|i| i.named());
        Self {
            interner: Interner::of(module),
            undefined: HashMap::new(),
            names: names.collect(),
            dropped: HashSet::new(),
            module,
            definitions,
        }
    }

    /// Returns an undefined value of a type.
    fn undefined(&mut self, ty: u32) -> Result<u32> {
        if let Some(&id) = self.undefined.get(&ty) {
            return Ok(id);
        }
        let id = self.interner.constant_id(self.module, Op::Undef, ty, &[])?;
        self.undefined.insert(ty, id);
        Ok(id)
    }

    /// Writes a function with values in place of its variables.
    fn write(
        &mut self,
        function: usize,
        values: &Values,
        variables: &BTreeMap<u32, Variable>,
    ) -> Result<()> {
        let definitions = self.definitions;
        let casts = variables.values().flat_map(|variable| &variable.casts);
        let addresses: HashSet<u32> = variables.keys().chain(casts).copied().collect();
        let uses_address = |i: &Instruction<'_>| {
            let has = |id: u32| addresses.contains(&id);
            match i.view() {
                View::Load { .. } | View::Store { .. } | View::Lifetime { .. } => {
                    i.pointer().is_some_and(has)
                }
                View::Unary { value } => i.op() == Some(Op::Bitcast) && has(value),
                View::Variable { .. } => i.result().is_some_and(has),
                View::ExtInst { .. } => {
                    is_debug_info(definitions, i) && i.extended_operands().any(has)
                }
                _ => false,
            }
        };
        let mut new = Stream::default();
        for i in definitions.module().functions[function].body.iter() {
            if uses_address(&i) {
                continue;
            }
            new.push_renumbered(&i, definitions, |id, role| {
                Ok(if role == Role::Operand { values.value(id) } else { id })
            })?;
            let label = i.result().filter(|_| i.op() == Some(Op::Label));
            for phi in label.and_then(|label| values.phis.get(&label)).into_iter().flatten() {
                let operands = phi.operands.iter();
                let operands = operands.flat_map(|[value, from]| [values.value(*value), *from]);
                let ty = variables[&phi.variable].ty;
                new.push(Op::Phi, [ty, phi.id].into_iter().chain(operands));
                if let Some(name) = self.names.get(&phi.variable) {
                    let name = name.strip_suffix(".addr").unwrap_or(name);
                    let words = [phi.id].into_iter().chain(string_words(name));
                    self.module.section_mut(Section::Names).push(Op::Name, words);
                }
            }
        }
        self.module.functions[function].body = new;
        self.dropped.extend(addresses);
        self.dropped.extend(values.loaded.keys());
        Ok(())
    }

    /// Removes the names and decorations of what is no longer defined.
    fn finish(self) {
        for section in [Section::Names, Section::Annotations] {
            let is_kept =
                |i: &Instruction<'_>| i.target().is_none_or(|id| !self.dropped.contains(&id));
            self.module.section_mut(section).retain(is_kept);
        }
    }
}

/// Blocks that access a variable.
#[derive(Default)]
struct Touched {
    stored: BTreeSet<usize>,
    /// Blocks that load the value that the variable has at the block's start.
    loaded_first: BTreeSet<usize>,
}

/// Returns the blocks that access each variable.
fn touched(blocks: &Blocks<'_>, variables: &BTreeMap<u32, Variable>) -> BTreeMap<u32, Touched> {
    let mut all: BTreeMap<_, _> = variables.keys().map(|&id| (id, Touched::default())).collect();
    for (at, block) in blocks.all.iter().enumerate() {
        for (_, i) in &block.body {
            let (variable, is_store) = match i.view() {
                View::Load { pointer, .. } => (pointer, false),
                View::Store { pointer, .. } => (pointer, true),
                _ => continue,
            };
            let Some(own) = all.get_mut(&variable) else { continue };
            if is_store {
                own.stored.insert(at);
            } else if !own.stored.contains(&at) {
                own.loaded_first.insert(at);
            }
        }
    }
    all
}

/// Returns the values of the variables at the start of the function.
fn initial(variables: &BTreeMap<u32, Variable>) -> BTreeMap<u32, u32> {
    variables.iter().filter_map(|(&id, variable)| Some((id, variable.initial?))).collect()
}

/// Blocks that are reached, with their dominators.
struct Graph {
    dominators: Dominators,
    /// Dominance frontier of each block: the blocks at whose start a value that is stored in the block may meet
    /// another one.
    frontiers: Vec<BTreeSet<usize>>,
}

impl Graph {
    fn of(blocks: &Blocks<'_>) -> Self {
        let frontiers = vec![BTreeSet::new(); blocks.all.len()];
        let mut this = Self { dominators: blocks.dominators(), frontiers };
        for &at in &blocks.order {
            let Some(dominator) = this.dominator(at) else { continue };
            for &from in &blocks.all[at].previous {
                // Only the first block, and a block that is not reached, have no dominator.
                let mut runner = Some(from).filter(|&from| this.dominator(from).is_some());
                while let Some(from) = runner.filter(|&from| from != dominator) {
                    this.frontiers[from].insert(at);
                    runner = this.dominator(from);
                }
            }
        }
        this
    }

    /// Returns the immediate dominator of a block; `None` for the first block, and for one that is not
    /// reached.
    fn dominator(&self, at: usize) -> Option<usize> {
        self.dominators.parent(at)
    }

    /// Returns the blocks at whose start different values of a variable meet, if the variable is loaded later.
    fn joins(&self, blocks: &Blocks<'_>, touched: &Touched) -> BTreeSet<usize> {
        // Blocks at whose start the value is needed.
        let mut live = touched.loaded_first.clone();
        let mut pending: Vec<_> = live.iter().copied().collect();
        while let Some(at) = pending.pop() {
            for &from in &blocks.all[at].previous {
                if !touched.stored.contains(&from) && live.insert(from) {
                    pending.push(from);
                }
            }
        }
        let mut joins = BTreeSet::new();
        let mut pending: Vec<_> = touched.stored.iter().copied().chain([0]).collect();
        while let Some(at) = pending.pop() {
            for &join in &self.frontiers[at] {
                if live.contains(&join) && joins.insert(join) {
                    pending.push(join);
                }
            }
        }
        joins
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rspirv::binary::{Assemble, Disassemble};
    use rspirv::dr::Builder;
    use rspirv::spirv::{
        AddressingModel, Capability, ExecutionModel, FunctionControl, MemoryAccess, MemoryModel,
    };

    use super::*;

    /// Builds a module with the function `k(uint n, uint *out)`. `body` gets the builder, the type `uint`, the
    /// parameter `n`, and a variable of that type.
    fn module(initial: Option<u32>, body: impl FnOnce(&mut Builder, u32, u32, u32)) -> Module {
        let mut b = Builder::new();
        b.set_version(1, 2);
        for capability in [Capability::Kernel, Capability::Addresses, Capability::Linkage] {
            b.capability(capability);
        }
        b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
        let (void, uint) = (b.type_void(), b.type_int(32, 0));
        let global = b.type_pointer(None, StorageClass::CrossWorkgroup, uint);
        let own = b.type_pointer(None, StorageClass::Function, uint);
        let ty = b.type_function(void, [uint, global]);
        let initial = initial.map(|initial| b.constant_bit32(uint, initial));
        let function = b.begin_function(void, None, FunctionControl::NONE, ty).unwrap();
        b.entry_point(ExecutionModel::Kernel, function, "k", []);
        let n = b.function_parameter(uint).unwrap();
        let out = b.function_parameter(global).unwrap();
        b.begin_block(None).unwrap();
        let variable = b.variable(own, None, StorageClass::Function, initial);
        b.name(variable, "count.addr");
        b.decorate(variable, Decoration::Alignment, [rspirv::dr::Operand::LiteralBit32(4)]);
        body(&mut b, uint, n, variable);
        let value = b.load(uint, None, variable, None, []).unwrap();
        b.store(out, value, None, []).unwrap();
        b.ret().unwrap();
        b.end_function().unwrap();
        let words = b.module().assemble();
        Module::parse(words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap()
    }

    /// Returns the text of the module once its variables are values.
    fn text(mut module: Module) -> String {
        keep_in_registers(&mut module, |_, _| false).unwrap();
        rspirv::dr::load_bytes(module.assemble()).unwrap().disassemble()
    }

    /// Counts to `n` in a loop, at whose head the variable is tested.
    fn counting(b: &mut Builder, uint: u32, n: u32, variable: u32) {
        let bool = b.type_bool();
        let [zero, one] = [0, 1].map(|number| b.constant_bit32(uint, number));
        let [head, inside, after] = [(); 3].map(|()| b.id());
        b.store(variable, zero, None, []).unwrap();
        b.branch(head).unwrap();
        b.begin_block(Some(head)).unwrap();
        let count = b.load(uint, None, variable, None, []).unwrap();
        let goes_on = b.u_less_than(bool, None, count, n).unwrap();
        b.branch_conditional(goes_on, inside, after, []).unwrap();
        b.begin_block(Some(inside)).unwrap();
        let count = b.load(uint, None, variable, None, []).unwrap();
        let next = b.i_add(uint, None, count, one).unwrap();
        b.store(variable, next, None, []).unwrap();
        b.branch(head).unwrap();
        b.begin_block(Some(after)).unwrap();
    }

    #[test]
    fn a_loop_counter_becomes_a_phi_with_the_name_of_the_variable() {
        let text = text(module(None, counting));
        assert!(!text.contains("OpVariable") && !text.contains("OpLoad"), "{text}");
        assert_eq!(text.matches("OpStore").count(), 1, "{text}");
        assert_eq!(text.matches("OpPhi").count(), 1, "{text}");
        assert!(!text.contains("OpDecorate"), "{text}");
        let phi = text.lines().find(|line| line.contains("OpPhi")).unwrap();
        let id = phi.split_whitespace().next().unwrap();
        assert!(text.contains(&format!("OpName {id} \"count\"")), "{text}");
        assert!(
            text.lines().any(|line| line.trim_start().starts_with("OpStore") && line.ends_with(id))
        );
    }

    #[test]
    fn a_variable_that_is_stored_on_one_way_keeps_its_initial_value_on_the_other() {
        let one_way = |b: &mut Builder, uint: u32, n: u32, variable: u32| {
            let bool = b.type_bool();
            let seven = b.constant_bit32(uint, 7);
            let [then, after] = [(); 2].map(|()| b.id());
            let is_less = b.u_less_than(bool, None, n, seven).unwrap();
            b.branch_conditional(is_less, then, after, []).unwrap();
            b.begin_block(Some(then)).unwrap();
            b.store(variable, n, None, []).unwrap();
            b.branch(after).unwrap();
            b.begin_block(Some(after)).unwrap();
        };
        let phi = |text: &str| text.lines().find(|line| line.contains("OpPhi")).unwrap().to_owned();
        let defined = text(module(Some(5), one_way));
        assert!(!defined.contains("OpUndef") && !defined.contains("OpVariable"), "{defined}");
        let five = defined.lines().find(|line| line.ends_with("OpConstant  %2  5")).unwrap();
        let five = five.split_whitespace().next().unwrap();
        assert!(phi(&defined).contains(five), "{defined}");
        let undefined = text(module(None, one_way));
        let undef = undefined.lines().find(|line| line.contains("OpUndef")).unwrap();
        let undef = undef.split_whitespace().next().unwrap();
        assert!(phi(&undefined).contains(undef), "{undefined}");
    }

    #[test]
    fn a_variable_whose_address_is_used_otherwise_stays() {
        let volatile = |b: &mut Builder, _: u32, n: u32, variable: u32| {
            b.store(variable, n, Some(MemoryAccess::VOLATILE), []).unwrap();
        };
        let cast = |b: &mut Builder, uint: u32, n: u32, variable: u32| {
            let float = b.type_float(32, None);
            let pointer = b.type_pointer(None, StorageClass::Function, float);
            let cast = b.bitcast(pointer, None, variable).unwrap();
            let bits = b.bitcast(float, None, n).unwrap();
            b.store(cast, bits, None, []).unwrap();
            _ = uint;
        };
        let part = |b: &mut Builder, uint: u32, n: u32, variable: u32| {
            let pointer = b.type_pointer(None, StorageClass::Function, uint);
            let zero = b.constant_bit32(uint, 0);
            let part = b.in_bounds_ptr_access_chain(pointer, None, variable, zero, []).unwrap();
            b.store(part, n, None, []).unwrap();
        };
        for module in [module(None, volatile), module(None, cast), module(None, part)] {
            let before = module.assemble();
            let mut after = module;
            keep_in_registers(&mut after, |_, _| false).unwrap();
            assert_eq!(after.assemble(), before);
        }
    }

    #[test]
    fn code_that_never_runs_is_kept_valid() {
        let unreachable = |b: &mut Builder, uint: u32, n: u32, variable: u32| {
            let [dead, after] = [(); 2].map(|()| b.id());
            b.store(variable, n, None, []).unwrap();
            b.branch(after).unwrap();
            b.begin_block(Some(dead)).unwrap();
            let value = b.load(uint, None, variable, None, []).unwrap();
            b.store(variable, value, None, []).unwrap();
            b.branch(after).unwrap();
            b.begin_block(Some(after)).unwrap();
        };
        let text = text(module(None, unreachable));
        assert!(!text.contains("OpVariable") && !text.contains("OpLoad"), "{text}");
        // Only one of the two blocks that lead to the last one is reached, so that no phi is needed.
        assert_eq!(text.matches("OpPhi").count(), 0, "{text}");
    }

    #[test]
    fn fixed_functions_stay() {
        let module = module(None, counting);
        let before = module.assemble();
        let mut after = module;
        keep_in_registers(&mut after, |_, _| true).unwrap();
        assert_eq!(after.assemble(), before);
    }
}
