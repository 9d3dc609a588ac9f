//! Ways to run the launches of a frame.

use std::time::{Duration, Instant};

use futures::StreamExt;
use kiln::fusion::{FusionOutcome, Internalization};
use kiln::{Graph, Queue, Runtime};

use crate::film::{Between, Film, UNFUSED};

/// Way to run the launches of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Each launch is submitted by itself.
    OneByOne,
    /// The launches are submitted to one fusion scope.
    Fused,
    /// The launches are recorded once, and replayed for each frame.
    Recorded,
    /// The launches are recorded once and fused, and replayed for each frame.
    RecordedAndFused,
}

impl Way {
    pub(crate) const ALL: [Self; 4] =
        [Self::OneByOne, Self::Fused, Self::Recorded, Self::RecordedAndFused];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneByOne => "one by one",
            Self::Fused => "fused",
            Self::Recorded => "recorded",
            Self::RecordedAndFused => "recorded and fused",
        }
    }

    pub(crate) fn is_fused(self) -> bool {
        matches!(self, Self::Fused | Self::RecordedAndFused)
    }
}

/// Frames of the film look, ready to run in each way.
pub(crate) struct Frames<'a> {
    rt: &'a Runtime,
    queue: Queue,
    film: &'a Film,
    between: Between,
    recorded: Graph,
    recorded_and_fused: Graph,
}

/// Completed frame.
pub(crate) struct CompletedFrame {
    /// Time from the submission of the first launch to the completion of the last.
    pub(crate) time: Duration,
    /// Outcome of fusion; `None` for ways without.
    pub(crate) fusion: Option<FusionOutcome>,
    pub(crate) pixels: Vec<[u8; 4]>,
}

impl<'a> Frames<'a> {
    pub(crate) async fn new(rt: &'a Runtime, film: &'a Film) -> kiln::Result<Self> {
        let queue = rt.queue();
        let between = film.between(|len| rt.buffer(len))?;
        // The pages of new memory often exist only once it is written. Their cost must not count as the kernels'.
        for plane in between.as_flattened() {
            queue.fill(plane, 0.0)?.await?;
        }
        let recorded = record(&queue, film).await?;
        let recorded_and_fused = record_fused(&queue, film, &between).await?;
        Ok(Self { rt, queue, film, between, recorded, recorded_and_fused })
    }

    /// Runs a frame, waits for it, and reads its picture.
    pub(crate) async fn run(&self, way: Way) -> kiln::Result<CompletedFrame> {
        let result = &self.film.result;
        self.queue.fill(result, 0)?.await?;
        let start = Instant::now();
        let fusion = match way {
            Way::OneByOne => {
                let mut last = None;
                for launch in self.film.launches(&self.between) {
                    last = Some(self.queue.submit(launch)?);
                }
                if let Some(last) = last {
                    last.await?; // it needs the results of all others
                }
                None
            }
            Way::Fused => Some(self.run_fused().await?),
            Way::Recorded => {
                self.recorded.replay().submit()?.await?;
                None
            }
            Way::RecordedAndFused => Some(self.replay_fused().await?),
        };
        let time = start.elapsed();
        let pixels = self.queue.read(result).await?.into_iter().map(u32::to_le_bytes).collect();
        Ok(CompletedFrame { time, fusion, pixels })
    }

    /// Submits the launches to a fusion scope, except for the first ones.
    async fn run_fused(&self) -> kiln::Result<FusionOutcome> {
        let fusion = self.queue.start_fusion();
        let mut last = None;
        for (at, launch) in self.film.launches(&self.between).into_iter().enumerate() {
            let event =
                if at < UNFUSED { self.queue.submit(launch) } else { fusion.submit(launch) };
            last = Some(event?);
        }
        // Nothing reads these later, so that they need not be written.
        for plane in self.between[UNFUSED..].as_flattened() {
            fusion.internalize(plane, Internalization::Private);
        }
        let outcome = fusion.complete();
        if let Some(last) = last {
            last.await?;
        }
        outcome.await
    }

    /// Submits the first launches, and replays the graph of the others.
    async fn replay_fused(&self) -> kiln::Result<FusionOutcome> {
        for launch in self.film.launches(&self.between).into_iter().take(UNFUSED) {
            self.queue.submit(launch)?;
        }
        self.recorded_and_fused.replay().submit()?.await?;
        Ok(self.recorded_and_fused.fusion())
    }

    /// Returns whether programs are waiting to be compiled, or being compiled.
    pub(crate) async fn is_compiling(&self) -> bool {
        self.rt.progress().next().await.is_some_and(|builds| !builds.is_idle())
    }
}

/// Records the launches of a frame. Their results are temporaries of the graph, which share memory where they can.
async fn record(queue: &Queue, film: &Film) -> kiln::Result<Graph> {
    let mut recorder = queue.record();
    let between = film.between(|len| recorder.temporary(len))?;
    for launch in film.launches(&between) {
        recorder.submit(launch)?;
    }
    recorder.finish().await
}

/// Records the launches of a frame as fused launches, except for the first ones, whose results are in `first`.
async fn record_fused(queue: &Queue, film: &Film, first: &Between) -> kiln::Result<Graph> {
    let mut recorder = queue.record();
    recorder.fuse();
    let mut between = film.between(|len| recorder.temporary(len))?;
    between[..UNFUSED].clone_from_slice(&first[..UNFUSED]);
    for launch in film.launches(&between).into_iter().skip(UNFUSED) {
        recorder.submit(launch)?;
    }
    recorder.finish().await
}
