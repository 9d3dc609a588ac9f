//! Connections to Redis nodes, whose replies are limited in size.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures::FutureExt;
use futures::future::select_ok;
use redis::aio::{AsyncStream, ConnectionLike, MultiplexedConnection};
use redis::cluster_async::Connect;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Pipeline,
    RedisError, RedisFuture, RedisResult, Value,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::replies::LimitedStream;

/// Size in bytes of the largest reply that is not an object: the slots of a cluster and their nodes.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// Limits of connections to the nodes of clusters: size of replies in bytes, and time to connect in
/// milliseconds. The cluster client opens these connections itself and passes no settings. So all of them use
/// the largest limits that any remote cache of this process has.
static CLUSTER_LIMITS: [AtomicU64; 2] = [AtomicU64::new(MAX_TEXT_BYTES), AtomicU64::new(1_000)];

/// Returns the size of the largest reply in bytes, if objects have up to `max_bytes`.
pub(super) fn max_reply_bytes(max_bytes: u64) -> u64 {
    // An additional byte shows that an object is too large. The line before it is short.
    max_bytes.saturating_add(1024).max(MAX_TEXT_BYTES)
}

/// Raises the limits of connections to the nodes of clusters.
pub(super) fn raise_cluster_limits(max_bytes: u64, timeout: Duration) {
    let [bytes, milliseconds] = &CLUSTER_LIMITS;
    bytes.fetch_max(max_bytes, Relaxed);
    milliseconds.fetch_max(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX), Relaxed);
}

/// Connection to one node, which carries several requests at a time.
#[derive(Clone)]
pub(super) struct Node {
    connection: MultiplexedConnection,
    /// Task that sends and receives; aborted when the last clone is dropped.
    _driver: Arc<JoinSet<()>>,
}

impl Node {
    /// Connects without a time-out: the caller sets one. Replies have up to `max_bytes` bytes.
    pub(super) async fn connect(node: &ConnectionInfo, max_bytes: u64) -> RedisResult<Self> {
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        Self::connect_with(node, max_bytes, config).await
    }

    async fn connect_with(
        node: &ConnectionInfo,
        max_bytes: u64,
        config: AsyncConnectionConfig,
    ) -> RedisResult<Self> {
        let stream = LimitedStream::new(open(node).await?, max_bytes);
        let settings = node.redis_settings();
        let (connection, driver) =
            MultiplexedConnection::new_with_config(settings, stream, config).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(driver);
        Ok(Self { connection, _driver: Arc::new(tasks) })
    }
}

/// Opens a stream to a node.
async fn open(node: &ConnectionInfo) -> RedisResult<Box<dyn AsyncStream + Send + Unpin>> {
    match node.addr() {
        ConnectionAddr::Tcp(host, port) => Ok(Box::new(open_tcp(node, host, *port).await?)),
        ConnectionAddr::TcpTls { host, port, .. } => {
            let name = ServerName::try_from(host.clone()).map_err(|error| {
                let invalid = redis::ErrorKind::InvalidClientConfig;
                RedisError::from((invalid, "the host name is not valid", error.to_string()))
            })?;
            let connector = TlsConnector::from(Arc::new(tls()?));
            Ok(Box::new(connector.connect(name, open_tcp(node, host, *port).await?).await?))
        }
        _ => Err((redis::ErrorKind::InvalidClientConfig, "the node has no host and port").into()),
    }
}

/// Connects to the address of the host that answers first.
async fn open_tcp(node: &ConnectionInfo, host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<_> = lookup_host((host, port)).await?.collect();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    }
    let streams = addresses.into_iter().map(|address| TcpStream::connect(address).boxed());
    let (stream, _) = select_ok(streams).await?;
    stream.set_nodelay(node.tcp_settings().nodelay())?;
    Ok(stream)
}

/// Returns the TLS settings: the certificates that the system trusts, and the cryptography provider that the
/// application chose, if any.
fn tls() -> RedisResult<ClientConfig> {
    let mut trusted = RootCertStore::empty();
    let mut found = rustls_native_certs::load_native_certs();
    trusted.add_parsable_certificates(found.certs);
    if trusted.is_empty()
        && let Some(error) = found.errors.pop()
    {
        return Err(io::Error::new(io::ErrorKind::InvalidData, error).into());
    }
    let provider = CryptoProvider::get_default()
        .cloned()
        .unwrap_or_else(|| Arc::new(aws_lc_rs::default_provider()));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    Ok(config.with_root_certificates(trusted).with_no_client_auth())
}

impl ConnectionLike for Node {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        self.connection.req_packed_command(command)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.connection.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

/// Connections to the nodes of a cluster.
impl Connect for Node {
    fn connect_with_config<'a, T>(node: T, config: AsyncConnectionConfig) -> RedisFuture<'a, Self>
    where
        T: IntoConnectionInfo + Send + 'a,
    {
        async move {
            let node = node.into_connection_info()?;
            let [max_bytes, milliseconds] =
                CLUSTER_LIMITS.each_ref().map(|limit| limit.load(Relaxed));
            let connect = Self::connect_with(&node, max_bytes, config);
            let connected = timeout(Duration::from_millis(milliseconds), connect).await;
            connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        }
        .boxed()
    }
}
