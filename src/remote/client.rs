//! What a service is spoken to through: an operator of OpenDAL, there from the start, or made when it
//! is first needed.
//!
//! The latter where the machine lacks what it is made of, or may lack it: a directory that is yet to be
//! mounted, or certificates. No runtime fails to start for that, or waits for it.
#![cfg_attr(
    not(any(feature = "remote-redis", feature = "remote-s3", feature = "remote-webdav")),
    expect(dead_code, reason = "some services are not built in")
)]

use std::fmt;
use std::sync::Arc;

use opendal::{Error, ErrorKind, Operator, Result};
use tokio::sync::{Mutex, OnceCell};
use tokio::task::{JoinHandle, spawn_blocking};

use super::service::Failure;

#[derive(Debug)]
pub(super) enum Client {
    There(Operator),
    Later(Later),
}

pub(super) struct Later {
    operator: OnceCell<Operator>,
    make: Arc<dyn Fn() -> Result<Operator> + Send + Sync>,
    /// The latest try to make it, until somebody has heard how that ended: it may be on a
    /// directory of a machine that does not answer, and one thread is enough to wait there.
    making: Mutex<Option<JoinHandle<Result<Operator>>>>,
    can_list: bool,
}

impl Client {
    /// Through what is made with a client for HTTP, now if the machine has what that takes.
    ///
    /// OpenDAL makes one of its own for operators of all kinds, and panics, then and ever after,
    /// where that fails: so it is tried before.
    pub(super) fn made(
        can_list: bool,
        make: impl Fn(reqwest::Client) -> Result<Operator> + Send + Sync + 'static,
    ) -> Result<Self> {
        match http_client() {
            Ok(client) => make(client).map(Self::There),
            Err(_) => Ok(Self::made_later(can_list, make)),
        }
    }

    /// As [`made`](Self::made), but when it is first needed, on a thread that it may block, and
    /// again until it succeeds.
    pub(super) fn made_later(
        can_list: bool,
        make: impl Fn(reqwest::Client) -> Result<Operator> + Send + Sync + 'static,
    ) -> Self {
        let make = Arc::new(move || make(http_client()?));
        let (operator, making) = (OnceCell::new(), Mutex::default());
        Self::Later(Later { operator, make, making, can_list })
    }

    /// Whether the service can tell what it has.
    pub(super) fn can_list(&self) -> bool {
        match self {
            Self::There(operator) => operator.info().full_capability().list,
            Self::Later(later) => later.can_list,
        }
    }

    /// Needs the worker's runtime. May be given up at any time.
    pub(super) async fn operator(&self) -> Result<&Operator, Failure> {
        match self {
            Self::There(operator) => Ok(operator),
            Self::Later(later) => later.operator().await,
        }
    }
}

fn http_client() -> Result<reqwest::Client> {
    reqwest::Client::builder().build().map_err(|error| {
        let message = "no client for HTTP can be made, which OpenDAL has for all services";
        Error::new(ErrorKind::Unexpected, message).set_source(error)
    })
}

impl Later {
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

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Later").field(&self.operator.get()).finish()
    }
}
