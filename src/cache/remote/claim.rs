//! Claims: the machines of a fleet that need the same program leave its compile to one of them.
//!
//! A claim is an object that expires, and that services create in one atomic step. It says only that somebody compiles
//! the program. The others look for the program from time to time, for about as long as such a compile takes, and then
//! compile it themselves. So a machine that claims compiles and does not do them costs the others this time at most.

use std::time::{Duration, Instant};

/// Shortest and longest wait for the machine that has claimed a compile.
const WAITS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(30)];

/// Wait for a compile of unknown duration.
const UNKNOWN_WAIT: Duration = Duration::from_secs(4);

/// Factor of the expected duration of a compile, which half of the compiles exceed.
const WAIT_FACTOR: u32 = 2;

/// Result of claiming a compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is not known whether another machine has claimed the compile.
    Unclaimed,
    /// The compile belongs to this machine until then.
    Held(Instant),
    /// Another machine has claimed the compile, or has written the program.
    Elsewhere,
}

/// Wait for the answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerWait {
    /// As long as that is worthwhile: the program is absent.
    Worthwhile,
    /// Hardly: the lookup of the program has not been answered in time either.
    Late,
    /// This time.
    UpTo(Duration),
}

/// Returns how long a build waits for the machine that has claimed its compile. `compile` is the expected time of the
/// compile, if it is known.
pub(crate) fn longest_wait(compile: Option<Duration>) -> Duration {
    let [shortest, longest] = WAITS;
    compile.map_or(UNKNOWN_WAIT, |compile| {
        compile.saturating_mul(WAIT_FACTOR).clamp(shortest, longest)
    })
}

/// Returns the time after which a claim expires: nobody waits longer.
pub(super) fn lifetime(compile: Option<Duration>) -> Duration {
    longest_wait(compile) * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_follow_from_the_compile_within_limits() {
        let seconds = Duration::from_secs;
        for (compile, wait) in [
            (Some(Duration::ZERO), seconds(2)),
            (Some(seconds(3)), seconds(6)),
            (Some(seconds(1000)), seconds(30)),
            (Some(Duration::MAX), seconds(30)),
            (None, seconds(4)),
        ] {
            assert_eq!(longest_wait(compile), wait, "{compile:?}");
            assert!(lifetime(compile) > wait);
        }
    }
}
