//! Images: typed views of device memory that kernels read and write pixel by pixel.

pub(crate) mod pixel;

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use super::buffer::Buffer;
use super::region::{Contents, Freed, MemoryHandle, Region, Storage};
use crate::backend::{DeviceSlot, GivenMemory};
use crate::device::{ImageBox, ImageKind, ImageShape};
use crate::error::{Error, ErrorKind, Result};
use pixel::Pixel;

/// Handle to an image in device memory, which kernels take as `image2d_t` or a similar type. Cheap to clone.
///
/// The [runtime](crate::Runtime::image_2d) creates images. Their pixels are zeros at first. A
/// [queue](crate::Queue) writes, reads, fills and copies images and [parts](Self::part) of them as it does with
/// buffers: row by row, from the first layer or plane to the last one. Commands are ordered by the pixels that they
/// use. A kernel that takes an image counts as using all of its pixels: it reads them if the kernel declares the
/// image as `read_only`, and else it may read and write them.
///
/// The memory is freed once the last handle is dropped and the last command that uses it has finished.
///
/// # Examples
///
/// ```no_run
/// use kiln::images::{Pixel, Rgba, Sampler, Unorm};
/// use kiln::{Kernel, Queue, Runtime};
///
/// # async fn example(rt: Runtime, queue: Queue, warp: Kernel,
/// #     pixels: Vec<Rgba<Unorm<u8>>>) -> kiln::Result<()> {
/// let photograph = rt.image_2d::<Rgba<Unorm<u8>>>(1920, 1080)?;
/// let warped = rt.image_2d::<Rgba<Unorm<u8>>>(1920, 1080)?;
/// queue.write(&photograph, pixels)?;
/// // kernel void warp(read_only image2d_t from, write_only image2d_t to, sampler_t sampler)
/// queue.submit(warp.launch([1920, 1080]).args((&photograph, &warped, Sampler::new())))?;
/// let pixels: Vec<Rgba<Unorm<u8>>> = queue.read(&warped).await?;
/// # Ok(())
/// # }
/// ```
pub struct Image<P> {
    region: Arc<Region>,
    shape: ImageShape,
    pixel: PhantomData<fn() -> P>,
}

impl<P: Pixel> Image<P> {
    /// Allocates an image. Layers count as the last of the sizes.
    pub(crate) fn allocate(
        slot: &Arc<DeviceSlot>,
        freed: &Arc<Freed>,
        kind: ImageKind,
        size: [usize; 3],
    ) -> Result<Self> {
        let shape = ImageShape { kind, size, format: P::FORMAT };
        let device = slot.handle();
        let description = || format!("an image of {shape} on {device}");
        if size.contains(&0) {
            let problem = "it has no pixels; each of its sizes must be at least 1";
            return Err(Error::invalid(problem).within(description()));
        }
        if !device.images {
            return Err(Error::unsupported("the device has no images").within(description()));
        }
        let limits = &device.limits.images;
        if let Some((given, most)) = limits.exceeded(&shape) {
            let problem = format!("{given} is more than the device's limit, {most}");
            return Err(Error::invalid(problem).within(description()));
        }
        let bytes = shape.bytes().filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = bytes.ok_or_else(|| {
            Error::new(ErrorKind::OutOfResources, "the size in bytes exceeds the address space")
                .within(description())
        })?;
        let memory = (bytes, Storage::Image(shape));
        let region = Region::allocate(slot, freed, memory, Contents::Zeros, description)?;
        Ok(Self { region: Arc::new(region), shape, pixel: PhantomData })
    }

    /// Returns an image that other code allocated.
    ///
    /// # Safety
    ///
    /// As for [`Device::adopt_image`](crate::backend::Device::adopt_image).
    pub(crate) unsafe fn adopt(
        slot: &Arc<DeviceSlot>,
        freed: &Arc<Freed>,
        object: *mut c_void,
    ) -> Result<Self> {
        // SAFETY: guaranteed by the caller.
        let (memory, shape) = unsafe { slot.open()?.adopt_image(object)? };
        if shape.format != P::FORMAT {
            let (given, wanted) = (shape.format, P::FORMAT);
            return Err(Error::invalid(format!(
                "the given image has the format `{given}`, not `{wanted}`; give the type of its pixels"
            )));
        }
        let bytes = shape.bytes().unwrap_or_default();
        let given = GivenMemory { memory, bytes, start: 0 };
        let region = Region::given(slot, freed, given, Storage::Image(shape))?;
        Ok(Self { region: Arc::new(region), shape, pixel: PhantomData })
    }

    /// Returns an image that other code created with a driver that does not describe images.
    ///
    /// # Safety
    ///
    /// As for [`Device::adopt_image_of`](crate::backend::Device::adopt_image_of).
    pub(crate) unsafe fn adopt_of(
        slot: &Arc<DeviceSlot>,
        freed: &Arc<Freed>,
        object: *mut c_void,
        kind: ImageKind,
        given: &[usize],
    ) -> Result<Self> {
        let problem = |problem: &str| {
            Err(Error::invalid(format!(
                "a given image of the kind `{}` and the sizes {given:?} {problem}",
                kind.type_name()
            )))
        };
        if kind == ImageKind::D1Buffer {
            return problem("has no memory of its own; give the memory as a buffer");
        }
        if given.len() != kind.dimensions() {
            return problem(&format!("needs {} sizes, layers included", kind.dimensions()));
        }
        let mut size = [1; 3];
        size[..given.len()].copy_from_slice(given);
        let shape = ImageShape { kind, size, format: P::FORMAT };
        if size.contains(&0) {
            return problem("has no pixels; each of its sizes must be at least 1");
        }
        if let Some((given, most)) = slot.handle().limits.images.exceeded(&shape) {
            return problem(&format!(
                "cannot exist: {given} is more than the device's limit, {most}"
            ));
        }
        let Some(bytes) = shape.bytes().filter(|&bytes| isize::try_from(bytes).is_ok()) else {
            return problem("cannot exist: its size in bytes exceeds the address space");
        };
        // SAFETY: guaranteed by the caller.
        let memory = unsafe { slot.open()?.adopt_image_of(object, &shape)? };
        let given = GivenMemory { memory, bytes, start: 0 };
        let region = Region::given(slot, freed, given, Storage::Image(shape))?;
        Ok(Self { region: Arc::new(region), shape, pixel: PhantomData })
    }

    /// Returns the elements of a buffer as an image of one dimension.
    pub(crate) fn over(buffer: &Buffer<P>) -> Result<Self> {
        let size = [buffer.len(), 1, 1];
        let shape = ImageShape { kind: ImageKind::D1Buffer, size, format: P::FORMAT };
        let device = buffer.region().slot().handle();
        if !device.images {
            let what = format!("an image over a buffer on {device}");
            return Err(Error::unsupported("the device has no images").within(what));
        }
        let most = device.limits.images.buffer;
        if most == 0 {
            let what = format!("an image over a buffer on {device}");
            let problem = "the device has no images over buffers; copy the elements to an image";
            return Err(Error::unsupported(problem).within(what));
        }
        if buffer.len() > most {
            let (len, device) = (buffer.len(), device.to_string());
            return Err(Error::invalid(format!(
                "an image over a buffer of {len} elements on {device}: it has at most {most} pixels; \
                 give a slice of the buffer"
            )));
        }
        let region = Arc::new(buffer.region().as_image(ImageBox::whole(shape)));
        region
            .view()
            .map_err(|error| error.within(format!("an image over a buffer on {device}")))?;
        Ok(Self { region, shape, pixel: PhantomData })
    }

    /// Returns the kind of image, which follows from the method of the runtime that created it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(volume: kiln::Image<kiln::images::R<f32>>) {
    /// println!("the kernel takes an `{}`", volume.kind().type_name());
    /// # }
    /// ```
    #[must_use]
    pub fn kind(&self) -> ImageKind {
        self.shape.kind
    }

    /// Returns the sizes in pixels: the width and, for images that have them, the height, and the depth or the
    /// number of layers.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: kiln::Queue, blur: kiln::Kernel, from: kiln::Image<kiln::images::R<f32>>,
    /// #     to: kiln::Image<kiln::images::R<f32>>) -> kiln::Result<()> {
    /// if let &[width, height] = from.size() {
    ///     queue.submit(blur.launch([width, height]).args((&from, &to)))?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn size(&self) -> &[usize] {
        &self.shape.size[..self.shape.kind.dimensions()]
    }

    /// Returns the number of pixels.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: kiln::Queue, mask: kiln::Image<kiln::images::R<u8>>) -> kiln::Result<()> {
    /// assert_eq!(queue.read(&mask).await?.len(), mask.len());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        ImageBox::whole(self.shape).pixels()
    }

    /// Returns `false`: an image has at least one pixel.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(mask: kiln::Image<kiln::images::R<u8>>) {
    /// assert!(!mask.is_empty());
    /// # }
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the driver's object of the image, a `cl_mem` or a `ze_image_handle_t`, for code that calls the driver
    /// itself, as [`Buffer::driver_handle`] does. For an image over a buffer, it is the buffer.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for a simulated device.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(photograph: kiln::Image<kiln::images::Rgba<u8>>) -> kiln::Result<()> {
    /// let object = photograph.driver_handle()?.object; // for a library that takes images
    /// # Ok(())
    /// # }
    /// ```
    pub fn driver_handle(&self) -> Result<MemoryHandle> {
        self.region.handle()
    }

    /// Returns a box of the image's pixels, for the commands of a queue: `size` pixels from `origin` on, in as many
    /// dimensions as the image has. Layers count as the last dimension.
    ///
    /// A box of whole rows, or a part of a single row, is ordered only against commands that use the same pixels.
    /// Any other box is ordered like all pixels from its first one to its last one.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the number of dimensions is not that of the image, if the
    /// box is empty, or if it does not lie inside the image.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: kiln::Queue, photograph: kiln::Image<kiln::images::Rgba<u8>>) -> kiln::Result<()> {
    /// let tile = photograph.part([256, 128], [64, 64])?;
    /// queue.fill(&tile, kiln::images::Rgba([255, 0, 0, 255]))?;
    /// let pixels = queue.read(&photograph.part([0, 0], [1920, 1])?).await?; // the first row
    /// # Ok(())
    /// # }
    /// ```
    pub fn part<const N: usize>(
        &self,
        origin: [usize; N],
        size: [usize; N],
    ) -> Result<ImagePart<P>> {
        let problem = |problem: &str| {
            let shape = &self.shape;
            Error::invalid(format!(
                "the part of {size:?} pixels at {origin:?} of an image of {shape} {problem}"
            ))
        };
        if N != self.shape.kind.dimensions() {
            let dimensions = self.shape.kind.dimensions();
            return Err(problem(&format!("has {N} dimensions; give {dimensions}")));
        }
        if size.contains(&0) {
            return Err(problem("is empty; each size must be at least 1"));
        }
        let (mut start, mut extent) = ([0; 3], [1; 3]);
        start[..N].copy_from_slice(&origin);
        extent[..N].copy_from_slice(&size);
        let is_inside = (0..3)
            .all(|i| start[i].checked_add(extent[i]).is_some_and(|end| end <= self.shape.size[i]));
        if !is_inside {
            return Err(problem("does not lie inside the image"));
        }
        let pixels = ImageBox { shape: self.shape, origin: start, size: extent };
        let region = match self.shape.kind {
            // The bytes of the buffer's elements, from which transfers are made.
            ImageKind::D1Buffer => {
                let first = self.region.bytes().start;
                let bytes = pixels.bytes();
                self.region.slice(first + bytes.start..first + bytes.end)
            }
            _ => self.region.part(pixels),
        };
        Ok(ImagePart { region: Arc::new(region), pixels, pixel: PhantomData })
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl<P> Clone for Image<P> {
    fn clone(&self) -> Self {
        Self { region: self.region.clone(), shape: self.shape, pixel: PhantomData }
    }
}

impl<P> fmt::Debug for Image<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("shape", &format_args!("{}", self.shape))
            .field("allocation", &self.region.allocation())
            .finish()
    }
}

/// Box of an image's pixels, which the commands of a queue take: see [`Image::part`].
///
/// # Examples
///
/// ```no_run
/// # fn example(queue: kiln::Queue, atlas: kiln::Image<kiln::images::Rgba<u8>>,
/// #     glyph: kiln::Image<kiln::images::Rgba<u8>>) -> kiln::Result<()> {
/// let place: kiln::images::ImagePart<_> = atlas.part([32, 0], [16, 16])?;
/// queue.copy(&glyph, &place)?;
/// # Ok(())
/// # }
/// ```
pub struct ImagePart<P> {
    region: Arc<Region>,
    pixels: ImageBox,
    pixel: PhantomData<fn() -> P>,
}

impl<P: Pixel> ImagePart<P> {
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the number of pixels.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(atlas: kiln::Image<kiln::images::R<u8>>) -> kiln::Result<()> {
    /// assert_eq!(atlas.part([0, 0], [16, 8])?.len(), 128);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.pixels.pixels()
    }

    /// Returns `false`: a part has at least one pixel.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(tile: kiln::images::ImagePart<kiln::images::R<u8>>) {
    /// assert!(!tile.is_empty());
    /// # }
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<P> Clone for ImagePart<P> {
    fn clone(&self) -> Self {
        Self { region: self.region.clone(), pixels: self.pixels, pixel: PhantomData }
    }
}

impl<P> fmt::Debug for ImagePart<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ImageBox { shape, origin, size } = self.pixels;
        f.debug_struct("ImagePart")
            .field("shape", &format_args!("{shape}"))
            .field("origin", &origin)
            .field("size", &size)
            .finish()
    }
}
