//! Record of the arguments that a driver's kernel holds, so that an unchanged argument is not set again.

use kiln_compiler::Sampler;
use smallvec::SmallVec;

use crate::error::{Error, Result};

/// Identity of an argument, to compare it with the one that was set last.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ArgumentIdentity<'a> {
    /// Id of the memory object. Addresses are reused, so they do not identify it.
    Memory(u64),
    Local(usize),
    Sampler(Sampler),
    Value(&'a [u8]),
}

/// Argument that was last set for a parameter.
#[derive(Default)]
pub(super) struct SetArgument {
    last: LastSet,
    /// Bytes of the last value. Kept across launches to reuse its allocation.
    value: SmallVec<[u8; 16]>,
}

/// Kind and identity of the argument that was last set.
#[derive(Clone, Copy, Default)]
enum LastSet {
    #[default]
    Unknown,
    Memory(u64),
    Local(usize),
    Sampler(Sampler),
    /// The bytes in [`SetArgument::value`].
    Value,
}

impl SetArgument {
    /// Returns whether the driver's kernel holds this argument.
    pub(super) fn holds(&self, argument: ArgumentIdentity<'_>) -> bool {
        let held = match self.last {
            LastSet::Unknown => return false,
            LastSet::Memory(id) => ArgumentIdentity::Memory(id),
            LastSet::Local(bytes) => ArgumentIdentity::Local(bytes),
            LastSet::Sampler(sampler) => ArgumentIdentity::Sampler(sampler),
            LastSet::Value => ArgumentIdentity::Value(&self.value),
        };
        held == argument
    }

    /// Marks the held argument as unknown. Called before an argument is set, because after a failure it is
    /// unknown what the driver holds.
    pub(super) fn invalidate(&mut self) {
        self.last = LastSet::Unknown;
    }

    /// Records an argument after it was set.
    pub(super) fn record(&mut self, argument: ArgumentIdentity<'_>) {
        self.last = match argument {
            ArgumentIdentity::Memory(id) => LastSet::Memory(id),
            ArgumentIdentity::Local(bytes) => LastSet::Local(bytes),
            ArgumentIdentity::Sampler(sampler) => LastSet::Sampler(sampler),
            ArgumentIdentity::Value(bytes) => {
                self.value.clear();
                self.value.extend_from_slice(bytes);
                LastSet::Value
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
            ArgumentIdentity::Memory(1),
            ArgumentIdentity::Memory(2),
            ArgumentIdentity::Local(1),
            ArgumentIdentity::Local(2),
            ArgumentIdentity::Value(&[1]),
            ArgumentIdentity::Value(&[1, 0]),
            ArgumentIdentity::Value(&[]),
        ];
        let mut argument = SetArgument::default();
        assert!(!given.iter().any(|one| argument.holds(*one)), "nothing was set");
        for set in given {
            argument.record(set);
            for other in given {
                assert_eq!(argument.holds(other), set == other);
            }
        }
        argument.invalidate();
        assert!(!given.iter().any(|one| argument.holds(*one)), "the value was forgotten");
    }
}
