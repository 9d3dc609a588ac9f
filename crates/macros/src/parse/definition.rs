//! Macros of the preprocessor, and their expansion.

use std::collections::HashMap;
use std::rc::Rc;

use super::token::{Hidden, Kind, Token, tokens};
use super::unreadable::{Result, Unreadable};

/// Maximum number of tokens that the expansions of a file read.
const MAX_STEPS: usize = 1 << 21;

/// Maximum depth of invocations inside the arguments of others.
const MAX_DEPTH: usize = 64;

/// Definition of a macro.
#[derive(Debug)]
pub(crate) struct Macro {
    /// Names of the parameters, for a macro that is invoked like a function.
    parameters: Option<Vec<Rc<str>>>,
    /// Whether the last parameter takes all further arguments.
    is_variadic: bool,
    body: Vec<Token>,
}

impl Macro {
    /// Parses the part of a `#define` behind this word. Returns the macro's name, too.
    pub(crate) fn parse(line: &[Token]) -> Option<(Rc<str>, Self)> {
        let (name, rest) = line.split_first().filter(|(name, _)| name.is_word())?;
        let name = Rc::clone(&name.text);
        let takes_arguments = rest.first().is_some_and(|token| token.is("(") && !token.spaced);
        if !takes_arguments {
            let body = rest.to_vec();
            return Some((name, Self { parameters: None, is_variadic: false, body }));
        }
        let close = rest.iter().position(|token| token.is(")"))?;
        let (list, body) = (&rest[1..close], rest[close + 1..].to_vec());
        let mut parameters: Vec<Rc<str>> = Vec::new();
        let mut is_variadic = false;
        for parameter in list.split(|token| token.is(",")) {
            match parameter {
                [] if list.is_empty() => {}
                [dots] if dots.is("...") => {
                    is_variadic = true;
                    parameters.push("__VA_ARGS__".into());
                }
                [name, dots] if name.is_word() && dots.is("...") => {
                    is_variadic = true;
                    parameters.push(Rc::clone(&name.text));
                }
                [name] if name.is_word() => parameters.push(Rc::clone(&name.text)),
                _ => return None,
            }
        }
        Some((name, Self { parameters: Some(parameters), is_variadic, body }))
    }

    /// Whether a token of the body stands for all further arguments.
    fn rest_at(&self, token: &Token) -> bool {
        let last = self.parameters.as_ref().map(Vec::len);
        self.is_variadic && self.parameter(token).map(|at| at + 1) == last
    }

    fn parameter(&self, token: &Token) -> Option<usize> {
        let parameters = self.parameters.as_ref().filter(|_| token.is_word())?;
        parameters.iter().position(|name| *name == token.text)
    }
}

/// Expands the macros in tokens. `steps` counts the work over all calls for a file.
///
/// # Errors
///
/// If macros expand to more than a compiler would accept.
pub(crate) fn expand(
    macros: &HashMap<Rc<str>, Rc<Macro>>,
    input: Vec<Token>,
    steps: &mut usize,
) -> Result<Vec<Token>> {
    Expansion { macros, steps, depth: 0 }.expand(input)
}

struct Expansion<'a> {
    macros: &'a HashMap<Rc<str>, Rc<Macro>>,
    steps: &'a mut usize,
    depth: usize,
}

impl Expansion<'_> {
    fn count(&mut self, at: &Token, steps: usize) -> Result<()> {
        *self.steps += steps;
        if *self.steps > MAX_STEPS || self.depth > MAX_DEPTH {
            let problem = "the macros here expand to too much; simplify them".to_owned();
            return Err(Unreadable { place: at.place(), problem, depends_on: None });
        }
        Ok(())
    }

    fn expand(&mut self, mut input: Vec<Token>) -> Result<Vec<Token>> {
        input.reverse();
        let mut output = Vec::new();
        while let Some(token) = input.pop() {
            self.count(&token, 1)?;
            if !token.is_word() || token.hides(&token.text) {
                output.push(token);
                continue;
            }
            let Some(definition) = self.macros.get(&token.text).cloned() else {
                output.push(predefined(token));
                continue;
            };
            let arguments = match &definition.parameters {
                None => Vec::new(),
                Some(parameters) => {
                    let count = parameters.len();
                    match self.take_arguments(&mut input, count, definition.is_variadic, &token)? {
                        Some(arguments) => arguments,
                        None => {
                            output.push(token);
                            continue;
                        }
                    }
                }
            };
            let replacement = self.substitute(&token, &definition, &arguments)?;
            input.extend(replacement.into_iter().rev());
        }
        Ok(output)
    }

    /// Takes the arguments of an invocation. Returns `None`, and takes nothing, if there is no list of `count`
    /// arguments.
    fn take_arguments(
        &mut self,
        input: &mut Vec<Token>,
        count: usize,
        is_variadic: bool,
        name: &Token,
    ) -> Result<Option<Vec<Vec<Token>>>> {
        let open = input.iter().rposition(|token| token.kind != Kind::Comment);
        let Some(open) = open.filter(|&open| input[open].is("(")) else { return Ok(None) };
        let mut arguments = vec![Vec::new()];
        let mut depth = 0usize;
        for at in (0..open).rev() {
            let token = &input[at];
            self.count(name, 1)?;
            match &*token.text {
                ")" if depth == 0 => {
                    let counted = counted(arguments, count, is_variadic);
                    if counted.is_some() {
                        input.truncate(at);
                    }
                    return Ok(counted);
                }
                "," if depth == 0 && !(is_variadic && arguments.len() >= count) => {
                    arguments.push(Vec::new());
                    continue;
                }
                "(" => depth += 1,
                ")" => depth -= 1,
                _ => {}
            }
            if token.kind != Kind::Comment
                && let Some(argument) = arguments.last_mut()
            {
                argument.push(token.clone());
            }
        }
        Ok(None)
    }

    /// Returns the body of a macro with the arguments in place of the parameters.
    fn substitute(
        &mut self,
        name: &Token,
        definition: &Macro,
        arguments: &[Vec<Token>],
    ) -> Result<Vec<Token>> {
        let mut expanded = vec![None; arguments.len()];
        let mut output: Vec<Token> = Vec::new();
        let body = &definition.body;
        let mut at = 0;
        while let Some(token) = body.get(at) {
            self.count(name, 1)?;
            let next = body.get(at + 1);
            let argument =
                |token: &Token| definition.parameter(token).and_then(|at| arguments.get(at));
            if token.is("##")
                && let Some(next) = next
                && !output.is_empty()
            {
                let right = argument(next).cloned().unwrap_or_else(|| vec![placed(next, name)]);
                let rest = definition.rest_at(next);
                paste(&mut output, right, rest);
                at += 2;
                continue;
            }
            if token.is("#")
                && let Some(argument) = next.and_then(&argument)
            {
                output.push(Token {
                    kind: Kind::Quoted,
                    text: quoted(argument),
                    ..placed(token, name)
                });
                at += 2;
                continue;
            }
            at += 1;
            match (definition.parameter(token), argument(token)) {
                (Some(_), Some(argument)) if next.is_some_and(|next| next.is("##")) => {
                    // An empty left side leaves nothing to paste to.
                    let left = argument.iter().map(|token| placed(token, name));
                    output.extend(left);
                    if argument.is_empty() {
                        at += 1;
                    }
                }
                (Some(index), Some(argument)) => {
                    if expanded[index].is_none() {
                        self.depth += 1;
                        expanded[index] = Some(self.expand(argument.clone())?);
                        self.depth -= 1;
                    }
                    let tokens = expanded[index].iter().flatten();
                    output.extend(tokens.map(|token| placed(token, name)));
                }
                _ => output.push(placed(token, name)),
            }
        }
        self.count(name, output.len())?;
        hide(name, &mut output);
        Ok(output)
    }
}

/// Returns the arguments if there are as many as a macro takes.
fn counted(
    mut arguments: Vec<Vec<Token>>,
    count: usize,
    is_variadic: bool,
) -> Option<Vec<Vec<Token>>> {
    if count == 0 {
        return arguments.iter().all(Vec::is_empty).then(Vec::new);
    }
    if is_variadic && arguments.len() + 1 == count {
        arguments.push(Vec::new());
    }
    (arguments.len() == count).then_some(arguments)
}

/// Moves a token to the place of an invocation.
fn placed(token: &Token, name: &Token) -> Token {
    let (line, last_line, file) = (name.line, name.last_line, Rc::clone(&name.file));
    Token { line, last_line, file, begins_line: false, ..token.clone() }
}

/// Keeps the names in an expansion of the macro `name` from being expanded by it again.
fn hide(name: &Token, expansion: &mut [Token]) {
    let hidden = Hidden { name: Rc::clone(&name.text), outer: name.hidden.clone() };
    let hidden = Rc::new(hidden);
    for token in expansion {
        token.hidden = Some(match token.hidden.take() {
            None => Rc::clone(&hidden),
            outer => Rc::new(Hidden { name: Rc::clone(&name.text), outer }),
        });
    }
}

/// Joins the last token of `output` and the first of `right`. A comma before the `rest` of the arguments is not
/// joined, and is left out if there are none.
fn paste(output: &mut Vec<Token>, right: Vec<Token>, rest: bool) {
    if rest && output.last().is_some_and(|last| last.is(",")) {
        if right.is_empty() {
            output.pop();
        }
        output.extend(right);
        return;
    }
    let mut right = right.into_iter();
    if let (Some(first), Some(last)) = (right.next(), output.last_mut()) {
        let joined: Rc<str> = format!("{}{}", last.text, first.text).into();
        let kind = match tokens(&joined, &last.file).as_slice() {
            [token] => token.kind,
            _ => Kind::Sign,
        };
        *last = Token { kind, text: joined, ..last.clone() };
    }
    output.extend(right);
}

/// Returns the text of an argument as a string literal.
fn quoted(argument: &[Token]) -> Rc<str> {
    let mut text = String::from("\"");
    for (at, token) in argument.iter().enumerate() {
        if at > 0 && token.spaced {
            text.push(' ');
        }
        match token.kind {
            Kind::Quoted => text.push_str(&token.text.replace('\\', "\\\\").replace('"', "\\\"")),
            _ => text.push_str(&token.text),
        }
    }
    text.push('"');
    text.into()
}

/// Replaces `__LINE__` and `__FILE__`.
fn predefined(token: Token) -> Token {
    match &*token.text {
        "__LINE__" => Token { kind: Kind::Number, text: token.line.to_string().into(), ..token },
        "__FILE__" => {
            Token { kind: Kind::Quoted, text: format!("\"{}\"", token.file).into(), ..token }
        }
        _ => token,
    }
}
