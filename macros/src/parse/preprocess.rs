//! Preprocessor of OpenCL C: conditions, macros and line markers. Included files are already in the text.

use std::collections::HashMap;
use std::rc::Rc;

use super::definition::{Macro, expand};
use super::expression::{Context, evaluate};
use super::token::{Kind, Place, Token, tokens};
use super::unreadable::{Result, Unreadable};

/// Macros that every text finds defined if clang does not supply those of a device: a device of OpenCL 1.2 with
/// double precision, whose compiler is built on clang, as those of all known drivers are. These compilers do not define the
/// macros of GCC.
const PREDEFINED: [&str; 15] = [
    "__OPENCL_VERSION__=120",
    "__OPENCL_C_VERSION__=120",
    "CL_VERSION_1_0=100",
    "CL_VERSION_1_1=110",
    "CL_VERSION_1_2=120",
    "CL_VERSION_2_0=200",
    "CL_VERSION_3_0=300",
    "__ENDIAN_LITTLE__=1",
    "__IMAGE_SUPPORT__=1",
    "cl_khr_fp64=1",
    "__opencl_c_fp64=1",
    "cl_khr_fp16=1",
    "cl_khr_int64_base_atomics=1",
    "NULL=0",
    "__clang__=1",
];

/// Names that conditions use like functions, and that have the value zero here.
const QUERIES: [&str; 5] =
    ["__has_include", "__has_builtin", "__has_feature", "__has_extension", "__has_attribute"];

/// First words of pragmas that change no types.
const KNOWN_PRAGMAS: [&str; 5] = ["OPENCL", "unroll", "nounroll", "once", "STDC"];

/// Text of the token in place of a pragma that may change the layouts of types, such as `pack`.
pub(crate) const UNKNOWN_PRAGMA: &str = "#pragma";

/// Advice for an included file that is not found.
pub(crate) const FOLDER_ADVICE: &str = "give the folder of the file by `options = \"-I folder\"`, and name the file itself, not a macro";

/// Preprocesses a text that clang has not preprocessed. `definitions` are those of the build options, such as
/// `N=4`, and names without a value; `undefined` are names to remove.
///
/// # Errors
///
/// With the line of a directive that cannot be followed.
pub(crate) fn preprocess(
    text: &str,
    file: &Rc<str>,
    definitions: &[(String, bool)],
) -> Result<Vec<Token>> {
    let mut preprocessor = Preprocessor::default();
    for definition in PREDEFINED {
        preprocessor.define_option(definition);
    }
    for (definition, defines) in definitions {
        if *defines {
            preprocessor.define_option(definition);
        } else {
            preprocessor.macros.remove(&**definition);
        }
    }
    preprocessor.run(tokens(text, file))
}

/// Assigns files and lines to the tokens of a text that clang has preprocessed.
///
/// # Errors
///
/// Same as [`preprocess`].
pub(crate) fn follow_line_markers(text: &str, file: &Rc<str>) -> Result<Vec<Token>> {
    Preprocessor::default().run(tokens(text, file))
}

/// Returns whether the words of a pragma change no types.
fn is_known(words: &[Token]) -> bool {
    match words {
        [] => true,
        [clang, second, ..] if clang.is("clang") => second.is("loop") || second.is("diagnostic"),
        [gcc, second, ..] if gcc.is("GCC") => second.is("diagnostic"),
        [first, ..] => KNOWN_PRAGMAS.iter().any(|known| first.is(known)),
    }
}

/// State of a condition and of the conditions around it.
struct Condition {
    /// Whether the lines around the condition are kept.
    outer: bool,
    /// Whether the current branch is kept.
    kept: bool,
    /// Whether a branch has been kept.
    taken: bool,
    /// Line of the directive that opened the condition.
    place: Place,
}

#[derive(Default)]
struct Preprocessor {
    macros: HashMap<Rc<str>, Rc<Macro>>,
    conditions: Vec<Condition>,
    /// File that a line marker named last.
    file: Option<Rc<str>>,
    /// Difference between the lines of the file and those of the text.
    offset: isize,
    steps: usize,
    output: Vec<Token>,
}

impl Preprocessor {
    fn run(mut self, tokens: Vec<Token>) -> Result<Vec<Token>> {
        let mut rest = tokens.into_iter().peekable();
        let mut text = Vec::new();
        while let Some(token) = rest.next() {
            if !(token.begins_line && token.is("#")) {
                if self.keeps() {
                    text.push(self.placed(token));
                }
                continue;
            }
            self.flush(&mut text)?;
            let mut directive = Vec::new();
            let mut last_line = token.last_line;
            // A comment can continue a directive on further lines.
            while let Some(next) = rest.next_if(|next| next.line <= last_line || !next.begins_line)
            {
                last_line = next.last_line.max(last_line);
                if next.kind != Kind::Comment {
                    directive.push(next);
                }
            }
            self.directive(&token, &directive)?;
        }
        self.flush(&mut text)?;
        match self.conditions.pop() {
            Some(Condition { place, .. }) => {
                let problem = "`#endif` is missing for this condition".to_owned();
                Err(Unreadable { place, problem })
            }
            None => Ok(self.output),
        }
    }

    /// Expands the macros of lines without a directive between them.
    fn flush(&mut self, text: &mut Vec<Token>) -> Result<()> {
        if self.macros.is_empty() {
            self.output.append(text);
            return Ok(());
        }
        let expanded = expand(&self.macros, std::mem::take(text), &mut self.steps)?;
        self.output.extend(expanded);
        Ok(())
    }

    fn keeps(&self) -> bool {
        self.conditions.last().is_none_or(|condition| condition.kept)
    }

    /// Moves a token to the file and line that line markers state.
    fn placed(&self, token: Token) -> Token {
        let line = |line: usize| line.saturating_add_signed(self.offset);
        let file = self.file.clone().unwrap_or(token.file);
        Token { line: line(token.line), last_line: line(token.last_line), file, ..token }
    }

    fn error(&self, at: &Token, problem: impl Into<String>) -> Unreadable {
        Unreadable { place: self.placed(at.clone()).place(), problem: problem.into() }
    }

    fn directive(&mut self, sign: &Token, directive: &[Token]) -> Result<()> {
        let Some((name, rest)) = directive.split_first() else { return Ok(()) };
        match &*name.text {
            "if" => {
                let kept = self.keeps() && self.holds(sign, rest)?;
                self.open(sign, kept);
            }
            "ifdef" | "ifndef" => {
                let defined = rest.first().is_some_and(|name| self.macros.contains_key(&name.text));
                self.open(sign, defined == (&*name.text == "ifdef"));
            }
            "elif" | "elifdef" | "elifndef" | "else" => self.branch(sign, &name.text, rest)?,
            "endif" => {
                let closed = self.conditions.pop();
                closed.ok_or_else(|| self.error(sign, "`#endif` without a condition"))?;
            }
            _ if !self.keeps() => {}
            "define" => {
                let (name, definition) = Macro::parse(rest)
                    .ok_or_else(|| self.error(sign, "this `#define` cannot be read"))?;
                self.macros.insert(name, Rc::new(definition));
            }
            "undef" => {
                rest.first().map(|name| self.macros.remove(&name.text));
            }
            "include" => return Err(self.not_included(sign, rest)),
            "error" => {
                let words: Vec<_> = rest.iter().map(|token| &*token.text).collect();
                return Err(self.error(sign, format!("`#error {}`", words.join(" "))));
            }
            "line" => self.line_marker(sign, rest),
            _ if name.kind == Kind::Number => self.line_marker(sign, directive),
            "pragma" if !is_known(rest) => self.output.push(Token {
                kind: Kind::Comment,
                text: UNKNOWN_PRAGMA.into(),
                ..self.placed(sign.clone())
            }),
            // Other pragmas, and directives of other compilers.
            _ => {}
        }
        Ok(())
    }

    fn not_included(&self, sign: &Token, name: &[Token]) -> Unreadable {
        let name: String = name.iter().map(|token| &*token.text).collect();
        self.error(sign, format!("includes {name}, which is not found; {FOLDER_ADVICE}"))
    }

    fn open(&mut self, sign: &Token, holds: bool) {
        let outer = self.keeps();
        let kept = outer && holds;
        self.conditions.push(Condition {
            outer,
            kept,
            taken: kept,
            place: self.placed(sign.clone()).place(),
        });
    }

    /// Begins the next branch of a condition.
    fn branch(&mut self, sign: &Token, name: &str, rest: &[Token]) -> Result<()> {
        let Some(&Condition { outer, taken, .. }) = self.conditions.last() else {
            return Err(self.error(sign, format!("`#{name}` without a condition")));
        };
        let defined = rest.first().is_some_and(|name| self.macros.contains_key(&name.text));
        let kept = outer
            && !taken
            && match name {
                "elif" => self.holds(sign, rest)?,
                "elifdef" => defined,
                "elifndef" => !defined,
                _ => true,
            };
        if let Some(condition) = self.conditions.last_mut() {
            condition.kept = kept;
            condition.taken |= kept;
        }
        Ok(())
    }

    /// Returns whether the condition of `#if` or `#elif` holds.
    fn holds(&mut self, sign: &Token, condition: &[Token]) -> Result<bool> {
        let resolved = self.with_queries_resolved(condition);
        let expanded = expand(&self.macros, resolved, &mut self.steps)?;
        // The preprocessor takes all names that are not macros for zero.
        let value =
            evaluate(&expanded, Context::Condition, &|name| Some(i64::from(name == "true")));
        value.map(|value| value != 0).ok_or_else(|| {
            let words: Vec<_> = condition.iter().map(|token| &*token.text).collect();
            self.error(sign, format!("the condition `{}` cannot be evaluated", words.join(" ")))
        })
    }

    /// Replaces `defined NAME`, `defined(NAME)` and queries by numbers.
    fn with_queries_resolved(&self, condition: &[Token]) -> Vec<Token> {
        let mut resolved = Vec::new();
        let mut rest = condition.iter();
        while let Some(token) = rest.next() {
            let known = if token.is("defined") {
                let name = match rest.as_slice() {
                    [open, name, close, ..] if open.is("(") && close.is(")") => {
                        rest.nth(2);
                        Some(name)
                    }
                    _ => rest.next(),
                };
                name.is_some_and(|name| self.macros.contains_key(&name.text))
            } else if QUERIES.contains(&&*token.text) {
                // The name in parentheses is left out.
                let closes = rest.clone().position(|token| token.is(")"));
                closes.map(|close| rest.nth(close));
                false
            } else {
                resolved.push(token.clone());
                continue;
            };
            let text = if known { "1" } else { "0" };
            resolved.push(Token { kind: Kind::Number, text: text.into(), ..token.clone() });
        }
        resolved
    }

    /// Follows `#line 12 "file.cl"`, or clang's `# 12 "file.cl"`.
    fn line_marker(&mut self, sign: &Token, marker: &[Token]) {
        let [line, rest @ ..] = marker else { return };
        let Ok(line) = line.text.parse::<u32>() else { return };
        // The marker states the line of the next line.
        self.offset = (line as isize).saturating_sub_unsigned(sign.last_line + 1);
        if let Some(file) = rest.first().filter(|file| file.kind == Kind::Quoted) {
            let name = file.text.trim_matches('"').replace("\\\"", "\"").replace("\\\\", "\\");
            self.file = Some(name.into());
        }
    }

    /// Defines a macro as an option does: `N` has the value 1, `N=4` the value 4.
    fn define_option(&mut self, definition: &str) {
        let (head, value) = definition.split_once('=').unwrap_or((definition, "1"));
        let line = tokens(&format!("{head} {value}"), &"options".into());
        if let Some((name, definition)) = Macro::parse(&line) {
            self.macros.insert(name, Rc::new(definition));
        }
    }
}

#[cfg(test)]
#[path = "preprocess_tests.rs"]
mod preprocess_tests;
