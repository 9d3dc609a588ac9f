//! Claims of modules that compilers take for granted: those that are not covered are refused by name.

use kiln_spirv::edit::{Section, Stream, View};
use rspirv::binary::Assemble as _;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv::{
    AddressingModel, Capability, Decoration, ExecutionModel, FPFastMathMode, FunctionControl,
    MemoryAccess, MemoryModel, Op, StorageClass,
};

use super::*;
use crate::transform::merge::set_control;

const SAXPY: &[u8] = include_bytes!("../../../../../tests/data/saxpy.spv");

/// Returns the module with changes, and the ids of its kernel's parameters.
fn changed(change: impl FnOnce(&mut Module, &[u32])) -> Module {
    let mut module = Module::parse(SAXPY).unwrap();
    let function = module.functions.iter().find(|known| !known.is_declaration()).unwrap();
    let parameters = function.body.iter().filter(|i| i.op() == Some(Op::FunctionParameter));
    let parameters: Vec<_> = parameters.filter_map(|i| i.result()).collect();
    change(&mut module, &parameters);
    Module::parse(&*module.assemble()).unwrap()
}

fn prepared(module: &Module) -> kiln_spirv::Result<Kernel> {
    let name = module
        .section(Section::EntryPoints)
        .iter()
        .find_map(|i| Some(i.entry_point()?.1.to_owned()));
    Kernel::of(module, &name.unwrap(), &[], &BTreeSet::new())
}

fn decorated(decoration: Decoration, operand: u32) -> Module {
    changed(|module, parameters| {
        let pointer = *parameters.last().unwrap();
        let words = [pointer, decoration as u32, operand];
        module.section_mut(Section::Annotations).push(Op::Decorate, words);
    })
}

#[test]
fn decorations_that_promise_memory_are_refused_by_name() {
    assert!(prepared(&changed(|_, _| ())).is_ok());
    let refused = prepared(&decorated(Decoration::MaxByteOffset, 1 << 20)).unwrap_err().to_string();
    assert!(refused.contains("MaxByteOffset"), "{refused}");
}

#[test]
fn alignments_that_a_kernel_claims_are_compared_with_its_buffers() {
    let kernel = prepared(&decorated(Decoration::Alignment, 64)).unwrap();
    let range = NdRange::from(NdSize::from(16));
    let outcome = |alignment| {
        let pointer = Argument::Buffer { length: 1024, alignment };
        let arguments: Vec<_> = kernel
            .parameters
            .iter()
            .map(|known| match known.size {
                Some(size) => Argument::Scalar(vec![0; size as usize]),
                None => pointer.clone(),
            })
            .collect();
        let launch = Launch {
            range: &range,
            arguments: &arguments,
            uniform_groups: true,
            few_constants: false,
        };
        check(&kernel, &launch)
    };
    assert!(outcome(64).unwrap().is_proven());
    let refused = outcome(32).unwrap_err().to_string();
    assert!(refused.contains("a multiple of 64"), "{refused}");
}

#[test]
fn values_must_have_the_size_of_their_parameters() {
    let kernel = prepared(&changed(|_, _| ())).unwrap();
    let range = NdRange::from(NdSize::from(16));
    let arguments: Vec<_> = kernel
        .parameters
        .iter()
        .map(|known| match known.size {
            Some(size) => Argument::Scalar(vec![0; size as usize - 1]),
            None => buffer(1024),
        })
        .collect();
    let launch =
        Launch { range: &range, arguments: &arguments, uniform_groups: true, few_constants: false };
    let refused = check(&kernel, &launch).unwrap_err().to_string();
    assert!(refused.contains("given a value of 3 bytes, expected 4 bytes"), "{refused}");
}

#[test]
fn flags_of_accesses_and_functions_are_refused_by_name() {
    // Promises that no other access overlaps, by Intel's extension.
    const NO_ALIAS: u32 = 1 << 17;
    let module = changed(|module, _| {
        let function = module.functions.iter_mut().find(|known| !known.is_declaration()).unwrap();
        let mut body = Stream::default();
        for i in function.body.iter() {
            match i.view() {
                View::Store { pointer, value, .. } => {
                    body.push(Op::Store, [pointer, value, NO_ALIAS]);
                }
                _ => body.push_instruction(&i),
            }
        }
        function.body = body;
    });
    let refused = prepared(&module).unwrap_err().to_string();
    assert!(refused.contains("the flags 0x20000"), "{refused}");
    let module = changed(|module, _| {
        let function = module.functions.iter().find(|known| !known.is_declaration()).unwrap().id;
        // Promises that the function has no effects.
        set_control(module, function, |_| FunctionControl::CONST.bits());
    });
    let refused = prepared(&module).unwrap_err().to_string();
    assert!(refused.contains("claims to have no effects"), "{refused}");
    let honest = without_false_claims(&module).unwrap();
    assert!(prepared(&honest).is_ok() && without_false_claims(&honest).is_none());
}

/// Returns a kernel that stores a number where a sum is below zero. The sum claims to be a number if `claims`
/// is set.
fn compares(claims: bool) -> Module {
    let mut b = Builder::new();
    b.set_version(1, 0);
    b.capability(Capability::Addresses);
    b.capability(Capability::Kernel);
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    let (float, void, bool) = (b.type_float(32, None), b.type_void(), b.type_bool());
    let pointer = b.type_pointer(None, StorageClass::CrossWorkgroup, float);
    let signature = b.type_function(void, [pointer, float]);
    let zero = b.constant_bit32(float, 0);
    let kernel = b.begin_function(void, None, FunctionControl::NONE, signature).unwrap();
    let (x, y) = (b.function_parameter(pointer).unwrap(), b.function_parameter(float).unwrap());
    let (then, end) = (b.id(), b.id());
    b.begin_block(None).unwrap();
    let sum = b.f_add(float, None, y, y).unwrap();
    let is_below = b.f_ord_less_than(bool, None, sum, zero).unwrap();
    b.branch_conditional(is_below, then, end, []).unwrap();
    b.begin_block(Some(then)).unwrap();
    b.store(x, y, Some(MemoryAccess::ALIGNED), [Operand::LiteralBit32(4)]).unwrap();
    b.branch(end).unwrap();
    b.begin_block(Some(end)).unwrap();
    b.ret().unwrap();
    b.end_function().unwrap();
    if claims {
        let mode = Operand::FPFastMathMode(FPFastMathMode::NOT_NAN);
        b.decorate(sum, Decoration::FPFastMathMode, [mode]);
    }
    b.entry_point(ExecutionModel::Kernel, kernel, "compares", []);
    let words = b.module().assemble();
    Module::parse(bytemuck::cast_slice::<u32, u8>(&words)).unwrap()
}

#[test]
fn numbers_that_claim_to_be_finite_count_as_undefined() {
    let arguments = [buffer(4), scalar(f32::NAN)];
    let range = NdRange::from(NdSize::from(1));
    for claims in [false, true] {
        let kernel = prepared(&compares(claims)).unwrap();
        let launch = Launch {
            range: &range,
            arguments: &arguments,
            uniform_groups: true,
            few_constants: false,
        };
        let report = check(&kernel, &launch).unwrap();
        assert_eq!(report.is_proven(), !claims, "{:?}", report.describe(&kernel));
        let guarded = variant(&kernel, Some(&report), &[]).unwrap().module;
        let mut claiming = guarded.section(Section::Annotations).iter();
        assert!(!claiming.any(|i| i.decoration(Decoration::FPFastMathMode).is_some()));
    }
}

#[test]
fn words_that_are_left_over_are_refused_where_the_proof_reads() {
    let words: Vec<u32> =
        SAXPY.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let (mut at, mut accepted) = (5, BTreeSet::new());
    while at < words.len() {
        let end = at + (words[at] >> 16) as usize;
        let mut longer = words.clone();
        longer[at] += 1 << 16;
        longer.insert(end, 0);
        let bytes: Vec<u8> = longer.iter().flat_map(|word| word.to_le_bytes()).collect();
        if Module::parse(&*bytes).is_ok_and(|module| prepared(&module).is_ok()) {
            accepted.insert(Op::from_u32(words[at] & 0xffff).unwrap());
        }
        at = end;
    }
    // Another operand of these is valid, or no proof reads them.
    let further = [Op::EntryPoint, Op::Decorate, Op::TypeFloat, Op::TypeFunction, Op::Variable];
    let not_read = [Op::Capability, Op::ExtInstImport, Op::Name, Op::Source, Op::String];
    let rest: Vec<_> =
        accepted.iter().filter(|op| !further.contains(op) && !not_read.contains(op)).collect();
    assert!(rest.is_empty(), "{rest:?}");
    assert!(accepted.contains(&Op::Name), "words are added");
}
