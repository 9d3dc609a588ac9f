//! Table of driver quirks.
//!
//! A workaround that is applied to some drivers only is a field of [`Workarounds`]; no other file looks at the
//! names of platforms for that. A workaround that does no harm to other drivers is applied to all of them,
//! where it is needed. To add a quirk, add a field that states what is done about it and why, with the version
//! of the driver that shows it, and set it in [`Workarounds::of`].

use super::{DeviceInfo, DeviceKind};

/// Maximum number of bytes of private arrays that the work-items of a work-group on a CPU have together. CPU
/// drivers allocate them on the stack of a thread: PoCL crashes where they exceed it.
pub(crate) const MAX_PRIVATE_BYTES: usize = 2 << 20;

/// Name of the platform of all devices that Level Zero reaches.
pub(crate) const LEVEL_ZERO: &str = "Level Zero";

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
    /// Warn if opening a device takes long while the driver cannot write its cache of compiled code: it then
    /// takes 1.4 to 1.8 s instead of 0.1 s (NVIDIA 580.159).
    pub(crate) check_compute_cache: bool,
    /// Cover these files in keys. The driver opens them late, with the first compile.
    pub(crate) compiler_files: &'static [CompilerFiles],
}

/// Number of bytes that drivers without a value of their own are expected to take for a small program.
const PROGRAM_BYTES: u64 = 256 << 10;

/// Files with which a driver compiles, apart from its library and the libraries that this one needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompilerFiles {
    /// Libraries whose names begin with this text, where the system searches for libraries.
    Libraries(&'static str),
    /// Files in a folder, absolute or relative to that of the driver's library, whose names begin with a text.
    Beside(&'static str, &'static str),
}

use CompilerFiles::{Beside, Libraries};

/// PoCL 3.1: its devices, the functions of OpenCL C as bitcode, and their headers.
const OF_POCL: &[CompilerFiles] = &[
    Beside("pocl", "libpocl-devices-"),
    Beside("../share/pocl", ""),
    Beside("../share/pocl/include", ""),
    Beside("../../share/pocl", ""),
    Beside("../../share/pocl/include", ""),
    Beside("/usr/share/pocl", ""),
    Beside("/usr/share/pocl/include", ""),
];

/// Intel's runtime for CPUs 2026.22: the front end, the functions of OpenCL C as bitcode and as libraries, by
/// instruction set, and the settings. Versions before 2022 have the back end in a library of its own.
const OF_INTEL_CPU: &[CompilerFiles] = &[
    Beside("", "cl.cfg"),
    Beside("", "clbltfn"),
    Beside("", "cllibrary"),
    Beside("", "libocl_svml_"),
    Libraries("libcommon_clang.so"),
    Libraries("libOclCpuBackEnd"),
];

/// Intel's drivers for GPUs: the Graphics Compiler, its front end and its assembler.
const OF_INTEL_GPU: &[CompilerFiles] = &[
    Libraries("libiga64.so"),
    Libraries("libigc.so"),
    Libraries("libigdfcl.so"),
    Libraries("libocloc.so"),
    Libraries("libopencl-clang"),
];

const OF_NVIDIA: &[CompilerFiles] = &[
    Libraries("libnvidia-compiler.so"),
    Libraries("libnvidia-gpucomp.so"),
    Libraries("libnvidia-nvvm"),
    Libraries("libnvidia-ptxjitcompiler.so"),
];

const OF_AMD: &[CompilerFiles] = &[Libraries("libamd_comgr")];

/// Mesa: the functions of OpenCL C as SPIR-V.
const OF_RUSTICL: &[CompilerFiles] =
    &[Beside("/usr/lib/clc", "spirv"), Beside("/usr/share/clc", "spirv")];

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
        let DeviceInfo { platform, vendor, kind, .. } = info;
        let with = |compiler_files| Self { compiler_files, ..Self::default() };
        if platform == "Portable Computing Language" {
            Self::pocl()
        } else if platform.contains("NVIDIA") {
            Self::nvidia()
        } else if platform.contains("Intel") && *kind == DeviceKind::Cpu {
            Self::intel_cpu()
        } else if platform.contains("Intel") || (platform == LEVEL_ZERO && vendor.contains("Intel"))
        {
            with(OF_INTEL_GPU)
        } else if platform.contains("AMD") {
            with(OF_AMD)
        } else if platform == "rusticl" {
            with(OF_RUSTICL)
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
            compiler_files: OF_POCL,
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
            compiler_files: OF_INTEL_CPU,
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
            check_compute_cache: true,
            compiler_files: OF_NVIDIA,
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
        assert_eq!(workarounds_of("NVIDIA CUDA", gpu), Workarounds::nvidia());
        for (platform, compiler_files) in [
            ("Intel(R) OpenCL Graphics", OF_INTEL_GPU),
            ("AMD Accelerated Parallel Processing", OF_AMD),
            ("rusticl", OF_RUSTICL),
            ("another", &[]),
        ] {
            let expected = Workarounds { compiler_files, ..Workarounds::default() };
            assert_eq!(workarounds_of(platform, gpu), expected, "{platform}");
        }
        let level_zero = |vendor: &str| {
            let (platform, vendor) = (LEVEL_ZERO.to_owned(), vendor.to_owned());
            let info = DeviceInfo { platform, vendor, kind: gpu, ..DeviceInfo::fake() };
            Workarounds::of(&info).compiler_files
        };
        assert_eq!(level_zero("Intel(R) Corporation"), OF_INTEL_GPU);
        assert_eq!(level_zero("0x1234"), []);
    }
}
