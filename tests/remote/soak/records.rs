//! Records of a service: its requests, and its memory. Processes write them to a file, which their parent reads.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use kiln::build::Origin;
use serde::{Deserialize, Serialize};

/// Clock on which processes agree. Changes of the system's time do not affect it after its start.
pub(super) struct Clock {
    started: Instant,
    /// Time of the start since 1970.
    offset: Duration,
}

impl Clock {
    pub(super) fn start() -> Self {
        let offset = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self { started: Instant::now(), offset: offset.expect("it is later than 1970") }
    }

    pub(super) fn now(&self) -> Duration {
        self.offset + self.started.elapsed()
    }
}

/// A request: a program is built and launched, and its results are read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) begin: Duration,
    pub(super) end: Duration,
    pub(super) number: u32,
    pub(super) outcome: Outcome,
}

/// Result of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// The results are those of the program, which came from here.
    Right(Source),
    /// The results are those of another program, or of none.
    Wrong(String),
    /// An error, and whether a lack of descriptors may cause errors of its kind.
    Failed { message: String, is_plausible: bool },
}

/// Source of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Source {
    Memory,
    Disk,
    Remote,
    Compiled,
}

impl Source {
    pub(super) const ALL: [Self; 4] = [Self::Memory, Self::Disk, Self::Remote, Self::Compiled];
}

impl From<Origin> for Source {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Memory => Self::Memory,
            Origin::Disk => Self::Disk,
            Origin::Remote => Self::Remote,
            _ => Self::Compiled,
        }
    }
}

/// Memory of the service at a time.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Sample {
    pub(super) at: Duration,
    /// Bytes of the process that are in memory.
    pub(super) resident: u64,
    /// Programs that were loaded or compiled so far.
    pub(super) loads: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Record {
    Request(Request),
    Sample(Sample),
}

/// File with the records of several processes. It stays open, so that records can be written without descriptors.
pub(super) struct Records(File);

impl Records {
    pub(super) fn append(path: &Path) -> Self {
        let file = File::options().append(true).create(true).open(path);
        Self(file.expect("there is space"))
    }

    pub(super) fn add(&self, record: &Record) {
        let line = serde_json::to_string(record).expect("it can be written as text") + "\n";
        // One call for each line, so that the lines of threads and processes are not mixed.
        (&self.0).write_all(line.as_bytes()).expect("there is space");
    }

    /// Reads the records of all processes.
    pub(super) fn load(path: &Path) -> (Vec<Request>, Vec<Sample>) {
        let (mut requests, mut samples) = (Vec::new(), Vec::new());
        for line in fs::read_to_string(path).expect("it was written").lines() {
            match serde_json::from_str(line).expect("it is a record") {
                Record::Request(request) => requests.push(request),
                Record::Sample(sample) => samples.push(sample),
            }
        }
        (requests, samples)
    }
}
