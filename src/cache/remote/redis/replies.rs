//! A stream from a Redis server that fails if a reply is larger than a limit.
//!
//! The client buffers a reply until it is complete, whatever its size. A broken or hostile server could
//! announce gigabytes.

use std::error::Error;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum number of values in one reply: a few for each of the 16,384 slots of a cluster.
const MAX_VALUES: u64 = 1 << 20;
/// Maximum length of a line that holds a number, such as the length of a string.
const MAX_NUMBER_LENGTH: usize = 32;

/// A stream whose replies are limited.
pub(super) struct LimitedStream<S> {
    stream: S,
    replies: ReplyParser,
}

impl<S> LimitedStream<S> {
    /// Limits each reply to `max_bytes` bytes.
    pub(super) fn new(stream: S, max_bytes: u64) -> Self {
        Self { stream, replies: ReplyParser::new(max_bytes) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(self.replies.parse(&buffer.filled()[before..]).map_err(io::Error::other))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Parser of the replies in a stream of bytes, which may arrive in pieces of any size.
struct ReplyParser {
    /// Limit of each reply, in bytes.
    max_bytes: u64,
    /// Bytes that the current reply may still have.
    bytes_left: u64,
    /// Values that the current reply may still have.
    values_left: u64,
    /// Number of values in the current reply that are not complete.
    open_values: u64,
    position: Position,
}

/// Position in a value.
enum Position {
    /// At the byte that states the kind of the value.
    Kind,
    /// In the rest of a value's line.
    Line { kind: u8, text: Vec<u8>, after_return: bool },
    /// In a string, with this number of bytes to come.
    String(u64),
}

impl ReplyParser {
    fn new(max_bytes: u64) -> Self {
        Self {
            max_bytes,
            bytes_left: max_bytes,
            values_left: MAX_VALUES,
            open_values: 1,
            position: Position::Kind,
        }
    }

    /// Parses the next bytes. Fails if a reply is larger than the limit, or announces a larger size.
    fn parse(&mut self, mut bytes: &[u8]) -> Result<(), TooLarge> {
        while let Some((&first, rest)) = bytes.split_first() {
            match &mut self.position {
                Position::String(length) => {
                    // The length of the string was counted when it was announced.
                    let available = bytes.len().min(usize::try_from(*length).unwrap_or(usize::MAX));
                    bytes = &bytes[available..];
                    *length -= available as u64;
                    if *length == 0 {
                        self.end_value();
                    }
                }
                Position::Kind => {
                    bytes = rest;
                    self.count(1)?;
                    self.values_left =
                        self.values_left.checked_sub(1).ok_or_else(|| self.error())?;
                    self.position =
                        Position::Line { kind: first, text: Vec::new(), after_return: false };
                }
                Position::Line { kind, text, after_return } => {
                    bytes = rest;
                    let (kind, is_end) = (*kind, *after_return && first == b'\n');
                    *after_return = first == b'\r';
                    if is_number(kind) && text.len() < MAX_NUMBER_LENGTH {
                        text.push(first);
                    }
                    let number = is_end.then(|| number(kind, text));
                    self.count(1)?;
                    if let Some(number) = number {
                        self.end_line(kind, number)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends the line of a value. `number` is the number in the line, if there is a valid one.
    fn end_line(&mut self, kind: u8, number: Option<u64>) -> Result<(), TooLarge> {
        let values = match (kind, number) {
            (b'$' | b'!' | b'=', Some(length)) => {
                let with_line_end = length.checked_add(2).ok_or_else(|| self.error())?;
                self.count(with_line_end)?;
                self.position = Position::String(with_line_end);
                return Ok(());
            }
            (b'*' | b'~' | b'>', Some(length)) => Some(length),
            (b'%', Some(length)) => length.checked_mul(2),
            (b'|', Some(length)) => length.checked_mul(2).and_then(|values| values.checked_add(1)),
            _ => Some(0),
        };
        let values = values.filter(|values| *values <= self.values_left);
        self.open_values += values.ok_or_else(|| self.error())?;
        self.end_value();
        Ok(())
    }

    fn end_value(&mut self) {
        self.position = Position::Kind;
        self.open_values -= 1;
        if self.open_values == 0 {
            *self = Self::new(self.max_bytes);
        }
    }

    fn count(&mut self, bytes: u64) -> Result<(), TooLarge> {
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or_else(|| self.error())?;
        Ok(())
    }

    fn error(&self) -> TooLarge {
        TooLarge { max_bytes: self.max_bytes }
    }
}

/// Returns whether the line of this kind of value is a number: the length of a string or of a list.
fn is_number(kind: u8) -> bool {
    matches!(kind, b'$' | b'!' | b'=' | b'*' | b'~' | b'>' | b'%' | b'|')
}

/// Parses the number in a line. Returns `None` for the negative length of a missing value, and for anything
/// else, which the client refuses.
fn number(kind: u8, line: &[u8]) -> Option<u64> {
    let text = is_number(kind).then(|| std::str::from_utf8(line).ok())??;
    text.trim().parse().ok()
}

/// Error for a reply that is larger than the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TooLarge {
    max_bytes: u64,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max_bytes } = self;
        write!(f, "a reply has more than {max_bytes} bytes or {MAX_VALUES} values")
    }
}

impl Error for TooLarge {}

/// Returns whether an error was caused by a reply that is too large.
pub(super) fn is_too_large(error: &(dyn Error + 'static)) -> bool {
    crate::cache::remote::error_source::chain(error).any(|error| error.is::<TooLarge>())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses replies in pieces of `size` bytes.
    fn pass(max_bytes: u64, bytes: &[u8], size: usize) -> Result<(), TooLarge> {
        let mut replies = ReplyParser::new(max_bytes);
        bytes.chunks(size).try_for_each(|piece| replies.parse(piece))
    }

    #[test]
    fn replies_within_the_limit_pass_in_pieces_of_any_size() {
        let replies: &[&[u8]] = &[
            b"+OK\r\n",
            b"$5\r\n*9\r\n!\r\n",
            b"$-1\r\n",
            b"*2\r\n*0\r\n%1\r\n:1\r\n$3\r\nabc\r\n",
            b"-ERR no\rsuch\nkey\r\n",
            b"|1\r\n+key\r\n+value\r\n:3\r\n",
            b"*-1\r\n_\r\n",
        ];
        let all = replies.concat().repeat(1_000);
        for size in [1, 2, 3, 7, all.len()] {
            assert_eq!(pass(32, &all, size), Ok(()), "in pieces of {size}");
        }
    }

    #[test]
    fn a_reply_that_announces_too_much_is_refused_before_it_arrives() {
        for reply in [
            "$10000000000\r\n",
            "$27\r\n",
            "=18446744073709551615\r\n",
            "*1048577\r\n",
            "%524289\r\n",
            "|9223372036854775808\r\n",
            "*2\r\n$10\r\n0123456789\r\n$9\r\n",
        ] {
            assert_eq!(pass(32, reply.as_bytes(), 1), Err(TooLarge { max_bytes: 32 }), "{reply:?}");
        }
    }

    #[test]
    fn endless_replies_are_refused() {
        for piece in ["+", "+OK", "*1\r\n", "$", "$0"] {
            let reply = piece.repeat(100);
            assert_eq!(pass(32, reply.as_bytes(), 5), Err(TooLarge { max_bytes: 32 }), "{piece:?}");
        }
        let nested = "*2\r\n_\r\n".repeat(1 << 20);
        assert!(
            pass(1 << 30, nested.as_bytes(), 4096).is_err(),
            "the values of an array are counted"
        );
    }
}
