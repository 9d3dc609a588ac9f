//! Forms of a fused kernel: how it does the work of launches that read what other work-items of earlier
//! launches wrote, or that do not depend on each other.

use std::fmt;
use std::str::FromStr;

use kiln_spirv::{Error, ErrorKind};

use crate::plan::{Plan, Slot};

/// Form of a fused kernel: whether it runs a launch again whose results other work-items need, and where it
/// keeps these results, or whether its launches run side by side. Forms differ in speed and never in results.
///
/// By default, the [trials](https://docs.rs/kiln/latest/kiln/guides/fusion/index.html#trials) find the fastest form. The environment variable
/// `KILN_FUSION_FORM` gives one form to [all fused kernels](https://docs.rs/kiln/latest/kiln/guides/fusion/index.html#forms), in the notation that
/// [`FromStr`] reads.
///
/// # Examples
///
/// ```
/// # use kiln_compiler as kiln;
/// use kiln::fusion::FusionForm;
///
/// let form = FusionForm::Tiles { width: 16, height: 16 };
/// assert_eq!(form.to_string(), "tiles of 16 x 16");
/// assert_eq!("tiles:16x16".parse::<FusionForm>()?, form);
/// # Ok::<(), kiln_spirv::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum FusionForm {
    /// Each work-item does its own work of every launch, once. No work-item needs what another one computes,
    /// unless both are of one work-group and wait for each other at a barrier.
    Direct,
    /// Wherever a launch reads an element that an earlier launch writes, the work-item computes that element
    /// again. This suits cheap earlier launches, or few reads.
    Inlined,
    /// Each work-group computes a tile of the result. Before that, its work-items together compute the
    /// elements of the earlier launches that the tile needs, with those around its borders, in local memory.
    /// This usually suits GPUs.
    Tiles {
        /// Number of elements of a tile in the first dimension.
        width: u32,
        /// Number of elements of a tile in the second dimension.
        height: u32,
    },
    /// Each work-item computes several rows of one column of the result. Before that, it computes the
    /// elements of the earlier launches that these rows need, in private memory. This usually suits CPUs.
    Strips {
        /// Number of rows of a strip.
        rows: u32,
    },
    /// Like `Strips`, but only the rows that the next row of the result needs are in private memory: a window
    /// that moves over the strip.
    Windows {
        /// Number of rows of a strip.
        rows: u32,
    },
    /// Each launch runs in work-groups of its own: the kernel has the work-groups of all launches, and each
    /// work-group does the work of one. The launches have the same kernel and the same nd-range, and none of
    /// them writes what another one accesses. This suits many small launches, such as those over the slices
    /// of a batch.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln_compiler as kiln;
    /// use kiln::fusion::FusionForm;
    ///
    /// assert_eq!("batched".parse::<FusionForm>()?, FusionForm::Batched);
    /// # Ok::<(), kiln_spirv::Error>(())
    /// ```
    Batched,
}

impl FusionForm {
    /// Returns the form in the notation that [`FromStr`] reads, such as `tiles:16x16`.
    #[doc(hidden)]
    #[must_use]
    pub fn notation(self) -> String {
        match self {
            Self::Direct => "direct".to_owned(),
            Self::Inlined => "inlined".to_owned(),
            Self::Tiles { width, height } => format!("tiles:{width}x{height}"),
            Self::Strips { rows } => format!("strips:{rows}"),
            Self::Windows { rows } => format!("windows:{rows}"),
            Self::Batched => "batched".to_owned(),
        }
    }
}

impl fmt::Display for FusionForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::Inlined => f.write_str("inlined"),
            Self::Tiles { width, height } => write!(f, "tiles of {width} x {height}"),
            Self::Strips { rows } => write!(f, "strips of {rows} rows"),
            Self::Windows { rows } => write!(f, "windows over {rows} rows"),
            Self::Batched => f.write_str("batched"),
        }
    }
}

/// Reads `direct`, `inlined`, `tiles:16x16`, `strips:32`, `windows:32` or `batched`, with any numbers but 0.
///
/// # Errors
///
/// [`InvalidArgument`](ErrorKind::InvalidArgument) for any other text.
impl FromStr for FusionForm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let count = |text: &str| text.parse().ok().filter(|&count: &u32| count > 0);
        let form = match text.split_once(':') {
            None if text == "direct" => Some(Self::Direct),
            None if text == "inlined" => Some(Self::Inlined),
            None if text == "batched" => Some(Self::Batched),
            Some(("tiles", size)) => size.split_once('x').and_then(|(width, height)| {
                Some(Self::Tiles { width: count(width)?, height: count(height)? })
            }),
            Some(("strips", rows)) => count(rows).map(|rows| Self::Strips { rows }),
            Some(("windows", rows)) => count(rows).map(|rows| Self::Windows { rows }),
            _ => None,
        };
        form.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "{text:?} is not a form of fusion; expected `direct`, `inlined`, `tiles:16x16`, \
                     `strips:32`, `windows:32` or `batched`, with numbers above 0"
                ),
            )
        })
    }
}

/// Returns the forms to try for a plan, [`Direct`](FusionForm::Direct) first, then those that are usually the
/// fastest on the kind of device. Only equal launches are [batched](FusionForm::Batched).
///
/// On a CPU, the private arrays of strips and windows stay in the fastest cache, and the loop over the rows
/// is a loop of the kernel. On a GPU, tiles in local memory keep all work-items busy. Tiles are not tried where
/// launches stay functions of their own, because tiles would call these for each element.
pub(super) fn forms(plan: &Plan, is_gpu: bool) -> Vec<FusionForm> {
    let mut forms = vec![FusionForm::Direct];
    if plan.slots.len() < 2 || plan.slots.iter().any(Slot::takes_objects) {
        return forms;
    }
    if plan.slots.iter().all(|slot| slot.is_like(&plan.slots[0])) {
        forms.push(FusionForm::Batched);
    }
    let (tiles, strips) =
        if is_gpu { ([(16, 16), (32, 8)], 16) } else { ([(64, 16), (32, 8)], 32) };
    let tiles = tiles.map(|(width, height)| FusionForm::Tiles { width, height });
    let rows = [FusionForm::Strips { rows: strips }, FusionForm::Windows { rows: strips }];
    if is_gpu {
        forms.extend(tiles.into_iter().chain([FusionForm::Inlined]).chain(rows));
    } else {
        forms.extend(rows.into_iter().chain([FusionForm::Inlined]));
        forms.extend(tiles.into_iter().filter(|_| !plan.target.separate_functions));
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_read_as_they_are_written() {
        let forms = [
            FusionForm::Direct,
            FusionForm::Inlined,
            FusionForm::Tiles { width: 64, height: 16 },
            FusionForm::Strips { rows: 32 },
            FusionForm::Windows { rows: 8 },
            FusionForm::Batched,
        ];
        for form in forms {
            assert_eq!(form.notation().parse::<FusionForm>().unwrap(), form);
        }
        for other in
            ["", "tiles", "tiles:16", "tiles:0x16", "strips:", "strips:-1", "direct:1", "batched:2"]
        {
            let error = other.parse::<FusionForm>().unwrap_err();
            assert!(error.to_string().contains(&format!("{other:?}")), "{error}");
        }
    }
}
