//! The explorer: devices, builds ahead of time, fused kernels, and what is in the cache on disk.
//!
//! It uses the library's public interface only.

mod args;
mod build;
mod cache;
mod devices;
#[path = "../../process/file.rs"]
#[allow(dead_code, reason = "the library uses what is left")]
mod file;
mod fuse;
mod launch;
mod output;
mod request;

use std::process::ExitCode;
use std::{env, io};

use clap::Parser;
use tracing::level_filters::LevelFilter;

use crate::args::{Arguments, Command};
use crate::output::{Failure, Output, Result, note};

fn main() -> ExitCode {
    // Applications may have it compile what they do not trust.
    kiln::build_child();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
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
            if let Err(unwritten) = failure.tell(&mut out) {
                note(format_args!("error: {failure}; and cannot write the output: {unwritten}"));
            }
            failure.into()
        }
    }
}

/// Tells people of arguments that cannot be used, or what they asked to be told, as clap does; and
/// programs as of any failure.
fn refuse(error: &clap::Error) -> ExitCode {
    let asks_for_json =
        env::args_os().take_while(|argument| argument != "--").any(|argument| argument == "--json");
    if error.use_stderr() && asks_for_json {
        let rendered = error.to_string();
        let failure = Failure::usage(rendered.trim_end().trim_start_matches("error: "));
        // If nobody reads it, there is nobody to tell.
        let _ = failure.tell(&mut Output::new(true));
        return failure.into();
    }
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
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
