//! Remote cache: programs shared between the machines of a fleet through an existing storage service.
//!
//! The remote cache is the level below the [disk](crate::cache::store): programs that are neither in memory nor
//! on disk are looked up in the service, and programs built here are added to it in the background. The service
//! is Redis, S3, WebDAV or a directory, each with a feature of its own, or any other service that Apache
//! OpenDAL accesses, with the feature `remote-opendal`.
#![doc = include_str!("../../docs/fleet.md")]

mod answer;
mod breaker;
mod claim;
mod claim_record;
mod envelope;
#[cfg_attr(
    not(any(feature = "remote-opendal", feature = "remote-redis")),
    expect(dead_code, reason = "no service is built in")
)]
mod error_source;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod latency;
mod locate;
#[cfg_attr(
    not(any(feature = "remote-opendal", feature = "remote-redis")),
    expect(dead_code, reason = "no service is built in")
)]
mod objects;
#[cfg(feature = "remote-opendal")]
pub mod opendal;
#[cfg(feature = "remote-redis")]
mod redis;
mod service;
mod settings;
mod store;
mod tier;
#[cfg_attr(
    not(any(
        feature = "remote-redis",
        feature = "remote-fs",
        feature = "remote-s3",
        feature = "remote-webdav"
    )),
    expect(dead_code, reason = "no service is built in")
)]
mod url;
mod worker;

pub use self::envelope::Refused;
pub use self::settings::RemoteAccess;
pub use self::store::{GetEntry, ListNames, PutEntry, RemoteStore, Sent};

pub(crate) use self::answer::{Answer, PendingResponse, Response};
pub(crate) use self::claim::{AnswerWait, Claim, longest_wait};
pub(crate) use self::envelope::Secret;
pub(crate) use self::settings::Settings;
pub(crate) use self::tier::Remote;
