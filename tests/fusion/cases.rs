//! Random launches of a pool of kernels, for comparing fused runs with runs one by one.

use fastrand::Rng;
use kiln::NdRange;
use kiln::internal::fusion::{self, Argument};
use kiln::launch::NdSize;

use super::random_kernels::{GROUP, Kernel, Kind, Parameter};
use support::size;

/// Size of a buffer's cell in bytes. A work-item uses no more of a buffer. Slices begin at multiples of it.
pub(crate) const CELL: usize = 128;
/// Maximum number of work-items.
pub(crate) const ITEMS: usize = 64;
/// Number of cells, including those for offsets and slices.
pub(crate) const CELLS: usize = ITEMS + 24;

/// Launches in order.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) launches: Vec<Launch>,
    pub(crate) buffers: u32,
    /// Buffers whose contents do not matter in the end.
    pub(crate) dead: Vec<u32>,
    /// Whether work-items need values that others wrote, so that fusing is illegal.
    pub(crate) is_wrong: bool,
    /// Bytes that one work-item uses of each buffer, if the buffer is used.
    steps: Vec<Option<usize>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Launch {
    /// Index in the pool.
    pub(crate) kernel: usize,
    pub(crate) range: NdRange,
    pub(crate) arguments: Vec<Value>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Value {
    /// A buffer, and the cell at which its slice begins.
    Buffer(u32, usize),
    Number(u32),
    Factor(f32),
    Local(usize),
}

impl Launch {
    /// Converts the launch for the fusing compiler.
    pub(crate) fn planned(&self, pool: &[Kernel]) -> fusion::Launch {
        let argument = |value: &Value| match *value {
            Value::Buffer(buffer, cell) => {
                Argument::Buffer { buffer, offset: cell * CELL, length: (CELLS - cell) * CELL }
            }
            Value::Number(number) => Argument::Scalar(number.to_le_bytes().into()),
            Value::Factor(factor) => Argument::Scalar(factor.to_le_bytes().into()),
            Value::Local(bytes) => Argument::Local(bytes),
        };
        fusion::Launch {
            module: 0,
            kernel: pool[self.kernel].name.clone(),
            range: self.range,
            arguments: self.arguments.iter().map(argument).collect(),
            constants: Vec::new(),
        }
    }
}

fn range(global: &[usize], offset: Option<usize>, local: Option<&[usize]>) -> NdRange {
    let offset = offset.map(NdSize::from);
    fusion::range(size(global), offset, local.map(size)).expect("the dimensions are equal")
}

/// Choice of the ranges in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Equal(&'static [usize]),
    Different,
    Shifted,
}

const SHAPES: [&[usize]; 14] = [
    &[64],
    &[64],
    &[64],
    &[16, 4],
    &[8, 8],
    &[4, 4, 4],
    &[48],
    &[32],
    &[16, 3],
    &[16, 2],
    &[8, 4],
    &[2, 4, 8],
    &[8],
    &[1],
];

pub(crate) fn case(random: &mut Rng, pool: &[Kernel]) -> Case {
    if random.u8(..) < 24 {
        return illegal_case(random, pool);
    }
    let scheme = match random.u8(0..10) {
        0..=4 => Scheme::Equal(SHAPES[random.usize(..SHAPES.len())]),
        5..=8 => Scheme::Different,
        _ => Scheme::Shifted,
    };
    let has_groups = scheme != Scheme::Shifted && random.u8(..) < 90;
    let mut case = Case {
        launches: Vec::new(),
        buffers: 2,
        dead: Vec::new(),
        is_wrong: false,
        steps: vec![None; 2],
    };
    // Most cases consist of few kernels that fit each other.
    let favourite = random.usize(..pool.len());
    for _ in 0..random.usize(2..=8) {
        let shape = match scheme {
            Scheme::Equal(shape) => shape,
            Scheme::Different => SHAPES[random.usize(..SHAPES.len())],
            Scheme::Shifted => [&[64][..], &[48], &[32]][random.usize(..3)],
        };
        let offset = (scheme == Scheme::Shifted).then_some(5);
        let local: &[usize] = if shape.len() == 1 { &[GROUP] } else { &[GROUP, 1] };
        let is_grouped = has_groups
            && shape.len() <= 2
            && shape[0] % GROUP == 0
            && random.u8(..) < if shape.len() == 1 { 220 } else { 80 };
        let fits = |kernel: &Kernel| {
            let is_right = kernel.kind != Kind::Group || (is_grouped && shape.len() == 1);
            is_right && kernel.dimensions >= shape.len()
        };
        let step = pool[favourite].step;
        let chosen = (0..40)
            .map(|_| random.usize(..pool.len()))
            .enumerate()
            .find(|&(tried, at)| fits(&pool[at]) && (tried > 30 || pool[at].step == step));
        let Some((_, kernel)) = chosen else { continue };
        let range = range(shape, offset, is_grouped.then_some(local));
        let arguments = arguments(random, &mut case, &pool[kernel], shape);
        case.launches.push(Launch { kernel, range, arguments });
    }
    mark_dead(random, &mut case);
    case
}

fn mark_dead(random: &mut Rng, case: &mut Case) {
    case.dead = (2..case.buffers.saturating_sub(1)).filter(|_| random.u8(..) < 170).collect();
}

fn arguments(random: &mut Rng, case: &mut Case, kernel: &Kernel, shape: &[usize]) -> Vec<Value> {
    let count = case.buffers;
    let steps = case.steps.clone();
    let is_careless = random.u8(..) < 10;
    let fits = |&at: &u32| is_careless || steps[at as usize].is_none_or(|step| step == kernel.step);
    // Later launches mostly continue with the buffers just written.
    let mut read = || {
        let last = (0..count).rev().find(fits).filter(|_| random.u8(..) < 150);
        last.or_else(|| (0..20).map(|_| random.u32(0..count)).find(fits))
    };
    let inputs: Vec<_> = kernel.parameters.iter().map(|_| read()).collect();
    let inputs: Vec<_> = inputs
        .into_iter()
        .map(|input| {
            input.unwrap_or_else(|| {
                case.buffers += 1;
                case.steps.push(None);
                case.buffers - 1
            })
        })
        .collect();
    let mut outputs = Vec::new();
    let cell = |random: &mut Rng| if random.u8(..) < 8 { random.usize(1..20) } else { 0 };
    let mut values = Vec::new();
    let is_free = |at: u32, outputs: &[u32]| !inputs.contains(&at) && !outputs.contains(&at);
    for (at, parameter) in kernel.parameters.iter().enumerate() {
        values.push(match *parameter {
            Parameter::Input | Parameter::Index => Value::Buffer(inputs[at], cell(random)),
            Parameter::Output | Parameter::Both => {
                let old = random.u32(0..count);
                // A work-item may read the element that it writes, if both begin at the same place.
                let may_alias =
                    kernel.kind == Kind::Certain && kernel.parameters[0] == Parameter::Input;
                let is_reused = *parameter == Parameter::Both || random.u8(..) < 70;
                let buffer = if is_reused && fits(&old) && is_free(old, &outputs) {
                    old
                } else if may_alias && random.u8(..) < 20 {
                    inputs[0]
                } else {
                    case.buffers += 1;
                    case.steps.push(None);
                    case.buffers - 1
                };
                case.steps[buffer as usize] = Some(kernel.step);
                outputs.push(buffer);
                Value::Buffer(buffer, cell(random))
            }
            Parameter::Items => Value::Number([64, 100, 40, 48, 7][random.usize(..5)]),
            Parameter::Width => Value::Number(shape[0] as u32),
            Parameter::Number => Value::Number(random.u32(0..300)),
            Parameter::Factor => Value::Factor(f32::from(random.i8(-8..8)) * 0.37),
            Parameter::Local(bytes) => Value::Local(bytes),
        });
    }
    for (value, parameter) in values.iter().zip(&kernel.parameters) {
        if let (Value::Buffer(buffer, _), Parameter::Input) = (value, parameter) {
            case.steps[*buffer as usize] = Some(kernel.step);
        }
    }
    // Buffers that are both read and written begin at the same place.
    for value in &mut values {
        if let Value::Buffer(buffer, cell) = value
            && outputs.contains(buffer)
            && inputs.contains(buffer)
        {
            *cell = 0;
        }
    }
    values
}

/// Creates a case with a kernel that reads values that other work-items wrote, or writes values that they read.
fn illegal_case(random: &mut Rng, pool: &[Kernel]) -> Case {
    let mut case =
        Case { launches: Vec::new(), buffers: 4, dead: vec![2], is_wrong: true, steps: Vec::new() };
    let plain_kernel = random.usize(..4);
    let range = range(&[ITEMS], None, None);
    let plain_launch = |from, to| Launch {
        kernel: plain_kernel,
        range,
        arguments: vec![Value::Buffer(from, 0), Value::Buffer(to, 0)],
    };
    let with_width = |launch: Launch| Launch {
        arguments: pool[launch.kernel]
            .parameters
            .iter()
            .enumerate()
            .map(|(at, parameter)| match parameter {
                Parameter::Width => Value::Number(ITEMS as u32),
                _ => launch.arguments[at],
            })
            .collect(),
        ..launch
    };
    if random.u8(..) < 50 && pool[plain_kernel].element.size > 2 {
        // Slices that overlap, but begin at different places.
        let mut second = plain_launch(2, 3);
        second.arguments[0] = Value::Buffer(2, 1);
        case.launches = vec![with_width(plain_launch(0, 2)), with_width(second)];
        return case;
    }
    let cross: Vec<_> = (0..pool.len()).filter(|&at| pool[at].kind == Kind::Cross).collect();
    let kernel = cross[random.usize(..cross.len())];
    let text = &pool[kernel].text;
    let arguments = match pool[kernel].parameters.len() {
        3 => vec![Value::Buffer(2, 0), Value::Buffer(1, 0), Value::Buffer(3, 0)],
        _ => vec![Value::Buffer(2, 0), Value::Buffer(3, 0)],
    };
    let mut launch = Launch { kernel, range, arguments };
    if text.contains("dst[j]") || text.contains("atomic_add") {
        // Elements of other work-items are among those that the kernel writes.
        launch.arguments = vec![Value::Buffer(0, 0), Value::Buffer(2, 0)];
        let mut others = vec![launch, with_width(plain_launch(2, 3))];
        if text.contains("atomic_add") && random.bool() {
            others.swap(0, 1);
            others[0] = with_width(plain_launch(0, 2));
        }
        case.launches = others;
    } else {
        case.launches = vec![with_width(plain_launch(0, 2)), launch];
    }
    case
}
