//! Mappings of memory that host and device share: their commands, and the holds of the host's guards.

use std::sync::Arc;

use kiln_spirv::Access;
use smallvec::SmallVec;

use super::deferred::PendingCommand;
use super::{Edges, Scheduler, State};
use crate::args::region::Region;
use crate::queue::event::Event;
use crate::queue::map_work::{MapWork, MappedAddress};
use crate::queue::node::{EdgeKind, NodeId};
use crate::queue::record::Record;
use crate::queue::work::Work;

impl Scheduler {
    /// Adds the two commands of a mapping. Returns the event of the map, and the record of the unmap, which
    /// waits for [`release_hold`](Self::release_hold).
    pub(crate) fn submit_mapping(
        self: &Arc<Self>,
        region: &Arc<Region>,
        access: Access,
        address: &Arc<MappedAddress>,
        queue: u64,
    ) -> (Event, Arc<Record>) {
        let work = MapWork::new(region, access, address);
        let map = self.command(Work::Map(work.clone()), queue);
        let mut unmap = self.command(Work::Unmap(work), queue);
        unmap.is_held = true;
        map.work.for_each_fresh(|region| self.zero(region));
        let (mapped, unmap_record) = (Event::new(map.record.clone()), unmap.record.clone());
        let mut transaction = self.lock();
        let state = &mut *transaction;
        self.shared.counters.commands.submitted.add(2);
        let was_idle = state.count_submission(self);
        state.count_submission(self);
        state.held += 1;
        self.settle_some(state);
        state.move_predecessors_to_dag(&PendingCommand { command: &map, after: &[] });
        // Both are added under one lock, so that no other command comes between them.
        let id = state.add_node(map, Edges::new(), None, mapped.record());
        let after: Edges = SmallVec::from_iter([(id, EdgeKind::After)]);
        state.add_node(unmap, after, None, &unmap_record);
        self.drive(state);
        let actions = transaction.unlock();
        if was_idle {
            self.shared.reactor.wake();
        }
        self.apply(actions);
        (mapped, unmap_record)
    }

    /// Lets an unmap run whose guard was dropped.
    pub(crate) fn release_hold(self: &Arc<Self>, unmap: &Record) {
        self.change(|state| {
            let Some(id) = unmap.node() else { return };
            if state.take_hold(id) {
                state.dag.meet_precondition(id, &mut state.next);
            }
        });
    }
}

impl State {
    /// Ends the hold of a command. Returns whether it had one.
    fn take_hold(&mut self, id: NodeId) -> bool {
        let held = self.dag.command_mut(id).map(|command| &mut command.is_held);
        let was_held = held.is_some_and(std::mem::take);
        self.held -= usize::from(was_held);
        was_held
    }
}
