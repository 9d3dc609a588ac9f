//! A remote cache as seen from outside, as the `kiln` explorer does.

use super::envelope::{Refused, TRAILER};
use super::service::Found;
use super::settings::RemoteAccess;
use super::tier::Remote;
use crate::cache::store::{Address, Entry};
use crate::error::{Error, ErrorKind, Result};
use crate::future::named_future;

/// A remote cache, to look into it and to move entries there and back: from
/// [`CacheConfig::open_remote`](crate::CacheConfig::open_remote).
///
/// What its methods give are futures for any executor. They ask the service whatever it did
/// before, try again where that may help, and end within a few of its
/// [time-outs](crate::CacheConfig::remote_timeout) without progress.
#[derive(Clone, Debug)]
pub struct RemoteStore(Remote);

/// What a remote cache has under a name.
#[derive(Debug)]
#[non_exhaustive]
pub enum Sent {
    /// The entry, verified.
    Whole(Entry),
    /// Nothing.
    Absent,
    /// Something that is not used.
    Refused(Refused),
}

named_future! {
    /// An entry on its way: from [`RemoteStore::get`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing but the answer.
    Getting => Result<Sent>
}

named_future! {
    /// An entry on its way there: from [`RemoteStore::put`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves open whether the entry arrives, whole if it does.
    Putting => Result<()>
}

named_future! {
    /// Names on their way: from [`RemoteStore::names`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing but the answer.
    Naming => Result<Vec<String>>
}

impl RemoteStore {
    pub(crate) fn new(remote: Remote) -> Self {
        Self(remote)
    }

    /// Its address, without what is secret.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.service().name
    }

    /// What may be done with it.
    #[must_use]
    pub fn access(&self) -> RemoteAccess {
        self.0.service().settings.access
    }

    /// Whether a secret is set, so that only authenticated entries are taken.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.0.service().settings.secret.is_some()
    }

    /// Asks for the entry of a [name](crate::cache::store::EntryInfo::name), with one request.
    ///
    /// # Errors
    ///
    /// From the future: [`InvalidArgument`](ErrorKind::InvalidArgument) if entries are not named
    /// like that, [`Configuration`](ErrorKind::Configuration) if it may only be written, and
    /// [`Io`](ErrorKind::Io) if it cannot be read.
    pub fn get(&self, name: &str) -> Getting {
        let asked = self.allowed(RemoteAccess::reads, "read").and_then(|()| Address::named(name));
        let asked = asked
            .map(|address| self.0.run(move |service| async move { service.read(&address).await }));
        Getting::new(async move {
            Ok(match asked?.await? {
                Found::Entry(entry) => Sent::Whole(entry),
                Found::Nothing => Sent::Absent,
                Found::Refused(refused) => Sent::Refused(refused),
            })
        })
    }

    /// Writes an entry under its [name](crate::cache::store::EntryInfo::name), in the place of what is
    /// there.
    ///
    /// # Errors
    ///
    /// From the future: [`InvalidArgument`](ErrorKind::InvalidArgument) if it is not the name of
    /// this entry, or the entry is too large; [`Configuration`](ErrorKind::Configuration) if it may
    /// only be read, and [`Io`](ErrorKind::Io) if it cannot be written.
    pub fn put(&self, name: &str, entry: &Entry) -> Putting {
        let address = self.allowed(RemoteAccess::writes, "written").and_then(|()| {
            let (bytes, most) = (entry.bytes().len(), self.0.service().settings.most_bytes);
            let address = Address::named(name)?;
            if address.key != entry.key() {
                return Err(Error::invalid(format!(
                    "{name:?} is not the name of the entry of {}",
                    entry.key()
                )));
            }
            if (bytes + TRAILER) as u64 > most {
                return Err(Error::invalid(format!(
                    "the entry has {bytes} bytes, and no object may have more than {most}"
                )));
            }
            Ok(address)
        });
        let file = entry.bytes().to_vec();
        let put = address.map(|address| {
            self.0.run(move |service| async move { service.write(&address, file).await })
        });
        Putting::new(async move { put?.await.map(drop) })
    }

    /// Lists the [names](crate::cache::store::EntryInfo::name) of all entries, in no order. `None` of a
    /// service that cannot be listed, such as Redis.
    ///
    /// # Errors
    ///
    /// From the future: [`Io`](ErrorKind::Io) if it cannot be listed at present.
    #[must_use]
    pub fn names(&self) -> Option<Naming> {
        if !self.0.service().objects.can_list() {
            return None;
        }
        let names = self.0.run(move |service| async move { service.names().await });
        Some(Naming::new(names))
    }

    fn allowed(&self, by: fn(RemoteAccess) -> bool, what: &str) -> Result<()> {
        if by(self.access()) {
            return Ok(());
        }
        let message = format!("the remote cache {} is set not to be {what}", self.name());
        Err(Error::new(ErrorKind::Configuration, message))
    }
}
