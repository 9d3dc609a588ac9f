//! Copies between the memory of two devices. Each is one command in the DAG of either device: one reads the
//! source, and one overwrites the target. Both run together, once everything before either of them has ended.

use std::mem;
use std::sync::{Arc, Mutex, Weak};

use kiln_spirv::Access;

use super::hazard::Use;
use super::record::Record;
use crate::args::region::Region;
use crate::error::Error;
use crate::sync::lock;

/// Side of a copy between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Target,
}

/// State that both commands of a copy between devices share. It is locked within the lock of a scheduler.
pub(crate) struct DeviceCopy {
    /// Records of the commands: source, target. Weak, because errors that they hold must not be dropped under
    /// the lock of the other scheduler.
    records: [Weak<Record>; 2],
    state: Mutex<State>,
}

enum State {
    /// At least one command waits for others of its device. Contains the regions of those that do not.
    Waiting([Option<Arc<Region>>; 2]),
    /// The copy runs, has ended, or never runs because one of the commands failed.
    Closed,
}

/// Copy whose commands can run.
pub(super) struct DeviceCopyStart {
    pub(super) copy: Arc<DeviceCopy>,
    pub(super) regions: [Arc<Region>; 2],
}

/// Failure of one command of a copy, which the other one has to share.
pub(super) struct DeviceCopyFailure {
    pub(super) copy: Arc<DeviceCopy>,
    /// Side of the command that has not failed yet.
    pub(super) side: Side,
    pub(super) error: Error,
}

/// One of the two commands of a copy between devices.
pub(crate) struct DeviceCopyWork {
    side: Side,
    region: Arc<Region>,
    copy: Arc<DeviceCopy>,
    /// Name of the other device.
    other_device: String,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Source => Self::Target,
            Self::Target => Self::Source,
        }
    }
}

impl DeviceCopy {
    pub(crate) fn new(source: &Arc<Record>, target: &Arc<Record>) -> Arc<Self> {
        let records = [source, target].map(Arc::downgrade);
        Arc::new(Self { records, state: Mutex::new(State::Waiting([None, None])) })
    }

    /// Returns the record of a command: of the source, or of the target.
    pub(crate) fn record(&self, side: Side) -> Option<Arc<Record>> {
        self.records[side as usize].upgrade()
    }
}

impl DeviceCopyWork {
    pub(crate) fn new(
        side: Side,
        region: &Arc<Region>,
        other: &Region,
        copy: &Arc<DeviceCopy>,
    ) -> Self {
        let other_device = other.slot().handle().name.clone();
        Self { side, region: region.clone(), copy: copy.clone(), other_device }
    }

    pub(crate) fn copy(&self) -> &Arc<DeviceCopy> {
        &self.copy
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn label(&self) -> String {
        match self.side {
            Side::Source => format!("copy to {}", self.other_device),
            Side::Target => format!("copy from {}", self.other_device),
        }
    }

    pub(crate) fn used(&self) -> Use {
        match self.side {
            Side::Source => Use::of(&self.region, Access::Read),
            Side::Target => Use::overwriting(&self.region),
        }
    }

    /// Returns the record of the command on the other device.
    pub(crate) fn other_record(&self) -> Option<Arc<Record>> {
        self.copy.record(self.side.other())
    }

    /// Notes that everything before this command has ended. Returns the regions of the source and of the target
    /// if that holds for both commands now. Returns them once.
    pub(crate) fn arrive(&self) -> Option<[Arc<Region>; 2]> {
        let mut state = lock(&self.copy.state);
        let State::Waiting(arrived) = &mut *state else { return None };
        arrived[self.side as usize].get_or_insert_with(|| self.region.clone());
        if arrived.iter().any(Option::is_none) {
            return None;
        }
        let State::Waiting([Some(source), Some(target)]) = mem::replace(&mut *state, State::Closed)
        else {
            return None;
        };
        Some([source, target])
    }

    /// Notes that this command fails with `error`. Returns the failure of the other command if the copy was not
    /// started; returns it once.
    pub(super) fn fail(&self, error: &Error) -> Option<DeviceCopyFailure> {
        let before = mem::replace(&mut *lock(&self.copy.state), State::Closed);
        let State::Waiting(arrived) = before else { return None };
        arrived.into_iter().flatten().for_each(Region::release);
        let (copy, side) = (self.copy.clone(), self.side.other());
        Some(DeviceCopyFailure { copy, side, error: error.clone() })
    }

    /// Drops a handle of a finished command without calling the driver.
    pub(crate) fn release(self) {
        self.region.release();
    }
}
