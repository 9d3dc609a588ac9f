//! The translation of one text.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::compiler;
use super::dimensions::dimensions_looked_at;
use super::find::{Tool, Tools};
use super::fixups::repaired;
use super::options::BuildOptions;
use super::scalarize::fma_by_component;
use super::target::Target;
use crate::device::DeviceInfo;
use crate::error::{Error, ErrorKind, Result};
use crate::process::{self, Ended};
use crate::source::image::Image;

/// What is done to a text beside what the arguments tell. Part of every key: raised with each change
/// that changes results.
const PIPELINE: &str = "6";

/// A way from OpenCL C to SPIR-V.
#[derive(Clone, Copy)]
struct Way {
    clang: &'static [&'static str],
    llvm_spirv: &'static [&'static str],
    /// Whether the optimiser is told which integers there are. `spir64` names none, so that it makes
    /// some of two bits for a `switch` of four cases; with them, it may make indices of 64 bits of
    /// those of 32.
    tells_integers: bool,
}

const OPTIMISED: Way = Way { clang: &["-O2"], llvm_spirv: &[], tells_integers: false };

const PLAIN: Way = Way { clang: &["-O0"], llvm_spirv: &[], tells_integers: false };

/// The ways by clang and llvm-spirv, best first. llvm-spirv 15 does not take all that optimising makes,
/// such as integers of two bits and `freeze`; the third way leaves only the values of variables in
/// registers.
const BY_PAIR: &[Way] = &[
    OPTIMISED,
    Way { tells_integers: true, ..OPTIMISED },
    Way {
        clang: &["-O0", "-Xclang", "-disable-O0-optnone"],
        llvm_spirv: &["--spirv-mem2reg"],
        tells_integers: false,
    },
    PLAIN,
];

/// Those by clang alone.
const DIRECTLY: &[Way] = &[OPTIMISED, PLAIN];

/// With them, names are kept and loops are not made vectors: that is up to the device's compiler.
/// Crashes leave no files.
const ALWAYS: &[&str] = &[
    "-ffp-contract=on",
    "-fno-discard-value-names",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-fno-crash-diagnostics",
    "-fno-color-diagnostics",
];

/// The exit status by which clang says that the text is wrong, and not that it fell over.
const REFUSED: i32 = 1;

/// How a text is to be translated.
#[derive(Debug)]
pub(crate) struct Translation {
    tools: Arc<Tools>,
    target: Target,
    /// For clang, whatever it does.
    arguments: Vec<String>,
    /// The directories for included files, for clang.
    directories: Vec<String>,
    limit: Duration,
}

/// What came of a translation.
#[derive(Debug)]
pub(crate) struct Translated {
    /// SPIR-V.
    pub(crate) image: Image,
    /// The compilers' messages.
    pub(crate) log: String,
}

impl Translation {
    /// For a device, with the options of a plain build.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) for an option, by name.
    pub(crate) fn new(
        tools: &Arc<Tools>,
        limit: Duration,
        options: &str,
        device: &DeviceInfo,
    ) -> Result<Self> {
        let BuildOptions { arguments: given, directories, standard } =
            BuildOptions::parse(options)?;
        let standard = standard.as_deref().unwrap_or(super::target::STANDARD);
        let target = Target::of(device, tools, standard);
        let mut arguments: Vec<String> = ["-x", "cl"].map(str::to_owned).into();
        arguments.push(format!("-cl-std={standard}"));
        arguments.push(format!("--target={}", target.triple));
        if tools.clang.major >= 16 {
            arguments.push("--no-default-config".to_owned());
        }
        arguments.extend(ALWAYS.iter().map(|argument| (*argument).to_owned()));
        arguments.extend_from_slice(&target.predefined);
        // Behind the others: what the text asks for counts.
        arguments.extend(given);
        Ok(Self { tools: Arc::clone(tools), target, arguments, directories, limit })
    }

    /// What the result depends on beside the text, for keys; but not where included files are found.
    pub(crate) fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields: Vec<_> =
            self.tools.identity().map(|(name, version)| (name, version.to_owned())).collect();
        fields.push(("pipeline", PIPELINE.to_owned()));
        fields.push(("spirv version", self.target.version.clone()));
        fields.push(("contraction", self.target.fuses.to_string()));
        fields.push(("arguments", self.arguments.join(" ")));
        fields
    }

    /// The compilers by name and version.
    pub(crate) fn tools(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.tools.identity()
    }

    /// The text with the contents of all included files in the place of their directives, and
    /// otherwise as it is. Blocks.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub(crate) fn expand(&self, text: &[u8]) -> Result<String> {
        let directories = self.directories.iter().map(|directory| format!("-I{directory}"));
        let arguments = self.arguments.iter().cloned().chain(directories);
        let last = ["-E", "-frewrite-includes", "-o", "-", "-"].map(str::to_owned);
        let ended = self.clang(arguments.chain(last), text)?;
        if !ended.status.success() {
            return Err(failed(&self.tools.clang, "does not take the text", &ended));
        }
        String::from_utf8(ended.output).map_err(|error| {
            let message = "the OpenCL C text with its included files is no UTF-8";
            Error::new(ErrorKind::BuildFailed, message).with_source(error)
        })
    }

    /// Translates a text that includes no files, or whose files are in their places already. Blocks.
    ///
    /// # Errors
    ///
    /// * [`BuildFailed`](ErrorKind::BuildFailed), with the log, if a compiler refuses the text or falls
    ///   over it.
    /// * [`OutOfResources`](ErrorKind::OutOfResources), [`Io`](ErrorKind::Io) or
    ///   [`Driver`](ErrorKind::Driver) if a compiler cannot be run, or does not end.
    pub(crate) fn run(&self, text: &[u8]) -> Result<Translated> {
        let ways = if self.tools.llvm_spirv.is_some() { BY_PAIR } else { DIRECTLY };
        let mut first = None;
        for way in ways {
            match self.try_way(text, *way) {
                Ok(translated) => return Ok(translated),
                Err(Fault::OfWay(error)) => {
                    tracing::debug!(%error, "trying another way to translate");
                    first.get_or_insert(error);
                }
                Err(Fault::Final(error)) => return Err(error),
            }
        }
        Err(first.unwrap_or_else(|| Error::new(ErrorKind::BuildFailed, "no way leads to SPIR-V")))
    }

    fn try_way(&self, text: &[u8], way: Way) -> Result<Translated, Fault> {
        const UNCHANGED: [&str; 2] = ["-Xclang", "-disable-llvm-passes"];
        const TEXT: [&str; 5] = ["-S", "-emit-llvm", "-o", "-", "-"];
        let owned = |arguments: &[&str]| -> Vec<String> {
            arguments.iter().map(|argument| (*argument).to_owned()).collect()
        };
        let clang = &self.tools.clang;
        let mut arguments = self.arguments.clone();
        arguments.extend(owned(way.clang));
        if way.tells_integers {
            arguments.extend(owned(&UNCHANGED));
        }
        arguments.extend(owned(&TEXT));
        let ended = self.clang(arguments, text)?;
        match ended.status.code() {
            Some(0) => {}
            Some(REFUSED) => {
                return Err(Fault::Final(failed(clang, "does not take the text", &ended)));
            }
            _ => return Err(Fault::OfWay(failed(clang, "fell over the text", &ended))),
        }
        let Ended { mut log, output, .. } = ended;
        let mut from_llvm = owned(&["-x", "ir"]);
        from_llvm.push(format!("--target={}", self.target.triple));
        from_llvm.extend(owned(way.clang.get(..1).unwrap_or_default()));
        from_llvm.extend(owned(ALWAYS));
        let mut then = |tool: &Tool, arguments: Vec<String>, input: &[u8]| {
            let mut ended = run(&tool.path, arguments, input, self.limit)?;
            log.push_str(&ended.log);
            if ended.status.success() {
                return Ok(ended.output);
            }
            ended.log.clone_from(&log);
            Err(Fault::OfWay(failed(tool, "does not translate what clang made of it", &ended)))
        };
        let output = if way.tells_integers {
            // What a text calls `powf` is its own.
            let mut arguments = from_llvm.clone();
            arguments.push("-fno-builtin".to_owned());
            arguments.extend(owned(&TEXT));
            then(clang, arguments, &with_integers(output))?
        } else {
            output
        };
        let output = if self.target.fuses { fused(output) } else { output };
        let mut arguments = from_llvm;
        arguments.extend(owned(&UNCHANGED));
        if self.tools.llvm_spirv.is_some() {
            arguments.push("-emit-llvm".to_owned());
        }
        arguments.extend(owned(&["-c", "-o", "-", "-"]));
        let mut output = then(clang, arguments, &output)?;
        let mut writer = clang;
        if let Some(llvm_spirv) = &self.tools.llvm_spirv {
            let mut arguments = vec![
                format!("--spirv-max-version={}", self.target.version),
                // SPIR-V itself keeps no sign of an integer, and messages name types.
                "--preserve-ocl-kernel-arg-type-metadata-through-string".to_owned(),
            ];
            arguments.extend(owned(way.llvm_spirv));
            arguments.extend(owned(&["-o", "-", "-"]));
            output = then(llvm_spirv, arguments, &output)?;
            writer = llvm_spirv;
        }
        let used = |output| {
            let mut module = repaired(output)?;
            fma_by_component(&mut module)?;
            dimensions_looked_at(&mut module)?;
            Image::spirv(module.assemble())
        };
        let image = used(output).map_err(|error| {
            let Tool { path, version, .. } = writer;
            let path = path.display();
            let message = format!("`{path}` ({version}) wrote no SPIR-V that can be used");
            let unusable = Error::new(ErrorKind::BuildFailed, message);
            Fault::OfWay(unusable.with_log(log.as_str()).with_source(error))
        })?;
        Ok(Translated { image, log })
    }

    fn clang(&self, arguments: impl IntoIterator<Item = String>, text: &[u8]) -> Result<Ended> {
        run(&self.tools.clang.path, arguments, text, self.limit)
    }
}

/// LLVM's own text, with the integers that devices have in its data layout.
fn with_integers(text: Vec<u8>) -> Vec<u8> {
    const LAYOUT: &[u8] = b"\ntarget datalayout = \"";
    const INTEGERS: &[u8] = b"-n8:16:32:64";
    let start = text.windows(LAYOUT.len()).position(|part| part == LAYOUT);
    let Some(start) = start.map(|at| at + LAYOUT.len()) else { return text };
    let Some(length) = text[start..].iter().position(|byte| *byte == b'"') else { return text };
    [&text[..start + length], INTEGERS, &text[start + length..]].concat()
}

/// LLVM's own text, with every `llvm.fmuladd`, which clang writes where a product and a sum may become
/// one operation, made `llvm.fma`, which they then are.
fn fused(text: Vec<u8>) -> Vec<u8> {
    const EITHER: &str = "@llvm.fmuladd.";
    const FUSED: &str = "@llvm.fma.";
    // LLVM writes what is no ASCII as escapes.
    let text = match String::from_utf8(text) {
        Ok(text) => text,
        Err(error) => return error.into_bytes(),
    };
    if !text.contains(EITHER) {
        return text.into_bytes();
    }
    let declared = |line: &str| -> Option<String> {
        let (_, rest) = line.strip_prefix("declare ")?.split_once(FUSED)?;
        rest.split_once('(').map(|(suffix, _)| suffix.to_owned())
    };
    let there: Vec<_> = text.lines().filter_map(declared).collect();
    let mut changed = String::with_capacity(text.len());
    for line in text.lines() {
        // A constant may hold any text.
        if line.starts_with('@') || !line.contains(EITHER) {
            changed.push_str(line);
        } else {
            let line = line.replace(EITHER, FUSED);
            if declared(&line).is_some_and(|suffix| there.contains(&suffix)) {
                continue;
            }
            changed.push_str(&line);
        }
        changed.push('\n');
    }
    changed.into_bytes()
}

/// Why a way did not lead to SPIR-V.
enum Fault {
    /// Another may.
    OfWay(Error),
    /// No other would.
    Final(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// Runs a compiler; that it was starved, of memory or of room to write, is an error.
fn run(
    program: &Path,
    arguments: impl IntoIterator<Item = String>,
    input: &[u8],
    limit: Duration,
) -> Result<Ended> {
    let ended = process::run(compiler(program, arguments), input, limit)?;
    if !ended.status.success() && process::was_starved(&ended) {
        let message = format!("{}: it ran out of memory", program.display());
        return Err(Error::new(ErrorKind::OutOfResources, message).with_log(ended.log));
    }
    // Its messages and its output would be in files, most often in memory.
    if ended.status.code() == Some(REFUSED) && ended.log.is_empty() {
        let (path, directory) = (program.display(), std::env::temp_dir());
        let message = format!(
            "{path}: it failed without a word, as where there is no room for files; make room in memory \
             and in {}",
            directory.display()
        );
        return Err(Error::new(ErrorKind::Io, message));
    }
    Ok(ended)
}

fn failed(tool: &Tool, what: &str, ended: &Ended) -> Error {
    let (path, version) = (tool.path.display(), &tool.version);
    let message = format!("`{path}` ({version}) {what}; it {}", process::in_words(ended.status));
    Error::new(ErrorKind::BuildFailed, message).with_log(ended.log.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_told_in_the_data_layout() {
        let text = "; comment\ntarget datalayout = \"e-i64:64\"\ntarget triple = \"spir64\"\n";
        let expected = text.replace("i64:64", "i64:64-n8:16:32:64");
        assert_eq!(with_integers(text.into()), expected.as_bytes());
        assert_eq!(with_integers(b"define void @f()".to_vec()), b"define void @f()");
    }

    #[test]
    fn contractions_are_fused_and_nothing_is_declared_twice() {
        let text = "@s = constant [2 x i8] c\"@llvm.fmuladd.f32\"\n\
                    %1 = call float @llvm.fmuladd.f32(float %a, float %b, float %c)\n\
                    %2 = call <4 x float> @llvm.fmuladd.v4f32(<4 x float> %a)\n\
                    declare float @llvm.fmuladd.f32(float, float, float)\n\
                    declare <4 x float> @llvm.fmuladd.v4f32(<4 x float>)\n\
                    declare float @llvm.fma.f32(float, float, float)\n";
        let expected = "@s = constant [2 x i8] c\"@llvm.fmuladd.f32\"\n\
                        %1 = call float @llvm.fma.f32(float %a, float %b, float %c)\n\
                        %2 = call <4 x float> @llvm.fma.v4f32(<4 x float> %a)\n\
                        declare <4 x float> @llvm.fma.v4f32(<4 x float>)\n\
                        declare float @llvm.fma.f32(float, float, float)\n";
        assert_eq!(String::from_utf8(fused(text.into())), Ok(expected.to_owned()));
        assert_eq!(fused(b"declare void @f()".to_vec()), b"declare void @f()");
    }
}
