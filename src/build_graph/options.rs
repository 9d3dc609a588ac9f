//! Build options of a program: where they come from, and how they are combined.
//!
//! Options for compiling and options for linking are separate. Each kind has three sources, in this order: the
//! module, the environment of the runtime, and the request. Later options follow earlier ones, so that they
//! take effect with compilers that use the last of conflicting options. One environment variable replaces the
//! module's options, another one adds to them.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::ops::Range;

use kiln_compiler::options::{canonical_options, is_complete};
use smallvec::SmallVec;

use super::link::describe;
use crate::device::ModuleFormat;
use crate::error::{Error, ErrorKind, Result};
use crate::source::module::Module;

/// Kind of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionKind {
    /// Options for the compiler.
    Compile,
    /// Options for the linker.
    Link,
}

/// Source of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionSource {
    /// The command line that the producer of a SPIR-V module recorded in it.
    Record,
    /// The application, for the module.
    Module,
    /// The environment variable of this name.
    Variable(&'static str),
    /// The request.
    Call,
}

/// Names the source in the listing of a key's fields.
impl fmt::Display for OptionSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Record => "the module's record",
            Self::Module => "the module",
            Self::Variable(name) => name,
            Self::Call => "the call",
        })
    }
}

/// Options in canonical form, with the source of each part.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourcedOptions {
    text: String,
    /// Sources and their ranges in the text, in order. None of the ranges is empty.
    parts: SmallVec<[(OptionSource, Range<usize>); 1]>,
}

impl SourcedOptions {
    /// Creates options that have one source.
    pub(crate) fn of(source: OptionSource, text: &str) -> Self {
        let mut options = Self::default();
        options.add(source, text);
        options
    }

    /// Appends options, which need not be in canonical form.
    fn add(&mut self, source: OptionSource, text: &str) {
        let text = canonical_options(text);
        if text.is_empty() {
            return;
        }
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        let start = self.text.len();
        self.text.push_str(&text);
        self.parts.push((source, start..self.text.len()));
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the sources with their options, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (OptionSource, &str)> {
        self.parts.iter().map(|(source, range)| (*source, &self.text[range.clone()]))
    }

    /// Returns the options that `convert` makes of the options of each source.
    pub(super) fn converted(&self, convert: impl Fn(&str) -> Result<String>) -> Result<Self> {
        let mut converted = Self::default();
        for (source, text) in self.parts() {
            converted.add(source, &convert(text)?);
        }
        Ok(converted)
    }

    /// Returns the text of these options and of others, for a compiler that gets both.
    pub(crate) fn joined(&self, others: &Self) -> Cow<'_, str> {
        if others.is_empty() {
            return Cow::Borrowed(&self.text);
        }
        let mut text = self.text.clone();
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&others.text);
        Cow::Owned(text)
    }
}

/// Options that the environment sets for all programs of a runtime.
#[derive(Clone, Debug, Default)]
pub(crate) struct EnvironmentOptions {
    compile: KindVariables,
    link: KindVariables,
}

/// Options of one kind that the environment sets.
#[derive(Clone, Debug, Default)]
struct KindVariables {
    /// Options in place of the module's.
    replacing: Option<(&'static str, String)>,
    /// Options in addition to those before.
    added: Option<(&'static str, String)>,
}

impl EnvironmentOptions {
    /// Reads the variables.
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration), with the name of the variable, for a value that is not
    /// Unicode, or after which further options would not be words of their own.
    pub(crate) fn read() -> Result<Self> {
        Self::read_from(|name| std::env::var_os(name))
    }

    fn read_from(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let value = |name| -> Result<_> {
            // An empty variable counts as not set, like every variable of Kiln.
            let set = variable(name).filter(|value| !value.is_empty());
            set.map(|value| Ok((name, checked_variable(name, value)?))).transpose()
        };
        Ok(Self {
            compile: KindVariables {
                replacing: value("KILN_COMPILE_OPTIONS")?,
                added: value("KILN_APPEND_COMPILE_OPTIONS")?,
            },
            link: KindVariables {
                replacing: value("KILN_LINK_OPTIONS")?,
                added: value("KILN_APPEND_LINK_OPTIONS")?,
            },
        })
    }

    /// Combines the options of a module, of the environment, and of a request.
    ///
    /// Native binaries are loaded, not compiled, so the environment does not apply to them.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument), with the name of the module, if its options contain a
    /// NUL character or would absorb those that follow.
    pub(super) fn combine(
        &self,
        kind: OptionKind,
        module: &Module,
        call: &str,
    ) -> Result<SourcedOptions> {
        let mut options = SourcedOptions::default();
        let no_variables = KindVariables::default();
        let (own, variables) = match kind {
            OptionKind::Compile => (module.options(), &self.compile),
            OptionKind::Link => (module.link_options(), &self.link),
        };
        let is_native = module.format() == ModuleFormat::Native;
        let variables = if is_native { &no_variables } else { variables };
        if let Some((name, text)) = &variables.replacing {
            options.add(OptionSource::Variable(name), text);
        } else if let Some(own) = own {
            check_own(kind, module, own)?;
            let is_recorded = kind == OptionKind::Compile && module.has_recorded_options();
            let source = if is_recorded { OptionSource::Record } else { OptionSource::Module };
            options.add(source, own);
        }
        if let Some((name, text)) = &variables.added {
            options.add(OptionSource::Variable(name), text);
        }
        options.add(OptionSource::Call, call);
        Ok(options)
    }
}

/// Returns the value of a variable, if it can be used as options.
fn checked_variable(name: &str, value: OsString) -> Result<String> {
    let refused = |problem: String| {
        Error::new(ErrorKind::Configuration, format!("the build options {problem}")).within(name)
    };
    let text = value.into_string().map_err(|value| {
        refused(format!("`{}` are not valid Unicode; give Unicode text", value.display()))
    })?;
    if let Some(problem) = problem_of(&text) {
        return Err(refused(format!("`{}` {problem}", text.escape_debug())));
    }
    Ok(text)
}

/// Fails if the options that the application sets for a module cannot be used.
fn check_own(kind: OptionKind, module: &Module, text: &str) -> Result<()> {
    let Some(problem) = problem_of(text) else { return Ok(()) };
    let kind = match kind {
        OptionKind::Compile => "build options",
        OptionKind::Link => "link options",
    };
    let (text, module) = (text.escape_debug(), describe(module));
    Err(Error::invalid(format!("the {kind} `{text}` of {module} {problem}")))
}

/// Fails if the options of a request contain a NUL character. `kind` names them in the message.
pub(super) fn check_call(kind: &str, text: &str) -> Result<()> {
    match text.find('\0') {
        Some(at) => Err(Error::invalid(format!(
            "the {kind} of the request contain a NUL character at byte {at}; remove it"
        ))),
        None => Ok(()),
    }
}

/// Returns the reason why options cannot precede others, if there is one.
fn problem_of(text: &str) -> Option<String> {
    if let Some(at) = text.find('\0') {
        return Some(format!("contain a NUL character at byte {at}; remove it"));
    }
    let problem = "contain a quotation that is not closed, or end in a backslash; complete them";
    (!is_complete(text)).then(|| problem.to_owned())
}
