//! The photograph of the example `pipeline`, with launches of its kernels fused: next to each other,
//! the same frame one by one and in fusion scopes.
//!
//! ```sh
//! cargo run --release --example fused_pipeline                 # on the best device
//! KILN_DEVICE=cpu cargo run --release --example fused_pipeline # on one of your choice
//! cargo run --release --example fused_pipeline -- --all        # on every device
//! cargo run --release --example fused_pipeline -- PICTURE.png  # with a picture of your own
//! ```
//!
//! It shows how launches are collected in a scope, which of them can run as one kernel and why
//! others cannot, and what that is worth: in launches, in time and in memory traffic. Less traffic is
//! not always less time; `FusionMode::Auto` finds out. The pictures are the same, or it fails. All it
//! makes goes to `target/fused_pipeline`.
//!
//! Fusing OpenCL C takes two compilers, `clang` and `llvm-spirv`. Without them all launches run one
//! by one, and the outcome says what to install.

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

use frame::{Frame, Temporaries, Way};
use kiln::{Device, FusionMode, Queue, Runtime};
use options::Options;
use picture::Picture;
use report::Row;
use stages::Stages;

const OUTPUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/fused_pipeline");

/// The larger picture repeats the photograph so many times in each direction: its buffers fit no
/// cache.
const TILES: usize = 4;

/// So many frames of each way are measured, or fewer if they take long, but not fewer than this.
const FRAMES: usize = 100;
const FEWEST_FRAMES: usize = 5;
const LONG: Duration = Duration::from_secs(5);

/// `FusionMode::Auto` has decided after so many frames at the latest.
const MOST_TRIALS: usize = 12;

/// Launches that one may want to run as one, too.
const ATTEMPTS: [&[&str]; 3] =
    [&["unpack", "denoise"], &["blur_rows", "blur_columns"], &["measure", "expose"]];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let Options { on_all, photograph } = Options::read()?;
    futures::executor::block_on(async {
        // To measure both ways, neither may be the one that is taken only if it is faster.
        let always = Runtime::builder().profiling(true).fusion(FusionMode::Always).build().await?;
        let auto = Runtime::builder().fusion(FusionMode::Auto).build().await?;
        let mut devices = vec![always.device().clone()];
        if on_all {
            devices = always.devices().to_vec();
        }
        for device in &devices {
            let output = match on_all {
                true => Path::new(OUTPUT).join(device.index().to_string()),
                false => PathBuf::from(OUTPUT),
            };
            run(&always, &auto, device, &photograph, &output).await?;
        }
        // Programs are stored behind the pictures.
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
        let ways = same_pictures(rt, queue, stages, &frame, &output, tiles == 1).await?;
        if ways.len() == 1 {
            println!("  nothing is fused: all launches run one by one\n");
            return Ok(());
        }
        if tiles == 1 {
            attempt(rt, queue, stages, &frame).await?;
        }
        let rows = measure(rt, queue, stages, &frame, &ways).await?;
        let title = format!("{size}, {} x {} pixels", picture.width, picture.height);
        report::table(&title, &rows);
        panels.extend(report::panels(&title, &rows));
    }
    let heading = format!("{}: medians, FusionMode::Always", rt.device().name);
    fs::write(output.join("chart.svg"), chart::svg(&heading, &panels))?;
    // Each runtime has devices of its own, in the same order.
    let device = auto.devices().get(device.index()).ok_or("a device is gone")?;
    decide(&auto.on(device).await?, photograph).await?;
    println!("  written to {}", output.display());
    println!("    chart.svg, photograph/ and tiled/ with result.png and edges.png\n");
    Ok(())
}

/// Runs a frame in each way, and compares the pictures. Gives the ways in which something is fused,
/// and that in which nothing is.
async fn same_pictures(
    rt: &Runtime,
    queue: &Queue,
    stages: &Stages,
    frame: &Frame,
    output: &Path,
    tells: bool,
) -> Result<Vec<Way>> {
    fs::create_dir_all(output)?;
    let mut ways = Vec::new();
    let mut expected: Option<[Picture; 2]> = None;
    for way in Way::ALL {
        let temporaries = Temporaries::new(rt, queue, frame).await?;
        let ended = frame.run(queue, stages, temporaries, way).await?;
        let pictures = frame.pictures(queue).await?;
        if tells {
            report::scopes(way.name(), &ended.scopes);
        }
        if ended.scopes.is_empty() || ended.scopes.iter().any(|scope| scope.outcome.is_fused()) {
            ways.push(way);
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
                return Err(format!("{}: differs by up to {by} of 255", way.name()).into());
            }
        }
    }
    if ways.len() > 1 {
        println!("  both pictures are the same in every way, byte by byte");
    }
    Ok(ways)
}

/// Scopes of other launches, and why they do not run as one kernel.
async fn attempt(rt: &Runtime, queue: &Queue, stages: &Stages, frame: &Frame) -> Result<()> {
    for kernels in ATTEMPTS {
        let temporaries = Temporaries::new(rt, queue, frame).await?;
        let scope = frame.attempt(queue, stages, temporaries, kernels).await?;
        report::scopes("attempt", &[scope]);
    }
    Ok(())
}

/// The medians over many frames, one of each way in turn.
async fn measure(
    rt: &Runtime,
    queue: &Queue,
    stages: &Stages,
    frame: &Frame,
    ways: &[Way],
) -> Result<Vec<Row>> {
    let mut frames: Vec<Vec<_>> = ways.iter().map(|_| Vec::new()).collect();
    let start = Instant::now();
    for round in 0..FRAMES {
        if round >= FEWEST_FRAMES && start.elapsed() > LONG {
            break;
        }
        for (&way, frames) in ways.iter().zip(&mut frames) {
            let temporaries = Temporaries::new(rt, queue, frame).await?;
            frames.push(frame.run(queue, stages, temporaries, way).await?);
        }
    }
    Ok(ways.iter().zip(frames).filter_map(|(&way, frames)| Row::of(way, &frames)).collect())
}

/// What the library does by itself, once it has timed the first frames.
async fn decide(rt: &Runtime, photograph: &Picture) -> Result<()> {
    let queue = &rt.queue();
    let stages = &Stages::start(rt);
    stages.built().await?;
    println!("  FusionMode::Auto, which times the first frames in turns");
    for (tiles, ways) in [(1, &[Way::TwoScopes, Way::OneScope][..]), (TILES, &[Way::OneScope])] {
        let picture = tiled(photograph, tiles);
        let frame = Frame::new(rt, queue, &picture).await?;
        for &way in ways {
            let mut before = Vec::new();
            for frames in 1..=MOST_TRIALS {
                let temporaries = Temporaries::new(rt, queue, &frame).await?;
                let scopes = frame.run(queue, stages, temporaries, way).await?.scopes;
                // Fused twice in a row, or not to be fused.
                let fused: Vec<_> = scopes.iter().map(|scope| scope.outcome.is_fused()).collect();
                let known = scopes.iter().enumerate().all(|(at, scope)| match fused[at] {
                    true => before.get(at) == Some(&true),
                    false => !scope.is_timed(),
                });
                if known || frames == MOST_TRIALS {
                    report::decisions(&picture, frames, &scopes);
                    break;
                }
                before = fused;
            }
        }
    }
    Ok(())
}

/// The picture, repeated in both directions.
fn tiled(picture: &Picture, tiles: usize) -> Picture {
    let rows = picture.pixels.chunks_exact(picture.width);
    let rows: Vec<_> = rows.flat_map(|row| row.repeat(tiles)).collect();
    Picture {
        width: picture.width * tiles,
        height: picture.height * tiles,
        pixels: rows.repeat(tiles),
    }
}
