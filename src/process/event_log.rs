//! Events of Kiln on standard error, for applications that have no [`tracing`] subscriber.
//!
//! `KILN_LOG` names the least important level that is written. The subscriber is set once, when the first runtime
//! starts or the first store is opened, unless the application has set one before.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::error::{Error, ErrorKind, Result};

/// Environment variable with the level.
const VARIABLE: &str = "KILN_LOG";

/// Beginning of the names of Kiln's modules, which are the targets of its events.
const TARGET: &str = "kiln";

/// Starts to write events, if the environment says so and the application has no subscriber.
///
/// # Errors
///
/// [`Configuration`](ErrorKind::Configuration) if the variable has another value than a level or `off`.
pub(crate) fn start() -> Result<()> {
    static STARTED: OnceLock<()> = OnceLock::new();
    let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(());
    };
    let level = value.to_str().and_then(parse).ok_or_else(|| {
        let levels = "`error`, `warn`, `info`, `debug`, `trace` and `off`";
        let message = format!("`{}` is not one of {levels}", value.display());
        Error::new(ErrorKind::Configuration, message).within(VARIABLE)
    })?;
    STARTED.get_or_init(|| {
        if level != LevelFilter::OFF && !tracing::dispatcher::has_been_set() {
            let log = EventLog { level, start: Instant::now(), spans: AtomicU64::new(0) };
            // The application may have set a subscriber in the meantime, which then has the events.
            let _ = tracing::subscriber::set_global_default(log);
        }
    });
    Ok(())
}

fn parse(level: &str) -> Option<LevelFilter> {
    // Numbers are levels as well for `tracing`.
    let is_word = level.chars().all(|c| c.is_ascii_alphabetic());
    level.parse().ok().filter(|_| is_word)
}

/// Subscriber that writes a line for each event.
struct EventLog {
    level: LevelFilter,
    start: Instant,
    /// Number of spans, which are numbered and otherwise ignored.
    spans: AtomicU64,
}

impl EventLog {
    /// Returns the line of an event, with the time since the start.
    fn line(&self, event: &Event<'_>) -> String {
        let metadata = event.metadata();
        let mut text = Text::default();
        event.record(&mut text);
        let (seconds, target) = (self.start.elapsed().as_secs_f64(), metadata.target());
        let level = level_in_words(*metadata.level());
        format!("kiln: {level}: [{seconds:.3} s] {}{} ({target})\n", text.message, text.fields)
    }
}

impl Subscriber for EventLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let is_own = target == TARGET || target.starts_with("kiln::");
        is_own && metadata.is_event() && *metadata.level() <= self.level
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        // In one call, so that lines of several threads do not mix. If standard error has no reader, there is no
        // other place to report to.
        let _ = io::stderr().write_all(self.line(event).as_bytes());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn level_in_words(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// Message and fields of an event, as text.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_words() {
        for (word, level) in [
            ("error", LevelFilter::ERROR),
            ("warn", LevelFilter::WARN),
            ("debug", LevelFilter::DEBUG),
            ("TRACE", LevelFilter::TRACE),
            ("off", LevelFilter::OFF),
        ] {
            assert_eq!(parse(word), Some(level), "{word}");
        }
        for other in ["1", "verbose", "kiln=debug", "debug "] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
