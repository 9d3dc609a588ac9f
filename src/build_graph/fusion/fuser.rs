//! The service that fuses launches: the build graph that it builds kernels with, and the results that it knows.

use std::sync::Arc;

use async_lock::Semaphore;

use super::attempts::Attempts;
use super::known::Fusions;
use crate::build_graph::graph::BuildGraph;
use crate::executor::Pool;

/// Fuses the launches of a runtime, and keeps the results.
pub(crate) struct Fuser {
    pub(super) graph: Arc<BuildGraph>,
    /// Results of scopes.
    pub(super) known: Fusions,
    pub(super) attempts: Attempts,
    /// Permits to build fused kernels in the background, for each device in the order of the graph.
    pub(super) background_builds: Box<[Arc<Semaphore>]>,
}

impl Fuser {
    /// Creates the service of a graph. Before the graph evicts the programs that are not in use, the service drops its
    /// results, which keep programs in use.
    pub(crate) fn new(graph: &Arc<BuildGraph>) -> Arc<Self> {
        let permits = graph.device_positions().map(|_| Arc::new(Semaphore::new(1)));
        let fuser = Arc::new(Self {
            graph: Arc::clone(graph),
            known: Fusions::new(),
            attempts: Attempts::default(),
            background_builds: permits.collect(),
        });
        let weak = Arc::downgrade(&fuser);
        graph.before_eviction(move || {
            if let Some(fuser) = weak.upgrade() {
                fuser.known.clear();
            }
        });
        fuser
    }

    /// Returns the threads for calls that block on trusted modules.
    pub(crate) fn threads(&self) -> &Pool {
        self.graph.pool().threads()
    }
}
