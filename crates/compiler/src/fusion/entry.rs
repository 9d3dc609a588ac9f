//! Entry point of the fused kernel, which calls the slots' kernels in order.

use std::collections::{BTreeMap, BTreeSet};

use kiln_spirv::edit::{Interner, Section, Stream, View, literal_words};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{
    Capability, Decoration, FunctionParameterAttribute as Attribute, MemorySemantics, Op, Scope,
    StorageClass,
};

use super::legality::Judgement;
use super::local_legality::Locality;
use super::local_memory::{self, Shared};
use super::promote::{Private, element_width};
use crate::analysis::constants;
use crate::analysis::declaration::Declaration;
use crate::plan::{Argument, Memory, Place, Plan, Region};
use crate::ranges::Ranges;
use crate::transform::built_ins::{Global, group_id};
use crate::transform::merge::{Whole, require};
use crate::transform::modes::Modes;
use crate::transform::new_kernel::{NewKernel, NewParameter};
use crate::transform::written;

/// Decisions of the earlier steps, from which the entry point is generated.
pub(super) struct Decisions<'a> {
    pub(super) plan: &'a Plan,
    pub(super) ranges: &'a Ranges,
    /// Scalars that are fixed at their values.
    pub(super) constants: &'a BTreeSet<Place>,
    /// Sets of scalars that have the same value.
    pub(super) equal: &'a BTreeSet<BTreeSet<Place>>,
    pub(super) judgements: &'a [Judgement],
    /// For each slot, the parameters some of whose accesses go to variables.
    pub(super) privates: &'a [Vec<Private>],
    /// For each slot, the parameters that are local memory.
    pub(super) shared: &'a [Vec<Shared>],
    /// The slots before which there is a barrier.
    pub(super) barriers: &'a BTreeSet<usize>,
    pub(super) modes: &'a Modes,
    /// Number of items whose work one work-item does, each by functions of its own.
    pub(super) items: usize,
}

/// Name of the new kernel, and the arguments that each of its parameters stands for.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) parameters: Vec<Vec<Place>>,
}

/// Maximum length of the new kernel's name, in bytes; the names of further kernels are left out.
const MAX_NAME_BYTES: usize = 120;

/// Adds the new kernel to a module.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if the module is damaged.
pub(super) fn add(whole: &mut Whole, decisions: &Decisions<'_>) -> Result<Entry> {
    let name = unused_name(&whole.module, decisions.plan);
    let mut writer = Writer {
        signatures: whole.functions.iter().map(|&f| signature(&whole.module, f)).collect(),
        decorations: decorations(&whole.module),
        interner: Interner::of(&whole.module),
        module: &mut whole.module,
        decisions,
        parameters: Vec::new(),
        variables: Stream::default(),
        private: BTreeMap::new(),
        local: BTreeMap::new(),
        item: 0,
    };
    let mut body = Stream::default();
    let void = writer.interner.type_id(writer.module, Op::TypeVoid, &[])?;
    for (slot, functions) in whole.functions.chunks(decisions.items).enumerate() {
        if decisions.barriers.contains(&slot) {
            writer.barrier(&mut body)?;
        }
        let guard = decisions.ranges.slots[slot].guard;
        let guard = guard.map(|count| writer.guard(&mut body, count)).transpose()?;
        for (item, &function) in functions.iter().enumerate() {
            writer.item = item;
            let words = writer.call(&mut body, void, slot, function)?;
            body.push(Op::FunctionCall, words);
        }
        if let Some(after) = guard {
            body.push(Op::Branch, [after]);
            body.push(Op::Label, [after]);
        }
    }
    writer.finish(&body, &name)
}

/// Parameter of the new kernel.
struct Parameter {
    id: u32,
    ty: u32,
    places: Vec<Place>,
    region: Option<Region>,
    /// Decorations that are common to all parameters of slots to which this parameter is passed.
    decorations: BTreeSet<Vec<u32>>,
    name: Option<String>,
}

struct Writer<'a> {
    module: &'a mut Module,
    interner: Interner,
    decisions: &'a Decisions<'a>,
    /// Ids and types of the parameters of each slot's functions, one function per item.
    signatures: Vec<Vec<(u32, u32)>>,
    decorations: BTreeMap<u32, BTreeSet<Vec<u32>>>,
    parameters: Vec<Parameter>,
    /// Declarations of private variables.
    variables: Stream,
    /// Local variables, by the memory that they replace.
    local: BTreeMap<Memory, u32>,
    /// Private variables, by the memory that they replace and by the item.
    private: BTreeMap<(Memory, usize), u32>,
    /// Index of the item, within its work-item, whose calls are being written.
    item: usize,
}

impl Writer<'_> {
    /// Returns the words of a call of a slot's function.
    fn call(
        &mut self,
        body: &mut Stream,
        void: u32,
        slot: usize,
        function: u32,
    ) -> Result<Vec<u32>> {
        let decisions = self.decisions;
        let mut words = vec![void, self.module.fresh_id()?, function];
        for (argument, value) in decisions.plan.slots[slot].arguments.iter().enumerate() {
            words.push(self.argument(body, Place { slot, argument }, value)?);
        }
        let appended = decisions.privates[slot].iter().filter(|private| private.replaced.is_none());
        for (at, private) in appended.enumerate() {
            let at = decisions.plan.slots[slot].arguments.len() + at;
            let (_, ty) = self.slot_parameter(Place { slot, argument: at })?;
            let variable = self.variable(private.memory)?;
            words.push(self.cast(body, variable, ty)?);
        }
        for shared in &decisions.shared[slot] {
            words.push(self.origin(body, shared)?);
        }
        Ok(words)
    }

    /// Adds a barrier, at which the work-items of a work-group wait for each other and see what the others
    /// wrote. All of them reach it: slots are called as functions, so a kernel that returns early returns to
    /// this point.
    fn barrier(&mut self, body: &mut Stream) -> Result<()> {
        barrier(self.module, &mut self.interner, body)
    }

    /// Returns the id to pass to a slot's function for an argument.
    fn argument(&mut self, body: &mut Stream, place: Place, value: &Argument) -> Result<u32> {
        let (own, ty) = self.slot_parameter(place)?;
        if let Some(id) = self.replacement(body, place, value, ty)? {
            return Ok(id);
        }
        match value {
            Argument::Buffer(region) => {
                if let Some(id) = self.first_item_parameter(body, place, ty)? {
                    return Ok(id);
                }
                let class = self.class(ty);
                let known = self.parameters.iter().position(|known| {
                    known.region.as_ref() == Some(region) && self.class(known.ty) == class
                });
                match known {
                    None => self.region(body, place, (own, ty), *region),
                    Some(at) => self.reuse(body, at, place, (own, ty)),
                }
            }
            Argument::Scalar(bytes) => {
                if self.decisions.constants.contains(&place)
                    && let Some(id) = self.literal(ty, bytes)?
                {
                    return Ok(id);
                }
                if let Some(id) = self.first_item_parameter(body, place, ty)? {
                    return Ok(id);
                }
                let equal = self.decisions.equal.iter().find(|equal| equal.contains(&place));
                let known = self.parameters.iter().position(|known| {
                    equal
                        .is_some_and(|equal| known.places.iter().any(|place| equal.contains(place)))
                });
                match known {
                    None => self.parameter(place, own, ty, None),
                    Some(at) => self.reuse(body, at, place, (own, ty)),
                }
            }
            Argument::Image(_) | Argument::Sampler(_) => {
                let arguments = |place: &Place| {
                    &self.decisions.plan.slots[place.slot].arguments[place.argument]
                };
                let is_same = |known: &Parameter| {
                    known.ty == ty && known.places.first().map(arguments) == Some(value)
                };
                match self.parameters.iter().position(is_same) {
                    None => self.parameter(place, own, ty, None),
                    Some(at) if self.item > 0 => Ok(self.parameters[at].id),
                    Some(at) => self.reuse(body, at, place, (own, ty)),
                }
            }
            Argument::Local(_) => self.parameter(place, own, ty, None),
        }
    }

    /// Returns the variable to pass to a slot's function in place of a buffer or an image, if there is one.
    fn replacement(
        &mut self,
        body: &mut Stream,
        place: Place,
        value: &Argument,
        ty: u32,
    ) -> Result<Option<u32>> {
        let Some(memory) = value.memory() else { return Ok(None) };
        let mut privates = self.decisions.privates[place.slot].iter();
        let is_own =
            |known: &Private| known.parameter == place.argument && known.replaced.is_some();
        if privates.any(is_own) {
            let variable = self.variable(memory)?;
            return self.cast(body, variable, ty).map(Some);
        }
        let mut shared = self.decisions.shared[place.slot].iter();
        let Some(shared) = shared.find(|known| known.parameter == place.argument) else {
            return Ok(None);
        };
        let variable = self.local(shared.memory)?;
        self.cast(body, variable, ty).map(Some)
    }

    /// Returns the parameter that the first item's function gets for an argument, if the current item is a
    /// later one.
    fn first_item_parameter(
        &mut self,
        body: &mut Stream,
        place: Place,
        ty: u32,
    ) -> Result<Option<u32>> {
        let has_argument = |known: &&Parameter| self.item > 0 && known.places.contains(&place);
        let Some(known) = self.parameters.iter().find(has_argument) else { return Ok(None) };
        let (id, known) = (known.id, known.ty);
        if known == ty { Ok(Some(id)) } else { self.cast(body, id, ty).map(Some) }
    }

    /// Returns the id and type of a parameter of a slot's function.
    fn slot_parameter(&self, place: Place) -> Result<(u32, u32)> {
        let own = self.signatures[place.slot * self.decisions.items + self.item]
            .get(place.argument)
            .copied();
        own.ok_or_else(|| Error::unsupported("a kernel has too few parameters"))
    }

    /// Makes an existing parameter stand for one more argument, and returns its id or a cast of it.
    fn reuse(
        &mut self,
        body: &mut Stream,
        at: usize,
        place: Place,
        (own, ty): (u32, u32),
    ) -> Result<u32> {
        let decorations = self.decorations.get(&own).cloned().unwrap_or_default();
        let known = &mut self.parameters[at];
        known.places.push(place);
        known.decorations = &known.decorations & &decorations;
        let (id, known) = (known.id, known.ty);
        if known == ty { Ok(id) } else { self.cast(body, id, ty) }
    }

    /// Begins a block that only the first `count` work-items run, by their linear ids. Returns the label of
    /// the block that follows it.
    fn guard(&mut self, body: &mut Stream, count: u64) -> Result<u32> {
        let whole = &self.decisions.ranges.whole;
        let global = Global::of(self.module, &mut self.interner)?;
        let is_below = global.is_below(self.module, &mut self.interner, body, whole, count)?;
        let (then, after) = (self.module.fresh_id()?, self.module.fresh_id()?);
        body.push(Op::SelectionMerge, [after, 0]);
        body.push(Op::BranchConditional, [is_below, then, after]);
        body.push(Op::Label, [then]);
        Ok(after)
    }

    /// Adds a parameter for a region that has none yet. Its type is the type of the memory's first parameter,
    /// because the two may have bytes in common. A cast to the type of the slot's own parameter shows that
    /// these bytes are accessed as several types.
    fn region(
        &mut self,
        body: &mut Stream,
        place: Place,
        (own, ty): (u32, u32),
        region: Region,
    ) -> Result<u32> {
        let class = self.class(ty);
        let first = self.parameters.iter().find(|known| {
            known.region.is_some_and(|known| known.memory == region.memory)
                && self.class(known.ty) == class
        });
        let first = first.map_or(ty, |first| first.ty);
        let id = self.parameter(place, own, first, Some(region))?;
        if first == ty { Ok(id) } else { self.cast(body, id, ty) }
    }

    /// Adds a parameter for an argument. `own` is the slot's parameter, whose name and decorations it gets.
    fn parameter(
        &mut self,
        place: Place,
        own: u32,
        ty: u32,
        region: Option<Region>,
    ) -> Result<u32> {
        let id = self.module.fresh_id()?;
        let decorations = self.decorations.get(&own).cloned().unwrap_or_default();
        let names = self.module.section(Section::Names).iter();
        let name = names.filter_map(|i| i.named()).find(|(id, _)| *id == own);
        let name = name.map(|(_, name)| name.to_owned());
        let places = vec![place];
        self.parameters.push(Parameter { id, ty, places, region, decorations, name });
        Ok(id)
    }

    /// Returns the storage class of a pointer type.
    fn class(&self, ty: u32) -> Option<u32> {
        let mut types = self.module.section(Section::Globals).iter();
        types.find(|i| i.result() == Some(ty))?.storage_class()
    }

    /// Returns a constant, or `None` if the type is neither a number nor a vector of numbers.
    fn literal(&mut self, ty: u32, bytes: &[u8]) -> Result<Option<u32>> {
        let mut types = self.module.section(Section::Globals).iter();
        let Some(known) = types.find(|i| i.result() == Some(ty)) else { return Ok(None) };
        if let Some(words) = literal_words(&known, bytes) {
            let id = self.interner.constant_id(self.module, Op::Constant, ty, &words)?;
            return Ok(Some(id));
        }
        let Some((part, count)) = known.vector() else { return Ok(None) };
        // A vector of three components has the size of a vector of four.
        let places = (count as usize).next_power_of_two();
        if places > 16 || bytes.is_empty() || !bytes.len().is_multiple_of(places) {
            return Ok(None);
        }
        let mut parts = Vec::new();
        for bytes in bytes.chunks(bytes.len() / places).take(count as usize) {
            let mut types = self.module.section(Section::Globals).iter();
            let known = types.find(|i| i.result() == Some(part));
            let Some(words) = known.and_then(|ty| literal_words(&ty, bytes)) else {
                return Ok(None);
            };
            parts.push(self.interner.constant_id(self.module, Op::Constant, part, &words)?);
        }
        self.interner.constant_id(self.module, Op::ConstantComposite, ty, &parts).map(Some)
    }

    /// Returns the private variable that replaces a memory for the current item.
    fn variable(&mut self, memory: Memory) -> Result<u32> {
        if let Some(&known) = self.private.get(&(memory, self.item)) {
            return Ok(known);
        }
        let judgement = self.decisions.judgements.iter().find(|known| known.memory == memory);
        let promotion = judgement.and_then(|judgement| judgement.promotion.as_ref().ok());
        let promotion = promotion.ok_or_else(|| {
            Error::unsupported("a memory that is kept in variables has no variable")
        })?;
        let width = element_width(promotion.size);
        if width == 8 {
            require(self.module, Capability::Int8);
        }
        let element = self.interner.type_id(self.module, Op::TypeInt, &[width, 0])?;
        let uint = self.interner.type_id(self.module, Op::TypeInt, &[32, 0])?;
        let count = promotion.size * 8 / width;
        let count = self.interner.constant_id(self.module, Op::Constant, uint, &[count])?;
        let array = self.interner.type_id(self.module, Op::TypeArray, &[element, count])?;
        let class = StorageClass::Function as u32;
        let ty = self.interner.type_id(self.module, Op::TypePointer, &[class, array])?;
        let id = self.module.fresh_id()?;
        self.variables.push(Op::Variable, [ty, id, class]);
        let annotations = self.module.section_mut(Section::Annotations);
        annotations.push(Op::Decorate, [id, Decoration::Alignment as u32, promotion.align.max(4)]);
        written::mark(self.module, id);
        self.private.insert((memory, self.item), id);
        Ok(id)
    }

    /// Returns the local variable that replaces a memory.
    fn local(&mut self, memory: Memory) -> Result<u32> {
        if let Some(&known) = self.local.get(&memory) {
            return Ok(known);
        }
        let Locality { size, align, unit, .. } = *self.locality(memory)?;
        let element = self.interner.type_id(self.module, Op::TypeInt, &[unit * 8, 0])?;
        let uint = self.interner.type_id(self.module, Op::TypeInt, &[32, 0])?;
        let count = self.interner.constant_id(self.module, Op::Constant, uint, &[size / unit])?;
        let array = self.interner.type_id(self.module, Op::TypeArray, &[element, count])?;
        let class = StorageClass::Workgroup as u32;
        let ty = self.interner.type_id(self.module, Op::TypePointer, &[class, array])?;
        let id = self.module.fresh_id()?;
        self.module.section_mut(Section::Globals).push(Op::Variable, [ty, id, class]);
        let annotations = self.module.section_mut(Section::Annotations);
        annotations.push(Op::Decorate, [id, Decoration::Alignment as u32, align]);
        written::mark(self.module, id);
        self.local.insert(memory, id);
        Ok(id)
    }

    /// Returns the description of the local variable that replaces a memory.
    fn locality(&self, memory: Memory) -> Result<&Locality> {
        let judgement = self.decisions.judgements.iter().find(|known| known.memory == memory);
        let locality = judgement.and_then(|judgement| judgement.locality.as_ref().ok());
        locality.ok_or_else(|| Error::unsupported("a memory is not kept in local memory"))
    }

    /// Returns the start of a parameter's memory, in elements from the first element of the work-group's
    /// part.
    fn origin(&mut self, body: &mut Stream, shared: &Shared) -> Result<u32> {
        let Locality { factors, unit, .. } = *self.locality(shared.memory)?;
        let width = constants::address_width(self.module);
        let int = self.interner.type_id(self.module, Op::TypeInt, &[width, 0])?;
        let unit = i128::from(unit);
        let words = local_memory::literal(shared.first / unit, width);
        let mut sum = self.interner.constant_id(self.module, Op::Constant, int, &words)?;
        if factors == [0; 3] {
            return Ok(sum);
        }
        let (group, component, own) = group_id(self.module, &mut self.interner, body)?;
        for (d, factor) in (0..).zip(factors).filter(|&(_, factor)| factor != 0) {
            let mut id = self.module.fresh_id()?;
            body.push(Op::CompositeExtract, [component, id, group, d]);
            if own != width {
                let converted = self.module.fresh_id()?;
                body.push(Op::UConvert, [int, converted, id]);
                id = converted;
            }
            let words = local_memory::literal(factor / unit, width);
            let factor = self.interner.constant_id(self.module, Op::Constant, int, &words)?;
            let (product, rest) = (self.module.fresh_id()?, self.module.fresh_id()?);
            body.push(Op::IMul, [int, product, id, factor]);
            body.push(Op::ISub, [int, rest, sum, product]);
            sum = rest;
        }
        Ok(sum)
    }

    /// Emits a cast of a value to a type.
    fn cast(&mut self, body: &mut Stream, value: u32, ty: u32) -> Result<u32> {
        let id = self.module.fresh_id()?;
        body.push(Op::Bitcast, [ty, id, value]);
        Ok(id)
    }

    /// Adds the kernel, which makes the calls.
    fn finish(mut self, calls: &Stream, name: &str) -> Result<Entry> {
        let parameters = self.parameters.iter().map(|parameter| NewParameter {
            id: parameter.id,
            ty: parameter.ty,
            decorations: Some(&parameter.decorations),
            name: parameter.name.as_deref(),
        });
        let parameters: Vec<_> = parameters.collect();
        let (label, modes) = (None, self.decisions.modes);
        let kernel = NewKernel { name, parameters: &parameters, label, modes };
        kernel.add(self.module, &mut self.interner, &[&self.variables, calls])?;
        let parameters = self.parameters.into_iter().map(|parameter| parameter.places).collect();
        Ok(Entry { name: name.to_owned(), parameters })
    }
}

/// Adds a barrier of the work-group, after which its work-items see what the others wrote.
pub(super) fn barrier(
    module: &mut Module,
    interner: &mut Interner,
    body: &mut Stream,
) -> Result<()> {
    let uint = interner.type_id(module, Op::TypeInt, &[32, 0])?;
    let scope = Scope::Workgroup as u32;
    let scope = interner.constant_id(module, Op::Constant, uint, &[scope])?;
    // The semantics are those that compilers emit for `barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE)`.
    let semantics = MemorySemantics::SEQUENTIALLY_CONSISTENT
        | MemorySemantics::WORKGROUP_MEMORY
        | MemorySemantics::CROSS_WORKGROUP_MEMORY;
    let semantics = interner.constant_id(module, Op::Constant, uint, &[semantics.bits()])?;
    body.push(Op::ControlBarrier, [scope, scope, semantics]);
    Ok(())
}

/// Returns the ids and types of a function's parameters.
pub(super) fn signature(module: &Module, function: u32) -> Vec<(u32, u32)> {
    let function = module.functions.iter().find(|known| known.id == function);
    function.map_or_else(Vec::new, |function| Declaration::of(&function.body).parameters)
}

/// Returns the decorations of parameters that also hold for a caller's parameters. The absence of aliases is
/// left out, because it only holds within one slot.
pub(super) fn decorations(module: &Module) -> BTreeMap<u32, BTreeSet<Vec<u32>>> {
    let mut by_target = BTreeMap::<_, BTreeSet<_>>::new();
    let annotations = module.section(Section::Annotations).iter();
    for i in annotations.filter(|i| i.op() == Some(Op::Decorate)) {
        let View::Decorate { target, decoration, parameters } = i.view() else { continue };
        let holds_for_caller = match Decoration::from_u32(decoration) {
            Some(Decoration::Alignment) => true,
            Some(Decoration::FuncParamAttr) => matches!(
                parameters.get(0).and_then(Attribute::from_u32),
                Some(
                    Attribute::Zext
                        | Attribute::Sext
                        | Attribute::ByVal
                        | Attribute::NoCapture
                        | Attribute::NoWrite
                )
            ),
            _ => false,
        };
        if holds_for_caller {
            by_target
                .entry(target)
                .or_default()
                .insert([decoration].into_iter().chain(parameters.iter()).collect());
        }
    }
    by_target
}

/// Returns the name of the kernel that fuses launches of these kernels, unless its module uses the name
/// already.
pub fn fused_name<'a>(kernels: impl Iterator<Item = &'a str>) -> String {
    let mut name = "fused".to_owned();
    for kernel in kernels {
        if name.len() + kernel.len() < MAX_NAME_BYTES {
            name = format!("{name}_{kernel}");
        }
    }
    name
}

/// Returns a name made of the kernels' names that the module does not use yet.
pub(super) fn unused_name(module: &Module, plan: &Plan) -> String {
    unused(module, fused_name(plan.slots.iter().map(|slot| &*slot.kernel)))
}

/// Returns a name that the module does not use yet, and that begins with `name`.
pub(super) fn unused(module: &Module, mut name: String) -> String {
    let names = module.section(Section::Names).iter().filter_map(|i| Some(i.named()?.1));
    let linkages = module.linkages();
    let taken: BTreeSet<_> = names.chain(linkages.iter().map(|l| l.name)).collect();
    while taken.contains(name.as_str()) {
        name.push('_');
    }
    name
}
