//! Finds the words of an instruction that are ids, by the grammar that the specification publishes.
//!
//! Instructions outside of the grammar are rejected with an error that names them: those with an unknown
//! opcode, an unknown set of extended instructions, or more operands than the grammar lists. A module with
//! such an instruction can be kept and assembled, but none of its ids can be renumbered.

use std::sync::LazyLock;

use rspirv::grammar::{self, OperandKind, OperandQuantifier};
use rspirv::spirv::{MemoryAccess, Op};

use super::words::{Instruction, OPCODES, string_length};
use crate::error::{Error, ErrorKind, Result};

type Operands = &'static [grammar::LogicalOperand];

/// Role of an id in an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Type of the result.
    ResultType,
    /// The id that the instruction defines.
    Result,
    /// Any other id.
    Operand,
}

/// Information about the rest of the module that is needed to distinguish ids from literals.
pub trait Context {
    /// Returns the set of extended instructions that an OpExtInstImport imports.
    fn extended_set(&self, import: u32) -> ExtendedSet;

    /// Returns the number of words in a literal of a value's type, if it is an integer of up to 64 bits.
    fn literal_words(&self, value: u32) -> Option<usize>;
}

/// Set of extended instructions, by the grammar of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtendedSet {
    /// Functions of OpenCL C.
    OpenClStd,
    /// Functions of GLSL.
    GlslStd450,
    /// Debug information of the set of that name.
    DebugInfo,
    /// Debug information of OpenCL.
    OpenClDebugInfo100,
    /// SPV_KHR_non_semantic_info: all operands are ids.
    NonSemantic,
    /// A set whose grammar is not known.
    Unknown,
}

impl ExtendedSet {
    /// Returns the set of a name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name {
            "OpenCL.std" => Self::OpenClStd,
            "GLSL.std.450" => Self::GlslStd450,
            "DebugInfo" => Self::DebugInfo,
            // `SPIRV.debug` is the translator's own name for what became OpenCL.DebugInfo.100.
            "OpenCL.DebugInfo.100" | "SPIRV.debug" => Self::OpenClDebugInfo100,
            _ if name.starts_with("NonSemantic.") => Self::NonSemantic,
            _ => Self::Unknown,
        }
    }

    fn operands(self, number: u32) -> Option<Operands> {
        static SETS: LazyLock<[Table; 4]> = LazyLock::new(|| {
            [
                Table::new(grammar::OPENCL_STD_100_INSTRUCTION_TABLE.iter()),
                Table::new(grammar::GLSL_STD_450_INSTRUCTION_TABLE.iter()),
                Table::new(grammar::DEBUGINFO_INSTRUCTION_TABLE.iter()),
                Table::new(grammar::OPENCL_DEBUGINFO_100_INSTRUCTION_TABLE.iter()),
            ]
        });
        static IDS: Operands = &[grammar::LogicalOperand {
            kind: OperandKind::IdRef,
            quantifier: OperandQuantifier::ZeroOrMore,
        }];
        let [opencl, glsl, debug, opencl_debug] = &*SETS;
        match self {
            Self::OpenClStd => opencl.get(number),
            Self::GlslStd450 => glsl.get(number),
            Self::DebugInfo => debug.get(number),
            Self::OpenClDebugInfo100 => opencl_debug.get(number),
            Self::NonSemantic => Some(IDS),
            Self::Unknown => None,
        }
    }
}

/// Operands by opcode. A lookup in the grammar's own tables searches from the start.
struct Table(Vec<Option<Operands>>);

impl Table {
    fn new<O: Copy + Into<u32> + 'static>(
        instructions: impl Iterator<Item = &'static grammar::BaseInstruction<'static, O>>,
    ) -> Self {
        let mut table = Vec::new();
        for instruction in instructions {
            let opcode = instruction.opcode.into() as usize;
            table.resize(table.len().max(opcode + 1), None);
            table[opcode] = Some(instruction.operands);
        }
        Self(table)
    }

    fn get(&self, opcode: u32) -> Option<Operands> {
        *self.0.get(opcode as usize)?
    }
}

/// Returns the operands of an instruction that is not an extended one.
fn core(opcode: u16) -> Option<Operands> {
    static CORE: LazyLock<Table> = LazyLock::new(|| Table::new(grammar::INSTRUCTION_TABLE.iter()));
    CORE.get(opcode.into())
}

/// Position of the result id in instructions of an opcode: after the id of its type, if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Whether the instructions declare types.
    pub is_type: bool,
    pub has_type: bool,
    pub has_result: bool,
}

impl Shape {
    pub(crate) fn of(opcode: u16) -> Self {
        static SHAPES: LazyLock<Vec<Shape>> = LazyLock::new(|| {
            let shape = |opcode| {
                let has = |kind| {
                    let operands = core(opcode).unwrap_or_default();
                    operands.iter().any(|operand| operand.kind == kind)
                };
                let (has_type, has_result) =
                    (has(OperandKind::IdResultType), has(OperandKind::IdResult));
                let op = Op::from_u32(opcode.into());
                let is_type =
                    has_result && op.is_some_and(|op| format!("{op:?}").starts_with("Type"));
                Shape { is_type, has_type, has_result }
            };
            (0..OPCODES).map(shape).collect()
        });
        SHAPES.get(usize::from(opcode)).copied().unwrap_or_default()
    }
}

/// Operands of instructions that have nothing but ids, as most instructions of functions do.
#[derive(Clone, Copy)]
struct PlainOperands {
    least: usize,
    /// Whether any number of further ids may follow.
    has_more: bool,
}

impl PlainOperands {
    fn of(opcode: u16) -> Option<Self> {
        static ALL: LazyLock<Vec<Option<PlainOperands>>> = LazyLock::new(|| {
            let plain = |opcode| {
                let (more, all) = match core(opcode)? {
                    [all @ .., last] if last.quantifier == OperandQuantifier::ZeroOrMore => {
                        (Some(last), all)
                    }
                    all => (None, all),
                };
                let is_id = |operand: &grammar::LogicalOperand| {
                    use OperandKind::{IdRef, IdResult, IdResultType};
                    matches!(operand.kind, IdRef | IdResult | IdResultType)
                };
                let is_plain = more.is_none_or(is_id)
                    && all.iter().all(|operand| {
                        operand.quantifier == OperandQuantifier::One && is_id(operand)
                    });
                let plain = PlainOperands { least: all.len(), has_more: more.is_some() };
                is_plain.then_some(plain)
            };
            (0..OPCODES).map(plain).collect()
        });
        ALL.get(usize::from(opcode)).copied().flatten()
    }

    fn allow(self, length: usize) -> bool {
        length == self.least || (self.has_more && length > self.least)
    }
}

impl Instruction<'_> {
    /// Returns the id that the instruction defines, or `None` if it defines none or its opcode is unknown.
    #[must_use]
    pub fn result(&self) -> Option<u32> {
        let shape = Shape::of(self.opcode());
        if shape.has_result { self.word(shape.has_type.into()) } else { None }
    }

    /// Returns the type of the value that the instruction defines.
    #[must_use]
    pub fn result_type(&self) -> Option<u32> {
        if Shape::of(self.opcode()).has_type { self.word(0) } else { None }
    }
}

/// Calls `found` with the index, among the operand words, of every id that an instruction names.
///
/// # Errors
///
/// [`Unsupported`](ErrorKind::Unsupported) if the ids cannot be determined,
/// [`InvalidModule`](ErrorKind::InvalidModule) if operands are missing. `found` may have been called before
/// the error is returned.
pub fn ids(
    instruction: &Instruction<'_>,
    context: &impl Context,
    mut found: impl FnMut(usize, Role),
) -> Result<()> {
    // These opcodes continue the instruction before them. Read alone, that instruction would look complete, and
    // its continuation would belong to nothing.
    let is_continuation = matches!(
        instruction.op(),
        Some(
            Op::TypeStructContinuedINTEL
                | Op::ConstantCompositeContinuedINTEL
                | Op::SpecConstantCompositeContinuedINTEL
        )
    );
    if is_continuation {
        return Err(Error::unsupported(format!(
            "{} continues a type or a constant of more than 65,532 parts; modules that contain one \
             can be built, but neither linked nor fused",
            instruction.name()
        )));
    }
    let length = instruction.operands().len();
    if PlainOperands::of(instruction.opcode()).is_some_and(|plain| plain.allow(length)) {
        let shape = Shape::of(instruction.opcode());
        let result = shape.has_result.then_some(usize::from(shape.has_type));
        (0..length).for_each(|at| match at {
            0 if shape.has_type => found(at, Role::ResultType),
            _ if Some(at) == result => found(at, Role::Result),
            _ => found(at, Role::Operand),
        });
        return Ok(());
    }
    let Some(operands) = core(instruction.opcode()) else {
        return Err(Error::unsupported(format!(
            "{} is unknown, so Kiln cannot determine which of its operands are ids; modules that \
             contain it can be built, but neither linked nor fused",
            instruction.name()
        )));
    };
    let mut walk = Walk { instruction, context, found, at: 0, selector: None };
    walk.all(operands)?;
    let read = walk.at;
    if read < length {
        return Err(Error::unsupported(format!(
            "{} has {length} words of operands, of which only {read} are known; modules with \
             such instructions can be built, but neither linked nor fused",
            instruction.name()
        )));
    }
    Ok(())
}

/// Calls `found` with every id that an instruction names, besides the id and the type of its result.
///
/// # Errors
///
/// Fails like [`ids`]. `found` may have been called before the error is returned.
pub fn operand_ids(
    instruction: &Instruction<'_>,
    context: &impl Context,
    mut found: impl FnMut(u32),
) -> Result<()> {
    ids(instruction, context, |at, role| {
        if role == Role::Operand
            && let Some(id) = instruction.word(at)
        {
            found(id);
        }
    })
}

/// Walk over the operands of an instruction.
struct Walk<'a, 'm, C, F> {
    instruction: &'a Instruction<'m>,
    context: &'a C,
    found: F,
    /// Index of the next operand word.
    at: usize,
    /// First operand that is an id. In an OpSwitch, its type determines the width of the literals.
    selector: Option<u32>,
}

impl<C: Context, F: FnMut(usize, Role)> Walk<'_, '_, C, F> {
    fn all(&mut self, operands: Operands) -> Result<()> {
        for operand in operands {
            match operand.quantifier {
                OperandQuantifier::One => self.one(operand.kind)?,
                OperandQuantifier::ZeroOrOne if self.is_left() => self.one(operand.kind)?,
                OperandQuantifier::ZeroOrOne => {}
                OperandQuantifier::ZeroOrMore => {
                    while self.is_left() {
                        self.one(operand.kind)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn is_left(&self) -> bool {
        self.at < self.instruction.operands().len()
    }

    fn one(&mut self, kind: OperandKind) -> Result<()> {
        match kind {
            OperandKind::IdResultType => self.id(Role::ResultType)?,
            OperandKind::IdResult => self.id(Role::Result)?,
            OperandKind::IdRef | OperandKind::IdScope | OperandKind::IdMemorySemantics => {
                self.selector = self.selector.or_else(|| self.instruction.word(self.at));
                self.id(Role::Operand)?;
            }
            OperandKind::PairIdRefIdRef => {
                self.id(Role::Operand)?;
                self.id(Role::Operand)?;
            }
            OperandKind::PairIdRefLiteralInteger => {
                self.id(Role::Operand)?;
                self.literal()?;
            }
            OperandKind::PairLiteralIntegerIdRef => {
                for _ in 0..self.selector_words()? {
                    self.literal()?;
                }
                self.id(Role::Operand)?;
            }
            OperandKind::LiteralString => {
                let rest = self.instruction.operands().get(self.at..).unwrap_or_default();
                self.at += string_length(rest).ok_or_else(|| self.cut_short_error())?;
            }
            OperandKind::LiteralExtInstInteger => self.extended()?,
            OperandKind::LiteralSpecConstantOpInteger => self.spec_constant_op()?,
            OperandKind::MemoryAccess => self.memory_access()?,
            // The literal has as many words as its type; nothing follows it.
            OperandKind::LiteralContextDependentNumber => {
                self.literal()?;
                self.skip_rest();
            }
            // Parameters are literals, in any number, except in the instructions whose names say otherwise
            // (OpDecorateId, OpExecutionModeId).
            OperandKind::Decoration | OperandKind::ExecutionMode => {
                self.literal()?;
                if matches!(self.instruction.op(), Some(Op::DecorateId | Op::ExecutionModeId)) {
                    self.ids_of_rest()?;
                } else {
                    self.skip_rest();
                }
            }
            OperandKind::LoopControl => {
                self.literal()?;
                self.skip_rest();
            }
            OperandKind::ImageOperands
            | OperandKind::TensorAddressingOperands
            | OperandKind::TensorOperands => {
                self.literal()?;
                self.ids_of_rest()?;
            }
            _ => self.literal()?,
        }
        Ok(())
    }

    fn id(&mut self, role: Role) -> Result<()> {
        let at = self.at;
        self.literal()?;
        (self.found)(at, role);
        Ok(())
    }

    fn literal(&mut self) -> Result<()> {
        if !self.is_left() {
            return Err(self.cut_short_error());
        }
        self.at += 1;
        Ok(())
    }

    fn skip_rest(&mut self) {
        self.at = self.instruction.operands().len();
    }

    fn ids_of_rest(&mut self) -> Result<()> {
        while self.is_left() {
            self.id(Role::Operand)?;
        }
        Ok(())
    }

    fn cut_short_error(&self) -> Error {
        let length = self.instruction.operands().len();
        Error::new(
            ErrorKind::InvalidModule,
            format!(
                "{} has {length} words of operands, which are too few; the module is damaged: \
                 rebuild it",
                self.instruction.name()
            ),
        )
    }

    /// Returns the number of words in a literal of an OpSwitch, which is as wide as the selector's type.
    fn selector_words(&self) -> Result<usize> {
        let words = self.selector.and_then(|selector| self.context.literal_words(selector));
        words.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidModule,
                format!(
                    "the selector of an OpSwitch, {}, is not an integer of up to 64 bits; the \
                     module is damaged: rebuild it",
                    self.selector.map_or_else(String::new, |id| format!("%{id}"))
                ),
            )
        })
    }

    /// Reads the number of an extended instruction and its operands.
    fn extended(&mut self) -> Result<()> {
        let word = |at: Option<usize>| at.and_then(|at| self.instruction.word(at));
        let set = word(self.at.checked_sub(1)).map(|id| self.context.extended_set(id));
        let number = word(Some(self.at)).ok_or_else(|| self.cut_short_error())?;
        let operands = set.and_then(|set| set.operands(number)).ok_or_else(|| {
            Error::unsupported(format!(
                "extended instruction {number} is unknown, so Kiln cannot determine which of its \
                 operands are ids; modules that contain it can be built, but neither linked nor \
                 fused"
            ))
        })?;
        self.literal()?;
        self.all(operands)
    }

    /// Reads the operation of an OpSpecConstantOp and its operands. The operation has no result of its own.
    fn spec_constant_op(&mut self) -> Result<()> {
        let opcode = self.instruction.word(self.at).ok_or_else(|| self.cut_short_error())?;
        let operands = u16::try_from(opcode).ok().and_then(core);
        let operands =
            operands.filter(|_| opcode != Op::SpecConstantOp as u32).ok_or_else(|| {
                Error::unsupported(format!(
                    "OpSpecConstantOp has an unknown operation, opcode {opcode}"
                ))
            })?;
        self.literal()?;
        let is_result = |operand: &&grammar::LogicalOperand| {
            matches!(operand.kind, OperandKind::IdResultType | OperandKind::IdResult)
        };
        self.all(&operands[operands.iter().take_while(is_result).count()..])
    }

    /// Reads memory operands: a mask, and the operands of its bits in the order of the bits (3.26).
    fn memory_access(&mut self) -> Result<()> {
        let mask = self.instruction.word(self.at).ok_or_else(|| self.cut_short_error())?;
        let access = MemoryAccess::from_bits(mask).ok_or_else(|| {
            Error::unsupported(format!(
                "{} has memory operands {mask:#x}, not all of which are known; modules with such \
                 operands can be built, but neither linked nor fused",
                self.instruction.name()
            ))
        })?;
        self.literal()?;
        for bit in access.iter() {
            if bit == MemoryAccess::ALIGNED {
                self.literal()?;
            } else if bit.intersects(
                MemoryAccess::MAKE_POINTER_AVAILABLE
                    | MemoryAccess::MAKE_POINTER_VISIBLE
                    | MemoryAccess::ALIAS_SCOPE_INTEL_MASK
                    | MemoryAccess::NO_ALIAS_INTEL_MASK,
            ) {
                self.id(Role::Operand)?;
            }
        }
        Ok(())
    }
}
