//! Waits that could never end: host tasks that wait for themselves get an error, and long waits are logged with
//! their reason.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use std::future::Future;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use futures::FutureExt;
use futures::channel::oneshot;
use futures::executor::block_on;
use futures::future::{Either, join, join_all, select};
use kiln::simulated::Simulator;
use kiln::{Error, ErrorKind, Event, Runtime};
use support::simulation::{eventually, kernel, runtime, runtime_with, with_kernels};

const LEN: usize = 64;
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Runs a test that would hang if a wait never ended.
#[track_caller]
fn within_time_limit<T: Send + 'static>(test: impl Future<Output = T> + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(block_on(test)));
    receiver.recv_timeout(TIME_LIMIT).expect("a wait does not end")
}

/// Runs a host task that is given its own event, and returns the event and the task's result.
async fn run_with_own_event<T, F>(rt: &Runtime, task: impl FnOnce(Event) -> F) -> (Event, T)
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let (give, given) = oneshot::channel();
    let (answer, answered) = oneshot::channel();
    let (start, started) = oneshot::channel::<()>();
    let event = rt.queue().host_task(async move {
        started.await.unwrap();
        let task: futures::future::BoxFuture<'static, T> = given.await.unwrap();
        let _ = answer.send(task.await);
    });
    let event = event.unwrap();
    assert!(give.send(task(event.clone()).boxed()).is_ok());
    start.send(()).unwrap();
    let answered = answered.await.unwrap();
    (event, answered)
}

#[track_caller]
fn assert_deadlock(outcome: Result<(), Error>) {
    let error = outcome.expect_err("it waits for itself");
    assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
}

#[test]
fn a_host_task_that_awaits_itself_gets_a_deadlock_error() {
    within_time_limit(async {
        let rt = runtime(&Simulator::new()).await;
        let (event, outcome) = run_with_own_event(&rt, |own| own).await;
        assert_deadlock(outcome);
        event.await.unwrap();
        let (event, outcome) = run_with_own_event(&rt, |own| async move { own.wait() }).await;
        assert_deadlock(outcome);
        event.await.unwrap();
        // Also within other futures, and in an executor of its own.
        let (_, outcome) =
            run_with_own_event(&rt, |own| async move { join(own, async {}).await.0 }).await;
        assert_deadlock(outcome);
        let (_, outcome) = run_with_own_event(&rt, |own| async move { block_on(own) }).await;
        assert_deadlock(outcome);
        rt.drain().await;
    });
}

#[test]
fn a_host_task_that_awaits_its_dependents_gets_a_deadlock_error() {
    within_time_limit(async {
        let simulator = with_kernels(Simulator::new());
        let rt = runtime(&simulator).await;
        let scale = kernel(&rt, "scale").await;
        let queue = rt.queue();
        let x = rt.buffer_from(vec![1u32; LEN]).await.unwrap();
        let of_task = (queue.clone(), x.clone());
        let (_, outcome) = run_with_own_event(&rt, move |own| async move {
            let (queue, x) = of_task;
            let _ = queue.submit(scale.launch(LEN).args((2u32, &x)).after(&own)).unwrap();
            queue.read(&x).await.map(drop)
        })
        .await;
        assert_deadlock(outcome);
        assert_eq!(queue.read(&x).await.unwrap(), [2; LEN]);

        let (sender, receiver) = oneshot::channel();
        let marked = queue.clone();
        let event = queue.host_task(async move {
            let marker = marked.marker().unwrap();
            let _ = sender.send(marker.await);
        });
        assert_deadlock(receiver.await.unwrap());
        event.unwrap().await.unwrap();
        queue.marker().unwrap().await.unwrap();
    });
}

#[test]
fn a_host_task_that_awaits_drain_fails_and_drain_ends() {
    within_time_limit(async {
        let rt = runtime(&Simulator::new()).await;
        let drained = rt.clone();
        let task = rt.queue().host_task(async move { drained.drain().await }).unwrap();
        assert_deadlock(task.await);
        rt.drain().await;
        let drained = rt.clone();
        let task = rt.queue().host_task(async move { drained.drain_timeout(TIME_LIMIT).await });
        assert_deadlock(task.unwrap().await);
        rt.drain_timeout(TIME_LIMIT).await.unwrap();
    });
}

#[test]
fn a_cycle_of_host_tasks_gets_deadlock_errors() {
    within_time_limit(async {
        for is_blocking in [false, true] {
            let rt = runtime(&Simulator::new()).await;
            let mut senders = Vec::new();
            let outcomes = Arc::new(Mutex::new(Vec::new()));
            let mut events = Vec::new();
            for _ in 0..3 {
                let (give, given) = oneshot::channel::<Event>();
                senders.push(give);
                let outcomes = outcomes.clone();
                let task = async move {
                    let next = given.await.unwrap();
                    let outcome = if is_blocking { next.wait() } else { next.await };
                    outcomes.lock().unwrap().push(outcome.clone());
                    outcome
                };
                events.push(rt.queue().host_task(task).unwrap());
            }
            for (at, give) in senders.into_iter().enumerate() {
                give.send(events[(at + 1) % 3].clone()).unwrap();
            }
            rt.drain().await;
            let outcomes = outcomes.lock().unwrap();
            assert_eq!(outcomes.len(), 3);
            for outcome in &*outcomes {
                assert_deadlock(outcome.clone());
            }
        }
    });
}

#[test]
fn a_cycle_across_devices_gets_a_deadlock_error() {
    within_time_limit(async {
        let (first, second) = (Simulator::new().named("first"), Simulator::new().named("second"));
        let builder = Runtime::builder().device("first").simulator(&first);
        let rt = runtime_with(&with_kernels(second), builder).await;
        let other = rt.on(&rt.devices()[1]).await.unwrap();
        let scale = kernel(&other, "scale").await;
        let x = other.buffer::<u32>(LEN).unwrap();
        let queue = other.queue();
        let (_, outcome) = run_with_own_event(&rt, move |own| async move {
            queue.submit(scale.launch(LEN).args((2u32, &x)).after(&own)).unwrap().await
        })
        .await;
        assert_deadlock(outcome);
        rt.drain().await;
    });
}

#[test]
fn waits_that_another_future_can_end_are_not_deadlocks() {
    within_time_limit(async {
        let rt = runtime(&Simulator::new()).await;
        let (open, gate) = oneshot::channel::<()>();
        let (give, given) = oneshot::channel::<Event>();
        let (go, gone) = oneshot::channel::<()>();
        // Waits for the second task or for `gate`.
        let first = rt.queue().host_task(async move {
            let mut second = given.await.unwrap();
            assert!(futures::poll!(&mut second).is_pending());
            go.send(()).unwrap();
            match select(second, gate).await {
                Either::Left((second, _)) => second,
                Either::Right(_) => Ok(()),
            }
        });
        let first = first.unwrap();
        let awaited = first.clone();
        let second = rt.queue().host_task(async move {
            gone.await.unwrap();
            awaited.await
        });
        let second = second.unwrap();
        give.send(second.clone()).unwrap();
        let mut pending = second.clone();
        for _ in 0..20 {
            assert!(
                (&mut pending).now_or_never().is_none(),
                "not a deadlock: the gate can still open"
            );
            thread::sleep(Duration::from_millis(1));
        }
        open.send(()).unwrap();
        second.await.unwrap();
        first.await.unwrap();
        // A task awaits an earlier command, while other tasks await it at the same time.
        let before = rt.queue().host_task(async {}).unwrap();
        let tasks = [(); 8].map(|()| rt.queue().host_task(before.clone()).unwrap());
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn dropping_a_runtime_or_finishing_a_trace_in_a_host_task_completes() {
    within_time_limit(async {
        let rt = runtime(&Simulator::new()).await;
        let event = rt.queue().host_task(async move { drop(rt) }).unwrap();
        event.await.unwrap();
        let rt = runtime(&Simulator::new()).await;
        let path = std::env::temp_dir().join(format!("kiln-deadlocks-{}", std::process::id()));
        let trace = rt.trace_to(&path);
        rt.queue().host_task(async move { trace.finish().await }).unwrap().await.unwrap();
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn a_drain_that_times_out_names_an_unfinished_command() {
    within_time_limit(async {
        let simulator = with_kernels(Simulator::new());
        let rt = runtime(&simulator).await;
        let scale = kernel(&rt, "scale").await;
        rt.drain_timeout(TIME_LIMIT).await.unwrap();
        let (open, gate) = oneshot::channel::<()>();
        let task = rt.queue().host_task(gate).unwrap();
        let x = rt.buffer::<u32>(LEN).unwrap();
        let _ = rt.queue().submit(scale.launch(LEN).args((2u32, &x)).after(&task)).unwrap();
        let error = rt.drain_timeout(Duration::from_millis(1)).await.expect_err("a task waits");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert!(error.to_string().contains("a host task of queue"), "{error}");
        open.send(()).unwrap();
        rt.drain_timeout(TIME_LIMIT).await.unwrap();
        let pause = simulator.pause();
        let _ = rt.queue().submit(scale.launch(LEN).args((2u32, &x))).unwrap();
        let error = rt.drain_timeout(Duration::ZERO).await.expect_err("the device hangs");
        assert!(error.to_string().contains("a launch of `scale`"), "{error}");
        drop(pause);
        rt.drain_timeout(Duration::MAX).await.unwrap();
    });
}

/// Collects the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn long_waits_are_logged_once_with_their_cause() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    // This is the only test of the suite that reads the log.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let rt = block_on(runtime(&Simulator::new()));
    let (open, gate) = oneshot::channel::<()>();
    let queue = rt.queue();
    let task = queue.host_task(gate).unwrap();
    let marker = queue.marker().unwrap();
    let waits = thread::spawn(move || marker.wait());
    let drained = rt.clone();
    let drains = thread::spawn(move || block_on(drained.drain()));
    let text = || String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for what in ["`drain` has been waiting", "`Event::wait` has been waiting"] {
        eventually("both waits are logged", || text().contains(what));
    }
    open.send(()).unwrap();
    task.wait().unwrap();
    waits.join().unwrap().unwrap();
    drains.join().unwrap();
    for what in ["`drain` has been waiting", "`Event::wait` has been waiting"] {
        assert_eq!(text().matches(what).count(), 1, "{}", text());
    }
    assert!(text().contains("a host task of queue"), "{}", text());

    // Many waits: searching for the cause of each would take too long.
    let (open, gate) = oneshot::channel::<()>();
    let task = rt.queue().host_task(gate).unwrap();
    let many = thread::spawn(move || block_on(join_all((0..50).map(|_| rt.drain()))));
    eventually("other waits are counted", || text().contains("other calls have been waiting"));
    assert!(text().matches("`drain` has been waiting").count() < 10, "{}", text());
    open.send(()).unwrap();
    task.wait().unwrap();
    many.join().unwrap();
}
