//! The persistent store: programs on disk, shared by the processes of a machine.
//!
//! # How it works
//!
//! The files are the source of truth: every program is one immutable file, named by its [`BuildKey`], in the
//! folder of its device. There is no database, no index and no daemon. All that follows about programs
//! also applies to objects, which are the compiled modules from which programs are linked.
//!
//! * **A hit** opens the file, reads it, and verifies the full key and a checksum (XXH3-128) over all of it. It
//!   takes no lock. The file's modification time records the last use of the entry: a process sets it in the background
//!   when it first uses the entry, then at most once a minute, and before it collects or drains. Access times are never
//!   read, so `noatime` and `relatime` mounts keep the order. A disk that does not answer a lookup within two seconds
//!   costs a compile.
//! * **A build** of a program that is not on the disk first takes one of 1,024 build locks. Other processes
//!   that need the same program wait without blocking a thread, look again, and load it once it is there. If a
//!   process dies, its locks are freed at once. The waiting processes build the program themselves if the one
//!   that builds it is stopped by a signal, if it takes more than 8 s and more than four times as long as compiles
//!   do, or after a [deadline](crate::CacheConfig::build_wait).
//! * **A put** happens in the background: the caller that awaited the build has its program first. The file is
//!   written under a temporary name, synced as the [`Durability`] specifies, and published by an atomic rename.
//!   Readers see all of it or nothing. [`Runtime::drain`](crate::Runtime::drain) waits for puts.
//! * **Collection** makes room before a put that would exceed the limit. It evicts the least recently used entries until
//!   nine tenths of the limit are left. It also runs in the background when a runtime starts or drains, if the store is
//!   larger than its limit, or was not counted for an hour or for the
//!   [maximum age](crate::CacheConfig::max_age). An entry that is replaced or stamped meanwhile stays. An entry stamped
//!   in the future, by a clock that was set back, counts as the oldest. An entry that is larger than the whole limit is
//!   not stored; if there is one, it goes first. Folders without entries are removed.
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
//! [`CacheConfig::max_bytes`](crate::CacheConfig::max_bytes) changes it. The limit holds at any time, but for one entry
//! that each process is writing. If there is no room because another process has been collecting for long, a program is
//! not stored.
//!
//! # Threads
//!
//! Files are read and written with `async-fs`, on threads of the crate `blocking`. Kiln has that crate start 20 of them
//! when it opens the first store, more than its calls need, so that a later call hardly ever starts another one. They never
//! end, and each wakes twice a second; the crate has no setting for that. Where the system cannot start them, a store is not
//! used, with a warning. If all of them are occupied, such as by calls of the host, and the system's threads are exhausted,
//! too, a call of Kiln waits until there is a thread
//! ([issue 79 of the crate](https://github.com/smol-rs/blocking/issues/79)).
//!
//! # Network file systems
//!
//! The store is correct on any file system whose rename is atomic, NFS included. "One build at a time" needs
//! file locks that work between machines. Where there are none, Kiln warns once, and each process builds for
//! itself. A directory on the local disk is faster; `/var/cache` and `XDG_CACHE_HOME` are meant for that.

mod asked;
mod collect;
mod entry;
mod explore;
mod files;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod health;
mod holder;
mod info;
mod layout;
mod lock;
mod lookup;
mod numbers_file;
mod operation;
mod publish;
mod put;
mod storage;
mod task_tracker;
mod totals;
mod usage;
mod uses;

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_lock::{Mutex, Semaphore};

pub use self::collect::Collected;
pub use self::entry::{Entry, KernelRecord, Manifest, ObjectRecord, ParameterRecord, Unusable};
pub use self::info::{Checked, EntryInfo};
pub use self::operation::{Entries, Operation, Verify};
pub use self::publish::Durability;
pub use self::storage::Storage;
pub use self::totals::Totals;

#[cfg(feature = "remote")]
pub(crate) use self::entry::decode_for;
pub(crate) use self::entry::{MAGIC, decode, encode, has_footer, kernels};
pub(crate) use self::holder::Holder;
pub(crate) use self::layout::Address;
#[cfg(feature = "remote")]
pub(crate) use self::layout::SUFFIX;
pub(crate) use self::lock::{BackgroundLock, Try};
pub(crate) use self::lookup::Lookup;
pub(crate) use self::task_tracker::{Pending, TaskTracker};

use self::health::{Access, Health};
use self::layout::Layout;
use self::lookup::LateCalls;
use self::totals::TotalsFile;
use self::usage::UsageFile;
use self::uses::Uses;
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::on_files;
use crate::process;
use crate::process::threads::no_thread;
use crate::stats::Counters;

/// Maximum size of the manifest and the footer of an entry, in bytes. Leaves room for a long build log.
const MAX_METADATA_BYTES: u64 = 64 << 20;

/// Maximum number of lookups of a store at a time, with attempts to lock, and of puts. With a collection and a stamp, these
/// are fewer than the calls on files that Kiln makes at a time: so no put delays a lookup, and neither delays other work
/// on files, however long the disk takes.
const MAX_LOOKUPS: usize = 3;
const MAX_PUTS: usize = 2;

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
    uses: Uses,
    totals: TotalsFile,
    counters: Arc<Counters>,
    warned: Warned,
    health: Health,
    /// Set by whoever finds that the store was not counted for long, until a collection begins.
    is_collection_due: AtomicBool,
    /// Locked while this process collects in the background.
    collecting: Mutex<()>,
    lookups: Arc<Semaphore>,
    late: LateCalls,
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
        Operation::new(async move {
            process::start()?;
            Self::open_with(root, Settings::default(), Arc::default()).await
        })
    }

    /// Opens the store below `root`, as [`open`](Self::open) does.
    pub(crate) async fn open_with(
        root: PathBuf,
        settings: Settings,
        counters: Arc<Counters>,
    ) -> Result<Self> {
        let layout = Layout::new(&root);
        let folders = [root.clone(), layout.version().to_owned()];
        let check = on_files(move |_| async move {
            for directory in &folders {
                if let Some(reason) = layout::distrust_reason(directory, &folders[0]).await {
                    let directory = directory.display();
                    let message =
                        format!("the cache directory `{directory}` is not used: {reason}");
                    return Err(Error::new(ErrorKind::Configuration, message));
                }
            }
            Ok(())
        });
        check.await.map_err(|error| no_thread().with_source(error))??;
        let [lookups, puts] = [MAX_LOOKUPS, MAX_PUTS].map(Semaphore::new);
        Ok(Self(Arc::new(Inner {
            usage: UsageFile::new(&layout),
            uses: Uses::default(),
            totals: TotalsFile::new(&layout),
            root,
            layout,
            settings,
            counters,
            warned: Warned::default(),
            health: Health::new(),
            is_collection_due: AtomicBool::new(false),
            collecting: Mutex::new(()),
            lookups: Arc::new(lookups),
            late: LateCalls::default(),
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

    /// Returns the maximum size of an entry's file that this store writes, in bytes.
    fn max_entry_bytes(&self) -> u64 {
        self.0.settings.entry_bytes.end().saturating_add(MAX_METADATA_BYTES)
    }

    /// Registers work that [`settled`](Self::settled) waits for until the returned value is dropped.
    pub(crate) fn begin(&self) -> Pending {
        self.0.background.begin()
    }

    /// Completes once all work that was begun before this call has ended.
    pub(crate) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        self.0.background.settled()
    }

    /// Returns whether a size is larger than the limit of the store.
    fn exceeds_limit(&self, bytes: u64) -> bool {
        self.0.settings.max_bytes.is_some_and(|most| bytes > most)
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
