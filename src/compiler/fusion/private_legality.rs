//! What of a memory's contents a work-item keeps for itself.
//!
//! Once it is proven that no work-item needs what another one wrote, each has a part of the memory to
//! itself, and may keep the bytes of it that it wrote or read in a variable. Access by access it is
//! decided where the bytes come from and go to:
//!
//! * What an access before surely wrote, or read, is read from the variable.
//! * What is written goes to the variable, and to memory as well where somebody may read it there:
//!   after the launches, unless the memory is dead or overwritten until then, or an access that is
//!   not followed.
//!
//! So what is in memory in the end is what the launches leave there one by one.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::access::{Bytes, Condition, Kind, MAX_ALIGN, Symbol};
use super::affine::{Form, Space};
use super::coordinates::View;
use super::legality::{Examined, Use};
use super::plan::{Argument, Memory, Place, Plan};

/// How a memory's contents become a variable of each work-item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Promotion {
    /// Of the variable, in bytes.
    pub(crate) size: u32,
    pub(crate) align: u32,
    /// The accesses of each argument that use it, by the word of the function's body.
    pub(super) accesses: BTreeMap<Place, BTreeMap<u32, Kept>>,
    /// Scalars that must have the same value for it.
    pub(super) equal: BTreeSet<BTreeSet<Place>>,
    /// Why the memory is used as well; `None` if it is no longer used.
    pub(crate) remains: Option<String>,
}

/// Where an access to a variable goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// In bytes, from the variable's first.
    pub(super) at: i128,
    /// It is a read from memory or a write to memory as well.
    pub(super) in_memory: bool,
}

/// Of more accesses it takes too long to tell which are before which.
const MAX_USES: usize = 256;
/// More is not kept in registers.
const MAX_PRIVATE_BYTES: i128 = 512;

/// Decides on a memory for which the launches are proven to be safe to fuse, and adds the scalars that would
/// have more of it kept if they were not `unequal`.
///
/// # Errors
///
/// The reason why nothing of it is kept.
pub(super) fn promotion(
    plan: &Plan,
    memory: Memory,
    slots: &[Examined],
    uses: &[Use<'_>],
    view: &View,
    unequal: &mut BTreeSet<[Place; 2]>,
) -> Result<Promotion, String> {
    let special = |used: &&Use<'_>| matches!(used.access.kind, Kind::Atomic | Kind::Escape);
    if let Some(used) = uses.iter().find(special) {
        return Err(format!("{} in a way that only memory allows", used.deed()));
    }
    if uses.len() > MAX_USES {
        return Err(format!("it is accessed in {} places, which are too many", uses.len()));
    }
    let (base, size, align) = window(slots, uses, &view.space)?;
    let keeper = Keeper::new(plan, slots, uses, base, view);
    let is_dead = plan.dead.contains(&memory);
    let reads = keeper.reads();
    let writes = keeper.writes(&reads, is_dead);
    unequal.append(&mut keeper.unequal.borrow_mut());

    let mut accesses = BTreeMap::<Place, BTreeMap<u32, Kept>>::new();
    let mut remains = None;
    for (at, used) in uses.iter().enumerate() {
        let mode = match used.access.kind {
            Kind::Read => reads[at],
            _ => writes[at],
        };
        // What reads is why others must write.
        let is_better = remains.as_ref().is_none_or(|(_, is_read)| !is_read);
        if mode != Mode::Private && is_better {
            let is_read = !used.access.kind.writes();
            if is_read || remains.is_none() {
                remains = Some((keeper.why_not(at, is_dead), is_read));
            }
        }
        if let (Some((start, _)), Some(location)) = (keeper.own[at], used.access.location)
            && mode != Mode::Memory
        {
            let place = Place { slot: used.slot, argument: used.access.parameter };
            let kept = Kept { at: start - base.low, in_memory: mode == Mode::Both };
            accesses.entry(place).or_default().insert(location.offset, kept);
        }
    }
    let remains = remains.map(|(why, _)| why);
    let gains = reads.iter().chain(&writes).any(|mode| *mode == Mode::Private);
    if !gains {
        return Err(remains.unwrap_or_else(|| "nothing uses it".into()));
    }
    let equal = keeper.equal.into_inner();
    Ok(Promotion { size, align, accesses, equal, remains })
}

/// The bytes that a work-item has to itself: where they begin, how many they are and their alignment.
fn window(slots: &[Examined], uses: &[Use<'_>], space: &Space) -> Result<(Form, u32, u32), String> {
    let mut range: Option<(Form, i128, i128, i128)> = None;
    let mut refused = None;
    for used in uses {
        match (used.followed(slots), &mut range) {
            (Ok((Bytes { start, width, .. }, told)), range) => {
                let align = (width as u128).next_power_of_two().min(MAX_ALIGN.into()) as i128;
                let align = align.max(told);
                *range = match *range {
                    None => Some((start, start.low, start.high + width, align)),
                    Some((known, low, high, most))
                        if known.coefficients() == start.coefficients() =>
                    {
                        let high = high.max(start.high + width);
                        Some((known, low.min(start.low), high, most.max(align)))
                    }
                    known => known,
                };
            }
            (Err(why), _) => refused = refused.or(Some(why)),
        }
    }
    let Some((base, low, high, align)) = range else {
        return Err(refused.unwrap_or_else(|| "nothing uses it".into()));
    };
    let low = low.div_euclid(align) * align;
    if high - low > base.least_distance(space) || high - low > MAX_PRIVATE_BYTES {
        return Err(format!("a work-item would need {} bytes of it for itself", high - low));
    }
    Ok((base.moved_to(low), (high - low) as u32, align as u32))
}

impl Use<'_> {
    /// Its bytes, if they are known to be the same ones whenever it runs, and what they are told to be
    /// aligned to.
    fn followed(&self, slots: &[Examined]) -> Result<(Bytes, i128), String> {
        let refuse = |why: &str| Err(format!("{} {why}", self.deed()));
        let Some(bytes) = self.bytes else {
            return refuse(self.access.note.unwrap_or("at places that are not known"));
        };
        let Some(location) = self.access.location else {
            return refuse("in a function that it calls");
        };
        if !bytes.start.is_exact() {
            return refuse("at places that differ while it runs");
        }
        if self.parameter.is_constant {
            return refuse("as constant memory");
        }
        let Examined { accesses, movable, .. } = &slots[self.slot];
        let here = accesses.all.iter().filter(|access| access.location == Some(location));
        match movable.get(&location.offset) {
            Some(&told) if here.count() == 1 => Ok((bytes, told.into())),
            _ => refuse("in a way that only memory allows"),
        }
    }

    /// Whether it may touch some of the bytes, in whatever work-item.
    fn may_touch(&self, own: &Bytes, space: &Space) -> bool {
        let Some(bytes) = self.bytes else { return true };
        let ((low, high), (own_low, own_high)) =
            (bytes.start.bounds(space), own.start.bounds(space));
        low < own_high + own.width && own_low < high + bytes.width
    }
}

/// Where the bytes of an access are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Memory,
    Both,
    Private,
}

/// By the likeness of their symbols.
type Conditions = HashMap<u64, Vec<Condition>>;

struct Keeper<'a> {
    plan: &'a Plan,
    slots: &'a [Examined],
    uses: &'a [Use<'a>],
    view: &'a View,
    /// For each use that can go to the variable, its bytes there: the first and the one behind the last.
    own: Vec<Option<(i128, i128)>>,
    /// For each use, the conditions under which it runs.
    conditions: Vec<OnceCell<Conditions>>,
    /// What was found to rely on scalars being the same.
    equal: RefCell<BTreeSet<BTreeSet<Place>>>,
    /// What was not found because of scalars that are not.
    unequal: RefCell<BTreeSet<[Place; 2]>>,
}

impl<'a> Keeper<'a> {
    fn new(
        plan: &'a Plan,
        slots: &'a [Examined],
        uses: &'a [Use<'a>],
        base: Form,
        view: &'a View,
    ) -> Self {
        let own = uses.iter().map(|used| {
            let (bytes, _) = used.followed(slots).ok()?;
            let is_own = bytes.start.coefficients() == base.coefficients();
            is_own.then_some((bytes.start.low, bytes.start.low + bytes.width))
        });
        let (equal, unequal) = (RefCell::default(), RefCell::default());
        let conditions = uses.iter().map(|_| OnceCell::new()).collect();
        Self { plan, slots, uses, view, own: own.collect(), conditions, equal, unequal }
    }

    /// The modes of all reads; those of writes are left at `Memory`.
    fn reads(&self) -> Vec<Mode> {
        let mut modes = vec![Mode::Memory; self.uses.len()];
        let mut order: Vec<_> = (0..self.uses.len()).collect();
        order.retain(|&at| self.uses[at].access.kind == Kind::Read && self.own[at].is_some());
        order.sort_by_key(|&at| {
            (self.uses[at].slot, self.uses[at].access.location.map(|location| location.offset))
        });
        for (position, &read) in order.iter().enumerate() {
            let writes = (0..self.uses.len()).filter(|&at| self.uses[at].access.kind.writes());
            let earlier = order[..position].iter().copied();
            let earlier = earlier.filter(|&at| modes[at] != Mode::Private);
            // Writes come first, for they go to the variable anyway.
            let mut fills: Vec<_> = writes.chain(earlier).collect();
            fills.retain(|&fill| self.fills(fill, read));
            if let Some(used) = self.cover(read, &fills, |fill| self.is_run_before(fill, read)) {
                modes[read] = Mode::Private;
                for fill in
                    used.into_iter().filter(|&fill| self.uses[fill].access.kind == Kind::Read)
                {
                    modes[fill] = Mode::Both;
                }
            }
        }
        modes
    }

    /// Whether nothing changes in memory what an access left in the variable until it is read.
    fn fills(&self, fill: usize, read: usize) -> bool {
        let (first, last) = (&self.uses[fill], &self.uses[read]);
        let Some(bytes) = last.bytes else { return false };
        let spoils = |(at, used): (usize, &Use<'_>)| {
            used.access.kind.writes()
                && self.own[at].is_none()
                && (first.slot..=last.slot).contains(&used.slot)
                && used.may_touch(&bytes, &self.view.space)
        };
        self.own[fill].is_some()
            && first.slot <= last.slot
            && fill != read
            && !self.uses.iter().enumerate().any(spoils)
    }

    /// Whether an access has run whenever a later one does.
    fn is_run_before(&self, first: usize, last: usize) -> bool {
        let (a, b) = (&self.uses[first], &self.uses[last]);
        let Some((from, to)) = a.access.location.zip(b.access.location) else { return false };
        if a.slot == b.slot {
            return self.slots[a.slot].accesses.flow.precedes(from, to);
        }
        a.slot < b.slot && self.is_run_in(first, last)
    }

    /// Whether an access runs in each work-item in which one of another slot does.
    fn is_run_in(&self, first: usize, last: usize) -> bool {
        let (a, b) = (&self.uses[first], &self.uses[last]);
        let is_certain = a.access.is_certain && self.view.covers(a.slot, b.slot);
        // Conditions are told by ids, which are the same in launches of the same shape only.
        is_certain || (self.view.is_alike(a.slot, b.slot) && self.is_run_if(first, last))
    }

    /// Whether an access runs, sooner or later, if one of another slot does.
    fn is_run_if(&self, first: usize, last: usize) -> bool {
        let (a, b) = (&self.uses[first], &self.uses[last]);
        let Some((from, to)) = a.access.location.zip(b.access.location) else { return false };
        let conditions = self.conditions[last].get_or_init(|| {
            let mut conditions = Conditions::new();
            for condition in self.slots[b.slot].accesses.flow.conditions(to) {
                conditions.entry(condition.symbol.likeness()).or_default().push(condition);
            }
            conditions
        });
        let places = |own, other| {
            let own = Place { slot: a.slot, argument: own };
            (own, Place { slot: b.slot, argument: other })
        };
        let value = |place: Place| match &self.plan.slots[place.slot].arguments[place.argument] {
            Argument::Scalar(bytes) => Some(bytes),
            _ => None,
        };
        let differing = RefCell::new(Vec::new());
        let same = |own, other| {
            let (own, other) = places(own, other);
            let is_same = value(own).is_some() && value(own) == value(other);
            if !is_same {
                differing.borrow_mut().push([own, other]);
            }
            is_same
        };
        let relied = RefCell::new(BTreeSet::new());
        let known = |symbol: &Symbol| {
            let mut alike = conditions.get(&symbol.likeness())?.iter();
            let found = alike.find(|known| symbol.is(&known.symbol, &same))?;
            let (mut own, mut others) = (Vec::new(), Vec::new());
            symbol.scalars(&mut own);
            found.symbol.scalars(&mut others);
            relied.borrow_mut().extend(own.into_iter().zip(others));
            Some(found.holds)
        };
        let is_run = !conditions.is_empty()
            && self.slots[a.slot].accesses.flow.runs_where(from, |symbol| symbol.decide(&known));
        if is_run {
            let pairs = relied.into_inner().into_iter().map(|(own, other)| {
                let (own, other) = places(own, other);
                BTreeSet::from([own, other])
            });
            self.equal.borrow_mut().extend(pairs);
        } else {
            self.unequal.borrow_mut().extend(differing.into_inner());
        }
        is_run
    }

    /// Those of some accesses that together touch all bytes that one does, where they pass a test.
    fn cover(
        &self,
        of: usize,
        others: &[usize],
        is_sure: impl Fn(usize) -> bool,
    ) -> Option<Vec<usize>> {
        let (mut at, end) = self.own[of]?;
        let mut used = Vec::new();
        while at < end {
            let covers = |other: &&usize| {
                let is_there =
                    self.own[**other].is_some_and(|(start, end)| start <= at && at < end);
                is_there && is_sure(**other)
            };
            let &found = others.iter().find(covers)?;
            used.push(found);
            at = self.own[found]?.1;
        }
        Some(used)
    }

    /// The modes of all writes, if those of reads are as given.
    fn writes(&self, reads: &[Mode], is_dead: bool) -> Vec<Mode> {
        let is_read = reads.contains(&Mode::Private);
        let mut modes = vec![Mode::Memory; self.uses.len()];
        for (at, used) in self.uses.iter().enumerate() {
            let (Some(bytes), Some((start, end))) = (used.bytes, self.own[at]) else { continue };
            if !used.access.kind.writes() {
                continue;
            }
            let later = |other: &usize| {
                self.uses[*other].access.kind.writes() && self.uses[*other].slot > used.slot
            };
            let later: Vec<_> = (0..self.uses.len()).filter(later).collect();
            let is_sure = |other: usize| self.is_run_in(other, at);
            let is_lost = is_dead || self.cover(at, &later, is_sure).is_some();
            let is_read_in_memory = |(other, reader): (usize, &Use<'_>)| {
                if reader.access.kind.writes() || reads[other] == Mode::Private {
                    return false;
                }
                let may_follow = match (self.own[other], reader.slot.cmp(&used.slot)) {
                    (_, std::cmp::Ordering::Less) => false,
                    (Some(_), std::cmp::Ordering::Equal) => {
                        let places = used.access.location.zip(reader.access.location);
                        let flow = &self.slots[used.slot].accesses.flow;
                        places.is_none_or(|(write, read)| flow.may_follow(write, read))
                    }
                    _ => true,
                };
                // What lies inside of the variable can only be touched by this work-item, so its place
                // there counts; of any other access, all bytes that it may touch.
                may_follow
                    && match self.own[other] {
                        Some((low, high)) => low < end && start < high,
                        None => reader.may_touch(&bytes, &self.view.space),
                    }
            };
            modes[at] = match () {
                () if is_lost && !self.uses.iter().enumerate().any(is_read_in_memory) => {
                    Mode::Private
                }
                () if is_read => Mode::Both,
                () => Mode::Memory,
            };
        }
        modes
    }

    /// Why an access uses memory.
    fn why_not(&self, at: usize, is_dead: bool) -> String {
        let used = &self.uses[at];
        match used.followed(self.slots) {
            Err(why) => why,
            Ok(_) if self.own[at].is_none() => {
                format!("{} not where other accesses do", used.deed())
            }
            Ok(_) if used.access.kind == Kind::Read => {
                format!("{} before all of that is surely written", used.deed())
            }
            Ok(_) if !is_dead => "its contents may be read later".into(),
            Ok(_) => format!("{} what others read in memory", used.deed()),
        }
    }
}

/// Sets of places that overlap made one.
pub(super) fn united(sets: impl IntoIterator<Item = BTreeSet<Place>>) -> BTreeSet<BTreeSet<Place>> {
    let mut united: Vec<BTreeSet<Place>> = Vec::new();
    for mut set in sets {
        united.retain(|other| {
            let is_apart = other.is_disjoint(&set);
            if !is_apart {
                set.extend(other);
            }
            is_apart
        });
        united.push(set);
    }
    united.into_iter().collect()
}
