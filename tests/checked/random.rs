//! Random kernels over buffers of random lengths, many too short: no element outside of a buffer changes, and
//! the others have the values that the kernel defines, with zero for what is read outside.

use std::fmt::Write as _;

use futures::executor::block_on;
use kiln::internal::translate::spirv_of;
use kiln::{Buffer, Module, Runtime};
use support::tier;
use support::tools::has_clang;

/// Number of random programs in the full and in the fast tier, unless `KILN_CHECKED_CASES` says another one.
const CASES: [usize; 2] = [2, 1];

/// Kernels of a program.
const KERNELS: usize = 8;

/// Elements of each allocation. The buffers are slices of it.
const ROOM: usize = 512;

/// Value of all elements that no kernel may change.
const CANARY: i32 = 0x5a5a_5a5a;

/// Expression of 32-bit integers, which wrap.
#[derive(Clone, Debug)]
enum Value {
    Id(usize),
    Scalar,
    Constant(i32),
    Binary(&'static str, Box<Value>, Box<Value>),
    /// Element of one of the inputs.
    Load(usize, Box<Value>),
    /// Sum of an input's elements from the first index, as many as the second value modulo 8.
    Sum(usize, Box<Value>, Box<Value>),
    Choice(Box<Value>, Box<Value>, Box<Value>),
}

const OPERATORS: [&str; 8] = ["+", "-", "*", "&", "|", "<", ">>", "min"];

/// Buffers that kernels read.
const INPUTS: usize = 2;

impl Value {
    fn random(rng: &mut fastrand::Rng, depth: u32) -> Self {
        let small = |rng: &mut fastrand::Rng| Box::new(Self::random(rng, depth.saturating_sub(1)));
        if depth == 0 {
            return match rng.u8(..6) {
                0..=2 => Self::Id(rng.usize(..2)),
                3 => Self::Scalar,
                _ => Self::Constant(rng.i32(-4..40)),
            };
        }
        match rng.u8(..9) {
            0..=4 => {
                let operator = OPERATORS[rng.usize(..OPERATORS.len())];
                Self::Binary(operator, small(rng), small(rng))
            }
            5 | 6 => Self::Load(rng.usize(..INPUTS), small(rng)),
            7 => Self::Sum(rng.usize(..INPUTS), small(rng), small(rng)),
            _ => Self::Choice(small(rng), small(rng), small(rng)),
        }
    }

    /// Returns the value as OpenCL C.
    fn text(&self) -> String {
        match self {
            Self::Id(dimension) => format!("(int)get_global_id({dimension})"),
            Self::Scalar => "scalar".to_owned(),
            Self::Constant(value) => format!("({value})"),
            Self::Binary(operator, a, b) => {
                let (a, b) = (a.text(), b.text());
                match *operator {
                    "min" => format!("min({a}, {b})"),
                    "<" => format!("({a} < {b} ? 1 : 0)"),
                    ">>" => format!("({a} >> ({b} & 7))"),
                    // Signed numbers must not overflow in C.
                    _ => format!("(int)((uint){a} {operator} (uint){b})"),
                }
            }
            Self::Load(input, at) => format!("in{input}[{}]", at.text()),
            Self::Sum(input, from, count) => {
                format!("sum(in{input}, {}, {})", from.text(), count.text())
            }
            Self::Choice(condition, a, b) => {
                format!("(({} & 1) ? {} : {})", condition.text(), a.text(), b.text())
            }
        }
    }

    fn evaluate(&self, item: &Item<'_>) -> i32 {
        match self {
            Self::Id(dimension) => item.ids[*dimension],
            Self::Scalar => item.scalar,
            Self::Constant(value) => *value,
            Self::Binary(operator, a, b) => {
                let (a, b) = (a.evaluate(item), b.evaluate(item));
                match *operator {
                    "+" => a.wrapping_add(b),
                    "-" => a.wrapping_sub(b),
                    "*" => a.wrapping_mul(b),
                    "&" => a & b,
                    "|" => a | b,
                    "<" => i32::from(a < b),
                    ">>" => a >> (b & 7),
                    _ => a.min(b),
                }
            }
            Self::Load(input, at) => item.load(*input, i64::from(at.evaluate(item))),
            Self::Sum(input, from, count) => {
                let (from, count) = (from.evaluate(item), count.evaluate(item) & 7);
                (0..count).fold(0_i32, |sum, step| {
                    sum.wrapping_add(item.load(*input, i64::from(from.wrapping_add(step))))
                })
            }
            Self::Choice(condition, a, b) => {
                if condition.evaluate(item) & 1 == 1 {
                    a.evaluate(item)
                } else {
                    b.evaluate(item)
                }
            }
        }
    }
}

/// Work-item.
struct Item<'a> {
    ids: [i32; 2],
    scalar: i32,
    inputs: &'a [Vec<i32>; INPUTS],
}

impl Item<'_> {
    fn load(&self, input: usize, at: i64) -> i32 {
        usize::try_from(at).ok().and_then(|at| self.inputs[input].get(at)).copied().unwrap_or(0)
    }
}

/// Kernel that writes a value to an element of its own, changes a counter, and writes somewhere.
#[derive(Debug)]
struct Kernel {
    value: Value,
    /// Factor of the own element's index.
    stride: i32,
    counted: Value,
    somewhere: Value,
}

impl Kernel {
    fn random(rng: &mut fastrand::Rng) -> Self {
        Self {
            value: Value::random(rng, 3),
            stride: rng.i32(1..3),
            counted: Value::random(rng, 2),
            somewhere: Value::random(rng, 2),
        }
    }

    fn write(&self, text: &mut String, at: usize) {
        let Self { value, stride, counted, somewhere } = self;
        let (value, counted, somewhere) = (value.text(), counted.text(), somewhere.text());
        write!(
            text,
            "kernel void k{at}(global const int *in0, global const int *in1, global int *own,
                 global int *counts, global int *any, int scalar) {{
                 int id = (int)(get_global_id(1) * get_global_size(0) + get_global_id(0));
                 own[id * {stride}] = {value};
                 atomic_inc(&counts[{counted}]);
                 any[{somewhere}] = id;
             }}\n"
        )
        .expect("strings take everything");
    }
}

/// Lengths of the buffers, range and scalar of a launch.
struct Given {
    lengths: [usize; 5],
    range: [usize; 2],
    scalar: i32,
}

impl Given {
    fn random(rng: &mut fastrand::Rng) -> Self {
        let lengths = std::array::from_fn(|_| match rng.u8(..3) {
            0 => rng.usize(1..8),
            1 => rng.usize(1..80),
            _ => 256,
        });
        Self { lengths, range: [rng.usize(1..20), rng.usize(1..5)], scalar: rng.i32(-9..40) }
    }
}

const HELPER: &str = "int sum(global const int *in, int from, int count) {
    int sum = 0;
    for (int i = 0; i < (count & 7); i++) sum = (int)((uint)sum + (uint)in[(int)((uint)from + (uint)i)]);
    return sum;
}\n";

/// Launches a kernel, and compares the memory with what it must be.
async fn check(rt: &Runtime, kernel: &kiln::Kernel, known: &Kernel, given: &Given, is_text: bool) {
    let Given { lengths, range, scalar } = *given;
    let aligned = rt.device().limits.slice_alignment.div_ceil(size_of::<i32>()).max(1);
    // Some slices begin where the device does not take them as arguments.
    let step = aligned + if scalar % 4 == 1 { 3 } else { 0 };
    let content = |buffer: usize| (0..lengths[buffer]).map(move |at| (at * 7 % 61) as i32 - 9);
    let mut whole = Vec::new();
    for (buffer, length) in lengths.into_iter().enumerate() {
        let mut all = vec![CANARY; ROOM.max(step + 256 + 64)];
        all.splice(step..step + length, content(buffer));
        whole.push(rt.buffer_from(all).await.expect("there is memory"));
    }
    let slice = |at: usize| whole[at].slice(step..step + lengths[at]).expect("it fits");
    let slices: [Buffer<i32>; 5] = std::array::from_fn(slice);
    let [in0, in1, own, counts, any] = &slices;
    let launch = kernel.launch(range).args((in0, in1, own, counts, any, scalar));
    let what = || format!("{known:?}, {lengths:?}, {range:?}, {scalar}, as text: {is_text}");
    let event = rt.queue().submit(launch).unwrap_or_else(|error| panic!("{}: {error}", what()));
    event.await.unwrap_or_else(|error| panic!("{}: {error}", what()));

    let inputs = [content(0).collect(), content(1).collect()];
    let mut expected: [Vec<i32>; 2] = [content(2).collect(), content(3).collect()];
    for y in 0..range[1] {
        for x in 0..range[0] {
            let item = Item { ids: [x as i32, y as i32], scalar, inputs: &inputs };
            let id = (y * range[0] + x) as i32;
            let at = |index: i32| usize::try_from(index).ok();
            if let Some(element) = at(id * known.stride).and_then(|at| expected[0].get_mut(at)) {
                *element = known.value.evaluate(&item);
            }
            let counted = known.counted.evaluate(&item);
            if let Some(count) = at(counted).and_then(|at| expected[1].get_mut(at)) {
                *count = count.wrapping_add(1);
            }
        }
    }
    for (buffer, whole) in whole.iter().enumerate() {
        let all = rt.queue().read(whole).await.expect("the launch succeeded");
        let (before, rest) = all.split_at(step);
        let (inside, after) = rest.split_at(lengths[buffer]);
        let is_canary = |value: &i32| *value == CANARY;
        assert!(before.iter().chain(after).all(is_canary), "buffer {buffer} is left: {}", what());
        match buffer {
            0 | 1 => assert_eq!(inside, inputs[buffer], "an input changed: {}", what()),
            2 | 3 => assert_eq!(inside, expected[buffer - 2], "buffer {buffer}: {}", what()),
            _ => {}
        }
    }
}

#[test]
fn random_kernels_stay_inside_their_buffers() {
    if !has_clang() {
        return;
    }
    let cases = tier::cases("KILN_CHECKED_CASES", CASES[0], CASES[1]) as u64;
    let seed = std::env::var("KILN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let test = async |rt: Runtime| {
        for case in 0..cases {
            let mut rng = fastrand::Rng::with_seed(seed + case);
            let kernels: Vec<_> = (0..KERNELS).map(|_| Kernel::random(&mut rng)).collect();
            let mut text = HELPER.to_owned();
            kernels.iter().enumerate().for_each(|(at, kernel)| kernel.write(&mut text, at));
            let text = Module::opencl_c(text);
            let spirv = spirv_of(&rt, &text, "").await.expect("it is valid");
            for (module, is_text) in [(text, true), (spirv, false)] {
                let program = rt.build(&module).checked().await.expect("it builds");
                for (at, known) in kernels.iter().enumerate() {
                    let kernel = program.kernel(&format!("k{at}")).expect("it can be checked");
                    for _ in 0..3 {
                        check(&rt, &kernel, known, &Given::random(&mut rng), is_text).await;
                    }
                }
            }
        }
        let stats = rt.stats();
        assert!(stats.launches.guarded > 0, "none was too short: {stats:?}");
    };
    block_on(support::on_each_device(test));
}
