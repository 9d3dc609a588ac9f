//! Model of the commands of a round: the contents of buffers if all of them run.

use std::ops::Range;

use fastrand::Rng;

/// Elements of each buffer.
pub(super) const LEN: usize = 4096;

/// Elements of the smallest part. Slices begin at multiples of it, which every device takes as arguments.
pub(super) const UNIT: usize = 1024;

/// The numbers that the kernels of a program calculate with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Constants {
    pub(super) a: u32,
    pub(super) b: u32,
}

impl Constants {
    pub(super) fn random(rng: &mut Rng) -> Self {
        Self { a: rng.u32(..) | 1, b: rng.u32(..) }
    }
}

/// Launch of a kernel of `steps.cl` on buffers, which are named by their indexes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Scale {
        x: usize,
        by: u32,
    },
    Blend {
        from: usize,
        to: usize,
        by: u32,
    },
    /// Overwrites its buffer.
    Make {
        to: usize,
        by: u32,
    },
    /// Overwrites its second buffer.
    Shift {
        from: usize,
        to: usize,
    },
}

impl Step {
    pub(super) fn random(rng: &mut Rng, buffers: usize) -> Self {
        let [from, to] = two(rng, buffers);
        let by = rng.u32(..);
        match rng.u8(..8) {
            0..3 => Self::Scale { x: to, by },
            3..6 => Self::Blend { from, to, by },
            6 => Self::Make { to, by },
            _ => Self::Shift { from, to },
        }
    }

    /// Changes the elements of a part of the buffers, as the kernel does.
    pub(super) fn apply(
        self,
        Constants { a, b }: Constants,
        contents: &mut [Vec<u32>],
        part: &Range<usize>,
    ) {
        for (i, at) in part.clone().enumerate() {
            match self {
                Self::Scale { x, by } => {
                    contents[x][at] = contents[x][at].wrapping_mul(a).wrapping_add(by);
                }
                Self::Blend { from, to, by } => {
                    let added = contents[from][at].wrapping_mul(b).wrapping_add(by);
                    contents[to][at] = contents[to][at].wrapping_mul(a).wrapping_add(added);
                }
                Self::Make { to, by } => {
                    contents[to][at] = (i as u32).wrapping_mul(a).wrapping_add(by ^ b);
                }
                Self::Shift { from, to } => {
                    contents[to][at] = contents[from][at].wrapping_mul(a).wrapping_add(b);
                }
            }
        }
    }
}

/// Returns two different indexes of buffers.
pub(super) fn two(rng: &mut Rng, buffers: usize) -> [usize; 2] {
    let from = rng.usize(..buffers);
    [from, (from + rng.usize(1..buffers)) % buffers]
}

/// Returns a part of a buffer, which is mostly all of it.
pub(super) fn part(rng: &mut Rng) -> Range<usize> {
    if rng.u8(..3) > 0 {
        return 0..LEN;
    }
    let start = rng.usize(..LEN / UNIT);
    let units = rng.usize(1..=LEN / UNIT - start);
    start * UNIT..(start + units) * UNIT
}

/// Returns elements that no other call returns.
pub(super) fn noise(rng: &mut Rng, len: usize) -> Vec<u32> {
    let mut own = Rng::with_seed(rng.u64(..));
    (0..len).map(|_| own.u32(..)).collect()
}
