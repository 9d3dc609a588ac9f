//! Memory accesses of several launches that run as one.

use super::hazard::Use;
use super::launch_work::LaunchWork;
use crate::compiler::signature::Access;

/// Combined accesses of launches that run as one, as lists that follow each other; most often a single
/// list.
pub(crate) struct CombinedAccesses {
    /// Accesses of all launches.
    pub(super) uses: Vec<Vec<Use>>,
    /// Accesses that remain when the launches run as one, which may make some memory unnecessary.
    pub(super) touched: Vec<Vec<Use>>,
    /// Accesses to memory that the single launch does not use, and to memory that it leaves without
    /// contents.
    pub(super) lost: Vec<Use>,
}

impl CombinedAccesses {
    /// Combines the accesses of launches, in order, that run as `one`, which leaves no contents in the
    /// allocations in `lost`.
    pub(super) fn of(launches: &[&LaunchWork], one: &LaunchWork, lost: &[u64]) -> Self {
        let uses = combined(launches);
        let own = one.uses();
        let is_touched = |used: &&Use| own.iter().any(|own| own.allocation == used.allocation);
        let touched = uses.iter().map(|uses| uses.iter().filter(is_touched).cloned().collect());
        let touched = touched.collect();
        let is_lost = |used: &&Use| lost.contains(&used.allocation) || !is_touched(used);
        let lost = uses.iter().flatten().filter(is_lost).cloned().collect();
        Self { uses, touched, lost }
    }
}

/// Combines the accesses of launches into one list, and keeps the first of several accesses to the same
/// bytes, because later ones find what an earlier one left there. If the first only reads, the first that
/// writes is kept, too. If accesses overlap only in part, the launches' accesses stay as they are, in
/// order.
fn combined(launches: &[&LaunchWork]) -> Vec<Vec<Use>> {
    let mut all = Vec::<Use>::new();
    for launch in launches {
        let uses = launch.uses();
        // Within a launch, reads come first.
        for access in [Access::Read, Access::ReadWrite, Access::Write] {
            for used in uses.iter().filter(|used| used.access == access) {
                // Most often the match is among the latest entries.
                match all.iter().rfind(|known| known.touches(used)) {
                    None => all.push(used.clone()),
                    Some(known) if known.bytes == used.bytes => {
                        if known.access == Access::Read && access != Access::Read {
                            all.push(Use { access: Access::ReadWrite, ..used.clone() });
                        }
                    }
                    Some(_) => {
                        return launches.iter().map(|launch| launch.uses().into_vec()).collect();
                    }
                }
            }
        }
    }
    vec![all]
}
