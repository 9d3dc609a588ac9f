//! Trials of the two ways to run launches. The application's own runs are timed to determine the faster way.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::sync::lock;

/// Way to run launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    Fused,
    Unfused,
}

/// Decision on how to run the launches this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Run the launches in this way, and report the duration.
    Time(Run),
    /// Run the fused kernel, without timing it.
    Fused,
    /// Run the launches one by one, which is faster.
    Unfused(Fastest),
}

/// Shortest measured time of each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fastest {
    /// Time of the fused kernel.
    pub(crate) fused: Duration,
    /// Time of the separate launches including the gaps between them, without waits for other commands.
    pub(crate) unfused: Duration,
}

impl Fastest {
    /// Returns the faster way.
    fn faster(self) -> Run {
        if self.fused <= self.unfused { Run::Fused } else { Run::Unfused }
    }
}

/// Number of timed runs of each way.
const RUNS: u32 = 4;

/// Number of timed runs of each way that suffice if the difference is [clear](CLEAR_RATIO).
const FEW_RUNS: u32 = 2;

/// Maximum ratio of the shorter time to the longer one at which the difference is clear.
const CLEAR_RATIO: f64 = 2.0 / 3.0;

/// The trials of one plan.
pub(crate) struct Trials(Mutex<State>);

#[derive(Clone, Copy, Default)]
struct State {
    fused: Times,
    unfused: Times,
    /// Shortest times, once both ways have been measured, or the times were loaded from disk.
    known: Option<Fastest>,
}

/// Timed runs of one way.
#[derive(Clone, Copy, Default)]
struct Times {
    started: u32,
    finished: u32,
    fastest: Duration,
}

impl Trials {
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    /// Decides how to run the launches now. The two ways alternate, starting with the fused kernel, until both
    /// have been timed. If no times are reported, the fused kernel is used.
    pub(crate) fn choose(&self) -> Choice {
        let mut state = self.lock();
        if let Some(known) = state.known {
            return match known.faster() {
                Run::Fused => Choice::Fused,
                Run::Unfused => Choice::Unfused(known),
            };
        }
        let run =
            if state.fused.started <= state.unfused.started { Run::Fused } else { Run::Unfused };
        let times = state.times(run);
        if times.started == RUNS {
            return Choice::Fused;
        }
        times.started += 1;
        Choice::Time(run)
    }

    /// Cancels a trial of the fused kernel that was chosen but did not run.
    pub(super) fn give_back(&self) {
        let mut state = self.lock();
        state.fused.started = state.fused.started.saturating_sub(1);
    }

    /// Sets the times that were loaded from disk.
    pub(super) fn set_known(&self, times: Fastest) {
        self.lock().known = Some(times);
    }

    /// Records the duration of a timed run. Returns the times if this run completes the trials.
    pub(super) fn note(&self, run: Run, took: Duration) -> Option<Fastest> {
        let mut state = self.lock();
        let times = state.times(run);
        times.fastest = if times.finished == 0 { took } else { times.fastest.min(took) };
        times.finished += 1;
        if state.known.is_some() {
            return None;
        }
        state.known = state.verdict();
        state.known
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    fn times(&mut self, run: Run) -> &mut Times {
        match run {
            Run::Fused => &mut self.fused,
            Run::Unfused => &mut self.unfused,
        }
    }

    /// Returns the shortest times, if enough runs have been timed.
    fn verdict(&self) -> Option<Fastest> {
        let Self { fused, unfused, .. } = *self;
        let runs = fused.finished.min(unfused.finished);
        let times = Fastest { fused: fused.fastest, unfused: unfused.fastest };
        let (fast, slow) = (times.fused.min(times.unfused), times.fused.max(times.unfused));
        let is_clear = fast <= slow.mul_f64(CLEAR_RATIO);
        (runs >= RUNS || runs >= FEW_RUNS && is_clear).then_some(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(trials: &Trials, fused: u64, unfused: u64) -> Vec<Choice> {
        let mut choices = Vec::new();
        for _ in 0..12 {
            let choice = trials.choose();
            if let Choice::Time(run) = choice {
                let time = if run == Run::Fused { fused } else { unfused };
                trials.note(run, Duration::from_micros(time));
            }
            choices.push(choice);
        }
        choices
    }

    #[test]
    fn fused_and_unfused_runs_alternate_until_the_faster_is_chosen() {
        let choices = run(&Trials::new(), 90, 100);
        assert_eq!(choices[..2], [Choice::Time(Run::Fused), Choice::Time(Run::Unfused)]);
        assert_eq!(choices.iter().filter(|c| matches!(c, Choice::Time(_))).count(), 8);
        assert_eq!(choices[8..], [Choice::Fused; 4]);
    }

    #[test]
    fn a_clear_difference_takes_fewer_runs() {
        let choices = run(&Trials::new(), 300, 100);
        assert_eq!(choices.iter().filter(|c| matches!(c, Choice::Time(_))).count(), 4);
        let (fused, unfused) = (Duration::from_micros(300), Duration::from_micros(100));
        assert_eq!(choices[4], Choice::Unfused(Fastest { fused, unfused }));
    }

    #[test]
    fn a_trial_run_that_was_given_back_is_repeated() {
        let trials = Trials::new();
        for _ in 0..12 {
            assert_eq!(trials.choose(), Choice::Time(Run::Fused));
            trials.give_back();
        }
        assert_eq!(run(&trials, 90, 100)[8..], [Choice::Fused; 4]);
    }

    #[test]
    fn without_times_the_fused_kernel_is_used() {
        let trials = Trials::new();
        let choices: Vec<_> = (0..12).map(|_| trials.choose()).collect();
        assert_eq!(choices[8..], [Choice::Fused; 4]);
    }
}
