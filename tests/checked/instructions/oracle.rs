//! Verdicts on launches, compared with the indexes that the driver calculates.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use kiln::internal::bounds::{self, Argument};
use kiln::launch::NdSize;
use kiln::{Buffer, Kernel, Launch, Module, NdRange, Runtime};
use rspirv::spirv::Op;

use super::cases::{Case, Usage};
use super::emit::{self, kernel_name, mask};
use super::grids::Grid;
use super::list::{COVERED, Decorated, Form};
use super::tables::{Change, Table, is_defined_in_checked, signed};

/// Number of cases that are built together.
const CHUNK: usize = 48;

/// Length in bytes of a buffer that lacks one byte and has all others on its other side.
const FAR: usize = 1 << 62;

/// Maximum length in bytes of a buffer that exists.
const MAX_LENGTH: usize = 1 << 20;

/// Number of grids for one of which the built kernel is asked for its verdict.
const PER_VERDICT: usize = 4;

/// Maximum length of a buffer in bytes if the launch is executed.
const MAX_EXECUTED: usize = 4096;

/// Number of bytes before the slice that a launch is given, and behind it.
const AROUND: usize = 1 << 10;

/// Value of the bytes around the slice.
const UNTOUCHED: u8 = 0x55;

/// Number of the launches of each kind, and what was wrong.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Launches with a slice that fits exactly and a verdict that they are proven.
    pub(super) proven: u64,
    /// Launches among them that write only where a condition holds.
    pub(super) proven_conditions: u64,
    /// Launches with a slice that fits exactly and a verdict that they are guarded.
    pub(super) guarded: u64,
    /// Launches whose instruction is not defined for some work-item.
    pub(super) undefined: u64,
    /// Launches with a slice that lacks one byte that they write.
    pub(super) short: u64,
    /// Kernels and launches that are errors.
    pub(super) refused: u64,
    /// Cases that the device cannot build.
    pub(super) not_built: u64,
    /// Launches of kernels that were built whose verdicts are the same.
    pub(super) agreed: u64,
    pub(super) executed_proven: u64,
    pub(super) executed_guarded: u64,
    /// Positions of the instructions of which some launch was proven because of their operands.
    pub(super) followed: BTreeSet<usize>,
    /// Descriptions of what must not be.
    pub(super) violations: Vec<String>,
}

/// Extent of a test.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Number of random grids for each case.
    pub(super) grids: usize,
    /// Number of cases of which one is executed.
    pub(super) per_executed: usize,
    /// Number of grids with which it is executed, for each verdict.
    pub(super) executed: usize,
}

/// Indexes of the bytes that a launch writes, ascending.
struct Indexes {
    all: Vec<i128>,
    /// Whether the instruction is defined for all work-items.
    are_defined: bool,
}

/// Slice that a launch is given, by the index of its first byte.
#[derive(Clone, Copy, Debug)]
struct Slice {
    base: i128,
    length: usize,
}

/// Tests cases on a device.
pub(super) async fn check(
    rt: &Runtime,
    cases: &[Case],
    effort: Effort,
    rng: &mut Rng,
    change: Option<Change>,
) -> Counts {
    let room = rt.buffer::<u8>(MAX_LENGTH).expect("there is memory");
    let mut oracle = Oracle { rt, room, counts: Counts::default() };
    let mut built = Vec::new();
    for case in cases {
        if can_build(rt, case).await {
            built.push(*case);
        } else {
            oracle.counts.not_built += 1;
        }
    }
    for chunk in built.chunks(CHUNK) {
        oracle.chunk(chunk, effort, rng, change).await;
    }
    oracle.counts
}

/// Returns whether a device can build the instruction of a case. Products of two integers are not in Intel's
/// runtime for CPUs (2026.22), and OpenCL C has no sums with a carry.
async fn can_build(rt: &Runtime, case: &Case) -> bool {
    if !matches!(case.entry.instruction.form, Form::Member(_)) {
        return true;
    }
    let module = Module::spirv(emit::tables(&[&[case.entry]])).expect("it is a module");
    rt.build(&module).await.is_ok()
}

struct Oracle<'a> {
    rt: &'a Runtime,
    /// Buffer whose slices launches are given that are not executed.
    room: Buffer<u8>,
    counts: Counts,
}

impl Oracle<'_> {
    /// Tests cases whose kernels are built together.
    async fn chunk(
        &mut self,
        cases: &[Case],
        effort: Effort,
        rng: &mut Rng,
        change: Option<Change>,
    ) {
        let mut tables = BTreeMap::new();
        for case in cases {
            let width = case.entry.width;
            if tables.contains_key(&width) {
                continue;
            }
            let grids = grids(rng, width, effort.grids);
            let mut table = Table::of(width, cases, &grids).changed(change);
            table.fill(self.rt).await.expect("the instructions are valid");
            tables.insert(width, (table, grids));
        }
        let module = Module::spirv(emit::indexes(cases)).expect("it is a module");
        let program = self.rt.build(&module).checked().await.expect("it builds");
        for (at, case) in cases.iter().enumerate() {
            let kernel = program.kernel(&kernel_name(at)).expect("it can be checked");
            let (tested, entry) = (Tested::of(case, kernel), &case.entry);
            let (table, grids) = &tables[&entry.width];
            let executed = if at % effort.per_executed == 0 { effort.executed } else { 0 };
            let mut left = [executed; 2];
            for (number, grid) in grids[entry.instruction.operands - 1].iter().enumerate() {
                let asks = number % PER_VERDICT == 0;
                self.grid(&tested, (table, grid), asks, &mut left).await;
            }
        }
    }

    /// Tests the launches of a case with these operands. Asks the built kernel for its verdict if this is wanted.
    /// `left` has the numbers of launches to be executed that are guarded, and that are proven.
    async fn grid(
        &mut self,
        tested: &Tested<'_>,
        (table, grid): (&Table, &Grid),
        asks: bool,
        left: &mut [usize; 2],
    ) {
        let indexes = indexes(tested.case, table, grid);
        let (Some(&low), Some(&high)) = (indexes.all.first(), indexes.all.last()) else {
            return;
        };
        let Ok(length) = usize::try_from(high - low + 1) else { return };
        let exact = Slice { base: low, length };
        let is_proven = tested.is_proven(grid, exact);
        match (is_proven, indexes.are_defined) {
            (_, false) => {
                self.counts.undefined += 1;
                self.require(!is_proven, tested, grid, exact, "an undefined result is proven");
            }
            (true, true) => {
                self.counts.proven += 1;
                self.counts.proven_conditions += u64::from(tested.case.usage != Usage::Index);
                self.note_followed(tested.case, length);
            }
            (false, true) => self.counts.guarded += 1,
        }
        let far = [low + 1, high - FAR as i128].map(|base| Slice { base, length: FAR });
        let short = shorter(exact);
        for slice in far.into_iter().chain(short) {
            self.counts.short += 1;
            let is_proven = tested.is_proven(grid, slice);
            self.require(!is_proven, tested, grid, slice, "a short buffer is proven");
        }
        let left = &mut left[usize::from(is_proven)];
        let executes = *left > 0 && length <= MAX_EXECUTED;
        if length > MAX_LENGTH || !(asks || executes) {
            return;
        }
        let y = self.room.slice(..length).expect("it fits");
        let verdict = tested.launch(grid, &y, low).verdict().await.expect("it can be checked");
        self.counts.agreed += 1;
        let agrees = verdict.is_proven() == is_proven;
        self.require(agrees, tested, grid, exact, "the verdict is another one");
        if executes {
            *left -= 1;
            for slice in [exact].into_iter().chain(short) {
                self.execute(tested, grid, &indexes, slice).await;
            }
        }
    }

    /// Notes that a launch was proven because of its operands.
    fn note_followed(&mut self, case: &Case, length: usize) {
        let is_narrow = (length as u128) < 1 << case.index_width().min(64);
        let is_plain = case.usage == Usage::Index && case.entry.decorated == Decorated::Plain;
        if is_narrow && is_plain {
            let own = case.entry.instruction;
            let at = COVERED.iter().position(|known| std::ptr::eq(known, own));
            self.counts.followed.extend(at);
        }
    }

    /// Runs a launch, whose slice is in the middle of a buffer, and compares the bytes with the indexes.
    async fn execute(&mut self, tested: &Tested<'_>, grid: &Grid, indexes: &Indexes, slice: Slice) {
        let inside = AROUND..AROUND + slice.length;
        let mut expected = vec![UNTOUCHED; inside.end + AROUND];
        expected[inside.clone()].fill(0);
        let whole = self.rt.buffer_from(expected.clone()).await.expect("there is memory");
        let y = whole.slice(inside.clone()).expect("it is inside");
        let launch = tested.launch(grid, &y, slice.base);
        let verdict = launch.verdict().await.expect("it was checked before");
        let event = self.rt.queue().submit(launch).expect("it fits");
        event.await.unwrap_or_else(|error| panic!("{}: {grid:?}, {slice:?}: {error}", tested.case));
        let found = self.rt.queue().read(&whole).await.expect("it was written");
        for index in &indexes.all {
            let at = usize::try_from(index - slice.base).ok().filter(|&at| at < slice.length);
            if let Some(at) = at {
                expected[AROUND + at] = 1;
            }
        }
        match verdict.is_proven() {
            true => self.counts.executed_proven += 1,
            false => self.counts.executed_guarded += 1,
        }
        let outside = (0..inside.start).chain(inside.end..found.len());
        let is_left = outside.into_iter().any(|at| found[at] != UNTOUCHED);
        self.require(!is_left, tested, grid, slice, "a byte outside of the slice has changed");
        self.require(found == expected, tested, grid, slice, "the slice has other bytes");
    }

    fn require(&mut self, holds: bool, tested: &Tested<'_>, grid: &Grid, slice: Slice, what: &str) {
        if !holds {
            let case = tested.case;
            self.counts.violations.push(format!("{what}: {case}: {grid:?}, {slice:?}"));
        }
    }
}

/// Case with its kernel.
struct Tested<'a> {
    case: &'a Case,
    kernel: Kernel,
    /// Analysis of the kernel, for launches with buffers of any length.
    alone: bounds::Kernel,
}

impl<'a> Tested<'a> {
    fn of(case: &'a Case, kernel: Kernel) -> Self {
        let alone = emit::indexes(&[*case]);
        let alone = bounds::Kernel::new(&alone, &kernel_name(0)).expect("it can be checked");
        Self { case, kernel, alone }
    }

    /// Returns whether a launch is proven.
    fn is_proven(&self, grid: &Grid, slice: Slice) -> bool {
        let scalars = scalars(grid, slice.base).map(|scalar| scalar.to_le_bytes().to_vec());
        let mut arguments = vec![Argument::Buffer { length: slice.length, alignment: 1 }];
        arguments.extend(scalars.map(Argument::Scalar));
        let range = NdRange::from(NdSize::from(grid.count));
        let report = self.alone.check(&range, &arguments, false, false);
        report.expect("it can be checked").guarded.is_empty()
    }

    fn launch(&self, grid: &Grid, y: &Buffer<u8>, base: i128) -> Launch {
        let launch = self.kernel.launch(grid.count).arg(y);
        scalars(grid, base).into_iter().fold(launch, Launch::arg)
    }
}

/// Returns slices that lack the last byte and the first byte of a slice.
fn shorter(Slice { base, length }: Slice) -> [Slice; 2] {
    match length {
        // No slice is empty.
        1 => [base - 1, base + 1].map(|base| Slice { base, length }),
        _ => [base, base + 1].map(|base| Slice { base, length: length - 1 }),
    }
}

/// Returns the arguments of a launch that follow the buffer.
fn scalars(grid: &Grid, base: i128) -> [i64; 9] {
    let Grid { start: [a, b, c], step: [a_step, b_step, c_step], cross, limit, .. } = *grid;
    [base as i64, a, a_step, b, b_step, cross, c, c_step, limit]
}

/// Returns random grids for operands of a width, by the number of operands.
fn grids(rng: &mut Rng, width: u32, count: usize) -> Vec<Vec<Grid>> {
    let mut all: Vec<Vec<_>> = (1..=3)
        .map(|operands| (0..count).map(|_| Grid::random(rng, width, operands)).collect())
        .collect();
    if width == 8 {
        let pairs = Grid::all_pairs(rng.i64(-128..256));
        all[0].push(Grid { count: [256, 1, 1], ..pairs.clone() });
        all[1].push(pairs);
    }
    all
}

/// Returns the indexes of a launch, for the results in the table.
fn indexes(case: &Case, table: &Table, grid: &Grid) -> Indexes {
    let Case { entry, usage, is_signed } = case;
    let (mut all, mut are_defined) = (Vec::new(), true);
    for operands in grid.items(entry.width, entry.instruction.operands) {
        are_defined &= is_defined_in_checked(entry, operands);
        let result = table.result(entry, operands);
        let bits = match usage {
            Usage::Index => Some(result),
            Usage::Condition { compared, stored } => {
                let holds = match entry.gives_condition() {
                    true => result == 1,
                    false => compare(*compared, result, grid.limit as u64, entry.result_width()),
                };
                holds.then_some(operands[*stored])
            }
        };
        all.extend(bits.map(|bits| match is_signed {
            true => signed(bits, case.index_width()),
            false => i128::from(bits),
        }));
    }
    all.sort_unstable();
    all.dedup();
    Indexes { all, are_defined }
}

/// Returns whether a comparison of integers of a width holds.
fn compare(op: Op, a: u64, b: u64, width: u32) -> bool {
    let (a, b) = (a & mask(width), b & mask(width));
    let (x, y) = (signed(a, width), signed(b, width));
    match op {
        Op::IEqual => a == b,
        Op::INotEqual => a != b,
        Op::ULessThan => a < b,
        Op::ULessThanEqual => a <= b,
        Op::UGreaterThan => a > b,
        Op::UGreaterThanEqual => a >= b,
        Op::SLessThan => x < y,
        Op::SLessThanEqual => x <= y,
        Op::SGreaterThan => x > y,
        _ => x >= y,
    }
}
