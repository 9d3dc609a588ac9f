//! Files that OpenCL C includes: their contents take the place of the directives, so that the code that a crate
//! embeds needs no files at run time.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::parse::token::{Kind, Token, tokens};

/// Maximum size of a text with its included files, in bytes.
const MAX_BYTES: usize = 16 << 20;

/// Maximum number of files that are open at the same time.
const MAX_DEPTH: usize = 200;

/// Text with the contents of its included files.
#[derive(Debug)]
pub(crate) struct Spliced {
    pub(crate) text: String,
    /// Included files, each once.
    pub(crate) files: Vec<PathBuf>,
}

/// Replaces the `#include` directives of a text by the files that they name. A file in quotes is searched for
/// in `folder` first; all files are in `folders`. Directives whose file is not found stay: they may be in a
/// branch that is not compiled. A file that includes itself finds itself empty, as its guard makes it.
///
/// # Errors
///
/// With the reason, if a file cannot be read, or if there are too many.
pub(crate) fn splice(
    text: &str,
    name: &str,
    folder: &Path,
    folders: &[PathBuf],
) -> Result<Spliced, String> {
    let mut splicer = Splicer { folders, ..Splicer::default() };
    splicer.add(text, name, folder)?;
    let files = splicer.read.into_iter().map(|(path, _)| path).collect();
    Ok(Spliced { text: splicer.text, files })
}

#[derive(Default)]
struct Splicer<'a> {
    folders: &'a [PathBuf],
    text: String,
    /// Contents of the files read so far.
    read: Vec<(PathBuf, Rc<str>)>,
    /// Files whose contents are being added.
    open: Vec<PathBuf>,
}

impl Splicer<'_> {
    /// Adds a text, with its includes replaced.
    fn add(&mut self, text: &str, name: &str, folder: &Path) -> Result<(), String> {
        if self.open.len() > MAX_DEPTH || self.text.len() + text.len() > MAX_BYTES {
            return Err(format!("{name}: includes too many files"));
        }
        let lines: Vec<_> = text.split_inclusive('\n').collect();
        let mut done = 0;
        for directive in directives(text, name) {
            let Some(path) = self.find(&directive, folder) else { continue };
            self.extend(&lines[done..directive.first_line - 1]);
            done = directive.last_line.min(lines.len());
            self.add_file(&path, &directive.name, name)?;
            self.mark(done + 1, name);
        }
        self.extend(&lines[done..]);
        Ok(())
    }

    fn extend(&mut self, lines: &[&str]) {
        self.text.extend(lines.iter().copied());
    }

    /// Adds the contents of an included file.
    fn add_file(&mut self, path: &Path, name: &str, includer: &str) -> Result<(), String> {
        if self.open.iter().any(|open| open == path) {
            return Ok(());
        }
        let known = self.read.iter().position(|(read, _)| read == path);
        if known.is_none() {
            let content =
                read(path).map_err(|why| format!("{includer}: includes `{name}`, which {why}"))?;
            self.read.push((path.to_owned(), content.into()));
        }
        let number = known.unwrap_or(self.read.len() - 1);
        let content = Rc::clone(&self.read[number].1);
        let is_once = is_included_once(&content, name);
        if is_once {
            let guard = format!("KILN_INCLUDED_{number}");
            self.line(&format!("#ifndef {guard}\n#define {guard}"));
        }
        self.mark(1, name);
        self.open.push(path.to_owned());
        self.add(&content, name, path.parent().unwrap_or(Path::new("")))?;
        self.open.pop();
        if is_once {
            self.line("#endif");
        }
        Ok(())
    }

    fn mark(&mut self, line: usize, name: &str) {
        let name = name.replace('\\', "\\\\").replace('"', "\\\"");
        self.line(&format!("#line {line} \"{name}\""));
    }

    fn line(&mut self, line: &str) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Returns the first file that a directive can name.
    fn find(&self, directive: &Directive, folder: &Path) -> Option<PathBuf> {
        let own = directive.is_quoted.then_some(folder);
        let folders = own.into_iter().chain(self.folders.iter().map(PathBuf::as_path));
        let mut paths = folders.map(|folder| folder.join(&directive.name));
        paths.find(|path| path.is_file())
    }
}

/// Reads a file of text.
///
/// # Errors
///
/// With the reason, as the rest of a sentence about the file.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|error| format!("cannot be read: {error}"))?;
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + valid.iter().filter(|byte| **byte == b'\n').count();
        format!("is not UTF-8 in line {line}; save it as UTF-8")
    })
}

/// An `#include` of a text.
struct Directive {
    name: String,
    is_quoted: bool,
    first_line: usize,
    last_line: usize,
}

fn directives(text: &str, name: &str) -> Vec<Directive> {
    let tokens = without_comments(text, name);
    let begins = (0..tokens.len()).filter(|&at| tokens[at].begins_line && tokens[at].is("#"));
    begins.filter_map(|at| directive(&tokens[at..])).collect()
}

fn without_comments(text: &str, name: &str) -> Vec<Token> {
    let mut tokens = tokens(text, &name.into());
    tokens.retain(|token| token.kind != Kind::Comment);
    tokens
}

/// Returns the `#include` that the tokens begin with.
fn directive(tokens: &[Token]) -> Option<Directive> {
    let [sign, include, named @ ..] = tokens else { return None };
    if !include.is("include") || include.begins_line {
        return None;
    }
    let length = named.iter().position(|token| token.begins_line).unwrap_or(named.len());
    let named = &named[..length];
    let last_line = named.last()?.last_line;
    let (name, is_quoted) = match named {
        [name] if name.kind == Kind::Quoted => (name.text.trim_matches('"').to_owned(), true),
        [open, inner @ .., close] if open.is("<") && close.is(">") => {
            (inner.iter().map(|token| &*token.text).collect(), false)
        }
        _ => return None,
    };
    Some(Directive { name, is_quoted, first_line: sign.line, last_line })
}

fn is_included_once(text: &str, name: &str) -> bool {
    let tokens = without_comments(text, name);
    tokens.windows(3).any(|window| match window {
        [sign, pragma, once] => {
            sign.begins_line && sign.is("#") && pragma.is("pragma") && once.is("once")
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::preprocess::preprocess;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("there is room");
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("it is created");
            fs::write(path, text).expect("it is written");
        }
        folder
    }

    /// Returns the text of a file in a folder, preprocessed, and the places of its words.
    fn preprocessed(folder: &tempfile::TempDir, text: &str) -> (String, Vec<String>) {
        let folders = [folder.path().join("include")];
        let spliced = splice(text, "f.cl", folder.path(), &folders).expect("it can be read");
        let tokens = preprocess(&spliced.text, &"f.cl".into(), 120, &[]);
        let tokens = tokens.unwrap_or_else(|error| panic!("{error}: {}", spliced.text));
        let texts: Vec<_> = tokens.iter().map(|token| token.text.to_string()).collect();
        (texts.join(" "), tokens.iter().map(|token| token.place().to_string()).collect())
    }

    #[test]
    fn included_files_take_the_place_of_their_directives() {
        let folder = folder(&[
            ("a.h", "a\n#include \"sub/b.h\"\nc"),
            ("sub/b.h", "b\n#include \"d.h\""),
            ("sub/d.h", "d"),
            ("include/e.h", "e"),
        ]);
        let text = "1\n  # include \"a.h\" // the file\n2\n#include <e.h>\n3\n#include <missing.h";
        let (texts, places) = preprocessed(&folder, &text.replace("#include <missing.h", ""));
        assert_eq!(texts, "1 a b d c 2 e 3");
        assert_eq!(
            places,
            ["f.cl:1", "a.h:1", "sub/b.h:1", "d.h:1", "a.h:3", "f.cl:3", "e.h:1", "f.cl:5"]
        );
        let spliced = splice(text, "f.cl", folder.path(), &[]).expect("it can be read");
        assert_eq!(spliced.files.len(), 3);
        assert!(spliced.text.ends_with("#include <e.h>\n3\n#include <missing.h"));
    }

    #[test]
    fn files_are_included_as_often_as_their_guards_say() {
        let folder = folder(&[
            ("once.h", "#pragma once\no"),
            ("guarded.h", "#ifndef G\n#define G\n#include \"guarded.h\"\ng\n#endif"),
            ("often.h", "x"),
        ]);
        let twice = |name: &str| format!("#include \"{name}\"\n#include \"{name}\"\n");
        let text = ["once.h", "guarded.h", "often.h"].map(twice).concat();
        assert_eq!(preprocessed(&folder, &text).0, "o g x x");
        let text = "#if 0\n#include \"once.h\"\n#endif\n#include \"once.h\"";
        assert_eq!(preprocessed(&folder, text).0, "o");
    }

    #[test]
    fn directives_in_comments_and_strings_include_nothing() {
        let folder = folder(&[("a.h", "a")]);
        let text = "// #include \"a.h\"\n/*\n#include \"a.h\"\n*/ \"\\\n#include\"";
        let spliced = splice(text, "f.cl", folder.path(), &[]).expect("it can be read");
        assert_eq!((spliced.text.as_str(), spliced.files.len()), (text, 0));
    }

    #[test]
    fn files_that_cannot_be_used_are_errors() {
        let folder = folder(&[("x.h", "")]);
        fs::write(folder.path().join("x.h"), b"a\n\xff").expect("it is written");
        let error = splice("#include \"x.h\"", "f.cl", folder.path(), &[]).expect_err("not text");
        assert!(
            error == "f.cl: includes `x.h`, which is not UTF-8 in line 2; save it as UTF-8",
            "{error}"
        );
        for level in 0..30 {
            let inner = format!("#include \"{}.h\"\n", level + 1).repeat(3);
            fs::write(folder.path().join(format!("{level}.h")), inner).expect("it is written");
        }
        fs::write(folder.path().join("30.h"), "x".repeat(1 << 16)).expect("it is written");
        let error = splice("#include \"0.h\"", "f.cl", folder.path(), &[]).expect_err("too many");
        assert!(error.contains("too many files"), "{error}");
    }
}
