//! Processes of a suite: the test binary is started again to do one thing with a store while the system fails,
//! or while its system calls are traced.

use std::fs;
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{self, ChildStderr, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crate::log_recorder::LogRecorder;
use kiln::build::Origin;
use kiln::simulated::Simulator;
use kiln::store::Durability;
use kiln::{CacheConfig, ErrorKind, Module, Program, Runtime};
use serde::{Deserialize, Serialize};
use tracing::Level;

/// Environment variable with the order of a process that was started again.
const ORDER: &str = "KILN_TEST_ORDER";

/// Time after which a process counts as hanging.
const HANGS: Duration = Duration::from_secs(100);

/// Work of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Order {
    /// Directory of the store; `None` for the one in the environment.
    pub root: Option<PathBuf>,
    pub max_bytes: u64,
    pub strict: bool,
    /// Steps that run once the parent has prepared the system.
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Step {
    /// Builds a program, and waits until it is stored.
    Build(Sample),
    /// Collects the store.
    Collect,
    /// Makes a system call that no other code makes, as a mark in a trace.
    Mark,
    /// Deletes the root with all its contents.
    RemoveRoot,
    /// Places a file where the root was.
    BlockRoot,
    /// Fills the file system of the root.
    Fill,
    /// Counts the unfinished files that the store has left.
    Count,
}

/// A program that differs from all others in its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    pub number: u32,
    /// Minimum size of its binary in bytes.
    pub bytes: usize,
}

/// Result of an order.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Origin of each program.
    pub origins: Vec<String>,
    /// Programs that computed a wrong result.
    pub wrong: Vec<u32>,
    pub disk_failures: u64,
    pub disk_writes: u64,
    pub evictions: u64,
    pub unfinished: usize,
    pub warnings: Vec<String>,
}

impl Sample {
    fn name(self) -> String {
        format!("sample_{}", self.number)
    }

    pub fn module(self) -> Module {
        let (name, bytes) = (self.name(), self.bytes);
        Module::opencl_c(format!(
            "#pragma binary_size {bytes}\nkernel void {name}(global uint *x) {{}}"
        ))
    }

    /// Whether `program` computes the result of this sample.
    pub async fn is(self, rt: &Runtime, program: &Program) -> bool {
        // SAFETY: the kernel stays inside its buffer.
        let Ok(kernel) = (unsafe { program.kernel(&self.name()) }) else { return false };
        let x = rt.buffer_from(vec![0u32; 4]).await.expect("there is memory");
        let queue = rt.queue();
        queue.submit(kernel.launch(4).args((&x,))).expect("it fits");
        queue.read(&x).await.expect("it runs") == [self.number; 4]
    }
}

/// Starts the threads of the process that runtimes share, with a store of its own.
async fn start_threads() {
    let sample = Sample { number: 1, bytes: 1 };
    let root = tempfile::tempdir().expect("a directory can be created");
    let rt = runtime(CacheConfig::at(root.path()), [sample]).await;
    rt.build(&sample.module()).await.expect("it builds");
    rt.drain().await;
}

/// Creates a runtime whose simulated device computes the results of `samples`.
pub async fn runtime(cache: CacheConfig, samples: impl IntoIterator<Item = Sample>) -> Runtime {
    let simulator = Simulator::immediate();
    for sample in samples {
        simulator.kernel(sample.name(), move |call| call.write(0, &[sample.number; 4]));
    }
    // With one thread to compile on, the threads that a run starts do not depend on its timing.
    let builder = Runtime::builder().compile_workers(NonZero::<usize>::MIN);
    builder.simulator(&simulator).cache(cache).build().await.expect("it starts")
}

/// Carries out the order in the environment, and ends the process. Returns if there is no order.
pub fn run_order() {
    let Ok(order) = std::env::var(ORDER) else { return };
    let order: Order = serde_json::from_str(&order).expect("it was written by `Process`");
    let recorder = LogRecorder::install();
    thread::spawn(|| {
        thread::sleep(HANGS);
        process::exit(3);
    });
    let stdin = io::stdin().as_fd().try_clone_to_owned().expect("it is open");
    let parent = UnixDatagram::from(stdin);
    let (report, begun) = futures::executor::block_on(order.run_order(&parent, &recorder));
    let warnings = warnings(&recorder).split_off(begun);
    let report = serde_json::to_vec(&Report { warnings, ..report }).expect("it is plain data");
    // The report is sent with `writev`, and the start signal above is received with `recvfrom`, since calls
    // that a store makes may fail.
    let mut parent = fs::File::from(OwnedFd::from(parent));
    let sent = parent.write_vectored(&[IoSlice::new(&report)]).expect("the parent waits");
    assert_eq!(sent, report.len());
    process::exit(0);
}

fn warnings(recorder: &LogRecorder) -> Vec<String> {
    [Level::ERROR, Level::WARN].map(|level| recorder.at(level)).concat()
}

impl Order {
    fn cache(&self) -> CacheConfig {
        let cache = self.root.as_ref().map_or_else(CacheConfig::new, CacheConfig::at);
        let cache = cache.max_bytes(self.max_bytes);
        if self.strict { cache.durability(Durability::Strict) } else { cache }
    }

    pub fn samples(&self) -> impl Iterator<Item = Sample> {
        self.steps.iter().filter_map(|step| match step {
            Step::Build(sample) => Some(*sample),
            _ => None,
        })
    }

    /// Returns the report, and the number of warnings before the work began.
    async fn run_order(&self, parent: &UnixDatagram, recorder: &LogRecorder) -> (Report, usize) {
        start_threads().await;
        let begun = warnings(recorder).len();
        let rt = runtime(self.cache(), self.samples()).await;
        let root = || self.root.as_deref().expect("the order names it");
        let mut programs = Vec::new();
        let (mut evictions, mut unfinished) = (0, 0);
        // Starts the threads of this runtime: a native binary is not stored.
        let native = Module::native([0]).expect("it is not empty");
        let _ = rt.build(&native).await;
        // Waits for what the runtime does with the store when it starts.
        rt.drain().await;
        parent.send(b"ready").expect("the parent waits");
        parent.recv_from(&mut [0; 8]).expect("the parent lives");
        for step in &self.steps {
            match step {
                Step::Build(sample) => {
                    let program = rt.build(&sample.module()).await.expect("it builds");
                    programs.push((sample, program));
                    rt.drain().await;
                }
                Step::Collect => {
                    let store = match self.cache().open_store().await {
                        Err(error) if error.kind() == ErrorKind::OutOfResources => continue,
                        store => store.expect("it is trusted").expect("there is a disk cache"),
                    };
                    let collected = store.collect(false).await;
                    evictions += collected.map_or(0, |collected| collected.removed);
                }
                Step::Mark => drop(std::os::unix::process::parent_id()),
                Step::RemoveRoot => fs::remove_dir_all(root()).expect("it can be removed"),
                Step::BlockRoot => fs::write(root(), "blocking file").expect("nothing is there"),
                Step::Count => unfinished = files(&root().join("v1/tmp")).len(),
                Step::Fill => fill(&root().join("full")),
            }
        }
        let stats = rt.stats();
        let mut report = Report {
            disk_failures: stats.disk.failures,
            disk_writes: stats.disk.writes,
            evictions: evictions + stats.disk.evictions,
            unfinished,
            ..Report::default()
        };
        for (sample, program) in programs {
            report.origins.push(format!("{:?}", program.origin()));
            if !sample.is(&rt, &program).await {
                report.wrong.push(sample.number);
            }
        }
        (report, begun)
    }
}

impl Report {
    pub fn came_from(&self, origins: &[Origin]) -> bool {
        let origins = origins.iter().map(|origin| format!("{origin:?}"));
        self.origins.iter().cloned().eq(origins)
    }
}

/// Writes until the disk is full.
fn fill(path: &Path) {
    let mut file = fs::File::create(path).expect("a file can be created");
    for size in [4096, 1] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}

/// Lists the files of a directory; empty if it does not exist.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.map(|entry| entry.expect("it can be listed").path()).collect()
}

/// A process that has an order, and waits for the start signal.
pub struct Process {
    child: process::Child,
    socket: UnixDatagram,
    strace: Option<(process::Child, BufReader<ChildStderr>)>,
}

/// Outcome of a process.
#[derive(Debug)]
pub struct Ended {
    /// Report; `None` if the process ended before it sent one.
    pub report: Option<Report>,
    pub status: ExitStatus,
    /// Printed output.
    pub output: String,
}

impl Process {
    /// Starts a test of this binary, by its name of [`test_name!`](crate::test_name), which calls [`run_order`]. The words of `through`, if any, are a
    /// command that runs another one. The variables in `without` are removed from the environment.
    pub fn start(test: &str, order: &Order, through: &[&str], without: &[&str]) -> Self {
        let (socket, other) = UnixDatagram::pair().expect("there are sockets");
        socket.set_read_timeout(Some(HANGS)).expect("it is not zero");
        let binary = std::env::current_exe().expect("it runs");
        let mut words = through.iter().map(AsRef::as_ref).chain([binary.as_os_str()]);
        let mut command = Command::new(words.next().expect("there is at least the binary"));
        command.args(words).args(["--exact", test, "--ignored", "--nocapture"]);
        command.env(ORDER, serde_json::to_string(order).expect("it is plain data"));
        // All calls of `async-fs` then come from one thread, in the same order in every run.
        command.env("BLOCKING_MAX_THREADS", "1");
        for variable in without {
            command.env_remove(variable);
        }
        command.stdin(OwnedFd::from(other)).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("it can be started");
        let process = Self { child, socket, strace: None };
        match process.socket.recv(&mut [0; 8]) {
            Ok(_) => process,
            Err(error) => panic!("it does not start: {error}, {:?}", process.wait()),
        }
    }

    /// Traces all threads of the process with `strace` from now on, and writes the trace to `log`.
    pub fn traced(mut self, arguments: &[&str], log: &Path) -> Self {
        let mut command = Command::new("strace");
        command.args(["-f", "-y", "-o"]).arg(log).args(arguments);
        command.arg("-p").arg(self.child.id().to_string());
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut strace = command.spawn().expect("it exists");
        let mut messages = BufReader::new(strace.stderr.take().expect("it is piped"));
        let mut line = String::new();
        messages.read_line(&mut line).expect("it can be read");
        assert!(line.contains("attached"), "strace: {line}");
        // Closing the pipe would end `strace` at its next message.
        self.strace = Some((strace, messages));
        self
    }

    /// Sends the start signal, and waits for the process to end.
    pub fn run(self) -> Ended {
        self.socket.send(b"go").expect("it waits");
        let socket = self.socket.try_clone().expect("a descriptor can be duplicated");
        let ended = self.wait();
        // A process that was killed has sent nothing.
        socket.set_nonblocking(true).expect("it is a socket");
        let mut bytes = vec![0; 1 << 16];
        let length = socket.recv(&mut bytes).unwrap_or(0);
        Ended { report: serde_json::from_slice(&bytes[..length]).ok(), ..ended }
    }

    fn wait(self) -> Ended {
        let output = self.child.wait_with_output().expect("it was started");
        if let Some((mut strace, mut messages)) = self.strace {
            let _ = messages.read_to_end(&mut Vec::new());
            strace.wait().expect("it was started");
        }
        let text = [output.stdout, output.stderr].concat();
        Ended {
            report: None,
            status: output.status,
            output: String::from_utf8_lossy(&text).into_owned(),
        }
    }
}
