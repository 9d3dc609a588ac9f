//! Buffers as grids of elements, and rectangles and boxes of them.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;

use super::buffer::Buffer;
use super::region::Region;
use crate::device::Rows;
use crate::error::{Error, Result};

/// Elements of a buffer as a grid of rows, or of rows and slices, whose [parts](Self::part) a queue writes,
/// reads, fills and copies. The row pitch is the first size of the grid, and the slice pitch the product of the
/// first two.
///
/// [`Buffer::grid`] returns it. Cheap to clone.
///
/// # Examples
///
/// ```no_run
/// # async fn example(queue: kiln::Queue, heights: kiln::Buffer<f32>) -> kiln::Result<()> {
/// let map = heights.grid([1024, 1024])?;
/// let tile: Vec<f32> = queue.read(&map.part([256, 512], [64, 64])?).await?;
/// # Ok(())
/// # }
/// ```
pub struct Grid<T> {
    buffer: Buffer<T>,
    /// Number of elements in a row, of rows in a slice, and of slices.
    size: [usize; 3],
    dimensions: usize,
}

/// Rectangle or box of a buffer, which the commands of a queue take: see [`Grid::part`].
///
/// # Examples
///
/// ```no_run
/// # fn example(queue: kiln::Queue, from: kiln::Buffer<u8>, to: kiln::Buffer<u8>) -> kiln::Result<()> {
/// let tile: kiln::memory::GridPart<u8> = from.grid([640, 480])?.part([0, 0], [64, 64])?;
/// queue.copy(&tile, &to.grid([64, 64])?.part([0, 0], [64, 64])?)?;
/// # Ok(())
/// # }
/// ```
pub struct GridPart<T> {
    region: Arc<Region>,
    /// Number of elements.
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod> Buffer<T> {
    /// Returns the buffer's elements as a grid of two or three sizes: the number of elements in a row, of rows
    /// in a slice, and of slices.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if there are not two or three sizes, if one of
    /// them is 0, or if the grid has more elements than the buffer. It may have fewer.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: kiln::Queue, volume: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let volume = volume.grid([256, 256, 64])?;
    /// queue.fill(&volume.part([100, 100, 0], [8, 8, 64])?, 1.0)?; // a pillar
    /// # Ok(())
    /// # }
    /// ```
    pub fn grid<const N: usize>(&self, size: [usize; N]) -> Result<Grid<T>> {
        let problem = |problem: &str| {
            let len = self.len();
            let given = format!("a grid of {size:?} elements over a buffer of {len} elements");
            Error::invalid(format!("{given} {problem}"))
        };
        if !(2..=3).contains(&N) {
            return Err(problem(&format!("has {N} dimensions; give 2 or 3")));
        }
        if size.contains(&0) {
            return Err(problem("is empty; each size must be at least 1"));
        }
        let elements = size.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        if elements.is_none_or(|elements| elements > self.len()) {
            return Err(problem("does not fit; it must not have more elements than the buffer"));
        }
        Ok(Grid { buffer: self.clone(), size: padded(size, 1), dimensions: N })
    }
}

impl<T: Pod> Grid<T> {
    /// Returns a rectangle or a box of the grid: `size` elements from `origin` on, in as many dimensions as the
    /// grid has. Commands use its elements row by row, from the first slice to the last one.
    ///
    /// A part of whole rows, or of a single row, is ordered only against commands that use the same elements.
    /// Any other part is ordered like all elements from its first one to its last one. If a command that writes
    /// such a part fails, these elements count as failed, and a command that should have written them makes it
    /// fail.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the number of dimensions is not that of the
    /// grid, if the part is empty, or if it does not lie inside the grid.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: kiln::Queue, heights: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let map = heights.grid([1024, 1024])?;
    /// queue.copy(&map.part([0, 0], [512, 1024])?, &map.part([512, 0], [512, 1024])?)?; // to the right half
    /// # Ok(())
    /// # }
    /// ```
    pub fn part<const N: usize>(
        &self,
        origin: [usize; N],
        size: [usize; N],
    ) -> Result<GridPart<T>> {
        let problem = |problem: &str| {
            let grid = &self.size[..self.dimensions];
            let given =
                format!("the part of {size:?} elements at {origin:?} of a grid of {grid:?}");
            Error::invalid(format!("{given} {problem}"))
        };
        if N != self.dimensions {
            let dimensions = self.dimensions;
            return Err(problem(&format!("has {N} dimensions; give {dimensions}")));
        }
        if size.contains(&0) {
            return Err(problem("is empty; each size must be at least 1"));
        }
        let (origin, extent) = (padded(origin, 0), padded(size, 1));
        let ends = |i: usize| origin[i].checked_add(extent[i]);
        if !(0..3).all(|i| ends(i).is_some_and(|end| end <= self.size[i])) {
            return Err(problem("does not lie inside the grid"));
        }
        let row_pitch = self.size[0] * size_of::<T>();
        let slice_pitch = self.size[1] * row_pitch;
        let first = origin[2] * slice_pitch + origin[1] * row_pitch + origin[0] * size_of::<T>();
        let rows = Rows {
            offset: self.buffer.region().bytes().start + first,
            bytes: extent[0] * size_of::<T>(),
            rows: extent[1],
            slices: extent[2],
            row_pitch,
            slice_pitch,
        };
        let region = Arc::new(self.buffer.region().rows_of(rows));
        Ok(GridPart { region, len: extent.iter().product(), element: PhantomData })
    }
}

impl<T> GridPart<T> {
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the number of elements.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(heights: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// assert_eq!(heights.grid([640, 480])?.part([0, 0], [16, 8])?.len(), 128);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `false`: a part has at least one element.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(tile: kiln::memory::GridPart<f32>) {
    /// assert!(!tile.is_empty());
    /// # }
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Returns three values: the given ones, and `rest`.
fn padded<const N: usize>(given: [usize; N], rest: usize) -> [usize; 3] {
    std::array::from_fn(|i| given.get(i).copied().unwrap_or(rest))
}

impl<T> Clone for Grid<T> {
    fn clone(&self) -> Self {
        Self { buffer: self.buffer.clone(), size: self.size, dimensions: self.dimensions }
    }
}

impl<T> Clone for GridPart<T> {
    fn clone(&self) -> Self {
        Self { region: self.region.clone(), len: self.len, element: PhantomData }
    }
}

impl<T> fmt::Debug for Grid<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = &self.size[..self.dimensions];
        f.debug_struct("Grid").field("buffer", &self.buffer).field("size", &size).finish()
    }
}

impl<T> fmt::Debug for GridPart<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GridPart")
            .field("element", &std::any::type_name::<T>())
            .field("allocation", &self.region.allocation())
            .field("rows", &self.region.rows())
            .finish()
    }
}
