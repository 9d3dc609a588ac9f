//! Chains of launches that a person would fuse: they run as one kernel, with the same bytes as one by one.
//!
//! `KILN_CHAINS_ONLY` limits the suite to the chains whose name contains the text. The benchmark `chains` measures
//! their times.

#![allow(clippy::print_stderr, reason = "the log shows which chains are fused")]
#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use fastrand::Rng;
use kiln::fusion::FusionOutcome;
use kiln::{FusionMode, Runtime};
use support::chains;
use support::chains::{Chain, Expected, Prepared, program};
use support::tier;

/// Runs the chain once. Returns the contents of all buffers, without those of the intermediates if they are
/// dropped before the launches run, the outcome of the scope, and its report.
async fn run(
    prepared: &Prepared<'_>,
    drops_intermediates: bool,
) -> (Vec<Vec<u32>>, FusionOutcome, String) {
    let buffers = prepared.buffers().await;
    let queue = prepared.rt.queue();
    let scope = queue.start_fusion();
    for launch in prepared.launches(&buffers) {
        scope.submit(launch).unwrap();
    }
    let is_kept = |at: &usize| !drops_intermediates || !prepared.chain.intermediates.contains(at);
    let kept = buffers.into_iter().enumerate().filter(|(at, _)| is_kept(at));
    let buffers: Vec<_> = kept.map(|(_, buffer)| buffer).collect();
    let outcome = scope.complete().await.unwrap();
    let report = scope.report().to_string();
    let mut all = Vec::new();
    for buffer in &buffers {
        all.push(queue.read(buffer).await.unwrap());
    }
    (all, outcome, report)
}

fn selected() -> Vec<Chain> {
    let only = std::env::var("KILN_CHAINS_ONLY").unwrap_or_default();
    let chosen = chains::all().into_iter().filter(|chain| chain.name.contains(&only));
    tier::sample(chosen.collect(), 10)
}

async fn with_mode(rt: &Runtime, mode: FusionMode) -> Runtime {
    let builder = support::builder().fusion(mode);
    builder.device(rt.device().index().to_string()).build().await.unwrap()
}

#[test]
fn chains_of_public_code_run_as_one_kernel_with_the_same_bytes() {
    let chains = selected();
    let test = support::on_each_device(async |rt: Runtime| {
        let one_by_one = with_mode(&rt, FusionMode::Never).await;
        let fusing = with_mode(&rt, FusionMode::Always).await;
        let (mut fused, mut surprises) = (0, Vec::new());
        let is_intel = rt.device().platform.starts_with("Intel");
        for chain in &chains {
            let (program, other) =
                (program(&one_by_one, chain).await, program(&fusing, chain).await);
            let unfused = Prepared::new(chain, &one_by_one, &program);
            let own = Prepared::new(chain, &fusing, &other);
            let mut is_fused = false;
            for drops_intermediates in [true, false] {
                let (expected, _, _) = run(&unfused, drops_intermediates).await;
                let (found, outcome, report) = run(&own, drops_intermediates).await;
                is_fused = outcome.is_fused();
                for (at, (expected, found)) in expected.iter().zip(&found).enumerate() {
                    let pairs = expected.iter().zip(found).enumerate();
                    let wrong: Vec<_> = pairs.filter(|(_, (a, b))| a != b).take(8).collect();
                    assert!(
                        wrong.is_empty(),
                        "{}: buffer {at} of the rest: {wrong:x?}\n{report}",
                        chain.name
                    );
                }
                eprintln!("{}: {}: {outcome}", rt.device().name, chain.name);
                let is_expected = match chain.expected {
                    Expected::Fuses => is_fused,
                    Expected::FusesExceptIntel => is_fused != is_intel,
                    Expected::Refused(why) => !is_fused && outcome.to_string().contains(why),
                };
                if !is_expected {
                    surprises.push(format!("{}: {:?}\n{report}", chain.name, chain.expected));
                }
            }
            fused += usize::from(is_fused);
        }
        eprintln!("{}: {fused} of {} chains run as one kernel", rt.device().name, chains.len());
        assert!(surprises.is_empty(), "{}", surprises.join("\n"));
    });
    futures::executor::block_on(test);
}

#[test]
fn random_chains_over_rows_and_elements_compute_the_same_bytes() {
    let cases = tier::cases("KILN_FUSION_CASES", 16, 6);
    let test = support::on_each_device(async |rt: Runtime| {
        let one_by_one = with_mode(&rt, FusionMode::Never).await;
        let fusing = with_mode(&rt, FusionMode::Always).await;
        let mut random = Rng::with_seed(1);
        let mut fused = 0;
        for case in 0..cases {
            let chain = chains::random::chain(&mut random);
            let (program, other) =
                (program(&one_by_one, &chain).await, program(&fusing, &chain).await);
            let unfused = Prepared::new(&chain, &one_by_one, &program);
            let own = Prepared::new(&chain, &fusing, &other);
            let (expected, _, _) = run(&unfused, true).await;
            let (found, outcome, report) = run(&own, true).await;
            fused += usize::from(outcome.is_fused());
            for (expected, found) in expected.iter().zip(&found) {
                let wrong = expected.iter().zip(found).position(|(a, b)| a != b);
                assert_eq!(wrong, None, "case {case}: {outcome}\n{report}");
            }
        }
        eprintln!("{}: {fused} of {cases} random chains run as one kernel", rt.device().name);
        assert!(fused > cases / 3, "{fused}");
    });
    futures::executor::block_on(test);
}
