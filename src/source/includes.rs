//! Files that an OpenCL C text includes: whether there are any, and their contents.
//!
//! A driver's compiler reads these files without reporting them. So that keys can cover them, this module
//! searches for them without a preprocessor: for every name in a directive, in both branches of a condition,
//! and in each location where a compiler may look. A superfluous file costs at most one rebuild. If a file were
//! missed, a request would return a program of the file's former content.
//!
//! Time and memory are linear in the size of the texts. The number of searched locations and the number of
//! bytes read are limited.

mod directives;
mod time;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_compiler::options::words;

use crate::digest::Digest;
use crate::error::{Error, ErrorKind, Result};
use crate::process::file;
use directives::each_directive;

pub(crate) use time::{options_use_time, uses_time};

/// Words in the directives that read files, and in the operators that check for files.
const FILE_WORDS: [&str; 3] = ["include", "import", "embed"];

/// Maximum number of bytes read from the files of one text.
const MAX_BYTES: u64 = 64 << 20;

/// Maximum number of locations searched for the files of one text.
const MAX_LOCATIONS: usize = 1 << 17;

/// Maximum length of a file name in bytes. Linux does not open longer paths.
const MAX_NAME_BYTES: usize = 4 << 10;

/// Maximum number of leading directories of a path that are tried as the part that a macro stands for.
const MAX_MACRO_DIRECTORIES: usize = 32;

/// Whether a text may include files. Never returns `false` for a text that does.
pub(crate) fn includes_files(text: &[u8]) -> bool {
    let mut includes = false;
    each_directive(text, |directive| {
        includes |= has_word(directive, &FILE_WORDS) && !is_line_marker(directive);
    });
    includes
}

/// Whether build options may include a file by an option.
pub(crate) fn options_include_files(options: &str) -> bool {
    options.contains("-include")
}

/// Whether a directive only states where the next line is from, as in `# 1 "include/x.h"`.
fn is_line_marker(directive: &[u8]) -> bool {
    let rest = directive.strip_prefix(b"#").or_else(|| directive.strip_prefix(b"%:"));
    let rest = rest.unwrap_or_default().trim_ascii_start();
    rest.first().is_some_and(u8::is_ascii_digit)
        || rest.strip_prefix(b"line").is_some_and(|rest| rest.starts_with(b" "))
}

/// Whether a directive contains one of the words.
fn has_word(directive: &[u8], words: &[&str]) -> bool {
    let contains = |word: &&str| directive.windows(word.len()).any(|part| part == word.as_bytes());
    words.iter().any(contains)
}

/// Files that a text may include.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Included {
    /// Digest of their names and contents.
    pub(crate) digest: Digest,
    /// Whether one of the files [uses the time](uses_time) of the build.
    pub(crate) uses_time: bool,
    /// The files that exist, in the order of the search.
    pub(crate) files: Arc<[IncludedFile]>,
}

/// A file that a text may include.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IncludedFile {
    /// Name in the directive that includes it. If several files have the name, the later ones have their path.
    pub(crate) name: String,
    /// Digest of the contents.
    pub(crate) digest: Digest,
}

/// Reads all files that a text may include when it is built with options in their canonical form, and digests
/// their names and their current contents. The absence of a file with a name is part of the digest.
///
/// The names are those in directives. If a directive names a file through a macro, the names also include the
/// literals that macros stand for, in the texts or in the options. For a name that the preprocessor assembles,
/// such as `TEXT_OF(FOLDER/x.h)`, the words in the directive and their ends are taken. All names are searched
/// beside the file that contains them, in the directories of `-I`, in the working directory of the process, and
/// in the directories below these that macros of the options stand for.
///
/// Blocks, for at most about `limit` if there is one.
///
/// # Errors
///
/// * [`Unsupported`](ErrorKind::Unsupported) if there are more than [`MAX_LOCATIONS`] locations to search, if
///   the files hold more than [`MAX_BYTES`], or if one is a pipe or a device, on which a compiler would block
///   or which it would read without end.
/// * [`Driver`](ErrorKind::Driver) if the limit passes.
pub(crate) fn included_files(
    text: &[u8],
    options: &str,
    limit: Option<Duration>,
) -> Result<Included> {
    let mut search = Search::new(limit);
    let in_options = OptionPaths::of(options, &mut search)?;
    search.names.push_back((None, in_options.names));
    search.add_names(None, text);
    while let Some((folder, names)) = search.names.pop_front() {
        for name in &names {
            search.hash(name.as_bytes());
            for location in folder.iter().chain(&in_options.directories) {
                search.digest_location(name, &location.join(name))?;
            }
        }
    }
    let digest = Digest(search.hasher.finalize().into());
    Ok(Included { digest, uses_time: search.uses_time, files: search.files.into() })
}

/// Search for files, with the remaining limits.
struct Search {
    hasher: blake3::Hasher,
    /// Number of each searched path, in the order of the search. All paths without a file share one number.
    numbers: HashMap<PathBuf, usize>,
    /// Names to search, each list with the directory of the file that contains it.
    names: VecDeque<(Option<PathBuf>, Vec<String>)>,
    /// Names in definitions of macros. They are held back until a directive names a file through a macro; from
    /// then on, this is `None`.
    defined: Option<Vec<(Option<PathBuf>, Vec<String>)>>,
    locations_left: usize,
    bytes_left: u64,
    limit: Option<Duration>,
    start: Instant,
    uses_time: bool,
    /// Files that were found, and the names that directives have for them.
    files: Vec<IncludedFile>,
    file_names: HashSet<String>,
}

impl Search {
    fn new(limit: Option<Duration>) -> Self {
        Self {
            hasher: blake3::Hasher::new(),
            numbers: HashMap::new(),
            names: VecDeque::new(),
            defined: Some(Vec::new()),
            locations_left: MAX_LOCATIONS,
            bytes_left: MAX_BYTES,
            limit,
            start: Instant::now(),
            uses_time: false,
            files: Vec::new(),
            file_names: HashSet::new(),
        }
    }

    fn hash(&mut self, value: &[u8]) {
        self.hasher.update(&(value.len() as u64).to_le_bytes());
        self.hasher.update(value);
    }

    /// Adds the names in a text. `folder` is the directory of the file that contains the text.
    fn add_names(&mut self, folder: Option<PathBuf>, text: &[u8]) {
        let names = Names::of(text);
        if names.uses_macro {
            self.names.extend(self.defined.take().into_iter().flatten());
        }
        match &mut self.defined {
            Some(defined) if !names.defined.is_empty() => {
                defined.push((folder.clone(), names.defined));
            }
            Some(_) => {}
            None => self.names.push_back((folder.clone(), names.defined)),
        }
        self.names.push_back((folder, names.included));
    }

    /// Counts a searched location. Fails if there are too many, or if the time limit has passed.
    fn count_location(&mut self) -> Result<()> {
        if let Some(limit) = self.limit.filter(|limit| self.start.elapsed() > *limit) {
            return Err(Error::new(
                ErrorKind::Driver,
                format!(
                    "the files that the OpenCL C text includes could not be read within {limit:?}, \
                     the limit for untrusted modules"
                ),
            ));
        }
        self.locations_left = self.locations_left.checked_sub(1).ok_or_else(|| {
            Error::unsupported(format!(
                "the files that the OpenCL C text includes have more than {MAX_LOCATIONS} possible \
                 locations, which is the maximum; include fewer files, or give fewer directories \
                 with `-I`"
            ))
        })?;
        Ok(())
    }

    /// Digests the content of the file at a location, or its absence. Each file is read once.
    fn digest_location(&mut self, name: &str, location: &Path) -> Result<()> {
        self.count_location()?;
        let path = existing_path(location).unwrap_or_default();
        let next_number = self.numbers.len();
        let number = *self.numbers.entry(path.clone()).or_insert(next_number);
        self.hash(&number.to_le_bytes());
        if number < next_number {
            return Ok(());
        }
        let contents = read(&path, self.bytes_left + 1)?;
        let is_file = contents.is_some();
        self.hash(&[u8::from(is_file)]);
        let contents = contents.unwrap_or_default();
        self.bytes_left = self.bytes_left.checked_sub(contents.len() as u64).ok_or_else(|| {
            Error::unsupported(format!(
                "the files that the OpenCL C text includes contain more than {} MiB, which is the \
                 maximum; the last file read is {}",
                MAX_BYTES >> 20,
                path.display()
            ))
        })?;
        let digest = Digest(blake3::hash(&contents).into());
        self.hash(&digest.0);
        self.uses_time |= uses_time(&contents);
        self.add_names(path.parent().map(Path::to_owned), &contents);
        if is_file {
            let is_new = self.file_names.insert(name.to_owned());
            let name = if is_new { name.to_owned() } else { path.display().to_string() };
            self.files.push(IncludedFile { name, digest });
        }
        Ok(())
    }
}

/// Returns the path of a file in a canonical directory, so that a file that includes itself is read once. If
/// the file is a symbolic link, the link is not resolved: compilers search beside the name by which they opened
/// a file, not beside the link's target. Returns `None` if there is no such file.
fn existing_path(named: &Path) -> Option<PathBuf> {
    let Some(name) = named.file_name() else { return named.canonicalize().ok() };
    let folder = named.parent().filter(|folder| !folder.as_os_str().is_empty());
    let path = folder.unwrap_or(Path::new(".")).canonicalize().ok()?.join(name);
    path.exists().then_some(path)
}

/// Returns at most `max_bytes` of a file, if there is one. Files that report a size of zero are not read,
/// because such files in `/proc` may never end.
///
/// # Errors
///
/// [`Unsupported`](ErrorKind::Unsupported) for a pipe or a device other than the null device.
fn read(path: &Path, max_bytes: u64) -> Result<Option<Vec<u8>>> {
    let (file, metadata) = match file::open(path, file::reading()) {
        Ok(opened) => opened,
        Err(error) if file::is_endless(&error) && !is_null_device(path) => {
            return Err(Error::unsupported(format!(
                "the OpenCL C text includes `{}`: {error}; include only regular files",
                path.display()
            )));
        }
        Err(_) => return Ok(None),
    };
    let mut contents = Vec::new();
    if metadata.len() > 0 && file.take(max_bytes).read_to_end(&mut contents).is_err() {
        return Ok(None);
    }
    Ok(Some(contents))
}

/// Whether a path leads to the null device, which is empty. Some builds use `-include /dev/null`.
fn is_null_device(path: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| path == Path::new("/dev/null"))
}

/// Included files and directories in options.
struct OptionPaths {
    /// Directories to search, including the working directory of the process.
    directories: Vec<PathBuf>,
    names: Vec<String>,
}

impl OptionPaths {
    /// Parses options. Counts the locations that it checks.
    fn of(options: &str, search: &mut Search) -> Result<Self> {
        let mut paths = Self { directories: Vec::new(), names: quoted_in(&unescaped(options)) };
        let unquoted = |word: &str| word.replace(['"', '\''], "");
        let (mut words, mut values) = (words(options).into_iter().map(unquoted), Vec::new());
        while let Some(word) = words.next() {
            let mut value = |flag: &str| match word.strip_prefix(flag)? {
                "" => words.next(),
                value => Some(value.to_owned()),
            };
            if let Some(name) = value("-include") {
                paths.names.extend(readings(name));
            } else if let Some(directory) = value("-I") {
                paths.directories.extend(readings(directory).map(PathBuf::from));
            } else if let Some((_, text)) = value("-D").as_deref().and_then(|d| d.split_once('=')) {
                values.extend(readings(text.to_owned()));
            }
        }
        paths.directories.push(PathBuf::new());
        for at in 0..paths.directories.len() {
            for value in &values {
                search.count_location()?;
                let below = paths.directories[at].join(value);
                if below.is_dir() {
                    paths.directories.push(below);
                }
            }
        }
        Ok(paths)
    }
}

/// Returns the possible readings of a word of options: as it is, and without backslashes.
fn readings(word: String) -> impl Iterator<Item = String> {
    let unescaped = unescaped(&word);
    let differs = word != unescaped;
    [word].into_iter().chain(differs.then_some(unescaped))
}

/// Removes the backslashes.
fn unescaped(text: &str) -> String {
    text.replace('\\', "")
}

/// Names of files in a text, each once.
#[derive(Default)]
struct Names {
    /// Names in directives that include files.
    included: Vec<String>,
    /// Names in definitions of macros.
    defined: Vec<String>,
    /// Whether a directive includes a file through a macro.
    uses_macro: bool,
}

impl Names {
    fn of(text: &[u8]) -> Self {
        let (mut names, mut known) = (Self::default(), [HashSet::new(), HashSet::new()]);
        each_directive(text, |directive| {
            let includes = has_word(directive, &FILE_WORDS);
            if !includes && !has_word(directive, &["define"]) {
                return;
            }
            let directive = String::from_utf8_lossy(directive);
            let mut found = quoted_in(&directive);
            if includes && found.is_empty() {
                found = paths_in(&directive);
            }
            let [included, defined] = &mut known;
            let (list, known) = match includes {
                true => (&mut names.included, included),
                false => (&mut names.defined, defined),
            };
            let is_new = |name: &String| {
                name.len() <= MAX_NAME_BYTES && !known.contains(name) && known.insert(name.clone())
            };
            list.extend(found.into_iter().filter(is_new));
            names.uses_macro |= includes && !names_file_itself(&directive);
        });
        names
    }
}

/// Whether a directive that includes a file contains the file's name, not a macro.
fn names_file_itself(directive: &str) -> bool {
    let word_and_name = directive.trim_start_matches(['#', '%', ':', '?', '=', ' ']);
    let name = word_and_name.trim_start_matches(|c: char| c.is_ascii_alphabetic() || c == '_');
    name.trim_start().starts_with(['"', '<'])
}

/// Returns the words that may be paths of files, and the same paths without their leading directories.
fn paths_in(line: &str) -> Vec<String> {
    let is_separator = |c: char| !(c.is_alphanumeric() || "_-+./\\".contains(c));
    let words = line.split(is_separator).filter(|word| word.contains(['.', '/', '\\']));
    let ends = |word: &str| {
        let starts =
            word.match_indices(['/', '\\']).map(|(at, _)| at + 1).take(MAX_MACRO_DIRECTORIES);
        let ends = [0].into_iter().chain(starts).map(|start| word[start..].to_owned());
        ends.collect::<Vec<_>>()
    };
    words.flat_map(ends).filter(|name| name.contains(char::is_alphanumeric)).collect()
}

/// Returns the texts between quotes, or between angle brackets. If several brackets open before one closes,
/// only the first and the last are considered, because the others may be in a comment. This limits the size of
/// the names to twice the size of the line.
fn quoted_in(line: &str) -> Vec<String> {
    let closed = |quote: char| {
        let closed = line.rsplit_once(quote).map(|(closed, _)| closed.split(quote));
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_form_of_include_is_recognized() {
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
        ] {
            assert!(includes_files(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn the_word_include_alone_includes_no_file() {
        for text in [
            "# 1 \"include/x.h\" 1 3 4\nint x;",
            "%: 5 \"include/x.h\"",
            "#line 7 \"include/x.h\"",
            "kernel void k(global float *included) { included[0] = 1; }",
            "// This is important: nothing is included.\nkernel void k() {}",
            "#define A 1 \\\n + 2\nkernel void k() {}",
        ] {
            assert!(!includes_files(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn every_form_of_file_name_is_recognized() {
        let names = |text: &str| {
            let Names { included, defined, .. } = Names::of(text.as_bytes());
            [defined, included].concat()
        };
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
        assert_eq!(names("#include /* 1 < 2 < 3 */ <x.h>"), ["x.h"]);
        let options = r#"-I a -Ib "-I" "c d" -I e\ f -include x.h -DN=\"y.h\" -DM=<z.h>"#;
        let given = OptionPaths::of(options, &mut Search::new(None)).expect("there are few files");
        let directories: Vec<_> =
            given.directories.iter().filter_map(|path| path.to_str()).collect();
        assert_eq!(directories, ["a", "b", "c d", "e\\ f", "e f", ""]);
        for name in ["x.h", "y.h", "z.h"] {
            assert!(given.names.iter().any(|known| known == name), "{name}");
        }
    }

    #[test]
    fn the_digest_covers_exactly_the_included_files() {
        let folder = tempfile::tempdir().expect("there is disk space");
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("it has one")).expect("there is disk space");
            fs::write(path, text).expect("there is disk space");
        };
        let text = b"#ifdef A\n#include \"a.h\"\n#endif\n#include <later.h>\n#include NAME\n\
            #include TEXT(FOLDER/made.h)\n";
        write("sub/deep/empty.h", "");
        let given = "-DNAME=<n.h> -D FOLDER=sub/deep";
        let options = format!("-I {} {given}", folder.path().display());
        let digest = || included_files(text, &options, None).expect("there are few files").digest;
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
        fs::remove_file(folder.path().join("n.h")).expect("it existed");
        assert_eq!(digest(), seen[seen.len() - 2]);
    }

    /// Compilers look beside the link: build systems create such trees of links.
    #[test]
    #[cfg(unix)]
    fn includes_of_a_link_are_searched_beside_the_link() {
        let folder = tempfile::tempdir().expect("there is disk space");
        let at = |name: &str| folder.path().join(name);
        for made in ["include/sub", "src"] {
            fs::create_dir_all(at(made)).expect("there is disk space");
        }
        fs::write(at("src/a.h"), "#include \"made.h\"\n#include \"sub/a.h\"\n")
            .expect("there is disk space");
        std::os::unix::fs::symlink("../../src/a.h", at("include/sub/a.h"))
            .expect("there is disk space");
        let options = format!("-I {}", at("include").display());
        let text = b"#include \"sub/a.h\"\n";
        let digest = || included_files(text, &options, None).expect("there are few files").digest;
        let mut seen = vec![digest()];
        for (name, text) in
            [("include/sub/made.h", "1"), ("include/sub/made.h", "2"), ("src/a.h", "3")]
        {
            fs::write(at(name), text).expect("there is disk space");
            assert!(!seen.contains(&digest()), "{name}: {text}");
            seen.push(digest());
        }
    }

    #[test]
    fn names_take_memory_linear_in_the_text() {
        const LENGTH: usize = 1 << 16;
        for line in [
            format!("#define A {}>", "<".repeat(LENGTH)),
            format!("#define A {}>", "<a ".repeat(LENGTH)),
            format!("#define A {}", "<a ".repeat(LENGTH)),
            format!("#define A {}", "\"a".repeat(LENGTH)),
            format!("#include A({})", "a/".repeat(LENGTH)),
        ] {
            let Names { included, defined, .. } = Names::of(line.as_bytes());
            let bytes: usize = included.iter().chain(&defined).map(String::len).sum();
            assert!(
                bytes <= (MAX_MACRO_DIRECTORIES + 1) * line.len(),
                "{}: {bytes} bytes",
                &line[..16]
            );
        }
    }

    /// Each name is searched on disk, in every directory.
    #[test]
    fn a_long_comment_names_no_files() {
        let words: String = (0..200_000).map(|n| format!("a{n}/b.h *\n")).collect();
        for text in [
            format!("#include \"x.h\" /* {words} */"),
            format!("#include /* {words} */ \"x.h\""),
            format!("#include \"x.h\" // {}", words.replace('\n', " ")),
            format!("#include \"x.h\" // {}", words.replace('\n', "\\\n")),
            format!("/*\n{}*/\n#include \"x.h\"", words.replace('a', "#include a")),
            format!("#include /* '\n{words} */ \"x.h\" // don't"),
        ] {
            assert!(includes_files(text.as_bytes()));
            let Names { included, defined, uses_macro } = Names::of(text.as_bytes());
            assert_eq!((included, defined, uses_macro), (vec!["x.h".to_owned()], vec![], false));
        }
    }

    #[test]
    fn a_file_that_is_named_repeatedly_is_searched_once() {
        let folder = tempfile::tempdir().expect("there is disk space");
        let text = "#include \"x.h\"\n".repeat(10_000);
        fs::write(folder.path().join("x.h"), &text).expect("there is disk space");
        let mut search = Search::new(None);
        search.add_names(None, text.as_bytes());
        let names: Vec<_> = search.names.iter().map(|(_, names)| names.len()).collect();
        assert_eq!(names, [1]);
        let options = format!("-I {}", folder.path().display());
        included_files(text.as_bytes(), &options, None).expect("it is one file");
    }

    /// Texts have many strings in macros, most of which are not names of files.
    #[test]
    fn strings_of_macros_are_files_only_if_a_directive_uses_a_macro() {
        let strings: String = (0..10).map(|n| format!("#define S{n} \"{n}\"\n")).collect();
        for (last, names) in [("#include \"x.h\"", 1), ("#include S1", 10)] {
            let mut search = Search::new(None);
            search.add_names(None, format!("{strings}{last}").as_bytes());
            let found: usize = search.names.iter().map(|(_, names)| names.len()).sum();
            assert_eq!(found, names, "{last}");
        }
    }

    #[test]
    fn exceeding_the_limits_of_the_search_is_an_error() {
        let folder = tempfile::tempdir().expect("there is disk space");
        let options = format!("-I {}", folder.path().display());
        let text: String = (0..=MAX_LOCATIONS / 2).map(|n| format!("#include <{n}>\n")).collect();
        let error = included_files(text.as_bytes(), &options, None).expect_err("they are many");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(&MAX_LOCATIONS.to_string()), "{error}");

        let path = folder.path().join("x.h");
        let file = fs::File::create(&path).expect("there is disk space");
        file.set_len(MAX_BYTES + 1).expect("holes take no room");
        let error = included_files(b"#include <x.h>", &options, None).expect_err("it is long");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("64 MiB"), "{error}");

        let past = Some(Duration::ZERO);
        let error = included_files(b"#include <y.h>", &options, past)
            .expect_err("the time limit has passed");
        assert_eq!(error.kind(), ErrorKind::Driver);
    }

    #[test]
    #[cfg(unix)]
    fn endless_files_are_not_read() {
        let text = b"#embed </proc/kmsg>\n#include \"/\"\n#include </dev/null>";
        included_files(text, "", None).expect("nothing is read");
        let text = b"#include \"/dev/zero\"";
        let error = included_files(text, "", None).expect_err("a compiler would read it");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("`/dev/zero`: it is a character device"), "{error}");
    }
}
