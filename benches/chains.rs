//! Chains of launches in the shapes of public code, in scopes against one by one: `cargo bench --bench chains`. A
//! row for each chain states the median times of submitting the launches and awaiting the last, once the trials of
//! the scope have ended. The two sides take turns. The last row of each device states how many chains take longer
//! in a scope.
//!
//! An argument after `--` limits the benchmark to the chains whose name contains it.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

mod support;

use std::time::Duration;

use ::support::chains::{self, Prepared, program};
use futures_lite::future::block_on;
use kiln::fusion::FusionReport;
use kiln::{Buffer, CacheConfig, Result, Runtime};
use support::{columns, compare, interleave, time};

const ROUNDS: usize = 51;

/// Largest number of runs for the trials of a scope.
const MAX_TRIALS: usize = 200;

/// Ratio of the times above which a chain counts as slower in a scope.
const SLOWER: f64 = 1.05;

/// Runs the launches one by one.
async fn run_one_by_one(chain: &Prepared<'_>, buffers: &[Buffer<u32>]) -> Result<()> {
    let mut last = None;
    for launch in chain.launches(buffers) {
        last = Some(chain.rt.queue().submit(launch)?);
    }
    match last {
        Some(last) => last.await,
        None => Ok(()),
    }
}

/// Runs the launches in a scope, and returns its report.
async fn run_in_scope(chain: &Prepared<'_>, buffers: &[Buffer<u32>]) -> Result<FusionReport> {
    let scope = chain.rt.queue().start_fusion();
    let mut last = None;
    for launch in chain.launches(buffers) {
        last = Some(scope.submit(launch)?);
    }
    scope.complete().await?;
    if let Some(last) = last {
        last.await?;
    }
    Ok(scope.report())
}

/// Runs a chain in scopes until the fastest way of each part is known.
async fn end_trials(chain: &Prepared<'_>, buffers: &[Buffer<u32>]) -> Result<()> {
    for _ in 0..MAX_TRIALS {
        let report = run_in_scope(chain, buffers).await?;
        chain.rt.drain().await;
        let is_known = |part: &kiln::fusion::PartReport| part.ways.iter().any(|way| way.is_chosen);
        if report.parts().iter().filter(|part| part.ways.len() > 1).all(is_known) {
            break;
        }
    }
    Ok(())
}

/// Measures a chain in a scope and one by one.
fn measure(chain: &Prepared<'_>) -> Result<[Duration; 2]> {
    let buffers = block_on(chain.buffers());
    block_on(end_trials(chain, &buffers))?;
    let in_scope = || time(|| _ = block_on(run_in_scope(chain, &buffers)).expect("it runs"));
    let one_by_one = || time(|| block_on(run_one_by_one(chain, &buffers)).expect("it runs"));
    let (mut in_scope, mut one_by_one) = (in_scope, one_by_one);
    Ok(interleave(ROUNDS, [&mut in_scope, &mut one_by_one]))
}

fn main() -> Result<()> {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let only = only.unwrap_or_default();
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        let builder = Runtime::builder().device(platform).cache(CacheConfig::memory_only());
        let Ok(rt) = block_on(builder.build()) else { continue };
        columns(&rt.device().to_string(), ["scope, us", "single, us"]);
        let chains = chains::all().into_iter().filter(|chain| chain.name.contains(&only));
        let (mut all, mut slower) = (0, 0);
        for chain in chains {
            let program = block_on(program(&rt, &chain));
            let [in_scope, one_by_one] = measure(&Prepared::new(&chain, &rt, &program))?;
            let name: String = chain.name.chars().take(44).collect();
            compare(&name, in_scope, one_by_one, 1, 1.0);
            all += 1;
            slower += u32::from(in_scope.as_secs_f64() > SLOWER * one_by_one.as_secs_f64());
        }
        println!("{slower} of {all} chains take more than {SLOWER} times as long in a scope");
    }
    Ok(())
}
