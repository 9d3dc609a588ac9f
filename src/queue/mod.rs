//! Queues, the command DAG, and the futures of its commands: everything from a launch to its
//! completion.

mod accesses;
mod check_counts;
mod checked;
mod command;
mod completion;
mod dag;
mod device_copy;
mod dot;
mod drain;
mod event;
mod fusion;
mod graph;
mod handle;
mod hazard;
mod host_future;
mod host_memory;
mod host_task;
mod launch;
mod launch_memory;
mod launch_work;
mod long_waits;
mod map_work;
mod mapping;
mod native;
mod native_command;
mod native_queue;
mod node;
mod operations;
mod range_checks;
mod reactor;
mod reactor_thread;
mod ready;
mod record;
mod scheduler;
mod stopwatch;
#[cfg(test)]
mod tests;
mod time_limit;
mod timeline;
mod waits;
mod work;

pub use self::checked::CheckLaunch;
pub(crate) use self::dot::dot_of_all;
pub(crate) use self::drain::{drain, drain_within};
pub use self::event::{Event, Read, ReadPieces, Status, Upload};
pub(crate) use self::fusion::mode::{FUSION_LIMIT, form_from_environment};
pub use self::fusion::{
    CompleteFusion, ExamineFusion, FusedPart, FusionMode, FusionOutcome, FusionScope,
    Internalization, Unfused,
};
pub use self::graph::{Graph, GraphScalar, RecordGraph, Recorder, Replay};
pub use self::handle::Queue;
pub(crate) use self::host_memory::OwnedElements;
pub use self::host_task::IntoOutcome;
pub use self::launch::Launch;
pub(crate) use self::long_waits::Waits;
pub use self::mapping::{Map, MapMut, Mapped, MappedMut};
pub use self::native_command::DriverQueue;
pub(crate) use self::reactor_thread::start_reactor;
pub use self::ready::Ready;
pub(crate) use self::scheduler::{Options, Scheduler, Shared};
pub(crate) use self::timeline::Timeline;
pub use self::timeline::{Trace, WriteTrace};
