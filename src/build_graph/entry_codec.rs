//! Conversion between stored entries and programs, for all caches.

use std::sync::Arc;

use super::artifact::{Artifact, SignatureSource};
use super::built::{BuildMetadata, Built, Origin, Recipe};
use super::footprint::DriverMemory;
use super::kernel_record::{has_kernels, parameters, record};
use super::key::{EMITTER, NodeKind};
use super::plan::LinkedModule;
use crate::backend::{DeviceSlot, Source};
use crate::cache::store::{Entry, EntryRecord, Storage, encode};
use crate::device::ModuleFormat;
use crate::digest::BuildKey;
use crate::error::{ErrorKind, Result};
use crate::source::module::Module;

/// Result of loading an entry into the driver.
pub(crate) enum Loaded {
    Built(Arc<Built>),
    /// The driver rejects the entry, for this reason.
    Refused(String),
}

impl Loaded {
    /// Returns the size of the program's binary in bytes, if there is a program.
    pub(super) fn binary_bytes(&self) -> Option<usize> {
        match self {
            Self::Built(built) => Some(built.binary_bytes()),
            Self::Refused(_) => None,
        }
    }
}

/// Loads the program of an entry that came from `origin`. `driver` counts the program. Errors are transient failures
/// only.
pub(super) fn load(
    entry: &Entry,
    origin: Origin,
    slot: &DeviceSlot,
    recipe: Recipe,
    driver: Option<&Arc<DriverMemory>>,
    parts: impl FnOnce() -> Box<[LinkedModule]>,
) -> Result<Loaded> {
    let source =
        Source { format: ModuleFormat::Native, code: entry.payload(), options: "", constants: &[] };
    let entry_record = entry.record();
    let loaded = match recipe.plan.kind() {
        NodeKind::Program => slot.open()?.build(&source).map(Artifact::Native),
        NodeKind::Object => slot.open()?.compile(&source).map(Artifact::Native),
        NodeKind::SpirV => Module::spirv(entry.payload())
            .map(|module| Artifact::SpirV { module, log: entry_record.build_log.clone() }),
    };
    match loaded {
        Ok(artifact) if has_kernels(&artifact, &entry_record.kernels) => {
            let metadata = BuildMetadata {
                origin,
                build_log: &entry_record.build_log,
                size: entry.payload().len(),
                footprint: driver.map(DriverMemory::begin_program),
                parts: parts(),
                recipe: Some(recipe),
                signature_source: match entry_record.field(EMITTER) {
                    Some(_) => SignatureSource::Module,
                    None => SignatureSource::Driver,
                },
            };
            let device = slot.handle().clone();
            let parameters = parameters(&entry_record.kernels);
            let built = Built::new(artifact, device, entry.key(), metadata, parameters);
            if origin == Origin::Disk {
                built.set_storage(Storage::Stored);
            }
            Ok(Loaded::Built(Arc::new(built)))
        }
        Ok(_) => {
            let reason = "the driver found kernels in it that differ from the stored ones";
            Ok(Loaded::Refused(reason.to_owned()))
        }
        Err(error) if matches!(error.kind(), ErrorKind::OutOfResources | ErrorKind::DeviceLost) => {
            Err(error)
        }
        Err(error) => Ok(Loaded::Refused(error.to_string())),
    }
}

/// Two parts of a program's entry.
pub(crate) struct Packed {
    pub(crate) payload: Vec<u8>,
    /// Bytes that follow the payload in the entry.
    pub(crate) rest: Vec<u8>,
}

/// Creates the entry of a program. `entry_record` states how it was built; the kernels and the log are added here.
/// Some drivers generate the binary only in this call; errors are those of the driver.
pub(crate) fn pack(key: &BuildKey, built: &Built, entry_record: EntryRecord) -> Result<Packed> {
    let payload = built.binary()?;
    let entry_record = EntryRecord {
        kernels: built.kernels().map(|(name, parameters)| record(name, parameters)).collect(),
        build_log: built.build_log().to_owned(),
        ..entry_record
    };
    let rest = encode(key, &entry_record, &payload);
    Ok(Packed { payload, rest })
}
