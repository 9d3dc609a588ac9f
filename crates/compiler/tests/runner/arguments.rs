//! Arguments of launches, converted from words to values that fit the kernels' parameters.

use std::collections::BTreeMap;

use kiln_compiler::bounds::{self, Channel};
use kiln_compiler::fusion::{self, Image, Memory, Region};
use kiln_compiler::{Addressing, ChannelType, Filter, ImageKind, ImageShape, Sampler};
use kiln_spirv::Parameter;

use super::launches::{ArgumentText, Extent, LaunchText, MemoryText};
use super::program::Program;

/// Alignment of a buffer whose alignment is not stated, in bytes.
const ALIGNMENT: usize = 128;

/// Returns the parameters of a launch's kernel, one for each argument; `None` for arguments without a parameter.
fn parameters<'p>(program: &'p Program, launch: &LaunchText) -> Vec<Option<&'p Parameter>> {
    let parameters = program.parameters(&launch.kernel);
    (0..launch.arguments.len()).map(|at| parameters.get(at)).collect()
}

/// Returns the arguments of a launch for the check of bounds.
///
/// # Errors
///
/// Returns what does not fit its parameter.
pub(super) fn for_bounds(
    program: &Program,
    launch: &LaunchText,
) -> Result<Vec<bounds::Argument>, String> {
    let pairs = launch.arguments.iter().zip(parameters(program, launch));
    pairs
        .map(|(text, parameter)| match text {
            ArgumentText::Memory(memory) => memory_for_bounds(memory, parameter),
            ArgumentText::Local(bytes) => Ok(bounds::Argument::Local(*bytes)),
            ArgumentText::Sampler(words) => sampler(words).map(bounds::Argument::Sampler),
            ArgumentText::Unknown => Err("a check needs the value of each argument".to_owned()),
            value => scalar(value, parameter).map(bounds::Argument::Scalar),
        })
        .collect()
}

fn memory_for_bounds(
    memory: &MemoryText,
    parameter: Option<&Parameter>,
) -> Result<bounds::Argument, String> {
    let alignment = memory.alignment.unwrap_or(ALIGNMENT);
    match memory.extent {
        Extent::Usual => {
            let name = &memory.name;
            Err(format!("write the size of `{name}` in bytes or pixels: `{name}[4096]`"))
        }
        Extent::Bytes { length, .. } => Ok(bounds::Argument::Buffer { length, alignment }),
        Extent::Pixels { size, format } => Ok(bounds::Argument::Image {
            type_name: image_kind(memory, parameter)?.type_name(),
            size,
            channel: channel(format.channel),
        }),
    }
}

/// Returns the numbers that kernels read from images of a format.
pub(super) fn channel(ty: ChannelType) -> Channel {
    match ty {
        ChannelType::Int8 | ChannelType::Int16 | ChannelType::Int32 => Channel::Signed,
        ChannelType::Uint8 | ChannelType::Uint16 | ChannelType::Uint32 => Channel::Unsigned,
        _ => Channel::Float,
    }
}

/// Memories of launches, which are numbered in the order in which they are named.
#[derive(Debug, Default)]
pub(super) struct Memories(BTreeMap<String, Memory>);

impl Memories {
    /// Returns the memory of a name that a launch uses.
    ///
    /// # Errors
    ///
    /// Returns that no launch uses it.
    pub(super) fn get(&self, name: &str) -> Result<Memory, String> {
        self.0.get(name).copied().ok_or_else(|| format!("no launch uses `{name}`"))
    }

    fn number(&mut self, name: &str) -> Memory {
        let next = Memory(self.0.len() as u32);
        *self.0.entry(name.to_owned()).or_insert(next)
    }

    /// Returns the arguments of a launch for fusion; `None` for those that are not known. `usual` is the length in bytes
    /// of buffers whose length is not stated.
    ///
    /// # Errors
    ///
    /// Returns what does not fit its parameter.
    pub(super) fn arguments(
        &mut self,
        program: &Program,
        launch: &LaunchText,
        usual: usize,
    ) -> Result<Vec<Option<fusion::Argument>>, String> {
        let pairs = launch.arguments.iter().zip(parameters(program, launch));
        pairs
            .map(|(text, parameter)| match text {
                ArgumentText::Memory(text) => self.memory(text, parameter, usual).map(Some),
                ArgumentText::Unknown => Ok(None),
                ArgumentText::Local(bytes) => Ok(Some(fusion::Argument::Local(*bytes))),
                ArgumentText::Sampler(words) => {
                    Ok(Some(fusion::Argument::Sampler(sampler(words)?)))
                }
                value => Ok(Some(fusion::Argument::Scalar(scalar(value, parameter)?))),
            })
            .collect()
    }

    fn memory(
        &mut self,
        text: &MemoryText,
        parameter: Option<&Parameter>,
        usual: usize,
    ) -> Result<fusion::Argument, String> {
        let memory = self.number(&text.name);
        let region = |offset, length| Region { memory, offset, length };
        Ok(match text.extent {
            Extent::Usual => fusion::Argument::Buffer(region(0, usual)),
            Extent::Bytes { start, length } => fusion::Argument::Buffer(region(start, length)),
            Extent::Pixels { size, format } => {
                let kind = image_kind(text, parameter)?;
                let shape = ImageShape { kind, size, format };
                let bytes = shape.bytes().ok_or("the image is too large")?;
                fusion::Argument::Image(Image { region: region(0, bytes), shape })
            }
        })
    }
}

fn image_kind(memory: &MemoryText, parameter: Option<&Parameter>) -> Result<ImageKind, String> {
    let type_name = parameter.and_then(|parameter| parameter.type_name.as_deref());
    let kind = type_name.and_then(ImageKind::of_type);
    kind.ok_or_else(|| format!("`{}` is an image, but the type is {type_name:?}", memory.name))
}

fn sampler(words: &[String]) -> Result<Sampler, String> {
    words.iter().try_fold(Sampler::new(), |sampler, word| {
        Ok(match word.as_str() {
            "none" => sampler.addressing(Addressing::None),
            "edge" => sampler.addressing(Addressing::ClampToEdge),
            "clamp" => sampler.addressing(Addressing::Clamp),
            "repeat" => sampler.addressing(Addressing::Repeat),
            "mirror" => sampler.addressing(Addressing::MirroredRepeat),
            "nearest" => sampler.filter(Filter::Nearest),
            "linear" => sampler.filter(Filter::Linear),
            "normalized" => sampler.normalized(true),
            _ => return Err(format!("`{word}` is not a property of a sampler")),
        })
    })
}

/// Returns the bytes of a value.
fn scalar(text: &ArgumentText, parameter: Option<&Parameter>) -> Result<Vec<u8>, String> {
    let type_name = parameter.and_then(|parameter| parameter.type_name.as_deref()).map(str::trim);
    let size = parameter.and_then(|parameter| parameter.size);
    match text {
        ArgumentText::Zeros(count) => Ok(vec![0; *count]),
        ArgumentText::Number(text) => {
            let (name, lanes) = lanes(type_name.unwrap_or_default());
            let size = size.map(|size| size / lanes);
            Ok(number(text, name, size)?.repeat(lanes))
        }
        ArgumentText::Numbers(all) => {
            let (name, _) = lanes(type_name.unwrap_or_default());
            let parts = all.iter().map(|text| number(text, name, None));
            Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
        }
        _ => Err("the argument is not a value".to_owned()),
    }
}

/// Returns the name of the type of a vector's components, and their number. Vectors of three are passed as four.
fn lanes(type_name: &str) -> (&str, usize) {
    let base = type_name.trim_end_matches(|c: char| c.is_ascii_digit());
    match &type_name[base.len()..] {
        "2" => (base, 2),
        "3" | "4" => (base, 4),
        "8" => (base, 8),
        "16" => (base, 16),
        _ => (base, 1),
    }
}

/// Returns the bytes of a number of a type. Where its name is not known, `size` is its number of bytes.
fn number(text: &str, type_name: &str, size: Option<usize>) -> Result<Vec<u8>, String> {
    let suffixes = [
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
    let suffixed = suffixes.iter().find_map(|(end, name)| Some((text.strip_suffix(end)?, *name)));
    let (digits, type_name) = suffixed.unwrap_or((text, type_name));
    let malformed =
        || format!("`{text}` is not a number of the type `{type_name}` ({size:?} bytes)");
    let is_real = digits.contains(['.', 'e', 'n']);
    let size = match type_name.trim_start_matches("unsigned ") {
        "float" => return real(digits, 4).ok_or_else(malformed),
        "double" => return real(digits, 8).ok_or_else(malformed),
        "char" | "uchar" => 1,
        "short" | "ushort" | "half" => 2,
        "int" | "uint" => 4,
        "long" | "ulong" | "size_t" => 8,
        _ if is_real => return real(digits, size.unwrap_or(0)).ok_or_else(malformed),
        _ => size.ok_or_else(malformed)?,
    };
    let value: i128 = digits.parse().map_err(|_| malformed())?;
    let bits = 8 * u32::try_from(size).map_err(|_| malformed())?;
    let fits = bits <= 64 && (-(1 << (bits - 1))..1 << bits).contains(&value);
    if fits { Ok(value.to_le_bytes()[..size].to_vec()) } else { Err(malformed()) }
}

fn real(text: &str, size: usize) -> Option<Vec<u8>> {
    match size {
        4 => Some(text.parse::<f32>().ok()?.to_le_bytes().to_vec()),
        8 => Some(text.parse::<f64>().ok()?.to_le_bytes().to_vec()),
        _ => None,
    }
}
