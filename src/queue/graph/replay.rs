//! Graphs and their replays as applications use them.

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;
use smallvec::SmallVec;

use super::plan::Plan;
use super::plans::{Next, Plans};
use super::recorded::Recorded;
use super::scalar::GraphScalar;
use super::uses::Source;
use super::work::ReplayWork;
use crate::args::buffer::Buffer;
use crate::args::region::Region;
use crate::error::{Error, Result};
use crate::process;
use crate::queue::event::Event;
use crate::queue::fusion::FusionOutcome;
use crate::queue::handle::Queue;
use crate::queue::work::Work;

/// Commands that were [recorded](crate::Queue::record), to be run many times. A handle, cheap to clone. It keeps the
/// programs, buffers and images of its commands alive.
///
/// A graph can be dropped at any time: replays that were submitted run all the same.
///
/// # Examples
///
/// ```no_run
/// # async fn example(queue: kiln::Queue, step: kiln::Kernel, state: kiln::Buffer<f32>) -> kiln::Result<()> {
/// let mut recorder = queue.record();
/// for _ in 0..100 {
///     recorder.submit(step.launch(state.len()).args((&state,)))?;
/// }
/// let graph: kiln::Graph = recorder.finish().await?;
/// for _ in 0..1000 {
///     graph.replay().submit()?;
/// }
/// let state = queue.read(&state).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Graph {
    queue: Queue,
    plans: Arc<Plans>,
}

impl Graph {
    pub(super) fn new(queue: Queue, plans: Arc<Plans>) -> Self {
        Self { queue, plans }
    }

    /// Returns the number of recorded commands.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(graph: kiln::Graph) {
    /// println!("a replay runs {} commands", graph.commands());
    /// # }
    /// ```
    #[must_use]
    pub fn commands(&self) -> usize {
        self.plans.recorded.commands.len()
    }

    /// Returns the size in bytes of the memory that the temporaries of one replay share.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(graph: kiln::Graph) {
    /// println!("a replay takes {} KiB for temporaries", graph.temporary_bytes() >> 10);
    /// # }
    /// ```
    #[must_use]
    pub fn temporary_bytes(&self) -> usize {
        self.plans.usual().temporaries.as_ref().map_or(0, |sets| sets.bytes())
    }

    /// Returns how the launches run if [`Recorder::fuse`](crate::Recorder::fuse) was called: in the replays from now
    /// on, or in the latest replay while the first ones are timed. Positions are those among the recorded commands.
    /// Otherwise returns [`Unfused::Disabled`](crate::fusion::Unfused::Disabled).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(graph: kiln::Graph) {
    /// println!("{}", graph.fusion()); // says which launches run as one kernel, and otherwise why not
    /// # }
    /// ```
    #[must_use]
    pub fn fusion(&self) -> FusionOutcome {
        self.plans.outcome()
    }

    /// Begins a replay, for which all inputs are to be [bound](Replay::bind) and all values [set](Replay::set).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(graph: kiln::Graph, frame: kiln::Buffer<f32>, next: kiln::Buffer<f32>,
    /// #     gain: kiln::graph::GraphScalar<f32>) -> kiln::Result<()> {
    /// graph.replay().bind(&frame, &next).set(&gain, 0.7).submit()?.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn replay(&self) -> Replay {
        let Recorded { placeholders, open_values, .. } = &*self.plans.recorded;
        let bytes = open_values.last().map_or(0, |last| last.end);
        Replay {
            graph: self.clone(),
            bound: SmallVec::from_elem(None, placeholders.len()),
            values: SmallVec::from_elem(0, bytes),
            is_set: self.plans.unused_values.clone(),
            mistake: None,
            after: SmallVec::new(),
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("queue", &self.queue)
            .field("commands", &self.commands())
            .field("temporary_bytes", &self.temporary_bytes())
            .finish()
    }
}

/// Replay of a graph under construction: the buffers of its inputs, its values, and the events that it comes after.
/// Nothing happens until it is [submitted](Self::submit).
///
/// # Examples
///
/// ```no_run
/// # async fn example(graph: kiln::Graph, frame: kiln::Buffer<f32>, next: kiln::Buffer<f32>,
/// #     gain: kiln::graph::GraphScalar<f32>, loaded: kiln::Event) -> kiln::Result<()> {
/// let replay = graph.replay().bind(&frame, &next).set(&gain, 0.7).after(&loaded);
/// let shown = replay.submit()?; // returns at once
/// # Ok(())
/// # }
/// ```
#[must_use = "a replay does nothing until it is submitted"]
pub struct Replay {
    graph: Graph,
    /// Buffer of each placeholder, if it is bound.
    bound: SmallVec<[Option<Arc<Region>>; 4]>,
    values: SmallVec<[u8; 32]>,
    /// Whether each value is set or unused.
    is_set: SmallVec<[bool; 8]>,
    /// First error of the methods called so far, for `submit` to return.
    mistake: Option<Error>,
    after: SmallVec<[Event; 1]>,
}

impl Replay {
    /// Binds an input to a buffer, in place of one that was bound before. The buffer must have as many elements as
    /// the input, and start where the device takes it as an argument, as whole buffers do.
    ///
    /// A mistake is returned by [`submit`](Self::submit).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(graph: kiln::Graph, frame: kiln::Buffer<f32>, next: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// graph.replay().bind(&frame, &next).submit()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn bind<T: Pod>(mut self, input: &Buffer<T>, buffer: &Buffer<T>) -> Self {
        match self.position_of(input.region()).and_then(|at| {
            self.check_bound(at, (buffer.region(), buffer.len()), input.len())?;
            Ok(at)
        }) {
            Ok(at) => self.bound[at] = Some(buffer.region().clone()),
            Err(error) => self.mistake = self.mistake.or(Some(error)),
        }
        self
    }

    /// Sets a value, in place of one that was set before.
    ///
    /// A value of another graph is a mistake, which [`submit`](Self::submit) returns.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(graph: kiln::Graph, gain: kiln::graph::GraphScalar<f32>) -> kiln::Result<()> {
    /// graph.replay().set(&gain, 0.7).submit()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set<T: Pod>(mut self, scalar: &GraphScalar<T>, value: T) -> Self {
        let range = self.graph.plans.recorded.open_values.get(scalar.id.index as usize);
        match range.filter(|_| scalar.id.recording == self.graph.plans.recorded.number) {
            Some(range) => {
                self.values[range.clone()].copy_from_slice(bytemuck::bytes_of(&value));
                self.is_set[scalar.id.index as usize] = true;
            }
            None => {
                let element = type_name::<T>();
                self.mistake.get_or_insert_with(|| {
                    Error::invalid(format!(
                        "a replay was given a value (`{element}`) of another graph; give one that `Recorder::scalar` \
                         returned for this one"
                    ))
                });
            }
        }
        self
    }

    /// Starts the replay after the command of `event` has ended, in addition to the order that its data requires. If
    /// that command fails, so does the replay.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(graph: kiln::Graph, loaded: kiln::Event) -> kiln::Result<()> {
    /// graph.replay().after(&loaded).submit()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn after(mut self, event: &Event) -> Self {
        self.after.push(event.clone());
        self
    }

    /// Submits the replay as one command, ordered with others by the buffers that it uses. Returns its event at once.
    ///
    /// If one of its commands fails, the replay fails with that error, and so do commands that use what it writes.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument):
    ///
    /// * for an input that is not bound, and a value that is not set, if a command uses it;
    /// * for what is not an input or a value of this graph;
    /// * for a buffer with another number of elements than its input, of another device, or one that does not start
    ///   where the device takes it as an argument;
    /// * for a buffer that overlaps with another one of the replay, of which the graph writes one, if the graph
    ///   has launches of [checked](crate::CheckedProgram) kernels or copies between the two.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(graph: kiln::Graph) -> kiln::Result<()> {
    /// let replays: Vec<_> = (0..100).map(|_| graph.replay().submit()).collect::<Result<_, _>>()?;
    /// for replay in replays {
    ///     replay.await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(self) -> Result<Event> {
        process::check()?;
        let Self { graph, bound, values, is_set, mistake, after } = self;
        if let Some(mistake) = mistake {
            return Err(mistake);
        }
        let Graph { queue, plans } = graph;
        if let Some(at) = is_set.iter().position(|is_set| !is_set) {
            return Err(Error::invalid(format!(
                "value {at} of a replay is not set; call `.set(&scalar, value)` for each scalar that a launch of the graph uses"
            )));
        }
        let Plans { recorded, plain, .. } = &*plans;
        let given = inputs(recorded, plain, &bound)?;
        let Next { plan, timing } = match are_apart(plain, &given)? {
            true => plans.next(&queue),
            false => plans.next_overlapping(),
        };
        let given = match Arc::ptr_eq(&plan, plain) {
            true => given,
            false => inputs(recorded, &plan, &bound)?,
        };
        let work = ReplayWork::new((plan, timing), given, values)?;
        let command = queue.scheduler.command(Work::Replay(Box::new(work)), queue.number);
        Ok(queue.scheduler.submit(command, after, Vec::new()))
    }

    /// Returns the position of an input among the placeholders.
    fn position_of(&self, input: &Region) -> Result<usize> {
        let mut placeholders = self.graph.plans.recorded.placeholders.iter();
        let at = placeholders.position(|known| {
            known.region.allocation() == input.allocation() && known.region.bytes() == input.bytes()
        });
        let at = at.filter(|&at| !self.graph.plans.recorded.placeholders[at].is_temporary);
        at.ok_or_else(|| {
            Error::invalid(
                "a replay was given a buffer that is not an input of its graph; give one that `Recorder::input` \
                 returned for it, as a whole",
            )
        })
    }

    fn check_bound(
        &self,
        at: usize,
        (region, len): (&Region, usize),
        expected: usize,
    ) -> Result<()> {
        let place = || format!("the buffer of input {at} of a graph");
        self.graph.queue.check_device(region, place)?;
        if len != expected {
            return Err(Error::invalid(format!(
                "{} has {len} elements, expected {expected}; give a slice, or record another graph",
                place()
            )));
        }
        match region.lead() {
            0 => Ok(()),
            _ => Err(region.unaligned_error().within(place())),
        }
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay")
            .field("graph", &self.graph)
            .field("bound", &self.bound.iter().flatten().count())
            .field("after", &self.after)
            .finish()
    }
}

/// Returns the parts of the bound buffers that commands use, with their views.
fn inputs(
    recorded: &Recorded,
    plan: &Plan,
    bound: &[Option<Arc<Region>>],
) -> Result<SmallVec<[Arc<Region>; 4]>> {
    let parts = plan.input_parts.iter().map(|part| {
        let Some(whole) = &bound[part.of] else {
            return Err(Error::invalid(format!(
                "input {} of a replay is not bound; call `.bind(&input, &buffer)` for each input that a command of the graph uses",
                part.of
            )));
        };
        let is_whole = part.bytes == *recorded.placeholders[part.of].region.bytes();
        let region = if is_whole {
            whole.clone()
        } else {
            let start = whole.bytes().start;
            Arc::new(whole.slice(start + part.bytes.start..start + part.bytes.end))
        };
        region.view()?;
        Ok(region)
    });
    parts.collect()
}

/// Returns whether no bound buffers overlap with others where that would change what was decided at the recording.
///
/// # Errors
///
/// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if they do, in a graph with copies between them or with
/// checked launches.
fn are_apart(plan: &Plan, inputs: &[Arc<Region>]) -> Result<bool> {
    let region = |source: Source| match source {
        Source::Input(at) => Some(&inputs[at]),
        Source::Fixed(at) => Some(&plan.fixed[at]),
        Source::Temporary(_) => None,
    };
    let overlap = |one: Source, other: Source| match (region(one), region(other)) {
        (Some(one), Some(other)) => one.overlaps(other),
        _ => false,
    };
    if plan.copied.iter().any(|&(from, to)| overlap(from, to)) {
        return Err(Error::invalid(
            "a replay has a copy between two buffers that overlap; bind buffers that do not overlap",
        ));
    }
    match plan.apart.iter().find(|&&(at, other)| overlap(Source::Input(at), other)) {
        Some(&(at, _)) if plan.is_checked => Err(Error::invalid(format!(
            "the buffer of input {} of a graph with checked launches overlaps with another buffer of the replay, and \
             one of them is written; bind buffers that do not overlap",
            plan.input_parts[at].of
        ))),
        overlapping => Ok(overlapping.is_none()),
    }
}
