//! Trials of the ways to run launches, with times that the tests choose instead of measuring them.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use kiln_compiler::fusion::{Argument, FusionForm, Memory, Plan, Region, Slot, Target, Trust};
use kiln_compiler::{NdRange, NdSize};

use super::FusionMode;
use crate::build_graph::{
    Fusion, FusionRequest, Kernel, ONE_BY_ONE, Policy, Query, SelectedWay, Step,
};
use crate::cache::config::CacheConfig;
use crate::digest::Digest;
use crate::error::Result;
use crate::runtime::Runtime;
use crate::source::module::Module;

/// Module of `tests/data/fusion.cl`.
const FUSION: &[u8] = include_bytes!("../../../tests/data/fusion.spv");

/// Kernels of a chain: each reads what the one before wrote.
const CHAIN: [&str; 4] = ["scale", "offset", "scale", "offset"];

const BYTES: usize = 4096;

/// Starts a runtime with a cache on disk. Returns `None` if there is no device.
fn start(folder: &std::path::Path) -> Option<Runtime> {
    let builder = Runtime::builder().cache(CacheConfig::at(folder)).fusion(FusionMode::Auto);
    let started = block_on(async { builder.build().await });
    assert!(started.is_ok() || std::env::var_os("KILN_REQUIRE_DEVICES").is_none());
    started.ok()
}

/// Fuses the chain.
fn fuse(rt: &Runtime, needs_one_kernel: bool) -> Result<Arc<Fusion>> {
    block_on(async {
        let program = rt.build(&Module::spirv(FUSION)?).await?;
        // SAFETY: the kernels do not run.
        let kernels = CHAIN.map(|name| unsafe { program.kernel(name) });
        let kernels = kernels.into_iter().collect::<Result<Vec<Kernel>>>()?;
        let range = NdRange::from(NdSize::from(BYTES / 4));
        let mut query = Query::new(rt.device().index(), Trust::ProofOnly, false, CHAIN.len());
        if needs_one_kernel {
            query.require_one_kernel();
        }
        let (mut slots, mut modules) = (Vec::new(), Vec::new());
        for (at, kernel) in kernels.iter().enumerate() {
            kernel.resolve().await;
            let built = kernel.resolved().unwrap().as_ref().unwrap().built.key();
            modules = vec![Digest(*built.as_bytes())];
            query.launch(built, kernel.name(), &range);
            let mut arguments = Vec::new();
            for memory in [at, at + 1] {
                query.buffer(memory, &(0..BYTES), None);
                let memory = Memory(memory as u32);
                arguments.push(Argument::Buffer(Region { memory, offset: 0, length: BYTES }));
            }
            query.scalar(&2.0f32.to_le_bytes());
            arguments.push(Argument::Scalar(2.0f32.to_le_bytes().to_vec()));
            let kernel = kernel.name().to_owned();
            slots.push(Slot { module: 0, kernel, range, arguments, constants: Vec::new() });
        }
        let plan = Plan {
            modules: modules.iter().map(|module| *module.as_bytes()).collect(),
            slots,
            constants: BTreeSet::new(),
            dead: BTreeSet::new(),
            forms: BTreeMap::new(),
            target: Target {
                version: (1, 2),
                local_memory: 1 << 15,
                separate_functions: false,
                order_own_accesses: true,
                widen_vectors: false,
            },
        };
        let request = FusionRequest {
            query,
            device: rt.device().index(),
            kernels,
            plan,
            trust: Trust::ProofOnly,
            forced_form: None,
            is_tried: !needs_one_kernel,
            is_awaited: true,
            may_relax: false,
            needs_one_kernel,
        };
        rt.queue().scheduler.shared().fuser.clone().fuse(request).await
    })
}

/// Returns the way in which the only group runs this time.
fn select(fusion: &Fusion) -> SelectedWay {
    let mut selection = fusion.select(Policy::Fastest).unwrap();
    assert_eq!(selection.0.len(), 1);
    selection.0.remove(0)
}

/// Returns the launches of each step of a way.
fn steps(selected: &SelectedWay) -> Vec<Vec<usize>> {
    let launches = |step: &Step| match step {
        Step::Launch(slot) => vec![*slot],
        Step::Kernel(kernel) => kernel.slots.clone(),
    };
    selected.way.steps.iter().map(launches).collect()
}

/// Runs the trials with a time in microseconds for each number of steps of a way, until they have ended.
/// Returns the numbers of steps of the ways that were timed.
fn run_trials(
    rt: &Runtime,
    fusion: &Arc<Fusion>,
    micros: impl Fn(usize) -> u64,
) -> BTreeSet<usize> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut timed = BTreeSet::new();
    loop {
        let selected = select(fusion);
        let is_decided = fusion.report().parts()[0].ways.iter().any(|way| way.is_chosen);
        if is_decided {
            return timed;
        }
        assert!(Instant::now() < deadline, "the trials end");
        if selected.choice.is_timed {
            let steps = selected.way.steps.len();
            timed.insert(steps);
            let took = Duration::from_micros(micros(steps));
            let queue = rt.queue();
            let fuser = &queue.scheduler.shared().fuser;
            fuser.note_run(fusion, 0, selected.choice.way, Some(took));
        } else {
            // Another way is being built.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn launches_that_are_too_slow_as_one_kernel_run_in_two_parts_also_in_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let Some(rt) = start(folder.path()) else { return };
    let fusion = fuse(&rt, false).unwrap();
    let micros = |steps| match steps {
        1 => 300,
        2 => 70,
        _ => 100,
    };
    assert_eq!(run_trials(&rt, &fusion, micros), BTreeSet::from([1, 2, 4]));
    let selected = select(&fusion);
    assert!(!selected.choice.is_timed);
    let winner = steps(&selected);
    assert_eq!(winner.len(), 2, "{winner:?}");
    let mut all = winner.concat();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3]);
    block_on(async { rt.drain().await });
    drop((fusion, rt));

    let rt = start(folder.path()).unwrap();
    let fusion = fuse(&rt, false).unwrap();
    let selected = select(&fusion);
    assert!(!selected.choice.is_timed, "the times are known");
    assert_eq!(steps(&selected), winner);
    assert_eq!(rt.stats().builds.compiles, 0, "only kernels of the winner are loaded");
    // A scope that requires one kernel still gets it.
    let required = fuse(&rt, true).unwrap();
    let selected = required.select(Policy::Kernels).unwrap();
    assert_eq!(steps(&selected.0[0]), [[0, 1, 2, 3]]);
    let fusion = fuse(&rt, false).unwrap();
    assert_eq!(steps(&select(&fusion)), winner, "other scopes still use the winner");
}

#[test]
fn launches_that_are_faster_alone_run_one_by_one_after_two_parts_were_tried() {
    let folder = tempfile::tempdir().unwrap();
    let Some(rt) = start(folder.path()) else { return };
    let fusion = fuse(&rt, false).unwrap();
    let micros = |steps| if steps == 4 { 100 } else { 200 };
    assert_eq!(run_trials(&rt, &fusion, micros), BTreeSet::from([1, 2, 4]));
    assert_eq!(select(&fusion).choice.way, ONE_BY_ONE);
    let report = fusion.report();
    let forms = report.parts()[0].ways.iter().flat_map(|way| &way.steps).filter_map(|s| s.form);
    assert!(forms.into_iter().all(|form| form == FusionForm::Direct), "{report}");
    block_on(async { rt.drain().await });
    drop((fusion, rt));

    let rt = start(folder.path()).unwrap();
    let fusion = fuse(&rt, false).unwrap();
    assert_eq!(select(&fusion).choice.way, ONE_BY_ONE);
    assert_eq!(rt.stats().builds.compiles, 0);
}
