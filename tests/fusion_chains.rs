//! Chains of launches that a person would fuse: they run as one kernel, with the same bytes as one by one.
//!
//! With `KILN_CHAINS_TIMES=1`, the suite also measures both ways and prints the times. `KILN_CHAINS_ONLY`
//! limits it to the chains whose name contains the text.

#![allow(clippy::print_stderr, reason = "the log shows which chains are fused")]
#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

#[path = "support/chains/mod.rs"]
mod chains;
mod support;
use std::time::{Duration, Instant};

use chains::{Chain, Contents, Expected, Value};
use fastrand::Rng;
use kiln::{
    Buffer, FusionMode, FusionOutcome, Kernel, Launch, Local, Module, Program, Queue, Runtime,
};

fn contents(contents: Contents, random: &mut Rng) -> Vec<u32> {
    let mut floats = |count: usize, least: f32, most: f32| {
        let number = |random: &mut Rng| (least + (most - least) * random.f32()).to_bits();
        (0..count).map(|_| number(random)).collect()
    };
    match contents {
        Contents::Floats(count) => floats(count, -4.0, 4.0),
        Contents::Factors(count) => floats(count, 0.5, 1.5),
        Contents::Bytes(count) => (0..count).map(|_| random.u32(..)).collect(),
        Contents::Counting(count) => (0..count as u32).collect(),
    }
}

/// A chain on a device, with its kernels in order.
struct Prepared<'a> {
    chain: &'a Chain,
    rt: &'a Runtime,
    kernels: Vec<Kernel>,
}

impl<'a> Prepared<'a> {
    fn new(chain: &'a Chain, rt: &'a Runtime, program: &Program) -> Self {
        // SAFETY: the buffers of each chain have the sizes that its launches expect.
        let kernel = |name| unsafe { program.kernel(name) }.unwrap();
        let kernels = chain.launches.iter().map(|step| kernel(step.kernel)).collect();
        Self { chain, rt, kernels }
    }

    async fn buffers(&self) -> Vec<Buffer<u32>> {
        let mut random = Rng::with_seed(7);
        let mut buffers = Vec::new();
        for &own in &self.chain.buffers {
            buffers.push(self.rt.buffer_from(contents(own, &mut random)).await.unwrap());
        }
        buffers
    }

    fn launches(&self, buffers: &[Buffer<u32>]) -> Vec<Launch> {
        let launch = |(step, kernel): (&chains::Step, &Kernel)| {
            let mut launch = kernel.launch(support::size(&step.global));
            if let Some(local) = &step.local {
                launch = launch.local(support::size(local));
            }
            step.arguments.iter().fold(launch, |launch, value| match *value {
                Value::Buffer(at) => launch.arg(&buffers[at]),
                Value::Int(number) => launch.arg(number),
                Value::Uint(number) => launch.arg(number),
                Value::Long(number) => launch.arg(number),
                Value::Float(number) => launch.arg(number),
                Value::Local(bytes) => launch.arg(Local::<u8>::new(bytes)),
            })
        };
        self.chain.launches.iter().zip(&self.kernels).map(launch).collect()
    }

    /// Runs the chain once. Returns the contents of all buffers, without those of the intermediates if they
    /// are dropped before the launches run, and the outcome of the scope.
    async fn run(&self, drops_intermediates: bool) -> (Vec<Vec<u32>>, FusionOutcome, String) {
        let buffers = self.buffers().await;
        let queue = self.rt.queue();
        let scope = queue.start_fusion();
        for launch in self.launches(&buffers) {
            scope.submit(launch).unwrap();
        }
        let is_kept = |at: &usize| !drops_intermediates || !self.chain.intermediates.contains(at);
        let (at, buffers): (Vec<_>, Vec<_>) =
            buffers.into_iter().enumerate().filter(|(at, _)| is_kept(at)).unzip();
        let outcome = scope.complete().await.unwrap();
        let report = scope.report().to_string();
        let mut all = Vec::new();
        for buffer in &buffers {
            all.push(queue.read(buffer).await.unwrap());
        }
        assert_eq!(all.len(), at.len());
        (all, outcome, report)
    }

    /// Returns the shortest time of a run of the launches, of ten.
    async fn time(&self, is_scope: bool) -> Duration {
        let buffers = self.buffers().await;
        let queue = self.rt.queue();
        let mut best = Duration::MAX;
        for _ in 0..10 {
            let launches = self.launches(&buffers);
            let start = Instant::now();
            self.submit(&queue, launches, is_scope).await;
            best = best.min(start.elapsed());
        }
        best
    }

    async fn submit(&self, queue: &Queue, launches: Vec<Launch>, is_scope: bool) {
        if is_scope {
            let scope = queue.start_fusion();
            let mut last = None;
            for launch in launches {
                last = Some(scope.submit(launch).unwrap());
            }
            scope.complete().await.unwrap();
            last.unwrap().await.unwrap();
        } else {
            let mut last = None;
            for launch in launches {
                last = Some(queue.submit(launch).unwrap());
            }
            last.unwrap().await.unwrap();
        }
    }
}

async fn program(rt: &Runtime, chain: &Chain) -> Program {
    rt.build(&Module::spirv(chain.module).unwrap()).await.unwrap()
}

fn selected() -> Vec<Chain> {
    let only = std::env::var("KILN_CHAINS_ONLY").unwrap_or_default();
    chains::all().into_iter().filter(|chain| chain.name.contains(&only)).collect()
}

async fn with_mode(rt: &Runtime, mode: FusionMode) -> Runtime {
    let builder = support::builder().fusion(mode);
    builder.device(rt.device().name.clone()).build().await.unwrap()
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
                let (expected, _, _) = unfused.run(drops_intermediates).await;
                let (found, outcome, report) = own.run(drops_intermediates).await;
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
    let cases = std::env::var("KILN_FUSION_CASES").map_or(16, |text| text.parse().unwrap());
    let test = support::on_each_device(async |rt: Runtime| {
        let one_by_one = with_mode(&rt, FusionMode::Never).await;
        let fusing = with_mode(&rt, FusionMode::Always).await;
        let mut random = Rng::with_seed(1);
        let mut fused = 0;
        for case in 0..cases {
            let chain = chains::random(&mut random);
            let (program, other) =
                (program(&one_by_one, &chain).await, program(&fusing, &chain).await);
            let unfused = Prepared::new(&chain, &one_by_one, &program);
            let own = Prepared::new(&chain, &fusing, &other);
            let (expected, _, _) = unfused.run(true).await;
            let (found, outcome, report) = own.run(true).await;
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

#[test]
fn chains_of_public_code_are_not_slower_in_scopes() {
    if std::env::var_os("KILN_CHAINS_TIMES").is_none() {
        return;
    }
    let chains = selected();
    let test = support::on_each_device(async |rt: Runtime| {
        let rt = with_mode(&rt, FusionMode::Auto).await;
        for chain in &chains {
            let program = program(&rt, chain).await;
            let prepared = Prepared::new(chain, &rt, &program);
            for _ in 0..2 {
                prepared.time(true).await;
            }
            let (unfused, fused) = (prepared.time(false).await, prepared.time(true).await);
            let ratio = unfused.as_secs_f64() / fused.as_secs_f64();
            eprintln!(
                "{}: {}: {unfused:?} one by one, {fused:?} in a scope, {ratio:.2}",
                rt.device().name,
                chain.name
            );
        }
    });
    futures::executor::block_on(test);
}
