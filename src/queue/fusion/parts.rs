//! Parts of a scope: what is known of their kernels from earlier scopes, and how their run is reported.

use std::sync::Arc;

use smallvec::SmallVec;

use super::outcome::{FusedPart, Unfused};
use crate::build_graph::{Fusion, ONE_BY_ONE, SelectedWay, Selection, Step};
use crate::queue::accesses::CombinedAccesses;
use crate::queue::scheduler::FusionBlocker;

/// Effects of the launch of a fused kernel on other commands. The launch was checked against the device.
#[derive(Clone)]
pub(super) struct Prepared {
    /// Index of the group in its scope, of the way in the group, and of the kernel in the way.
    pub(super) key: [usize; 3],
    /// Allocations whose contents are lost, and that can still be read through other handles.
    pub(super) lost: SmallVec<[u64; 8]>,
    pub(super) accesses: Arc<CombinedAccesses>,
}

/// Returns the parts of launches that run in the selected ways, except for the steps in `blocked`, whose launches run
/// one by one.
pub(crate) fn parts(
    fusion: &Fusion,
    selection: &Selection,
    mut blocked: Vec<(usize, FusionBlocker)>,
) -> Vec<FusedPart> {
    let refused = |blocker: FusionBlocker| Unfused::Refused(blocker.to_string());
    let mut parts = Vec::new();
    let mut step_count = 0;
    for (group, selected) in selection.0.iter().enumerate() {
        for step in &selected.way.steps {
            let blocker = blocked.iter().position(|(at, _)| *at == step_count);
            let blocker = blocker.map(|at| blocked.swap_remove(at).1);
            step_count += 1;
            match (step, blocker) {
                (Step::Launch(slot), _) => {
                    parts.push(FusedPart::alone(vec![*slot], reason(fusion, group, selected)));
                }
                (Step::Kernel(kernel), Some(blocker)) => {
                    parts.push(FusedPart::alone(kernel.slots.clone(), refused(blocker)));
                }
                (Step::Kernel(kernel), None) => parts.push(FusedPart {
                    launches: kernel.slots.clone(),
                    repeated: kernel.repeated.clone(),
                    kernel: Some(kernel.kernel.name().to_owned()),
                    form: Some(kernel.form),
                    internalized: kernel.internalized.len(),
                    why: None,
                }),
            }
        }
    }
    parts
}

/// Returns the reason why all launches run one by one.
pub(super) fn reason_for_launches(fusion: &Fusion, selection: &Selection) -> Unfused {
    let reasons = selection.0.iter().enumerate();
    let mut reasons = reasons
        .filter(|(group, _)| fusion.groups[*group].slots.len() > 1)
        .map(|(group, selected)| reason(fusion, group, selected));
    let timing = selection.times_launches().then_some(Unfused::Timing);
    timing.or_else(|| reasons.next()).unwrap_or_else(|| refusal(fusion))
}

/// Returns the reason why a launch of a group runs alone.
fn reason(fusion: &Fusion, group: usize, selected: &SelectedWay) -> Unfused {
    let times = fusion.groups[group].times();
    match (times, selected.choice) {
        (_, choice) if choice.is_timed => Unfused::Timing,
        ((Some(unfused), Some(fused)), choice) if choice.way == ONE_BY_ONE => {
            Unfused::Slower { fused, unfused }
        }
        _ => refusal(fusion),
    }
}

fn refusal(fusion: &Fusion) -> Unfused {
    Unfused::Refused(fusion.refusal().to_owned())
}
