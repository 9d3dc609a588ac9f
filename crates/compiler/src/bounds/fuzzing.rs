//! Fuzz target of checks, for the fuzzer in `fuzz/`, which is built with `--cfg fuzzing`.
#![allow(missing_docs, clippy::missing_panics_doc, reason = "not part of the interface")]

use kiln_spirv::Module;
use kiln_spirv::edit::Section;

use super::interpreter::{Given, Grid, Machine, Memory};
use super::kernel::{Kernel, ParameterMemory};
use super::report::Report;
use super::{Argument, Channel, Launch, check, define, variant, without_false_claims};
use crate::NdRange;
use crate::analysis::images::ImageType;
use crate::fusion::fuzzing::{Choices, SIZES};
use crate::{Addressing, Filter, Sampler};

/// Lengths of memory in bytes.
const LENGTHS: [usize; 10] = [4096, 4096, 1024, 256, 64, 16, 4, 3, 1, 0];

/// Sizes of images in pixels.
const PIXELS: [usize; 8] = [1, 2, 3, 4, 16, 64, 100, 1 << 14];

/// Number of work-items that are run.
const ITEMS: usize = 6;

/// Maximum number of instructions of a work-item.
const FUEL: usize = 2000;

/// Checks a launch of one of a module's kernels, and makes its guarded variant. Neither may panic for any bytes.
/// Runs some work-items: what is proven must hold in them, and the variant must stay inside all memory.
pub fn exercise(bytes: &[u8], choices: &[u8]) {
    let Ok(module) = Module::parse(bytes) else { return };
    let mut module = without_false_claims(&module).unwrap_or(module);
    if define(&mut module).is_err() {
        return;
    }
    let mut choices = Choices(choices);
    let entries = module.section(Section::EntryPoints);
    let names: Vec<_> = entries.iter().filter_map(|entry| Some(entry.entry_point()?.1)).collect();
    let Some(name) = names.get(choices.below(names.len())) else { return };
    let read_only = (0..4).filter(|_| choices.below(8) == 0).collect();
    let Ok(kernel) = Kernel::of(&module, name, &[], &read_only) else { return };
    let arguments = choices.checked_arguments(&kernel);
    let (range, uniform_groups) = (choices.checked_range(), choices.below(2) == 0);
    let few_constants = choices.below(2) == 0;
    let launch = Launch { range: &range, arguments: &arguments, uniform_groups, few_constants };
    let Ok(report) = check(&kernel, &launch) else { return };
    std::hint::black_box(report.describe(&kernel));
    let Some(grid) = choices.grid(&kernel, &launch) else { return };
    let items: Vec<_> = (0..ITEMS).map(|at| choices.item(at, &grid)).collect();
    let run = Run { arguments: &arguments, grid, items, content: choices.below(256) as u8 };
    run.confirm(&kernel, &report);
    if let Ok(guarded) = variant(&kernel, Some(&report), &[]) {
        let bytes = guarded.module.assemble();
        let again = Module::parse(&*bytes).expect("a guarded module is valid");
        assert_eq!(again.assemble(), bytes);
        run.confirm_guarded(&kernel, &again, &guarded.lengths);
    }
}

/// Work-items to run.
struct Run<'a> {
    arguments: &'a [Argument],
    grid: Grid,
    items: Vec<[u64; 3]>,
    /// Value of all bytes of buffers, and of all numbers of images.
    content: u8,
}

impl Run<'_> {
    /// Runs the work-items, as far as the interpreter can.
    fn run(&self, machine: &mut Machine<'_>, function: u32, given: &[Given]) {
        for &place in &self.items {
            machine.fuel = FUEL;
            if machine.run_item(function, given, place).is_err() {
                return;
            }
        }
    }

    /// Asserts what a report proves.
    fn confirm(&self, kernel: &Kernel, report: &Report) {
        let definitions = kernel.module.definitions();
        let (memory, given) = Memory::of(self.arguments, self.content);
        let Ok(mut machine) = Machine::new(&definitions, memory, self.grid) else { return };
        self.run(&mut machine, kernel.function, &given);
        let contradiction = machine.contradiction(report);
        assert!(contradiction.is_none(), "{contradiction:?}");
    }

    /// Asserts that a guarded variant stays inside its memory, and that its operations are defined.
    fn confirm_guarded(&self, kernel: &Kernel, module: &Module, lengths: &[usize]) {
        let definitions = module.definitions();
        let (memory, given) = Memory::of(self.arguments, self.content);
        let given = Given::with_lengths(&given, self.arguments, lengths);
        let Ok(mut machine) = Machine::new(&definitions, memory, self.grid) else { return };
        self.run(&mut machine, kernel.function, &given);
        assert!(machine.events.is_empty(), "the variant is not safe: {:?}", machine.events);
    }
}

impl Choices<'_> {
    /// Returns arguments for a kernel, most of which fit its parameters.
    fn checked_arguments(&mut self, kernel: &Kernel) -> Vec<Argument> {
        let mut arguments = Vec::new();
        for parameter in &kernel.parameters {
            let memory = match self.below(40) {
                39 => ParameterMemory::Buffer,
                _ => parameter.memory,
            };
            let length = LENGTHS[self.below(LENGTHS.len())];
            arguments.push(match memory {
                ParameterMemory::Buffer => {
                    Argument::Buffer { length, alignment: [128, 128, 16, 4, 1][self.below(5)] }
                }
                ParameterMemory::Local => Argument::Local(length),
                ParameterMemory::Image(image) => self.image(image),
                ParameterMemory::Sampler => Argument::Sampler(self.sampler()),
                ParameterMemory::ByValue | ParameterMemory::None => {
                    let size = parameter.size.unwrap_or(4).clamp(0, 256) as usize;
                    let rest = if self.below(4) == 0 { 255 } else { 0 };
                    let mut bytes = vec![rest; size];
                    bytes.iter_mut().take(1).for_each(|byte| *byte = self.below(256) as u8);
                    Argument::Scalar(bytes)
                }
            });
        }
        arguments
    }

    /// Returns an image of the kind that a parameter declares. Sizes that the kind lacks are 1.
    fn image(&mut self, image: ImageType) -> Argument {
        let sizes = std::array::from_fn(|_| PIXELS[self.below(PIXELS.len())]);
        Argument::Image {
            type_name: image.name().unwrap_or_default(),
            size: image.size_of(sizes),
            channel: [Channel::Float, Channel::Signed, Channel::Unsigned][self.below(3)],
        }
    }

    /// Returns a sampler. Most reads are defined with one that is not normalized, nearest and does not repeat.
    fn sampler(&mut self) -> Sampler {
        let filter = [Filter::Nearest, Filter::Nearest, Filter::Linear][self.below(3)];
        let addressing = [
            Addressing::None,
            Addressing::ClampToEdge,
            Addressing::Clamp,
            Addressing::Repeat,
            Addressing::MirroredRepeat,
        ];
        let sampler = Sampler::new().normalized(self.below(3) == 0);
        sampler.filter(filter).addressing(addressing[self.below(addressing.len())])
    }

    fn checked_range(&mut self) -> NdRange {
        let dimensions = self.below(3);
        let most = if self.below(4) == 0 { SIZES.len() } else { SIZES.len() / 2 };
        let mut range = NdRange::from(self.size(dimensions, most));
        if self.below(3) == 0 {
            _ = range.set_local(self.size(dimensions, SIZES.len() / 2));
        }
        if self.below(4) == 0 {
            _ = range.set_offset(self.size(dimensions, SIZES.len()));
        }
        range
    }

    /// Returns the sizes of a launch, with work-groups that a driver may choose. Returns `None` for a launch
    /// without work-items, and for sizes that no device has.
    fn grid(&mut self, kernel: &Kernel, launch: &Launch<'_>) -> Option<Grid> {
        let sizes = |all: &[usize], other: u64| -> [u64; 3] {
            std::array::from_fn(|d| all.get(d).map_or(other, |&size| size as u64))
        };
        let range = launch.range;
        let (global, offset) = (sizes(range.global(), 1), sizes(range.offset(), 0));
        let stated = range.local().map(|local| sizes(local, 1));
        let required = kernel.required.map(|size| size.map(|size| size as u64));
        let local = stated.or(required).unwrap_or_else(|| {
            std::array::from_fn(|d| {
                let size = 1 + self.below(16) as u64;
                let divides = global[d].checked_rem(size) == Some(0);
                if launch.uniform_groups && !divides { 1 } else { size }
            })
        });
        let exists =
            |d: usize| global[d] > 0 && local[d] > 0 && offset[d].checked_add(global[d]).is_some();
        (0..3).all(exists).then_some(Grid { global, offset, local })
    }

    /// Returns the id of a work-item: the first, the last, or another one.
    fn item(&mut self, at: usize, grid: &Grid) -> [u64; 3] {
        grid.global.map(|size| match at {
            0 => 0,
            1 => size - 1,
            _ => (self.below(256) as u64).wrapping_mul(0x0001_0001_0000_0101) % size,
        })
    }
}
