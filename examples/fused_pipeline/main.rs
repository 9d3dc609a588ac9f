//! Fused version of the example `pipeline`: runs the same frame with its launches one by one and in
//! fusion scopes, and compares them.
//!
//! ```sh
//! cargo run --release --example fused_pipeline                 # on the best device
//! KILN_DEVICE=cpu cargo run --release --example fused_pipeline # on one of your choice
//! cargo run --release --example fused_pipeline -- --all        # on every device
//! cargo run --release --example fused_pipeline -- PICTURE.png  # with a picture of your own
//! ```
//!
//! It shows how a scope collects launches, which of them can run as one kernel and why others cannot,
//! and the gain in launches, time and memory traffic. Less traffic does not always mean less time;
//! `FusionMode::Auto` measures it. If the pictures differ, the example fails. All output goes to
//! `target/fused_pipeline`.
//!
//! Fusing OpenCL C needs two compilers, `clang` and `llvm-spirv`. Without them, all launches run one by
//! one, and the outcome states what to install.

#![allow(clippy::print_stdout)]

mod chart;
mod frame;
#[path = "../pipeline/options.rs"]
mod options;
#[path = "../pipeline/picture.rs"]
mod picture;
mod report;
#[path = "../pipeline/stages.rs"]
mod stages;
mod steps;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use frame::{Frame, Grouping, Temporaries};
use kiln::{Device, FusionMode, Queue, Runtime};
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
const MIN_FRAMES: usize = 5;
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Maximum number of frames until `FusionMode::Auto` has decided.
const MAX_TRIALS: usize = 12;

/// Further groups of launches that look like candidates for fusion.
const ATTEMPTS: [&[&str]; 3] =
    [&["unpack", "denoise"], &["blur_rows", "blur_columns"], &["measure", "expose"]];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let Options { on_all_devices, photograph } = Options::read()?;
    futures::executor::block_on(async {
        // With `Always`, fused launches can be measured even if fusing is slower.
        let always = Runtime::builder().profiling(true).fusion(FusionMode::Always).build().await?;
        let auto = Runtime::builder().fusion(FusionMode::Auto).build().await?;
        let mut devices = vec![always.device().clone()];
        if on_all_devices {
            devices = always.devices().to_vec();
        }
        for device in &devices {
            let output = match on_all_devices {
                true => Path::new(OUTPUT).join(device.index().to_string()),
                false => PathBuf::from(OUTPUT),
            };
            run(&always, &auto, device, &photograph, &output).await?;
        }
        // Programs are stored in the background.
        always.drain().await;
        auto.drain().await;
        Ok(())
    })
}

async fn run(
    always: &Runtime,
    auto: &Runtime,
    device: &Device,
    photograph: &Picture,
    output: &Path,
) -> Result<()> {
    let rt = &always.on(device).await?;
    println!("{}, {}", rt.device(), rt.device().platform);
    fs::create_dir_all(output)?;
    let queue = &rt.queue();
    let stages = &Stages::start(rt);
    stages.built().await?;

    let mut panels = Vec::new();
    for (size, tiles) in [("photograph", 1), ("tiled", TILES)] {
        let picture = tiled(photograph, tiles);
        let frame = Frame::new(rt, queue, &picture).await?;
        let output = output.join(size);
        let groupings = same_pictures(rt, queue, stages, &frame, &output, tiles == 1).await?;
        if groupings.len() == 1 {
            println!("  nothing is fused: all launches run one by one\n");
            return Ok(());
        }
        if tiles == 1 {
            attempt(rt, queue, stages, &frame).await?;
        }
        let rows = measure(rt, queue, stages, &frame, &groupings).await?;
        let title = format!("{size}, {} x {} pixels", picture.width, picture.height);
        report::table(&title, &rows);
        panels.extend(report::panels(&title, &rows));
    }
    let heading = format!("{}: medians, FusionMode::Always", rt.device().name);
    fs::write(output.join("chart.svg"), chart::svg(&heading, &panels))?;
    // Each runtime has its own device objects, in the same order.
    let device = auto.devices().get(device.index()).ok_or("a device is gone")?;
    decide(&auto.on(device).await?, photograph).await?;
    println!("  written to {}", output.display());
    println!("    chart.svg, photograph/ and tiled/ with result.png and edges.png\n");
    Ok(())
}

/// Runs a frame in each grouping, and compares the pictures. Returns the unfused grouping and those in which
/// something is fused.
async fn same_pictures(
    rt: &Runtime,
    queue: &Queue,
    stages: &Stages,
    frame: &Frame,
    output: &Path,
    prints_scopes: bool,
) -> Result<Vec<Grouping>> {
    fs::create_dir_all(output)?;
    let mut groupings = Vec::new();
    let mut expected: Option<[Picture; 2]> = None;
    for grouping in Grouping::ALL {
        let temporaries = Temporaries::new(rt, queue, frame).await?;
        let completed = frame.run(queue, stages, temporaries, grouping).await?;
        let pictures = frame.pictures(queue).await?;
        if prints_scopes {
            report::scopes(grouping.name(), &completed.scopes);
        }
        if completed.scopes.is_empty()
            || completed.scopes.iter().any(|scope| scope.outcome.is_fused())
        {
            groupings.push(grouping);
        }
        let Some(expected) = &expected else {
            pictures[0].save(&output.join("result.png"))?;
            pictures[1].save(&output.join("edges.png"))?;
            expected = Some(pictures);
            continue;
        };
        for (expected, picture) in expected.iter().zip(&pictures) {
            if expected.pixels != picture.pixels {
                let by = expected.difference(picture);
                return Err(format!("{}: differs by up to {by} of 255", grouping.name()).into());
            }
        }
    }
    if groupings.len() > 1 {
        println!("  both pictures are the same in every grouping, byte by byte");
    }
    Ok(groupings)
}

/// Completes scopes of other launches, and reports why they do not run as one kernel.
async fn attempt(rt: &Runtime, queue: &Queue, stages: &Stages, frame: &Frame) -> Result<()> {
    for kernels in ATTEMPTS {
        let temporaries = Temporaries::new(rt, queue, frame).await?;
        let scope = frame.attempt(queue, stages, temporaries, kernels).await?;
        report::scopes("attempt", &[scope]);
    }
    Ok(())
}

/// Returns the medians over many frames, with the groupings in turn.
async fn measure(
    rt: &Runtime,
    queue: &Queue,
    stages: &Stages,
    frame: &Frame,
    groupings: &[Grouping],
) -> Result<Vec<Row>> {
    let mut frames: Vec<Vec<_>> = groupings.iter().map(|_| Vec::new()).collect();
    let start = Instant::now();
    for round in 0..FRAMES {
        if round >= MIN_FRAMES && start.elapsed() > TIME_LIMIT {
            break;
        }
        for (&grouping, frames) in groupings.iter().zip(&mut frames) {
            let temporaries = Temporaries::new(rt, queue, frame).await?;
            frames.push(frame.run(queue, stages, temporaries, grouping).await?);
        }
    }
    Ok(groupings
        .iter()
        .zip(frames)
        .filter_map(|(&grouping, frames)| Row::of(grouping, &frames))
        .collect())
}

/// Prints the choice of `FusionMode::Auto` after it has timed the first frames.
async fn decide(rt: &Runtime, photograph: &Picture) -> Result<()> {
    let queue = &rt.queue();
    let stages = &Stages::start(rt);
    stages.built().await?;
    println!("  FusionMode::Auto, which times the first frames in turns");
    for (tiles, groupings) in
        [(1, &[Grouping::TwoScopes, Grouping::OneScope][..]), (TILES, &[Grouping::OneScope])]
    {
        let picture = tiled(photograph, tiles);
        let frame = Frame::new(rt, queue, &picture).await?;
        for &grouping in groupings {
            let mut before = Vec::new();
            for frames in 1..=MAX_TRIALS {
                let temporaries = Temporaries::new(rt, queue, &frame).await?;
                let scopes = frame.run(queue, stages, temporaries, grouping).await?.scopes;
                // The choice is known once a scope is fused twice in a row, or is left unfused other
                // than for timing.
                let fused: Vec<_> = scopes.iter().map(|scope| scope.outcome.is_fused()).collect();
                let known = scopes.iter().enumerate().all(|(at, scope)| match fused[at] {
                    true => before.get(at) == Some(&true),
                    false => !scope.is_timed(),
                });
                if known || frames == MAX_TRIALS {
                    report::decisions(&picture, frames, &scopes);
                    break;
                }
                before = fused;
            }
        }
    }
    Ok(())
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
