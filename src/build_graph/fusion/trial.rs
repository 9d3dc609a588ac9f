//! Which of two ways to run launches is the faster, found out on runs that are made anyway.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::sync::lock;

/// How launches are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    Fused,
    Unfused,
}

/// How to run the launches this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// In this way, and tell how long it took.
    Time(Run),
    /// The fused kernel, whatever it takes.
    Fused,
    /// One by one, which is faster.
    Unfused(Fastest),
}

/// The shortest time of each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fastest {
    /// The fused kernel's.
    pub(crate) fused: Duration,
    /// That of the launches, with what lies between them, as far as that is no waiting for others.
    pub(crate) unfused: Duration,
}

impl Fastest {
    fn run(self) -> Run {
        if self.fused <= self.unfused { Run::Fused } else { Run::Unfused }
    }
}

/// So many runs of each way are timed.
const RUNS: u32 = 4;

/// So many, where one way takes this part of the other's time.
const FEW_RUNS: u32 = 2;
const CLEAR_PART: f64 = 2.0 / 3.0;

/// The trials of one plan.
pub(crate) struct Trials(Mutex<State>);

#[derive(Clone, Copy, Default)]
struct State {
    fused: Times,
    unfused: Times,
    /// Once they are known, or have been told.
    known: Option<Fastest>,
}

#[derive(Clone, Copy, Default)]
struct Times {
    begun: u32,
    ended: u32,
    fastest: Duration,
}

impl Trials {
    pub(crate) fn new() -> Self {
        Self(Mutex::default())
    }

    /// How to run the launches now. The fused kernel goes first, and until both ways have been timed
    /// they take turns. Where no times come back, the fused kernel it is.
    pub(crate) fn choose(&self) -> Choice {
        let mut state = self.lock();
        if let Some(known) = state.known {
            return match known.run() {
                Run::Fused => Choice::Fused,
                Run::Unfused => Choice::Unfused(known),
            };
        }
        let run = if state.fused.begun <= state.unfused.begun { Run::Fused } else { Run::Unfused };
        let times = state.times(run);
        if times.begun == RUNS {
            return Choice::Fused;
        }
        times.begun += 1;
        Choice::Time(run)
    }

    /// The fused kernel was chosen to be timed, and did not run.
    pub(super) fn give_back(&self) {
        let mut state = self.lock();
        state.fused.begun = state.fused.begun.saturating_sub(1);
    }

    /// The times are known from elsewhere.
    pub(super) fn tell(&self, times: Fastest) {
        self.lock().known = Some(times);
    }

    /// A timed run took so long. Gives the times if that decided.
    pub(super) fn note(&self, run: Run, took: Duration) -> Option<Fastest> {
        let mut state = self.lock();
        let times = state.times(run);
        times.fastest = if times.ended == 0 { took } else { times.fastest.min(took) };
        times.ended += 1;
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

    fn verdict(&self) -> Option<Fastest> {
        let Self { fused, unfused, .. } = *self;
        let runs = fused.ended.min(unfused.ended);
        let times = Fastest { fused: fused.fastest, unfused: unfused.fastest };
        let (fast, slow) = (times.fused.min(times.unfused), times.fused.max(times.unfused));
        let is_clear = fast <= slow.mul_f64(CLEAR_PART);
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
    fn the_ways_take_turns_until_the_faster_is_known_and_used() {
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
    fn a_turn_that_was_given_back_comes_again() {
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
