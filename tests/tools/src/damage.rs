//! Changes of SPIR-V modules that break their rules, for tests of malformed modules.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Random numbers (xorshift) that are reproducible: a seed gives the same numbers in each run.
pub struct Random(u64);

impl Random {
    pub fn of(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        random.below(1);
        random
    }

    pub fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % count.max(1) as u64) as usize
    }
}

/// Returns the instructions of a module, each with its words; the header is the first.
pub fn instructions(bytes: &[u8]) -> Vec<Vec<u32>> {
    let words: Vec<_> =
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let (header, mut rest) = words.split_at(5);
    let mut all = vec![header.to_vec()];
    while let Some(first) = rest.first() {
        let (instruction, after) = rest.split_at(((first >> 16) as usize).clamp(1, rest.len()));
        all.push(instruction.to_vec());
        rest = after;
    }
    all
}

pub fn assemble(instructions: &[Vec<u32>]) -> Vec<u8> {
    let mut words = Vec::new();
    for (at, instruction) in instructions.iter().enumerate() {
        let mut instruction = instruction.clone();
        if at > 0 {
            instruction[0] = instruction[0] & 0xffff | (instruction.len() as u32) << 16;
        }
        words.extend(instruction);
    }
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Changes, adds or removes an instruction, so that the module breaks a rule or two.
fn change(instructions: &mut Vec<Vec<u32>>, random: &mut Random) {
    let count = instructions.len();
    let at = 1 + random.below(count - 1);
    let other = 1 + random.below(count - 1);
    let words = instructions[at].len();
    let operand = 1 + random.below(words - 1);
    match random.below(9) {
        // A word of another instruction, such as an id of the wrong kind.
        0..=3 if operand < words => {
            let from = instructions[other].len();
            instructions[at][operand] = instructions[other][random.below(from)];
        }
        // A word of the instruction itself, such as its own id, or a number that is rarely a valid id.
        4 if operand < words => {
            let own = instructions[at].get(random.below(3)).copied().unwrap_or_default();
            instructions[at][operand] = [own, 0, u32::MAX, 1 << 31, 64][random.below(5)];
        }
        5 if words > 1 => _ = instructions[at].pop(),
        6 => {
            let last = instructions[other].last().copied().unwrap_or_default();
            instructions[at].push(last);
        }
        7 => _ = instructions.remove(at),
        _ => {
            let copy = instructions[at].clone();
            instructions.insert(other.min(at), copy);
        }
    }
}

/// Calls `test` with randomly changed modules, each changed as many times as `changes` says, and requires that it does
/// not panic. There are `count` modules, and a fourth of them in the fast tier, unless the environment variable
/// `KILN_MALFORMED` sets another number.
pub fn test_changed(
    modules: &[&[u8]],
    count: usize,
    changes: impl Fn(&mut Random) -> usize,
    test: impl Fn(&[u8], &mut Random),
) {
    let count = crate::tier::cases("KILN_MALFORMED", count, count / 4);
    let all: Vec<_> = modules.iter().map(|bytes| instructions(bytes)).collect();
    for seed in 1..=count as u64 {
        let mut random = Random::of(seed);
        let module = random.below(all.len());
        let mut changed = all[module].clone();
        for _ in 0..changes(&mut random) {
            change(&mut changed, &mut random);
        }
        let bytes = assemble(&changed);
        let caught = catch_unwind(AssertUnwindSafe(|| test(&bytes, &mut random)));
        assert!(caught.is_ok(), "module {module}, seed {seed}");
    }
}
