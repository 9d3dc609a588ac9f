//! Number of work-items of a launch, and their grouping into work-groups.

use kiln_spirv::{Error, Result};

/// Global size of a launch, its offset and its local size, in one to three dimensions.
///
/// # Examples
///
/// ```
/// # mod kiln { pub use kiln_compiler::NdRange; pub use kiln_compiler as launch; }
/// use kiln::NdRange;
/// use kiln::launch::NdSize;
///
/// let frame = NdRange::from(NdSize::from([1920, 1080]));
/// assert_eq!(frame.global().iter().product::<usize>(), 2_073_600);
/// assert_eq!(frame.local(), None); // the driver chooses
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NdRange {
    dimensions: u8,
    global: [usize; 3],
    offset: [usize; 3],
    local: Option<[usize; 3]>,
}

impl NdRange {
    #[inline]
    fn new(global: &[usize]) -> Self {
        Self { dimensions: global.len() as u8, global: pad(global, 1), offset: [0; 3], local: None }
    }

    /// Returns the number of work-items in each dimension.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod kiln { pub use kiln_compiler::NdRange; pub use kiln_compiler as launch; }
    /// use kiln::NdRange;
    /// use kiln::launch::NdSize;
    ///
    /// let frame = NdRange::from(NdSize::from([1920, 1080]));
    /// assert_eq!(frame.global(), [1920, 1080]);
    /// ```
    #[must_use]
    pub fn global(&self) -> &[usize] {
        &self.global[..self.dimensions()]
    }

    /// Returns the global id of the first work-item in each dimension.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(report: kiln_compiler::fusion::FusionReport) {
    /// for launch in report.launches() {
    ///     println!("`{}` starts at {:?}", launch.kernel, launch.range.offset());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn offset(&self) -> &[usize] {
        &self.offset[..self.dimensions()]
    }

    /// Returns the number of work-items of a work-group in each dimension, if it was given. Otherwise the
    /// driver chooses it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(report: kiln_compiler::fusion::FusionReport) {
    /// for launch in report.launches() {
    ///     match launch.range.local() {
    ///         Some(local) => println!("`{}` runs in groups of {local:?}", launch.kernel),
    ///         None => println!("the driver groups the work-items of `{}`", launch.kernel),
    ///     }
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn local(&self) -> Option<&[usize]> {
        self.local.as_ref().map(|local| &local[..self.dimensions()])
    }

    /// Returns the number of dimensions: one, two or three.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod kiln { pub use kiln_compiler::NdRange; pub use kiln_compiler as launch; }
    /// use kiln::NdRange;
    /// use kiln::launch::NdSize;
    ///
    /// let frame = NdRange::from(NdSize::from([1920, 1080]));
    /// assert_eq!(frame.dimensions(), 2);
    /// ```
    #[must_use]
    pub fn dimensions(&self) -> usize {
        usize::from(self.dimensions)
    }

    #[doc(hidden)]
    pub fn set_local(&mut self, local: NdSize) -> Result<()> {
        self.check_dimensions("local size", local)?;
        self.local = Some(pad(local.get(), 1));
        Ok(())
    }

    #[doc(hidden)]
    pub fn set_offset(&mut self, offset: NdSize) -> Result<()> {
        self.check_dimensions("offset", offset)?;
        self.offset = pad(offset.get(), 0);
        Ok(())
    }

    /// Checks that a size has as many dimensions as the global size. `what` names it in the error message.
    fn check_dimensions(&self, what: &str, given: NdSize) -> Result<()> {
        if given.get().len() == self.dimensions() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the {what} {:?} has {} dimensions, the global size {:?} has {}",
            given.get(),
            given.get().len(),
            self.global(),
            self.dimensions()
        )))
    }
}

/// Returns the sizes in three dimensions; `fill` is the size in those that are missing.
#[inline]
fn pad(sizes: &[usize], fill: usize) -> [usize; 3] {
    std::array::from_fn(|dimension| sizes.get(dimension).copied().unwrap_or(fill))
}

impl From<NdSize> for NdRange {
    #[inline]
    fn from(size: NdSize) -> Self {
        Self::new(size.get())
    }
}

/// Size or offset in one to three dimensions: a `usize` or an array of one to three.
///
/// # Examples
///
/// ```
/// # mod kiln { pub use kiln_compiler as launch; }
/// use kiln::launch::NdSize;
///
/// let size = NdSize::from([1920, 1080]); // for `blur.launch(size)`
/// # assert_eq!(size.get().len(), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NdSize {
    dimensions: u8,
    sizes: [usize; 3],
}

impl NdSize {
    /// Returns an `NdSize` of up to three sizes, or of the single size 1 if there are none.
    #[doc(hidden)]
    #[must_use]
    pub fn of(sizes: &[usize]) -> Self {
        match *sizes {
            [x, y, z, ..] => [x, y, z].into(),
            [x, y] => [x, y].into(),
            [x] => x.into(),
            [] => 1.into(),
        }
    }

    /// Returns the sizes, one for each dimension.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod kiln { pub use kiln_compiler as launch; }
    /// use kiln::launch::NdSize;
    ///
    /// assert_eq!(NdSize::from(4096).get(), [4096]);
    /// assert_eq!(NdSize::from([1920, 1080]).get(), [1920, 1080]);
    /// ```
    #[must_use]
    pub fn get(&self) -> &[usize] {
        &self.sizes[..usize::from(self.dimensions)]
    }
}

/// Type that converts to an [`NdSize`]: a `usize`, a `[usize; 1..=3]`, or an `NdSize` itself.
///
/// # Examples
///
/// ```
/// # mod kiln { pub use kiln_compiler::NdRange; pub use kiln_compiler as launch; }
/// use kiln::NdRange;
/// use kiln::launch::IntoNdSize;
///
/// fn work_items(size: impl IntoNdSize) -> usize {
///     NdRange::from(size.into_nd_size()).global().iter().product()
/// }
/// assert_eq!(work_items(64), work_items([8, 8]));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a size in one to three dimensions",
    label = "give a `usize` or an array of one to three, such as `n as usize` or `[width, height]`"
)]
pub trait IntoNdSize {
    #[doc(hidden)]
    fn into_nd_size(self) -> NdSize;
}

// Lets the compiler report a type without a conversion as lacking `IntoNdSize`, rather than `Into<NdSize>`.
#[diagnostic::do_not_recommend]
impl<T: Into<NdSize>> IntoNdSize for T {
    fn into_nd_size(self) -> NdSize {
        self.into()
    }
}

impl From<usize> for NdSize {
    fn from(size: usize) -> Self {
        Self::from([size])
    }
}

macro_rules! from_array {
    ($($n:literal)*) => {$(
        impl From<[usize; $n]> for NdSize {
            fn from(sizes: [usize; $n]) -> Self {
                Self { dimensions: $n, sizes: pad(&sizes, 0) }
            }
        }
    )*};
}

from_array!(1 2 3);
