//! Build locks of a store, and the processes that hold them. Linux lists the holders of locks, so that a process can
//! be stopped while it builds.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use kiln::build::BuildKey;
use kiln::store::Store;
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::signals::Stopped;
use crate::stores;

/// Stops a child of this process in the middle of a build. Returns `None` if the child does not build before the
/// deadline.
pub fn stop_while_it_builds(store: &Store, child: u32, deadline: Instant) -> Option<Stopped> {
    let pid = Pid::from_raw(child.cast_signed()).expect("it is a process");
    while Instant::now() < deadline {
        if is_building(store, child) {
            let stopped = Stopped::new(pid).expect("it exists");
            waitpid(Some(pid), WaitOptions::UNTRACED).expect("it can be waited for");
            // Checked again after it has stopped: it may have ended that build just before.
            if is_building(store, child) {
                return Some(stopped);
            }
        }
        thread::sleep(Duration::from_micros(200));
    }
    None
}

/// Whether a process holds the build lock of a program that is not stored yet.
fn is_building(store: &Store, process: u32) -> bool {
    let stored: Vec<_> =
        stores::entries(store).iter().map(|entry| lock_name(entry.key())).collect();
    locks_held(&store.root().join("v1/lock"), process)
        .iter()
        .any(|name| name.starts_with("build-") && !stored.contains(name))
}

/// Returns the name of the build lock of a key; several keys may share one.
fn lock_name(key: BuildKey) -> String {
    let [.., high, low] = *key.as_bytes();
    format!("build-{:03x}", u16::from_be_bytes([high, low]) % 1024)
}

/// Returns the files of a directory that a process has locked, according to the system.
fn locks_held(directory: &Path, process: u32) -> Vec<String> {
    let Ok(files) = directory.read_dir() else { return Vec::new() };
    let locks = fs::read_to_string("/proc/locks").expect("Linux lists locks");
    let held: Vec<u64> = locks
        .lines()
        .filter_map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            let [_, "FLOCK", _, _, holder, file, ..] = words[..] else { return None };
            let holder: u32 = holder.parse().ok()?;
            (holder == process).then(|| file.rsplit(':').next()?.parse().ok())?
        })
        .collect();
    files
        .filter_map(Result::ok)
        .filter(|file| file.metadata().is_ok_and(|metadata| held.contains(&metadata.ino())))
        .map(|file| file.file_name().to_string_lossy().into_owned())
        .collect()
}
