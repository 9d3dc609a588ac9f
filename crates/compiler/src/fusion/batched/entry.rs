//! Entry point of a batch, which selects the arguments of a work-group's member and calls the kernel.

use std::collections::{BTreeMap, BTreeSet};

use kiln_spirv::edit::{Interner, Section, Stream, View};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{BuiltIn, Op};

use super::super::entry::{Entry, decorations, signature, unused};
use super::range::Batch;
use crate::plan::{Argument, Place, Plan};
use crate::transform::built_ins::{BuiltInType, number, vector};
use crate::transform::merge::Whole;
use crate::transform::modes::Modes;
use crate::transform::new_kernel::{NewKernel, NewParameter};

/// Adds the entry point of a batch to the module of its kernel. Scalars that are equal in all launches and are
/// in `constants` are one parameter.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if launches pass different structs by
/// value.
pub(super) fn add(
    whole: &mut Whole,
    plan: &Plan,
    batch: &Batch,
    constants: &BTreeSet<Place>,
    modes: &Modes,
) -> Result<Entry> {
    let Whole { module, functions } = whole;
    let function = functions.first().copied();
    let function = function.ok_or_else(|| Error::unsupported("a kernel has no function"))?;
    let kernel = plan.slots.first().map_or("", |slot| slot.kernel.as_str());
    let name = unused(module, format!("batched_{kernel}"));
    let own = signature(module, function);
    let mut writer = Writer {
        interner: Interner::of(module),
        decorations: decorations(module),
        module,
        parameters: Vec::new(),
        body: Stream::default(),
        bits: Vec::new(),
    };
    writer.member(batch, plan.slots.len())?;
    let void = writer.interner.type_id(writer.module, Op::TypeVoid, &[])?;
    let mut call = vec![void, writer.module.fresh_id()?, function];
    for (argument, &parameter) in own.iter().enumerate() {
        call.push(writer.argument(plan, constants, argument, parameter)?);
    }
    writer.body.push(Op::FunctionCall, call);
    writer.finish(&name, modes)
}

/// Parameter of the entry point.
struct Parameter {
    id: u32,
    ty: u32,
    /// Parameter of the kernel's function whose name and decorations it gets.
    own: u32,
    places: Vec<Place>,
}

struct Writer<'a> {
    module: &'a mut Module,
    interner: Interner,
    decorations: BTreeMap<u32, BTreeSet<Vec<u32>>>,
    parameters: Vec<Parameter>,
    body: Stream,
    /// Whether the bits of the member's number are set, from the lowest bit on.
    bits: Vec<u32>,
}

impl Writer<'_> {
    /// Emits the calculation of the number of the work-group's member, and of its bits.
    fn member(&mut self, batch: &Batch, count: usize) -> Result<()> {
        let (variable, value_type) = vector(self.module, &mut self.interner, BuiltIn::WorkgroupId)?;
        let BuiltInType { ty, component, .. } = value_type;
        let (loaded, mut member) = (self.module.fresh_id()?, self.module.fresh_id()?);
        self.body.push(Op::Load, [ty, loaded, variable]);
        self.body.push(Op::CompositeExtract, [component, member, loaded, batch.dimension as u32]);
        if batch.groups > 1 {
            let groups = self.number(value_type, batch.groups)?;
            member = self.binary(Op::UDiv, component, member, groups)?;
        }
        let bool = self.interner.type_id(self.module, Op::TypeBool, &[])?;
        let zero = self.number(value_type, 0)?;
        let bits = (0..usize::BITS).map(|bit| 1 << bit).take_while(|&bit| bit < count);
        for bit in bits {
            let bit = self.number(value_type, bit)?;
            let masked = self.binary(Op::BitwiseAnd, component, member, bit)?;
            let is_set = self.binary(Op::INotEqual, bool, masked, zero)?;
            self.bits.push(is_set);
        }
        Ok(())
    }

    /// Returns the id to pass to the kernel's function for an argument: that of the work-group's member. `own`
    /// and `ty` are the id and the type of the function's parameter.
    fn argument(
        &mut self,
        plan: &Plan,
        constants: &BTreeSet<Place>,
        argument: usize,
        (own, ty): (u32, u32),
    ) -> Result<u32> {
        let places = (0..plan.slots.len()).map(|slot| Place { slot, argument });
        let values = plan.slots.iter().map(|slot| slot.arguments.get(argument));
        let values = values.collect::<Option<Vec<_>>>();
        let values = values.ok_or_else(|| Error::unsupported("a launch has too few arguments"))?;
        let are_fixed = places.clone().all(|place| constants.contains(&place));
        let are_equal = values.iter().all(|value| *value == values[0]);
        let is_common = match values[0] {
            Argument::Scalar(_) => are_equal && are_fixed,
            _ => are_equal,
        };
        let first = self.parameters.len();
        let mut members = Vec::new();
        for (place, value) in places.zip(&values) {
            let is_same = |known: &&mut Parameter| {
                let Place { slot, .. } = known.places[0];
                is_common || (matches!(value, Argument::Buffer(_)) && values[slot] == *value)
            };
            if let Some(known) = self.parameters[first..].iter_mut().find(is_same) {
                known.places.push(place);
                members.push(known.id);
                continue;
            }
            let id = self.module.fresh_id()?;
            self.parameters.push(Parameter { id, ty, own, places: vec![place] });
            members.push(id);
        }
        self.selection(&members, ty, matches!(values[0], Argument::Scalar(_)))
    }

    /// Emits the selection of the member's value among those of all members. Returns its id.
    fn selection(&mut self, members: &[u32], ty: u32, is_value: bool) -> Result<u32> {
        let mut left = members.to_vec();
        for bit in self.bits.clone() {
            let mut conditions = None;
            let mut selected = Vec::new();
            for pair in left.chunks(2) {
                selected.push(match *pair {
                    [one, other] if one != other => {
                        let condition = match conditions {
                            Some(known) => known,
                            None => *conditions.insert(self.condition(bit, ty, is_value)?),
                        };
                        let id = self.module.fresh_id()?;
                        self.body.push(Op::Select, [ty, id, condition, other, one]);
                        id
                    }
                    [one, ..] => one,
                    [] => continue,
                });
            }
            left = selected;
        }
        left.first().copied().ok_or_else(|| Error::unsupported("there are no launches to fuse"))
    }

    /// Returns the condition of a selection of values of a type: one for each component of a vector.
    fn condition(&mut self, bit: u32, ty: u32, is_value: bool) -> Result<u32> {
        let mut types = self.module.section(Section::Globals).iter();
        let known = types.find(|i| i.result() == Some(ty));
        match known.map(|known| known.view()) {
            Some(View::TypeInt { .. } | View::TypeFloat { .. }) => Ok(bit),
            Some(View::TypePointer { .. }) if !is_value => Ok(bit),
            Some(View::TypeVector { count, .. }) if count <= 16 => {
                let bool = self.interner.type_id(self.module, Op::TypeBool, &[])?;
                let vector = self.interner.type_id(self.module, Op::TypeVector, &[bool, count])?;
                let id = self.module.fresh_id()?;
                let parts = vec![bit; count as usize];
                let words = [vector, id].into_iter().chain(parts);
                self.body.push(Op::CompositeConstruct, words);
                Ok(id)
            }
            _ => Err(Error::unsupported(
                "launches that pass different structs by value are not batched",
            )),
        }
    }

    /// Adds the kernel, whose parameters have the names and the decorations of the launches' kernel.
    fn finish(mut self, name: &str, modes: &Modes) -> Result<Entry> {
        let names = self.module.section(Section::Names).iter();
        let names = names.filter_map(|i| i.named().map(|(id, name)| (id, name.to_owned())));
        let names: Vec<_> = names.collect();
        let parameters = self.parameters.iter().map(|parameter| NewParameter {
            id: parameter.id,
            ty: parameter.ty,
            decorations: self.decorations.get(&parameter.own),
            name: names.iter().find(|(id, _)| *id == parameter.own).map(|(_, name)| &**name),
        });
        let parameters: Vec<_> = parameters.collect();
        let kernel = NewKernel { name, parameters: &parameters, label: None, modes };
        kernel.add(self.module, &mut self.interner, &[&self.body])?;
        let parameters = self.parameters.into_iter().map(|parameter| parameter.places).collect();
        Ok(Entry { name: name.to_owned(), parameters })
    }

    fn number(&mut self, value_type: BuiltInType, value: usize) -> Result<u32> {
        number(self.module, &mut self.interner, value_type, value as u64)
    }

    fn binary(&mut self, op: Op, ty: u32, a: u32, b: u32) -> Result<u32> {
        let id = self.module.fresh_id()?;
        self.body.push(op, [ty, id, a, b]);
        Ok(id)
    }
}
