#![allow(clippy::unwrap_used)]

mod pointers;
mod removed;

use std::collections::BTreeMap;
use std::process::Command;

use proptest::prelude::*;
use rspirv::binary::Disassemble;
use rspirv::spirv::{Decoration, LinkageType};

use super::super::module::Function;
use super::super::stream::{Stream, string_words};
use super::*;
use crate::{Reflection, read};

const APPLICATION: &[u8] = include_bytes!("../../../../tests/data/application.spv");
const LIBRARY: &[u8] = include_bytes!("../../../../tests/data/library.spv");
const APPLICATION_INTEL: &[u8] = include_bytes!("../../../../tests/data/application_intel.spv");
const LIBRARY_INTEL: &[u8] = include_bytes!("../../../../tests/data/library_intel.spv");
const APPLICATION_INFERRED: &[u8] =
    include_bytes!("../../../../tests/data/application_inferred.spv");
const LIBRARY_INFERRED: &[u8] = include_bytes!("../../../../tests/data/library_inferred.spv");
const LIBRARY_O0: &[u8] = include_bytes!("../../../../tests/data/library_O0.spv");
const LIBRARY_DEBUG: &[u8] = include_bytes!("../../../../tests/data/library_debug.spv");
const LIBRARY_LEGACY_DEBUG: &[u8] =
    include_bytes!("../../../../tests/data/library_legacy_debug.spv");

const KEEP: Options = Options { keep_exports: true, allow_unresolved: false };
const LOOSE: Options = Options { keep_exports: true, allow_unresolved: true };

fn link(modules: &[(&str, &[u8])], options: Options) -> Result<Merged> {
    let modules: Vec<_> =
        modules.iter().map(|&(name, bytes)| (name, Module::parse(bytes).unwrap())).collect();
    let inputs: Vec<_> = modules.iter().map(|(name, module)| Input { name, module }).collect();
    merge(&inputs, options)
}

fn reflect(module: &Module) -> Reflection {
    read(module.assemble()).unwrap().1
}

#[track_caller]
fn assert_fails(modules: &[(&str, &[u8])], options: Options, parts: &[&str]) {
    let error = link(modules, options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BuildFailed);
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

fn names(symbols: &[crate::Symbol]) -> Vec<&str> {
    symbols.iter().map(|symbol| symbol.name.as_str()).collect()
}

/// Assembles text in the format of `spirv-dis`. Returns `None` if `spirv-as` is not installed.
fn assemble(text: &str) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("a.spvasm"), folder.path().join("a.spv"));
    std::fs::write(&from, text).unwrap();
    let mut command = Command::new("spirv-as");
    command
        .args(["--target-env", "spv1.2", "--preserve-numeric-ids"])
        .arg(&from)
        .arg("-o")
        .arg(&to);
    run(&mut command, "spirv-as", "").then(|| std::fs::read(to).unwrap())
}

#[track_caller]
fn assert_valid(module: &Module) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.spv");
    std::fs::write(&path, module.assemble()).unwrap();
    let text = rspirv::dr::load_bytes(module.assemble()).map(|module| module.disassemble());
    run(Command::new("spirv-val").arg(&path), "spirv-val", &text.unwrap_or_default());
}

/// Runs a tool, which must succeed, and returns whether the tool is installed.
#[track_caller]
#[allow(clippy::print_stderr, reason = "the log reports skipped checks")]
fn run(command: &mut Command, tool: &str, context: &str) -> bool {
    match command.output() {
        Ok(output) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{tool}: {stderr}\n{context}");
            true
        }
        Err(_) => {
            let required = std::env::var("KILN_REQUIRE_TOOLS").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == tool), "{tool} is required");
            eprintln!("skipped: {tool} is not installed");
            false
        }
    }
}

#[test]
fn imports_are_resolved_in_either_order() {
    for library in [LIBRARY, LIBRARY_O0] {
        for inputs in [
            [("application", APPLICATION), ("library", library)],
            [("library", library), ("application", APPLICATION)],
        ] {
            let merged = link(&inputs, KEEP).unwrap();
            assert_valid(&merged.module);
            let reflection = reflect(&merged.module);
            assert_eq!(names(&reflection.imports), [""; 0]);
            let mut exports = names(&reflection.exports);
            exports.sort_unstable();
            assert_eq!(exports, ["bump", "own", "run", "scale", "table"]);
            let mut kernels = reflection.kernels.clone();
            kernels.sort_unstable();
            assert_eq!(kernels, ["own", "run"]);
            assert!(reflection.parameters("run").unwrap().len() == 2);
        }
    }
}

#[test]
fn unreachable_code_is_dropped_unless_exports_are_kept() {
    let inputs = [("application", APPLICATION), ("library", LIBRARY)];
    let merged = link(&inputs, Options::default()).unwrap();
    assert_valid(&merged.module);
    assert_eq!(names(&reflect(&merged.module).exports), [""; 0]);
    // Two kernels with their wrappers, two helpers, `scale` and `bump`.
    assert_eq!(merged.module.functions.len(), 8);
    assert!(merged.module.functions.iter().all(|function| !function.is_declaration()));
}

#[test]
fn a_module_linked_alone_keeps_its_symbols_and_functions() {
    for bytes in [LIBRARY, LIBRARY_O0, LIBRARY_DEBUG] {
        let merged = link(&[("library", bytes)], KEEP).unwrap();
        assert_eq!(reflect(&merged.module), reflect(&Module::parse(bytes).unwrap()));
        assert_eq!(merged.module.functions.len(), Module::parse(bytes).unwrap().functions.len());
    }
}

#[test]
fn debug_information_is_linked() {
    for library in [LIBRARY_DEBUG, LIBRARY_LEGACY_DEBUG] {
        let inputs = [("application", APPLICATION), ("library", library)];
        let merged = link(&inputs, KEEP).unwrap();
        assert_eq!(names(&reflect(&merged.module).imports), [""; 0]);
        let pruned = link(&inputs, Options::default()).unwrap();
        assert_eq!(pruned.module.functions.len(), 8);
    }
}

#[test]
fn types_and_constants_are_shared() {
    let merged = link(&[("application", APPLICATION), ("library", LIBRARY)], KEEP).unwrap();
    let mut seen = std::collections::HashSet::new();
    let traits = super::super::intern::Traits::of(&merged.module);
    for instruction in merged.module.section(Section::Globals).iter() {
        if super::super::intern::interned(&instruction).is_some() {
            let id = instruction.result().unwrap();
            let key = (
                instruction.opcode(),
                super::super::intern::operands(&instruction),
                traits.get(id).map(<[u32]>::to_vec),
            );
            assert!(seen.insert(key), "{instruction:?}");
        }
    }
    let imports = merged.module.section(Section::ExtInstImports).iter();
    assert_eq!(imports.count(), 1);
}

#[test]
fn functions_of_equal_names_are_renamed() {
    let merged = link(&[("application", APPLICATION), ("library", LIBRARY)], KEEP).unwrap();
    let names = merged.module.section(Section::Names).iter();
    let mut names: Vec<_> = names.filter_map(|name| name.string(1)).map(str::to_owned).collect();
    names.retain(|name| name.starts_with("helper"));
    names.sort_unstable();
    assert_eq!(names, ["helper", "helper.1"]);
}

#[test]
fn unresolved_imports_are_named_with_their_type() {
    let inputs = [("application", APPLICATION)];
    assert_fails(&inputs, KEEP, &["application imports `table`, constant float[4]*"]);
    let merged = link(&inputs, LOOSE).unwrap();
    assert_valid(&merged.module);
    let reflection = reflect(&merged.module);
    assert_eq!(names(&reflection.imports), ["table", "bump", "scale"]);
}

#[test]
fn a_kernel_in_two_modules_is_refused() {
    let twice = [("one", LIBRARY), ("two", LIBRARY_O0)];
    assert_fails(&twice, KEEP, &["kernel `own`", "in one", "in two"]);
}

const HEAD: &str = "OpCapability Addresses
OpCapability Linkage
OpCapability Kernel
OpMemoryModel Physical64 OpenCL
";

fn library(linkage: &str, value: u32) -> Option<Vec<u8>> {
    let head = HEAD.replace("OpMemory", "OpExtension \"SPV_KHR_linkonce_odr\"\nOpMemory");
    assemble(&format!(
        "{head} OpDecorate %20 LinkageAttributes \"answer\" {linkage}
         %1 = OpTypeInt 32 0
         %2 = OpTypeFunction %1
         %3 = OpConstant %1 {value}
         %20 = OpFunction %1 None %2
         %21 = OpLabel
         OpReturnValue %3
         OpFunctionEnd"
    ))
}

fn importer(ty: &str) -> Option<Vec<u8>> {
    assemble(&format!(
        "{HEAD} OpDecorate %4 LinkageAttributes \"answer\" Import
         OpDecorate %6 LinkageAttributes \"twice\" Export
         %1 = {ty}
         %2 = OpTypeFunction %1
         %4 = OpFunction %1 None %2
         OpFunctionEnd
         %6 = OpFunction %1 None %2
         %7 = OpLabel
         %8 = OpFunctionCall %1 %4
         OpReturnValue %8
         OpFunctionEnd"
    ))
}

#[test]
fn link_once_definitions_are_merged_and_replaced_by_an_export() {
    let (Some(once), Some(again), Some(export)) =
        (library("LinkOnceODR", 1), library("LinkOnceODR", 2), library("Export", 42))
    else {
        return;
    };
    let importer = importer("OpTypeInt 32 0").unwrap();
    let inputs = [("importer", &*importer), ("once", &*once), ("again", &*again)];
    let merged = link(&inputs, KEEP).unwrap();
    assert_valid(&merged.module);
    assert_eq!(names(&reflect(&merged.module).exports), ["twice", "answer"]);
    assert_eq!(merged.module.functions.len(), 2);
    for exported in [0, 1, 2] {
        let mut inputs = vec![("once", &*once), ("again", &*again), ("importer", &*importer)];
        inputs.insert(exported, ("export", &*export));
        let merged = link(&inputs, KEEP).unwrap();
        assert_valid(&merged.module);
        assert_eq!(merged.module.functions.len(), 2);
        let definitions = merged.module.definitions();
        let answer = |f: &&Function| f.body.iter().count() == 4;
        let function = merged.module.functions.iter().find(answer).unwrap();
        let value = function.body.iter().find(|i| i.op() == Some(Op::ReturnValue)).unwrap();
        assert_eq!(definitions.get(value.word(0).unwrap()).unwrap().word(2), Some(42));
    }
}

#[test]
fn exports_with_equal_definitions_are_merged() {
    let (Some(one), Some(other)) = (library("Export", 1), library("Export", 2)) else { return };
    let merged = link(&[("one", &one), ("same", &one)], KEEP).unwrap();
    assert_valid(&merged.module);
    assert_eq!(merged.module.functions.len(), 1);
    let parts = ["`answer`", "one (uint())", "other (uint())", "different definitions"];
    assert_fails(&[("one", &one), ("other", &other)], KEEP, &parts);
}

#[test]
fn types_of_import_and_export_are_compared() {
    let (Some(library), Some(importer)) = (library("Export", 1), importer("OpTypeFloat 32")) else {
        return;
    };
    let parts = ["importer imports `answer` as float()", "library exports it as uint()"];
    assert_fails(&[("importer", &importer), ("library", &library)], KEEP, &parts);
    assert_fails(&[("library", &library), ("importer", &importer)], KEEP, &parts);
}

#[test]
fn different_memory_models_are_refused() {
    let Some(narrow) = assemble(&HEAD.replace("Physical64", "Physical32")) else { return };
    let parts = ["library and narrow", "Physical64 and OpenCL", "Physical32 and OpenCL"];
    assert_fails(&[("library", LIBRARY), ("narrow", &narrow)], KEEP, &parts);
}

#[test]
fn a_kernel_cannot_be_imported() {
    let Some(kernel) = assemble(
        "OpCapability Addresses
         OpCapability Linkage
         OpCapability Kernel
         OpMemoryModel Physical64 OpenCL
         OpEntryPoint Kernel %4 \"answer\"
         OpDecorate %4 LinkageAttributes \"answer\" Export
         %1 = OpTypeVoid
         %2 = OpTypeFunction %1
         %4 = OpFunction %1 None %2
         %5 = OpLabel
         OpReturn
         OpFunctionEnd",
    ) else {
        return;
    };
    let importer = importer("OpTypeVoid").unwrap();
    let parts = ["importer imports `answer`", "a kernel of library"];
    assert_fails(&[("importer", &importer), ("library", &kernel)], KEEP, &parts);
}

#[test]
fn variables_are_declared_before_pointers_to_them() {
    let text = |linkage: &str, initializer: &str, more: &str| {
        format!(
            "{HEAD} OpDecorate %4 LinkageAttributes \"shared\" {linkage}
             OpDecorate %4 Constant
             %1 = OpTypeInt 32 0
             %2 = OpTypePointer UniformConstant %1
             %3 = OpConstant %1 7
             %4 = OpVariable %2 UniformConstant {initializer}
             {more}"
        )
    };
    let pointer = "%5 = OpTypePointer UniformConstant %2
                   %6 = OpVariable %5 UniformConstant %4";
    let (Some(first), Some(second)) =
        (assemble(&text("Import", "", pointer)), assemble(&text("Export", "%3", "")))
    else {
        return;
    };
    let merged = link(&[("first", &first), ("second", &second)], KEEP).unwrap();
    assert_valid(&merged.module);
    let globals = merged.module.section(Section::Globals).iter();
    assert_eq!(globals.filter(|i| i.op() == Some(Op::Variable)).count(), 2);
}

#[test]
fn specialization_constants_keep_their_ids_unless_they_collide() {
    let constants = |ids: [u32; 2]| {
        assemble(&format!(
            "{HEAD} OpDecorate %2 SpecId {}
             OpDecorate %3 SpecId {}
             %1 = OpTypeInt 32 0
             %2 = OpSpecConstant %1 1
             %3 = OpSpecConstant %1 1",
            ids[0], ids[1]
        ))
    };
    let (Some(one), Some(two)) = (constants([0, 1]), constants([1, 2])) else { return };
    let merged = link(&[("one", &one), ("two", &two)], KEEP).unwrap();
    assert_eq!(merged.spec_ids, [vec![(0, 0), (1, 1)], vec![(1, 3), (2, 2)]]);
    let reflection = reflect(&merged.module);
    let ids: Vec<_> = reflection.specialization_constants.iter().map(|c| c.id).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
}

#[test]
fn unknown_instructions_are_refused_by_opcode() {
    let mut module = LIBRARY.to_vec();
    module.extend_from_slice(&(1_u32 << 16 | 0xfffe).to_le_bytes());
    assert_eq!(Module::parse(&*module).unwrap().assemble(), module);
    let error = link(&[("tomorrow", &module)], KEEP).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let message = error.to_string();
    assert!(message.contains("tomorrow") && message.contains("opcode 65534"), "{message}");
}

const FUNCTIONS: u32 = 8;

/// Builds a module with the functions of one part. Each pair in `calls` is a caller and a callee. Callees
/// that belong to other parts are imported.
fn part(parts: &[usize], part: usize, calls: &[(u32, u32)]) -> Module {
    let is_own = |n: u32| parts[n as usize] == part;
    let header = Header { version: (1, 2), generator: 0, bound: 1000, schema: 0 };
    let mut module = Module::empty(header);
    module.section_mut(Section::Capabilities).push(Op::Capability, [5]);
    module.section_mut(Section::MemoryModel).push(Op::MemoryModel, [2, 2]);
    module.section_mut(Section::Globals).push(Op::TypeFloat, [1, 32]);
    module.section_mut(Section::Globals).push(Op::TypeFunction, [2, 1]);
    module.section_mut(Section::Globals).push(Op::Constant, [1, 3, 0]);
    let mut next = 100;
    for n in 0..FUNCTIONS {
        let is_called = calls.iter().any(|&(from, to)| is_own(from) && to == n);
        if !is_own(n) && !is_called {
            continue;
        }
        let id = 10 + n;
        let name: Vec<_> = string_words(&format!("f{n}")).collect();
        module.section_mut(Section::Names).push(Op::Name, [id].into_iter().chain(name.clone()));
        let kind = if is_own(n) { LinkageType::Export } else { LinkageType::Import };
        let linkage = [id, Decoration::LinkageAttributes as u32].into_iter().chain(name);
        let annotations = module.section_mut(Section::Annotations);
        annotations.push(Op::Decorate, linkage.chain([kind as u32]));
        let mut body = Stream::default();
        body.push(Op::Function, [1, id, 0, 2]);
        if is_own(n) {
            body.push(Op::Label, [next]);
            for &(_, to) in calls.iter().filter(|&&(from, _)| from == n) {
                next += 1;
                body.push(Op::FunctionCall, [1, next, 10 + to]);
            }
            next += 1;
            body.push(Op::ReturnValue, [3]);
        }
        body.push(Op::FunctionEnd, []);
        module.functions.push(Function { id, body });
    }
    module
}

/// Returns the callees of each function, by name and in the order of the calls.
fn calls_of(module: &Module) -> BTreeMap<String, Vec<String>> {
    let names = module.section(Section::Names).iter();
    let names: HashMap<_, _> =
        names.map(|i| (i.word(0).unwrap(), i.string(1).unwrap().to_owned())).collect();
    let called = |function: &Function| {
        let calls = function.body.iter().filter(|i| i.op() == Some(Op::FunctionCall));
        calls.map(|call| names[&call.word(2).unwrap()].clone()).collect()
    };
    module.functions.iter().map(|f| (names[&f.id].clone(), called(f))).collect()
}

proptest! {
    #[test]
    fn linking_a_randomly_split_module_restores_its_calls(
        parts in prop::collection::vec(0..4_usize, FUNCTIONS as usize),
        calls in prop::collection::vec((0..FUNCTIONS, 0..FUNCTIONS), 0..20),
    ) {
        let whole = part(&[0; FUNCTIONS as usize], 0, &calls);
        let split: Vec<_> = (0..4).map(|index| part(&parts, index, &calls)).collect();
        let inputs: Vec<_> = split.iter().map(|module| Input { name: "part", module }).collect();
        let merged = merge(&inputs, KEEP).unwrap().module;
        prop_assert_eq!(calls_of(&merged), calls_of(&whole));
        prop_assert_eq!(
            merged.section(Section::Globals).iter().count(),
            whole.section(Section::Globals).iter().count()
        );
        prop_assert!(Module::parse(merged.assemble()).is_ok_and(|again| again == merged));
    }
}
