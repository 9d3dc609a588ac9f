//! What commands ran when: the DAG as a picture, and the timeline as a trace.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde_json::json;

use super::command::Command;
use super::dag::NodeId;
use super::scheduler::Scheduler;
use crate::backend::Profile;
use crate::build::Pool;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::future::named_future;

/// The commands that ended while somebody recorded.
pub(crate) struct Timeline {
    epoch: Instant,
    /// Changed under the lock of `recorded`.
    recorders: AtomicUsize,
    recorded: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    spans: Vec<Arc<Span>>,
    /// Commands that there was no room for.
    others: usize,
}

/// More commands than this are not recorded: their number is all that a trace tells of them.
const MOST_SPANS: usize = 1 << 20;

/// The record of a command that has not ended.
pub(crate) struct Submitted {
    after: Vec<u64>,
    submitted: Instant,
    enqueued: Option<Instant>,
}

impl Submitted {
    pub(crate) fn comes_after(&mut self, serials: Vec<u64>) {
        self.after = serials;
    }

    pub(crate) fn enqueued(&mut self) {
        self.enqueued = Some(Instant::now());
    }
}

struct Span {
    device: Device,
    queue: u64,
    lane: Option<usize>,
    serial: u64,
    label: String,
    after: Vec<u64>,
    submitted: Instant,
    enqueued: Option<Instant>,
    ended: Instant,
    profile: Option<Profile>,
    failure: Option<Error>,
}

impl Timeline {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            epoch: Instant::now(),
            recorders: AtomicUsize::new(0),
            recorded: Mutex::default(),
        })
    }

    /// The beginning of a command's record, if somebody records.
    pub(crate) fn submitted(&self) -> Option<Box<Submitted>> {
        (self.recorders.load(SeqCst) > 0).then(|| {
            Box::new(Submitted { after: Vec::new(), submitted: Instant::now(), enqueued: None })
        })
    }

    /// The end of a command's record.
    pub(crate) fn ended(
        &self,
        submitted: Submitted,
        device: &Device,
        command: &Command,
        id: NodeId,
        profile: Option<Profile>,
        outcome: &Result<()>,
    ) {
        let span = Span {
            device: device.clone(),
            queue: command.queue,
            lane: command.record.place().map(|place| place.lane),
            serial: id.serial(),
            label: command.label(),
            after: submitted.after,
            submitted: submitted.submitted,
            enqueued: submitted.enqueued,
            ended: Instant::now(),
            profile,
            failure: outcome.as_ref().err().cloned(),
        };
        let mut recorded = self.lock();
        if recorded.spans.len() < MOST_SPANS {
            recorded.spans.push(Arc::new(span));
        } else {
            recorded.others += 1;
        }
    }

    fn spans(&self) -> Vec<Arc<Span>> {
        self.lock().spans.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A recording of every command of a runtime, from [`Runtime::trace_to`](crate::Runtime::trace_to)
/// until it is finished or dropped. While it runs, [`Queue::dot`](crate::Queue::dot) shows the
/// commands that have ended, too.
#[must_use = "recording ends when the trace is dropped"]
pub struct Trace {
    timeline: Arc<Timeline>,
    pool: Pool,
    started: Instant,
    /// Commands that there was no room for by then.
    others: usize,
    path: PathBuf,
}

impl Trace {
    /// The pool is where it is written.
    pub(crate) fn start(timeline: &Arc<Timeline>, pool: &Pool, path: PathBuf) -> Self {
        let recorded = timeline.lock();
        timeline.recorders.fetch_add(1, SeqCst);
        let (timeline, pool) = (timeline.clone(), pool.clone());
        Self { timeline, pool, started: Instant::now(), others: recorded.others, path }
    }

    /// Ends the recording and writes what it holds, in the Trace Event Format that Perfetto and
    /// Chrome's `about:tracing` open: a process a device, a thread a lane, or more where its commands
    /// overlap, times in microseconds.
    ///
    /// Where the runtime profiles, a command's span is its time on the device; else it is the time
    /// from its hand-over to the driver until its end was seen. Only what has ended is in it:
    /// [`Runtime::drain`](crate::Runtime::drain) first to have everything.
    ///
    /// # Errors
    ///
    /// From the future: [`Io`](ErrorKind::Io) if the file cannot be written, and
    /// [`OutOfResources`](ErrorKind::OutOfResources) if the system gives no thread.
    pub fn finish(self) -> WriteTrace {
        let (finished, others) = (Instant::now(), self.timeline.lock().others - self.others);
        let pool = self.pool.clone();
        let writing = pool.run(move || {
            std::fs::write(&self.path, self.to_json(finished, others)).map_err(|error| {
                let message = format!("cannot write the trace {}", self.path.display());
                Error::new(ErrorKind::Io, message).with_source(error)
            })
        });
        WriteTrace::new(async { writing.await? })
    }

    fn to_json(&self, finished: Instant, others: usize) -> String {
        let mut spans = self.timeline.spans();
        spans.retain(|span| span.submitted >= self.started && span.ended <= finished);
        let micros =
            |at: Instant| at.saturating_duration_since(self.timeline.epoch).as_nanos() as f64 / 1e3;
        let mut events = Vec::with_capacity(spans.len() + 4);
        let mut devices: Vec<&Device> = spans.iter().map(|span| &span.device).collect();
        devices.sort_by_key(|device| device.index());
        devices.dedup_by_key(|device| device.index());
        for device in devices {
            events.push(json!({
                "ph": "M", "name": "process_name", "pid": device.index(),
                "args": { "name": device.to_string() },
            }));
            // The device's clock has an origin of its own: its first command is put where the host
            // saw it.
            let of_device = spans.iter().filter(|span| span.device.index() == device.index());
            let origin = of_device
                .clone()
                .find_map(|span| Some(span.profile?.queued as f64 / 1e3 - micros(span.enqueued?)));
            let mut tracks = Tracks::default();
            let mut timed = Vec::new();
            for span in of_device {
                let (start, end) = match (span.profile, origin) {
                    (Some(profile), Some(origin)) => {
                        (profile.started as f64 / 1e3 - origin, profile.ended as f64 / 1e3 - origin)
                    }
                    _ => (micros(span.enqueued.unwrap_or(span.submitted)), micros(span.ended)),
                };
                timed.push((start, end.max(start), span));
            }
            timed.sort_by(|(one, ..), (other, ..)| one.total_cmp(other));
            for (start, end, span) in timed {
                events.push(json!({
                    "ph": "X", "name": span.label, "cat": "command", "pid": device.index(),
                    "tid": tracks.number(span.lane, start, end), "ts": start, "dur": end - start,
                    "args": {
                        "command": span.serial, "queue": span.queue, "after": span.after,
                        "submitted": micros(span.submitted),
                        "failure": span.failure.as_ref().map(ToString::to_string),
                    },
                }));
            }
            for (number, track) in tracks.0.iter().enumerate() {
                let name = match track.lane {
                    Some(lane) => format!("lane {lane}"),
                    None => "host".to_owned(),
                };
                events.push(json!({
                    "ph": "M", "name": "thread_name", "pid": device.index(), "tid": number,
                    "args": { "name": name },
                }));
            }
        }
        let told = json!({ "commands left out": others });
        json!({ "traceEvents": events, "displayTimeUnit": "ns", "otherData": told }).to_string()
    }
}

/// Threads of a device, as the format has them: what they show must not overlap.
#[derive(Default)]
struct Tracks(Vec<Track>);

struct Track {
    lane: Option<usize>,
    /// When the last command that it shows ends.
    end: f64,
}

impl Tracks {
    /// That of a command which begins no sooner than those before. Commands of no lane are the host's.
    fn number(&mut self, lane: Option<usize>, start: f64, end: f64) -> usize {
        let is_free = |track: &Track| track.lane == lane && track.end <= start;
        let number = self.0.iter().position(is_free).unwrap_or_else(|| {
            self.0.push(Track { lane, end });
            self.0.len() - 1
        });
        self.0[number].end = end;
        number
    }
}

named_future! {
    /// A trace that is being written: from [`Trace::finish`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it changes nothing: the file is written all the same.
    WriteTrace => Result<()>
}

impl Drop for Trace {
    fn drop(&mut self) {
        let mut recorded = self.timeline.lock();
        let is_last = self.timeline.recorders.fetch_sub(1, SeqCst) == 1;
        let forgotten = is_last.then(|| std::mem::take(&mut *recorded));
        // Errors are the application's, and may call Kiln when they are dropped.
        drop(recorded);
        drop(forgotten);
    }
}

/// The DAG of a device in Graphviz's language: solid edges are dependencies; commands that have
/// ended are filled, failed ones red.
pub(crate) fn dot(scheduler: &Arc<Scheduler>) -> String {
    let device = scheduler.slot().handle();
    let mut nodes = Vec::new();
    for span in scheduler.shared().timeline.spans() {
        if span.device.index() == device.index() {
            let look = if span.failure.is_some() {
                "filled\", fillcolor=\"lightpink"
            } else {
                "filled\", fillcolor=\"lightgrey"
            };
            nodes.push((span.serial, span.label.clone(), look, span.after.clone()));
        }
    }
    scheduler.visit(|id, command, after| {
        let look = if command.record.is_dispatched() { "solid" } else { "dashed" };
        // The edges to what has ended are known where somebody records.
        let after = command.traced.as_ref().map_or(after, |traced| &traced.after);
        nodes.push((id.serial(), command.label(), look, after.to_vec()));
    });
    nodes.sort_by_key(|node| node.0);
    let mut text = String::from(
        "digraph kiln {\n    rankdir=TB;\n    node [shape=box, fontname=\"sans-serif\"];\n",
    );
    for (serial, label, look, _) in &nodes {
        let label = label.replace('\\', "\\\\").replace('"', "\\\"");
        let _ = writeln!(text, "    c{serial} [label=\"{label}\", style=\"{look}\"];");
    }
    let drawn = |serial: &u64| nodes.binary_search_by_key(serial, |node| node.0).is_ok();
    for (serial, _, _, after) in &nodes {
        for before in after.iter().filter(|before| drawn(before)) {
            let _ = writeln!(text, "    c{before} -> c{serial};");
        }
    }
    text.push_str("}\n");
    text
}
