//! The film look: its kernels, their memory, and the launches of a frame.

use kiln::{Buffer, Launch, Runtime};

use crate::picture::Picture;

kiln::kernels! {
    mod film = "film.cl";
}

/// Names of the launches, in order. Each reads the result of the one before.
pub(crate) const STEPS: [&str; 8] = [
    "unsharp",
    "expose",
    "colour_matrix",
    "tone_curve",
    "split_tone",
    "vignette",
    "grain",
    "dither",
];

/// Number of first launches that are not fused with others.
pub(crate) const UNFUSED: usize = 1;

/// Number of results that only the next launch reads.
const BETWEEN: usize = STEPS.len() - 1;

/// Picture as planes: red, green and blue.
pub(crate) type Planes = [Buffer<f32>; 3];

/// Results between the launches, each in buffers of its own.
pub(crate) type Between = [Planes; BETWEEN];

/// Kernels of the film look, with the picture that they read and the one that they write.
pub(crate) struct Film {
    kernels: film::Kernels,
    range: [usize; 2],
    /// Work-items of a work-group, in one row.
    group: usize,
    file: Buffer<u32>,
    pub(crate) result: Buffer<u32>,
}

impl Film {
    pub(crate) async fn new(rt: &Runtime, picture: &Picture) -> kiln::Result<Self> {
        let pixels = picture.padded().into_iter().map(u32::from_le_bytes);
        Ok(Self {
            kernels: film::Kernels::build(rt).await?,
            range: [picture.width, picture.height],
            group: divisor(picture.width),
            file: rt.buffer_from(pixels.collect::<Vec<_>>()).await?,
            result: rt.buffer(picture.pixels.len())?,
        })
    }

    /// Allocates the results between the launches. `allocate` returns a buffer of a length.
    pub(crate) fn between(
        &self,
        mut allocate: impl FnMut(usize) -> kiln::Result<Buffer<f32>>,
    ) -> kiln::Result<Between> {
        let mut plane = || allocate(self.result.len());
        let mut planes = || Ok([plane()?, plane()?, plane()?]);
        Ok([planes()?, planes()?, planes()?, planes()?, planes()?, planes()?, planes()?])
    }

    /// Returns the launches of a frame, in the order of [`STEPS`].
    pub(crate) fn launches(&self, between: &Between) -> [Launch; STEPS.len()] {
        let (film, range) = (&self.kernels, self.range);
        let [to_r, to_g, to_b] =
            [[1.20, -0.14, -0.06, 0.0], [-0.04, 1.08, -0.04, 0.0], [-0.02, -0.12, 1.14, 0.0]];
        let (shadows, highlights) = ([-0.02, 0.0, 0.03, 0.0], [0.03, 0.01, -0.03, 0.0]);
        let scale = range.map(|length| 2.0 / length as f32);

        let planes = |result: usize| between[result].each_ref();
        let output = |result: usize| between[result].each_ref().map(Buffer::write_only);

        let [r_out, g_out, b_out] = output(0);
        let unsharp = film.unsharp(range, &self.file, 0.6, r_out, g_out, b_out);

        let ([r, g, b], [r_out, g_out, b_out]) = (planes(0), output(1));
        let expose = film.expose(range, r, g, b, [1.08, 1.04, 0.98, 0.0], r_out, g_out, b_out);

        let ([r, g, b], [r_out, g_out, b_out]) = (planes(1), output(2));
        let matrix = film.colour_matrix(range, r, g, b, to_r, to_g, to_b, r_out, g_out, b_out);

        let ([r, g, b], [r_out, g_out, b_out]) = (planes(2), output(3));
        let curve = film.tone_curve(range, r, g, b, 0.6, r_out, g_out, b_out);

        let ([r, g, b], [r_out, g_out, b_out]) = (planes(3), output(4));
        let tone = film.split_tone(range, r, g, b, shadows, highlights, r_out, g_out, b_out);

        let ([r, g, b], [r_out, g_out, b_out]) = (planes(4), output(5));
        let vignette = film.vignette(range, r, g, b, scale, 0.25, r_out, g_out, b_out);

        let ([r, g, b], [r_out, g_out, b_out]) = (planes(5), output(6));
        let grain = film.grain(range, r, g, b, 0.3, 1, r_out, g_out, b_out);

        let [r, g, b] = planes(6);
        let dither = film.dither(range, r, g, b, self.result.write_only());
        [unsharp, expose, matrix, curve, tone, vignette, grain, dither]
            .map(|launch| launch.local([self.group, 1]))
    }

    /// Returns the size of what a launch reads, in bytes.
    pub(crate) fn bytes_read(&self, launch: usize) -> usize {
        let pixel = if launch == 0 { size_of::<u32>() } else { size_of::<[f32; 3]>() };
        self.result.len() * pixel
    }

    /// Returns the size of what a launch writes, in bytes.
    pub(crate) fn bytes_written(&self, launch: usize) -> usize {
        let pixel = if launch == BETWEEN { size_of::<u32>() } else { size_of::<[f32; 3]>() };
        self.result.len() * pixel
    }
}

/// Returns the largest divisor of a width that is a common size of work-groups. Some drivers choose work-groups of many
/// rows, in which the kernels of the film look are slower.
fn divisor(width: usize) -> usize {
    (1..=256).rev().find(|size| width.is_multiple_of(*size)).unwrap_or(1)
}
