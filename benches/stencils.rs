//! Gain of fusing stencils: `cargo bench --bench stencils`. The end of the photograph of the examples, five
//! launches from the first pass of its blur to the picture, runs one by one, with only the launches fused
//! that read their own pixels, and as one kernel in each form in which the earlier launches run again. All
//! pictures must be equal, byte by byte. A row for each states the median time in milliseconds, and how many
//! times as fast it is as one by one and as the fusion of own pixels; "device ms" is the time between the
//! start of the first kernel and the end of the last. Before that, it prints how long the fusing compiler
//! takes for six launches in each form: these five, and the edges that are drawn onto the picture.
//!
//! Two more rows are the whole frame of the photograph, eleven launches: one by one, and in a fusion scope after its
//! trials. They need clang, and are left out with `--spirv`.
//!
//! Arguments after `--`:
//!
//! * widths of the square pictures, in pixels;
//! * `--spirv FILE`, the photograph's kernels as a SPIR-V module, for machines without clang, such as
//!   `benches/gpu/photograph.spv`;
//! * `--write FILE`, to write that module and do nothing else.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

#[path = "stencils/frame.rs"]
mod frame;
#[allow(dead_code, unreachable_pub, reason = "the example uses the rest")]
#[path = "../examples/pipeline/stages.rs"]
mod stages;
mod support;

use std::time::Duration;

use frame::Frame;
use futures_lite::future::block_on;
use kiln::devices::DeviceKind;
use kiln::fusion::FusionForm;
use kiln::internal::fusion::{Argument, FusionOptions, Launch, fuse, range};
use kiln::internal::spirv::emit;
use kiln::internal::translate::spirv_of;
use kiln::{Buffer, CacheConfig, Event, Kernel, Module, NdRange, Queue, Result, Runtime};
use support::{absolute, median, time};

/// Source of the kernels.
const SOURCE: &str = concat!(
    include_str!("../examples/pipeline/sharpen.cl"),
    include_str!("../examples/pipeline/tone.cl"),
    include_str!("../examples/pipeline/edges.cl"),
    include_str!("../examples/pipeline/pixels.cl")
);

const ROUNDS: usize = 15;
const COMPILES: usize = 50;

/// Numbers of the buffers, with the sizes of their elements in bytes; the exposure has only one element.
const BUFFERS: [usize; 9] = [16, 16, 16, 16, 16, 4, 4, 4, 16];
const DENOISED: u32 = 0;
const HALF: u32 = 1;
const BLURRED: u32 = 2;
const SHARP: u32 = 3;
const TONED: u32 = 4;
const EDGES: u32 = 5;
const RESULT: u32 = 6;
const EXPOSURE: u32 = 7;
const PIXELS: u32 = 8;

/// Intermediate results of the end of the photograph.
const INTERMEDIATES: [u32; 4] = [HALF, BLURRED, SHARP, TONED];

/// Launches of the edges, then those of the end of the photograph.
fn launches(width: usize) -> Result<Vec<Launch>> {
    let pixels = width * width;
    let buffer = |buffer: u32| {
        let count = if buffer == EXPOSURE { 1 } else { pixels };
        Argument::Buffer { buffer, offset: 0, length: count * BUFFERS[buffer as usize] }
    };
    let number = |number: f32| Argument::Scalar(number.to_le_bytes().to_vec());
    let launch = |kernel: &str, arguments: Vec<Argument>| {
        Ok(Launch {
            module: 0,
            kernel: kernel.to_owned(),
            range: range([width, width].into(), None, None)?,
            arguments,
            constants: Vec::new(),
        })
    };
    Ok(vec![
        launch("sobel", vec![buffer(PIXELS), number(0.5), number(2.0), buffer(EDGES)])?,
        launch("blur_rows", vec![buffer(DENOISED), buffer(HALF)])?,
        launch("blur_columns", vec![buffer(HALF), buffer(BLURRED)])?,
        launch("unsharp", vec![buffer(DENOISED), buffer(BLURRED), number(0.7), buffer(SHARP)])?,
        launch("filmic", vec![buffer(SHARP), buffer(EXPOSURE), number(1.05), buffer(TONED)])?,
        launch("overlay", vec![buffer(TONED), buffer(EDGES), number(0.4), buffer(RESULT)])?,
    ])
}

/// Kernel with its range and its arguments, ready to run.
struct Step {
    kernel: Kernel,
    range: NdRange,
    arguments: Vec<Argument>,
}

struct Photograph<'a> {
    rt: &'a Runtime,
    module: &'a [u8],
    queue: Queue,
    launches: Vec<Launch>,
    buffers: Vec<Buffer<u8>>,
}

impl<'a> Photograph<'a> {
    fn new(rt: &'a Runtime, module: &'a [u8], width: usize) -> Result<Self> {
        let queue = rt.queue();
        let mut buffers = Vec::new();
        for (at, size) in BUFFERS.into_iter().enumerate() {
            let number = |n: usize| (n.wrapping_mul(2_654_435_761) >> 8 & 0xffff) as f32 / 65536.0;
            let bytes = match at == EXPOSURE as usize {
                true => 1.0f32.to_le_bytes().to_vec(),
                false => {
                    (0..width * width * size / 4).flat_map(|n| number(n).to_le_bytes()).collect()
                }
            };
            buffers.push(block_on(rt.buffer_from::<u8>(bytes).into_future())?);
        }
        Ok(Self { rt, module, queue, launches: launches(width)?.split_off(1), buffers })
    }

    /// Builds a module as OpenCL C, as scopes do with kernels whose sources are text.
    fn build(&self, module: &[u8], kernel: &str) -> Result<Kernel> {
        let module = Module::opencl_c(emit(module)?);
        let program = block_on(self.rt.build(&module).into_future())?;
        // SAFETY: each work-item uses the pixel of its id, or clamps its coordinates to the picture.
        unsafe { program.kernel(kernel) }
    }

    /// Returns each launch as a step of its own, built from the source.
    fn one_by_one(&self) -> Result<Vec<Step>> {
        let program = block_on(self.rt.build(&Module::opencl_c(SOURCE)).into_future())?;
        let step = |launch: &Launch| {
            Ok(Step {
                // SAFETY: as in `build`.
                kernel: unsafe { program.kernel(&launch.kernel) }?,
                range: launch.range,
                arguments: launch.arguments.clone(),
            })
        };
        self.launches.iter().map(step).collect()
    }

    /// Returns the steps in which launches from `first` on run as one kernel, if they can.
    fn fused(&self, first: usize, form: FusionForm) -> Result<Option<Vec<Step>>> {
        let launches = &self.launches[first..];
        let options = FusionOptions { form, ..FusionOptions::of(self.rt.device()) };
        let fused = match fuse(&[self.module], launches, &INTERMEDIATES, options)? {
            Ok(fused) => fused,
            Err(why) => {
                println!("{form}: {why}");
                return Ok(None);
            }
        };
        let argument =
            |&(launch, argument): &(usize, usize)| launches[launch].arguments[argument].clone();
        let mut steps = self.one_by_one()?;
        steps.truncate(first);
        steps.push(Step {
            kernel: self.build(&fused.spirv, &fused.kernel)?,
            range: fused.range,
            arguments: fused.parameters.iter().map(argument).collect(),
        });
        Ok(Some(steps))
    }

    /// Runs all steps. Returns the time on the device, from the start of the first to the end of the last.
    fn run(&self, steps: &[Step]) -> Result<Duration> {
        let mut events: Vec<Event> = Vec::new();
        for step in steps {
            let mut launch = step.kernel.launch([step.range.global()[0], step.range.global()[1]]);
            if let Some(local) = step.range.local() {
                launch = launch.local([local[0], local[1]]);
            }
            for argument in &step.arguments {
                launch = match argument {
                    Argument::Buffer { buffer, .. } => {
                        let bytes = &self.buffers[*buffer as usize];
                        match *buffer {
                            EDGES | EXPOSURE => launch.arg(&bytes.cast::<f32>()?),
                            RESULT => launch.arg(&bytes.cast::<[u8; 4]>()?),
                            _ => launch.arg(&bytes.cast::<[f32; 4]>()?),
                        }
                    }
                    Argument::Scalar(bytes) => {
                        launch.arg(f32::from_le_bytes(bytes[..].try_into().expect("a float")))
                    }
                    Argument::Local(_) => launch,
                };
            }
            events.push(self.queue.submit(launch)?);
        }
        let mut profiles = Vec::new();
        for event in events {
            event.wait()?;
            profiles.extend(event.profile());
        }
        let started = profiles.iter().map(|profile| profile.started).min();
        let ended = profiles.iter().map(|profile| profile.ended).max();
        Ok(Duration::from_nanos(ended.unwrap_or(0) - started.unwrap_or(0)))
    }

    fn result(&self) -> Result<Vec<u8>> {
        block_on(self.queue.read(&self.buffers[RESULT as usize]).into_future())
    }
}

/// Forms in which the producers run again, for the kind of device.
fn forms(kind: DeviceKind) -> Vec<FusionForm> {
    // Larger work-groups are not possible on every GPU.
    let sizes = if kind == DeviceKind::Gpu {
        [(16, 16), (32, 8), (64, 4)]
    } else {
        [(16, 16), (32, 8), (64, 16)]
    };
    let tiles = sizes.map(|(width, height)| FusionForm::Tiles { width, height });
    let strips = [16, 32].map(|rows| FusionForm::Strips { rows });
    let windows = [16, 32, 64].map(|rows| FusionForm::Windows { rows });
    [&[FusionForm::Inlined][..], &tiles, &strips, &windows].concat()
}

/// Prints the time from a module and six launches to the fused kernel's module in each form, without a driver.
fn measure_compiles(rt: &Runtime, module: &[u8]) -> Result<()> {
    let launches = launches(2048)?;
    let dead = [&INTERMEDIATES[..], &[EDGES]].concat();
    println!("\nCompile of {} launches for {}", launches.len(), rt.device());
    for form in forms(rt.device().kind) {
        let options = FusionOptions { form, ..FusionOptions::of(rt.device()) };
        let mut times = Vec::new();
        let mut is_fused = true;
        for _ in 0..COMPILES {
            let mut outcome = Ok(Err(String::new()));
            times.push(time(|| outcome = fuse(&[module], &launches, &dead, options)));
            is_fused &= outcome?.is_ok();
        }
        let name = if is_fused { form.to_string() } else { format!("{form}, refused") };
        absolute(&name, median(times).as_nanos() as f64, 2e6);
    }
    Ok(())
}

/// Arguments of the benchmark.
#[derive(Default)]
struct Setting {
    widths: Vec<usize>,
    module: Option<Vec<u8>>,
    write: Option<String>,
}

impl Setting {
    fn new() -> Self {
        let mut setting = Self::default();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--spirv" => {
                    let path = arguments.next().expect("the name of a file follows `--spirv`");
                    setting.module = Some(std::fs::read(path).expect("it is there"));
                }
                "--write" => setting.write = arguments.next(),
                _ => setting.widths.extend(argument.parse::<usize>()),
            }
        }
        setting
    }
}

fn main() -> Result<()> {
    let setting = Setting::new();
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        let builder = Runtime::builder().device(platform).cache(CacheConfig::memory_only());
        let builder = builder.profiling(true);
        let Ok(rt) = block_on(builder.build()) else { continue };
        let module = match &setting.module {
            Some(module) => module.clone(),
            None => block_on(spirv_of(&rt, &Module::opencl_c(SOURCE), ""))?.code().to_vec(),
        };
        if let Some(path) = &setting.write {
            std::fs::write(path, module).expect("there is room");
            return Ok(());
        }
        let default = if rt.device().kind == DeviceKind::Cpu { [512, 2048] } else { [2048, 4096] };
        let widths = if setting.widths.is_empty() { &default[..] } else { &setting.widths };
        measure_compiles(&rt, &module)?;
        for &width in widths {
            measure(&rt, &module, width)?;
            if setting.module.is_none() {
                measure_frame(&rt, width)?;
            }
        }
    }
    Ok(())
}

fn measure(rt: &Runtime, module: &[u8], width: usize) -> Result<()> {
    let photograph = Photograph::new(rt, module, width)?;
    println!("\n{}, {width} x {width}", rt.device());
    let mut rows = vec![("one by one".to_owned(), photograph.one_by_one()?)];
    if let Some(steps) = photograph.fused(1, FusionForm::Direct)? {
        rows.push(("own pixels fused".to_owned(), steps));
    }
    for form in forms(rt.device().kind) {
        if let Some(steps) = photograph.fused(0, form)? {
            rows.push((form.to_string(), steps));
        }
    }
    photograph.run(&rows[0].1)?;
    let expected = photograph.result()?;
    let mut times: Vec<[Vec<Duration>; 2]> = rows.iter().map(|_| Default::default()).collect();
    for round in 0..=ROUNDS {
        for ((name, steps), [wall, device]) in rows.iter().zip(&mut times) {
            let mut outcome = Ok(Duration::ZERO);
            let took = time(|| outcome = photograph.run(steps));
            let on_device = outcome?;
            if round == 0 {
                assert!(photograph.result()? == expected, "{name}: the pictures differ");
            } else {
                wall.push(took);
                device.push(on_device);
            }
        }
    }
    let times: Vec<_> = times.into_iter().map(|sides| sides.map(median)).collect();
    println!("{:28} {:>9} {:>9} {:>7} {:>14}", "", "ms", "device ms", "gain", "of own pixels");
    for ((name, _), [wall, device]) in rows.iter().zip(&times) {
        let ratio = |base: &[Duration; 2]| base[0].as_secs_f64() / wall.as_secs_f64();
        println!(
            "{name:28} {:>9.3} {:>9.3} {:>7.2} {:>14.2}",
            wall.as_secs_f64() * 1e3,
            device.as_secs_f64() * 1e3,
            ratio(&times[0]),
            ratio(&times[1])
        );
    }
    Ok(())
}

/// Prints the rows of the whole frame.
fn measure_frame(rt: &Runtime, width: usize) -> Result<()> {
    let frame = block_on(Frame::new(rt, width))?;
    let (outcome, [alone, fused]) = block_on(frame.measure(ROUNDS))?;
    println!("whole frame, {outcome}");
    for (name, time) in [("frame one by one", alone), ("frame in a scope", fused)] {
        let gain = alone.as_secs_f64() / time.as_secs_f64();
        println!("{name:28} {:>9.3} {:>9} {gain:>7.2}", time.as_secs_f64() * 1e3, "");
    }
    Ok(())
}
