//! Kernels that compilers seldom produce, such as those with decorations that are given by groups of ids.

use kiln_spirv::edit::{Stream, View};
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv::{
    AddressingModel, Capability, Decoration, ExecutionMode, ExecutionModel, FunctionControl,
    MemoryModel, OpenclStd100Op,
};

use super::*;

const RARE: &[u8] = include_bytes!("../../../../../tests/data/rare.spv");

#[test]
fn a_variable_has_the_alignment_of_its_accesses() {
    let launches = [("heads", vec![buffer(0), buffer(1)]), ("heads", vec![buffer(1), buffer(2)])];
    let outcome = fuse_in(RARE, &plan(&launches, 64, &[1]), Trust::ProofOnly);
    let promotion = outcome.judgements[1].promotion.as_ref().unwrap();
    assert_eq!((promotion.size, promotion.align), (4, 16));
    let text = valid(&outcome.fused.unwrap());
    assert!(text.contains("Alignment 16"), "{text}");
    // Accesses with an alignment that no type has stay in memory.
    for odd in [24, 256] {
        let mut words: Vec<[u8; 4]> = RARE.as_chunks().0.to_vec();
        for at in 1..words.len() {
            if words[at - 1..=at] == [[2, 0, 0, 0], [16, 0, 0, 0]] {
                words[at] = u32::to_le_bytes(odd);
            }
        }
        let outcome = fuse_in(words.as_flattened(), &plan(&launches, 64, &[1]), Trust::ProofOnly);
        let why = outcome.judgements[1].promotion.as_ref().unwrap_err();
        assert!(why.contains("in a way that only global memory supports"), "{why}");
    }
}

/// Returns the module with its decorations moved to decoration groups: one group for all ids with the same
/// decoration. `is_selected` selects the decorations.
fn in_groups(bytes: &[u8], is_selected: impl Fn(Option<Decoration>) -> bool) -> Vec<u8> {
    let mut module = Module::parse(bytes).unwrap();
    let mut targets_of = BTreeMap::<Vec<u32>, Vec<u32>>::new();
    let mut annotations = Stream::default();
    for i in module.section(Section::Annotations).iter() {
        assert_eq!(i.op(), Some(Op::Decorate));
        let View::Decorate { target, decoration, .. } = i.view() else { panic!("{i:?}") };
        if is_selected(Decoration::from_u32(decoration)) {
            targets_of.entry(i.words_from(1).collect()).or_default().push(target);
        } else {
            annotations.push_instruction(&i);
        }
    }
    for (words, targets) in targets_of {
        let group = module.fresh_id().unwrap();
        annotations.push(Op::Decorate, [group].into_iter().chain(words));
        annotations.push(Op::DecorationGroup, [group]);
        annotations.push(Op::GroupDecorate, [group].into_iter().chain(targets));
        module.section_mut(Section::Names).push(Op::Name, [group, 0]);
    }
    *module.section_mut(Section::Annotations) = annotations;
    module.assemble()
}

#[test]
fn decorations_of_a_group_apply_to_its_members() {
    let launches = [("packed", vec![buffer(0)]), ("loose", vec![buffer(0), buffer(1)])];
    let why = |bytes: &[u8]| {
        let outcome = fuse_in(bytes, &plan(&launches, 64, &[]), Trust::ProofOnly);
        outcome.fused.unwrap_err()
    };
    let packed = in_groups(RARE, |decoration| decoration == Some(Decoration::CPacked));
    assert_eq!(why(&packed), why(RARE));
    assert_eq!(why(&in_groups(RARE, |_| true)), why(RARE));
    for bytes in ALL {
        let plan = plan(&chain(), 1000, &[1, 2]);
        let plain = fused(bytes, &plan).0;
        let (grouped, text) = fused(&in_groups(bytes, |_| true), &plan);
        assert_eq!(grouped.internalized, plain.internalized);
        assert_eq!(grouped.parameters, plain.parameters);
        assert!(!text.contains("Group"), "{text}");
        // Work-items that read nothing of their ids but the global one do the work of four.
        let module = Module::parse(in_groups(bytes, |_| true)).unwrap();
        let four = Width { most: 4, least_left: 1 };
        let plan = super::plan(&chain(), 1024, &[]);
        let wide = fuse(&plan, &[&module], Trust::ProofOnly, four, FusionForm::Direct)
            .unwrap()
            .fused
            .unwrap();
        assert_eq!(wide.range.global(), [256]);
    }
}

/// Returns a module with a kernel `k` that takes a buffer of 32-bit integers.
fn kernel(make: impl FnOnce(&mut Builder)) -> Vec<u8> {
    let mut b = Builder::new();
    b.set_version(1, 2);
    for capability in [Capability::Kernel, Capability::Addresses, Capability::Linkage] {
        b.capability(capability);
    }
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    let (void, int) = (b.type_void(), b.type_int(32, 0));
    let pointer = b.type_pointer(None, StorageClass::CrossWorkgroup, int);
    let ty = b.type_function(void, [pointer]);
    let k = b.begin_function(void, None, FunctionControl::NONE, ty).unwrap();
    b.function_parameter(pointer).unwrap();
    b.begin_block(None).unwrap();
    make(&mut b);
    b.ret().unwrap();
    b.end_function().unwrap();
    b.entry_point(ExecutionModel::Kernel, k, "k", []);
    b.module().assemble().into_iter().flat_map(u32::to_le_bytes).collect()
}

#[test]
fn decorations_of_a_group_apply_to_members_of_structures() {
    let mut structure = 0;
    let bytes = kernel(|b| {
        let int = b.type_int(32, 0);
        structure = b.type_struct([int, int]);
        let group = b.decoration_group();
        b.decorate(group, Decoration::Volatile, []);
        b.group_member_decorate(group, [(structure, 1), (structure, 0)]);
    });
    let module = Module::parse(bytes.as_slice()).unwrap();
    let plain = crate::transform::extract::ungrouped(&module).unwrap();
    let annotations = plain.section(Section::Annotations).iter();
    let words: Vec<_> = annotations.map(|i| (i.op().unwrap(), i.words_from(0).collect())).collect();
    let volatile = Decoration::Volatile as u32;
    let member = |at| (Op::MemberDecorate, vec![structure, at, volatile]);
    assert_eq!(words, [member(1), member(0)]);
}

#[test]
fn too_many_decorations_by_groups_are_refused() {
    let bytes = kernel(|b| {
        let group = b.decoration_group();
        for _ in 0..2000 {
            b.decorate(group, Decoration::Volatile, []);
        }
        for member in 1_000_000..1_002_000 {
            b.group_decorate(group, [member]);
        }
    });
    let why = fuse_in(&bytes, &plan(&[("k", vec![buffer(0)])], 64, &[]), Trust::Caller).fused;
    let why = why.unwrap_err();
    assert!(why.contains("`k`") && why.contains("groups"), "{why}");
}

#[test]
fn split_barriers_count_as_barriers() {
    let bytes = kernel(|b| {
        let int = b.type_int(32, 0);
        let (group, semantics) = (b.constant_bit32(int, 2), b.constant_bit32(int, 0x210));
        b.control_barrier_arrive_intel(group, group, semantics).unwrap();
        b.control_barrier_wait_intel(group, group, semantics).unwrap();
    });
    let module = Module::parse(bytes.as_slice()).unwrap();
    let launches = [("k", vec![buffer(0)]), ("k", vec![buffer(1)])];
    let mut plan = plan(&launches, 64, &[]);
    let four = Width { most: 4, least_left: 1 };
    let mut apart = plan.clone();
    apart.target.separate_functions = true;
    let fused = fuse(&apart, &[&module], Trust::ProofOnly, four, FusionForm::Direct)
        .unwrap()
        .fused
        .unwrap();
    assert_eq!(fused.range.global(), [64]);
    let text = rspirv::dr::load_bytes(fused.module.assemble()).unwrap().disassemble();
    assert_eq!(text.matches("DontInline").count(), 2, "{text}");
    // The work-groups of the fused kernel are not those of the launch.
    plan.slots[1].range = NdRange::from(NdSize::from([8, 8]));
    let why = fuse_in(&bytes, &plan, Trust::Caller).fused.unwrap_err();
    assert!(why.contains("`k` uses barriers, but among"), "{why}");
}

#[test]
fn execution_modes_of_several_widths_are_kept() {
    let with = |widths: &[u32]| {
        let bytes = kernel(|_| {});
        let mut module = Module::parse(bytes.as_slice()).unwrap();
        let entries = module.section(Section::EntryPoints).iter();
        let (entry, _) = entries.into_iter().find_map(|i| i.entry_point()).unwrap();
        let modes = module.section_mut(Section::ExecutionModes);
        for &width in widths {
            modes.push(Op::ExecutionMode, [entry, ExecutionMode::RoundingModeRTE as u32, width]);
        }
        module
    };
    let launches = [("k", vec![buffer(0)]), ("k", vec![buffer(1)])];
    let mut plan = plan(&launches, 64, &[]);
    let both = fuse(&plan, &[&with(&[32, 64])], Trust::ProofOnly, Width::ONE, FusionForm::Direct)
        .unwrap()
        .fused
        .unwrap();
    let modes = both.module.section(Section::ExecutionModes).iter();
    let widths: Vec<_> = modes
        .filter_map(|mode| match mode.view() {
            View::ExecutionMode { parameters, .. } => parameters.get(0),
            _ => None,
        })
        .collect();
    assert_eq!(widths, [32, 64]);
    plan.modules = vec![[0; 32], [1; 32]];
    plan.slots[1].module = 1;
    let modules = [&with(&[32, 64]), &with(&[32])];
    let why = fuse(&plan, &modules, Trust::ProofOnly, Width::ONE, FusionForm::Direct)
        .unwrap()
        .fused
        .unwrap_err();
    assert!(why.contains("RoundingModeRTE [64]"), "{why}");
}

#[test]
fn launches_that_both_print_are_not_fused() {
    let bytes = kernel(|b| {
        let (int, char) = (b.type_int(32, 0), b.type_int(8, 0));
        let one = b.constant_bit32(int, 1);
        let text = b.type_array(char, one);
        let pointer = b.type_pointer(None, StorageClass::UniformConstant, text);
        let nothing = b.constant_null(text);
        let format = b.variable(pointer, None, StorageClass::UniformConstant, Some(nothing));
        let (set, print) = (b.ext_inst_import("OpenCL.std"), OpenclStd100Op::printf as u32);
        b.ext_inst(int, None, set, print, [Operand::IdRef(format)]).unwrap();
    });
    let prints = Module::parse(bytes.as_slice()).unwrap();
    let silent = Module::parse(kernel(|_| {})).unwrap();
    let launches = [("k", vec![buffer(0)]), ("k", vec![buffer(1)])];
    let mut plan = plan(&launches, 64, &[]);
    let outcome =
        fuse(&plan, &[&prints], Trust::ProofOnly, Width::ONE, FusionForm::Direct).unwrap();
    assert_eq!(
        outcome.fused.unwrap_err(),
        "the printed output of `k` and `k` would be interleaved"
    );
    plan.modules = vec![[0; 32], [1; 32]];
    plan.slots[1].module = 1;
    let outcome =
        fuse(&plan, &[&prints, &silent], Trust::ProofOnly, Width::ONE, FusionForm::Direct).unwrap();
    assert!(outcome.fused.is_ok(), "one launch may print");
}

#[test]
fn a_copy_of_no_bytes_does_not_panic() {
    let bytes = kernel(|b| {
        let buffer = b.module_ref().functions[0].parameters[0].result_id.unwrap();
        let int = b.type_int(32, 0);
        let pointer = b.type_pointer(None, StorageClass::CrossWorkgroup, int);
        let [none, one, two] = [0, 1, 2].map(|number| b.constant_bit32(int, number));
        let place = |b: &mut Builder, index| {
            b.in_bounds_ptr_access_chain(pointer, None, buffer, index, []).unwrap()
        };
        let (to, from) = (place(b, one), place(b, two));
        b.store(buffer, one, None, []).unwrap();
        b.copy_memory_sized(to, from, none, None, None, []).unwrap();
    });
    let launches = [("k", vec![buffer(0)]), ("k", vec![buffer(0)])];
    let why = fuse_in(&bytes, &plan(&launches, 64, &[]), Trust::ProofOnly).fused.unwrap_err();
    assert!(why.contains("`k`"), "{why}");
}

#[test]
fn vectors_of_vectors_may_be_of_any_size() {
    let bytes = kernel(|b| {
        let mut ty = b.type_int(64, 0);
        for _ in 0..4 {
            ty = b.type_vector(ty, 1 << 31);
        }
    });
    let launches = [("k", vec![buffer(0)]), ("k", vec![buffer(1)])];
    assert!(fuse_in(&bytes, &plan(&launches, 64, &[]), Trust::ProofOnly).fused.is_ok());
}
