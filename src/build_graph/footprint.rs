//! Memory that a driver takes for a program besides its binary, as an estimate for each driver.
//!
//! No driver reports it, so it is measured: the growth of this process's resident memory around the calls that load
//! programs. A call counts only if more programs of the driver exist after it than ever before. Otherwise the driver
//! may have used memory of programs that were freed, and the process would not have grown. What other threads
//! allocate or free meanwhile distorts single measurements, so the estimate is the mean of the latest ones
//! without the extremes, and stays within a factor of the value for the driver in
//! [`Workarounds`].

use std::sync::{Arc, Mutex, MutexGuard};

use crate::device::{DeviceInfo, Workarounds};
use crate::error::Result;
use crate::process::memory::resident_bytes;
use crate::sync::lock;

/// Number of measurements in an estimate, and how many of the smallest and of the largest of them are left out.
const MEASUREMENTS: usize = 32;
const EXTREMES: usize = 4;

/// Largest factor between an estimate and its first value, in both directions.
const MAX_FACTOR: u64 = 8;

/// Drivers of this process that have loaded programs, and the loads in progress.
static PROCESS: Mutex<Process> = Mutex::new(Process { drivers: Vec::new(), loading: None });

struct Process {
    drivers: Vec<(DriverId, Arc<DriverMemory>)>,
    loading: Option<Loading>,
}

/// Identity of a driver: the backend's name, and the names of the platform and of the device.
type DriverId = (&'static str, String, String);

/// Memory that one driver takes for programs, in all runtimes of this process.
pub(super) struct DriverMemory(Mutex<Programs>);

struct Programs {
    /// Number of programs that exist.
    live: usize,
    /// Largest number of programs that ever existed at the same time.
    most: usize,
    /// Latest measurements in bytes for each program, as a ring.
    measured: [u64; MEASUREMENTS],
    /// Position of the oldest measurement.
    next: usize,
    /// Whether the latest load was measured.
    is_last_measured: bool,
    /// Range of the estimate.
    range: [u64; 2],
}

/// Loads that overlap in time, which are measured together.
struct Loading {
    /// Number of calls in progress.
    calls: usize,
    driver: Arc<DriverMemory>,
    /// Whether the calls concern one driver.
    is_of_one_driver: bool,
    /// Resident memory when the first call began, if the system reports it.
    before: Option<u64>,
    /// Largest number of programs of the driver that existed before the first call.
    most_before: usize,
    /// Number of programs that the calls have loaded.
    programs: usize,
    /// Size of the binaries of these programs in bytes.
    binaries: u64,
}

/// Call in progress, until it is dropped.
struct Call;

/// Share of a program in the memory of its driver. The driver counts the program until this is dropped.
pub(super) struct Footprint {
    driver: Arc<DriverMemory>,
    bytes: u64,
}

/// Makes a call that loads a program into the driver, or completes one, and measures the growth of this process.
/// `binary` returns the size in bytes of the binary of the program that was loaded; `None` if none was. Without a
/// driver, nothing is measured.
pub(super) fn measured<T>(
    driver: Option<&Arc<DriverMemory>>,
    call: impl FnOnce() -> Result<T>,
    binary: impl FnOnce(&T) -> Option<usize>,
) -> Result<T> {
    let Some(driver) = driver else { return call() };
    let ongoing = driver.begin_call();
    let result = call();
    if let Some(bytes) = result.as_ref().ok().and_then(binary)
        && let Some(loading) = &mut lock(&PROCESS).loading
    {
        loading.programs += 1;
        loading.binaries += bytes as u64;
    }
    drop(ongoing);
    result
}

impl DriverMemory {
    /// Returns the memory of a device's driver; `None` for a simulated device, whose programs are part of Kiln.
    pub(super) fn of(device: &DeviceInfo) -> Option<Arc<Self>> {
        if !device.runs_code {
            return None;
        }
        let id = (device.backend, device.platform.clone(), device.name.clone());
        let mut process = lock(&PROCESS);
        if let Some((_, known)) = process.drivers.iter().find(|(known, _)| *known == id) {
            return Some(Arc::clone(known));
        }
        let driver = Arc::new(Self::starting_at(Workarounds::of(device).program_bytes()));
        process.drivers.push((id, Arc::clone(&driver)));
        Some(driver)
    }

    fn starting_at(bytes: u64) -> Self {
        Self(Mutex::new(Programs {
            live: 0,
            most: 0,
            measured: [bytes; MEASUREMENTS],
            next: 0,
            is_last_measured: false,
            range: [bytes / MAX_FACTOR, bytes * MAX_FACTOR],
        }))
    }

    fn programs(&self) -> MutexGuard<'_, Programs> {
        lock(&self.0)
    }

    /// Counts a program from now on.
    pub(super) fn begin_program(self: &Arc<Self>) -> Footprint {
        let mut programs = self.programs();
        programs.live += 1;
        programs.most = programs.most.max(programs.live);
        let bytes = programs.estimate();
        drop(programs);
        Footprint { driver: Arc::clone(self), bytes }
    }

    fn begin_call(self: &Arc<Self>) -> Call {
        let mut process = lock(&PROCESS);
        match &mut process.loading {
            Some(loading) => {
                loading.calls += 1;
                loading.is_of_one_driver &= Arc::ptr_eq(&loading.driver, self);
            }
            None => {
                process.loading = Some(Loading {
                    calls: 1,
                    driver: Arc::clone(self),
                    is_of_one_driver: true,
                    before: resident_bytes(),
                    most_before: self.programs().most,
                    programs: 0,
                    binaries: 0,
                });
            }
        }
        Call
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let mut process = lock(&PROCESS);
        let Some(loading) = &mut process.loading else { return };
        loading.calls -= 1;
        if loading.calls == 0
            && let Some(loading) = process.loading.take()
        {
            drop(process);
            loading.end();
        }
    }
}

impl Loading {
    /// Adds the measurement of these loads to the driver's, if they tell something.
    fn end(self) {
        let (Some(before), Some(after)) = (self.before, resident_bytes()) else { return };
        if self.is_of_one_driver {
            let growth = after.saturating_sub(before).saturating_sub(self.binaries);
            self.driver.programs().add(self.programs, self.most_before, growth);
        }
    }
}

impl Programs {
    /// Adds a measurement: the process has grown by `growth` bytes while `loaded` programs were loaded. Before, the
    /// largest number of programs at the same time was `most_before`.
    fn add(&mut self, loaded: usize, most_before: usize, growth: u64) {
        if loaded == 0 {
            // The call completed the program of the latest load.
            if self.is_last_measured {
                self.measured[(self.next + MEASUREMENTS - 1) % MEASUREMENTS] += growth;
            }
            return;
        }
        self.is_last_measured = self.live >= most_before + loaded;
        if self.is_last_measured {
            self.measured[self.next] = growth / loaded as u64;
            self.next = (self.next + 1) % MEASUREMENTS;
        }
    }

    fn estimate(&self) -> u64 {
        let mut sorted = self.measured;
        sorted.sort_unstable();
        let middle = &sorted[EXTREMES..MEASUREMENTS - EXTREMES];
        let [least, most] = self.range;
        (middle.iter().sum::<u64>() / middle.len() as u64).clamp(least, most)
    }
}

impl Footprint {
    /// Returns the estimate, in bytes, from the time when the program was loaded.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Footprint {
    fn drop(&mut self) {
        self.driver.programs().live -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn estimate(driver: &DriverMemory) -> u64 {
        driver.programs().estimate()
    }

    /// Loads programs into a driver, each with this growth of the process.
    fn load(driver: &Arc<DriverMemory>, count: usize, growth: u64) -> Vec<Footprint> {
        let loads = (0..count).map(|_| {
            let most = driver.programs().most;
            let footprint = driver.begin_program();
            driver.programs().add(1, most, growth);
            footprint
        });
        loads.collect()
    }

    #[test]
    fn the_estimate_begins_at_the_first_value_and_follows_the_measurements() {
        let driver = Arc::new(DriverMemory::starting_at(MIB));
        assert_eq!(estimate(&driver), MIB);
        let held = load(&driver, MEASUREMENTS / 2, 2 * MIB);
        assert_eq!(estimate(&driver), 3 * MIB / 2);
        let more = load(&driver, MEASUREMENTS / 2, 2 * MIB);
        assert_eq!(estimate(&driver), 2 * MIB);
        assert_eq!((held[0].bytes(), more[0].bytes()), (MIB, 3 * MIB / 2), "as of their loads");
    }

    #[test]
    fn loads_into_memory_of_freed_programs_do_not_count() {
        let driver = Arc::new(DriverMemory::starting_at(MIB));
        let held = load(&driver, MEASUREMENTS, 2 * MIB);
        drop(held);
        let held = load(&driver, MEASUREMENTS, 0);
        assert_eq!(estimate(&driver), 2 * MIB);
        let _more = load(&driver, MEASUREMENTS, 3 * MIB);
        assert_eq!(estimate(&driver), 3 * MIB);
        drop(held);
    }

    #[test]
    fn a_few_extremes_do_not_matter_and_the_range_is_kept() {
        let driver = Arc::new(DriverMemory::starting_at(MIB));
        let _extremes = load(&driver, EXTREMES, 1 << 40);
        assert_eq!(estimate(&driver), MIB);
        let _large = load(&driver, MEASUREMENTS, 1 << 40);
        assert_eq!(estimate(&driver), MAX_FACTOR * MIB);
        let _small = load(&driver, MEASUREMENTS, 0);
        assert_eq!(estimate(&driver), MIB / MAX_FACTOR);
    }

    #[test]
    fn a_call_that_completes_a_program_adds_to_its_measurement() {
        let driver = Arc::new(DriverMemory::starting_at(MIB));
        let held: Vec<_> = (0..MEASUREMENTS)
            .map(|_| {
                let held = load(&driver, 1, MIB);
                driver.programs().add(0, 0, MIB);
                held
            })
            .collect();
        assert_eq!(estimate(&driver), 2 * MIB);
        drop(held);
    }
}
