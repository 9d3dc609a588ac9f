//! Timings of fused kernels and of their separate launches on disk, so that the next process does not have to
//! measure again which is faster. They are specific to a machine, so they are not put into a remote cache.

use std::fmt::Write as _;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::trial::Fastest;
use crate::build_graph::graph::BuildGraph;
use crate::build_graph::key::TimingFields;
use crate::cache::store::{Address, Lookup, Manifest, encode};
use crate::compiler::fusion::{Argument, Plan};
use crate::digest::{BuildKey, Digest};

/// Location where the timings of one plan are stored.
pub(super) struct Timing {
    /// The graph: a weak reference, because the graph owns this value.
    graph: Weak<BuildGraph>,
    address: Address,
    fields: Vec<(String, String)>,
}

impl Timing {
    /// Creates the location. `program` is the key of the fused kernel's program. `plan` must contain only those
    /// values on which that program depends.
    pub(super) fn new(
        graph: &Arc<BuildGraph>,
        device: usize,
        program: BuildKey,
        plan: &Plan,
    ) -> Self {
        let launches = describe_launches(plan);
        let device = graph.device_key(device);
        let program = Digest(*program.as_bytes());
        let fields = TimingFields { launches: &launches, program, device };
        let address = Address { device: device.folder(), key: fields.key() };
        Self { graph: Arc::downgrade(graph), address, fields: fields.fields() }
    }

    /// Reads the stored timings, if there are any.
    pub(super) async fn load(&self) -> Option<Fastest> {
        match self.graph.upgrade()?.disk()?.store().find(&self.address).await {
            Lookup::Hit(entry) => read(entry.payload()),
            Lookup::Absent | Lookup::Unusable(_) | Lookup::Unreadable(_) => None,
        }
    }

    /// Writes the timings in the background.
    pub(super) fn save(self: Arc<Self>, times: Fastest) {
        let Some(graph) = self.graph.upgrade() else { return };
        let Some(pending) = graph.disk().map(|disk| disk.begin()) else { return };
        let executor = Arc::clone(graph.builds());
        let save = async move {
            let Some(disk) = graph.disk() else { return };
            let payload = write(times).into_bytes();
            let manifest = Manifest::new(self.fields.clone());
            let rest = encode(&self.address.key, &manifest, &payload);
            disk.store().put(&self.address, payload, rest).await;
            disk.store().collect_if_due().await;
            drop(pending);
        };
        if let Err(error) = executor.spawn(save) {
            tracing::debug!(%error, "the times of a fused kernel are not stored");
        }
    }
}

fn write(Fastest { fused, unfused }: Fastest) -> String {
    format!("fused {} ns\nlaunches {} ns\n", fused.as_nanos(), unfused.as_nanos())
}

/// Parses timings in the format of `write`. Returns `None` for other data.
fn read(payload: &[u8]) -> Option<Fastest> {
    let mut lines = std::str::from_utf8(payload).ok()?.lines();
    let mut time = |name| {
        let number = lines.next()?.strip_prefix(name)?.strip_suffix(" ns")?;
        Some(Duration::from_nanos(number.parse().ok()?))
    };
    Some(Fastest { fused: time("fused ")?, unfused: time("launches ")? })
}

/// Describes each launch in one line. Different plans have different descriptions.
fn describe_launches(plan: &Plan) -> String {
    let mut text = String::new();
    for slot in &plan.slots {
        let range = &slot.range;
        let module = plan.modules.get(slot.module).copied().unwrap_or(Digest([0; 32]));
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
        let times = Fastest {
            fused: Duration::from_nanos(1_234_567_890),
            unfused: Duration::from_micros(7),
        };
        assert_eq!(read(write(times).as_bytes()), Some(times));
        for other in ["", "fused 1 ns\n", "fused 1 ns\nlaunches -1 ns\n", "fused 1\nlaunches 2\n"] {
            assert_eq!(read(other.as_bytes()), None, "{other:?}");
        }
    }
}
