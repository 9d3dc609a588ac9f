//! Lookups of programs on the disk, and the decision on which process asks the remote cache for a missing one, and
//! which one builds it.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_lock::{SemaphoreGuard, SemaphoreGuardArc};
use futures::future::Either;

use super::built::{Built, Origin};
use super::compile::Subject;
use super::disk::{Disk, Miss};
use super::entry_codec::Loaded;
use crate::cache::store::{BackgroundLock, Lookup, Try};
use crate::error::Result;
use crate::executor;
use crate::process::stopped::StoppedWatch;

/// Shortest and longest pause, before jitter, between two lookups while another process builds a program.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(250)];

/// The next pause is the time waited so far, divided by this number. A program is then found soon after it is
/// stored, relative to the duration of its compile, and waiting for many programs leaves the processor to the
/// compilers.
const PAUSE_DIVISOR: u32 = 8;

/// Factor of the expected duration of a compile, and smallest patience with a process that compiles.
const PATIENCE_FACTOR: u32 = 4;
const MIN_PATIENCE: Duration = Duration::from_secs(8);

/// Time after which a process looks whether the one that it waits for has been stopped.
const FIRST_LOOK: Duration = Duration::from_millis(250);

/// Time after which a wait is reported.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// Time after which a build no longer waits for the disk to free a lock.
const RELEASE_PATIENCE: Duration = Duration::from_secs(2);

/// Wait for another process that builds a program.
struct Wait {
    since: Instant,
    is_reported: bool,
    stopped: StoppedWatch,
}

/// Permission to have the entry of a program in memory, to write it.
pub(super) struct Room<'a> {
    /// One of the disk's permits, if there is a disk.
    _on_disk: Option<SemaphoreGuard<'a>>,
}

/// Purpose for which a process wants to be the only one of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Asking the remote cache for the program.
    Ask,
    /// Calling a compiler or linker.
    Build,
}

/// A process's turn to ask for a program or to build it.
pub(super) struct Turn {
    /// Permission for this purpose. Returned while the process waits for another machine.
    pub(super) slot: Option<SemaphoreGuardArc>,
    pub(super) lock: BackgroundLock,
    /// Whether the process gave up waiting for the one that holds the build lock. It does not wait again.
    pub(super) has_given_up: bool,
}

impl Subject {
    /// Waits until the entry of another program may be in memory to be written. Returns `None` if the program is not
    /// to be stored, because the disk takes too long.
    pub(super) async fn room_to_save(&self) -> Option<Room<'_>> {
        match self.graph().disk() {
            Some(disk) => disk.room_to_save().await.map(|room| Room { _on_disk: Some(room) }),
            None => Some(Room { _on_disk: None }),
        }
    }

    /// Loads the program from the disk, if the disk has it.
    pub(super) async fn find_on_disk(
        self: &Arc<Self>,
        miss: &mut Option<Miss>,
    ) -> Result<Option<Arc<Built>>> {
        let Some(disk) = self.graph().disk() else { return Ok(None) };
        let _permit = disk.room_to_load().await;
        let found = disk.store().find(&self.address()).await;
        self.load_found(disk, found, miss).await
    }

    /// Returns a permit for a purpose, if one is free.
    fn try_permit(&self, purpose: Purpose) -> Option<SemaphoreGuardArc> {
        match (purpose, self.graph().disk()) {
            (Purpose::Ask, Some(disk)) => disk.questions().try_acquire_arc(),
            (Purpose::Ask, None) | (Purpose::Build, _) => self.slots().try_acquire_arc(),
        }
    }

    /// Waits for a permit for a purpose.
    async fn permit(&self, purpose: Purpose) -> SemaphoreGuardArc {
        match (purpose, self.graph().disk()) {
            (Purpose::Ask, Some(disk)) => disk.questions().acquire_arc().await,
            (Purpose::Ask, None) | (Purpose::Build, _) => self.acquire_slot().await,
        }
    }

    /// Turns the permission to ask into the one to build, if the build can begin at once or this process has given up
    /// waiting for another one. Otherwise, other processes have their turn, and do not ask again if this one `has_asked`.
    pub(super) async fn continue_to_build(&self, turn: Turn, has_asked: bool) -> Option<Turn> {
        let Turn { slot, lock, has_given_up } = turn;
        drop(slot);
        if has_given_up {
            // There is no lock to leave to other processes.
            return Some(Turn { slot: None, lock, has_given_up });
        }
        // The objects of a linked program have locks of their own. They are gathered while no lock is held.
        if !self.is_link()
            && let Some(slot) = self.try_permit(Purpose::Build)
        {
            return Some(Turn { slot: Some(slot), lock, has_given_up });
        }
        let release = async {
            match self.graph().disk() {
                Some(disk) if has_asked => disk.store().release_asked(lock, self.key()).await,
                _ => lock.release().await,
            }
        };
        // Freeing goes on in the background if the disk hangs.
        let _ = executor::wait_up_to(RELEASE_PATIENCE, pin!(release)).await;
        None
    }

    /// Waits for the permission to build, if a turn is without one. Returns the program if the disk has it by then.
    pub(super) async fn begin_turn(
        self: &Arc<Self>,
        turn: &mut Turn,
        miss: &mut Option<Miss>,
    ) -> Result<Option<Arc<Built>>> {
        if turn.slot.is_some() {
            return Ok(None);
        }
        turn.slot = Some(self.permit(Purpose::Build).await);
        self.find_on_disk(miss).await
    }

    /// Loads the program from the disk, or waits for this process's turn to ask for it or to build it. While another
    /// process does so, looks again from time to time. There is a disk if the purpose is to ask.
    pub(super) async fn find_or_take_turn(
        self: &Arc<Self>,
        purpose: Purpose,
        miss: &mut Option<Miss>,
    ) -> Result<Either<Arc<Built>, Turn>> {
        let Some(disk) = self.graph().disk() else {
            return Ok(Either::Right(Turn {
                slot: Some(self.permit(purpose).await),
                lock: BackgroundLock::new(None),
                has_given_up: false,
            }));
        };
        // The lock is tried only by builds that can go on at once, so that few files are open, and other
        // processes can build what this one would have to queue.
        let mut slot = self.try_permit(purpose);
        if slot.is_none() {
            if let Some(built) = self.find_on_disk(miss).await? {
                return Ok(Either::Left(built));
            }
            slot = Some(self.permit(purpose).await);
        }
        let mut wait: Option<Wait> = None;
        loop {
            if let Some(slot) = slot.take() {
                match self.find_or_lock(disk, miss).await? {
                    Either::Left(built) => return Ok(Either::Left(built)),
                    Either::Right(Try::Busy) => {}
                    Either::Right(Try::Held(lock)) => {
                        return Ok(Either::Right(Turn {
                            slot: Some(slot),
                            lock: BackgroundLock::new(Some(lock)),
                            has_given_up: false,
                        }));
                    }
                    Either::Right(Try::Unopened(_) | Try::Impossible(_)) => {
                        return Ok(Either::Right(Turn {
                            slot: Some(slot),
                            lock: BackgroundLock::new(None),
                            has_given_up: false,
                        }));
                    }
                }
            } else if let Some(built) = self.find_on_disk(miss).await? {
                return Ok(Either::Left(built));
            }
            let wait = wait.get_or_insert_with(|| {
                disk.counters.builds.lock_waits.add_one();
                Wait { since: Instant::now(), is_reported: false, stopped: StoppedWatch::default() }
            });
            if self.is_over(disk, wait).await {
                disk.counters.builds.lock_timeouts.add_one();
                let slot = Some(self.permit(purpose).await);
                let lock = BackgroundLock::new(None);
                return Ok(Either::Right(Turn { slot, lock, has_given_up: true }));
            }
            executor::pause(next_pause(wait.since.elapsed())).await?;
            slot = self.try_permit(purpose);
        }
    }

    /// Returns whether a wait for another process is over: that process has been stopped, or takes far longer than
    /// compiles do. Reports a long wait, once.
    async fn is_over(&self, disk: &Disk, wait: &mut Wait) -> bool {
        let waited = wait.since.elapsed();
        let mut expected = self.expected_compile();
        if expected.is_none() && waited >= MIN_PATIENCE {
            expected = disk.store().mean_compile().await;
        }
        let patience =
            expected.map(|expected| expected.saturating_mul(PATIENCE_FACTOR).max(MIN_PATIENCE));
        let is_too_long = waited >= patience.unwrap_or(disk.max_wait).min(disk.max_wait);
        if !is_too_long && waited < FIRST_LOOK {
            return false;
        }
        let (holder, is_stopped) = match disk.store().build_lock_holder(self.key()).await {
            Some((holder, is_stopped)) => (holder.to_string(), is_stopped),
            None => ("another process".to_owned(), false),
        };
        let is_over = is_too_long || wait.stopped.look(is_stopped);
        let key = self.key();
        if is_over {
            tracing::warn!(
                %key, %holder, is_stopped, ?waited,
                "a build no longer waits for the process that holds its build lock: it compiles the program itself"
            );
        } else if waited >= LONG_WAIT && !wait.is_reported {
            wait.is_reported = true;
            tracing::warn!(%key, %holder, ?waited, "a build waits for the process that holds its build lock");
        }
        is_over
    }

    /// Loads the program from the disk, or tries to take its build lock.
    async fn find_or_lock(
        self: &Arc<Self>,
        disk: &Disk,
        miss: &mut Option<Miss>,
    ) -> Result<Either<Arc<Built>, Try>> {
        let _permit = disk.room_to_load().await;
        let (found, attempt) = disk.store().get_or_lock(&self.address()).await;
        if let Some(built) = self.load_found(disk, found, miss).await? {
            return Ok(Either::Left(built));
        }
        // The lock was not tried if there is an entry, but the driver may have refused it.
        match attempt {
            Some(attempt) => Ok(Either::Right(attempt)),
            None => Ok(Either::Right(disk.store().try_build_lock(self.key()).await)),
        }
    }

    /// Loads the program from an entry that was found. Errors are transient failures only: a damaged entry, or
    /// one that the driver rejects, is a miss. Such a miss is counted, unless `miss` has the same reason.
    async fn load_found(
        self: &Arc<Self>,
        disk: &Disk,
        found: Lookup,
        miss: &mut Option<Miss>,
    ) -> Result<Option<Arc<Built>>> {
        let counters = &disk.counters;
        let known = match miss {
            Some(Miss::Unusable(reason)) => Some(reason.as_str()),
            _ => None,
        };
        let reason = match found {
            Lookup::Hit(entry) => {
                let bytes = entry.bytes().len() as u64;
                let took = Duration::from_micros(entry.record().build_microseconds);
                match self.load(entry, Origin::Disk).await?.0 {
                    Loaded::Built(built) => {
                        self.record_compile(took);
                        disk.store().record_hit(took);
                        counters.disk.bytes_read.add(bytes);
                        counters.disk.hits.add_one();
                        return Ok(Some(built));
                    }
                    Loaded::Refused(reason) => {
                        if known != Some(&*reason) {
                            disk.store().report_refused(self.key(), &reason);
                        }
                        Some(reason)
                    }
                }
            }
            Lookup::Absent => None,
            Lookup::Unusable(unusable) => {
                let reason = unusable.to_string();
                if known != Some(&*reason) {
                    disk.store().report_damaged(self.key(), &reason);
                }
                Some(reason)
            }
            Lookup::Unreadable(error) => Some(error.to_string()),
        };
        if miss.is_none() {
            counters.disk.misses.add_one();
        }
        *miss = Some(reason.map_or(Miss::Absent, Miss::Unusable));
        Ok(None)
    }
}

/// Returns the pause before the next look, after a wait of `waited` for another process.
pub(super) fn next_pause(waited: Duration) -> Duration {
    let [shortest, longest] = PAUSES;
    let pause = (waited / PAUSE_DIVISOR).clamp(shortest, longest);
    // The jitter keeps many processes from looking at the same time.
    pause.mul_f64(0.5 + fastrand::f64())
}
