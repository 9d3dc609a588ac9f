//! Random kernels: what they access when they run is what the analysis says.
//!
//! A kernel is a list of statements on integers. It is written as SPIR-V for the analysis, and run here for each
//! work-item. Each access goes to a buffer of its own, so that both can be compared.

#![allow(clippy::unwrap_used)]

mod pixels;

use proptest::prelude::*;
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionModel, FunctionControl, MemoryModel,
    Op, OpenclStd100Op as Extended, StorageClass,
};

pub(crate) use pixels::Picture;
use pixels::{Declared, PixelAccess};

use super::*;
use crate::plan::Memory;
use crate::{NdRange, NdSize};
use kiln_spirv::edit::located;

/// Index of a value that was calculated before: the ids and the scalar first.
type Var = usize;

const GLOBAL: [usize; 2] = [6, 4];
/// Values that every kernel begins with: two global ids, the start of the work-group, a local id and a scalar.
const GIVEN: usize = 6;

#[derive(Clone, Debug)]
enum Statement {
    Constant(i32),
    Binary(Op, Var, Var),
    Call(Extended, Vec<Var>),
    Select(Condition, Var, Var),
    /// The value is the first variable of the pair after the first list, and the second after the second.
    If(Condition, Vec<Statement>, Vec<Statement>, [Var; 2]),
    /// Loop with a counter that is compared with a bound. The loop has one of two shapes: tested at the head,
    /// or at the end after a test before.
    For {
        from: Var,
        op: Op,
        to: Var,
        step: i32,
        is_rotated: bool,
        body: Vec<Statement>,
    },
    Touch(Var),
    Pixel(PixelAccess),
}

#[derive(Clone, Debug)]
enum Condition {
    Compare(Op, Var, Var),
    Both(Box<Condition>, Box<Condition>),
    Either(Box<Condition>, Box<Condition>),
    Not(Box<Condition>),
}

const COMPARISONS: [Op; 10] = [
    Op::SLessThan,
    Op::SGreaterThan,
    Op::SLessThanEqual,
    Op::SGreaterThanEqual,
    Op::ULessThan,
    Op::UGreaterThan,
    Op::ULessThanEqual,
    Op::UGreaterThanEqual,
    Op::IEqual,
    Op::INotEqual,
];

struct Generator {
    rng: fastrand::Rng,
    touches: usize,
    pictures: Vec<Picture>,
}

impl Generator {
    fn of(seed: u64) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), touches: 0, pictures: Vec::new() }
    }

    /// Makes the statements of a kernel.
    fn kernel(&mut self) -> Vec<Statement> {
        let mut all = self.statements(self.given(), 12, 2);
        self.touches += 1;
        all.push(Statement::Touch(GIVEN));
        all
    }

    fn condition(&mut self, count: usize, depth: usize) -> Condition {
        let rng = &mut self.rng;
        match rng.u8(..8) {
            0 if depth > 0 => Condition::Not(Box::new(self.condition(count, depth - 1))),
            kind @ 1..3 if depth > 0 => {
                let a = Box::new(self.condition(count, depth - 1));
                let b = Box::new(self.condition(count, depth - 1));
                if kind == 1 { Condition::Both(a, b) } else { Condition::Either(a, b) }
            }
            _ => {
                let op = *rng.choice(COMPARISONS.iter()).unwrap();
                Condition::Compare(op, rng.usize(..count), rng.usize(..count))
            }
        }
    }

    /// Makes statements after `count` values, and the number of values after them.
    fn statements(&mut self, mut count: usize, length: usize, depth: usize) -> Vec<Statement> {
        let mut all = Vec::new();
        while all.len() < length {
            if !self.pictures.is_empty() && self.rng.u8(..3) == 0 {
                let statement = self.pixel(count);
                count += usize::from(statement.is_value());
                all.push(statement);
                continue;
            }
            let rng = &mut self.rng;
            let var = |rng: &mut fastrand::Rng| {
                // Values that were calculated lately are more likely.
                if rng.bool() { rng.usize(..count) } else { count - 1 - rng.usize(..count.min(4)) }
            };
            let statement = match rng.u8(..16) {
                0..3 => {
                    let odd = [i32::MAX, i32::MIN, -1, 1000];
                    let small = rng.i32(-5..9);
                    Statement::Constant(if rng.u8(..12) == 0 { odd[rng.usize(..4)] } else { small })
                }
                3..7 => {
                    let ops = [Op::IAdd, Op::IAdd, Op::ISub, Op::ISub, Op::IMul];
                    Statement::Binary(ops[rng.usize(..5)], var(rng), var(rng))
                }
                7 => {
                    let ops = [
                        Op::UDiv,
                        Op::UMod,
                        Op::SDiv,
                        Op::SRem,
                        Op::BitwiseAnd,
                        Op::BitwiseOr,
                        Op::ShiftLeftLogical,
                        Op::ShiftRightLogical,
                        Op::ShiftRightArithmetic,
                    ];
                    Statement::Binary(ops[rng.usize(..9)], var(rng), var(rng))
                }
                8..10 => {
                    let calls = [
                        (Extended::s_min, 2),
                        (Extended::s_max, 2),
                        (Extended::u_min, 2),
                        (Extended::u_max, 2),
                        (Extended::s_clamp, 3),
                        (Extended::u_clamp, 3),
                        (Extended::s_abs, 1),
                        (Extended::s_abs_diff, 2),
                        (Extended::u_abs_diff, 2),
                        (Extended::u_sub_sat, 2),
                    ];
                    let (call, operands) = calls[rng.usize(..10)];
                    Statement::Call(call, (0..operands).map(|_| var(rng)).collect())
                }
                10..12 => {
                    let (yes, no) = (var(rng), var(rng));
                    Statement::Select(self.condition(count, 2), yes, no)
                }
                12 if depth > 0 => {
                    let (from, to) = (var(rng), var(rng));
                    let (step, is_rotated) = (rng.i32(1..4), rng.bool());
                    let is_down = rng.u8(..3) == 0;
                    let step = if is_down { -step } else { step };
                    let op = match (rng.u8(..5), is_down) {
                        (0, _) => Op::INotEqual,
                        (1, false) => Op::ULessThan,
                        (1, true) => Op::UGreaterThan,
                        (2, false) => Op::SLessThanEqual,
                        (2, true) => Op::SGreaterThanEqual,
                        (_, false) => Op::SLessThan,
                        (_, true) => Op::SGreaterThan,
                    };
                    let length = rng.usize(1..4);
                    let body = self.statements(count + 1, length, depth - 1);
                    Statement::For { from, op, to, step, is_rotated, body }
                }
                13..15 if depth > 0 => {
                    let lengths = [rng.usize(1..5), rng.usize(0..4)];
                    let condition = self.condition(count, 2);
                    let [yes, no] = lengths.map(|length| self.statements(count, length, depth - 1));
                    let last = |all: &[Statement], rng: &mut fastrand::Rng| {
                        let values = all.iter().filter(|statement| statement.is_value()).count();
                        let all = count + values;
                        all - 1 - rng.usize(..all.min(3))
                    };
                    let chosen = [last(&yes, &mut self.rng), last(&no, &mut self.rng)];
                    Statement::If(condition, yes, no, chosen)
                }
                _ => {
                    self.touches += 1;
                    Statement::Touch(var(rng))
                }
            };
            count += usize::from(statement.is_value());
            all.push(statement);
        }
        all
    }
}

impl Statement {
    /// Returns whether the statement defines a value for those after it.
    fn is_value(&self) -> bool {
        match self {
            Self::For { .. } | Self::Touch(_) => false,
            Self::Pixel(access) => access.is_value(),
            _ => true,
        }
    }
}

/// Run of a kernel in one work-item.
struct Run {
    /// Indices that were touched, by the number of the touch.
    touched: Vec<Vec<i32>>,
    next: usize,
    fuel: usize,
}

impl Run {
    /// Runs statements. `is_run` is false to count the accesses alone. Returns `None` for a division by 0 or a
    /// run that is too long.
    fn run(&mut self, all: &[Statement], values: &mut Vec<i32>, is_run: bool) -> Option<()> {
        for statement in all {
            self.fuel = self.fuel.checked_sub(1)?;
            let value = match statement {
                Statement::Touch(var) => {
                    if is_run {
                        self.touched[self.next].push(values[*var]);
                    }
                    self.next += 1;
                    continue;
                }
                Statement::For { from, op, to, step, body, .. } => {
                    let first = self.next;
                    if !is_run {
                        let mut inner = values.clone();
                        inner.push(0);
                        self.run(body, &mut inner, false)?;
                        continue;
                    }
                    let (mut at, to) = (values[*from], values[*to]);
                    while compare(*op, at, to) {
                        self.next = first;
                        let mut inner = values.clone();
                        inner.push(at);
                        self.run(body, &mut inner, true)?;
                        at = at.wrapping_add(*step);
                    }
                    self.next = first;
                    let mut inner = values.clone();
                    inner.push(0);
                    self.run(body, &mut inner, false)?;
                    continue;
                }
                Statement::If(condition, yes, no, chosen) => {
                    let holds = !is_run || condition.holds(values);
                    let (mut first, mut second) = (values.clone(), values.clone());
                    self.run(yes, &mut first, is_run && holds)?;
                    self.run(no, &mut second, is_run && !holds)?;
                    if holds { first[chosen[0]] } else { second[chosen[1]] }
                }
                // Kernels with images are run by the interpreter alone.
                Statement::Pixel(_) => return None,
                Statement::Constant(value) => *value,
                Statement::Binary(op, a, b) => binary(*op, values[*a], values[*b], is_run)?,
                Statement::Call(function, operands) => {
                    let operands: Vec<_> = operands.iter().map(|&var| values[var]).collect();
                    called(*function, &operands)
                }
                Statement::Select(condition, yes, no) => {
                    values[if condition.holds(values) { *yes } else { *no }]
                }
            };
            values.push(value);
        }
        Some(())
    }
}

fn binary(op: Op, a: i32, b: i32, is_run: bool) -> Option<i32> {
    let (x, y) = (a as u32, b as u32);
    Some(match op {
        Op::IAdd => a.wrapping_add(b),
        Op::ISub => a.wrapping_sub(b),
        Op::IMul => a.wrapping_mul(b),
        Op::BitwiseAnd => a & b,
        Op::BitwiseOr => a | b,
        _ if !is_run => 0,
        Op::UDiv => x.checked_div(y)? as i32,
        Op::UMod => x.checked_rem(y)? as i32,
        Op::SDiv => a.checked_div(b)?,
        Op::SRem => a.checked_rem(b)?,
        Op::ShiftLeftLogical => x.checked_shl(y)? as i32,
        Op::ShiftRightLogical => x.checked_shr(y)? as i32,
        _ => a.checked_shr(y)?,
    })
}

fn called(function: Extended, operands: &[i32]) -> i32 {
    let unsigned = |at: usize| operands[at] as u32;
    match (function, operands) {
        (Extended::s_min, &[a, b]) => a.min(b),
        (Extended::s_max, &[a, b]) => a.max(b),
        (Extended::u_min, _) => unsigned(0).min(unsigned(1)) as i32,
        (Extended::u_max, _) => unsigned(0).max(unsigned(1)) as i32,
        (Extended::s_clamp, &[a, low, high]) => a.max(low).min(high),
        (Extended::u_clamp, _) => unsigned(0).max(unsigned(1)).min(unsigned(2)) as i32,
        (Extended::s_abs, &[a]) => a.wrapping_abs(),
        (Extended::s_abs_diff, &[a, b]) => a.abs_diff(b) as i32,
        (Extended::u_sub_sat, _) => unsigned(0).saturating_sub(unsigned(1)) as i32,
        _ => unsigned(0).abs_diff(unsigned(1)) as i32,
    }
}

impl Condition {
    fn holds(&self, values: &[i32]) -> bool {
        match self {
            Self::Not(a) => !a.holds(values),
            Self::Both(a, b) => a.holds(values) && b.holds(values),
            Self::Either(a, b) => a.holds(values) || b.holds(values),
            Self::Compare(op, a, b) => compare(*op, values[*a], values[*b]),
        }
    }
}

fn compare(op: Op, a: i32, b: i32) -> bool {
    let (x, y) = (a as u32, b as u32);
    match op {
        Op::SLessThan => a < b,
        Op::SGreaterThan => a > b,
        Op::SLessThanEqual => a <= b,
        Op::SGreaterThanEqual => a >= b,
        Op::ULessThan => x < y,
        Op::UGreaterThan => x > y,
        Op::ULessThanEqual => x <= y,
        Op::UGreaterThanEqual => x >= y,
        Op::IEqual => a == b,
        _ => a != b,
    }
}

/// Writer of a kernel as SPIR-V.
struct Writer {
    b: Builder,
    int: u32,
    bool: u32,
    pointer: u32,
    long: u32,
    opencl: u32,
    buffers: Vec<u32>,
    declared: Declared,
    void: u32,
    next: usize,
    /// Label of the block that is written.
    block: u32,
}

impl Writer {
    fn insert(&mut self, op: Op, ty: u32, operands: &[u32]) -> u32 {
        let id = self.b.id();
        let operands = operands.iter().map(|&id| Operand::IdRef(id)).collect();
        let i = rspirv::dr::Instruction::new(op, Some(ty), Some(id), operands);
        self.b.insert_into_block(rspirv::dr::InsertPoint::End, i).unwrap();
        id
    }

    fn begin(&mut self, label: u32) {
        self.b.begin_block(Some(label)).unwrap();
        self.block = label;
    }

    fn condition(&mut self, condition: &Condition, values: &[u32]) -> u32 {
        match condition {
            Condition::Compare(op, a, b) => self.insert(*op, self.bool, &[values[*a], values[*b]]),
            Condition::Not(a) => {
                let a = self.condition(a, values);
                self.insert(Op::LogicalNot, self.bool, &[a])
            }
            Condition::Both(a, b) => {
                let (a, b) = (self.condition(a, values), self.condition(b, values));
                self.insert(Op::LogicalAnd, self.bool, &[a, b])
            }
            Condition::Either(a, b) => {
                // As compilers write it.
                let (a, b) = (self.condition(a, values), self.condition(b, values));
                let yes = self.b.constant_true(self.bool);
                self.insert(Op::Select, self.bool, &[a, yes, b])
            }
        }
    }

    fn statements(&mut self, all: &[Statement], values: &mut Vec<u32>) {
        for statement in all {
            let value = match statement {
                Statement::Constant(value) => self.b.constant_bit32(self.int, *value as u32),
                Statement::Binary(op, a, b) => {
                    self.insert(*op, self.int, &[values[*a], values[*b]])
                }
                Statement::Call(function, operands) => {
                    let operands = operands.iter().map(|&var| Operand::IdRef(values[var]));
                    let (int, set) = (self.int, self.opencl);
                    self.b.ext_inst(int, None, set, *function as u32, operands).unwrap()
                }
                Statement::Select(condition, yes, no) => {
                    let condition = self.condition(condition, values);
                    self.insert(Op::Select, self.int, &[condition, values[*yes], values[*no]])
                }
                Statement::Touch(var) => {
                    let index = self.insert(Op::SConvert, self.long, &[values[*var]]);
                    let to = self.buffers[self.next];
                    let pointer = self.pointer;
                    let chain = self.b.in_bounds_ptr_access_chain(pointer, None, to, index, []);
                    self.b.store(chain.unwrap(), values[*var], None, []).unwrap();
                    self.next += 1;
                    continue;
                }
                Statement::Pixel(access) => match self.pixel(access, values) {
                    Some(value) => value,
                    None => continue,
                },
                Statement::If(condition, yes, no, chosen) => {
                    let condition = self.condition(condition, values);
                    let [then, other, after] = [(); 3].map(|()| self.b.id());
                    self.b.branch_conditional(condition, then, other, []).unwrap();
                    let mut ends = Vec::new();
                    for (label, body, chosen) in [(then, yes, chosen[0]), (other, no, chosen[1])] {
                        self.begin(label);
                        let mut inner = values.clone();
                        self.statements(body, &mut inner);
                        ends.push((inner[chosen], self.block));
                        self.b.branch(after).unwrap();
                    }
                    self.begin(after);
                    self.b.phi(self.int, None, ends).unwrap()
                }
                Statement::For { from, op, to, step, is_rotated, body } => {
                    let [head, inner, after, phi, next] = [(); 5].map(|()| self.b.id());
                    let (from, to) = (values[*from], values[*to]);
                    let step = self.b.constant_bit32(self.int, *step as u32);
                    let before = self.block;
                    if *is_rotated {
                        let holds = self.insert(*op, self.bool, &[from, to]);
                        self.b.branch_conditional(holds, head, after, []).unwrap();
                    } else {
                        self.b.branch(head).unwrap();
                    }
                    self.begin(head);
                    // The last block of the body is known once it is written.
                    let at = self.b.selected_block().unwrap();
                    let function = self.b.selected_function().unwrap();
                    self.b.phi(self.int, Some(phi), [(from, before)]).unwrap();
                    if !is_rotated {
                        let holds = self.insert(*op, self.bool, &[phi, to]);
                        self.b.branch_conditional(holds, inner, after, []).unwrap();
                        self.begin(inner);
                    }
                    let mut values = values.clone();
                    values.push(phi);
                    self.statements(body, &mut values);
                    let added = rspirv::dr::Instruction::new(
                        Op::IAdd,
                        Some(self.int),
                        Some(next),
                        vec![Operand::IdRef(phi), Operand::IdRef(step)],
                    );
                    self.b.insert_into_block(rspirv::dr::InsertPoint::End, added).unwrap();
                    if *is_rotated {
                        let holds = self.insert(*op, self.bool, &[next, to]);
                        self.b.branch_conditional(holds, head, after, []).unwrap();
                    } else {
                        self.b.branch(head).unwrap();
                    }
                    let operands = [Operand::IdRef(next), Operand::IdRef(self.block)];
                    let module = self.b.module_mut();
                    let phi = &mut module.functions[function].blocks[at].instructions[0];
                    phi.operands.extend(operands);
                    self.begin(after);
                    continue;
                }
            };
            values.push(value);
        }
    }
}

/// Returns a random kernel `k` with a scalar and so many buffers, each of which it accesses in one place.
pub(crate) fn random(seed: u64) -> (Vec<u8>, usize) {
    let mut generator = Generator::of(seed);
    let all = generator.kernel();
    (module(&all, generator.touches, &[]), generator.touches)
}

/// Returns a random kernel `k` with a scalar, so many buffers, these images and a sampler.
pub(crate) fn random_with_images(seed: u64) -> (Vec<u8>, usize, Vec<Picture>) {
    let mut generator = Generator::of(seed);
    let count = generator.rng.usize(1..4);
    generator.pictures = (0..count).map(|_| Picture::random(&mut generator.rng)).collect();
    let all = generator.kernel();
    let bytes = module(&all, generator.touches, &generator.pictures);
    (bytes, generator.touches, generator.pictures)
}

/// Writes a kernel `k` with a scalar and `touches` buffers; if it has images, these and a sampler follow.
fn module(all: &[Statement], touches: usize, pictures: &[Picture]) -> Vec<u8> {
    let mut b = Builder::new();
    b.set_version(1, 2);
    b.capability(Capability::Kernel);
    b.capability(Capability::Addresses);
    b.capability(Capability::Int64);
    let opencl = b.ext_inst_import("OpenCL.std");
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    let (void, int, long, bool) =
        (b.type_void(), b.type_int(32, 0), b.type_int(64, 0), b.type_bool());
    let pointer = b.type_pointer(None, StorageClass::CrossWorkgroup, int);
    let vector = b.type_vector(long, 3);
    let input = b.type_pointer(None, StorageClass::Input, vector);
    let built_ins = [
        BuiltIn::GlobalInvocationId,
        BuiltIn::WorkgroupId,
        BuiltIn::WorkgroupSize,
        BuiltIn::LocalInvocationId,
    ];
    let variables = built_ins.map(|built_in| {
        let id = b.variable(input, None, StorageClass::Input, None);
        b.decorate(id, Decoration::BuiltIn, [Operand::BuiltIn(built_in)]);
        id
    });
    let mut declared = Declared::of(&mut b, pictures, void, int);
    let buffers = std::iter::repeat_n(pointer, touches);
    let images = declared.types.iter().copied();
    let sampler = (!pictures.is_empty()).then_some(declared.sampler_type);
    let parameters: Vec<_> =
        [int].into_iter().chain(buffers).chain(images).chain(sampler).collect();
    let ty = b.type_function(void, parameters);
    let k = b.begin_function(void, None, FunctionControl::NONE, ty).unwrap();
    let scalar = b.function_parameter(int).unwrap();
    let buffers = (0..touches).map(|_| b.function_parameter(pointer).unwrap()).collect();
    declared.parameters =
        declared.types.iter().map(|&ty| b.function_parameter(ty).unwrap()).collect();
    declared.sampler = sampler.map_or(0, |ty| b.function_parameter(ty).unwrap());
    let block = b.begin_block(None).unwrap();
    let loaded = variables.map(|id| b.load(vector, None, id, None, []).unwrap());
    let part = |b: &mut Builder, vector: usize, d: u32| {
        let part = b.composite_extract(long, None, loaded[vector], [d]).unwrap();
        b.u_convert(int, None, part).unwrap()
    };
    let (x, y) = (part(&mut b, 0, 0), part(&mut b, 0, 1));
    let (group, size, local) = (part(&mut b, 1, 0), part(&mut b, 2, 0), part(&mut b, 3, 0));
    let start = b.i_mul(int, None, group, size).unwrap();
    let again = b.i_add(int, None, start, local).unwrap();
    let next = 0;
    let mut writer =
        Writer { b, int, bool, pointer, long, opencl, buffers, declared, void, next, block };
    let given = [x, y, start, local, again, scalar].into_iter();
    let mut given = given.chain(writer.sizes()).collect();
    writer.statements(all, &mut given);
    let Writer { mut b, .. } = writer;
    b.ret().unwrap();
    b.end_function().unwrap();
    b.entry_point(ExecutionModel::Kernel, k, "k", variables);
    b.module().assemble().into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Runs the kernel in all work-items, and compares its accesses with those that were found.
fn check(all: &[Statement], touches: usize, scalar: i32, size: usize, is_size_known: bool) {
    let bytes = module(all, touches, &[]);
    let mut range = NdRange::from(NdSize::from(GLOBAL));
    if is_size_known {
        range.set_local([size, 1].into()).unwrap();
    }
    let space = Space::new(&range);
    let parsed = Module::parse(bytes.as_slice()).unwrap();
    let definitions = parsed.definitions();
    let (_, function) = function_of(&parsed, "k").unwrap();
    let mut values = vec![Value::Scalar(scalar.to_le_bytes().into())];
    values.extend((0..touches).map(|touch| {
        let region =
            Region { memory: Memory(touch as u32), offset: 0, length: isize::MAX as usize };
        Value::Buffer(region)
    }));
    let found = analyse(&definitions, function, &values, &space).unwrap();
    let exact = analyse_values(&definitions, function, &values, &space).unwrap();
    // Forms of the indices, where they are used.
    let kernel = parsed.functions.iter().find(|known| known.id == function).unwrap();
    let index = |touch: usize| {
        let access = exact.accesses.all.iter().find(|access| access.parameter == touch + 1)?;
        let at = access.location?;
        let (_, store) = located((0, &kernel.body)).find(|(here, _)| here.offset == at.offset)?;
        let (_, mut indexes) = definitions.get(store.pointer()?)?.chain()?;
        let id = indexes.next()?;
        Some(exact.form(id, at)?.without_local(&space))
    };
    let indexes: Vec<_> = (0..touches).map(index).collect();
    for y in 0..GLOBAL[1] {
        for x in 0..GLOBAL[0] {
            let mut run = Run { touched: vec![Vec::new(); touches], next: 0, fuel: 4000 };
            let given = [x, y, x / size * size, x % size, x].map(|n| n as i32);
            let mut given: Vec<_> = given.into_iter().chain([scalar]).collect();
            assert_eq!(given.len(), GIVEN);
            if run.run(all, &mut given, true).is_none() {
                continue;
            }
            for (touch, indices) in run.touched.iter().enumerate() {
                for &index in indices {
                    let form = indexes[touch].unwrap_or_else(|| panic!("{touch} runs: {all:#?}"));
                    let is_known = form.allows([x as i128, y as i128], index.into(), &space);
                    assert!(is_known, "{touch} at {index} in {x}, {y}, not {form:?}: {all:#?}");
                }
                for accesses in [&found.all, &exact.accesses.all] {
                    let mut own = accesses.iter().filter(|access| access.parameter == touch + 1);
                    let access = own.next();
                    assert!(own.next().is_none());
                    let is_certain = access.is_some_and(|access| access.is_certain);
                    assert!(!is_certain || !indices.is_empty(), "{touch} is not certain: {all:#?}");
                    for &index in indices {
                        let access = access.unwrap_or_else(|| panic!("{touch} runs: {all:#?}"));
                        let start = i128::from(index) * 4;
                        let ids = [x as i128, y as i128];
                        let is_found =
                            access.bytes.is_none_or(|bytes| bytes.start.allows(ids, start, &space));
                        assert!(
                            is_found,
                            "{touch} at {index} in {ids:?}, not {:?}: {all:#?}",
                            access.bytes
                        );
                    }
                }
            }
        }
    }
}

/// Returns the number of kernels to try.
fn cases() -> u32 {
    test_tools::tier::cases("KILN_ACCESS_CASES", 500, 150) as u32
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn kernels_access_what_the_analysis_says(
        seed in any::<u64>(), scalar in -3_i32..9, size in 0_usize..4, is_size_known in any::<bool>(),
    ) {
        let mut generator = Generator::of(seed);
        let all = generator.kernel();
        check(&all, generator.touches, scalar, [1, 2, 3, 6][size], is_size_known);
    }
}
