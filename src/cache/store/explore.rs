//! Inspection of a store from outside: listing, verifying, importing and removing entries.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use super::collect::{Collected, Goal, remove, scan};
use super::entry::{Manifest, Unusable, decode_for, read_manifest};
use super::info::{Checked, EntryInfo};
use super::layout::Address;
use super::publish::publish;
use super::{MAX_METADATA_BYTES, Store, collect_now};
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::process::file::{self, Links};

/// Inspection and maintenance from outside.
impl Store {
    /// Returns every entry, in no particular order. Other files are skipped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(store: kiln::store::Store) {
    /// for entry in store.entries() {
    ///     println!("{} ({} bytes)", entry.name(), entry.bytes());
    /// }
    /// # }
    /// ```
    pub fn entries(&self) -> impl Iterator<Item = EntryInfo> {
        scan(&self.0.layout).map(EntryInfo)
    }

    /// Reads and verifies an entry. Does not count as a use.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::store::Checked;
    ///
    /// # fn example(store: kiln::store::Store) {
    /// let is_whole = |entry: &_| matches!(store.check(entry), Checked::Whole(_));
    /// println!("{} programs are intact", store.entries().filter(is_whole).count());
    /// # }
    /// ```
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

    /// Reads the metadata of an entry, and nothing else of its file. This is quick, but does not detect a
    /// damaged program. Does not count as a use.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the file is visibly not a usable entry;
    /// [`Io`](ErrorKind::Io) if it cannot be read.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(store: kiln::store::Store) -> kiln::Result<()> {
    /// for entry in store.entries() {
    ///     let manifest = store.manifest(&entry)?;
    ///     println!("{:.8}: {}", entry.key(), manifest.field("options").unwrap_or_default());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn manifest(&self, entry: &EntryInfo) -> Result<Manifest> {
        let read = || {
            let (mut file, metadata) = file::open(entry.path(), file::reading(), Links::Refuse)?;
            read_manifest(&entry.key(), &mut file, metadata.len(), MAX_METADATA_BYTES)
        };
        read()
            .map_err(|error| io_error("read", entry.path(), error))?
            .map_err(|unusable| invalid_entry(&unusable))
    }

    /// Removes an entry, unless it was replaced or used since it was found. Returns whether it was removed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(store: kiln::store::Store, retired: &str) {
    /// for entry in store.entries().filter(|entry| entry.device() == retired) {
    ///     if !store.remove(&entry) {
    ///         println!("{} is still in use", entry.name());
    ///     }
    /// }
    /// # }
    /// ```
    #[must_use = "an entry that was replaced or used meanwhile stays"]
    pub fn remove(&self, entry: &EntryInfo) -> bool {
        remove(&self.0.layout, &entry.0)
    }

    /// Adds the file of an entry, read from elsewhere, under the [name](EntryInfo::name) that the entry has
    /// there. Stops reading once the file is larger than an entry can be. Collects nothing, whatever the limit:
    /// call [`collect`](Self::collect) after the last import.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if `name` is not the name of an entry, if the file is
    /// not a complete entry of this name, if it is larger than [all entries](Self::max_bytes) may be, or if the
    /// entry that is there was written by a newer version of Kiln, which then stays; [`Io`](ErrorKind::Io) if
    /// the file cannot be read or written.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::store::{Checked, Store};
    ///
    /// # fn example(from: Store, to: Store) -> kiln::Result<()> {
    /// for info in from.entries() {
    ///     if let Checked::Whole(entry) = from.check(&info) {
    ///         to.import(&info.name(), entry.bytes())?;
    ///     }
    /// }
    /// to.collect(false)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn import(&self, name: &str, from: impl Read) -> Result<BuildKey> {
        let address = Address::named(name)?;
        let key = address.key;
        let max_bytes = self.max_entry_bytes();
        let mut bytes = Vec::new();
        let read = from.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes);
        let length = read.map_err(|error| io_error("read", Path::new(name), error))? as u64;
        let entry = if length > max_bytes {
            Err(Unusable::TooLarge(length))
        } else {
            decode_for(&key, bytes)
        };
        let entry = entry.map_err(|unusable| invalid_entry(&unusable))?;
        let bytes = entry.bytes().len() as u64;
        if let Some(limit) = self.max_bytes()
            && bytes > limit
        {
            return Err(Error::invalid(format!(
                "the entry has {bytes} bytes, but the limit of the whole store is {limit}; raise \
                 KILN_CACHE_MAX_SIZE or `CacheConfig::max_bytes`"
            )));
        }
        let (path, parts) = (self.0.layout.entry(&address), [entry.bytes(), &[]]);
        let published = publish(&self.0.layout, &path, parts, self.0.settings.durability)
            .map_err(|error| io_error("write", &path, error))?;
        let Some(difference) = published.difference(bytes) else {
            let message = format!(
                "{name}: the existing entry was written by a newer version of Kiln, and is kept"
            );
            return Err(Error::invalid(message));
        };
        self.0.usage.add(difference);
        Ok(key)
    }

    /// Collects now: removes entries until the limits are met, sweeps files that dead writers left behind, and
    /// counts. With `dry_run`, only reports what it would remove.
    ///
    /// # Errors
    ///
    /// [`Io`](ErrorKind::Io) if another process is collecting.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(store: kiln::store::Store) -> kiln::Result<()> {
    /// let planned = store.collect(true)?;
    /// println!("a collection would remove {} programs", planned.removed);
    /// # Ok(())
    /// # }
    /// ```
    pub fn collect(&self, dry_run: bool) -> Result<Collected> {
        let goal = Goal { dry_run, ..self.goal() };
        collect_now(&self.0, goal).ok_or_else(|| {
            Error::new(ErrorKind::Io, "another process is collecting; try again when it is done")
        })
    }

    /// Removes every entry, and returns the number of removed entries.
    ///
    /// # Errors
    ///
    /// [`Io`](ErrorKind::Io) if some entries cannot be removed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(store: kiln::store::Store) -> kiln::Result<()> {
    /// println!("removed {} programs", store.clear()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear(&self) -> Result<u64> {
        let (mut removed, mut failed) = (0, 0);
        for entry in self.entries() {
            if self.remove(&entry) {
                removed += 1;
            } else {
                failed += u64::from(fs::metadata(entry.path()).is_ok_and(|metadata| {
                    // An entry that was replaced or used meanwhile belongs to another process.
                    metadata.modified().is_ok_and(|used| used == entry.used())
                }));
            }
        }
        // Counts the remaining entries, and sweeps. If another process is collecting, it does both.
        let _ = self.collect(false);
        if failed > 0 {
            let directory = self.root().display();
            return Err(Error::new(
                ErrorKind::Io,
                format!("{failed} entries of {directory} cannot be removed; check its permissions"),
            ));
        }
        Ok(removed)
    }
}

fn invalid_entry(unusable: &Unusable) -> Error {
    Error::invalid(format!("the entry is not valid: {unusable}"))
}

fn io_error(what: &str, path: &Path, error: io::Error) -> Error {
    Error::of_system(format!("cannot {what} {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::store::entry::encode;

    const KEY: BuildKey = BuildKey([0xAB; 32]);

    fn name() -> String {
        format!("0123456789abcdef/ab/{}.kiln", "ab".repeat(31))
    }

    fn file(log: &str) -> Vec<u8> {
        let manifest = Manifest { build_log: log.to_owned(), ..Manifest::default() };
        [&b"payload"[..], &encode(&KEY, &manifest, b"payload")].concat()
    }

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::at(directory.path()).unwrap();
        (directory, store)
    }

    #[test]
    fn entries_are_imported_under_their_original_name() {
        let (_directory, store) = store();
        assert_eq!(store.import(&name(), &*file("a log")).unwrap(), KEY);
        let entry = store.entries().next().unwrap();
        assert_eq!(entry.name(), name());
        assert!(entry.path().ends_with(name()));
        assert!(
            matches!(store.check(&entry), Checked::Whole(whole) if whole.payload() == b"payload")
        );
    }

    #[test]
    fn only_names_of_entries_are_imported() {
        let (directory, store) = store();
        let digits = "ab".repeat(31);
        for name in [
            "",
            "/",
            "../../../tmp/x.kiln",
            &format!("/{}", name()),
            &format!("../{}", name()),
            &format!("./{}", name()),
            &format!("{}/", name()),
            &name().to_uppercase(),
            &name().replace("/ab/", "/a/b/"),
            &name().replace("/ab/", "//ab"),
            &name().replace("/ab/", "/abab/").replace("abab.kiln", "ab.kiln"),
            &format!("0123456789abcdeg/ab/{digits}.kiln"),
            &format!("+123456789abcdef/ab/{digits}.kiln"),
            &format!("tmp/ab/{digits}.kiln"),
            &format!("0123456789abcdef/ab/{digits}"),
        ] {
            let refused = store.import(name, &*file("")).expect_err(name);
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is written");
    }

    #[test]
    fn a_file_that_is_not_the_named_entry_is_not_imported() {
        let (_directory, store) = store();
        let mut flipped = file("");
        flipped[0] ^= 1;
        let other = name().replace("ab.kiln", "ac.kiln");
        for (name, refused) in [
            (name(), store.import(&name(), &*flipped)),
            (name(), store.import(&name(), io::empty())),
            (other.clone(), store.import(&other, &*file(""))),
        ] {
            assert_eq!(refused.expect_err(&name).kind(), ErrorKind::InvalidArgument, "{name}");
        }
        let settings = super::super::Settings { entry_bytes: 1..=16, ..Default::default() };
        let small = Store::open(store.root().to_owned(), settings, Default::default()).unwrap();
        let refused = small.import(&name(), io::repeat(7)).expect_err("it never ends");
        assert!(refused.to_string().contains("bytes"), "{refused}");
        assert_eq!(store.entries().count(), 0);
    }

    #[test]
    fn a_manifest_is_read_without_the_payload() {
        let (_directory, store) = store();
        store.import(&name(), &*file("a log")).unwrap();
        let entry = store.entries().next().unwrap();
        let overwrite = |bytes: &[u8]| fs::write(entry.path(), bytes).unwrap();

        let mut flipped = file("a log");
        flipped[0] ^= 1;
        overwrite(&flipped);
        assert_eq!(store.manifest(&entry).unwrap().build_log, "a log");
        assert!(matches!(store.check(&entry), Checked::Unusable(Unusable::Checksum)));

        let whole = file("a log");
        let mut broken = whole.clone();
        broken[7] = b'?'; // The first of the manifest.
        for (bytes, why) in [
            (&whole[..10], "it does not end with the footer of an entry"),
            (&whole[1..], "its length does not match its footer"),
            (&broken, "its manifest cannot be read"),
        ] {
            overwrite(bytes);
            let refused = store.manifest(&entry).expect_err(why);
            assert!(refused.to_string().contains(why), "{refused}");
        }
        fs::remove_file(entry.path()).unwrap();
        assert_eq!(store.manifest(&entry).expect_err("it is gone").kind(), ErrorKind::Io);
    }

    #[test]
    fn a_store_that_was_copied_without_its_empty_directories_is_cleared() {
        let (directory, store) = store();
        store.import(&name(), &file("a log")[..]).unwrap();
        fs::remove_dir_all(directory.path().join("v1/tmp")).unwrap();
        assert_eq!(store.clear().unwrap(), 1);
        assert_eq!(store.entries().count(), 0);
    }
}
