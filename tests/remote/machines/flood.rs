//! Service that sends data without end.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;

/// Maximum number of useless bytes per connection. The limit makes the test end even if the client reads on.
const MAX_BYTES: u64 = 512 << 20;

/// Handle of the service. The threads of the service end with the test.
pub(crate) struct Flood {
    pub(crate) address: SocketAddr,
    sent: Arc<AtomicU64>,
}

/// Answer to a request.
pub(crate) enum Reply {
    Text(String),
    /// Text, followed by zeros until the client closes the connection or [`MAX_BYTES`] bytes are sent.
    Endless(&'static str),
}

impl Flood {
    /// Starts a service that sends the results of `reply`. Assumes that each request arrives in one piece.
    pub(crate) fn start(reply: impl Fn(SocketAddr, &str) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there are ports");
        let address = listener.local_addr().expect("it is bound");
        let (sent, reply) = (Arc::new(AtomicU64::new(0)), Arc::new(reply));
        let counted = sent.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let (reply, counted) = (reply.clone(), counted.clone());
                thread::spawn(move || serve(client, |request| reply(address, request), &counted));
            }
        });
        Self { address, sent }
    }

    /// Returns the number of useless bytes that the service has sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(SeqCst)
    }
}

fn serve(mut client: TcpStream, reply: impl Fn(&str) -> Reply, sent: &AtomicU64) {
    let mut request = vec![0; 1 << 16];
    let zeros = vec![0; 1 << 16];
    while let Ok(length @ 1..) = client.read(&mut request) {
        match reply(&String::from_utf8_lossy(&request[..length])) {
            Reply::Text(text) => _ = client.write_all(text.as_bytes()),
            Reply::Endless(beginning) => {
                let _ = client.write_all(beginning.as_bytes());
                let mut written = 0;
                while written < MAX_BYTES && client.write_all(&zeros).is_ok() {
                    written += zeros.len() as u64;
                    sent.fetch_add(zeros.len() as u64, SeqCst);
                }
                return;
            }
        }
    }
}
