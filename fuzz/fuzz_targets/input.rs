//! Inputs that are SPIR-V modules: output of compilers with edits, and sequences of instructions with
//! so few ids that they refer to one another. Random bytes are hardly ever a module.

use arbitrary::{Arbitrary, Result, Unstructured};

const MODULES: [&[u8]; 36] = [
    include_bytes!("../../tests/data/application.spv"),
    include_bytes!("../../tests/data/library.spv"),
    include_bytes!("../../tests/data/library_O0.spv"),
    include_bytes!("../../tests/data/library_debug.spv"),
    include_bytes!("../../tests/data/library_legacy_debug.spv"),
    include_bytes!("../../tests/data/inferred.spv"),
    include_bytes!("../../tests/data/application_inferred.spv"),
    include_bytes!("../../tests/data/library_inferred.spv"),
    include_bytes!("../../tests/data/application_intel.spv"),
    include_bytes!("../../tests/data/library_intel.spv"),
    include_bytes!("../../tests/data/switches.spv"),
    include_bytes!("../../tests/data/operations.spv"),
    include_bytes!("../../tests/data/fusion.spv"),
    include_bytes!("../../tests/data/fusion_O0.spv"),
    include_bytes!("../../tests/data/patterns.spv"),
    include_bytes!("../../tests/data/patterns_O0.spv"),
    include_bytes!("../../tests/data/shapes.spv"),
    include_bytes!("../../tests/data/shapes_O0.spv"),
    include_bytes!("../../tests/data/emitted/arithmetic_O2.spv"),
    include_bytes!("../../tests/data/emitted/bits.spv"),
    include_bytes!("../../tests/data/emitted/control_O0.spv"),
    include_bytes!("../../tests/data/emitted/control_O2.spv"),
    include_bytes!("../../tests/data/emitted/generic_O0.spv"),
    include_bytes!("../../tests/data/emitted/groups_O0.spv"),
    include_bytes!("../../tests/data/emitted/memory_O0.spv"),
    include_bytes!("../../tests/data/emitted/phis.spv"),
    include_bytes!("../../tests/data/bounds/hazards.spv"),
    include_bytes!("../../tests/data/bounds/polyhedral.spv"),
    include_bytes!("../../tests/data/bounds/polyhedral_O0.spv"),
    include_bytes!("../../tests/data/bounds/pixels.spv"),
    include_bytes!("../../tests/data/bounds/tone.spv"),
    include_bytes!("../../tests/data/bounds/sharpen.spv"),
    include_bytes!("../../tests/data/bounds/images.spv"),
    include_bytes!("../../tests/data/emitted/images_O0.spv"),
    include_bytes!("../../tests/data/emitted/images_O2.spv"),
    include_bytes!("../../tests/data/typed/images.spv"),
];

#[derive(Arbitrary, Debug)]
pub struct Module<'a> {
    base: Base<'a>,
    edits: Vec<Edit<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Base<'a> {
    Compiled(u8),
    Instructions { globals: Vec<Instruction<'a>>, functions: Vec<Vec<Instruction<'a>>> },
}

/// Instruction whose ids and literals are one byte each.
#[derive(Arbitrary, Debug)]
struct Instruction<'a> {
    opcode: Opcode,
    operands: &'a [u8],
}

/// Opcode, usually a known one.
#[derive(Debug)]
struct Opcode(u16);

/// Edit of a module. Positions are counted in instructions, and wrap.
#[derive(Arbitrary, Debug)]
enum Edit<'a> {
    Operand {
        at: u16,
        operand: u8,
        value: Value,
    },
    Opcode {
        at: u16,
        opcode: Opcode,
    },
    Remove {
        at: u16,
    },
    Copy {
        from: u16,
        to: u16,
    },
    Insert {
        at: u16,
        instruction: Instruction<'a>,
    },
    /// Inserts whole instructions of another compiled module.
    Graft {
        module: u8,
        from: u16,
        count: u8,
        to: u16,
    },
    Header {
        word: u8,
        value: Value,
    },
    Words {
        at: u16,
        bytes: &'a [u8],
    },
    Truncate {
        words: u16,
    },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Value {
    Small(u8),
    Medium(u16),
    Any(u32),
    Highest,
}

impl<'a> Arbitrary<'a> for Opcode {
    fn arbitrary(source: &mut Unstructured<'a>) -> Result<Self> {
        let number = u16::arbitrary(source)?;
        // Opcodes of vendors start at 4096.
        Ok(Self(if number & 0x8000 == 0 { number % 450 } else { number & 0x7fff }))
    }
}

impl Value {
    fn word(self) -> u32 {
        match self {
            Self::Small(value) => value.into(),
            Self::Medium(value) => value.into(),
            Self::Any(value) => value,
            Self::Highest => u32::MAX,
        }
    }
}

impl Instruction<'_> {
    fn words(&self) -> Vec<u32> {
        words(self.opcode.0.into(), self.operands.iter().map(|&operand| operand.into()))
    }
}

fn words(opcode: u32, operands: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut words = vec![opcode];
    words.extend(operands);
    words[0] |= (words.len() as u32) << 16;
    words
}

const HEADER: [u32; 5] = [0x0723_0203, 0x0001_0400, 0, 256, 0];
const OP_MEMORY_MODEL: u32 = 14;
const OP_FUNCTION: u32 = 54;
const OP_FUNCTION_END: u32 = 56;

impl Module<'_> {
    pub fn bytes(&self) -> Vec<u8> {
        let mut instructions = match &self.base {
            Base::Compiled(module) => compiled(*module),
            Base::Instructions { globals, functions } => {
                let mut all = vec![HEADER.to_vec(), words(OP_MEMORY_MODEL, [2, 2])];
                all.extend(globals.iter().map(Instruction::words));
                for (id, body) in (200..).zip(functions) {
                    all.push(words(OP_FUNCTION, [1, id, 0, 2]));
                    all.extend(body.iter().map(Instruction::words));
                    all.push(words(OP_FUNCTION_END, []));
                }
                all
            }
        };
        for edit in &self.edits {
            edit.apply(&mut instructions);
        }
        instructions.concat().into_iter().flat_map(u32::to_le_bytes).collect()
    }
}

/// Returns the words of the header, followed by those of each instruction.
fn compiled(module: u8) -> Vec<Vec<u32>> {
    let bytes = MODULES[usize::from(module) % MODULES.len()];
    let words: Vec<_> = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
    let (header, mut rest) = words.split_at(HEADER.len());
    let mut parts = vec![header.to_vec()];
    while let Some(&first) = rest.first() {
        let (instruction, after) = rest.split_at((first >> 16) as usize);
        parts.push(instruction.to_vec());
        rest = after;
    }
    parts
}

impl Edit<'_> {
    fn apply(&self, parts: &mut Vec<Vec<u32>>) {
        let count = parts.len();
        // Positions skip the header.
        let wrap = |at: u16| 1 + usize::from(at) % count.max(2).saturating_sub(1);
        match self {
            Self::Operand { at, operand, value } => {
                if let Some([_, operands @ ..]) = parts.get_mut(wrap(*at)).map(Vec::as_mut_slice)
                    && !operands.is_empty()
                {
                    let operand = usize::from(*operand) % operands.len();
                    operands[operand] = value.word();
                }
            }
            Self::Opcode { at, opcode } => {
                if let Some([first, ..]) = parts.get_mut(wrap(*at)).map(Vec::as_mut_slice) {
                    *first = *first & 0xffff_0000 | u32::from(opcode.0);
                }
            }
            Self::Remove { at } => {
                if count > 1 {
                    parts.remove(wrap(*at));
                }
            }
            Self::Copy { from, to } => {
                if let Some(copy) = parts.get(wrap(*from)).cloned() {
                    parts.insert(wrap(*to).min(count), copy);
                }
            }
            Self::Insert { at, instruction } => {
                parts.insert(wrap(*at).min(count), instruction.words());
            }
            Self::Graft { module, from, count: length, to } => {
                let other = compiled(*module);
                let from = 1 + usize::from(*from) % (other.len() - 1);
                let length = usize::from(length % 8).min(other.len() - from);
                let to = wrap(*to).min(count);
                parts.splice(to..to, other[from..from + length].iter().cloned());
            }
            Self::Header { word, value } => {
                parts[0][usize::from(*word) % HEADER.len()] = value.word();
            }
            Self::Words { at, bytes } => {
                let words = bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word));
                parts.insert(wrap(*at).min(count), words.collect());
            }
            Self::Truncate { words } => {
                let mut left = usize::from(*words).max(HEADER.len());
                for part in parts {
                    part.truncate(left);
                    left -= part.len();
                }
            }
        }
    }
}
