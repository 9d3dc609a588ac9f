//! Redis, with one request for each object read or written.
//!
//! Two connections are enough, since each carries concurrent requests of all builds: one for reads and one for
//! writes, so that builds do not wait for writes. Connections are not probed before a request: a failed request
//! shows that its connection is lost.
//!
//! `GETRANGE` reads a value, up to one byte more than the limit: Redis does not send the rest of a larger
//! value, and no separate request for its length is needed. An empty value and a missing one then look the
//! same, which is harmless because no object is empty. A claim is therefore an empty value in the place of the
//! object, which the object replaces: readers without claims find nothing. A reply that is larger nevertheless ends
//! its connection.

mod address;
mod connect;
mod replies;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use async_lock::Mutex;
use bytes::Bytes;
use futures::FutureExt;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    Cmd, ConnectionInfo, FromRedisValue, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    RedisResult, ServerErrorKind,
};

use self::connect::Node;
use super::error_source;
use super::objects::{Failure, Limits, Objects, Outcome};
use super::settings::Settings;
use super::url::ServiceUrl;
use crate::error::Result;

/// Maximum number of redirections that the client of a cluster follows for one value.
const REDIRECTIONS: u32 = 3;

/// Location of a Redis server or cluster, its credentials, and the settings of stored values.
pub(super) struct Address {
    /// `redis://host:port`, or `rediss://`; several for the first nodes of a cluster.
    pub(super) endpoints: Vec<String>,
    pub(super) is_cluster: bool,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
    /// First part of all keys, without slashes at its ends.
    pub(super) root: String,
    /// Time after which written objects expire.
    pub(super) ttl: Option<Duration>,
}

/// Returns access to the objects at an address. Connects to nothing.
pub(super) fn locate(address: &ServiceUrl, settings: &Settings) -> Result<Redis> {
    let address = Address::parse(address)?;
    Redis::new(&address, settings).map_err(|error| {
        let unusable = "the service cannot be used".to_owned();
        super::url::address_error(unusable).with_source(error)
    })
}

/// Objects stored as Redis values.
pub(super) struct Redis {
    /// First part of all keys: empty, or ending with a slash.
    prefix: String,
    reads: LazyConnection,
    writes: LazyConnection,
    ttl: Option<Duration>,
}

/// Omits the clients, whose `Debug` output shows credentials.
impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Redis {
    fn new(address: &Address, settings: &Settings) -> RedisResult<Self> {
        let peer = address.peer(settings)?;
        let folders = address.root.split('/').filter(|folder| !folder.is_empty());
        Ok(Self {
            prefix: folders.map(|folder| format!("{folder}/")).collect(),
            reads: LazyConnection::new(peer.clone()),
            writes: LazyConnection::new(peer),
            ttl: address.ttl,
        })
    }

    async fn read(&self, path: &str, limits: Limits) -> RedisResult<Option<Vec<u8>>> {
        let mut command = redis::cmd("GETRANGE");
        // The last position is included, so this is one byte more than the limit. Positions are signed.
        let last = limits.bytes.min(i64::MAX as u64);
        command.arg(self.key(path)).arg(0).arg(last);
        let value: Vec<u8> = self.reads.request(&command).await?;
        Ok(Some(value).filter(|value| !value.is_empty()))
    }

    async fn write(&self, path: &str, value: &[u8]) -> RedisResult<()> {
        let mut command = redis::cmd("SET");
        command.arg(self.key(path)).arg(value);
        if let Some(ttl) = self.ttl {
            command.arg("EX").arg(ttl.as_secs());
        }
        self.writes.request(&command).await
    }

    /// Sets a value that is empty, unless there is one, with an expiry. Uses the connection for reads, so that a build
    /// does not wait for writes.
    async fn claim(&self, path: &str, lifetime: Duration) -> RedisResult<bool> {
        let mut command = redis::cmd("SET");
        command.arg(self.key(path)).arg("").arg("NX").arg("PX").arg(milliseconds(lifetime));
        // The answer is nil if there is a value.
        let set: Option<String> = self.reads.request(&command).await?;
        Ok(set.is_some())
    }

    /// Lets an empty value expire at once. If another machine has written an object meanwhile, that expires as well, which
    /// costs one more compile.
    async fn end_claim(&self, path: &str) -> RedisResult<()> {
        let mut command = redis::cmd("SET");
        command.arg(self.key(path)).arg("").arg("XX").arg("PX").arg(1);
        self.writes.request(&command).await
    }

    fn key(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }
}

impl Objects for Redis {
    fn can_list(&self) -> bool {
        false
    }

    fn read<'a>(&'a self, path: &'a str, limits: Limits) -> Outcome<'a, Option<Vec<u8>>> {
        let Limits { timeout, .. } = limits;
        async move {
            let read = tokio::time::timeout(timeout, self.read(path, limits)).await;
            read.map_err(|_| Failure::timeout(timeout))?.map_err(Failure::from)
        }
        .boxed()
    }

    fn write<'a>(&'a self, path: &'a str, object: Bytes) -> Outcome<'a, ()> {
        async move { self.write(path, &object).await.map_err(Failure::from) }.boxed()
    }

    fn can_claim(&self) -> bool {
        true
    }

    fn claim<'a>(&'a self, path: &'a str, lifetime: Duration) -> Outcome<'a, bool> {
        async move { self.claim(path, lifetime).await.map_err(Failure::from) }.boxed()
    }

    fn end_claim<'a>(&'a self, path: &'a str) -> Outcome<'a, ()> {
        async move { self.end_claim(path).await.map_err(Failure::from) }.boxed()
    }

    fn paths<'a>(&'a self, _: &'a str, _: Duration) -> Outcome<'a, Vec<String>> {
        let unsupported = Failure::unsupported("Redis does not list its objects");
        std::future::ready(Err(unsupported)).boxed()
    }
}

/// Returns a time as Redis takes it, in milliseconds and at least one.
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Connection that is opened when it is first needed, and again after it is lost. It carries several requests
/// at a time.
struct LazyConnection {
    peer: Peer,
    latest: Mutex<Option<Connection>>,
}

/// Server or cluster to connect to.
#[derive(Clone)]
enum Peer {
    /// A server, and the maximum size of its replies in bytes.
    Node(Box<ConnectionInfo>, u64),
    Cluster(Box<ClusterClient>),
}

/// An open connection, which concurrent requests share.
#[derive(Clone)]
struct Connection {
    client: Client,
    is_lost: Arc<AtomicBool>,
}

#[derive(Clone)]
enum Client {
    Node(Node),
    Cluster(ClusterConnection<Node>),
}

impl LazyConnection {
    fn new(peer: Peer) -> Self {
        Self { peer, latest: Mutex::default() }
    }

    /// Sends a command, which may be repeated, and returns the answer.
    async fn request<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let (connection, is_new) = self.connection().await?;
        let answer = connection.request(command).await;
        // Servers close connections that were idle for a long time.
        if answer.is_err() && !is_new && connection.is_lost.load(SeqCst) {
            return self.connection().await?.0.request(command).await;
        }
        answer
    }

    /// Returns the connection, and whether it is new.
    async fn connection(&self) -> RedisResult<(Connection, bool)> {
        let mut latest = self.latest.lock().await;
        if let Some(connection) = &*latest
            && !connection.is_lost.load(SeqCst)
        {
            return Ok((connection.clone(), false));
        }
        let client = match &self.peer {
            Peer::Node(node, max_bytes) => Client::Node(Node::connect(node, *max_bytes).await?),
            Peer::Cluster(client) => Client::Cluster(client.get_async_generic_connection().await?),
        };
        let connection = Connection { client, is_lost: Arc::default() };
        *latest = Some(connection.clone());
        Ok((connection, true))
    }
}

impl Connection {
    async fn request<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        // If the caller stops waiting for the answer, the connection counts as lost: later requests on it would
        // wait behind this one.
        let mut in_flight = InFlightRequest { is_lost: &self.is_lost, has_failed: true };
        let answer = match self.client.clone() {
            Client::Node(mut connection) => command.query_async(&mut connection).await,
            Client::Cluster(mut connection) => command.query_async(&mut connection).await,
        };
        in_flight.has_failed = answer.as_ref().is_err_and(RedisError::is_unrecoverable_error);
        answer
    }
}

/// Request in flight. If it fails or is dropped, its connection is marked as lost.
struct InFlightRequest<'a> {
    is_lost: &'a AtomicBool,
    has_failed: bool,
}

impl Drop for InFlightRequest<'_> {
    fn drop(&mut self) {
        if self.has_failed {
            self.is_lost.store(true, SeqCst);
        }
    }
}

impl Address {
    /// Returns the server or cluster to connect to. The time-out applies to connections of a cluster only:
    /// other connection attempts end with the request that waits for them.
    fn peer(&self, settings: &Settings) -> RedisResult<Peer> {
        let mut nodes = self.endpoints.iter().map(|endpoint| self.node(endpoint));
        let max_bytes = connect::max_reply_bytes(settings.max_bytes);
        if !self.is_cluster {
            let missing = (redis::ErrorKind::InvalidClientConfig, "no host is named");
            return Ok(Peer::Node(Box::new(nodes.next().ok_or(missing)??), max_bytes));
        }
        connect::raise_cluster_limits(max_bytes, settings.timeout);
        let builder = ClusterClient::builder(nodes.collect::<RedisResult<Vec<_>>>()?)
            .tcp_settings(tcp())
            .retries(REDIRECTIONS)
            .connection_timeout(settings.timeout)
            .overall_response_timeout(None);
        Ok(Peer::Cluster(Box::new(builder.build()?)))
    }

    fn node(&self, endpoint: &str) -> RedisResult<ConnectionInfo> {
        let mut settings =
            RedisConnectionInfo::default().set_db(self.database).set_skip_set_lib_name();
        if let Some(username) = &self.username {
            settings = settings.set_username(username);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        let node = endpoint.into_connection_info()?;
        Ok(node.set_redis_settings(settings).set_tcp_settings(tcp()))
    }
}

fn tcp() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// Describes an error, and classifies whether another try may succeed.
impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, Moved, NoPerm, TryAgain};
        use redis::ErrorKind::{
            AuthenticationFailed, ClusterConnectionNotFound, InvalidClientConfig, Io, Server,
        };

        #[derive(PartialEq)]
        enum Retry {
            /// Another try may succeed.
            Soon,
            /// Later requests may succeed.
            Later,
            /// The service or its address has to be changed.
            Never,
        }
        use Retry::{Later, Never, Soon};

        let refused = ("it rejects the credentials", Never);
        let (what, retry) = match error.kind() {
            AuthenticationFailed | Server(NoPerm) => refused,
            _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => refused,
            InvalidClientConfig => ("the address cannot be used", Never),
            Server(Moved) => (
                "it belongs to a cluster: name another node of the cluster with \
                 `cluster_endpoints=host:port`",
                Never,
            ),
            Io if error_source::is_distrust(&error) => {
                ("client and server do not agree on TLS", Never)
            }
            Io if replies::is_too_large(&error) => ("its reply is larger than the limit", Later),
            Io | ClusterConnectionNotFound => ("it cannot be reached", Soon),
            Server(BusyLoading | ClusterDown | MasterDown | TryAgain) => ("it is not ready", Soon),
            _ => ("it answers with an error", Later),
        };
        Self {
            reason: format!("{what}: {}", error_source::full_message(&error)),
            is_timeout: error_source::is_timeout(&error),
            is_temporary: retry == Soon,
            is_permanent: retry == Never,
        }
    }
}
