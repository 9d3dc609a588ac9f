//! Command lists of a graph, in the order of their use: those that are not in execution are executed again by replays
//! that use the same memory and values.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use smallvec::SmallVec;

use crate::args::region::{Allocation, Region};
use crate::backend::{CommandList, NativeEvent, Progress};
use crate::sync::lock;

/// Maximum number of command lists of a graph.
const MAX_LISTS: usize = 8;

/// Maximum number of remembered bindings of replays that had no command list.
const MAX_SEEN: usize = 8;

/// Memory and values of a replay, which decide whether it can execute a command list.
pub(super) struct Binding {
    /// Parts of the inputs, and the temporaries. A reference to an allocation identifies it even after it is freed.
    memory: SmallVec<[(Weak<Allocation>, Range<usize>); 3]>,
    values: SmallVec<[u8; 32]>,
}

impl Binding {
    pub(super) fn new<'a>(memory: impl Iterator<Item = &'a Arc<Region>>, values: &[u8]) -> Self {
        let memory = memory.map(|region| (region.downgrade(), region.bytes().clone()));
        Self { memory: memory.collect(), values: SmallVec::from_slice(values) }
    }

    /// Returns whether no memory of the replay is freed.
    fn is_alive(&self) -> bool {
        self.memory.iter().all(|(allocation, _)| allocation.strong_count() > 0)
    }
}

impl PartialEq for Binding {
    fn eq(&self, other: &Self) -> bool {
        let same = |((one, bytes), (two, others)): (&(Weak<_>, _), &(Weak<_>, _))| {
            bytes == others && one.ptr_eq(two)
        };
        self.values == other.values && self.memory.iter().zip(&other.memory).all(same)
    }
}

/// Command list, and the event of its last execution.
struct CachedList {
    binding: Binding,
    list: Arc<dyn CommandList>,
    last: Arc<dyn NativeEvent>,
}

/// Way to run a replay.
pub(super) enum Choice {
    /// Executes a command list, which is to be [kept](CommandLists::keep) afterwards.
    Execute(Arc<dyn CommandList>),
    /// Records a command list, executes it, and [keeps](CommandLists::keep) it.
    Record,
    /// Enqueues one operation after the other.
    Enqueue,
}

/// Command lists of a graph.
#[derive(Default)]
pub(super) struct CommandLists(Mutex<State>);

#[derive(Default)]
struct State {
    /// Lists, the least recently used first.
    lists: VecDeque<CachedList>,
    /// Latest bindings of replays that had no command list.
    seen: VecDeque<Binding>,
    /// Whether the operations cannot be recorded.
    is_disabled: bool,
}

impl CommandLists {
    /// Chooses how to run a replay. A list is recorded when a binding is used for the second time, and further lists
    /// for it while all those that exist are in execution, up to the limit.
    pub(super) fn choose(&self, binding: &Binding) -> Choice {
        let mut state = lock(&self.0);
        if state.is_disabled {
            return Choice::Enqueue;
        }
        let is_same = |cached: &CachedList| cached.binding == *binding;
        let ended = |cached: &CachedList| {
            matches!(cached.last.progress(), Progress::Complete | Progress::Failed(_))
        };
        let free = state.lists.iter().position(|cached| is_same(cached) && ended(cached));
        if let Some(cached) = free.and_then(|at| state.lists.remove(at)) {
            return Choice::Execute(cached.list);
        }
        state.lists.retain(|cached| cached.binding.is_alive());
        if state.lists.iter().any(is_same) {
            return if state.lists.len() < MAX_LISTS { Choice::Record } else { Choice::Enqueue };
        }
        match state.seen.iter().position(|seen| seen == binding) {
            Some(at) => {
                state.seen.remove(at);
                Choice::Record
            }
            None => Choice::Enqueue,
        }
    }

    /// Remembers the binding of a replay whose operations were enqueued.
    pub(super) fn remember(&self, binding: Binding) {
        let mut state = lock(&self.0);
        if state.is_disabled || state.seen.contains(&binding) {
            return;
        }
        if state.seen.len() == MAX_SEEN {
            state.seen.pop_front();
        }
        state.seen.push_back(binding);
    }

    /// Keeps a list that was just executed, whose end `last` reports, in place of the least recently used one if
    /// there are too many.
    pub(super) fn keep(
        &self,
        binding: Binding,
        list: Arc<dyn CommandList>,
        last: Arc<dyn NativeEvent>,
    ) {
        let mut state = lock(&self.0);
        if state.lists.len() == MAX_LISTS {
            state.lists.pop_front();
        }
        state.lists.push_back(CachedList { binding, list, last });
    }

    /// Records no lists any more.
    pub(super) fn disable(&self) {
        *lock(&self.0) = State { is_disabled: true, ..State::default() };
    }
}
