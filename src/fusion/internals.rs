//! What this crate's own benchmarks and tests reach of this room.

use std::collections::{BTreeSet, HashMap};

use super::{Argument, Memory, Plan, Region, Slot, Trust, fuse};
use crate::digest::Digest;
use crate::error::Result;
use crate::nd_range::{NdRange, NdSize};
use crate::spirv::Module;

/// A kernel made of several.
#[derive(Debug)]
pub struct Fused {
    /// Its module.
    pub spirv: Vec<u8>,
    /// Its name.
    pub kernel: String,
    /// The buffers that are its arguments, by their numbers.
    pub parameters: Vec<u32>,
    /// Those that it does without.
    pub internalized: Vec<u32>,
}

/// Fuses launches of one module's kernels, each with as many work-items, in groups, whose arguments are
/// buffers, all of `bytes` bytes, given by numbers. `dead` are those whose contents nobody reads afterwards. Else says why not.
///
/// # Errors
///
/// [`InvalidImage`](crate::ErrorKind::InvalidImage) if it is no module, and
/// [`UnknownKernel`](crate::ErrorKind::UnknownKernel) or
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the launches do not fit it.
pub fn fuse_buffers(
    module: &[u8],
    launches: &[(&str, &[u32])],
    (items, group): (usize, usize),
    bytes: usize,
    dead: &[u32],
) -> Result<Result<Fused, String>> {
    let module = Module::parse(module)?;
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
    for (kernel, buffers) in launches {
        let region = |&buffer| Region { memory: memory(buffer), offset: 0, length: bytes };
        let arguments = buffers.iter().map(region).map(Argument::Buffer).collect();
        slots.push(Slot { module: 0, kernel: (*kernel).to_owned(), range, arguments });
    }
    let dead = dead.iter().map(|&buffer| memory(buffer)).collect();
    let modules = vec![Digest([0; 32])];
    let plan = Plan { modules, slots, constants: BTreeSet::new(), dead };
    let number = |memory: Memory| originals.get(memory.0 as usize).copied().unwrap_or_default();
    let fused = fuse(&plan, &[&module], Trust::ProofOnly)?.fused;
    Ok(fused.map(|fused| {
        let of = |place: &super::Place| match &plan.slots[place.slot].arguments[place.argument] {
            Argument::Buffer(region) => number(region.memory),
            _ => u32::MAX,
        };
        Fused {
            spirv: fused.module.assemble(),
            kernel: fused.kernel,
            parameters: fused.parameters.iter().filter_map(|p| p.first()).map(of).collect(),
            internalized: fused.internalized.into_iter().map(number).collect(),
        }
    }))
}
