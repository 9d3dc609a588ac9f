//! Frame that passes through the pipeline, with its launches one by one or in one fusion scope.

use std::time::{Duration, Instant};

use kiln::{Buffer, Event, FusionOutcome, FusionReport, Launch, Local, Queue, Result, Runtime};

use crate::picture::Picture;
use crate::stages::{GROUP_SIZE, GROUPS, Stages};

/// How the launches of a frame are submitted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grouping {
    /// Each launch by itself.
    Unfused,
    /// All launches in one fusion scope.
    Fused,
}

impl Grouping {
    pub(crate) const ALL: [Self; 2] = [Self::Unfused, Self::Fused];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unfused => "unfused",
            Self::Fused => "fused",
        }
    }
}

/// Device memory that stays the same from frame to frame.
pub(crate) struct Frame {
    range: [usize; 2],
    file: Buffer<[u8; 4]>,
    result: Buffer<[u8; 4]>,
    sketch: Buffer<[u8; 4]>,
}

/// Device memory of a single frame, used by its launches only.
pub(crate) struct Temporaries {
    source: Buffer<[f32; 4]>,
    denoised: Buffer<[f32; 4]>,
    half_blurred: Buffer<[f32; 4]>,
    blurred: Buffer<[f32; 4]>,
    sharp: Buffer<[f32; 4]>,
    toned: Buffer<[f32; 4]>,
    edges: Buffer<f32>,
    sums: Buffer<f32>,
    exposure: Buffer<f32>,
}

/// Completed frame.
pub(crate) struct CompletedFrame {
    /// Time from the first submission to the completion of all launches.
    pub(crate) wall: Duration,
    /// Outcome and report of the scope, if the launches were in one.
    pub(crate) scope: Option<(FusionOutcome, FusionReport)>,
}

impl Temporaries {
    /// Allocates and fills the memory. The pages of new memory often exist only once it is written;
    /// their cost must not count as the kernels'.
    pub(crate) async fn new(rt: &Runtime, queue: &Queue, frame: &Frame) -> Result<Self> {
        let pixels = frame.file.len();
        let new = Self {
            source: rt.buffer(pixels)?,
            denoised: rt.buffer(pixels)?,
            half_blurred: rt.buffer(pixels)?,
            blurred: rt.buffer(pixels)?,
            sharp: rt.buffer(pixels)?,
            toned: rt.buffer(pixels)?,
            edges: rt.buffer(pixels)?,
            sums: rt.buffer(GROUPS)?,
            exposure: rt.buffer(1)?,
        };
        let pictures =
            [&new.source, &new.denoised, &new.half_blurred, &new.blurred, &new.sharp, &new.toned];
        for picture in pictures {
            queue.fill(picture, [0.0; 4])?.await?;
        }
        queue.fill(&new.edges, 0.0)?.await?;
        Ok(new)
    }
}

impl Frame {
    pub(crate) async fn new(rt: &Runtime, queue: &Queue, picture: &Picture) -> Result<Self> {
        let pixels = picture.pixels.len();
        let frame = Self {
            range: [picture.width, picture.height],
            file: rt.buffer(pixels)?,
            result: rt.buffer(pixels)?,
            sketch: rt.buffer(pixels)?,
        };
        queue.write(&frame.file, picture.pixels.clone())?.await?;
        Ok(frame)
    }

    /// Returns all launches of a frame, with the names of their kernels. The temporaries are dropped here.
    /// From then on only the launches hold them, so no other command can read data that a fused kernel does
    /// not write.
    fn launches(&self, stages: &Stages, temporaries: Temporaries) -> Vec<Launch> {
        let Stages { pixels: frames, denoise, sharpen, tone, edges, .. } = stages;
        let (t, range) = (temporaries, self.range);
        let (pixels, groups) = (self.file.len() as u32, GROUPS as u32);
        let scratch = Local::new(GROUP_SIZE);
        let measure = tone.measure(GROUPS * GROUP_SIZE, &t.source, pixels, scratch, &t.sums);
        vec![
            frames.unpack(range, &self.file, &t.source),
            denoise.denoise(range, &t.source, 1.5, 0.08, &t.denoised),
            sharpen.blur_rows(range, &t.denoised, &t.half_blurred),
            measure.local(GROUP_SIZE),
            tone.expose(1, &t.sums, groups, pixels, 0.045, &t.exposure),
            edges.sobel(range, &t.source, 0.5, 2.0, &t.edges),
            frames.sketch(range, &t.edges, &self.sketch),
            sharpen.blur_columns(range, &t.half_blurred, &t.blurred),
            sharpen.unsharp(range, &t.denoised, &t.blurred, 0.7, &t.sharp),
            tone.filmic(range, &t.sharp, &t.exposure, 1.05, &t.toned),
            frames.overlay(range, &t.toned, &t.edges, 0.4, &self.result),
        ]
    }

    /// Submits a frame and waits until all of it has completed.
    pub(crate) async fn run(
        &self,
        queue: &Queue,
        stages: &Stages,
        temporaries: Temporaries,
        grouping: Grouping,
    ) -> Result<CompletedFrame> {
        let launches = self.launches(stages, temporaries);
        let start = Instant::now();
        let mut events = Vec::<Event>::new();
        let mut scope = None;
        match grouping {
            Grouping::Unfused => {
                for launch in launches {
                    events.push(queue.submit(launch)?);
                }
            }
            Grouping::Fused => {
                let fusion = queue.start_fusion();
                for launch in launches {
                    events.push(fusion.submit(launch)?);
                }
                scope = Some((fusion.complete(), fusion));
            }
        }
        for event in events {
            event.await?;
        }
        let wall = start.elapsed();
        let scope = match scope {
            None => None,
            Some((outcome, fusion)) => Some((outcome.await?, fusion.report())),
        };
        Ok(CompletedFrame { wall, scope })
    }

    /// Reads the two pictures.
    pub(crate) async fn pictures(&self, queue: &Queue) -> Result<[Picture; 2]> {
        let [width, height] = self.range;
        let picture = |pixels| Picture { width, height, pixels };
        let (result, sketch) =
            futures::try_join!(queue.read(&self.result), queue.read(&self.sketch))?;
        Ok([picture(result), picture(sketch)])
    }
}
