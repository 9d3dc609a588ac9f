//! Runs the cases in the folder `files`: inputs of the compiler with the results that are expected. `files/README.md` says
//! how they are written, and how to add one.

mod runner;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    libtest_mimic::run(&arguments, runner::trials()).exit_code()
}
