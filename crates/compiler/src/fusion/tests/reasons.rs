//! Reasons for which launches are not fused, in the words that people read.

use kiln_spirv::edit::{Stream, string_words};

use super::*;

const REASONS: [&[u8]; 2] = [
    include_bytes!("../../../../../tests/data/reasons.spv"),
    include_bytes!("../../../../../tests/data/reasons_O0.spv"),
];

/// Returns the reason why `fill` and another kernel over its output are not fused.
fn why(bytes: &[u8], kernel: &'static str, others: Vec<Argument>) -> String {
    let mut arguments = vec![buffer(1), buffer(2)];
    arguments.extend(others);
    if kernel == "gathered" {
        arguments = vec![buffer(3), buffer(1), buffer(2)];
    }
    let launches = [("fill", vec![buffer(1)]), (kernel, arguments)];
    fuse_in(bytes, &plan(&launches, 64, &[]), Trust::ProofOnly)
        .fused
        .map(|fused| fused.kernel)
        .unwrap_err()
}

#[test]
fn unknown_offsets_are_explained_by_what_they_depend_on() {
    for bytes in REASONS {
        let same_bytes = "; `fill` may have written the same bytes in another work-item";
        for (kernel, others, reads) in [
            ("gathered", vec![], "`gathered` reads `src` at an index that it reads from `index`"),
            (
                "strided",
                vec![buffer(4)],
                "`strided` reads `src` at an index that depends on `k`, which changes in a loop",
            ),
            (
                "returned",
                vec![],
                "`returned` reads `src` at an index that the function `chosen` returns",
            ),
            (
                "in_table",
                vec![int(3)],
                "`in_table` reads `src` at an index from the variable `table`, which is not followed",
            ),
        ] {
            assert_eq!(why(bytes, kernel, others), format!("{reads}{same_bytes}"));
        }
    }
}

#[test]
fn known_offsets_are_counted_in_elements() {
    assert_eq!(
        why(REASONS[0], "window", vec![int(4)]),
        "`window` reads `src` at gid-4 to gid+4, some of which may be written by `fill` in another \
         work-item, at gid"
    );
}

#[test]
fn a_stated_size_of_work_groups_is_advised_if_offsets_depend_on_it() {
    for bytes in REASONS {
        let why = why(bytes, "grouped", vec![]);
        assert!(why.ends_with("; state the size of work-groups with `Launch::local`"), "{why}");
    }
}

#[test]
fn the_line_of_the_source_is_stated_if_the_module_has_it() {
    let mut module = Module::parse(REASONS[0]).unwrap();
    let file = module.fresh_id().unwrap();
    let words = [file].into_iter().chain(string_words("kernels/reasons.cl"));
    module.section_mut(Section::Sources).push(Op::String, words);
    for function in &mut module.functions {
        let mut body = Stream::default();
        for i in function.body.iter() {
            body.push_instruction(&i);
            if i.op() == Some(Op::Label) {
                body.push(Op::Line, [file, 7, 3]);
            }
        }
        function.body = body;
    }
    let bytes = module.assemble();
    assert_eq!(
        why(&bytes, "gathered", vec![]),
        "`gathered` reads `src` (reasons.cl:7) at an index that it reads from `index`; \
         `fill` may have written the same bytes in another work-item"
    );
}
