//! Time of the fusing compiler: `cargo bench --bench fusing --all-features`. The chains of `benches/chains.rs` are
//! searched for fused kernels without a device, as a fusion scope does it. The last line states the sums of the medians
//! over all chains. An argument after `--` limits the chains to those whose name contains it.
//!
//! `FUSING_ROUNDS=1` makes one round, for a profiler that counts instructions.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

mod support;

use std::hint::black_box;
use std::time::Duration;

use ::support::chains::{self, Chain, Contents, Step, Value};
use kiln::fusion::FusionForm;
use kiln::internal::fusion::{Argument, FusionOptions, Launch, fuse, range, search};
use support::{median, time};

/// Number of rounds, of which the median counts.
const ROUNDS: usize = 11;

/// Returns the length of a buffer in bytes.
fn length(contents: Contents) -> usize {
    let (Contents::Floats(words)
    | Contents::Factors(words)
    | Contents::Bytes(words)
    | Contents::Counting(words)) = contents;
    words * 4
}

fn argument(chain: &Chain, value: Value) -> Argument {
    match value {
        Value::Buffer(at) => {
            Argument::Buffer { buffer: at as u32, offset: 0, length: length(chain.buffers[at]) }
        }
        Value::Int(number) => Argument::Scalar(number.to_le_bytes().to_vec()),
        Value::Uint(number) => Argument::Scalar(number.to_le_bytes().to_vec()),
        Value::Long(number) => Argument::Scalar(number.to_le_bytes().to_vec()),
        Value::Float(number) => Argument::Scalar(number.to_le_bytes().to_vec()),
        Value::Local(bytes) => Argument::Local(bytes),
    }
}

fn launches(chain: &Chain) -> kiln::Result<Vec<Launch>> {
    let launch = |step: &Step| {
        Ok(Launch {
            module: 0,
            kernel: step.kernel.to_owned(),
            range: range(step.global, None, step.local)?,
            arguments: step.arguments.iter().map(|&value| argument(chain, value)).collect(),
            constants: Vec::new(),
        })
    };
    chain.launches.iter().map(launch).collect()
}

/// Returns the median time of a call.
fn measure(rounds: usize, mut call: impl FnMut()) -> Duration {
    median((0..rounds).map(|_| time(&mut call)).collect())
}

fn main() -> kiln::Result<()> {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let only = only.unwrap_or_default();
    let rounds = std::env::var("FUSING_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let rounds = rounds.unwrap_or(ROUNDS);
    println!("{:44} {:>12} {:>12} {:>12}", "", "direct, us", "batched, us", "search, us");
    let (mut sums, mut count, mut parts, mut fused) = ([Duration::ZERO; 3], 0, 0, 0);
    for chain in chains::all().into_iter().filter(|chain| chain.name.contains(&only)) {
        let launches = launches(&chain)?;
        let dead: Vec<_> = chain.intermediates.iter().map(|&at| at as u32).collect();
        let modules = [chain.module];
        let found = search(&modules, &launches, &dead, FusionOptions::default())?;
        (count, parts, fused) = (count + 1, parts + found.0, fused + found.1);
        let form = |form| {
            let options = FusionOptions { form, ..FusionOptions::default() };
            measure(rounds, || drop(black_box(fuse(&modules, &launches, &dead, options))))
        };
        let times = [
            form(FusionForm::Direct),
            form(FusionForm::Batched),
            measure(rounds, || {
                drop(black_box(search(&modules, &launches, &dead, FusionOptions::default())));
            }),
        ];
        let name: String = chain.name.chars().take(44).collect();
        let [direct, batched, whole] = times.map(|time| time.as_secs_f64() * 1e6);
        println!("{name:44} {direct:>12.0} {batched:>12.0} {whole:>12.0}");
        sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
    }
    let [direct, batched, whole] = sums.map(|sum| sum.as_secs_f64() * 1e3);
    println!("{count} chains, {parts} parts, {fused} launches in fused kernels");
    println!("{:44} {direct:>12.1} {batched:>12.1} {whole:>12.1}", "all, ms");
    Ok(())
}
