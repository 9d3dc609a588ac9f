//! Counters of a runtime.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// Counts of a runtime's activity since it was created. Counts only grow, except in fields that state
        /// the present. With the feature `serde`, it implements `serde::Serialize`, as a map of the fields'
        /// names to numbers.
        ///
        /// # Examples
        ///
        /// ```
        /// # use kiln::Stats;
        /// fn hit_rate(stats: &Stats) -> f64 {
        ///     let hits = stats.memory_hits + stats.joined_builds;
        ///     hits as f64 / stats.builds_requested.max(1) as f64
        /// }
        /// assert_eq!(hit_rate(&Stats::default()), 0.0); // or of `rt.stats()`
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)*
            /// Programs kept in memory at present.
            pub programs_in_memory: u64,
            /// Bytes of device binaries that the programs kept in memory account for at present.
            pub bytes_in_memory: u64,
            /// Estimate of the bytes that the programs kept in memory take at present: their binaries, and what their
            /// drivers take besides. Within [`RuntimeBuilder::memory_limit`](crate::RuntimeBuilder::memory_limit).
            pub bytes_estimated: u64,
            /// Commands submitted and not finished at present.
            pub commands_in_flight: u64,
        }

        /// The counters behind [`Stats`].
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Counters {
            /// Returns the counts. Fields that state the present are zero; the caller fills them in.
            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.get(),)* ..Stats::default() }
            }
        }
    };
}

counters! {
    /// Builds requested.
    builds_requested,
    /// Builds answered by a program or a failure that is kept in memory.
    memory_hits,
    /// Builds that joined one already in flight.
    joined_builds,
    /// Programs loaded from the disk. This count and the counts of the disk below include objects that programs
    /// are linked from, and the SPIR-V of OpenCL C.
    disk_hits,
    /// Programs that were looked up on the disk without success.
    disk_misses,
    /// Disk misses for which the disk had an entry that failed verification.
    disk_damaged,
    /// Disk misses for which the disk had a program that the driver refused to load.
    disk_refused,
    /// Programs written to the disk.
    disk_writes,
    /// Bytes of programs written to the disk.
    disk_bytes_written,
    /// Bytes of programs loaded from the disk.
    disk_bytes_read,
    /// Programs not written to the disk: they are too small or too large, larger than the limit of the whole
    /// disk cache, or would replace an entry of a newer version.
    disk_skips,
    /// Failed reads and writes of the disk. Only the first failure is reported as a warning.
    disk_failures,
    /// Programs that this process evicted from the disk to stay within the limits.
    disk_evictions,
    /// Programs loaded from the remote cache. This count and the counts of the remote cache below include
    /// objects that programs are linked from, and the SPIR-V of OpenCL C.
    remote_hits,
    /// Programs that were looked up in the remote cache and not found.
    remote_misses,
    /// Failed requests to the remote cache: it refused the connection or the credentials, or it failed.
    remote_errors,
    /// Requests that the remote cache did not answer within the time budget of builds.
    remote_timeouts,
    /// Programs found in the remote cache but not used: damaged, not authenticated, of another key, or refused
    /// by the driver.
    remote_refused,
    /// Compiles that began while the remote cache's answer was pending, and raced it.
    remote_races,
    /// Bytes received from the remote cache.
    remote_bytes_read,
    /// Programs written to the remote cache.
    remote_writes,
    /// Bytes of programs written to the remote cache.
    remote_bytes_written,
    /// Programs that could not be written to the remote cache.
    remote_write_failures,
    /// Programs not written to the remote cache: too large, built faster than it accepts them, or built while
    /// it is unavailable.
    remote_writes_dropped,
    /// Builds that waited for another process, or for another device's build of the same program.
    lock_waits,
    /// Waits that ended before the other process had built the program, which was then built here as well.
    lock_timeouts,
    /// Calls of a driver's compiler, or of its loader for a native module: one for each module of a program
    /// that is linked.
    compiles,
    /// Calls of a driver's linker.
    links,
    /// Child processes that made such calls for untrusted modules: one for all modules of a program.
    build_children,
    /// Compile processes that were started: see [`RuntimeBuilder::compile_processes`](crate::RuntimeBuilder::compile_processes).
    compile_processes,
    /// Programs that compile processes compiled or refused.
    process_compiles,
    /// Translations of OpenCL C to SPIR-V by compilers that do not belong to a driver.
    translations,
    /// Builds that the compiler refused, or that could not succeed on any try.
    failed_builds,
    /// Builds abandoned after transient failures, such as exhausted memory.
    abandoned_builds,
    /// Retries after a transient failure: of a driver's call, and of a build for the requests that joined it.
    build_retries,
    /// Builds that panicked.
    build_panics,
    /// Programs evicted from memory to stay within its limit, or to make room on the device.
    evictions,
    /// Commands submitted.
    commands,
    /// Kernel launches among the commands.
    launches,
    /// Checked launches that were proven to stay inside their buffers, and ran as they are.
    launches_proven,
    /// Checked launches that ran as a guarded variant of their kernel.
    launches_guarded,
    /// Guarded variants of kernels that were requested, from a cache or built.
    guarded_variants,
    /// Fusion scopes whose launches ran as one kernel, or in parts of which at least one was a fused kernel.
    fusions,
    /// Fusion scopes that were canceled, discarded, or dropped before they were completed.
    fusions_canceled,
    /// Fusion scopes whose launches ran one by one because something outside of the scope required it.
    fusions_aborted,
    /// Fusion scopes of which no launches were fused: they could not run as one kernel, were not proven to
    /// compute the same results, or were excluded from fusion.
    fusions_refused,
    /// Fusion scopes whose launches ran one by one because that is faster, or to find out whether it is.
    fusions_slower,
    /// Fusion scopes whose kernel could not be built because of a transient failure.
    fusions_failed,
    /// Fusion scopes whose launches ran one by one because their kernel was not built within a second, or within the
    /// [limit](crate::RuntimeBuilder::fusion_limit).
    fusions_overdue,
    /// Failed commands, including those that failed because another command failed.
    failed_commands,
    /// Commands that the application canceled before the device was given them. They count as failed commands,
    /// too.
    canceled_commands,
    /// Commands that waited because the maximum number of commands was in flight.
    parked_commands,
    /// Commands found to be finished before the requested callback, if that arrived at all. Ordinary on fast
    /// devices. If this counts most of the awaited commands, the driver probably loses callbacks.
    late_callbacks,
}

/// State of an open device at present, from [`Runtime::device_stats`](crate::Runtime::device_stats). With the
/// feature `serde`, it implements `serde::Serialize`.
///
/// # Examples
///
/// ```no_run
/// # fn example(rt: kiln::Runtime) {
/// for device in rt.device_stats() {
///     let (used, total) = (device.memory_used >> 20, device.memory_total >> 20);
///     println!("{}: {used} of {total} MiB, {} commands", device.name, device.commands_in_flight);
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct DeviceStats {
    /// Index of the device in [`Runtime::devices`](crate::Runtime::devices).
    pub index: usize,
    /// Name of the device.
    pub name: String,
    /// API through which the device is reached, such as `opencl`.
    pub backend: &'static str,
    /// Bytes of device memory that this runtime has allocated for buffers and images and not freed. Memory that
    /// a driver takes for programs and queues is not included, nor is memory of other runtimes and processes.
    pub memory_used: u64,
    /// Bytes of memory that the device has, as its driver reports: the limit of all its users together.
    pub memory_total: u64,
    /// Commands submitted and not finished.
    pub commands_in_flight: u64,
}

/// Counter that many threads add to.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add_one(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
