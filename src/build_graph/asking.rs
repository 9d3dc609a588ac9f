//! The remote cache as a build uses it: one process of a machine asks for a program, and one machine of the fleet
//! compiles it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::Either;

use super::built::{Built, Origin};
use super::compile::Subject;
use super::disk::Miss;
use super::entry_codec::Loaded;
use super::trace::{RemoteFindings, RemoteTrail};
use super::turn::{Purpose, Turn, next_pause};
use crate::cache::remote::{
    Answer, AnswerWait, Claim, PendingResponse, Remote, Response, longest_wait,
};
use crate::cache::store::Entry;
use crate::error::Result;
use crate::executor;

/// Shortest pause before the remote cache is asked again for a program that another machine compiles.
const MIN_PAUSE: Duration = Duration::from_millis(10);

/// Shortest compile of another machine from which the time of a compile here is expected. Quicker ones were answered by
/// a driver's own cache, which this machine need not have.
const MIN_COMPILE: Duration = Duration::from_millis(20);

/// Wait for a machine after which giving up is reported.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// Result of asking for a program.
pub(super) enum Asked {
    /// The program is on the disk.
    Found(Arc<Built>),
    /// The remote cache has sent the program. Other processes have their turn once the disk has it.
    Received(Arc<Built>, Arc<Entry>, Option<Turn>),
    /// The program is to be compiled.
    Missed {
        /// This process's turn to build, if it begins at once.
        turn: Option<Turn>,
        /// The lookup, if it is still pending.
        lookup: Option<PendingResponse>,
    },
}

/// Result of claiming a compile.
pub(super) enum Claimed {
    /// Another machine has compiled the program.
    Received(Arc<Built>, Arc<Entry>),
    /// This process is to compile the program.
    Compile(Claim),
}

impl Subject {
    /// Looks up the program on the disk, and in the remote cache unless another process of this machine asks there. Waits
    /// for the answer for as long as that is worthwhile.
    pub(super) async fn ask(
        self: &Arc<Self>,
        miss: &mut Option<Miss>,
        trail: &RemoteTrail,
    ) -> Result<Asked> {
        let mut turn = None;
        if let Some(disk) = self.graph().disk() {
            match self.find_or_take_turn(Purpose::Ask, miss).await? {
                Either::Left(built) => return Ok(Asked::Found(built)),
                Either::Right(taken) => turn = Some(taken),
            }
            if disk.store().was_asked(self.key()).await {
                let reason = Some("another process of this machine had asked it".to_owned());
                trail.set(RemoteFindings { reason, is_absent: true, ..RemoteFindings::default() });
                let turn = self.next_turn(turn, false).await;
                return Ok(Asked::Missed { turn, lookup: None });
            }
        }
        let lookup = match self.request(trail).await {
            Some(Response::Answer(answer)) => {
                let answer = answer.unwrap_or_else(|_canceled| {
                    Answer::Failed("it could not be queried".to_owned())
                });
                if let Some((built, entry)) = self.receive(answer, trail).await? {
                    return Ok(Asked::Received(built, entry, turn));
                }
                None
            }
            Some(Response::Pending(lookup)) => Some(lookup),
            None => None,
        };
        let has_asked = lookup.is_some() || trail.findings().is_absent;
        let turn = self.next_turn(turn, has_asked).await;
        Ok(Asked::Missed { turn, lookup })
    }

    async fn next_turn(&self, turn: Option<Turn>, has_asked: bool) -> Option<Turn> {
        self.continue_to_build(turn?, has_asked).await
    }

    /// Queries the remote cache, if that is worthwhile, and waits for its answer for as long as that is worthwhile.
    async fn request(&self, trail: &RemoteTrail) -> Option<Response> {
        let remote = self.graph().remote()?;
        trail.set_reason("it was not queried");
        let lookup = remote.lookup(&self.address(), self.expected_compile())?;
        let response = lookup.response().await;
        if let Response::Pending(_) = response {
            trail.set_late();
            self.graph().counters().remote.races.add_one();
        }
        Some(response)
    }

    /// Loads the program that the remote cache sent, if it sent one.
    pub(super) async fn receive(
        self: &Arc<Self>,
        answer: Answer,
        trail: &RemoteTrail,
    ) -> Result<Option<(Arc<Built>, Arc<Entry>)>> {
        let (is_absent, keeps_object) = (matches!(answer, Answer::Absent), answer.keeps_object());
        // The answer counts from now on: a compile may end before the program is loaded.
        trail.set(RemoteFindings { is_absent, keeps_object, ..RemoteFindings::default() });
        let reason = match answer {
            Answer::Found(entry) => {
                let took = Duration::from_micros(entry.record().build_microseconds);
                match self.load(entry, Origin::Remote).await? {
                    (Loaded::Built(built), entry) => {
                        if took >= MIN_COMPILE {
                            self.record_compile(took);
                        }
                        self.graph().counters().remote.hits.add_one();
                        if let Some(disk) = self.graph().disk() {
                            disk.store().record_hit(took);
                        }
                        return Ok(Some((built, entry)));
                    }
                    (Loaded::Refused(reason), _) => {
                        if let Some(remote) = self.graph().remote() {
                            remote.refused(&self.address(), &reason);
                        }
                        let reason = Some(reason);
                        trail.set(RemoteFindings { reason, ..RemoteFindings::default() });
                        return Ok(None);
                    }
                }
            }
            Answer::Absent => "absent".to_owned(),
            Answer::Refused { reason, .. } | Answer::Failed(reason) => reason,
        };
        trail.set_reason(reason);
        Ok(None)
    }

    /// Claims the compile of a program that the remote cache does not have, or has not sent in time. If another
    /// machine has claimed the compile, waits for the program, and leaves the slot of this process's turn to other
    /// builds meanwhile.
    pub(super) async fn claim(
        self: &Arc<Self>,
        turn: &mut Turn,
        trail: &RemoteTrail,
    ) -> Result<Claimed> {
        let RemoteFindings { is_absent, is_late, .. } = trail.findings();
        // Links are quick, and their objects are claimed.
        let can_claim = !self.is_link() && (is_absent || is_late);
        let Some(remote) = self.graph().remote().filter(|_| can_claim) else {
            return Ok(Claimed::Compile(Claim::Unclaimed));
        };
        let wait = if is_absent { AnswerWait::Worthwhile } else { AnswerWait::Late };
        let claim = remote.claim(&self.address(), self.expected_compile(), wait).await;
        if claim != Claim::Elsewhere {
            return Ok(Claimed::Compile(claim));
        }
        turn.slot = None;
        let claimed = self.wait_for_claimer(remote, trail).await?;
        if let Claimed::Compile(_) = claimed {
            turn.slot = Some(self.acquire_slot().await);
        }
        Ok(claimed)
    }

    /// Waits for the machine that has claimed the compile, until it has written the program, its claim has expired, or
    /// such a compile would have ended.
    async fn wait_for_claimer(
        self: &Arc<Self>,
        remote: &Remote,
        trail: &RemoteTrail,
    ) -> Result<Claimed> {
        let (address, expected) = (self.address(), self.expected_compile());
        let (since, limit) = (Instant::now(), longest_wait(expected));
        let left = || limit.saturating_sub(since.elapsed());
        while let Some(lookup) = remote.look_again(&address, left()) {
            let Response::Answer(Ok(answer)) = lookup.response().await else { break };
            if let Some((built, entry)) = self.receive(answer, trail).await? {
                return Ok(Claimed::Received(built, entry));
            }
            if !trail.findings().is_absent || left().is_zero() {
                break;
            }
            let pause = next_pause(since.elapsed()).max(MIN_PAUSE).min(left());
            executor::pause(pause).await?;
            match remote.claim(&address, expected, AnswerWait::UpTo(left().max(MIN_PAUSE))).await {
                Claim::Elsewhere => {}
                claim => return Ok(Claimed::Compile(claim)),
            }
        }
        let waited = since.elapsed();
        if waited >= LONG_WAIT {
            tracing::warn!(
                key = %self.key(), ?waited,
                "a build no longer waits for the machine that has claimed its compile in the remote cache: it \
                 compiles the program itself"
            );
        }
        Ok(Claimed::Compile(Claim::Unclaimed))
    }
}
