//! Command line of both pipeline examples.

use std::error::Error;
use std::path::PathBuf;

use crate::picture::Picture;

const PHOTOGRAPH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/astronaut.png");

pub(crate) struct Options {
    /// Whether to run on every device (`--all`).
    pub(crate) on_all_devices: bool,
    pub(crate) photograph: Picture,
}

impl Options {
    pub(crate) fn read() -> Result<Self, Box<dyn Error>> {
        let mut on_all_devices = false;
        let mut photograph = PathBuf::from(PHOTOGRAPH);
        for argument in std::env::args().skip(1) {
            match argument.as_str() {
                "--all" => on_all_devices = true,
                path => photograph = path.into(),
            }
        }
        Ok(Self { on_all_devices, photograph: Picture::open(&photograph)? })
    }
}
