//! Build manifests: records of what processes really built and used, to be built ahead elsewhere.

mod entry;
pub(crate) mod line;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use tempfile::NamedTempFile;

pub use self::entry::{EntryKind, ManifestEntry};
pub(crate) use self::entry::{EntryLine, Uses};
use self::line::{DeviceLine, Line, MODULE_END, MODULE_START, ModuleLine, SessionId, SessionLine};
use crate::digest::{BuildKey, Digest};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::run_blocking;
use crate::future::named_future;
use crate::process;
use crate::process::file;

/// Maximum size of a file that is read as a manifest, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 30;

/// Build manifest: the programs that processes really built and used, with everything that their builds need, the
/// order of their first uses, and the choices between fused kernels.
///
/// [`Runtime::record_manifest`](crate::Runtime::record_manifest) records one, and
/// [`Runtime::warm`](crate::Runtime::warm) builds its programs ahead. The [guide](crate::guides::cold_start)
/// describes both.
///
/// # Examples
///
/// ```no_run
/// use kiln::manifest::BuildManifest;
///
/// # async fn example() -> kiln::Result<()> {
/// let manifest = BuildManifest::open("service.manifest").await?;
/// for entry in manifest.entries() {
///     println!("{entry}: used {} times", entry.uses());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct BuildManifest {
    /// In the order in which they are built ahead.
    entries: Vec<ManifestEntry>,
    modules: BTreeMap<Digest, ModuleText>,
    devices: BTreeMap<String, Arc<DeviceLine>>,
    sessions: BTreeMap<SessionId, SessionLine>,
    damaged: usize,
}

/// Line with a module, which is parsed when the module is needed.
#[derive(Clone)]
struct ModuleText {
    file: Arc<str>,
    line: Range<usize>,
}

named_future! {
    /// Reading of a manifest. Returned by [`BuildManifest::open`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses only the result.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::manifest::{BuildManifest, OpenManifest};
    ///
    /// # async fn example() -> kiln::Result<()> {
    /// let reading: OpenManifest = BuildManifest::open("service.manifest");
    /// let manifest = reading.await?;
    /// # Ok(())
    /// # }
    /// ```
    OpenManifest => Result<BuildManifest>
}

named_future! {
    /// Writing of a manifest. Returned by [`BuildManifest::save`].
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, the file has its old or its new content.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::manifest::{BuildManifest, SaveManifest};
    ///
    /// # async fn example(manifest: BuildManifest) -> kiln::Result<()> {
    /// let writing: SaveManifest = manifest.save("service.manifest");
    /// writing.await
    /// # }
    /// ```
    SaveManifest => Result<()>
}

impl BuildManifest {
    /// Reads a manifest. Lines that are damaged, such as the last one after a crash, are skipped and
    /// [counted](Self::damaged_lines).
    ///
    /// # Errors
    ///
    /// From the future: [`Io`](ErrorKind::Io) if the file cannot be read, is not a regular file, or is larger than
    /// 4 GiB; [`Configuration`](ErrorKind::Configuration) if it is not a manifest, or has the format of another
    /// version of Kiln. Each error names the path.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example() -> kiln::Result<()> {
    /// let manifest = kiln::manifest::BuildManifest::open("service.manifest").await?;
    /// println!("{} programs", manifest.entries().len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(path: impl Into<PathBuf>) -> OpenManifest {
        let path = path.into();
        let started = process::start();
        OpenManifest::new(async move {
            started?;
            let open = move || {
                let bytes = file::read(&path, MAX_FILE_BYTES).map_err(|error| {
                    Error::of_system(format!("cannot read the manifest {}", path.display()), error)
                })?;
                // Bytes that are not UTF-8 make their line unreadable, and no other.
                let text = String::from_utf8(bytes)
                    .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
                Self::read(text.into()).map_err(|error| error.within(path.display()))
            };
            run_blocking(open).await
        })
    }

    /// Reads the content of a file.
    fn read(file: Arc<str>) -> Result<Self> {
        let mut manifest = Self::default();
        let mut entries = Entries::default();
        let mut start = 0;
        for text in file.split('\n') {
            let line = start..start + text.len();
            start = line.end + 1;
            if text.trim_ascii().is_empty() {
                continue;
            }
            if let Some(digest) = digest_of_module(text) {
                let text = ModuleText { file: Arc::clone(&file), line };
                manifest.modules.entry(digest).or_insert(text);
                continue;
            }
            match serde_json::from_str(text) {
                Ok(line) => manifest.add(line, &mut entries)?,
                Err(_) => manifest.damaged += 1,
            }
        }
        if manifest.sessions.is_empty() {
            return Err(Error::new(
                ErrorKind::Configuration,
                "the file is not a build manifest; record one with `KILN_MANIFEST=record:FILE`",
            ));
        }
        manifest.set_entries(entries);
        Ok(manifest)
    }

    fn add(&mut self, line: Line, entries: &mut Entries) -> Result<()> {
        match line {
            Line::Session(session) if session.version != line::VERSION => {
                return Err(Error::new(
                    ErrorKind::Configuration,
                    format!(
                        "the manifest was recorded by Kiln {} in version {} of the format, and \
                         this Kiln reads version {}; record it again",
                        session.kiln,
                        session.version,
                        line::VERSION
                    ),
                ));
            }
            Line::Session(session) => _ = self.sessions.insert(session.id, session),
            Line::Device(device) => _ = self.devices.insert(device.id.clone(), Arc::new(device)),
            Line::Program(program) => {
                entries.lines.insert(program.key, EntryLine::Program(program));
            }
            // The last times are those of the last trials.
            Line::Choice(choice) => {
                entries.lines.insert(choice.key, EntryLine::Choice(choice));
            }
            Line::Uses(uses) => entries.uses.entry(uses.key).or_default().add(&uses),
            // Modules are recognized by their start, so this line is not one that Kiln wrote.
            Line::Module(_) => self.damaged += 1,
        }
        Ok(())
    }

    /// Sets the entries, in the order in which they are built ahead: first what the most sessions used, and of these
    /// what was used first.
    fn set_entries(&mut self, Entries { lines, mut uses }: Entries) {
        let mut entries = Vec::with_capacity(lines.len());
        for (key, line) in lines {
            let Some(device) = self.devices.get(line.device()) else {
                self.damaged += 1;
                continue;
            };
            let uses = uses.remove(&key).unwrap_or_default();
            let time = |id: &SessionId| self.sessions.get(id).map(|session| session.time);
            let last_used = uses.sessions().filter_map(time).max().unwrap_or_default();
            entries.push(ManifestEntry::new(line, Arc::clone(device), uses, last_used));
        }
        entries.sort_by_cached_key(ManifestEntry::rank);
        self.entries = entries;
    }

    /// Returns the entries in the order in which they are built ahead: first what the most runs used, and of these
    /// what was used first.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(manifest: kiln::manifest::BuildManifest) {
    /// if let Some(first) = manifest.entries().first() {
    ///     println!("every run needs {first} first");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn entries(&self) -> &[ManifestEntry] {
        &self.entries
    }

    /// Returns the number of lines that were skipped because they are damaged.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(manifest: kiln::manifest::BuildManifest) {
    /// if manifest.damaged_lines() > 0 {
    ///     eprintln!("the recording process may have crashed");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn damaged_lines(&self) -> usize {
        self.damaged
    }

    /// Adds what another manifest recorded. Sessions that both contain count once.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::manifest::BuildManifest;
    ///
    /// # async fn example() -> kiln::Result<()> {
    /// let mut manifest = BuildManifest::open("monday.manifest").await?;
    /// manifest.merge(BuildManifest::open("tuesday.manifest").await?);
    /// manifest.save("week.manifest").await
    /// # }
    /// ```
    pub fn merge(&mut self, other: Self) {
        let mut entries = Entries::default();
        for entry in std::mem::take(&mut self.entries).into_iter().chain(other.entries) {
            let key = entry.key();
            let (line, uses) = entry.into_parts();
            entries.uses.entry(key).or_default().extend(&uses);
            entries.lines.insert(key, line);
        }
        for (digest, text) in other.modules {
            self.modules.entry(digest).or_insert(text);
        }
        self.devices.extend(other.devices);
        self.sessions.extend(other.sessions);
        self.damaged += other.damaged;
        self.set_entries(entries);
    }

    /// Keeps only the entries for which `keep` returns `true`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::{Duration, SystemTime};
    ///
    /// # fn example(mut manifest: kiln::manifest::BuildManifest) {
    /// let month_ago = SystemTime::now() - Duration::from_secs(30 * 24 * 60 * 60);
    /// manifest.retain(|entry| entry.last_used() >= month_ago);
    /// # }
    /// ```
    pub fn retain(&mut self, keep: impl FnMut(&ManifestEntry) -> bool) {
        self.entries.retain(keep);
    }

    /// Writes the manifest to a file, in place of an earlier one. The file has only the modules, devices and
    /// sessions that the entries need.
    ///
    /// # Errors
    ///
    /// From the future: [`Io`](ErrorKind::Io), naming the path, if the file cannot be written.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(mut manifest: kiln::manifest::BuildManifest) -> kiln::Result<()> {
    /// manifest.retain(|entry| entry.runs() > 1);
    /// manifest.save("service.manifest").await
    /// # }
    /// ```
    pub fn save(&self, path: impl Into<PathBuf>) -> SaveManifest {
        let (path, manifest) = (path.into(), self.clone());
        SaveManifest::new(async move {
            let save = move || {
                let write = || {
                    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                    let mut file = NamedTempFile::new_in(directory.unwrap_or(".".as_ref()))?;
                    file.write_all(manifest.to_text()?.as_bytes())?;
                    file.as_file().sync_all()?;
                    file.persist(&path).map_err(|error| error.error)?;
                    Ok(())
                };
                write().map_err(|error| {
                    Error::of_system(format!("cannot write the manifest {}", path.display()), error)
                })
            };
            run_blocking(save).await
        })
    }

    fn to_text(&self) -> serde_json::Result<String> {
        let mut text = String::new();
        let sessions: BTreeSet<_> = self.entries.iter().flat_map(ManifestEntry::sessions).collect();
        if sessions.is_empty() {
            // Each file states its version.
            text += &Line::Session(SessionLine::empty()).to_text()?;
        }
        for session in sessions.iter().filter_map(|id| self.sessions.get(id)) {
            text += &Line::Session(session.clone()).to_text()?;
        }
        let devices: BTreeSet<_> =
            self.entries.iter().map(|entry| &entry.device_line().id).collect();
        for device in devices.iter().filter_map(|id| self.devices.get(*id)) {
            text += &Line::Device((**device).clone()).to_text()?;
        }
        let modules: BTreeSet<_> = self.entries.iter().flat_map(ManifestEntry::modules).collect();
        for module in modules.iter().filter_map(|digest| self.modules.get(digest)) {
            text += &module.file[module.line.clone()];
            text.push('\n');
        }
        for entry in &self.entries {
            let (line, uses) = entry.clone().into_parts();
            let key = line.key();
            text += &line.into_line().to_text()?;
            for uses in uses.lines(key) {
                text += &Line::Uses(uses).to_text()?;
            }
        }
        Ok(text)
    }

    /// Returns a module.
    ///
    /// # Errors
    ///
    /// [`InvalidModule`](ErrorKind::InvalidModule) if the manifest has none with this digest, or if its line is
    /// damaged.
    pub(crate) fn module(&self, digest: Digest) -> Result<ModuleLine> {
        let lacks = |problem| {
            let message = format!("the manifest {problem} the module {digest:.8}; record it again");
            Error::new(ErrorKind::InvalidModule, message)
        };
        let ModuleText { file, line } =
            self.modules.get(&digest).ok_or_else(|| lacks("does not contain"))?;
        match serde_json::from_str(&file[line.clone()]) {
            Ok(Line::Module(module)) => Ok(module),
            _ => Err(lacks("has a damaged line for")),
        }
    }
}

/// Lines of entries, and their uses.
#[derive(Default)]
struct Entries {
    lines: BTreeMap<BuildKey, EntryLine>,
    uses: HashMap<BuildKey, Uses>,
}

/// Returns the digest of the module that a whole line contains, without parsing the line.
fn digest_of_module(line: &str) -> Option<Digest> {
    let rest = line.strip_prefix(MODULE_START)?;
    rest.ends_with(MODULE_END).then_some(())?;
    rest.get(..64)?.parse().ok()
}

impl fmt::Debug for BuildManifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuildManifest")
            .field("entries", &self.entries.len())
            .field("modules", &self.modules.len())
            .field("devices", &self.devices.keys())
            .finish_non_exhaustive()
    }
}
