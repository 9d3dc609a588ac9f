//! Extraction of each slot's kernel into a module of its own, so that an analysis or requirement of one
//! kernel does not extend to all others of its program.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::ptr;
use std::sync::Arc;

use kiln_spirv::edit::Context as _;
use kiln_spirv::edit::{
    Class, Definitions, ExtendedSet, Instruction, References, Section, Stream, View,
};
use kiln_spirv::{Error, ErrorKind, Module, Result};
use rspirv::spirv::{Op, OpenclStd100Op};

use super::inlining::inline_helpers;
use super::modes::Modes;
use super::specialize::specialize;
use super::written;
use crate::analysis::access;
use crate::analysis::operations::Operations;
use crate::plan::{Argument, Plan, Slot};

/// Key of a slot's program: a module, and the values of its specialization constants.
type Key<'a> = (usize, &'a [(u32, Vec<u8>)]);

/// Returns the key of a slot's program.
fn key(slot: &Slot) -> Key<'_> {
    (slot.module, &slot.constants)
}

/// Kernels that were extracted from modules, for plans that have them, too.
#[derive(Default)]
pub(crate) struct Extracts<'m>(Vec<Extract<'m>>);

/// Kernel that was extracted, and what it depends on besides its name.
struct Extract<'m> {
    module: &'m Module,
    constants: Vec<(u32, Vec<u8>)>,
    shared: BTreeSet<usize>,
    separate_functions: bool,
    kernel: Arc<Kernel>,
}

/// Kernel of a plan's slot.
struct Wanted<'a, 'm> {
    at: usize,
    slot: &'a Slot,
    module: &'m Module,
    shared: BTreeSet<usize>,
    separate_functions: bool,
}

impl<'m> Extracts<'m> {
    /// Returns the kernels of a plan's slots, in order, with their programs' constants at the slots' values. Slots get
    /// the same kernel if their kernels are equal.
    ///
    /// # Errors
    ///
    /// Fails where [`ungrouped`], [`specialize`] or [`Modes::of`] fail, and with
    /// [`UnknownKernel`](kiln_spirv::ErrorKind::UnknownKernel) if a module has no kernel of the slot's name.
    pub(crate) fn kernels(
        &mut self,
        plan: &Plan,
        modules: &[&'m Module],
    ) -> Result<Vec<Arc<Kernel>>> {
        let separate_functions = plan.target.separate_functions;
        let slots = plan.slots.iter().enumerate();
        let wanted = slots.map(|(at, slot)| Wanted {
            at,
            slot,
            module: modules[slot.module],
            shared: shared(plan, at),
            separate_functions,
        });
        let wanted: Vec<_> = wanted.collect();
        let new: Vec<_> = wanted.iter().filter(|own| self.find(own).is_none()).collect();
        let plain = plain(&new)?;
        let specialized = specialized(&new, &plain)?;
        let programs = specialized.iter().map(|(&key, module)| (key, Program::of(module)));
        let programs: HashMap<_, _> = programs.collect();
        let kernel = |own: &Wanted<'_, 'm>| match self.find(own) {
            Some(known) => Ok(Arc::clone(known)),
            None => {
                let kernel = own.extract(&programs[&key(own.slot)]);
                Ok(self.add(own, kernel.map_err(|error| in_launch(own.at, own.slot, error))?))
            }
        };
        wanted.iter().map(kernel).collect()
    }

    fn find(&self, wanted: &Wanted<'_, 'm>) -> Option<&Arc<Kernel>> {
        let is_wanted = |known: &&Extract<'m>| {
            known.is_of(wanted)
                && known.shared == wanted.shared
                && known.separate_functions == wanted.separate_functions
        };
        self.0.iter().find(is_wanted).map(|known| &known.kernel)
    }

    /// Adds a kernel. It stands for the known one that is equal, if there is one.
    fn add(&mut self, wanted: &Wanted<'_, 'm>, kernel: Kernel) -> Arc<Kernel> {
        let is_equal = |known: &&Extract<'m>| {
            known.is_of(wanted)
                && known.kernel.function == kernel.function
                && known.kernel.module == kernel.module
        };
        let equal = self.0.iter().find(is_equal).map(|known| Arc::clone(&known.kernel));
        let kernel = equal.unwrap_or_else(|| Arc::new(kernel));
        self.0.push(Extract {
            module: wanted.module,
            constants: wanted.slot.constants.clone(),
            shared: wanted.shared.clone(),
            separate_functions: wanted.separate_functions,
            kernel: Arc::clone(&kernel),
        });
        kernel
    }
}

impl Extract<'_> {
    /// Whether this is the kernel of a program that is wanted, perhaps for other arguments.
    fn is_of(&self, wanted: &Wanted<'_, '_>) -> bool {
        ptr::eq(self.module, wanted.module)
            && self.kernel.name == wanted.slot.kernel
            && self.constants == wanted.slot.constants
    }
}

/// Returns the modules of kernels without decoration groups, by their numbers.
fn plain<'m>(wanted: &[&Wanted<'_, 'm>]) -> Result<HashMap<usize, Cow<'m, Module>>> {
    let mut plain = HashMap::new();
    for Wanted { slot, module, .. } in wanted {
        if let Entry::Vacant(new) = plain.entry(slot.module) {
            new.insert(ungrouped(module).map_err(|error| named(slot, error))?);
        }
    }
    Ok(plain)
}

/// Returns the programs of kernels, by their keys, with the constants at their values.
fn specialized<'a>(
    wanted: &[&Wanted<'a, '_>],
    plain: &'a HashMap<usize, Cow<'_, Module>>,
) -> Result<HashMap<Key<'a>, Cow<'a, Module>>> {
    let mut specialized = HashMap::new();
    for Wanted { slot, .. } in wanted {
        if let Entry::Vacant(new) = specialized.entry(key(slot)) {
            let module = specialize(&plain[&slot.module], &slot.constants);
            new.insert(module.map_err(|error| named(slot, error))?);
        }
    }
    Ok(specialized)
}

/// Returns an error with the slot's kernel as its context.
fn named(slot: &Slot, error: Error) -> Error {
    error.within(format!("`{}`", slot.kernel))
}

impl Wanted<'_, '_> {
    fn extract(&self, program: &Program<'_>) -> Result<Kernel> {
        let mut kernel = program.kernel(&self.slot.kernel)?;
        written::drop_marks(&mut kernel.module);
        kernel.inline_helpers(&self.shared, self.separate_functions)?;
        kernel.keep_in_registers(self.separate_functions)?;
        Ok(kernel)
    }
}

/// Returns a kernel of a fused module. Helpers that are passed buffers of the `shared` parameters are inlined.
///
/// # Errors
///
/// Fails like [`Extracts::kernels`].
pub(crate) fn kernel(
    module: &Module,
    name: &str,
    shared: &BTreeSet<usize>,
    separate_functions: bool,
) -> Result<Kernel> {
    let mut kernel = Program::of(module).kernel(name)?;
    kernel.inline_helpers(shared, separate_functions)?;
    Ok(kernel)
}

/// Returns a kernel on its own, with its variables in registers. No helper is inlined.
///
/// # Errors
///
/// Fails like [`Extracts::kernels`].
pub(crate) fn single(module: &Module, name: &str) -> Result<Kernel> {
    let mut kernel = Program::of(module).kernel(name)?;
    kernel.keep_in_registers(false)?;
    Ok(kernel)
}

/// Returns the arguments of a slot whose memory other arguments use, too.
fn shared(plan: &Plan, slot: usize) -> BTreeSet<usize> {
    let memory = Argument::memory;
    let all = plan.slots.iter().flat_map(|slot| slot.arguments.iter().filter_map(memory));
    let mut counts = HashMap::new();
    all.for_each(|memory| *counts.entry(memory).or_insert(0) += 1);
    let arguments = plan.slots[slot].arguments.iter().enumerate();
    let is_shared =
        |(at, argument)| memory(argument).filter(|memory| counts[memory] > 1).map(|_| at);
    arguments.filter_map(is_shared).collect()
}

/// Maximum number of words of a module's annotations once decoration groups are expanded. A small module can
/// apply a large group many times over.
const MAX_UNGROUPED: usize = 1 << 20;

/// Returns the module with its decoration groups expanded: the members of each group get its decorations
/// themselves, so that no other code has to handle groups. The module is copied only if it has groups.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if the decorations of a member are unclear, or if the
/// expanded annotations exceed the limit.
pub(crate) fn ungrouped(module: &Module) -> Result<Cow<'_, Module>> {
    let belongs_to_groups = |i: &Instruction<'_>| i.class() == Some(Class::DecorationGroup);
    let annotations = module.section(Section::Annotations);
    if !annotations.iter().any(|i| belongs_to_groups(&i)) {
        return Ok(Cow::Borrowed(module));
    }
    let groups = annotations.iter().filter(|i| i.op() == Some(Op::DecorationGroup));
    let mut group_decorations: HashMap<u32, Vec<_>> =
        groups.filter_map(|group| Some((group.result()?, Vec::new()))).collect();
    for i in annotations.iter().filter(|i| !belongs_to_groups(i)) {
        if let Some(decorations) = i.target().and_then(|target| group_decorations.get_mut(&target))
        {
            decorations.push(i);
        }
    }
    let mut plain = Stream::default();
    for i in annotations.iter() {
        match i.view() {
            View::GroupDecorate { group, targets } => {
                let targets = targets.iter().map(|id| vec![id]).collect();
                expand_group((&i, group), targets, &group_decorations, &mut plain)?;
            }
            View::GroupMemberDecorate { group, targets } => {
                let targets = targets.iter().map(|(id, member)| vec![id, member]).collect();
                expand_group((&i, group), targets, &group_decorations, &mut plain)?;
            }
            _ if i.op() == Some(Op::DecorationGroup) => {}
            _ if belongs_to_groups(&i) => {
                return Err(Error::unsupported(format!(
                    "the operands of {} are not known",
                    i.name()
                )));
            }
            _ => {
                if !i.target().is_some_and(|target| group_decorations.contains_key(&target)) {
                    plain.push_instruction(&i);
                }
            }
        }
    }
    let mut new = module.clone();
    *new.section_mut(Section::Annotations) = plain;
    let is_group =
        |i: &Instruction<'_>| i.target().is_some_and(|id| group_decorations.contains_key(&id));
    new.section_mut(Section::Names).retain(|i| !is_group(i));
    Ok(Cow::Owned(new))
}

/// Appends the decorations of a group to `plain`, for each target to which the instruction `i` applies the
/// group. A target has an id, and the number of the member if it is a member of a struct.
fn expand_group(
    (i, group): (&Instruction<'_>, u32),
    targets: Vec<Vec<u32>>,
    group_decorations: &HashMap<u32, Vec<Instruction<'_>>>,
    plain: &mut Stream,
) -> Result<()> {
    let refuse = |why: &str| {
        let name = i.name();
        Error::unsupported(format!("{name} of the module, for the id {group}, {why}"))
    };
    let decorations =
        group_decorations.get(&group).ok_or_else(|| refuse("does not name a decoration group"))?;
    for target in targets {
        if group_decorations.contains_key(&target[0]) {
            return Err(refuse("has a decoration group among its targets"));
        }
        for decoration in decorations {
            let is_of_id = decoration.class() == Some(Class::Decoration);
            let op = match (decoration.op(), target.len()) {
                (Some(op), 1) if is_of_id => op,
                (Some(Op::Decorate), 2) => Op::MemberDecorate,
                (Some(Op::DecorateString), 2) => Op::MemberDecorateString,
                _ => return Err(refuse("applies a decoration that is not valid for members")),
            };
            plain.push(op, target.iter().copied().chain(decoration.words_from(1)));
            if plain.words().len() > MAX_UNGROUPED {
                return Err(Error::unsupported(format!(
                    "the decoration groups of the module expand to more than {MAX_UNGROUPED} words"
                )));
            }
        }
    }
    Ok(())
}

/// Returns an error with the slot's launch as its context.
pub(crate) fn in_launch(at: usize, slot: &Slot, error: Error) -> Error {
    error.within(format!("launch {at} of `{}`", slot.kernel))
}

/// Program from which kernels are extracted.
struct Program<'m> {
    module: &'m Module,
    /// `None` if they cannot be determined.
    references: Option<References<'m>>,
    imports: Option<String>,
}

impl<'m> Program<'m> {
    fn of(module: &'m Module) -> Self {
        let references = References::of(module).ok();
        Self { module, references, imports: access::imports(module) }
    }

    fn kernel(&self, name: &str) -> Result<Kernel> {
        if self.module.address_bytes().is_none() {
            return Err(Error::unsupported(format!(
                "the module of `{name}` has an addressing model without a size of addresses; OpenCL's are \
                 Physical32 and Physical64"
            )));
        }
        let (entry, function) = access::function_of(self.module, name)?;
        let modes = Modes::of(self.module, entry, name)?;
        let extract = self.references.as_ref().and_then(|all| all.extract(function).ok());
        Ok(Kernel {
            name: name.to_owned(),
            // A kernel that cannot be extracted is refused later, for the contents of its module, if not for
            // another reason.
            module: extract.unwrap_or_else(|| self.module.clone()),
            function,
            modes,
            imports: self.imports.clone(),
        })
    }
}

/// Returns whether a compiler of [`Target::separate_functions`](crate::plan::Target::separate_functions) may compile
/// a function to other results if its code changes.
fn depends_on_function(definitions: &Definitions<'_>, function: u32) -> bool {
    Operations::in_function(definitions, function).depend_on_function()
}

/// Drops an error that only says that a module stays as it is.
fn unless_unsupported(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() != ErrorKind::Unsupported => Err(error),
        _ => Ok(()),
    }
}

/// A slot's kernel.
pub(crate) struct Kernel {
    pub(crate) name: String,
    /// The kernel's function and the functions that it calls, with all types and constants of its program.
    pub(crate) module: Module,
    /// Id of the kernel's function.
    pub(crate) function: u32,
    pub(crate) modes: Modes,
    /// Name of a symbol that the kernel's program imports, if there is any.
    pub(crate) imports: Option<String>,
}

impl Kernel {
    /// Inlines the helpers that are passed buffers of the `shared` parameters. With `separate_functions`,
    /// helpers stay that a driver may compile differently in another place. A module with unknown
    /// instructions stays as it is.
    fn inline_helpers(&mut self, shared: &BTreeSet<usize>, separate_functions: bool) -> Result<()> {
        let is_fixed = |definitions: &Definitions<'_>, function| {
            separate_functions && depends_on_function(definitions, function)
        };
        unless_unsupported(inline_helpers(&mut self.module, self.function, shared, is_fixed))
    }

    /// Replaces variables of functions, and pointers that move in loops, by values. A module with unknown
    /// instructions stays as it is. With `separate_functions`, functions stay that a driver may compile
    /// differently.
    fn keep_in_registers(&mut self, separate_functions: bool) -> Result<()> {
        let is_fixed = |definitions: &Definitions<'_>, function| {
            separate_functions && depends_on_function(definitions, function)
        };
        unless_unsupported(access::keep_in_registers(&mut self.module, is_fixed))?;
        unless_unsupported(access::follow_moving_pointers(&mut self.module, is_fixed))
    }

    /// Returns the operations of the kernel's function and of the functions that it calls.
    pub(crate) fn operations(&self, definitions: &Definitions<'_>) -> Operations {
        let mut operations = Operations::in_function(definitions, self.function);
        operations.forbids = self.modes.forbids_contraction();
        operations
    }

    /// Returns whether the kernel may print.
    pub(crate) fn prints(&self) -> bool {
        let definitions = self.module.definitions();
        let bodies = self.module.functions.iter().flat_map(|function| function.body.iter());
        bodies.filter_map(|i| i.extended()).any(|(set, function)| {
            let set = definitions.extended_set(set);
            set == ExtendedSet::OpenClStd && function == OpenclStd100Op::printf as u32
        })
    }
}
