//! Recorded graphs: replays do what the same commands do one by one, as one command of the DAG.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use futures::executor::block_on;
use futures::future::try_join_all;
use kiln::graph::GraphScalar;
use kiln::{Buffer, ErrorKind, Event, Graph, Kernel, Queue, Runtime};

const LEN: usize = 1000;

const SOURCE: &str = "
    kernel void scale(global const uint *from, global uint *to, uint by) {
        size_t i = get_global_id(0);
        to[i] = from[i] * by;
    }
    kernel void add(global const uint *a, global const uint *b, global uint *sum) {
        size_t i = get_global_id(0);
        sum[i] = a[i] + b[i];
    }
    kernel void shift(global const uint *from, global uint *to, uint by, uint n) {
        size_t i = get_global_id(0);
        if (i + by < n) to[i] = from[i + by];
    }";

struct Bench {
    rt: Runtime,
    queue: Queue,
    scale: Kernel,
    add: Kernel,
}

impl Bench {
    async fn new(rt: Runtime) -> Self {
        let program = support::program(&rt, SOURCE).await;
        // SAFETY: both kernels access elements below the global size, which is the length of their buffers.
        let [scale, add] = ["scale", "add"].map(|name| unsafe { program.kernel(name) }.unwrap());
        Self { queue: rt.queue(), rt, scale, add }
    }

    async fn buffer(&self, values: impl Fn(u32) -> u32) -> Buffer<u32> {
        self.rt.buffer_from((0..LEN as u32).map(values).collect::<Vec<_>>()).await.unwrap()
    }

    async fn read(&self, buffer: &Buffer<u32>) -> Vec<u32> {
        self.queue.read(buffer).await.unwrap()
    }

    /// Records `result = (x * by + weights) * 3`.
    async fn record(&self, weights: &Buffer<u32>) -> Weighted {
        let mut recorder = self.queue.record();
        let x = recorder.input::<u32>(LEN).unwrap();
        let result = recorder.input::<u32>(LEN).unwrap();
        let [scaled, sum] = [(); 2].map(|()| recorder.temporary::<u32>(LEN).unwrap());
        let by = recorder.scalar::<u32>();
        recorder.submit(self.scale.launch(LEN).args((&x, &scaled, &by))).unwrap();
        recorder.submit(self.add.launch(LEN).args((&scaled, weights, &sum))).unwrap();
        recorder.submit(self.scale.launch(LEN).args((&sum, result.write_only(), 3u32))).unwrap();
        let graph = recorder.finish().await.unwrap();
        Weighted { graph, x, result, by }
    }
}

struct Weighted {
    graph: Graph,
    x: Buffer<u32>,
    result: Buffer<u32>,
    by: GraphScalar<u32>,
}

impl Weighted {
    fn run(&self, x: &Buffer<u32>, result: &Buffer<u32>, by: u32) -> kiln::Result<Event> {
        let replay = self.graph.replay().bind(&self.x, x).bind(&self.result, result);
        replay.set(&self.by, by).submit()
    }
}

fn on_each_device(test: impl AsyncFn(Bench)) {
    block_on(support::on_each_device(async |rt| test(Bench::new(rt).await).await));
}

#[test]
fn replays_use_the_buffers_and_values_that_they_are_given() {
    on_each_device(async |bench| {
        let weights = bench.buffer(|i| 7 * i).await;
        let graph = bench.record(&weights).await;
        assert_eq!(graph.graph.commands(), 3);
        let mut results = Vec::new();
        for round in 0..10 {
            let x = bench.buffer(|i| i + round).await;
            let result = bench.rt.buffer::<u32>(LEN).unwrap();
            let _ = graph.run(&x, &result, round + 2).unwrap();
            results.push(result);
        }
        for (round, result) in (0..).zip(&results) {
            let expected: Vec<u32> =
                (0..LEN as u32).map(|i| ((i + round) * (round + 2) + 7 * i) * 3).collect();
            assert_eq!(bench.read(result).await, expected, "replay {round}");
        }
    });
}

#[test]
fn replays_are_ordered_with_other_commands_by_their_data() {
    on_each_device(async |bench| {
        let weights = bench.buffer(|_| 1).await;
        let graph = bench.record(&weights).await;
        let [x, y] = [bench.buffer(|i| i).await, bench.buffer(|_| 0).await];
        let mut expected: Vec<u32> = (0..LEN as u32).collect();
        for round in 0..20u32 {
            // x to y, weights change, and back.
            let _ = graph.run(&x, &y, 2).unwrap();
            let _ = bench.queue.fill(&weights, round).unwrap();
            let _ = graph.run(&y, &x, 5).unwrap();
            let _ = bench.queue.fill(&weights, 1).unwrap();
            for value in &mut expected {
                let there = value.wrapping_mul(2).wrapping_add(1).wrapping_mul(3);
                *value = there.wrapping_mul(5).wrapping_add(round).wrapping_mul(3);
            }
        }
        assert_eq!(bench.read(&x).await, expected);
    });
}

#[test]
fn many_replays_in_flight_do_not_disturb_each_other() {
    on_each_device(async |bench| {
        let weights = bench.buffer(|i| i).await;
        let graph = bench.record(&weights).await;
        let inputs =
            try_join_all((0..40).map(|n| bench.rt.buffer_from(vec![n; LEN]))).await.unwrap();
        let results: Vec<_> = inputs.iter().map(|_| bench.rt.buffer(LEN).unwrap()).collect();
        let pairs = inputs.iter().zip(&results);
        let replays: Vec<_> = pairs.map(|(x, result)| graph.run(x, result, 9).unwrap()).collect();
        drop((weights, graph, inputs));
        try_join_all(replays).await.unwrap();
        for (n, result) in (0..).zip(&results) {
            let expected: Vec<u32> = (0..LEN as u32).map(|i| (9 * n + i) * 3).collect();
            assert_eq!(bench.read(result).await, expected);
        }
    });
}

#[test]
fn a_graph_is_replayed_from_many_threads_at_once() {
    on_each_device(async |bench| {
        let weights = bench.buffer(|i| i).await;
        let graph = bench.record(&weights).await;
        support::at_once(&[0u32, 1, 2, 3, 4, 5, 6, 7], |&thread| {
            block_on(async {
                let (x, y) = (bench.buffer(|_| thread).await, bench.buffer(|_| 0).await);
                for round in 0..20 {
                    let replay = graph.run(&x, &y, round).unwrap();
                    if round % 3 == 0 {
                        replay.await.unwrap();
                    }
                }
                let expected: Vec<u32> = (0..LEN as u32).map(|i| (19 * thread + i) * 3).collect();
                assert_eq!(bench.read(&y).await, expected);
            });
        });
    });
}

#[test]
fn a_replay_runs_after_the_launches_of_an_open_fusion_scope() {
    on_each_device(async |bench| {
        let weights = bench.buffer(|_| 1).await;
        let graph = bench.record(&weights).await;
        let [x, y] = [bench.buffer(|i| i).await, bench.buffer(|_| 0).await];
        let fusion = bench.queue.start_fusion();
        let scaled = fusion.submit(bench.scale.launch(LEN).args((&x, &weights, 0u32))).unwrap();
        graph.run(&x, &y, 2).unwrap().await.unwrap();
        scaled.await.unwrap();
        let _ = fusion.complete().await;
        assert_eq!(bench.read(&y).await, (0..LEN as u32).map(|i| 6 * i).collect::<Vec<_>>());
    });
}

#[test]
fn slices_of_inputs_and_temporaries_copies_and_fills_are_replayed() {
    on_each_device(async |bench| {
        const HALF: usize = 4096;
        let mut recorder = bench.queue.record();
        let x = recorder.input::<u32>(2 * HALF).unwrap();
        let work = recorder.temporary::<u32>(2 * HALF).unwrap();
        let (low, high) = (work.slice(..HALF).unwrap(), work.slice(HALF..).unwrap());
        recorder.fill(&work, 5).unwrap();
        recorder.copy(&x.slice(HALF..).unwrap(), &low).unwrap();
        let launch = bench.scale.launch(HALF).args((&low, high.write_only(), 10u32));
        recorder.submit(launch).unwrap();
        recorder.copy(&work, &x).unwrap();
        let graph = recorder.finish().await.unwrap();
        let whole = bench.rt.buffer_from((0..4 * HALF as u32).collect::<Vec<_>>()).await.unwrap();
        let middle = whole.slice(HALF..3 * HALF).unwrap();
        graph.replay().bind(&x, &middle).submit().unwrap().await.unwrap();
        let found = bench.read(&middle).await;
        let upper = 2 * HALF as u32..3 * HALF as u32;
        let expected: Vec<u32> = upper.clone().chain(upper.map(|i| 10 * i)).collect();
        assert_eq!(found, expected);
        assert_eq!(bench.read(&whole.slice(..HALF).unwrap()).await[HALF - 1], HALF as u32 - 1);
    });
}

#[test]
fn temporaries_that_are_not_needed_together_share_memory() {
    on_each_device(async |bench| {
        let mut recorder = bench.queue.record();
        let x = recorder.input::<u32>(LEN).unwrap();
        let mut from = x.clone();
        for _ in 0..20 {
            let to = recorder.temporary::<u32>(LEN).unwrap();
            recorder.submit(bench.scale.launch(LEN).args((&from, &to, 3u32))).unwrap();
            from = to;
        }
        recorder.copy(&from, &x).unwrap();
        let graph = recorder.finish().await.unwrap();
        assert!(graph.temporary_bytes() < 3 * 4 * LEN + 4096, "{graph:?}");
        let y = bench.buffer(|i| i).await;
        graph.replay().bind(&x, &y).submit().unwrap().await.unwrap();
        let factor = 3u32.wrapping_pow(20);
        let expected: Vec<u32> = (0..LEN as u32).map(|i| i.wrapping_mul(factor)).collect();
        assert_eq!(bench.read(&y).await, expected);
    });
}

#[test]
fn new_buffers_are_zeros_for_replays_too() {
    on_each_device(async |bench| {
        let weights = bench.rt.buffer::<u32>(LEN).unwrap();
        let graph = bench.record(&weights).await;
        let (x, result) = (bench.rt.buffer::<u32>(LEN).unwrap(), bench.buffer(|_| 9).await);
        let _ = graph.run(&x, &result, 4).unwrap();
        assert_eq!(bench.read(&result).await, [0; LEN]);
    });
}

#[test]
fn checked_kernels_are_decided_at_the_recording() {
    on_each_device(async |bench| {
        let program = support::checked_program(&bench.rt, SOURCE).await;
        let shift = program.kernel("shift").unwrap();
        let scale = program.kernel("scale").unwrap();
        let mut recorder = bench.queue.record();
        let x = recorder.input::<u32>(LEN).unwrap();
        let moved = recorder.temporary::<u32>(LEN).unwrap();
        let result = recorder.input::<u32>(LEN - 3).unwrap();
        let by = recorder.scalar::<u32>();
        recorder.fill(&moved, 0).unwrap();
        let arguments = (&x, &moved, 2u32, LEN as u32);
        recorder.submit(shift.launch(LEN).args(arguments)).unwrap();
        // More work-items than `result` has elements: the writes beyond it are dropped.
        recorder.submit(scale.launch(LEN).args((&moved, &result, &by))).unwrap();
        let graph = recorder.finish().await.unwrap();
        let y = bench.buffer(|i| i).await;
        let z = bench.buffer(|_| 77).await;
        let into = z.slice(..LEN - 3).unwrap();
        let replay = graph.replay().bind(&x, &y).bind(&result, &into).set(&by, 10);
        replay.submit().unwrap().await.unwrap();
        let mut expected: Vec<u32> = (0..LEN as u32 - 3).map(|i| 10 * (i + 2)).collect();
        expected[LEN - 4] = 10 * (LEN as u32 - 2);
        expected.extend([77; 3]);
        assert_eq!(bench.read(&z).await, expected);
        let overlapping = graph.replay().bind(&x, &z).bind(&result, &into).set(&by, 1).submit();
        let error = overlapping.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("overlaps"), "{error}");
    });
}

#[test]
fn each_replay_counts_its_checked_launches() {
    on_each_device(async |bench| {
        let source = "kernel void double_all(global uint *x) { x[get_global_id(0)] *= 2; }";
        let program = support::checked_program(&bench.rt, source).await;
        let double = program.kernel("double_all").unwrap();
        let x = bench.rt.buffer::<u32>(LEN).unwrap();
        let mut recorder = bench.queue.record();
        recorder.submit(double.launch(LEN).args((&x,))).unwrap();
        recorder.submit(double.launch(LEN + 1).args((&x,))).unwrap();
        let before = bench.rt.stats();
        let graph = recorder.finish().await.unwrap();
        for _ in 0..10 {
            let _ = graph.replay().submit().unwrap();
        }
        bench.rt.drain().await;
        let after = bench.rt.stats();
        assert_eq!(after.launches.proven - before.launches.proven, 10);
        assert_eq!(after.launches.guarded - before.launches.guarded, 10);
    });
}

#[test]
fn values_that_decide_about_accesses_of_checked_kernels_cannot_be_open() {
    on_each_device(async |bench| {
        let source = "kernel void at(global uint *x, uint i) { x[i] = 1; }";
        let program = support::checked_program(&bench.rt, source).await;
        let at = program.kernel("at").unwrap();
        let mut recorder = bench.queue.record();
        let x = recorder.input::<u32>(LEN).unwrap();
        let i = recorder.scalar::<u32>();
        recorder.submit(at.launch(1).args((&x, &i))).unwrap();
        let error = recorder.finish().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("`at`: the verdict on the launch depends on `i`"),
            "{error}"
        );
    });
}

#[test]
fn images_can_be_recorded() {
    block_on(support::on_each_device_with_images(async |rt| {
        let (queue, side) = (rt.queue(), 32);
        let image = rt.image_2d::<kiln::images::Rgba<u8>>(side, side).unwrap();
        let mut recorder = queue.record();
        let x = recorder.input::<kiln::images::Rgba<u8>>(side * side).unwrap();
        recorder.copy(&x, &image).unwrap();
        let graph = recorder.finish().await.unwrap();
        let pixels: Vec<kiln::images::Rgba<u8>> =
            (0..side * side).map(|i| kiln::images::Rgba([i as u8, 1, 2, 3])).collect();
        let y = rt.buffer_from(pixels.clone()).await.unwrap();
        let _ = graph.replay().bind(&x, &y).submit().unwrap();
        assert_eq!(queue.read(&image).await.unwrap(), pixels);
    }));
}

#[test]
fn mistakes_in_recordings_are_errors() {
    on_each_device(async |bench| {
        let x = bench.buffer(|i| i).await;
        let invalid = |result: kiln::Result<()>, part: &str| {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(part), "{error}");
        };
        let mut other = bench.queue.record();
        let (foreign, value) = (other.input::<u32>(LEN).unwrap(), other.scalar::<u32>());
        let mut recorder = bench.queue.record();
        let own = recorder.input::<u32>(LEN).unwrap();
        let launch = |from: &Buffer<u32>| bench.scale.launch(LEN).args((from, &x, 3u32));
        invalid(recorder.submit(launch(&foreign)), "another recording");
        invalid(
            recorder.submit(bench.scale.launch(LEN).args((&own, &x, &value))),
            "another recording",
        );
        invalid(recorder.submit(bench.scale.launch(LEN).args((&own, &x))), "given 2 arguments");
        let marker = bench.queue.marker().unwrap();
        invalid(recorder.submit(launch(&own).after(&marker)), "only a replay");
        invalid(recorder.copy(&own, &foreign), "another recording");
        invalid(recorder.copy(&own, &x.slice(1..).unwrap()), "elements");
        invalid(recorder.copy(&own, &own), "overlap");
        invalid(recorder.fill(&foreign, 1), "another recording");
        invalid(recorder.input::<u32>(0).map(drop), "empty");
        invalid(recorder.finish().await.map(drop), "nothing was recorded");
        // Nothing but a recording can use what stands for memory.
        invalid(bench.queue.submit(launch(&own)).map(drop), "only commands of its recording");
        invalid(bench.queue.fill(&own, 1).map(drop), "only commands of its recording");
        invalid(bench.queue.copy(&x, &own).map(drop), "only commands of its recording");
        invalid(bench.queue.read(&own).await.map(drop), "only commands of its recording");
        let launch = bench.scale.launch(LEN).args((&x, &x, &value));
        invalid(bench.queue.submit(launch).map(drop), "replays of a graph set");
    });
}

#[test]
fn mistakes_in_replays_are_errors_and_change_nothing() {
    on_each_device(async |bench| {
        let weights = bench.buffer(|_| 1).await;
        let (one, other) = (bench.record(&weights).await, bench.record(&weights).await);
        let (x, y) = (bench.buffer(|i| i).await, bench.buffer(|_| 8).await);
        let full = || one.graph.replay().bind(&one.x, &x).bind(&one.result, &y).set(&one.by, 1);
        for (replay, part) in [
            (
                one.graph.replay().bind(&one.x, &x).set(&one.by, 1),
                "input 1 of a replay is not bound",
            ),
            (one.graph.replay().bind(&one.x, &x).bind(&one.result, &y), "value 0"),
            (full().bind(&other.x, &x), "not an input of its graph"),
            (full().bind(&x, &y), "not an input of its graph"),
            (full().bind(&one.x.slice(1..).unwrap(), &x.slice(1..).unwrap()), "as a whole"),
            (full().set(&other.by, 1), "another graph"),
            (full().bind(&one.x, &x.slice(1..).unwrap()), "999 elements, expected 1000"),
            (full().bind(&one.x, &other.x), "only commands of its recording"),
        ] {
            let error = replay.submit().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
        assert_eq!(bench.read(&y).await, [8; LEN]);
        full().submit().unwrap().await.unwrap();
        assert_eq!(bench.read(&y).await[5], 18);
    });
}

/// Records `x = x * by + weights`.
async fn record_step(
    bench: &Bench,
    weights: &Buffer<u32>,
) -> (Graph, Buffer<u32>, GraphScalar<u32>) {
    let mut recorder = bench.queue.record();
    let x = recorder.input::<u32>(LEN).unwrap();
    let (scaled, copied) =
        (recorder.temporary::<u32>(LEN).unwrap(), recorder.temporary::<u32>(LEN).unwrap());
    let by = recorder.scalar::<u32>();
    recorder.fill(&scaled, 9).unwrap();
    recorder.submit(bench.scale.launch(LEN).args((&x, scaled.write_only(), &by))).unwrap();
    recorder.copy(&scaled, &copied).unwrap();
    recorder.submit(bench.add.launch(LEN).args((&copied, weights, x.write_only()))).unwrap();
    (recorder.finish().await.unwrap(), x, by)
}

/// Element `i` of the buffer, after the steps with these factors.
fn after_steps(i: u32, factors: &[u32]) -> u32 {
    factors.iter().fold(i, |x, by| x.wrapping_mul(*by).wrapping_add(5 * i + 1))
}

#[test]
fn replays_with_the_same_buffers_and_values_can_be_repeated() {
    on_each_device(async |bench| {
        let weights = bench.buffer(|i| 5 * i + 1).await;
        let (graph, x, by) = record_step(&bench, &weights).await;
        let mut rng = fastrand::Rng::with_seed(4);
        let mut buffers = Vec::new();
        for _ in 0..3 {
            buffers.push((bench.buffer(|i| i).await, Vec::new()));
        }
        for round in 0..400 {
            let at = rng.usize(..buffers.len());
            // Long runs of one binding, then others at each replay, and values that never come back.
            let factor = match round / 100 {
                0 => 3,
                1 | 2 => rng.u32(1..4),
                _ => round,
            };
            let (buffer, factors) = &mut buffers[if round < 50 { 0 } else { at }];
            let event = graph.replay().bind(&x, buffer).set(&by, factor).submit().unwrap();
            factors.push(factor);
            match rng.u32(..8) {
                0 | 1 => event.await.unwrap(),
                2 => {
                    let expected: Vec<u32> =
                        (0..LEN as u32).map(|i| after_steps(i, factors)).collect();
                    assert_eq!(bench.read(buffer).await, expected, "after replay {round}");
                }
                // Replays in flight keep their memory, and later buffers may get the same address.
                3 => (*buffer, *factors) = (bench.buffer(|i| i).await, Vec::new()),
                _ => {}
            }
        }
        drop(graph);
        for (buffer, factors) in &buffers {
            let expected: Vec<u32> = (0..LEN as u32).map(|i| after_steps(i, factors)).collect();
            assert_eq!(bench.read(buffer).await, expected);
        }
    });
}

#[test]
fn replays_from_several_queues_can_use_the_same_buffers_and_values() {
    on_each_device(async |bench| {
        let weights = bench.buffer(|i| 5 * i + 1).await;
        let (graph, x, by) = record_step(&bench, &weights).await;
        let buffers = [bench.buffer(|i| i).await, bench.buffer(|i| i).await];
        let other = bench.rt.queue();
        let events = (0..200).map(|round| {
            let buffer = &buffers[round % 2];
            let launch = bench.scale.launch(LEN).args((buffer, buffer.write_only(), 1u32));
            other.submit(launch).unwrap();
            graph.replay().bind(&x, buffer).set(&by, 2).submit().unwrap()
        });
        try_join_all(events.collect::<Vec<_>>()).await.unwrap();
        let expected: Vec<u32> = (0..LEN as u32).map(|i| after_steps(i, &[2; 100])).collect();
        for buffer in &buffers {
            assert_eq!(bench.read(buffer).await, expected);
        }
    });
}

support::everywhere! {
    async fn values_and_inputs_that_no_command_uses_need_not_be_given(rt: Runtime) {
        let bench = Bench::new(rt).await;
        let mut recorder = bench.queue.record();
        let _ = recorder.scalar::<[f32; 4]>();
        let by = recorder.scalar::<u32>();
        let _ = recorder.scalar::<u64>();
        let _ = recorder.input::<u32>(7).unwrap();
        let (from, to) = (bench.buffer(|i| i).await, bench.buffer(|_| 0).await);
        recorder.submit(bench.scale.launch(LEN).args((&from, &to, &by))).unwrap();
        let graph = recorder.finish().await.unwrap();
        graph.replay().set(&by, 3).submit().unwrap().await.unwrap();
        assert_eq!(bench.read(&to).await, (0..LEN as u32).map(|i| 3 * i).collect::<Vec<_>>());

        let error = graph.replay().submit().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("value 1 of a replay is not set"), "{error}");
    }
}
