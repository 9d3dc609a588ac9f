//! Gain of fusion: `cargo bench --bench fusion`. Launches run one by one, as one fused kernel, and as a kernel
//! written by hand. For comparison, the device copies the same number of bytes.
//!
//! Arguments after `--`:
//!
//! * parts of the rows' names, to run only these rows;
//! * `--spirv FILE`, the kernels as a SPIR-V module, to fuse them where no clang can translate the source;
//! * `--source`, to print the source;
//! * `--chain`, for `benches/gpu/run`, to run only six light kernels and print tab-separated lines.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

mod support;

use std::cell::RefCell;
use std::time::{Duration, Instant};

use futures_lite::future::block_on;
use kiln::devices::DeviceKind;
use kiln::fusion::Internalization;
use kiln::internal::fusion::{Argument, FusionOptions, Launch, fuse, range};
use kiln::launch::NdSize;
use kiln::{
    Buffer, CacheConfig, Event, FusionMode, Kernel, Module, Queue, Result, Runtime, RuntimeBuilder,
};
use support::{absolute, interleave, median, time};

const SMALL: usize = 1 << 10;
const ROUNDS: usize = 12;

/// Operations of the kernels of a chain on each element, light and heavy.
const LIGHT: [&str; 8] = [
    "x * 1.5f",
    "x + 0.25f",
    "fmin(x, 4.0f)",
    "x * x",
    "1.0f - x",
    "fabs(x)",
    "x * 0.5f + 0.125f",
    "fmax(x, 0.0625f)",
];
const HEAVY: [&str; 4] = ["exp(x * 0.125f)", "sin(x)", "log(x * x + 1.0f)", "sqrt(fabs(x))"];
const KINDS: [(&str, &[&str]); 2] = [("light", &LIGHT), ("heavy", &HEAVY)];

/// Returns, for each kind, a kernel for each step, and one combined kernel for the first 2, 3, ... steps.
fn source() -> String {
    let kernel = |name: &str, body: &str| {
        format!(
            "kernel void {name}(global const float *src, global float *dst) {{
                 size_t i = get_global_id(0);
                 float x = src[i];
                 {body}
                 dst[i] = x;
             }}\n"
        )
    };
    let assign = |step: &&str| format!("x = {step};\n");
    let kernels_of = |(kind, steps): (&str, &[&str])| {
        let singles = steps.iter().enumerate();
        let singles = singles.map(|(n, step)| kernel(&format!("{kind}_{n}"), &assign(step)));
        let wholes = (2..=steps.len()).map(|count| {
            let body: String = steps[..count].iter().map(assign).collect();
            kernel(&format!("{kind}_all_{count}"), &body)
        });
        singles.chain(wholes).collect::<String>()
    };
    KINDS.map(kernels_of).concat()
}

/// Selected rows and modules.
struct Setting {
    spirv: Option<Module>,
    filters: Vec<String>,
    is_for_peers: bool,
}

impl Setting {
    fn new() -> Result<Self> {
        let mut setting = Self { spirv: None, filters: Vec::new(), is_for_peers: false };
        let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--source" => {
                    print!("{}", source());
                    std::process::exit(0);
                }
                "--chain" => setting.is_for_peers = true,
                "--spirv" => {
                    let path = arguments.next().expect("the name of a file follows `--spirv`");
                    setting.spirv = Some(Module::spirv(std::fs::read(path).expect("it is there"))?);
                }
                _ => setting.filters.push(argument),
            }
        }
        Ok(setting)
    }

    fn includes(&self, row: &str) -> bool {
        self.filters.is_empty() || self.filters.iter().any(|filter| row.contains(filter))
    }
}

/// Shape of a measured chain.
#[derive(Clone, Copy)]
struct Shape {
    kind: &'static str,
    kernels: usize,
    elements: usize,
    /// Number of runs before the host waits.
    runs: usize,
}

impl Shape {
    /// Returns the name of the row of this shape.
    fn name(self, suffix: &str) -> String {
        let Self { kind, kernels, elements, .. } = self;
        let bytes = elements * size_of::<f32>();
        let (size, unit) =
            if bytes >> 20 > 0 { (bytes >> 20, "MiB") } else { (bytes >> 10, "KiB") };
        format!("{kernels} {kind} kernels, {size} {unit}{suffix}")
    }
}

struct Chain {
    shape: Shape,
    queue: Queue,
    steps: Vec<Kernel>,
    whole: Kernel,
    /// Buffers: one more than there are steps.
    buffers: Vec<Buffer<f32>>,
}

/// Times of each variant: fused, one by one, written by hand, and a copy.
type Times = [Duration; 4];

impl Chain {
    fn new(rt: &Runtime, setting: &Setting, shape: Shape) -> Result<Self> {
        let source = Module::opencl_c(source());
        let singles = block_on(rt.build(setting.spirv.as_ref().unwrap_or(&source)).into_future())?;
        let wholes = block_on(rt.build(&source).into_future())?;
        let Shape { kind, kernels, elements, .. } = shape;
        // SAFETY: the first is written below, and each of the others by a kernel before it is read.
        let buffers = (0..=kernels).map(|_| unsafe { rt.buffer_uninit(elements) });
        let buffers: Vec<_> = buffers.collect::<Result<_>>()?;
        let queue = rt.queue();
        let numbers = (0..elements).map(|n| (n % 1000) as f32 * 0.01 - 3.0).collect::<Vec<_>>();
        queue.write(&buffers[0], numbers)?.wait()?;
        // SAFETY: each work-item uses the element of its id, and there are as many.
        let step = |n| unsafe { singles.kernel(&format!("{kind}_{n}")) };
        let steps = (0..kernels).map(step).collect::<Result<_>>()?;
        // SAFETY: as above.
        let whole = unsafe { wholes.kernel(&format!("{kind}_all_{kernels}")) }?;
        let chain = Self { shape, queue, steps, whole, buffers };
        chain.check()?;
        Ok(chain)
    }

    /// Runs the chain in each variant, and compares the results.
    fn check(&self) -> Result<()> {
        let last = &self.buffers[self.shape.kernels];
        let result = || block_on(self.queue.read(last).into_future());
        self.one_by_one()?;
        let expected = result()?;
        for run in [Self::fused, Self::by_hand] {
            self.queue.fill(last, f32::NAN)?;
            run(self)?;
            let found = result()?;
            let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * b.abs().max(1.0);
            assert!(found.iter().zip(&expected).all(is_near), "the results differ");
        }
        Ok(())
    }

    fn range(&self) -> NdSize {
        self.shape.elements.into()
    }

    /// Runs the launches one by one. Returns the events of the first and the last launch, as all variants do.
    fn one_by_one(&self) -> Result<[Event; 2]> {
        let mut events = Vec::new();
        for (step, buffers) in self.steps.iter().zip(self.buffers.windows(2)) {
            let launch = step.launch(self.range()).args((&buffers[0], &buffers[1]));
            events.push(self.queue.submit(launch)?);
        }
        let last = events.last().expect("a chain has steps").clone();
        Ok([events.swap_remove(0), last])
    }

    fn fused(&self) -> Result<[Event; 2]> {
        self.scope().map(|(events, _)| events)
    }

    /// Runs the launches in a fusion scope. Also returns whether they run as one kernel.
    fn scope(&self) -> Result<([Event; 2], bool)> {
        let scope = self.queue.start_fusion();
        let mut events = Vec::new();
        for (step, buffers) in self.steps.iter().zip(self.buffers.windows(2)) {
            let launch = step.launch(self.range()).args((&buffers[0], &buffers[1]));
            events.push(scope.submit(launch)?);
        }
        for buffer in &self.buffers[1..self.steps.len()] {
            scope.internalize(buffer, Internalization::Private);
        }
        let outcome = block_on(scope.complete())?;
        let last = events.last().expect("a chain has steps").clone();
        Ok(([events.swap_remove(0), last], outcome.is_fused()))
    }

    fn by_hand(&self) -> Result<[Event; 2]> {
        let (first, last) = (&self.buffers[0], &self.buffers[self.steps.len()]);
        let event = self.queue.submit(self.whole.launch(self.range()).args((first, last)))?;
        Ok([event.clone(), event])
    }

    fn copy(&self) -> Result<[Event; 2]> {
        let (first, last) = (&self.buffers[0], &self.buffers[self.steps.len()]);
        let event = self.queue.copy(first, last)?;
        Ok([event.clone(), event])
    }

    /// Measures how long the host waits, divided by the number of runs.
    fn measure(&self, rounds: usize) -> Result<Times> {
        let failure = RefCell::new(Ok(()));
        let run = |run: fn(&Self) -> Result<[Event; 2]>| {
            let all = || {
                for _ in 1..self.shape.runs {
                    run(self)?;
                }
                run(self)?[1].wait()
            };
            let took = time(|| {
                if let Err(error) = all() {
                    *failure.borrow_mut() = Err(error);
                }
            });
            took / self.shape.runs as u32
        };
        let times = interleave(
            rounds,
            [
                &mut || run(Self::fused),
                &mut || run(Self::one_by_one),
                &mut || run(Self::by_hand),
                &mut || run(Self::copy),
            ],
        );
        failure.into_inner().map(|()| times)
    }

    /// Measures the time on the device, as reported by its events: from the start of the first launch to the
    /// end of the last.
    fn measure_on_device(&self, rounds: usize) -> Result<Times> {
        let mut times: [Vec<Duration>; 4] = Default::default();
        for _ in 0..rounds {
            let variants = [Self::fused, Self::one_by_one, Self::by_hand, Self::copy];
            for (variant, times) in variants.into_iter().zip(&mut times) {
                let [first, last] = variant(self)?;
                last.wait()?;
                let profiles = first.profile().zip(last.profile());
                let (first, last) = profiles.expect("the runtime profiles");
                times.push(Duration::from_nanos(last.ended - first.started));
            }
        }
        Ok(times.map(median))
    }

    fn bytes(&self) -> u64 {
        2 * size_of::<f32>() as u64 * self.shape.elements as u64
    }
}

/// SPIR-V module of the chain, so that only the fusion is timed.
const CHAIN: &[u8] = include_bytes!("gpu/chain.spv");

/// Measures the time from a module and launches to the fused kernel's module, without a driver.
fn compile(count: usize) -> Result<Duration> {
    const STEPS: [&str; 8] =
        ["light_0", "light_1", "light_2", "light_3", "light_4", "light_5", "light_6", "light_7"];
    let range = range((1 << 20).into(), None, Some(64.into()))?;
    let buffer = |n: usize| Argument::Buffer { buffer: n as u32, offset: 0, length: 4 << 20 };
    let launch = |(n, &kernel): (usize, &&str)| Launch {
        module: 0,
        kernel: kernel.to_owned(),
        range,
        arguments: [n, n + 1].map(buffer).into(),
        constants: Vec::new(),
    };
    let launches: Vec<_> = STEPS[..count].iter().enumerate().map(launch).collect();
    let dead: Vec<_> = (1..count as u32).collect();
    let times = (0..200).map(|_| {
        let start = Instant::now();
        let fused = fuse(&[CHAIN], &launches, &dead, FusionOptions::default())?;
        assert_eq!(fused.expect("it is proven").internalized.len(), count - 1);
        Ok(start.elapsed())
    });
    Ok(median(times.collect::<Result<_>>()?))
}

fn main() -> Result<()> {
    let setting = Setting::new()?;
    if setting.includes("compile") && !setting.is_for_peers {
        absolute("6 light kernels, compile", compile(6)?.as_nanos() as f64, 1e6);
    }
    for platform in ["intel(r) opencl", "portable computing language", "nvidia", "amd accelerated"]
    {
        measure(platform, &setting)?;
    }
    Ok(())
}

/// Measures the first device of a platform, if there is one.
fn measure(platform: &str, setting: &Setting) -> Result<()> {
    // The peers also busy-wait on their thread.
    let spin = if setting.is_for_peers { Duration::from_secs(1) } else { Duration::ZERO };
    let builder = || {
        let builder = Runtime::builder().device(platform).cache(CacheConfig::memory_only());
        builder.spin(spin)
    };
    let always = || builder().fusion(FusionMode::Always);
    let Ok(rt) = block_on(always().build()) else { return Ok(()) };
    let is_cpu = rt.device().kind == DeviceKind::Cpu;
    // The host's waiting does not affect the result if it waits once for many runs.
    let (mebi, runs) = if is_cpu { (64, 1) } else { (256, 100) };
    let light = |kernels| Shape { kind: "light", kernels, elements: mebi << 18, runs };
    if setting.is_for_peers {
        return if is_cpu { Ok(()) } else { print_for_peers(&Chain::new(&rt, setting, light(6))?) };
    }
    println!("\n{}", rt.device());
    println!(
        "{:44} {:>9} {:>9} {:>9} {:>9} {:>6} {:>8} {:>7} {:>8}",
        "", "fused, us", "single", "by hand", "copy", "gain", "of hand", "GB/s", "of copy"
    );
    let heavy = Shape { kind: "heavy", kernels: 4, ..light(4) };
    let mut rows: Vec<_> = (3..=8).map(|count| ("", light(count))).collect();
    rows.push(("", heavy));
    rows.push((", one a wait", Shape { elements: SMALL, runs: 1, ..light(6) }));
    rows.push((", 100 a wait", Shape { elements: SMALL, runs: 100, ..light(6) }));
    measure_waits(&rt, setting, &rows)?;
    let profiled = block_on(always().profiling(true).build())?;
    measure_device_times(&profiled, setting, [light(3), light(6), light(8), heavy])?;
    measure_after_trials(builder(), setting, heavy)
}

/// Measures how long the host waits for chains, which are given with the suffixes of their names.
fn measure_waits(rt: &Runtime, setting: &Setting, rows: &[(&str, Shape)]) -> Result<()> {
    for &(suffix, shape) in rows {
        let name = shape.name(suffix);
        if setting.includes(&name) {
            let chain = Chain::new(rt, setting, shape)?;
            assert!(chain.scope()?.1, "it is proven");
            let rounds = if shape.elements == SMALL { 50 * ROUNDS } else { ROUNDS };
            print_row(&name, chain.measure(rounds / shape.runs.clamp(1, 10))?, chain.bytes());
        }
    }
    Ok(())
}

/// Measures the times of chains by the clock of the device, with a runtime that profiles.
fn measure_device_times(rt: &Runtime, setting: &Setting, shapes: [Shape; 4]) -> Result<()> {
    for shape in shapes {
        let name = shape.name(", by the device");
        if setting.includes(&name) {
            let chain = Chain::new(rt, setting, shape)?;
            print_row(&name, chain.measure_on_device(2 * ROUNDS)?, chain.bytes());
        }
    }
    Ok(())
}

/// Measures a chain after the runs in which `FusionMode::Auto` has chosen the faster variant.
fn measure_after_trials(builder: RuntimeBuilder, setting: &Setting, shape: Shape) -> Result<()> {
    let name = shape.name(", after ten runs: ");
    if setting.includes(&name) {
        let rt = block_on(builder.build())?;
        let chain = Chain::new(&rt, setting, shape)?;
        for _ in 0..10 {
            chain.fused()?[1].wait()?;
        }
        let mode = if chain.scope()?.1 { "fused" } else { "single" };
        print_row(&format!("{name}{mode}"), chain.measure(ROUNDS)?, chain.bytes());
    }
    Ok(())
}

/// Prints the times, the speedup over single launches, and the part of the speed of the kernel written by hand
/// and of the copy that the fused kernel reaches.
fn print_row(what: &str, [fused, single, by_hand, copy]: Times, bytes: u64) {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    println!(
        "{what:44} {:>9.1} {:>9.1} {:>9.1} {:>9.1} {:>6.2} {:>8.2} {:>7.0} {:>8.2}",
        micros(fused),
        micros(single),
        micros(by_hand),
        micros(copy),
        single.as_secs_f64() / fused.as_secs_f64(),
        by_hand.as_secs_f64() / fused.as_secs_f64(),
        bytes as f64 / fused.as_secs_f64() / 1e9,
        copy.as_secs_f64() / fused.as_secs_f64(),
    );
}

/// Prints tab-separated lines: the name, the time in nanoseconds and the number of bytes.
fn print_for_peers(chain: &Chain) -> Result<()> {
    assert!(chain.scope()?.1, "it is proven");
    let names = ["Kiln, fused", "Kiln, one by one", "OpenCL C by hand", "copy by OpenCL"];
    for (name, time) in names.into_iter().zip(chain.measure(2 * ROUNDS)?) {
        println!("{name}\t{}\t{}", time.as_nanos(), chain.bytes());
    }
    Ok(())
}
