//! Number of work-items of a launch, and their grouping into work-groups.

use crate::device::Limits;
use crate::error::{Error, Result};

/// Global size of a launch, its offset and its local size, in one to three dimensions.
///
/// # Examples
///
/// ```
/// use kiln::{NdRange, NdSize};
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
    /// use kiln::{NdRange, NdSize};
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
    /// # fn example(report: kiln::FusionReport) {
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
    /// # fn example(report: kiln::FusionReport) {
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
    /// use kiln::{NdRange, NdSize};
    ///
    /// let frame = NdRange::from(NdSize::from([1920, 1080]));
    /// assert_eq!(frame.dimensions(), 2);
    /// ```
    #[must_use]
    pub fn dimensions(&self) -> usize {
        usize::from(self.dimensions)
    }

    pub(crate) fn set_local(&mut self, local: NdSize) -> Result<()> {
        self.check_dimensions("local size", local)?;
        self.local = Some(pad(local.get(), 1));
        Ok(())
    }

    pub(crate) fn set_offset(&mut self, offset: NdSize) -> Result<()> {
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

    /// Checks the range against the work-group size that the kernel's code requires (`reqd_work_group_size`).
    pub(crate) fn check_required(&self, kernel: &str, required: [usize; 3]) -> Result<()> {
        let (needed, rest) = required.split_at(self.dimensions());
        if rest.iter().any(|&size| size != 1) {
            return Err(Error::invalid(format!(
                "kernel `{kernel}`: the global size {:?} has {} dimensions, too few for the local \
                 size {required:?} that the kernel requires (`reqd_work_group_size`)",
                self.global(),
                self.dimensions()
            )));
        }
        if let Some(local) = self.local().filter(|local| *local != needed) {
            return Err(Error::invalid(format!(
                "kernel `{kernel}`: the local size is {local:?}, but the kernel requires \
                 {needed:?} (`reqd_work_group_size`); omit the local size, or give {needed:?}"
            )));
        }
        if let Some(d) =
            (0..self.dimensions()).find(|&d| !self.global()[d].is_multiple_of(needed[d]))
        {
            return Err(Error::invalid(format!(
                "kernel `{kernel}`: the global size {:?} is not a multiple, in dimension {d}, of \
                 the local size {needed:?} that the kernel requires (`reqd_work_group_size`)",
                self.global()
            )));
        }
        Ok(())
    }

    /// Checks the range against the device's limits and, where known, the kernel's own largest work-group.
    /// `kernel` is the kernel's name, for the error message.
    pub(crate) fn check(
        &self,
        kernel: &str,
        limits: &Limits,
        kernel_limit: Option<usize>,
    ) -> Result<()> {
        let fail = |problem: String| Err(Error::invalid(format!("kernel `{kernel}`: {problem}")));
        if self.global.contains(&0) {
            return fail(format!(
                "the global size {:?} has no work-items; every dimension must be at least 1",
                self.global()
            ));
        }
        let most = limits.largest_size();
        let fits = |number: Option<usize>| number.is_some_and(|number| number <= most);
        let [x, y, z] = self.global;
        let items = x.checked_mul(y).and_then(|plane| plane.checked_mul(z));
        if !fits(items) || !(0..3).all(|d| fits(self.global[d].checked_add(self.offset[d]))) {
            return fail(format!(
                "the global size {:?} with offset {:?} exceeds the {most} work-items that the \
                 device can index",
                self.global(),
                self.offset()
            ));
        }
        let Some(local) = self.local() else {
            return Ok(());
        };
        if local.contains(&0) {
            return fail(format!("the local size {local:?} has no work-items"));
        }
        for (dimension, (&local_size, &global_size)) in local.iter().zip(self.global()).enumerate()
        {
            if !global_size.is_multiple_of(local_size) {
                return fail(format!(
                    "the local size {local:?} does not divide the global size {:?} in dimension \
                     {dimension}: {global_size} is not a multiple of {local_size}",
                    self.global()
                ));
            }
            let most = limits.max_work_item_sizes[dimension];
            if local_size > most {
                return fail(format!(
                    "the local size {local:?} exceeds the device's limit of {most} in dimension \
                     {dimension}"
                ));
            }
        }
        let most = kernel_limit
            .map_or(limits.max_work_group_size, |most| most.min(limits.max_work_group_size));
        match local.iter().try_fold(1usize, |all, &n| all.checked_mul(n)) {
            Some(items) if items <= most => Ok(()),
            _ => fail(format!(
                "the local size {local:?} exceeds the {most} work-items that a work-group of this \
                 kernel can have on this device"
            )),
        }
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
/// ```no_run
/// use kiln::NdSize;
///
/// # fn example(blur: kiln::Kernel, src: kiln::Buffer<f32>, dst: kiln::Buffer<f32>) {
/// let size = NdSize::from([1920, 1080]);
/// let launch = blur.launch(size).local([16, 8]).args((&src, &dst));
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NdSize {
    dimensions: u8,
    sizes: [usize; 3],
}

impl NdSize {
    /// Returns an `NdSize` of up to three sizes, or of the single size 1 if there are none.
    pub(crate) fn of(sizes: &[usize]) -> Self {
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
    /// use kiln::NdSize;
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
/// ```no_run
/// use kiln::{Buffer, IntoNdSize, Kernel, Launch};
///
/// fn clear(kernel: &Kernel, frame: &Buffer<f32>, size: impl IntoNdSize) -> Launch {
///     kernel.launch(size).args((frame, 0.0f32)) // `size` is `n`, `[width, height]` and so on
/// }
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
