//! Proof that the launches of a batch are independent: none writes bytes that another one accesses.
//!
//! Each launch accesses spans of bytes of its memories. They are known without the values of the scalars if
//! the launches use different memories, or only read in common; the proof then holds for all values. Only where
//! that does not suffice, the bytes are narrowed by the values, on which the proof then relies.

use kiln_spirv::Result;

use super::super::attempt::Obstacle;
use super::super::examined::value;
use super::super::outcome::Outcome;
use crate::analysis::access::{self, Access, Accesses, Kind, Value};
use crate::analysis::affine::Space;
use crate::analysis::declaration::Parameter;
use crate::plan::{Argument, Memory, Place, Plan, Slot};
use crate::transform::extract::{Kernel, in_launch};

/// Bytes of a memory that a launch accesses through one argument.
struct Span {
    slot: usize,
    argument: usize,
    memory: Memory,
    /// First byte, and the byte after the last one.
    bytes: (i128, i128),
    writes: bool,
}

/// Proves that the launches of a plan are independent, and notes in `outcome` the scalars on which that relies.
/// Returns the accesses of the first launch.
pub(super) fn prove(
    plan: &Plan,
    kernel: &Kernel,
    parameters: &[Parameter],
    outcome: &mut Outcome,
) -> Result<Accesses, Obstacle> {
    let definitions = kernel.module.definitions();
    let all = |with_values: bool| {
        let slots = plan.slots.iter().enumerate();
        let accesses = slots.map(|(at, slot)| {
            let space = Space::new(&slot.range);
            let accesses = if with_values {
                let values: Vec<_> = slot.arguments.iter().map(value).collect();
                access::analyse_values(&definitions, kernel.function, &values, &space)
                    .map(|values| values.accesses)
            } else {
                access::analyse(&definitions, kernel.function, &without_scalars(slot), &space)
            };
            let accesses = accesses.map_err(|error| in_launch(at, slot, error))?;
            let spans = spans(at, slot, &accesses, &space);
            Ok((accesses, spans))
        });
        accesses.collect::<Result<Vec<_>>>()
    };
    let mut found = all(false)?;
    if conflict(&found).is_some() {
        found = all(true)?;
        let scalars = found.iter().enumerate().flat_map(|(slot, (accesses, _))| {
            accesses.constants.iter().map(move |&argument| Place { slot, argument })
        });
        outcome.constants.extend(scalars);
    }
    if let Some((writer, other)) = conflict(&found) {
        let name = |span: &Span| match parameters.get(span.argument) {
            Some(parameter) => parameter.describe(span.argument),
            None => format!("argument {}", span.argument),
        };
        return Err(Obstacle::Refusal(format!(
            "only launches that do not depend on each other are batched: launch {} of `{}` may write, through \
             {}, bytes that launch {} accesses through {}",
            writer.slot,
            kernel.name,
            name(writer),
            other.slot,
            name(other)
        )));
    }
    found.truncate(1);
    let first = found.pop().map(|(accesses, _)| accesses);
    Ok(first.unwrap_or_default())
}

/// Returns what the analysis of accesses knows of a launch's arguments if the values of its scalars do not count.
fn without_scalars(slot: &Slot) -> Vec<Value> {
    let values = slot.arguments.iter().map(|argument| match argument {
        Argument::Scalar(_) => Value::Other,
        other => value(other),
    });
    values.collect()
}

/// Returns the bytes that a launch accesses. A launch stays inside its buffers.
fn spans(slot: usize, launch: &Slot, accesses: &Accesses, space: &Space) -> Vec<Span> {
    let span = |access: &Access| {
        let region = launch.arguments.get(access.parameter)?.region()?;
        let (first, end) = (region.offset as i128, region.offset as i128 + region.length as i128);
        let known = access.bytes.filter(|_| access.kind != Kind::Escape);
        let bytes = known.map_or((first, end), |bytes| {
            let (low, high) = bytes.start.bounds(space);
            let low = first.saturating_add(low);
            let high = first.saturating_add(high).saturating_add(bytes.width);
            (low.clamp(first, end), high.clamp(first, end))
        });
        let writes = access.kind.writes();
        Some(Span { slot, argument: access.parameter, memory: region.memory, bytes, writes })
    };
    accesses.all.iter().filter_map(span).collect()
}

/// Returns accesses of two launches to the same bytes, the first of which writes.
fn conflict(found: &[(Accesses, Vec<Span>)]) -> Option<(&Span, &Span)> {
    let all = || found.iter().flat_map(|(_, spans)| spans);
    let meets = |one: &Span, other: &Span| {
        one.slot != other.slot
            && one.memory == other.memory
            && one.bytes.0 < other.bytes.1
            && other.bytes.0 < one.bytes.1
    };
    let writers = all().filter(|span| span.writes);
    let mut pairs = writers.flat_map(|one| all().map(move |other| (one, other)));
    pairs.find(|(one, other)| meets(one, other))
}
