//! Work of a replay, which is one command of the DAG.

use std::collections::BTreeSet;
use std::iter::repeat;
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;

use super::lists::{Binding, Choice};
use super::plan::{Node, NodeArgument, Plan};
use super::temporaries::TemporarySet;
use super::uses::Source;
use crate::args::region::Region;
use crate::backend::{self, CommandList, NativeEvent, Operation, OperationSource, Profile};
use crate::error::Result;
use crate::queue::check_counts::CheckCounts;
use crate::queue::hazard::{Use, Uses};
use crate::queue::native_queue::TrackedQueue;
use crate::queue::native_queue::sequence::Needs;
use crate::queue::node::NodeId;
use crate::queue::operations::{copy, fill};
use crate::queue::stopwatch::Stopwatch;
use crate::sync::lock;

/// Minimum number of recorded commands for which a command list costs less than the commands.
const MIN_RECORDED: usize = 2;

/// Maximum number of kernels that messages about a replay name.
const MAX_NAMES: usize = 4;

/// Work of a replay.
pub(crate) struct ReplayWork {
    plan: Arc<Plan>,
    /// Parts of the bound buffers that commands use.
    inputs: SmallVec<[Arc<Region>; 4]>,
    /// Bytes of the values that were set.
    values: SmallVec<[u8; 32]>,
    temporaries: Option<Arc<TemporarySet>>,
    uses: Uses,
    timing: Option<Box<Timing>>,
}

/// Timing of some commands of a replay.
pub(super) struct Timing {
    /// Positions of the commands in the plan, with their stopwatches, in order.
    watches: Vec<(usize, Arc<Stopwatch>)>,
    /// Events of the commands that were enqueued, in order.
    events: Mutex<Vec<Arc<dyn NativeEvent>>>,
}

impl Timing {
    /// Returns the timing of commands; `None` if there are none.
    pub(super) fn of(watches: Vec<(usize, Arc<Stopwatch>)>) -> Option<Box<Self>> {
        (!watches.is_empty()).then(|| Box::new(Self { watches, events: Mutex::default() }))
    }
}

impl ReplayWork {
    /// Creates the work. All parts have their views, so that no operation of it fails for want of one.
    ///
    /// # Errors
    ///
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources) if the device lacks the memory for the temporaries.
    pub(super) fn new(
        (plan, timing): (Arc<Plan>, Option<Box<Timing>>),
        inputs: SmallVec<[Arc<Region>; 4]>,
        values: SmallVec<[u8; 32]>,
    ) -> Result<Self> {
        let temporaries = plan.temporaries.as_ref().map(|sets| sets.take()).transpose()?;
        let mut uses = plan.uses_with(&inputs);
        uses.extend(temporaries.as_ref().map(|set| Use::overwriting(&set.memory)));
        Ok(Self { plan, inputs, values, temporaries, uses, timing })
    }

    /// Returns the number of commands that were recorded.
    pub(crate) fn len(&self) -> usize {
        self.plan.nodes.len()
    }

    /// Returns a noun phrase with its article for messages: the number of commands, and the names of the kernels.
    pub(crate) fn in_words(&self) -> String {
        let kernels = self.plan.nodes.iter().filter_map(|node| match node {
            Node::Launch { kernel, .. } => Some(kernel.name()),
            Node::Fill { .. } | Node::Copy { .. } => None,
        });
        let mut names: Vec<_> = kernels.collect::<BTreeSet<_>>().into_iter().collect();
        let is_long = names.len() > MAX_NAMES;
        names.truncate(MAX_NAMES);
        let mut words = format!("a replay of {} commands", self.len());
        if !names.is_empty() {
            let others = if is_long { " and others" } else { "" };
            words += &format!(" (of `{}`{others})", names.join("`, `"));
        }
        words
    }

    /// Returns the number of kernels that the replay launches.
    pub(crate) fn launches(&self) -> u64 {
        self.plan.nodes.iter().filter(|node| matches!(node, Node::Launch { .. })).count() as u64
    }

    /// Returns the numbers of the recorded launches that are checked.
    pub(in crate::queue) fn checks(&self) -> CheckCounts {
        self.plan.checks
    }

    /// Returns the accesses to memory that others can use.
    pub(crate) fn uses(&self) -> Uses {
        self.uses.clone()
    }

    /// Returns the memory that others can use.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Arc<Region>> {
        self.inputs.iter().chain(&self.plan.fixed)
    }

    /// Returns whether commands of the replay are timed.
    pub(crate) fn is_timed(&self) -> bool {
        self.timing.is_some()
    }

    /// Returns the stopwatches of the timed commands, each with the times of its command if it ran.
    pub(crate) fn take_times(&mut self) -> Vec<(Arc<Stopwatch>, Option<Profile>)> {
        let Some(Timing { watches, events }) = self.timing.take().map(|timing| *timing) else {
            return Vec::new();
        };
        let events = lock(&events);
        let times = events.iter().map(|event| event.profile()).chain(repeat(None));
        watches.into_iter().map(|(_, watch)| watch).zip(times).collect()
    }

    /// See [`Command::release`](crate::queue::command::Command::release).
    pub(crate) fn release(&mut self) {
        self.inputs.drain(..).for_each(Region::release);
        if let Some(set) = self.temporaries.take().and_then(Arc::into_inner) {
            set.release();
        }
    }

    /// See [`Command::is_light`](crate::queue::command::Command::is_light).
    pub(crate) fn is_light(&self) -> bool {
        self.inputs.is_empty() && Arc::strong_count(&self.plan) > 1
    }

    /// See [`Command::abandon`](crate::queue::command::Command::abandon).
    pub(crate) fn abandon(&self) {
        std::mem::forget((self.plan.clone(), self.inputs.clone(), self.temporaries.clone()));
    }

    /// Enqueues the operations, and returns the position of the command: executes a command list where there is one
    /// for the same memory and values.
    ///
    /// # Safety
    ///
    /// As for [`TrackedQueue::enqueue_all`], for each operation.
    pub(crate) unsafe fn enqueue(
        &self,
        id: NodeId,
        native_queue: &mut TrackedQueue,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<u64> {
        let can_record = !self.is_timed() && self.len() >= MIN_RECORDED;
        if can_record && native_queue.has_command_lists() {
            let temporaries = self.temporaries.iter().map(|set| &set.memory);
            let binding = Binding::new(self.inputs.iter().chain(temporaries), &self.values);
            let Some(list) = self.command_list(native_queue, &binding) else {
                self.plan.lists.remember(binding);
                // SAFETY: guaranteed by the caller.
                return unsafe { self.enqueue_each(id, native_queue, wait) };
            };
            // SAFETY: guaranteed by the caller; the list is new, or its last execution has ended.
            let (position, event) = unsafe { native_queue.execute(id, &list, wait) }?;
            self.plan.lists.keep(binding, list, event);
            return Ok(position);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.enqueue_each(id, native_queue, wait) }
    }

    /// Enqueues the operations one after the other.
    ///
    /// # Safety
    ///
    /// As for [`enqueue`](Self::enqueue).
    unsafe fn enqueue_each(
        &self,
        id: NodeId,
        native_queue: &mut TrackedQueue,
        wait: &[Arc<dyn NativeEvent>],
    ) -> Result<u64> {
        // SAFETY: guaranteed by the caller.
        unsafe { native_queue.enqueue_all(id, wait, |run| self.for_each_operation(run)) }
    }

    /// Returns a command list for the replay that is not in execution, if there is one, or if it is worth while to
    /// record one.
    fn command_list(
        &self,
        native_queue: &mut TrackedQueue,
        binding: &Binding,
    ) -> Option<Arc<dyn CommandList>> {
        match self.plan.lists.choose(binding) {
            Choice::Execute(list) => return Some(list),
            Choice::Enqueue => return None,
            Choice::Record => {}
        }
        let operations: OperationSource<'_> =
            &mut |run| self.for_each_operation(|operation, _| run(operation).map(|()| None));
        // SAFETY: only replays with the same memory execute the list, and the plan keeps the kernels.
        match unsafe { native_queue.record(operations) } {
            Ok(list) => Some(list),
            Err(error) => {
                tracing::debug!(%error, "a graph is replayed without command lists");
                self.plan.lists.disable();
                None
            }
        }
    }

    /// Calls `run` with each operation, in order, and what its caller needs of it. Stops at the first error.
    fn for_each_operation(
        &self,
        mut run: impl FnMut(&Operation<'_>, Needs) -> Result<Option<Arc<dyn NativeEvent>>>,
    ) -> Result<()> {
        let last = self.plan.nodes.len() - 1;
        let watches = self.timing.as_deref().map_or(&[][..], |timing| &timing.watches);
        let mut timed = watches.iter().map(|(at, _)| *at).peekable();
        let mut arguments: SmallVec<[backend::Argument<'_>; 8]> = SmallVec::new();
        for (at, node) in self.plan.nodes.iter().enumerate() {
            let needs = Needs { event: timed.next_if_eq(&at).is_some(), end: at == last };
            let event = match node {
                Node::Launch { native, range, arguments: given, .. } => {
                    arguments.clear();
                    for argument in given {
                        arguments.push(self.argument(argument)?);
                    }
                    let kernel = &**native;
                    run(&Operation::Launch { kernel, arguments: &arguments, range }, needs)
                }
                Node::Fill { to, pattern } => run(&fill(self.region(*to), pattern), needs),
                Node::Copy { from, to } => run(&copy(self.region(*from), self.region(*to)), needs),
            }?;
            if let (Some(event), Some(timing), true) = (event, &self.timing, needs.event) {
                lock(&timing.events).push(event);
            }
        }
        Ok(())
    }

    fn region(&self, source: Source) -> &Region {
        match source {
            Source::Fixed(at) => &self.plan.fixed[at],
            Source::Input(at) => &self.inputs[at],
            Source::Temporary(at) => match &self.temporaries {
                Some(set) => &set.parts[at],
                None => unreachable!("a graph with temporaries has sets of them"),
            },
        }
    }

    fn argument<'a>(&'a self, argument: &'a NodeArgument) -> Result<backend::Argument<'a>> {
        Ok(match argument {
            NodeArgument::Memory(source) => backend::Argument::Memory(self.region(*source).view()?),
            NodeArgument::Value(bytes) => backend::Argument::Value(bytes),
            NodeArgument::Open(range) => backend::Argument::Value(&self.values[range.clone()]),
            NodeArgument::Local(bytes) => backend::Argument::Local(*bytes),
            NodeArgument::Sampler(sampler) => backend::Argument::Sampler(*sampler),
        })
    }
}
