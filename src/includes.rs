//! The files that a text of OpenCL C includes: whether there are any, and what they hold.
//!
//! A driver's compiler reads them without a word. So that keys can cover them, they are looked for here,
//! without a preprocessor: whatever a directive names counts, on either side of a condition, and in
//! each place where a compiler may look. A file too many costs a build at most, one too few would give
//! a program of what the file held once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::options::words;

/// The directives that read files, and the operators that look for some.
const WORDS: [&str; 3] = ["include", "import", "embed"];

/// What begins a directive, or ends a comment that may stand within one.
const BEFORE: [&str; 4] = ["#", "%:", "??=", "*/"];

/// What of all files is read. Nobody includes more.
const LIMIT: u64 = 64 << 20;

/// How many of a path's first directories a macro may stand for.
const DEEPEST: usize = 32;

/// Whether a text may include files. Never says no to one that does.
pub(crate) fn includes_files(text: &[u8]) -> bool {
    splice(&String::from_utf8_lossy(text)).lines().any(|line| is_directive(line, &WORDS))
}

/// Whether build options may include a file themselves.
pub(crate) fn options_include_files(options: &str) -> bool {
    options.contains("-include")
}

/// Whether a line may be a directive with one of these words.
fn is_directive(line: &str, words: &[&str]) -> bool {
    // The last place of a word leaves the most before it.
    let last = words.iter().filter_map(|word| line.rfind(word)).max();
    last.is_some_and(|last| BEFORE.iter().any(|before| line[..last].contains(before)))
}

/// A digest over all files that a text may include, built with options in their canonical form, by
/// their names and by what they hold now. That there is no file of a name is part of it.
///
/// Names are those that directives give, and those that macros stand for as literals, in the texts or in
/// the options. Of one that the preprocessor puts together, as from `TEXT_OF(FOLDER/x.h)`, the words in
/// the directive are taken, and their ends. All are looked for beside the file that has them, in the
/// directories of `-I`, in the process's own, and in those below them that macros of the options stand
/// for.
///
/// Blocks.
pub(crate) fn digest_of_files(text: &[u8], options: &str) -> Digest {
    let given = Given::of(options);
    let mut hasher = blake3::Hasher::new();
    let (mut numbers, mut left) = (HashMap::new(), LIMIT);
    let mut texts = VecDeque::from([(None, given.names)]);
    texts.push_back((None, names_in(text)));
    while let Some((folder, names)) = texts.pop_front() {
        for name in &names {
            update(&mut hasher, name.as_bytes());
            for place in folder.iter().chain(&given.directories) {
                let path = path_of(&place.join(name)).unwrap_or_default();
                let number = numbers.len();
                let known = *numbers.entry(path.clone()).or_insert(number);
                update(&mut hasher, &known.to_le_bytes());
                if known < number {
                    continue;
                }
                let contents = read(&path, left);
                update(&mut hasher, &[u8::from(contents.is_some())]);
                let contents = contents.unwrap_or_default();
                left -= contents.len() as u64;
                update(&mut hasher, &contents);
                texts.push_back((path.parent().map(Path::to_owned), names_in(&contents)));
            }
        }
    }
    Digest(hasher.finalize().into())
}

/// The one path of a file, so that one that includes itself is read once. A link's own: compilers look
/// beside the name by which they opened a file, not beside what that leads to. `None` if there is no
/// such file.
fn path_of(named: &Path) -> Option<PathBuf> {
    let Some(name) = named.file_name() else { return named.canonicalize().ok() };
    let folder = named.parent().filter(|folder| !folder.as_os_str().is_empty());
    let path = folder.unwrap_or(Path::new(".")).canonicalize().ok()?.join(name);
    path.exists().then_some(path)
}

fn update(hasher: &mut blake3::Hasher, value: &[u8]) {
    hasher.update(&(value.len() as u64).to_le_bytes());
    hasher.update(value);
}

/// What a file holds, if there is one. Only what says that it holds something is read: pipes, devices
/// and the files of `/proc` may never end.
fn read(path: &Path, most: u64) -> Option<Vec<u8>> {
    let metadata = fs::metadata(path).ok()?;
    if !metadata.is_file() {
        return None;
    }
    let mut contents = Vec::new();
    if metadata.len() > 0 {
        File::open(path).ok()?.take(most).read_to_end(&mut contents).ok()?;
    }
    Some(contents)
}

/// What options say of included files.
struct Given {
    /// Where to look, the process's own directory with them.
    directories: Vec<PathBuf>,
    names: Vec<String>,
}

impl Given {
    fn of(options: &str) -> Self {
        let mut given = Self { directories: Vec::new(), names: quoted_in(&plain(options)) };
        let unquoted = |word: &str| word.replace(['"', '\''], "");
        let (mut words, mut values) = (words(options).into_iter().map(unquoted), Vec::new());
        while let Some(word) = words.next() {
            let mut value = |flag: &str| match word.strip_prefix(flag)? {
                "" => words.next(),
                value => Some(value.to_owned()),
            };
            if let Some(name) = value("-include") {
                given.names.extend(readings(name));
            } else if let Some(directory) = value("-I") {
                given.directories.extend(readings(directory).map(PathBuf::from));
            } else if let Some((_, text)) = value("-D").as_deref().and_then(|d| d.split_once('=')) {
                values.extend(readings(text.to_owned()));
            }
        }
        given.directories.push(PathBuf::new());
        for at in 0..given.directories.len() {
            let below = values.iter().map(|value| given.directories[at].join(value));
            let below: Vec<_> = below.filter(|path| path.is_dir()).collect();
            given.directories.extend(below);
        }
        given
    }
}

/// What a word of options may mean to a driver: as it is, or without backslashes.
fn readings(word: String) -> impl Iterator<Item = String> {
    let plain = plain(&word);
    let differs = word != plain;
    [word].into_iter().chain(differs.then_some(plain))
}

fn plain(text: &str) -> String {
    text.replace('\\', "")
}

/// The names of files in a text: in directives that include, and in definitions of macros.
fn names_in(text: &[u8]) -> Vec<String> {
    let text = splice(&String::from_utf8_lossy(text));
    let (mut names, mut known) = (Vec::new(), HashSet::new());
    // Whether the line may go on a directive that a comment begun on another line is part of, and
    // whether that one includes.
    let mut goes_on = None;
    for line in text.lines() {
        let includes = is_directive(line, &WORDS);
        let is_own = includes || is_directive(line, &["define"]);
        let includes = includes || goes_on == Some(true);
        if !is_own && goes_on.is_none() {
            continue;
        }
        let mut found = quoted_in(line);
        if includes && found.is_empty() {
            found = paths_in(line);
        }
        names.extend(found.into_iter().filter(|name| known.insert(name.clone())));
        let is_open = leaves_comment_open(line, false)
            || goes_on.is_some() && leaves_comment_open(line, true);
        goes_on = is_open.then_some(includes);
    }
    names
}

/// Whether a comment may be open behind a line, in which one was or was not before. What looks like one
/// in a text between quotes counts, too.
fn leaves_comment_open(line: &str, mut is_open: bool) -> bool {
    let mut rest = line;
    while let Some((_, after)) = rest.split_once(if is_open { "*/" } else { "/*" }) {
        rest = after;
        is_open = !is_open;
    }
    is_open
}

/// The words that may be paths to files, and what is left of them without their first directories.
fn paths_in(line: &str) -> Vec<String> {
    let is_apart = |c: char| !(c.is_alphanumeric() || "_-+./\\".contains(c));
    let words = line.split(is_apart).filter(|word| word.contains(['.', '/', '\\']));
    let ends = |word: &str| {
        let starts = word.match_indices(['/', '\\']).map(|(at, _)| at + 1).take(DEEPEST);
        let ends = [0].into_iter().chain(starts).map(|start| word[start..].to_owned());
        ends.collect::<Vec<_>>()
    };
    words.flat_map(ends).filter(|name| name.contains(char::is_alphanumeric)).collect()
}

/// What stands between quotes, or between angle brackets. Of several brackets that open before one closes,
/// the first counts, and the last: those before it may stand in a comment. So names take at most twice
/// the room of the line.
fn quoted_in(line: &str) -> Vec<String> {
    let closed = |by: char| {
        let closed = line.rsplit_once(by).map(|(closed, _)| closed.split(by));
        closed.into_iter().flatten()
    };
    let bracketed = closed('>').flat_map(|text| {
        let first = text.split_once('<').map(|(_, name)| name);
        let last = first.and_then(|name| name.rsplit_once('<')).map(|(_, name)| name);
        first.into_iter().chain(last)
    });
    let names = closed('"').skip(1).chain(bracketed);
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The text with continued lines joined, as the preprocessor joins them: also where blanks stand
/// between the backslash and the end of the line.
fn splice(text: &str) -> String {
    let text = text.replace("??/", "\\").replace("\r\n", "\n").replace('\r', "\n");
    let mut spliced = String::with_capacity(text.len());
    for line in text.split('\n') {
        let end = line.trim_end_matches([' ', '\t', '\x0b', '\x0c']);
        match end.strip_suffix('\\') {
            Some(continued) => spliced.push_str(continued),
            None => {
                spliced.push_str(line);
                spliced.push('\n');
            }
        }
    }
    spliced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_include_is_seen() {
        for text in [
            "#include \"x.h\"",
            "  #  include <x.h>\nkernel void k() {}",
            "/* a */ # /* b */ include NAME",
            "/* a\n*/ #include_next <x.h>",
            "# /* a\n b */ include <x.h>",
            "#inc\\\nlude \"x.h\"",
            "#inc\\ \nlude \"x.h\"",
            "#inc??/\r\nlude \"x.h\"",
            "%:include \"x.h\"",
            "??=include \"x.h\"",
            "#import \"x.h\"",
            "#embed \"x.h\"",
            "#if __has_include(\"x.h\")\n#endif",
            "kernel void k() {}\r\n#include \"x.h\"\r\n",
            "// include what \\\n#include \"x.h\"",
        ] {
            assert!(includes_files(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn the_word_alone_includes_nothing() {
        for text in [
            "kernel void k(global float *included) { included[0] = 1; }",
            "// This is important: nothing is included.\nkernel void k() {}",
            "#define A 1 \\\n + 2\nkernel void k() {}",
        ] {
            assert!(!includes_files(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn every_way_to_name_a_file_is_seen() {
        let names = |text: &str| names_in(text.as_bytes());
        assert_eq!(names("#include \"a b.h\"\n  # include <x/y.h> // z"), ["a b.h", "x/y.h"]);
        assert_eq!(names("#include \\\n\"x.h\"\n/* \n */ #import <y.h>"), ["x.h", "y.h"]);
        assert_eq!(names("#define NAME \"x.h\"\n#include NAME"), ["x.h"]);
        assert_eq!(names("#include /* a\n b\n*/ \"x.h\"\n#include <y.h>"), ["x.h", "y.h"]);
        assert_eq!(names("#define NAME /* a\n*/ <x.h>\n\"y.h\"\n#include NAME"), ["x.h"]);
        assert_eq!(names("#include /*/\n*/ \"x.h\""), ["x.h"]);
        let globs = "#include \"a.h\" // src/*.h\n#include TEXT(DIR/b.h)\n#define A \"/*\"";
        let found = names(&format!("{globs}\n#include /* c\n*/ \"d.h\""));
        for name in ["a.h", "DIR/b.h", "d.h"] {
            assert!(found.iter().any(|known| known == name), "{name}: {found:?}");
        }
        assert_eq!(names("#include TEXT(DIR/sub/x.h)"), ["DIR/sub/x.h", "sub/x.h", "x.h"]);
        assert!(names("kernel void k() { printf(\"x.h\"); }\n#pragma a \"b\"").is_empty());
        assert_eq!(names("#include /* 1 < 2 < 3 */ <x.h>"), [" 2 < 3 */ <x.h", "x.h"]);
        let given = Given::of(r#"-I a -Ib "-I" "c d" -I e\ f -include x.h -DN=\"y.h\" -DM=<z.h>"#);
        let directories: Vec<_> =
            given.directories.iter().filter_map(|path| path.to_str()).collect();
        assert_eq!(directories, ["a", "b", "c d", "e\\ f", "e f", ""]);
        for name in ["x.h", "y.h", "z.h"] {
            assert!(given.names.iter().any(|known| known == name), "{name}");
        }
    }

    #[test]
    fn the_digest_is_that_of_all_files_and_only_of_those() {
        let folder = tempfile::tempdir().expect("there is room");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("there is room");
            fs::write(path, text).expect("there is room");
        };
        let text = b"#ifdef A\n#include \"a.h\"\n#endif\n#include <later.h>\n#include NAME\n\
            #include TEXT(FOLDER/made.h)\n";
        write("sub/deep/empty.h", "");
        let given = "-DNAME=<n.h> -D FOLDER=sub/deep";
        let options = format!("-I {} {given}", folder.path().display());
        let digest = || digest_of_files(text, &options);
        let mut seen = vec![digest()];
        for (name, text) in [
            ("a.h", "int a;"),
            ("a.h", "int b;"),
            ("a.h", "#include \"sub/inner.h\"\n#include \"a.h\"\n"),
            ("sub/inner.h", "#include \"beside.h\"\n#include \"../a.h\""),
            ("sub/beside.h", "float x;"),
            ("sub/beside.h", "float y;"),
            ("later.h", ""),
            ("sub/deep/made.h", "int m;"),
            ("n.h", "int n;"),
        ] {
            write(name, text);
            let now = digest();
            assert_eq!(now, digest());
            assert!(!seen.contains(&now), "{name}: {text}");
            seen.push(now);
        }
        write("other.h", "int unnamed;");
        assert_eq!(digest(), seen[seen.len() - 1]);
        write("n.h", "");
        fs::remove_file(folder.path().join("n.h")).expect("it was there");
        assert_eq!(digest(), seen[seen.len() - 2]);
    }

    /// Compilers do so: such trees of links are what build systems make.
    #[test]
    #[cfg(unix)]
    fn a_link_s_own_folder_is_the_one_beside_it() {
        let folder = tempfile::tempdir().expect("there is room");
        let at = |name: &str| folder.path().join(name);
        for made in ["include/sub", "src"] {
            fs::create_dir_all(at(made)).expect("there is room");
        }
        fs::write(at("src/a.h"), "#include \"made.h\"\n#include \"sub/a.h\"\n")
            .expect("there is room");
        std::os::unix::fs::symlink("../../src/a.h", at("include/sub/a.h")).expect("there is room");
        let options = format!("-I {}", at("include").display());
        let digest = || digest_of_files(b"#include \"sub/a.h\"\n", &options);
        let mut seen = vec![digest()];
        for (name, text) in
            [("include/sub/made.h", "1"), ("include/sub/made.h", "2"), ("src/a.h", "3")]
        {
            fs::write(at(name), text).expect("there is room");
            assert!(!seen.contains(&digest()), "{name}: {text}");
            seen.push(digest());
        }
    }

    #[test]
    fn names_take_little_more_room_than_the_text() {
        const LENGTH: usize = 1 << 16;
        for line in [
            format!("#define A {}>", "<".repeat(LENGTH)),
            format!("#define A {}>", "<a ".repeat(LENGTH)),
            format!("#define A {}", "<a ".repeat(LENGTH)),
            format!("#define A {}", "\"a".repeat(LENGTH)),
            format!("#include A({})", "a/".repeat(LENGTH)),
        ] {
            let bytes: usize = names_in(line.as_bytes()).iter().map(String::len).sum();
            assert!(bytes <= (DEEPEST + 1) * line.len(), "{}: {bytes} bytes", &line[..16]);
        }
    }

    #[test]
    #[cfg(unix)]
    fn what_never_ends_is_not_read() {
        digest_of_files(b"#include \"/dev/zero\"\n#embed </proc/kmsg>\n#include \"/\"", "");
    }
}
