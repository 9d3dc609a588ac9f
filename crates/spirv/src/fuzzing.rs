//! Entry point of the fuzzer in `fuzz/`, which is built with `--cfg fuzzing`: every operation on modules.
#![allow(missing_docs, clippy::missing_panics_doc, reason = "not part of the interface")]

use super::grammar::{self, Role};
use super::ids::IdSet;
use super::index::{Definitions, Location, Uses, all_located};
use super::merge::{Input, Options, merge};
use super::module::{Module, Section};
use super::reflect::reflect;
use super::stream::Stream;
use super::volatile::split_volatile_loads;
use super::widen::widen_vectors;
use super::words::Words;

/// Reads, parses, assembles, prunes and mends modules, then links the first one alone, and all together. None of
/// this may panic, whatever the bytes.
///
/// Reading an assembled module must give the same result again. If every id of the inputs has a definition,
/// so must every id of the results.
pub fn exercise(inputs: &[&[u8]]) {
    let mut modules: Vec<_> = inputs.iter().filter_map(|bytes| exercise_one(bytes)).collect();
    link(&modules[..modules.len().min(1)]);
    // Linking rejects kernels of the same name. Only those of the first module stay, so that the rest is
    // exercised.
    for module in modules.iter_mut().skip(1) {
        *module.section_mut(Section::EntryPoints) = Stream::default();
        *module.section_mut(Section::ExecutionModes) = Stream::default();
    }
    link(&modules);
}

fn exercise_one(bytes: &[u8]) -> Option<Module> {
    let words = Words::new(bytes.to_vec()).ok()?;
    let reflection = reflect(&words);
    let module = Module::from_words(&words).ok()?;
    let assembled = module.assemble();
    assert_eq!(assembled, words.into_bytes());
    assert_eq!(
        reflect(&Words::new(assembled).expect("the bytes were a valid module before")),
        reflection
    );
    let mut pruned = module.clone();
    if pruned.prune().is_ok() {
        assert!(is_closed(&pruned) || !is_closed(&module), "pruned too much");
    }
    for mend in [split_volatile_loads, widen_vectors] {
        let mut mended = module.clone();
        if mend(&mut mended).is_ok_and(|is_changed| is_changed) {
            assert!(is_closed(&mended) || !is_closed(&module), "ids lack definitions");
            assert!(matches!(mend(&mut mended), Ok(false)), "nothing is left to mend");
        }
    }
    Some(module)
}

fn link(modules: &[Module]) {
    let inputs: Vec<_> = modules.iter().map(|module| Input { name: "module", module }).collect();
    for (keep_exports, allow_unresolved) in [(true, true), (false, true), (false, false)] {
        let Ok(merged) = merge(&inputs, Options { keep_exports, allow_unresolved }) else {
            continue;
        };
        let assembled = merged.module.assemble();
        let again = Module::parse(&*assembled).expect("a linked module is valid");
        assert_eq!(again.assemble(), assembled);
        let is_sound = is_closed(&again) || !modules.iter().all(is_closed);
        assert!(is_sound, "linked, but ids lack definitions");
    }
}

/// Returns whether each id is defined exactly once, and no id that a function's body defines is used outside
/// of the function, except by names and annotations.
fn is_closed(module: &Module) -> bool {
    let definitions = module.definitions();
    if Uses::of(module, &definitions).is_err() {
        return false;
    }
    let mut is_closed = true;
    let mut defined = IdSet::of(module);
    for (location, instruction) in all_located(module) {
        if let Some(id) = instruction.result() {
            is_closed &= defined.insert(id);
        }
        let _ = grammar::ids(&instruction, &definitions, |at, role| {
            let id = instruction.word(at).unwrap_or_default();
            is_closed &= role == Role::Result || is_visible(module, &definitions, id, location);
        });
    }
    is_closed
}

/// Returns whether an instruction at `from` may use an id.
fn is_visible(module: &Module, definitions: &Definitions<'_>, id: u32, from: Location) -> bool {
    let Some(location) = definitions.location(id) else { return false };
    let function = location.function(module);
    let is_local = function.is_some_and(|function| module.functions[function].id != id);
    let of_module = [Section::Names as u32, Section::Annotations as u32];
    !is_local || of_module.contains(&from.stream) || location.stream == from.stream
}
