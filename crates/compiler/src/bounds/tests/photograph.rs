//! Kernels of the example `pipeline`, with the arguments that it gives them.

use super::*;

const DENOISE: &[u8] = include_bytes!("../../../../../tests/data/bounds/denoise.spv");
const EDGES: &[u8] = include_bytes!("../../../../../tests/data/bounds/edges.spv");
const PIXELS: &[u8] = include_bytes!("../../../../../tests/data/bounds/pixels.spv");
const SHARPEN: &[u8] = include_bytes!("../../../../../tests/data/bounds/sharpen.spv");
const TONE: &[u8] = include_bytes!("../../../../../tests/data/bounds/tone.spv");

/// Number of work-groups of `measure`, and their size.
const GROUPS: usize = 1024;
const GROUP_SIZE: usize = 64;

/// Returns the kernels of a frame of `size` times `size` pixels.
pub(super) fn launches(size: usize) -> Vec<(&'static str, &'static [u8], NdRange, Vec<Argument>)> {
    let plane = NdRange::from(NdSize::from([size, size]));
    let mut groups = NdRange::from(NdSize::from(GROUPS * GROUP_SIZE));
    groups.set_local(GROUP_SIZE.into()).unwrap();
    let one = NdRange::from(NdSize::from(1));
    let (pixels, floats) = (buffer(size * size * 16), buffer(size * size * 4));
    let (file, number) = (floats.clone(), scalar(0.5_f32));
    let count = scalar((size * size) as u32);
    let sums = buffer(GROUPS * 4);
    let (p, n) = (pixels, number);
    let to = p.clone();
    vec![
        ("unpack", PIXELS, plane, vec![file.clone(), to.clone()]),
        ("denoise", DENOISE, plane, vec![p.clone(), n.clone(), n.clone(), to.clone()]),
        ("blur_rows", SHARPEN, plane, vec![p.clone(), to.clone()]),
        ("blur_columns", SHARPEN, plane, vec![p.clone(), to.clone()]),
        ("unsharp", SHARPEN, plane, vec![p.clone(), p.clone(), n.clone(), to.clone()]),
        (
            "measure",
            TONE,
            groups,
            vec![p.clone(), count.clone(), Argument::Local(GROUP_SIZE * 4), sums.clone()],
        ),
        ("expose", TONE, one, vec![sums, scalar(GROUPS as u32), count, n.clone(), buffer(4)]),
        ("sobel", EDGES, plane, vec![p.clone(), n.clone(), n.clone(), floats.clone()]),
        ("sketch", PIXELS, plane, vec![floats.clone(), file.clone()]),
        ("filmic", TONE, plane, vec![p.clone(), buffer(4), n.clone(), to]),
        ("overlay", PIXELS, plane, vec![p, floats, n, file]),
    ]
}

#[test]
fn all_kernels_are_proven() {
    for size in [512, 2048] {
        for (name, module, range, arguments) in launches(size) {
            let guarded = guarded(module, name, &range, &arguments);
            assert!(guarded.is_empty(), "{name} at {size}: {guarded:#?}");
        }
    }
}
