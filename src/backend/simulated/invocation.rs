//! Launches, as the closures that implement kernels see them.

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use bytemuck::{Pod, cast_slice, cast_slice_mut, pod_read_unaligned};
use kiln_compiler::NdRange;
use kiln_spirv::Access;

use super::counters::Counters;
use super::memory::Region;
use super::scan::Signature;
use crate::backend::Argument;
use crate::error::Result;

/// Argument of a launch that waits for its turn.
pub(super) enum BoundArgument {
    Memory(Region),
    Value(Box<[u8]>),
    Local(usize),
    Sampler,
}

impl BoundArgument {
    pub(super) fn new(argument: &Argument<'_>, counters: &Arc<Counters>) -> Result<Self> {
        Ok(match *argument {
            Argument::Memory(memory) => Self::Memory(Region::of(memory, counters)?.clone()),
            Argument::Value(bytes) => Self::Value(bytes.into()),
            Argument::Local(bytes) => Self::Local(bytes),
            Argument::Sampler(_) => Self::Sampler,
        })
    }

    fn describe(&self) -> String {
        match self {
            Self::Memory(region) => format!("a buffer of {} bytes", region.len()),
            Self::Value(bytes) => format!("a value of {} bytes", bytes.len()),
            Self::Local(bytes) => format!("{bytes} bytes of local memory"),
            Self::Sampler => "a sampler".to_owned(),
        }
    }
}

/// Launch of a kernel, as passed to the closure that implements it: all work-items at once.
///
/// Buffers are copied out and in, so several arguments may refer to one buffer. Arguments are numbered from
/// zero. A method panics if its arguments do not fit the launch, which fails the command with the panic's
/// message.
///
/// # Examples
///
/// ```
/// use kiln::simulated::{Invocation, Simulator};
///
/// /// Adds the first two buffers, and writes the sums to the third one.
/// fn add(call: &mut Invocation<'_>) {
///     let (a, b) = (call.read::<u32>(0), call.read::<u32>(1));
///     let sums: Vec<_> = a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b)).collect();
///     call.write(2, &sums[..call.global_size()[0]]);
/// }
///
/// Simulator::new().kernel("add", add);
/// ```
pub struct Invocation<'a> {
    kernel: &'a Signature,
    range: &'a NdRange,
    arguments: &'a [BoundArgument],
}

impl<'a> Invocation<'a> {
    pub(super) fn new(
        kernel: &'a Signature,
        range: &'a NdRange,
        arguments: &'a [BoundArgument],
    ) -> Self {
        Self { kernel, range, arguments }
    }

    /// Returns the number of work-items in each dimension.
    ///
    /// # Examples
    ///
    /// ```
    /// # let simulator = kiln::simulated::Simulator::new();
    /// simulator.kernel("fill", |call| {
    ///     let n = call.global_size()[0];
    ///     call.write(0, &vec![1.0f32; n]);
    /// });
    /// ```
    #[must_use]
    pub fn global_size(&self) -> &[usize] {
        self.range.global()
    }

    /// Returns the global id of the first work-item in each dimension.
    ///
    /// # Examples
    ///
    /// ```
    /// # let simulator = kiln::simulated::Simulator::new();
    /// simulator.kernel("number", |call| {
    ///     let first = call.offset().first().copied().unwrap_or(0);
    ///     let ids: Vec<_> = (first..first + call.global_size()[0]).map(|id| id as u32).collect();
    ///     call.write(0, &ids);
    /// });
    /// ```
    #[must_use]
    pub fn offset(&self) -> &[usize] {
        self.range.offset()
    }

    /// Returns the number of work-items of a work-group in each dimension, if the launch specified it.
    ///
    /// # Examples
    ///
    /// ```
    /// # let simulator = kiln::simulated::Simulator::new();
    /// simulator.kernel("reduce", |call| {
    ///     assert_eq!(call.local_size(), Some(&[64][..]), "it is written for groups of 64");
    /// });
    /// ```
    #[must_use]
    pub fn local_size(&self) -> Option<&[usize]> {
        self.range.local()
    }

    /// Returns the number of arguments of the launch.
    ///
    /// # Examples
    ///
    /// ```
    /// # let simulator = kiln::simulated::Simulator::new();
    /// simulator.kernel("scale", |call| assert_eq!(call.arguments(), 2));
    /// ```
    #[must_use]
    pub fn arguments(&self) -> usize {
        self.arguments.len()
    }

    /// Returns an argument that is a value.
    ///
    /// # Panics
    ///
    /// If there is no such argument, it is not a value, or `T` has another size.
    ///
    /// # Examples
    ///
    /// ```
    /// # let simulator = kiln::simulated::Simulator::new();
    /// simulator.kernel("fill", |call| {
    ///     let value: f32 = call.value(0);
    ///     let n = call.global_size()[0];
    ///     call.write(1, &vec![value; n]);
    /// });
    /// ```
    #[must_use]
    #[track_caller]
    pub fn value<T: Pod>(&self, index: usize) -> T {
        match self.argument(index) {
            BoundArgument::Value(bytes) if bytes.len() == size_of::<T>() => {
                pod_read_unaligned(bytes)
            }
            other => self.mismatch(index, other, &format!("a value of type {}", describe::<T>())),
        }
    }

    /// Returns a copy of the whole contents of an argument's buffer.
    ///
    /// # Panics
    ///
    /// If there is no such argument, it is not a buffer, or the size of the buffer is not a multiple of the
    /// size of `T`.
    ///
    /// # Examples
    ///
    /// ```
    /// # let simulator = kiln::simulated::Simulator::new();
    /// simulator.kernel("sum", |call| {
    ///     let sum: f32 = call.read::<f32>(0).iter().sum();
    ///     call.write(1, &[sum]);
    /// });
    /// ```
    #[must_use]
    #[track_caller]
    pub fn read<T: Pod>(&self, index: usize) -> Vec<T> {
        match self.argument(index) {
            BoundArgument::Memory(region) if is_whole::<T>(region.len()) => region.with(|bytes| {
                let mut elements = vec![T::zeroed(); bytes.len() / size_of::<T>()];
                cast_slice_mut(&mut elements).copy_from_slice(bytes);
                elements
            }),
            other => self.mismatch(index, other, &format!("a buffer of {}", describe::<T>())),
        }
    }

    /// Overwrites the start of an argument's buffer with `elements`. The rest of the buffer is unchanged.
    ///
    /// # Panics
    ///
    /// If there is no such argument, it is not a buffer, the kernel's signature makes it `const` or `constant`,
    /// or the buffer is too short.
    ///
    /// # Examples
    ///
    /// ```
    /// # let simulator = kiln::simulated::Simulator::new();
    /// simulator.kernel("copy", |call| {
    ///     let elements: Vec<u32> = call.read(0);
    ///     call.write(1, &elements);
    /// });
    /// ```
    #[track_caller]
    pub fn write<T: Pod>(&mut self, index: usize, elements: &[T]) {
        let new = cast_slice::<T, u8>(elements);
        match self.argument(index) {
            BoundArgument::Memory(_) if self.is_read_only(index) => panic!(
                "argument {index} of the kernel `{}` is read-only, by its signature",
                self.kernel.name
            ),
            BoundArgument::Memory(region) if region.len() >= new.len() => {
                region.with_mut(|bytes| bytes[..new.len()].copy_from_slice(new));
            }
            other => self.mismatch(
                index,
                other,
                &format!("a buffer for {} of {}", elements.len(), describe::<T>()),
            ),
        }
    }

    /// Returns the size in bytes of an argument that is local memory.
    ///
    /// # Panics
    ///
    /// If there is no such argument, or it is not local memory.
    ///
    /// # Examples
    ///
    /// ```
    /// # let simulator = kiln::simulated::Simulator::new();
    /// simulator.kernel("reduce", |call| {
    ///     let floats = call.local_bytes(1) / size_of::<f32>();
    ///     assert!(floats >= 64, "one element for each work-item of a group");
    /// });
    /// ```
    #[must_use]
    #[track_caller]
    pub fn local_bytes(&self, index: usize) -> usize {
        match self.argument(index) {
            BoundArgument::Local(bytes) => *bytes,
            other => self.mismatch(index, other, "local memory"),
        }
    }

    #[track_caller]
    fn argument(&self, index: usize) -> &'a BoundArgument {
        self.arguments.get(index).unwrap_or_else(|| {
            panic!(
                "the kernel `{}` was launched with {} arguments; it has no argument {index}",
                self.kernel.name,
                self.arguments.len()
            )
        })
    }

    fn is_read_only(&self, index: usize) -> bool {
        let parameter = self.kernel.parameters.as_ref().and_then(|all| all.get(index));
        parameter.is_some_and(|parameter| parameter.access == Some(Access::Read))
    }

    #[track_caller]
    fn mismatch(&self, index: usize, found: &BoundArgument, expected: &str) -> ! {
        panic!(
            "argument {index} of the kernel `{}` is {}, not {expected}",
            self.kernel.name,
            found.describe()
        )
    }
}

fn is_whole<T>(bytes: usize) -> bool {
    size_of::<T>() != 0 && bytes.is_multiple_of(size_of::<T>())
}

fn describe<T>() -> String {
    format!("{} ({} bytes)", type_name::<T>(), size_of::<T>())
}

impl fmt::Debug for Invocation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arguments: Vec<_> = self.arguments.iter().map(BoundArgument::describe).collect();
        f.debug_struct("Invocation")
            .field("kernel", &self.kernel.name)
            .field("range", self.range)
            .field("arguments", &arguments)
            .finish()
    }
}
