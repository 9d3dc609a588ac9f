//! Position in the tokens of a preprocessed text.

use std::rc::Rc;

use super::expression::{Context, evaluate};
use super::preprocess::UNKNOWN_PRAGMA;
use super::token::{Kind, Place, Token};
use super::types::{Qualified, Type};
use super::unreadable::{Result, Unreadable};

/// Maximum number of lines of a comment that documents a kernel.
const MAX_COMMENT_LINES: usize = 200;

pub(crate) struct Cursor<'t> {
    tokens: &'t [Token],
    at: usize,
}

/// Attributes of a declaration that change its type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes {
    pub(crate) is_packed: bool,
    pub(crate) aligned: Option<u64>,
    /// Number of components, for a type that an attribute makes a vector.
    lanes: Option<i64>,
    /// Whether an attribute changes the type in a way that is not known here.
    pub(crate) is_unknown: bool,
}

impl Attributes {
    pub(crate) fn add(&mut self, other: Self) {
        self.is_packed |= other.is_packed;
        self.aligned = self.aligned.max(other.aligned);
        self.lanes = self.lanes.or(other.lanes);
        self.is_unknown |= other.is_unknown;
    }

    /// Returns the type that the attributes make of another.
    pub(crate) fn applied(&self, base: Qualified) -> Qualified {
        let ty = match (self.lanes, &base.ty.resolved().ty) {
            (Some(lanes), Type::Scalar(scalar)) => {
                let name = format!("{}{lanes}", scalar.name());
                Type::built_in(&name).unwrap_or_else(|| Type::Unknown(name.into()))
            }
            _ if self.is_unknown || self.lanes.is_some() => {
                Type::Unknown("a type with attributes".into())
            }
            _ => base.ty,
        };
        Qualified { ty, ..base }
    }
}

impl<'t> Cursor<'t> {
    pub(crate) fn new(tokens: &'t [Token]) -> Self {
        let mut cursor = Self { tokens, at: 0 };
        cursor.skip_comments();
        cursor
    }

    /// Returns whether a pragma may change the layouts of types.
    pub(super) fn has_unknown_pragmas(&self) -> bool {
        self.tokens.iter().any(|token| &*token.text == UNKNOWN_PRAGMA || token.is("_Pragma"))
    }

    /// Skips comments and pragmas, which may stand anywhere.
    fn skip_comments(&mut self) {
        loop {
            match self.tokens.get(self.at..) {
                Some([comment, ..]) if comment.kind == Kind::Comment => self.at += 1,
                Some([pragma, open, text, close, ..])
                    if pragma.is("_Pragma")
                        && open.is("(")
                        && text.kind == Kind::Quoted
                        && close.is(")") =>
                {
                    self.at += 4;
                }
                _ => return,
            }
        }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn return_to(&mut self, position: usize) {
        self.at = position;
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    pub(super) fn peek(&self) -> Option<&'t Token> {
        self.tokens.get(self.at)
    }

    /// Returns the token behind the next one.
    pub(super) fn peek_second(&self) -> Option<&'t Token> {
        let rest = self.tokens.get(self.at + 1..)?;
        rest.iter().find(|token| token.kind != Kind::Comment)
    }

    pub(super) fn skip(&mut self) {
        self.at += 1;
        self.skip_comments();
    }

    pub(super) fn eat(&mut self, text: &str) -> bool {
        let found = self.peek().is_some_and(|token| token.is(text));
        if found {
            self.skip();
        }
        found
    }

    pub(super) fn eat_word(&mut self) -> Option<Rc<str>> {
        let word = self.peek().filter(|token| token.is_word())?;
        self.skip();
        Some(Rc::clone(&word.text))
    }

    pub(super) fn expect(&mut self, text: &str, end_of: &str) -> Result<()> {
        if self.eat(text) {
            return Ok(());
        }
        let found = self.peek().map_or("the end of the file", |token| &token.text);
        Err(self.error(format!("expected `{text}` at the end of {end_of}, found `{found}`")))
    }

    /// Returns the place of the next token, or of the last one.
    pub(super) fn place(&self) -> Place {
        let token = self.peek().or(self.tokens.last());
        token.map_or_else(|| Place { file: "".into(), line: 1 }, Token::place)
    }

    pub(super) fn error(&self, problem: impl Into<String>) -> Unreadable {
        Unreadable { place: self.place(), problem: problem.into(), depends_on: None }
    }

    /// Skips a group in parentheses, brackets or braces. Returns whether it was closed.
    pub(super) fn skip_group(&mut self) -> bool {
        let mut depth = 0usize;
        while let Some(token) = self.peek() {
            self.skip();
            if token.kind != Kind::Sign {
                continue;
            }
            match &*token.text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return true;
            }
        }
        false
    }

    /// Skips tokens up to a comma, a semicolon or the end of the group, and returns them.
    pub(super) fn skip_initializer(&mut self) -> Vec<Token> {
        let start = self.at;
        while let Some(token) = self.peek() {
            match &*token.text {
                "(" | "[" | "{" => {
                    self.skip_group();
                }
                "," | ";" | ")" | "]" | "}" => break,
                _ => self.skip(),
            }
        }
        self.between(start, self.at)
    }

    /// Skips to the end of a declaration or of a function's body, and returns the tokens outside groups.
    pub(super) fn skip_declaration(&mut self) -> Vec<&'t Token> {
        let mut skipped = Vec::new();
        while let Some(token) = self.peek() {
            match &*token.text {
                ";" => {
                    self.skip();
                    break;
                }
                "{" => {
                    self.skip_group();
                    // A structure, an `enum` and an initializer go on.
                    if !self.peek().is_some_and(|next| next.is(";") || next.is(",")) {
                        break;
                    }
                }
                "(" | "[" => {
                    self.skip_group();
                }
                _ => {
                    skipped.push(token);
                    self.skip();
                }
            }
        }
        skipped
    }

    fn between(&self, start: usize, end: usize) -> Vec<Token> {
        let tokens = self.tokens[start..end].iter();
        tokens.filter(|token| token.kind != Kind::Comment).cloned().collect()
    }

    /// Returns the tokens between two positions as text.
    pub(super) fn text(&self, start: usize, end: usize) -> String {
        let mut text = String::new();
        for (at, token) in self.between(start, end).iter().enumerate() {
            if at > 0 && (token.spaced || token.begins_line) {
                text.push(' ');
            }
            text.push_str(&token.text);
        }
        text
    }

    /// Reads attributes, if there are any.
    pub(super) fn attributes(&mut self) -> Attributes {
        let mut attributes = Attributes::default();
        while let Some(token) = self.peek() {
            let is_named = token.is("__attribute__") || token.is("__attribute");
            let is_bracketed =
                token.is("[") && self.peek_second().is_some_and(|second| second.is("["));
            let is_aligned = token.is("_Alignas") || token.is("alignas");
            let is_label = token.is("asm") || token.is("__asm__");
            if !(is_named || is_bracketed || is_aligned || is_label) {
                break;
            }
            if !is_bracketed {
                self.skip();
            }
            let start = self.at;
            self.skip_group();
            if is_named {
                attributes.read(&self.between(start, self.at));
            }
            attributes.is_unknown |= is_aligned;
        }
        attributes
    }

    /// Returns the lines of the comment that ends on the line above a position.
    pub(super) fn comment_above(&self, position: usize) -> Vec<String> {
        let Some(first) = self.tokens.get(position) else { return Vec::new() };
        let mut next_line = first.line;
        let mut lines = Vec::new();
        for at in (0..position).rev() {
            let comment = &self.tokens[at];
            let before = at.checked_sub(1).map(|at| &self.tokens[at]);
            // A comment behind other code of its line is not about the kernel.
            let trails = before.is_some_and(|before| {
                before.last_line == comment.line && before.kind != Kind::Comment
            });
            let touches = comment.file == first.file && comment.last_line + 1 >= next_line;
            let is_comment = comment.kind == Kind::Comment && &*comment.text != UNKNOWN_PRAGMA;
            if !is_comment || trails || !touches {
                break;
            }
            let mut above = lines_of_comment(&comment.text);
            above.append(&mut lines);
            lines = above;
            next_line = comment.line;
            if lines.len() > MAX_COMMENT_LINES {
                break;
            }
        }
        while lines.last().is_some_and(|line| line.is_empty()) {
            lines.pop();
        }
        let blank = lines.iter().take_while(|line| line.is_empty()).count();
        lines.split_off(blank)
    }
}

/// Returns the lines of a comment without the signs that make it one.
fn lines_of_comment(comment: &str) -> Vec<String> {
    if let Some(line) = comment.strip_prefix("//") {
        let line = line.trim_start_matches(['/', '!']);
        return vec![line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned()];
    }
    let text = comment.strip_prefix("/*").unwrap_or(comment);
    let text = text.strip_suffix("*/").unwrap_or(text).trim_start_matches(['*', '!']);
    let lines = text.lines().map(|line| {
        let line = line.trim();
        let line = line.strip_prefix('*').unwrap_or(line);
        line.strip_prefix(' ').unwrap_or(line).trim_end_matches(['*', ' ']).to_owned()
    });
    lines.collect()
}

impl Attributes {
    /// Reads the list behind `__attribute__`, in its parentheses.
    fn read(&mut self, tokens: &[Token]) {
        let inner = tokens.get(2..tokens.len().saturating_sub(2)).unwrap_or_default();
        let mut depth = 0usize;
        for (at, token) in inner.iter().enumerate() {
            match &*token.text {
                "(" => depth += 1,
                ")" => depth = depth.saturating_sub(1),
                _ if depth == 0 => self.read_one(&token.text, &inner[at + 1..]),
                _ => {}
            }
        }
    }

    fn read_one(&mut self, name: &str, rest: &[Token]) {
        let value = || match rest {
            [open, value @ ..] if open.is("(") => {
                let close = value.iter().position(|token| token.is(")"))?;
                evaluate(&value[..close], Context::Declaration, &|_| None)
            }
            _ => None,
        };
        match name.trim_matches('_') {
            "packed" => self.is_packed = true,
            "aligned" => match value().and_then(|value| u64::try_from(value).ok()) {
                Some(value) => self.aligned = self.aligned.max(Some(value)),
                None => self.is_unknown = true,
            },
            "ext_vector_type" => {
                self.lanes = value();
                self.is_unknown |= self.lanes.is_none();
            }
            "vector_size" | "address_space" | "mode" => self.is_unknown = true,
            _ => {}
        }
    }
}
