//! The persistent store: programs on disk, shared by the processes of a machine.
//!
//! # How it works
//!
//! Files are the truth: every program is one immutable file, named by its [`BuildKey`], below the
//! folder of its device. There is no database, no index and no daemon. What is said of programs here
//! is as true of objects, the compiled images that programs are linked from.
//!
//! * **A hit** opens the file, reads it, and verifies the full key and a checksum (XXH3-128) over all
//!   of it. It takes no lock. At most every ten minutes it sets the file's modification time, which is
//!   how the store knows when an entry was last used; access times are never consulted, so `noatime`
//!   and `relatime` mounts keep the order.
//! * **A build** that the disk does not have takes one of 1,024 build locks first. Other processes
//!   that want the same program wait without a thread, look again, and load it when it is there.
//!   A process that dies frees its locks at once; past a [deadline](crate::CacheConfig::build_wait)
//!   those who wait build themselves.
//! * **A put** happens behind the caller: whoever awaited the build has its program first. The file
//!   is written under another name, synced as the [`Durability`] says, and renamed: readers see all
//!   of it or nothing. [`Runtime::drain`](crate::Runtime::drain) waits for puts.
//! * **Collection** starts in the background when the store is larger than its limit, and removes
//!   what was not used for longest until nine tenths of the limit are left. An entry that is replaced
//!   or stamped meanwhile stays, and so does one written in the last five seconds. An entry stamped in
//!   the future, by a clock that was set back, counts as the oldest; one that is larger than the whole
//!   limit goes first, and is not stored in the first place.
//!
//! # What it promises
//!
//! Whatever is found on the disk, a build gives the right program or the compiler's error. An entry
//! that is damaged, cut short, swapped with another, or of an older form is a miss, and the build
//! that follows replaces it; one of a newer form is left alone. What a driver refuses to load is a
//! miss, too. A directory that is full, read-only, or removed while processes use it costs builds
//! and nothing else: there is one warning through [`tracing`], or on standard error where there is no
//! subscriber, and [`Stats::disk_failures`](crate::Stats::disk_failures) counts.
//!
//! Only regular files are opened. A pipe, a socket, a device or a link in the place of a file or folder
//! of the store is removed; a directory with something in it is left where it is, or moved to `tmp` if it
//! takes an entry's place.
//!
//! # What it does not promise
//!
//! The checksum finds damage, not malice: whoever can write to the directory can place a program
//! there that will be run. The store therefore makes its directories and files for their owner alone,
//! refuses a root that belongs to somebody else or that others can write to, and takes a file that does
//! for a miss. Do not share one between users who do not trust each other, and import only bundles whose
//! origin you trust.
//!
//! Keys cover the image, options, constants, device, driver, environment, and the files that OpenCL C
//! includes as far as they can be found: see [`BuildRequest::options`](crate::BuildRequest::options).
//!
//! # Sizing it
//!
//! An entry is as large as the driver's binary: with one small kernel 7 KiB on Intel's CPU runtime
//! and 50 KiB on PoCL, with twenty of them 30 and 310 KiB. The limit is 1 GiB unless
//! `KILN_CACHE_MAX_SIZE` or [`CacheConfig::max_bytes`](crate::CacheConfig::max_bytes) says otherwise.
//! It holds at rest; while many processes write at once, it can be passed by what they write during
//! one collection, and a process that ends before its collection leaves that to the next one's put.
//!
//! # Network file systems
//!
//! The store is right on any file system whose rename is atomic, NFS included. "One build at a time"
//! needs file locks that work between the machines; where there are none, that is told once, and
//! each process builds for itself. A directory on the local disk is faster, and is what `/var/cache`
//! and `XDG_CACHE_HOME` are for.

mod collect;
mod entry;
mod explore;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod layout;
mod lock;
mod publish;
mod task_tracker;
mod usage;

use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, SystemTime};

pub use self::collect::Collected;
pub use self::entry::{Entry, KernelRecord, Manifest, ParameterRecord, Unusable};
pub use self::explore::{Checked, EntryInfo};
pub use self::publish::Durability;

pub(crate) use self::entry::{decode_for, encode, kernels};
pub(crate) use self::layout::Address;
#[cfg(feature = "remote")]
pub(crate) use self::layout::SUFFIX;
pub(crate) use self::lock::{Lock, Try};
pub(crate) use self::task_tracker::{Behind, Pending};

use self::collect::{Goal, YOUNG, collect};
use self::layout::Layout;
use self::publish::{Published, publish};
use self::usage::HintFile;
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::process::file::{self, Links};
use crate::process::threads;
use crate::process::warning;
use crate::stats::Counters;

/// How far the stamp of an entry's last use may lag behind.
const STAMP_EVERY: Duration = Duration::from_secs(600);

/// Room in an entry's file beside its payload, for a long build log.
const BESIDE_PAYLOAD: u64 = 64 << 20;

/// How often a collection is repeated, as entries grow old enough to go, before it is left to the
/// next put.
const ROUNDS: u32 = 8;

/// How large the binary of an entry can be, unless something else is set.
const LARGEST_ENTRY: u64 = 256 << 20;

/// What can be set about a store.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// No limit if `None`.
    pub(crate) max_bytes: Option<u64>,
    pub(crate) max_age: Option<Duration>,
    pub(crate) durability: Durability,
    /// Payloads of other sizes are not stored.
    pub(crate) entry_bytes: RangeInclusive<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_bytes: Some(1 << 30),
            max_age: None,
            durability: Durability::default(),
            entry_bytes: 1..=LARGEST_ENTRY,
        }
    }
}

/// A store of programs in a directory. A handle, cheap to clone.
///
/// A [`Runtime`](crate::Runtime) has one of its own; this type is for looking into one from outside,
/// as the `kiln` explorer does. Its methods block on the disk.
#[derive(Clone, Debug)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    layout: Layout,
    settings: Settings,
    hint: HintFile,
    counters: Arc<Counters>,
    warned: Warned,
    collecting: AtomicBool,
    behind: Behind,
}

/// What has been told already: each of these once.
#[derive(Debug, Default)]
struct Warned {
    /// That the disk cannot be read, or written.
    disk: AtomicBool,
    /// That it has no locks.
    locks: AtomicBool,
    /// That a program is too large for it.
    size: AtomicBool,
}

/// What a lookup finds.
#[derive(Debug)]
pub(crate) enum Lookup {
    Hit(Entry),
    Absent,
    /// There is something, but no entry of this key.
    Unusable(Unusable),
    Unreadable(io::Error),
}

impl Store {
    /// The store below `root`, which is made when something is put there.
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration) if `root` is no directory, belongs to another
    /// user, or can be written by others.
    pub fn at(root: impl Into<PathBuf>) -> Result<Self> {
        Self::open(root.into(), Settings::default(), Arc::default())
    }

    pub(crate) fn open(root: PathBuf, settings: Settings, counters: Arc<Counters>) -> Result<Self> {
        let layout = Layout::new(&root);
        for directory in [&*root, layout.version()] {
            if let Some(reason) = layout::distrust(directory, &root) {
                let directory = directory.display();
                let message = format!("the cache directory `{directory}` is not used: {reason}");
                return Err(Error::new(ErrorKind::Configuration, message));
            }
        }
        Ok(Self(Arc::new(Inner {
            hint: HintFile::new(&layout),
            root,
            layout,
            settings,
            counters,
            warned: Warned::default(),
            collecting: AtomicBool::new(false),
            behind: Behind::default(),
        })))
    }

    /// The directory that it is in.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0.root
    }

    /// How many bytes it may hold; no limit if `None`.
    #[must_use]
    pub fn max_bytes(&self) -> Option<u64> {
        self.0.settings.max_bytes
    }

    /// Looks for an entry, and verifies it. Takes no lock.
    pub(crate) fn get(&self, address: &Address) -> Lookup {
        let read = self.read(&self.0.layout.entry(address), true);
        let found = match read {
            Ok(bytes) => bytes.and_then(|bytes| decode_for(&address.key, bytes)),
            Err(error) if layout::is_missing(&error) => return Lookup::Absent,
            Err(error) => {
                self.failed("read", &error);
                return Lookup::Unreadable(error);
            }
        };
        match found {
            Ok(entry) => Lookup::Hit(entry),
            Err(unusable) => Lookup::Unusable(unusable),
        }
    }

    /// A whole file, stamped as used or not. The outer error is the system's.
    fn read(&self, path: &Path, used: bool) -> io::Result<std::result::Result<Vec<u8>, Unusable>> {
        let (mut file, metadata) = match file::open(path, file::reading(), Links::Refuse) {
            Err(error) if file::is_not_regular(&error) => return Ok(Err(Unusable::Foreign)),
            opened => opened?,
        };
        // The root may have been made, by anybody, after the store was opened.
        if let Some(reason) = layout::distrust_of(&metadata) {
            return Ok(Err(Unusable::Distrusted(reason)));
        }
        // Another application, with other limits, may have written it.
        if metadata.len() > self.most_bytes().max(LARGEST_ENTRY + BESIDE_PAYLOAD) {
            return Ok(Err(Unusable::TooLarge(metadata.len())));
        }
        // One byte more than it should have shows that it grew meanwhile.
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(metadata.len() as usize + 1)?;
        file.by_ref().take(metadata.len() + 1).read_to_end(&mut bytes)?;
        let now = SystemTime::now();
        let stamped = metadata.modified().ok().and_then(|stamp| now.duration_since(stamp).ok());
        if used && stamped.is_none_or(|age| age > STAMP_EVERY) {
            // Whoever cannot set it reads all the same.
            let _ = file.set_modified(now);
        }
        Ok(Ok(bytes))
    }

    /// How large the file of an entry can be that this store writes.
    fn most_bytes(&self) -> u64 {
        self.0.settings.entry_bytes.end().saturating_add(BESIDE_PAYLOAD)
    }

    /// Stores a payload and [what follows it](encode) in its file, replacing what is in its place.
    pub(crate) fn put(&self, address: &Address, payload: &[u8], rest: &[u8]) {
        let Inner { layout, settings, counters, .. } = &*self.0;
        if !settings.entry_bytes.contains(&(payload.len() as u64)) {
            return counters.disk_skips.add_one();
        }
        let bytes = (payload.len() + rest.len()) as u64;
        if self.is_over(bytes) {
            return self.too_large(address, bytes);
        }
        let path = layout.entry(address);
        let published = match publish(layout, &path, [payload, rest], settings.durability) {
            Ok(Published::Left) => return counters.disk_skips.add_one(),
            Ok(published) => published,
            Err(error) => return self.failed("written", &error),
        };
        counters.disk_writes.add_one();
        counters.disk_bytes_written.add(bytes);
        self.grown(bytes, published);
    }

    /// Tries to become the one process that builds `key`.
    pub(crate) fn try_build_lock(&self, key: &BuildKey) -> Try {
        let Inner { layout, warned, .. } = &*self.0;
        let path = layout.build_lock(key);
        let tried = match lock::try_lock(&path) {
            Try::Unopened(error) if layout::is_missing(&error) => match layout.create() {
                Ok(()) => lock::try_lock(&path),
                Err(error) => Try::Unopened(error),
            },
            tried => tried,
        };
        match &tried {
            Try::Unopened(error) => self.failed("written", error),
            Try::Impossible(error) if !warned.locks.swap(true, SeqCst) => tracing::warn!(
                %error,
                root = %self.0.root.display(),
                "no locks can be had in the cache directory; processes that start together may \
                 build the same program each"
            ),
            _ => {}
        }
        tried
    }

    /// Something that [`settled`](Self::settled) waits for.
    pub(crate) fn begin(&self) -> Pending {
        self.0.behind.begin()
    }

    /// Completes when everything that was begun before this call, and collections that followed from
    /// it, have ended.
    pub(crate) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        let store = self.clone();
        let puts = self.0.behind.settled();
        async move {
            puts.await;
            // A put that ended meanwhile may have begun a collection.
            store.0.behind.settled().await;
        }
    }

    /// Adds a file to the size hint, and has the store collected if it is too large.
    fn grown(&self, bytes: u64, published: Published) {
        let Some(difference) = published.difference(bytes) else { return };
        let known = self.0.hint.add(difference);
        if known.is_none_or(|hint| hint.is_old() || self.is_over(hint.bytes)) {
            self.collect_behind();
        }
    }

    /// What collections aim at: nine tenths of the limit, so that they are rare.
    fn goal(&self) -> Goal {
        let Settings { max_bytes, max_age, .. } = self.0.settings;
        Goal { bytes: max_bytes, aim: max_bytes.map(|most| most / 10 * 9), max_age, dry_run: false }
    }

    /// Collects on a thread of its own, unless this process does so already.
    fn collect_behind(&self) {
        if self.0.collecting.swap(true, SeqCst) {
            return;
        }
        let store = self.clone();
        let pending = self.begin();
        let run = move || {
            let _pending = pending;
            for round in 0..ROUNDS {
                if round > 0 {
                    // What was too young to go has grown old enough.
                    thread::sleep(YOUNG);
                }
                match collect_now(&store.0, store.goal()) {
                    Some(collected) if store.is_over(collected.bytes_left()) => {}
                    // It is done, or another process sees to it.
                    _ => break,
                }
            }
            store.0.collecting.store(false, SeqCst);
        };
        if let Err(error) = threads::start("kiln-collector", run) {
            self.0.collecting.store(false, SeqCst);
            tracing::debug!(%error, "no thread for a collection; a later put tries again");
        }
    }

    /// Counts an entry that is larger than the whole store may be, and warns of the first. To make
    /// room for it, a collection would have to remove all others.
    fn too_large(&self, address: &Address, bytes: u64) {
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

    fn is_over(&self, bytes: u64) -> bool {
        self.0.settings.max_bytes.is_some_and(|most| bytes > most)
    }

    /// The build goes on without the disk: that is told once, and counted.
    fn failed(&self, what: &str, error: &io::Error) {
        self.0.counters.disk_failures.add_one();
        if !self.0.warned.disk.swap(true, SeqCst) {
            let root = self.0.root.display();
            tracing::warn!(
                %error,
                %root,
                "the cache directory cannot be {what}; programs are built without it"
            );
            warning::show(&format!(
                "the cache directory `{root}` cannot be {what}: {error}; programs are built without it"
            ));
        }
    }
}

/// Collects and counts, unless another process does. A collection that finds the store within its
/// limit only counts and sweeps.
fn collect_now(inner: &Inner, goal: Goal) -> Option<Collected> {
    let Inner { layout, hint, counters, .. } = inner;
    let lock = lock::try_lock(&layout.locks().join("gc"));
    if matches!(lock, Try::Busy) {
        return None;
    }
    let before = hint.read();
    let collected = collect(layout, goal);
    if !goal.dry_run {
        counters.disk_evictions.add(collected.removed);
        if let Err(error) = hint.set(before, collected.bytes_left()) {
            tracing::debug!(%error, "the size hint cannot be written; the next put counts again");
        }
    }
    Some(collected)
}
