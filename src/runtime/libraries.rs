//! Device libraries of a runtime.

use std::path::PathBuf;

use super::Runtime;
use crate::build_graph::Attached;
use crate::error::Result;
use crate::process;
use crate::source::library::DeviceLibrary;
use crate::source::module::{Module, OpenModule};
use crate::source::plugin::PluginLibraries;

impl Runtime {
    /// Registers a device library: its exports resolve the imports of every program requested from now on, on
    /// all devices. Returns `false` if it was registered already.
    ///
    /// A library is compiled when a program needs it, once for each device, and linked into each such program.
    /// It may import from other libraries, and from the module that imports from it.
    ///
    /// # Types
    ///
    /// An import has to be declared as its export is defined. Not all drivers check this: NVIDIA's driver
    /// links a call with too few arguments, and PoCL ends the process at the first launch. The types of
    /// imports and exports are therefore compared before anything is linked.
    /// [`BuildFailed`](crate::ErrorKind::BuildFailed) names both types and both modules where they differ: in
    /// the result, in the number of parameters, in the width of a number or a vector, in the address space of
    /// a pointer, in the members of a struct passed by value, or in that one is a function and the other a
    /// variable.
    ///
    /// The comparison does not cover:
    ///
    /// * signs of integers, which SPIR-V does not keep;
    /// * the types that pointers point to, which many compilers of SPIR-V only guess, except for structs of the
    ///   same name;
    /// * OpenCL C that cannot be translated to SPIR-V: without `clang` and `llvm-spirv` (see
    ///   [`RuntimeBuilder::front_end`](crate::RuntimeBuilder::front_end)), or if they do not accept the text. A
    ///   wrong declaration is then handled by the driver;
    /// * native code.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the module exports nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Module;
    /// # async fn example(rt: kiln::Runtime, clouds: kiln::Module) -> kiln::Result<()> {
    /// let noise = Module::opencl_c("float noise(float x) { return sin(x * 91.7f); }");
    /// rt.register(&noise.exporting(["noise"]))?;
    /// let program = rt.build(&clouds.importing(["noise"])).await?; // linked with the library
    /// # Ok(())
    /// # }
    /// ```
    pub fn register(&self, library: &Module) -> Result<bool> {
        process::check()?;
        self.inner.graph.register(library)
    }

    /// Unregisters a device library that was [registered](Self::register) or [preloaded](Self::preload):
    /// programs requested from now on are resolved without it. Returns `false` if it was neither.
    ///
    /// Programs that were linked with the library are evicted from memory, except those that are in use. Builds
    /// that have begun still use it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime, old_noise: kiln::Module,
    /// #     new_noise: kiln::Module) -> kiln::Result<()> {
    /// rt.unregister(&old_noise);
    /// rt.register(&new_noise)?; // programs requested from now on are linked with this one
    /// # Ok(())
    /// # }
    /// ```
    #[expect(clippy::must_use_candidate, reason = "callers may ignore whether it was registered")]
    pub fn unregister(&self, library: &Module) -> bool {
        !process::is_forked() && self.inner.graph.unregister(library)
    }

    /// Preloads a module: its exports replace those of the same name in device libraries, for every program
    /// requested from now on, as `LD_PRELOAD` does for host code. Returns `false` if it was preloaded
    /// already.
    ///
    /// Only the functions and variables that the module exports are replaced, the rest of a library stays in
    /// use. Code of the library itself uses the replacement, too. What the requested module itself defines is
    /// not replaced. [`unregister`](Self::unregister) takes the module back.
    ///
    /// Kiln removes replaced definitions from SPIR-V. It does not rewrite OpenCL C: where a program needs
    /// both a preloaded text and another text that defines the same function, the build fails and names both.
    /// A program that needs nothing else of the other text is linked without it. Calls that the compiler of a
    /// SPIR-V module has inlined keep the old code: mark functions that may be replaced as
    /// `__attribute__((noinline))`.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the module exports nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime, application: kiln::Module) -> kiln::Result<()> {
    /// let faster = kiln::Module::open("faster_tone.spv").await?; // exports `tone`
    /// rt.preload(&faster)?;
    /// let program = rt.build(&application).await?; // its library has nine functions besides `tone`
    /// # Ok(())
    /// # }
    /// ```
    pub fn preload(&self, module: &Module) -> Result<bool> {
        process::check()?;
        self.inner.graph.preload(module)
    }

    /// Attaches the device libraries of a plug-in: their exports resolve imports that no other library
    /// resolves, of every program requested until the returned value is dropped.
    ///
    /// # Errors
    ///
    /// [`Forked`](crate::ErrorKind::Forked) in a forked process.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     rt: kiln::Runtime,
    /// #     plug_in: kiln::libraries::PluginLibraries,
    /// #     application: kiln::Module,
    /// # ) -> kiln::Result<()> {
    /// let attached = rt.attach(&plug_in)?;
    /// let program = rt.build(&application).await?; // may import from the plug-in
    /// drop(attached); // the program stays usable
    /// # Ok(())
    /// # }
    /// ```
    pub fn attach(&self, plug_in: &PluginLibraries) -> Result<Attached> {
        process::check()?;
        Ok(Attached::new(self.inner.graph.clone(), plug_in.clone()))
    }

    /// Returns the device libraries that programs of this runtime are linked with, in the order in which
    /// symbols are searched: preloaded ones, registered ones, those that crates of this program embed, and
    /// those of plug-ins.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(rt: kiln::Runtime) {
    /// for library in rt.libraries() {
    ///     println!("{library}");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn libraries(&self) -> Vec<DeviceLibrary> {
        if process::is_forked() {
            return Vec::new();
        }
        self.inner.graph.device_libraries()
    }

    /// Opens a module and registers it as a device library.
    ///
    /// # Errors
    ///
    /// From the future, as for [`Module::open`] and [`register`](Self::register).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let noise = rt.open_library("shaders/noise.spv").await?;
    /// println!("{} exports {:?}", noise.digest(), noise.exports().collect::<Vec<_>>());
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_library(&self, path: impl Into<PathBuf>) -> OpenModule {
        let (graph, path) = (self.inner.graph.clone(), path.into());
        OpenModule::new(async move {
            let module = Module::open(&path).await?;
            graph.register(&module).map_err(|error| error.within(path.display()))?;
            Ok(module)
        })
    }
}
