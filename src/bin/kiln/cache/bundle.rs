//! Transfer of programs to and from files: `extract`, `export` and `import`.
//!
//! A bundle is a tar file of entries under their names, which are the same in every store. So any tool can list
//! its contents.

use std::io::{self, BufReader, BufWriter, IsTerminal, Read, Write};
use std::path::Path;

use futures::channel::mpsc;
use futures::future;
use futures::sink::SinkExt;
use futures::stream::TryStreamExt;
use kiln::build::BuildKey;
use kiln::store::{EntryInfo, Store};
use serde::Serialize;
use tar::{Archive, Builder, EntryType, Header};

use super::{device_of, driver_of, find, read_entry, select};
use crate::args::KeyPrefix;
use crate::file;
use crate::output::{Failure, Outcome, Output, Result, bytes, count, in_full, note, plain};

/// Number of bytes of a bundle that are read at a time.
const CHUNK_BYTES: usize = 64 << 10;

#[derive(Serialize)]
struct Extracted {
    key: String,
    file: String,
    device: String,
    driver: String,
    bytes: u64,
}

pub(super) async fn extract(
    out: &mut Output,
    store: &Store,
    key: &KeyPrefix,
    is_raw: bool,
    path: Option<&Path>,
) -> Result {
    let info = find(store, key).await?;
    let entry = read_entry(store, &info).await.map_err(|why| {
        Failure::failed(format_args!("the entry of {} cannot be used: {why}", info.key()))
    })?;
    let record = entry.record();
    let is_described = record.object.is_some() && !is_raw;
    let content = if is_described { entry.bytes() } else { entry.payload() };
    let (device, driver) = (device_of(record), driver_of(record));
    let Some(path) = path else {
        if io::stdout().is_terminal() {
            return Err(Failure::usage(
                "a binary cannot be written to a terminal; give --output FILE",
            ));
        }
        note(format_args!("for {} (driver {})", plain(device), plain(driver)));
        out.write_all(content)?;
        return Ok(Outcome::Success);
    };
    file::write_output(path, content).map_err(|error| cannot("write", path, &error))?;
    let size = content.len() as u64;
    if out.is_json() {
        out.value(&Extracted {
            key: info.key().to_string(),
            file: path.display().to_string(),
            device: device.to_owned(),
            driver: driver.to_owned(),
            bytes: size,
        })?;
    } else {
        out.native_code(size, path.display(), device, driver)?;
    }
    Ok(Outcome::Success)
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Failure {
    let hint = match file::is_not_regular(error) {
        true => "; give a file, or use standard input or output",
        false => "",
    };
    Failure::failed(format_args!("cannot {what} {}: {error}{hint}", path.display()))
}

/// A file or entry that was not transferred, with the reason.
#[derive(Serialize)]
pub(super) struct Refused {
    name: String,
    reason: String,
}

impl Refused {
    pub(super) fn report(name: impl Into<String>, reason: impl Into<String>) -> Self {
        let refused = Self { name: name.into(), reason: reason.into() };
        note(format_args!("{}: {}", plain(&refused.name), plain(&refused.reason)));
        refused
    }
}

#[derive(Serialize)]
struct Exported {
    exported: u64,
    bytes: u64,
    refused: Vec<Refused>,
}

pub(super) async fn export(
    out: &mut Output,
    store: &Store,
    path: &Path,
    keys: &[KeyPrefix],
) -> Result {
    let mut entries = select(store, keys).await?;
    // Sorted, so that the same entries make the same bundle.
    entries.sort_by_key(EntryInfo::name);
    entries.dedup_by_key(|entry| entry.name());

    let to_stdout = path == Path::new("-");
    let done = if to_stdout {
        if io::stdout().is_terminal() {
            return Err(Failure::usage("a bundle cannot be written to a terminal; give a file"));
        }
        bundle(store, &entries, &mut *out).await
    } else {
        match file::open_output(path, file::replacing()) {
            Ok(created) => bundle(store, &entries, BufWriter::new(created)).await,
            Err(error) => Err(error),
        }
    };
    let done = done.map_err(|error| cannot("write", path, &error))?;

    let outcome = Outcome::success_if(done.refused.is_empty());
    let summary = format!("{} exported", count(done.exported, "entry", "entries"));
    if to_stdout {
        note(summary);
    } else if out.is_json() {
        out.value(&done)?;
    } else {
        out.line(format_args!("{summary}, {}", bytes(done.bytes)))?;
    }
    Ok(outcome)
}

async fn bundle(store: &Store, entries: &[EntryInfo], to: impl Write) -> io::Result<Exported> {
    let mut done = Exported { exported: 0, bytes: 0, refused: Vec::new() };
    let mut bundle = Builder::new(to);
    for info in entries {
        let entry = match read_entry(store, info).await {
            Ok(entry) => entry,
            Err(why) => {
                done.refused.push(Refused::report(info.name(), why));
                continue;
            }
        };
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_mtime(entry.record().created);
        header.set_size(entry.bytes().len() as u64);
        bundle.append_data(&mut header, info.name(), entry.bytes())?;
        done.exported += 1;
        done.bytes += entry.bytes().len() as u64;
    }
    bundle.into_inner()?.flush()?;
    Ok(done)
}

#[derive(Serialize)]
struct Imported {
    imported: Vec<String>,
    refused: Vec<Refused>,
}

pub(super) async fn import(out: &mut Output, store: &Store, path: &Path) -> Result {
    let mut done = Imported { imported: Vec::new(), refused: Vec::new() };
    let read = if path == Path::new("-") {
        unbundle(store, io::stdin().lock(), &mut done).await
    } else {
        match file::open(path, file::reading()) {
            Ok((opened, _)) => unbundle(store, BufReader::new(opened), &mut done).await,
            Err(error) => Err(error),
        }
    };
    if let Err(error) = &read {
        note(cannot("read", path, error));
    }
    // Older entries are evicted to make room. An error is ignored: another process may be collecting.
    let _ = store.collect(false).await;

    let outcome = Outcome::success_if(read.is_ok() && done.refused.is_empty());
    if out.is_json() {
        out.value(&done)?;
    } else {
        let imported = count(done.imported.len() as u64, "entry", "entries");
        out.line(format_args!("{imported} imported, {} refused", done.refused.len()))?;
    }
    Ok(outcome)
}

/// Imports the files that are entries. A bundle is not trusted: the store checks the names, and reads no more
/// bytes of a file than an entry can have.
async fn unbundle(store: &Store, from: impl Read, done: &mut Imported) -> io::Result<()> {
    let mut archive = Archive::new(from);
    // Names and sizes of entries fit into plain headers. Extended headers are skipped: they would be read into
    // memory whatever their size.
    for file in archive.entries()?.raw(true) {
        let file = file?;
        let name = String::from_utf8_lossy(&file.path_bytes()).into_owned();
        match file.header().entry_type() {
            EntryType::Regular => {
                // Other tools write `./` in front of names.
                let inner = name.strip_prefix("./").unwrap_or(&name);
                match import_file(store, inner, file).await {
                    Ok(key) => done.imported.push(key.to_string()),
                    Err(error) => done.refused.push(Refused::report(name, in_full(&error))),
                }
            }
            EntryType::Directory
            | EntryType::XHeader
            | EntryType::XGlobalHeader
            | EntryType::GNULongName
            | EntryType::GNULongLink => {}
            _ => done.refused.push(Refused::report(name, "it is not a regular file")),
        }
    }
    Ok(())
}

/// Imports a file of a bundle, and reads only as much of it as the store does.
async fn import_file(store: &Store, name: &str, mut file: impl Read) -> kiln::Result<BuildKey> {
    let (mut chunks, received) = mpsc::channel(1);
    let read = async {
        loop {
            let mut chunk = vec![0; CHUNK_BYTES];
            let read = file.read(&mut chunk).map(|length| {
                chunk.truncate(length);
                chunk
            });
            let is_last = read.as_ref().map_or(true, Vec::is_empty);
            if chunks.send(read).await.is_err() || is_last {
                break;
            }
        }
        drop(chunks);
    };
    future::join(store.import(name, received.into_async_read()), read).await.0
}
