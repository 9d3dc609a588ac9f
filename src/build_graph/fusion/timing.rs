//! Times of the ways to run launches on disk, so that the next process does not have to measure again which
//! is the fastest. They are specific to a machine, so they are not put into a remote cache.

use std::fmt::Write as _;
use std::time::Duration;

use kiln_compiler::fusion::{Argument, Plan};

use super::way::Description;
use crate::build_graph::key::{DeviceKey, TimingFields};
use crate::cache::manifest::line::ChoiceLine;
use crate::cache::store::{Address, EntryRecord, Lookup, Store, encode};
use crate::digest::Digest;

/// Location where the times of one group of launches are stored.
pub(in crate::build_graph) struct Timing {
    address: Address,
    fields: Vec<(String, String)>,
    /// Description of the launches.
    launches: String,
    /// Digest of the module of the first fused kernel.
    module: Digest,
}

/// Times of ways.
pub(in crate::build_graph) type Times = Vec<(Description, Duration)>;

impl Timing {
    /// Creates the location for a device with this key. `module` is the digest of the group's first kernel, and
    /// `slots` are the positions of its launches in `plan`, which must contain only those values on which the
    /// kernel depends.
    pub(super) fn new(device: &DeviceKey, module: Digest, plan: &Plan, slots: &[usize]) -> Self {
        let mut launches = describe_launches(plan);
        _ = write!(launches, " of which {slots:?}");
        Self::of_launches(device, module, launches)
    }

    fn of_launches(device: &DeviceKey, module: Digest, launches: String) -> Self {
        let fields = TimingFields { launches: &launches, module, device };
        let address = Address { device: device.folder(), key: fields.key() };
        Self { address, fields: fields.fields(), launches, module }
    }

    /// Returns the location and the times that a manifest recorded for a device with this key; `None` for other
    /// data.
    pub(in crate::build_graph) fn recorded(
        device: &DeviceKey,
        line: &ChoiceLine,
    ) -> Option<(Self, Times)> {
        let timing = Self::of_launches(device, line.module, line.launches.clone());
        (timing.address.key == line.key).then_some(())?;
        Some((timing, read(line.times.as_bytes())?))
    }

    /// Returns the first bytes of the device's key.
    pub(in crate::build_graph) fn folder(&self) -> [u8; 8] {
        self.address.device
    }

    /// Returns the line of a manifest for times on a device, which is that of the location.
    pub(in crate::build_graph) fn line(&self, device: &DeviceKey, times: &Times) -> ChoiceLine {
        ChoiceLine {
            key: self.address.key,
            device: device.id(),
            module: self.module,
            launches: self.launches.clone(),
            times: write(times),
        }
    }

    /// Reads the stored times, if there are any.
    pub(in crate::build_graph) async fn load(&self, store: &Store) -> Option<Times> {
        match store.find(&self.address).await {
            Lookup::Hit(entry) => read(entry.payload()),
            Lookup::Absent | Lookup::Unusable(_) | Lookup::Unreadable(_) => None,
        }
    }

    /// Stores the times.
    pub(in crate::build_graph) async fn save(
        &self,
        store: &Store,
        times: &[(Description, Duration)],
    ) {
        let payload = write(times).into_bytes();
        let record = EntryRecord::new(self.fields.clone());
        let rest = encode(&self.address.key, &record, &payload);
        store.put(&self.address, payload, rest).await;
    }
}

/// Writes a line for each way.
fn write(times: &[(Description, Duration)]) -> String {
    let mut text = String::new();
    for (way, time) in times {
        _ = writeln!(text, "{} ns {way}", time.as_nanos());
    }
    text
}

/// Parses times in the format of `write`. Returns `None` for other data.
fn read(payload: &[u8]) -> Option<Times> {
    let lines = std::str::from_utf8(payload).ok()?.lines();
    let times = lines.map(|line| {
        let (time, way) = line.split_once(" ns ")?;
        Some((way.parse().ok()?, Duration::from_nanos(time.parse().ok()?)))
    });
    times.collect::<Option<Times>>().filter(|times| !times.is_empty())
}

/// Describes each launch in one line. Different plans have different descriptions.
fn describe_launches(plan: &Plan) -> String {
    let mut text = String::new();
    for slot in &plan.slots {
        let range = &slot.range;
        let module = Digest(plan.modules.get(slot.module).copied().unwrap_or_default());
        _ = write!(text, "{:?} of {module} over {:?}", slot.kernel, range.global());
        _ = write!(text, " from {:?} in {:?}:", range.offset(), range.local());
        for argument in &slot.arguments {
            _ = match argument {
                Argument::Buffer(region) => {
                    let dead = if plan.dead.contains(&region.memory) { " dead" } else { "" };
                    let (memory, offset) = (region.memory.0, region.offset);
                    write!(text, " memory {memory}{dead} {offset}+{}", region.length)
                }
                Argument::Scalar(bytes) => write!(text, " value {bytes:02x?}"),
                Argument::Local(bytes) => write!(text, " local {bytes}"),
                Argument::Image(image) => {
                    let memory = image.region.memory;
                    let dead = if plan.dead.contains(&memory) { " dead" } else { "" };
                    write!(text, " image {}{dead} {}", memory.0, image.shape)
                }
                Argument::Sampler(sampler) => write!(text, " {sampler:?}"),
            };
        }
        for (id, bytes) in &slot.constants {
            _ = write!(text, " constant {id} {bytes:02x?}");
        }
        text.push('\n');
    }
    _ = write!(text, "fixed {:?} as {:?}", plan.constants, plan.forms);
    _ = write!(text, " local {}", plan.target.local_memory);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip_and_other_texts_are_ignored() {
        let way = |text: &str| text.parse::<Description>().unwrap();
        let times = [
            (way("alone 0 | alone 1 | alone 2"), Duration::from_micros(7)),
            (way("strips:32 0 1 2"), Duration::from_nanos(1_234_567_890)),
            (way("direct 0 1 | alone 2"), Duration::from_nanos(1)),
        ];
        assert_eq!(read(write(&times).as_bytes()).as_deref(), Some(&times[..]));
        let earlier_format = "fused 1 ns\nlaunches 2 ns\n";
        for other in ["", earlier_format, "1 ns direct\n", "-1 ns direct 0 1\n", "1 direct 0 1\n"] {
            assert_eq!(read(other.as_bytes()), None, "{other:?}");
        }
    }
}
