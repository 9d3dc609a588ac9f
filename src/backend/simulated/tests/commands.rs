//! Effects of commands, and their order.

use std::slice;

use super::*;

#[test]
fn launches_run_the_closure() {
    for simulator in both() {
        simulator.kernel("saxpy", |call| {
            assert_eq!((call.global_size(), call.offset()), (&[4][..], &[0][..]));
            assert_eq!((call.local_size(), call.arguments()), (None, 3));
            let a: f32 = call.value(0);
            let x = call.read::<f32>(1);
            let y = call.read::<f32>(2);
            let sum: Vec<_> = x.iter().zip(&y).map(|(x, y)| a * x + y).collect();
            call.write(2, &sum);
        });
        let device = device(&simulator);
        let kernel = only_kernel(&*device, SAXPY);
        let mut native_queue = device.create_native_queue(false).unwrap();
        let memory = [device.allocate(16).unwrap(), device.allocate(16).unwrap()];
        let hosts = [[1.0f32, 2.0, 3.0, 4.0], [0.5f32; 4]];
        for (memory, host) in memory.iter().zip(&hosts) {
            enqueue(&mut *native_queue, &write(&**memory, host)).unwrap();
        }
        let arguments = |x: usize| {
            [
                Argument::Value(bytemuck::bytes_of(&2.0f32)),
                Argument::Memory(&*memory[x]),
                Argument::Memory(&*memory[1]),
            ]
        };
        launch(&mut *native_queue, &kernel, &arguments(0)).unwrap();
        assert_eq!(read_back(&mut *native_queue, &*memory[1], 4), [2.5, 4.5, 6.5, 8.5]);
        // Two arguments may refer to one buffer.
        launch(&mut *native_queue, &kernel, &arguments(1)).unwrap();
        assert_eq!(read_back(&mut *native_queue, &*memory[1], 4), [7.5, 13.5, 19.5, 25.5]);
        let counts = simulator.counts();
        assert_eq!((counts.commands, counts.launches), (6, 2));
    }
}

#[test]
fn a_kernel_without_a_closure_does_nothing() {
    let simulator = Simulator::immediate();
    let device = device(&simulator);
    let kernel = only_kernel(&*device, "__kernel void nop() {}");
    let mut native_queue = device.create_native_queue(false).unwrap();
    assert!(is_complete(&launch(&mut *native_queue, &kernel, &[]).unwrap()));
    // A closure that is registered after the build is found.
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = ran.clone();
    simulator.kernel("nop", move |_| {
        counter.fetch_add(1, SeqCst);
    });
    launch(&mut *native_queue, &kernel, &[]).unwrap();
    assert_eq!(ran.load(SeqCst), 1);
}

#[test]
fn panics_of_a_closure_fail_the_command() {
    for simulator in both() {
        let device = device(&simulator);
        let kernel =
            only_kernel(&*device, "kernel void k(uint n, global const int *x, local int *t) {}");
        let mut native_queue = device.create_native_queue(false).unwrap();
        let memory = device.allocate(6).unwrap();
        let arguments = [
            Argument::Value(&1_u32.to_ne_bytes()),
            Argument::Memory(&*memory),
            Argument::Local(64),
        ];
        let mut message = |closure: fn(&mut Invocation<'_>)| {
            simulator.kernel("k", closure);
            let event = launch(&mut *native_queue, &kernel, &arguments).unwrap();
            native_queue.flush().unwrap();
            let error = end_of(&event).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Panicked);
            error.to_string()
        };
        let text = message(|_| panic!("out of cheese"));
        assert!(text.contains("the kernel `k` panicked: out of cheese"), "{text}");
        let text = message(|call| drop(call.read::<u8>(3)));
        assert!(text.contains("was launched with 3 arguments; it has no argument 3"), "{text}");
        let text = message(|call| assert_eq!(call.value::<f64>(0), 0.0));
        let expected = "argument 0 of the kernel `k` is a value of 4 bytes, not a value of type f64 \
                        (8 bytes)";
        assert!(text.contains(expected), "{text}");
        let text = message(|call| drop(call.read::<i32>(1)));
        assert!(text.contains("is a buffer of 6 bytes, not a buffer of i32 (4 bytes)"), "{text}");
        let text = message(|call| drop(call.read::<()>(1)));
        assert!(text.contains("not a buffer of ()"), "{text}");
        let text = message(|call| call.write::<u8>(1, &[1]));
        assert!(text.contains("argument 1 of the kernel `k` is read-only"), "{text}");
        let text = message(|call| assert_eq!(call.local_bytes(0), 0));
        assert!(text.contains("not local memory"), "{text}");
        // The native queue and its memory still work.
        simulator.kernel("k", |call| {
            assert_eq!((call.value::<u32>(0), call.local_bytes(2)), (1, 64));
        });
        let event = launch(&mut *native_queue, &kernel, &arguments).unwrap();
        native_queue.flush().unwrap();
        end_of(&event).unwrap();
    }
}

#[test]
fn mismatched_arguments_are_refused() {
    let simulator = Simulator::immediate();
    let device = device(&simulator);
    let kernel = only_kernel(&*device, "kernel void k(int n, global int *x) {}");
    let mut native_queue = device.create_native_queue(false).unwrap();
    let memory = device.allocate(4).unwrap();
    let (value, buffer) = (Argument::Value(&[0; 4]), Argument::Memory(&*memory));
    for wrong in [&[value][..], &[buffer, value], &[value, Argument::Local(4)]] {
        let error = launch(&mut *native_queue, &kernel, wrong).err().unwrap();
        assert_eq!(error.driver_code().unwrap().name, "CL_INVALID_KERNEL_ARGS");
    }
    launch(&mut *native_queue, &kernel, &[value, buffer]).unwrap();
    assert_eq!(simulator.counts().commands, 1);
}

#[test]
fn objects_of_another_device_are_refused() {
    let simulator = Simulator::immediate();
    let (own, other) = (device(&simulator), device(&Simulator::immediate()));
    let mut native_queue = own.create_native_queue(false).unwrap();
    let code = |result: Result<_>| result.err().unwrap().driver_code().unwrap().name;
    let kernel = only_kernel(&*other, "kernel void k() {}");
    assert_eq!(code(launch(&mut *native_queue, &kernel, &[])), "CL_INVALID_CONTEXT");
    let event = marker(&mut *other.create_native_queue(false).unwrap());
    let result = enqueue_after(&mut *native_queue, &Operation::Marker, &[event]);
    assert_eq!(code(result), "CL_INVALID_CONTEXT");
    let memory = other.allocate(4).unwrap();
    let fill = Operation::Fill { memory: &*memory, offset: 0, bytes: 4, pattern: &[0] };
    assert_eq!(code(enqueue(&mut *native_queue, &fill)), "CL_INVALID_CONTEXT");
    let kernel = only_kernel(&*own, "kernel void k(global int *x) {}");
    let result = launch(&mut *native_queue, &kernel, &[Argument::Memory(&*memory)]);
    assert_eq!(code(result), "CL_INVALID_CONTEXT");
}

#[test]
fn fills_and_copies() {
    for simulator in both() {
        let device = device(&simulator);
        let mut native_queue = device.create_native_queue(false).unwrap();
        let (x, y) = (device.allocate(512).unwrap(), device.allocate(512).unwrap());
        let pattern = bytemuck::bytes_of(&1.5f32);
        let fill = Operation::Fill { memory: &*x, offset: 0, bytes: 512, pattern };
        enqueue(&mut *native_queue, &fill).unwrap();
        let pattern = bytemuck::bytes_of(&7.0f32);
        let view = x.view(128, 128).unwrap();
        let fill = Operation::Fill { memory: &*view, offset: 4, bytes: 8, pattern };
        enqueue(&mut *native_queue, &fill).unwrap();
        let copy = |from, from_offset, to, to_offset, bytes| Operation::Copy {
            from,
            from_offset,
            to,
            to_offset,
            bytes,
        };
        enqueue(&mut *native_queue, &copy(&*x, 128, &*y, 0, 16)).unwrap();
        // A copy within one allocation.
        enqueue(&mut *native_queue, &copy(&*y, 4, &*y, 20, 8)).unwrap();
        let found = read_back(&mut *native_queue, &*y, 8);
        assert_eq!(found[..4], [1.5, 7.0, 7.0, 1.5]);
        assert_eq!(found[5..7], [7.0, 7.0]);
        assert_eq!(found[4].to_ne_bytes(), [FRESH; 4]);

        let refused = [
            (copy(&*x, 0, &*view, 0, 130), "CL_INVALID_VALUE"),
            (copy(&*x, 64, &*view, 0, 128), "CL_MEM_COPY_OVERLAP"),
            (copy(&*x, usize::MAX, &*y, 0, 2), "CL_INVALID_VALUE"),
            (Operation::Fill { memory: &*x, offset: 2, bytes: 4, pattern }, "CL_INVALID_VALUE"),
            (
                Operation::Fill { memory: &*x, offset: 0, bytes: 3, pattern: &[0; 3] },
                "CL_INVALID_VALUE",
            ),
        ];
        for (operation, code) in &refused {
            let error = enqueue(&mut *native_queue, operation).err().unwrap();
            assert_eq!(error.driver_code().unwrap().name, *code);
        }
    }
}

#[test]
fn host_memory_is_read_when_the_command_runs() {
    let simulator = Simulator::new();
    let device = device(&simulator);
    let mut native_queue = device.create_native_queue(false).unwrap();
    let memory = device.allocate(4).unwrap();
    let host = AtomicU32::new(1.0f32.to_bits());
    let from = host.as_ptr().cast_const().cast();
    let pause = simulator.pause();
    enqueue(&mut *native_queue, &Operation::Write { to: &*memory, offset: 0, from, bytes: 4 })
        .unwrap();
    native_queue.flush().unwrap();
    host.store(2.0f32.to_bits(), SeqCst);
    drop(pause);
    assert_eq!(read_back(&mut *native_queue, &*memory, 1), [2.0]);
}

#[test]
fn commands_start_at_a_flush_or_in_batches() {
    let simulator = Simulator::new();
    let device = device(&simulator);
    let mut native_queue = device.create_native_queue(false).unwrap();
    let lone = marker(&mut *native_queue);
    thread::sleep(Duration::from_millis(20));
    assert!(is_pending(&lone), "the queue was not flushed");
    native_queue.flush().unwrap();
    end_of(&lone).unwrap();
    let batch: Vec<_> = (0..64).map(|_| marker(&mut *native_queue)).collect();
    end_of(&batch[63]).unwrap();
    assert!(batch.iter().all(is_complete), "in order");
    assert_eq!(simulator.counts().flushes, 1);
    // A dropped native queue leaves nothing behind.
    let last = marker(&mut *native_queue);
    drop(native_queue);
    end_of(&last).unwrap();
}

#[test]
fn native_queues_wait_for_each_other_and_propagate_failures() {
    let simulator = Simulator::new();
    let device = device(&simulator);
    let kernel = only_kernel(&*device, "kernel void k() {}");
    let mut native_queues =
        [device.create_native_queue(false).unwrap(), device.create_native_queue(false).unwrap()];
    simulator.fail_launches("k", 1, Fault::DeviceLost);
    let root = launch(&mut *native_queues[0], &kernel, &[]).unwrap();
    let dependent =
        enqueue_after(&mut *native_queues[1], &Operation::Marker, slice::from_ref(&root)).unwrap();
    let independent = marker(&mut *native_queues[1]);
    native_queues[1].flush().unwrap();
    thread::sleep(Duration::from_millis(20));
    assert!(
        is_pending(&dependent) && is_pending(&independent),
        "the first native queue was not flushed"
    );
    native_queues[0].flush().unwrap();
    assert_eq!(end_of(&root).unwrap_err().kind(), ErrorKind::DeviceLost);
    let error = end_of(&dependent).unwrap_err();
    assert_eq!((error.kind(), error.driver_code().unwrap().code), (ErrorKind::Driver, -14));
    end_of(&independent).unwrap();
    end_of(&launch_and_flush(&mut *native_queues[0], &kernel)).unwrap();
}

#[test]
fn an_immediate_device_ends_commands_at_once() {
    let simulator = Simulator::immediate();
    let device = device(&simulator);
    let mut native_queue = device.create_native_queue(false).unwrap();
    let kernel = only_kernel(&*device, "kernel void k() {}");
    assert!(is_complete(&marker(&mut *native_queue)));
    simulator.fail_launches("k", 1, Fault::DeviceLost);
    let failed = launch(&mut *native_queue, &kernel, &[]).unwrap();
    assert!(matches!(failed.progress(), Progress::Failed(_)));
    let blocked = enqueue_after(&mut *native_queue, &Operation::Marker, &[failed]).unwrap();
    assert_eq!(end_of(&blocked).unwrap_err().driver_code().unwrap().code, -14);
}

#[test]
fn profiles_are_in_order() {
    for simulator in both() {
        let device = device(&simulator);
        simulator.delay_commands(Duration::from_millis(2));
        let mut native_queue = device.create_native_queue(true).unwrap();
        let pause = simulator.pause();
        let event = marker(&mut *native_queue);
        native_queue.flush().unwrap();
        assert!(event.profile().is_none());
        drop(pause);
        end_of(&event).unwrap();
        let profile = event.profile().unwrap();
        assert!(profile.queued <= profile.submitted);
        assert!(profile.submitted <= profile.started);
        assert!(profile.started + 2_000_000 <= profile.ended);
        let mut plain = device.create_native_queue(false).unwrap();
        assert!(marker(&mut *plain).profile().is_none());
    }
}

#[test]
fn many_queues_at_once() {
    let simulator = Simulator::new();
    let device = device(&simulator);
    simulator.kernel("add", |call| {
        let n = call.read::<u64>(0)[0];
        call.write(0, &[n + 1]);
    });
    let kernel = only_kernel(&*device, "kernel void add(global ulong *n) {}");
    let memory = device.allocate(8).unwrap();
    let mut native_queues: Vec<_> =
        (0..4).map(|_| device.create_native_queue(false).unwrap()).collect();
    let fill = Operation::Fill { memory: &*memory, offset: 0, bytes: 8, pattern: &[0] };
    let mut last = enqueue(&mut *native_queues[0], &fill).unwrap();
    let range = NdRange::from(NdSize::from(1));
    let arguments = [Argument::Memory(&*memory)];
    let add = Operation::Launch { kernel: &*kernel, arguments: &arguments, range: &range };
    for n in 0..400 {
        last = enqueue_after(&mut *native_queues[n % 4], &add, &[last]).unwrap();
    }
    for native_queue in &mut native_queues {
        native_queue.flush().unwrap();
    }
    end_of(&last).unwrap();
    let mut sum = 0u64;
    let to = (&raw mut sum).cast();
    let read = Operation::Read { from: &*memory, offset: 0, to, bytes: 8 };
    let event = enqueue(&mut *native_queues[0], &read).unwrap();
    native_queues[0].flush().unwrap();
    end_of(&event).unwrap();
    assert_eq!(sum, 400);
}
