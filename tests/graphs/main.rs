//! Recorded graphs: a replay does what its commands do one by one.

mod failures;
mod fusion;
mod random;
mod replays;
