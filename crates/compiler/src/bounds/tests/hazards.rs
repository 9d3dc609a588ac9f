//! Kernels that are refused, that are guarded, or whose code has other hazards.

use kiln_spirv::edit::{Instruction, Interner, Section, Stream, View};
use rspirv::dr::Operand;
use rspirv::spirv::{MemoryAccess, Op, OpenclStd100Op as Extended, StorageClass};

use super::super::hazards::Hazard;
use super::images::Code;
use super::interpreter::{Given, Grid, Machine};
use super::*;

const MODULE: &[u8] = include_bytes!("../../../../../tests/data/bounds/hazards.spv");

/// Returns the range of 64 work-items in one work-group.
fn one_group() -> NdRange {
    let mut range = NdRange::from(NdSize::from(64));
    range.set_local(64.into()).unwrap();
    range
}

/// Writes the functions of a module anew: `write` gets each instruction.
fn edit(module: &mut Module, mut write: impl FnMut(&mut Stream, &Instruction<'_>)) {
    for function in &mut module.functions {
        let mut body = Stream::default();
        function.body.iter().for_each(|i| write(&mut body, &i));
        function.body = body;
    }
}

#[track_caller]
fn found(name: &str, arguments: &[Argument]) -> (usize, BTreeSet<Hazard>, Vec<String>) {
    let (kernel, report) = checked(MODULE, name, &one_group(), arguments);
    let hazards = report.hazards.iter().map(|(_, hazard)| *hazard).collect();
    let guarded = report.accesses.iter().filter(|known| !known.is_in_bounds()).count();
    (guarded, hazards, report.describe(&kernel))
}

/// `frexp` writes the exponent of a number that other work-items may change to a variable, which is the index.
#[test]
fn values_that_functions_write_to_variables_depend_on_memory() {
    let mut code = Code::new();
    let set = code.b.ext_inst_import("OpenCL.std");
    let global = [code.float, code.int]
        .map(|ty| code.b.type_pointer(None, StorageClass::CrossWorkgroup, ty));
    let variable = code.b.type_pointer(None, StorageClass::Function, code.int);
    let zero = code.b.constant_bit32(code.int, 0);
    let (kernel, parameters) = code.function(code.void, &global);
    let exponent = code.b.variable(variable, None, StorageClass::Function, Some(zero));
    let number = code.b.load(code.float, None, parameters[0], None, []).unwrap();
    let operands = [number, exponent].map(Operand::IdRef);
    let function = Extended::frexp as u32;
    code.b.ext_inst(code.float, None, set, function, operands).unwrap();
    let index = code.b.load(code.int, None, exponent, None, []).unwrap();
    let to = code.b.ptr_access_chain(global[1], None, parameters[1], index, []).unwrap();
    code.b.store(to, zero, None, []).unwrap();
    let module = code.finish(kernel);
    let kernel = Kernel::of(&module, "k", &[], &BTreeSet::new()).unwrap();
    let hazards: BTreeSet<_> = kernel.hazards.iter().map(|(_, hazard)| *hazard).collect();
    assert!(hazards.contains(&Hazard::Shared), "{hazards:?}");
}

#[test]
fn pointers_that_are_chosen_point_into_the_shorter_buffer() {
    let arguments = |a, b| [buffer(a), buffer(b), scalar(1)];
    assert_eq!(found("chooses", &arguments(256, 256)).0, 0);
    let module = Module::parse(MODULE).unwrap();
    let kernel = Kernel::of(&module, "chooses", &[], &BTreeSet::new()).unwrap();
    let range = one_group();
    for which in [0_i32, 1] {
        let arguments = [buffer(256), buffer(8), scalar(which)];
        let launch = Launch {
            range: &range,
            arguments: &arguments,
            uniform_groups: true,
            few_constants: false,
        };
        let report = check(&kernel, &launch).unwrap();
        let guarded = variant(&kernel, Some(&report), &[]).unwrap();
        let definitions = guarded.module.definitions();
        let grid = Grid { global: [64, 1, 1], offset: [0; 3], local: [64, 1, 1] };
        let mut machine = Machine::new(&definitions, vec![vec![0; 256], vec![0; 8]], grid).unwrap();
        let lengths = guarded.lengths.iter().map(|&at| if at == 0 { 256_u64 } else { 8 });
        let mut given = vec![Given::Object(0), Given::Object(1)];
        given.push(Given::Bytes(which.to_le_bytes().to_vec()));
        given.extend(lengths.map(|length| Given::Bytes(length.to_le_bytes().to_vec())));
        machine.run(kernel.function, &given).unwrap();
        assert!(machine.events.is_empty(), "{:?}", machine.events);
    }
}

#[test]
fn variables_that_are_used_after_their_lifetime_lose_its_markers() {
    let arguments = [buffer(64 * 32), buffer(256)];
    assert!(!found("keeps_in_array", &arguments).1.contains(&Hazard::Lifetime));
    let mut module = Module::parse(MODULE).unwrap();
    let mut markers = 0;
    edit(&mut module, |body, i| {
        body.push_instruction(i);
        if i.op() == Some(Op::LifetimeStart) {
            body.push(Op::LifetimeStop, i.words_from(0));
            markers += 1;
        }
    });
    assert!(markers > 0);
    let kernel = Kernel::of(&module, "keeps_in_array", &[], &BTreeSet::new()).unwrap();
    let range = one_group();
    let launch =
        Launch { range: &range, arguments: &arguments, uniform_groups: true, few_constants: false };
    let report = check(&kernel, &launch).unwrap();
    assert!(report.hazards.iter().any(|(_, hazard)| *hazard == Hazard::Lifetime), "{report:?}");
    let guarded = variant(&kernel, Some(&report), &[]).unwrap();
    let bodies = guarded.module.functions.iter().flat_map(|function| function.body.iter());
    let is_marker =
        |i: Instruction<'_>| matches!(i.op(), Some(Op::LifetimeStart | Op::LifetimeStop));
    assert!(!bodies.into_iter().any(is_marker));
}

/// Returns the module with copies of 8 bytes, from variables to themselves. `operands` has the memory operands, given
/// the id of an integer.
fn copying(operands: impl Fn(u32) -> Vec<u32>) -> Module {
    let mut module = Module::parse(MODULE).unwrap();
    let mut interner = Interner::of(&module);
    let long = interner.type_id(&mut module, Op::TypeInt, &[64, 0]).unwrap();
    let size = interner.constant_id(&mut module, Op::Constant, long, &[8, 0]).unwrap();
    edit(&mut module, |body, i| {
        body.push_instruction(i);
        if let (Some(Op::LifetimeStart), Some(bytes)) = (i.op(), i.pointer()) {
            let words = [bytes, bytes, size].into_iter().chain(operands(size));
            body.push(Op::CopyMemorySized, words.collect::<Vec<_>>());
        }
    });
    module
}

/// Compilers set memory by copies from arrays of bytes, whose addresses may be less aligned than the copies claim.
#[test]
fn copies_from_less_aligned_memory_lose_their_claim() {
    let aligned = MemoryAccess::ALIGNED.bits();
    // Since SPIR-V 1.4, operands for the source may follow those for the target.
    for operands in [vec![aligned, 64], vec![aligned, 1, aligned, 64]] {
        let module = copying(|_| operands.clone());
        let kernel = Kernel::of(&module, "keeps_in_array", &[], &BTreeSet::new()).unwrap();
        let (range, arguments) = (one_group(), [buffer(64 * 32), buffer(256)]);
        let (uniform_groups, few_constants) = (true, false);
        let launch = Launch { range: &range, arguments: &arguments, uniform_groups, few_constants };
        let report = check(&kernel, &launch).unwrap();
        assert!(report.accesses.iter().any(|checked| checked.is_unaligned), "{report:?}");
        let guarded = variant(&kernel, Some(&report), &[]).unwrap();
        let bodies = guarded.module.functions.iter().flat_map(|function| function.body.iter());
        let copies = bodies.filter(|i| i.op() == Some(Op::CopyMemorySized));
        let claims: Vec<_> = copies.map(|i| i.words_from(3).collect::<Vec<_>>()).collect();
        assert!(claims.contains(&vec![aligned, 1]), "{claims:?}");
        assert!(!claims.iter().any(|claim| claim.ends_with(&[64])), "{claims:?}");
    }
}

#[test]
fn flags_of_the_source_of_a_copy_are_checked() {
    // Promises that no other access overlaps, by Intel's extension.
    let no_alias = MemoryAccess::NO_ALIAS_INTEL_MASK.bits();
    let module = copying(|id| vec![MemoryAccess::NONE.bits(), no_alias, id]);
    let error = Kernel::of(&module, "keeps_in_array", &[], &BTreeSet::new()).unwrap_err();
    assert!(error.to_string().contains("OpCopyMemorySized has the flags 0x20000"), "{error}");
}

#[test]
fn instructions_without_their_operands_are_refused() {
    let mut module = Module::parse(polyhedral::OPTIMISED).unwrap();
    edit(&mut module, |body, i| match i.op() {
        Some(Op::FAdd) => body.push(Op::FAdd, i.words_from(0).take(3)),
        _ => body.push_instruction(i),
    });
    let error = Kernel::of(&module, "line_stencil", &[], &BTreeSet::new()).unwrap_err();
    assert!(error.to_string().contains("the operands of OpFAdd are not known"), "{error}");
}

#[test]
fn addresses_that_claim_to_be_multiples_of_zero_have_the_alignment_of_their_type() {
    let mut module = Module::parse(polyhedral::OPTIMISED).unwrap();
    edit(&mut module, |body, i| match i.view() {
        View::Load { access, .. } if access.alignment() == Some(4) => {
            body.push(Op::Load, i.words_from(0).take(4).chain([0]));
        }
        _ => body.push_instruction(i),
    });
    let module = module.assemble();
    let arguments = [buffer(256), buffer(256), scalar(64)];
    let (_, report) = checked(&module, "line_copy", &one_group(), &arguments);
    assert!(report.is_proven(), "{report:?}");
}

#[test]
fn blocks_that_do_not_end_in_known_blocks_are_refused() {
    for targets in [None, Some(1)] {
        let mut module = Module::parse(polyhedral::OPTIMISED).unwrap();
        edit(&mut module, |body, i| match (i.op(), targets) {
            (Some(Op::Branch), None) => {}
            (Some(Op::Branch), Some(id)) => body.push(Op::Branch, [id]),
            _ => body.push_instruction(i),
        });
        let kernel = Kernel::of(&module, "line_stencil", &[], &BTreeSet::new());
        let (range, arguments) = (one_group(), [buffer(256), buffer(256), scalar(64)]);
        let (uniform_groups, few_constants) = (true, false);
        let launch = Launch { range: &range, arguments: &arguments, uniform_groups, few_constants };
        let report = kernel.and_then(|kernel| check(&kernel, &launch));
        assert!(report.is_err(), "{targets:?}: {report:?}");
    }
}

#[test]
fn called_functions_that_cannot_be_followed_are_refused() {
    const MODULE: &[u8] = include_bytes!("../../../../../tests/data/emitted/control_O0.spv");
    let mut module = Module::parse(MODULE).unwrap();
    edit(&mut module, |body, i| {
        if i.op() != Some(Op::ReturnValue) {
            body.push_instruction(i);
        }
    });
    let kernel = Kernel::of(&module, "control", &[], &BTreeSet::new());
    let (range, arguments) = (one_group(), [buffer(256), buffer(256)]);
    let (uniform_groups, few_constants) = (true, false);
    let launch = Launch { range: &range, arguments: &arguments, uniform_groups, few_constants };
    let error = kernel.and_then(|kernel| check(&kernel, &launch)).expect_err("it has no end");
    assert!(error.to_string().contains("a function that the kernel calls"), "{error}");
}

#[test]
fn integers_without_bits_make_no_check_panic() {
    for (name, bytes, range, arguments) in photograph::launches(64) {
        let mut module = Module::parse(bytes).unwrap();
        let globals = module.section_mut(Section::Globals);
        let mut edited = Stream::default();
        for i in globals.iter() {
            match (i.op(), i.result()) {
                (Some(Op::TypeInt), Some(id)) => edited.push(Op::TypeInt, [id, 0, 0]),
                _ => edited.push_instruction(&i),
            }
        }
        *globals = edited;
        let Ok(kernel) = Kernel::of(&module, name, &[], &BTreeSet::new()) else { continue };
        let (uniform_groups, few_constants) = (true, false);
        let launch = Launch { range: &range, arguments: &arguments, uniform_groups, few_constants };
        let Ok(report) = check(&kernel, &launch) else { continue };
        assert!(
            variant(&kernel, Some(&report), &[]).is_err() || !report.is_proven(),
            "{name}: {report:?}"
        );
    }
}
