//! Reads of a library in the format ELF: its build id, and the names of the libraries that it needs.
//!
//! Files of 64 bits in the byte order of this machine are read. Others are reported as unreadable.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const MAGIC: [u8; 4] = *b"\x7fELF";
const CLASS_64: u8 = 2;
const ORDER: u8 = if cfg!(target_endian = "little") { 1 } else { 2 };

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const DYNAMIC_ENTRY: usize = 16;

// Types of segments.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const NOTE: u32 = 4;

/// Type of the note that holds a build id, and the name of its owner.
const BUILD_ID: u32 = 3;
const OWNER: &[u8] = b"GNU\0";

// Tags of the dynamic section.
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
const STRINGS_SIZE: u64 = 10;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;

/// Maximum size of a table that is read, in bytes. Real ones have a few kilobytes.
const MAX_TABLE: u64 = 1 << 20;

/// Maximum length of a name or a list of folders, in bytes.
const MAX_NAME: usize = 1 << 14;

/// Properties of a library.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Library {
    /// Number of the processor's architecture.
    pub(super) machine: u16,
    /// Build id, which the linker derives from the contents.
    pub(super) build_id: Option<Vec<u8>>,
    /// Names of the libraries that it needs.
    pub(super) needed: Vec<String>,
    /// Folders in which these are searched before those of the environment, separated by colons.
    pub(super) rpath: Option<String>,
    /// Folders in which these are searched after those of the environment, separated by colons.
    pub(super) runpath: Option<String>,
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    length: u64,
}

/// Reads a library.
///
/// # Errors
///
/// The system's errors; [`InvalidData`](io::ErrorKind::InvalidData) for a file of another format, and for one
/// whose tables are damaged.
pub(super) fn read(file: &File) -> io::Result<Library> {
    let header = bytes(file, 0, HEADER as u64)?;
    if header[..4] != MAGIC || header[4..6] != [CLASS_64, ORDER] {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let segments = segments(file, &header)?;
    let of_kind = |kind| segments.iter().filter(move |segment| segment.kind == kind);
    let mut library = Library { machine: short(&header, 18), ..Library::default() };
    for note in of_kind(NOTE) {
        if library.build_id.is_none() {
            library.build_id = build_id(&bytes(file, note.offset, note.length)?);
        }
    }
    if let Some(dynamic) = of_kind(DYNAMIC).next() {
        let table = bytes(file, dynamic.offset, dynamic.length)?;
        read_dynamic(file, &segments, &table, &mut library)?;
    }
    Ok(library)
}

fn segments(file: &File, header: &[u8]) -> io::Result<Vec<Segment>> {
    let (at, size, count) = (long(header, 32), short(header, 54), short(header, 56));
    if usize::from(size) != PROGRAM_HEADER {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let table = bytes(file, at, u64::from(size) * u64::from(count))?;
    let segment = |entry: &[u8]| Segment {
        kind: word(entry, 0),
        offset: long(entry, 8),
        address: long(entry, 16),
        length: long(entry, 32),
    };
    Ok(table.chunks_exact(PROGRAM_HEADER).map(segment).collect())
}

/// Returns the build id among the notes of a segment.
fn build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    while notes.len() >= 12 {
        let [name, value] = [0, 4].map(|at| word(notes, at) as usize);
        let (kind, rest) = (word(notes, 8), &notes[12..]);
        let padded = |length: usize| length.checked_next_multiple_of(4);
        let (name_end, value_start) = (rest.get(..name)?, padded(name)?);
        let rest = rest.get(value_start..)?;
        if kind == BUILD_ID && name_end == OWNER {
            return rest.get(..value).filter(|id| !id.is_empty()).map(<[u8]>::to_vec);
        }
        notes = rest.get(padded(value)?..).unwrap_or_default();
    }
    None
}

fn read_dynamic(
    file: &File,
    segments: &[Segment],
    table: &[u8],
    library: &mut Library,
) -> io::Result<()> {
    let entries = || {
        let entries = table.chunks_exact(DYNAMIC_ENTRY);
        entries.map(|entry| (long(entry, 0), long(entry, 8))).take_while(|(tag, _)| *tag != 0)
    };
    let value = |wanted| entries().find(|(tag, _)| *tag == wanted).map(|(_, value)| value);
    let (Some(address), Some(size)) = (value(STRINGS), value(STRINGS_SIZE)) else { return Ok(()) };
    let within = |segment: &&Segment| {
        let end = segment.address.saturating_add(segment.length);
        segment.kind == LOAD && (segment.address..end).contains(&address)
    };
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let loaded = segments.iter().find(within).ok_or_else(invalid)?;
    let strings = loaded.offset.checked_add(address - loaded.address).ok_or_else(invalid)?;
    let text = |at: u64| -> io::Result<String> {
        let most = size.checked_sub(at).ok_or_else(invalid)?.min(MAX_NAME as u64);
        let at = strings.checked_add(at).ok_or_else(invalid)?;
        let bytes = bytes(file, at, most)?;
        let length = bytes.iter().position(|byte| *byte == 0).ok_or_else(invalid)?;
        String::from_utf8(bytes[..length].to_vec()).map_err(|_| invalid())
    };
    for (tag, at) in entries() {
        match tag {
            NEEDED => library.needed.push(text(at)?),
            RPATH => library.rpath = Some(text(at)?),
            RUNPATH => library.runpath = Some(text(at)?),
            _ => {}
        }
    }
    Ok(())
}

/// Reads a range of a file.
fn bytes(file: &File, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    if length > MAX_TABLE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

// Callers pass tables that are long enough.

fn short(table: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([table[at], table[at + 1]])
}

fn word(table: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&table[at..at + 4]);
    u32::from_ne_bytes(bytes)
}

fn long(table: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&table[at..at + 8]);
    u64::from_ne_bytes(bytes)
}
