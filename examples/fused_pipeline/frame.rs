//! Frame that passes through the pipeline, with its launches one by one or in fusion scopes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kiln::{
    Event, Fusing, FusionOutcome, FusionReport, FusionScope, Local, Queue, Result, Runtime, Unfused,
};

use crate::picture::Picture;
use crate::stages::{GROUP_SIZE, GROUPS, Stages};
use crate::steps::{self, Named, Step, Uses};

type Pixels = Named<[f32; 4]>;

/// Grouping of the launches of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grouping {
    /// All launches run one by one.
    Unfused,
    /// The edges are in one scope, and everything from the second pass of the blur on is in another.
    TwoScopes,
    /// Both groups are in one scope.
    OneScope,
}

impl Grouping {
    pub(crate) const ALL: [Self; 3] = [Self::Unfused, Self::TwoScopes, Self::OneScope];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unfused => "unfused",
            Self::TwoScopes => "two scopes",
            Self::OneScope => "one scope",
        }
    }
}

/// Number of launches, at the end of a frame, that at least one grouping fuses.
const FUSABLE: usize = 6;

/// Device memory that frames share, one after the other.
pub(crate) struct Frame {
    range: [usize; 2],
    file: Named<[u8; 4]>,
    source: Pixels,
    denoised: Pixels,
    half_blurred: Pixels,
    sums: Named<f32>,
    exposure: Named<f32>,
    result: Named<[u8; 4]>,
    sketch: Named<[u8; 4]>,
}

/// Device memory of a single frame, used by its launches only.
pub(crate) struct Temporaries {
    blurred: Pixels,
    sharp: Pixels,
    toned: Pixels,
    edges: Named<f32>,
}

/// Completed frame.
pub(crate) struct CompletedFrame {
    /// Time from the first submission to the completion of all launches.
    pub(crate) wall: Duration,
    /// Time from the start of the first launch to the end of the last, by the device's clock.
    pub(crate) device: Option<Duration>,
    /// Device time of the launches that at least one grouping fuses.
    pub(crate) part: Option<Duration>,
    /// Number of kernels that ran.
    pub(crate) launches: usize,
    /// Number of bytes in the buffers that these kernels read and write.
    pub(crate) traffic: usize,
    /// Number of bytes if the fused kernels had kept everything in memory.
    pub(crate) traffic_in_memory: usize,
    pub(crate) scopes: Vec<Scope>,
}

/// Launches, outcome and report of a scope.
pub(crate) struct Scope {
    pub(crate) launches: Vec<Uses>,
    pub(crate) outcome: FusionOutcome,
    pub(crate) report: FusionReport,
}

impl Scope {
    /// Returns whether the scope was run one by one for timing.
    pub(crate) fn is_timed(&self) -> bool {
        matches!(self.outcome, FusionOutcome::Unfused { why: Unfused::Timing, .. })
    }

    /// Returns the names of the memory that its kernel does without.
    pub(crate) fn internalized(&self) -> Vec<&'static str> {
        steps::internalized(&self.launches, self.report.buffers())
    }
}

fn named<T: bytemuck::Pod>(rt: &Runtime, name: &'static str, len: usize) -> Result<Named<T>> {
    Ok(Named { name, buffer: rt.buffer(len)? })
}

impl Temporaries {
    /// Allocates and fills the memory. The pages of new memory often exist only once it is written;
    /// their cost must not count as the kernels'.
    pub(crate) async fn new(rt: &Runtime, queue: &Queue, frame: &Frame) -> Result<Self> {
        let len = frame.file.buffer.len();
        let new = Self {
            blurred: named(rt, "blurred", len)?,
            sharp: named(rt, "sharp", len)?,
            toned: named(rt, "toned", len)?,
            edges: named(rt, "edges", len)?,
        };
        for pixels in [&new.blurred, &new.sharp, &new.toned] {
            queue.fill(&pixels.buffer, [0.0; 4])?.await?;
        }
        queue.fill(&new.edges.buffer, 0.0)?.await?;
        Ok(new)
    }
}

impl Frame {
    pub(crate) async fn new(rt: &Runtime, queue: &Queue, picture: &Picture) -> Result<Self> {
        let pixels = picture.pixels.len();
        let frame = Self {
            range: [picture.width, picture.height],
            file: named(rt, "file", pixels)?,
            source: named(rt, "source", pixels)?,
            denoised: named(rt, "denoised", pixels)?,
            half_blurred: named(rt, "half_blurred", pixels)?,
            sums: named(rt, "sums", GROUPS)?,
            exposure: named(rt, "exposure", 1)?,
            result: named(rt, "result", pixels)?,
            sketch: named(rt, "sketch", pixels)?,
        };
        queue.write(&frame.file.buffer, picture.pixels.clone())?.await?;
        Ok(frame)
    }

    /// Returns all launches of a frame, in groups. A group of one is submitted to the queue, a larger
    /// one to a fusion scope. The temporaries are dropped here. From then on only the launches hold
    /// them, so no other command can read data that a fused kernel does not write.
    fn groups(
        &self,
        stages: &Stages,
        temporaries: Temporaries,
        grouping: Grouping,
    ) -> Vec<Vec<Step>> {
        let (s, t) = (stages, temporaries);
        let each = self.range;
        let pixels = self.file.buffer.len() as u32;

        let mut groups = vec![
            vec![Step::new(&s.unpack, each).reads(&self.file).writes(&self.source)],
            vec![
                Step::new(&s.denoise, each)
                    .reads(&self.source)
                    .value(1.5f32)
                    .value(0.08f32)
                    .writes(&self.denoised),
            ],
            vec![Step::new(&s.blur_rows, each).reads(&self.denoised).writes(&self.half_blurred)],
            vec![
                Step::new(&s.measure, GROUPS * GROUP_SIZE)
                    .local(GROUP_SIZE)
                    .reads(&self.source)
                    .value(pixels)
                    .value(Local::<f32>::new(GROUP_SIZE))
                    .writes(&self.sums),
            ],
            vec![
                Step::new(&s.expose, 1)
                    .reads(&self.sums)
                    .value(GROUPS as u32)
                    .value(pixels)
                    .value(0.045f32)
                    .writes(&self.exposure),
            ],
        ];
        let edges = vec![
            Step::new(&s.sobel, each)
                .reads(&self.source)
                .value(0.5f32)
                .value(2.0f32)
                .writes(&t.edges),
            Step::new(&s.sketch, each).reads(&t.edges).writes(&self.sketch),
        ];
        let finish = vec![
            Step::new(&s.blur_columns, each).reads(&self.half_blurred).writes(&t.blurred),
            Step::new(&s.unsharp, each)
                .reads(&self.denoised)
                .reads(&t.blurred)
                .value(0.7f32)
                .writes(&t.sharp),
            Step::new(&s.filmic, each)
                .reads(&t.sharp)
                .reads(&self.exposure)
                .value(1.05f32)
                .writes(&t.toned),
            Step::new(&s.overlay, each)
                .reads(&t.toned)
                .reads(&t.edges)
                .value(0.4f32)
                .writes(&self.result),
        ];
        match grouping {
            Grouping::Unfused => {
                groups.extend(edges.into_iter().chain(finish).map(|step| vec![step]));
            }
            Grouping::TwoScopes => groups.extend([edges, finish]),
            Grouping::OneScope => groups.push(edges.into_iter().chain(finish).collect()),
        }
        groups
    }

    /// Submits a frame and waits until all of it has completed.
    pub(crate) async fn run(
        &self,
        queue: &Queue,
        stages: &Stages,
        temporaries: Temporaries,
        grouping: Grouping,
    ) -> Result<CompletedFrame> {
        let groups = self.groups(stages, temporaries, grouping);
        let (mut single, mut scopes) = (Vec::<Uses>::new(), Vec::new());
        let mut events = Vec::<Event>::new();
        let start = Instant::now();
        for group in groups {
            if group.len() == 1 {
                for Step { launch, uses } in group {
                    events.push(queue.submit(launch)?);
                    single.push(uses);
                }
                continue;
            }
            let (scope, uses) = collect(queue, group, &mut events)?;
            // The outcome is awaited later: the next launches are submitted first.
            scopes.push((scope.complete(), scope, uses));
        }
        for event in &events {
            event.clone().await?;
        }
        let wall = start.elapsed();
        let mut completed = CompletedFrame {
            wall,
            device: span(&events),
            part: busy(&events[events.len() - FUSABLE..]),
            launches: single.len(),
            traffic: single.iter().map(steps::traffic).sum(),
            traffic_in_memory: 0,
            scopes: Vec::new(),
        };
        completed.traffic_in_memory = completed.traffic;
        for (outcome, scope, launches) in scopes {
            let scope = outcome_of(outcome, &scope, launches).await?;
            if scope.outcome.is_fused() {
                completed.launches += 1;
                completed.traffic += steps::traffic_as_one(&scope.launches, &scope.internalized());
                completed.traffic_in_memory += steps::traffic_as_one(&scope.launches, &[]);
            } else {
                let bytes: usize = scope.launches.iter().map(steps::traffic).sum();
                completed.launches += scope.launches.len();
                completed.traffic += bytes;
                completed.traffic_in_memory += bytes;
            }
            completed.scopes.push(scope);
        }
        Ok(completed)
    }

    /// Puts the launches of some kernels into a scope, and returns the outcome. They run by themselves,
    /// on the data that earlier frames have left.
    pub(crate) async fn attempt(
        &self,
        queue: &Queue,
        stages: &Stages,
        temporaries: Temporaries,
        kernels: &[&str],
    ) -> Result<Scope> {
        let steps = self.groups(stages, temporaries, Grouping::Unfused).into_iter().flatten();
        let group = steps.filter(|step| kernels.contains(&step.uses.kernel.as_str()));
        let mut events = Vec::new();
        let (scope, uses) = collect(queue, group.collect(), &mut events)?;
        let outcome = scope.complete();
        for event in events {
            event.await?;
        }
        outcome_of(outcome, &scope, uses).await
    }

    /// Reads the two pictures.
    pub(crate) async fn pictures(&self, queue: &Queue) -> Result<[Picture; 2]> {
        let [width, height] = self.range;
        let picture = |pixels| Picture { width, height, pixels };
        let (result, sketch) =
            futures::try_join!(queue.read(&self.result.buffer), queue.read(&self.sketch.buffer))?;
        Ok([picture(result), picture(sketch)])
    }
}

/// Returns a scope that has collected the launches, with their uses.
fn collect(
    queue: &Queue,
    group: Vec<Step>,
    events: &mut Vec<Event>,
) -> Result<(FusionScope, Vec<Uses>)> {
    let scope = queue.start_fusion();
    let mut all = Vec::new();
    for Step { launch, uses } in group {
        events.push(scope.submit(launch)?);
        all.push(uses);
    }
    Ok((scope, all))
}

async fn outcome_of(outcome: Fusing, scope: &FusionScope, launches: Vec<Uses>) -> Result<Scope> {
    let outcome = outcome.await?;
    Ok(Scope { launches, outcome, report: scope.report() })
}

/// Returns the time from the start of the first command to the end of the last.
fn span(events: &[Event]) -> Option<Duration> {
    let profiles = || events.iter().filter_map(Event::profile);
    let started = profiles().map(|profile| profile.started).min()?;
    let ended = profiles().map(|profile| profile.ended).max()?;
    Some(Duration::from_nanos(ended.saturating_sub(started)))
}

/// Returns the time for which the device ran the commands.
fn busy(events: &[Event]) -> Option<Duration> {
    // Launches that run as one have the same times.
    let times: BTreeSet<_> = events
        .iter()
        .filter_map(Event::profile)
        .map(|profile| (profile.started, profile.ended))
        .collect();
    let nanoseconds = times.iter().map(|(started, ended)| ended.saturating_sub(*started)).sum();
    (!times.is_empty()).then(|| Duration::from_nanos(nanoseconds))
}
