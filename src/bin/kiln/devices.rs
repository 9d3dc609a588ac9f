//! `kiln devices`.

use futures_lite::future::block_on;
use kiln::{CacheConfig, ImageFormat, Runtime};
use serde::Serialize;

use crate::output::{Ending, Listing, Output, Result, Width};

#[derive(Serialize)]
struct Line<'a> {
    id: usize,
    backend: &'a str,
    name: &'a str,
    driver: &'a str,
    formats: Vec<&'static str>,
    /// Those of which the device links several images to one program.
    links: Vec<&'static str>,
    platform: &'a str,
    kind: String,
    /// Whether it is the one that is used unless another is selected.
    default: bool,
}

pub(crate) fn run(out: &mut Output) -> Result {
    let rt = block_on(Runtime::builder().cache(CacheConfig::disabled()).build())?;
    let lines: Vec<_> = rt
        .devices()
        .iter()
        .map(|device| Line {
            id: device.index(),
            backend: device.backend,
            name: &device.name,
            driver: &device.driver_version,
            formats: device.formats.iter().map(|format| word(*format)).collect(),
            links: device.links.iter().map(|format| word(*format)).collect(),
            platform: &device.platform,
            kind: device.kind.to_string(),
            default: device.index() == rt.device().index(),
        })
        .collect();
    if out.is_json() {
        out.value(&lines)?;
        return Ok(Ending::Well);
    }
    let mut listing = Listing::new(&[
        ("ID", Width::Whole),
        ("BACKEND", Width::Whole),
        ("KIND", Width::Whole),
        ("NAME", Width::Flexible),
        ("DRIVER", Width::Flexible),
        ("FORMATS", Width::Whole),
    ]);
    for line in &lines {
        let mark = if line.default { "*" } else { "" };
        listing.tall_row([
            &format!("{}{mark}", line.id),
            line.backend,
            &line.kind,
            line.name,
            line.driver,
            &line.formats.join(", "),
        ]);
    }
    out.table(listing)?;
    Ok(Ending::Well)
}

/// A format as programs read it.
fn word(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::OpenClC => "opencl-c",
        ImageFormat::SpirV => "spirv",
        ImageFormat::Native => "native",
        _ => "other",
    }
}
