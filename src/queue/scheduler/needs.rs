//! Commands that a launch depends on.

use smallvec::SmallVec;

use crate::queue::node::NodeId;

/// Set of the commands that have not ended and whose failure would be that of a launch, too.
#[derive(Default)]
pub(super) struct Needs(SmallVec<[NodeId; 4]>);

impl Needs {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, id: NodeId) {
        if !self.0.contains(&id) {
            self.0.push(id);
        }
    }

    pub(super) fn add_all(&mut self, other: &Self) {
        other.0.iter().for_each(|&id| self.add(id));
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().all(|id| other.0.contains(id))
    }
}
