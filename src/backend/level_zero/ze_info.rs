//! Kernel parameters, as described by a native binary.
//!
//! Intel's binaries are ELF files with a section of YAML, written by the compiler: lists of maps, two levels
//! deep, with one value per line. Only this form is parsed. Damaged data, or data of another form, yields no
//! parameters, because the bytes may come from anywhere. The driver itself reports only the number of
//! parameters. It accepts a value of any size, and lets the GPU dereference a value that is passed for a
//! pointer.
//!
//! The format: `documentation/visa/zebin` of the Intel Graphics Compiler.

use std::collections::HashMap;

use kiln_spirv::{Access, AddressSpace, is_object};

use crate::device::ImageKind;

/// Type of the section, `SHT_ZEBIN_ZEINFO`.
const SECTION: u32 = 0xff00_0011;

/// Maximum number of parameters of a kernel. Arguments take up 2 KiB at most, so a larger number is a mistake.
const MAX_PARAMETERS: usize = 2048;

/// Parameters of a binary's kernels, by the kernels' names.
pub(super) type Signatures<'b> = HashMap<&'b str, Vec<KnownParameter<'b>>>;

/// Known properties of a parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KnownParameter<'b> {
    pub(super) kind: Option<Kind>,
    pub(super) name: Option<&'b str>,
    /// Size of an argument for this parameter, in bytes.
    pub(super) bytes: Option<usize>,
    /// Type of an image, a sampler or another object, as written in OpenCL C.
    pub(super) object: Option<&'b str>,
    /// Access of an image.
    pub(super) access: Option<Access>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Memory(AddressSpace),
    Local,
    Value,
    Image,
    Sampler,
    /// Any other object of OpenCL C.
    Object,
}

impl KnownParameter<'_> {
    /// Returns the address space, if a parameter of this kind has one.
    pub(super) fn address_space(&self) -> Option<AddressSpace> {
        match self.kind? {
            Kind::Memory(space) => Some(space),
            Kind::Local => Some(AddressSpace::Local),
            Kind::Value => Some(AddressSpace::Private),
            Kind::Image | Kind::Sampler | Kind::Object => None,
        }
    }
}

/// Reads the signatures in a binary. Returns an empty map for any other data.
pub(super) fn signatures(binary: &[u8]) -> Signatures<'_> {
    let text = section(binary).and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.map(read).unwrap_or_default()
}

/// Returns the [`SECTION`] of a 64-bit ELF file.
fn section(binary: &[u8]) -> Option<&[u8]> {
    let rest = binary.strip_prefix(b"\x7fELF")?;
    // 64-bit, little-endian.
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

fn read(text: &str) -> Signatures<'_> {
    let mut reader = Reader::default();
    for line in text.lines() {
        reader.read_line(line);
    }
    reader.end_kernel();
    reader.signatures
}

/// Parser that is given one line at a time. Every hit on disk waits for it. A kernel has fifty lines, most of
/// which do not describe parameters; of those, only the column is examined.
#[derive(Default)]
struct Reader<'t> {
    signatures: Signatures<'t>,
    /// List of kernels that contains the current line.
    list: Option<List>,
    /// Current kernel, with the known properties of its parameters.
    kernel: Option<(&'t str, Vec<KnownParameter<'t>>)>,
    /// Key of the kernel under which the current line is nested.
    section: Option<Section>,
    /// Parameter that the latest lines describe.
    item: Option<Item<'t>>,
}

/// Kind of a list of kernels.
#[derive(Clone, Copy)]
enum List {
    /// `kernels`: information for the driver.
    Kernels,
    /// `kernels_misc_info`: information that `clGetKernelArgInfo` returns.
    Misc,
}

/// A key with nested keys.
struct Section {
    column: usize,
    /// Whether the nested keys describe the parameters.
    is_relevant: bool,
}

/// A parameter, as unparsed text.
#[derive(Default)]
struct Item<'t> {
    /// Column of the parameter's keys. Text further to the right belongs to one of them.
    column: usize,
    /// Index of the parameter. Each list has its own name for it: `index` or `arg_index`.
    index: &'t str,
    arg_index: &'t str,
    arg_type: &'t str,
    addrspace: &'t str,
    size: &'t str,
    source_offset: Option<&'t str>,
    name: &'t str,
    address_qualifier: Option<&'t str>,
    access_qualifier: &'t str,
    type_name: &'t str,
}

impl<'t> Reader<'t> {
    fn read_line(&mut self, line: &'t str) {
        let (mut column, mut is_item) = (0, false);
        for byte in line.bytes() {
            match byte {
                b' ' => {}
                b'-' => is_item = true,
                _ => break,
            }
            column += 1;
        }
        let content = &line[column..];
        if content.is_empty() {
            return;
        }
        if let Some(section) = &self.section
            && section.column < column
        {
            if section.is_relevant {
                self.read_parameter_line(column, is_item, content);
            }
            return;
        }
        self.end_item();
        self.section = None;
        let Some((key, value)) = key_and_value(content) else { return };
        match self.list {
            _ if column == 0 => {
                self.end_kernel();
                self.list = match key {
                    "kernels" => Some(List::Kernels),
                    "kernels_misc_info" => Some(List::Misc),
                    _ => None,
                };
            }
            Some(_) if key == "name" => {
                self.end_kernel();
                self.kernel = Some((value, self.signatures.remove(value).unwrap_or_default()));
            }
            Some(list) if value.is_empty() => {
                let relevant = match list {
                    List::Kernels => "payload_arguments",
                    List::Misc => "args_info",
                };
                self.section = Some(Section { column, is_relevant: key == relevant });
            }
            _ => {}
        }
    }

    /// Reads a line that is nested under the key that describes the parameters.
    fn read_parameter_line(&mut self, column: usize, is_item: bool, content: &'t str) {
        if is_item {
            self.end_item();
        }
        let item = self.item.get_or_insert_with(|| Item { column, ..Item::default() });
        if item.column != column {
            return;
        }
        let Some((key, value)) = key_and_value(content) else { return };
        match key {
            "index" => item.index = value,
            "arg_index" => item.arg_index = value,
            "arg_type" => item.arg_type = value,
            "addrspace" => item.addrspace = value,
            "size" => item.size = value,
            "source_offset" => item.source_offset = Some(value),
            "name" => item.name = value,
            "address_qualifier" => item.address_qualifier = Some(value),
            "access_qualifier" => item.access_qualifier = value,
            "type_name" => item.type_name = value,
            _ => {}
        }
    }

    /// Merges the current item into the properties of its parameter. The two lists describe different
    /// properties.
    fn end_item(&mut self) {
        let (Some(item), Some((_, known))) = (self.item.take(), &mut self.kernel) else { return };
        let index = |text: &str| text.parse::<usize>().ok().filter(|index| *index < MAX_PARAMETERS);
        let Some(at) = index(item.arg_index).or_else(|| index(item.index)) else { return };
        if known.len() <= at {
            known.resize(at + 1, KnownParameter::default());
        }
        let known = &mut known[at];
        match item.arg_type {
            "arg_bypointer" => known.kind = kind_of(item.addrspace).or(known.kind),
            "arg_byvalue" => {
                known.kind = Some(Kind::Value);
                // For a structure, the list has an item for each part that the kernel reads.
                if item.source_offset.is_none() {
                    known.bytes = item.size.parse().ok();
                }
            }
            _ => {}
        }
        // Examples are `__global` and `float*;8`: the size follows the type.
        if let Some(qualifier) = item.address_qualifier {
            let (ty, bytes) = item.type_name.rsplit_once(';').unwrap_or((item.type_name, ""));
            let kind = match ty {
                "sampler_t" => Some(Kind::Sampler),
                _ if ImageKind::of_type(ty).is_some() => Some(Kind::Image),
                _ if is_object(ty) => Some(Kind::Object),
                _ => kind_of(qualifier),
            };
            known.kind = known.kind.or(kind);
            known.bytes = bytes.parse().ok().or(known.bytes);
            known.object = Some(ty).filter(|ty| is_object(ty));
            known.access = match item.access_qualifier.trim_start_matches('_') {
                "read_only" => Some(Access::Read),
                // A kernel may leave out pixels of an image that it only writes.
                "write_only" | "read_write" => Some(Access::ReadWrite),
                _ => None,
            };
            known.name = Some(item.name).filter(|name| !name.is_empty());
        }
    }

    /// Stores the parameters of the current kernel.
    fn end_kernel(&mut self) {
        self.end_item();
        if let Some((name, known)) = self.kernel.take()
            && !known.is_empty()
        {
            self.signatures.insert(name, known);
        }
    }
}

/// Splits a line, without its indentation and dash, into key and value.
fn key_and_value(content: &str) -> Option<(&str, &str)> {
    let colon = content.bytes().position(|byte| byte == b':')?;
    Some((&content[..colon], unquoted(content[colon + 1..].trim_ascii())))
}

fn kind_of(space: &str) -> Option<Kind> {
    Some(match space.trim_start_matches('_') {
        "global" => Kind::Memory(AddressSpace::Global),
        "constant" => Kind::Memory(AddressSpace::Constant),
        "local" => Kind::Local,
        "private" => Kind::Value,
        "image" => Kind::Image,
        "sampler" => Kind::Sampler,
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

    /// Output of Intel's compiler, shortened.
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
        access_qualifier: __read_only
        type_name:       'image2d_t;8'
...
";

    /// Returns an ELF file with this text in one of its two sections.
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
    fn parameters_are_read_from_both_lists() {
        let binary = elf(INFO);
        let found = signatures(&binary);
        let known =
            |kind, bytes| KnownParameter { kind: Some(kind), bytes, ..KnownParameter::default() };
        let unused = known(Kind::Memory(AddressSpace::Constant), Some(8));
        let expected = [
            KnownParameter { name: Some("unused"), ..unused },
            known(Kind::Memory(AddressSpace::Global), None),
            known(Kind::Value, Some(16)),
            KnownParameter {
                object: Some("image2d_t"),
                access: Some(Access::Read),
                ..known(Kind::Image, Some(8))
            },
        ];
        assert_eq!(found["saxpy"], expected);
        assert_eq!(found["other"], [known(Kind::Local, None), known(Kind::Value, Some(4))]);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn empty_lines_and_other_line_endings_are_ignored() {
        let plain = elf(INFO);
        for end in ["\r\n", "\n\n", "\n    \n"] {
            let binary = elf(&INFO.replace('\n', end));
            assert_eq!(signatures(&binary), signatures(&plain), "{end:?}");
        }
    }

    #[test]
    fn other_files_have_no_signatures() {
        for binary in [&b""[..], b"\x7fELF", b"!<arch>\n", INFO.as_bytes(), &[0xff; 200]] {
            assert!(signatures(binary).is_empty());
        }
        assert!(signatures(&elf("")).is_empty());
    }

    #[test]
    fn impossible_argument_indexes_allocate_no_memory() {
        let text = INFO.replace("arg_index:       0", "arg_index:       4294967295");
        let binary = elf(&text);
        let found = signatures(&binary);
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
                assert!(found.values().all(|known| known.len() <= MAX_PARAMETERS));
            }
        }
    }
}
