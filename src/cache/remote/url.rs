//! Parses the address of a remote cache.
//!
//! Addresses hold passwords, so messages show only the scheme, the host and the path.

use std::collections::HashMap;

use ::url::Url;
use percent_encoding::percent_decode_str;

use crate::error::{Error, ErrorKind, Result};

/// Known schemes: the name of each, the feature that it needs, and whether that feature is built in.
const SCHEMES: [(&str, &str, bool); 7] = [
    ("redis", "remote-redis", cfg!(feature = "remote-redis")),
    ("rediss", "remote-redis", cfg!(feature = "remote-redis")),
    ("s3", "remote-s3", cfg!(feature = "remote-s3")),
    ("webdav", "remote-webdav", cfg!(feature = "remote-webdav")),
    ("webdav+http", "remote-webdav", cfg!(feature = "remote-webdav")),
    ("fs", "remote-fs", cfg!(feature = "remote-fs")),
    ("file", "remote-fs", cfg!(feature = "remote-fs")),
];

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
pub(super) struct ServiceUrl {
    /// The scheme, in lower case.
    pub(super) scheme: String,
    /// Whole address, with the name of the service as its scheme.
    #[cfg_attr(
        not(any(feature = "remote-fs", feature = "remote-s3", feature = "remote-webdav")),
        expect(dead_code, reason = "no service is built in whose address OpenDAL parses")
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

impl ServiceUrl {
    /// Parses an address. Fails if its scheme is not built in.
    pub(super) fn new(text: &str) -> Result<Self> {
        let Some((scheme, rest)) = text.trim().split_once("://") else {
            // The text may be a password by mistake, so the message does not show it.
            return Err(address_error(format!(
                "it has no `://`; give an address such as redis://host:6379/kiln or \
                 s3://bucket/prefix?region=eu-central-1 (available schemes: {})",
                available_schemes()
            )));
        };
        let scheme = scheme.to_ascii_lowercase();
        let Some((_, feature, is_built)) = SCHEMES.iter().find(|(name, ..)| *name == scheme) else {
            return Err(address_error(format!(
                "the scheme `{scheme}` is not known; available schemes: {}",
                available_schemes()
            )));
        };
        if !is_built {
            return Err(address_error(format!(
                "the scheme `{scheme}` needs the feature `{feature}`, but this program was built \
                 without it; available schemes: {}",
                available_schemes()
            )));
        }
        // The parser treats web schemes such as `http` differently.
        let text = format!("{}://{rest}", service(&scheme));
        let url = Url::parse(&text).map_err(|error| {
            address_error(format!("`{scheme}://..` cannot be parsed")).with_source(error)
        })?;
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let authority =
            url.host_str().filter(|host| !host.is_empty()).map(|host| match url.port() {
                Some(port) => format!("{host}:{port}"),
                None => host.to_owned(),
            });
        let options = url.query_pairs();
        Ok(Self {
            scheme,
            authority,
            username: Some(url.username()).filter(|name| !name.is_empty()).map(decoded),
            password: url.password().map(decoded),
            path: decoded(url.path()).trim_matches('/').to_owned(),
            options: options.map(|(k, v)| (k.to_ascii_lowercase(), v.into_owned())).collect(),
            text,
        })
    }

    /// Returns the scheme, the host and the path.
    pub(super) fn name(&self) -> String {
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
                Err(address_error(format!(
                    "there is no setting `{name}`; the settings are: {known}"
                )))
            }
            None => Ok(()),
        }
    }
}

/// Lists the schemes that are built in, for messages.
fn available_schemes() -> String {
    let built = SCHEMES.iter().filter(|(.., is_built)| *is_built);
    let names: Vec<_> = built.map(|(name, ..)| *name).collect();
    if names.is_empty() {
        "none, because no service feature such as `remote-redis` is enabled".to_owned()
    } else {
        names.join(", ")
    }
}

/// Returns the error for an invalid address.
pub(super) fn address_error(reason: String) -> Error {
    Error::new(ErrorKind::Configuration, format!("the remote cache's address: {reason}"))
}
