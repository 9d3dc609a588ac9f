//! Access to the objects of any storage service, and the failures of requests.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;

/// Outcome of one request to a storage service.
pub(super) type Outcome<'a, T> = BoxFuture<'a, Result<T, Failure>>;

/// Objects of a storage service. The futures need the worker's runtime, do not retry requests, and may be
/// dropped at any time.
pub(super) trait Objects: fmt::Debug + Send + Sync {
    /// Returns whether [`paths`](Self::paths) works.
    fn can_list(&self) -> bool;

    /// Reads an object, or returns `None` if there is none. Stops once more than `limits.bytes` bytes were
    /// read, which shows that the object is larger.
    fn read<'a>(&'a self, path: &'a str, limits: Limits) -> Outcome<'a, Option<Vec<u8>>>;

    /// Writes an object, and replaces an existing one.
    fn write<'a>(&'a self, path: &'a str, object: Bytes) -> Outcome<'a, ()>;

    /// Returns whether [`claim`](Self::claim) works.
    fn can_claim(&self) -> bool {
        false
    }

    /// Creates an empty object that expires after `lifetime`, unless there is an object, in one atomic step. Readers
    /// find no object then. Returns whether it was created.
    fn claim<'a>(&'a self, _path: &'a str, _lifetime: Duration) -> Outcome<'a, bool> {
        std::future::ready(Err(Failure::unsupported("the service has no claims"))).boxed()
    }

    /// Makes a claim expire now.
    fn end_claim<'a>(&'a self, _path: &'a str) -> Outcome<'a, ()> {
        std::future::ready(Err(Failure::unsupported("the service has no claims"))).boxed()
    }

    /// Lists the paths of all objects in a folder and its subfolders.
    fn paths<'a>(&'a self, folder: &'a str, timeout: Duration) -> Outcome<'a, Vec<String>>;
}

/// Limits of a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Size of the largest object that is used.
    pub(super) bytes: u64,
    /// Longest time without progress.
    pub(super) timeout: Duration,
}

/// Reason why a read or write failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) reason: String,
    /// Whether the service did not answer in time.
    pub(super) is_timeout: bool,
    /// Whether a retry may succeed.
    pub(super) is_temporary: bool,
    /// Whether no later request can succeed, for example because the credentials are refused.
    pub(super) is_permanent: bool,
}

impl Failure {
    pub(super) fn timeout(limit: Duration) -> Self {
        let reason = format!("no answer within {limit:?}");
        Self { reason, is_timeout: true, is_temporary: true, is_permanent: false }
    }

    pub(super) fn unsupported(reason: &str) -> Self {
        let reason = reason.to_owned();
        Self { reason, is_timeout: false, is_temporary: false, is_permanent: true }
    }

    pub(super) fn panicked(message: &str) -> Self {
        let reason = format!("the service's client panicked: {message}");
        Self { reason, is_timeout: false, is_temporary: false, is_permanent: true }
    }
}
