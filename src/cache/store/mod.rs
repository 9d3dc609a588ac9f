//! The persistent store: programs on disk, shared by the processes of a machine.
//!
//! # How it works
//!
//! The files are the source of truth: every program is one immutable file, named by its [`BuildKey`](crate::build::BuildKey), in the
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
//!   do, or after a [deadline](crate::CacheConfig::build_wait). A process that compiles its first program knows from
//!   the [`Totals`] how long compiles take. A lock is freed 8 s after the compile even if the disk has not answered.
//! * **A put** happens in the background: the caller that awaited the build has its program first. The file is
//!   written under a temporary name, synced as the [`Durability`] specifies, and published by an atomic rename.
//!   Readers see all of it or nothing. [`Runtime::drain`](crate::Runtime::drain) waits for puts.
//! * **Collection** makes room before a put that would exceed the limit. It evicts the least recently used entries until
//!   nine tenths of the limit are left. It also runs in the background when a runtime starts or drains, if the store is
//!   larger than its limit, or was not counted for an hour or for the
//!   [maximum age](crate::CacheConfig::max_age). An entry that is replaced or stamped meanwhile stays. An entry stamped
//!   in the future, by a clock that was set back, counts as the oldest. An entry that is larger than the whole limit is
//!   not stored; if there is one, it goes first. Folders without entries are removed. While another process collects for
//!   longer than two seconds, such as one that was stopped, programs for which there is no room are not stored, with a
//!   warning.
//!
//! # Guarantees
//!
//! A build returns the right program or the compiler's error, whatever is on the disk. An entry that is
//! damaged, cut short, swapped with another, or of an older format is a miss, and the build that follows
//! replaces it. An entry of a newer format is left alone. A binary that the driver refuses to load is a miss,
//! too. A directory that is full, read-only, or removed while processes use it costs builds and nothing else.
//! Kiln warns when such an outage begins and when it ends, through [`tracing`], or on standard error if there is no
//! subscriber, and [`DiskStats::failures`](crate::stats::DiskStats::failures) counts the failures. Entries that are
//! not used are logged as warnings, with their number, at most once a minute.
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
mod handle;
mod health;
mod holder;
mod info;
mod late_calls;
mod layout;
mod lock;
mod lookup;
mod numbers_file;
mod operation;
mod publish;
mod put;
mod stamp;
mod storage;
mod task_tracker;
mod totals;
mod usage;
mod uses;

pub use self::collect::Collected;
pub use self::entry::{Entry, EntryRecord, KernelRecord, ObjectRecord, ParameterRecord, Unusable};
pub use self::handle::Store;
pub use self::info::{EntryCheck, EntryInfo};
pub use self::operation::{Entries, Operation, Verify};
pub use self::publish::Durability;
pub use self::storage::Storage;
pub use self::totals::Totals;

#[cfg(feature = "remote")]
pub(crate) use self::entry::decode_for;
pub(crate) use self::entry::{MAGIC, decode, encode, has_footer, kernels};
pub(crate) use self::handle::Settings;
pub(crate) use self::layout::Address;
#[cfg(feature = "remote")]
pub(crate) use self::layout::SUFFIX;
pub(crate) use self::lock::{BackgroundLock, Try};
pub(crate) use self::lookup::Lookup;
pub(crate) use self::task_tracker::{Pending, TaskTracker};
