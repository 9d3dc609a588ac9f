//! Preprocessor of OpenCL C: conditions, macros and line markers. Included files are already in the text.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::definition::{Macro, expand};
use super::expression::{Context, evaluate};
use super::predefined::{DEVICE_VERSION, PREDEFINED, Unknown};
use super::token::{Kind, Place, Token, tokens};
use super::unreadable::{Result, Unreadable};

/// Names that conditions use like functions. Their values differ from compiler to compiler.
const QUERIES: [&str; 6] = [
    "__has_include",
    "__has_include_next",
    "__has_builtin",
    "__has_feature",
    "__has_extension",
    "__has_attribute",
];

/// First words of pragmas that change no types.
const KNOWN_PRAGMAS: [&str; 5] = ["OPENCL", "unroll", "nounroll", "once", "STDC"];

/// Text of the token in place of a pragma that may change the layouts of types, such as `pack`.
pub(crate) const UNKNOWN_PRAGMA: &str = "#pragma";

/// Advice for an included file that is not found.
pub(crate) const FOLDER_ADVICE: &str = "give the folder of the file by `options = \"-I folder\"`, and name the file itself, not a macro";

/// Preprocesses a text that clang has not preprocessed, for a device of a version such as 120. `definitions` are
/// those of the build options, such as `N=4`, and names without a value, with whether they are defined or removed.
///
/// # Errors
///
/// With the line of a directive that cannot be followed, or that decides about code by a macro that only a
/// compiler knows.
pub(crate) fn preprocess(
    text: &str,
    file: &Rc<str>,
    version: u32,
    definitions: &[(String, bool)],
) -> Result<Vec<Token>> {
    let tokens = tokens(text, file);
    let unknown = Some(Unknown::new(&tokens, definitions));
    let mut preprocessor = Preprocessor { unknown, ..Preprocessor::default() };
    preprocessor.define_option(&format!("{DEVICE_VERSION}={version}"));
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
    preprocessor.run(tokens)
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

/// Value of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Truth {
    Holds,
    DoesNotHold,
    /// Only a compiler knows the macro.
    DependsOn(Rc<str>),
}

impl From<bool> for Truth {
    fn from(holds: bool) -> Self {
        if holds { Self::Holds } else { Self::DoesNotHold }
    }
}

impl Truth {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Holds, other) | (other, Self::Holds) => other,
            (Self::DoesNotHold, _) | (_, Self::DoesNotHold) => Self::DoesNotHold,
            (depends, Self::DependsOn(_)) => depends,
        }
    }

    fn not(self) -> Self {
        match self {
            Self::Holds => Self::DoesNotHold,
            Self::DoesNotHold => Self::Holds,
            depends @ Self::DependsOn(_) => depends,
        }
    }
}

/// Returns whether a directive that is no condition can change the code after it. One that refuses the text
/// cannot: the compiler of the device says so.
fn changes_code(directive: &[Token]) -> bool {
    let [name, rest @ ..] = directive else { return false };
    match &*name.text {
        "define" | "undef" | "include" => true,
        "pragma" => !is_known(rest),
        _ => false,
    }
}

/// State of a condition and of the conditions around it.
struct Condition {
    /// State of the lines around the condition.
    outer: Truth,
    /// State of the lines of the current branch.
    branch: Truth,
    /// Whether a branch before the current one, or this one, is kept.
    taken: Truth,
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
    /// Macros that only compilers know; `None` after a compiler has followed the conditions.
    unknown: Option<Unknown>,
    output: Vec<Token>,
}

impl Preprocessor {
    fn run(mut self, tokens: Vec<Token>) -> Result<Vec<Token>> {
        let mut rest = tokens.into_iter().peekable();
        let mut text = Vec::new();
        while let Some(token) = rest.next() {
            if !(token.begins_line && token.is("#")) {
                match self.state() {
                    Truth::Holds => text.push(self.placed(token)),
                    Truth::DependsOn(name) if token.kind != Kind::Comment => {
                        return Err(self.undecided(&token, &name));
                    }
                    _ => {}
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
                Err(Unreadable { place, problem, depends_on: None })
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

    /// Returns whether the current lines are kept.
    fn state(&self) -> Truth {
        self.conditions.last().map_or(Truth::Holds, |condition| condition.branch.clone())
    }

    /// Returns whether a macro is defined.
    fn is_defined(&self, name: Option<&Token>) -> Truth {
        let Some(Token { text: name, .. }) = name else { return Truth::DoesNotHold };
        match &self.unknown {
            Some(unknown) if !self.macros.contains_key(name) && unknown.contains(name) => {
                Truth::DependsOn(name.clone())
            }
            _ => self.macros.contains_key(name).into(),
        }
    }

    /// Returns the error of the innermost condition around a token that matters.
    fn undecided(&self, at: &Token, name: &Rc<str>) -> Unreadable {
        let condition = self.conditions.last().map(|condition| condition.place.clone());
        Unreadable {
            place: condition.unwrap_or_else(|| self.placed(at.clone()).place()),
            problem: format!(
                "only the compiler of a device knows the macro `{name}`, which decides about this code; install \
                 clang, or give a value by `options = \"-D {name}=..\"`"
            ),
            depends_on: Some(name.clone()),
        }
    }

    /// Moves a token to the file and line that line markers state.
    fn placed(&self, token: Token) -> Token {
        let line = |line: usize| line.saturating_add_signed(self.offset);
        let file = self.file.clone().unwrap_or(token.file);
        Token { line: line(token.line), last_line: line(token.last_line), file, ..token }
    }

    fn error(&self, at: &Token, problem: impl Into<String>) -> Unreadable {
        Unreadable {
            place: self.placed(at.clone()).place(),
            problem: problem.into(),
            depends_on: None,
        }
    }

    fn directive(&mut self, sign: &Token, directive: &[Token]) -> Result<()> {
        let Some((name, rest)) = directive.split_first() else { return Ok(()) };
        match &*name.text {
            "if" => {
                let holds = match self.state() {
                    Truth::DoesNotHold => Truth::DoesNotHold,
                    _ => self.holds(sign, rest)?,
                };
                self.open(sign, holds);
            }
            "ifdef" | "ifndef" => {
                let holds = self.is_defined_as(rest, &*name.text == "ifdef");
                self.open(sign, holds);
            }
            "elif" | "elifdef" | "elifndef" | "else" => self.branch(sign, &name.text, rest)?,
            "endif" => {
                let closed = self.conditions.pop();
                closed.ok_or_else(|| self.error(sign, "`#endif` without a condition"))?;
            }
            _ => match self.state() {
                Truth::Holds => self.kept_directive(sign, directive)?,
                Truth::DependsOn(macro_name) if changes_code(directive) => {
                    return Err(self.undecided(sign, &macro_name));
                }
                _ => {}
            },
        }
        Ok(())
    }

    /// Follows a directive that is no condition.
    fn kept_directive(&mut self, sign: &Token, directive: &[Token]) -> Result<()> {
        let [name, rest @ ..] = directive else { return Ok(()) };
        match &*name.text {
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

    fn open(&mut self, sign: &Token, holds: Truth) {
        let outer = self.state();
        let branch = outer.clone().and(holds);
        self.conditions.push(Condition {
            outer,
            taken: branch.clone(),
            branch,
            place: self.placed(sign.clone()).place(),
        });
    }

    /// Begins the next branch of a condition.
    fn branch(&mut self, sign: &Token, name: &str, rest: &[Token]) -> Result<()> {
        let Some(Condition { outer, taken, .. }) = self.conditions.last() else {
            return Err(self.error(sign, format!("`#{name}` without a condition")));
        };
        let reached = outer.clone().and(taken.clone().not());
        let branch = match (&reached, name) {
            (Truth::DoesNotHold, _) | (_, "else") => reached,
            (_, "elif") => reached.and(self.holds(sign, rest)?),
            _ => reached.and(self.is_defined_as(rest, name == "elifdef")),
        };
        if let Some(condition) = self.conditions.last_mut() {
            if condition.taken != Truth::Holds && branch != Truth::DoesNotHold {
                condition.taken = branch.clone();
            }
            condition.branch = branch;
        }
        Ok(())
    }

    /// Returns whether the name after `#ifdef` or `#ifndef` is defined as the directive says.
    fn is_defined_as(&self, rest: &[Token], defined: bool) -> Truth {
        let is_defined = self.is_defined(rest.first());
        if defined { is_defined } else { is_defined.not() }
    }

    /// Returns whether the condition of `#if` or `#elif` holds.
    fn holds(&mut self, sign: &Token, condition: &[Token]) -> Result<Truth> {
        let resolved = self.with_queries_resolved(condition);
        let expanded = expand(&self.macros, resolved, &mut self.steps)?;
        let unknown: RefCell<Option<Rc<str>>> = RefCell::default();
        let value = evaluate(&expanded, Context::Condition, &|name| {
            if self.unknown.as_ref().is_some_and(|it| it.contains(name)) {
                unknown.borrow_mut().get_or_insert_with(|| name.into());
                return None;
            }
            // The preprocessor takes all names that are not macros for zero.
            Some(i64::from(name == "true"))
        });
        match (value, unknown.into_inner()) {
            (Some(value), _) => Ok((value != 0).into()),
            (None, Some(name)) => Ok(Truth::DependsOn(name)),
            (None, None) => {
                let words: Vec<_> = condition.iter().map(|token| &*token.text).collect();
                let problem = format!("the condition `{}` cannot be evaluated", words.join(" "));
                Err(self.error(sign, problem))
            }
        }
    }

    /// Replaces `defined NAME` and `defined(NAME)` by numbers, or by the name if only a compiler knows it, and
    /// queries by their names.
    fn with_queries_resolved(&self, condition: &[Token]) -> Vec<Token> {
        let mut resolved = Vec::new();
        let mut rest = condition.iter();
        while let Some(token) = rest.next() {
            if QUERIES.contains(&&*token.text) {
                // The name in parentheses is left out.
                let closes = rest.clone().position(|token| token.is(")"));
                closes.map(|close| rest.nth(close));
            }
            if !token.is("defined") {
                resolved.push(token.clone());
                continue;
            }
            let name = match rest.as_slice() {
                [open, name, close, ..] if open.is("(") && close.is(")") => {
                    rest.nth(2);
                    Some(name)
                }
                _ => rest.next(),
            };
            let (kind, text) = match self.is_defined(name) {
                Truth::Holds => (Kind::Number, "1".into()),
                Truth::DoesNotHold => (Kind::Number, "0".into()),
                Truth::DependsOn(name) => (Kind::Word, name),
            };
            resolved.push(Token { kind, text, ..token.clone() });
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
