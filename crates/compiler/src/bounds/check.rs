//! Check of a launch: the touches of memory that its kernel may do, compared with the lengths of the memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kiln_spirv::edit::{Definitions, Location, Section};
use kiln_spirv::{Error, ErrorKind, Result};

use super::hazards::Hazard;
use super::kernel::{Kernel, ParameterMemory};
use super::report::{AccessVerdict, CheckedAccess, Memory, Reason, Report};
use super::{Argument, Launch, pixels, refusal};
use crate::analysis::access::{
    Budget, Findings, Kind, PixelTouch, Root, Touch, Undefined, Value, Watcher,
};
use crate::analysis::affine::Space;
use crate::analysis::images::Source;
use crate::plan::{Memory as Allocation, Region};

/// Number of steps that the check of a launch may take: less than a second.
const FULL_EFFORT: usize = 1 << 21;

/// Number of steps that a check may take while its caller waits: a few milliseconds.
const SMALL_EFFORT: usize = 1 << 14;

/// Checks a launch of a kernel.
///
/// # Errors
///
/// [`InvalidArgument`](kiln_spirv::ErrorKind::InvalidArgument) if the arguments do not fit the kernel's parameters.
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if the kernel is refused: it cannot be guarded, either. So is a
/// kernel whose check would take too long.
pub fn check(kernel: &Kernel, launch: &Launch<'_>) -> Result<Report> {
    let budget = Budget::of(FULL_EFFORT);
    let checked = check_within(kernel, launch, &budget);
    match checked {
        Err(_) if budget.is_spent() => {
            Err(refusal::refuse(&kernel.name, "it is too complex to check"))
        }
        checked => checked,
    }
}

/// Checks a launch of a kernel if that takes little time, and returns `None` if it takes longer.
///
/// # Errors
///
/// As for [`check`].
#[must_use]
pub fn check_quickly(kernel: &Kernel, launch: &Launch<'_>) -> Option<Result<Report>> {
    let budget = Budget::of(SMALL_EFFORT);
    let checked = check_within(kernel, launch, &budget);
    (!budget.is_spent()).then_some(checked)
}

fn check_within(kernel: &Kernel, launch: &Launch<'_>, budget: &Budget) -> Result<Report> {
    let values = values(kernel, launch)?;
    let definitions = kernel.module.definitions();
    let space = space(kernel, launch);
    if space.global.contains(&0) {
        return Ok(Report::default());
    }
    let sizes = image_sizes(kernel, launch.arguments);
    let watcher = Watcher::new(&definitions, &space, kernel.function);
    let watcher = watcher.with_image_sizes(sizes).within(budget);
    Check { kernel, launch, definitions: &definitions, watcher }.run(values)
}

/// Returns the work-items of a launch.
fn space(kernel: &Kernel, launch: &Launch<'_>) -> Space {
    let mut space = Space::new(launch.range);
    if space.local.is_none() {
        let required = kernel.required;
        space.local = required.map(|size| size.map(|size| size as i128));
    }
    let divides =
        |local: [i128; 3]| (0..3).all(|d| local[d] > 0 && space.global[d] % local[d] == 0);
    match space.local {
        Some(local) if divides(local) => space,
        Some(_) => space.with_smaller_groups(),
        None if launch.uniform_groups => space,
        None => space.with_smaller_groups(),
    }
}

/// Returns the sizes of the images that are the same whenever a function is called, by the ids of parameters.
fn image_sizes(kernel: &Kernel, arguments: &[Argument]) -> HashMap<u32, [usize; 3]> {
    let size = |source: &Source| match source {
        Source::Argument(at) => match arguments.get(*at)? {
            Argument::Image { size, .. } => Some(*size),
            _ => None,
        },
        Source::Constant(_) => None,
    };
    let sizes = kernel.images.sources.iter().filter_map(|(&id, sources)| {
        let first = size(sources.first()?)?;
        sources.iter().all(|source| size(source) == Some(first)).then_some((id, first))
    });
    sizes.collect()
}

/// Returns what the analysis knows of the arguments.
fn values(kernel: &Kernel, launch: &Launch<'_>) -> Result<Vec<Value>> {
    let (given, expected) = (launch.arguments.len(), kernel.parameters.len());
    if given != expected {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "kernel `{}` has {expected} parameters, but the launch has {given} arguments",
                kernel.name
            ),
        ));
    }
    let pairs = kernel.parameters.iter().zip(launch.arguments).enumerate();
    let value = |(at, (parameter, argument)): (usize, (&super::kernel::Parameter, &Argument))| {
        let memory = |length: usize| {
            Value::Buffer(Region { memory: Allocation(at as u32), offset: 0, length })
        };
        fits(kernel, at, argument)?;
        Ok(match (parameter.memory, argument) {
            (ParameterMemory::Buffer, Argument::Buffer { length, .. }) => memory(*length),
            (ParameterMemory::Local, Argument::Local(length)) => memory(*length),
            (ParameterMemory::ByValue, Argument::Scalar(bytes)) => memory(bytes.len()),
            (ParameterMemory::None, Argument::Scalar(bytes)) => Value::Scalar(bytes.clone()),
            (ParameterMemory::Image(image), Argument::Image { type_name, .. })
                if image.name() == Some(type_name) =>
            {
                Value::Other
            }
            (ParameterMemory::Sampler, Argument::Sampler(_)) => Value::Other,
            (expected, _) => {
                let expected = match expected {
                    ParameterMemory::Buffer => "a buffer",
                    ParameterMemory::Local => "local memory",
                    ParameterMemory::ByValue | ParameterMemory::None => "a value",
                    ParameterMemory::Image(image) => image.name().unwrap_or("an image"),
                    ParameterMemory::Sampler => "a sampler",
                };
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!(
                        "kernel `{}`: {} is {expected}, but the argument is not",
                        kernel.name,
                        parameter.describe(at)
                    ),
                ));
            }
        })
    };
    pairs.map(value).collect()
}

/// Checks that a value has the size of its parameter, and that a buffer starts where the parameter's
/// declaration says. A driver need not notice either.
fn fits(kernel: &Kernel, at: usize, argument: &Argument) -> Result<()> {
    let parameter = &kernel.parameters[at];
    let problem = match argument {
        Argument::Scalar(bytes) if parameter.size != Some(bytes.len() as i128) => {
            let expected = match parameter.size {
                Some(size) => format!("{size} bytes"),
                None => "a value whose size is known".to_owned(),
            };
            format!("given a value of {} bytes, expected {expected}", bytes.len())
        }
        Argument::Buffer { alignment, .. } if *alignment as i128 % parameter.alignment != 0 => {
            format!(
                "the slice starts at a multiple of {alignment} bytes, expected a multiple of {}",
                parameter.alignment
            )
        }
        _ => return Ok(()),
    };
    let name = parameter.describe(at);
    Err(Error::invalid(format!("kernel `{}`: {name}: {problem}", kernel.name)))
}

/// Verdicts on instructions, and hazards.
type Judged = (Vec<CheckedAccess>, BTreeSet<(Location, Hazard)>);

/// Check of one launch.
struct Check<'a, 'm> {
    kernel: &'a Kernel,
    launch: &'a Launch<'a>,
    definitions: &'a Definitions<'m>,
    watcher: Watcher<'m>,
}

impl Check<'_, '_> {
    /// Returns the verdicts for the launch's arguments.
    fn run(mut self, mut values: Vec<Value>) -> Result<Report> {
        for (at, value) in values.iter_mut().enumerate() {
            if matches!(value, Value::Scalar(_)) && !self.kernel.deciding.contains(&at) {
                *value = Value::Other;
            }
        }
        self.watcher.drop_uninterpreted(&mut values);
        let is_scalar = |&at: &usize| matches!(values[at], Value::Scalar(_));
        let constants: BTreeSet<_> = (0..values.len()).filter(is_scalar).collect();
        let judged = self.judged(&values)?;
        let is_general = constants.is_empty() || !self.launch.few_constants;
        let (judged, constants) = if is_general {
            (judged, constants)
        } else {
            self.generalised(judged, values, constants)
        };
        let (accesses, hazards) = judged;
        Ok(Report { accesses, hazards, constants })
    }

    /// Returns the same verdicts with the values of as few scalars as they depend on.
    fn generalised(
        &mut self,
        mut judged: Judged,
        mut values: Vec<Value>,
        mut constants: BTreeSet<usize>,
    ) -> (Judged, BTreeSet<usize>) {
        let is_same = |(a, hazards): &Judged, (b, others): &Judged| {
            let verdicts = |all: &[CheckedAccess]| -> Vec<_> {
                all.iter().map(|checked| (checked.location, checked.is_in_bounds())).collect()
            };
            hazards == others && verdicts(a) == verdicts(b)
        };
        if constants.len() > 1 {
            let mut without = values.clone();
            constants.iter().for_each(|&at| without[at] = Value::Other);
            if let Some(other) = self.judged(&without).ok().filter(|other| is_same(&judged, other))
            {
                return (other, BTreeSet::new());
            }
        }
        for at in constants.clone() {
            let value = std::mem::replace(&mut values[at], Value::Other);
            match self.judged(&values) {
                Ok(other) if is_same(&judged, &other) => {
                    judged = other;
                    constants.remove(&at);
                }
                _ => values[at] = value,
            }
        }
        (judged, constants)
    }

    /// Returns the verdict for each instruction that touches memory, by location, and the hazards.
    fn judged(&mut self, values: &[Value]) -> Result<Judged> {
        let Findings { touches, pixels, undefined } = self.watcher.watch(values)?;
        let mut all = BTreeMap::<(Location, bool), CheckedAccess>::new();
        for touch in touches {
            let checked = self.judge(touch)?;
            match all.entry((checked.location, checked.kind.writes())) {
                std::collections::btree_map::Entry::Vacant(new) => _ = new.insert(checked),
                std::collections::btree_map::Entry::Occupied(mut known) => {
                    let is_unaligned = known.get().is_unaligned || checked.is_unaligned;
                    // An access outside counts more than one that is not aligned.
                    if known.get().is_in_bounds() || checked.needs_check() {
                        known.insert(checked);
                    }
                    known.get_mut().is_unaligned = is_unaligned;
                }
            }
        }
        for touch in pixels {
            let Some(checked) = self.judge_pixel(&touch)? else { continue };
            let known = all.entry((checked.location, checked.kind.writes()));
            let known = known.or_insert_with(|| checked.clone());
            if known.is_in_bounds() {
                *known = checked;
            }
        }
        let mut hazards = self.kernel.hazards.clone();
        hazards.extend(undefined.into_iter().map(|(location, undefined)| {
            let hazard = match undefined {
                Undefined::Division => Hazard::Division,
                Undefined::Shift => Hazard::Shift,
                Undefined::Limits => Hazard::Limits,
                Undefined::Component => Hazard::VectorIndex,
                Undefined::Unreachable => Hazard::Unreachable,
            };
            (location, hazard)
        }));
        Ok((all.into_values().collect(), hazards))
    }

    fn judge(&self, touch: Touch) -> Result<CheckedAccess> {
        let memory = match &touch.root {
            Root::Parameter(parameter) => Memory::Arguments(BTreeSet::from([*parameter])),
            Root::OneOf(parameters) => Memory::Arguments(parameters.clone()),
            Root::Variable(id) => Memory::Variable(*id),
            Root::Unknown => return Err(self.refuse(&touch, "a pointer whose memory is not known")),
        };
        if touch.kind == Kind::Escape {
            let what = self.kernel.describe(self.definitions, &memory);
            return Err(self.refuse(&touch, &what));
        }
        if touch.kind.writes() && self.is_read_only(&memory) {
            let what = self.kernel.describe(self.definitions, &memory);
            let reason = format!("it writes to {what}, which is declared `const`");
            return Err(self.refused(touch.location, reason));
        }
        let (location, kind) = (touch.location, touch.kind);
        let verdict = self.verdict(&touch, &memory);
        let is_unaligned = !self.is_aligned(&touch, &memory);
        Ok(CheckedAccess { location, kind, memory, verdict, is_unaligned })
    }

    /// Returns the verdict on an access to a pixel.
    fn judge_pixel(&self, touch: &PixelTouch) -> Result<Option<CheckedAccess>> {
        let mut accesses = self.kernel.images.accesses.iter();
        let Some(access) = accesses.find(|access| access.location == touch.location) else {
            return Ok(None);
        };
        let arguments = self.launch.arguments;
        let limits = &touch.coordinates;
        let verdict = pixels::verdict(self.kernel, self.definitions, arguments, access, limits)?;
        Ok(Some(CheckedAccess {
            location: touch.location,
            kind: if access.writes { Kind::Write } else { Kind::Read },
            memory: Memory::Arguments(access.images.clone()),
            verdict,
            is_unaligned: false,
        }))
    }

    fn refuse(&self, touch: &Touch, what: &str) -> Error {
        let reason = match (touch.kind, touch.note) {
            (Kind::Escape, note) => {
                format!("{what} {}", note.unwrap_or("is used in a way that is not followed"))
            }
            (kind, _) => format!("it {} {what}", super::report::verb(kind)),
        };
        self.refused(touch.location, reason)
    }

    fn refused(&self, location: Location, reason: String) -> Error {
        let reason = refusal::at_line(self.definitions, location, reason);
        refusal::refuse(&self.kernel.name, &reason)
    }

    fn is_read_only(&self, memory: &Memory) -> bool {
        match memory {
            Memory::Arguments(all) => all.iter().any(|&at| self.kernel.parameters[at].is_read_only),
            Memory::Variable(id) => self.kernel.is_constant(self.definitions, *id),
        }
    }

    /// Returns the least length in bytes of the memory, and the alignment of its start.
    fn extent(&self, memory: &Memory) -> Option<(i128, i128)> {
        let of_argument = |&at: &usize| {
            Some(match &self.launch.arguments[at] {
                Argument::Buffer { length, alignment } => (*length as i128, *alignment as i128),
                Argument::Scalar(bytes) => (bytes.len() as i128, MAX_ALIGN),
                Argument::Local(length) => (*length as i128, MAX_ALIGN),
                Argument::Image { .. } | Argument::Sampler(_) => return None,
            })
        };
        match memory {
            Memory::Variable(id) => {
                Some((self.watcher.size_of(*id)?, self.watcher.alignment_of(*id)))
            }
            Memory::Arguments(all) => {
                let all = all.iter().map(of_argument).collect::<Option<Vec<_>>>()?;
                all.into_iter().reduce(|(a, b), (c, d)| (a.min(c), b.min(d)))
            }
        }
    }

    fn is_aligned(&self, touch: &Touch, memory: &Memory) -> bool {
        let (_, alignment) = self.extent(memory).unwrap_or((0, 1));
        touch.is_aligned && alignment % touch.alignment.max(1) == 0
    }

    fn verdict(&self, touch: &Touch, memory: &Memory) -> AccessVerdict {
        let Some((length, _)) = self.extent(memory) else {
            return AccessVerdict::Guarded(Reason::UnknownLength);
        };
        let Some(((low, high), width)) = touch.offsets.zip(touch.width) else {
            return AccessVerdict::Guarded(Reason::UnknownOffsets { length });
        };
        let end = high.saturating_add(width);
        if low < 0 || end > length {
            return AccessVerdict::Guarded(Reason::Outside { first: low, end, length });
        }
        if !self.is_aligned(touch, memory) {
            return AccessVerdict::Guarded(Reason::Unaligned { alignment: touch.alignment });
        }
        AccessVerdict::InBounds
    }
}

/// Alignment in bytes of local memory that is passed to a kernel, and of structs that are passed by value: that
/// of the largest type.
const MAX_ALIGN: i128 = 128;

impl Kernel {
    /// Returns the memory in words.
    pub(super) fn describe(&self, definitions: &Definitions<'_>, memory: &Memory) -> String {
        match memory {
            Memory::Arguments(all) => {
                let all: Vec<_> = all.iter().map(|&at| self.parameters[at].describe(at)).collect();
                all.join(" or ")
            }
            Memory::Variable(id) => {
                let names = definitions.module().section(Section::Names).iter();
                let name = names.filter_map(|i| i.named()).find(|(target, _)| target == id);
                name.map_or_else(
                    || "a variable".to_owned(),
                    |(_, name)| format!("the variable `{name}`"),
                )
            }
        }
    }

    /// Returns whether a variable is constant, or an input of the kernel.
    pub(super) fn is_constant(&self, definitions: &Definitions<'_>, variable: u32) -> bool {
        use rspirv::spirv::{Decoration, StorageClass};
        let class = definitions.get(variable).and_then(|i| StorageClass::from_u32(i.variable()?.0));
        let is_declared = || {
            let constant = [Decoration::Constant, Decoration::NonWritable];
            let mut all = definitions.module().section(Section::Annotations).iter();
            all.any(|i| {
                let mut constant = constant.iter().filter_map(|constant| i.decoration(*constant));
                constant.any(|(target, _)| target == variable)
            })
        };
        matches!(class, Some(StorageClass::UniformConstant | StorageClass::Input)) || is_declared()
    }
}
