//! Storage services that OpenDAL accesses, through an operator that exists from the start or is made when it is
//! first needed.
//!
//! An operator is made later if the machine lacks what it needs, or may lack it: a directory that is mounted
//! later, or certificates. The runtime starts without it and does not wait for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::opendal::{Error, ErrorKind, Operator, Result};
use async_lock::{Mutex, OnceCell};
use bytes::Bytes;
use futures::FutureExt;
use futures_lite::StreamExt;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use crate::cache::remote::error_source;
use crate::cache::remote::objects::{Failure, Limits, Objects, Outcome};

#[derive(Debug)]
pub(super) enum Client {
    Ready(Operator),
    #[cfg_attr(
        not(any(feature = "remote-fs", feature = "remote-s3", feature = "remote-webdav")),
        expect(dead_code, reason = "services with an address are not built in")
    )]
    Deferred(Deferred),
}

/// An operator that is made when it is first needed.
pub(super) struct Deferred {
    operator: OnceCell<Operator>,
    make: Arc<dyn Fn() -> Result<Operator> + Send + Sync>,
    /// Latest attempt to make the operator, until a request has seen its outcome. The attempt may block on a
    /// directory of a machine that does not answer. Keeping it here limits the blocked threads to one.
    making: Mutex<Option<JoinHandle<Result<Operator>>>>,
    can_list: bool,
}

impl Deferred {
    /// Makes the operator when it is first needed, on a thread that `make` may block. Repeats this until it
    /// succeeds.
    #[cfg(any(feature = "remote-fs", feature = "remote-s3", feature = "remote-webdav"))]
    pub(super) fn new(
        can_list: bool,
        make: impl Fn() -> Result<Operator> + Send + Sync + 'static,
    ) -> Self {
        let (operator, making) = (OnceCell::new(), Mutex::default());
        Self { operator, make: Arc::new(make), making, can_list }
    }

    async fn operator(&self) -> Result<&Operator, Failure> {
        let made = || async {
            let mut making = self.making.lock().await;
            let begin = || {
                let make = Arc::clone(&self.make);
                spawn_blocking(move || make())
            };
            let made = making.get_or_insert_with(begin).await;
            *making = None;
            match made {
                Ok(made) => made.map_err(|error| Failure {
                    is_temporary: false,
                    is_permanent: true,
                    ..Failure::from(error)
                }),
                Err(panicked) => Err(Failure::panicked(&panicked.to_string())),
            }
        };
        self.operator.get_or_try_init(made).await
    }
}

impl fmt::Debug for Deferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Deferred").field(&self.operator.get()).finish()
    }
}

impl Client {
    async fn operator(&self) -> Result<&Operator, Failure> {
        match self {
            Self::Ready(operator) => Ok(operator),
            Self::Deferred(deferred) => deferred.operator().await,
        }
    }

    async fn read(&self, path: &str, limits: Limits) -> Result<Option<Vec<u8>>, Failure> {
        let limit = limits.timeout;
        let open = async {
            let operator = self.operator().await?;
            Ok::<_, Failure>(operator.reader(path).await?.into_stream(..).await?)
        };
        let mut stream = timeout(limit, open).await.map_err(|_| Failure::timeout(limit))??;
        let mut bytes = Vec::new();
        loop {
            let next = timeout(limit, stream.next()).await;
            match next.map_err(|_| Failure::timeout(limit))? {
                Some(Ok(parts)) => {
                    for part in parts {
                        // The first part is often the whole object. It is not copied then.
                        if bytes.is_empty() {
                            bytes = part.into();
                        } else {
                            bytes.extend_from_slice(&part);
                        }
                        if bytes.len() as u64 > limits.bytes {
                            return Ok(Some(bytes));
                        }
                    }
                }
                Some(Err(error)) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(Some(bytes)),
            }
        }
    }

    async fn paths(&self, folder: &str, limit: Duration) -> Result<Vec<String>, Failure> {
        let open = async {
            let operator = self.operator().await?;
            Ok::<_, Failure>(operator.lister_with(folder).recursive(true).await?)
        };
        let mut lister = timeout(limit, open).await.map_err(|_| Failure::timeout(limit))??;
        let mut paths = Vec::new();
        while let Some(entry) =
            timeout(limit, lister.next()).await.map_err(|_| Failure::timeout(limit))?.transpose()?
        {
            paths.push(entry.path().to_owned());
        }
        Ok(paths)
    }
}

impl Objects for Client {
    fn can_list(&self) -> bool {
        match self {
            Self::Ready(operator) => operator.info().capability().list,
            Self::Deferred(deferred) => deferred.can_list,
        }
    }

    fn read<'a>(&'a self, path: &'a str, limits: Limits) -> Outcome<'a, Option<Vec<u8>>> {
        self.read(path, limits).boxed()
    }

    fn write<'a>(&'a self, path: &'a str, object: Bytes) -> Outcome<'a, ()> {
        async move {
            let operator = self.operator().await?;
            operator.write(path, object).await.map(drop).map_err(Failure::from)
        }
        .boxed()
    }

    fn paths<'a>(&'a self, folder: &'a str, timeout: Duration) -> Outcome<'a, Vec<String>> {
        self.paths(folder, timeout).boxed()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = error.kind();
        // HTTP clients report an untrusted certificate as a failure to connect.
        let is_distrust = error_source::is_distrust(&error);
        Self {
            // Clients have time-outs of their own.
            is_timeout: error_source::is_timeout(&error),
            is_temporary: error.is_temporary() && !is_distrust,
            is_permanent: is_distrust
                || matches!(
                    kind,
                    ErrorKind::PermissionDenied | ErrorKind::ConfigInvalid | ErrorKind::Unsupported
                ),
            reason: error_source::full_message(&error),
        }
    }
}
