//! Tests that run on every OpenCL device of the system, and print `skipped` if there is none.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kiln_compiler::{NdRange, NdSize};
use kiln_spirv::{Access, AddressSpace};
use opencl3::event::{create_user_event, set_user_event_status};

use super::adapter::discover;
use super::batch::Batch;
use super::device::ClDevice;
use super::event::{ClEvent, SubmittedEvents};
use super::handle::OwnedEvent;
use super::memory::ClMemory;
use super::queue::Queue;
use crate::backend::*;
use crate::device::{DeviceInfo, DeviceKind, ModuleFormat, Workarounds};
use crate::error::{Error, ErrorKind};

const SAXPY: &str = "
    kernel void saxpy(global float *y, global const float *x, float a) {
        size_t i = get_global_id(0);
        y[i] = a * x[i] + y[i];
    }
";

/// Kernel whose signature has every property that can be reflected.
const SIGNATURES: &str = "
    kernel void signature(global const float *read, global float *const restrict both,
                          constant float4 *fixed, local uint *shared, uint value) {
        local uint own[16];
        own[get_local_id(0)] = value;
        shared[get_local_id(0)] = own[0];
        both[0] = read[0] + fixed[0].x + shared[0];
    }
";

fn on_every_device(test: &str, run: impl Fn(&DeviceInfo, &ClDevice)) {
    let adapters = match discover() {
        Ok(adapters) => adapters,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoDevice);
            println!("skipped: {test}: {error}");
            return;
        }
    };
    for adapter in adapters {
        for as_nvidia in [false, true] {
            let how = if as_nvidia { "as NVIDIA's driver needs it" } else { "plainly" };
            println!("{test} on {} ({}), {how}", adapter.info.name, adapter.info.platform);
            let workarounds = Workarounds {
                poll_for_ends: as_nvidia,
                defer_releases: as_nvidia,
                ..Workarounds::of(&adapter.info)
            };
            run(&adapter.info, &adapter.open_with(workarounds).unwrap());
        }
    }
}

fn source(code: &str) -> Source<'_> {
    Source { format: ModuleFormat::OpenClC, code: code.as_bytes(), options: "", constants: &[] }
}

fn native(code: &[u8]) -> Source<'_> {
    Source { format: ModuleFormat::Native, code, options: "", constants: &[] }
}

fn range(size: usize) -> NdRange {
    NdSize::from(size).into()
}

fn failure<T>(result: Result<T>) -> Error {
    result.err().expect("it succeeded")
}

/// Waits for an event as a queue does: flushes, and waits for the driver's callback.
fn ended(native_queue: &mut dyn NativeQueue, event: &Arc<dyn NativeEvent>) -> Progress {
    let (sender, receiver) = mpsc::channel();
    event.notify(Box::new(move || sender.send(()).unwrap_or_default())).unwrap();
    native_queue.flush().unwrap();
    receiver.recv_timeout(Duration::from_secs(60)).expect("the driver never called back");
    // A driver may call back just before it changes the status.
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match event.progress() {
            Progress::Pending if Instant::now() < deadline => std::thread::yield_now(),
            progress => return progress,
        }
    }
}

fn completed(native_queue: &mut dyn NativeQueue, event: &Arc<dyn NativeEvent>) {
    let progress = ended(native_queue, event);
    assert!(matches!(progress, Progress::Complete), "{progress:?}");
}

fn write(native_queue: &mut dyn NativeQueue, to: &dyn Memory, offset: usize, values: &[f32]) {
    let operation =
        Operation::Write { to, offset, from: values.as_ptr().cast(), bytes: size_of_val(values) };
    // SAFETY: the end is awaited here, and all ranges are inside their memory.
    let event = unsafe { native_queue.enqueue(&operation, &[]) }.unwrap();
    completed(native_queue, &event);
}

fn read(
    native_queue: &mut dyn NativeQueue,
    from: &dyn Memory,
    offset: usize,
    count: usize,
) -> Vec<f32> {
    let mut values = vec![0.0f32; count];
    let to = values.as_mut_ptr().cast();
    let operation = Operation::Read { from, offset, to, bytes: size_of_val(&*values) };
    // SAFETY: the end is awaited here, and all ranges are inside their memory.
    let event = unsafe { native_queue.enqueue(&operation, &[]) }.unwrap();
    completed(native_queue, &event);
    values
}

fn launch(
    native_queue: &mut dyn NativeQueue,
    kernel: &dyn Kernel,
    arguments: &[Argument<'_>],
    size: usize,
    wait: &[Arc<dyn NativeEvent>],
) -> Result<Arc<dyn NativeEvent>> {
    let operation = Operation::Launch { kernel, arguments, range: &range(size) };
    // SAFETY: the tests await every launch before its memory goes, and stay inside of it.
    unsafe { native_queue.enqueue(&operation, wait) }
}

#[test]
fn devices_report_their_properties() {
    on_every_device("devices_report_their_properties", |info, _| {
        assert_eq!(info.backend, "opencl");
        for (field, value) in info.identity() {
            assert!(!value.contains('\0') && value.trim() == value, "{field}: {value:?}");
            // The instructions of a GPU follow from its other answers.
            let may_be_empty =
                field == "il version" || field == "instructions" && info.kind != DeviceKind::Cpu;
            assert!(!value.is_empty() || may_be_empty, "{field}");
        }
        assert!(info.formats.contains(&ModuleFormat::Native));
        let limits = &info.limits;
        assert!(limits.compute_units > 0 && limits.max_work_group_size > 0);
        assert!(limits.max_allocation > 0 && limits.global_memory >= limits.max_allocation);
        assert!(limits.slice_alignment.is_power_of_two());
        assert!(matches!(limits.address_bits, 32 | 64));
        println!("{info:?}");
    });
}

#[test]
fn saxpy_from_source_and_from_binary() {
    on_every_device("saxpy_from_source_and_from_binary", |_, device| {
        let built = device.build(&source(SAXPY)).unwrap();
        let binary = built.binary().unwrap();
        assert!(built.binary_size().is_none_or(|size| size == binary.len()));
        let loaded = device.build(&native(&binary)).unwrap();
        let mut native_queue = device.create_native_queue(false).unwrap();
        for program in [built, loaded] {
            let [kernel] = program.kernels() else { panic!("one kernel expected") };
            assert_eq!(kernel.name(), "saxpy");
            assert_eq!(kernel.parameters().len(), 3);
            assert!(kernel.max_work_group_size().is_none_or(|size| size > 0));
            let x = device.allocate(4096).unwrap();
            let y = device.allocate(4096).unwrap();
            let numbers: Vec<f32> = (0..1024u16).map(f32::from).collect();
            write(&mut *native_queue, &*x, 0, &numbers);
            write(&mut *native_queue, &*y, 0, &[1.0; 1024]);
            // The second launch finds all its arguments set, the third only one changed.
            for a in [2.0f32, 2.0, 3.0] {
                let a = a.to_ne_bytes();
                let arguments = [Argument::Memory(&*y), Argument::Memory(&*x), Argument::Value(&a)];
                let event = launch(&mut *native_queue, &**kernel, &arguments, 1024, &[]).unwrap();
                completed(&mut *native_queue, &event);
            }
            let expected: Vec<f32> = numbers.iter().map(|x| 7.0 * x + 1.0).collect();
            assert_eq!(read(&mut *native_queue, &*y, 0, 1024), expected);
        }
    });
}

#[test]
fn new_memory_at_an_old_address_is_a_new_argument() {
    on_every_device("new_memory_at_an_old_address_is_a_new_argument", |_, device| {
        let program = device.build(&source(SAXPY)).unwrap();
        let kernel = &*program.kernels()[0];
        let mut native_queue = device.create_native_queue(false).unwrap();
        let a = 1.0f32.to_ne_bytes();
        for round in 0..8u8 {
            let x = device.allocate(64).unwrap();
            let y = device.allocate(64).unwrap();
            write(&mut *native_queue, &*x, 0, &[round.into(); 16]);
            write(&mut *native_queue, &*y, 0, &[1.0; 16]);
            let arguments = [Argument::Memory(&*y), Argument::Memory(&*x), Argument::Value(&a)];
            let event = launch(&mut *native_queue, kernel, &arguments, 16, &[]).unwrap();
            completed(&mut *native_queue, &event);
            assert_eq!(read(&mut *native_queue, &*y, 0, 16), [f32::from(round) + 1.0; 16]);
        }
    });
}

#[test]
fn signatures_are_reflected() {
    on_every_device("signatures_are_reflected", |_, device| {
        let program = device.build(&source(SIGNATURES)).unwrap();
        let kernel = &program.kernels()[0];
        assert!(kernel.local_memory() >= 64);
        let expected = [
            ("read", "float*", AddressSpace::Global, Some(Access::Read)),
            ("both", "float*", AddressSpace::Global, Some(Access::ReadWrite)),
            ("fixed", "float4*", AddressSpace::Constant, Some(Access::Read)),
            ("shared", "uint*", AddressSpace::Local, None),
            ("value", "uint", AddressSpace::Private, None),
        ];
        for (parameter, (name, type_name, space, access)) in
            kernel.parameters().iter().zip(expected)
        {
            assert_eq!(parameter.name.as_deref(), Some(name));
            assert_eq!(parameter.type_name.as_deref(), Some(type_name), "{name}");
            assert_eq!(parameter.address_space, Some(space), "{name}");
            assert_eq!(parameter.access, access, "{name}");
        }
    });
}

#[test]
fn a_kernel_may_have_no_parameters() {
    on_every_device("a_kernel_may_have_no_parameters", |_, device| {
        let program = device.build(&source("kernel void nothing(void) {}")).unwrap();
        let kernel = &*program.kernels()[0];
        assert!(kernel.parameters().is_empty());
        let mut native_queue = device.create_native_queue(false).unwrap();
        let event = launch(&mut *native_queue, kernel, &[], 16, &[]).unwrap();
        completed(&mut *native_queue, &event);
    });
}

#[test]
fn fills_copies_and_views() {
    on_every_device("fills_copies_and_views", |info, device| {
        let program = device.build(&source(SAXPY)).unwrap();
        let align = info.limits.slice_alignment.max(16);
        let memory = device.allocate(4 * align).unwrap();
        let other = device.allocate(4 * align).unwrap();
        let mut native_queue = device.create_native_queue(false).unwrap();
        let one = 1.0f32.to_ne_bytes();
        let two = 2.0f32.to_ne_bytes();
        let fill =
            |memory, offset, bytes, pattern| Operation::Fill { memory, offset, bytes, pattern };
        let half = 2 * align;
        let operations = [
            fill(&*memory, 0, half, &one),
            fill(&*memory, half, half, &two),
            Operation::Copy {
                from: &*memory,
                from_offset: align,
                to: &*other,
                to_offset: 0,
                bytes: half,
            },
            fill(&*memory, 0, 0, &one),
            Operation::Marker,
        ];
        for operation in &operations {
            // SAFETY: all ranges are inside their memory, and the end is awaited below.
            let event = unsafe { native_queue.enqueue(operation, &[]) }.unwrap();
            completed(&mut *native_queue, &event);
        }
        let count = align / 4;
        assert_eq!(read(&mut *native_queue, &*other, 0, 1), [1.0]);
        assert_eq!(read(&mut *native_queue, &*other, align, 1), [2.0]);

        // y: the third quarter, as a view of a view; x: the second; transfers count from the view.
        let x = memory.view(align, align).unwrap();
        let y = memory.view(align, 3 * align).unwrap().view(align, align).unwrap();
        write(&mut *native_queue, &*x, align - 4, &[5.0]);
        let arguments = [Argument::Memory(&*y), Argument::Memory(&*x), Argument::Value(&two)];
        let event =
            launch(&mut *native_queue, &*program.kernels()[0], &arguments, count, &[]).unwrap();
        completed(&mut *native_queue, &event);
        let (whole, part) = (
            read(&mut *native_queue, &*memory, 2 * align, count),
            read(&mut *native_queue, &*y, 0, count),
        );
        assert_eq!(whole, part);
        assert_eq!((part[0], part[count - 1]), (4.0, 12.0));
        drop(memory);
        assert_eq!(read(&mut *native_queue, &*y, 0, 1), [4.0]);

        for (offset, bytes) in [(1, 4), (0, align + 4), (align, 4), (align, usize::MAX)] {
            let error = failure(y.view(offset, bytes));
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    });
}

#[test]
fn native_queues_wait_for_each_other() {
    on_every_device("native_queues_wait_for_each_other", |_, device| {
        let program = device.build(&source(SAXPY)).unwrap();
        let kernel = &*program.kernels()[0];
        let x = device.allocate(1 << 16).unwrap();
        let y = device.allocate(1 << 16).unwrap();
        let mut native_queues =
            [device.create_native_queue(false).unwrap(), device.create_native_queue(true).unwrap()];
        write(&mut *native_queues[0], &*x, 0, &[1.0; 1 << 14]);
        write(&mut *native_queues[0], &*y, 0, &[0.0; 1 << 14]);
        let a = 1.0f32.to_ne_bytes();
        let arguments = [Argument::Memory(&*y), Argument::Memory(&*x), Argument::Value(&a)];
        let mut before = Vec::new();
        for step in 0..64 {
            let native_queue = &mut *native_queues[step % 2];
            let event = launch(native_queue, kernel, &arguments, 1 << 14, &before).unwrap();
            native_queue.flush().unwrap();
            before = vec![event];
        }
        completed(&mut *native_queues[1], &before[0]);
        assert_eq!(read(&mut *native_queues[0], &*y, 0, 1 << 14), [64.0; 1 << 14]);

        let profile = before[0].profile().expect("the second native queue profiles");
        assert!(profile.queued <= profile.started && profile.started <= profile.ended);
        let event = launch(&mut *native_queues[0], kernel, &arguments, 1, &[]).unwrap();
        completed(&mut *native_queues[0], &event);
        assert_eq!(event.profile(), None);
    });
}

#[test]
fn a_kernel_can_be_launched_on_several_threads() {
    on_every_device("a_kernel_can_be_launched_on_several_threads", |_, device| {
        let program = device.build(&source(SAXPY)).unwrap();
        let kernel = &*program.kernels()[0];
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                scope.spawn(move || {
                    let x = device.allocate(256).unwrap();
                    let y = device.allocate(256).unwrap();
                    let mut native_queue = device.create_native_queue(false).unwrap();
                    write(&mut *native_queue, &*x, 0, &[1.0; 64]);
                    write(&mut *native_queue, &*y, 0, &[0.0; 64]);
                    let a = f32::from(thread).to_ne_bytes();
                    let arguments =
                        [Argument::Memory(&*y), Argument::Memory(&*x), Argument::Value(&a)];
                    for _ in 0..100 {
                        let event =
                            launch(&mut *native_queue, kernel, &arguments, 64, &[]).unwrap();
                        completed(&mut *native_queue, &event);
                    }
                    assert_eq!(
                        read(&mut *native_queue, &*y, 0, 64),
                        [100.0 * f32::from(thread); 64]
                    );
                });
            }
        });
    });
}

#[test]
fn callbacks_may_be_registered_late_and_may_panic() {
    on_every_device("callbacks_may_be_registered_late_and_may_panic", |_, device| {
        let mut native_queue = device.create_native_queue(false).unwrap();
        // SAFETY: a marker touches no memory.
        let event = unsafe { native_queue.enqueue(&Operation::Marker, &[]) }.unwrap();
        completed(&mut *native_queue, &event);
        // The command has ended already, so the callback may run before `notify` returns.
        completed(&mut *native_queue, &event);
        event.notify(Box::new(|| std::panic::resume_unwind(Box::new("on purpose")))).unwrap();
        completed(&mut *native_queue, &event);
    });
}

#[test]
fn commands_in_quick_succession_start_together() {
    on_every_device("commands_in_quick_succession_start_together", |_, device| {
        let _call = shutdown::begin().unwrap();
        let batch = Batch::default();
        let start = Instant::now();
        let join = |micros| {
            let waits = batch.add(&device.context, start + Duration::from_micros(micros));
            batch.start_if_full();
            waits
        };
        assert!(join(0).is_none(), "nothing came before");
        let first = join(10).expect("it came quickly");
        for turn in 1..8 {
            assert!(first.is_pending());
            assert!(join(10 + turn).is_none(), "it waits for its turn");
        }
        assert!(!first.is_pending(), "they are enough");
        let second = join(30).expect("it came quickly");
        assert!(join(40).is_none() && second.is_pending());
        assert!(join(100).is_none(), "it came late");
        assert!(!second.is_pending());
        let third = join(110).expect("it came quickly");
        assert!(third.is_pending());
        batch.start();
        assert!(!third.is_pending());
        let fourth = join(120).expect("it came quickly");
        assert!(fourth.is_pending());
        drop(batch);
        assert!(!fourth.is_pending());
    });
}

#[test]
fn full_batches_end_without_a_flush_and_partial_ones_with_it() {
    on_every_device("full_batches_end_without_a_flush_and_partial_ones_with_it", |info, device| {
        if !Workarounds::of(info).enqueue_in_batches {
            return;
        }
        let mut native_queue = device.create_native_queue(false).unwrap();
        // SAFETY: a marker touches no memory.
        let mut marker = || unsafe { native_queue.enqueue(&Operation::Marker, &[]) }.unwrap();
        let mut markers: Vec<_> = (0..100).map(|_| marker()).collect();
        let latest = markers.split_off(90);
        while markers.iter().any(|marker| matches!(marker.progress(), Progress::Pending)) {
            std::thread::yield_now();
        }
        for marker in latest {
            completed(&mut *native_queue, &marker);
        }
    });
}

#[test]
fn failed_events_are_reported_and_do_not_block_dependents() {
    on_every_device("failed_events_are_reported_and_do_not_block_dependents", |_, device| {
        let mut native_queue = device.create_native_queue(false).unwrap();
        let memory = device.allocate(64).unwrap();
        write(&mut *native_queue, &*memory, 0, &[1.0; 16]);
        let _call = shutdown::begin().unwrap();
        let raw = create_user_event(device.context.raw()).unwrap();
        // SAFETY: just created, and referenced here alone.
        let user = unsafe { OwnedEvent::new(raw) };
        let queue = Queue::create(&device.context, false).unwrap();
        let user: Arc<dyn NativeEvent> =
            Arc::new(ClEvent::new(SubmittedEvents::one(user), 1, false, None, None, &queue));
        assert!(matches!(user.progress(), Progress::Pending));
        let fill = Operation::Fill { memory: &*memory, offset: 0, bytes: 64, pattern: &[0; 4] };
        // SAFETY: the range is inside the memory, and the end is awaited below.
        let fill = unsafe { native_queue.enqueue(&fill, &[Arc::clone(&user)]) }.unwrap();
        native_queue.flush().unwrap();
        assert!(matches!(fill.progress(), Progress::Pending));

        set_user_event_status(raw, -5).unwrap();
        let Progress::Failed(error) = user.progress() else { panic!("it failed") };
        assert_eq!(error.kind(), ErrorKind::OutOfResources, "{error}");
        // Drivers differ in whether the failure of an event fails the commands that wait for it.
        let progress = ended(&mut *native_queue, &fill);
        assert!(!matches!(progress, Progress::Pending));
        println!("what waited for a failed event: {progress:?}");
    });
}

#[test]
fn memory_is_not_released_while_commands_are_in_flight() {
    on_every_device("memory_is_not_released_while_commands_are_in_flight", |_, device| {
        let Some(spare) = &device.context.spare else { return };
        let _call = shutdown::begin().unwrap();
        let raw = |memory: &Arc<dyn Memory>| ClMemory::of(&**memory).unwrap().raw();
        let mut native_queue = device.create_native_queue(false).unwrap();
        let [first, second] = [(); 2].map(|()| device.allocate(4096).unwrap());
        let view = first.view(0, 1024).unwrap();
        let marker = |native_queue: &mut dyn NativeQueue| {
            // SAFETY: a marker touches no memory.
            unsafe { native_queue.enqueue(&Operation::Marker, &[]) }.unwrap()
        };
        let command = marker(&mut *native_queue);
        let raws = [raw(&first), raw(&second), raw(&view)];
        drop((first, second));
        assert_eq!(spare.kept(), 4096, "a view keeps the other memory alive");
        drop(view);
        assert_eq!(spare.kept(), 2 * 4096);

        let other = device.allocate(64).unwrap();
        assert!(!raws.contains(&raw(&other)), "it is of another size");
        let [first, second] = [(); 2].map(|()| device.allocate(4096).unwrap());
        assert_eq!(
            [raw(&first), raw(&second)],
            raws[..2],
            "the latest is the first to serve again"
        );
        assert_eq!(raw(&first.view(0, 1024).unwrap()), raws[2], "with its views");
        assert_eq!(spare.kept(), 0);
        write(&mut *native_queue, &*first, 0, &[1.0; 1024]);
        assert_eq!(read(&mut *native_queue, &*first, 0, 1024), [1.0; 1024]);

        drop((second, other));
        assert_eq!(spare.kept(), 4096 + 64);
        completed(&mut *native_queue, &command);
        drop(command);
        drop(first);
        assert_eq!(spare.kept(), 0, "the device has nothing to do");
    });
}

#[test]
fn only_the_latest_unused_view_is_kept() {
    on_every_device("only_the_latest_unused_view_is_kept", |info, device| {
        if device.context.spare.is_none() {
            return;
        }
        let step = info.limits.slice_alignment;
        let memory = device.allocate(64 * step).unwrap();
        let used = memory.view(0, step).unwrap();
        for at in 1..64 {
            drop(memory.view(at * step, step).unwrap());
        }
        assert_eq!(ClMemory::of(&*memory).unwrap().kept_views(), 2, "that, and the latest");
        drop(used);
    });
}

#[test]
fn spare_memory_is_limited_to_a_part_of_global_memory() {
    on_every_device("spare_memory_is_limited_to_a_part_of_global_memory", |info, device| {
        let Some(spare) = &device.context.spare else { return };
        let mut native_queue = device.create_native_queue(false).unwrap();
        // SAFETY: a marker touches no memory.
        let command = unsafe { native_queue.enqueue(&Operation::Marker, &[]) }.unwrap();
        let part = usize::try_from(info.limits.global_memory / 8).unwrap();
        // The memory is never written to, so the system does not provide any of it.
        let [half, third] = [part / 2, part / 3].map(|bytes| device.allocate(bytes).unwrap());
        drop((half, third));
        assert_eq!(spare.kept(), part / 2 + part / 3);
        drop(device.allocate(part / 3 + 1).unwrap());
        assert_eq!(spare.kept(), part / 2 + part / 3, "this exceeds the limit");
        assert!(spare.release() && !spare.release());
        assert_eq!(spare.kept(), 0);
        completed(&mut *native_queue, &command);
    });
}

#[test]
fn bad_programs_are_refused_with_a_reason() {
    on_every_device("bad_programs_are_refused_with_a_reason", |info, device| {
        let error =
            failure(device.build(&source("kernel void broken(global int *a) { a[0] = ; }")));
        assert_eq!(error.kind(), ErrorKind::BuildFailed, "{error}");
        assert_eq!(error.driver_code().unwrap().name, "CL_BUILD_PROGRAM_FAILURE");
        assert!(error.build_log().unwrap().contains("error"), "{error}");
        assert!(error.to_string().contains(&info.name), "{error}");
        assert!(error.to_string().contains("OpenCL C"), "{error}");

        let options = Source { options: "-no-such-option-at-all", ..source(SAXPY) };
        let error = failure(device.build(&options));
        assert_eq!(error.kind(), ErrorKind::BuildFailed, "{error}");

        let error = failure(device.build(&native(b"this is no program of any device")));
        assert_eq!(error.kind(), ErrorKind::BuildFailed, "{error}");
        assert!(error.driver_code().is_some(), "{error}");

        let error = failure(device.build(&Source { options: "a\0b", ..source(SAXPY) }));
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");

        if info.formats.contains(&ModuleFormat::SpirV) {
            let spirv = Source { format: ModuleFormat::SpirV, ..native(b"no module either") };
            let error = failure(device.build(&spirv));
            assert_eq!(error.kind(), ErrorKind::BuildFailed, "{error}");
        }
    });
}

#[test]
fn programs_without_kernels_build() {
    on_every_device("programs_without_kernels_build", |_, device| {
        for code in ["", "int twice(int a) { return 2 * a; }"] {
            let program = device.build(&source(code)).unwrap();
            assert!(program.kernels().is_empty());
        }
    });
}

#[test]
fn bad_arguments_are_refused_by_name() {
    on_every_device("bad_arguments_are_refused_by_name", |_, device| {
        let program = device.build(&source(SAXPY)).unwrap();
        let kernel = &*program.kernels()[0];
        let x = device.allocate(64).unwrap();
        let y = device.allocate(64).unwrap();
        let mut native_queue = device.create_native_queue(false).unwrap();
        write(&mut *native_queue, &*x, 0, &[1.0; 16]);
        write(&mut *native_queue, &*y, 0, &[1.0; 16]);
        let a = 1.0f32.to_ne_bytes();
        let good = [Argument::Memory(&*y), Argument::Memory(&*x), Argument::Value(&a)];
        let bad: [(&[Argument<'_>], &str); 5] = [
            (&[good[0], good[1], Argument::Value(&[0; 8])], "parameter 2 (`a`)"),
            (&[good[0], good[1], Argument::Memory(&*x)], "parameter 2 (`a`)"),
            (&[good[0], Argument::Value(&[7; 8]), good[2]], "parameter 1 (`x`)"),
            (&[Argument::Local(64), good[1], good[2]], "parameter 0 (`y`)"),
            (&good[..2], "was given 2 arguments, expected 3"),
        ];
        for (arguments, expected) in bad {
            let error = failure(launch(&mut *native_queue, kernel, arguments, 16, &[]));
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            let text = error.to_string();
            assert!(text.contains(expected) && text.contains("`saxpy`"), "{text}");
        }
        // A rejected argument does not count as set.
        let event = launch(&mut *native_queue, kernel, &good, 16, &[]).unwrap();
        completed(&mut *native_queue, &event);
        assert_eq!(read(&mut *native_queue, &*y, 0, 16), [2.0; 16]);
    });
}

#[test]
fn too_much_memory_is_an_error() {
    on_every_device("too_much_memory_is_an_error", |_, device| {
        let error = failure(device.allocate(usize::MAX / 2));
        assert_eq!(error.kind(), ErrorKind::OutOfResources, "{error}");
    });
}

/// Returns a module with a kernel that stores the specialization constant 7, which is 5 unless set.
fn spirv_module() -> Vec<u8> {
    use rspirv::binary::Assemble;
    use rspirv::dr::Builder;
    use rspirv::spirv::*;

    let mut b = Builder::new();
    b.set_version(1, 0);
    b.capability(Capability::Kernel);
    b.capability(Capability::Addresses);
    b.capability(Capability::Linkage);
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    let void = b.type_void();
    let uint = b.type_int(32, 0);
    let pointer = b.type_pointer(None, StorageClass::CrossWorkgroup, uint);
    let function = b.type_function(void, [pointer]);
    let constant = b.spec_constant_bit32(uint, 5);
    b.decorate(constant, Decoration::SpecId, [rspirv::dr::Operand::LiteralBit32(7)]);
    let kernel = b.begin_function(void, None, FunctionControl::NONE, function).unwrap();
    let out = b.function_parameter(pointer).unwrap();
    b.begin_block(None).unwrap();
    b.store(out, constant, Some(MemoryAccess::ALIGNED), [rspirv::dr::Operand::LiteralBit32(4)])
        .unwrap();
    b.ret().unwrap();
    b.end_function().unwrap();
    b.entry_point(ExecutionModel::Kernel, kernel, "constant_of_seven", []);
    b.module().assemble().into_iter().flat_map(u32::to_ne_bytes).collect()
}

#[test]
fn spirv_with_specialization_constants() {
    on_every_device("spirv_with_specialization_constants", |info, device| {
        let code = spirv_module();
        let spirv = Source { format: ModuleFormat::SpirV, ..native(&code) };
        if !info.formats.contains(&ModuleFormat::SpirV) {
            println!("skipped: no SPIR-V on {}", info.name);
            return;
        }
        let set = |id, value: u32| vec![(id, value.to_ne_bytes().to_vec())];
        let mut native_queue = device.create_native_queue(false).unwrap();
        for (constants, expected) in [(Vec::new(), 5), (set(7, 9), 9)] {
            let program = device.build(&Source { constants: &constants, ..spirv }).unwrap();
            let [kernel] = program.kernels() else { panic!("one kernel expected") };
            assert_eq!(kernel.name(), "constant_of_seven");
            let out = device.allocate(4).unwrap();
            let event =
                launch(&mut *native_queue, &**kernel, &[Argument::Memory(&*out)], 1, &[]).unwrap();
            completed(&mut *native_queue, &event);
            assert_eq!(read(&mut *native_queue, &*out, 0, 1)[0].to_bits(), expected);
        }
        let error = failure(device.build(&Source { constants: &set(8, 1), ..spirv }));
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("constant 8"), "{error}");
    });
}
