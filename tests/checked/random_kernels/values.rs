//! Values and indexes of random kernels: calculations that wrap, shift, divide, clamp and compare.

use super::Writer;

/// Operations on two integers, as macros of C over `A` and `B`.
const OPERATIONS: [&str; 24] = [
    "(int)((uint)A + (uint)B)",
    "(int)((uint)A + (uint)B)",
    "(int)((uint)A - (uint)B)",
    "(int)((uint)A * (uint)B)",
    "(A & B)",
    "(A | B)",
    "(A ^ B)",
    "(A >> (B & 31))",
    "(int)((uint)A << (B & 31))",
    "(int)((uint)A >> (B & 7))",
    "min(A, B)",
    "max(A, B)",
    "(int)min((uint)A, (uint)B)",
    "(A < B ? A : B)",
    "((uint)A < (uint)B ? 1 : 0)",
    "(int)abs_diff(A, B)",
    "mul_hi(A, B)",
    "add_sat(A, B)",
    "(int)sub_sat((uint)A, (uint)B)",
    "(int)rotate((uint)A, (uint)B)",
    "(int)(uchar)A",
    "(int)(short)A",
    // A compiler must not know that a divisor is zero.
    "DIV(A, (int)((uint)B + (uint)s1))",
    "REM(A, (int)((uint)B + (uint)s0))",
];

/// Number of operations without a hazard.
const DEFINED: usize = OPERATIONS.len() - 2;

/// Operations on long integers `A` and an integer `B`.
const WIDE_OPERATIONS: [&str; 8] = [
    "(long)((ulong)A + (ulong)(long)B)",
    "(long)((ulong)A * (ulong)(long)B)",
    "(long)((ulong)A + (ulong)(uint)B)",
    "(long)((uint)A + (uint)B)",
    "(long)(int)((uint)A * (uint)B)",
    "(A >> (B & 63))",
    "(long)((ulong)A << (B & 7))",
    "min(A, (long)B)",
];

impl Writer<'_> {
    /// Returns an integer, usually one of those calculated last. No compiler must know its value: an index that is
    /// known to be too large makes any code undefined.
    pub(super) fn int(&mut self) -> String {
        let count = self.ints.len();
        match self.rng.u8(..8) {
            0 => format!("(int)((uint)s1 + {}u)", self.rng.i32(0..40)),
            1..4 => self.ints[self.rng.usize(..4)].clone(),
            4..6 => self.ints[self.rng.usize(count.saturating_sub(3)..count)].clone(),
            _ => self.ints[self.rng.usize(..count)].clone(),
        }
    }

    fn long(&mut self) -> String {
        self.longs[self.rng.usize(..self.longs.len())].clone()
    }

    pub(super) fn condition(&mut self) -> String {
        let (a, b) = (self.int(), self.int());
        match self.rng.u8(..5) {
            0 => format!("{a} < {b}"),
            1 => format!("(uint){a} >= (uint){b}"),
            2 => format!("({a} & 1) == 0"),
            3 => format!("{a} != {b}"),
            _ => format!("{a} > 3 && {b} < 20"),
        }
    }

    /// Returns an integer to start at, or to step by.
    pub(super) fn start(&mut self) -> String {
        let value = self.int();
        if self.is_tame { format!("({value} & 15)") } else { value }
    }

    /// Returns an index: of type `int`, `uint`, `long`, `ulong` or `size_t`.
    pub(super) fn index(&mut self) -> String {
        let (a, b) = (self.int(), self.int());
        let constant = self.rng.i32(-2..12);
        if self.is_tame {
            return match self.rng.u8(..5) {
                0 | 1 => format!("({a} & 15)"),
                2 => format!("((uint){a} % 13u)"),
                3 => format!("({} & 7)", self.long()),
                _ => "((x & 7) + (y & 7))".to_owned(),
            };
        }
        match self.rng.u8(..16) {
            0 => a,
            1 | 2 => format!("({a} & 15)"),
            3 => format!("({a} & 63)"),
            4 => format!("((uint){a} % 17u)"),
            5 => format!("(uint){a}"),
            6 => format!("(x + {constant})"),
            7 => format!("(id + {constant})"),
            8 => format!("(x * {} + y)", self.rng.i32(1..9)),
            9 => "(get_global_id(1) * get_global_size(0) + get_global_id(0))".to_owned(),
            10 => format!("(get_global_id(0) + {constant})"),
            11 => self.long(),
            12 => format!("({} & 31)", self.long()),
            13 => format!("(ulong){}", self.long()),
            14 => format!("((uint)({a} & 255) + (uint)({b} & 255))"),
            _ => format!("(size_t)(int)((uint){a} - (uint){b})"),
        }
    }

    /// Adds a loaded value to the sum, and to the known values if indexes may depend on it.
    pub(super) fn loaded(&mut self, value: &str) {
        let name = self.fresh();
        self.line(&format!("int {name} = (int){value};\nsum = sum * 31u + (uint){name};"));
        if self.is_indirect {
            self.ints.push(name);
        }
    }

    pub(super) fn calculation(&mut self) {
        let (a, b, c) = (self.int(), self.int(), self.int());
        let value = match self.rng.u8(..8) {
            0 if !self.is_tame => format!("CLAMP({a}, {b}, {c})"),
            1 => {
                let condition = self.condition();
                format!("({condition} ? {a} : {b})")
            }
            2 => format!("clamp({a}, 0, {})", self.rng.i32(0..40)),
            _ => {
                // The first ones are defined for all operands.
                let count = if self.is_tame { DEFINED } else { OPERATIONS.len() };
                let operation = OPERATIONS[self.rng.usize(..count)];
                operation.replace('A', &a).replace('B', &b)
            }
        };
        let name = self.fresh();
        self.line(&format!("int {name} = {value};"));
        self.ints.push(name);
    }

    pub(super) fn wide_calculation(&mut self) {
        let (a, b) = (self.long(), self.int());
        let operation = WIDE_OPERATIONS[self.rng.usize(..WIDE_OPERATIONS.len())];
        let (value, name) = (operation.replace('A', &a).replace('B', &b), self.fresh());
        self.line(&format!("long {name} = {value};"));
        self.longs.push(name);
    }
}
