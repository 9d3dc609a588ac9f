//! Table of driver quirks.
//!
//! A workaround that is applied to some drivers only is a field of [`Workarounds`]; no other file looks at the
//! names of platforms for that. A workaround that does no harm to other drivers is applied to all of them,
//! where it is needed. To add a quirk, add a field that states what is done about it and why, with the version
//! of the driver that shows it, and set it in [`Workarounds::of`].

use super::{DeviceInfo, DeviceKind};

/// Workarounds that a driver needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Workarounds {
    /// Strategy for enqueueing fills.
    pub(crate) fills: FillStrategy,
    /// Enqueue commands in batches: the driver's worker threads sleep when they run out of work, and waking one
    /// takes longer than the rest of a command's submission (PoCL 3.1).
    pub(crate) enqueue_in_batches: bool,
    /// Keep launches of kernels with a required work-group size apart from fetches of their program's binary:
    /// the driver aborts the process when they overlap (PoCL 3.1).
    pub(crate) separate_binary_fetches: bool,
    /// Build and link one program at a time, and check that a binary is complete: the driver keeps texts that
    /// differ only in comments in one file, removes it for a rebuild, and returns an incomplete binary to
    /// requests made meanwhile (PoCL 3.1).
    pub(crate) serialize_builds: bool,
    /// Expect compilation at a kernel's launch and when its binary is fetched: the driver compiles kernels for
    /// the device only then, and ends the process if it lacks resources for that (PoCL 3.1).
    pub(crate) expect_late_compiles: bool,
    /// Take the largest work-group size from the kernel's required size where that is more than the driver
    /// reports: it reports at most 256 work-items also for a kernel that requires more (NVIDIA 580.159).
    pub(crate) trust_required_group_size: bool,
    /// Poll for the completion of commands: the driver reports it up to 20 ms late (NVIDIA 580.159 on an H100,
    /// `cargo bench --bench wake`).
    pub(crate) poll_for_ends: bool,
    /// Keep unused memory for new buffers while there are commands, and release views of a memory from the
    /// last to the first: the driver blocks a release until the device is idle, and crashes when, of two
    /// overlapping views that kernels were given, the older one is released first (NVIDIA 580.159).
    pub(crate) defer_releases: bool,
    /// Request no event for a launch whose end nobody has to learn at once. A launch with an event that is queried and
    /// released takes the driver 1.6 times as long (NVIDIA 580.159) or 1.2 times (Intel's runtime for CPUs 2026.22).
    /// On NVIDIA's driver, a launch fails together with its context, which the next event reports. On Intel's runtime,
    /// an enqueued launch does not fail. Not set for PoCL 3.1, which ends the process when a launch without an event
    /// fails because of an earlier command.
    pub(crate) omit_events: bool,
    /// Wait in the driver while commands run: the driver has one worker thread less than the CPU has compute
    /// units, and relies on the waiting thread as well (Intel's runtime for CPUs 2026.22).
    pub(crate) help_execute: bool,
    /// Keep launches as functions of their own in a fused kernel with barriers: after a barrier, the compiler
    /// may use for one launch a value that it calculated before the barrier for another, with other last bits
    /// (Intel's runtime for CPUs 2026.22). It also calculates estimates, and the sums of loops of eight
    /// iterations or more, differently in other nd-ranges and work-groups.
    pub(crate) separate_functions: bool,
    /// Use barriers in a fused kernel to order a work-item's own memory accesses as well: the compiler may
    /// reorder them, against the specification (PoCL 3.1).
    pub(crate) order_own_accesses: bool,
    /// Pass vectors of three components to functions, and return them, as vectors of four. The driver makes
    /// work-items the lanes of vectors. Where it calls a function for some lanes only, and does not inline it, the
    /// function gets components of other lanes in a vector of three (Intel's runtime for CPUs 2026.22).
    pub(crate) widen_vectors: bool,
    /// Make volatile loads of checked kernels plain ones, whose values go through volatile variables. The driver
    /// does volatile loads regardless of the branches around them (Intel's runtime for CPUs 2026.22).
    pub(crate) split_volatile_loads: bool,
    /// Expect the driver to take this number of bytes for a small program besides its binary, as long as nothing is
    /// measured. For a kernel of one line, Intel's runtime for CPUs 2026.22 takes 1.8 MiB, and 3.1 MiB if the kernel calls
    /// `sin`; PoCL 3.1 takes 0.1 to 1 MiB.
    pub(crate) small_program_bytes: Option<u64>,
}

/// Number of bytes that drivers without a value of their own are expected to take for a small program.
const PROGRAM_BYTES: u64 = 256 << 10;

/// Strategy for enqueueing fills. The times given for drivers are for 64 MiB (`cargo bench --bench transfer`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FillStrategy {
    /// Maximum length, in bytes, to which a pattern is repeated.
    pub(crate) widest: usize,
    /// Whether a pattern of equal bytes is reduced to one byte.
    pub(crate) narrows: bool,
    /// Whether only the beginning is filled, and copies then repeat it.
    pub(crate) copies: bool,
}

impl Default for FillStrategy {
    fn default() -> Self {
        Self { widest: 1, narrows: false, copies: false }
    }
}

impl Workarounds {
    /// Returns the workarounds for a device's driver; none for a driver without known quirks.
    pub(crate) fn of(info: &DeviceInfo) -> Self {
        let DeviceInfo { platform, kind, .. } = info;
        if platform == "Portable Computing Language" {
            Self::pocl()
        } else if platform.contains("NVIDIA") {
            Self::nvidia()
        } else if platform.contains("Intel") && *kind == DeviceKind::Cpu {
            Self::intel_cpu()
        } else {
            Self::default()
        }
    }

    /// Returns the number of bytes that the driver is expected to take for a small program besides its binary, until it
    /// is measured.
    pub(crate) fn program_bytes(&self) -> u64 {
        self.small_program_bytes.unwrap_or(PROGRAM_BYTES)
    }

    fn pocl() -> Self {
        Self {
            // One byte takes 2 ms, two take 11, four 6, and 128 take 4.
            fills: FillStrategy { widest: 128, narrows: true, copies: false },
            enqueue_in_batches: true,
            separate_binary_fetches: true,
            serialize_builds: true,
            expect_late_compiles: true,
            order_own_accesses: true,
            small_program_bytes: Some(512 << 10),
            ..Self::default()
        }
    }

    fn intel_cpu() -> Self {
        Self {
            // Fills take 45 ms whatever the pattern; copies of their beginning take 3 ms.
            fills: FillStrategy { copies: true, ..FillStrategy::default() },
            help_execute: true,
            omit_events: true,
            separate_functions: true,
            widen_vectors: true,
            split_volatile_loads: true,
            small_program_bytes: Some(1843 << 10),
            ..Self::default()
        }
    }

    fn nvidia() -> Self {
        Self {
            // One byte takes 0.19 ms, two take 0.11, eight or 16 take 0.05, and 128 take 0.37.
            fills: FillStrategy { widest: 16, ..FillStrategy::default() },
            trust_required_group_size: true,
            poll_for_ends: true,
            defer_releases: true,
            omit_events: true,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workarounds_depend_on_the_driver_not_on_the_hardware() {
        let workarounds_of = |platform: &str, kind| {
            let platform = platform.to_owned();
            Workarounds::of(&DeviceInfo { platform, kind, ..DeviceInfo::fake() })
        };
        let (cpu, gpu) = (DeviceKind::Cpu, DeviceKind::Gpu);
        assert_eq!(workarounds_of("Portable Computing Language", cpu), Workarounds::pocl());
        assert_eq!(workarounds_of("Portable Computing Language", gpu), Workarounds::pocl());
        assert_eq!(workarounds_of("Intel(R) OpenCL", cpu), Workarounds::intel_cpu());
        assert_eq!(workarounds_of("Intel(R) OpenCL Graphics", gpu), Workarounds::default());
        assert_eq!(workarounds_of("NVIDIA CUDA", gpu), Workarounds::nvidia());
        assert_eq!(workarounds_of("rusticl", gpu), Workarounds::default());
    }
}
