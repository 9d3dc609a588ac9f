//! Chains on a device.

use fastrand::Rng;
use kiln::devices::{DeviceKind, ModuleFormat};
use kiln::{Buffer, Kernel, Launch, Local, Module, Program, Runtime};

use super::{Chain, Contents, Step, Value};

fn contents(contents: Contents, random: &mut Rng) -> Vec<u32> {
    let mut floats = |count: usize, least: f32, most: f32| {
        let number = |random: &mut Rng| (least + (most - least) * random.f32()).to_bits();
        (0..count).map(|_| number(random)).collect()
    };
    match contents {
        Contents::Floats(count) => floats(count, -4.0, 4.0),
        Contents::Factors(count) => floats(count, 0.5, 1.5),
        Contents::Bytes(count) => (0..count).map(|_| random.u32(..)).collect(),
        Contents::Counting(count) => (0..count as u32).collect(),
    }
}

/// A chain on a device, with its kernels in order.
pub struct Prepared<'a> {
    pub chain: &'a Chain,
    pub rt: &'a Runtime,
    kernels: Vec<Kernel>,
}

impl<'a> Prepared<'a> {
    pub fn new(chain: &'a Chain, rt: &'a Runtime, program: &Program) -> Self {
        // SAFETY: the buffers of each chain have the sizes that its launches expect.
        let kernel = |name| unsafe { program.kernel(name) }.expect("the kernel is there");
        let kernels = chain.launches.iter().map(|step| kernel(step.kernel)).collect();
        Self { chain, rt, kernels }
    }

    /// Creates the buffers, with the same contents each time.
    pub async fn buffers(&self) -> Vec<Buffer<u32>> {
        let mut random = Rng::with_seed(7);
        let mut buffers = Vec::new();
        for &own in &self.chain.buffers {
            buffers.push(
                self.rt.buffer_from(contents(own, &mut random)).await.expect("there is memory"),
            );
        }
        buffers
    }

    pub fn launches(&self, buffers: &[Buffer<u32>]) -> Vec<Launch> {
        let launch = |(step, kernel): (&Step, &Kernel)| {
            let mut launch = kernel.launch(step.global);
            if let Some(local) = step.local {
                launch = launch.local(local);
            }
            step.arguments.iter().fold(launch, |launch, value| match *value {
                Value::Buffer(at) => launch.arg(&buffers[at]),
                Value::Int(number) => launch.arg(number),
                Value::Uint(number) => launch.arg(number),
                Value::Long(number) => launch.arg(number),
                Value::Float(number) => launch.arg(number),
                Value::Local(bytes) => launch.arg(Local::<u8>::new(bytes)),
            })
        };
        self.chain.launches.iter().zip(&self.kernels).map(launch).collect()
    }
}

/// Builds the kernels of a chain. Quotients and square roots on a GPU are rounded correctly: otherwise their last bits
/// may depend on what the driver knows of their operands.
pub async fn program(rt: &Runtime, chain: &Chain) -> Program {
    let module = Module::spirv(chain.module).expect("it is a module");
    let is_text = !rt.device().formats.contains(&ModuleFormat::SpirV);
    let options = match rt.device().kind {
        DeviceKind::Gpu if is_text => "-cl-fp32-correctly-rounded-divide-sqrt",
        _ => "",
    };
    rt.build(&module.with_options(options)).await.expect("it is valid")
}
