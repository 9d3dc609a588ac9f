//! Redis as a service of OpenDAL's, with one request for each object read or written.
//!
//! OpenDAL's own takes a connection from a pool and asks it for a sign of life before each value:
//! two round trips where one serves, and a hit is little more than its round trips. Here a
//! connection proves itself by the answer. It carries the requests of all builds at the same time,
//! so that two are enough: one to read, and one to write, since no build is to wait for what is
//! written.
//!
//! A value is read with `GETRANGE`, of one byte more than is taken: what is too large is not sent
//! whole, and needs no question for its length before. An empty value is none for Redis then, and
//! no object is empty.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use opendal::raw::{
    Access, AccessorInfo, OpRead, OpWrite, RpRead, RpWrite, build_abs_path, normalize_root, oio,
};
use opendal::{
    Buffer, Capability, EntryMode, Error, ErrorKind, Metadata, Operator, OperatorBuilder, Result,
};
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, FromRedisValue, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind,
};
use tokio::sync::Mutex;

use super::cause;
use super::settings::Settings;

/// How often the client of a cluster follows a value to where it has moved.
const REDIRECTIONS: u32 = 3;

/// Where a Redis is, and what it asks of whoever comes.
pub(super) struct Address {
    /// `redis://host:port`, or `rediss://`; those of a cluster that are asked for the others.
    pub(super) endpoints: Vec<String>,
    pub(super) is_cluster: bool,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
    /// What all keys begin with.
    pub(super) root: String,
    /// After how long what is written expires.
    pub(super) ttl: Option<Duration>,
}

/// An operator for the values of a Redis. Connects to nothing.
pub(super) fn operator(address: &Address, settings: &Settings) -> Result<Operator> {
    let peer = address.peer(settings.timeout).map_err(error)?;
    let root = normalize_root(&address.root);
    let info = AccessorInfo::default();
    info.set_scheme("redis");
    info.set_root(&root);
    info.set_native_capability(Capability {
        read: true,
        write: true,
        write_can_empty: true,
        shared: true,
        ..Capability::default()
    });
    let service = Redis {
        info: Arc::new(info),
        root,
        reads: Line::new(peer.clone()),
        writes: Arc::new(Line::new(peer)),
        most_bytes: settings.most_bytes,
        ttl: address.ttl,
    };
    Ok(OperatorBuilder::new(service).finish())
}

struct Redis {
    info: Arc<AccessorInfo>,
    root: String,
    reads: Line,
    writes: Arc<Line>,
    most_bytes: u64,
    ttl: Option<Duration>,
}

/// What clients tell of themselves is not for logs.
impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Access for Redis {
    type Reader = Buffer;
    type Writer = oio::OneShotWriter<Writing>;
    type Lister = ();
    type Deleter = ();
    type Copier = ();

    fn info(&self) -> Arc<AccessorInfo> {
        self.info.clone()
    }

    async fn read(&self, path: &str, asked: OpRead) -> Result<(RpRead, Buffer)> {
        let range = asked.range();
        let most = self.most_bytes.saturating_add(1).min(range.size().unwrap_or(u64::MAX));
        let (first, end) = (range.offset(), range.offset().saturating_add(most));
        // Positions have a sign there; the last one is included.
        let last = end.min(i64::MAX as u64).saturating_sub(1);
        let mut command = redis::cmd("GETRANGE");
        command.arg(build_abs_path(&self.root, path)).arg(first).arg(last);
        let value: Vec<u8> = self.reads.ask(&command).await.map_err(error)?;
        if value.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "there is no such key"));
        }
        Ok((RpRead::default(), Buffer::from(value)))
    }

    async fn write(&self, path: &str, _: OpWrite) -> Result<(RpWrite, Self::Writer)> {
        let key = build_abs_path(&self.root, path);
        let writing = Writing { line: self.writes.clone(), key, ttl: self.ttl };
        Ok((RpWrite::default(), oio::OneShotWriter::new(writing)))
    }
}

/// A value on its way there.
struct Writing {
    line: Arc<Line>,
    key: String,
    ttl: Option<Duration>,
}

impl oio::OneShotWrite for Writing {
    async fn write_once(&self, value: Buffer) -> Result<Metadata> {
        let length = value.len() as u64;
        let mut command = redis::cmd("SET");
        command.arg(&self.key).arg(&*value.to_bytes());
        if let Some(ttl) = self.ttl {
            command.arg("EX").arg(ttl.as_secs());
        }
        self.line.ask::<()>(&command).await.map_err(error)?;
        Ok(Metadata::new(EntryMode::FILE).with_content_length(length))
    }
}

/// A connection that is opened when it is first needed, and anew once it is lost. Several requests
/// can be on the way.
struct Line {
    peer: Peer,
    latest: Mutex<Option<Connection>>,
}

/// What connections are made to.
#[derive(Clone)]
enum Peer {
    Node(Box<Client>),
    Cluster(Box<ClusterClient>),
}

#[derive(Clone)]
struct Connection {
    to: To,
    is_lost: Arc<AtomicBool>,
}

#[derive(Clone)]
enum To {
    Node(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Line {
    fn new(peer: Peer) -> Self {
        Self { peer, latest: Mutex::default() }
    }

    /// The answer to a command, which may be repeated.
    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let (connection, is_new) = self.connection().await?;
        let answer = connection.ask(command).await;
        // Servers end connections that were idle for long.
        if answer.is_err() && !is_new && connection.is_lost.load(SeqCst) {
            return self.connection().await?.0.ask(command).await;
        }
        answer
    }

    async fn connection(&self) -> RedisResult<(Connection, bool)> {
        let mut latest = self.latest.lock().await;
        if let Some(connection) = &*latest
            && !connection.is_lost.load(SeqCst)
        {
            return Ok((connection.clone(), false));
        }
        let to = match &self.peer {
            Peer::Node(client) => {
                // Whoever asks waits for as long as is worth it.
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(None)
                    .set_response_timeout(None);
                To::Node(client.get_multiplexed_async_connection_with_config(&config).await?)
            }
            Peer::Cluster(client) => To::Cluster(client.get_async_connection().await?),
        };
        let connection = Connection { to, is_lost: Arc::default() };
        *latest = Some(connection.clone());
        Ok((connection, true))
    }
}

impl Connection {
    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        // Whoever stops waiting for the answer takes the connection for lost: what is asked on it
        // later would wait behind this.
        let mut asking = Asking { is_lost: &self.is_lost, has_failed: true };
        let answer = match self.to.clone() {
            To::Node(mut connection) => command.query_async(&mut connection).await,
            To::Cluster(mut connection) => command.query_async(&mut connection).await,
        };
        asking.has_failed = answer.as_ref().is_err_and(RedisError::is_unrecoverable_error);
        answer
    }
}

/// A question on a connection, which is lost with it if that failed or is dropped.
struct Asking<'a> {
    is_lost: &'a AtomicBool,
    has_failed: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.has_failed {
            self.is_lost.store(true, SeqCst);
        }
    }
}

impl Address {
    /// The time-out is that of a cluster's connections: others end with whoever waits for them.
    fn peer(&self, timeout: Duration) -> RedisResult<Peer> {
        let mut nodes = self.endpoints.iter().map(|endpoint| self.node(endpoint));
        if !self.is_cluster {
            let missing = (redis::ErrorKind::InvalidClientConfig, "no host is named");
            let client = Client::open(nodes.next().ok_or(missing)??)?;
            return Ok(Peer::Node(Box::new(client)));
        }
        let builder = ClusterClient::builder(nodes.collect::<RedisResult<Vec<_>>>()?)
            .tcp_settings(tcp())
            .retries(REDIRECTIONS)
            .connection_timeout(timeout)
            .overall_response_timeout(None);
        Ok(Peer::Cluster(Box::new(builder.build()?)))
    }

    fn node(&self, endpoint: &str) -> RedisResult<ConnectionInfo> {
        let mut asks = RedisConnectionInfo::default().set_db(self.database).set_skip_set_lib_name();
        if let Some(username) = &self.username {
            asks = asks.set_username(username);
        }
        if let Some(password) = &self.password {
            asks = asks.set_password(password);
        }
        let node = endpoint.into_connection_info()?;
        Ok(node.set_redis_settings(asks).set_tcp_settings(tcp()))
    }
}

fn tcp() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// What OpenDAL calls an error of Redis, and whether another try may fare better.
fn error(error: RedisError) -> Error {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, Moved, NoPerm, TryAgain};
    use redis::ErrorKind::{
        AuthenticationFailed, ClusterConnectionNotFound, InvalidClientConfig, Io, Server,
    };

    let told = |kind, message: &str| Error::new(kind, message);
    let refused = || told(ErrorKind::PermissionDenied, "it refuses whoever asks");
    let told = match error.kind() {
        AuthenticationFailed | Server(NoPerm) => refused(),
        _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => refused(),
        InvalidClientConfig => told(ErrorKind::ConfigInvalid, "the address cannot be used"),
        Server(Moved) => told(
            ErrorKind::ConfigInvalid,
            "it belongs to a cluster: name another of its nodes with `cluster_endpoints=host:port`",
        ),
        Io if cause::is_distrust(&error) => {
            told(ErrorKind::ConfigInvalid, "the two do not agree on TLS")
        }
        Io | ClusterConnectionNotFound => {
            told(ErrorKind::Unexpected, "it cannot be reached").set_temporary()
        }
        Server(BusyLoading | ClusterDown | MasterDown | TryAgain) => {
            told(ErrorKind::Unexpected, "it is not ready").set_temporary()
        }
        _ => told(ErrorKind::Unexpected, "it does not do what it is asked"),
    };
    told.set_source(error)
}
