//! Asynchronous pipeline of kernels for a photograph: denoise, sharpen, expose and tone map, with the
//! photograph's edges drawn on top.
//!
//! ```sh
//! cargo run --release -p pipeline                 # on the best device
//! KILN_DEVICE=cpu cargo run --release -p pipeline # on one of your choice
//! cargo run --release -p pipeline -- --all        # on every device
//! cargo run --release -p pipeline -- --images     # over images instead of buffers
//! cargo run --release -p pipeline -- PICTURE.png  # with a picture of your own
//! ```
//!
//! It shows how programs build while launches are already being submitted, how the order of launches
//! follows from their buffers, how frames overlap, and how to inspect a run: times per kernel, a
//! drawing of the DAG, and a timeline. All output goes to `target/pipeline`.
//!
//! The core is [`frame`], and [`images`] is the same over images. Kiln does not bring an executor; here the
//! one of `futures` suffices.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod frame;
mod images;
mod options;
mod picture;
mod progress;
mod report;
mod stages;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::Instant;

use frame::{Frame, Pipeline};
use futures::stream::{self, StreamExt, TryStreamExt};
use images::ImageFrame;
use kiln::Runtime;
use options::Options;
use picture::Picture;

const OUTPUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/pipeline");

/// Number of frames over which the throughput is measured. `IN_FLIGHT` of them run at a time.
const FRAMES: usize = 100;
const IN_FLIGHT: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::read(&["--all", "--images"])?;
    let photograph = &options.photograph;
    let run = async |rt: &Runtime, output: &Path| match options.has("--images") {
        true => run::<ImageFrame>(rt, photograph, output).await,
        false => run::<Frame>(rt, photograph, output).await,
    };
    futures::executor::block_on(async {
        let rt = Runtime::builder().profiling(true).build().await?;
        if !options.has("--all") {
            run(&rt, Path::new(OUTPUT)).await?;
            rt.drain().await; // programs are stored in the background
            return Ok(());
        }
        let mut first: Option<Picture> = None;
        for device in rt.devices() {
            if options.has("--images") && device.limits.images.d2 == [0, 0] {
                println!("{device}: skipped, Kiln has no images there\n");
                continue;
            }
            let output = Path::new(OUTPUT).join(device.index().to_string());
            let result = run(&rt.on(device).await?, &output).await?;
            match &first {
                Some(first) => println!(
                    "  differs from the first device's picture by at most {} of 255\n",
                    result.difference(first)
                ),
                None => first = Some(result),
            }
        }
        // Programs are stored in the background.
        rt.drain().await;
        Ok(())
    })
}

/// Runs the pipeline on the runtime's device, and returns the finished picture.
async fn run<P: Pipeline>(
    rt: &Runtime,
    photograph: &Picture,
    output: &Path,
) -> Result<Picture, Box<dyn Error>> {
    println!("{}, {}", rt.device(), rt.device().platform);
    fs::create_dir_all(output)?;
    let &Picture { width, height, .. } = photograph;
    let queue = rt.queue();
    let trace = rt.trace_to(output.join("trace.json"));

    // The first frame is submitted before any program is built.
    let start = Instant::now();
    let stages = P::start(rt)?;
    let frame = P::new(rt, width, height)?;
    let submitted = frame.submit(&queue, &stages, photograph.pixels.clone())?;
    let submitting = start.elapsed();
    report::builds(&progress::shown(rt, P::built(&stages)).await?);
    let (result, sketch) = futures::try_join!(submitted.result, submitted.sketch)?;
    let first_frame = start.elapsed();

    let result = Picture { width, height, pixels: result };
    result.save(&output.join("result.png"))?;
    Picture { width, height, pixels: sketch }.save(&output.join("edges.png"))?;
    fs::write(output.join("dag.svg"), report::svg(&queue.dot())?)?;
    trace.finish().await?;

    // Now many frames run, a few at a time, each with memory of its own. A frame waits for the previous
    // one in the same memory; the device orders the two without help from the host.
    let memory: Vec<_> =
        (0..IN_FLIGHT).map(|_| P::new(rt, width, height)).collect::<Result<_, _>>()?;
    let start = Instant::now();
    let frames: Vec<_> = stream::iter(memory.iter().cycle().take(FRAMES))
        .map(async |memory| {
            let submitted = memory.submit(&queue, &stages, photograph.pixels.clone())?;
            futures::try_join!(submitted.result, submitted.sketch)?;
            Ok::<_, kiln::Error>(submitted.launches)
        })
        .buffered(IN_FLIGHT)
        .try_collect()
        .await?;
    let seconds = start.elapsed().as_secs_f64();

    report::stages(&frames);
    println!("  first frame");
    println!("    submitted within {:.1} ms", 1e3 * submitting.as_secs_f64());
    println!("    finished within {:.1} ms, builds included", 1e3 * first_frame.as_secs_f64());
    println!("  {FRAMES} frames, {IN_FLIGHT} at a time");
    println!("    {:.1} frames a second, transfers included", FRAMES as f64 / seconds);
    println!("  written to {}", output.display());
    println!("    result.png, edges.png, dag.svg, trace.json (for https://ui.perfetto.dev)");
    Ok(result)
}
