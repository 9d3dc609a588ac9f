//! Recording of graphs.

use std::any::type_name;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use bytemuck::Pod;
use futures::channel::oneshot;
use futures::future::{Either, select};

use super::plans::Plans;
use super::recorded::{Placeholder, Recorded, RecordedCommand};
use super::replay::Graph;
use super::scalar::GraphScalar;
use super::sections::{Sections, first_fused_name};
use crate::args::buffer::Buffer;
use crate::args::memory::DeviceMemory;
use crate::args::region::Region;
use crate::args::{ArgumentKind, OpenId, Seal};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::{Priority, pause};
use crate::future::named_future;
use crate::queue::fusion::{FusionMode, Unfused};
use crate::queue::handle::{Queue, check_apart, check_length, check_shapes, fill_pattern};
use crate::queue::launch::{Conditions, Launch};
use crate::queue::launch_work::LaunchWork;
use crate::queue::operations::MAX_FILL_PIECE;

/// Recording of commands that are to be run many times: from [`Queue::record`].
///
/// The commands run one after another, in the order in which they are recorded, each time the graph is
/// [replayed](Graph::replay). They use:
///
/// * buffers and images as usual, which are the same in all replays, and which the graph keeps alive;
/// * [inputs](Self::input), which each replay binds to buffers;
/// * [temporaries](Self::temporary), whose memory belongs to the graph;
/// * values that each replay [sets](Self::scalar).
///
/// # Examples
///
/// ```no_run
/// # async fn example(queue: kiln::Queue, blur: kiln::Kernel, tone: kiln::Kernel, frames: Vec<kiln::Buffer<f32>>,
/// #     shown: kiln::Buffer<f32>) -> kiln::Result<()> {
/// let pixels = shown.len();
/// let mut recorder = queue.record();
/// let frame = recorder.input::<f32>(pixels)?;
/// let blurred = recorder.temporary::<f32>(pixels)?;
/// let gain = recorder.scalar::<f32>();
/// recorder.submit(blur.launch(pixels).args((&frame, &blurred)))?;
/// recorder.submit(tone.launch(pixels).args((&blurred, &shown, &gain)))?;
/// let graph = recorder.finish().await?;
/// for next in &frames {
///     graph.replay().bind(&frame, next).set(&gain, 0.7).submit()?.await?;
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "a recording has no effect until it is finished and replayed"]
pub struct Recorder {
    queue: Queue,
    recorded: Recorded,
}

named_future! {
    /// Future of a graph, from [`Recorder::finish`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the recording.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(recorder: kiln::Recorder) -> kiln::Result<()> {
    /// let recording: kiln::graph::RecordGraph = recorder.finish();
    /// let graph = recording.await?;
    /// # Ok(())
    /// # }
    /// ```
    RecordGraph => Result<Graph>
}

impl Queue {
    /// Begins to record a graph: commands that are checked and prepared once, and then run many times at little more
    /// than the driver's own cost. Nothing runs until the graph is [replayed](Graph::replay).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: kiln::Queue, step: kiln::Kernel, state: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let mut recorder = queue.record();
    /// for _ in 0..100 {
    ///     recorder.submit(step.launch(state.len()).args((&state,)))?;
    /// }
    /// let hundred_steps = recorder.finish().await?;
    /// for _ in 0..1000 {
    ///     hundred_steps.replay().submit()?;
    /// }
    /// let state = queue.read(&state).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn record(&self) -> Recorder {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let number = NonZeroU32::new(NEXT.fetch_add(1, Relaxed)).unwrap_or(NonZeroU32::MAX);
        Recorder {
            queue: self.clone(),
            recorded: Recorded {
                number,
                commands: Vec::new(),
                placeholders: Vec::new(),
                open_values: Vec::new(),
                may_fuse: false,
            },
        }
    }
}

impl Recorder {
    /// Returns a placeholder for a buffer of `len` elements that each replay [binds](super::Replay::bind). Its
    /// slices, too, can be given to recorded commands, but not to others.
    ///
    /// # Errors
    ///
    /// * [`InvalidArgument`](ErrorKind::InvalidArgument) if the buffer would have no bytes.
    /// * [`OutOfResources`](ErrorKind::OutOfResources) if its size exceeds the address space.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: kiln::Queue, sum: kiln::Kernel, days: Vec<kiln::Buffer<f32>>,
    /// #     sums: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let mut recorder = queue.record();
    /// let day = recorder.input::<f32>(86_400)?;
    /// recorder.submit(sum.launch(24).args((&day, &sums)))?;
    /// let graph = recorder.finish().await?;
    /// for samples in &days {
    ///     graph.replay().bind(&day, samples).submit()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn input<T: Pod>(&mut self, len: usize) -> Result<Buffer<T>> {
        self.placeholder(len, false)
    }

    /// Returns a buffer of `len` elements for results that only the graph needs. Its contents are unspecified until a
    /// recorded command writes them, and after the replay. Temporaries that are not needed at the same time share
    /// memory, and replays in flight at the same time have temporaries of their own, up to four; further ones wait.
    ///
    /// # Errors
    ///
    /// As for [`input`](Self::input). The memory is allocated by [`finish`](Self::finish).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: kiln::Queue, blur: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let mut recorder = queue.record();
    /// let rows = recorder.temporary::<f32>(x.len())?;
    /// recorder.submit(blur.launch(x.len()).args((&x, &rows, 0u32)))?;
    /// recorder.submit(blur.launch(x.len()).args((&rows, &x, 1u32)))?;
    /// let graph = recorder.finish().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn temporary<T: Pod>(&mut self, len: usize) -> Result<Buffer<T>> {
        self.placeholder(len, true)
    }

    /// Returns a value that each replay [sets](super::Replay::set), as an argument for launches.
    ///
    /// For [checked](crate::CheckedProgram) kernels, it must not decide which memory a launch accesses:
    /// [`finish`](Self::finish) then fails.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: kiln::Queue, shade: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let mut recorder = queue.record();
    /// let light = recorder.scalar::<[f32; 4]>(); // a `float4`
    /// recorder.submit(shade.launch(x.len()).args((&x, &light)))?;
    /// let graph = recorder.finish().await?;
    /// graph.replay().set(&light, [0.3, 0.6, 0.1, 0.0]).submit()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn scalar<T: Pod>(&mut self) -> GraphScalar<T> {
        let recorded = &mut self.recorded;
        let index = recorded.open_values.len() as u32;
        let start = recorded.open_values.last().map_or(0, |last| last.end);
        recorded.open_values.push(start..start + size_of::<T>());
        GraphScalar::new(OpenId { recording: recorded.number, index })
    }

    /// Records a launch behind all commands recorded so far.
    ///
    /// # Errors
    ///
    /// * As for [`Queue::submit`].
    /// * [`InvalidArgument`](ErrorKind::InvalidArgument) for a launch with [`after`](Launch::after),
    ///   [`after_future`](Launch::after_future) or [`timeout`](Launch::timeout), which a replay has for all its
    ///   commands, and for placeholders and values of another recording.
    ///
    /// A launch whose program is not built yet is checked by [`finish`](Self::finish).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: kiln::Queue, blur: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let mut recorder = queue.record();
    /// recorder.submit(blur.launch(x.len()).args((&x,)))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(&mut self, launch: Launch) -> Result<()> {
        let (work, conditions) = launch.into_parts();
        let Conditions { mistake, after, preconditions, timeout } = conditions;
        if let Some(mistake) = mistake {
            return Err(mistake);
        }
        work.check_proof()?;
        let name = work.kernel.name();
        if !after.is_empty() || !preconditions.is_empty() || timeout.is_some() {
            return Err(Error::invalid(format!(
                "a recorded launch of `{name}` comes after events or futures, or has a time limit; only a replay \
                 can wait: `graph.replay().after(&event)`"
            )));
        }
        for (index, argument) in work.arguments.iter().enumerate() {
            let place = || format!("kernel `{name}`, argument {index}");
            if let ArgumentKind::Memory(region, _) = &argument.kind {
                self.check_memory(region, place)?;
            }
            if argument.open.is_some_and(|id| id.recording != self.recorded.number) {
                let message =
                    "a value that belongs to another recording; give one of `Recorder::scalar`";
                return Err(Error::invalid(message).within(place()));
            }
        }
        if let Some(checked) = work.check(self.queue.device()) {
            checked?;
        }
        self.recorded.commands.push(RecordedCommand::Launch(work));
        Ok(())
    }

    /// Records a copy behind all commands recorded so far.
    ///
    /// # Errors
    ///
    /// * As for [`Queue::copy`]. Both must be in the memory of the queue's device.
    /// * [`Unsupported`](ErrorKind::Unsupported) for a part of a grid or an image over an input or a temporary.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: kiln::Queue, x: kiln::Buffer<f32>, y: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let mut recorder = queue.record();
    /// recorder.copy(&x, &y)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn copy<F, T>(&mut self, from: &F, to: &T) -> Result<()>
    where
        F: DeviceMemory,
        T: DeviceMemory<Element = F::Element>,
    {
        let (from, to) = (from.place(Seal), to.place(Seal));
        check_length::<T>("a copy", from.len, to)?;
        let (from, to) = (from.region, to.region);
        for region in [from, to] {
            self.check_memory(region, || "a copy".to_owned())?;
        }
        check_shapes(from, to)?;
        check_apart(from, to)?;
        self.recorded.commands.push(RecordedCommand::Copy { from: from.clone(), to: to.clone() });
        Ok(())
    }

    /// Records a fill behind all commands recorded so far. A fill of more than 256 MiB counts as several commands.
    ///
    /// # Errors
    ///
    /// * As for [`Queue::fill`].
    /// * [`Unsupported`](ErrorKind::Unsupported) where the host would write the elements: those whose size is not a
    ///   power of two of at most 128 bytes, and parts of grids.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: kiln::Queue, sums: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let mut recorder = queue.record();
    /// recorder.fill(&sums, 0.0)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn fill<M: DeviceMemory>(&mut self, memory: &M, value: M::Element) -> Result<()> {
        let place = memory.place(Seal);
        self.check_memory(place.region, || "a fill".to_owned())?;
        let Some(pattern) = fill_pattern(memory, &value) else {
            return Err(Error::unsupported(format!(
                "a recorded fill with elements of `{}`, which the host would write; record a launch that fills \
                 them, or elements whose size is a power of two",
                type_name::<M::Element>()
            )));
        };
        let (region, bytes) = (place.region, place.region.bytes());
        if region.pixels().is_some() || bytes.len() <= MAX_FILL_PIECE {
            self.recorded.commands.push(RecordedCommand::Fill { region: region.clone(), pattern });
            return Ok(());
        }
        for start in bytes.clone().step_by(MAX_FILL_PIECE) {
            let end = bytes.end.min(start.saturating_add(MAX_FILL_PIECE));
            let (region, pattern) = (Arc::new(region.slice(start..end)), pattern.clone());
            self.recorded.commands.push(RecordedCommand::Fill { region, pattern });
        }
        Ok(())
    }

    /// Lets [`finish`](Self::finish) replace consecutive launches by kernels that do the work of several, as a
    /// [fusion scope](crate::FusionScope) does, where it is proven that the results do not change. Temporaries that
    /// such a kernel can do without take no memory.
    ///
    /// [`finish`](Self::finish) then waits for the fused kernels, but no longer than a second or, if that is less, the
    /// [limit](crate::RuntimeBuilder::fusion_limit). If they take longer, replays use them once they are built. With
    /// [`FusionMode::Always`](crate::FusionMode::Always), it waits for the whole limit for up to 16 launches at a time. With
    /// [`FusionMode::Auto`](crate::FusionMode::Auto), the first replays are timed, in different
    /// [ways](crate::guides::fusion#trials) to run the launches, and take longer to submit; later replays use the
    /// fastest way. [`Graph::fusion`] returns how the launches run.
    ///
    /// Launches run one by one if they could be fused only with certain values of [scalars](Self::scalar), and so do
    /// all launches in a replay with an input that overlaps with other memory of the graph, of which one is written.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: kiln::Queue, blur: kiln::Kernel, tone: kiln::Kernel, x: kiln::Buffer<f32>)
    /// #     -> kiln::Result<()> {
    /// let mut recorder = queue.record();
    /// recorder.fuse();
    /// let blurred = recorder.temporary::<f32>(x.len())?;
    /// recorder.submit(blur.launch(x.len()).args((&x, &blurred)))?;
    /// recorder.submit(tone.launch(x.len()).args((&blurred, &x)))?;
    /// let graph = recorder.finish().await?;
    /// println!("{}", graph.fusion());
    /// # Ok(())
    /// # }
    /// ```
    pub fn fuse(&mut self) {
        self.recorded.may_fuse = true;
    }

    /// Ends the recording: waits for programs that are not built yet, decides how checked launches run, allocates the
    /// temporaries, and prepares the driver's objects.
    ///
    /// # Errors
    ///
    /// From the future:
    ///
    /// * [`InvalidArgument`](ErrorKind::InvalidArgument) if nothing was recorded.
    /// * The errors of builds, and of launches that are checked only now.
    /// * [`Unsupported`](ErrorKind::Unsupported) if the verdict on a checked launch depends on a value that replays
    ///   set.
    /// * [`OutOfResources`](ErrorKind::OutOfResources) if the device lacks the memory for the temporaries.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(queue: kiln::Queue, blur: kiln::Kernel, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let mut recorder = queue.record();
    /// recorder.submit(blur.launch(x.len()).args((&x,)))?;
    /// let graph = recorder.finish().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn finish(self) -> RecordGraph {
        let Self { queue, mut recorded } = self;
        RecordGraph::new(async move {
            if recorded.commands.is_empty() {
                return Err(Error::invalid(
                    "nothing was recorded; record a launch, a copy or a fill before `finish`",
                ));
            }
            for command in &mut recorded.commands {
                if let RecordedCommand::Launch(launch) = command {
                    resolve_variant(launch, queue.device()).await?;
                }
            }
            let recorded = Arc::new(recorded);
            let shared = queue.scheduler.shared();
            let threads = shared.fuser.threads();
            if !recorded.may_fuse || shared.fusion == FusionMode::Never {
                let own = queue.clone();
                let prepare = move || Plans::new(&own, recorded, Unfused::Disabled);
                let plans = threads.run(Priority::Short, prepare).await??;
                return Ok(Graph::new(queue, Arc::new(plans)));
            }
            let limit = shared.fusion_wait(false);
            let (sections, late) = match fused_sections(&queue, &recorded, limit).await? {
                Either::Left(sections) => (Some(sections), None),
                Either::Right(late) => (None, Some(late)),
            };
            let own = queue.clone();
            let prepare = move || {
                let kernel = first_fused_name(&recorded);
                let plans = Plans::new(&own, recorded, Unfused::Overdue { kernel, limit })?;
                if let Some(sections) = sections {
                    plans.set_fused(&own, sections)?;
                }
                Ok::<_, Error>(plans)
            };
            let plans = Arc::new(threads.run(Priority::Short, prepare).await??);
            if let Some(late) = late {
                tracing::warn!(outcome = %plans.outcome(), "the launches of a graph are not fused yet");
                adopt_later(&queue, &plans, late);
            }
            Ok(Graph::new(queue, plans))
        })
    }

    fn placeholder<T: Pod>(&mut self, len: usize, is_temporary: bool) -> Result<Buffer<T>> {
        let scheduler = &self.queue.scheduler;
        let buffer = Buffer::placeholder(scheduler.slot(), scheduler.freed(), len)?;
        let region = buffer.region().clone();
        self.recorded.placeholders.push(Placeholder { region, is_temporary });
        Ok(buffer)
    }

    /// Fails for memory that a recorded command cannot use.
    fn check_memory(&self, region: &Region, place: impl Fn() -> String) -> Result<()> {
        if !region.is_placeholder() {
            return self.queue.check_device(region, place);
        }
        let mut known = self.recorded.placeholders.iter();
        let is_own = known.any(|known| known.region.allocation() == region.allocation());
        let error = if !is_own {
            let message = "an input or a temporary of another recording; give one of this recorder";
            Error::new(ErrorKind::InvalidArgument, message)
        } else if region.rows().is_some() || region.image().is_some() {
            let message =
                "a part of a grid, or an image, over an input or a temporary; give a slice of it";
            Error::unsupported(message)
        } else {
            return Ok(());
        };
        Err(error.within(place()))
    }
}

/// Sections whose fused kernels are still being built.
type LateSections = oneshot::Receiver<Sections>;

/// Finds and builds the fused kernels of a recording. In modes with trials, waits no longer than `limit` for all
/// of them together.
async fn fused_sections(
    queue: &Queue,
    recorded: &Arc<Recorded>,
    limit: Duration,
) -> Result<Either<Sections, LateSections>> {
    let shared = queue.scheduler.shared();
    if !shared.fusion.is_timed() {
        return Ok(Either::Left(Sections::of(queue, recorded).await));
    }
    let (sender, receiver) = oneshot::channel();
    let (queue, recorded) = (queue.clone(), Arc::clone(recorded));
    shared.host.clone().spawn(async move {
        // The receiver may be dropped already.
        let _ = sender.send(Sections::of(&queue, &recorded).await);
    })?;
    match select(receiver, pause(limit)).await {
        Either::Left((sections, _)) => sections.map(Either::Left).map_err(|oneshot::Canceled| {
            Error::new(ErrorKind::Panicked, "the task that fuses the launches of a graph panicked")
        }),
        Either::Right((_, late)) => Ok(Either::Right(late)),
    }
}

/// Has a graph use its fused kernels once they are built, if the graph still exists.
fn adopt_later(queue: &Queue, plans: &Arc<Plans>, late: LateSections) {
    let (own, plans) = (queue.clone(), Arc::downgrade(plans));
    let adopt = async move {
        let Ok(sections) = late.await else { return };
        let Some(plans) = plans.upgrade() else { return };
        if let Err(error) = plans.set_fused(&own, sections) {
            tracing::debug!(%error, "a graph does not use its fused kernels");
        }
    };
    if let Err(error) = queue.scheduler.shared().host.spawn(adopt) {
        tracing::debug!(%error, "a graph does not use its fused kernels");
    }
}

/// Waits until it is decided how a launch runs.
async fn resolve_variant(launch: &mut LaunchWork, device: &Device) -> Result<()> {
    if launch.resolve_variant(device)? {
        return Ok(());
    }
    let pending = launch.pending();
    let ready = pending.ready().await;
    launch.settle(&pending, &ready, device)
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recorded { commands, open_values, .. } = &self.recorded;
        let values: &[Range<usize>] = open_values;
        f.debug_struct("Recorder")
            .field("queue", &self.queue)
            .field("commands", &commands.len())
            .field("values", &values.len())
            .finish()
    }
}
