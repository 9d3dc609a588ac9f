//! Directive about the division of launches: `partition` shows the groups in which they run.

use std::cell::OnceCell;
use std::fmt::Write as _;

use kiln_compiler::fusion::{Budget, Examinations, Fused, Launches};

use super::Outcome;
use super::directives::Directive;
use super::fuse::Request;
use super::program::Program;

/// Shows the groups in which launches run, each with the form of its best kernel. The launches and words are those of
/// `fuse`; without the word `form`, all forms are tried.
///
/// # Errors
///
/// Returns what is wrong with the directive, or that the groups do not keep the order of launches.
pub(super) fn partition(program: &Program, directive: &Directive) -> Result<Outcome, String> {
    let request = Request::parse(program, directive)?;
    let is_forced = directive.rest.split_whitespace().any(|word| word == "form");
    let no_limit = |_: &Fused| None;
    let launches = Launches {
        plan: &request.plan,
        modules: vec![Some(&program.module)],
        options: vec![0],
        trust: request.trust,
        width: request.width,
        is_gpu: false,
        forced_form: request.forms.first().copied().filter(|_| is_forced),
        exceeded_limit: &no_limit,
        effects: OnceCell::new(),
        examinations: Examinations::default(),
        budget: Budget::default(),
    };
    let parts = launches.partition();
    let slots: Vec<_> = parts.iter().map(|part| &part.slots[..]).collect();
    if !launches.keeps_order(&slots) {
        return Err(format!("the groups {slots:?} do not keep the order of launches"));
    }
    let mut shown = String::new();
    for part in &parts {
        let best = part.candidates.first().map(|candidate| candidate.form.notation());
        _ = writeln!(shown, "{:?}: {}", part.slots, best.as_deref().unwrap_or("alone"));
    }
    Ok(Outcome::shown(shown))
}
