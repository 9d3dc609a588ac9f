//! Command DAG: which command waits for which, which commands may be dispatched to the device, and
//! which commands a failure reaches. It is independent of backends and executors.
//!
//! A node waits until all of its dependencies have been *dispatched*, not until they have completed:
//! the device keeps the order of the commands that it was given. Two kinds of commands wait for the
//! completion of all dependencies instead, so that the order holds across them, too: commands that are
//! not given to the device as a whole, and commands that fail without being dispatched.

mod replacement;

use std::cmp::Reverse;
use std::collections::HashSet;

use foldhash::fast::RandomState;
use kiln_spirv::Access;
use petgraph::Direction::{Incoming, Outgoing};
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;
use smallvec::SmallVec;

use super::hazard::{ConflictVisitor, Hazards, Use, Uses};
use super::node::{EdgeKind, NodeId, Poison, SkipReason};
use crate::error::{Error, Result};
pub(crate) use replacement::DetachedEdge;

#[derive(Debug)]
struct Node<C> {
    command: C,
    serial: u64,
    /// Number of unmet preconditions, plus the dependencies that are not dispatched.
    blockers: u32,
    dispatched: bool,
    /// Whether the command waits for the completion of its dependencies.
    awaits_completions: bool,
    /// Set once the command can no longer succeed.
    poison: Option<Box<Poison>>,
    /// Serial of the last command found to depend on this one. Detects duplicate edges without a search.
    last_dependent: u64,
    /// Index of the edge to that command among the command's edges.
    last_edge: u32,
    /// Live commands that were added right before and right after this one.
    older: NodeIndex,
    newer: NodeIndex,
}

impl<C> Node<C> {
    fn is_poisoned(&self) -> bool {
        self.poison.is_some()
    }

    /// Makes the command fail for this reason, unless it fails already.
    fn poison(&mut self, root: &Error, reason: SkipReason) {
        self.poison.get_or_insert_with(|| Box::new(Poison { root: root.clone(), reason }));
    }
}

/// Next step of a command. [`Dag`] methods append them in the order in which they become possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The command has no unmet dependency or precondition: dispatch it.
    Dispatch(NodeId),
    /// The command is poisoned, and everything before it has completed: complete it.
    Fail(NodeId),
}

/// List to which the methods of [`Dag`] append next steps.
pub(crate) type NextList = SmallVec<[Next; 4]>;

/// Command that has completed and left the graph.
#[derive(Debug)]
pub(crate) struct CompletedCommand<C> {
    pub(crate) command: C,
    /// Result, with the root cause if the command failed because of another one.
    pub(crate) outcome: Result<()>,
    /// Reason why the command was not run, if it was not.
    pub(crate) reason: Option<SkipReason>,
}

/// Commands that have not completed, and the edges between them.
#[derive(Debug)]
pub(crate) struct Dag<C> {
    graph: StableDiGraph<Node<C>, EdgeKind>,
    hazards: Hazards,
    /// Function that returns the accesses of a command; called again only if a failure concerns it.
    uses_of: fn(&C) -> Uses,
    serial: u64,
    /// Live command that was added last.
    newest: NodeIndex,
    /// Edges of the command being added; kept to reuse the allocation.
    edges: Vec<(NodeId, EdgeKind)>,
    /// All commands that the command added last comes after, completed or not, possibly with duplicates.
    predecessors: Vec<NodeId>,
}

impl<C> Dag<C> {
    pub(crate) fn new(uses_of: fn(&C) -> Uses) -> Self {
        Self {
            graph: StableDiGraph::new(),
            hazards: Hazards::default(),
            uses_of,
            serial: 0,
            newest: NodeIndex::end(),
            edges: Vec::new(),
            predecessors: Vec::new(),
        }
    }
}

/// Edges, failures and predecessors of the command being added.
struct EdgeCollector<'a, C> {
    graph: &'a mut StableDiGraph<Node<C>, EdgeKind>,
    edges: &'a mut Vec<(NodeId, EdgeKind)>,
    predecessors: &'a mut Vec<NodeId>,
    serial: u64,
    poison: Option<Poison>,
}

/// Returns the node of a command, unless the command has completed.
fn node_of<C>(graph: &StableDiGraph<Node<C>, EdgeKind>, id: NodeId) -> Option<&Node<C>> {
    graph.node_weight(id.index).filter(|node| node.serial == id.serial)
}

fn node_of_mut<C>(
    graph: &mut StableDiGraph<Node<C>, EdgeKind>,
    id: NodeId,
) -> Option<&mut Node<C>> {
    graph.node_weight_mut(id.index).filter(|node| node.serial == id.serial)
}

impl<C> ConflictVisitor for EdgeCollector<'_, C> {
    fn is_live(&self, id: NodeId) -> bool {
        node_of(self.graph, id).is_some()
    }

    fn depend(&mut self, on: NodeId, kind: EdgeKind) {
        if on.serial == self.serial {
            return;
        }
        self.predecessors.push(on);
        let Some(node) = node_of_mut(self.graph, on) else { return };
        if node.last_dependent == self.serial {
            let known = &mut self.edges[node.last_edge as usize];
            known.1 = known.1.max(kind);
        } else {
            node.last_dependent = self.serial;
            node.last_edge = self.edges.len() as u32;
            self.edges.push((on, kind));
        }
    }

    fn fail(&mut self, root: &Error) {
        self.poison.get_or_insert_with(|| Poison { root: root.clone(), reason: SkipReason::Data });
    }
}

impl<C> Dag<C> {
    /// Adds a command after all commands that its uses conflict with and after all in `after`. It waits
    /// for as many calls of [`meet_precondition`](Self::meet_precondition) as it has `preconditions`.
    /// With `poison`, it fails once everything before it has completed.
    ///
    /// The uses within one list happen at once, and the lists one after another.
    pub(crate) fn add(
        &mut self,
        command: C,
        uses: &[impl AsRef<[Use]>],
        after: impl IntoIterator<Item = (NodeId, EdgeKind)>,
        preconditions: u32,
        poison: Option<Poison>,
        next: &mut NextList,
    ) -> NodeId {
        self.serial += 1;
        let serial = self.serial;
        let index = self.graph.add_node(Node {
            command,
            serial,
            blockers: preconditions,
            dispatched: false,
            awaits_completions: false,
            poison: None,
            last_dependent: 0,
            last_edge: 0,
            older: self.newest,
            newer: NodeIndex::end(),
        });
        if let Some(older) = self.graph.node_weight_mut(self.newest) {
            older.newer = index;
        }
        self.newest = index;
        let id = NodeId { index, serial };
        let poison = self.collect_edges(id, uses, after, poison);
        let blockers = preconditions + self.add_edges(index);
        let node = &mut self.graph[index];
        node.blockers = blockers;
        node.poison = poison.map(Box::new);
        self.push_next_step(id, next);
        id
    }

    /// Collects the edges to a new command in `edges`, and its predecessors. Returns why
    /// it fails, if that is certain.
    fn collect_edges(
        &mut self,
        id: NodeId,
        uses: &[impl AsRef<[Use]>],
        after: impl IntoIterator<Item = (NodeId, EdgeKind)>,
        poison: Option<Poison>,
    ) -> Option<Poison> {
        self.edges.clear();
        self.predecessors.clear();
        let mut collector = EdgeCollector {
            graph: &mut self.graph,
            edges: &mut self.edges,
            predecessors: &mut self.predecessors,
            serial: id.serial,
            poison,
        };
        for (node, kind) in after {
            collector.depend(node, kind);
        }
        for uses in uses {
            // A command that is given the same bytes twice reads what was there before its own writes.
            for access in [Access::Read, Access::ReadWrite, Access::Write] {
                for used in uses.as_ref().iter().filter(|used| used.access == access) {
                    self.hazards.touch(id, used, &mut collector);
                }
            }
        }
        collector.poison
    }

    /// Adds the collected edges to a new command. Returns the number of its dependencies that are not
    /// dispatched.
    fn add_edges(&mut self, index: NodeIndex) -> u32 {
        let mut undispatched = 0;
        // Edges are added from the latest dependency to the oldest. When a command is removed, its edge
        // is searched for in the incoming list of each dependent. That list starts with the edge added
        // last, and most commands complete in the order in which they were added.
        self.edges.sort_unstable_by_key(|(on, _)| Reverse(on.serial));
        for &(on, kind) in &self.edges {
            undispatched += u32::from(!self.graph[on.index].dispatched);
            self.graph.add_edge(on.index, index, kind);
        }
        undispatched
    }

    /// Returns whether a command with these uses, in the order of [`add`](Self::add), could be
    /// dispatched at once.
    pub(crate) fn is_clear(&self, uses: &[impl AsRef<[Use]>]) -> bool {
        self.hazards.are_clear(uses, |id| self.node(id).is_some_and(|node| !node.dispatched))
    }

    /// Calls `visit` with the commands that have not completed and whose data a use reads.
    pub(crate) fn live_writers(&self, used: &Use, mut visit: impl FnMut(NodeId)) {
        self.hazards.writers_of(used, |writer| {
            if self.node(writer).is_some() {
                visit(writer);
            }
        });
    }

    /// Marks one of the command's preconditions as met. Commands that have completed are ignored.
    pub(crate) fn meet_precondition(&mut self, id: NodeId, next: &mut NextList) {
        if let Some(node) = self.node_mut(id) {
            node.blockers -= 1;
            if !node.is_poisoned() {
                self.push_next_step(id, next);
            }
        }
    }

    /// Makes the command fail with `root` instead of being dispatched, whether or not its preconditions
    /// are met.
    pub(crate) fn poison(
        &mut self,
        id: NodeId,
        root: Error,
        reason: SkipReason,
        next: &mut NextList,
    ) {
        if let Some(node) = self.node_mut(id)
            && !node.is_poisoned()
        {
            node.poison = Some(Box::new(Poison { root, reason }));
            self.push_next_step(id, next);
        } else {
            self.hazards.retire(root);
        }
    }

    /// Returns whether [`take_retired`](Self::take_retired) would return any errors.
    pub(crate) fn has_retired(&self) -> bool {
        self.hazards.has_retired()
    }

    /// Takes the errors that are no longer used here, so that the caller can drop them elsewhere.
    pub(crate) fn take_retired(&mut self) -> Vec<Error> {
        self.hazards.take_retired()
    }

    /// Makes a command that is ready for dispatch wait for the completion of its dependencies. Returns
    /// whether all of them have completed; if not, [`Next::Dispatch`] is appended again once they have.
    pub(crate) fn wait_for_completions(&mut self, id: NodeId) -> bool {
        self.graph[id.index].awaits_completions = true;
        self.has_no_dependencies(id.index)
    }

    /// Takes back that a command waits for the completion of its dependencies.
    pub(crate) fn wait_for_dispatches(&mut self, id: NodeId) {
        if let Some(node) = self.node_mut(id) {
            node.awaits_completions = false;
        }
    }

    /// Returns whether all dependencies have completed.
    fn has_no_dependencies(&self, index: NodeIndex) -> bool {
        self.graph.neighbors_directed(index, Incoming).next().is_none()
    }

    /// Marks the command as dispatched: from here on, the device keeps the order of its dependents
    /// behind it.
    pub(crate) fn set_dispatched(&mut self, id: NodeId, next: &mut NextList) {
        self.graph[id.index].dispatched = true;
        let mut dependents = self.graph.neighbors_directed(id.index, Outgoing).detach();
        while let Some(index) = dependents.next_node(&self.graph) {
            let node = &mut self.graph[index];
            node.blockers -= 1;
            if node.blockers == 0 && !node.is_poisoned() {
                next.push(Next::Dispatch(NodeId { index, serial: node.serial }));
            }
        }
    }

    /// Removes a command that has completed, dispatched or not, and passes its failure on to the
    /// commands that depend on its data.
    pub(crate) fn complete(
        &mut self,
        id: NodeId,
        result: Result<()>,
        next: &mut NextList,
    ) -> CompletedCommand<C> {
        let mut dependents: SmallVec<[NodeId; 8]> = SmallVec::new();
        let node = &mut self.graph[id.index];
        let undispatched = u32::from(!node.dispatched);
        let (outcome, reason) = match node.poison.take().map(|poison| *poison) {
            Some(Poison { root, reason }) => {
                if let Err(own) = result {
                    self.hazards.retire(own);
                }
                (Err(root), Some(reason))
            }
            None => (result, None),
        };
        let mut edges = self.graph.neighbors_directed(id.index, Outgoing).detach();
        while let Some((edge, index)) = edges.next(&self.graph) {
            let kind = self.graph[edge];
            let dependent = &mut self.graph[index];
            match (&outcome, kind) {
                (Ok(()), _) | (Err(_), EdgeKind::Order) => {}
                (Err(root), EdgeKind::Data) => dependent.poison(root, SkipReason::Data),
                (Err(root), EdgeKind::After) => dependent.poison(root, SkipReason::After),
            }
            dependent.blockers -= undispatched;
            if !dependent.dispatched {
                dependents.push(NodeId { index, serial: dependent.serial });
            }
        }
        let node = self.graph.remove_node(id.index).expect("an id names a live command");
        self.unlink(node.older, node.newer);
        if let Err(root) = &outcome {
            for used in (self.uses_of)(&node.command) {
                self.hazards.writer_failed(id, &used, root);
            }
        }
        // Adjacency lists start with the latest edge. Dependents proceed in the order in which they
        // were added.
        for dependent in dependents.into_iter().rev() {
            let node = &self.graph[dependent.index];
            if undispatched > 0 || node.is_poisoned() || node.awaits_completions {
                self.push_next_step(dependent, next);
            }
        }
        CompletedCommand { command: node.command, outcome, reason }
    }

    /// Links the neighbours of a removed command in the list of live commands.
    fn unlink(&mut self, older: NodeIndex, newer: NodeIndex) {
        if let Some(node) = self.graph.node_weight_mut(older) {
            node.newer = newer;
        }
        match self.graph.node_weight_mut(newer) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
    }

    /// Appends the next step of the command, if there is one.
    pub(crate) fn push_next_step(&self, id: NodeId, next: &mut NextList) {
        let node = &self.graph[id.index];
        if node.dispatched {
            return;
        }
        if node.is_poisoned() {
            if self.has_no_dependencies(id.index) {
                next.push(Next::Fail(id));
            }
        } else if node.blockers == 0
            && (!node.awaits_completions || self.has_no_dependencies(id.index))
        {
            next.push(Next::Dispatch(id));
        }
    }

    /// Searches these commands and all undispatched commands that they wait for. Returns the first for
    /// which `matches` holds; its last argument is the number of the command's unmet preconditions.
    pub(crate) fn find_preconditioned(
        &self,
        starts: &[NodeId],
        mut matches: impl FnMut(NodeId, &C, u32) -> bool,
    ) -> Option<NodeId> {
        let mut stack: SmallVec<[NodeId; 16]> = SmallVec::from_slice(starts);
        let mut seen: HashSet<NodeIndex, RandomState> = starts.iter().map(|id| id.index).collect();
        while let Some(id) = stack.pop() {
            let mut undispatched = 0;
            for index in self.graph.neighbors_directed(id.index, Incoming) {
                let before = &self.graph[index];
                if before.dispatched {
                    continue;
                }
                undispatched += 1;
                if seen.insert(index) {
                    stack.push(NodeId { index, serial: before.serial });
                }
            }
            let node = &self.graph[id.index];
            if matches(id, &node.command, node.blockers - undispatched) {
                return Some(id);
            }
        }
        None
    }

    /// Returns the root cause for which the command is going to fail, if that is certain.
    pub(crate) fn poison_of(&self, id: NodeId) -> Option<&Error> {
        self.node(id)?.poison.as_ref().map(|poison| &poison.root)
    }

    /// Returns whether the command is certain to fail.
    pub(crate) fn is_poisoned(&self, id: NodeId) -> bool {
        self.node(id).is_some_and(Node::is_poisoned)
    }

    fn node(&self, id: NodeId) -> Option<&Node<C>> {
        node_of(&self.graph, id)
    }

    fn node_mut(&mut self, id: NodeId) -> Option<&mut Node<C>> {
        node_of_mut(&mut self.graph, id)
    }

    /// Returns the command, unless it has completed.
    pub(crate) fn command(&self, id: NodeId) -> Option<&C> {
        self.node(id).map(|node| &node.command)
    }

    /// Returns the command, unless it has completed.
    pub(crate) fn command_mut(&mut self, id: NodeId) -> Option<&mut C> {
        self.node_mut(id).map(|node| &mut node.command)
    }

    /// Returns whether the command can be dispatched now: it is live, not dispatched, not blocked and
    /// not poisoned.
    pub(crate) fn can_dispatch(&self, id: NodeId) -> bool {
        let can = |node: &Node<C>| !node.dispatched && node.blockers == 0 && !node.is_poisoned();
        self.node(id).is_some_and(can)
    }

    /// Returns whether the command is certain to fail, is not dispatched, and everything before it has
    /// completed.
    pub(crate) fn must_fail(&self, id: NodeId) -> bool {
        self.is_poisoned(id)
            && !self.graph[id.index].dispatched
            && self.has_no_dependencies(id.index)
    }

    /// Returns all commands that the command added last comes after, completed or not, possibly with
    /// duplicates.
    pub(crate) fn predecessors(&self) -> &[NodeId] {
        &self.predecessors
    }

    /// Returns the commands that this one depends on and that have not completed.
    pub(crate) fn dependencies(&self, id: NodeId) -> impl Iterator<Item = (NodeId, EdgeKind, &C)> {
        self.graph.edges_directed(id.index, Incoming).map(|edge| {
            let node = &self.graph[edge.source()];
            (NodeId { index: edge.source(), serial: node.serial }, *edge.weight(), &node.command)
        })
    }

    /// Returns the commands for which `belongs` holds and on which no other such command depends. A
    /// command after these comes after all commands for which `belongs` holds.
    ///
    /// `covers` holds for commands that come after all older ones: the search stops at the first.
    pub(crate) fn last_of(
        &self,
        belongs: impl Fn(&C) -> bool,
        covers: impl Fn(&C) -> bool,
    ) -> Vec<NodeId> {
        let mut last = Vec::new();
        let mut at = self.newest;
        while let Some(node) = self.graph.node_weight(at) {
            let is_followed = || {
                let mut dependents = self.graph.neighbors_directed(at, Outgoing);
                dependents.any(|dependent| belongs(&self.graph[dependent].command))
            };
            if belongs(&node.command) && !is_followed() {
                last.push(NodeId { index: at, serial: node.serial });
            }
            if covers(&node.command) {
                break;
            }
            at = node.older;
        }
        last
    }

    /// Returns all commands that have not completed, in the order of the graph's storage.
    pub(crate) fn commands(&self) -> impl Iterator<Item = (NodeId, &C)> {
        self.graph.node_indices().map(|index| {
            let node = &self.graph[index];
            (NodeId { index, serial: node.serial }, &node.command)
        })
    }

    /// Forgets the allocation, which no command can use any more.
    pub(crate) fn forget(&mut self, allocation: u64) {
        self.hazards.forget(allocation);
    }
}
