//! Arguments of `kiln cache`.

use std::borrow::Cow;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Subcommand, ValueEnum};

use super::Settings;

#[derive(Subcommand)]
pub(crate) enum CacheCommand {
    /// List the entries
    #[command(after_help = "Contents are not verified: see `kiln cache verify`.")]
    Ls {
        /// Sort key: the latest, the largest, or in alphabetical order
        #[arg(long, value_enum, default_value_t)]
        sort: Sort,
        /// Only entries of devices with this text in their name, or of the directory with this name
        #[arg(long, value_name = "TEXT")]
        device: Option<String>,
    },
    /// Show all information about an entry
    Show {
        /// The key, or its first digits: four or more
        key: KeyPrefix,
    },
    /// Show the hits and misses of all processes, the size of the cache, by device and by age, and the state of
    /// the remote cache
    ///
    /// A running process adds its counts every few seconds, and when it waits for its programs to be written.
    #[command(after_help = "Contents are not verified: see `kiln cache verify`.")]
    Stats,
    /// Read every entry, and list those that are damaged
    #[command(after_help = "Exits with 1 if damaged entries are left.")]
    Verify {
        /// Remove damaged entries. Entries of newer versions of Kiln are left in place
        #[arg(long)]
        fix: bool,
    },
    /// Remove entries beyond the limit, and files that dead processes left behind
    ///
    /// The limit is KILN_CACHE_MAX_SIZE, or 1 GiB, which is the default of applications.
    Gc {
        /// Remove nothing, only report
        #[arg(long)]
        dry_run: bool,
    },
    /// Write the native code of an entry to a file: the binary of a program, as the driver made it, or an
    /// object
    ///
    /// An object is followed by a description, with which it can be a device library (--library) or the file of
    /// a build.
    Extract {
        /// The key, its first digits (four or more), or the name of the entry
        key: KeyPrefix,
        /// Write the driver's binary of an object without the description
        #[arg(long)]
        raw: bool,
        /// The file; by default, standard output
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Write entries to a bundle, a tar file, for `import` elsewhere
    Export {
        /// The bundle to write; - for standard output
        file: PathBuf,
        /// The entries; by default, all of them
        #[arg(value_name = "KEY")]
        keys: Vec<KeyPrefix>,
    },
    /// Add the entries of a bundle; entries that do not verify are rejected, and reported by name
    ///
    /// The check finds damage, not malice: import only bundles whose origin you trust.
    Import {
        /// The bundle to read; - for standard input
        file: PathBuf,
    },
    /// Copy entries to the remote cache
    ///
    /// By default, only entries that the remote cache does not have are copied, if it can be listed. Named
    /// entries are always copied, and replace existing objects, for example after a change of the secret.
    #[cfg(feature = "remote")]
    #[command(
        after_help = "KILN_CACHE_REMOTE names the remote cache. Exits with 1 if it does not have \
                      all entries at the end."
    )]
    Push {
        /// The entries; by default, all of them
        #[arg(value_name = "KEY")]
        keys: Vec<KeyPrefix>,
    },
    /// Copy entries from the remote cache that are not in the cache on disk
    ///
    /// Reading a remote cache means running its code: set a secret if not all of its writers are trusted. A
    /// Redis server cannot be listed; use `kiln build` to read the programs that a source requests.
    #[cfg(feature = "remote")]
    #[command(
        after_help = "KILN_CACHE_REMOTE names the remote cache. Exits with 1 if the cache on disk \
                      does not have all entries at the end."
    )]
    Pull {
        /// The entries, by their keys or the first digits of these; by default, all of them
        #[arg(value_name = "KEY")]
        keys: Vec<KeyPrefix>,
    },
    /// Remove all entries
    Clear {
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Show in which fields two keys differ, or why a source is not in the cache, down to the file that changed
    ///
    /// Each of the two is a key, or a source file, which stands for the key that building it would request now.
    /// A source alone is also looked up in the remote cache, and compared with the most similar entry.
    #[command(
        after_help = "Exits with 0 if the keys are equal, or if the one source is in the cache on \
                      disk or in the remote cache; else with 1."
    )]
    Why {
        /// A key, or a file; a file whose name could be a key is given as ./FILE
        #[arg(value_name = "KEY|FILE")]
        a: Operand,
        /// The second key or file
        #[arg(value_name = "KEY|FILE")]
        b: Option<Operand>,
        #[command(flatten)]
        settings: Settings,
    },
}

#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum Sort {
    /// Last use
    #[default]
    Used,
    /// Time of the build
    Created,
    /// Size
    Bytes,
    /// Name of the device
    Device,
}

/// First digits of a key, or all of them.
#[derive(Clone)]
pub(crate) struct KeyPrefix(String);

impl KeyPrefix {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(feature = "remote")]
impl KeyPrefix {
    /// Returns whether the key of the entry with this name has this prefix.
    pub(crate) fn matches(&self, name: &str) -> bool {
        let digits = name.split_once('/').map_or("", |(_, rest)| rest).replacen('/', "", 1);
        digits.starts_with(&self.0)
    }
}

impl FromStr for KeyPrefix {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let text = &digits_of_name(text);
        let fits = (4..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
        if fits {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err("a key has 64 hexadecimal digits; give the first 4 or more of them")
        }
    }
}

/// Returns the digits of the key in the name of an entry, `<device>/<2 digits>/<62 digits>.kiln`. Other texts
/// are returned as they are.
fn digits_of_name(text: &str) -> Cow<'_, str> {
    let name = text.strip_suffix(".kiln").and_then(|name| name.split_once('/'));
    match name.and_then(|(_device, digits)| digits.split_once('/')) {
        Some((first, rest)) => format!("{first}{rest}").into(),
        None => text.into(),
    }
}

/// Operand that stands for a key.
#[derive(Clone)]
pub(crate) enum Operand {
    Key(KeyPrefix),
    File(PathBuf),
}

impl FromStr for Operand {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.parse().map_or_else(|_| Self::File(text.into()), Self::Key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_of_hexadecimal_digits_are_keys() {
        for (text, is_key) in [
            ("abcd", true),
            (&"0".repeat(64), true),
            ("ABCD", true),
            ("abc", false),
            (&"0".repeat(65), false),
            (&format!("0123456789abcdef/ab/{}.kiln", "0".repeat(62)), true),
            ("./abcd", false),
            ("abcd.cl", false),
        ] {
            let Ok(operand) = text.parse::<Operand>();
            assert_eq!(matches!(operand, Operand::Key(_)), is_key, "{text}");
        }
    }
}
