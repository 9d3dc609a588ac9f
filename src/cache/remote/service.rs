//! Access to one storage service: reads and writes of objects, with time-outs inside retries, and a record of
//! its health.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::{sleep, timeout};

use super::breaker::{Breaker, Change, RequestKind};
use super::claim::AnswerWait;
use super::claim_record::ClaimRecord;
use super::envelope::{self, Refused};
use super::latency::LatencyRecord;
use super::objects::{Failure, Limits, Objects};
use super::settings::Settings;
use crate::cache::store::{Address, Entry, SUFFIX};
use crate::counters::Counters;
use crate::process::warning::{self, RepeatedWarning};
use crate::sync::lock;

/// Pauses before the retries of a failed attempt, without jitter.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(200)];

/// Slowest accepted rate of writes, in bytes per second. A write reports no progress, so its limit is the
/// time-out plus the time for its bytes at this rate.
const WRITE_RATE: u64 = 1 << 20;

/// Shortest wait of a build for a request that failed which is worth a warning.
const SLOW: Duration = Duration::from_secs(1);

/// Folder of all objects of this version.
const FOLDER: &str = "v1/";

/// A service and the record of its health. Its futures need the worker's runtime.
#[derive(Debug)]
pub(super) struct Service {
    /// Name for messages, without secrets.
    pub(super) name: String,
    pub(super) objects: Box<dyn Objects>,
    pub(super) settings: Settings,
    pub(super) counters: Arc<Counters>,
    health: Mutex<Health>,
    /// Warnings of objects that are not used, and of requests that failed after builds waited for them.
    unused: RepeatedWarning,
    slow_failures: RepeatedWarning,
}

/// Direction of a request. Each direction has a circuit breaker of its own: a service that is full or read-only
/// still answers reads.
#[derive(Clone, Copy, Debug)]
pub(super) enum Direction {
    Reads,
    Writes,
}

#[derive(Debug)]
struct Health {
    reads: Breaker,
    writes: Breaker,
    /// Breaker of claims. A service that refuses them is used without them.
    claims: Breaker,
    claimed: ClaimRecord,
    latency: LatencyRecord,
}

/// Result of reading the object of an address.
#[derive(Debug)]
pub(super) enum ReadOutcome {
    Entry(Entry),
    Absent,
    Refused(Refused),
}

impl Service {
    pub(super) fn new(
        name: String,
        objects: Box<dyn Objects>,
        settings: Settings,
        counters: Arc<Counters>,
    ) -> Self {
        let health = Mutex::new(Health {
            reads: Breaker::default(),
            writes: Breaker::default(),
            claims: Breaker::default(),
            claimed: ClaimRecord::default(),
            latency: LatencyRecord::new(settings.budget),
        });
        Self {
            name,
            objects,
            settings,
            counters,
            health,
            unused: RepeatedWarning::new(),
            slow_failures: RepeatedWarning::new(),
        }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        lock(&self.health)
    }

    /// Returns how long a build waits for the answer to a request that begins now. `compile` is the expected time of its
    /// compile, if it is known.
    pub(super) fn patience(&self, kind: RequestKind, compile: Option<Duration>) -> Duration {
        match kind {
            RequestKind::Ordinary => self.health().latency.patience(compile),
            RequestKind::Probe => Duration::ZERO,
        }
    }

    /// Returns the kind of request that the circuit breaker of a direction allows now, if any.
    pub(super) fn allow(&self, direction: Direction) -> Option<RequestKind> {
        self.health().breaker(direction).allow(Instant::now())
    }

    pub(super) fn record_late(&self) {
        self.health().latency.record_late();
    }

    pub(super) fn record_answer(&self, took: Duration, found: bool, compile: Option<Duration>) {
        self.health().latency.record_answer(took, found, compile);
    }

    /// Returns how long a build waits for the answer to a claim, and the kind of that request. `None` if no claim is
    /// possible at present. Each claim must be followed by one call of [`record_claim`](Self::record_claim).
    pub(super) fn allow_claim(
        &self,
        compile: Option<Duration>,
        wait: AnswerWait,
    ) -> Option<(Duration, RequestKind)> {
        let access = self.settings.access;
        if !access.reads() || !access.writes() || !self.objects.can_claim() {
            return None;
        }
        let mut health = self.health();
        if !health.reads.is_closed() || !health.writes.is_closed() {
            return None;
        }
        let kind = health.claims.allow(Instant::now())?;
        let budget = self.settings.budget;
        let patience = match wait {
            AnswerWait::Worthwhile => health.claimed.patience(compile, budget),
            AnswerWait::Late => health.claimed.late_patience(compile, budget),
            AnswerWait::UpTo(patience) => patience,
        };
        Some((patience, kind))
    }

    /// Records the outcome of a claim: whether it `is_held` by this machine, and the time that the answer took. Failures
    /// are harmless: the program is compiled without a claim.
    pub(super) fn record_claim(
        &self,
        kind: RequestKind,
        is_held: &Result<bool, Failure>,
        took: Duration,
    ) {
        let mut health = self.health();
        match is_held {
            Ok(is_held) => {
                health.claimed.record(took, !is_held);
                health.claims.succeeded();
            }
            Err(failure) => {
                health.claims.failed(Instant::now(), kind, failure.is_permanent);
                drop(health);
                let (remote, reason) = (&self.name, &failure.reason);
                tracing::debug!(%remote, %reason, "a compile could not be claimed");
            }
        }
    }

    pub(super) fn succeeded(&self, direction: Direction) {
        let changed = self.health().breaker(direction).succeeded();
        if changed == Change::Closed {
            let what = direction.in_words();
            tracing::info!(remote = %self.name, "the remote cache can be {what} again");
        }
    }

    /// Records a request that failed, after a build may have waited for `waited`.
    pub(super) fn failed(
        &self,
        direction: Direction,
        kind: RequestKind,
        failure: &Failure,
        waited: Duration,
    ) {
        let changed = {
            let mut health = self.health();
            health.breaker(direction).failed(Instant::now(), kind, failure.is_permanent)
        };
        let (remote, reason, what) = (&self.name, &failure.reason, direction.in_words());
        if changed == Change::Opened {
            tracing::warn!(
                %remote,
                %reason,
                "the remote cache cannot be {what}; programs are built without it, and it is \
                 retried at intervals"
            );
            warning::show(&format!(
                "the remote cache {remote} cannot be {what}: {reason}; programs are built without it"
            ));
            return;
        }
        let due = if waited < SLOW { None } else { self.slow_failures.due() };
        match due {
            Some(count) => tracing::warn!(
                %remote, %reason, count,
                "builds waited for requests to the remote cache that failed"
            ),
            None => tracing::debug!(%remote, %reason, "the remote cache could not be {what}"),
        }
    }

    /// Reports an object that is not used, so that its program is built.
    pub(super) fn refused(&self, path: &str, reason: &str) {
        self.counters.remote.refused.add_one();
        let remote = &self.name;
        match self.unused.due() {
            Some(count) => tracing::warn!(
                %remote, path, %reason, count,
                "objects of the remote cache are not used, and their programs are built again"
            ),
            None => {
                tracing::debug!(%remote, path, %reason, "an object of the remote cache is not used");
            }
        }
    }

    /// Reads and verifies the entry of an address.
    pub(super) async fn read(&self, address: &Address) -> Result<ReadOutcome, Failure> {
        let path = path(address);
        let limits = Limits { bytes: self.settings.max_bytes, timeout: self.settings.timeout };
        let bytes = self.with_retries(|| self.objects.read(&path, limits)).await?;
        Ok(match bytes {
            // No object is empty: each ends with a trailer.
            Some(bytes) if bytes.is_empty() => ReadOutcome::Absent,
            Some(bytes) if bytes.len() as u64 > self.settings.max_bytes => {
                ReadOutcome::Refused(Refused::TooLarge { max_bytes: self.settings.max_bytes })
            }
            Some(bytes) => {
                self.counters.remote.bytes_read.add(bytes.len() as u64);
                match envelope::open(&address.key, bytes, self.settings.secret.as_ref()) {
                    Ok(entry) => ReadOutcome::Entry(entry),
                    Err(refused) => ReadOutcome::Refused(refused),
                }
            }
            None => ReadOutcome::Absent,
        })
    }

    /// Writes an entry's file, and replaces any object there. Returns the number of bytes written.
    pub(super) async fn write(&self, address: &Address, file: Vec<u8>) -> Result<u64, Failure> {
        let path = path(address);
        let object = Bytes::from(envelope::seal(file, self.settings.secret.as_ref()));
        let length = object.len() as u64;
        let limit = self.settings.timeout + Duration::from_secs(length / WRITE_RATE);
        self.with_retries(|| async {
            let write = self.objects.write(&path, object.clone());
            timeout(limit, write).await.map_err(|_| Failure::timeout(limit))?
        })
        .await?;
        Ok(length)
    }

    /// Lists the names of all entries. Fails if the service cannot list its objects.
    pub(super) async fn names(&self) -> Result<Vec<String>, Failure> {
        let paths = self.objects.paths(FOLDER, self.settings.timeout).await?;
        Ok(paths.iter().filter_map(|path| name_of(path)).collect())
    }

    async fn with_retries<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        attempt: impl Fn() -> F,
    ) -> Result<T, Failure> {
        for pause in PAUSES {
            match attempt().await {
                Err(failure) if failure.is_temporary => {
                    tracing::debug!(remote = %self.name, reason = %failure.reason, "trying again");
                }
                result => return result,
            }
            sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
        }
        attempt().await
    }
}

impl Health {
    fn breaker(&mut self, direction: Direction) -> &mut Breaker {
        match direction {
            Direction::Reads => &mut self.reads,
            Direction::Writes => &mut self.writes,
        }
    }
}

impl Direction {
    fn in_words(self) -> &'static str {
        match self {
            Self::Reads => "read",
            Self::Writes => "written",
        }
    }
}

/// Returns the path of an address's object: the folder of the version, and the name of the entry on disk
/// without its suffix.
pub(super) fn path(address: &Address) -> String {
    let name = address.name();
    format!("{FOLDER}{}", name.strip_suffix(SUFFIX).unwrap_or(&name))
}

/// Returns the name of the entry whose object has this path, or `None` if it is not the path of an object.
fn name_of(path: &str) -> Option<String> {
    let name = format!("{}{SUFFIX}", path.trim_start_matches('/').strip_prefix(FOLDER)?);
    Address::named(&name).is_ok().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::BuildKey;

    #[test]
    fn an_object_is_found_by_its_own_path_only() {
        let address = Address { device: [1; 8], key: BuildKey([0xAB; 32]) };
        let path = path(&address);
        assert_eq!(path, format!("v1/0101010101010101/ab/{}", "ab".repeat(31)));
        assert_eq!(name_of(&path), Some(address.name()));
        for other in ["", "v1/", "v1/tmp/x", &path[3..], &format!("{path}.kiln"), &path[..70]] {
            assert_eq!(name_of(other), None, "{other}");
        }
    }
}
