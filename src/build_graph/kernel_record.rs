//! What is known of kernels, in the words of entries on disk and of build children.

use std::collections::{HashMap, HashSet};

use crate::backend;
use crate::cache::store::{KernelRecord, ParameterRecord};
use crate::compiler::signature::{Access, AddressSpace, Parameter};

/// A kernel with what is known of its parameters.
pub(super) fn record(name: &str, parameters: &[Parameter]) -> KernelRecord {
    let parameters = parameters.iter().map(|parameter| ParameterRecord {
        name: parameter.name.clone(),
        type_name: parameter.type_name.clone(),
        address_space: parameter.address_space.map(|space| space_name(space).to_owned()),
        access: parameter.access.map(|access| access_name(access).to_owned()),
    });
    KernelRecord { name: name.to_owned(), parameters: parameters.collect() }
}

/// Gives the parameters of recorded kernels by the kernels' names.
pub(super) fn parameters(records: &[KernelRecord]) -> impl Fn(&str) -> Option<Vec<Parameter>> {
    let kernels: HashMap<_, _> = records.iter().map(|record| (&*record.name, record)).collect();
    move |kernel| {
        kernels.get(kernel).map(|kernel| kernel.parameters.iter().map(parameter).collect())
    }
}

/// A word that this version does not know is as good as none.
fn parameter(record: &ParameterRecord) -> Parameter {
    Parameter {
        name: record.name.clone(),
        type_name: record.type_name.clone(),
        address_space: [
            AddressSpace::Global,
            AddressSpace::Constant,
            AddressSpace::Local,
            AddressSpace::Private,
        ]
        .into_iter()
        .find(|space| record.address_space.as_deref() == Some(space_name(*space))),
        access: [Access::Read, Access::Write, Access::ReadWrite]
            .into_iter()
            .find(|access| record.access.as_deref() == Some(access_name(*access))),
        // The driver tells, if anybody does.
        size: None,
    }
}

/// Whether a program has the recorded kernels and no others.
pub(super) fn has_kernels(native: &dyn backend::Program, records: &[KernelRecord]) -> bool {
    let kernels: HashSet<_> = native.kernels().iter().map(|kernel| kernel.name()).collect();
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
