//! Record of the arguments that a driver's kernel holds, so that an unchanged argument is not set again.

use smallvec::SmallVec;

use super::Argument;
use crate::error::{Error, Result};

/// Identity of an argument, to compare it with the one that was set last.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Given<'a> {
    /// Id of the memory object. Addresses are reused, so they do not identify it.
    Memory(u64),
    Local(usize),
    Value(&'a [u8]),
}

/// Argument that was last set for a parameter.
#[derive(Default)]
pub(super) struct SetArgument {
    holds: Holds,
    /// Bytes of the last value. Kept across launches to reuse its allocation.
    value: SmallVec<[u8; 16]>,
}

#[derive(Clone, Copy, Default)]
enum Holds {
    #[default]
    Unknown,
    Memory(u64),
    Local(usize),
    /// The bytes in [`SetArgument::value`].
    Value,
}

/// Returns the error for any argument that is given for an image or a sampler.
pub(super) fn not_an_image(kernel: &str, index: u32, argument: &Argument<'_>) -> Error {
    Error::invalid(format!(
        "kernel `{kernel}`, parameter {index}: given {argument}, expected an image or a sampler, \
         which Kiln does not support as arguments"
    ))
}

impl SetArgument {
    pub(super) fn holds(&self, given: Given<'_>) -> bool {
        let held = match self.holds {
            Holds::Unknown => return false,
            Holds::Memory(id) => Given::Memory(id),
            Holds::Local(bytes) => Given::Local(bytes),
            Holds::Value => Given::Value(&self.value),
        };
        held == given
    }

    /// Marks the held argument as unknown. Called before an argument is set, because after a failure it is
    /// unknown what the driver holds.
    pub(super) fn forget(&mut self) {
        self.holds = Holds::Unknown;
    }

    /// Records an argument after it was set.
    pub(super) fn keep(&mut self, given: Given<'_>) {
        self.holds = match given {
            Given::Memory(id) => Holds::Memory(id),
            Given::Local(bytes) => Holds::Local(bytes),
            Given::Value(bytes) => {
                self.value.clear();
                self.value.extend_from_slice(bytes);
                Holds::Value
            }
        };
    }
}

/// Checks that there is an argument for each parameter. With one too few, the launch would use the argument of
/// an earlier launch.
///
/// # Errors
///
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the numbers differ.
pub(super) fn check_count(kernel: &str, parameters: usize, arguments: usize) -> Result<()> {
    if arguments == parameters {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "kernel `{kernel}` was given {arguments} arguments, expected {parameters}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_argument_holds_only_the_last_value() {
        let given = [
            Given::Memory(1),
            Given::Memory(2),
            Given::Local(1),
            Given::Local(2),
            Given::Value(&[1]),
            Given::Value(&[1, 0]),
            Given::Value(&[]),
        ];
        let mut argument = SetArgument::default();
        assert!(!given.iter().any(|one| argument.holds(*one)), "nothing was set");
        for set in given {
            argument.keep(set);
            for other in given {
                assert_eq!(argument.holds(other), set == other);
            }
        }
        argument.forget();
        assert!(!given.iter().any(|one| argument.holds(*one)), "the value was forgotten");
    }
}
