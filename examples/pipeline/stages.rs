//! Stages of the pipeline: their programs and kernels.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use kiln::{Build, Kernel, Module, Program, Runtime};

/// Sources of the programs, by name.
const SOURCES: [(&str, &str); 5] = [
    ("pixels", include_str!("pixels.cl")),
    ("denoise", include_str!("denoise.cl")),
    ("sharpen", include_str!("sharpen.cl")),
    ("tone", include_str!("tone.cl")),
    ("edges", include_str!("edges.cl")),
];

/// Number of work-groups of `measure`. Large devices run thousands of work-items at once.
pub(crate) const GROUPS: usize = 1024;
pub(crate) const GROUP_SIZE: usize = 64;

/// Kernels of all stages, which may still be building.
pub(crate) struct Stages {
    builds: Vec<Build>,
    started: Instant,
    pub(crate) unpack: Kernel,
    pub(crate) denoise: Kernel,
    pub(crate) blur_rows: Kernel,
    pub(crate) blur_columns: Kernel,
    pub(crate) unsharp: Kernel,
    pub(crate) measure: Kernel,
    pub(crate) expose: Kernel,
    pub(crate) filmic: Kernel,
    pub(crate) sobel: Kernel,
    pub(crate) overlay: Kernel,
    pub(crate) sketch: Kernel,
}

impl Stages {
    /// Starts all builds at once and does not wait for them: launches can be submitted from here on.
    pub(crate) fn start(rt: &Runtime) -> Self {
        let started = Instant::now();
        let builds = SOURCES.map(|(_, source)| rt.build(&Module::opencl_c(source)).start());
        let [pixels, denoise, sharpen, tone, edges] = &builds;
        let kernel = |build: &Build, name| {
            // SAFETY: these kernels index by global ids, or clamp to the global size, which frames set
            // to the number of elements of the buffers. `measure` checks against the count that it is
            // given. It has one sum for each work-group and one scratch element for each of its
            // work-items.
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

    /// Returns the programs, with their names and the time from the start until each was ready.
    pub(crate) async fn built(&self) -> kiln::Result<Vec<(&'static str, Program, Duration)>> {
        let builds = SOURCES.iter().zip(&self.builds).map(async |((name, _), build)| {
            let program = build.clone().await?;
            Ok((*name, program, self.started.elapsed()))
        });
        try_join_all(builds).await
    }
}
