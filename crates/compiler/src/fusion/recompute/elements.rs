//! Elements of the memories that an earlier stage produces: which work-item writes each element, and the
//! coordinates of the elements that later stages read.
//!
//! Each work-item of a producing launch writes one element, the one at its linear id: element `x + w * y` of
//! a launch over `w x h` work-items. The coordinates of an element are the id of the work-item that writes
//! it. To find the coordinates that a later launch reads, the address is taken apart into a sum of values
//! with factors. Values whose factor is a multiple of a row's size belong to the number of the row, the
//! others to the number of the column. This is exact if the number of the column is proven to be less than
//! the length of a row.

use kiln_spirv::edit::{Definitions, Instruction, Location};
use rspirv::spirv::Op;

use crate::analysis::access::{Access, Flow, Layouts, Values};
use crate::analysis::affine::{Form, Space, gcd};
use crate::analysis::constants;
use crate::analysis::pointer_uses::{AccessOperands, is_address};
use crate::analysis::vector_access::VectorAccess;
use crate::fusion::local_memory::Steps;

/// Maximum number of values in the sum that an address is taken apart into.
const MAX_TERMS: usize = 32;

/// Maximum number of instructions through which an address is traced back to its parameter.
const MAX_CHAINS: usize = 32;

/// Maximum number of planes of a memory.
const MAX_PLANES: i128 = 16;

/// Exclusive bound of coordinates, which are calculated as signed numbers of 32 bits.
const MAX_COORDINATE: i128 = 1 << 30;

/// Elements of a memory, each of which one work-item of a launch writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    /// Size of an element in bytes.
    pub(super) size: i128,
    /// Number of elements in each dimension, which is the global size of the launch.
    pub(super) counts: [i128; 3],
    /// Number of planes of the memory, each of which holds an equal part of every element.
    planes: i128,
    /// Distance of the planes in bytes.
    pitch: i128,
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
    /// Fails with the reason if a work-item may write anything but its own element, or a part of it only,
    /// worded to follow the name of the buffer.
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
        if space.global.iter().any(|&count| count >= MAX_COORDINATE) {
            return Err("has too many elements");
        }
        let grid = Grid::over(size, &parts, space);
        let grid = grid.ok_or("is not written in whole elements")?;
        for (start, _) in &mut parts {
            *start = grid.piece() * start.div_euclid(grid.pitch) + start.rem_euclid(grid.pitch);
        }
        let size = grid.size;
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
        Ok(Self { grid, parts, is_certain })
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
    /// Returns the grid of elements of which the first is written in parts, given by their starts and widths.
    /// `size` is the distance of elements. Returns `None` if a part belongs to several elements.
    fn over(size: i128, parts: &[(i128, i128)], space: &Space) -> Option<Self> {
        let all = space.global.iter().try_fold(size, |all, &count| all.checked_mul(count))?;
        let starts = || parts.iter().map(|&(start, _)| start);
        // Parts behind the last element belong to other planes.
        let pitch = starts().filter(|&start| start >= all).min();
        let pitch = pitch.map_or(all, |start| start - start % size);
        let planes = starts().max()? / pitch + 1;
        let is_in_plane =
            |&(start, width): &(i128, i128)| start >= 0 && start % pitch + width <= size;
        (planes <= MAX_PLANES && parts.iter().all(is_in_plane)).then_some(Self {
            size: size * planes,
            counts: space.global,
            planes,
            pitch,
        })
    }

    /// Returns the size in bytes of the part of an element in one plane.
    fn piece(&self) -> i128 {
        self.size / self.planes
    }

    /// Returns the number of bytes of all elements; `None` if their units cannot be counted as coordinates.
    pub(super) fn bytes(&self) -> Option<i128> {
        let bytes = self.counts.iter().try_fold(self.size, |all, &count| all.checked_mul(count))?;
        (bytes < MAX_COORDINATE).then_some(bytes)
    }

    /// Returns the distance in bytes of neighbouring elements in each dimension.
    fn strides(&self) -> [i128; 3] {
        let ([width, height, _], piece) = (self.counts, self.piece());
        [piece, piece * width, piece * width * height]
    }
}

/// Returns the size of the elements that work-items write from `start` on, if each element is followed by
/// that of the work-item with the next linear id.
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

impl Address {
    /// Adds a value times a factor.
    fn add(&mut self, value: u32, factor: i128) -> Option<()> {
        match self.terms.iter_mut().find(|(known, _)| *known == value) {
            Some((_, sum)) => *sum = sum.checked_add(factor)?,
            None => self.terms.push((value, factor)),
        }
        self.terms.retain(|&(_, factor)| factor != 0);
        Some(())
    }
}

/// Coordinate of an element in one dimension: the sum of values with factors, and a constant.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Coordinate {
    pub(super) terms: Vec<(u32, i128)>,
    pub(super) constant: i128,
    pub(super) form: Form,
}

/// Element that a load reads, or of which it reads a part.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Element {
    pub(super) coordinates: [Coordinate; 3],
    /// Number of the plane that holds the part.
    pub(super) plane: Coordinate,
    /// Size in bytes of the part of an element in one plane.
    pub(super) piece: i128,
    /// First byte that is read, within the element's part in the plane.
    pub(super) part: i128,
    /// Set if the first of the coordinates counts parts of the elements, row by row. The coordinates follow
    /// from it by division.
    pub(super) divided: Option<Divided>,
}

/// Division of a number of a part of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Divided {
    /// Numbers of elements in the first two dimensions.
    pub(super) counts: [i128; 2],
    /// Number of parts of an element.
    pub(super) parts: i128,
}

/// Load in a function, whose address is taken apart, and the facts that are known of its values.
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
    /// Returns the element that the load reads through a parameter, given by its id, or one for each
    /// component of a vector that is read from several elements. `first` is the number of bytes from the
    /// grid's first element to the parameter's buffer.
    ///
    /// # Errors
    ///
    /// Fails with the reason, worded to follow the name of the buffer.
    pub(super) fn elements(
        &self,
        parameter: u32,
        grid: &Grid,
        first: i128,
    ) -> Result<Vec<Element>, &'static str> {
        let known = self.address(parameter, true).zip(self.size());
        let (mut address, size) = known.ok_or("is read at places that are not known")?;
        address.constant += first;
        if let Some(element) = self.element(&address, size, grid) {
            return Ok(vec![element]);
        }
        // Conditions may limit an index, but not the parts that it is the sum of.
        if let Some(mut whole) = self.address(parameter, false) {
            whole.constant += first;
            if let Some(element) = self.element(&whole, size, grid) {
                return Ok(vec![element]);
            }
        }
        let components = self.components().and_then(|(count, bytes)| {
            let all = (0..count).map(|at| {
                let mut address = address.clone();
                address.constant += i128::from(at) * bytes;
                let is_aligned = |own: &Element| own.part % bytes == 0 && own.piece % bytes == 0;
                self.element(&address, bytes, grid).filter(is_aligned)
            });
            all.collect::<Option<_>>()
        });
        components.ok_or("is read at places that may be outside of what is written")
    }

    /// Returns the element that holds `size` bytes at an address.
    fn element(&self, address: &Address, size: i128, grid: &Grid) -> Option<Element> {
        let fits = |element: &Element| element.part + size <= element.piece;
        let is_plane = |&(_, factor): &(u32, i128)| grid.planes > 1 && factor % grid.pitch == 0;
        let (planes, terms): (Vec<_>, Vec<_>) = address.terms.iter().copied().partition(is_plane);
        let planes =
            planes.into_iter().map(|(value, factor)| (value, factor / grid.pitch)).collect();
        let plane = self.coordinate(planes)?;
        (1 - grid.planes..grid.planes).find_map(|first| {
            let plane = plane.moved(first, grid.planes, self.space)?;
            let constant = address.constant - first * grid.pitch;
            let address = Address { terms: terms.clone(), constant };
            let element = self.take_apart(&address, grid).filter(fits);
            let element = element.or_else(|| self.count(&address, size, grid))?;
            Some(Element { plane, ..element })
        })
    }

    /// Returns the number of components of the vector that the load reads, and the size of each in bytes.
    fn components(&self) -> Option<(u32, i128)> {
        let is_plain = match VectorAccess::of(self.definitions, &self.load) {
            Some(access) => !access.converts,
            None => self.load.op() == Some(Op::Load),
        };
        let (component, count) = self.definitions.get(self.load.result_type()?)?.vector()?;
        is_plain.then_some((count, self.layouts.size(component)?))
    }

    /// Returns the sum of values with factors as a coordinate.
    fn coordinate(&self, terms: Vec<(u32, i128)>) -> Option<Coordinate> {
        let mut form = Form::constant(0);
        for &(value, factor) in &terms {
            form = form.plus(&self.form(value)?.times(factor)?, self.space)?;
        }
        Some(Coordinate { terms, constant: 0, form })
    }

    /// Returns the form of a value where the load uses it.
    fn form(&self, value: u32) -> Option<Form> {
        self.values.form(value, self.location)
    }

    /// Returns the number of bytes that the load reads.
    fn size(&self) -> Option<i128> {
        match VectorAccess::of(self.definitions, &self.load) {
            Some(access) => Some(access.span?.size),
            None => self.layouts.size(self.load.result_type()?),
        }
    }

    /// Returns the address that the load reads, relative to the buffer that is the parameter. If
    /// `takes_apart`, it is made up of the parts of indices instead of the indices.
    fn address(&self, parameter: u32, takes_apart: bool) -> Option<Address> {
        let load = &self.load;
        let operands = AccessOperands::of(self.definitions, load)?;
        let steps = Steps::of_access(self.definitions, load)?;
        let mut all = vec![steps];
        let mut pointer = operands.pointer;
        while pointer != parameter {
            let i = self.definitions.get(pointer)?;
            if !is_address(i.op()?) || all.len() > MAX_CHAINS {
                return None;
            }
            all.push(Steps::of_chain(self.definitions, self.layouts, &i)?);
            pointer = i.derived_from()?;
        }
        let mut address = Address::default();
        for steps in all {
            address.constant = address.constant.checked_add(steps.constant)?;
            for (index, stride) in steps.indexes {
                if takes_apart {
                    self.add(&mut address, index, stride)?;
                } else {
                    self.bounds(index)?;
                    address.add(index, stride)?;
                }
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
                address.add(value, factor)?;
            }
            Some(parts) => {
                for (part, times) in parts {
                    self.add(address, part, factor.checked_mul(times)?)?;
                }
            }
        }
        Some(())
    }

    /// Returns the values of which a value is the sum, each with its factor. The caller has to check that
    /// nothing wraps.
    fn parts(&self, value: u32) -> Option<Vec<(u32, i128)>> {
        let i = self.definitions.get(value)?;
        let op = self.definitions.value_op(&i)?;
        if let Some(own) = i.operand() {
            let is_kept = match op {
                Op::SConvert | Op::CopyObject => true,
                Op::UConvert => self.bounds(own)?.0 >= 0,
                _ => false,
            };
            return is_kept.then(|| vec![(own, 1)]);
        }
        let (a, b) = i.both()?;
        Some(match op {
            Op::IAdd => vec![(a, 1), (b, 1)],
            Op::ISub => vec![(a, 1), (b, -1)],
            Op::BitwiseXor if self.constant(b) == Some(0) => vec![(a, 1)],
            Op::BitwiseXor if self.constant(a) == Some(0) => vec![(b, 1)],
            Op::IMul => match (self.constant(a), self.constant(b)) {
                (_, Some(factor)) => vec![(a, factor)],
                (Some(factor), None) => vec![(b, factor)],
                (None, None) => return None,
            },
            Op::ShiftLeftLogical => {
                let count = self.constant(b).filter(|count| (0..32).contains(count))?;
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
        ty.width().filter(|width| matches!(width, 8 | 16 | 32 | 64))
    }

    /// Returns the bounds of a value, read as a signed number; `None` if they are not those of its form.
    fn bounds(&self, value: u32) -> Option<(i128, i128)> {
        let limit = 1_i128 << (self.width(value)? - 1);
        let (low, high) = self.form(value)?.bounds(self.space);
        (-limit <= low && high < limit).then_some((low, high))
    }

    /// Returns the value of a constant, or of a value that is the same in all work-items.
    fn constant(&self, value: u32) -> Option<i128> {
        let known = constants::constant(self.definitions, value);
        known.or_else(|| {
            let (low, high) = self.bounds(value)?;
            (low == high).then_some(low)
        })
    }

    /// Takes an address in a plane apart into the coordinates of an element, if these are proven to be in the
    /// grid.
    fn take_apart(&self, address: &Address, grid: &Grid) -> Option<Element> {
        let (strides, piece) = (grid.strides(), grid.piece());
        let is_counted = |d: usize| grid.counts[d] > 1;
        let mut terms: [Vec<(u32, i128)>; 3] = Default::default();
        for &(value, factor) in &address.terms {
            let d = (0..3).rev().find(|&d| is_counted(d) && factor % strides[d] == 0)?;
            terms[d].push((value, factor / strides[d]));
        }
        let part = address.constant.rem_euclid(piece);
        let mut rest = address.constant.div_euclid(piece);
        let mut coordinates = Vec::new();
        for (d, terms) in terms.into_iter().enumerate() {
            let own = self.coordinate(terms)?;
            let count = grid.counts[d];
            let is_last = (d + 1..3).all(|d| !is_counted(d));
            // The constant is split so that the coordinate is in the grid. The last dimension gets all of the
            // rest.
            let constant = if is_last { rest } else { rest.rem_euclid(count) };
            let own = own
                .moved(constant, count, self.space)
                .or_else(|| own.moved(constant - count, count, self.space).filter(|_| !is_last))?;
            rest = if is_last { 0 } else { (rest - own.constant).div_euclid(count) };
            coordinates.push(own);
        }
        let coordinates = coordinates.try_into().ok()?;
        let plane = Coordinate::zero();
        (rest == 0).then_some(Element { coordinates, plane, piece, part, divided: None })
    }

    /// Returns the element at an address in a plane that counts the elements, or equal parts of them, row by
    /// row, if it is proven to be in the grid.
    fn count(&self, address: &Address, size: i128, grid: &Grid) -> Option<Element> {
        let piece = grid.piece();
        let step = address.terms.iter().fold(piece, |step, &(_, factor)| gcd(step, factor));
        let terms = address.terms.iter().map(|&(value, factor)| (value, factor / step)).collect();
        let parts = piece / step;
        let all = grid.counts.iter().product::<i128>() * parts;
        let number = self.coordinate(terms)?;
        let number = number.moved(address.constant.div_euclid(step), all, self.space)?;
        let part = address.constant.rem_euclid(step);
        (all <= MAX_COORDINATE && part + size <= step).then_some(Element {
            coordinates: [number, Coordinate::zero(), Coordinate::zero()],
            plane: Coordinate::zero(),
            piece,
            part,
            divided: Some(Divided { counts: [grid.counts[0], grid.counts[1]], parts }),
        })
    }
}

impl Element {
    /// Returns whether both are read in the same element, or in the same of its parts that coordinates count.
    pub(super) fn has_place_of(&self, other: &Self) -> bool {
        self.coordinates == other.coordinates && self.divided == other.divided
    }

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

    /// Returns the number of elements that a work-item reads at most.
    pub(super) fn count(&self, space: &Space) -> u64 {
        let counts = self.coordinates.iter().enumerate().map(|(d, coordinate)| {
            // Without distances, the work-item reads the elements at the values that the form takes for one id.
            let values = (coordinate.form.low, coordinate.form.high);
            let (low, high) = coordinate.distances(d, space).unwrap_or(values);
            u64::try_from(high.saturating_sub(low).saturating_add(1)).unwrap_or(u64::MAX)
        });
        let parts = self.divided.map_or(1, |divided| u64::try_from(divided.parts).unwrap_or(1));
        counts.fold(1, u64::saturating_mul).div_ceil(parts.max(1))
    }
}

impl Coordinate {
    fn zero() -> Self {
        Self { terms: Vec::new(), constant: 0, form: Form::constant(0) }
    }

    /// Returns the coordinate plus a constant, if the sum is proven to be below `count`, and not negative.
    fn moved(&self, constant: i128, count: i128, space: &Space) -> Option<Self> {
        let form = self.form.plus(&Form::constant(constant), space)?;
        let (low, high) = form.bounds(space);
        let terms = || self.terms.clone();
        (0 <= low && high < count).then(|| Self { terms: terms(), constant, form })
    }

    /// Returns the least and the largest distance of the coordinate from the work-item's own in dimension `d`;
    /// `None` if it does not follow the work-item.
    fn distances(&self, d: usize, space: &Space) -> Option<(i128, i128)> {
        self.form.distance(d, space)
    }
}
