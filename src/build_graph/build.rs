//! The build of one node, as a function that reads from top to bottom. The program is loaded from the disk or
//! the remote cache if they have it. Otherwise the driver's compiler or linker builds it, in one process at a
//! time.
//!
//! A build runs on an executor of Kiln's own, so that it does not depend on whoever waits for it. None of its
//! steps blocks: calls that block on the driver run on the threads of the graph's [pools](super::pool), and
//! those that block on files on the threads for files. Waiting holds no thread.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::future::{Either, select};

use super::asking::{Asked, Claimed};
use super::built::Built;
use super::compile::{Publish, Subject};
use super::disk::Miss;
use super::in_flight::InFlight;
use super::strategy::BuildStrategy;
use super::trace::{RemoteTrail, Trail};
use super::turn::{Purpose, Turn};
use crate::cache::remote::{Claim, PendingResponse, Remote};
use crate::cache::store::{BackgroundLock, Entry};
use crate::error::{Result, catch_panics};
use crate::executor::wait_up_to;

/// Time after which the build lock of a program is freed although the disk has not stored the program. The processes that
/// wait for the lock then compile the program themselves.
const PUBLISH_PATIENCE: Duration = Duration::from_secs(8);

/// Work that is left once the waiters have the program.
enum Rest {
    /// Nothing: the program was on the disk, or is not stored. No reference to it is kept.
    Nothing,
    /// The entry that the remote cache sent is to be written to the disk, before other processes have their turn.
    Copy(Arc<Entry>, Option<Turn>, Weak<Built>),
    /// The program was compiled, in this time, and is to be stored before other processes have their turn.
    Save(Arc<Built>, Duration, Turn, Publish),
}

/// Program that a build has found or made.
enum Made {
    /// The disk had it.
    Found(Arc<Built>),
    /// The remote cache sent it.
    Received(Arc<Built>, Arc<Entry>),
    /// It was compiled, in this time.
    Compiled(Arc<Built>, Duration),
}

/// Builds a node: finds or makes its program, completes the waiters, and stores the program behind them.
pub(super) async fn build(mut in_flight: InFlight) {
    let mut trail = Trail::default();
    let made = catch_panics(make(&mut in_flight, &mut trail)).await;
    let (outcome, rest) = match made {
        Ok((built, rest)) => {
            if let Some(reason) = in_flight.subject().reason_not_to_store() {
                built.set_storage(reason);
            }
            (Ok(built), rest)
        }
        Err(error) => (Err(error), Rest::Nothing),
    };
    in_flight.end(outcome, &trail);
    if let Err(error) = catch_panics(store(&in_flight, rest)).await {
        tracing::error!(%error, "a program could not be stored");
    }
}

/// Finds the program, or makes it.
async fn make(in_flight: &mut InFlight, trail: &mut Trail) -> Result<(Arc<Built>, Rest)> {
    if in_flight.subject().plan().strategy() == BuildStrategy::TranslateFirst {
        let translated = in_flight.subject().translated().await?;
        in_flight.replace_subject(translated);
    }
    let subject = in_flight.subject();
    if !subject.is_stored() {
        let linkage = subject.linkage().await?;
        let _slot = subject.acquire_slot().await;
        return Ok((subject.compile(linkage).await?, Rest::Nothing));
    }
    let Trail { miss, remote: trail } = trail;
    let (mut turn, mut lookup) = (None, None);
    if subject.graph().remote().is_some_and(Remote::is_read) {
        match subject.ask(miss, trail).await? {
            Asked::Found(built) => return Ok((built, Rest::Nothing)),
            Asked::Received(built, entry, turn) => {
                let rest = Rest::Copy(entry, turn, Arc::downgrade(&built));
                return Ok((built, rest));
            }
            Asked::Missed { turn: next, lookup: pending } => (turn, lookup) = (next, pending),
        }
    } else if subject.is_link()
        && let Some(built) = subject.find_on_disk(miss).await?
    {
        // Without objects to gather, the disk is looked at together with the lock.
        return Ok((built, Rest::Nothing));
    }
    // In a box, because the future would otherwise be part of this one twice.
    let compiling = Box::pin(compile(subject, miss, &mut turn, trail));
    let made = match lookup {
        None => compiling.await?,
        Some(_) => race(subject, compiling, &mut lookup, trail).await?,
    };
    Ok(match (made, turn) {
        (Made::Received(built, entry), turn) => {
            let rest = Rest::Copy(entry, turn, Arc::downgrade(&built));
            (built, rest)
        }
        (Made::Compiled(built, took), Some(turn)) => {
            let publish = match lookup {
                _ if trail.findings().keeps_object => Publish::Never,
                Some(lookup) => Publish::Unless(lookup),
                None => Publish::Always,
            };
            (built.clone(), Rest::Save(built, took, turn, publish))
        }
        (Made::Found(built) | Made::Compiled(built, _), _) => (built, Rest::Nothing),
    })
}

/// Compiles or links the program when it is this process's turn, unless another process or machine has stored it by
/// then. `turn` is this process's turn, if it has begun.
async fn compile(
    subject: &Arc<Subject>,
    miss: &mut Option<Miss>,
    turn: &mut Option<Turn>,
    trail: &RemoteTrail,
) -> Result<Made> {
    // The objects of a linked program are gathered while no lock is held: they have locks of their own, and two
    // processes could otherwise wait for each other.
    let linkage = subject.linkage().await?;
    let turn = match turn {
        Some(turn) => {
            if let Some(built) = subject.begin_turn(turn, miss).await? {
                return Ok(Made::Found(built));
            }
            turn
        }
        None => match subject.find_or_take_turn(Purpose::Build, miss).await? {
            Either::Left(built) => return Ok(Made::Found(built)),
            Either::Right(taken) => turn.insert(taken),
        },
    };
    let claim = match subject.claim(turn, trail).await? {
        Claimed::Received(built, entry) => return Ok(Made::Received(built, entry)),
        Claimed::Compile(claim) => claim,
    };
    let start = Instant::now();
    let outcome = subject.compile(linkage).await;
    if outcome.is_err()
        && let Claim::Held(until) = claim
        && Instant::now() < until
        && let Some(remote) = subject.graph().remote()
    {
        remote.end_claim(&subject.address());
    }
    Ok(Made::Compiled(outcome?, start.elapsed()))
}

/// Compiles the program while the remote cache may still send it. The first to have a program wins; if the
/// remote cache has none, the compile decides. Leaves a lookup that is still pending.
async fn race(
    subject: &Arc<Subject>,
    compiling: impl Future<Output = Result<Made>> + Unpin,
    lookup: &mut Option<PendingResponse>,
    trail: &RemoteTrail,
) -> Result<Made> {
    let receiving = async {
        let answer = lookup.as_mut()?.await;
        *lookup = None;
        subject.receive(answer.ok()?, trail).await.ok()?
    };
    match select(pin!(receiving), compiling).await {
        Either::Left((Some((built, entry)), _)) => Ok(Made::Received(built, entry)),
        Either::Left((None, compiling)) => compiling.await,
        Either::Right((made, _)) => made,
    }
}

/// Stores a program, and then lets other processes have their turn.
async fn store(in_flight: &InFlight, rest: Rest) -> Result<()> {
    let subject = in_flight.subject();
    match rest {
        Rest::Nothing => {}
        Rest::Copy(entry, turn, built) => {
            let lock = turn.map(|turn| turn.lock);
            let copying = async {
                let Some(disk) = subject.graph().disk() else { return };
                let storage = disk.copy(&subject.address(), &entry).await;
                if let Some(built) = built.upgrade() {
                    built.set_storage(storage);
                }
            };
            publish_under(lock, copying).await;
        }
        Rest::Save(built, took, turn, publish) => {
            if let Some(disk) = subject.graph().disk() {
                disk.store().record_miss(took);
            }
            let room = subject.room_to_save().await;
            // From here on, the next compile may begin.
            let Turn { slot, lock, .. } = turn;
            drop(slot);
            let saving = async {
                subject.save((in_flight.node(), &built), took, publish, room.is_none()).await;
                drop(room);
            };
            publish_under(Some(lock), saving).await;
        }
    }
    if let Some(disk) = subject.graph().disk() {
        disk.store().keep_limits().await;
        disk.store().write_totals_if_due().await;
    }
    Ok(())
}

/// Waits until a program is stored, and frees its build lock then, or earlier if the disk takes too long.
async fn publish_under(lock: Option<BackgroundLock>, publishing: impl Future<Output = ()>) {
    let Some(lock) = lock else { return publishing.await };
    let publishing = pin!(publishing);
    let late = wait_up_to(PUBLISH_PATIENCE, publishing).await.err();
    lock.release().await;
    if let Some(publishing) = late {
        publishing.await;
    }
}
