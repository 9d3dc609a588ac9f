//! Lines that a child writes, and the counts that its parent makes of them.

use std::collections::BTreeMap;
use std::fmt;

use kiln::Error;

/// Prefix of the lines.
const PREFIX: &str = "foreign";

/// Step that a child begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// Index of the program.
    pub(super) program: usize,
    /// Index of the kernel.
    pub(super) kernel: usize,
    /// `build`, `check` or `run`.
    pub(super) phase: &'static str,
}

/// Declares the events with their names in lines.
macro_rules! events {
    ($($(#[$doc:meta])* $event:ident $name:literal)*) => {
        /// Event in a child, which a line reports with a text.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Event {
            /// The child begins a step.
            Position(Position),
            $($(#[$doc])* $event,)*
        }

        impl Event {
            fn parse(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$event),)*
                    _ => Position::parse(name).map(Self::Position),
                }
            }
        }

        impl fmt::Display for Event {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$event => f.write_str($name),)*
                    Self::Position(at) => write!(f, "{} {} {}", at.phase, at.program, at.kernel),
                }
            }
        }
    };
}

events! {
    /// A program was built for checked launches.
    Built "built"
    /// No compiler takes a program.
    Invalid "invalid"
    /// The device's compiler takes a program, but it cannot be built for checked launches.
    Untranslated "untranslated"
    /// A kernel can be launched.
    Kernel "kernel"
    /// No launch of a kernel can be checked.
    KernelRefused "kernel refused"
    /// A kernel has a parameter for which there is no random argument.
    NotGiven "not given"
    /// A launch is proven.
    Proven "proven"
    /// A launch is guarded.
    Guarded "guarded"
    /// A launch is refused.
    Refused "refused"
    /// A launch that is proven or guarded was executed.
    Executed "executed"
    /// A launch that is proven or guarded failed.
    Failed "failed"
    /// A test that the source states has its results.
    Expected "as expected"
    /// A test that the source states has other results, also if the kernel is not checked.
    Driver "otherwise"
    /// A test that the source states has other results than without checks.
    Unexpected "unexpected"
}

impl Position {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let phase = words.next()?;
        let phase = ["build", "check", "run"].into_iter().find(|known| *known == phase)?;
        let mut number = || words.next()?.parse().ok();
        Some(Self { phase, program: number()?, kernel: number()? })
    }
}

impl Event {
    /// Writes the event's line. Called in a child.
    #[allow(clippy::print_stdout, reason = "the parent reads it")]
    pub(super) fn print(self, text: &str) {
        println!("{PREFIX}\t{self}\t{text}");
    }
}

/// Counts of a source on a device.
#[derive(Default)]
pub(super) struct Counts {
    /// Numbers of events, by their names.
    events: BTreeMap<String, u64>,
    /// Reasons why kernels and launches are refused, without names and numbers.
    pub(super) reasons: BTreeMap<String, u64>,
    /// Programs that cannot be built for checked launches, though the device takes them.
    pub(super) untranslated: Vec<String>,
    /// Programs that no compiler takes.
    pub(super) invalid: Vec<String>,
    /// Launches that failed, though they were proven or guarded.
    pub(super) failed: Vec<String>,
    /// Tests whose results are not those without checks.
    pub(super) unexpected: Vec<String>,
    /// Steps that took too long.
    pub(super) overdue: Vec<String>,
    /// Children that ended before their work was done.
    pub(super) ended: Vec<String>,
}

impl Counts {
    /// Counts the lines of a child. Returns the step that it began last, and the text of its line.
    pub(super) fn add_lines(&mut self, output: &str) -> (Position, String) {
        let mut last = (Position::default(), String::new());
        let mut kernel = String::new();
        for line in output.lines() {
            let mut columns = line.splitn(3, '\t');
            // The test harness may have printed an incomplete line before.
            if !columns.next().is_some_and(|first| first.ends_with(PREFIX)) {
                continue;
            }
            let (Some(name), Some(text)) = (columns.next(), columns.next()) else { continue };
            match Event::parse(name) {
                Some(Event::Position(position)) => {
                    last = (position, text.to_owned());
                    continue;
                }
                Some(Event::Kernel) => text.clone_into(&mut kernel),
                Some(Event::KernelRefused | Event::Refused | Event::NotGiven) => {
                    *self.reasons.entry(format!("{name}: {text}")).or_default() += 1;
                }
                Some(Event::Untranslated) => self.untranslated.push(text.to_owned()),
                Some(Event::Invalid) => self.invalid.push(text.to_owned()),
                Some(Event::Unexpected) => self.unexpected.push(text.to_owned()),
                Some(Event::Failed) => self.failed.push(format!("{kernel}: {text}")),
                _ => {}
            }
            *self.events.entry(name.to_owned()).or_default() += 1;
        }
        last
    }

    pub(super) fn of(&self, event: Event) -> u64 {
        self.events.get(&event.to_string()).copied().unwrap_or(0)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in &self.events {
            write!(f, "{count} {name}, ")?;
        }
        write!(f, "{} overdue, {} ended", self.overdue.len(), self.ended.len())
    }
}

/// Returns why a kernel or a launch is refused, without names and numbers.
pub(super) fn reason_of(error: &Error) -> String {
    let text = error.summary();
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    // A build that refuses all kernels has a line for each of them.
    let line =
        if first.contains("cannot be checked") { first } else { lines.next().unwrap_or(first) };
    let reason = line.split_once("cannot be checked: ").map_or(line, |(_, reason)| reason);
    let whole = reason.split_once("; `unsafe").map_or(reason, |(reason, _)| reason);
    // The line of the source is known only sometimes.
    let reason =
        whole.rsplit_once(" (").filter(|(_, line)| line.ends_with(')') && line.contains(':'));
    without_names(reason.map_or(whole, |(reason, _)| reason))
}

/// Replaces what is quoted, except functions that are called, and numbers.
fn without_names(text: &str) -> String {
    let mut result = String::new();
    for (at, part) in text.split('`').enumerate() {
        if at % 2 == 1 {
            result += if result.ends_with("calls ") { part } else { "_" };
            continue;
        }
        for c in part.chars() {
            match c {
                '0'..='9' if result.ends_with('N') => {}
                '0'..='9' => result.push('N'),
                c => result.push(c),
            }
        }
    }
    result
}
