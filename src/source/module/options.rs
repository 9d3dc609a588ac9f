//! Options with which modules are compiled and linked.

use std::sync::Arc;

use kiln_compiler::options::canonical_options;

use super::Module;

impl Module {
    /// Sets the options with which this module is compiled, wherever it is used: alone, with further options of
    /// a request, or as a device library. Replaces options set before.
    ///
    /// These are the first of three sources. The environment variable `KILN_COMPILE_OPTIONS` replaces them,
    /// `KILN_APPEND_COMPILE_OPTIONS` adds to them, and those of [`BuildRequest::options`] follow. The
    /// [crate](crate#build-options) describes how they are combined.
    ///
    /// If the driver links the objects of several modules, each module is compiled with its own options. If
    /// Kiln merges the modules, the merged module is compiled with the options of the requested one, and those
    /// of its libraries have no effect.
    ///
    /// The options belong to this handle and its clones. They are not part of the digest, but the key of a
    /// program covers all options that it is built with. A module that is
    /// [registered](crate::Runtime::register) keeps the options of the first registration until it is
    /// unregistered.
    ///
    /// For a SPIR-V module whose producer recorded its command line, the default is the part of that command
    /// line that the device's compiler needs as well: see [`options`](Self::options).
    ///
    /// Options that contain a NUL character or a quotation that is not closed are an error when a program is
    /// built from the module.
    ///
    /// [`BuildRequest::options`]: crate::BuildRequest::options
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Module;
    ///
    /// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let blur = Module::open("blur.cl").await?.with_options("-D RADIUS=4 -cl-mad-enable");
    /// let exact = rt.build(&blur).await?;
    /// let fast = rt.build(&blur).options("-cl-fast-relaxed-math").await?; // after the module's options
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_options(self, options: impl AsRef<str>) -> Self {
        Self { options: Some(stored_options(options.as_ref())), ..self }
    }

    /// Sets the options with which programs that are requested of this module are linked. Replaces options set
    /// before. A program is linked with the link options of the requested module, not with those of its
    /// libraries.
    ///
    /// The environment variable `KILN_LINK_OPTIONS` replaces them, `KILN_APPEND_LINK_OPTIONS` adds to them, and
    /// those of [`BuildRequest::link_options`](crate::BuildRequest::link_options) follow. Otherwise they are
    /// like [`with_options`](Self::with_options).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Module;
    ///
    /// # async fn example(rt: kiln::Runtime, application: Module) -> kiln::Result<()> {
    /// let application = application.with_link_options("-cl-fast-relaxed-math");
    /// let program = rt.build(&application).await?; // the driver's linker gets the option
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_link_options(self, options: impl AsRef<str>) -> Self {
        Self { link_options: Some(stored_options(options.as_ref())), ..self }
    }

    /// Returns the module's own [options](Self::with_options) for compiling, if there are any.
    ///
    /// By default, these are options that the producer of a SPIR-V module recorded in it. Kiln knows the record
    /// of the instruction set `NonSemantic.Shader.DebugInfo` (versions 100 and 200), whose `DebugEntryPoint`
    /// has a command line. These compilers write it:
    ///
    /// * `clang -g -grecord-command-line`, and
    /// * `llvm-spirv --spirv-debug-info-version=nonsemantic-shader-200`.
    ///
    /// Only those options of the command line count that SPIR-V does not express, or only in part, such as
    /// `-cl-denorms-are-zero` and `-cl-fast-relaxed-math`. If kernels of the module have different command
    /// lines, only the options that all of them have count.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::Module;
    ///
    /// let module = Module::opencl_c("kernel void nothing() {}");
    /// assert_eq!(module.options(), None);
    /// assert_eq!(module.with_options(" -w  -g ").options(), Some("-w -g"));
    /// ```
    #[must_use]
    pub fn options(&self) -> Option<&str> {
        self.options.as_deref().or(self.inner.reflection.recorded_options.as_deref())
    }

    /// Returns the module's own [link options](Self::with_link_options), if they were set.
    ///
    /// # Examples
    ///
    /// ```
    /// use kiln::Module;
    ///
    /// let module = Module::opencl_c("kernel void nothing() {}").with_link_options("-cl-denorms-are-zero");
    /// assert_eq!(module.link_options(), Some("-cl-denorms-are-zero"));
    /// ```
    #[must_use]
    pub fn link_options(&self) -> Option<&str> {
        self.link_options.as_deref()
    }

    /// Whether the module's options are those that its producer recorded.
    pub(crate) fn has_recorded_options(&self) -> bool {
        self.options.is_none() && self.inner.reflection.recorded_options.is_some()
    }
}

/// Returns options in canonical form. Options with a NUL character, which is reported by its position when they
/// are used, stay unchanged.
fn stored_options(options: &str) -> Arc<str> {
    if options.contains('\0') { options.into() } else { Arc::from(&*canonical_options(options)) }
}
