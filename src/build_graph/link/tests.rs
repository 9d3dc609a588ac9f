//! Tests of the selection of modules, and of messages about them.

use std::collections::HashSet;

use super::*;
use crate::device::{DeviceInfo, ModuleFormat};
use crate::digest::Digest;
use crate::error::Result;
use crate::source::module::Module;

fn module(exports: &[&str], imports: &[&str]) -> Module {
    let text = format!("// {exports:?} {imports:?}");
    Module::opencl_c(text).exporting(exports.to_vec()).importing(imports.to_vec())
}

fn libraries(modules: &[&Module]) -> Libraries {
    let mut libraries = Libraries::default();
    for module in modules {
        assert!(libraries.register(module).expect("it exports something"));
    }
    libraries
}

/// Resolves a module for a device that links OpenCL C.
fn resolved(libraries: &Libraries, module: &Module) -> Result<Resolution> {
    let device = DeviceInfo { links: vec![ModuleFormat::OpenClC], ..DeviceInfo::fake() };
    libraries.resolve(module, &LinkTarget { device: &device, identity: &[] })
}

/// Returns the libraries that a module needs.
fn resolve(libraries: &Libraries, module: &Module) -> Result<Vec<Module>> {
    let found = resolved(libraries, module)?;
    Ok(found.libraries().iter().map(|member| member.module.clone()).collect())
}

fn digests(modules: &[Module]) -> HashSet<Digest> {
    modules.iter().map(Module::digest).collect()
}

#[test]
fn only_needed_libraries_are_resolved_transitively() {
    let chain = [module(&["a"], &["b", "c"]), module(&["b"], &["c"]), module(&["c"], &["a"])];
    let stranger = module(&["d"], &["nobody"]);
    let [a, b, c] = &chain;
    let application = module(&[], &["a"]);
    for order in [[a, b, c, &stranger], [&stranger, c, b, a], [b, &stranger, a, c]] {
        let found = resolve(&libraries(&order), &application).expect("all exist");
        assert_eq!(found.len(), chain.len(), "each once");
        assert_eq!(digests(&found), digests(&chain));
    }
    let found = resolve(&libraries(&[a, b, c]), a).expect("all exist");
    assert_eq!(digests(&found), digests(&chain[1..]), "without itself");
}

#[test]
fn exported_names_in_a_log_are_listed_unless_modules_state_them() {
    let libraries = libraries(&[&module(&["a", "b", "c", "ab"], &[])]);
    let log = "x.cl:1: error: 'b' is undeclared, in a.c of x.ab: 'c' 'b' abc";
    assert_eq!(libraries.unstated_names(&[&module(&[], &["c"])], log), ["`a`", "`ab`", "`b`"]);
    let both = [&module(&["a"], &["c"]), &module(&["ab"], &[])];
    assert_eq!(libraries.unstated_names(&both, log), ["`b`"]);
    assert!(libraries.unstated_names(&both, "nothing of the kind").is_empty());
}

#[test]
fn functions_that_are_not_defined_are_found_in_the_logs_of_all_linkers() {
    for log in [
        "x.cl:3:9: error: implicit declaration of function 'tone' is invalid in OpenCL",
        "error: undefined reference to `tone'",
        "error: undefined reference to `tone(float)'",
        "ptxas fatal   : Unresolved extern function 'tone'",
        "nvlink error   : Undefined reference to 'tone' in 'x.o'",
        "ld.lld: error: undefined symbol: tone",
        "error : undefined external \"tone\"",
        "Cannot find symbol tone in kernel library",
        "JIT session error: Symbols not found: [ tone ]",
    ] {
        assert!(undefined_functions(log, &[]).into_iter().eq(["tone"]), "{log}");
    }
    let log = "warning: behavior is undefined\nundefined symbol:";
    assert!(undefined_functions(log, &[]).is_empty());
    let log = "error: x.cl:1:41: use of undeclared identifier 'tone'; did you mean 'true'?";
    assert!(undefined_functions(log, &["x = tone (y);"]).into_iter().eq(["tone"]));
    assert!(undefined_functions(log, &["x = tone + semitone(tones(1));"]).is_empty());
}

#[test]
fn unregistered_libraries_are_not_found() {
    let (library, application) = (module(&["a", "b"], &[]), module(&[], &["b"]));
    let mut libraries = libraries(&[&library]);
    assert_eq!(resolve(&libraries, &application).expect("it exists").len(), 1);
    assert!(libraries.unregister(&library));
    assert!(!libraries.unregister(&library));
    assert!(resolve(&libraries, &application).is_err());
    assert!(libraries.names().is_empty() && libraries.all().next().is_none());
}

#[test]
fn a_library_that_is_registered_again_as_untrusted_is_untrusted() {
    let (library, application) = (module(&["a"], &[]), module(&[], &["a"]));
    let mut libraries = libraries(&[&library]);
    let found = |libraries: &Libraries| {
        let found = resolve(libraries, &application).expect("it exists");
        found[0].is_untrusted()
    };
    assert!(!found(&libraries));
    assert!(!libraries.register(&library.clone().untrusted()).expect("it exports something"));
    assert!(found(&libraries));
    assert!(!libraries.register(&library).expect("it exports something"));
    assert!(found(&libraries), "trust cannot be regained");
}

#[test]
fn errors_list_every_import_up_to_the_requested_module() {
    let (a, b) = (module(&["a"], &["b"]), module(&["b"], &["missing"]));
    let text = resolved(&libraries(&[&a, &b]), &module(&[], &["a"])).expect_err("one is missing");
    let text = text.to_string();
    let steps = ["(b) imports `missing`", "needed for `b` by", "(a)", "needed for `a` by"];
    let mut rest = text.as_str();
    for step in steps {
        let at = rest.find(step).unwrap_or_else(|| panic!("{step} is not next in: {text}"));
        rest = &rest[at + step.len()..];
    }
}

#[test]
fn modules_are_described_by_their_format_and_exports() {
    let few = describe(&module(&["a", "b", "c"], &[]));
    assert!(few.starts_with("the OpenCL C module ") && few.ends_with(" (a, b, c)"), "{few}");
    let many = describe(&module(&["a", "b", "c", "d"], &[]));
    assert!(many.ends_with(" (a, b, c, ..)"), "{many}");
    let nothing = describe(&module(&[], &[]));
    assert!(!nothing.contains('('), "{nothing}");
}
