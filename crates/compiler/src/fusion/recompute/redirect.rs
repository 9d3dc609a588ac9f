//! Rewrite of a stage's function: accesses to memories that an earlier stage produces go to arrays, or run the
//! producing stage.

use std::collections::{BTreeMap, HashMap, HashSet};

use kiln_spirv::edit::{
    Definitions, Function, Instruction, Section, Stream, located, string_words,
};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{BuiltIn, Decoration, FunctionControl, LinkageType, Op, StorageClass};

use super::code::Code;
use super::elements::{Coordinate, Element, Grid};
use crate::analysis::declaration::Declaration;
use crate::analysis::pointer_uses::{AccessOperands, Uses};
use crate::transform::written;

/// Parameter of a stage's function that is an array of elements.
pub(super) struct Redirected {
    pub(super) parameter: usize,
    pub(super) uses: Uses,
    pub(super) grid: Grid,
    pub(super) accesses: Accesses,
}

/// Elements that are read, by the word offset of the load in the function's body: one, or one for each
/// component of a vector.
pub(super) type Elements = BTreeMap<u32, Vec<Element>>;

/// Accesses of a function to an array, by their word offset in the function's body.
pub(super) enum Accesses {
    /// Writes to the element of the work-item that runs, each with the first byte in the element. The parameter
    /// becomes a pointer to that element, in a variable.
    Own(BTreeMap<u32, i128>),
    /// Writes of the whole element of the work-item that runs, which may write nothing. The element is then
    /// what the buffer holds. A new parameter is added for the pointer to the element.
    OwnOrBefore(BTreeMap<u32, i128>),
    /// Reads of elements in an array of the storage class. The parameter becomes a pointer to the array. A new
    /// parameter is added for the origin in each dimension with [`Axis::Moved`].
    Kept(Elements, StorageClass, [Axis; 3]),
    /// Reads before each of which the stage that produces the element runs again.
    Again(Elements, Producer),
}

impl Accesses {
    /// Returns whether these are writes to elements of the work-item that runs.
    pub(super) fn writes(&self) -> bool {
        matches!(self, Self::Own(_) | Self::OwnOrBefore(_))
    }
}

/// Positions of elements in an array, in one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Axis {
    /// There is only one.
    One,
    /// The coordinate minus the origin of the array, times the number of units.
    Moved { pitch: i128 },
    /// The lowest bits of the coordinate, times the number of units.
    Ring { mask: i128, pitch: i128 },
}

/// Stage that runs again for each element that is read.
#[derive(Clone, Debug)]
pub(super) struct Producer {
    /// Number of the stage.
    pub(super) stage: usize,
    /// Sizes of the elements that it writes, in bytes, in the order of its parameters.
    pub(super) sizes: Vec<i128>,
    /// Index of the element that is read among these.
    pub(super) read: usize,
}

impl Producer {
    /// Returns the name under which functions call a stage. Calls are bound once all stages are in one module.
    pub(super) fn name(stage: usize) -> String {
        format!("kiln.stage{stage}.again")
    }
}

/// Returns the size in bytes of the units in which elements are declared.
pub(super) fn unit(size: i128) -> u32 {
    if size % 4 == 0 { 4 } else { 1 }
}

/// Rewrites a function. New parameters follow all others, in the order of `arrays`.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if the module is damaged.
pub(super) fn redirect(module: &mut Module, function: u32, arrays: &[Redirected]) -> Result<()> {
    if arrays.is_empty() {
        return Ok(());
    }
    let snapshot = module.clone();
    let definitions = snapshot.definitions();
    let at = snapshot.functions.iter().position(|known| known.id == function);
    let at = at.ok_or_else(|| Error::unsupported("a kernel has no function"))?;
    let body = &snapshot.functions[at].body;
    let mut writer = Writer {
        code: Code::new(module)?,
        variables: Stream::default(),
        casts: Stream::default(),
        elements: HashMap::new(),
        calls: HashMap::new(),
    };
    let mut declaration = Declaration::of(body);
    let mut pointers = Vec::new();
    for array in arrays {
        pointers.push(writer.parameters(&definitions, array, &mut declaration)?);
    }
    // Where a stage runs again for each read, nothing is passed for what it writes.
    let unused = arrays.iter().zip(&pointers);
    let unused = unused.filter(|(array, _)| matches!(array.accesses, Accesses::Again(..)));
    let unused: HashSet<_> = unused.map(|(_, known)| known.pointer).collect();
    declaration.parameters.retain(|(id, _)| !unused.contains(id));
    let mut start = None;
    for (location, i) in located((0, body)) {
        let offset = location.offset;
        let code = &mut writer.code;
        if arrays.iter().any(|array| array.uses.dropped.contains(&offset))
            || declaration.rewrite(&i, code.module, &mut code.interner, &mut code.new)?
        {
            continue;
        }
        if i.op() == Some(Op::Return) {
            for (array, pointers) in arrays.iter().zip(&pointers) {
                writer.complete(array, pointers)?;
            }
        }
        if start.is_none() && i.op() == Some(Op::Label) {
            writer.code.new.push_instruction(&i);
            start = Some(std::mem::take(&mut writer.code.new));
            continue;
        }
        let mut own = arrays.iter().zip(&pointers);
        let is_written = own.try_for_each(|(array, pointer)| {
            match writer.access(&definitions, array, pointer, offset, &i) {
                Ok(false) => Ok(()),
                Ok(true) => Err(None),
                Err(error) => Err(Some(error)),
            }
        });
        match is_written {
            Ok(()) => writer.code.new.push_instruction(&i),
            Err(None) => {}
            Err(Some(error)) => return Err(error),
        }
    }
    // Variables come first in a function.
    let is_variable = |i: &Instruction<'_>| i.op() == Some(Op::Variable);
    let mut new = start.unwrap_or_default();
    new.append(&writer.variables);
    let (mut rest, variables) = (writer.code.new.clone(), writer.code.new);
    rest.retain(|i| !is_variable(i));
    for variable in variables.iter().filter(is_variable) {
        new.push_instruction(&variable);
    }
    new.append(&writer.casts);
    new.append(&rest);
    // A declaration may have been added before the function.
    let function = module.functions.iter_mut().find(|known| known.id == function);
    let function = function.ok_or_else(|| Error::unsupported("a kernel has no function"))?;
    function.body = new;
    Ok(())
}

/// Parameters of a function that stand for an array.
struct Pointers {
    pointer: u32,
    /// Set if the element may have to be copied from the buffer.
    before: Option<Before>,
    /// Origin of the array in each dimension with [`Axis::Moved`].
    origins: [Option<u32>; 3],
}

/// Buffer whose contents are an element that is not written.
struct Before {
    buffer: u32,
    /// Storage class of the buffer.
    class: StorageClass,
    /// Variable that is 0 until the element is written.
    is_written: u32,
}

/// Address of a unit.
#[derive(Clone, Copy)]
struct Place {
    class: StorageClass,
    pointer: u32,
    /// Size of the unit in bytes.
    unit: u32,
}

impl Place {
    /// Returns the place of the first unit of an array, given by a pointer to it.
    fn of(array: &Redirected, class: StorageClass, pointer: u32) -> Self {
        Self { class, pointer, unit: unit(array.grid.size) }
    }
}

struct Writer<'m> {
    code: Code<'m>,
    /// Declarations of variables.
    variables: Stream,
    /// Casts of the variables, which follow them.
    casts: Stream,
    /// Variables for the elements that a stage writes when it runs again, by the stage.
    elements: HashMap<usize, Vec<u32>>,
    /// Declarations of the functions of such stages.
    calls: HashMap<usize, u32>,
}

impl Writer<'_> {
    /// Changes the type of an array's parameter, and adds the parameters for its origin.
    fn parameters(
        &mut self,
        definitions: &Definitions<'_>,
        array: &Redirected,
        declaration: &mut Declaration,
    ) -> Result<Pointers> {
        let class = match &array.accesses {
            Accesses::Kept(_, class, _) => *class,
            Accesses::Own(_) | Accesses::OwnOrBefore(_) | Accesses::Again(..) => {
                StorageClass::Function
            }
        };
        let unit = self.code.unit(unit(array.grid.size))?;
        let ty = self.code.pointer(class, unit)?;
        let own = declaration.parameters.get_mut(array.parameter);
        let own = own.ok_or_else(|| Error::unsupported("a kernel has too few parameters"))?;
        let mut pointer = own.0;
        // The decorations are those of a buffer that the function writes.
        let annotations = self.code.module.section_mut(Section::Annotations);
        annotations.retain(|i| i.target() != Some(pointer));
        let mut before = None;
        if let Accesses::OwnOrBefore(_) = array.accesses {
            before = Some(self.before(definitions, *own)?);
            pointer = self.code.module.fresh_id()?;
            declaration.parameters.push((pointer, ty));
        } else {
            own.1 = ty;
        }
        let mut origins = [None; 3];
        if let Accesses::Kept(_, _, axes) = &array.accesses {
            for (origin, axis) in origins.iter_mut().zip(axes) {
                if matches!(axis, Axis::Moved { .. }) {
                    let id = self.code.module.fresh_id()?;
                    declaration.parameters.push((id, self.code.int));
                    *origin = Some(id);
                }
            }
        }
        Ok(Pointers { pointer, before, origins })
    }

    /// Declares what is needed to copy an element from a buffer, which is a parameter with the given id and
    /// type.
    fn before(
        &mut self,
        definitions: &Definitions<'_>,
        (buffer, ty): (u32, u32),
    ) -> Result<Before> {
        let class = definitions.get(ty).and_then(|ty| ty.storage_class());
        let class = class.and_then(StorageClass::from_u32);
        let class = class.ok_or_else(|| Error::unsupported("a pointer has no type"))?;
        let ty = self.code.pointer(StorageClass::Function, self.code.int)?;
        let is_written = self.code.module.fresh_id()?;
        self.variables.push(Op::Variable, [ty, is_written, StorageClass::Function as u32]);
        written::mark(self.code.module, is_written);
        let zero = self.code.number(0)?;
        self.casts.push(Op::Store, [is_written, zero]);
        Ok(Before { buffer, class, is_written })
    }

    /// Writes the copy of an array's element from the buffer, for runs that did not write the element.
    fn complete(&mut self, array: &Redirected, pointers: &Pointers) -> Result<()> {
        let Some(before) = &pointers.before else { return Ok(()) };
        let code = &mut self.code;
        let is_written = code.typed(code.int, Op::Load, &[before.is_written])?;
        let zero = code.number(0)?;
        let is_missing = code.compare(Op::IEqual, is_written, zero)?;
        let after = code.begin_if(is_missing)?;
        let bytes = unit(array.grid.size);
        let units = array.grid.size / i128::from(bytes);
        let unit = code.unit(bytes)?;
        let source = code.pointer(before.class, unit)?;
        let target = code.pointer(StorageClass::Function, unit)?;
        let id = code.load_id(BuiltIn::GlobalInvocationId)?;
        let [width, height, _] = array.grid.counts;
        let mut first = code.times(id[0], units)?;
        for (number, pitch) in [(id[1], width), (id[2], width * height)] {
            let rows = code.times(number, pitch * units)?;
            first = code.binary(Op::IAdd, first, rows)?;
        }
        let from = code.typed(source, Op::Bitcast, &[before.buffer])?;
        let from = code.at(from, source, first)?;
        for at in 0..units {
            let index = code.number(at)?;
            let (own, from) =
                (code.at(pointers.pointer, target, index)?, code.at(from, source, index)?);
            let value = code.typed(unit, Op::Load, &[from])?;
            code.new.push(Op::Store, [own, value]);
        }
        code.end_if(after);
        Ok(())
    }

    /// Rewrites an access, if it is one to the array.
    fn access(
        &mut self,
        definitions: &Definitions<'_>,
        array: &Redirected,
        pointers: &Pointers,
        offset: u32,
        i: &Instruction<'_>,
    ) -> Result<bool> {
        match &array.accesses {
            Accesses::Own(accesses) | Accesses::OwnOrBefore(accesses) => {
                let Some(&part) = accesses.get(&offset) else { return Ok(false) };
                let place = Place::of(array, StorageClass::Function, pointers.pointer);
                let place = self.part(place, part)?;
                self.rewritten(definitions, i, place)?;
                if let Some(before) = &pointers.before {
                    let one = self.code.number(1)?;
                    self.code.new.push(Op::Store, [before.is_written, one]);
                }
            }
            Accesses::Kept(accesses, ..) | Accesses::Again(accesses, _) => {
                let Some(elements) = accesses.get(&offset) else { return Ok(false) };
                if let [element] = elements.as_slice() {
                    let start = self.start(definitions, array, pointers, element)?;
                    let place = self.within(definitions, start, element)?;
                    self.rewritten(definitions, i, place)?;
                } else {
                    self.gather(definitions, array, pointers, elements, i)?;
                }
            }
        }
        Ok(true)
    }

    /// Writes the loads of the components of a vector, each from its element.
    fn gather(
        &mut self,
        definitions: &Definitions<'_>,
        array: &Redirected,
        pointers: &Pointers,
        elements: &[Element],
        i: &Instruction<'_>,
    ) -> Result<()> {
        let missing = || Error::unsupported("a vector has no type");
        let (ty, result) = i.result_type().zip(i.result()).ok_or_else(missing)?;
        let (component, _) = definitions.get(ty).and_then(|ty| ty.vector()).ok_or_else(missing)?;
        let mut operands = vec![ty, result];
        let mut last: Option<(&Element, Place)> = None;
        for element in elements {
            // Components of one element follow each other.
            let start = match last {
                Some((known, start)) if known.has_place_of(element) => start,
                _ => self.start(definitions, array, pointers, element)?,
            };
            last = Some((element, start));
            let place = self.within(definitions, start, element)?;
            let address = self.cast(place, component)?;
            operands.push(self.code.typed(component, Op::Load, &[address])?);
        }
        self.code.new.push(Op::CompositeConstruct, operands);
        Ok(())
    }

    /// Writes the calculation of the place of an element, or runs the stage that produces it.
    fn start(
        &mut self,
        definitions: &Definitions<'_>,
        array: &Redirected,
        pointers: &Pointers,
        element: &Element,
    ) -> Result<Place> {
        match &array.accesses {
            Accesses::Again(_, producer) => self.run(definitions, array, producer, element),
            Accesses::Kept(_, class, axes) => {
                let index = self.index(definitions, element, axes, &pointers.origins)?;
                self.at(Place::of(array, *class, pointers.pointer), index)
            }
            Accesses::Own(_) | Accesses::OwnOrBefore(_) => {
                Err(Error::unsupported("an element is not known"))
            }
        }
    }

    /// Writes the calculation of the place that is read in an element.
    fn within(
        &mut self,
        definitions: &Definitions<'_>,
        start: Place,
        element: &Element,
    ) -> Result<Place> {
        let Element { plane, piece, part, .. } = element;
        if plane.terms.is_empty() {
            return self.part(start, plane.constant * piece + part);
        }
        let plane = self.coordinate(definitions, plane)?;
        let place = self.parts(start, plane, *piece)?;
        self.part(place, *part)
    }

    /// Writes the address of the unit that begins `bytes` bytes after a place.
    fn part(&mut self, place: Place, bytes: i128) -> Result<Place> {
        if bytes == 0 {
            return Ok(place);
        }
        let place = self.dividing(place, bytes)?;
        let index = self.code.number(bytes / i128::from(place.unit))?;
        self.at(place, Some(index))
    }

    /// Writes the address of the unit that begins a number of parts, of `bytes` bytes each, after a place.
    fn parts(&mut self, place: Place, number: u32, bytes: i128) -> Result<Place> {
        let place = self.dividing(place, bytes)?;
        let index = self.code.times(number, bytes / i128::from(place.unit))?;
        self.at(place, Some(index))
    }

    /// Writes a place in units of which `bytes` bytes are a multiple.
    fn dividing(&mut self, place: Place, bytes: i128) -> Result<Place> {
        if bytes % i128::from(place.unit) == 0 {
            return Ok(place);
        }
        let byte = self.code.unit(1)?;
        Ok(Place { pointer: self.cast(place, byte)?, unit: 1, ..place })
    }

    /// Writes the address of the unit with an index after a place; `None` stands for 0.
    fn at(&mut self, place: Place, index: Option<u32>) -> Result<Place> {
        let Some(index) = index else { return Ok(place) };
        let unit = self.code.unit(place.unit)?;
        let ty = self.code.pointer(place.class, unit)?;
        Ok(Place { pointer: self.code.at(place.pointer, ty, index)?, ..place })
    }

    /// Writes a place as the address of a value of another type.
    fn cast(&mut self, place: Place, pointee: u32) -> Result<u32> {
        if pointee == self.code.unit(place.unit)? {
            return Ok(place.pointer);
        }
        let ty = self.code.pointer(place.class, pointee)?;
        self.code.typed(ty, Op::Bitcast, &[place.pointer])
    }

    /// Writes an access with another address.
    fn rewritten(
        &mut self,
        definitions: &Definitions<'_>,
        i: &Instruction<'_>,
        place: Place,
    ) -> Result<()> {
        let operands = AccessOperands::of(definitions, i);
        let operands = operands.ok_or_else(|| Error::unsupported("an access is not known"))?;
        let pointee = definitions.type_of(operands.pointer).and_then(|ty| ty.pointee());
        let pointee = pointee.ok_or_else(|| Error::unsupported("a pointer has no type"))?;
        let address = self.cast(place, pointee)?;
        let op = i.op().ok_or_else(|| Error::unsupported("an access is not known"))?;
        let Code { module, interner, new, .. } = &mut self.code;
        new.push(op, operands.readdressed(definitions, i, address, module, interner)?);
        Ok(())
    }

    /// Writes the calculation of an element's index in an array, in units; `None` if it is 0.
    fn index(
        &mut self,
        definitions: &Definitions<'_>,
        element: &Element,
        axes: &[Axis; 3],
        origins: &[Option<u32>; 3],
    ) -> Result<Option<u32>> {
        let mut sum = None;
        for ((coordinate, axis), origin) in element.coordinates.iter().zip(axes).zip(origins) {
            let (position, pitch) = match *axis {
                Axis::One => continue,
                Axis::Moved { pitch } => {
                    let position = self.coordinate(definitions, coordinate)?;
                    let origin =
                        origin.ok_or_else(|| Error::unsupported("an origin is missing"))?;
                    (self.code.binary(Op::ISub, position, origin)?, pitch)
                }
                Axis::Ring { mask, pitch } => {
                    let position = self.coordinate(definitions, coordinate)?;
                    let mask = self.code.number(mask)?;
                    (self.code.binary(Op::BitwiseAnd, position, mask)?, pitch)
                }
            };
            let units = self.code.times(position, pitch)?;
            sum = Some(match sum {
                None => units,
                Some(sum) => self.code.binary(Op::IAdd, sum, units)?,
            });
        }
        Ok(sum)
    }

    /// Writes the calculation of a coordinate.
    fn coordinate(
        &mut self,
        definitions: &Definitions<'_>,
        coordinate: &Coordinate,
    ) -> Result<u32> {
        let mut sum = None;
        for &(value, factor) in &coordinate.terms {
            let width = definitions.type_of(value).and_then(|ty| ty.width()).unwrap_or_default();
            let value = match width {
                32 => value,
                64 => self.code.typed(self.code.int, Op::UConvert, &[value])?,
                _ => self.code.typed(self.code.int, Op::SConvert, &[value])?,
            };
            let value = self.code.times(value, factor)?;
            sum = Some(match sum {
                None => value,
                Some(sum) => self.code.binary(Op::IAdd, sum, value)?,
            });
        }
        match sum {
            None => self.code.number(coordinate.constant),
            Some(sum) => self.code.plus(sum, coordinate.constant),
        }
    }

    /// Writes a call of the stage that produces an element. Returns the place where the element is then, or
    /// the part of it that the element's coordinates count.
    fn run(
        &mut self,
        definitions: &Definitions<'_>,
        array: &Redirected,
        producer: &Producer,
        element: &Element,
    ) -> Result<Place> {
        let variables = self.element_variables(producer)?;
        let [component, vector] = self.id_types()?;
        let mut numbers = [0; 3];
        for (number, coordinate) in numbers.iter_mut().zip(&element.coordinates) {
            *number = self.coordinate(definitions, coordinate)?;
        }
        let mut place = Place::of(array, StorageClass::Function, variables[producer.read]);
        if let Some(divided) = element.divided {
            let mut rest = numbers[0];
            if divided.parts > 1 {
                let parts = self.code.number(divided.parts)?;
                let part = self.code.binary(Op::UMod, rest, parts)?;
                place = self.parts(place, part, element.piece / divided.parts)?;
                rest = self.code.binary(Op::UDiv, rest, parts)?;
            }
            for (number, count) in numbers.iter_mut().zip(divided.counts) {
                let count = self.code.number(count)?;
                *number = self.code.binary(Op::UMod, rest, count)?;
                rest = self.code.binary(Op::UDiv, rest, count)?;
            }
            numbers[2] = rest;
        }
        let mut id = Vec::new();
        for number in numbers {
            id.push(match component == self.code.int {
                true => number,
                false => self.code.typed(component, Op::UConvert, &[number])?,
            });
        }
        let id = self.code.typed(vector, Op::CompositeConstruct, &id)?;
        let function = self.function(producer, vector)?;
        let code = &mut self.code;
        let void = code.interner.type_id(code.module, Op::TypeVoid, &[])?;
        let mut operands = vec![function];
        operands.extend(&variables);
        operands.push(id);
        code.typed(void, Op::FunctionCall, &operands)?;
        Ok(place)
    }

    /// Returns the types of an id of a work-item: of a component and of the vector.
    fn id_types(&mut self) -> Result<[u32; 2]> {
        let code = &mut self.code;
        let width = crate::analysis::constants::address_width(code.module);
        let component = code.interner.type_id(code.module, Op::TypeInt, &[width, 0])?;
        let vector = code.interner.type_id(code.module, Op::TypeVector, &[component, 3])?;
        Ok([component, vector])
    }

    /// Returns pointers to the first units of variables for the elements that a stage writes.
    fn element_variables(&mut self, producer: &Producer) -> Result<Vec<u32>> {
        if let Some(known) = self.elements.get(&producer.stage) {
            return Ok(known.clone());
        }
        let (mut pointers, mut casts) = (Vec::new(), Stream::default());
        for &size in &producer.sizes {
            let bytes = unit(size);
            let count = size / i128::from(bytes);
            let [array, pointer] = self.code.array(StorageClass::Function, bytes, count)?;
            let (id, cast) = (self.code.module.fresh_id()?, self.code.module.fresh_id()?);
            self.variables.push(Op::Variable, [array, id, StorageClass::Function as u32]);
            let annotations = self.code.module.section_mut(Section::Annotations);
            annotations.push(Op::Decorate, [id, Decoration::Alignment as u32, alignment(size)]);
            written::mark(self.code.module, id);
            casts.push(Op::Bitcast, [pointer, cast, id]);
            pointers.push(cast);
        }
        self.elements.insert(producer.stage, pointers.clone());
        self.casts.append(&casts);
        Ok(pointers)
    }

    /// Returns a declaration of the function of a stage.
    fn function(&mut self, producer: &Producer, vector: u32) -> Result<u32> {
        if let Some(&known) = self.calls.get(&producer.stage) {
            return Ok(known);
        }
        let mut types = Vec::new();
        for &size in &producer.sizes {
            let unit = self.code.unit(unit(size))?;
            types.push(self.code.pointer(StorageClass::Function, unit)?);
        }
        types.push(vector);
        let code = &mut self.code;
        let void = code.interner.type_id(code.module, Op::TypeVoid, &[])?;
        let all: Vec<_> = [void].into_iter().chain(types.iter().copied()).collect();
        let ty = code.interner.type_id(code.module, Op::TypeFunction, &all)?;
        let id = code.module.fresh_id()?;
        let mut body = Stream::default();
        body.push(Op::Function, [void, id, FunctionControl::NONE.bits(), ty]);
        for ty in types {
            body.push(Op::FunctionParameter, [ty, code.module.fresh_id()?]);
        }
        body.push(Op::FunctionEnd, []);
        code.module.functions.insert(0, Function { id, body });
        let name = Producer::name(producer.stage);
        let words = [id, Decoration::LinkageAttributes as u32].into_iter();
        let words = words.chain(string_words(&name)).chain([LinkageType::Import as u32]);
        code.module.section_mut(Section::Annotations).push(Op::Decorate, words);
        self.calls.insert(producer.stage, id);
        Ok(id)
    }
}

/// Returns the alignment of a variable that holds elements of a size, in bytes.
pub(super) fn alignment(size: i128) -> u32 {
    let lowest = (size as u128 & (size as u128).wrapping_neg()) as u32;
    lowest.clamp(4, crate::analysis::access::MAX_ALIGN)
}
