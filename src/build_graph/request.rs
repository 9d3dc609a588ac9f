//! Requests for programs, and the future of a build.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::built::Origin;
use super::graph::BuildGraph;
use super::kernel::Kernel;
use super::outcome::{Answer, Outcome};
use super::plan::{BuildPlan, BuildSpec, BuildStrategy};
use super::program::Program;
use super::shared_outcome::SharedOutcome;
use super::specialization::SpecializationValue;
use crate::device::Device;
use crate::digest::BuildKey;
use crate::error::{Error, Result};
use crate::executor::wait_for;
use crate::process;
use crate::process::threads::no_thread;
use crate::source::module::Module;

/// Request for a program, from [`Runtime::build`](crate::Runtime::build). The build starts when the request is
/// awaited or [started](Self::start).
///
/// # Examples
///
/// ```no_run
/// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
/// let request = rt.build(&module).options("-cl-fast-relaxed-math -D RADIUS=4");
/// let program = request.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing is built until the request is awaited or started"]
pub struct BuildRequest {
    graph: Arc<BuildGraph>,
    spec: BuildSpec,
    /// First setting that was not valid. Reported when the build is requested.
    refused: Option<Error>,
}

impl BuildRequest {
    /// Creates a request for the device at position `device` in the graph.
    pub(crate) fn new(graph: Arc<BuildGraph>, device: usize, module: &Module) -> Self {
        Self { graph, spec: BuildSpec::new(module.clone(), device), refused: None }
    }

    /// Sets the options for the driver's compiler, as OpenCL's `clBuildProgram` defines them, in
    /// place of any set before.
    ///
    /// The options apply to the module itself. Where each module is compiled by itself, the libraries that it
    /// is linked with are compiled without them. Where Kiln merges the modules into one module, all of that
    /// module is compiled with these options.
    ///
    /// Options that concern source text, such as macros, include directories and the language version, have no
    /// effect on SPIR-V. This includes SPIR-V that is translated to OpenCL C because the device takes no
    /// SPIR-V.
    ///
    /// The program is cached under its module, these options, and the contents of the files that the source
    /// includes. The files are read for each request, on one of Kiln's threads. Every file counts that a
    /// directive names, directly or through a macro that stands for a literal. Its name is searched in the
    /// directories of `-I`, beside the file that contains the name, in the working directory of the process,
    /// and in the directories below these that a macro of the options stands for. A file is not seen if the
    /// preprocessor assembles its name and no part of the name stands in the directive: if such a file changes,
    /// set another option, such as a macro of your own.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, blur: kiln::Module) -> kiln::Result<()> {
    /// let narrow = rt.build(&blur).options("-D RADIUS=2").await?;
    /// let wide = rt.build(&blur).options("-D RADIUS=16").await?;
    /// assert_ne!(narrow.key(), wide.key());
    /// # Ok(())
    /// # }
    /// ```
    pub fn options(mut self, options: &str) -> Self {
        let result = self.spec.set_options(options);
        self.note(result);
        self
    }

    /// Sets the specialization constant with this `SpecId` of a SPIR-V module. The value must have the size of
    /// the constant's type. The last value given for an id takes effect.
    ///
    /// An id that the module itself does not have refers to the one linked library that has it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Module;
    ///
    /// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// const RADIUS: u32 = 0; // the `SpecId` in the module
    /// let blur = Module::open("blur.spv").await?;
    /// let program = rt.build(&blur).specialize(RADIUS, 4u32).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn specialize(mut self, id: u32, value: impl SpecializationValue) -> Self {
        self.spec.set_constant(id, value.to_constant());
        self
    }

    /// Sets the specialization constant with this `SpecId` of one of the linked modules, for an id that several
    /// of them have. The last value given takes effect.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Module;
    ///
    /// # async fn example(rt: kiln::Runtime, library: Module, application: Module) -> kiln::Result<()> {
    /// rt.register(&library)?;
    /// // Both modules have a constant with the id 0.
    /// let request = rt.build(&application).specialize(0, 4u32);
    /// let program = request.specialize_in(&library, 0, 0.5f32).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn specialize_in(
        mut self,
        module: &Module,
        id: u32,
        value: impl SpecializationValue,
    ) -> Self {
        self.spec.set_constant_of(module, id, value.to_constant());
        self
    }

    /// Builds for this device of the runtime instead of its default device.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
    /// let start = |device| rt.build(&module).device(device).start();
    /// let builds: Vec<_> = rt.devices().iter().map(start).collect();
    /// for build in builds {
    ///     let program = build.await?;
    ///     println!("ready on {}", program.device());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn device(mut self, device: &Device) -> Self {
        let result = self.graph.position(device).map(|position| self.spec.set_device(position));
        self.note(result);
        self
    }

    /// Starts the build without waiting for it, to warm up or to launch its kernels before it has ended. The
    /// build runs to its end even if the returned handle is dropped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, modules: Vec<kiln::Module>) -> kiln::Result<()> {
    /// let builds: Vec<_> = modules.iter().map(|module| rt.build(module).start()).collect();
    /// // Prepare other things while they are compiled.
    /// for build in builds {
    ///     build.await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn start(self) -> Build {
        if let Err(error) = process::check() {
            return Build::ready(Err(error));
        }
        match self.refused {
            Some(error) => Build::ready(Err(self.graph.refuse(error))),
            None => Build::new(self.graph.ask(self.spec)),
        }
    }

    /// Returns the key of the program, which is the same in every cache.
    ///
    /// Blocks while the files that the source includes are read, and, for a device that takes no OpenCL C,
    /// while the text is translated, unless its translation is cached.
    ///
    /// # Errors
    ///
    /// An error for settings that are not valid, and for a translation that fails, as from [`Build`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
    /// let exact = rt.build(&module).key()?;
    /// let fast = rt.build(&module).options("-cl-fast-relaxed-math").key()?;
    /// assert_ne!(exact, fast);
    /// # Ok(())
    /// # }
    /// ```
    pub fn key(&self) -> Result<BuildKey> {
        self.plan().map(|plan| self.graph.key(&plan))
    }

    /// Returns everything that the key covers, field by field. Two requests with equal fields have equal keys;
    /// if two keys differ, the fields that differ show why.
    ///
    /// # Errors
    ///
    /// As for [`key`](Self::key).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
    /// for (field, value) in rt.build(&module).key_fields()? {
    ///     println!("{field}: {value}"); // compare with the list of another machine
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn key_fields(&self) -> Result<Vec<(String, String)>> {
        self.plan().map(|plan| self.graph.key_fields(&plan))
    }

    /// Returns the name of the program in every store: see [`EntryInfo::name`].
    ///
    /// # Errors
    ///
    /// As for [`key`](Self::key).
    ///
    /// [`EntryInfo::name`]: crate::cache::store::EntryInfo::name
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, module: kiln::Module, store: kiln::store::Store) -> kiln::Result<()> {
    /// let name = rt.build(&module).entry_name()?;
    /// let is_on_disk = store.entries().any(|entry| entry.name() == name);
    /// # Ok(())
    /// # }
    /// ```
    pub fn entry_name(&self) -> Result<String> {
        self.plan().map(|plan| {
            let key = self.graph.key(&plan);
            self.graph.address(&plan, key).name()
        })
    }

    /// Returns the plan under which the program is stored. Blocks.
    fn plan(&self) -> Result<BuildPlan> {
        process::check()?;
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        let mut plan = self.graph.resolve(self.spec.clone())?;
        plan.read_files(self.graph.children().limit())?;
        match plan.way() {
            BuildStrategy::Front => {
                let translating = self.graph.in_spirv(&plan);
                wait_for(translating).unwrap_or_else(|_refused| Err(no_thread()))
            }
            _ => Ok(plan),
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
            .field("module", self.spec.module())
            .field("device", self.graph.device(self.spec.device()))
            .finish_non_exhaustive()
    }
}

/// A requested build: a future of its [`Program`], and a handle that can be cloned.
///
/// # Errors
///
/// * [`BuildFailed`](crate::ErrorKind::BuildFailed), with the compiler's or linker's log, if it refused the
///   program. If the log names a place or a symbol of the program, the failure is kept like a program:
///   requesting it again gives the same error. Otherwise requesting it again compiles again. Without a log if
///   no library, or more than one, exports a symbol that a module imports; requesting the program again
///   resolves it against the libraries registered then.
/// * [`Unsupported`](crate::ErrorKind::Unsupported) if the device does not take the module's format, or does not
///   link it; if a module uses something that the device lacks, or an extension that its compiler may not know;
///   if a module is translated to OpenCL C and that cannot express it; or if clang or llvm-spirv, which
///   translate OpenCL C, is missing.
/// * [`InvalidModule`](crate::ErrorKind::InvalidModule) for text that is empty or holds a NUL.
/// * [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for options, constants or a device that do not fit
///   the module.
/// * [`OutOfResources`](crate::ErrorKind::OutOfResources), [`DeviceLost`](crate::ErrorKind::DeviceLost),
///   [`Panicked`](crate::ErrorKind::Panicked), [`Driver`](crate::ErrorKind::Driver), or
///   [`Io`](crate::ErrorKind::Io) (included files changed meanwhile, or a compiler had no room) for transient
///   failures. They are not kept: requesting the program again builds it again.
/// * [`Configuration`](crate::ErrorKind::Configuration) if OpenCL C is to be translated and a compiler set for
///   that is not a valid compiler.
/// * For [untrusted](crate::Module::untrusted) modules also: `BuildFailed` if the compiler crashes, which is
///   kept; `Driver` if it does not end in time; and [`Configuration`](crate::ErrorKind::Configuration) or
///   [`NoDevice`](crate::ErrorKind::NoDevice) if there is no [build child](crate::build_child), if it is of
///   another version, or if it does not find the device.
///
/// # Cancel safety
///
/// The build does not depend on its handles. Dropping them cancels nothing, and a later request for the same
/// program joins the build or finds its result. Polling again after completion returns the result again.
///
/// # Examples
///
/// ```no_run
/// use kiln::Build;
///
/// # async fn example(rt: kiln::Runtime, module: kiln::Module) -> kiln::Result<()> {
/// let build: Build = rt.build(&module).start();
/// let another = build.clone(); // for another task, which awaits the same build
/// let program = build.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "the build continues, but its program or its error is lost"]
pub struct Build(State);

#[derive(Clone)]
enum State {
    Ready(Result<Program>),
    Building(SharedOutcome<Outcome>),
    Reading(SharedOutcome<Answer>),
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

    /// Returns a kernel of the program that is being built, for launches made before the program exists. If the
    /// program has no kernel of that name, the launches fail.
    ///
    /// Until the program exists, the signatures of its kernels are not known, and a plain `&buffer` counts as
    /// read and written. To keep launches independent that only read the same buffer, pass
    /// [`buffer.read_only()`](crate::Buffer::read_only).
    ///
    /// # Safety
    ///
    /// As for [`Program::kernel`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module, x: kiln::Buffer<f32>) -> kiln::Result<()> {
    /// let build = rt.build(&module).start();
    /// // SAFETY: `blur` accesses x[i] for i below the global size only.
    /// let blur = unsafe { build.kernel("blur") };
    /// let event = rt.queue().submit(blur.launch(x.len()).args((&x,)))?; // runs after the build
    /// event.await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub unsafe fn kernel(&self, name: &str) -> Kernel {
        Kernel::of_build(self, name)
    }

    /// Returns the result, if the build has ended. Does not block.
    pub(crate) fn peek(&self) -> Option<Result<Program>> {
        match &self.0 {
            State::Ready(result) => Some(result.clone()),
            State::Building(flight) => flight.peek().map(completed),
            State::Reading(flight) => Self::new(flight.peek()?).peek(),
        }
    }
}

/// Converts the outcome of an awaited build.
fn completed(outcome: Outcome) -> Result<Program> {
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
            // Replacing the state drops the shared outcome as soon as it is not needed any more.
            *self = match &mut self.0 {
                State::Ready(result) => return Poll::Ready(result.clone()),
                State::Building(flight) => {
                    Self::ready(completed(ready!(Pin::new(flight).poll(context))))
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
