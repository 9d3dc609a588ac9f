//! Processes that a signal has stopped: nothing is to be expected of them until another one continues them.

use std::time::{Duration, Instant};

/// Time for which a process must have been stopped before nobody waits for it any more.
const GRACE: Duration = Duration::from_secs(1);

/// Watch of a process that others wait for.
#[derive(Debug, Default)]
pub(crate) struct StoppedWatch(Option<Instant>);

impl StoppedWatch {
    /// Looks at the process. Returns whether it was stopped at all looks for a while.
    pub(crate) fn look(&mut self, is_stopped: bool) -> bool {
        self.0 = is_stopped.then(|| self.0.unwrap_or_else(Instant::now));
        self.0.is_some_and(|since| since.elapsed() >= GRACE)
    }
}

/// Returns whether a signal, or a debugger, has stopped a process.
#[cfg(target_os = "linux")]
pub(crate) fn is_stopped(process: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"));
    // The name in front of the state may contain anything.
    let state = text.as_deref().ok().and_then(|text| text.rsplit_once(") "));
    state.is_some_and(|(_, state)| state.starts_with(['T', 't']))
}

/// Returns `false`: this is not known here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn is_stopped(_: u32) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_goes_on_has_not_been_stopped_for_a_while() {
        let mut watch = StoppedWatch::default();
        assert!(!watch.look(true), "it has just been stopped");
        watch.0 = Instant::now().checked_sub(GRACE);
        assert!(watch.look(true));
        assert!(!watch.look(false));
        assert!(!watch.look(true), "it has gone on meanwhile");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn stopped_processes_are_told_from_running_ones() {
        use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
        assert!(!is_stopped(std::process::id()));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it starts");
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::STOP).expect("it exists");
        waitpid(Some(pid), WaitOptions::UNTRACED).expect("it can be waited for");
        assert!(is_stopped(child.id()));
        child.kill().expect("it exists");
        child.wait().expect("it can be waited for");
        assert!(!is_stopped(child.id()), "it has ended");
    }
}
