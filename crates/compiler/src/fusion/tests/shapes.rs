//! Launches whose nd-ranges differ, and other differences between two clones of a kernel.

use rspirv::spirv::{BuiltIn, Decoration};

use super::*;

const SHAPES: &[u8] = include_bytes!("../../../../../tests/data/shapes.spv");
const SHAPES_UNOPTIMISED: &[u8] = include_bytes!("../../../../../tests/data/shapes_O0.spv");
const BOTH: [&[u8]; 2] = [SHAPES, SHAPES_UNOPTIMISED];

fn through(first: NdRange, second: NdRange) -> [Ranged; 2] {
    [("linear", first, vec![buffer(0), buffer(1)]), ("linear", second, vec![buffer(1), buffer(2)])]
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
fn random_plans_do_not_panic() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut choices = [0; 160];
    for round in 0..48 {
        random.fill(&mut choices);
        let modules = [BOTH[round % 2], ALL[round / 2 % 2], ALL_PATTERNS[round / 4 % 2]];
        fuzzing::exercise(&modules[round % 3..], &choices);
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
    let variable = decoration.target();
    annotations.retain(|i| i.target() != variable);
    let outcome =
        fuse(&plan_of(&launches, &[]), &[&module], Trust::Caller, Width::ONE, FusionForm::Direct)
            .unwrap();
    let why = outcome.fused.unwrap_err();
    assert!(why.contains("that its module does not declare as a known built-in value"), "{why}");
}
