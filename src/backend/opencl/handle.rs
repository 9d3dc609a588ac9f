//! OpenCL objects as owned values: released once, when dropped.

use cl3::sampler::{cl_sampler, release_sampler};
use opencl3::command_queue::{cl_command_queue, finish, release_command_queue};
use opencl3::context::context::{cl_context, release_context};
use opencl3::event::{
    CL_COMPLETE, CL_EVENT_COMMAND_EXECUTION_STATUS, cl_event, get_event_info, release_event,
    retain_event,
};
use opencl3::kernel::{cl_kernel, release_kernel};
use opencl3::memory::{cl_mem, release_mem_object};
use opencl3::program::{cl_program, release_program};
use opencl3::types::{cl_device_id, cl_int, cl_platform_id};

use super::codes::{command_kind, driver_code, error, error_of};
use crate::backend::{Progress, shutdown};
use crate::error::Error;

macro_rules! owned {
    ($(#[$attribute:meta])* $name:ident, $raw:ty, $release:path) => {
        $(#[$attribute])*
        pub(super) struct $name($raw);

        impl $name {
            /// # Safety
            ///
            /// The object is alive, and the caller gives one reference to it away.
            pub(super) unsafe fn new(raw: $raw) -> Self {
                Self(raw)
            }

            /// Returns the object for a driver call, which must be made inside a [`shutdown::Call`].
            pub(super) fn raw(&self) -> $raw {
                debug_assert!(shutdown::is_inside(), "a driver call is made outside of a `Call`");
                self.0
            }
        }

        // SAFETY: OpenCL objects are not bound to a thread; any thread may use and release them.
        unsafe impl Send for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                let Ok(_call) = shutdown::enter() else { return };
                // SAFETY: the reference is this value's own, and it ends here.
                let released = unsafe { $release(self.0) };
                if let Err(code) = released {
                    let code = driver_code(code);
                    tracing::debug!(%code, concat!(stringify!($release), " failed"));
                }
            }
        }
    };
}

owned!(OwnedContext, cl_context, release_context);
owned!(OwnedProgram, cl_program, release_program);
owned!(
    /// Kernel. Not `Sync`: setting an argument is the only OpenCL function that must not run twice at a time on
    /// the same object.
    OwnedKernel, cl_kernel, release_kernel
);
owned!(OwnedMemory, cl_mem, release_mem_object);
owned!(OwnedSampler, cl_sampler, release_sampler);
owned!(OwnedQueue, cl_command_queue, release_command_queue);
owned!(OwnedEvent, cl_event, release_event);

impl OwnedQueue {
    /// Blocks until all commands have ended.
    pub(super) fn finish(&self) {
        if let Err(code) = finish(self.raw()) {
            // The events of the commands report how they ended.
            let code = driver_code(code);
            tracing::debug!(%code, "clFinish failed");
        }
    }
}

impl OwnedEvent {
    /// Returns another reference to the event.
    pub(super) fn retain(&self) -> Result<Self, cl_int> {
        // SAFETY: the event is alive.
        unsafe { retain_event(self.0) }?;
        Ok(Self(self.0))
    }

    /// Queries the driver for the command's progress.
    pub(super) fn progress(&self) -> Progress {
        let answer = get_event_info(self.0, CL_EVENT_COMMAND_EXECUTION_STATUS);
        match answer.map(cl_int::from) {
            Ok(CL_COMPLETE) => Progress::Complete,
            Ok(1..) => Progress::Pending,
            Ok(code) => Progress::Failed(status_error(code)),
            Err(code) => Progress::Unknown(error(
                code,
                "the driver does not report the status of the command",
            )),
        }
    }

    /// Returns whether the command has not ended yet. A failed command has ended.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self.progress(), Progress::Pending)
    }
}

/// Returns the error for the status of a failed command.
pub(super) fn status_error(status: cl_int) -> Error {
    error_of(command_kind(status), status, "the command failed")
}

// SAFETY: all functions on contexts are thread-safe.
unsafe impl Sync for OwnedContext {}
// SAFETY: all functions on programs are thread-safe.
unsafe impl Sync for OwnedProgram {}
// SAFETY: all functions on memory objects are thread-safe.
unsafe impl Sync for OwnedMemory {}
// SAFETY: all functions on samplers are thread-safe.
unsafe impl Sync for OwnedSampler {}
// SAFETY: all functions on queues are thread-safe.
unsafe impl Sync for OwnedQueue {}
// SAFETY: all functions on events are thread-safe.
unsafe impl Sync for OwnedEvent {}

/// Device handle. The driver owns the device, which lives as long as the process.
#[derive(Clone, Copy)]
pub(super) struct DeviceId(pub(super) cl_device_id);

// SAFETY: a handle of something that the driver owns; all functions on devices are thread-safe.
unsafe impl Send for DeviceId {}
// SAFETY: as above.
unsafe impl Sync for DeviceId {}

/// Platform handle. The driver owns the platform, which lives as long as the process.
#[derive(Clone, Copy)]
pub(super) struct PlatformId(pub(super) cl_platform_id);

// SAFETY: a handle of something that the driver owns; all functions on platforms are thread-safe.
unsafe impl Send for PlatformId {}
// SAFETY: as above.
unsafe impl Sync for PlatformId {}

/// Version of OpenCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
}

impl Version {
    /// Parses a text such as `OpenCL 3.0 and what the vendor adds`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (major, minor) =
            text.strip_prefix("OpenCL ")?.split_whitespace().next()?.split_once('.')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    pub(super) fn at_least(self, major: u32, minor: u32) -> bool {
        self >= Self { major, minor }
    }
}
