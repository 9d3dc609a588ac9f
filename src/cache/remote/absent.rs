//! Stand-in for the remote cache in builds without the feature `remote`. Its types have no values.
#![expect(dead_code, reason = "nothing constructs or uses types that have no values")]

#[path = "answer.rs"]
mod answer;
#[path = "claim.rs"]
mod claim;

use std::convert::Infallible;
use std::future::Ready;
use std::time::Duration;

use crate::cache::store::{Address, Pending};

pub(crate) use self::answer::{Answer, PendingResponse, Response};
pub(crate) use self::claim::{AnswerWait, Claim, longest_wait};

#[derive(Clone, Debug)]
pub(crate) struct Remote(Infallible);

pub(crate) struct RemoteLookup(Infallible);

impl RemoteLookup {
    pub(crate) async fn response(self) -> Response {
        match self.0 {}
    }
}

impl Remote {
    pub(crate) fn is_read(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn lookup(&self, _: &Address, _: Option<Duration>) -> Option<RemoteLookup> {
        match self.0 {}
    }

    pub(crate) fn look_again(&self, _: &Address, _: Duration) -> Option<RemoteLookup> {
        match self.0 {}
    }

    pub(crate) async fn claim(&self, _: &Address, _: Option<Duration>, _: AnswerWait) -> Claim {
        match self.0 {}
    }

    pub(crate) fn end_claim(&self, _: &Address) {
        match self.0 {}
    }

    pub(crate) fn put(&self, _: &Address, _: Vec<u8>, _: Option<PendingResponse>) {
        match self.0 {}
    }

    pub(crate) fn refused(&self, _: &Address, _: &str) {
        match self.0 {}
    }

    pub(crate) fn begin(&self) -> Pending {
        match self.0 {}
    }

    pub(crate) fn settled(&self) -> Ready<()> {
        match self.0 {}
    }
}
