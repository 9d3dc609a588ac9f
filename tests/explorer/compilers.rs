//! Updates of a driver's compiler that leave the version of the driver as it is.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Bench, Run, on_benches};

/// Folder that comes first where the loader searches for libraries.
const VARIABLE: &str = "LD_LIBRARY_PATH";

/// Returns the files with which the driver of the bench's device compiles, if libraries are searched in `first`.
fn compiler(bench: &Bench, first: &Path) -> String {
    let mut command = bench.command(["devices", "--json"]);
    command.env(VARIABLE, searched_after(first));
    let devices = Run::of(command.output().unwrap()).ended(0).json();
    let index = u64::try_from(bench.rt.device().index()).unwrap();
    let mut lines = devices.as_array().unwrap().iter();
    let line = lines.find(|line| line["id"] == index).expect("it is listed");
    line["compiler"].as_str().unwrap().to_owned()
}

/// Returns a search path that begins with a folder.
fn searched_after(first: &Path) -> String {
    let others = std::env::var(VARIABLE).unwrap_or_default();
    format!("{}:{others}", first.display())
}

/// Returns the path of a library with this name that is loaded into this process.
fn loaded(name: &str) -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths = maps.lines().filter_map(|line| line.split_once('/')).map(|(_, path)| path);
    paths.find(|path| path.rsplit('/').next() == Some(name)).map(|path| Path::new("/").join(path))
}

#[test]
fn another_compiler_library_is_another_key() {
    on_benches(async |bench| {
        let (described, common_name) =
            (&bench.rt.device().compiler, bench.rt.device().common_name());
        let first = tempfile::tempdir().unwrap();
        assert_eq!(compiler(&bench, first.path()), **described);
        if common_name != Some("pocl") {
            return;
        }
        let libraries = described.split(", ").filter_map(|file| file.split_once(' '));
        let (name, id) = libraries
            .into_iter()
            .find(|(name, _)| name.starts_with("libLLVM"))
            .expect("PoCL compiles with LLVM");
        // A copy stands for another build of the library: it has another build id.
        let path = loaded(name).expect("PoCL needs it");
        let mut bytes = fs::read(path).unwrap();
        let id: Vec<u8> = (0..id.len() / 2)
            .map(|at| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        let at = bytes.windows(id.len()).position(|part| part == id).expect("it has its build id");
        bytes[at] ^= 1;
        let other = first.path().join(name);
        fs::write(&other, bytes).unwrap();
        assert_ne!(compiler(&bench, first.path()), **described);

        // A program that was built before is not loaded, and the tool says why.
        bench.build("saxpy.cl", &[]);
        let run = |arguments: &[&str]| {
            let mut command = bench.command(arguments);
            Run::of(command.env(VARIABLE, searched_after(first.path())).output().unwrap())
        };
        let text = run(&["cache", "why", "saxpy.cl"]).ended(1).fits().out;
        assert!(text.contains(&format!("compiler {name}")), "{text}");
        let built = run(&["build", "saxpy.cl", "--json"]).ended(0).json();
        assert_eq!(built["origin"], "compiled");
    });
}
