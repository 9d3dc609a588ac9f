//! Random kernels that read neighbours, and random chains of launches of them.

#![allow(unreachable_pub, reason = "the suite uses it as a module")]

use std::fmt::Write as _;

use fastrand::Rng;
use kiln::NdRange;
use kiln::internal::fusion::{Argument, Launch, range};

/// Element of a picture.
pub type Pixel = [f32; 2];

/// Kinds of kernels: how they treat the borders of a picture.
#[derive(Clone, Copy)]
enum Kind {
    Pointwise,
    Clamped,
    Guarded,
    Mirrored,
}

/// Kernel of the pool: it reads one or two pictures and writes one.
pub struct Kernel {
    pub name: String,
    text: String,
    inputs: usize,
    /// Whether the sizes of the picture are arguments.
    takes_sizes: bool,
}

/// Kernels that the cases of a batch launch.
pub struct Pool {
    pub kernels: Vec<Kernel>,
}

const KERNELS: usize = 14;

impl Pool {
    pub fn new(random: &mut Rng) -> Self {
        let kernels = (0..KERNELS).map(|at| kernel(random, format!("stencil{at}"))).collect();
        Self { kernels }
    }

    pub fn text(&self) -> String {
        self.kernels.iter().map(|kernel| kernel.text.as_str()).collect()
    }
}

fn kernel(random: &mut Rng, name: String) -> Kernel {
    let kinds = [Kind::Pointwise, Kind::Clamped, Kind::Clamped, Kind::Guarded, Kind::Mirrored];
    let kind = kinds[random.usize(..kinds.len())];
    let (inputs, takes_sizes) = (random.usize(1..=2), random.bool());
    let mut text = format!("kernel void {name}(");
    for input in 0..inputs {
        let _ = write!(text, "global const float2 *in{input}, ");
    }
    text += "global float2 *out";
    text += if takes_sizes { ", uint wide, uint high) {\n" } else { ") {\n" };
    text += "    int x = get_global_id(0), y = get_global_id(1);\n";
    if takes_sizes {
        text += "    int w = wide, h = high;\n    if (x >= w || y >= h) return;\n";
    } else {
        text += "    int w = get_global_size(0), h = get_global_size(1);\n";
    }
    text += "    int i = y * w + x;\n    float2 v = 0.0f;\n";
    for input in 0..inputs {
        let is_last = input + 1 == inputs;
        let kind = if is_last { kind } else { Kind::Pointwise };
        terms(random, kind, input, &mut text);
    }
    text += "    out[i] = v;\n}\n";
    Kernel { name, text, inputs, takes_sizes }
}

/// Adds the terms of one input to a kernel.
fn terms(random: &mut Rng, kind: Kind, input: usize, text: &mut String) {
    let factor = |random: &mut Rng| ["0.5f", "0.25f", "-1.0f", "2.0f"][random.usize(..4)];
    if matches!(kind, Kind::Pointwise) {
        let _ = writeln!(text, "    v += in{input}[i] * {};", factor(random));
        return;
    }
    // Some stencils only read along a row or a column.
    let reach = [(3, 0), (0, 4), (1, 1), (2, 3)][random.usize(..4)];
    let distance = |random: &mut Rng, most: i32| random.i32(-most..=most);
    let offsets: Vec<_> = (0..random.usize(1..=4))
        .map(|_| (distance(random, reach.0), distance(random, reach.1)))
        .collect();
    if random.u8(..3) == 0 && matches!(kind, Kind::Clamped) {
        let (from, to) = (random.i32(-3..=0), random.i32(0..=3));
        let _ = writeln!(
            text,
            "    for (int d = {from}; d <= {to}; ++d)
        v += in{input}[clamp(y + d, 0, h - 1) * w + clamp(x - d, 0, w - 1)] * {};",
            factor(random)
        );
        return;
    }
    let margin = offsets.iter().map(|(dx, dy)| dx.abs().max(dy.abs())).max().unwrap_or(0);
    match kind {
        Kind::Guarded => {
            let _ = writeln!(
                text,
                "    if (x >= {margin} && x < w - {margin} && y >= {margin} && y < h - {margin}) {{"
            );
            for (dx, dy) in offsets {
                let by = factor(random);
                let _ = writeln!(text, "        v += in{input}[(y + {dy}) * w + x + {dx}] * {by};");
            }
            let _ = writeln!(text, "    }} else v += in{input}[i];");
        }
        Kind::Mirrored => {
            for (dx, dy) in offsets {
                let by = factor(random);
                let column = mirrored("x", dx, "w");
                let row = mirrored("y", dy, "h");
                let _ = writeln!(text, "    v += in{input}[({row}) * w + ({column})] * {by};");
            }
        }
        Kind::Clamped | Kind::Pointwise => {
            for (dx, dy) in offsets {
                let by = factor(random);
                let column = clamped(random, &format!("x + {dx}"), "w");
                let row = clamped(random, &format!("y + {dy}"), "h");
                let _ = writeln!(text, "    v += in{input}[({row}) * w + ({column})] * {by};");
            }
        }
    }
}

/// Returns the text of a coordinate that is kept inside of the picture, in one of several ways.
fn clamped(random: &mut Rng, coordinate: &str, size: &str) -> String {
    match random.u8(..3) {
        0 => format!("clamp({coordinate}, 0, {size} - 1)"),
        1 => format!("min(max({coordinate}, 0), {size} - 1)"),
        _ => {
            format!("{coordinate} < 0 ? 0 : {coordinate} > {size} - 1 ? {size} - 1 : {coordinate}")
        }
    }
}

fn mirrored(own: &str, distance: i32, size: &str) -> String {
    if distance <= 0 {
        format!("abs({own} + {distance})")
    } else {
        format!(
            "{own} + {distance} < {size} ? {own} + {distance} : 2 * {size} - 2 - ({own} + {distance})"
        )
    }
}

/// Argument of a launch.
#[derive(Clone, Copy)]
pub enum Value {
    Buffer(u32),
    Number(u32),
}

pub struct CaseLaunch {
    pub kernel: usize,
    pub range: NdRange,
    pub arguments: Vec<Value>,
}

/// Chain of launches over pictures of one size.
pub struct Case {
    pub size: [usize; 2],
    pub launches: Vec<CaseLaunch>,
    pub buffers: usize,
    /// Buffers that are not read after the launches.
    pub dead: Vec<u32>,
}

impl Case {
    pub fn new(random: &mut Rng, pool: &Pool) -> Self {
        // Pictures are larger than any mirrored distance.
        let size = [random.usize(5..40), random.usize(5..30)];
        let count = random.usize(2..=5);
        let mut launches = Vec::new();
        for at in 0..count {
            let kernel = random.usize(..pool.kernels.len());
            // The buffers of the first two pictures are inputs, and each launch writes one more.
            let newest = at as u32 + 1;
            let mut arguments: Vec<_> = (0..pool.kernels[kernel].inputs)
                .map(|_| match random.u8(..3) {
                    0 => Value::Buffer(random.u32(0..=newest)),
                    _ => Value::Buffer(newest),
                })
                .collect();
            arguments.push(Value::Buffer(newest + 1));
            if pool.kernels[kernel].takes_sizes {
                arguments.extend(size.map(|size| Value::Number(size as u32)));
            }
            let range = range(size.into(), None, None).expect("it has two dimensions");
            launches.push(CaseLaunch { kernel, range, arguments });
        }
        let last = count as u32 + 1;
        let dead = (2..last).filter(|_| random.u8(..4) > 0).collect();
        Self { size, launches, buffers: count + 2, dead }
    }

    /// Returns the first contents of a buffer.
    pub fn contents(&self, buffer: usize) -> Vec<Pixel> {
        let mut random = Rng::with_seed(buffer as u64);
        let mut number = || (random.i32(-1000..1000) as f32) / 64.0;
        (0..self.size[0] * self.size[1]).map(|_| [number(), number()]).collect()
    }
}

/// Returns the launches of a case as plain data.
pub fn planned(case: &Case, pool: &Pool) -> Vec<Launch> {
    let length = case.size[0] * case.size[1] * size_of::<Pixel>();
    let argument = |value: &Value| match *value {
        Value::Buffer(buffer) => Argument::Buffer { buffer, offset: 0, length },
        Value::Number(number) => Argument::Scalar(number.to_le_bytes().to_vec()),
    };
    let launch = |launch: &CaseLaunch| Launch {
        module: 0,
        kernel: pool.kernels[launch.kernel].name.clone(),
        range: launch.range,
        arguments: launch.arguments.iter().map(argument).collect(),
        constants: Vec::new(),
    };
    case.launches.iter().map(launch).collect()
}

/// Describes a case, for failures.
pub fn describe(case: &Case, pool: &Pool) -> String {
    let mut text = format!("{:?}, dead {:?}\n", case.size, case.dead);
    for launch in &case.launches {
        let buffers = launch.arguments.iter().filter_map(|argument| match argument {
            Value::Buffer(buffer) => Some(*buffer),
            Value::Number(_) => None,
        });
        let buffers: Vec<_> = buffers.collect();
        let _ = writeln!(text, "{buffers:?}\n{}", pool.kernels[launch.kernel].text);
    }
    text
}
