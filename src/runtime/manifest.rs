//! Build manifests of a runtime: recording one, and building ahead what one recorded.

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::stream::{self, Stream, StreamExt};

use super::Runtime;
use crate::build_graph::{BuildGraph, ManifestRecorder, WarmMode, WarmOutcome};
use crate::cache::manifest::{BuildManifest, ManifestEntry};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::executor::run_blocking;
use crate::future::{GuardedStream, named_future};
use crate::process;

/// Environment variable that lets every runtime record a manifest.
const VARIABLE: &str = "KILN_MANIFEST";

/// Start of the variable's value, before the path of the file.
const RECORD: &str = "record:";

/// Number of entries that are built ahead at the same time. More than compile at the same time, because most wait
/// for the disk or for a network.
const CONCURRENT: usize = 64;

named_future! {
    /// Start of a recording. Returned by [`Runtime::record_manifest`].
    ///
    /// # Cancel safety
    ///
    /// If it is dropped, the recording may have started.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Runtime;
    /// use kiln::manifest::RecordManifest;
    ///
    /// # async fn example(rt: Runtime) -> kiln::Result<()> {
    /// let starting: RecordManifest = rt.record_manifest("service.manifest");
    /// starting.await
    /// # }
    /// ```
    RecordManifest => Result<()>
}

/// Building ahead of what a manifest recorded: a stream with an item for each entry, in the order in which they
/// end. From [`Runtime::warm`].
///
/// # Cancel safety
///
/// If the stream is dropped, builds that have started run to their end. No other entry is built.
///
/// # Examples
///
/// ```no_run
/// use futures::StreamExt;
/// use kiln::manifest::{BuildManifest, Warm, WarmOutcome};
///
/// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
/// let manifest = BuildManifest::open("service.manifest").await?;
/// let mut warm: Warm = rt.warm(&manifest);
/// while let Some(progress) = warm.next().await {
///     println!("{} of {}", progress.done, progress.total);
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is built until the stream is polled"]
pub struct Warm {
    graph: Arc<BuildGraph>,
    manifest: BuildManifest,
    mode: WarmMode,
    /// Positions of the devices that entries are built for; all devices if there are none.
    devices: Vec<usize>,
    /// Entries in progress, once the stream is polled.
    stream: Option<GuardedStream<WarmProgress>>,
}

/// Item of the stream [`Warm`]: an entry that has ended.
///
/// # Examples
///
/// ```no_run
/// use kiln::manifest::{WarmOutcome, WarmProgress};
///
/// fn report(progress: &WarmProgress) {
///     if let WarmOutcome::Skipped(reason) = &progress.outcome {
///         eprintln!("{}: {reason}", progress.entry);
///     }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WarmProgress {
    /// Number of entries that have ended, with this one.
    pub done: usize,
    /// Number of all entries.
    pub total: usize,
    /// The entry.
    pub entry: ManifestEntry,
    /// Result of building it ahead.
    pub outcome: WarmOutcome,
}

impl Warm {
    /// Only fills the caches on disk and in the network: programs that the disk has are not loaded. Entries that the
    /// disk has and the remote cache lacks are written to the remote cache. Await
    /// [`Runtime::drain`](crate::Runtime::drain) after the end of the stream: programs are stored behind it.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    ///
    /// # async fn example(rt: kiln::Runtime, manifest: kiln::manifest::BuildManifest) {
    /// // On a build machine:
    /// let results: Vec<_> = rt.warm(&manifest).into_caches().collect().await;
    /// rt.drain().await;
    /// # }
    /// ```
    pub fn into_caches(self) -> Self {
        Self { mode: WarmMode::Caches, ..self }
    }

    /// Only finds out which programs would have to be compiled: they are [missing](WarmOutcome::Missing). Nothing is
    /// compiled or stored.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    /// use kiln::manifest::WarmOutcome;
    ///
    /// # async fn example(rt: kiln::Runtime, manifest: kiln::manifest::BuildManifest) {
    /// let results: Vec<_> = rt.warm(&manifest).check().collect().await;
    /// let is_missing = |it: &&kiln::manifest::WarmProgress| matches!(it.outcome, WarmOutcome::Missing);
    /// println!("{} programs would be compiled", results.iter().filter(is_missing).count());
    /// # }
    /// ```
    pub fn check(self) -> Self {
        Self { mode: WarmMode::Check, ..self }
    }

    /// Builds only the entries for this device. The other entries are left out, also from the
    /// [total](WarmProgress::total). Can be called for several devices; by default, entries are built for all
    /// devices of the runtime.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if the device is one of another runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    ///
    /// # async fn example(rt: kiln::Runtime, manifest: kiln::manifest::BuildManifest) -> kiln::Result<()> {
    /// let results: Vec<_> = rt.warm(&manifest).on(rt.device())?.collect().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on(mut self, device: &Device) -> Result<Self> {
        self.devices.push(self.graph.position(device)?);
        Ok(self)
    }

    /// Returns the stream of all entries.
    fn entries(&self) -> GuardedStream<WarmProgress> {
        let (graph, mode) = (Arc::clone(&self.graph), self.mode);
        let manifest = Arc::new(self.manifest.clone());
        let mut entries = manifest.entries().to_vec();
        if !self.devices.is_empty() {
            entries.retain(|entry| {
                let device = self.graph.device_of(entry);
                device.is_some_and(|device| self.devices.contains(&device))
            });
        }
        let total = entries.len();
        let warm = move |entry: ManifestEntry| {
            let (graph, manifest) = (Arc::clone(&graph), Arc::clone(&manifest));
            async move {
                let outcome = graph.warm(manifest, entry.clone(), mode).await;
                (entry, outcome)
            }
        };
        let ended = stream::iter(entries).map(warm).buffer_unordered(CONCURRENT).enumerate();
        GuardedStream::new(ended.map(move |(before, (entry, outcome))| WarmProgress {
            done: before + 1,
            total,
            entry,
            outcome,
        }))
    }
}

impl Stream for Warm {
    type Item = WarmProgress;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut stream = self.stream.take().unwrap_or_else(|| self.entries());
        let polled = stream.poll_next(context);
        self.stream = Some(stream);
        polled
    }
}

impl fmt::Debug for Warm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Warm").field("manifest", &self.manifest).finish_non_exhaustive()
    }
}

impl Runtime {
    /// Records from now on what this runtime builds and uses, on all its devices, as a
    /// [build manifest](BuildManifest). It is appended to the file, which is created if there is none. Several
    /// processes may record into one file at the same time.
    ///
    /// Recorded are programs, linked programs, fused kernels, translations to SPIR-V, and the choices between fused
    /// kernels, with the bytes of their modules. Included files are recorded by their digest only. Not recorded are
    /// programs that are never stored: native binaries, and texts that use the time of their build. The manifest is
    /// written behind the application's work; a failure is only logged. A crash loses at most the last lines.
    /// [`drain`](Self::drain) waits until all is written.
    ///
    /// The environment variable `KILN_MANIFEST=record:FILE` does the same for every runtime of a process.
    ///
    /// # Errors
    ///
    /// From the future: [`Configuration`](ErrorKind::Configuration), naming the path, if the file cannot be written.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn serve(_: &kiln::Runtime) -> kiln::Result<()> { Ok(()) }
    /// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// rt.record_manifest("service.manifest").await?;
    /// serve(&rt).await?;
    /// rt.drain().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn record_manifest(&self, path: impl Into<PathBuf>) -> RecordManifest {
        let (path, graph) = (path.into(), Arc::clone(&self.inner.graph));
        let started = process::check();
        RecordManifest::new(async move {
            started?;
            let recorder = run_blocking(move || ManifestRecorder::begin(&path)).await?;
            graph.record(recorder);
            Ok(())
        })
    }

    /// Builds ahead what a [manifest](BuildManifest) recorded: first what the most recorded runs used, and of these
    /// what was used first. The programs end up in memory, within its [limit](crate::RuntimeBuilder::memory_limit),
    /// and in the caches; [`into_caches`](Warm::into_caches) only fills the caches.
    ///
    /// An entry is built for the device for which it was recorded, or for a device of the same name and backend if
    /// its driver has another version. Entries that do not apply here are [skipped](WarmOutcome::Skipped), with the
    /// reason: for a device that is not there; native code and choices of another driver version; texts whose
    /// included files are missing or have changed.
    ///
    /// A manifest contains device code. Use only manifests from a source that you trust as you trust the
    /// application. Modules that were [untrusted](crate::Module::untrusted) are compiled in child processes here as
    /// well.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use futures::StreamExt;
    /// use kiln::manifest::{BuildManifest, WarmOutcome};
    ///
    /// # async fn example(rt: kiln::Runtime) -> kiln::Result<()> {
    /// let manifest = BuildManifest::open("service.manifest").await?;
    /// let mut warm = rt.warm(&manifest);
    /// while let Some(progress) = warm.next().await {
    ///     if let WarmOutcome::Failed(error) = &progress.outcome {
    ///         eprintln!("{}: {error}", progress.entry);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn warm(&self, manifest: &BuildManifest) -> Warm {
        Warm {
            graph: Arc::clone(&self.inner.graph),
            manifest: manifest.clone(),
            mode: WarmMode::Memory,
            devices: Vec::new(),
            stream: None,
        }
    }
}

/// Begins the recording that the environment asks for, if it asks for one. Blocks.
///
/// # Errors
///
/// [`Configuration`](ErrorKind::Configuration), naming the variable, for another value than `record:FILE`, and if the
/// file cannot be written.
pub(super) async fn recorder_from_environment() -> Result<Option<ManifestRecorder>> {
    let Some(value) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let path = value.to_str().and_then(|value| value.strip_prefix(RECORD));
    let Some(path) = path.filter(|path| !path.is_empty()) else {
        let message = format!("`{}` is not `record:` and the path of a file", value.display());
        return Err(Error::new(ErrorKind::Configuration, message).within(VARIABLE));
    };
    let path = PathBuf::from(path);
    let recorder = run_blocking(move || ManifestRecorder::begin(&path)).await;
    recorder.map(Some).map_err(|error| error.within(VARIABLE))
}
