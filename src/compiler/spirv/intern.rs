//! Types and constants, each once.

use std::collections::HashMap;

use rspirv::spirv::{Decoration, Op};

use super::grammar::Shape;
use super::index::IdSet;
use super::module::{Module, Section};
use super::words::Instruction;
use crate::error::Result;

/// Finds the id of a type or constant that is there already.
///
/// Types that are no aggregates must not be declared twice (2.8). Arrays and structs may be, and
/// differ by their decorations; structs also by their names, which tell of the source's types.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    ids: HashMap<Box<[u32]>, u32, foldhash::fast::RandomState>,
}

impl Interner {
    /// With what a module declares.
    pub(crate) fn of(module: &Module) -> Self {
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

    /// The id of a type without decorations; declared at the end of the globals if there is none.
    ///
    /// # Errors
    ///
    /// As [`Module::fresh_id`].
    pub(crate) fn type_id(&mut self, module: &mut Module, op: Op, operands: &[u32]) -> Result<u32> {
        self.insert(module, op, None, operands)
    }

    /// The id of a constant; declared at the end of the globals if there is none.
    ///
    /// # Errors
    ///
    /// As [`Module::fresh_id`].
    pub(crate) fn constant_id(
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
    /// Lets others find what `operands`, without that of the result, and `traits` tell.
    pub(crate) fn insert_id(&mut self, op: Op, operands: &[u32], traits: &[u32], id: u32) {
        self.ids.insert(key(op, operands, traits), id);
    }

    pub(crate) fn find(&self, op: Op, operands: &[u32], traits: &[u32]) -> Option<u32> {
        self.ids.get(&key(op, operands, traits)).copied()
    }
}

fn key(op: Op, operands: &[u32], traits: &[u32]) -> Box<[u32]> {
    // The length keeps operands apart from traits.
    [&[op as u32, operands.len() as u32], operands, traits].concat().into()
}

/// The operands without the result's id.
pub(crate) fn operands(instruction: &Instruction<'_>) -> Vec<u32> {
    let result = usize::from(Shape::of(instruction.opcode()).has_type);
    let words = instruction.words_from(0).enumerate();
    words.filter(|&(at, _)| at != result).map(|(_, word)| word).collect()
}

/// The opcode, if an instruction with the same operands says the same. Specialization constants do
/// not, for each can have an id of its own to be set by; variables do not.
pub(crate) fn interned(instruction: &Instruction<'_>) -> Option<Op> {
    let op = instruction.op()?;
    let is_constant = matches!(
        op,
        Op::Undef
            | Op::ConstantTrue
            | Op::ConstantFalse
            | Op::Constant
            | Op::ConstantComposite
            | Op::ConstantSampler
            | Op::ConstantNull
    );
    (is_constant || Shape::of(instruction.opcode()).is_type).then_some(op)
}

/// What tells types and constants of equal operands apart.
pub(crate) struct Traits {
    /// Of those that have any.
    by_id: HashMap<u32, Vec<u32>, foldhash::fast::RandomState>,
    /// Those with decorations that refer to ids or come from groups: never the same as another.
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
                    // Of no matter for what a type or constant is.
                    if instruction.word(1) == Some(Decoration::LinkageAttributes as u32) {
                        continue;
                    }
                    if let Some(id) = instruction.word(0).filter(|&id| interned_ids.contains(id)) {
                        let said = traits.by_id.entry(id).or_default();
                        said.push(instruction.words().len() as u32);
                        said.push(instruction.opcode().into());
                        said.extend(instruction.words_from(1));
                    }
                }
                Some(Op::DecorateId) => {
                    instruction.word(0).map(|id| traits.singular.insert(id));
                }
                Some(Op::GroupDecorate) => {
                    instruction.words_from(1).for_each(|id| _ = traits.singular.insert(id));
                }
                // Each with the number of a member.
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
                let said = self.by_id.entry(id).or_default();
                said.extend(super::stream::string_words(source_name(name)));
            }
        }
    }

    /// `None` for what is never the same as another.
    pub(crate) fn get(&self, id: u32) -> Option<&[u32]> {
        if self.singular.contains(id) {
            return None;
        }
        Some(self.by_id.get(&id).map_or(&[], Vec::as_slice))
    }
}

/// LLVM puts a number behind the name of a struct that it met twice: `struct.Pair.12`.
pub(crate) fn source_name(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}
