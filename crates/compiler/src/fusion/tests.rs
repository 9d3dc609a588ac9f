//! Fusion of plans over the kernels that `tests/data/README.md` describes.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use kiln_spirv::edit::Section;
use kiln_spirv::{ErrorKind, Module};
use rspirv::binary::Disassemble;
use rspirv::spirv::{Op, StorageClass};

use super::*;
use crate::{NdRange, NdSize};

mod arrangements;
mod batched;
mod contraction;
mod groups;
mod halves;
mod local;
mod malformed;
mod neighbours;
mod partition;
mod patterns;
mod pictures;
mod pointers;
mod privacy;
mod proofs;
mod rare;
mod reasons;
mod shapes;
mod stencils;
mod wide;

const OPTIMISED: &[u8] = include_bytes!("../../../../tests/data/fusion.spv");
const UNOPTIMISED: &[u8] = include_bytes!("../../../../tests/data/fusion_O0.spv");
const PATTERNS: &[u8] = include_bytes!("../../../../tests/data/patterns.spv");
const ALL_PATTERNS: [&[u8]; 2] =
    [PATTERNS, include_bytes!("../../../../tests/data/patterns_O0.spv")];
const ALL: [&[u8]; 2] = [OPTIMISED, UNOPTIMISED];

const LENGTH: usize = 1 << 12;

fn buffer(memory: u32) -> Argument {
    Argument::Buffer(Region { memory: Memory(memory), offset: 0, length: LENGTH })
}

fn float(value: f32) -> Argument {
    Argument::Scalar(value.to_le_bytes().into())
}

fn int(value: i32) -> Argument {
    Argument::Scalar(value.to_le_bytes().into())
}

type Launch = (&'static str, Vec<Argument>);

fn plan(launches: &[Launch], range: impl Into<NdSize>, dead: &[u32]) -> Plan {
    let range = NdRange::from(range.into());
    let slot = |(kernel, arguments): &Launch| Slot {
        module: 0,
        kernel: (*kernel).into(),
        range,
        arguments: arguments.clone(),
        constants: Vec::new(),
    };
    Plan {
        modules: vec![[0; 32]],
        slots: launches.iter().map(slot).collect(),
        constants: BTreeSet::new(),
        dead: dead.iter().map(|&memory| Memory(memory)).collect(),
        forms: BTreeMap::new(),
        target: Target {
            version: (1, 6),
            local_memory: 1 << 15,
            separate_functions: false,
            order_own_accesses: true,
            widen_vectors: false,
        },
    }
}

/// Launch with an nd-range of its own.
type Ranged = (&'static str, NdRange, Vec<Argument>);

fn over(global: impl Into<NdSize>) -> NdRange {
    NdRange::from(global.into())
}

/// Returns the plan of launches with nd-ranges of their own.
fn plan_of(launches: &[Ranged], dead: &[u32]) -> Plan {
    let kernels: Vec<_> =
        launches.iter().map(|(kernel, _, arguments)| (*kernel, arguments.clone())).collect();
    let mut plan = plan(&kernels, 1, dead);
    for (slot, (_, range, _)) in plan.slots.iter_mut().zip(launches) {
        slot.range = *range;
    }
    plan
}

/// Fuses a plan's launches, without what earlier calls found.
fn fuse(
    plan: &Plan,
    modules: &[&Module],
    trust: Trust,
    width: Width,
    form: FusionForm,
) -> kiln_spirv::Result<Outcome> {
    let programs = Programs { modules, examinations: &Examinations::default() };
    let outcome = super::fuse(plan, programs, trust, width, form)?;
    if let Ok(fused) = &outcome.fused {
        proofs::assert_kept(plan, modules, fused);
    }
    Ok(outcome)
}

fn fuse_in(bytes: &[u8], plan: &Plan, trust: Trust) -> Outcome {
    let module = Module::parse(bytes).unwrap();
    fuse(plan, &[&module], trust, Width::ONE, FusionForm::Direct).unwrap()
}

/// Fuses a plan. Returns the kernel and the text of its module, which must be valid.
#[track_caller]
fn fused(bytes: &[u8], plan: &Plan) -> (Fused, String) {
    let fused = fuse_in(bytes, plan, Trust::ProofOnly).fused.unwrap();
    let text = valid(&fused);
    (fused, text)
}

#[track_caller]
#[allow(clippy::print_stderr, reason = "the log reports skipped checks")]
fn valid(fused: &Fused) -> String {
    let bytes = fused.module.assemble();
    let text = rspirv::dr::load_bytes(&bytes).unwrap().disassemble();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fused.spv");
    std::fs::write(&path, bytes).unwrap();
    match Command::new("spirv-val").arg(&path).output() {
        Ok(output) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{stderr}\n{text}");
        }
        Err(error) => eprintln!("skipped: spirv-val: {error}"),
    }
    text
}

#[track_caller]
fn assert_unfused(plan: &Plan, expected: FusionVerdict) {
    let outcome = fuse_in(OPTIMISED, plan, Trust::ProofOnly);
    let verdicts: Vec<_> =
        outcome.judgements.iter().map(|judgement| judgement.verdict.clone()).collect();
    assert!(verdicts.contains(&expected), "{verdicts:?}");
    let (FusionVerdict::NeedsTrust(why) | FusionVerdict::Refuted(why)) = &expected else {
        panic!("refused")
    };
    assert_eq!(outcome.fused.unwrap_err(), *why);
    // Trust allows fusion unless a verdict is refuted.
    let trusted = fuse_in(OPTIMISED, plan, Trust::Caller).fused;
    let is_refuted = verdicts.iter().any(|verdict| matches!(verdict, FusionVerdict::Refuted(_)));
    assert_eq!(trusted.is_err(), is_refuted);
}

fn chain() -> Vec<Launch> {
    vec![
        ("scale", vec![buffer(0), buffer(1), float(3.0)]),
        ("offset", vec![buffer(1), buffer(2), float(0.5)]),
        ("in_place", vec![buffer(2)]),
        ("scale", vec![buffer(2), buffer(3), float(4.0)]),
    ]
}

#[test]
fn a_chain_becomes_one_kernel_with_each_argument_once() {
    let launches = [
        ("blur", vec![buffer(0), buffer(1)]),
        ("scale", vec![buffer(1), buffer(2), float(3.0)]),
        ("blur", vec![buffer(0), buffer(3)]),
        ("scale", vec![buffer(0), buffer(4), float(4.0)]),
    ];
    for bytes in ALL {
        let (fused, text) = fused(bytes, &plan(&launches, 1000, &[]));
        assert_eq!(fused.kernel, "fused_blur_scale_blur_scale");
        let place = |slot, argument| Place { slot, argument };
        let expected = [
            vec![place(0, 0), place(2, 0), place(3, 0)],
            vec![place(0, 1)],
            vec![place(1, 1)],
            vec![place(1, 2)],
            vec![place(2, 1)],
            vec![place(3, 1)],
            vec![place(3, 2)],
        ];
        assert_eq!(fused.parameters, expected);
        assert!(fused.internalized.is_empty());
        assert_eq!(text.matches("OpEntryPoint").count(), 1);
        // A kernel that is used twice is there twice, under two names.
        let named = |name: &str| text.lines().any(|line| line.ends_with(&format!(" \"{name}\"")));
        assert!(named("scale") && named("scale.1"), "{text}");
    }
}

/// Since SPIR-V 1.4, entry points list all global variables; before, only those that the device sets.
#[test]
fn entry_points_list_the_variables_that_their_version_requires() {
    let launches = [
        ("turned", vec![buffer(0), buffer(1)]),
        ("scale", vec![buffer(1), buffer(2), float(2.0)]),
        ("turned", vec![buffer(2), buffer(3)]),
    ];
    for (minor, variables) in [(0, 2), (3, 2), (4, 4), (6, 4)] {
        let mut bytes = OPTIMISED.to_vec();
        // In the original, the entry points already list their only variables.
        bytes[4..8].copy_from_slice(&[0, minor, 1, 0]);
        let (_, text) = fused(&bytes, &plan(&launches, 64, &[1, 2]));
        let entry = text.lines().find(|line| line.contains("OpEntryPoint")).unwrap();
        assert_eq!(entry.split_whitespace().count(), 4 + variables, "{entry}");
    }
}

#[test]
fn dead_intermediates_become_private() {
    for bytes in ALL {
        let (fused, text) = fused(bytes, &plan(&chain(), 1000, &[1, 2]));
        assert_eq!(fused.internalized, [Memory(1), Memory(2)]);
        let places: Vec<_> = fused.parameters.iter().map(|places| places[0]).collect();
        let place = |slot, argument| Place { slot, argument };
        assert_eq!(places, [place(0, 0), place(0, 2), place(1, 2), place(3, 1), place(3, 2)]);
        // The global memory that is left is read once and written once.
        let global = text.lines().filter(|line| line.contains("OpInBoundsPtrAccessChain"));
        assert_eq!(global.count(), 2, "{text}");
    }
}

#[test]
fn several_elements_vectors_and_structs_become_private() {
    let through = |kernel| {
        let launches = [(kernel, vec![buffer(0), buffer(1)]), (kernel, vec![buffer(1), buffer(2)])];
        let plan = plan(&launches, 64, &[1]);
        let (fused, _) = fused(OPTIMISED, &plan);
        assert_eq!(fused.internalized, [Memory(1)], "{kernel}");
    };
    for kernel in ["quads", "vectors", "loaded", "points"] {
        through(kernel);
    }
    // Different types in one memory: four floats as a vector, and parts of it.
    let launches = [
        ("quads", vec![buffer(0), buffer(1)]),
        ("vectors", vec![buffer(1), buffer(2)]),
        ("loaded", vec![buffer(2), buffer(3)]),
        ("quads", vec![buffer(3), buffer(4)]),
    ];
    let (fused, _) = fused(OPTIMISED, &plan(&launches, 64, &[1, 2, 3]));
    assert_eq!(fused.internalized, [Memory(1), Memory(2), Memory(3)]);
}

#[test]
fn a_neighbours_element_refutes_fusion() {
    let launches =
        [("scale", vec![buffer(0), buffer(1), float(2.0)]), ("blur", vec![buffer(1), buffer(2)])];
    assert_unfused(
        &plan(&launches, 1000, &[]),
        FusionVerdict::Refuted(
            "`blur` reads `src` at gid-1, written by `scale` in the neighbouring work-item".into(),
        ),
    );
    // In the other order the neighbour's input is overwritten.
    let launches =
        [("blur", vec![buffer(1), buffer(2)]), ("scale", vec![buffer(0), buffer(1), float(2.0)])];
    assert_unfused(
        &plan(&launches, 1000, &[]),
        FusionVerdict::Refuted(
            "`scale` writes `dst` at gid, read by `blur` in the neighbouring work-item".into(),
        ),
    );
    // A stencil over a buffer that no launch writes is harmless.
    let launches =
        [("blur", vec![buffer(0), buffer(1)]), ("scale", vec![buffer(1), buffer(2), float(2.0)])];
    let (fused, _) = fused(OPTIMISED, &plan(&launches, 1000, &[1]));
    assert_eq!(fused.internalized, [Memory(1)]);
}

#[test]
fn a_single_work_item_has_no_neighbours() {
    let launches =
        [("scale", vec![buffer(0), buffer(1), float(2.0)]), ("blur", vec![buffer(1), buffer(2)])];
    fused(OPTIMISED, &plan(&launches, 1, &[]));
}

#[test]
fn transposed_and_reversed_accesses_refute_fusion() {
    let launches = [
        ("plane", vec![buffer(0), buffer(1), int(8)]),
        ("transpose", vec![buffer(1), buffer(2), int(4), int(8)]),
    ];
    let outcome = fuse_in(OPTIMISED, &plan(&launches, [8, 4], &[]), Trust::Caller);
    let why = outcome.fused.unwrap_err();
    assert!(why.starts_with("`transpose` reads `src` at gid(0)+4*gid(1), written by `plane`"));
    let launches = [
        ("reversed", vec![buffer(0), buffer(1)]),
        ("scale", vec![buffer(1), buffer(2), float(1.0)]),
    ];
    let outcome = fuse_in(OPTIMISED, &plan(&launches, 64, &[]), Trust::Caller);
    assert!(matches!(outcome.judgements[1].verdict, FusionVerdict::Refuted(_)), "{outcome:?}");
    // Launches that share no buffer are fused, whatever their accesses.
    let launches = [
        ("transpose", vec![buffer(0), buffer(1), int(8), int(4)]),
        ("plane", vec![buffer(3), buffer(4), int(8)]),
    ];
    fused(OPTIMISED, &plan(&launches, [8, 4], &[]));
}

#[test]
fn unknown_accesses_need_trust() {
    let scale = ("scale", vec![buffer(0), buffer(1), float(2.0)]);
    for (second, parts) in [
        (
            ("gather", vec![buffer(1), buffer(2), buffer(3)]),
            &["`gather` reads `src`", "`scale`"][..],
        ),
        (
            ("chosen", vec![buffer(1), buffer(2), buffer(3), buffer(4)]),
            &["`chosen`", "chosen while it runs"],
        ),
        (
            ("escaping", vec![buffer(1), buffer(2)]),
            &["`escaping`", "address converted to an integer"],
        ),
        (("count", vec![buffer(0), buffer(1)]), &["`count` modifies atomically `bins`"]),
    ] {
        let plan = plan(&[scale.clone(), second], 64, &[1]);
        let outcome = fuse_in(UNOPTIMISED, &plan, Trust::ProofOnly);
        let why = outcome.fused.unwrap_err();
        assert!(parts.iter().all(|part| why.contains(part)), "{why}");
        // Even with trust, such a buffer stays in memory.
        let trusted = fuse_in(UNOPTIMISED, &plan, Trust::Caller).fused.unwrap();
        valid(&trusted);
        assert!(trusted.internalized.is_empty());
    }
}

#[test]
fn slices_are_compared_by_their_bytes() {
    let slice = |offset| Argument::Buffer(Region { memory: Memory(1), offset, length: 256 });
    let launches = |offset| {
        [
            ("scale", vec![buffer(0), slice(0), float(2.0)]),
            ("scale", vec![slice(offset), buffer(2), float(2.0)]),
        ]
    };
    fused(OPTIMISED, &plan(&launches(0), 64, &[]));
    fused(OPTIMISED, &plan(&launches(256), 64, &[]));
    assert_unfused(
        &plan(&launches(4), 64, &[]),
        FusionVerdict::Refuted(
            "`scale` reads `src` at gid+1, written by `scale` in the neighbouring work-item".into(),
        ),
    );
}

#[test]
fn slices_of_one_memory_may_overlap_as_several_types() {
    let slice = |offset| Argument::Buffer(Region { memory: Memory(1), offset, length: 256 });
    let launches = |offset| {
        [
            ("scale", vec![slice(0), buffer(2), float(2.0)]),
            ("gather", vec![buffer(0), slice(offset), buffer(3)]),
        ]
    };
    for bytes in ALL {
        for offset in [0, 128, 256] {
            let (fused, _) = fused(bytes, &plan(&launches(offset), 32, &[]));
            let text = crate::opencl_c::opencl_c(&fused.module).unwrap();
            assert!(text.contains("may_alias"), "{offset}: {text}");
        }
    }
}

#[test]
fn constant_memory_must_not_be_written() {
    let launches = [
        ("scale", vec![buffer(0), buffer(1), float(2.0)]),
        ("table", vec![buffer(1), buffer(2), buffer(3)]),
    ];
    let why =
        "`table` reads `weights` as constant memory, which must not change while a kernel runs";
    assert_unfused(&plan(&launches, 64, &[]), FusionVerdict::Refuted(why.into()));
}

#[test]
fn values_that_proofs_rely_on_are_fixed() {
    let launches = [
        ("plane", vec![buffer(0), buffer(1), int(8)]),
        ("plane", vec![buffer(1), buffer(2), int(8)]),
    ];
    let mut plan = plan(&launches, [8, 4], &[1]);
    for bytes in [OPTIMISED, UNOPTIMISED] {
        let outcome = fuse_in(bytes, &plan, Trust::ProofOnly);
        let widths = [0, 1].map(|slot| Place { slot, argument: 2 });
        assert_eq!(outcome.constants, BTreeSet::from(widths));
        let fused = outcome.fused.unwrap();
        valid(&fused);
        assert_eq!(fused.parameters.len(), 2);
    }
    // Values that the caller lists as constants are fixed as well.
    plan.slots[0] = Slot {
        kernel: "scale".into(),
        arguments: vec![buffer(0), buffer(1), float(1.5)],
        ..plan.slots[0].clone()
    };
    plan.slots.truncate(1);
    plan.constants.insert(Place { slot: 0, argument: 2 });
    let (fused, text) = fused(OPTIMISED, &plan);
    assert_eq!(fused.parameters.len(), 2);
    assert!(text.contains("OpConstant  %") && text.contains("1.5"), "{text}");
}

#[test]
fn work_group_sizes_that_differ_are_refused_by_name() {
    let mut local = plan(&chain(), 1000, &[]);
    local.slots[1].range.set_local(10.into()).unwrap();
    assert_eq!(fused(OPTIMISED, &local).0.range.local(), Some(&[10][..]));
    // These kernels use nothing of their work-groups.
    local.slots[3].range.set_local(20.into()).unwrap();
    assert_eq!(fused(OPTIMISED, &local).0.range.local(), None);

    let sums = |to| ("group_sums", vec![buffer(0), buffer(to), Argument::Local(80)]);
    let mut local = plan(&[sums(1), sums(2)], 1000, &[]);
    local.slots[0].range.set_local(10.into()).unwrap();
    local.slots[1].range.set_local(20.into()).unwrap();
    let why = fuse_in(OPTIMISED, &local, Trust::Caller).fused.unwrap_err();
    assert!(
        why.contains(
            "the work-group size of `group_sums` is [10], but that of `group_sums` is [20]"
        ),
        "{why}"
    );

    let launches = [("grouped", vec![buffer(0)]), ("in_place", vec![buffer(0)])];
    let mut demanded = plan(&launches, 640, &[]);
    let (_, text) = fused(OPTIMISED, &demanded);
    assert!(text.contains("LocalSize 64 1 1"), "{text}");
    demanded.slots[1] = plan(&[sums(1)], 640, &[]).slots.remove(0);
    demanded.slots[1].range.set_local(32.into()).unwrap();
    let why = fuse_in(OPTIMISED, &demanded, Trust::Caller).fused.unwrap_err();
    assert!(why.contains("[32]") && why.contains("[64, 1, 1]"), "{why}");
}

#[test]
fn by_value_and_local_arguments_are_passed_on() {
    let pair = Argument::Scalar([1.5f32, 2.5].iter().flat_map(|f| f.to_le_bytes()).collect());
    let launches = [
        ("by_value", vec![buffer(0), buffer(1), pair]),
        ("group_sums", vec![buffer(1), buffer(2), Argument::Local(64)]),
    ];
    for bytes in ALL {
        let (fused, text) = fused(bytes, &plan(&launches, 64, &[1]));
        assert_eq!(fused.parameters.len(), 5 - fused.internalized.len());
        assert!(text.contains("ByVal"));
    }
}

#[test]
fn kernels_that_do_not_exist_are_errors() {
    let module = Module::parse(OPTIMISED).unwrap();
    let missing = plan(&[("sharpen", vec![buffer(0)])], 64, &[]);
    let error =
        fuse(&missing, &[&module], Trust::ProofOnly, Width::ONE, FusionForm::Direct).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownKernel);
    assert!(error.to_string().contains("launch 0 of `sharpen`"), "{error}");
    let short = plan(&[("scale", vec![buffer(0)])], 64, &[]);
    let error =
        fuse(&short, &[&module], Trust::ProofOnly, Width::ONE, FusionForm::Direct).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// Replaces words of modules by other words of the module, by small numbers and by large ones.
#[test]
fn damaged_modules_do_not_panic() {
    let mut random = fastrand::Rng::with_seed(7);
    let two = [
        ("quads", vec![buffer(0), buffer(1)]),
        ("rows", vec![buffer(1), buffer(2), int(4)]),
        ("vectors", vec![buffer(2), buffer(3)]),
    ];
    let mut patterns = vec![
        ("group_most", vec![buffer(0), buffer(1)]),
        ("group_scaled", vec![buffer(0), buffer(1), buffer(2)]),
        ("guarded_inside", vec![buffer(2), buffer(3), int(60)]),
        ("guarded_in_place", vec![buffer(3), int(60)]),
        ("split_signed", vec![buffer(3), buffer(4), int(7)]),
        ("strided_int", vec![buffer(4), buffer(5), int(900)]),
    ];
    let mut grouped = plan(&patterns, 64, &[3]);
    grouped.slots.iter_mut().for_each(|slot| slot.range.set_local(16.into()).unwrap());
    patterns.drain(..2);
    let plans = [
        [plan(&chain(), 64, &[1, 2]), plan(&two, 64, &[1, 2])],
        [grouped, plan(&patterns, 64, &[3, 4])],
    ];
    let mut parsed = 0;
    for round in 0..200 {
        let original = [ALL, ALL_PATTERNS][round / 2 % 2][round % 2];
        let mut words: Vec<[u8; 4]> = original.as_chunks().0.to_vec();
        // Only words after the names, which fill less than a third of a module, are replaced.
        let body_start = words.len() / 3;
        for _ in 0..random.usize(1..6) {
            let (at, from) = (random.usize(body_start..words.len()), random.usize(5..words.len()));
            words[at] = match random.u8(0..4) {
                0 => words[from],
                1 => random.u32(0..200).to_le_bytes(),
                2 => random.u32(..).to_le_bytes(),
                // Another operation of the same length.
                _ => [words[from][0], words[from][1], words[at][2], words[at][3]],
            };
        }
        if let Ok(module) = Module::parse(words.as_flattened()) {
            parsed += 1;
            for plan in &plans[round / 2 % 2] {
                _ = fuse(plan, &[&module], Trust::Caller, Width::ONE, FusionForm::Direct);
            }
        }
    }
    assert!(parsed > 25, "{parsed}");
}
