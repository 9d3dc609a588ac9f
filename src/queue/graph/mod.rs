//! Recorded graphs: commands that are checked and prepared once, and then run many times.
//!
//! * [`recorder`]: recording, with placeholders for the memory that a replay is given.
//! * [`scalar`]: the values that a replay is given.
//! * [`recorded`]: the recorded commands.
//! * [`sections`]: launches that may run as one kernel.
//! * [`plans`]: the plans of a graph, with and without fused kernels, and the one for the next replay.
//! * [`prepare`]: from the recorded commands to a plan.
//! * [`plan`]: the commands in the form in which they are enqueued.
//! * [`uses`]: the memory accesses of a replay as a whole.
//! * [`temporaries`]: the memory that the commands of a replay share.
//! * [`lists`]: the driver's command lists, which replays execute.
//! * [`replay`]: graphs and replays as applications use them.
//! * [`work`]: the work of a replay, which is one command of the DAG.
//!
//! The commands of a plan run one after another on one native queue, in the order of their recording, or, where launches
//! are fused, in one that is proven to give the same results. So no hazards have to be found among them.

mod lists;
mod plan;
mod plans;
mod prepare;
mod recorded;
mod recorder;
mod replay;
mod scalar;
mod sections;
mod temporaries;
mod uses;
pub(super) mod work;

pub use recorder::{RecordGraph, Recorder};
pub use replay::{Graph, Replay};
pub use scalar::GraphScalar;
