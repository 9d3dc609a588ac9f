//! The disk below the graph: how a program becomes an entry of the store, and an entry a program.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{DeviceSlot, Source};
use crate::build::key::{EMITTER, NodeKind};
use crate::build::program::{Built, Origin, Teller, Told};
use crate::build::recipe::Part;
use crate::build::record::{has_kernels, parameters, record};
use crate::build::spirv::SpirV;
use crate::device::ImageFormat;
use crate::digest::BuildKey;
use crate::error::{ErrorKind, Result};
use crate::image::Image;
use crate::stats::Counters;
use crate::store::{Address, Lock, Lookup, Manifest, Pending, Store, Try};

/// The shortest and the longest pause, before jitter, between two looks at another process's build.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(250)];

/// The next pause is this part of the wait so far. A program is then found soon after it is there,
/// measured by its compile, and waiting for many programs leaves the processor to the compilers.
const PAUSE_PART: u32 = 8;

/// A store, as the graph uses it.
pub(crate) struct Disk {
    store: Store,
    /// How long to wait for another process's build.
    wait: Duration,
    counters: Arc<Counters>,
}

/// Why the disk has no program.
pub(crate) enum Miss {
    Absent,
    /// What it has is not used, for this reason.
    Unusable(String),
}

/// What to do about a program that the disk does not have.
pub(crate) enum Turn {
    /// Build it, holding the lock, if there are locks.
    Build(Option<Lock>),
    /// Another process builds it: look again after a pause.
    Wait(Duration),
}

/// A build's waiting for another process.
#[derive(Default)]
pub(crate) struct Waiting {
    since: Option<Instant>,
}

impl Disk {
    pub(crate) fn new(store: Store, wait: Duration, counters: Arc<Counters>) -> Self {
        Self { store, wait, counters }
    }

    /// Something that [`Store::settled`] waits for.
    pub(crate) fn begin(&self) -> Pending {
        self.store.begin()
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Loads a program. An error is one of circumstance: whatever is wrong with what is on the disk,
    /// or with what the driver makes of it, is a miss.
    pub(crate) fn load(
        &self,
        address: &Address,
        slot: &DeviceSlot,
        kind: NodeKind,
        parts: impl FnOnce() -> Box<[Part]>,
    ) -> Result<std::result::Result<Arc<Built>, Miss>> {
        let entry = match self.store.get(address) {
            Lookup::Hit(entry) => entry,
            Lookup::Absent => return Ok(Err(Miss::Absent)),
            Lookup::Unusable(reason) => {
                self.counters.disk_damaged.add_one();
                tracing::debug!(key = %address.key, %reason, "an entry is not used");
                return Ok(Err(Miss::Unusable(reason.to_string())));
            }
            Lookup::Unreadable(error) => return Ok(Err(Miss::Unusable(error.to_string()))),
        };
        let source = Source {
            format: ImageFormat::Native,
            code: entry.payload(),
            options: "",
            constants: &[],
        };
        let manifest = entry.manifest();
        let loaded = match kind {
            NodeKind::Program => slot.open()?.build(&source),
            NodeKind::Object => slot.open()?.compile(&source),
            NodeKind::SpirV => Image::spirv(entry.payload())
                .map(|image| SpirV::program(image, manifest.build_log.clone())),
        };
        let refused = match loaded {
            Ok(native) if has_kernels(&*native, &manifest.kernels) => {
                self.counters.disk_bytes_read.add(entry.bytes().len() as u64);
                let told = Told {
                    origin: Origin::Disk,
                    build_log: &manifest.build_log,
                    size: entry.payload().len(),
                    parts: parts(),
                    teller: match manifest.field(EMITTER) {
                        Some(_) => Teller::Image,
                        None => Teller::Driver,
                    },
                };
                let device = slot.handle().clone();
                let parameters = |kernel: &str| parameters(&manifest.kernels, kernel);
                return Ok(Ok(Arc::new(Built::new(native, device, address.key, told, parameters))));
            }
            Ok(_) => "the driver found other kernels in it than were stored".to_owned(),
            Err(error)
                if matches!(error.kind(), ErrorKind::OutOfResources | ErrorKind::DeviceLost) =>
            {
                return Err(error);
            }
            Err(error) => error.to_string(),
        };
        self.counters.disk_refused.add_one();
        tracing::debug!(key = %address.key, %refused, "the driver does not take a stored program");
        Ok(Err(Miss::Unusable(refused)))
    }

    /// Whether to build what the disk does not have, or to wait for another process that does.
    pub(crate) fn turn(&self, key: &BuildKey, waiting: &mut Waiting) -> Turn {
        match self.store.try_build_lock(key) {
            Try::Held(lock) => return Turn::Build(Some(lock)),
            Try::Unopened(_) | Try::Impossible(_) => return Turn::Build(None),
            Try::Busy => {}
        }
        let since = *waiting.since.get_or_insert_with(|| {
            self.counters.lock_waits.add_one();
            Instant::now()
        });
        if since.elapsed() >= self.wait {
            self.counters.lock_timeouts.add_one();
            tracing::debug!(%key, "another process holds the build lock for too long");
            return Turn::Build(None);
        }
        let [shortest, longest] = PAUSES;
        let pause = (since.elapsed() / PAUSE_PART).clamp(shortest, longest);
        // Apart from each other, for many processes.
        Turn::Wait(pause.mul_f64(0.5 + fastrand::f64()))
    }

    /// Stores a program that was built in this time, by tools that are no driver's, and gives the size
    /// of the driver's binary, which some drivers complete only now.
    pub(crate) fn save(
        &self,
        address: &Address,
        built: &Built,
        fields: Vec<(String, String)>,
        tools: &[(&str, &str)],
        took: Duration,
    ) -> Option<usize> {
        let payload = match built.binary() {
            Ok(payload) => payload,
            Err(error) => {
                self.counters.disk_skips.add_one();
                tracing::debug!(%error, "a program without a binary is not stored");
                return None;
            }
        };
        let mut manifest = Manifest {
            kernels: built.kernels().map(|(name, of)| record(name, of)).collect(),
            build_log: built.build_log().to_owned(),
            build_microseconds: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            ..Manifest::new(fields)
        };
        let tools = tools.iter().map(|&(name, version)| (name.to_owned(), version.to_owned()));
        manifest.tools.extend(tools);
        self.store.put(address, &manifest, &payload);
        Some(payload.len())
    }
}
