//! Tests of modules whose definitions other modules replace.

use super::*;
use crate::remove_definitions;

const LIBRARIES: [(&str, &[u8]); 7] = [
    ("library", LIBRARY),
    ("library_O0", LIBRARY_O0),
    ("library_debug", LIBRARY_DEBUG),
    ("library_legacy_debug", LIBRARY_LEGACY_DEBUG),
    ("library_inferred", LIBRARY_INFERRED),
    ("library_intel", LIBRARY_INTEL),
    ("library_intel_debug", include_bytes!("../../../../../tests/data/library_intel_debug.spv")),
];

fn without(bytes: &[u8], removed: &[&str]) -> Module {
    let mut module = Module::parse(bytes).unwrap();
    let removed: Vec<_> = removed.iter().map(|name| (*name).to_owned()).collect();
    remove_definitions(&mut module, &removed).unwrap();
    // The result is a module in the order of the logical layout, without ids that nothing defines.
    Module::parse(module.assemble()).unwrap()
}

fn sorted(symbols: &[crate::Symbol]) -> Vec<&str> {
    let mut names = names(symbols);
    names.sort_unstable();
    names
}

#[test]
fn removed_definitions_become_imports() {
    let removals: [&[&str]; 5] =
        [&["scale"], &["bump"], &["table"], &["bump", "scale", "table"], &["bump", "nobody"]];
    for (name, library) in LIBRARIES {
        for removed in removals {
            let module = without(library, removed);
            let reflection = reflect(&module);
            let removed: Vec<_> = removed.iter().copied().filter(|it| *it != "nobody").collect();
            assert_eq!(sorted(&reflection.imports), removed, "{name}");
            let exports = names(&reflection.exports);
            assert!(removed.iter().all(|name| !exports.contains(name)), "{name}: {exports:?}");
            assert_eq!(reflection.kernels, ["own"], "{name}");
            let first_body = module.functions.iter().position(|it| !it.is_declaration());
            let declared = &module.functions[first_body.unwrap()..];
            assert!(declared.iter().all(|function| !function.is_declaration()), "{name}");
        }
    }
}

#[test]
fn modules_without_removed_definitions_are_valid() {
    for library in [LIBRARY, LIBRARY_O0, LIBRARY_INFERRED] {
        for removed in [&["scale"][..], &["table"], &["bump", "scale", "table"]] {
            assert_valid(&without(library, removed));
        }
    }
}

#[test]
fn nothing_changes_without_a_removed_definition() {
    for (name, library) in LIBRARIES {
        assert_eq!(without(library, &["nobody", "own"][..1]).assemble(), library, "{name}");
    }
}

#[test]
fn calls_inside_the_module_refer_to_the_replacement() {
    let replacement = without(LIBRARY_O0, &["bump", "table"]).assemble();
    let library = without(LIBRARY, &["scale"]).assemble();
    let inputs = [("library", &*library), ("replacement", &*replacement)];
    let merged = link(&[inputs[0], inputs[1]], KEEP);
    // Both modules define the kernel `own`.
    assert!(merged.unwrap_err().to_string().contains("`own`"));
    let application = without(APPLICATION, &[]).assemble();
    let inputs = [("application", &*application), ("library", &*library)];
    let error = link(&inputs, KEEP).unwrap_err().to_string();
    assert!(error.contains("imports `scale`"), "{error}");
}

#[test]
fn the_function_of_a_kernel_is_not_removed() {
    let text = "OpCapability Addresses
        OpCapability Kernel
        OpCapability Linkage
        OpMemoryModel Physical64 OpenCL
        OpEntryPoint Kernel %3 \"k\"
        OpDecorate %3 LinkageAttributes \"f\" Export
        %1 = OpTypeVoid
        %2 = OpTypeFunction %1
        %3 = OpFunction %1 None %2
        %4 = OpLabel
        OpReturn
        OpFunctionEnd";
    let Some(bytes) = assemble(text) else { return };
    let mut module = Module::parse(bytes).unwrap();
    let error = remove_definitions(&mut module, &["f".to_owned()]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let message = error.to_string();
    assert!(message.contains("`f`") && message.contains("kernel `k`"), "{message}");
}
