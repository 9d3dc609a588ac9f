//! SPIR-V modules whose kernels have the instructions of cases.

use rspirv::binary::Assemble as _;
use rspirv::dr::{Builder, InsertPoint, Instruction as Written, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionModel, FPRoundingMode,
    FunctionControl, MemoryAccess, MemoryModel, Op, SelectionControl, StorageClass, Word,
};

use super::cases::{Case, Entry, Usage};
use super::list::{Code, Decorated, Form};

/// Number of components of the vectors.
const LANES: u32 = 4;

/// Component of the vectors with the operands.
const LANE: u32 = 2;

/// Returns the name of a kernel by its place in the module.
pub(super) fn kernel_name(at: usize) -> String {
    format!("k{at}")
}

/// Returns a module with a kernel for each list of entries. Its parameters are the results, one number of 64
/// bits for each entry and work-item, entry by entry, and the operands `a`, `b` and `c` of each work-item.
pub(super) fn tables(lists: &[&[Entry]]) -> Vec<u8> {
    let mut writer = Writer::new();
    for (at, entries) in lists.iter().enumerate() {
        writer.table(&kernel_name(at), entries);
    }
    writer.finish()
}

/// Returns a module with the kernel of each case. The parameters are the bytes `y`, `base`, the numbers of a
/// [`Grid`](super::grids::Grid) and the limit of conditions.
pub(super) fn indexes(cases: &[Case]) -> Vec<u8> {
    let mut writer = Writer::new();
    for (at, case) in cases.iter().enumerate() {
        writer.index(&kernel_name(at), case);
    }
    writer.finish()
}

/// Writer of a module.
struct Writer {
    b: Builder,
    std: Word,
    /// Variable with the global id.
    work_item: Word,
}

impl Writer {
    fn new() -> Self {
        let mut b = Builder::new();
        b.set_version(1, 2);
        for capability in [
            Capability::Addresses,
            Capability::Kernel,
            Capability::Int8,
            Capability::Int16,
            Capability::Int64,
            Capability::Float64,
            Capability::Vector16,
        ] {
            b.capability(capability);
        }
        b.extension("SPV_KHR_no_integer_wrap_decoration");
        let std = b.ext_inst_import("OpenCL.std");
        b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
        let mut writer = Self { b, std, work_item: 0 };
        let ids = writer.integers(64, 3);
        let pointer = writer.b.type_pointer(None, StorageClass::Input, ids);
        let variable = writer.b.variable(pointer, None, StorageClass::Input, None);
        let built_in = [Operand::BuiltIn(BuiltIn::GlobalInvocationId)];
        writer.b.decorate(variable, Decoration::BuiltIn, built_in);
        Self { work_item: variable, ..writer }
    }

    fn finish(self) -> Vec<u8> {
        let words = self.b.module().assemble();
        bytemuck::cast_slice(&words).to_vec()
    }

    /// Returns the type of integers, or of vectors of them.
    fn integers(&mut self, width: u32, lanes: u32) -> Word {
        let one = self.b.type_int(width, 0);
        self.vectors(one, lanes)
    }

    fn conditions(&mut self, lanes: u32) -> Word {
        let one = self.b.type_bool();
        self.vectors(one, lanes)
    }

    fn floats(&mut self, width: u32, lanes: u32) -> Word {
        let one = self.b.type_float(width, None);
        self.vectors(one, lanes)
    }

    fn vectors(&mut self, one: Word, lanes: u32) -> Word {
        if lanes == 1 { one } else { self.b.type_vector(one, lanes) }
    }

    /// Returns a constant, the same in all components.
    fn constant(&mut self, width: u32, lanes: u32, value: u64) -> Word {
        let ty = self.integers(width, 1);
        let one = match width {
            64 => self.b.constant_bit64(ty, value),
            _ => self.b.constant_bit32(ty, (value & mask(width)) as u32),
        };
        if lanes == 1 {
            return one;
        }
        let ty = self.integers(width, lanes);
        self.b.constant_composite(ty, vec![one; lanes as usize])
    }

    fn push(&mut self, op: Op, ty: Word, operands: impl IntoIterator<Item = Operand>) -> Word {
        let id = self.b.id();
        let instruction = Written::new(op, Some(ty), Some(id), operands.into_iter().collect());
        self.b.insert_into_block(InsertPoint::End, instruction).expect("a block is open");
        id
    }

    fn compute(&mut self, op: Op, ty: Word, operands: &[Word]) -> Word {
        self.push(op, ty, operands.iter().map(|&id| Operand::IdRef(id)))
    }

    fn extract(&mut self, ty: Word, whole: Word, at: u32) -> Word {
        self.push(Op::CompositeExtract, ty, [Operand::IdRef(whole), Operand::LiteralBit32(at)])
    }

    /// Writes an instruction with its decorations.
    fn write(&mut self, entry: &Entry, ty: Word, operands: &[Word]) -> Word {
        let id = match entry.instruction.code {
            Code::Core(op) => self.compute(op, ty, operands),
            Code::Std(function) => {
                let head =
                    [Operand::IdRef(self.std), Operand::LiteralExtInstInteger(function as u32)];
                let operands = operands.iter().map(|&id| Operand::IdRef(id));
                self.push(Op::ExtInst, ty, head.into_iter().chain(operands))
            }
        };
        self.decorate(id, entry.decorated);
        id
    }

    fn decorate(&mut self, id: Word, decorated: Decorated) {
        use Decoration::{NoSignedWrap, NoUnsignedWrap, SaturatedConversion};
        let decorations: &[_] = match decorated {
            Decorated::NoSignedWrap => &[NoSignedWrap],
            Decorated::NoUnsignedWrap => &[NoUnsignedWrap],
            Decorated::NoWrap => &[NoSignedWrap, NoUnsignedWrap],
            Decorated::Saturated | Decorated::SaturatedAndRoundedUp => &[SaturatedConversion],
            Decorated::Plain | Decorated::RoundedUp | Decorated::RoundedToZero => &[],
        };
        for &decoration in decorations {
            self.b.decorate(id, decoration, []);
        }
        let mode = match decorated {
            Decorated::RoundedUp | Decorated::SaturatedAndRoundedUp => FPRoundingMode::RTP,
            Decorated::RoundedToZero => FPRoundingMode::RTZ,
            _ => return,
        };
        self.b.decorate(id, Decoration::FPRoundingMode, [Operand::FPRoundingMode(mode)]);
    }

    /// Writes the instruction of an entry. Its operands are vectors if there are several lanes. Returns a
    /// condition for some instructions, and otherwise an integer.
    fn instruction(&mut self, entry: &Entry, lanes: u32, [a, b, c]: [Word; 3]) -> Word {
        let width = entry.width;
        let own = self.integers(width, lanes);
        let given = &[a, b, c][..entry.instruction.operands];
        match entry.instruction.form {
            Form::Plain => self.write(entry, own, given),
            Form::Comparison => {
                let ty = self.conditions(lanes);
                self.write(entry, ty, given)
            }
            Form::Convert(_) | Form::Double => {
                let ty = self.integers(entry.result_width(), lanes);
                self.write(entry, ty, given)
            }
            Form::Member(at) => {
                let ty = self.b.type_struct([own, own]);
                let both = self.write(entry, ty, given);
                self.extract(own, both, at)
            }
            Form::Logic(count) => {
                let (ty, both) = (self.conditions(lanes), self.both_conditions(lanes, a, b));
                self.write(entry, ty, &both[..count])
            }
            Form::LogicOfVector => {
                let (pair, both) = (self.conditions(2), self.both_conditions(1, a, b));
                let pair = self.compute(Op::CompositeConstruct, pair, &both);
                let ty = self.conditions(1);
                self.write(entry, ty, &[pair])
            }
            Form::FromFloat { is_signed, to } => {
                let op = if is_signed { Op::ConvertSToF } else { Op::ConvertUToF };
                let (float, ty) = (self.floats(32, lanes), self.integers(to, lanes));
                let number = self.compute(op, float, &[a]);
                self.write(entry, ty, &[number])
            }
            Form::ToFloat { is_signed } => {
                let op = if is_signed { Op::ConvertFToS } else { Op::ConvertFToU };
                let float = self.floats(32, lanes);
                let number = self.write(entry, float, &[a]);
                let id = self.compute(op, own, &[number]);
                self.decorate(id, Decorated::Saturated);
                id
            }
            Form::FloatBits => {
                let float = self.floats(width, lanes);
                let number = self.compute(Op::Bitcast, float, &[a]);
                self.write(entry, own, &[number])
            }
            Form::Halves => {
                let halves = self.integers(width / 2, 2);
                let both = self.compute(Op::Bitcast, halves, &[a]);
                self.write(entry, own, &[both])
            }
            Form::Choice => self.choice(entry, lanes, [a, b, c]),
            Form::Vector => self.vector(entry, [a, b, c]),
        }
    }

    /// Writes `a < b`, signed and unsigned.
    fn both_conditions(&mut self, lanes: u32, a: Word, b: Word) -> [Word; 2] {
        let ty = self.conditions(lanes);
        [Op::SLessThan, Op::ULessThan].map(|op| self.compute(op, ty, &[a, b]))
    }

    /// Writes `a < b ? a : c`.
    fn choice(&mut self, entry: &Entry, lanes: u32, [a, b, c]: [Word; 3]) -> Word {
        let ty = self.integers(entry.width, lanes);
        let condition = self.both_conditions(lanes, a, b)[0];
        if entry.instruction.code == Code::Core(Op::Select) {
            return self.write(entry, ty, &[condition, a, c]);
        }
        let [yes, no, end] = [(); 3].map(|()| self.b.id());
        self.b.selection_merge(end, SelectionControl::NONE).expect("a block is open");
        self.b.branch_conditional(condition, yes, no, []).expect("a block is open");
        for label in [yes, no] {
            self.b.begin_block(Some(label)).expect("none is open");
            self.b.branch(end).expect("a block is open");
        }
        self.b.begin_block(Some(end)).expect("none is open");
        self.b.phi(ty, None, [(a, yes), (c, no)]).expect("a block is open")
    }

    /// Writes an instruction that moves components.
    fn vector(&mut self, entry: &Entry, [a, b, c]: [Word; 3]) -> Word {
        let (one, four) = (self.integers(entry.width, 1), self.integers(entry.width, LANES));
        // Where `a` is an index, it is no component: tables have another index where it is too large.
        let is_dynamic = entry.instruction.code == Code::Core(Op::VectorExtractDynamic);
        let last = if is_dynamic { c } else { a };
        let whole = self.compute(Op::CompositeConstruct, four, &[b, c, b, last]);
        let id = Operand::IdRef;
        let (at, moved) = match entry.instruction.code {
            Code::Core(Op::CompositeInsert) => {
                (1, self.push(Op::CompositeInsert, four, [id(a), id(whole), literal(1)]))
            }
            Code::Core(Op::VectorShuffle) => {
                let other = self.compute(Op::CompositeConstruct, four, &[c, a, a, c]);
                let places = [7, 0, 5, 2].map(literal);
                let operands = [id(whole), id(other)].into_iter().chain(places);
                (2, self.push(Op::VectorShuffle, four, operands))
            }
            Code::Core(Op::VectorInsertDynamic) => {
                (0, self.compute(Op::VectorInsertDynamic, four, &[whole, c, a]))
            }
            Code::Core(Op::VectorExtractDynamic) => {
                return self.compute(Op::VectorExtractDynamic, one, &[whole, a]);
            }
            Code::Core(Op::CompositeExtract) => (3, whole),
            _ => (1, whole),
        };
        self.extract(one, moved, at)
    }

    /// Writes the instruction of an entry in the place that the entry says. Returns an integer, or a condition.
    fn result(&mut self, entry: &Entry, operands: [Word; 3]) -> Word {
        if !entry.is_lanes {
            return self.instruction(entry, 1, operands);
        }
        let vectors = operands.map(|operand| self.with_lanes(entry.width, operand));
        let result = self.instruction(entry, LANES, vectors);
        let ty = match entry.gives_condition() {
            true => self.conditions(1),
            false => self.integers(entry.result_width(), 1),
        };
        self.extract(ty, result, LANE)
    }

    /// Makes a vector of an operand and ones, which is built up in several steps.
    fn with_lanes(&mut self, width: u32, operand: Word) -> Word {
        let (ty, one) = (self.integers(width, LANES), self.constant(width, 1, 1));
        let first = self.compute(Op::CompositeConstruct, ty, &[operand, one, one, one]);
        let places =
            [first, first].map(Operand::IdRef).into_iter().chain([1, 5, 4, 3].map(literal));
        let moved = self.push(Op::VectorShuffle, ty, places);
        self.push(
            Op::CompositeInsert,
            ty,
            [Operand::IdRef(one), Operand::IdRef(moved), literal(LANES - 1)],
        )
    }

    /// Writes the result as an integer.
    fn number(&mut self, entry: &Entry, result: Word) -> Word {
        if !entry.gives_condition() {
            return result;
        }
        let width = entry.result_width();
        let ty = self.integers(width, 1);
        let (yes, no) = (self.constant(width, 1, 1), self.constant(width, 1, 0));
        self.compute(Op::Select, ty, &[result, yes, no])
    }

    /// Writes an integer of 64 bits with fewer bits.
    fn narrowed(&mut self, width: u32, id: Word) -> Word {
        let ty = self.integers(width, 1);
        if width == 64 { id } else { self.compute(Op::UConvert, ty, &[id]) }
    }

    /// Writes an integer as one of 64 bits.
    fn widened(&mut self, width: u32, id: Word, is_signed: bool) -> Word {
        let ty = self.integers(64, 1);
        match width {
            64 => id,
            _ => self.compute(if is_signed { Op::SConvert } else { Op::UConvert }, ty, &[id]),
        }
    }

    /// Begins a kernel with these parameters. Returns the parameters and the global id.
    fn begin(&mut self, name: &str, parameters: &[Word]) -> (Vec<Word>, [Word; 3]) {
        let void = self.b.type_void();
        let signature = self.b.type_function(void, parameters.iter().copied());
        let kernel = self.b.begin_function(void, None, FunctionControl::NONE, signature);
        let kernel = kernel.expect("no function is open");
        self.b.entry_point(ExecutionModel::Kernel, kernel, name, [self.work_item]);
        let given = parameters.iter().map(|&ty| self.b.function_parameter(ty));
        let given = given.collect::<Result<_, _>>().expect("a function is open");
        self.b.begin_block(None).expect("a function is open");
        let (ids, long) = (self.integers(64, 3), self.integers(64, 1));
        let item = self.b.load(ids, None, self.work_item, None, []).expect("a block is open");
        let item = [0, 1, 2].map(|d| self.extract(long, item, d));
        (given, item)
    }

    fn end(&mut self) {
        self.b.ret().expect("a block is open");
        self.b.end_function().expect("a function is open");
    }

    fn global_pointer(&mut self, width: u32) -> Word {
        let ty = self.integers(width, 1);
        self.b.type_pointer(None, StorageClass::CrossWorkgroup, ty)
    }

    fn aligned(width: u32) -> (Option<MemoryAccess>, [Operand; 1]) {
        (Some(MemoryAccess::ALIGNED), [Operand::LiteralBit32(width / 8)])
    }

    /// Writes the kernel that calculates the results of entries.
    fn table(&mut self, name: &str, entries: &[Entry]) {
        let (pointer, long) = (self.global_pointer(64), self.integers(64, 1));
        let (given, [item, ..]) = self.begin(name, &[pointer, pointer, pointer, pointer, long]);
        let (access, alignment) = Self::aligned(64);
        let operands = [1, 2, 3].map(|at| {
            let place = self.compute(Op::PtrAccessChain, pointer, &[given[at], item]);
            self.b.load(long, None, place, access, alignment.clone()).expect("a block is open")
        });
        for (at, entry) in entries.iter().enumerate() {
            let operands = operands.map(|operand| self.narrowed(entry.width, operand));
            let result = self.defined_result(entry, operands);
            let result = self.number(entry, result);
            let result = self.widened(entry.result_width(), result, false);
            let place = self.constant(64, 1, at as u64);
            let place = self.compute(Op::IMul, long, &[place, given[4]]);
            let place = self.compute(Op::IAdd, long, &[place, item]);
            let place = self.compute(Op::PtrAccessChain, pointer, &[given[0], place]);
            self.b.store(place, result, access, alignment.clone()).expect("a block is open");
        }
        self.end();
    }

    /// Writes the instruction of an entry for operands for which it may not be defined. Where it is not, the
    /// result is that of a guarded variant. A driver may end the process for a division by zero.
    fn defined_result(&mut self, entry: &Entry, [a, b, c]: [Word; 3]) -> Word {
        let (width, ty) = (entry.width, self.integers(entry.width, 1));
        match entry.instruction.code {
            Code::Core(Op::UDiv | Op::UMod | Op::SDiv | Op::SRem | Op::SMod) => {
                let condition = self.conditions(1);
                let zero = self.constant(width, 1, 0);
                let one = self.constant(width, 1, 1);
                let mut is_bad = self.compute(Op::IEqual, condition, &[b, zero]);
                if !matches!(entry.instruction.code, Code::Core(Op::UDiv | Op::UMod)) {
                    let least = self.constant(width, 1, 1 << (width - 1));
                    let last = self.constant(width, 1, u64::MAX);
                    let is_least = self.compute(Op::IEqual, condition, &[a, least]);
                    let is_last = self.compute(Op::IEqual, condition, &[b, last]);
                    let is_too_large =
                        self.compute(Op::LogicalAnd, condition, &[is_least, is_last]);
                    is_bad = self.compute(Op::LogicalOr, condition, &[is_bad, is_too_large]);
                }
                let b = self.compute(Op::Select, ty, &[is_bad, one, b]);
                let quotient = self.result(entry, [a, b, c]);
                self.compute(Op::Select, ty, &[is_bad, zero, quotient])
            }
            Code::Core(Op::ShiftLeftLogical | Op::ShiftRightLogical | Op::ShiftRightArithmetic) => {
                let bits = self.constant(width, 1, u64::from(width) - 1);
                let b = self.compute(Op::BitwiseAnd, ty, &[b, bits]);
                self.result(entry, [a, b, c])
            }
            Code::Core(Op::VectorExtractDynamic | Op::VectorInsertDynamic) => {
                let bits = self.constant(width, 1, u64::from(LANES) - 1);
                let a = self.compute(Op::BitwiseAnd, ty, &[a, bits]);
                self.result(entry, [a, b, c])
            }
            _ => self.result(entry, [a, b, c]),
        }
    }

    /// Writes the kernel of a case.
    fn index(&mut self, name: &str, case: &Case) {
        let (pointer, long) = (self.global_pointer(8), self.integers(64, 1));
        let mut parameters = vec![pointer];
        parameters.extend([long; 9]);
        let (given, item) = self.begin(name, &parameters);
        let &[y, base, a, a_step, b, b_step, cross, c, c_step, limit] = &*given else {
            unreachable!("the kernel has ten parameters")
        };
        let width = case.entry.width;
        let a = self.stepped(a, a_step, item[0]);
        let b = self.stepped(b, b_step, item[1]);
        let b = self.stepped(b, cross, item[0]);
        let c = self.stepped(c, c_step, item[2]);
        let operands = [a, b, c].map(|operand| self.narrowed(width, operand));
        let result = self.result(&case.entry, operands);
        let (index, end) = match case.usage {
            Usage::Index => (self.number(&case.entry, result), None),
            Usage::Condition { compared, stored } => {
                let condition = self.holds(&case.entry, compared, result, limit);
                let [yes, end] = [(); 2].map(|()| self.b.id());
                self.b.selection_merge(end, SelectionControl::NONE).expect("a block is open");
                self.b.branch_conditional(condition, yes, end, []).expect("a block is open");
                self.b.begin_block(Some(yes)).expect("none is open");
                (operands[stored], Some(end))
            }
        };
        let index = self.widened(case.index_width(), index, case.is_signed);
        let index = self.compute(Op::ISub, long, &[index, base]);
        let place = self.compute(Op::InBoundsPtrAccessChain, pointer, &[y, index]);
        let ((access, alignment), one) = (Self::aligned(8), self.constant(8, 1, 1));
        self.b.store(place, one, access, alignment).expect("a block is open");
        if let Some(end) = end {
            self.b.branch(end).expect("a block is open");
            self.b.begin_block(Some(end)).expect("none is open");
        }
        self.end();
    }

    /// Writes a sum with a multiple of an id.
    fn stepped(&mut self, start: Word, step: Word, id: Word) -> Word {
        let long = self.integers(64, 1);
        let by = self.compute(Op::IMul, long, &[step, id]);
        self.compute(Op::IAdd, long, &[start, by])
    }

    /// Writes the condition that an operand is the index of a store.
    fn holds(&mut self, entry: &Entry, compared: Op, result: Word, limit: Word) -> Word {
        if entry.gives_condition() {
            return result;
        }
        let limit = self.narrowed(entry.result_width(), limit);
        let ty = self.conditions(1);
        self.compute(compared, ty, &[result, limit])
    }
}

fn literal(number: u32) -> Operand {
    Operand::LiteralBit32(number)
}

/// Returns the bits of integers of a width.
pub(super) fn mask(width: u32) -> u64 {
    if width == 64 { u64::MAX } else { (1 << width) - 1 }
}
