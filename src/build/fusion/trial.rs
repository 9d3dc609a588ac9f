//! Which of two ways to run launches is the faster, found out on runs that are made anyway.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How launches are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Fused,
    Unfused,
}

/// How to run the launches this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// In this way, and tell how long it took.
    Time(Way),
    /// The fused kernel, whatever it takes.
    Fused,
    /// One by one, which is faster: the times of the fused kernel and of the launches.
    Unfused { fused: Duration, unfused: Duration },
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
    /// The faster way, once that is known, or has been told.
    faster: Option<Way>,
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
        match state.faster {
            Some(Way::Fused) => return Choice::Fused,
            Some(Way::Unfused) => {
                let State { fused, unfused, .. } = *state;
                return Choice::Unfused { fused: fused.fastest, unfused: unfused.fastest };
            }
            None => {}
        }
        let way = if state.fused.begun <= state.unfused.begun { Way::Fused } else { Way::Unfused };
        let times = state.times(way);
        if times.begun == RUNS {
            return Choice::Fused;
        }
        times.begun += 1;
        Choice::Time(way)
    }

    /// A timed run took so long. Gives both times if that decided.
    pub(crate) fn note(&self, way: Way, took: Duration) -> Option<Way> {
        let mut state = self.lock();
        let times = state.times(way);
        times.fastest = if times.ended == 0 { took } else { times.fastest.min(took) };
        times.ended += 1;
        if state.faster.is_some() {
            return None;
        }
        state.faster = state.verdict();
        state.faster
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn times(&mut self, way: Way) -> &mut Times {
        match way {
            Way::Fused => &mut self.fused,
            Way::Unfused => &mut self.unfused,
        }
    }

    fn verdict(&self) -> Option<Way> {
        let (fused, unfused) = (self.fused, self.unfused);
        let runs = fused.ended.min(unfused.ended);
        let (fast, slow) = (fused.fastest.min(unfused.fastest), fused.fastest.max(unfused.fastest));
        let is_clear = fast <= slow.mul_f64(CLEAR_PART);
        let is_enough = runs >= RUNS || runs >= FEW_RUNS && is_clear;
        let faster = if fused.fastest <= unfused.fastest { Way::Fused } else { Way::Unfused };
        is_enough.then_some(faster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(trials: &Trials, fused: u64, unfused: u64) -> Vec<Choice> {
        let mut choices = Vec::new();
        for _ in 0..12 {
            let choice = trials.choose();
            if let Choice::Time(way) = choice {
                let time = if way == Way::Fused { fused } else { unfused };
                trials.note(way, Duration::from_micros(time));
            }
            choices.push(choice);
        }
        choices
    }

    #[test]
    fn the_ways_take_turns_until_the_faster_is_known_and_used() {
        let choices = run(&Trials::new(), 90, 100);
        assert_eq!(choices[..2], [Choice::Time(Way::Fused), Choice::Time(Way::Unfused)]);
        assert_eq!(choices.iter().filter(|c| matches!(c, Choice::Time(_))).count(), 8);
        assert_eq!(choices[8..], [Choice::Fused; 4]);
    }

    #[test]
    fn a_clear_difference_takes_fewer_runs() {
        let choices = run(&Trials::new(), 300, 100);
        assert_eq!(choices.iter().filter(|c| matches!(c, Choice::Time(_))).count(), 4);
        let (fused, unfused) = (Duration::from_micros(300), Duration::from_micros(100));
        assert_eq!(choices[4], Choice::Unfused { fused, unfused });
    }

    #[test]
    fn without_times_the_fused_kernel_is_used() {
        let trials = Trials::new();
        let choices: Vec<_> = (0..12).map(|_| trials.choose()).collect();
        assert_eq!(choices[8..], [Choice::Fused; 4]);
    }
}
