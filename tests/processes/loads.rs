//! Programs are loaded while compile processes compile: no load waits for a compile to end.
//!
//! A library in the place of the OpenCL loader holds up compiles, but no loads, in this process and in the compile
//! processes.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::compile::{Folder, unique, wait_until, warm_up};
use futures::FutureExt;
use futures::future::{Either, join_all, select};
use kiln::build::Origin;
use kiln::{CacheConfig, Module};
use support::children::{Child, report, variable};
use support::on_each_device_with;
use support::test_name;
use support::tools::has_tool;

/// Environment variable with the directory of the test.
const FOLDER: &str = "KILN_TEST_FOLDER";

/// Number of programs that are loaded, and of those that are compiled meanwhile.
const PROGRAMS: usize = 6;

/// Time after which a load counts as waiting for a compile, which does not end by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Library that passes calls to the OpenCL loader. While the file `closed` exists, it notes each compile in the file
/// `compiling`, and holds it up.
const GATE: &str = r#"
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>

typedef void *(*create)(void *, unsigned, const char **, const size_t *, int *);

void *clCreateProgramWithSource(void *context, unsigned count, const char **texts,
                                const size_t *lengths, int *error) {
    if (access(FOLDER "/closed", F_OK) == 0) {
        int file = open(FOLDER "/compiling", O_WRONLY | O_CREAT | O_APPEND, 0600);
        if (file < 0 || write(file, ".", 1) != 1) {
            return NULL;
        }
        close(file);
    }
    while (access(FOLDER "/closed", F_OK) == 0) {
        usleep(10000);
    }
    void *loader = dlopen("libOpenCL.so.1", RTLD_NOW);
    create call = (create)dlsym(loader, "clCreateProgramWithSource");
    return call(context, count, texts, lengths, error);
}
"#;

/// Compiles the library, and returns its path. `None` if this machine lacks the tools.
fn gate(folder: &Path) -> Option<String> {
    if !has_tool("cc", &["cc", "--version"]) {
        return None;
    }
    let [text, library] = ["gate.c", "gate.so"].map(|name| folder.join(name));
    fs::write(&text, GATE).unwrap();
    let define = format!("-DFOLDER=\"{}\"", folder.display());
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-w", &define, "-o"]).args([&library, &text]);
    // Symbols that the library does not define are found in what it depends on.
    compiler.args(["-Wl,--no-as-needed", "-l:libOpenCL.so.1", "-ldl"]);
    assert!(compiler.status().unwrap().success());
    Some(library.to_str().unwrap().to_owned())
}

#[test]
fn programs_load_while_processes_compile() {
    // The command that starts programs on an imitated GPU chooses the loader itself.
    if std::env::var_os("OPENCL_DYLIB_PATH").is_some() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(gate) = gate(directory.path()) else { return };
    for (processes, workers) in [(2, 2), (1, 4)] {
        let _ = fs::remove_dir_all(directory.path().join("cache"));
        let variables = [
            ("OPENCL_DYLIB_PATH", gate.clone()),
            (FOLDER, directory.path().to_str().unwrap().to_owned()),
            ("KILN_TEST_PROCESSES", processes.to_string()),
            ("KILN_TEST_WORKERS", workers.to_string()),
        ];
        let report = Child::start(&test_name!("child_that_loads"), variables).report();
        assert!(report["loaded"] > 0 && report["loaded"].is_multiple_of(PROGRAMS as u64));
    }
}

#[test]
#[ignore = "run by another test"]
fn child_that_loads() {
    let folder = Folder::new(Path::new(&variable(FOLDER)));
    let number = |name| variable(name).parse::<usize>().unwrap();
    let (processes, workers) = (number("KILN_TEST_PROCESSES"), number("KILN_TEST_WORKERS"));
    let closed = folder.0.join("closed");
    let compiling = || fs::read(folder.0.join("compiling")).map_or(0, |marks| marks.len());
    let builder = || {
        let builder = folder.builder(processes).cache(CacheConfig::at(folder.0.join("cache")));
        builder.compile_workers(workers.try_into().unwrap())
    };
    let loaded = Cell::new(0u64);
    smol::block_on(on_each_device_with(builder, async |first| {
        if first.device().backend != "opencl" {
            return;
        }
        let stored: Vec<Module> = (0..PROGRAMS).map(|_| unique()).collect();
        for module in &stored {
            first.build(module).await.unwrap();
        }
        first.drain().await;
        let device = format!("{}:{}", first.device().backend, first.device().index());
        drop(first);
        let rt = builder().device(device).build().await.unwrap();
        warm_up(&rt).await;
        wait_for_processes(&rt, processes).await;
        let before = compiling();
        fs::write(&closed, "").unwrap();
        let mut slow: Vec<_> = (0..PROGRAMS).map(|_| rt.build(&unique()).start()).collect();
        wait_until("all processes compile", || compiling() == before + processes);
        let loads = stored.iter().map(|module| rt.build(module).start());
        let loads = join_all(loads);
        match select(loads, std::pin::pin!(smol::Timer::after(PATIENCE))).await {
            Either::Left((programs, _)) => {
                for program in programs {
                    assert_eq!(program.unwrap().origin(), Origin::Disk);
                    loaded.set(loaded.get() + 1);
                }
            }
            Either::Right(_) => panic!("a load waits for a compile"),
        }
        assert!(slow.iter_mut().all(|build| build.now_or_never().is_none()));
        assert_eq!(compiling(), before + processes, "no thread compiles");
        fs::remove_file(&closed).unwrap();
        for built in join_all(slow).await {
            assert_eq!(built.unwrap().origin(), Origin::Compiled);
        }
    }));
    report("loaded", loaded.get());
}

/// Builds programs until this number of processes has been started.
async fn wait_for_processes(rt: &kiln::Runtime, number: usize) {
    for _ in 0..600 {
        if rt.stats().builds.compile_processes >= number as u64 {
            return;
        }
        let builds = (0..48).map(|_| rt.build(&unique()).start());
        for built in join_all(builds).await {
            built.unwrap();
        }
    }
    panic!("the processes are not started: {:?}", rt.stats());
}
