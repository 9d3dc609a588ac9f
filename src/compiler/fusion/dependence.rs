//! Dependences between launches: accesses to the same memory, and whether two of them may meet (touch the same
//! byte) in different work-items.
//!
//! Two accesses that begin at `c · x + r` and `c · y + s`, for work-items `x` and `y`, meet only where
//! `c · (x - y)` lies in the window that the remainders and the widths span. If both have the same
//! coefficients, [`never_meet`] compares this window with the least distance of `c · d` from 0, for any
//! difference `d` of ids but 0. A window between 0 and that distance, on either side, is never hit. In one
//! dimension, the multiples of the coefficient are tested themselves. Accesses that advance in strides have a
//! window for each stride.

use std::collections::HashMap;

use super::access::{Access, Accesses, Bytes, GroupUse, Kind, UNKNOWN_OFFSETS};
use super::affine::Space;
use super::explain::{Cause, Origin};
use super::plan::{Memory, Plan, Region};

/// Results of the analysis of a slot's kernel.
pub(super) struct Examined {
    pub(super) kernel: String,
    pub(super) function: u32,
    pub(super) accesses: Accesses,
    pub(super) parameters: Vec<Parameter>,
    /// Declared alignment of each instruction whose bytes can be moved elsewhere, by the word of the
    /// function's body.
    pub(super) movable: HashMap<u32, u32>,
    pub(super) groups: GroupUse,
    /// Origins of the accesses, for messages, by the word of the function's body.
    pub(super) origins: HashMap<u32, Origin>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Parameter {
    pub(super) name: Option<String>,
    /// Whether the parameter is a pointer to constant memory.
    pub(super) is_constant: bool,
}

impl Parameter {
    /// Returns the parameter in words: its name, or its position `at`.
    pub(super) fn describe(&self, at: usize) -> String {
        match &self.name {
            Some(name) => format!("`{name}`"),
            None => format!("its argument {at}"),
        }
    }
}

/// Access to a memory, with its bytes counted in the memory instead of the buffer.
pub(super) struct Use<'a> {
    pub(super) slot: usize,
    pub(super) kernel: &'a str,
    pub(super) parameter: &'a Parameter,
    pub(super) access: &'a Access,
    /// Bytes that are touched, from the memory's first byte; `None` if they are not known.
    pub(super) bytes: Option<Bytes>,
    /// Region of the memory that the argument stands for.
    pub(super) region: Region,
    origin: Option<&'a Origin>,
}

impl<'a> Use<'a> {
    pub(super) fn memory(&self) -> Memory {
        self.region.memory
    }

    /// Returns the accesses of all slots to a memory.
    pub(super) fn all(plan: &Plan, slots: &'a [Examined], memory: Memory) -> Vec<Self> {
        let mut uses = Vec::new();
        for (place, region) in plan.regions(memory) {
            let Examined { kernel, accesses, parameters, origins, .. } = &slots[place.slot];
            let own = accesses.all.iter().filter(|access| access.parameter == place.argument);
            uses.extend(own.map(|access| {
                let mut bytes = access.bytes;
                if let Some(Bytes { start, group, .. }) = &mut bytes {
                    for form in [Some(start), group.as_mut()].into_iter().flatten() {
                        form.low += region.offset as i128;
                        form.high += region.offset as i128;
                    }
                }
                let parameter = &parameters[place.argument];
                let origin = access.location.and_then(|location| origins.get(&location.offset));
                Use { slot: place.slot, kernel, parameter, access, bytes, region, origin }
            }));
        }
        uses
    }

    /// Returns a description of the access, such as "`blur` reads `src`", with its line if that is known.
    pub(super) fn describe(&self) -> String {
        let name = self.parameter.describe(self.access.parameter);
        let line = self.origin.and_then(|origin| origin.line.as_deref());
        let line = line.map_or_else(String::new, |line| format!(" ({line})"));
        let verb = match self.access.kind {
            Kind::Read => "reads",
            Kind::Write => "writes",
            Kind::Atomic => "modifies atomically",
            Kind::Escape => return format!("in `{}`, {name}{line}", self.kernel),
        };
        format!("`{}` {verb} {name}{line}", self.kernel)
    }

    /// Returns the reason why the accessed bytes are not known, in words that follow the description.
    pub(super) fn why_unknown(&self) -> String {
        let cause = self.origin.and_then(|origin| origin.cause.as_ref());
        match (self.access.note, cause) {
            (None | Some(UNKNOWN_OFFSETS), Some(cause)) => cause.describe(),
            (note, _) => note.unwrap_or(UNKNOWN_OFFSETS).to_owned(),
        }
    }

    /// Returns the reason why the accessed bytes are not always the same, in words that follow the description.
    pub(super) fn why_changing(&self) -> String {
        let cause = self.origin.and_then(|origin| origin.cause.as_ref());
        match cause.and_then(Cause::counter) {
            Some(counter) => format!("in the loop over `{counter}`, each time at another offset"),
            None => "at offsets that change while it runs".to_owned(),
        }
    }

    /// Whether the offsets depend on the size of work-groups, or on ids within them.
    pub(super) fn is_by_group(&self) -> bool {
        self.origin.is_some_and(|origin| origin.is_by_group)
    }

    /// Returns the past participle of the access's verb: "read" or "written".
    pub(super) fn participle(&self) -> &'static str {
        if self.access.kind == Kind::Read { "read" } else { "written" }
    }
}

/// Returns whether two different work-items never touch the same byte, one with `a` and the other with `b`.
/// `own` holds the work-items that make each access, `space` all work-items.
pub(super) fn never_meet(a: &Bytes, b: &Bytes, own: (&Space, &Space), space: &Space) -> bool {
    let ends = |bytes: &Bytes, space: &Space| {
        let (low, high) = bytes.start.bounds(space);
        (low, high + bytes.width - 1)
    };
    let ((a_low, a_high), (b_low, b_high)) = (ends(a, own.0), ends(b, own.1));
    if a_high < b_low || b_high < a_low {
        return true;
    }
    if a.start.coefficients() != b.start.coefficients() {
        return false;
    }
    // The accesses meet where the coefficients times the difference of the ids are in this range.
    let low = b.start.low - a.start.high - a.width + 1;
    let high = b.start.high + b.width - 1 - a.start.low;
    let least = a.start.least_distance(space);
    if -least < low && high < least {
        return true;
    }
    if strides_apart(a, b, least, space) {
        return true;
    }
    // In one dimension, these products are multiples of one number.
    let mut dimensions = (0..3).filter(|&d| space.global[d] > 1);
    match (dimensions.next(), dimensions.next()) {
        (Some(d), None) => {
            let (step, most) = (a.start.coefficients()[d].abs(), space.global[d] - 1);
            if step == 0 {
                return 0 < low || high < 0;
            }
            let hits = |low: i128, high: i128| {
                let next = (low.max(step) + step - 1) / step;
                next <= most && next * step <= high
            };
            !hits(low, high) && !hits(-high, -low)
        }
        _ => false,
    }
}

/// Returns whether accesses that advance in strides never reach what another work-item touches. An example is
/// a loop that starts at a work-item's id and advances by the number of all work-items. `least` is the
/// [least distance](super::affine::Form::least_distance) of two work-items, in bytes.
fn strides_apart(a: &Bytes, b: &Bytes, least: i128, space: &Space) -> bool {
    let stride = match (a.start.step(), b.start.step()) {
        (0, step) | (step, 0) => step,
        (one, other) if one == other => one,
        _ => return false,
    };
    if stride < 2 {
        return false;
    }
    // The accesses meet where the coefficients times the difference of the ids are as far apart as the
    // remainders, up to the widths. These windows are one stride apart.
    let most = (0..3).fold(0_i128, |sum, d| {
        let own = a.start.coefficients()[d].saturating_abs();
        sum.saturating_add(own.saturating_mul(space.global[d] - 1))
    });
    let rest = (b.start.low - a.start.low).rem_euclid(stride);
    let window = |number: i128| {
        let at = rest + number * stride;
        (at - a.width + 1, at + b.width - 1)
    };
    let (mut first, mut last) = (0, 0);
    while window(first - 1).1 >= -most && first > -4 {
        first -= 1;
    }
    while window(last + 1).0 <= most && last < 4 {
        last += 1;
    }
    let is_all = first > -4 && last < 4;
    is_all
        && (first..=last).all(|number| {
            let (low, high) = window(number);
            (-least < low && high < least) || high < -most || low > most
        })
}
