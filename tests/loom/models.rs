//! Loom models of the signal that a command's waiters sleep on and of the mailbox of the reactor, under
//! every interleaving of the threads that use them.
//!
//! They are a separate package, so that `--cfg kiln_loom` affects only the modelled file. Run them with
//! `make loom`.

#![cfg(all(test, kiln_loom))]

#[expect(dead_code, reason = "the models need not all of it")]
#[path = "../../src/queue/completion.rs"]
mod completion;

use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use loom::future::block_on;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering::SeqCst};
use loom::thread;

use completion::{Fired, Mailbox, Phase, Signal, Urgency, WaiterSlot, Wakers};

fn wait(signal: &Signal) {
    let mut slot = WaiterSlot::default();
    block_on(poll_fn(|context| match signal.register(&mut slot, context.waker()) {
        Phase::Pending => Poll::Pending,
        Phase::Fired | Phase::Settled => Poll::Ready(()),
    }));
    drop(signal.leave(&mut slot));
}

/// Acts as the driver's callback, and as the reactor if the callback cannot wake the waiter.
fn call_back(signal: &Signal) {
    match signal.fire(true) {
        Fired::Waiter(waker) => waker.wake(),
        Fired::Busy | Fired::NoWaiter => settle(signal),
        Fired::Late => {}
    }
}

fn settle(signal: &Signal) {
    let mut wakers = Wakers::new();
    let _ = signal.settle(&mut wakers);
    wakers.into_iter().for_each(Waker::wake);
}

#[test]
fn the_first_waiter_sees_the_callback() {
    loom::model(|| {
        let signal = Arc::new(Signal::new());
        let driver = thread::spawn({
            let signal = signal.clone();
            move || call_back(&signal)
        });
        wait(&signal);
        driver.join().expect("the driver does not panic");
    });
}

#[test]
fn a_later_waiter_sees_the_settlement() {
    loom::model(|| {
        let signal = Arc::new(Signal::new());
        let mut first = WaiterSlot::default();
        let _ = signal.register(&mut first, Waker::noop());
        let reactor = thread::spawn({
            let signal = signal.clone();
            move || settle(&signal)
        });
        wait(&signal);
        reactor.join().expect("the reactor does not panic");
    });
}

#[test]
fn a_waiter_that_leaves_does_not_consume_the_wake_up_of_another() {
    loom::model(|| {
        let signal = Arc::new(Signal::new());
        let mut first = WaiterSlot::default();
        let _ = signal.register(&mut first, Waker::noop());
        let driver = thread::spawn({
            let signal = signal.clone();
            move || {
                call_back(&signal);
                settle(&signal);
            }
        });
        drop(signal.leave(&mut first));
        wait(&signal);
        driver.join().expect("the driver does not panic");
    });
}

#[test]
fn a_callback_never_undoes_a_settlement() {
    loom::model(|| {
        let signal = Arc::new(Signal::new());
        let driver = thread::spawn({
            let signal = signal.clone();
            move || signal.fire(true)
        });
        let called_back = signal.settle(&mut Wakers::new());
        let fired = driver.join().expect("the driver does not panic");
        assert_eq!(signal.phase(), Phase::Settled);
        assert_eq!(called_back, !matches!(fired, Fired::Late));
    });
}

#[test]
fn the_reactor_gets_every_urgent_post() {
    loom::model(|| {
        let mailbox = Arc::new(Mailbox::new());
        let driver = thread::spawn({
            let mailbox = mailbox.clone();
            move || mailbox.post(1, Urgency::Now)
        });
        let post = loop {
            if let Some(post) = mailbox.take() {
                break post;
            }
            mailbox.doze(Duration::ZERO);
        };
        assert_eq!(post, 1);
        driver.join().expect("the driver does not panic");
    });
}

#[test]
fn new_work_ends_a_sleep_without_limit() {
    loom::model(|| {
        let mailbox = Arc::new(Mailbox::<u8>::new());
        let work = Arc::new(AtomicBool::new(false));
        let submitter = thread::spawn({
            let (mailbox, work) = (mailbox.clone(), work.clone());
            move || {
                work.swap(true, SeqCst);
                mailbox.wake();
            }
        });
        // A read-modify-write instead of a load, as in `latest`.
        let has_work = || work.fetch_or(false, SeqCst);
        while !has_work() {
            mailbox.sleep_unless(has_work);
        }
        submitter.join().expect("the submitter does not panic");
    });
}
