//! Cost of large reads, writes, fills and freed buffers: `cargo bench --bench transfer`.
//!
//! The first rows show how long the calls alone block their caller while the device is busy, as a thread of an
//! executor would notice it. The other rows show the time of the whole operation.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

#[path = "support/raw.rs"]
mod raw;
mod support;
#[path = "support/work.rs"]
mod work;

use std::time::Duration;

use kiln::{Buffer, Event};
use raw::{Raw, RawBuffer};
use support::{compare, heading, interleave, time};
use work::Work;

/// Time for which the device is busy.
const BUSY: Duration = Duration::from_millis(200);

const LARGE: usize = 256 << 20;

const FILLED: usize = 64 << 20;

const ROUNDS: usize = 5;

/// Pattern of a fill: its name, its bytes for the driver, and the fill by Kiln.
type Fill<'a> = (&'a str, &'a [u8], &'a dyn Fn() -> kiln::Result<Event>);

fn main() -> kiln::Result<()> {
    for platform in ["intel(r) opencl", "portable computing language", "nvidia"] {
        if let Some(mut raw) = work::raw(platform) {
            work::set_length(&mut raw, BUSY);
            futures_lite::future::block_on(measure(platform, &raw))?;
        }
    }
    Ok(())
}

async fn measure(platform: &str, raw: &Raw) -> kiln::Result<()> {
    let work = Work::new(platform, Duration::ZERO).await?;
    let (buffer, raw_buffer) = (filled_buffer(&work), raw.buffer(LARGE));
    let data = vec![2; LARGE];
    raw.write(&raw_buffer, &data);
    raw.finish();

    heading(&format!("{}: calls while it is busy for {BUSY:?}", work.rt.device()));
    calls_while_busy(&work, raw, &buffer, &raw_buffer, &data);
    heading(&format!("{}: until the end", work.rt.device()));
    transfers(&work, raw, &buffer, &raw_buffer, &data);
    fills(&work, raw, &buffer, &raw_buffer)
}

/// Creates a buffer of `LARGE` bytes, and fills it.
fn filled_buffer(Work { rt, queue, .. }: &Work) -> Buffer<u8> {
    // SAFETY: the fill below writes all of it.
    let buffer = unsafe { rt.buffer_uninit(LARGE) }.expect("there is memory");
    queue.fill(&buffer, 1).expect("it is right").wait().expect("it runs");
    buffer
}

/// Measures how long the calls alone block their caller while the device is busy.
fn calls_while_busy(
    work: &Work,
    raw: &Raw,
    buffer: &Buffer<u8>,
    raw_buffer: &RawBuffer,
    data: &[u8],
) {
    let queue = &work.queue;
    // Measures a call while the device is busy.
    let kiln = |call: &mut dyn FnMut()| {
        let busy = work.submit(raw.number);
        let took = time(call);
        busy.wait().expect("it runs");
        queue.marker().expect("it is right").wait().expect("all ends");
        took
    };
    let driver = |call: &mut dyn FnMut()| {
        raw.enqueue(None);
        raw.flush();
        let took = time(call);
        raw.finish();
        took
    };
    let mut read = Vec::with_capacity(LARGE);
    let write = |len: usize| {
        let part = buffer.slice(..len).expect("it is inside");
        let mut kiln_write = || {
            let mut given = data[..len].to_vec();
            kiln(&mut || drop(queue.write(&part, std::mem::take(&mut given))))
        };
        let mut raw_write = || driver(&mut || raw.write(raw_buffer, &data[..len]));
        interleave(ROUNDS, [&mut kiln_write, &mut raw_write])
    };
    let [small, raw_small] = write(64 << 10);
    compare("a write of 64 KiB", small, raw_small, 1, 0.0);
    let [large, raw_large] = write(LARGE);
    compare("a write of 256 MiB", large, raw_large, 1, 0.0);
    let [large, raw_large] = interleave(
        ROUNDS,
        [&mut || kiln(&mut || drop(queue.read(buffer))), &mut || {
            driver(&mut || raw.read(raw_buffer, &mut read))
        }],
    );
    compare("a read of 256 MiB", large, raw_large, 1, 0.0);
    let [freed, raw_freed] = interleave(
        ROUNDS,
        [
            &mut || {
                let mut buffer = Some(filled_buffer(work));
                kiln(&mut || drop(buffer.take()))
            },
            &mut || {
                let mut buffer = Some(raw.buffer(LARGE));
                buffer.iter().for_each(|buffer| raw.write(buffer, data));
                raw.finish();
                driver(&mut || drop(buffer.take()))
            },
        ],
    );
    compare("freeing 256 MiB", freed, raw_freed, 1, 0.0);
}

/// Measures complete writes and reads.
fn transfers(
    Work { queue, .. }: &Work,
    raw: &Raw,
    buffer: &Buffer<u8>,
    raw_buffer: &RawBuffer,
    data: &[u8],
) {
    let mut kiln_write = || {
        let given = data.to_vec();
        time(|| queue.write(buffer, given).expect("it is right").wait().expect("it runs"))
    };
    let mut raw_write = || {
        let given = data.to_vec();
        time(|| {
            raw.write(raw_buffer, &given);
            raw.finish();
        })
    };
    let [written, raw_written] = interleave(ROUNDS, [&mut kiln_write, &mut raw_write]);
    compare("a write of 256 MiB", written, raw_written, 1, 1.10);
    let [read, raw_read] = interleave(
        ROUNDS,
        [&mut || time(|| drop(futures_lite::future::block_on(queue.read(buffer)))), &mut || {
            time(|| {
                let mut read = Vec::with_capacity(LARGE);
                raw.read(raw_buffer, &mut read);
                raw.finish();
            })
        }],
    );
    compare("a read of 256 MiB", read, raw_read, 1, 1.10);
}

/// Measures complete fills with patterns of different lengths.
fn fills(
    Work { queue, .. }: &Work,
    raw: &Raw,
    buffer: &Buffer<u8>,
    raw_buffer: &RawBuffer,
) -> kiln::Result<()> {
    let part = buffer.slice(..FILLED).expect("it is inside");
    let (pairs, numbers) = (part.cast::<u16>()?, part.cast::<f32>()?);
    let fills: [Fill<'_>; 4] = [
        ("zeros", &[0], &|| queue.fill(&part, 0)),
        ("zeros of 4 bytes", &[0; 4], &|| queue.fill(&numbers, 0.0)),
        ("numbers of 2 bytes", &[1, 2], &|| queue.fill(&pairs, 0x0201)),
        ("numbers of 4 bytes", &0.1f32.to_ne_bytes(), &|| queue.fill(&numbers, 0.1)),
    ];
    for (what, pattern, fill) in fills {
        let [filled, raw_filled] = interleave(
            ROUNDS,
            [&mut || time(|| fill().expect("it is right").wait().expect("it runs")), &mut || {
                time(|| {
                    raw.fill(raw_buffer, pattern, FILLED);
                    raw.finish();
                })
            }],
        );
        compare(&format!("a fill of 64 MiB: {what}"), filled, raw_filled, 1, 1.10);
    }
    Ok(())
}
