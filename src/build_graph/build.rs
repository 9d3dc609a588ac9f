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

use super::built::{Built, Origin};
use super::compile::Subject;
use super::disk::Miss;
use super::entry_codec::Loaded;
use super::in_flight::InFlight;
use super::strategy::BuildStrategy;
use super::trace::{RemoteTrail, Trail};
use super::turn::Turn;
use crate::cache::remote::{Answer, PendingResponse, Response};
use crate::cache::store::{Entry, Storage};
use crate::error::{Result, catch_panics};

/// Work that is left once the waiters have the program.
enum Rest {
    /// Nothing: the program was on the disk, or is not stored. No reference to it is kept.
    Nothing,
    /// The entry that the remote cache sent is to be written to the disk.
    Copy(Arc<Entry>, Weak<Built>),
    /// The program was compiled, in this time, and is to be stored before other processes have their turn.
    Save(Arc<Built>, Duration, Turn),
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
    if let Err(error) = catch_panics(store(&in_flight, rest, &trail.remote)).await {
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
    let Trail { miss, remote } = trail;
    // Without a remote cache, and without objects to gather, the disk is looked at together with the lock.
    let looks_first = subject.is_link() || subject.graph().remote().is_some();
    if looks_first && let Some(built) = subject.find_on_disk(miss).await? {
        return Ok((built, Rest::Nothing));
    }
    let late = match ask_remote(subject, remote).await {
        Some(Response::Answer(answer)) => {
            let answer = answer
                .unwrap_or_else(|_canceled| Answer::Failed("it could not be queried".to_owned()));
            if let Some((built, entry)) = receive(subject, answer, remote).await? {
                let rest = Rest::Copy(entry, Arc::downgrade(&built));
                return Ok((built, rest));
            }
            None
        }
        Some(Response::Pending(answer)) => Some(answer),
        None => None,
    };
    // In a box, because the future would otherwise be part of this one twice.
    let compiling = Box::pin(compile(subject, miss));
    match late {
        None => compiling.await,
        Some(answer) => race(subject, compiling, answer, remote).await,
    }
}

/// Compiles or links the program when it is this process's turn, unless another process has stored it by then.
async fn compile(subject: &Arc<Subject>, miss: &mut Option<Miss>) -> Result<(Arc<Built>, Rest)> {
    // The objects of a linked program are gathered while no lock is held: they have locks of their own, and two
    // processes could otherwise wait for each other.
    let linkage = subject.linkage().await?;
    let turn = match subject.find_or_take_turn(miss).await? {
        Either::Left(built) => return Ok((built, Rest::Nothing)),
        Either::Right(turn) => turn,
    };
    let start = Instant::now();
    let built = subject.compile(linkage).await?;
    Ok((built.clone(), Rest::Save(built, start.elapsed(), turn)))
}

/// Queries the remote cache, if that is worthwhile, and waits for its answer for as long as that is worthwhile.
async fn ask_remote(subject: &Subject, trail: &mut RemoteTrail) -> Option<Response> {
    let remote = subject.graph().remote()?;
    trail.reason = Some("it was not queried".to_owned());
    let lookup = remote.lookup(&subject.address())?;
    let response = lookup.response().await;
    if let Response::Pending(_) = response {
        trail.reason = Some("it had not arrived when the compile began".to_owned());
        subject.graph().counters().remote_races.add_one();
    }
    Some(response)
}

/// Compiles the program while the remote cache may still send it. The first to have a program wins; if the
/// remote cache has none, the compile decides.
async fn race(
    subject: &Arc<Subject>,
    compiling: impl Future<Output = Result<(Arc<Built>, Rest)>> + Unpin,
    answer: PendingResponse,
    trail: &mut RemoteTrail,
) -> Result<(Arc<Built>, Rest)> {
    let receiving = async {
        let answer = answer.await.ok()?;
        receive(subject, answer, trail).await.ok()?
    };
    match select(pin!(receiving), compiling).await {
        Either::Left((Some((built, entry)), _)) => {
            let rest = Rest::Copy(entry, Arc::downgrade(&built));
            Ok((built, rest))
        }
        Either::Left((None, compiling)) => compiling.await,
        Either::Right((made, _)) => made,
    }
}

/// Loads the program that the remote cache sent, if it sent one.
async fn receive(
    subject: &Arc<Subject>,
    answer: Answer,
    trail: &mut RemoteTrail,
) -> Result<Option<(Arc<Built>, Arc<Entry>)>> {
    let reason = match answer {
        Answer::Found(entry) => match subject.load(entry, Origin::Remote).await? {
            (Loaded::Built(built), entry) => {
                subject.graph().counters().remote_hits.add_one();
                if let Some(disk) = subject.graph().disk() {
                    let took = Duration::from_micros(entry.manifest().build_microseconds);
                    disk.store().record_hit(took);
                }
                return Ok(Some((built, entry)));
            }
            (Loaded::Refused(reason), _) => {
                if let Some(remote) = subject.graph().remote() {
                    remote.refused(&subject.address(), &reason);
                }
                reason
            }
        },
        Answer::Absent => "absent".to_owned(),
        Answer::Refused { reason, is_newer } => {
            trail.has_newer |= is_newer;
            reason
        }
        Answer::Failed(reason) => reason,
    };
    trail.reason = Some(reason);
    Ok(None)
}

/// Stores a program, and then lets other processes have their turn.
async fn store(in_flight: &InFlight, rest: Rest, remote: &RemoteTrail) -> Result<()> {
    let subject = in_flight.subject();
    match rest {
        Rest::Nothing => {}
        Rest::Copy(entry, built) => {
            if let Some(disk) = subject.graph().disk() {
                let storage = disk.copy(&subject.address(), &entry).await;
                if let Some(built) = built.upgrade() {
                    built.set_storage(storage);
                }
            }
        }
        Rest::Save(built, took, turn) => {
            if let Some(disk) = subject.graph().disk() {
                disk.store().record_miss(took);
            }
            let room = subject.room_to_save().await;
            // From here on, the next compile may begin.
            let Turn { slot, lock } = turn;
            drop(slot);
            if room.is_some() {
                subject.save(in_flight.node(), &built, took, remote.has_newer).await;
            } else {
                built.set_storage(Storage::Slow);
            }
            drop(room);
            lock.release().await;
        }
    }
    if let Some(disk) = subject.graph().disk() {
        disk.store().collect_if_due().await;
        disk.store().write_totals_if_due().await;
    }
    Ok(())
}
