//! Equal launches that do not depend on each other, one by one over fused ones, in scopes and in recorded graphs: `cargo
//! bench --bench batched`. A row for each number of work-items states the median times of submitting 16 launches and
//! awaiting the end of all, once the trials have ended, and the way that was chosen. The sides take turns.
//!
//! With `KILN_FUSION_FORM=batched`, the launches compete with the batch alone.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

mod support;

use futures_lite::future::block_on;
use kiln::fusion::{FusionOutcome, Unfused};
use kiln::{Buffer, CacheConfig, Graph, Kernel, Launch, Module, Queue, Result, Runtime};
use support::{columns, compare, interleave, time};

/// Module with the kernel `scale`.
const MODULE: &[u8] = include_bytes!("../tests/data/fusion.spv");

const LAUNCHES: usize = 16;
const ROUNDS: usize = 51;

/// Largest number of runs for the trials.
const MAX_TRIALS: usize = 200;

/// Launches over buffers of their own, and graphs of them.
struct Batch {
    queue: Queue,
    scale: Kernel,
    items: usize,
    buffers: Vec<[Buffer<f32>; 2]>,
}

impl Batch {
    async fn new(rt: &Runtime, items: usize) -> Result<Self> {
        let program = rt.build(&Module::spirv(MODULE)?).await?;
        // SAFETY: `scale` stays below the global size, which is the length of the buffers.
        let scale = unsafe { program.kernel("scale")? };
        let mut buffers = Vec::new();
        for _ in 0..LAUNCHES {
            buffers.push([rt.buffer_from(vec![0.75; items]).await?, rt.buffer(items)?]);
        }
        Ok(Self { queue: rt.queue(), scale, items, buffers })
    }

    fn launches(&self) -> impl Iterator<Item = Launch> {
        let launch = |(n, [from, to]): (usize, &[Buffer<f32>; 2])| {
            self.scale.launch(self.items).args((from, to, n as f32))
        };
        self.buffers.iter().enumerate().map(launch)
    }

    /// Waits for the end of all commands.
    fn wait(&self) {
        block_on(self.queue.marker().expect("it is submitted")).expect("the launches run");
    }

    fn one_by_one(&self) {
        self.launches().for_each(|launch| drop(self.queue.submit(launch).expect("it is right")));
        self.wait();
    }

    /// Runs the launches in a scope, and returns how they ran.
    fn in_scope(&self) -> FusionOutcome {
        let scope = self.queue.start_fusion();
        self.launches().for_each(|launch| drop(scope.submit(launch).expect("it is right")));
        let outcome = block_on(scope.complete()).expect("fusion is not required");
        self.wait();
        outcome
    }

    fn record(&self, fuses: bool) -> Result<Graph> {
        let mut recorder = self.queue.record();
        if fuses {
            recorder.fuse();
        }
        self.launches().try_for_each(|launch| recorder.submit(launch))?;
        block_on(recorder.finish())
    }

    fn replay(&self, graph: &Graph) {
        drop(graph.replay().submit().expect("it is right"));
        self.wait();
    }
}

/// Runs launches until the fastest way is known, and describes it.
fn end_trials(mut run: impl FnMut() -> FusionOutcome) -> String {
    for _ in 0..MAX_TRIALS {
        match run() {
            FusionOutcome::Fused { form, .. } => {
                // A way that is timed has the same outcome.
                let again: Vec<_> = (0..8).map(|_| run()).collect();
                if again.iter().all(FusionOutcome::is_fused) {
                    return form.to_string();
                }
            }
            FusionOutcome::Unfused { why: Unfused::Timing, .. } => {}
            FusionOutcome::Unfused { .. } => return "one by one".to_owned(),
            _ => return "in parts".to_owned(),
        }
    }
    "undecided".to_owned()
}

fn measure(rt: &Runtime, kibi: usize) -> Result<()> {
    let batch = block_on(Batch::new(rt, kibi << 10))?;
    let in_scope = end_trials(|| batch.in_scope());
    let (plain, fused) = (batch.record(false)?, batch.record(true)?);
    let in_graph = end_trials(|| {
        batch.replay(&fused);
        fused.fusion()
    });
    let [scope, single, replay, plain_replay] = interleave(
        ROUNDS,
        [
            &mut || time(|| drop(batch.in_scope())),
            &mut || time(|| batch.one_by_one()),
            &mut || time(|| batch.replay(&fused)),
            &mut || time(|| batch.replay(&plain)),
        ],
    );
    let goal = if kibi == 8 { 2.0 } else { 0.0 };
    compare(&format!("{LAUNCHES} of {kibi} Ki, scope: {in_scope}"), single, scope, 1, goal);
    compare(&format!("{LAUNCHES} of {kibi} Ki, graph: {in_graph}"), single, replay, 1, goal);
    compare("the graph over one that is not fused", plain_replay, replay, 1, 0.0);
    Ok(())
}

fn main() -> Result<()> {
    for platform in ["intel(r) opencl", "portable computing language", "nvidia", "amd accelerated"]
    {
        let builder = Runtime::builder().device(platform).cache(CacheConfig::memory_only());
        let Ok(rt) = block_on(builder.build()) else { continue };
        columns(&rt.device().to_string(), ["single, us", "fused, us"]);
        for kibi in [1, 8, 64] {
            measure(&rt, kibi)?;
        }
    }
    Ok(())
}
