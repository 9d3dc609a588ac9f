//! Remote cache as used by the build graph: looks up entries, and writes entries in the background.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{Either, select};

use super::answer::{Answer, PendingResponse, Response};
use super::breaker::RequestKind;
use super::claim::{self, AnswerWait, Claim};
use super::envelope::TRAILER;
use super::locate::{Located, locate};
use super::objects::{Failure, Objects};
#[cfg(feature = "remote-opendal")]
use super::opendal::RemoteOperator;
use super::service::{Direction, ReadOutcome, Service, path};
use super::settings::Settings;
use super::worker::Worker;
use crate::cache::store::{Address, Pending, TaskTracker};
use crate::counters::Counters;
use crate::error::{Error, ErrorKind, Result, panic_message};
use crate::executor;

/// Limits of the write queue: number of objects, and their total size in bytes.
const QUEUE_LIMITS: [u64; 2] = [1024, 256 << 20];

/// Handle of a remote cache, cheap to clone. Its thread starts when it is first needed. The thread ends once
/// the last handle is dropped and all queued objects are written.
#[derive(Clone)]
pub(crate) struct Remote(Arc<Inner>);

struct Inner {
    service: Arc<Service>,
    worker: OnceLock<Arc<Worker>>,
    queue: Arc<Queue>,
    background: TaskTracker,
    has_logged_full: AtomicBool,
}

/// Size of the write queue.
#[derive(Debug, Default)]
struct Queue {
    objects: AtomicU64,
    bytes: AtomicU64,
}

impl Remote {
    /// Creates the remote cache at an address.
    pub(crate) fn at(url: &str, settings: Settings, counters: Arc<Counters>) -> Result<Self> {
        let Located { objects, name } = locate(url, &settings)?;
        Ok(Self::new(name, objects, settings, counters))
    }

    /// Creates a remote cache that uses an application's own operator.
    #[cfg(feature = "remote-opendal")]
    pub(crate) fn through(
        operator: RemoteOperator,
        settings: Settings,
        counters: Arc<Counters>,
    ) -> Self {
        Self::new(operator.name(), operator.into_objects(), settings, counters)
    }

    fn new(
        name: String,
        objects: Box<dyn Objects>,
        settings: Settings,
        counters: Arc<Counters>,
    ) -> Self {
        Self(Arc::new(Inner {
            service: Arc::new(Service::new(name, objects, settings, counters)),
            worker: OnceLock::new(),
            queue: Arc::default(),
            background: TaskTracker::default(),
            has_logged_full: AtomicBool::new(false),
        }))
    }

    /// Returns the worker, which is started if necessary, or `None` if its thread cannot be started.
    fn worker(&self) -> Option<&Arc<Worker>> {
        let worker = &self.0.worker;
        if worker.get().is_none() {
            match Worker::start() {
                // Another thread may have started a worker meanwhile. This one ends then.
                Ok(started) => _ = worker.set(started),
                Err(error) => {
                    tracing::warn!(
                        %error,
                        "cannot start a thread for the remote cache; the next use tries again"
                    );
                }
            }
        }
        worker.get()
    }

    /// Whether entries are looked up in the service.
    pub(crate) fn is_read(&self) -> bool {
        self.0.service.settings.access.reads()
    }

    /// Returns the lookup of an entry, or `None` if a lookup is not worthwhile at present. `compile` is the expected
    /// time of the program's compile, if it is known. The lookup counts as a request to the service in the circuit
    /// breaker, so the caller must start it. Never blocks.
    pub(crate) fn lookup(
        &self,
        address: &Address,
        compile: Option<Duration>,
    ) -> Option<RemoteLookup> {
        let service = &self.0.service;
        if !self.is_read() {
            return None;
        }
        let worker = self.worker()?.clone();
        let kind = service.allow(Direction::Reads)?;
        let patience = service.patience(kind, compile);
        let (service, address) = (service.clone(), *address);
        let request = Request { service, address, kind, compile, is_repeated: false };
        Some(RemoteLookup { request, worker, patience })
    }

    /// Returns another lookup of an entry that was absent, which waits up to `patience`. It counts neither as a miss
    /// nor for the latency of the service.
    pub(crate) fn look_again(&self, address: &Address, patience: Duration) -> Option<RemoteLookup> {
        let RemoteLookup { request, worker, .. } = self.lookup(address, None)?;
        let request = Request { is_repeated: true, ..request };
        Some(RemoteLookup { request, worker, patience })
    }

    /// Claims the compile of a program that the service does not have, so that other machines wait for it. `compile` is
    /// its expected time, if it is known.
    pub(crate) async fn claim(
        &self,
        address: &Address,
        compile: Option<Duration>,
        wait: AnswerWait,
    ) -> Claim {
        let service = &self.0.service;
        let Some(worker) = self.worker() else { return Claim::Unclaimed };
        let Some((patience, kind)) = service.allow_claim(compile, wait) else {
            return Claim::Unclaimed;
        };
        let (lifetime, start) = (claim::lifetime(compile), Instant::now());
        let (sender, answer) = oneshot::channel();
        let (service, path) = (service.clone(), path(address));
        worker.spawn(async move {
            let limit = service.settings.timeout;
            let claim = catch_panics(service.objects.claim(&path, lifetime));
            let is_held = tokio::time::timeout(limit, claim).await;
            let is_held = is_held.unwrap_or_else(|_| Err(Failure::timeout(limit)));
            service.record_claim(kind, &is_held, start.elapsed());
            // The build may have started its compile meanwhile.
            let _ = sender.send(is_held);
        });
        if patience.is_zero() {
            return Claim::Unclaimed;
        }
        match select(answer, executor::pause(patience)).await {
            Either::Left((Ok(Ok(true)), _)) => Claim::Held(start + lifetime),
            Either::Left((Ok(Ok(false)), _)) => Claim::Elsewhere,
            Either::Left((Ok(Err(_)) | Err(oneshot::Canceled), _)) | Either::Right(_) => {
                Claim::Unclaimed
            }
        }
    }

    /// Ends a claim whose compile has failed, in the background, so that other machines do not wait for it.
    pub(crate) fn end_claim(&self, address: &Address) {
        let Some(worker) = self.worker() else { return };
        let (service, path, pending) = (self.0.service.clone(), path(address), self.begin());
        worker.queue_write(Box::pin(async move {
            let limit = service.settings.timeout;
            let ended = tokio::time::timeout(limit, service.objects.end_claim(&path)).await;
            if !matches!(ended, Ok(Ok(()))) {
                let remote = &service.name;
                tracing::debug!(%remote, path, "a claim lasts until it expires");
            }
            drop(pending);
        }));
    }

    /// Writes an entry's file in the background, and replaces any object there, unless `lookup` is given and finds a
    /// usable object. Never blocks: the entry is not written if the queue is full.
    pub(crate) fn put(&self, address: &Address, file: Vec<u8>, lookup: Option<PendingResponse>) {
        let Inner { service, queue, has_logged_full, .. } = &*self.0;
        if !service.settings.access.writes() {
            return;
        }
        let dropped = &service.counters.remote.writes_dropped;
        if (file.len() + TRAILER) as u64 > service.settings.max_bytes {
            return dropped.add_one();
        }
        let Some(worker) = self.worker() else { return dropped.add_one() };
        let Some(slot) = queue.reserve(file.len() as u64) else {
            if !has_logged_full.swap(true, SeqCst) {
                tracing::warn!(
                    remote = %service.name,
                    "programs are built faster than the remote cache accepts them; some are not \
                     written to it"
                );
            }
            return dropped.add_one();
        };
        let (service, address, pending) = (service.clone(), *address, self.begin());
        worker.queue_write(Box::pin(async move {
            let is_there = match lookup {
                Some(lookup) => lookup.await.is_ok_and(|answer| answer.keeps_object()),
                None => false,
            };
            if !is_there {
                put(&service, &address, file).await;
            }
            drop((slot, pending));
        }));
    }

    pub(super) fn service(&self) -> &Service {
        &self.0.service
    }

    /// Runs a call to the service on the worker, for callers that need its result.
    pub(super) fn run<T, F>(
        &self,
        call: impl FnOnce(Arc<Service>) -> F,
    ) -> impl Future<Output = Result<T>> + Send + 'static
    where
        T: Send + 'static,
        F: Future<Output = std::result::Result<T, Failure>> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        if let Some(worker) = self.worker() {
            let call = catch_panics(call(self.0.service.clone()));
            // The caller may have dropped its future.
            worker.spawn(async move { _ = sender.send(call.await) });
        }
        let remote = self.clone();
        async move {
            let failed = |reason: String| {
                let name = &remote.0.service.name;
                Error::new(ErrorKind::Io, format!("the remote cache {name}: {reason}"))
            };
            match receiver.await {
                Ok(done) => done.map_err(|failure| failed(failure.reason)),
                Err(oneshot::Canceled) => Err(failed("its thread could not be started".to_owned())),
            }
        }
    }

    /// Reports an entry that the driver did not load.
    pub(crate) fn refused(&self, address: &Address, reason: &str) {
        self.0.service.refused(&path(address), reason);
    }

    /// Begins an operation that [`settled`](Self::settled) waits for. It ends when the result is dropped.
    pub(crate) fn begin(&self) -> Pending {
        self.0.background.begin()
    }

    /// Completes once everything that was begun before this call has ended.
    pub(crate) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        let remote = self.clone();
        let builds = self.0.background.settled();
        async move {
            builds.await;
            // A build that ended meanwhile may have begun a write.
            remote.0.background.settled().await;
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Remote").field(&self.0.service.name).finish()
    }
}

/// Lookup in the service that is ready to be started.
pub(crate) struct RemoteLookup {
    request: Request,
    worker: Arc<Worker>,
    patience: Duration,
}

/// Request for an entry.
struct Request {
    service: Arc<Service>,
    address: Address,
    kind: RequestKind,
    /// Expected time of the program's compile, if it is known.
    compile: Option<Duration>,
    /// Whether the entry was looked up before for the same build.
    is_repeated: bool,
}

impl RemoteLookup {
    /// Starts the lookup, and waits for its answer for as long as that is worthwhile.
    pub(crate) async fn response(self) -> Response {
        let (sender, answer) = oneshot::channel();
        let Self { request, worker, patience } = self;
        let (service, is_repeated) = (request.service.clone(), request.is_repeated);
        worker.spawn(look_up(request, sender));
        if patience.is_zero() {
            return Response::Pending(answer);
        }
        // A timer that the system has no resources for ends the wait at once.
        match select(answer, executor::pause(patience)).await {
            Either::Left((answer, _)) => Response::Answer(answer),
            Either::Right((_, answer)) => {
                if !is_repeated {
                    service.record_late();
                }
                Response::Pending(answer)
            }
        }
    }
}

/// Reservation in the write queue, until this is dropped.
struct QueueSlot {
    queue: Arc<Queue>,
    bytes: u64,
}

impl Queue {
    /// Reserves space for an object, or returns `None` if the queue is full.
    fn reserve(self: &Arc<Self>, bytes: u64) -> Option<QueueSlot> {
        let [most_objects, max_bytes] = QUEUE_LIMITS;
        let objects = self.objects.fetch_add(1, SeqCst) + 1;
        let total_bytes = self.bytes.fetch_add(bytes, SeqCst) + bytes;
        let slot = QueueSlot { queue: self.clone(), bytes };
        // If the queue is full, dropping the reservation takes back what was added.
        (objects <= most_objects && total_bytes <= max_bytes).then_some(slot)
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.queue.objects.fetch_sub(1, SeqCst);
        self.queue.bytes.fetch_sub(self.bytes, SeqCst);
    }
}

/// Reads an entry, and sends the answer. Even if the receiver is dropped, the read continues for the longer of
/// the budget and the timeout, so that the state of the service is recorded. After that, it continues only
/// while the receiver exists.
async fn look_up(request: Request, mut sender: oneshot::Sender<Answer>) {
    let Request { service, address, kind, compile, is_repeated } = request;
    let start = Instant::now();
    let budget = service.settings.budget;
    let mut read = Box::pin(catch_panics(service.read(&address)));
    let in_time = tokio::time::timeout(budget, &mut read).await.ok();
    let is_late = in_time.is_none();
    let found = match in_time {
        Some(found) => found,
        None => {
            service.counters.remote.timeouts.add_one();
            // The budget may be shorter than one attempt, or zero.
            let limit = service.settings.timeout.max(budget);
            let abandoned = async {
                tokio::time::sleep(limit - budget).await;
                sender.cancellation().await;
            };
            match select(read, Box::pin(abandoned)).await {
                Either::Left((found, _)) => found,
                Either::Right(_) => Err(Failure::timeout(limit)),
            }
        }
    };
    let counters = &service.counters;
    let answer = match found {
        // A late answer means that the service is slow, not that it is unavailable.
        Ok(found) => {
            if !is_repeated {
                let is_found = matches!(found, ReadOutcome::Entry(_));
                service.record_answer(start.elapsed(), is_found, compile);
            }
            service.succeeded(Direction::Reads);
            if matches!(found, ReadOutcome::Absent) && !is_repeated {
                counters.remote.misses.add_one();
            }
            to_answer(&service, &address, found)
        }
        Err(failure) => {
            if !failure.is_timeout {
                counters.remote.errors.add_one();
            } else if !is_late {
                counters.remote.timeouts.add_one();
            }
            service.failed(Direction::Reads, kind, &failure, start.elapsed().min(budget));
            Answer::Failed(failure.reason)
        }
    };
    // The receiver may be dropped: its build may have compiled the program meanwhile.
    let _ = sender.send(answer);
}

fn to_answer(service: &Service, address: &Address, found: ReadOutcome) -> Answer {
    match found {
        ReadOutcome::Entry(entry) => Answer::Found(entry),
        ReadOutcome::Absent => Answer::Absent,
        ReadOutcome::Refused(refused) => {
            let reason = refused.to_string();
            service.refused(&path(address), &reason);
            Answer::Refused { reason, is_newer: refused.is_newer() }
        }
    }
}

async fn put(service: &Service, address: &Address, file: Vec<u8>) {
    let counters = &service.counters;
    let Some(kind) = service.allow(Direction::Writes) else {
        return counters.remote.writes_dropped.add_one();
    };
    match catch_panics(service.write(address, file)).await {
        Ok(bytes) => {
            counters.remote.writes.add_one();
            counters.remote.bytes_written.add(bytes);
            service.succeeded(Direction::Writes);
        }
        Err(failure) => {
            counters.remote.write_failures.add_one();
            service.failed(Direction::Writes, kind, &failure, Duration::ZERO);
        }
    }
}

/// Turns a panic into a failure: an application's own operator may run any code.
async fn catch_panics<T>(
    call: impl Future<Output = std::result::Result<T, Failure>>,
) -> std::result::Result<T, Failure> {
    let caught = AssertUnwindSafe(call).catch_unwind().await;
    caught.unwrap_or_else(|payload| Err(Failure::panicked(&panic_message(payload))))
}
