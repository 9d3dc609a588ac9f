//! Commands: the nodes of the DAG.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use super::accesses::CombinedAccesses;
use super::hazard::Uses;
use super::host_future::HostFuture;
use super::launch_memory;
use super::launch_work::LaunchWork;
use super::node::NodeId;
use super::record::Record;
use super::stopwatch::Stopwatch;
use super::timeline::{PendingSpan, Span};
use super::work::Work;
use crate::backend::{Operation, Profile};
use crate::device::Device;
use crate::error::Result;

/// Identifier of a group: the launches of a fusion scope, or of a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GroupId(pub(crate) NonZeroU64);

impl GroupId {
    /// Returns an identifier that no other group has.
    pub(crate) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NonZeroU64::MIN.saturating_add(NEXT.fetch_add(1, Relaxed)))
    }
}

/// Command: a node of the DAG. It owns, through its work, everything that the device may access.
pub(crate) struct Command {
    pub(crate) work: Work,
    pub(crate) record: Arc<Record>,
    /// Number of the queue that the command was submitted to.
    pub(crate) queue: u64,
    /// Whether this is a launch whose program is not built yet.
    pub(crate) building: bool,
    /// Whether this is an unmap whose guard exists.
    pub(crate) is_held: bool,
    /// Group of launches that this launch may run together with, as one.
    pub(crate) group: Option<GroupId>,
    /// State that most commands do not have. Boxed, because commands are moved and stored in large numbers.
    extras: Option<Box<Extras>>,
}

/// State of a command that few commands have.
#[derive(Default)]
pub(crate) struct Extras {
    /// Set if several launches run as one with this command.
    pub(crate) fused: Option<Fused>,
    /// Host futures that the command waited for when it was submitted.
    pub(crate) host_futures: Vec<Arc<HostFuture>>,
    /// Waits of the closure of a native command.
    pub(crate) closure: Option<Arc<HostFuture>>,
    /// Stopwatch that times the command.
    pub(crate) stopwatch: Option<Arc<Stopwatch>>,
    /// Record of the command for the timeline, if a trace was recording at its submission.
    pub(crate) pending_span: Option<PendingSpan>,
}

impl Command {
    pub(crate) fn new(
        work: Work,
        record: Arc<Record>,
        queue: u64,
        pending_span: Option<PendingSpan>,
    ) -> Self {
        let extras = pending_span
            .map(|span| Box::new(Extras { pending_span: Some(span), ..Extras::default() }));
        Self { work, record, queue, building: false, is_held: false, group: None, extras }
    }

    /// Returns the state that few commands have, if the command has any.
    pub(crate) fn extras(&self) -> Option<&Extras> {
        self.extras.as_deref()
    }

    /// Returns the state that few commands have, if the command has any.
    pub(crate) fn known_extras(&mut self) -> Option<&mut Extras> {
        self.extras.as_deref_mut()
    }

    /// Returns the state that few commands have, which is created if the command has none.
    pub(crate) fn extras_mut(&mut self) -> &mut Extras {
        self.extras.get_or_insert_default()
    }

    /// Returns how the command runs several launches as one, if it does.
    pub(crate) fn fused(&self) -> Option<&Fused> {
        self.extras()?.fused.as_ref()
    }

    /// Returns the host futures that the command waited for when it was submitted.
    pub(crate) fn host_futures(&self) -> &[Arc<HostFuture>] {
        self.extras().map_or(&[], |extras| &extras.host_futures)
    }

    /// Whether a stopwatch times the command, or some of those that it replays.
    pub(crate) fn is_timed(&self) -> bool {
        match &self.work {
            Work::Replay(replay) => replay.is_timed(),
            _ => self.extras().is_some_and(|extras| extras.stopwatch.is_some()),
        }
    }

    /// Sets the stopwatch that times the command, or removes it.
    pub(crate) fn set_stopwatch(&mut self, stopwatch: Option<Arc<Stopwatch>>) {
        if stopwatch.is_some() || self.extras.is_some() {
            self.extras_mut().stopwatch = stopwatch;
        }
    }

    /// Returns the record of the command for the timeline, if a trace was recording at its submission.
    pub(crate) fn pending_span(&self) -> Option<&PendingSpan> {
        self.extras()?.pending_span.as_ref()
    }

    /// Returns the record of the command for the timeline, if a trace was recording at its submission.
    pub(crate) fn pending_span_mut(&mut self) -> Option<&mut PendingSpan> {
        self.known_extras()?.pending_span.as_mut()
    }

    /// Returns the number of preconditions besides other commands: host futures, the program, the decision on
    /// the group, and the end of the hold.
    pub(crate) fn preconditions(&self) -> u32 {
        let others = [self.building, self.group.is_some(), self.is_held];
        self.host_futures().len() as u32 + others.into_iter().map(u32::from).sum::<u32>()
    }

    /// Returns the number of submitted commands that this node stands for.
    pub(crate) fn count(&self) -> usize {
        1 + self.other_records().len()
    }

    /// Returns the records of all submitted commands that this node stands for. The node's own is last.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.other_records().iter().chain([&self.record])
    }

    /// Returns these records without the node's own.
    pub(crate) fn other_records(&self) -> &[Arc<Record>] {
        match self.fused() {
            Some(Fused::OneNode(members)) => &members.records,
            _ => &[],
        }
    }

    /// Returns the memory accesses of the command, or of the launches it stands for.
    pub(crate) fn uses(&self) -> Uses {
        match self.fused() {
            Some(Fused::OneNode(members)) => {
                let CombinedAccesses { remaining, lost, .. } = &*members.accesses;
                remaining.iter().flatten().chain(lost).cloned().collect()
            }
            _ => self.work.uses(),
        }
    }

    /// Releases all buffers, because the command has ended. Frees no memory and calls no driver.
    pub(crate) fn release(&mut self) {
        self.work.release();
        match self.known_extras().and_then(|extras| extras.fused.as_mut()) {
            Some(Fused::OneNode(members)) => members.works.iter_mut().for_each(Work::release),
            Some(Fused::LastNode(launch)) => launch.release(),
            None => {}
        }
    }

    /// Whether dropping the command, once it is [released](Self::release), frees nothing large and calls
    /// no driver.
    pub(crate) fn is_light(&self) -> bool {
        self.work.is_light() && self.group_launch().is_none_or(LaunchWork::is_light)
    }

    /// Drops a command that is [light](Self::is_light), and keeps the memory of its launch for another one.
    pub(crate) fn recycle(self) {
        if let Work::Launch(launch) = self.work {
            launch_memory::recycle(launch);
        }
    }

    /// Leaks the resources that the device may use for this command, so that they are never freed.
    pub(crate) fn abandon(&mut self) {
        if let Some(launch) = self.group_launch() {
            launch.abandon();
        }
        self.work.abandon();
    }

    /// Calls `run` with the operation in the backend's form.
    pub(crate) fn with_operation<R>(
        &mut self,
        run: impl FnOnce(&Operation<'_>) -> Result<R>,
    ) -> Result<R> {
        match self.group_launch() {
            Some(launch) => launch.with_operation(run),
            None => self.work.with_operation(run),
        }
    }

    /// Returns the command's part of a trace, once it has ended.
    pub(super) fn span(
        &self,
        pending: PendingSpan,
        device: Device,
        id: NodeId,
        profile: Option<Profile>,
        outcome: &Result<()>,
    ) -> Span {
        Span {
            device,
            queue: self.queue,
            place: self.record.place(),
            serial: id.serial(),
            label: self.work.label(),
            module: self.work.module_label().map(Into::into),
            after: pending.after,
            submitted: pending.submitted,
            enqueued: pending.enqueued,
            ended: Instant::now(),
            profile,
            failure: outcome.as_ref().err().cloned(),
        }
    }

    /// Returns the launch that runs for the group whose last node this is.
    fn group_launch(&self) -> Option<&LaunchWork> {
        match self.fused() {
            Some(Fused::LastNode(launch)) => Some(launch),
            _ => None,
        }
    }
}

/// Form in which a command runs several launches as one.
pub(crate) enum Fused {
    /// The launches have no nodes of their own: this node stands for all, and its work is the fused launch.
    OneNode(Box<FusedMembers>),
    /// Each launch has a node. This one is the last, and this launch runs in place of the work of all.
    LastNode(Box<LaunchWork>),
}

/// Launches that one node stands for.
pub(crate) struct FusedMembers {
    /// All launches, in order. They are no longer needed once the device has the command.
    pub(crate) works: Vec<Work>,
    /// Records of all launches but the last, whose record is the command's own.
    pub(crate) records: Vec<Arc<Record>>,
    pub(crate) accesses: Arc<CombinedAccesses>,
}

impl FusedMembers {
    /// Takes the launches out, with their buffers released. The caller drops them later.
    pub(crate) fn take_works(&mut self) -> Vec<Work> {
        let mut works = std::mem::take(&mut self.works);
        works.iter_mut().for_each(Work::release);
        works
    }
}
