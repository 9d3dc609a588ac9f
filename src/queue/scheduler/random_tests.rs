//! Random commands, fusion scopes and faults, compared with a model. In any order, each read returns what
//! the commands before it wrote, every future ends, and nothing is leaked.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use std::fmt::Write as _;
use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use futures_lite::future::{block_on, or, yield_now};
use smallvec::SmallVec;

use super::{self as scheduler, AbortReason, FusedLaunch};
use crate::args::buffer::Buffer;
use crate::backend::simulated::{Fault, Simulator};
use crate::build_graph::Kernel;
use crate::error::{Error, ErrorKind, Result};
use crate::queue::accesses::{CombinedAccesses, Repeated};
use crate::queue::command::GroupId;
use crate::queue::launch_work::LaunchWork;
use crate::queue::{Event, Queue, Read, Status};
use crate::runtime::Runtime;
use crate::source::module::Module;

/// Number of elements in a unit; parts of buffers consist of whole units.
const UNIT: usize = 32;
const UNITS: usize = 4;
const BUFFERS: usize = 3;

/// Maximum number of launches that run as one.
const MAX_FUSED: usize = 3;

/// Time limit, longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of seeds to try, unless `KILN_TEST_SEEDS` gives another number.
const SEEDS: u64 = 200;

/// Computes the result of a launch: `to` from `from` alone if `number` is even, otherwise from both.
fn apply(number: u32, from: &[u32], to: &mut [u32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = match number % 2 {
            0 => from.wrapping_mul(5).wrapping_add(number),
            _ => to.wrapping_mul(3).wrapping_add(*from).wrapping_add(number),
        };
    }
}

/// Creates a device with one kernel for each number of launches that may run as one.
fn simulator(rng: &mut Rng) -> Simulator {
    let simulator = if rng.u8(..5) == 0 { Simulator::immediate() } else { Simulator::new() };
    let simulator = if rng.bool() { simulator.omitting_events() } else { simulator };
    for count in 1..=MAX_FUSED {
        simulator.kernel(format!("apply_{count}"), move |call| {
            if fastrand::bool() {
                thread::sleep(Duration::from_micros(fastrand::u64(..400)));
            }
            for at in (0..3 * count).step_by(3) {
                let mut to = call.read(at + 2);
                apply(call.value(at), &call.read::<u32>(at + 1), &mut to);
                call.write(at + 2, &to);
            }
        });
    }
    simulator
}

fn source() -> String {
    let parameters = |at| format!("uint n{at}, global const uint *from{at}, global uint *to{at}");
    (1..=MAX_FUSED).fold(String::new(), |mut text, count| {
        let parameters: Vec<_> = (0..count).map(parameters).collect();
        writeln!(text, "kernel void apply_{count}({}) {{}}", parameters.join(", ")).unwrap();
        text
    })
}

/// Scope that is open, or closed and not decided yet.
struct Scope {
    id: GroupId,
    is_open: bool,
    launches: usize,
}

/// Number of a buffer, and a range of its elements.
type Part = (usize, Range<usize>);

/// The work of each command, in the order of submission.
enum Step {
    Set(Part, Vec<u32>),
    Copy(Part, Part),
    /// Launch with its number and parts, and the position of its event.
    Launch(u32, Part, Part, usize),
    /// Reads a part. Reads are numbered in the order of their steps.
    Read(Part),
}

struct Case {
    rng: Rng,
    has_faults: bool,
    /// Whether commands are canceled.
    has_cancels: bool,
    simulator: Simulator,
    rt: Runtime,
    queue: Queue,
    /// Kernels; the one at index `n` stands for `n + 1` launches.
    kernels: Vec<Kernel>,
    buffers: Vec<Buffer<u32>>,
    /// The contents of the buffers before the first step.
    model: Vec<Vec<u32>>,
    steps: Vec<Step>,
    scopes: Vec<Scope>,
    next_scope: u64,
    events: Vec<Event>,
    /// Errors of the canceled commands.
    canceled: Vec<Error>,
    reads: Vec<Read<u32>>,
    log: String,
}

impl Case {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let simulator = simulator(&mut rng);
        let most = NonZeroUsize::new([1, 2, 3, 100][rng.usize(..4)]).unwrap();
        let builder = Runtime::builder().max_in_flight(most).profiling(rng.bool());
        let rt = block_on(builder.simulator(&simulator).build()).unwrap();
        let program = block_on(rt.build(&Module::opencl_c(source())).into_future()).unwrap();
        // SAFETY: closures stay inside their arguments.
        let kernel = |count| unsafe { program.kernel(&format!("apply_{count}")) }.unwrap();
        let kernels = (1..=MAX_FUSED).map(kernel).collect();
        let model: Vec<Vec<u32>> =
            (0..BUFFERS).map(|_| (0..UNITS * UNIT).map(|_| rng.u32(..)).collect()).collect();
        let upload = |elements: &Vec<u32>| block_on(rt.buffer_from(elements.clone())).unwrap();
        let buffers = model.iter().map(upload).collect();
        Self {
            rng,
            has_faults: seed % 2 == 1,
            has_cancels: seed % 4 >= 2,
            simulator,
            queue: rt.queue(),
            rt,
            kernels,
            buffers,
            model,
            steps: Vec::new(),
            scopes: Vec::new(),
            // The ids of real scopes begin at one.
            next_scope: 1 << 32,
            events: Vec::new(),
            canceled: Vec::new(),
            reads: Vec::new(),
            log: format!("seed {seed}, {most} in flight\n"),
        }
    }

    fn part(&mut self, units: usize) -> Part {
        let start = self.rng.usize(..=UNITS - units);
        (self.rng.usize(..BUFFERS), start * UNIT..(start + units) * UNIT)
    }

    /// Returns two parts of the same size that do not overlap.
    fn two_parts(&mut self) -> [Part; 2] {
        let units = self.rng.usize(1..=2);
        loop {
            let [from, to] = [self.part(units), self.part(units)];
            if from.0 != to.0 || from.1.end <= to.1.start || to.1.end <= from.1.start {
                return [from, to];
            }
        }
    }

    fn slice(&self, (buffer, range): &Part) -> Buffer<u32> {
        self.buffers[*buffer].slice(range.clone()).unwrap()
    }

    /// Applies all steps to the model, except for launches that were refused. Returns the expected
    /// results of the reads.
    fn replay(&mut self, is_refused: impl Fn(usize) -> bool) -> Vec<Vec<u32>> {
        let (model, mut read) = (&mut self.model, Vec::new());
        for step in std::mem::take(&mut self.steps) {
            let (to, values) = match step {
                Step::Set(to, values) => (to, values),
                Step::Copy((buffer, range), to) => (to, model[buffer][range].to_vec()),
                Step::Launch(.., event) if is_refused(event) => continue,
                Step::Launch(number, from, to, _) => {
                    let mut values = model[to.0][to.1.clone()].to_vec();
                    apply(number, &model[from.0][from.1], &mut values);
                    (to, values)
                }
                Step::Read((buffer, range)) => {
                    read.push(model[buffer][range].to_vec());
                    continue;
                }
            };
            model[to.0][to.1].copy_from_slice(&values);
        }
        read
    }

    fn note(&mut self, what: impl std::fmt::Debug) {
        writeln!(self.log, "{what:?}").unwrap();
    }

    fn step(&mut self) {
        if self.has_faults && self.rng.u8(..10) == 0 {
            match self.rng.usize(..4) {
                0 => self.simulator.fail_enqueues(1, Fault::OutOfResources),
                1 => self.simulator.fail_enqueues(1, Fault::Refused),
                at => {
                    let kernel = format!("apply_{}", at - 1);
                    self.simulator.fail_launches(&kernel, 1, Fault::OutOfResources);
                }
            }
            self.note("a fault to come");
        }
        if self.has_cancels && self.rng.u8(..6) == 0 {
            self.cancel();
        }
        match self.rng.u8(..100) {
            0..24 => self.transfer(),
            24..32 => self.copy(),
            32..36 => self.events.push(self.queue.marker().unwrap()),
            36..40 => {
                let fails = self.has_faults && self.rng.u8(..4) == 0;
                let task = async move { if fails { Err("it was set to fail") } else { Ok(()) } };
                self.events.push(self.queue.host_task(task).unwrap());
                self.note(("host task", fails));
            }
            40..46 => self.poll_or_wait(),
            46..60 => self.scope(),
            _ => self.launch(),
        }
    }

    fn transfer(&mut self) {
        let units = self.rng.usize(1..=UNITS);
        let part = self.part(units);
        let slice = self.slice(&part);
        match self.rng.u8(..3) {
            0 => {
                let values: Vec<u32> = part.1.clone().map(|_| self.rng.u32(..)).collect();
                self.steps.push(Step::Set(part.clone(), values.clone()));
                self.events.push(self.queue.write(&slice, values).unwrap());
                self.note(("write", part));
            }
            1 => {
                let value = self.rng.u32(..);
                self.steps.push(Step::Set(part.clone(), vec![value; slice.len()]));
                self.events.push(self.queue.fill(&slice, value).unwrap());
                self.note(("fill", part));
            }
            _ => {
                let read = self.queue.read(&slice);
                // Some reads are dropped at once.
                if self.rng.u8(..4) > 0 {
                    self.reads.push(read);
                    self.steps.push(Step::Read(part.clone()));
                }
                self.note(("read", part));
            }
        }
    }

    fn copy(&mut self) {
        let [from, to] = self.two_parts();
        self.steps.push(Step::Copy(from.clone(), to.clone()));
        let [source, target] = [&from, &to].map(|part| self.slice(part));
        self.events.push(self.queue.copy(&source, &target).unwrap());
        self.note(("copy", from, to));
    }

    /// Polls a random event once, or waits for it.
    fn poll_or_wait(&mut self) {
        let Some(event) = self.rng.choice(&self.events).cloned() else { return };
        if self.rng.bool() {
            let _ = pin!(event).poll(&mut Context::from_waker(Waker::noop()));
            return self.note("poll");
        }
        self.note("wait");
        // A scope that is closed and not decided yet waits for this thread.
        for scope in self.scopes.extract_if(.., |scope| !scope.is_open).collect::<Vec<_>>() {
            self.decide(&scope);
        }
        let _ = self.within("an event", event);
    }

    /// Cancels one of the latest commands, if the device does not have it yet.
    fn cancel(&mut self) {
        let latest = self.events.len().saturating_sub(6);
        let Some(event) = self.rng.choice(&self.events[latest..]).cloned() else { return };
        let is_canceled = event.cancel();
        if is_canceled {
            let Status::Failed(error) = event.status() else { panic!("{event:?}\n{}", self.log) };
            assert_eq!(error.kind(), ErrorKind::Canceled, "{}", self.log);
            assert!(!event.cancel(), "it was canceled twice\n{}", self.log);
            self.canceled.push(error);
        }
        self.note(("cancel", is_canceled));
    }

    fn launch(&mut self) {
        let [from, to] = self.two_parts();
        let number = self.rng.u32(..100);
        self.steps.push(Step::Launch(number, from.clone(), to.clone(), self.events.len()));
        let [source, target] = [&from, &to].map(|part| self.slice(part));
        let launch = self.kernels[0].launch(target.len());
        let mut launch = match number % 2 {
            0 => launch.args((number, &source, target.write_only())),
            _ => launch.args((number, &source, &target)),
        };
        if self.rng.u8(..8) == 0
            && let Some(event) = self.rng.choice(&self.events)
        {
            launch = launch.after(event);
        }
        if self.rng.u8(..20) == 0 {
            launch = launch.after_future(yield_now());
        }
        let open: Vec<_> = self.scopes.iter_mut().filter(|scope| scope.is_open).collect();
        let at = self.rng.usize(..2 * open.len().max(1));
        let group = open.get(at).map(|scope| scope.id);
        self.events.push(self.queue.submit_to(launch, group).unwrap());
        self.note(("launch", number, from, to, group));
    }

    /// Opens a scope, or moves one to its next stage.
    fn scope(&mut self) {
        if self.scopes.len() < 2 || self.scopes.len() < 4 && self.rng.bool() {
            let id = GroupId(NonZeroU64::MIN.saturating_add(self.next_scope));
            self.next_scope += 1;
            self.queue.scheduler.open_group(id, self.queue.number, AbortReason::default());
            self.scopes.push(Scope { id, is_open: true, launches: 0 });
            return self.note(("open", id));
        }
        let at = self.rng.usize(..self.scopes.len());
        let mut scope = self.scopes.swap_remove(at);
        if !scope.is_open {
            return self.decide(&scope);
        }
        if self.has_faults && self.rng.u8(..8) == 0 {
            self.queue.scheduler.discard_group(scope.id);
            return self.note(("discard", scope.id));
        }
        let closed = self.queue.scheduler.close_group(scope.id, |launches| launches.len());
        self.note(("close", scope.id, closed));
        // `None` if another command needed one of the scope's launches.
        let Some((count, _)) = closed else { return };
        (scope.is_open, scope.launches) = (false, count);
        match self.rng.u8(..3) {
            0 => self.scopes.push(scope),
            _ => self.decide(&scope),
        }
    }

    fn decide(&mut self, scope: &Scope) {
        if self.has_faults && self.rng.bool() {
            self.simulator.fail_enqueues(1, Fault::OutOfResources);
        }
        if scope.launches < 2 || self.rng.u8(..5) == 0 {
            self.queue.scheduler.run_separately(scope.id, None);
            return self.note(("one by one", scope.id));
        }
        let mut parts: Vec<Vec<usize>> = Vec::new();
        for launch in 0..scope.launches {
            match parts.last_mut() {
                Some(part) if part.len() < MAX_FUSED && self.rng.u8(..4) > 0 => part.push(launch),
                _ => parts.push(vec![launch]),
            }
        }
        let prepare = |launches: &[&LaunchWork]| {
            let parts = parts.iter().map(|part| {
                let own: Vec<_> = part.iter().map(|&at| launches[at]).collect();
                let given = own.iter().flat_map(|launch| &launch.arguments);
                let kernel = self.kernels[own.len() - 1].clone();
                let arguments = given.cloned().collect();
                let launch = Box::new(LaunchWork::new(kernel, own[0].range, arguments));
                let none = Repeated { launches: &[], results: &[] };
                let accesses = Arc::new(CombinedAccesses::of(&own, none, &launch, &[]));
                let fused = FusedLaunch { launch, accesses, lost: SmallVec::new() };
                scheduler::Part {
                    launches: part.iter().copied().collect(),
                    fused: (own.len() > 1).then_some(Ok(fused)),
                    stopwatch: None,
                }
            });
            parts.collect()
        };
        let ran = self.queue.scheduler.run_in_parts(scope.id, prepare);
        let ran = ran.map_err(|blocker| blocker.to_string());
        self.note(("in parts", scope.id, &parts, format!("{ran:?}")));
    }

    /// Returns the output of the future. Panics if the future takes longer than `PATIENCE`.
    fn within<T>(&self, what: &str, future: impl Future<Output = T>) -> T {
        let limit = async {
            crate::executor::pause(PATIENCE).await.expect("there is a thread");
            panic!("{what} never ends\n{}", self.log);
        };
        block_on(or(future, limit))
    }

    fn check<T>(&self, what: &str, outcome: Result<T>) -> Option<T> {
        match outcome {
            Err(error) if self.canceled.iter().any(|canceled| canceled.same(&error)) => None,
            Err(error) if !self.has_faults => panic!("{what}: {error}\n{}", self.log),
            outcome => outcome.ok(),
        }
    }

    fn end(mut self) {
        for scope in std::mem::take(&mut self.scopes) {
            let seen = |launches: &[&LaunchWork]| launches.len();
            if !scope.is_open || self.queue.scheduler.close_group(scope.id, seen).is_some() {
                self.queue.scheduler.run_separately(scope.id, None);
            }
        }
        let mut read = Vec::new();
        for future in std::mem::take(&mut self.reads) {
            let outcome = self.within("a read", future);
            read.push(self.check("a read", outcome));
        }
        let mut refused = Vec::new();
        for event in std::mem::take(&mut self.events) {
            let outcome = self.within("an event", event);
            // Other failures are for lack of resources, or follow from a refused launch and say so.
            refused.push(outcome.as_ref().is_err_and(|error| {
                error.kind() == ErrorKind::Driver && !error.message().contains("not run")
            }));
            self.check("an event", outcome);
        }
        let expected = self.replay(|event| refused[event]);
        for (found, expected) in read.into_iter().zip(expected) {
            assert!(found.is_none_or(|found| found == expected), "{}", self.log);
        }
        self.within("`drain`", self.rt.drain());
        for (buffer, expected) in self.buffers.iter().zip(&self.model) {
            for at in (0..UNITS * UNIT).step_by(UNIT) {
                let slice = buffer.slice(at..at + UNIT).unwrap();
                let outcome = self.within("the last read", self.queue.read(&slice).into_future());
                if let Some(found) = self.check("the last read", outcome) {
                    assert_eq!(found, expected[at..at + UNIT], "{}", self.log);
                }
            }
        }
        self.within("`drain`", self.rt.drain());
        assert_eq!(self.rt.stats().commands.in_flight, 0, "{}", self.log);
        let (simulator, log) = (self.simulator.clone(), std::mem::take(&mut self.log));
        drop(self);
        let since = Instant::now();
        loop {
            let counts = simulator.counts();
            if (counts.live_allocations, counts.live_events, counts.live_programs) == (0, 0, 0) {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "{counts:?} is kept\n{log}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn reads_in_random_schedules_return_what_was_written_before() {
    let seeds = std::env::var("KILN_TEST_SEEDS").ok().and_then(|count| count.parse().ok());
    for seed in 0..seeds.unwrap_or(SEEDS) {
        let mut case = Case::new(seed);
        for _ in 0..case.rng.usize(10..60) {
            case.step();
        }
        case.end();
    }
}
