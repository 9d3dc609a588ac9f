//! Frame that passes through the stages of the pipeline.

use kiln::{Buffer, Event, Kernel, Launch, Local, Queue, Read, Runtime};

use crate::stages::{GROUP_SIZE, GROUPS, Stages};

/// Device memory of one frame.
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

impl Frame {
    pub(crate) fn new(rt: &Runtime, width: usize, height: usize) -> kiln::Result<Self> {
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

    /// Submits all stages for a picture, without waiting for the programs or for the previous frame in
    /// this memory. No order is stated here: it follows from the buffers and from how they are used.
    /// Once a program is built, its kernels' signatures state that `const` parameters are only read;
    /// until then, `read_only()` states it.
    pub(crate) fn submit(
        &self,
        queue: &Queue,
        stages: &Stages,
        picture: Vec<[u8; 4]>,
    ) -> kiln::Result<Submitted> {
        let range = self.range;
        let pixels = picture.len() as u32;
        let mut launches = Vec::new();
        let mut submit = |kernel: &Kernel, launch: Launch| {
            queue.submit(launch).map(|event| launches.push((kernel.name().to_owned(), event)))
        };

        let _written = queue.write(&self.file, picture)?;
        let s = stages;
        submit(
            &s.unpack,
            s.unpack.launch(range).args((self.file.read_only(), self.source.write_only())),
        )?;

        // Three branches, independent of each other. First: clean, then sharpen.
        let args = (self.source.read_only(), 1.5f32, 0.08f32, self.denoised.write_only());
        submit(&s.denoise, s.denoise.launch(range).args(args))?;
        let args = (self.denoised.read_only(), self.half_blurred.write_only());
        submit(&s.blur_rows, s.blur_rows.launch(range).args(args))?;
        let args = (self.half_blurred.read_only(), self.blurred.write_only());
        submit(&s.blur_columns, s.blur_columns.launch(range).args(args))?;
        let args =
            (self.denoised.read_only(), self.blurred.read_only(), 0.7f32, self.sharp.write_only());
        submit(&s.unsharp, s.unsharp.launch(range).args(args))?;

        // Second: measure the brightness of the picture.
        let scratch = Local::<f32>::new(GROUP_SIZE);
        let args = (self.source.read_only(), pixels, scratch, self.sums.write_only());
        let launch = s.measure.launch(GROUPS * GROUP_SIZE).local(GROUP_SIZE);
        submit(&s.measure, launch.args(args))?;
        let args =
            (self.sums.read_only(), GROUPS as u32, pixels, 0.045f32, self.exposure.write_only());
        submit(&s.expose, s.expose.launch(1).args(args))?;

        // Third: the edges.
        let args = (self.source.read_only(), 0.5f32, 2.0f32, self.edges.write_only());
        submit(&s.sobel, s.sobel.launch(range).args(args))?;
        submit(
            &s.sketch,
            s.sketch.launch(range).args((self.edges.read_only(), self.sketch.write_only())),
        )?;

        // The three branches meet.
        let args =
            (self.sharp.read_only(), self.exposure.read_only(), 1.05f32, self.toned.write_only());
        submit(&s.filmic, s.filmic.launch(range).args(args))?;
        let args =
            (self.toned.read_only(), self.edges.read_only(), 0.4f32, self.result.write_only());
        submit(&s.overlay, s.overlay.launch(range).args(args))?;

        let (result, sketch) = (queue.read(&self.result), queue.read(&self.sketch));
        Ok(Submitted { launches, result, sketch })
    }
}
