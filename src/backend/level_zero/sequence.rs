//! Several commands of a list as one, for operations that Level Zero has only in parts.

use std::ptr;

use super::bindings::*;
use super::codes::{Code, check};
use super::context::Context;
use super::event::{EndActions, WaitList};
use crate::error::{Error, Result};

/// Appends commands as one that waits for `wait` and signals `signal`. `commands` appends a command, which neither
/// waits nor signals, each time when it is asked for the next answer of the driver. `what` names them for messages.
///
/// # Safety
///
/// The list is alive.
pub(super) unsafe fn append(
    context: &Context,
    list: ze_command_list_handle_t,
    signal: ze_event_handle_t,
    wait: &WaitList,
    end_actions: &mut EndActions,
    what: &str,
    commands: impl Iterator<Item = ze_result_t>,
) -> Result<()> {
    let append_barrier = context.api.zeCommandListAppendBarrier;
    // SAFETY: the list and the events are alive.
    let began = unsafe { append_barrier(list, ptr::null_mut(), wait.len(), wait.as_ptr()) };
    check(began).map_err(|code| context.error(code, format!("the driver refused {what}")))?;
    for appended in commands {
        check(appended).map_err(|code| abandon(context, code, end_actions))?;
    }
    // A barrier ends after all commands before it, also on lists that do not keep their order.
    // SAFETY: the list and the event are alive.
    let ended = unsafe { append_barrier(list, signal, 0, ptr::null_mut()) };
    check(ended).map_err(|code| abandon(context, code, end_actions))
}

/// Handles an error after some commands were appended, whose end will not be known. The device counts as lost, so that
/// it keeps its memory.
fn abandon(context: &Context, code: Code, end_actions: &mut EndActions) -> Error {
    if let Some(staging) = end_actions.staging.take() {
        staging.leak();
    }
    context.lose(code)
}
