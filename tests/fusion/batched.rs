//! Equal launches that do not depend on each other, as one kernel over the work-groups of all of them: the bytes
//! are those of the launches one by one.
//!
//! The tests of the form run in children, whose environment asks for it.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use std::time::{Duration, Instant};

use fastrand::Rng;
use kiln::fusion::{FusionForm, FusionOutcome};
use kiln::{Buffer, FusionMode, Kernel, Launch, Local, Runtime};
use support::children::{Child, DEVICE, report, variable};
use support::scopes::kernels_of_text;
use support::test_name;
use support::tools::has_clang;

const SOURCE: &str = "
    kernel void affine(global const uint *in, global uint *out, uint factor, uint term) {
        size_t i = get_global_id(0);
        out[i] = in[i] * factor + term;
    }
    kernel void mixed(global const uint *in, global uint *out, uint4 terms) {
        size_t i = get_global_id(0);
        out[i] = in[i] * terms.x + terms.w;
    }
    kernel void reversed(global const uint *in, global uint *out, local uint *all, uint times) {
        local uint own[64];
        size_t l = get_local_id(0), n = get_local_size(0), i = get_global_id(0);
        all[l] = in[i];
        own[l] = 0;
        for (uint k = 0; k < times; ++k) {
            barrier(CLK_LOCAL_MEM_FENCE);
            own[n - 1 - l] = all[l];
            barrier(CLK_LOCAL_MEM_FENCE);
            all[l] = own[l] + k;
        }
        out[i] = all[l];
    }
    kernel void places(global uint *out, uint label) {
        size_t i = (get_global_id(2) * get_global_size(1) + get_global_id(1)) * get_global_size(0)
            + get_global_id(0);
        uint sum = label;
        for (uint d = 0; d < 3; ++d) {
            sum = sum * 31 + (uint)get_global_id(d);
            sum = sum * 31 + (uint)get_local_id(d);
            sum = sum * 31 + (uint)get_group_id(d);
            sum = sum * 31 + (uint)get_global_size(d);
            sum = sum * 31 + (uint)get_local_size(d);
            sum = sum * 31 + (uint)get_num_groups(d);
            sum = sum * 31 + (uint)get_global_offset(d);
        }
        out[i] = sum * 31 + get_work_dim();
    }";

const N: usize = 512;

/// Number of launches of a batch.
const COUNT: usize = 16;

/// Kernels on a device, and buffers of [`N`] numbers each.
struct Bench {
    rt: Runtime,
    affine: Kernel,
    mixed: Kernel,
    reversed: Kernel,
    places: Kernel,
    buffers: Vec<Buffer<u32>>,
}

impl Bench {
    async fn new(rt: Runtime, buffers: usize) -> Self {
        let names = ["affine", "mixed", "reversed", "places"];
        let [affine, mixed, reversed, places] = kernels_of_text(&rt, SOURCE, names).await;
        let buffers = (0..buffers).map(|_| rt.buffer(N).unwrap()).collect();
        Self { rt, affine, mixed, reversed, places, buffers }
    }

    /// Creates the bench of a child: its runtime fuses wherever that is legal, in the form of the environment.
    async fn of_child(buffers: usize) -> Self {
        let builder = support::builder().fusion(FusionMode::Always);
        Self::new(builder.device(variable(DEVICE)).build().await.unwrap(), buffers).await
    }

    fn affine(&self, from: usize, to: usize, factor: u32) -> Launch {
        let Self { affine, buffers, .. } = self;
        affine.launch(N).args((&buffers[from], &buffers[to], factor, 7 * factor + 1))
    }

    /// Writes the same numbers to all buffers.
    fn fill(&self) {
        for (at, buffer) in self.buffers.iter().enumerate() {
            let numbers = (0..N as u32).map(|i| i.wrapping_mul(2_654_435_761) ^ at as u32);
            drop(self.rt.queue().write(buffer, numbers.collect::<Vec<_>>()).unwrap());
        }
    }

    async fn contents(&self) -> Vec<Vec<u32>> {
        let mut contents = Vec::new();
        for buffer in &self.buffers {
            contents.push(self.rt.queue().read(buffer).await.unwrap());
        }
        contents
    }

    /// Runs the launches in a scope, and asserts that the contents of all buffers are those after the launches
    /// one by one.
    async fn run(&self, launches: impl Fn(&Self) -> Vec<Launch>) -> FusionOutcome {
        self.fill();
        for launch in launches(self) {
            drop(self.rt.queue().submit(launch).unwrap());
        }
        let expected = self.contents().await;
        self.fill();
        self.rt.drain().await;
        let scope = self.rt.queue().start_fusion();
        for launch in launches(self) {
            drop(scope.submit(launch).unwrap());
        }
        let outcome = scope.complete().await.unwrap();
        assert!(self.contents().await == expected, "{outcome}");
        outcome
    }
}

/// Returns the launches of each kernel in the form `Batched`.
fn batches(outcome: &FusionOutcome) -> Vec<Vec<usize>> {
    match outcome {
        FusionOutcome::Fused { form: FusionForm::Batched, launches, .. } => {
            vec![(0..*launches).collect()]
        }
        FusionOutcome::Parts { parts, .. } => {
            let is_batched =
                |part: &&kiln::fusion::FusedPart| part.form == Some(FusionForm::Batched);
            parts.iter().filter(is_batched).map(|part| part.launches.clone()).collect()
        }
        other => panic!("{other}"),
    }
}

/// Runs a test of this suite in a child for each device, in the form `Batched`.
fn in_the_form(test: &str) {
    if !has_clang() {
        return;
    }
    futures::executor::block_on(support::on_each_device(async |rt: Runtime| {
        let device = rt.device().index().to_string();
        let variables = [(DEVICE, device.as_str()), ("KILN_FUSION_FORM", "batched")];
        Child::start(&test_name!(test), variables).report();
    }));
}

#[test]
fn equal_launches_run_as_one() {
    in_the_form("equal_launches_in_the_form");
}

#[test]
#[ignore = "another test runs it"]
fn equal_launches_in_the_form() {
    futures::executor::block_on(async {
        let bench = Bench::of_child(2 * COUNT).await;
        for round in 1..4 {
            let outcome = bench.run(|bench| {
                let launch = |n| bench.affine(2 * n, 2 * n + 1, round * (n as u32 + 1));
                (0..COUNT).map(launch).collect()
            });
            assert_eq!(batches(&outcome.await), [(0..COUNT).collect::<Vec<_>>()]);
        }
        assert_eq!(bench.rt.stats().fusion.fused, 3);
        let outcome = bench.run(|bench| {
            let launch = |n: u32| {
                let (from, to) = (&bench.buffers[0], &bench.buffers[n as usize + 1]);
                bench.mixed.launch(N).local(64).args((from, to, [n, n, n, 3 * n]))
            };
            (0..5).map(launch).collect()
        });
        assert_eq!(batches(&outcome.await), [vec![0, 1, 2, 3, 4]], "they only read in common");
        report("ran", 1);
    });
}

#[test]
fn work_groups_keep_their_barriers_and_local_memory() {
    in_the_form("work_groups_in_the_form");
}

#[test]
#[ignore = "another test runs it"]
fn work_groups_in_the_form() {
    futures::executor::block_on(async {
        let bench = Bench::of_child(8).await;
        let outcome = bench.run(|bench| {
            let launch = |n: usize| {
                let (from, to) = (&bench.buffers[2 * n], &bench.buffers[2 * n + 1]);
                let all = Local::<u32>::new(32);
                bench.reversed.launch(N).local(32).args((from, to, all, n as u32 + 1))
            };
            (0..4).map(launch).collect()
        });
        assert_eq!(batches(&outcome.await), [vec![0, 1, 2, 3]]);
        report("ran", 1);
    });
}

#[test]
fn kernels_see_the_ids_and_sizes_of_their_own_launch() {
    in_the_form("ids_in_the_form");
}

#[test]
#[ignore = "another test runs it"]
fn ids_in_the_form() {
    futures::executor::block_on(async {
        let bench = Bench::of_child(5).await;
        let ranges: [(&[usize], &[usize]); 4] =
            [(&[512], &[64]), (&[32, 16], &[8, 4]), (&[8, 4, 16], &[4, 2, 8]), (&[64], &[64])];
        for (global, local) in ranges {
            let outcome = bench.run(|bench| {
                let launch = |n: usize| {
                    let launch = bench.places.launch(support::size(global));
                    launch.local(support::size(local)).args((&bench.buffers[n], n as u32))
                };
                (0..5).map(launch).collect()
            });
            assert_eq!(batches(&outcome.await), [vec![0, 1, 2, 3, 4]], "{global:?}");
        }
        report("ran", 1);
    });
}

#[test]
fn dependent_launches_are_not_batched() {
    in_the_form("dependent_launches_in_the_form");
}

#[test]
#[ignore = "another test runs it"]
fn dependent_launches_in_the_form() {
    futures::executor::block_on(async {
        let bench = Bench::of_child(6).await;
        let chain = |bench: &Bench| vec![bench.affine(0, 1, 3), bench.affine(1, 2, 5)];
        let outcome = bench.run(chain).await;
        assert!(matches!(outcome, FusionOutcome::Unfused { .. }), "{outcome}");
        let why = "only launches that do not depend on each other are batched";
        assert!(outcome.to_string().contains(why), "{outcome}");
        // The third launch reads what the second one writes; the first and the last run beside the third.
        let partly = |bench: &Bench| {
            vec![
                bench.affine(0, 1, 3),
                bench.places.launch(N).local(64).args((&bench.buffers[2], 9u32)),
                bench.affine(2, 3, 5),
                bench.affine(4, 5, 6),
            ]
        };
        assert_eq!(batches(&bench.run(partly).await), [vec![0, 2, 3]]);
        report("ran", 1);
    });
}

#[test]
fn random_launches_have_the_same_results() {
    in_the_form("random_launches_in_the_form");
}

/// One launch of a random set, by its kernel, its buffers, its value and its number of work-items.
type Chosen = (usize, usize, usize, u32, usize);

fn random_launches(random: &mut Rng, buffers: usize) -> Vec<Chosen> {
    let mut chosen = Vec::new();
    for _ in 0..random.usize(2..10) {
        let (from, to) = (random.usize(..buffers), random.usize(..buffers));
        let to = if to == from { (to + 1) % buffers } else { to };
        let size = if random.u8(..4) == 0 { N / 2 } else { N };
        chosen.push((random.usize(..3), from, to, random.u32(..), size));
    }
    chosen
}

#[test]
#[ignore = "another test runs it"]
fn random_launches_in_the_form() {
    futures::executor::block_on(async {
        let bench = Bench::of_child(12).await;
        let mut batched = 0;
        for seed in 0..12 {
            let chosen = random_launches(&mut Rng::with_seed(seed), bench.buffers.len());
            let launch = |bench: &Bench, &(kernel, from, to, value, size): &Chosen| {
                let (from, to) = (&bench.buffers[from], &bench.buffers[to]);
                match kernel {
                    0 => bench.affine.launch(size).args((from, to, value, value / 3)),
                    1 => {
                        let all = Local::<u32>::new(64);
                        let launch = bench.reversed.launch(size).local(64);
                        launch.args((from, to, all, value % 4))
                    }
                    _ => bench.places.launch(size).local(32).args((to, value)),
                }
            };
            let outcome = bench.run(|bench| chosen.iter().map(|own| launch(bench, own)).collect());
            let outcome = outcome.await;
            if !matches!(outcome, FusionOutcome::Unfused { .. }) {
                batched += batches(&outcome).len();
            }
        }
        assert!(batched > 2, "{batched}");
        report("ran", 1);
    });
}

#[test]
fn checked_launches_are_proven_as_a_batch() {
    in_the_form("checked_launches_in_the_form");
}

#[test]
#[ignore = "another test runs it"]
fn checked_launches_in_the_form() {
    futures::executor::block_on(async {
        let mut bench = Bench::of_child(2 * COUNT).await;
        let program = support::checked_program(&bench.rt, SOURCE).await;
        bench.affine = program.kernel("affine").unwrap();
        let outcome = bench
            .run(|bench| (0..COUNT).map(|n| bench.affine(2 * n, 2 * n + 1, n as u32)).collect());
        assert_eq!(batches(&outcome.await), [(0..COUNT).collect::<Vec<_>>()]);
        assert_eq!(bench.rt.stats().launches.guarded, 0);
        report("ran", 1);
    });
}

#[test]
fn recorded_launches_run_as_one() {
    in_the_form("recorded_launches_in_the_form");
}

#[test]
#[ignore = "another test runs it"]
fn recorded_launches_in_the_form() {
    futures::executor::block_on(async {
        let bench = Bench::of_child(9).await;
        let queue = bench.rt.queue();
        bench.fill();
        for n in 0..4 {
            drop(queue.submit(bench.affine(0, n + 1, n as u32 + 2)).unwrap());
        }
        let expected = bench.contents().await;
        bench.fill();
        let mut recorder = queue.record();
        recorder.fuse();
        let factor = recorder.scalar::<u32>();
        for n in 0..4 {
            let (from, to) = (&bench.buffers[0], &bench.buffers[n + 1]);
            let term = 7 * (n as u32 + 2) + 1;
            let launch = bench.affine.launch(N);
            match n {
                0 => recorder.submit(launch.args((from, to, &factor, term))).unwrap(),
                _ => recorder.submit(launch.args((from, to, n as u32 + 2, term))).unwrap(),
            };
        }
        let graph = recorder.finish().await.unwrap();
        assert_eq!(batches(&graph.fusion()), [vec![0, 1, 2, 3]]);
        let before = bench.rt.stats().launches.submitted;
        graph.replay().set(&factor, 2).submit().unwrap().await.unwrap();
        assert_eq!(bench.rt.stats().launches.submitted - before, 1);
        assert!(bench.contents().await == expected, "{}", graph.fusion());
        report("ran", 1);
    });
}

#[test]
fn trials_compare_the_batch_with_other_ways() {
    if !has_clang() {
        return;
    }
    let builder = || support::builder().fusion(FusionMode::Auto);
    let test = async |rt: Runtime| {
        let bench = Bench::new(rt, 2 * COUNT).await;
        let deadline = Instant::now() + Duration::from_secs(120);
        let mut report = String::new();
        while Instant::now() < deadline {
            let scope = bench.rt.queue().start_fusion();
            for n in 0..COUNT {
                drop(scope.submit(bench.affine(2 * n, 2 * n + 1, 3)).unwrap());
            }
            scope.complete().await.unwrap();
            bench.rt.drain().await;
            let parts = scope.report().parts().to_vec();
            report = scope.report().to_string();
            let ways = || parts.iter().flat_map(|part| &part.ways);
            let is_batched = |way: &kiln::fusion::WayReport| {
                way.steps.iter().any(|step| step.form == Some(FusionForm::Batched))
            };
            if ways().any(|way| is_batched(way) && way.time.is_some())
                && ways().any(|way| way.is_chosen)
            {
                return;
            }
        }
        panic!("the batch is not tried: {report}");
    };
    futures::executor::block_on(support::on_each_device_with(builder, test));
}
