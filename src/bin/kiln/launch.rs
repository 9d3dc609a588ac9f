//! Launches in the form of the command line: `blur(src, tmp, 3) over 1024x768 in 16x16`.

use std::path::PathBuf;
use std::str::FromStr;

use kiln::launch::NdSize;

/// A parsed launch whose kernel has not been looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaunchText {
    /// File that contains the kernel, if it is given.
    pub(crate) file: Option<PathBuf>,
    pub(crate) kernel: String,
    pub(crate) arguments: Vec<ArgumentText>,
    pub(crate) global: NdSize,
    pub(crate) offset: Option<NdSize>,
    pub(crate) local: Option<NdSize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentText {
    /// Name of a buffer.
    Buffer(String),
    /// A number, which is parsed according to its parameter's type.
    Number(String),
    /// Local memory of this number of bytes.
    Local(usize),
    /// A value of this number of zero bytes.
    Zeros(usize),
}

impl ArgumentText {
    /// Returns the argument as it was given.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Buffer(text) | Self::Number(text) => text.clone(),
            Self::Local(bytes) => format!("local:{bytes}"),
            Self::Zeros(bytes) => format!("zeros:{bytes}"),
        }
    }
}

const FORM: &str = "write KERNEL(ARGUMENT, ..) over SIZE, such as 'scale(src, tmp, 3.0) over 1024'";

impl FromStr for LaunchText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.contains('(') {
            return Err(format!("no `(`; {FORM}"));
        }
        // Searches from the end: the name of a file may contain parentheses.
        let (rest, range) = text.rsplit_once(')').ok_or_else(|| format!("no `)`; {FORM}"))?;
        let (kernel, arguments) = rest.rsplit_once('(').ok_or_else(|| format!("no `(`; {FORM}"))?;
        let (file, kernel) = match kernel.trim().rsplit_once(':') {
            Some((file, kernel)) => (Some(file.into()), kernel),
            None => (None, kernel.trim()),
        };
        if !is_name(kernel) {
            return Err(format!("`{kernel}` is not the name of a kernel; {FORM}"));
        }
        let arguments = match arguments.trim() {
            "" => Vec::new(),
            some => some.split(',').map(argument).collect::<Result<_, _>>()?,
        };
        let kernel = kernel.to_owned();
        let (mut global, mut offset, mut local) = (None, None, None);
        let mut words = range.split_whitespace();
        while let Some(word) = words.next() {
            let part = match word {
                "over" => &mut global,
                "from" => &mut offset,
                "in" => &mut local,
                _ => return Err(format!("`{word}` is not `over`, `from` or `in`; {FORM}")),
            };
            let size = words.next().ok_or_else(|| format!("no size follows `{word}`; {FORM}"))?;
            if part.replace(sizes(size)?).is_some() {
                return Err(format!("`{word}` is given twice"));
            }
        }
        let global = global.ok_or_else(|| format!("no size is given; {FORM}"))?;
        Ok(Self { file, kernel, arguments, global, offset, local })
    }
}

fn argument(text: &str) -> Result<ArgumentText, String> {
    let text = text.trim();
    let bytes = |number: &str| match number.trim().parse() {
        Ok(0) | Err(_) => Err(format!(
            "`{text}` is not a valid number of bytes; write a number above 0, such as local:256"
        )),
        Ok(bytes) => Ok(bytes),
    };
    if let Some(number) = text.strip_prefix("local:") {
        return bytes(number).map(ArgumentText::Local);
    }
    if let Some(number) = text.strip_prefix("zeros:") {
        return bytes(number).map(ArgumentText::Zeros);
    }
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.'));
    match text {
        "inf" | "nan" => Ok(ArgumentText::Number(text.to_owned())),
        _ if is_number => Ok(ArgumentText::Number(text.to_owned())),
        _ if is_name(text) => Ok(ArgumentText::Buffer(text.to_owned())),
        _ => Err(format!(
            "`{text}` is not a valid argument; give the name of a buffer, a number, local:BYTES or \
             zeros:BYTES"
        )),
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Parses sizes such as `1024` or `1024x768`.
fn sizes(text: &str) -> Result<NdSize, String> {
    let sizes = text.split('x').map(str::parse).collect::<Result<Vec<usize>, _>>();
    match sizes.as_deref() {
        Ok(&[x]) => Ok(x.into()),
        Ok(&[x, y]) => Ok([x, y].into()),
        Ok(&[x, y, z]) => Ok([x, y, z].into()),
        _ => Err(format!(
            "`{text}` is not a valid size; give one to three numbers, such as 1024x768"
        )),
    }
}

/// Size of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BufferSize {
    pub(crate) buffer: String,
    pub(crate) bytes: usize,
}

impl FromStr for BufferSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "write NAME=BYTES, such as tmp=4096 or tmp=64MiB";
        let (buffer, size) = text.split_once('=').ok_or(FORM)?;
        let digits = size.len() - size.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = size.split_at(digits);
        let unit: usize = match unit.trim() {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err(format!("`{size}` is not a valid size; {FORM}")),
        };
        let bytes = number.parse().ok().and_then(|number: usize| number.checked_mul(unit));
        let bytes = bytes.filter(|&bytes| bytes > 0);
        let bytes = bytes.ok_or_else(|| format!("`{size}` is not a valid size; {FORM}"))?;
        Ok(Self { buffer: buffer.trim().to_owned(), bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_of_a_launch_are_parsed() {
        let launch: LaunchText =
            "scale( src,tmp , -3.0, local:256,zeros:8 ) over 1024".parse().expect("fits");
        assert_eq!((launch.file, &*launch.kernel), (None, "scale"));
        let arguments: Vec<_> = launch.arguments.iter().map(ArgumentText::text).collect();
        assert_eq!(arguments, ["src", "tmp", "-3.0", "local:256", "zeros:8"]);
        assert!(matches!(launch.arguments[2], ArgumentText::Number(_)));
        assert_eq!((launch.global.get(), launch.offset, launch.local), (&[1024][..], None, None));

        let text = "dir/x.cl:k() over 8x4x2 in 4x2x1 from 1x0x0";
        let launch: LaunchText = text.parse().expect("fits");
        assert_eq!(launch.file, Some("dir/x.cl".into()));
        assert_eq!(launch.arguments, []);
        assert_eq!(launch.global.get(), [8, 4, 2]);
        assert_eq!(launch.local, Some([4, 2, 1].into()));
        assert_eq!(launch.offset, Some([1, 0, 0].into()));
    }

    #[test]
    fn names_of_files_may_have_parentheses() {
        let launch: LaunchText = "a(1).cl:scale(x, 2.0) over 8".parse().expect("it is a launch");
        assert_eq!(launch.file.as_deref(), Some("a(1).cl".as_ref()));
        assert_eq!((&*launch.kernel, launch.arguments.len()), ("scale", 2));
    }

    #[test]
    fn invalid_launches_are_refused_with_the_reason() {
        for (text, word) in [
            ("scale over 8", "no `(`"),
            ("scale(x over 8", "no `)`"),
            ("scale(x)", "no size"),
            ("scale(x) over", "no size follows `over`"),
            ("scale(x) over 8 over 9", "twice"),
            ("scale(x) over 8 by 9", "`by`"),
            ("scale(x) over 8x", "`8x` is not a valid size"),
            ("scale(x) over 1x2x3x4", "is not a valid size"),
            ("(x) over 8", "is not the name of a kernel"),
            ("scale(x,) over 8", "`` is not a valid argument"),
            ("scale(x y) over 8", "`x y` is not a valid argument"),
            ("scale(local:0) over 8", "local:256"),
        ] {
            let error = text.parse::<LaunchText>().expect_err(text);
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_of_buffers_have_units() {
        for (text, bytes) in [("tmp=4096", 4096), ("tmp=64MiB", 64 << 20), ("tmp=2 KiB", 2048)] {
            assert_eq!(text.parse(), Ok(BufferSize { buffer: "tmp".to_owned(), bytes }), "{text}");
        }
        for text in ["tmp", "tmp=", "tmp=0", "tmp=1MB", "tmp=-1", "tmp=99999999999GiB"] {
            assert!(text.parse::<BufferSize>().is_err(), "{text}");
        }
    }
}
