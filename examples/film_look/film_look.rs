//! Film look over a large picture: eight light kernels, run one by one, fused, recorded, and recorded and fused.
//!
//! ```sh
//! cargo run --release -p film_look                 # on the best device
//! KILN_DEVICE=cpu cargo run --release -p film_look # on one of your choice
//! cargo run --release -p film_look -- --all        # on every device
//! cargo run --release -p film_look -- PICTURE.png  # with a picture of your own
//! ```
//!
//! Each kernel of [`film`] does one step for every pixel. One by one, a picture of floats passes through memory between
//! any two of them. That is what takes the time, and what a fused kernel saves.
//!
//! [`ways`] has the four ways to run a frame. The first fused frames are timed: Kiln keeps the fused kernel only if it is
//! faster. The example prints that choice, the time of a frame in each way, and the bytes that its kernels move. If a
//! single byte of a frame differs, the example fails. All output goes to `target/film_look`.
//!
//! The first step, the unsharp mask, also reads the pixels beside its own. It is not submitted to the fusion scope: with
//! it, the fused kernel was slower than the launches on PoCL 3.1 (109 ms and 87 ms on a busy machine).
//!
//! Fusing OpenCL C needs two compilers, `clang` and `llvm-spirv`. Without them, all launches run one by one.

#![allow(clippy::print_stdout, clippy::print_stderr)]
#![forbid(unsafe_code)]

mod chart;
mod film;
#[path = "../pipeline/options.rs"]
mod options;
#[path = "../pipeline/picture.rs"]
mod picture;
#[path = "../pipeline/progress.rs"]
mod progress;
mod report;
mod ways;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use film::Film;
use kiln::Runtime;
use options::Options;
use picture::Picture;
use report::{KernelRun, Row};
use ways::{CompletedFrame, Frames, Way};

const OUTPUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/film_look");

/// Least number of pixels. Smaller pictures are enlarged, so that the buffers fit in no cache.
const MIN_PIXELS: usize = 6_000_000;

/// Number of frames that are measured in each way. Fewer are measured if they take longer than `TIME_LIMIT`, but at
/// least `MIN_FRAMES`.
const FRAMES: usize = 25;
const MIN_FRAMES: usize = 9;
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Number of fused frames after which the trials have ended if all of these ran in the same way.
const SAME_FRAMES: usize = 8;

/// Maximum number of frames until the trials have ended.
const MAX_TRIALS: usize = 120;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let options = Options::read(&["--all"])?;
    let on_all_devices = options.has("--all");
    let picture = enlarged(options.photograph);
    futures::executor::block_on(async {
        let rt = Runtime::new().await?;
        let devices = if on_all_devices { rt.devices() } else { std::slice::from_ref(rt.device()) };
        for device in devices {
            let output = match on_all_devices {
                true => Path::new(OUTPUT).join(device.index().to_string()),
                false => PathBuf::from(OUTPUT),
            };
            run(&rt.on(device).await?, &picture, &output).await?;
        }
        // Programs are stored in the background.
        rt.drain().await;
        Ok(())
    })
}

async fn run(rt: &Runtime, picture: &Picture, output: &Path) -> Result<()> {
    println!("{}, {}", rt.device(), rt.device().platform);
    let film = &progress::shown(rt, Film::new(rt, picture)).await?;
    let frames = &progress::shown(rt, Frames::new(rt, film)).await?;
    let first = frames.run(Way::OneByOne).await?;
    let &Picture { width, height, .. } = picture;
    let expected = &Picture { width, height, pixels: first.pixels };
    for way in Way::ALL.into_iter().filter(|way| way.is_fused()) {
        progress::shown(rt, settle(frames, way, expected)).await?;
    }
    let rows = measure(frames, expected).await?;
    report::table(film, &rows);

    fs::create_dir_all(output)?;
    expected.save(&output.join("result.png"))?;
    let heading = format!("Film look, {width} x {height} pixels, {}", rt.device().name);
    fs::write(output.join("chart.svg"), chart::svg(&heading, &report::panels(film, &rows)))?;
    println!("  written to {}", output.display());
    println!("    chart.svg, result.png\n");
    Ok(())
}

/// Runs a frame, and requires that its picture is the expected one.
async fn run_and_compare(
    frames: &Frames<'_>,
    way: Way,
    expected: &Picture,
) -> Result<CompletedFrame> {
    let mut frame = frames.run(way).await?;
    if frame.pixels != expected.pixels {
        let pixels = std::mem::take(&mut frame.pixels);
        let by = expected.difference(&Picture { pixels, ..*expected });
        return Err(format!("a frame that is {} differs by up to {by} of 255", way.name()).into());
    }
    Ok(frame)
}

/// Runs frames in a way that fuses until the trials have ended.
async fn settle(frames: &Frames<'_>, way: Way, expected: &Picture) -> Result<()> {
    let (mut last, mut same) = (String::new(), 0);
    for _ in 0..MAX_TRIALS {
        let frame = run_and_compare(frames, way, expected).await?;
        let outcome = frame.fusion.map(|fusion| fusion.to_string()).unwrap_or_default();
        same = if outcome == last { same + 1 } else { 0 };
        last = outcome;
        if same >= SAME_FRAMES && !frames.is_compiling().await {
            break;
        }
    }
    Ok(())
}

/// Returns the medians over many frames, which run in all ways, one after the other.
async fn measure(frames: &Frames<'_>, expected: &Picture) -> Result<Vec<Row>> {
    let mut completed = Way::ALL.map(|_| Vec::new());
    let start = Instant::now();
    for round in 0..FRAMES {
        if round >= MIN_FRAMES && start.elapsed() > TIME_LIMIT {
            break;
        }
        for (way, completed) in Way::ALL.into_iter().zip(&mut completed) {
            let frame = run_and_compare(frames, way, expected).await?;
            completed.push((frame.time, frame.fusion));
        }
    }
    let &Picture { width, height, .. } = expected;
    println!(
        "  {width} x {height} pixels: medians of {} frames each, in turns, the same byte by byte",
        completed[0].len()
    );
    let rows = Way::ALL.into_iter().zip(completed).map(|(way, mut completed)| {
        let kernels = KernelRun::all(completed.last().and_then(|(_, fusion)| fusion.as_ref()));
        completed.sort_by_key(|(time, _)| *time);
        Row { way, time: completed[completed.len() / 2].0, kernels }
    });
    Ok(rows.collect())
}

/// Enlarges a picture in both directions until it is large enough. Pixels between others are interpolated.
fn enlarged(picture: Picture) -> Picture {
    let Picture { width, height, .. } = picture;
    let by = (1..).find(|by| by * by * width * height >= MIN_PIXELS).unwrap_or(1);
    let mut pixels = Vec::with_capacity(by * by * width * height);
    for y in 0..by * height {
        let above = &picture.pixels[y / by * width..][..width];
        let below = &picture.pixels[(y / by + 1).min(height - 1) * width..][..width];
        for x in 0..by * width {
            let (left, right) = (x / by, (x / by + 1).min(width - 1));
            let corners = [above[left], above[right], below[left], below[right]];
            let (to_right, down) = (x % by, y % by);
            let weights = [
                (by - to_right) * (by - down),
                to_right * (by - down),
                (by - to_right) * down,
                to_right * down,
            ];
            let mut pixel = [0; 4];
            for (channel, sample) in pixel.iter_mut().enumerate() {
                let sum: usize = corners
                    .iter()
                    .zip(weights)
                    .map(|(corner, weight)| usize::from(corner[channel]) * weight)
                    .sum();
                *sample = (sum / (by * by)) as u8;
            }
            pixels.push(pixel);
        }
    }
    Picture { width: by * width, height: by * height, pixels }
}
