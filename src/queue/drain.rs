//! Waiting, with or without a time limit, until everything submitted has finished and everything is
//! stored.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};

use super::event::Event;
use super::long_waits::Waits;
use super::scheduler::Scheduler;
use super::waits::{fail_polled, in_words};
use crate::error::{Error, ErrorKind, Result};

/// Completes when the markers have ended and then `stored` has completed. If a host task polls this and
/// a marker waits for that task, the task fails.
pub(crate) async fn drain(
    markers: Vec<Event>,
    stored: impl Future<Output = ()>,
    waits: Arc<Waits>,
) {
    for mut marker in markers {
        let _registration = waits.register("`drain`", marker.record());
        // If a marker fails for another reason, its device has failed, and all its commands have ended.
        while let Err(error) = (&mut marker).await
            && error.kind() == ErrorKind::Deadlock
        {
            tracing::error!(%error, "a host future that awaits `drain` fails, because `drain` waits for it");
            fail_polled(&error);
        }
    }
    stored.await;
}

/// Like [`drain`], until `timer` has run for `limit`. A host task that polls this and that a marker
/// waits for gets an error.
pub(crate) async fn drain_within(
    markers: Vec<Event>,
    stored: impl Future<Output = ()> + Send,
    timer: impl Future<Output = Result<()>> + Send + Unpin,
    limit: Duration,
) -> Result<()> {
    let pending = markers.clone();
    let drained = async move {
        for marker in markers {
            match marker.await {
                Err(error) if error.kind() == ErrorKind::Deadlock => return Err(error),
                _ => {}
            }
        }
        stored.await;
        Ok(())
    };
    match select(Box::pin(drained), timer).await {
        Either::Left((drained, _)) => return drained,
        Either::Right((timed_out, _)) => timed_out?,
    }
    let unfinished = |marker: &Event| Scheduler::first_unfinished(marker.record());
    let commands: Vec<_> = pending.iter().flat_map(unfinished).collect();
    let what = match commands.is_empty() {
        true => "programs are still being stored".to_owned(),
        false => format!("still pending: {}", in_words(&commands)),
    };
    let message = format!("not all work has finished within {limit:?}: {what}");
    Err(Error::new(ErrorKind::TimedOut, message))
}
