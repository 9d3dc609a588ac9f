//! Inspection of a store from outside: listing, reading, verifying, moving and removing entries.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;

use futures::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use futures::stream::StreamExt;

use super::collect::{Collected, Goal, Removal, remove, scan};
use super::entry::{Entry, EntryRecord, Unusable, decode_for, read_record};
use super::files::{self, is_missing};
use super::handle::{MAX_METADATA_BYTES, Store};
use super::info::{EntryCheck, EntryInfo};
use super::layout::Address;
use super::operation::{Entries, Operation, Verify};
use super::publish::publish;
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::{on_files, run_blocking};

/// Number of entries that [`Store::verify`] reads at the same time.
const MAX_CHECKS: usize = 4;

/// Inspection and maintenance from outside.
impl Store {
    /// Returns a stream of every entry, in no particular order. Other files are skipped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    ///
    /// # async fn example(store: kiln::store::Store) {
    /// let mut entries = store.entries();
    /// while let Some(entry) = entries.next().await {
    ///     println!("{} ({} bytes)", entry.name(), entry.bytes());
    /// }
    /// # }
    /// ```
    pub fn entries(&self) -> Entries {
        Entries::new(scan(&self.0.layout).map(EntryInfo))
    }

    /// Reads and verifies the entry with a [name](EntryInfo::name), such as that of a
    /// [build](crate::BuildRequest::entry_name). Returns `None` if there is no such entry, or if it does not verify:
    /// [`check`](Self::check) returns the reason. Does not count as a use.
    ///
    /// # Errors
    ///
    /// From the future: [`InvalidArgument`](ErrorKind::InvalidArgument) if `name` is not the name of an entry;
    /// [`Io`](ErrorKind::Io) if the file cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing in the store.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     rt: kiln::Runtime,
    /// #     module: kiln::Module,
    /// #     store: kiln::store::Store,
    /// # ) -> kiln::Result<()> {
    /// let name = rt.build(&module).entry_name()?;
    /// if let Some(entry) = store.get(&name).await? {
    ///     println!("{} bytes for the device's driver", entry.payload().len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn get(&self, name: &str) -> Operation<Result<Option<Entry>>> {
        let (store, address) = (self.clone(), Address::named(name));
        Operation::new(async move {
            let address = address?;
            let path = store.0.layout.entry(&address);
            match store.read_checked(path.clone(), address.key).await {
                EntryCheck::Whole(entry) => Ok(Some(entry)),
                EntryCheck::Unusable(_) => Ok(None),
                EntryCheck::Unreadable(error) if is_missing(&error) => Ok(None),
                EntryCheck::Unreadable(error) => Err(io_error("read", &path, error)),
            }
        })
    }

    /// Reads and verifies an entry. Does not count as a use.
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing in the store.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::store::EntryCheck;
    ///
    /// # async fn example(store: kiln::store::Store, info: kiln::store::EntryInfo) {
    /// if let EntryCheck::Whole(entry) = store.check(&info).await {
    ///     println!("{} has {} kernels", info.name(), entry.record().kernels.len());
    /// }
    /// # }
    /// ```
    pub fn check(&self, entry: &EntryInfo) -> Operation<EntryCheck> {
        let (store, path, key) = (self.clone(), entry.path().to_owned(), entry.key());
        Operation::new(async move { store.read_checked(path, key).await })
    }

    /// Reads and verifies the file of an entry.
    async fn read_checked(&self, path: PathBuf, key: BuildKey) -> EntryCheck {
        let store = self.clone();
        let check =
            on_files(move |permit| async move { store.read_entry(&permit, &path, key).await });
        match check.await.flatten() {
            Ok(Ok(entry)) => EntryCheck::Whole(entry),
            Ok(Err(unusable)) => EntryCheck::Unusable(unusable),
            Err(error) => EntryCheck::Unreadable(error),
        }
    }

    /// Returns a stream that reads and verifies every entry, in the order of [`entries`](Self::entries). Reads
    /// a few entries ahead. Does not count as a use.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::future::ready;
    ///
    /// use futures::StreamExt;
    /// use kiln::store::EntryCheck;
    ///
    /// # async fn example(store: kiln::store::Store) {
    /// let intact =
    ///     store.verify().filter(|(_, checked)| ready(matches!(checked, EntryCheck::Whole(_))));
    /// println!("{} programs are intact", intact.count().await);
    /// # }
    /// ```
    pub fn verify(&self) -> Verify {
        let store = self.clone();
        let checks = scan(&self.0.layout).map(move |found| {
            let info = EntryInfo(found);
            let check = store.check(&info);
            async move { (info, check.await) }
        });
        Verify::new(checks.buffered(MAX_CHECKS))
    }

    /// Reads the metadata of an entry, and nothing else of its file. This is quick, but does not detect a
    /// damaged program. Does not count as a use.
    ///
    /// # Errors
    ///
    /// From the future: [`InvalidArgument`](ErrorKind::InvalidArgument) if the file is visibly not a usable
    /// entry; [`Io`](ErrorKind::Io) if it cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing in the store.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    ///
    /// # async fn example(store: kiln::store::Store) -> kiln::Result<()> {
    /// let mut entries = store.entries();
    /// while let Some(entry) = entries.next().await {
    ///     let record = store.record(&entry).await?;
    ///     println!("{:.8}: {}", entry.key(), record.field("options").unwrap_or_default());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn record(&self, entry: &EntryInfo) -> Operation<Result<EntryRecord>> {
        let (path, key) = (entry.path().to_owned(), entry.key());
        let at = path.clone();
        let read = on_files(move |_| async move {
            let (mut file, metadata) = files::open(&at, files::reading()).await?;
            read_record(&key, &mut file, metadata.len(), MAX_METADATA_BYTES).await
        });
        Operation::new(async move {
            let read = read.await.flatten();
            read.map_err(|error| io_error("read", &path, error))?
                .map_err(|unusable| entry_error(&unusable))
        })
    }

    /// Removes an entry, unless it was replaced or used since it was found. Returns whether it was removed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the entry is there or removed. A removal that has begun is completed in the
    /// background.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    ///
    /// # async fn example(store: kiln::store::Store, retired: &str) {
    /// let mut entries = store.entries();
    /// while let Some(entry) = entries.next().await {
    ///     if entry.device() == retired && !store.remove(&entry).await {
    ///         println!("{} is still in use", entry.name());
    ///     }
    /// }
    /// # }
    /// ```
    pub fn remove(&self, entry: &EntryInfo) -> Operation<bool> {
        let (store, found) = (self.clone(), entry.0.clone());
        Operation::new(async move { remove(&store.0.layout, found).await == Removal::Removed })
    }

    /// Adds the file of an entry, read from elsewhere, under the [name](EntryInfo::name) that the entry has
    /// there. Stops reading once the file is larger than an entry can be. Collects nothing, whatever the limit:
    /// call [`collect`](Self::collect) after the last import.
    ///
    /// # Errors
    ///
    /// From the future: [`InvalidArgument`](ErrorKind::InvalidArgument) if `name` is not the name of an entry,
    /// if the file is not a complete entry of this name, if it is larger than [all entries](Self::max_bytes)
    /// may be, or if the entry that is there was written by a newer version of Kiln, which then stays;
    /// [`Io`](ErrorKind::Io) if the file cannot be read or written.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the entry is added as a whole or not at all. An entry that it was to replace
    /// is then there unchanged or replaced.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    /// use futures::io::Cursor;
    /// use kiln::store::{EntryCheck, Store};
    ///
    /// # async fn example(from: Store, to: Store) -> kiln::Result<()> {
    /// let mut results = from.verify();
    /// while let Some((info, checked)) = results.next().await {
    ///     if let EntryCheck::Whole(entry) = checked {
    ///         to.import(&info.name(), Cursor::new(entry.bytes().to_vec())).await?;
    ///     }
    /// }
    /// to.collect(false).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn import(
        &self,
        name: &str,
        from: impl AsyncRead + Send + Unpin + 'static,
    ) -> Operation<Result<BuildKey>> {
        let (store, name) = (self.clone(), name.to_owned());
        Operation::new(async move { store.import_as(&name, from).await })
    }

    async fn import_as(&self, name: &str, from: impl AsyncRead + Unpin) -> Result<BuildKey> {
        let address = Address::named(name)?;
        let key = address.key;
        let max_bytes = self.max_entry_bytes();
        let mut bytes = Vec::new();
        let read = from.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes).await;
        let length = read.map_err(|error| io_error("read", Path::new(name), error))? as u64;
        let entry = if length > max_bytes {
            Err(Unusable::TooLarge(length))
        } else {
            run_blocking(move || Ok(decode_for(&key, bytes))).await?
        };
        let entry = entry.map_err(|unusable| entry_error(&unusable))?;
        if let Some(limit) = self.max_bytes()
            && length > limit
        {
            return Err(Error::invalid(format!(
                "the entry has {length} bytes, but the limit of the whole store is {limit}; raise \
                 KILN_CACHE_MAX_SIZE or `CacheConfig::max_bytes`"
            )));
        }
        let (path, parts) = (self.0.layout.entry(&address), [entry.into_bytes(), Vec::new()]);
        let published = publish(&self.0.layout, &path, parts, self.0.settings.durability)
            .await
            .map_err(|error| io_error("write", &path, error))?;
        let Some(difference) = published.difference(length) else {
            let message = format!(
                "{name}: the existing entry was written by a newer version of Kiln, and is kept"
            );
            return Err(Error::invalid(message));
        };
        // If the future is dropped before this, the next count corrects the size hint.
        self.0.usage.add(difference).await;
        Ok(key)
    }

    /// Verifies an entry, and writes the bytes of its file, which [`import`](Self::import) reads. Returns their
    /// number. Flushes the writer, and does not close it. Does not count as a use.
    ///
    /// # Errors
    ///
    /// From the future: [`InvalidArgument`](ErrorKind::InvalidArgument) if the entry does not verify, of which
    /// then nothing is written; [`Io`](ErrorKind::Io) if it cannot be read or written.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the writer may have got a part of the bytes. The store is unchanged.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::store::{EntryInfo, Store};
    ///
    /// # async fn example(store: Store, info: EntryInfo, file: async_fs::File) -> kiln::Result<()> {
    /// let bytes = store.export(&info, file).await?;
    /// println!("{} written, {bytes} bytes", info.name());
    /// # Ok(())
    /// # }
    /// ```
    pub fn export(
        &self,
        entry: &EntryInfo,
        mut to: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Operation<Result<u64>> {
        let (check, path) = (self.check(entry), entry.path().to_owned());
        Operation::new(async move {
            let entry = match check.await {
                EntryCheck::Whole(entry) => entry,
                EntryCheck::Unusable(unusable) => return Err(entry_error(&unusable)),
                EntryCheck::Unreadable(error) => return Err(io_error("read", &path, error)),
            };
            let written = async {
                to.write_all(entry.bytes()).await?;
                to.flush().await
            };
            written.await.map_err(|error| io_error("export", &path, error))?;
            Ok(entry.bytes().len() as u64)
        })
    }

    /// Collects now: removes entries until the limits are met, sweeps files that dead writers left behind, and
    /// counts. With `dry_run`, only reports what it would remove.
    ///
    /// # Errors
    ///
    /// From the future: [`Io`](ErrorKind::Io) if another process, or another collection of this process, is
    /// collecting; [`OutOfResources`](ErrorKind::OutOfResources) if the system has no thread.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a part of the entries is removed, each of them as a whole.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: kiln::store::Store) -> kiln::Result<()> {
    /// let planned = store.collect(true).await?;
    /// println!("a collection would remove {} programs", planned.removed);
    /// # Ok(())
    /// # }
    /// ```
    pub fn collect(&self, dry_run: bool) -> Operation<Result<Collected>> {
        let store = self.clone();
        let goal = Goal { dry_run, ..self.goal() };
        Operation::new(async move {
            store.collect_now(goal).await?.ok_or_else(|| {
                Error::new(
                    ErrorKind::Io,
                    "another process is collecting; try again when it is done",
                )
            })
        })
    }

    /// Removes every entry, and returns the number of removed entries.
    ///
    /// # Errors
    ///
    /// From the future: [`Io`](ErrorKind::Io) if some entries cannot be removed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a part of the entries is removed, each of them as a whole.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: kiln::store::Store) -> kiln::Result<()> {
    /// println!("removed {} programs", store.clear().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear(&self) -> Operation<Result<u64>> {
        let store = self.clone();
        Operation::new(async move {
            let (mut removed, mut failed) = (0, 0);
            let mut entries = pin!(scan(&store.0.layout));
            while let Some(found) = entries.next().await {
                match remove(&store.0.layout, found).await {
                    Removal::Removed => removed += 1,
                    Removal::Failed => failed += 1,
                    // The entry belongs to another process now.
                    Removal::Changed | Removal::Gone => {}
                }
            }
            // Counts the remaining entries, and sweeps. If another process is collecting, it does both.
            let _ = store.collect_now(store.goal()).await;
            if failed > 0 {
                let directory = store.root().display();
                let message = format!(
                    "{failed} entries of {directory} cannot be removed; check its permissions"
                );
                return Err(Error::new(ErrorKind::Io, message));
            }
            Ok(removed)
        })
    }
}

fn entry_error(unusable: &Unusable) -> Error {
    Error::invalid(format!("the entry is not valid: {unusable}"))
}

fn io_error(what: &str, path: &Path, error: io::Error) -> Error {
    Error::of_system(format!("cannot {what} {}", path.display()), error)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use futures::executor::block_on;
    use futures::io::{Cursor, empty, repeat};

    use super::*;
    use crate::cache::store::Settings;
    use crate::cache::store::entry::encode;

    const KEY: BuildKey = BuildKey([0xAB; 32]);

    fn name() -> String {
        format!("0123456789abcdef/ab/{}.kiln", "ab".repeat(31))
    }

    fn file(log: &str) -> Vec<u8> {
        let record = EntryRecord { build_log: log.to_owned(), ..EntryRecord::default() };
        [&b"payload"[..], &encode(&KEY, &record, b"payload")].concat()
    }

    fn store() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().unwrap();
        let store = block_on(Store::open(directory.path())).unwrap();
        (directory, store)
    }

    fn import(store: &Store, name: &str, file: Vec<u8>) -> Result<BuildKey> {
        block_on(store.import(name, Cursor::new(file)))
    }

    fn entries(store: &Store) -> Vec<EntryInfo> {
        block_on(store.entries().collect())
    }

    /// Returns the entry of a store that has only one.
    fn only_entry(store: &Store) -> EntryInfo {
        let [entry] = &*entries(store) else { panic!("there is one entry") };
        entry.clone()
    }

    #[test]
    fn entries_are_imported_under_their_original_name() {
        let (_directory, store) = store();
        assert_eq!(import(&store, &name(), file("a log")).unwrap(), KEY);
        let entry = only_entry(&store);
        assert_eq!(entry.name(), name());
        assert!(entry.path().ends_with(name()));
        let checked = block_on(store.check(&entry));
        assert!(matches!(checked, EntryCheck::Whole(whole) if whole.payload() == b"payload"));
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
            let refused = import(&store, name, file("")).expect_err(name);
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
            (name(), import(&store, &name(), flipped)),
            (name(), block_on(store.import(&name(), empty()))),
            (other.clone(), import(&store, &other, file(""))),
        ] {
            assert_eq!(refused.expect_err(&name).kind(), ErrorKind::InvalidArgument, "{name}");
        }
        let settings = Settings { entry_bytes: 1..=16, ..Settings::default() };
        let root = store.root().to_owned();
        let small = block_on(Store::open_with(root, settings, Arc::default())).unwrap();
        let refused = block_on(small.import(&name(), repeat(7))).expect_err("it never ends");
        assert!(refused.to_string().contains("bytes"), "{refused}");
        assert_eq!(entries(&store).len(), 0);
    }

    #[test]
    fn a_record_is_read_without_the_payload() {
        let (_directory, store) = store();
        import(&store, &name(), file("a log")).unwrap();
        let entry = only_entry(&store);
        let overwrite = |bytes: &[u8]| fs::write(entry.path(), bytes).unwrap();

        let mut flipped = file("a log");
        flipped[0] ^= 1;
        overwrite(&flipped);
        assert_eq!(block_on(store.record(&entry)).unwrap().build_log, "a log");
        let checked = block_on(store.check(&entry));
        assert!(matches!(checked, EntryCheck::Unusable(Unusable::Checksum)));

        let whole = file("a log");
        let mut broken = whole.clone();
        broken[7] = b'?'; // The first of the record.
        for (bytes, why) in [
            (&whole[..10], "it does not end with the footer of an entry"),
            (&whole[1..], "its length does not match its footer"),
            (&broken, "its record cannot be read"),
        ] {
            overwrite(bytes);
            let refused = block_on(store.record(&entry)).expect_err(why);
            assert!(refused.to_string().contains(why), "{refused}");
        }
        fs::remove_file(entry.path()).unwrap();
        let refused = block_on(store.record(&entry)).expect_err("it is gone");
        assert_eq!(refused.kind(), ErrorKind::Io);
    }

    #[test]
    fn a_store_that_was_copied_without_its_empty_directories_is_cleared() {
        let (directory, store) = store();
        import(&store, &name(), file("a log")).unwrap();
        fs::remove_dir_all(directory.path().join("v1/tmp")).unwrap();
        assert_eq!(block_on(store.clear()).unwrap(), 1);
        assert_eq!(entries(&store).len(), 0);
    }
}
