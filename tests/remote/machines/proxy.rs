//! Proxy that can degrade the path to a service: it stalls or delays data, cuts connections or refuses them.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// Effect on the data that the service sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Data arrives.
    Passes,
    /// Data does not arrive until the mode changes.
    Hangs,
    /// Data arrives after this delay.
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
            pass(from, to, |bytes| {
                shared.listen(bytes);
                Some(bytes.len())
            });
        });
        let (from, to, shared) = (clone(server), clone(client), self.clone());
        thread::spawn(move || pass(from, to, |bytes| shared.admit(bytes)));
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
    fn admit(&self, bytes: &[u8]) -> Option<usize> {
        let mode = self.mode.lock().expect("no thread panicked");
        let mode = self.changed.wait_while(mode, |mode| *mode == Mode::Hangs);
        let mode = *mode.expect("no thread panicked");
        match mode {
            Mode::Passes | Mode::Hangs => Some(bytes.len()),
            Mode::Slow(delay) => {
                thread::sleep(delay);
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

fn pass(mut from: TcpStream, mut to: TcpStream, admit: impl Fn(&[u8]) -> Option<usize>) {
    let mut copy = || -> io::Result<()> {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let length = from.read(&mut bytes)?;
            match admit(&bytes[..length]) {
                Some(admitted) if length > 0 => {
                    to.write_all(&bytes[..admitted])?;
                    if admitted < length {
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
