//! The preprocessor of clang, where it is installed: it knows the macros of OpenCL C better than this crate
//! does.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, thread};

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

/// Preprocesses a text. Comments stay in it.
pub(crate) fn preprocess(
    clang: &Path,
    text: &str,
    standard: &str,
    arguments: &[String],
) -> Preprocessed {
    let mut command = Command::new(clang);
    command.args(["-x", "cl", "--target=spir64", "-E", "-C", "-w", "-fno-color-diagnostics"]);
    command.arg(format!("-cl-std={standard}")).args(arguments).args(["-o", "-", "-"]);
    command.env_clear().env("LC_ALL", "C");
    for variable in ENVIRONMENT {
        if let Some(value) = env::var_os(variable) {
            command.env(variable, value);
        }
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    match run(command, text) {
        Ok(preprocessed) => preprocessed,
        Err(error) => Preprocessed::Unusable(format!("`{}`: {error}", clang.display())),
    }
}

fn run(mut command: Command, text: &str) -> std::io::Result<Preprocessed> {
    let mut child = command.spawn()?;
    let input = child.stdin.take();
    let output = thread::scope(|scope| {
        scope.spawn(move || {
            // A program that does not read all of its input says why, or is not clang.
            let _ = input.map(|mut input| input.write_all(text.as_bytes()));
        });
        child.wait_with_output()
    })?;
    let log = String::from_utf8_lossy(&output.stderr);
    Ok(match (output.status.success(), String::from_utf8(output.stdout)) {
        (true, Ok(text)) => Preprocessed::Text(text),
        (true, Err(_)) => Preprocessed::Unusable("its output is not UTF-8".to_owned()),
        (false, _) => match first_error(&log) {
            Some(error) => Preprocessed::Refused(error),
            None => {
                Preprocessed::Unusable(format!("it ended with {}: {}", output.status, log.trim()))
            }
        },
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
        let run = |program: &str| preprocess(Path::new(program), "a", "CL1.2", &[]);
        assert!(matches!(run("/nonexistent/clang"), Preprocessed::Unusable(_)));
        assert!(matches!(run("/bin/false"), Preprocessed::Unusable(_)));
    }
}
