//! Time limits of the waits for launches: the waiters get an error, and everything else goes on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::time::Duration;

use futures::channel::oneshot;
use kiln::commands::Status;
use kiln::{Buffer, ErrorKind, Event, Kernel, Launch, Runtime};
use support::everywhere;
use support::{SAXPY, program};

/// Limit that passes while a test waits for it.
const SHORT: Duration = Duration::from_millis(20);

const ELEMENTS: usize = 256;

/// Kernel `y += a * x`, with its buffers.
struct Saxpy {
    kernel: Kernel,
    x: Buffer<f32>,
    y: Buffer<f32>,
}

impl Saxpy {
    async fn new(rt: &Runtime) -> Self {
        // SAFETY: a work-item touches its own elements, and both buffers have as many.
        let kernel = unsafe { program(rt, SAXPY).await.kernel("saxpy") }.unwrap();
        let x = rt.buffer_from(vec![1.0f32; ELEMENTS]).await.unwrap();
        let y = rt.buffer_from(vec![2.0f32; ELEMENTS]).await.unwrap();
        Self { kernel, x, y }
    }

    fn launch(&self) -> Launch {
        self.kernel.launch(ELEMENTS).args((3.0f32, &self.x, &self.y))
    }
}

fn assert_timed_out(outcome: kiln::Result<()>, limit: &str) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    for part in ["`saxpy` has not ended", limit, "whose host future has not completed"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}

everywhere! {
    async fn waiters_get_an_error_when_the_limit_has_passed_and_the_launch_goes_on(rt: Runtime) {
        let (queue, saxpy) = (rt.queue(), Saxpy::new(&rt).await);
        let (approve, approved) = oneshot::channel::<()>();
        let launch = saxpy.launch().after_future(approved).timeout(SHORT);
        let event = queue.submit(launch).unwrap();
        let after = queue.submit(saxpy.launch().after(&event)).unwrap();
        let Saxpy { y, x, kernel } = saxpy;
        drop((x, kernel));
        assert_timed_out(event.clone().await, "20ms");
        assert!(matches!(event.status(), Status::Waiting));
        // Neither another clone nor a blocking wait waits any longer.
        assert_timed_out(event.clone().await, "20ms");
        assert_timed_out(event.wait(), "20ms");
        // A handle can be polled again after the error, and is woken when the limit or the launch ends.
        let mut handle = event.clone();
        assert_timed_out((&mut handle).await, "20ms");
        assert_timed_out((&mut handle).await, "20ms");
        let waiting = event.clone();
        let task = queue.host_task(async move {
            assert_timed_out(waiting.await, "20ms");
        });
        task.unwrap().await.unwrap();
        approve.send(()).unwrap();
        // The limit concerns neither commands that depend on the launch nor its buffers.
        after.await.unwrap();
        assert_eq!(queue.read(&y).await.unwrap(), [8.0; ELEMENTS]);
        event.clone().await.unwrap();
        handle.await.unwrap();
        assert!(matches!(event.status(), Status::Complete));
    }
}

everywhere! {
    async fn a_launch_that_ends_within_its_limit_is_not_affected(rt: Runtime) {
        let (queue, saxpy) = (rt.queue(), Saxpy::new(&rt).await);
        for limit in [Duration::from_secs(3600), Duration::MAX] {
            let event: Event = queue.submit(saxpy.launch().timeout(limit)).unwrap();
            event.clone().await.unwrap();
            event.wait().unwrap();
        }
        // The launch has ended before its event is polled, although after the limit.
        let event = queue.submit(saxpy.launch().timeout(Duration::ZERO)).unwrap();
        assert_eq!(queue.read(&saxpy.y).await.unwrap(), [11.0; ELEMENTS]);
        event.await.unwrap();
    }
}

everywhere! {
    async fn a_launch_of_a_scope_has_a_limit_too(rt: Runtime) {
        let (queue, saxpy) = (rt.queue(), Saxpy::new(&rt).await);
        let scope = queue.start_fusion();
        let (approve, approved) = oneshot::channel::<()>();
        let launch = saxpy.launch().after_future(approved).timeout(Duration::ZERO);
        let event = scope.submit(launch).unwrap();
        let last = scope.submit(saxpy.launch()).unwrap();
        let outcome = scope.complete().await.unwrap();
        assert!(!outcome.is_fused(), "a host future comes first: {outcome}");
        assert_timed_out(event.clone().await, "0ns");
        approve.send(()).unwrap();
        last.await.unwrap();
        event.await.unwrap();
        assert_eq!(queue.read(&saxpy.y).await.unwrap(), [8.0; ELEMENTS]);
    }
}

everywhere! {
    async fn a_launch_whose_limit_has_passed_can_be_canceled(rt: Runtime) {
        let (queue, saxpy) = (rt.queue(), Saxpy::new(&rt).await);
        let (_approve, approved) = oneshot::channel::<()>();
        let launch = saxpy.launch().after_future(approved).timeout(SHORT);
        let event = queue.submit(launch).unwrap();
        assert_timed_out(event.clone().await, "20ms");
        assert!(event.cancel());
        assert_eq!(event.await.unwrap_err().kind(), ErrorKind::Canceled);
        assert_eq!(queue.read(&saxpy.y).await.unwrap_err().kind(), ErrorKind::Canceled);
    }
}
