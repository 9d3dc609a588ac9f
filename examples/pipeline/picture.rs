//! Pictures as PNG files.

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;

/// Picture of 8-bit RGBA pixels, row by row.
pub(crate) struct Picture {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) pixels: Vec<[u8; 4]>,
}

impl Picture {
    /// Reads a PNG file of any colour type.
    pub(crate) fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let mut decoder = png::Decoder::new(BufReader::new(file));
        decoder.set_transformations(png::Transformations::normalize_to_color8());
        let mut reader = decoder.read_info()?;
        let mut bytes = vec![0; reader.output_buffer_size().ok_or("the picture is too large")?];
        let info = reader.next_frame(&mut bytes)?;
        let samples = bytes[..info.buffer_size()].chunks_exact(info.color_type.samples());
        let pixels = samples.map(|pixel| match *pixel {
            [grey] => [grey, grey, grey, 255],
            [grey, alpha] => [grey, grey, grey, alpha],
            [r, g, b] => [r, g, b, 255],
            [r, g, b, alpha, ..] => [r, g, b, alpha],
            [] => unreachable!("a pixel has samples"),
        });
        Ok(Self {
            width: info.width as usize,
            height: info.height as usize,
            pixels: pixels.collect(),
        })
    }

    /// Writes an RGBA PNG file.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Box<dyn Error>> {
        let file = BufWriter::new(File::create(path)?);
        let mut encoder = png::Encoder::new(file, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgba);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(self.pixels.as_flattened())?;
        Ok(writer.finish()?)
    }

    /// Returns the largest difference of a sample between two pictures of the same size.
    pub(crate) fn difference(&self, other: &Self) -> u8 {
        let pairs = self.pixels.as_flattened().iter().zip(other.pixels.as_flattened());
        pairs.map(|(&a, &b)| a.abs_diff(b)).max().unwrap_or(0)
    }

    /// Returns the pixels with a margin of one pixel on each side, which repeats those at the border.
    #[allow(dead_code, reason = "only one of the examples uses it")]
    pub(crate) fn padded(&self) -> Vec<[u8; 4]> {
        let Self { width, height, pixels } = self;
        let mut padded = Vec::with_capacity((width + 2) * (height + 2));
        for y in 0..height + 2 {
            let row = &pixels[y.saturating_sub(1).min(height - 1) * width..][..*width];
            padded.push(row[0]);
            padded.extend_from_slice(row);
            padded.push(row[width - 1]);
        }
        padded
    }
}
