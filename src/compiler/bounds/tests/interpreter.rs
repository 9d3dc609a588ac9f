//! Interpreter of kernels: runs the work-items one after the other, and notes each access outside of its
//! memory.
//!
//! An access outside reads zero and writes nothing, a division by zero gives zero, and a shift is by the amount
//! modulo the width. So the interpreter also says what a guarded kernel has to compute. Functions on
//! floating-point numbers that no index depends on in the tests return their first operand.

mod calculate;
mod scalars;

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use rspirv::spirv::{BuiltIn, Op, OpenclStd100Op as Extended};

use scalars::{called, mask, signed};

use crate::compiler::fusion::access::{Layouts, Parts};
use crate::compiler::fusion::vector_access::VectorAccess;
use crate::compiler::spirv::Module;
use crate::compiler::spirv::edit::{
    Definitions, Instruction, Location, Section, is_atomic, located,
};

/// Value of an id.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Val {
    Bits(u64),
    Parts(Vec<Val>),
    /// Offset in bytes from the start of an object. Objects beyond the last one do not exist.
    Pointer(usize, i64),
}

/// Event of a run that a proof rules out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    OutOfBounds,
    Division,
    Shift,
}

/// Argument of a kernel: the index of an object, or bytes of a value.
#[derive(Clone, Debug)]
pub(super) enum Given {
    Object(usize),
    Bytes(Vec<u8>),
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

impl<'m> Machine<'m> {
    pub(super) fn new(definitions: &'m Definitions<'m>, objects: Vec<Vec<u8>>, grid: Grid) -> Self {
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
            globals: HashMap::new(),
            grid,
            global_id: [0; 3],
            fuel: 20_000,
            events: BTreeSet::new(),
            touched: BTreeSet::new(),
        };
        machine.add_globals(module);
        machine
    }

    fn add_globals(&mut self, module: &'m Module) {
        for i in module.section(Section::Globals).iter().filter(|i| i.op() == Some(Op::Variable)) {
            let id = i.result().unwrap();
            if self.built_ins.contains_key(&id) {
                continue;
            }
            let at = self.new_object(&i);
            self.globals.insert(id, at);
            if let Some(initial) = i.word(3) {
                let ty = self.pointee(i.result_type().unwrap());
                let value = self.constant(initial);
                self.write(ty, at, 0, &value);
            }
        }
    }

    /// Runs a kernel in all work-items.
    pub(super) fn run(&mut self, kernel: u32, arguments: &[Given]) -> Run<()> {
        let parameters = self.functions[&kernel].parameters.clone();
        assert_eq!(parameters.len(), arguments.len());
        let global = self.grid.global;
        let count = self.objects.len();
        for item in 0..global.iter().product() {
            let x = item % global[0];
            let y = item / global[0] % global[1];
            let z = item / global[0] / global[1];
            self.global_id = [x, y, z];
            let values = parameters.iter().zip(arguments).map(|(&id, given)| match given {
                Given::Object(at) => Val::Pointer(*at, 0),
                Given::Bytes(bytes) => {
                    let ty = self.type_id(id);
                    let at = self.objects.len();
                    self.objects.push(bytes.clone());
                    let is_pointer = self.ty(ty).op() == Some(Op::TypePointer);
                    if is_pointer { Val::Pointer(at, 0) } else { self.read(ty, at, 0) }
                }
            });
            let values = values.collect();
            self.call(kernel, values, 0)?;
            self.objects.truncate(count);
        }
        Ok(())
    }

    fn ty(&self, id: u32) -> Instruction<'m> {
        self.definitions.get(id).unwrap()
    }

    fn type_id(&self, value: u32) -> u32 {
        self.definitions.get(value).unwrap().result_type().unwrap()
    }

    fn pointee(&self, pointer_type: u32) -> u32 {
        self.ty(pointer_type).word(2).unwrap()
    }

    fn size(&self, ty: u32) -> usize {
        usize::try_from(self.layouts.size(ty).unwrap_or(1)).unwrap()
    }

    /// Adds the object of a variable.
    fn new_object(&mut self, variable: &Instruction<'_>) -> usize {
        let size = self.size(self.pointee(variable.result_type().unwrap()));
        self.objects.push(vec![0; size]);
        self.objects.len() - 1
    }

    /// Returns zero, or a pointer to nothing.
    fn zero(&self, ty: u32) -> Val {
        let declared = self.ty(ty);
        match declared.op() {
            Some(Op::TypeVector) => {
                let count = declared.word(2).unwrap() as usize;
                Val::Parts(vec![self.zero(declared.word(1).unwrap()); count])
            }
            Some(Op::TypeArray) => match &self.layouts.get(ty).unwrap().parts {
                Parts::Equal(part, stride) => {
                    let count = self.size(ty) / usize::try_from(*stride).unwrap().max(1);
                    Val::Parts(vec![self.zero(*part); count])
                }
                _ => Val::Parts(Vec::new()),
            },
            Some(Op::TypeStruct) => {
                Val::Parts(declared.words_from(1).map(|part| self.zero(part)).collect())
            }
            Some(Op::TypePointer) => Val::Pointer(usize::MAX, 0),
            _ => Val::Bits(0),
        }
    }

    fn constant(&self, id: u32) -> Val {
        let i = self.definitions.get(id).unwrap();
        let ty = i.result_type().unwrap();
        match i.op() {
            Some(Op::Constant) => {
                let high = u64::from(i.word(3).unwrap_or(0));
                let bits = high << 32 | u64::from(i.word(2).unwrap());
                Val::Bits(bits & mask(self.ty(ty).word(1).unwrap()))
            }
            Some(Op::ConstantTrue) => Val::Bits(1),
            Some(Op::ConstantComposite) => {
                Val::Parts(i.words_from(2).map(|part| self.constant(part)).collect())
            }
            Some(Op::Variable) => match self.globals.get(&id) {
                Some(&at) => Val::Pointer(at, 0),
                None => self.zero(ty),
            },
            _ => self.zero(ty),
        }
    }

    fn read(&self, ty: u32, object: usize, offset: i64) -> Val {
        match self.ty(ty).op() {
            Some(Op::TypeVector | Op::TypeArray | Op::TypeStruct) => {
                let parts = self.parts(ty).into_iter();
                Val::Parts(parts.map(|(part, at)| self.read(part, object, offset + at)).collect())
            }
            _ => {
                let start = usize::try_from(offset).unwrap();
                let mut bytes = [0; 8];
                let size = self.size(ty).min(8);
                bytes[..size].copy_from_slice(&self.objects[object][start..start + size]);
                Val::Bits(u64::from_le_bytes(bytes))
            }
        }
    }

    fn write(&mut self, ty: u32, object: usize, offset: i64, value: &Val) {
        match value {
            Val::Parts(values) => {
                for ((part, at), value) in self.parts(ty).into_iter().zip(values) {
                    self.write(part, object, offset + at, value);
                }
            }
            Val::Bits(bits) => {
                let start = usize::try_from(offset).unwrap();
                let size = self.size(ty).min(8);
                self.objects[object][start..start + size]
                    .copy_from_slice(&bits.to_le_bytes()[..size]);
            }
            Val::Pointer(..) => {}
        }
    }

    /// Returns the types and offsets of the parts of a type.
    fn parts(&self, ty: u32) -> Vec<(u32, i64)> {
        let declared = self.ty(ty);
        match &self.layouts.get(ty).unwrap().parts {
            Parts::Equal(part, stride) => {
                let count = match declared.op() {
                    Some(Op::TypeVector) => declared.word(2).unwrap() as usize,
                    _ => self.size(ty) / usize::try_from(*stride).unwrap().max(1),
                };
                (0..count).map(|at| (*part, at as i64 * *stride as i64)).collect()
            }
            Parts::Members(members) => {
                members.iter().map(|&(part, start)| (part, start as i64)).collect()
            }
            Parts::None => Vec::new(),
        }
    }

    /// Returns whether an access is inside of an object. Notes it if it is not.
    fn is_inside(&mut self, at: Location, object: usize, offset: i64, size: usize) -> bool {
        self.touched.insert(at);
        let end = usize::try_from(offset).ok().and_then(|start| start.checked_add(size));
        let length = self.objects.get(object).map(Vec::len);
        let is_inside = end.zip(length).is_some_and(|(end, length)| end <= length);
        if !is_inside {
            self.events.insert((at, Event::OutOfBounds));
        }
        is_inside
    }

    fn load(&mut self, at: Location, ty: u32, pointer: &Val) -> Val {
        let &Val::Pointer(object, offset) = pointer else { panic!("not a pointer") };
        match self.is_inside(at, object, offset, self.size(ty)) {
            true => self.read(ty, object, offset),
            false => self.zero(ty),
        }
    }

    fn store(&mut self, at: Location, ty: u32, pointer: &Val, value: &Val) {
        let &Val::Pointer(object, offset) = pointer else { panic!("not a pointer") };
        if self.is_inside(at, object, offset, self.size(ty)) {
            self.write(ty, object, offset, value);
        }
    }

    fn call(&mut self, function: u32, arguments: Vec<Val>, depth: usize) -> Run<Option<Val>> {
        let count = self.objects.len();
        let code = Rc::clone(&self.functions[&function]);
        let mut frame: HashMap<u32, Val> = code.parameters.iter().copied().zip(arguments).collect();
        let (mut at, mut block, mut previous) = (0, 0, 0);
        loop {
            self.fuel = self.fuel.checked_sub(1).ok_or(Stopped)?;
            let (location, i) = code.body[at];
            at += 1;
            let jump = |to: u32| code.labels[&to];
            match i.op().unwrap() {
                Op::Function | Op::FunctionParameter | Op::FunctionEnd => {}
                Op::Label => (previous, block) = (block, i.result().unwrap()),
                Op::Branch => at = jump(i.word(0).unwrap()),
                Op::BranchConditional => {
                    let holds = self.value(&frame, i.word(0).unwrap()) == Val::Bits(1);
                    at = jump(i.word(if holds { 1 } else { 2 }).unwrap());
                }
                Op::Switch => {
                    let Val::Bits(value) = self.value(&frame, i.word(0).unwrap()) else {
                        return Err(Stopped);
                    };
                    let cases: Vec<_> = i.words_from(2).collect();
                    let found = cases.chunks_exact(2).find(|case| u64::from(case[0]) == value);
                    at = jump(found.map_or(i.word(1).unwrap(), |case| case[1]));
                }
                Op::Return | Op::Unreachable => {
                    self.objects.truncate(count);
                    return Ok(None);
                }
                Op::ReturnValue => {
                    self.objects.truncate(count);
                    return Ok(Some(self.value(&frame, i.word(0).unwrap())));
                }
                Op::Phi => {
                    // All phis of a block take the values from before it.
                    let mut new = Vec::new();
                    at -= 1;
                    while let Some((_, phi)) =
                        code.body.get(at).filter(|(_, i)| i.op() == Some(Op::Phi))
                    {
                        let operands: Vec<_> = phi.words_from(2).collect();
                        let pair = operands.chunks_exact(2).find(|pair| pair[1] == previous);
                        new.push((phi.result().unwrap(), self.value(&frame, pair.unwrap()[0])));
                        at += 1;
                    }
                    frame.extend(new);
                }
                Op::Variable => {
                    let object = self.new_object(&i);
                    frame.insert(i.result().unwrap(), Val::Pointer(object, 0));
                    if let Some(initial) = i.word(3) {
                        let ty = self.pointee(i.result_type().unwrap());
                        let value = self.value(&frame, initial);
                        self.write(ty, object, 0, &value);
                    }
                }
                Op::FunctionCall => {
                    if depth > 20 {
                        return Err(Stopped);
                    }
                    let arguments = i.words_from(3).map(|id| self.value(&frame, id)).collect();
                    let result = self.call(i.word(2).unwrap(), arguments, depth + 1)?;
                    result.map(|value| frame.insert(i.result().unwrap(), value));
                }
                op => {
                    if let Some(value) = self.instruction(&frame, location, op, &i)? {
                        frame.insert(i.result().unwrap(), value);
                    }
                }
            }
        }
    }

    fn value(&self, frame: &HashMap<u32, Val>, id: u32) -> Val {
        frame.get(&id).cloned().unwrap_or_else(|| self.constant(id))
    }

    fn built_in(&self, variable: u32) -> Val {
        let Grid { global, offset, local } = self.grid;
        let id = self.global_id;
        let built_in = BuiltIn::from_u32(self.built_ins[&variable]);
        let part = |d: usize| match built_in {
            Some(BuiltIn::GlobalInvocationId) => id[d] + offset[d],
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

    fn instruction(
        &mut self,
        frame: &HashMap<u32, Val>,
        at: Location,
        op: Op,
        i: &Instruction<'m>,
    ) -> Run<Option<Val>> {
        let see = |this: &Self, word: usize| this.value(frame, i.word(word).unwrap());
        let atomic = is_atomic(op);
        Ok(match op {
            Op::Load if self.built_ins.contains_key(&i.word(2).unwrap()) => {
                Some(self.built_in(i.word(2).unwrap()))
            }
            Op::Load => {
                let pointer = see(self, 2);
                Some(self.load(at, i.result_type().unwrap(), &pointer))
            }
            Op::Store => {
                let (pointer, value) = (see(self, 0), see(self, 1));
                self.store(at, self.type_id(i.word(1).unwrap()), &pointer, &value);
                None
            }
            _ if atomic => self.atomic(at, op, i, &|this, word| see(this, word)),
            Op::AccessChain
            | Op::InBoundsAccessChain
            | Op::PtrAccessChain
            | Op::InBoundsPtrAccessChain => Some(self.chain(frame, op, i)),
            Op::ExtInst => self.extended(frame, at, i),
            Op::ControlBarrier
            | Op::MemoryBarrier
            | Op::Nop
            | Op::Line
            | Op::NoLine
            | Op::LoopMerge
            | Op::SelectionMerge
            | Op::LifetimeStart
            | Op::LifetimeStop => None,
            Op::CopyMemory => {
                let (to, from) = (see(self, 0), see(self, 1));
                let ty = self.pointee(self.type_id(i.word(0).unwrap()));
                let value = self.load(at, ty, &from);
                self.store(at, ty, &to, &value);
                None
            }
            Op::CopyMemorySized => return Err(Stopped),
            _ => Some(self.calculate(frame, at, op, i)?),
        })
    }

    fn atomic(
        &mut self,
        at: Location,
        op: Op,
        i: &Instruction<'m>,
        see: &dyn Fn(&Self, usize) -> Val,
    ) -> Option<Val> {
        let word = usize::from(i.result().is_some()) * 2;
        let pointer = see(self, word);
        let ty = self.pointee(self.type_id(i.word(word).unwrap()));
        let before = self.load(at, ty, &pointer);
        let operand = match op {
            Op::AtomicStore => Some(see(self, 3)),
            Op::AtomicIIncrement | Op::AtomicIDecrement | Op::AtomicLoad => None,
            _ => Some(see(self, 5)),
        };
        let (Val::Bits(old), new) = (&before, operand) else { return Some(before) };
        let by = match new {
            Some(Val::Bits(by)) => by,
            _ => 1,
        };
        let new = match op {
            Op::AtomicIAdd | Op::AtomicIIncrement => old.wrapping_add(by),
            Op::AtomicISub | Op::AtomicIDecrement => old.wrapping_sub(by),
            Op::AtomicStore | Op::AtomicExchange => by,
            Op::AtomicAnd => old & by,
            Op::AtomicOr => old | by,
            Op::AtomicXor => old ^ by,
            Op::AtomicUMax => *old.max(&by),
            Op::AtomicUMin => *old.min(&by),
            _ => *old,
        };
        let inside = self.events.contains(&(at, Event::OutOfBounds));
        if !inside || self.can_touch(&pointer, self.size(ty)) {
            self.store(at, ty, &pointer, &Val::Bits(new));
        }
        i.result().map(|_| before)
    }

    fn can_touch(&self, pointer: &Val, size: usize) -> bool {
        let &Val::Pointer(object, offset) = pointer else { return false };
        let end = usize::try_from(offset).ok().and_then(|start| start.checked_add(size));
        end.zip(self.objects.get(object)).is_some_and(|(end, bytes)| end <= bytes.len())
    }

    fn chain(&self, frame: &HashMap<u32, Val>, op: Op, i: &Instruction<'m>) -> Val {
        let base = i.word(2).unwrap();
        let Val::Pointer(object, mut offset) = self.value(frame, base) else {
            panic!("not a pointer")
        };
        let mut ty = self.pointee(self.type_id(base));
        let mut indexes = i.words_from(3);
        let index = |id: u32| {
            let Val::Bits(bits) = self.value(frame, id) else { panic!("not an index") };
            signed(bits, self.ty(self.type_id(id)).word(1).unwrap())
        };
        if matches!(op, Op::PtrAccessChain | Op::InBoundsPtrAccessChain) {
            let by = index(indexes.next().unwrap()).wrapping_mul(self.size(ty) as i64);
            offset = offset.wrapping_add(by);
        }
        for id in indexes {
            let index = index(id);
            match &self.layouts.get(ty).unwrap().parts {
                Parts::Equal(part, stride) => {
                    offset = offset.wrapping_add(index.wrapping_mul(*stride as i64));
                    ty = *part;
                }
                Parts::Members(members) => {
                    let (member, start) = members[usize::try_from(index).unwrap()];
                    offset = offset.wrapping_add(start as i64);
                    ty = member;
                }
                Parts::None => panic!("no parts"),
            }
        }
        Val::Pointer(object, offset)
    }

    fn extended(
        &mut self,
        frame: &HashMap<u32, Val>,
        at: Location,
        i: &Instruction<'m>,
    ) -> Option<Val> {
        let see = |this: &Self, word: usize| this.value(frame, i.word(word).unwrap());
        let ty = i.result_type().unwrap();
        if let Some(access) = VectorAccess::of(self.definitions, i) {
            let span = access.span.unwrap();
            let (Val::Bits(index), Val::Pointer(object, offset)) =
                (see(self, access.offset), see(self, access.pointer()))
            else {
                panic!("not an access")
            };
            let width = self.ty(self.type_id(i.word(access.offset).unwrap())).word(1).unwrap();
            let offset = offset.wrapping_add(signed(index, width).wrapping_mul(span.size as i64));
            let size = usize::try_from(span.size).unwrap();
            let is_inside = self.is_inside(at, object, offset, size);
            if let Some(stored) = access.stored {
                let (value, ty) = (see(self, stored), self.type_id(i.word(stored).unwrap()));
                if is_inside && !access.converts {
                    self.write(ty, object, offset, &value);
                }
                return None;
            }
            let is_read = is_inside && !access.converts;
            return Some(if is_read { self.read(ty, object, offset) } else { self.zero(ty) });
        }
        let function = i.word(3).and_then(Extended::from_u32);
        let operands: Vec<_> = (4..i.words().len() - 1).map(|word| see(self, word)).collect();
        Some(self.by_parts(ty, &operands, &|this, ty, operands| {
            let width = this.ty(ty).word(1).unwrap_or(1);
            let is_int = this.ty(ty).op() == Some(Op::TypeInt);
            match function {
                Some(function) if is_int => called(function, operands, width),
                _ => operands.first().copied().unwrap_or(0),
            }
        }))
    }
}
