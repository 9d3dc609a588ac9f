//! Addresses of the services that OpenDAL accesses.

#[cfg(any(feature = "remote-s3", feature = "remote-webdav"))]
mod http;

use ::opendal::{Configurator, OperatorUri};
use serde::Serialize;

use super::client::Client;
use crate::cache::remote::settings::Settings;
use crate::cache::remote::url::{ServiceUrl, address_error};
use crate::error::Result;

/// Returns access to the objects at an address. Connects to nothing.
pub(super) fn locate(address: &ServiceUrl, settings: &Settings) -> Result<Client> {
    match address.service() {
        #[cfg(feature = "remote-s3")]
        "s3" => s3(address, settings),
        #[cfg(feature = "remote-webdav")]
        "webdav" => webdav(address, settings),
        #[cfg(feature = "remote-fs")]
        "fs" => fs(address, settings),
        other => Err(address_error(format!("OpenDAL's service `{other}` is not built in"))),
    }
}

/// Returns the client for `s3://bucket[/prefix][?region=..&endpoint=..]`.
#[cfg(feature = "remote-s3")]
fn s3(address: &ServiceUrl, settings: &Settings) -> Result<Client> {
    refuse_user(address, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")?;
    http::client(parse::<::opendal::services::S3Config>(address)?, settings)
}

/// Returns the client for `webdav://[user:password@]host[:port][/path]`, which uses TLS, or for
/// `webdav+http://..`, which does not.
#[cfg(feature = "remote-webdav")]
fn webdav(address: &ServiceUrl, settings: &Settings) -> Result<Client> {
    let Some(authority) = &address.authority else {
        return Err(address_error("it does not name a host".to_owned()));
    };
    let mut config: ::opendal::services::WebdavConfig = parse(address)?;
    let http = if address.scheme == "webdav" { "https" } else { "http" };
    config.endpoint = Some(format!("{http}://{authority}"));
    config.username = address.username.clone().or(config.username);
    config.password = address.password.clone().or(config.password);
    http::client(config, settings)
}

/// Returns the client for `fs:///directory`, on Windows `fs:///C:/directory`.
#[cfg(feature = "remote-fs")]
fn fs(address: &ServiceUrl, settings: &Settings) -> Result<Client> {
    refuse_user(address, "the permissions of the directory")?;
    if address.authority.is_some() {
        return Err(address_error(
            "give the directory after three slashes, as fs:///mnt/kiln".to_owned(),
        ));
    }
    let mut config: ::opendal::services::FsConfig = parse(address)?;
    // On Windows, the path of a URL is a slash and then the drive.
    if cfg!(windows)
        && let Some(root) = &mut config.root
        && root.get(2..).is_some_and(|rest| rest.starts_with(':'))
    {
        root.remove(0);
    }
    let Some(root) = config.root.clone() else {
        return Err(address_error("it does not name a directory".to_owned()));
    };
    let may_write = settings.access.writes();
    if may_write {
        // With atomic writes, readers see a complete object or none.
        let temporary_folder = || format!("{}/tmp", root.trim_end_matches('/'));
        config.atomic_write_dir.get_or_insert_with(temporary_folder);
    }
    Ok(Client::Deferred(super::client::Deferred::new(true, move || {
        if !may_write {
            // OpenDAL would create a missing directory.
            std::fs::metadata(&root).map_err(::opendal::raw::new_std_io_error)?;
        }
        ::opendal::Operator::from_config(config.clone())
    })))
}

/// Parses the settings that an address holds for a service.
fn parse<C: Configurator + Default + Serialize>(address: &ServiceUrl) -> Result<C> {
    let defaults = serde_json::to_value(C::default()).unwrap_or_default();
    let known = defaults.as_object().into_iter().flat_map(|map| map.keys());
    address.refuse_unknown(&known.map(String::as_str).collect::<Vec<_>>())?;
    OperatorUri::new(&address.text, [])
        .and_then(|uri| C::from_uri(&uri))
        .map_err(|error| address_error("its settings cannot be used".to_owned()).with_source(error))
}

#[cfg(any(feature = "remote-s3", feature = "remote-fs"))]
fn refuse_user(address: &ServiceUrl, instead: &str) -> Result<()> {
    if address.username.is_none() && address.password.is_none() {
        return Ok(());
    }
    Err(address_error(format!(
        "it has a user or a password, but this service takes access rights from {instead}"
    )))
}
