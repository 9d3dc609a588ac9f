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
    /// The neighbours of the last pixel of a row or a column are the first ones.
    Wrapped,
}

/// Kinds of kernels: how they write their pixel.
#[derive(Clone, Copy)]
enum Store {
    Whole,
    InParts,
    /// Only pixels away from the borders are written.
    Inside,
    /// Pixels on the borders are copied before the kernel returns early.
    Copied,
    /// Pixels on the borders are written elsewhere in the kernel.
    Otherwise,
}

/// Kernel of the pool: it reads one or two pictures and writes one.
pub struct Kernel {
    pub name: String,
    text: String,
    inputs: usize,
    /// Whether the sizes of the picture are arguments, and other work-items do nothing.
    takes_sizes: bool,
    /// Whether the kernel reads only the pixel that it writes.
    is_pointwise: bool,
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
    let kinds = [
        Kind::Pointwise,
        Kind::Pointwise,
        Kind::Clamped,
        Kind::Clamped,
        Kind::Guarded,
        Kind::Mirrored,
        Kind::Wrapped,
    ];
    let kind = kinds[random.usize(..kinds.len())];
    let stores = [Store::Whole, Store::InParts, Store::Inside, Store::Copied, Store::Otherwise];
    let store = if random.bool() { Store::Whole } else { stores[random.usize(..stores.len())] };
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
    let m = random.usize(1..=2);
    let inside = format!("x >= {m} && x < w - {m} && y >= {m} && y < h - {m}");
    if matches!(store, Store::Copied) {
        let _ = writeln!(text, "    if (!({inside})) {{ out[i] = in0[i]; return; }}");
    }
    for input in 0..inputs {
        let is_last = input + 1 == inputs;
        let kind = if is_last { kind } else { Kind::Pointwise };
        terms(random, kind, input, &mut text);
    }
    text += &match store {
        Store::Whole | Store::Copied => "    out[i] = v;\n}\n".to_owned(),
        Store::InParts => "    out[i].y = v.y;\n    out[i].x = v.x;\n}\n".to_owned(),
        Store::Inside => format!("    if ({inside}) out[i] = v;\n}}\n"),
        Store::Otherwise => {
            format!("    if ({inside}) out[i] = v;\n    else out[i] = in0[i] - v.yx;\n}}\n")
        }
    };
    Kernel { name, text, inputs, takes_sizes, is_pointwise: matches!(kind, Kind::Pointwise) }
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
        Kind::Wrapped => {
            for (dx, dy) in offsets {
                let by = factor(random);
                let (column, row) = (wrapped(random, "x", dx, "w"), wrapped(random, "y", dy, "h"));
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

fn wrapped(random: &mut Rng, own: &str, distance: i32, size: &str) -> String {
    match distance {
        1 if random.bool() => format!("{own} == {size} - 1 ? 0 : {own} + 1"),
        -1 if random.bool() => format!("{own} > 0 ? {own} - 1 : {size} - 1"),
        _ => format!("({own} + {distance} + {size}) % {size}"),
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
        let (mut launches, mut buffers, mut newest) = (Vec::new(), 2, 1);
        for _ in 0..count {
            let kernel = random.usize(..pool.kernels.len());
            let Kernel { inputs, takes_sizes, is_pointwise, .. } = pool.kernels[kernel];
            let inputs = (0..inputs).map(|_| match random.u8(..3) {
                0 => random.u32(..buffers),
                _ => newest,
            });
            let inputs: Vec<_> = inputs.collect();
            // Most launches write a new picture. Others change their input, or replace an earlier picture.
            let known = random.u32(..buffers);
            newest = match random.u8(..6) {
                0 | 1 if is_pointwise => inputs[0],
                2 if is_pointwise || !inputs.contains(&known) => known,
                _ => {
                    buffers += 1;
                    buffers - 1
                }
            };
            let mut arguments: Vec<_> = inputs.into_iter().map(Value::Buffer).collect();
            arguments.push(Value::Buffer(newest));
            let mut global = size;
            if takes_sizes {
                arguments.extend(size.map(|size| Value::Number(size as u32)));
                let whole = [1, 8][random.usize(..2)];
                global = size.map(|size: usize| size.next_multiple_of(whole));
            }
            let range = range(global.into(), None, None).expect("it has two dimensions");
            launches.push(CaseLaunch { kernel, range, arguments });
        }
        let dead = (2..buffers).filter(|&buffer| buffer != newest && random.u8(..4) > 0).collect();
        Self { size, launches, buffers: buffers as usize, dead }
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
