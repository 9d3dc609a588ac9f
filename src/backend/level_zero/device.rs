//! An opened device: its context, and what is made in it.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};

use super::adapter::LzAdapter;
use super::bindings::*;
use super::clock::Clock;
use super::codes::{Code, check};
use super::event::{EventPool, Kind};
use super::handle::{DeviceHandle, OwnedContext};
use super::lane::LzLane;
use super::loader::Api;
use super::memory::{LzMemory, StagingPool};
use super::{objects, program};
use crate::backend::arranging::{self, Arranging};
use crate::backend::watcher::Watcher;
use crate::backend::{Device, Lane, Memory, Program, Source, exit};
use crate::device::DeviceInfo;
use crate::error::{Error, Result};

/// A context of one device. Everything that is made in it keeps it alive.
pub(super) struct Context {
    pub(super) api: &'static Api,
    pub(super) device: DeviceHandle,
    pub(super) ordinal: u32,
    pub(super) clock: Clock,
    pub(super) info: Arc<DeviceInfo>,
    pub(super) watcher: Watcher,
    /// Whether command lists keep the order by themselves.
    pub(super) has_ordered_lists: bool,
    /// Of events, without timestamps and with.
    pub(super) events: [EventPool; 2],
    pub(super) staging: StagingPool,
    lost: OnceLock<Error>,
    /// How many commands have been enqueued whose end nobody has found.
    pub(super) in_flight: AtomicUsize,
    /// After all that was made in it.
    pub(super) context: Arc<OwnedContext>,
}

impl Context {
    pub(super) fn raw(&self) -> ze_context_handle_t {
        self.context.raw()
    }

    /// Why nothing that runs on the device will ever end, if that is so.
    pub(super) fn loss(&self) -> Option<&Error> {
        self.lost.get()
    }

    /// The error of a code, which is remembered if it tells that the device is lost.
    pub(super) fn error(&self, code: Code, message: impl Into<String>) -> Error {
        if code.is_loss() {
            return self.lose(code);
        }
        code.error(message.into())
    }

    /// From now on the device counts as lost: its commands fail, and it takes no more.
    pub(super) fn lose(&self, code: Code) -> Error {
        let lost = self.lost.get_or_init(|| {
            let name = &self.info.name;
            let message =
                format!("the device `{name}` was lost; make a new runtime to use it again");
            code.error_of(crate::ErrorKind::DeviceLost, message)
        });
        // Whoever waits for commands on lanes that nobody asks about is told as well.
        self.watcher.nudge();
        lost.clone()
    }

    /// Asks the driver whether the device still works.
    pub(super) fn check(&self) {
        let Ok(_call) = exit::enter() else { return };
        // SAFETY: the device is alive.
        let status = unsafe { (self.api.zeDeviceGetStatus)(self.device.0) };
        if let Err(code) = check(status)
            && code.is_loss()
        {
            self.lose(code);
        }
    }
}

pub(super) struct LzDevice {
    context: Arc<Context>,
}

impl LzDevice {
    pub(super) fn open(adapter: &LzAdapter) -> Result<Self> {
        let _call = exit::begin()?;
        let _arranging = Arranging::of(arranging::Kind::Open);
        let LzAdapter { api, driver, device, ordinal, ref clock, has_counted_events, ref info } =
            *adapter;
        let events = if has_counted_events { Kind::Counted } else { Kind::Plain };
        // Both came together. A driver that is older takes the flag for such a list, and ignores it.
        let has_ordered_lists = has_counted_events;
        let description =
            ze_context_desc_t { stype: ZE_STRUCTURE_TYPE_CONTEXT_DESC, ..Default::default() };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver is alive, and the description is one.
        let created =
            unsafe { (api.zeContextCreate)(driver.0, &raw const description, &raw mut raw) };
        check(created)
            .map_err(|code| code.error(format!("the device `{}` cannot be opened", info.name)))?;
        // SAFETY: just created, and known here alone.
        let context = unsafe { OwnedContext::new(api, raw) };
        let context = Context {
            api,
            device,
            ordinal,
            clock: clock.clone(),
            info: Arc::clone(info),
            watcher: Watcher::new(),
            has_ordered_lists,
            events: [EventPool::new(events), EventPool::new(Kind::Stamped)],
            staging: StagingPool::default(),
            lost: OnceLock::new(),
            in_flight: AtomicUsize::new(0),
            context: Arc::new(context),
        };
        let context = Arc::new(context);
        let commands: Weak<Context> = Arc::downgrade(&context);
        exit::look_after(commands);
        Ok(Self { context })
    }
}

impl exit::Commands for Context {
    fn are_in_flight(&self) -> bool {
        self.in_flight.load(SeqCst) > 0
    }
}

impl Device for LzDevice {
    fn build(&self, source: &Source<'_>) -> Result<Arc<dyn Program>> {
        Ok(Arc::new(program::build(&self.context, source)?))
    }

    fn compile(&self, source: &Source<'_>) -> Result<Arc<dyn Program>> {
        Ok(Arc::new(objects::compile(&self.context, source)?))
    }

    fn link(&self, objects: &[&dyn Program]) -> Result<Arc<dyn Program>> {
        Ok(Arc::new(objects::link(&self.context, objects)?))
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(LzMemory::allocate(&self.context, bytes)?))
    }

    fn create_lane(&self, profiling: bool) -> Result<Box<dyn Lane>> {
        Ok(Box::new(LzLane::create(&self.context, profiling)?))
    }
}
