//! clang, where it is installed: it knows the macros of OpenCL C and the sizes of types better than this crate
//! does.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::{env, fs, thread};

use crate::parse::predefined::DEVICE_VERSION;

/// Environment variable with the path of clang, as for Kiln itself.
pub(crate) const CLANG: &str = "KILN_CLANG";

/// Version that is looked for first among those with a version in their name, and the others.
const VERSIONS: [std::ops::RangeInclusive<u32>; 2] = [15..=15, 13..=40];

/// Environment variables that clang gets. Others, such as `CPATH`, would change its output.
const ENVIRONMENT: [&str; 4] = ["PATH", "TMPDIR", "LD_LIBRARY_PATH", "SystemRoot"];

/// Result of a run of clang's preprocessor.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Preprocessed {
    /// The text, with markers of files and lines.
    Text(String),
    /// The text is not valid: clang's first error.
    Refused(String),
    /// clang cannot be run, or is another program.
    Unusable(String),
}

/// Returns the path of clang that the environment names.
pub(crate) fn chosen() -> Option<PathBuf> {
    env::var_os(CLANG).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Returns the first clang of the folders in `path`, the value of `PATH`.
pub(crate) fn on_path(path: &OsString) -> Option<PathBuf> {
    let numbered = VERSIONS.into_iter().flat_map(|versions| versions.rev());
    let names = std::iter::once("clang".to_owned())
        .chain(numbered.map(|version| format!("clang-{version}")));
    let mut files = names.flat_map(|name| {
        let name = format!("{name}{}", env::consts::EXE_SUFFIX);
        env::split_paths(path).map(move |folder| folder.join(&name))
    });
    files.find(|file| is_program(file))
}

#[cfg(unix)]
fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|file| file.is_file())
}

/// Preprocesses a text for a device of a version such as 120, which clang does not define itself. Comments stay in
/// it.
pub(crate) fn preprocess(
    clang: &Path,
    text: &str,
    version: u32,
    standard: &str,
    arguments: &[String],
) -> Preprocessed {
    let mut command = command(clang, standard);
    command.args(["-E", "-C", WITHOUT_GCC]).arg(format!("-D{DEVICE_VERSION}={version}"));
    command.args(arguments).args(["-o", "-", "-"]);
    let output = match run(command, text) {
        Ok(output) => output,
        Err(error) => return Preprocessed::Unusable(format!("`{}`: {error}", clang.display())),
    };
    let log = String::from_utf8_lossy(&output.stderr);
    match (output.status.success(), String::from_utf8(output.stdout)) {
        (true, Ok(text)) => Preprocessed::Text(text),
        (true, Err(_)) => Preprocessed::Unusable("its output is not UTF-8".to_owned()),
        (false, _) => match first_error(&log) {
            Some(error) => Preprocessed::Refused(error),
            None => {
                Preprocessed::Unusable(format!("it ended with {}: {}", output.status, log.trim()))
            }
        },
    }
}

/// Argument against the macros of GCC, which compilers of devices do not define.
const WITHOUT_GCC: &str = "-fgnuc-version=0";

/// File that the messages about sizes name.
const SIZES: &str = "kiln-sizes";

/// Returns the sizes that types of a preprocessed text have, in bytes; `None` for those that are not known. The text
/// may have errors elsewhere.
///
/// clang states a size when it complains about two equal cases of a `switch`, also if it cannot compile the text.
pub(crate) fn sizes(
    clang: &Path,
    text: &str,
    standard: &str,
    types: &[String],
) -> Vec<Option<u64>> {
    let mut text = text.to_owned();
    for (at, ty) in types.iter().enumerate() {
        let case = format!("case sizeof({ty}):");
        _ = write!(
            text,
            "\n#line {} \"{SIZES}\"\nvoid kiln_size_{at}(ulong x) {{ switch (x) {{ {case} {case} break; }} }}\n",
            at + 1
        );
    }
    let mut command = command(clang, standard);
    command.args(["-fsyntax-only", "-ferror-limit=0", "-fno-caret-diagnostics", "-"]);
    let log = run(command, &text).map(|output| output.stderr).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let mut sizes = vec![None; types.len()];
    for (at, size) in log.lines().filter_map(stated_size) {
        if let Some(slot) = sizes.get_mut(at) {
            *slot = Some(size);
        }
    }
    sizes
}

/// Returns the position of a type and its size, if a line of a log states one.
fn stated_size(line: &str) -> Option<(usize, u64)> {
    let (place, message) =
        line.strip_prefix(SIZES)?.split_once(": error: duplicate case value '")?;
    let line: usize = place.trim_start_matches(':').split(':').next()?.parse().ok()?;
    Some((line.checked_sub(1)?, message.strip_suffix('\'')?.parse().ok()?))
}

/// Returns a call of clang for OpenCL C, without its warnings.
fn command(clang: &Path, standard: &str) -> Command {
    let mut command = Command::new(clang);
    command.args(["-x", "cl", "--target=spir64", "-w", "-fno-color-diagnostics"]);
    command.arg(format!("-cl-std={standard}"));
    command.env_clear().env("LC_ALL", "C");
    for variable in ENVIRONMENT {
        if let Some(value) = env::var_os(variable) {
            command.env(variable, value);
        }
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command with a text as its input.
fn run(mut command: Command, text: &str) -> std::io::Result<Output> {
    let mut child = command.spawn()?;
    let input = child.stdin.take();
    thread::scope(|scope| {
        scope.spawn(move || {
            // A program that does not read all of its input says why, or is not clang.
            let _ = input.map(|mut input| input.write_all(text.as_bytes()));
        });
        child.wait_with_output()
    })
}

/// Returns the first error in a log, as `file:line: message`. Errors about options have no line and are none of
/// the text.
fn first_error(log: &str) -> Option<String> {
    log.lines().find_map(|line| {
        let (place, message) =
            line.split_once(": fatal error: ").or_else(|| line.split_once(": error: "))?;
        let mut parts = place.rsplitn(3, ':');
        let (_column, line, file) = (parts.next()?, parts.next()?, parts.next()?);
        line.parse::<u32>().ok().map(|line| format!("{file}:{line}: {message}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_has_its_file_and_line() {
        let log = "In file included from a.cl:1:\n./b.h:3:10: fatal error: 'x.h' file not found\n\
                   b.h:4:1: error: other";
        assert_eq!(first_error(log).as_deref(), Some("./b.h:3: 'x.h' file not found"));
        assert_eq!(first_error("clang: error: unknown argument: '-foo'"), None);
        assert_eq!(first_error("Segmentation fault"), None);
    }

    #[cfg(unix)]
    #[test]
    fn clang_is_found_by_name_and_by_version() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("there is room");
        let search = || on_path(&folder.path().as_os_str().to_owned());
        assert_eq!(search(), None);
        for (name, mode) in [("clang-20", 0o755), ("clang-15", 0o755), ("clang", 0o644)] {
            let path = folder.path().join(name);
            fs::write(&path, "").expect("it is written");
            let permissions = fs::Permissions::from_mode(mode);
            fs::set_permissions(&path, permissions).expect("it is changed");
        }
        assert_eq!(search(), Some(folder.path().join("clang-15")));
    }

    #[cfg(unix)]
    #[test]
    fn programs_other_than_clang_are_unusable() {
        let run = |program: &str| preprocess(Path::new(program), "a", 120, "CL1.2", &[]);
        assert!(matches!(run("/nonexistent/clang"), Preprocessed::Unusable(_)));
        assert!(matches!(run("/bin/false"), Preprocessed::Unusable(_)));
    }
}
