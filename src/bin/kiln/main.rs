//! Command-line tool: lists devices, builds ahead of time, checks launches, examines fused kernels, and
//! inspects the cache on disk.
//!
//! The tool uses only the library's public interface.

mod args;
mod bind;
mod build;
mod cache;
mod check;
mod devices;
#[path = "../../process/regular_file.rs"]
mod file;
mod fuse;
mod launch;
mod libraries;
mod manifest;
mod memory;
mod object;
mod options;
mod output;
mod progress;
mod request;

use std::process::ExitCode;
use std::{env, io};

use clap::Parser;
use futures_lite::future::block_on;
use tracing::level_filters::LevelFilter;

use crate::args::{Arguments, Command};
use crate::output::{Failure, Output, Result, note};

fn main() -> ExitCode {
    // Applications may use this tool as the child process that compiles untrusted code.
    kiln::build::build_child();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    // Warnings of the library are relevant to the user of the tool.
    tracing_subscriber::fmt()
        .with_max_level(LevelFilter::WARN)
        .with_writer(io::stderr)
        .without_time()
        .with_target(false)
        // Internal errors would be printed by a macro that panics if standard error is closed.
        .log_internal_errors(false)
        .init();
    let mut out = Output::new(arguments.json);
    let ended = block_on(run(arguments, &mut out)).and_then(|outcome| {
        out.flush()?;
        Ok(outcome)
    });
    match ended {
        Ok(outcome) => outcome.into(),
        Err(failure) => {
            if let Err(unwritten) = failure.report(&mut out) {
                note(format_args!("error: {failure}; and cannot write the output: {unwritten}"));
            }
            failure.into()
        }
    }
}

/// Reports arguments that cannot be used, or prints requested help, as clap does. With JSON, arguments that
/// cannot be used are reported like any failure.
fn refuse(error: &clap::Error) -> ExitCode {
    let asks_for_json =
        env::args_os().take_while(|argument| argument != "--").any(|argument| argument == "--json");
    if error.use_stderr() && asks_for_json {
        let rendered = error.to_string();
        let failure = Failure::usage(rendered.trim_end().trim_start_matches("error: "));
        // A closed output is ignored.
        let _ = failure.report(&mut Output::new(true));
        return failure.into();
    }
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
}

async fn run(arguments: Arguments, out: &mut Output) -> Result {
    let config = arguments.cache_config();
    match arguments.command {
        Command::Devices => devices::run(out).await,
        Command::Build(build) => match &build.output {
            Some(output) => object::run(out, &build, output, config).await,
            None => build::run(out, &build, config).await,
        },
        Command::Warm(arguments) => manifest::warm::run(out, &arguments, config).await,
        Command::Manifest { command } => manifest::run(out, command).await,
        Command::Libraries(settings) => libraries::run(out, &settings).await,
        Command::Check(check) => check::run(out, &check, config).await,
        Command::Fuse(fuse) => fuse::run(out, &fuse, config).await,
        Command::Cache { command } => cache::run(out, command, &config).await,
    }
}
