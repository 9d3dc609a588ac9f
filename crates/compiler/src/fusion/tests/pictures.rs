//! Images that launches share.

use super::*;
use crate::{ChannelOrder, ChannelType, ImageFormat, ImageKind, ImageShape};

const PICTURES: &[u8] = include_bytes!("../../../../../tests/data/pictures.spv");

const WIDTH: usize = 37;
const HEIGHT: usize = 22;

fn picture(memory: u32) -> Argument {
    let format = ImageFormat { order: ChannelOrder::Rgba, channel: ChannelType::Float };
    let shape = ImageShape { kind: ImageKind::D2, size: [WIDTH, HEIGHT, 1], format };
    let region = Region { memory: Memory(memory), offset: 0, length: shape.bytes().unwrap() };
    Argument::Image(Image { region, shape })
}

#[test]
fn launches_over_images_are_fused_in_one_form() {
    let launches = [
        ("tone", vec![picture(0), picture(1), float(2.0)]),
        ("by_helper", vec![picture(1), picture(2)]),
    ];
    let module = Module::parse(PICTURES).unwrap();
    let plan = plan(&launches, [WIDTH, HEIGHT], &[]);
    let fuse = |form| fuse(&plan, &[&module], Trust::ProofOnly, Width::ONE, form).unwrap();
    assert_eq!(form::forms(&plan, true), [FusionForm::Direct]);
    assert_eq!(
        fuse(FusionForm::Inlined).fused.unwrap_err(),
        "`tone` takes an image or a sampler, and such launches are fused in the form `direct` only"
    );
}
