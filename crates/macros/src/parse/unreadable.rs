//! Reason why a file of device code cannot be read.

use std::fmt;
use std::rc::Rc;

use super::token::Place;

/// Problem of a file, with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) place: Place,
    pub(crate) problem: String,
    /// Macro that decides about code, and that only the compiler of a device knows.
    pub(crate) depends_on: Option<Rc<str>>,
}

pub(crate) type Result<T> = std::result::Result<T, Unreadable>;

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}
