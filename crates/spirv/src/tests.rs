#![allow(clippy::unwrap_used)]

use rspirv::spirv::{Decoration, FunctionParameterAttribute, MAGIC_NUMBER, Op, StorageClass};

mod edit;
mod functions;
mod meaning;
mod volatile;

use super::{Reflection, exported_names, has_magic, private_memory, read};
use crate::error::ErrorKind;
use crate::signature::{Access, AddressSpace, Parameter};

const SAXPY: &[u8] = include_bytes!("../../../tests/data/saxpy.spv");
const MIXED: &[u8] = include_bytes!("../../../tests/data/mixed.spv");
const INFERRED: &[u8] = include_bytes!("../../../tests/data/inferred.spv");

/// Modules from several compilers, optimisers and formats of debug information, and some written by hand.
const ALL: [(&str, &[u8]); 15] = [
    ("saxpy", SAXPY),
    ("mixed", MIXED),
    ("inferred", INFERRED),
    ("application", include_bytes!("../../../tests/data/application.spv")),
    ("library", include_bytes!("../../../tests/data/library.spv")),
    ("library_O0", include_bytes!("../../../tests/data/library_O0.spv")),
    ("library_debug", include_bytes!("../../../tests/data/library_debug.spv")),
    ("library_legacy_debug", include_bytes!("../../../tests/data/library_legacy_debug.spv")),
    ("application_intel", include_bytes!("../../../tests/data/application_intel.spv")),
    ("library_intel", include_bytes!("../../../tests/data/library_intel.spv")),
    ("library_intel_debug", include_bytes!("../../../tests/data/library_intel_debug.spv")),
    ("application_inferred", include_bytes!("../../../tests/data/application_inferred.spv")),
    ("library_inferred", include_bytes!("../../../tests/data/library_inferred.spv")),
    ("switches", include_bytes!("../../../tests/data/switches.spv")),
    ("operations", include_bytes!("../../../tests/data/operations.spv")),
];

const KERNEL: u32 = rspirv::spirv::ExecutionModel::Kernel as u32;
const UNKNOWN_OPCODE: u32 = 0xfffe;

/// Builder of a module, word by word.
struct Builder(Vec<u32>);

impl Builder {
    fn new() -> Self {
        Self(vec![MAGIC_NUMBER, 0x0001_0200, 0, 100, 0])
    }

    fn op(self, op: Op, operands: &[u32]) -> Self {
        self.raw(op as u32, operands)
    }

    fn raw(mut self, opcode: u32, operands: &[u32]) -> Self {
        let count = u32::try_from(operands.len() + 1).unwrap();
        self.0.push(count << 16 | opcode);
        self.0.extend(operands);
        self
    }

    /// Adds an instruction with a literal string as the last operand.
    fn text(self, op: Op, operands: &[u32], text: &str) -> Self {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(text.len() / 4 * 4 + 4, 0);
        let words = bytes.as_chunks().0.iter().copied().map(u32::from_le_bytes);
        let operands: Vec<_> = operands.iter().copied().chain(words).collect();
        self.op(op, &operands)
    }

    fn decorate(self, id: u32, decoration: Decoration, operand: u32) -> Self {
        self.op(Op::Decorate, &[id, decoration as u32, operand])
    }

    /// Adds the entry point of a kernel with one parameter, whose type is 1 and whose id is 2.
    fn kernel(self, name: &str) -> Self {
        self.text(Op::EntryPoint, &[KERNEL, 3], name)
    }

    fn function(self) -> Self {
        self.op(Op::Function, &[90, 3, 0, 91])
            .op(Op::FunctionParameter, &[1, 2])
            .op(Op::FunctionEnd, &[])
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn module(&self) -> Reflection {
        read(self.bytes()).unwrap().1
    }
}

/// Returns the parameter of a kernel, whose type is declared by `op` and `operands`.
fn parameter(op: Op, operands: &[u32]) -> Parameter {
    let operands = [&[1], operands].concat();
    parameter_of(&Builder::new().kernel("k").op(op, &operands).function())
}

fn parameter_of(module: &Builder) -> Parameter {
    let module = module.module();
    let [parameter] = module.parameters("k").unwrap() else {
        panic!("one parameter: {module:?}");
    };
    parameter.clone()
}

type Expected = (&'static str, Option<&'static str>, Option<AddressSpace>, Option<Access>);

#[track_caller]
fn assert_parameters(module: &Reflection, kernel: &str, expected: &[Expected]) {
    let found: Vec<_> = module.parameters(kernel).unwrap().iter().collect();
    assert_eq!(found.len(), expected.len());
    for (found, &(name, type_name, address_space, access)) in found.into_iter().zip(expected) {
        let expected = Parameter {
            name: Some(name.to_owned()),
            type_name: type_name.map(str::to_owned),
            address_space,
            access,
            // Sizes have a test of their own.
            size: found.size,
        };
        assert_eq!(found, &expected);
    }
}

#[track_caller]
fn assert_invalid(bytes: impl Into<Vec<u8>>, parts: &[&str]) {
    let error = read(bytes.into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidModule);
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

fn swapped(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(4).flat_map(|word| word.iter().rev().copied()).collect()
}

const GLOBAL: Option<AddressSpace> = Some(AddressSpace::Global);
const CONSTANT: Option<AddressSpace> = Some(AddressSpace::Constant);
const LOCAL: Option<AddressSpace> = Some(AddressSpace::Local);
const PRIVATE: Option<AddressSpace> = Some(AddressSpace::Private);
const READS: Option<Access> = Some(Access::Read);
const READS_AND_WRITES: Option<Access> = Some(Access::ReadWrite);

#[test]
fn saxpy_is_reflected_completely() {
    let (bytes, module) = read(SAXPY.to_vec()).unwrap();
    assert_eq!(bytes, SAXPY);
    assert_eq!(module.kernels, ["saxpy"]);
    assert_parameters(
        &module,
        "saxpy",
        &[
            ("a", Some("float"), PRIVATE, None),
            ("x", Some("float*"), GLOBAL, READS),
            ("y", Some("float*"), GLOBAL, READS_AND_WRITES),
        ],
    );
    assert_eq!(module.specialization_constants, []);
    assert_eq!(module.parameters("saxp"), None);
}

#[test]
fn types_of_the_source_are_used_where_the_module_has_them() {
    let (_, module) = read(MIXED.to_vec()).unwrap();
    assert_eq!(module.kernels, ["mixed", "clear"]);
    assert_parameters(
        &module,
        "mixed",
        &[
            ("count", Some("int"), PRIVATE, None),
            ("seed", Some("uint"), PRIVATE, None),
            ("bias", Some("float4"), PRIVATE, None),
            ("settings", Some("Settings"), PRIVATE, None),
            ("table", Some("float*"), CONSTANT, READS),
            ("scratch", Some("float*"), LOCAL, None),
            ("input", Some("uchar*"), GLOBAL, READS),
            ("output", Some("uint2*"), GLOBAL, READS_AND_WRITES),
        ],
    );
    assert_parameters(&module, "clear", &[("output", Some("uint2*"), GLOBAL, READS_AND_WRITES)]);
}

/// In this module, `global const float *input` is a pointer to `float4`, `global Interval *output`
/// one to `float`, and `int count` an integer without a sign.
#[test]
fn inferred_types_are_not_taken_for_those_of_the_source() {
    let (_, module) = read(INFERRED.to_vec()).unwrap();
    assert_parameters(
        &module,
        "inferred",
        &[
            ("origin", Some("float3"), PRIVATE, None),
            ("count", None, PRIVATE, None),
            ("interval", Some("struct Interval"), PRIVATE, None),
            ("scratch", None, LOCAL, None),
            ("table", None, CONSTANT, READS),
            ("input", None, GLOBAL, READS),
            ("output", None, GLOBAL, READS_AND_WRITES),
            ("source", Some("image2d_t"), GLOBAL, READS),
            ("target", Some("image2d_array_t"), GLOBAL, READS_AND_WRITES),
            ("sampler", Some("sampler_t"), PRIVATE, None),
        ],
    );
}

#[test]
fn big_endian_modules_are_byte_swapped() {
    for original in [SAXPY, MIXED, INFERRED] {
        let big_endian = swapped(original);
        assert!(has_magic(&big_endian) && has_magic(original));
        assert_eq!(read(big_endian).unwrap(), read(original.to_vec()).unwrap());
    }
}

#[test]
fn inputs_other_than_modules_are_refused_with_advice() {
    assert!(!has_magic(b"") && !has_magic(b"\x03\x02\x23") && !has_magic(b"kernel"));
    assert_invalid([], &["empty", ".spv"]);
    assert_invalid(*b"kernel void f() {}", &["[6b, 65, 72, 6e]", "0x07230203", "opencl_c"]);
    assert_invalid(*b"BC\xC0\xDE\0\0\0\0", &["LLVM bitcode", "llvm-spirv"]);
    assert_invalid(*b"\x7fELF\0\0\0\0", &["Module::native"]);
    assert_invalid(&SAXPY[..SAXPY.len() - 1], &["1163 bytes", "words of 4 bytes", "whole file"]);
    assert_invalid(&SAXPY[..4], &["4 bytes", "header alone has 20 bytes"]);
    assert_invalid(&SAXPY[..16], &["16 bytes", "header alone has 20 bytes"]);
}

#[test]
fn a_bad_header_is_refused() {
    let with = |word: usize, value| {
        let mut builder = Builder::new();
        builder.0[word] = value;
        builder.bytes()
    };
    assert_invalid(with(1, 0x0001_0700), &["1.7", "1.0 to 1.6"]);
    assert_invalid(with(1, 0x0002_0000), &["2.0", "1.0 to 1.6"]);
    assert_invalid(with(1, 0x0001_0001), &["0x00010001"]);
    assert_invalid(with(3, 0), &["ids are below 0"]);
    for minor in 0..=6 {
        read(with(1, 0x0001_0000 | minor << 8)).unwrap();
    }
    // Nothing is sized by the bound.
    assert_eq!(read(with(3, u32::MAX)).unwrap().1.kernels, [""; 0]);
}

#[test]
fn truncated_modules_are_refused() {
    let zero = Builder::new().op(Op::TypeVoid, &[1]).raw(0, &[]);
    let mut bytes = zero.bytes();
    let end = bytes.len();
    bytes[end - 4..].fill(0);
    assert_invalid(bytes, &["word 7", "OpNop", "word count of 0"]);

    let name = Builder::new().text(Op::Name, &[1], "accumulator").bytes();
    assert_invalid(
        &name[..name.len() - 4],
        &["word 5", "OpName", "count of 5", "only 4 words are left"],
    );
    // OpFunctionEnd is the last word.
    assert_invalid(&SAXPY[..SAXPY.len() - 4], &["no OpFunctionEnd", "truncated"]);
    for length in (24..SAXPY.len()).step_by(4) {
        if let Ok((bytes, _)) = read(SAXPY[..length].to_vec()) {
            assert_eq!(bytes.len(), length);
        }
    }
}

#[test]
fn unknown_instructions_are_skipped() {
    let module = Builder::new()
        .raw(UNKNOWN_OPCODE, &[1, 2, 3])
        .kernel("k")
        .text(Op::Extension, &[], "SPV_EXT_of_tomorrow")
        .op(Op::TypeFloat, &[1, 32])
        .raw(UNKNOWN_OPCODE, &[])
        .function();
    assert_eq!(parameter_of(&module).type_name.as_deref(), Some("float"));
    let type_unknown = Builder::new().kernel("k").raw(UNKNOWN_OPCODE, &[1]).function();
    assert_eq!(parameter_of(&type_unknown), Parameter::default());
}

#[test]
fn instructions_without_operands_are_ignored() {
    let mut builder = Builder::new().kernel("k");
    for opcode in 0..8000 {
        builder = builder.raw(opcode, &[]).raw(opcode, &[3]).raw(opcode, &[3, 3]);
    }
    assert_eq!(builder.module().kernels, ["k"]);
}

#[test]
fn only_kernels_with_readable_names_are_listed_each_once() {
    let module = Builder::new()
        .text(Op::EntryPoint, &[5, 4], "compute_shader")
        .kernel("k")
        .kernel("alias")
        .kernel("k")
        .op(Op::EntryPoint, &[KERNEL, 3, 0x0000_ffff])
        .op(Op::EntryPoint, &[KERNEL, 3, 0x6161_6161])
        .text(Op::EntryPoint, &[KERNEL, 7], "without_function")
        .op(Op::TypeFloat, &[1, 32])
        .function()
        .module();
    assert_eq!(module.kernels, ["k", "alias", "without_function"]);
    assert_eq!(module.parameters("k"), module.parameters("alias"));
    assert_eq!(module.parameters("k").map(<[_]>::len), Some(1));
    assert_eq!(module.parameters("without_function"), None);
}

#[test]
fn values_are_named_where_their_type_is_certain() {
    let named = |op, operands: &[u32]| {
        let parameter = parameter(op, operands);
        assert_eq!((parameter.address_space, parameter.access), (PRIVATE, None));
        parameter.type_name
    };
    assert_eq!(named(Op::TypeFloat, &[16]).as_deref(), Some("half"));
    assert_eq!(named(Op::TypeFloat, &[64]).as_deref(), Some("double"));
    assert_eq!(named(Op::TypeInt, &[32, 0]), None);
    assert_eq!(named(Op::TypeInt, &[32, 1]).as_deref(), Some("int"));
    assert_eq!(named(Op::TypeInt, &[24, 1]), None);
    assert_eq!(named(Op::TypeStruct, &[]), None);
    assert_eq!(named(Op::TypeQueue, &[]).as_deref(), Some("queue_t"));
    // bfloat16: a format with an encoding of its own.
    assert_eq!(parameter(Op::TypeFloat, &[16, 0]), Parameter::default());

    let vector = |component: Op, operands: &[u32], count| {
        let module = Builder::new().kernel("k").op(component, &[&[5], operands].concat());
        parameter_of(&module.op(Op::TypeVector, &[1, 5, count]).function()).type_name
    };
    assert_eq!(vector(Op::TypeFloat, &[32], 16).as_deref(), Some("float16"));
    assert_eq!(vector(Op::TypeFloat, &[32], 5), None);
    assert_eq!(vector(Op::TypeInt, &[32, 0], 4), None);
    assert_eq!(vector(Op::TypeInt, &[8, 1], 4).as_deref(), Some("char4"));
    // A type that is made of itself.
    assert_eq!(named(Op::TypeVector, &[1, 4]), None);
}

#[test]
fn numbers_and_vectors_have_sizes_without_names_of_the_source() {
    for (op, operands, size) in [
        (Op::TypeInt, &[8, 0][..], Some(1)),
        (Op::TypeInt, &[16, 1], Some(2)),
        (Op::TypeInt, &[32, 0], Some(4)),
        (Op::TypeFloat, &[64], Some(8)),
        (Op::TypeInt, &[24, 0], None),
        (Op::TypeStruct, &[], None),
        (Op::TypePointer, &[StorageClass::CrossWorkgroup as u32, 9], None),
        (Op::TypeSampler, &[], None),
    ] {
        assert_eq!(parameter(op, operands).size, size, "{op:?} {operands:?}");
    }
    for (count, size) in [(2, Some(8)), (3, Some(16)), (4, Some(16)), (16, Some(64)), (5, None)] {
        let module = Builder::new().op(Op::TypeInt, &[9, 32, 0]).kernel("k");
        let module = module.op(Op::TypeVector, &[1, 9, count]).function();
        assert_eq!(parameter_of(&module).size, size, "{count} lanes");
    }
}

#[test]
fn structs_are_named_as_in_the_source() {
    let named = |name: &str| {
        let module = Builder::new().kernel("k").text(Op::Name, &[5], name);
        let module = module
            .decorate(2, Decoration::FuncParamAttr, FunctionParameterAttribute::ByVal as u32)
            .op(Op::TypeStruct, &[5])
            .op(Op::TypePointer, &[1, StorageClass::Function as u32, 5]);
        let parameter = parameter_of(&module.function());
        assert_eq!((parameter.address_space, parameter.access), (PRIVATE, None));
        parameter.type_name
    };
    assert_eq!(named("struct.Foo").as_deref(), Some("struct Foo"));
    assert_eq!(named("struct.Foo.12").as_deref(), Some("struct Foo"));
    assert_eq!(named("union.Bits").as_deref(), Some("union Bits"));
    assert_eq!(named("class.geometry::Ray").as_deref(), Some("class geometry::Ray"));
    for unclear in ["", "struct.", "struct.anon", "Foo", "spirv.Image", "{}"] {
        assert_eq!(named(unclear), None, "{unclear}");
    }
    assert_eq!(named(&format!("struct.{}", "x".repeat(100_000))), None);
}

#[test]
fn pointers_have_an_address_space_and_an_access() {
    let pointer = |class: StorageClass| {
        let typed = parameter(Op::TypePointer, &[class as u32, 5]);
        assert_eq!(typed, parameter(Op::TypeUntypedPointerKHR, &[class as u32]));
        assert_eq!(typed.type_name, None);
        (typed.address_space, typed.access)
    };
    assert_eq!(pointer(StorageClass::CrossWorkgroup), (GLOBAL, READS_AND_WRITES));
    assert_eq!(pointer(StorageClass::UniformConstant), (CONSTANT, READS));
    assert_eq!(pointer(StorageClass::Workgroup), (LOCAL, None));
    assert_eq!(pointer(StorageClass::Function), (None, None));
    assert_eq!(pointer(StorageClass::Generic), (None, None));
    assert_eq!(parameter(Op::TypePointer, &[0xdead_beef, 5]), Parameter::default());

    let decorated = |decoration, operands: &[u32]| {
        let operands = [&[2, decoration as u32], operands].concat();
        let module = Builder::new().kernel("k").op(Op::Decorate, &operands);
        let class = StorageClass::CrossWorkgroup as u32;
        parameter_of(&module.op(Op::TypePointer, &[1, class, 5]).function()).access
    };
    let attribute = |attribute| decorated(Decoration::FuncParamAttr, &[attribute as u32]);
    assert_eq!(decorated(Decoration::NonWritable, &[]), READS);
    assert_eq!(decorated(Decoration::NonReadable, &[]), READS_AND_WRITES);
    assert_eq!(attribute(FunctionParameterAttribute::NoWrite), READS);
    assert_eq!(attribute(FunctionParameterAttribute::NoReadWrite), READS);
    assert_eq!(attribute(FunctionParameterAttribute::NoAlias), READS_AND_WRITES);
}

#[test]
fn images_are_named_by_their_shape() {
    let image = |dim, depth, arrayed, multisampled, access: &[u32]| {
        let operands = [&[9, dim, depth, arrayed, multisampled, 0, 0], access].concat();
        let image = parameter(Op::TypeImage, &operands);
        assert_eq!(image.address_space, GLOBAL);
        (image.type_name.unwrap_or_default(), image.access)
    };
    let named = |name: &str, access| (name.to_owned(), access);
    assert_eq!(image(0, 0, 0, 0, &[0]), named("image1d_t", READS));
    assert_eq!(image(5, 0, 0, 0, &[1]), named("image1d_buffer_t", READS_AND_WRITES));
    assert_eq!(image(2, 0, 0, 0, &[]), named("image3d_t", READS_AND_WRITES));
    assert_eq!(image(1, 1, 1, 1, &[0]), named("image2d_array_msaa_depth_t", READS));
    assert_eq!(image(3, 0, 0, 0, &[0]), named("", READS));
}

#[test]
fn declared_types_belong_to_the_kernel_they_name() {
    let declared = |text: &str| {
        let module = Builder::new().kernel("k").text(Op::String, &[8], text);
        parameter_of(&module.op(Op::TypeInt, &[1, 32, 0]).function()).type_name
    };
    assert_eq!(declared("kernel_arg_type.k.uint,").as_deref(), Some("uint"));
    assert_eq!(declared("kernel_arg_type.k.uint").as_deref(), Some("uint"));
    for other in [
        "kernel_arg_type.k.uint,float*,",
        "kernel_arg_type.k.",
        "kernel_arg_type.k.,",
        "kernel_arg_type.k",
        "kernel_arg_type.k.l.uint,",
        "kernel_arg_type.l.uint,",
        "kernel_arg_type_qual.k.const,",
        "kernel_arg_types.k.uint,",
        "",
    ] {
        assert_eq!(declared(other), None, "{other}");
    }
    // The declared type of a pipe is that of its packets.
    let pipe = Builder::new().kernel("k").text(Op::String, &[8], "kernel_arg_type.k.int,");
    let pipe = parameter_of(&pipe.op(Op::TypePipe, &[1, 0]).function());
    assert_eq!((pipe.type_name, pipe.address_space), (None, GLOBAL));
}

#[test]
fn specialization_constants_are_read() {
    let module = Builder::new()
        .text(Op::Name, &[20], "width")
        .decorate(20, Decoration::SpecId, 7)
        .decorate(21, Decoration::SpecId, 3)
        .decorate(22, Decoration::SpecId, 4)
        .decorate(23, Decoration::SpecId, 5)
        .decorate(24, Decoration::SpecId, 0)
        .decorate(25, Decoration::SpecId, 7)
        // A decoration on a group, as older translators write it.
        .decorate(60, Decoration::SpecId, 6)
        .op(Op::DecorationGroup, &[60])
        .op(Op::GroupDecorate, &[60, 26])
        .op(Op::TypeInt, &[1, 32, 0])
        .op(Op::TypeInt, &[4, 16, 1])
        .op(Op::TypeInt, &[5, 64, 0])
        .op(Op::TypeFloat, &[6, 32])
        .op(Op::TypeBool, &[8])
        .op(Op::SpecConstant, &[1, 20, 16])
        .op(Op::SpecConstantTrue, &[8, 21])
        .op(Op::SpecConstantFalse, &[8, 22])
        .op(Op::SpecConstant, &[4, 23, -2_i32 as u32])
        .op(Op::SpecConstant, &[5, 24, 0x5566_7788, 0x1122_3344])
        .op(Op::SpecConstant, &[1, 25, 99])
        .op(Op::SpecConstant, &[6, 26, 1.5_f32.to_bits()])
        // A constant without a `SpecId` cannot be set from outside.
        .op(Op::SpecConstant, &[1, 27, 5])
        .module();
    let found: Vec<_> = module
        .specialization_constants
        .iter()
        .map(|c| (c.id, c.name.as_deref(), c.type_name.as_str(), c.default.as_slice()))
        .collect();
    assert_eq!(
        found,
        [
            (0, None, "ulong", 0x1122_3344_5566_7788_u64.to_le_bytes().as_slice()),
            (3, None, "bool", &[1]),
            (4, None, "bool", &[0]),
            (5, None, "short", &(-2_i16).to_le_bytes()),
            (6, None, "float", &1.5_f32.to_le_bytes()),
            (7, Some("width"), "uint", &16_u32.to_le_bytes()),
        ]
    );
}

#[test]
fn malformed_specialization_constants_are_left_out() {
    let count = |ty: Builder, op, operands: &[u32]| {
        let module = ty.decorate(20, Decoration::SpecId, 0).op(op, operands).module();
        module.specialization_constants.len()
    };
    let long = || Builder::new().op(Op::TypeInt, &[1, 64, 0]);
    assert_eq!(count(long(), Op::SpecConstant, &[1, 20, 5, 0]), 1);
    assert_eq!(count(long(), Op::SpecConstant, &[1, 20, 5]), 0);
    assert_eq!(count(long(), Op::SpecConstant, &[2, 20, 5, 0]), 0);
    assert_eq!(count(long(), Op::SpecConstantTrue, &[1, 20]), 0);
    assert_eq!(count(Builder::new().op(Op::TypeBool, &[1]), Op::SpecConstant, &[1, 20, 1]), 0);
    assert_eq!(
        count(Builder::new().op(Op::TypeInt, &[1, u32::MAX, 0]), Op::SpecConstant, &[1, 20, 1]),
        0
    );
}

#[test]
fn private_memory_is_counted_in_functions_other_than_kernels() {
    let function = StorageClass::Function as u32;
    let types = |module: Builder| {
        module
            .op(Op::TypeInt, &[1, 32, 0])
            .op(Op::TypeVector, &[2, 1, 3])
            .op(Op::Constant, &[1, 3, 100])
            .op(Op::SpecConstant, &[1, 4, 100])
            .op(Op::TypeArray, &[5, 1, 3])
            .op(Op::TypeArray, &[6, 1, 4])
            .op(Op::TypeStruct, &[7, 5, 2, 1])
            .op(Op::TypePointer, &[10, function, 1])
            .op(Op::TypePointer, &[16, function, 6])
            .op(Op::TypePointer, &[17, function, 7])
    };
    let variable = |module: Builder, ty: u32| module.op(Op::Variable, &[ty, 80, function]);
    let size = |module: Builder| private_memory(&module.op(Op::FunctionEnd, &[]).bytes());
    let kernel = |module: Builder| types(module.kernel("k")).op(Op::Function, &[90, 3, 0, 91]);
    let other = |module: Builder| types(module).op(Op::Function, &[90, 77, 0, 91]);

    assert_eq!(size(variable(kernel(Builder::new()), 17)), 0);
    let one = variable(other(Builder::new()), 17);
    assert_eq!(size(one), 400 + 16 + 4);
    let two = variable(variable(other(Builder::new()), 10), 10);
    assert_eq!(size(two), 4 + 4);
    // A specializable array can get any length, and an undeclared type can have any size.
    for unknown in [16, 99] {
        assert_eq!(size(variable(other(Builder::new()), unknown)), u64::MAX);
    }
}

/// Reads a module with many kernels of one function, whose many parameters have one type with a long name.
/// All of this together must cost only what each part costs alone.
#[test]
fn memory_is_linear_in_the_module() {
    let count = 20_000;
    let mut builder =
        Builder::new().text(Op::Name, &[1], &format!("struct.{}", "x".repeat(60_000)));
    for kernel in 0..count {
        builder = builder.kernel(&format!("k{kernel}"));
    }
    builder = builder.op(Op::TypeStruct, &[1]).op(Op::Function, &[90, 3, 0, 91]);
    for id in 0..count {
        builder = builder.op(Op::FunctionParameter, &[1, 100 + id]);
    }
    let module = builder.op(Op::FunctionEnd, &[]).module();
    assert_eq!(module.kernels.len(), count as usize);
    let (first, last) = (module.parameters("k0").unwrap(), module.parameters("k19999").unwrap());
    assert_eq!(first.len(), count as usize);
    assert!(std::ptr::eq(first, last));
    assert_eq!(first[0].type_name, None);
}

/// Damaged modules are rejected or read, but never cause a panic. An accepted module is accepted again.
#[test]
fn damage_does_not_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from((state >> 16) % below as u64).unwrap()
    };
    let mut accepted = 0;
    for round in 0..20_000 {
        let mut bytes = [SAXPY, MIXED, INFERRED][round % 3].to_vec();
        for _ in 0..random(8) {
            let at = random(bytes.len());
            bytes[at] = random(256) as u8;
        }
        // Half of the rounds change a whole word: the first word of an instruction, or an operand.
        if round % 2 == 0 {
            let at = random(bytes.len() / 4) * 4;
            let value = [0, 1, 0xffff, u32::MAX, random(400) as u32][random(5)];
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        if round % 5 == 0 {
            bytes.truncate(random(bytes.len() + 1));
        }
        match read(bytes) {
            Ok((bytes, module)) => {
                accepted += 1;
                assert_eq!(read(bytes).unwrap().1, module);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::InvalidModule),
        }
    }
    assert!(accepted > 1000, "only {accepted} were accepted");
}

#[test]
fn exported_names_are_read_without_the_functions() {
    let library = include_bytes!("../../../tests/data/library.spv");
    let end = library.len();
    for bytes in [&library[..], &library[..end - 16], &library[..end - 200]] {
        let names = exported_names(bytes).unwrap();
        // The translator also exports the function of the kernel.
        assert_eq!(names, ["table", "scale", "bump", "own"]);
    }
    assert_eq!(exported_names(&library[..24]).unwrap(), [""; 0]);
    assert_eq!(exported_names(&swapped(library)), None);
    for (name, bytes) in ALL {
        let probable = exported_names(bytes).unwrap();
        let exports = read(bytes.to_vec()).unwrap().1.exports;
        assert!(exports.iter().all(|it| probable.contains(&it.name.as_str())), "{name}");
    }
}
