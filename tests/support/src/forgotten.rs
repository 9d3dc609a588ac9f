//! Values that a test leaks.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

/// Leaked values. Leak Sanitizer finds them here, and so does not report these intended leaks. They are never
/// dropped.
static FORGOTTEN: Mutex<Vec<Box<dyn Any + Send>>> = Mutex::new(Vec::new());

/// Leaks a value.
pub fn forget(value: impl Any + Send) {
    FORGOTTEN.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(value));
}
