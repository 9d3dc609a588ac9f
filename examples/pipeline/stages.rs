//! Stages of the pipeline: their programs and kernels.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use kiln::build::CheckedBuild;
use kiln::{CheckedProgram, Runtime};

kiln::kernels! {
    pub(crate) mod pixels = "pixels.cl";
    pub(crate) mod denoise = "denoise.cl";
    pub(crate) mod sharpen = "sharpen.cl";
    pub(crate) mod tone = "tone.cl";
    pub(crate) mod edges = "edges.cl";
}

/// Number of work-groups of `measure`. Large devices run thousands of work-items at once.
pub(crate) const GROUPS: usize = 1024;
pub(crate) const GROUP_SIZE: usize = 64;

/// Kernels of all stages, which may still be building.
pub(crate) struct Stages {
    builds: [(&'static str, CheckedBuild); 5],
    started: Instant,
    pub(crate) pixels: pixels::Kernels,
    pub(crate) denoise: denoise::Kernels,
    pub(crate) sharpen: sharpen::Kernels,
    pub(crate) tone: tone::Kernels,
    pub(crate) edges: edges::Kernels,
}

impl Stages {
    /// Starts all builds at once and does not wait for them: launches can be submitted from here on.
    pub(crate) fn start(rt: &Runtime) -> kiln::Result<Self> {
        let started = Instant::now();
        let start =
            |module: kiln::Result<_>| Ok::<_, kiln::Error>(rt.build(&module?).checked().start());
        let pixels = start(pixels::Kernels::module())?;
        let denoise = start(denoise::Kernels::module())?;
        let sharpen = start(sharpen::Kernels::module())?;
        let tone = start(tone::Kernels::module())?;
        let edges = start(edges::Kernels::module())?;
        Ok(Self {
            started,
            pixels: pixels::Kernels::from_build(&pixels),
            denoise: denoise::Kernels::from_build(&denoise),
            sharpen: sharpen::Kernels::from_build(&sharpen),
            tone: tone::Kernels::from_build(&tone),
            edges: edges::Kernels::from_build(&edges),
            builds: [
                ("pixels", pixels),
                ("denoise", denoise),
                ("sharpen", sharpen),
                ("tone", tone),
                ("edges", edges),
            ],
        })
    }

    /// Returns the programs, with their names and the time from the start until each was ready.
    pub(crate) async fn built(
        &self,
    ) -> kiln::Result<Vec<(&'static str, CheckedProgram, Duration)>> {
        built(&self.builds, self.started).await
    }
}

/// Returns the programs of builds that were started at a time, as [`Stages::built`] does.
pub(crate) async fn built(
    builds: &[(&'static str, CheckedBuild)],
    started: Instant,
) -> kiln::Result<Vec<(&'static str, CheckedProgram, Duration)>> {
    let builds = builds.iter().map(async |(name, build)| {
        let program = build.clone().await?;
        Ok((*name, program, started.elapsed()))
    });
    try_join_all(builds).await
}
