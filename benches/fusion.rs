//! What fusing gains: `cargo bench --bench fusion`. Launches run one by one, as one fused kernel, and
//! as a kernel that was written by hand.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

mod support;

use std::time::Duration;

use futures_lite::future::block_on;
use kiln::{
    Buffer, CacheConfig, FusionMode, Image, Internalization, Kernel, NdSize, Queue, Result, Runtime,
};
use support::{interleave, time};

/// Elements of the large arrays: 64 MiB.
const LARGE: usize = 16 << 20;
const SMALL: usize = 1 << 10;
const ROUNDS: usize = 12;

/// What the kernels of a chain do to each element, light and heavy.
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

/// A kernel for each step, and one for the first 3, 4, ... of them.
fn source(steps: &[&str]) -> String {
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
    let singles = steps.iter().enumerate();
    let singles = singles.map(|(n, step)| kernel(&format!("step_{n}"), &assign(step)));
    let wholes = (2..=steps.len()).map(|count| {
        let body: String = steps[..count].iter().map(assign).collect();
        kernel(&format!("all_{count}"), &body)
    });
    singles.chain(wholes).collect()
}

struct Chain {
    queue: Queue,
    steps: Vec<Kernel>,
    whole: Kernel,
    /// One more than there are steps.
    buffers: Vec<Buffer<f32>>,
}

impl Chain {
    fn new(rt: &Runtime, steps: &[&str], count: usize, len: usize) -> Result<Self> {
        let program = block_on(rt.build(&Image::opencl_c(source(steps))).into_future())?;
        // SAFETY: each work-item uses the element of its id, and there are as many.
        let kernel = |name: String| unsafe { program.kernel(&name) };
        let buffers: Vec<_> = (0..=count).map(|_| rt.buffer(len)).collect::<Result<_>>()?;
        let queue = rt.queue();
        let numbers = (0..len).map(|n| (n % 1000) as f32 * 0.01 - 3.0).collect();
        queue.write(&buffers[0], numbers)?.wait()?;
        Ok(Self {
            queue,
            steps: (0..count).map(|n| kernel(format!("step_{n}"))).collect::<Result<_>>()?,
            whole: kernel(format!("all_{count}"))?,
            buffers,
        })
    }

    fn len(&self) -> NdSize {
        self.buffers[0].len().into()
    }

    fn one_by_one(&self) -> Result<()> {
        let mut last = None;
        for (step, buffers) in self.steps.iter().zip(self.buffers.windows(2)) {
            let launch = step.launch(self.len()).args((&buffers[0], &buffers[1]));
            last = Some(self.queue.submit(launch)?);
        }
        last.map_or(Ok(()), |event| event.wait())
    }

    /// Whether they ran as one.
    fn fused(&self) -> Result<bool> {
        let scope = self.queue.start_fusion();
        let mut last = None;
        for (step, buffers) in self.steps.iter().zip(self.buffers.windows(2)) {
            last = Some(scope.submit(step.launch(self.len()).args((&buffers[0], &buffers[1])))?);
        }
        for buffer in &self.buffers[1..self.steps.len()] {
            scope.internalize(buffer, Internalization::Private);
        }
        let outcome = block_on(scope.complete())?;
        last.map_or(Ok(()), |event| event.wait())?;
        Ok(outcome.is_fused())
    }

    fn by_hand(&self) -> Result<()> {
        let (first, last) = (&self.buffers[0], &self.buffers[self.steps.len()]);
        self.queue.submit(self.whole.launch(self.len()).args((first, last)))?.wait()
    }

    fn measure(&self, rounds: usize) -> Result<[Duration; 3]> {
        assert!(self.fused()?, "it is proven");
        let mut failed = Ok(());
        let mut note = |result: Result<()>| {
            if let Err(error) = result {
                failed = Err(error);
            }
        };
        let note = std::cell::RefCell::new(&mut note);
        let times = interleave(
            rounds,
            [
                &mut || time(|| (note.borrow_mut())(self.fused().map(drop))),
                &mut || time(|| (note.borrow_mut())(self.one_by_one())),
                &mut || time(|| (note.borrow_mut())(self.by_hand())),
            ],
        );
        failed.map(|()| times)
    }
}

fn main() -> Result<()> {
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        let builder = || Runtime::builder().device(platform).cache(CacheConfig::memory_only());
        let Ok(rt) = block_on(builder().fusion(FusionMode::Always).build()) else { continue };
        println!("\n{}", rt.device());
        println!(
            "{:44} {:>10} {:>10} {:>10} {:>9} {:>9}",
            "", "fused, us", "single", "by hand", "gain", "of hand"
        );
        for count in 3..=8 {
            let times = Chain::new(&rt, &LIGHT, count, LARGE)?.measure(ROUNDS)?;
            tell(&format!("{count} light kernels, 64 MiB"), times);
        }
        tell("6 light kernels, 4 KiB", Chain::new(&rt, &LIGHT, 6, SMALL)?.measure(50 * ROUNDS)?);
        tell("4 heavy kernels, 64 MiB", Chain::new(&rt, &HEAVY, 4, LARGE)?.measure(ROUNDS)?);
        let rt = block_on(builder().build())?;
        let chain = Chain::new(&rt, &HEAVY, 4, LARGE)?;
        for _ in 0..10 {
            chain.fused()?;
        }
        let is_fused = chain.fused()?;
        let mut scope = || time(|| drop(chain.fused()));
        let mut single = || time(|| drop(chain.one_by_one()));
        let [scope, single] = interleave(ROUNDS, [&mut scope, &mut single]);
        let what = if is_fused { "fused" } else { "one by one" };
        tell(&format!("4 heavy kernels, after ten runs: {what}"), [scope, single, single]);
    }
    Ok(())
}

/// Prints the times, what fusing gains over single launches, and what part of the speed of the kernel
/// written by hand it reaches.
fn tell(what: &str, [fused, single, by_hand]: [Duration; 3]) {
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    println!(
        "{what:44} {:>10.0} {:>10.0} {:>10.0} {:>9.2} {:>9.2}",
        micros(fused),
        micros(single),
        micros(by_hand),
        single.as_secs_f64() / fused.as_secs_f64(),
        by_hand.as_secs_f64() / fused.as_secs_f64(),
    );
}
