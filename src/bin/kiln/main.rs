//! The explorer: devices, builds ahead of time, fused kernels, and what is in the cache on disk.
//!
//! It uses the library's public interface only.

mod args;
mod build;
mod cache;
mod devices;
#[path = "../../file.rs"]
#[allow(dead_code, reason = "the library uses what is left")]
mod file;
mod fuse;
mod launch;
mod output;
mod request;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use tracing::level_filters::LevelFilter;

use crate::args::{Arguments, Command};
use crate::output::{Output, Result, note};

fn main() -> ExitCode {
    // Applications may have it compile what they do not trust.
    kiln::build_child();
    let arguments = Arguments::parse();
    // What the library warns of is news for whoever runs this.
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::WARN)
        .with_writer(io::stderr)
        .without_time()
        .with_target(false)
        // It would be told by a macro that panics once nobody reads.
        .log_internal_errors(false)
        .init();
    let mut out = Output::new(arguments.json);
    let ended = run(arguments, &mut out).and_then(|ending| {
        out.flush()?;
        Ok(ending)
    });
    match ended {
        Ok(ending) => ending.into(),
        Err(failure) => {
            note(format_args!("error: {failure}"));
            failure.into()
        }
    }
}

fn run(arguments: Arguments, out: &mut Output) -> Result {
    let config = arguments.cache_config();
    match arguments.command {
        Command::Devices => devices::run(out),
        Command::Build(build) => build::run(out, &build, config),
        Command::Fuse(fuse) => fuse::run(out, &fuse, config),
        Command::Cache { command } => cache::run(out, command, &config),
    }
}
