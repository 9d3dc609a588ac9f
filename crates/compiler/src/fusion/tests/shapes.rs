//! Launches whose nd-ranges differ, and other differences between two clones of a kernel.

use rspirv::spirv::{BuiltIn, Decoration};

use super::*;

const SHAPES: &[u8] = include_bytes!("../../../../../tests/data/shapes.spv");
const SHAPES_UNOPTIMISED: &[u8] = include_bytes!("../../../../../tests/data/shapes_O0.spv");
const BOTH: [&[u8]; 2] = [SHAPES, SHAPES_UNOPTIMISED];

fn grouped(global: impl Into<NdSize>, local: impl Into<NdSize>) -> NdRange {
    let mut range = NdRange::from(global.into());
    range.set_local(local.into()).unwrap();
    range
}

fn shifted(global: impl Into<NdSize>, offset: impl Into<NdSize>) -> NdRange {
    let mut range = NdRange::from(global.into());
    range.set_offset(offset.into()).unwrap();
    range
}

#[track_caller]
fn assert_refused(launches: &[Ranged], why: &str) {
    for bytes in BOTH {
        let outcome = fuse_in(bytes, &plan_of(launches, &[1]), Trust::Caller);
        assert_eq!(outcome.fused.unwrap_err(), format!("unsupported: {why}"));
    }
}

fn through(first: NdRange, second: NdRange) -> [Ranged; 2] {
    [("linear", first, vec![buffer(0), buffer(1)]), ("linear", second, vec![buffer(1), buffer(2)])]
}

#[test]
fn fewer_work_items_are_guarded_by_their_linear_id() {
    for bytes in BOTH {
        let (fused, text) = fused(bytes, &plan_of(&through(over(1000), over(500)), &[1]));
        assert_eq!(fused.range, over(1000));
        assert_eq!(fused.internalized, [Memory(1)]);
        assert_eq!(text.matches("OpULessThan").count(), 1, "{text}");
        // The ids are the same, because both ranges have one dimension.
        assert!(!text.contains("OpUMod"), "{text}");
        let (fused, _) = super::fused(bytes, &plan_of(&through(over(500), over(1000)), &[]));
        assert_eq!(fused.range, over(1000));
    }
}

#[test]
fn buffers_written_by_fewer_work_items_stay_in_memory() {
    let plan = plan_of(&through(over(500), over(1000)), &[1]);
    let outcome = fuse_in(SHAPES, &plan, Trust::ProofOnly);
    assert_eq!(
        outcome.judgements[1].promotion.as_ref().unwrap_err(),
        "`linear` reads `src`, but not all of these bytes are certainly written before"
    );
    assert!(outcome.fused.unwrap().internalized.is_empty());
}

#[test]
fn equal_shapes_add_neither_guards_nor_divisions() {
    let (_, text) = fused(SHAPES, &plan_of(&through(over(64), over(64)), &[]));
    assert!(!text.contains("OpULessThan") && !text.contains("OpUDiv"), "{text}");
    // An additional dimension of one work-item changes nothing but the number of dimensions.
    let (_, text) = fused(SHAPES, &plan_of(&through(over([64, 1]), over(64)), &[]));
    assert!(!text.contains("OpULessThan") && !text.contains("OpUDiv"), "{text}");
}

#[test]
fn ranges_of_different_shapes_match_by_linear_id() {
    for (first, second) in
        [(over([8, 4]), over(32)), (over(32), over([8, 4])), (over([8, 4]), over([4, 8]))]
    {
        let rows = |range: NdRange| if range.dimensions() == 1 { "linear" } else { "row_major" };
        let launches = [
            (rows(first), first, vec![buffer(0), buffer(1)]),
            (rows(second), second, vec![buffer(1), buffer(2)]),
            ("sheet", over([8, 3]), vec![buffer(2), buffer(3)]),
        ];
        for bytes in BOTH {
            let outcome = fuse_in(bytes, &plan_of(&launches, &[1]), Trust::ProofOnly);
            let fused = outcome.fused.unwrap();
            let text = valid(&fused);
            let is_remapped = first.dimensions() == second.dimensions();
            assert_eq!(text.contains("OpUMod"), is_remapped, "{text}");
            if bytes == SHAPES {
                assert_eq!(fused.internalized, [Memory(1)]);
            }
        }
    }
}

#[test]
fn work_items_keep_the_ids_of_their_own_nd_range() {
    let launches = [
        ("places", over([4, 2, 3]), vec![buffer(0), int(2)]),
        ("places", over([5, 3]), vec![buffer(1), int(1)]),
        ("places", over(7), vec![buffer(2), int(0)]),
    ];
    for bytes in BOTH {
        let (fused, text) = fused(bytes, &plan_of(&launches, &[]));
        assert_eq!(fused.range, over([4, 2, 3]));
        // The largest launch reads the value of the device; the others get constants.
        assert_eq!(text.matches("BuiltIn WorkDim").count(), 1, "{text}");
        assert!(text.contains("OpUMod") && text.contains("OpVectorExtractDynamic"), "{text}");
    }
}

#[test]
fn kernels_that_need_their_own_work_groups_are_refused_by_name() {
    let linear = ("linear", over([8, 8]), vec![buffer(0), buffer(1)]);
    let among = "but among the [8, 8] work-items of the fused kernel, its [32] work-items would \
                 not have their own work-groups";
    for (kernel, arguments, what) in [
        ("mine", vec![buffer(2)], "get_local_id"),
        ("swapped", vec![buffer(1), buffer(2)], "local memory"),
        ("groups", vec![buffer(1), buffer(2)], ""),
    ] {
        let launches = [linear.clone(), (kernel, over(32), arguments)];
        if what.is_empty() {
            let outcome = fuse_in(SHAPES, &plan_of(&launches, &[1]), Trust::Caller);
            let why = outcome.fused.unwrap_err();
            assert!(why.contains("get_num_groups") || why.contains("get_local_size"), "{why}");
        } else {
            assert_refused(&launches, &format!("`{kernel}` uses {what}, {among}"));
        }
    }
}

#[test]
fn whole_work_groups_are_preserved() {
    let launches = |items| {
        [
            ("linear", over(64), vec![buffer(0), buffer(1)]),
            ("swapped", grouped(items, 16), vec![buffer(3), buffer(2)]),
        ]
    };
    for bytes in BOTH {
        let (fused, text) = fused(bytes, &plan_of(&launches(32), &[]));
        assert_eq!(fused.range, grouped(64, 16));
        assert!(!text.contains("BuiltIn NumWorkgroups"), "{text}");
        // Launches of equal size keep the value of the device.
        let (_, text) = super::fused(bytes, &plan_of(&launches(64), &[]));
        assert!(text.contains("BuiltIn NumWorkgroups"), "{text}");
    }
    // Sizes that are given become constants, wherever the work-items are.
    let launches = [
        ("row_major", over([16, 4]), vec![buffer(0), buffer(1)]),
        ("groups", grouped(32, 16), vec![buffer(1), buffer(2)]),
    ];
    let (_, text) = fused(SHAPES, &plan_of(&launches, &[]));
    assert!(!text.contains("BuiltIn NumWorkgroups"), "{text}");
}

#[test]
fn offsets_must_be_equal_and_zero_if_ids_change() {
    let why = "the offset of `linear` is [3], but that of `linear` is [0]; only launches with the \
               same offset are fused";
    assert_refused(&through(shifted(8, 3), over(8)), why);
    let launches = [
        ("linear", shifted([16, 1], [3, 1]), vec![buffer(0), buffer(1)]),
        ("row_major", shifted([3, 4], [3, 1]), vec![buffer(2), buffer(3)]),
    ];
    let why = "the global size of `linear` is [16, 1], but that of `row_major` is [3, 4]; launches \
               of different shapes are fused only if their offset is 0, not [3, 1]";
    assert_refused(&launches, why);
    let (_, text) = fused(SHAPES, &plan_of(&through(shifted(8, 3), shifted(6, 3)), &[1]));
    assert!(text.contains("OpISub"), "{text}");
}

#[test]
fn work_groups_must_divide_the_largest_launch() {
    let why = "the work-group size [16, 1, 1] of the launches does not divide the global size of \
               `linear`, [50]";
    let mut launches = through(over(50), grouped(32, 16));
    launches[1].0 = "swapped";
    assert_refused(&launches, why);
    let why = "the work-group size of `groups` is [16], but that of `groups` is [8]";
    let launches = through(grouped(64, 16), grouped(32, 8));
    assert_refused(&launches.map(|(_, range, arguments)| ("groups", range, arguments)), why);
    // Among launches with equally many work-items, the range is the one that the work-group size divides.
    let launches = [
        ("linear", over(64), vec![buffer(0), buffer(1)]),
        ("row_major", grouped([8, 8], [4, 4]), vec![buffer(1), buffer(2)]),
    ];
    let (fused, _) = fused(SHAPES, &plan_of(&launches, &[1]));
    assert_eq!(fused.range, grouped([8, 8], [4, 4]));
    assert_eq!(fused.internalized, [Memory(1)]);
}

#[test]
fn non_linear_accesses_need_trust_across_shapes() {
    let launches = [
        ("transpose", over([8, 4]), vec![buffer(0), buffer(1), int(8), int(4)]),
        ("scale", over(32), vec![buffer(1), buffer(2), float(2.0)]),
    ];
    let outcome = fuse_in(OPTIMISED, &plan_of(&launches, &[1]), Trust::ProofOnly);
    assert_eq!(
        outcome.fused.unwrap_err(),
        "`scale` reads `src` at gid, some of which may be written by `transpose` in another \
         work-item, at the elements 0 to 31"
    );
    // Accesses that do not overlap need no common shape.
    let half = |offset| Argument::Buffer(Region { memory: Memory(1), offset, length: 128 });
    let mut apart = launches;
    apart[0].2[1] = half(0);
    apart[1].2[0] = half(128);
    fused(OPTIMISED, &plan_of(&apart, &[]));
}

#[test]
fn reading_neighbours_refutes_fusion_across_shapes() {
    let launches = |items| {
        [
            ("scale", over(items), vec![buffer(0), buffer(1), float(2.0)]),
            ("blur", over(20), vec![buffer(1), buffer(2)]),
        ]
    };
    let outcome = fuse_in(OPTIMISED, &plan_of(&launches(64), &[]), Trust::Caller);
    assert!(matches!(outcome.judgements[1].verdict, FusionVerdict::Refuted(_)), "{outcome:?}");
    // A single work-item writes what its neighbour reads.
    let outcome = fuse_in(OPTIMISED, &plan_of(&launches(1), &[]), Trust::Caller);
    assert!(matches!(outcome.judgements[1].verdict, FusionVerdict::Refuted(_)), "{outcome:?}");
}

#[test]
fn clones_have_their_own_specialization_constants() {
    let launches = [
        ("tuned", over(64), vec![buffer(0), buffer(1)]),
        ("tuned", over(64), vec![buffer(1), buffer(2)]),
    ];
    for bytes in BOTH {
        let mut plan = plan_of(&launches, &[1]);
        let (same, text) = fused(bytes, &plan);
        assert!(!text.contains("OpSpecConstant") && !text.contains("SpecId"), "{text}");
        assert_eq!(same.internalized, [Memory(1)]);
        // With different constants, the launches use different elements.
        plan.slots[0].constants = vec![(7, 3_u32.to_le_bytes().into())];
        let outcome = fuse_in(bytes, &plan, Trust::Caller);
        assert!(matches!(outcome.judgements[1].verdict, FusionVerdict::Refuted(_)), "{outcome:?}");
        plan.slots[1].constants = vec![(7, 3_u32.to_le_bytes().into())];
        assert_eq!(fused(bytes, &plan).0.internalized, [Memory(1)]);
    }
    let mut wrong = plan_of(&launches, &[]);
    let module = Module::parse(SHAPES).unwrap();
    for (constant, part) in [
        ((8, vec![0; 4]), "a value is given for the specialization constant 8"),
        ((7, vec![0; 2]), "the specialization constant 7 has 2 bytes, but its type has 4 bytes"),
    ] {
        wrong.slots[1].constants = vec![constant];
        let error =
            fuse(&wrong, &[&module], Trust::ProofOnly, Width::ONE, FusionForm::Direct).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn vectors_become_literals() {
    let by =
        Argument::Scalar([1.5f32, 2.5, 3.5, 4.5].iter().flat_map(|f| f.to_le_bytes()).collect());
    let from = Argument::Scalar([1i32, 2, 3, 0].iter().flat_map(|n| n.to_le_bytes()).collect());
    let mut plan = plan_of(&[("tinted", over(16), vec![buffer(0), by, from])], &[]);
    plan.constants = [1, 2].map(|argument| Place { slot: 0, argument }).into();
    for bytes in BOTH {
        let (fused, text) = fused(bytes, &plan);
        assert_eq!(fused.parameters, [[Place { slot: 0, argument: 0 }]]);
        assert!(text.contains("3.5"), "{text}");
    }
}

#[test]
fn the_version_of_a_fused_module_is_supported_by_the_device() {
    let mut newer = SHAPES.to_vec();
    newer[4..8].copy_from_slice(&[0, 4, 1, 0]);
    for (most, expected) in [((1, 0), (1, 0)), ((1, 3), (1, 3)), ((1, 6), (1, 4))] {
        let mut plan = plan_of(&through(over(64), over(32)), &[]);
        plan.target.version = most;
        let (fused, _) = fused(&newer, &plan);
        assert_eq!(fused.module.header.version, expected);
    }
    // `SubgroupDispatch` requires SPIR-V 1.1.
    let capability = [0x0002_0011_u32, 58].into_iter().flat_map(u32::to_le_bytes);
    newer.splice(20..20, capability);
    let mut plan = plan_of(&through(over(64), over(32)), &[]);
    plan.target.version = (1, 0);
    let why = fuse_in(&newer, &plan, Trust::Caller).fused.unwrap_err();
    let expected = "unsupported: the kernels use the capability SubgroupDispatch, which needs \
                    SPIR-V 1.1, but the device accepts at most 1.0";
    assert_eq!(why, expected);
}

#[test]
fn the_required_local_and_parameter_memory_is_reported() {
    let launches = [
        ("turned", grouped(64, 64), vec![buffer(0), buffer(1)]),
        ("turned", grouped(64, 64), vec![buffer(2), buffer(3)]),
        ("group_sums", grouped(64, 64), vec![buffer(4), buffer(5), Argument::Local(96)]),
        ("scale", over(64), vec![buffer(0), buffer(6), float(1.0)]),
    ];
    let (fused, _) = fused(OPTIMISED, &plan_of(&launches, &[]));
    assert_eq!(fused.local_bytes, 64 * 4 * 2 + 96);
    assert_eq!(fused.parameter_bytes, 7 * 8 + 8 + 4);
}

#[test]
fn random_plans_do_not_panic() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut choices = [0; 160];
    for round in 0..48 {
        random.fill(&mut choices);
        let modules = [BOTH[round % 2], ALL[round / 2 % 2], ALL_PATTERNS[round / 4 % 2]];
        fuzzing::exercise(&modules[round % 3..], &choices);
    }
}

#[test]
fn kernels_with_switches_are_remapped() {
    let launches = [
        ("linear", over(64), vec![buffer(0), buffer(1)]),
        ("switched", over([8, 4]), vec![buffer(1)]),
    ];
    for bytes in BOTH {
        let (_, text) = fused(bytes, &plan_of(&launches, &[]));
        assert!(text.contains("OpSwitch") && text.contains("OpUMod"), "{text}");
    }
}

/// A variable has no known meaning if, for example, its decoration is given for a group of variables.
#[test]
fn values_of_unknown_meaning_are_refused() {
    let launches = [
        ("linear", over(64), vec![buffer(0), buffer(1)]),
        ("row_major", over([8, 4]), vec![buffer(2), buffer(3)]),
    ];
    let mut module = Module::parse(SHAPES).unwrap();
    let annotations = module.section_mut(Section::Annotations);
    let (built_in, size) = (Decoration::BuiltIn as u32, BuiltIn::GlobalSize as u32);
    let decoration = annotations.iter().find(|i| i.words_from(1).eq([built_in, size])).unwrap();
    let variable = decoration.word(0);
    annotations.retain(|i| i.word(0) != variable);
    let outcome =
        fuse(&plan_of(&launches, &[]), &[&module], Trust::Caller, Width::ONE, FusionForm::Direct)
            .unwrap();
    let why = outcome.fused.unwrap_err();
    assert!(why.contains("that its module does not declare as a known built-in value"), "{why}");
}
