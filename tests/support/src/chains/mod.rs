//! Chains of launches that a person would fuse, in the shapes of public code.

mod boards;
mod filters;
mod grids;
mod images;
mod linear_algebra;
mod prepared;
pub mod random;
mod tensors;
mod transformer;

use kiln::launch::NdSize;
pub use prepared::{Prepared, program};

/// Launches over buffers, and what is expected of their fusion.
#[derive(Clone)]
pub struct Chain {
    pub name: &'static str,
    /// SPIR-V module of the kernels.
    pub module: &'static [u8],
    pub buffers: Vec<Contents>,
    pub launches: Vec<Step>,
    /// Positions of the buffers that nobody reads after the launches.
    pub intermediates: Vec<usize>,
    pub expected: Expected,
}

/// Initial contents of a buffer, with its length in words of four bytes.
#[derive(Clone, Copy)]
pub enum Contents {
    /// Floating-point numbers between -4 and 4.
    Floats(usize),
    /// Floating-point numbers between 0.5 and 1.5.
    Factors(usize),
    /// Bytes of any value.
    Bytes(usize),
    /// The numbers 0, 1, 2 and so on.
    Counting(usize),
}

/// One launch.
#[derive(Clone)]
pub struct Step {
    pub kernel: &'static str,
    pub global: NdSize,
    pub local: Option<NdSize>,
    pub arguments: Vec<Value>,
}

#[derive(Clone, Copy)]
pub enum Value {
    /// Buffer, by its position.
    Buffer(usize),
    Int(i32),
    Uint(u32),
    Long(u64),
    Float(f32),
    /// Local memory, by its size in bytes.
    Local(usize),
}

#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// All launches run as one kernel.
    Fuses,
    /// Likewise, but not with Intel's runtime for CPUs. In other work-groups it adds up sums in loops in
    /// another order, and launches with barriers must stay functions there, which cannot run again.
    FusesExceptIntel,
    /// Not all launches run as one kernel, for a reason that contains this text.
    Refused(&'static str),
}

use Contents::{Bytes, Counting, Factors, Floats};
use Expected::{Fuses, FusesExceptIntel, Refused};
use Value::{Buffer, Float, Int, Local, Long, Uint};

/// Returns all chains.
pub fn all() -> Vec<Chain> {
    let mut all = [transformer::chains(), linear_algebra::chains(), images::chains()].concat();
    all.extend([boards::chains(), filters::chains(), grids::chains(), tensors::chains()].concat());
    all
}

/// Gives chains the module of their kernels.
fn of_module(module: &'static [u8], chains: Vec<Chain>) -> Vec<Chain> {
    chains.into_iter().map(|chain| Chain { module, ..chain }).collect()
}

/// Creates a chain whose first buffer is the input, and whose last one is the result. The module follows: see
/// [`of_module`].
fn chain(
    name: &'static str,
    buffers: Vec<Contents>,
    launches: Vec<Step>,
    expected: Expected,
) -> Chain {
    let intermediates = (1..buffers.len() - 1).collect();
    Chain { name, module: &[], buffers, launches, intermediates, expected }
}

/// Creates a launch whose work-group size the driver chooses.
fn step<const D: usize>(kernel: &'static str, global: &[usize; D], arguments: &[Value]) -> Step
where
    [usize; D]: Into<NdSize>,
{
    Step { kernel, global: (*global).into(), local: None, arguments: arguments.to_vec() }
}

/// Creates a launch in work-groups of a size.
fn grouped<const D: usize>(
    kernel: &'static str,
    global: &[usize; D],
    local: &[usize; D],
    arguments: &[Value],
) -> Step
where
    [usize; D]: Into<NdSize>,
{
    Step { local: Some((*local).into()), ..step(kernel, global, arguments) }
}
