//! `kiln libraries`: lists the device libraries.

use kiln::CacheConfig;
use kiln::libraries::DeviceLibrary;
use serde::Serialize;

use crate::args::Settings;
use crate::output::{Listing, Outcome, Output, Result, Width};
use crate::request::Setup;

#[derive(Serialize)]
struct Line {
    source: String,
    format: Option<String>,
    digest: Option<String>,
    exports: Vec<String>,
    /// Reason why the library is not valid.
    error: Option<String>,
}

impl From<&DeviceLibrary> for Line {
    fn from(library: &DeviceLibrary) -> Self {
        let module = library.module();
        Self {
            source: library.source().to_string(),
            format: module.as_ref().ok().map(|module| module.format().to_string()),
            digest: module.as_ref().ok().map(|module| module.digest().to_string()),
            exports: library.exports().into_iter().map(str::to_owned).collect(),
            error: module.err().map(|error| error.to_string()),
        }
    }
}

pub(crate) async fn run(out: &mut Output, settings: &Settings) -> Result {
    let setup = Setup::new(settings, CacheConfig::disabled(), &[]).await?;
    let lines: Vec<_> = setup.rt.libraries().iter().map(Line::from).collect();
    if out.is_json() {
        out.value(&lines)?;
    } else {
        out.table(listing(&lines))?;
    }
    Ok(Outcome::success_if(lines.iter().all(|line| line.error.is_none())))
}

fn listing(lines: &[Line]) -> Listing {
    let mut listing = Listing::new(&[
        ("SOURCE", Width::Flexible),
        ("FORMAT", Width::Whole),
        ("DIGEST", Width::Whole),
        ("EXPORTS", Width::Flexible),
    ]);
    for line in lines {
        let short = |digest: &String| digest.chars().take(12).collect();
        let exports = || line.exports.join(", ");
        listing.row([
            line.source.clone(),
            line.format.clone().unwrap_or_default(),
            line.digest.as_ref().map(short).unwrap_or_default(),
            line.error.clone().unwrap_or_else(exports),
        ]);
    }
    listing
}
