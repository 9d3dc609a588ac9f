//! Launches of random kernels: buffers of random lengths, many too short, and the memory afterwards.

use kiln::{Buffer, Kernel, Launch, Local, Runtime};

use super::{Element, PAIR, RandomKernel};
use crate::elements::with_buffer;

/// Names of the buffers, in the order of the parameters. The first [`INPUTS`] are only read.
pub(crate) const BUFFERS: [&str; 9] =
    ["in0", "in1", "vec", "pairs", "fixed", "own", "outv", "outp", "counts"];

/// Number of buffers that kernels only read.
pub(crate) const INPUTS: usize = 5;

/// Value of all bytes around a slice.
const CANARY: u8 = 0x5a;

/// Range of a kernel's launches. Some drivers compile a kernel again for each range.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    global: Vec<usize>,
    offset: Vec<usize>,
    local: Option<Vec<usize>>,
}

impl Range {
    /// Returns a random range. `needs_local` tells whether it has to state the size of work-groups.
    pub(crate) fn random(rng: &mut fastrand::Rng, needs_local: bool) -> Self {
        let dimensions = rng.usize(1..4);
        let most: usize = [33, 7, 4][dimensions - 1];
        let is_local_given = needs_local || rng.u8(..3) == 0;
        let local: Vec<_> = (0..dimensions).map(|_| rng.usize(1..4)).collect();
        let global = local.iter().map(|local| match is_local_given {
            true => local * rng.usize(1..=most.div_ceil(*local)),
            false => rng.usize(1..=most),
        });
        let global = global.collect();
        let offset = (0..dimensions).map(|_| match rng.u8(..40) {
            0..8 => rng.usize(1..6),
            8 => 1 << 16,
            _ => 0,
        });
        Self { global, offset: offset.collect(), local: is_local_given.then_some(local) }
    }

    /// Returns a random number of work-groups of a size, in three dimensions.
    #[cfg(target_os = "linux")]
    pub(crate) fn of_groups(rng: &mut fastrand::Rng, local: [usize; 3]) -> Self {
        let global = local.iter().map(|local| local * rng.usize(1..4)).collect();
        Self { global, offset: vec![0; 3], local: Some(local.to_vec()) }
    }

    /// Creates a launch of a kernel over the range.
    pub(crate) fn launch(&self, kernel: &Kernel) -> Launch {
        let Self { global, offset, local } = self;
        let launch = kernel.launch(support::size(global)).offset(support::size(offset));
        match local {
            Some(local) => launch.local(support::size(local)),
            None => launch,
        }
    }
}

/// Lengths of the buffers in bytes, and scalars of a launch.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    range: Range,
    lengths: [usize; BUFFERS.len()],
    local_ints: usize,
    scalars: (i32, i32, i64),
    /// Whether the buffers are slices of larger ones.
    is_sliced: bool,
}

impl Given {
    pub(crate) fn random(rng: &mut fastrand::Rng, kernel: &RandomKernel, range: &Range) -> Self {
        // Vectors and structs are inside of their memory as a whole, or outside.
        let blocks = |((_, size), width): ((_, usize), usize)| match width {
            3 => 12 * size,
            _ => width * size,
        };
        let (input, own) = (kernel.input.1, kernel.own.1);
        let vectors = [kernel.vector, kernel.own_vector].map(blocks);
        let steps = [input, input, vectors[0], PAIR, 4, own, vectors[1], PAIR, 4];
        let mode = rng.u8(..4);
        let lengths = steps.map(|step| {
            let bytes = match (mode, rng.u8(..3)) {
                (0 | 3, _) | (1, 0) => 4096,
                (1, _) => rng.usize(1..400),
                (_, 0) => rng.usize(1..4),
                _ => rng.usize(1..60),
            };
            (bytes / step).max(1) * step
        });
        let local_ints = if matches!(mode, 0 | 3) { 512 } else { rng.usize(1..50) };
        Self {
            range: range.clone(),
            lengths,
            local_ints,
            scalars: (rng.i32(-9..40), rng.i32(-2..9), rng.i64(-5..70)),
            is_sliced: rng.u8(..3) == 0,
        }
    }

    /// Returns the bytes of a buffer before the launch.
    pub(crate) fn content(&self, kernel: &RandomKernel, buffer: usize) -> Vec<u8> {
        let (element, size) = element_of(kernel, buffer);
        let count = self.lengths[buffer].div_ceil(size);
        let bytes = (0..count).flat_map(|at| {
            let value = (at * 7 % 61) as i64 - 9;
            let bytes = match element {
                "float" => (value as f32).to_le_bytes().to_vec(),
                _ => value.to_le_bytes().to_vec(),
            };
            bytes.into_iter().take(size)
        });
        bytes.take(self.lengths[buffer]).collect()
    }
}

/// Returns the type of a buffer's elements. Structs are passed as bytes.
fn element_of(kernel: &RandomKernel, buffer: usize) -> Element {
    match buffer {
        0 | 1 => kernel.input,
        2 => kernel.vector.0,
        5 => kernel.own,
        6 => kernel.own_vector.0,
        3 | 7 => ("Pair", 1),
        _ => ("int", 4),
    }
}

/// Memory of a launch.
struct Memory {
    whole: Vec<Buffer<u8>>,
    slices: Vec<Buffer<u8>>,
    flag: Buffer<i32>,
    /// Position of the slices.
    start: usize,
}

/// Bytes of all buffers after a launch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct After {
    pub(crate) buffers: Vec<Vec<u8>>,
    /// Whether the reference needed a guard.
    pub(crate) is_guarded: bool,
}

impl Memory {
    async fn new(rt: &Runtime, kernel: &RandomKernel, given: &Given) -> Self {
        let alignment = rt.device().limits.slice_alignment.max(128);
        let start = if given.is_sliced { alignment } else { 0 };
        let (mut whole, mut slices) = (Vec::new(), Vec::new());
        for (buffer, length) in given.lengths.into_iter().enumerate() {
            let mut bytes = vec![CANARY; start];
            bytes.extend(given.content(kernel, buffer));
            bytes.extend(std::iter::repeat_n(CANARY, start));
            let all = rt.buffer_from(bytes).await.expect("there is memory");
            slices.push(all.slice(start..start + length).expect("it fits"));
            whole.push(all);
        }
        let flag = rt.buffer_from(vec![0]).await.expect("there is memory");
        Self { whole, slices, flag, start }
    }

    /// Reads all buffers. Panics if a byte around a slice has changed.
    async fn read(&self, rt: &Runtime) -> After {
        let mut buffers = Vec::new();
        for (whole, name) in self.whole.iter().zip(BUFFERS) {
            let bytes = rt.queue().read(whole).await.expect("the launch succeeded");
            let inside = self.start..bytes.len() - self.start;
            let around = bytes[..inside.start].iter().chain(&bytes[inside.end..]);
            assert!(around.copied().all(|byte| byte == CANARY), "`{name}` was left");
            buffers.push(bytes[inside].to_vec());
        }
        let flag = rt.queue().read(&self.flag).await.expect("the launch succeeded");
        After { buffers, is_guarded: flag != [0] }
    }
}

/// Runs a kernel, and returns the memory. `is_reference` tells which text it is of.
///
/// # Errors
///
/// Returns the launch's error.
pub(crate) async fn run(
    rt: &Runtime,
    kernel: &Kernel,
    known: &RandomKernel,
    given: &Given,
    is_reference: bool,
) -> kiln::Result<After> {
    let memory = Memory::new(rt, known, given).await;
    let mut launch = given.range.launch(kernel);
    for (at, slice) in memory.slices.iter().enumerate() {
        launch = with_buffer(launch, slice, element_of(known, at).0)?;
        launch = launch.arg(given.lengths[at] as u64);
    }
    launch = launch.arg(Local::<i32>::new(given.local_ints)).arg(4 * given.local_ints as u64);
    let (s0, s1, s2) = given.scalars;
    launch = launch.arg(s0).arg(s1).arg(s2);
    if is_reference {
        launch = launch.arg(&memory.flag);
    }
    rt.queue().submit(launch)?.await?;
    Ok(memory.read(rt).await)
}
