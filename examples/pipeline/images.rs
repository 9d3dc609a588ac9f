//! The pipeline over images: the same stages and results as those over buffers.

use std::time::{Duration, Instant};

use kiln::build::CheckedBuild;
use kiln::images::{Addressing, R, Rgba, Sampler};
use kiln::{Buffer, CheckedProgram, Image, Launch, Local, Queue, Runtime};

use crate::frame::{Pipeline, Submitted};
use crate::stages::{GROUP_SIZE, GROUPS, built, tone};

kiln::kernels! {
    pub(crate) mod images = "images.cl";
}

/// Repeats the pixels at the edge of an image.
const EDGE: Sampler = Sampler::new().addressing(Addressing::ClampToEdge);

/// Kernels of all stages, which may still be building.
pub(crate) struct ImageStages {
    builds: [(&'static str, CheckedBuild); 2],
    started: Instant,
    images: images::Kernels,
    /// Kernels of the stage that takes no picture, only sums.
    tone: tone::Kernels,
}

/// Device memory of one frame: pictures of 32-bit floats are images.
pub(crate) struct ImageFrame {
    range: [usize; 2],
    file: Buffer<[u8; 4]>,
    source: Image<Rgba<f32>>,
    denoised: Image<Rgba<f32>>,
    half_blurred: Image<Rgba<f32>>,
    blurred: Image<Rgba<f32>>,
    sharp: Image<Rgba<f32>>,
    sums: Buffer<f32>,
    exposure: Buffer<f32>,
    toned: Image<Rgba<f32>>,
    edges: Image<R<f32>>,
    result: Buffer<[u8; 4]>,
    sketch: Buffer<[u8; 4]>,
}

impl Pipeline for ImageFrame {
    type Stages = ImageStages;

    fn start(rt: &Runtime) -> kiln::Result<ImageStages> {
        let started = Instant::now();
        let images = rt.build(&images::Kernels::module()?).checked().start();
        let tone = rt.build(&tone::Kernels::module()?).checked().start();
        Ok(ImageStages {
            started,
            images: images::Kernels::from_build(&images),
            tone: tone::Kernels::from_build(&tone),
            builds: [("images", images), ("tone", tone)],
        })
    }

    async fn built(
        stages: &ImageStages,
    ) -> kiln::Result<Vec<(&'static str, CheckedProgram, Duration)>> {
        built(&stages.builds, stages.started).await
    }

    fn new(rt: &Runtime, width: usize, height: usize) -> kiln::Result<Self> {
        let pixels = width * height;
        Ok(Self {
            range: [width, height],
            file: rt.buffer(pixels)?,
            source: rt.image_2d(width, height)?,
            denoised: rt.image_2d(width, height)?,
            half_blurred: rt.image_2d(width, height)?,
            blurred: rt.image_2d(width, height)?,
            sharp: rt.image_2d(width, height)?,
            sums: rt.buffer(GROUPS)?,
            exposure: rt.buffer(1)?,
            toned: rt.image_2d(width, height)?,
            edges: rt.image_2d(width, height)?,
            result: rt.buffer(pixels)?,
            sketch: rt.buffer(pixels)?,
        })
    }

    /// Submits all stages for a picture. The order of the launches follows from the images, as it does from
    /// buffers: the kernels' signatures state which images are only read.
    fn submit(
        &self,
        queue: &Queue,
        stages: &ImageStages,
        picture: Vec<[u8; 4]>,
    ) -> kiln::Result<Submitted> {
        let range = self.range;
        let pixels = picture.len() as u32;
        let mut launches = Vec::new();
        let mut submit = |name: &str, launch: Launch| {
            queue.submit(launch).map(|event| launches.push((name.to_owned(), event)))
        };

        let _written = queue.write(&self.file, picture)?;
        let ImageStages { images, tone, .. } = stages;
        submit("unpack", images.unpack(range, &self.file, &self.source))?;

        // Three branches, independent of each other. First: clean, then sharpen.
        let launch = images.denoise(range, &self.source, EDGE, 1.5, 0.08, &self.denoised);
        submit("denoise", launch)?;
        let launch = images.blur(range, &self.denoised, EDGE, [1, 0], &self.half_blurred);
        submit("blur_rows", launch)?;
        let launch = images.blur(range, &self.half_blurred, EDGE, [0, 1], &self.blurred);
        submit("blur_columns", launch)?;
        let launch = images.unsharp(range, &self.denoised, &self.blurred, 0.7, &self.sharp);
        submit("unsharp", launch)?;

        // Second: measure the brightness of the picture.
        let (items, scratch) = (GROUPS * GROUP_SIZE, Local::new(GROUP_SIZE));
        let launch = images.measure(items, &self.source, scratch, self.sums.write_only());
        submit("measure", launch.local(GROUP_SIZE))?;
        let exposure = self.exposure.write_only();
        submit("expose", tone.expose(1, &self.sums, GROUPS as u32, pixels, 0.045, exposure))?;

        // Third: the edges.
        submit("sobel", images.sobel(range, &self.source, EDGE, 0.5, 2.0, &self.edges))?;
        submit("sketch", images.sketch(range, &self.edges, self.sketch.write_only()))?;

        // The three branches meet.
        submit("filmic", images.filmic(range, &self.sharp, &self.exposure, 1.05, &self.toned))?;
        let result = self.result.write_only();
        submit("overlay", images.overlay(range, &self.toned, &self.edges, 0.4, result))?;

        let (result, sketch) = (queue.read(&self.result), queue.read(&self.sketch));
        Ok(Submitted { launches, result, sketch })
    }
}
