//! A second implementation of the entry format, from its description in `src/cache/store/entry.rs`: the forged
//! entries of the tests must not depend on the code under test.

use xxhash_rust::xxh3::xxh3_128;

/// Size of a footer in bytes.
pub const FOOTER: usize = 80;

/// Fields of a footer: name, begin, and end.
pub const FIELDS: [(&str, usize, usize); 7] = [
    ("payload length", 0, 8),
    ("manifest length", 8, 16),
    ("key", 16, 48),
    ("checksum", 48, 64),
    ("version", 64, 68),
    ("zero", 68, 72),
    ("magic", 72, 80),
];

/// Returns the version that a file states.
pub fn version(file: &[u8]) -> u32 {
    let footer = &file[file.len() - FOOTER..];
    u32::from_le_bytes(footer[64..68].try_into().expect("four bytes"))
}

/// Parts of an entry's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    pub payload: Vec<u8>,
    pub manifest: Vec<u8>,
    pub key: [u8; 32],
    pub version: u32,
}

impl Parts {
    pub fn of(file: &[u8]) -> Self {
        let (body, footer) = file.split_at(file.len() - FOOTER);
        let length = u64::from_le_bytes(footer[..8].try_into().expect("eight bytes")) as usize;
        Self {
            payload: body[..length].to_vec(),
            manifest: body[length..].to_vec(),
            key: footer[16..48].try_into().expect("a key's bytes"),
            version: version(file),
        }
    }

    /// Returns a file with these parts, and the matching checksum.
    pub fn file(&self) -> Vec<u8> {
        self.file_with_lengths(self.payload.len() as u64, self.manifest.len() as u64)
    }

    /// Returns a file with these parts that states other lengths, and the matching checksum.
    pub fn file_with_lengths(&self, payload: u64, manifest: u64) -> Vec<u8> {
        let mut head = [self.payload.clone(), self.manifest.clone()].concat();
        head.extend_from_slice(&payload.to_le_bytes());
        head.extend_from_slice(&manifest.to_le_bytes());
        head.extend_from_slice(&self.key);
        let mut tail = self.version.to_le_bytes().to_vec();
        tail.extend_from_slice(&[0; 4]);
        tail.extend_from_slice(b"KILN\r\n\x1a\xfe");
        let checksum = xxh3_128(&[&head[..], &tail].concat());
        [&head[..], &checksum.to_le_bytes(), &tail].concat()
    }
}
