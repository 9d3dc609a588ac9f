//! What a native binary tells of its kernels' parameters.
//!
//! Intel's binaries are ELF files with a section of YAML, written by the compiler: lists of maps,
//! two deep, one line a value. Only that much is read, and what is damaged or of another form tells
//! nothing: the bytes may come from anywhere. The driver itself tells only how many parameters
//! there are, takes a value of any size, and lets the GPU follow one that is given for a pointer.
//!
//! The format: `documentation/visa/zebin` of the Intel Graphics Compiler.

use std::collections::HashMap;

use crate::backend::AddressSpace;

/// The type of the section, `SHT_ZEBIN_ZEINFO`.
const SECTION: u32 = 0xff00_0011;

/// Parameters of a kernel. Arguments take up 2 KiB at most, so that more are a mistake.
const MOST: usize = 2048;

/// Lists and maps that stand in each other.
const DEPTH: usize = 8;

/// The parameters of a binary's kernels, by the kernels' names.
pub(super) type Signatures = HashMap<String, Vec<Known>>;

/// What is known of a parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) kind: Option<Kind>,
    pub(super) name: Option<String>,
    /// How long an argument for it is.
    pub(super) bytes: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Memory(AddressSpace),
    Local,
    Value,
    /// An image or a sampler.
    Handle,
}

impl Known {
    /// The address space, where a parameter of this kind has one.
    pub(super) fn address_space(&self) -> Option<AddressSpace> {
        match self.kind? {
            Kind::Memory(space) => Some(space),
            Kind::Local => Some(AddressSpace::Local),
            Kind::Value => Some(AddressSpace::Private),
            Kind::Handle => None,
        }
    }
}

/// Reads a binary. Of what is no such binary nothing is known.
pub(super) fn signatures(binary: &[u8]) -> Signatures {
    let text = section(binary).and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.map(read).unwrap_or_default()
}

/// The section of a 64-bit ELF file with this type.
fn section(binary: &[u8]) -> Option<&[u8]> {
    let rest = binary.strip_prefix(b"\x7fELF")?;
    // Of 64 bits, little-endian.
    rest.strip_prefix(&[2, 1])?;
    let start = usize::try_from(number(binary, 0x28)?).ok()?;
    let size = usize::from(u16::from_le_bytes(bytes(binary, 0x3a)?));
    let count = usize::from(u16::from_le_bytes(bytes(binary, 0x3c)?));
    (0..count).find_map(|index| {
        let header = binary.get(start.checked_add(index.checked_mul(size)?)?..)?;
        if u32::from_le_bytes(bytes(header, 4)?) != SECTION {
            return None;
        }
        let offset = usize::try_from(number(header, 0x18)?).ok()?;
        let length = usize::try_from(number(header, 0x20)?).ok()?;
        binary.get(offset..)?.get(..length)
    })
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..)?.first_chunk().copied()
}

fn number(from: &[u8], at: usize) -> Option<u64> {
    bytes(from, at).map(u64::from_le_bytes)
}

fn read(text: &str) -> Signatures {
    let mut reader = Reader::default();
    for line in text.lines() {
        reader.line(line);
    }
    reader.end_item();
    reader.signatures
}

/// Takes lines one by one.
#[derive(Default)]
struct Reader<'t> {
    signatures: Signatures,
    /// The keys that the line stands under, outermost first, with their columns.
    path: Vec<(usize, &'t str)>,
    /// The kernel that the lines speak of.
    kernel: Option<&'t str>,
    /// What they have said of one of its parameters, by key.
    item: Vec<(&'t str, &'t str)>,
}

impl<'t> Reader<'t> {
    fn line(&mut self, line: &'t str) {
        // Every hit on disk waits for this, and a kernel has a hundred lines.
        let Some(column) = line.bytes().position(|byte| !matches!(byte, b' ' | b'-')) else {
            return;
        };
        let (indent, content) = line.split_at(column);
        let Some(colon) = content.bytes().position(|byte| byte == b':') else { return };
        let (key, value) = (&content[..colon], unquoted(content[colon + 1..].trim_ascii()));
        if indent.as_bytes().contains(&b'-') {
            self.end_item();
        }
        while self.path.last().is_some_and(|(outer, _)| *outer >= column) {
            self.end_item();
            self.path.pop();
        }
        match self.path[..] {
            [(_, "kernels" | "kernels_misc_info")] if key == "name" => self.kernel = Some(value),
            [(_, "kernels"), (_, "payload_arguments")]
            | [(_, "kernels_misc_info"), (_, "args_info")] => self.item.push((key, value)),
            _ => {}
        }
        if value.is_empty() && self.path.len() < DEPTH {
            self.path.push((column, key));
        }
    }

    /// Takes in what was said of a parameter. The lists tell different things of each.
    fn end_item(&mut self) {
        if self.item.is_empty() {
            return;
        }
        let item = std::mem::take(&mut self.item);
        let get = |key: &str| item.iter().rev().find(|(known, _)| *known == key).map(|of| of.1);
        let index = |key: &str| get(key)?.parse::<usize>().ok().filter(|index| *index < MOST);
        let Some(kernel) = self.kernel else { return };
        let Some(at) = index("arg_index").or_else(|| index("index")) else { return };
        let known = match self.signatures.get_mut(kernel) {
            Some(known) => known,
            None => self.signatures.entry(kernel.to_owned()).or_default(),
        };
        if known.len() <= at {
            known.resize(at + 1, Known::default());
        }
        let known = &mut known[at];
        let size = get("size").and_then(|size| size.parse().ok());
        match (get("arg_type"), get("addrspace")) {
            (Some("arg_bypointer"), Some(space)) => known.kind = kind_of(space).or(known.kind),
            (Some("arg_byvalue"), _) => {
                known.kind = Some(Kind::Value);
                // Of a structure the parts are told that the kernel reads.
                if get("source_offset").is_none() {
                    known.bytes = size;
                }
            }
            _ => {}
        }
        // Such as `__global`, and `float*;8`: the size is told behind the type.
        if let Some(qualifier) = get("address_qualifier") {
            let ty = get("type_name").unwrap_or_default();
            let (ty, bytes) = ty.rsplit_once(';').unwrap_or((ty, ""));
            let is_handle = ty.ends_with("_t") && (ty.starts_with("image") || ty == "sampler_t");
            let told = if is_handle { Some(Kind::Handle) } else { kind_of(qualifier) };
            known.kind = known.kind.or(told);
            known.bytes = bytes.parse().ok().or(known.bytes);
            known.name = get("name").filter(|name| !name.is_empty()).map(str::to_owned);
        }
    }
}

fn kind_of(space: &str) -> Option<Kind> {
    Some(match space.trim_start_matches('_') {
        "global" => Kind::Memory(AddressSpace::Global),
        "constant" => Kind::Memory(AddressSpace::Constant),
        "local" => Kind::Local,
        "private" => Kind::Value,
        "image" | "sampler" => Kind::Handle,
        _ => return None,
    })
}

fn unquoted(value: &str) -> &str {
    let within = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    within('\'').or_else(|| within('"')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Intel's compiler writes it, cut down.
    const INFO: &str = "---
version:         '1.73'
kernels:
  - name:            saxpy
    execution_env:
      simd_size:       32
    payload_arguments:
      - arg_type:        global_id_offset
        offset:          0
        size:            12
      - arg_type:        arg_bypointer
        offset:          0
        size:            8
        arg_index:       1
        addrspace:       global
        access_type:     readwrite
      - arg_type:        arg_byvalue
        offset:          8
        size:            4
        arg_index:       2
        source_offset:   8
    per_thread_payload_arguments:
      - arg_type:        local_id
        offset:          0
        size:            192
  - name:            other
    payload_arguments:
      - arg_type:        arg_bypointer
        arg_index:       0
        addrspace:       local
      - arg_type:        arg_byvalue
        size:            4
        arg_index:       1
kernels_misc_info:
  - name:            saxpy
    args_info:
      - index:           0
        name:            unused
        address_qualifier: __constant
        type_name:       'float*;8'
      - index:           1
        address_qualifier: __private
      - index:           2
        address_qualifier: __private
        type_name:       'struct S;16'
      - index:           3
        address_qualifier: __global
        type_name:       'image2d_t;8'
...
";

    /// An ELF file with this text in one of its two sections.
    fn elf(text: &str) -> Vec<u8> {
        let mut bytes = vec![0; 0x40];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let start = bytes.len() + text.len();
        bytes[0x28..0x30].copy_from_slice(&(start as u64).to_le_bytes());
        bytes[0x3a..0x3c].copy_from_slice(&64_u16.to_le_bytes());
        bytes[0x3c..0x3e].copy_from_slice(&2_u16.to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes.extend_from_slice(&[0; 64]);
        let mut header = [0; 64];
        header[4..8].copy_from_slice(&SECTION.to_le_bytes());
        header[0x18..0x20].copy_from_slice(&0x40_u64.to_le_bytes());
        header[0x20..0x28].copy_from_slice(&(text.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&header);
        bytes
    }

    #[test]
    fn parameters_are_read_of_both_lists() {
        let found = signatures(&elf(INFO));
        let known = |kind, bytes| Known { kind: Some(kind), name: None, bytes };
        let unused = known(Kind::Memory(AddressSpace::Constant), Some(8));
        let expected = [
            Known { name: Some("unused".to_owned()), ..unused },
            known(Kind::Memory(AddressSpace::Global), None),
            known(Kind::Value, Some(16)),
            known(Kind::Handle, Some(8)),
        ];
        assert_eq!(found["saxpy"], expected);
        assert_eq!(found["other"], [known(Kind::Local, None), known(Kind::Value, Some(4))]);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn other_files_tell_nothing() {
        for binary in [&b""[..], b"\x7fELF", b"!<arch>\n", INFO.as_bytes(), &[0xff; 200]] {
            assert!(signatures(binary).is_empty());
        }
        assert!(signatures(&elf("")).is_empty());
    }

    #[test]
    fn numbers_that_cannot_be_take_no_memory() {
        let text = INFO.replace("arg_index:       0", "arg_index:       4294967295");
        let found = signatures(&elf(&text));
        assert_eq!((found["other"].len(), found["saxpy"].len()), (2, 4));
    }

    #[test]
    fn damage_does_not_panic() {
        let whole = elf(INFO);
        for length in 0..whole.len() {
            signatures(&whole[..length]);
        }
        for at in 0..whole.len() {
            for byte in [0x00, 0x0a, 0x20, 0x2d, 0x3a, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let found = signatures(&damaged);
                assert!(found.values().all(|known| known.len() <= MOST));
            }
        }
    }
}
