//! Ways to run a group of launches: as one kernel, as several parts, or one by one.

use std::fmt;
use std::str::FromStr;

use kiln_compiler::NdRange;
use kiln_compiler::fusion::{self, FusionForm, Memory, Place, StepReport};

use crate::build_graph::kernel::Kernel;

/// Way to run a group of launches, with the kernels that it needs.
pub(crate) struct Way {
    /// Steps in the order in which they run.
    pub(crate) steps: Vec<Step>,
}

/// One command of a way.
pub(crate) enum Step {
    /// The launch at this position runs by itself.
    Launch(usize),
    Kernel(Box<FusedKernel>),
}

impl Step {
    pub(super) fn report(&self) -> StepReport {
        match self {
            Self::Launch(slot) => StepReport::of_launch(*slot),
            Self::Kernel(kernel) => {
                let FusedKernel { slots, repeated, form, kernel, .. } = &**kernel;
                StepReport::of_kernel(slots, repeated, (kernel.name(), *form))
            }
        }
    }
}

/// Kernel that does the work of several launches.
pub(crate) struct FusedKernel {
    /// Positions of the launches in their scope, in order.
    pub(crate) slots: Vec<usize>,
    /// Positions of launches of other groups that the kernel runs again, in order.
    pub(crate) repeated: Vec<usize>,
    pub(crate) form: FusionForm,
    pub(crate) kernel: Kernel,
    pub(crate) range: NdRange,
    /// Place of the scope's argument that is passed for each parameter.
    pub(crate) parameters: Vec<Place>,
    /// Memories that the launches in `slots` access, but the fused kernel does not.
    pub(crate) internalized: Vec<Memory>,
    /// Memories with results of the launches in `repeated`, which the fused kernel does not access.
    pub(crate) recomputed: Vec<Memory>,
}

impl Way {
    pub(crate) fn one_by_one(slots: &[usize]) -> Self {
        Self { steps: slots.iter().map(|&slot| Step::Launch(slot)).collect() }
    }

    pub(crate) fn kernels(&self) -> impl Iterator<Item = &FusedKernel> {
        self.steps.iter().filter_map(|step| match step {
            Step::Launch(_) => None,
            Step::Kernel(kernel) => Some(&**kernel),
        })
    }

    /// Returns the number of commands that the way takes.
    pub(crate) fn commands(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn description(&self) -> Description {
        let part = |step: &Step| match step {
            Step::Launch(slot) => PartDescription::Launch(*slot),
            Step::Kernel(kernel) => PartDescription::Kernel {
                form: kernel.form,
                group: fusion::Group {
                    slots: kernel.slots.clone(),
                    repeated: kernel.repeated.clone(),
                },
            },
        };
        Description(self.steps.iter().map(part).collect())
    }
}

/// Description of a way, without its kernels. Its text is stored with the way's times, such as
/// `direct 0 1 | alone 2`, or `tiles:16x16 (0) 1 2` for a kernel that repeats launch 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::build_graph) struct Description(pub(super) Vec<PartDescription>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::build_graph) enum PartDescription {
    Launch(usize),
    Kernel { form: FusionForm, group: fusion::Group },
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, part) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(" | ")?;
            }
            match part {
                PartDescription::Launch(slot) => write!(f, "alone {slot}")?,
                PartDescription::Kernel { form, group } => {
                    f.write_str(&form.notation())?;
                    group.repeated.iter().try_for_each(|slot| write!(f, " ({slot})"))?;
                    group.slots.iter().try_for_each(|slot| write!(f, " {slot}"))?;
                }
            }
        }
        Ok(())
    }
}

/// Error for a text that does not describe a way.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::build_graph) struct NotAWay;

impl FromStr for Description {
    type Err = NotAWay;

    fn from_str(text: &str) -> Result<Self, NotAWay> {
        let part = |text: &str| {
            let (name, launches) = text.split_once(' ')?;
            if name == "alone" {
                return Some(PartDescription::Launch(launches.parse().ok()?));
            }
            let form = name.parse().ok()?;
            let mut group = fusion::Group { slots: Vec::new(), repeated: Vec::new() };
            for launch in launches.split(' ') {
                match launch.strip_prefix('(').and_then(|launch| launch.strip_suffix(')')) {
                    Some(repeated) => group.repeated.push(repeated.parse().ok()?),
                    None => group.slots.push(launch.parse().ok()?),
                }
            }
            Some(PartDescription::Kernel { form, group })
        };
        text.split(" | ").map(part).collect::<Option<_>>().map(Self).ok_or(NotAWay)
    }
}

impl Description {
    /// Whether each of these launches runs exactly once, in steps whose launches are in order.
    pub(super) fn is_of(&self, slots: &[usize]) -> bool {
        let mut all = Vec::new();
        let is_sorted = self.0.iter().all(|part| match part {
            PartDescription::Launch(slot) => {
                all.push(*slot);
                true
            }
            PartDescription::Kernel { group, .. } => {
                all.extend_from_slice(&group.slots);
                let is_sorted = |slots: &[usize]| slots.is_sorted_by(|a, b| a < b);
                is_sorted(&group.slots) && is_sorted(&group.repeated) && !group.slots.is_empty()
            }
        });
        all.sort_unstable();
        is_sorted && all == slots
    }

    /// Returns the launches of each step.
    pub(super) fn steps(&self) -> Vec<&[usize]> {
        let steps = self.0.iter().map(|part| match part {
            PartDescription::Launch(slot) => std::slice::from_ref(slot),
            PartDescription::Kernel { group, .. } => &group.slots,
        });
        steps.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_read_as_they_are_written() {
        for text in [
            "alone 0 | alone 1",
            "direct 0 1 2",
            "batched 0 2 | alone 1",
            "tiles:16x16 (0) 3 4 | alone 5",
        ] {
            assert_eq!(text.parse::<Description>().unwrap().to_string(), text);
        }
        for other in
            ["", "alone", "alone x", "direct", "direct 0 x", "round 0 1", "direct 0 1|alone 2"]
        {
            assert_eq!(other.parse::<Description>(), Err(NotAWay), "{other:?}");
        }
    }

    #[test]
    fn only_descriptions_of_each_launch_exactly_once_are_accepted() {
        let is_of = |text: &str| text.parse::<Description>().unwrap().is_of(&[2, 3, 5]);
        for text in ["direct 2 3 5", "direct 2 5 | alone 3", "direct (0) 2 3 5"] {
            assert!(is_of(text), "{text}");
        }
        for text in ["direct 2 3", "direct 2 3 5 | alone 5", "direct 3 2 5", "alone 2 | alone 3"] {
            assert!(!is_of(text), "{text}");
        }
    }
}
