//! The driver's compiler in a process of its own, for images that are not trusted: one that
//! crashes, exits, hangs or writes nonsense is an error with a time limit, and the application goes
//! on.
//!
//! The process is a *build child*: a program whose `main` calls [`build_child`]. It is started anew
//! for every compile, since drivers keep state that untrusted code may have damaged. It gets one
//! request, finds the device by its identity, as keys know it, and answers with the device's own
//! binary, which the parent loads as it loads one from the disk; or with the error. See [`message`]
//! for the form of both, and [`serve`] for the child's side.
//!
//! What is linked, one child compiles and links. Objects are not shared, nor do they leave the
//! child: they are the compiler's own form of what is not trusted, and not every driver gives them
//! away.

mod message;
mod serve;

use std::env;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{self as std_process, Command};
use std::sync::OnceLock;
use std::time::Duration;

use message::{Answer, Form, Greeting, Request, Task, shortened};

use crate::backend::{self, Source};
use crate::cache::store::KernelRecord;
use crate::device::DeviceInfo;
use crate::error::{Error, ErrorKind, Result};
use crate::process::resources;
use crate::process::{self, Chosen, Ended, program_in};

/// What a child gets to end, unless something else is asked for.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Names the program.
const PROGRAM: &str = "KILN_BUILD_CHILD";

/// Is set in a process that is started as a child, and in what that starts.
const IS_CHILD: &str = "KILN_IS_BUILD_CHILD";

/// The tool of this crate, which is such a program.
const TOOL: &str = "kiln";

/// This program, if it has called [`build_child`].
static OWN: OnceLock<PathBuf> = OnceLock::new();

/// Makes this program one that can compile [untrusted images](crate::Image::untrusted) for itself,
/// in a child process. To be called first in `main`, before anything else, of threads above all:
///
/// ```
/// // The first line of `main`:
/// kiln::build_child();
/// ```
///
/// If the process was started as such a child, this reads one request, has the driver compile it,
/// writes the answer and ends the process. Otherwise it returns at once, and remembers that this
/// program can be started so.
///
/// What a `main` does before comes to pass in each child, too. With `#[tokio::main]` and its like,
/// call it from a `main` of your own and start the executor after it.
///
/// A program that cannot call it, such as a test of libtest's, may have another one do the work:
/// see [`RuntimeBuilder::build_child`](crate::RuntimeBuilder::build_child).
pub fn build_child() {
    if !is_child() {
        if let Ok(path) = env::current_exe() {
            OWN.get_or_init(|| path);
        }
        return;
    }
    let status = match serve::serve() {
        Ok(()) => 0,
        Err(error) => {
            // It has nobody else to tell.
            let _ = writeln!(io::stderr(), "build child: {error}");
            1
        }
    };
    std_process::exit(status);
}

fn is_child() -> bool {
    env::var_os(IS_CHILD).is_some_and(|value| !value.is_empty())
}

/// The children of a runtime.
#[derive(Debug)]
pub(crate) struct Children {
    chosen: Option<Chosen>,
    limit: Duration,
}

/// A device, by what a child finds it again.
pub(super) struct Target<'a> {
    pub(super) info: &'a DeviceInfo,
    /// Which of those that have its identity it is.
    pub(super) position: usize,
}

/// What to compile.
#[derive(Clone, Copy)]
pub(super) enum Order<'a> {
    Build(&'a Source<'a>),
    /// Each to an object, and these to a program.
    Link(&'a [Source<'a>]),
}

/// What a child made.
pub(super) struct Made {
    /// The device's own form of it; empty if the image was that, which the child has tried then.
    pub(super) binary: Vec<u8>,
    pub(super) log: String,
    pub(super) kernels: Vec<KernelRecord>,
}

impl Children {
    /// With the program that an application names; what it does not name, the environment may.
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration) for a path where no program is, with who gave
    /// it.
    pub(crate) fn new(program: Option<PathBuf>, limit: Duration) -> Result<Self> {
        let given = program.map(|path| (path, "RuntimeBuilder::build_child"));
        Ok(Self { chosen: Chosen::find(given, PROGRAM, env::var_os(PROGRAM))?, limit })
    }

    /// Maximum duration of one compile.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Has a child compile. Blocks.
    ///
    /// # Errors
    ///
    /// * What the child tells: that of the compiler.
    /// * [`BuildFailed`](ErrorKind::BuildFailed), with what it wrote, if it crashes or ends without
    ///   an answer: it would again.
    /// * Of circumstance: [`Configuration`](ErrorKind::Configuration) if there is no child, or one
    ///   of another version; [`Driver`](ErrorKind::Driver) if it does not end within the limit or
    ///   writes without end; [`OutOfResources`](ErrorKind::OutOfResources) if it was starved of
    ///   memory, and [`Io`](ErrorKind::Io) if it cannot be started.
    pub(super) fn run(&self, target: &Target<'_>, order: Order<'_>) -> Result<Made> {
        let program = self.program()?;
        let (task, sections) = match order {
            Order::Build(source) => (Task::Build(form(source)), vec![source.code]),
            Order::Link(sources) => {
                let forms = sources.iter().map(form).collect();
                (Task::Link(forms), sources.iter().map(|source| source.code).collect())
            }
        };
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let device = target.info.identity().map(owned).into();
        let request = Request { device, position: target.position, task };
        let mut input = Greeting::own().write();
        let frame = message::seal(&request, &sections).map_err(|error| {
            Error::new(ErrorKind::Io, "the request to a build child cannot be written")
                .with_source(error)
        })?;
        input.extend_from_slice(&frame);
        let mut command = Command::new(&program);
        command.env(IS_CHILD, "1");
        let ended = process::run(command, &input, self.limit)
            .map_err(|error| error.within("the build child"))?;
        read(&program, ended, target.info.backend)
    }

    /// The program that is started.
    fn program(&self) -> Result<PathBuf> {
        if is_child() {
            return Err(configuration(
                "this process was started as a build child, and its `main` has not called \
                 `kiln::build_child()` before all else",
            ));
        }
        if let Some(chosen) = &self.chosen {
            return Ok(chosen.path.clone());
        }
        if let Some(own) = OWN.get() {
            // The file may be another one by now, of a later version.
            let running = Path::new("/proc/self/exe");
            let is_there = cfg!(target_os = "linux") && running.exists();
            return Ok(if is_there { running.to_owned() } else { own.clone() });
        }
        let own = env::current_exe().ok();
        let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned);
        let path = env::var_os("PATH").unwrap_or_default();
        let mut folders = beside.into_iter().chain(env::split_paths(&path));
        folders.find_map(|folder| program_in(&folder, TOOL)).ok_or_else(|| {
            configuration(format!(
                "an untrusted image is compiled by a child process, and there is no program for \
                 that; call `kiln::build_child()` first in `main`, or name a program that does with \
                 `RuntimeBuilder::build_child` or the environment variable {PROGRAM}, or install \
                 the tool `{TOOL}` beside this program or in PATH"
            ))
        })
    }
}

fn form(source: &Source<'_>) -> Form {
    Form {
        format: source.format,
        options: source.options.to_owned(),
        constants: source.constants.to_vec(),
    }
}

/// An error that is gone once somebody has put it right.
fn configuration(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Configuration, message.into()).passing()
}

/// What came of a child.
fn read(program: &Path, ended: Ended, backend: &str) -> Result<Made> {
    let program = program.display();
    let how = process::in_words(ended.status);
    let starved = || {
        let message = format!(
            "the build child `{program}` ran out of memory or of another resource: it {how}"
        );
        Error::new(ErrorKind::OutOfResources, message).with_log(ended.log.as_str())
    };
    let was_starved = !ended.status.success() && process::was_starved(&ended);
    let Some((greeting, frame)) = Greeting::read(&ended.output) else {
        if was_starved {
            return Err(starved());
        }
        let message = format!(
            "`{program}` is no build child: it {how} and did not say that it is one; its `main` has \
             to call `kiln::build_child()` before all else"
        );
        return Err(configuration(message).with_log(ended.log.as_str()));
    };
    if greeting != Greeting::own() {
        let own = Greeting::own();
        return Err(configuration(format!(
            "the build child `{program}` is of {greeting}, and this program of {own}; both have to \
             be of one version"
        )));
    }
    // How it ended does not matter any more: some drivers crash then.
    match message::open(frame, |_: &Answer| 1) {
        Some((Answer::Made { log, kernels }, sections)) => {
            Ok(Made { binary: sections.concat(), log: shortened(log), kernels })
        }
        Some((Answer::Failed(failure), _)) => {
            Err(failure.into_error(|code| backend::driver_code(backend, code)))
        }
        // A child has the limits of this process.
        _ if was_starved || resources::check_for_process().is_err() => Err(starved()),
        _ => {
            let message = format!(
                "the compiler fell over the program: its process, the build child `{program}`, \
                 {how} without an answer"
            );
            Err(Error::new(ErrorKind::BuildFailed, message).with_log(ended.log.as_str()))
        }
    }
}
