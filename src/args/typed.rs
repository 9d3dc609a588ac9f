//! Typed kernels: the macro that generates their functions, and what these functions take.

use bytemuck::Pod;

use super::Argument;
use super::buffer::{Buffer, BufferArgument};
use super::image::Image;
use super::image::pixel::Pixel;

/// Argument of a [typed kernel](crate::kernels) for a pointer that the kernel may write through: a
/// [`&Buffer`](Buffer), or a buffer with a stated access, such as
/// [`buffer.write_only()`](Buffer::write_only).
///
/// # Examples
///
/// ```no_run,standalone_crate
/// kiln::kernels! {
///     mod fill = opencl_c("kernel void fill(global float *x, float value) { x[get_global_id(0)] = value; }");
/// }
///
/// # fn example(queue: &kiln::Queue, kernels: &fill::Kernels, x: &kiln::Buffer<f32>) -> kiln::Result<()> {
/// queue.submit(kernels.fill(x.len(), x, 1.0))?; // after earlier writes of `x`
/// queue.submit(kernels.fill(x.len(), x.write_only(), 2.0))?; // earlier contents do not matter
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a buffer of `{T}` that a kernel can write",
    label = "give `&buffer` or `buffer.write_only()` of a `Buffer<{T}>`",
    note = "the kernel declares this parameter as a `global` pointer without `const`",
    note = "`&buffer.cast::<{T}>()?` is a buffer of other elements, as a buffer of `{T}`"
)]
pub trait WritableBuffer<T>: Argument + sealed::Buffer {}

impl<T: Pod> WritableBuffer<T> for &Buffer<T> {}

impl<T: Pod> WritableBuffer<T> for BufferArgument<'_, T> {}

/// Argument of a [typed kernel](crate::kernels) for an image that the kernel may write, which it declares as
/// `write_only` or `read_write`: an [`&Image`](Image).
///
/// # Examples
///
/// ```no_run,standalone_crate
/// use kiln::Image;
/// use kiln::images::R;
///
/// kiln::kernels! {
///     mod invert = opencl_c("
///         kernel void invert(read_only image2d_t from, write_only image2d_t to) {
///             int2 at = (int2)(get_global_id(0), get_global_id(1));
///             write_imagef(to, at, 1.0f - read_imagef(from, at));
///         }
///     ");
/// }
///
/// # fn example(queue: &kiln::Queue, kernels: &invert::Kernels, from: &Image<R<f32>>, to: &Image<R<f32>>)
/// #     -> kiln::Result<()> {
/// queue.submit(kernels.invert([640, 480], from, to))?;
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an image that a kernel can write",
    label = "give `&image` of an `Image`",
    note = "the kernel declares this parameter as a `write_only` or `read_write` image",
    note = "`Runtime::image_2d` and other methods of the runtime create images, and `Runtime::image_buffer` creates \
            one over the elements of a buffer"
)]
pub trait WritableImage: Argument + sealed::Image {}

impl<P: Pixel> WritableImage for &Image<P> {}

mod sealed {
    /// Keeps other crates from implementing [`WritableBuffer`](super::WritableBuffer).
    pub trait Buffer {}

    /// Keeps other crates from implementing [`WritableImage`](super::WritableImage).
    pub trait Image {}

    impl<P> Image for &super::Image<P> {}

    impl<T> Buffer for &super::Buffer<T> {}

    impl<T> Buffer for super::BufferArgument<'_, T> {}
}

/// Generates typed functions for the kernels of a file, so that a launch with wrong arguments does not compile,
/// and needs no `unsafe`.
///
/// ```ignore
/// kiln::kernels! { mod saxpy = "saxpy.cl"; }
///
/// let saxpy = saxpy::Kernels::build(&rt).await?;
/// queue.submit(saxpy.saxpy(1 << 20, 3.0, &x, &y))?;
/// ```
///
/// The macro reads the signatures of the kernels when the crate is compiled. Each `mod` becomes a module with a
/// struct `Kernels`, which has a method for each kernel. The method takes the range of the launch, then the
/// kernel's own parameters under their own names, and returns a [`Launch`](crate::Launch) that can be adjusted
/// and submitted like every other. The documentation of the method is the comment above the kernel. Launches
/// are [checked](crate::guides::checked): they do not leave the buffers that they are given. For OpenCL C, the
/// checks need clang and llvm-spirv at run time.
///
/// # Where the code comes from
///
/// * `mod name = "path";` reads OpenCL C, or SPIR-V from a file whose name ends in `.spv`. The path is relative
///   to the source file with the macro, as for [`include_str!`]. It can be a `concat!(..)` with `env!(..)`: a
///   file that a build script makes is `concat!(env!("OUT_DIR"), "/tone.cl")`.
/// * `mod name = opencl_c("kernel void ..");` reads a text in the source itself.
///
/// The crate embeds the code. Files that OpenCL C includes are embedded as well, in place of their `#include`,
/// so the application needs none of them at run time. A change of a file causes the crate to be compiled again.
///
/// An invocation can contain several modules, each with a visibility, attributes and documentation.
///
/// # Settings
///
/// Settings are in braces behind the path:
///
/// ```ignore
/// kiln::kernels! {
///     /// Particles and their forces.
///     pub mod physics = "physics.cl" {
///         options = "-D DIMENSIONS=3 -I include";
///         kernels = [step, collide];
///         type Particle = crate::Particle;
///         type half = u16;
///     }
/// }
/// ```
///
/// * `options`: build options, as for [`Module::with_options`](crate::Module::with_options). Folders of `-I` are
///   relative to the folder of the file.
/// * `kernels`: the kernels to generate functions for, if not all of the file.
/// * `type`: the Rust type for a type of the device code. Its path is resolved inside the generated module, so
///   a type beside the macro is `super::Name`. A type that a function declares is out of reach.
///
/// # Types
///
/// | OpenCL C | Rust |
/// | --- | --- |
/// | `char`, `uchar`, .. `long`, `ulong`, `float`, `double` | `i8`, `u8`, .. `i64`, `u64`, `f32`, `f64` |
/// | `float2`, `float4`, `float8`, `float16`, .. | `[f32; 2]`, `[f32; 4]`, `[f32; 8]`, `[f32; 16]`, .. |
/// | `float3`, .. | `[f32; 4]`, because a vector of three takes the space of four |
/// | `global const T *`, `constant T *` | [`&Buffer<T>`](crate::Buffer) |
/// | `global T *` | [`impl WritableBuffer<T>`](crate::launch::WritableBuffer): `&buffer`, or with a stated access |
/// | `local T *` | [`Local<T>`](crate::Local) |
/// | `read_only image2d_t`, `image2d_t` | [`&Image<impl Pixel>`](crate::Image): pixels of any format |
/// | `write_only image2d_t`, `read_write image2d_t` | [`impl WritableImage`](crate::launch::WritableImage): `&image` |
/// | `sampler_t` | [`Sampler`](crate::images::Sampler) |
/// | `void` behind a pointer | `u8` |
/// | `atomic_int`, .. behind a pointer | `i32`, .. |
/// | a `struct`, `union` or `enum` | the type that a setting states |
/// | `half` | the type that a setting states, such as `u16` |
///
/// Names of `typedef`s are resolved. A setting can state a type for any name, also for one that has a type by
/// rule: `type float4 = glam::Vec4;`. Each stated type must implement [`Pod`](crate::bytemuck::Pod) and have
/// the size of the type in the device code, as far as the file declares its members; both are checked at
/// compile time. Members are not compared. A program may be built with other options than the macro knows: a launch
/// whose elements have another size than the struct in the built program is an error.
///
/// Images of all [kinds](crate::guides::images#kinds-and-formats) have the same type in Rust. The documentation
/// of the method names the kind, and a launch with an image of another kind is an error.
///
/// SPIR-V keeps neither the signs of integers nor the names of parameters unless its producer is asked to. Then
/// integers are unsigned, and parameters are `argument_0` and so on. Some compilers also lose what pointers point
/// to, and write what they infer from its use. With clang's `-fno-discard-value-names` and llvm-spirv's
/// `--preserve-ocl-kernel-arg-type-metadata-through-string`, a module states names and types as the source does.
///
/// Names that are keywords of Rust are raw identifiers, such as `r#type`. Names that cannot be, such as `self`,
/// and kernels named `build`, `from_build`, `from_program` or `module` get an underscore at the end.
///
/// # How OpenCL C is read
///
/// If clang is installed, its preprocessor expands the macros, so that kernels can be made by macros and depend
/// on options and on included files. It is the program that the environment variable `KILN_CLANG` names, or the
/// first `clang` or `clang-15` of `PATH`, as at run time. Without clang, a preprocessor of the macro's own does
/// the same. It knows the macros that all devices define alike. A condition by another macro of the compiler, such
/// as `__SIZEOF_POINTER__`, or by a query such as `__has_builtin` is an error if code depends on it.
///
/// Devices differ in their version, `__OPENCL_VERSION__`, and in their extensions, such as `cl_khr_fp16`. The text
/// is read for each version and, without clang, with and without each extension that its conditions ask for. A
/// kernel whose parameters differ between them is an error; one that only some devices have is read. With clang,
/// the extensions are those that it defines.
///
/// C++ for OpenCL is not read.
///
/// # The generated struct
///
/// * `Kernels::build(&runtime)` builds the [checked program](crate::CheckedProgram) of the module and returns the kernels,
///   as a future that can be dropped at any time.
/// * `Kernels::module()` returns the [`Module`](crate::Module), to be built with other settings or for other
///   devices. `Kernels::from_program(&program)` and `Kernels::from_build(&build)` take the kernels from that
///   build, which is one of [`BuildRequest::checked`](crate::BuildRequest::checked); the latter does not wait for it.
///
/// # Errors
///
/// All errors are those of the compiler, at the path or at the setting that they concern; they name the line of
/// the device code. These are errors:
///
/// * a file that cannot be read, has no kernels, or whose preprocessor directives cannot be followed
/// * a kernel that cannot be read, or whose name repeats
/// * a parameter that launches cannot give: depth and multi-sampled images, `bool`, `size_t` and other types
///   whose size depends on the device, pointers to pointers, pointers to no address space; `kernels` leaves
///   such kernels out
/// * a type that is not stated, is stated but not used, has another size or is not `Pod`
///
/// `Kernels::build` fails as [`Runtime::build`](crate::Runtime::build) and
/// [`CheckedProgram::kernel`](crate::CheckedProgram::kernel) do.
///
/// # Examples
///
/// ```no_run,standalone_crate
/// kiln::kernels! {
///     mod saxpy = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/saxpy.cl");
///
///     mod steps = opencl_c(r"
///         typedef struct { float4 position, velocity; } Particle;
///
///         // Moves particles by their velocity.
///         kernel void move(global Particle *particles, float seconds) {
///             global Particle *p = &particles[get_global_id(0)];
///             p->position += seconds * p->velocity;
///         }
///     ") {
///         type Particle = super::Particle;
///     }
/// }
///
/// type Particle = [[f32; 4]; 2]; // or a struct with `#[repr(C)]` and the derives of `bytemuck`
///
/// async fn run(rt: &kiln::Runtime, particles: Vec<Particle>) -> kiln::Result<Vec<Particle>> {
///     let steps = steps::Kernels::build(rt).await?;
///     let particles = rt.buffer_from(particles).await?;
///     let queue = rt.queue();
///     for _ in 0..100 {
///         queue.submit(steps.r#move(particles.len(), &particles, 0.01))?;
///     }
///     queue.read(&particles).await
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! kernels {
    ($($modules:tt)*) => {
        $crate::typed::kernels! { [$crate] $($modules)* }
    };
}
