//! The handle of the reactor, and the requests to it. The [thread](super::reactor_thread) serves them.

use std::sync::{Arc, Mutex};

use super::command::Command;
use super::completion::{Mailbox, Urgency};
use super::record::{Owner, Record};
use super::work::Work;
use crate::args::region::Freed;
use crate::sync::lock;

/// Request to the reactor.
pub(crate) enum Post {
    /// Check the command: its callback has come, or its handle is awaited.
    Check(Arc<Record>),
    /// Handle the callback of a command that was settled before it came.
    Late(Arc<Record>),
    /// Drop these, with the host memory and the programs that they kept alive.
    Drop(Vec<Command>, Vec<Work>),
    /// Offer free places of a scheduler to the producers that wait for one.
    Offer(Owner),
    /// Free the device memory that only ended commands held.
    Free(Arc<Freed>),
    /// End the thread.
    Close,
}

/// Handle of the reactor thread, which ends when the handle is dropped. Every scheduler holds it, so
/// the thread outlives every command in flight.
pub(crate) struct Reactor {
    mailbox: Arc<Mailbox<Post>>,
    schedulers: Arc<Mutex<Vec<Owner>>>,
}

impl Reactor {
    /// Creates the handle of a thread that is to be started.
    pub(super) fn new() -> Self {
        Self { mailbox: Arc::new(Mailbox::new()), schedulers: Arc::default() }
    }

    /// Returns the schedulers that were added. They may have been dropped since.
    pub(super) fn schedulers(&self) -> &Arc<Mutex<Vec<Owner>>> {
        &self.schedulers
    }

    /// Adds a scheduler whose commands the reactor manages.
    pub(crate) fn add_scheduler(&self, scheduler: Owner) {
        let mut schedulers = lock(&self.schedulers);
        schedulers.retain(|known| known.strong_count() > 0);
        schedulers.push(scheduler);
    }

    pub(crate) fn mailbox(&self) -> &Arc<Mailbox<Post>> {
        &self.mailbox
    }

    pub(crate) fn post(&self, post: Post, urgency: Urgency) {
        self.mailbox.post(post, urgency);
    }

    /// Reports that a command was submitted: the reactor must not sleep without limit.
    pub(crate) fn wake(&self) {
        self.mailbox.wake();
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.mailbox.post(Post::Close, Urgency::Now);
    }
}
