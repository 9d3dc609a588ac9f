//! Container of binaries, in a format of Kiln's own.
//!
//! Linking patches the driver's modules. So a linked program is stored as the binaries of its objects, in one
//! container, and loading it links them again.

use crate::error::{Error, ErrorKind, Result};

/// Magic number at the start of a container. It is not text, since it is not valid UTF-8, and is neither ELF
/// nor SPIR-V. A transfer that converts line ends, or cuts off the eighth bit, damages it.
const MAGIC: [u8; 16] = *b"\x8eKiln objects\r\n\x1a";

/// Alignment of the binaries in a container, in bytes.
const ALIGNMENT: usize = 8;

/// Returns the size of a container of binaries of these sizes, in bytes.
pub(super) fn packed_size(sizes: &[usize]) -> usize {
    let head = MAGIC.len() + size_of::<u64>() * (1 + sizes.len());
    head + sizes.iter().map(|size| size.next_multiple_of(ALIGNMENT)).sum::<usize>()
}

/// Packs binaries into a container: the magic number, the number of binaries and the size of each,
/// little-endian, then the binaries themselves, each padded with zeros to the next multiple of [`ALIGNMENT`].
pub(super) fn pack(binaries: &[Vec<u8>]) -> Vec<u8> {
    let sizes: Vec<_> = binaries.iter().map(Vec::len).collect();
    let mut bytes = Vec::with_capacity(packed_size(&sizes));
    bytes.extend_from_slice(&MAGIC);
    for number in [binaries.len()].iter().chain(&sizes) {
        bytes.extend_from_slice(&(*number as u64).to_le_bytes());
    }
    for binary in binaries {
        bytes.extend_from_slice(binary);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
    bytes
}

/// Returns the binaries in a container, or `None` if the bytes are not a container.
///
/// # Errors
///
/// [`BuildFailed`](ErrorKind::BuildFailed) if the container is damaged.
pub(super) fn unpack(bytes: &[u8]) -> Option<Result<Vec<&[u8]>>> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    Some(unpacked(rest).ok_or_else(|| {
        Error::new(
            ErrorKind::BuildFailed,
            "the binary of a linked program is damaged: its sizes do not add up; build it anew",
        )
    }))
}

fn unpacked(mut rest: &[u8]) -> Option<Vec<&[u8]>> {
    let mut number = || {
        let (number, more) = rest.split_first_chunk()?;
        rest = more;
        usize::try_from(u64::from_le_bytes(*number)).ok()
    };
    let count = number()?;
    // Every size has to be in the input. So the memory used is bounded by the input, whatever the count is.
    let sizes: Vec<_> = (0..count).map_while(|_| number()).collect();
    if sizes.len() != count || count == 0 {
        return None;
    }
    let mut binaries = Vec::with_capacity(count);
    for size in sizes {
        let (binary, _) = rest.split_at_checked(size)?;
        (_, rest) = rest.split_at_checked(size.checked_next_multiple_of(ALIGNMENT)?)?;
        binaries.push(binary);
    }
    rest.is_empty().then_some(binaries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container() -> (Vec<Vec<u8>>, Vec<u8>) {
        let binaries = vec![b"\x7fELF one".to_vec(), b"two".to_vec(), vec![7; 1000]];
        let packed = pack(&binaries);
        (binaries, packed)
    }

    #[test]
    fn containers_return_the_packed_binaries() {
        let (binaries, packed) = container();
        assert_eq!(unpack(&packed).expect("it is one").expect("it is complete"), binaries);
        let sizes: Vec<_> = binaries.iter().map(Vec::len).collect();
        assert_eq!(packed.len(), packed_size(&sizes));
        assert!(std::str::from_utf8(&MAGIC).is_err(), "it is not text");
        assert!(unpack(b"\x7fELF").is_none() && unpack(b"").is_none());
    }

    #[test]
    fn a_damaged_container_is_an_error() {
        let (_, packed) = container();
        let refused = |bytes: &[u8]| match unpack(bytes) {
            Some(Err(error)) => error.kind() == ErrorKind::BuildFailed,
            Some(Ok(_)) => false,
            None => bytes.len() < MAGIC.len(),
        };
        for length in 0..packed.len() {
            assert!(refused(&packed[..length]), "cut to {length} bytes");
        }
        assert!(refused(&[&packed[..], b"more"].concat()));
        // Each byte of the count and of the sizes is damaged in turn.
        for at in MAGIC.len()..MAGIC.len() + 4 * size_of::<u64>() {
            let mut damaged = packed.clone();
            damaged[at] ^= 0x80;
            assert!(refused(&damaged), "byte {at}");
        }
        assert!(refused(&pack(&[])), "a program has at least one module");
    }
}
