//! Images: their creation, and the commands on their pixels.
//!
//! Level Zero copies pixels between images, and between an image and linear memory. Transfers to and from the host go
//! through staging memory, as for buffers. There is no fill: the pixels are copied from staging memory that holds as
//! many.

use std::any::Any;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::bindings::*;
use super::codes::{Code, check};
use super::context::Context;
use super::event::{Destination, EndActions, WaitList};
use super::handle::OwnedImage;
use super::image_bindings::*;
use super::image_format::{format_of, type_of};
use super::memory::{LzMemory, Staging, next_id};
use super::sequence;
use crate::backend::{ImageOperation, Memory, image_part_error, shutdown};
use crate::device::{ImageBox, ImageKind, ImageShape, pixel_of};
use crate::error::{Error, ErrorKind, Result};

/// Maximum size in bytes of the staging memory from which a fill is copied. A larger box is filled in pieces.
const MAX_FILL: usize = 1 << 20;

/// Image of any kind.
pub(super) struct LzImage {
    id: u64,
    image: ManuallyDrop<OwnedImage>,
    /// Whether other code destroys the image.
    is_given: bool,
    context: Arc<Context>,
}

impl Drop for LzImage {
    fn drop(&mut self) {
        // Destroying waits for the commands that count as running. On a lost device, those never end.
        if !self.is_given && self.context.loss().is_none() {
            // SAFETY: dropped once, here, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.image) };
        }
    }
}

impl LzImage {
    pub(super) fn create(context: &Arc<Context>, shape: &ImageShape) -> Result<Self> {
        if let Some(lost) = context.loss() {
            return Err(lost.clone());
        }
        let _call = shutdown::begin()?;
        let format = driver_format(context, shape)?;
        let [width, height, depth] = shape.size.map(|size| size as u32);
        let layers = match shape.kind {
            ImageKind::D1Array => height,
            ImageKind::D2Array => depth,
            _ => 0,
        };
        let description = ze_image_desc_t {
            stype: ZE_STRUCTURE_TYPE_IMAGE_DESC,
            pNext: ptr::null(),
            flags: ZE_IMAGE_FLAG_KERNEL_WRITE,
            type_: type_of(shape.kind),
            format,
            width: width.into(),
            height: if shape.kind == ImageKind::D1Array { 1 } else { height },
            depth: if shape.kind == ImageKind::D2Array { 1 } else { depth },
            arraylevels: layers,
            miplevels: 0,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: context and device are alive and belong together, and the description is valid.
        let created = unsafe {
            (context.api.zeImageCreate)(
                context.raw(),
                context.device.0,
                &raw const description,
                &raw mut raw,
            )
        };
        check(created).map_err(|code| {
            let name = &context.info.name;
            match code.kind() {
                // The driver's only verdict on a format.
                ErrorKind::Unsupported => code.error_of(
                    ErrorKind::Unsupported,
                    format!("`{name}` has no image of {shape}: the driver refused it"),
                ),
                _ => context.error(code, format!("`{name}` refused the image")),
            }
        })?;
        // SAFETY: just created, and owned only here.
        let image = unsafe { OwnedImage::new(context.api, raw) };
        Ok(Self::of_handle(context, image, false))
    }

    /// Takes an image that other code created.
    ///
    /// # Safety
    ///
    /// The image lives longer than the returned value, if its handle is not null, and has this shape.
    pub(super) unsafe fn adopt(
        context: &Arc<Context>,
        handle: *mut c_void,
        shape: &ImageShape,
    ) -> Result<Self> {
        let handle = NonNull::new(handle).ok_or_else(|| {
            Error::invalid("the given `ze_image_handle_t` is null; give an object of the driver")
        })?;
        driver_format(context, shape)?;
        // SAFETY: the image is alive, and is never destroyed through this value.
        let image = unsafe { OwnedImage::new(context.api, handle.as_ptr().cast()) };
        Ok(Self::of_handle(context, image, true))
    }

    fn of_handle(context: &Arc<Context>, image: OwnedImage, is_given: bool) -> Self {
        let (image, context) = (ManuallyDrop::new(image), Arc::clone(context));
        Self { id: next_id(), image, is_given, context }
    }

    /// Returns this backend's image behind the trait object. Fails if it is a buffer or belongs to another backend.
    fn of(memory: &dyn Memory) -> Result<&Self> {
        Self::try_of(memory)
            .ok_or_else(|| Error::invalid("the memory is not an image of a device of this backend"))
    }

    /// Returns this backend's image behind the trait object, if it is one.
    pub(super) fn try_of(memory: &dyn Memory) -> Option<&Self> {
        (memory as &dyn Any).downcast_ref()
    }

    /// Returns an id that no other memory object has, not even a released one.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn raw(&self) -> ze_image_handle_t {
        self.image.raw()
    }
}

impl Memory for LzImage {
    fn view(&self, _offset: usize, _bytes: usize) -> Result<Arc<dyn Memory>> {
        Err(image_part_error())
    }

    fn is_image(&self) -> bool {
        true
    }

    fn handle(&self) -> Result<*mut c_void> {
        let _call = shutdown::enter()?;
        Ok(self.raw().cast())
    }
}

/// Returns the format of an image in the form of the driver.
fn driver_format(context: &Context, shape: &ImageShape) -> Result<ze_image_format_t> {
    format_of(shape.format).ok_or_else(|| {
        Error::unsupported(format!(
            "`{}` has no `{}` of the format `{}`; it has formats of the orders `R`, `Rg` and `Rgba`",
            context.info.name,
            shape.kind.type_name(),
            shape.format
        ))
    })
}

/// Copy that the driver makes with one command.
#[derive(Clone, Copy)]
enum Copy {
    FromMemory {
        to: ze_image_handle_t,
        target: ze_image_region_t,
        from: *const c_void,
    },
    ToMemory {
        from: ze_image_handle_t,
        source: ze_image_region_t,
        to: *mut c_void,
    },
    Pixels {
        from: ze_image_handle_t,
        source: ze_image_region_t,
        to: ze_image_handle_t,
        target: ze_image_region_t,
    },
}

/// Appends an operation that signals `signal`.
///
/// # Safety
///
/// The list is alive. The rest is as for [`NativeQueue::enqueue`](crate::backend::NativeQueue::enqueue), until
/// `signal` is signalled.
pub(super) unsafe fn append(
    context: &Arc<Context>,
    list: ze_command_list_handle_t,
    operation: &ImageOperation<'_>,
    signal: ze_event_handle_t,
    wait: &WaitList,
    end_actions: &mut EndActions,
) -> Result<()> {
    let (pixels, copies) = match *operation {
        ImageOperation::Write { to, pixels, from } => {
            let staging = Staging::take(context, bytes_of(pixels))?;
            // SAFETY: the caller provides as many bytes, and the staging memory has room for them.
            unsafe { ptr::copy_nonoverlapping(from, staging.start(), bytes_of(pixels)) };
            let copies = from_memory(staging.start().cast(), LzImage::of(to)?, pixels);
            end_actions.staging = Some(staging);
            (pixels, copies)
        }
        ImageOperation::Read { from, pixels, to } => {
            let staging = Staging::take(context, bytes_of(pixels))?;
            let copies = to_memory(LzImage::of(from)?, pixels, staging.start().cast());
            end_actions.staging = Some(staging);
            end_actions.read = Some(Destination { to, bytes: bytes_of(pixels) });
            (pixels, copies)
        }
        ImageOperation::Fill { image, pixels, color } => {
            let pieces = pieces(pixels, MAX_FILL);
            let most = pieces.iter().map(|(piece, _)| bytes_of(piece)).max().unwrap_or_default();
            let staging = Staging::take(context, most)?;
            let bytes = pixel_of(color, pixels.shape.format).repeat(most / pixel_size(pixels));
            // SAFETY: the staging memory has room for `most` bytes, which are that many.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), staging.start(), bytes.len()) };
            let (to, from) = (LzImage::of(image)?.raw(), staging.start().cast::<c_void>());
            let copy = |(piece, _): &(ImageBox, usize)| {
                let target = region_of(piece);
                Copy::FromMemory { to, target, from: from.cast_const() }
            };
            let copies = pieces.iter().map(copy).collect();
            end_actions.staging = Some(staging);
            (pixels, copies)
        }
        ImageOperation::Copy { from, source, to, target } => {
            let (from, to) = (LzImage::of(from)?.raw(), LzImage::of(to)?.raw());
            // If one of the boxes is copied layer by layer, the other one has as many rows.
            let one_by_one = |pixels: &ImageBox| pixels.shape.kind == ImageKind::D1Array;
            let most = if one_by_one(source) || one_by_one(target) { 1 } else { usize::MAX };
            let boxes = pieces(source, most).into_iter().zip(pieces(target, most));
            let copy = |((source, _), (target, _)): ((ImageBox, usize), (ImageBox, usize))| {
                let (source, target) = (region_of(&source), region_of(&target));
                Copy::Pixels { from, source, to, target }
            };
            (target, boxes.map(copy).collect())
        }
        ImageOperation::CopyFromBuffer { from, offset, to, pixels } => {
            let from = LzMemory::of(from)?.at(offset);
            (pixels, from_memory(from, LzImage::of(to)?, pixels))
        }
        ImageOperation::CopyToBuffer { from, pixels, to, offset } => {
            let to = LzMemory::of(to)?.at(offset);
            (pixels, to_memory(LzImage::of(from)?, pixels, to))
        }
    };
    // SAFETY: as for this function; the boxes lie inside their images, and staging memory is kept.
    unsafe { append_copies(context, list, pixels, &copies, signal, wait, end_actions) }
}

/// Appends one or more copies that make up an operation on `pixels`.
///
/// # Safety
///
/// The list and everything that the copies name are alive, and all pixels inside, until `signal` is signalled.
unsafe fn append_copies(
    context: &Context,
    list: ze_command_list_handle_t,
    pixels: &ImageBox,
    copies: &[Copy],
    signal: ze_event_handle_t,
    wait: &WaitList,
    end_actions: &mut EndActions,
) -> Result<()> {
    let ImageBox { shape, origin, size } = pixels;
    let what = format!("a copy of {size:?} pixels at {origin:?} of an image of {shape}");
    if let [copy] = copies {
        // SAFETY: guaranteed by the caller.
        let appended = unsafe { append_copy(context, list, copy, signal, wait) };
        let refused = |code: Code| context.error(code, format!("the driver refused {what}"));
        return check(appended).map_err(refused);
    }
    let nothing = WaitList::default();
    let copies = copies.iter().map(|copy| {
        // SAFETY: guaranteed by the caller.
        unsafe { append_copy(context, list, copy, ptr::null_mut(), &nothing) }
    });
    // SAFETY: the list is alive.
    unsafe { sequence::append(context, list, signal, wait, end_actions, &what, copies) }
}

/// Passes a copy to the driver.
///
/// # Safety
///
/// As for [`append_copies`].
unsafe fn append_copy(
    context: &Context,
    list: ze_command_list_handle_t,
    copy: &Copy,
    signal: ze_event_handle_t,
    wait: &WaitList,
) -> ze_result_t {
    let api = context.api;
    match *copy {
        // SAFETY: all objects are alive, and the memory has as many pixels as the region, without padding.
        Copy::FromMemory { to, target, from } => unsafe {
            (api.zeCommandListAppendImageCopyFromMemory)(
                list,
                to,
                from,
                &raw const target,
                signal,
                wait.len(),
                wait.as_ptr(),
            )
        },
        // SAFETY: as for a copy from memory.
        Copy::ToMemory { from, source, to } => unsafe {
            (api.zeCommandListAppendImageCopyToMemory)(
                list,
                to,
                from,
                &raw const source,
                signal,
                wait.len(),
                wait.as_ptr(),
            )
        },
        // SAFETY: all objects are alive, and the regions lie inside their images.
        Copy::Pixels { from, source, to, target } => unsafe {
            (api.zeCommandListAppendImageCopyRegion)(
                list,
                to,
                from,
                &raw const target,
                &raw const source,
                signal,
                wait.len(),
                wait.as_ptr(),
            )
        },
    }
}

/// Returns the copies of pixels from memory, in which the rows follow each other without padding.
fn from_memory(from: *mut c_void, to: &LzImage, pixels: &ImageBox) -> Vec<Copy> {
    let copy = |(piece, offset): (ImageBox, usize)| {
        let from = from.wrapping_byte_add(offset).cast_const();
        Copy::FromMemory { to: to.raw(), target: region_of(&piece), from }
    };
    pieces(pixels, usize::MAX).into_iter().map(copy).collect()
}

/// Returns the copies of pixels to memory, in which the rows follow each other without padding.
fn to_memory(from: &LzImage, pixels: &ImageBox, to: *mut c_void) -> Vec<Copy> {
    let copy = |(piece, offset): (ImageBox, usize)| {
        let to = to.wrapping_byte_add(offset);
        Copy::ToMemory { from: from.raw(), source: region_of(&piece), to }
    };
    pieces(pixels, usize::MAX).into_iter().map(copy).collect()
}

/// Splits a box into boxes of at most `most` bytes, but of at least one row. Returns each with its offset in memory in
/// which the rows of the whole box follow each other without padding.
///
/// Each layer of an array of rows is a box of its own. The specification does not state which coordinate of a region
/// counts such layers where there are several; a single one is a row at a `y` coordinate.
fn pieces(pixels: &ImageBox, most: usize) -> Vec<(ImageBox, usize)> {
    let ([x, y, z], [width, height, depth]) = (pixels.origin, pixels.size);
    let row = width * pixel_size(pixels);
    let (rows, planes) = match pixels.shape.kind {
        ImageKind::D1Array => (1, 1),
        _ if row * height <= most => (height, (most / (row * height)).min(depth)),
        _ => ((most / row).clamp(1, height), 1),
    };
    let mut pieces = Vec::new();
    for plane in (0..depth).step_by(planes) {
        for first in (0..height).step_by(rows) {
            let origin = [x, y + first, z + plane];
            let size = [width, rows.min(height - first), planes.min(depth - plane)];
            let piece = ImageBox { shape: pixels.shape, origin, size };
            pieces.push((piece, (plane * height + first) * row));
        }
    }
    pieces
}

/// Returns a box in the form of the driver, whose limits of images fit into 32 bits.
fn region_of(pixels: &ImageBox) -> ze_image_region_t {
    let [x, y, z] = pixels.origin.map(|at| at as u32);
    let [width, height, depth] = pixels.size.map(|size| size as u32);
    ze_image_region_t { originX: x, originY: y, originZ: z, width, height, depth }
}

fn pixel_size(pixels: &ImageBox) -> usize {
    pixels.shape.format.pixel_size()
}

fn bytes_of(pixels: &ImageBox) -> usize {
    pixels.pixels() * pixel_size(pixels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{ChannelOrder, ChannelType, ImageFormat};

    fn part(kind: ImageKind, size: [usize; 3]) -> ImageBox {
        let format = ImageFormat { order: ChannelOrder::R, channel: ChannelType::Uint32 };
        let shape = ImageShape { kind, size: [16; 3], format };
        ImageBox { shape, origin: [1, 2, 3], size }
    }

    fn split(pixels: &ImageBox, most: usize) -> Vec<([usize; 3], [usize; 3], usize)> {
        let pieces = pieces(pixels, most).into_iter();
        pieces.map(|(piece, offset)| (piece.origin, piece.size, offset)).collect()
    }

    #[test]
    fn boxes_are_split_into_planes_or_rows_that_fit() {
        let volume = part(ImageKind::D3, [4, 3, 5]);
        assert_eq!(split(&volume, usize::MAX), [([1, 2, 3], [4, 3, 5], 0)]);
        // A plane has 48 bytes.
        assert_eq!(
            split(&volume, 100),
            [([1, 2, 3], [4, 3, 2], 0), ([1, 2, 5], [4, 3, 2], 96), ([1, 2, 7], [4, 3, 1], 192)]
        );
        let picture = part(ImageKind::D2, [4, 3, 1]);
        let two_rows = [([1, 2, 3], [4, 2, 1], 0), ([1, 4, 3], [4, 1, 1], 32)];
        assert_eq!(split(&picture, 47), two_rows);
        assert_eq!(split(&picture, 1).len(), 3);
    }

    #[test]
    fn layers_of_an_array_of_rows_are_copied_one_by_one() {
        let rows = part(ImageKind::D1Array, [4, 2, 1]);
        let expected = [([1, 2, 3], [4, 1, 1], 0), ([1, 3, 3], [4, 1, 1], 16)];
        assert_eq!(split(&rows, usize::MAX), expected);
    }
}
