//! Budget of a fused kernel: the number of its instructions.
//!
//! The time and the memory that a driver's compiler takes grow faster than the size of a kernel. Drivers inline
//! the functions of a kernel, so a function counts at each of its calls.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};

use kiln_spirv::Module;
use kiln_spirv::edit::{Class, Section, View};
use rspirv::spirv::{ExecutionModel, Op};

use super::form::FusionForm;
use super::outcome::Fused;
use super::part_report::short_name;
use crate::plan::Plan;

/// Maximum number of instructions of a fused kernel.
const MAX_INSTRUCTIONS: u64 = 20_000;

/// Maximum number of instructions of a fused kernel for each one of its launches' kernels, if it has more than
/// [`SMALL`].
const MAX_GROWTH: u64 = 2;

/// Number of instructions up to which a fused kernel may be many times as large as the kernels of its launches.
const SMALL: u64 = 4_000;

/// Number of instructions of launches together for which fusing is not even tried.
const MAX_TRIED: u64 = 2 * MAX_INSTRUCTIONS;

/// Numbers of instructions of the launches of a plan, counted when they are first needed.
#[derive(Debug, Default)]
pub struct Budget(OnceCell<Vec<u64>>);

impl Budget {
    /// Returns the number of instructions of the kernels of these launches together.
    pub(super) fn sum(
        &self,
        plan: &Plan,
        modules: &[Option<&Module>],
        members: impl IntoIterator<Item = usize>,
    ) -> u64 {
        let sizes = self.0.get_or_init(|| sizes(plan, modules));
        members.into_iter().map(|slot| sizes[slot]).fold(0, u64::saturating_add)
    }
}

/// Returns why launches are not even tried in a form, if their kernels have this number of instructions together.
pub(super) fn refuse_launches(form: FusionForm, instructions: u64) -> Option<String> {
    // The launches of a batch share the code of one kernel.
    (form != FusionForm::Batched && instructions > MAX_TRIED).then(|| {
        format!(
            "the kernels of the launches have {instructions} instructions together; the limit of a fused kernel \
             is {MAX_INSTRUCTIONS}"
        )
    })
}

/// Returns why a fused kernel is too large for drivers' compilers, if it is. The kernels of its launches have `sum`
/// instructions together.
pub(super) fn refuse_kernel(fused: &Fused, sum: u64) -> Option<String> {
    let instructions = instructions(&fused.module).remove(fused.kernel.as_str())?;
    let name = short_name(&fused.kernel);
    if instructions > MAX_INSTRUCTIONS {
        return Some(format!(
            "`{name}` would have {instructions} instructions; the limit of a fused kernel is {MAX_INSTRUCTIONS}"
        ));
    }
    (instructions > SMALL.max(sum.saturating_mul(MAX_GROWTH))).then(|| {
        format!(
            "`{name}` would have {instructions} instructions, and the kernels of its launches have {sum}; the limit \
             of a fused kernel of more than {SMALL} instructions is {MAX_GROWTH} times as many as they have"
        )
    })
}

/// Returns the number of instructions of the kernel of each launch; 0 if it is not known.
fn sizes(plan: &Plan, modules: &[Option<&Module>]) -> Vec<u64> {
    let known: Vec<_> = modules.iter().map(|module| module.map(instructions)).collect();
    let size = |module: usize, kernel: &str| known[module].as_ref()?.get(kernel).copied();
    plan.slots.iter().map(|slot| size(slot.module, &slot.kernel).unwrap_or(0)).collect()
}

/// Returns the number of instructions of each kernel of a module, with all functions inlined.
fn instructions(module: &Module) -> HashMap<&str, u64> {
    let sizes = inlined_sizes(module);
    let entry_points = module.section(Section::EntryPoints).iter();
    let kernels = entry_points.filter_map(|i| match i.view() {
        View::EntryPoint { model, function, name, .. } => {
            let is_kernel = model == ExecutionModel::Kernel as u32;
            is_kernel.then_some((name.get()?, *sizes.get(&function)?))
        }
        _ => None,
    });
    kernels.collect()
}

/// Returns the number of instructions of each function by its id, with the functions that it calls inlined.
fn inlined_sizes(module: &Module) -> HashMap<u32, u64> {
    let mut own = BTreeMap::new();
    for function in &module.functions {
        let (mut count, mut called) = (0u64, Vec::new());
        for i in function.body.iter() {
            match i.class() {
                Some(Class::Line | Class::Nothing) => {}
                _ if i.op() == Some(Op::FunctionCall) => called.extend(i.called()),
                _ => count += 1,
            }
        }
        own.insert(function.id, (count, called));
    }
    let mut sizes = HashMap::new();
    for &function in own.keys() {
        // Functions that are visited, each with the number of its calls that were looked at.
        let mut path = vec![(function, 0)];
        while let Some((id, at)) = path.last_mut() {
            let Some((count, called)) = own.get(id).filter(|_| !sizes.contains_key(id)) else {
                path.pop();
                continue;
            };
            match called.get(*at) {
                Some(&next) => {
                    *at += 1;
                    // A function that calls itself, which OpenCL forbids, counts once.
                    if !sizes.contains_key(&next) && path.iter().all(|(open, _)| *open != next) {
                        path.push((next, 0));
                    }
                }
                None => {
                    let callees = called.iter().filter_map(|callee| sizes.get(callee));
                    let size = callees.fold(*count, |sum: u64, size| sum.saturating_add(*size));
                    sizes.insert(*id, size);
                    path.pop();
                }
            }
        }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_spirv::edit::{Function, Stream, string_words};

    /// Module whose header the modules of these tests have.
    const SOME_MODULE: &[u8] = include_bytes!("../../../../tests/data/fusion.spv");

    /// Returns a module with a kernel `main`, which is function 1. Functions have an id, a number of instructions, and
    /// the functions that they call.
    fn module(functions: &[(u32, usize, &[u32])]) -> Module {
        let mut module = Module::empty(Module::parse(SOME_MODULE).expect("it is valid").header);
        let kernel = [ExecutionModel::Kernel as u32, 1].into_iter();
        module
            .section_mut(Section::EntryPoints)
            .push(Op::EntryPoint, kernel.chain(string_words("main")));
        for &(id, count, called) in functions {
            let mut body = Stream::default();
            body.push(Op::Line, [1, 2, 3]);
            for _ in 0..count {
                body.push(Op::Return, []);
            }
            for &callee in called {
                body.push(Op::FunctionCall, [90, 91, callee]);
            }
            module.functions.push(Function { id, body });
        }
        module
    }

    fn size(functions: &[(u32, usize, &[u32])]) -> u64 {
        instructions(&module(functions))["main"]
    }

    #[test]
    fn a_function_counts_at_each_of_its_calls() {
        assert_eq!(size(&[(1, 7, &[])]), 7);
        assert_eq!(size(&[(1, 7, &[2, 3, 2]), (2, 10, &[3]), (3, 100, &[])]), 7 + 2 * 110 + 100);
        assert_eq!(size(&[(2, 10, &[]), (1, 7, &[2, 2])]), 27);
    }

    #[test]
    fn sizes_that_double_with_each_function_end_at_the_largest_number() {
        let calls: Vec<[u32; 2]> = (2..=90).map(|id| [id, id]).collect();
        let functions: Vec<(u32, usize, &[u32])> =
            (1..).zip(&calls).map(|(id, called)| (id, 1, &called[..])).collect();
        let last: &[(u32, usize, &[u32])] = &[(90, 1, &[])];
        assert_eq!(size(&[&functions[..], last].concat()), u64::MAX);
    }

    #[test]
    fn functions_that_call_themselves_do_not_hang() {
        assert!(size(&[(1, 7, &[2]), (2, 10, &[1, 2])]) >= 7);
    }
}
