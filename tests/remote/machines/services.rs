//! Services for tests. Each service is a process of its own, which starts without data.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use support::tools::has_tool;

/// Maximum time that a service may take to start.
const START: Duration = Duration::from_secs(120);

/// Server process on a port of this machine. Killed when dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: SocketAddr,
    _directory: TempDir,
}

impl Server {
    /// Starts a command that listens on the given port, and waits until the port accepts connections.
    fn start(command: impl Fn(&TempDir, u16) -> Command) -> Self {
        let deadline = Instant::now() + START;
        loop {
            let directory = tempfile::tempdir().expect("there is disk space");
            let port = free_port();
            let address = (Ipv4Addr::LOCALHOST, port).into();
            let mut command = command(&directory, port);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let process = command.spawn().expect("it exists");
            let mut server = Self { process, address, _directory: directory };
            while server.process.try_wait().expect("it can be waited for").is_none() {
                if TcpStream::connect(address).is_ok() {
                    return server;
                }
                assert!(Instant::now() < deadline, "{:?} does not start", server.process);
                thread::sleep(Duration::from_millis(10));
            }
            // The process has ended, because another process took the port.
            assert!(Instant::now() < deadline, "it does not start");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Neither call is possible or necessary if the process has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a port on which no process listens at present.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there are ports");
    listener.local_addr().expect("it is bound").port()
}

/// File with the certificate of services that use TLS, for 127.0.0.1. Made with:
///
/// ```sh
/// openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 36500 \
///   -subj /CN=kiln-test -addext subjectAltName=IP:127.0.0.1 \
///   -addext basicConstraints=critical,CA:FALSE -keyout key.pem -out certificate.pem
/// ```
pub(crate) const CERTIFICATE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/remote/machines/certificate.pem");

const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/remote/machines/key.pem");

/// Redis server.
pub(crate) struct Redis(Server);

impl Redis {
    /// Starts a server with further arguments. Returns `None`, and logs it, if Redis is not installed.
    pub(crate) fn start(arguments: &[&str]) -> Option<Self> {
        Self::listening(&["--port"], arguments)
    }

    /// Starts a server that accepts only TLS.
    pub(crate) fn start_with_tls() -> Option<Self> {
        let files = ["--tls-cert-file", CERTIFICATE, "--tls-key-file", KEY];
        let arguments = [&files[..], &["--tls-auth-clients", "no"]].concat();
        Self::listening(&["--port", "0", "--tls-port"], &arguments)
    }

    /// Starts a server with arguments before the port number, and after it.
    fn listening(before: &[&str], after: &[&str]) -> Option<Self> {
        if !has_tool("redis-server", &["redis-server", "--version"]) {
            return None;
        }
        Some(Self(Server::start(|directory, port| {
            let mut command = Command::new("redis-server");
            command.args(before).args([&port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
            command.args(["--daemonize", "no", "--dir"]).arg(directory.path()).args(after);
            command
        })))
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/0/kiln", self.address())
    }

    /// Returns the number of the server's process.
    #[cfg(all(feature = "cli", feature = "opencl", feature = "remote-redis", target_os = "linux"))]
    pub(crate) fn process(&self) -> u32 {
        self.0.process.id()
    }

    /// Sends one command, and returns the content of the answer; `None` for nil.
    pub(crate) fn send(&self, words: &[&[u8]]) -> Option<Vec<u8>> {
        let mut client = Client::connect(self.address());
        client.send(words)
    }

    /// Returns the number of requests for a value so far.
    pub(crate) fn gets(&self) -> u64 {
        let calls = self.calls();
        let count = |command: &str| calls.get(command).copied().unwrap_or_default();
        count("get") + count("getrange")
    }

    /// Returns the number of calls of each command so far. The names are in lower case.
    pub(crate) fn calls(&self) -> BTreeMap<String, u64> {
        let parse = |line: &str| {
            let (command, counts) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((command.to_owned(), counts.split(',').next()?.parse().ok()?))
        };
        self.info("commandstats").lines().filter_map(parse).collect()
    }

    /// Returns the number of bytes that the server has sent so far.
    pub(crate) fn sent(&self) -> u64 {
        let stats = self.info("stats");
        let sent = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        sent.expect("it answers").parse().expect("it is a number")
    }

    /// Returns the value of a setting, as given at the start or by default.
    pub(crate) fn setting(&self, name: &str) -> String {
        let mut reply = Client::connect(self.address()).list(&[b"CONFIG", b"GET", name.as_bytes()]);
        reply.pop().expect("the setting exists")
    }

    /// Returns a section of the answer to `INFO`.
    pub(crate) fn info(&self, section: &str) -> String {
        let reply = self.send(&[b"INFO", section.as_bytes()]).expect("it answers");
        String::from_utf8(reply).expect("it is text")
    }

    /// Returns all keys in database 0.
    pub(crate) fn keys(&self) -> Vec<String> {
        Client::connect(self.address()).list(&[b"KEYS", b"*"])
    }

    /// Returns the only key and its value. Panics if there is not exactly one key.
    pub(crate) fn only(&self) -> (String, Vec<u8>) {
        let keys = self.keys();
        assert_eq!(keys.len(), 1, "{keys:?}");
        let value = self.send(&[b"GET", keys[0].as_bytes()]).expect("it exists");
        (keys[0].clone(), value)
    }

    pub(crate) fn set(&self, key: &str, value: &[u8]) {
        self.send(&[b"SET", key.as_bytes(), value]);
    }
}

/// Simplest possible Redis client. It is also the baseline for measurements of Kiln.
pub(crate) struct Client(TcpStream);

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_nodelay(true).expect("it is a socket");
        Self(stream)
    }

    pub(crate) fn send(&mut self, words: &[&[u8]]) -> Option<Vec<u8>> {
        self.write(words);
        self.answer()
    }

    fn write(&mut self, words: &[&[u8]]) {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.0.write_all(&bytes).expect("it listens");
    }

    fn answer(&mut self) -> Option<Vec<u8>> {
        let line = self.line();
        match line.split_at(1) {
            ("$", "-1") => None,
            ("$", length) => {
                let length: usize = length.parse().expect("it is a number");
                let mut bytes = vec![0; length + 2];
                self.0.read_exact(&mut bytes).expect("it answers");
                bytes.truncate(length);
                Some(bytes)
            }
            ("+" | ":", text) => Some(text.as_bytes().to_vec()),
            _ => panic!("it answers {line}"),
        }
    }

    fn list(&mut self, words: &[&[u8]]) -> Vec<String> {
        self.write(words);
        let line = self.line();
        let length = line.strip_prefix('*').and_then(|length| length.parse().ok());
        let length: usize = length.unwrap_or_else(|| panic!("it answers {line}"));
        let text = |bytes| String::from_utf8(bytes).expect("it is text");
        (0..length).map(|_| text(self.answer().expect("it exists"))).collect()
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            self.0.read_exact(&mut byte).expect("it answers");
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        String::from_utf8(line).expect("it is text")
    }
}

/// S3 server (moto) with a bucket.
pub(crate) struct S3(Server);

impl S3 {
    pub(crate) const BUCKET: &str = "kiln";

    pub(crate) fn start() -> Option<Self> {
        let program = from_pypi("moto_server");
        if !has_tool("moto", &[&program, "--help"]) {
            return None;
        }
        let server = Server::start(|directory, port| {
            let mut command = Command::new(&program);
            command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
            command.current_dir(directory.path());
            command
        });
        let s3 = Self(server);
        let made = s3.request("PUT", &format!("/{}", Self::BUCKET), b"");
        assert!(made.starts_with("HTTP/1.1 200"), "{made}");
        Some(s3)
    }

    pub(crate) fn url(&self) -> String {
        let (bucket, address) = (Self::BUCKET, self.0.address);
        // Moto accepts any credentials.
        format!(
            "s3://{bucket}/programs?region=us-east-1&endpoint=http://{address}\
             &access_key_id=ada&secret_access_key=hunter2"
        )
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Sends one plain request, and returns the whole answer.
    pub(crate) fn request(&self, method: &str, path: &str, body: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.0.address).expect("it listens");
        let close = format!("Connection: close\r\nContent-Length: {}\r\n", body.len());
        stream.write_all(self.head(method, path, &close).as_bytes()).expect("it listens");
        stream.write_all(body).expect("it listens");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Returns the head of a request, with these further lines.
    pub(crate) fn head(&self, method: &str, path: &str, more: &str) -> String {
        let host = self.0.address;
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\
             Authorization: AWS4-HMAC-SHA256 Credential=ada/20260101/us-east-1/s3/aws4_request, \
             SignedHeaders=host, Signature=0\r\n\r\n"
        )
    }
}

/// WebDAV server (WsgiDAV) without data, for the user ada with the password hunter2.
pub(crate) struct WebDav {
    server: Server,
    scheme: &'static str,
}

impl WebDav {
    pub(crate) fn start() -> Option<Self> {
        Self::speaking("webdav+http", "")
    }

    pub(crate) fn start_with_tls() -> Option<Self> {
        let settings = format!(
            r#""ssl_certificate": "{CERTIFICATE}", "ssl_private_key": "{KEY}", "ssl_adapter": "builtin","#
        );
        Self::speaking("webdav", &settings)
    }

    fn speaking(scheme: &'static str, settings: &str) -> Option<Self> {
        let program = from_pypi("wsgidav");
        if !has_tool("wsgidav", &[&program, "--version"]) {
            return None;
        }
        let server = Server::start(|directory, port| {
            let (root, config) = (directory.path().join("root"), directory.path().join("dav.json"));
            std::fs::create_dir(&root).expect("there is disk space");
            let settings = format!(
                r#"{{{settings} "host": "127.0.0.1", "port": {port},
                "provider_mapping": {{"/": "{}"}},
                "simple_dc": {{"user_mapping": {{"*": {{"ada": {{"password": "hunter2"}}}}}}}}}}"#,
                root.display(),
            );
            std::fs::write(&config, settings).expect("there is disk space");
            let mut command = Command::new(&program);
            command.arg("--config").arg(config);
            command
        });
        Some(Self { server, scheme })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Returns the server's URL with a password, which may be right or wrong.
    pub(crate) fn url(&self, password: &str) -> String {
        format!("{}://ada:{password}@{}/kiln", self.scheme, self.address())
    }
}

/// Returns the path of a program from `scripts/setup-services`, or its bare name if it is not there.
fn from_pypi(program: &str) -> String {
    let ours = format!("{}/target/services/bin/{program}", support::ROOT);
    if std::path::Path::new(&ours).exists() { ours } else { program.to_owned() }
}
