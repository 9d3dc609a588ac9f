//! Futures that run to their end.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::blocking::run_apart;
use super::{FilePermit, run_in_background};
use crate::process;

/// A future that runs to its end once it has been polled. If it is dropped before, it goes on in the background, with
/// all that it holds.
#[must_use = "futures do nothing unless they are polled"]
pub(crate) struct Completed<T: Send + 'static> {
    /// The future, until it has ended.
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    has_begun: bool,
}

impl<T: Send + 'static> Completed<T> {
    pub(crate) fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { future: Some(Box::pin(future)), has_begun: false }
    }
}

/// Makes calls on files, which hold a permit until they have ended. They run on Kiln's own thread, from the first poll of
/// the future on, and go on if it is dropped, or not polled again.
///
/// # Errors
///
/// From the future: the system's, if it cannot start the threads, and another one if the calls panic.
pub(crate) async fn on_files<T, F>(
    calls: impl FnOnce(FilePermit) -> F + Send + 'static,
) -> io::Result<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send,
{
    run_apart(on_files_in_task(calls)).await.flatten()
}

/// Like [`on_files`], without the way to Kiln's thread, for tasks that poll the future whenever it is woken. Other calls
/// may wait for one that is not polled.
///
/// # Errors
///
/// From the future: the system's, if it cannot start the threads.
pub(crate) fn on_files_in_task<T, F>(
    calls: impl FnOnce(FilePermit) -> F + Send + 'static,
) -> Completed<io::Result<T>>
where
    T: Send + 'static,
    F: Future<Output = T> + Send,
{
    Completed::new(async move {
        let permit = FilePermit::acquire().await?;
        let output = calls(permit.clone()).await;
        drop(permit);
        Ok(output)
    })
}

impl<T: Send + 'static> Future for Completed<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.has_begun = true;
        // A future that panics is dropped, and does not go on.
        let Some(mut future) = self.future.take() else { return Poll::Pending };
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            self.future = Some(future);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Completed<T> {
    fn drop(&mut self) {
        let Some(future) = self.future.take() else { return };
        // In a forked child, the threads that would complete the future do not exist.
        if self.has_begun && !process::is_forked() {
            run_in_background(async { drop(future.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use futures::FutureExt;
    use futures::channel::oneshot;

    use super::*;

    #[test]
    fn a_future_that_has_begun_runs_to_its_end_without_its_owner() {
        let (answer, answered) = oneshot::channel::<u32>();
        let (sender, received) = mpsc::channel();
        let mut future = Completed::new(async move { sender.send(answered.await) });
        assert!((&mut future).now_or_never().is_none());
        drop(future);
        answer.send(7).expect("the future goes on");
        assert_eq!(received.recv_timeout(Duration::from_secs(60)), Ok(Ok(7)));
    }

    #[test]
    fn a_future_that_has_not_begun_never_does() {
        let (sender, received) = mpsc::channel::<()>();
        drop(Completed::new(async move { sender.send(()) }));
        assert!(received.recv().is_err(), "the future was dropped");
    }
}
