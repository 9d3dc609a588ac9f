//! Commands that use the remote cache: `push`, `pull`, and the remote parts of `stats` and `why`.

use std::collections::HashSet;
use std::pin::pin;
use std::time::Instant;

use futures::io::Cursor;
use futures::stream::{self, StreamExt};
use kiln::CacheConfig;
use kiln::remote::{RemoteAccess, RemoteStore, Sent};
use kiln::store::{EntryInfo, Store};
use serde::Serialize;

use super::bundle::Refused;
use super::{is_portable, read_entry, select};
use crate::args::KeyPrefix;
use crate::output::{Failure, Outcome, Output, Result, bytes, count, in_full, note};
use crate::progress;

/// Number of entries that are transferred at the same time.
const MAX_TRANSFERS: usize = 8;

/// Reason why an entry is of no use on other machines.
const NOT_PORTABLE: &str = "it has the times of launches, which are valid only on the machine that \
                            measured them";

/// Name of an entry that no cache has.
const ABSENT_NAME: &str =
    "0000000000000000/00/00000000000000000000000000000000000000000000000000000000000000.kiln";

fn open(config: &CacheConfig) -> Result<RemoteStore> {
    config.open_remote()?.ok_or_else(|| {
        Failure::usage("no remote cache is set; give its address in KILN_CACHE_REMOTE")
    })
}

#[derive(Serialize)]
struct Pushed {
    pushed: u64,
    bytes: u64,
    /// Number of entries that were in the remote cache already.
    present: u64,
    refused: Vec<Refused>,
}

pub(super) async fn push(
    out: &mut Output,
    store: &Store,
    config: &CacheConfig,
    keys: &[KeyPrefix],
) -> Result {
    let remote = open(config)?;
    if remote.access() == RemoteAccess::ReadOnly {
        return Err(Failure::usage(format_args!(
            "{} is read-only; set KILN_CACHE_REMOTE_ACCESS to allow writes",
            remote.name()
        )));
    }
    let mut entries = select(store, keys).await?;
    // Entries that the user names replace existing objects: readers may refuse the existing ones.
    let may_list = keys.is_empty() && remote.access() != RemoteAccess::WriteOnly;
    let mut present = HashSet::new();
    if let Some(names) = may_list.then(|| remote.names()).flatten() {
        match names.await {
            Ok(names) => present.extend(names),
            Err(error) => note(format_args!(
                "all entries are pushed, because the remote cache could not be listed: {}",
                in_full(&error)
            )),
        }
    }
    let all = entries.len();
    entries.retain(|entry| !present.contains(&entry.name()));
    let present = (all - entries.len()) as u64;

    let mut done = Pushed { pushed: 0, bytes: 0, present, refused: Vec::new() };
    let push = async |info: EntryInfo| {
        let entry = read_entry(store, &info).await?;
        if !is_portable(entry.record()) {
            return Err(NOT_PORTABLE.to_owned());
        }
        let pushed = remote.put(&info.name(), &entry).await;
        pushed.map(|()| entry.bytes().len() as u64).map_err(|error| in_full(&error))
    };
    let entries = entries.into_iter().map(|info| (info.name(), info)).collect();
    done.refused = transfer("pushing", entries, push, |length| {
        done.pushed += 1;
        done.bytes += length;
    })
    .await;

    let outcome = Outcome::success_if(done.refused.is_empty());
    if out.is_json() {
        out.value(&done)?;
    } else {
        let pushed = count(done.pushed, "entry", "entries");
        let (size, present) = (bytes(done.bytes), done.present);
        out.line(format_args!("{pushed} pushed, {size}; {present} already present"))?;
    }
    Ok(outcome)
}

#[derive(Serialize)]
struct Pulled {
    pulled: Vec<String>,
    /// Number of entries that were in the local store already.
    present: u64,
    refused: Vec<Refused>,
}

pub(super) async fn pull(
    out: &mut Output,
    store: &Store,
    config: &CacheConfig,
    keys: &[KeyPrefix],
) -> Result {
    let remote = open(config)?;
    if remote.access() == RemoteAccess::WriteOnly {
        return Err(Failure::usage(format_args!(
            "{} is write-only; set KILN_CACHE_REMOTE_ACCESS to allow reads",
            remote.name()
        )));
    }
    let Some(names) = remote.names() else {
        return Err(Failure::usage(format_args!(
            "{} cannot be listed; use `kiln build FILE..` to read the programs of the files from \
             it",
            remote.name()
        )));
    };
    let mut names = names.await?;
    names.retain(|name| keys.is_empty() || keys.iter().any(|key| key.matches(name)));
    if let Some(key) = keys.iter().find(|key| !names.iter().any(|name| key.matches(name))) {
        let (remote, key) = (remote.name(), key.as_str());
        return Err(Failure::failed(format_args!("no key in {remote} begins with {key}")));
    }
    let all = names.len();
    let here: HashSet<_> = store.entries().map(|entry| entry.name()).collect().await;
    names.retain(|name| !here.contains(name));
    names.sort_unstable();
    let present = (all - names.len()) as u64;

    let mut done = Pulled { pulled: Vec::new(), present, refused: Vec::new() };
    let pull = async |name: String| {
        let pulled = match remote.get(&name).await {
            Ok(Sent::Whole(entry)) if !is_portable(entry.record()) => {
                return if keys.is_empty() { Ok(None) } else { Err(NOT_PORTABLE.to_owned()) };
            }
            Ok(Sent::Whole(entry)) => {
                store.import(&name, Cursor::new(entry.bytes().to_vec())).await
            }
            Ok(Sent::Absent) => return Err("it no longer exists".to_owned()),
            Ok(Sent::Refused(refused)) => return Err(refused.to_string()),
            Ok(_) => return Err("it has an unknown state".to_owned()),
            Err(error) => Err(error),
        };
        pulled.map(Some).map_err(|error| in_full(&error))
    };
    let names = names.into_iter().map(|name| (name.clone(), name)).collect();
    done.refused = transfer("pulling", names, pull, |key| {
        done.pulled.extend(key.map(|key| key.to_string()));
    })
    .await;
    // Older entries are evicted to make room. An error is ignored: another process may be collecting.
    let _ = store.collect(false).await;

    let outcome = Outcome::success_if(done.refused.is_empty());
    if out.is_json() {
        out.value(&done)?;
    } else {
        let pulled = count(done.pulled.len() as u64, "entry", "entries");
        out.line(format_args!("{pulled} pulled; {} already present", done.present))?;
    }
    Ok(outcome)
}

/// Transfers the named items, several at a time, and shows the progress. Returns and reports the refused ones.
async fn transfer<T, D>(
    what: &'static str,
    all: Vec<(String, T)>,
    one: impl AsyncFn(T) -> std::result::Result<D, String>,
    mut done: impl FnMut(D),
) -> Vec<Refused> {
    let bar = progress::bar(what, all.len());
    let mut refused = Vec::new();
    let transfers = stream::iter(all).map(async |(name, item)| (name, one(item).await));
    let mut transfers = pin!(transfers.buffer_unordered(MAX_TRANSFERS));
    while let Some((name, transferred)) = transfers.next().await {
        match transferred {
            Ok(transferred) => done(transferred),
            Err(why) => bar.suspend(|| refused.push(Refused::report(name, why))),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    refused
}

/// Status of the remote cache.
#[derive(Serialize)]
pub(super) struct Status {
    address: String,
    /// Allowed operations: `read-write`, `read-only` or `write-only`.
    access: &'static str,
    /// Whether a secret is set.
    authenticated: bool,
    /// Time of one answer; null if there was none, or none was requested.
    milliseconds: Option<f64>,
    /// Reason why there was no answer.
    error: Option<String>,
}

impl Status {
    pub(super) fn in_words(&self) -> String {
        let Self { address, access, .. } = self;
        let authenticated = if self.authenticated { ", authenticated" } else { "" };
        let answer = match (&self.milliseconds, &self.error) {
            (Some(milliseconds), _) => format!("; response time {milliseconds:.1} ms"),
            (None, Some(error)) => format!("; {error}"),
            (None, None) => String::new(),
        };
        format!("{address}, {access}{authenticated}{answer}")
    }
}

pub(super) async fn status(config: &CacheConfig) -> Result<Option<Status>> {
    let Some(remote) = config.open_remote()? else { return Ok(None) };
    let access = match remote.access() {
        RemoteAccess::ReadOnly => "read-only",
        RemoteAccess::WriteOnly => "write-only",
        _ => "read-write",
    };
    let mut status = Status {
        address: remote.name().to_owned(),
        access,
        authenticated: remote.is_authenticated(),
        milliseconds: None,
        error: None,
    };
    if remote.access() != RemoteAccess::WriteOnly {
        // The time of the first answer includes that of the connection.
        let answers = async {
            remote.get(ABSENT_NAME).await?;
            let start = Instant::now();
            remote.get(ABSENT_NAME).await?;
            Ok(start.elapsed())
        };
        match answers.await {
            Ok(took) => status.milliseconds = Some(took.as_secs_f64() * 1e3),
            Err(error) => status.error = Some(in_full(&error)),
        }
    }
    Ok(Some(status))
}

/// State of an entry in the remote cache.
#[derive(Serialize)]
pub(super) struct RemoteEntry {
    address: String,
    whole: bool,
    /// Reason why the object, if there is one, would not be used.
    unusable: Option<String>,
}

impl RemoteEntry {
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    pub(super) fn in_words(&self) -> String {
        match &self.unusable {
            _ if self.whole => format!("The remote cache {} has it.", self.address),
            Some(reason) => {
                format!("The entry of the remote cache {} is not used: {reason}.", self.address)
            }
            None => format!("The remote cache {} does not have it.", self.address),
        }
    }
}

/// Looks up a name in the remote cache. Returns `None` if no remote cache is read.
pub(super) async fn look_up(config: &CacheConfig, name: &str) -> Result<Option<RemoteEntry>> {
    let remote = config.open_remote()?.filter(|remote| remote.access() != RemoteAccess::WriteOnly);
    let Some(remote) = remote else { return Ok(None) };
    let (whole, unusable) = match remote.get(name).await {
        Ok(Sent::Whole(_)) => (true, None),
        Ok(Sent::Absent) => (false, None),
        Ok(Sent::Refused(refused)) => (false, Some(refused.to_string())),
        Ok(_) => (false, Some("it has an unknown state".to_owned())),
        Err(error) => (false, Some(in_full(&error))),
    };
    Ok(Some(RemoteEntry { address: remote.name().to_owned(), whole, unusable }))
}
