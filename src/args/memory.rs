//! Memory that the commands of a queue copy and fill: buffers, images, and parts of them.

use std::rc::Rc;
use std::sync::Arc;

use bytemuck::Pod;

use super::Seal;
use super::buffer::Buffer;
use super::grid::GridPart;
use super::image::pixel::Pixel;
use super::image::{Image, ImagePart};
use super::region::Region;

/// Device memory that a [`Queue`](crate::Queue) writes, reads, fills and copies: a [`Buffer`], a [`GridPart`],
/// an [`Image`] or an [`ImagePart`], or a shared pointer to one. Kiln implements the trait; applications
/// cannot.
///
/// # Examples
///
/// ```
/// use kiln::memory::DeviceMemory;
/// use kiln::{Queue, Result};
///
/// /// Returns the elements or pixels of some memory, and sets it to zeros.
/// async fn take<M: DeviceMemory>(queue: &Queue, memory: &M) -> Result<Vec<M::Element>> {
///     let taken = queue.read(memory);
///     queue.fill(memory, bytemuck::Zeroable::zeroed())?; // after the read
///     taken.await
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not device memory",
    label = "give a buffer, an image, or a part of an image, by reference"
)]
pub trait DeviceMemory {
    /// Element of a buffer, or pixel of an image.
    type Element: Pod + Send;

    #[doc(hidden)]
    fn place(&self, seal: Seal) -> Place<'_>;

    /// Returns the color of a pixel in the form that drivers take; `None` for an element that is no pixel.
    #[doc(hidden)]
    fn color(value: &Self::Element, seal: Seal) -> Option<[u32; 4]>;
}

/// Region of device memory. The type is opaque, and public only because the sealed trait names it.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub(crate) region: &'a Arc<Region>,
    /// Number of elements.
    pub(crate) len: usize,
}

impl std::fmt::Debug for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} elements", self.len)
    }
}

impl<T: Pod + Send> DeviceMemory for Buffer<T> {
    type Element = T;

    fn place(&self, _: Seal) -> Place<'_> {
        Place { region: self.region(), len: self.len() }
    }

    fn color(_: &T, _: Seal) -> Option<[u32; 4]> {
        None
    }
}

impl<T: Pod + Send> DeviceMemory for GridPart<T> {
    type Element = T;

    fn place(&self, _: Seal) -> Place<'_> {
        Place { region: self.region(), len: self.len() }
    }

    fn color(_: &T, _: Seal) -> Option<[u32; 4]> {
        None
    }
}

impl<P: Pixel> DeviceMemory for Image<P> {
    type Element = P;

    fn place(&self, _: Seal) -> Place<'_> {
        Place { region: self.region(), len: self.len() }
    }

    fn color(value: &P, _: Seal) -> Option<[u32; 4]> {
        Some(value.color())
    }
}

impl<P: Pixel> DeviceMemory for ImagePart<P> {
    type Element = P;

    fn place(&self, _: Seal) -> Place<'_> {
        Place { region: self.region(), len: self.len() }
    }

    fn color(value: &P, _: Seal) -> Option<[u32; 4]> {
        Some(value.color())
    }
}

macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<M: DeviceMemory + ?Sized> DeviceMemory for $pointer {
            type Element = M::Element;

            fn place(&self, seal: Seal) -> Place<'_> {
                M::place(self, seal)
            }

            fn color(value: &M::Element, seal: Seal) -> Option<[u32; 4]> {
                M::color(value, seal)
            }
        }
    )*};
}

pointers!(&M, Box<M>, Rc<M>, Arc<M>);
