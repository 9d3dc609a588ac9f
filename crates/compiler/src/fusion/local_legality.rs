//! Legality of local memory: which contents of a memory a work-group can keep in local memory.
//!
//! A work-group's part of a memory can become a variable in local memory on three conditions. No other
//! work-group uses the part. Everything that is read there was certainly written before by the same
//! work-group. The memory is not read afterwards.
//!
//! Every access then goes to the variable, at its place in the part. Barriers are placed where the memory
//! itself needs them.

use super::coordinates::View;
use super::dependence::{Use, never_meet};
use super::examined::Examined;
use crate::analysis::access::{Kind, MAX_ALIGN};
use crate::analysis::affine::{Form, Space};
use crate::plan::{Memory, Plan};

/// Local variable of each work-group that replaces a memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locality {
    /// Size of the variable in bytes.
    pub size: u32,
    pub(super) align: u32,
    /// Factors of the work-group's ids in the start of its part, in bytes.
    pub(super) factors: [i128; 3],
    /// Start of the first work-group's part, in bytes from the memory's first byte.
    pub(super) first: i128,
    /// Size of the variable's elements in bytes, 4 or 1. All places in the variable are multiples of it.
    pub(super) unit: u32,
}

/// Maximum number of accesses to one memory. With more, it takes too long to find out what they cover.
const MAX_USES: usize = 64;
/// Maximum number of work-items of a work-group. The bytes of each work-item are marked one by one.
const MAX_GROUP: i128 = 1 << 12;
/// Maximum number of bytes of the variable, each of which has a mark.
const MAX_BYTES: usize = 1 << 20;

/// Decides whether a memory becomes local memory. Its launches must be proven safe to fuse.
///
/// # Errors
///
/// The reason why the memory stays in memory.
pub(super) fn locality(
    plan: &Plan,
    memory: Memory,
    slots: &[Examined],
    uses: &[Use<'_>],
    view: &View,
) -> Result<Locality, String> {
    if !plan.dead.contains(&memory) {
        return Err("its contents may be read later".into());
    }
    let special = |used: &&Use<'_>| matches!(used.access.kind, Kind::Atomic | Kind::Escape);
    if let Some(used) = uses.iter().find(special) {
        return Err(format!("{} in a way that only global memory supports", used.describe()));
    }
    if uses.len() > MAX_USES {
        return Err(format!("it is accessed in {} places, which are too many", uses.len()));
    }
    let unknown = || "the size of work-groups is not known".to_owned();
    let local = view.space.local.ok_or_else(unknown)?;
    let groups = view.space.work_groups().ok_or_else(unknown)?;
    if (0..3).any(|d| local[d] < 1 || view.space.global[d] % local[d] != 0) {
        return Err("work-groups differ in size".into());
    }
    if local.iter().fold(1_i128, |product, size| product.saturating_mul(*size)) > MAX_GROUP {
        return Err("work-groups are too large to determine which bytes they write".into());
    }
    let window = window(plan, slots, uses, &groups)?;
    for (slot, examined) in slots.iter().enumerate() {
        if examined.groups.synchronizes {
            refuse_order(slot, uses, view)?;
        }
        covered(slot, uses, view, local, &window)?;
    }
    Ok(window)
}

/// Returns the part of the memory that each work-group uses.
fn window(
    plan: &Plan,
    slots: &[Examined],
    uses: &[Use<'_>],
    groups: &Space,
) -> Result<Locality, String> {
    let mut range: Option<(Form, [i128; 3], i128, i128)> = None;
    let mut align = 4;
    for used in uses {
        let (group, width, stated) = used.group_bytes(slots)?;
        align = align.max((width as u128).next_power_of_two().min(MAX_ALIGN.into()) as i128);
        align = align.max(i128::from(stated));
        let own = factors(&group, groups);
        let high = group.high + width;
        range = Some(match range {
            None => (group, own, group.low, high),
            Some((known, factors, low, most)) if factors == own => {
                (known, factors, low.min(group.low), most.max(high))
            }
            Some(_) => {
                return Err(format!(
                    "{} at other offsets than the other accesses of a work-group",
                    used.describe()
                ));
            }
        });
    }
    let (group, factors, low, high) = range.ok_or("it is not used")?;
    if high - low > group.least_distance(groups) {
        return Err(format!(
            "a work-group would need {} bytes of it, some of which another work-group uses",
            high - low
        ));
    }
    if align > MAX_ALIGN.into() || factors.iter().any(|factor| factor % align != 0) {
        return Err(format!("the parts that work-groups use are not aligned to {align} bytes"));
    }
    let first = low.div_euclid(align) * align;
    let size = (high - first + 3) / 4 * 4;
    match u32::try_from(size) {
        Ok(bytes) if bytes as usize <= plan.target.local_memory.min(MAX_BYTES) => {
            Ok(Locality { size: bytes, align: align as u32, factors, first, unit: 4 })
        }
        _ => Err(format!(
            "a work-group would need {size} bytes of local memory for it, but has only {} bytes",
            plan.target.local_memory
        )),
    }
}

/// Returns the factors of the work-group ids, 0 in dimensions with a single work-group.
fn factors(group: &Form, groups: &Space) -> [i128; 3] {
    std::array::from_fn(|d| if groups.global[d] > 1 { group.coefficients()[d] } else { 0 })
}

impl Use<'_> {
    /// Returns the bytes of the access by the work-group's ids: their start, their number and their declared
    /// alignment.
    fn group_bytes(&self, slots: &[Examined]) -> Result<(Form, i128, u32), String> {
        let refuse = |why: &str| Err(format!("{} {why}", self.describe()));
        let Some(bytes) = self.bytes else {
            return refuse(&self.why_unknown());
        };
        let Some(location) = self.access.location else {
            return refuse("in a function that it calls");
        };
        let Some(group) = bytes.group else {
            return refuse("at offsets that its work-group does not determine");
        };
        if group.high - group.low + bytes.width > self.region.length as i128 {
            return refuse(&self.why_unknown());
        }
        if self.parameter.is_constant {
            return refuse("as constant memory");
        }
        let Examined { accesses, movable, .. } = &slots[self.slot];
        let here = accesses.all.iter().filter(|access| access.location == Some(location));
        match movable.get(&location.offset) {
            Some(&stated) if here.count() == 1 => Ok((group, bytes.width, stated)),
            _ => refuse("in a way that only global memory supports"),
        }
    }
}

/// Refuses a slot whose work-items may pass values to each other within the launch, by its own barriers. Such
/// barriers are for memory and may have no effect on local memory.
///
/// # Errors
///
/// The access by which the slot may do so.
fn refuse_order(slot: usize, uses: &[Use<'_>], view: &View) -> Result<(), String> {
    let own: Vec<_> = uses.iter().filter(|used| used.slot == slot).collect();
    for writing in own.iter().filter(|used| used.access.kind.writes()) {
        for other in &own {
            let space = &view.slots[slot];
            let is_apart = writing
                .bytes
                .zip(other.bytes)
                .is_some_and(|(a, b)| never_meet(&a, &b, (space, space), &view.space));
            if !is_apart {
                return Err(format!(
                    "{}, possibly for other work-items that wait at a barrier of the kernel",
                    writing.describe()
                ));
            }
        }
    }
    Ok(())
}

/// Checks that everything that a slot reads was certainly written by the same work-group in earlier slots.
///
/// # Errors
///
/// The read for which this is not certain.
fn covered(
    slot: usize,
    uses: &[Use<'_>],
    view: &View,
    local: [i128; 3],
    window: &Locality,
) -> Result<(), String> {
    let is_read = |used: &&Use<'_>| used.slot == slot && !used.access.kind.writes();
    if !uses.iter().any(|used| is_read(&used)) {
        return Ok(());
    }
    let mut written = vec![false; window.size as usize];
    let earlier = uses.iter().filter(|used| {
        let is_sure = used.access.kind.writes() && used.access.is_certain;
        is_sure && used.slot < slot && view.covers(used.slot, slot)
    });
    for used in earlier {
        used.mark(local, window, &mut written);
    }
    for used in uses.iter().filter(is_read) {
        let range = used.bytes.and_then(|bytes| {
            let group = bytes.group?;
            let from = usize::try_from(group.low - window.first).ok()?;
            let to = usize::try_from(group.high + bytes.width - window.first).ok()?;
            written.get(from..to)
        });
        if !range.is_some_and(|bytes| bytes.iter().all(|&is_written| is_written)) {
            return Err(format!(
                "{}, but not all of these bytes are certainly written before",
                used.describe()
            ));
        }
    }
    Ok(())
}

impl Use<'_> {
    /// Marks the bytes that the work-items of a work-group touch together, if these are known.
    fn mark(&self, local: [i128; 3], window: &Locality, touched: &mut [bool]) {
        let Some(bytes) = self.bytes else { return };
        let (Some(group), Some(inside)) = (bytes.group, bytes.inside) else { return };
        // `group.low` is the place of the work-item with the lowest product. The place of work-item 0 follows
        // from it.
        let mut place = group.low - window.first;
        for d in 0..3 {
            place -= inside[d].saturating_mul(local[d] - 1).min(0);
        }
        for z in 0..local[2] {
            for y in 0..local[1] {
                for x in 0..local[0] {
                    let own = [x, y, z].into_iter().zip(inside);
                    let start = own.fold(place, |sum, (id, factor)| {
                        sum.saturating_add(id.saturating_mul(factor))
                    });
                    let ends = (usize::try_from(start), usize::try_from(start + bytes.width));
                    if let (Ok(from), Ok(to)) = ends
                        && let Some(own) = touched.get_mut(from..to)
                    {
                        own.fill(true);
                    }
                }
            }
        }
    }
}
