//! Entries found in a store, and the results of verifying them.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::collect::FoundEntry;
use super::entry::{Entry, Unusable};
use super::layout::entry_name;
use crate::digest::BuildKey;

/// An entry found in the store. Its contents may or may not verify.
///
/// # Examples
///
/// ```no_run
/// use futures::StreamExt;
///
/// # async fn example(store: kiln::store::Store) {
/// let mut entries: Vec<_> = store.entries().collect().await;
/// entries.sort_by_key(|entry| entry.used());
/// for entry in &entries {
///     println!("{:.8}: {} bytes", entry.key(), entry.bytes());
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct EntryInfo(pub(super) FoundEntry);

impl EntryInfo {
    /// Returns the key that the entry's name stands for.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(info: kiln::store::EntryInfo, program: kiln::Program) {
    /// let is_of_program = info.key() == program.key();
    /// # }
    /// ```
    #[must_use]
    pub fn key(&self) -> BuildKey {
        self.0.key
    }

    /// Returns the name of the folder of the entry's device.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::collections::BTreeMap;
    ///
    /// use futures::StreamExt;
    ///
    /// # async fn example(store: kiln::store::Store) {
    /// let mut bytes = BTreeMap::new();
    /// let mut entries = store.entries();
    /// while let Some(entry) = entries.next().await {
    ///     *bytes.entry(entry.device().to_owned()).or_insert(0) += entry.bytes();
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn device(&self) -> &str {
        &self.0.device
    }

    /// Returns the name that the entry has in every store: the path of its file below the folder of the store's
    /// version, `<device>/<2 digits>/<62 digits>.kiln`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(info: kiln::store::EntryInfo, to: kiln::store::Store) {
    /// let is_copied = matches!(to.get(&info.name()).await, Ok(Some(_)));
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> String {
        entry_name(self.device(), &self.key())
    }

    /// Returns the path of the entry's file.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(entry: kiln::store::EntryInfo) -> std::io::Result<()> {
    /// std::fs::copy(entry.path(), "program.kiln")?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the size of the entry's file, in bytes.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    ///
    /// # async fn example(store: kiln::store::Store) {
    /// let sizes: Vec<u64> = store.entries().map(|entry| entry.bytes()).collect().await;
    /// println!("the largest program has {} bytes", sizes.iter().max().unwrap_or(&0));
    /// # }
    /// ```
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Returns the time of the last use that was recorded: to within a minute, and exactly once the processes have drained.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::future::ready;
    /// use std::time::Duration;
    ///
    /// use futures::StreamExt;
    ///
    /// # async fn example(store: kiln::store::Store) {
    /// let month = Duration::from_secs(30 * 24 * 3600);
    /// let old = store.entries().filter(|entry| {
    ///     ready(entry.used().elapsed().is_ok_and(|age| age > month))
    /// });
    /// println!("{} programs were not used for a month", old.count().await);
    /// # }
    /// ```
    #[must_use]
    pub fn used(&self) -> SystemTime {
        self.0.used
    }
}

/// Result of verifying an entry.
///
/// # Examples
///
/// ```no_run
/// use futures::StreamExt;
/// use kiln::store::EntryCheck;
///
/// # async fn example(store: kiln::store::Store) {
/// let mut results = store.verify();
/// while let Some((entry, checked)) = results.next().await {
///     match checked {
///         EntryCheck::Whole(_) => {}
///         EntryCheck::Unusable(reason) => println!("{}: {reason}", entry.path().display()),
///         other => println!("{}: {other:?}", entry.path().display()),
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum EntryCheck {
    /// The entry verifies.
    Whole(Entry),
    /// The file is not a usable entry.
    Unusable(Unusable),
    /// The file could not be read.
    Unreadable(io::Error),
}
