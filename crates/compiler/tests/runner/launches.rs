//! Launches in the form of the program `kiln`, with the sizes of buffers behind their names:
//! `saxpy(2.0, x[4096], y[4096]) over 1024 in 64`.

use kiln_compiler::{ChannelOrder, ChannelType, ImageFormat};
use kiln_compiler::{NdRange, NdSize};

/// Launch in words.
#[derive(Debug)]
pub(super) struct LaunchText {
    pub(super) kernel: String,
    pub(super) arguments: Vec<ArgumentText>,
}

/// Argument in words.
#[derive(Debug)]
pub(super) enum ArgumentText {
    /// Buffer or image.
    Memory(MemoryText),
    /// Number, which is parsed according to its parameter's type.
    Number(String),
    /// Numbers one after the other: `{1.5f32 2i32}`.
    Numbers(Vec<String>),
    /// Value that is not known: `_`.
    Unknown,
    /// Local memory of this number of bytes: `local:256`.
    Local(usize),
    /// Value of this number of zero bytes: `zeros:12`.
    Zeros(usize),
    /// Properties of a sampler: `sampler:clamp+linear`.
    Sampler(Vec<String>),
}

/// Buffer or image in words.
#[derive(Debug)]
pub(super) struct MemoryText {
    pub(super) name: String,
    /// Whether the parameter is declared `const`, though the module does not state it: `const x[16]`.
    pub(super) is_const: bool,
    pub(super) extent: Extent,
    /// Number of bytes of which the address is a multiple: `x[16]@4`.
    pub(super) alignment: Option<usize>,
}

/// Part of a memory that is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// All bytes of a buffer whose length is not stated: `x`.
    Usual,
    /// Bytes of a buffer: `x[256]` or `x[256..512]`.
    Bytes { start: usize, length: usize },
    /// Pixels of an image: `x[640x480]` or `x[640x480 Rg<Half>]`.
    Pixels { size: [usize; 3], format: ImageFormat },
}

const FORM: &str = "write KERNEL(ARGUMENT, ..), such as `saxpy(2.0, x[4096], y[4096])`";

impl LaunchText {
    /// Parses a launch, and returns the words that follow it.
    ///
    /// # Errors
    ///
    /// Returns what is wrong with the text.
    pub(super) fn parse(text: &str) -> Result<(Self, &str), String> {
        let (kernel, rest) = text.split_once('(').ok_or_else(|| format!("no `(`; {FORM}"))?;
        let (arguments, words) = rest.rsplit_once(')').ok_or_else(|| format!("no `)`; {FORM}"))?;
        let arguments = match arguments.trim() {
            "" => Vec::new(),
            some => some.split(',').map(argument).collect::<Result<_, _>>()?,
        };
        Ok((Self { kernel: kernel.trim().to_owned(), arguments }, words))
    }
}

fn argument(text: &str) -> Result<ArgumentText, String> {
    let text = text.trim();
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.');
    if let Some((kind, value)) = text.split_once(':').filter(|_| !text.contains('[')) {
        let bytes = || value.parse().map_err(|_| format!("`{value}` is not a number of bytes"));
        return match kind {
            "local" => bytes().map(ArgumentText::Local),
            "zeros" => bytes().map(ArgumentText::Zeros),
            "sampler" => Ok(ArgumentText::Sampler(value.split('+').map(str::to_owned).collect())),
            _ => Err(format!("`{kind}` is not `local`, `zeros` or `sampler`")),
        };
    }
    match text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        Some(numbers) => {
            Ok(ArgumentText::Numbers(numbers.split_whitespace().map(str::to_owned).collect()))
        }
        None if text == "_" => Ok(ArgumentText::Unknown),
        None if text.starts_with(is_number) => Ok(ArgumentText::Number(text.to_owned())),
        None => memory(text).map(ArgumentText::Memory),
    }
}

fn memory(text: &str) -> Result<MemoryText, String> {
    let malformed = || {
        format!("`{text}` is not a valid argument, such as `x[4096]`, `x[256..512]`, `2.0` or `_`")
    };
    let (text, alignment) = match text.rsplit_once('@') {
        Some((text, number)) => (text, Some(number.parse().map_err(|_| malformed())?)),
        None => (text, None),
    };
    let (is_const, text) = match text.strip_prefix("const ") {
        Some(rest) => (true, rest.trim()),
        None => (false, text),
    };
    let (name, extent) = match text.split_once('[') {
        Some((name, rest)) => {
            (name, extent(rest.strip_suffix(']').ok_or_else(malformed)?).ok_or_else(malformed)?)
        }
        None => (text, Extent::Usual),
    };
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(is_part) {
        return Err(malformed());
    }
    Ok(MemoryText { name: name.to_owned(), is_const, extent, alignment })
}

fn extent(text: &str) -> Option<Extent> {
    if let Some((start, end)) = text.split_once("..") {
        let (start, end): (usize, usize) = (start.parse().ok()?, end.parse().ok()?);
        return Some(Extent::Bytes { start, length: end.checked_sub(start)? });
    }
    if let Ok(length) = text.parse() {
        return Some(Extent::Bytes { start: 0, length });
    }
    let (sizes, format) = text.split_once(' ').unwrap_or((text, "Rgba<Float>"));
    let mut size = [1; 3];
    for (at, part) in sizes.split('x').enumerate() {
        *size.get_mut(at)? = part.parse().ok()?;
    }
    Some(Extent::Pixels { size, format: image_format(format)? })
}

/// Returns the format of this name, such as `Rgba<Float>`.
fn image_format(name: &str) -> Option<ImageFormat> {
    use {ChannelOrder as Order, ChannelType as Type};
    let orders = [
        Order::R,
        Order::A,
        Order::Rg,
        Order::Rgba,
        Order::Bgra,
        Order::Argb,
        Order::Intensity,
        Order::Luminance,
    ];
    let types = [
        Type::Snorm8,
        Type::Snorm16,
        Type::Unorm8,
        Type::Unorm16,
        Type::Int8,
        Type::Int16,
        Type::Int32,
        Type::Uint8,
        Type::Uint16,
        Type::Uint32,
        Type::Half,
        Type::Float,
    ];
    let formats = orders
        .into_iter()
        .flat_map(|order| types.into_iter().map(move |channel| ImageFormat { order, channel }));
    formats.into_iter().find(|format| format.to_string() == name)
}

/// Words that follow a launch or a directive, in order.
pub(super) struct Words<'t>(std::str::SplitWhitespace<'t>);

impl<'t> Words<'t> {
    pub(super) fn of(text: &'t str) -> Self {
        Self(text.split_whitespace())
    }

    pub(super) fn next(&mut self) -> Option<&'t str> {
        self.0.next()
    }

    /// Returns the word that must follow another one.
    ///
    /// # Errors
    ///
    /// Returns that nothing follows.
    pub(super) fn after(&mut self, word: &str) -> Result<&'t str, String> {
        self.0.next().ok_or_else(|| format!("nothing follows `{word}`"))
    }
}

/// Nd-range in words: `over 1024x768 from 1x0 in 16x16`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RangeText {
    global: Option<NdSize>,
    offset: Option<NdSize>,
    local: Option<NdSize>,
}

impl RangeText {
    /// Parses a part of the nd-range, if the word begins one.
    ///
    /// # Errors
    ///
    /// Returns that the word is not followed by a size.
    pub(super) fn take(&mut self, word: &str, words: &mut Words<'_>) -> Result<bool, String> {
        let part = match word {
            "over" => &mut self.global,
            "from" => &mut self.offset,
            "in" => &mut self.local,
            _ => return Ok(false),
        };
        *part = Some(size(words.after(word)?)?);
        Ok(true)
    }

    /// Returns the nd-range with the parts of another one that this one lacks.
    pub(super) fn or(self, usual: Self) -> Self {
        match self.global {
            Some(_) => self,
            None => Self {
                global: usual.global,
                offset: self.offset.or(usual.offset),
                local: self.local.or(usual.local),
            },
        }
    }

    /// Returns the nd-range.
    ///
    /// # Errors
    ///
    /// Returns that its sizes are missing, or do not fit each other.
    pub(super) fn range(self) -> Result<NdRange, String> {
        let global = self.global.ok_or("no size is given; write `over SIZE`")?;
        let mut range = NdRange::from(global);
        if let Some(offset) = self.offset {
            range.set_offset(offset).map_err(|error| error.to_string())?;
        }
        if let Some(local) = self.local {
            range.set_local(local).map_err(|error| error.to_string())?;
        }
        Ok(range)
    }
}

fn size(text: &str) -> Result<NdSize, String> {
    let sizes = text.split('x').map(str::parse).collect::<Result<Vec<usize>, _>>();
    match sizes.as_deref() {
        Ok(&[x]) => Ok(x.into()),
        Ok(&[x, y]) => Ok([x, y].into()),
        Ok(&[x, y, z]) => Ok([x, y, z].into()),
        _ => Err(format!("`{text}` is not a valid size, such as 1024x768")),
    }
}
