//! Stages of launches: launches of a later stage read what other work-items wrote in launches of an earlier
//! stage.
//!
//! Within a stage, a work-item uses only what it wrote itself, so a stage becomes one kernel as in the form
//! [`Direct`](super::super::FusionForm::Direct). All stages but the last only produce contents that later
//! stages read. They run again wherever these contents are needed, and write to no memory of the plan. A
//! launch whose results remain in memory runs once more in the last stage, where it writes them.

use std::collections::{BTreeMap, BTreeSet};

use super::elements::element_size;
use crate::analysis::access::{Access, Bytes, Kind};
use crate::analysis::affine::Space;
use crate::fusion::dependence::{Use, never_meet};
use crate::fusion::examined::Examined;
use crate::plan::{Argument, Memory, Place, Plan, Slot};

/// Launches of a plan by stages, the last stage last.
pub(super) struct Stages {
    pub(super) all: Vec<Stage>,
    /// Memory of the plan that each array stands for. In the plans of stages, arrays are memories with numbers
    /// of their own.
    pub(super) arrays: BTreeMap<Memory, Memory>,
    /// Arrays of memories to which only one argument of one launch writes.
    pub(super) sole: BTreeSet<Memory>,
}

/// Launches that run one after the other in the same work-item.
pub(super) struct Stage {
    pub(super) plan: Plan,
    /// Launch of the whole plan, for each slot of the stage's plan.
    pub(super) launches: Vec<usize>,
}

impl Stage {
    /// Returns the place in the whole plan of a place in the stage's plan.
    pub(super) fn origin(&self, place: Place) -> Place {
        Place { slot: self.launches[place.slot], ..place }
    }
}

impl Stages {
    /// Divides the launches of a plan into stages. `slots` holds the accesses of each launch, in the
    /// coordinates of its own nd-range.
    ///
    /// # Errors
    ///
    /// Fails with the reason why launches cannot run again for other work-items.
    pub(super) fn of(plan: &Plan, slots: &[Examined]) -> Result<Self, String> {
        let flow = DataFlow::of(plan, slots);
        let levels = flow.levels();
        let last = levels.iter().max().copied().unwrap_or_default();
        if last == 0 {
            return Err("no launch reads what an earlier one wrote in another work-item".into());
        }
        for (at, &level) in levels.iter().enumerate() {
            if level > 0 {
                check_producer(plan, at, &slots[at])?;
            }
        }
        let versions = Versions::of(&flow, levels);
        let all = (0..=last).rev().map(|level| versions.stage(&flow, level));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let arrays = versions.arrays.iter().map(|(&(memory, _), &array)| (array, memory));
        let arrays: BTreeMap<_, _> = arrays.collect();
        let is_sole = |&(_, &memory): &(&Memory, &Memory)| {
            let writes = |(place, _): &(Place, _)| {
                accesses(&slots[place.slot], place.argument).any(|access| access.kind.writes())
            };
            plan.regions(memory).filter(writes).count() == 1
        };
        let sole = arrays.iter().filter(is_sole).map(|(&array, _)| array).collect();
        let stages = Self { all, arrays, sole };
        stages.check_inputs(plan, slots)?;
        Ok(stages)
    }

    /// Checks that launches which run again read no memory that a launch of the last stage writes.
    fn check_inputs(&self, plan: &Plan, slots: &[Examined]) -> Result<(), String> {
        let Some((last, earlier)) = self.all.split_last() else { return Ok(()) };
        for stage in earlier {
            for (place, argument) in stage.plan.places() {
                let Argument::Buffer(region) = argument else { continue };
                if self.arrays.contains_key(&region.memory) {
                    continue;
                }
                let reader = stage.origin(place);
                let writer = last.plan.regions(region.memory).find(|(place, other)| {
                    other.overlaps(region)
                        && accesses(&slots[last.launches[place.slot]], place.argument)
                            .any(|access| access.kind.writes())
                });
                if let Some((place, _)) = writer {
                    let writer = &plan.slots[last.launches[place.slot]].kernel;
                    let kernel = &plan.slots[reader.slot].kernel;
                    let name = slots[reader.slot].parameters[reader.argument].name.as_deref();
                    return Err(format!(
                        "`{kernel}` cannot run again for other work-items: `{writer}` writes to `{}`, \
                         which it reads",
                        name.unwrap_or("a buffer")
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Returns the accesses of a launch through an argument.
fn accesses(examined: &Examined, argument: usize) -> impl Iterator<Item = &Access> {
    examined.accesses.all.iter().filter(move |access| access.parameter == argument)
}

/// Checks that a launch has no effects besides its results, so that it may run any number of times for a
/// work-item.
fn check_producer(plan: &Plan, at: usize, examined: &Examined) -> Result<(), String> {
    let Slot { kernel, .. } = &plan.slots[at];
    let refuse =
        |why: &str| Err(format!("`{kernel}` cannot run again for other work-items: it {why}"));
    if examined.groups.synchronizes {
        return refuse("uses barriers, atomic operations or operations of its work-group");
    }
    if examined.groups.local_bytes > 0
        || plan.slots[at].arguments.iter().any(|value| matches!(value, Argument::Local(_)))
    {
        return refuse("uses local memory");
    }
    for access in &examined.accesses.all {
        let parameter = &examined.parameters[access.parameter];
        let name = parameter.name.as_deref().unwrap_or("a buffer");
        match access.kind {
            Kind::Atomic => return refuse(&format!("changes `{name}` atomically")),
            Kind::Escape => {
                let note = access.note.unwrap_or("has an address that is not followed");
                return refuse(&format!("uses `{name}`, which {note}"));
            }
            Kind::Read | Kind::Write => {}
        }
    }
    Ok(())
}

/// Reads and writes of the launches of a plan.
struct DataFlow<'a> {
    plan: &'a Plan,
    slots: &'a [Examined],
    /// Launches that write each memory, in order.
    writers: BTreeMap<Memory, Vec<usize>>,
    /// Launches that read each memory, in order.
    readers: BTreeMap<Memory, Vec<usize>>,
}

impl<'a> DataFlow<'a> {
    fn of(plan: &'a Plan, slots: &'a [Examined]) -> Self {
        let (mut writers, mut readers) = (BTreeMap::new(), BTreeMap::new());
        for (place, argument) in plan.places() {
            let Argument::Buffer(region) = argument else { continue };
            for access in accesses(&slots[place.slot], place.argument) {
                let add = |known: &mut BTreeMap<Memory, Vec<usize>>| {
                    let launches = known.entry(region.memory).or_default();
                    if launches.last() != Some(&place.slot) {
                        launches.push(place.slot);
                    }
                };
                if access.kind.writes() {
                    add(&mut writers);
                }
                if access.kind != Kind::Write {
                    add(&mut readers);
                }
            }
        }
        Self { plan, slots, writers, readers }
    }

    fn writes(&self, at: usize, memory: Memory) -> bool {
        self.writers.get(&memory).is_some_and(|launches| launches.contains(&at))
    }

    fn reads(&self, at: usize, memory: Memory) -> bool {
        self.readers.get(&memory).is_some_and(|launches| launches.contains(&at))
    }

    /// Returns the last launch before `at` that writes a memory.
    fn source(&self, at: usize, memory: Memory) -> Option<usize> {
        self.writers.get(&memory)?.iter().copied().rfind(|&writer| writer < at)
    }

    /// Returns the launch whose results a launch changes in place, if both belong to the same stage and no
    /// other stage needs the results before they are changed. The last stage runs the launches in `repeated`,
    /// too.
    fn updated(
        &self,
        memory: Memory,
        at: usize,
        levels: &[usize],
        repeated: &BTreeSet<usize>,
    ) -> Option<usize> {
        let source = self.source(at, memory).filter(|_| self.reads(at, memory))?;
        let mut readers = self.readers.get(&memory)?.iter().filter(|&&reader| reader != at);
        let needs_results = |&reader: &usize| {
            let is_elsewhere = levels[reader] != levels[source] || repeated.contains(&reader);
            is_elsewhere && self.source(reader, memory) == Some(source)
        };
        (levels[source] == levels[at] && !readers.any(needs_results)).then_some(source)
    }

    /// Returns the level of each launch: the number of stages between it and the last stage.
    fn levels(&self) -> Vec<usize> {
        let mut levels = vec![0; self.plan.slots.len()];
        for writer in (0..levels.len()).rev() {
            for (&memory, writers) in &self.writers {
                if !writers.contains(&writer) {
                    continue;
                }
                let readers = self.readers.get(&memory).into_iter().flatten();
                for &reader in readers.filter(|&&reader| reader > writer) {
                    let step = usize::from(!self.uses_only_own(memory, writer, reader));
                    levels[writer] = levels[writer].max(levels[reader] + step);
                }
            }
        }
        levels
    }

    /// Returns whether each work-item of a launch reads only what the work-item with the same linear id of an
    /// earlier launch wrote.
    fn uses_only_own(&self, memory: Memory, writer: usize, reader: usize) -> bool {
        let space = |at: usize| Space::new(&self.plan.slots[at].range);
        let (first, second) = (space(writer), space(reader));
        let shape = |space: &Space| (space.global, space.offset);
        let has_same_ids = shape(&first) == shape(&second);
        let uses = Use::all(self.plan, self.slots, memory);
        let of = |at: usize| uses.iter().filter(move |used| used.slot == at);
        of(writer).filter(|used| used.access.kind.writes()).all(|a| {
            of(reader).filter(|used| used.access.kind == Kind::Read).all(|b| {
                !a.region.overlaps(&b.region)
                    || a.bytes.zip(b.bytes).is_some_and(|(a, b)| match has_same_ids {
                        true => never_meet(&a, &b, (&first, &second), &first),
                        false => {
                            let own = own_element(&a, &first);
                            own.is_some() && own == own_element(&b, &second)
                        }
                    })
            })
        })
    }
}

/// Returns the size of the elements that a launch accesses, one for each work-item by its linear id, and the
/// number of the first of them, with the number of work-items; `None` if a work-item accesses other bytes, too.
fn own_element(bytes: &Bytes, space: &Space) -> Option<(i128, i128, i128)> {
    let size = element_size(&bytes.start, space)?;
    let (first, part) = (bytes.start.low.div_euclid(size), bytes.start.low.rem_euclid(size));
    let count = space.global.iter().product();
    (part + bytes.width <= size).then_some((size, first, count))
}

/// Contents of memories that are kept in arrays: a version for each launch of an earlier stage that writes a
/// memory.
struct Versions {
    /// [Level](DataFlow::levels) of each launch.
    levels: Vec<usize>,
    /// Array for the contents of each memory that a launch of an earlier stage writes.
    arrays: BTreeMap<(Memory, usize), Memory>,
    /// Launches of earlier stages that run in the last stage, too.
    repeated: BTreeSet<usize>,
}

impl Versions {
    fn of(flow: &DataFlow<'_>, levels: Vec<usize>) -> Self {
        let next = flow.plan.memories().last().map_or(0, |memory| memory.0.saturating_add(1));
        let (mut written, mut repeated) = (Vec::new(), BTreeSet::new());
        for (&memory, writers) in &flow.writers {
            for &writer in writers.iter().filter(|&&writer| levels[writer] > 0) {
                written.push((memory, writer));
                // The contents remain after the plan, or a launch of the last stage changes them.
                let is_changed = writers.iter().any(|&other| levels[other] == 0);
                if !flow.plan.dead.contains(&memory) || is_changed {
                    repeated.insert(writer);
                }
            }
        }
        let mut arrays: BTreeMap<_, _> = written.into_iter().zip((next..).map(Memory)).collect();
        for (memory, writer) in arrays.keys().copied().collect::<Vec<_>>() {
            if let Some(source) = flow.updated(memory, writer, &levels, &repeated)
                && let Some(&array) = arrays.get(&(memory, source))
            {
                arrays.insert((memory, writer), array);
            }
        }
        Self { levels, arrays, repeated }
    }

    /// Returns the stage of a level. In the last stage, of level 0, launches of earlier stages write to their
    /// memories.
    fn stage(&self, flow: &DataFlow<'_>, level: usize) -> Result<Stage, String> {
        let is_here =
            |&at: &usize| self.levels[at] == level || (level == 0 && self.repeated.contains(&at));
        let launches: Vec<_> = (0..self.levels.len()).filter(is_here).collect();
        let mut plan = flow.plan.clone();
        plan.slots = launches.iter().map(|&at| flow.plan.slots[at].clone()).collect();
        plan.constants.clear();
        for (slot, &at) in launches.iter().enumerate() {
            let fixed = flow.plan.constants.iter().filter(|place| place.slot == at);
            plan.constants.extend(fixed.map(|place| Place { slot, ..*place }));
            for argument in &mut plan.slots[slot].arguments {
                if let Argument::Buffer(region) = argument {
                    region.memory = self.memory(flow, level, at, region.memory)?;
                }
            }
        }
        if level > 0 {
            let here = || self.arrays.iter().filter(|(version, _)| self.levels[version.1] == level);
            let read = here().filter(|&(&version, _)| self.is_read_later(flow, version));
            let read: BTreeSet<_> = read.map(|(_, &array)| array).collect();
            plan.dead =
                here().map(|(_, &array)| array).filter(|array| !read.contains(array)).collect();
            plan.forms.clear();
        }
        Ok(Stage { plan, launches })
    }

    /// Returns whether a launch of a later stage reads the contents that a launch writes to a memory.
    fn is_read_later(&self, flow: &DataFlow<'_>, (memory, writer): (Memory, usize)) -> bool {
        let mut readers = flow.readers.get(&memory).into_iter().flatten();
        readers.any(|&reader| {
            flow.source(reader, memory) == Some(writer)
                && (self.levels[reader] < self.levels[writer] || self.repeated.contains(&reader))
        })
    }

    /// Returns the memory that stands for a memory of the plan in a launch of a stage.
    fn memory(
        &self,
        flow: &DataFlow<'_>,
        level: usize,
        at: usize,
        memory: Memory,
    ) -> Result<Memory, String> {
        let own = self.arrays.get(&(memory, at)).filter(|_| level > 0);
        let source = flow.source(at, memory);
        let read = source.and_then(|source| self.arrays.get(&(memory, source)));
        let read = read.filter(|_| flow.reads(at, memory));
        let kernel = &flow.plan.slots[at].kernel;
        match (own, read) {
            (Some(own), Some(read)) if own == read => Ok(*own),
            (Some(_), _) if flow.reads(at, memory) => Err(format!(
                "`{kernel}` cannot run again for other work-items: it reads a buffer that it writes"
            )),
            // The launch whose results this one changes runs again in the last stage.
            (None, Some(_)) if flow.writes(at, memory) && level == 0 => Ok(memory),
            (None, Some(_)) if flow.writes(at, memory) => Err(format!(
                "`{kernel}` writes to a buffer in which it reads what other work-items wrote before"
            )),
            (Some(&array), _) | (None, Some(&array)) => Ok(array),
            (None, None) => Ok(memory),
        }
    }
}
