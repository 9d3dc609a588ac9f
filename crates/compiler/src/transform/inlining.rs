//! Inlining of helpers that are passed buffers or images of several launches into the kernel's function.
//!
//! To replace a buffer by a variable or local memory, each of its accesses is rewritten. For that, the
//! accesses must be in the kernel's function: a pointer to a variable and a pointer to a buffer have
//! different types, and a helper may be called with both. So each call that passes such a buffer on is
//! replaced by the body of the called function, even if its author forbids inlining. All other calls stay.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use kiln_spirv::edit::Context as _;
use kiln_spirv::edit::{
    Class, Definitions, ExtendedSet, Function, Instruction, Role, Section, Stream, View, located,
};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{Op, StorageClass};

use crate::analysis::declaration::by_value;
use crate::analysis::pointer_uses::is_address;

/// Maximum number of words of a function in which calls are replaced.
const MAX_WORDS: usize = 1 << 16;

/// Maximum depth of nested calls that are replaced.
const MAX_DEPTH: usize = 16;

/// Maximum number of instructions through which an address is traced back to its origin.
const MAX_STEPS: usize = 64;

/// Inlines the calls in a kernel's function that pass on a pointer which may point to the buffer of one of
/// `parameters` (indexes). Such calls in the inlined code are inlined as well. Functions for which `is_fixed`
/// returns true are not inlined.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if an instruction is unknown.
pub(crate) fn inline_helpers(
    module: &mut Module,
    function: u32,
    parameters: &BTreeSet<usize>,
    is_fixed: impl Fn(&Definitions<'_>, u32) -> bool,
) -> Result<()> {
    let is_call = |i: Instruction<'_>| i.op() == Some(Op::FunctionCall);
    for _ in 0..MAX_DEPTH {
        let found = module.functions.iter().position(|known| known.id == function);
        let Some(at) = found.filter(|&at| module.functions[at].body.iter().any(is_call)) else {
            return Ok(());
        };
        let snapshot = module.clone();
        let definitions = snapshot.definitions();
        let caller = &snapshot.functions[at];
        let calls = Calls { definitions: &definitions, caller, parameters };
        let calls = calls.find(|callee| is_fixed(&definitions, callee));
        let words: usize = calls.values().map(|callee| callee.body.words().len()).sum();
        if calls.is_empty() || caller.body.words().len() + words > MAX_WORDS {
            return Ok(());
        }
        let plan = Plan::of(module, caller, &calls)?;
        Writer { definitions: &definitions, plan: &plan, new: Stream::default() }
            .write(module, at)?;
        plan.decorate(module);
    }
    Ok(())
}

/// Search for the calls to be replaced.
struct Calls<'a, 'm> {
    definitions: &'a Definitions<'m>,
    caller: &'m Function,
    parameters: &'a BTreeSet<usize>,
}

impl<'m> Calls<'_, 'm> {
    /// Returns the called function of each call to be replaced, by the word of the caller's body.
    fn find(&self, is_fixed: impl Fn(u32) -> bool) -> BTreeMap<u32, &'m Function> {
        let functions = &self.definitions.module().functions;
        let functions: HashMap<_, _> = functions.iter().map(|f| (f.id, f)).collect();
        let ids: Vec<_> = parameters_of(self.caller).collect();
        let ids = self.parameters.iter().filter_map(|&at| ids.get(at).copied());
        let ids: HashSet<_> = ids.collect();
        let calls = located((0, &self.caller.body)).filter_map(|(location, i)| {
            let callee = *functions.get(&i.called()?)?;
            let passes_buffer =
                i.arguments().any(|argument| self.may_be_derived_from(&ids, argument));
            let can_be_inlined = parameters_of(callee).count() == i.arguments().count()
                && callee.id != self.caller.id
                && !callee.is_declaration();
            (passes_buffer && can_be_inlined && !is_fixed(callee.id))
                .then_some((location.offset, callee))
        });
        calls.collect()
    }

    /// Returns whether a value may be an image or a pointer that is derived from one of the parameters.
    fn may_be_derived_from(&self, parameters: &HashSet<u32>, value: u32) -> bool {
        let ty = self.definitions.type_of(value);
        let is_image = ty.as_ref().is_some_and(|ty| ty.op() == Some(Op::TypeImage));
        let class = ty.filter(|ty| ty.op() == Some(Op::TypePointer));
        let class = class.and_then(|ty| ty.storage_class());
        let may_be_buffer = [StorageClass::CrossWorkgroup, StorageClass::Generic];
        let is_buffer = class
            .and_then(StorageClass::from_u32)
            .is_some_and(|class| may_be_buffer.contains(&class));
        if !is_buffer && !is_image {
            return false;
        }
        let mut id = value;
        for _ in 0..MAX_STEPS {
            let Some(i) = self.definitions.get(id) else { return true };
            match i.op() {
                Some(Op::FunctionParameter) => return parameters.contains(&id),
                Some(Op::Variable | Op::ConstantNull | Op::Undef) => return false,
                Some(op) if is_address(op) => id = i.derived_from().unwrap_or_default(),
                _ => return true,
            }
        }
        true
    }
}

/// Returns the ids of a function's parameters.
fn parameters_of(function: &Function) -> impl Iterator<Item = u32> {
    let parameters = function.body.iter().filter(|i| i.op() == Some(Op::FunctionParameter));
    parameters.filter_map(|parameter| parameter.result())
}

/// Call to be replaced, with the new ids of the callee's code.
struct Inlined<'m> {
    callee: &'m Function,
    /// Ids in the caller's function, by the ids of the callee.
    ids: HashMap<u32, u32>,
    /// Variables that hold copies of structs passed by value, by the parameter.
    copies: HashMap<u32, u32>,
    /// Label after the call; `None` if the callee is a single block.
    continuation: Option<u32>,
}

/// Ids of the caller's function once the calls are replaced.
struct Plan<'m> {
    /// Calls to be replaced, by the word of the caller's body.
    calls: BTreeMap<u32, Inlined<'m>>,
    /// Values that replace the results of calls, by the result.
    values: HashMap<u32, u32>,
    /// Labels of the last parts of blocks that are split, by the label of the block.
    ends: HashMap<u32, u32>,
}

impl<'m> Plan<'m> {
    fn of(
        module: &mut Module,
        caller: &Function,
        calls: &BTreeMap<u32, &'m Function>,
    ) -> Result<Self> {
        let by_value = by_value(module);
        let mut plan =
            Self { calls: BTreeMap::new(), values: HashMap::new(), ends: HashMap::new() };
        let mut block = 0;
        for (location, i) in located((0, &caller.body)) {
            if i.op() == Some(Op::Label) {
                block = i.result().unwrap_or_default();
            }
            let Some(&callee) = calls.get(&location.offset) else { continue };
            let mut inlined =
                Inlined { callee, ids: HashMap::new(), copies: HashMap::new(), continuation: None };
            for (parameter, argument) in parameters_of(callee).zip(i.arguments()) {
                if by_value.contains(&parameter) {
                    let copy = module.fresh_id()?;
                    inlined.copies.insert(parameter, copy);
                    inlined.ids.insert(parameter, copy);
                } else {
                    inlined.ids.insert(parameter, argument);
                }
            }
            let (mut labels, mut returned) = (0, None);
            for i in callee.body.iter() {
                match i.op() {
                    Some(Op::Function | Op::FunctionParameter) => continue,
                    Some(Op::Label) => labels += 1,
                    _ => {}
                }
                if let View::Return { value } = i.view() {
                    returned = Some(value);
                }
                if let Some(id) = i.result() {
                    inlined.ids.insert(id, module.fresh_id()?);
                }
            }
            if labels > 1 {
                let continuation = module.fresh_id()?;
                inlined.continuation = Some(continuation);
                plan.ends.insert(block, continuation);
            } else if let (Some(result), Some(returned)) = (i.result(), returned) {
                plan.values.insert(result, inlined.ids.get(&returned).copied().unwrap_or(returned));
            }
            plan.calls.insert(location.offset, inlined);
        }
        Ok(plan)
    }

    /// Returns the id that replaces an id of the caller.
    fn value(&self, mut id: u32) -> u32 {
        for _ in 0..=self.values.len() {
            match self.values.get(&id) {
                Some(&value) => id = value,
                None => break,
            }
        }
        id
    }

    /// Gives each copy of an instruction the decorations of the instruction.
    fn decorate(&self, module: &mut Module) {
        let mut new = Stream::default();
        for i in module.section(Section::Annotations).iter() {
            let op = i.op().filter(|_| i.class() == Some(Class::Decoration));
            let (Some(op), Some(target)) = (op, i.target()) else { continue };
            for inlined in self.calls.values() {
                let is_parameter = || parameters_of(inlined.callee).any(|known| known == target);
                if let Some(&copy) = inlined.ids.get(&target).filter(|_| !is_parameter()) {
                    new.push(op, [copy].into_iter().chain(i.words_from(1)));
                }
            }
        }
        module.section_mut(Section::Annotations).append(&new);
    }
}

/// Writer of the caller's new body.
struct Writer<'a, 'm> {
    definitions: &'a Definitions<'m>,
    plan: &'a Plan<'m>,
    new: Stream,
}

impl<'m> Writer<'_, 'm> {
    fn write(mut self, module: &mut Module, at: usize) -> Result<()> {
        let caller = &self.definitions.module().functions[at];
        // Variables come first in a function.
        let (mut declaration, mut variables) = (None, Stream::default());
        let mut is_split = false;
        for (location, i) in located((0, &caller.body)) {
            match i.op() {
                Some(Op::Label) => {
                    is_split = false;
                    self.new.push_instruction(&i);
                    if declaration.is_none() {
                        declaration = Some(std::mem::take(&mut self.new));
                    }
                    continue;
                }
                // `OpLoopMerge` stands at the end of a loop's first block and only advises. Once that block
                // is split, the instruction is dropped.
                Some(Op::LoopMerge) if is_split => continue,
                _ => {}
            }
            if let Some(inlined) = self.plan.calls.get(&location.offset) {
                self.call(module, &i, inlined, &mut variables)?;
                is_split |= inlined.continuation.is_some();
                continue;
            }
            let plan = self.plan;
            let is_phi = i.op() == Some(Op::Phi);
            self.new.push_renumbered(&i, self.definitions, |id, role| {
                let id = if role == Role::Result { id } else { plan.value(id) };
                Ok(plan.ends.get(&id).copied().filter(|_| is_phi).unwrap_or(id))
            })?;
        }
        let mut body = declaration.unwrap_or_default();
        body.append(&variables);
        body.append(&self.new);
        module.functions[at].body = body;
        Ok(())
    }

    /// Replaces a call by the body of the called function.
    fn call(
        &mut self,
        module: &mut Module,
        call: &Instruction<'_>,
        inlined: &Inlined<'m>,
        variables: &mut Stream,
    ) -> Result<()> {
        let plan = self.plan;
        let id_of = |id: u32| plan.value(inlined.ids.get(&id).copied().unwrap_or(id));
        for (parameter, argument) in parameters_of(inlined.callee).zip(call.arguments()) {
            if let Some(&copy) = inlined.copies.get(&parameter) {
                self.copy(module, parameter, (copy, plan.value(argument)), variables)?;
            }
        }
        let (mut block, mut returned, mut is_first) = (0, Vec::new(), true);
        for i in inlined.callee.body.iter() {
            match i.op() {
                _ if i.class().is_some_and(Class::is_frame) => {}
                Some(Op::ExtInst) if self.is_debug_info(&i) => {}
                Some(Op::Label) => {
                    block = id_of(i.result().unwrap_or_default());
                    if inlined.continuation.is_some() {
                        if std::mem::take(&mut is_first) {
                            self.new.push(Op::Branch, [block]);
                        }
                        self.new.push(Op::Label, [block]);
                    }
                }
                Some(Op::Variable) => {
                    let named = (i.result_type(), i.result(), i.variable());
                    let (Some(ty), Some(id), Some((_, initial))) = named else { continue };
                    let (ty, id) = (id_of(ty), id_of(id));
                    variables.push(Op::Variable, [ty, id, StorageClass::Function as u32]);
                    if let Some(initial) = initial {
                        // The variable gets its initial value anew in each call.
                        self.new.push(Op::Store, [id, id_of(initial)]);
                    }
                }
                Some(Op::Return | Op::ReturnValue) => {
                    if let View::Return { value } = i.view() {
                        returned.push([id_of(value), block]);
                    }
                    self.branch_to(inlined.continuation);
                }
                _ => self.new.push_renumbered(&i, self.definitions, |id, _| Ok(id_of(id)))?,
            }
        }
        let Some(continuation) = inlined.continuation else { return Ok(()) };
        self.new.push(Op::Label, [continuation]);
        let void =
            |ty: u32| self.definitions.get(ty).is_some_and(|ty| ty.op() == Some(Op::TypeVoid));
        let ty = call.result_type().filter(|&ty| !void(ty));
        if let (Some(ty), Some(result)) = (ty, call.result()) {
            match returned.as_slice() {
                // The callee never returns.
                [] => self.new.push(Op::Undef, [ty, result]),
                pairs => {
                    let words =
                        [ty, result].into_iter().chain(pairs.as_flattened().iter().copied());
                    self.new.push(Op::Phi, words);
                }
            }
        }
        Ok(())
    }

    /// Writes a branch to the code after the call, if the callee has several blocks.
    fn branch_to(&mut self, continuation: Option<u32>) {
        if let Some(continuation) = continuation {
            self.new.push(Op::Branch, [continuation]);
        }
    }

    /// Copies a struct that is passed by value.
    fn copy(
        &mut self,
        module: &mut Module,
        parameter: u32,
        (copy, argument): (u32, u32),
        variables: &mut Stream,
    ) -> Result<()> {
        let ty = self.definitions.type_of(parameter);
        let ty = ty.and_then(|ty| Some((ty.result()?, ty.pointee()?)));
        let (pointer, pointee) = ty.ok_or_else(|| {
            Error::unsupported("a struct parameter that is passed by value has no type")
        })?;
        let value = module.fresh_id()?;
        variables.push(Op::Variable, [pointer, copy, StorageClass::Function as u32]);
        self.new.push(Op::Load, [pointee, value, argument]);
        self.new.push(Op::Store, [copy, value]);
        Ok(())
    }

    fn is_debug_info(&self, i: &Instruction<'_>) -> bool {
        let set = i.extended().map(|(import, _)| self.definitions.extended_set(import));
        matches!(
            set,
            Some(
                ExtendedSet::DebugInfo | ExtendedSet::OpenClDebugInfo100 | ExtendedSet::NonSemantic
            )
        )
    }
}
