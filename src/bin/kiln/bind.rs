//! Converts launches in text form to launches of kernels, with buffers and images.

use std::collections::BTreeMap;
use std::path::Path;

use kiln::launch::{Access, AddressSpace, Parameter};
use kiln::{Buffer, Kernel, Launch, Local, Program, Runtime};

use crate::launch::{ArgumentText, BufferSize, LaunchText};
use crate::memory::{Byte, FormatText, Memory, NamedImage, USUAL_FORMAT, sampler};
use crate::output::{Failure, Result, in_full};
use crate::request::{Problem, Setup, whole_number};

/// A launch whose kernel was found.
pub(crate) struct Call<'a> {
    pub(crate) text: &'a LaunchText,
    pub(crate) file: &'a Path,
    kernel: Kernel,
}

/// Memory that is allocated for the launches, by name.
pub(crate) type Memories = BTreeMap<String, Box<dyn Memory>>;

/// A buffer or an image that the launches name, before it is allocated.
pub(crate) struct NamedBuffer {
    pub(crate) name: String,
    pub(crate) bytes: usize,
    /// Set for an image.
    pub(crate) image: Option<NamedImage>,
    pub(crate) is_kept: bool,
}

/// Builds the programs of files.
pub(crate) async fn build<'a>(
    setup: &Setup<'_>,
    files: &[&'a Path],
) -> Result<Vec<(&'a Path, Program)>> {
    let programs = files.iter().map(async |&file| {
        let built = async { Ok::<_, Problem>(setup.request(file).await?.1.await?) };
        let built = built.await.map_err(|Problem { message, log, .. }| {
            let log = log.map(|log| format!("\n{}", log.trim_end())).unwrap_or_default();
            Failure::failed(format_args!("{}: {message}{log}", file.display()))
        });
        Ok((file, built?))
    });
    // All builds end, even if one fails.
    futures::future::join_all(programs).await.into_iter().collect()
}

impl<'a> Call<'a> {
    /// Finds the kernel, and compares the arguments with its parameters.
    pub(crate) fn new(text: &'a LaunchText, programs: &[(&'a Path, Program)]) -> Result<Self> {
        let name = text.kernel.as_str();
        let (file, program) = find_program(text, programs)?;
        // SAFETY: no launch of the kernel ever runs.
        let kernel = unsafe { program.kernel(name)? };
        let call = Self { text, file, kernel };
        let (given, expected) = (text.arguments.len(), call.parameters().len());
        if given != expected {
            return Err(Failure::usage(format_args!(
                "`{name}` is given {given} arguments, but has {expected} parameters: {}",
                call.signature()
            )));
        }
        Ok(call)
    }

    pub(crate) fn parameters(&self) -> &[Parameter] {
        self.kernel.params().unwrap_or_default()
    }

    /// Formats all parameters as OpenCL C declares them.
    fn signature(&self) -> String {
        let each = self.parameters().iter().enumerate().map(|(at, _)| self.parameter(at));
        each.collect::<Vec<_>>().join(", ")
    }

    /// Formats a parameter as OpenCL C declares it, as far as it is known.
    fn parameter(&self, at: usize) -> String {
        let Parameter { name, type_name, address_space, .. } = &self.parameters()[at];
        let space = match address_space {
            Some(AddressSpace::Global) => Some("global"),
            Some(AddressSpace::Constant) => Some("constant"),
            Some(AddressSpace::Local) => Some("local"),
            _ => None,
        };
        let known = [space, type_name.as_deref(), name.as_deref()];
        let known: Vec<_> = known.into_iter().flatten().collect();
        if known.is_empty() { format!("parameter {at}") } else { known.join(" ") }
    }

    /// Returns the buffers and images among the arguments, each with its parameter.
    fn uses(&self) -> impl Iterator<Item = (&str, &Parameter)> {
        let given = self.text.arguments.iter().zip(self.parameters());
        given.filter_map(|(argument, parameter)| match argument {
            ArgumentText::Buffer(name) if !is_sampler(parameter) => {
                Some((name.as_str(), parameter))
            }
            _ => None,
        })
    }

    /// Returns the number of work-items including the offset, or `None` if it overflows.
    fn items(&self) -> Option<usize> {
        let LaunchText { global, offset, .. } = self.text;
        let offset = offset.as_ref().map_or(&[][..], |offset| offset.get());
        let sizes = global.get().iter().enumerate();
        let mut sizes = sizes.map(|(d, &size)| size.checked_add(*offset.get(d).unwrap_or(&0)));
        sizes.try_fold(1_usize, |items, size| items.checked_mul(size?))
    }

    /// Creates the launch, with the buffers and images that the arguments name.
    pub(crate) fn bind(&self, memories: &Memories) -> Result<Launch> {
        let LaunchText { arguments, global, offset, local, .. } = self.text;
        let mut launch = self.kernel.launch(*global);
        if let Some(offset) = offset {
            launch = launch.offset(*offset);
        }
        if let Some(local) = local {
            launch = launch.local(*local);
        }
        for (at, (argument, parameter)) in arguments.iter().zip(self.parameters()).enumerate() {
            use AddressSpace::{Constant, Global, Local as Group, Private};
            launch = match (argument, parameter.address_space) {
                (ArgumentText::Buffer(name), _) if is_sampler(parameter) => match sampler(name) {
                    Some(sampler) => launch.arg(sampler),
                    None => return Err(self.mismatch(at, "the sampler nearest or linear")),
                },
                (_, _) if is_sampler(parameter) => {
                    return Err(self.mismatch(at, "the sampler nearest or linear"));
                }
                (ArgumentText::Buffer(name), _) if image_type(parameter).is_some() => {
                    match memories.get(name) {
                        Some(image) => image.bind(launch),
                        None => return Err(self.mismatch(at, "an image")),
                    }
                }
                (_, _) if image_type(parameter).is_some() => {
                    return Err(self.mismatch(at, "the name of an image, such as tmp"));
                }
                (ArgumentText::Buffer(name), Some(Global | Constant) | None) => {
                    match memories.get(name) {
                        Some(buffer) => buffer.bind(launch),
                        None => return Err(self.mismatch(at, "a buffer")),
                    }
                }
                (_, Some(Global | Constant)) => {
                    return Err(self.mismatch(at, "the name of a buffer, such as tmp"));
                }
                (ArgumentText::Local(bytes), Some(Group) | None) => {
                    launch.arg(Local::<Byte>::new(*bytes))
                }
                (_, Some(Group)) => {
                    return Err(self.mismatch(at, "local memory, such as local:256"));
                }
                (ArgumentText::Zeros(bytes), Some(Private) | None) => zeros(launch, *bytes)
                    .ok_or_else(|| self.mismatch(at, "1 to 32 bytes, or 48, 64, 128 or 256"))?,
                (ArgumentText::Number(text), Some(Private) | None) => {
                    let (number, suffix_type) = split_type(text);
                    let Some(type_name) = suffix_type.or(parameter.type_name.as_deref()) else {
                        return Err(self.mismatch(
                            at,
                            &format!(
                                "it with its type, such as {text}u32 or {text}f32: neither the \
                                 file nor the driver specifies the type"
                            ),
                        ));
                    };
                    self.bind_number(launch, at, type_name, number)?
                }
                (_, _) => return Err(self.mismatch(at, "a number, such as 3")),
            };
        }
        Ok(launch)
    }

    /// Adds a number, or a vector whose elements all are the number, as an argument of an OpenCL C type.
    fn bind_number(
        &self,
        launch: Launch,
        at: usize,
        type_name: &str,
        text: &str,
    ) -> Result<Launch> {
        let mismatch = |expected: &str| self.mismatch(at, expected);
        let type_name = type_name.trim();
        let base = type_name.trim_end_matches(|c: char| c.is_ascii_digit());
        let width = &type_name[base.len()..];
        macro_rules! number {
            ($value:expr, $expected:literal) => {{
                let value = $value.ok_or_else(|| mismatch($expected))?;
                match width {
                    "" => Ok(launch.arg(value)),
                    "2" => Ok(launch.arg([value; 2])),
                    "3" | "4" => Ok(launch.arg([value; 4])),
                    "8" => Ok(launch.arg([value; 8])),
                    "16" => Ok(launch.arg([value; 16])),
                    _ => Err(mismatch(
                        "a structure, such as zeros:8, because its type is not a number",
                    )),
                }
            }};
        }
        match base {
            "float" => number!(text.parse::<f32>().ok(), "a number, such as 3.0"),
            "double" => number!(text.parse::<f64>().ok(), "a number, such as 3.0"),
            "char" => number!(whole_number::<i8>(text), "a whole number from -128 to 127"),
            "uchar" | "unsigned char" => {
                number!(whole_number::<u8>(text), "a whole number from 0 to 255")
            }
            "short" => number!(whole_number::<i16>(text), "a whole number of 16 bits"),
            "ushort" | "unsigned short" => {
                number!(whole_number::<u16>(text), "a whole number of 16 bits, not below 0")
            }
            "half" => number!(whole_number::<u16>(text), "its bits, such as 0x3c00 for 1.0"),
            "int" => number!(whole_number::<i32>(text), "a whole number of 32 bits"),
            "uint" | "unsigned int" => {
                number!(whole_number::<u32>(text), "a whole number of 32 bits, not below 0")
            }
            "long" => number!(whole_number::<i64>(text), "a whole number of 64 bits"),
            "ulong" | "unsigned long" | "size_t" => {
                number!(whole_number::<u64>(text), "a whole number of 64 bits, not below 0")
            }
            _ => Err(mismatch(&self.expected_for_unknown_type(at))),
        }
    }

    /// Describes the argument for a parameter whose type does not have OpenCL C's name of a number: a struct,
    /// or a number under a name that the source defines.
    fn expected_for_unknown_type(&self, at: usize) -> String {
        let number = "the number, followed by its type";
        match self.parameters()[at].size {
            Some(1) => format!("{number}: u8 or i8"),
            Some(2) => format!("{number}: u16 or i16"),
            Some(4) => format!("{number}: u32, i32 or f32"),
            Some(8) => format!("{number}, u64, i64 or f64, or zeros:8"),
            Some(bytes) => format!("zeros:{bytes}"),
            None => format!(
                "{number}, such as 3u32 or 3.0f32, or, for a struct, its size in zero bytes, such \
                 as zeros:8"
            ),
        }
    }

    /// Returns the failure for an argument that does not fit its parameter.
    fn mismatch(&self, at: usize, expected: &str) -> Failure {
        Failure::usage(format_args!(
            "`{}` is given for `{}` of `{}`; give {expected}",
            self.text.arguments[at].text(),
            self.parameter(at),
            self.text.kernel
        ))
    }
}

/// Returns the file and the program that have the kernel of a launch.
fn find_program<'p, 'a>(
    text: &LaunchText,
    programs: &'p [(&'a Path, Program)],
) -> Result<&'p (&'a Path, Program)> {
    let name = text.kernel.as_str();
    let candidates: Vec<_> = match &text.file {
        Some(file) => programs.iter().filter(|(known, _)| known == file).collect(),
        None => programs.iter().collect(),
    };
    let has_kernel = |program: &Program| program.kernel_names().contains(&name);
    let mut matching = candidates.iter().filter(|(_, program)| has_kernel(program));
    match (matching.next(), matching.next(), &text.file) {
        (Some(&found), None, _) => Ok(found),
        (Some((one, _)), Some((other, _)), _) => Err(Failure::usage(format_args!(
            "{} and {} have a kernel `{name}`; give the file, such as {}:{name}(..)",
            one.display(),
            other.display(),
            one.display()
        ))),
        (None, _, Some(file)) if candidates.is_empty() => Err(Failure::usage(format_args!(
            "the launch of `{name}` names the file {}, which is not among the files",
            file.display()
        ))),
        (None, ..) => {
            let names = candidates.iter().flat_map(|(_, program)| program.kernel_names());
            Err(Failure::usage(format_args!(
                "there is no kernel `{name}`; the files have: {}",
                names.collect::<Vec<_>>().join(", ")
            )))
        }
    }
}

/// Splits a number such as `8u32` into its text and OpenCL C's name of its type, if the type is given.
fn split_type(text: &str) -> (&str, Option<&'static str>) {
    const TYPES: [(&str, &str); 10] = [
        ("f32", "float"),
        ("f64", "double"),
        ("i8", "char"),
        ("u8", "uchar"),
        ("i16", "short"),
        ("u16", "ushort"),
        ("i32", "int"),
        ("u32", "uint"),
        ("i64", "long"),
        ("u64", "ulong"),
    ];
    for (rust, name) in TYPES {
        // The suffixes that begin with `f` are also hexadecimal digits.
        let is_digits = rust.starts_with('f') && text.starts_with("0x");
        if let Some(number) = text.strip_suffix(rust).filter(|_| !is_digits) {
            return (number, Some(name));
        }
    }
    (text, None)
}

/// Adds a value of `bytes` zero bytes. Only the listed sizes are supported, since each needs a type.
fn zeros(launch: Launch, bytes: usize) -> Option<Launch> {
    macro_rules! sizes {
        ($($size:literal)*) => {
            match bytes {
                $($size => Some(launch.arg([0_u8; $size])),)*
                _ => None,
            }
        };
    }
    sizes!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 48 64 128 256)
}

/// Returns the buffers and images, in the order in which they are first named.
/// `sizes`, `formats` and `keep` are those of the command line.
pub(crate) fn name_buffers(
    (sizes, formats): (&[BufferSize], &[FormatText]),
    keep: &[String],
    calls: &[Call<'_>],
) -> Result<Vec<NamedBuffer>> {
    let mut all = Vec::new();
    for call in calls {
        add_buffers(&mut all, call)?;
    }
    apply_options(&mut all, sizes, keep)?;
    apply_formats(&mut all, formats)?;
    Ok(all)
}

/// Adds the buffers of a launch, and updates those that earlier launches use.
fn add_buffers(all: &mut Vec<NamedBuffer>, call: &Call<'_>) -> Result<()> {
    for (name, parameter) in call.uses() {
        let element = parameter.type_name.as_deref().and_then(element_bytes).unwrap_or(16);
        let bytes = call.items().and_then(|items| items.checked_mul(element)).ok_or_else(|| {
            Failure::usage(format_args!("the launch of `{}` is too large", call.text.kernel))
        })?;
        let index = all.iter().position(|known| known.name == name).unwrap_or_else(|| {
            let image = image_type(parameter).map(|type_name| NamedImage {
                type_name: type_name.to_owned(),
                size: [1; 3],
                format: USUAL_FORMAT.to_owned(),
            });
            all.push(NamedBuffer { name: name.to_owned(), bytes: 1, image, is_kept: false });
            all.len() - 1
        });
        let buffer = &mut all[index];
        if let Some(image) = &mut buffer.image {
            let sizes = image.size.iter_mut().zip(call.text.global.get());
            sizes.for_each(|(size, &items)| *size = (*size).max(items));
            buffer.bytes = image.bytes().unwrap_or(bytes);
            continue;
        }
        buffer.bytes = buffer.bytes.max(bytes);
    }
    // The last launch that uses a buffer decides; any of its uses may write.
    for buffer in all.iter_mut() {
        let uses = call.uses().filter(|(name, _)| *name == buffer.name);
        if let Some(writes) = uses.map(|(_, parameter)| may_write(parameter)).reduce(|a, b| a | b) {
            buffer.is_kept = writes;
        }
    }
    Ok(())
}

/// Applies the sizes and the kept buffers that the command line states.
fn apply_options(all: &mut [NamedBuffer], sizes: &[BufferSize], keep: &[String]) -> Result<()> {
    for size in sizes {
        let index = find_buffer(all, &size.buffer, "--bytes")?;
        all[index].bytes = size.bytes;
    }
    let kept = keep.iter().map(|name| find_buffer(all, name, "--keep"));
    let kept = kept.collect::<Result<Vec<_>>>()?;
    if !kept.is_empty() {
        for (index, buffer) in all.iter_mut().enumerate() {
            buffer.is_kept = kept.contains(&index);
        }
    }
    Ok(())
}

/// Applies the formats of images that the command line states.
fn apply_formats(all: &mut [NamedBuffer], formats: &[FormatText]) -> Result<()> {
    for FormatText { image: name, format } in formats {
        let index = find_buffer(all, name, "--format")?;
        let buffer = &mut all[index];
        let Some(image) = &mut buffer.image else {
            return Err(Failure::usage(format_args!(
                "--format names `{name}`, which is a buffer; name an image"
            )));
        };
        image.format.clone_from(format);
        buffer.bytes = image.bytes().unwrap_or(buffer.bytes);
    }
    Ok(())
}

fn is_sampler(parameter: &Parameter) -> bool {
    parameter.type_name.as_deref() == Some("sampler_t")
}

/// Returns the type of a parameter that is an image.
fn image_type(parameter: &Parameter) -> Option<&str> {
    parameter.type_name.as_deref().and_then(NamedImage::type_of)
}

/// Returns the index of the buffer or image that an option names.
fn find_buffer(all: &[NamedBuffer], name: &str, option: &str) -> Result<usize> {
    all.iter().position(|buffer| buffer.name == name).ok_or_else(|| {
        let names = all.iter().map(|buffer| buffer.name.as_str()).collect::<Vec<_>>();
        Failure::usage(format_args!(
            "{option} names `{name}`, which no launch uses; the launches use: {}",
            names.join(", ")
        ))
    })
}

pub(crate) fn allocate(rt: &Runtime, named: &[NamedBuffer]) -> Result<Memories> {
    let memories = named.iter().map(|NamedBuffer { name, bytes, image, .. }| {
        let memory = match image {
            Some(image) => image.allocate(rt),
            None => {
                rt.buffer(*bytes).map(|buffer: Buffer<Byte>| Box::new(buffer) as Box<dyn Memory>)
            }
        };
        let memory = memory.map_err(|error| {
            let advice = match image {
                Some(_) => String::new(),
                None => format!("; give another size: --bytes {name}=SIZE"),
            };
            Failure::failed(format_args!("{}{advice}", in_full(&error)))
        })?;
        Ok((name.clone(), memory))
    });
    memories.collect()
}

fn may_write(parameter: &Parameter) -> bool {
    parameter.access != Some(Access::Read)
        && parameter.address_space != Some(AddressSpace::Constant)
}

/// Returns the size of the values that a pointer of this type points to.
fn element_bytes(type_name: &str) -> Option<usize> {
    let name = type_name.trim_end().trim_end_matches('*').trim();
    let base = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let lanes = match &name[base.len()..] {
        "" => 1,
        "2" => 2,
        "3" | "4" => 4,
        "8" => 8,
        "16" => 16,
        _ => return None,
    };
    let bytes = match base.trim_start_matches("unsigned ") {
        "char" | "uchar" => 1,
        "short" | "ushort" | "half" => 2,
        "int" | "uint" | "float" => 4,
        "long" | "ulong" | "double" => 8,
        _ => return None,
    };
    Some(bytes * lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_have_types() {
        for (text, number, name) in [
            ("8", "8", None),
            ("8u32", "8", Some("uint")),
            ("-3i8", "-3", Some("char")),
            ("1.5f64", "1.5", Some("double")),
            ("0x1f32", "0x1f32", None),
            ("0x1fu64", "0x1f", Some("ulong")),
        ] {
            assert_eq!(split_type(text), (number, name), "{text}");
        }
    }

    #[test]
    fn elements_have_the_sizes_of_opencl_c() {
        for (name, bytes) in [
            ("float*", Some(4)),
            ("uchar *", Some(1)),
            ("unsigned int*", Some(4)),
            ("double3*", Some(32)),
            ("half16*", Some(32)),
            ("Point*", None),
            ("float5*", None),
        ] {
            assert_eq!(element_bytes(name), bytes, "{name}");
        }
    }
}
