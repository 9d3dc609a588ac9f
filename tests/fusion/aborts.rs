//! Commands from outside that depend on the launches of a fusion scope: every kind of command occurs in every
//! state of a scope, and the results equal those of the order of submission.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use std::sync::Barrier;

use kiln::fusion::{FusionOutcome, Unfused};
use kiln::{Buffer, Event, FusionScope, Runtime};
use support::everywhere;
use support::scopes::{Chain, always};

const N: usize = 64;

/// A command from outside. It uses the buffer that the scope's latest launch writes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outside {
    Read,
    Write,
    Fill,
    CopyFrom,
    CopyTo,
    Launch,
    LaunchElsewhere,
    LaunchAfter,
    HostTask,
    Marker,
    Drain,
    Await,
    Wait,
    OtherScope,
}

const OUTSIDE: [Outside; 14] = [
    Outside::Read,
    Outside::Write,
    Outside::Fill,
    Outside::CopyFrom,
    Outside::CopyTo,
    Outside::Launch,
    Outside::LaunchElsewhere,
    Outside::LaunchAfter,
    Outside::HostTask,
    Outside::Marker,
    Outside::Drain,
    Outside::Await,
    Outside::Wait,
    Outside::OtherScope,
];

/// State of the scope when the command is submitted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Before the second of two launches.
    Between,
    /// After both.
    Collected,
    /// After both, and after another command has aborted the scope.
    Aborted,
    /// Right after the call of `complete`, which may not have decided.
    Completing,
    /// After `complete` has returned that the launches run as one kernel.
    Fused,
    Canceled,
    Dropped,
}

const STATES: [State; 7] = [
    State::Between,
    State::Collected,
    State::Aborted,
    State::Completing,
    State::Fused,
    State::Canceled,
    State::Dropped,
];

fn numbers() -> Vec<f32> {
    (0..N).map(|n| n as f32 - 10.0).collect()
}

async fn chain(rt: &Runtime) -> Chain {
    Chain::new(rt, numbers(), 2.0).await
}

struct Setting {
    rt: Runtime,
    chain: Chain,
    other: Buffer<f32>,
}

impl Setting {
    async fn new(rt: &Runtime) -> Self {
        let other = rt.buffer_from(vec![5.0; N]).await.expect("there is room");
        Self { rt: rt.clone(), chain: chain(rt).await, other }
    }

    /// Submits the command for the buffer that `event`'s launch writes. Returns the buffer's expected contents.
    async fn apply(
        &self,
        outside: Outside,
        buffer: &Buffer<f32>,
        event: &Event,
        before: Vec<f32>,
    ) -> Vec<f32> {
        let Self { rt, chain: Chain { queue, in_place, .. }, other } = self;
        let squares = || before.iter().map(|n| n * n).collect();
        match outside {
            Outside::Read => {
                assert_eq!(queue.read(buffer).await.unwrap(), before);
                before
            }
            Outside::Write => {
                queue.write(buffer, vec![3.0; N]).unwrap();
                vec![3.0; N]
            }
            Outside::Fill => {
                queue.fill(buffer, 4.0).unwrap();
                vec![4.0; N]
            }
            Outside::CopyFrom => {
                queue.copy(buffer, other).unwrap();
                before
            }
            Outside::CopyTo => {
                queue.copy(other, buffer).unwrap();
                vec![5.0; N]
            }
            Outside::Launch => {
                queue.submit(in_place.launch(N).args((buffer,))).unwrap();
                squares()
            }
            Outside::LaunchElsewhere => {
                rt.queue().submit(in_place.launch(N).args((buffer,))).unwrap();
                squares()
            }
            Outside::LaunchAfter => {
                queue.submit(in_place.launch(N).args((other,)).after(event)).unwrap();
                before
            }
            Outside::HostTask => {
                queue.host_task(event.clone()).unwrap().await.unwrap();
                before
            }
            Outside::Marker => {
                queue.marker().unwrap().await.unwrap();
                before
            }
            Outside::Drain => {
                rt.drain().await;
                before
            }
            Outside::Await => {
                event.clone().await.unwrap();
                before
            }
            Outside::Wait => {
                event.wait().unwrap();
                before
            }
            Outside::OtherScope => {
                let scope = rt.queue().start_fusion();
                scope.submit(in_place.launch(N).args((buffer,))).unwrap();
                assert!(scope.is_fusing(), "only the scope that is depended on is aborted");
                assert!(!scope.complete().await.unwrap().is_fused());
                squares()
            }
        }
    }
}

async fn check(rt: &Runtime, outside: Outside, state: State) {
    let case = format!("{outside:?} {state:?}");
    let setting = Setting::new(rt).await;
    let chain = &setting.chain;
    let scope = chain.queue.start_fusion();
    let first = chain.first(&scope);
    let doubled = chain.scaled();
    if state == State::Between {
        let tmp = setting.apply(outside, &chain.tmp, &first, doubled).await;
        assert!(!scope.is_fusing(), "{case}");
        let second = chain.second(&scope);
        assert_aborted(&scope.complete().await.unwrap(), &case);
        second.await.unwrap();
        let expected: Vec<_> = tmp.iter().map(|n| n + 1.0).collect();
        assert_eq!(chain.queue.read(&chain.tmp).await.unwrap(), tmp, "{case}");
        assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), expected, "{case}");
        return;
    }
    let second = chain.second(&scope);
    let mut scope = Some(scope);
    let mut completing = None;
    match state {
        State::Between | State::Collected => {}
        State::Aborted => {
            assert_eq!(chain.queue.read(&chain.tmp).await.unwrap(), doubled, "{case}");
        }
        State::Completing => completing = scope.as_ref().map(FusionScope::complete),
        State::Fused => {
            let outcome = scope.as_ref().map(FusionScope::complete).unwrap().await.unwrap();
            assert!(outcome.is_fused(), "{case}: {outcome}");
        }
        State::Canceled => scope.as_ref().unwrap().cancel(),
        State::Dropped => scope = None,
    }
    let expected = setting.apply(outside, &chain.dst, &second, chain.result()).await;
    if let Some(completing) = completing {
        assert!(completing.await.unwrap().is_fused(), "{case}");
    } else if let Some(scope) = scope {
        let outcome = scope.complete().await.unwrap();
        match state {
            State::Collected | State::Aborted => assert_aborted(&outcome, &case),
            _ => assert!(
                matches!(outcome, FusionOutcome::Unfused { why: Unfused::Canceled, .. }),
                "{case}: {outcome}"
            ),
        }
    }
    assert_eq!(chain.queue.read(&chain.tmp).await.unwrap(), doubled, "{case}");
    assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), expected, "{case}");
    first.await.unwrap();
    second.await.unwrap();
    assert_eq!(setting.rt.stats().commands.failed, 0, "{case}");
}

fn assert_aborted(outcome: &FusionOutcome, case: &str) {
    match outcome {
        FusionOutcome::Unfused { why: Unfused::Aborted(why), .. } => {
            assert!(why.contains("`scale`") || why.contains("`offset`"), "{case}: {why}");
        }
        other => panic!("{case}: {other}"),
    }
}

everywhere! {
    async fn commands_that_depend_on_a_scope_get_its_results(rt: Runtime) {
        let rt = always(&rt).await;
        for outside in OUTSIDE {
            for state in STATES {
                check(&rt, outside, state).await;
            }
        }
    }
}

everywhere! {
    async fn independent_commands_do_not_abort_a_scope(rt: Runtime) {
        let rt = always(&rt).await;
        let setting = Setting::new(&rt).await;
        let Setting { chain, other, .. } = &setting;
        let queue = &chain.queue;
        let (scope, [_, second]) = chain.begin();
        // Reads of memory that the scope only reads, and commands on other memory.
        assert_eq!(queue.read(&chain.src).await.unwrap(), numbers());
        queue.fill(other, 1.0).unwrap().await.unwrap();
        queue.submit(chain.in_place.launch(N).args((other,))).unwrap();
        rt.queue().marker().unwrap().await.unwrap();
        assert!(scope.is_fusing());
        let outcome = scope.complete().await.unwrap();
        assert!(outcome.is_fused(), "{outcome}");
        second.await.unwrap();
    }
}

everywhere! {
    async fn scopes_of_several_queues_collect_launches_at_the_same_time(rt: Runtime) {
        let rt = always(&rt).await;
        let chains = [chain(&rt).await, chain(&rt).await];
        let scopes = chains.each_ref().map(|chain| chain.queue.start_fusion());
        chains.iter().zip(&scopes).for_each(|(chain, scope)| drop(chain.first(scope)));
        chains.iter().zip(&scopes).for_each(|(chain, scope)| drop(chain.second(scope)));
        for (chain, scope) in chains.iter().zip(&scopes) {
            assert!(scope.complete().await.unwrap().is_fused());
            assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), chain.result());
        }
    }
}

everywhere! {
    async fn a_host_future_can_await_a_launch_of_its_own_scope(rt: Runtime) {
        let rt = always(&rt).await;
        let chain = chain(&rt).await;
        let scope = chain.queue.start_fusion();
        let first = chain.first(&scope);
        let (release, released) = futures::channel::oneshot::channel::<()>();
        let future = async move {
            let _ = released.await;
            first.await
        };
        let offset = chain.offset.launch(N).args((&chain.tmp, &chain.dst, 1.0f32));
        let second = scope.submit(offset.after_future(future)).unwrap();
        let outcome = scope.complete().await.unwrap();
        let refused = matches!(&outcome, FusionOutcome::Unfused { why: Unfused::Refused(why), .. }
            if why.contains("host future"));
        assert!(refused, "{outcome}");
        release.send(()).unwrap();
        second.await.unwrap();
    }
}

everywhere! {
    async fn launches_and_output_buffers_of_a_discarded_scope_fail(rt: Runtime) {
        let chain = chain(&rt).await;
        let (scope, events) = chain.begin();
        scope.discard();
        assert!(!scope.is_fusing() && !chain.queue.is_fusing());
        for event in events {
            let error = event.await.expect_err("it never runs");
            assert!(error.to_string().contains("discarded"), "{error}");
        }
        let error = chain.queue.read(&chain.dst).await.expect_err("nothing was written");
        assert!(error.to_string().contains("discarded"), "{error}");
        assert!(chain.queue.read(&chain.src).await.is_ok(), "it was only read");
        let (offset, dst) = (&chain.offset, &chain.dst);
        let late = scope.submit(offset.launch(N).args((&chain.src, dst, 1.0f32)));
        assert!(late.expect_err("it has ended").to_string().contains("discarded"));
        chain.queue.fill(dst, 7.0).unwrap();
        assert_eq!(chain.queue.read(dst).await.unwrap(), [7.0; N]);
        rt.drain().await;
    }
}

everywhere! {
    async fn launches_submitted_during_a_concurrent_discard_do_not_run(rt: Runtime) {
        let chain = chain(&rt).await;
        for _ in 0..150 {
            chain.queue.fill(&chain.dst, 2.0).unwrap();
            let scope = chain.queue.start_fusion();
            let start = Barrier::new(2);
            let events: Vec<_> = std::thread::scope(|threads| {
                threads.spawn(|| {
                    start.wait();
                    scope.discard();
                });
                start.wait();
                let launch = || scope.submit(chain.in_place.launch(N).args((&chain.dst,)));
                std::iter::from_fn(|| launch().ok()).collect()
            });
            let fails = chain.queue.read(&chain.dst).await.is_err();
            assert_eq!(fails, !events.is_empty());
            for event in events {
                let error = event.await.expect_err("it never runs");
                assert!(error.to_string().contains("discarded"), "{error}");
            }
        }
    }
}

everywhere! {
    async fn each_scope_is_counted_once_as_canceled_or_aborted(rt: Runtime) {
        let rt = always(&rt).await;
        let ends: [fn(FusionScope); 3] = [drop, |scope| scope.discard(), |scope| {
            scope.cancel();
            drop(scope.complete());
        }];
        for is_aborted in [false, true] {
            let before = rt.stats();
            for end in ends {
                let chain = chain(&rt).await;
                let (scope, [first, _]) = chain.begin();
                if is_aborted {
                    first.await.unwrap();
                }
                end(scope);
            }
            let after = rt.stats();
            let canceled = after.fusion.canceled - before.fusion.canceled;
            let aborted = after.fusion.aborted - before.fusion.aborted;
            assert_eq!([canceled, aborted], if is_aborted { [0, 3] } else { [3, 0] });
        }
        rt.drain().await;
    }
}

everywhere! {
    async fn discarding_an_aborted_scope_does_not_affect_its_launches(rt: Runtime) {
        let chain = chain(&rt).await;
        let (scope, [first, second]) = chain.begin();
        first.await.unwrap(); // Aborts the scope.
        scope.discard();
        second.await.unwrap();
        assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), chain.result());
    }
}
