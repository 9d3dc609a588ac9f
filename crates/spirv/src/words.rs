//! The physical layout: words, header and the stream of instructions.

use std::borrow::Cow;
use std::sync::LazyLock;

use rspirv::spirv::{MAGIC_NUMBER, Op};

use crate::error::{Error, ErrorKind, Result};

/// Word of a module, as bytes in memory. Modules are byte vectors, which need not be aligned.
pub(crate) type Word = [u8; 4];

/// Major version of all known versions. Minor versions add instructions but do not change the layout.
const MAJOR_VERSION: u8 = 1;
const MINOR_VERSIONS: std::ops::RangeInclusive<u8> = 0..=6;

/// Exclusive upper bound of the known opcodes.
pub const OPCODES: u16 = 1 << 13;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    Little,
    Big,
}

/// Returns the byte order of a module by its magic number, or `None` if the magic number is missing.
pub(crate) fn byte_order(bytes: &[u8]) -> Option<ByteOrder> {
    let first = *bytes.first_chunk()?;
    if u32::from_le_bytes(first) == MAGIC_NUMBER {
        Some(ByteOrder::Little)
    } else if u32::from_be_bytes(first) == MAGIC_NUMBER {
        Some(ByteOrder::Big)
    } else {
        None
    }
}

/// Module in little-endian order, with a checked header and with instructions that end where the module ends.
#[derive(Debug)]
pub struct Words {
    bytes: Vec<u8>,
    header: Header,
}

/// Header of a module, from its first five words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Major and minor version.
    pub version: (u8, u8),
    pub generator: u32,
    /// Exclusive upper bound of the module's ids.
    pub bound: u32,
    pub schema: u32,
}

impl Header {
    pub const WORDS: usize = 5;

    fn read(bytes: &[u8]) -> Result<Self> {
        let &[_, version, generator, bound, schema, ..] = bytes.as_chunks::<4>().0 else {
            return Err(invalid(format!(
                "the SPIR-V module has {} bytes, but its header alone has {} bytes; give the whole \
                 file",
                bytes.len(),
                Self::WORDS * size_of::<Word>()
            )));
        };
        let [version, generator, bound, schema] =
            [version, generator, bound, schema].map(u32::from_le_bytes);
        let version = check_version(version)?;
        // Any other bound is accepted: nothing here is sized by it.
        if bound == 0 {
            return Err(invalid(
                "the header of the SPIR-V module declares that ids are below 0, but every module \
                 has at least one id; the file is damaged: rebuild it",
            ));
        }
        Ok(Self { version, generator, bound, schema })
    }

    /// Returns the words of the header.
    pub fn words(self) -> [Word; Self::WORDS] {
        let (major, minor) = self.version;
        let version = u32::from_be_bytes([0, major, minor, 0]);
        [MAGIC_NUMBER, version, self.generator, self.bound, self.schema].map(u32::to_le_bytes)
    }
}

impl Words {
    /// Checks the layout of a module.
    ///
    /// # Errors
    ///
    /// [`InvalidModule`](crate::ErrorKind::InvalidModule) if the bytes are not a module, as for [`read`](crate::read).
    pub fn new(mut bytes: Vec<u8>) -> Result<Self> {
        if bytes.is_empty() {
            return Err(invalid("the SPIR-V module is empty; give the contents of a `.spv` file"));
        }
        // The magic number is checked before the length, which does not matter if the bytes are not SPIR-V.
        let Some(order) = byte_order(&bytes) else {
            return Err(no_magic_error(&bytes));
        };
        if !bytes.len().is_multiple_of(size_of::<Word>()) {
            return Err(invalid(format!(
                "the SPIR-V module has {} bytes, but a module consists of words of 4 bytes; it was \
                 truncated or changed in transfer: give the whole file, read as binary",
                bytes.len()
            )));
        }
        if order == ByteOrder::Big {
            bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse());
        }

        let header = Header::read(&bytes)?;
        check_instructions(bytes.as_chunks().0)?;
        Ok(Self { bytes, header })
    }

    /// Returns the header.
    #[must_use]
    pub fn header(&self) -> Header {
        self.header
    }

    /// Returns the instructions in order.
    #[must_use]
    pub fn instructions(&self) -> Instructions<'_> {
        Instructions::after_header(self.words())
    }

    /// Returns all words, with the header.
    #[must_use]
    pub fn words(&self) -> &[Word] {
        self.bytes.as_chunks().0
    }

    /// Returns the bytes of the module, little-endian.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Returns the error of a module that is not valid.
pub fn invalid(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidModule, message)
}

/// Returns an error that names the probable format of the bytes, for common mix-ups.
fn no_magic_error(bytes: &[u8]) -> Error {
    let advice = if bytes.starts_with(b"BC\xC0\xDE") {
        "this is LLVM bitcode: translate it with `llvm-spirv`"
    } else if std::str::from_utf8(bytes).is_ok_and(|text| !text.contains('\0')) {
        "this is text: assemble it with `spirv-as` if it is SPIR-V assembly, or use \
         `Module::opencl_c` if it is OpenCL C"
    } else {
        "give the contents of a `.spv` file, or use `Module::native` for a device binary"
    };
    let start = &bytes[..bytes.len().min(size_of::<Word>())];
    invalid(format!(
        "the bytes begin with {start:02x?}, not with the magic number of SPIR-V, {MAGIC_NUMBER:#010x}, \
         in either byte order; {advice}"
    ))
}

fn check_version(word: u32) -> Result<(u8, u8)> {
    match word.to_be_bytes() {
        [0, major @ MAJOR_VERSION, minor, 0] if MINOR_VERSIONS.contains(&minor) => {
            Ok((major, minor))
        }
        [0, major, minor, 0] => Err(invalid(format!(
            "the SPIR-V module has version {major}.{minor}, but Kiln supports versions \
             {MAJOR_VERSION}.{} to {MAJOR_VERSION}.{}; build it for one of these, for example with \
             `llvm-spirv --spirv-max-version`",
            MINOR_VERSIONS.start(),
            MINOR_VERSIONS.end()
        ))),
        _ => Err(invalid(format!(
            "the version word of the SPIR-V module is {word:#010x}, but its first and last byte \
             must be 0; the file is damaged: rebuild it"
        ))),
    }
}

fn check_instructions(words: &[Word]) -> Result<()> {
    let mut instructions = Instructions::after_header(words);
    let mut inside_function = false;
    for instruction in instructions.by_ref() {
        match instruction.op() {
            Some(Op::Function) => inside_function = true,
            Some(Op::FunctionEnd) => inside_function = false,
            _ => {}
        }
    }
    let unread = instructions.rest;
    let Some(&first) = unread.first() else {
        // An incomplete function crashes some drivers.
        return if inside_function {
            Err(invalid(
                "the last function of the SPIR-V module has no OpFunctionEnd; the module is \
                 truncated or damaged: give the whole file",
            ))
        } else {
            Ok(())
        };
    };
    let at = words.len() - unread.len();
    let (opcode, count) = opcode_and_count(first);
    let name = name_of(opcode);
    Err(invalid(if count == 0 {
        format!(
            "the instruction at word {at} of the SPIR-V module, {name}, has a word count of 0, but \
             the minimum is 1; the file is damaged: rebuild it"
        )
    } else {
        format!(
            "the instruction at word {at} of the SPIR-V module, {name}, has a word count of \
             {count}, but only {} words are left; the module is truncated or damaged: give the \
             whole file",
            unread.len()
        )
    }))
}

fn name_of(opcode: u16) -> String {
    Op::from_u32(opcode.into()).map_or_else(|| format!("opcode {opcode}"), |op| format!("Op{op:?}"))
}

fn opcode_and_count(word: Word) -> (u16, usize) {
    let [opcode_low, opcode_high, count_low, count_high] = word;
    let count = u16::from_le_bytes([count_low, count_high]);
    (u16::from_le_bytes([opcode_low, opcode_high]), count.into())
}

/// Iterator over the instructions of a module, in order. It stops before a malformed instruction.
#[derive(Clone, Debug)]
pub struct Instructions<'a> {
    rest: &'a [Word],
}

impl<'a> Instructions<'a> {
    fn after_header(words: &'a [Word]) -> Self {
        Self::of(words.get(Header::WORDS..).unwrap_or_default())
    }

    /// Returns the instructions in words.
    pub fn of(rest: &'a [Word]) -> Self {
        Self { rest }
    }

    /// Returns the words that have not been read.
    pub fn words(&self) -> &'a [Word] {
        self.rest
    }
}

impl<'a> Iterator for Instructions<'a> {
    type Item = Instruction<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let (_, count) = opcode_and_count(*self.rest.first()?);
        let (words, rest) = self.rest.split_at_checked(count)?;
        if words.is_empty() {
            return None;
        }
        self.rest = rest;
        Some(Instruction { words })
    }
}

/// Instruction with undecoded operands. Reading a missing operand returns `None`.
#[derive(Clone, Copy, Debug)]
pub struct Instruction<'a> {
    /// Words of the instruction, never empty. The first holds the opcode and the word count.
    words: &'a [Word],
}

impl<'a> Instruction<'a> {
    /// Returns the opcode, or `None` if it is newer than the grammar that this crate was built with.
    pub fn op(&self) -> Option<Op> {
        // `Op::from_u32` compares with about a hundred ranges; the table takes one load.
        static OPS: LazyLock<Vec<Option<Op>>> =
            LazyLock::new(|| (0..OPCODES).map(|opcode| Op::from_u32(opcode.into())).collect());
        *OPS.get(usize::from(self.opcode()))?
    }

    /// Returns the number of the opcode.
    #[must_use]
    pub fn opcode(&self) -> u16 {
        self.words.first().map_or(0, |&first| opcode_and_count(first).0)
    }

    /// Returns the name in the specification, or the number of an unknown opcode.
    #[must_use]
    pub fn name(&self) -> String {
        name_of(self.opcode())
    }

    /// Returns all words of the instruction, including the first.
    #[must_use]
    pub fn words(&self) -> &'a [Word] {
        self.words
    }

    /// Returns the words after the opcode.
    #[must_use]
    pub fn operands(&self) -> &'a [Word] {
        self.words.get(1..).unwrap_or_default()
    }

    /// Returns the operand word at `index`; index 0 is the word after the opcode.
    pub(crate) fn word(&self, index: usize) -> Option<u32> {
        self.operands().get(index).copied().map(u32::from_le_bytes)
    }

    /// Returns the operand words from `index` on.
    pub fn words_from(&self, index: usize) -> impl Iterator<Item = u32> + use<'a> {
        let operands: &'a [Word] = self.operands().get(index..).unwrap_or_default();
        operands.iter().copied().map(u32::from_le_bytes)
    }

    /// Returns the bytes of the operand words from `index` on, little-endian.
    pub(crate) fn bytes_from(&self, index: usize) -> &'a [u8] {
        self.operands().get(index..).unwrap_or_default().as_flattened()
    }

    /// Returns the literal string that begins at `index`, or `None` if it is missing, has no end or is not
    /// UTF-8.
    pub(crate) fn string(&self, index: usize) -> Option<&'a str> {
        let bytes = self.bytes_from(index);
        let end = bytes.iter().position(|&byte| byte == 0)?;
        std::str::from_utf8(&bytes[..end]).ok()
    }
}

/// Returns the number of words of the literal string that begins at the first word, or `None` if it has no
/// end.
pub(crate) fn string_length(words: &[Word]) -> Option<usize> {
    words.iter().position(|word| word.contains(&0)).map(|last| last + 1)
}
