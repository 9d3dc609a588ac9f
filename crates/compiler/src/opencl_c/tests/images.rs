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

#[test]
fn images_and_samplers_have_the_functions_of_their_kind() {
    for bytes in [
        &include_bytes!("../../../../../tests/data/emitted/images_O0.spv")[..],
        include_bytes!("../../../../../tests/data/emitted/images_O2.spv"),
    ] {
        let text = emit(bytes).unwrap();
        for part in [
            "read_only image2d_t",
            "write_only image2d_array_t",
            "read_only image1d_buffer_t",
            "read_only image3d_t",
            "CLK_NORMALIZED_COORDS_TRUE | CLK_ADDRESS_MIRRORED_REPEAT | CLK_FILTER_LINEAR;",
            "CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;",
            "= as_uint4(read_imagei(",
            "= read_imageui(",
            "get_image_array_size(",
            "get_image_channel_order(",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
