//! The kernels and parameters of an OpenCL C source, found without compiling it.
//!
//! The scan recognizes comments, literals, directives and declarations, and skips everything else.

use kiln_spirv::{Access, AddressSpace, Parameter};

/// Name of a kernel, and its parameters if the module describes them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Signature {
    pub(super) name: String,
    pub(super) parameters: Option<Vec<Parameter>>,
}

/// Result of scanning a source.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) signatures: Vec<Signature>,
    /// Messages of the compiler.
    pub(super) log: String,
    /// Minimum size of the binary in bytes.
    pub(super) binary_size: usize,
}

/// Scans `source`; fails with the build log.
pub(super) fn scan(source: &str) -> Result<Scan, String> {
    let source = source.replace("\\\r\n", "").replace("\\\n", "");
    let source = without_comments(&source);
    let mut scan = Scan::default();
    let mut refused = false;
    let mut tokens = Vec::new();
    for line in source.lines() {
        let Some(directive) = line.trim_start().strip_prefix('#') else {
            tokenize(line, &mut tokens);
            continue;
        };
        let directive = directive.trim();
        let (word, rest) = directive.split_once(char::is_whitespace).unwrap_or((directive, ""));
        let rest = rest.trim();
        match word {
            "error" => {
                refused = true;
                scan.log.push_str(&format!("error: {rest}\n"));
            }
            "warning" => scan.log.push_str(&format!("warning: {rest}\n")),
            "pragma" => {
                let size = rest.strip_prefix("binary_size").map(str::trim);
                if let Some(Ok(size)) = size.map(str::parse) {
                    scan.binary_size = size;
                }
            }
            _ => {}
        }
    }
    scan.log.truncate(scan.log.trim_end().len());
    if refused {
        return Err(scan.log);
    }
    let mut rest = &tokens[..];
    while let Some((token, after)) = rest.split_first() {
        rest = after;
        if let Token::Word("kernel" | "__kernel") = token {
            let mut cursor = Cursor { tokens: after };
            if let Some(signature) = cursor.definition()? {
                let known = &mut scan.signatures;
                if known.iter().all(|other: &Signature| other.name != signature.name) {
                    known.push(signature);
                }
            }
        }
    }
    Ok(scan)
}

/// Returns the text with each comment replaced by a space.
fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    // Quote of the literal that `rest` starts in. Literals end with their line, at the latest.
    let mut literal = None;
    while let Some(next) = rest.chars().next() {
        let mut taken = next.len_utf8();
        match (literal, next) {
            (Some(_), '\n') => literal = None,
            (Some(_), '\\') => taken += rest[taken..].chars().next().map_or(0, char::len_utf8),
            (Some(quote), _) if next == quote => literal = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => literal = Some(next),
            (None, '/') => {
                let end = match rest.as_bytes().get(1) {
                    Some(b'/') => Some(rest.find('\n').unwrap_or(rest.len())),
                    Some(b'*') => Some(rest[2..].find("*/").map_or(rest.len(), |at| at + 4)),
                    _ => None,
                };
                if let Some(end) = end {
                    plain.push(' ');
                    rest = &rest[end..];
                    continue;
                }
            }
            (None, _) => {}
        }
        plain.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    plain
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// A name, a keyword or a number.
    Word(&'a str),
    Symbol(char),
}

fn tokenize<'a>(line: &'a str, tokens: &mut Vec<Token<'a>>) {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut rest = line;
    while let Some(next) = rest.chars().next() {
        let length = match next {
            '"' | '\'' => literal_length(rest, next),
            _ if is_word(next) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ => next.len_utf8(),
        };
        if is_word(next) {
            tokens.push(Token::Word(&rest[..length]));
        } else if !next.is_whitespace() {
            tokens.push(Token::Symbol(next));
        }
        rest = &rest[length..];
    }
}

/// Returns the length in bytes of the literal that `text` starts with, its quotes included.
fn literal_length(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Cursor over the tokens of a declaration.
struct Cursor<'t, 'a> {
    tokens: &'t [Token<'a>],
}

impl<'t, 'a> Cursor<'t, 'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        let (&token, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(token)
    }

    /// Takes the tokens between parentheses, if an opening one comes next.
    fn parenthesized(&mut self) -> Option<&'t [Token<'a>]> {
        let (Token::Symbol('('), inside) = self.tokens.split_first()? else {
            return None;
        };
        let mut depth = 1;
        for (at, token) in inside.iter().enumerate() {
            match token {
                Token::Symbol('(') => depth += 1,
                Token::Symbol(')') => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                self.tokens = &inside[at + 1..];
                return Some(&inside[..at]);
            }
        }
        None
    }

    /// Parses `[attributes] void [attributes] name(parameters) [attributes] {`. Returns `None` if the tokens
    /// are anything else.
    fn definition(&mut self) -> Result<Option<Signature>, String> {
        let (name, parameters) = loop {
            let Some(Token::Word(word)) = self.next() else {
                return Ok(None);
            };
            if let Some(inside) = self.parenthesized()
                && !is_attribute(word)
            {
                break (word, inside);
            }
        };
        loop {
            match self.next() {
                Some(Token::Symbol('{')) => break,
                Some(Token::Word(word)) if is_attribute(word) => {
                    self.parenthesized();
                }
                _ => return Ok(None),
            }
        }
        let parameters = parameters_of(name, parameters)?;
        Ok(Some(Signature { name: name.to_owned(), parameters: Some(parameters) }))
    }
}

fn is_attribute(word: &str) -> bool {
    matches!(word, "__attribute__" | "__attribute")
}

fn parameters_of(kernel: &str, tokens: &[Token<'_>]) -> Result<Vec<Parameter>, String> {
    if matches!(tokens, [] | [Token::Word("void")]) {
        return Ok(Vec::new());
    }
    let mut depth = 0;
    tokens
        .split(|token| {
            match token {
                Token::Symbol('(' | '[') => depth += 1,
                Token::Symbol(')' | ']') => depth -= 1,
                _ => {}
            }
            depth == 0 && *token == Token::Symbol(',')
        })
        .enumerate()
        .map(|(index, tokens)| {
            parameter_of(tokens).ok_or_else(|| {
                format!(
                    "error: parameter {index} of kernel `{kernel}` points to the private address \
                     space"
                )
            })
        })
        .collect()
}

/// Returns the parameter that is declared by `tokens`. `None` if it is a pointer that no kernel can have.
fn parameter_of(tokens: &[Token<'_>]) -> Option<Parameter> {
    let mut space = AddressSpace::Private;
    let mut constant = false;
    let mut writes_image = false;
    let mut stars = 0;
    let mut ty = Vec::new();
    let mut name = None;
    let mut cursor = Cursor { tokens };
    while let Some(token) = cursor.next() {
        match token {
            Token::Symbol('*') => stars += 1,
            // An array parameter is a pointer.
            Token::Symbol('[') => {
                stars += 1;
                name = name.or_else(|| split_name(&mut ty));
                while cursor.next().is_some_and(|token| token != Token::Symbol(']')) {}
            }
            Token::Symbol(_) => {}
            Token::Word(word) if is_attribute(word) => {
                cursor.parenthesized();
            }
            Token::Word("global" | "__global") => space = AddressSpace::Global,
            Token::Word("constant" | "__constant") => space = AddressSpace::Constant,
            Token::Word("local" | "__local") => space = AddressSpace::Local,
            // After a star, `const` applies to the pointer itself.
            Token::Word("const" | "__const") => constant |= stars == 0,
            Token::Word(
                "private" | "__private" | "volatile" | "restrict" | "__restrict" | "__restrict__"
                | "read_only" | "__read_only",
            ) => {}
            Token::Word("write_only" | "__write_only" | "read_write" | "__read_write") => {
                writes_image = true;
            }
            Token::Word(word) if stars == 0 => ty.push(word),
            Token::Word(word) => name = Some(word),
        }
    }
    let name = name.or_else(|| split_name(&mut ty));
    let access = match (stars, space) {
        (0, _) if ty.iter().any(|word| word.starts_with("image")) => {
            space = AddressSpace::Global;
            // A kernel may leave out pixels of an image that it only writes.
            Some(if writes_image { Access::ReadWrite } else { Access::Read })
        }
        (0, _) => {
            space = AddressSpace::Private;
            None
        }
        (_, AddressSpace::Private) => return None,
        (_, AddressSpace::Local) => None,
        (_, AddressSpace::Constant) => Some(Access::Read),
        (_, AddressSpace::Global) if constant => Some(Access::Read),
        (_, AddressSpace::Global) => Some(Access::ReadWrite),
    };
    let type_name = type_name(&ty) + &"*".repeat(stars);
    Some(Parameter::new(name.map(str::to_owned), Some(type_name), Some(space), access, None))
}

/// Takes the name off the end of a declaration without a star, if it has one.
fn split_name<'a>(words: &mut Vec<&'a str>) -> Option<&'a str> {
    let named = match words[..] {
        [.., "char" | "short" | "int" | "long" | "unsigned" | "signed"] => false,
        ["struct" | "union" | "enum", _] => false,
        _ => words.len() > 1,
    };
    if named { words.pop() } else { None }
}

/// Returns the type as drivers write it: `uint` for `unsigned int`.
fn type_name(words: &[&str]) -> String {
    let integer = words
        .iter()
        .all(|word| matches!(*word, "unsigned" | "signed" | "char" | "short" | "int" | "long"));
    if !integer {
        return words.join(" ");
    }
    let base = words.iter().find(|word| matches!(**word, "char" | "short" | "long"));
    let sign = if words.contains(&"unsigned") { "u" } else { "" };
    format!("{sign}{}", base.unwrap_or(&"int"))
}
