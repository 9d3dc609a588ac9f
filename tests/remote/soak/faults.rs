//! The faults, one after the other, in an order and for times that follow from a seed.

use std::fs;
use std::ops::Range;
use std::process::ExitStatus;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use support::build_locks::stop_while_it_builds;
use support::children::Child;
use support::signals::{Stopped, children};
use support::stores;

use super::HANGS;
use super::folder::Folder;
use super::records::Clock;
use super::service::{HOLDER, SERVICE};
use crate::machines::proxy::{Mode, Proxy};
use crate::machines::services::Redis;

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The service has no or few descriptors left.
    Descriptors,
    /// The disk takes long to write what is synchronized.
    SlowDisk,
    /// The disk of the store is full.
    FullDisk,
    /// A process is stopped that builds programs for the store, and that the service requests as well.
    StoppedHolder,
    /// The remote cache is stopped.
    StoppedRedis,
    /// The connections to the remote cache hang, are slow, or end.
    Network,
    /// A process that compiles is killed, or stopped.
    CompileProcess,
}

impl Fault {
    pub(super) const ALL: [Self; 7] = [
        Self::Descriptors,
        Self::SlowDisk,
        Self::FullDisk,
        Self::StoppedHolder,
        Self::StoppedRedis,
        Self::Network,
        Self::CompileProcess,
    ];
}

/// A fault that has been, and its time.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    pub(super) fault: Fault,
    pub(super) time: Range<Duration>,
}

/// Times of the faults.
pub(super) struct Pace {
    /// Milliseconds of a fault, and between two faults.
    pub(super) fault: Range<u64>,
    pub(super) rest: Range<u64>,
    /// Milliseconds that a call takes that synchronizes a file with a slow disk. The last calls end after the fault.
    pub(super) slow: u64,
    /// Number of programs that the service requests at once at the beginning of each fault, and before a compile process
    /// is killed.
    pub(super) requested: u32,
    pub(super) compiled: u32,
}

/// Number of programs that the other process builds when it is to be stopped.
const HELD: u32 = 8;

/// Time limit for the other process to start a build.
const BUILDS: Duration = Duration::from_secs(20);

/// Numbers of the programs that faults request. Each is requested in one fault.
const FIRST: u32 = 100_000;

/// A process whose output is read.
pub(super) struct Process {
    id: u32,
    output: JoinHandle<(ExitStatus, String)>,
}

impl Process {
    pub(super) fn new(child: Child, limit: Duration) -> Self {
        let (id, child) = (child.id(), child.allowing(limit));
        Self { id, output: thread::spawn(move || child.status_and_output()) }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.output.is_finished()
    }

    pub(super) fn status_and_output(self) -> (ExitStatus, String) {
        self.output.join().expect("it ends")
    }
}

/// Causes the faults of a service.
pub(super) struct Disturber<'a> {
    pub(super) rng: Rng,
    pub(super) pace: Pace,
    pub(super) clock: &'a Clock,
    pub(super) folder: &'a Folder,
    pub(super) redis: &'a Redis,
    pub(super) proxy: &'a Proxy,
    pub(super) service: &'a Process,
    pub(super) holder: &'a Process,
    /// Number of descriptors that are left in a fault.
    pub(super) descriptors: Range<u64>,
    /// Faults so far.
    pub(super) intervals: Vec<Interval>,
    /// Number of programs that faults requested.
    pub(super) requested: u32,
}

impl Disturber<'_> {
    /// Causes faults of these kinds for a time, and at least one of each kind. Everything works again afterwards.
    pub(super) fn run(&mut self, faults: &[Fault], duration: Duration) {
        let since = Instant::now();
        let mut left = Vec::new();
        let mut rounds = 0;
        while !self.has_ended() {
            if left.is_empty() {
                rounds += 1;
                left = faults.to_vec();
                self.rng.shuffle(&mut left);
            }
            let is_over = since.elapsed() >= duration;
            if is_over && (rounds > 1 || left.is_empty()) {
                break;
            }
            let rest = self.rng.u64(self.pace.rest.clone());
            self.sleep(rest);
            if let Some(fault) = left.pop() {
                self.cause(fault);
            }
        }
        self.sleep(self.pace.rest.end.max(1000));
    }

    fn has_ended(&self) -> bool {
        self.service.has_ended() || self.holder.has_ended()
    }

    /// Sleeps for a time, or until one of the processes ends.
    fn sleep(&self, milliseconds: u64) {
        let until = Instant::now() + Duration::from_millis(milliseconds);
        while Instant::now() < until && !self.has_ended() {
            thread::sleep(Duration::from_millis(20).min(until - Instant::now()));
        }
    }

    fn cause(&mut self, fault: Fault) {
        let milliseconds = self.rng.u64(self.pace.fault.clone());
        // The programs are requested before, so that processes compile some of them.
        if fault == Fault::CompileProcess {
            self.request_new(SERVICE, self.pace.compiled);
            self.wait_for_compile_process(milliseconds);
        }
        let begin = self.clock.now();
        match fault {
            Fault::Descriptors => {
                let left = self.rng.u64(self.descriptors.clone());
                self.with_file("descriptors", &left.to_string(), milliseconds);
            }
            Fault::SlowDisk => self.with_file("slow", "", milliseconds),
            Fault::FullDisk => self.with_file("full", "", milliseconds),
            Fault::StoppedHolder => return self.stop_holder(milliseconds),
            Fault::StoppedRedis => {
                let _stopped = Stopped::new(pid(self.redis.process()));
                self.request_and_sleep(milliseconds);
            }
            Fault::Network => {
                let slow = Mode::Slow(Duration::from_millis(self.rng.u64(50..1500)));
                let modes = [Mode::Hangs, Mode::Mutes, Mode::Cuts, Mode::Truncates(100), slow];
                self.proxy.set(modes[self.rng.usize(..modes.len())]);
                self.request_and_sleep(milliseconds);
                self.proxy.set(Mode::Passes);
            }
            Fault::CompileProcess => self.end_compile_process(milliseconds),
        }
        self.add(fault, begin);
    }

    fn add(&mut self, fault: Fault, begin: Duration) {
        self.intervals.push(Interval { fault, time: begin..self.clock.now() });
    }

    /// Causes a fault that lasts as long as a file exists.
    fn with_file(&mut self, name: &str, contents: &str, milliseconds: u64) {
        let path = self.folder.file(name);
        fs::write(&path, contents).expect("there is space");
        self.request_and_sleep(milliseconds);
        fs::remove_file(&path).expect("it is there");
    }

    /// Makes the service request some programs that no process has requested, and sleeps.
    fn request_and_sleep(&mut self, milliseconds: u64) {
        self.request_new(SERVICE, self.pace.requested);
        self.sleep(milliseconds);
    }

    /// Makes a process request programs that no process has requested.
    fn request_new(&mut self, name: &str, count: u32) -> Range<u32> {
        let first = FIRST + self.requested;
        self.requested += count;
        let programs = first..first + count;
        self.folder.write_order(name, &programs);
        programs
    }

    /// Stops the other process while it builds programs that the service requests then.
    fn stop_holder(&mut self, milliseconds: u64) {
        let store = stores::open(self.folder.store());
        let deadline = Instant::now() + BUILDS;
        let (programs, stopped) = loop {
            if self.has_ended() {
                return;
            }
            assert!(Instant::now() < deadline, "the other process does not build programs");
            let programs = self.request_new(HOLDER, HELD);
            // It may have built all of them before it could be stopped.
            let soon = Instant::now() + Duration::from_secs(2);
            if let Some(stopped) = stop_while_it_builds(&store, self.holder.id, soon) {
                break (programs, stopped);
            }
        };
        let begin = self.clock.now();
        self.folder.write_order(SERVICE, &programs);
        self.sleep(milliseconds);
        drop(stopped);
        self.add(Fault::StoppedHolder, begin);
    }

    /// Waits up to a time until a process compiles for the service, and a little longer.
    fn wait_for_compile_process(&mut self, milliseconds: u64) {
        let until = Instant::now() + Duration::from_millis(milliseconds);
        while self.compile_processes().is_empty() && Instant::now() < until {
            self.sleep(10);
        }
        let some = self.rng.u64(..150);
        self.sleep(some);
    }

    fn compile_processes(&self) -> Vec<Pid> {
        children(self.service.id, &["kiln"])
    }

    /// Kills a process that compiles, or stops it for a time. A program that is lost with two processes fails, so only
    /// one is killed.
    fn end_compile_process(&mut self, milliseconds: u64) {
        let process = self.rng.choice(self.compile_processes());
        let mut stopped = None;
        match process {
            Some(process) if self.rng.bool() => stopped = Stopped::new(process),
            // It may have ended meanwhile.
            Some(process) => _ = kill_process(process, Signal::KILL),
            None => {}
        }
        self.sleep(milliseconds);
        drop(stopped);
    }
}

impl Drop for Disturber<'_> {
    fn drop(&mut self) {
        // Ends the processes, also if this test fails. The folder may be gone.
        let _ = fs::remove_file(self.folder.running());
    }
}

fn pid(process: u32) -> Pid {
    Pid::from_raw(process.cast_signed()).expect("it is a process")
}

/// Waits until processes make their requests.
pub(super) fn wait_until_ready(folder: &Folder, processes: &[(&str, &Process)]) {
    let since = Instant::now();
    for (name, process) in processes {
        while !folder.ready(name).exists() && !process.has_ended() {
            assert!(since.elapsed() < HANGS, "the {name} does not start");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
