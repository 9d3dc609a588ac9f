//! Repetition: work-items that run several work-items of a launch, one after the other.
//!
//! The kernel's function, which gets the global id as its last parameter, is called by a new function in a
//! loop over linear ids:
//!
//! ```text
//! for (id = first; id < end; id += step)
//!     kernel(arguments, global id of the linear id `id`)
//! ```

use kiln_spirv::edit::{Function, Instruction, Interner, Linkage, Section, Stream};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{BuiltIn, FunctionControl, LinkageType, LoopControl, Op};

use super::built_ins::{BuiltInType, Global, number, vector};
use crate::NdRange;
use crate::analysis::declaration::Declaration;
use crate::ranges::{Assignment, Mapping, Sizes, padded};

/// Returns the function that a slot's module exports.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if there is none.
pub(crate) fn kernel(module: &Module) -> Result<u32> {
    let linkages = module.linkages();
    let export = linkages.iter().find(|linkage| linkage.kind == LinkageType::Export);
    let export = export.map(|linkage| linkage.target);
    export.ok_or_else(|| Error::unsupported("a kernel has no function"))
}

/// Adds a function that runs the work-items of a slot, and exports it in place of the kernel's function.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if the size of work-groups is not known.
pub(crate) fn repeat(
    module: &mut Module,
    kernel: u32,
    mapping: &Mapping,
    whole: &NdRange,
) -> Result<()> {
    let function = module.functions.iter().find(|known| known.id == kernel);
    let function = function.ok_or_else(|| Error::unsupported("a kernel has no function"))?;
    let own = Declaration::of(&function.body).parameters;
    let mut interner = Interner::of(module);
    let (_, value_type) = vector(module, &mut interner, BuiltIn::GlobalInvocationId)?;
    let mut writer = Writer { module, interner, value_type, body: Stream::default() };
    let (void, id) =
        (writer.interner.type_id(writer.module, Op::TypeVoid, &[])?, writer.module.fresh_id()?);
    let passed = writer.parameters(void, id, &own)?;
    let entry = writer.label()?;
    let turns = writer.ids(mapping.assignment, whole)?;
    let call = Call { kernel, void, passed, sizes: padded(mapping.range.global(), 1) };
    writer.turns(entry, turns, &call)?;
    let Writer { body, .. } = writer;
    module.functions.push(Function { id, body });
    export_instead(module, kernel, id);
    Ok(())
}

/// Call of a kernel's function.
struct Call {
    kernel: u32,
    void: u32,
    passed: Vec<u32>,
    /// Global sizes of the launch.
    sizes: Sizes,
}

struct Writer<'a> {
    module: &'a mut Module,
    interner: Interner,
    /// Type of global ids.
    value_type: BuiltInType,
    body: Stream,
}

impl Writer<'_> {
    /// Begins the new function. Its parameters are those of the kernel's function but the last one, which is
    /// the global id. Returns their ids.
    fn parameters(&mut self, void: u32, id: u32, own: &[(u32, u32)]) -> Result<Vec<u32>> {
        let (_, own) = own.split_last().ok_or_else(|| Error::unsupported("a kernel gets no id"))?;
        let types: Vec<_> = [void].into_iter().chain(own.iter().map(|(_, ty)| *ty)).collect();
        let ty = self.interner.type_id(self.module, Op::TypeFunction, &types)?;
        self.body.push(Op::Function, [void, id, FunctionControl::INLINE.bits(), ty]);
        let mut passed = Vec::new();
        for &(original, ty) in own {
            let id = self.module.fresh_id()?;
            self.body.push(Op::FunctionParameter, [ty, id]);
            describe_alike(self.module, original, id);
            passed.push(id);
        }
        Ok(passed)
    }

    /// Emits the calculation of a work-item's first linear id, of the end of its linear ids, and of their step.
    fn ids(&mut self, assignment: Assignment, whole: &NdRange) -> Result<[u32; 3]> {
        match assignment {
            Assignment::Portion { count } => {
                let local = whole.local().map(|local| padded(local, 1));
                let local = local
                    .ok_or_else(|| Error::unsupported("the size of work-groups is not known"))?;
                let global = padded(whole.global(), 1);
                let groups = std::array::from_fn(|d| global[d] / local[d].max(1));
                let group = self.linear(BuiltIn::WorkgroupId, groups)?;
                let lane = self.linear(BuiltIn::LocalInvocationId, local)?;
                let count = self.number(count)?;
                let first = self.binary(Op::IMul, group, count)?;
                let end = self.binary(Op::IAdd, first, count)?;
                let start = self.binary(Op::IAdd, first, lane)?;
                let step = self.number(local.iter().map(|&size| size as u64).product())?;
                Ok([start, end, step])
            }
            Assignment::Run { count, lead, step } => {
                let global = Global::of(self.module, &mut self.interner)?;
                let own =
                    global.linear_id(self.module, &mut self.interner, &mut self.body, whole)?;
                let span = count.checked_mul(step);
                let span = span.ok_or_else(|| Error::unsupported("a launch is too large"))?;
                let (lead, span) = (self.number(lead)?, self.number(span)?);
                let start = self.binary(Op::IMul, own, lead)?;
                let end = self.binary(Op::IAdd, start, span)?;
                Ok([start, end, self.number(step)?])
            }
            Assignment::Single | Assignment::Strided { .. } => {
                Err(Error::unsupported("a work-item of a launch is not repeated"))
            }
        }
    }

    /// Writes the loop that calls the kernel's function, and the end of the function. `entry` is the block
    /// before the loop.
    fn turns(&mut self, entry: u32, [start, end, step]: [u32; 3], call: &Call) -> Result<()> {
        let int = self.value_type.component;
        let [head, inside, latch, after] = self.fresh()?;
        let [id, next, is_inside] = self.fresh()?;
        let bool = self.interner.type_id(self.module, Op::TypeBool, &[])?;
        self.body.push(Op::Branch, [head]);
        self.body.push(Op::Label, [head]);
        self.body.push(Op::Phi, [int, id, start, entry, next, latch]);
        self.body.push(Op::ULessThan, [bool, is_inside, id, end]);
        self.body.push(Op::LoopMerge, [after, latch, LoopControl::NONE.bits()]);
        self.body.push(Op::BranchConditional, [is_inside, inside, after]);
        self.body.push(Op::Label, [inside]);
        let Self { module, interner, body, value_type } = self;
        let global = value_type.id_vector(module, interner, body, id, call.sizes)?;
        let called = self.module.fresh_id()?;
        let words = [call.void, called, call.kernel].into_iter();
        self.body.push(Op::FunctionCall, words.chain(call.passed.iter().copied()).chain([global]));
        self.body.push(Op::Branch, [latch]);
        self.body.push(Op::Label, [latch]);
        self.body.push(Op::IAdd, [int, next, id, step]);
        self.body.push(Op::Branch, [head]);
        self.body.push(Op::Label, [after]);
        self.body.push(Op::Return, []);
        self.body.push(Op::FunctionEnd, []);
        Ok(())
    }

    /// Emits the calculation of a linear id from the ids that a built-in variable holds.
    fn linear(&mut self, built_in: BuiltIn, sizes: Sizes) -> Result<u32> {
        let (variable, value_type) = vector(self.module, &mut self.interner, built_in)?;
        if value_type.ty != self.value_type.ty {
            return Err(Error::unsupported("ids of work-items have different types"));
        }
        let loaded = self.module.fresh_id()?;
        self.body.push(Op::Load, [value_type.ty, loaded, variable]);
        let mut sum = self.number(0)?;
        for d in (0..3).rev().filter(|&d| d == 0 || sizes[d] > 1) {
            let size = self.number(sizes[d] as u64)?;
            let part = self.module.fresh_id()?;
            self.body.push(Op::CompositeExtract, [value_type.component, part, loaded, d as u32]);
            let product = self.binary(Op::IMul, sum, size)?;
            sum = self.binary(Op::IAdd, product, part)?;
        }
        Ok(sum)
    }

    fn number(&mut self, value: u64) -> Result<u32> {
        number(self.module, &mut self.interner, self.value_type, value)
    }

    fn binary(&mut self, op: Op, a: u32, b: u32) -> Result<u32> {
        let id = self.module.fresh_id()?;
        self.body.push(op, [self.value_type.component, id, a, b]);
        Ok(id)
    }

    fn label(&mut self) -> Result<u32> {
        let id = self.module.fresh_id()?;
        self.body.push(Op::Label, [id]);
        Ok(id)
    }

    fn fresh<const N: usize>(&mut self) -> Result<[u32; N]> {
        let mut ids = [0; N];
        for id in &mut ids {
            *id = self.module.fresh_id()?;
        }
        Ok(ids)
    }
}

/// Gives a parameter the names and decorations of another one.
fn describe_alike(module: &mut Module, original: u32, new: u32) {
    for section in [Section::Names, Section::Annotations] {
        let stream = module.section(section);
        let is_own = |i: &Instruction<'_>| {
            matches!(i.op(), Some(Op::Name | Op::Decorate)) && i.target() == Some(original)
        };
        let copies: Vec<_> = stream
            .iter()
            .filter(is_own)
            .filter_map(|i| Some((i.op()?, i.words_from(1).collect::<Vec<_>>())))
            .collect();
        for (op, words) in copies {
            module.section_mut(section).push(op, [new].into_iter().chain(words));
        }
    }
}

/// Exports a function in place of another one.
fn export_instead(module: &mut Module, original: u32, new: u32) {
    let mut annotations = Stream::default();
    for i in module.section(Section::Annotations).iter() {
        let is_export = Linkage::of(&i).is_some_and(|linkage| {
            linkage.kind == LinkageType::Export && linkage.target == original
        });
        if is_export {
            annotations.push(Op::Decorate, [new].into_iter().chain(i.words_from(1)));
        } else {
            annotations.push_instruction(&i);
        }
    }
    *module.section_mut(Section::Annotations) = annotations;
}
