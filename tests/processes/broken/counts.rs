//! Numbers of rounds, and what is broken at a time.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use kiln::Device;
use support::children::{Report, number_of};
use support::tier;

/// Kind of disturbance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// The compilers that translate OpenCL C fail, are slow, or are missing.
    Compilers,
    /// The address space is limited.
    Memory,
    /// The number of open files is limited.
    Files,
    /// The size of files is limited, as if the disk was full.
    Disk,
    /// Processes that compile are killed or stopped.
    Kills,
}

impl Disturbance {
    const ALL: [Self; 5] = [Self::Compilers, Self::Memory, Self::Files, Self::Disk, Self::Kills];

    /// Returns the names of the disturbances that were in effect at the end of a process, according to its report,
    /// and that affect the process itself, in which the driver is.
    pub(super) fn affecting_driver(report: &Report) -> Vec<String> {
        let in_effect = |disturbance: &Self| report.get(&disturbance.mark()) == Some(&1);
        let all = [Self::Memory, Self::Files, Self::Disk];
        all.iter().filter(|one| in_effect(one)).map(|one| format!("{one:?}")).collect()
    }

    /// Returns the name of a number that is 1 while this is in effect, and 0 otherwise.
    pub(super) fn mark(self) -> String {
        format!("{self:?}{IN_EFFECT}")
    }
}

/// Disturbances that the driver of a device mostly survives.
pub(super) struct Survivable {
    pub(super) disturbances: &'static [Disturbance],
    /// Number of files that can still be opened.
    pub(super) files: Range<u64>,
}

impl Survivable {
    pub(super) fn on(device: &Device) -> Self {
        const ON_POCL: [Disturbance; 4] =
            [Disturbance::Memory, Disturbance::Compilers, Disturbance::Files, Disturbance::Kills];
        // PoCL compiles again when a kernel is launched. It ends the process if it cannot write a file, or open
        // those of its linker, and mostly if it lacks memory, which the soak alone tries.
        if device.platform.contains("Portable Computing Language") {
            let disturbances = if tier::is_full() { &ON_POCL[..] } else { &ON_POCL[1..] };
            return Self { disturbances, files: 24..56 };
        }
        Self { disturbances: &Disturbance::ALL, files: 0..24 }
    }
}

/// End of the names of [`Disturbance::mark`].
pub(super) const IN_EFFECT: &str = " in effect";

/// Numbers by name, which are kept in a file, so that they outlive the process.
pub(super) struct Counts {
    file: File,
    numbers: Mutex<Report>,
}

impl Counts {
    pub(super) fn at(path: &Path) -> Self {
        Self { file: File::create(path).expect("there is space"), numbers: Mutex::default() }
    }

    pub(super) fn add(&self, name: String) {
        *self.numbers.lock().unwrap().entry(name).or_default() += 1;
    }

    pub(super) fn set(&self, name: &str, value: u64) {
        self.numbers.lock().unwrap().insert(name.to_owned(), value);
    }

    /// Writes the numbers, while the size of files is not limited.
    pub(super) fn save(&self) {
        let numbers = self.numbers.lock().unwrap();
        let text: String =
            numbers.iter().map(|(name, number)| format!("{name}={number}\n")).collect();
        // Names and digits are only added, so that nothing of an earlier text remains.
        self.file.write_all_at(text.as_bytes(), 0).expect("there is space");
    }

    /// Reads the numbers that a process left.
    pub(super) fn load(path: &Path) -> Report {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(number_of).collect()
    }
}

/// Disturbances in effect, and the number of times that each was.
#[derive(Default)]
pub(super) struct Watch([State; Disturbance::ALL.len()]);

/// Numbers of times that a disturbance began and ended.
#[derive(Default)]
struct State {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// Numbers of the times that each disturbance had ended.
pub(super) struct Moment([u64; Disturbance::ALL.len()]);

impl Watch {
    pub(super) fn begin(&self, disturbance: Disturbance) {
        self.0[disturbance as usize].begun.fetch_add(1, SeqCst);
    }

    pub(super) fn end(&self, disturbance: Disturbance) {
        self.0[disturbance as usize].ended.fetch_add(1, SeqCst);
    }

    pub(super) fn now(&self) -> Moment {
        Moment(std::array::from_fn(|at| self.0[at].ended.load(SeqCst)))
    }

    /// Returns the disturbances that were in effect at a moment or later.
    pub(super) fn since(&self, Moment(ended): &Moment) -> Vec<Disturbance> {
        let was = |disturbance: &Disturbance| {
            let at = *disturbance as usize;
            self.0[at].begun.load(SeqCst) > ended[at]
        };
        Disturbance::ALL.into_iter().filter(was).collect()
    }
}
