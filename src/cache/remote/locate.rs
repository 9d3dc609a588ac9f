//! Makes the access to the objects at the address of a remote cache.

use super::objects::Objects;
use super::settings::Settings;
use super::url::ServiceUrl;
use crate::error::Result;

/// Access to a service, and its name for messages.
pub(super) struct Located {
    pub(super) objects: Box<dyn Objects>,
    pub(super) name: String,
}

/// Returns the service at an address. Connects to nothing.
pub(super) fn locate(text: &str, settings: &Settings) -> Result<Located> {
    let address = ServiceUrl::new(text)?;
    let name = address.name();
    let objects = build(&address, settings).map_err(|error| error.within(&name))?;
    Ok(Located { objects, name })
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
fn build(address: &ServiceUrl, settings: &Settings) -> Result<Box<dyn Objects>> {
    #[cfg(feature = "remote-redis")]
    if address.service() == "redis" {
        return Ok(Box::new(super::redis::locate(address, settings)?));
    }
    #[cfg(any(feature = "remote-fs", feature = "remote-s3", feature = "remote-webdav"))]
    return super::opendal::locate(address, settings);
    #[cfg(not(any(feature = "remote-fs", feature = "remote-s3", feature = "remote-webdav")))]
    Err(super::url::address_error(format!("the scheme `{}` is not built in", address.scheme)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

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
        for (text, reason) in [
            ("hunter2", "it has no `://`"),
            ("", "it has no `://`"),
            ("gopher://:hunter2@host/", "the scheme `gopher` is not known"),
        ] {
            assert!(error(text).contains(reason), "{text}: {}", error(text));
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
        for (text, reason) in [
            ("redis:///", "it does not name a host"),
            ("redis://:hunter2@host:port/", "cannot be parsed"),
            ("redis://:hunter2@host?tll=7d", "there is no setting `tll`; the settings are: ttl, "),
            ("redis://:hunter2@host?ttl=soon", "`ttl=soon` is not a valid time"),
            ("redis://:hunter2@host?db=first", "`db=first` is not the number"),
            ("redis://:hunter2@host?cluster_endpoints=a:1,:hunter2@b:2", "takes `host:port`"),
        ] {
            assert!(error(text).contains(reason), "{text}: {}", error(text));
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
        let text = support::share::address(&shared);
        let Ok(located) = locate(&text, &Settings::default()) else { panic!("it is valid") };
        assert_eq!(located.name, text);
        assert!(!shared.exists(), "it may be mounted later");
        assert!(error("fs://mnt/kiln").contains("three slashes"));
    }
}
