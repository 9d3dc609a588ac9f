//! Launches that run again for the elements that later launches read.

use rspirv::spirv::{FunctionControl, Op};

use kiln_spirv::edit::View;

use super::*;
use crate::analysis::declaration::Declaration;
use crate::transform::merge::set_control;

const STENCILS: &[u8] = include_bytes!("../../../../../tests/data/stencils.spv");

const SIZE: [usize; 2] = [40, 24];

/// Number of bytes of a picture.
const LENGTH: usize = SIZE[0] * SIZE[1] * 16;

fn pixels(memory: u32) -> Argument {
    Argument::Buffer(Region { memory: Memory(memory), offset: 0, length: LENGTH })
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
        let has_three =
            |ty: u32| definitions.get(ty).unwrap().vector().is_some_and(|(_, count)| count == 3);
        let parameters = |function: &kiln_spirv::edit::Function| {
            let head = function.body.iter().find(|i| i.op() == Some(Op::Function)).unwrap();
            let View::Function { control, .. } = head.view() else { panic!("{head:?}") };
            let is_separate = control == FunctionControl::DONT_INLINE.bits();
            is_separate.then(|| Declaration::of(&function.body).parameters)
        };
        let mut parameters = fused.module.functions.iter().filter_map(parameters).flatten();
        assert_eq!(parameters.any(|(_, ty)| has_three(ty)), !is_wrong);
    }
}
