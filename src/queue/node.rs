//! Identities of commands in the DAG, and the reasons for which they wait or fail.

use petgraph::stable_graph::NodeIndex;

use crate::error::Error;

/// Identity of a command in a [`Dag`](super::dag::Dag). It is never reused, even after the command has
/// completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeId {
    pub(super) index: NodeIndex,
    pub(super) serial: u64,
}

impl NodeId {
    /// Returns the index and the serial, to be stored in atomics. The serial is never zero.
    pub(crate) fn to_parts(self) -> (u32, u64) {
        (self.index.index() as u32, self.serial)
    }

    pub(crate) fn from_parts(index: u32, serial: u64) -> Self {
        Self { index: NodeIndex::new(index as usize), serial }
    }

    /// Returns the position of the command among all commands ever added; the first one is 1.
    pub(crate) fn serial(self) -> u64 {
        self.serial
    }
}

/// Reason why one command comes after another. If several apply, the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EdgeKind {
    /// The command must only not run earlier: write after read, write after write.
    Order,
    /// The command reads what the other one writes, and fails if that is missing.
    Data,
    /// The command was explicitly ordered after the other one, and fails if that fails.
    After,
}

/// Reason why a command fails without being run. What it was to write is missing, whatever the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SkipReason {
    /// The command cannot be run as it is, or lacks something other than its input data.
    NotRun,
    /// Data that the command reads is missing.
    Data,
    /// The command was explicitly ordered after one that failed.
    After,
}

/// Root cause of the failure of a command that is not run.
#[derive(Debug)]
pub(crate) struct Poison {
    pub(crate) root: Error,
    pub(crate) reason: SkipReason,
}
