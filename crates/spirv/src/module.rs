//! The editable module: sections of instructions, and the bytes that they are assembled to.

use std::collections::{BTreeMap, HashMap, HashSet};

use rspirv::spirv::{AddressingModel, Decoration, LinkageType, Op, StorageClass};

use super::grammar::ExtendedSet;
use super::stream::Stream;
use super::table::{Class, View};
use super::words::{Header, Instruction, Word};
use crate::error::{Error, Result};

/// Sections before the functions, in the order of the logical layout (2.4).
///
/// The layout's debug instructions are three sections here, because the layout prescribes their order, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// OpCapability.
    Capabilities,
    /// OpExtension.
    Extensions,
    /// OpExtInstImport.
    ExtInstImports,
    /// OpMemoryModel.
    MemoryModel,
    /// OpEntryPoint.
    EntryPoints,
    /// OpExecutionMode and OpExecutionModeId.
    ExecutionModes,
    /// OpString, OpSource and the like.
    Sources,
    /// OpName and OpMemberName.
    Names,
    /// OpModuleProcessed.
    ModuleProcessed,
    /// Decorations and their groups.
    Annotations,
    /// Types, constants and variables; OpUndef, OpLine and extended instructions between them.
    Globals,
}

impl Section {
    /// Number of sections.
    pub const COUNT: usize = 11;

    /// All sections, in their order.
    pub const ALL: [Self; Self::COUNT] = [
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

    /// Returns the section of an instruction outside of functions, or `None` if that is unknown.
    pub(super) fn of(instruction: &Instruction<'_>) -> Option<Self> {
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
            _ => match instruction.class() {
                Some(Class::Decoration | Class::MemberDecoration | Class::DecorationGroup) => {
                    Self::Annotations
                }
                _ => Self::Globals,
            },
        })
    }

    /// Returns the name of the section in messages.
    pub(super) const fn describe(self) -> &'static str {
        match self {
            Self::Capabilities => "capabilities",
            Self::Extensions => "extensions",
            Self::ExtInstImports => "imports of extended instructions",
            Self::MemoryModel => "the memory model",
            Self::EntryPoints => "entry points",
            Self::ExecutionModes => "execution modes",
            Self::Sources => "strings and sources",
            Self::Names => "names",
            Self::ModuleProcessed => "processing notes",
            Self::Annotations => "annotations",
            Self::Globals => "types, constants and global variables",
        }
    }
}

/// Editable SPIR-V module: sections of instructions, and functions.
///
/// A module that was parsed and not changed is assembled word for word as it was. Unknown instructions keep
/// their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Header.
    pub header: Header,
    /// Instructions of each section.
    pub sections: [Stream; Section::COUNT],
    /// Functions, in their order.
    pub functions: Vec<Function>,
    /// Instructions after the last function: extended instructions that have no meaning for a driver.
    pub tail: Stream,
}

/// A function from OpFunction to OpFunctionEnd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Id of the function.
    pub id: u32,
    /// Instructions of the function, including OpLine and the like before OpFunction.
    pub body: Stream,
}

impl Function {
    /// Returns whether the function has no body (2.4, 10), and so stands for a function of another module.
    #[must_use]
    pub fn is_declaration(&self) -> bool {
        !self.body.iter().any(|instruction| instruction.op() == Some(Op::Label))
    }
}

impl Module {
    /// Creates a module without instructions.
    #[must_use]
    pub fn empty(header: Header) -> Self {
        Self {
            header,
            sections: Default::default(),
            functions: Vec::new(),
            tail: Stream::default(),
        }
    }

    /// Returns the number of words of the module's instructions.
    #[must_use]
    pub fn word_count(&self) -> usize {
        self.streams().map(|stream| stream.words().len()).sum()
    }

    /// Returns the module as bytes, in little-endian order.
    #[must_use]
    pub fn assemble(&self) -> Vec<u8> {
        let length = (Header::WORDS + self.word_count()) * size_of::<Word>();
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(self.header.words().as_flattened());
        for stream in self.streams() {
            bytes.extend_from_slice(stream.words().as_flattened());
        }
        bytes
    }

    /// Returns the instructions of a section.
    #[must_use]
    pub fn section(&self, section: Section) -> &Stream {
        &self.sections[section as usize]
    }

    /// Returns the instructions of a section, to be changed.
    pub fn section_mut(&mut self, section: Section) -> &mut Stream {
        &mut self.sections[section as usize]
    }

    /// Returns the streams of all instructions: one per section, one per function, and the tail.
    pub fn streams(&self) -> impl Iterator<Item = &Stream> {
        let functions = self.functions.iter().map(|function| &function.body);
        self.sections.iter().chain(functions).chain([&self.tail])
    }

    /// Returns the stream at `index`, in the order of [`streams`](Self::streams).
    #[must_use]
    pub fn stream(&self, index: usize) -> Option<&Stream> {
        match index.checked_sub(Section::COUNT) {
            None => self.sections.get(index),
            Some(index) if index == self.functions.len() => Some(&self.tail),
            Some(index) => self.functions.get(index).map(|function| &function.body),
        }
    }

    /// Returns a new id, and raises the header's bound.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if all ids are used up.
    pub fn fresh_id(&mut self) -> Result<u32> {
        let id = self.header.bound;
        self.header.bound = id.checked_add(1).ok_or_else(|| {
            Error::unsupported(
                "the module has no free ids: its header declares all 32-bit ids as used",
            )
        })?;
        Ok(id)
    }

    /// Returns the size of addresses in bytes; `None` if the module does not declare an addressing model that states
    /// it, as those of OpenCL do (3.4).
    #[must_use]
    pub fn address_bytes(&self) -> Option<u32> {
        let addressing =
            self.section(Section::MemoryModel).iter().find_map(|i| match i.view() {
                View::MemoryModel { addressing, .. } => Some(addressing),
                _ => None,
            })?;
        match AddressingModel::from_u32(addressing)? {
            AddressingModel::Physical32 => Some(4),
            AddressingModel::Physical64 => Some(8),
            _ => None,
        }
    }

    /// Returns the sets of extended instructions, by the ids of their imports.
    #[must_use]
    pub fn extended_sets(&self) -> HashMap<u32, ExtendedSet> {
        let imports = self.section(Section::ExtInstImports).iter();
        imports
            .filter(|import| import.op() == Some(Op::ExtInstImport))
            .filter_map(|import| {
                Some((import.word(0)?, ExtendedSet::named(import.string(1).unwrap_or_default())))
            })
            .collect()
    }

    /// Returns the input variables with built-in values of the device, each with its `BuiltIn` number. Translators
    /// declare them as imports, which only the driver can resolve. The decoration may be on a group.
    pub fn built_ins(&self) -> impl Iterator<Item = (u32, u32)> {
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
        let globals = self.section(Section::Globals).iter();
        let inputs = globals.filter(|i| {
            i.op() == Some(Op::Variable) && i.word(2) == Some(StorageClass::Input as u32)
        });
        let inputs: HashSet<_> = inputs.filter_map(|i| i.result()).collect();
        own.into_iter().chain(of_groups).filter(move |(id, _)| inputs.contains(id))
    }

    /// Replaces instructions of functions. `replaced` has a list for each function, with one entry per
    /// instruction: the value from which `write` writes the replacement, or `None` if the instruction stays.
    ///
    /// # Errors
    ///
    /// Fails with the first error of `write`.
    pub fn replace<T>(
        &mut self,
        replaced: Vec<Vec<Option<T>>>,
        mut write: impl FnMut(T, &mut Self, &mut Stream) -> Result<()>,
    ) -> Result<()> {
        for (at, values) in replaced.into_iter().enumerate() {
            if values.iter().all(Option::is_none) {
                continue;
            }
            let body = std::mem::take(&mut self.functions[at].body);
            let mut rewritten = Stream::default();
            for (instruction, value) in body.iter().zip(values) {
                match value {
                    Some(value) => write(value, self, &mut rewritten)?,
                    None => rewritten.push_instruction(&instruction),
                }
            }
            self.functions[at].body = rewritten;
        }
        Ok(())
    }

    /// Returns the linkage decorations. Those of a group are repeated for each target of the group.
    #[must_use]
    pub fn linkages(&self) -> Vec<Linkage<'_>> {
        let annotations = self.section(Section::Annotations);
        let mut linkages: Vec<_> = annotations.iter().filter_map(|i| Linkage::of(&i)).collect();
        if linkages.is_empty() {
            return linkages;
        }
        let groups = annotations.iter().filter(|i| i.op() == Some(Op::DecorationGroup));
        let groups: HashSet<_> = groups.filter_map(|group| group.result()).collect();
        let of_groups = linkages.iter().filter(|linkage| groups.contains(&linkage.target));
        let of_groups: HashMap<_, _> =
            of_groups.map(|&linkage| (linkage.target, linkage)).collect();
        for group in annotations.iter().filter(|i| i.op() == Some(Op::GroupDecorate)) {
            if let Some(&linkage) = group.word(0).and_then(|group| of_groups.get(&group)) {
                linkages.extend(group.words_from(1).map(|target| Linkage { target, ..linkage }));
            }
        }
        linkages
    }
}

/// LinkageAttributes decoration (3.20): the name and the role of a function or variable for other modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linkage<'m> {
    /// Id of the function or variable.
    pub target: u32,
    /// Name for other modules.
    pub name: &'m str,
    /// Role.
    pub kind: LinkageType,
}

impl<'m> Linkage<'m> {
    /// Returns the linkage that a decoration states; `None` for another instruction.
    #[must_use]
    pub fn of(instruction: &Instruction<'m>) -> Option<Self> {
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
