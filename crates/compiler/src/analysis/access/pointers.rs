//! Pointers, as far as they are known.

use std::collections::BTreeSet;

use crate::analysis::affine::{Form, Space};

/// Pointer, as far as it is known.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pointer {
    pub(super) base: Base,
    /// Offset from the base in bytes; `None` if it is not known.
    pub(super) offset: Option<Form>,
}

/// Memory that a pointer points into.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Base {
    /// Buffer that is the kernel's parameter of this index.
    Parameter(usize),
    /// Buffer of one of these parameters. Memory outside of buffers is possible, too, unless the flag is set.
    OneOf(BTreeSet<usize>, bool),
    /// Variable that is not a built-in one, by its id.
    Variable(u32),
    /// Built-in variable, by its id.
    BuiltIn(u32),
    /// Memory outside of buffers.
    Harmless,
    /// No memory: the null pointer.
    Null,
    /// Any memory.
    Anything,
}

impl Pointer {
    /// Returns a pointer to an unknown place in the memory.
    pub(super) const fn to(base: Base) -> Self {
        Self { base, offset: None }
    }

    /// Returns a pointer that covers both pointers.
    pub(super) fn or(&self, other: &Self, space: &Space) -> Self {
        if self.base == other.base {
            let offset = self.offset.zip(other.offset).map(|(a, b)| a.or(&b, space));
            return Self { base: self.base.clone(), offset };
        }
        let (mut parameters, mut is_complete) = (BTreeSet::new(), true);
        for base in [&self.base, &other.base] {
            match base {
                Base::Parameter(parameter) => _ = parameters.insert(*parameter),
                Base::OneOf(several, are_all) => {
                    parameters.extend(several);
                    is_complete &= are_all;
                }
                Base::Anything => return Self::to(Base::Anything),
                Base::Variable(_) | Base::BuiltIn(_) | Base::Harmless | Base::Null => {
                    is_complete = false;
                }
            }
        }
        if parameters.is_empty() {
            return Self::to(Base::Harmless);
        }
        let offset = self.offset.zip(other.offset).map(|(a, b)| a.or(&b, space));
        Self { base: Base::OneOf(parameters, is_complete), offset }
    }
}
