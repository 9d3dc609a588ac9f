//! SPIR-V modules translated to OpenCL C: on every device, the results equal those of the driver's own build of
//! the module, to the last bit.

use std::cell::RefCell;
use std::sync::Mutex;

use kiln::devices::ModuleFormat;
use kiln::internal::spirv::emit;
use kiln::{Buffer, Kernel, Local, Module, Program, Queue, Runtime};
use support::tier;

macro_rules! modules {
    ($($name:literal),*) => {
        [$(($name, include_bytes!(concat!("../data/emitted/", $name, ".spv")))),*]
    };
}

const MODULES: &[(&str, &[u8])] = &modules!(
    "apart_O0",
    "apart_O2",
    "apart_Oz",
    "arithmetic_O0",
    "arithmetic_O1",
    "arithmetic_O2",
    "bits",
    "control_O0",
    "control_O2",
    "control_Oz",
    "doubles_O0",
    "doubles_O1",
    "doubles_O2",
    "generic_O0",
    "generic_O2",
    "generic_Oz",
    "groups_O0",
    "groups_O2",
    "groups_Oz",
    "memory_O0",
    "memory_O2",
    "memory_O3",
    "nans",
    "phis",
    "uncommon"
);

/// Kernels that Intel's compiler vectorises wrongly unless the module was optimised before. The emitted text
/// gives the same results as the optimised module on the same driver.
const MISCOMPILED: [(&str, &str); 1] = [("memory_O0", "aggregates")];

const SIZE: usize = 256;
const GROUP: usize = 32;

/// Returns pseudo-random numbers that follow from a seed.
fn noise(seed: u64, count: usize) -> impl Iterator<Item = u64> {
    (1..=count as u64).map(move |at| {
        let mixed =
            (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 31
    })
}

/// Returns numbers that arithmetic treats specially, followed by arbitrary ones.
fn integers() -> Vec<u32> {
    let edges = [0, 1, 2, 7, 9, 77, 200, 255, 1 << 31, u32::MAX, i32::MAX as u32, 0xffff_fff7];
    edges.into_iter().chain(noise(1, SIZE).map(|n| n as u32)).take(SIZE).collect()
}

fn floats() -> Vec<f32> {
    let edges =
        [0.0, -0.0, 1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -1e30, 0.5, 2.5];
    let pairs = edges.iter().flat_map(|&a| edges.map(|b| [a, b])).flatten();
    let ordinary = noise(2, SIZE).map(|n| (n as i32 as f32) / 1e6);
    pairs.step_by(3).chain(ordinary).take(SIZE).collect()
}

fn ordinary_floats() -> Vec<f32> {
    noise(3, SIZE).map(|n| (n as i32 as f32) / 1e5).collect()
}

/// Results of the kernels of a module.
struct Run {
    queue: Queue,
    rt: Runtime,
    module: Module,
    results: Vec<(&'static str, Vec<u8>)>,
}

impl Run {
    async fn of(rt: &Runtime, name: &str, module: &Module) -> Vec<(&'static str, Vec<u8>)> {
        let mut run =
            Self { queue: rt.queue(), rt: rt.clone(), module: module.clone(), results: Vec::new() };
        match name.split('_').next().unwrap_or(name) {
            "arithmetic" => run.arithmetic().await,
            "control" => run.control().await,
            "doubles" => run.doubles().await,
            "generic" => run.generic().await,
            "groups" => run.groups().await,
            "apart" => run.alone("apart").await,
            "bits" => run.alone("bits").await,
            "nans" => run.alone("nans").await,
            "phis" => run.alone("phis").await,
            "uncommon" => run.alone("uncommon").await,
            _ => run.memory().await,
        }
        run.results
    }

    async fn kernel(&self, name: &str) -> Kernel {
        let program = self.rt.build(&self.module).await.expect("it builds");
        // SAFETY: the kernels stay inside the buffers of the sizes that they get here.
        unsafe { program.kernel(name) }.expect("the kernel is there")
    }

    async fn buffer<T: bytemuck::Pod + Send + Sync>(&self, values: Vec<T>) -> Buffer<T> {
        self.rt.buffer_from(values).await.expect("memory")
    }

    async fn keep<T: bytemuck::Pod + Send + Sync>(
        &mut self,
        kernel: &'static str,
        out: &Buffer<T>,
    ) {
        let values = self.queue.read(out).await.expect("it ran");
        self.results.push((kernel, bytemuck::cast_slice(&values).to_vec()));
    }

    async fn arithmetic(&mut self) {
        let out = self.buffer(vec![0_u32; SIZE]).await;
        let scratch = self.buffer(vec![0_u16; SIZE]).await;
        let (integers, floats) = (self.buffer(integers()).await, self.buffer(floats()).await);
        let ordinary = self.buffer(ordinary_floats()).await;
        let launch = self.kernel("integers").await.launch(SIZE).args((&out, &integers));
        self.queue.submit(launch).expect("it is launched");
        self.keep("integers", &out).await;
        for kernel in ["floats", "conversions"] {
            let launch = self.kernel(kernel).await.launch(SIZE).args((&out, &floats));
            self.queue.submit(launch).expect("it is launched");
            self.keep(kernel, &out).await;
        }
        let launch = self.kernel("halves").await.launch(SIZE).args((&out, &ordinary, &scratch));
        self.queue.submit(launch).expect("it is launched");
        self.keep("halves", &out).await;
    }

    async fn control(&mut self) {
        let out = self.buffer(vec![0_u32; SIZE]).await;
        let input = self.buffer(integers()).await;
        let launch = self.kernel("control").await.launch(SIZE).args((&out, &input));
        self.queue.submit(launch).expect("it is launched");
        self.keep("control", &out).await;
        let launch = self.kernel("groups").await.launch(SIZE).local(GROUP);
        let launch = launch.args((&out, &input, Local::<u32>::new(GROUP)));
        self.queue.submit(launch).expect("it is launched");
        self.keep("groups", &out).await;
        let counters = self.buffer(vec![u32::MAX / 3; 9]).await;
        let launch = self.kernel("atomics").await.launch(SIZE).args((&counters, &input));
        self.queue.submit(launch).expect("it is launched");
        self.keep("atomics", &counters).await;
    }

    async fn doubles(&mut self) {
        let values: Vec<f64> = noise(4, SIZE).map(|n| (n as i64 as f64) / 1e13).collect();
        let (out, input) = (self.buffer(vec![0_u64; SIZE]).await, self.buffer(values).await);
        let launch = self.kernel("doubles").await.launch(SIZE).args((&out, &input));
        self.queue.submit(launch).expect("it is launched");
        self.keep("doubles", &out).await;
    }

    async fn generic(&mut self) {
        let out = self.buffer(vec![0_u32; SIZE]).await;
        let launch = self.kernel("generic_pointers").await.launch(SIZE).local(GROUP);
        let launch = launch.args((&out, Local::<u32>::new(GROUP)));
        self.queue.submit(launch).expect("it is launched");
        self.keep("generic_pointers", &out).await;
    }

    async fn groups(&mut self) {
        let (out, input) = (self.buffer(vec![0_u32; SIZE]).await, self.buffer(integers()).await);
        let launch = self.kernel("tables").await.launch(SIZE).args((&out, &input));
        self.queue.submit(launch).expect("it is launched");
        self.keep("tables", &out).await;
        let launch = self.kernel("sums").await.launch(SIZE).local(GROUP);
        let launch = launch.args((&out, &input, Local::<u32>::new(GROUP)));
        self.queue.submit(launch).expect("it is launched");
        self.keep("sums", &out).await;
        let launch = self.kernel("copies").await.launch(SIZE).local(GROUP);
        let (values, every_other) = (Local::<u32>::new(GROUP), Local::<u32>::new(GROUP / 2));
        let launch = launch.args((&out, &input, values, every_other));
        self.queue.submit(launch).expect("it is launched");
        self.keep("copies", &out).await;
    }

    /// Runs the kernel of a module that has only one.
    async fn alone(&mut self, name: &'static str) {
        let (out, input) = (self.buffer(vec![0_u32; SIZE]).await, self.buffer(integers()).await);
        let launch = self.kernel(name).await.launch(SIZE).args((&out, &input));
        self.queue.submit(launch).expect("it is launched");
        self.keep(name, &out).await;
    }

    async fn memory(&mut self) {
        let out = self.buffer(vec![0_u32; SIZE]).await;
        let settings: [u32; 12] = [
            0x4020_0000,
            0x0403_0201,
            0xfff0_0007,
            0,
            77,
            99,
            0,
            0,
            0x3f00_0000,
            0x4000_0000,
            0,
            0,
        ];
        let packed = self.buffer(noise(5, 7 * SIZE).map(|n| n as u8).collect()).await;
        for which in [2_u32, 5] {
            let launch = self.kernel("aggregates").await.launch(SIZE);
            self.queue
                .submit(launch.args((&out, settings, &packed, which)))
                .expect("it is launched");
            self.keep("aggregates", &out).await;
            self.keep("aggregates: packed", &packed).await;
        }

        let threes = self.buffer(vec![0_u32; 3 * SIZE]).await;
        let quads =
            floats().into_iter().zip(ordinary_floats()).map(|(a, b)| [a, b, -a, b]).collect();
        let (quads, index) = (self.buffer(quads).await, self.buffer(integers()).await);
        let launch = self.kernel("vectors").await.launch(SIZE - 1).args((&threes, &quads, &index));
        self.queue.submit(launch).expect("it is launched");
        self.keep("vectors", &threes).await;

        let integers = self.buffer(integers()).await;
        let fours = self.buffer(noise(6, SIZE).map(|n| [n as u32; 4]).collect()).await;
        let tripled = self.buffer(vec![[0_u32; 4]; SIZE]).await;
        let launch = self.kernel("three").await.launch(SIZE).args((&tripled, &fours));
        self.queue.submit(launch).expect("it is launched");
        // The space after three components has no defined content.
        let values = self.queue.read(&tripled).await.expect("it ran");
        let values: Vec<_> = values.iter().flat_map(|[a, b, c, _]| [*a, *b, *c]).collect();
        self.results.push(("three", bytemuck::cast_slice(&values).to_vec()));

        let (eights, small) =
            (self.buffer(vec![0_u8; 8 * SIZE]).await, self.buffer(vec![7_u8; 2 * SIZE]).await);
        let launch = self.kernel("bytes").await.launch(SIZE).args((&eights, &small));
        self.queue.submit(launch).expect("it is launched");
        self.keep("bytes", &eights).await;

        let launch = self.kernel("pointers").await.launch(SIZE);
        let launch = launch.args((&out, &integers, &index, 200_u32));
        self.queue.submit(launch).expect("it is launched");
        self.keep("pointers", &out).await;
    }
}

#[test]
fn emitted_modules_give_the_same_bytes_as_the_drivers_own_build() {
    let differences = Mutex::new(Vec::new());
    support::at_once(&tier::sample(MODULES.to_vec(), 24), |&(name, bytes)| {
        let text = emit(bytes).expect(name);
        assert_eq!(text, emit(bytes).expect(name), "{name}: the same text each time");
        // Results, with the device and the form that computed them.
        let found = RefCell::new(Vec::new());
        futures::executor::block_on(support::on_each_device(async |rt| {
            let device = rt.device().to_string();
            if rt.device().formats.contains(&ModuleFormat::SpirV) {
                let module = Module::spirv(bytes).expect("a module");
                let results = Run::of(&rt, name, &module).await;
                found.borrow_mut().push((format!("{device}, SPIR-V"), results));
            }
            let module = Module::opencl_c(text.clone());
            let results = Run::of(&rt, name, &module).await;
            found.borrow_mut().push((format!("{device}, emitted"), results));
        }));
        let found = found.into_inner();
        for (form, results) in found.iter().skip(1) {
            for ((kernel, expected), (_, results)) in found[0].1.iter().zip(results) {
                let is_drivers = [form, &found[0].0].iter().any(|form| form.ends_with("SPIR-V"));
                if is_drivers && MISCOMPILED.contains(&(name, *kernel)) {
                    continue;
                }
                let words = expected.chunks(4).zip(results.chunks(4)).enumerate();
                for (at, (a, b)) in words.filter(|(_, (a, b))| a != b).take(3) {
                    let first = &found[0].0;
                    differences.lock().expect("no thread panicked").push(format!(
                        "{name}, `{kernel}`, word {at}: {first} {a:x?}, {form} {b:x?}"
                    ));
                }
            }
        }
    });
    let differences = differences.into_inner().expect("no thread panicked");
    assert!(differences.is_empty(), "{differences:#?}");
}

/// Calls `test` with each device, and with the program of a module in each form that the device takes.
fn in_each_form(bytes: &[u8], test: impl AsyncFn(&Runtime, &Program)) {
    futures::executor::block_on(support::on_each_device(async |rt| {
        let emitted = emit(bytes).expect("it can be expressed");
        for module in [Module::spirv(bytes).expect("it is a module"), Module::opencl_c(emitted)] {
            if rt.device().formats.contains(&module.format()) {
                test(&rt, &rt.build(&module).await.expect("it builds")).await;
            }
        }
    }));
}

/// Kiln passes no images to kernels, so these kernels are only built.
#[test]
fn emitted_kernels_of_images_can_be_built() {
    const IMAGES: &[(&str, &[u8])] = &modules!("images_O0", "images_O2");
    for &(name, bytes) in IMAGES {
        let text = emit(bytes).expect(name);
        futures::executor::block_on(support::on_each_device(async |rt| {
            if rt.device().images {
                rt.build(&Module::opencl_c(text.clone())).await.expect(name);
            }
        }));
    }
}

/// Builds a module in each form that the device takes, and returns the bytes that its kernel computes.
async fn results_together(rt: &Runtime, module: &Module, kernel: &str, options: &str) -> Vec<u32> {
    let program = rt.build(module).options(options).await.expect("it builds");
    // SAFETY: the kernel accesses the element of its global id.
    let kernel = unsafe { program.kernel(kernel) }.expect("it is there");
    let input = rt.buffer_from(integers()).await.expect("there is memory");
    let out = rt.buffer::<u32>(SIZE).expect("there is memory");
    let launch = kernel.launch(SIZE).local(GROUP).args((&out, &input));
    rt.queue().submit(launch).expect("it fits");
    rt.queue().read(&out).await.expect("it runs")
}

#[test]
fn emitted_group_functions_give_the_same_numbers_as_the_drivers_own_build() {
    const FEATURES: [(&str, &[&str]); 2] = [
        ("reduced", &["__opencl_c_work_group_collective_functions"]),
        ("together", &["__opencl_c_subgroups", "cl_khr_subgroups"]),
    ];
    const GROUPS: &[(&str, &[u8])] =
        &modules!("collective_O0", "collective_O2", "subgroups_O0", "subgroups_O2");
    for &(name, bytes) in GROUPS {
        let (kernel, features) = FEATURES[usize::from(name.starts_with("subgroups"))];
        let text = Module::opencl_c(emit(bytes).expect(name));
        futures::executor::block_on(support::on_each_device(async |rt| {
            let device = rt.device();
            let mut listed = device.opencl_c_features.iter().chain(&device.extensions);
            if !listed.any(|name| features.contains(&name.as_str())) {
                return;
            }
            let options = match device.opencl_c_features.is_empty() {
                true => "-cl-std=CL2.0",
                false => "-cl-std=CL3.0",
            };
            let emitted = results_together(&rt, &text, kernel, options).await;
            if device.formats.contains(&ModuleFormat::SpirV) {
                let module = Module::spirv(bytes).expect("a module");
                let own = results_together(&rt, &module, kernel, "").await;
                assert_eq!(emitted, own, "{name} on {device}");
            }
            if kernel == "together" {
                // 7 + 5 - 3, all work-items pass the tests, and one of each subgroup has a number above 0.
                assert_eq!(emitted, [1109; SIZE], "{name} on {device}");
            }
        }));
    }
}

/// C forbids reading memory as another type than it was written as; SPIR-V does not.
#[test]
fn a_buffer_can_be_passed_as_memory_of_two_types() {
    in_each_form(include_bytes!("../data/aliases.spv"), async |rt, program| {
        // SAFETY: the kernel accesses two words.
        let both = unsafe { program.kernel("both") }.expect("it is there");
        let words = rt.buffer_from(vec![0_u32; 2]).await.expect("there is memory");
        let as_float = words.cast::<f32>().expect("it has the same size");
        rt.queue().submit(both.launch(1).args((&as_float, &words))).expect("it fits");
        let found = rt.queue().read(&words).await.expect("it runs");
        assert_eq!(found, [1.0_f32.to_bits(); 2], "{}", rt.device());
    });
}

/// C compilers assume that an unsigned offset to a pointer is not negative.
#[test]
fn elements_before_a_pointer_are_accessible() {
    in_each_form(include_bytes!("../data/offsets.spv"), async |rt, program| {
        // SAFETY: each work-item accesses elements inside the buffers.
        let around = unsafe { program.kernel("around") }.expect("it is there");
        let x = rt.buffer_from(vec![0.0_f32, 1.0, 2.0, 3.0]).await.expect("there is memory");
        let y = rt.buffer::<f32>(4).expect("there is memory");
        rt.queue().submit(around.launch(4).args((&x, &y, u32::MAX - 3))).expect("it fits");
        let found = rt.queue().read(&y).await.expect("it runs");
        assert_eq!(found, [2.0, 5.0, 8.0, 11.0], "{}", rt.device());
    });
}
