//! Fusion of a plan in one form: in the plain arrangement of its work-items, or else in another one.

use kiln_spirv::{ErrorKind, Result, widen_vectors};

use super::arrangement::Arrangement;
use super::attempt::{self, Obstacle};
use super::batched;
use super::examination::Programs;
use super::form::FusionForm;
use super::outcome::{Fused, Outcome, Trust};
use super::recompute;
use crate::plan::Plan;
use crate::transform::coarsen::Width;

/// Fuses a plan's launches into one kernel of the given form. Each of its work-items may do the work of
/// several, within `width`.
///
/// # Errors
///
/// Fails if the plan or a module is not valid: an unknown kernel, a wrong number of arguments, a damaged
/// module. If the launches cannot be fused, the function returns an [`Outcome`] with the reason.
pub fn fuse(
    plan: &Plan,
    programs: Programs<'_, '_>,
    trust: Trust,
    width: Width,
    form: FusionForm,
) -> Result<Outcome> {
    plan.check(programs.modules.len())?;
    let mut outcome = Outcome::of(plan);
    if let Some(slot) = plan.slots.iter().find(|slot| slot.takes_objects())
        && form != FusionForm::Direct
        && plan.slots.len() > 1
    {
        let kernel = &slot.kernel;
        outcome.fused = Err(format!(
            "`{kernel}` takes an image or a sampler, and such launches are fused in the form `direct` only"
        ));
        return Ok(outcome);
    }
    let plain = Arrangement::plain(plan);
    outcome.fused = or_reason(in_form(&plain, programs, trust, width, form, &mut outcome))?;
    if outcome.fused.is_ok() || plan.slots.len() < 2 || form == FusionForm::Batched {
        return Ok(outcome);
    }
    for arrangement in Arrangement::others(plan, programs, form).unwrap_or_default() {
        let mut other = Outcome::of(&arrangement.plan);
        let fused = in_form(&arrangement, programs, Trust::ProofOnly, width, form, &mut other);
        other.fused = or_reason(fused)?;
        let other = arrangement.restored(other);
        if other.fused.is_ok() {
            return Ok(other);
        }
        // Other values might be arranged differently.
        outcome.constants.extend(other.constants);
    }
    Ok(outcome)
}

/// Fuses the launches of an arrangement in a form.
fn in_form(
    arrangement: &Arrangement,
    programs: Programs<'_, '_>,
    trust: Trust,
    width: Width,
    form: FusionForm,
    outcome: &mut Outcome,
) -> Result<Fused, Obstacle> {
    let mut fused = match form {
        FusionForm::Direct => {
            let kernels = programs.kernels(&arrangement.plan)?;
            let examinations = programs.examinations;
            attempt::attempt(arrangement, &kernels, examinations, trust, width, outcome)?
        }
        FusionForm::Batched => batched::attempt(&arrangement.plan, programs, trust, outcome)?,
        _ => recompute::attempt(&arrangement.plan, programs, trust, form, outcome)?,
    };
    if arrangement.plan.target.widen_vectors {
        widen_vectors(&mut fused.module)?;
    }
    Ok(fused)
}

/// Returns the reason for an obstacle that is no fault of the plan or the modules.
fn or_reason(fused: Result<Fused, Obstacle>) -> Result<Result<Fused, String>> {
    match fused {
        Ok(fused) => Ok(Ok(fused)),
        Err(Obstacle::Refusal(why)) => Ok(Err(why)),
        Err(Obstacle::Error(error)) => match error.kind() {
            ErrorKind::Unsupported | ErrorKind::BuildFailed => Ok(Err(error.to_string())),
            _ => Err(error),
        },
    }
}
