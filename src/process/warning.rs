//! Warnings that users must see: through [`tracing`], and on standard error if the application has no
//! subscriber.

use std::collections::HashSet;
use std::io::{self, Write};
use std::sync::Mutex;

use crate::sync::lock;

/// Name of the environment variable that, set to `off`, keeps warnings from standard error.
pub(crate) const VARIABLE: &str = "KILN_WARNINGS";

/// Maximum number of different warnings that a process writes.
const MAX_WARNINGS: usize = 32;

/// Reports a warning, once per process.
pub(crate) fn warn(message: &str) {
    if is_new(message) {
        tracing::warn!("{message}");
        write(message);
    }
}

/// Writes a warning that `tracing` has already received to standard error. Nothing is written if the same
/// warning was reported before, the environment forbids it, or the application has set a subscriber, which
/// shows or hides warnings itself.
pub(crate) fn show(message: &str) {
    if is_new(message) {
        write(message);
    }
}

fn write(message: &str) {
    let is_off = std::env::var_os(VARIABLE).is_some_and(|value| value == "off");
    if !is_off && !tracing::dispatcher::has_been_set() {
        // If standard error has no reader, there is no other place to report to.
        let _ = io::stderr().write_all(format!("kiln: warning: {message}\n").as_bytes());
    }
}

fn is_new(message: &str) -> bool {
    static SEEN: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut seen = lock(&SEEN);
    let seen = seen.get_or_insert_default();
    seen.len() < MAX_WARNINGS && seen.insert(message.to_owned())
}
