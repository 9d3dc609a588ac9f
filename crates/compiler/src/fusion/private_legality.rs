//! Decides which contents of a memory a work-item keeps in a private variable.
//!
//! Once it is proven that no work-item needs data that another one wrote, each work-item has a part of the
//! memory to itself. It may then keep the bytes of that part that it wrote or read in a variable. For each
//! access, this module decides where the bytes come from and go to:
//!
//! * A read uses the variable if an earlier access surely wrote or read the bytes.
//! * A write goes to the variable. It also goes to memory if the bytes may be read there: after the launches
//!   (unless the memory is dead, or overwritten by then), or by an access that is not followed.
//!
//! In the end, memory contains what the launches leave there when they run one by one.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::coordinates::View;
use super::dependence::Use;
use super::examined::Examined;
use crate::analysis::access::{Bytes, Condition, Kind, MAX_ALIGN, Symbol};
use crate::analysis::affine::{Form, Space};
use crate::plan::{Argument, Memory, Place, Plan};

/// Variable that keeps a memory's contents in each work-item, and the accesses that use it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Promotion {
    /// Size of the variable, in bytes.
    pub size: u32,
    pub align: u32,
    /// Accesses that use the variable, for each argument, by their word offset in the function's body.
    pub(super) accesses: BTreeMap<Place, BTreeMap<u32, VariablePlace>>,
    /// Sets of scalars that must have the same value for the promotion to be valid.
    pub(super) equal: BTreeSet<BTreeSet<Place>>,
    /// Reason why the kernel still uses the memory; `None` if it no longer does.
    pub remains: Option<String>,
}

/// Place in the variable that an access uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VariablePlace {
    /// Offset from the start of the variable, in bytes.
    pub(super) offset: i128,
    /// Whether the access is also a read from memory or a write to memory.
    pub(super) in_memory: bool,
}

/// Maximum number of accesses. Ordering more of them takes too long.
const MAX_USES: usize = 256;
/// Maximum size of the variable, in bytes. A larger one is not kept in registers.
const MAX_PRIVATE_BYTES: i128 = 512;

/// Decides what work-items keep of a memory for which fusing the launches is proven to be safe. Adds to
/// `unequal` the pairs of scalars whose values differ, if equal values would let more be kept.
///
/// # Errors
///
/// Fails with the reason if nothing of the memory is kept.
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
        return Err(format!("{} in a way that only global memory supports", used.describe()));
    }
    if uses.len() > MAX_USES {
        return Err(format!("it is accessed in {} places, which are too many", uses.len()));
    }
    let (base, size, align) = window(slots, uses, &view.space)?;
    let analysis = PromotionAnalysis::new(plan, slots, uses, base, view);
    let is_dead = plan.dead.contains(&memory);
    let reads = analysis.reads();
    let writes = analysis.writes(&reads, is_dead);
    unequal.append(&mut analysis.unequal.borrow_mut());

    let mut accesses = BTreeMap::<Place, BTreeMap<u32, VariablePlace>>::new();
    let mut remains = None;
    for (at, used) in uses.iter().enumerate() {
        let mode = match used.access.kind {
            Kind::Read => reads[at],
            _ => writes[at],
        };
        // A read is the better reason: reads from memory are why writes must go there.
        let is_better = remains.as_ref().is_none_or(|(_, is_read)| !is_read);
        if mode != Mode::Private && is_better {
            let is_read = !used.access.kind.writes();
            if is_read || remains.is_none() {
                remains = Some((analysis.why_not(at, is_dead), is_read));
            }
        }
        if let (Some((start, _)), Some(location)) = (analysis.own[at], used.access.location)
            && mode != Mode::Memory
        {
            let place = Place { slot: used.slot, argument: used.access.parameter };
            let place_in_variable =
                VariablePlace { offset: start - base.low, in_memory: mode == Mode::Both };
            accesses.entry(place).or_default().insert(location.offset, place_in_variable);
        }
    }
    let remains = remains.map(|(why, _)| why);
    let gains = reads.iter().chain(&writes).any(|mode| *mode == Mode::Private);
    if !gains {
        return Err(remains.unwrap_or_else(|| "it is not used".into()));
    }
    let equal = analysis.equal.into_inner();
    Ok(Promotion { size, align, accesses, equal, remains })
}

/// Returns the bytes that a work-item has to itself: their start, and their size and alignment in bytes.
fn window(slots: &[Examined], uses: &[Use<'_>], space: &Space) -> Result<(Form, u32, u32), String> {
    let mut range: Option<(Form, i128, i128, i128)> = None;
    let mut refused = None;
    for used in uses {
        match (used.known_bytes(slots), &mut range) {
            (Ok((Bytes { start, width, .. }, stated)), range) => {
                let align = (width as u128).next_power_of_two().min(MAX_ALIGN.into()) as i128;
                let align = align.max(stated);
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
        return Err(refused.unwrap_or_else(|| "it is not used".into()));
    };
    let low = low.div_euclid(align) * align;
    if high - low > base.least_distance(space) || high - low > MAX_PRIVATE_BYTES {
        return Err(format!(
            "a work-item would need {} bytes of private memory for it",
            high - low
        ));
    }
    Ok((base.moved_to(low), (high - low) as u32, align as u32))
}

impl Use<'_> {
    /// Returns the bytes of the use and their declared alignment, or the reason why the bytes are not known to
    /// be the same whenever it runs.
    fn known_bytes(&self, slots: &[Examined]) -> Result<(Bytes, i128), String> {
        let refuse = |why: &str| Err(format!("{} {why}", self.describe()));
        let Some(bytes) = self.bytes else {
            return refuse(&self.why_unknown());
        };
        let Some(location) = self.access.location else {
            return refuse("in a function that it calls");
        };
        if !bytes.start.is_exact() {
            return refuse(&self.why_changing());
        }
        if self.parameter.is_constant {
            return refuse("as constant memory");
        }
        let Examined { accesses, movable, .. } = &slots[self.slot];
        let here = accesses.all.iter().filter(|access| access.location == Some(location));
        match movable.get(&location.offset) {
            Some(&stated) if here.count() == 1 => Ok((bytes, stated.into())),
            _ => refuse("in a way that only global memory supports"),
        }
    }

    /// Returns whether the use may touch some of the bytes `own`, in any work-item.
    fn may_touch(&self, own: &Bytes, space: &Space) -> bool {
        let Some(bytes) = self.bytes else { return true };
        let ((low, high), (own_low, own_high)) =
            (bytes.start.bounds(space), own.start.bounds(space));
        low < own_high + own.width && own_low < high + bytes.width
    }
}

/// Location of the bytes that an access uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Memory,
    Both,
    Private,
}

/// Conditions, by the likeness of their symbols.
type Conditions = HashMap<u64, Vec<Condition>>;

/// Decision on which accesses to a memory use the variable.
struct PromotionAnalysis<'a> {
    plan: &'a Plan,
    slots: &'a [Examined],
    uses: &'a [Use<'a>],
    view: &'a View,
    /// Bytes of each use that can go to the variable, relative to the common base: the first byte and the end,
    /// exclusive.
    own: Vec<Option<(i128, i128)>>,
    /// Conditions under which each use runs, computed on demand.
    conditions: Vec<OnceCell<Conditions>>,
    /// Sets of scalars whose equality the findings rely on.
    equal: RefCell<BTreeSet<BTreeSet<Place>>>,
    /// Pairs of scalars whose inequality prevented a finding.
    unequal: RefCell<BTreeSet<[Place; 2]>>,
}

impl<'a> PromotionAnalysis<'a> {
    fn new(
        plan: &'a Plan,
        slots: &'a [Examined],
        uses: &'a [Use<'a>],
        base: Form,
        view: &'a View,
    ) -> Self {
        let own = uses.iter().map(|used| {
            let (bytes, _) = used.known_bytes(slots).ok()?;
            let is_own = bytes.start.coefficients() == base.coefficients();
            is_own.then_some((bytes.start.low, bytes.start.low + bytes.width))
        });
        let (equal, unequal) = (RefCell::default(), RefCell::default());
        let conditions = uses.iter().map(|_| OnceCell::new()).collect();
        Self { plan, slots, uses, view, own: own.collect(), conditions, equal, unequal }
    }

    /// Returns the modes of all reads. The entries of writes stay `Memory`.
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
            // Writes come first, since they go to the variable anyway.
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

    /// Returns whether the bytes that the access `fill` leaves in the variable stay unchanged in memory until
    /// `read`.
    fn fills(&self, fill: usize, read: usize) -> bool {
        let (first, last) = (&self.uses[fill], &self.uses[read]);
        let Some(bytes) = last.bytes else { return false };
        let may_overwrite = |(at, used): (usize, &Use<'_>)| {
            used.access.kind.writes()
                && self.own[at].is_none()
                && (first.slot..=last.slot).contains(&used.slot)
                && used.may_touch(&bytes, &self.view.space)
        };
        self.own[fill].is_some()
            && first.slot <= last.slot
            && fill != read
            && !self.uses.iter().enumerate().any(may_overwrite)
    }

    /// Returns whether `first` has run whenever `last` runs.
    fn is_run_before(&self, first: usize, last: usize) -> bool {
        let (a, b) = (&self.uses[first], &self.uses[last]);
        let Some((from, to)) = a.access.location.zip(b.access.location) else { return false };
        if a.slot == b.slot {
            return self.slots[a.slot].accesses.flow.precedes(from, to);
        }
        a.slot < b.slot && self.is_run_in(first, last)
    }

    /// Returns whether `first` runs in each work-item in which `last`, an access of another slot, runs.
    fn is_run_in(&self, first: usize, last: usize) -> bool {
        let (a, b) = (&self.uses[first], &self.uses[last]);
        let is_certain = a.access.is_certain && self.view.covers(a.slot, b.slot);
        // Conditions depend on ids, which are the same only in launches of the same shape.
        is_certain || (self.view.is_alike(a.slot, b.slot) && self.is_run_if(first, last))
    }

    /// Returns whether `first` runs, sooner or later, if `last`, an access of another slot, runs.
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
        let scalar_pairs = RefCell::new(BTreeSet::new());
        let known = |symbol: &Symbol| {
            let mut alike = conditions.get(&symbol.likeness())?.iter();
            let found = alike.find(|known| symbol.equals(&known.symbol, &same))?;
            let (mut own, mut others) = (Vec::new(), Vec::new());
            symbol.scalars(&mut own);
            found.symbol.scalars(&mut others);
            scalar_pairs.borrow_mut().extend(own.into_iter().zip(others));
            Some(found.holds)
        };
        let is_run = !conditions.is_empty()
            && self.slots[a.slot].accesses.flow.runs_where(from, |symbol| symbol.decide(&known));
        if is_run {
            let pairs = scalar_pairs.into_inner().into_iter().map(|(own, other)| {
                let (own, other) = places(own, other);
                BTreeSet::from([own, other])
            });
            self.equal.borrow_mut().extend(pairs);
        } else {
            self.unequal.borrow_mut().extend(differing.into_inner());
        }
        is_run
    }

    /// Returns accesses among `others` that pass the test `is_sure` and together touch all bytes that the
    /// access `target` touches. Returns `None` if they do not touch all of them.
    fn cover(
        &self,
        target: usize,
        others: &[usize],
        is_sure: impl Fn(usize) -> bool,
    ) -> Option<Vec<usize>> {
        let (mut at, end) = self.own[target]?;
        let mut used = Vec::new();
        while at < end {
            let covers = |other: &&usize| {
                let covers_next =
                    self.own[**other].is_some_and(|(start, end)| start <= at && at < end);
                covers_next && is_sure(**other)
            };
            let &found = others.iter().find(covers)?;
            used.push(found);
            at = self.own[found]?.1;
        }
        Some(used)
    }

    /// Returns the modes of all writes for the given modes of reads. The entries of reads stay `Memory`.
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
            let is_dead_or_overwritten = is_dead || self.cover(at, &later, is_sure).is_some();
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
                // Only this work-item can touch bytes inside the variable, so the place of such a reader there
                // decides. For any other reader, all bytes that it may touch count.
                may_follow
                    && match self.own[other] {
                        Some((low, high)) => low < end && start < high,
                        None => reader.may_touch(&bytes, &self.view.space),
                    }
            };
            modes[at] = match () {
                () if is_dead_or_overwritten
                    && !self.uses.iter().enumerate().any(is_read_in_memory) =>
                {
                    Mode::Private
                }
                () if is_read => Mode::Both,
                () => Mode::Memory,
            };
        }
        modes
    }

    /// Returns the reason why an access uses memory.
    fn why_not(&self, at: usize, is_dead: bool) -> String {
        let used = &self.uses[at];
        match used.known_bytes(self.slots) {
            Err(why) => why,
            Ok(_) if self.own[at].is_none() => {
                format!("{} at other offsets than the other accesses", used.describe())
            }
            Ok(_) if used.access.kind == Kind::Read => {
                let parts = if used.image.is_some() { "pixels" } else { "bytes" };
                format!(
                    "{}, but not all of these {parts} are certainly written before",
                    used.describe()
                )
            }
            Ok(_) if !is_dead => "its contents may be read later".into(),
            Ok(_) => {
                format!(
                    "{}, and other accesses read these bytes from global memory",
                    used.describe()
                )
            }
        }
    }
}

/// Merges sets of places that overlap.
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
