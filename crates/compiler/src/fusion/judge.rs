//! Verdicts on the memories of a plan.

use std::collections::{BTreeMap, BTreeSet};

use super::coordinates::View;
use super::dependence::Use;
use super::examined::Examined;
use super::image_legality;
use super::legality::{FusionVerdict, Judgement, pairs, verdict};
use super::local_legality::locality;
use super::private_legality::promotion;
use crate::plan::{Internalization, Memory, Plan};

/// Judges each memory of a plan. `views` are the coordinates in which the slots' accesses to each memory are
/// expressed.
pub(super) fn judge(
    plan: &Plan,
    slots: &[Examined],
    views: &BTreeMap<Memory, View>,
) -> Vec<Judgement> {
    views
        .iter()
        .map(|(&memory, view)| {
            if let Some(judgement) = image_legality::judge(plan, memory, slots, view) {
                return judgement;
            }
            let uses = Use::all(plan, slots, memory);
            let mut barriers = BTreeSet::new();
            let mut pairs = pairs(plan, memory);
            let verdict = verdict(&uses, view, &mut pairs, &mut barriers);
            let requested = plan.forms.get(&memory);
            let locality = if verdict != FusionVerdict::Proven {
                Err("it is not proven that work-groups use only data that they wrote themselves"
                    .into())
            } else if requested == Some(&Internalization::Private) {
                Err("it was requested to be private memory".into())
            } else {
                locality(plan, memory, slots, &uses, view)
            };
            let mut unequal = BTreeSet::new();
            let promotion = if verdict != FusionVerdict::Proven {
                Err("it is not proven that work-items use only data that they wrote themselves"
                    .into())
            } else if requested == Some(&Internalization::Local) {
                Err("it was requested to be local memory".into())
            } else if view.has_portions {
                Err("a work-item does the work of several work-items of a launch".into())
            } else if !barriers.is_empty() {
                Err("work-items use data that other work-items of their work-group wrote".into())
            } else {
                promotion(plan, memory, slots, &uses, view, &mut unequal)
            };
            let is_requested_local = requested == Some(&Internalization::Local);
            let becomes_only_local =
                is_requested_local || (requested.is_none() && !barriers.is_empty());
            Judgement {
                memory,
                verdict,
                pairs,
                barriers,
                promotion,
                unequal,
                locality,
                becomes_only_local,
            }
        })
        .collect()
}
