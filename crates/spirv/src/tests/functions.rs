//! Tests of functions that call themselves, and of the names that Kiln gives to functions and kernels.

use rspirv::spirv::{Decoration, LinkageType, Op};

use super::super::module::{Module, Section};
use super::super::names::{own_names, user_name, user_symbol};
use super::super::recursion::recursive_function;
use super::super::stream::string_words;
use super::super::widen::widen_vectors;
use super::{Builder, KERNEL};

const EXPORT: LinkageType = LinkageType::Export;
const IMPORT: LinkageType = LinkageType::Import;

/// Function of a module: its id, and the ids of the functions that it calls. One without a body is a declaration.
type Given<'a> = (u32, Option<&'a [u32]>);

/// Returns a module with kernels, linkages and functions. An id has the name `f` with its number.
fn module(
    kernels: &[(u32, &str)],
    linkages: &[(u32, &str, LinkageType)],
    functions: &[Given<'_>],
) -> Module {
    let mut builder = Builder::new();
    // Ids from here on belong to blocks and results.
    let mut results = 1 << 17..;
    builder.0[3] = 1 << 20;
    for (function, name) in kernels {
        builder = builder.text(Op::EntryPoint, &[KERNEL, *function], name);
    }
    for (id, _) in functions {
        builder = builder.text(Op::Name, &[*id], &format!("f{id}"));
    }
    for (function, name, kind) in linkages {
        let decoration = [*function, Decoration::LinkageAttributes as u32];
        let words = decoration.into_iter().chain(string_words(name)).chain([*kind as u32]);
        builder = builder.op(Op::Decorate, &words.collect::<Vec<_>>());
    }
    builder = builder.op(Op::TypeVoid, &[1]).op(Op::TypeFunction, &[2, 1]);
    for (id, calls) in functions {
        builder = builder.op(Op::Function, &[1, *id, 0, 2]);
        if let Some(calls) = calls {
            builder = builder.op(Op::Label, &[results.next().unwrap()]);
            for called in *calls {
                builder = builder.op(Op::FunctionCall, &[1, results.next().unwrap(), *called]);
            }
            builder = builder.op(Op::Return, &[]);
        }
        builder = builder.op(Op::FunctionEnd, &[]);
    }
    Module::parse(builder.bytes()).unwrap()
}

/// Returns the names of a section, in order.
fn names(module: &Module, section: Section, at: usize) -> Vec<String> {
    let all = module.section(section).iter();
    all.filter_map(|i| i.string(at).map(str::to_owned)).collect()
}

#[test]
fn a_function_that_calls_itself_is_found() {
    let alone = module(&[], &[], &[(10, Some(&[10]))]);
    assert_eq!(recursive_function(&[&alone]).as_deref(), Some("`f10`"));
    let ring = [(10, Some(&[11, 12][..])), (11, Some(&[])), (12, Some(&[13])), (13, Some(&[12]))];
    assert_eq!(recursive_function(&[&module(&[], &[], &ring)]).as_deref(), Some("`f12`"));
}

#[test]
fn a_function_that_is_called_several_times_is_no_recursion() {
    let calls =
        [(10, Some(&[11, 12, 13][..])), (11, Some(&[13])), (12, Some(&[13, 11])), (13, Some(&[]))];
    assert_eq!(recursive_function(&[&module(&[], &[], &calls)]), None);
}

#[test]
fn functions_of_linked_modules_that_call_each_other_are_found() {
    let linked = |own: &str, other: &str| {
        let linkages = [(10, own, EXPORT), (11, other, IMPORT)];
        module(&[], &linkages, &[(10, Some(&[11])), (11, None)])
    };
    let (one, other) = (linked("one", "other"), linked("other", "one"));
    assert!(recursive_function(&[&one, &other]).is_some());
    assert_eq!(recursive_function(&[&one]), None, "the import is another function");
    assert_eq!(recursive_function(&[&one, &linked("other", "third")]), None);
}

#[test]
fn long_chains_of_calls_are_followed() {
    let calls: Vec<[u32; 1]> = (11..40_000).map(|called| [called]).collect();
    let mut functions: Vec<Given<'_>> =
        calls.iter().map(|calls| (calls[0] - 1, Some(&calls[..]))).collect();
    functions.push((39_999, Some(&[10])));
    assert!(recursive_function(&[&module(&[], &[], &functions)]).is_some());
    functions.last_mut().unwrap().1 = Some(&[]);
    assert_eq!(recursive_function(&[&module(&[], &[], &functions)]), None);
}

#[test]
fn functions_get_names_that_no_reader_knows() {
    let linkages = [(11, "_Z13get_global_idj", EXPORT), (12, "_Z3minii", IMPORT)];
    let functions: [Given<'_>; 3] = [(10, Some(&[11, 12])), (11, Some(&[])), (12, None)];
    let mut own = module(&[(10, "saxpy")], &linkages, &functions);
    own_names(&mut own, |_| true).unwrap();
    let entries = names(&own, Section::EntryPoints, 2);
    assert_eq!(entries.iter().map(|name| user_name(name)).collect::<Vec<_>>(), ["saxpy"]);
    let all = names(&own, Section::Names, 1);
    assert!(!all.iter().any(|name| name == "f10" || name == "f11"), "{all:?}");
    assert_eq!(all.iter().filter(|name| name.starts_with("kiln_")).count(), 2, "{all:?}");
    // An import keeps the name that it is linked by.
    let linkages = own.linkages();
    assert_eq!(linkages.iter().map(|linkage| linkage.name).collect::<Vec<_>>(), ["_Z3minii"]);
    let before = own.assemble();
    own_names(&mut own, |_| true).unwrap();
    assert_eq!(own.assemble(), before, "names are given once");
}

#[test]
fn variables_types_and_values_get_names_that_no_reader_knows() {
    let names_of = |name: &str| {
        let builder = Builder::new().text(Op::EntryPoint, &[KERNEL, 10], "saxpy");
        let builder = (3..=7).fold(builder, |builder, id| builder.text(Op::Name, &[id], name));
        let builder = builder.op(Op::TypeVoid, &[1]).op(Op::TypeInt, &[2, 32, 0]);
        let builder = builder.op(Op::TypeStruct, &[3, 2]).op(Op::TypePointer, &[8, 4, 3]);
        let builder = builder.op(Op::Variable, &[8, 4, 4]).op(Op::TypeFunction, &[9, 1, 8]);
        let builder = builder.op(Op::Function, &[1, 10, 0, 9]).op(Op::FunctionParameter, &[8, 5]);
        let builder = builder.op(Op::Label, &[6]).op(Op::Undef, &[2, 7]).op(Op::Return, &[]);
        let mut own = Module::parse(builder.op(Op::FunctionEnd, &[]).bytes()).unwrap();
        own_names(&mut own, |_| true).unwrap();
        let before = own.assemble();
        own_names(&mut own, |_| true).unwrap();
        assert_eq!(own.assemble(), before, "names are given once");
        let all = own.section(Section::Names).iter().filter(|i| i.op() == Some(Op::Name));
        let all = all.filter_map(|i| Some((i.word(0)?, i.string(1)?.to_owned())));
        all.filter(|(id, _)| *id != 10).collect::<Vec<_>>()
    };
    let name = "opencl.sampler_t";
    for (id, own) in names_of(name) {
        // Parameters keep their names.
        assert_eq!(own.starts_with("kiln_"), id != 5, "{own}");
        assert_eq!(user_symbol(&own), name);
    }
    assert_eq!(names_of(name).len(), 5);
}

#[test]
fn kernels_that_cannot_be_told_apart_are_refused() {
    let functions: [Given<'_>; 2] = [(10, Some(&[])), (11, Some(&[]))];
    for (kernels, expected) in [
        ([(10, "saxpy"), (11, "saxpy")], "two kernels named `saxpy`"),
        ([(10, "saxpy"), (11, "kiln_kernel_saxpy")], "two kernels named"),
        ([(10, "saxpy"), (10, "blur")], "the same function as `blur`"),
    ] {
        let mut own = module(&kernels, &[], &functions);
        let error = own_names(&mut own, |_| true).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn kernels_that_are_not_kept_are_removed() {
    let kernels = [(10, "saxpy"), (11, "blur")];
    let mut kept = module(&kernels, &[], &[(10, Some(&[])), (11, Some(&[12])), (12, Some(&[]))]);
    own_names(&mut kept, |name| name == "saxpy").unwrap();
    assert_eq!(names(&kept, Section::EntryPoints, 2).len(), 1);
    assert_eq!(kept.functions.iter().map(|function| function.id).collect::<Vec<_>>(), [10]);
}

#[test]
fn vectors_are_widened_to_the_same_words_each_time() {
    let components = [10, 11, 12, 13];
    let mut builder = Builder::new();
    builder.0[3] = 200;
    builder = builder.op(Op::TypeVoid, &[1]);
    for (component, width) in components.into_iter().zip([8, 16, 32, 64]) {
        builder = builder.op(Op::TypeInt, &[component, width, 0]);
    }
    for component in components {
        builder = builder.op(Op::TypeVector, &[component + 10, component, 3]);
    }
    let taken = components.map(|component| component + 10);
    let types: Vec<_> = [30, 1].into_iter().chain(taken).collect();
    builder = builder.op(Op::TypeFunction, &types).op(Op::Function, &[1, 31, 0, 30]);
    for ty in taken {
        builder = builder.op(Op::FunctionParameter, &[ty, ty + 20]);
    }
    let builder = builder.op(Op::Label, &[50]).op(Op::Return, &[]).op(Op::FunctionEnd, &[]);
    let module = Module::parse(builder.bytes()).unwrap();
    let widened = || {
        let mut widened = module.clone();
        assert!(widen_vectors(&mut widened).unwrap());
        widened
    };
    let first = widened();
    assert!((0..20).all(|_| widened() == first));
}
