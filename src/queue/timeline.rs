//! What commands ran when: the DAG as a picture, and the timeline as a trace.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::{self, Write as _};
use std::future::ready;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use serde_json::json;

use super::command::Command;
use super::dag::NodeId;
use super::native_queue::Place;
use super::scheduler::Scheduler;
use crate::backend::Profile;
use crate::build_graph::Pool;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::future::named_future;
use crate::process;
use crate::process::file;
use crate::sync::lock;

/// The commands that ended while somebody recorded.
pub(crate) struct Timeline {
    epoch: Instant,
    /// Changed under the lock of `recorded`.
    recorders: AtomicUsize,
    recorded: Mutex<Recorded>,
}

#[derive(Clone, Default)]
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
    place: Option<Place>,
    serial: u64,
    label: String,
    /// The label of the image that the launched kernel is of.
    image: Option<Box<str>>,
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
            place: command.record.place(),
            serial: id.serial(),
            label: command.work.label(),
            image: command.work.image_label().map(Into::into),
            after: submitted.after,
            submitted: submitted.submitted,
            enqueued: submitted.enqueued,
            ended: Instant::now(),
            profile,
            failure: outcome.as_ref().err().cloned(),
        };
        let mut recorded = self.lock();
        // It may have been submitted while somebody recorded who does not any more.
        if self.recorders.load(SeqCst) == 0 {
            return;
        }
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
        lock(&self.recorded)
    }
}

/// A recording of every command of a runtime, from [`Runtime::trace_to`](crate::Runtime::trace_to)
/// until it is finished or dropped. While it runs, [`Queue::dot`](crate::Queue::dot) shows the
/// commands that have ended, too.
#[must_use = "recording ends when the trace is dropped"]
pub struct Trace {
    timeline: Arc<Timeline>,
    started: Instant,
    /// Commands that there was no room for by then.
    others: usize,
    path: PathBuf,
    has_ended: bool,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Trace {
    pub(crate) fn start(timeline: &Arc<Timeline>, path: PathBuf) -> Self {
        let started = Instant::now();
        if process::is_forked() {
            return Self { timeline: timeline.clone(), started, others: 0, path, has_ended: true };
        }
        let recorded = timeline.lock();
        timeline.recorders.fetch_add(1, SeqCst);
        let others = recorded.others;
        Self { timeline: timeline.clone(), started, others, path, has_ended: false }
    }

    /// Ends the recording and writes what it holds, in the Trace Event Format that Perfetto and
    /// Chrome's `about:tracing` open: a process a device, a thread a lane, or more where its commands
    /// overlap, times in microseconds.
    ///
    /// Where the runtime profiles, a command's span is its time on the device; else it is the time
    /// from its hand-over to the driver, or from the end of the command before it on its lane, until
    /// its own end was seen. Only what has ended is in it: [`Runtime::drain`](crate::Runtime::drain)
    /// first to have everything.
    ///
    /// # Errors
    ///
    /// From the future: [`Io`](crate::ErrorKind::Io) if the file cannot be written, and
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources) if the system gives no thread, or no room.
    pub fn finish(mut self) -> WriteTrace {
        if let Err(error) = process::check() {
            return WriteTrace::new(ready(Err(error)));
        }
        let recorded = self.end(Recorded::clone);
        // A long one keeps a thread for seconds, which is nobody else's.
        let writing = Pool::new("kiln-trace", 1).run(move || {
            file::write_output(&self.path, self.to_json(recorded)).map_err(|error| {
                let message = format!("cannot write the trace {}", self.path.display());
                Error::of_system(message, error)
            })
        });
        WriteTrace::new(async { writing.await? })
    }

    /// Ends the recording, unless that was done. Gives all that was recorded by then, if nobody else
    /// records, and else what is made of it.
    fn end(&mut self, share: impl FnOnce(&Recorded) -> Recorded) -> Recorded {
        if std::mem::replace(&mut self.has_ended, true) || process::is_forked() {
            return Recorded::default();
        }
        let mut recorded = self.timeline.lock();
        match self.timeline.recorders.fetch_sub(1, SeqCst) {
            1 => std::mem::take(&mut *recorded),
            _ => share(&recorded),
        }
    }

    fn to_json(&self, Recorded { mut spans, others }: Recorded) -> String {
        spans.retain(|span| span.submitted >= self.started);
        let nanos =
            |at: Instant| at.saturating_duration_since(self.timeline.epoch).as_nanos() as i64;
        let micros = |nanos: i64| nanos as f64 / 1e3;
        let mut events = Vec::with_capacity(spans.len() + 4);
        let mut devices: Vec<&Device> = spans.iter().map(|span| &span.device).collect();
        devices.sort_by_key(|device| device.index());
        devices.dedup_by_key(|device| device.index());
        for device in devices {
            events.push(json!({
                "ph": "M", "name": "process_name", "pid": device.index(),
                "args": { "name": device.to_string() },
            }));
            let of_device = spans.iter().filter(|span| span.device.index() == device.index());
            let mut tracks = Tracks::default();
            for (start, end, span) in timed(of_device, nanos) {
                let lane = span.place.map(|place| place.lane);
                events.push(json!({
                    "ph": "X", "name": span.label, "cat": "command", "pid": device.index(),
                    "tid": tracks.number(lane, start, end),
                    "ts": micros(start), "dur": micros(end - start),
                    "args": {
                        "command": span.serial, "queue": span.queue, "after": span.after,
                        "image": span.image,
                        "submitted": micros(nanos(span.submitted)),
                        "failure": span.failure.as_ref().map(ToString::to_string),
                    },
                }));
            }
            for (number, name) in tracks.names.iter().enumerate() {
                events.push(json!({
                    "ph": "M", "name": "thread_name", "pid": device.index(), "tid": number,
                    "args": { "name": name },
                }));
            }
        }
        let told = json!({ "commands left out": others - self.others });
        json!({ "traceEvents": events, "displayTimeUnit": "ns", "otherData": told }).to_string()
    }
}

/// The commands of a device, in the order of their ends, with start and end in nanoseconds; gives
/// them in the order of their starts.
fn timed<'a>(
    spans: impl Iterator<Item = &'a Arc<Span>> + Clone,
    nanos: impl Fn(Instant) -> i64,
) -> Vec<(i64, i64, &'a Span)> {
    // The device's clock has an origin of its own: its first command is put where the host saw it.
    let origin = (spans.clone())
        .find_map(|span| Some((span.profile?.queued as i64).saturating_sub(nanos(span.enqueued?))));
    // Of each lane, the place, start and end of its latest command.
    let mut latest: BTreeMap<usize, (Place, i64, i64)> = BTreeMap::new();
    let time = |span: &'a Arc<Span>| {
        if let (Some(profile), Some(origin)) = (span.profile, origin) {
            let [start, end] =
                [profile.started, profile.ended].map(|at| (at as i64).saturating_sub(origin));
            return (start, end.max(start), &**span);
        }
        let mut start = nanos(span.enqueued.unwrap_or(span.submitted));
        let end = nanos(span.ended);
        if let Some(place) = span.place {
            start = match latest.get(&place.lane) {
                // Launches that ran as one have one place.
                Some(&(before, its_start, _)) if before == place => its_start,
                Some(&(_, _, its_end)) => start.max(its_end),
                None => start,
            };
            latest.insert(place.lane, (place, start, end));
        }
        (start, end.max(start), &**span)
    };
    let mut timed: Vec<_> = spans.map(time).collect();
    timed.sort_by_key(|(start, ..)| *start);
    timed
}

/// Threads of a device, as the format has them: what they show must not overlap.
#[derive(Default)]
struct Tracks {
    names: Vec<String>,
    /// Of each lane, and of the host: when the last command of each of its threads ends, and the
    /// thread's number.
    ends: BTreeMap<Option<usize>, BinaryHeap<Reverse<(i64, usize)>>>,
}

impl Tracks {
    /// That of a command which begins no sooner than those before. Commands of no lane are the host's.
    fn number(&mut self, lane: Option<usize>, start: i64, end: i64) -> usize {
        let ends = self.ends.entry(lane).or_default();
        let first = ends.peek().map(|Reverse(first)| *first);
        let number = match first.filter(|(end, _)| *end <= start) {
            Some((_, number)) => {
                ends.pop();
                number
            }
            None => {
                let name = lane.map_or_else(|| "host".to_owned(), |lane| format!("lane {lane}"));
                self.names.push(match ends.len() {
                    0 => name,
                    others => format!("{name} ({})", others + 1),
                });
                self.names.len() - 1
            }
        };
        ends.push(Reverse((end, number)));
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
        // Errors are the application's, and may call Kiln when they are dropped: not under the lock.
        drop(self.end(|_| Recorded::default()));
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
        nodes.push((id.serial(), command.work.label(), look, after.to_vec()));
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
