//! Stamps: the modification times that record the uses of entries.

use std::time::SystemTime;

use super::files;
use super::handle::Store;
use super::layout::Address;
use super::lookup::Lookup;
use super::uses::STAMP_EVERY;
use crate::executor::{on_files, run_in_background};

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
