//! Reason why a file of device code cannot be read.

use std::fmt;

use super::token::Place;

/// Problem of a file, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) place: Place,
    pub(crate) problem: String,
}

pub(crate) type Result<T> = std::result::Result<T, Unreadable>;

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}
