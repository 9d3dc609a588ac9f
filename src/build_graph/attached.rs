//! Device libraries of plug-ins, for as long as an application attaches them.

use std::fmt;
use std::sync::Arc;

use super::graph::BuildGraph;
use crate::process;
use crate::source::plugin::PluginLibraries;

/// Device libraries of a plug-in while they are attached to a runtime. From
/// [`Runtime::attach`](crate::Runtime::attach).
///
/// Dropping it detaches the libraries: programs requested from then on are resolved without them. Programs
/// that are in use keep what they were linked from, and builds that have begun end with the libraries.
/// Programs linked with them that are not in use are evicted from memory. If a plug-in was attached several
/// times, its libraries stay until all of these values are dropped.
///
/// # Examples
///
/// ```no_run
/// use kiln::Runtime;
/// use kiln::libraries::{Attached, PluginLibraries};
///
/// struct PlugIn {
///     filters: Attached,
///     library: std::fs::File, // what keeps the plug-in loaded
/// }
///
/// fn load(rt: &Runtime, libraries: &PluginLibraries, library: std::fs::File) -> kiln::Result<PlugIn> {
///     Ok(PlugIn { filters: rt.attach(libraries)?, library })
/// }
/// ```
#[must_use = "the libraries are detached when this is dropped"]
pub struct Attached {
    graph: Arc<BuildGraph>,
    libraries: PluginLibraries,
}

impl Attached {
    pub(crate) fn new(graph: Arc<BuildGraph>, libraries: PluginLibraries) -> Self {
        graph.attach(&libraries);
        Self { graph, libraries }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // In a forked process, a thread of the parent may have held a lock.
        if !process::is_forked() {
            self.graph.detach(&self.libraries);
        }
    }
}

impl fmt::Debug for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attached").field(&self.libraries).finish()
    }
}
