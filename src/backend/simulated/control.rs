//! Pauses of simulated devices.

use std::fmt;
use std::sync::Arc;

use super::shared::Shared;

/// Guard that holds back the commands or the builds of a [`Simulator`](super::Simulator) until it is dropped.
///
/// # Examples
///
/// ```
/// # fn main() -> kiln::Result<()> {
/// # smol::block_on(async {
/// # let simulator = kiln::simulated::Simulator::new();
/// # let rt = kiln::Runtime::builder().simulator(&simulator).build().await?;
/// # let module = kiln::Module::opencl_c("kernel void scale(float factor, global float *x) {}");
/// # let program = rt.build(&module).await?;
/// # // SAFETY: the kernel is a closure.
/// # let scale = unsafe { program.kernel("scale")? };
/// # let x = rt.buffer_from(vec![1.0f32; 64]).await?;
/// # let queue = rt.queue();
/// let pause = simulator.pause();
/// let read = queue.read(&x);
/// queue.fill(&x, 2.0)?; // both commands wait
/// drop(pause);
/// assert_eq!(read.await?, [1.0; 64]); // and run in order
/// # Ok(())
/// # })
/// # }
/// ```
#[must_use = "dropping the guard resumes the device immediately"]
pub struct Pause {
    pub(super) shared: Arc<Shared>,
    pub(super) paused: Paused,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Paused {
    Builds,
    Compiles,
    Commands,
}

impl Drop for Pause {
    fn drop(&mut self) {
        match self.paused {
            Paused::Builds => self.shared.builds.open(),
            Paused::Compiles => self.shared.compiles.open(),
            Paused::Commands => {
                self.shared.commands.open();
                self.shared.backlog.run(&self.shared);
            }
        }
    }
}

impl fmt::Debug for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pause").field("paused", &self.paused).finish_non_exhaustive()
    }
}
