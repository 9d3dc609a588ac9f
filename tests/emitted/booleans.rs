//! Vectors of Booleans, and integers of widths that OpenCL C does not have, in SPIR-V modules: the driver's own
//! build of the module and the emitted text give the right values.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use kiln::internal::spirv::emit;
use kiln::{ErrorKind, Module};
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, InsertPoint, Instruction, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionModel, FunctionControl, MemoryModel,
    Op, StorageClass, Word,
};

const ITEMS: usize = 64;

fn input() -> Vec<u32> {
    (0..ITEMS as u32).map(|n| n.wrapping_mul(0x9e37_79b9) ^ n << 7).collect()
}

/// Expected values that a kernel stores for an item, in the order of its stores.
type Expected = Vec<Box<dyn Fn(u32) -> u32>>;

/// Builder of a module with a kernel `k` that stores results computed from `x`, the input of its item.
struct ModuleBuilder {
    b: Builder,
    int: Word,
    x: Word,
    /// Output of the kernel, and position of the item's first result.
    out: (Word, Word),
    helpers: HashMap<&'static str, Word>,
    expected: Expected,
}

const RESULTS: u32 = 64;

impl ModuleBuilder {
    /// Begins the module. Functions of `helpers` come before the kernel.
    fn new(helpers: impl FnOnce(&mut Builder) -> HashMap<&'static str, Word>) -> Self {
        let mut b = Builder::new();
        b.set_version(1, 2);
        for capability in [
            Capability::Kernel,
            Capability::Addresses,
            Capability::Linkage,
            Capability::Int8,
            Capability::Int16,
            Capability::Int64,
            Capability::Float64,
            Capability::Vector16,
        ] {
            b.capability(capability);
        }
        b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
        let helpers = helpers(&mut b);
        let (void, int, long) = (b.type_void(), b.type_int(32, 0), b.type_int(64, 0));
        let longs = b.type_vector(long, 3);
        let input_longs = b.type_pointer(None, StorageClass::Input, longs);
        let id = b.variable(input_longs, None, StorageClass::Input, None);
        b.decorate(id, Decoration::BuiltIn, [Operand::BuiltIn(BuiltIn::GlobalInvocationId)]);
        b.decorate(id, Decoration::Constant, []);
        let pointer = b.type_pointer(None, StorageClass::CrossWorkgroup, int);
        let ty = b.type_function(void, [pointer, pointer]);
        let kernel = b.begin_function(void, None, FunctionControl::NONE, ty).unwrap();
        let out = b.function_parameter(pointer).unwrap();
        let input = b.function_parameter(pointer).unwrap();
        b.entry_point(ExecutionModel::Kernel, kernel, "k", [id]);
        b.begin_block(None).unwrap();
        let ids = b.load(longs, None, id, None, []).unwrap();
        let at = b.composite_extract(long, None, ids, [0]).unwrap();
        let place = b.in_bounds_ptr_access_chain(pointer, None, input, at, []).unwrap();
        let x = b.load(int, None, place, None, []).unwrap();
        let results = b.constant_bit64(long, RESULTS.into());
        let first = b.i_mul(long, None, at, results).unwrap();
        Self { b, int, x, out: (out, first), helpers, expected: Vec::new() }
    }

    fn op(&mut self, op: Op, ty: Word, operands: &[Word]) -> Word {
        let operands = operands.iter().map(|id| Operand::IdRef(*id)).collect();
        self.with_literals(op, ty, operands)
    }

    fn with_literals(&mut self, op: Op, ty: Word, operands: Vec<Operand>) -> Word {
        let id = self.b.id();
        let instruction = Instruction::new(op, Some(ty), Some(id), operands);
        self.b.insert_into_block(InsertPoint::End, instruction).unwrap();
        id
    }

    fn ints(&mut self, width: u32, count: u32) -> Word {
        let int = self.b.type_int(width, 0);
        if count == 1 { int } else { self.b.type_vector(int, count) }
    }

    fn bools(&mut self, count: u32) -> Word {
        let bool = self.b.type_bool();
        if count == 1 { bool } else { self.b.type_vector(bool, count) }
    }

    fn number(&mut self, value: u32) -> Word {
        self.b.constant_bit32(self.int, value)
    }

    /// Returns a constant vector of 32-bit integers.
    fn numbers(&mut self, values: impl IntoIterator<Item = u32>) -> (Word, Word) {
        let values: Vec<_> = values.into_iter().map(|value| self.number(value)).collect();
        let ty = self.ints(32, values.len() as u32);
        (ty, self.b.constant_composite(ty, values))
    }

    /// Returns a vector of Booleans, each of which is one bit of a number.
    fn bits(&mut self, number: Word, count: u32) -> Word {
        let (ty, masks) = self.numbers((0..count).map(|at| 1 << at));
        let (_, zeros) = self.numbers((0..count).map(|_| 0));
        let all = self.op(Op::CompositeConstruct, ty, &vec![number; count as usize]);
        let masked = self.op(Op::BitwiseAnd, ty, &[all, masks]);
        let bools = self.bools(count);
        self.op(Op::INotEqual, bools, &[masked, zeros])
    }

    /// Returns the mask of a vector of Booleans as a number.
    fn mask(&mut self, bools: Word, count: u32) -> Word {
        let narrow = self.ints(count, 1);
        let mask = self.op(Op::Bitcast, narrow, &[bools]);
        self.op(Op::UConvert, self.int, &[mask])
    }

    /// Returns the vector of Booleans for the mask in the low bits of a number.
    fn unmask(&mut self, number: Word, count: u32) -> Word {
        let (narrow, bools) = (self.ints(count, 1), self.bools(count));
        let mask = self.op(Op::UConvert, narrow, &[number]);
        self.op(Op::Bitcast, bools, &[mask])
    }

    fn shifted(&mut self, by: u32) -> Word {
        let by = self.number(by);
        self.op(Op::ShiftRightLogical, self.int, &[self.x, by])
    }

    fn store(&mut self, value: Word, expected: impl Fn(u32) -> u32 + 'static) {
        let long = self.b.type_int(64, 0);
        let offset = self.b.constant_bit64(long, self.expected.len() as u64);
        let at = self.op(Op::IAdd, long, &[self.out.1, offset]);
        let pointer = self.b.type_pointer(None, StorageClass::CrossWorkgroup, self.int);
        let place = self.b.in_bounds_ptr_access_chain(pointer, None, self.out.0, at, []).unwrap();
        self.b.store(place, value, None, []).unwrap();
        self.expected.push(Box::new(expected));
        assert!(self.expected.len() <= RESULTS as usize);
    }

    fn store_mask(&mut self, bools: Word, count: u32, expected: impl Fn(u32) -> u32 + 'static) {
        let mask = self.mask(bools, count);
        self.store(mask, expected);
    }

    /// Stores 1 for true and 0 for false.
    fn store_truth(&mut self, truth: Word, expected: impl Fn(u32) -> bool + 'static) {
        let (one, zero) = (self.number(1), self.number(0));
        let value = self.op(Op::Select, self.int, &[truth, one, zero]);
        self.store(value, move |x| expected(x).into());
    }

    fn finish(mut self) -> (Vec<u8>, Expected) {
        self.b.ret().unwrap();
        self.b.end_function().unwrap();
        let words = self.b.module().assemble();
        (words.into_iter().flat_map(u32::to_le_bytes).collect(), self.expected)
    }
}

/// Runs the module in each form that a device takes; as SPIR-V only if `as_spirv`.
fn check(made: (Vec<u8>, Expected), as_spirv: bool) {
    let (module, expected) = made;
    let text = emit(&module).unwrap();
    let input = input();
    futures::executor::block_on(support::on_each_device(async |rt| {
        let modules = [Module::spirv(module.clone()).unwrap(), Module::opencl_c(text.clone())];
        for module in modules.iter().skip(usize::from(!as_spirv)) {
            if !rt.device().formats.contains(&module.format()) {
                continue;
            }
            let program = rt.build(module).await.unwrap_or_else(|error| {
                panic!(
                    "{}: {error}\n{}\n{text}",
                    rt.device(),
                    error.build_log().unwrap_or_default()
                )
            });
            // SAFETY: each work-item writes only its own results.
            let kernel = unsafe { program.kernel("k") }.unwrap();
            let given = rt.buffer_from(input.clone()).await.unwrap();
            let out = rt.buffer_from(vec![0_u32; ITEMS * RESULTS as usize]).await.unwrap();
            rt.queue().submit(kernel.launch(ITEMS).args((&out, &given))).unwrap();
            let found = rt.queue().read(&out).await.unwrap();
            for (results, &x) in found.chunks(RESULTS as usize).zip(&input) {
                for (at, (result, expected)) in results.iter().zip(&expected).enumerate() {
                    let (device, format, expected) = (rt.device(), module.format(), expected(x));
                    assert_eq!(
                        *result, expected,
                        "{device}, {format}: result {at} of {x:#x}\n{text}"
                    );
                }
            }
        }
    }));
}

fn no_helpers(_: &mut Builder) -> HashMap<&'static str, Word> {
    HashMap::new()
}

#[test]
fn vectors_of_booleans_are_bitcast_to_and_from_integer_masks() {
    let mut m = ModuleBuilder::new(no_helpers);
    for count in [8, 16] {
        let low = u32::MAX >> (32 - count);
        let bits = m.bits(m.x, count);
        m.store_mask(bits, count, move |x| x & low);
        let bytes = m.shifted(9);
        let back = m.unmask(bytes, count);
        m.store_mask(back, count, move |x| x >> 9 & low);
        let both = m.bools(count);
        let and = m.op(Op::LogicalAnd, both, &[bits, back]);
        m.store_mask(and, count, move |x| x & x >> 9 & low);
        let equal = m.op(Op::LogicalEqual, both, &[bits, back]);
        m.store_mask(equal, count, move |x| !(x ^ x >> 9) & low);
        let differ = m.op(Op::LogicalNotEqual, both, &[bits, back]);
        let not = m.op(Op::LogicalNot, both, &[differ]);
        m.store_mask(not, count, move |x| !(x ^ x >> 9) & low);
        let bool = m.bools(1);
        let any = m.op(Op::Any, bool, &[and]);
        m.store_truth(any, move |x| x & x >> 9 & low != 0);
        let all = m.op(Op::All, bool, &[back]);
        m.store_truth(all, move |x| x >> 9 & low == low);
    }
    // Several integers from one mask.
    let bits = m.bits(m.x, 16);
    let (bytes, byte) = (m.ints(8, 2), m.ints(8, 1));
    let pair = m.op(Op::Bitcast, bytes, &[bits]);
    let operands = vec![Operand::IdRef(pair), Operand::LiteralBit32(1)];
    let second = m.with_literals(Op::CompositeExtract, byte, operands);
    let second = m.op(Op::UConvert, m.int, &[second]);
    m.store(second, |x| x >> 8 & 0xff);
    let sixteen = m.bools(16);
    let bits = m.op(Op::Bitcast, sixteen, &[pair]);
    m.store_mask(bits, 16, |x| x & 0xffff);
    check(m.finish(), true);
}

/// Intel's compiler for CPUs computes wrong values for such a module.
#[test]
fn vectors_of_booleans_support_shuffles_extracts_and_inserts() {
    let mut m = ModuleBuilder::new(no_helpers);
    let (eight, bool) = (m.bools(8), m.bools(1));
    let (bits, byte) = (m.bits(m.x, 8), m.shifted(8));
    let other = m.bits(byte, 8);
    let shuffle = |picks: [u32; 8]| picks.map(Operand::LiteralBit32);
    let mut operands = vec![Operand::IdRef(bits), Operand::IdRef(other)];
    operands.extend(shuffle([7, 6, 5, 4, 3, 2, 1, 0]));
    let reversed = m.with_literals(Op::VectorShuffle, eight, operands.clone());
    m.store_mask(reversed, 8, |x| (x as u8).reverse_bits().into());
    operands.truncate(2);
    operands.extend(shuffle([0, 8, u32::MAX, 9, 2, 10, 3, u32::MAX]));
    let mixed = m.with_literals(Op::VectorShuffle, eight, operands);
    let mask = m.mask(mixed, 8);
    let defined = m.number(0b0111_1011);
    let mask = m.op(Op::BitwiseAnd, m.int, &[mask, defined]);
    m.store(mask, |x| {
        let of = |at: u32, to: u32| (x >> at & 1) << to;
        of(0, 0) | of(8, 1) | of(9, 3) | of(2, 4) | of(10, 5) | of(3, 6)
    });
    let extract = vec![Operand::IdRef(bits), Operand::LiteralBit32(3)];
    let third = m.with_literals(Op::CompositeExtract, bool, extract);
    let insert = vec![Operand::IdRef(third), Operand::IdRef(other), Operand::LiteralBit32(6)];
    let inserted = m.with_literals(Op::CompositeInsert, eight, insert);
    m.store_mask(inserted, 8, |x| x >> 8 & 0xbf | (x >> 3 & 1) << 6);
    check(m.finish(), false);
}

/// Intel's compiler for CPUs crashes on such a module.
#[test]
fn vectors_of_booleans_are_members_of_structs_and_arrays() {
    let mut m = ModuleBuilder::new(no_helpers);
    let (eight, bool) = (m.bools(8), m.bools(1));
    let (bits, byte) = (m.bits(m.x, 8), m.shifted(8));
    let other = m.bits(byte, 8);
    let (count, pair) = (m.number(2), m.b.type_struct([m.int, eight]));
    let array = m.b.type_array(eight, count);
    let made = m.op(Op::CompositeConstruct, pair, &[m.x, bits]);
    let extract = vec![Operand::IdRef(made), Operand::LiteralBit32(1), Operand::LiteralBit32(2)];
    let second = m.with_literals(Op::CompositeExtract, bool, extract);
    m.store_truth(second, |x| x >> 2 & 1 == 1);
    let made = m.op(Op::CompositeConstruct, array, &[bits, other]);
    let extract = vec![Operand::IdRef(made), Operand::LiteralBit32(1)];
    let second = m.with_literals(Op::CompositeExtract, eight, extract);
    m.store_mask(second, 8, |x| x >> 8 & 0xff);
    let four = m.bools(4);
    let half = |m: &mut ModuleBuilder, from: u32| {
        let mut operands = vec![Operand::IdRef(bits); 2];
        operands.extend((from..from + 4).map(Operand::LiteralBit32));
        m.with_literals(Op::VectorShuffle, four, operands)
    };
    let (low, high) = (half(&mut m, 0), half(&mut m, 4));
    let swapped = m.op(Op::CompositeConstruct, eight, &[high, low]);
    m.store_mask(swapped, 8, |x| x >> 4 & 0xf | (x & 0xf) << 4);
    check(m.finish(), false);
}

#[test]
fn vectors_of_booleans_are_composed_of_constants() {
    let mut m = ModuleBuilder::new(no_helpers);
    let (eight, bool) = (m.bools(8), m.bools(1));
    let bits = m.bits(m.x, 8);
    let yes = m.b.constant_true(bool);
    let no = m.b.spec_constant_false(bool);
    m.b.decorate(no, Decoration::SpecId, [Operand::LiteralBit32(5)]);
    let maybe = m.b.spec_constant_true(bool);
    m.b.decorate(maybe, Decoration::SpecId, [Operand::LiteralBit32(6)]);
    let parts = [yes, no, maybe, no, yes, yes, no, maybe];
    let constant = m.b.spec_constant_composite(eight, parts);
    let both = m.op(Op::LogicalOr, eight, &[bits, constant]);
    m.store_mask(both, 8, |x| (x | 0b1011_0101) & 0xff);
    check(m.finish(), true);
}

#[test]
fn booleans_are_extracted_and_inserted_at_dynamic_indexes() {
    let mut m = ModuleBuilder::new(no_helpers);
    let (eight, bool) = (m.bools(8), m.bools(1));
    let bits = m.bits(m.x, 8);
    let (by, seven) = (m.shifted(20), m.number(7));
    let index = m.op(Op::BitwiseAnd, m.int, &[by, seven]);
    let one = m.op(Op::VectorExtractDynamic, bool, &[bits, index]);
    m.store_truth(one, |x| x >> (x >> 20 & 7) & 1 == 1);
    let not = m.op(Op::LogicalNot, bool, &[one]);
    let inserted = m.op(Op::VectorInsertDynamic, eight, &[bits, not, index]);
    m.store_mask(inserted, 8, |x| (x ^ 1 << (x >> 20 & 7)) & 0xff);
    check(m.finish(), true);
}

#[test]
fn vectors_of_booleans_pass_through_functions_blocks_and_variables() {
    let mut m = ModuleBuilder::new(|b| {
        // Returns the complement of the first argument if the second is true.
        let bool = b.type_bool();
        let eight = b.type_vector(bool, 8);
        let ty = b.type_function(eight, [eight, bool]);
        let function = b.begin_function(eight, None, FunctionControl::DONT_INLINE, ty).unwrap();
        let bits = b.function_parameter(eight).unwrap();
        let condition = b.function_parameter(bool).unwrap();
        b.begin_block(None).unwrap();
        let not = b.logical_not(eight, None, bits).unwrap();
        let chosen = b.select(eight, None, condition, not, bits).unwrap();
        b.ret_value(chosen).unwrap();
        b.end_function().unwrap();
        HashMap::from([("complement", function)])
    });
    let (eight, bool) = (m.bools(8), m.bools(1));
    let bits = m.bits(m.x, 8);
    let (high, one, zero) = (m.shifted(12), m.number(1), m.number(0));
    let bit = m.op(Op::BitwiseAnd, m.int, &[high, one]);
    let condition = m.op(Op::INotEqual, bool, &[bit, zero]);
    let function = m.helpers["complement"];
    let called = m.b.function_call(eight, None, function, [bits, condition]).unwrap();
    let flipped = |x: u32| (if x >> 12 & 1 == 1 { !x } else { x }) & 0xff;
    m.store_mask(called, 8, flipped);
    // A variable of storage class `Function`.
    let pointer = m.b.type_pointer(None, StorageClass::Function, eight);
    let variable = m.b.id();
    let declaration = Instruction::new(
        Op::Variable,
        Some(pointer),
        Some(variable),
        vec![Operand::StorageClass(StorageClass::Function)],
    );
    m.b.select_block(Some(0)).unwrap();
    m.b.insert_into_block(InsertPoint::Begin, declaration).unwrap();
    m.b.store(variable, called, None, []).unwrap();
    let loaded = m.b.load(eight, None, variable, None, []).unwrap();
    m.store_mask(loaded, 8, flipped);
    // A phi.
    let (start, yes, end) = (m.b.id(), m.b.id(), m.b.id());
    m.b.branch(start).unwrap();
    m.b.begin_block(Some(start)).unwrap();
    m.b.selection_merge(end, rspirv::spirv::SelectionControl::NONE).unwrap();
    m.b.branch_conditional(condition, yes, end, []).unwrap();
    m.b.begin_block(Some(yes)).unwrap();
    let not = m.op(Op::LogicalNot, eight, &[bits]);
    m.b.branch(end).unwrap();
    m.b.begin_block(Some(end)).unwrap();
    let phi = m.b.phi(eight, None, [(bits, start), (not, yes)]).unwrap();
    m.store_mask(phi, 8, flipped);
    check(m.finish(), true);
}

#[test]
fn comparisons_of_every_width_give_booleans() {
    let mut m = ModuleBuilder::new(no_helpers);
    for width in [8, 16, 32, 64] {
        let (narrow, wide) = (m.ints(width, 8), m.ints(32, 8));
        let eight = m.bools(8);
        let (_, amounts) = m.numbers((0..8).map(|at| 3 * at));
        let all = m.op(Op::CompositeConstruct, wide, &[m.x; 8]);
        let shifted = m.op(Op::ShiftRightLogical, wide, &[all, amounts]);
        let first = if width == 32 { shifted } else { m.op(Op::UConvert, narrow, &[shifted]) };
        let last = if width == 32 { all } else { m.op(Op::UConvert, narrow, &[all]) };
        let less = m.op(Op::SLessThan, eight, &[first, last]);
        let sign = move |n: u32| match width {
            8 => i64::from(n as i8),
            16 => i64::from(n as i16),
            32 => i64::from(n as i32),
            _ => i64::from(n),
        };
        m.store_mask(less, 8, move |x| {
            (0..8).map(|at| u32::from(sign(x >> (3 * at)) < sign(x)) << at).sum()
        });
        // A selection between numbers of another width.
        let long = m.ints(64, 8);
        let (long_first, long_last) = match width {
            64 => (first, last),
            _ => (m.op(Op::UConvert, long, &[first]), m.op(Op::UConvert, long, &[last])),
        };
        let chosen = m.op(Op::Select, long, &[less, long_first, long_last]);
        let operands = vec![Operand::IdRef(chosen), Operand::LiteralBit32(2)];
        let one = m.ints(64, 1);
        let second = m.with_literals(Op::CompositeExtract, one, operands);
        let second = m.op(Op::UConvert, m.int, &[second]);
        m.store(second, move |x| {
            let cut = |n: u32| if width < 32 { n & ((1 << width) - 1) } else { n };
            if sign(x >> 6) < sign(x) { cut(x >> 6) } else { cut(x) }
        });
    }
    for width in [32, 64] {
        let float = m.b.type_float(width, None);
        let floats = m.b.type_vector(float, 8);
        let eight = m.bools(8);
        let wide = m.ints(32, 8);
        let (_, amounts) = m.numbers((0..8).map(|at| 3 * at));
        let all = m.op(Op::CompositeConstruct, wide, &[m.x; 8]);
        let shifted = m.op(Op::ShiftRightLogical, wide, &[all, amounts]);
        let first = m.op(Op::ConvertSToF, floats, &[shifted]);
        let last = m.op(Op::ConvertSToF, floats, &[all]);
        let value = move |n: u32| {
            if width == 32 { f64::from(n as i32 as f32) } else { f64::from(n as i32) }
        };
        for (op, right) in [
            (Op::FOrdLessThan, (|a, b| a < b) as fn(f64, f64) -> bool),
            (Op::FUnordGreaterThanEqual, |a, b| a >= b),
            (Op::FOrdNotEqual, |a, b| a != b),
            (Op::FUnordEqual, |a, b| a == b),
        ] {
            let compared = m.op(op, eight, &[first, last]);
            m.store_mask(compared, 8, move |x| {
                (0..8).map(|at| u32::from(right(value(x >> (3 * at)), value(x))) << at).sum()
            });
        }
        // The value is 0 / 0 if the number is even.
        let (_, ones) = m.numbers([1; 8]);
        let odd = m.op(Op::BitwiseAnd, wide, &[shifted, ones]);
        let odd = m.op(Op::ConvertUToF, floats, &[odd]);
        let quotient = m.op(Op::FDiv, floats, &[odd, odd]);
        let is_nan = m.op(Op::IsNan, eight, &[quotient]);
        m.store_mask(is_nan, 8, |x| (0..8).map(|at| (!x >> (3 * at) & 1) << at).sum());
    }
    // Three components, in a vector that takes the space of four.
    let (three, bools) = (m.ints(32, 3), m.bools(3));
    let (_, limits) = m.numbers([1 << 30, 1 << 31, 3 << 30]);
    let all = m.op(Op::CompositeConstruct, three, &[m.x; 3]);
    let less = m.op(Op::ULessThan, bools, &[all, limits]);
    let bool = m.bools(1);
    let any = m.op(Op::Any, bool, &[less]);
    m.store_truth(any, |x| x < 3 << 30);
    let every = m.op(Op::All, bool, &[less]);
    m.store_truth(every, |x| x < 1 << 30);
    check(m.finish(), true);
}

/// Returns a module with integers of unusual widths, as optimisers create them for reductions and for structs
/// in registers.
fn with_unusual_widths() -> ModuleBuilder {
    let mut m = ModuleBuilder::new(no_helpers);
    m.b.extension("SPV_INTEL_arbitrary_precision_integers");
    m.b.capability(Capability::ArbitraryPrecisionIntegersINTEL);
    m
}

#[test]
fn integers_of_unusual_widths_are_emulated_in_wider_ones() {
    let mut m = with_unusual_widths();
    for count in [2, 3, 4] {
        let low = (1 << count) - 1;
        let bits = m.bits(m.x, count);
        m.store_mask(bits, count, move |x| x & low);
        let back = m.unmask(m.x, count);
        m.store_mask(back, count, move |x| x & low);
    }
    for width in [4_u32, 7, 12, 24, 31] {
        let ty = m.ints(width, 1);
        let cut = move |n: u32| n & ((1 << width) - 1);
        let sign = move |n: u32| (n << (32 - width)).cast_signed() >> (32 - width);
        let y = m.shifted(5);
        let (a, b) = (m.op(Op::UConvert, ty, &[m.x]), m.op(Op::UConvert, ty, &[y]));
        let store = |m: &mut ModuleBuilder, value: Word, expected: fn(u32, u32) -> u32| {
            let value = m.op(Op::UConvert, m.int, &[value]);
            m.store(value, move |x| cut(expected(x, x >> 5)));
        };
        let sum = m.op(Op::IAdd, ty, &[a, b]);
        store(&mut m, sum, |a, b| a.wrapping_add(b));
        let product = m.op(Op::IMul, ty, &[a, b]);
        store(&mut m, product, |a, b| a.wrapping_mul(b));
        let negated = m.op(Op::SNegate, ty, &[b]);
        store(&mut m, negated, |_, b| b.wrapping_neg());
        let not = m.op(Op::Not, ty, &[a]);
        store(&mut m, not, |a, _| !a);
        let three = m.b.constant_bit32(ty, 3);
        let up = m.op(Op::ShiftLeftLogical, ty, &[a, three]);
        store(&mut m, up, |a, _| a << 3);
        let down = m.op(Op::ShiftRightArithmetic, ty, &[a, three]);
        let down = m.op(Op::SConvert, m.int, &[down]);
        m.store(down, move |x| (sign(x) >> 3).cast_unsigned());
        let bool = m.bools(1);
        let less = m.op(Op::SLessThan, bool, &[a, b]);
        m.store_truth(less, move |x| sign(x) < sign(x >> 5));
    }
    check(m.finish(), false);
}

#[test]
fn bitcasts_between_a_48_bit_integer_and_a_vector_keep_the_bits() {
    let mut m = with_unusual_widths();
    let (long, odd, shorts, short) = (m.ints(64, 1), m.ints(48, 1), m.ints(16, 3), m.ints(16, 1));
    let wide = m.op(Op::UConvert, long, &[m.x]);
    let factor = m.b.constant_bit64(long, 0x1_0000_0001);
    let wide = m.op(Op::IMul, long, &[wide, factor]);
    let one = m.op(Op::UConvert, odd, &[wide]);
    let three = m.op(Op::Bitcast, shorts, &[one]);
    for at in 0..3 {
        let operands = vec![Operand::IdRef(three), Operand::LiteralBit32(at)];
        let part = m.with_literals(Op::CompositeExtract, short, operands);
        let part = m.op(Op::UConvert, m.int, &[part]);
        m.store(part, move |x| {
            (u64::from(x).wrapping_mul(0x1_0000_0001) >> (16 * at)) as u32 & 0xffff
        });
    }
    let back = m.op(Op::Bitcast, odd, &[three]);
    let by = m.b.constant_bit64(odd, 16);
    let shifted = m.op(Op::ShiftRightLogical, odd, &[back, by]);
    let shifted = m.op(Op::UConvert, m.int, &[shifted]);
    m.store(shifted, |x| x.rotate_left(16));
    check(m.finish(), false);
}

/// In memory that the host can access, each Boolean would have to take one bit.
#[test]
fn vectors_of_booleans_in_global_memory_are_refused() {
    let mut b = Builder::new();
    b.set_version(1, 2);
    b.capability(Capability::Kernel);
    b.capability(Capability::Addresses);
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    let (void, bool) = (b.type_void(), b.type_bool());
    let eight = b.type_vector(bool, 8);
    let pointer = b.type_pointer(None, StorageClass::CrossWorkgroup, eight);
    let ty = b.type_function(void, [pointer]);
    let kernel = b.begin_function(void, None, FunctionControl::NONE, ty).unwrap();
    let to = b.function_parameter(pointer).unwrap();
    b.begin_block(None).unwrap();
    let value = b.constant_null(eight);
    b.store(to, value, None, []).unwrap();
    b.ret().unwrap();
    b.end_function().unwrap();
    b.entry_point(ExecutionModel::Kernel, kernel, "k", []);
    let words = b.module().assemble();
    let module: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let error = emit(&module).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("a vector of Booleans in global memory"), "{error}");
}
