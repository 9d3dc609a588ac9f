//! Uses of entries, which the modification times of their files record.
//!
//! A process stamps a file when it first uses the entry, and then at most once a minute, in the background. The uses in
//! between are stamped before it collects, when it drains, and after a minute.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use super::layout::Address;
use super::{Lookup, Store, files};
use crate::executor::{on_files, run_in_background};
use crate::sync::lock;

/// Shortest time between two stamps of an entry by a process, unless it collects or drains.
const STAMP_EVERY: Duration = Duration::from_secs(60);

/// Uses of entries by this process.
#[derive(Debug, Default)]
pub(super) struct Uses {
    known: Mutex<HashMap<Address, Use>>,
    /// Locked while an entry is stamped.
    stamping: async_lock::Mutex<()>,
}

/// Use of an entry.
#[derive(Clone, Copy, Debug)]
struct Use {
    last: SystemTime,
    /// Time of the last stamp.
    stamped: SystemTime,
}

impl Uses {
    /// Notes that an entry is used now. Returns the uses that are to be stamped: the entry's, if it is the first for a
    /// minute, and then also others that have waited for as long.
    fn note(&self, address: &Address, now: SystemTime) -> Vec<(Address, SystemTime)> {
        let mut uses = lock(&self.known);
        if let Some(known) = uses.get_mut(address)
            && now.duration_since(known.stamped).is_ok_and(|age| age < STAMP_EVERY)
        {
            known.last = now;
            return Vec::new();
        }
        let mut due = vec![(*address, now)];
        uses.retain(|other, known| {
            let is_recent = now.duration_since(known.stamped).is_ok_and(|age| age < STAMP_EVERY);
            if !is_recent && known.last > known.stamped && other != address {
                due.push((*other, known.last));
            }
            is_recent
        });
        uses.insert(*address, Use { last: now, stamped: now });
        due
    }

    /// Returns the uses that are not stamped, and counts them as stamped.
    fn take(&self) -> Vec<(Address, SystemTime)> {
        let mut uses = lock(&self.known);
        let unstamped = uses.iter_mut().filter(|(_, known)| known.last > known.stamped);
        let take = |(address, known): (&Address, &mut Use)| {
            known.stamped = known.last;
            (*address, known.last)
        };
        unstamped.map(take).collect()
    }
}

impl Store {
    /// Notes the use of an entry that was found, and stamps it in the background.
    pub(super) fn note_use(&self, address: &Address, found: &Lookup) {
        if !matches!(found, Lookup::Hit(_)) {
            return;
        }
        let due = self.0.uses.note(address, SystemTime::now());
        if !due.is_empty() {
            let (store, pending) = (self.clone(), self.begin());
            run_in_background(async move {
                store.stamp(due).await;
                drop(pending);
            });
        }
    }

    /// Stamps all entries with their last uses by this process.
    pub(crate) async fn stamp_all(&self) {
        self.stamp(self.0.uses.take()).await;
    }

    /// Sets the modification times of entries, unless they are later. A process that may not set a time can still read
    /// the file.
    async fn stamp(&self, due: Vec<(Address, SystemTime)>) {
        let _stamping = self.0.uses.stamping.lock().await;
        for (address, used) in due {
            let path = self.0.layout.entry(&address);
            let stamp = on_files(move |permit| async move {
                let (file, metadata) = files::open(&path, files::reading()).await?;
                // A stamp in the future is wrong.
                let recent = used..used + STAMP_EVERY;
                if metadata.modified().is_ok_and(|stamped| recent.contains(&stamped)) {
                    return Ok(());
                }
                // `async-fs` cannot set times.
                let file = files::to_std(&file)?;
                permit.run(move || file.set_modified(used)).await.map_err(std::io::Error::other)?
            });
            if let Err(error) = stamp.await.flatten() {
                tracing::debug!(key = %address.key, %error, "the use of an entry is not recorded");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::BuildKey;

    fn address(number: u8) -> Address {
        Address { device: [1; 8], key: BuildKey([number; 32]) }
    }

    #[test]
    fn an_entry_is_stamped_once_a_minute() {
        let uses = Uses::default();
        let start = SystemTime::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(uses.note(&address(1), at(0)), [(address(1), at(0))]);
        assert_eq!(uses.note(&address(1), at(10)), []);
        assert_eq!(uses.note(&address(2), at(11)), [(address(2), at(11))]);
        assert_eq!(uses.note(&address(2), at(12)), []);
        // The first entry's last use was not stamped.
        assert_eq!(uses.note(&address(3), at(65)), [(address(3), at(65)), (address(1), at(10))]);
        assert_eq!(uses.take(), [(address(2), at(12))]);
        assert_eq!(uses.take(), []);
    }
}
