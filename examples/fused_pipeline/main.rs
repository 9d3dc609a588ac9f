//! Fused version of the example `pipeline`: runs the same frame with its launches one by one and in a
//! fusion scope, and compares them.
//!
//! ```sh
//! cargo run --release --example fused_pipeline                 # on the best device
//! KILN_DEVICE=cpu cargo run --release --example fused_pipeline # on one of your choice
//! cargo run --release --example fused_pipeline -- --all        # on every device
//! cargo run --release --example fused_pipeline -- PICTURE.png  # with a picture of your own
//! ```
//!
//! A fusion scope collects the launches of a frame. The first frames are timed: Kiln tries which launches
//! run as one kernel, and in which form, and keeps what is fastest. The example prints that choice, and the time of
//! a frame fused and unfused. If a picture differs, the example fails. All output goes to
//! `target/fused_pipeline`.
//!
//! Fusing OpenCL C needs two compilers, `clang` and `llvm-spirv`. Without them, all launches run one by
//! one, and the outcome states what to install.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod chart;
mod frame;
#[path = "../pipeline/options.rs"]
mod options;
#[path = "../pipeline/picture.rs"]
mod picture;
#[path = "../pipeline/progress.rs"]
mod progress;
mod report;
#[path = "../pipeline/stages.rs"]
mod stages;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use frame::{Frame, Grouping, Temporaries};
use kiln::{FusionReport, Queue, Runtime};
use options::Options;
use picture::Picture;
use report::Row;
use stages::Stages;

const OUTPUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/fused_pipeline");

/// Number of repetitions of the photograph in each direction in the larger picture. Its buffers fit in
/// no cache.
const TILES: usize = 4;

/// Number of frames that are measured for each grouping. Fewer are measured if they take longer than
/// `TIME_LIMIT`, but at least `MIN_FRAMES`.
const FRAMES: usize = 100;
const MIN_FRAMES: usize = 7;
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Maximum number of frames until all trials have ended.
const MAX_TRIALS: usize = 120;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let options = Options::read(&["--all"])?;
    let on_all_devices = options.has("--all");
    futures::executor::block_on(async {
        let rt = Runtime::new().await?;
        let mut devices = vec![rt.device().clone()];
        if on_all_devices {
            devices = rt.devices().to_vec();
        }
        for device in &devices {
            let output = match on_all_devices {
                true => Path::new(OUTPUT).join(device.index().to_string()),
                false => PathBuf::from(OUTPUT),
            };
            run(&rt.on(device).await?, &options.photograph, &output).await?;
        }
        // Programs are stored in the background.
        rt.drain().await;
        Ok(())
    })
}

async fn run(rt: &Runtime, photograph: &Picture, output: &Path) -> Result<()> {
    println!("{}, {}", rt.device(), rt.device().platform);
    let queue = &rt.queue();
    let stages = &Stages::start(rt)?;
    progress::shown(rt, stages.built()).await?;

    let mut panels = Vec::new();
    for (size, tiles) in [("photograph", 1), ("tiled", TILES)] {
        let picture = tiled(photograph, tiles);
        let frame = Frame::new(rt, queue, &picture).await?;
        let output = output.join(size);
        let settling = settle(rt, queue, stages, &frame, &output);
        let report = progress::shown(rt, settling).await?;
        let title = format!("{size}, {} x {} pixels", picture.width, picture.height);
        let rows = measure(rt, queue, stages, &frame).await?;
        report::table(&title, &rows);
        report::parts(&report);
        panels.push(report::panel(&title, &rows));
    }
    let heading = format!("{}: medians", rt.device().name);
    fs::write(output.join("chart.svg"), chart::svg(&heading, &panels))?;
    println!("  written to {}", output.display());
    println!("    chart.svg, photograph/ and tiled/ with result.png and edges.png\n");
    Ok(())
}

/// Runs a frame unfused, and then fused until the trials have ended. Compares the pictures of all of them.
async fn settle(
    rt: &Runtime,
    queue: &Queue,
    stages: &Stages,
    frame: &Frame,
    output: &Path,
) -> Result<FusionReport> {
    fs::create_dir_all(output)?;
    let temporaries = Temporaries::new(rt, queue, frame).await?;
    frame.run(queue, stages, temporaries, Grouping::Unfused).await?;
    let expected = frame.pictures(queue).await?;
    expected[0].save(&output.join("result.png"))?;
    expected[1].save(&output.join("edges.png"))?;
    let mut frames = 0;
    loop {
        frames += 1;
        let temporaries = Temporaries::new(rt, queue, frame).await?;
        let completed = frame.run(queue, stages, temporaries, Grouping::Fused).await?;
        let pictures = frame.pictures(queue).await?;
        for (expected, picture) in expected.iter().zip(&pictures) {
            if expected.pixels != picture.pixels {
                let by = expected.difference(picture);
                return Err(format!("frame {frames} differs by up to {by} of 255").into());
            }
        }
        let Some((outcome, report)) = completed.scope else { continue };
        if report::is_decided(&report) || frames == MAX_TRIALS {
            println!("  after {frames} frames, all of which are the same byte by byte: {outcome}");
            return Ok(report);
        }
    }
}

/// Returns the medians over many frames, with the groupings in turn.
async fn measure(rt: &Runtime, queue: &Queue, stages: &Stages, frame: &Frame) -> Result<Vec<Row>> {
    let mut frames = Grouping::ALL.map(|_| Vec::new());
    let start = Instant::now();
    for round in 0..FRAMES {
        if round >= MIN_FRAMES && start.elapsed() > TIME_LIMIT {
            break;
        }
        for (grouping, frames) in Grouping::ALL.into_iter().zip(&mut frames) {
            let temporaries = Temporaries::new(rt, queue, frame).await?;
            frames.push(frame.run(queue, stages, temporaries, grouping).await?);
        }
    }
    let rows = Grouping::ALL.into_iter().zip(&frames);
    Ok(rows.filter_map(|(grouping, frames)| Row::of(grouping, frames)).collect())
}

/// Returns the picture, repeated in both directions.
fn tiled(picture: &Picture, tiles: usize) -> Picture {
    let rows = picture.pixels.chunks_exact(picture.width);
    let rows: Vec<_> = rows.flat_map(|row| row.repeat(tiles)).collect();
    Picture {
        width: picture.width * tiles,
        height: picture.height * tiles,
        pixels: rows.repeat(tiles),
    }
}
