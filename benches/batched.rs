//! Equal launches that do not depend on each other, in scopes against one by one: `cargo bench --bench batched`. A
//! row for each number of work-items states the median times of submitting 16 launches and awaiting them, once the
//! trials of the scope have ended, and the way that was chosen. The two sides take turns.
//!
//! With `KILN_FUSION_FORM=batched`, the launches compete with the batch alone.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

mod support;

use std::time::Duration;

use futures_lite::future::block_on;
use kiln::{Buffer, CacheConfig, Event, FusionReport, Kernel, Launch, Module, Result, Runtime};
use support::{columns, compare, interleave, time};

const SOURCE: &str = "
    kernel void filter(global const float *in, global float *out, float factor) {
        size_t i = get_global_id(0);
        float x = in[i] * factor;
        out[i] = x * x + 0.5f * x + 0.25f;
    }";

const LAUNCHES: usize = 16;
const ROUNDS: usize = 51;

/// Largest number of runs for the trials of a scope.
const MOST_TRIALS: usize = 200;

/// Launches over buffers of their own.
struct Batch {
    rt: Runtime,
    filter: Kernel,
    items: usize,
    buffers: Vec<[Buffer<f32>; 2]>,
}

impl Batch {
    async fn new(rt: &Runtime, items: usize) -> Result<Self> {
        let program = rt.build(&Module::opencl_c(SOURCE)).await?;
        // SAFETY: `filter` stays below the global size, which is the length of the buffers.
        let filter = unsafe { program.kernel("filter")? };
        let mut buffers = Vec::new();
        for _ in 0..LAUNCHES {
            buffers.push([rt.buffer_from(vec![0.75; items]).await?, rt.buffer(items)?]);
        }
        Ok(Self { rt: rt.clone(), filter, items, buffers })
    }

    fn launches(&self) -> impl Iterator<Item = Launch> {
        let launch = |(n, [from, to]): (usize, &[Buffer<f32>; 2])| {
            self.filter.launch(self.items).args((from, to, n as f32))
        };
        self.buffers.iter().enumerate().map(launch)
    }

    /// Runs the launches one by one.
    fn one_by_one(&self) -> Result<()> {
        let queue = self.rt.queue();
        let events = self.launches().map(|launch| queue.submit(launch));
        let events = events.collect::<Result<Vec<Event>>>()?;
        events.into_iter().try_for_each(block_on)
    }

    /// Runs the launches in a scope, and returns its report.
    fn in_scope(&self) -> Result<FusionReport> {
        let scope = self.rt.queue().start_fusion();
        let events = self.launches().map(|launch| scope.submit(launch));
        let events = events.collect::<Result<Vec<Event>>>()?;
        block_on(scope.complete())?;
        events.into_iter().try_for_each(block_on)?;
        Ok(scope.report())
    }

    /// Runs scopes until the fastest way is known, and describes it.
    fn end_trials(&self) -> Result<String> {
        for _ in 0..MOST_TRIALS {
            let report = self.in_scope()?;
            block_on(self.rt.drain());
            let mut ways = report.parts().iter().flat_map(|part| &part.ways);
            if let Some(way) = ways.find(|way| way.is_chosen) {
                let form = way.steps.first().and_then(|step| step.form);
                return Ok(form.map_or("one by one".to_owned(), |form| form.to_string()));
            }
        }
        Ok("undecided".to_owned())
    }

    /// Measures the launches in a scope and one by one.
    fn measure(&self) -> [Duration; 2] {
        let mut in_scope = || time(|| drop(self.in_scope().expect("it runs")));
        let mut one_by_one = || time(|| self.one_by_one().expect("it runs"));
        interleave(ROUNDS, [&mut in_scope, &mut one_by_one])
    }
}

fn main() -> Result<()> {
    for platform in ["intel(r) opencl", "portable computing language", "nvidia", "amd accelerated"]
    {
        let builder = Runtime::builder().device(platform).cache(CacheConfig::memory_only());
        let Ok(rt) = block_on(builder.build()) else { continue };
        columns(&rt.device().to_string(), ["scope, us", "single, us"]);
        for kibi in [1, 8, 64] {
            let batch = block_on(Batch::new(&rt, kibi << 10))?;
            let way = batch.end_trials()?;
            let [in_scope, one_by_one] = batch.measure();
            let name = format!("{LAUNCHES} launches of {kibi} Ki: {way}");
            compare(&name, in_scope, one_by_one, 1, if kibi == 8 { 0.5 } else { 0.0 });
        }
    }
    Ok(())
}
