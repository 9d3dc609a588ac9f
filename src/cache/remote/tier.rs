//! The remote cache as the build graph uses it: asked for entries, and given them.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::channel::oneshot;
use futures::future::{Either, join, select};

use super::answer::{Answer, Coming, Heard};
use super::breaker::Try;
use super::envelope::TRAILER;
use super::objects::Objects;
#[cfg(feature = "remote-opendal")]
use super::opendal::RemoteOperator;
use super::service::{Failure, Found, Of, Service, path};
use super::settings::Settings;
use super::url::{Located, locate};
use super::worker::Worker;
use crate::cache::store::{Address, Behind, Pending};
use crate::error::{Error, ErrorKind, Result, panic_message};
use crate::stats::Counters;

/// What may be waiting to be written: so many objects, of so many bytes together.
const QUEUE: [u64; 2] = [1024, 256 << 20];

/// A remote cache. A handle, cheap to clone. Its thread starts when it is first needed, and ends
/// with the last handle, once what is queued has been written.
#[derive(Clone)]
pub(crate) struct Remote(Arc<Inner>);

struct Inner {
    service: Arc<Service>,
    worker: OnceLock<Arc<Worker>>,
    queue: Arc<Queue>,
    behind: Behind,
    has_told_full: AtomicBool,
}

/// What is waiting to be written.
#[derive(Debug, Default)]
struct Queue {
    objects: AtomicU64,
    bytes: AtomicU64,
}

impl Remote {
    /// That of an address.
    pub(crate) fn at(url: &str, settings: Settings, counters: Arc<Counters>) -> Result<Self> {
        let Located { objects, name } = locate(url, &settings)?;
        Ok(Self::new(name, objects, settings, counters))
    }

    /// A remote cache through an application's own operator.
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
            behind: Behind::default(),
            has_told_full: AtomicBool::new(false),
        }))
    }

    fn worker(&self) -> Option<&Arc<Worker>> {
        let worker = &self.0.worker;
        if worker.get().is_none() {
            match Worker::start() {
                // Another thread may have started one meanwhile: this one ends then.
                Ok(started) => _ = worker.set(started),
                Err(error) => {
                    tracing::warn!(%error, "no thread for the remote cache; the next use tries again");
                }
            }
        }
        worker.get()
    }

    /// What asks for an entry; `None` where that is no use. Counts as a try of the service, so it is
    /// to be asked. Never blocks.
    pub(crate) fn question(&self, address: &Address) -> Option<Question> {
        let service = &self.0.service;
        if !service.settings.access.reads() {
            return None;
        }
        let worker = self.worker()?.clone();
        let tried = service.allow(Of::Reads)?;
        let patience = service.patience(tried);
        Some(Question { service: service.clone(), worker, address: *address, tried, patience })
    }

    /// Writes an entry's file behind the caller, in the place of what is there. Never blocks: where
    /// too much waits to be written, it is not.
    pub(crate) fn put(&self, address: &Address, file: Vec<u8>) {
        let Inner { service, queue, has_told_full, .. } = &*self.0;
        if !service.settings.access.writes() {
            return;
        }
        let dropped = &service.counters.remote_writes_dropped;
        if (file.len() + TRAILER) as u64 > service.settings.most_bytes {
            return dropped.add_one();
        }
        let Some(worker) = self.worker() else { return dropped.add_one() };
        let Some(place) = queue.place(file.len() as u64) else {
            if !has_told_full.swap(true, SeqCst) {
                tracing::warn!(
                    remote = %service.name,
                    "programs are built faster than the remote cache takes them; not all are \
                     written to it"
                );
            }
            return dropped.add_one();
        };
        let (service, address, pending) = (service.clone(), *address, self.begin());
        worker.write(Box::pin(async move {
            put(&service, &address, file).await;
            drop((place, pending));
        }));
    }

    pub(super) fn service(&self) -> &Service {
        &self.0.service
    }

    /// Has the service do something, for whoever cannot do without.
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
            let call = caught(call(self.0.service.clone()));
            // Whoever asked may have gone.
            worker.ask(async move { _ = sender.send(call.await) });
        }
        let remote = self.clone();
        async move {
            let failed = |reason: String| {
                let name = &remote.0.service.name;
                Error::new(ErrorKind::Io, format!("the remote cache {name}: {reason}"))
            };
            match receiver.await {
                Ok(done) => done.map_err(|failure| failed(failure.reason)),
                Err(oneshot::Canceled) => Err(failed("there is no thread for it".to_owned())),
            }
        }
    }

    /// A compile took so long: what waiting for the remote is measured by.
    pub(crate) fn compiled(&self, took: Duration) {
        self.0.service.compiled(took);
    }

    /// A build waited for as long as it was worth, and had no answer.
    pub(crate) fn is_late(&self) {
        self.0.service.is_late();
    }

    /// Tells of an entry that the driver would not load.
    pub(crate) fn refused(&self, address: &Address, reason: &str) {
        self.0.service.refused(&path(address), reason);
    }

    /// Something that [`settled`](Self::settled) waits for.
    pub(crate) fn begin(&self) -> Pending {
        self.0.behind.begin()
    }

    /// Completes when everything that was begun before this call has ended.
    pub(crate) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        let remote = self.clone();
        let builds = self.0.behind.settled();
        async move {
            builds.await;
            // A build that ended meanwhile may have begun to write.
            remote.0.behind.settled().await;
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Remote").field(&self.0.service.name).finish()
    }
}

/// A question to the service that is about to be asked.
pub(crate) struct Question {
    service: Arc<Service>,
    worker: Arc<Worker>,
    address: Address,
    tried: Try,
    patience: Duration,
}

impl Question {
    /// How long the answer is worth waiting for before the compile starts.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    pub(crate) fn ask(self) -> Coming {
        let (sender, answer) = oneshot::channel();
        self.worker.ask(ask(self.service, self.address, self.tried, sender));
        answer
    }

    /// Asks, and calls `then` with the answer, or once it is no longer worth the wait. That is on the
    /// remote cache's own thread: it must not block.
    pub(crate) fn ask_and(self, then: impl FnOnce(Heard) + Send + 'static) {
        let (sender, mut answer) = oneshot::channel();
        let asking = ask(self.service, self.address, self.tried, sender);
        let waiting = async move {
            then(match tokio::time::timeout(self.patience, &mut answer).await {
                Ok(answer) => Heard::Answer(answer),
                Err(_) => Heard::Nothing(answer),
            });
        };
        // One task: the answer is heard in the poll in which it comes.
        self.worker.ask(async { _ = join(asking, waiting).await });
    }
}

/// A place in the queue, until this is dropped.
struct Place {
    queue: Arc<Queue>,
    bytes: u64,
}

impl Queue {
    fn place(self: &Arc<Self>, bytes: u64) -> Option<Place> {
        let [most_objects, most_bytes] = QUEUE;
        let objects = self.objects.fetch_add(1, SeqCst) + 1;
        let all = self.bytes.fetch_add(bytes, SeqCst) + bytes;
        let place = Place { queue: self.clone(), bytes };
        // Dropping it takes back what was added.
        (objects <= most_objects && all <= most_bytes).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.queue.objects.fetch_sub(1, SeqCst);
        self.queue.bytes.fetch_sub(self.bytes, SeqCst);
    }
}

/// Reads an entry. Within the budget, and for as long as a try may go without progress, it goes on
/// whoever still wants it, so that what the service does is known; after that only while somebody
/// does.
async fn ask(
    service: Arc<Service>,
    address: Address,
    tried: Try,
    mut sender: oneshot::Sender<Answer>,
) {
    let start = Instant::now();
    let budget = service.settings.budget;
    let mut read = Box::pin(caught(service.read(&address)));
    let in_time = tokio::time::timeout(budget, &mut read).await.ok();
    let is_late = in_time.is_none();
    let found = match in_time {
        Some(found) => found,
        None => {
            service.counters.remote_timeouts.add_one();
            // Builds may have less patience than a try takes, or none.
            let limit = service.settings.timeout.max(budget);
            let given_up = async {
                tokio::time::sleep(limit - budget).await;
                sender.cancellation().await;
            };
            match select(read, Box::pin(given_up)).await {
                Either::Left((found, _)) => found,
                Either::Right(_) => Err(Failure::timeout(limit)),
            }
        }
    };
    let counters = &service.counters;
    let answer = match found {
        // Late, it is slow, and not sick.
        Ok(found) => {
            service.answered(start.elapsed(), matches!(found, Found::Entry(_)));
            service.succeeded(Of::Reads);
            if matches!(found, Found::Nothing) {
                counters.remote_misses.add_one();
            }
            answer(&service, &address, found)
        }
        Err(failure) => {
            if !failure.is_timeout {
                counters.remote_errors.add_one();
            } else if !is_late {
                counters.remote_timeouts.add_one();
            }
            service.failed(Of::Reads, tried, &failure);
            Answer::Failed(failure.reason)
        }
    };
    // Whoever asked may have compiled it meanwhile.
    let _ = sender.send(answer);
}

fn answer(service: &Service, address: &Address, found: Found) -> Answer {
    match found {
        Found::Entry(entry) => Answer::Found(entry),
        Found::Nothing => Answer::Absent,
        Found::Refused(refused) => {
            let reason = refused.to_string();
            service.refused(&path(address), &reason);
            Answer::Refused { reason, is_newer: refused.is_newer() }
        }
    }
}

async fn put(service: &Service, address: &Address, file: Vec<u8>) {
    let counters = &service.counters;
    let Some(tried) = service.allow(Of::Writes) else {
        return counters.remote_writes_dropped.add_one();
    };
    match caught(service.write(address, file)).await {
        Ok(bytes) => {
            counters.remote_writes.add_one();
            counters.remote_bytes_written.add(bytes);
            service.succeeded(Of::Writes);
        }
        Err(failure) => {
            counters.remote_write_failures.add_one();
            service.failed(Of::Writes, tried, &failure);
        }
    }
}

/// An application's own operator may be anything.
async fn caught<T>(
    call: impl Future<Output = std::result::Result<T, Failure>>,
) -> std::result::Result<T, Failure> {
    let caught = AssertUnwindSafe(call).catch_unwind().await;
    caught.unwrap_or_else(|payload| Err(Failure::panicked(&panic_message(payload))))
}
