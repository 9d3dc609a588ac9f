//! Counters of a runtime.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Declares [`Stats`], its groups, and the counters behind them. Fields in the braces after `present` state the
/// present and have no counters.
macro_rules! counters {
    ($(
        $(#[doc = $group_doc:literal])+
        $group:ident:
        $(#[doc = $stats_doc:literal])+
        $stats:ident from $counters:ident {
            $($(#[doc = $doc:literal])+ $name:ident,)*
        } present {
            $($(#[doc = $present_doc:literal])+ $present:ident,)*
        }
    )*) => {
        /// Counts of a runtime's activity since it was created, in groups. Counts only grow, except in fields that
        /// state the present. Serialized, each group is a map of its fields' names to numbers.
        ///
        /// # Examples
        ///
        /// ```
        /// # use kiln::Stats;
        /// fn hit_rate(stats: &Stats) -> f64 {
        ///     let hits = stats.memory.hits + stats.builds.joined;
        ///     hits as f64 / stats.builds.requested.max(1) as f64
        /// }
        /// assert_eq!(hit_rate(&Stats::default()), 0.0); // or of `rt.stats()`
        /// ```
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $group_doc])+ pub $group: $stats,)*
        }

        /// The counters behind [`Stats`].
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $group: $counters,)*
        }

        impl Counters {
            /// Returns the counts. Fields that state the present are zero; the caller fills them in.
            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($group: self.$group.snapshot(),)* }
            }
        }

        $(
            $(#[doc = $stats_doc])+
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
            #[non_exhaustive]
            pub struct $stats {
                $($(#[doc = $doc])+ pub $name: u64,)*
                $($(#[doc = $present_doc])+ pub $present: u64,)*
            }

            #[doc = concat!("The counters behind [`", stringify!($stats), "`].")]
            #[derive(Debug, Default)]
            pub(crate) struct $counters {
                $(pub(crate) $name: Counter,)*
            }

            impl $counters {
                fn snapshot(&self) -> $stats {
                    $stats { $($name: self.$name.get(),)* ..$stats::default() }
                }
            }
        )*
    };
}

counters! {
    /// Requested builds, and the calls of compilers and linkers that they caused.
    builds:
    /// Counts of builds: the group `builds` of [`Stats`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// let builds = rt.stats().builds;
    /// println!("{} builds took {} compiles", builds.requested, builds.compiles);
    /// # }
    /// ```
    BuildStats from BuildCounters {
        /// Builds requested.
        requested,
        /// Builds that joined one already in flight.
        joined,
        /// Builds that the compiler refused, or that could not succeed on any try.
        failed,
        /// Builds abandoned after transient failures, such as exhausted memory.
        abandoned,
        /// Retries after a transient failure: of a driver's call, and of a build for the requests that joined it.
        retries,
        /// Builds that panicked.
        panics,
        /// Builds that waited for another process, or for another device's build of the same program.
        lock_waits,
        /// Waits that ended before the other process had built the program, which was then built here as well.
        lock_timeouts,
        /// Calls of a driver's compiler, or of its loader for a native module: one for each module of a program
        /// that is linked.
        compiles,
        /// Calls of a driver's linker.
        links,
        /// Translations of OpenCL C to SPIR-V by compilers that do not belong to a driver.
        translations,
        /// Child processes that called a driver's compiler or linker for untrusted modules: one for all modules of
        /// a program.
        child_processes,
        /// Compile processes that were started: see
        /// [`RuntimeBuilder::compile_processes`](crate::RuntimeBuilder::compile_processes).
        compile_processes,
        /// Programs that compile processes compiled or refused.
        process_compiles,
    } present {}

    /// Programs kept in memory.
    memory:
    /// Counts of the programs that are kept in memory: the group `memory` of [`Stats`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// let memory = rt.stats().memory;
    /// println!("{} programs take about {} MiB", memory.programs, memory.bytes_estimated >> 20);
    /// # }
    /// ```
    MemoryStats from MemoryCounters {
        /// Builds answered by a program or a failure that is kept in memory.
        hits,
        /// Programs evicted from memory to stay within its limit, or to make room on the device.
        evictions,
    } present {
        /// Programs kept in memory at present.
        programs,
        /// Bytes of device binaries that the programs kept in memory account for at present.
        bytes,
        /// Estimate of the bytes that the programs kept in memory take at present: their binaries, and what their
        /// drivers take besides. Within [`RuntimeBuilder::memory_limit`](crate::RuntimeBuilder::memory_limit).
        bytes_estimated,
    }

    /// Programs on the disk.
    disk:
    /// Counts of the programs on the disk: the group `disk` of [`Stats`]. They include objects that programs are
    /// linked from, and the SPIR-V of OpenCL C.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// let disk = rt.stats().disk;
    /// if disk.failures > 0 {
    ///     println!("the disk cache failed {} times", disk.failures);
    /// }
    /// # }
    /// ```
    DiskStats from DiskCounters {
        /// Programs loaded from the disk.
        hits,
        /// Programs that were looked up on the disk without success.
        misses,
        /// Misses for which the disk had an entry that failed verification.
        damaged,
        /// Misses for which the disk had a program that the driver refused to load.
        refused,
        /// Programs written to the disk.
        writes,
        /// Bytes of programs written to the disk.
        bytes_written,
        /// Bytes of programs loaded from the disk.
        bytes_read,
        /// Programs not written to the disk: they are too small or too large, larger than the limit of the whole
        /// disk cache, or would replace an entry of a newer version.
        skips,
        /// Failed reads and writes of the disk. Only the first failure is reported as a warning.
        failures,
        /// Programs that this process evicted from the disk to stay within the limits.
        evictions,
    } present {}

    /// Programs in the remote cache.
    remote:
    /// Counts of the programs in the remote cache: the group `remote` of [`Stats`]. They include objects that
    /// programs are linked from, and the SPIR-V of OpenCL C.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// let remote = rt.stats().remote;
    /// println!("{} of {} look-ups were hits", remote.hits, remote.hits + remote.misses);
    /// # }
    /// ```
    RemoteStats from RemoteCounters {
        /// Programs loaded from the remote cache.
        hits,
        /// Programs that were looked up in the remote cache and not found.
        misses,
        /// Failed requests to the remote cache: it refused the connection or the credentials, or it failed.
        errors,
        /// Requests that the remote cache did not answer within the time budget of builds.
        timeouts,
        /// Programs found in the remote cache but not used: damaged, not authenticated, of another key, or refused
        /// by the driver.
        refused,
        /// Compiles that began while the remote cache's answer was pending, and raced it.
        races,
        /// Bytes received from the remote cache.
        bytes_read,
        /// Programs written to the remote cache.
        writes,
        /// Bytes of programs written to the remote cache.
        bytes_written,
        /// Programs that could not be written to the remote cache.
        write_failures,
        /// Programs not written to the remote cache: too large, built faster than it accepts them, or built while
        /// it is unavailable.
        writes_dropped,
    } present {}

    /// Commands of all queues.
    commands:
    /// Counts of commands: the group `commands` of [`Stats`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// let commands = rt.stats().commands;
    /// println!("{} of {} commands are in flight", commands.in_flight, commands.submitted);
    /// # }
    /// ```
    CommandStats from CommandCounters {
        /// Commands submitted.
        submitted,
        /// Failed commands, including those that failed because another command failed.
        failed,
        /// Commands that the application canceled before the device was given them. They count as failed commands,
        /// too.
        canceled,
        /// Commands that waited because the maximum number of commands was in flight.
        parked,
        /// Commands found to be finished before the requested callback, if that arrived at all. Ordinary on fast
        /// devices. If this counts most of the awaited commands, the driver probably loses callbacks.
        late_callbacks,
    } present {
        /// Commands submitted and not finished at present.
        in_flight,
    }

    /// Launches of kernels.
    launches:
    /// Counts of launches: the group `launches` of [`Stats`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// let launches = rt.stats().launches;
    /// println!("{} checked launches needed no guard, {} did", launches.proven, launches.guarded);
    /// # }
    /// ```
    LaunchStats from LaunchCounters {
        /// Kernel launches among the commands. A replay of a graph counts for the kernels that it runs: recorded launches
        /// that run as one count once.
        submitted,
        /// Checked launches that were proven to stay inside their buffers, and run as they are. Launches of a scope or of
        /// a graph count one by one, also where they run as one kernel.
        proven,
        /// Checked launches that run as a guarded variant of their kernel, counted in the same way.
        guarded,
        /// Guarded variants of kernels that were requested, from a cache or built.
        guarded_variants,
    } present {}

    /// Fusion scopes, by how their launches ran.
    fusion:
    /// Counts of fusion scopes: the group `fusion` of [`Stats`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// let fusion = rt.stats().fusion;
    /// println!("{} scopes were fused, {} ran one by one because that is faster", fusion.fused, fusion.slower);
    /// # }
    /// ```
    FusionStats from FusionCounters {
        /// Scopes whose launches ran as one kernel, or in parts of which at least one was a fused kernel.
        fused,
        /// Scopes that were canceled, discarded, or dropped before they were completed.
        canceled,
        /// Scopes whose launches ran one by one because something outside of the scope required it.
        aborted,
        /// Scopes of which no launches were fused: they could not run as one kernel, were not proven to compute the
        /// same results, or were excluded from fusion.
        refused,
        /// Scopes whose launches ran one by one because that is faster, or to find out whether it is.
        slower,
        /// Scopes whose kernel could not be built because of a transient failure.
        failed,
        /// Scopes whose launches ran one by one because their kernel was not built within a second, or within the
        /// [limit](crate::RuntimeBuilder::fusion_limit).
        overdue,
    } present {}
}

/// State of an open device at present, from [`Runtime::device_stats`](crate::Runtime::device_stats).
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
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
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
