//! Configuration of the caches, from the application and the environment.

mod directory;
mod remote;
mod variables;

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use self::directory::Directory;
use self::variables::{
    BUILD_WAIT, Environment, MAX_AGE, MAX_ENTRY_SIZE, MAX_SIZE, MEMORY_LIMIT, MIN_ENTRY_SIZE,
    Variables, variable_error,
};
use crate::cache::remote::Remote;
use crate::cache::store::{Durability, Operation, Settings, Store};
use crate::counters::Counters;
use crate::device::DeviceInfo;
use crate::error::{Error, ErrorKind, Result};
use crate::process::{self, environment, warning};

const MODE: &str = "KILN_CACHE";
const TRACE: &str = "KILN_CACHE_TRACE";

/// Default maximum time to wait for another process's build.
const DEFAULT_BUILD_WAIT: Duration = Duration::from_secs(60);

/// Configuration of how a [`Runtime`](crate::Runtime) caches programs.
///
/// Settings that are not set here are taken from the environment, and then from the defaults:
///
/// | variable | values | default |
/// | --- | --- | --- |
/// | `KILN_CACHE` | `on`, `memory` (no disk), `off` (neither) | `on` |
/// | `KILN_CACHE_DIR` | a directory | `kiln` in `$XDG_CACHE_HOME`, else on Windows in `%LOCALAPPDATA%`, else `~/.cache/kiln` |
/// | `KILN_CACHE_MAX_SIZE` | bytes, or with a unit: `512MiB`, `2GiB`; `0` for no limit | `1GiB` |
/// | `KILN_CACHE_MAX_AGE` | time since the last use, such as `30d`, `12h` or `90min`; `0s` for no limit | no limit |
/// | `KILN_CACHE_MIN_ENTRY_SIZE`, `KILN_CACHE_MAX_ENTRY_SIZE` | sizes of the binaries that are stored: bytes, or with a unit | 1 byte, `256MiB` |
/// | `KILN_CACHE_BUILD_WAIT` | longest wait for another process's build, such as `500ms`, `10s` or `2min` | `60s` |
/// | `KILN_CACHE_REMOTE` | with the feature `remote`, the address of a remote cache, such as `redis://host:6379/kiln`; its module describes the other variables | none |
/// | `KILN_CACHE_TRACE` | a file, or `stderr`, that gets a [line of JSON](#the-trace) for every requested build, every object that a program is linked from, and every translation | none |
///
/// If a value is invalid, building the runtime fails with an error that names the variable.
///
/// # The directory
///
/// By default, Kiln creates nothing in a home or cache directory that belongs to another user, because that
/// user's programs could not use the new directories. An example is a process of root with the `HOME` of a
/// user. In that case there is no cache on disk, and Kiln logs a warning. Directories are created for their
/// owner alone. A chosen directory must belong to this user, and no other user may be able to write to it. In a
/// shared directory such as `/tmp`, choose a subdirectory.
///
/// # The trace
///
/// Each line of the trace is a JSON object with these members:
///
/// | member | |
/// | --- | --- |
/// | `time` | time when the result was available, in seconds since 1970 |
/// | `process` | process id |
/// | `outcome` | `memory`; `joined`, for an in-flight build; `disk`; `remote`; `compiled`; or `failed` |
/// | `key` | key of the program |
/// | `miss` | reason for a disk miss: `absent`, or what is wrong with the entry; `null` if it was not read |
/// | `remote` | reason why the remote cache did not supply the program; `null` if it was not needed, or did |
/// | `microseconds` | duration of the build; `null` for `memory` and `joined` |
/// | `fields` | fields that the key covers, as pairs of name and value |
/// | `linked` | symbols that modules of the program take from others: `symbol`; `importer` and `exporter`, digests of the modules; `source`, the [origin](crate::libraries::LibrarySource) of the exporter, `null` for the requested module; and `replaces`, whether the importer's own definition is replaced |
///
/// # Examples
///
/// ```
/// use kiln::{CacheConfig, Runtime};
///
/// let builder = Runtime::builder().cache(CacheConfig::at("/var/cache/renderer").max_bytes(4 << 30));
/// ```
#[derive(Clone, Default)]
#[must_use = "a configuration does nothing until a runtime is built with it"]
pub struct CacheConfig {
    mode: Option<Mode>,
    directory: Option<PathBuf>,
    max_bytes: Option<u64>,
    max_age: Option<Duration>,
    durability: Durability,
    entry_bytes: Option<RangeInclusive<u64>>,
    build_wait: Option<Duration>,
    device_identity: Option<DeviceIdentity>,
    #[cfg(feature = "remote")]
    remote: remote::RemoteChoice,
}

/// Function that returns the fields that identify a device in keys.
pub(crate) type DeviceIdentity = Arc<dyn Fn(&DeviceInfo) -> Vec<(String, String)> + Send + Sync>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Off,
    Memory,
    On,
}

/// Cache settings of a runtime, with the environment and the defaults applied.
#[derive(Debug)]
pub(crate) struct Caching {
    /// Whether programs are kept in memory.
    pub(crate) memory: bool,
    pub(crate) store: Option<Store>,
    pub(crate) remote: Option<Remote>,
    pub(crate) trace: Option<TraceTo>,
    /// Maximum time to wait for another process's build.
    pub(crate) build_wait: Duration,
    /// Maximum number of bytes of the programs in memory that the environment sets.
    pub(crate) memory_limit: Option<u64>,
}

/// Destination of the trace of lookups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TraceTo {
    Stderr,
    File(PathBuf),
}

impl CacheConfig {
    /// Returns a configuration that follows the environment.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln::CacheConfig;
    /// // Follows `KILN_CACHE` and `KILN_CACHE_DIR`, but not `KILN_CACHE_MAX_SIZE`.
    /// let cache = CacheConfig::new().max_bytes(256 << 20);
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps nothing in memory or on disk, whatever the environment says. In-flight builds are still shared.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln::{CacheConfig, Runtime};
    /// // A benchmark of compilers compiles every time.
    /// let builder = Runtime::builder().cache(CacheConfig::disabled());
    /// ```
    pub fn disabled() -> Self {
        Self { mode: Some(Mode::Off), ..Self::default() }
    }

    /// Keeps nothing on disk, whatever the environment says.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln::CacheConfig;
    /// let cache = CacheConfig::memory_only();
    /// # futures::executor::block_on(async {
    /// assert!(cache.open_store().await?.is_none()); // there is no store on disk
    /// # Ok::<(), kiln::Error>(())
    /// # })?;
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub fn memory_only() -> Self {
        Self { mode: Some(Mode::Memory), ..Self::default() }
    }

    /// Keeps programs in memory and below this directory, whatever the environment says. The directory is
    /// created if it does not exist. If it cannot be created, programs are built without it, which is reported
    /// by a warning through [`tracing`] and by [`DiskStats::failures`](crate::stats::DiskStats::failures).
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln::{CacheConfig, Runtime};
    /// // A service keeps its programs apart from those of other applications.
    /// let builder = Runtime::builder().cache(CacheConfig::at("/var/cache/renderer"));
    /// ```
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { mode: Some(Mode::On), directory: Some(directory.into()), ..Self::default() }
    }

    /// Sets the maximum size of the store on disk, in bytes. Before a program is written that would exceed it, the least
    /// recently used programs are evicted until nine tenths are left. `0` means no limit.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln::CacheConfig;
    /// let cache = CacheConfig::new().max_bytes(4 << 30); // 4 GiB
    /// let unlimited = CacheConfig::new().max_bytes(0);
    /// ```
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Sets the maximum time since the last use. Collections remove programs that were not used for longer,
    /// whatever the size of the store. There is no such limit by default. Uses are recorded at most every
    /// minute, and when a runtime drains.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use kiln::CacheConfig;
    /// let month = Duration::from_secs(30 * 24 * 60 * 60);
    /// let cache = CacheConfig::new().max_age(month);
    /// ```
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// Sets how surely a written program survives a crash of the machine; [`Durability::Normal`] by default.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln::CacheConfig;
    /// # use kiln::store::Durability;
    /// // On a disk that is erased at each start, no program survives anyway.
    /// let cache = CacheConfig::at("/run/user/1000/kiln").durability(Durability::None);
    /// ```
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the sizes of the binaries, in bytes, that are written to the disk. Small binaries may be quicker to
    /// build than to load, and large ones crowd out the others. The default is one byte to 256 MiB.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln::CacheConfig;
    /// let cache = CacheConfig::new().entry_bytes(4 << 10..=64 << 20); // 4 KiB to 64 MiB
    /// ```
    pub fn entry_bytes(mut self, bytes: RangeInclusive<u64>) -> Self {
        self.entry_bytes = Some(bytes);
        self
    }

    /// Sets how long a build waits at most for another process that builds the same program, before this process
    /// builds it as well; 60 seconds by default. The wait blocks no thread.
    ///
    /// It ends earlier if that process has been stopped by a signal, as by a debugger or a shell, or once it
    /// has taken more than 8 s and more than four times as long as the median of the latest 32 compiles. A wait of more than
    /// 5 s is logged as a warning, with the number of the other process.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use kiln::CacheConfig;
    /// // Programs compile in a second: if another process takes 10 s, it is probably stuck.
    /// let cache = CacheConfig::new().build_wait(Duration::from_secs(10));
    /// ```
    pub fn build_wait(mut self, wait: Duration) -> Self {
        self.build_wait = Some(wait);
        self
    }

    /// Replaces the fields that identify a device in keys, which are [`DeviceInfo::identity`] by default.
    /// Devices with equal fields share programs, for example devices with the same instruction set. If such
    /// devices differ in a way that matters, the driver may refuse a program, which is then built again, or a
    /// program may compute wrong results. Keep at least the driver's version among the fields.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln::CacheConfig;
    /// // These two run the same code; every other device stays by itself.
    /// let config = CacheConfig::new().device_identity(|device| {
    ///     let is_hopper = ["H100", "H200"].iter().any(|name| device.name.contains(name));
    ///     let fields = device.identity().into_iter().map(|(field, value)| match field {
    ///         "device" if is_hopper => (field.to_owned(), "sm_90".to_owned()),
    ///         _ => (field.to_owned(), value.to_owned()),
    ///     });
    ///     fields.collect()
    /// });
    /// ```
    pub fn device_identity(
        mut self,
        identity: impl Fn(&DeviceInfo) -> Vec<(String, String)> + Send + Sync + 'static,
    ) -> Self {
        self.device_identity = Some(Arc::new(identity));
        self
    }

    /// Opens the store that a runtime with this configuration uses, to inspect it. Returns `None` if the disk
    /// is not used.
    ///
    /// # Errors
    ///
    /// From the future: [`Configuration`](ErrorKind::Configuration) if a value is invalid, which the error
    /// names, if the directory cannot be trusted, or if there is no [directory](Self#the-directory); else as
    /// for [`Store::open`].
    ///
    /// # Cancel safety
    ///
    /// Opening changes nothing on the disk.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    /// # use kiln::CacheConfig;
    ///
    /// # async fn example() -> kiln::Result<()> {
    /// if let Some(store) = CacheConfig::new().open_store().await? {
    ///     let mut entries = store.entries();
    ///     while let Some(entry) = entries.next().await {
    ///         println!("{}: {} bytes", entry.name(), entry.bytes());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_store(&self) -> Operation<Result<Option<Store>>> {
        let config = self.clone();
        Operation::new(async move {
            process::start()?;
            config.find_store().await
        })
    }

    async fn find_store(&self) -> Result<Option<Store>> {
        environment::check()?;
        if self.mode(&Environment)? != Mode::On {
            return Ok(None);
        }
        match self.directory(&Environment) {
            Directory::Chosen(directory) | Directory::Default(directory) => {
                let settings = self.settings(&Environment)?;
                Store::open_with(directory, settings, Arc::default()).await.map(Some)
            }
            Directory::None(reason) => {
                let message = format!("{reason}; set KILN_CACHE_DIR to a directory of your own");
                Err(Error::new(ErrorKind::Configuration, message))
            }
        }
    }

    /// Applies the environment to this configuration. An invalid value is an error. A directory without threads for its
    /// files, and a default directory that cannot be used, cause a warning and are counted.
    pub(crate) async fn resolve(&self, counters: &Arc<Counters>) -> Result<Caching> {
        environment::check()?;
        self.resolve_in(&Environment, counters).await
    }

    async fn resolve_in(
        &self,
        variables: &impl Variables,
        counters: &Arc<Counters>,
    ) -> Result<Caching> {
        let mode = self.mode(variables)?;
        let trace = variables.path(TRACE).map(|to| match to.to_str() {
            Some("stderr") => TraceTo::Stderr,
            _ => TraceTo::File(to),
        });
        let settings = self.settings(variables)?;
        let directory = self.directory(variables);
        let is_chosen = matches!(directory, Directory::Chosen(_));
        let store = match directory {
            _ if mode != Mode::On => None,
            Directory::Chosen(directory) | Directory::Default(directory) => {
                match Store::open_with(directory, settings, counters.clone()).await {
                    Ok(store) => Some(store),
                    Err(error) if is_chosen && error.kind() != ErrorKind::OutOfResources => {
                        return Err(error);
                    }
                    Err(error) => {
                        report_missing_store(counters, &error);
                        None
                    }
                }
            }
            Directory::None(reason) => {
                report_missing_store(counters, &reason);
                None
            }
        };
        let remote = self.remote_cache(mode, variables, counters)?;
        let build_wait = match self.build_wait {
            Some(wait) => wait,
            None => variables.time(BUILD_WAIT)?.unwrap_or(DEFAULT_BUILD_WAIT),
        };
        let memory_limit = variables.size(MEMORY_LIMIT)?;
        let memory = mode != Mode::Off;
        Ok(Caching { memory, store, remote, trace, build_wait, memory_limit })
    }

    pub(crate) fn identity(&self) -> Option<&DeviceIdentity> {
        self.device_identity.as_ref()
    }

    fn mode(&self, variables: &impl Variables) -> Result<Mode> {
        if let Some(mode) = self.mode {
            return Ok(mode);
        }
        match variables.text(MODE)?.as_deref() {
            None | Some("on") => Ok(Mode::On),
            Some("memory") => Ok(Mode::Memory),
            Some("off") => Ok(Mode::Off),
            Some(other) => Err(variable_error(
                MODE,
                format!("`{other}` is not one of `on`, `memory` and `off`"),
            )),
        }
    }

    fn settings(&self, variables: &impl Variables) -> Result<Settings> {
        let defaults = Settings::default();
        let max_bytes = match self.max_bytes {
            Some(bytes) => Some(bytes),
            None => variables.size(MAX_SIZE)?,
        };
        let max_age = match self.max_age {
            Some(age) => Some(age),
            None => variables.time(MAX_AGE)?.filter(|age| !age.is_zero()),
        };
        let entry_bytes = match &self.entry_bytes {
            Some(sizes) => sizes.clone(),
            None => entry_sizes(variables, defaults.entry_bytes)?,
        };
        Ok(Settings {
            max_bytes: match max_bytes {
                Some(0) => None,
                Some(bytes) => Some(bytes),
                None => defaults.max_bytes,
            },
            max_age,
            durability: self.durability,
            entry_bytes,
        })
    }

    fn directory(&self, variables: &impl Variables) -> Directory {
        Directory::find(self.directory.as_deref(), variables)
    }
}

impl fmt::Debug for CacheConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("CacheConfig");
        #[cfg(feature = "remote")]
        all.field("remote", &self.remote);
        all.field("mode", &self.mode)
            .field("directory", &self.directory)
            .field("max_bytes", &self.max_bytes)
            .field("max_age", &self.max_age)
            .field("durability", &self.durability)
            .field("entry_bytes", &self.entry_bytes)
            .field("build_wait", &self.build_wait)
            .finish_non_exhaustive()
    }
}

/// Returns the sizes of the binaries that are stored, where the environment sets them.
fn entry_sizes(
    variables: &impl Variables,
    defaults: RangeInclusive<u64>,
) -> Result<RangeInclusive<u64>> {
    let least = variables.size(MIN_ENTRY_SIZE)?.unwrap_or(*defaults.start());
    let most = variables.size(MAX_ENTRY_SIZE)?.unwrap_or(*defaults.end());
    if least > most {
        let reason = format!("{least} bytes are more than {MAX_ENTRY_SIZE}, {most} bytes");
        return Err(variable_error(MIN_ENTRY_SIZE, reason));
    }
    Ok(least..=most)
}

/// Counts and reports that there is no store, although the configuration requests one.
fn report_missing_store(counters: &Counters, reason: &dyn fmt::Display) {
    counters.disk.failures.add_one();
    warning::warn(&format!(
        "programs are not kept on disk: {reason}; set KILN_CACHE_DIR to a directory of your own, or \
         KILN_CACHE=memory"
    ));
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use futures::executor::block_on;
    use std::ffi::OsString;
    use std::path::Path;

    use super::*;

    impl Variables for HashMap<&str, &str> {
        fn value(&self, name: &str) -> Option<OsString> {
            match HashMap::get(self, name) {
                Some(&"not unicode") => Some(not_unicode()),
                text => text.map(OsString::from),
            }
        }
    }

    /// Returns an absolute path that is not Unicode text.
    #[cfg(unix)]
    fn not_unicode() -> OsString {
        std::os::unix::ffi::OsStringExt::from_vec(b"/caf\xe9".to_vec())
    }

    #[cfg(windows)]
    fn not_unicode() -> OsString {
        std::os::windows::ffi::OsStringExt::from_wide(&[0x43, 0x3a, 0x5c, 0xd800])
    }

    fn root(config: &CacheConfig, variables: &[(&str, &str)]) -> Option<PathBuf> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        match config.directory(&variables) {
            Directory::Chosen(directory) | Directory::Default(directory) => Some(directory),
            Directory::None(_) => None,
        }
    }

    #[test]
    fn the_first_known_directory_is_used() {
        let unset = CacheConfig::new();
        let directory = tempfile::tempdir().expect("there is disk space");
        // A home has to exist; the other directories are created.
        let [at_home, caches, local] = ["", "caches", "local"]
            .map(|name| directory.path().join(name).to_str().expect("it is Unicode").to_owned());
        let home = ("HOME", &*at_home);
        let local = ("LOCALAPPDATA", &*local);
        let xdg = ("XDG_CACHE_HOME", &*caches);
        let own = ("KILN_CACHE_DIR", "/own");
        let kiln_in = |folder: &Path| Some(folder.join("kiln"));
        assert_eq!(root(&unset, &[]), None);
        assert_eq!(root(&unset, &[home]), kiln_in(&Path::new(&at_home).join(".cache")));
        let of_windows =
            if cfg!(windows) { kiln_in(Path::new(local.1)) } else { root(&unset, &[home]) };
        assert_eq!(root(&unset, &[home, local]), of_windows);
        assert_eq!(root(&unset, &[home, local, xdg]), kiln_in(Path::new(&caches)));
        assert_eq!(root(&unset, &[home, ("XDG_CACHE_HOME", "rel")]), root(&unset, &[home]));
        assert_eq!(root(&unset, &[home, xdg, own]), Some("/own".into()));
        assert_eq!(root(&CacheConfig::at("/set"), &[home, xdg, own]), Some("/set".into()));
    }

    #[test]
    fn paths_need_not_be_unicode() {
        let path = PathBuf::from(not_unicode());
        for (name, expected) in [
            ("KILN_CACHE_DIR", Some(path.clone())),
            // This home does not exist.
            ("HOME", None),
        ] {
            assert_eq!(root(&CacheConfig::new(), &[(name, "not unicode")]), expected);
        }
        let variables = HashMap::from([("HOME", "/nowhere"), (TRACE, "not unicode")]);
        let caching = block_on(CacheConfig::new().resolve_in(&variables, &Arc::default()));
        let Ok(Caching { trace: Some(TraceTo::File(file)), .. }) = caching else {
            panic!("it is a file");
        };
        assert_eq!(file, path);
    }

    #[test]
    fn a_bad_value_is_an_error_that_names_its_variable() {
        for (name, value) in [
            ("KILN_CACHE", "yes"),
            ("KILN_CACHE", "not unicode"),
            ("KILN_CACHE_MAX_SIZE", "much"),
            ("KILN_CACHE_MAX_SIZE", "not unicode"),
            ("KILN_CACHE_MAX_AGE", "30"),
            ("KILN_CACHE_MAX_AGE", "a month"),
            ("KILN_CACHE_MIN_ENTRY_SIZE", "-1"),
            ("KILN_CACHE_MIN_ENTRY_SIZE", "1GiB"), // more than the default maximum
            ("KILN_CACHE_MAX_ENTRY_SIZE", "large"),
            ("KILN_CACHE_MAX_ENTRY_SIZE", "0"),
            ("KILN_CACHE_BUILD_WAIT", "60"),
            ("KILN_MEMORY_LIMIT", "all"),
        ] {
            let variables = HashMap::from([("HOME", "/nowhere"), (name, value)]);
            let resolved = block_on(CacheConfig::new().resolve_in(&variables, &Arc::default()));
            let error = resolved.expect_err("the value is bad");
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn settings_of_the_application_override_the_environment() {
        let variables = HashMap::from([
            ("HOME", "/nowhere"),
            ("KILN_CACHE", "off"),
            ("KILN_CACHE_MAX_SIZE", "1MiB"),
        ]);
        let resolve = |config: CacheConfig| {
            let resolved = block_on(config.resolve_in(&variables, &Arc::default()));
            let caching = resolved.expect("it is valid");
            (caching.memory, caching.store.is_some())
        };
        assert_eq!(resolve(CacheConfig::new()), (false, false));
        assert_eq!(resolve(CacheConfig::memory_only()), (true, false));
        assert_eq!(resolve(CacheConfig::at("/nowhere/kiln")), (true, true));
        let limit =
            |config: CacheConfig| config.settings(&variables).expect("it is valid").max_bytes;
        assert_eq!(limit(CacheConfig::new()), Some(1 << 20));
        assert_eq!(limit(CacheConfig::new().max_bytes(7)), Some(7));
        assert_eq!(limit(CacheConfig::new().max_bytes(0)), None);
    }

    #[test]
    fn the_environment_sets_age_sizes_and_waits() {
        let variables = HashMap::from([
            ("HOME", "/nowhere"),
            ("KILN_CACHE_MAX_AGE", "2d"),
            ("KILN_CACHE_MIN_ENTRY_SIZE", "4KiB"),
            ("KILN_CACHE_MAX_ENTRY_SIZE", "1MiB"),
            ("KILN_CACHE_BUILD_WAIT", "1500ms"),
            ("KILN_MEMORY_LIMIT", "32MiB"),
        ]);
        let day = Duration::from_secs(24 * 60 * 60);
        let settings = |config: CacheConfig| config.settings(&variables).expect("it is valid");
        let unset = settings(CacheConfig::new());
        assert_eq!((unset.max_age, unset.entry_bytes), (Some(2 * day), 4096..=1 << 20));
        let config = CacheConfig::new().max_age(day).entry_bytes(1..=2).build_wait(day);
        let set = settings(config.clone());
        assert_eq!((set.max_age, set.entry_bytes), (Some(day), 1..=2));
        let resolved = |config: CacheConfig, variables: &HashMap<&str, &str>| {
            let caching =
                block_on(config.resolve_in(variables, &Arc::default())).expect("it is valid");
            (caching.build_wait, caching.memory_limit)
        };
        let wait = Duration::from_millis(1500);
        assert_eq!(resolved(CacheConfig::new(), &variables), (wait, Some(32 << 20)));
        assert_eq!(resolved(config, &variables).0, day);
        let none = HashMap::from([("HOME", "/nowhere"), ("KILN_CACHE_MAX_AGE", "0s")]);
        assert_eq!(resolved(CacheConfig::new(), &none), (DEFAULT_BUILD_WAIT, None));
        assert_eq!(CacheConfig::new().settings(&none).expect("it is valid").max_age, None);
    }

    #[cfg(unix)]
    #[test]
    fn homes_that_do_not_belong_to_a_user_are_ignored() {
        // `/dev/null` is not a home for any user.
        for home in ["/", "/nowhere/at/all", "relative", "/dev/null"] {
            assert_eq!(root(&CacheConfig::new(), &[("HOME", home)]), None, "{home}");
        }
        // Every user may create a directory there.
        let public = ("XDG_CACHE_HOME", "/tmp");
        assert_eq!(root(&CacheConfig::new(), &[public]), Some("/tmp/kiln".into()));
    }

    #[test]
    fn a_missing_directory_disables_the_store_and_is_counted() {
        let counters = Arc::new(Counters::default());
        let caching = block_on(CacheConfig::new().resolve_in(&HashMap::new(), &counters));
        assert!(caching.expect("it is not an error").store.is_none());
        assert_eq!(counters.disk.failures.get(), 1);
    }
}
