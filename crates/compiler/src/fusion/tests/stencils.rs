//! Launches that run again for the elements that later launches read.

use rspirv::spirv::{FunctionControl, Op};

use super::*;
use crate::analysis::declaration::Declaration;
use crate::fusion::legality::Judgement;
use crate::transform::merge::set_control;

const STENCILS: &[u8] = include_bytes!("../../../../../tests/data/stencils.spv");

const SIZE: [usize; 2] = [40, 24];

/// Number of bytes of a picture.
const LENGTH: usize = SIZE[0] * SIZE[1] * 16;

fn pixels(memory: u32) -> Argument {
    picture(memory, 0)
}

/// Returns a picture of a memory that holds several, by its number.
fn picture(memory: u32, at: usize) -> Argument {
    Argument::Buffer(Region { memory: Memory(memory), offset: at * LENGTH, length: LENGTH })
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

#[track_caller]
fn assert_refused_in_all_forms(plan: &Plan, expected: &str) {
    for form in FORMS {
        let why = in_form(plan, form).map(|_| form).unwrap_err();
        assert!(why.contains(expected), "{form}: {why}");
    }
}

#[test]
fn elements_beyond_those_that_the_producer_writes_are_not_its_results() {
    let both = Region { memory: Memory(1), offset: 0, length: 2 * LENGTH };
    let launches = [
        ("scale", vec![pixels(0), float(2.0), pixels(1)]),
        ("beyond", vec![Argument::Buffer(both), pixels(2)]),
    ];
    let why = "`in` is read at places that may be outside of what is written";
    assert_refused_in_all_forms(&plan(&launches, SIZE, &[]), why);
}

#[test]
fn a_picture_beside_the_one_that_was_written_last_is_not_its_result() {
    let launches = [
        ("scale", vec![pixels(0), float(2.0), picture(1, 1)]),
        ("scale", vec![pixels(0), float(3.0), picture(1, 0)]),
        ("blur_x", vec![picture(1, 0), pixels(2)]),
        ("blur_x", vec![picture(1, 1), pixels(3)]),
    ];
    let why = "`in` is read at places that may be outside of what is written";
    assert_refused_in_all_forms(&plan(&launches, SIZE, &[1]), why);
}

#[test]
fn a_buffer_that_a_producer_writes_through_two_arguments_is_not_recomputed() {
    let longer = Region { memory: Memory(1), offset: 0, length: 2 * LENGTH };
    let launches = [
        ("twice", vec![pixels(0), pixels(1), Argument::Buffer(longer)]),
        ("blur_x", vec![pixels(1), pixels(2)]),
    ];
    let why = "is a buffer that it also writes through another argument";
    assert_refused_in_all_forms(&plan(&launches, SIZE, &[1]), why);
    // The launch after the first reads its own element through a longer argument, and one that the first did
    // not write.
    let launches = [
        ("scale", vec![pixels(0), float(2.0), pixels(1)]),
        ("own_and_beyond", vec![Argument::Buffer(longer), pixels(2)]),
        ("blur_x", vec![pixels(2), pixels(3)]),
    ];
    let mut plan = plan(&launches, SIZE, &[2]);
    plan.target.order_own_accesses = false;
    assert_refused_in_all_forms(&plan, why);
}

#[test]
fn a_buffer_whose_earlier_contents_are_read_is_not_internalized() {
    let numbers = |memory| {
        Argument::Buffer(Region { memory: Memory(memory), offset: 0, length: SIZE[0] * 4 })
    };
    let launches = [
        ("step_1d", vec![numbers(0), numbers(1)]),
        ("step_1d", vec![numbers(1), numbers(0)]),
        ("step_1d", vec![numbers(0), numbers(2)]),
    ];
    let plan = plan(&launches, SIZE[0], &[0, 1]);
    assert_all_forms(&plan, &[1]);
    let module = Module::parse(STENCILS).unwrap();
    let form = FusionForm::Strips { rows: 5 };
    let outcome = fuse(&plan, &[&module], Trust::ProofOnly, Width::ONE, form).unwrap();
    let why: Vec<_> = outcome.judgements.iter().map(Judgement::why_in_memory).collect();
    let expected = "`step_1d` reads `in` at offsets that change while it runs";
    assert_eq!(why[..2], [Some(expected.to_owned()), None]);
}

#[test]
fn functions_take_no_vectors_of_three_for_drivers_that_pass_them_wrongly() {
    let launches = [
        ("scale", vec![pixels(0), float(2.0), pixels(1)]),
        ("scale", vec![pixels(1), float(2.0), pixels(2)]),
        ("scale", vec![pixels(2), float(2.0), pixels(3)]),
        ("blur_x", vec![pixels(3), pixels(4)]),
    ];
    let mut module = Module::parse(STENCILS).unwrap();
    let functions: Vec<_> = module.functions.iter().map(|function| function.id).collect();
    for function in functions {
        set_control(&mut module, function, |_| FunctionControl::DONT_INLINE.bits());
    }
    let mut plan = plan(&launches, SIZE, &[1, 2, 3]);
    for is_wrong in [false, true] {
        plan.target.widen_vectors = is_wrong;
        let form = FusionForm::Inlined;
        let outcome = fuse(&plan, &[&module], Trust::ProofOnly, Width::ONE, form).unwrap();
        let fused = outcome.fused.unwrap();
        valid(&fused);
        let definitions = fused.module.definitions();
        let has_three = |ty: u32| {
            let defined = definitions.get(ty).unwrap();
            defined.op() == Some(Op::TypeVector) && defined.word(2) == Some(3)
        };
        let parameters = |function: &kiln_spirv::edit::Function| {
            let head = function.body.iter().find(|i| i.op() == Some(Op::Function)).unwrap();
            let is_separate = head.word(2) == Some(FunctionControl::DONT_INLINE.bits());
            is_separate.then(|| Declaration::of(&function.body).parameters)
        };
        let mut parameters = fused.module.functions.iter().filter_map(parameters).flatten();
        assert_eq!(parameters.any(|(_, ty)| has_three(ty)), !is_wrong);
    }
}
