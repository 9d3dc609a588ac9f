//! Breaks compilers and takes resources away at random, and restores both.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use support::limits::Lowered;
use support::scripts;
use support::signals;

use super::counts::{Counts, Disturbance, Survivable, Watch};

/// The compilers, by the names of the scripts in front of them.
const COMPILERS: [(&str, &str); 2] = [("clang", "clang-15"), ("llvm-spirv", "llvm-spirv-15")];

/// Name of the script that runs the compiler.
const WORKS: &str = "works";

/// Scripts by name; `REAL` is the compiler with its arguments.
const SCRIPTS: [(&str, &str); 15] = [
    (WORKS, "exec REAL"),
    ("fails", "exit 1"),
    ("refuses", "cat >/dev/null; echo '<stdin>:1:1: error: broken' >&2; exit 1"),
    ("crashes", "ulimit -c 0; kill -SEGV $$"),
    ("exits", "exit 3"),
    ("writes nothing", "exit 0"),
    ("writes rubbish", "cat >/dev/null; echo rubbish"),
    ("is killed", "kill -KILL $$"),
    ("is ended", "kill -TERM $$"),
    ("is slow", "sleep 0.3; exec REAL"),
    ("writes a part", "REAL | head -c 700"),
    ("writes a part and fails", "REAL | head -c 900; exit 1"),
    ("has no space", "ulimit -f 0; exec REAL"),
    ("has no memory", "ulimit -v 50000; exec REAL"),
    ("has no files", "ulimit -n 4; exec REAL"),
];

/// Programs that are killed and stopped: those of compile processes, and compilers.
const VICTIMS: [&str; 6] = ["kiln", "clang", "clang-15", "llvm-spirv", "llvm-spirv-15", "sh"];

/// Bytes of address space that are left: too few for a compiler, or for large buffers.
const MEMORY: Range<u64> = 16 << 20..80 << 20;

/// Compilers that are scripts, in a folder of their own.
pub(super) struct Compilers(PathBuf);

impl Compilers {
    pub(super) fn new(folder: &Path) -> Self {
        let compilers = Self(folder.to_owned());
        for (compiler, real) in COMPILERS {
            for (name, script) in SCRIPTS {
                let script = script.replace("REAL", &format!("{real} \"$@\""));
                scripts::place(&compilers.script(compiler, name), &script);
            }
        }
        compilers.restore();
        compilers
    }

    /// Returns the path of a compiler.
    pub(super) fn path(&self, compiler: &str) -> PathBuf {
        self.0.join(compiler)
    }

    fn script(&self, compiler: &str, name: &str) -> PathBuf {
        self.0.join(format!("{compiler} {name}"))
    }

    /// Puts a script in a compiler's place. Opens no file.
    fn place(&self, compiler: &str, name: &str) {
        let new = self.script(compiler, "new");
        // It exists if the script was in that place before.
        let _ = fs::remove_file(&new);
        fs::hard_link(self.script(compiler, name), &new).expect("there is space");
        fs::rename(&new, self.path(compiler)).expect("it is there");
    }

    fn break_one(&self, rng: &mut Rng) {
        let (compiler, _) = COMPILERS[rng.usize(..COMPILERS.len())];
        match rng.usize(..SCRIPTS.len()) {
            0 => fs::remove_file(self.path(compiler)).expect("it is there"),
            at => self.place(compiler, SCRIPTS[at].0),
        }
    }

    fn restore(&self) {
        for (compiler, _) in COMPILERS {
            self.place(compiler, WORKS);
        }
    }
}

/// Breaks compilers and takes resources away.
pub(super) struct Disturber<'a> {
    pub(super) rng: Rng,
    pub(super) compilers: &'a Compilers,
    pub(super) watch: &'a Watch,
    pub(super) counts: &'a Counts,
    pub(super) survivable: Survivable,
}

impl Disturber<'_> {
    /// Disturbs the process for a while. Everything works again afterwards.
    pub(super) fn run(&mut self, duration: Duration) {
        let since = Instant::now();
        while since.elapsed() < duration {
            thread::sleep(Duration::from_millis(self.rng.u64(100..1200)));
            self.disturb();
        }
    }

    /// Has one disturbance, or two, for less than a second.
    fn disturb(&mut self) {
        let [first, second] =
            [(); 2].map(|()| self.rng.usize(..self.survivable.disturbances.len()));
        let count = if self.rng.bool() { 1 } else { 2 };
        // In the order of their declaration: to limit the memory, a file is read.
        let is_chosen = |at: usize| at == first || count == 2 && at == second;
        let all = self.survivable.disturbances.iter().enumerate();
        let chosen: Vec<_> = all.filter(|(at, _)| is_chosen(*at)).map(|(_, one)| *one).collect();
        self.mark(&chosen, true);
        let until = Instant::now() + Duration::from_millis(self.rng.u64(50..800));
        let (mut lowered, mut stopped) = (Vec::new(), Vec::new());
        for &disturbance in &chosen {
            self.counts.add(format!("{disturbance:?} begun"));
            self.watch.begin(disturbance);
            match disturbance {
                Disturbance::Compilers => self.compilers.break_one(&mut self.rng),
                Disturbance::Memory => {
                    lowered.push(Lowered::memory(self.rng.u64(MEMORY)));
                }
                Disturbance::Files => {
                    lowered.push(Lowered::files(self.rng.u64(self.survivable.files.clone())));
                }
                Disturbance::Disk => lowered.push(Lowered::file_size(self.rng.u64(..1 << 16))),
                Disturbance::Kills => stopped = self.kill_until(until),
            }
        }
        thread::sleep(until.saturating_duration_since(Instant::now()));
        drop(lowered);
        self.compilers.restore();
        resume(&stopped);
        chosen.iter().for_each(|disturbance| self.watch.end(*disturbance));
        self.mark(&chosen, false);
    }

    /// Saves what is in effect, for the case that the process ends.
    fn mark(&self, disturbances: &[Disturbance], are_in_effect: bool) {
        for disturbance in disturbances {
            self.counts.set(&disturbance.mark(), are_in_effect.into());
        }
        self.counts.save();
    }

    /// Kills and stops processes that compile, until a time has passed. Returns those that it stopped.
    fn kill_until(&mut self, until: Instant) -> Vec<Pid> {
        let mut stopped = Vec::new();
        while Instant::now() < until {
            if let Some(victim) = self.rng.choice(victims()) {
                let is_killed = self.rng.u8(..3) > 0;
                let signal = if is_killed { Signal::KILL } else { Signal::STOP };
                if kill_process(victim, signal).is_ok() && !is_killed {
                    stopped.push(victim);
                }
            }
            thread::sleep(Duration::from_millis(self.rng.u64(10..100)));
        }
        stopped
    }
}

/// Continues processes that were stopped, unless they have been reaped.
fn resume(stopped: &[Pid]) {
    let alive = victims();
    for pid in stopped.iter().filter(|pid| alive.contains(pid)) {
        let _ = kill_process(*pid, Signal::CONT);
    }
}

/// Returns the children of this process that compile.
fn victims() -> Vec<Pid> {
    signals::children(std::process::id(), &VICTIMS)
}
