//! Environment variables that hold settings of the caches, and their values.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::cache::duration::parse_duration;
use crate::error::{Error, ErrorKind, Result};

pub(super) const MAX_SIZE: &str = "KILN_CACHE_MAX_SIZE";
pub(super) const MAX_AGE: &str = "KILN_CACHE_MAX_AGE";
pub(super) const MIN_ENTRY_SIZE: &str = "KILN_CACHE_MIN_ENTRY_SIZE";
pub(super) const MAX_ENTRY_SIZE: &str = "KILN_CACHE_MAX_ENTRY_SIZE";
pub(super) const BUILD_WAIT: &str = "KILN_CACHE_BUILD_WAIT";
pub(super) const MEMORY_LIMIT: &str = "KILN_MEMORY_LIMIT";

/// Environment variables. An empty variable counts as not set.
pub(super) trait Variables {
    fn value(&self, name: &str) -> Option<OsString>;

    /// Returns the value of a variable, unless it is empty.
    fn non_empty(&self, name: &str) -> Option<OsString> {
        self.value(name).filter(|value| !value.is_empty())
    }

    /// Returns a variable that holds text. Fails if it is not valid Unicode.
    fn text(&self, name: &str) -> Result<Option<String>> {
        let text = self.non_empty(name).map(OsString::into_string);
        // The error omits the value, which may be a secret.
        text.transpose()
            .map_err(|_| variable_error(name, "its value is not valid Unicode".to_owned()))
    }

    /// Returns a variable that holds a number of bytes. Fails if its value is not one.
    fn size(&self, name: &str) -> Result<Option<u64>> {
        self.text(name)?.map(|text| parse_size(name, &text)).transpose()
    }

    /// Returns a variable that holds a time. Fails if its value is not one.
    fn time(&self, name: &str) -> Result<Option<Duration>> {
        let parsed = self.text(name)?.map(|text| {
            parse_duration(&text).ok_or_else(|| {
                let expected = "give a number with the unit ms, s, min, h or d";
                variable_error(name, format!("`{text}` is not a valid time; {expected}"))
            })
        });
        parsed.transpose()
    }

    /// Returns a variable that holds a path, which need not be Unicode.
    fn path(&self, name: &str) -> Option<PathBuf> {
        self.non_empty(name).map(PathBuf::from)
    }
}

/// Environment of this process.
pub(super) struct Environment;

impl Variables for Environment {
    fn value(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }
}

/// Returns the error for a variable with an invalid value.
pub(super) fn variable_error(variable: &str, reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::Configuration, reason.into()).within(variable)
}

/// Parses a number of bytes, with or without a unit.
fn parse_size(variable: &str, text: &str) -> Result<u64> {
    let trimmed = text.trim();
    let digits = trimmed.len() - trimmed.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = trimmed.split_at(digits);
    let scale: Option<u64> = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => Some(1),
        "kib" => Some(1 << 10),
        "mib" => Some(1 << 20),
        "gib" => Some(1 << 30),
        "tib" => Some(1 << 40),
        "kb" => Some(1_000),
        "mb" => Some(1_000_000),
        "gb" => Some(1_000_000_000),
        "tb" => Some(1_000_000_000_000),
        _ => None,
    };
    let bytes = number.parse::<u64>().ok().zip(scale).and_then(|(n, scale)| n.checked_mul(scale));
    bytes.ok_or_else(|| {
        let reason = format!(
            "`{text}` is not a valid size; give a number of bytes, or a number with the unit KiB, \
             MiB or GiB"
        );
        variable_error(variable, reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("0", 0),
            ("123", 123),
            ("512MiB", 512 << 20),
            ("2 GiB", 2 << 30),
            ("1kib", 1024),
            ("1GB", 1_000_000_000),
        ] {
            assert_eq!(parse_size(MAX_SIZE, text).expect(text), bytes, "{text}");
        }
        for text in ["", "MiB", "-1", "1.5GiB", "1GiBs", "99999999999999999999", "99999999999TiB"] {
            let error = parse_size(MAX_SIZE, text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(error.to_string().contains("KILN_CACHE_MAX_SIZE"), "{error}");
        }
    }
}
