//! Memory of the host that commands read and write: its owners are of any kind, nothing is copied on the way, and
//! memory that the caller gives is used again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures::executor::block_on;
use futures::{Stream, StreamExt, TryStreamExt};
use kiln::simulated::{Fault, Simulator};
use kiln::{ErrorKind, Runtime};
use support::simulation::{eventually, runtime};

/// Number of elements that a transfer worker moves in several pieces.
const LARGE: usize = (9 << 20) + 5;

/// Runs `test` with simulated devices of both kinds, and with every real device.
fn everywhere(test: impl AsyncFn(Runtime)) {
    block_on(async {
        for simulator in [Simulator::new(), Simulator::immediate()] {
            test(runtime(&simulator).await).await;
        }
        support::on_each_device(test).await;
    });
}

/// Owner of elements that reports when it is dropped, and panics then if it has to.
struct Owner {
    elements: [u32; 4],
    dropped: mpsc::Sender<()>,
    panics: bool,
}

impl AsRef<[u32]> for Owner {
    fn as_ref(&self) -> &[u32] {
        &self.elements
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.dropped.send(());
        assert!(!self.panics, "the owner's own panic");
    }
}

/// Owner that lends other elements whenever it is asked.
struct Changing {
    asked: AtomicUsize,
    elements: Vec<u32>,
}

impl AsRef<[u32]> for Changing {
    fn as_ref(&self) -> &[u32] {
        &self.elements[self.asked.fetch_add(1, SeqCst)..]
    }
}

#[test]
fn elements_may_have_any_owner() {
    everywhere(async |rt| {
        static ELEMENTS: [u32; 3] = [1, 2, 3];
        let queue = rt.queue();
        let shared: Arc<[u32]> = Arc::from(vec![4, 5, 6]);
        let buffers = [
            rt.buffer_from(vec![1, 2, 3]).await.unwrap(),
            rt.buffer_from(&ELEMENTS[..]).await.unwrap(),
            rt.buffer_from([1, 2, 3]).await.unwrap(),
            rt.buffer_from(Box::<[u32]>::from([1, 2, 3])).await.unwrap(),
        ];
        for buffer in &buffers {
            assert_eq!(queue.read(buffer).await.unwrap(), [1, 2, 3]);
            let written = queue.write(buffer, shared.clone()).unwrap();
            assert_eq!(queue.read(buffer).await.unwrap(), [4, 5, 6]);
            written.await.unwrap();
        }
        rt.drain().await;
        eventually("owners are dropped", || Arc::strong_count(&shared) == 1);
    });
}

#[test]
fn large_elements_of_an_owner_arrive() {
    everywhere(async |rt| {
        let elements: Arc<[u8]> = (0..LARGE).map(|at| (at % 251) as u8).collect();
        let buffer = rt.buffer_from(elements.clone()).await.unwrap();
        assert!(rt.queue().read(&buffer).await.unwrap() == *elements);
    });
}

#[test]
fn an_owner_is_asked_for_its_elements_once() {
    everywhere(async |rt| {
        let owner = Changing { asked: AtomicUsize::new(0), elements: vec![7, 8, 9] };
        let buffer = rt.buffer_from(owner).await.unwrap();
        assert_eq!(rt.queue().read(&buffer).await.unwrap(), [7, 8, 9]);
    });
}

#[test]
fn an_owner_that_panics_when_it_is_dropped_harms_nobody() {
    everywhere(async |rt| {
        let (dropped, drops) = mpsc::channel();
        for panics in [true, false] {
            let owner = Owner { elements: [1, 2, 3, 4], dropped: dropped.clone(), panics };
            let buffer = rt.buffer_from(owner).await.unwrap();
            assert_eq!(rt.queue().read(&buffer).await.unwrap(), [1, 2, 3, 4]);
            rt.drain().await;
            drops.recv_timeout(Duration::from_secs(30)).expect("the owner is dropped");
        }
    });
}

#[test]
fn a_write_of_another_length_drops_its_owner_at_once() {
    everywhere(async |rt| {
        let (dropped, drops) = mpsc::channel();
        let owner = Owner { elements: [0; 4], dropped, panics: false };
        let error = rt.queue().write(&rt.buffer(5).unwrap(), owner).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("4 elements to a buffer of 5"), "{error}");
        drops.try_recv().expect("the owner is dropped");
    });
}

#[test]
fn reads_use_the_memory_of_the_caller() {
    everywhere(async |rt| {
        let queue = rt.queue();
        let buffer = rt.buffer_from(vec![0u32; 1000]).await.unwrap();
        let mut elements = Vec::with_capacity(1000);
        let memory = elements.as_ptr();
        for round in 0..100 {
            queue.fill(&buffer, round).unwrap().await.unwrap();
            elements = queue.read_into(&buffer, elements).await.unwrap();
            assert_eq!(elements, [round; 1000]);
            assert_eq!(elements.as_ptr(), memory, "no other memory is used");
        }
        let part = buffer.slice(..10).unwrap();
        elements = queue.read_into(&part, elements).await.unwrap();
        assert_eq!((&elements[..], elements.as_ptr()), (&[99; 10][..], memory));
        let small = queue.read_into(&buffer, vec![7; 3]).await.unwrap();
        assert_eq!(small, [99; 1000], "a vector that is too small grows");
    });
}

#[test]
fn pieces_are_those_of_the_buffer_at_the_time_of_the_call() {
    everywhere(async |rt| {
        let queue = rt.queue();
        let elements: Vec<u32> = (0..1000).collect();
        let buffer = rt.buffer_from(elements.clone()).await.unwrap();
        for len in [1, 7, 250, 999, 1000, 1001, usize::MAX] {
            queue.write(&buffer, elements.clone()).unwrap();
            let pieces = queue.read_pieces(&buffer, len);
            assert_eq!(pieces.size_hint().1, Some(1000usize.div_ceil(len)));
            queue.fill(&buffer, 5).unwrap();
            let pieces: Vec<Vec<u32>> = pieces.try_collect().await.unwrap();
            let expected: Vec<_> = elements.chunks(len).collect();
            assert_eq!(pieces, expected, "in pieces of {len}");
        }
    });
}

#[test]
fn a_stream_of_pieces_can_be_dropped() {
    everywhere(async |rt| {
        let buffer = rt.buffer_from((0..1000u32).collect::<Vec<_>>()).await.unwrap();
        let mut pieces = rt.queue().read_pieces(&buffer, 100);
        assert_eq!(pieces.next().await.unwrap().unwrap()[..3], [0, 1, 2]);
        drop(pieces);
        rt.drain().await;
    });
}

#[test]
fn pieces_without_elements_are_an_error() {
    everywhere(async |rt| {
        let mut pieces = rt.queue().read_pieces(&rt.buffer::<u32>(4).unwrap(), 0);
        let error = pieces.next().await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(pieces.next().await.is_none());
    });
}

#[test]
fn a_stream_of_pieces_ends_after_a_failure() {
    let simulator = Simulator::new();
    block_on(async {
        let rt = runtime(&simulator).await;
        let buffer = rt.buffer_from(vec![1u32; 300]).await.unwrap();
        simulator.fail_enqueues(1, Fault::Refused);
        let pieces: Vec<_> = rt.queue().read_pieces(&buffer, 100).collect().await;
        assert!(pieces.last().unwrap().is_err(), "{pieces:?}");
        assert_eq!(pieces.iter().filter(|piece| piece.is_err()).count(), 1, "{pieces:?}");
    });
}
