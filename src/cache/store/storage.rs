//! Whether a program is kept in the store, and why not.

use std::fmt;
use std::ops::RangeInclusive;

/// Whether a program is kept in the store on disk, and the reason if it is not.
///
/// # Examples
///
/// ```
/// use kiln::store::Storage;
///
/// assert!(Storage::Stored.is_stored());
/// let storage = Storage::Size { bytes: 2_000, sizes: 0..=1_000 };
/// assert_eq!(storage.to_string(), "its binary has 2000 bytes, and the store takes 0 to 1000");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Storage {
    /// The store had the program when it was loaded, or got it after its compile. It may have been evicted since.
    Stored,
    /// The program is being written in the background; [`Runtime::drain`](crate::Runtime::drain) waits for that.
    Pending,
    /// The runtime has no store on disk.
    Off,
    /// The module is a native binary, which is loaded without a compile.
    Native,
    /// The text or a file that it includes uses the time of the build: `__TIME__`, `__DATE__` or `__TIMESTAMP__`.
    UsesTime,
    /// Other code built the program.
    Given,
    /// The size of the binary is not among [those that are stored](crate::CacheConfig::entry_bytes).
    Size {
        /// Size of the binary, in bytes.
        bytes: u64,
        /// Sizes that are stored, in bytes.
        sizes: RangeInclusive<u64>,
    },
    /// The entry would be larger than [the whole store](crate::CacheConfig::max_bytes).
    Limit {
        /// Size of the entry, in bytes.
        bytes: u64,
        /// Maximum size of the store, in bytes.
        limit: u64,
    },
    /// No room could be made for the entry, because another process has been collecting for long, or because other
    /// entries cannot be removed.
    Full,
    /// The driver did not return the binary, for this reason.
    NoBinary(String),
    /// The disk took too long for the programs before this one.
    Slow,
    /// The disk could not be written, for this reason.
    Failed(String),
    /// The store has an entry for the program that a newer version of Kiln wrote.
    Newer,
}

impl Storage {
    /// Returns whether the store has the program, as far as is known.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
    /// let program = rt.build(&module).await?;
    /// rt.drain().await;
    /// let storage = program.storage();
    /// if !storage.is_stored() {
    ///     println!("each start compiles it: {storage}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_stored(&self) -> bool {
        *self == Self::Stored
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stored => f.write_str("it is stored"),
            Self::Pending => f.write_str("it is being written"),
            Self::Off => f.write_str("there is no store on disk"),
            Self::Native => f.write_str("a native binary is loaded without a compile"),
            Self::UsesTime => f.write_str(
                "its text uses the time of the build (`__TIME__`, `__DATE__` or `__TIMESTAMP__`)",
            ),
            Self::Given => f.write_str("other code built it"),
            Self::Size { bytes, sizes } => write!(
                f,
                "its binary has {bytes} bytes, and the store takes {} to {}",
                sizes.start(),
                sizes.end()
            ),
            Self::Limit { bytes, limit } => write!(
                f,
                "its entry would have {bytes} bytes, more than the limit of the store, {limit}"
            ),
            Self::Full => f.write_str("the store is full, and no room could be made"),
            Self::NoBinary(reason) => write!(f, "the driver did not return its binary: {reason}"),
            Self::Slow => f.write_str("the disk took too long for the programs before it"),
            Self::Failed(reason) => write!(f, "the store could not be written: {reason}"),
            Self::Newer => f.write_str("the store has an entry for it of a newer version of Kiln"),
        }
    }
}
