//! What this crate's own benchmarks and tests reach of this room.

use std::collections::{BTreeSet, HashMap};

pub use super::planned;

use super::{Argument, Internalization, Memory, Plan, Region, Slot, Trust, Width, fuse_wide};
use crate::digest::Digest;
use crate::error::Result;
use crate::nd_range::{NdRange, NdSize};
use crate::spirv::Module;

/// A launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The index of the kernel's module.
    pub module: usize,
    /// The kernel's name.
    pub kernel: &'static str,
    /// In order.
    pub arguments: Vec<Given>,
}

/// An argument of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// By its number.
    Buffer(u32),
    /// A number.
    Uint(u32),
}

/// A kernel made of several.
#[derive(Debug)]
pub struct Fused {
    /// Its module.
    pub spirv: Vec<u8>,
    /// Its name.
    pub kernel: String,
    /// How many work-items it has.
    pub items: usize,
    /// Its arguments, in order.
    pub parameters: Vec<Given>,
    /// The buffers of which something is kept in variables.
    pub kept: Vec<u32>,
    /// Those that it does without.
    pub internalized: Vec<u32>,
    /// Those of them that are local memory of work-groups.
    pub local: Vec<u32>,
    /// How many barriers are between the launches.
    pub barriers: usize,
}

/// The local memory of a work-group, which every device has that is no embedded one.
pub(super) const LOCAL_LIMIT: usize = 32 << 10;

/// How launches are to be fused.
#[derive(Clone, Copy, Debug)]
pub struct Wishes {
    /// What all dead buffers are to become, or stay in memory; what is provable if it is not given.
    pub into: Option<Internalization>,
    /// As many work-items' work one of the new kernel may do.
    pub width: usize,
}

/// Fuses launches, each with as many work-items, in groups, whose buffers are all of `bytes` bytes.
/// `dead` are those whose contents nobody reads afterwards. Else says why not.
///
/// # Errors
///
/// [`InvalidImage`](crate::ErrorKind::InvalidImage) if a module is none, and
/// [`UnknownKernel`](crate::ErrorKind::UnknownKernel) or
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the launches do not fit them.
pub fn fuse_launches(
    modules: &[&[u8]],
    launches: &[Launch],
    (items, group): (usize, usize),
    bytes: usize,
    dead: &[u32],
    Wishes { into, width }: Wishes,
) -> Result<Result<Fused, String>> {
    let modules = modules.iter().map(|&module| Module::parse(module));
    let modules = modules.collect::<Result<Vec<_>>>()?;
    let mut range = NdRange::from(NdSize::from(items));
    range.set_local(group.into())?;
    let mut numbers = HashMap::new();
    let mut originals = Vec::new();
    let mut memory = |number: u32| {
        *numbers.entry(number).or_insert_with(|| {
            originals.push(number);
            Memory(originals.len() as u32 - 1)
        })
    };
    let mut slots = Vec::new();
    for Launch { module, kernel, arguments } in launches {
        let argument = |given: &Given| match *given {
            Given::Buffer(buffer) => {
                Argument::Buffer(Region { memory: memory(buffer), offset: 0, length: bytes })
            }
            Given::Uint(value) => Argument::Scalar(value.to_le_bytes().into()),
        };
        let arguments = arguments.iter().map(argument).collect();
        let kernel = (*kernel).to_owned();
        slots.push(Slot { module: *module, kernel, range, arguments, constants: Vec::new() });
    }
    let dead: BTreeSet<_> = dead.iter().map(|&buffer| memory(buffer)).collect();
    let forms = dead.iter().filter_map(|&memory| Some((memory, into?))).collect();
    let digests = (0..modules.len()).map(|at| Digest([at as u8; 32])).collect();
    let plan = Plan {
        modules: digests,
        slots,
        constants: BTreeSet::new(),
        dead,
        version: (1, 6),
        forms,
        local_limit: LOCAL_LIMIT,
    };
    let number = |memory: Memory| originals.get(memory.0 as usize).copied().unwrap_or_default();
    let width = Width { most: width, least_left: 0 };
    let modules: Vec<_> = modules.iter().collect();
    let outcome = fuse_wide(&plan, &modules, Trust::ProofOnly, width)?;
    let kept = outcome.judgements.iter().filter(|judgement| judgement.promotion.is_ok());
    let kept = kept.map(|judgement| number(judgement.memory)).collect();
    Ok(outcome.fused.map(|fused| {
        let of = |places: &Vec<super::Place>| {
            let place = places.first()?;
            Some(launches[place.slot].arguments[place.argument])
        };
        Fused {
            spirv: fused.module.assemble(),
            kernel: fused.kernel,
            items: fused.range.global().iter().product(),
            parameters: fused.parameters.iter().filter_map(of).collect(),
            kept,
            internalized: fused.internalized.into_iter().map(number).collect(),
            local: fused.local.into_iter().map(number).collect(),
            barriers: fused.barriers.len(),
        }
    }))
}
