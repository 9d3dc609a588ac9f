//! Cost of the ways in which data gets to a device and from it, over the raw driver: `cargo bench --bench memory`.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

#[path = "support/raw.rs"]
mod raw;
mod support;
#[path = "support/work.rs"]
mod work;

use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::block_on;
use kiln::Buffer;
use raw::{OwnedEvent, Raw, RawBuffer};
use support::{compare, heading, interleave, time};
use work::Work;

const LARGE: usize = 256 << 20;

/// Number of bytes of a piece of a copy.
const PIECE: usize = 8 << 20;

/// Number of bytes of memory that host and device share.
const MAPPED: usize = 64 << 20;

const ROUNDS: usize = 9;

const PLATFORMS: [&str; 3] = ["intel(r) opencl", "portable computing language", "nvidia"];

fn main() -> kiln::Result<()> {
    let mut devices = Vec::new();
    for platform in PLATFORMS {
        for (number, raw) in (0..2).map_while(|at| Some((at, work::raw_on(platform, at)?))) {
            devices.push((block_on(Work::on(platform, number, Duration::ZERO))?, raw));
        }
    }
    for (work, raw) in &devices {
        heading(&work.rt.device().to_string());
        uploads(work, raw);
        mappings(work, raw);
    }
    for (at, source) in devices.iter().enumerate() {
        for target in devices.iter().skip(at + 1) {
            copies(source, target);
            copies(target, source);
        }
    }
    Ok(())
}

/// Measures an upload from an owner that the application shares.
fn uploads(work: &Work, raw: &Raw) {
    let elements: Arc<[u8]> = Arc::from(vec![2; LARGE]);
    let (buffer, raw_buffer) = (buffer(work, LARGE), raw.buffer(LARGE));
    let mut kiln = || {
        let elements = elements.clone();
        time(|| work.queue.write(&buffer, elements).expect("it fits").wait().expect("it runs"))
    };
    let mut driver = || {
        time(|| {
            raw.write(&raw_buffer, &elements);
            raw.finish();
        })
    };
    let [kiln, driver] = interleave(ROUNDS, [&mut kiln, &mut driver]);
    compare("an upload of 256 MiB from an `Arc`", kiln, driver, 1, 1.05);
}

/// Measures mappings in which the host writes, and then reads, all elements.
fn mappings(work: &Work, raw: &Raw) {
    let buffer = work.rt.host_buffer::<u8>(MAPPED).expect("there is memory");
    let raw_buffer = raw.host_buffer(MAPPED);
    let mut kiln = || {
        time(|| {
            block_on(work.queue.map_mut(&buffer)).expect("it is mapped").fill(3);
            assert_eq!(union(&block_on(work.queue.map(&buffer)).expect("it is mapped")), 3);
        })
    };
    let mut driver = || {
        time(|| {
            raw.map(&raw_buffer, MAPPED, |bytes| bytes.fill(3));
            raw.map(&raw_buffer, MAPPED, |bytes| assert_eq!(union(bytes), 3));
            raw.finish();
        })
    };
    let [kiln, driver] = interleave(ROUNDS, [&mut kiln, &mut driver]);
    compare("a mapping to write and one to read 64 MiB", kiln, driver, 1, 1.05);
}

/// Returns the bits that are set in any of the bytes.
fn union(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |bits, byte| bits | byte)
}

/// Measures a copy between devices. The raw driver reads all elements to the host, and then writes them, or it does
/// so in pieces, through memory of its own.
fn copies((source, raw_source): &(Work, Raw), (target, raw_target): &(Work, Raw)) {
    heading(&format!("{} to {}", source.rt.device(), target.rt.device()));
    let (from, to) = (buffer(source, LARGE), buffer(target, LARGE));
    let (raw_from, raw_to) = (raw_source.buffer(LARGE), raw_target.buffer(LARGE));
    let mut staged = vec![1; LARGE];
    raw_source.write(&raw_from, &staged);
    raw_source.finish();
    let mut kiln =
        || time(|| source.queue.copy(&from, &to).expect("it fits").wait().expect("it runs"));
    let mut at_once = || {
        time(|| {
            raw_source.read(&raw_from, &mut staged);
            raw_source.finish();
            raw_target.write(&raw_to, &staged);
            raw_target.finish();
        })
    };
    let pieces = raw_source.host_buffer(2 * PIECE);
    raw_source.map(&pieces, 2 * PIECE, |pieces| {
        let mut in_pieces =
            || time(|| copy_in_pieces((raw_source, &raw_from), (raw_target, &raw_to), pieces));
        let [kiln, at_once, in_pieces] =
            interleave(ROUNDS, [&mut kiln, &mut at_once, &mut in_pieces]);
        compare("a copy of 256 MiB, over a read and a write", kiln, at_once, 1, 1.11);
        compare("a copy of 256 MiB, over reads and writes of pieces", kiln, in_pieces, 1, 1.11);
    });
    raw_source.finish();
}

/// Copies through memory for two pieces: reads one while the one before it is written.
fn copy_in_pieces(
    (source, from): (&Raw, &RawBuffer),
    (target, to): (&Raw, &RawBuffer),
    pieces: &mut [u8],
) {
    let mut writing: [Option<OwnedEvent>; 2] = [None, None];
    for (number, offset) in (0..LARGE).step_by(PIECE).enumerate() {
        let (piece, before) =
            (&mut pieces[number % 2 * PIECE..][..PIECE], &mut writing[number % 2]);
        before.take().into_iter().for_each(OwnedEvent::wait);
        source.read_part(from, offset, piece);
        *before = Some(target.write_part(to, offset, piece));
    }
    target.finish();
}

/// Creates a buffer and fills it, so that its pages exist.
fn buffer(Work { rt, queue, .. }: &Work, bytes: usize) -> Buffer<u8> {
    let buffer = rt.buffer(bytes).expect("there is memory");
    queue.fill(&buffer, 1).expect("it is right").wait().expect("it runs");
    buffer
}
