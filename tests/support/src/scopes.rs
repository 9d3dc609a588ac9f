//! Launches that can be fused, and runtimes that fuse all launches for which this is legal.

use kiln::fusion::{FusionOutcome, Unfused};
use kiln::{Buffer, Event, FusionMode, FusionScope, Kernel, Module, Queue, Runtime};

/// Module of `data/fusion.cl`.
pub const FUSION: &[u8] = include_bytes!("../../data/fusion.spv");

/// Module of `data/patterns.cl`.
pub const PATTERNS: &[u8] = include_bytes!("../../data/patterns.spv");

/// Builds kernels of a module.
pub async fn kernels<const N: usize>(rt: &Runtime, module: &[u8], names: [&str; N]) -> [Kernel; N] {
    let module = Module::spirv(module).expect("it is a module");
    let program = rt.build(&module).await.expect("it builds");
    // SAFETY: the kernels access only elements of their work-item, or of its neighbours. The buffers of the
    // suites contain all of these.
    names.map(|name| unsafe { program.kernel(name) }.expect("it exists"))
}

/// Builds kernels of an OpenCL C source, which satisfy the same conditions.
pub async fn kernels_of_text<const N: usize>(
    rt: &Runtime,
    text: &str,
    names: [&str; N],
) -> [Kernel; N] {
    let program = crate::program(rt, text).await;
    // SAFETY: as above.
    names.map(|name| unsafe { program.kernel(name) }.expect("it exists"))
}

/// Whether a GPU is imitated. Intel's compiler for CPUs builds the stand-ins for its kernels, without the
/// options that keep launches separate.
pub fn is_imitated() -> bool {
    std::env::var_os("KILN_STAND_INS_OPENCL").is_some()
}

/// Creates a runtime for the same device, whose scopes fuse all launches for which this is legal.
pub async fn always(rt: &Runtime) -> Runtime {
    with_mode(rt, FusionMode::Always).await
}

/// Returns a runtime with another mode of fusion, on the same device.
pub async fn with_mode(rt: &Runtime, mode: FusionMode) -> Runtime {
    let builder = crate::builder().fusion(mode);
    builder.device(rt.device().index().to_string()).build().await.expect("the device exists")
}

/// Creates a buffer with these numbers, and two empty ones of the same length.
pub async fn buffers(rt: &Runtime, numbers: &[f32]) -> [Buffer<f32>; 3] {
    let none = || rt.buffer(numbers.len()).expect("there is memory");
    [rt.buffer_from(numbers.to_vec()).await.expect("there is memory"), none(), none()]
}

/// Two launches, of which the second uses the output of the first, and one more kernel.
pub struct Chain {
    pub queue: Queue,
    pub scale: Kernel,
    pub offset: Kernel,
    pub in_place: Kernel,
    pub numbers: Vec<f32>,
    pub factor: f32,
    pub src: Buffer<f32>,
    pub tmp: Buffer<f32>,
    pub dst: Buffer<f32>,
}

impl Chain {
    pub async fn new(rt: &Runtime, numbers: Vec<f32>, factor: f32) -> Self {
        let names = ["scale", "offset", "in_place"];
        let [scale, offset, in_place] = kernels(rt, FUSION, names).await;
        let [src, tmp, dst] = buffers(rt, &numbers).await;
        Self { queue: rt.queue(), scale, offset, in_place, numbers, factor, src, tmp, dst }
    }

    pub fn first(&self, scope: &FusionScope) -> Event {
        let launch = self.scale.launch(self.numbers.len());
        scope.submit(launch.args((&self.src, &self.tmp, self.factor))).expect("it fits")
    }

    pub fn second(&self, scope: &FusionScope) -> Event {
        let launch = self.offset.launch(self.numbers.len());
        scope.submit(launch.args((&self.tmp, &self.dst, 1.0f32))).expect("it fits")
    }

    /// Begins a scope with both launches.
    pub fn begin(&self) -> (FusionScope, [Event; 2]) {
        let scope = self.queue.start_fusion();
        let launches = [self.first(&scope), self.second(&scope)];
        (scope, launches)
    }

    /// Returns the expected output of the first launch.
    pub fn scaled(&self) -> Vec<f32> {
        self.numbers.iter().map(|n| n * self.factor).collect()
    }

    /// Returns the expected output of the second launch.
    pub fn result(&self) -> Vec<f32> {
        self.scaled().iter().map(|n| n + 1.0).collect()
    }
}

/// Whether launches ran one by one because their kernel was not built in time. Scopes do not wait for long.
pub fn is_overdue(outcome: &FusionOutcome) -> bool {
    matches!(outcome, FusionOutcome::Unfused { why: Unfused::Overdue { .. }, .. })
}
