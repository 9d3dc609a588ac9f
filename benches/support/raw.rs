//! Raw OpenCL driver: only the calls that a careful programmer would write for the same work.

#![allow(dead_code, reason = "each benchmark uses a part of it")]

use std::ffi::c_void;
use std::fs;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, Thread};

use cl3::command_queue::{
    create_command_queue, enqueue_fill_buffer, enqueue_map_buffer, enqueue_read_buffer,
    enqueue_unmap_mem_object, enqueue_write_buffer, finish, flush, release_command_queue,
};
use cl3::context::create_context;
use cl3::device::{CL_DEVICE_TYPE_ALL, get_device_ids};
use cl3::event::{
    CL_COMPLETE, CL_EVENT_COMMAND_EXECUTION_STATUS, get_event_info, release_event,
    set_event_callback, wait_for_events,
};
use cl3::kernel::{create_kernel, create_kernels_in_program, release_kernel, set_kernel_arg};
use cl3::memory::{
    CL_MAP_READ, CL_MAP_WRITE, CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_WRITE, create_buffer,
    release_mem_object,
};
use cl3::platform::{CL_PLATFORM_NAME, get_platform_ids, get_platform_info};
use cl3::program::{
    build_program, compile_program, create_program_with_binary, create_program_with_source,
    link_program, release_program,
};
use cl3::types::{
    CL_BLOCKING, CL_NON_BLOCKING, cl_command_queue, cl_context, cl_device_id, cl_event, cl_kernel,
    cl_mem, cl_program,
};

/// Source of a kernel that [`Raw`] launches.
pub(crate) const AXPY: &str = "kernel void axpy(float a, global const float *x, global float *y) {
    size_t i = get_global_id(0);
    y[i] += a * x[i];
}";

/// A kernel with two buffers and a number, and an in-order queue. Lives as long as the benchmark.
pub(crate) struct Raw {
    context: cl_context,
    device: cl_device_id,
    queue: cl_command_queue,
    kernel: cl_kernel,
    buffers: [cl_mem; 2],
    items: usize,
    /// The kernel's first argument.
    pub(crate) number: f32,
}

impl Raw {
    /// Opens the first device of the platform whose name contains `platform`, if there is one.
    pub(crate) fn new(platform: &str, source: &str, name: &str, items: usize) -> Option<Self> {
        Self::on((platform, 0), source, name, items)
    }

    /// Opens a device, given by its number, of the platform whose name contains `platform`, if there is one.
    pub(crate) fn on(
        device: (&str, usize),
        source: &str,
        name: &str,
        items: usize,
    ) -> Option<Self> {
        Self::with_program(device, name, items, |context, _| {
            create_program_with_source(context, &[source]).ok()
        })
    }

    /// Like [`new`](Self::new), with the binary of a program in a file.
    pub(crate) fn of_binary(platform: &str, file: &Path, name: &str, items: usize) -> Option<Self> {
        Self::with_program((platform, 0), name, items, |context, device| {
            let binary = fs::read(file).ok()?;
            // SAFETY: context and device are alive and belong together.
            unsafe { create_program_with_binary(context, &[device], &[&binary]) }.ok()
        })
    }

    fn with_program(
        (platform, number): (&str, usize),
        name: &str,
        items: usize,
        program: impl FnOnce(cl_context, cl_device_id) -> Option<cl_program>,
    ) -> Option<Self> {
        let found = get_platform_ids().ok()?.into_iter().find(|&id| {
            let name =
                get_platform_info(id, CL_PLATFORM_NAME).map(String::from).unwrap_or_default();
            name.to_lowercase().contains(platform)
        })?;
        let device = *get_device_ids(found, CL_DEVICE_TYPE_ALL).ok()?.get(number)?;
        let context = create_context(&[device], null(), None, null_mut()).ok()?;
        // SAFETY: the device is the context's.
        let queue = unsafe { create_command_queue(context, device, 0) }.ok()?;
        let program = program(context, device)?;
        build_program(program, &[device], c"", None, null_mut()).ok()?;
        let name = std::ffi::CString::new(name).ok()?;
        let kernel = create_kernel(program, &name).ok()?;
        let buffer = || {
            // SAFETY: no host memory is given.
            unsafe { create_buffer(context, CL_MEM_READ_WRITE, items * 4, null_mut()) }.ok()
        };
        let buffers = [buffer()?, buffer()?];
        for buffer in buffers {
            let one = 1.0f32;
            // Without a fill, all of the buffer may be one page of zeros.
            // SAFETY: the pattern is copied, and the range is the buffer's.
            let filled = unsafe {
                enqueue_fill_buffer(
                    queue,
                    buffer,
                    (&raw const one).cast(),
                    4,
                    0,
                    items * 4,
                    0,
                    null(),
                )
            };
            drop(OwnedEvent(filled.ok()?));
        }
        Some(Self { context, device, queue, kernel, buffers, items, number: 1.0 })
    }

    fn set_arguments(&self) {
        let [x, y] = &self.buffers;
        // SAFETY: the pointer is to a value of the size given.
        unsafe { set_kernel_arg(self.kernel, 0, 4, (&raw const self.number).cast()) }
            .expect("it fits");
        for (index, buffer) in [(1, x), (2, y)] {
            // SAFETY: the pointer is to a handle of the size given.
            unsafe { set_kernel_arg(self.kernel, index, 8, (&raw const *buffer).cast()) }
                .expect("it fits");
        }
    }

    /// Sets the arguments and enqueues, with or without an event.
    pub(crate) fn enqueue(&self, event: Option<&mut cl_event>) {
        self.set_arguments();
        self.enqueue_prepared(event);
    }

    /// Enqueues with the arguments that were set last.
    pub(crate) fn enqueue_prepared(&self, event: Option<&mut cl_event>) {
        let opencl = cl3::load_library().as_ref().expect("the loader is there");
        let status = opencl.clEnqueueNDRangeKernel(
            self.queue,
            self.kernel,
            1,
            null(),
            &raw const self.items,
            null(),
            0,
            null(),
            event.map_or(null_mut(), |event| event),
        );
        assert_eq!(status, Some(0), "it is enqueued");
    }

    /// Waits for the launches, and returns the numbers of the second buffer.
    pub(crate) fn result(&self) -> Vec<f32> {
        let mut result = vec![0.0f32; self.items];
        // SAFETY: the buffer and the memory have as many numbers, and the call waits for the end of the copy.
        let read = unsafe {
            enqueue_read_buffer(
                self.queue,
                self.buffers[1],
                CL_BLOCKING,
                0,
                self.items * 4,
                result.as_mut_ptr().cast(),
                0,
                null(),
            )
        };
        drop(OwnedEvent(read.expect("it is read")));
        result
    }

    /// Allocates memory on the device.
    pub(crate) fn buffer(&self, bytes: usize) -> RawBuffer {
        // SAFETY: no host memory is given.
        let buffer = unsafe { create_buffer(self.context, CL_MEM_READ_WRITE, bytes, null_mut()) };
        RawBuffer(buffer.expect("there is memory"))
    }

    /// Allocates memory that host and device share.
    pub(crate) fn host_buffer(&self, bytes: usize) -> RawBuffer {
        let flags = CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR;
        // SAFETY: no host memory is given.
        let buffer = unsafe { create_buffer(self.context, flags, bytes, null_mut()) };
        RawBuffer(buffer.expect("there is memory"))
    }

    /// Maps the first `bytes` bytes, calls `use_bytes`, and enqueues the end of the mapping.
    pub(crate) fn map(&self, buffer: &RawBuffer, bytes: usize, use_bytes: impl FnOnce(&mut [u8])) {
        let mut start = null_mut();
        // SAFETY: the buffer has as many bytes.
        let mapped = unsafe {
            enqueue_map_buffer(
                self.queue,
                buffer.0,
                CL_BLOCKING,
                CL_MAP_READ | CL_MAP_WRITE,
                0,
                bytes,
                &mut start,
                0,
                null(),
            )
        };
        drop(OwnedEvent(mapped.expect("it is mapped")));
        // SAFETY: the bytes are mapped until the call below, and nothing else uses them.
        use_bytes(unsafe { std::slice::from_raw_parts_mut(start.cast(), bytes) });
        // SAFETY: the buffer is mapped at this address.
        let unmapped = unsafe { enqueue_unmap_mem_object(self.queue, buffer.0, start, 0, null()) };
        drop(OwnedEvent(unmapped.expect("it is enqueued")));
        self.flush();
    }

    /// Enqueues a write, without waiting for it.
    pub(crate) fn write(&self, to: &RawBuffer, from: &[u8]) {
        drop(self.write_part(to, 0, from));
    }

    /// Enqueues a write that begins at the byte `offset`, without waiting for it.
    pub(crate) fn write_part(&self, to: &RawBuffer, offset: usize, from: &[u8]) -> OwnedEvent {
        // SAFETY: both have `from.len()` bytes, and benchmarks finish before they change or drop them.
        let enqueued = unsafe {
            enqueue_write_buffer(
                self.queue,
                to.0,
                CL_NON_BLOCKING,
                offset,
                from.len(),
                from.as_ptr().cast(),
                0,
                null(),
            )
        };
        self.flush();
        OwnedEvent(enqueued.expect("it is enqueued"))
    }

    /// Reads from the byte `offset` on, and waits until the bytes are there.
    pub(crate) fn read_part(&self, from: &RawBuffer, offset: usize, to: &mut [u8]) {
        // SAFETY: both have `to.len()` bytes, and the call returns when the bytes are there.
        let read = unsafe {
            enqueue_read_buffer(
                self.queue,
                from.0,
                CL_BLOCKING,
                offset,
                to.len(),
                to.as_mut_ptr().cast(),
                0,
                null(),
            )
        };
        drop(OwnedEvent(read.expect("it is read")));
    }

    /// Enqueues a fill of the first `bytes` bytes, without waiting for it.
    pub(crate) fn fill(&self, to: &RawBuffer, pattern: &[u8], bytes: usize) {
        // SAFETY: the buffer has at least this many bytes, and the driver copies the pattern.
        let enqueued = unsafe {
            enqueue_fill_buffer(
                self.queue,
                to.0,
                pattern.as_ptr().cast(),
                pattern.len(),
                0,
                bytes,
                0,
                null(),
            )
        };
        drop(OwnedEvent(enqueued.expect("it is enqueued")));
        self.flush();
    }

    /// Enqueues a read that fills the vector's capacity, without waiting for it.
    pub(crate) fn read(&self, from: &RawBuffer, to: &mut Vec<u8>) {
        // SAFETY: both have `to.capacity()` bytes, and benchmarks finish before they drop them.
        let enqueued = unsafe {
            enqueue_read_buffer(
                self.queue,
                from.0,
                CL_NON_BLOCKING,
                0,
                to.capacity(),
                to.as_mut_ptr().cast(),
                0,
                null(),
            )
        };
        drop(OwnedEvent(enqueued.expect("it is enqueued")));
        self.flush();
    }

    /// Reads the first `bytes` bytes of a file, which are a program's binary, and creates the program.
    pub(crate) fn load(&self, path: &Path, bytes: usize) -> RawProgram {
        let file = fs::read(path).expect("it can be read");
        // SAFETY: context and device are alive and belong together.
        let program =
            unsafe { create_program_with_binary(self.context, &[self.device], &[&file[..bytes]]) };
        let program = RawProgram { program: program.expect("it is a binary"), kernels: Vec::new() };
        build_program(program.program, &[self.device], c"", None, null_mut()).expect("it builds");
        program
    }

    /// Compiles an object for linking.
    pub(crate) fn compile(&self, source: &str) -> RawProgram {
        let program = create_program_with_source(self.context, &[source]).expect("it is text");
        let program = RawProgram { program, kernels: Vec::new() };
        compile_program(program.program, &[self.device], c"", &[], &[], None, null_mut())
            .expect("it compiles");
        program
    }

    /// Links objects, and creates the kernels.
    pub(crate) fn link(&self, objects: [&RawProgram; 2]) -> RawProgram {
        let objects = objects.map(|object| object.program);
        // SAFETY: context, device and objects are alive and belong together.
        let linked =
            unsafe { link_program(self.context, &[self.device], c"", &objects, None, null_mut()) };
        RawProgram { program: linked.expect("they fit"), kernels: Vec::new() }.create_kernels()
    }

    /// Enqueues a launch, and returns its event.
    pub(crate) fn enqueue_with_event(&self) -> OwnedEvent {
        let mut event = null_mut();
        self.enqueue(Some(&mut event));
        OwnedEvent(event)
    }

    /// Flushes the queue.
    pub(crate) fn flush(&self) {
        flush(self.queue).expect("it is flushed");
    }

    /// Waits for everything enqueued.
    pub(crate) fn finish(&self) {
        finish(self.queue).expect("it finishes");
    }

    /// Enqueues a launch, and busy-waits until it has ended.
    pub(crate) fn enqueue_and_spin(&self) {
        let event = self.enqueue_with_event();
        self.flush();
        let status = || get_event_info(event.0, CL_EVENT_COMMAND_EXECUTION_STATUS).map(i32::from);
        while status() != Ok(CL_COMPLETE) {
            std::hint::spin_loop();
        }
    }

    /// Enqueues a launch, registers a callback, and sleeps until the callback wakes this thread.
    pub(crate) fn enqueue_and_await(&self) {
        let event = self.enqueue_with_event();
        let wake = Wake { done: AtomicBool::new(false), thread: thread::current() };
        set_event_callback(event.0, CL_COMPLETE, on_complete, (&raw const wake).cast_mut().cast())
            .expect("it is registered");
        self.flush();
        while !wake.done.load(SeqCst) {
            thread::park();
        }
    }
}

/// An event, released when dropped.
pub(crate) struct OwnedEvent(cl_event);

impl OwnedEvent {
    pub(crate) fn wait(self) {
        wait_for_events(&[self.0]).expect("it succeeds");
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        // SAFETY: the event is this object's own.
        unsafe { release_event(self.0) }.expect("it is released");
    }
}

/// Memory on the device, released when dropped.
pub(crate) struct RawBuffer(cl_mem);

impl Drop for RawBuffer {
    fn drop(&mut self) {
        // SAFETY: the buffer is this object's own.
        unsafe { release_mem_object(self.0) }.expect("it is released");
    }
}

struct Wake {
    done: AtomicBool,
    thread: Thread,
}

extern "C" fn on_complete(_: cl_event, _: i32, wake: *mut c_void) {
    // SAFETY: the waiting thread keeps it until `done` is set.
    let wake = unsafe { &*wake.cast::<Wake>() };
    // The waiting thread may drop `wake` as soon as `done` is set.
    let thread = wake.thread.clone();
    wake.done.store(true, SeqCst);
    thread.unpark();
}

/// A program that was loaded or linked.
pub(crate) struct RawProgram {
    program: cl_program,
    kernels: Vec<cl_kernel>,
}

// SAFETY: OpenCL allows the use of these objects from any thread, of a kernel from one at a time.
unsafe impl Send for RawProgram {}
// SAFETY: as above.
unsafe impl Send for Raw {}
// SAFETY: as above; its kernel is used only by benchmarks of one thread.
unsafe impl Sync for Raw {}

impl RawProgram {
    /// Creates the kernels of the program.
    pub(crate) fn create_kernels(mut self) -> Self {
        self.kernels = create_kernels_in_program(self.program).expect("it has kernels");
        self
    }
}

impl Drop for RawProgram {
    fn drop(&mut self) {
        for kernel in &self.kernels {
            // SAFETY: the kernel is this object's own.
            let _ = unsafe { release_kernel(*kernel) };
        }
        // SAFETY: the program is this object's own.
        let _ = unsafe { release_program(self.program) };
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: the queue is this object's own.
        let _ = unsafe { release_command_queue(self.queue) };
    }
}
