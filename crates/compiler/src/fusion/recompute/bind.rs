//! Binds the calls by which functions run earlier stages again. Such a function gets the arguments of the
//! stages that it calls as further parameters, and passes them on.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use kiln_spirv::edit::{Instruction, Interner, Linkage, Section, Stream};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::Op;

use super::redirect::Producer;
use crate::analysis::declaration::Declaration;
use crate::transform::merge::Whole;

/// Parameter of a stage's function, by the numbers of the stage and of the parameter.
pub(super) type StageParameter = (usize, usize);

/// Parameters of the function of a stage, before calls are bound.
pub(super) struct Signature {
    /// Parameters that the function has, by their numbers, in order.
    pub(super) passed: Vec<usize>,
    /// Subset of `passed`: parameters through which the function writes elements, each with the place of the
    /// pointer to the element.
    pub(super) written: BTreeMap<usize, Target>,
    /// Stages that the function runs again.
    pub(super) producers: BTreeSet<usize>,
}

/// Place of the pointer to an element that a function writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The parameter itself is the pointer.
    Own,
    /// The parameter is a buffer. The pointer is one of those parameters that follow all others of the
    /// function.
    Added,
}

/// Binds the calls in all stages' functions. Returns the parameters of earlier stages that each function takes
/// after its own.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if the module is damaged.
pub(super) fn bind(whole: &mut Whole, stages: &[Signature]) -> Result<Vec<Vec<StageParameter>>> {
    let callees = callees(&whole.module, stages.len());
    let mut contexts: Vec<Vec<StageParameter>> = Vec::new();
    for at in 0..stages.len() {
        let context = context(stages, &contexts, at);
        if !context.is_empty() || !stages[at].producers.is_empty() {
            let caller = Caller { stages, contexts: &contexts, context: &context };
            caller.rewrite(whole, at, &callees)?;
        }
        contexts.push(context);
    }
    let module = &mut whole.module;
    module.functions.retain(|function| !callees.contains_key(&function.id));
    let is_known = |i: &Instruction<'_>| i.target().is_none_or(|id| !callees.contains_key(&id));
    for section in [Section::Annotations, Section::Names] {
        module.section_mut(section).retain(is_known);
    }
    Ok(contexts)
}

/// Returns the stage that each declared function stands for, by the function's id.
fn callees(module: &Module, stages: usize) -> HashMap<u32, usize> {
    let names: HashMap<_, _> = (0..stages).map(|stage| (Producer::name(stage), stage)).collect();
    let annotations = module.section(Section::Annotations).iter();
    let imports = annotations.filter_map(|i| {
        let linkage = Linkage::of(&i)?;
        Some((linkage.target, *names.get(linkage.name)?))
    });
    imports.collect()
}

/// Returns the parameters of earlier stages that the function of a stage passes on.
fn context(
    stages: &[Signature],
    contexts: &[Vec<StageParameter>],
    at: usize,
) -> Vec<StageParameter> {
    let mut seen = HashSet::new();
    let mut context = Vec::new();
    for &producer in &stages[at].producers {
        let Signature { passed, written, .. } = &stages[producer];
        let own = passed.iter().filter(|&parameter| written.get(parameter) != Some(&Target::Own));
        let own = own.map(|&parameter| (producer, parameter));
        let all = own.chain(contexts[producer].iter().copied());
        context.extend(all.filter(|parameter| seen.insert(*parameter)));
    }
    context
}

/// Function of a stage whose calls are bound.
struct Caller<'a> {
    stages: &'a [Signature],
    contexts: &'a [Vec<StageParameter>],
    /// Parameters that the function takes after its own.
    context: &'a [StageParameter],
}

impl Caller<'_> {
    fn rewrite(&self, whole: &mut Whole, at: usize, callees: &HashMap<u32, usize>) -> Result<()> {
        let functions = &whole.functions;
        let module = &mut whole.module;
        let types = parameter_types(module, functions, self.stages);
        let position = module.functions.iter().position(|known| known.id == functions[at]);
        let position = position.ok_or_else(|| Error::unsupported("a kernel has no function"))?;
        let body = std::mem::take(&mut module.functions[position].body);
        let mut interner = Interner::of(module);
        let mut declaration = Declaration::of(&body);
        let mut ids = HashMap::new();
        for &parameter in self.context {
            let ty = types.get(&parameter).copied();
            let ty = ty.ok_or_else(|| Error::unsupported("a kernel has too few parameters"))?;
            let id = module.fresh_id()?;
            declaration.parameters.push((id, ty));
            ids.insert(parameter, id);
        }
        let mut new = Stream::default();
        for i in body.iter() {
            if declaration.rewrite(&i, module, &mut interner, &mut new)? {
                continue;
            }
            match i.called().and_then(|callee| callees.get(&callee).copied()) {
                Some(stage) => {
                    let words = self.call(&i, stage, functions[stage], &ids)?;
                    new.push(Op::FunctionCall, words);
                }
                None => new.push_instruction(&i),
            }
        }
        module.functions[position].body = new;
        Ok(())
    }

    /// Returns the words of the call of a stage in place of a call of its declaration, whose arguments are the
    /// elements that the stage writes and the id.
    fn call(
        &self,
        i: &Instruction<'_>,
        stage: usize,
        function: u32,
        ids: &HashMap<StageParameter, u32>,
    ) -> Result<Vec<u32>> {
        let missing = || Error::unsupported("an argument of an earlier stage is missing");
        let mut given = i.arguments();
        let mut words: Vec<_> = i.words_from(0).take(2).collect();
        words.push(function);
        let Signature { passed, written, .. } = &self.stages[stage];
        let mut added = Vec::new();
        for parameter in passed {
            let element = match written.get(parameter) {
                Some(_) => Some(given.next().ok_or_else(missing)?),
                None => None,
            };
            let argument = match written.get(parameter) {
                Some(Target::Own) => element,
                Some(Target::Added) | None => ids.get(&(stage, *parameter)).copied(),
            };
            words.push(argument.ok_or_else(missing)?);
            added.extend(element.filter(|_| written.get(parameter) == Some(&Target::Added)));
        }
        words.extend(added);
        words.push(given.next().ok_or_else(missing)?);
        for parameter in &self.contexts[stage] {
            words.push(ids.get(parameter).copied().ok_or_else(missing)?);
        }
        Ok(words)
    }
}

/// Returns the types of the stages' own parameters.
fn parameter_types(
    module: &Module,
    functions: &[u32],
    stages: &[Signature],
) -> HashMap<StageParameter, u32> {
    let mut types = HashMap::new();
    for (stage, (function, signature)) in functions.iter().zip(stages).enumerate() {
        let known = module.functions.iter().find(|known| known.id == *function);
        let Some(known) = known else { continue };
        let parameters = Declaration::of(&known.body).parameters;
        for (&parameter, (_, ty)) in signature.passed.iter().zip(parameters) {
            types.insert((stage, parameter), ty);
        }
    }
    types
}
