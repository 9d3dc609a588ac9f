//! Appends lines to a file, or to standard error, behind the caller's work.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use concurrent_queue::ConcurrentQueue;

use crate::cache::store::{Pending, TaskTracker};
use crate::executor::run_blocking_detached;
use crate::process::file;
use crate::sync::lock;

/// Writer of lines. Each line is written in one call, so that lines of several processes do not mix.
pub(super) struct LineWriter {
    lines: Arc<Lines>,
    background: Arc<TaskTracker>,
}

struct Lines {
    /// Lines to be written, in their order.
    queue: ConcurrentQueue<String>,
    /// Guards of the lines to be written, each added after its line.
    pending: Mutex<Vec<Pending>>,
    /// Whether a call writes lines, or is about to. There is one at a time, however long the file takes.
    is_writing: AtomicBool,
    /// Locked while lines are taken and written.
    sink: Mutex<Sink>,
}

/// Call that writes all lines.
struct Writing {
    lines: Arc<Lines>,
    has_ended: bool,
}

enum Sink {
    Stderr,
    File(File),
}

impl LineWriter {
    pub(super) fn to_stderr() -> Self {
        Self::new(Sink::Stderr)
    }

    /// Opens a file for appending, and creates it if there is none. Blocks.
    ///
    /// # Errors
    ///
    /// As for [`file::open_output`].
    pub(super) fn append_to(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        file::open_output(path, options).map(|file| Self::new(Sink::File(file)))
    }

    fn new(sink: Sink) -> Self {
        let lines = Lines {
            queue: ConcurrentQueue::unbounded(),
            pending: Mutex::default(),
            is_writing: AtomicBool::new(false),
            sink: Mutex::new(sink),
        };
        Self { lines: Arc::new(lines), background: Arc::default() }
    }

    /// Writes a line, which ends with a newline, in the background. A failure is only logged.
    pub(super) fn write(&self, line: String) {
        let lines = &self.lines;
        // The queue is unbounded and never closed.
        let _ = lines.queue.push(line);
        lock(&lines.pending).push(self.begin());
        if !lines.is_writing.swap(true, SeqCst) {
            let writing = Writing { lines: Arc::clone(lines), has_ended: false };
            run_blocking_detached(move || writing.run());
        }
    }

    /// Begins work that [`settled`](Self::settled) waits for. It ends when the result is dropped.
    pub(super) fn begin(&self) -> Pending {
        self.background.begin()
    }

    /// Completes once all lines are written that were given, and all work has ended that was begun, before the
    /// future is first polled.
    pub(super) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        let background = Arc::clone(&self.background);
        async move { background.settled().await }
    }
}

impl Writing {
    /// Writes all lines, also those that are added meanwhile. Blocks.
    fn run(mut self) {
        let lines = &self.lines;
        loop {
            let written = mem::take(&mut *lock(&lines.pending));
            lines.write_all();
            drop(written);
            lines.is_writing.store(false, SeqCst);
            // The guard of a line that is added from here on is seen by this thread, or its writer sees that no call writes.
            let is_done = lock(&lines.pending).is_empty();
            if is_done || lines.is_writing.swap(true, SeqCst) {
                break;
            }
        }
        self.has_ended = true;
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // Without a thread, the call has not run: nobody waits for the lines, which the next call writes.
        if !self.has_ended {
            self.lines.is_writing.store(false, SeqCst);
            lock(&self.lines.pending).clear();
        }
    }
}

impl Lines {
    /// Writes all lines. Blocks.
    fn write_all(&self) {
        let mut sink = lock(&self.sink);
        while let Ok(line) = self.queue.pop() {
            let written = match &mut *sink {
                Sink::Stderr => io::stderr().write_all(line.as_bytes()),
                Sink::File(file) => file.write_all(line.as_bytes()),
            };
            if let Err(error) = written {
                tracing::debug!(%error, "a line of a trace or a manifest could not be written");
            }
        }
    }
}
