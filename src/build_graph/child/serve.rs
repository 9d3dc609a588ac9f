//! The child's side: reads one request from standard input, and writes one answer to the original standard
//! output.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;

use super::message::{
    Answer, Failure, Greeting, ModuleHeader, Request, Task, decode_frame, encode_frame,
};
use crate::backend::{self, Device, Program, Source};
use crate::build_graph::kernel_record::record;
use crate::device::ModuleFormat;
use crate::error::{Error, ErrorKind, Result, catch_panic};
use crate::process::resources;
use crate::process::threads;

/// Handles one request. Errors concern only the communication with the parent; other errors are part of the
/// answer.
pub(super) fn serve() -> io::Result<()> {
    let mut answers = own_output()?;
    end_with_parent();
    answers.write_all(&Greeting::own().write())?;
    answers.flush()?;
    let mut input = Vec::new();
    io::stdin().read_to_end(&mut input)?;
    let invalid_data = |message| io::Error::new(io::ErrorKind::InvalidData, message);
    let (parent, frame) = Greeting::read(&input).ok_or_else(|| {
        invalid_data("a build child must be started by Kiln, with a request on its standard input")
    })?;
    if parent != Greeting::own() {
        // The greeting has been sent; the parent reports the mismatch.
        return Ok(());
    }
    let (request, sections) = decode_frame(frame, Request::sections)
        .ok_or_else(|| invalid_data("the request is not complete"))?;
    // A main thread's stack may be too small for a compiler.
    let compiled = threads::call("kiln-compile", || catch_panic(|| compile(&request, &sections)));
    let compiled = compiled.and_then(|compiled| compiled);
    let (answer, binary) = match compiled {
        Ok((program, binary)) => {
            let kernels = program.kernels().iter();
            let kernels = kernels.map(|kernel| record(kernel.name(), kernel.parameters()));
            let log = program.build_log().to_owned();
            (Answer::Made { log, kernels: kernels.collect() }, binary)
        }
        Err(error) => (Answer::Failed(Failure::of(&error)), Vec::new()),
    };
    answers.write_all(&encode_frame(&answer.shortened(), &[&binary])?)?;
    answers.flush()
}

/// Returns the original standard output, reserved for the answer. Output of drivers is redirected to standard
/// error.
#[cfg(unix)]
fn own_output() -> io::Result<File> {
    use std::os::fd::AsFd;
    let own = io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdout(io::stderr())?;
    Ok(File::from(own))
}

/// Returns standard output. A driver that prints to it corrupts the answer, which the checksum detects.
#[cfg(windows)]
fn own_output() -> io::Result<File> {
    use std::os::windows::io::AsHandle;
    Ok(File::from(io::stdout().as_handle().try_clone_to_owned()?))
}

/// Disables core dumps on Unix. On Linux, also makes the child end with its parent and be the first to be
/// killed if memory runs out. The child also works if the system does not allow these settings.
fn end_with_parent() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    }
}

/// Compiles the modules of a request. Returns the program and its binary.
fn compile(request: &Request, sections: &[&[u8]]) -> Result<(Arc<dyn Program>, Vec<u8>)> {
    fn source<'a>(header: &'a ModuleHeader, code: &'a [u8]) -> Source<'a> {
        let ModuleHeader { format, options, constants } = header;
        Source { format: *format, code, options, constants }
    }
    resources::check_for_driver()?;
    let device = open_device(request)?;
    resources::check_for_process()?;
    let program = match (&request.task, sections) {
        (Task::Build(header), [code]) => device.build(&source(header, code))?,
        (Task::Link { modules, options }, sections) if modules.len() == sections.len() => {
            let compile_object =
                |(header, code): (&ModuleHeader, &&[u8])| device.compile(&source(header, code));
            let objects: Vec<_> =
                modules.iter().zip(sections).map(compile_object).collect::<Result<_>>()?;
            let objects: Vec<_> = objects.iter().map(|object| &**object).collect();
            device.link(&objects, options)?
        }
        _ => return Err(Error::invalid("a request must have one section for each module")),
    };
    let binary = match &request.task {
        // The parent already has the binary.
        Task::Build(header) if header.format == ModuleFormat::Native => Vec::new(),
        _ => program.binary().map_err(|error| {
            error.within("the build child cannot return a program without its binary")
        })?,
    };
    Ok((program, binary))
}

/// Opens the device that a request names.
fn open_device(request: &Request) -> Result<Arc<dyn Device>> {
    let field_value = |name: &str| {
        let field = request.device.iter().find(|(known, _)| known == name);
        field.map(|(_, value)| value.as_str()).unwrap_or_default()
    };
    let name = field_value("backend");
    let backend = backend::drivers().into_iter().find(|backend| backend.name() == name);
    let backend = backend.ok_or_else(|| {
        let message = format!("the build child has no backend `{name}`");
        Error::new(ErrorKind::NoDevice, message)
    })?;
    let adapters = backend.adapters().map_err(|error| error.within("the build child"))?;
    let is_requested = |identity: [(&str, &str); 9]| {
        identity.iter().copied().eq(request.device.iter().map(|(name, value)| (&**name, &**value)))
    };
    let equal = adapters.iter().filter(|adapter| is_requested(adapter.info().identity()));
    // If there are fewer equal devices than the parent has seen, any of them will do.
    let adapter = equal.take(request.position + 1).last().ok_or_else(|| {
        let seen: Vec<_> = adapters
            .iter()
            .map(|adapter| {
                let info = adapter.info();
                format!("`{}` (driver {})", info.name, info.driver_version)
            })
            .collect();
        let (name, version) = (field_value("device"), field_value("driver version"));
        Error::new(
            ErrorKind::NoDevice,
            format!(
                "the build child does not find `{name}` (driver {version}), but {}; it must run \
                 with the drivers and the environment of the application",
                if seen.is_empty() { "no device".to_owned() } else { seen.join(", ") }
            ),
        )
    })?;
    adapter.open()
}
