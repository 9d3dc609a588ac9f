//! Frame that passes through the stages of the pipeline.

use std::time::Duration;

use kiln::{Buffer, CheckedProgram, Event, Launch, Local, Queue, Read, Runtime};

use crate::stages::{GROUP_SIZE, GROUPS, Stages};

/// The pipeline over one kind of device memory, as the memory of a frame.
pub(crate) trait Pipeline: Sized {
    /// Kernels of all stages, which may still be building.
    type Stages;

    /// Starts the builds of all stages.
    fn start(rt: &Runtime) -> kiln::Result<Self::Stages>;

    /// Returns the programs, with their names and the time from the start until each was ready.
    async fn built(
        stages: &Self::Stages,
    ) -> kiln::Result<Vec<(&'static str, CheckedProgram, Duration)>>;

    /// Allocates the memory of a frame.
    fn new(rt: &Runtime, width: usize, height: usize) -> kiln::Result<Self>;

    /// Submits all stages for a picture, without waiting for the programs or for the previous frame in this
    /// memory.
    fn submit(
        &self,
        queue: &Queue,
        stages: &Self::Stages,
        picture: Vec<[u8; 4]>,
    ) -> kiln::Result<Submitted>;
}

/// Device memory of one frame, in buffers.
pub(crate) struct Frame {
    range: [usize; 2],
    file: Buffer<[u8; 4]>,
    source: Buffer<[f32; 4]>,
    denoised: Buffer<[f32; 4]>,
    half_blurred: Buffer<[f32; 4]>,
    blurred: Buffer<[f32; 4]>,
    sharp: Buffer<[f32; 4]>,
    sums: Buffer<f32>,
    exposure: Buffer<f32>,
    toned: Buffer<[f32; 4]>,
    edges: Buffer<f32>,
    result: Buffer<[u8; 4]>,
    sketch: Buffer<[u8; 4]>,
}

/// Submitted frame: the events of its launches, and its pictures on their way back.
pub(crate) struct Submitted {
    pub(crate) launches: Vec<(String, Event)>,
    pub(crate) result: Read<[u8; 4]>,
    pub(crate) sketch: Read<[u8; 4]>,
}

impl Pipeline for Frame {
    type Stages = Stages;

    fn start(rt: &Runtime) -> kiln::Result<Stages> {
        Stages::start(rt)
    }

    async fn built(stages: &Stages) -> kiln::Result<Vec<(&'static str, CheckedProgram, Duration)>> {
        stages.built().await
    }

    fn new(rt: &Runtime, width: usize, height: usize) -> kiln::Result<Self> {
        let pixels = width * height;
        Ok(Self {
            range: [width, height],
            file: rt.buffer(pixels)?,
            source: rt.buffer(pixels)?,
            denoised: rt.buffer(pixels)?,
            half_blurred: rt.buffer(pixels)?,
            blurred: rt.buffer(pixels)?,
            sharp: rt.buffer(pixels)?,
            sums: rt.buffer(GROUPS)?,
            exposure: rt.buffer(1)?,
            toned: rt.buffer(pixels)?,
            edges: rt.buffer(pixels)?,
            result: rt.buffer(pixels)?,
            sketch: rt.buffer(pixels)?,
        })
    }

    /// No order is stated here: it follows from the buffers and from how they are used. The kernels'
    /// signatures state which buffers are only read; `write_only()` states that the earlier contents of a
    /// buffer do not matter.
    fn submit(
        &self,
        queue: &Queue,
        stages: &Stages,
        picture: Vec<[u8; 4]>,
    ) -> kiln::Result<Submitted> {
        let range = self.range;
        let pixels = picture.len() as u32;
        let mut launches = Vec::new();
        let mut submit = |name: &str, launch: Launch| {
            queue.submit(launch).map(|event| launches.push((name.to_owned(), event)))
        };

        let _written = queue.write(&self.file, picture)?;
        let Stages { pixels: frames, denoise, sharpen, tone, edges, .. } = stages;
        submit("unpack", frames.unpack(range, &self.file, self.source.write_only()))?;

        // Three branches, independent of each other. First: clean, then sharpen.
        let launch = denoise.denoise(range, &self.source, 1.5, 0.08, self.denoised.write_only());
        submit("denoise", launch)?;
        let launch = sharpen.blur_rows(range, &self.denoised, self.half_blurred.write_only());
        submit("blur_rows", launch)?;
        let launch = sharpen.blur_columns(range, &self.half_blurred, self.blurred.write_only());
        submit("blur_columns", launch)?;
        let sharp = self.sharp.write_only();
        submit("unsharp", sharpen.unsharp(range, &self.denoised, &self.blurred, 0.7, sharp))?;

        // Second: measure the brightness of the picture.
        let (items, scratch) = (GROUPS * GROUP_SIZE, Local::new(GROUP_SIZE));
        let launch = tone.measure(items, &self.source, pixels, scratch, self.sums.write_only());
        submit("measure", launch.local(GROUP_SIZE))?;
        let exposure = self.exposure.write_only();
        submit("expose", tone.expose(1, &self.sums, GROUPS as u32, pixels, 0.045, exposure))?;

        // Third: the edges.
        submit("sobel", edges.sobel(range, &self.source, 0.5, 2.0, self.edges.write_only()))?;
        submit("sketch", frames.sketch(range, &self.edges, self.sketch.write_only()))?;

        // The three branches meet.
        let toned = self.toned.write_only();
        submit("filmic", tone.filmic(range, &self.sharp, &self.exposure, 1.05, toned))?;
        let result = self.result.write_only();
        submit("overlay", frames.overlay(range, &self.toned, &self.edges, 0.4, result))?;

        let (result, sketch) = (queue.read(&self.result), queue.read(&self.sketch));
        Ok(Submitted { launches, result, sketch })
    }
}
