//! Reasons for which launches are not fused, in the words that people read.

use kiln_spirv::edit::{Stream, string_words};

use super::*;

const REASONS: &[u8] = include_bytes!("../../../../../tests/data/reasons.spv");

#[test]
fn the_line_of_the_source_is_stated_if_the_module_has_it() {
    let mut module = Module::parse(REASONS).unwrap();
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
    let launches = [("fill", vec![buffer(1)]), ("gathered", vec![buffer(3), buffer(1), buffer(2)])];
    let outcome = fuse_in(&module.assemble(), &plan(&launches, 64, &[]), Trust::ProofOnly);
    assert_eq!(
        outcome.fused.unwrap_err(),
        "`gathered` reads `src` (reasons.cl:7) at an index that it reads from `index`; \
         `fill` may have written the same bytes in another work-item"
    );
}
