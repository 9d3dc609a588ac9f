//! Settings of the child processes that compile.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::RuntimeBuilder;
use crate::build_graph::{Children, CompileProcesses, ProcessPool};
use crate::counters::Counters;
use crate::error::Result;

impl RuntimeBuilder {
    /// Sets the program that compiles [untrusted modules](crate::Module::untrusted) as a child process, and that is
    /// started as a [compile process](Self::compile_processes). Its
    /// `main` calls [`build_child`](crate::build::build_child). It can also be a script that starts such a program,
    /// for example in a sandbox. The script must pass on standard input and output and the environment
    /// variable `KILN_IS_BUILD_CHILD`, by which the program detects that it is a child, and must give it
    /// access to the driver and the device.
    ///
    /// Without this setting, the environment variable `KILN_BUILD_CHILD` names the program. If that is not set,
    /// it is the current program if it has called the function, and otherwise the tool `kiln` beside the
    /// current program or in `PATH`. The program has to be of the same version of Kiln, and gets the
    /// environment of this process. A path without a program is an error when the runtime is built; the error
    /// names the setting that gave the path.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # async fn example(uploaded: kiln::Module) -> kiln::Result<()> {
    /// let child = "/usr/libexec/renderer-compiler"; // its `main` calls `kiln::build::build_child`
    /// let rt = Runtime::builder().build_child(child).build().await?;
    /// let program = rt.build(&uploaded.untrusted()).await?; // compiled by the child
    /// # Ok(())
    /// # }
    /// ```
    pub fn build_child(mut self, program: impl Into<PathBuf>) -> Self {
        self.build_child = Some(program.into());
        self
    }

    /// Sets the maximum duration of one child process for an untrusted module, and of each compile in a
    /// [compile process](Self::compile_processes). The default is 60 seconds. After that the child is
    /// killed, together with all processes that it has started, and the build fails with
    /// [`Driver`](crate::ErrorKind::Driver).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use kiln::Runtime;
    /// # async fn example(uploaded: kiln::Module) -> kiln::Result<()> {
    /// let limit = Duration::from_secs(10);
    /// let rt = Runtime::builder().build_child_limit(limit).build().await?;
    /// let program = rt.build(&uploaded.untrusted()).await?; // fails if it takes longer
    /// # Ok(())
    /// # }
    /// ```
    pub fn build_child_limit(mut self, limit: Duration) -> Self {
        self.build_child_limit = limit;
        self
    }

    /// Sets the maximum number of processes that compile programs: a number, of which 0 turns them off, or
    /// [`CompileProcesses::Cores`]. Without this setting, the environment variable `KILN_COMPILE_PROCESSES` decides:
    /// `off`, `cores` or a number. By default there are none: many drivers compile hardly faster with several
    /// threads, but a process takes memory and about as long to start as to compile a few programs.
    ///
    /// The processes are [build children](Self::build_child). One is started for each 16 builds that wait to be
    /// compiled, up to this number. Until one is ready, threads compile, up to
    /// [`compile_workers`](Self::compile_workers) at a time; from then on, threads only load these programs, because
    /// loads would wait for a compile inside the driver. A process compiles one program at a time, from OpenCL C or
    /// SPIR-V, and this process loads the binary. It ends after 30 seconds without a program, when it takes more than
    /// 1 GiB of memory, and with the runtime or the application, however that ends. Objects, programs that the driver
    /// links, native modules and simulated devices need no process. Untrusted modules have child processes of their
    /// own.
    ///
    /// If a process crashes, is killed, or exceeds the [limit](Self::build_child_limit), another process tries the
    /// program once more; if that fails as well, the build fails like that of an untrusted module. If no process can
    /// be started, threads compile, and a warning states the reason. On other systems than Unix, threads always
    /// compile.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Runtime;
    /// use kiln::build::CompileProcesses;
    ///
    /// fn main() -> kiln::Result<()> {
    ///     kiln::build::build_child(); // this program is also the one of the processes
    ///     smol::block_on(async {
    ///         let rt = Runtime::builder().compile_processes(CompileProcesses::Cores).build().await?;
    ///         let rt = Runtime::builder().compile_processes(4).build().await?; // at most four
    ///         Ok(())
    ///     })
    /// }
    /// ```
    pub fn compile_processes(mut self, number: impl Into<CompileProcesses>) -> Self {
        self.compile_processes = Some(number.into());
        self
    }

    /// Sets the niceness of compile processes, in addition to that of this process: from 0, the default, to 19, which
    /// leaves the processors to everything else. Greater numbers count as 19.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use kiln::Runtime;
    /// # use kiln::build::CompileProcesses;
    /// # async fn example() -> kiln::Result<()> {
    /// // A service keeps answering requests while it compiles.
    /// let builder = Runtime::builder().compile_processes(CompileProcesses::Cores);
    /// let rt = builder.compile_niceness(10).build().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn compile_niceness(mut self, niceness: u8) -> Self {
        self.compile_niceness = niceness;
        self
    }

    /// Returns the number of compile processes of this builder or, if it has none, of the environment.
    pub(super) fn process_number(&self) -> Result<CompileProcesses> {
        self.compile_processes.map_or_else(CompileProcesses::from_environment, Ok)
    }

    /// Creates the compile processes. Fails if this builder sets them and there is no program for them.
    pub(super) fn process_pool(
        &self,
        children: &Arc<Children>,
        counters: &Arc<Counters>,
    ) -> Result<Option<ProcessPool>> {
        let (number, niceness) = (self.process_number()?, self.compile_niceness);
        let pool = ProcessPool::new(number, niceness, Arc::clone(children), Arc::clone(counters));
        if pool.is_some() && self.compile_processes.is_some() {
            children.program()?;
        }
        Ok(pool)
    }
}
