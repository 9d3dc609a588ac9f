//! Fusion of plans over the kernels that `tests/data/README.md` describes, where its internals or changed modules matter.
//! Other plans are cases in `tests/files/fusion`.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use kiln_spirv::edit::Section;
use kiln_spirv::{ErrorKind, Module};
use rspirv::binary::Disassemble;
use rspirv::spirv::{Op, StorageClass};

use super::*;
use crate::{NdRange, NdSize};

mod batched;
mod contraction;
mod examinations;
mod local;
mod malformed;
mod partition;
mod patterns;
mod pictures;
mod privacy;
mod proofs;
mod rare;
mod reasons;
mod shapes;
mod stencils;

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

/// Returns the plan of launches over 256 work-items, in work-groups of 64.
fn grouped(launches: &[Launch], dead: &[u32]) -> Plan {
    let mut plan = plan(launches, 256, dead);
    plan.slots.iter_mut().for_each(|slot| slot.range.set_local(64.into()).unwrap());
    plan
}

/// Fuses a plan's launches, without what earlier calls found. Another call has to give the same bytes: the numbers in
/// them must not follow the order of a hash map.
fn fuse(
    plan: &Plan,
    modules: &[&Module],
    trust: Trust,
    width: Width,
    form: FusionForm,
) -> kiln_spirv::Result<Outcome> {
    let new = || {
        let programs = Programs { modules, examinations: &Examinations::default() };
        super::fuse(plan, programs, trust, width, form)
    };
    let outcome = new()?;
    if let Ok(fused) = &outcome.fused {
        proofs::assert_kept(plan, modules, fused);
        assert!(new()?.fused.unwrap().module == fused.module, "the bytes differ in each call");
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

fn chain() -> Vec<Launch> {
    vec![
        ("scale", vec![buffer(0), buffer(1), float(3.0)]),
        ("offset", vec![buffer(1), buffer(2), float(0.5)]),
        ("in_place", vec![buffer(2)]),
        ("scale", vec![buffer(2), buffer(3), float(4.0)]),
    ]
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
