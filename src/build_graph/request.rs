//! Asking for a program, and the future of one.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::graph::{Answer, BuildGraph, Outcome};
use super::plan::{Recipe, SpecializationValue, Wanted, Way};
use super::program::{Kernel, Origin, Program};
use super::shared_outcome::Flight;
use crate::device::Device;
use crate::digest::BuildKey;
use crate::error::{Error, Result};
use crate::executor::wait_for;
use crate::process;
use crate::process::threads::no_thread;
use crate::source::image::Image;

/// A program to be built, from [`Runtime::build`](crate::Runtime::build). Awaiting it, or
/// [`start`](Self::start), asks for the build; until then nothing happens.
#[derive(Clone)]
#[must_use = "nothing is built until the request is awaited or started"]
pub struct BuildRequest {
    graph: Arc<BuildGraph>,
    wanted: Wanted,
    /// The first setting that cannot be used, told when the build is asked for.
    refused: Option<Error>,
}

impl BuildRequest {
    /// For the device at `device` in the graph.
    pub(crate) fn new(graph: Arc<BuildGraph>, device: usize, image: &Image) -> Self {
        Self { graph, wanted: Wanted::new(image.clone(), device), refused: None }
    }

    /// Sets the options for the driver's compiler, as OpenCL's `clBuildProgram` defines them, in
    /// place of any set before.
    ///
    /// They are those of the image itself. The libraries that it is linked with are compiled without,
    /// where each image is compiled by itself; where Kiln makes one module of them, all of it is compiled
    /// with these options.
    ///
    /// Where SPIR-V is translated, because the device takes none, options that speak of source text
    /// are without effect, as they are where it is not: macros, directories to include from, the
    /// version of the language.
    ///
    /// The program is cached under its image, these options, and the contents of the files that the
    /// source includes: they are read for each request, on a thread of Kiln's own. What counts is every
    /// file that a directive names, or a macro as a literal, in the directories of `-I`, beside the file
    /// that names it, in the process's own directory, and in those below that a macro of the options
    /// names. A file whose name the preprocessor puts together, and of which nothing stands in the
    /// directive, is not seen: if it changes, set another option, such as a macro of your own.
    pub fn options(mut self, options: &str) -> Self {
        let result = self.wanted.set_options(options);
        self.note(result);
        self
    }

    /// Sets the specialization constant with this `SpecId` of a SPIR-V image. The value has the
    /// size of the constant's type; the last one given for an id counts.
    ///
    /// An id that the image itself does not have is that of the one linked library that has it.
    pub fn specialize(mut self, id: u32, value: impl SpecializationValue) -> Self {
        self.wanted.set_constant(id, value.to_constant());
        self
    }

    /// Sets the specialization constant with this `SpecId` of one of the linked images, where several
    /// have the id; the last value given counts.
    pub fn specialize_in(
        mut self,
        image: &Image,
        id: u32,
        value: impl SpecializationValue,
    ) -> Self {
        self.wanted.set_constant_of(image, id, value.to_constant());
        self
    }

    /// Builds for this device of the runtime rather than for its default one.
    pub fn device(mut self, device: &Device) -> Self {
        let result = self.graph.position(device).map(|position| self.wanted.set_device(position));
        self.note(result);
        self
    }

    /// Begins the build without waiting for it, to warm up, or to launch its kernels before it has
    /// ended. The build runs to its end whatever becomes of the returned handle.
    pub fn start(self) -> Build {
        if let Err(error) = process::check() {
            return Build::ready(Err(error));
        }
        match self.refused {
            Some(error) => Build::ready(Err(self.graph.refuse(error))),
            None => Build::new(self.graph.ask(self.wanted)),
        }
    }

    /// The key that the program has, or will have, in every cache.
    ///
    /// Where the source includes files, they are read, and for a device that takes no OpenCL C a text
    /// is translated, unless its translation is cached: the call blocks for that long.
    ///
    /// # Errors
    ///
    /// The settings that cannot be used, and a translation that fails, as from [`Build`].
    pub fn key(&self) -> Result<BuildKey> {
        self.recipe().map(|recipe| self.graph.key(&recipe))
    }

    /// What the key covers, field by field: two requests whose fields are equal have equal keys, and
    /// the fields in which they differ tell why their keys do.
    ///
    /// # Errors
    ///
    /// As for [`key`](Self::key).
    pub fn key_fields(&self) -> Result<Vec<(String, String)>> {
        self.recipe().map(|recipe| self.graph.key_fields(&recipe))
    }

    /// The name that its program has in every store: see [`EntryInfo::name`].
    ///
    /// # Errors
    ///
    /// As for [`key`](Self::key).
    ///
    /// [`EntryInfo::name`]: crate::cache::store::EntryInfo::name
    pub fn entry_name(&self) -> Result<String> {
        self.recipe().map(|recipe| {
            let key = self.graph.key(&recipe);
            self.graph.address(&recipe, key).name()
        })
    }

    /// What the program is stored as. Blocks.
    fn recipe(&self) -> Result<Recipe> {
        process::check()?;
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        let mut recipe = self.graph.resolve(self.wanted.clone())?;
        recipe.read_files(self.graph.children().limit())?;
        match recipe.way() {
            Way::Front => {
                let translating = self.graph.in_spirv(&recipe);
                wait_for(translating).unwrap_or_else(|_refused| Err(no_thread()))
            }
            _ => Ok(recipe),
        }
    }

    fn note(&mut self, result: Result<()>) {
        if let Err(error) = result {
            self.refused.get_or_insert(error);
        }
    }
}

impl IntoFuture for BuildRequest {
    type Output = Result<Program>;
    type IntoFuture = Build;

    fn into_future(self) -> Build {
        self.start()
    }
}

impl fmt::Debug for BuildRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BuildRequest")
            .field("image", self.wanted.image())
            .field("device", self.graph.device(self.wanted.device()))
            .finish_non_exhaustive()
    }
}

/// A build that was asked for: a future of its [`Program`], and a handle that can be cloned.
///
/// # Errors
///
/// * [`BuildFailed`](crate::ErrorKind::BuildFailed), with the compiler's or linker's log, if it
///   refused the program. If the log names a place or a symbol of the program, the failure is kept like a
///   program: asking again gives the same error. Otherwise asking again compiles again.
///   Without a log if no library, or more than one, exports what an image imports; asking again
///   looks at the libraries that are registered then.
/// * [`Unsupported`](crate::ErrorKind::Unsupported) if the device does not take the image's format,
///   or does not link it, if a module uses what the device lacks, or an extension that its compiler
///   may not know, if OpenCL C cannot express what a module has, where it is translated, or if clang or
///   llvm-spirv is missing that OpenCL C is translated by,
///   [`InvalidImage`](crate::ErrorKind::InvalidImage) for text that is empty or holds a NUL, and
///   [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for options, constants or a device that
///   do not fit it.
/// * [`OutOfResources`](crate::ErrorKind::OutOfResources),
///   [`DeviceLost`](crate::ErrorKind::DeviceLost), [`Panicked`](crate::ErrorKind::Panicked),
///   [`Driver`](crate::ErrorKind::Driver), or [`Io`](crate::ErrorKind::Io) where included files changed
///   meanwhile or a compiler had no room, for failures of circumstance. They are not kept: asking
///   again builds again.
/// * [`Configuration`](crate::ErrorKind::Configuration) if OpenCL C is to be translated and a compiler
///   that was chosen for that is none.
/// * Of [untrusted](crate::Image::untrusted) images also: `BuildFailed` if the compiler crashes,
///   which is kept; `Driver` if it does not end in time; and
///   [`Configuration`](crate::ErrorKind::Configuration) or
///   [`NoDevice`](crate::ErrorKind::NoDevice) if there is no [build child](crate::build_child), it is
///   of another version, or it does not see the device.
///
/// # Cancel safety
///
/// The build depends on none of its handles. Dropping them cancels nothing, and a later request
/// for the same program joins the build or finds its result. Polling again after the result came
/// gives it again.
#[derive(Clone)]
#[must_use = "the build goes on, but its program or its failure is lost"]
pub struct Build(State);

#[derive(Clone)]
enum State {
    Ready(Result<Program>),
    Building(Flight<Outcome>),
    Reading(Flight<Answer>),
}

impl Build {
    fn new(answer: Answer) -> Self {
        match answer {
            Answer::Kept(outcome) => {
                Self::ready(outcome.map(|built| Program::new(built, Origin::Memory)))
            }
            Answer::Refused(error) => Self::ready(Err(error)),
            Answer::Building(flight) => Self(State::Building(flight)),
            Answer::Reading(flight) => Self(State::Reading(flight)),
        }
    }

    fn ready(result: Result<Program>) -> Self {
        Self(State::Ready(result))
    }

    /// A kernel of the program that is being built, for launches made before it is there. Whether
    /// there is a kernel of that name comes out with the launches.
    ///
    /// Until the program is there, its kernels' signatures are not known, and a plain `&buffer`
    /// counts as read and written. Where launches that only read the same buffer are to stay
    /// independent, pass [`buffer.read()`](crate::Buffer::read).
    ///
    /// # Safety
    ///
    /// As for [`Program::kernel`].
    #[must_use]
    pub unsafe fn kernel(&self, name: &str) -> Kernel {
        Kernel::of_build(self, name)
    }

    /// The result, if the build has ended. Does not block.
    pub(crate) fn peek(&self) -> Option<Result<Program>> {
        match &self.0 {
            State::Ready(result) => Some(result.clone()),
            State::Building(flight) => flight.peek().map(landed),
            State::Reading(flight) => Self::new(flight.peek()?).peek(),
        }
    }
}

/// What a build that was waited for gives.
fn landed(outcome: Outcome) -> Result<Program> {
    outcome.map(|built| {
        let origin = built.origin();
        Program::new(built, origin)
    })
}

impl Future for Build {
    type Output = Result<Program>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Err(error) = process::check() {
            return Poll::Ready(Err(error));
        }
        loop {
            // What a flight keeps need not be kept any longer.
            *self = match &mut self.0 {
                State::Ready(result) => return Poll::Ready(result.clone()),
                State::Building(flight) => {
                    Self::ready(landed(ready!(Pin::new(flight).poll(context))))
                }
                State::Reading(flight) => Self::new(ready!(Pin::new(flight).poll(context))),
            };
        }
    }
}

impl fmt::Debug for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Build").field(&self.peek()).finish()
    }
}
