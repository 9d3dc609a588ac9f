//! Explanation of errors that options cause: names the source of the options.

use std::sync::Arc;

use kiln_compiler::options::words;

use super::link::describe;
use super::options::{OptionKind, OptionSource, SourcedOptions};
use super::plan::BuildPlan;
use crate::error::{Error, ErrorKind};
use crate::source::module::Module;

/// Codes of OpenCL's drivers for options that they do not accept: `CL_INVALID_BUILD_OPTIONS`,
/// `CL_INVALID_COMPILER_OPTIONS` and `CL_INVALID_LINKER_OPTIONS`.
const OPTION_CODES: [(i32, Option<OptionKind>); 3] =
    [(-43, None), (-66, Some(OptionKind::Compile)), (-67, Some(OptionKind::Link))];

/// The options of a request with their sources. It belongs to the request and not to the program: requests for
/// one program can have the same options from different sources.
#[derive(Debug)]
pub(super) struct OptionReport {
    parts: Vec<Part>,
}

/// Options from one source.
#[derive(Debug)]
struct Part {
    kind: OptionKind,
    source: OptionSource,
    /// Module that the options are for.
    module: Module,
    text: String,
}

impl OptionReport {
    /// Returns the report on a plan, or `None` if it has no options.
    pub(super) fn of(plan: &BuildPlan) -> Option<Arc<Self>> {
        let mut parts: Vec<Part> = Vec::new();
        let mut add = |kind, module: &Module, options: &SourcedOptions| {
            for (source, text) in options.parts() {
                let is_of_modules = matches!(source, OptionSource::Record | OptionSource::Module);
                let is_known = parts.iter().any(|part| part.source == source && part.kind == kind);
                // The environment applies to every module.
                if is_of_modules || !is_known {
                    let (module, text) = (module.clone(), text.to_owned());
                    parts.push(Part { kind, source, module, text });
                }
            }
        };
        for input in plan.inputs() {
            add(OptionKind::Compile, input.module(), input.compile_options());
            add(OptionKind::Link, input.module(), input.link_options());
        }
        add(OptionKind::Link, plan.requested().module(), plan.link_options());
        (!parts.is_empty()).then(|| Arc::new(Self { parts }))
    }

    /// Adds the source of the options to an error that they may have caused.
    pub(super) fn explain(&self, error: Error) -> Error {
        if !matches!(error.kind(), ErrorKind::BuildFailed | ErrorKind::Unsupported) {
            return error;
        }
        let named: Vec<_> = self.parts.iter().filter_map(|part| part.named_by(&error)).collect();
        if !named.is_empty() {
            return error.explained(named.join("; "));
        }
        let code = error.driver_code().map(|code| code.code);
        match OPTION_CODES.iter().find(|(known, _)| Some(*known) == code) {
            Some((_, kind)) => {
                let parts = self.parts.iter().filter(|part| kind.is_none_or(|k| k == part.kind));
                let all: Vec<_> =
                    parts.map(|part| format!("`{}` {}", part.text, part.origin())).collect();
                match all[..] {
                    [] => error,
                    _ => error.explained(all.join("; ")),
                }
            }
            None => error,
        }
    }
}

impl Part {
    /// Returns the explanation of an error that names one of the options.
    fn named_by(&self, error: &Error) -> Option<String> {
        let word = words(&self.text).into_iter().find(|word| names_option(error, word))?;
        let origin = self.origin();
        Some(match word == self.text {
            true => format!("the option `{word}` {origin}"),
            false => format!("the option `{word}` {origin} (`{}`)", self.text),
        })
    }

    /// Describes the source, as in "the option .. comes from ..".
    fn origin(&self) -> String {
        let kind = match self.kind {
            OptionKind::Compile => "build options",
            OptionKind::Link => "link options",
        };
        match self.source {
            OptionSource::Record => {
                format!("comes from the command line recorded in {}", describe(&self.module))
            }
            OptionSource::Module => {
                format!("comes from the {kind} of {}", describe(&self.module))
            }
            OptionSource::Variable(name) => format!("comes from the variable {name}"),
            OptionSource::Call => format!("comes from the {kind} of the request"),
        }
    }
}

/// Whether an error is about an option.
fn names_option(error: &Error, word: &str) -> bool {
    if !word.starts_with('-') || word.len() < 2 {
        return false;
    }
    // Kiln's own messages.
    let message = error.message();
    if message.contains(&format!("option `{word}`"))
        || message.contains(&format!("option `{word} "))
    {
        return true;
    }
    let quoted = ['\'', '`', '"'].map(|quote| format!("{quote}{word}{quote}"));
    let lines = error.build_log().unwrap_or_default().lines();
    lines.filter(|line| !line.contains("warning")).any(|line| {
        let is_about_options = ["option", "argument", "flag"].iter().any(|noun| {
            line.as_bytes()
                .windows(noun.len())
                .any(|part| part.eq_ignore_ascii_case(noun.as_bytes()))
        });
        quoted.iter().any(|quoted| line.contains(quoted))
            || is_about_options && has_word(line, word)
    })
}

/// Whether a line contains an option that is not a part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "-_=".contains(c);
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part)
    })
}
