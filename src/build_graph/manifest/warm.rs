//! Building ahead what a manifest recorded.

use std::sync::Arc;

use super::restore::Restored;
use crate::build_graph::built::Origin;
use crate::build_graph::fusion::Timing;
use crate::build_graph::graph::BuildGraph;
use crate::build_graph::outcome::Answer;
use crate::build_graph::plan::BuildPlan;
use crate::build_graph::strategy::BuildStrategy;
use crate::cache::manifest::line::{ChoiceLine, ProgramLine};
use crate::cache::manifest::{BuildManifest, EntryLine, ManifestEntry};
use crate::cache::remote::{self, Response};
use crate::cache::store::{Address, Entry, Lookup};
use crate::error::{Error, Result};

/// Result of building an entry of a manifest ahead.
///
/// # Examples
///
/// ```no_run
/// use kiln::manifest::WarmOutcome;
///
/// fn is_problem(outcome: &WarmOutcome) -> bool {
///     matches!(outcome, WarmOutcome::Skipped(_) | WarmOutcome::Failed(_))
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WarmOutcome {
    /// The program existed already, in this cache.
    Found(Origin),
    /// The program was built. A choice was written to the disk.
    Made,
    /// The program would have to be built. Only in a [check](crate::manifest::Warm::check).
    Missing,
    /// The entry does not apply to the devices or the files here, for this reason.
    Skipped(String),
    /// The program could not be built.
    Failed(Error),
}

/// Purpose of building ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WarmMode {
    /// To have the programs in memory.
    Memory,
    /// To have them on disk and in the remote cache.
    Caches,
    /// To know whether they are in a cache.
    Check,
}

impl BuildGraph {
    /// Builds an entry ahead.
    pub(crate) async fn warm(
        self: Arc<Self>,
        manifest: Arc<BuildManifest>,
        entry: ManifestEntry,
        mode: WarmMode,
    ) -> WarmOutcome {
        let Some(device) = self.device_of(&entry) else {
            return WarmOutcome::Skipped(format!("there is no device `{}` here", entry.device()));
        };
        let outcome = match entry.line() {
            EntryLine::Program(program) => {
                self.warm_program(&manifest, program, device, mode).await
            }
            EntryLine::Choice(choice) => Ok(self.warm_choice(choice, device, mode).await),
        };
        outcome.unwrap_or_else(WarmOutcome::Failed)
    }

    async fn warm_program(
        self: &Arc<Self>,
        manifest: &Arc<BuildManifest>,
        program: &ProgramLine,
        device: usize,
        mode: WarmMode,
    ) -> Result<WarmOutcome> {
        let plan = match self.restored_plan(manifest, program, device).await? {
            Restored::Plan(plan) => *plan,
            Restored::Inapplicable(reason) => return Ok(WarmOutcome::Skipped(reason)),
        };
        if mode == WarmMode::Memory {
            return self.built_ahead(plan).await;
        }
        let Some(plan) = self.located_plan(plan, mode).await? else {
            return Ok(WarmOutcome::Missing);
        };
        match self.locate(&plan, mode).await {
            Some(origin) => Ok(WarmOutcome::Found(origin)),
            None if mode == WarmMode::Check => Ok(WarmOutcome::Missing),
            None => self.built_ahead(plan).await,
        }
    }

    /// Builds a plan whose files are read. That is no use of the program, so it is neither counted nor recorded.
    async fn built_ahead(self: &Arc<Self>, plan: BuildPlan) -> Result<WarmOutcome> {
        let answer = self.request_uncounted(plan);
        let was_kept = matches!(answer, Answer::Kept(_));
        let built = answer.completed().await?;
        Ok(match built.origin() {
            _ if was_kept => WarmOutcome::Found(Origin::Memory),
            Origin::Compiled => WarmOutcome::Made,
            found => WarmOutcome::Found(found),
        })
    }

    /// Returns the plan under which a program is stored. For texts that are translated first, it has their SPIR-V.
    /// Returns `None` if that would have to be made, and `mode` allows none.
    async fn located_plan(
        self: &Arc<Self>,
        plan: BuildPlan,
        mode: WarmMode,
    ) -> Result<Option<BuildPlan>> {
        if plan.strategy() != BuildStrategy::TranslateFirst {
            return Ok(Some(plan));
        }
        if mode == WarmMode::Check {
            for input in plan.inputs() {
                let translation =
                    self.translation_of(input, plan.device(), |translation| translation).await?;
                if self.locate(&translation, mode).await.is_none() {
                    return Ok(None);
                }
            }
        }
        self.plan_in_spirv(&plan).await.map(Some)
    }

    /// Returns the cache that has a plan's program. To fill caches, a program on the disk is also written to the
    /// remote cache, unless that has it. An entry on the disk is read once.
    async fn locate(&self, plan: &BuildPlan, mode: WarmMode) -> Option<Origin> {
        let key = self.key(plan);
        let address = self.address(plan, key);
        if mode == WarmMode::Check && matches!(self.memory().get(self.node(plan, key)), Some(Ok(_)))
        {
            return Some(Origin::Memory);
        }
        if let Some(disk) = self.disk() {
            let _room = disk.room_to_load().await;
            if let Lookup::Hit(entry) = disk.store().find(&address).await {
                if mode == WarmMode::Caches {
                    self.publish_to_remote(&address, &entry).await;
                }
                return Some(Origin::Disk);
            }
        }
        let found = mode == WarmMode::Check && self.is_in_remote(&address).await == Some(true);
        found.then_some(Origin::Remote)
    }

    /// Returns whether the remote cache has an entry; `None` if that is not known.
    async fn is_in_remote(&self, address: &Address) -> Option<bool> {
        let answer = match self.remote()?.lookup(address, None)?.response().await {
            Response::Answer(answer) => answer,
            Response::Pending(answer) => answer.await,
        };
        match answer.ok()? {
            remote::Answer::Found(_) => Some(true),
            remote::Answer::Absent => Some(false),
            // An entry of a newer version is not replaced.
            remote::Answer::Refused { is_newer, .. } => is_newer.then_some(true),
            remote::Answer::Failed(_) => None,
        }
    }

    /// Writes an entry to the remote cache, unless that has it.
    async fn publish_to_remote(&self, address: &Address, entry: &Entry) {
        let Some(remote) = self.remote() else { return };
        if self.is_in_remote(address).await == Some(true) {
            return;
        }
        remote.put(address, entry.bytes().to_vec(), None);
        // The queue of writes is short.
        remote.settled().await;
    }

    async fn warm_choice(&self, choice: &ChoiceLine, device: usize, mode: WarmMode) -> WarmOutcome {
        let key = self.device_key(device);
        if key.id() != choice.device {
            return WarmOutcome::Skipped(format!(
                "the times are those of another driver version than that of {}",
                self.device(device)
            ));
        }
        let Some(disk) = self.disk() else {
            return WarmOutcome::Skipped("there is no cache on disk".to_owned());
        };
        let Some((timing, times)) = Timing::recorded(key, choice) else {
            return WarmOutcome::Skipped(
                "the manifest has a damaged line for it; record it again".to_owned(),
            );
        };
        match timing.load(disk.store()).await {
            Some(_) => WarmOutcome::Found(Origin::Disk),
            None if mode == WarmMode::Check => WarmOutcome::Missing,
            None => {
                timing.save(disk.store(), &times).await;
                WarmOutcome::Made
            }
        }
    }
}
