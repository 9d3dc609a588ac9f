//! Trace of lookups: one line of JSON for every requested build, for every object that a program is linked
//! from, and for every SPIR-V translation of OpenCL C, with all fields of its key. For a linked program, also
//! the library that each symbol comes from.

use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use super::disk::Miss;
use super::line_writer::LineWriter;
use super::link::LinkedSymbol;
use crate::cache::config::TraceTo;
use crate::digest::BuildKey;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock;

/// Destination of the lines.
pub(crate) struct LookupTrace(LineWriter);

/// A line of the trace.
pub(crate) struct Line<'a> {
    /// Outcome of the lookup: `memory`, `joined`, `disk`, `remote`, `compiled` or `failed`.
    pub(crate) outcome: &'static str,
    pub(crate) key: BuildKey,
    /// Reason why the disk did not have the program.
    pub(crate) miss: Option<&'a str>,
    /// Reason why the remote cache did not supply the program, if it was needed.
    pub(crate) remote: Option<&'a str>,
    pub(crate) microseconds: Option<u64>,
    pub(crate) fields: Vec<(String, String)>,
    /// Symbols that modules of the program take from other modules.
    pub(crate) linked: Vec<LinkedSymbol>,
}

/// Findings of a build, for the trace of lookups.
#[derive(Default)]
pub(super) struct Trail {
    /// Reason why the disk had no usable program. `None` if it was not asked.
    pub(super) miss: Option<Miss>,
    pub(super) remote: RemoteTrail,
}

/// Findings in the remote cache. A build adds to them while it compiles and its lookup is still pending.
#[derive(Default)]
pub(super) struct RemoteTrail(Mutex<RemoteFindings>);

#[derive(Clone, Default)]
pub(super) struct RemoteFindings {
    /// Reason why the remote cache gave no program. `None` if it was not asked.
    pub(super) reason: Option<String>,
    /// Whether it does not have the program, according to its latest answer.
    pub(super) is_absent: bool,
    /// Whether it has not answered in time.
    pub(super) is_late: bool,
    /// Whether it has an object that must not be replaced: of a newer version, or one that can be used.
    pub(super) keeps_object: bool,
}

impl RemoteTrail {
    /// Records the reason why the remote cache has given no program so far.
    pub(super) fn set_reason(&self, reason: impl Into<String>) {
        lock(&self.0).reason = Some(reason.into());
    }

    /// Records that the remote cache has not answered before the compile begins.
    pub(super) fn set_late(&self) {
        let reason = Some("it had not arrived when the compile began".to_owned());
        self.set(RemoteFindings { reason, is_late: true, ..RemoteFindings::default() });
    }

    /// Replaces the findings.
    pub(super) fn set(&self, findings: RemoteFindings) {
        *lock(&self.0) = findings;
    }

    pub(super) fn findings(&self) -> RemoteFindings {
        lock(&self.0).clone()
    }
}

impl LookupTrace {
    pub(crate) fn open(to: &TraceTo) -> Result<Self> {
        let TraceTo::File(path) = to else { return Ok(Self(LineWriter::to_stderr())) };
        let writer = LineWriter::append_to(path).map_err(|error| {
            let message = format!(
                "KILN_CACHE_TRACE: cannot write to `{}`; give a file, or `stderr`",
                path.display()
            );
            Error::new(ErrorKind::Configuration, message).with_source(error)
        })?;
        Ok(Self(writer))
    }

    /// Writes a line in the background. A failure is only logged.
    pub(crate) fn write(&self, line: &Line<'_>) {
        let Line { outcome, key, miss, remote, microseconds, fields, linked } = line;
        let linked: Vec<_> = linked.iter().map(described).collect();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let line = serde_json::json!({
            "time": time,
            "process": std::process::id(),
            "outcome": outcome,
            "key": key.to_string(),
            "miss": miss,
            "remote": remote,
            "microseconds": microseconds,
            "fields": fields,
            "linked": linked,
        });
        self.0.write(format!("{line}\n"));
    }

    /// Completes once all lines are written that were given before the future is first polled.
    pub(crate) fn settled(&self) -> impl Future<Output = ()> + Send + use<> {
        self.0.settled()
    }
}

/// Describes a linked symbol: its name, the modules that use and define it, by digest, and the origin of the
/// latter.
fn described(symbol: &LinkedSymbol) -> serde_json::Value {
    serde_json::json!({
        "symbol": symbol.name,
        "importer": symbol.importer.digest().to_string(),
        "exporter": symbol.exporter.digest().to_string(),
        "source": symbol.source.as_ref().map(ToString::to_string),
        "replaces": symbol.replaces,
    })
}
