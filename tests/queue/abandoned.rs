//! Futures that are abandoned at every stage, in every way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{ready, select};
use kiln::Runtime;

use support::forgotten::forget;

/// Stage at which a future is abandoned.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    BeforePoll,
    AfterPolls(usize),
    /// The result is available, but was not polled for.
    Ended {
        polls: usize,
    },
    /// The future has returned its result.
    Ready,
}

pub(crate) const STAGES: [Stage; 6] = [
    Stage::BeforePoll,
    Stage::AfterPolls(1),
    Stage::AfterPolls(7),
    Stage::Ended { polls: 0 },
    Stage::Ended { polls: 1 },
    Stage::Ready,
];

/// Way to abandon a future.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    Dropped,
    Forgotten,
    AbortedOnTokio,
    CancelledOnSmol,
    LostRace,
}

/// All ways that leave nothing behind.
pub(crate) const CLEAN: &[Fate] =
    &[Fate::Dropped, Fate::AbortedOnTokio, Fate::CancelledOnSmol, Fate::LostRace];

pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    // Each poll has a waker of its own.
    let waker = Waker::from(Arc::new(CountingWaker::default()));
    future.poll_unpin(&mut Context::from_waker(&waker))
}

/// Polls a future up to a stage. Returns `None` if it completed on the way, so that it was polled to its end.
///
/// A result is there once the runtime has nothing left to do, or after `limit`.
pub(crate) async fn poll_to<F: Future + Unpin>(
    mut future: F,
    stage: Stage,
    rt: &Runtime,
    limit: Duration,
) -> Option<F> {
    let polls = match stage {
        Stage::BeforePoll => 0,
        Stage::AfterPolls(polls) | Stage::Ended { polls } => polls,
        Stage::Ready => {
            (&mut future).await;
            return Some(future);
        }
    };
    for _ in 0..polls {
        if poll_once(&mut future).is_ready() {
            return None;
        }
    }
    if matches!(stage, Stage::Ended { .. }) {
        let _ = rt.drain_timeout(limit).await;
    }
    Some(future)
}

pub(crate) async fn abandon<F>(future: F, fate: Fate, tokio: &tokio::runtime::Handle)
where
    F: Future<Output: Send> + Unpin + Send + 'static,
{
    match fate {
        Fate::Dropped => drop(future),
        Fate::Forgotten => forget(future),
        Fate::AbortedOnTokio => {
            let task = tokio.spawn(future);
            task.abort();
            let _ = task.await;
        }
        Fate::CancelledOnSmol => drop(smol::spawn(future).cancel().await),
        Fate::LostRace => drop(select(future, ready(())).await),
    }
}

#[derive(Default)]
pub(crate) struct CountingWaker(AtomicUsize);

impl CountingWaker {
    pub(crate) fn count(&self) -> usize {
        self.0.load(SeqCst)
    }
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}
