//! Settings of a remote cache.

use std::str::FromStr;
use std::time::Duration;

use super::envelope::Secret;

/// Operations that are allowed on a [remote cache](crate::cache::remote).
///
/// # Examples
///
/// ```
/// use kiln::CacheConfig;
/// use kiln::remote::RemoteAccess;
///
/// let access: RemoteAccess = "read-only".parse().unwrap();
/// assert_eq!(access, RemoteAccess::ReadOnly);
/// let cache = CacheConfig::new().remote_access(access);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RemoteAccess {
    /// Programs are read from it, and programs built here are written to it: for a fleet whose members trust
    /// each other.
    #[default]
    ReadWrite,
    /// Programs are read from it, and nothing is written: for nodes that use what other machines publish.
    ReadOnly,
    /// Programs built here are written to it, and nothing is read: for a machine that publishes, and whose
    /// builds depend on no other machine.
    WriteOnly,
}

impl RemoteAccess {
    pub(crate) fn reads(self) -> bool {
        self != Self::WriteOnly
    }

    pub(crate) fn writes(self) -> bool {
        self != Self::ReadOnly
    }
}

/// Parses `read-write`, `read-only` or `write-only`. The error lists these values.
impl FromStr for RemoteAccess {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "read-write" => Ok(Self::ReadWrite),
            "read-only" => Ok(Self::ReadOnly),
            "write-only" => Ok(Self::WriteOnly),
            _ => Err(format!("`{text}` is not one of `read-write`, `read-only` and `write-only`")),
        }
    }
}

/// Settings of a remote cache, with the environment and the defaults applied.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) access: RemoteAccess,
    /// Longest time that a build waits for an answer before its compile starts.
    pub(crate) budget: Duration,
    /// Longest time without progress of one attempt.
    pub(crate) timeout: Duration,
    /// Size of the largest object that is read or written, in bytes.
    pub(crate) max_bytes: u64,
    pub(crate) secret: Option<Secret>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            access: RemoteAccess::default(),
            budget: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            max_bytes: 64 << 20,
            secret: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_are_parsed() {
        for (text, reads, writes) in
            [("read-write", true, true), ("read-only", true, false), ("write-only", false, true)]
        {
            let access: RemoteAccess = text.parse().expect(text);
            assert_eq!((access.reads(), access.writes()), (reads, writes), "{text}");
        }
        assert!("readonly".parse::<RemoteAccess>().unwrap_err().contains("`read-only`"));
    }
}
