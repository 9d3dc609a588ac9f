//! Rewrite of accesses to buffers into accesses to a local variable of the work-group.
//!
//! The parameter becomes a pointer to the variable. A new parameter after all others holds the start of the
//! parameter's memory, in elements of the variable. That start is mostly before the variable, because the
//! variable is only the [part](super::local_legality) of one work-group.
//!
//! Instructions that calculated addresses calculate element indexes instead, and each access goes to the
//! element of its index. So no pointer outside the variable is ever formed.

use std::collections::HashMap;

use kiln_spirv::edit::{Address, Definitions, Instruction, Interner, Stream, View, located};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{Capability, Op, StorageClass};

use super::examined::Examined;
use crate::analysis::access::{Layouts, Parts};
use crate::analysis::constants::constant;
use crate::analysis::declaration::Declaration;
use crate::analysis::pointer_uses::{AccessOperands, Uses, uses};
use crate::analysis::vector_access::VectorAccess;
use crate::plan::Memory;
use crate::transform::merge::require;

/// Parameter that becomes local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    pub(super) parameter: usize,
    pub(super) memory: Memory,
    /// Size of an element in bytes: 4 or 1.
    pub(super) unit: u32,
    /// Start of the parameter's memory, in bytes from the part of the first work-group.
    pub(super) first: i128,
}

/// Number of bytes by which an address is moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Steps {
    pub(super) constant: i128,
    /// Ids of indexes, each with the number of bytes that it is multiplied by.
    pub(super) indexes: Vec<(u32, i128)>,
}

impl Steps {
    /// Returns the steps of an instruction that calculates an address.
    pub(super) fn of_chain(
        definitions: &Definitions<'_>,
        layouts: &Layouts,
        i: &Instruction<'_>,
    ) -> Option<Self> {
        let mut steps = Self::default();
        let (base, element, indexes) = match i.view() {
            View::Chain { base, indexes } => (base, None, indexes),
            View::PtrChain { base, element, indexes } => (base, Some(element), indexes),
            _ if i.row()?.address == Address::Part => return None,
            _ => return Some(steps),
        };
        let mut ty = definitions.type_of(base)?.pointee()?;
        if let Some(element) = element {
            steps.add(definitions, element, layouts.size(ty)?)?;
        }
        for index in indexes.iter() {
            ty = match &layouts.get(ty)?.parts {
                Parts::Equal(part, stride) => {
                    steps.add(definitions, index, *stride)?;
                    *part
                }
                Parts::Members(members) => {
                    let at = usize::try_from(constant(definitions, index)?).ok()?;
                    let &(member, start) = members.get(at)?;
                    steps.constant = steps.constant.checked_add(start)?;
                    member
                }
                Parts::None => return None,
            };
        }
        Some(steps)
    }

    /// Returns the steps of an access. They are 0 except for functions such as `vloadn` and `vstoren`, which
    /// take an offset in vectors.
    pub(super) fn of_access(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Option<Self> {
        let mut steps = Self::default();
        if let Some(access) = VectorAccess::of(definitions, i) {
            steps.add(definitions, access.offset, access.span?.size)?;
        }
        Some(steps)
    }

    fn add(&mut self, definitions: &Definitions<'_>, index: u32, stride: i128) -> Option<()> {
        if let Some(constant) = constant(definitions, index) {
            self.constant = self.constant.checked_add(constant.checked_mul(stride)?)?;
        } else {
            let ty = definitions.type_of(index).filter(|ty| ty.op() == Some(Op::TypeInt))?;
            ty.width().filter(|width| matches!(width, 8 | 16 | 32 | 64))?;
            self.indexes.push((index, stride));
        }
        Some(())
    }

    fn is_multiple_of(&self, unit: i128) -> bool {
        self.constant % unit == 0 && self.indexes.iter().all(|(_, stride)| stride % unit == 0)
    }
}

/// Returns the words of a number of `width` bits, modulo two to the power of `width`.
pub(super) fn literal(value: i128, width: u32) -> Vec<u32> {
    let words = [value as u32, (value >> 32) as u32];
    words[..(width as usize / 32).clamp(1, 2)].to_vec()
}

/// Checks that a parameter is only used for loads and stores that can go to local memory. Returns the size in
/// bytes that its elements can have. `first` is the start of its memory.
///
/// # Errors
///
/// The reason why not, to be written after the kernel's name.
pub(super) fn check(
    definitions: &Definitions<'_>,
    examined: &Examined,
    parameter: usize,
    first: i128,
) -> Result<u32, String> {
    let function = examined.function;
    let is_known = |offset: u32| examined.movable.contains_key(&offset);
    let Uses { pointers, variables, .. } = uses(definitions, function, parameter, is_known)?;
    let module = definitions.module();
    let layouts = Layouts::of(module, definitions);
    let body = module.functions.iter().find(|known| known.id == function);
    let mut is_in_words = first % 4 == 0;
    for i in body.into_iter().flat_map(|function| function.body.iter()) {
        let variable_operand = match i.view() {
            View::Load { pointer, .. } | View::Store { pointer, .. } => Some(pointer),
            _ => None,
        };
        if let Some(variable) = variable_operand.filter(|id| variables.contains(id))
            && definitions.get(variable).and_then(|i| i.op()) != Some(Op::Variable)
        {
            return Err(format!("uses its address in {}", i.name()));
        }
        let steps = match AccessOperands::of(definitions, &i) {
            Some(operands) if pointers.contains(&operands.pointer) => {
                Steps::of_access(definitions, &i)
            }
            None if i.result().is_some_and(|id| pointers.contains(&id)) => {
                Steps::of_chain(definitions, &layouts, &i)
            }
            _ => continue,
        };
        let steps = steps.ok_or_else(|| format!("computes its address in {}", i.name()))?;
        is_in_words &= steps.is_multiple_of(4);
    }
    Ok(if is_in_words { 4 } else { 1 })
}

/// Rewrites a function to use local memory in place of buffers.
///
/// # Errors
///
/// Fails where [`check`] fails, and if ids run out.
pub(super) fn share(module: &mut Module, function: u32, all: &[Shared]) -> Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    let snapshot = module.clone();
    let definitions = snapshot.definitions();
    let all_uses =
        all.iter().map(|shared| uses(&definitions, function, shared.parameter, |_| true));
    let all_uses = all_uses.collect::<Result<Vec<_>, _>>().map_err(Error::unsupported)?;
    let at = module.functions.iter().position(|known| known.id == function);
    let at = at.ok_or_else(|| Error::unsupported("a kernel has no function"))?;
    let body = &snapshot.functions[at].body;
    let layouts = Layouts::of(&snapshot, &definitions);
    let mut interner = Interner::of(module);
    let width = layouts.address as u32 * 8;
    if width == 64 {
        require(module, Capability::Int64);
    }
    let int = interner.type_id(module, Op::TypeInt, &[width, 0])?;

    let mut declaration = Declaration::of(body);
    let mut writer = Writer { module, interner, int, width, new: Stream::default() };
    let mut parts = Vec::new();
    for (shared, uses) in all.iter().zip(&all_uses) {
        parts.push(writer.part(shared, uses, &mut declaration)?);
    }
    for (location, i) in located((0, body)) {
        if declaration.rewrite(&i, writer.module, &mut writer.interner, &mut writer.new)? {
            continue;
        }
        let operands = AccessOperands::of(&definitions, &i);
        let is_own = |part: &&mut Part<'_>| {
            let pointer = operands.as_ref().map(|operands| operands.pointer);
            let is_access = pointer.is_some_and(|id| part.uses.pointers.contains(&id));
            is_access || part.uses.dropped.contains(&location.offset)
        };
        let Some(part) = parts.iter_mut().find(is_own) else {
            writer.new.push_instruction(&i);
            continue;
        };
        if !part.uses.dropped.contains(&location.offset) {
            let operands =
                operands.ok_or_else(|| Error::unsupported("the offset of an access is unknown"))?;
            writer.access(&definitions, part, &i, &operands)?;
        } else {
            writer.address(&definitions, &layouts, part, &i)?;
        }
    }
    let new = writer.new;
    module.functions[at].body = new;
    Ok(())
}

/// State of a parameter while its function is rewritten.
struct Part<'a> {
    unit: u32,
    /// Pointer to the variable.
    pointer: u32,
    uses: &'a Uses,
    /// Ids of the element indexes that replace addresses, and of the variables that these are spilled to, by
    /// the original id.
    numbers: HashMap<u32, u32>,
}

impl Part<'_> {
    /// Returns the id that replaces an address, or a variable for addresses.
    fn number(&self, id: u32) -> Result<u32> {
        let known = self.numbers.get(&id).copied();
        known.ok_or_else(|| Error::unsupported("an address is used before it is computed"))
    }
}

struct Writer<'m> {
    module: &'m mut Module,
    interner: Interner,
    /// Type of element indexes, and its width in bits.
    int: u32,
    width: u32,
    new: Stream,
}

impl Writer<'_> {
    /// Puts a pointer to local memory in place of the parameter of a buffer, and adds a parameter for the
    /// origin.
    fn part<'a>(
        &mut self,
        shared: &Shared,
        uses: &'a Uses,
        declaration: &mut Declaration,
    ) -> Result<Part<'a>> {
        let Shared { parameter, unit, .. } = *shared;
        let ty = self.element(unit)?;
        let ty = self.pointer(ty)?;
        let (pointer, origin) = (self.module.fresh_id()?, self.module.fresh_id()?);
        let own = declaration.parameters.get_mut(parameter);
        let own = own.ok_or_else(|| Error::unsupported("a kernel has too few parameters"))?;
        let original = std::mem::replace(own, (pointer, ty)).0;
        declaration.parameters.push((origin, self.int));
        Ok(Part { unit, pointer, uses, numbers: HashMap::from([(original, origin)]) })
    }

    /// Rewrites an instruction that calculates, spills or reloads an address.
    fn address(
        &mut self,
        definitions: &Definitions<'_>,
        layouts: &Layouts,
        part: &mut Part<'_>,
        i: &Instruction<'_>,
    ) -> Result<()> {
        let uses = part.uses;
        match i.view() {
            View::Variable { .. } => {
                let operands = [StorageClass::Function as u32, self.int];
                let ty = self.interner.type_id(self.module, Op::TypePointer, &operands)?;
                let id = self.module.fresh_id()?;
                self.new.push(Op::Variable, [ty, id, StorageClass::Function as u32]);
                i.result().map(|own| part.numbers.insert(own, id));
            }
            View::Store { pointer, value, .. } => {
                let (variable, value) = (part.number(pointer)?, part.number(value)?);
                self.new.push(Op::Store, [variable, value]);
            }
            View::Load { pointer, .. } => {
                let (variable, id) = (part.number(pointer)?, self.module.fresh_id()?);
                self.new.push(Op::Load, [self.int, id, variable]);
                i.result().map(|own| part.numbers.insert(own, id));
            }
            _ => {
                let own = i.result().filter(|id| uses.pointers.contains(id));
                // The other instructions mark the lifetime of variables, or announce a read, and are dropped.
                let from = i.derived_from().filter(|from| !uses.variables.contains(from));
                if let Some((own, from)) = own.zip(from) {
                    let steps = Steps::of_chain(definitions, layouts, i);
                    let steps = steps
                        .ok_or_else(|| Error::unsupported("the offset of an address is unknown"))?;
                    let from = part.number(from)?;
                    let number = self.add_steps(definitions, from, &steps, part.unit)?;
                    part.numbers.insert(own, number);
                }
            }
        }
        Ok(())
    }

    /// Rewrites a load or store to access the variable.
    fn access(
        &mut self,
        definitions: &Definitions<'_>,
        part: &Part<'_>,
        i: &Instruction<'_>,
        operands: &AccessOperands,
    ) -> Result<()> {
        let op =
            i.op().ok_or_else(|| Error::unsupported("an access is not a known instruction"))?;
        let steps = Steps::of_access(definitions, i);
        let steps =
            steps.ok_or_else(|| Error::unsupported("the offset of an access is unknown"))?;
        let own = operands.pointer;
        let from = part.number(own)?;
        let number = self.add_steps(definitions, from, &steps, part.unit)?;
        let element = self.element(part.unit)?;
        let (ty, mut pointer) = (self.pointer(element)?, self.module.fresh_id()?);
        self.new.push(Op::InBoundsPtrAccessChain, [ty, pointer, part.pointer, number]);
        let pointee = definitions.type_of(own).and_then(|ty| ty.pointee());
        let pointee = pointee.ok_or_else(|| Error::unsupported("a pointer has no type"))?;
        if pointee != element {
            let (ty, id) = (self.pointer(pointee)?, self.module.fresh_id()?);
            self.new.push(Op::Bitcast, [ty, id, pointer]);
            pointer = id;
        }
        let (module, interner) = (&mut *self.module, &mut self.interner);
        let words = operands.readdressed(definitions, i, pointer, module, interner)?;
        self.new.push(op, words);
        Ok(())
    }

    /// Returns an element index moved by the steps.
    fn add_steps(
        &mut self,
        definitions: &Definitions<'_>,
        from: u32,
        steps: &Steps,
        unit: u32,
    ) -> Result<u32> {
        let mut sum = from;
        for &(index, stride) in &steps.indexes {
            let mut index = self.widened(definitions, index)?;
            let stride = stride / i128::from(unit);
            if stride != 1 {
                let stride = self.number(stride)?;
                index = self.binary(Op::IMul, index, stride)?;
            }
            sum = self.binary(Op::IAdd, sum, index)?;
        }
        match steps.constant / i128::from(unit) {
            0 => Ok(sum),
            constant => {
                let constant = self.number(constant)?;
                self.binary(Op::IAdd, sum, constant)
            }
        }
    }

    /// Converts a signed index to the width of addresses.
    fn widened(&mut self, definitions: &Definitions<'_>, index: u32) -> Result<u32> {
        let width = definitions.type_of(index).and_then(|ty| ty.width()).unwrap_or_default();
        let op = if width < self.width { Op::SConvert } else { Op::UConvert };
        if definitions.get(index).and_then(|i| i.result_type()) == Some(self.int) {
            return Ok(index);
        }
        let id = self.module.fresh_id()?;
        let op = if width == self.width { Op::Bitcast } else { op };
        self.new.push(op, [self.int, id, index]);
        Ok(id)
    }

    /// Returns the constant of a number, in the type of element indexes.
    fn number(&mut self, value: i128) -> Result<u32> {
        let words = literal(value, self.width);
        self.interner.constant_id(self.module, Op::Constant, self.int, &words)
    }

    fn binary(&mut self, op: Op, a: u32, b: u32) -> Result<u32> {
        let id = self.module.fresh_id()?;
        self.new.push(op, [self.int, id, a, b]);
        Ok(id)
    }

    fn element(&mut self, unit: u32) -> Result<u32> {
        if unit == 1 {
            require(self.module, Capability::Int8);
        }
        self.interner.type_id(self.module, Op::TypeInt, &[unit * 8, 0])
    }

    fn pointer(&mut self, pointee: u32) -> Result<u32> {
        let operands = [StorageClass::Workgroup as u32, pointee];
        self.interner.type_id(self.module, Op::TypePointer, &operands)
    }
}
