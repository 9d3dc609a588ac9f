//! From a file and settings to a request for a program.

use std::fmt::Display;
use std::path::Path;

use kiln::{BuildRequest, CacheConfig, Error, ErrorKind, Image, Runtime, SpecializationConstant};
use serde::Serialize;

use crate::args::{Settings, Spec};
use crate::output::in_full;

/// Why there is no program.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Problem {
    /// The name of a [`kiln::ErrorKind`].
    pub(crate) kind: String,
    pub(crate) message: String,
    /// The compiler's messages.
    pub(crate) log: Option<String>,
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let log = error.build_log().filter(|log| !log.trim().is_empty());
        let mut message = in_full(&error);
        // It ends with the log, which is told apart from it.
        if let Some(at) = log.and_then(|log| message.find(log.trim())) {
            message.truncate(at);
        }
        Self {
            kind: format!("{:?}", error.kind()),
            message: message.trim_end().to_owned(),
            log: log.map(str::to_owned),
        }
    }
}

fn unfit(message: impl Display) -> Problem {
    let kind = format!("{:?}", ErrorKind::InvalidArgument);
    Problem { kind, message: message.to_string(), log: None }
}

/// A runtime with the device that the settings select.
pub(crate) async fn runtime(settings: &Settings, cache: CacheConfig) -> kiln::Result<Runtime> {
    let mut builder = Runtime::builder().cache(cache);
    if let Some(device) = &settings.device {
        builder = builder.device(device);
    }
    builder.build().await
}

/// What building the file with these settings would ask for.
pub(crate) async fn request(
    rt: &Runtime,
    file: &Path,
    settings: &Settings,
) -> Result<(Image, BuildRequest), Problem> {
    let image = Image::open(file).await?;
    let mut request = rt.build(&image);
    if let Some(options) = &settings.options {
        request = request.options(options);
    }
    for spec in &settings.spec {
        request = specialize(request, &image, spec)?;
    }
    Ok((image, request))
}

/// Sets a constant to a value of its type.
fn specialize(request: BuildRequest, image: &Image, spec: &Spec) -> Result<BuildRequest, Problem> {
    let id = spec.id;
    let constants = image.specialization_constants();
    let Some(constant) = constants.iter().find(|constant| constant.id == id) else {
        // With any value: the library tells which there are.
        return Ok(request.specialize(id, 0u32));
    };
    let text = spec.value.as_str();
    Ok(match constant.type_name.as_str() {
        "bool" => request.specialize(id, boolean(constant, text)?),
        "float" => request.specialize(id, parsed::<f32>(constant, text)?),
        "double" => request.specialize(id, parsed::<f64>(constant, text)?),
        "char" => request.specialize(id, integer::<i8>(constant, text)?),
        "uchar" => request.specialize(id, integer::<u8>(constant, text)?),
        "short" => request.specialize(id, integer::<i16>(constant, text)?),
        // The bits of a half are given: Rust has no such type.
        "ushort" | "half" => request.specialize(id, integer::<u16>(constant, text)?),
        "int" => request.specialize(id, integer::<i32>(constant, text)?),
        "uint" => request.specialize(id, integer::<u32>(constant, text)?),
        "long" => request.specialize(id, integer::<i64>(constant, text)?),
        "ulong" => request.specialize(id, integer::<u64>(constant, text)?),
        other => return Err(unfit(format_args!("constant {id} has the type {other}"))),
    })
}

fn boolean(constant: &SpecializationConstant, text: &str) -> Result<bool, Problem> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(no_value(constant, text)),
    }
}

fn parsed<T: std::str::FromStr>(
    constant: &SpecializationConstant,
    text: &str,
) -> Result<T, Problem> {
    text.parse().map_err(|_| no_value(constant, text))
}

/// Decimal, or hexadecimal with `0x`.
fn integer<T: TryFrom<i128>>(constant: &SpecializationConstant, text: &str) -> Result<T, Problem> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = number.map_err(|_| no_value(constant, text))?;
    number.try_into().map_err(|_| no_value(constant, text))
}

fn no_value(constant: &SpecializationConstant, text: &str) -> Problem {
    let SpecializationConstant { id, type_name, .. } = constant;
    let hint = match type_name.as_str() {
        "half" => "; give the bits of a half, such as 0x3c00 for 1.0",
        "bool" => "; write true or false",
        _ => "",
    };
    unfit(format_args!(
        "`{text}` is no value for the constant {id}, which is of type {type_name}{hint}"
    ))
}
