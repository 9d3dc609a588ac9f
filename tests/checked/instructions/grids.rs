//! Operands of launches: ranges of integers, each along a dimension of the launch.

use fastrand::Rng;

use super::emit::mask;

/// Maximum number of work-items of a launch whose results are not in the table of all pairs.
const MAX_ITEMS: usize = 256;

/// Operands of a launch's work-items: `a = start[0] + step[0] * x`, `b = start[1] + step[1] * y + cross * x`,
/// and `c = start[2] + step[2] * z`, for the global id `x, y, z`.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    pub(super) start: [i64; 3],
    pub(super) step: [i64; 3],
    pub(super) cross: i64,
    pub(super) count: [usize; 3],
    /// Number that conditions compare results with.
    pub(super) limit: i64,
}

impl Grid {
    /// Returns the grid of all pairs of integers of 8 bits.
    pub(super) fn all_pairs(limit: i64) -> Self {
        Self { start: [0; 3], step: [1; 3], cross: 0, count: [256, 256, 1], limit }
    }

    /// Returns a random grid for integers of a width, of which an instruction takes some.
    pub(super) fn random(rng: &mut Rng, width: u32, operands: usize) -> Self {
        // All pairs of 8 bits are in the table.
        let is_free = width == 8 && operands < 3;
        let mut left = if is_free { 4096 } else { MAX_ITEMS };
        let (mut start, mut step, mut count) = ([0; 3], [1; 3], [1; 3]);
        for at in 0..operands {
            step[at] =
                if rng.u8(..3) > 0 { 1 } else { one_of(rng, &[2, 3, 4, 5, 8, 16, 64, -1, -2]) };
            let most = left.min(if is_free { 200 } else { 40 });
            count[at] = match rng.u8(..8) {
                0..3 => 1,
                3..6 => rng.usize(1..=most.min(8)),
                _ => rng.usize(1..=most),
            };
            left /= count[at];
            start[at] = first(rng, width, step[at] * (count[at] as i64 - 1));
        }
        let cross = if operands > 1 && rng.u8(..8) == 0 { one_of(rng, &[1, -1, 2]) } else { 0 };
        let grid = Self { start, step, cross, count, limit: 0 };
        Self { limit: grid.random_limit(rng, width), ..grid }
    }

    /// Returns a number that some results may be below and others above.
    fn random_limit(&self, rng: &mut Rng, width: u32) -> i64 {
        let Self { start: [a, b, _], step, count, .. } = self;
        let inside = a.wrapping_add(step[0].wrapping_mul(rng.usize(..count[0]) as i64));
        let near = match rng.u8(..8) {
            0 | 1 => edge(rng, width),
            2 | 3 => inside,
            4 => inside.wrapping_add(*b),
            5 => inside.wrapping_sub(*b),
            6 => inside.wrapping_mul(*b),
            _ => !inside,
        };
        near.wrapping_add(rng.i64(-2..=2))
    }

    /// Returns the operands of each work-item. Those that the instruction does not take are zero.
    pub(super) fn items(&self, width: u32, operands: usize) -> impl Iterator<Item = [u64; 3]> + '_ {
        let Self { start, step, cross, count: [xs, ys, zs], .. } = self;
        let along = |at: usize, id: usize| start[at].wrapping_add(step[at].wrapping_mul(id as i64));
        let all = (0..*zs)
            .flat_map(move |z| (0..*ys).flat_map(move |y| (0..*xs).map(move |x| [x, y, z])));
        all.map(move |[x, y, z]| {
            let b = along(1, y).wrapping_add(cross.wrapping_mul(x as i64));
            let mut all = [along(0, x), b, along(2, z)].map(|integer| integer as u64 & mask(width));
            all[operands..].fill(0);
            all
        })
    }
}

fn one_of(rng: &mut Rng, all: &[i64]) -> i64 {
    all[rng.usize(..all.len())]
}

/// Returns the first integer of a range of this length. Most ranges wrap neither as signed nor as unsigned
/// integers.
fn first(rng: &mut Rng, width: u32, length: i64) -> i64 {
    let near = match (width, rng.u8(..3)) {
        (8, 0 | 1) => rng.i64(-128..256),
        _ => edge(rng, width).wrapping_add(rng.i64(-3..=3)),
    };
    let (low, high) = (length.min(0), length.max(0));
    let begins = near.wrapping_sub(if rng.bool() { high } else { 0 });
    if width == 64 || rng.u8(..8) == 0 {
        return begins;
    }
    let (least, most) = (-(1_i64 << (width - 1)), (1_i64 << width) - 1);
    begins.max(least - low).min(most - high)
}

/// Returns an integer where instructions of a width give other results than for its neighbours.
fn edge(rng: &mut Rng, width: u32) -> i64 {
    let power = |bits: u32| 1_i64.checked_shl(bits).unwrap_or(0);
    // Conversions to other widths have edges there.
    let limits: Vec<_> =
        [7, 8, 15, 16, 31, 32, 63].into_iter().filter(|&bits| bits < width).collect();
    let mut bits = || match rng.bool() {
        true => limits[rng.usize(..limits.len())],
        false => rng.u32(..width),
    };
    let near = [power(bits()), power(bits()).wrapping_neg()];
    match rng.u8(..8) {
        0..3 => rng.i64(0..6),
        3 => i64::from(width),
        at @ (4 | 5) => near[usize::from(at) - 4],
        // The least and the largest signed number, and what follows the largest unsigned one.
        6 => power(width - 1),
        _ => power(width),
    }
}
