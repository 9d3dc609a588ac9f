//! Partition of launches that do not all run as one kernel: groups of launches, each of which does.
//!
//! The search starts with a group for each launch. It merges the two groups that share memory and whose
//! merging saves most by the [cost model](super::cost), as long as one kernel [can do](Launches::candidate)
//! the work of both and the launches stay in an order that gives the same results. Equal launches that are
//! left alone and do not depend on each other then form [batches](super::batched). Finally, for each group,
//! the search tries kernels that run launches of other groups [again](Group::repeated), instead of reading
//! their results from memory.

use std::collections::BTreeSet;

use kiln_spirv::Access;

use super::batched::MAX_MEMBERS;
use super::cost::Cost;
use super::form::FusionForm;
use super::launches::{Candidate, Group, Launches, Part};

/// Maximum number of attempts of a search for each launch; each attempt compiles the kernel of a group in one
/// or more forms. Once the attempts are used up, groups stay as they are.
const MAX_ATTEMPTS: usize = 4;

/// Minimum number of launches without common memory that form a batch, unless all kernels are batches. Fewer save
/// too little for the kernel that has to be compiled.
const MIN_BATCHED: usize = 4;

impl Launches<'_> {
    /// Returns the best partition into groups, in the order in which they run.
    pub fn partition(&self) -> Vec<Part> {
        let mut search = Search::new(self);
        search.merge_all();
        search.batch_all();
        search.repeat_producers();
        search.finish()
    }

    /// Returns the best way to run launches that are too slow as one kernel in two parts: two kernels, or a
    /// kernel and one launch alone. `None` if there is none.
    pub fn split(&self, slots: &[usize]) -> Option<[Part; 2]> {
        let part = |slots: Vec<usize>| {
            let group = Group::of(slots.iter().copied());
            let candidate = (slots.len() > 1).then(|| self.first_candidate(&group));
            let candidates = match candidate {
                None => Vec::new(),
                Some(candidate) => vec![candidate?],
            };
            Some(Part { slots, candidates })
        };
        let cuts = self.cuts(slots).into_iter();
        let splits = cuts.filter_map(|(first, second)| Some([part(first)?, part(second)?]));
        let is_fused = |parts: &[Part; 2]| parts.iter().any(|part| !part.candidates.is_empty());
        splits.filter(is_fused).min_by_key(|parts| {
            let costs = parts.iter().map(|part| part.cost(self).total());
            costs.fold(0, u64::saturating_add)
        })
    }

    /// Returns the ways to cut a list of launches in two that keep the order of those that depend on each
    /// other: after each launch, and around each launch that can move to the end or to the start.
    fn cuts(&self, slots: &[usize]) -> Vec<(Vec<usize>, Vec<usize>)> {
        let mut cuts: Vec<_> =
            (1..slots.len()).map(|at| (slots[..at].to_vec(), slots[at..].to_vec())).collect();
        for &alone in slots {
            let others: Vec<_> = slots.iter().copied().filter(|&slot| slot != alone).collect();
            for cut in [(vec![alone], others.clone()), (others, vec![alone])] {
                let is_new = !cut.0.is_empty() && !cut.1.is_empty() && !cuts.contains(&cut);
                if is_new && self.keeps_order(&[&cut.0, &cut.1]) {
                    cuts.push(cut);
                }
            }
        }
        cuts
    }
}

impl Part {
    fn cost(&self, launches: &Launches<'_>) -> Cost {
        let group = Group::of(self.slots.iter().copied());
        Cost::of(launches, &group, self.candidates.first())
    }
}

/// Lists of launches that are not to be tried again as one kernel.
#[derive(Default)]
struct Rejected {
    /// Launches that cannot be one kernel. With further launches, they hardly could.
    refused: Vec<Vec<usize>>,
    /// Launches that cost more as one kernel than apart.
    costly: BTreeSet<Vec<usize>>,
}

impl Rejected {
    /// Whether the launches are costly, or include ones that were refused.
    fn has(&self, slots: &Vec<usize>) -> bool {
        let is_part = |refused: &Vec<usize>| refused.iter().all(|slot| slots.contains(slot));
        self.costly.contains(slots) || self.refused.iter().any(is_part)
    }
}

/// Search for the best partition.
struct Search<'a, 'b> {
    launches: &'a Launches<'b>,
    /// Groups so far, in no particular order, with their kernels.
    parts: Vec<Part>,
    attempts_left: usize,
}

impl<'a, 'b> Search<'a, 'b> {
    fn new(launches: &'a Launches<'b>) -> Self {
        let count = launches.plan.slots.len();
        let parts = (0..count).map(|slot| Part { slots: vec![slot], candidates: Vec::new() });
        Self { launches, parts: parts.collect(), attempts_left: count.saturating_mul(MAX_ATTEMPTS) }
    }

    /// Merges pairs of groups until that saves nothing more.
    fn merge_all(&mut self) {
        let mut rejected = Rejected::default();
        while let Some((first, second)) = self.best_pair(&rejected) {
            let slots = self.union(first, second);
            let apart = self.cost_of_both(first, second);
            let Some(candidate) = self.attempt(&Group::of(slots.iter().copied()), apart) else {
                rejected.refused.push(slots);
                continue;
            };
            let part = Part { slots, candidates: vec![candidate] };
            if part.cost(self.launches).total() < apart {
                self.parts[first] = part;
                self.parts.swap_remove(second);
            } else {
                rejected.costly.insert(part.slots);
            }
        }
    }

    /// Returns the pair of groups whose merging promises to save most, if there is one. The first of the pair
    /// has the lower index.
    fn best_pair(&self, rejected: &Rejected) -> Option<(usize, usize)> {
        let count = self.parts.len();
        let pairs =
            (0..count).flat_map(|first| (first + 1..count).map(move |second| (first, second)));
        let gains = pairs.filter_map(|(first, second)| {
            let slots = self.union(first, second);
            if rejected.has(&slots)
                || !self.share_memory(first, second)
                || self.is_cyclic(first, second)
            {
                return None;
            }
            let together = Cost::estimate(self.launches, &Group::of(slots.iter().copied())).total();
            let gain = self.cost_of_both(first, second).checked_sub(together)?;
            // The earliest launches come first where gains are equal.
            (gain > 0).then_some((gain, std::cmp::Reverse(slots), (first, second)))
        });
        gains.max().map(|(_, _, pair)| pair)
    }

    /// Returns the launches of two groups, in order.
    fn union(&self, first: usize, second: usize) -> Vec<usize> {
        let mut slots = [&self.parts[first].slots[..], &self.parts[second].slots[..]].concat();
        slots.sort_unstable();
        slots
    }

    fn cost_of_both(&self, first: usize, second: usize) -> u64 {
        let [first, second] =
            [first, second].map(|part| self.parts[part].cost(self.launches).total());
        first.saturating_add(second)
    }

    /// Whether two groups share memory: one writes what the other accesses, or launches of the same size read
    /// the same bytes. Launches of different sizes read them at different times.
    fn share_memory(&self, first: usize, second: usize) -> bool {
        let launches = self.launches;
        let accesses = |part: usize| {
            let slots = self.parts[part].slots.iter();
            slots.flat_map(|&slot| {
                let size = launches.plan.slots[slot].range.global();
                launches.accesses(slot).map(move |(region, access)| (region, access, size))
            })
        };
        accesses(first).any(|(region, access, size)| {
            accesses(second).any(|(other, theirs, their_size)| {
                let writes = access != Access::Read || theirs != Access::Read;
                (writes || size == their_size) && region.overlaps(&other)
            })
        })
    }

    /// Whether a launch of `part` must come before one of `other`.
    fn is_before(&self, part: usize, other: usize) -> bool {
        self.must_precede(&self.parts[part].slots, &self.parts[other].slots)
    }

    /// Whether a launch in `slots` must come before one in `later`.
    fn must_precede(&self, slots: &[usize], later: &[usize]) -> bool {
        slots.iter().any(|&slot| {
            later.iter().any(|&other| slot < other && self.launches.conflict(slot, other))
        })
    }

    /// Whether other groups would have to run between the launches of two groups, if these were merged.
    fn is_cyclic(&self, first: usize, second: usize) -> bool {
        let reaches = |from: usize, to: usize| {
            let mut seen = vec![false; self.parts.len()];
            (seen[from], seen[to]) = (true, true);
            let mut stack = vec![from];
            while let Some(at) = stack.pop() {
                if at != from && self.is_before(at, to) {
                    return true;
                }
                for (next, seen) in seen.iter_mut().enumerate() {
                    if !*seen && self.is_before(at, next) {
                        *seen = true;
                        stack.push(next);
                    }
                }
            }
            false
        };
        reaches(first, second) || reaches(second, first)
    }

    /// Merges launches that run alone into batches.
    fn batch_all(&mut self) {
        let fewest = match self.launches.forced_form {
            None => MIN_BATCHED,
            Some(FusionForm::Batched) => 2,
            Some(_) => return,
        };
        let alone = self.parts.iter().filter(|part| part.slots.len() == 1);
        let mut left: Vec<_> = alone.flat_map(|part| part.slots.iter().copied()).collect();
        left.sort_unstable();
        while !left.is_empty() {
            let members = self.batch_of(&left);
            left.retain(|slot| !members.contains(slot));
            self.batch(&members, fewest);
        }
    }

    /// Returns the first of some launches, and all others of them that are like it and can run beside it.
    fn batch_of(&self, slots: &[usize]) -> Vec<usize> {
        let mut members: Vec<usize> = Vec::new();
        let all = &self.launches.plan.slots;
        for &slot in slots {
            let is_independent = |&member: &usize| {
                all[slot].is_like(&all[member]) && !self.launches.conflict(member, slot)
            };
            if !members.iter().all(is_independent) {
                continue;
            }
            members.push(slot);
            if members.len() > 1 && self.is_interrupted(&members) {
                members.pop();
            }
        }
        members
    }

    /// Whether other groups would have to run between launches that run alone, if these were merged.
    fn is_interrupted(&self, members: &[usize]) -> bool {
        let mut seen: Vec<_> =
            self.parts.iter().map(|part| members.contains(&part.slots[0])).collect();
        let mut stack: Vec<_> = (0..seen.len()).filter(|&part| seen[part]).collect();
        while let Some(at) = stack.pop() {
            let slots = &self.parts[at].slots;
            if !members.contains(&slots[0]) && self.must_precede(slots, members) {
                return true;
            }
            for (next, seen) in seen.iter_mut().enumerate() {
                if !*seen && self.is_before(at, next) {
                    *seen = true;
                    stack.push(next);
                }
            }
        }
        false
    }

    /// Makes batches of independent launches, each of at least `fewest`. If a kernel exceeds a limit, tries smaller
    /// batches.
    fn batch(&mut self, members: &[usize], fewest: usize) {
        let (mut left, mut most) = (members, MAX_MEMBERS);
        while left.len() >= fewest {
            let (slots, others) = left.split_at(left.len().min(most));
            let group = Group::of(slots.iter().copied());
            let Some(attempts_left) = self.attempts_left.checked_sub(1) else { return };
            self.attempts_left = attempts_left;
            let apart = Cost::of(self.launches, &group, None).total();
            let candidate = self.launches.candidate(&group, FusionForm::Batched);
            let candidates = candidate.into_iter().collect();
            let part = Part { slots: slots.to_vec(), candidates };
            if !part.candidates.is_empty() && part.cost(self.launches).total() < apart {
                self.parts.retain(|known| !slots.contains(&known.slots[0]));
                self.parts.push(part);
                left = others;
            } else if slots.len() / 2 >= fewest {
                most = slots.len() / 2;
            } else {
                return;
            }
        }
    }

    /// Returns the kernel of a group in the first form that costs less than `limit`, or else in the cheapest
    /// form, if there is one and the number of attempts is not used up.
    fn attempt(&mut self, group: &Group, limit: u64) -> Option<Candidate> {
        self.attempts_left = self.attempts_left.checked_sub(1)?;
        let launches = self.launches;
        let mut best: Option<(u64, Candidate)> = None;
        for form in launches.forms(group) {
            let Some(candidate) = launches.candidate(group, form) else { continue };
            let cost = Cost::of(launches, group, Some(&candidate)).total();
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, candidate));
            }
            if cost < limit {
                break;
            }
        }
        best.map(|(_, candidate)| candidate)
    }

    /// Finds, for each group, launches of other groups that its kernel runs again, because that costs less than
    /// reading their results.
    fn repeat_producers(&mut self) {
        for part in 0..self.parts.len() {
            let mut group = Group::of(self.parts[part].slots.iter().copied());
            while let Some(candidate) = self.best_repetition(part, &group) {
                group = candidate.group.clone();
                self.parts[part].candidates.insert(0, candidate);
            }
        }
    }

    /// Returns the best kernel that repeats one more launch than `group`, if it costs less than the part does
    /// so far.
    fn best_repetition(&mut self, part: usize, group: &Group) -> Option<Candidate> {
        let launches = self.launches;
        let mut least = self.parts[part].cost(launches).total();
        let members = group.members();
        let read: BTreeSet<_> = (members.iter())
            .flat_map(|&slot| launches.accesses(slot))
            .filter(|(_, access)| *access != Access::Write)
            .map(|(region, _)| region.memory)
            .collect();
        let mut best = None;
        for producer in (0..launches.plan.slots.len()).filter(|slot| !members.contains(slot)) {
            let is_read = launches.written(producer).any(|memory| read.contains(&memory));
            if !is_read || !launches.can_repeat(producer, &group.slots) {
                continue;
            }
            let mut larger = group.clone();
            larger.repeated.push(producer);
            larger.repeated.sort_unstable();
            if Cost::estimate(launches, &larger).total() >= least {
                continue;
            }
            let Some(candidate) = self.attempt(&larger, least) else { continue };
            let cost = Cost::of(launches, &larger, Some(&candidate)).total();
            if cost < least {
                (least, best) = (cost, Some(candidate));
            }
        }
        best
    }

    /// Returns the groups in an order that keeps the results, the one with the earliest launch first where
    /// there is a choice.
    fn finish(mut self) -> Vec<Part> {
        self.parts.sort_by(|a, b| a.slots.cmp(&b.slots));
        let mut order = Vec::new();
        while order.len() < self.parts.len() {
            let waits = |part: usize| {
                let mut others = (0..self.parts.len()).filter(|other| !order.contains(other));
                others.any(|other| other != part && self.is_before(other, part))
            };
            let next = (0..self.parts.len()).find(|part| !order.contains(part) && !waits(*part));
            // Merged groups do not depend on each other in cycles, so that there always is a next one.
            let Some(next) = next else { return Search::new(self.launches).parts };
            order.push(next);
        }
        let mut parts: Vec<_> = self.parts.into_iter().map(Some).collect();
        order.into_iter().filter_map(|part| parts[part].take()).collect()
    }
}
