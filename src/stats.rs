//! What a runtime counts.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)*) => {
        /// What a runtime has done since it was made. Counts only ever grow, except where a field
        /// says that it tells the present.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)*
            /// Programs kept in memory at present.
            pub programs_in_memory: u64,
            /// Bytes of device binaries that the programs kept in memory stand for at present.
            pub bytes_in_memory: u64,
            /// Commands submitted and not ended at present.
            pub commands_in_flight: u64,
        }

        /// The counters behind [`Stats`].
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: Counter,)*
        }

        impl Counters {
            /// The counts; what tells the present is left at zero for the caller to fill in.
            pub(crate) fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.get(),)* ..Stats::default() }
            }
        }
    };
}

counters! {
    /// Builds asked for.
    builds_requested,
    /// Builds answered by a program, or a failure, kept in memory.
    memory_hits,
    /// Builds that joined one already in flight.
    joined_builds,
    /// Programs loaded from the disk. In this count and those of the disk below, objects that programs
    /// are linked from, and the SPIR-V of OpenCL C, count like programs.
    disk_hits,
    /// Programs that the disk was asked for and did not have.
    disk_misses,
    /// Misses among them for which the disk had something that does not verify.
    disk_damaged,
    /// Misses among them for which the disk had a program that the driver would not load.
    disk_refused,
    /// Programs written to the disk.
    disk_writes,
    /// Bytes written to the disk with them.
    disk_bytes_written,
    /// Bytes of programs loaded from the disk.
    disk_bytes_read,
    /// Programs not written to the disk: too small or too large for it, larger than its whole limit, or
    /// in the place of a newer version's.
    disk_skips,
    /// Times that the disk could not be read or written. Only the first is told as a warning.
    disk_failures,
    /// Programs removed from the disk by this process to stay within its limits.
    disk_evictions,
    /// Programs loaded from the remote cache. In this count and those of the remote cache below,
    /// objects that programs are linked from, and the SPIR-V of OpenCL C, count like programs.
    remote_hits,
    /// Programs that the remote cache was asked for and did not have.
    remote_misses,
    /// Times that the remote cache could not be asked: it refused the connection or the
    /// credentials, or failed.
    remote_errors,
    /// Times that it did not answer within the budget that builds have for it.
    remote_timeouts,
    /// Programs that it had and that were not used: damaged, not authenticated, of another key, or
    /// refused by the driver.
    remote_refused,
    /// Compiles that began while its answer was awaited, and raced it.
    remote_races,
    /// Bytes received from it.
    remote_bytes_read,
    /// Programs written to it.
    remote_writes,
    /// Bytes written to it with them.
    remote_bytes_written,
    /// Programs that could not be written to it.
    remote_write_failures,
    /// Programs not written to it: too large, built faster than it takes them, or while it is sick.
    remote_writes_dropped,
    /// Builds that waited for another process, or another device's build of the same program.
    lock_waits,
    /// Waits given up at the deadline; the program was then built here as well.
    lock_timeouts,
    /// Times that a driver's compiler was called, or its loader for a native image: once for each
    /// image of a program that is linked.
    compiles,
    /// Times that a driver's linker was called.
    links,
    /// Child processes that made such calls, for images that are not trusted: one for all that a
    /// program is made of.
    build_children,
    /// Times that OpenCL C was translated to SPIR-V by compilers that are no driver's.
    translations,
    /// Builds that the compiler refused, or that could not be right on any try.
    failed_builds,
    /// Builds given up after failures of circumstance, such as exhausted memory.
    abandoned_builds,
    /// Tries that were repeated after a failure of circumstance.
    build_retries,
    /// Builds that panicked.
    build_panics,
    /// Programs dropped from memory to stay within its limit, or to make room on the device.
    evictions,
    /// Commands submitted.
    commands,
    /// Kernel launches among them.
    launches,
    /// Fusion scopes whose launches ran as one kernel.
    fusions,
    /// Fusion scopes that were canceled, discarded, or dropped before they were completed.
    fusions_canceled,
    /// Fusion scopes that something outside made run one by one.
    fusions_aborted,
    /// Fusion scopes whose launches could not run as one, were not proven to compute the same, or
    /// were not to be fused.
    fusions_refused,
    /// Fusion scopes whose launches ran one by one because that is faster, or to find that out.
    fusions_slower,
    /// Fusion scopes whose kernel could not be built for a failure of circumstance.
    fusions_failed,
    /// Commands that failed, those failed by another's failure included.
    failed_commands,
    /// Commands that waited because as many as allowed were in flight.
    parked_commands,
    /// Commands that were found to have ended before the callback that was asked for, if that ever
    /// came. Ordinary on fast devices; for most of the commands awaited, a sign of a driver that
    /// loses callbacks.
    late_callbacks,
}

/// A count that many threads add to.
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
