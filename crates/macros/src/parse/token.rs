//! Tokens of OpenCL C.

use std::rc::Rc;

/// Kind of a [`Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Identifier or keyword.
    Word,
    Number,
    /// String or character literal, with its quotes.
    Quoted,
    Comment,
    /// Operator or punctuation.
    Sign,
}

/// Line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) file: Rc<str>,
    pub(crate) line: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) text: Rc<str>,
    /// Line of the first character.
    pub(crate) line: usize,
    /// Line of the last character; for a comment, it can be a later one.
    pub(crate) last_line: usize,
    /// Whether only white space and comments come before the token on its line.
    pub(crate) begins_line: bool,
    /// Whether white space or a comment comes before the token.
    pub(crate) spaced: bool,
    /// File that the line belongs to.
    pub(crate) file: Rc<str>,
    /// Macros whose expansion produced the token, which are not expanded in it again.
    pub(crate) hidden: Option<Rc<Hidden>>,
}

/// List of macro names, the innermost first.
#[derive(Debug)]
pub(crate) struct Hidden {
    pub(crate) name: Rc<str>,
    pub(crate) outer: Option<Rc<Hidden>>,
}

impl Token {
    pub(crate) fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Word | Kind::Sign) && &*self.text == text
    }

    pub(crate) fn is_word(&self) -> bool {
        self.kind == Kind::Word
    }

    pub(crate) fn place(&self) -> Place {
        Place { file: Rc::clone(&self.file), line: self.line }
    }

    /// Whether the token comes from an expansion of the macro `name`.
    pub(crate) fn hides(&self, name: &str) -> bool {
        let mut hidden = self.hidden.as_ref();
        while let Some(entry) = hidden {
            if &*entry.name == name {
                return true;
            }
            hidden = entry.outer.as_ref();
        }
        false
    }
}

/// Operators of several characters, the longest first.
const SIGNS: [&str; 11] = ["...", "##", "&&", "||", "==", "!=", "<=", ">=", "<<", ">>", "->"];

/// Characters of a text without its line continuations, each with its line.
struct Characters {
    all: Vec<(char, usize)>,
    at: usize,
    last_line: usize,
}

impl Characters {
    fn of(text: &str) -> Self {
        let mut all = Vec::with_capacity(text.len());
        let mut line = 1;
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if c == '\\'
                && let Some(after) = after_continuation(&rest[1..])
            {
                rest = after;
                line += 1;
                continue;
            }
            all.push((c, line));
            line += usize::from(c == '\n');
            rest = &rest[c.len_utf8()..];
        }
        Self { all, at: 0, last_line: line }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.all.get(self.at + ahead).map(|&(c, _)| c)
    }

    fn line(&self) -> usize {
        self.all.get(self.at).map_or(self.last_line, |&(_, line)| line)
    }

    /// Moves over characters while `belongs` holds, and returns the text since `start`.
    fn take_while(&mut self, start: usize, mut belongs: impl FnMut(char) -> bool) -> Rc<str> {
        while self.peek(0).is_some_and(&mut belongs) {
            self.at += 1;
        }
        self.since(start)
    }

    fn since(&self, start: usize) -> Rc<str> {
        self.all[start..self.at].iter().map(|&(c, _)| c).collect::<String>().into()
    }
}

/// Returns the text behind the end of the line, if only blanks come before it.
fn after_continuation(text: &str) -> Option<&str> {
    let text = text.trim_start_matches([' ', '\t', '\r']);
    text.strip_prefix('\n')
}

/// Splits a text into tokens, comments among them. Every text has tokens: an open comment ends with the text,
/// and an open literal with its line.
pub(crate) fn tokens(text: &str, file: &Rc<str>) -> Vec<Token> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut characters = Characters::of(text);
    let mut tokens = Vec::new();
    let (mut begins_line, mut spaced) = (true, false);
    while let Some(c) = characters.peek(0) {
        if c.is_whitespace() || c == '\0' {
            begins_line |= c == '\n';
            spaced = true;
            characters.at += 1;
            continue;
        }
        let line = characters.line();
        let (kind, text) = token(&mut characters, c);
        let last_line = characters.all[characters.at - 1].1;
        let file = Rc::clone(file);
        let is_comment = kind == Kind::Comment;
        tokens.push(Token { kind, text, line, last_line, begins_line, spaced, file, hidden: None });
        // A directive may follow a comment on its line.
        begins_line &= is_comment;
        spaced = is_comment;
    }
    tokens
}

/// Reads the token that begins with `first`.
fn token(characters: &mut Characters, first: char) -> (Kind, Rc<str>) {
    let start = characters.at;
    let second = characters.peek(1);
    match first {
        '/' if second == Some('/') => (Kind::Comment, characters.take_while(start, |c| c != '\n')),
        '/' if second == Some('*') => {
            characters.at += 2;
            let mut before = ' ';
            characters.take_while(start, |c| {
                let goes_on = !(before == '*' && c == '/');
                before = c;
                goes_on
            });
            characters.at = (characters.at + 1).min(characters.all.len());
            (Kind::Comment, characters.since(start))
        }
        '"' | '\'' => (Kind::Quoted, quoted(characters, first)),
        c if begins_word(c) => (Kind::Word, characters.take_while(start, continues_word)),
        c if c.is_ascii_digit() || c == '.' && second.is_some_and(|c| c.is_ascii_digit()) => {
            let mut before = ' ';
            let text = characters.take_while(start, |c| {
                let exponent = matches!(before, 'e' | 'E' | 'p' | 'P') && matches!(c, '+' | '-');
                before = c;
                exponent || continues_word(c) || c == '.'
            });
            (Kind::Number, text)
        }
        _ => {
            let matches = |sign: &&&str| {
                sign.chars().enumerate().all(|(ahead, c)| characters.peek(ahead) == Some(c))
            };
            let length = SIGNS.iter().find(matches).map_or(1, |sign| sign.len());
            characters.at += length;
            (Kind::Sign, characters.since(start))
        }
    }
}

fn quoted(characters: &mut Characters, quote: char) -> Rc<str> {
    let start = characters.at;
    characters.at += 1;
    while let Some(c) = characters.peek(0) {
        if c == '\n' {
            break;
        }
        let escapes = c == '\\' && characters.peek(1).is_some_and(|c| c != '\n');
        characters.at += if escapes { 2 } else { 1 };
        if c == quote {
            break;
        }
    }
    characters.since(start)
}

fn begins_word(c: char) -> bool {
    c == '_' || c == '$' || c.is_alphabetic()
}

fn continues_word(c: char) -> bool {
    begins_word(c) || c.is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        tokens(text, &"f.cl".into()).iter().map(|token| token.text.to_string()).collect()
    }

    #[test]
    fn a_text_is_split_into_tokens() {
        assert_eq!(
            texts("a+=b[0x1Fu]*1.5e-3f;"),
            ["a", "+", "=", "b", "[", "0x1Fu", "]", "*", "1.5e-3f", ";"]
        );
        assert_eq!(
            texts("a##b #x ... .5 . -> <<"),
            ["a", "##", "b", "#", "x", "...", ".5", ".", "->", "<<"]
        );
        assert_eq!(texts(r#""a \" // b" 'c' '\''"#), [r#""a \" // b""#, "'c'", r"'\''"]);
        assert_eq!(texts("größe $x"), ["größe", "$x"]);
    }

    #[test]
    fn comments_are_tokens() {
        assert_eq!(
            texts("a/**/b/* c * / */d// e\nf"),
            ["a", "/**/", "b", "/* c * / */", "d", "// e", "f"]
        );
        assert_eq!(texts("/* open"), ["/* open"]);
        assert_eq!(texts("/*/ a */ b"), ["/*/ a */", "b"]);
        assert_eq!(texts("// a \\\n b\nc"), ["// a  b", "c"]);
    }

    #[test]
    fn open_literals_end_with_their_line() {
        assert_eq!(texts("don't\nstop"), ["don", "'t", "stop"]);
        assert_eq!(texts("\"\\"), ["\"\\"]);
    }

    #[test]
    fn continued_lines_are_joined() {
        let tokens = tokens("ker\\\nnel \\  \r\nvoid\nf", &"f.cl".into());
        let lines: Vec<_> = tokens.iter().map(|token| (&*token.text, token.line)).collect();
        assert_eq!(lines, [("kernel", 1), ("void", 3), ("f", 4)]);
        assert_eq!(tokens.iter().filter(|token| token.begins_line).count(), 2);
    }

    #[test]
    fn lines_of_long_comments_are_known() {
        let tokens = tokens("/* a\n b */ c\n\n d", &"f.cl".into());
        let lines: Vec<_> = tokens.iter().map(|token| (token.line, token.last_line)).collect();
        assert_eq!(lines, [(1, 2), (2, 2), (4, 4)]);
        assert!(tokens[1].spaced && tokens[0].begins_line);
    }
}
