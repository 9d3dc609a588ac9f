//! Warnings that users have to see: through [`tracing`], and for applications without a subscriber on
//! standard error.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Mutex;

use crate::sync::lock;

/// The environment variable that keeps warnings from standard error, by the value `off`.
pub(crate) const VARIABLE: &str = "KILN_WARNINGS";

/// Maximum number of different warnings that a process writes.
const MOST: usize = 32;

/// Warns of something once.
pub(crate) fn warn(message: &str) {
    if is_new(message) {
        tracing::warn!("{message}");
        write(message);
    }
}

/// Writes a warning, of which `tracing` was told, to standard error, unless it was written before, the
/// environment forbids it, or the application has set a subscriber that shows or hides warnings.
pub(crate) fn show(message: &str) {
    if is_new(message) {
        write(message);
    }
}

fn write(message: &str) {
    let is_off = std::env::var_os(VARIABLE).is_some_and(|value| value == "off");
    if !is_off && !tracing::dispatcher::has_been_set() {
        // Without a reader there is nobody to tell.
        let _ = io::stderr().write_all(format!("kiln: warning: {message}\n").as_bytes());
    }
}

fn is_new(message: &str) -> bool {
    static SEEN: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut seen = lock(&SEEN);
    let seen = seen.get_or_insert_default();
    seen.len() < MOST && seen.insert(message.to_owned())
}
