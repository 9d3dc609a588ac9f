//! Queues: commands and their order, waits, failures, cancellation, transfers and memory.

mod abandoned;
mod backpressure;
mod between_devices;
mod bound;
mod cancel;
mod deadlocks;
mod executor;
mod failures;
mod grids;
mod host_memory;
#[cfg(feature = "opencl")]
mod interop;
mod main_job;
mod mapping;
mod new_buffers;
mod omitted_events;
mod random;
mod refused;
mod released;
mod soundness;
mod spinning;
mod timeouts;
mod transfers;
mod unaligned_slices;
mod wakers;
mod work_groups;
