//! Cost model of groups of launches: an estimate of the time that they take, for the choice between partitions.
//! Trials on the device have the last word.
//!
//! The cost of a group consists of the bytes that it reads and writes in memory, its instructions, and the
//! launches of its kernels. Instructions and launches are converted to bytes of memory traffic that take as
//! long.

use std::collections::BTreeMap;

use kiln_spirv::Access;

use super::attempt::ONCE;
use super::form::FusionForm;
use super::launches::{Candidate, Group, Launches};
use crate::plan::Memory;

/// Estimated cost of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    /// Number of bytes read and written in memory.
    traffic: u64,
    /// Number of instructions, over all work-items.
    instructions: u64,
    /// Number of launches of kernels.
    launches: u64,
}

/// Bytes of memory traffic that take as long as the launch of a kernel: some microseconds.
const BYTES_OF_LAUNCH: u64 = 64 << 10;

/// Number of instructions that take as long as one byte of memory traffic. CPUs run a few vector instructions
/// in the time in which a core reads a vector from memory, GPUs some tens.
const INSTRUCTIONS_OF_BYTE: u64 = 8;

impl Launches<'_> {
    /// Returns the kernel of a group in a form, if there is one and it costs less than twice as much as the
    /// launches one by one. A kernel that costs more would waste the application's time, even in a single
    /// trial.
    pub fn worthwhile(&self, group: &Group, form: FusionForm) -> Option<Candidate> {
        let candidate = self.candidate(group, form)?;
        let cost = Cost::of(self, group, Some(&candidate)).total();
        let alone = Cost::of(self, group, None).total();
        (cost / 2 < alone).then_some(candidate)
    }
}

impl Cost {
    /// Returns the cost of a group that runs as the candidate's kernel, or else one by one.
    pub(super) fn of(
        launches: &Launches<'_>,
        group: &Group,
        candidate: Option<&Candidate>,
    ) -> Self {
        let Some(candidate) = candidate else {
            let alone = group.slots.iter().map(|&slot| Self::alone(launches, slot));
            return alone.fold(Self { traffic: 0, instructions: 0, launches: 0 }, Self::plus);
        };
        let (internalized, runs) = match &candidate.outcome.fused {
            Ok(fused) => (&fused.internalized[..], &fused.runs[..]),
            Err(_) => (&[][..], &[][..]),
        };
        Self::fused(launches, &candidate.group, runs, |memory| internalized.contains(&memory))
    }

    /// Returns the cost of a group that runs as one kernel, before it is known whether it can. The kernel is
    /// assumed to do without all memories that are not read after it.
    pub(super) fn estimate(launches: &Launches<'_>, group: &Group) -> Self {
        let (plan, _) = launches.plan_of(group);
        Self::fused(launches, group, &[], |memory| plan.dead.contains(&memory))
    }

    pub(super) fn total(self) -> u64 {
        let launches = self.launches.saturating_mul(BYTES_OF_LAUNCH);
        let instructions = self.instructions / INSTRUCTIONS_OF_BYTE;
        self.traffic.saturating_add(instructions).saturating_add(launches)
    }

    /// Returns the cost of one launch.
    fn alone(launches: &Launches<'_>, slot: usize) -> Self {
        Self::fused(launches, &Group::of([slot]), &[], |_| false)
    }

    /// Returns the cost of one kernel that does without the memories for which `is_internalized` returns
    /// true. The kernel reads each other memory once if the first launch that uses it reads it, and writes it
    /// once if a launch writes it. `runs` are the [runs](super::outcome::Fused::runs) of the group's members;
    /// those that are not listed run once.
    fn fused(
        launches: &Launches<'_>,
        group: &Group,
        runs: &[u64],
        is_internalized: impl Fn(Memory) -> bool,
    ) -> Self {
        let members = group.members();
        let mut used = BTreeMap::<Memory, (u64, Access)>::new();
        for (region, access) in members.iter().flat_map(|&slot| launches.accesses(slot)) {
            let length = region.length as u64;
            let known = used.entry(region.memory).or_insert((length, access));
            known.0 = known.0.max(length);
            if known.1 == Access::Read && access != Access::Read {
                known.1 = Access::ReadWrite;
            }
        }
        let traffic = used.iter().filter(|(memory, _)| !is_internalized(**memory));
        let traffic = traffic.map(|(_, (length, access))| match access {
            Access::Read | Access::Write => *length,
            Access::ReadWrite => length.saturating_mul(2),
        });
        let instructions = members.iter().enumerate().map(|(at, &slot)| {
            let items = launches.plan.slots[slot].range.global().iter();
            let items = items.fold(1_u64, |items, &size| items.saturating_mul(size as u64));
            let runs = runs.get(at).copied().unwrap_or(ONCE);
            let all = items.saturating_mul(launches.effects()[slot].instructions);
            (all / ONCE).saturating_mul(runs)
        });
        Self {
            traffic: traffic.fold(0, u64::saturating_add),
            instructions: instructions.fold(0, u64::saturating_add),
            launches: 1,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            traffic: self.traffic.saturating_add(other.traffic),
            instructions: self.instructions.saturating_add(other.instructions),
            launches: self.launches + other.launches,
        }
    }
}
