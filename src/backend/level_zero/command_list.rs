//! Closed command lists: operations that are appended once, and executed many times.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::{Arc, Mutex};

use super::bindings::*;
use super::codes::check;
use super::context::Context;
use super::event::{EndActions, WaitList};
use super::handle::OwnedList;
use super::operation::{append, append_barrier};
use crate::backend::{CommandList, Operation, OperationSource, shutdown};
use crate::error::{Error, Result};
use crate::sync::lock;

/// Closed command list, whose commands run one after another.
pub(super) struct LzCommandList {
    list: ManuallyDrop<Mutex<OwnedList>>,
    context: Arc<Context>,
}

impl CommandList for LzCommandList {}

impl LzCommandList {
    /// Appends operations to a list, and closes it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) for operations that use memory of the host, the errors of the
    /// driver, and those of `operations`.
    ///
    /// # Safety
    ///
    /// As for [`NativeQueue::record`](crate::backend::NativeQueue::record).
    pub(super) unsafe fn record(
        context: &Arc<Context>,
        operations: OperationSource<'_>,
    ) -> Result<Self> {
        let _call = shutdown::begin()?;
        let recorded = Self::create(context)?;
        let raw = recorded.raw();
        let (no_event, no_wait) = (ptr::null_mut(), WaitList::default());
        operations(&mut |operation| {
            check_recordable(operation)?;
            let mut end_actions = EndActions::default();
            // SAFETY: the list is alive; the caller guarantees the rest.
            unsafe { append(context, raw, operation, no_event, &no_wait, &mut end_actions) }?;
            // The list keeps no order by itself: a driver may change the commands of a list that does with each
            // execution.
            // SAFETY: the list is alive.
            unsafe { append_barrier(context, raw, no_event, &no_wait) }
        })?;
        // SAFETY: the list is alive.
        let closed = unsafe { (context.api.zeCommandListClose)(raw) };
        check(closed).map_err(|code| context.error(code, "a command list cannot be closed"))?;
        Ok(recorded)
    }

    fn create(context: &Arc<Context>) -> Result<Self> {
        let description = ze_command_list_desc_t {
            stype: ZE_STRUCTURE_TYPE_COMMAND_LIST_DESC,
            pNext: ptr::null(),
            commandQueueGroupOrdinal: context.ordinal,
            flags: 0,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: context and device are alive and belong together, and the description is valid.
        let created = unsafe {
            (context.api.zeCommandListCreate)(
                context.raw(),
                context.device.0,
                &raw const description,
                &raw mut raw,
            )
        };
        check(created).map_err(|code| {
            let name = &context.info.name;
            context.error(code, format!("no command list can be created on `{name}`"))
        })?;
        // SAFETY: just created, and owned only here.
        let list = unsafe { OwnedList::new(context.api, raw) };
        Ok(Self { list: ManuallyDrop::new(Mutex::new(list)), context: Arc::clone(context) })
    }

    /// Returns the list as this backend's type. Fails for a list of another backend.
    pub(super) fn of(list: &Arc<dyn CommandList>) -> Result<Arc<Self>> {
        let list: Arc<dyn Any + Send + Sync> = list.clone();
        list.downcast()
            .map_err(|_| Error::invalid("the command list belongs to a device of another backend"))
    }

    pub(super) fn raw(&self) -> ze_command_list_handle_t {
        lock(&self.list).raw()
    }
}

impl Drop for LzCommandList {
    fn drop(&mut self) {
        // On a lost device, the list may be in execution for ever.
        if self.context.loss().is_none() {
            // SAFETY: dropped once, here, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.list) };
        }
    }
}

/// Fails for operations that use memory of the host, or need staging memory.
fn check_recordable(operation: &Operation<'_>) -> Result<()> {
    match operation {
        Operation::Launch { .. } | Operation::Fill { .. } | Operation::Copy { .. } => Ok(()),
        _ => Err(Error::unsupported("only launches, fills and copies of buffers can be recorded")),
    }
}
