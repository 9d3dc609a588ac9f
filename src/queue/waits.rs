//! Waits for commands. A host task whose wait could never end gets an error. Long waits are logged with
//! the commands that hold them up.
//!
//! A command depends on earlier commands, which are in the DAG, and on its host futures, which may
//! await any other command. A host future that awaits a command which depends on its own command could
//! never complete. The wait of another host future counts only if nothing else can wake that future:
//! its thread blocks in [`Event::wait`](crate::Event::wait), or all clones of its waker are accounted
//! for.

use std::fmt::Write as _;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use super::host_future::{HostFuture, Wait, WaitKind, is_polling_host_future, polled};
use super::long_waits::{LONG_WAIT, Waits};
use super::record::Record;
use super::scheduler::{CommandSummary, Scheduler};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// Registration of a host future's wait for a command; dropping it ends the wait.
pub(crate) struct Waiting {
    future: Arc<HostFuture>,
    record: Arc<Record>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waits = lock(&self.future.waits);
        let at = waits.iter().position(|wait| Arc::ptr_eq(&wait.record, &self.record));
        let wait = at.map(|at| waits.swap_remove(at));
        // The lock is released first: dropping a record may call a driver.
        drop(waits);
        drop(wait);
    }
}

/// Registers that a handle of the command is pending, if this thread polls a host future. The
/// registration is stored in `waiting`.
///
/// # Errors
///
/// [`Deadlock`](ErrorKind::Deadlock) if the command waits for the future's own command.
pub(crate) fn register(
    waiting: &mut Option<Box<Waiting>>,
    record: &Arc<Record>,
    waker: &Waker,
) -> Result<()> {
    if !is_polling_host_future() || record.is_dispatched() {
        return Ok(());
    }
    let Some(future) = polled() else { return Ok(()) };
    // Each wait is checked once. If a later wait closes a circle, the future with that wait gets the
    // error.
    if waiting.as_ref().is_none_or(|waiting| !Arc::ptr_eq(&waiting.future, &future)) {
        check_deadlock(&future, record)?;
        let kind = future.kind_of_wait(waker);
        lock(&future.waits).push(Wait { record: record.clone(), kind });
        *waiting = Some(Box::new(Waiting { future, record: record.clone() }));
    }
    Ok(())
}

/// Registers that the thread blocks until the command has completed, if it polls a host future.
///
/// # Errors
///
/// [`Deadlock`](ErrorKind::Deadlock) if the command waits for the future's own command.
pub(crate) fn register_blocking(record: &Arc<Record>) -> Result<Option<Waiting>> {
    let Some(future) = polled() else { return Ok(None) };
    check_deadlock(&future, record)?;
    lock(&future.waits).push(Wait { record: record.clone(), kind: WaitKind::Blocking });
    Ok(Some(Waiting { future, record: record.clone() }))
}

/// Fails if the command waits for the future's own command.
fn check_deadlock(future: &HostFuture, record: &Arc<Record>) -> Result<()> {
    let Some(own) = future.record.get() else { return Ok(()) };
    match Scheduler::waits_for(record, own) {
        Some(command) => Err(Error::new(
            ErrorKind::Deadlock,
            format!(
                "a host future awaits {command}, which waits for that host future: the await would \
                 never complete; await it outside of the future"
            ),
        )),
        None => Ok(()),
    }
}

/// Fails the command whose host future this thread polls, so that the commands that wait for it
/// proceed.
pub(crate) fn fail_polled(error: &Error) {
    let record = polled().and_then(|future| future.record.get().cloned());
    if let Some(record) = record
        && let Some(scheduler) = Scheduler::of_command(&record)
    {
        scheduler.fail_host(&record, error);
    }
}

/// Logs the waits that have lasted long, each of them once. Of many waits, logs the first ones and the number of the
/// others: the search for what holds up a wait visits all commands before it.
pub(super) fn log_long_waits(waits: &Waits, now: Instant) {
    let mut long = waits.take_long(now);
    let others = long.split_off(long.len().min(MAX_NAMED)).len();
    let seconds = LONG_WAIT.as_secs();
    for (what, record) in long {
        let held_up_by = in_words(&Scheduler::first_unfinished(&record));
        tracing::warn!(held_up_by, "{what} has been waiting for more than {seconds} s");
    }
    if others > 0 {
        tracing::warn!(others, "other calls have been waiting for more than {seconds} s");
    }
}

/// Maximum number of waits that are described in one check, and of commands that a message names.
const MAX_NAMED: usize = 4;

/// Returns a list of commands that have not completed, as text for a message.
pub(crate) fn in_words(commands: &[CommandSummary]) -> String {
    let mut text = String::new();
    for (at, CommandSummary { description, queue, state }) in
        commands.iter().take(MAX_NAMED).enumerate()
    {
        let separator = if at == 0 { "" } else { "; " };
        let _ = write!(text, "{separator}{description} of queue {queue}, {state}");
    }
    match commands.len().saturating_sub(MAX_NAMED) {
        _ if commands.is_empty() => text.push_str("no command"),
        0 => {}
        more => _ = write!(text, "; and {more} more"),
    }
    text
}
