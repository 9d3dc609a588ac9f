//! Legality of fusion: whether running launches as one kernel changes what they compute, for each memory that
//! they share.
//!
//! Launches that run one after the other see everything that earlier ones wrote. In one kernel, a work-item
//! is only guaranteed to see what it wrote itself. So two accesses of different slots to one memory, at least
//! one of which writes, must never meet (touch the same byte) in different work-items. Work-items of one
//! work-group are an exception: with a barrier between the launches, they see what the others wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::coordinates::View;
use super::dependence::{Use, never_meet};
use super::examined::Examined;
use super::local_legality::Locality;
use super::private_legality::Promotion;
use crate::analysis::access::{Bytes, Kind};
use crate::analysis::affine::Space;
use crate::plan::{Memory, PIXEL_BYTES, PIXEL_PITCH, Place, Plan};
use crate::ranges::Ranges;

/// Verdict on whether launches that share a buffer may run as one kernel.
///
/// # Examples
///
/// ```no_run
/// # use kiln_compiler as kiln;
/// use kiln::fusion::FusionVerdict;
///
/// # fn example(report: kiln::fusion::FusionReport) {
/// for buffer in report.buffers() {
///     if let FusionVerdict::NeedsTrust(reason) = &buffer.verdict {
///         println!("only `assume_legal` allows fusion: {reason}");
///     }
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FusionVerdict {
    /// Fusion is proven safe. No work-item needs what another one wrote, unless both are of one work-group
    /// and wait at a barrier in between, or the work-item runs the earlier launch itself for what it needs.
    Proven,
    /// Fusion may be safe, but the code does not prove it. A caller that is sure of the kernels and their
    /// data can vouch for it. Contains the reason.
    NeedsTrust(String),
    /// Fusion is not safe, for the contained reason.
    Refuted(String),
}

impl FusionVerdict {
    /// Returns the severity of the verdict: the worse, the greater.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Self::Proven => 0,
            Self::NeedsTrust(_) => 1,
            Self::Refuted(_) => 2,
        }
    }

    /// Returns the name of the verdict, in one or two words.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Proven => "proven",
            Self::NeedsTrust(_) => "needs trust",
            Self::Refuted(_) => "refuted",
        }
    }

    /// Returns the reason why fusion is not proven safe; `None` if it is.
    ///
    /// # Examples
    ///
    /// ```
    /// # use kiln_compiler as kiln;
    /// use kiln::fusion::FusionVerdict;
    ///
    /// let verdict = FusionVerdict::NeedsTrust("an index comes from memory".to_owned());
    /// assert_eq!(verdict.reason(), Some("an index comes from memory"));
    /// assert_eq!(FusionVerdict::Proven.reason(), None);
    /// ```
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Proven => None,
            Self::NeedsTrust(why) | Self::Refuted(why) => Some(why),
        }
    }
}

impl std::fmt::Display for FusionVerdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.reason() {
            None => f.write_str(self.name()),
            Some(why) => write!(f, "{}: {why}", self.name()),
        }
    }
}

/// Verdict on one memory, and how its contents can be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub memory: Memory,
    /// Worst verdict of all pairs of slots.
    pub verdict: FusionVerdict,
    /// Verdict on each pair of slots that use the memory, the earlier slot first.
    pub pairs: BTreeMap<(usize, usize), FusionVerdict>,
    /// Pairs of slots, the first and the last one, between which the verdict requires a barrier.
    pub barriers: BTreeSet<(usize, usize)>,
    /// Contents that work-items keep in variables, or the reason why they do not.
    pub promotion: Result<Promotion, String>,
    /// Pairs of scalars of two slots. If the two had the same value, more of the memory might be kept in
    /// variables.
    pub(super) unequal: BTreeSet<[Place; 2]>,
    /// Local memory in which work-groups keep the contents, or the reason why they do not.
    pub locality: Result<Locality, String>,
    /// Whether the memory cannot become private: it becomes local memory or stays in memory.
    pub(super) becomes_only_local: bool,
}

impl Judgement {
    /// Returns the judgement on a memory all of whose launches may be fused. `why_in_memory` is the reason why
    /// the memory is still used, if it is.
    pub(super) fn proven(plan: &Plan, memory: Memory, why_in_memory: Option<String>) -> Self {
        let promotion = Promotion { remains: why_in_memory, ..Promotion::default() };
        Self {
            memory,
            verdict: FusionVerdict::Proven,
            pairs: pairs(plan, memory),
            barriers: BTreeSet::new(),
            promotion: Ok(promotion),
            unequal: BTreeSet::new(),
            locality: Err("its launches run again for the elements that others read".into()),
            becomes_only_local: false,
        }
    }

    /// Returns the judgement on an image.
    pub(super) fn of_image(
        memory: Memory,
        verdict: FusionVerdict,
        pairs: BTreeMap<(usize, usize), FusionVerdict>,
        promotion: Result<Promotion, String>,
        unequal: BTreeSet<[Place; 2]>,
    ) -> Self {
        Self {
            memory,
            verdict,
            pairs,
            barriers: BTreeSet::new(),
            promotion,
            unequal,
            locality: Err("images do not become local memory".into()),
            becomes_only_local: false,
        }
    }

    /// Returns the reason why the memory is still used; `None` if it is not used.
    pub fn why_in_memory(&self) -> Option<String> {
        let not_private = match &self.promotion {
            Ok(promotion) => promotion.remains.as_ref()?,
            Err(why) => why,
        };
        match &self.locality {
            Ok(_) => None,
            // This memory could only become local memory.
            Err(why) if self.becomes_only_local => Some(why.clone()),
            Err(_) => Some(not_private.clone()),
        }
    }
}

/// Maximum number of accesses to one memory. Comparing the pairs of more accesses takes too long.
const MAX_USES: usize = 2048;

/// Returns all pairs of slots that use a memory, each with the verdict `Proven`.
pub(super) fn pairs(plan: &Plan, memory: Memory) -> BTreeMap<(usize, usize), FusionVerdict> {
    let slots: BTreeSet<_> = plan.regions(memory).map(|(place, _)| place.slot).collect();
    let from = |&first: &usize| slots.range(first + 1..).map(move |&second| (first, second));
    slots.iter().flat_map(from).map(|pair| (pair, FusionVerdict::Proven)).collect()
}

/// Returns the worst verdict. Updates the verdict on each pair of slots and the barriers that are required.
pub(super) fn verdict(
    uses: &[Use<'_>],
    view: &View,
    pairs: &mut BTreeMap<(usize, usize), FusionVerdict>,
    barriers: &mut BTreeSet<(usize, usize)>,
) -> FusionVerdict {
    if uses.len() > MAX_USES {
        let verdict = FusionVerdict::NeedsTrust(format!(
            "the kernels access it in {} places, which are too many to compare",
            uses.len()
        ));
        pairs.values_mut().for_each(|known| known.clone_from(&verdict));
        return verdict;
    }
    let mut worst = FusionVerdict::Proven;
    for (at, first) in uses.iter().enumerate() {
        for second in &uses[at + 1..] {
            let is_read_only = !first.access.kind.writes() && !second.access.kind.writes();
            if first.slot == second.slot || is_read_only || !first.region.overlaps(&second.region) {
                continue;
            }
            let (first, second) =
                if first.slot < second.slot { (first, second) } else { (second, first) };
            let found = compare(first, second, view);
            if found.rank() > 0 && is_in_group(first, second, view) {
                barriers.insert((first.slot, second.slot));
                continue;
            }
            let known = pairs.entry((first.slot, second.slot)).or_insert(FusionVerdict::Proven);
            // There may be very many pairs, so only a worse finding is formatted as text.
            if found.rank() > known.rank() {
                *known = found.verdict(first, second, &view.space);
                if known.rank() > worst.rank() {
                    worst.clone_from(known);
                }
            }
        }
    }
    worst
}

/// Result of comparing two accesses.
enum Finding {
    Proven,
    /// At least one of the accesses is to constant memory.
    Constant,
    /// The bytes of at least one of the accesses are not known.
    Unknown,
    /// The accesses may meet, as far as their bytes show.
    MayMeet([Bytes; 2]),
    /// The accesses meet in these two work-items: certainly if the flag is true, else under a condition.
    Meet([Bytes; 2], (Item, Item), bool),
}

/// Compares two accesses of different slots; the first access is that of the earlier slot.
fn compare(first: &Use<'_>, second: &Use<'_>, view: &View) -> Finding {
    let space = &view.space;
    let own = (&view.slots[first.slot], &view.slots[second.slot]);
    if first.parameter.is_constant || second.parameter.is_constant {
        return Finding::Constant;
    }
    if space.global == [1; 3] {
        return Finding::Proven;
    }
    let (Some(a), Some(b)) = (first.bytes, second.bytes) else { return Finding::Unknown };
    if never_meet(&a, &b, own, space) {
        return Finding::Proven;
    }
    let is_exact = a.start.is_exact() && b.start.is_exact();
    match is_exact.then(|| meeting(&a, &b, own)).flatten() {
        Some(items) => {
            Finding::Meet([a, b], items, first.access.is_certain && second.access.is_certain)
        }
        None => Finding::MayMeet([a, b]),
    }
}

impl Finding {
    /// Returns the rank of the verdict that follows from the finding.
    fn rank(&self) -> u8 {
        match self {
            Self::Proven => 0,
            Self::Unknown | Self::MayMeet(_) | Self::Meet(_, _, false) => 1,
            Self::Constant | Self::Meet(_, _, true) => 2,
        }
    }

    fn verdict(&self, first: &Use<'_>, second: &Use<'_>, space: &Space) -> FusionVerdict {
        match self {
            Self::Proven => FusionVerdict::Proven,
            Self::Constant => {
                let constant = if first.parameter.is_constant { first } else { second };
                FusionVerdict::Refuted(format!(
                    "{} as constant memory, which must not change while a kernel runs",
                    constant.describe()
                ))
            }
            Self::Unknown => {
                let (unknown, other) =
                    if first.bytes.is_none() { (first, second) } else { (second, first) };
                FusionVerdict::NeedsTrust(describe_unknown(unknown, other, space))
            }
            Self::MayMeet([a, _]) if is_unbounded(a, first) => {
                FusionVerdict::NeedsTrust(describe_unknown(first, second, space))
            }
            Self::MayMeet([_, b]) if is_unbounded(b, second) => {
                FusionVerdict::NeedsTrust(describe_unknown(second, first, space))
            }
            Self::MayMeet([a, b]) if needs_all(first, a, second, b, space) => {
                FusionVerdict::NeedsTrust(describe_need_of_all(first, second))
            }
            Self::MayMeet([a, b]) => FusionVerdict::NeedsTrust(format!(
                "{} at {}, some of which may be {} by `{}` in another work-item, at {}{}",
                second.describe(),
                describe_bytes(second, b, space),
                first.participle(),
                first.kernel,
                describe_bytes(first, a, space),
                advice(first, second, space)
            )),
            Self::Meet([a, b], items, is_certain) => {
                let text = if needs_all(first, a, second, b, space) {
                    describe_need_of_all(first, second)
                } else {
                    describe_meeting(first, a, second, b, *items, space)
                };
                if *is_certain {
                    FusionVerdict::Refuted(text)
                } else {
                    FusionVerdict::NeedsTrust(format!("{text}, unless a condition prevents it"))
                }
            }
        }
    }
}

/// Returns whether each work-item reads all bytes that the work-items of an earlier launch write, as the
/// consumer of a reduction over the whole range does.
fn needs_all(first: &Use<'_>, a: &Bytes, second: &Use<'_>, b: &Bytes, space: &Space) -> bool {
    let ((a_low, a_high), (b_low, b_high)) = (a.start.bounds(space), b.start.bounds(space));
    first.access.kind.writes()
        && second.access.kind == Kind::Read
        && b.start.coefficients() == [0; 3]
        // A loop over all elements, or the only element. Indices that are not known exceed the buffer.
        && (b.start.ranges().any(|range| range.step == b.width) || b.start.is_exact())
        && b_high + b.width <= second.region.offset as i128 + second.region.length as i128
        && b_low <= a_low
        && a_high + a.width <= b_high + b.width
}

/// Describes the accesses of a launch and of one that needs its results from all work-groups.
fn describe_need_of_all(first: &Use<'_>, second: &Use<'_>) -> String {
    format!(
        "`{}` needs the results of all work-groups of `{}` in {}, and work-groups cannot wait for each \
         other within a kernel",
        second.kernel,
        first.kernel,
        second.parameter.describe(second.access.parameter)
    )
}

/// Returns whether two accesses meet only in work-items of one work-group, where a barrier orders them.
fn is_in_group(first: &Use<'_>, second: &Use<'_>, view: &View) -> bool {
    let by_group = |used: &Use<'_>| {
        let bytes = used.bytes?;
        Some(Bytes { start: bytes.group?, ..bytes })
    };
    let (Some(a), Some(b), Some(groups)) = (by_group(first), by_group(second), view.groups) else {
        return false;
    };
    let is_constant = first.parameter.is_constant || second.parameter.is_constant;
    !is_constant && never_meet(&a, &b, (&groups, &groups), &groups)
}

/// Returns the pairs of slots whose accesses PoCL's compiler may reorder, where one slot writes what the
/// other one uses in memory. By the specification, the accesses of one work-item are in order. PoCL 3.1 lets
/// LLVM vectorise its loops over work-items as if they were not. Two effects of this were observed:
///
/// - A load is moved before a store to the same place if the store is under a condition.
/// - Where the loop over one dimension is unrolled and the loop over another is vectorised, accesses to
///   adjacent elements are combined into one. Loads move to the first of them, which may be before a store.
///   Stores move to the last, which may be after another store.
///
/// Accesses that go to variables do not matter: `goes_to_memory` returns false for them.
pub(super) fn unordered(
    plan: &Plan,
    slots: &[Examined],
    ranges: &Ranges,
    goes_to_memory: impl Fn(&Use<'_>) -> bool,
) -> Vec<(usize, usize)> {
    let is_plane = ranges.whole.global().iter().filter(|&&size| size > 1).count() > 1;
    let is_conditional = |used: &Use<'_>| {
        let mapping = &ranges.slots[used.slot];
        !used.access.is_certain || mapping.guard.is_some() || mapping.assignment.repeats()
    };
    let is_read = |used: &Use<'_>| used.access.kind == Kind::Read;
    let mut found = Vec::new();
    for memory in plan.memories() {
        let mut uses = Use::all(plan, slots, memory);
        uses.retain(&goes_to_memory);
        uses.sort_by_key(|used| used.slot);
        for (at, first) in uses.iter().enumerate() {
            for second in uses[at + 1..].iter().filter(|second| second.slot != first.slot) {
                let is_moved = match (is_read(first), is_read(second)) {
                    (true, true) => false,
                    (false, true) => true,
                    (true, false) => is_conditional(first) || is_conditional(second),
                    (false, false) => is_plane || is_conditional(first) || is_conditional(second),
                };
                if is_moved {
                    found.push((first.slot, second.slot));
                }
            }
        }
    }
    found
}

/// Returns the smallest set of slots before which barriers are needed: one between the slots of each pair in
/// `between`, and one between slots where work-groups pass values on.
pub(super) fn barriers(
    judgements: &[Judgement],
    between: impl IntoIterator<Item = (usize, usize)>,
) -> BTreeSet<usize> {
    let of_groups = judgements.iter().flat_map(|judgement| &judgement.barriers);
    let mut between: Vec<_> = of_groups.copied().chain(between).collect();
    between.sort_unstable_by_key(|&(_, last)| last);
    let mut barriers = BTreeSet::new();
    for (first, last) in between {
        if barriers.range(first + 1..=last).next().is_none() {
            barriers.insert(last);
        }
    }
    barriers
}

/// Global ids of a work-item.
type Item = [i128; 3];

/// Returns the ids of two different work-items, one of which touches with `a` what the other touches with
/// `b`, if such a pair is easily found.
fn meeting(a: &Bytes, b: &Bytes, spaces: (&Space, &Space)) -> Option<(Item, Item)> {
    let (a_space, b_space) = spaces;
    let at = |bytes: &Bytes, item: &Item| {
        let ids = bytes.start.coefficients().into_iter().zip(item);
        ids.fold(bytes.start.low, |sum, (factor, id)| {
            sum.saturating_add(factor.saturating_mul(*id))
        })
    };
    let samples = |d: usize| {
        let (first, last) = (b_space.offset[d], b_space.offset[d] + b_space.global[d] - 1);
        [first + (last - first) / 2, (first + 1).min(last), first, last]
    };
    let (xs, ys, zs) = (samples(0), samples(1), samples(2));
    let b_items = zs
        .into_iter()
        .flat_map(|z| ys.into_iter().flat_map(move |y| xs.into_iter().map(move |x| [x, y, z])));
    for b_item in b_items {
        let start = at(b, &b_item);
        for byte in [start, start + b.width - 1] {
            let a_item = solve(a, byte, a_space);
            let first = at(a, &a_item);
            let overlap = first < start + b.width && start < first + a.width;
            if overlap && a_item != b_item {
                return Some((a_item, b_item));
            }
            // All work-items that differ only in an id on which the access does not depend touch the same
            // bytes.
            let mut other = a_item;
            for d in (0..3).filter(|&d| a.start.coefficients()[d] == 0 && a_space.global[d] > 1) {
                let (low, high) = (a_space.offset[d], a_space.offset[d] + a_space.global[d] - 1);
                other[d] = if b_item[d] == low { high } else { low };
            }
            if overlap && other != b_item {
                return Some((other, b_item));
            }
        }
    }
    None
}

/// Returns the work-item whose access begins next to a byte, if the coefficients are those of a row-major
/// index.
fn solve(bytes: &Bytes, byte: i128, space: &Space) -> Item {
    let coefficients = bytes.start.coefficients();
    let mut dimensions = [0, 1, 2];
    dimensions.sort_by_key(|&d| std::cmp::Reverse(coefficients[d].unsigned_abs()));
    let mut item = space.offset;
    let mut rest = byte - bytes.start.low;
    for d in dimensions {
        rest -= coefficients[d].saturating_mul(space.offset[d]);
    }
    for d in dimensions {
        let factor = coefficients[d];
        if factor != 0 {
            let steps =
                if factor > 0 { rest.div_euclid(factor) } else { -rest.div_euclid(-factor) };
            let steps = steps.clamp(0, space.global[d] - 1);
            item[d] += steps;
            rest -= steps * factor;
        }
    }
    item
}

/// Describes two accesses that meet.
fn describe_meeting(
    first: &Use<'_>,
    a: &Bytes,
    second: &Use<'_>,
    b: &Bytes,
    (own, other): (Item, Item),
    space: &Space,
) -> String {
    let distance: Vec<_> = own.iter().zip(&other).map(|(a, b)| (a - b).abs()).collect();
    let is_neighbour = distance.iter().sum::<i128>() == 1;
    let whose = if is_neighbour && a.start.coefficients() == b.start.coefficients() {
        "the neighbouring work-item".to_owned()
    } else {
        let id = |item: Item| match space.dimensions {
            1 => item[0].to_string(),
            dimensions => format!("{:?}", &item[..dimensions]),
        };
        format!("another work-item: both {} and {} access it", id(own), id(other))
    };
    format!(
        "{} at {}, {} by `{}` in {whose}",
        second.describe(),
        describe_bytes(second, b, space),
        first.participle(),
        first.kernel
    )
}

/// Returns whether an access may touch more bytes than its region has: nothing limits its offsets.
fn is_unbounded(bytes: &Bytes, used: &Use<'_>) -> bool {
    bytes.start.high - bytes.start.low + bytes.width > used.region.length as i128
}

/// Describes an access whose bytes are not known, and another one that may meet it.
fn describe_unknown(unknown: &Use<'_>, other: &Use<'_>, space: &Space) -> String {
    let parts = if unknown.image.is_some() { "pixels" } else { "bytes" };
    format!(
        "{} {}; `{}` may have {} the same {parts} in another work-item{}",
        unknown.describe(),
        unknown.why_unknown(),
        other.kernel,
        other.participle(),
        advice(unknown, other, space)
    )
}

/// Returns what to do if more would be known about two accesses with a stated size of work-groups.
fn advice(first: &Use<'_>, second: &Use<'_>, space: &Space) -> &'static str {
    let is_by_group = first.is_by_group() || second.is_by_group();
    match space.local {
        None if is_by_group => "; state the size of work-groups with `Launch::local`",
        _ => "",
    }
}

/// Describes the elements of an access, such as `gid-1` or `gid(0)+8*gid(1)`, or its bytes if it is not aligned
/// to its own size.
fn describe_bytes(used: &Use<'_>, bytes: &Bytes, space: &Space) -> String {
    if let Some(image) = &used.image {
        return describe_pixel(bytes, image.kind.dimensions(), space);
    }
    let (start, width) = (&bytes.start, bytes.width);
    let (low, high) = (start.low, start.high);
    let numbers = start.coefficients().into_iter().chain([low, high]);
    // The width of a copy may be 0.
    if width > 0 && numbers.into_iter().all(|number| number % width == 0) {
        let is_fixed = start.coefficients() == [0; 3];
        let [first, last] =
            [low, high].map(|constant| describe_sum(start.coefficients(), constant, width, space));
        return match (is_fixed, low == high) {
            (true, true) => format!("element {first}"),
            (true, false) => format!("the elements {first} to {last}"),
            (false, true) => first,
            (false, false) => format!("{first} to {last}"),
        };
    }
    let text = describe_sum(start.coefficients(), low, 1, space);
    match high - low + width {
        1 => format!("byte {text}"),
        count => format!("the {count} bytes from {text} on"),
    }
}

/// Describes the coordinates of a pixel, such as `the pixel (gid(0)-1, gid(1))`.
fn describe_pixel(bytes: &Bytes, dimensions: usize, space: &Space) -> String {
    let pitch = PIXEL_PITCH as i128;
    // Coordinates are the digits of an offset, which may be negative.
    let digit = |number: i128, d: usize| {
        let shifted = (0..d).fold(number, |rest, _| (rest + pitch / 2).div_euclid(pitch));
        if d + 1 == dimensions {
            shifted
        } else {
            (shifted + pitch / 2).rem_euclid(pitch) - pitch / 2
        }
    };
    let pixel = |number: i128| number / PIXEL_BYTES as i128;
    let (low, high) = (pixel(bytes.start.low), pixel(bytes.start.high));
    let coordinates = (0..dimensions).map(|d| {
        let factors = bytes.start.coefficients().map(|factor| digit(pixel(factor), d));
        let [low, high] =
            [low, high].map(|constant| describe_sum(factors, digit(constant, d), 1, space));
        if low == high { low } else { format!("{low} to {high}") }
    });
    format!("the pixel ({})", coordinates.collect::<Vec<_>>().join(", "))
}

/// Describes a sum of products with ids and a constant, all divided by `unit`.
fn describe_sum(coefficients: [i128; 3], constant: i128, unit: i128, space: &Space) -> String {
    let id = |d: usize| match space.dimensions {
        1 => "gid".to_owned(),
        _ => format!("gid({d})"),
    };
    let mut text = String::new();
    for (d, &factor) in coefficients.iter().enumerate().filter(|(_, factor)| **factor != 0) {
        let plus = if text.is_empty() { "" } else { "+" };
        match factor / unit {
            1 => _ = write!(text, "{plus}{}", id(d)),
            factor => _ = write!(text, "{plus}{factor}*{}", id(d)),
        }
    }
    match constant / unit {
        constant if text.is_empty() => constant.to_string(),
        0 => text,
        constant => format!("{text}{constant:+}"),
    }
}
