//! The context of an opened device.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use kiln_compiler::Sampler;

use super::bindings::*;
use super::clock::Clock;
use super::codes::{Code, check};
use super::event_pool::EventPool;
use super::handle::{DeviceHandle, OwnedContext, OwnedSampler};
use super::image_bindings::*;
use super::loader::{Api, Nullable};
use super::sampler::Samplers;
use super::staging_pool::StagingPool;
use crate::backend::poller::Poller;
use crate::backend::shutdown;
use crate::device::{Addressing, DeviceInfo, Filter};
use crate::error::{Error, ErrorKind, Result};

/// `zeCommandListImmediateAppendCommandListsExp`.
pub(super) type AppendLists =
    <ze_pfnCommandListImmediateAppendCommandListsExp_t as Nullable>::Function;

/// A context of one device. Every object that is created in it keeps it alive.
pub(super) struct Context {
    pub(super) api: &'static Api,
    pub(super) device: DeviceHandle,
    pub(super) ordinal: u32,
    pub(super) clock: Clock,
    pub(super) info: Arc<DeviceInfo>,
    pub(super) poller: Poller,
    /// Whether command lists keep their commands in order.
    pub(super) has_ordered_lists: bool,
    /// Function that executes closed command lists behind the commands of a native queue, if the driver has it.
    pub(super) append_lists: Option<AppendLists>,
    /// Pools of events, without timestamps and with timestamps.
    pub(super) events: [EventPool; 2],
    pub(super) staging: StagingPool,
    pub(super) samplers: Samplers,
    pub(super) lost: OnceLock<Error>,
    /// Number of enqueued commands whose end has not been detected.
    pub(super) in_flight: AtomicUsize,
    /// Declared last, so that it is dropped after all objects that were created in it.
    pub(super) context: Arc<OwnedContext>,
}

impl Context {
    pub(super) fn raw(&self) -> ze_context_handle_t {
        self.context.raw()
    }

    /// Returns the error of a lost device, on which no command will ever end. `None` if the device is not lost.
    pub(super) fn loss(&self) -> Option<&Error> {
        self.lost.get()
    }

    /// Returns the error of a code. If the code means that the device is lost, the loss is recorded.
    pub(super) fn error(&self, code: Code, message: impl Into<String>) -> Error {
        if code.is_loss() {
            return self.lose(code);
        }
        code.error(message.into())
    }

    /// Marks the device as lost: from now on its commands fail, and it accepts no more commands.
    pub(super) fn lose(&self, code: Code) -> Error {
        let lost = self.lost.get_or_init(|| {
            let name = &self.info.name;
            let message =
                format!("the device `{name}` was lost; make a new runtime to use it again");
            code.error_of(ErrorKind::DeviceLost, message)
        });
        // The poller then notifies the waiters of commands on native queues that no thread polls.
        self.poller.nudge();
        lost.clone()
    }

    /// Returns the driver's sampler, which lives as long as the context.
    pub(super) fn sampler(&self, sampler: Sampler) -> Result<Arc<OwnedSampler>> {
        self.samplers.get_or_create(sampler, || self.create_sampler(sampler))
    }

    fn create_sampler(&self, sampler: Sampler) -> Result<OwnedSampler> {
        let description = ze_sampler_desc_t {
            stype: ZE_STRUCTURE_TYPE_SAMPLER_DESC,
            pNext: ptr::null(),
            addressMode: match sampler.addressing {
                Addressing::None => ZE_SAMPLER_ADDRESS_MODE_NONE,
                Addressing::ClampToEdge => ZE_SAMPLER_ADDRESS_MODE_CLAMP,
                Addressing::Clamp => ZE_SAMPLER_ADDRESS_MODE_CLAMP_TO_BORDER,
                Addressing::Repeat => ZE_SAMPLER_ADDRESS_MODE_REPEAT,
                Addressing::MirroredRepeat => ZE_SAMPLER_ADDRESS_MODE_MIRROR,
            },
            filterMode: match sampler.filter {
                Filter::Nearest => ZE_SAMPLER_FILTER_MODE_NEAREST,
                Filter::Linear => ZE_SAMPLER_FILTER_MODE_LINEAR,
            },
            isNormalized: sampler.is_normalized.into(),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: context and device are alive and belong together, and the description is valid.
        let created = unsafe {
            (self.api.zeSamplerCreate)(
                self.raw(),
                self.device.0,
                &raw const description,
                &raw mut raw,
            )
        };
        check(created)
            .map_err(|code| self.error(code, format!("the driver refused {sampler:?}")))?;
        // SAFETY: just created, and owned only here; the context outlives it.
        Ok(unsafe { OwnedSampler::new(self.api, raw) })
    }

    /// Checks with the driver whether the device still works.
    pub(super) fn check(&self) {
        let Ok(_call) = shutdown::enter() else { return };
        // SAFETY: the device is alive.
        let status = unsafe { (self.api.zeDeviceGetStatus)(self.device.0) };
        if let Err(code) = check(status)
            && code.is_loss()
        {
            self.lose(code);
        }
    }
}

impl shutdown::Commands for Context {
    fn are_in_flight(&self) -> bool {
        self.in_flight.load(SeqCst) > 0
    }
}
