//! Images that launches share.

use super::*;
use crate::{
    Addressing, ChannelOrder, ChannelType, Filter, ImageFormat, ImageKind, ImageShape, Sampler,
};

const PICTURES: &[u8] = include_bytes!("../../../../../tests/data/pictures.spv");

const WIDTH: usize = 37;
const HEIGHT: usize = 22;

const FLOATS: ImageFormat = ImageFormat { order: ChannelOrder::Rgba, channel: ChannelType::Float };

fn image_of(memory: u32, kind: ImageKind, size: [usize; 3], format: ImageFormat) -> Argument {
    let shape = ImageShape { kind, size, format };
    let region = Region { memory: Memory(memory), offset: 0, length: shape.bytes().unwrap() };
    Argument::Image(Image { region, shape })
}

fn picture_of(memory: u32, order: ChannelOrder, channel: ChannelType) -> Argument {
    image_of(memory, ImageKind::D2, [WIDTH, HEIGHT, 1], ImageFormat { order, channel })
}

fn picture(memory: u32) -> Argument {
    image_of(memory, ImageKind::D2, [WIDTH, HEIGHT, 1], FLOATS)
}

fn over_pictures(launches: &[Launch], dead: &[u32]) -> Plan {
    plan(launches, [WIDTH, HEIGHT], dead)
}

/// Returns the reason why launches are not fused. The caller cannot vouch for them.
#[track_caller]
fn refusal(plan: &Plan) -> String {
    let trusted = fuse_in(PICTURES, plan, Trust::Caller).fused.unwrap_err();
    let outcome = fuse_in(PICTURES, plan, Trust::ProofOnly);
    let why = outcome.fused.unwrap_err();
    assert_eq!(trusted, why);
    let is_refuted = |verdict: &FusionVerdict| *verdict == FusionVerdict::Refuted(why.clone());
    let mut judged = outcome.judgements.iter();
    let judged = judged.find(|judgement| is_refuted(&judgement.verdict)).unwrap();
    assert!(judged.pairs.values().any(is_refuted), "{:?}", judged.pairs);
    why
}

fn tone(from: u32, to: u32) -> Launch {
    ("tone", vec![picture(from), picture(to), float(2.0)])
}

fn second(kernel: &'static str, from: u32, to: u32) -> Launch {
    (kernel, vec![picture(from), picture(to)])
}

/// Returns the numbers of reads and writes of pixels.
fn accesses(text: &str) -> (usize, usize) {
    let reads = text.matches("OpImageRead").count() + text.matches("OpImageSample").count();
    (reads, text.matches("OpImageWrite").count())
}

#[test]
fn launches_that_read_the_same_image_share_its_parameter() {
    let launches = [tone(0, 1), ("keyed", vec![picture(0), picture(2), float(0.5)])];
    let (fused, text) = fused(PICTURES, &over_pictures(&launches, &[]));
    let place = |slot, argument| Place { slot, argument };
    let expected = [
        vec![place(0, 0), place(1, 0)],
        vec![place(0, 1)],
        vec![place(0, 2)],
        vec![place(1, 1)],
        vec![place(1, 2)],
    ];
    assert_eq!(fused.parameters, expected);
    assert_eq!(accesses(&text), (2, 2));
    assert_eq!(text.matches("OpTypeImage").count(), 2, "{text}");
}

#[test]
fn pixels_are_passed_on_in_variables() {
    let launches = [tone(0, 1), ("keyed", vec![picture(1), picture(2), float(0.5)])];
    let (kept, text) = fused(PICTURES, &over_pictures(&launches, &[]));
    assert!(kept.internalized.is_empty());
    assert_eq!(accesses(&text), (1, 2));
    let (kept, text) = fused(PICTURES, &over_pictures(&launches, &[1]));
    assert_eq!(kept.internalized, [Memory(1)]);
    assert_eq!(accesses(&text), (1, 1));
    assert_eq!(kept.parameters.len(), 4);
    // The size of an image that is not a parameter any more is a constant.
    assert!(!text.contains("OpImageQuery"), "{text}");
}

#[test]
fn ranges_are_trimmed_to_the_size_of_an_image() {
    let pixels = over([WIDTH, HEIGHT]);
    let rounded = over([48, 32]);
    let launches = [
        ("tone", pixels, vec![picture(0), picture(1), float(2.0)]),
        ("keyed", rounded, vec![picture(1), picture(2), float(0.5)]),
    ];
    let (fused, _) = fused(PICTURES, &plan_of(&launches, &[1]));
    assert_eq!(fused.internalized, [Memory(1)]);
    // Without the comparison, work-items access pixels outside of the image.
    let launches = [
        ("keyed", rounded, vec![picture(0), picture(1), float(2.0)]),
        ("tone", rounded, vec![picture(1), picture(2), float(2.0)]),
    ];
    assert_eq!(
        refusal(&plan_of(&launches, &[])),
        "`tone` reads `photograph` at coordinates that may be outside of the image; `keyed` may have written \
         the same pixels in another work-item"
    );
}

#[test]
fn a_chain_over_several_images_is_one_kernel() {
    let launches = [
        tone(0, 1),
        ("keyed", vec![picture(1), picture(2), float(0.5)]),
        ("overlay", vec![picture(2), picture(0), picture(3)]),
        second("by_helper", 3, 4),
    ];
    let (fused, text) = fused(PICTURES, &over_pictures(&launches, &[1, 2, 3]));
    assert_eq!(fused.internalized, [Memory(1), Memory(2), Memory(3)]);
    assert_eq!(accesses(&text), (2, 1));
    assert_eq!(fused.parameters.len(), 4);
}

#[test]
fn samplers_select_single_pixels_or_are_refused() {
    let with = |sampler| {
        let launches = [
            tone(0, 1),
            ("with_sampler", vec![picture(1), Argument::Sampler(sampler), picture(2)]),
        ];
        over_pictures(&launches, &[1])
    };
    let plain = Sampler::new().addressing(Addressing::Clamp);
    let (fused, text) = fused(PICTURES, &with(plain));
    assert_eq!((fused.internalized, accesses(&text)), (vec![Memory(1)], (1, 1)));
    assert!(!text.contains("OpSampledImage"), "{text}");
    let linear = Sampler::new().filter(Filter::Linear);
    for other in [linear, Sampler::new().normalized(true)] {
        assert_eq!(
            refusal(&with(other)),
            "`with_sampler` reads `src` through a sampler that does not select single pixels; `tone` may have \
             written the same pixels in another work-item"
        );
    }
}

#[test]
fn reads_of_other_pixels_are_refused_by_the_parameter_that_they_read() {
    for (kernel, what) in [
        ("smooth", "`smooth` reads `sharp` at coordinates that may be outside of the image"),
        ("turned", "`turned` reads `src` at coordinates that may be outside of the image"),
        ("scaled", "`scaled` reads `src` at coordinates that are not integers, through a sampler"),
    ] {
        let why = refusal(&over_pictures(&[tone(0, 1), second(kernel, 1, 2)], &[]));
        assert_eq!(
            why,
            format!("{what}; `tone` may have written the same pixels in another work-item")
        );
    }
    let indexed = ("indexed", vec![picture(1), picture(2), buffer(3)]);
    assert_eq!(
        refusal(&over_pictures(&[tone(0, 1), indexed], &[])),
        "`indexed` reads `src` at an index that it reads from `indices`; `tone` may have written the same pixels \
         in another work-item"
    );
    let square = |memory| image_of(memory, ImageKind::D2, [16, 16, 1], FLOATS);
    let launches =
        [("tone", vec![square(0), square(1), float(2.0)]), ("turned", vec![square(1), square(2)])];
    assert_eq!(
        refusal(&plan(&launches, [16, 16], &[])),
        "`turned` reads `src` at the pixel (gid(1), gid(0)), written by `tone` in another work-item: both \
         [7, 1] and [1, 7] access it"
    );
}

#[test]
fn a_kernel_does_not_read_and_write_the_same_image() {
    let masked = ("masked", vec![picture(0), picture(1), buffer(5)]);
    assert_eq!(
        refusal(&over_pictures(&[masked, second("by_helper", 1, 2)], &[1])),
        "`by_helper` reads `src`, but not all of these pixels are certainly written before, and one kernel cannot \
         both read and write an image"
    );
    assert_eq!(
        refusal(&over_pictures(&[tone(0, 1), second("by_helper", 2, 0)], &[])),
        "`tone` reads `photograph`, and `by_helper` writes it later as `dst`: one kernel cannot both read and \
         write an image"
    );
    let accumulate = ("accumulate", vec![picture(1), float(1.0)]);
    assert_eq!(
        refusal(&over_pictures(&[accumulate.clone(), accumulate.clone()], &[])),
        "`accumulate` reads `sums`, but not all of these pixels are certainly written before, and one kernel \
         cannot both read and write an image"
    );
    // Both launches together only write the image.
    let (_, text) = fused(PICTURES, &over_pictures(&[tone(0, 1), accumulate], &[]));
    assert_eq!(accesses(&text), (1, 1));
    assert_eq!(
        refusal(&over_pictures(&[tone(0, 1), second("by_order", 1, 2)], &[])),
        "for `src`, `by_order` uses the image in OpImageQueryOrder, and one kernel cannot take an image both as \
         read-only and to write it"
    );
}

#[test]
fn the_later_of_two_launches_may_write_all_pixels_again() {
    let filled = |value| ("filled", vec![picture(0), float(value)]);
    let (_, text) = fused(PICTURES, &over_pictures(&[filled(1.0), filled(2.0)], &[]));
    assert_eq!(accesses(&text), (0, 1));
    let masked = ("masked", vec![picture(1), picture(0), buffer(5)]);
    assert_eq!(
        refusal(&over_pictures(&[filled(1.0), masked], &[])),
        "`filled` and `masked` both write pixels of it, and it is not certain that the later one writes all pixels \
         of the earlier one"
    );
}

#[test]
fn only_formats_that_store_pixels_exactly_are_passed_on() {
    use {ChannelOrder as Order, ChannelType as Type};
    let chain = |order, channel| {
        let [from, to] = [1, 2].map(|memory| picture_of(memory, order, channel));
        let launches =
            [("tone", vec![picture(0), from.clone(), float(2.0)]), ("by_helper", vec![from, to])];
        over_pictures(&launches, &[1])
    };
    for (order, shuffles) in [(Order::Rgba, 1), (Order::Rg, 2), (Order::R, 2)] {
        let (fused, text) = fused(PICTURES, &chain(order, Type::Float));
        assert_eq!(fused.internalized, [Memory(1)]);
        assert_eq!(text.matches("OpVectorShuffle").count(), shuffles, "{text}");
    }
    for (order, channel, name) in [
        (Order::Rgba, Type::Unorm8, "Rgba<Unorm8>"),
        (Order::Rgba, Type::Snorm16, "Rgba<Snorm16>"),
        (Order::Rg, Type::Half, "Rg<Half>"),
        (Order::A, Type::Float, "A<Float>"),
        (Order::Luminance, Type::Float, "Luminance<Float>"),
    ] {
        assert_eq!(
            refusal(&chain(order, channel)),
            format!(
                "`by_helper` reads `src`, which an earlier launch writes, and images of the format `{name}` do \
                 not store pixels exactly as kernels write them"
            )
        );
    }
    assert_eq!(
        refusal(&chain(Order::Rgba, Type::Uint32)),
        "`tone` writes `toned` as numbers of another kind than those of its format; `by_helper` may have read the \
         same pixels in another work-item"
    );
}

#[test]
fn integers_of_32_bits_are_passed_on() {
    let chain = |channel| {
        let image = |memory| picture_of(memory, ChannelOrder::Rg, channel);
        let count = |from, to| ("count", vec![image(from), image(to), int(3)]);
        over_pictures(&[count(0, 1), count(1, 2)], &[1])
    };
    for channel in [ChannelType::Uint32, ChannelType::Int32] {
        assert_eq!(fused(PICTURES, &chain(channel)).0.internalized, [Memory(1)]);
    }
    for channel in [ChannelType::Uint8, ChannelType::Uint16] {
        assert!(refusal(&chain(channel)).contains("do not store pixels exactly"));
    }
}

#[test]
fn rows_volumes_and_layers_are_passed_on() {
    let row = |memory| image_of(memory, ImageKind::D1, [WIDTH, 1, 1], FLOATS);
    let rows = [("row", vec![row(0), row(1)]), ("row", vec![row(1), row(2)])];
    assert_eq!(fused(PICTURES, &plan(&rows, WIDTH, &[1])).0.internalized, [Memory(1)]);
    let size = [9, 5, 3];
    let volume = image_of(0, ImageKind::D3, size, FLOATS);
    let layers = |memory| image_of(memory, ImageKind::D2Array, size, FLOATS);
    let launches = [("volume", vec![volume, layers(1)]), ("layers", vec![layers(1), layers(2)])];
    assert_eq!(fused(PICTURES, &plan(&launches, size, &[1])).0.internalized, [Memory(1)]);
}

#[test]
fn images_over_buffers_are_not_mixed_with_the_buffers() {
    let format = ImageFormat { order: ChannelOrder::R, channel: ChannelType::Float };
    let over = image_of(0, ImageKind::D1Buffer, [64, 1, 1], format);
    let doubled = ("doubled", vec![buffer(0)]);
    let values = ("values", vec![over, buffer(1)]);
    assert_eq!(
        refusal(&plan(&[doubled.clone(), values.clone()], 64, &[])),
        "`both` of `doubled` is memory that other launches use in another form"
    );
    assert_eq!(
        refusal(&plan(&[values.clone(), ("doubled", vec![buffer(0)])], 64, &[])),
        "`src` of `values` is an image over a buffer that the launches write"
    );
    // Launches that only read the memory are fused.
    let others = [values.clone(), ("doubled", vec![buffer(2)]), values];
    let (fused, _) = fused(PICTURES, &plan(&others, 64, &[0]));
    assert_eq!(fused.internalized, []);
}

#[test]
fn launches_over_images_are_fused_in_one_form() {
    let launches = [tone(0, 1), second("by_helper", 1, 2)];
    let module = Module::parse(PICTURES).unwrap();
    let plan = over_pictures(&launches, &[]);
    let fuse = |form| fuse(&plan, &[&module], Trust::ProofOnly, Width::ONE, form).unwrap();
    assert_eq!(form::forms(&plan, true), [FusionForm::Direct]);
    assert_eq!(
        fuse(FusionForm::Inlined).fused.unwrap_err(),
        "`tone` takes an image or a sampler, and such launches are fused in the form `direct` only"
    );
}

#[test]
fn work_items_do_the_work_of_several_over_images() {
    let module = Module::parse(PICTURES).unwrap();
    let size = [64, 32, 1];
    let image = |memory| image_of(memory, ImageKind::D2, size, FLOATS);
    let launches = [
        ("tone", vec![image(0), image(1), float(2.0)]),
        ("overlay", vec![image(1), image(0), image(2)]),
    ];
    let plan = plan(&launches, [64, 32], &[1]);
    let width = Width { most: 4, least_left: 64 };
    let outcome = fuse(&plan, &[&module], Trust::ProofOnly, width, FusionForm::Direct).unwrap();
    let fused = outcome.fused.unwrap();
    valid(&fused);
    assert_eq!(fused.range.global().iter().product::<usize>(), 64 * 32 / 4);
    assert_eq!(fused.parameters.len(), 3);
}
