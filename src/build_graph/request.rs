//! Requests for programs.

use std::fmt;
use std::sync::Arc;

use super::graph::BuildGraph;
use super::object::CompileObject;
use super::option_report::OptionReport;
use super::pending::Build;
use super::plan::BuildPlan;
use super::program::Program;
use super::requested::RequestDetails;
use super::spec::BuildSpec;
use super::specialization::SpecializationValue;
use super::strategy::BuildStrategy;
use crate::device::Device;
use crate::digest::BuildKey;
use crate::error::{Error, Result};
use crate::executor::wait_for;
use crate::process;
use crate::process::threads::no_thread_error;
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
    /// Error of the first invalid setting. Reported when the build is requested.
    first_error: Option<Error>,
}

impl BuildRequest {
    /// Creates a request for the device at position `device` in the graph.
    pub(crate) fn new(graph: Arc<BuildGraph>, device: usize, module: &Module) -> Self {
        let spec = BuildSpec::new(module.clone(), device);
        Self { graph, spec, first_error: None }
    }

    /// Sets the options for the driver's compiler, as OpenCL's `clBuildProgram` defines them. Replaces options
    /// set before by this function.
    ///
    /// They follow the options of the [module](Module::options) and of the environment (`KILN_COMPILE_OPTIONS`,
    /// `KILN_APPEND_COMPILE_OPTIONS`), so that they take effect with compilers that use the last of conflicting
    /// options. [`link_options`](Self::link_options) are separate. The [crate](crate#build-options) describes
    /// all sources.
    ///
    /// The options apply to the module itself. If each module is compiled separately, the libraries that the
    /// module is linked with are compiled without them, with the options of their own modules and of the
    /// environment. If Kiln merges the modules, the merged module is compiled with the options of the requested
    /// module, and those of the libraries have no effect.
    ///
    /// Options that concern source text, such as macros, include directories and the language version, have no
    /// effect on SPIR-V. This includes SPIR-V that is translated to OpenCL C because the device takes no
    /// SPIR-V.
    ///
    /// The program is cached under its module, these options, and the contents of the files that the source
    /// includes. The files are read for each request, on one of Kiln's threads. They include every file that a
    /// directive names, directly or through a macro that stands for a literal. The names are searched in the
    /// directories of `-I`, beside the file that contains the name, in the working directory of the process,
    /// and in the directories below these that a macro of the options stands for. A file is not found if the
    /// preprocessor assembles its name and the directive contains no part of that name. If such a file changes,
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
        self.record_error(result);
        self
    }

    /// Sets the options for the driver's linker, as OpenCL's `clLinkProgram` defines them. Replaces options set
    /// before by this function. They follow the link options of the [module](Module::link_options) and of the
    /// environment (`KILN_LINK_OPTIONS`, `KILN_APPEND_LINK_OPTIONS`).
    ///
    /// If the driver links the objects of several modules, only the linker gets these options. If one call of
    /// the driver compiles and links the program, as for a module without imports and for modules that Kiln
    /// merges, it gets the options for compiling, and then these. Level Zero's linker takes no options: a
    /// program with link options is merged there, also with
    /// [`link_objects`](crate::RuntimeBuilder::link_objects).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, application: kiln::Module) -> kiln::Result<()> {
    /// let exact = rt.build(&application).await?; // linked with registered libraries
    /// let request = rt.build(&application).link_options("-cl-denorms-are-zero");
    /// assert_ne!(request.await?.key(), exact.key());
    /// # Ok(())
    /// # }
    /// ```
    pub fn link_options(mut self, options: &str) -> Self {
        let result = self.spec.set_link_options(options);
        self.record_error(result);
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
        self.record_error(result);
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
        match self.into_plan() {
            Ok((graph, plan)) => {
                let request = RequestDetails::of(&plan, &graph);
                Build::new(graph.request_plan(plan), request)
            }
            Err(error) => Build::failed(error),
        }
    }

    /// Returns the plan of the program.
    ///
    /// # Errors
    ///
    /// The error of the first invalid setting, and those of resolving imports.
    pub(super) fn into_plan(self) -> Result<(Arc<BuildGraph>, BuildPlan)> {
        process::check()?;
        let Self { graph, spec, first_error } = self;
        let plan = match first_error {
            Some(error) => Err(error),
            None => graph.resolve(spec),
        };
        match plan {
            Ok(plan) => Ok((graph, plan)),
            Err(error) => Err(graph.refuse(error)),
        }
    }

    /// Compiles the module to an object for the device, without its libraries and without linking it. The
    /// options and constants of the request apply. The object is cached like a program, and programs that are
    /// linked from the module use the same one.
    ///
    /// # Errors
    ///
    /// The future has the errors of [`CompileObject`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Module;
    ///
    /// # async fn example(rt: kiln::Runtime) -> Result<(), Box<dyn std::error::Error>> {
    /// let library = Module::opencl_c("float tone(float x) { return x * x; }").exporting(["tone"]);
    /// let object = rt.build(&library).object().await?;
    /// std::fs::write("tone.o", object.bytes())?; // for this device and this version of its driver
    /// # Ok(())
    /// # }
    /// ```
    pub fn object(self) -> CompileObject {
        let started = process::check();
        let Self { graph, spec, first_error } = self;
        CompileObject::new(async move {
            started?;
            match first_error {
                Some(error) => Err(graph.refuse(error)),
                None => graph.object(spec).await,
            }
        })
    }

    /// Returns the key of the program, which is the same in every cache.
    ///
    /// Blocks while the files that the source includes are read, and, for a device that takes no OpenCL C,
    /// while the text is translated, unless its translation is cached.
    ///
    /// # Errors
    ///
    /// Fails for invalid settings, and if the translation fails, with the errors of [`Build`].
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
    /// Fields such as `options from KILN_COMPILE_OPTIONS` list the sources of the options. The key covers the
    /// options, but not their sources. Without such a field, the options are those of the request.
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
    /// # async fn example(
    /// #     rt: kiln::Runtime,
    /// #     module: kiln::Module,
    /// #     store: kiln::store::Store,
    /// # ) -> kiln::Result<()> {
    /// let name = rt.build(&module).entry_name()?;
    /// let is_on_disk = store.get(&name).await?.is_some();
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
        if let Some(error) = &self.first_error {
            return Err(error.clone());
        }
        let mut plan = self.graph.resolve(self.spec.clone())?;
        plan.read_files(self.graph.children().limit())?;
        match plan.strategy() {
            BuildStrategy::TranslateFirst => wait_for(self.graph.plan_in_spirv(&plan))
                .unwrap_or_else(|_refused| Err(no_thread_error()))
                .map_err(|error| match OptionReport::of(&plan) {
                    Some(report) => report.explain(error),
                    None => error,
                }),
            _ => Ok(plan),
        }
    }

    fn record_error(&mut self, result: Result<()>) {
        if let Err(error) = result {
            self.first_error.get_or_insert(error);
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
