//! Parser of Redis addresses.

use std::time::Duration;

use super::Address;
use crate::cache::duration::parse_duration;
use crate::cache::remote::url::{ServiceUrl, address_error};
use crate::error::Result;

const SETTINGS: [&str; 6] = ["ttl", "cluster_endpoints", "db", "root", "username", "password"];

impl Address {
    /// Parses `redis://[user:password@]host[:port][/number of the database][/prefix][?ttl=7d]`, or
    /// `rediss://..` for TLS.
    pub(super) fn parse(address: &ServiceUrl) -> Result<Self> {
        address.refuse_unknown(&SETTINGS)?;
        let [ttl, nodes, database, root, username, password] =
            SETTINGS.map(|name| address.options.get(name).map(String::as_str));
        let Some(authority) = &address.authority else {
            return Err(address_error("it does not name a host".to_owned()));
        };
        let scheme = &address.scheme;
        let mut endpoints = vec![format!("{scheme}://{authority}")];
        for node in nodes.into_iter().flat_map(|nodes| nodes.split(',')) {
            // The text may hold a password by mistake, so the message does not show it.
            if node.is_empty() || node.contains(['/', '?', '#', '@']) {
                let expected = "`cluster_endpoints` takes `host:port`, several separated by commas";
                return Err(address_error(expected.to_owned()));
            }
            endpoints.push(format!("{scheme}://{node}"));
        }
        // The path may begin with the number of the database.
        let path = address.path.as_str();
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        let (first, path) = match first.parse::<u32>() {
            Ok(_) => (Some(first), rest),
            Err(_) => (None, path),
        };
        let database = first.or(database).unwrap_or("0");
        let Ok(database) = database.parse::<u32>() else {
            return Err(address_error(format!("`db={database}` is not the number of a database")));
        };
        let root = if path.is_empty() { root.unwrap_or_default() } else { path };
        Ok(Self {
            endpoints,
            is_cluster: nodes.is_some(),
            username: address.username.clone().or(username.map(str::to_owned)),
            password: address.password.clone().or(password.map(str::to_owned)),
            database: database.into(),
            root: root.to_owned(),
            ttl: ttl.map(time_to_live).transpose()?,
        })
    }
}

fn time_to_live(text: &str) -> Result<Duration> {
    let Some(ttl) = parse_duration(text) else {
        let expected = "give a number with the unit s, min, h or d";
        return Err(address_error(format!("`ttl={text}` is not a valid time; {expected}")));
    };
    // Redis takes whole seconds, and refuses a time to live of zero.
    Ok(ttl.max(Duration::from_secs(1)))
}
