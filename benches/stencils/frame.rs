//! Whole frame of the photograph of the example `pipeline`, eleven launches, one by one and in a fusion scope.

use std::time::{Duration, Instant};

use kiln::fusion::{FusionOutcome, Internalization};
use kiln::{Buffer, Launch, Local, Queue, Result, Runtime};

use crate::stages::{GROUP_SIZE, GROUPS, Stages};
use crate::support::median;

/// Maximum number of scopes until the trials have ended.
const MAX_TRIALS: usize = 120;

/// Launches of a frame, and their memory.
pub(crate) struct Frame {
    queue: Queue,
    stages: Stages,
    range: [usize; 2],
    file: Buffer<[u8; 4]>,
    result: Buffer<[u8; 4]>,
    sketch: Buffer<[u8; 4]>,
    /// Source, denoised, half blurred, blurred, sharp, toned.
    pictures: [Buffer<[f32; 4]>; 6],
    edges: Buffer<f32>,
    sums: Buffer<f32>,
    exposure: Buffer<f32>,
}

impl Frame {
    pub(crate) async fn new(rt: &Runtime, width: usize) -> Result<Self> {
        let (queue, stages, pixels) = (rt.queue(), Stages::start(rt)?, width * width);
        stages.built().await?;
        let noise = |n: usize| (n.wrapping_mul(2_654_435_761) >> 8) as u8;
        let file = (0..pixels).map(|n| [noise(4 * n), noise(4 * n + 1), noise(4 * n + 2), 255]);
        let mut pictures = Vec::new();
        for _ in 0..6 {
            let picture = rt.buffer(pixels)?;
            // The pages of new memory often exist only once it is written.
            queue.fill(&picture, [0.0; 4])?.await?;
            pictures.push(picture);
        }
        Ok(Self {
            queue,
            stages,
            range: [width, width],
            file: rt.buffer_from(file.collect::<Vec<_>>()).await?,
            result: rt.buffer(pixels)?,
            sketch: rt.buffer(pixels)?,
            pictures: pictures.try_into().expect("there are six"),
            edges: rt.buffer(pixels)?,
            sums: rt.buffer(GROUPS)?,
            exposure: rt.buffer(1)?,
        })
    }

    fn launches(&self) -> [Launch; 11] {
        let Stages { pixels: frames, denoise, sharpen, tone, edges: sobel, .. } = &self.stages;
        let [source, denoised, half_blurred, blurred, sharp, toned] = &self.pictures;
        let Self { range, edges, sums, exposure, .. } = self;
        let (range, pixels, scratch) = (*range, self.file.len() as u32, Local::new(GROUP_SIZE));
        let measure = tone.measure(GROUPS * GROUP_SIZE, source, pixels, scratch, sums);
        [
            frames.unpack(range, &self.file, source),
            denoise.denoise(range, source, 1.5, 0.08, denoised),
            sharpen.blur_rows(range, denoised, half_blurred),
            measure.local(GROUP_SIZE),
            tone.expose(1, sums, GROUPS as u32, pixels, 0.045, exposure),
            sobel.sobel(range, source, 0.5, 2.0, edges),
            frames.sketch(range, edges, &self.sketch),
            sharpen.blur_columns(range, half_blurred, blurred),
            sharpen.unsharp(range, denoised, blurred, 0.7, sharp),
            tone.filmic(range, sharp, exposure, 1.05, toned),
            frames.overlay(range, toned, edges, 0.4, &self.result),
        ]
    }

    /// Runs a frame one by one. Returns the time from the first submission to the completion of all launches.
    async fn one_by_one(&self) -> Result<Duration> {
        let start = Instant::now();
        let events = self.launches().map(|launch| self.queue.submit(launch));
        for event in events {
            event?.await?;
        }
        Ok(start.elapsed())
    }

    /// Runs a frame in a scope. Also returns the outcome, and whether the trials have ended.
    async fn in_scope(&self) -> Result<(Duration, FusionOutcome, bool)> {
        let start = Instant::now();
        let scope = self.queue.start_fusion();
        let events = self.launches().map(|launch| scope.submit(launch));
        for picture in &self.pictures {
            scope.internalize(picture, Internalization::Private);
        }
        scope.internalize(&self.edges, Internalization::Private);
        let outcome = scope.complete();
        for event in events {
            event?.await?;
        }
        let time = start.elapsed();
        let is_decided = scope
            .report()
            .parts()
            .iter()
            .all(|part| part.launches.len() < 2 || part.ways.iter().any(|way| way.is_chosen));
        Ok((time, outcome.await?, is_decided))
    }

    async fn pictures(&self) -> Result<[Vec<[u8; 4]>; 2]> {
        Ok([self.queue.read(&self.result).await?, self.queue.read(&self.sketch).await?])
    }

    /// Runs scopes until the trials have ended, and then frames in both ways, alternately. Returns the outcome of the
    /// scope, and the median times one by one and in a scope.
    pub(crate) async fn measure(&self, rounds: usize) -> Result<(FusionOutcome, [Duration; 2])> {
        self.one_by_one().await?;
        let expected = self.pictures().await?;
        let mut last = self.in_scope().await?;
        for _ in 1..MAX_TRIALS {
            assert!(self.pictures().await? == expected, "the pictures differ");
            if last.2 {
                break;
            }
            last = self.in_scope().await?;
        }
        let (mut alone, mut fused) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            alone.push(self.one_by_one().await?);
            last = self.in_scope().await?;
            fused.push(last.0);
        }
        Ok((last.1, [median(alone), median(fused)]))
    }
}
