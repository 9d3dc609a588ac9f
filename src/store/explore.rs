//! A store as seen from outside: what is in it, whether it is whole, and moving entries about.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::collect::{Collected, Found, Goal, remove, scan};
use super::entry::{Entry, Unusable, decode, decode_for};
use super::layout::Address;
use super::publish::publish;
use super::{Store, collect_now};
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};

/// An entry as it lies in the store; its contents may or may not verify.
#[derive(Clone, Debug)]
pub struct EntryInfo(Found);

impl EntryInfo {
    /// The key that its name stands for.
    #[must_use]
    pub fn key(&self) -> BuildKey {
        self.0.key
    }

    /// The folder of its device.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.0.device
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The size of its file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// When it was last used, give or take ten minutes.
    #[must_use]
    pub fn used(&self) -> SystemTime {
        self.0.used
    }
}

/// What verifying an entry comes to.
#[derive(Debug)]
#[non_exhaustive]
pub enum Checked {
    /// It is whole.
    Whole(Entry),
    /// It serves as no entry.
    Unusable(Unusable),
    /// The system could not read it.
    Unreadable(io::Error),
}

/// Looking in from outside.
impl Store {
    /// Every entry, in no order. What other files there are is passed over.
    pub fn entries(&self) -> impl Iterator<Item = EntryInfo> {
        scan(&self.0.layout).map(EntryInfo)
    }

    /// Reads and verifies an entry. Does not count as a use.
    #[must_use]
    pub fn check(&self, entry: &EntryInfo) -> Checked {
        match self.read(entry.path(), false) {
            Ok(bytes) => match bytes.and_then(|bytes| decode_for(&entry.key(), bytes)) {
                Ok(entry) => Checked::Whole(entry),
                Err(unusable) => Checked::Unusable(unusable),
            },
            Err(error) => Checked::Unreadable(error),
        }
    }

    /// Removes an entry, unless it was replaced or used since it was found. Tells whether it did.
    #[must_use = "an entry that was replaced or used meanwhile stays"]
    pub fn remove(&self, entry: &EntryInfo) -> bool {
        remove(&self.0.layout, &entry.0)
    }

    /// Adds the file of an entry, taken from [`Entry::bytes`] elsewhere, to the folder of its device.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the folder is not named as those of devices
    /// are, or the bytes do not verify; [`Io`](ErrorKind::Io) if they cannot be written.
    pub fn insert(&self, device: &str, bytes: Vec<u8>) -> Result<BuildKey> {
        let folder = parse_device(device).ok_or_else(|| {
            Error::invalid(format!("`{device}` does not name the folder of a device"))
        })?;
        let entry = decode(bytes)
            .map_err(|unusable| Error::invalid(format!("the entry does not verify: {unusable}")))?;
        let address = Address { device: folder, key: entry.key() };
        let path = self.0.layout.entry(&address);
        let durability = self.0.settings.durability;
        let published = publish(&self.0.layout, &path, [entry.bytes(), &[]], durability)
            .map_err(|error| cannot_write(&path, error))?;
        self.grown(entry.bytes().len() as u64, published);
        Ok(address.key)
    }

    /// Collects now: removes what the limits leave no room for, sweeps up after dead writers, and
    /// counts. With `dry_run`, only tells what it would remove.
    ///
    /// # Errors
    ///
    /// [`Io`](ErrorKind::Io) if another process is collecting.
    pub fn collect(&self, dry_run: bool) -> Result<Collected> {
        let goal = Goal { dry_run, ..self.goal() };
        collect_now(&self.0, goal).ok_or_else(|| {
            Error::new(ErrorKind::Io, "another process is collecting; try again when it is done")
        })
    }

    /// Removes every entry, and tells how many.
    ///
    /// # Errors
    ///
    /// As for [`collect`](Self::collect).
    pub fn clear(&self) -> Result<u64> {
        let removed = self.entries().filter(|entry| self.remove(entry)).count();
        // Counts what is left, and sweeps.
        self.collect(false)?;
        Ok(removed as u64)
    }
}

fn parse_device(text: &str) -> Option<[u8; 8]> {
    let number = u64::from_str_radix(text, 16).ok()?;
    (format!("{number:016x}") == text).then(|| number.to_be_bytes())
}

fn cannot_write(path: &Path, error: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot write {}", path.display())).with_source(error)
}
