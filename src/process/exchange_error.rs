//! Error of the exchange of messages with a child.

use std::io;

/// Reason why an exchange of messages with a [connected](super::ConnectedProcess) child failed.
#[derive(Debug)]
#[cfg_attr(not(unix), expect(dead_code, reason = "there are no connected children"))]
pub(crate) enum ExchangeError {
    /// The child has closed its end of the socket, which it does when it ends.
    Closed,
    /// The time limit has passed, the child was stopped by a signal, or it has written too much to its log.
    Exceeded(String),
    /// The caller stopped the exchange.
    Stopped,
    /// The system reported an error.
    System(io::Error),
}
