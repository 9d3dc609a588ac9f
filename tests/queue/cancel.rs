//! Cancellation of commands: those that the device was not given never run, and everything that depends on them
//! fails with them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]
#![allow(clippy::let_underscore_future, reason = "commands run without being awaited")]

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use futures::FutureExt;
use futures::channel::oneshot;
use futures::executor::block_on;
use kiln::commands::Status;
use kiln::simulated::{Pause, Simulator};
use kiln::{Buffer, Error, ErrorKind, Event, FusionScope, Kernel, Launch, Module, Queue, Runtime};
use support::simulation::{assert_at_rest, eventually, runtime_with};

const SOURCE: &str = "kernel void mark(uint number, global const uint *from, global uint *to) {}";

/// Numbers of the launches that ran.
type Ran = Arc<Mutex<BTreeSet<u32>>>;

/// Simulated device with a kernel that notes the number of each launch.
struct Bench {
    simulator: Simulator,
    rt: Runtime,
    queue: Queue,
    mark: Kernel,
    buffers: Vec<Buffer<u32>>,
    ran: Ran,
}

impl Bench {
    fn new(max_in_flight: usize) -> Self {
        let (simulator, ran) = (Simulator::new(), Ran::default());
        let noted = ran.clone();
        simulator.kernel("mark", move |call| {
            noted.lock().unwrap().insert(call.value(0));
            call.write(2, &call.read::<u32>(1));
        });
        block_on(async {
            let limit = NonZeroUsize::new(max_in_flight).unwrap();
            let rt = runtime_with(&simulator, Runtime::builder().max_in_flight(limit)).await;
            let program = rt.build(&Module::opencl_c(SOURCE)).await.unwrap();
            // SAFETY: the closure stays inside its arguments.
            let mark = unsafe { program.kernel("mark") }.unwrap();
            let buffers = (0..4).map(|at| rt.buffer_from(vec![at; 8]));
            let buffers = futures::future::try_join_all(buffers).await.unwrap();
            Self { simulator, queue: rt.queue(), rt, mark, buffers, ran }
        })
    }

    fn launch(&self, number: u32, from: usize, to: usize) -> Launch {
        let [from, to] = [from, to].map(|at| &self.buffers[at]);
        self.mark.launch(8).args((number, from, to))
    }

    fn submit(&self, launch: Launch) -> Event {
        self.queue.submit(launch).unwrap()
    }

    fn has_run(&self, number: u32) -> bool {
        self.ran.lock().unwrap().contains(&number)
    }

    /// Drops everything, and waits until the device holds nothing.
    fn end(self) {
        let Self { simulator, rt, queue, mark, buffers, ran: _ } = self;
        block_on(rt.drain());
        assert_eq!(rt.stats().commands.in_flight, 0);
        drop((rt, queue, mark, buffers));
        assert_at_rest(&simulator);
    }
}

/// Returns the error with which a command was canceled.
fn cancel(event: &Event) -> Error {
    assert!(event.cancel(), "it was not canceled: {event:?}");
    let Status::Failed(error) = event.status() else { panic!("{event:?}") };
    assert_eq!(error.kind(), ErrorKind::Canceled);
    error
}

#[test]
fn a_launch_that_waits_for_a_host_future_never_runs() {
    let bench = Bench::new(100);
    let (approve, approved) = oneshot::channel::<()>();
    let launch = bench.submit(bench.launch(1, 0, 1).after_future(approved));
    let waiting = launch.clone();
    let waiter = thread::spawn(move || waiting.wait());
    let dependent = bench.submit(bench.launch(2, 1, 2));
    let independent = bench.submit(bench.launch(3, 0, 3));
    let error = cancel(&launch);
    assert_eq!(error.to_string(), "canceled: `mark` was canceled before the device was given it");
    assert!(waiter.join().unwrap().unwrap_err().same(&error));
    let effect = block_on(dependent).unwrap_err();
    assert!(effect.same(&error) && effect.to_string().contains("was not run"), "{effect}");
    block_on(independent).unwrap();
    eventually("its future is dropped", || approve.is_canceled());
    assert!(block_on(bench.queue.read(&bench.buffers[1])).unwrap_err().same(&error));
    assert_eq!(*bench.ran.lock().unwrap(), BTreeSet::from([3]));
    assert_eq!((bench.rt.stats().commands.canceled, bench.rt.stats().commands.failed), (1, 3));
    // The contents are missing until they are overwritten.
    block_on(bench.queue.write(&bench.buffers[1], vec![7; 8]).unwrap()).unwrap();
    assert_eq!(block_on(bench.queue.read(&bench.buffers[1])).unwrap(), [7; 8]);
    bench.end();
}

#[test]
fn waiters_get_the_error_although_the_command_before_never_ends() {
    let bench = Bench::new(100);
    let (approve, approved) = oneshot::channel::<()>();
    let first = bench.submit(bench.launch(1, 0, 1).after_future(approved));
    let second = bench.submit(bench.launch(2, 1, 2));
    let third = bench.submit(bench.launch(3, 2, 3));
    let error = cancel(&second);
    assert!(block_on(second.clone()).unwrap_err().same(&error));
    assert!(!second.cancel(), "it was canceled by another call");
    // The third one is behind the first.
    assert!(third.clone().now_or_never().is_none());
    approve.send(()).unwrap();
    block_on(first).unwrap();
    assert!(block_on(third).unwrap_err().same(&error));
    assert_eq!(*bench.ran.lock().unwrap(), BTreeSet::from([1]));
    bench.end();
}

#[test]
fn commands_that_the_device_has_are_not_affected() {
    let bench = Bench::new(2);
    let pause: Pause = bench.simulator.pause();
    let events = [(1, 1), (2, 2), (3, 3), (4, 2)]
        .map(|(number, to)| bench.submit(bench.launch(number, 0, to)));
    assert!(matches!(events[0].status(), Status::Enqueued));
    assert!(!events[0].cancel() && !events[1].cancel());
    // The device has no room for these.
    cancel(&events[2]);
    drop(pause);
    let ended: Vec<_> = events.iter().map(|event| block_on(event.clone()).is_ok()).collect();
    assert_eq!(ended, [true, true, false, true]);
    assert!(events.iter().all(|event| !event.cancel()), "they have ended");
    assert_eq!(*bench.ran.lock().unwrap(), BTreeSet::from([1, 2, 4]));
    bench.end();
}

#[test]
fn a_host_task_is_canceled_only_before_it_starts() {
    let bench = Bench::new(100);
    let (begun, has_begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let first = bench.queue.host_task(async move {
        begun.send(()).unwrap();
        released.recv().unwrap();
    });
    let owned = Arc::new(());
    let kept = Arc::downgrade(&owned);
    let second = bench.queue.host_task(async move { drop(owned) }).unwrap();
    has_begun.recv().unwrap();
    let first = first.unwrap();
    assert!(!first.cancel(), "it has started");
    let error = cancel(&second);
    assert_eq!(error.to_string(), "canceled: a host task was canceled before it started");
    let after = bench.submit(bench.launch(1, 0, 1).after(&second));
    assert!(block_on(after).unwrap_err().same(&error));
    release.send(()).unwrap();
    block_on(first).unwrap();
    eventually("its future is dropped", || kept.strong_count() == 0);
    bench.end();
}

#[test]
fn a_canceled_launch_of_a_scope_does_not_affect_the_others() {
    let bench = Bench::new(100);
    let scope = bench.queue.start_fusion();
    let events = [(1, 0, 1), (2, 0, 2), (3, 1, 3)]
        .map(|(number, from, to)| scope.submit(bench.launch(number, from, to)).unwrap());
    let error = cancel(&events[0]);
    assert!(scope.is_fusing(), "the scope still collects");
    let last = scope.submit(bench.launch(4, 2, 0)).unwrap();
    let completed = block_on(scope.complete()).unwrap_err();
    assert!(
        completed.same(&error) && completed.to_string().contains("`mark` was canceled"),
        "{completed}"
    );
    block_on(events[1].clone()).unwrap();
    assert!(block_on(events[2].clone()).unwrap_err().same(&error));
    block_on(last).unwrap();
    assert_eq!(*bench.ran.lock().unwrap(), BTreeSet::from([2, 4]));
    drop(scope);
    bench.end();
}

#[test]
fn a_launch_whose_program_is_being_built_is_canceled() {
    let bench = Bench::new(100);
    let compiler = bench.simulator.pause_builds();
    let module = Module::opencl_c(format!("{SOURCE} kernel void other(uint number) {{}}"));
    let build = bench.rt.build(&module).start();
    // SAFETY: the closure stays inside its arguments.
    let mark = unsafe { build.kernel("mark") };
    let launch = mark.launch(8).args((9u32, &bench.buffers[0], &bench.buffers[1]));
    let event = bench.submit(launch);
    let error = cancel(&event);
    assert!(block_on(event).unwrap_err().same(&error));
    drop(compiler);
    block_on(build).unwrap();
    assert!(!bench.has_run(9));
    drop(mark);
    bench.end();
}

#[test]
fn commands_of_another_device_fail_with_the_canceled_one_and_ignore_its_time_limit() {
    let [near, far] = ["near", "far"].map(|name| Simulator::new().named(name));
    far.kernel("mark", |_| ());
    near.kernel("mark", |_| ());
    block_on(async {
        let rt = Runtime::builder().simulator(&near).simulator(&far).build().await.unwrap();
        let other = rt.on(&rt.devices()[1]).await.unwrap();
        let launch = async |rt: &Runtime| {
            let program = rt.build(&Module::opencl_c(SOURCE)).await.unwrap();
            // SAFETY: the closures do nothing.
            let mark = unsafe { program.kernel("mark") }.unwrap();
            let [from, to] = [(); 2].map(|()| rt.buffer::<u32>(8).unwrap());
            mark.launch(8).args((1u32, &from, &to))
        };
        let gates = [(); 2].map(|()| oneshot::channel::<()>());
        let [(approve, approved), (_never, never_approved)] = gates;
        // The limit of the first launch has passed, but the second one waits for its end.
        let first = launch(&rt).await.after_future(approved).timeout(Duration::ZERO);
        let first = rt.queue().submit(first).unwrap();
        let second = other.queue().submit(launch(&other).await.after(&first)).unwrap();
        assert_eq!(first.clone().await.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(second.clone().now_or_never().is_none());
        approve.send(()).unwrap();
        second.await.unwrap();
        let first = rt.queue().submit(launch(&rt).await.after_future(never_approved)).unwrap();
        let second = other.queue().submit(launch(&other).await.after(&first)).unwrap();
        let error = cancel(&first);
        assert!(second.await.unwrap_err().same(&error));
        rt.drain().await;
    });
    [near, far].iter().for_each(assert_at_rest);
}

/// Number of random DAGs.
const SEEDS: u64 = 400;

/// Command of a random DAG.
struct Command {
    event: Event,
    kind: Kind,
}

/// Kind of a command, with the positions of its buffers.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Launch that reads a buffer, and reads and writes another one. It may be ordered after a command.
    Launch { from: usize, to: usize, after: Option<usize> },
    /// Fill or write of a whole buffer.
    Overwrite(usize),
    /// Marker or host task.
    Other,
}

/// Returns which commands fail if those in `canceled` are canceled.
fn failures(commands: &[Command], canceled: &BTreeSet<usize>) -> Vec<bool> {
    let (mut failed, mut is_missing) = (Vec::new(), [false; 4]);
    for (at, Command { kind, .. }) in commands.iter().enumerate() {
        let is_canceled = canceled.contains(&at);
        failed.push(match *kind {
            Kind::Launch { from, to, after } => {
                let is_after_failed = after.is_some_and(|after| failed[after]);
                let fails = is_canceled || is_missing[from] || is_missing[to] || is_after_failed;
                is_missing[to] = fails;
                fails
            }
            Kind::Overwrite(to) => {
                is_missing[to] = is_canceled;
                is_canceled
            }
            Kind::Other => is_canceled,
        });
    }
    failed
}

/// Builder of a random DAG.
struct RandomDag<'a> {
    bench: &'a Bench,
    rng: Rng,
    commands: Vec<Command>,
    /// Gates that the host futures of commands wait for.
    gates: Vec<oneshot::Sender<()>>,
    scope: Option<FusionScope>,
}

impl RandomDag<'_> {
    /// Returns a future that completes when its gate is opened or dropped.
    fn gate(&mut self) -> impl Future<Output = ()> + Send + use<> {
        let (approve, approved) = oneshot::channel::<()>();
        self.gates.push(approve);
        approved.map(drop)
    }

    /// Submits a random command.
    fn submit(&mut self) {
        let (bench, number) = (self.bench, self.commands.len() as u32);
        let to = self.rng.usize(..4);
        let (event, kind) = match self.rng.u8(..20) {
            0 => (bench.queue.fill(&bench.buffers[to], number), Kind::Overwrite(to)),
            1 => (bench.queue.write(&bench.buffers[to], vec![number; 8]), Kind::Overwrite(to)),
            2 => (bench.queue.host_task(self.gate()), Kind::Other),
            3 => (bench.queue.marker(), Kind::Other),
            kind => {
                let from = (to + self.rng.usize(1..4)) % 4;
                let mut launch = bench.launch(number, from, to);
                if kind < 8 {
                    launch = launch.after_future(self.gate());
                }
                let is_ordered = kind % 2 == 0 && number > 0;
                let after = is_ordered.then(|| self.rng.usize(..number as usize));
                if let Some(after) = after {
                    launch = launch.after(&self.commands[after].event);
                }
                let scope = self.scope.as_ref().filter(|_| kind > 12);
                let event = match scope {
                    Some(scope) => scope.submit(launch),
                    None => bench.queue.submit(launch),
                };
                (event, Kind::Launch { from, to, after })
            }
        };
        self.commands.push(Command { event: event.unwrap(), kind });
    }

    /// Opens or closes a scope, or opens a gate.
    fn change(&mut self) {
        match (self.rng.u8(..8), &self.scope) {
            (0, _) => self.scope = Some(self.bench.queue.start_fusion()),
            (1, Some(scope)) => {
                drop(scope.complete());
                self.scope = None;
            }
            (2, _) => {
                // The future is dropped if its command was canceled.
                let _ = self.gates.pop().map(|gate| gate.send(()));
            }
            _ => {}
        }
    }
}

/// Runs a random DAG, and cancels commands while they are submitted and, on another thread, while they run. Returns
/// the number of launches that did not run.
fn run_random_dag(seed: u64) -> usize {
    let mut rng = Rng::with_seed(seed);
    let bench = Bench::new([1, 2, 100][rng.usize(..3)]);
    let pause = rng.bool().then(|| bench.simulator.pause());
    let has_racer = rng.bool();
    let (sender, receiver) = mpsc::channel::<(usize, Event)>();
    let racer = thread::spawn(move || {
        let canceled = receiver.into_iter().filter(|(_, event)| event.cancel());
        canceled.map(|(at, _)| at).collect::<BTreeSet<_>>()
    });
    let (commands, gates) = (Vec::new(), Vec::new());
    let mut dag = RandomDag { bench: &bench, rng, commands, gates, scope: None };
    let mut canceled = BTreeSet::new();
    for _ in 0..dag.rng.usize(3..40) {
        dag.submit();
        dag.change();
        if dag.rng.u8(..4) == 0 {
            let at = dag.rng.usize(..dag.commands.len());
            let event = &dag.commands[at].event;
            if has_racer {
                sender.send((at, event.clone())).unwrap();
            } else if event.cancel() {
                canceled.insert(at);
            }
        }
    }
    let RandomDag { commands, gates, scope, .. } = dag;
    drop((sender, scope, gates, pause));
    canceled.append(&mut racer.join().unwrap());
    let outcomes: Vec<_> = commands.iter().map(|command| block_on(command.event.clone())).collect();
    let roots: Vec<_> = canceled.iter().map(|&at| outcomes[at].clone().unwrap_err()).collect();
    assert!(roots.iter().all(|root| root.kind() == ErrorKind::Canceled), "seed {seed}");
    let expected = failures(&commands, &canceled);
    let mut lost = 0;
    for (at, (Command { kind, .. }, outcome)) in commands.iter().zip(&outcomes).enumerate() {
        let what = || format!("seed {seed}, command {at}, {kind:?}: {outcome:?}");
        assert_eq!(outcome.is_err(), expected[at], "{}", what());
        if let Err(error) = outcome {
            assert!(roots.iter().any(|root| root.same(error)), "{}", what());
        }
        if let Kind::Launch { .. } = kind {
            assert_eq!(bench.has_run(at as u32), outcome.is_ok(), "{}", what());
            lost += usize::from(outcome.is_err());
        }
    }
    drop(commands);
    bench.end();
    lost
}

#[test]
fn in_random_dags_each_command_runs_or_fails_with_a_canceled_one_before_it() {
    let lost: usize = (0..SEEDS).map(run_random_dag).sum();
    assert!(lost > SEEDS as usize, "only {lost} launches did not run");
}
