//! The stages of the pipeline: their programs, and a frame on its way through them.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use kiln::{Buffer, Build, Event, Image, Kernel, Launch, Local, Program, Queue, Read, Runtime};

/// The programs, by name.
const SOURCES: [(&str, &str); 5] = [
    ("pixels", include_str!("pixels.cl")),
    ("denoise", include_str!("denoise.cl")),
    ("sharpen", include_str!("sharpen.cl")),
    ("tone", include_str!("tone.cl")),
    ("edges", include_str!("edges.cl")),
];

/// Work-groups of `measure`, and work-items in each.
const GROUPS: usize = 64;
const GROUP_SIZE: usize = 64;

/// The kernels of all stages, which may still be building.
pub(crate) struct Stages {
    builds: Vec<Build>,
    started: Instant,
    unpack: Kernel,
    denoise: Kernel,
    blur_rows: Kernel,
    blur_columns: Kernel,
    unsharp: Kernel,
    measure: Kernel,
    expose: Kernel,
    filmic: Kernel,
    sobel: Kernel,
    overlay: Kernel,
    sketch: Kernel,
}

impl Stages {
    /// Starts all builds at once and waits for none: launches can be submitted from here on.
    pub(crate) fn start(rt: &Runtime) -> Self {
        let started = Instant::now();
        let builds = SOURCES.map(|(_, source)| rt.build(&Image::opencl_c(source)).start());
        let [pixels, denoise, sharpen, tone, edges] = &builds;
        let kernel = |build: &Build, name| {
            // SAFETY: these kernels index by global ids, or clamp to the global size, which
            // `Frame::submit` makes the number of elements of the buffers; `measure` checks against
            // the count that it is given, and has one sum for each work-group and one scratch
            // element for each of its work-items.
            unsafe { build.kernel(name) }
        };
        Self {
            started,
            unpack: kernel(pixels, "unpack"),
            denoise: kernel(denoise, "denoise"),
            blur_rows: kernel(sharpen, "blur_rows"),
            blur_columns: kernel(sharpen, "blur_columns"),
            unsharp: kernel(sharpen, "unsharp"),
            measure: kernel(tone, "measure"),
            expose: kernel(tone, "expose"),
            filmic: kernel(tone, "filmic"),
            sobel: kernel(edges, "sobel"),
            overlay: kernel(pixels, "overlay"),
            sketch: kernel(pixels, "sketch"),
            builds: builds.to_vec(),
        }
    }

    /// The programs, with their names and the time from the start until each was ready.
    pub(crate) async fn built(&self) -> kiln::Result<Vec<(&'static str, Program, Duration)>> {
        let builds = SOURCES.iter().zip(&self.builds).map(async |((name, _), build)| {
            let program = build.clone().await?;
            Ok((*name, program, self.started.elapsed()))
        });
        try_join_all(builds).await
    }
}

/// The device memory of one frame.
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

/// A frame that was submitted: the events of its launches, and its pictures on their way back.
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

    /// Submits all stages for a picture, without waiting for anything: not for the programs, and not
    /// for the frame that used this memory before. Nothing here says what comes after what; that
    /// follows from the buffers and from what is done with them. Once a program is there, its kernels'
    /// signatures tell that they only read what is `const`; before that, `read()` has to.
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
        submit(&s.unpack, s.unpack.launch(range).args((self.file.read(), self.source.write())))?;

        // Three branches, independent of each other. First: clean, then sharpen.
        let args = (self.source.read(), 1.5f32, 0.08f32, self.denoised.write());
        submit(&s.denoise, s.denoise.launch(range).args(args))?;
        let args = (self.denoised.read(), self.half_blurred.write());
        submit(&s.blur_rows, s.blur_rows.launch(range).args(args))?;
        let args = (self.half_blurred.read(), self.blurred.write());
        submit(&s.blur_columns, s.blur_columns.launch(range).args(args))?;
        let args = (self.denoised.read(), self.blurred.read(), 0.7f32, self.sharp.write());
        submit(&s.unsharp, s.unsharp.launch(range).args(args))?;

        // Second: how bright the picture is.
        let scratch = Local::<f32>::new(GROUP_SIZE);
        let args = (self.source.read(), pixels, scratch, self.sums.write());
        let launch = s.measure.launch(GROUPS * GROUP_SIZE).local(GROUP_SIZE);
        submit(&s.measure, launch.args(args))?;
        let args = (self.sums.read(), GROUPS as u32, pixels, 0.045f32, self.exposure.write());
        submit(&s.expose, s.expose.launch(1).args(args))?;

        // Third: the edges.
        let args = (self.source.read(), 0.5f32, 2.0f32, self.edges.write());
        submit(&s.sobel, s.sobel.launch(range).args(args))?;
        submit(&s.sketch, s.sketch.launch(range).args((self.edges.read(), self.sketch.write())))?;

        // All come together.
        let args = (self.sharp.read(), self.exposure.read(), 1.05f32, self.toned.write());
        submit(&s.filmic, s.filmic.launch(range).args(args))?;
        let args = (self.toned.read(), self.edges.read(), 0.4f32, self.result.write());
        submit(&s.overlay, s.overlay.launch(range).args(args))?;

        let (result, sketch) = (queue.read(&self.result), queue.read(&self.sketch));
        Ok(Submitted { launches, result, sketch })
    }
}
