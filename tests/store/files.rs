//! Pipes, sockets, devices, links and directories in place of every file and directory of a store: nothing
//! blocks on them or reads them, builds give the right program, and the store is repaired.

#![cfg(all(target_os = "linux", feature = "simulated"))]

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use futures::executor::block_on;
use kiln::build::{BuildKey, Origin};
use kiln::simulated::Simulator;
use kiln::store::Store;
use kiln::{CacheConfig, ErrorKind, Module, Runtime, Stats};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use support::stores;
use tempfile::TempDir;

/// Kinds of files that may be in the place of a regular file.
const KINDS: [&str; 6] = [
    "a pipe",
    "a socket",
    "a link to /dev/zero",
    "a link to a pipe",
    "a broken link",
    "a directory",
];

/// Runs something that must not hang, and fails if it does.
fn bounded<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(act()));
    receiver.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("{what}: it hangs"))
}

fn make_pipe(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("the path is free");
}

/// Puts something in the place of a file or directory.
fn place(kind: &str, path: &Path) {
    let _ = fs::remove_dir_all(path);
    let _ = fs::remove_file(path);
    match kind {
        "a pipe" => make_pipe(path),
        "a socket" => {
            // A short path is needed: addresses of sockets have few bytes.
            let short = tempfile::tempdir().expect("there is disk space");
            symlink(path.parent().expect("it has one"), short.path().join("d")).expect("new");
            let name = path.file_name().expect("it has one");
            // The file of a socket stays when the socket is closed.
            UnixListener::bind(short.path().join("d").join(name)).expect("the path is free");
        }
        "a link to /dev/zero" => symlink("/dev/zero", path).expect("the path is free"),
        "a link to a pipe" => {
            let pipe = path.ancestors().find(|path| path.ends_with("v1")).expect("it is in it");
            let pipe = pipe.with_file_name("pipe");
            if !pipe.exists() {
                make_pipe(&pipe);
            }
            symlink(pipe, path).expect("the path is free");
        }
        "a broken link" => symlink("/nowhere/at/all", path).expect("the path is free"),
        "a directory" => fs::create_dir(path).expect("the path is free"),
        _ => unreachable!("no such kind"),
    }
}

/// Starts as another process would, builds program `number`, and waits until everything is written.
fn start(root: &Path, number: u32) -> (BuildKey, Origin, Stats) {
    let root = root.to_owned();
    bounded(&format!("program {number} of {}", root.display()), move || {
        block_on(async {
            let simulator = Simulator::immediate();
            let builder = Runtime::builder().cache(CacheConfig::at(root)).simulator(&simulator);
            let rt = builder.build().await.expect("it starts");
            let module = Module::opencl_c(format!("kernel void number_{number}() {{}}"));
            let program = rt.build(&module).await.expect("it builds");
            assert_eq!(program.kernel_names(), [format!("number_{number}")]);
            rt.drain().await;
            (program.key(), program.origin(), rt.stats())
        })
    })
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("there is disk space")
}

/// Returns the file of a key's entry, and the lock file of its build.
fn entry_and_lock(root: &Path, key: BuildKey) -> [PathBuf; 2] {
    let mut entries = stores::entries(&stores::open(root)).into_iter();
    let entry = entries.find(|entry| entry.key() == key).expect("it is stored");
    let digits = key.to_string();
    let low = u16::from_str_radix(&digits[digits.len() - 4..], 16).expect("they are digits");
    [entry.path().to_owned(), root.join(format!("v1/lock/build-{:03x}", low % 1024))]
}

#[test]
fn a_file_of_any_type_in_place_of_a_store_file_is_replaced() {
    for kind in KINDS {
        let directory = directory();
        let root = directory.path();
        let (key, _, _) = start(root, 1);
        let [entry, lock] = entry_and_lock(root, key);
        let tag = root.join("v1/CACHEDIR.TAG");
        let files = [lock, root.join("v1/lock/state"), root.join("v1/state"), tag];
        for (file, number) in files.iter().zip(2..) {
            fs::remove_file(&entry).expect("it exists");
            if file.ends_with("CACHEDIR.TAG") {
                // If the locks are missing, everything is created again.
                fs::remove_dir_all(root.join("v1/lock")).expect("it exists");
            }
            place(kind, file);
            for number in [1, number] {
                let (_, origin, stats) = start(root, number);
                let what = format!("{kind} at {}", file.display());
                assert_eq!((origin, stats.disk.failures), (Origin::Compiled, 0), "{what}");
                assert_eq!(start(root, number).1, Origin::Disk, "{what}");
            }
            let there = fs::symlink_metadata(file).expect("it is created again");
            assert!(there.is_file(), "{kind} at {}", file.display());
        }
        assert!(fs::read_to_string(&files[3]).unwrap().starts_with("Signature: "), "{kind}");
    }
}

#[test]
fn a_file_of_any_type_in_place_of_the_collection_lock_is_replaced() {
    for kind in KINDS {
        let directory = directory();
        let root = directory.path();
        start(root, 1);
        let lock = root.join("v1/lock/gc");
        place(kind, &lock);
        let store = stores::open(root);
        let collected = bounded(kind, move || block_on(store.collect(false)));
        let collected = collected.expect("no other collection runs");
        assert_eq!((collected.entries, collected.removed), (1, 0), "{kind}");
        assert!(fs::symlink_metadata(&lock).expect("it is created again").is_file(), "{kind}");
    }
}

#[test]
fn a_file_in_place_of_a_store_directory_is_replaced() {
    for kind in KINDS.into_iter().filter(|kind| *kind != "a directory") {
        let directory = directory();
        let root = directory.path();
        let (key, _, _) = start(root, 1);
        let [entry, _] = entry_and_lock(root, key);
        let shard = entry.parent().expect("it has one");
        let device = shard.parent().expect("it has one");
        for folder in [&*root.join("v1/tmp"), &*root.join("v1/lock"), shard, device] {
            fs::remove_file(&entry).expect("it exists");
            place(kind, folder);
            let what = format!("{kind} at {}", folder.display());
            assert_eq!(start(root, 1).1, Origin::Compiled, "{what}");
            assert_eq!(start(root, 1).1, Origin::Disk, "{what}");
            assert!(fs::symlink_metadata(folder).expect("it is created again").is_dir(), "{what}");
        }
    }
}

/// Entries behind a link would be counted twice, or would belong to another store.
#[test]
fn a_link_in_place_of_a_directory_of_entries_is_not_followed() {
    let (directory, elsewhere) = (directory(), directory());
    let (root, elsewhere) = (directory.path(), elsewhere.path().join("device"));
    let (key, _, _) = start(root, 1);
    let [entry, _] = entry_and_lock(root, key);
    let device = entry.ancestors().nth(2).expect("it has one");
    fs::rename(device, &elsewhere).expect("it exists");
    symlink(&elsewhere, device).expect("the path is free");
    let twin = device.with_file_name("0123456789abcdef");
    symlink(&elsewhere, &twin).expect("the path is free");

    let store = stores::open(root);
    assert_eq!(stores::entries(&store).len(), 0);
    let nothing = stores::open_with(&CacheConfig::at(root).max_bytes(1));
    assert_eq!(block_on(nothing.collect(false)).expect("no other collection runs").removed, 0);
    assert_eq!(start(root, 2).1, Origin::Compiled);
    assert_eq!(stores::entries(&store).len(), 1, "the next put makes the folder");
    let there = elsewhere.join(entry.strip_prefix(device).expect("it is in it"));
    assert!(there.exists(), "the files elsewhere stay");
}

/// A directory that is not empty may belong to a user: it stays, and the store works without the file.
#[test]
fn a_directory_that_is_not_empty_stays() {
    for name in ["v1/state", "v1/CACHEDIR.TAG", "v1/lock/gc"] {
        let directory = directory();
        let root = directory.path();
        start(root, 1);
        let place = root.join(name);
        let _ = fs::remove_file(&place);
        fs::create_dir_all(&place).expect("the path is free");
        let file = place.join("thesis.tex");
        fs::write(&file, "three years of work").expect("there is disk space");
        assert_eq!(start(root, 2).1, Origin::Compiled, "{name}");
        assert_eq!(start(root, 2).1, Origin::Disk, "{name}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "three years of work", "{name}");
    }
}

#[test]
fn a_root_that_is_not_a_directory_is_refused() {
    for kind in KINDS.into_iter().filter(|kind| !matches!(*kind, "a directory" | "a broken link")) {
        let directory = directory();
        for name in ["v1", "root"] {
            place(kind, &directory.path().join("v1"));
            let root = directory.path().join("root");
            let root = if name == "root" {
                fs::rename(directory.path().join("v1"), &root).expect("it exists");
                root
            } else {
                directory.path().to_owned()
            };
            let error = bounded(kind, move || block_on(Store::open(root))).expect_err(kind);
            assert_eq!(error.kind(), ErrorKind::Configuration, "{kind}");
            assert!(error.to_string().contains("not a directory"), "{error}");
        }
    }
}

#[test]
fn a_module_that_is_not_a_regular_file_is_refused_by_name() {
    let directory = directory();
    for kind in ["a named pipe", "a socket", "a character device", "a directory"] {
        let path = directory.path().join("module");
        let made = match kind {
            "a named pipe" => "a pipe",
            "a character device" => "a link to /dev/zero",
            kind => kind,
        };
        place(made, &path);
        let opened = path.clone();
        let error = bounded(kind, move || block_on(Module::open(opened))).expect_err(kind);
        assert_eq!(error.kind(), ErrorKind::Io, "{kind}");
        let message = format!("{error:?}");
        assert!(message.contains(path.to_str().expect("it is Unicode")), "{message}");
        assert!(message.contains(&format!("it is {kind}, not a regular file")), "{message}");
    }
    let path = directory.path().join("huge");
    fs::File::create(&path).and_then(|file| file.set_len(1 << 40)).expect("a hole");
    let error = bounded("a terabyte", move || block_on(Module::open(path))).expect_err("too large");
    assert!(format!("{error:?}").contains("1099511627776 bytes"), "{error:?}");
}

#[test]
fn a_module_behind_a_link_is_read() {
    let directory = directory();
    let [file, link] = ["module.cl", "link.cl"].map(|name| directory.path().join(name));
    fs::write(&file, "kernel void k() {}").expect("there is disk space");
    symlink(&file, &link).expect("the path is free");
    assert_eq!(block_on(Module::open(link)).expect("it is text").code(), b"kernel void k() {}");
}

#[test]
fn a_timeline_is_not_written_to_a_pipe() {
    let directory = directory();
    let path = directory.path().join("trace.json");
    make_pipe(&path);
    let error = bounded("the timeline", move || {
        block_on(async {
            let simulator = Simulator::immediate();
            let rt = Runtime::builder().simulator(&simulator).build().await.expect("it starts");
            rt.trace_to(path).finish().await
        })
    });
    let error = error.expect_err("it is a pipe");
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(format!("{error:?}").contains("it is a named pipe"), "{error:?}");
}
