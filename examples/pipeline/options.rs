//! Command line, shared by the examples `pipeline` and `film_look`.

use std::error::Error;
use std::path::PathBuf;

use crate::picture::Picture;

const PHOTOGRAPH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/astronaut.png");

pub(crate) struct Options {
    flags: Vec<String>,
    pub(crate) photograph: Picture,
}

impl Options {
    /// Reads the command line: any of the flags that the example knows, and the path of a picture.
    pub(crate) fn read(known: &[&str]) -> Result<Self, Box<dyn Error>> {
        let is_flag = |argument: &String| known.contains(&argument.as_str());
        let (flags, paths): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(is_flag);
        let photograph = paths.last().map_or(PHOTOGRAPH.into(), PathBuf::from);
        Ok(Self { flags, photograph: Picture::open(&photograph)? })
    }

    /// Whether a flag was given.
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|given| given == flag)
    }
}
