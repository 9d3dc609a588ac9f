//! The address of a remote cache as text, to an operator of OpenDAL.
//!
//! Addresses hold passwords: what is said of one, here and later, is its scheme, host and path.

#[cfg(all(test, feature = "remote-fs"))]
#[path = "../../tests/support/share.rs"]
mod share;

use opendal::OperatorUri;

use super::client::Client;
use super::settings::Settings;
use crate::error::{Error, ErrorKind, Result};

/// A service that can be asked, and what to call it.
pub(super) struct Located {
    pub(super) client: Client,
    pub(super) name: String,
}

/// The schemes that this build of the crate knows, with the feature that each belongs to.
const SCHEMES: [(&str, &str, bool); 7] = [
    ("redis", "remote-redis", cfg!(feature = "remote-redis")),
    ("rediss", "remote-redis", cfg!(feature = "remote-redis")),
    ("s3", "remote-s3", cfg!(feature = "remote-s3")),
    ("webdav", "remote-webdav", cfg!(feature = "remote-webdav")),
    ("webdav+http", "remote-webdav", cfg!(feature = "remote-webdav")),
    ("fs", "remote-fs", cfg!(feature = "remote-fs")),
    ("file", "remote-fs", cfg!(feature = "remote-fs")),
];

/// What an address leads to. Connects to nothing.
pub(super) fn locate(text: &str, settings: &Settings) -> Result<Located> {
    let Some((scheme, rest)) = text.trim().split_once("://") else {
        // It may be a password by mistake.
        return Err(bad(format!(
            "it has no `://`; give an address such as redis://host:6379/kiln or \
             s3://bucket/prefix?region=eu-central-1 (known: {})",
            known()
        )));
    };
    let scheme = scheme.to_ascii_lowercase();
    let Some((_, feature, is_built)) = SCHEMES.iter().find(|(name, ..)| *name == scheme) else {
        return Err(bad(format!("the scheme `{scheme}` is not known; these are: {}", known())));
    };
    if !is_built {
        return Err(bad(format!(
            "the scheme `{scheme}` needs the feature `{feature}`, which this program was built \
             without; those it has: {}",
            known()
        )));
    }
    // The parser has its own rules for schemes that it does not know.
    let service = service(&scheme);
    let uri = OperatorUri::new(&format!("{service}://{rest}"), [])
        .map_err(|error| bad(format!("`{scheme}://..` cannot be parsed")).with_source(error))?;
    let name = format!(
        "{scheme}://{}/{}",
        uri.authority().unwrap_or_default(),
        uri.root().unwrap_or_default()
    );
    let client = build(&scheme, &uri, settings).map_err(|error| error.within(&name))?;
    Ok(Located { client, name })
}

fn service(scheme: &str) -> &str {
    match scheme {
        "rediss" => "redis",
        "webdav+http" => "webdav",
        "file" => "fs",
        other => other,
    }
}

fn known() -> String {
    let built = SCHEMES.iter().filter(|(.., is_built)| *is_built);
    let names: Vec<_> = built.map(|(name, ..)| *name).collect();
    if names.is_empty() {
        "none, since no feature of a service is enabled, such as `remote-redis`".to_owned()
    } else {
        names.join(", ")
    }
}

fn bad(reason: String) -> Error {
    Error::new(ErrorKind::Configuration, format!("the remote cache's address: {reason}"))
}

#[cfg_attr(
    not(any(feature = "remote-redis", feature = "remote-fs")),
    expect(unused_variables, reason = "some services are not built in")
)]
fn build(scheme: &str, uri: &OperatorUri, settings: &Settings) -> Result<Client> {
    match service(scheme) {
        #[cfg(feature = "remote-redis")]
        "redis" => services::redis(scheme, uri, settings),
        #[cfg(feature = "remote-s3")]
        "s3" => services::s3(uri),
        #[cfg(feature = "remote-webdav")]
        "webdav" => services::webdav(scheme, uri),
        #[cfg(feature = "remote-fs")]
        "fs" => services::fs(uri, settings),
        other => Err(bad(format!("the scheme `{other}` is not known; these are: {}", known()))),
    }
}

/// What is particular about each service.
#[cfg(any(
    feature = "remote-redis",
    feature = "remote-s3",
    feature = "remote-webdav",
    feature = "remote-fs"
))]
mod services {
    #[cfg(any(feature = "remote-s3", feature = "remote-webdav", feature = "remote-fs"))]
    use opendal::Configurator;
    #[cfg(any(feature = "remote-s3", feature = "remote-webdav", feature = "remote-fs"))]
    use opendal::Operator;
    use opendal::OperatorUri;
    #[cfg(any(feature = "remote-s3", feature = "remote-webdav", feature = "remote-fs"))]
    use serde::Serialize;

    use super::bad;
    use crate::error::Result;
    use crate::remote::client::Client;
    #[cfg(feature = "remote-redis")]
    use crate::remote::redis::Address;
    #[cfg(any(feature = "remote-redis", feature = "remote-fs"))]
    use crate::remote::settings::Settings;

    /// `redis://[user:password@]host[:port][/number of the database][/prefix][?ttl=7d]`, or
    /// `rediss://..`, over TLS.
    #[cfg(feature = "remote-redis")]
    pub(super) fn redis(scheme: &str, uri: &OperatorUri, settings: &Settings) -> Result<Client> {
        const SETTINGS: [&str; 6] =
            ["ttl", "cluster_endpoints", "db", "root", "username", "password"];

        refuse_unknown(uri, &SETTINGS)?;
        let [ttl, nodes, database, root, username, password] =
            SETTINGS.map(|name| uri.option(name));
        let Some(authority) = uri.authority() else {
            return Err(bad("it names no host".to_owned()));
        };
        let mut endpoints = vec![format!("{scheme}://{authority}")];
        for node in nodes.into_iter().flat_map(|nodes| nodes.split(',')) {
            // It may hold a password by mistake.
            if node.is_empty() || node.contains(['/', '?', '#', '@']) {
                let expected = "`cluster_endpoints` takes `host:port`, with commas between";
                return Err(bad(expected.to_owned()));
            }
            endpoints.push(format!("{scheme}://{node}"));
        }
        // The path may begin with the number of the database.
        let path = uri.root().unwrap_or_default();
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        let (first, path) = match first.parse::<u32>() {
            Ok(_) => (Some(first), rest),
            Err(_) => (None, path),
        };
        let database = first.or(database).unwrap_or("0");
        let Ok(database) = database.parse::<u32>() else {
            return Err(bad(format!("`db={database}` is no number of a database")));
        };
        let root = if path.is_empty() { root.unwrap_or_default() } else { path };
        let ttl = match ttl {
            Some(ttl) => {
                let ttl = crate::remote::parse_duration(ttl).ok_or_else(|| {
                    bad(format!("`ttl={ttl}` is no time; give a number with s, min, h or d"))
                })?;
                // Redis takes whole seconds, and no time to live of none.
                Some(ttl.max(std::time::Duration::from_secs(1)))
            }
            None => None,
        };
        let of_user = credentials(uri);
        let address = Address {
            endpoints,
            is_cluster: nodes.is_some(),
            username: of_user.0.or(username.map(str::to_owned)),
            password: of_user.1.or(password.map(str::to_owned)),
            database: database.into(),
            root: root.to_owned(),
            ttl,
        };
        provide_cryptography();
        let settings = settings.clone();
        let operator = move |_| crate::remote::redis::operator(&address, &settings);
        Client::made(false, operator).map_err(unusable)
    }

    /// The client panics where a process has several of what does the cryptography of TLS and chose
    /// none: the application chose, or this does.
    #[cfg(feature = "remote-redis")]
    fn provide_cryptography() {
        // An error would be that one is chosen already.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }

    /// `s3://bucket[/prefix][?region=..&endpoint=..]`
    #[cfg(feature = "remote-s3")]
    pub(super) fn s3(uri: &OperatorUri) -> Result<Client> {
        without_user(uri, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")?;
        over_http(parse::<opendal::services::S3Config>(uri)?)
    }

    /// `webdav://[user:password@]host[:port][/path]`, over TLS, or `webdav+http://..`, without.
    #[cfg(feature = "remote-webdav")]
    pub(super) fn webdav(scheme: &str, uri: &OperatorUri) -> Result<Client> {
        let Some(authority) = uri.authority() else {
            return Err(bad("it names no host".to_owned()));
        };
        let mut config: opendal::services::WebdavConfig = parse(uri)?;
        let http = if scheme == "webdav" { "https" } else { "http" };
        config.endpoint = Some(format!("{http}://{authority}"));
        let (username, password) = credentials(uri);
        config.username = username.or(config.username);
        config.password = password.or(config.password);
        over_http(config)
    }

    /// `fs:///directory`, on Windows `fs:///C:/directory`
    #[cfg(feature = "remote-fs")]
    pub(super) fn fs(uri: &OperatorUri, settings: &Settings) -> Result<Client> {
        without_user(uri, "the permissions of the directory")?;
        if uri.authority().is_some() {
            return Err(
                bad("a directory follows three slashes, such as fs:///mnt/kiln".to_owned()),
            );
        }
        let mut config: opendal::services::FsConfig = parse(uri)?;
        // There, the path of a URL is a slash and then the drive.
        if cfg!(windows)
            && let Some(root) = &mut config.root
            && root.get(2..).is_some_and(|rest| rest.starts_with(':'))
        {
            root.remove(0);
        }
        let Some(root) = config.root.clone() else {
            return Err(bad("it names no directory".to_owned()));
        };
        let writes = settings.access.writes();
        if writes {
            // Readers see all of an object or nothing.
            let beside = || format!("{}/tmp", root.trim_end_matches('/'));
            config.atomic_write_dir.get_or_insert_with(beside);
        }
        Ok(Client::made_later(true, move |_| {
            if !writes {
                // What is not there would be made.
                std::fs::metadata(&root).map_err(opendal::raw::new_std_io_error)?;
            }
            Ok(Operator::from_config(config.clone())?.finish())
        }))
    }

    /// The settings of a service that an address holds.
    #[cfg(any(feature = "remote-s3", feature = "remote-webdav", feature = "remote-fs"))]
    fn parse<C: Configurator + Default + Serialize>(uri: &OperatorUri) -> Result<C> {
        let defaults = serde_json::to_value(C::default()).unwrap_or_default();
        let known = defaults.as_object().into_iter().flat_map(|map| map.keys());
        refuse_unknown(uri, &known.map(String::as_str).collect::<Vec<_>>())?;
        C::from_uri(uri)
            .map_err(|error| bad("its settings cannot be used".to_owned()).with_source(error))
    }

    /// A setting that the service does not know would be passed over: a slip of the pen.
    fn refuse_unknown(uri: &OperatorUri, known: &[&str]) -> Result<()> {
        match uri.options().keys().find(|name| !known.contains(&name.as_str())) {
            Some(name) => {
                let known = known.join(", ");
                Err(bad(format!("no setting is named `{name}`; these are: {known}")))
            }
            None => Ok(()),
        }
    }

    /// User and password before the host, where they are.
    #[cfg(any(feature = "remote-redis", feature = "remote-webdav"))]
    fn credentials(uri: &OperatorUri) -> (Option<String>, Option<String>) {
        let decoded = |text: &str| opendal::raw::percent_decode_path(text);
        (uri.username().map(decoded), uri.password().map(decoded))
    }

    #[cfg(any(feature = "remote-s3", feature = "remote-fs"))]
    fn without_user(uri: &OperatorUri, instead: &str) -> Result<()> {
        if uri.username().is_none() && uri.password().is_none() {
            return Ok(());
        }
        Err(bad(format!("it has a user or a password, which this service takes from {instead}")))
    }

    #[cfg(any(feature = "remote-redis", feature = "remote-s3", feature = "remote-webdav"))]
    fn unusable(error: opendal::Error) -> crate::error::Error {
        bad("the service cannot be used".to_owned()).with_source(error)
    }

    #[cfg(any(feature = "remote-s3", feature = "remote-webdav"))]
    fn over_http(config: impl Configurator + Clone + Send + Sync) -> Result<Client> {
        let operator = move |client| {
            let operator = Operator::from_config(config.clone())?.finish();
            // OpenDAL's own client is shared by all of the process, and its connections belong to
            // the runtime that opened them: ours ends before the process does.
            let client = opendal::raw::HttpClient::with(client);
            Ok(operator.layer(opendal::layers::HttpClientLayer::new(client)))
        };
        Client::made(true, operator).map_err(unusable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let Err(error) = locate(text, &Settings::default()) else { panic!("{text} is not right") };
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        let mut told = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            told += &format!(": {error}");
            source = error.source();
        }
        assert!(!told.contains("hunter2"), "{told}");
        told
    }

    #[cfg(any(feature = "remote-redis", feature = "remote-s3", feature = "remote-webdav"))]
    fn operator(located: &Located) -> &opendal::Operator {
        let Client::There(operator) = &located.client else { panic!("it can be made at once") };
        operator
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_would_be_one() {
        for (text, said) in [
            ("hunter2", "it has no `://`"),
            ("", "it has no `://`"),
            ("gopher://:hunter2@host/", "the scheme `gopher` is not known"),
        ] {
            assert!(error(text).contains(said), "{text}: {}", error(text));
        }
    }

    #[cfg(feature = "remote-redis")]
    #[test]
    fn the_address_of_a_redis_names_host_database_and_prefix() {
        for (text, name) in [
            ("redis://host", "redis://host/"),
            ("redis://:hunter2@host:7000/3/kiln", "redis://host:7000/3/kiln"),
            ("rediss://ada:hunter2@host/kiln?ttl=7d", "rediss://host/kiln"),
            ("redis://host?password=hunter2", "redis://host/"),
            ("redis://:hunter2@host/kiln?cluster_endpoints=other:7000", "redis://host/kiln"),
        ] {
            let located = locate(text, &Settings::default())
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(located.name, name);
            assert_eq!(operator(&located).info().scheme(), "redis");
            assert!(!format!("{:?}", located.client).contains("hunter2"));
        }
        for (text, said) in [
            ("redis:///", "it names no host"),
            ("redis://:hunter2@host:port/", "cannot be parsed"),
            ("redis://:hunter2@host?tll=7d", "no setting is named `tll`; these are: ttl, "),
            ("redis://:hunter2@host?ttl=soon", "`ttl=soon` is no time"),
            ("redis://:hunter2@host?db=first", "`db=first` is no number"),
            ("redis://:hunter2@host?cluster_endpoints=a:1,:hunter2@b:2", "takes `host:port`"),
        ] {
            assert!(error(text).contains(said), "{text}: {}", error(text));
        }
    }

    #[cfg(feature = "remote-s3")]
    #[test]
    fn the_address_of_an_s3_bucket_has_no_credentials() {
        let text = "s3://bucket/kiln?region=eu-central-1&endpoint=http://localhost:9000";
        let Ok(located) = locate(text, &Settings::default()) else { panic!("it is right") };
        assert_eq!(located.name, "s3://bucket/kiln");
        assert_eq!(operator(&located).info().name(), "bucket");
        assert!(error("s3://ada:hunter2@bucket").contains("AWS_ACCESS_KEY_ID"));
    }

    #[cfg(feature = "remote-webdav")]
    #[test]
    fn webdav_is_reached_over_tls_unless_asked_otherwise() {
        for text in ["webdav://ada:hunter2@host/dav", "webdav+http://host:8080"] {
            let located = locate(text, &Settings::default())
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(operator(&located).info().scheme(), "webdav");
        }
    }

    #[cfg(feature = "remote-fs")]
    #[test]
    fn a_directory_follows_three_slashes() {
        let directory = tempfile::tempdir().expect("there is room");
        let shared = directory.path().join("share");
        let text = share::address(&shared);
        let Ok(located) = locate(&text, &Settings::default()) else { panic!("it is right") };
        assert_eq!(located.name, text);
        assert!(!shared.exists(), "it may be mounted later");
        assert!(error("fs://mnt/kiln").contains("three slashes"));
    }
}
