//! Process that builds the programs of a source as checked ones, and launches their kernels with random arguments.
//!
//! It writes a line for each step, so that its parent knows what it did last if it ends or hangs.

use kiln::{CheckedProgram, Kernel, Launch, Module, Runtime};

use super::arguments::Arguments;
use super::expected::{Test, tests_of};
use super::report::{Event, Position, reason_of};
use super::sources::{Program, Source};
use crate::random_kernels::launches::Range;

/// Work of a child.
pub(super) struct Work {
    pub(super) source: &'static Source,
    /// Index of the first program, and of its first kernel. Those before were done by another child.
    pub(super) from: (usize, usize),
    /// Programs, by their paths.
    pub(super) files: Vec<String>,
    /// Number of launches of each kernel.
    pub(super) launches: u64,
    pub(super) seed: u64,
}

impl Work {
    pub(super) async fn run(&self, rt: &Runtime) {
        for (at, file) in self.files.iter().enumerate().skip(self.from.0) {
            let first = if at == self.from.0 { self.from.1 } else { 0 };
            let program = self.source.program(file);
            Event::Position(Position { program: at, kernel: first, phase: "build" }).print(file);
            if let Some(checked) = build(rt, &program, first == 0).await {
                self.launch_all(rt, &program, at, first, &checked).await;
            }
        }
    }

    /// Returns a seed for random numbers about a subject.
    fn seed_of(&self, what: &str) -> u64 {
        hash(&format!("{} {} {what}", self.seed, self.source.name))
    }

    /// Launches the kernels of a program, from the index of one of them.
    async fn launch_all(
        &self,
        rt: &Runtime,
        program: &Program,
        at: usize,
        first: usize,
        checked: &CheckedProgram,
    ) {
        let tests = tests_of(&program.text);
        for (index, name) in checked.kernel_names().into_iter().enumerate().skip(first) {
            let what = format!("{}:{name}", program.name);
            let position = |phase| Position { program: at, kernel: index, phase };
            let kernel = match checked.kernel(name) {
                Ok(kernel) => kernel,
                Err(error) => {
                    Event::KernelRefused.print(&reason_of(&error));
                    continue;
                }
            };
            Event::Kernel.print(&what);
            // Some drivers compile a kernel again for each range.
            let range = range_of(&kernel, self.seed_of(&what));
            for launch in 0..self.launches {
                let seed = self.seed_of(&format!("{what} {launch}"));
                let mut rng = fastrand::Rng::with_seed(seed);
                Event::Position(position("check")).print(&what);
                let ran = run(rt, range.launch(&kernel), &kernel, &program.text, &mut rng, || {
                    Event::Position(position("run")).print(&what);
                });
                if let Err(missing) = ran.await {
                    Event::NotGiven.print(&missing);
                    break;
                }
            }
            for test in tests.iter().filter(|test| test.kernel == name) {
                Event::Position(position("run")).print(&what);
                check(rt, program, &kernel, test).await;
            }
        }
    }
}

/// Returns a random range for a kernel.
fn range_of(kernel: &Kernel, seed: u64) -> Range {
    let mut rng = fastrand::Rng::with_seed(seed);
    let needs_local = rng.bool();
    match kernel.work_group().and_then(|group| group.required) {
        Some(required) => Range::of_groups(&mut rng, required),
        None => Range::random(&mut rng, needs_local),
    }
}

/// Returns a number for a text, the same on all machines.
fn hash(text: &str) -> u64 {
    // FNV-1a
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Builds a program for checked launches. If it is refused, tells whether the device's compiler takes it.
/// `is_counted` tells whether the outcome is to be reported.
async fn build(rt: &Runtime, program: &Program, is_counted: bool) -> Option<CheckedProgram> {
    let module = Module::opencl_c(&program.text).with_label(&program.name);
    let request = || rt.build(&module).options(&program.options);
    let error = match request().checked().await {
        Ok(checked) => {
            if is_counted {
                Event::Built.print(&program.name);
            }
            return Some(checked);
        }
        Err(error) => error,
    };
    let errors =
        error.build_log().unwrap_or_default().lines().filter(|line| line.contains("error:"));
    let errors = errors.take(3).collect::<Vec<_>>().join(" | ");
    let reason = format!("{}: {} | {errors}", program.name, error.summary().replace('\n', " | "));
    if error.to_string().contains("cannot be checked") {
        Event::KernelRefused.print(&reason_of(&error));
    } else if request().await.is_ok() {
        Event::Untranslated.print(&reason);
    } else {
        Event::Invalid.print(&reason);
    }
    None
}

/// Runs a test that the source states. If it has other results, tells whether it has them without checks, too.
async fn check(rt: &Runtime, program: &Program, kernel: &Kernel, test: &Test) {
    let outcome = |ran: kiln::Result<Option<String>>| match ran {
        Ok(None) => Ok(()),
        Ok(Some(difference)) => Err(difference),
        Err(error) => Err(error.to_string().replace('\n', " | ")),
    };
    let Err(problem) = outcome(test.run(rt, kernel).await) else {
        return Event::Expected.print("");
    };
    let problem = format!("{} `{}`: {problem}", program.name, test.name);
    let module = Module::opencl_c(&program.text);
    let unchecked = rt.build(&module).options(&program.options).await;
    let ran = match unchecked {
        // SAFETY: the arguments are those that the source states for the kernel.
        Ok(program) => match unsafe { program.kernel(kernel.name()) } {
            Ok(kernel) => outcome(test.run(rt, &kernel).await),
            Err(error) => Err(error.to_string()),
        },
        Err(error) => Err(error.to_string()),
    };
    match ran {
        Ok(()) => Event::Unexpected.print(&problem),
        Err(_) => Event::Driver.print(&problem),
    }
}

/// Adds random arguments to a launch, runs it, and compares the bytes around its buffers. `before` is called before it is
/// submitted.
///
/// # Errors
///
/// Returns the type of a parameter for which there is no argument.
async fn run(
    rt: &Runtime,
    mut launch: Launch,
    kernel: &Kernel,
    text: &str,
    rng: &mut fastrand::Rng,
    before: impl Fn(),
) -> Result<(), String> {
    let mut arguments = Arguments::new(rt, rng, text);
    for parameter in kernel.params().ok_or("the signature is not known")? {
        let added = arguments.add(launch, parameter).await;
        launch = added.ok_or_else(|| parameter.type_name.clone().unwrap_or_default())?;
    }
    let memory = arguments.memory;
    match launch.verdict().await {
        Ok(verdict) if verdict.is_proven() => Event::Proven.print(""),
        Ok(_) => Event::Guarded.print(""),
        Err(error) => {
            Event::Refused.print(&reason_of(&error));
            let submitted = match rt.queue().submit(launch) {
                Ok(event) => event.await,
                Err(error) => Err(error),
            };
            assert!(submitted.is_err(), "it ran, although the verdict is {error}");
            return Ok(());
        }
    }
    before();
    let ran = match rt.queue().submit(launch) {
        Ok(event) => event.await,
        Err(error) => Err(error),
    };
    match ran {
        Ok(()) => Event::Executed.print(""),
        Err(error) => Event::Failed.print(&error.to_string().replace('\n', " | ")),
    }
    for memory in memory {
        memory.check(rt).await;
    }
    Ok(())
}
