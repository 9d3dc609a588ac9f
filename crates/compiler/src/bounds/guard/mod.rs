//! Variants of a kernel: the same kernel with a check before each access that is not proven, with
//! [offsets] for its buffers, or with both.
//!
//! The check compares the offset of the pointer with the length of its memory, and branches around the access.
//! A read outside gives zero, a write outside is dropped, and an atomic operation outside does nothing and
//! gives zero. Functions that calculate and write at once, such as `fract`, give zero, too. The lengths of
//! buffers and of local memory are parameters of the new kernel, after all others: 64-bit numbers of bytes.
//!
//! Each pointer of an access that is checked has a [shadow](shadows): the offset and the length as values of
//! their own, which follow the pointer through calculations, selections, loops and calls. The address itself is
//! calculated as before. Both wrap in the same way.
//!
//! An access to a pixel is [checked](pixels) in the same way, with the sizes that the kernel asks the image for.
//!
//! The variant also [mends](mend) the kernel's hazards.

mod code;
mod mend;
mod offsets;
mod pixels;
mod shadows;
mod writer;

use std::collections::BTreeSet;

use kiln_spirv::edit::{
    Definitions, Effect, Instruction, Linkage, Meaning, Section, Stream, string_words,
};
use kiln_spirv::{Module, Result, keep_values};
use rspirv::spirv::{Op, StorageClass};

use super::hazards::Hazard;
use super::kernel::Kernel;
use super::refusal::{at_line, refuse};
use super::report::Report;
use crate::transform::new_kernel::add_entry_point;

/// Variant of a kernel.
#[derive(Clone, Debug)]
pub struct Variant {
    pub module: Module,
    /// Positions of the arguments whose lengths in bytes follow the kernel's own arguments, in order.
    pub lengths: Vec<usize>,
    /// Arguments whose offsets in bytes follow the lengths, in order.
    pub offsets: Vec<Offset>,
}

/// Argument with an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    /// Position of the argument.
    pub at: usize,
    /// Number of bytes of which the address with its offset has to be a multiple.
    pub alignment: usize,
}

/// Returns a variant of a kernel. If a report is given, the variant guards what the report does not prove, and mends
/// the kernel's hazards: it is safe for each launch whose report proves at least as much. The variant adds offsets
/// to the addresses in the parameters at the positions of `with_offset`.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if ids run out, for an access that cannot be guarded, or if a
/// parameter with an offset is no buffer.
pub fn variant(kernel: &Kernel, report: Option<&Report>, with_offset: &[usize]) -> Result<Variant> {
    check_variables(&kernel.module.definitions(), kernel)?;
    let (mut module, lengths) = match report {
        Some(report) => guarded(kernel, report)?,
        None => (kernel.module.clone(), Vec::new()),
    };
    offsets::add_offsets(&mut module, kernel, with_offset)?;
    describe_added(&mut module, &kernel.name, lengths.len() + with_offset.len());
    add_entry(&mut module, kernel)?;
    let offset = |&at| Offset { at, alignment: offsets::alignment(kernel, at) };
    Ok(Variant { module, lengths, offsets: with_offset.iter().map(offset).collect() })
}

/// Returns the guarded module, without an entry point, and the positions of the arguments whose lengths it needs.
fn guarded(kernel: &Kernel, report: &Report) -> Result<(Module, Vec<usize>)> {
    let snapshot = &kernel.module;
    let definitions = snapshot.definitions();
    let shadows = shadows::Shadows::of(kernel, &definitions, report)?;
    let lengths = shadows.lengths();
    let mut module = snapshot.clone();
    writer::write(&mut module, &definitions, kernel, report, shadows)?;
    pixels::forget_combined(&mut module, &definitions);
    let kinds: BTreeSet<Hazard> = report.hazards.iter().map(|(_, hazard)| *hazard).collect();
    check_remaining(&definitions, kernel, report)?;
    mend::module(&mut module, &kinds)?;
    if kinds.contains(&Hazard::Undefined) || kinds.contains(&Hazard::Shared) {
        // Loads by functions cannot be volatile.
        let bodies = snapshot.functions.iter().flat_map(|function| function.body.iter());
        let calls = bodies.filter(|i| mend::is_changing_call(&definitions, i));
        keep_values(&mut module, &calls.filter_map(|i| i.result()).collect())?;
    }
    Ok((module, lengths))
}

/// Checks that the kernel has no variable whose value lasts from launch to launch. A variant would have its
/// own.
fn check_variables(definitions: &Definitions<'_>, kernel: &Kernel) -> Result<()> {
    let variables = definitions.module().section(Section::Globals).iter();
    let mut lasting = variables.filter(|i| {
        i.variable().is_some_and(|(class, _)| class == StorageClass::CrossWorkgroup as u32)
    });
    let is_kept =
        |i: Instruction<'_>| i.result().is_none_or(|id| !kernel.is_constant(definitions, id));
    match lasting.any(is_kept) {
        true => Err(refuse(
            &kernel.name,
            "the launch needs a variant of the kernel, which would not share the kernel's variables at program \
             scope with other launches",
        )),
        false => Ok(()),
    }
}

/// Checks that nothing is left that has no guard.
fn check_remaining(definitions: &Definitions<'_>, kernel: &Kernel, report: &Report) -> Result<()> {
    let module = definitions.module();
    for checked in report.accesses.iter().filter(|checked| checked.is_unaligned) {
        let i = checked.location.instruction(module);
        let meaning = i.and_then(|i| i.op()).and_then(Meaning::of);
        if !meaning.is_some_and(|meaning| meaning.effect == Effect::Memory) {
            let name = i.map_or("an instruction".into(), |i| i.name());
            let reason = format!("the address that {name} accesses may not be aligned");
            let reason = at_line(definitions, checked.location, reason);
            return Err(refuse(&kernel.name, &reason));
        }
    }
    Ok(())
}

/// Adds `count` parameters of type `ulong` to clang's descriptions of a kernel's parameters. Intel's compiler for GPUs
/// (2.40) reads one for each parameter, and crashes if there are fewer.
fn describe_added(module: &mut Module, kernel: &str, count: usize) {
    let mut new = Stream::default();
    for i in module.section(Section::Sources).iter() {
        let text = i.text().filter(|_| i.op() == Some(Op::String));
        let described = text.and_then(|text| Some((text, text.split_once('.')?)));
        let added = described.and_then(|(text, (what, rest))| {
            let item = match what {
                "kernel_arg_type" => "ulong,",
                "kernel_arg_type_qual" => ",",
                _ => return None,
            };
            // A list of no parameters follows the kernel's name, too.
            let is_own = rest.rsplit_once('.').is_some_and(|(name, _)| name == kernel);
            is_own.then(|| format!("{text}{}", item.repeat(count)))
        });
        match (added, i.result()) {
            (Some(text), Some(id)) => {
                new.push(Op::String, [id].into_iter().chain(string_words(&text)));
            }
            _ => new.push_instruction(&i),
        }
    }
    *module.section_mut(Section::Sources) = new;
}

/// Makes the kernel's function an entry point again.
fn add_entry(module: &mut Module, kernel: &Kernel) -> Result<()> {
    let is_kept = |i: &Instruction<'_>| {
        Linkage::of(i).is_none_or(|linkage| linkage.target != kernel.function)
    };
    module.section_mut(Section::Annotations).retain(is_kept);
    add_entry_point(module, kernel.function, &kernel.name, &kernel.modes)
}
