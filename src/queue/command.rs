//! Commands: the work of each, and the resources that it keeps alive until the device has finished with
//! them.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;

use bytemuck::Pod;
use smallvec::SmallVec;

use super::dag::Uses;
use super::event::{Event, Record};
use super::hazard::Use;
use super::host_memory::{HostSource, HostTarget};
use super::host_task::{IntoOutcome, ToOutcome};
use super::scheduler::{CombinedAccesses, GroupId};
use super::stopwatch::Stopwatch;
use super::waits::HostFuture;
use crate::args::buffer::{Buffer, Region};
use crate::args::{Argument, ArgumentKind, ArgumentList, Arguments, Seal, describe};
use crate::backend::{self, Operation};
use crate::build_graph::{Kernel, ResolvedKernel};
use crate::compiler::nd_range::{IntoNdSize, NdRange};
use crate::compiler::signature::{Access, AddressSpace, Parameter};
use crate::device::Device;
use crate::error::{Error, Result};

/// Precondition of a command: a future that the host polls. Boxed, because it outlives the caller.
pub(crate) type Precondition = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// Node of the DAG. The command owns, through its work, everything that the device may access.
pub(crate) struct Command {
    pub(crate) work: Work,
    pub(crate) record: Arc<Record>,
    /// Number of the queue that the command was submitted to.
    pub(crate) queue: u64,
    /// Whether this is a launch whose program is not built yet.
    pub(crate) building: bool,
    /// Group of launches that this launch may run together with, as one.
    pub(crate) group: Option<GroupId>,
    /// Launch that runs for the whole group in place of this command's own work.
    pub(crate) fused: Option<Box<LaunchWork>>,
    /// Launches that this command stands for, if they have no nodes of their own in the DAG.
    pub(crate) several: Option<Box<FusedMembers>>,
    /// Host futures that the command waited for when it was submitted.
    pub(crate) hosts: Option<Box<[Arc<HostFuture>]>>,
    /// Stopwatch that times the command.
    pub(crate) timed: Option<Arc<Stopwatch>>,
    /// Data for the timeline, such as the time of submission, if the command's start and end go into it.
    pub(crate) traced: Option<Box<super::timeline::Submitted>>,
}

impl Command {
    pub(crate) fn new(
        work: Work,
        record: Arc<Record>,
        queue: u64,
        traced: Option<Box<super::timeline::Submitted>>,
    ) -> Self {
        let (building, hosts) = (false, None);
        let (group, fused, several, timed) = (None, None, None, None);
        Self { work, record, queue, building, group, fused, several, hosts, timed, traced }
    }

    /// Returns the number of preconditions besides other commands: host futures, the program, and the
    /// decision on the group.
    pub(crate) fn preconditions(&self) -> u32 {
        let hosts = self.hosts.as_ref().map_or(0, |hosts| hosts.len());
        hosts as u32 + u32::from(self.building) + u32::from(self.group.is_some())
    }

    /// Returns the number of submitted commands that this node stands for.
    pub(crate) fn count(&self) -> usize {
        1 + self.other_records().len()
    }

    /// Returns the records that the events of all these commands share with this node. The node's own is
    /// last.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.other_records().iter().chain([&self.record])
    }

    /// Returns the records other than the node's own.
    pub(crate) fn other_records(&self) -> &[Arc<Record>] {
        self.several.as_ref().map_or(&[], |several| &several.records)
    }

    /// Returns the memory accesses of the command, or of the launches it stands for.
    pub(crate) fn uses(&self) -> Uses {
        match &self.several {
            Some(several) => several.together.touched.iter().flatten().cloned().collect(),
            None => self.work.uses(),
        }
    }

    /// Releases all buffers, because the command has ended. Frees no memory and calls no driver.
    pub(crate) fn release(&mut self) {
        self.work.release();
        if let Some(fused) = &mut self.fused {
            fused.release();
        }
        if let Some(several) = &mut self.several {
            several.works.iter_mut().for_each(Work::release);
        }
    }

    /// Whether dropping the command, once it is [released](Self::release), frees nothing large and calls
    /// no driver.
    pub(crate) fn is_light(&self) -> bool {
        self.work.is_light() && self.fused.as_ref().is_none_or(|fused| fused.is_light())
    }

    /// Leaks the resources that the device may use for this command, so that they are never freed.
    pub(crate) fn abandon(&mut self) {
        if let Some(fused) = &self.fused {
            fused.abandon();
        }
        self.work.abandon();
    }

    /// Calls `run` with the operation in the backend's form.
    pub(crate) fn with_operation<R>(
        &mut self,
        run: impl FnOnce(&Operation<'_>) -> Result<R>,
    ) -> Result<R> {
        match &self.fused {
            Some(fused) => fused.with_operation(run),
            None => self.work.with_operation(run),
        }
    }
}

/// Launches that one command stands for.
pub(crate) struct FusedMembers {
    /// All launches, in order. They are no longer needed once the device has the command.
    pub(crate) works: Vec<Work>,
    /// Records of all launches but the last, whose record is the command's own.
    pub(crate) records: Vec<Arc<Record>>,
    pub(crate) together: Arc<CombinedAccesses>,
}

impl FusedMembers {
    /// Takes the launches out, with their buffers released. The caller drops them later.
    pub(crate) fn take_works(&mut self) -> Vec<Work> {
        let mut works = std::mem::take(&mut self.works);
        works.iter_mut().for_each(Work::release);
        works
    }
}

/// Command as it is submitted.
pub(crate) struct Submission {
    pub(crate) work: Work,
    pub(crate) queue: u64,
    pub(crate) after: SmallVec<[Event; 1]>,
    pub(crate) preconditions: Vec<Precondition>,
    /// Whether this is a launch whose program is still being built.
    pub(crate) building: bool,
    /// Group of the fusion scope whose launches this launch may run together with.
    pub(crate) group: Option<GroupId>,
}

/// Work of a command.
pub(crate) enum Work {
    Launch(Box<LaunchWork>),
    Write {
        to: Arc<Region>,
        from: Box<dyn HostSource>,
    },
    Read {
        from: Arc<Region>,
        to: Box<dyn HostTarget>,
    },
    /// Transfer or fill that a thread is doing.
    Moving {
        region: Arc<Region>,
        access: Access,
        label: String,
    },
    Fill {
        region: Arc<Region>,
        pattern: SmallVec<[u8; 16]>,
    },
    /// Zeroing of new memory, before the first command that uses it.
    Zero {
        region: Arc<Region>,
    },
    Copy {
        from: Arc<Region>,
        to: Arc<Region>,
    },
    /// No work besides the preconditions.
    Host,
    /// Marker that comes after all earlier commands of a queue.
    Marker,
    /// Marker that comes after all earlier commands of a device.
    Drain,
    /// Command that has ended, with the host memory that is left to drop.
    Released(HostMemory),
}

/// Host memory of a command that has ended. Dropping a large block takes time.
pub(crate) enum HostMemory {
    None,
    Source(#[expect(dead_code, reason = "it is dropped")] Box<dyn HostSource>),
    Target(#[expect(dead_code, reason = "it is dropped")] Box<dyn HostTarget>),
}

/// Work of a launch.
#[derive(Clone)]
pub(crate) struct LaunchWork {
    /// Kernel of the launch. Its program may still be building at submission.
    pub(crate) kernel: Kernel,
    pub(crate) range: NdRange,
    pub(crate) arguments: ArgumentList,
}

impl Work {
    /// Returns a short label for drawings and messages.
    pub(crate) fn label(&self) -> String {
        match self {
            Self::Launch(launch) => launch.kernel.name().to_owned(),
            Self::Moving { label, .. } => label.clone(),
            Self::Write { .. } => "write".to_owned(),
            Self::Read { .. } => "read".to_owned(),
            Self::Fill { .. } => "fill".to_owned(),
            Self::Zero { .. } => "zero".to_owned(),
            Self::Copy { .. } => "copy".to_owned(),
            Self::Host => "host task".to_owned(),
            Self::Marker => "marker".to_owned(),
            Self::Drain => "drain".to_owned(),
            Self::Released(_) => "ended command".to_owned(),
        }
    }

    /// Returns the label of the module that the launched kernel comes from, if the module has one.
    pub(crate) fn module_label(&self) -> Option<&str> {
        let Self::Launch(launch) = self else { return None };
        launch.kernel.resolved()?.as_ref().ok()?.label()
    }

    /// Returns a noun phrase with its article for messages, such as "a fill".
    pub(crate) fn in_words(&self) -> String {
        match self {
            Self::Launch(launch) => format!("a launch of `{}`", launch.kernel.name()),
            Self::Drain => "`drain`".to_owned(),
            Self::Zero { .. } => "the zeroing of a new buffer".to_owned(),
            other => format!("a {}", other.label()),
        }
    }

    /// Returns the subject of a message about the command's failure.
    pub(crate) fn subject(&self) -> String {
        match self {
            Self::Launch(launch) => format!("`{}`", launch.kernel.name()),
            other => other.in_words(),
        }
    }

    /// Returns the memory accesses of the work.
    pub(crate) fn uses(&self) -> Uses {
        match self {
            Self::Launch(launch) => launch.uses(),
            Self::Write { to: region, .. } | Self::Fill { region, .. } | Self::Zero { region } => {
                SmallVec::from_iter([used(region, Access::Write)])
            }
            Self::Read { from, .. } => SmallVec::from_iter([used(from, Access::Read)]),
            Self::Moving { region, access, .. } => SmallVec::from_iter([used(region, *access)]),
            Self::Copy { from, to } => {
                SmallVec::from_iter([used(from, Access::Read), used(to, Access::Write)])
            }
            Self::Host | Self::Marker | Self::Drain | Self::Released(_) => SmallVec::new(),
        }
    }

    /// Calls `see` with a region of each allocation that has to be zeroed before this command.
    pub(crate) fn for_fresh(&self, mut see: impl FnMut(&Region)) {
        let mut look = |region: &Region| {
            if region.is_fresh() {
                see(region);
            }
        };
        match self {
            Self::Launch(launch) => {
                for argument in &launch.arguments {
                    if let ArgumentKind::Buffer(region, _) = &argument.kind {
                        look(region);
                    }
                }
            }
            Self::Read { from, .. } => look(from),
            // The target is included, because nothing is copied if the source fails.
            Self::Copy { from, to } => {
                look(from);
                look(to);
            }
            Self::Write { to: region, .. } | Self::Fill { region, .. } if !region.is_whole() => {
                look(region);
            }
            Self::Write { .. } | Self::Fill { .. } | Self::Zero { .. } => {}
            Self::Moving { .. } | Self::Host | Self::Marker | Self::Drain | Self::Released(_) => {}
        }
    }

    /// Marks the allocation as zeroed or overwritten, if the command overwrites all of it. Called under
    /// the scheduler's lock. Returns `false` for a zeroing that another command has made unnecessary.
    pub(crate) fn claim(&self) -> bool {
        match self {
            Self::Zero { region } => region.take_fresh(),
            Self::Write { to: region, .. } | Self::Fill { region, .. } if region.is_whole() => {
                region.take_fresh();
                true
            }
            _ => true,
        }
    }

    /// See [`Command::release`].
    pub(crate) fn release(&mut self) {
        if let Self::Launch(launch) = self {
            return launch.release();
        }
        let none = Self::Released(HostMemory::None);
        *self = match std::mem::replace(self, none) {
            Self::Write { to, from } => {
                to.release();
                Self::Released(HostMemory::Source(from))
            }
            Self::Read { from, to } => {
                from.release();
                Self::Released(HostMemory::Target(to))
            }
            Self::Fill { region, .. } | Self::Zero { region } | Self::Moving { region, .. } => {
                region.release();
                Self::Released(HostMemory::None)
            }
            Self::Copy { from, to } => {
                from.release();
                to.release();
                Self::Released(HostMemory::None)
            }
            other => other,
        };
    }

    /// See [`Command::is_light`].
    pub(crate) fn is_light(&self) -> bool {
        match self {
            Self::Launch(launch) => launch.is_light(),
            // The elements of a read have been delivered to its future, unless the read has failed.
            Self::Released(HostMemory::None | HostMemory::Target(_)) => true,
            Self::Host | Self::Marker | Self::Drain => true,
            _ => false,
        }
    }

    /// Returns the number of bytes that the work moves between host memory and device memory.
    pub(crate) fn transferred(&self) -> usize {
        match self {
            Self::Write { to: region, .. } | Self::Read { from: region, .. } => {
                region.bytes().len()
            }
            _ => 0,
        }
    }

    /// Returns the number of bytes of device memory that the work fills.
    pub(crate) fn filled(&self) -> usize {
        match self {
            Self::Fill { region, .. } | Self::Zero { region } => region.bytes().len(),
            _ => 0,
        }
    }

    /// See [`Command::abandon`].
    fn abandon(&mut self) {
        match self {
            Self::Launch(launch) => launch.abandon(),
            Self::Copy { from, to } => std::mem::forget((from.clone(), to.clone())),
            // The host memory is leaked, too.
            Self::Write { .. } | Self::Read { .. } | Self::Fill { .. } | Self::Zero { .. } => {
                std::mem::forget(self.take_apart());
            }
            _ => {}
        }
    }

    /// Takes a transfer or a fill out, so that a thread can do it, and leaves `Work::Moving` in its
    /// place. Returns `None` for other work.
    pub(crate) fn take_apart(&mut self) -> Option<Self> {
        let (region, access) = match self {
            Self::Write { to: region, .. } | Self::Fill { region, .. } | Self::Zero { region } => {
                (region, Access::Write)
            }
            Self::Read { from, .. } => (from, Access::Read),
            _ => return None,
        };
        let (region, label) = (region.clone(), self.label());
        Some(std::mem::replace(self, Self::Moving { region, access, label }))
    }

    /// Calls `run` with the operation in the backend's form.
    pub(crate) fn with_operation<R>(
        &mut self,
        run: impl FnOnce(&Operation<'_>) -> Result<R>,
    ) -> Result<R> {
        match self {
            Self::Launch(launch) => launch.with_operation(run),
            Self::Write { to, from } => {
                let from = from.bytes();
                run(&Operation::Write {
                    to: to.memory(),
                    offset: to.bytes().start,
                    from: from.as_ptr(),
                    bytes: from.len(),
                })
            }
            Self::Read { from, to } => run(&Operation::Read {
                from: from.memory(),
                offset: from.bytes().start,
                to: to.start(),
                bytes: from.bytes().len(),
            }),
            Self::Fill { region, pattern } => run(&Operation::Fill {
                memory: region.memory(),
                offset: region.bytes().start,
                bytes: region.bytes().len(),
                pattern,
            }),
            Self::Zero { region } => run(&Operation::Fill {
                memory: region.memory(),
                offset: 0,
                bytes: region.bytes().len(),
                pattern: zeros(region.bytes().len()),
            }),
            Self::Copy { from, to } => run(&Operation::Copy {
                from: from.memory(),
                from_offset: from.bytes().start,
                to: to.memory(),
                to_offset: to.bytes().start,
                bytes: to.bytes().len(),
            }),
            Self::Moving { .. } | Self::Host | Self::Marker | Self::Drain | Self::Released(_) => {
                run(&Operation::Marker)
            }
        }
    }
}

/// Returns the longest pattern of zeros, up to 16 bytes, whose length divides `bytes`. Some drivers fill
/// faster with long patterns.
fn zeros(bytes: usize) -> &'static [u8] {
    const LONGEST: usize = 16;
    let length = 1 << bytes.trailing_zeros().min(LONGEST.trailing_zeros());
    &[0; LONGEST][..length]
}

fn used(region: &Region, access: Access) -> Use {
    Use { allocation: region.allocation(), bytes: region.bytes().clone(), access }
}

impl LaunchWork {
    /// Returns the memory accesses of the launch.
    pub(crate) fn uses(&self) -> Uses {
        let parameters = self.parameters();
        let mut uses = Uses::new();
        for (index, argument) in self.arguments.iter().enumerate() {
            if let ArgumentKind::Buffer(region, stated) = &argument.kind {
                let signature = parameters.get(index).and_then(|known| known.access);
                // Without either, the kernel is assumed to read and write the buffer.
                uses.push(used(region, stated.or(signature).unwrap_or(Access::ReadWrite)));
            }
        }
        uses
    }

    /// See [`Command::release`].
    pub(crate) fn release(&mut self) {
        for argument in self.arguments.drain(..) {
            if let ArgumentKind::Buffer(region, _) = argument.kind {
                region.release();
            }
        }
    }

    /// See [`Command::is_light`].
    fn is_light(&self) -> bool {
        self.kernel.is_shared() && self.arguments.is_empty()
    }

    /// See [`Command::abandon`].
    fn abandon(&self) {
        for argument in &self.arguments {
            if let ArgumentKind::Buffer(region, _) = &argument.kind {
                std::mem::forget(Arc::clone(region));
            }
        }
    }

    fn with_operation<R>(&self, run: impl FnOnce(&Operation<'_>) -> Result<R>) -> Result<R> {
        let Self { kernel, range, arguments } = self;
        let kernel = match kernel.resolved() {
            Some(Ok(kernel)) => &*kernel.native,
            Some(Err(error)) => return Err(error.clone()),
            None => return Err(Error::invalid("a launch before its program was built")),
        };
        let mut native: SmallVec<[backend::Argument<'_>; 8]> = SmallVec::new();
        for argument in arguments {
            native.push(match &argument.kind {
                ArgumentKind::Buffer(region, _) => backend::Argument::Memory(region.view()?),
                ArgumentKind::Value(bytes) => backend::Argument::Value(bytes),
                ArgumentKind::Local(bytes) => backend::Argument::Local(*bytes),
            });
        }
        run(&Operation::Launch { kernel, arguments: &native, range })
    }

    /// Returns the parameters in the kernel's signature; none while its program is still being built.
    fn parameters(&self) -> &[Parameter] {
        let kernel = self.kernel.resolved().and_then(|kernel| kernel.as_ref().ok());
        kernel.map_or(&[], ResolvedKernel::parameters)
    }

    /// Checks the launch against the kernel's signature and the device's limits. `None` while the
    /// program still builds.
    pub(crate) fn check(&self, device: &Device) -> Option<Result<()>> {
        Some(match self.kernel.resolved()? {
            Ok(kernel) => {
                self.check_against(kernel, device).map_err(|error| match kernel.label() {
                    Some(label) => error.within(format_args!("`{label}`")),
                    None => error,
                })
            }
            Err(error) => Err(error.clone()),
        })
    }

    fn check_against(&self, kernel: &ResolvedKernel, device: &Device) -> Result<()> {
        let name = kernel.native.name();
        check_same_device("its program was built for", kernel.built.device(), device)
            .map_err(|error| error.within(format!("kernel `{name}`")))?;
        let (parameters, given) = (kernel.parameters(), &self.arguments);
        if given.len() != parameters.len() {
            let expected: Vec<_> = parameters
                .iter()
                .enumerate()
                .map(|(index, parameter)| describe(index, parameter))
                .collect();
            return Err(Error::invalid(format!(
                "kernel `{name}` was given {} arguments, expected {}: {}",
                given.len(),
                parameters.len(),
                if expected.is_empty() { "none".to_owned() } else { expected.join(", ") }
            )));
        }
        let mut local = kernel.native.local_memory();
        let expected = parameters.iter().zip(kernel.elements());
        for (index, (argument, (parameter, element))) in given.iter().zip(expected).enumerate() {
            argument.check(name, index, parameter, *element)?;
            let native = match &argument.kind {
                // `view` also checks the slice's alignment.
                ArgumentKind::Buffer(region, _) => {
                    backend::Argument::Memory(region.view().map_err(|error| {
                        error.within(format!("kernel `{name}`, {}", describe(index, parameter)))
                    })?)
                }
                ArgumentKind::Local(bytes) => {
                    local = local.saturating_add(*bytes as u64);
                    backend::Argument::Local(*bytes)
                }
                ArgumentKind::Value(bytes) => backend::Argument::Value(bytes),
            };
            let is_open = match parameter.address_space {
                None => true,
                Some(AddressSpace::Private) => element.is_none() && parameter.size.is_none(),
                Some(_) => false,
            };
            if is_open {
                kernel.native.accepts(index as u32, &native)?;
            }
        }
        if local > device.limits.local_memory {
            return Err(Error::invalid(format!(
                "kernel `{name}` needs {local} bytes of local memory with these arguments; a \
                 work-group of the device has {}",
                device.limits.local_memory
            )));
        }
        self.range.check(name, &device.limits, kernel.native.max_work_group_size())?;
        let required = kernel.native.required_work_group();
        required.map_or(Ok(()), |required| self.range.check_required(name, required))
    }
}

/// Launch under construction: a kernel, its range, its arguments, and the events and futures it comes
/// after. Nothing happens until it is [submitted](crate::Queue::submit).
///
/// # Examples
///
/// ```no_run
/// # fn example(queue: &kiln::Queue, blur: &kiln::Kernel, photo: &kiln::Buffer<f32>,
/// #     loaded: &kiln::Event) -> kiln::Result<()> {
/// let launch = blur.launch([1920, 1080]).local([16, 8]).args((photo, 0.5f32)).after(loaded);
/// queue.submit(launch)?; // returns at once
/// # Ok(())
/// # }
/// ```
#[must_use = "a launch does nothing until it is submitted to a queue"]
pub struct Launch {
    pub(crate) work: Box<LaunchWork>,
    /// First error of the methods called so far, for `submit` to report.
    pub(crate) mistake: Option<Error>,
    pub(crate) after: SmallVec<[Event; 1]>,
    pub(crate) preconditions: Vec<Precondition>,
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LaunchWork { kernel, range, arguments } = &*self.work;
        f.debug_struct("Launch")
            .field("kernel", &kernel.name())
            .field("range", range)
            .field("arguments", arguments)
            .field("after", &self.after)
            .field("after_futures", &self.preconditions.len())
            .finish()
    }
}

impl Kernel {
    /// Creates a launch of this kernel over `range` work-items: a `usize` or `[usize; 1..=3]`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: &kiln::Queue, blur: &kiln::Kernel, photo: &kiln::Buffer<f32>, width: usize,
    /// #     height: usize) -> kiln::Result<()> {
    /// queue.submit(blur.launch([width, height]).args((photo,)))?; // one work-item for each pixel
    /// # Ok(())
    /// # }
    /// ```
    pub fn launch(&self, range: impl IntoNdSize) -> Launch {
        let (kernel, range) = (self.clone(), range.into_nd_size().into());
        Launch {
            work: Box::new(LaunchWork { kernel, range, arguments: ArgumentList::new() }),
            mistake: None,
            after: SmallVec::new(),
            preconditions: Vec::new(),
        }
    }
}

impl Launch {
    /// Sets the number of work-items per work-group. Without it, the attribute `reqd_work_group_size` in
    /// the kernel's code applies; without that attribute, the driver chooses.
    ///
    /// Some drivers, PoCL among them, recompile a kernel for every work-group size that they choose. With
    /// many different global sizes, give a size that divides them all.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Local;
    ///
    /// # fn example(queue: &kiln::Queue, sum: &kiln::Kernel, x: &kiln::Buffer<f32>,
    /// #     sums: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let range = x.len().next_multiple_of(256); // `sum` ignores work-items beyond the length
    /// let arguments = (x, x.len(), Local::<f32>::new(256), sums);
    /// queue.submit(sum.launch(range).local(256).args(arguments))?; // one sum for each work-group
    /// # Ok(())
    /// # }
    /// ```
    pub fn local(mut self, size: impl IntoNdSize) -> Self {
        let changed = self.work.range.set_local(size.into_nd_size());
        self.note(changed)
    }

    /// Sets the global id of the first work-item. The default is zero.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: &kiln::Queue, blur: &kiln::Kernel, x: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let half = x.len() / 2;
    /// queue.submit(blur.launch(x.len() - half).offset(half).args((x,)))?; // the second half only
    /// # Ok(())
    /// # }
    /// ```
    pub fn offset(mut self, offset: impl IntoNdSize) -> Self {
        let changed = self.work.range.set_offset(offset.into_nd_size());
        self.note(changed)
    }

    fn note(mut self, changed: Result<()>) -> Self {
        let name = || format!("kernel `{}`", self.work.kernel.name());
        self.mistake = self.mistake.or_else(|| changed.err().map(|error| error.within(name())));
        self
    }

    /// Sets all arguments at once: a tuple in the order of the parameters. Replaces arguments given
    /// before.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: &kiln::Queue, saxpy: &kiln::Kernel, x: &kiln::Buffer<f32>,
    /// #     y: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// // kernel void saxpy(float a, global const float *x, global float *y)
    /// queue.submit(saxpy.launch(x.len()).args((3.0f32, x, y)))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn args(mut self, arguments: impl Arguments) -> Self {
        self.work.arguments.clear();
        arguments.append_to(&mut self.work.arguments, Seal);
        self
    }

    /// Appends one argument to those given before.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: &kiln::Queue, average: &kiln::Kernel, frames: &[kiln::Buffer<f32>],
    /// #     result: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let mut launch = average.launch(result.len()).arg(result);
    /// for frame in frames {
    ///     launch = launch.arg(frame); // one parameter of `average`
    /// }
    /// queue.submit(launch)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn arg(mut self, argument: impl Argument) -> Self {
        self.work.arguments.push(argument.into_value(Seal));
        self
    }

    /// Starts the launch after the command of `event` has ended, in addition to the order that its data
    /// requires. If that command fails, so does this launch.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: &kiln::Queue, prepare: &kiln::Kernel, apply: &kiln::Kernel,
    /// #     settings: &kiln::Buffer<f32>, x: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// // `prepare` writes a variable at program scope, which `apply` reads.
    /// let prepared = queue.submit(prepare.launch(256).args((settings,)))?;
    /// queue.submit(apply.launch(x.len()).args((x,)).after(&prepared))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn after(mut self, event: &Event) -> Self {
        self.after.push(event.clone());
        self
    }

    /// Starts the launch after `future` has completed. Kiln polls the future on a thread of its own, as
    /// it does the futures of [`Queue::host_task`](crate::Queue::host_task), even if nothing awaits the
    /// launch. If the future returns an error or panics, the launch fails.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::channel::oneshot;
    ///
    /// # async fn example(queue: &kiln::Queue, blur: &kiln::Kernel,
    /// #     x: &kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let (approve, approved) = oneshot::channel::<()>();
    /// let launch = blur.launch(x.len()).args((x,)).after_future(approved);
    /// let blurred = queue.submit(launch)?; // does not start yet
    /// let _ = approve.send(()); // if `approve` were dropped instead, the launch would fail
    /// blurred.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn after_future<F>(mut self, future: F) -> Self
    where
        F: IntoFuture<IntoFuture: Send + 'static, Output: IntoOutcome>,
    {
        let future = future.into_future();
        self.preconditions.push(Box::pin(async move { future.await.into_outcome() }));
        self
    }
}

/// Fails if a copy or a write has more or fewer elements than its target `buffer`.
pub(crate) fn check_length<T: Pod>(what: &str, given: usize, buffer: &Buffer<T>) -> Result<()> {
    if given == buffer.len() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{what} of {given} elements to a buffer of {} elements of `{}`; give exactly as many, or a \
         slice of the buffer",
        buffer.len(),
        std::any::type_name::<T>()
    )))
}

/// Fails if `theirs` and `ours` are not the same device of the same runtime.
pub(crate) fn check_same_device(what: &str, theirs: &Device, ours: &Device) -> Result<()> {
    if Arc::ptr_eq(theirs.info(), ours.info()) {
        return Ok(());
    }
    let runtime = if theirs.index() == ours.index() { ", in another runtime" } else { "" };
    // Several devices may have the same name.
    let [theirs, ours] =
        [theirs, ours].map(|device| format!("device {}, {device}", device.index()));
    Err(Error::invalid(format!("{what} {theirs}{runtime}; this queue is of {ours}")))
}
