//! Random arithmetic, as built by the driver from SPIR-V and from the emitted text: the bits are the same. The
//! environment variable `KILN_SEED`, a number, selects other arithmetic.

use std::cell::RefCell;
use std::sync::Mutex;

use kiln::devices::ModuleFormat;
use kiln::internal::spirv::emit;
use kiln::{Module, Runtime};
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, InsertPoint, Instruction, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionMode, ExecutionModel,
    FPRoundingMode, FunctionControl, MemoryModel, Op, OpenclStd100Op as Std, StorageClass, Word,
};

const MODULES: u64 = 2;
const KERNELS: usize = 4;
/// Number of instructions of a kernel, besides those that store its results.
const STEPS: usize = 60;
const ITEMS: usize = 64;
/// Number of inputs of each item, of 64 bits each.
const INPUTS: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scalar {
    Bool,
    Int(u32),
    Float(u32),
}

use Scalar::{Bool, Float, Int};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Type {
    scalar: Scalar,
    lanes: u32,
}

/// Generator of a module with kernels `kernel0` and so on, which write every value that they compute.
struct Generator {
    b: Builder,
    random: fastrand::Rng,
    std: Word,
    values: Vec<(Type, Word)>,
    /// Instructions that created the values, for messages.
    steps: Vec<String>,
}

impl Generator {
    fn ty(&mut self, ty: Type) -> Word {
        let scalar = match ty.scalar {
            Bool => self.b.type_bool(),
            Int(width) => self.b.type_int(width, 0),
            Float(width) => self.b.type_float(width, None),
        };
        if ty.lanes == 1 { scalar } else { self.b.type_vector(scalar, ty.lanes) }
    }

    fn constant(&mut self, ty: Type, bits: u64) -> Word {
        let scalar = self.ty(Type { lanes: 1, ..ty });
        let one = match ty.scalar {
            Int(64) | Float(64) => self.b.constant_bit64(scalar, bits),
            _ => self.b.constant_bit32(scalar, bits as u32),
        };
        if ty.lanes == 1 {
            return one;
        }
        let vector = self.ty(ty);
        self.b.constant_composite(vector, vec![one; ty.lanes as usize])
    }

    fn push(&mut self, op: Op, ty: Type, operands: impl IntoIterator<Item = Operand>) -> Word {
        let (ty, id) = (self.ty(ty), self.b.id());
        let instruction = Instruction::new(op, Some(ty), Some(id), operands.into_iter().collect());
        self.b.insert_into_block(InsertPoint::End, instruction).expect("a block is open");
        id
    }

    fn compute(&mut self, op: Op, ty: Type, operands: &[Word]) -> Word {
        self.push(op, ty, operands.iter().map(|id| Operand::IdRef(*id)))
    }

    fn extended(&mut self, op: Std, ty: Type, operands: &[Word]) -> Word {
        let head = [Operand::IdRef(self.std), Operand::LiteralExtInstInteger(op as u32)];
        self.push(
            Op::ExtInst,
            ty,
            head.into_iter().chain(operands.iter().map(|id| Operand::IdRef(*id))),
        )
    }

    fn keep(&mut self, what: String, ty: Type, id: Word) {
        self.values.push((ty, id));
        self.steps.push(format!("{what} -> {ty:?}"));
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.usize(..all.len())]
    }

    /// Returns a random value whose type fits.
    fn value(&mut self, fits: impl Fn(Type) -> bool) -> Option<(Type, Word)> {
        let fitting: Vec<_> = self.values.iter().copied().filter(|(ty, _)| fits(*ty)).collect();
        (!fitting.is_empty()).then(|| self.one_of(&fitting))
    }

    fn pair(&mut self, fits: impl Fn(Type) -> bool) -> Option<(Type, Word, Word)> {
        let (ty, a) = self.value(fits)?;
        let (_, b) = self.value(|other| other == ty)?;
        Some((ty, a, b))
    }

    /// Adds an instruction, if there are suitable values.
    fn step(&mut self) -> Option<()> {
        let is_int = |ty: Type| matches!(ty.scalar, Int(_));
        let is_float = |ty: Type| matches!(ty.scalar, Float(_));
        match self.random.u32(0..14) {
            0 => {
                let op = self.one_of(&[
                    Op::IAdd,
                    Op::ISub,
                    Op::IMul,
                    Op::BitwiseAnd,
                    Op::BitwiseOr,
                    Op::BitwiseXor,
                ]);
                let (ty, a, b) = self.pair(is_int)?;
                let id = self.compute(op, ty, &[a, b]);
                self.keep(format!("{op:?}"), ty, id);
            }
            1 => {
                // The divisor is neither zero nor -1: drivers crash when the lowest number is divided by -1.
                let op = self.one_of(&[Op::UDiv, Op::UMod, Op::SDiv, Op::SRem, Op::SMod]);
                let (ty, a, b) = self.pair(is_int)?;
                let (low, one) = (self.constant(ty, 0x5e), self.constant(ty, 1));
                let b = self.compute(Op::BitwiseAnd, ty, &[b, low]);
                let mut b = self.compute(Op::BitwiseOr, ty, &[b, one]);
                if self.random.bool() {
                    b = self.compute(Op::Not, ty, &[b]);
                }
                let id = self.compute(op, ty, &[a, b]);
                self.keep(format!("{op:?}"), ty, id);
            }
            2 => {
                let op = self.one_of(&[
                    Op::ShiftLeftLogical,
                    Op::ShiftRightLogical,
                    Op::ShiftRightArithmetic,
                ]);
                let (ty, a, by) = self.pair(is_int)?;
                let Int(width) = ty.scalar else { return None };
                let mask = self.constant(ty, u64::from(width) - 1);
                let by = self.compute(Op::BitwiseAnd, ty, &[by, mask]);
                let id = self.compute(op, ty, &[a, by]);
                self.keep(format!("{op:?}"), ty, id);
            }
            3 => {
                let op = self.one_of(&[Op::Not, Op::SNegate, Op::BitCount]);
                let (ty, a) = self.value(is_int)?;
                let id = self.compute(op, ty, &[a]);
                self.keep(format!("{op:?}"), ty, id);
            }
            4 => {
                let op = self.one_of(&[Op::UConvert, Op::SConvert]);
                let (from, a) = self.value(is_int)?;
                let width = self.one_of(&[8, 16, 32, 64]);
                let ty = Type { scalar: Int(width), ..from };
                if ty == from {
                    return None;
                }
                let id = self.compute(op, ty, &[a]);
                self.keep(format!("{op:?} from {from:?}"), ty, id);
            }
            5 => {
                let op = self.one_of(&[Op::ConvertUToF, Op::ConvertSToF]);
                let (from, a) = self.value(is_int)?;
                let width = self.one_of(&[32, 64]);
                let ty = Type { scalar: Float(width), ..from };
                let id = self.compute(op, ty, &[a]);
                let mode = self.rounding(id);
                self.keep(format!("{op:?}{mode} from {from:?}"), ty, id);
            }
            6 => {
                let op = self.one_of(&[Op::ConvertFToU, Op::ConvertFToS]);
                let (from, a) = self.value(is_float)?;
                let width = self.one_of(&[8, 16, 32, 64]);
                let ty = Type { scalar: Int(width), ..from };
                // The conversion of NaN is undefined, and so is that of values out of range unless it
                // saturates.
                let is_nan = self.compute(Op::IsNan, Type { scalar: Bool, ..from }, &[a]);
                let zero = self.constant(from, 0);
                let a = self.compute(Op::Select, from, &[is_nan, zero, a]);
                let id = self.compute(op, ty, &[a]);
                self.b.decorate(id, Decoration::SaturatedConversion, []);
                let mode = self.rounding(id);
                self.keep(format!("{op:?}_sat{mode} from {from:?}"), ty, id);
            }
            7 => {
                let (from, a) = self.value(is_float)?;
                let scalar = if from.scalar == Float(32) { Float(64) } else { Float(32) };
                let ty = Type { scalar, ..from };
                let id = self.compute(Op::FConvert, ty, &[a]);
                let mode = if scalar == Float(32) { self.rounding(id) } else { "" };
                self.keep(format!("FConvert{mode} from {from:?}"), ty, id);
            }
            8 => {
                let op = self.one_of(&[Op::FAdd, Op::FSub, Op::FMul]);
                let (ty, a, b) = self.pair(is_float)?;
                let id = self.compute(op, ty, &[a, b]);
                self.keep(format!("{op:?}"), ty, id);
            }
            9 => {
                let (ty, a) = self.value(is_float)?;
                let ops = [
                    Std::fabs,
                    Std::floor,
                    Std::ceil,
                    Std::trunc,
                    Std::rint,
                    Std::round,
                    Std::sign,
                ];
                let op = self.one_of(&ops);
                let id = self.extended(op, ty, &[a]);
                self.keep(format!("{op:?}"), ty, id);
            }
            10 => {
                let ops = [
                    Std::s_min,
                    Std::s_max,
                    Std::u_min,
                    Std::u_max,
                    Std::s_add_sat,
                    Std::u_add_sat,
                    Std::s_sub_sat,
                    Std::u_sub_sat,
                    Std::s_hadd,
                    Std::u_hadd,
                    Std::s_rhadd,
                    Std::u_rhadd,
                    Std::s_mul_hi,
                    Std::u_mul_hi,
                    Std::s_abs_diff,
                    Std::u_abs_diff,
                    Std::rotate,
                ];
                let op = self.one_of(&ops);
                let (ty, a, b) = self.pair(is_int)?;
                let id = self.extended(op, ty, &[a, b]);
                self.keep(format!("{op:?}"), ty, id);
            }
            11 => {
                let (ty, a) = self.value(is_int)?;
                let op = self.one_of(&[Std::s_abs, Std::clz, Std::popcount, Std::ctz]);
                let id = self.extended(op, ty, &[a]);
                self.keep(format!("{op:?}"), ty, id);
            }
            12 => self.compare_and_select()?,
            _ => self.vectors()?,
        }
        Some(())
    }

    /// Decorates a conversion with a random rounding mode, or leaves the default.
    fn rounding(&mut self, id: Word) -> &'static str {
        let (mode, name) = self.one_of(&[
            (None, ""),
            (Some(FPRoundingMode::RTE), "_rte"),
            (Some(FPRoundingMode::RTZ), "_rtz"),
            (Some(FPRoundingMode::RTP), "_rtp"),
            (Some(FPRoundingMode::RTN), "_rtn"),
        ]);
        if let Some(mode) = mode {
            self.b.decorate(id, Decoration::FPRoundingMode, [Operand::FPRoundingMode(mode)]);
        }
        name
    }

    fn compare_and_select(&mut self) -> Option<()> {
        let of_ints = [
            Op::IEqual,
            Op::INotEqual,
            Op::UGreaterThan,
            Op::SGreaterThan,
            Op::UGreaterThanEqual,
            Op::SGreaterThanEqual,
            Op::ULessThan,
            Op::SLessThan,
            Op::ULessThanEqual,
            Op::SLessThanEqual,
        ];
        let of_floats = [
            Op::FOrdEqual,
            Op::FUnordEqual,
            Op::FOrdNotEqual,
            Op::FUnordNotEqual,
            Op::FOrdLessThan,
            Op::FUnordLessThan,
            Op::FOrdGreaterThan,
            Op::FUnordGreaterThan,
            Op::FOrdLessThanEqual,
            Op::FUnordLessThanEqual,
            Op::FOrdGreaterThanEqual,
            Op::FUnordGreaterThanEqual,
            Op::Ordered,
            Op::Unordered,
        ];
        let of_one = [Op::IsNan, Op::IsInf, Op::IsFinite, Op::IsNormal, Op::SignBitSet];
        let (ty, a, b) = self.pair(|_| true)?;
        let to = Type { scalar: Bool, ..ty };
        let (op, id) = match ty.scalar {
            Bool => {
                let ops = [Op::LogicalAnd, Op::LogicalOr, Op::LogicalEqual, Op::LogicalNotEqual];
                let op = self.one_of(&ops);
                let id = self.compute(op, to, &[a, b]);
                (op, self.compute(Op::LogicalNot, to, &[id]))
            }
            Int(_) => {
                let op = self.one_of(&of_ints);
                (op, self.compute(op, to, &[a, b]))
            }
            Float(_) if self.random.u8(..) < 80 => {
                let op = self.one_of(&of_one);
                (op, self.compute(op, to, &[a]))
            }
            Float(_) => {
                let op = self.one_of(&of_floats);
                (op, self.compute(op, to, &[a, b]))
            }
        };
        self.keep(format!("{op:?} of {ty:?}"), to, id);
        let (ty, a, b) = self.pair(|other| other.lanes == ty.lanes)?;
        let id = self.compute(Op::Select, ty, &[id, a, b]);
        self.keep("Select".to_owned(), ty, id);
        Some(())
    }

    fn vectors(&mut self) -> Option<()> {
        let (ty, a, b) = self.pair(|_| true)?;
        if ty.lanes == 1 {
            let to = Type { lanes: self.one_of(&[2, 3, 4]), ..ty };
            let mut parts = vec![a, b];
            while parts.len() < to.lanes as usize {
                parts.push(self.value(|other| other == ty)?.1);
            }
            let id = self.compute(Op::CompositeConstruct, to, &parts);
            self.keep("CompositeConstruct".to_owned(), to, id);
            return Some(());
        }
        match self.random.u8(0..4) {
            0 if ty.scalar == Bool => {
                let op = self.one_of(&[Op::Any, Op::All]);
                let to = Type { lanes: 1, ..ty };
                let id = self.compute(op, to, &[a]);
                self.keep(format!("{op:?}"), to, id);
            }
            0 | 1 => {
                let to = Type { lanes: self.one_of(&[2, 3, 4]), ..ty };
                let mut operands = vec![Operand::IdRef(a), Operand::IdRef(b)];
                for _ in 0..to.lanes {
                    operands.push(Operand::LiteralBit32(self.random.u32(0..2 * ty.lanes)));
                }
                let id = self.push(Op::VectorShuffle, to, operands);
                self.keep(format!("VectorShuffle of {ty:?}"), to, id);
            }
            2 => {
                let one = self.value(|other| other == Type { lanes: 1, ..ty })?.1;
                let at = Operand::LiteralBit32(self.random.u32(0..ty.lanes));
                let id = self.push(
                    Op::CompositeInsert,
                    ty,
                    [Operand::IdRef(one), Operand::IdRef(a), at],
                );
                self.keep("CompositeInsert".to_owned(), ty, id);
            }
            _ => {
                let to = Type { lanes: 1, ..ty };
                let at = Operand::LiteralBit32(self.random.u32(0..ty.lanes));
                let id = self.push(Op::CompositeExtract, to, [Operand::IdRef(a), at]);
                self.keep("CompositeExtract".to_owned(), to, id);
            }
        }
        Some(())
    }

    /// Returns the bits of a value's last component, with one representation for all NaNs.
    fn bits(&mut self, ty: Type, mut id: Word) -> Word {
        let one = Type { lanes: 1, ..ty };
        let long = Type { scalar: Int(64), lanes: 1 };
        if ty.lanes > 1 {
            let at = Operand::LiteralBit32(ty.lanes - 1);
            id = self.push(Op::CompositeExtract, one, [Operand::IdRef(id), at]);
        }
        match ty.scalar {
            Int(64) => id,
            Int(_) => self.compute(Op::UConvert, long, &[id]),
            Bool => {
                let (yes, no) = (self.constant(long, 1), self.constant(long, 0));
                self.compute(Op::Select, long, &[id, yes, no])
            }
            Float(width) => {
                let int = Type { scalar: Int(width), lanes: 1 };
                let bits = self.compute(Op::Bitcast, int, &[id]);
                let is_nan = self.compute(Op::IsNan, Type { scalar: Bool, lanes: 1 }, &[id]);
                let nan = self.constant(int, 0x7fc0_0000);
                let bits = self.compute(Op::Select, int, &[is_nan, nan, bits]);
                if width == 64 { bits } else { self.compute(Op::UConvert, long, &[bits]) }
            }
        }
    }

    fn place(&mut self, pointer: Word, base: Word, item: Word, slot: usize) -> Word {
        let long = Type { scalar: Int(64), lanes: 1 };
        let slot = self.constant(long, slot as u64);
        let at = self.compute(Op::IAdd, long, &[item, slot]);
        let id = self.b.in_bounds_ptr_access_chain(pointer, None, base, at, []);
        id.expect("a block is open")
    }

    /// Adds a kernel. Returns the number of values that it writes for each work-item.
    fn kernel(&mut self, name: &str, work_item: Word) -> usize {
        let long = Type { scalar: Int(64), lanes: 1 };
        let (void, long_ty) = (self.b.type_void(), self.ty(long));
        let pointer = self.b.type_pointer(None, StorageClass::CrossWorkgroup, long_ty);
        let signature = self.b.type_function(void, [pointer, pointer]);
        let id = self.b.begin_function(void, None, FunctionControl::NONE, signature);
        let id = id.expect("none is open");
        let to = self.b.function_parameter(pointer).expect("a function is open");
        let from = self.b.function_parameter(pointer).expect("a function is open");
        self.b.begin_block(None).expect("a function is open");
        let three = self.ty(Type { lanes: 3, ..long });
        let ids = self.b.load(three, None, work_item, None, []).expect("a block is open");
        let item = self.b.composite_extract(long_ty, None, ids, [0]).expect("a block is open");
        let inputs = self.constant(long, INPUTS as u64);
        let first = self.compute(Op::IMul, long, &[item, inputs]);
        self.values.clear();
        self.steps.clear();
        for slot in 0..INPUTS {
            let place = self.place(pointer, from, first, slot);
            let value = self.b.load(long_ty, None, place, None, []).expect("a block is open");
            let as_type = |scalar| Type { scalar, lanes: 1 };
            match slot {
                0 => self.keep("input".to_owned(), long, value),
                1 => {
                    let ty = as_type(Float(64));
                    let id = self.compute(Op::Bitcast, ty, &[value]);
                    self.keep("input".to_owned(), ty, id);
                }
                _ => {
                    let width = [32, 32, 16, 8][slot - 2];
                    let ty = as_type(Int(width));
                    let id = self.compute(Op::UConvert, ty, &[value]);
                    self.keep("input".to_owned(), ty, id);
                    if width == 32 {
                        let ty = as_type(Float(32));
                        let id = self.compute(Op::Bitcast, ty, &[id]);
                        self.keep("input".to_owned(), ty, id);
                    }
                }
            }
        }
        for _ in 0..STEPS {
            // If no value fits, the next step is taken.
            let _ = self.step();
        }
        let count = self.values.len();
        let counted = self.constant(long, count as u64);
        let first = self.compute(Op::IMul, long, &[item, counted]);
        for (slot, (ty, value)) in self.values.clone().into_iter().enumerate() {
            let bits = self.bits(ty, value);
            let place = self.place(pointer, to, first, slot);
            self.b.store(place, bits, None, []).expect("a block is open");
        }
        self.b.ret().expect("a block is open");
        self.b.end_function().expect("it was begun");
        self.b.entry_point(ExecutionModel::Kernel, id, name, [work_item]);
        self.b.execution_mode(id, ExecutionMode::ContractionOff, []);
        count
    }
}

/// Returns a module, and the instructions that created each value of each kernel.
fn module(seed: u64) -> (Vec<u8>, Vec<Vec<String>>) {
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
    let std = b.ext_inst_import("OpenCL.std");
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    let random = fastrand::Rng::with_seed(seed);
    let mut generator = Generator { b, random, std, values: Vec::new(), steps: Vec::new() };
    let three = generator.ty(Type { scalar: Int(64), lanes: 3 });
    let input = generator.b.type_pointer(None, StorageClass::Input, three);
    let work_item = generator.b.variable(input, None, StorageClass::Input, None);
    let builtin = [Operand::BuiltIn(BuiltIn::GlobalInvocationId)];
    generator.b.decorate(work_item, Decoration::BuiltIn, builtin);
    let mut kernels = Vec::new();
    for at in 0..KERNELS {
        generator.kernel(&format!("kernel{at}"), work_item);
        kernels.push(generator.steps.clone());
    }
    let words = generator.b.module().assemble();
    (bytemuck::cast_slice(&words).to_vec(), kernels)
}

/// Returns edge cases of every type, followed by arbitrary bits.
fn inputs() -> Vec<u64> {
    let edges = [
        0,
        1,
        u64::MAX,
        1 << 63,
        i64::MAX as u64,
        0x8000_0000,
        0x7fff_ffff,
        0x80,
        0x7f,
        0x8000,
        (-0.0_f32).to_bits().into(),
        f32::NAN.to_bits().into(),
        f32::INFINITY.to_bits().into(),
        1.5_f32.to_bits().into(),
        (-2.5e9_f32).to_bits().into(),
        1.5_f64.to_bits(),
        (-1e300_f64).to_bits(),
        f64::INFINITY.to_bits(),
        f64::NAN.to_bits(),
        1e-3_f64.to_bits(),
        0.3_f32.to_bits().into(),
        300.7_f64.to_bits(),
        (-77.5_f32).to_bits().into(),
    ];
    let mut random = fastrand::Rng::with_seed(1);
    let mut any = || match random.u8(0..3) {
        0 => random.u64(..),
        1 => edges[random.usize(..edges.len())],
        _ => {
            ((random.f64() - 0.5) * 1e5).to_bits()
                ^ u64::from(((random.f32() - 0.5) * 1e3).to_bits())
        }
    };
    (0..ITEMS * INPUTS).map(|_| any()).collect()
}

async fn results(rt: &Runtime, module: &Module, kernels: &[Vec<String>]) -> Vec<Vec<u64>> {
    let program = rt.build(module).await.expect("it builds");
    let mut all = Vec::new();
    for (at, steps) in kernels.iter().enumerate() {
        // SAFETY: it reads and writes as many numbers of each work-item as the buffers have.
        let kernel = unsafe { program.kernel(&format!("kernel{at}")) }.expect("it is there");
        let out = rt.buffer_from(vec![0_u64; ITEMS * steps.len()]).await.expect("memory");
        let input = rt.buffer_from(inputs()).await.expect("memory");
        rt.queue().submit(kernel.launch(ITEMS).args((&out, &input))).expect("it is launched");
        all.push(rt.queue().read(&out).await.expect("it ran"));
    }
    all
}

#[test]
fn random_arithmetic_gives_the_same_bits_as_the_drivers_own_build() {
    let differences = Mutex::new(Vec::new());
    let seed: u64 = std::env::var("KILN_SEED").map_or(1, |seed| seed.parse().expect("a number"));
    let seeds: Vec<_> = (seed..seed + MODULES).collect();
    support::at_once(&seeds, |&seed| {
        let (bytes, kernels) = module(seed);
        let text = emit(&bytes).expect("all of it can be expressed");
        let found = RefCell::new(Vec::new());
        futures::executor::block_on(support::on_each_device(async |rt| {
            let device = rt.device().to_string();
            let mut modules = vec![("emitted", Module::opencl_c(text.clone()))];
            if rt.device().formats.contains(&ModuleFormat::SpirV) {
                modules.push(("SPIR-V", Module::spirv(bytes.clone()).expect("a module")));
            }
            for (form, module) in modules {
                let results = results(&rt, &module, &kernels).await;
                found.borrow_mut().push((format!("{device}, {form}"), results));
            }
        }));
        let found = found.into_inner();
        for (form, results) in found.iter().skip(1) {
            for (kernel, steps) in kernels.iter().enumerate() {
                let pairs = found[0].1[kernel].iter().zip(&results[kernel]).enumerate();
                // Only the first difference is reported: others may follow from it.
                let first =
                    pairs.filter(|(_, (a, b))| a != b).min_by_key(|(at, _)| at % steps.len());
                if let Some((at, (a, b))) = first {
                    let step = at % steps.len();
                    differences.lock().expect("no thread panicked").push(format!(
                        "seed {seed}, kernel {kernel}, value {step} ({}): {a:#x}, {form} {b:#x}",
                        steps[step]
                    ));
                }
            }
        }
    });
    let differences = differences.into_inner().expect("no thread panicked");
    assert!(differences.is_empty(), "{differences:#?}");
}
