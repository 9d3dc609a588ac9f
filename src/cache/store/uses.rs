//! Uses of entries, which the modification times of their files record.
//!
//! A process stamps a file when it first uses the entry, and then at most once a minute, in the background. The uses in
//! between are stamped before it collects, when it drains, and after a minute.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use super::layout::Address;
use crate::sync::lock;

/// Shortest time between two stamps of an entry by a process, unless it collects or drains.
pub(super) const STAMP_EVERY: Duration = Duration::from_secs(60);

/// Uses of entries by this process.
#[derive(Debug, Default)]
pub(super) struct Uses {
    known: Mutex<HashMap<Address, Use>>,
    /// Locked while an entry is stamped.
    pub(super) stamping: async_lock::Mutex<()>,
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
    pub(super) fn note(&self, address: &Address, now: SystemTime) -> Vec<(Address, SystemTime)> {
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
    pub(super) fn take(&self) -> Vec<(Address, SystemTime)> {
        let mut uses = lock(&self.known);
        let unstamped = uses.iter_mut().filter(|(_, known)| known.last > known.stamped);
        let take = |(address, known): (&Address, &mut Use)| {
            known.stamped = known.last;
            (*address, known.last)
        };
        unstamped.map(take).collect()
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
