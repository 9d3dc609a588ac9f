//! Memory accesses of several launches that run as one.

use kiln_spirv::Access;

use super::hazard::Use;
use super::launch_work::LaunchWork;

/// Combined accesses of launches that run as one. The accesses within one list happen at once, and the lists
/// one after another. Most often there is a single list.
pub(crate) struct CombinedAccesses {
    /// Accesses of all launches.
    pub(super) uses: Vec<Vec<Use>>,
    /// Accesses to the memory that the fused launch still uses.
    pub(super) remaining: Vec<Vec<Use>>,
    /// Accesses to memory that the fused launch does not use, and to memory that it leaves without
    /// contents.
    pub(super) lost: Vec<Use>,
    /// Accesses, all of them reads, of launches that the fused launch repeats. They are in the other lists,
    /// too.
    pub(super) repeated: Vec<Use>,
}

/// Launches that a fused launch repeats, although they run elsewhere as well.
#[derive(Clone, Copy)]
pub(crate) struct Repeated<'a> {
    pub(crate) launches: &'a [&'a LaunchWork],
    /// Allocations with their results, which the fused launch does not access. The replaced launches only read
    /// these.
    pub(crate) results: &'a [u64],
}

impl CombinedAccesses {
    /// Combines the accesses of launches, in order, that run as the launch `fused`, which leaves no
    /// contents in the allocations in `lost`.
    pub(super) fn of(
        launches: &[&LaunchWork],
        repeated: Repeated<'_>,
        fused: &LaunchWork,
        lost: &[u64],
    ) -> Self {
        let mut uses = combine(launches);
        let is_result = |used: &Use| repeated.results.contains(&used.allocation);
        let repeated = repeated.launches.iter().flat_map(|launch| launch.uses());
        let repeated = repeated.filter(|used| !is_result(used));
        let repeated: Vec<_> = repeated.map(|used| Use { access: Access::Read, ..used }).collect();
        let fused_uses = fused.uses();
        let is_used = |used: &Use| fused_uses.iter().any(|own| own.allocation == used.allocation);
        // If the fused launch cannot run, the launches read the results of those that it repeats.
        let remains = |used: &&Use| is_used(used) || is_result(used);
        let mut remaining: Vec<Vec<_>> =
            uses.iter().map(|uses| uses.iter().filter(remains).cloned().collect()).collect();
        let is_lost =
            |used: &&Use| !is_result(used) && (lost.contains(&used.allocation) || !is_used(used));
        let lost = uses.iter().flatten().filter(is_lost).cloned().collect();
        if !repeated.is_empty() {
            uses.insert(0, repeated.clone());
            remaining.insert(0, repeated.clone());
        }
        Self { uses, remaining, lost, repeated }
    }
}

/// Combines the accesses of launches into one list, and keeps the first of several accesses to the same
/// bytes, because later ones find what an earlier one left there. If the first only reads, the first that
/// writes is kept, too. If accesses overlap only in part, the launches' accesses stay as they are, in
/// order.
fn combine(launches: &[&LaunchWork]) -> Vec<Vec<Use>> {
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
