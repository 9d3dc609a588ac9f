//! Proxy that can degrade the path to a service: it stalls or delays data, cuts connections or refuses them.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Effect on the data that the service sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Data arrives.
    Passes,
    /// Data does not arrive until the mode changes.
    Hangs,
    /// Data arrives this time after the service has sent it, as over a long line.
    Slow(Duration),
    /// Data does not arrive, even after the mode changes: existing connections stay silent forever.
    Mutes,
    /// Existing and new connections end.
    Cuts,
    /// Connections end after this number of bytes of the data that the service sends next.
    Truncates(usize),
}

/// Handle of the proxy. The threads of the proxy end with the test.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    mode: Mutex<Mode>,
    changed: Condvar,
    open: Mutex<Vec<TcpStream>>,
    requests: Mutex<Vec<String>>,
}

impl Proxy {
    pub(crate) fn to(service: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there are ports");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            mode: Mutex::new(Mode::Passes),
            changed: Condvar::new(),
            open: Mutex::default(),
            requests: Mutex::default(),
        });
        let accepting = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.mode() == Mode::Cuts {
                    continue;
                }
                let Ok(server) = TcpStream::connect(service) else { continue };
                accepting.connect(&client, &server);
            }
        });
        Self { address, shared }
    }

    pub(crate) fn set(&self, mode: Mode) {
        *self.shared.mode.lock().expect("no thread panicked") = mode;
        self.shared.changed.notify_all();
        if mode == Mode::Cuts {
            for stream in self.shared.open.lock().expect("no thread panicked").drain(..) {
                // The connection may have ended already.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Returns the HTTP requests so far, each as method and path.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().expect("no thread panicked").clone()
    }

    pub(crate) fn redis_url(&self) -> String {
        format!("redis://{}/0/kiln", self.address)
    }
}

impl Shared {
    fn mode(&self) -> Mode {
        *self.mode.lock().expect("no thread panicked")
    }

    fn connect(self: &Arc<Self>, client: &TcpStream, server: &TcpStream) {
        let clone = |stream: &TcpStream| stream.try_clone().expect("there are descriptors");
        for stream in [client, server] {
            stream.set_nodelay(true).expect("it is a socket");
            self.open.lock().expect("no thread panicked").push(clone(stream));
        }
        let (from, to, shared) = (clone(client), clone(server), self.clone());
        thread::spawn(move || {
            let mut reader = from.try_clone().expect("there are descriptors");
            let mut bytes = vec![0; 1 << 16];
            let next = || {
                let length = reader.read(&mut bytes).unwrap_or(0);
                (Instant::now(), bytes[..length].to_vec())
            };
            pass(from, to, next, |_, bytes| {
                shared.listen(bytes);
                Some(bytes.len())
            });
        });
        let (from, to, shared) = (clone(server), clone(client), self.clone());
        let (sender, sent) = mpsc::channel();
        let mut reader = clone(server);
        thread::spawn(move || {
            let mut bytes = vec![0; 1 << 16];
            while let Ok(length @ 1..) = reader.read(&mut bytes) {
                if sender.send((Instant::now(), bytes[..length].to_vec())).is_err() {
                    return;
                }
            }
        });
        thread::spawn(move || {
            let next = || sent.recv().unwrap_or_else(|_| (Instant::now(), Vec::new()));
            pass(from, to, next, |since, bytes| shared.admit(since, bytes));
        });
    }

    /// Records the HTTP request that `bytes` begin with, if any. This relies on clients that begin a request
    /// only after they have the answer to the previous request.
    fn listen(&self, bytes: &[u8]) {
        let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        if let Some(request) = line.strip_suffix(" HTTP/1.1") {
            self.requests.lock().expect("no thread panicked").push(request.to_owned());
        }
    }

    /// Returns the number of bytes of the service's data that arrive; `None` ends the connection.
    fn admit(&self, since: Instant, bytes: &[u8]) -> Option<usize> {
        let mode = self.mode.lock().expect("no thread panicked");
        let mode = self.changed.wait_while(mode, |mode| *mode == Mode::Hangs);
        let mode = *mode.expect("no thread panicked");
        match mode {
            Mode::Passes | Mode::Hangs => Some(bytes.len()),
            Mode::Slow(delay) => {
                thread::sleep(delay.saturating_sub(since.elapsed()));
                Some(bytes.len())
            }
            Mode::Mutes => loop {
                thread::park();
            },
            Mode::Cuts => None,
            Mode::Truncates(most) => Some(most.min(bytes.len())),
        }
    }
}

/// Passes on the data that `next` returns, each part with the time of its arrival, until a part is empty.
fn pass(
    from: TcpStream,
    mut to: TcpStream,
    mut next: impl FnMut() -> (Instant, Vec<u8>),
    admit: impl Fn(Instant, &[u8]) -> Option<usize>,
) {
    let mut copy = || -> io::Result<()> {
        loop {
            let (since, bytes) = next();
            match admit(since, &bytes) {
                Some(admitted) if !bytes.is_empty() => {
                    to.write_all(&bytes[..admitted])?;
                    if admitted < bytes.len() {
                        return Ok(());
                    }
                }
                _ => return Ok(()),
            }
        }
    };
    // After one direction ends for any reason, both connections end in both directions.
    let _ = copy();
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
