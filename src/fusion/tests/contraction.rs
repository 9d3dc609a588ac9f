//! Products of one launch and sums of another stay apart.

use super::*;
use crate::spirv::edit::Stream;

/// The module without the mode that forbids contraction.
fn contracting(bytes: &[u8]) -> Module {
    let mut module = Module::parse(bytes).unwrap();
    let mode = rspirv::spirv::ExecutionMode::ContractionOff as u32;
    module.section_mut(Section::ExecutionModes).retain(|i| i.word(1) != Some(mode));
    module
}

fn products_then_sums() -> Plan {
    let launches =
        [("in_place", vec![buffer(0)]), ("offset", vec![buffer(0), buffer(1), float(1.0)])];
    plan(&launches, 64, &[])
}

#[test]
fn launches_that_forbid_contraction_make_kernels_that_do() {
    for bytes in ALL {
        let (_, text) = fused(bytes, &products_then_sums());
        assert!(text.contains("ContractionOff"), "{text}");
    }
}

#[test]
fn launches_with_nothing_to_contract_make_kernels_that_contract_nothing() {
    for bytes in ALL {
        let module = contracting(bytes);
        let outcome =
            fuse(&products_then_sums(), &[&module], Trust::ProofOnly, Width::ONE).unwrap();
        let text = valid(&outcome.fused.unwrap());
        assert!(text.contains("ContractionOff"), "{text}");
        // Products that a launch between only passes on.
        let launches = [
            ("in_place", vec![buffer(0)]),
            ("copy", vec![buffer(0), buffer(1)]),
            ("offset", vec![buffer(1), buffer(2), float(1.0)]),
        ];
        let mut passing = plan(&launches, 64, &[]);
        passing.modules = vec![Digest([0; 32]), Digest([1; 32])];
        passing.slots[1].module = 1;
        let modules = [&module, &contracting(include_bytes!("../../../tests/data/restricted.spv"))];
        let outcome = fuse(&passing, &modules, Trust::ProofOnly, Width::ONE).unwrap();
        let text = valid(&outcome.fused.unwrap());
        assert!(text.contains("ContractionOff"), "{text}");
        // Nobody adds to what is multiplied.
        let launches =
            [("offset", vec![buffer(0), buffer(1), float(1.0)]), ("in_place", vec![buffer(1)])];
        let outcome =
            fuse(&plan(&launches, 64, &[]), &[&module], Trust::ProofOnly, Width::ONE).unwrap();
        let text = valid(&outcome.fused.unwrap());
        assert!(!text.contains("ContractionOff"), "{text}");
    }
}

#[test]
fn launches_that_may_be_contracted_themselves_pass_no_products_on() {
    let module = contracting(PATTERNS);
    let sums = |from, to| ("sum_of_products", vec![buffer(from), buffer(to)]);
    let chain = plan(&[sums(0, 1), sums(1, 2)], 64, &[1]);
    let why = fuse(&chain, &[&module], Trust::ProofOnly, Width::ONE).unwrap().fused.unwrap_err();
    assert_eq!(
        why,
        "the driver may round products of `sum_of_products` and sums of `sum_of_products` at once, \
         for their modules allow it"
    );
    // Who vouches for it, may.
    valid(&fuse(&chain, &[&module], Trust::Caller, Width::ONE).unwrap().fused.unwrap());
    // What is apart stays apart.
    let apart = plan(&[sums(0, 1), sums(0, 2)], 64, &[]);
    let text =
        valid(&fuse(&apart, &[&module], Trust::ProofOnly, Width::ONE).unwrap().fused.unwrap());
    assert!(!text.contains("ContractionOff"), "{text}");
    // Next to one that forbids it, its bytes would be others.
    let strict = Module::parse(OPTIMISED).unwrap();
    let mut mixed = plan(&[sums(0, 1), ("quads", vec![buffer(2), buffer(3)])], 64, &[]);
    mixed.modules = vec![Digest([0; 32]), Digest([1; 32])];
    mixed.slots[1].module = 1;
    let why =
        fuse(&mixed, &[&module, &strict], Trust::ProofOnly, Width::ONE).unwrap().fused.unwrap_err();
    assert_eq!(
        why,
        "`sum_of_products` lets drivers round products and sums at once, `quads` forbids it"
    );
}

const CONSTANTS: [&[u8]; 2] = [
    include_bytes!("../../../tests/data/constants.spv"),
    include_bytes!("../../../tests/data/constants_O0.spv"),
];

/// The module, whose author lets drivers inline everything: translators forbid it without optimisation.
fn inlined(bytes: &[u8]) -> Module {
    let mut module = Module::parse(bytes).unwrap();
    for function in &mut module.functions {
        let mut body = Stream::default();
        for i in function.body.iter() {
            let control = |at| i.op() == Some(Op::Function) && at == 2;
            let words = i.words_from(0).enumerate();
            body.push(i.op().unwrap(), words.map(|(at, word)| if control(at) { 0 } else { word }));
        }
        function.body = body;
    }
    module
}

/// Whether the launches stay functions of their own, for a compiler that needs it.
#[track_caller]
fn are_apart(launches: &[Launch]) -> bool {
    let apart = |bytes: &[u8]| {
        let plan = Plan { keeps_apart: true, orders_accesses: false, ..plan(launches, 64, &[1]) };
        let outcome = fuse(&plan, &[&inlined(bytes)], Trust::ProofOnly, Width::ONE).unwrap();
        valid(&outcome.fused.unwrap()).contains("DontInline")
    };
    let [optimised, not] = CONSTANTS.map(apart);
    assert_eq!(optimised, not, "{launches:?}");
    optimised
}

#[test]
fn what_compilers_calculate_otherwise_is_not_calculated_from_constants_of_other_launches() {
    let [src, a, b, o] = [0, 1, 2, 3].map(buffer);
    let to = |kernel| (kernel, vec![a.clone()]);
    let from_to = |kernel, from: &Argument, to: &Argument| (kernel, vec![from.clone(), to.clone()]);
    let counted = ("counted", vec![src.clone(), a.clone(), int(3)]);
    let multiplied = from_to("multiplied", &a, &o);
    for constant in [to("written"), from_to("chosen", &src, &a), counted, to("put_there")] {
        assert!(are_apart(&[constant.clone(), multiplied.clone()]));
        assert!(!are_apart(&[constant.clone(), from_to("exact", &a, &o)]));
        let with_others = ("with_others", vec![src.clone(), a.clone(), o.clone()]);
        assert!(!are_apart(&[constant.clone(), with_others]));
        let passed = from_to("passed", &a, &b);
        assert!(are_apart(&[constant, passed, from_to("multiplied", &b, &o)]));
    }
    assert!(are_apart(&[to("written_whole"), from_to("multiplied_whole", &a, &o)]));
    for other in [from_to("squared", &src, &a), to("by_id")] {
        assert!(!are_apart(&[other, multiplied.clone()]));
    }
    // Of memory that another launch writes.
    assert!(!are_apart(&[to("written"), from_to("multiplied", &b, &o)]));
}

#[test]
fn what_depends_on_vectors_stays_apart() {
    let [src, a, o] = [0, 1, 2].map(buffer);
    let launches =
        |kernel| [("squared", vec![src.clone(), a.clone()]), (kernel, vec![a.clone(), o.clone()])];
    assert!(are_apart(&launches("estimated")) && !are_apart(&launches("dotted")));
    for (bytes, kernel) in CONSTANTS.into_iter().zip(["dotted_doubles", "normal_of_doubles"]) {
        let mut plan = plan(&launches(kernel), 64, &[]);
        fused(bytes, &plan);
        plan.keeps_apart = true;
        let why = fuse_in(bytes, &plan, Trust::ProofOnly).fused.unwrap_err();
        assert!(why.starts_with(&format!("`{kernel}` calculates `dot` or a length")), "{why}");
    }
}

#[test]
fn scalars_from_which_compilers_calculate_otherwise_stay_arguments() {
    for bytes in CONSTANTS {
        let launches = [("by_scalar", vec![buffer(0), int(4)])];
        let mut plan = plan(&launches, 64, &[]);
        let injected = |plan: &Plan| fuse_in(bytes, plan, Trust::ProofOnly).injected;
        let place = Place { slot: 0, argument: 1 };
        assert_eq!(injected(&plan), BTreeSet::from([place]));
        plan.keeps_apart = true;
        let outcome = fuse_in(bytes, &plan, Trust::ProofOnly);
        assert!(outcome.fused.is_ok() && outcome.injected.is_empty());
        assert_eq!(outcome.constants, BTreeSet::from([place]));
    }
}
