//! The handle of a store: its settings, its state, and the work that it reports and waits for.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_lock::{Mutex, Semaphore};

use super::health::{Access, Health};
use super::late_calls::{LateCalls, did_not_answer};
use super::layout::{self, Layout};
use super::operation::Operation;
use super::publish::Durability;
use super::task_tracker::{Pending, TaskTracker};
use super::totals::{Totals, TotalsFile};
use super::usage::UsageFile;
use super::uses::Uses;
use crate::counters::Counters;
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::{on_files, wait_up_to};
use crate::process;
use crate::process::threads::no_thread_error;

/// Maximum size of the record and the footer of an entry, in bytes. Leaves room for a long build log.
pub(super) const MAX_METADATA_BYTES: u64 = 64 << 20;

/// Maximum number of lookups of a store at a time, with attempts to lock, and of puts. With a collection and a stamp, these
/// are fewer than the calls on files that Kiln makes at a time: so no put delays a lookup, and neither delays other work
/// on files, however long the disk takes.
const MAX_LOOKUPS: usize = 3;
const MAX_PUTS: usize = 2;

/// Time after which a store is not opened, because its disk does not answer.
const OPEN_PATIENCE: Duration = Duration::from_secs(5);

/// Default maximum size of an entry's binary, in bytes.
pub(super) const MAX_PAYLOAD_BYTES: u64 = 256 << 20;

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
pub struct Store(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) root: PathBuf,
    pub(super) layout: Layout,
    pub(super) settings: Settings,
    pub(super) usage: UsageFile,
    pub(super) uses: Uses,
    pub(super) totals: TotalsFile,
    pub(super) counters: Arc<Counters>,
    pub(super) warned: Warned,
    pub(super) health: Health,
    /// Set by whoever finds that the store was not counted for long, until a collection begins.
    pub(super) is_collection_due: AtomicBool,
    /// Set while another process collects for longer than a put waits.
    pub(super) is_collector_stuck: AtomicBool,
    /// Locked while this process collects in the background.
    pub(super) collecting: Mutex<()>,
    pub(super) lookups: Arc<Semaphore>,
    pub(super) late: LateCalls,
    pub(super) puts: Semaphore,
    pub(super) background: TaskTracker,
}

/// Warnings that were already given. Each is given once.
#[derive(Debug, Default)]
pub(super) struct Warned {
    /// The file system has no locks.
    pub(super) locks: AtomicBool,
    /// A program is too large for the store.
    pub(super) size: AtomicBool,
    /// The disk is too slow for the programs that are to be stored.
    pub(super) speed: AtomicBool,
}

impl Store {
    /// Opens the store below `root`, which is created when the first entry is put there.
    ///
    /// # Errors
    ///
    /// From the future: [`Configuration`](ErrorKind::Configuration) if `root` is not a directory, belongs to
    /// another user, or can be written by others; [`OutOfResources`](ErrorKind::OutOfResources) if the system
    /// cannot start a thread, or the disk does not answer within 5 s; [`Forked`](ErrorKind::Forked) in a child process that was forked after Kiln
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
        let Ok(checked) = wait_up_to(OPEN_PATIENCE, pin!(check)).await else {
            // The check goes on in the background.
            let error = did_not_answer(OPEN_PATIENCE);
            let message = format!("the cache directory `{}` is not used: {error}", root.display());
            return Err(Error::new(ErrorKind::OutOfResources, message).with_source(error));
        };
        checked.map_err(|error| no_thread_error().with_source(error))??;
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
            is_collector_stuck: AtomicBool::new(false),
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
    pub(super) fn max_entry_bytes(&self) -> u64 {
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
    pub(super) fn exceeds_limit(&self, bytes: u64) -> bool {
        self.0.settings.max_bytes.is_some_and(|most| bytes > most)
    }

    /// Counts and reports a failure of the disk. Builds go on without it.
    pub(super) fn report_failure(&self, access: Access, error: &io::Error) {
        self.0.counters.disk.failures.add_one();
        self.0.health.failed(access, &self.0.root, error);
    }

    /// Counts and reports an entry that is not used, for a reason that its file shows.
    pub(crate) fn report_damaged(&self, key: &BuildKey, reason: &str) {
        self.0.counters.disk.damaged.add_one();
        self.0.health.found_damaged(&self.0.root, key, reason);
    }

    /// Counts and reports an entry that the driver does not load.
    pub(crate) fn report_refused(&self, key: &BuildKey, reason: &str) {
        self.0.counters.disk.refused.add_one();
        self.0.health.was_refused(&self.0.root, key, reason);
    }

    /// Returns the use of the store by all processes: hits, misses, and the time that they saved and spent. A
    /// running process adds its counts every few seconds, and with [`Runtime::drain`](crate::Runtime::drain). A
    /// store whose totals cannot be read, or that was not used yet, has zeros.
    ///
    /// # Errors
    ///
    /// From the future: [`OutOfResources`](crate::ErrorKind::OutOfResources) if the system cannot start a thread.
    ///
    /// # Cancel safety
    ///
    /// Reading changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: kiln::store::Store) -> kiln::Result<()> {
    /// let totals = store.totals().await?;
    /// let lookups = totals.hits + totals.misses;
    /// if lookups > 0 {
    ///     println!("{} % of the programs were found", totals.hits * 100 / lookups);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn totals(&self) -> Operation<Result<Totals>> {
        let totals = self.0.totals.clone();
        Operation::new(async move {
            totals.read().await.map_err(|error| no_thread_error().with_source(error))
        })
    }

    /// Returns the mean time of the compiles that were counted. `None` if there were none, or if the disk does not answer
    /// in time.
    pub(crate) async fn mean_compile(&self) -> Option<Duration> {
        let read = pin!(self.0.totals.read());
        let totals = wait_up_to(self.0.late.patience(), read).await.ok()?.ok()?;
        totals.spent.checked_div(u32::try_from(totals.misses).ok()?)
    }

    /// Counts a program that was loaded. Its compile took `saved`.
    pub(crate) fn record_hit(&self, saved: Duration) {
        self.0.totals.count(&Totals { hits: 1, saved, ..Totals::default() });
    }

    /// Counts a program that was compiled, which took `spent`.
    pub(crate) fn record_miss(&self, spent: Duration) {
        self.0.totals.count(&Totals { misses: 1, spent, ..Totals::default() });
    }

    /// Writes the counts of this process, unless that was done a moment ago.
    pub(crate) async fn write_totals_if_due(&self) {
        self.0.totals.write(false).await;
    }

    /// Writes all counts of this process.
    pub(crate) async fn write_totals(&self) {
        self.0.totals.write(true).await;
    }
}
