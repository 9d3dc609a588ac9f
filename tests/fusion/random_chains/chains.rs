//! Chains of launches of random kernels, with their buffers.

use std::fmt::Write as _;

use fastrand::Rng;
use kiln::NdRange;
use kiln::internal::fusion::{Argument, Launch, range};
use kiln::launch::NdSize;

use super::kernels::{Content, Extent, GROUP, Items, Kernel, Pool, Reads, Scalar};

/// Size of the cells of buffers, in bytes: slices consist of whole cells. A multiple of the alignment of slices on
/// every device.
pub(crate) const CELL: usize = 512;

/// Argument of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    /// Buffer, with the first byte of its slice and the slice's length in bytes.
    Buffer(u32, usize, usize),
    Int(i32),
    Uint(u32),
    Ulong(u64),
    Float(f32),
    Local(usize),
}

#[derive(Clone)]
pub(crate) struct CaseLaunch {
    /// Position of the kernel in the pool.
    pub(crate) kernel: usize,
    pub(crate) range: NdRange,
    pub(crate) arguments: Vec<Value>,
}

/// Chain of launches over pictures of one size.
#[derive(Clone)]
pub(crate) struct Case {
    size: Vec<usize>,
    pub(crate) launches: Vec<CaseLaunch>,
    buffers: Vec<Content>,
    /// Buffers that are not read after the launches.
    pub(crate) dead: Vec<u32>,
    /// Whether all launches are of plain kernels, over whole pictures. More of these chains are fused.
    is_plain: bool,
}

/// Returns a size of pictures, which are larger than all distances of neighbours.
pub(crate) fn size(random: &mut Rng, dimensions: usize) -> Vec<usize> {
    match dimensions {
        1 => vec![random.usize(9..180)],
        2 => vec![random.usize(5..26), random.usize(5..18)],
        _ => vec![random.usize(5..12), random.usize(5..9), random.usize(4..7)],
    }
}

impl Case {
    pub(crate) fn new(random: &mut Rng, pool: &Pool, size: &[usize]) -> Self {
        let mut case = Self {
            size: size.to_vec(),
            launches: Vec::new(),
            buffers: Vec::new(),
            dead: Vec::new(),
            is_plain: random.bool() && pool.kernels.iter().any(|kernel| kernel.is_plain),
        };
        let mut newest = None;
        for _ in 0..random.usize(2..=6) {
            let kernel = case.next_kernel(random, pool, newest);
            newest = Some(case.launch(random, pool, kernel, newest));
        }
        let written = case.launches.iter().map(|launch| output(pool, launch));
        let mut dead: Vec<_> = written.filter(|at| Some(*at) != newest).collect();
        dead.retain(|_| random.u8(..10) < 7);
        dead.sort_unstable();
        dead.dedup();
        case.dead = dead;
        case
    }

    /// Returns a kernel, mostly one that reads what was written last.
    fn next_kernel(&self, random: &mut Rng, pool: &Pool, newest: Option<u32>) -> usize {
        let is_possible = |at: &usize| !self.is_plain || pool.kernels[*at].is_plain;
        let possible: Vec<_> = (0..pool.kernels.len()).filter(is_possible).collect();
        let any = |random: &mut Rng| possible[random.usize(..possible.len())];
        let Some(newest) = newest.filter(|_| random.u8(..10) > 0) else { return any(random) };
        let content = self.buffers[newest as usize];
        let tried: Vec<_> = (0..40).map(|_| any(random)).collect();
        let fits = |at: &&usize| pool.kernels[**at].inputs.contains(&content);
        *tried.iter().find(fits).unwrap_or(&tried[0])
    }

    /// Adds a launch. Returns the buffer that it writes.
    fn launch(&mut self, random: &mut Rng, pool: &Pool, kernel: usize, newest: Option<u32>) -> u32 {
        let own = &pool.kernels[kernel];
        let mut arguments: Vec<_> =
            own.inputs.iter().map(|&content| self.input(random, content, newest)).collect();
        if own.reads == Reads::Beyond {
            // The buffer's second picture is read, too.
            for (argument, content) in arguments.iter_mut().zip(&own.inputs) {
                if let Value::Buffer(_, start, length) = argument {
                    (*start, *length) = (0, 2 * self.stride(*content));
                }
            }
        }
        let output = self.output(random, own, &arguments);
        arguments.push(output);
        let radius = random.i32(0..=3);
        arguments.extend(own.scalars.iter().map(|scalar| self.scalar(random, *scalar, radius)));
        let range = self.range(random, own);
        self.launches.push(CaseLaunch { kernel, range, arguments });
        match output {
            Value::Buffer(at, ..) => at,
            _ => unreachable!("outputs are buffers"),
        }
    }

    fn input(&mut self, random: &mut Rng, content: Content, newest: Option<u32>) -> Value {
        let fits = |at: &u32| self.buffers[*at as usize] == content;
        let newest = newest.filter(fits).filter(|_| random.u8(..10) < 8);
        let known: Vec<_> = (0..self.buffers.len() as u32).filter(fits).collect();
        let at = match newest {
            Some(newest) => newest,
            None if !known.is_empty() && random.u8(..4) > 0 => known[random.usize(..known.len())],
            None => self.add(content),
        };
        self.slice(random, at)
    }

    fn output(&mut self, random: &mut Rng, kernel: &Kernel, inputs: &[Value]) -> Value {
        let content = kernel.output;
        if self.is_plain {
            let at = self.add(content);
            return self.slice(random, at);
        }
        if kernel.reads == Reads::Own && random.u8(..12) == 0 && kernel.inputs[0] == content {
            // Each work-item replaces the element that it reads, if all inputs of the buffer are the same.
            let others = &inputs[1..];
            let is_other =
                |other: &Value| buffer(other) != buffer(&inputs[0]) || *other == inputs[0];
            if others.iter().all(is_other) {
                return inputs[0];
            }
        }
        let is_input = |at: u32| inputs.iter().any(|input| buffer(input) == Some(at));
        let free: Vec<_> = (0..self.buffers.len() as u32)
            .filter(|&at| self.buffers[at as usize] == content && !is_input(at))
            .collect();
        let at = match free.is_empty() || random.u8(..5) > 0 {
            true => self.add(content),
            false => free[random.usize(..free.len())],
        };
        self.slice(random, at)
    }

    fn add(&mut self, content: Content) -> u32 {
        self.buffers.push(content);
        self.buffers.len() as u32 - 1
    }

    /// Returns the first picture of a buffer, mostly, or the second.
    fn slice(&self, random: &mut Rng, at: u32) -> Value {
        let stride = self.stride(self.buffers[at as usize]);
        let start = if !self.is_plain && random.u8(..16) == 0 { stride } else { 0 };
        Value::Buffer(at, start, stride)
    }

    /// Returns the number of elements in each dimension.
    fn counts(&self, extent: Extent) -> Vec<usize> {
        match extent {
            Extent::Full => self.size.clone(),
            Extent::Halved => self.size.iter().map(|size| size.div_ceil(2)).collect(),
            Extent::Rows => vec![self.rows()],
        }
    }

    fn rows(&self) -> usize {
        self.size[1..].iter().product()
    }

    /// Returns the distance in bytes of the two pictures of a buffer.
    fn stride(&self, content: Content) -> usize {
        let count: usize = self.counts(content.extent).iter().product();
        (count * content.element.size()).next_multiple_of(CELL)
    }

    fn scalar(&self, random: &mut Rng, scalar: Scalar, radius: i32) -> Value {
        match scalar {
            Scalar::Size(d, "int") => Value::Int(self.size[d] as i32),
            Scalar::Size(d, "uint") => Value::Uint(self.size[d] as u32),
            Scalar::Size(d, _) => Value::Ulong(self.size[d] as u64),
            Scalar::Radius => Value::Int(radius),
            Scalar::Factor => Value::Float([0.5, 0.3, -1.0, 1.1][random.usize(..4)]),
            Scalar::Local(bytes) => Value::Local(bytes),
        }
    }

    fn range(&self, random: &mut Rng, kernel: &Kernel) -> NdRange {
        let counts = self.counts(kernel.output.extent);
        let whole = |global: &[usize]| range(support::size(global), None, None);
        let made = match kernel.items {
            Items::Elements => whole(&counts),
            Items::Flat => whole(&[counts.iter().product()]),
            Items::Rows => whole(&[self.rows()]),
            Items::Groups => range((GROUP * self.rows()).into(), None, Some(GROUP.into())),
            Items::Any if self.is_plain => whole(&counts),
            Items::Any => match random.u8(..12) {
                0 | 1 => rounded(&counts),
                2 => part(random, &counts),
                _ => whole(&counts),
            },
        };
        made.expect("the dimensions are equal")
    }

    /// Returns the same launches with other radiuses and factors.
    pub(crate) fn with_other_scalars(&self, random: &mut Rng, pool: &Pool) -> Self {
        let mut other = self.clone();
        for launch in &mut other.launches {
            let Kernel { inputs, scalars, .. } = &pool.kernels[launch.kernel];
            let radius = random.i32(0..=3);
            let values = scalars.iter().map(|scalar| self.scalar(random, *scalar, radius));
            launch.arguments.truncate(inputs.len() + 1);
            launch.arguments.extend(values);
        }
        other
    }

    pub(crate) fn buffers(&self) -> impl Iterator<Item = u32> {
        0..self.buffers.len() as u32
    }

    /// Returns the first contents of a buffer.
    pub(crate) fn contents(&self, buffer: u32) -> Vec<[u8; CELL]> {
        let content = self.buffers[buffer as usize];
        let mut cells = vec![[0; CELL]; 2 * self.stride(content) / CELL];
        content.element.fill(&mut Rng::with_seed(buffer.into()), cells.as_flattened_mut());
        cells
    }

    /// Returns the launches as plain data.
    pub(crate) fn planned(&self, pool: &Pool) -> Vec<Launch> {
        let argument = |value: &Value| match *value {
            Value::Buffer(buffer, offset, length) => Argument::Buffer { buffer, offset, length },
            Value::Int(number) => Argument::Scalar(number.to_le_bytes().into()),
            Value::Uint(number) => Argument::Scalar(number.to_le_bytes().into()),
            Value::Ulong(number) => Argument::Scalar(number.to_le_bytes().into()),
            Value::Float(number) => Argument::Scalar(number.to_le_bytes().into()),
            Value::Local(bytes) => Argument::Local(bytes),
        };
        let launch = |launch: &CaseLaunch| Launch {
            module: 0,
            kernel: pool.kernels[launch.kernel].name.clone(),
            range: launch.range,
            arguments: launch.arguments.iter().map(argument).collect(),
            constants: Vec::new(),
        };
        self.launches.iter().map(launch).collect()
    }

    /// Returns a description for failures.
    pub(crate) fn describe(&self, pool: &Pool) -> String {
        let mut text = format!("pictures of {:?}, dead {:?}\n", self.size, self.dead);
        for launch in &self.launches {
            let Kernel { text: kernel, .. } = &pool.kernels[launch.kernel];
            let (range, arguments) = (&launch.range, &launch.arguments);
            let (global, offset, local) = (range.global(), range.offset(), range.local());
            let _ = writeln!(
                text,
                "over {global:?} from {offset:?} by {local:?}: {arguments:?}\n{kernel}"
            );
        }
        text
    }
}

fn buffer(value: &Value) -> Option<u32> {
    match value {
        Value::Buffer(at, ..) => Some(*at),
        _ => None,
    }
}

/// Returns the buffer that a launch writes.
fn output(pool: &Pool, launch: &CaseLaunch) -> u32 {
    let at = pool.kernels[launch.kernel].inputs.len();
    buffer(&launch.arguments[at]).expect("the output follows the inputs")
}

/// Returns a range of whole work-groups with at least the given number of work-items.
fn rounded(counts: &[usize]) -> kiln::Result<NdRange> {
    let local = &[8, 4, 2][..counts.len()];
    let global: Vec<_> =
        counts.iter().zip(local).map(|(count, local)| count.next_multiple_of(*local)).collect();
    range(support::size(&global), None, Some(support::size(local)))
}

/// Returns a range for a part of the elements.
fn part(random: &mut Rng, counts: &[usize]) -> kiln::Result<NdRange> {
    let (mut offset, mut global) = (Vec::new(), Vec::new());
    for &count in counts {
        let first = random.usize(..3);
        offset.push(first);
        global.push(random.usize(1..=count - first));
    }
    let offset: NdSize = support::size(&offset);
    range(support::size(&global), Some(offset), None)
}
