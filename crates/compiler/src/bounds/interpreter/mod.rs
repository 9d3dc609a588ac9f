//! Interpreter of kernels: runs work-items one after the other, and notes each access outside of its memory.
//!
//! An access outside reads zero and writes nothing, a division by zero gives zero, and a shift is by the amount
//! modulo the width. So the interpreter also says what a guarded kernel has to compute. Functions on
//! floating-point numbers that no index depends on return their first operand. A run of damaged code stops where
//! the code has no meaning.

mod accesses;
mod calculate;
mod given;
mod images;
mod memory;
mod scalars;

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use rspirv::spirv::{BuiltIn, Op};

pub(super) use given::{Given, Memory};
use images::Pixels;

use super::hazards::Hazard;
use super::report::{CheckedAccess, Report};
use crate::Sampler;
use crate::analysis::access::{Kind, Layouts};
use kiln_spirv::Module;
use kiln_spirv::edit::{Class, Definitions, Instruction, Location, Section, View, located};

/// Value of an id.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Val {
    Bits(u64),
    Parts(Vec<Val>),
    /// Offset in bytes from the start of an object. Objects beyond the last one do not exist.
    Pointer(usize, i64),
    /// Index of an image.
    Image(usize),
    Sampler(Sampler),
    /// Index of an image that is combined with a sampler.
    Combined(usize, Sampler),
}

/// Event of a run that a proof rules out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// An access outside of an object or of an image.
    Outside {
        writes: bool,
    },
    Division,
    Shift,
    /// A use of an image or of a sampler that OpenCL leaves undefined wherever it is. No guard helps.
    Undefined,
}

/// Sizes of a launch in three dimensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) global: [u64; 3],
    pub(super) offset: [u64; 3],
    pub(super) local: [u64; 3],
}

/// Interpreter of a module, with its memory.
pub(super) struct Machine<'m> {
    definitions: &'m Definitions<'m>,
    layouts: Layouts,
    functions: HashMap<u32, Rc<Code<'m>>>,
    built_ins: HashMap<u32, u32>,
    pub(super) objects: Vec<Vec<u8>>,
    pub(super) images: Vec<Pixels>,
    /// Ids of the types that the kernel's parameters declare for the images.
    image_types: Vec<u32>,
    globals: HashMap<u32, usize>,
    grid: Grid,
    global_id: [u64; 3],
    /// Remaining number of instructions.
    pub(super) fuel: usize,
    pub(super) events: BTreeSet<(Location, Event)>,
    /// Instructions that touched memory.
    pub(super) touched: BTreeSet<Location>,
}

struct Code<'m> {
    body: Vec<(Location, Instruction<'m>)>,
    labels: HashMap<u32, usize>,
    parameters: Vec<u32>,
}

/// The run is too long, or needs what the interpreter does not have.
#[derive(Debug)]
pub(super) struct Stopped;

type Run<T> = Result<T, Stopped>;

/// Values of a function's ids.
type Frame = HashMap<u32, Val>;

/// Maximum depth of nested calls.
const MAX_CALLS: usize = 20;

/// Maximum number of bytes of a variable.
const MAX_VARIABLE: usize = 1 << 16;

/// Maximum depth of types and of constants.
const MAX_DEPTH: usize = 16;

impl<'m> Machine<'m> {
    /// Returns what contradicts a report in the run, if something does.
    pub(super) fn contradiction(&self, report: &Report) -> Option<String> {
        let known: BTreeSet<_> = report.accesses.iter().map(|known| known.location).collect();
        if let Some(location) = self.touched.iter().find(|location| !known.contains(location)) {
            return Some(format!("an access is not in the report: {location:?}"));
        }
        let mut proven = report.accesses.iter().filter(|checked| checked.is_in_bounds());
        if let Some(checked) = proven.find(|checked| self.leaves_memory(checked)) {
            return Some(format!("{checked:?} leaves its memory"));
        }
        self.events.iter().find_map(|&(location, event)| {
            let hazard = match event {
                Event::Division => Hazard::Division,
                Event::Shift => Hazard::Shift,
                Event::Outside { .. } => return None,
                Event::Undefined => {
                    return Some(format!("the use of an image at {location:?} is not defined"));
                }
            };
            let is_known = report.hazards.contains(&(location, hazard));
            (!is_known).then(|| format!("{hazard:?} at {location:?} is not in the report"))
        })
    }

    /// Returns whether an access left its memory. A copy is one instruction with a read and a write.
    fn leaves_memory(&self, checked: &CheckedAccess) -> bool {
        let leaves = |writes| self.events.contains(&(checked.location, Event::Outside { writes }));
        match checked.kind {
            Kind::Read => leaves(false),
            Kind::Write => leaves(true),
            Kind::Atomic | Kind::Escape => leaves(false) || leaves(true),
        }
    }

    /// Creates the interpreter of a module, with the memory that is passed to its kernel.
    pub(super) fn new(
        definitions: &'m Definitions<'m>,
        memory: impl Into<Memory>,
        grid: Grid,
    ) -> Run<Self> {
        let Memory { objects, images } = memory.into();
        let module: &'m Module = definitions.module();
        let functions = (Section::COUNT as u32..).zip(&module.functions).map(|(stream, known)| {
            let body: Vec<_> = located((stream, &known.body)).collect();
            let at = |op| {
                let all = body.iter().enumerate().filter(move |(_, (_, i))| i.op() == Some(op));
                all.filter_map(|(at, (_, i))| Some((i.result()?, at)))
            };
            let labels = at(Op::Label).collect();
            let parameters = at(Op::FunctionParameter).map(|(id, _)| id).collect();
            (known.id, Rc::new(Code { body, labels, parameters }))
        });
        let functions = functions.collect();
        let mut machine = Self {
            definitions,
            layouts: Layouts::of(module, definitions),
            functions,
            built_ins: module.built_ins().collect(),
            objects,
            images,
            image_types: Vec::new(),
            globals: HashMap::new(),
            grid,
            global_id: [0; 3],
            fuel: 20_000,
            events: BTreeSet::new(),
            touched: BTreeSet::new(),
        };
        machine.check_widths(module)?;
        machine.add_globals(module)?;
        Ok(machine)
    }

    /// Checks that integers have widths that the interpreter calculates with.
    fn check_widths(&self, module: &Module) -> Run<()> {
        let mut types = module.section(Section::Globals).iter();
        let is_odd = |i: &Instruction<'_>| {
            matches!(i.op(), Some(Op::TypeInt | Op::TypeFloat))
                && !matches!(i.width(), Some(8 | 16 | 32 | 64))
        };
        if types.any(|i| is_odd(&i)) { Err(Stopped) } else { Ok(()) }
    }

    fn add_globals(&mut self, module: &'m Module) -> Run<()> {
        for i in module.section(Section::Globals).iter().filter(|i| i.op() == Some(Op::Variable)) {
            let id = i.result().ok_or(Stopped)?;
            if self.built_ins.contains_key(&id) {
                continue;
            }
            let at = self.new_object(&i)?;
            self.globals.insert(id, at);
            if let View::Variable { initial: Some(initial), .. } = i.view() {
                let ty = self.pointee(i.result_type().ok_or(Stopped)?)?;
                let value = self.constant(initial, 0)?;
                self.write(ty, at, 0, &value)?;
            }
        }
        Ok(())
    }

    /// Runs a kernel in all work-items.
    #[cfg(test)]
    pub(super) fn run(&mut self, kernel: u32, arguments: &[Given]) -> Run<()> {
        let [width, height, depth] = self.grid.global;
        for item in 0..width * height * depth {
            let place = [item % width, item / width % height, item / width / height];
            self.run_item(kernel, arguments, place)?;
        }
        Ok(())
    }

    /// Runs a kernel in one work-item, given by its id without the offset.
    pub(super) fn run_item(
        &mut self,
        kernel: u32,
        arguments: &[Given],
        place: [u64; 3],
    ) -> Run<()> {
        let parameters = self.functions.get(&kernel).ok_or(Stopped)?.parameters.clone();
        if parameters.len() != arguments.len() {
            return Err(Stopped);
        }
        self.global_id = place;
        self.image_types = vec![0; self.images.len()];
        let count = self.objects.len();
        let mut values = Vec::new();
        for (&id, given) in parameters.iter().zip(arguments) {
            values.push(match given {
                Given::Object(at) => Val::Pointer(*at, 0),
                Given::Bytes(bytes) => {
                    let (ty, at) = (self.type_id(id)?, self.objects.len());
                    self.objects.push(bytes.clone());
                    match self.ty(ty)?.op() {
                        Some(Op::TypePointer) => Val::Pointer(at, 0),
                        _ if self.size(ty)? == bytes.len() => self.read(ty, at, 0)?,
                        _ => return Err(Stopped),
                    }
                }
                Given::Image(at) => {
                    let ty = self.type_id(id)?;
                    *self.image_types.get_mut(*at).ok_or(Stopped)? = ty;
                    Val::Image(*at)
                }
                Given::Sampler(sampler) => Val::Sampler(*sampler),
            });
        }
        self.call(kernel, values, 0)?;
        self.objects.truncate(count);
        Ok(())
    }

    fn call(&mut self, function: u32, arguments: Vec<Val>, depth: usize) -> Run<Option<Val>> {
        let count = self.objects.len();
        let code = Rc::clone(self.functions.get(&function).ok_or(Stopped)?);
        let mut frame: Frame = code.parameters.iter().copied().zip(arguments).collect();
        let (mut at, mut block, mut previous) = (0, 0, 0);
        loop {
            self.fuel = self.fuel.checked_sub(1).ok_or(Stopped)?;
            let &(location, i) = code.body.get(at).ok_or(Stopped)?;
            at += 1;
            match i.op().ok_or(Stopped)? {
                Op::Function | Op::FunctionParameter => {}
                Op::Label => (previous, block) = (block, i.result().ok_or(Stopped)?),
                _ if i.class() == Some(Class::Branch) => {
                    let next = self.next_label(&frame, &i)?;
                    at = *code.labels.get(&next).ok_or(Stopped)?;
                }
                Op::Return | Op::Unreachable => {
                    self.objects.truncate(count);
                    return Ok(None);
                }
                Op::ReturnValue => {
                    self.objects.truncate(count);
                    let View::Return { value } = i.view() else { return Err(Stopped) };
                    return Ok(Some(self.value(&frame, value)?));
                }
                Op::Phi => at = self.phis(&code, at - 1, previous, &mut frame)?,
                Op::Variable => {
                    let object = self.new_object(&i)?;
                    frame.insert(i.result().ok_or(Stopped)?, Val::Pointer(object, 0));
                    if let View::Variable { initial: Some(initial), .. } = i.view() {
                        let ty = self.pointee(i.result_type().ok_or(Stopped)?)?;
                        let value = self.value(&frame, initial)?;
                        self.write(ty, object, 0, &value)?;
                    }
                }
                Op::FunctionCall => {
                    if depth >= MAX_CALLS {
                        return Err(Stopped);
                    }
                    let arguments = i.arguments().map(|id| self.value(&frame, id));
                    let arguments = arguments.collect::<Run<_>>()?;
                    let result = self.call(i.called().ok_or(Stopped)?, arguments, depth + 1)?;
                    result.map(|value| frame.insert(i.result().unwrap_or_default(), value));
                }
                op => {
                    if let Some(value) = self.instruction(&frame, location, op, &i)? {
                        frame.insert(i.result().ok_or(Stopped)?, value);
                    }
                }
            }
        }
    }

    /// Returns the label that a branch goes to.
    fn next_label(&self, frame: &Frame, i: &Instruction<'m>) -> Run<u32> {
        let bits = |id| match self.value(frame, id)? {
            Val::Bits(value) => Ok(value),
            _ => Err(Stopped),
        };
        match i.view() {
            View::Branch { target } => Ok(target),
            View::BranchIf { condition, yes, no, .. } => {
                Ok(if bits(condition)? == 1 { yes } else { no })
            }
            View::Switch { selector, default, cases } => {
                let (value, width) = (bits(selector)?, self.width(self.type_id(selector)?)?);
                let mut cases = cases.iter(if width > 32 { 2 } else { 1 });
                let found = cases.find(|(case, _)| case & scalars::mask(width) == value);
                Ok(found.map_or(default, |(_, label)| label))
            }
            _ => Err(Stopped),
        }
    }

    /// Sets all phis at the start of a block, which take the values from before it. Returns the position after
    /// them.
    fn phis(&self, code: &Code<'m>, mut at: usize, previous: u32, frame: &mut Frame) -> Run<usize> {
        let mut new = Vec::new();
        while let Some((_, phi)) = code.body.get(at).filter(|(_, i)| i.op() == Some(Op::Phi)) {
            let incoming = phi.incoming().find(|(_, from)| *from == previous);
            let (value, _) = incoming.ok_or(Stopped)?;
            new.push((phi.result().ok_or(Stopped)?, self.value(frame, value)?));
            at += 1;
        }
        frame.extend(new);
        Ok(at)
    }

    fn value(&self, frame: &Frame, id: u32) -> Run<Val> {
        frame.get(&id).cloned().map_or_else(|| self.constant(id, 0), Ok)
    }

    fn built_in(&self, variable: u32) -> Val {
        let Grid { global, offset, local } = self.grid;
        let id = self.global_id;
        let built_in = self.built_ins.get(&variable).and_then(|&known| BuiltIn::from_u32(known));
        let part = |d: usize| match built_in {
            Some(BuiltIn::GlobalInvocationId) => id[d].wrapping_add(offset[d]),
            Some(BuiltIn::LocalInvocationId) => id[d] % local[d],
            Some(BuiltIn::WorkgroupId) => id[d] / local[d],
            Some(BuiltIn::GlobalSize) => global[d],
            Some(BuiltIn::GlobalOffset) => offset[d],
            Some(BuiltIn::EnqueuedWorkgroupSize) => local[d],
            Some(BuiltIn::WorkgroupSize) => local[d].min(global[d] - id[d] / local[d] * local[d]),
            Some(BuiltIn::NumWorkgroups) => global[d].div_ceil(local[d]),
            _ => 0,
        };
        Val::Parts((0..3).map(|d| Val::Bits(part(d))).collect())
    }
}
