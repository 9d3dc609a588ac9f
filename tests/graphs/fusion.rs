//! Fused launches in recorded graphs: fewer kernels, with the same results.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use std::time::{Duration, Instant};

use futures::FutureExt;
use kiln::fusion::{FusionOutcome, Unfused};
use kiln::graph::GraphScalar;
use kiln::{Buffer, FusionMode, Graph, Kernel, Module, Queue, Runtime};
use support::everywhere;
use support::scopes::{always, kernels_of_text, with_mode};
use support::simulation::eventually;
use support::tools::has_clang;

const N: usize = 4096;

/// Time after which it is known which way of the launches of a graph is the fastest.
const DECIDED_WITHIN: Duration = Duration::from_secs(60);

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
        to[i] = i + by < n ? from[i + by] : 0;
    }";

struct Bench {
    rt: Runtime,
    queue: Queue,
    scale: Kernel,
    add: Kernel,
    shift: Kernel,
}

impl Bench {
    async fn new(rt: Runtime) -> Self {
        let names = ["scale", "add", "shift"];
        let [scale, add, shift] = kernels_of_text(&rt, SOURCE, names).await;
        Self { queue: rt.queue(), rt, scale, add, shift }
    }

    async fn buffer(&self, values: impl Fn(u32) -> u32) -> Buffer<u32> {
        self.rt.buffer_from((0..N as u32).map(values).collect::<Vec<_>>()).await.unwrap()
    }

    async fn read(&self, buffer: &Buffer<u32>) -> Vec<u32> {
        self.queue.read(buffer).await.unwrap()
    }

    /// Records `result = (x * by + weights) * 3`.
    async fn weighted(&self, weights: &Buffer<u32>) -> Weighted {
        let mut recorder = self.queue.record();
        recorder.fuse();
        let [x, result] = [(); 2].map(|()| recorder.input::<u32>(N).unwrap());
        let [scaled, sum] = [(); 2].map(|()| recorder.temporary::<u32>(N).unwrap());
        let by = recorder.scalar::<u32>();
        recorder.submit(self.scale.launch(N).args((&x, &scaled, &by))).unwrap();
        recorder.submit(self.add.launch(N).args((&scaled, weights, &sum))).unwrap();
        recorder.submit(self.scale.launch(N).args((&sum, result.write_only(), 3u32))).unwrap();
        Weighted { graph: recorder.finish().await.unwrap(), x, result, by }
    }
}

struct Weighted {
    graph: Graph,
    x: Buffer<u32>,
    result: Buffer<u32>,
    by: GraphScalar<u32>,
}

impl Weighted {
    fn submit(&self, x: &Buffer<u32>, result: &Buffer<u32>, by: u32) -> kiln::Event {
        let replay = self.graph.replay().bind(&self.x, x).bind(&self.result, result);
        replay.set(&self.by, by).submit().unwrap()
    }
}

/// Waits until the fused kernels of a graph are built, for which `finish` waits no longer than a second.
fn await_kernels(graph: &Graph) {
    eventually("the kernels of the graph are built", || {
        !matches!(graph.fusion(), FusionOutcome::Unfused { why: Unfused::Overdue { .. }, .. })
    });
}

fn weighted(x: impl Fn(u32) -> u32, weights: impl Fn(u32) -> u32, by: u32) -> Vec<u32> {
    (0..N as u32).map(|i| x(i).wrapping_mul(by).wrapping_add(weights(i)).wrapping_mul(3)).collect()
}

everywhere! {
    async fn a_recorded_chain_runs_as_one_kernel(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let bench = Bench::new(always(&rt).await).await;
        let weights = bench.buffer(|i| 7 * i).await;
        let graph = bench.weighted(&weights).await;
        match graph.graph.fusion() {
            FusionOutcome::Fused { launches: 3, internalized: 2, .. } => {}
            other => panic!("{other}"),
        }
        assert_eq!((graph.graph.commands(), graph.graph.temporary_bytes()), (3, 0));
        let before = bench.rt.stats().launches.submitted;
        let mut results = Vec::new();
        for round in 0..5 {
            let x = bench.buffer(|i| i ^ round).await;
            let result = bench.rt.buffer::<u32>(N).unwrap();
            let _ = graph.submit(&x, &result, round + 2);
            results.push(result);
        }
        for (round, result) in (0..).zip(&results) {
            let expected = weighted(|i| i ^ round, |i| 7 * i, round + 2);
            assert_eq!(bench.read(result).await, expected, "replay {round}");
        }
        assert_eq!(bench.rt.stats().launches.submitted - before, 5, "one launch for each replay");
    }
}

everywhere! {
    async fn replays_with_overlapping_buffers_run_the_launches_one_by_one(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let bench = Bench::new(always(&rt).await).await;
        let weights = bench.buffer(|i| i).await;
        let graph = bench.weighted(&weights).await;
        let x = bench.buffer(|i| i + 1).await;
        let before = bench.rt.stats().launches.submitted;
        let _ = graph.submit(&x, &x, 5);
        // The fixed buffer overlaps with the result of this one.
        let _ = graph.submit(&x, &weights, 2);
        let once = |i: u32| ((i + 1).wrapping_mul(5).wrapping_add(i)).wrapping_mul(3);
        assert_eq!(bench.read(&x).await, weighted(|i| i + 1, |i| i, 5));
        assert_eq!(bench.read(&weights).await, weighted(once, |i| i, 2));
        assert_eq!(bench.rt.stats().launches.submitted - before, 6);
    }
}

everywhere! {
    async fn launches_whose_fusion_depends_on_a_value_that_replays_set_run_alone(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let bench = Bench::new(always(&rt).await).await;
        let mut recorder = bench.queue.record();
        recorder.fuse();
        let [x, result] = [(); 2].map(|()| recorder.input::<u32>(N).unwrap());
        let all = [(); 5].map(|()| recorder.temporary::<u32>(N).unwrap());
        let by = recorder.scalar::<u32>();
        recorder.submit(bench.scale.launch(N).args((&x, &all[0], 2u32))).unwrap();
        recorder.submit(bench.scale.launch(N).args((&all[0], &all[1], 3u32))).unwrap();
        let shifted = bench.shift.launch(N).args((&all[1], &all[2], &by, N as u32));
        recorder.submit(shifted).unwrap();
        recorder.submit(bench.scale.launch(N).args((&all[2], &all[3], 5u32))).unwrap();
        recorder.submit(bench.scale.launch(N).args((&all[3], &all[4], &by))).unwrap();
        recorder.submit(bench.add.launch(N).args((&all[4], &x, &result))).unwrap();
        let graph = recorder.finish().await.unwrap();
        let FusionOutcome::Parts { parts, .. } = graph.fusion() else { panic!("{}", graph.fusion()) };
        let launches: Vec<_> = parts.iter().map(|part| part.launches.clone()).collect();
        assert_eq!(launches, [vec![0, 1], vec![2], vec![3, 4, 5]]);
        assert!(graph.fusion().to_string().contains("value that replays set"), "{}", graph.fusion());
        let given = bench.buffer(|i| i + 1).await;
        for value in [0, 1, 700, N as u32 - 1] {
            let shown = bench.rt.buffer::<u32>(N).unwrap();
            let replay = graph.replay().bind(&x, &given).bind(&result, &shown).set(&by, value);
            let _ = replay.submit().unwrap();
            let expected: Vec<u32> = (0..N as u32)
                .map(|i| {
                    let from = if i + value < N as u32 { i + value + 1 } else { 0 };
                    (from * 6 * 5).wrapping_mul(value).wrapping_add(i + 1)
                })
                .collect();
            assert_eq!(bench.read(&shown).await, expected, "{value}");
        }
    }
}

everywhere! {
    async fn temporaries_that_later_commands_read_keep_their_contents(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let bench = Bench::new(always(&rt).await).await;
        let mut recorder = bench.queue.record();
        recorder.fuse();
        let [x, result] = [(); 2].map(|()| recorder.input::<u32>(N).unwrap());
        let [first, second, copied] = [(); 3].map(|()| recorder.temporary::<u32>(N).unwrap());
        recorder.submit(bench.scale.launch(N).args((&x, &first, 3u32))).unwrap();
        recorder.submit(bench.scale.launch(N).args((&first, &second, 5u32))).unwrap();
        recorder.copy(&first, &copied).unwrap();
        recorder.submit(bench.add.launch(N).args((&copied, &second, &result))).unwrap();
        recorder.submit(bench.add.launch(N).args((&result, &first, &result))).unwrap();
        let graph = recorder.finish().await.unwrap();
        let given = bench.buffer(|i| i).await;
        let shown = bench.rt.buffer::<u32>(N).unwrap();
        let _ = graph.replay().bind(&x, &given).bind(&result, &shown).submit().unwrap();
        let expected: Vec<u32> = (0..N as u32).map(|i| 3 * i + 15 * i + 3 * i).collect();
        assert_eq!(bench.read(&shown).await, expected, "{}", graph.fusion());
        assert_eq!(graph.fusion().to_string().matches("fused_").count(), 2, "{}", graph.fusion());
    }
}

/// Kernels of [`SOURCE`] whose launches are checked.
async fn checked(rt: &Runtime) -> [Kernel; 2] {
    let program = rt.build(&Module::opencl_c(SOURCE)).checked().await.unwrap();
    ["scale", "add"].map(|name| program.kernel(name).unwrap())
}

everywhere! {
    async fn commands_wait_for_what_any_of_the_fused_launches_writes(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let bench = Bench::new(always(&rt).await).await;
        for [scale, add] in [[bench.scale.clone(), bench.add.clone()], checked(&bench.rt).await] {
            // The first launch of the kernel only reads the memory that the second one writes.
            let mut recorder = bench.queue.record();
            recorder.fuse();
            let x = recorder.input::<u32>(N).unwrap();
            let sum = recorder.temporary::<u32>(N).unwrap();
            recorder.submit(add.launch(N).args((x.read_only(), x.read_only(), &sum))).unwrap();
            recorder.submit(scale.launch(N).args((&sum, x.write_only(), 3u32))).unwrap();
            let graph = recorder.finish().await.unwrap();
            let outcome = graph.fusion();
            assert!(matches!(outcome, FusionOutcome::Fused { launches: 2, .. }), "{outcome}");
            let given = bench.buffer(|i| i).await;
            let (open, is_open) = futures::channel::oneshot::channel::<()>();
            let gate = bench.queue.host_task(is_open.map(drop)).unwrap();
            let _ = graph.replay().bind(&x, &given).after(&gate).submit().unwrap();
            let read = bench.queue.read(&given);
            // A read that does not wait for the replay ends before it starts.
            bench.read(&bench.buffer(|i| i).await).await;
            open.send(()).unwrap();
            let is_new = read.await.unwrap() == (0..N as u32).map(|i| 6 * i).collect::<Vec<_>>();
            assert!(is_new, "the read did not wait for the replay");
        }
    }
}

everywhere! {
    async fn fused_launches_that_overwrite_lost_memory_make_it_good(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let bench = Bench::new(always(&rt).await).await;
        let mut recorder = bench.queue.record();
        recorder.fuse();
        let [x, result] = [(); 2].map(|()| recorder.input::<u32>(N).unwrap());
        recorder.submit(bench.scale.launch(N).args((&x, result.write_only(), 3u32))).unwrap();
        let scaled = bench.scale.launch(N).args((result.read_only(), result.write_only(), 5u32));
        recorder.submit(scaled).unwrap();
        let graph = recorder.finish().await.unwrap();
        let outcome = graph.fusion();
        assert!(matches!(outcome, FusionOutcome::Fused { launches: 2, .. }), "{outcome}");
        let (given, lost) = (bench.buffer(|i| i).await, bench.buffer(|i| i).await);
        let fails = async { Err::<(), _>(std::io::Error::other("it is not there")) };
        let failing = bench.scale.launch(N).args((&lost, &lost, 2u32)).after_future(fails);
        let _ = bench.queue.submit(failing).unwrap();
        bench.queue.read(&lost).await.unwrap_err();
        let submit = |from, to| graph.replay().bind(&x, from).bind(&result, to).submit().unwrap();
        let error = submit(&lost, &given).await.unwrap_err();
        assert!(error.to_string().contains("it is not there"), "{error}");
        let source = bench.buffer(|i| i).await;
        let _ = submit(&source, &lost);
        assert_eq!(bench.read(&lost).await, (0..N as u32).map(|i| 15 * i).collect::<Vec<_>>());
    }
}

everywhere! {
    async fn the_first_replays_are_timed_until_the_fastest_way_is_known(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let bench = Bench::new(with_mode(&rt, FusionMode::Auto).await).await;
        let weights = bench.buffer(|i| 7 * i).await;
        let graph = bench.weighted(&weights).await;
        await_kernels(&graph.graph);
        assert!(graph.graph.fusion().to_string().contains("timed"), "{}", graph.graph.fusion());
        let x = bench.buffer(|i| i).await;
        let (mut is_decided, mut replays) = (false, 0);
        let deadline = Instant::now() + DECIDED_WITHIN;
        while !is_decided && Instant::now() < deadline {
            let result = bench.rt.buffer::<u32>(N).unwrap();
            let _ = graph.submit(&x, &result, replays);
            assert_eq!(bench.read(&result).await, weighted(|i| i, |i| 7 * i, replays));
            replays += 1;
            is_decided = !graph.graph.fusion().to_string().contains("timed");
        }
        assert!(is_decided, "{}", graph.graph.fusion());
    }
}

everywhere! {
    async fn a_graph_says_how_its_launches_run_once_all_replays_have_ended(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let bench = Bench::new(with_mode(&rt, FusionMode::Auto).await).await;
        let weights = bench.buffer(|i| 7 * i).await;
        let x = bench.buffer(|i| i).await;
        let result = bench.rt.buffer::<u32>(N).unwrap();

        // No replay is submitted after the times of the first ones are known, or the times stay unknown, because the
        // replays are canceled.
        for is_canceled in [false, true] {
            let graph = bench.weighted(&weights).await;
            await_kernels(&graph.graph);
            let mut is_decided = false;
            let deadline = Instant::now() + DECIDED_WITHIN;
            while !is_decided && Instant::now() < deadline {
                let (open, gate) = async_channel::bounded::<()>(1);
                let gate = bench.queue.host_task(async move {
                    gate.recv().await.map_err(|_| std::io::Error::other("the application gave up"))
                });
                let gate = gate.unwrap();
                let replays: Vec<_> = (0..40)
                    .map(|by| {
                        let replay = graph.graph.replay().bind(&graph.x, &x).bind(&graph.result, &result);
                        replay.set(&graph.by, by).after(&gate).submit().unwrap()
                    })
                    .collect();
                match is_canceled {
                    true => drop(open),
                    false => open.try_send(()).unwrap(),
                }
                for replay in replays {
                    assert_eq!(replay.await.is_err(), is_canceled);
                }
                is_decided = !graph.graph.fusion().to_string().contains("timed");
            }
            assert!(is_decided, "{}", graph.graph.fusion());
        }
    }
}

everywhere! {
    async fn a_graph_says_that_buffers_of_its_replays_overlap(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let bench = Bench::new(with_mode(&rt, FusionMode::Auto).await).await;
        let weights = bench.buffer(|i| i).await;
        let graph = bench.weighted(&weights).await;
        let x = bench.buffer(|i| i + 1).await;
        graph.submit(&x, &x, 5).await.unwrap();
        let outcome = graph.graph.fusion();
        assert!(
            matches!(outcome, FusionOutcome::Unfused { why: Unfused::Overlapping, .. }),
            "{outcome}"
        );
    }
}

everywhere! {
    async fn graphs_do_not_fuse_where_fusion_is_off(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let bench = Bench::new(with_mode(&rt, FusionMode::Never).await).await;
        let weights = bench.buffer(|i| i).await;
        let graph = bench.weighted(&weights).await;
        let outcome = graph.graph.fusion();
        assert!(matches!(outcome, FusionOutcome::Unfused { why: Unfused::Disabled, .. }));
        let (x, result) = (bench.buffer(|i| i).await, bench.rt.buffer::<u32>(N).unwrap());
        let _ = graph.submit(&x, &result, 2);
        assert_eq!(bench.read(&result).await, weighted(|i| i, |i| i, 2));
    }
}

everywhere! {
    async fn checked_launches_are_fused_only_where_the_kernel_is_proven(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let rt = always(&rt).await;
        let program = support::checked_program(&rt, SOURCE).await;
        let [scale, shift] = ["scale", "shift"].map(|name| program.kernel(name).unwrap());
        let queue = rt.queue();
        let mut recorder = queue.record();
        recorder.fuse();
        let [x, result] = [(); 2].map(|()| recorder.input::<u32>(N).unwrap());
        let [first, second] = [(); 2].map(|()| recorder.temporary::<u32>(N).unwrap());
        let by = recorder.scalar::<u32>();
        recorder.submit(scale.launch(N).args((&x, &first, &by))).unwrap();
        recorder.submit(scale.launch(N).args((&first, &second, 3u32))).unwrap();
        recorder.submit(shift.launch(N).args((&second, &result, 1u32, N as u32))).unwrap();
        let graph = recorder.finish().await.unwrap();
        assert!(graph.fusion().to_string().contains("fused_scale"), "{}", graph.fusion());
        let numbers: Vec<u32> = (0..N as u32).collect();
        let given = rt.buffer_from(numbers).await.unwrap();
        let shown = rt.buffer::<u32>(N).unwrap();
        let replay = graph.replay().bind(&x, &given).bind(&result, &shown).set(&by, 7);
        replay.submit().unwrap().await.unwrap();
        let at = |i: u32| if i + 1 < N as u32 { (i + 1) * 21 } else { 0 };
        let expected: Vec<u32> = (0..N as u32).map(at).collect();
        assert_eq!(queue.read(&shown).await.unwrap(), expected);
        let overlapping = graph.replay().bind(&x, &given).bind(&result, &given).set(&by, 7);
        assert!(overlapping.submit().is_err(), "checked launches need memory that is apart");
    }
}
