//! Entry point that runs the stages: producers for the elements that a block of work needs, then the last
//! stage.

use std::collections::{BTreeMap, HashMap};

use kiln_spirv::edit::{Section, Stream};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{BuiltIn, Decoration, Op, StorageClass};

use super::StageKernel;
use super::arrays::{Array, Blocks, Reach, last_dimension};
use super::bind::{Signature, StageParameter};
use super::code::{Bounds, Code};
use super::redirect::{Accesses, Axis, Redirected, alignment, unit};
use crate::fusion::entry::{barrier, unused_name};
use crate::plan::{Argument, Memory, Place, Plan};
use crate::transform::built_ins::{BuiltInType, vector};
use crate::transform::merge::Whole;
use crate::transform::modes::Modes;
use crate::transform::new_kernel::{NewKernel, NewParameter};
use crate::transform::written;
use crate::{NdRange, NdSize};

/// Largest size of work-groups in the first dimension, for strips of rows.
const GROUP: usize = 64;

/// Maximum number of bytes of the private arrays of a work-group. Drivers for CPUs keep them on the stack of a
/// thread: PoCL (3.1) ends the process if they do not fit.
const MAX_GROUP_BYTES: i128 = 1 << 17;

/// Parts of a fused kernel.
pub(super) struct Layout<'a> {
    pub(super) plan: &'a Plan,
    pub(super) stages: &'a [StageKernel],
    pub(super) redirected: &'a [Vec<Redirected>],
    pub(super) arrays: &'a BTreeMap<Memory, Array>,
    pub(super) blocks: Option<&'a Blocks>,
    pub(super) signatures: &'a [Signature],
    /// Parameters of earlier stages that the function of each stage takes after its own.
    pub(super) contexts: &'a [Vec<StageParameter>],
}

/// Entry point of a fused kernel.
pub(super) struct Entry {
    pub(super) name: String,
    /// Id of the entry point's function.
    pub(super) function: u32,
    pub(super) range: NdRange,
    /// Arguments of the plan that each parameter stands for.
    pub(super) parameters: Vec<Vec<Place>>,
}

/// Adds the entry point to the merged stages.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if the module is damaged.
pub(super) fn add(whole: &mut Whole, layout: &Layout<'_>, modes: &Modes) -> Result<Entry> {
    let name = unused_name(&whole.module, layout.plan);
    let types = whole.functions.iter().map(|&f| parameter_types(&whole.module, f)).collect();
    let functions = whole.functions.clone();
    let mut code = Code::new(&mut whole.module)?;
    let (_, id_type) = vector(code.module, &mut code.interner, BuiltIn::GlobalInvocationId)?;
    let label = code.module.fresh_id()?;
    code.begin(label);
    let mut writer = Writer {
        layout,
        code,
        functions,
        types,
        id_type,
        parameters: Vec::new(),
        variables: Stream::default(),
        casts: Stream::default(),
        pointers: HashMap::new(),
        scratch: HashMap::new(),
    };
    writer.declare_arrays()?;
    let range = match layout.blocks {
        None => writer.inlined()?,
        Some(blocks) if blocks.class == StorageClass::Workgroup => writer.tiles(blocks)?,
        Some(blocks) => writer.strips(blocks)?,
    };
    let (function, parameters) = writer.finish(label, &name, modes)?;
    Ok(Entry { name, function, range, parameters })
}

/// Returns the types of a function's parameters.
fn parameter_types(module: &Module, function: u32) -> Vec<u32> {
    let function = module.functions.iter().find(|known| known.id == function);
    let body = function.into_iter().flat_map(|function| function.body.iter());
    let parameters = body.filter(|i| i.op() == Some(Op::FunctionParameter));
    parameters.filter_map(|i| i.result_type()).collect()
}

/// Parameter of the entry point.
struct Parameter {
    id: u32,
    ty: u32,
    places: Vec<Place>,
}

struct Writer<'a, 'm> {
    layout: &'a Layout<'a>,
    code: Code<'m>,
    functions: Vec<u32>,
    /// Types of the parameters of each stage's function.
    types: Vec<Vec<u32>>,
    id_type: BuiltInType,
    parameters: Vec<Parameter>,
    variables: Stream,
    /// Casts of variables, at the start of the first block.
    casts: Stream,
    /// Pointers to the first units of the arrays.
    pointers: HashMap<Memory, u32>,
    /// Variables for single elements, by the stage and by the parameter of its function.
    scratch: HashMap<(usize, usize), u32>,
}

impl Writer<'_, '_> {
    fn last(&self) -> usize {
        self.layout.stages.len() - 1
    }

    /// Returns the distances, from the elements of a block of work, of those that a stage produces.
    fn reach(&self, stage: usize) -> Reach {
        let mut arrays = self.layout.arrays.values();
        arrays.find(|array| array.producer == stage).map_or([(0, 0); 3], |array| array.reach)
    }

    /// Declares the arrays.
    fn declare_arrays(&mut self) -> Result<()> {
        let Some(blocks) = self.layout.blocks else { return Ok(()) };
        for (&memory, array) in self.layout.arrays {
            let count = blocks.extents(array).into_iter().product::<i128>();
            let pointer = self.declare(blocks.class, array.grid.size, count)?;
            self.pointers.insert(memory, pointer);
        }
        Ok(())
    }

    /// Declares a variable for elements of a size in bytes. Returns a pointer to its first unit.
    fn declare(&mut self, class: StorageClass, size: i128, count: i128) -> Result<u32> {
        let bytes = unit(size);
        let units = count * size / i128::from(bytes);
        let [ty, pointer] = self.code.array(class, bytes, units)?;
        let id = self.code.module.fresh_id()?;
        let words = [ty, id, class as u32];
        match class {
            StorageClass::Workgroup => {
                self.code.module.section_mut(Section::Globals).push(Op::Variable, words);
            }
            _ => self.variables.push(Op::Variable, words),
        }
        let words = [id, Decoration::Alignment as u32, alignment(size)];
        self.code.module.section_mut(Section::Annotations).push(Op::Decorate, words);
        written::mark(self.code.module, id);
        self.code.typed(pointer, Op::Bitcast, &[id])
    }

    /// Calls the last stage, which runs the others itself.
    fn inlined(&mut self) -> Result<NdRange> {
        let last = self.last();
        self.call(last, None, &HashMap::new(), [0; 3])?;
        Ok(self.layout.stages[last].range)
    }

    /// Runs the stages for a strip of rows: the producers for all rows that the strip needs, or for those that
    /// the next row needs.
    fn strips(&mut self, blocks: &Blocks) -> Result<NdRange> {
        let last = self.last();
        let counts = self.layout.stages[last].space.global;
        let split = last_dimension(counts);
        let mut own = self.code.load_id(BuiltIn::GlobalInvocationId)?;
        own[split] = self.code.times(own[split], blocks.sizes[split])?;
        let count = self.code.number(counts[split])?;
        for stage in 0..last {
            let (low, high) = self.reach(stage)[split];
            // In a window, the last of the rows is calculated right before the row that needs it.
            let end = if blocks.is_window { high } else { high + blocks.sizes[split] };
            let rows = self.bounds(own[split], (low, end), counts[split])?;
            let row = self.code.begin_loop(rows)?;
            self.produce_row(stage, own, split, row.counter)?;
            self.code.end_loop(row, 1)?;
        }
        let end = self.code.plus(own[split], blocks.sizes[split])?;
        let to = self.code.least(end, count)?;
        let row = self.code.begin_loop(Bounds { from: own[split], to })?;
        for stage in (0..last).filter(|_| blocks.is_window) {
            let (_, high) = self.reach(stage)[split];
            let ahead = self.code.plus(row.counter, high)?;
            let is_inside = self.code.compare(Op::ULessThan, ahead, count)?;
            let after = self.code.begin_if(is_inside)?;
            self.produce_row(stage, own, split, ahead)?;
            self.code.end_if(after);
        }
        let mut id = own;
        id[split] = row.counter;
        self.call(last, Some(id), &HashMap::new(), own)?;
        self.code.end_loop(row, 1)?;
        self.strip_range(blocks, split)
    }

    /// Returns the coordinates from `own + low` to `own + end`, exclusive, that are below `count`.
    fn bounds(&mut self, own: u32, (low, end): (i128, i128), count: i128) -> Result<Bounds> {
        let (from, to) = (self.code.plus(own, low)?, self.code.plus(own, end)?);
        let (zero, count) = (self.code.number(0)?, self.code.number(count)?);
        Ok(Bounds { from: self.code.most(from, zero)?, to: self.code.least(to, count)? })
    }

    /// Runs a producer for one row of the elements that a strip needs.
    fn produce_row(&mut self, stage: usize, own: [u32; 3], split: usize, row: u32) -> Result<()> {
        let (reach, counts) = (self.reach(stage), self.layout.stages[stage].space.global);
        let (mut id, mut loops) = (own, Vec::new());
        id[split] = row;
        for d in (0..3).filter(|&d| d != split && reach[d] != (0, 0)) {
            let (low, high) = reach[d];
            let bounds = self.bounds(own[d], (low, high + 1), counts[d])?;
            let column = self.code.begin_loop(bounds)?;
            id[d] = column.counter;
            loops.push(column);
        }
        let mut elements = HashMap::new();
        for (&memory, array) in self.layout.arrays {
            if array.producer == stage {
                elements.insert(array.parameter, self.element(memory, array, id, own)?);
            }
        }
        self.call(stage, Some(id), &elements, own)?;
        for column in loops.into_iter().rev() {
            self.code.end_loop(column, 1)?;
        }
        Ok(())
    }

    /// Returns the address of an element in an array. `own` is the position of the block of work.
    fn element(
        &mut self,
        memory: Memory,
        array: &Array,
        id: [u32; 3],
        own: [u32; 3],
    ) -> Result<u32> {
        let missing = || Error::unsupported("an array has no place");
        let blocks = self.layout.blocks.ok_or_else(missing)?;
        let mut address = self.pointers.get(&memory).copied().ok_or_else(missing)?;
        let unit = self.code.unit(unit(array.grid.size))?;
        let ty = self.code.pointer(blocks.class, unit)?;
        for (d, axis) in blocks.axes(array).into_iter().enumerate() {
            let (position, pitch) = match axis {
                Axis::One => continue,
                Axis::Moved { pitch } => {
                    let origin = self.code.plus(own[d], array.reach[d].0)?;
                    (self.code.binary(Op::ISub, id[d], origin)?, pitch)
                }
                Axis::Ring { mask, pitch } => {
                    let mask = self.code.number(mask)?;
                    (self.code.binary(Op::BitwiseAnd, id[d], mask)?, pitch)
                }
            };
            let index = self.code.times(position, pitch)?;
            address = self.code.at(address, ty, index)?;
        }
        Ok(address)
    }

    /// Returns the nd-range of strips: one work-item for each strip, in work-groups whose private arrays are
    /// not too large.
    fn strip_range(&self, blocks: &Blocks, split: usize) -> Result<NdRange> {
        let stage = &self.layout.stages[self.last()];
        let mut global = stage.space.global;
        let rows = blocks.sizes[split];
        global[split] = (global[split] + rows - 1) / rows;
        let bytes = blocks.bytes(self.layout.arrays).max(1);
        let most = (MAX_GROUP_BYTES / bytes).clamp(1, GROUP as i128);
        let size = (1..=most).rev().find(|size| global[0] % size == 0).unwrap_or(1);
        self.range(global, [size, 1, 1])
    }

    fn range(&self, global: [i128; 3], local: [i128; 3]) -> Result<NdRange> {
        let dimensions = self.layout.stages[self.last()].range.dimensions();
        let sizes = |sizes: [i128; 3]| sizes.map(|size| usize::try_from(size).unwrap_or(1));
        let mut range = NdRange::from(NdSize::of(&sizes(global)[..dimensions]));
        range.set_local(NdSize::of(&sizes(local)[..dimensions]))?;
        Ok(range)
    }

    /// Runs the stages for a tile of each work-group: its work-items share the elements of the producers, and
    /// wait for each other after each stage.
    fn tiles(&mut self, blocks: &Blocks) -> Result<NdRange> {
        let last = self.last();
        let counts = self.layout.stages[last].space.global;
        let (group, local) = (
            self.code.load_id(BuiltIn::WorkgroupId)?,
            self.code.load_id(BuiltIn::LocalInvocationId)?,
        );
        let (mut own, mut id) = (group, group);
        for d in 0..3 {
            own[d] = self.code.times(group[d], blocks.sizes[d])?;
            id[d] = self.code.binary(Op::IAdd, own[d], local[d])?;
        }
        let row = self.code.times(local[1], blocks.sizes[0])?;
        let linear = self.code.binary(Op::IAdd, local[0], row)?;
        for stage in 0..last {
            self.produce_tile(blocks, stage, own, linear)?;
            barrier(self.code.module, &mut self.code.interner, &mut self.code.new)?;
        }
        let is_inside = self.is_inside(id, counts)?;
        let after = self.code.begin_if(is_inside)?;
        self.call(last, Some(id), &HashMap::new(), own)?;
        self.code.end_if(after);
        let global = std::array::from_fn(|d| {
            (counts[d] + blocks.sizes[d] - 1) / blocks.sizes[d] * blocks.sizes[d]
        });
        self.range(global, blocks.sizes)
    }

    /// Writes the condition that an id is inside the range of a launch.
    fn is_inside(&mut self, id: [u32; 3], counts: [i128; 3]) -> Result<u32> {
        let mut all = None;
        for d in 0..3 {
            let count = self.code.number(counts[d])?;
            let is_below = self.code.compare(Op::ULessThan, id[d], count)?;
            all = Some(match all {
                None => is_below,
                Some(all) => self.code.both(all, is_below)?,
            });
        }
        all.ok_or_else(|| Error::unsupported("an id has no dimensions"))
    }

    /// Runs a producer for the elements that a tile needs.
    fn produce_tile(
        &mut self,
        blocks: &Blocks,
        stage: usize,
        own: [u32; 3],
        linear: u32,
    ) -> Result<()> {
        let arrays: Vec<_> =
            self.layout.arrays.iter().map(|(&memory, array)| (memory, *array)).collect();
        let arrays: Vec<_> =
            arrays.into_iter().filter(|(_, array)| array.producer == stage).collect();
        let Some((_, first)) = arrays.first() else { return Ok(()) };
        let extents = blocks.extents(first);
        let to = self.code.number(extents.into_iter().product())?;
        let element = self.code.begin_loop(Bounds { from: linear, to })?;
        let (mut id, mut rest) = (own, element.counter);
        for d in 0..3 {
            let mut position = rest;
            if d < 2 {
                let extent = self.code.number(extents[d])?;
                position = self.code.binary(Op::UMod, rest, extent)?;
                rest = self.code.binary(Op::UDiv, rest, extent)?;
            }
            let origin = self.code.plus(own[d], first.reach[d].0)?;
            id[d] = self.code.binary(Op::IAdd, origin, position)?;
        }
        let counts = self.layout.stages[stage].space.global;
        let is_inside = self.is_inside(id, counts)?;
        let after = self.code.begin_if(is_inside)?;
        let mut elements = HashMap::new();
        for (_, array) in &arrays {
            let variable = self.scratch(stage, array)?;
            elements.insert(array.parameter, variable);
        }
        self.call(stage, Some(id), &elements, own)?;
        for (memory, array) in &arrays {
            let target = self.element(*memory, array, id, own)?;
            self.copy(array.grid.size, elements[&array.parameter], target)?;
        }
        self.code.end_if(after);
        self.code.end_loop(element, blocks.sizes.into_iter().product())
    }

    /// Returns a variable for an element of an array.
    fn scratch(&mut self, stage: usize, array: &Array) -> Result<u32> {
        if let Some(&known) = self.scratch.get(&(stage, array.parameter)) {
            return Ok(known);
        }
        // The cast of a variable must be in the first block, before all branches.
        let code = std::mem::take(&mut self.code.new);
        let variable = self.declare(StorageClass::Function, array.grid.size, 1)?;
        let cast = std::mem::replace(&mut self.code.new, code);
        self.casts.append(&cast);
        self.scratch.insert((stage, array.parameter), variable);
        Ok(variable)
    }

    /// Copies an element of the given size from a variable to local memory.
    fn copy(&mut self, size: i128, from: u32, to: u32) -> Result<()> {
        let bytes = unit(size);
        let unit = self.code.unit(bytes)?;
        let source = self.code.pointer(StorageClass::Function, unit)?;
        let target = self.code.pointer(StorageClass::Workgroup, unit)?;
        for at in 0..size / i128::from(bytes) {
            let index = self.code.number(at)?;
            let (from, to) = (self.code.at(from, source, index)?, self.code.at(to, target, index)?);
            let value = self.code.typed(unit, Op::Load, &[from])?;
            self.code.new.push(Op::Store, [to, value]);
        }
        Ok(())
    }

    /// Calls a stage's function for an id, or for the work-item's own id if there is none. `elements` are
    /// pointers to the elements that it writes, by its parameter, and `own` the position of the block of work.
    fn call(
        &mut self,
        stage: usize,
        id: Option<[u32; 3]>,
        elements: &HashMap<usize, u32>,
        own: [u32; 3],
    ) -> Result<()> {
        let layout = self.layout;
        let missing = || Error::unsupported("an argument of a stage is missing");
        let Signature { passed, .. } = &layout.signatures[stage];
        let mut words = Vec::new();
        for (at, &parameter) in passed.iter().enumerate() {
            let ty = self.types[stage].get(at).copied().ok_or_else(missing)?;
            let redirected = layout.redirected[stage].iter();
            let mut redirected = redirected.filter(|known| known.parameter == parameter);
            words.push(match redirected.next().map(|known| &known.accesses) {
                Some(Accesses::Own(_)) => elements.get(&parameter).copied().ok_or_else(missing)?,
                Some(Accesses::Kept(..) | Accesses::Again(..)) => {
                    let region = layout.stages[stage].region(parameter).ok_or_else(missing)?;
                    self.pointers.get(&region.memory).copied().ok_or_else(missing)?
                }
                Some(Accesses::OwnOrBefore(_)) | None => self.parameter((stage, parameter), ty)?,
            });
        }
        for known in &layout.redirected[stage] {
            if let Accesses::OwnOrBefore(_) = known.accesses {
                words.push(elements.get(&known.parameter).copied().ok_or_else(missing)?);
            }
            let Accesses::Kept(_, _, axes) = &known.accesses else { continue };
            let region = layout.stages[stage].region(known.parameter).ok_or_else(missing)?;
            let reach = layout.arrays.get(&region.memory).ok_or_else(missing)?.reach;
            for (d, axis) in axes.iter().enumerate() {
                if matches!(axis, Axis::Moved { .. }) {
                    words.push(self.code.plus(own[d], reach[d].0)?);
                }
            }
        }
        if let Some(id) = id {
            words.push(self.id(id)?);
        }
        for &(producer, parameter) in &layout.contexts[stage] {
            let at = layout.signatures[producer].passed.iter().position(|&p| p == parameter);
            let ty = at.and_then(|at| self.types[producer].get(at).copied());
            let ty = ty.ok_or_else(missing)?;
            words.push(self.parameter((producer, parameter), ty)?);
        }
        let code = &mut self.code;
        let void = code.interner.type_id(code.module, Op::TypeVoid, &[])?;
        let words: Vec<_> = [self.functions[stage]].into_iter().chain(words).collect();
        self.code.typed(void, Op::FunctionCall, &words)?;
        Ok(())
    }

    /// Writes a vector of the coordinates of an id.
    fn id(&mut self, id: [u32; 3]) -> Result<u32> {
        let BuiltInType { ty, component, width, .. } = self.id_type;
        let mut parts = id;
        for part in parts.iter_mut().filter(|_| width != 32) {
            *part = self.code.typed(component, Op::UConvert, &[*part])?;
        }
        self.code.typed(ty, Op::CompositeConstruct, &parts)
    }

    /// Returns the parameter of the entry point for a parameter of a stage's function.
    fn parameter(&mut self, (stage, parameter): StageParameter, ty: u32) -> Result<u32> {
        let places = &self.layout.stages[stage].places[parameter];
        let plan = self.layout.plan;
        let argument = |place: &Place| &plan.slots[place.slot].arguments[place.argument];
        let is_same = |known: &Place| {
            let is_buffer = matches!(argument(known), Argument::Buffer(_));
            places.contains(known) || is_buffer && argument(known) == argument(&places[0])
        };
        let known = self.parameters.iter_mut();
        let mut known = known.filter(|known| known.ty == ty && known.places.iter().any(is_same));
        if let Some(known) = known.next() {
            let new = places.iter().filter(|place| !known.places.contains(place));
            let new: Vec<_> = new.copied().collect();
            known.places.extend(new);
            return Ok(known.id);
        }
        let id = self.code.module.fresh_id()?;
        self.parameters.push(Parameter { id, ty, places: places.clone() });
        Ok(id)
    }

    /// Adds the kernel. Returns the id of its function and the arguments of its parameters.
    fn finish(self, label: u32, name: &str, modes: &Modes) -> Result<(u32, Vec<Vec<Place>>)> {
        let Self { code: Code { module, mut interner, new, .. }, variables, casts, .. } = self;
        let parameters = self.parameters.iter().map(|&Parameter { id, ty, .. }| NewParameter {
            id,
            ty,
            decorations: None,
            name: None,
        });
        let parameters: Vec<_> = parameters.collect();
        let kernel = NewKernel { name, parameters: &parameters, label: Some(label), modes };
        let id = kernel.add(module, &mut interner, &[&variables, &casts, &new])?;
        Ok((id, self.parameters.into_iter().map(|known| known.places).collect()))
    }
}
