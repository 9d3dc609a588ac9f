//! Tests of the DAG and its hazards alone, without a backend or an executor.

use std::collections::HashSet;
use std::sync::LazyLock;

use kiln_spirv::Access;
use proptest::prelude::*;

use super::dag::{Dag, Next, NextList};
use super::hazard::{Use, Uses};
use super::node::{EdgeKind, NodeId, Poison, SkipReason};
use crate::error::{Error, ErrorKind};

/// Number and uses of a command.
type Command = (usize, Vec<Use>);

fn uses_of(command: &Command) -> Uses {
    command.1.iter().cloned().collect()
}

fn used(allocation: u64, bytes: std::ops::Range<usize>, access: Access) -> Use {
    Use { allocation, bytes, access }
}

fn add(dag: &mut Dag<Command>, number: usize, uses: &[Use], next: &mut NextList) -> NodeId {
    dag.add((number, uses.to_vec()), &[uses], [], 0, None, next)
}

fn before(dag: &Dag<Command>, id: NodeId) -> Vec<usize> {
    let mut before: Vec<_> = dag.dependencies(id).map(|(_, _, command)| command.0).collect();
    before.sort_unstable();
    before
}

fn failure() -> Error {
    Error::new(ErrorKind::Driver, "on request")
}

static LOST: LazyLock<Error> = LazyLock::new(failure);

#[test]
fn readers_run_side_by_side_and_the_next_writer_waits_for_all() {
    let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
    let write = add(&mut dag, 0, &[used(1, 0..8, Access::Write)], &mut next);
    let reads = [1, 2].map(|n| add(&mut dag, n, &[used(1, 0..8, Access::Read)], &mut next));
    let last = add(&mut dag, 3, &[used(1, 0..8, Access::ReadWrite)], &mut next);
    assert_eq!(before(&dag, reads[0]), [0]);
    assert_eq!(before(&dag, reads[1]), [0]);
    assert_eq!(before(&dag, last), [0, 1, 2]);
    assert_eq!(next.as_slice(), [Next::Dispatch(write)]);
}

#[test]
fn commands_that_wait_for_ends_are_dispatched_after_the_last_end() {
    let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
    let writes =
        [0, 1].map(|n| add(&mut dag, n, &[used(n as u64, 0..8, Access::Write)], &mut next));
    let both = [used(0, 0..8, Access::Read), used(1, 0..8, Access::Read)];
    let reader = add(&mut dag, 2, &both, &mut next);
    let after = add(&mut dag, 3, &[used(0, 0..8, Access::Write)], &mut next);
    next.clear();
    writes.iter().for_each(|&write| dag.set_dispatched(write, &mut next));
    assert_eq!(next.as_slice(), [Next::Dispatch(reader)], "the device keeps the order");
    assert!(!dag.wait_for_completions(reader));
    next.clear();
    dag.complete(writes[1], Ok(()), &mut next);
    assert_eq!(next.as_slice(), [], "the other write has not ended");
    dag.complete(writes[0], Ok(()), &mut next);
    assert_eq!(next.as_slice(), [Next::Dispatch(reader)]);
    assert!(dag.wait_for_completions(reader));
    next.clear();
    dag.complete(reader, Ok(()), &mut next);
    assert_eq!(next.as_slice(), [Next::Dispatch(after)], "it ended without being dispatched");
}

#[test]
fn commands_that_wait_for_the_end_of_a_failing_one_fail() {
    let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
    let write = add(&mut dag, 0, &[used(0, 0..8, Access::Write)], &mut next);
    let reader = add(&mut dag, 1, &[used(0, 0..8, Access::Read)], &mut next);
    dag.set_dispatched(write, &mut next);
    assert!(!dag.wait_for_completions(reader));
    next.clear();
    dag.complete(write, Err(failure()), &mut next);
    assert_eq!(next.as_slice(), [Next::Fail(reader)]);
}

#[test]
fn slices_conflict_only_where_they_overlap() {
    let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
    add(&mut dag, 0, &[used(1, 0..8, Access::Write)], &mut next);
    add(&mut dag, 1, &[used(1, 8..16, Access::Write)], &mut next);
    let middle = add(&mut dag, 2, &[used(1, 6..9, Access::Read)], &mut next);
    let left = add(&mut dag, 3, &[used(1, 0..4, Access::Write)], &mut next);
    let other = add(&mut dag, 4, &[used(2, 0..16, Access::Write)], &mut next);
    assert_eq!(before(&dag, middle), [0, 1]);
    assert_eq!(before(&dag, left), [0]);
    assert!(before(&dag, other).is_empty());
}

#[test]
fn commands_wait_for_the_dispatch_of_dependencies_not_for_their_end() {
    let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
    let first = add(&mut dag, 0, &[used(1, 0..8, Access::Write)], &mut next);
    let second = add(&mut dag, 1, &[used(1, 0..8, Access::ReadWrite)], &mut next);
    assert_eq!(next.as_slice(), [Next::Dispatch(first)]);
    next.clear();
    dag.set_dispatched(first, &mut next);
    assert_eq!(next.as_slice(), [Next::Dispatch(second)]);
}

#[test]
fn commands_with_detached_edges_wait_only_for_others() {
    let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
    let outside = add(&mut dag, 0, &[used(1, 0..8, Access::Write)], &mut next);
    let first = add(&mut dag, 1, &[used(1, 0..8, Access::ReadWrite)], &mut next);
    let second = add(&mut dag, 2, &[used(1, 0..8, Access::ReadWrite)], &mut next);
    next.clear();
    let detached = dag.detach_edges(&[first, second]);
    assert_eq!(before(&dag, first), [0]);
    assert!(before(&dag, second).is_empty());
    dag.set_dispatched(outside, &mut next);
    assert_eq!(next.as_slice(), [Next::Dispatch(first)]);
    assert!(dag.can_dispatch(second));

    dag.restore_edges(detached);
    assert_eq!(before(&dag, second), [1]);
    assert!(!dag.can_dispatch(second));
    next.clear();
    dag.set_dispatched(first, &mut next);
    assert_eq!(next.as_slice(), [Next::Dispatch(second)]);
}

#[test]
fn restored_edges_among_dispatched_commands_propagate_failures() {
    let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
    let outside = add(&mut dag, 0, &[used(1, 0..8, Access::Write)], &mut next);
    let first = add(&mut dag, 1, &[used(1, 0..8, Access::ReadWrite)], &mut next);
    let second = add(&mut dag, 2, &[used(1, 0..8, Access::ReadWrite)], &mut next);
    let detached = dag.detach_edges(&[first, second]);
    [outside, first, second].into_iter().for_each(|id| dag.set_dispatched(id, &mut next));
    dag.restore_edges(detached);
    dag.complete(outside, Err(failure()), &mut next);
    assert!(dag.complete(first, Ok(()), &mut next).outcome.is_err());
    assert!(dag.complete(second, Ok(()), &mut next).outcome.is_err());
}

#[test]
fn unmet_preconditions_are_found_through_dependents() {
    let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
    let write = [used(1, 0..8, Access::Write)];
    let waiting = dag.add((0, write.to_vec()), &[&write], [], 1, None, &mut next);
    let last = add(&mut dag, 1, &[used(1, 0..8, Access::Read)], &mut next);
    let other = add(&mut dag, 2, &[used(2, 0..8, Access::Read)], &mut next);
    let has_precondition = |_: NodeId, _: &Command, preconditions| preconditions > 0;
    assert_eq!(dag.find_preconditioned(&[last], has_precondition), Some(waiting));
    assert_eq!(dag.find_preconditioned(&[other], has_precondition), None);
    dag.meet_precondition(waiting, &mut next);
    assert_eq!(dag.find_preconditioned(&[last], has_precondition), None);
}

#[test]
fn is_clear_predicts_whether_a_command_would_wait_or_fail() {
    let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
    let [write, read, both] = [Access::Write, Access::Read, Access::ReadWrite]
        .map(|access| move |allocation| [used(allocation, 0..8, access)]);
    let writer = add(&mut dag, 0, &write(1), &mut next);
    let reader = add(&mut dag, 1, &read(2), &mut next);
    assert!(!dag.is_clear(&[&read(1)]) && !dag.is_clear(&[&write(1)]));
    assert!(dag.is_clear(&[&read(2)]) && !dag.is_clear(&[&both(2)]));
    assert!(dag.is_clear(&[&[used(1, 8..16, Access::Write)], &write(3)]));
    dag.set_dispatched(writer, &mut next);
    dag.set_dispatched(reader, &mut next);
    assert!(dag.is_clear(&[&read(1), &write(1), &both(2)]));

    // Lost contents can be written, and then read.
    dag.invalidate_writes(1, &[writer], &LOST);
    assert!(!dag.is_clear(&[&read(1)]));
    assert!(dag.is_clear(&[&both(1), &read(1)]) && dag.is_clear(&[&write(1), &read(1)]));
    assert!(!dag.is_clear(&[&[used(1, 0..4, Access::Write)], &read(1)]));
    assert!(!dag.is_clear(&[&[used(1, 0..8, Access::Write), used(1, 0..8, Access::Read)]]));
    let failed = add(&mut dag, 2, &write(3), &mut next);
    dag.set_dispatched(failed, &mut next);
    dag.complete(failed, Err(failure()), &mut next);
    assert!(!dag.is_clear(&[&read(3)]) && !dag.is_clear(&[&both(3)]));
    assert!(dag.is_clear(&[&write(3), &both(3)]));
}

#[test]
fn omitted_accesses_are_invalidated_and_order_only_their_users() {
    let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
    let writer = add(&mut dag, 0, &[used(1, 0..8, Access::Write)], &mut next);
    let reader = add(&mut dag, 1, &[used(1, 0..4, Access::Read)], &mut next);
    let one = add(&mut dag, 2, &[used(2, 0..8, Access::Write)], &mut next);
    let without = [
        used(1, 0..8, Access::ReadWrite),
        used(3, 0..8, Access::Write),
        used(1, 8..16, Access::Read),
        used(1, 0..8, Access::ReadWrite),
    ];
    dag.replace(one, &without);
    dag.invalidate(one, &without, &LOST);
    assert_eq!(before(&dag, one), [0]);
    let late = add(&mut dag, 3, &[used(1, 4..8, Access::Read)], &mut next);
    let beside = add(&mut dag, 4, &[used(1, 8..16, Access::Read)], &mut next);
    let next_writer = add(&mut dag, 5, &[used(1, 0..8, Access::Write)], &mut next);
    let healed = add(&mut dag, 6, &[used(1, 0..8, Access::Read)], &mut next);
    let fresh = add(&mut dag, 7, &[used(3, 0..8, Access::Read)], &mut next);
    assert_eq!(before(&dag, next_writer), [0, 1, 3]);
    let mut complete = |id| dag.complete(id, Ok(()), &mut next).outcome.is_ok();
    let all = [writer, reader, one, late, beside, next_writer, healed, fresh];
    assert_eq!(all.map(&mut complete), [true, true, true, false, true, true, true, false]);
}

#[test]
fn a_replacement_fails_with_the_inputs_of_the_replaced_commands() {
    let [read, both, write] = [Access::Read, Access::ReadWrite, Access::Write]
        .map(|access| move |bytes| used(1, bytes, access));
    let cases = [
        (vec![both(0..8)], false),
        (vec![read(0..8)], false),
        (vec![write(0..8)], true),
        (vec![write(0..8), read(0..8)], true),
        (vec![write(0..4), write(4..8), both(2..6)], true),
        (vec![write(0..4), read(0..8)], false),
        (vec![read(0..4), write(0..8)], false),
    ];
    for (without, expected) in cases {
        let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
        let writer = add(&mut dag, 0, &[used(1, 0..8, Access::Write)], &mut next);
        dag.set_dispatched(writer, &mut next);
        let one = add(&mut dag, 1, &[used(2, 0..8, Access::Write)], &mut next);
        dag.replace(one, &without);
        dag.set_dispatched(one, &mut next);
        dag.invalidate(one, &without, &LOST);
        dag.complete(writer, Err(failure()), &mut next);
        let ended = dag.complete(one, Ok(()), &mut next);
        assert_eq!(ended.outcome.is_ok(), expected, "{without:?}");
    }
}

#[test]
fn lost_contents_fail_pure_readers_and_keep_the_order() {
    let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
    let writer = add(&mut dag, 0, &[used(1, 0..8, Access::Write)], &mut next);
    dag.invalidate_writes(1, &[writer], &LOST);
    let reader = add(&mut dag, 1, &[used(1, 0..8, Access::Read)], &mut next);
    let changer = add(&mut dag, 2, &[used(1, 0..8, Access::ReadWrite)], &mut next);
    let healed = add(&mut dag, 3, &[used(1, 0..8, Access::Read)], &mut next);
    assert_eq!(before(&dag, changer), [0, 1]);
    let mut complete = |id| dag.complete(id, Ok(()), &mut next).outcome.is_ok();
    assert_eq!([writer, reader, changer, healed].map(&mut complete), [true, false, true, true]);
}

#[test]
fn a_failure_reaches_readers_until_the_next_complete_write() {
    let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
    let bad = add(&mut dag, 0, &[used(1, 0..8, Access::Write)], &mut next);
    let reader = add(&mut dag, 1, &[used(1, 4..8, Access::Read)], &mut next);
    let healer = add(&mut dag, 2, &[used(1, 0..8, Access::Write)], &mut next);
    let healed = add(&mut dag, 3, &[used(1, 0..8, Access::Read)], &mut next);
    for id in [bad, reader, healer, healed] {
        dag.set_dispatched(id, &mut next);
    }
    let root = failure();
    dag.complete(bad, Err(root.clone()), &mut next);
    let outcome = dag.complete(reader, Ok(()), &mut next).outcome;
    assert!(outcome.expect_err("its input is missing").same(&root));
    assert!(dag.complete(healer, Ok(()), &mut next).outcome.is_ok());
    assert!(dag.complete(healed, Ok(()), &mut next).outcome.is_ok());
}

#[test]
fn a_failure_reaches_commands_added_after_it_ended() {
    let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
    let bad = add(&mut dag, 0, &[used(1, 0..8, Access::ReadWrite)], &mut next);
    dag.set_dispatched(bad, &mut next);
    let root = failure();
    dag.complete(bad, Err(root.clone()), &mut next);
    next.clear();
    let reader = add(&mut dag, 1, &[used(1, 0..4, Access::Read)], &mut next);
    assert_eq!(next.as_slice(), [Next::Fail(reader)]);
    assert!(
        dag.complete(reader, Ok(()), &mut next).outcome.expect_err("nothing to read").same(&root)
    );
    next.clear();
    let writer = add(&mut dag, 2, &[used(1, 0..4, Access::Write)], &mut next);
    assert_eq!(next.as_slice(), [Next::Dispatch(writer)]);
}

#[test]
fn undispatched_failures_end_after_all_earlier_commands() {
    let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
    let running = add(&mut dag, 0, &[used(1, 0..8, Access::Read)], &mut next);
    dag.set_dispatched(running, &mut next);
    next.clear();
    let waiting = {
        let uses = [used(1, 0..8, Access::Write)];
        dag.add((1, uses.to_vec()), &[&uses], [], 1, None, &mut next)
    };
    let behind = add(&mut dag, 2, &[used(1, 0..8, Access::Write)], &mut next);
    dag.poison(waiting, failure(), SkipReason::NotRun, &mut next);
    assert!(next.is_empty(), "the reader still runs: {next:?}");
    dag.complete(running, Ok(()), &mut next);
    assert_eq!(next.as_slice(), [Next::Fail(waiting)]);
    next.clear();
    assert!(dag.complete(waiting, Ok(()), &mut next).outcome.is_err());
    assert_eq!(next.as_slice(), [Next::Dispatch(behind)]);
    dag.meet_precondition(waiting, &mut next);
    assert_eq!(next.len(), 1, "a precondition of a completed command changes nothing");
}

#[derive(Clone, Debug)]
struct Plan {
    uses: Vec<Use>,
    fails: bool,
    has_precondition: bool,
    /// Whether the command turns out to be unfit when its precondition would be met, so that it is not run.
    is_unfit: bool,
    after: Option<prop::sample::Index>,
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let access = prop_oneof![Just(Access::Read), Just(Access::Write), Just(Access::ReadWrite)];
    let one = (0u64..3, 0usize..12, 1usize..6, access)
        .prop_map(|(allocation, start, len, access)| used(allocation, start..start + len, access));
    let plan = (
        prop::collection::vec(one, 0..4),
        prop::bool::weighted(0.05),
        prop::bool::weighted(0.3),
        prop::bool::weighted(0.4),
        prop::option::weighted(0.1, any::<prop::sample::Index>()),
    )
        .prop_map(|(uses, fails, has_precondition, is_unfit, after)| Plan {
            uses,
            fails,
            has_precondition,
            is_unfit: has_precondition && is_unfit,
            after,
        });
    prop::collection::vec(plan, 1..40)
}

fn conflict(a: &[Use], b: &[Use]) -> bool {
    a.iter().any(|a| {
        b.iter().any(|b| {
            a.allocation == b.allocation
                && a.bytes.start < b.bytes.end
                && b.bytes.start < a.bytes.end
                && (a.access != Access::Read || b.access != Access::Read)
        })
    })
}

/// Returns the earlier commands whose failure must fail a command: for each byte that it reads, the last writer.
fn sources(plans: &[Plan], of: usize) -> HashSet<usize> {
    let reads = plans[of].uses.iter().filter(|used| used.access != Access::Write);
    let bytes = reads.flat_map(|used| used.bytes.clone().map(|byte| (used.allocation, byte)));
    let writes = |plan: &Plan, at: (u64, usize)| {
        plan.uses.iter().any(|used| {
            used.allocation == at.0 && used.bytes.contains(&at.1) && used.access != Access::Read
        })
    };
    bytes.filter_map(|at| (0..of).rev().find(|&earlier| writes(&plans[earlier], at))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// In whatever order commands are dispatched and end, two conflicting commands never swap, every
    /// command ends exactly once, and exactly the expected commands fail.
    #[test]
    fn any_order_of_ends_keeps_the_order_of_conflicts(
        plans in plans(),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 256),
    ) {
        let (mut dag, mut next) = (Dag::new(uses_of), NextList::new());
        let mut picks = picks.into_iter().cycle();
        let mut ids: Vec<NodeId> = Vec::new();
        let mut preconditions = Vec::new();
        let mut running: Vec<usize> = Vec::new();
        let mut dispatched = vec![false; plans.len()];
        let mut outcome: Vec<Option<bool>> = vec![None; plans.len()];
        let mut submitted = 0;
        while submitted < plans.len() || !running.is_empty() || !preconditions.is_empty() {
            let pick = picks.next().expect("a cycle never ends");
            match pick.index(3) {
                0 if submitted < plans.len() => {
                    let plan = &plans[submitted];
                    let after = plan.after.filter(|_| submitted > 0);
                    let after = after.map(|index| index.index(submitted));
                    let poison = after
                        .filter(|&number| outcome[number] == Some(false))
                        .map(|_| Poison { root: failure(), reason: SkipReason::After });
                    let edges = after
                        .filter(|&number| outcome[number].is_none())
                        .map(|number| (ids[number], EdgeKind::After));
                    let command = (submitted, plan.uses.clone());
                    let id = dag.add(
                        command,
                        &[&plan.uses],
                        edges,
                        u32::from(plan.has_precondition),
                        poison,
                        &mut next,
                    );
                    ids.push(id);
                    if plan.has_precondition {
                        preconditions.push(id);
                    }
                    submitted += 1;
                }
                1 if !preconditions.is_empty() => {
                    let id = preconditions.swap_remove(pick.index(preconditions.len()));
                    match dag.command(id) {
                        Some(command) if plans[command.0].is_unfit => {
                            dag.poison(id, failure(), SkipReason::NotRun, &mut next);
                        }
                        _ => dag.meet_precondition(id, &mut next),
                    }
                }
                _ if !running.is_empty() => {
                    // Any command without dependencies may end: the device keeps the order of edges.
                    let is_free = |&number: &usize| dag.dependencies(ids[number]).next().is_none();
                    let free: Vec<_> = running.iter().copied().filter(is_free).collect();
                    let number = free[pick.index(free.len())];
                    running.retain(|&n| n != number);
                    let result = if plans[number].fails { Err(failure()) } else { Ok(()) };
                    let ended = dag.complete(ids[number], result, &mut next);
                    prop_assert_eq!(ended.command.0, number);
                    prop_assert!(outcome[number].replace(ended.outcome.is_ok()).is_none());
                }
                _ => {}
            }
            let mut at = 0;
            while let Some(&step) = next.get(at) {
                at += 1;
                match step {
                    Next::Dispatch(id) => {
                        if !dag.can_dispatch(id) {
                            continue;
                        }
                        let number = dag.command(id).expect("it exists").0;
                        for earlier in 0..number {
                            if conflict(&plans[earlier].uses, &plans[number].uses) {
                                prop_assert!(
                                    outcome[earlier].is_some() || dispatched[earlier],
                                    "{} before {}",
                                    number,
                                    earlier
                                );
                            }
                        }
                        prop_assert!(!std::mem::replace(&mut dispatched[number], true));
                        running.push(number);
                        dag.set_dispatched(id, &mut next);
                    }
                    Next::Fail(id) => {
                        let ended = dag.complete(id, Ok(()), &mut next);
                        prop_assert!(ended.outcome.is_err());
                        prop_assert!(outcome[ended.command.0].replace(false).is_none());
                    }
                }
            }
            next.clear();
        }
        for number in 0..plans.len() {
            let mut sources = sources(&plans, number);
            let after = plans[number].after.filter(|_| number > 0);
            sources.extend(after.map(|index| index.index(number)));
            let source_failed = sources.iter().any(|&source| outcome[source] == Some(false));
            let fails = plans[number].fails || plans[number].is_unfit || source_failed;
            prop_assert_eq!(outcome[number], Some(!fails), "command {}", number);
        }
    }
}
