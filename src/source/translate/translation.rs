//! Translation of one text.

use std::sync::Arc;
use std::time::Duration;

use super::dimensions::dimensions_looked_at;
use super::find::{Tool, Tools};
use super::fixups::repaired;
use super::options::BuildOptions;
use super::run::{REFUSED, run};
use super::scalarize::fma_by_component;
use super::target::Target;
use crate::device::DeviceInfo;
use crate::error::{Error, ErrorKind, Result};
use crate::process::{self, Ended};
use crate::source::module::Module;

/// Version of the processing that the arguments do not describe. It is part of every key, and is raised with
/// each change that affects results.
const PIPELINE: &str = "6";

/// Strategy for translating OpenCL C to SPIR-V.
#[derive(Clone, Copy)]
struct Way {
    clang: &'static [&'static str],
    llvm_spirv: &'static [&'static str],
    /// Whether the optimiser is given the integer widths of devices. `spir64` lists none, so the optimiser
    /// creates, for example, integers of two bits for a `switch` of four cases. With a list, it may widen
    /// 32-bit indices to 64 bits.
    tells_integers: bool,
}

const OPTIMISED: Way = Way { clang: &["-O2"], llvm_spirv: &[], tells_integers: false };

const PLAIN: Way = Way { clang: &["-O0"], llvm_spirv: &[], tells_integers: false };

/// Strategies with clang and llvm-spirv, best first. llvm-spirv 15 does not accept everything that optimisation
/// creates, such as integers of two bits and `freeze`. The third strategy only keeps the values of variables in
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

/// Strategies with clang alone.
const DIRECTLY: &[Way] = &[OPTIMISED, PLAIN];

/// Arguments that keep names and prevent the vectorisation of loops, which is left to the device's compiler.
/// Crashes leave no files.
const ALWAYS: &[&str] = &[
    "-ffp-contract=on",
    "-fno-discard-value-names",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-fno-crash-diagnostics",
    "-fno-color-diagnostics",
];

/// Prepared translation for a device.
#[derive(Debug)]
pub(crate) struct Translation {
    tools: Arc<Tools>,
    target: Target,
    /// Arguments of every run of clang.
    arguments: Vec<String>,
    /// Arguments that give clang the directories of included files.
    directories: Vec<String>,
    limit: Duration,
}

/// Result of a translation.
#[derive(Debug)]
pub(crate) struct Translated {
    /// SPIR-V module.
    pub(crate) module: Module,
    /// Messages of the compilers.
    pub(crate) log: String,
}

impl Translation {
    /// Prepares a translation for a device, with the options of a plain build.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported), with the name of the option, for an unsupported option.
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
        // Build options come last, so that they override the others.
        arguments.extend(given);
        Ok(Self { tools: Arc::clone(tools), target, arguments, directories, limit })
    }

    /// Returns the inputs of the result other than the text, for keys. Directories of included files are left
    /// out.
    pub(crate) fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields: Vec<_> =
            self.tools.identity().map(|(name, version)| (name, version.to_owned())).collect();
        fields.push(("pipeline", PIPELINE.to_owned()));
        fields.push(("spirv version", self.target.version.clone()));
        fields.push(("contraction", self.target.fuses.to_string()));
        fields.push(("arguments", self.arguments.join(" ")));
        fields
    }

    /// Returns the compilers by name and version.
    pub(crate) fn tools(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.tools.identity()
    }

    /// Returns the text with the contents of all included files in place of their directives, and otherwise
    /// unchanged. Blocks.
    ///
    /// # Errors
    ///
    /// Same as [`run`](Self::run).
    pub(crate) fn expand(&self, text: &[u8]) -> Result<String> {
        let directories = self.directories.iter().map(|directory| format!("-I{directory}"));
        let arguments = self.arguments.iter().cloned().chain(directories);
        let last = ["-E", "-frewrite-includes", "-o", "-", "-"].map(str::to_owned);
        let ended = self.clang(arguments.chain(last), text)?;
        if !ended.status.success() {
            return Err(failed(&self.tools.clang, "rejected the text", &ended));
        }
        String::from_utf8(ended.output).map_err(|error| {
            let message = "the OpenCL C text with its included files is not valid UTF-8";
            Error::new(ErrorKind::BuildFailed, message).with_source(error)
        })
    }

    /// Translates a text that includes no files, or in which they are already expanded. Blocks.
    ///
    /// # Errors
    ///
    /// * [`BuildFailed`](ErrorKind::BuildFailed), with the log, if a compiler refuses the text or crashes.
    /// * [`OutOfResources`](ErrorKind::OutOfResources), [`Io`](ErrorKind::Io) or [`Driver`](ErrorKind::Driver)
    ///   if a compiler cannot be run, or does not end.
    pub(crate) fn run(&self, text: &[u8]) -> Result<Translated> {
        let ways = if self.tools.llvm_spirv.is_some() { BY_PAIR } else { DIRECTLY };
        let mut first = None;
        for way in ways {
            match self.try_way(text, *way) {
                Ok(translated) => return Ok(translated),
                Err(Fault::OfWay(error)) => {
                    tracing::debug!(%error, "trying another translation strategy");
                    first.get_or_insert(error);
                }
                Err(Fault::Final(error)) => return Err(error),
            }
        }
        Err(first.unwrap_or_else(|| {
            Error::new(ErrorKind::BuildFailed, "no translation strategy produced SPIR-V")
        }))
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
                return Err(Fault::Final(failed(clang, "rejected the text", &ended)));
            }
            _ => return Err(Fault::OfWay(failed(clang, "crashed on the text", &ended))),
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
            Err(Fault::OfWay(failed(tool, "could not translate clang's output", &ended)))
        };
        let output = if way.tells_integers {
            // A function `powf` that the text declares is not the C library's.
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
                // SPIR-V itself does not keep the signedness of integers, and messages name types.
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
            Module::spirv(module.assemble())
        };
        let module = used(output).map_err(|error| {
            let Tool { path, version, .. } = writer;
            let path = path.display();
            let message = format!("`{path}` ({version}) did not write usable SPIR-V");
            let unusable = Error::new(ErrorKind::BuildFailed, message);
            Fault::OfWay(unusable.with_log(log.as_str()).with_source(error))
        })?;
        Ok(Translated { module, log })
    }

    fn clang(&self, arguments: impl IntoIterator<Item = String>, text: &[u8]) -> Result<Ended> {
        run(&self.tools.clang.path, arguments, text, self.limit)
    }
}

/// Adds the integer widths of devices to the data layout of LLVM assembly text.
fn with_integers(text: Vec<u8>) -> Vec<u8> {
    const LAYOUT: &[u8] = b"\ntarget datalayout = \"";
    const INTEGERS: &[u8] = b"-n8:16:32:64";
    let start = text.windows(LAYOUT.len()).position(|part| part == LAYOUT);
    let Some(start) = start.map(|at| at + LAYOUT.len()) else { return text };
    let Some(length) = text[start..].iter().position(|byte| *byte == b'"') else { return text };
    [&text[..start + length], INTEGERS, &text[start + length..]].concat()
}

/// Replaces every `llvm.fmuladd` in LLVM assembly text by `llvm.fma`. clang writes `llvm.fmuladd` where a
/// product and a sum may become one operation; `llvm.fma` always is one.
fn fused(text: Vec<u8>) -> Vec<u8> {
    const EITHER: &str = "@llvm.fmuladd.";
    const FUSED: &str = "@llvm.fma.";
    // LLVM escapes characters that are not ASCII.
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
    let declarations: Vec<_> = text.lines().filter_map(declared).collect();
    let mut changed = String::with_capacity(text.len());
    for line in text.lines() {
        // A constant may contain any text.
        if line.starts_with('@') || !line.contains(EITHER) {
            changed.push_str(line);
        } else {
            let line = line.replace(EITHER, FUSED);
            if declared(&line).is_some_and(|suffix| declarations.contains(&suffix)) {
                continue;
            }
            changed.push_str(&line);
        }
        changed.push('\n');
    }
    changed.into_bytes()
}

/// Reason why a strategy did not lead to SPIR-V.
enum Fault {
    /// Another strategy may succeed.
    OfWay(Error),
    /// No other strategy would succeed.
    Final(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
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
    fn native_integers_are_added_to_the_data_layout() {
        let text = "; comment\ntarget datalayout = \"e-i64:64\"\ntarget triple = \"spir64\"\n";
        let expected = text.replace("i64:64", "i64:64-n8:16:32:64");
        assert_eq!(with_integers(text.into()), expected.as_bytes());
        assert_eq!(with_integers(b"define void @f()".to_vec()), b"define void @f()");
    }

    #[test]
    fn contractions_become_fma_without_duplicate_declarations() {
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
