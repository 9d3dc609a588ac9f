//! Turns accesses to buffers and images into accesses to a variable of the work-item.
//!
//! In every work-item, each such access is a constant number of bytes after the first byte that the work-item
//! has [to itself](super::private_legality). So the kernel's function gets a pointer to the variable as a
//! parameter, and each access goes to its constant offset in the variable, in addition to memory or instead of
//! it. If the memory is no longer used, its parameter becomes that pointer, and the instructions that
//! calculated addresses from it are dropped.

use std::collections::BTreeMap;

use kiln_spirv::edit::{
    Definitions, Instruction, Interner, Section, Stream, literal_words, located,
};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{Capability, MemoryAccess, Op, OpenclStd100Op as Extended, StorageClass};

use super::private_legality::VariablePlace;
use crate::analysis::access::Layouts;
use crate::analysis::declaration::Declaration;
use crate::analysis::pixel_access::{PixelAccess, exact_channels};
use crate::analysis::pointer_uses::{AccessOperands, Uses, uses};
use crate::analysis::vector_access::VectorAccess;
use crate::plan::{Memory, PIXEL_BYTES};
use crate::transform::merge::require;
use crate::{ImageFormat, ImageShape};

/// Parameter some of whose accesses go to a variable.
#[derive(Clone, Debug)]
pub(super) struct Private {
    pub(super) parameter: usize,
    /// Memory whose contents the variable keeps.
    pub(super) memory: Memory,
    /// Size of the variable, in bytes.
    pub(super) size: u32,
    /// Accesses that go to the variable, by their word offset in the function's body.
    pub(super) accesses: BTreeMap<u32, VariablePlace>,
    /// Uses of the parameter, if the parameter itself is to point to the variable. Otherwise a new parameter
    /// after the others points to it.
    pub(super) replaced: Option<Uses>,
    /// Shape of the memory, if it is an image.
    pub(super) image: Option<ImageShape>,
}

/// Returns the width of the variable's elements, in bits: 32 if the size is a multiple of such words, because
/// every device supports them, else 8.
pub(super) fn element_width(size: u32) -> u32 {
    if size.is_multiple_of(4) { 32 } else { 8 }
}

/// Returns the uses of a parameter that is to point to a variable. Nothing but known loads and stores may use
/// it.
///
/// # Errors
///
/// Fails like [`uses`].
pub(super) fn own_uses(
    definitions: &Definitions<'_>,
    function: u32,
    private: &Private,
) -> Result<Uses, String> {
    uses(definitions, function, private.parameter, |offset| private.accesses.contains_key(&offset))
}

/// Redirects accesses of a function to variables that are passed to it: through the parameters that are
/// replaced, and through new parameters after all others, in the order of the `privates` that replace none.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, or if the module is damaged.
pub(super) fn promote(module: &mut Module, function: u32, privates: &[Private]) -> Result<()> {
    if privates.is_empty() {
        return Ok(());
    }
    let replaced = || privates.iter().filter_map(|private| private.replaced.as_ref());
    let at = module.functions.iter().position(|known| known.id == function);
    let at = at.ok_or_else(|| Error::unsupported("a kernel has no function"))?;
    let body = std::mem::take(&mut module.functions[at].body);
    let mut snapshot = module.clone();
    snapshot.functions[at].body.clone_from(&body);
    let definitions = snapshot.definitions();
    let layouts = Layouts::of(&snapshot, &definitions);
    let interner = Interner::of(module);
    let mut writer = Writer { module, interner, layouts, new: Stream::default() };

    let mut declaration = Declaration::of(&body);
    // Pointers to the variables, one for each of `privates`.
    let mut pointers = Vec::new();
    for private in privates {
        pointers.push(writer.parameter(private, &mut declaration)?);
    }
    for (location, i) in located((0, &body)) {
        let offset = location.offset;
        if replaced().any(|uses| uses.dropped.contains(&offset))
            || declaration.rewrite(&i, writer.module, &mut writer.interner, &mut writer.new)?
        {
            continue;
        }
        let image = |private: &&Private| {
            private.replaced.as_ref().is_some_and(|uses| uses.sizes.contains(&offset))
        };
        if let Some(shape) = privates.iter().find(image).and_then(|private| private.image) {
            writer.image_size(&definitions, &i, &shape)?;
            continue;
        }
        let own = privates.iter().zip(&pointers).find_map(|(private, &pointer)| {
            Some((*private.accesses.get(&offset)?, (pointer, private.size), private.image))
        });
        if let (Some((place, variable, Some(shape))), Some(access)) =
            (own, PixelAccess::of(&definitions, &i))
        {
            writer.pixel(&definitions, &i, (&access, shape.format), variable, place)?;
            continue;
        }
        match own.zip(AccessOperands::of(&definitions, &i)) {
            Some(((place, variable, _), operands)) => {
                writer.access(&definitions, &i, &operands, variable, place)?;
            }
            None => writer.new.push_instruction(&i),
        }
    }
    let new = writer.new;
    module.functions[at].body = new;
    Ok(())
}

struct Writer<'m> {
    module: &'m mut Module,
    interner: Interner,
    layouts: Layouts,
    new: Stream,
}

impl Writer<'_> {
    /// Changes the type of the parameter that becomes a pointer to a variable, or adds such a parameter.
    /// Returns its id.
    fn parameter(&mut self, private: &Private, declaration: &mut Declaration) -> Result<u32> {
        let element = self.element(private.size)?;
        let ty = self.pointer(element)?;
        let own = declaration.parameters.get_mut(private.parameter);
        let Some((id, own)) = own.filter(|_| private.replaced.is_some()) else {
            let id = self.module.fresh_id()?;
            declaration.parameters.push((id, ty));
            return Ok(id);
        };
        *own = ty;
        let id = *id;
        // The parameter's decorations do not hold for the variable: it has an alignment of its own, and other
        // pointers point to it, too.
        self.module.section_mut(Section::Annotations).retain(|i| i.target() != Some(id));
        Ok(id)
    }

    /// Emits a load or store of the variable in place of the instruction, or after it if `place.in_memory`.
    fn access(
        &mut self,
        definitions: &Definitions<'_>,
        i: &Instruction<'_>,
        operands: &AccessOperands,
        variable: (u32, u32),
        place: VariablePlace,
    ) -> Result<()> {
        let op =
            i.op().ok_or_else(|| Error::unsupported("an access is not a known instruction"))?;
        if let Some(vector) = operands.vector.filter(|vector| vector.converts)
            && place.in_memory
            && operands.stored.is_none()
        {
            return self.copy_halves(definitions, i, &vector, variable, place);
        }
        let pointee = definitions.type_of(operands.pointer).and_then(|ty| ty.pointee());
        let pointee = pointee.ok_or_else(|| Error::unsupported("a pointer has no type"))?;
        if place.in_memory {
            self.new.push_instruction(i);
        }
        let address = self.address(variable, pointee, place.offset)?;
        let (module, interner) = (&mut *self.module, &mut self.interner);
        let mut words = operands.readdressed(definitions, i, address, module, interner)?;
        if operands.stored.is_some() && place.in_memory && op == Op::ExtInst {
            // The second call needs an id of its own for its result, which is of type `void`.
            words[1] = self.module.fresh_id()?;
        }
        if operands.stored.is_none() && place.in_memory {
            let loaded = i.result().unwrap_or_default();
            match op {
                Op::ExtInst => {
                    let (set, offset, to) = (words[2], words[4], words[5]);
                    self.store_vector(set, loaded, offset, to)?;
                }
                _ => {
                    let access = words.split_off(3);
                    self.new.push(Op::Store, [address, loaded].into_iter().chain(access));
                }
            }
            return Ok(());
        }
        self.new.push(op, words);
        Ok(())
    }

    /// Emits a load or store of the variable in place of an access to a pixel, or after a write if
    /// `place.in_memory`.
    fn pixel(
        &mut self,
        definitions: &Definitions<'_>,
        i: &Instruction<'_>,
        (access, format): (&PixelAccess, ImageFormat),
        variable: (u32, u32),
        place: VariablePlace,
    ) -> Result<()> {
        let address = self.address(variable, access.texel, place.offset)?;
        let alignment = [MemoryAccess::ALIGNED.bits(), PIXEL_BYTES as u32];
        if let Some(stored) = access.stored {
            if place.in_memory {
                self.new.push_instruction(i);
            }
            self.new.push(Op::Store, [address, stored].into_iter().chain(alignment));
            return Ok(());
        }
        let (result, channels) = (i.result(), exact_channels(format));
        let result = result.filter(|_| !place.in_memory).zip(channels);
        let (result, channels) =
            result.ok_or_else(|| Error::unsupported("a pixel is not kept in a variable"))?;
        let loaded = if channels == 4 { result } else { self.module.fresh_id()? };
        self.new
            .push(Op::Load, [access.texel, loaded].into_iter().chain([address]).chain(alignment));
        if channels < 4 {
            // Channels that the format lacks are read as 0, and as 1 in the last one.
            let rest = self.missing_channels(definitions, access.texel)?;
            let from = |at: u32| if (at as usize) < channels { at } else { at + 4 };
            let words = [access.texel, result, loaded, rest].into_iter();
            self.new.push(Op::VectorShuffle, words.chain((0..4).map(from)));
        }
        Ok(())
    }

    /// Returns the constant pixel 0, 0, 0, 1.
    fn missing_channels(&mut self, definitions: &Definitions<'_>, texel: u32) -> Result<u32> {
        let part = definitions.get(texel).and_then(|texel| definitions.get(texel.vector()?.0));
        let part = part.ok_or_else(|| Error::unsupported("a pixel has no type"))?;
        let one = if part.op() == Some(Op::TypeFloat) { 1.0_f32.to_bits() } else { 1 };
        let ty = part.result().unwrap_or_default();
        let mut parts = [0; 4];
        for (id, value) in parts.iter_mut().zip([0, 0, 0, one]) {
            *id = self.interner.constant_id(self.module, Op::Constant, ty, &[value])?;
        }
        self.interner.constant_id(self.module, Op::ConstantComposite, texel, &parts)
    }

    /// Emits the size of an image that is replaced.
    fn image_size(
        &mut self,
        definitions: &Definitions<'_>,
        i: &Instruction<'_>,
        shape: &ImageShape,
    ) -> Result<()> {
        let damaged = || Error::unsupported("the size of an image has no type");
        let (ty, result) = i.result_type().zip(i.result()).ok_or_else(damaged)?;
        let declared = definitions.get(ty).ok_or_else(damaged)?;
        let (part, count) = match declared.op() {
            Some(Op::TypeVector) => declared.vector().ok_or_else(damaged)?,
            _ => (ty, 1),
        };
        let number = definitions.get(part).ok_or_else(damaged)?;
        let mut sizes = Vec::new();
        for size in shape.size.into_iter().chain([0]).take(count as usize) {
            let bytes = (size as u64).to_le_bytes();
            let length = number.width().map_or(0, |width| width as usize / 8);
            let words = bytes.get(..length).and_then(|bytes| literal_words(&number, bytes));
            let words = words.ok_or_else(damaged)?;
            sizes.push(self.interner.constant_id(self.module, Op::Constant, part, &words)?);
        }
        let size = match *sizes {
            [size] => size,
            _ => self.interner.constant_id(self.module, Op::ConstantComposite, ty, &sizes)?,
        };
        self.new.push(Op::CopyObject, [ty, result, size]);
        Ok(())
    }

    fn element(&mut self, size: u32) -> Result<u32> {
        let width = element_width(size);
        if width == 8 {
            require(self.module, Capability::Int8);
        }
        self.interner.type_id(self.module, Op::TypeInt, &[width, 0])
    }

    fn pointer(&mut self, pointee: u32) -> Result<u32> {
        let operands = [StorageClass::Function as u32, pointee];
        self.interner.type_id(self.module, Op::TypePointer, &operands)
    }

    /// Copies the elements that a load converts from `half` to the variable, bit by bit: a conversion back
    /// could change NaNs.
    fn copy_halves(
        &mut self,
        definitions: &Definitions<'_>,
        load: &Instruction<'_>,
        vector: &VectorAccess,
        variable: (u32, u32),
        place: VariablePlace,
    ) -> Result<()> {
        let damaged = || Error::unsupported("a load of halves has no offset, pointer or size");
        let &VectorAccess { offset, pointer, .. } = vector;
        let class = definitions.type_of(pointer).and_then(|ty| ty.storage_class());
        let class = class.ok_or_else(damaged)?;
        let (offset_ty, count) = definitions
            .get(offset)
            .and_then(|offset| offset.result_type())
            .zip(vector.span.map(|span| span.count))
            .ok_or_else(damaged)?;
        require(self.module, Capability::Int16);
        let bits = self.interner.type_id(self.module, Op::TypeInt, &[16, 0])?;
        let ty = self.interner.type_id(self.module, Op::TypePointer, &[class, bits])?;
        let from = self.module.fresh_id()?;
        // The pointer itself points to `half`, so the types differ.
        self.new.push(Op::Bitcast, [ty, from, pointer]);
        let to = self.address(variable, bits, place.offset)?;
        let value = self.module.fresh_id()?;
        if count == 1 {
            let element = self.module.fresh_id()?;
            self.new.push(Op::InBoundsPtrAccessChain, [ty, element, from, offset]);
            let access = [MemoryAccess::ALIGNED.bits(), 2];
            self.new.push(Op::Load, [bits, value, element].into_iter().chain(access));
            self.new.push(Op::Store, [to, value].into_iter().chain(access));
        } else {
            let (set, _) = load.extended().ok_or_else(damaged)?;
            let several = self.interner.type_id(self.module, Op::TypeVector, &[bits, count])?;
            let loading = [several, value, set, Extended::vloadn as u32, offset, from, count];
            self.new.push(Op::ExtInst, loading);
            let first = self.interner.constant_id(self.module, Op::ConstantNull, offset_ty, &[])?;
            self.store_vector(set, value, first, to)?;
        }
        self.new.push_instruction(load);
        Ok(())
    }

    /// Emits a call of `vstoren`.
    fn store_vector(&mut self, set: u32, value: u32, offset: u32, to: u32) -> Result<()> {
        let void = self.interner.type_id(self.module, Op::TypeVoid, &[])?;
        let id = self.module.fresh_id()?;
        let function = Extended::vstoren as u32;
        self.new.push(Op::ExtInst, [void, id, set, function, value, offset, to]);
        Ok(())
    }

    /// Emits the address of a value of type `pointee` that is `offset` bytes after the first byte of a
    /// variable.
    fn address(&mut self, (variable, size): (u32, u32), pointee: u32, offset: i128) -> Result<u32> {
        let element = self.element(size)?;
        let step = self.layouts.size(pointee).filter(|&step| step > 0);
        if let Some(step) = step.filter(|step| offset % step == 0) {
            let base = if element == pointee { variable } else { self.cast(variable, pointee)? };
            return self.offset_pointer(base, pointee, offset / step);
        }
        let byte = self.byte()?;
        let base = if element == byte { variable } else { self.cast(variable, byte)? };
        let address = self.offset_pointer(base, byte, offset)?;
        if pointee == byte { Ok(address) } else { self.cast(address, pointee) }
    }

    fn byte(&mut self) -> Result<u32> {
        require(self.module, Capability::Int8);
        self.interner.type_id(self.module, Op::TypeInt, &[8, 0])
    }

    fn cast(&mut self, pointer: u32, pointee: u32) -> Result<u32> {
        let (ty, id) = (self.pointer(pointee)?, self.module.fresh_id()?);
        self.new.push(Op::Bitcast, [ty, id, pointer]);
        Ok(id)
    }

    /// Emits the address of the element with the index `count` after `pointer`.
    fn offset_pointer(&mut self, pointer: u32, pointee: u32, count: i128) -> Result<u32> {
        if count == 0 {
            return Ok(pointer);
        }
        let uint = self.interner.type_id(self.module, Op::TypeInt, &[32, 0])?;
        let index = self.interner.constant_id(self.module, Op::Constant, uint, &[count as u32])?;
        let (ty, id) = (self.pointer(pointee)?, self.module.fresh_id()?);
        self.new.push(Op::InBoundsPtrAccessChain, [ty, id, pointer, index]);
        Ok(id)
    }
}
