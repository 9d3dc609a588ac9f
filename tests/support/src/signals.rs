//! Processes that tests stop and kill.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// A process that is stopped until this is dropped.
#[must_use = "the process continues when this is dropped"]
pub struct Stopped(Pid);

impl Stopped {
    /// Stops a process. Returns `None` if it has ended.
    pub fn new(process: Pid) -> Option<Self> {
        kill_process(process, Signal::STOP).ok().map(|()| Self(process))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // This fails if the process has been killed meanwhile.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Returns the children of a process that have one of these names.
pub fn children(parent: u32, names: &[&str]) -> Vec<Pid> {
    let parent = parent.to_string();
    let child = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (name, fields) = stat.split_once('(')?.1.rsplit_once(") ")?;
        let is_child = names.contains(&name) && fields.split(' ').nth(1) == Some(&parent);
        let pid = entry.file_name().to_str()?.parse().ok()?;
        if is_child { Pid::from_raw(pid) } else { None }
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(child).collect()
}
