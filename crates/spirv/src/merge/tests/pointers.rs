//! Tests of types that refer to themselves through pointers, and of pointers that modules type differently.

use super::*;

/// Assembles a module with a function on a list. `types` declares %1, the list's struct; %2 is the pointer
/// to it, and %3 an integer.
fn list(types: &str, linkage: &str, body: &str) -> Option<Vec<u8>> {
    assemble(&format!(
        "{HEAD} OpName %1 \"struct.List\"
         OpDecorate %10 LinkageAttributes \"length\" {linkage}
         OpTypeForwardPointer %2 CrossWorkgroup
         %3 = OpTypeInt 32 0
         {types}
         %2 = OpTypePointer CrossWorkgroup %1
         %4 = OpTypeFunction %3 %2
         %10 = OpFunction %3 None %4
         %11 = OpFunctionParameter %2
         {body}
         OpFunctionEnd"
    ))
}

const DEFINED: &str = "%12 = OpLabel\n%13 = OpUndef %3\nOpReturnValue %13";

fn count(module: &Module, op: Op) -> usize {
    module.streams().flat_map(|stream| stream.iter()).filter(|i| i.op() == Some(op)).count()
}

fn link_lists(import: &str, export: &str) -> Option<Result<Merged>> {
    let import = list(import, "Import", "")?;
    let export = list(export, "Export", DEFINED)?;
    let both = [("import", &*import), ("export", &*export)];
    let merged = link(&both, KEEP);
    // The order of the modules does not matter.
    let swapped = link(&[both[1], both[0]], KEEP);
    assert_eq!(merged.is_ok(), swapped.is_ok());
    for merged in [&merged, &swapped].into_iter().flatten() {
        assert_valid(&merged.module);
        assert_eq!(merged.module.functions.len(), 1);
    }
    Some(merged)
}

#[test]
fn a_struct_with_a_pointer_to_its_own_kind_is_shared() {
    let plain = "%1 = OpTypeStruct %2 %3";
    let after_others = "%5 = OpTypeFloat 32
                         %6 = OpTypePointer CrossWorkgroup %5
                         %1 = OpTypeStruct %2 %3";
    for (import, export) in [(plain, plain), (plain, after_others), (after_others, plain)] {
        let Some(merged) = link_lists(import, export) else { return };
        let module = merged.unwrap().module;
        assert_eq!(count(&module, Op::TypeStruct), 1);
        assert_eq!(count(&module, Op::TypeForwardPointer), 1);
        assert_eq!(count(&module, Op::TypeFunction), 1);
    }
}

#[test]
fn mutually_recursive_structs_are_shared_in_any_order() {
    // The elements of a list point to their owner, and the owner to the list.
    let first = "OpTypeForwardPointer %7 CrossWorkgroup
                 %1 = OpTypeStruct %2 %7
                 %8 = OpTypeStruct %3 %2
                 %7 = OpTypePointer CrossWorkgroup %8";
    let second = "OpTypeForwardPointer %20 CrossWorkgroup
                  %9 = OpTypeFloat 32
                  %21 = OpTypeStruct %3 %2
                  %20 = OpTypePointer CrossWorkgroup %21
                  %1 = OpTypeStruct %2 %20";
    let Some(merged) = link_lists(first, second) else { return };
    let module = merged.unwrap().module;
    assert_eq!(count(&module, Op::TypeStruct), 2);
    assert_eq!(count(&module, Op::TypePointer), 2);
    assert_eq!(count(&module, Op::TypeForwardPointer), 2);
}

#[test]
fn types_are_shared_regardless_of_their_order() {
    let early = "%8 = OpTypeStruct %2
                 %9 = OpTypePointer CrossWorkgroup %8
                 %1 = OpTypeStruct %2 %3";
    let late = "%1 = OpTypeStruct %2 %3
                %8 = OpTypeStruct %2";
    let Some(merged) = link_lists(early, late) else { return };
    assert_eq!(count(&merged.unwrap().module, Op::TypeStruct), 2);
}

#[test]
fn structs_of_one_name_that_differ_are_refused() {
    let lists =
        ["%1 = OpTypeStruct %2 %3", "%1 = OpTypeStruct %2 %3 %3", "%1 = OpTypeStruct %3 %2"];
    for (at, import) in lists.iter().enumerate() {
        for (other, export) in lists.iter().enumerate() {
            let Some(merged) = link_lists(import, export) else { return };
            let Err(error) = merged else {
                assert_eq!(at, other);
                continue;
            };
            assert_ne!(at, other);
            let message = error.to_string();
            for part in ["import imports `length`", "uint(global struct List*)", "differ in"] {
                assert!(message.contains(part), "{message}");
            }
        }
    }
}

/// A cast would have to convert the pointer to the function itself, which is not implemented.
#[test]
fn function_pointers_require_the_declared_type_of_the_function() {
    let head = "OpCapability FunctionPointersINTEL
                OpExtension \"SPV_INTEL_function_pointers\"";
    let head = HEAD.replace("OpMemory", &format!("{head}\nOpMemory"));
    let importer = |pointee: &str| {
        assemble(&format!(
            "{head} OpDecorate %10 LinkageAttributes \"first\" Import
             %1 = OpTypeInt 32 0
             %2 = OpTypeFloat 32
             %3 = OpTypePointer CrossWorkgroup {pointee}
             %4 = OpTypeFunction %3 %3
             %5 = OpTypePointer CodeSectionINTEL %4
             %6 = OpConstantFunctionPointerINTEL %5 %10
             %10 = OpFunction %3 None %4
             %11 = OpFunctionParameter %3
             OpFunctionEnd"
        ))
    };
    let (Some(float), Some(int)) = (importer("%2"), importer("%1")) else { return };
    let library = assemble(&format!(
        "{HEAD} OpDecorate %10 LinkageAttributes \"first\" Export
         %2 = OpTypeFloat 32
         %3 = OpTypePointer CrossWorkgroup %2
         %4 = OpTypeFunction %3 %3
         %10 = OpFunction %3 None %4
         %11 = OpFunctionParameter %3
         %12 = OpLabel
         OpReturnValue %11
         OpFunctionEnd"
    ))
    .unwrap();
    assert!(link(&[("importer", &float), ("library", &library)], KEEP).is_ok());
    let parts = ["importer imports `first` as global uint*(global uint*)"];
    assert_fails(&[("importer", &int), ("library", &library)], KEEP, &parts);
}

/// The structs have no names, and are so similar that only the order of declaration distinguishes them.
#[test]
fn equal_cyclic_structs_are_shared_by_declaration_order() {
    let ring = |linkage: &str, body: &str| {
        assemble(&format!(
            "{HEAD} OpDecorate %10 LinkageAttributes \"length\" {linkage}
             OpTypeForwardPointer %2 CrossWorkgroup
             OpTypeForwardPointer %3 CrossWorkgroup
             %4 = OpTypeStruct %2
             %3 = OpTypePointer CrossWorkgroup %4
             %5 = OpTypeStruct %3
             %2 = OpTypePointer CrossWorkgroup %5
             %6 = OpTypeVoid
             %7 = OpTypeFunction %6 %2
             %10 = OpFunction %6 None %7
             %11 = OpFunctionParameter %2
             {body}
             OpFunctionEnd"
        ))
    };
    let (Some(import), Some(export)) =
        (ring("Import", ""), ring("Export", "%12 = OpLabel\nOpReturn"))
    else {
        return;
    };
    let merged = link(&[("import", &import), ("export", &export)], KEEP).unwrap();
    assert_valid(&merged.module);
    assert_eq!(count(&merged.module, Op::TypeStruct), 2);
}

/// Assembles a caller whose compiler guessed the pointees of `first`, as compilers without pointee types do.
fn guessing_caller(class: &str) -> Option<Vec<u8>> {
    assemble(&format!(
        "{HEAD} OpDecorate %4 LinkageAttributes \"first\" Import
         OpDecorate %6 LinkageAttributes \"second\" Export
         %1 = OpTypeInt 32 0
         %2 = OpTypePointer {class} %1
         %3 = OpTypeFunction %2 %2 %1
         %4 = OpFunction %2 None %3
         %40 = OpFunctionParameter %2
         %41 = OpFunctionParameter %1
         OpFunctionEnd
         %6 = OpFunction %2 None %3
         %7 = OpFunctionParameter %2
         %8 = OpFunctionParameter %1
         %9 = OpLabel
         %10 = OpFunctionCall %2 %4 %7 %8
         %11 = OpFunctionCall %2 %4 %10 %8
         OpReturnValue %11
         OpFunctionEnd"
    ))
}

#[test]
fn pointers_of_one_storage_class_are_cast_at_calls() {
    let Some(library) = assemble(&format!(
        "{HEAD} OpDecorate %6 LinkageAttributes \"first\" Export
         %1 = OpTypeInt 32 0
         %2 = OpTypeFloat 32
         %3 = OpTypePointer CrossWorkgroup %2
         %4 = OpTypeFunction %3 %3 %1
         %6 = OpFunction %3 None %4
         %7 = OpFunctionParameter %3
         %8 = OpFunctionParameter %1
         %9 = OpLabel
         OpReturnValue %7
         OpFunctionEnd"
    )) else {
        return;
    };
    let caller = guessing_caller("CrossWorkgroup").unwrap();
    for inputs in [
        [("caller", &*caller), ("library", &*library)],
        [("library", &*library), ("caller", &*caller)],
    ] {
        let merged = link(&inputs, KEEP).unwrap();
        assert_valid(&merged.module);
        // Two calls, each with a cast of an argument and of the result.
        assert_eq!(count(&merged.module, Op::Bitcast), 4);
        assert_eq!(count(&merged.module, Op::FunctionCall), 2);
    }
    let local = guessing_caller("Workgroup").unwrap();
    let parts =
        ["imports `first` as local uint*(local uint*, uint)", "global float*(global float*"];
    assert_fails(&[("local", &local), ("library", &library)], KEEP, &parts);
}

#[test]
fn link_once_definitions_must_have_equal_types() {
    let (Some(once), Some(other)) = (library("LinkOnceODR", 1), importer("OpTypeFloat 32")) else {
        return;
    };
    let float = assemble(&format!(
        "{} OpDecorate %20 LinkageAttributes \"answer\" LinkOnceODR
         %1 = OpTypeFloat 32
         %2 = OpTypeFunction %1
         %3 = OpConstant %1 1
         %20 = OpFunction %1 None %2
         %21 = OpLabel
         OpReturnValue %3
         OpFunctionEnd",
        HEAD.replace("OpMemory", "OpExtension \"SPV_KHR_linkonce_odr\"\nOpMemory")
    ))
    .unwrap();
    let parts = ["float exports `answer` as float()", "once exports it as uint()"];
    assert_fails(&[("once", &once), ("float", &float)], KEEP, &parts);
    assert!(link(&[("other", &other), ("float", &float)], KEEP).is_ok());
}

/// Intel's front-end leaves pointers untyped; LLVM's infers their pointees.
#[test]
fn modules_of_different_compilers_are_linked() {
    for application in [APPLICATION, APPLICATION_INTEL, APPLICATION_INFERRED] {
        for library in [LIBRARY, LIBRARY_INTEL, LIBRARY_INFERRED] {
            let (application, library) = (("application", application), ("library", library));
            for inputs in [[application, library], [library, application]] {
                let merged = link(&inputs, KEEP).unwrap();
                assert_eq!(names(&reflect(&merged.module).imports), [""; 0]);
                // `spirv-val` 2023.1 does not support untyped pointers.
                if count(&merged.module, Op::TypeUntypedPointerKHR) == 0 {
                    assert_valid(&merged.module);
                }
            }
        }
    }
}
