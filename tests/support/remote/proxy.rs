//! Proxy that can degrade the path to a service: it stalls or delays data, cuts connections or refuses them.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// Effect on the data that the service sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// Data arrives.
    Well,
    /// Data does not arrive until the mood changes.
    Hangs,
    /// Data arrives after this delay.
    Slow(Duration),
    /// Data does not arrive, even after the mood changes: existing connections become mute forever.
    Mutes,
    /// Existing and new connections end.
    Cuts,
    /// Connections end after this number of bytes of the data that the service sends next.
    Truncates(usize),
}

/// Handle of the proxy. The threads of the proxy end with the test.
pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    mood: Mutex<Mood>,
    changed: Condvar,
    open: Mutex<Vec<TcpStream>>,
    requests: Mutex<Vec<String>>,
}

impl Proxy {
    pub fn to(service: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there are ports");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            mood: Mutex::new(Mood::Well),
            changed: Condvar::new(),
            open: Mutex::default(),
            requests: Mutex::default(),
        });
        let accepting = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.mood() == Mood::Cuts {
                    continue;
                }
                let Ok(server) = TcpStream::connect(service) else { continue };
                accepting.connect(&client, &server);
            }
        });
        Self { address, shared }
    }

    pub fn set(&self, mood: Mood) {
        *self.shared.mood.lock().expect("nobody panicked") = mood;
        self.shared.changed.notify_all();
        if mood == Mood::Cuts {
            for stream in self.shared.open.lock().expect("nobody panicked").drain(..) {
                // The connection may have ended already.
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Returns the HTTP requests so far, each as method and path.
    pub fn requests(&self) -> Vec<String> {
        self.shared.requests.lock().expect("nobody panicked").clone()
    }

    pub fn redis_url(&self) -> String {
        format!("redis://{}/0/kiln", self.address)
    }
}

impl Shared {
    fn mood(&self) -> Mood {
        *self.mood.lock().expect("nobody panicked")
    }

    fn connect(self: &Arc<Self>, client: &TcpStream, server: &TcpStream) {
        let clone = |stream: &TcpStream| stream.try_clone().expect("there are descriptors");
        for stream in [client, server] {
            stream.set_nodelay(true).expect("it is a socket");
            self.open.lock().expect("nobody panicked").push(clone(stream));
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
            self.requests.lock().expect("nobody panicked").push(request.to_owned());
        }
    }

    /// Returns the number of bytes of the service's data that arrive; `None` ends the connection.
    fn admit(&self, bytes: &[u8]) -> Option<usize> {
        let mood = self.mood.lock().expect("nobody panicked");
        let mood = self.changed.wait_while(mood, |mood| *mood == Mood::Hangs);
        let mood = *mood.expect("nobody panicked");
        match mood {
            Mood::Well | Mood::Hangs => Some(bytes.len()),
            Mood::Slow(delay) => {
                thread::sleep(delay);
                Some(bytes.len())
            }
            Mood::Mutes => loop {
                thread::park();
            },
            Mood::Cuts => None,
            Mood::Truncates(most) => Some(most.min(bytes.len())),
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
