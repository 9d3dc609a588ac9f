//! Kernel arguments: from Rust values to checked bytes.

pub(crate) mod buffer;
mod element;
pub(crate) mod grid;
pub(crate) mod image;
mod known;
pub(crate) mod memory;
pub(crate) mod region;
pub(crate) mod typed;

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::sync::Arc;

use bytemuck::Pod;
use smallvec::SmallVec;

use self::buffer::{Buffer, BufferArgument};
pub(crate) use self::element::{Element, ElementType};
use self::image::Image;
use self::image::pixel::Pixel;
use self::region::Region;
use crate::device::{ImageKind, Sampler};
use crate::error::{Error, Result};
use kiln_spirv::{Access, AddressSpace, Parameter, is_object};

/// Local memory of a work-group as a kernel argument: `len` elements of `T`. The contents are not visible
/// outside the work-group.
///
/// # Examples
///
/// ```no_run
/// use kiln::Local;
///
/// # fn example(
/// #     queue: kiln::Queue,
/// #     sum: kiln::Kernel,
/// #     x: kiln::Buffer<f32>,
/// #     sums: kiln::Buffer<f32>,
/// # ) -> kiln::Result<()> {
/// let group = 256; // work-items, each with one element of local memory
/// let launch = sum.launch(x.len()).local(group).args((&x, &sums, Local::<f32>::new(group)));
/// queue.submit(launch)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local<T> {
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod> Local<T> {
    /// Returns an argument that reserves `len` elements.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Local;
    ///
    /// # fn example(
    /// #     queue: kiln::Queue,
    /// #     transpose: kiln::Kernel,
    /// #     from: kiln::Buffer<f32>,
    /// #     to: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// let tile = Local::<f32>::new(16 * 17); // 16 rows, padded against bank conflicts
    /// queue.submit(transpose.launch([1024, 1024]).local([16, 16]).args((&from, &to, tile)))?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { len, element: PhantomData }
    }
}

/// Kernel argument: a [`&Buffer`](Buffer), a [`BufferArgument`] such as `buffer.read_only()`, an
/// [`&Image`](Image), a [`Sampler`], a [`Local`], or any plain value by copy.
///
/// | OpenCL C | Rust |
/// | --- | --- |
/// | `char`, `uchar`, .. `long`, `ulong`, `float`, `double` | `i8`, `u8`, .. `i64`, `u64`, `f32`, `f64` |
/// | `half` | `u16` or `i16` with the same bits |
/// | `float2`, `float4`, .. | `[f32; 2]`, `[f32; 4]`, .. |
/// | `float3` | `[f32; 4]`, because a vector of three takes the space of four |
/// | `ulong`, `long` on 64-bit hosts | also `usize`, `isize` |
/// | `image2d_t`, `image3d_t`, .. | an [`&Image`](Image) of that [kind](ImageKind) |
/// | `sampler_t` | a [`Sampler`] |
/// | a `struct` | a [`Pod`] of the same layout (not checked): `#[repr(C)]`, with the derive of [`bytemuck`](crate::bytemuck) |
///
/// The elements of a buffer or of local memory may also be the scalars of the kernel's vectors, such as `f32`
/// for `float4*`.
///
/// # Examples
///
/// ```no_run
/// use kiln::Local;
///
/// # fn example(shade: kiln::Kernel, pixels: kiln::Buffer<[f32; 4]>) {
/// let light = [0.3f32, 0.6, 0.1, 0.0]; // a `float4`
/// let tile = Local::<[f32; 4]>::new(64); // a `local float4 *`
/// let launch = shade.launch(pixels.len()).local(64).args((&pixels, tile, light, 2.2f32));
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a kernel argument",
    label = "give `&buffer`, `buffer.read_only()`, `Local::new(n)`, or a number or other `Pod` by value",
    note = "for a buffer, give `&buffer`; for a future of one, such as `rt.buffer_from(..)`, `.await` it first",
    note = "for a slice or `Vec`, upload it with `rt.buffer_from(vec).await?` and give `&buffer`",
    note = "for a `bool`, give a `u8`, an `i32` or another number of the kernel parameter's type",
    note = "for your own struct, derive `bytemuck::Pod` and `Zeroable`, with `#[repr(C)]`, and give it by value"
)]
pub trait Argument {
    #[doc(hidden)]
    fn into_value(self, seal: Seal) -> ArgumentValue;
}

/// Tuple of up to 16 [`Argument`]s, in the order of the kernel's parameters.
/// [`Launch::arg`](crate::Launch::arg) adds further arguments.
///
/// # Examples
///
/// ```no_run
/// use kiln::{Arguments, Event, Kernel, Queue, Result};
///
/// fn run(queue: &Queue, kernel: &Kernel, n: usize, arguments: impl Arguments) -> Result<Event> {
///     println!("`{}` over {n} work-items", kernel.name());
///     queue.submit(kernel.launch(n).args(arguments)) // such as `(&x, &y, 3.0f32)`
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tuple of at most 16 kernel arguments",
    label = "give a tuple, such as `(&x, 3.0f32)`, or `(&x,)` for one argument",
    note = "for more than 16 arguments, add them one by one: `.arg(&x).arg(3.0f32)`"
)]
pub trait Arguments {
    #[doc(hidden)]
    fn append_to(self, list: &mut ArgumentList, seal: Seal);
}

/// Arguments of a launch, in order.
pub(crate) type ArgumentList = SmallVec<[ArgumentValue; 4]>;

mod sealed {
    /// Parameter of the hidden methods. Only this crate can name the type, so only this crate can implement or
    /// call the methods.
    #[derive(Debug)]
    pub struct Seal;
}

pub(crate) use sealed::Seal;

/// Argument that lives as long as its launch. The type is opaque, and public only because the sealed traits
/// name it.
#[doc(hidden)]
#[derive(Clone)]
pub struct ArgumentValue {
    pub(crate) kind: ArgumentKind,
    pub(crate) element: &'static Element,
    /// Set for a value that every replay of a graph sets; `kind` then has as many zeros.
    pub(crate) open: Option<OpenId>,
}

/// Identity of a value that every replay of a recorded graph sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenId {
    /// Number of the recording.
    pub(crate) recording: NonZeroU32,
    /// Index among the open values of the recording.
    pub(crate) index: u32,
}

impl ArgumentValue {
    fn new(kind: ArgumentKind, element: &'static Element) -> Self {
        Self { kind, element, open: None }
    }

    /// Returns a value of type `T` that every replay of a graph sets.
    pub(crate) fn open<T: Pod>(id: OpenId) -> Self {
        Self { open: Some(id), ..T::zeroed().into_value(Seal) }
    }
}

impl fmt::Debug for ArgumentValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (`{}`)", self.kind.in_words(), self.element)
    }
}

#[derive(Clone)]
pub(crate) enum ArgumentKind {
    /// Buffer or image, with the access that the caller stated, if any.
    Memory(Arc<Region>, Option<Access>),
    Sampler(kiln_compiler::Sampler),
    Value(SmallVec<[u8; 16]>),
    /// Size of local memory in bytes. `usize::MAX` stands for a size that overflows.
    Local(usize),
}

impl<T: Pod> Argument for &Buffer<T> {
    fn into_value(self, _: Seal) -> ArgumentValue {
        ArgumentValue::new(ArgumentKind::Memory(self.region().clone(), None), Element::of::<T>())
    }
}

impl<T: Pod> Argument for BufferArgument<'_, T> {
    fn into_value(self, _: Seal) -> ArgumentValue {
        let kind = ArgumentKind::Memory(self.buffer.region().clone(), Some(self.access));
        ArgumentValue::new(kind, Element::of::<T>())
    }
}

impl<P: Pixel> Argument for &Image<P> {
    fn into_value(self, _: Seal) -> ArgumentValue {
        ArgumentValue::new(ArgumentKind::Memory(self.region().clone(), None), Element::of::<P>())
    }
}

impl Argument for Sampler {
    fn into_value(self, _: Seal) -> ArgumentValue {
        ArgumentValue::new(ArgumentKind::Sampler(self.0), Element::of::<Self>())
    }
}

impl<T: Pod> Argument for Local<T> {
    fn into_value(self, _: Seal) -> ArgumentValue {
        // A size that overflows saturates. It exceeds the local memory of any device, so it fails the checks of
        // the launch.
        let bytes = self.len.saturating_mul(size_of::<T>());
        ArgumentValue::new(ArgumentKind::Local(bytes), Element::of::<T>())
    }
}

// For a type that is not `Pod`, the compiler reports that `Argument` is not implemented and suggests what to
// pass, instead of reporting that `Pod` is not implemented.
#[diagnostic::do_not_recommend]
impl<T: Pod> Argument for T {
    fn into_value(self, _: Seal) -> ArgumentValue {
        let bytes = SmallVec::from_slice(bytemuck::bytes_of(&self));
        ArgumentValue::new(ArgumentKind::Value(bytes), Element::of::<T>())
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: Argument),*> Arguments for ($($name,)*) {
            #[allow(non_snake_case)]
            fn append_to(self, list: &mut ArgumentList, _: Seal) {
                let ($($name,)*) = self;
                $(list.push($name.into_value(Seal));)*
                let _ = list;
            }
        }
    };
}

macro_rules! all_tuples {
    ($first:ident $($rest:ident)*) => {
        tuples!($first $($rest)*);
        all_tuples!($($rest)*);
    };
    () => { tuples!(); };
}

all_tuples!(A B C D E F G H I J K L M N O P);

impl ArgumentKind {
    fn in_words(&self) -> &'static str {
        match self {
            Self::Memory(region, _) if region.image().is_some() => "an image",
            Self::Memory(..) => "a buffer",
            Self::Sampler(_) => "a sampler",
            Self::Local(_) => "local memory (`Local::new`)",
            Self::Value(_) => "a value",
        }
    }

    /// Returns advice for an error message: the value to pass instead of this argument for an element of this type.
    fn advice(&self, wanted: ElementType) -> String {
        let (name, example) = wanted.in_rust();
        match (self, example) {
            (Self::Value(_), Some(example)) => {
                format!("give {} `{name}`, such as `{example}`", article(&name))
            }
            (Self::Value(_), None) => format!("give {} `{name}`", article(&name)),
            (Self::Local(_), _) => format!("give `Local::<{name}>::new(n)`"),
            (Self::Memory(..) | Self::Sampler(_), _) => {
                format!("give a `Buffer<{name}>`, or cast the buffer: `&buffer.cast::<{name}>()?`")
            }
        }
    }
}

fn article(type_name: &str) -> &'static str {
    // As in "an f32" and "an i8".
    if type_name.starts_with(['f', 'i']) { "an" } else { "a" }
}

impl ArgumentValue {
    /// Returns whether this is a placeholder for memory that a replay of a graph binds.
    pub(crate) fn is_placeholder(&self) -> bool {
        matches!(&self.kind, ArgumentKind::Memory(region, _) if region.is_placeholder())
    }

    /// Checks the argument against what is known about the parameter.
    pub(crate) fn check(
        &self,
        kernel: &str,
        index: usize,
        parameter: &Parameter,
        element: Option<ElementType>,
    ) -> Result<()> {
        let problem =
            self.kind_problem(parameter).or_else(|| self.element_problem(parameter, element));
        match problem {
            Some(problem) => Err(Error::invalid(format!(
                "kernel `{kernel}`, {}: {problem}",
                describe(index, parameter)
            ))),
            None => Ok(()),
        }
    }

    /// Returns the problem for a message if the parameter does not take this kind of argument.
    fn kind_problem(&self, parameter: &Parameter) -> Option<String> {
        if let Some(object) = parameter.type_name.as_deref().filter(|name| is_object(name)) {
            return self.object_problem(object);
        }
        let rust = self.element;
        let is_object = match &self.kind {
            ArgumentKind::Memory(region, _) => region.image().is_some(),
            ArgumentKind::Sampler(_) => true,
            ArgumentKind::Value(_) | ArgumentKind::Local(_) => false,
        };
        match (parameter.address_space?, &self.kind) {
            // The name of the parameter's type decides, if it is known.
            (_, given) if is_object => {
                let expected = match &parameter.type_name {
                    Some(type_name) => format!("`{type_name}`"),
                    None => parameter.size.map(|bytes| format!("value of {bytes} bytes"))?,
                };
                Some(format!("given {} (`{rust}`), expected a {expected}", given.in_words()))
            }
            (AddressSpace::Global | AddressSpace::Constant, ArgumentKind::Memory(_, stated)) => {
                // A kernel may cast `const` away, but cannot write to `constant` memory.
                let is_constant = parameter.address_space == Some(AddressSpace::Constant);
                let stated = match stated {
                    Some(Access::Write) if parameter.access == Some(Access::Read) => "write_only()",
                    Some(Access::ReadWrite) if is_constant => "read_write()",
                    _ => return None,
                };
                Some(format!(
                    "given as `{stated}`, but the kernel's signature declares the parameter as \
                     read-only; give `read_only()`, or the plain buffer"
                ))
            }
            (AddressSpace::Local, ArgumentKind::Local(bytes)) => {
                let many = match *bytes {
                    0 => "0",
                    usize::MAX => "too many",
                    _ => return None,
                };
                Some(format!(
                    "given local memory of {many} elements of `{rust}`; give at least one element, \
                     and at most as many as fit in the device's local memory"
                ))
            }
            (AddressSpace::Private, ArgumentKind::Value(_)) => None,
            (expected, given) => {
                let expected = match expected {
                    AddressSpace::Global | AddressSpace::Constant => "a buffer",
                    AddressSpace::Local => "local memory (`Local::new`)",
                    AddressSpace::Private => "a value",
                };
                Some(format!("given {} of `{rust}`, expected {expected}", given.in_words()))
            }
        }
    }

    /// Returns the problem for a message if a parameter of the type of an OpenCL object does not take this argument.
    fn object_problem(&self, expected: &str) -> Option<String> {
        let given = match &self.kind {
            ArgumentKind::Memory(region, _) => match region.image() {
                Some(image) if image.shape.kind.type_name() == expected => return None,
                Some(image) => format!("an image of {}", image.shape),
                None => format!("a buffer of `{}`", self.element),
            },
            ArgumentKind::Sampler(sampler) if expected == "sampler_t" => return sampler.problem(),
            other => other.in_words().to_owned(),
        };
        let advice = match ImageKind::of_type(expected) {
            Some(kind) => format!("give an image that `Runtime::{}` creates", kind.constructor()),
            None if expected == "sampler_t" => {
                "give a `Sampler`, such as `Sampler::new()`".to_owned()
            }
            None => "Kiln does not support such arguments".to_owned(),
        };
        Some(format!("given {given}, expected `{expected}`: {advice}"))
    }

    /// Returns the problem for a message if the argument's elements do not fit the parameter's. Returns `None`
    /// for a parameter without an address space, of which nothing is known.
    fn element_problem(
        &self,
        parameter: &Parameter,
        element: Option<ElementType>,
    ) -> Option<String> {
        parameter.address_space?;
        let (rust, size) = (self.element, self.element.size);
        let (Some(element), Some(type_name)) = (element, &parameter.type_name) else {
            return match (parameter.size, &self.kind) {
                (Some(expected), ArgumentKind::Value(bytes)) if bytes.len() != expected => {
                    let given = bytes.len();
                    Some(format!(
                        "given `{rust}` of {given} bytes, expected a value of {expected} bytes"
                    ))
                }
                _ => None,
            };
        };
        let scalar = (rust.scalar)();
        if scalar.is_some_and(|given| !element.scalar.accepts(given)) {
            let advice = self.kind.advice(element);
            return Some(format!("given `{rust}`, expected `{type_name}`: {advice}"));
        }
        match &self.kind {
            ArgumentKind::Value(bytes) if bytes.len() != element.size() => Some(format!(
                "given `{rust}` of {} bytes, expected `{type_name}` of {} bytes: {}",
                bytes.len(),
                element.size(),
                self.kind.advice(element)
            )),
            // Other arrays are accepted: they may be part of a vector, or several vectors.
            ArgumentKind::Memory(..) | ArgumentKind::Local(_)
                if scalar.is_some() && element.lanes == 4 && 4 * size == 3 * element.size() =>
            {
                Some(format!(
                    "given elements of `{rust}`, {size} bytes each, expected `{type_name}`, whose \
                     elements take {} bytes each, like arrays of four elements",
                    element.size()
                ))
            }
            _ => None,
        }
    }
}

/// Returns a description of a parameter for messages.
pub(crate) fn describe(index: usize, parameter: &Parameter) -> String {
    match (&parameter.type_name, &parameter.name) {
        (Some(type_name), Some(name)) => format!("parameter {index} `{type_name} {name}`"),
        (None, Some(name)) => format!("parameter {index} `{name}`"),
        (Some(type_name), None) => format!("parameter {index} of type `{type_name}`"),
        (None, None) => format!("parameter {index}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Addressing;

    fn parameter(type_name: &str, address_space: AddressSpace) -> Parameter {
        let (name, type_name) = (Some("x".into()), Some(type_name.into()));
        Parameter::new(name, type_name, Some(address_space), None, None)
    }

    fn check_in(space: AddressSpace, argument: impl Argument, type_name: &str) -> Result<()> {
        let parameter = parameter(type_name, space);
        argument.into_value(Seal).check("k", 0, &parameter, ElementType::of(&parameter))
    }

    fn check(argument: impl Argument, type_name: &str) -> Result<()> {
        check_in(AddressSpace::Private, argument, type_name)
    }

    #[test]
    fn values_fit_by_type_and_size() {
        assert!(check(1.0f32, "float").is_ok());
        assert!(check([1.0f32; 4], "float4").is_ok());
        assert!(check([1.0f32; 4], "float3").is_ok());
        assert!(check(1usize, if usize::BITS == 64 { "ulong" } else { "uint" }).is_ok());
        assert!(check(1u32, "unsigned int").is_ok());
        for (result, given) in [
            (check(1.0f64, "float"), "f64"),
            (check(1i32, "uint"), "i32"),
            (check([1.0f32; 2], "float4"), "[f32; 2]"),
        ] {
            let message = result.expect_err("it does not fit").to_string();
            assert!(message.contains("kernel `k`, parameter 0"), "{message}");
            assert!(message.contains(given), "{message}");
        }
    }

    #[test]
    fn mismatched_arguments_are_reported_with_the_expected_type() {
        let local = |name| check_in(AddressSpace::Local, Local::<u32>::new(4), name);
        for (result, advice) in [
            (check(3.0f64, "float"), "give an `f32`, such as `3.0f32`"),
            (check(3.0f32, "double"), "give an `f64`, such as `3.0f64`"),
            (check(5i32, "ulong"), "give a `u64`, such as `5u64`"),
            (check(5i32, "unsigned char"), "give a `u8`, such as `5u8`"),
            (check(1.0f32, "half"), "give a `u16`, such as `0x3c00u16`"),
            (check([1.0f64; 4], "float4"), "give a `[f32; 4]`"),
            (check([1.0f32; 2], "float4"), "give a `[f32; 4]`"),
            (local("int*"), "give `Local::<i32>::new(n)`"),
        ] {
            let message = result.expect_err("it does not fit").to_string();
            assert!(message.ends_with(advice), "{message}");
        }
    }

    #[test]
    fn vectors_of_three_occupy_the_size_of_four() {
        for (result, given) in [
            (check_in(AddressSpace::Local, Local::<[f32; 3]>::new(8), "float3*"), "[f32; 3]"),
            (check_in(AddressSpace::Local, Local::<[i16; 3]>::new(8), "short4*"), "[i16; 3]"),
        ] {
            let message =
                result.expect_err("the kernel uses more than the given memory").to_string();
            assert!(message.contains(given) && message.contains("of four"), "{message}");
        }
        let check = |local: Local<[f32; 3]>, name| check_in(AddressSpace::Local, local, name);
        check(Local::new(8), "float*").expect("it takes them one by one");
        check(Local::new(8), "int*").expect_err("another type");
        assert!(check_in(AddressSpace::Local, Local::<[f32; 4]>::new(8), "float3*").is_ok());
        assert!(check_in(AddressSpace::Local, Local::<f32>::new(32), "float3*").is_ok());
    }

    #[test]
    fn unknown_types_are_left_to_the_driver() {
        assert!(check(1.0f32, "struct Params").is_ok());
        assert!(check(1u16, "pixel").is_ok());
    }

    #[test]
    fn half_values_are_given_as_bits() {
        assert!(check(1u16, "half").is_ok());
        assert!(check([1i16; 4], "half4").is_ok());
        let global = |argument| check_in(AddressSpace::Local, argument, "half*");
        assert!(global(Local::<u16>::new(4)).is_ok());
        for result in [check(1.0f32, "half"), check(1u32, "half2"), check([1u16; 2], "half")] {
            result.expect_err("it has another size or type");
        }
    }

    #[test]
    fn objects_of_opencl_are_not_values() {
        for (name, advice) in [
            ("image2d_t", "an image that `Runtime::image_2d` creates"),
            ("image1d_buffer_t", "an image that `Runtime::image_buffer` creates"),
            ("sampler_t", "a `Sampler`"),
            ("image2d_depth_t", "does not support"),
            ("queue_t", "does not support"),
            ("event_t", "does not support"),
            ("clk_event_t", "does not support"),
            ("reserve_id_t", "does not support"),
        ] {
            let message =
                check(1u64, name).expect_err("a value is not a valid argument").to_string();
            assert!(message.contains(name) && message.contains(advice), "{message}");
        }
    }

    #[test]
    fn samplers_are_given_where_the_kernel_takes_one() {
        let sampler = Sampler::new();
        check(sampler, "sampler_t").expect("it is one");
        for name in ["float", "float4", "image2d_t"] {
            let message = check(sampler, name).expect_err("it is another type").to_string();
            assert!(message.contains("a sampler") && message.contains(name), "{message}");
        }
        let repeating = sampler.addressing(Addressing::Repeat);
        let message = check(repeating, "sampler_t").expect_err("OpenCL forbids it").to_string();
        assert!(message.contains("normalized"), "{message}");
        check(repeating.normalized(true), "sampler_t").expect("it is valid");
    }

    #[test]
    fn sizes_are_compared_where_the_type_is_unknown() {
        let mut structure = parameter("struct Params", AddressSpace::Private);
        structure.size = Some(12);
        let check = |argument: ArgumentValue| argument.check("k", 0, &structure, None);
        assert!(check([1.0f32; 3].into_value(Seal)).is_ok());
        let larger = [1.0f32; 4].into_value(Seal);
        let message = check(larger).expect_err("too large").to_string();
        assert!(message.contains("16 bytes") && message.contains("12 bytes"), "{message}");
    }

    #[test]
    fn kinds_of_arguments_must_match() {
        let local = Local::<f32>::new(4);
        assert!(check_in(AddressSpace::Local, local, "float*").is_ok());
        assert!(check_in(AddressSpace::Global, local, "float*").is_err());
        assert!(check_in(AddressSpace::Local, 1.0f32, "float*").is_err());
        assert!(check_in(AddressSpace::Local, Local::<f32>::new(0), "float*").is_err());
    }
}
