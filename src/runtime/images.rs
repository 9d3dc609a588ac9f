//! Creation of images.

use super::Runtime;
use crate::args::buffer::Buffer;
use crate::args::image::Image;
use crate::args::image::pixel::Pixel;
use crate::device::ImageKind;
use crate::error::Result;
use crate::process;

impl Runtime {
    /// Allocates an image with one row of `width` pixels: an `image1d_t`.
    ///
    /// # Errors
    ///
    /// As for [`image_2d`](Self::image_2d).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let tone_curve = rt.image_1d::<kiln::images::R<f32>>(256)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn image_1d<P: Pixel>(&self, width: usize) -> Result<Image<P>> {
        self.image(ImageKind::D1, [width, 1, 1])
    }

    /// Allocates an image with `layers` rows of `width` pixels: an `image1d_array_t`.
    ///
    /// # Errors
    ///
    /// As for [`image_2d`](Self::image_2d).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let tone_curves = rt.image_1d_array::<kiln::images::R<f32>>(256, 3)?; // one for each color
    /// # Ok(())
    /// # }
    /// ```
    pub fn image_1d_array<P: Pixel>(&self, width: usize, layers: usize) -> Result<Image<P>> {
        self.image(ImageKind::D1Array, [width, layers, 1])
    }

    /// Allocates an image of `width` by `height` pixels on the default device: an `image2d_t`. Its pixels are zeros.
    /// The type `P` of the pixels determines the image's format.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the device has no images, or none of this format; the error
    /// lists the formats that it has. [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if a size is 0, or beyond the
    /// [limits](crate::devices::ImageLimits) of the device. [`OutOfResources`](crate::ErrorKind::OutOfResources) if
    /// the device's memory does not suffice.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::images::{Rgba, Unorm};
    ///
    /// # async fn example(rt: kiln::Runtime, pixels: Vec<Rgba<Unorm<u8>>>) -> kiln::Result<()> {
    /// let photograph = rt.image_2d::<Rgba<Unorm<u8>>>(1920, 1080)?;
    /// rt.queue().write(&photograph, pixels)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn image_2d<P: Pixel>(&self, width: usize, height: usize) -> Result<Image<P>> {
        self.image(ImageKind::D2, [width, height, 1])
    }

    /// Allocates `layers` images of `width` by `height` pixels: an `image2d_array_t`.
    ///
    /// # Errors
    ///
    /// As for [`image_2d`](Self::image_2d).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let frames = rt.image_2d_array::<kiln::images::Rgba<u8>>(1920, 1080, 8)?;
    /// let third = frames.part([0, 0, 2], [1920, 1080, 1])?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn image_2d_array<P: Pixel>(
        &self,
        width: usize,
        height: usize,
        layers: usize,
    ) -> Result<Image<P>> {
        self.image(ImageKind::D2Array, [width, height, layers])
    }

    /// Allocates a volume of `width` by `height` by `depth` pixels: an `image3d_t`.
    ///
    /// # Errors
    ///
    /// As for [`image_2d`](Self::image_2d).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let scan = rt.image_3d::<kiln::images::R<i16>>(512, 512, 128)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn image_3d<P: Pixel>(
        &self,
        width: usize,
        height: usize,
        depth: usize,
    ) -> Result<Image<P>> {
        self.image(ImageKind::D3, [width, height, depth])
    }

    /// Returns the elements of a buffer as an image of one dimension: an `image1d_buffer_t`. It shares the buffer's
    /// memory, and commands on the two are ordered by the bytes that they use.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) if the buffer's device has no images of this format over
    /// buffers; PoCL and Level Zero have none at all. [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the buffer is longer
    /// than such an image may be, or is a slice that [no kernel could take](Buffer::slice).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, queue: kiln::Queue, gather: kiln::Kernel,
    /// #     table: kiln::Buffer<kiln::images::R<f32>>, out: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let table = rt.image_buffer(&table)?; // reads go through the texture units
    /// queue.submit(gather.launch(out.len()).args((&table, &out)))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn image_buffer<P: Pixel>(&self, buffer: &Buffer<P>) -> Result<Image<P>> {
        process::check()?;
        Image::over(buffer)
    }

    fn image<P: Pixel>(&self, kind: ImageKind, size: [usize; 3]) -> Result<Image<P>> {
        process::check()?;
        let scheduler = self.scheduler();
        Image::allocate(scheduler.slot(), scheduler.freed(), kind, size)
    }
}
