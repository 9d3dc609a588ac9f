//! The editable module: sections of instructions, parsed from words and assembled again.

use std::collections::{BTreeMap, HashMap, HashSet};

use rspirv::spirv::{Decoration, LinkageType, Op};

use super::grammar::{ExtendedSet, Shape};
use super::index::{Definitions, IdSet};
use super::stream::Stream;
use super::validate;
use super::words::{Header, Instruction, Instructions, Word, Words, invalid};
use crate::error::{Error, Result};

/// The sections before the functions, in the order of the logical layout (2.4).
///
/// What the layout lists as debug instructions is three sections here, as it demands their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Section {
    Capabilities,
    Extensions,
    ExtInstImports,
    MemoryModel,
    EntryPoints,
    /// With OpExecutionModeId.
    ExecutionModes,
    /// OpString, OpSource and the like.
    Sources,
    /// OpName and OpMemberName.
    Names,
    ModuleProcessed,
    /// Decorations and their groups.
    Annotations,
    /// Types, constants and variables; OpUndef, OpLine and extended instructions between them.
    Globals,
}

impl Section {
    pub(crate) const COUNT: usize = 11;

    pub(crate) const ALL: [Self; Self::COUNT] = [
        Self::Capabilities,
        Self::Extensions,
        Self::ExtInstImports,
        Self::MemoryModel,
        Self::EntryPoints,
        Self::ExecutionModes,
        Self::Sources,
        Self::Names,
        Self::ModuleProcessed,
        Self::Annotations,
        Self::Globals,
    ];

    /// Where an instruction outside of functions belongs; `None` if that is not known.
    fn of(instruction: &Instruction<'_>) -> Option<Self> {
        Some(match instruction.op()? {
            Op::Nop => return None,
            Op::Capability | Op::ConditionalCapabilityINTEL => Self::Capabilities,
            Op::Extension | Op::ConditionalExtensionINTEL => Self::Extensions,
            Op::ExtInstImport => Self::ExtInstImports,
            Op::MemoryModel | Op::SamplerImageAddressingModeNV => Self::MemoryModel,
            Op::EntryPoint | Op::ConditionalEntryPointINTEL => Self::EntryPoints,
            Op::ExecutionMode | Op::ExecutionModeId => Self::ExecutionModes,
            Op::String | Op::Source | Op::SourceContinued | Op::SourceExtension => Self::Sources,
            Op::Name | Op::MemberName => Self::Names,
            Op::ModuleProcessed => Self::ModuleProcessed,
            Op::Decorate
            | Op::DecorateId
            | Op::DecorateString
            | Op::MemberDecorate
            | Op::MemberDecorateString
            | Op::DecorationGroup
            | Op::GroupDecorate
            | Op::GroupMemberDecorate => Self::Annotations,
            _ => Self::Globals,
        })
    }

    const fn describe(self) -> &'static str {
        match self {
            Self::Capabilities => "capabilities",
            Self::Extensions => "extensions",
            Self::ExtInstImports => "imports of extended instructions",
            Self::MemoryModel => "the memory model",
            Self::EntryPoints => "entry points",
            Self::ExecutionModes => "execution modes",
            Self::Sources => "strings and sources",
            Self::Names => "names",
            Self::ModuleProcessed => "notes of processing",
            Self::Annotations => "annotations",
            Self::Globals => "types, constants and global variables",
        }
    }
}

/// A SPIR-V module to be changed: sections of instructions, and functions.
///
/// A module that was parsed and not changed is assembled word for word as it was. Instructions
/// that are not known stay where they stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) header: Header,
    pub(crate) sections: [Stream; Section::COUNT],
    pub(crate) functions: Vec<Function>,
    /// What stands behind the last function: extended instructions that mean nothing to a driver.
    pub(crate) tail: Stream,
}

/// A function from OpFunction to OpFunctionEnd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) id: u32,
    /// With OpLine and the like before OpFunction.
    pub(crate) body: Stream,
}

impl Function {
    /// One without a body (2.4, 10): it stands for one of another module.
    pub(crate) fn is_declaration(&self) -> bool {
        !self.body.iter().any(|instruction| instruction.op() == Some(Op::Label))
    }
}

impl Module {
    /// Takes a module apart, in either byte order.
    ///
    /// # Errors
    ///
    /// [`InvalidImage`](crate::ErrorKind::InvalidImage) if the bytes are no module, if its instructions
    /// do not stand in the order of the logical layout, if an id is not below the header's bound or is
    /// defined twice, or if a type or a constant is made of itself.
    pub(crate) fn parse(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        Self::from_words(&Words::new(bytes.into())?)
    }

    pub(crate) fn from_words(words: &Words) -> Result<Self> {
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
        validate::check_globals(&module, &defined)?;
        Ok(module)
    }

    pub(crate) fn empty(header: Header) -> Self {
        Self {
            header,
            sections: Default::default(),
            functions: Vec::new(),
            tail: Stream::default(),
        }
    }

    /// The module as bytes, in little-endian order.
    pub(crate) fn assemble(&self) -> Vec<u8> {
        let words: usize = self.streams().map(|stream| stream.words().len()).sum();
        let mut bytes = Vec::with_capacity((Header::WORDS + words) * size_of::<Word>());
        bytes.extend_from_slice(self.header.words().as_flattened());
        for stream in self.streams() {
            bytes.extend_from_slice(stream.words().as_flattened());
        }
        bytes
    }

    pub(crate) fn section(&self, section: Section) -> &Stream {
        &self.sections[section as usize]
    }

    pub(crate) fn section_mut(&mut self, section: Section) -> &mut Stream {
        &mut self.sections[section as usize]
    }

    /// All instructions, by section and function.
    pub(crate) fn streams(&self) -> impl Iterator<Item = &Stream> {
        let functions = self.functions.iter().map(|function| &function.body);
        self.sections.iter().chain(functions).chain([&self.tail])
    }

    /// As [`streams`](Self::streams) counts them.
    pub(crate) fn stream(&self, index: usize) -> Option<&Stream> {
        match index.checked_sub(Section::COUNT) {
            None => self.sections.get(index),
            Some(index) if index == self.functions.len() => Some(&self.tail),
            Some(index) => self.functions.get(index).map(|function| &function.body),
        }
    }

    /// An id that nothing has.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if all ids are used up.
    pub(crate) fn fresh_id(&mut self) -> Result<u32> {
        let id = self.header.bound;
        self.header.bound = id.checked_add(1).ok_or_else(|| {
            Error::unsupported(
                "the module has no free ids: its header says that all of 32 bits are used",
            )
        })?;
        Ok(id)
    }

    pub(crate) fn definitions(&self) -> Definitions<'_> {
        Definitions::of(self)
    }

    pub(crate) fn extended_sets(&self) -> HashMap<u32, ExtendedSet> {
        let imports = self.section(Section::ExtInstImports).iter();
        imports
            .filter(|import| import.op() == Some(Op::ExtInstImport))
            .filter_map(|import| {
                Some((import.word(0)?, ExtendedSet::named(import.string(1).unwrap_or_default())))
            })
            .collect()
    }

    /// The variables that are the device's to set, each with what it stands for. Translators declare
    /// them as imports, which only the driver can resolve. That may be said of groups of them.
    pub(crate) fn built_ins(&self) -> impl Iterator<Item = (u32, u32)> {
        let annotations = || self.section(Section::Annotations).iter();
        let is_built_in = |i: &Instruction<'_>| {
            i.op() == Some(Op::Decorate) && i.word(1) == Some(Decoration::BuiltIn as u32)
        };
        let own = annotations().filter(is_built_in);
        let own: BTreeMap<_, _> = own.filter_map(|i| Some((i.word(0)?, i.word(2)?))).collect();
        let groups = annotations().filter(|i| i.op() == Some(Op::GroupDecorate));
        let of_groups: Vec<_> = groups
            .filter_map(|i| Some((own.get(&i.word(0)?).copied()?, i)))
            .flat_map(|(built_in, i)| i.words_from(1).map(move |target| (target, built_in)))
            .collect();
        own.into_iter().chain(of_groups)
    }

    /// Writes something else for what was found: for each function, what its instructions are, where
    /// they are to be replaced.
    ///
    /// # Errors
    ///
    /// The first one of `write`.
    pub(crate) fn replace<T>(
        &mut self,
        found: Vec<Vec<Option<T>>>,
        mut write: impl FnMut(T, &mut Self, &mut Stream) -> Result<()>,
    ) -> Result<()> {
        for (at, found) in found.into_iter().enumerate() {
            if found.iter().all(Option::is_none) {
                continue;
            }
            let body = std::mem::take(&mut self.functions[at].body);
            let mut rewritten = Stream::default();
            for (instruction, found) in body.iter().zip(found) {
                match found {
                    Some(found) => write(found, self, &mut rewritten)?,
                    None => rewritten.push_instruction(&instruction),
                }
            }
            self.functions[at].body = rewritten;
        }
        Ok(())
    }

    /// The linkage decorations, with those of groups said of each target.
    pub(crate) fn linkages(&self) -> Vec<Linkage<'_>> {
        let annotations = self.section(Section::Annotations);
        let mut linkages: Vec<_> = annotations.iter().filter_map(|i| Linkage::of(&i)).collect();
        if linkages.is_empty() {
            return linkages;
        }
        let groups = annotations.iter().filter(|i| i.op() == Some(Op::DecorationGroup));
        let groups: HashSet<_> = groups.filter_map(|group| group.result()).collect();
        let said = linkages.iter().filter(|linkage| groups.contains(&linkage.target));
        let said: HashMap<_, _> = said.map(|&linkage| (linkage.target, linkage)).collect();
        for group in annotations.iter().filter(|i| i.op() == Some(Op::GroupDecorate)) {
            if let Some(&said) = group.word(0).and_then(|group| said.get(&group)) {
                linkages.extend(group.words_from(1).map(|target| Linkage { target, ..said }));
            }
        }
        linkages
    }
}

/// A LinkageAttributes decoration (3.20): what a function or a variable is to other modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Linkage<'m> {
    pub(crate) target: u32,
    pub(crate) name: &'m str,
    pub(crate) kind: LinkageType,
}

impl<'m> Linkage<'m> {
    pub(crate) fn of(instruction: &Instruction<'m>) -> Option<Self> {
        if instruction.op() != Some(Op::Decorate)
            || instruction.word(1) != Some(Decoration::LinkageAttributes as u32)
        {
            return None;
        }
        let name = instruction.string(2)?;
        let kind = LinkageType::from_u32(instruction.word(2 + name.len() / 4 + 1)?)?;
        Some(Self { target: instruction.word(0)?, name, kind })
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
    /// Up to the first OpFunction.
    fn globals(&mut self) -> Result<()> {
        let words = self.rest.words();
        // Where the section begins, and where a run of OpLine does that may belong to a function.
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
                    "the SPIR-V module has an OpFunctionEnd without OpFunction; it is damaged: make \
                     it anew",
                ));
            }
            lines = match instruction.op() {
                Some(Op::Line | Op::NoLine) => lines.or(Some(at)),
                _ => None,
            };
            match Section::of(&instruction) {
                Some(section) if section < self.section => {
                    return Err(out_of_order(&instruction, section, self.section));
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
                        "a function of the SPIR-V module begins inside another; the module is \
                         damaged: make it anew",
                    ));
                }
                Some(Op::Function) => {
                    let id = instruction.word(1).filter(|_| instruction.word(3).is_some());
                    function = Some(id.ok_or_else(|| {
                        invalid("an OpFunction of the SPIR-V module lacks operands: make it anew")
                    })?);
                }
                Some(Op::FunctionEnd) => {
                    let end = words.len() - self.rest.words().len();
                    let id = function.take().ok_or_else(|| {
                        invalid(
                            "the SPIR-V module has an OpFunctionEnd without OpFunction; it is \
                             damaged: make it anew",
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
                        return Err(out_of_order(&instruction, section, Section::Globals));
                    }
                }
                _ => {}
            }
        }
        self.module.tail = Stream::of(&words[start..]);
        Ok(())
    }

    /// The bound is what fresh ids are taken from (2.3), and each id is defined once (2.16.1).
    fn check(&mut self, instruction: &Instruction<'_>) -> Result<()> {
        let shape = Shape::of(instruction.opcode());
        if !shape.has_result {
            return Ok(());
        }
        let bound = self.module.header.bound;
        match instruction.word(shape.has_type.into()) {
            Some(id) if id < bound && self.defined.insert(id) => Ok(()),
            Some(id) if id < bound => Err(invalid(format!(
                "{} of the SPIR-V module defines id {id}, which another instruction defines, too; the \
                 file is damaged: make it anew",
                instruction.name()
            ))),
            Some(id) => Err(invalid(format!(
                "{} of the SPIR-V module defines id {id}, but its header says that ids are below \
                 {bound}; the file is damaged: make it anew",
                instruction.name()
            ))),
            None => Err(invalid(format!(
                "{} of the SPIR-V module has no result id; the file is damaged: make it anew",
                instruction.name()
            ))),
        }
    }
}

fn out_of_order(instruction: &Instruction<'_>, section: Section, current: Section) -> Error {
    invalid(format!(
        "{} stands behind {} in the SPIR-V module, but the layout of modules has {} before; make \
         the module with another producer, or check it with `spirv-val`",
        instruction.name(),
        current.describe(),
        section.describe()
    ))
}
