//! Memory that is used to read and link SPIR-V modules, whatever they contain.

use kiln::internal::spirv::{link, reassemble};
use rspirv::spirv::{
    AddressingModel, Capability, Decoration, ExecutionMode, ExecutionModel, LinkageType,
    MAGIC_NUMBER, MemoryModel, Op,
};

use crate::{alone, peak};

#[track_caller]
fn assert_bounded(what: &str, bytes: usize, peak: usize) {
    // A part of the memory does not depend on the size.
    let bound = 12 * bytes + (16 << 10);
    assert!(
        peak <= bound,
        "{what}: {peak} bytes for {bytes}, {:.1} times",
        peak as f64 / bytes as f64
    );
}

/// Reads a module, and links it alone and with itself.
fn check(name: &str, library: &[u8]) {
    let mut module = library.to_vec();
    let kernel = Builder(Vec::new()).op(Op::EntryPoint, &[KERNEL, 3, name_of(0), 0]).bytes();
    module.splice(4 * HEAD..4 * HEAD, kernel);
    let bytes = module.clone();
    let peaks = peak(|| reassemble(bytes).expect("it is read"));
    assert_bounded(&format!("{name}, read"), module.len(), peaks);
    for keep_exports in [true, false] {
        let what = format!("{name}, linked, exports kept: {keep_exports}");
        let peaks = peak(|| link(&[(name, &module)], keep_exports).expect("it is linked"));
        assert_bounded(&what, module.len(), peaks);
    }
    // Without the kernel, which may be defined only once.
    let peaks = peak(|| link(&[(name, library), ("again", library)], true));
    assert_bounded(&format!("{name}, linked with itself"), 2 * library.len(), peaks);
}

/// Number of words before the entry points.
const HEAD: usize = 10;
const WORDS: usize = 1 << 15;
const KERNEL: u32 = ExecutionModel::Kernel as u32;
const LINKAGE: u32 = Decoration::LinkageAttributes as u32;
const EXPORT: u32 = LinkageType::Export as u32;

/// Builder of a module, word by word.
struct Builder(Vec<u32>);

impl Builder {
    fn new() -> Self {
        let module = Self(vec![MAGIC_NUMBER, 0x0001_0200, 0, 1 << 20, 0]);
        let module = module.op(Op::Capability, &[Capability::Linkage as u32]);
        module
            .op(Op::MemoryModel, &[AddressingModel::Physical64 as u32, MemoryModel::OpenCL as u32])
    }

    fn op(mut self, op: Op, operands: &[u32]) -> Self {
        self.0.push((operands.len() as u32 + 1) << 16 | op as u32);
        self.0.extend(operands);
        self
    }

    /// Fills a part of [`WORDS`]. `add` gets a number that differs each time.
    fn fill(mut self, part: usize, add: impl Fn(Self, u32) -> Self) -> Self {
        let end = self.0.len() + WORDS / part;
        for n in 0.. {
            if self.0.len() >= end {
                break;
            }
            self = add(self, n);
        }
        self
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// Returns a name of four letters.
fn name_of(n: u32) -> u32 {
    u32::from_le_bytes([0, 4, 8, 12].map(|bits| b'a' + (n >> bits & 15) as u8))
}

/// Returns modules that consist only of instructions that use the most memory for their size.
fn extremes() -> Vec<(&'static str, Builder)> {
    let new = Builder::new;
    let int = || new().op(Op::TypeInt, &[1, 32, 0]).op(Op::TypeFunction, &[2, 1]);
    let function =
        |module: Builder, n| module.op(Op::Function, &[1, n + 3, 0, 2]).op(Op::FunctionEnd, &[]);
    let types_and_functions = |module: Builder| {
        let module = module.op(Op::TypeInt, &[1, 32, 0]).op(Op::TypeFunction, &[2, 1]);
        module.fill(2, function)
    };
    // Structs that contain each other, as deeply as is allowed.
    let member = |n| if n % 250 == 0 { 1 } else { n + 3 };
    let mut far = new().fill(1, |m, n| m.op(Op::TypeVoid, &[n.wrapping_mul(0x9e37_79b1) >> 1]));
    far.0[3] = u32::MAX;
    vec![
        ("types", new().fill(1, |m, n| m.op(Op::TypeVoid, &[n]))),
        ("types, their ids far apart", far),
        ("structs", int().fill(1, |m, n| m.op(Op::TypeStruct, &[n + 4, member(n)]))),
        ("constants", int().fill(1, |m, n| m.op(Op::Constant, &[1, n + 3, n]))),
        ("names", new().fill(1, |m, n| m.op(Op::Name, &[n, 0x61]))),
        (
            "decorations",
            new().fill(1, |m, n| m.op(Op::Decorate, &[n, Decoration::Alignment as u32, 4])),
        ),
        ("strings", new().fill(1, |m, n| m.op(Op::String, &[n, 0]))),
        ("lines", new().fill(1, |m, _| m.op(Op::NoLine, &[]))),
        ("functions", int().fill(1, function)),
        (
            "labels",
            int()
                .op(Op::Function, &[1, 3, 0, 2])
                .fill(1, |m, n| m.op(Op::Label, &[n + 4]))
                .op(Op::FunctionEnd, &[]),
        ),
        (
            "exports",
            types_and_functions(
                new().fill(2, |m, n| m.op(Op::Decorate, &[n + 3, LINKAGE, name_of(n), 0, EXPORT])),
            ),
        ),
        (
            "kernels",
            types_and_functions(
                new().fill(2, |m, n| m.op(Op::EntryPoint, &[KERNEL, n + 3, name_of(n + 1), 0])),
            ),
        ),
        (
            "execution modes",
            new().fill(1, |m, _| {
                m.op(Op::ExecutionMode, &[3, ExecutionMode::ContractionOff as u32])
            }),
        ),
        (
            "specialization constants",
            new()
                .fill(2, |m, n| m.op(Op::Decorate, &[n + 3, Decoration::SpecId as u32, n]))
                .op(Op::TypeBool, &[1])
                .fill(2, |m, n| m.op(Op::SpecConstantTrue, &[1, n + 3])),
        ),
        (
            "members of a group",
            new()
                .op(Op::Decorate, &[1, Decoration::Alignment as u32, 4])
                .op(Op::DecorationGroup, &[1])
                .fill(1, |m, n| m.op(Op::GroupDecorate, &[1, n])),
        ),
        (
            "code",
            int()
                .op(Op::Function, &[1, 3, 0, 2])
                .op(Op::Label, &[4])
                .fill(1, |m, n| m.op(Op::IAdd, &[1, n + 5, n + 4, n + 4]))
                .op(Op::FunctionEnd, &[]),
        ),
    ]
}

#[test]
fn memory_is_at_most_twelve_times_the_module() {
    let _alone = alone();
    // The tables of the grammar are created once and kept.
    let first = Builder::new().op(Op::TypeVoid, &[1]).bytes();
    assert!(link(&[("first", &first)], false).is_ok());
    for (name, module) in extremes() {
        check(name, &module.bytes());
    }
    // Small modules that claim to be large.
    for mut claimed in [
        Builder::new().op(Op::TypeVoid, &[u32::MAX - 1]),
        Builder::new()
            .op(Op::TypeInt, &[1, 32, 0])
            .op(Op::Constant, &[1, 2, u32::MAX])
            .op(Op::TypeArray, &[3, 1, 2]),
        Builder::new().op(Op::TypeFloat, &[1, 32]).op(Op::TypeVector, &[2, 1, u32::MAX]),
        Builder::new().op(Op::TypeInt, &[1, u32::MAX, 0]).op(Op::Constant, &[1, 2, 0]),
    ] {
        claimed.0[3] = u32::MAX;
        check("small, but claims to be large", &claimed.bytes());
    }
}
