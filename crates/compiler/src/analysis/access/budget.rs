//! Limit of the work that an analysis of a kernel may take.

use std::cell::Cell;

/// Steps that an analysis may still do. A step looks at one value of one instruction.
#[derive(Debug)]
pub(crate) struct Budget(Cell<usize>);

impl Budget {
    /// Creates a budget of a number of steps.
    pub(crate) const fn of(steps: usize) -> Self {
        Self(Cell::new(steps))
    }

    /// Takes a step. Returns `false` if none is left.
    pub(super) fn step(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left > 0
    }

    /// Returns whether no step is left.
    pub(crate) fn is_spent(&self) -> bool {
        self.0.get() == 0
    }
}
