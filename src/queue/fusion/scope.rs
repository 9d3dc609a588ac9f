//! Fusion scopes as applications use them.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use kiln_compiler::fusion::{FusionReport, Internalization, Trust};

use super::completion::{Completion, FusionLookup, RecentLookup, recents};
use super::outcome::{CompleteFusion, Unfused};
use super::plan::{FusionOptions, LaunchSnapshot, MemoryUsage};
use crate::args::Seal;
use crate::args::memory::DeviceMemory;
use crate::build_graph::Fusion;
use crate::error::{Error, Result};
use crate::future::named_future;
use crate::process;
use crate::queue::command::GroupId;
use crate::queue::event::Event;
use crate::queue::handle::Queue;
use crate::queue::launch::Launch;
use crate::queue::launch_work::LaunchWork;
use crate::queue::scheduler::AbortReason;
use crate::sync::lock;

/// Scope that collects launches to run as one kernel, from
/// [`Queue::start_fusion`](crate::Queue::start_fusion).
///
/// [`complete`](Self::complete) fuses the launches if it is proven that the results do not change, and keeps
/// what is fastest on the device. Launches that cannot be one kernel run in several
/// [parts](crate::fusion::FusionOutcome::Parts), or one by one, and the outcome states the reason.
/// [`cancel`](Self::cancel), or dropping the scope, runs them one by one. [`examine`](Self::examine) only
/// reports whether they would be fused, and [`discard`](Self::discard) runs none of them. A buffer whose last
/// handle was dropped before `complete` is not written if the fused kernel can do without it. The
/// [guide](crate::guides::fusion) describes what can be fused, and in which [forms](crate::fusion::FusionForm).
///
/// The launches count as commands of the queue from the start. Their events are valid whether or not
/// the launches are fused. The launches wait for `complete`. The scope is aborted if anything outside
/// it needs one of them earlier, such as a read of its output, another launch, an `await` of its event,
/// or [`drain`](crate::Runtime::drain). In an aborted scope, the launches so far run one by one, and so
/// do launches that are submitted to it later.
///
/// If one of the launches fails because a dependency failed, all launches that run as one kernel with
/// it may fail.
///
/// A fused kernel computes the same bytes in every form, except where OpenCL leaves the result of an operation
/// open. There a driver that sees more of the operands may compute something else. Examples are the
/// sign and payload of a NaN, the conversion of a number to a type that cannot represent it, and the
/// rounding of `mad` and of whatever may be calculated by it: `mix`, and the products and sums that a
/// SPIR-V module lets drivers contract. Quotients and square roots of `float` need not be rounded correctly on
/// GPUs, unless the option `-cl-fp32-correctly-rounded-divide-sqrt` is set. With Intel's CPU runtime, the last
/// bits of an estimate such as `rsqrt` may also differ, within the error that OpenCL allows, if all work-items
/// share the value.
///
/// Build options of the launches' programs apply to a fused kernel, with these differences:
///
/// * Programs with options that let compilers compute other results are fused only in the mode
///   [`Relaxed`](crate::FusionMode::Relaxed), because the bytes would differ: `-cl-fast-relaxed-math`,
///   `-cl-unsafe-math-optimizations`, `-cl-finite-math-only`, `-cl-mad-enable`, `-cl-no-signed-zeros` and
///   `-cl-denorms-are-zero`. So are SPIR-V modules with fast-math modes (`FPFastMathMode`).
/// * In this mode, the first three are left out, except for the macros that they define. The fused kernel is therefore
///   at least as accurate as the launches, and may treat infinities and NaNs differently. Functions take longer than
///   with the option; where that outweighs the gain of fusing, the launches run one by one. Programs that differ only
///   in these options can be fused. The others leave open the sign of a zero, whether a subnormal value becomes zero on
///   its way from launch to launch, and whether a product and a sum of different launches are rounded once.
/// * `-cl-std`, `-cl-single-precision-constant`, macros and directories apply to the translation of source
///   text. Warnings (`-Werror`) are those of the launches' own builds.
/// * All other options, such as `-cl-fp32-correctly-rounded-divide-sqrt` and `-cl-opt-disable`, apply
///   unchanged. Launches whose programs differ in them are not fused with each other.
///
/// # Examples
///
/// ```no_run
/// # async fn example(queue: kiln::Queue, blur: kiln::Kernel, tone: kiln::Kernel,
/// #     src: kiln::Buffer<f32>, tmp: kiln::Buffer<f32>, dst: kiln::Buffer<f32>) -> kiln::Result<()> {
/// let n = src.len();
/// let fusion = queue.start_fusion();
/// fusion.submit(blur.launch(n).args((&src, &tmp)))?;
/// fusion.submit(tone.launch(n).args((&tmp, &dst, 0.7f32)))?;
/// drop(tmp); // it is not read later
/// println!("{}", fusion.complete().await?);
/// # Ok(())
/// # }
/// ```
pub struct FusionScope {
    queue: Queue,
    group: GroupId,
    aborted: AbortReason,
    /// Whether the scope was completed, canceled or discarded.
    has_ended: AtomicBool,
    is_discarded: AtomicBool,
    settings: Mutex<Settings>,
    /// Result for the launches, once it is known.
    fusion: Arc<OnceLock<Arc<Fusion>>>,
}

struct Settings {
    options: FusionOptions,
    trust: Trust,
}

impl Queue {
    /// Starts to collect launches that are to run as one kernel, or as few.
    ///
    /// Any number of scopes can collect at the same time, of this queue and of others. Commands that
    /// are submitted to the queue itself belong to no scope.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     queue: kiln::Queue,
    /// #     scale: kiln::Kernel,
    /// #     clamp: kiln::Kernel,
    /// #     x: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// let fusion = queue.start_fusion();
    /// fusion.submit(scale.launch(x.len()).args((&x, 0.5f32)))?;
    /// fusion.submit(clamp.launch(x.len()).args((&x, 0.0f32, 1.0f32)))?;
    /// println!("{}", fusion.complete().await?);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn start_fusion(&self) -> FusionScope {
        let (group, aborted) = (GroupId::next(), AbortReason::default());
        if !process::is_forked() {
            self.scheduler.open_group(group, self.number, aborted.clone());
        }
        FusionScope {
            queue: self.clone(),
            group,
            aborted,
            has_ended: AtomicBool::new(false),
            is_discarded: AtomicBool::new(false),
            settings: Mutex::new(Settings {
                options: FusionOptions::default(),
                trust: Trust::ProofOnly,
            }),
            fusion: Arc::default(),
        }
    }

    /// Returns whether a fusion scope of this queue is collecting launches.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(queue: kiln::Queue) {
    /// let fusion = queue.start_fusion();
    /// assert!(queue.is_fusing());
    /// fusion.cancel();
    /// assert!(!queue.is_fusing());
    /// # }
    /// ```
    #[must_use]
    pub fn is_fusing(&self) -> bool {
        !process::is_forked() && self.scheduler.is_fusing(self.number)
    }
}

impl FusionScope {
    /// Adds a launch. It runs once the scope is completed, canceled or aborted.
    ///
    /// If another thread ends the scope at the same time, the launch may miss it. It then runs by
    /// itself or, if the scope is discarded, [fails](Self::discard) with the others.
    ///
    /// # Errors
    ///
    /// As for [`Queue::submit`]; [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the scope was
    /// completed, canceled or discarded.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     queue: kiln::Queue,
    /// #     blur: kiln::Kernel,
    /// #     tone: kiln::Kernel,
    /// #     src: kiln::Buffer<f32>,
    /// #     tmp: kiln::Buffer<f32>,
    /// #     dst: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// let fusion = queue.start_fusion();
    /// fusion.submit(blur.launch(src.len()).args((&src, &tmp)))?;
    /// let toned = fusion.submit(tone.launch(src.len()).args((&tmp, &dst, 0.7f32)))?;
    /// fusion.complete().await?;
    /// toned.await?; // the event is valid whether or not the launches are fused
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(&self, launch: Launch) -> Result<Event> {
        process::check()?;
        if self.has_ended.load(SeqCst) {
            return Err(Error::invalid(
                "the launch was submitted to a fusion scope that was completed, canceled or \
                 discarded; start a new scope, or submit the launch to the queue",
            ));
        }
        self.queue.submit_to(launch, Some(self.group))
    }

    /// Returns whether the scope collects launches: it was not completed, canceled, discarded or
    /// aborted.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     queue: kiln::Queue,
    /// #     fusion: kiln::FusionScope,
    /// #     blur: kiln::Kernel,
    /// #     src: kiln::Buffer<f32>,
    /// #     dst: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// fusion.submit(blur.launch(src.len()).args((&src, &dst)))?;
    /// let preview = queue.read(&dst).await?; // needs the launch, so the scope is aborted
    /// assert!(!fusion.is_fusing());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_fusing(&self) -> bool {
        !self.has_ended.load(SeqCst) && self.aborted.get().is_none()
    }

    /// Keeps the contents of a buffer or an image: they are written to its memory even if the fused kernel
    /// could do without it. Overrides [`internalize`](Self::internalize), and applies even if the last handle
    /// was dropped.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::fusion::Internalization;
    ///
    /// # fn example(fusion: kiln::FusionScope, blurred: kiln::Buffer<f32>, dump_stages: bool) {
    /// fusion.internalize(&blurred, Internalization::Private);
    /// if dump_stages {
    ///     fusion.keep(&blurred); // overrides `internalize`
    /// }
    /// # }
    /// ```
    pub fn keep<M: DeviceMemory>(&self, memory: &M) -> &Self {
        self.settings().options.keep(memory.place(Seal).region.allocation());
        self
    }

    /// Declares that the contents of a buffer or an image, and of everything that shares its memory, are not
    /// read later, though handles of it exist: the fused kernel may do without the memory.
    ///
    /// If the fused kernel does, the contents are lost. A command that only reads them before they are
    /// written again fails. For a command that may also write them, such as a launch of a kernel that
    /// is still building, the contents are unspecified. If a command reads them before
    /// [`complete`](Self::complete) has decided, the launches run one by one.
    ///
    /// The memory is internalized as requested or stays in use; the [report](Self::report) states the reason.
    /// Images become private only. Buffers and images whose last handle was dropped become private if possible,
    /// and otherwise local. Commands that have not completed and an [examination](Self::examine) hold handles,
    /// too. In other forms than [`Direct`](crate::fusion::FusionForm::Direct), the form determines where results are
    /// kept that other work-items read.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::fusion::Internalization;
    ///
    /// # async fn example(
    /// #     queue: kiln::Queue,
    /// #     blur: kiln::Kernel,
    /// #     tone: kiln::Kernel,
    /// #     src: kiln::Buffer<f32>,
    /// #     tmp: kiln::Buffer<f32>,
    /// #     dst: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// let fusion = queue.start_fusion();
    /// fusion.submit(blur.launch(src.len()).args((&src, &tmp)))?;
    /// fusion.submit(tone.launch(src.len()).args((&tmp, &dst, 0.7f32)))?;
    /// fusion.internalize(&tmp, Internalization::Private); // the next frame overwrites `tmp`
    /// fusion.complete().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn internalize<M: DeviceMemory>(&self, memory: &M, into: Internalization) -> &Self {
        let allocation = memory.place(Seal).region.allocation();
        self.settings().options.internalize(allocation, into);
        self
    }

    /// Fixes the launches' scalar arguments at their values in the fused kernel, so that the driver's
    /// compiler can use them. Other values need another kernel.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     fusion: kiln::FusionScope,
    /// #     smooth: kiln::Kernel,
    /// #     tone: kiln::Kernel,
    /// #     src: kiln::Buffer<f32>,
    /// #     tmp: kiln::Buffer<f32>,
    /// #     dst: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// let radius = 3u32;
    /// fusion.submit(smooth.launch(src.len()).args((&src, &tmp, radius)))?;
    /// fusion.submit(tone.launch(src.len()).args((&tmp, &dst, 0.7f32)))?;
    /// fusion.fix_scalars(); // the driver's compiler can unroll the loop over the radius
    /// fusion.complete().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn fix_scalars(&self) -> &Self {
        self.settings().options.fix_scalars = true;
        self
    }

    /// Requires the launches to run as one kernel, whether or not that is faster. The kernel has the first
    /// [form](crate::fusion::FusionForm) that is legal. If there is none, [`complete`](Self::complete) returns an
    /// error, and the launches still run one by one. They never run in [parts](crate::guides::fusion#parts).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(fusion: kiln::FusionScope) {
    /// // The launches were submitted to `fusion`.
    /// if let Err(error) = fusion.require().complete().await {
    ///     eprintln!("{}", error.summary()); // names the reason why they are not fused
    /// }
    /// # }
    /// ```
    pub fn require(&self) -> &Self {
        self.settings().options.is_required = true;
        self
    }

    /// Also fuses launches whose fusion is not proven to be legal, unless it is proven to be illegal.
    ///
    /// # Safety
    ///
    /// In every launch of the scope, no work-item reads or writes data that another work-item wrote in an
    /// earlier launch of the scope, or writes data that another work-item read there. A stencil, such as a
    /// blur, over the output of an earlier launch breaks this rule: its work-items read the output of their
    /// neighbours. Kiln does not always refute that, for example if indexes are clamped, so the launches
    /// would be fused, and their results would be wrong. Stencils need no promise: Kiln fuses them in other
    /// [forms](crate::fusion::FusionForm) if that is proven.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     fusion: kiln::FusionScope,
    /// #     permute: kiln::Kernel,
    /// #     scale: kiln::Kernel,
    /// #     x: kiln::Buffer<f32>,
    /// #     indexes: kiln::Buffer<u32>,
    /// #     y: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// fusion.submit(permute.launch(x.len()).args((&x, &indexes, &y)))?;
    /// fusion.submit(scale.launch(x.len()).args((&y, &indexes, 0.5f32)))?;
    /// // SAFETY: `indexes` is a permutation, so each work-item of both kernels uses an element of its own.
    /// unsafe { fusion.assume_legal() };
    /// fusion.complete().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub unsafe fn assume_legal(&self) -> &Self {
        self.settings().trust = Trust::Caller;
        self
    }

    /// Runs the launches one by one.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     fusion: kiln::FusionScope,
    /// #     blur: kiln::Kernel,
    /// #     src: kiln::Buffer<f32>,
    /// #     dst: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// let blurred = fusion.submit(blur.launch(src.len()).args((&src, &dst)))?;
    /// fusion.cancel(); // no other launch follows: the launch runs now
    /// blurred.await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn cancel(&self) {
        if self.end() {
            let was_collecting = self.queue.scheduler.close_group(self.group, |_| ()).is_some();
            if was_collecting {
                self.queue.scheduler.run_separately(self.group, None);
            }
            self.count_end(was_collecting);
        }
    }

    /// Runs none of the launches. They fail with [`InvalidArgument`](crate::ErrorKind::InvalidArgument) and a
    /// message that names the cause. As for any [failed command](Queue#failures), their outputs count
    /// as failed, too. Does nothing if the scope was completed, canceled or aborted.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     fusion: kiln::FusionScope,
    /// #     blur: kiln::Kernel,
    /// #     src: kiln::Buffer<f32>,
    /// #     dst: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// let blurred = fusion.submit(blur.launch(src.len()).args((&src, &dst)))?;
    /// fusion.discard(); // the client that requested the picture has disconnected
    /// let error = blurred.await.unwrap_err();
    /// assert_eq!(error.kind(), kiln::ErrorKind::InvalidArgument);
    /// # Ok(())
    /// # }
    /// ```
    pub fn discard(&self) {
        if self.end() {
            self.is_discarded.store(true, SeqCst);
            self.count_end(self.queue.scheduler.discard_group(self.group));
        }
    }

    /// Runs the launches: as one kernel or in several parts if it is proven that the results do not change
    /// and, unless [`require`](Self::require) is set, if that is faster. The future returns how they run;
    /// dropping it changes nothing. The launches of a scope that differs from earlier ones wait until their
    /// kernel is built, but no longer than a second or, if that is less, than a
    /// [limit](crate::RuntimeBuilder::fusion_limit). Then they run one by
    /// one, and the outcome is [`Unfused::Overdue`]. If fusion is required, and with
    /// [`FusionMode::Always`](crate::FusionMode::Always), they wait for the whole limit.
    ///
    /// With [`FusionMode::Auto`](crate::FusionMode::Auto), the first one to four runs of each
    /// [way](crate::guides::fusion#trials) to run the launches are timed, in turns. Runs of the launches one
    /// by one return [`Unfused::Timing`] then.
    ///
    /// # Errors
    ///
    /// From the future:
    ///
    /// * The error of a launch of the scope that has failed or is certain to fail, such as the error of its
    ///   program's build. What the launch was to write is [lost](Queue#failures).
    /// * [`Unsupported`](crate::ErrorKind::Unsupported), with the reason, if `require` is set and the launches
    ///   are not fused, or [`TimedOut`](crate::ErrorKind::TimedOut) if their kernel was not built within the
    ///   limit.
    /// * [`Panicked`](crate::ErrorKind::Panicked) if fusing panicked.
    ///
    /// The other launches then run one by one. The future does not wait for the launches: one that fails later
    /// fails its own event, and what needs its results.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     fusion: kiln::FusionScope,
    /// #     blur: kiln::Kernel,
    /// #     tone: kiln::Kernel,
    /// #     src: kiln::Buffer<f32>,
    /// #     tmp: kiln::Buffer<f32>,
    /// #     dst: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// fusion.submit(blur.launch(src.len()).args((&src, &tmp)))?;
    /// fusion.submit(tone.launch(src.len()).args((&tmp, &dst, 0.7f32)))?;
    /// let outcome = fusion.complete().await?;
    /// println!("{outcome}"); // says whether the launches run as one kernel, and otherwise why not
    /// # Ok(())
    /// # }
    /// ```
    pub fn complete(&self) -> CompleteFusion {
        let is_first = self.end();
        let scheduler = &self.queue.scheduler;
        let lookup = |launches: &[&LaunchWork]| (launches.len(), self.find_recent(launches));
        let closed = is_first.then(|| scheduler.close_group(self.group, lookup)).flatten();
        let completion = Completion {
            queue: self.queue.clone(),
            group: self.group,
            is_required: self.settings().options.is_required,
            fusion: self.fusion.clone(),
            is_decided: closed.is_none(),
        };
        let Some((count, (unfailed, recent))) = closed else {
            let why = match self.aborted.get() {
                Some(why) if is_first => Unfused::Aborted(why.clone()),
                _ => Unfused::Canceled,
            };
            return CompleteFusion::known(completion.unfused(why));
        };
        if unfailed < count {
            return CompleteFusion::known(
                completion.failed(scheduler.failure_in_group(self.group)),
            );
        }
        completion.decide(recent, count)
    }

    /// Examines the launches as [`complete`](Self::complete) would, but runs nothing: the scope
    /// continues to collect. The fused kernels are built if there are any.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     fusion: kiln::FusionScope,
    /// #     blur: kiln::Kernel,
    /// #     tone: kiln::Kernel,
    /// #     src: kiln::Buffer<f32>,
    /// #     tmp: kiln::Buffer<f32>,
    /// #     dst: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// fusion.submit(blur.launch(src.len()).args((&src, &tmp)))?;
    /// fusion.submit(tone.launch(src.len()).args((&tmp, &dst, 0.7f32)))?;
    /// let report = fusion.examine().await?; // nothing has run yet
    /// println!("{report}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn examine(&self) -> ExamineFusion {
        let lookup = |launches: &[&LaunchWork]| {
            (self.new_lookup(launches, &self.settings()), LaunchSnapshot::of(launches))
        };
        let collects = !self.has_ended.load(SeqCst) && !process::is_forked();
        let visited = collects.then(|| self.queue.scheduler.visit_group(self.group, lookup));
        ExamineFusion::new(async move {
            match visited.flatten() {
                Some((count, (_, snapshot))) if snapshot.len() < count => Err(Error::invalid(
                    "a launch of the fusion scope failed, so the other launches are not examined; \
                     await the event of the failed launch for its error",
                )),
                Some((1.., (lookup, snapshot))) => Ok(lookup.fusion(&snapshot).await?.report()),
                _ => Err(Error::invalid("the fusion scope has no collected launches to examine")),
            }
        })
    }

    /// Returns the report: the verdicts on the buffers, the reason if the launches are not one kernel, the
    /// [parts](crate::fusion::FusionReport::parts) in which they run, and the times measured so far. It lists no
    /// launches before [`complete`](Self::complete) has returned its outcome, or if they were not examined,
    /// for example because fusion is disabled.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(fusion: kiln::FusionScope) -> kiln::Result<()> {
    /// let outcome = fusion.complete().await?;
    /// if !outcome.is_fused() {
    ///     println!("{}", fusion.report()); // which kernel reads which bytes where
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn report(&self) -> FusionReport {
        self.fusion.get().map_or_else(FusionReport::of_none, |fusion| fusion.report())
    }

    /// Counts a scope that ends without being completed.
    fn count_end(&self, was_collecting: bool) {
        let counters = &self.queue.scheduler.shared().counters;
        if was_collecting {
            counters.fusion.canceled.add_one();
        } else if self.aborted.get().is_some() {
            counters.fusion.aborted.add_one();
        }
    }

    /// Looks the launches up among the recent scopes. Called under the scheduler's lock.
    fn find_recent(&self, launches: &[&LaunchWork]) -> RecentLookup {
        let settings = self.settings();
        let known = recents(&self.queue).find(launches, &settings.options, settings.trust);
        match known {
            Some((fusion, recent)) => RecentLookup::Known(fusion, recent),
            None => RecentLookup::New(Box::new(self.new_lookup(launches, &settings))),
        }
    }

    /// Takes a snapshot of the launches. Called under the scheduler's lock.
    fn new_lookup(&self, launches: &[&LaunchWork], settings: &Settings) -> FusionLookup {
        let (scheduler, trust) = (self.queue.scheduler.clone(), settings.trust);
        let usage = MemoryUsage::of(launches, &settings.options);
        let query = usage.query(launches, scheduler.slot().handle().index(), trust);
        FusionLookup { scheduler, usage, query, options: settings.options.clone(), trust }
    }

    /// Marks the scope as ended. Returns whether this call ended it; always `false` in a forked child.
    fn end(&self) -> bool {
        !self.has_ended.swap(true, SeqCst) && !process::is_forked()
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }
}

impl Drop for FusionScope {
    fn drop(&mut self) {
        self.cancel();
        if *self.is_discarded.get_mut() && !process::is_forked() {
            self.queue.scheduler.forget_group(self.group);
        }
    }
}

impl fmt::Debug for FusionScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FusionScope")
            .field("queue", &self.queue)
            .field("is_fusing", &self.is_fusing())
            .finish_non_exhaustive()
    }
}

named_future! {
    /// Future of a report on the launches of a scope that continues to collect, from [`FusionScope::examine`].
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if there are no launches, if one has already
    /// failed, or if the scope no longer collects; otherwise the build error of a launch's program, or
    /// a failure of circumstance, such as exhausted memory.
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(
    /// #     fusion: kiln::FusionScope,
    /// #     tone: kiln::Kernel,
    /// #     x: kiln::Buffer<f32>,
    /// # ) -> kiln::Result<()> {
    /// let examining: kiln::fusion::ExamineFusion = fusion.examine(); // of the launches so far
    /// fusion.submit(tone.launch(x.len()).args((&x, 0.7f32)))?; // not in the report
    /// println!("{}", examining.await?);
    /// # Ok(())
    /// # }
    /// ```
    ExamineFusion => Result<FusionReport>
}
