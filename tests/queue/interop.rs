//! Objects of drivers that Kiln shares with other code: contexts, buffers, images and programs of OpenCL, and native
//! commands in the DAG.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};

use futures::channel::oneshot;
use futures::executor::block_on;
use kiln::build::Origin;
use kiln::images::{R, Rgba, Unorm};
use kiln::interop::{DriverQueue, MemoryHandle};
use kiln::{Buffer, Error, ErrorKind, Event, Module, Queue, Runtime};
use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::device::{CL_DEVICE_TYPE_ALL, Device, get_all_devices};
use opencl3::memory::{self, *};
use opencl3::types::CL_BLOCKING;
use support::everywhere;

const SOURCE: &str = "kernel void add(global uint *x, uint value) { x[get_global_id(0)] += value; }
    kernel void copy(global const uint *from, global uint *to) {
        to[get_global_id(0)] = from[get_global_id(0)];
    }";

/// Calls a test on each device of OpenCL.
async fn on_each_opencl(test: impl AsyncFn(Runtime)) {
    support::on_each_device(async |rt| {
        if rt.device().backend == "opencl" {
            test(rt).await;
        }
    })
    .await;
}

/// Returns an error as the closure of a native command returns it.
fn driver_error(code: i32) -> String {
    format!("the driver returned {code}")
}

/// Fills elements of a memory object with a value, on a queue of the driver.
fn fill(
    queue: *mut c_void,
    memory: MemoryHandle,
    elements: usize,
    value: u32,
) -> Result<(), String> {
    // SAFETY: both objects are alive, the bytes lie inside the memory, and the driver copies the value.
    let filled = unsafe {
        cl3::command_queue::enqueue_fill_buffer(
            queue,
            memory.object,
            (&raw const value).cast(),
            size_of::<u32>(),
            memory.offset,
            elements * size_of::<u32>(),
            0,
            ptr::null(),
        )
    };
    filled.map(release).map_err(driver_error)
}

/// Releases an event that nothing waits for.
fn release(event: *mut c_void) {
    // SAFETY: the driver made the event for its caller.
    unsafe { cl3::event::release_event(event) }.unwrap();
}

/// Submits a native command that fills a buffer.
fn fill_natively(queue: &Queue, x: &Buffer<u32>, value: u32) -> Event {
    let len = x.len();
    // SAFETY: the command writes the elements of `x`, on the given queue.
    let filled = unsafe {
        queue.native("fill", (x.write_only(),), move |driver| {
            fill(driver.queue(), driver.memory()[0], len, value)
        })
    };
    filled.unwrap()
}

/// Submits a native command with a closure that enqueues nothing.
fn call<E>(
    queue: &Queue,
    x: &Buffer<u32>,
    call: impl FnOnce(&DriverQueue<'_>) -> Result<(), E> + Send + 'static,
) -> Event
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    // SAFETY: nothing is enqueued.
    unsafe { queue.native("call", (x,), call) }.unwrap()
}

everywhere! {
    async fn native_commands_are_ordered_with_others(rt: Runtime) {
        if rt.device().backend != "opencl" {
            return;
        }
        let queue = rt.queue();
        let add = support::kernel(&rt, SOURCE, "add").await;
        let x = rt.buffer_from(vec![1u32; 1000]).await.unwrap();
        let half = x.slice(500..).unwrap();
        for round in 0..20 {
            let _added = queue.submit(add.launch(1000).args((&x, 3u32))).unwrap();
            let _filled = fill_natively(&queue, &half, round);
            let _added = queue.submit(add.launch(1000).args((&x, 4u32))).unwrap();
        }
        let after = queue.read(&x).await.unwrap();
        assert_eq!(after[..500], [141; 500]);
        assert_eq!(after[500..], [19 + 4; 500]);
    }
}

#[test]
fn native_commands_see_new_memory_as_zeros() {
    block_on(on_each_opencl(async |rt| {
        let queue = rt.queue();
        let x = rt.buffer::<u32>(4096).unwrap();
        let (sender, receiver) = oneshot::channel();
        let look = move |driver: &DriverQueue<'_>| {
            let mut seen = vec![7u32; 4096];
            let (x, bytes) = (driver.memory()[0], 4 * seen.len());
            // SAFETY: both objects are alive, the bytes lie inside the memory, and the read blocks.
            let read = unsafe {
                cl3::command_queue::enqueue_read_buffer(
                    driver.queue(),
                    x.object,
                    CL_BLOCKING,
                    x.offset,
                    bytes,
                    seen.as_mut_ptr().cast(),
                    0,
                    ptr::null(),
                )
            };
            release(read.map_err(driver_error)?);
            sender.send(seen).map_err(|_| "nobody waits".to_owned())
        };
        // SAFETY: the command reads the elements of `x`, and has read them when its closure returns.
        let read = unsafe { queue.native("look", (x.read_only(),), look) };
        read.unwrap().await.unwrap();
        assert_eq!(receiver.await.unwrap(), [0; 4096]);
    }));
}

#[test]
fn errors_and_panics_of_closures_fail_what_depends_on_them() {
    block_on(on_each_opencl(async |rt| {
        let queue = rt.queue();
        let add = support::kernel(&rt, SOURCE, "add").await;
        let x = rt.buffer_from(vec![0u32; 64]).await.unwrap();
        let y = rt.buffer_from(vec![1u32; 64]).await.unwrap();
        // SAFETY: the command writes the elements of `x`, on the given queue.
        let failed = unsafe {
            queue.native("half done", (&x,), |driver| {
                fill(driver.queue(), driver.memory()[0], 64, 5)?;
                Err("no more ink".to_owned())
            })
        };
        let failed = failed.unwrap();
        let dependent = queue.submit(add.launch(64).args((&x, 1u32))).unwrap();
        let other = queue.submit(add.launch(64).args((&y, 1u32))).unwrap();
        let error = failed.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::HostTask);
        assert_eq!(
            error.summary(),
            "host task failed: `half done`: the native command failed: no more ink"
        );
        let error_after = dependent.await.unwrap_err();
        assert!(error_after.same(&error), "{error_after}");
        other.await.unwrap();
        assert_eq!(queue.read(&y).await.unwrap(), [2; 64]);

        let panicked = call(&queue, &y, |_| -> Result<(), Error> { panic!("out of paper") });
        let error = panicked.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Panicked);
        assert!(
            error.to_string().contains("`call`: ") && error.to_string().contains("out of paper")
        );
        assert!(queue.read(&y).await.unwrap_err().same(&error));
        // A command that overwrites the memory makes it whole.
        fill_natively(&queue, &y, 9).await.unwrap();
        assert_eq!(queue.read(&y).await.unwrap(), [9; 64]);
        // An error of Kiln is passed on as it is.
        let refused = call(&queue, &y, |_| block_on(Module::open("/nowhere.cl")).map(drop));
        assert_eq!(refused.await.unwrap_err().kind(), ErrorKind::Io);
    }));
}

#[test]
fn closures_may_use_kiln_and_block() {
    block_on(on_each_opencl(async |rt| {
        let queue = rt.queue();
        let add = support::kernel(&rt, SOURCE, "add").await;
        let x = rt.buffer_from(vec![0u32; 64]).await.unwrap();
        let y = rt.buffer_from(vec![1u32; 64]).await.unwrap();
        let (inner, other) = (queue.clone(), y.clone());
        let (release, released) = mpsc::channel::<()>();
        let called = call(&queue, &x, move |_| {
            released.recv().unwrap();
            inner.submit(add.launch(64).args((&other, 1u32)))?.wait()
        });
        // Other commands run while the closure blocks.
        assert_eq!(queue.read(&y).await.unwrap(), [1; 64]);
        release.send(()).unwrap();
        called.await.unwrap();
        assert_eq!(queue.read(&y).await.unwrap(), [2; 64]);
    }));
}

#[test]
fn closures_that_wait_for_what_waits_for_them_get_an_error() {
    block_on(on_each_opencl(async |rt| {
        let queue = rt.queue();
        let x = rt.buffer::<u32>(64).unwrap();
        let (sender, receiver) = mpsc::channel::<Event>();
        let called = call(&queue, &x, move |_| receiver.recv().unwrap().wait());
        let dependent = fill_natively(&queue, &x, 1);
        sender.send(dependent).unwrap();
        assert_eq!(called.await.unwrap_err().kind(), ErrorKind::Deadlock);
    }));
}

#[test]
fn a_canceled_native_command_is_not_called() {
    block_on(on_each_opencl(async |rt| {
        let queue = rt.queue();
        let x = rt.buffer::<u32>(64).unwrap();
        let (release, released) = oneshot::channel::<()>();
        let gate = queue.host_task(async move { _ = released.await }).unwrap();
        let add = support::kernel(&rt, SOURCE, "add").await;
        let first = queue.submit(add.launch(64).args((&x, 1u32)).after(&gate)).unwrap();
        let (is_called, kept) = (Arc::new(AtomicBool::new(false)), Arc::new(()));
        let (seen, held) = (is_called.clone(), kept.clone());
        let called = call(&queue, &x, move |_| -> Result<(), Error> {
            let _held = held;
            seen.store(true, SeqCst);
            Ok(())
        });
        assert!(called.cancel());
        assert_eq!(called.await.unwrap_err().kind(), ErrorKind::Canceled);
        release.send(()).unwrap();
        first.await.unwrap();
        rt.drain().await;
        assert!(!is_called.load(SeqCst));
        // A thread of Kiln drops what the closure owned.
        while Arc::strong_count(&kept) > 1 {
            std::thread::yield_now();
        }
    }));
}

#[test]
fn native_commands_outlive_their_handles() {
    block_on(on_each_opencl(async |rt| {
        let count = Arc::new(AtomicUsize::new(0));
        for _ in 0..50 {
            let (queue, x) = (rt.queue(), rt.buffer::<u32>(64).unwrap());
            let count = count.clone();
            // SAFETY: the command writes the elements of `x`, on the given queue.
            let filled = unsafe {
                queue.native("fill", (&x,), move |driver| {
                    count.fetch_add(1, SeqCst);
                    fill(driver.queue(), driver.memory()[0], 64, 1)
                })
            };
            drop((filled, queue, x));
        }
        rt.drain().await;
        assert_eq!(count.load(SeqCst), 50);
    }));
}

#[test]
fn native_commands_take_only_memory_of_their_device() {
    block_on(on_each_opencl(async |rt| {
        let queue = rt.queue();
        let x = rt.buffer::<u32>(64).unwrap();
        // SAFETY: nothing is enqueued.
        let refused = unsafe { queue.native("mix", (&x, 3u32), |_| Ok::<(), Error>(())) };
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("`mix` was given a value"), "{error}");
        let other = support::builder().device(rt.device().index().to_string()).build().await;
        let foreign = other.unwrap().buffer::<u32>(64).unwrap();
        // SAFETY: as above.
        let refused = unsafe { queue.native("mix", (&foreign,), |_| Ok::<(), Error>(())) };
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("the native command `mix`"), "{error}");
    }));
}

#[test]
fn devices_without_objects_of_drivers_say_so() {
    let simulator = kiln::simulated::Simulator::immediate();
    block_on(async {
        let rt = Runtime::builder().simulator(&simulator).build().await.unwrap();
        let x = rt.buffer::<u32>(64).unwrap();
        // SAFETY: nothing is enqueued.
        let refused = unsafe { rt.queue().native("call", (&x,), |_| Ok::<(), Error>(())) };
        // SAFETY: the call does not use the object.
        let buffer = unsafe { rt.buffer_from_opencl::<u32>(ptr::null_mut(), 4) };
        let errors = [
            refused.map(drop).unwrap_err(),
            rt.driver_handles().map(drop).unwrap_err(),
            x.driver_handle().map(drop).unwrap_err(),
            buffer.map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let text = error.to_string();
            let is_named =
                text.contains("no such object") || text.contains("a device of `simulated`");
            assert!(is_named, "{error}");
        }
    });
}

#[test]
fn a_runtime_in_a_given_context_shares_its_memory() {
    block_on(on_each_opencl(async |own| {
        let device = Device::new(own.driver_handles().unwrap().device);
        let context = Context::from_device(&device).unwrap();
        // SAFETY: both live until the runtime has started.
        let starting = unsafe { support::builder().opencl_context(device.id(), context.get()) };
        let rt = starting.build().await.unwrap();
        assert_eq!((rt.devices().len(), &rt.device().name), (1, &own.device().name));
        assert_eq!(rt.driver_handles().unwrap().context, context.get());

        let mut elements: Vec<u32> = (0..1024).collect();
        let flags = CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR;
        // SAFETY: the driver copies as many elements as there are.
        let theirs = unsafe {
            memory::Buffer::<u32>::create(&context, flags, 1024, elements.as_mut_ptr().cast())
        };
        let theirs = theirs.unwrap();
        // SAFETY: the part lies inside the buffer and is aligned as every device requires.
        let part = unsafe { theirs.create_sub_buffer(CL_MEM_READ_WRITE, 512, 256) }.unwrap();
        // SAFETY: both are alive, and only Kiln uses them while its commands run.
        let [x, y] = [(theirs.get(), 1024), (part.get(), 256)]
            .map(|(object, len)| unsafe { rt.buffer_from_opencl::<u32>(object, len) }.unwrap());
        let queue = rt.queue();
        let add = support::kernel(&rt, SOURCE, "add").await;
        queue.submit(add.launch(1024).args((&x, 10u32))).unwrap().await.unwrap();
        queue.submit(add.launch(256).args((&y, 100u32))).unwrap().await.unwrap();
        // A slice of a part starts in the buffer that the part belongs to.
        let slice = y.slice(128..).unwrap();
        queue.submit(add.launch(128).args((&slice, 1000u32))).unwrap().await.unwrap();
        let expected = (0..1024u32).map(|at| match at {
            512..640 => at + 110,
            640..768 => at + 1110,
            _ => at + 10,
        });
        let expected: Vec<u32> = expected.collect();
        assert_eq!(queue.read(&x).await.unwrap(), expected);
        assert_eq!(queue.read(&slice).await.unwrap(), expected[640..768]);

        // Their queue sees the same memory, also through a buffer of Kiln.
        let ours = rt.buffer_from(vec![3u32; 8]).await.unwrap();
        let theirs_queue = CommandQueue::create_default(&context, 0).unwrap();
        let mut seen = [0u32; 8];
        let handle = ours.slice(2..).unwrap().driver_handle().unwrap();
        assert_eq!(handle.offset, 8);
        // SAFETY: all objects are alive, the bytes lie inside the memory, and the read blocks.
        let read = unsafe {
            cl3::command_queue::enqueue_read_buffer(
                theirs_queue.get(),
                handle.object,
                CL_BLOCKING,
                handle.offset,
                24,
                seen.as_mut_ptr().cast(),
                0,
                ptr::null(),
            )
        };
        release(read.unwrap());
        assert_eq!(seen, [3, 3, 3, 3, 3, 3, 0, 0]);
        // Kiln's references outlive theirs.
        drop((part, theirs, theirs_queue, context));
        queue.submit(add.launch(1024).args((&x, 1u32))).unwrap().await.unwrap();
        assert_eq!(queue.read(&x).await.unwrap()[0], 11);
    }));
}

#[test]
fn buffers_over_the_same_memory_are_ordered() {
    block_on(on_each_opencl(async |own| {
        const LEN: usize = 1 << 16;
        let device = Device::new(own.driver_handles().unwrap().device);
        let context = Context::from_device(&device).unwrap();
        // SAFETY: both live until the runtime has started.
        let starting = unsafe { support::builder().opencl_context(device.id(), context.get()) };
        let rt = starting.build().await.unwrap();
        let add = support::kernel(&rt, SOURCE, "add").await;
        let queues = [rt.queue(), rt.queue()];
        // SAFETY: no host memory is given.
        let create = |len| unsafe {
            memory::Buffer::<u32>::create(&context, CL_MEM_READ_WRITE, len, ptr::null_mut())
        };
        let theirs = create(2 * LEN).unwrap();
        // SAFETY: the part lies inside the buffer and is aligned as every device requires.
        let part = unsafe { theirs.create_sub_buffer(CL_MEM_READ_WRITE, LEN, LEN) }.unwrap();
        let ours = rt.buffer::<u32>(2 * LEN).unwrap();
        let known = ours.driver_handle().unwrap();
        // SAFETY: all are alive, and only Kiln uses them.
        let given = |object, len| unsafe { rt.buffer_from_opencl::<u32>(object, len) }.unwrap();
        let pairs = [
            (
                "a part, then the whole",
                given(part.get(), LEN),
                given(theirs.get(), 2 * LEN).slice(LEN..).unwrap(),
            ),
            ("twice", given(theirs.get(), LEN), given(theirs.get(), LEN)),
            ("Kiln's own", ours.slice(..LEN).unwrap(), given(known.object, LEN)),
        ];
        for (case, one, two) in pairs {
            queues[0].fill(&one, 0).unwrap().await.unwrap();
            for round in 1..=30 {
                for (queue, buffer) in queues.iter().zip([&one, &two]) {
                    drop(queue.submit(add.launch(LEN).args((buffer, 1u32))).unwrap());
                }
                let sums = queues[0].read(&one).await.unwrap();
                assert!(sums.iter().all(|sum| *sum == 2 * round), "{case}, round {round}");
                assert_eq!(sums, queues[1].read(&two).await.unwrap(), "{case}, round {round}");
            }
        }

        // A part of memory that kernels only read.
        let mut numbers: Vec<u32> = (0..1024).collect();
        let flags = CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR;
        // SAFETY: the driver copies as many elements as there are.
        let constant = unsafe {
            memory::Buffer::<u32>::create(&context, flags, 1024, numbers.as_mut_ptr().cast())
        };
        let constant = constant.unwrap();
        // SAFETY: as for the other part.
        let read = unsafe { constant.create_sub_buffer(CL_MEM_READ_ONLY, 512, 512) }.unwrap();
        let (from, sum) = (given(read.get(), 512), rt.buffer::<u32>(512).unwrap());
        let copy = support::kernel(&rt, SOURCE, "copy").await;
        drop(queues[0].submit(copy.launch(512).args((from.read_only(), &sum))).unwrap());
        assert_eq!(queues[0].read(&sum).await.unwrap(), numbers[512..]);

        // Commands of another runtime would not be ordered with those of this one.
        // SAFETY: as above.
        let starting = unsafe { support::builder().opencl_context(device.id(), context.get()) };
        let other = starting.build().await.unwrap();
        let kept = given(theirs.get(), LEN);
        for object in [theirs.get(), part.get(), known.object] {
            // SAFETY: as above.
            let error = unsafe { other.buffer_from_opencl::<u32>(object, LEN) }.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(
                error.to_string().contains("shares bytes with memory that Kiln has"),
                "{error}"
            );
        }
        drop(kept);
        rt.drain().await;
        // SAFETY: as above.
        unsafe { other.buffer_from_opencl::<u32>(part.get(), LEN) }.unwrap();
    }));
}

#[test]
fn unusable_objects_are_refused_by_name() {
    block_on(on_each_opencl(async |rt| {
        let null = ptr::null_mut();
        let device = Device::new(rt.driver_handles().unwrap().device);
        let other = Context::from_device(&device).unwrap();
        // SAFETY: nothing is copied.
        let foreign = unsafe {
            memory::Buffer::<u32>::create(&other, CL_MEM_READ_WRITE, 16, ptr::null_mut())
        };
        let foreign = foreign.unwrap();
        let own = rt.buffer::<u32>(16).unwrap();
        let object = own.driver_handle().unwrap().object;
        // SAFETY: each object is alive, or null.
        let buffer = |object, len| unsafe { rt.buffer_from_opencl::<u32>(object, len) };
        // SAFETY: as above.
        let image = |object| unsafe { rt.image_from_opencl::<R<u8>>(object) };
        // SAFETY: as above.
        let program = |object| unsafe { rt.program_from_opencl(object) };
        // SAFETY: as above.
        let start = async |device, context| unsafe { Runtime::from_opencl(device, context) }.await;
        let errors = [
            (buffer(null, 4).map(drop), "`cl_mem` is null"),
            (buffer(object, 0).map(drop), "0 elements of `u32`"),
            (buffer(object, usize::MAX).map(drop), "no size of a buffer"),
            (buffer(object, 17).map(drop), "has 64 bytes; the elements need 68"),
            (buffer(foreign.get(), 16).map(drop), "another context"),
            (image(object).map(drop), "not an image"),
            (image(null).map(drop), "`cl_mem` is null"),
            (program(null).map(drop), "`cl_program` is null"),
            (start(device.id(), null).await.map(drop), "`cl_context` is null"),
            (start(null, other.get()).await.map(drop), "`cl_device_id` is null"),
        ];
        for (refused, reason) in errors {
            let error = refused.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert!(error.to_string().contains(reason), "{error}");
        }
        let ids = get_all_devices(CL_DEVICE_TYPE_ALL).unwrap();
        for id in ids.into_iter().filter(|id| *id != device.id()) {
            let error = start(id, other.get()).await.map(drop).unwrap_err();
            assert!(error.to_string().contains("not one of the given context"), "{error}");
        }
    }));
}

#[test]
fn given_images_are_used_like_others() {
    block_on(support::on_each_device_with_images(async |rt| {
        if rt.device().backend != "opencl" {
            return;
        }
        let context = rt.driver_handles().unwrap().context;
        let format = cl_image_format {
            image_channel_order: CL_RGBA,
            image_channel_data_type: CL_UNORM_INT8,
        };
        let description = cl_image_desc {
            image_type: CL_MEM_OBJECT_IMAGE2D,
            image_width: 7,
            image_height: 5,
            image_depth: 0,
            image_array_size: 0,
            image_row_pitch: 0,
            image_slice_pitch: 0,
            num_mip_levels: 0,
            num_samples: 0,
            buffer: ptr::null_mut(),
        };
        // SAFETY: the context is alive, and nothing is copied.
        let image = unsafe {
            create_image(
                context,
                CL_MEM_READ_WRITE,
                &raw const format,
                &raw const description,
                ptr::null_mut(),
            )
        };
        let object = image.unwrap();
        // SAFETY: the image is alive, and only Kiln uses it.
        let image = unsafe { rt.image_from_opencl::<Rgba<Unorm<u8>>>(object) }.unwrap();
        // SAFETY: as above.
        let other = unsafe { rt.image_from_opencl::<Rgba<u8>>(object) }.map(drop).unwrap_err();
        assert!(other.to_string().contains("`Rgba<Unorm8>`, not `Rgba<Uint8>`"), "{other}");
        // SAFETY: Kiln has a reference of its own.
        unsafe { release_mem_object(object) }.unwrap();
        assert_eq!((image.size(), image.driver_handle().unwrap().object), (&[7, 5][..], object));
        let gray = Rgba([Unorm(128); 4]);
        let queue = rt.queue();
        queue.fill(&image, gray).unwrap();
        assert_eq!(queue.read(&image).await.unwrap(), [gray; 35]);
    }));
}

#[test]
fn given_programs_launch_their_kernels() {
    block_on(on_each_opencl(async |rt| {
        let handles = rt.driver_handles().unwrap();
        let built = cl3::program::create_program_with_source(handles.context, &[SOURCE]).unwrap();
        // SAFETY: the program is alive.
        let unbuilt = unsafe { rt.program_from_opencl(built) };
        assert!(unbuilt.is_err() || unbuilt.unwrap().kernel_names().is_empty());
        let options = c"-cl-kernel-arg-info";
        cl3::program::build_program(built, &[handles.device], options, None, ptr::null_mut())
            .unwrap();
        // SAFETY: the program is alive, and nothing builds it anew.
        let program = unsafe { rt.program_from_opencl(built) }.unwrap();
        // SAFETY: Kiln has a reference of its own.
        unsafe { cl3::program::release_program(built) }.unwrap();
        assert_eq!(program.origin(), Origin::Given);
        let mut names = program.kernel_names();
        names.sort_unstable();
        assert_eq!(names, ["add", "copy"]);
        // SAFETY: each kernel accesses one element for each work-item.
        let [add, copy] = ["add", "copy"].map(|name| unsafe { program.kernel(name) }.unwrap());
        let queue = rt.queue();
        let x = rt.buffer_from(vec![1u32; 64]).await.unwrap();
        let y = rt.buffer::<u32>(64).unwrap();
        let wrong = queue.submit(add.launch(64).args((&x, 1.5f64))).unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::InvalidArgument);
        let scope = queue.start_fusion();
        let _added = scope.submit(add.launch(64).args((&x, 4u32))).unwrap();
        let _copied = scope.submit(copy.launch(64).args((&x, &y))).unwrap();
        let outcome = scope.complete().await.unwrap();
        assert!(!outcome.is_fused(), "{outcome:?}");
        assert_eq!(queue.read(&y).await.unwrap(), [5; 64]);
        let refused = add.launch(64).args((&x, 4u32)).verdict().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("are not known"), "{refused}");
    }));
}
