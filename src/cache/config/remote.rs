//! The settings of the remote cache, from the application and from the environment.

use std::sync::Arc;

use super::variables::Variables;
use super::{CacheConfig, Mode};
use crate::cache::remote::Remote;
use crate::counters::Counters;
use crate::error::Result;
#[cfg(not(feature = "remote"))]
use crate::process::warning;

const URL: &str = "KILN_CACHE_REMOTE";

#[cfg(not(feature = "remote"))]
impl CacheConfig {
    /// Returns `None`: without the feature there is no remote cache. Warns if the environment names one.
    pub(super) fn remote_cache(
        &self,
        mode: Mode,
        variables: &impl Variables,
        _: &Arc<Counters>,
    ) -> Result<Option<Remote>> {
        if self.may_take_remote_from_environment(mode) && variables.text(URL)?.is_some() {
            warning::warn(&format!(
                "{URL} is set, but this program was built without Kiln's feature `remote`: no \
                 remote cache is used"
            ));
        }
        Ok(None)
    }
}

impl CacheConfig {
    /// Returns whether the environment may name a remote cache. It may not if the application disabled the
    /// cache on disk, or if programs are not kept at all.
    fn may_take_remote_from_environment(&self, mode: Mode) -> bool {
        mode != Mode::Off && matches!(self.mode, None | Some(Mode::On))
    }
}

#[cfg(feature = "remote")]
pub(super) use self::chosen::RemoteChoice;

#[cfg(feature = "remote")]
mod chosen {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::cache::config::variables::{Environment, variable_error};
    #[cfg(feature = "remote-opendal")]
    use crate::cache::remote::opendal::RemoteOperator;
    use crate::cache::remote::{RemoteAccess, RemoteStore, Secret, Settings};
    use crate::error::{Error, ErrorKind};
    use crate::process::file;

    const ACCESS: &str = "KILN_CACHE_REMOTE_ACCESS";
    const BUDGET: &str = "KILN_CACHE_REMOTE_BUDGET";
    const TIMEOUT: &str = "KILN_CACHE_REMOTE_TIMEOUT";
    const SECRET: &str = "KILN_CACHE_REMOTE_SECRET";
    const SECRET_FILE: &str = "KILN_CACHE_REMOTE_SECRET_FILE";

    /// Maximum size of a file that is read as a secret, in bytes.
    const MAX_SECRET_BYTES: u64 = 1 << 20;

    /// Settings of the remote cache that the application has set.
    #[derive(Clone, Default)]
    pub(in crate::cache::config) struct RemoteChoice {
        location: Option<Location>,
        access: Option<RemoteAccess>,
        budget: Option<Duration>,
        timeout: Option<Duration>,
        max_bytes: Option<u64>,
        secret: Option<Secret>,
    }

    /// Location of the remote cache, if the application has chosen one.
    #[derive(Clone)]
    enum Location {
        Disabled,
        Url(String),
        #[cfg(feature = "remote-opendal")]
        Operator(RemoteOperator),
    }

    /// Settings of the [remote cache](crate::cache::remote), with the feature `remote`.
    impl CacheConfig {
        /// Sets the address of the remote cache, whatever the environment says: `redis://host:6379/kiln`,
        /// `s3://bucket/prefix?region=eu-central-1`, `webdav://host/path` or `fs:///directory`, each with the
        /// feature of its service. The [guide](crate::cache::remote#addresses) describes their settings.
        ///
        /// The runtime fails to start with [`Configuration`](ErrorKind::Configuration) if the address is
        /// invalid. Whether the service answers is not checked.
        ///
        /// # Examples
        ///
        /// ```
        /// # use kiln::CacheConfig;
        /// let cache = CacheConfig::new().remote("redis://cache.example.com:6379/renderer");
        /// ```
        pub fn remote(mut self, url: impl Into<String>) -> Self {
            self.remote.location = Some(Location::Url(url.into()));
            self
        }

        /// Uses the service behind an OpenDAL operator as the remote cache, with the feature `remote-opendal`.
        /// This supports OpenDAL's other services and layers. The module
        /// [`kiln::remote::opendal`](crate::cache::remote::opendal) re-exports the matching version of OpenDAL.
        ///
        /// Kiln retries requests and limits their time itself. It calls the operator on its own thread with a
        /// runtime of tokio: an operator that blocks that thread delays the remote cache, not the builds.
        ///
        /// # Examples
        ///
        /// ```
        /// # use kiln::CacheConfig;
        /// use kiln::remote::opendal::{Operator, services::Memory};
        ///
        /// let operator = Operator::new(Memory::default())?; // or any other service, with layers
        /// let cache = CacheConfig::new().remote_operator(operator);
        /// # Ok::<(), Box<dyn std::error::Error>>(())
        /// ```
        #[cfg(feature = "remote-opendal")]
        pub fn remote_operator(mut self, operator: impl Into<RemoteOperator>) -> Self {
            self.remote.location = Some(Location::Operator(operator.into()));
            self
        }

        /// Disables the remote cache, whatever the environment says.
        ///
        /// # Examples
        ///
        /// ```
        /// # use kiln::CacheConfig;
        /// let cache = CacheConfig::new().without_remote();
        /// assert!(cache.open_remote()?.is_none());
        /// # Ok::<(), kiln::Error>(())
        /// ```
        pub fn without_remote(mut self) -> Self {
            self.remote.location = Some(Location::Disabled);
            self
        }

        /// Sets the access to the remote cache; [`RemoteAccess::ReadWrite`] by default.
        ///
        /// # Examples
        ///
        /// ```
        /// # use kiln::CacheConfig;
        /// # use kiln::remote::RemoteAccess;
        /// // Render nodes only use what the build server publishes.
        /// let cache = CacheConfig::new().remote_access(RemoteAccess::ReadOnly);
        /// ```
        pub fn remote_access(mut self, access: RemoteAccess) -> Self {
            self.remote.access = Some(access);
            self
        }

        /// Sets the maximum time that a build waits for the remote cache before its compile starts; 2 seconds
        /// by default. A later answer is still used if it arrives before the compile ends.
        ///
        /// The actual wait is often shorter. It never exceeds the time that the compile is expected to take. It also
        /// depends on how quickly the remote cache has answered lately, and on how often it had the requested program.
        ///
        /// # Examples
        ///
        /// ```
        /// # use std::time::Duration;
        /// # use kiln::CacheConfig;
        /// // These programs compile in 300 ms: a longer wait does not pay.
        /// let cache = CacheConfig::new().remote_budget(Duration::from_millis(300));
        /// ```
        pub fn remote_budget(mut self, budget: Duration) -> Self {
            self.remote.budget = Some(budget);
            self
        }

        /// Sets the timeout of one attempt; one second by default. An attempt to read fails and is repeated if
        /// it makes no progress for this long. An attempt to write has to end in this time, plus one second for
        /// each MiB.
        ///
        /// # Examples
        ///
        /// ```
        /// # use std::time::Duration;
        /// # use kiln::CacheConfig;
        /// // The service is in another region.
        /// let cache = CacheConfig::new().remote_timeout(Duration::from_secs(3));
        /// ```
        pub fn remote_timeout(mut self, timeout: Duration) -> Self {
            self.remote.timeout = Some(timeout);
            self
        }

        /// Sets the maximum size of objects that are read or written, in bytes; 64 MiB by default.
        ///
        /// # Examples
        ///
        /// ```
        /// # use kiln::CacheConfig;
        /// let cache = CacheConfig::new().remote_max_bytes(16 << 20); // 16 MiB
        /// ```
        pub fn remote_max_bytes(mut self, bytes: u64) -> Self {
            self.remote.max_bytes = Some(bytes);
            self
        }

        /// Sets the secret that is shared by all users who may write programs that others run. Kiln
        /// authenticates the data that it writes with the secret, and refuses data that is not authenticated.
        /// Any bytes are valid; 32 or more random bytes are best. If the environment names a file with the
        /// secret, white space at the end of the file is ignored.
        ///
        /// # Examples
        ///
        /// ```no_run
        /// # use kiln::CacheConfig;
        /// # fn example() -> std::io::Result<()> {
        /// let secret = std::fs::read("/run/secrets/kiln")?;
        /// let cache = CacheConfig::new().remote_secret(secret);
        /// # Ok(())
        /// # }
        /// ```
        pub fn remote_secret(mut self, secret: impl AsRef<[u8]>) -> Self {
            self.remote.secret = Some(Secret::new(secret.as_ref()));
            self
        }

        /// Opens the remote cache that a runtime with this configuration uses, to inspect it. Returns `None` if
        /// there is no remote cache.
        ///
        /// # Errors
        ///
        /// [`Configuration`](ErrorKind::Configuration) if a value is invalid, which the error names.
        ///
        /// # Examples
        ///
        /// ```no_run
        /// # use kiln::CacheConfig;
        /// # fn example() -> kiln::Result<()> {
        /// if let Some(remote) = CacheConfig::new().open_remote()? {
        ///     println!("{}, {:?}", remote.name(), remote.access());
        /// }
        /// # Ok(())
        /// # }
        /// ```
        pub fn open_remote(&self) -> Result<Option<RemoteStore>> {
            let environment = Environment;
            let mode = self.mode(&environment)?;
            let remote = self.remote_cache(mode, &environment, &Arc::default())?;
            Ok(remote.map(RemoteStore::new))
        }

        pub(in crate::cache::config) fn remote_cache(
            &self,
            mode: Mode,
            variables: &impl Variables,
            counters: &Arc<Counters>,
        ) -> Result<Option<Remote>> {
            let counters = counters.clone();
            match &self.remote.location {
                Some(Location::Disabled) => Ok(None),
                Some(Location::Url(url)) => {
                    Remote::at(url, self.remote_settings(variables)?, counters).map(Some)
                }
                #[cfg(feature = "remote-opendal")]
                Some(Location::Operator(operator)) => {
                    let settings = self.remote_settings(variables)?;
                    Ok(Some(Remote::through(operator.clone(), settings, counters)))
                }
                None if self.may_take_remote_from_environment(mode) => {
                    let Some(url) = variables.text(URL)? else { return Ok(None) };
                    Remote::at(&url, self.remote_settings(variables)?, counters)
                        .map(Some)
                        .map_err(|error| error.within(URL))
                }
                None => Ok(None),
            }
        }

        fn remote_settings(&self, variables: &impl Variables) -> Result<Settings> {
            let defaults = Settings::default();
            let RemoteChoice { access, budget, timeout, max_bytes, secret, .. } =
                self.remote.clone();
            let access = match access {
                Some(access) => access,
                None => match variables.text(ACCESS)? {
                    Some(text) => {
                        text.parse().map_err(|reason: String| variable_error(ACCESS, reason))?
                    }
                    None => defaults.access,
                },
            };
            let time = |chosen: Option<Duration>, name: &str, default: Duration| match chosen {
                Some(chosen) => Ok(chosen),
                None => Ok(variables.time(name)?.unwrap_or(default)),
            };
            Ok(Settings {
                access,
                budget: time(budget, BUDGET, defaults.budget)?,
                timeout: time(timeout, TIMEOUT, defaults.timeout)?,
                max_bytes: max_bytes.unwrap_or(defaults.max_bytes),
                secret: match secret {
                    Some(secret) => Some(secret),
                    None => secret_in(variables)?,
                },
            })
        }
    }

    fn secret_in(variables: &impl Variables) -> Result<Option<Secret>> {
        match (variables.text(SECRET)?, variables.path(SECRET_FILE)) {
            (Some(_), Some(_)) => Err(variable_error(
                SECRET,
                format!("{SECRET_FILE} is also set; unset one of the two"),
            )),
            (Some(secret), None) => Ok(Some(Secret::new(secret.as_bytes()))),
            (None, Some(path)) => secret_file(&path).map(Some),
            (None, None) => Ok(None),
        }
    }

    fn secret_file(path: &Path) -> Result<Secret> {
        let failed =
            |reason: &str| variable_error(SECRET_FILE, format!("`{}` {reason}", path.display()));
        let bytes = file::read(path, MAX_SECRET_BYTES).map_err(|error| {
            Error::new(ErrorKind::Configuration, format!("`{}` cannot be read", path.display()))
                .with_source(error)
                .within(SECRET_FILE)
        })?;
        // Editors and `echo` end a file with a newline.
        match bytes.trim_ascii_end() {
            [] => Err(failed("contains no secret: it is empty")),
            secret => Ok(Secret::new(secret)),
        }
    }

    impl std::fmt::Debug for RemoteChoice {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            // An address can hold a password.
            let location = self.location.as_ref().map(|location| match location {
                Location::Disabled => "disabled",
                Location::Url(_) => "an address",
                #[cfg(feature = "remote-opendal")]
                Location::Operator(_) => "an operator",
            });
            f.debug_struct("Remote")
                .field("location", &location)
                .field("access", &self.access)
                .field("budget", &self.budget)
                .field("timeout", &self.timeout)
                .field("max_bytes", &self.max_bytes)
                .field("secret", &self.secret)
                .finish()
        }
    }

    #[cfg(test)]
    mod tests {
        use std::collections::HashMap;

        use futures::executor::block_on;

        use super::*;

        type Set<'a> = HashMap<&'a str, &'a str>;

        fn settings(config: &CacheConfig, variables: &Set<'_>) -> Settings {
            config.remote_settings(variables).expect("they are valid")
        }

        fn has_remote(config: &CacheConfig, variables: &Set<'_>) -> bool {
            let caching = block_on(config.resolve_in(variables, &Arc::default()));
            caching.expect("it is valid").remote.is_some()
        }

        #[cfg(feature = "remote-opendal")]
        fn operator() -> ::opendal::Operator {
            ::opendal::Operator::new(::opendal::services::Memory::default()).expect("it is valid")
        }

        #[cfg(feature = "remote-redis")]
        #[test]
        fn the_environment_names_a_remote_unless_the_application_disables_it() {
            let home = ("HOME", "/nowhere");
            let url = (URL, "redis://localhost");
            let set = Set::from([home, url]);
            assert!(has_remote(&CacheConfig::new(), &set));
            assert!(has_remote(&CacheConfig::at("/nowhere/kiln"), &set));
            assert!(!has_remote(&CacheConfig::memory_only(), &set));
            assert!(!has_remote(&CacheConfig::disabled(), &set));
            assert!(!has_remote(&CacheConfig::new().without_remote(), &set));
            assert!(has_remote(
                &CacheConfig::new(),
                &Set::from([home, url, ("KILN_CACHE", "memory")])
            ));
            assert!(!has_remote(
                &CacheConfig::new(),
                &Set::from([home, url, ("KILN_CACHE", "off")])
            ));
            assert!(!has_remote(&CacheConfig::new(), &Set::from([home])));
        }

        #[cfg(feature = "remote-opendal")]
        #[test]
        fn the_application_may_request_a_remote_without_other_caches() {
            for config in [CacheConfig::memory_only(), CacheConfig::disabled()] {
                assert!(has_remote(&config.remote_operator(operator()), &Set::new()));
            }
        }

        #[test]
        fn settings_of_the_application_override_the_environment() {
            let set = Set::from([
                (ACCESS, "read-only"),
                (BUDGET, "500ms"),
                (TIMEOUT, "3s"),
                (SECRET, "hunter2"),
            ]);
            let read = settings(&CacheConfig::new(), &set);
            assert_eq!(read.access, RemoteAccess::ReadOnly);
            assert_eq!(read.budget, Duration::from_millis(500));
            assert_eq!(read.timeout, Duration::from_secs(3));
            assert!(read.secret.is_some());
            let config = CacheConfig::new()
                .remote_access(RemoteAccess::WriteOnly)
                .remote_budget(Duration::from_secs(9))
                .remote_timeout(Duration::from_secs(8))
                .remote_max_bytes(7);
            let chosen = settings(&config, &set);
            assert_eq!(chosen.access, RemoteAccess::WriteOnly);
            assert_eq!(chosen.budget, Duration::from_secs(9));
            assert_eq!(chosen.timeout, Duration::from_secs(8));
            assert_eq!(chosen.max_bytes, 7);
        }

        #[cfg(feature = "remote-opendal")]
        #[test]
        fn errors_name_the_variable_but_no_secret() {
            let missing = "/nowhere/at/all";
            for (name, set) in [
                (ACCESS, Set::from([(ACCESS, "readonly")])),
                (BUDGET, Set::from([(BUDGET, "2")])),
                (TIMEOUT, Set::from([(TIMEOUT, "soon")])),
                (SECRET, Set::from([(SECRET, "hunter2"), (SECRET_FILE, missing)])),
                (SECRET_FILE, Set::from([(SECRET_FILE, missing)])),
                (SECRET_FILE, Set::from([(SECRET_FILE, "/dev/null")])),
                #[cfg(unix)]
                (SECRET_FILE, Set::from([(SECRET_FILE, "/dev/zero")])),
                (SECRET, Set::from([(SECRET, "not unicode")])),
                (URL, Set::from([(URL, "not unicode")])),
                (URL, Set::from([(URL, "hunter2")])),
                (URL, Set::from([(URL, "gopher://:hunter2@host")])),
            ] {
                let mut set = set;
                set.insert("HOME", "/nowhere");
                let config = match set.contains_key(URL) {
                    true => CacheConfig::new(),
                    false => CacheConfig::new().remote_operator(operator()),
                };
                let error = block_on(config.resolve_in(&set, &Arc::default())).expect_err(name);
                assert_eq!(error.kind(), ErrorKind::Configuration);
                assert!(error.to_string().contains(name), "{error}");
                let printed = format!("{error:?}{error}");
                assert!(!printed.contains("hunter2") && !printed.contains("caf"), "{error}");
            }
        }

        #[test]
        fn debug_output_contains_neither_secret_nor_address() {
            let config =
                CacheConfig::new().remote("redis://:hunter2@host").remote_secret("hunter2");
            assert!(!format!("{config:?}").contains("hunter2"));
        }

        #[test]
        fn the_newline_at_the_end_of_a_file_is_not_part_of_the_secret() {
            let directory = tempfile::tempdir().expect("there is room");
            let secrets = ["hunter2", "hunter2\n", "hunter2\r\n"].map(|text| {
                let path = directory.path().join("secret");
                std::fs::write(&path, text).expect("there is room");
                secret_file(&path).expect("it is there")
            });
            assert!(secrets.iter().all(|secret| *secret == Secret::new(b"hunter2")));
        }
    }
}
