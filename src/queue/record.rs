//! Records of commands: the state that a command shares with its handles and with its callback.

use std::any::Any;
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::completion::{Phase, Signal, Wakers};
use super::native_queue::{CommandEvent, Place};
use super::node::NodeId;
use crate::backend::{NativeEvent, Profile};
use crate::error::{Error, Result};
use crate::sync::lock;

/// Scheduler of a command. Its type is not stated, because records are a part of schedulers.
pub(crate) type Owner = Weak<dyn Any + Send + Sync>;

/// State that the handles of a command, its callback and the DAG share. Its destructor may run in a
/// driver's callback, so it owns no driver object, except until a late callback.
pub(crate) struct Record {
    pub(crate) signal: Signal,
    /// Whether a handle was polled: if so, the driver is asked to call back.
    pub(crate) awaited: AtomicBool,
    /// Whether a handle of another launch that was fused with this one was polled. The driver calls
    /// back for this one only.
    pub(crate) awaited_by_others: AtomicBool,
    owner: Owner,
    /// Index and serial of the node; zero before it is added.
    node: AtomicU32,
    serial: AtomicU64,
    /// Index of the native queue plus one, or [`ON_NO_QUEUE`]; zero before the command is given to the device.
    native_queue: AtomicU32,
    position: AtomicU64,
    /// Outcome and leftovers. Boxed: there are many records, and most have none.
    remains: OnceLock<Box<Remains>>,
}

/// Data about a finished command, if there is more to report than success.
struct Remains {
    failure: Option<Error>,
    profile: Option<Profile>,
    /// Native event of a command that was settled before its callback came, stored until the callback.
    armed_event: Mutex<Option<Arc<dyn NativeEvent>>>,
}

/// Value of `Record::native_queue` for a command that is given to the device in pieces, on no single queue.
const ON_NO_QUEUE: u32 = u32::MAX;

impl Record {
    pub(crate) fn new(owner: Owner) -> Arc<Self> {
        Arc::new(Self {
            signal: Signal::new(),
            awaited: AtomicBool::new(false),
            awaited_by_others: AtomicBool::new(false),
            owner,
            node: AtomicU32::new(0),
            serial: AtomicU64::new(0),
            native_queue: AtomicU32::new(0),
            position: AtomicU64::new(0),
            remains: OnceLock::new(),
        })
    }

    /// Returns the scheduler of the command; see [`Scheduler::of_command`](super::scheduler::Scheduler::of_command).
    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(crate) fn set_node(&self, id: NodeId) {
        let (index, serial) = id.to_parts();
        self.node.store(index, Relaxed);
        self.serial.store(serial, Release);
    }

    pub(crate) fn node(&self) -> Option<NodeId> {
        let serial = self.serial.load(Acquire);
        (serial > 0).then(|| NodeId::from_parts(self.node.load(Relaxed), serial))
    }

    pub(crate) fn set_place(&self, place: Place) {
        self.position.store(place.position, Relaxed);
        self.native_queue.store(place.native_queue as u32 + 1, Release);
    }

    pub(crate) fn place(&self) -> Option<Place> {
        let native_queue = self.native_queue.load(Acquire);
        if native_queue == ON_NO_QUEUE {
            return None;
        }
        let position = self.position.load(Relaxed);
        native_queue
            .checked_sub(1)
            .map(|native_queue| Place { native_queue: native_queue as usize, position })
    }

    /// Marks the command as given to the device in pieces, on no single native queue.
    pub(crate) fn set_on_no_queue(&self) {
        self.native_queue.store(ON_NO_QUEUE, Release);
    }

    /// Returns whether the command was given to the device.
    pub(crate) fn is_dispatched(&self) -> bool {
        self.native_queue.load(Acquire) != 0
    }

    /// Settles the command with its outcome, unless it is settled already, and collects the waiters to wake.
    /// Returns the native event if the driver is done with it; if its callback is still to come, the event is
    /// stored until then.
    pub(crate) fn settle(
        &self,
        outcome: Result<()>,
        profile: Option<Profile>,
        native: Option<CommandEvent>,
        wakers: &mut Wakers,
    ) -> Option<Arc<dyn NativeEvent>> {
        let (armed, done) = match native {
            Some(CommandEvent { event, armed: true }) => (Some(event), None),
            Some(CommandEvent { event, armed: false }) => (None, Some(event)),
            None => (None, None),
        };
        let failure = outcome.err();
        if failure.is_some() || profile.is_some() || armed.is_some() {
            let armed_event = Mutex::new(armed);
            // Fails if the command was canceled: its waiters have the error already.
            let _ = self.remains.set(Box::new(Remains { failure, profile, armed_event }));
        }
        let called_back = self.signal.settle(wakers);
        if called_back { self.take_armed_event() } else { done }
    }

    /// Takes the stored native event, once the late callback has come.
    pub(crate) fn take_armed_event(&self) -> Option<Arc<dyn NativeEvent>> {
        lock(&self.remains.get()?.armed_event).take()
    }

    /// Returns how the command has ended, if it has.
    pub(super) fn outcome(&self) -> Option<Result<()>> {
        let is_settled = self.signal.phase() == Phase::Settled;
        let failure = || self.remains.get()?.failure.clone();
        is_settled.then(|| failure().map_or(Ok(()), Err))
    }

    /// Returns when the command was queued, submitted, started and ended, if the driver has reported it.
    pub(super) fn profile(&self) -> Option<Profile> {
        self.remains.get()?.profile
    }
}
