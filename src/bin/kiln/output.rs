//! Output of the commands, and their exit status.

use std::error::Error;
use std::fmt::{self, Display};
use std::io::{self, BufWriter, Stdout, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comfy_table::presets::NOTHING;
use comfy_table::{ColumnConstraint, ContentArrangement, Row, Table};
use kiln::ErrorKind;
use kiln::build::BuildKey;
use serde::Serialize;

/// Maximum width of tables, in characters.
const COLUMNS: u16 = 100;

/// Outcome of a command that ran to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    /// At least one requested item failed, and was reported.
    ItemsFailed,
}

impl Outcome {
    pub(crate) fn success_if(is_success: bool) -> Self {
        if is_success { Self::Success } else { Self::ItemsFailed }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(match outcome {
            Outcome::Success => 0,
            Outcome::ItemsFailed => 1,
        })
    }
}

/// Reason why a command ended early.
#[derive(Debug)]
pub(crate) struct Failure {
    problem: Problem,
    /// Whether the command line cannot be carried out as given.
    is_usage: bool,
}

/// A failure in the form that is printed as JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Problem {
    /// Name of a [`kiln::ErrorKind`]; `Failed` or `Usage` for errors of the tool itself.
    pub(crate) kind: String,
    pub(crate) message: String,
    /// Messages of the compiler.
    pub(crate) log: Option<String>,
}

impl From<&kiln::Error> for Problem {
    fn from(error: &kiln::Error) -> Self {
        let (message, log) = in_parts(error);
        Self { kind: format!("{:?}", error.kind()), message, log: log.map(str::to_owned) }
    }
}

pub(crate) type Result<T = Outcome> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn failed(message: impl Display) -> Self {
        Self::new("Failed", message, false)
    }

    pub(crate) fn usage(message: impl Display) -> Self {
        Self::new("Usage", message, true)
    }

    fn new(kind: &str, message: impl Display, is_usage: bool) -> Self {
        let problem = Problem { kind: kind.to_owned(), message: message.to_string(), log: None };
        Self { problem, is_usage }
    }

    /// Prints the failure to standard error. With JSON, also prints `{"error": ..}` as the last line of
    /// standard output.
    pub(crate) fn report(&self, out: &mut Output) -> io::Result<()> {
        #[derive(Serialize)]
        struct Line<'a> {
            error: &'a Problem,
        }
        note(format_args!("error: {self}"));
        if out.is_json() {
            out.value(&Line { error: &self.problem })?;
            out.flush()?;
        }
        Ok(())
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem.message)?;
        self.problem.log.iter().try_for_each(|log| write!(f, "\n{log}"))
    }
}

impl From<Failure> for ExitCode {
    fn from(failure: Failure) -> Self {
        Self::from(if failure.is_usage { 2 } else { 1 })
    }
}

impl From<kiln::Error> for Failure {
    fn from(error: kiln::Error) -> Self {
        let is_usage = matches!(error.kind(), ErrorKind::Configuration | ErrorKind::NoDevice);
        Self { problem: Problem::from(&error), is_usage }
    }
}

/// Only printing returns an `io::Error` without further context.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::failed(format_args!("cannot write the output: {error}"))
    }
}

/// Formats an error with its causes and the compiler's log.
pub(crate) fn in_full(error: &kiln::Error) -> String {
    match in_parts(error) {
        (text, Some(log)) => format!("{text}\n{log}"),
        (text, None) => text,
    }
}

/// Returns an error with its causes, and separately the compiler's log.
pub(crate) fn in_parts(error: &kiln::Error) -> (String, Option<&str>) {
    let mut text = error.summary();
    let log = error.build_log().map(str::trim).filter(|log| !log.is_empty());
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    (text, log)
}

/// Prints a note for people to standard error.
pub(crate) fn note(text: impl Display) {
    // A closed standard error is ignored.
    let _ = writeln!(io::stderr(), "{}", plain(text));
}

/// Standard output. Once its reader has closed it, output is discarded and the work goes on.
pub(crate) struct Output {
    is_json: bool,
    out: BufWriter<Stdout>,
    is_closed: bool,
}

impl Output {
    pub(crate) fn new(is_json: bool) -> Self {
        Self { is_json, out: BufWriter::new(io::stdout()), is_closed: false }
    }

    /// Returns whether the output is JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.is_json
    }

    pub(crate) fn line(&mut self, text: impl Display) -> io::Result<()> {
        self.write(|out| writeln!(out, "{text}"))
    }

    /// Prints that native code was written to a file, and what it is for. Names of devices are long, and get a line
    /// of their own.
    pub(crate) fn native_code(
        &mut self,
        size: u64,
        file: impl Display,
        device: &str,
        driver: &str,
    ) -> io::Result<()> {
        self.line(format_args!("{} written to {file}", bytes(size)))?;
        self.line(format_args!("for {} (driver {})", plain(device), plain(driver)))
    }

    /// Prints a value as JSON on a line of its own.
    pub(crate) fn value(&mut self, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string(value)?;
        self.line(text)
    }

    pub(crate) fn table(&mut self, mut table: Listing) -> io::Result<()> {
        table.lines().try_for_each(|line| self.line(line))
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.write(Write::flush)
    }

    fn write(
        &mut self,
        write: impl FnOnce(&mut BufWriter<Stdout>) -> io::Result<()>,
    ) -> io::Result<()> {
        if self.is_closed {
            return Ok(());
        }
        match write(&mut self.out) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(())
            }
            written => written,
        }
    }
}

/// Writes output that is not text.
impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::write(self, |out| out.write_all(bytes)).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::flush(self)
    }
}

/// A table for people.
pub(crate) struct Listing {
    table: Table,
    widths: Vec<Width>,
}

/// Whether a column keeps the width of its content, or may shrink.
#[derive(Clone, Copy)]
pub(crate) enum Width {
    Whole,
    Flexible,
}

impl Listing {
    pub(crate) fn new(columns: &[(&str, Width)]) -> Self {
        let mut listing = Self::without_header(columns.iter().map(|(_, width)| *width).collect());
        listing.table.set_header(columns.iter().map(|(name, _)| *name));
        listing
    }

    /// Creates a table of names and their values.
    pub(crate) fn of_pairs() -> Self {
        Self::without_header(vec![Width::Whole, Width::Flexible])
    }

    fn without_header(widths: Vec<Width>) -> Self {
        let mut table = Table::new();
        table.load_style(NOTHING);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(COLUMNS);
        table.set_truncation_indicator("…");
        Self { table, widths }
    }

    /// Adds a row of one line. Text that is too long is truncated.
    pub(crate) fn row<T: Display>(&mut self, cells: impl IntoIterator<Item = T>) {
        // Text is truncated at any character, not only between words.
        self.table.set_delimiter('\u{1f}');
        let mut row = Row::from(cells.into_iter().map(plain));
        row.max_height(1);
        self.table.add_row(row);
    }

    /// Adds a row with as many lines as it needs.
    pub(crate) fn tall_row<T: Display>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.table.add_row(cells.into_iter().map(plain));
    }

    fn lines(&mut self) -> impl Iterator<Item = String> {
        // Columns exist only once there are cells.
        for (column, width) in self.table.column_iter_mut().zip(&self.widths) {
            column.set_padding((0, 2));
            if matches!(width, Width::Whole) {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        self.table.lines().map(|line| line.trim_end().to_owned())
    }
}

/// Escapes control characters, which could change the state of a terminal.
pub(crate) fn plain(text: impl Display) -> String {
    let text = text.to_string();
    let plain = text.chars().map(|c| match c {
        '\n' => "\n".to_owned(),
        '\t' => "    ".to_owned(),
        c if c.is_control() => c.escape_default().to_string(),
        c => c.to_string(),
    });
    plain.collect()
}

/// Returns the first digits of a key: enough to distinguish it from others.
pub(crate) fn short(key: &BuildKey) -> String {
    format!("{key:.12}")
}

/// Formats a size with a unit.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    if size < 1.0 {
        return format!("{bytes} B");
    }
    while size >= 1023.95 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

/// Formats the time that has passed since `time`.
pub(crate) fn age(time: SystemTime) -> String {
    // A time in the future, from a wrong clock, counts as now.
    let seconds = time.elapsed().unwrap_or_default().as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Returns the seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns the time that many seconds after 1970.
pub(crate) fn time(seconds: u64) -> SystemTime {
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH)
}

/// Formats a number of items.
pub(crate) fn count(n: u64, one: &str, many: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {many}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_four_digits_at_most() {
        for (size, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1.0 MiB"),
            (1 << 30, "1.0 GiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }

    #[test]
    fn tables_keep_their_width_by_truncating_flexible_columns() {
        let mut listing = Listing::new(&[("KEY", Width::Whole), ("NAME", Width::Flexible)]);
        listing.row(["0123456789ab", &"long ".repeat(40)]);
        listing.row(["0123456789ab", &"長い".repeat(40)]);
        let lines: Vec<_> = listing.lines().collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        for line in &lines[1..] {
            assert!(line.starts_with("0123456789ab  ") && line.contains('…'), "{line}");
            assert!(line.chars().count() <= usize::from(COLUMNS), "{line}");
        }
    }

    #[test]
    fn control_characters_in_text_are_escaped() {
        assert_eq!(plain("a\u{1b}[2Jb\u{7}\tc"), "a\\u{1b}[2Jb\\u{7}    c");
    }
}
