//! Arguments and memory of the interpreter.

use super::Pixels;
use crate::Sampler;
use crate::bounds::Argument;

/// Argument of a kernel: the index of an object, bytes of a value, the index of an image, or a sampler.
#[derive(Clone, Debug)]
pub(in crate::bounds) enum Given {
    Object(usize),
    Bytes(Vec<u8>),
    Image(usize),
    Sampler(Sampler),
}

impl Given {
    /// Returns the arguments of a guarded kernel: those of the kernel, and the lengths of the arguments at some
    /// positions.
    pub(in crate::bounds) fn with_lengths(
        given: &[Self],
        launch: &[Argument],
        lengths: &[usize],
    ) -> Vec<Self> {
        let length = |&at: &usize| match &launch[at] {
            Argument::Buffer { length, .. } | Argument::Local(length) => *length as u64,
            Argument::Scalar(bytes) => bytes.len() as u64,
            Argument::Image { .. } | Argument::Sampler(_) => 0,
        };
        let lengths = lengths.iter().map(|at| Self::Bytes(length(at).to_le_bytes().to_vec()));
        given.iter().cloned().chain(lengths).collect()
    }
}

/// Memory that is passed to a kernel.
#[derive(Clone, Debug, Default)]
pub(in crate::bounds) struct Memory {
    pub(in crate::bounds) objects: Vec<Vec<u8>>,
    pub(in crate::bounds) images: Vec<Pixels>,
}

impl Memory {
    /// Returns the memory of a launch, and the arguments that lead to it. All bytes of buffers and all numbers of
    /// images are `content`.
    pub(in crate::bounds) fn of(arguments: &[Argument], content: u8) -> (Self, Vec<Given>) {
        let mut memory = Self::default();
        let mut given = Vec::new();
        for argument in arguments {
            given.push(match argument {
                Argument::Buffer { length, .. } | Argument::Local(length) => {
                    memory.objects.push(vec![content; *length]);
                    Given::Object(memory.objects.len() - 1)
                }
                Argument::Scalar(bytes) => Given::Bytes(bytes.clone()),
                Argument::Image { size, channel, .. } => {
                    memory.images.push(Pixels::new(*size, *channel, content));
                    Given::Image(memory.images.len() - 1)
                }
                Argument::Sampler(sampler) => Given::Sampler(*sampler),
            });
        }
        (memory, given)
    }
}

impl From<Vec<Vec<u8>>> for Memory {
    fn from(objects: Vec<Vec<u8>>) -> Self {
        Self { objects, images: Vec::new() }
    }
}
