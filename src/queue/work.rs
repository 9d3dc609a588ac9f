//! Work of commands: the operation of each, the memory that it accesses, and the resources that it keeps alive
//! until the device has finished with them.

use std::sync::Arc;

use kiln_spirv::Access;
use smallvec::SmallVec;

use super::device_copy::DeviceCopyWork;
use super::graph::work::ReplayWork;
use super::hazard::{Use, Uses};
use super::host_memory::{HostSource, HostTarget};
use super::launch_work::LaunchWork;
use super::map_work::MapWork;
use super::native_command::{Call, NativeWork};
use super::operations::{copy, fill, read, write, zeros};
use crate::args::region::Region;
use crate::backend::Operation;
use crate::error::Result;

/// Work of a command.
pub(crate) enum Work {
    Launch(Box<LaunchWork>),
    Write {
        to: Arc<Region>,
        from: Box<dyn HostSource>,
    },
    Read {
        from: Arc<Region>,
        to: Box<dyn HostTarget>,
    },
    /// Transfer or fill that a transfer worker performs.
    Transferring {
        region: Arc<Region>,
        access: Access,
        label: Box<str>,
    },
    Fill {
        region: Arc<Region>,
        pattern: Box<[u8]>,
    },
    /// Zeroing of new memory, before the first command that uses it.
    Zero {
        region: Arc<Region>,
    },
    Copy {
        from: Arc<Region>,
        to: Arc<Region>,
    },
    /// Closure that calls the driver.
    Native(Arc<NativeWork>),
    /// Replay of a recorded graph.
    Replay(Box<ReplayWork>),
    /// Copy between devices.
    DeviceCopy(Box<DeviceCopyWork>),
    /// Mapping of memory for the host.
    Map(MapWork),
    /// End of a mapping.
    Unmap(MapWork),
    /// No work besides the preconditions.
    Host,
    /// Marker that comes after all earlier commands of a queue.
    Marker,
    /// Marker that comes after all earlier commands of a device.
    Drain,
    /// Command that has ended, with the host memory that is left to drop.
    Released(HostMemory),
}

/// Host memory of a command that has ended. Dropping a large block takes time.
pub(crate) enum HostMemory {
    None,
    Source(#[expect(dead_code, reason = "it is dropped")] Box<dyn HostSource>),
    Target(#[expect(dead_code, reason = "it is dropped")] Box<dyn HostTarget>),
    Call(#[expect(dead_code, reason = "it is dropped")] Call),
}

impl Work {
    /// Returns a short label for drawings and messages.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Launch(launch) if launch.is_guarded() => {
                format!("{} (guarded)", launch.kernel.name())
            }
            Self::Launch(launch) => launch.kernel.name().to_owned(),
            Self::Transferring { label, .. } => (**label).to_owned(),
            Self::Write { .. } => "write".to_owned(),
            Self::Read { .. } => "read".to_owned(),
            Self::Fill { .. } => "fill".to_owned(),
            Self::Zero { .. } => "zero".to_owned(),
            Self::Copy { .. } => "copy".to_owned(),
            Self::Native(native) => native.label().to_owned(),
            Self::Replay(replay) => format!("replay of {} commands", replay.len()),
            Self::DeviceCopy(work) => work.label(),
            Self::Map(_) => "map".to_owned(),
            Self::Unmap(_) => "unmap".to_owned(),
            Self::Host => "host task".to_owned(),
            Self::Marker => "marker".to_owned(),
            Self::Drain => "drain".to_owned(),
            Self::Released(_) => "finished command".to_owned(),
        }
    }

    /// Returns the label of the module that the launched kernel comes from, if the module has one.
    pub(crate) fn module_label(&self) -> Option<&str> {
        let Self::Launch(launch) = self else { return None };
        launch.kernel.resolved()?.as_ref().ok()?.label()
    }

    /// Returns a noun phrase with its article for messages, such as "a fill".
    pub(crate) fn in_words(&self) -> String {
        match self {
            Self::Launch(launch) => format!("a launch of `{}`", launch.kernel.name()),
            Self::Native(native) => format!("the native command `{}`", native.label()),
            Self::Replay(replay) => replay.in_words(),
            Self::Drain => "`drain`".to_owned(),
            Self::Zero { .. } => "the zeroing of new memory".to_owned(),
            Self::Unmap(_) => "the end of a mapping".to_owned(),
            other => format!("a {}", other.label()),
        }
    }

    /// Returns the subject of a message about the command's failure.
    pub(crate) fn subject(&self) -> String {
        match self {
            Self::Launch(launch) => format!("`{}`", launch.kernel.name()),
            other => other.in_words(),
        }
    }

    /// Returns the memory accesses of the work.
    pub(crate) fn uses(&self) -> Uses {
        match self {
            Self::Launch(launch) => launch.uses(),
            Self::Write { to: region, .. } | Self::Fill { region, .. } | Self::Zero { region } => {
                SmallVec::from_iter([Use::overwriting(region)])
            }
            Self::Read { from, .. } => SmallVec::from_iter([Use::of(from, Access::Read)]),
            Self::Transferring { region, access, .. } => {
                SmallVec::from_iter([Use::of(region, *access)])
            }
            Self::Copy { from, to } => {
                SmallVec::from_iter([Use::of(from, Access::Read), Use::overwriting(to)])
            }
            Self::Native(native) => native.uses(),
            Self::Replay(replay) => replay.uses(),
            Self::DeviceCopy(work) => SmallVec::from_iter([work.used()]),
            Self::Map(work) | Self::Unmap(work) => SmallVec::from_iter([work.used()]),
            Self::Host | Self::Marker | Self::Drain | Self::Released(_) => SmallVec::new(),
        }
    }

    /// Calls `visit` with a region of each allocation that has to be zeroed before this command.
    pub(crate) fn for_each_fresh(&self, mut visit: impl FnMut(&Region)) {
        let mut visit_if_fresh = |region: &Region| {
            if region.is_fresh() {
                visit(region);
            }
        };
        match self {
            Self::Launch(launch) => launch.regions().for_each(|region| visit_if_fresh(region)),
            Self::Native(native) => native.regions().for_each(|region| visit_if_fresh(region)),
            Self::Replay(replay) => replay.regions().for_each(|region| visit_if_fresh(region)),
            Self::Read { from, .. } => visit_if_fresh(from),
            Self::DeviceCopy(work) => visit_if_fresh(work.region()),
            Self::Map(work) | Self::Unmap(work) => visit_if_fresh(work.region()),
            // The target is included, because nothing is copied if the source fails.
            Self::Copy { from, to } => {
                visit_if_fresh(from);
                visit_if_fresh(to);
            }
            Self::Write { to: region, .. } | Self::Fill { region, .. } if !region.is_whole() => {
                visit_if_fresh(region);
            }
            Self::Write { .. } | Self::Fill { .. } | Self::Zero { .. } => {}
            Self::Transferring { .. }
            | Self::Host
            | Self::Marker
            | Self::Drain
            | Self::Released(_) => {}
        }
    }

    /// Marks the allocation as zeroed or overwritten, if the command overwrites all of it. Called under
    /// the scheduler's lock. Returns `false` for a zeroing that another command has made unnecessary.
    pub(crate) fn claim(&self) -> bool {
        match self {
            Self::Zero { region } => region.take_fresh(),
            Self::Write { to: region, .. } | Self::Fill { region, .. } if region.is_whole() => {
                region.take_fresh();
                true
            }
            _ => true,
        }
    }

    /// See [`Command::release`](super::command::Command::release).
    pub(crate) fn release(&mut self) {
        match self {
            Self::Launch(launch) => return launch.release(),
            Self::Replay(replay) => return replay.release(),
            _ => {}
        }
        let none = Self::Released(HostMemory::None);
        *self = match std::mem::replace(self, none) {
            Self::Write { to, from } => {
                to.release();
                Self::Released(HostMemory::Source(from))
            }
            Self::Read { from, to } => {
                from.release();
                Self::Released(HostMemory::Target(to))
            }
            Self::Fill { region, .. }
            | Self::Zero { region }
            | Self::Transferring { region, .. } => {
                region.release();
                Self::Released(HostMemory::None)
            }
            Self::Copy { from, to } => {
                from.release();
                to.release();
                Self::Released(HostMemory::None)
            }
            // A command that may still run shares its work, which is leaked.
            Self::Native(native) => {
                let call = Arc::into_inner(native).and_then(NativeWork::release);
                Self::Released(call.map_or(HostMemory::None, HostMemory::Call))
            }
            Self::DeviceCopy(work) => {
                work.release();
                Self::Released(HostMemory::None)
            }
            Self::Map(work) | Self::Unmap(work) => {
                work.release();
                Self::Released(HostMemory::None)
            }
            other => other,
        };
    }

    /// See [`Command::is_light`](super::command::Command::is_light).
    pub(crate) fn is_light(&self) -> bool {
        match self {
            Self::Launch(launch) => launch.is_light(),
            Self::Replay(replay) => replay.is_light(),
            // The elements of a read have been delivered to its future, unless the read has failed.
            Self::Released(HostMemory::None | HostMemory::Target(_)) => true,
            Self::Host | Self::Marker | Self::Drain => true,
            _ => false,
        }
    }

    /// Returns the number of bytes that the work moves between host memory and device memory.
    pub(crate) fn transfer_size(&self) -> usize {
        match self {
            Self::Write { to: region, .. } | Self::Read { from: region, .. } => {
                region.transfer_size()
            }
            _ => 0,
        }
    }

    /// Returns the number of bytes of device memory that the work fills.
    pub(crate) fn fill_size(&self) -> usize {
        match self {
            Self::Fill { region, .. } | Self::Zero { region } if region.pixels().is_none() => {
                region.bytes().len()
            }
            _ => 0,
        }
    }

    /// See [`Command::abandon`](super::command::Command::abandon).
    pub(super) fn abandon(&mut self) {
        match self {
            Self::Launch(launch) => launch.abandon(),
            Self::Replay(replay) => replay.abandon(),
            Self::Copy { from, to } => std::mem::forget((from.clone(), to.clone())),
            Self::Native(native) => std::mem::forget(Arc::clone(native)),
            Self::Map(work) | Self::Unmap(work) => work.abandon(),
            // The host memory is leaked, too.
            Self::Write { .. } | Self::Read { .. } | Self::Fill { .. } | Self::Zero { .. } => {
                std::mem::forget(self.take_for_worker());
            }
            _ => {}
        }
    }

    /// Takes a transfer or a fill out for a transfer worker, and leaves `Work::Transferring` in its place. A native
    /// command is shared with the worker. Returns `None` for other work.
    pub(crate) fn take_for_worker(&mut self) -> Option<Self> {
        let (region, access) = match self {
            Self::Write { to: region, .. } | Self::Fill { region, .. } | Self::Zero { region } => {
                (&*region, region.access_of_write())
            }
            Self::Read { from, .. } => (&*from, Access::Read),
            Self::Native(native) => return Some(Self::Native(Arc::clone(native))),
            _ => return None,
        };
        let (region, label) = (region.clone(), self.label().into_boxed_str());
        Some(std::mem::replace(self, Self::Transferring { region, access, label }))
    }

    /// Calls `run` with the operation in the backend's form.
    pub(crate) fn with_operation<R>(
        &mut self,
        run: impl FnOnce(&Operation<'_>) -> Result<R>,
    ) -> Result<R> {
        match self {
            Self::Launch(launch) => launch.with_operation(run),
            Self::Write { to, from } => run(&write(to, from.bytes())),
            Self::Read { from, to } => run(&read(from, to.start())),
            Self::Fill { region, pattern } => run(&fill(region, pattern)),
            Self::Zero { region } => run(&fill(region, zeros(region.bytes().len()))),
            Self::Copy { from, to } => run(&copy(from, to)),
            Self::Map(work) => run(&work.map()),
            Self::Unmap(work) => run(&work.unmap()),
            Self::Transferring { .. }
            | Self::Native(_)
            | Self::Replay(_)
            | Self::DeviceCopy(_)
            | Self::Host
            | Self::Marker
            | Self::Drain
            | Self::Released(_) => run(&Operation::Marker),
        }
    }
}
