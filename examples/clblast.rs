//! CLBlast between launches: a layer of a neural network, whose product of matrices is a function of a library that
//! knows nothing of Kiln.
//!
//! ```sh
//! cargo run --release --example clblast        # 256 by 256 elements
//! cargo run --release --example clblast -- 512 # of another size
//! ```
//!
//! The product is a native command of the DAG. It starts after the launches that calculate its inputs, and the launch
//! that uses its result starts after it. The host submits everything at once and waits for the last result alone.
//!
//! The library is loaded at run time (Debian: `apt-get install libclblast1`). Without it, the example says so and ends.

#![allow(clippy::print_stdout)]

use std::env;
use std::error::Error;
use std::ffi::c_void;
use std::ptr;

use kiln::interop::DriverQueue;
use kiln::{Buffer, Event, Queue, Runtime};
use libloading::Library;

kiln::kernels! { mod layer = "clblast.cl"; }

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// `CLBlastSgemm`: layout, transpositions, sizes, alpha, the two factors, beta, the product, queue and event. Each
/// matrix is a memory object, the index of its first element, and the distance of its rows.
type Sgemm = unsafe extern "C" fn(
    u32,
    u32,
    u32,
    usize,
    usize,
    usize,
    f32,
    *mut c_void,
    usize,
    usize,
    *mut c_void,
    usize,
    usize,
    f32,
    *mut c_void,
    usize,
    usize,
    *mut *mut c_void,
    *mut *mut c_void,
) -> i32;

/// `CLBlastLayoutRowMajor` and `CLBlastTransposeNo`.
const ROW_MAJOR: u32 = 101;
const NOT_TRANSPOSED: u32 = 111;

/// Functions of the library, which stays loaded until the process ends.
#[derive(Clone, Copy)]
struct ClBlast {
    sgemm: Sgemm,
}

impl ClBlast {
    fn load() -> Result<Self, libloading::Error> {
        // SAFETY: the library's initialization has no conditions.
        let library = unsafe { Library::new("libclblast.so.1") }?;
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: the function has this signature (clblast_c.h of version 1).
        let sgemm = unsafe { library.get::<Sgemm>(b"CLBlastSgemm\0") }?;
        Ok(Self { sgemm: *sgemm })
    }

    /// Submits the product of two matrices of `size` by `size` elements.
    fn multiply(
        self,
        queue: &Queue,
        size: usize,
        (a, b): (&Buffer<f32>, &Buffer<f32>),
        product: &Buffer<f32>,
    ) -> kiln::Result<Event> {
        let call = move |driver: &DriverQueue<'_>| {
            let [a, b, c] = [0, 1, 2].map(|at| driver.memory()[at]);
            let [a_first, b_first, c_first] = [a, b, c].map(|at| at.offset / size_of::<f32>());
            let (mut queue, n) = (driver.queue(), size);
            // SAFETY: all objects are alive, and each matrix has `n` rows of `n` elements.
            let status = unsafe {
                (self.sgemm)(
                    ROW_MAJOR,
                    NOT_TRANSPOSED,
                    NOT_TRANSPOSED,
                    n,
                    n,
                    n,
                    1.0,
                    a.object,
                    a_first,
                    n,
                    b.object,
                    b_first,
                    n,
                    0.0,
                    c.object,
                    c_first,
                    n,
                    &raw mut queue,
                    ptr::null_mut(),
                )
            };
            match status {
                0 => Ok(()),
                status => Err(format!("CLBlast returned {status}")),
            }
        };
        // SAFETY: the function reads `a` and `b` and writes `product`, on the given queue.
        unsafe { queue.native("sgemm", (a.read_only(), b.read_only(), product), call) }
    }
}

/// Returns element `i` that the kernel `spread` writes.
fn spread(i: usize, modulus: usize) -> f32 {
    (i % modulus) as f32 - (modulus / 2) as f32
}

async fn run(size: usize) -> Result<()> {
    let clblast = match ClBlast::load() {
        Ok(clblast) => clblast,
        Err(error) => {
            println!("skipped: CLBlast is not installed ({error}); install `libclblast1`");
            return Ok(());
        }
    };
    let rt = Runtime::new().await?;
    if rt.driver_handles().is_err() {
        println!("skipped: {} is not a device of OpenCL, which CLBlast needs", rt.device());
        return Ok(());
    }
    println!("on {}", rt.device());
    let (queue, kernels) = (rt.queue(), layer::Kernels::build(&rt).await?);
    let elements = size * size;
    let [input, weights, sums] =
        [rt.buffer::<f32>(elements)?, rt.buffer(elements)?, rt.buffer(elements)?];
    let bias = rt.buffer_from(vec![1.0f32; size]).await?;

    // Nothing is awaited before the result is read.
    let _input = queue.submit(kernels.spread(elements, &input, 5))?;
    let _weights = queue.submit(kernels.spread(elements, &weights, 7))?;
    let _product = clblast.multiply(&queue, size, (&input, &weights), &sums)?;
    let _activated = queue.submit(kernels.activate(elements, &sums, &bias, size as u32))?;
    let outputs = queue.read(&sums).await?;

    for at in (0..elements).step_by(elements / 97 + 1) {
        let (row, column) = (at / size, at % size);
        let terms = (0..size).map(|k| spread(row * size + k, 5) * spread(k * size + column, 7));
        let expected = (terms.sum::<f32>() + 1.0).max(0.0);
        if outputs[at] != expected {
            return Err(format!("element {at} is {}, not {expected}", outputs[at]).into());
        }
    }
    println!("a layer of {size} by {size} elements; the elements that were compared are right");
    rt.drain().await;
    Ok(())
}

fn main() -> Result<()> {
    let size = env::args().nth(1).map_or(Ok(256), |size| size.parse())?;
    smol::block_on(run(size))
}
