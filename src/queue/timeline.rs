//! Timeline of the commands of a runtime, and the traces that are written from it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::future::ready;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use serde_json::json;

use super::native_queue::Place;
use crate::backend::Profile;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::future::named_future;
use crate::process::{self, file, threads};
use crate::sync::lock;

/// Commands that ended while a trace was recording.
pub(crate) struct Timeline {
    epoch: Instant,
    /// Number of active traces; changed under the lock of `recorded`.
    recorders: AtomicUsize,
    recorded: Mutex<Recorded>,
}

#[derive(Clone, Default)]
struct Recorded {
    spans: Vec<Arc<Span>>,
    /// Number of commands that were not recorded because the limit was reached.
    omitted: usize,
}

/// Maximum number of recorded commands. A trace only states the number of further ones.
const MAX_SPANS: usize = 1 << 20;

/// Record of a command that has not ended, for its [`Span`].
pub(crate) struct PendingSpan {
    /// Serial numbers of the commands that the command depends on.
    pub(super) after: Vec<u64>,
    pub(super) submitted: Instant,
    pub(super) enqueued: Option<Instant>,
}

impl PendingSpan {
    /// Sets the serial numbers of the commands that the command depends on.
    pub(crate) fn set_dependencies(&mut self, serials: Vec<u64>) {
        self.after = serials;
    }

    /// Records that the command is handed to the driver now.
    pub(crate) fn set_enqueued(&mut self) {
        self.enqueued = Some(Instant::now());
    }
}

/// Command that has ended, as a trace records it.
pub(super) struct Span {
    pub(super) device: Device,
    pub(super) queue: u64,
    pub(super) place: Option<Place>,
    pub(super) serial: u64,
    pub(super) label: String,
    /// Label of the module that contains the launched kernel.
    pub(super) module: Option<Box<str>>,
    pub(super) after: Vec<u64>,
    pub(super) submitted: Instant,
    pub(super) enqueued: Option<Instant>,
    pub(super) ended: Instant,
    pub(super) profile: Option<Profile>,
    pub(super) failure: Option<Error>,
}

impl Timeline {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            epoch: Instant::now(),
            recorders: AtomicUsize::new(0),
            recorded: Mutex::default(),
        })
    }

    /// Starts the record of a command, if a trace is recording.
    pub(crate) fn start_span(&self) -> Option<PendingSpan> {
        (self.recorders.load(SeqCst) > 0).then(|| PendingSpan {
            after: Vec::new(),
            submitted: Instant::now(),
            enqueued: None,
        })
    }

    /// Adds a command that has ended.
    pub(super) fn add(&self, span: Span) {
        let mut recorded = self.lock();
        // All traces may have ended since the command was submitted.
        if self.recorders.load(SeqCst) == 0 {
            return;
        }
        if recorded.spans.len() < MAX_SPANS {
            recorded.spans.push(Arc::new(span));
        } else {
            recorded.omitted += 1;
        }
    }

    pub(super) fn spans(&self) -> Vec<Arc<Span>> {
        self.lock().spans.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        lock(&self.recorded)
    }
}

/// Recording of every command of a runtime, from [`Runtime::trace_to`](crate::Runtime::trace_to) until
/// it is finished or dropped. Meanwhile, [`Queue::dot`](crate::Queue::dot) also shows the commands that
/// have ended.
///
/// # Examples
///
/// ```no_run
/// # async fn render(rt: &kiln::Runtime) -> kiln::Result<()> { Ok(()) }
/// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
/// let trace = rt.trace_to("frame.json");
/// render(&rt).await?;
/// rt.drain().await; // all commands of the frame have ended, so the trace contains them
/// trace.finish().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "recording ends when the trace is dropped"]
pub struct Trace {
    timeline: Arc<Timeline>,
    started: Instant,
    /// Number of commands that were over the limit when the recording started.
    omitted: usize,
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
            return Self { timeline: timeline.clone(), started, omitted: 0, path, has_ended: true };
        }
        let recorded = timeline.lock();
        timeline.recorders.fetch_add(1, SeqCst);
        let omitted = recorded.omitted;
        Self { timeline: timeline.clone(), started, omitted, path, has_ended: false }
    }

    /// Ends the recording and writes it to the file, in the Trace Event Format that Perfetto and
    /// Chrome's `about:tracing` open. Each device is a process, and each native queue is a thread, or
    /// several if its commands overlap. Times are in microseconds.
    ///
    /// If the runtime profiles, the span of a command is its time on the device. Otherwise it starts
    /// when the command is handed to the driver, or when the previous command on its native queue ends,
    /// and lasts until its own end is seen. The trace contains only commands that have ended; call
    /// [`Runtime::drain`](crate::Runtime::drain) first to have all of them.
    ///
    /// # Errors
    ///
    /// From the future: [`Io`](crate::ErrorKind::Io) if the file cannot be written, and
    /// [`OutOfResources`](crate::ErrorKind::OutOfResources) if the system cannot start a thread, or has
    /// no room.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: &kiln::Runtime, blur: &kiln::Kernel, x: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let trace = rt.trace_to("blur.json");
    /// rt.queue().submit(blur.launch(x.len()).args((x,)))?.await?;
    /// trace.finish().await?; // open `blur.json` in Perfetto
    /// # Ok(())
    /// # }
    /// ```
    pub fn finish(mut self) -> WriteTrace {
        if let Err(error) = process::check() {
            return WriteTrace::new(ready(Err(error)));
        }
        let recorded = self.end(Recorded::clone);
        // Writing a long trace takes seconds, so it has a thread of its own.
        let writing = threads::run("kiln-trace", move || {
            file::write_output(&self.path, self.to_json(recorded)).map_err(|error| {
                let message = format!("cannot write the trace {}", self.path.display());
                Error::of_system(message, error)
            })
        });
        WriteTrace::new(async { writing.await? })
    }

    /// Ends the recording, unless it has ended. Returns everything recorded so far if no other trace is
    /// recording, and otherwise the result of `share`.
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

    fn to_json(&self, Recorded { mut spans, omitted }: Recorded) -> String {
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
                let native_queue = span.place.map(|place| place.native_queue);
                events.push(json!({
                    "ph": "X", "name": span.label, "cat": "command", "pid": device.index(),
                    "tid": tracks.number(native_queue, start, end),
                    "ts": micros(start), "dur": micros(end - start),
                    "args": {
                        "command": span.serial, "queue": span.queue, "after": span.after,
                        "module": span.module,
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
        let left_out = json!({ "commands left out": omitted - self.omitted });
        json!({ "traceEvents": events, "displayTimeUnit": "ns", "otherData": left_out }).to_string()
    }
}

/// Returns the commands of a device with their starts and ends in nanoseconds, in the order of their
/// starts. `spans` is in the order of their ends.
fn timed<'a>(
    spans: impl Iterator<Item = &'a Arc<Span>> + Clone,
    nanos: impl Fn(Instant) -> i64,
) -> Vec<(i64, i64, &'a Span)> {
    // The device's clock has its own origin. It is shifted so that the first command was queued when
    // the host enqueued it.
    let origin = (spans.clone())
        .find_map(|span| Some((span.profile?.queued as i64).saturating_sub(nanos(span.enqueued?))));
    // Place, start and end of the latest command on each native queue.
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
            start = match latest.get(&place.native_queue) {
                // Launches that ran as one have the same place.
                Some(&(before, its_start, _)) if before == place => its_start,
                Some(&(_, _, its_end)) => start.max(its_end),
                None => start,
            };
            latest.insert(place.native_queue, (place, start, end));
        }
        (start, end.max(start), &**span)
    };
    let mut timed: Vec<_> = spans.map(time).collect();
    timed.sort_by_key(|(start, ..)| *start);
    timed
}

/// Threads of a device in the trace. The commands of a thread must not overlap.
#[derive(Default)]
struct Tracks {
    names: Vec<String>,
    /// End of the last command of each thread and the number of the thread, per native queue and for
    /// the host.
    ends: BTreeMap<Option<usize>, BinaryHeap<Reverse<(i64, usize)>>>,
}

impl Tracks {
    /// Returns the thread of a command that starts no earlier than those before. Commands without a
    /// native queue belong to the host.
    fn number(&mut self, native_queue: Option<usize>, start: i64, end: i64) -> usize {
        let ends = self.ends.entry(native_queue).or_default();
        let first = ends.peek().map(|Reverse(first)| *first);
        let number = match first.filter(|(end, _)| *end <= start) {
            Some((_, number)) => {
                ends.pop();
                number
            }
            None => {
                let name = native_queue.map_or_else(
                    || "host".to_owned(),
                    |native_queue| format!("native queue {native_queue}"),
                );
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
    /// Future of a trace that is being written, from [`Trace::finish`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it changes nothing: the file is written all the same.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(trace: kiln::stats::Trace) {
    /// let written = trace.finish();
    /// if let Err(error) = written.await {
    ///     eprintln!("continuing without a trace: {error}");
    /// }
    /// # }
    /// ```
    WriteTrace => Result<()>
}

impl Drop for Trace {
    fn drop(&mut self) {
        // The spans hold errors of the application, which may call Kiln when they are dropped. They are
        // dropped after the lock is released.
        drop(self.end(|_| Recorded::default()));
    }
}
