//! Translation of one OpenCL C text to SPIR-V.

use std::sync::Arc;
use std::time::Duration;

use super::assembly::{Assembly, Names};
use super::dimensions::add_dimension_checks;
use super::find::{Tool, Tools};
use super::fixups::parse_and_fix;
use super::freeze::without_freezes;
use super::functions::with_kernels;
use super::line_tables::without_lines_of_loops;
use super::options::BuildOptions;
use super::reductions::without_reductions;
use super::run::{REFUSED, run};
use super::scalarize::split_vector_fma;
use super::target::Target;
use crate::device::DeviceInfo;
use crate::error::{Error, ErrorKind, Result};
use crate::process::{self, ProcessOutput};
use crate::source::module::Module;

/// Version of the processing that the arguments do not describe. It is part of every key, and is raised with
/// each change that affects results.
const PIPELINE: &str = "9";

/// Strategy for translating OpenCL C to SPIR-V.
#[derive(Clone, Copy)]
pub(super) struct Strategy {
    /// Arguments for clang. The first one is the optimisation level.
    pub(super) clang: &'static [&'static str],
    /// Arguments for llvm-spirv.
    pub(super) llvm_spirv: &'static [&'static str],
    /// Whether the optimiser gets the integer widths of devices. Without them, as for the target `spir64`, it
    /// creates other integers, such as integers of two bits for a `switch` of four cases. With them, it may
    /// widen 32-bit indices to 64 bits.
    pub(super) adds_integer_widths: bool,
}

pub(super) const OPTIMISED: Strategy =
    Strategy { clang: &["-O2"], llvm_spirv: &[], adds_integer_widths: false };

const PLAIN: Strategy = Strategy { clang: &["-O0"], llvm_spirv: &[], adds_integer_widths: false };

/// Strategies with clang and llvm-spirv that follow if neither [`OPTIMISED`] nor the division into
/// [pieces](super::pieces) succeeds, best first. The second strategy only keeps the values of variables in
/// registers.
const WITH_LLVM_SPIRV: &[Strategy] = &[
    Strategy { adds_integer_widths: true, ..OPTIMISED },
    Strategy {
        clang: &["-O0", "-Xclang", "-disable-O0-optnone"],
        llvm_spirv: &["--spirv-mem2reg"],
        adds_integer_widths: false,
    },
    PLAIN,
];

/// Strategies with clang alone that follow [`OPTIMISED`].
const CLANG_ALONE: &[Strategy] = &[PLAIN];

/// Arguments of every run of clang. They mark contractions, keep names, and prevent files after a crash and colours in
/// messages.
const COMMON_ARGUMENTS: &[&str] = &[
    "-ffp-contract=on",
    // LLVM would make tables of switches, at program scope in private memory, which few compilers take.
    "-fno-jump-tables",
    "-fno-discard-value-names",
    "-fno-crash-diagnostics",
    "-fno-color-diagnostics",
];

/// Arguments with which clang does not merge accesses, to vectors or to copies of whole ranges: that is left to the
/// device's compiler. A guard checks each access on its own. They follow the optimisation level, which would override
/// them.
const SEPARATE_ACCESSES: &[&str] = &[
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-fno-builtin-memset",
    "-fno-builtin-memcpy",
    "-fno-builtin-memmove",
];

/// Argument with which clang defines the functions of a text that are `inline`, but neither `static` nor `extern`. C99
/// expects their definition in another module; the compilers of devices have none, and inline the calls.
const DEFINED_INLINE: &str = "-fgnu89-inline";

/// Arguments with which clang leaves the code unoptimised, whatever the optimisation level.
const WITHOUT_PASSES: [&str; 2] = ["-Xclang", "-disable-llvm-passes"];

/// Arguments with which clang writes LLVM assembly text to its standard output.
const ASSEMBLY_OUTPUT: [&str; 5] = ["-S", "-emit-llvm", "-o", "-", "-"];

/// Argument with which clang notes the lines of the source, and nothing else for debuggers.
const LINES: &str = "-gline-tables-only";

/// Whether a text may have functions that are `inline`, and none that are `extern inline`, which mean the opposite with
/// [`DEFINED_INLINE`].
fn has_inline_functions(text: &[u8]) -> bool {
    let has = |word: &[u8]| text.windows(word.len()).any(|part| part == word);
    has(b"inline") && !has(b"extern inline")
}

/// Prepared translation for a device.
#[derive(Debug)]
pub(crate) struct Translation {
    tools: Arc<Tools>,
    target: Target,
    /// Arguments of the runs of clang that read OpenCL C.
    arguments: Vec<String>,
    /// Arguments that give clang the directories of included files.
    directories: Vec<String>,
    /// Kernels to translate; all of the text's if empty.
    kernels: Names,
    /// Whether the SPIR-V states the lines of the source.
    has_lines: bool,
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
        let standard = standard.as_deref().unwrap_or(super::target::DEFAULT_STANDARD);
        let target = Target::of(device, tools, standard);
        let mut arguments: Vec<String> = ["-x", "cl"].map(str::to_owned).into();
        arguments.push(format!("-cl-std={standard}"));
        arguments.push(format!("--target={}", target.triple));
        if tools.clang.major >= 16 {
            arguments.push("--no-default-config".to_owned());
        }
        arguments.extend(owned(COMMON_ARGUMENTS));
        arguments.extend_from_slice(&target.predefined);
        // Build options come last, so that they override the others.
        arguments.extend(given);
        let (tools, kernels) = (Arc::clone(tools), Names::new());
        Ok(Self { tools, target, arguments, directories, kernels, has_lines: false, limit })
    }

    /// Limits the translation to these kernels and what they use.
    pub(crate) fn limited_to(self, kernels: Names) -> Self {
        Self { kernels, ..self }
    }

    /// Lets the SPIR-V state the lines of the source. Its code is that of the translation without lines, unless
    /// the compilers treat code with lines differently.
    pub(crate) fn with_lines(mut self) -> Self {
        self.arguments.push(LINES.to_owned());
        Self { has_lines: true, ..self }
    }

    /// Returns the kernels that are translated; empty if the whole text is.
    pub(crate) fn kernels(&self) -> &Names {
        &self.kernels
    }

    /// Whether the SPIR-V states the lines of the source.
    pub(crate) fn has_lines(&self) -> bool {
        self.has_lines
    }

    /// Returns the fields of keys that describe the translation: everything that affects the result except the
    /// text. Directories of included files are left out, because the text contains the files.
    pub(crate) fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields: Vec<_> =
            self.tools.identity().map(|(name, version)| (name, version.to_owned())).collect();
        fields.push(("pipeline", PIPELINE.to_owned()));
        fields.push(("spirv version", self.target.version.clone()));
        fields.push(("contraction", self.target.contracts.to_string()));
        fields.push(("arguments", self.arguments.join(" ")));
        fields.extend(self.kernels.iter().map(|kernel| ("kernel", kernel.clone())));
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
        let expand_only = ["-E", "-frewrite-includes", "-o", "-", "-"].map(str::to_owned);
        let ended = self.clang(arguments.chain(expand_only), text)?;
        if !ended.status.success() {
            return Err(tool_error(&self.tools.clang, "rejected the text", &ended));
        }
        let text = String::from_utf8(ended.output).map_err(|error| {
            let message = "the OpenCL C text with its included files is not valid UTF-8";
            Error::new(ErrorKind::BuildFailed, message).with_source(error)
        })?;
        Ok(without_directives_of_files(&text))
    }

    /// Translates a text that includes no files, or in which they are already expanded. Blocks.
    ///
    /// # Errors
    ///
    /// * [`BuildFailed`](ErrorKind::BuildFailed), with the log, if a compiler refuses the text or crashes.
    /// * [`OutOfResources`](ErrorKind::OutOfResources), [`Io`](ErrorKind::Io) or [`Driver`](ErrorKind::Driver)
    ///   if a compiler cannot be run, or does not end.
    pub(crate) fn run(&self, text: &[u8]) -> Result<Translated> {
        let strategies =
            if self.tools.llvm_spirv.is_some() { WITH_LLVM_SPIRV } else { CLANG_ALONE };
        let first_error = match self.try_strategy(text, OPTIMISED) {
            Ok(translated) => return Ok(translated),
            Err(Fault::Final(error)) => return Err(error),
            Err(Fault::OfStrategy(error)) => error,
            Err(Fault::Untranslatable(error, assembly)) => {
                match self.in_pieces(text, &assembly, &error) {
                    Ok(Some(translated)) => return Ok(translated),
                    Err(Fault::Final(error)) => return Err(error),
                    Ok(None) | Err(_) => error,
                }
            }
        };
        tracing::debug!(error = %first_error, "trying other translation strategies");
        for strategy in strategies {
            match self.try_strategy(text, *strategy) {
                Ok(translated) => return Ok(translated),
                Err(Fault::Final(error)) => return Err(error),
                Err(Fault::OfStrategy(_) | Fault::Untranslatable(..)) => {}
            }
        }
        Err(first_error)
    }

    fn try_strategy(&self, text: &[u8], strategy: Strategy) -> Result<Translated, Fault> {
        let ProcessOutput { mut log, output, .. } = self.compile_to_assembly(text, strategy)?;
        let assembly = if strategy.adds_integer_widths {
            self.optimised(&output, strategy, &mut log)?
        } else {
            output
        };
        self.translated(assembly, strategy, log)
    }

    /// Compiles the text to LLVM assembly text. Leaves it unoptimised for a strategy that adds integer widths.
    fn compile_to_assembly(&self, text: &[u8], strategy: Strategy) -> Result<ProcessOutput, Fault> {
        let mut arguments = self.arguments.clone();
        arguments.extend(owned(strategy.clang));
        arguments.extend(owned(SEPARATE_ACCESSES));
        if has_inline_functions(text) {
            arguments.push(DEFINED_INLINE.to_owned());
        }
        if strategy.adds_integer_widths {
            arguments.extend(owned(&WITHOUT_PASSES));
        }
        arguments.extend(owned(&ASSEMBLY_OUTPUT));
        let mut ended = self.clang(arguments.clone(), text)?;
        if ended.status.code() == Some(REFUSED)
            && let Some(text) = self.without_other_kernels(text)?
        {
            ended = self.clang(arguments, &text)?;
        }
        let clang = &self.tools.clang;
        match ended.status.code() {
            Some(0) if self.kernels.is_empty() => Ok(ended),
            Some(0) => {
                let assembly = String::from_utf8_lossy(&ended.output);
                let output = Assembly::of(&assembly).restricted(&self.kernels).into_bytes();
                Ok(ProcessOutput { output, ..ended })
            }
            Some(REFUSED) => Err(Fault::Final(tool_error(clang, "rejected the text", &ended))),
            _ => Err(Fault::OfStrategy(tool_error(clang, "crashed on the text", &ended))),
        }
    }

    /// Returns the preprocessed text without the kernels that are not translated; `None` if all of them are, or
    /// if the text cannot be preprocessed.
    fn without_other_kernels(&self, text: &[u8]) -> Result<Option<Vec<u8>>> {
        if self.kernels.is_empty() {
            return Ok(None);
        }
        let preprocess_only = ["-E", "-o", "-", "-"].map(str::to_owned);
        let ended = self.clang(self.arguments.iter().cloned().chain(preprocess_only), text)?;
        let text = String::from_utf8(ended.output).ok().filter(|_| ended.status.success());
        Ok(text.map(|text| with_kernels(&text, &self.kernels).into_bytes()))
    }

    /// Optimises LLVM assembly text.
    pub(super) fn optimised(
        &self,
        assembly: &[u8],
        strategy: Strategy,
        log: &mut String,
    ) -> Result<Vec<u8>, Fault> {
        // A function `powf` that the text declares is not the C library's.
        let mut arguments = self.arguments_for_llvm(strategy);
        arguments.push("-fno-builtin".to_owned());
        arguments.extend(owned(&ASSEMBLY_OUTPUT));
        let input = match strategy.adds_integer_widths {
            true => with_integer_widths(assembly.to_vec()),
            false => assembly.to_vec(),
        };
        self.run_next(&self.tools.clang, arguments, &input, log)
    }

    /// Compiles the text to LLVM assembly text that can still be optimised.
    pub(super) fn unoptimised(&self, text: &[u8]) -> Result<ProcessOutput, Fault> {
        self.compile_to_assembly(text, Strategy { adds_integer_widths: true, ..OPTIMISED })
    }

    /// Translates LLVM assembly text to SPIR-V.
    pub(super) fn translated(
        &self,
        assembly: Vec<u8>,
        strategy: Strategy,
        mut log: String,
    ) -> Result<Translated, Fault> {
        let assembly = if self.target.contracts { with_fma(assembly) } else { assembly };
        let assembly = match String::from_utf8(assembly) {
            Ok(text) if self.has_lines => translatable(&without_lines_of_loops(&text)).into_bytes(),
            Ok(text) => translatable(&text).into_bytes(),
            Err(error) => error.into_bytes(),
        };
        let written = self.write_spirv(&assembly, strategy, &mut log);
        let (writer, output) = written.map_err(|fault| match fault {
            Fault::OfStrategy(error) => Fault::Untranslatable(error, assembly),
            other => other,
        })?;
        let module = corrected(output).map_err(|error| {
            let Tool { path, version, .. } = writer;
            let path = path.display();
            let message = format!("`{path}` ({version}) did not write usable SPIR-V");
            let unusable = Error::new(ErrorKind::BuildFailed, message);
            Fault::OfStrategy(unusable.with_log(log.as_str()).with_source(error))
        })?;
        Ok(Translated { module, log })
    }

    /// Writes SPIR-V from LLVM assembly text. Returns the tool that wrote it, and its output.
    fn write_spirv(
        &self,
        assembly: &[u8],
        strategy: Strategy,
        log: &mut String,
    ) -> Result<(&Tool, Vec<u8>), Fault> {
        let clang = &self.tools.clang;
        let mut arguments = self.arguments_for_llvm(strategy);
        arguments.extend(owned(&WITHOUT_PASSES));
        if self.tools.llvm_spirv.is_some() {
            arguments.push("-emit-llvm".to_owned());
        }
        arguments.extend(owned(&["-c", "-o", "-", "-"]));
        let output = self.run_next(clang, arguments, assembly, log)?;
        let Some(llvm_spirv) = &self.tools.llvm_spirv else { return Ok((clang, output)) };
        let mut arguments = vec![
            format!("--spirv-max-version={}", self.target.version),
            // SPIR-V itself does not keep the signedness of integers, and messages name types.
            "--preserve-ocl-kernel-arg-type-metadata-through-string".to_owned(),
        ];
        arguments.extend(owned(strategy.llvm_spirv));
        arguments.extend(owned(&["-o", "-", "-"]));
        let output = self.run_next(llvm_spirv, arguments, &output, log)?;
        Ok((llvm_spirv, output))
    }

    /// Returns the first arguments of a run of clang that reads LLVM code instead of OpenCL C.
    fn arguments_for_llvm(&self, strategy: Strategy) -> Vec<String> {
        let mut arguments = owned(&["-x", "ir"]);
        arguments.push(format!("--target={}", self.target.triple));
        arguments.extend(owned(strategy.clang.get(..1).unwrap_or_default()));
        arguments.extend(owned(COMMON_ARGUMENTS));
        arguments.extend(owned(SEPARATE_ACCESSES));
        arguments
    }

    /// Runs a tool on the output of an earlier run, and appends its messages to `log`.
    fn run_next(
        &self,
        tool: &Tool,
        arguments: Vec<String>,
        input: &[u8],
        log: &mut String,
    ) -> Result<Vec<u8>, Fault> {
        let mut ended = run(&tool.path, arguments, input, self.limit)?;
        log.push_str(&ended.log);
        if ended.status.success() {
            return Ok(ended.output);
        }
        ended.log.clone_from(log);
        Err(Fault::OfStrategy(tool_error(tool, "could not translate clang's output", &ended)))
    }

    fn clang(
        &self,
        arguments: impl IntoIterator<Item = String>,
        text: &[u8],
    ) -> Result<ProcessOutput> {
        run(&self.tools.clang.path, arguments, text, self.limit)
    }
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}

/// Returns LLVM assembly text without those constructs that llvm-spirv refuses and that have an equivalent.
pub(super) fn translatable(text: &str) -> String {
    without_freezes(&without_reductions(text))
}

/// Blanks the directives that clang disabled when it put the contents of files in their place, so that nothing in the
/// text names a file any more. The numbers of lines stay.
fn without_directives_of_files(text: &str) -> String {
    const BLOCKS: [(&str, &str); 2] = [
        (
            "#if 0 /* expanded by -frewrite-includes */",
            "#endif /* expanded by -frewrite-includes */",
        ),
        (
            "#if 0 /* disabled by -frewrite-includes */",
            "#endif /* disabled by -frewrite-includes */",
        ),
    ];
    let mut plain = String::with_capacity(text.len());
    let mut end = None;
    for line in text.lines() {
        match end {
            Some(last) if line == last => end = None,
            Some(_) => {}
            None => match BLOCKS.iter().find(|(first, _)| line == *first) {
                Some((_, last)) => end = Some(*last),
                None => plain.push_str(line),
            },
        }
        plain.push('\n');
    }
    plain
}

/// Parses SPIR-V and corrects what the tools write wrongly.
fn corrected(bytes: Vec<u8>) -> Result<Module> {
    let mut module = parse_and_fix(bytes)?;
    split_vector_fma(&mut module)?;
    add_dimension_checks(&mut module)?;
    Module::spirv(module.assemble())
}

/// Adds the integer widths of devices to the data layout in LLVM assembly text, if it has none yet.
fn with_integer_widths(text: Vec<u8>) -> Vec<u8> {
    const LAYOUT: &[u8] = b"\ntarget datalayout = \"";
    const INTEGERS: &[u8] = b"-n8:16:32:64";
    let start = text.windows(LAYOUT.len()).position(|part| part == LAYOUT);
    let Some(start) = start.map(|at| at + LAYOUT.len()) else { return text };
    let Some(length) = text[start..].iter().position(|byte| *byte == b'"') else { return text };
    if text[start..start + length].ends_with(INTEGERS) {
        return text;
    }
    [&text[..start + length], INTEGERS, &text[start + length..]].concat()
}

/// Replaces every `llvm.fmuladd` in LLVM assembly text by `llvm.fma`. clang writes `llvm.fmuladd` where a
/// product and a sum may become one operation; `llvm.fma` always is one.
fn with_fma(text: Vec<u8>) -> Vec<u8> {
    const CONTRACTIBLE: &str = "@llvm.fmuladd.";
    const FUSED: &str = "@llvm.fma.";
    // LLVM escapes characters that are not ASCII.
    let text = match String::from_utf8(text) {
        Ok(text) => text,
        Err(error) => return error.into_bytes(),
    };
    if !text.contains(CONTRACTIBLE) {
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
        if line.starts_with('@') || !line.contains(CONTRACTIBLE) {
            changed.push_str(line);
        } else {
            let line = line.replace(CONTRACTIBLE, FUSED);
            if declared(&line).is_some_and(|suffix| declarations.contains(&suffix)) {
                continue;
            }
            changed.push_str(&line);
        }
        changed.push('\n');
    }
    changed.into_bytes()
}

/// Failure of a strategy.
pub(super) enum Fault {
    /// Another strategy may succeed.
    OfStrategy(Error),
    /// llvm-spirv refused this LLVM assembly text. Another strategy may succeed.
    Untranslatable(Error, Vec<u8>),
    /// No other strategy would succeed.
    Final(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// Creates the error for a run of a tool that failed.
fn tool_error(tool: &Tool, what: &str, ended: &ProcessOutput) -> Error {
    let (path, version) = (tool.path.display(), &tool.version);
    let message =
        format!("`{path}` ({version}) {what}; it {}", process::describe_exit(ended.status));
    Error::new(ErrorKind::BuildFailed, message).with_log(ended.log.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::includes::includes_files;

    #[test]
    fn native_integers_are_added_to_the_data_layout() {
        let text = "; comment\ntarget datalayout = \"e-i64:64\"\ntarget triple = \"spir64\"\n";
        let expected = text.replace("i64:64", "i64:64-n8:16:32:64");
        assert_eq!(with_integer_widths(text.into()), expected.as_bytes());
        assert_eq!(with_integer_widths(b"define void @f()".to_vec()), b"define void @f()");
    }

    #[test]
    fn nothing_in_an_expanded_text_names_a_file() {
        let text = "#if 0 /* expanded by -frewrite-includes */\n#include \"a.h\"\n\
                    #endif /* expanded by -frewrite-includes */\n# 1 \"./a.h\" 1\nint a;\n\
                    #if 0 /* disabled by -frewrite-includes */\n#if __has_include(\"b.h\")\n#endif\n\
                    #endif /* disabled by -frewrite-includes */\n#if 1 /* evaluated */\n#endif\n";
        let plain = without_directives_of_files(text);
        assert_eq!(plain, "\n\n\n# 1 \"./a.h\" 1\nint a;\n\n\n\n\n#if 1 /* evaluated */\n#endif\n");
        assert!(!includes_files(plain.as_bytes()));
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
        assert_eq!(String::from_utf8(with_fma(text.into())), Ok(expected.to_owned()));
        assert_eq!(with_fma(b"declare void @f()".to_vec()), b"declare void @f()");
    }
}
