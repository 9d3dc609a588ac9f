//! Time to read, split and assemble SPIR-V modules: `cargo bench --bench spirv`.

#![allow(clippy::print_stdout, reason = "printing is what benchmarks do")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use kiln::internal::spirv::{link, reassemble};
use peak_alloc::PeakAlloc;
use rspirv::spirv::{
    AddressingModel, Capability, Decoration, ExecutionModel, LinkageType, MAGIC_NUMBER,
    MemoryModel, Op,
};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const MODULE_BYTES: usize = 1 << 20;
const ROUNDS: usize = 51;

fn main() -> kiln::Result<()> {
    println!("\na module of 1 MiB");
    let module = repeated(MODULE_BYTES);
    let (time, peak) = measure(|| reassemble(module.clone()))?;
    report("read, reflect, take apart, assemble", module.len(), time, peak);

    let [library, application] =
        [Part::Functions, Part::Calls].map(|part| assembled(&functions(LINKED_FUNCTIONS, part)));
    let modules = [("library", &*library), ("application", &*application)];
    let bytes = library.len() + application.len();
    println!(
        "\n{LINKED_FUNCTIONS} functions of a library, called by an application: {bytes} bytes"
    );
    let (time, peak) = measure(|| link(&modules, true))?;
    report("link, keep exports", bytes, time, peak);
    let (time, peak) = measure(|| link(&modules, false))?;
    report("link, drop what is not reached", bytes, time, peak);
    Ok(())
}

fn report(what: &str, bytes: usize, time: Duration, peak: usize) {
    let rate = bytes as f64 / time.as_secs_f64() / 1e6;
    let times = peak as f64 / bytes as f64;
    println!(
        "  {what:<45} {:>7.2} ms {rate:>7.0} MB/s, peak memory {times:>4.1} times the module",
        time.as_secs_f64() * 1e3
    );
}

/// Measures the median time, and the peak of memory above the use before.
fn measure(mut work: impl FnMut() -> kiln::Result<Vec<u8>>) -> kiln::Result<(Duration, usize)> {
    work()?;
    let mut times = Vec::new();
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        black_box(work()?);
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok((times[ROUNDS / 2], MEMORY.peak_usage() - before))
}

/// Returns a module with a kernel and enough functions to fill the given size. Each function loads, multiplies,
/// adds and stores in eight rounds, has a name, and has linkage.
fn repeated(bytes: usize) -> Vec<u8> {
    let one = functions(2, Part::All).len() - functions(1, Part::All).len();
    assembled(&functions((bytes / 4 / one) as u32 + 1, Part::All))
}

fn assembled(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Part of the functions, and of the kernel that calls them, that a module contains.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    All,
    Functions,
    Calls,
}

const LINKED_FUNCTIONS: u32 = 1000;
const FUNCTION_IDS: u32 = 64;
const FIRST_FUNCTION: u32 = 32;

fn functions(count: u32, part: Part) -> Vec<u32> {
    let mut words =
        vec![MAGIC_NUMBER, 0x0001_0200, 0, FIRST_FUNCTION + 2 * FUNCTION_IDS * count, 0];
    let mut op = |op: Op, operands: &[u32], text: &str, more: &[u32]| {
        let mut all = operands.to_vec();
        if !text.is_empty() {
            let mut bytes = text.as_bytes().to_vec();
            bytes.resize(text.len() / 4 * 4 + 4, 0);
            all.extend(bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)));
        }
        all.extend(more);
        words.push((all.len() as u32 + 1) << 16 | op as u32);
        words.extend(all);
    };
    let base = |n: u32| FIRST_FUNCTION + FUNCTION_IDS * n;
    let imports = part == Part::Calls;
    for capability in [Capability::Addresses, Capability::Linkage, Capability::Kernel] {
        op(Op::Capability, &[capability as u32], "", &[]);
    }
    op(Op::MemoryModel, &[AddressingModel::Physical64 as u32, MemoryModel::OpenCL as u32], "", &[]);
    let kernel = base(count);
    if part != Part::Functions {
        op(Op::EntryPoint, &[ExecutionModel::Kernel as u32, kernel], "main", &[]);
    }
    for n in 0..count {
        op(Op::Name, &[base(n)], &format!("function_{n}"), &[]);
    }
    for n in 0..count {
        let linkage = if imports { LinkageType::Import } else { LinkageType::Export };
        let decoration = Decoration::LinkageAttributes as u32;
        op(Op::Decorate, &[base(n), decoration], &format!("function_{n}"), &[linkage as u32]);
    }
    op(Op::TypeVoid, &[1], "", &[]);
    op(Op::TypeFloat, &[2, 32], "", &[]);
    op(Op::TypePointer, &[3, 5, 2], "", &[]);
    op(Op::TypeFunction, &[4, 2, 3, 2], "", &[]);
    op(Op::TypeFunction, &[5, 1, 3, 2], "", &[]);
    for n in 0..count {
        let id = base(n);
        op(Op::Function, &[2, id, 0, 4], "", &[]);
        op(Op::FunctionParameter, &[3, id + 1], "", &[]);
        op(Op::FunctionParameter, &[2, id + 2], "", &[]);
        if !imports {
            op(Op::Label, &[id + 3], "", &[]);
            let mut value = id + 2;
            for round in 0..8 {
                let next = id + 4 + 3 * round;
                op(Op::Load, &[2, next, id + 1, 2, 4], "", &[]);
                op(Op::FMul, &[2, next + 1, next, value], "", &[]);
                op(Op::FAdd, &[2, next + 2, next + 1, id + 2], "", &[]);
                op(Op::Store, &[id + 1, next + 2, 2, 4], "", &[]);
                value = next + 2;
            }
            op(Op::ReturnValue, &[value], "", &[]);
        }
        op(Op::FunctionEnd, &[], "", &[]);
    }
    if part != Part::Functions {
        op(Op::Function, &[1, kernel, 0, 5], "", &[]);
        op(Op::FunctionParameter, &[3, kernel + 1], "", &[]);
        op(Op::FunctionParameter, &[2, kernel + 2], "", &[]);
        op(Op::Label, &[kernel + 3], "", &[]);
        for n in 0..count {
            let called = [2, kernel + 4 + n, base(n), kernel + 1, kernel + 2];
            op(Op::FunctionCall, &called, "", &[]);
        }
        op(Op::Return, &[], "", &[]);
        op(Op::FunctionEnd, &[], "", &[]);
    }
    words
}
