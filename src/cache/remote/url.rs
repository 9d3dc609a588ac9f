//! Parses the address of a remote cache and makes the access to its objects.
//!
//! Addresses hold passwords, so messages show only the scheme, the host and the path.

#[cfg(all(test, feature = "remote-fs"))]
#[path = "../../../tests/support/share.rs"]
mod share;

use std::collections::HashMap;

use ::url::Url;
use percent_encoding::percent_decode_str;

use super::objects::Objects;
use super::settings::Settings;
use crate::error::{Error, ErrorKind, Result};

/// Access to a service, and its name for messages.
pub(super) struct Located {
    pub(super) objects: Box<dyn Objects>,
    pub(super) name: String,
}

/// Known schemes: name, the feature that each needs, and whether that feature is built in.
const SCHEMES: [(&str, &str, bool); 7] = [
    ("redis", "remote-redis", cfg!(feature = "remote-redis")),
    ("rediss", "remote-redis", cfg!(feature = "remote-redis")),
    ("s3", "remote-s3", cfg!(feature = "remote-s3")),
    ("webdav", "remote-webdav", cfg!(feature = "remote-webdav")),
    ("webdav+http", "remote-webdav", cfg!(feature = "remote-webdav")),
    ("fs", "remote-fs", cfg!(feature = "remote-fs")),
    ("file", "remote-fs", cfg!(feature = "remote-fs")),
];

/// Returns the service at an address. Connects to nothing.
pub(super) fn locate(text: &str, settings: &Settings) -> Result<Located> {
    let Some((scheme, rest)) = text.trim().split_once("://") else {
        // The text may be a password by mistake, so the message does not show it.
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
    let address = Parsed::new(&scheme, rest)?;
    let name = address.name();
    let objects = build(&address, settings).map_err(|error| error.within(&name))?;
    Ok(Located { objects, name })
}

/// Returns the name of the service of a scheme.
fn service(scheme: &str) -> &str {
    match scheme {
        "rediss" => "redis",
        "webdav+http" => "webdav",
        "file" => "fs",
        other => other,
    }
}

/// Parts of an address.
#[cfg_attr(
    not(any(
        feature = "remote-redis",
        feature = "remote-fs",
        feature = "remote-s3",
        feature = "remote-webdav"
    )),
    expect(dead_code, reason = "no service is built in")
)]
pub(super) struct Parsed {
    /// The scheme, in lower case.
    pub(super) scheme: String,
    /// Whole address, with the name of the service as its scheme.
    #[cfg_attr(
        not(any(feature = "remote-fs", feature = "remote-s3", feature = "remote-webdav")),
        expect(dead_code, reason = "no service is built in that OpenDAL parses the address of")
    )]
    pub(super) text: String,
    /// Host and port.
    pub(super) authority: Option<String>,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    /// Decoded path, without slashes at its ends.
    pub(super) path: String,
    /// Settings after the question mark, by name in lower case.
    pub(super) options: HashMap<String, String>,
}

#[cfg_attr(
    not(any(
        feature = "remote-redis",
        feature = "remote-fs",
        feature = "remote-s3",
        feature = "remote-webdav"
    )),
    expect(dead_code, reason = "no service is built in")
)]
impl Parsed {
    fn new(scheme: &str, rest: &str) -> Result<Self> {
        // The parser treats web schemes such as `http` differently.
        let text = format!("{}://{rest}", service(scheme));
        let url = Url::parse(&text)
            .map_err(|error| bad(format!("`{scheme}://..` cannot be parsed")).with_source(error))?;
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let authority =
            url.host_str().filter(|host| !host.is_empty()).map(|host| match url.port() {
                Some(port) => format!("{host}:{port}"),
                None => host.to_owned(),
            });
        let options = url.query_pairs();
        Ok(Self {
            scheme: scheme.to_owned(),
            authority,
            username: Some(url.username()).filter(|name| !name.is_empty()).map(decoded),
            password: url.password().map(decoded),
            path: decoded(url.path()).trim_matches('/').to_owned(),
            options: options.map(|(k, v)| (k.to_ascii_lowercase(), v.into_owned())).collect(),
            text,
        })
    }

    /// Returns the scheme, the host and the path.
    fn name(&self) -> String {
        let authority = self.authority.as_deref().unwrap_or_default();
        format!("{}://{authority}/{}", self.scheme, self.path)
    }

    pub(super) fn service(&self) -> &str {
        service(&self.scheme)
    }

    /// Fails if the address has a setting that the service does not have: the name may be misspelled.
    pub(super) fn refuse_unknown(&self, known: &[&str]) -> Result<()> {
        match self.options.keys().find(|name| !known.contains(&name.as_str())) {
            Some(name) => {
                let known = known.join(", ");
                Err(bad(format!("no setting is named `{name}`; these are: {known}")))
            }
            None => Ok(()),
        }
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

pub(super) fn bad(reason: String) -> Error {
    Error::new(ErrorKind::Configuration, format!("the remote cache's address: {reason}"))
}

/// Returns access to the objects at an address whose scheme is built in.
#[cfg_attr(
    not(any(
        feature = "remote-redis",
        feature = "remote-fs",
        feature = "remote-s3",
        feature = "remote-webdav"
    )),
    expect(unused_variables, reason = "no service is built in")
)]
fn build(address: &Parsed, settings: &Settings) -> Result<Box<dyn Objects>> {
    #[cfg(feature = "remote-redis")]
    if address.service() == "redis" {
        return Ok(Box::new(super::redis::locate(address, settings)?));
    }
    #[cfg(any(feature = "remote-fs", feature = "remote-s3", feature = "remote-webdav"))]
    return Ok(Box::new(super::opendal::locate(address, settings)?));
    #[cfg(not(any(feature = "remote-fs", feature = "remote-s3", feature = "remote-webdav")))]
    Err(bad(format!("the scheme `{}` is not built in", address.scheme)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        let Err(error) = locate(text, &Settings::default()) else { panic!("{text} is not right") };
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        let mut message = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            message += &format!(": {error}");
            source = error.source();
        }
        assert!(!message.contains("hunter2"), "{message}");
        message
    }

    #[test]
    fn invalid_addresses_are_refused_with_the_reason() {
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
            assert!(!format!("{:?}", located.objects).contains("hunter2"));
        }
        for (text, said) in [
            ("redis:///", "it names no host"),
            ("redis://:hunter2@host:port/", "cannot be parsed"),
            ("redis://:hunter2@host?tll=7d", "no setting is named `tll`; these are: ttl, "),
            ("redis://:hunter2@host?ttl=soon", "`ttl=soon` is not a time"),
            ("redis://:hunter2@host?db=first", "`db=first` is not the number"),
            ("redis://:hunter2@host?cluster_endpoints=a:1,:hunter2@b:2", "takes `host:port`"),
        ] {
            assert!(error(text).contains(said), "{text}: {}", error(text));
        }
    }

    #[cfg(feature = "remote-s3")]
    #[test]
    fn the_address_of_an_s3_bucket_has_no_credentials() {
        let text = "s3://bucket/kiln?region=eu-central-1&endpoint=http://localhost:9000";
        let Ok(located) = locate(text, &Settings::default()) else { panic!("it is valid") };
        assert_eq!(located.name, "s3://bucket/kiln");
        assert!(format!("{:?}", located.objects).contains("bucket"), "{:?}", located.objects);
        assert!(error("s3://ada:hunter2@bucket").contains("AWS_ACCESS_KEY_ID"));
    }

    #[cfg(feature = "remote-webdav")]
    #[test]
    fn webdav_is_reached_over_tls_unless_asked_otherwise() {
        for text in ["webdav://ada:hunter2@host/dav", "webdav+http://host:8080"] {
            let located = locate(text, &Settings::default())
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            assert!(!format!("{:?}", located.objects).contains("hunter2"));
        }
    }

    #[cfg(feature = "remote-fs")]
    #[test]
    fn the_path_of_a_directory_follows_three_slashes() {
        let directory = tempfile::tempdir().expect("there is disk space");
        let shared = directory.path().join("share");
        let text = share::address(&shared);
        let Ok(located) = locate(&text, &Settings::default()) else { panic!("it is valid") };
        assert_eq!(located.name, text);
        assert!(!shared.exists(), "it may be mounted later");
        assert!(error("fs://mnt/kiln").contains("three slashes"));
    }
}
