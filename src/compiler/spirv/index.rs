//! Indexes of the definitions and uses of ids.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use rspirv::spirv::Op;

use super::grammar::{self, Context, ExtendedSet, Role};
use super::meaning;
use super::module::{Module, Section};
use super::stream::Stream;
use super::words::{Header, Instruction};
use crate::error::Result;

/// Map from ids to values. Small ids are array indexes; a module that is not malicious has only small ids.
/// All other ids are kept in a tree, so that memory is bounded by the module's size and the entries.
#[derive(Clone, Debug)]
pub(crate) struct IdMap<T> {
    dense: Vec<Option<T>>,
    /// Exclusive upper bound of the ids in `dense`, each of which may take memory, used or not.
    limit: usize,
    sparse: BTreeMap<u32, T>,
}

/// Number of ids that may each take memory in any module, however small.
const SMALL: usize = 1 << 10;

/// Returns the exclusive upper bound of the ids that take memory in a module of `words` words, used or not.
/// Instructions that define an id have about four words. A pruned module is small, but its ids are not.
fn dense_limit(words: usize, header: Header) -> usize {
    (words / 3).max(SMALL).min(header.bound as usize)
}

impl<T: Copy> IdMap<T> {
    pub(crate) fn of(module: &Module) -> Self {
        let limit = dense_limit(module.word_count(), module.header);
        Self { dense: Vec::new(), limit, sparse: BTreeMap::new() }
    }

    pub(crate) fn get(&self, id: u32) -> Option<T> {
        match self.dense.get(id as usize) {
            Some(value) => *value,
            None => self.sparse.get(&id).copied(),
        }
    }

    pub(crate) fn insert(&mut self, id: u32, value: T) {
        let index = id as usize;
        if index >= self.limit {
            self.sparse.insert(id, value);
            return;
        }
        if index >= self.dense.len() {
            let len = (index + 1).next_power_of_two().min(self.limit);
            self.dense.resize(len, None);
        }
        self.dense[index] = Some(value);
    }
}

/// A set of ids. Small ids are bits of an array, and all others are kept in a tree, as in [`IdMap`].
#[derive(Clone, Debug)]
pub(crate) struct IdSet {
    dense: Box<[u64]>,
    sparse: BTreeSet<u32>,
}

impl IdSet {
    pub(crate) fn of(module: &Module) -> Self {
        Self::of_words(module.word_count(), module.header)
    }

    /// Creates a set for a module of `words` words.
    pub(crate) fn of_words(words: usize, header: Header) -> Self {
        let count = dense_limit(words, header).div_ceil(u64::BITS as usize);
        Self { dense: vec![0; count].into(), sparse: BTreeSet::new() }
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        match self.dense.get((id / u64::BITS) as usize) {
            Some(bits) => bits & bit(id) != 0,
            None => self.sparse.contains(&id),
        }
    }

    /// Adds an id. Returns whether it is new.
    pub(crate) fn insert(&mut self, id: u32) -> bool {
        let Some(bits) = self.dense.get_mut((id / u64::BITS) as usize) else {
            return self.sparse.insert(id);
        };
        let is_new = *bits & bit(id) == 0;
        *bits |= bit(id);
        is_new
    }
}

/// Returns the bit of an id in its element of [`IdSet::dense`].
fn bit(id: u32) -> u64 {
    1 << (id % u64::BITS)
}

/// Position of an instruction: the number of its stream, as in [`Module::stream`], and its first word there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Location {
    pub(crate) stream: u32,
    pub(crate) offset: u32,
}

impl Location {
    /// Returns the index of the function that contains the instruction; `None` outside of functions.
    pub(crate) fn function(self, module: &Module) -> Option<usize> {
        let index = (self.stream as usize).checked_sub(Section::COUNT)?;
        (index < module.functions.len()).then_some(index)
    }

    pub(crate) fn instruction(self, module: &Module) -> Option<Instruction<'_>> {
        module.stream(self.stream as usize)?.at(self.offset as usize)
    }
}

/// Returns the instructions of a stream with their locations; `stream` is the number of the stream.
pub(crate) fn located(
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
pub(crate) struct Definitions<'m> {
    module: &'m Module,
    locations: IdMap<Location>,
    extended_sets: HashMap<u32, ExtendedSet>,
    /// Ids of results that a decoration may change, once they are asked for.
    changed: OnceCell<IdSet>,
}

impl<'m> Definitions<'m> {
    pub(crate) fn of(module: &'m Module) -> Self {
        let mut locations = IdMap::of(module);
        for (location, instruction) in all_located(module) {
            if let Some(id) = instruction.result() {
                locations.insert(id, location);
            }
        }
        Self { module, locations, extended_sets: module.extended_sets(), changed: OnceCell::new() }
    }

    pub(crate) fn module(&self) -> &'m Module {
        self.module
    }

    pub(crate) fn location(&self, id: u32) -> Option<Location> {
        self.locations.get(id)
    }

    /// Returns whether `location` is in the section of globals, and `id` is defined there, at `location` or
    /// after it.
    pub(crate) fn is_global_from(&self, id: u32, location: Location) -> bool {
        let found = self.location(id);
        location.stream == Section::Globals as u32
            && found.is_some_and(|found| found.stream == location.stream && found >= location)
    }

    pub(crate) fn get(&self, id: u32) -> Option<Instruction<'m>> {
        self.locations.get(id)?.instruction(self.module)
    }

    /// Returns the instruction that declares the type of a value.
    pub(crate) fn type_of(&self, id: u32) -> Option<Instruction<'m>> {
        self.get(self.get(id)?.result_type()?)
    }

    /// Returns the opcode of an instruction whose result is what the opcode says; `None` if a decoration of the
    /// result may [change](super::meaning) it, as one that saturates a conversion does.
    pub(crate) fn value_op(&self, i: &Instruction<'_>) -> Option<Op> {
        let changed = || self.changed.get_or_init(|| meaning::changed(self.module));
        i.op().filter(|_| !i.result().is_some_and(|id| changed().contains(id)))
    }

    /// Returns whether a value is the constant 0.
    pub(crate) fn is_zero(&self, id: Option<u32>) -> bool {
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
    pub(crate) fn definitions(&self) -> Definitions<'_> {
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
