//! Trials of several ways to run the same launches. The application's own runs are timed to determine the
//! fastest way.
//!
//! The ways take turns. A way that is much slower than the fastest drops out early: after one run if it takes
//! more than four times as long, after two runs if one and a half times, after three runs if 1.15 times. When
//! those that are left have run four times, the way with the shortest run is kept.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::sync::lock;

/// Index of the way that runs the launches one by one.
pub(crate) const ONE_BY_ONE: usize = 0;

/// Number of timed runs of each way.
const RUNS: u32 = 4;

/// Least ratio of the shortest time to a way's time, after each number of runs, at which the way stays in.
const MIN_RATIOS: [f64; RUNS as usize - 1] = [1.0 / 4.0, 2.0 / 3.0, 1.0 / 1.15];

/// Decision on how to run the launches this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Index of the way.
    pub(crate) way: usize,
    /// Whether the duration is to be reported.
    pub(crate) is_timed: bool,
}

/// Effect of a timed run on the trials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Undecided,
    /// No kernel is faster than the launches one by one. The way with this index was added, whose kernels are
    /// to be built. If there are none, it is to [drop out](Trials::drop_out).
    Lost(usize),
    /// The trials have ended.
    Decided,
}

/// The trials of one group of launches.
#[derive(Debug)]
pub(crate) struct Trials(Mutex<State>);

#[derive(Debug)]
struct State {
    ways: Vec<Way>,
    /// The fastest way, once it is known.
    fastest: Option<usize>,
    /// Whether another way was requested after running one by one turned out to be the fastest.
    has_lost: bool,
}

/// Timed runs of one way.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    stage: Stage,
    is_built: bool,
    started: u32,
    finished: u32,
    shortest: Option<Duration>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// The kernels are being built.
    #[default]
    Building,
    Ready,
    /// The way is too slow, or its kernels cannot be built.
    Out,
}

impl Trials {
    /// Creates trials that know only the way of running the launches one by one.
    pub(crate) fn new() -> Self {
        let one_by_one = Way { stage: Stage::Ready, ..Way::default() };
        Self(Mutex::new(State { ways: vec![one_by_one], fastest: None, has_lost: false }))
    }

    /// Adds a way whose kernels are being built. Returns its index.
    pub(super) fn add(&self) -> usize {
        let mut state = self.lock();
        state.ways.push(Way::default());
        state.ways.len() - 1
    }

    /// Records that the kernels of a way are built.
    pub(super) fn set_ready(&self, way: usize) {
        let way = &mut self.lock().ways[way];
        way.is_built = true;
        if way.stage == Stage::Building {
            way.stage = Stage::Ready;
        }
    }

    /// Records that a way cannot be used.
    pub(super) fn drop_out(&self, way: usize) -> Progress {
        let mut state = self.lock();
        state.ways[way].stage = Stage::Out;
        state.ways[way].is_built = false;
        state.progress()
    }

    /// Records the times of ways that were loaded from disk. The fastest is kept; its kernels are built.
    pub(super) fn set_known(&self, times: &[(usize, Duration)]) {
        let mut state = self.lock();
        state.fastest = times.iter().min_by_key(|(_, time)| *time).map(|(way, _)| *way);
        for &(way, time) in times {
            let is_kept = state.fastest == Some(way) || way == ONE_BY_ONE;
            state.ways[way].shortest = Some(time);
            state.ways[way].stage = if is_kept { Stage::Ready } else { Stage::Out };
        }
    }

    /// Decides how to run the launches now. The ways take turns, beginning with those that have kernels, until
    /// the fastest is known. If no times are reported, the first way that has kernels is used.
    pub(crate) fn choose(&self) -> Choice {
        let mut state = self.lock();
        if let Some(way) = state.fastest {
            return Choice { way, is_timed: false };
        }
        let mut ready: Vec<_> = state.ready().collect();
        ready.sort_by_key(|&way| (state.ways[way].started, way == ONE_BY_ONE, way));
        let next = ready.first().copied().unwrap_or(ONE_BY_ONE);
        if state.ways[next].started >= RUNS {
            return Choice { way: state.best_so_far(), is_timed: false };
        }
        state.ways[next].started += 1;
        Choice { way: next, is_timed: true }
    }

    /// Returns the way to use if the launches must not run one by one: the fastest of the built ways or, without
    /// times, the first of them.
    pub(crate) fn best_kernel(&self) -> Option<usize> {
        let state = self.lock();
        let shortest = |way: usize| state.ways[way].shortest.unwrap_or(Duration::MAX);
        let built = (1..state.ways.len()).filter(|&way| state.ways[way].is_built);
        built.min_by_key(|&way| (shortest(way), way))
    }

    /// Returns the ways whose kernels no longer run after the trials: all but the fastest kernel.
    pub(super) fn retire(&self) -> Vec<usize> {
        let kept = self.best_kernel();
        let mut state = self.lock();
        let retired: Vec<_> = (1..state.ways.len()).filter(|&way| Some(way) != kept).collect();
        for &way in &retired {
            state.ways[way].is_built = false;
        }
        retired
    }

    /// Cancels a timed run that was chosen but did not take place.
    pub(crate) fn give_back(&self, way: usize) {
        let way = &mut self.lock().ways[way];
        way.started = way.started.saturating_sub(1);
    }

    /// Records the end of a timed run. A run whose duration is unknown, because a command failed or the device does not
    /// measure times, counts as a run, so that the trials end in any case.
    pub(super) fn note(&self, way: usize, took: Option<Duration>) -> Progress {
        let mut state = self.lock();
        // A run that was in flight when the trials ended does not count.
        if state.fastest.is_some() {
            return Progress::Undecided;
        }
        let noted = &mut state.ways[way];
        noted.shortest = noted.shortest.into_iter().chain(took).min();
        noted.finished += 1;
        state.progress()
    }

    /// Returns the shortest time of each way, if it is known.
    pub(crate) fn times(&self) -> Vec<Option<Duration>> {
        self.lock().ways.iter().map(|way| way.shortest).collect()
    }

    /// Returns the fastest way, if it is known.
    pub(super) fn fastest(&self) -> Option<usize> {
        self.lock().fastest
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

impl State {
    fn ready(&self) -> impl Iterator<Item = usize> {
        let ways = self.ways.iter().enumerate();
        ways.filter(|(_, way)| way.stage == Stage::Ready).map(|(at, _)| at)
    }

    /// Returns the way with the shortest time. A way that was too slow at first counts, too: a run of it that was in
    /// flight then may have been faster. Without times, returns the first way that has kernels.
    fn best_so_far(&self) -> usize {
        let usable =
            (0..self.ways.len()).filter(|&way| way == ONE_BY_ONE || self.ways[way].is_built);
        let fastest = usable.min_by_key(|&way| {
            (self.ways[way].shortest.unwrap_or(Duration::MAX), way == ONE_BY_ONE, way)
        });
        fastest.unwrap_or(ONE_BY_ONE)
    }

    /// Drops the ways that are too slow, and ends the trials if one way is left or all have been timed often
    /// enough.
    fn progress(&mut self) -> Progress {
        if self.fastest.is_some() {
            return Progress::Undecided;
        }
        let timed = self.ways.iter().filter(|way| way.stage == Stage::Ready);
        let shortest = timed.filter_map(|way| way.shortest).min();
        for way in &mut self.ways {
            let ratio = (way.finished as usize).checked_sub(1).and_then(|at| MIN_RATIOS.get(at));
            if let (Some(ratio), Some(shortest), Some(own)) = (ratio, shortest, way.shortest)
                && way.stage == Stage::Ready
                && shortest < own.mul_f64(*ratio)
            {
                way.stage = Stage::Out;
            }
        }
        let is_building = self.ways.iter().any(|way| way.stage == Stage::Building);
        let is_single = self.ready().count() == 1;
        let are_all_timed = self.ready().all(|way| self.ways[way].finished >= RUNS);
        if is_building || !(is_single || are_all_timed) {
            return Progress::Undecided;
        }
        let best = self.best_so_far();
        if best == ONE_BY_ONE && !std::mem::replace(&mut self.has_lost, true) {
            self.ways.push(Way::default());
            return Progress::Lost(self.ways.len() - 1);
        }
        self.fastest = Some(best);
        Progress::Decided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs launches `runs` times, with a time in microseconds for each way. Returns the ways that were timed.
    fn run(trials: &Trials, times: &[u64], runs: usize) -> Vec<usize> {
        let mut timed = Vec::new();
        for _ in 0..runs {
            let Choice { way, is_timed } = trials.choose();
            if is_timed {
                timed.push(way);
                if let Progress::Lost(split) =
                    trials.note(way, Some(Duration::from_micros(times[way])))
                {
                    trials.drop_out(split);
                }
            }
        }
        timed
    }

    /// Returns trials with this number of ways whose kernels are built.
    fn trials(kernels: usize) -> Trials {
        let trials = Trials::new();
        for _ in 0..kernels {
            let way = trials.add();
            trials.set_ready(way);
        }
        trials
    }

    #[test]
    fn ways_take_turns_until_the_fastest_is_chosen() {
        let trials = trials(1);
        assert_eq!(run(&trials, &[100, 90], 12), [1, 0, 1, 0, 1, 0, 1, 0]);
        assert_eq!(trials.choose(), Choice { way: 1, is_timed: false });
    }

    #[test]
    fn after_the_trials_the_fastest_kernel_remains() {
        let trials = trials(3);
        run(&trials, &[100, 130, 120, 110], 20);
        assert_eq!(trials.fastest(), Some(ONE_BY_ONE));
        // Two parts were tried last, as the fourth way; they could not be built.
        assert_eq!(trials.retire(), [1, 2, 4]);
        // A run that was in flight does not bring a way back.
        trials.note(1, Some(Duration::from_micros(1)));
        assert_eq!(trials.best_kernel(), Some(3));
    }

    #[test]
    fn the_shortest_time_wins_although_its_way_was_too_slow_before() {
        let trials = trials(3);
        let first: Vec<_> = (0..5).map(|_| trials.choose().way).collect();
        assert_eq!(first, [1, 2, 3, 0, 1]);
        for (way, micros) in [(2, 10), (3, 11), (0, 12), (1, 50), (1, 5)] {
            assert_eq!(trials.note(way, Some(Duration::from_micros(micros))), Progress::Undecided);
        }
        run(&trials, &[12, 50, 10, 11], 20);
        assert_eq!(trials.choose(), Choice { way: 1, is_timed: false });
        // The times that are stored lead to the same choice.
        let times = trials.times().into_iter().map(Option::unwrap);
        let times: Vec<_> = times.enumerate().collect();
        let restored = self::trials(3);
        restored.set_known(&times);
        assert_eq!(restored.fastest(), Some(1));
    }

    #[test]
    fn a_run_that_ends_after_the_trials_does_not_count() {
        let trials = trials(1);
        let choices = [(); 3].map(|()| trials.choose().way);
        assert_eq!(choices, [1, 0, 1]);
        assert_eq!(trials.note(1, Some(Duration::from_micros(10))), Progress::Undecided);
        assert_eq!(trials.note(0, Some(Duration::from_micros(90))), Progress::Decided);
        trials.note(1, Some(Duration::from_micros(1)));
        assert_eq!(trials.times()[1], Some(Duration::from_micros(10)));
    }

    #[test]
    fn a_clear_difference_takes_fewer_runs() {
        let trials = trials(1);
        assert_eq!(run(&trials, &[100, 200], 12), [1, 0, 1]);
        assert_eq!(trials.choose(), Choice { way: ONE_BY_ONE, is_timed: false });
        let micros = |micros| Some(Duration::from_micros(micros));
        assert_eq!(trials.times()[..2], [micros(100), micros(200)]);
    }

    #[test]
    fn clear_losers_of_many_ways_drop_out_while_the_others_go_on() {
        let trials = trials(4);
        let timed = run(&trials, &[100, 900, 80, 78, 150], 30);
        let count = |way| timed.iter().filter(|timed| **timed == way).count();
        assert_eq!([1, 4, 0, 2, 3].map(count), [1, 2, 3, 4, 4]);
        assert_eq!(trials.choose(), Choice { way: 3, is_timed: false });
    }

    #[test]
    fn a_timed_run_that_was_given_back_is_repeated() {
        let trials = trials(1);
        for _ in 0..12 {
            assert_eq!(trials.choose(), Choice { way: 1, is_timed: true });
            trials.give_back(1);
        }
        assert_eq!(run(&trials, &[100, 90], 12).len(), 8);
    }

    #[test]
    fn without_times_the_first_kernel_is_used() {
        let trials = trials(2);
        let choices: Vec<_> = (0..14).map(|_| trials.choose()).collect();
        assert_eq!(choices[12..], [Choice { way: 1, is_timed: false }; 2]);
    }

    #[test]
    fn ways_that_are_built_later_are_still_tried() {
        let trials = trials(1);
        let late = trials.add();
        assert_eq!(run(&trials, &[100, 90, 50], 12).len(), 8);
        assert_eq!(trials.choose(), Choice { way: 1, is_timed: false }, "the best so far");
        trials.set_ready(late);
        assert_eq!(run(&trials, &[100, 90, 50], 12), [late; 4]);
        assert_eq!(trials.choose(), Choice { way: late, is_timed: false });
    }

    #[test]
    fn trials_end_if_the_last_way_cannot_be_built() {
        let trials = trials(1);
        let late = trials.add();
        run(&trials, &[100, 90, 50], 12);
        assert_eq!(trials.drop_out(late), Progress::Decided);
        assert_eq!(trials.choose(), Choice { way: 1, is_timed: false });
    }

    #[test]
    fn another_way_is_tried_before_running_one_by_one_is_kept() {
        let trials = trials(1);
        for expected in [Progress::Undecided, Progress::Undecided, Progress::Lost(2)] {
            let way = trials.choose().way;
            let took = Duration::from_micros([100, 300][way]);
            assert_eq!(trials.note(way, Some(took)), expected);
        }
        assert_eq!(trials.choose().way, ONE_BY_ONE, "while the kernels are built");
        trials.set_ready(2);
        run(&trials, &[100, 300, 60], 12);
        assert_eq!(trials.choose(), Choice { way: 2, is_timed: false });
    }

    #[test]
    fn the_best_kernel_is_the_fastest_one() {
        let trials = trials(3);
        assert_eq!(trials.best_kernel(), Some(1));
        run(&trials, &[10, 300, 200, 100], 20);
        assert_eq!(trials.best_kernel(), Some(3));
        assert_eq!(Trials::new().best_kernel(), None);
    }
}
