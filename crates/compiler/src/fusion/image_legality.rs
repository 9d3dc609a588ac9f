//! Legality of fusion for images that launches share.
//!
//! OpenCL does not define what a kernel reads from an image that it also writes, unless it declares the image
//! as `read_write`. So a fused kernel never does both. An image that a launch writes and another one uses is
//! legal only if
//!
//! * every read is of a pixel that the same work-item surely wrote before, so that the pixel is passed on in a
//!   variable,
//! * the format stores pixels exactly as kernels write them, so that the variable holds what would be read, and
//! * at most one launch still writes the image.
//!
//! The caller cannot vouch for anything else, so the verdict is never [`FusionVerdict::NeedsTrust`].

use std::collections::{BTreeMap, BTreeSet};

use super::coordinates::View;
use super::dependence::Use;
use super::examined::Examined;
use super::legality::{self, FusionVerdict, Judgement};
use super::private_legality::{Promotion, promotion};
use super::promote::Private;
use crate::ImageKind;
use crate::analysis::access::Kind;
use crate::analysis::pixel_access::exact_channels;
use crate::plan::{Argument, Image, Internalization, Memory, Place, Plan};

/// Verdicts on the pairs of launches that use an image.
type Pairs = BTreeMap<(usize, usize), FusionVerdict>;

/// Judges an image; returns `None` for the memory of buffers alone. `view` are the coordinates in which the
/// accesses are expressed.
pub(super) fn judge(
    plan: &Plan,
    memory: Memory,
    slots: &[Examined],
    view: &View,
) -> Option<Judgement> {
    let places: Vec<_> =
        plan.places().filter(|(_, argument)| argument.memory() == Some(memory)).collect();
    places.iter().find(|(_, argument)| matches!(argument, Argument::Image(_)))?;
    let mut pairs = legality::pairs(plan, memory);
    let uses = Use::all(plan, slots, memory);
    if !is_passed_on(&pairs, &uses) {
        let kept = Err("it is an image that no launch passes on to another one".into());
        let verdict = FusionVerdict::Proven;
        return Some(Judgement::of_image(memory, verdict, pairs, kept, BTreeSet::new()));
    }
    let mut unequal = BTreeSet::new();
    let found = same_image(slots, &places)
        .and_then(|image| passed_on(plan, &image, slots, (&uses, view), &mut pairs, &mut unequal));
    let (verdict, promotion) = match found {
        Ok(promotion) => (FusionVerdict::Proven, promotion),
        Err(why) => (FusionVerdict::Refuted(why.clone()), Err(why)),
    };
    if let Some(why) = verdict.reason() {
        refute(&mut pairs, why);
    }
    Some(Judgement::of_image(memory, verdict, pairs, promotion, unequal))
}

/// Returns whether several launches use the image, and one of them writes it.
fn is_passed_on(pairs: &Pairs, uses: &[Use<'_>]) -> bool {
    !pairs.is_empty() && uses.iter().any(|used| used.access.kind.writes())
}

/// Refutes the pairs with the given reason, unless a pair has a reason of its own.
fn refute(pairs: &mut Pairs, why: &str) {
    let has_reason = pairs.values().any(|verdict| *verdict != FusionVerdict::Proven);
    for verdict in pairs.values_mut() {
        if !has_reason || *verdict != FusionVerdict::Proven {
            let own = verdict.reason().unwrap_or(why).to_owned();
            *verdict = FusionVerdict::Refuted(own);
        }
    }
}

/// Returns the image that all arguments stand for.
///
/// # Errors
///
/// Fails with the reason if the memory is used as a buffer, too, or as several images.
fn same_image(slots: &[Examined], places: &[(Place, &Argument)]) -> Result<Image, String> {
    let mut first = None;
    for (place, argument) in places {
        let Examined { kernel, parameters, .. } = &slots[place.slot];
        let name = || {
            let parameter = parameters.get(place.argument);
            parameter.map_or_else(String::new, |parameter| parameter.describe(place.argument))
        };
        match argument {
            Argument::Image(image) if image.shape.kind == ImageKind::D1Buffer => {
                return Err(format!(
                    "{} of `{kernel}` is an image over a buffer that the launches write",
                    name()
                ));
            }
            Argument::Image(image) if *first.get_or_insert(*image) == *image => {}
            _ => {
                return Err(format!(
                    "{} of `{kernel}` is memory that other launches use in another form",
                    name()
                ));
            }
        }
    }
    first.ok_or_else(|| "no launch uses it".into())
}

/// Returns the pixels that work-items pass on in variables, or the reason why there are none. All reads are
/// among them.
///
/// # Errors
///
/// Fails with the reason if the launches may not be fused.
fn passed_on(
    plan: &Plan,
    image: &Image,
    slots: &[Examined],
    (uses, view): (&[Use<'_>], &View),
    pairs: &mut Pairs,
    unequal: &mut BTreeSet<[Place; 2]>,
) -> Result<Result<Promotion, String>, String> {
    let memory = image.region.memory;
    if let Some(why) = read_before_write(uses) {
        return Err(why);
    }
    let mut barriers = BTreeSet::new();
    let verdict = legality::verdict(uses, view, pairs, &mut barriers);
    if let Some(why) = verdict.reason() {
        return Err(why.to_owned());
    }
    if let Some(&(_, reader)) = barriers.first() {
        return Err(format!(
            "`{}` needs pixels that other work-items of its work-group wrote, and one kernel cannot both \
             read and write an image",
            slots[reader].kernel
        ));
    }
    let reads = || uses.iter().filter(|used| used.access.kind == Kind::Read);
    if exact_channels(image.shape.format).is_none()
        && let Some(read) = reads().next()
    {
        return Err(format!(
            "{}, which an earlier launch writes, and images of the format `{}` do not store pixels exactly as \
             kernels write them",
            read.describe(),
            image.shape.format
        ));
    }
    if plan.forms.get(&memory) == Some(&Internalization::Local) {
        return Err("it was requested to be local memory, but is an image".into());
    }
    if view.has_portions {
        return Err("a work-item does the work of several work-items of a launch".into());
    }
    let found = promotion(plan, memory, slots, uses, view, unequal);
    if let Some(read) = reads().find(|read| !is_private(&found, read)) {
        let why = match &found {
            Ok(found) => found.remains.clone().unwrap_or_else(|| read.describe()),
            Err(why) => why.clone(),
        };
        return Err(format!("{why}, and one kernel cannot both read and write an image"));
    }
    let in_memory =
        uses.iter().filter(|used| used.access.kind.writes() && !is_private(&found, used));
    let writers: BTreeSet<_> = in_memory.map(|used| used.slot).collect();
    if let [first, .., last] = *writers.iter().collect::<Vec<_>>() {
        return Err(format!(
            "`{}` and `{}` both write pixels of it, and it is not certain that the later one writes all pixels \
             of the earlier one",
            slots[*first].kernel, slots[*last].kernel
        ));
    }
    Ok(found)
}

/// Returns why a launch that reads the image cannot be fused with a later one that writes it, if there are
/// such.
fn read_before_write(uses: &[Use<'_>]) -> Option<String> {
    let writes = |used: &&Use<'_>| used.access.kind.writes();
    let first = uses.iter().filter(writes).map(|used| used.slot).min()?;
    let read = uses.iter().find(|used| !writes(used) && used.slot < first)?;
    let write = uses.iter().find(writes)?;
    Some(format!(
        "{}, and `{}` writes it later as {}: one kernel cannot both read and write an image",
        read.describe(),
        write.kernel,
        write.parameter.describe(write.access.parameter)
    ))
}

/// Returns whether an access goes to a variable and not to the image.
fn is_private(promotion: &Result<Promotion, String>, used: &Use<'_>) -> bool {
    let place = Place { slot: used.slot, argument: used.access.parameter };
    let accesses = promotion.as_ref().ok().and_then(|found| found.accesses.get(&place));
    let found = used.access.location.and_then(|location| accesses?.get(&location.offset));
    found.is_some_and(|place| !place.in_memory)
}

/// Returns why launches cannot be fused although their accesses to images allow it: a launch that reads an
/// image needs its parameter for something else than its pixels and its size. Refutes the image's judgement.
pub(super) fn refusal(
    plan: &Plan,
    slots: &[Examined],
    privates: &[Vec<Private>],
    judgements: &mut [Judgement],
) -> Option<String> {
    for (place, argument) in plan.places() {
        let Argument::Image(image) = argument else { continue };
        let memory = image.region.memory;
        let parameter = &slots[place.slot].parameters[place.argument];
        let uses = Use::all(plan, slots, memory);
        let is_replaced = privates[place.slot]
            .iter()
            .any(|private| private.parameter == place.argument && private.replaced.is_some());
        if is_replaced
            || !parameter.is_read_only_image
            || !is_passed_on(&legality::pairs(plan, memory), &uses)
        {
            continue;
        }
        let judgement = judgements.iter_mut().find(|judgement| judgement.memory == memory)?;
        let why = judgement.why_in_memory().unwrap_or_default();
        let why =
            format!("{why}, and one kernel cannot take an image both as read-only and to write it");
        refute(&mut judgement.pairs, &why);
        judgement.verdict = FusionVerdict::Refuted(why.clone());
        return Some(why);
    }
    None
}
