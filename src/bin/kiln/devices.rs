//! `kiln devices`: lists the devices.

use kiln::devices::ModuleFormat;
use kiln::{CacheConfig, Runtime};
use serde::Serialize;

use crate::output::{Listing, Outcome, Output, Result, Width};

#[derive(Serialize)]
struct Line<'a> {
    id: usize,
    backend: &'a str,
    name: &'a str,
    driver: &'a str,
    /// Files with which the driver compiles.
    compiler: &'a str,
    formats: Vec<&'static str>,
    /// Formats whose modules the device can link to one program.
    links: Vec<&'static str>,
    platform: &'a str,
    kind: String,
    vendor: &'a str,
    /// Common name of the driver, which selects it.
    common_name: Option<&'static str>,
    /// Whether the device is used unless another is selected.
    default: bool,
}

/// An API through which no device was found.
#[derive(Serialize)]
struct Absent<'a> {
    backend: &'a str,
    /// Reason why no device was found.
    unavailable: String,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Entry<'a> {
    Device(&'a Line<'a>),
    Absent(Absent<'a>),
}

pub(crate) async fn run(out: &mut Output) -> Result {
    let rt = Runtime::builder().cache(CacheConfig::disabled()).build().await?;
    let lines: Vec<_> = rt
        .devices()
        .iter()
        .map(|device| Line {
            id: device.index(),
            backend: device.backend,
            name: &device.name,
            driver: &device.driver_version,
            compiler: &device.compiler,
            formats: device.formats.iter().map(|format| word(*format)).collect(),
            links: device.links.iter().map(|format| word(*format)).collect(),
            platform: &device.platform,
            kind: device.kind.to_string(),
            vendor: &device.vendor,
            common_name: device.common_name(),
            default: device.index() == rt.device().index(),
        })
        .collect();
    let unavailable = rt.unavailable().iter();
    if out.is_json() {
        let absent = unavailable
            .map(|(backend, error)| Absent { backend, unavailable: error.to_string() })
            .map(Entry::Absent);
        let entries: Vec<_> = lines.iter().map(Entry::Device).chain(absent).collect();
        out.value(&entries)?;
        return Ok(Outcome::Success);
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
    let mut absent = Listing::of_pairs();
    for (backend, error) in unavailable {
        absent.tall_row([format!("{backend} is not available:"), error.to_string()]);
    }
    out.table(absent)?;
    Ok(Outcome::Success)
}

/// Returns the name of a format in JSON.
fn word(format: ModuleFormat) -> &'static str {
    match format {
        ModuleFormat::OpenClC => "opencl-c",
        ModuleFormat::SpirV => "spirv",
        ModuleFormat::Native => "native",
        _ => "other",
    }
}
