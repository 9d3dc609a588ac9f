//! Entries of build manifests.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::line::{
    ChoiceLine, DeviceLine, InputLine, Line, ProgramLine, SessionId, StrategyName, UsesLine,
};
use crate::digest::{BuildKey, Digest};

/// Entry of a [`BuildManifest`](super::BuildManifest): a program, or a choice between fused kernels. A handle, cheap
/// to clone. Its `Display` form names the modules and the device.
///
/// # Examples
///
/// ```no_run
/// use kiln::manifest::{EntryKind, ManifestEntry};
///
/// fn print(entry: &ManifestEntry) {
///     if entry.kind() == EntryKind::Program {
///         println!("{:.8} {entry}, in {} runs", entry.key(), entry.runs());
///     }
/// }
/// ```
#[derive(Clone)]
pub struct ManifestEntry(Arc<Inner>);

struct Inner {
    line: EntryLine,
    device: Arc<DeviceLine>,
    uses: Uses,
    /// Start of the last session that used the entry, in seconds since 1970.
    last_used: u64,
}

/// Kind of a [`ManifestEntry`].
///
/// # Examples
///
/// ```no_run
/// use kiln::manifest::{EntryKind, ManifestEntry};
///
/// # fn example(manifest: kiln::manifest::BuildManifest) {
/// let is_choice = |entry: &&ManifestEntry| entry.kind() == EntryKind::Choice;
/// println!("{} choices", manifest.entries().iter().filter(is_choice).count());
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EntryKind {
    /// A program, which may be linked from several modules or be a fused kernel.
    Program,
    /// An object, the input of a linker.
    Object,
    /// SPIR-V, translated from OpenCL C.
    SpirV,
    /// The times of the ways to run launches, of which the fastest is chosen.
    Choice,
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Program => "program",
            Self::Object => "object",
            Self::SpirV => "SPIR-V",
            Self::Choice => "choice",
        })
    }
}

/// Line of an entry.
#[derive(Clone, Debug)]
pub(crate) enum EntryLine {
    Program(ProgramLine),
    Choice(ChoiceLine),
}

impl EntryLine {
    pub(super) fn key(&self) -> BuildKey {
        match self {
            Self::Program(program) => program.key,
            Self::Choice(choice) => choice.key,
        }
    }

    pub(super) fn device(&self) -> &str {
        match self {
            Self::Program(program) => &program.device,
            Self::Choice(choice) => &choice.device,
        }
    }

    pub(super) fn into_line(self) -> Line {
        match self {
            Self::Program(program) => Line::Program(program),
            Self::Choice(choice) => Line::Choice(choice),
        }
    }
}

/// Uses of an entry in each session: their number, and the time of the first in microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses(BTreeMap<SessionId, (u64, u64)>);

impl Uses {
    pub(super) fn add(&mut self, line: &UsesLine) {
        let (count, first) = self.0.entry(line.session).or_insert((0, line.first));
        // A session states the number of its uses so far, again and again.
        *count = line.count.max(*count);
        *first = line.first.min(*first);
    }

    pub(super) fn extend(&mut self, other: &Self) {
        // The key is of no importance to `add`.
        other.lines(BuildKey([0; 32])).for_each(|line| self.add(&line));
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = &SessionId> {
        self.0.keys()
    }

    /// Returns the lines that state the uses of the entry with this key.
    pub(super) fn lines(&self, key: BuildKey) -> impl Iterator<Item = UsesLine> {
        let line = move |(&session, &(count, first))| UsesLine { key, session, count, first };
        self.0.iter().map(line)
    }
}

impl ManifestEntry {
    pub(super) fn new(
        line: EntryLine,
        device: Arc<DeviceLine>,
        uses: Uses,
        last_used: u64,
    ) -> Self {
        Self(Arc::new(Inner { line, device, uses, last_used }))
    }

    /// Returns the position among entries: those used in the most sessions first, and of these those used first.
    pub(super) fn rank(&self) -> (Reverse<usize>, u64, BuildKey) {
        let first = self.0.uses.0.values().map(|(_, first)| *first).min();
        (Reverse(self.runs()), first.unwrap_or_default(), self.key())
    }

    pub(super) fn into_parts(self) -> (EntryLine, Uses) {
        match Arc::try_unwrap(self.0) {
            Ok(Inner { line, uses, .. }) => (line, uses),
            Err(shared) => (shared.line.clone(), shared.uses.clone()),
        }
    }

    pub(crate) fn line(&self) -> &EntryLine {
        &self.0.line
    }

    /// Returns the line of the device.
    pub(crate) fn device_line(&self) -> &DeviceLine {
        &self.0.device
    }

    /// Returns the key of the program on the recording machine.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(entry: &kiln::manifest::ManifestEntry) {
    /// println!("kiln cache show {}", entry.key());
    /// # }
    /// ```
    #[must_use]
    pub fn key(&self) -> BuildKey {
        self.0.line.key()
    }

    /// Returns the kind of the entry.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(entry: &kiln::manifest::ManifestEntry) {
    /// assert_ne!(entry.kind(), kiln::manifest::EntryKind::Choice);
    /// # }
    /// ```
    #[must_use]
    pub fn kind(&self) -> EntryKind {
        match &self.0.line {
            EntryLine::Program(program) => match program.strategy {
                StrategyName::Compile => EntryKind::Object,
                StrategyName::Translate => EntryKind::SpirV,
                _ => EntryKind::Program,
            },
            EntryLine::Choice(_) => EntryKind::Choice,
        }
    }

    /// Returns the name of the device that the program was built for.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(entry: &kiln::manifest::ManifestEntry) {
    /// println!("{entry} for {}", entry.device());
    /// # }
    /// ```
    #[must_use]
    pub fn device(&self) -> &str {
        let mut fields = self.device_identity().iter();
        fields.find(|(name, _)| name == "device").map_or(&self.0.device.id, |(_, value)| value)
    }

    /// Returns the fields that identified the device in keys on the recording machine, by name and value:
    /// [`DeviceInfo::identity`](crate::DeviceInfo::identity), or what the application set with
    /// [`CacheConfig::device_identity`](crate::CacheConfig::device_identity).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(entry: &kiln::manifest::ManifestEntry) {
    /// for (field, value) in entry.device_identity() {
    ///     println!("{field}: {value}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn device_identity(&self) -> &[(String, String)] {
        &self.0.device.identity
    }

    /// Returns the number of times that the program was requested, in all recorded runs. After a crash, the last
    /// run may count half of its requests.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(manifest: kiln::manifest::BuildManifest) {
    /// let uses: u64 = manifest.entries().iter().map(|entry| entry.uses()).sum();
    /// # }
    /// ```
    #[must_use]
    pub fn uses(&self) -> u64 {
        self.0.uses.0.values().fold(0, |sum, (count, _)| sum.saturating_add(*count))
    }

    /// Returns the number of recorded runs in which the program was used.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(mut manifest: kiln::manifest::BuildManifest) {
    /// manifest.retain(|entry| entry.runs() > 1);
    /// # }
    /// ```
    #[must_use]
    pub fn runs(&self) -> usize {
        self.0.uses.0.len()
    }

    /// Returns the start of the last recorded run in which the program was used.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(entry: &kiln::manifest::ManifestEntry) {
    /// let age = entry.last_used().elapsed().unwrap_or_default();
    /// println!("{entry} was used {} days ago", age.as_secs() / 86_400);
    /// # }
    /// ```
    #[must_use]
    pub fn last_used(&self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_secs(self.0.last_used)).unwrap_or(UNIX_EPOCH)
    }

    pub(super) fn modules(&self) -> impl Iterator<Item = Digest> {
        self.inputs().iter().map(|input| input.module)
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = &SessionId> {
        self.0.uses.sessions()
    }

    fn inputs(&self) -> &[InputLine] {
        match &self.0.line {
            EntryLine::Program(program) => &program.inputs,
            EntryLine::Choice(_) => &[],
        }
    }
}

impl fmt::Display for ManifestEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let EntryLine::Choice(choice) = &self.0.line {
            return f.write_str(choice.launches.lines().next().unwrap_or("no launches"));
        }
        for (at, input) in self.inputs().iter().enumerate() {
            f.write_str(if at > 0 { " + " } else { "" })?;
            match &input.label {
                Some(label) => f.write_str(label)?,
                None => write!(f, "module {:.8}", input.module)?,
            }
            let options = [&input.options, &input.link_options];
            for options in options.into_iter().filter(|options| !options.is_empty()) {
                write!(f, " {options}")?;
            }
            for (id, value) in &input.constants {
                write!(f, " constant {id} = {:?}", value.0)?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for ManifestEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManifestEntry")
            .field("key", &self.key())
            .field("kind", &self.kind())
            .field("device", &self.device())
            .field("name", &self.to_string())
            .finish_non_exhaustive()
    }
}
