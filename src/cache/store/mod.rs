//! The persistent store: programs on disk, shared by the processes of a machine.
//!
//! # How it works
//!
//! The files are the source of truth: every program is one immutable file, named by its [`BuildKey`], in the
//! folder of its device. There is no database, no index and no daemon. All that follows about programs
//! also applies to objects, which are the compiled modules from which programs are linked.
//!
//! * **A hit** opens the file, reads it, and verifies the full key and a checksum (XXH3-128) over all of it. It
//!   takes no lock. At most every ten minutes it sets the file's modification time, which records the last use
//!   of the entry. Access times are never read, so `noatime` and `relatime` mounts keep the order.
//! * **A build** of a program that is not on the disk first takes one of 1,024 build locks. Other processes
//!   that need the same program wait without blocking a thread, look again, and load it once it is there. If a
//!   process dies, its locks are freed at once. The waiting processes build the program themselves if the one
//!   that builds it is stopped by a signal, if it takes more than 8 s and more than four times as long as compiles
//!   do, or after a [deadline](crate::CacheConfig::build_wait).
//! * **A put** happens in the background: the caller that awaited the build has its program first. The file is
//!   written under a temporary name, synced as the [`Durability`] specifies, and published by an atomic rename.
//!   Readers see all of it or nothing. [`Runtime::drain`](crate::Runtime::drain) waits for puts.
//! * **Collection** starts in the background when the store is larger than its limit. It evicts the least
//!   recently used entries until nine tenths of the limit are left. An entry that is replaced or stamped
//!   meanwhile stays, as does an entry written in the last five seconds. An entry stamped in the future, by a
//!   clock that was set back, counts as the oldest. An entry that is larger than the whole limit is not stored;
//!   if there is one, it goes first.
//!
//! # Guarantees
//!
//! A build returns the right program or the compiler's error, whatever is on the disk. An entry that is
//! damaged, cut short, swapped with another, or of an older format is a miss, and the build that follows
//! replaces it. An entry of a newer format is left alone. A binary that the driver refuses to load is a miss,
//! too. A directory that is full, read-only, or removed while processes use it costs builds and nothing else.
//! Kiln warns when such an outage begins and when it ends, through [`tracing`], or on standard error if there is no
//! subscriber, and [`Stats::disk_failures`](crate::Stats::disk_failures) counts the failures. Entries that are not
//! used are logged as warnings, with their number, at most once a minute.
//!
//! Only regular files are opened. A pipe, a socket, a device file or a link in the place of a file or folder of
//! the store is removed. A directory that is not empty is left where it is, or moved to `tmp` if it takes an
//! entry's place.
//!
//! # Limits of the guarantees
//!
//! The checksum detects damage, not malice: a user who can write to the directory can place a program there
//! that will be run. The store therefore creates its directories and files for their owner alone. It refuses a
//! root that belongs to another user or that others can write to, and treats such a file as a miss. Do not
//! share a store between users who do not trust each other, and import only bundles whose origin you trust.
//!
//! Keys cover the module, options, constants, device, driver, environment, and the files that OpenCL C includes
//! as far as they can be found: see [`BuildRequest::options`](crate::BuildRequest::options).
//!
//! # Sizing
//!
//! An entry is as large as the driver's binary: with one small kernel, 7 KiB on Intel's CPU runtime and 50 KiB
//! on PoCL; with twenty kernels, 30 KiB and 310 KiB. The limit is 1 GiB by default; `KILN_CACHE_MAX_SIZE` or
//! [`CacheConfig::max_bytes`](crate::CacheConfig::max_bytes) changes it. The limit holds at rest. While many
//! processes write at once, the store can exceed it by the amount that they write during one collection. A
//! process that ends before its collection leaves the collection to the put of a later process.
//!
//! # Network file systems
//!
//! The store is correct on any file system whose rename is atomic, NFS included. "One build at a time" needs
//! file locks that work between machines. Where there are none, Kiln warns once, and each process builds for
//! itself. A directory on the local disk is faster; `/var/cache` and `XDG_CACHE_HOME` are meant for that.

mod collect;
mod entry;
mod explore;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod holder;
mod info;
mod layout;
mod lock;
mod operation;
mod publish;
mod storage;
mod task_tracker;
mod totals;
mod usage;

use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, SystemTime};

use async_lock::{Mutex, Semaphore};

pub use self::collect::Collected;
pub use self::entry::{Entry, KernelRecord, Manifest, ObjectRecord, ParameterRecord, Unusable};
pub use self::info::{Checked, EntryInfo};
pub use self::operation::{Entries, Operation, Verify};
pub use self::publish::Durability;
pub use self::storage::Storage;
pub use self::totals::Totals;

pub(crate) use self::entry::{MAGIC, decode, decode_for, encode, has_footer, kernels};
pub(crate) use self::holder::Holder;
pub(crate) use self::layout::Address;
#[cfg(feature = "remote")]
pub(crate) use self::layout::SUFFIX;
pub(crate) use self::lock::{BackgroundLock, Try};
pub(crate) use self::task_tracker::{Pending, TaskTracker};

use self::collect::{Goal, MIN_EVICTION_AGE, collect};
use self::health::{Access, Health};
use self::layout::Layout;
use self::publish::publish;
use self::totals::TotalsFile;
use self::usage::UsageFile;
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::{check_threads, pause, run_blocking, unblock};
use crate::process;
use crate::process::file::{self, Links};
use crate::process::threads::no_thread;
use crate::stats::Counters;

/// Age of the stamp of an entry's last use at which a hit renews it.
const STAMP_EVERY: Duration = Duration::from_secs(600);

/// Maximum size of the manifest and the footer of an entry, in bytes. Leaves room for a long build log.
const MAX_METADATA_BYTES: u64 = 64 << 20;

/// Maximum number of rounds of a background collection. Later rounds remove entries that were too young before.
/// After the last round, the next put starts a new collection.
const MAX_COLLECTION_ROUNDS: u32 = 8;

/// Maximum number of lookups and attempts to lock of a store that have a thread, and of puts. More would not be quicker
/// on a disk. Both together have fewer threads than there are for files: so no put delays a lookup, and neither delays
/// other work on files, however long the disk takes.
const MAX_LOOKUPS: usize = 10;
const MAX_PUTS: usize = 4;

/// Default maximum size of an entry's binary, in bytes.
const MAX_PAYLOAD_BYTES: u64 = 256 << 20;

/// Settings of a store.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Maximum size of the store in bytes; `None` for no limit.
    pub(crate) max_bytes: Option<u64>,
    pub(crate) max_age: Option<Duration>,
    pub(crate) durability: Durability,
    /// Sizes of the payloads that are stored, in bytes. Other payloads are skipped.
    pub(crate) entry_bytes: RangeInclusive<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_bytes: Some(1 << 30),
            max_age: None,
            durability: Durability::default(),
            entry_bytes: 1..=MAX_PAYLOAD_BYTES,
        }
    }
}

/// A store of programs in a directory. The value is a handle that is cheap to clone.
///
/// A [`Runtime`](crate::Runtime) has a store of its own. This type is for inspecting a store from outside, as
/// the `kiln` explorer does. Its methods return futures and streams, which run under any executor and never
/// block the thread that polls them.
///
/// # Examples
///
/// ```no_run
/// use futures::StreamExt;
/// use kiln::CacheConfig;
///
/// # async fn example() -> kiln::Result<()> {
/// if let Some(store) = CacheConfig::new().open_store().await? {
///     let sizes: Vec<u64> = store.entries().map(|entry| entry.bytes()).collect().await;
///     println!("{} programs, {} bytes", sizes.len(), sizes.iter().sum::<u64>());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    layout: Layout,
    settings: Settings,
    usage: UsageFile,
    totals: TotalsFile,
    counters: Arc<Counters>,
    warned: Warned,
    health: Health,
    /// Set by a put until a collection begins.
    is_collection_due: AtomicBool,
    /// Locked while this process collects in the background.
    collecting: Mutex<()>,
    lookups: Semaphore,
    puts: Semaphore,
    background: TaskTracker,
}

/// Warnings that were already given. Each is given once.
#[derive(Debug, Default)]
struct Warned {
    /// The file system has no locks.
    locks: AtomicBool,
    /// A program is too large for the store.
    size: AtomicBool,
    /// The disk is too slow for the programs that are to be stored.
    speed: AtomicBool,
}

/// Result of a lookup.
#[derive(Debug)]
pub(crate) enum Lookup {
    Hit(Entry),
    Absent,
    /// A file exists, but is not a usable entry of this key.
    Unusable(Unusable),
    Unreadable(io::Error),
}

impl Store {
    /// Opens the store below `root`, which is created when the first entry is put there.
    ///
    /// # Errors
    ///
    /// From the future: [`Configuration`](ErrorKind::Configuration) if `root` is not a directory, belongs to
    /// another user, or can be written by others; [`OutOfResources`](ErrorKind::OutOfResources) if the system
    /// cannot start a thread; [`Forked`](ErrorKind::Forked) in a child process that was forked after Kiln
    /// started.
    ///
    /// # Cancel safety
    ///
    /// Opening changes nothing on the disk.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    /// use kiln::store::Store;
    ///
    /// # async fn example() -> kiln::Result<()> {
    /// let store = Store::open("/var/cache/renderer").await?;
    /// println!("{} programs", store.entries().count().await);
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(root: impl Into<PathBuf>) -> Operation<Result<Self>> {
        let root = root.into();
        Self::open_in_background(move || Self::open_with(root, Settings::default(), Arc::default()))
    }

    /// Runs a call that opens a store and blocks. Once it has run, the pool for files has a thread, which the
    /// operations of the store rely on.
    pub(crate) fn open_in_background<T: Send + 'static>(
        open: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Operation<Result<T>> {
        Operation::new(async move {
            process::start()?;
            run_blocking(open).await
        })
    }

    /// Opens the store below `root`. Blocks on the disk.
    pub(crate) fn open_with(
        root: PathBuf,
        settings: Settings,
        counters: Arc<Counters>,
    ) -> Result<Self> {
        let layout = Layout::new(&root);
        for directory in [&*root, layout.version()] {
            if let Some(reason) = layout::distrust_reason(directory, &root) {
                let directory = directory.display();
                let message = format!("the cache directory `{directory}` is not used: {reason}");
                return Err(Error::new(ErrorKind::Configuration, message));
            }
        }
        let [lookups, puts] = [MAX_LOOKUPS, MAX_PUTS].map(Semaphore::new);
        Ok(Self(Arc::new(Inner {
            usage: UsageFile::new(&layout),
            totals: TotalsFile::new(&layout),
            root,
            layout,
            settings,
            counters,
            warned: Warned::default(),
            health: Health::new(),
            is_collection_due: AtomicBool::new(false),
            collecting: Mutex::new(()),
            lookups,
            puts,
            background: TaskTracker::default(),
        })))
    }

    /// Returns the root directory of the store.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(store: kiln::store::Store) {
    /// println!("programs are kept in {}", store.root().display());
    /// # }
    /// ```
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0.root
    }

    /// Returns the maximum size of the store in bytes, or `None` if there is no limit.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    ///
    /// # async fn example(store: kiln::store::Store) {
    /// let sizes: Vec<u64> = store.entries().map(|entry| entry.bytes()).collect().await;
    /// if let Some(limit) = store.max_bytes() {
    ///     println!("{} % of the limit are used", sizes.iter().sum::<u64>() * 100 / limit);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn max_bytes(&self) -> Option<u64> {
        self.0.settings.max_bytes
    }

    /// Looks up an entry and verifies it. Takes no lock.
    pub(crate) async fn find(&self, address: &Address) -> Lookup {
        let (store, address) = (self.clone(), *address);
        let _permit = self.0.lookups.acquire().await;
        let found = unblock(move || store.look_up(&address)).await;
        found.unwrap_or_else(|error| self.unreadable(error))
    }

    /// Looks up an entry. If it is absent, tries to take its build lock, and then looks again: another process
    /// may have stored it before this one took the lock. If the entry is not usable, also tries to take the
    /// lock. Returns the result of trying unless there is a hit.
    pub(crate) async fn get_or_lock(&self, address: &Address) -> (Lookup, Option<Try>) {
        let (store, address) = (self.clone(), *address);
        let look_up = move || match store.look_up(&address) {
            Lookup::Hit(entry) => (Lookup::Hit(entry), None),
            Lookup::Absent => match store.take_build_lock(&address.key) {
                Try::Held(lock) => match store.look_up(&address) {
                    Lookup::Hit(entry) => (Lookup::Hit(entry), None),
                    missed => (missed, Some(Try::Held(lock))),
                },
                attempt => (Lookup::Absent, Some(attempt)),
            },
            missed => (missed, Some(store.take_build_lock(&address.key))),
        };
        let _permit = self.0.lookups.acquire().await;
        unblock(look_up).await.unwrap_or_else(|error| (self.unreadable(error), None))
    }

    /// Reads and verifies an entry. Blocks on its file.
    fn look_up(&self, address: &Address) -> Lookup {
        let read = self.read(&self.0.layout.entry(address), true);
        let found = match read {
            Ok(bytes) => bytes.and_then(|bytes| decode_for(&address.key, bytes)),
            Err(error) if layout::is_missing(&error) => return Lookup::Absent,
            Err(error) => return self.unreadable(error),
        };
        match found {
            Ok(entry) => {
                self.0.health.succeeded(Access::Read, &self.0.root);
                Lookup::Hit(entry)
            }
            Err(unusable) => Lookup::Unusable(unusable),
        }
    }

    fn unreadable(&self, error: io::Error) -> Lookup {
        self.report_failure(Access::Read, &error);
        Lookup::Unreadable(error)
    }

    /// Reads a whole file. If `is_use`, also stamps it as used. The outer error is an I/O error.
    fn read(
        &self,
        path: &Path,
        is_use: bool,
    ) -> io::Result<std::result::Result<Vec<u8>, Unusable>> {
        let (mut file, metadata) = match file::open(path, file::reading(), Links::Refuse) {
            Err(error) if file::is_not_regular(&error) => return Ok(Err(Unusable::Foreign)),
            opened => opened?,
        };
        // Any user may have created the root after the store was opened.
        if let Some(reason) = layout::distrust_reason_of(&metadata) {
            return Ok(Err(Unusable::Distrusted(reason)));
        }
        // Another application, with other limits, may have written the file.
        if metadata.len() > self.max_entry_bytes().max(MAX_PAYLOAD_BYTES + MAX_METADATA_BYTES) {
            return Ok(Err(Unusable::TooLarge(metadata.len())));
        }
        // Reading one extra byte detects a file that grew meanwhile.
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(metadata.len() as usize + 1)?;
        file.by_ref().take(metadata.len() + 1).read_to_end(&mut bytes)?;
        let now = SystemTime::now();
        let stamp_age = metadata.modified().ok().and_then(|stamp| now.duration_since(stamp).ok());
        if is_use && stamp_age.is_none_or(|age| age > STAMP_EVERY) {
            // A process that may not set the time can still read the file.
            let _ = file.set_modified(now);
        }
        Ok(Ok(bytes))
    }

    /// Returns the maximum size of an entry's file that this store writes, in bytes.
    fn max_entry_bytes(&self) -> u64 {
        self.0.settings.entry_bytes.end().saturating_add(MAX_METADATA_BYTES)
    }

    /// Stores a payload and the [rest](encode) of its file, replacing any file in its place. The caller calls
    /// [`collect_if_due`](Self::collect_if_due) afterwards.
    pub(crate) async fn put(&self, address: &Address, payload: Vec<u8>, rest: Vec<u8>) -> Storage {
        let Inner { layout, settings, counters, usage, puts, .. } = &*self.0;
        if !settings.entry_bytes.contains(&(payload.len() as u64)) {
            counters.disk_skips.add_one();
            let (bytes, sizes) = (payload.len() as u64, settings.entry_bytes.clone());
            return Storage::Size { bytes, sizes };
        }
        let bytes = (payload.len() + rest.len()) as u64;
        if let Some(limit) = settings.max_bytes.filter(|limit| bytes > *limit) {
            self.skip_too_large(address, bytes);
            return Storage::Limit { bytes, limit };
        }
        let (path, parts) = (layout.entry(address), [payload, rest]);
        let _permit = puts.acquire().await;
        let published = match publish(layout, &path, parts, settings.durability).await {
            Ok(published) => published,
            Err(error) => {
                self.report_failure(Access::Write, &error);
                return Storage::Failed(error.to_string());
            }
        };
        let Some(difference) = published.difference(bytes) else {
            counters.disk_skips.add_one();
            return Storage::Newer;
        };
        self.0.health.succeeded(Access::Write, &self.0.root);
        counters.disk_writes.add_one();
        counters.disk_bytes_written.add(bytes);
        let known = usage.add(difference).await;
        if known.is_none_or(|usage| usage.is_old() || self.exceeds_limit(usage.bytes)) {
            self.0.is_collection_due.store(true, SeqCst);
        }
        Storage::Stored
    }

    /// Tries to become the one process that builds `key`, by taking its build lock.
    pub(crate) async fn try_build_lock(&self, key: &BuildKey) -> Try {
        let (store, key) = (self.clone(), *key);
        let _permit = self.0.lookups.acquire().await;
        unblock(move || store.take_build_lock(&key)).await.unwrap_or_else(Try::Unopened)
    }

    /// Returns the process that holds the build lock of `key`, if its file says so, and whether it has been stopped.
    pub(crate) async fn build_lock_holder(&self, key: &BuildKey) -> Option<(Holder, bool)> {
        let path = self.0.layout.build_lock(key);
        let _permit = self.0.lookups.acquire().await;
        let read = move || Holder::read(&path).map(|holder| (holder, holder.is_stopped()));
        unblock(read).await.ok().flatten()
    }

    /// Tries to take a build lock. Blocks on its file.
    fn take_build_lock(&self, key: &BuildKey) -> Try {
        let Inner { layout, warned, .. } = &*self.0;
        let path = layout.build_lock(key);
        let attempt = match lock::try_lock(&path) {
            Try::Unopened(error) if layout::is_missing(&error) => match layout.create() {
                Ok(()) => lock::try_lock(&path),
                Err(error) => Try::Unopened(error),
            },
            attempt => attempt,
        };
        match &attempt {
            Try::Held(lock) => lock.write_holder(),
            Try::Unopened(error) => self.report_failure(Access::Write, error),
            Try::Impossible(error) if !warned.locks.swap(true, SeqCst) => tracing::warn!(
                %error,
                root = %self.0.root.display(),
                "files in the cache directory cannot be locked; processes that start together may \
                 each build the same program"
            ),
            _ => {}
        }
        attempt
    }

    /// Registers work that [`settled`](Self::settled) waits for until the returned value is dropped.
    pub(crate) fn begin(&self) -> Pending {
        self.0.background.begin()
    }

    /// Completes once all work that was begun before this call has ended.
    pub(crate) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        self.0.background.settled()
    }

    /// Returns the goal of collections: nine tenths of the limit, so that they are rare.
    fn goal(&self) -> Goal {
        let Settings { max_bytes, max_age, .. } = self.0.settings;
        Goal {
            bytes: max_bytes,
            target: max_bytes.map(|most| most / 10 * 9),
            max_age,
            dry_run: false,
        }
    }

    /// Collects until the store is within its limit, if a put found the size hint to be missing, old, or above
    /// the limit, unless this process is already collecting. This can take long, so it comes last: no build lock
    /// is held meanwhile.
    pub(crate) async fn collect_if_due(&self) {
        if !self.0.is_collection_due.swap(false, SeqCst) {
            return;
        }
        let Some(_collecting) = self.0.collecting.try_lock() else { return };
        for round in 0..MAX_COLLECTION_ROUNDS {
            // Entries that are too young to be removed grow old enough.
            if round > 0 && pause(MIN_EVICTION_AGE).await.is_err() {
                return;
            }
            match self.collect_now(self.goal()).await {
                Ok(Some(collected)) if self.exceeds_limit(collected.bytes_left()) => {}
                // The store is within its limit, another process is collecting, or there is no thread.
                _ => return,
            }
        }
    }

    /// Collects and counts, unless another process is collecting; then returns `None`. If the store is within
    /// its limits, this only counts and sweeps.
    ///
    /// # Errors
    ///
    /// [`OutOfResources`](ErrorKind::OutOfResources) if the system cannot start a thread.
    async fn collect_now(&self, goal: Goal) -> Result<Option<Collected>> {
        let Inner { layout, usage, counters, .. } = &*self.0;
        check_threads().map_err(|error| no_thread().with_source(error))?;
        let (path, hint) = (layout.locks().join("gc"), usage.clone());
        let take_lock = move || {
            let lock = match lock::try_lock(&path) {
                Try::Busy => return Ok(None),
                Try::Held(lock) => Some(lock),
                Try::Unopened(_) | Try::Impossible(_) => None,
            };
            Ok(Some((BackgroundLock::new(lock), hint.read())))
        };
        let Some((lock, before)) = run_blocking(take_lock).await? else { return Ok(None) };
        let collected = collect(layout, goal).await;
        if !goal.dry_run {
            counters.disk_evictions.add(collected.removed);
            if let Err(error) = usage.set(before, collected.bytes_left()).await {
                tracing::debug!(%error, "the size hint cannot be written; the next put counts again");
            }
        }
        lock.release().await;
        Ok(Some(collected))
    }

    /// Counts an entry that is larger than the limit of the whole store, and warns about the first. A
    /// collection would have to remove all other entries to make room for it.
    fn skip_too_large(&self, address: &Address, bytes: u64) {
        self.0.counters.disk_skips.add_one();
        let (root, limit) = (self.0.root.display(), self.max_bytes());
        if self.0.warned.size.swap(true, SeqCst) {
            tracing::debug!(key = %address.key, bytes, limit, %root, "a program is too large to store");
        } else {
            tracing::warn!(
                key = %address.key,
                bytes,
                limit,
                %root,
                "a program is larger than the limit of the cache directory, and is not stored; raise \
                 KILN_CACHE_MAX_SIZE or `CacheConfig::max_bytes`"
            );
        }
    }

    /// Returns whether a size is larger than the limit of the store.
    fn exceeds_limit(&self, bytes: u64) -> bool {
        self.0.settings.max_bytes.is_some_and(|most| bytes > most)
    }

    /// Counts a program that is not stored, because the disk takes too long for those before it.
    pub(crate) fn skip_because_slow(&self) {
        self.0.counters.disk_skips.add_one();
        if !self.0.warned.speed.swap(true, SeqCst) {
            let root = self.0.root.display();
            tracing::warn!(%root, "the cache directory's disk is slow; some programs are not stored");
        }
    }

    /// Counts and reports a failure of the disk. Builds go on without it.
    fn report_failure(&self, access: Access, error: &io::Error) {
        self.0.counters.disk_failures.add_one();
        self.0.health.failed(access, &self.0.root, error);
    }

    /// Counts and reports an entry that is not used, for a reason that its file shows.
    pub(crate) fn report_damaged(&self, key: &BuildKey, reason: &str) {
        self.0.counters.disk_damaged.add_one();
        self.0.health.found_damaged(&self.0.root, key, reason);
    }

    /// Counts and reports an entry that the driver does not load.
    pub(crate) fn report_refused(&self, key: &BuildKey, reason: &str) {
        self.0.counters.disk_refused.add_one();
        self.0.health.was_refused(&self.0.root, key, reason);
    }
}
