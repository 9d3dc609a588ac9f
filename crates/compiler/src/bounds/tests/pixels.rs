//! Kernels that access images: verdicts, compared with runs of the kernels.

use kiln_spirv::edit::{Location, Section, located};

use super::interpreter::{Event, Given, Grid, Machine, Memory};
use super::*;
use crate::analysis::images::is_access;
use crate::bounds::without_false_claims;
use crate::{Addressing, Sampler};

pub(super) const IMAGES: &[u8] = include_bytes!("../../../../../tests/data/bounds/images.spv");

pub(super) fn image(type_name: &'static str, size: [usize; 3], channel: Channel) -> Argument {
    Argument::Image { type_name, size, channel }
}

/// Launch of a kernel of the module [`IMAGES`], in 16 work-items in each of its dimensions.
struct Launched {
    kernel: &'static str,
    arguments: Vec<Argument>,
    dimensions: usize,
}

/// Returns launches whose accesses to pixels are all inside of images of this size, as far as `by` allows it.
fn launches(size: usize, by: i32) -> Vec<Launched> {
    let (float, unsigned) = (Channel::Float, Channel::Unsigned);
    let line = |ty| image(ty, [size, 1, 1], float);
    let picture = |channel| image("image2d_t", [size, size, 1], channel);
    let volume = |ty| image(ty, [size; 3], unsigned);
    let clamping = Argument::Sampler(Sampler::new().addressing(Addressing::Clamp));
    let launched = |kernel, dimensions, arguments| Launched { kernel, arguments, dimensions };
    vec![
        launched("blur", 2, vec![picture(float), picture(float), clamping.clone(), scalar(2_i32)]),
        launched("shift", 2, vec![picture(unsigned), picture(unsigned), scalar(by), scalar(-by)]),
        launched(
            "rows",
            2,
            vec![
                line("image1d_t"),
                image("image1d_array_t", [size, size, 1], float),
                line("image1d_buffer_t"),
                line("image1d_buffer_t"),
                clamping,
            ],
        ),
        launched(
            "volumes",
            3,
            vec![
                volume("image3d_t"),
                volume("image2d_array_t"),
                volume("image2d_array_t"),
                buffer(4 * size),
            ],
        ),
        launched("exchange", 2, vec![picture(float), line("image1d_t"), scalar(16 + by)]),
    ]
}

impl Launched {
    fn range(&self) -> NdRange {
        let size = match self.dimensions {
            2 => NdSize::from([16, 16]),
            _ => NdSize::from([16, 16, 16]),
        };
        NdRange::from(size)
    }

    fn grid(&self) -> Grid {
        let depth = if self.dimensions == 2 { 1 } else { 16 };
        Grid { global: [16, 16, depth], offset: [0; 3], local: [1; 3] }
    }
}

/// Returns how many instructions of a kernel access pixels.
fn accesses(kernel: &Kernel) -> usize {
    let functions = (Section::COUNT as u32..).zip(&kernel.module.functions);
    let all = functions.flat_map(|(stream, known)| located((stream, &known.body)));
    all.filter(|(_, i)| i.op().is_some_and(is_access)).count()
}

#[test]
fn accesses_inside_of_images_are_proven_and_those_outside_are_guarded() {
    let module = without_false_claims(&Module::parse(IMAGES).unwrap()).unwrap().assemble();
    for (size, by) in [(16, 0), (16, 1), (15, 0), (3, -2)] {
        for launched in launches(size, by) {
            let (kernel, report) =
                checked(&module, launched.kernel, &launched.range(), &launched.arguments);
            let is_inside = size == 16 && by == 0;
            let text = report.describe(&kernel);
            assert!(
                report.accesses.iter().all(|known| known.is_in_bounds() || !is_inside),
                "{text:?}"
            );
            let definitions = kernel.module.definitions();
            let (memory, given) = Memory::of(&launched.arguments, 3);
            let mut plain = Machine::new(&definitions, memory.clone(), launched.grid()).unwrap();
            plain.fuel = usize::MAX;
            plain.run(kernel.function, &given).unwrap();
            assert_eq!(plain.contradiction(&report), None, "{}", launched.kernel);
            let is_pixel = |location: &&Location| {
                let i = location.instruction(&kernel.module);
                i.and_then(|i| i.op()).is_some_and(is_access)
            };
            let touched = plain.touched.iter().filter(is_pixel).count();
            assert_eq!(touched, accesses(&kernel), "{}", launched.kernel);
            let leaves =
                plain.events.iter().any(|(_, event)| matches!(event, Event::Outside { .. }));
            let expected = match launched.kernel {
                "blur" => false,
                "shift" => !is_inside,
                _ => size < 16,
            };
            assert_eq!(leaves, expected, "{}", launched.kernel);

            let guarded = variant(&kernel, Some(&report), &[]).unwrap();
            let definitions = guarded.module.definitions();
            let mut machine = Machine::new(&definitions, memory, launched.grid()).unwrap();
            machine.fuel = usize::MAX;
            let given = Given::with_lengths(&given, &launched.arguments, &guarded.lengths);
            machine.run(kernel.function, &given).unwrap();
            assert_eq!(machine.events, BTreeSet::new(), "{}", launched.kernel);
            assert_eq!(machine.images, plain.images, "{}", launched.kernel);
            assert_eq!(machine.objects, plain.objects, "{}", launched.kernel);
        }
    }
}
