//! Results of instructions as the driver calculates them, unchecked.

use std::collections::HashMap;

use kiln::{Module, Runtime};
use rspirv::spirv::{Op, OpenclStd100Op as Std};

use super::cases::{Case, Entry};
use super::emit::{self, kernel_name, mask};
use super::grids::Grid;
use super::list::{Code, Decorated, Form};

/// Maximum number of entries of a kernel.
const MAX_ENTRIES: usize = 12;

/// Change of a result, which makes a table wrong.
pub(super) type Change = fn(&Entry, [u64; 3], u64) -> u64;

/// Results of entries of one width.
pub(super) struct Table {
    width: u32,
    entries: Vec<Entry>,
    /// Operands of each work-item.
    items: Vec<[u64; 3]>,
    places: HashMap<[u64; 3], usize>,
    /// Results, entry by entry.
    results: Vec<u64>,
    change: Option<Change>,
}

impl Table {
    /// Returns a table without results, for the cases of a width and the grids of their operands.
    pub(super) fn of(width: u32, cases: &[Case], grids: &[Vec<Grid>]) -> Self {
        let mut entries = Vec::new();
        for case in cases.iter().filter(|case| case.entry.width == width) {
            for entry in [case.entry, case.entry.mended()] {
                if !entries.contains(&entry) {
                    entries.push(entry);
                }
            }
        }
        let mut table = Self {
            width,
            entries,
            items: Vec::new(),
            places: HashMap::new(),
            results: Vec::new(),
            change: None,
        };
        if width == 8 {
            // The place of a pair is known.
            table.items.extend(Grid::all_pairs(0).items(width, 2));
        }
        for (operands, grids) in (1..).zip(grids) {
            for item in grids.iter().flat_map(|grid| grid.items(width, operands)) {
                table.add(item);
            }
        }
        table
    }

    pub(super) fn changed(self, change: Option<Change>) -> Self {
        Self { change, ..self }
    }

    fn add(&mut self, item: [u64; 3]) {
        if self.place(item).is_none() {
            self.places.insert(item, self.items.len());
            self.items.push(item);
        }
    }

    fn place(&self, item: [u64; 3]) -> Option<usize> {
        match item {
            [a, b, 0] if self.width == 8 => Some((a | b << 8) as usize),
            item => self.places.get(&item).copied(),
        }
    }

    /// Returns the driver's result for operands for which the entry is defined, and otherwise that of a guarded
    /// variant.
    pub(super) fn result(&self, entry: &Entry, operands: [u64; 3]) -> u64 {
        let is_defined = is_defined(entry, operands);
        let row = if is_defined { *entry } else { entry.mended() };
        let row = self.entries.iter().position(|known| *known == row).expect("it is in the table");
        let item = self.place(operands).expect("it is in the table");
        let found = self.results[row * self.items.len() + item];
        let found = self.change.map_or(found, |change| change(entry, operands, found));
        match entry.instruction.code {
            // A guarded variant gives the upper limit.
            Code::Std(Std::s_clamp | Std::u_clamp) if !is_defined => operands[2],
            _ => found,
        }
    }

    /// Calculates the results on the driver.
    pub(super) async fn fill(&mut self, rt: &Runtime) -> kiln::Result<()> {
        let lists: Vec<_> = self.entries.chunks(MAX_ENTRIES).collect();
        let program = rt.build(&Module::spirv(emit::tables(&lists))?).await?;
        let column = async |at: usize| {
            rt.buffer_from(self.items.iter().map(|item| item[at]).collect::<Vec<_>>()).await
        };
        let (a, b, c) = (column(0).await?, column(1).await?, column(2).await?);
        let (count, mut results) = (self.items.len(), Vec::new());
        for (at, list) in lists.iter().enumerate() {
            // SAFETY: each work-item reads its own operands, and writes its own result of each entry.
            let kernel = unsafe { program.kernel(&kernel_name(at)) }?;
            let out = rt.buffer::<u64>(list.len() * count)?;
            rt.queue().submit(kernel.launch(count).args((&out, &a, &b, &c, count as u64)))?;
            results.extend(rt.queue().read(&out).await?);
        }
        self.results = results;
        Ok(())
    }
}

/// Returns the bits of an integer as a signed number.
pub(super) fn signed(bits: u64, width: u32) -> i128 {
    let unused = 64 - width;
    i128::from(((bits << unused) as i64) >> unused)
}

/// Returns whether an instruction is defined for these operands.
fn is_defined(entry: &Entry, [a, b, c]: [u64; 3]) -> bool {
    let width = entry.width;
    let least = 1 << (width - 1);
    match entry.instruction.code {
        Code::Core(Op::UDiv | Op::UMod) => b != 0,
        Code::Core(Op::SDiv | Op::SRem | Op::SMod) => b != 0 && !(a == least && b == mask(width)),
        Code::Core(Op::VectorExtractDynamic | Op::VectorInsertDynamic) => a < 4,
        Code::Std(Std::s_clamp) => signed(b, width) <= signed(c, width),
        Code::Std(Std::u_clamp) => b <= c,
        Code::Core(Op::ConvertFToS | Op::ConvertFToU) => converts(entry, a),
        Code::Core(op) => {
            let is_shift = matches!(
                op,
                Op::ShiftLeftLogical | Op::ShiftRightLogical | Op::ShiftRightArithmetic
            );
            (!is_shift || b < u64::from(width)) && keeps_claims(entry, op, a, b)
        }
        Code::Std(_) => true,
    }
}

/// Returns whether an instruction of a checked kernel is defined for these operands without a guard: conversions of
/// floating-point numbers are always saturated there.
pub(super) fn is_defined_in_checked(entry: &Entry, operands: [u64; 3]) -> bool {
    matches!(entry.instruction.form, Form::FromFloat { .. }) || is_defined(entry, operands)
}

/// Returns whether a number that was made of an integer fits into the integers that it is converted to.
fn converts(entry: &Entry, a: u64) -> bool {
    let Form::FromFloat { is_signed, to } = entry.instruction.form else { return true };
    let is_saturated =
        matches!(entry.decorated, Decorated::Saturated | Decorated::SaturatedAndRoundedUp);
    let number = if is_signed { signed(a, entry.width) as f32 } else { a as f32 } as i128;
    let (low, high) = match entry.instruction.code {
        Code::Core(Op::ConvertFToS) => (-(1 << (to - 1)), (1 << (to - 1)) - 1),
        _ => (0, (1 << to) - 1),
    };
    is_saturated || (low..=high).contains(&number)
}

/// Returns whether a result that is decorated does not wrap.
fn keeps_claims(entry: &Entry, op: Op, a: u64, b: u64) -> bool {
    let width = entry.width;
    let exact = |[a, b]: [i128; 2]| match op {
        Op::IAdd => a + b,
        Op::ISub => a - b,
        Op::IMul => a.saturating_mul(b),
        Op::SNegate => -a,
        Op::ShiftLeftLogical => a << (b & 63),
        _ => 0,
    };
    let is_signed = matches!(entry.decorated, Decorated::NoSignedWrap | Decorated::NoWrap);
    let is_unsigned = matches!(entry.decorated, Decorated::NoUnsignedWrap | Decorated::NoWrap);
    // The amount of a shift has no sign.
    let amount = if op == Op::ShiftLeftLogical { i128::from(b) } else { signed(b, width) };
    let of_signed = exact([signed(a, width), amount]);
    let of_unsigned = exact([a.into(), b.into()]);
    let half = 1_i128 << (width - 1);
    (!is_signed || (-half..half).contains(&of_signed))
        && (!is_unsigned || (0..2 * half).contains(&of_unsigned))
}
