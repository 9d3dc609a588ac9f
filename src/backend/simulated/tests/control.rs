//! The device itself, its memory, its faults and its counts.

use super::*;

#[test]
fn describes_the_device() {
    let simulator = Simulator::new().named("Alpha").memory(1 << 20);
    let alpha = adapter(&simulator);
    assert_eq!(alpha.info().name, "Alpha");
    assert_eq!(alpha.info().limits.global_memory, 1 << 20);
    assert_eq!(alpha.info().limits.slice_alignment, SLICE_ALIGNMENT);
    assert_eq!(alpha.info().formats.len(), 3);
    let beta = adapter(&Simulator::new().named("Beta"));
    assert_ne!(alpha.info().identity(), beta.info().identity());
    assert_eq!(alpha.info().identity(), adapter(&simulator.clone()).info().identity());
}

#[test]
fn memory_is_limited_and_counted() {
    let simulator = Simulator::immediate().memory(1000);
    let device = device(&simulator);
    let first = device.allocate(600).unwrap();
    let error = device.allocate(401).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::OutOfResources);
    assert!(error.to_string().contains("400 of the device's 1000 bytes are left"), "{error}");
    let view = first.view(128, 100).unwrap();
    drop(first);
    let counts = simulator.counts();
    assert_eq!(
        (counts.live_allocations, counts.live_bytes),
        (1, 600),
        "the view keeps the whole memory alive"
    );
    drop(view);
    device.allocate(1000).unwrap();
    let counts = simulator.counts();
    assert_eq!((counts.live_allocations, counts.live_bytes), (0, 0));
    // An allocation that fails on the host gives back the bytes that it took.
    let simulator = Simulator::immediate().memory(u64::MAX);
    let device = tests::device(&simulator);
    assert_eq!(device.allocate(usize::MAX).err().unwrap().kind(), ErrorKind::OutOfResources);
    assert_eq!(simulator.counts().live_bytes, 0);
}

#[test]
fn views_are_checked() {
    let device = device(&Simulator::immediate());
    let memory = device.allocate(512).unwrap();
    let code =
        |offset, bytes| memory.view(offset, bytes).err().unwrap().driver_code().unwrap().name;
    assert_eq!(code(4, 8), "CL_MISALIGNED_SUB_BUFFER_OFFSET");
    assert_eq!(code(128, 0), "CL_INVALID_BUFFER_SIZE");
    assert_eq!(code(384, 129), "CL_INVALID_VALUE");
}

#[test]
fn injected_faults_occur_in_order_and_then_stop() {
    for simulator in both() {
        let device = device(&simulator);
        let kernel = only_kernel(&*device, "kernel void k() {}");
        let mut native_queue = device.create_native_queue(false).unwrap();
        simulator.fail_launches("k", 2, Fault::OutOfResources);
        simulator.fail_launches("k", 1, Fault::Refused);
        simulator.fail_launches("other", 1, Fault::DeviceLost);
        let kinds: Vec<_> = (0..4)
            .map(|_| {
                end_of(&launch_and_flush(&mut *native_queue, &kernel))
                    .err()
                    .map(|error| error.kind())
            })
            .collect();
        let exhausted = Some(ErrorKind::OutOfResources);
        assert_eq!(kinds, [exhausted, exhausted, Some(ErrorKind::Driver), None]);

        let commands = simulator.counts().commands;
        simulator.fail_enqueues(1, Fault::Panic);
        let error = enqueue(&mut *native_queue, &Operation::Marker).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Driver);
        assert_eq!(simulator.counts().commands, commands, "nothing was enqueued");
        marker(&mut *native_queue);
    }
}

#[test]
fn a_pause_holds_commands_back() {
    for simulator in both() {
        let device = device(&simulator);
        let mut native_queues = [
            device.create_native_queue(false).unwrap(),
            device.create_native_queue(false).unwrap(),
        ];
        let order = Arc::new(Mutex::new(Vec::new()));
        let noted = order.clone();
        simulator.kernel("note", move |call| {
            noted.lock().unwrap().push(call.value::<u32>(0));
        });
        let kernel = only_kernel(&*device, "kernel void note(uint n) {}");
        let (outer, inner) = (simulator.pause(), simulator.pause());
        let range = NdRange::from(NdSize::from(1));
        let mut previous: Vec<Arc<dyn NativeEvent>> = Vec::new();
        for n in 0..6u32 {
            let arguments = [Argument::Value(bytemuck::bytes_of(&n))];
            let operation =
                Operation::Launch { kernel: &*kernel, arguments: &arguments, range: &range };
            let native_queue = &mut *native_queues[n as usize % 2];
            previous = vec![enqueue_after(native_queue, &operation, &previous).unwrap()];
            native_queue.flush().unwrap();
        }
        drop(inner);
        thread::sleep(Duration::from_millis(20));
        assert!(is_pending(&previous[0]), "one guard is left");
        let last = notified(&previous[0]);
        drop(outer);
        last.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
        let next = marker(&mut *native_queues[0]);
        native_queues[0].flush().unwrap();
        end_of(&next).unwrap();
    }
}

#[test]
fn an_immediate_device_keeps_the_order_after_a_pause() {
    let simulator = Simulator::immediate();
    let device = device(&simulator);
    let mut native_queue = device.create_native_queue(false).unwrap();
    let pause = simulator.pause();
    let held = marker(&mut *native_queue);
    // A command enqueued by a callback of a held-back command runs behind all held-back commands.
    let late = Arc::new(Mutex::new(None));
    let (slot, resumed) = (late.clone(), simulator.clone());
    held.notify(Box::new(move || {
        let again = resumed.pause();
        *slot.lock().unwrap() = Some(marker(&mut *native_queue));
        drop(again);
    }))
    .unwrap();
    drop(pause);
    assert!(is_complete(late.lock().unwrap().as_ref().unwrap()));
    assert!(is_complete(&held));
}

#[test]
fn callbacks_are_called_once_or_lost() {
    for simulator in both() {
        let device = device(&simulator);
        let mut native_queue = device.create_native_queue(false).unwrap();
        let pause = simulator.pause();
        let event = marker(&mut *native_queue);
        native_queue.flush().unwrap();
        let before = notified(&event);
        simulator.lose_notifications(1);
        let lost = notified(&event);
        drop(pause);
        before.recv_timeout(Duration::from_secs(20)).unwrap();
        let here = thread::current().id();
        let (sender, after) = channel();
        event
            .notify(Box::new(move || {
                sender.send(thread::current().id()).unwrap_or_default();
            }))
            .unwrap();
        assert_eq!(after.try_recv().unwrap(), here, "at once");
        assert!(lost.try_recv().is_err());
        simulator.lose_notifications(1);
        assert!(notified(&event).try_recv().is_err(), "also for commands that have ended");
        assert_eq!(simulator.counts().notifications, 4);
    }
}

#[test]
fn all_objects_and_threads_are_released() {
    for simulator in both() {
        let device = device(&simulator);
        let kernel = only_kernel(&*device, "kernel void k(global int *x) {}");
        simulator.kernel("k", |_| {});
        let memory = device.allocate(4).unwrap();
        let mut native_queue = device.create_native_queue(false).unwrap();
        let pause = simulator.pause();
        let event = launch(&mut *native_queue, &kernel, &[Argument::Memory(&*memory)]).unwrap();
        drop((kernel, memory, native_queue, device));
        let counts = simulator.counts();
        assert_eq!((counts.live_programs, counts.live_allocations, counts.live_events), (1, 1, 1));
        drop(pause);
        end_of(&event).unwrap();
        let counts = simulator.counts();
        assert_eq!((counts.live_programs, counts.live_allocations), (0, 0));
        drop(event);
        assert!(soon(|| simulator.counts().live_events == 0));
        let shared = Arc::downgrade(&simulator.shared);
        drop(simulator);
        assert!(soon(|| shared.strong_count() == 0), "the native queue's thread has ended");
    }
}
