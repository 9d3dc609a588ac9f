//! The device's clock, in nanoseconds.
//!
//! Commands are stamped with as few as 32 bits of a counter, which overflows after minutes. The host's clock
//! gives the approximate time when a command was queued, and so the round of the counter to which the stamp
//! belongs.

use std::time::Instant;

use crate::backend::Profile;

#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// Ticks per second.
    pub(super) frequency: u64,
    /// Number of bits of a stamp that come from the counter.
    pub(super) stamp_bits: u32,
    /// Time on the host, and value of the counter at that time.
    pub(super) origin: (Instant, u64),
}

const SECOND: u128 = 1_000_000_000;

impl Clock {
    /// Returns the approximate value of the counter at a time, with all bits.
    fn ticks_at(&self, time: Instant) -> u64 {
        let (origin, ticks) = self.origin;
        let since = time.saturating_duration_since(origin).as_nanos();
        let since = since * u128::from(self.frequency) / SECOND;
        ticks.wrapping_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    fn nanoseconds(&self, ticks: u64) -> u64 {
        let nanoseconds = u128::from(ticks) * SECOND / u128::from(self.frequency.max(1));
        u64::try_from(nanoseconds).unwrap_or(u64::MAX)
    }

    /// Returns the count whose lowest bits are `stamp` and that is nearest to `near`.
    fn complete(&self, stamp: u64, near: u64) -> u64 {
        let Some(round) = 1u64.checked_shl(self.stamp_bits).filter(|round| *round > 1) else {
            return stamp;
        };
        let stamp = stamp % round;
        let same_round = near - near % round + stamp;
        let distance = |ticks: &u64| ticks.abs_diff(near);
        [same_round.saturating_sub(round), same_round, same_round.saturating_add(round)]
            .into_iter()
            .filter(|ticks| ticks % round == stamp)
            .min_by_key(distance)
            .unwrap_or(same_round)
    }

    /// Returns the profile of a command, from the time when it was queued and the stamps of its begin and end.
    pub(super) fn profile(&self, queued: Instant, began: u64, ended: u64) -> Profile {
        let queued = self.ticks_at(queued);
        let began = self.complete(began, queued);
        let ended = self.complete(ended, began).max(began);
        // Commands are submitted to the device at once. The two clocks differ a little.
        let queued = self.nanoseconds(queued.min(began));
        Profile {
            queued,
            submitted: queued,
            started: self.nanoseconds(began),
            ended: self.nanoseconds(ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn clock(ticks: u64) -> Clock {
        Clock { frequency: 1_000_000, stamp_bits: 32, origin: (Instant::now(), ticks) }
    }

    #[test]
    fn timestamps_are_completed_from_the_time_of_enqueueing() {
        let round = 1 << 32;
        let clock = clock(5 * round + 100);
        let queued = clock.origin.0 + Duration::from_micros(900);
        let profile = clock.profile(queued, 1500, 2000);
        let at = |ticks: u64| (5 * round + ticks) * 1000;
        assert_eq!(profile.queued, at(1000));
        assert_eq!((profile.started, profile.ended), (at(1500), at(2000)));
    }

    #[test]
    fn timestamps_are_completed_across_a_counter_wraparound() {
        let round = 1 << 32;
        let clock = clock(6 * round - 10);
        let profile = clock.profile(clock.origin.0, round - 5, 20);
        assert_eq!(profile.started, (6 * round - 5) * 1000);
        assert_eq!(profile.ended, (6 * round + 20) * 1000);
        let later = clock.profile(clock.origin.0, 3, 20);
        assert_eq!(later.started, (6 * round + 3) * 1000);
    }

    #[test]
    fn profile_times_are_ordered_although_the_clocks_differ() {
        let clock = clock(1000);
        let profile = clock.profile(clock.origin.0, 990, 995);
        assert!(profile.queued <= profile.submitted && profile.submitted <= profile.started);
        assert!(profile.started <= profile.ended);
    }

    #[test]
    fn timestamps_of_64_bits_are_used_unchanged() {
        let clock = Clock { stamp_bits: 64, ..clock(0) };
        assert_eq!(clock.complete(u64::MAX - 1, 5), u64::MAX - 1);
    }
}
