//! Parses a module from words into sections and functions.

use rspirv::spirv::Op;

use super::grammar::Shape;
use super::ids::IdSet;
use super::module::{Function, Module, Section};
use super::stream::Stream;
use super::validate;
use super::words::{Instruction, Instructions, Words, invalid};
use crate::error::{Error, Result};

impl Module {
    /// Parses a module, in either byte order.
    ///
    /// # Errors
    ///
    /// [`InvalidModule`](crate::ErrorKind::InvalidModule) if the bytes are not a valid module, if its
    /// instructions are not in the order of the logical layout, if an id is not below the header's bound or is
    /// defined twice, if a type or a constant is made of itself, or if types are nested too deeply.
    pub fn parse(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        Self::from_words(&Words::new(bytes.into())?)
    }

    /// Parses a module whose words are checked.
    ///
    /// # Errors
    ///
    /// As for [`parse`](Self::parse).
    pub fn from_words(words: &Words) -> Result<Self> {
        let header = words.header();
        let mut parser = Parser {
            module: Self::empty(header),
            rest: words.instructions(),
            section: Section::Capabilities,
            defined: IdSet::of_words(words.words().len(), header),
        };
        parser.globals()?;
        parser.functions()?;
        let Parser { module, defined, .. } = parser;
        validate::check(&module, &defined)?;
        Ok(module)
    }
}

struct Parser<'w> {
    module: Module,
    rest: Instructions<'w>,
    section: Section,
    /// The ids that instructions have defined so far.
    defined: IdSet,
}

impl<'w> Parser<'w> {
    /// Parses the instructions before the first OpFunction into sections.
    fn globals(&mut self) -> Result<()> {
        let words = self.rest.words();
        // Start of the section, and start of a run of OpLine, which may belong to a function.
        let (mut start, mut lines) = (0, None);
        loop {
            let at = words.len() - self.rest.words().len();
            let next = self.rest.next();
            let Some(instruction) = next.filter(|next| next.op() != Some(Op::Function)) else {
                let end = if next.is_some() { lines.unwrap_or(at) } else { at };
                self.module.sections[self.section as usize] = Stream::of(&words[start..end]);
                self.rest = Instructions::of(&words[end..]);
                return Ok(());
            };
            self.check(&instruction)?;
            if instruction.op() == Some(Op::FunctionEnd) {
                return Err(invalid(
                    "the SPIR-V module has an OpFunctionEnd without OpFunction; the module is \
                     damaged: rebuild it",
                ));
            }
            lines = match instruction.op() {
                Some(Op::Line | Op::NoLine) => lines.or(Some(at)),
                _ => None,
            };
            match Section::of(&instruction) {
                Some(section) if section < self.section => {
                    return Err(order_error(&instruction, section, self.section));
                }
                Some(section) if section > self.section => {
                    self.module.sections[self.section as usize] = Stream::of(&words[start..at]);
                    (self.section, start) = (section, at);
                }
                _ => {}
            }
        }
    }

    fn functions(&mut self) -> Result<()> {
        let words = self.rest.words();
        let (mut start, mut function) = (0, None);
        while let Some(instruction) = self.rest.next() {
            self.check(&instruction)?;
            match instruction.op() {
                Some(Op::Function) if function.is_some() => {
                    return Err(invalid(
                        "a function of the SPIR-V module begins inside another function; the \
                         module is damaged: rebuild it",
                    ));
                }
                Some(Op::Function) => {
                    let id = instruction.word(1).filter(|_| instruction.word(3).is_some());
                    function = Some(id.ok_or_else(|| {
                        invalid(
                            "an OpFunction of the SPIR-V module lacks operands; the module is \
                             damaged: rebuild it",
                        )
                    })?);
                }
                Some(Op::FunctionEnd) => {
                    let end = words.len() - self.rest.words().len();
                    let id = function.take().ok_or_else(|| {
                        invalid(
                            "the SPIR-V module has an OpFunctionEnd without OpFunction; the module \
                             is damaged: rebuild it",
                        )
                    })?;
                    let body = Stream::of(&words[start..end]);
                    self.module.functions.push(Function { id, body });
                    start = end;
                }
                _ if function.is_none() => {
                    if let Some(section) = Section::of(&instruction)
                        && section < Section::Globals
                    {
                        return Err(order_error(&instruction, section, Section::Globals));
                    }
                }
                _ => {}
            }
        }
        self.module.tail = Stream::of(&words[start..]);
        Ok(())
    }

    /// Checks that an instruction's result is below the bound, from which fresh ids are taken (2.3), and that
    /// it is not defined yet (2.16.1).
    fn check(&mut self, instruction: &Instruction<'_>) -> Result<()> {
        let shape = Shape::of(instruction.opcode());
        if !shape.has_result {
            return Ok(());
        }
        let bound = self.module.header.bound;
        match instruction.word(shape.has_type.into()) {
            Some(id) if id < bound && self.defined.insert(id) => Ok(()),
            Some(id) if id < bound => Err(invalid(format!(
                "{} of the SPIR-V module defines id {id}, which another instruction also defines; \
                 the file is damaged: rebuild it",
                instruction.name()
            ))),
            Some(id) => Err(invalid(format!(
                "{} of the SPIR-V module defines id {id}, but the header declares that ids are \
                 below {bound}; the file is damaged: rebuild it",
                instruction.name()
            ))),
            None => Err(invalid(format!(
                "{} of the SPIR-V module has no result id; the file is damaged: rebuild it",
                instruction.name()
            ))),
        }
    }
}

fn order_error(instruction: &Instruction<'_>, section: Section, current: Section) -> Error {
    invalid(format!(
        "{} follows {} in the SPIR-V module, but the layout of modules places {} before them; \
         check the module with `spirv-val`, or build it with another producer",
        instruction.name(),
        current.describe(),
        section.describe()
    ))
}
