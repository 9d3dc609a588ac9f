//! Replacement of commands by others that do their work: the edges between the commands, the uses that they no
//! longer make, and the contents that are lost.

use kiln_spirv::Access;
use petgraph::Direction::{Incoming, Outgoing};
use petgraph::stable_graph::StableDiGraph;
use petgraph::visit::EdgeRef;

use super::{Dag, Node, node_of, node_of_mut};
use crate::error::Error;
use crate::queue::hazard::{ConflictVisitor, Use};
use crate::queue::node::{EdgeKind, NodeId, SkipReason};

/// Edge that is detached for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DetachedEdge {
    from: NodeId,
    to: NodeId,
    kind: EdgeKind,
}

impl DetachedEdge {
    /// Returns the command that `id` depends on by this edge, if it is one of that command's and not only about the
    /// order.
    pub(crate) fn needed_by(&self, id: NodeId) -> Option<NodeId> {
        (self.to == id && self.kind != EdgeKind::Order).then_some(self.from)
    }
}

/// Uses that are added to a command.
struct AddedUses<'a, C> {
    graph: &'a mut StableDiGraph<Node<C>, EdgeKind>,
    id: NodeId,
}

impl<C> ConflictVisitor for AddedUses<'_, C> {
    fn is_live(&self, id: NodeId) -> bool {
        node_of(self.graph, id).is_some()
    }

    fn depend(&mut self, on: NodeId, kind: EdgeKind) {
        let id = self.id;
        let Some(before) = node_of(self.graph, on).filter(|_| on != id) else { return };
        let blockers = u32::from(!before.dispatched);
        match self.graph.find_edge(on.index, id.index) {
            Some(edge) => self.graph[edge] = self.graph[edge].max(kind),
            None => {
                self.graph.add_edge(on.index, id.index, kind);
                self.graph[id.index].blockers += blockers;
            }
        }
    }

    fn fail(&mut self, root: &Error) {
        if let Some(node) = node_of_mut(self.graph, self.id) {
            node.poison(root, SkipReason::Data);
        }
    }
}

impl<C> Dag<C> {
    /// Detaches the edges between the commands of `among`, none of which is dispatched, so that none
    /// waits for another: they are about to be dispatched as one.
    ///
    /// `among` is in the order in which the commands were added.
    pub(crate) fn detach_edges(&mut self, among: &[NodeId]) -> Vec<DetachedEdge> {
        let mut detached = Vec::new();
        for &to in among {
            let mut edges = self.graph.neighbors_directed(to.index, Incoming).detach();
            while let Some((edge, index)) = edges.next(&self.graph) {
                let from = NodeId { index, serial: self.graph[index].serial };
                if among.binary_search_by_key(&from.serial, |id| id.serial).is_err() {
                    continue;
                }
                if let Some(kind) = self.graph.remove_edge(edge) {
                    self.graph[to.index].blockers -= 1;
                    detached.push(DetachedEdge { from, to, kind });
                }
            }
        }
        detached
    }

    /// Restores the edges that [`detach_edges`](Self::detach_edges) detached. None of their commands has
    /// completed, and either all or none of them are dispatched by now.
    pub(crate) fn restore_edges(&mut self, detached: Vec<DetachedEdge>) {
        for DetachedEdge { from, to, kind } in detached {
            self.graph.add_edge(from.index, to.index, kind);
            if !self.graph[from.index].dispatched {
                self.graph[to.index].blockers += 1;
            }
        }
    }

    /// Adds the data dependencies of commands that `id` replaces. `uses` are the uses of the replaced
    /// commands, in order; `id` makes none of them itself. It comes after the commands whose data the
    /// replaced ones would have read, and fails with them.
    pub(crate) fn replace(&mut self, id: NodeId, uses: &[Use]) {
        let Self { graph, hazards, .. } = self;
        hazards.writers_before(uses, |writer| {
            let Some(before) = node_of(graph, writer).filter(|_| writer != id) else { return };
            let blockers = u32::from(!before.dispatched);
            match graph.find_edge(writer.index, id.index) {
                Some(edge) => graph[edge] = graph[edge].max(EdgeKind::Data),
                None => {
                    graph.add_edge(writer.index, id.index, EdgeKind::Data);
                    graph[id.index].blockers += blockers;
                }
            }
        });
    }

    /// Adds uses to a command that is not dispatched, as if it had been added with them. Since it was added, no
    /// other command may have been that conflicts with them.
    pub(crate) fn add_uses(&mut self, id: NodeId, uses: &[Use]) {
        let Self { graph, hazards, .. } = self;
        let mut added = AddedUses { graph, id };
        for used in uses {
            hazards.touch(id, used, &mut added);
        }
    }

    /// Marks what replaced commands with these uses would have written as lost: the command `by`, which
    /// replaces them, does not write it. Reading it fails until it is overwritten.
    pub(crate) fn invalidate(&mut self, by: NodeId, uses: &[Use], root: &'static Error) {
        for used in uses.iter().filter(|used| used.access != Access::Read) {
            self.hazards.invalidate(by, used, root);
        }
    }

    /// Marks what these commands write to the allocation as lost. Reading it fails until it is
    /// overwritten.
    pub(crate) fn invalidate_writes(
        &mut self,
        allocation: u64,
        writers: &[NodeId],
        root: &'static Error,
    ) {
        self.hazards.invalidate_writes(allocation, writers, root);
    }

    /// Takes back that what a command writes is lost, because it runs by itself.
    pub(crate) fn restore_writes(&mut self, writer: NodeId) {
        let Some(node) = node_of(&self.graph, writer) else { return };
        for used in (self.uses_of)(&node.command) {
            self.hazards.restore_writes(writer, &used);
        }
    }

    /// Returns the first command outside `among` that reads an allocation for which `is_lost` holds,
    /// and that depends on data of a command in `among`.
    pub(crate) fn reader_of(&self, among: &[NodeId], is_lost: impl Fn(u64) -> bool) -> Option<&C> {
        let dependents = |id: &NodeId| self.graph.edges_directed(id.index, Outgoing);
        let data_edges =
            among.iter().flat_map(dependents).filter(|edge| *edge.weight() != EdgeKind::Order);
        let outside = data_edges
            .map(|edge| &self.graph[edge.target()])
            .filter(|node| among.binary_search_by_key(&node.serial, |id| id.serial).is_err());
        let reads = |used: &Use| used.access != Access::Write && is_lost(used.allocation);
        let readers = outside.filter(|node| (self.uses_of)(&node.command).iter().any(reads));
        readers.min_by_key(|node| node.serial).map(|node| &node.command)
    }
}
