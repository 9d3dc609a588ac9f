//! The command DAG: what waits for what, what may be handed to the device, and whom a failure
//! reaches. Knows no backend and no executor.
//!
//! A node waits until everything it depends on has been *dispatched*, not until it has ended: the
//! device keeps the order among what it was given. Only what the device is not given as a whole, and
//! what fails without ever being dispatched, waits for the end of everything it depends on, so that
//! the order holds across it too.

use std::cmp::Reverse;

use petgraph::Direction::{Incoming, Outgoing};
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use petgraph::visit::EdgeRef;
use smallvec::SmallVec;

use super::hazard::{Found, Hazards, Lacking, Use};
use crate::compiler::signature::Access;
use crate::error::{Error, ErrorKind, Result};

/// A command of a [`Dag`]: never equal to that of another command, ended or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeId {
    index: NodeIndex,
    serial: u64,
}

impl NodeId {
    /// For storing it in atomics; the serial is never zero.
    pub(crate) fn to_parts(self) -> (u32, u64) {
        (self.index.index() as u32, self.serial)
    }

    pub(crate) fn from_parts(index: u32, serial: u64) -> Self {
        Self { index: NodeIndex::new(index as usize), serial }
    }

    /// The position of the command among all that were ever added.
    pub(crate) fn serial(self) -> u64 {
        self.serial
    }
}

/// Why one command comes after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EdgeKind {
    /// It only must not run earlier: write after read, write after write.
    Order,
    /// It uses what the other makes: if that is missing, it fails.
    Data,
    /// It was told to come after the other: if that fails, so does it.
    After,
}

/// Why a command fails without being run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It cannot be run as it is, which changes nothing: whoever uses its buffers finds what they held
    /// before it.
    Refused,
    /// Something that it needs besides commands is not there, so what it should have written is missing.
    Missing,
    /// The data that it reads is missing.
    Data,
    /// A command that it was told to come after has failed.
    After,
}

impl Why {
    /// Why a launch fails that this error kept from being started. One for which the device had no
    /// resources could have been run: what it should have written is missing.
    pub(crate) fn launch_failed(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::OutOfResources | ErrorKind::DeviceLost => Self::Missing,
            _ => Self::Refused,
        }
    }
}

/// The root cause for which a command fails without being run.
#[derive(Debug)]
pub(crate) struct Poison {
    pub(crate) root: Error,
    pub(crate) why: Why,
}

/// The failures of other commands that concern a command.
#[derive(Debug, Default)]
struct Failing {
    /// Set once the command cannot succeed any more.
    poison: Option<Poison>,
    /// The parts of its outputs that are missing again if it is refused.
    underneath: Vec<Lacking>,
}

impl Failing {
    /// The command fails for this reason, unless it fails already.
    fn poison(&mut self, root: &Error, why: Why) {
        self.poison.get_or_insert_with(|| Poison { root: root.clone(), why });
    }
}

#[derive(Debug)]
struct Node<C> {
    command: C,
    serial: u64,
    /// Closed gates, and commands depended on that are not dispatched.
    blockers: u32,
    dispatched: bool,
    /// Whether it waits for the ends of what it depends on.
    after_ends: bool,
    /// Most commands have none.
    failing: Option<Box<Failing>>,
    /// The serial of the last command found to depend on this one, and the edge's place among that
    /// command's edges: finds doubles without a search.
    last_dependent: (u64, u32),
    /// The last search that came by.
    searched: u64,
    /// The live commands that were added right before and right after this one.
    older: NodeIndex,
    newer: NodeIndex,
}

impl<C> Node<C> {
    fn failing(&mut self) -> &mut Failing {
        self.failing.get_or_insert_default()
    }

    fn poison(&self) -> Option<&Poison> {
        self.failing.as_ref()?.poison.as_ref()
    }
}

/// What a command can do next, as [`Dag`] calls tell it. In the order in which it came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing is in its way: dispatch it.
    Dispatch(NodeId),
    /// It is poisoned and everything before it has ended: complete it.
    Fail(NodeId),
}

/// What a command uses.
pub(crate) type Uses = SmallVec<[Use; 4]>;

/// The list that calls append to.
pub(crate) type NextList = SmallVec<[Next; 4]>;

/// A command that has ended and left the graph.
#[derive(Debug)]
pub(crate) struct Ended<C> {
    pub(crate) command: C,
    /// With the root cause if it failed because of another.
    pub(crate) outcome: Result<()>,
    /// Why it was not run, if it was not.
    pub(crate) why: Option<Why>,
}

/// An edge that was taken out for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    from: NodeId,
    to: NodeId,
    kind: EdgeKind,
}

/// The commands that have not ended, and the edges between them.
#[derive(Debug)]
pub(crate) struct Dag<C> {
    graph: StableDiGraph<Node<C>, EdgeKind>,
    hazards: Hazards,
    /// What a command uses, asked again only should it fail.
    uses_of: fn(&C) -> Uses,
    serial: u64,
    /// The live command that was added last.
    newest: NodeIndex,
    /// Searches ever made.
    searches: u64,
    /// Reused between calls.
    edges: Vec<(NodeId, EdgeKind)>,
    /// All that the last command added comes after, ended or not, some perhaps twice.
    found: Vec<NodeId>,
}

impl<C> Dag<C> {
    pub(crate) fn new(uses_of: fn(&C) -> Uses) -> Self {
        Self {
            graph: StableDiGraph::new(),
            hazards: Hazards::default(),
            uses_of,
            serial: 0,
            newest: NodeIndex::end(),
            searches: 0,
            edges: Vec::new(),
            found: Vec::new(),
        }
    }
}

struct Finder<'a, C> {
    graph: &'a mut StableDiGraph<Node<C>, EdgeKind>,
    edges: &'a mut Vec<(NodeId, EdgeKind)>,
    found: &'a mut Vec<NodeId>,
    serial: u64,
    failing: Failing,
}

/// The node of a command, unless the command has ended.
fn node_of<C>(graph: &StableDiGraph<Node<C>, EdgeKind>, id: NodeId) -> Option<&Node<C>> {
    graph.node_weight(id.index).filter(|node| node.serial == id.serial)
}

fn node_of_mut<C>(
    graph: &mut StableDiGraph<Node<C>, EdgeKind>,
    id: NodeId,
) -> Option<&mut Node<C>> {
    graph.node_weight_mut(id.index).filter(|node| node.serial == id.serial)
}

/// A command that this one depends on has failed with a root cause, and leaves bytes missing.
fn fail_dependent<C>(
    dependent: &mut Node<C>,
    kind: EdgeKind,
    (root, why): (&Error, Option<Why>),
    lacking: &[Lacking],
    uses_of: fn(&C) -> Uses,
) {
    if kind == EdgeKind::After {
        dependent.failing().poison(root, Why::After);
    }
    let is_refused = why == Some(Why::Refused);
    if kind != EdgeKind::Order && !is_refused {
        dependent.failing().poison(root, Why::Data);
    }
    if lacking.is_empty() || dependent.dispatched {
        return;
    }
    let uses = uses_of(&dependent.command);
    if is_refused && let Some(root) = lacking.iter().find_map(|it| it.missed_by(&uses)) {
        dependent.failing().poison(root, Why::Data);
    }
    // If it is refused itself, these bytes are as they were.
    let covered = lacking.iter().filter(|it| it.is_covered_by(&uses)).cloned();
    dependent.failing().underneath.extend(covered);
}

impl<C> Found for Finder<'_, C> {
    fn is_live(&self, id: NodeId) -> bool {
        node_of(self.graph, id).is_some()
    }

    fn depend(&mut self, on: NodeId, kind: EdgeKind) {
        let next = (self.serial, self.edges.len() as u32);
        if on.serial == self.serial {
            return;
        }
        self.found.push(on);
        let Some(node) = node_of_mut(self.graph, on) else { return };
        if node.last_dependent.0 == next.0 {
            let place = node.last_dependent.1 as usize;
            self.edges[place].1 = self.edges[place].1.max(kind);
        } else {
            node.last_dependent = next;
            self.edges.push((on, kind));
        }
    }

    fn fail(&mut self, root: &Error) {
        self.failing.poison(root, Why::Data);
    }

    fn cover(&mut self, lacking: Lacking) {
        self.failing.underneath.push(lacking);
    }
}

impl<C> Dag<C> {
    /// Adds a command behind all that its uses conflict with and all in `after`, waiting for
    /// `gates` calls of [`open_gate`](Self::open_gate). With `poison` it fails in its turn.
    ///
    /// It makes the uses of one list at once, and the lists in order.
    pub(crate) fn add(
        &mut self,
        command: C,
        uses: &[impl AsRef<[Use]>],
        after: impl IntoIterator<Item = (NodeId, EdgeKind)>,
        gates: u32,
        poison: Option<Poison>,
        next: &mut NextList,
    ) -> NodeId {
        self.serial += 1;
        let serial = self.serial;
        let index = self.graph.add_node(Node {
            command,
            serial,
            blockers: gates,
            dispatched: false,
            after_ends: false,
            failing: None,
            last_dependent: (0, 0),
            searched: 0,
            older: self.newest,
            newer: NodeIndex::end(),
        });
        if let Some(older) = self.graph.node_weight_mut(self.newest) {
            older.newer = index;
        }
        self.newest = index;
        let id = NodeId { index, serial };
        self.edges.clear();
        self.found.clear();
        let mut finder = Finder {
            graph: &mut self.graph,
            edges: &mut self.edges,
            found: &mut self.found,
            serial,
            failing: Failing { poison, underneath: Vec::new() },
        };
        for (node, kind) in after {
            finder.depend(node, kind);
        }
        for uses in uses {
            // Who is given the same bytes twice reads what was there before its own writes.
            for access in [Access::Read, Access::ReadWrite, Access::Write] {
                for used in uses.as_ref().iter().filter(|used| used.access == access) {
                    self.hazards.touch(id, used, &mut finder);
                }
            }
        }
        let Failing { poison, underneath } = finder.failing;
        let mut blockers = gates;
        // The latest first: to end, a command is looked for in the list of each that comes after it, which
        // runs backwards, and most end in the order in which they were added.
        self.edges.sort_unstable_by_key(|(on, _)| Reverse(on.serial));
        for &(on, kind) in &self.edges {
            blockers += u32::from(!self.graph[on.index].dispatched);
            self.graph.add_edge(on.index, index, kind);
        }
        let node = &mut self.graph[index];
        node.blockers = blockers;
        if poison.is_some() || !underneath.is_empty() {
            node.failing = Some(Box::new(Failing { poison, underneath }));
        }
        self.consider(id, next);
        id
    }

    /// Whether a command with these uses, in the order that [`add`](Self::add) has them in, could be
    /// dispatched at once.
    pub(crate) fn is_clear(&self, uses: &[impl AsRef<[Use]>]) -> bool {
        self.hazards.are_clear(uses, |id| self.node(id).is_some_and(|node| !node.dispatched))
    }

    /// One of the command's gates has opened. Forgotten commands are ignored.
    pub(crate) fn open_gate(&mut self, id: NodeId, next: &mut NextList) {
        if let Some(node) = self.node_mut(id) {
            node.blockers -= 1;
            if node.poison().is_none() {
                self.consider(id, next);
            }
        }
    }

    /// The command will fail with `root` instead of being dispatched, whatever its gates do.
    pub(crate) fn poison(&mut self, id: NodeId, root: Error, why: Why, next: &mut NextList) {
        if let Some(node) = self.node_mut(id)
            && node.poison().is_none()
        {
            node.failing().poison = Some(Poison { root, why });
            self.consider(id, next);
        } else {
            self.hazards.retire(root);
        }
    }

    /// Whether there are errors that [`take_retired`](Self::take_retired) gives.
    pub(crate) fn has_retired(&self) -> bool {
        self.hazards.has_retired()
    }

    /// Errors of commands that nobody reads here any more, for whoever drops them elsewhere.
    pub(crate) fn take_retired(&mut self) -> Vec<Error> {
        self.hazards.take_retired()
    }

    /// The command, which nothing is in the way of, waits for the ends of what it depends on besides.
    /// Tells whether all of that has ended; if not, [`Next::Dispatch`] comes again when it has.
    pub(crate) fn wait_for_ends(&mut self, id: NodeId) -> bool {
        self.graph[id.index].after_ends = true;
        self.is_first(id.index)
    }

    /// Whether all that it depends on has ended.
    fn is_first(&self, index: NodeIndex) -> bool {
        self.graph.neighbors_directed(index, Incoming).next().is_none()
    }

    /// The device has the command: from here on it keeps the order behind it.
    pub(crate) fn dispatched(&mut self, id: NodeId, next: &mut NextList) {
        self.graph[id.index].dispatched = true;
        let mut dependents = self.graph.neighbors_directed(id.index, Outgoing).detach();
        while let Some(index) = dependents.next_node(&self.graph) {
            let node = &mut self.graph[index];
            node.blockers -= 1;
            if node.blockers == 0 && node.poison().is_none() {
                next.push(Next::Dispatch(NodeId { index, serial: node.serial }));
            }
        }
    }

    /// The command has ended, dispatched or not: it leaves the graph, and its failure goes on to
    /// those that depend on its data.
    pub(crate) fn complete(
        &mut self,
        id: NodeId,
        result: Result<()>,
        next: &mut NextList,
    ) -> Ended<C> {
        let mut dependents: SmallVec<[NodeId; 8]> = SmallVec::new();
        let node = &mut self.graph[id.index];
        let undispatched = u32::from(!node.dispatched);
        let poison = node.failing.as_mut().and_then(|failing| failing.poison.take());
        let (outcome, why) = match poison {
            Some(Poison { root, why }) => {
                if let Err(own) = result {
                    self.hazards.retire(own);
                }
                (Err(root), Some(why))
            }
            None => (result, None),
        };
        let lacking = self.lacking_after(id, &outcome, why);
        let mut edges = self.graph.neighbors_directed(id.index, Outgoing).detach();
        while let Some((edge, index)) = edges.next(&self.graph) {
            if let Err(root) = &outcome {
                let lacking = self.lacking_before(index, id, &lacking);
                let kind = self.graph[edge];
                let dependent = &mut self.graph[index];
                fail_dependent(dependent, kind, (root, why), &lacking, self.uses_of);
            }
            let dependent = &mut self.graph[index];
            dependent.blockers -= undispatched;
            if !dependent.dispatched {
                dependents.push(NodeId { index, serial: dependent.serial });
            }
        }
        let node = self.graph.remove_node(id.index).expect("an id names a live command");
        self.unlink(node.older, node.newer);
        if outcome.is_err() {
            for used in (self.uses_of)(&node.command) {
                self.hazards.writer_failed(id, &used, &lacking);
            }
            self.hazards.retire_all(lacking);
        }
        if let Some(failing) = node.failing {
            self.hazards.retire_all(failing.underneath);
        }
        // Adjacency lists run backwards; dependents go on in the order in which they were added.
        for dependent in dependents.into_iter().rev() {
            let node = &self.graph[dependent.index];
            if undispatched > 0 || node.poison().is_some() || node.after_ends {
                self.consider(dependent, next);
            }
        }
        Ended { command: node.command, outcome, why }
    }

    /// The bytes that are missing once the command has ended like this: its outputs, or if it was
    /// refused, what was missing before it.
    fn lacking_after(
        &mut self,
        id: NodeId,
        outcome: &Result<()>,
        why: Option<Why>,
    ) -> SmallVec<[Lacking; 2]> {
        let Err(root) = outcome else { return SmallVec::new() };
        let node = &mut self.graph[id.index];
        if why == Some(Why::Refused) {
            return std::mem::take(&mut node.failing().underneath).into();
        }
        let uses = (self.uses_of)(&node.command).into_iter();
        let written = uses.filter(|used| used.access != Access::Read);
        written
            .map(|Use { allocation, bytes, .. }| Lacking::failed(allocation, bytes, root))
            .collect()
    }

    /// The bytes that a failed command leaves missing for a dependent: commands between the two may write
    /// some of them.
    fn lacking_before(
        &self,
        dependent: NodeIndex,
        failed: NodeId,
        lacking: &[Lacking],
    ) -> SmallVec<[Lacking; 2]> {
        let mut left = SmallVec::from(lacking);
        if left.is_empty() {
            return left;
        }
        for before in self.graph.neighbors_directed(dependent, Incoming) {
            let node = &self.graph[before];
            if node.serial > failed.serial {
                for used in (self.uses_of)(&node.command) {
                    left = left.into_iter().flat_map(|lacking| lacking.after(&used)).collect();
                }
            }
        }
        left
    }

    /// The command between these two was removed.
    fn unlink(&mut self, older: NodeIndex, newer: NodeIndex) {
        if let Some(node) = self.graph.node_weight_mut(older) {
            node.newer = newer;
        }
        match self.graph.node_weight_mut(newer) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
    }

    /// Appends what the command can do now, if anything.
    pub(crate) fn consider(&self, id: NodeId, next: &mut NextList) {
        let node = &self.graph[id.index];
        if node.dispatched {
            return;
        }
        if node.poison().is_some() {
            if self.is_first(id.index) {
                next.push(Next::Fail(id));
            }
        } else if node.blockers == 0 && (!node.after_ends || self.is_first(id.index)) {
            next.push(Next::Dispatch(id));
        }
    }

    /// Takes out the edges among commands of which none is dispatched, so that none waits for
    /// another: they are about to be dispatched as one.
    ///
    /// `among` is in the order in which they were added.
    pub(crate) fn cut(&mut self, among: &[NodeId]) -> Vec<Cut> {
        let mut cuts = Vec::new();
        for &to in among {
            let mut edges = self.graph.neighbors_directed(to.index, Incoming).detach();
            while let Some((edge, index)) = edges.next(&self.graph) {
                let from = NodeId { index, serial: self.graph[index].serial };
                if among.binary_search_by_key(&from.serial, |id| id.serial).is_err() {
                    continue;
                }
                if let Some(kind) = self.graph.remove_edge(edge) {
                    self.graph[to.index].blockers -= 1;
                    cuts.push(Cut { from, to, kind });
                }
            }
        }
        cuts
    }

    /// Puts back the edges that [`cut`](Self::cut) took out, of commands of which none has ended:
    /// either all or none of them are dispatched by now.
    pub(crate) fn mend(&mut self, cuts: Vec<Cut>) {
        for Cut { from, to, kind } in cuts {
            self.graph.add_edge(from.index, to.index, kind);
            if !self.graph[from.index].dispatched {
                self.graph[to.index].blockers += 1;
            }
        }
    }

    /// The first command among these and all that they wait for, with its gates that are closed, for
    /// which `is_meant` holds.
    pub(crate) fn find_gated(
        &mut self,
        from: &[NodeId],
        mut is_meant: impl FnMut(NodeId, &C, u32) -> bool,
    ) -> Option<NodeId> {
        let mut found: SmallVec<[NodeId; 16]> = SmallVec::from_slice(from);
        self.searches += 1;
        for &id in from {
            self.graph[id.index].searched = self.searches;
        }
        while let Some(id) = found.pop() {
            let mut undispatched = 0;
            let mut edges = self.graph.neighbors_directed(id.index, Incoming).detach();
            while let Some(index) = edges.next_node(&self.graph) {
                let before = &mut self.graph[index];
                if before.dispatched {
                    continue;
                }
                undispatched += 1;
                if before.searched != self.searches {
                    before.searched = self.searches;
                    found.push(NodeId { index, serial: before.serial });
                }
            }
            let node = &self.graph[id.index];
            if is_meant(id, &node.command, node.blockers - undispatched) {
                return Some(id);
            }
        }
        None
    }

    /// Why the command is known to fail.
    pub(crate) fn poison_of(&self, id: NodeId) -> Option<&Error> {
        self.node(id)?.poison().map(|poison| &poison.root)
    }

    /// Whether the command is known to fail.
    pub(crate) fn is_poisoned(&self, id: NodeId) -> bool {
        self.node(id).is_some_and(|node| node.poison().is_some())
    }

    fn node(&self, id: NodeId) -> Option<&Node<C>> {
        node_of(&self.graph, id)
    }

    fn node_mut(&mut self, id: NodeId) -> Option<&mut Node<C>> {
        node_of_mut(&mut self.graph, id)
    }

    /// The command, unless it has ended.
    pub(crate) fn command(&self, id: NodeId) -> Option<&C> {
        self.node(id).map(|node| &node.command)
    }

    /// The command, unless it has ended.
    pub(crate) fn command_mut(&mut self, id: NodeId) -> Option<&mut C> {
        self.node_mut(id).map(|node| &mut node.command)
    }

    /// Whether the command is there, not dispatched, and can still succeed.
    pub(crate) fn can_dispatch(&self, id: NodeId) -> bool {
        let can =
            |node: &Node<C>| !node.dispatched && node.blockers == 0 && node.poison().is_none();
        self.node(id).is_some_and(can)
    }

    /// Whether the command is there and known to fail, and everything before it has ended.
    pub(crate) fn must_fail(&self, id: NodeId) -> bool {
        self.is_poisoned(id) && !self.graph[id.index].dispatched && self.is_first(id.index)
    }

    /// All that the command added last comes after, ended or not.
    pub(crate) fn found(&self) -> &[NodeId] {
        &self.found
    }

    /// The commands that this one depends on and that have not ended.
    pub(crate) fn dependencies(&self, id: NodeId) -> impl Iterator<Item = (NodeId, EdgeKind, &C)> {
        self.graph.edges_directed(id.index, Incoming).map(|edge| {
            let node = &self.graph[edge.source()];
            (NodeId { index: edge.source(), serial: node.serial }, *edge.weight(), &node.command)
        })
    }

    /// The commands that `belongs` names and that none of those depends on: a command that comes
    /// after these comes after all that `belongs` names.
    ///
    /// `covers` names commands of those that come after all older ones: none older is looked at.
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

    /// All commands that have not ended, in the order of the graph's storage.
    pub(crate) fn commands(&self) -> impl Iterator<Item = (NodeId, &C)> {
        self.graph.node_indices().map(|index| {
            let node = &self.graph[index];
            (NodeId { index, serial: node.serial }, &node.command)
        })
    }

    /// The command was added in the place of others that make these uses, in order, while it makes none of
    /// them: it comes after what they would have read, and fails with it.
    pub(crate) fn stand_in(&mut self, id: NodeId, uses: &[Use]) {
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

    /// What others would have written with these uses, for which a command stands in that makes none of
    /// them, is not to be read before it is overwritten.
    pub(crate) fn give_up(&mut self, uses: &[Use], root: &'static Error) {
        for used in uses.iter().filter(|used| used.access != Access::Read) {
            self.hazards.give_up(used, root);
        }
    }

    /// What these commands write to the allocation is not to be read before it is overwritten.
    pub(crate) fn lose(&mut self, allocation: u64, writers: &[NodeId], root: &'static Error) {
        self.hazards.lose(allocation, writers, root);
    }

    /// The first command that reads an allocation which `is_lost`, not one of `among`, and comes after the
    /// data of one of these.
    pub(crate) fn reader_of(&self, among: &[NodeId], is_lost: impl Fn(u64) -> bool) -> Option<&C> {
        let dependents = |id: &NodeId| self.graph.edges_directed(id.index, Outgoing);
        let of_data =
            among.iter().flat_map(dependents).filter(|edge| *edge.weight() != EdgeKind::Order);
        let outside = of_data
            .map(|edge| &self.graph[edge.target()])
            .filter(|node| among.binary_search_by_key(&node.serial, |id| id.serial).is_err());
        let reads = |used: &Use| used.access != Access::Write && is_lost(used.allocation);
        let readers = outside.filter(|node| (self.uses_of)(&node.command).iter().any(reads));
        readers.min_by_key(|node| node.serial).map(|node| &node.command)
    }

    /// No command can use the allocation any more.
    pub(crate) fn forget(&mut self, allocation: u64) {
        self.hazards.forget(allocation);
    }
}
