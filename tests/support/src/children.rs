//! Tests with several processes: the test binary runs itself again, as children that run one of its tests and
//! report what they counted.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::Read;
use std::path::PathBuf;
use std::process::{self, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kiln::Device;

/// Prefix of a line in a report.
const REPORT: &str = "report ";

/// Time after which a child counts as hanging, unless it is allowed more.
const HANGS: Duration = Duration::from_secs(300);

/// Environment variable with the number of the device that a child uses.
pub const DEVICE: &str = "KILN_TEST_DEVICE";

/// Returns the name by which the test harness knows a test of the calling module.
#[macro_export]
macro_rules! test_name {
    ($test:expr) => {
        $crate::children::test_name(module_path!(), $test)
    };
}

/// Returns the name by which the test harness knows a test of a module: its path without the name of the crate.
pub fn test_name(module: &str, test: &str) -> String {
    let path = module.split_once("::").map(|(_, path)| path.to_owned() + "::");
    path.unwrap_or_default() + test
}

/// A process that runs one test of this binary, which is otherwise ignored. Killed when dropped.
pub struct Child {
    process: process::Child,
    /// Time after which it counts as hanging.
    limit: Duration,
}

/// Numbers that a child reported, by name.
pub type Report = BTreeMap<String, u64>;

impl Child {
    /// Starts a child that runs a test, by its name of [`test_name!`](crate::test_name), with environment variables that describe its work. If this process uses an imitated GPU,
    /// so does the child.
    pub fn start<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        test: &str,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let command = on_imitated_gpu().unwrap_or_else(|| Command::new(this_binary()));
        Self::start_from(command, test, variables)
    }

    /// Starts a child that uses a device, whose number it finds in [`DEVICE`].
    pub fn start_on(device: &Device, test: &str) -> Self {
        Self::start(test, [(DEVICE, device.index().to_string())])
    }

    /// Starts a child like [`start`](Self::start), through a command to which the program and its arguments are
    /// added.
    pub fn start_from<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        mut command: Command,
        test: &str,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        // The standard library holds a lock while it prints the backtrace of a panic. If an allocation fails then, it prints
        // a backtrace for that, too, and waits for this lock: the child would hang.
        let command = command
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env("RUST_BACKTRACE", "0")
            .envs(variables)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let process = command.spawn().expect("the test binary can be run again");
        Self { process, limit: HANGS }
    }

    /// Sets the time after which the child counts as hanging.
    #[must_use]
    pub fn allowing(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Whether the child has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().expect("it can be waited for").is_some()
    }

    /// Waits for the child to end, and returns its report. Panics with its output if it failed.
    #[track_caller]
    pub fn report(self) -> Report {
        self.report_and_output().0
    }

    /// Waits for the child to end, and returns its status.
    #[track_caller]
    pub fn status(mut self) -> process::ExitStatus {
        let started = Instant::now();
        while !self.has_ended() {
            assert!(started.elapsed() < self.limit, "process {} does not end", self.id());
            thread::sleep(Duration::from_millis(1));
        }
        self.process.wait().expect("it can be waited for")
    }

    /// Waits for the child to end, and returns its report and its output.
    #[track_caller]
    pub fn report_and_output(self) -> (Report, String) {
        let id = self.id();
        let (status, output) = self.status_and_output();
        assert!(status.success(), "process {id} failed, {status}:\n{output}");
        let lines: Vec<_> = output.lines().filter_map(|line| line.strip_prefix(REPORT)).collect();
        assert!(!lines.is_empty(), "process {id} ran no test:\n{output}");
        let report = lines.iter().map(|line| number_of(line).expect("a report has its form"));
        (report.collect(), output)
    }

    /// Waits for the child to end, however it ends, and returns its status and its output.
    #[track_caller]
    pub fn status_and_output(mut self) -> (process::ExitStatus, String) {
        // A child that fills a pipe would block on its output.
        let stdout = reading(self.process.stdout.take().expect("it is piped"));
        let stderr = reading(self.process.stderr.take().expect("it is piped"));
        let status = self.status();
        let [out, err] = [stdout, stderr].map(|thread| thread.join().expect("it reads"));
        (status, out + "\n" + &err)
    }
}

/// Reads a pipe to its end on a thread.
fn reading(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("it can be read");
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Returns the name and the number of a line such as `started=4`.
pub fn number_of(line: &str) -> Option<(String, u64)> {
    let (name, value) = line.split_once('=')?;
    Some((name.to_owned(), value.parse().ok()?))
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both calls fail for a child that has ended, and are not needed then.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the path of the program that this process runs.
pub fn this_binary() -> PathBuf {
    let executed = std::env::current_exe().expect("it is known");
    // If a dynamic loader started the program, the system reports the path of the loader.
    let is_loader =
        executed.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ld-"));
    if is_loader { std::env::args_os().next().expect("it is known").into() } else { executed }
}

/// Returns the command that runs this program on an imitated GPU, if `KILN_GPU_RUNNER` names one.
pub fn on_imitated_gpu() -> Option<Command> {
    let runner = std::env::var("KILN_GPU_RUNNER").ok()?;
    let mut words = runner.split_whitespace();
    let mut command = Command::new(words.next().expect("KILN_GPU_RUNNER names a command"));
    command.args(words).arg(this_binary());
    Some(command)
}

/// Reports a number. Called in a child.
#[allow(clippy::print_stdout, reason = "the parent reads it")]
pub fn report(name: &str, value: impl Display) {
    // The test harness may have printed an incomplete line.
    println!("\n{REPORT}{name}={value}");
}

/// Returns the value of a variable that the parent set. Called in a child.
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: another test runs this one"))
}

/// Returns the sum of the numbers that all children reported under a name.
pub fn sum<'a>(reports: impl IntoIterator<Item = &'a Report>, name: &str) -> u64 {
    reports.into_iter().map(|report| report[name]).sum()
}
