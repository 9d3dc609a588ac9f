//! Recorder of a build manifest: writes down what a graph [builds and uses](super::record), behind its work.
//!
//! The number of uses of an entry is written when it reaches a power of two, and when the recording settles or
//! ends. So the file stays small, and a crash loses at most half of the uses.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::describe::{device_line, module_line, program_line};
use crate::build_graph::key::DeviceKey;
use crate::build_graph::line_writer::LineWriter;
use crate::build_graph::plan::BuildPlan;
use crate::cache::manifest::line::{Line, SessionId, SessionLine, UsesLine};
use crate::digest::{BuildKey, Digest};
use crate::error::{Error, ErrorKind, Result};
use crate::process;
use crate::sync::lock;

/// Recording of a build manifest by one graph.
pub(crate) struct ManifestRecorder {
    pub(super) writer: LineWriter,
    session: SessionId,
    start: Instant,
    known: Mutex<Known>,
}

/// Contents of the file.
#[derive(Default)]
pub(super) struct Known {
    devices: HashSet<[u8; 8]>,
    modules: HashSet<Digest>,
    uses: BTreeMap<BuildKey, Uses>,
}

/// Uses of an entry.
struct Uses {
    count: u64,
    /// Last count that was written.
    written: u64,
    /// Time of the first use, in microseconds since the start of the session.
    first: u64,
}

impl ManifestRecorder {
    /// Begins to record into a file, after what it contains already. Blocks.
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration), naming the path, if the file cannot be written.
    pub(crate) fn begin(path: &Path) -> Result<Self> {
        let writer = LineWriter::append_to(path).map_err(|error| {
            let message = format!("cannot write the build manifest `{}`", path.display());
            Error::new(ErrorKind::Configuration, message).with_source(error)
        })?;
        let session = SessionLine::start();
        let recorder =
            Self { writer, session: session.id, start: Instant::now(), known: Mutex::default() };
        // The last line of a process that crashed may have no end.
        recorder.writer.write("\n".to_owned());
        recorder.write(&Line::Session(session));
        Ok(recorder)
    }

    fn write(&self, line: &Line) {
        match line.to_text() {
            Ok(text) => self.writer.write(text),
            Err(error) => tracing::debug!(%error, "a line of a manifest could not be written"),
        }
    }

    /// Records the use of a program that exists.
    pub(super) fn note_program(
        &self,
        plan: &BuildPlan,
        key: BuildKey,
        device: &DeviceKey,
        time: Instant,
    ) {
        self.note(key, device, time, |known| {
            for input in plan.inputs() {
                if known.modules.insert(input.module().digest()) {
                    self.write(&Line::Module(module_line(input.module())));
                }
            }
            Line::Program(program_line(plan, key, device))
        });
    }

    /// Records the use of an entry, which was requested at `time`. `describe` returns its line when it is used
    /// for the first time.
    pub(super) fn note(
        &self,
        key: BuildKey,
        device: &DeviceKey,
        time: Instant,
        describe: impl FnOnce(&mut Known) -> Line,
    ) {
        let first = time.saturating_duration_since(self.start).as_micros();
        let first = u64::try_from(first).unwrap_or(u64::MAX);
        let mut known = lock(&self.known);
        let session = self.session;
        if let Some(uses) = known.uses.get_mut(&key) {
            uses.count += 1;
            if uses.count.is_power_of_two() {
                uses.written = uses.count;
                self.write(&Line::Uses(uses.line(key, session)));
            }
            return;
        }
        if known.devices.insert(device.folder()) {
            self.write(&Line::Device(device_line(device)));
        }
        let line = describe(&mut known);
        self.write(&line);
        let uses = Uses { count: 1, written: 1, first };
        self.write(&Line::Uses(uses.line(key, session)));
        known.uses.insert(key, uses);
    }

    /// Writes the numbers of uses that are not written yet.
    fn write_uses(&self) {
        let mut known = lock(&self.known);
        for (key, uses) in &mut known.uses {
            if uses.written < uses.count {
                uses.written = uses.count;
                self.write(&Line::Uses(uses.line(*key, self.session)));
            }
        }
    }

    /// Completes once everything is written that was used before the future is first polled.
    pub(in crate::build_graph) fn settled(
        self: &Arc<Self>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let recorder = Arc::clone(self);
        async move {
            recorder.writer.settled().await;
            recorder.write_uses();
            recorder.writer.settled().await;
        }
    }
}

impl Uses {
    fn line(&self, key: BuildKey, session: SessionId) -> UsesLine {
        UsesLine { key, session, count: self.count, first: self.first }
    }
}

impl Drop for ManifestRecorder {
    fn drop(&mut self) {
        // A forked child process has no thread that writes, and one of its parent's may have held the lock.
        if process::is_forked() {
            return;
        }
        self.write_uses();
    }
}
