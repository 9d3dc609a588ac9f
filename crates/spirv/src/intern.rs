//! Interning of types and constants, so that each is declared once.

use std::collections::HashMap;

use rspirv::spirv::{Decoration, Op};

use super::grammar::Shape;
use super::ids::IdSet;
use super::module::{Module, Section};
use super::words::Instruction;
use crate::error::Result;

/// Map from types and constants to the ids of their declarations.
///
/// Types that are not aggregates must not be declared twice (2.8). Arrays and structs may be declared
/// several times. They differ by their decorations; structs also by their names, which reflect the types of
/// the source.
#[derive(Debug, Default)]
pub struct Interner {
    ids: HashMap<Box<[u32]>, u32, foldhash::fast::RandomState>,
}

impl Interner {
    /// Creates an interner with the declarations of a module.
    #[must_use]
    pub fn of(module: &Module) -> Self {
        let traits = Traits::of(module);
        let mut interner = Self::default();
        for instruction in module.section(Section::Globals).iter() {
            if let Some((id, op)) = instruction.result().zip(interned(&instruction))
                && let Some(traits) = traits.get(id)
            {
                let key = key(op, &operands(&instruction), traits);
                interner.ids.entry(key).or_insert(id);
            }
        }
        interner
    }

    /// Returns the id of a type without decorations. Declares it at the end of the globals if it is missing.
    ///
    /// # Errors
    ///
    /// Fails like [`Module::fresh_id`].
    pub fn type_id(&mut self, module: &mut Module, op: Op, operands: &[u32]) -> Result<u32> {
        self.insert(module, op, None, operands)
    }

    /// Returns the id of a constant. Declares it at the end of the globals if it is missing.
    ///
    /// # Errors
    ///
    /// Fails like [`Module::fresh_id`].
    pub fn constant_id(
        &mut self,
        module: &mut Module,
        op: Op,
        ty: u32,
        operands: &[u32],
    ) -> Result<u32> {
        self.insert(module, op, Some(ty), operands)
    }

    fn insert(
        &mut self,
        module: &mut Module,
        op: Op,
        ty: Option<u32>,
        operands: &[u32],
    ) -> Result<u32> {
        let all: Vec<_> = ty.into_iter().chain(operands.iter().copied()).collect();
        let key = key(op, &all, &[]);
        if let Some(&id) = self.ids.get(&key) {
            return Ok(id);
        }
        let id = module.fresh_id()?;
        let words = ty.into_iter().chain([id]).chain(operands.iter().copied());
        module.section_mut(Section::Globals).push(op, words);
        self.ids.insert(key, id);
        Ok(id)
    }
}

impl Interner {
    /// Records the id of a type or constant, by its operands (without the result id) and its traits.
    pub fn insert_id(&mut self, op: Op, operands: &[u32], traits: &[u32], id: u32) {
        self.ids.insert(key(op, operands, traits), id);
    }

    /// Returns the id of a type or constant, by its operands and its traits.
    #[must_use]
    pub fn find(&self, op: Op, operands: &[u32], traits: &[u32]) -> Option<u32> {
        self.ids.get(&key(op, operands, traits)).copied()
    }
}

fn key(op: Op, operands: &[u32], traits: &[u32]) -> Box<[u32]> {
    // The length separates operands from traits.
    [&[op as u32, operands.len() as u32], operands, traits].concat().into()
}

/// Returns the operands without the result id.
pub(crate) fn operands(instruction: &Instruction<'_>) -> Vec<u32> {
    let result = usize::from(Shape::of(instruction.opcode()).has_type);
    let words = instruction.words_from(0).enumerate();
    words.filter(|&(at, _)| at != result).map(|(_, word)| word).collect()
}

/// Returns the opcode if instructions with equal operands are interchangeable. Specialization constants are
/// not, because each can have a `SpecId` of its own; variables are not, either.
pub(crate) fn interned(instruction: &Instruction<'_>) -> Option<Op> {
    let op = instruction.op()?;
    let is_interned = match instruction.row() {
        Some(row) => row.global.is_interned(),
        // No type may be declared twice (2.8), even one that is carried only.
        None => Shape::of(instruction.opcode()).is_type,
    };
    is_interned.then_some(op)
}

/// Properties that distinguish types and constants with equal operands: decorations and names of structs.
pub(crate) struct Traits {
    /// Traits of the ids that have any.
    by_id: HashMap<u32, Vec<u32>, foldhash::fast::RandomState>,
    /// Ids with decorations that refer to ids or come from groups. Such an id is never equal to another.
    singular: IdSet,
}

impl Traits {
    pub(crate) fn of(module: &Module) -> Self {
        let mut interned_ids = IdSet::of(module);
        let globals = module.section(Section::Globals).iter();
        for instruction in globals.filter(|instruction| interned(instruction).is_some()) {
            instruction.result().map(|id| interned_ids.insert(id));
        }
        let mut traits = Self { by_id: HashMap::default(), singular: IdSet::of(module) };
        for instruction in module.section(Section::Annotations).iter() {
            match instruction.op() {
                Some(
                    Op::Decorate
                    | Op::DecorateString
                    | Op::MemberDecorate
                    | Op::MemberDecorateString,
                ) => {
                    // The linkage does not affect what a type or constant is.
                    if instruction.word(1) == Some(Decoration::LinkageAttributes as u32) {
                        continue;
                    }
                    if let Some(id) = instruction.word(0).filter(|&id| interned_ids.contains(id)) {
                        let words = traits.by_id.entry(id).or_default();
                        words.push(instruction.words().len() as u32);
                        words.push(instruction.opcode().into());
                        words.extend(instruction.words_from(1));
                    }
                }
                Some(Op::DecorateId) => {
                    instruction.word(0).map(|id| traits.singular.insert(id));
                }
                Some(Op::GroupDecorate) => {
                    instruction.words_from(1).for_each(|id| _ = traits.singular.insert(id));
                }
                // Each target is followed by the number of a member.
                Some(Op::GroupMemberDecorate) => {
                    let members = instruction.words_from(1).step_by(2);
                    members.for_each(|id| _ = traits.singular.insert(id));
                }
                _ => {}
            }
        }
        traits.add_struct_names(module);
        traits
    }

    fn add_struct_names(&mut self, module: &Module) {
        let (mut structs, mut named) = (IdSet::of(module), IdSet::of(module));
        let globals = module.section(Section::Globals).iter();
        for instruction in globals.filter(|i| i.op() == Some(Op::TypeStruct)) {
            instruction.result().map(|id| structs.insert(id));
        }
        for name in module.section(Section::Names).iter().filter(|i| i.op() == Some(Op::Name)) {
            if let Some((id, name)) = name.word(0).zip(name.string(1))
                && structs.contains(id)
                && named.insert(id)
            {
                let words = self.by_id.entry(id).or_default();
                words.extend(super::stream::string_words(source_name(name)));
            }
        }
    }

    /// Returns the traits of an id, or `None` if it is never equal to another.
    pub(crate) fn get(&self, id: u32) -> Option<&[u32]> {
        if self.singular.contains(id) {
            return None;
        }
        Some(self.by_id.get(&id).map_or(&[], Vec::as_slice))
    }
}

/// Returns the name of a struct without the number that LLVM appends if the name occurs twice, as in
/// `struct.Pair.12`.
pub(crate) fn source_name(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}
