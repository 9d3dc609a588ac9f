//! Random chains over rows and elements, in work-groups of random sizes.

use fastrand::Rng;

use super::transformer::{MODULE, Tensor, at_start};
use super::{Chain, Expected, Float, Floats, Int, Step, grouped, step};

/// Returns a random chain. Buffer `n + 1` holds the results of launch `n`.
pub fn chain(random: &mut Rng) -> Chain {
    let tensor = Tensor {
        columns: 4 * random.usize(1..40),
        rows: random.usize(1..12),
        planes: random.usize(1..4),
    };
    let shared = [8, 16, 32, 64][random.usize(..4)];
    let count = random.usize(2..5);
    let launches: Vec<_> = (0..count).map(|at| launch(random, tensor, shared, at)).collect();
    // Some intermediates stay, and some are read by later launches, too.
    let intermediates = (1..count).filter(|_| random.bool()).collect();
    Chain {
        name: "random launches",
        module: MODULE,
        buffers: vec![Floats(tensor.elements()); count + 1],
        launches,
        intermediates,
        expected: Expected::Fuses,
    }
}

/// Returns a launch that reads the results of the launch before it, and maybe of another one. Launches with
/// local memory run in work-groups of the same size, mostly.
fn launch(random: &mut Rng, tensor: Tensor, shared: usize, at: usize) -> Step {
    let n = tensor.elements();
    let (from, other, to) = (at, random.usize(..=at), at + 1);
    let group = [8, 16, 32, 64][random.usize(..4)];
    let own = if random.usize(..6) == 0 { group } else { shared };
    let columns = tensor.columns;
    let line = |kernel, count: usize, arguments: &[_]| match count.is_multiple_of(group) {
        true => grouped(kernel, &[count], &[group], arguments),
        false => step(kernel, &[count], arguments),
    };
    let pair = at_start([from, to]);
    match random.usize(..12) {
        0 => line("scale4", n / 4, &[&pair[..], &[Float(0.75)]].concat()),
        1 => line("gelu", n, &pair),
        2 => line("silu4", n / 4, &pair),
        3 => grouped(
            "relu",
            &[n.next_multiple_of(3 * group)],
            &[group],
            &[super::Buffer(from), super::Buffer(to), Int(n as i32)],
        ),
        4 => tensor.diag_mask([from, to]),
        5 => {
            let arguments = at_start([from, other, to]);
            let columns = Int(columns as i32 / 4);
            line("add_row4", n / 4, &[&arguments[..], &[columns]].concat())
        }
        6 => tensor.by_rows("add", group, [from, other, to], [columns, tensor.rows]),
        7 => tensor.by_rows("mul", group, [from, other, to], [columns / 4, 1]),
        8 => tensor.norm("rms_norm", own, [from, to]),
        9 => tensor.norm("norm", own, [from, to]),
        10 => tensor.soft_max(own, [from, other, to]),
        _ => tensor.soft_max(own, [from, from, to]),
    }
}
