//! Launches that run again for the elements that later launches read.

use super::*;

const STENCILS: &[u8] = include_bytes!("../../../../tests/data/stencils.spv");

const SIZE: [usize; 2] = [40, 24];

fn pixels(memory: u32) -> Argument {
    Argument::Buffer(Region { memory: Memory(memory), offset: 0, length: SIZE[0] * SIZE[1] * 16 })
}

const FORMS: [FusionForm; 4] = [
    FusionForm::Inlined,
    FusionForm::Tiles { width: 8, height: 4 },
    FusionForm::Strips { rows: 5 },
    FusionForm::Windows { rows: 7 },
];

fn in_form(plan: &Plan, form: FusionForm) -> Result<Fused, String> {
    let module = Module::parse(STENCILS).unwrap();
    fuse(plan, &[&module], Trust::ProofOnly, Width::ONE, form).unwrap().fused
}

#[track_caller]
fn assert_all_forms(plan: &Plan, internalized: &[u32]) {
    for form in FORMS {
        let fused = in_form(plan, form).unwrap_or_else(|why| panic!("{form}: {why}"));
        valid(&fused);
        let expected: Vec<_> = internalized.iter().map(|&memory| Memory(memory)).collect();
        assert_eq!(fused.internalized, expected, "{form}");
    }
}

#[test]
fn a_pointwise_producer_runs_in_its_consumer() {
    let launches = [("unpack", vec![pixels(0), pixels(1)]), ("edges", vec![pixels(1), pixels(2)])];
    assert_all_forms(&plan(&launches, SIZE, &[1]), &[1]);
}

#[test]
fn two_passes_of_a_blur_become_one_kernel() {
    let launches = [
        ("blur_x", vec![pixels(0), pixels(1)]),
        ("blur_y", vec![pixels(1), pixels(2)]),
        ("add", vec![pixels(0), pixels(2), pixels(3)]),
    ];
    assert_all_forms(&plan(&launches, SIZE, &[1, 2]), &[1, 2]);
}

#[test]
fn chains_of_stencils_run_all_their_producers_again() {
    let launches = [
        ("unpack", vec![pixels(0), pixels(1)]),
        ("blur_x", vec![pixels(1), pixels(2)]),
        ("blur_y", vec![pixels(2), pixels(3)]),
        ("edges", vec![pixels(3), pixels(4)]),
    ];
    assert_all_forms(&plan(&launches, SIZE, &[1, 2, 3]), &[1, 2, 3]);
}
