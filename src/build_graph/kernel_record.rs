//! Conversion of kernel signatures to and from the records in disk entries and in build children's answers.

use std::collections::{HashMap, HashSet};

use kiln_spirv::{Access, AddressSpace, Parameter};

use super::artifact::Artifact;
use crate::cache::store::{KernelRecord, ParameterRecord};

/// Returns the record of a kernel and its parameters.
pub(super) fn record(name: &str, parameters: &[Parameter]) -> KernelRecord {
    let parameters = parameters.iter().map(|parameter| ParameterRecord {
        name: parameter.name.clone(),
        type_name: parameter.type_name.clone(),
        address_space: parameter.address_space.map(|space| space_name(space).to_owned()),
        access: parameter.access.map(|access| access_name(access).to_owned()),
    });
    KernelRecord { name: name.to_owned(), parameters: parameters.collect() }
}

/// Returns a function from a kernel's name to its recorded parameters.
pub(super) fn parameters(records: &[KernelRecord]) -> impl Fn(&str) -> Option<Vec<Parameter>> {
    let kernels: HashMap<_, _> = records.iter().map(|record| (&*record.name, record)).collect();
    move |kernel| {
        kernels.get(kernel).map(|kernel| kernel.parameters.iter().map(parameter).collect())
    }
}

/// Converts a recorded parameter. A word that this version does not know is ignored.
fn parameter(record: &ParameterRecord) -> Parameter {
    let spaces =
        [AddressSpace::Global, AddressSpace::Constant, AddressSpace::Local, AddressSpace::Private];
    let mut spaces = spaces.into_iter();
    let space = spaces.find(|space| record.address_space.as_deref() == Some(space_name(*space)));
    let mut accesses = [Access::Read, Access::Write, Access::ReadWrite].into_iter();
    let access = accesses.find(|access| record.access.as_deref() == Some(access_name(*access)));
    // Sizes are not recorded; only drivers report them.
    Parameter::new(record.name.clone(), record.type_name.clone(), space, access, None)
}

/// Whether a program has the recorded kernels and no others.
pub(super) fn has_kernels(artifact: &Artifact, records: &[KernelRecord]) -> bool {
    let kernels = artifact.kernels();
    let kernels: HashSet<_> = kernels.iter().map(|kernel| kernel.name).collect();
    kernels.len() == records.len() && records.iter().all(|record| kernels.contains(&*record.name))
}

fn space_name(space: AddressSpace) -> &'static str {
    match space {
        AddressSpace::Global => "global",
        AddressSpace::Constant => "constant",
        AddressSpace::Local => "local",
        AddressSpace::Private => "private",
    }
}

fn access_name(access: Access) -> &'static str {
    match access {
        Access::Read => "read",
        Access::Write => "write",
        Access::ReadWrite => "read-write",
    }
}
