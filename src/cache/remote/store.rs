//! Remote cache as a public interface, which the `kiln` tool uses.

use super::envelope::{Refused, TRAILER};
use super::service::ReadOutcome;
use super::settings::RemoteAccess;
use super::tier::Remote;
use crate::cache::store::{Address, Entry};
use crate::error::{Error, ErrorKind, Result};
use crate::future::named_future;

/// A remote cache, for inspecting it and for copying entries from and to it. Returned by
/// [`CacheConfig::open_remote`](crate::CacheConfig::open_remote).
///
/// The methods return futures for any executor. They send requests even while the circuit breaker is open,
/// retry where a retry may help, and end within a few of the [time-outs](crate::CacheConfig::remote_timeout)
/// without progress.
///
/// # Examples
///
/// ```no_run
/// use kiln::CacheConfig;
/// use kiln::remote::Sent;
///
/// # async fn example(name: &str) -> kiln::Result<()> {
/// let config = CacheConfig::new().remote("redis://cache.internal:6379/kiln");
/// if let Some(remote) = config.open_remote()? {
///     let is_there = matches!(remote.get(name).await?, Sent::Whole(_));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RemoteStore(Remote);

/// Result of a lookup by name in a remote cache.
///
/// # Examples
///
/// ```no_run
/// use kiln::remote::{RemoteStore, Sent};
///
/// # async fn example(remote: RemoteStore, name: &str) -> kiln::Result<()> {
/// match remote.get(name).await? {
///     Sent::Whole(entry) => println!("{} bytes", entry.bytes().len()),
///     Sent::Refused(reason) => println!("not used: {reason}"),
///     _ => println!("no such entry"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Sent {
    /// A verified entry.
    Whole(Entry),
    /// No object has this name.
    Absent,
    /// An object that is not used.
    Refused(Refused),
}

named_future! {
    /// Lookup of an entry. Returned by [`RemoteStore::get`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses only the result.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::remote::{GetEntry, RemoteStore};
    ///
    /// # async fn example(remote: RemoteStore, names: Vec<String>) -> kiln::Result<()> {
    /// let lookups: Vec<GetEntry> = names.iter().map(|name| remote.get(name)).collect();
    /// let answers = futures::future::try_join_all(lookups).await?;
    /// # Ok(())
    /// # }
    /// ```
    GetEntry => Result<Sent>
}

named_future! {
    /// Write of an entry. Returned by [`RemoteStore::put`].
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, the entry may or may not be written. If it is written, it is complete.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::remote::{PutEntry, RemoteStore};
    /// use kiln::store::Entry;
    ///
    /// # async fn example(remote: RemoteStore, entries: Vec<(String, Entry)>) -> kiln::Result<()> {
    /// let writes: Vec<PutEntry> = entries.iter().map(|(name, entry)| remote.put(name, entry)).collect();
    /// futures::future::try_join_all(writes).await?;
    /// # Ok(())
    /// # }
    /// ```
    PutEntry => Result<()>
}

named_future! {
    /// Listing of names. Returned by [`RemoteStore::names`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses only the result.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::remote::{ListNames, RemoteStore};
    ///
    /// # async fn example(remote: RemoteStore) -> kiln::Result<()> {
    /// let listing: Option<ListNames> = remote.names();
    /// if let Some(listing) = listing {
    ///     println!("{} programs", listing.await?.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ListNames => Result<Vec<String>>
}

impl RemoteStore {
    pub(crate) fn new(remote: Remote) -> Self {
        Self(remote)
    }

    /// Returns the address of the remote cache, without secrets.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(remote: kiln::remote::RemoteStore) {
    /// println!("programs are shared through {}", remote.name());
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.service().name
    }

    /// Returns which operations are allowed on the remote cache.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::remote::RemoteAccess;
    ///
    /// # fn example(remote: kiln::remote::RemoteStore) {
    /// if remote.access() == RemoteAccess::ReadOnly {
    ///     println!("programs built here are not published");
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn access(&self) -> RemoteAccess {
        self.0.service().settings.access
    }

    /// Returns whether a secret is set, so that only authenticated entries are accepted.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(remote: kiln::remote::RemoteStore) {
    /// if !remote.is_authenticated() {
    ///     eprintln!("whoever can write to {} decides what runs here", remote.name());
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.0.service().settings.secret.is_some()
    }

    /// Looks up the entry of a [name](crate::cache::store::EntryInfo::name), with one request.
    ///
    /// # Errors
    ///
    /// The future fails with [`InvalidArgument`](ErrorKind::InvalidArgument) if the name is not a valid name of
    /// an entry, [`Configuration`](ErrorKind::Configuration) if the remote cache is write-only, and
    /// [`Io`](ErrorKind::Io) if it cannot be read.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::remote::{RemoteStore, Sent};
    ///
    /// # async fn example(rt: kiln::Runtime, module: kiln::Module, remote: RemoteStore) -> kiln::Result<()> {
    /// let name = rt.build(&module).entry_name()?;
    /// let is_published = matches!(remote.get(&name).await?, Sent::Whole(_));
    /// # Ok(())
    /// # }
    /// ```
    pub fn get(&self, name: &str) -> GetEntry {
        let lookup =
            self.check_access(RemoteAccess::reads, "read").and_then(|()| Address::named(name));
        let lookup = lookup
            .map(|address| self.0.run(move |service| async move { service.read(&address).await }));
        GetEntry::new(async move {
            Ok(match lookup?.await? {
                ReadOutcome::Entry(entry) => Sent::Whole(entry),
                ReadOutcome::Absent => Sent::Absent,
                ReadOutcome::Refused(refused) => Sent::Refused(refused),
            })
        })
    }

    /// Writes an entry under its [name](crate::cache::store::EntryInfo::name), and replaces any object there.
    ///
    /// # Errors
    ///
    /// The future fails with [`InvalidArgument`](ErrorKind::InvalidArgument) if the name is not the name of
    /// this entry or the entry is too large, [`Configuration`](ErrorKind::Configuration) if the remote cache is
    /// read-only, and [`Io`](ErrorKind::Io) if it cannot be written.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    /// use kiln::remote::RemoteStore;
    /// use kiln::store::{EntryCheck, Store};
    ///
    /// # async fn example(store: Store, remote: RemoteStore) -> kiln::Result<()> {
    /// let mut results = store.verify();
    /// while let Some((info, checked)) = results.next().await {
    ///     if let EntryCheck::Whole(entry) = checked {
    ///         remote.put(&info.name(), &entry).await?;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn put(&self, name: &str, entry: &Entry) -> PutEntry {
        let address = self.check_access(RemoteAccess::writes, "written").and_then(|()| {
            let (bytes, max_bytes) = (entry.bytes().len(), self.0.service().settings.max_bytes);
            let address = Address::named(name)?;
            if address.key != entry.key() {
                return Err(Error::invalid(format!(
                    "{name:?} is not the name of the entry for the key {}",
                    entry.key()
                )));
            }
            if (bytes + TRAILER) as u64 > max_bytes {
                return Err(Error::invalid(format!(
                    "the entry has {bytes} bytes, and its object would exceed the limit of {max_bytes} \
                     bytes"
                )));
            }
            Ok(address)
        });
        let file = entry.bytes().to_vec();
        let put = address.map(|address| {
            self.0.run(move |service| async move { service.write(&address, file).await })
        });
        PutEntry::new(async move { put?.await.map(drop) })
    }

    /// Lists the [names](crate::cache::store::EntryInfo::name) of all entries, in no particular order. Returns
    /// `None` if the service cannot list its objects, which is the case for Redis.
    ///
    /// # Errors
    ///
    /// The future fails with [`Io`](ErrorKind::Io) if the service cannot be listed at present.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(remote: kiln::remote::RemoteStore) -> kiln::Result<()> {
    /// match remote.names() {
    ///     Some(names) => println!("{} programs", names.await?.len()),
    ///     None => println!("{} cannot list its objects", remote.name()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn names(&self) -> Option<ListNames> {
        if !self.0.service().objects.can_list() {
            return None;
        }
        let names = self.0.run(move |service| async move { service.names().await });
        Some(ListNames::new(names))
    }

    /// Fails if the access setting does not allow an operation.
    fn check_access(&self, is_allowed: fn(RemoteAccess) -> bool, what: &str) -> Result<()> {
        if is_allowed(self.access()) {
            return Ok(());
        }
        let message = format!(
            "the access setting of the remote cache {} does not allow it to be {what}",
            self.name()
        );
        Err(Error::new(ErrorKind::Configuration, message))
    }
}
