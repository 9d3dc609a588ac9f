//! Indexes of the definitions and uses of ids.

use std::cell::OnceCell;
use std::collections::HashMap;

use rspirv::spirv::Op;

use super::decorations;
use super::grammar::{self, Context, ExtendedSet, Role};
use super::ids::{IdMap, IdSet};
use super::module::{Module, Section};
use super::stream::Stream;
use super::words::Instruction;
use crate::error::Result;

/// Position of an instruction: the number of its stream, as in [`Module::stream`], and its first word there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// Number of the stream.
    pub stream: u32,
    /// Position of the first word in the stream.
    pub offset: u32,
}

impl Location {
    /// Returns the index of the function that contains the instruction; `None` outside of functions.
    #[must_use]
    pub fn function(self, module: &Module) -> Option<usize> {
        let index = (self.stream as usize).checked_sub(Section::COUNT)?;
        (index < module.functions.len()).then_some(index)
    }

    /// Returns the instruction at the location.
    #[must_use]
    pub fn instruction(self, module: &Module) -> Option<Instruction<'_>> {
        module.stream(self.stream as usize)?.at(self.offset as usize)
    }
}

/// Returns the instructions of a stream with their locations; `stream` is the number of the stream.
pub fn located(
    (stream, instructions): (u32, &Stream),
) -> impl Iterator<Item = (Location, Instruction<'_>)> {
    instructions.iter().scan(0, move |end, instruction| {
        let offset = *end;
        *end += instruction.words().len() as u32;
        Some((Location { stream, offset }, instruction))
    })
}

/// Returns every instruction of a module with its location.
pub(crate) fn all_located(module: &Module) -> impl Iterator<Item = (Location, Instruction<'_>)> {
    (0..).zip(module.streams()).flat_map(located)
}

/// Index of the instruction that defines each id. If two instructions define an id, the last one counts.
#[derive(Debug)]
pub struct Definitions<'m> {
    module: &'m Module,
    locations: IdMap<Location>,
    extended_sets: HashMap<u32, ExtendedSet>,
    /// Ids of results that a decoration may change, once they are asked for.
    changed: OnceCell<IdSet>,
}

impl<'m> Definitions<'m> {
    /// Indexes a module.
    #[must_use]
    pub fn of(module: &'m Module) -> Self {
        let mut locations = IdMap::of(module);
        for (location, instruction) in all_located(module) {
            if let Some(id) = instruction.result() {
                locations.insert(id, location);
            }
        }
        Self { module, locations, extended_sets: module.extended_sets(), changed: OnceCell::new() }
    }

    /// Returns the module.
    pub fn module(&self) -> &'m Module {
        self.module
    }

    /// Returns the place of the instruction that defines an id.
    pub fn location(&self, id: u32) -> Option<Location> {
        self.locations.get(id)
    }

    /// Returns whether `location` is in the section of globals, and `id` is defined there, at `location` or
    /// after it.
    pub fn is_global_from(&self, id: u32, location: Location) -> bool {
        let found = self.location(id);
        location.stream == Section::Globals as u32
            && found.is_some_and(|found| found.stream == location.stream && found >= location)
    }

    /// Returns the instruction that defines an id.
    pub fn get(&self, id: u32) -> Option<Instruction<'m>> {
        self.locations.get(id)?.instruction(self.module)
    }

    /// Returns the instruction that declares the type of a value.
    pub fn type_of(&self, id: u32) -> Option<Instruction<'m>> {
        self.get(self.get(id)?.result_type()?)
    }

    /// Returns the opcode of an instruction whose result is what the opcode says; `None` if a decoration of the
    /// result may [change](super::decorations) it, as one that saturates a conversion does.
    pub fn value_op(&self, i: &Instruction<'_>) -> Option<Op> {
        let changed = || self.changed.get_or_init(|| decorations::changed(self.module));
        i.op().filter(|_| !i.result().is_some_and(|id| changed().contains(id)))
    }

    /// Returns whether a value is the constant 0.
    pub fn is_zero(&self, id: Option<u32>) -> bool {
        let Some(constant) = id.and_then(|id| self.get(id)) else { return false };
        match constant.op() {
            Some(Op::ConstantNull) => true,
            Some(Op::Constant) => constant.words_from(2).all(|word| word == 0),
            _ => false,
        }
    }
}

impl Module {
    /// Returns the index of the definitions of ids.
    #[must_use]
    pub fn definitions(&self) -> Definitions<'_> {
        Definitions::of(self)
    }
}

impl Context for Definitions<'_> {
    fn extended_set(&self, import: u32) -> ExtendedSet {
        self.extended_sets.get(&import).copied().unwrap_or(ExtendedSet::Unknown)
    }

    fn literal_words(&self, value: u32) -> Option<usize> {
        let ty = self.type_of(value).filter(|ty| ty.op() == Some(Op::TypeInt))?;
        match ty.word(1)? {
            1..=32 => Some(1),
            33..=64 => Some(2),
            _ => None,
        }
    }
}

/// Index of the instructions that use each id, in the module's order. The type of a result counts as a use,
/// the result does not.
pub(crate) struct Uses {
    /// Start in `locations` and number of the uses of each id.
    ranges: IdMap<(u32, u32)>,
    locations: Vec<Location>,
}

impl Uses {
    /// # Errors
    ///
    /// Fails like [`grammar::ids`]: a module with unknown instructions cannot be indexed.
    pub(crate) fn of(module: &Module, definitions: &Definitions<'_>) -> Result<Self> {
        let mut ranges = IdMap::<(u32, u32)>::of(module);
        let mut failed = None;
        let mut count = 0_u32;
        let mut visit = |f: &mut dyn FnMut(u32, Location)| {
            for (location, instruction) in all_located(module) {
                let used = grammar::ids(&instruction, definitions, |at, role| {
                    if role != Role::Result
                        && let Some(id) = instruction.word(at)
                    {
                        f(id, location);
                    }
                });
                if let Err(error) = used {
                    failed.get_or_insert(error);
                }
            }
        };
        let mut ids = Vec::new();
        visit(&mut |id, _| {
            let (_, uses) = ranges.get(id).unwrap_or_else(|| {
                ids.push(id);
                (0, 0)
            });
            ranges.insert(id, (0, uses + 1));
            count += 1;
        });
        let mut start = 0;
        for id in ids {
            let (_, uses) = ranges.get(id).unwrap_or_default();
            // The uses are counted again while their locations are stored.
            ranges.insert(id, (start, 0));
            start += uses;
        }
        let mut locations = vec![Location { stream: 0, offset: 0 }; count as usize];
        visit(&mut |id, location| {
            let (start, uses) = ranges.get(id).unwrap_or_default();
            locations[(start + uses) as usize] = location;
            ranges.insert(id, (start, uses + 1));
        });
        failed.map_or(Ok(Self { ranges, locations }), Err)
    }

    pub(crate) fn of_id(&self, id: u32) -> &[Location] {
        let (start, count) = self.ranges.get(id).unwrap_or_default();
        &self.locations[start as usize..(start + count) as usize]
    }
}
