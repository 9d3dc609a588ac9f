//! Connected children on systems where Kiln connects none: they cannot be started.

use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Instant;

use super::exchange_error::ExchangeError;
use crate::error::{Error, Result};

/// A child process that stays. This system has none.
pub(crate) enum ConnectedProcess {}

type Exchanged = std::result::Result<(), ExchangeError>;

impl ConnectedProcess {
    /// Returns the error that such a process cannot be started.
    pub(crate) fn start(command: Command, _niceness: u8) -> Result<Self> {
        let program = command.get_program().display().to_string();
        Err(Error::unsupported("children are connected by sockets on Unix only").within(program))
    }

    pub(crate) fn program(&self) -> &Path {
        match *self {}
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        match *self {}
    }

    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        match *self {}
    }

    pub(crate) fn clear_log(&mut self) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn send(&mut self, _: &[u8], _: Instant, _: impl Fn() -> bool) -> Exchanged {
        match *self {}
    }

    pub(crate) fn receive(
        &mut self,
        _: &mut Vec<u8>,
        _: usize,
        _: Instant,
        _: impl Fn() -> bool,
    ) -> Exchanged {
        match *self {}
    }

    pub(crate) fn end(self) -> (Option<ExitStatus>, String) {
        match self {}
    }

    pub(crate) fn kill(self) -> String {
        match self {}
    }
}
