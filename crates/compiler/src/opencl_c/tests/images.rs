//! Images and samplers in emitted text.

use kiln_spirv::edit::{Section, Stream};

use super::*;

/// Returns a module with `value` as the operand at `index` of its OpTypeImage instructions.
pub(super) fn with_images(bytes: &[u8], index: usize, value: u32) -> Vec<u8> {
    let mut module = Module::parse(bytes).unwrap();
    let mut globals = Stream::default();
    for i in module.section(Section::Globals).iter() {
        match i.op() {
            Some(Op::TypeImage) => {
                let mut words: Vec<_> = i.words_from(0).collect();
                words[index] = value;
                globals.push(Op::TypeImage, words);
            }
            _ => globals.push_instruction(&i),
        }
    }
    *module.section_mut(Section::Globals) = globals;
    module.assemble()
}

#[test]
fn images_that_are_read_and_written_have_their_qualifier() {
    let bytes = with_images(include_bytes!("../../../../../tests/data/inferred.spv"), 8, 2);
    assert!(emit(&bytes).unwrap().contains("read_write image2d_t source"));
}
