//! Joins the `fma` of components to one of vectors.
//!
//! The front end [splits](crate::source::translate) calls with vectors, because Intel's runtime for CPUs maps
//! work-items to the lanes of vectors and cannot do that with the vector form of the call. Where work-items
//! keep vectors in private arrays, the runtime computes work-item by work-item, and the vector form is one
//! instruction. The results are the same: each component is rounded once.

use std::collections::HashSet;

use kiln_spirv::edit::{Definitions, Instruction, Stream, View, operand_ids};
use kiln_spirv::{Module, Result};
use rspirv::spirv::{Op, OpenclStd100Op as Extended};

use crate::analysis::vector_access::extended;

/// Replaces vectors that are constructed of the `fma` of all components by the `fma` of vectors.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if an instruction is unknown.
pub(super) fn join(module: &mut Module, function: u32) -> Result<()> {
    let Some(at) = module.functions.iter().position(|known| known.id == function) else {
        return Ok(());
    };
    let snapshot = module.clone();
    let definitions = snapshot.definitions();
    let mut body = Stream::default();
    for i in snapshot.functions[at].body.iter() {
        match joined(&definitions, &i) {
            Some(words) => body.push(Op::ExtInst, words),
            None => body.push_instruction(&i),
        }
    }
    module.functions[at].body = body;
    // Components are extracted for the calls, and the calls are unused now.
    for _ in 0..2 {
        drop_unused(module, at)?;
    }
    Ok(())
}

/// Returns the words of the call that gives the vector which an instruction constructs of components.
fn joined(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Option<Vec<u32>> {
    if i.op() != Some(Op::CompositeConstruct) {
        return None;
    }
    let (ty, result) = i.result_type().zip(i.result())?;
    let (_, count) = definitions.get(ty)?.vector()?;
    let parts: Vec<_> = i.parts().collect();
    if parts.len() != count as usize {
        return None;
    }
    let mut operands: Option<(u32, [u32; 3])> = None;
    for (at, &part) in (0..).zip(&parts) {
        let call = definitions.get(part).filter(|call| call.op() == Some(Op::ExtInst))?;
        if extended(definitions, &call)? != Extended::fma {
            return None;
        }
        let mut vectors = [0; 3];
        let mut operands_of_call = call.extended_operands();
        for vector in &mut vectors {
            let extract = definitions.get(operands_of_call.next()?)?;
            let View::Extract { whole, path } = extract.view() else { return None };
            *vector = Some(whole).filter(|_| path.single() == Some(at))?;
            let own = definitions.get(*vector)?.result_type()?;
            if own != ty {
                return None;
            }
        }
        let (set, _) = call.extended()?;
        if *operands.get_or_insert((set, vectors)) != (set, vectors) {
            return None;
        }
    }
    let (set, [a, b, c]) = operands?;
    Some(vec![ty, result, set, Extended::fma as u32, a, b, c])
}

/// Drops calls of `fma` and extractions of components whose results are not used.
fn drop_unused(module: &mut Module, at: usize) -> Result<()> {
    let definitions = module.definitions();
    let body = &module.functions[at].body;
    let mut uses = HashSet::new();
    for i in body.iter() {
        operand_ids(&i, &definitions, |id| _ = uses.insert(id))?;
    }
    let mut new = Stream::default();
    for i in body.iter() {
        let is_pure = match i.op() {
            Some(Op::CompositeExtract) => true,
            Some(Op::ExtInst) => extended(&definitions, &i) == Some(Extended::fma),
            _ => false,
        };
        let is_used = i.result().is_none_or(|id| uses.contains(&id));
        if is_used || !is_pure {
            new.push_instruction(&i);
        }
    }
    module.functions[at].body = new;
    Ok(())
}
