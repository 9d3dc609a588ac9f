//! Elements of the memories that an earlier stage produces: which work-item writes each element, and the
//! coordinates of the elements that later stages read.
//!
//! Each work-item of a producing launch writes one element, at a place that grows with its id: element `x + w * y`
//! of a launch over `w x h` work-items. The coordinates of an element are the id of the work-item that writes
//! it. To find the coordinates that a later launch reads, the address is taken apart into a sum of values with
//! factors. Values whose factor is a multiple of a row's size belong to the row, the others to the column. This
//! is exact if the column is proven to lie within a row.

use rspirv::spirv::Op;

use crate::compiler::fusion::access::{Access, Flow, Layouts, Values};
use crate::compiler::fusion::affine::{Form, Space};
use crate::compiler::fusion::local_memory::{self, Steps};
use crate::compiler::fusion::promote::AccessOperands;
use crate::compiler::spirv::edit::{Definitions, Instruction, Location};

/// Maximum number of values in the sum that an address is taken apart into.
const MAX_TERMS: usize = 32;

/// Maximum number of instructions through which an address is traced back to its parameter.
const MAX_CHAINS: usize = 32;

/// Exclusive bound of coordinates, which are calculated as signed numbers of 32 bits.
const MAX_COORDINATE: i128 = 1 << 30;

/// Elements of a memory, each of which one work-item of a launch writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    /// Size of an element in bytes.
    pub(super) size: i128,
    /// Number of elements in each dimension, which is the global size of the launch.
    pub(super) counts: [i128; 3],
}

/// Elements that a launch writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) grid: Grid,
    /// Number of bytes from the start of the element to each write.
    pub(super) parts: Vec<i128>,
    /// Whether every work-item writes its whole element. Otherwise, each write is one of the whole element, and
    /// some work-items may write nothing.
    pub(super) is_certain: bool,
}

impl Written {
    /// Returns the elements that a launch writes at the given places.
    ///
    /// # Errors
    ///
    /// Fails with the reason if a work-item may write anything but its own element, or a part of it only, worded
    /// to follow the name of the buffer.
    pub(super) fn of(writes: &[&Access], flow: &Flow, space: &Space) -> Result<Self, &'static str> {
        let (mut size, mut parts) = (None, Vec::new());
        for write in writes {
            let bytes = write.bytes.ok_or("is written at places that are not known")?;
            let own = element_size(&bytes.start, space);
            let own = own.ok_or("is not written at the place of the work-item's own element")?;
            if *size.get_or_insert(own) != own {
                return Err("is written in elements of different sizes");
            }
            parts.push((bytes.start.low, bytes.width));
        }
        let size = size.ok_or("is not written")?;
        if parts.iter().any(|&(start, width)| start < 0 || start + width > size) {
            return Err("is not written in whole elements");
        }
        if space.global.iter().any(|&count| count >= MAX_COORDINATE) {
            return Err("has too many elements");
        }
        // A part is certain if every run passes one of its writes.
        let is_certain = |&(part, _): &(&(i128, i128), &&Access)| {
            let own = || parts.iter().zip(writes).filter(|(known, _)| *known == part);
            let locations: Option<Vec<_>> = own().map(|(_, write)| write.location).collect();
            own().any(|(_, write)| write.is_certain)
                || locations.is_some_and(|locations| flow.always_passes(&locations))
        };
        let certain = parts.iter().zip(writes).filter(is_certain).map(|(part, _)| *part);
        let is_certain = covers(certain.collect(), size);
        if !is_certain && parts.iter().any(|part| *part != (0, size)) {
            return Err(if covers(parts, size) {
                "is not written by every work-item"
            } else {
                "is not written in whole elements"
            });
        }
        let parts = parts.into_iter().map(|(at, _)| at).collect();
        Ok(Self { grid: Grid { size, counts: space.global }, parts, is_certain })
    }
}

/// Returns whether parts of an element, given by their starts and widths, make up all of its bytes.
fn covers(mut parts: Vec<(i128, i128)>, size: i128) -> bool {
    parts.sort_unstable();
    let covered = parts.into_iter().try_fold(0, |covered: i128, (start, width)| {
        (start <= covered).then_some(covered.max(start + width))
    });
    covered == Some(size)
}

impl Grid {
    /// Returns the number of bytes of all elements; `None` if their units cannot be counted as coordinates.
    pub(super) fn bytes(&self) -> Option<i128> {
        let bytes = self.counts.iter().try_fold(self.size, |all, &count| all.checked_mul(count))?;
        (bytes < MAX_COORDINATE).then_some(bytes)
    }

    /// Returns the distance in bytes of neighbouring elements in each dimension.
    fn strides(&self) -> [i128; 3] {
        let [width, height, _] = self.counts;
        [self.size, self.size * width, self.size * width * height]
    }
}

/// Returns the size of the elements that are written at a place: each work-item's element is followed by that
/// of the work-item with the next linear id.
pub(super) fn element_size(start: &Form, space: &Space) -> Option<i128> {
    if !start.is_exact() || space.offset != [0; 3] {
        return None;
    }
    let factors = start.coefficients();
    let (mut size, mut items) = (None, 1);
    for (d, &factor) in factors.iter().enumerate() {
        if space.global[d] > 1 {
            let size = *size.get_or_insert(factor);
            if size <= 0 || factor != items * size {
                return None;
            }
            items *= space.global[d];
        }
    }
    size
}

/// Address as a sum: values with the numbers of bytes that they are multiplied by, and a constant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Address {
    terms: Vec<(u32, i128)>,
    constant: i128,
}

/// Coordinate of an element in one dimension: the sum of values with factors, and a constant.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Coordinate {
    pub(super) terms: Vec<(u32, i128)>,
    pub(super) constant: i128,
    pub(super) form: Form,
}

/// Place that an access reads.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Element {
    pub(super) coordinates: [Coordinate; 3],
    /// First byte within the element.
    pub(super) part: i128,
    /// Numbers of elements in the first two dimensions, if the first of the coordinates counts the elements row
    /// by row, and the coordinates follow from it by division.
    pub(super) divided: Option<[i128; 2]>,
}

/// Load of a function, from whose values its address is taken apart.
pub(super) struct Reader<'a, 'm> {
    pub(super) definitions: &'a Definitions<'m>,
    pub(super) layouts: &'a Layouts,
    pub(super) values: &'a Values<'m>,
    /// Work-items that run the function.
    pub(super) space: &'a Space,
    pub(super) load: Instruction<'m>,
    pub(super) location: Location,
}

impl Reader<'_, '_> {
    /// Returns the element that the load reads through a parameter, given by its id. `first` is the number of bytes
    /// from the grid's first element to the parameter's buffer.
    ///
    /// # Errors
    ///
    /// Fails with the reason, worded to follow the name of the buffer.
    pub(super) fn element(
        &self,
        parameter: u32,
        grid: &Grid,
        first: i128,
    ) -> Result<Element, &'static str> {
        let known = self.address(parameter).zip(self.size());
        let (mut address, size) = known.ok_or("is read at places that are not known")?;
        address.constant += first;
        let element = self.take_apart(&address, grid);
        let element = element.or_else(|| self.count(&address, grid));
        let element = element.ok_or("is read at places that may be outside of what is written")?;
        if element.part + size > grid.size {
            return Err("is read in parts of several elements at once");
        }
        Ok(element)
    }

    /// Returns the form of a value where the load uses it.
    fn form(&self, value: u32) -> Option<Form> {
        self.values.form(value, self.location)
    }

    /// Returns the number of bytes that the load reads.
    fn size(&self) -> Option<i128> {
        let ty = self.load.result_type()?;
        let vector = self.definitions.get(ty).filter(|ty| ty.op() == Some(Op::TypeVector));
        match vector.filter(|_| self.load.op() == Some(Op::ExtInst)) {
            // A vector of three elements takes the memory of three here, not of four (OpenCL C, 6.13.7).
            Some(vector) => Some(self.layouts.size(vector.word(1)?)? * i128::from(vector.word(2)?)),
            None => self.layouts.size(ty),
        }
    }

    /// Returns the address that the load reads, relative to the buffer that is the parameter.
    fn address(&self, parameter: u32) -> Option<Address> {
        let load = &self.load;
        let operands = AccessOperands::of(self.definitions, load)?;
        let steps = Steps::of_access(self.definitions, load)?;
        let mut all = vec![steps];
        let mut pointer = load.word(operands.pointer)?;
        while pointer != parameter {
            let i = self.definitions.get(pointer)?;
            let is_address = matches!(
                i.op()?,
                Op::AccessChain
                    | Op::InBoundsAccessChain
                    | Op::PtrAccessChain
                    | Op::InBoundsPtrAccessChain
                    | Op::Bitcast
                    | Op::CopyObject
                    | Op::PtrCastToGeneric
                    | Op::GenericCastToPtr
            );
            if !is_address || all.len() > MAX_CHAINS {
                return None;
            }
            all.push(Steps::of_chain(self.definitions, self.layouts, &i)?);
            pointer = i.word(2)?;
        }
        let mut address = Address::default();
        for steps in all {
            address.constant = address.constant.checked_add(steps.constant)?;
            for (index, stride) in steps.indexes {
                self.add(&mut address, index, stride)?;
            }
        }
        Some(address)
    }

    /// Adds a value times a factor to an address, taken apart as far as it is certain that nothing wraps.
    fn add(&self, address: &mut Address, value: u32, factor: i128) -> Option<()> {
        if let Some(constant) = self.constant(value) {
            address.constant = address.constant.checked_add(constant.checked_mul(factor)?)?;
            return Some(());
        }
        if address.terms.len() > MAX_TERMS {
            return None;
        }
        match self.parts(value).filter(|parts| self.is_sum(value, parts)) {
            None => {
                self.bounds(value)?;
                address.terms.push((value, factor));
            }
            Some(parts) => {
                for (part, times) in parts {
                    self.add(address, part, factor.checked_mul(times)?)?;
                }
            }
        }
        Some(())
    }

    /// Returns the values of which a value is the sum, each with its factor, if nothing wraps.
    fn parts(&self, value: u32) -> Option<Vec<(u32, i128)>> {
        let i = self.definitions.get(value)?;
        let (a, b) = (i.word(2)?, i.word(3));
        Some(match i.op()? {
            Op::IAdd => vec![(a, 1), (b?, 1)],
            Op::ISub => vec![(a, 1), (b?, -1)],
            Op::SConvert | Op::CopyObject => vec![(a, 1)],
            Op::UConvert if self.bounds(a)?.0 >= 0 => vec![(a, 1)],
            Op::IMul => match (self.constant(a), self.constant(b?)) {
                (_, Some(factor)) => vec![(a, factor)],
                (Some(factor), None) => vec![(b?, factor)],
                (None, None) => return None,
            },
            Op::ShiftLeftLogical => {
                let count = self.constant(b?).filter(|count| (0..32).contains(count))?;
                vec![(a, 1 << count)]
            }
            _ => return None,
        })
    }

    /// Returns whether the sum of the parts fits into the signed numbers of the value's width.
    fn is_sum(&self, value: u32, parts: &[(u32, i128)]) -> bool {
        let Some(width) = self.width(value) else { return false };
        let mut sum = Some(Form::constant(0));
        for &(part, times) in parts {
            let form = match self.constant(part) {
                Some(constant) => Some(Form::constant(constant)),
                None => self.bounds(part).and_then(|_| self.form(part)),
            };
            sum = sum.zip(form).and_then(|(sum, form)| sum.plus(&form.times(times)?, self.space));
        }
        let limit = 1_i128 << (width - 1);
        sum.map(|sum| sum.bounds(self.space))
            .is_some_and(|(low, high)| -limit <= low && high < limit)
    }

    fn width(&self, value: u32) -> Option<u32> {
        let ty = self.definitions.type_of(value).filter(|ty| ty.op() == Some(Op::TypeInt))?;
        ty.word(1).filter(|width| matches!(width, 8 | 16 | 32 | 64))
    }

    /// Returns the bounds of a value, read as a signed number; `None` if they are not those of its form.
    fn bounds(&self, value: u32) -> Option<(i128, i128)> {
        let limit = 1_i128 << (self.width(value)? - 1);
        let (low, high) = self.form(value)?.bounds(self.space);
        (-limit <= low && high < limit).then_some((low, high))
    }

    /// Returns the value of a constant, or of a value that is the same in all work-items.
    fn constant(&self, value: u32) -> Option<i128> {
        let known = local_memory::constant(self.definitions, value);
        known.or_else(|| {
            let (low, high) = self.bounds(value)?;
            (low == high).then_some(low)
        })
    }

    /// Takes an address apart into the coordinates of an element, if these are proven to be in the grid.
    fn take_apart(&self, address: &Address, grid: &Grid) -> Option<Element> {
        let strides = grid.strides();
        let is_counted = |d: usize| grid.counts[d] > 1;
        let mut terms: [Vec<(u32, i128)>; 3] = Default::default();
        for &(value, factor) in &address.terms {
            let d = (0..3).rev().find(|&d| is_counted(d) && factor % strides[d] == 0)?;
            terms[d].push((value, factor / strides[d]));
        }
        let part = address.constant.rem_euclid(grid.size);
        let mut rest = address.constant.div_euclid(grid.size);
        let mut coordinates = Vec::new();
        for (d, terms) in terms.into_iter().enumerate() {
            let mut form = Form::constant(0);
            for &(value, factor) in &terms {
                let own = self.form(value)?.times(factor)?;
                form = form.plus(&own, self.space)?;
            }
            let count = grid.counts[d];
            let is_last = (d + 1..3).all(|d| !is_counted(d));
            // The constant is split so that the coordinate is in the grid.
            let constant = if is_last { rest } else { rest.rem_euclid(count) };
            let fits = |&constant: &i128| {
                let moved = form.plus(&Form::constant(constant), self.space);
                let bounds = moved.map(|form| form.bounds(self.space));
                bounds.is_some_and(|(low, high)| 0 <= low && high < count)
            };
            let constant = [constant, constant - count].into_iter().find(fits)?;
            rest = if is_last { 0 } else { (rest - constant).div_euclid(count) };
            let form = form.plus(&Form::constant(constant), self.space)?;
            coordinates.push(Coordinate { terms, constant, form });
        }
        let coordinates = coordinates.try_into().ok()?;
        (rest == 0).then_some(Element { coordinates, part, divided: None })
    }

    /// Returns the element at an address that counts the elements row by row, if it is proven to be in the grid.
    fn count(&self, address: &Address, grid: &Grid) -> Option<Element> {
        let part = address.constant.rem_euclid(grid.size);
        let constant = address.constant.div_euclid(grid.size);
        let (mut form, mut terms) = (Form::constant(constant), Vec::new());
        for &(value, factor) in &address.terms {
            let times = factor / grid.size;
            if factor % grid.size != 0 {
                return None;
            }
            form = form.plus(&self.form(value)?.times(times)?, self.space)?;
            terms.push((value, times));
        }
        let all = grid.counts.iter().product::<i128>();
        let (low, high) = form.bounds(self.space);
        let is_inside = 0 <= low && high < all && all <= MAX_COORDINATE;
        let zero = || Coordinate { terms: Vec::new(), constant: 0, form: Form::constant(0) };
        let number = Coordinate { terms, constant, form };
        is_inside.then(|| Element {
            coordinates: [number, zero(), zero()],
            part,
            divided: Some([grid.counts[0], grid.counts[1]]),
        })
    }
}

impl Element {
    /// Returns the least and the largest distance of each coordinate from the work-item's own; `None` if they
    /// do not follow the work-item.
    pub(super) fn distances(&self, space: &Space) -> Option<[(i128, i128); 3]> {
        if self.divided.is_some() {
            return None;
        }
        let mut all = [(0, 0); 3];
        for (d, distances) in all.iter_mut().enumerate() {
            *distances = self.coordinates[d].distances(d, space)?;
        }
        Some(all)
    }
}

impl Coordinate {
    /// Returns the least and the largest distance of the coordinate from the work-item's own in dimension `d`;
    /// `None` if it does not follow the work-item.
    fn distances(&self, d: usize, space: &Space) -> Option<(i128, i128)> {
        self.form.distance(d, space)
    }
}
