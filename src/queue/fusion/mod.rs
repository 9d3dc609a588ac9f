//! Fusion scopes: launches that are collected to run as one kernel.

mod outcome;
mod plan;
mod recent;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use bytemuck::Pod;
use futures::FutureExt;
use futures::channel::oneshot;
use smallvec::SmallVec;

pub use self::outcome::{Fusing, FusionOutcome, Unfused};
use self::plan::{Outline, Sketch, Wishes};
use self::recent::Recent;
pub(crate) use self::recent::Recents;
use super::Queue;
use super::command::{Launch, LaunchWork};
use super::event::Event;
use super::scheduler::{Aborted, GroupId, Scheduler, Together, United};
use super::stopwatch::Stopwatch;
use crate::args::buffer::Buffer;
use crate::build_graph::{Choice, Fastest, Fusion, FusionRequest, Query, Run};
pub use crate::compiler::fusion::Internalization;
use crate::compiler::fusion::{FusionReport, Trust};
use crate::error::{Error, ErrorKind, Result};
use crate::future::named_future;
use crate::process;
use crate::sync::lock;

/// Whether launches that can run as one kernel do, for all scopes of a runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FusionMode {
    /// If that is faster. The first runs of the same launches are timed in turns, fused and not, and
    /// from then on the faster way is taken. Launches are the same whatever their scalar arguments are,
    /// unless these decide what the fused kernel is.
    #[default]
    Auto,
    /// Always, without timing.
    Always,
    /// Never: scopes run their launches one by one, but for those that
    /// [require](FusionScope::require) to be fused.
    Never,
}

/// The environment variable that tells the mode.
const MODE_VARIABLE: &str = "KILN_FUSION";

impl FusionMode {
    /// What the environment says.
    pub(crate) fn from_environment() -> Result<Self> {
        let Some(text) = std::env::var_os(MODE_VARIABLE) else { return Ok(Self::Auto) };
        match text.to_str() {
            Some("auto" | "") => Ok(Self::Auto),
            Some("always") => Ok(Self::Always),
            Some("never") => Ok(Self::Never),
            _ => Err(Error::new(
                ErrorKind::Configuration,
                format!("{MODE_VARIABLE}: {text:?} is not `auto`, `always` or `never`"),
            )),
        }
    }
}

/// Launches that are collected to run as one kernel, from
/// [`Queue::start_fusion`](crate::Queue::start_fusion).
///
/// [`complete`](Self::complete) fuses the launches if that is proven to change nothing, and else
/// runs them one by one and says why; [`cancel`](Self::cancel), or dropping the scope, runs them one
/// by one. Buffers whose last handle was dropped before `complete` are not written if the fused
/// kernel can do without. [`examine`](Self::examine) only tells what would become of them, and
/// [`discard`](Self::discard) runs none.
///
/// The launches count as commands of the queue from the start, and their events are valid whatever
/// becomes of the scope. They wait for `complete`. If anything outside the scope needs one of them
/// before, such as a read of what it writes, another launch, an `await` of its event, or
/// [`drain`](crate::Runtime::drain), the scope is aborted: its launches so far run one by one, and
/// so do those that are submitted to it later.
///
/// Launches that run as one kernel may all fail with what one of them needed and did not get.
///
/// The fused kernel computes the same bytes but where OpenCL leaves open what an operation gives, as
/// the sign and payload of a NaN, the conversion of a number to a type that does not have it, and the
/// rounding of `mad` and of what may be calculated by it, as `mix` and the products and sums that a SPIR-V
/// module lets drivers contract: there a driver that knows more of the operands may give something else.
/// Intel's CPU runtime may also give other last bits, within the error that OpenCL allows, for an estimate
/// such as `rsqrt` of a value that all work-items share.
///
/// Build options of the launches' programs hold for the fused kernel, with these differences:
///
/// * `-cl-fast-relaxed-math`, `-cl-unsafe-math-optimizations` and `-cl-finite-math-only` are left out, but
///   for the macros that they define, so that the fused kernel is as accurate as the launches or more so.
///   Its bytes differ from theirs, and so may what they make of infinities and NaNs. Functions take
///   longer than with the option: where that outweighs what fusing saves, [`FusionMode::Auto`] runs the
///   launches one by one. Programs that differ only in these options can be fused.
/// * `-cl-no-signed-zeros` leaves the sign of a zero open, and `-cl-denorms-are-zero` whether a value too
///   small to be normal becomes zero on its way from launch to launch.
/// * `-cl-mad-enable` lets a driver round a product and a sum once, of several launches, too, where it
///   sees them.
/// * `-cl-std`, `-cl-single-precision-constant`, macros and directories hold for the translation of a text.
///   Warnings (`-Werror`) are those of the launches' own builds.
/// * Others, such as `-cl-fp32-correctly-rounded-divide-sqrt` and `-cl-opt-disable`, hold as they are, and
///   must be the same for all programs.
///
/// ```no_run
/// # async fn example(queue: kiln::Queue, blur: kiln::Kernel, tone: kiln::Kernel,
/// #     src: kiln::Buffer<f32>, tmp: kiln::Buffer<f32>, dst: kiln::Buffer<f32>) -> kiln::Result<()> {
/// let n = src.len();
/// let fusion = queue.start_fusion();
/// fusion.submit(blur.launch(n).args((&src, &tmp)))?;
/// fusion.submit(tone.launch(n).args((&tmp, &dst, 0.7f32)))?;
/// drop(tmp); // nobody reads it later
/// println!("{}", fusion.complete().await?);
/// # Ok(())
/// # }
/// ```
pub struct FusionScope {
    queue: Queue,
    group: GroupId,
    aborted: Aborted,
    /// Whether it was completed, canceled or discarded.
    has_ended: AtomicBool,
    is_discarded: AtomicBool,
    settings: Mutex<Settings>,
    report: Arc<OnceLock<FusionReport>>,
}

struct Settings {
    wishes: Wishes,
    trust: Trust,
    is_required: bool,
}

impl Queue {
    /// Begins to collect launches that are to run as one kernel.
    ///
    /// Any number of scopes can collect at the same time, of this queue and of others. What is
    /// submitted to the queue itself is not part of any.
    pub fn start_fusion(&self) -> FusionScope {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (group, aborted) = (GroupId(NEXT.fetch_add(1, Relaxed)), Aborted::default());
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
                wishes: Wishes::default(),
                trust: Trust::ProofOnly,
                is_required: false,
            }),
            report: Arc::default(),
        }
    }

    /// Whether a fusion scope of this queue collects launches.
    #[must_use]
    pub fn is_fusing(&self) -> bool {
        !process::is_forked() && self.scheduler.is_fusing(self.number)
    }
}

impl FusionScope {
    /// Adds a launch. It runs once the scope is completed, canceled or aborted.
    ///
    /// One that is being submitted while another thread ends the scope may come too late for it and run by
    /// itself, or [fail](Self::discard) with the others where the scope is discarded.
    ///
    /// # Errors
    ///
    /// As for [`Queue::submit`]; [`InvalidArgument`](ErrorKind::InvalidArgument) if the scope was
    /// completed, canceled or discarded.
    pub fn submit(&self, launch: Launch) -> Result<Event> {
        process::check()?;
        if self.has_ended.load(SeqCst) {
            return Err(Error::invalid(
                "a launch is submitted to a fusion scope that was completed, canceled or discarded; \
                 start another, or submit it to the queue",
            ));
        }
        self.queue.submit_to(launch, Some(self.group))
    }

    /// Whether it collects launches: it was not completed, canceled, discarded or aborted.
    #[must_use]
    pub fn is_fusing(&self) -> bool {
        !self.has_ended.load(SeqCst) && self.aborted.get().is_none()
    }

    /// Has the contents of the buffer written to its memory even where the fused kernel could do without
    /// it: overrules [`internalize`](Self::internalize), and that its last handle was dropped.
    pub fn keep<T: Pod>(&self, buffer: &Buffer<T>) -> &Self {
        self.settings().wishes.keep(buffer.region().allocation());
        self
    }

    /// The contents of the buffer, and of all that shares its memory, are not read later, though
    /// there are handles of it: the fused kernel may do without it. If it does, the contents are
    /// lost, and whatever only reads them before they are written again fails; what a command finds there
    /// that may write them, too, is unspecified, such as a launch of a kernel that still builds. If a
    /// command reads them before [`complete`](Self::complete) has decided, the launches run one by one.
    ///
    /// It becomes what is asked for or stays in memory, and the [report](Self::report) says why.
    /// Buffers whose last handle was dropped become private if they can, and else local. Commands that
    /// have not ended and an [examination](Self::examine) have handles, too.
    pub fn internalize<T: Pod>(&self, buffer: &Buffer<T>, into: Internalization) -> &Self {
        self.settings().wishes.internalize(buffer.region().allocation(), into);
        self
    }

    /// Fixes the launches' scalar arguments at their values in the fused kernel, which lets the
    /// driver's compiler use them. Other values take another kernel.
    pub fn fix_scalars(&self) -> &Self {
        self.settings().wishes.fix_scalars = true;
        self
    }

    /// The launches must run as one, whether or not that is faster: else
    /// [`complete`](Self::complete) gives an error. They run one by one in that case, too.
    pub fn require(&self) -> &Self {
        self.settings().is_required = true;
        self
    }

    /// Fuses also what is not proven to be legal, unless it is refuted.
    ///
    /// # Safety
    ///
    /// No work-item of a launch of the scope reads or writes what another work-item wrote, or writes
    /// what another one read, in an earlier launch of the scope. Not so in a stencil, such as a blur,
    /// of what an earlier launch wrote: its work-items read their neighbours'. Where that is not known
    /// for sure, as with indexes that are clamped, only this promise keeps it from being fused.
    pub unsafe fn assume_legal(&self) -> &Self {
        self.settings().trust = Trust::Caller;
        self
    }

    /// Runs the launches one by one.
    pub fn cancel(&self) {
        if self.end() {
            let was_collecting = self.queue.scheduler.close_group(self.group, |_| ()).is_some();
            if was_collecting {
                self.queue.scheduler.run_separately(self.group, None);
            }
            self.count_end(was_collecting);
        }
    }

    /// Runs none of the launches: they fail, with [`InvalidArgument`](ErrorKind::InvalidArgument) and an
    /// error that says so, and with them what they should have written, as that of any [failed
    /// command](Queue#failures). Does nothing if the scope was completed, canceled or aborted.
    pub fn discard(&self) {
        if self.end() {
            self.is_discarded.store(true, SeqCst);
            self.count_end(self.queue.scheduler.discard_group(self.group));
        }
    }

    /// Has the launches run, as one kernel if that is proven to change nothing and, unless
    /// [`require`](Self::require) is set, faster. The future tells how; dropping it changes nothing.
    ///
    /// With [`FusionMode::Auto`] two to four runs of each way come first and are timed, in turns: every
    /// second of them gives [`Unfused::Timing`].
    ///
    /// # Errors
    ///
    /// From the future: if `require` is set, [`Unsupported`](ErrorKind::Unsupported) if the launches
    /// are not fused, with the reason; [`Panicked`](ErrorKind::Panicked) if fusing panicked. The
    /// launches then run one by one.
    pub fn complete(&self) -> Fusing {
        let is_first = self.end();
        let scheduler = &self.queue.scheduler;
        let look = |launches: &[&LaunchWork]| (launches.len(), self.look(launches));
        let closed = is_first.then(|| scheduler.close_group(self.group, look)).flatten();
        let completion = Completion {
            queue: self.queue.clone(),
            group: self.group,
            is_required: self.settings().is_required,
            report: self.report.clone(),
            is_decided: closed.is_none(),
        };
        let Some((count, (found, seen))) = closed else {
            let why = match self.aborted.get() {
                Some(why) if is_first => Unfused::Aborted(why.clone()),
                _ => Unfused::Canceled,
            };
            return Fusing::known(completion.unfused(why));
        };
        if found < count {
            let cause = scheduler.failure_in_group(self.group);
            return Fusing::known(completion.unfused(Unfused::of_failed(cause.as_ref())));
        }
        completion.decide(seen, count)
    }

    /// Finds out what [`complete`](Self::complete) would, and runs nothing: the scope goes on
    /// collecting. The fused kernel is built if there is one.
    pub fn examine(&self) -> Examining {
        let inquiry = |launches: &[&LaunchWork]| {
            (self.inquiry(launches, &self.settings()), Sketch::of(launches))
        };
        let collects = !self.has_ended.load(SeqCst) && !process::is_forked();
        let visited = collects.then(|| self.queue.scheduler.visit_group(self.group, inquiry));
        Examining::new(async move {
            match visited.flatten() {
                Some((count, (_, sketch))) if sketch.len() < count => Err(Error::invalid(
                    "a launch of the fusion scope has failed, as its event tells: nothing is found out \
                     about the others",
                )),
                Some((1.., (inquiry, sketch))) => Ok(inquiry.fusion(&sketch).await?.report.clone()),
                _ => Err(Error::invalid("the fusion scope collects no launches to examine")),
            }
        })
    }

    /// Why the launches were fused, or were not. It tells of no launches until
    /// [`complete`](Self::complete) has told its outcome, nor if they were not examined, as where
    /// fusing is switched off.
    #[must_use]
    pub fn report(&self) -> FusionReport {
        self.report.get().cloned().unwrap_or_else(FusionReport::of_none)
    }

    /// Counts a scope that nobody completes.
    fn count_end(&self, was_collecting: bool) {
        let counters = &self.queue.scheduler.shared().counters;
        if was_collecting {
            counters.fusions_canceled.add_one();
        } else if self.aborted.get().is_some() {
            counters.fusions_aborted.add_one();
        }
    }

    /// Called under the scheduler's lock.
    fn look(&self, launches: &[&LaunchWork]) -> Seen {
        let settings = self.settings();
        let known = recents(&self.queue).find(launches, &settings.wishes, settings.trust);
        match known {
            Some((fusion, recent)) => Seen::Known(fusion, recent),
            None => Seen::New(Box::new(self.inquiry(launches, &settings))),
        }
    }

    /// Called under the scheduler's lock.
    fn inquiry(&self, launches: &[&LaunchWork], settings: &Settings) -> Inquiry {
        let (scheduler, trust) = (self.queue.scheduler.clone(), settings.trust);
        let outline = Outline::of(launches, &settings.wishes);
        let query = outline.query(launches, scheduler.slot().handle().index(), trust);
        Inquiry { scheduler, outline, query, wishes: settings.wishes.clone(), trust }
    }

    /// Whether it had not ended before.
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
    /// What is known of the launches of a scope that goes on collecting, from
    /// [`FusionScope::examine`].
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if there are no launches, if one has failed already,
    /// or if the scope does not collect any more; else that of a launch's program that could not be built,
    /// or a failure of circumstance.
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing.
    Examining => Result<FusionReport>
}

fn recents(queue: &Queue) -> MutexGuard<'_, Recents> {
    lock(&queue.recents)
}

/// What a look at a scope's launches tells.
enum Seen {
    /// They are those of a scope before.
    Known(Arc<Fusion>, Arc<Recent>),
    New(Box<Inquiry>),
}

/// What was found out about launches and their buffers besides.
struct Findings<'a> {
    /// The allocations that running as one leaves without their contents, and that somebody can still
    /// read.
    lost: &'a [u64],
    rest: Rest<'a>,
}

/// What is known of launches besides.
enum Rest<'a> {
    /// What they use together, and that the fused launch is right.
    Known(&'a Arc<Together>),
    /// Nothing; what is found out is to be kept in mind.
    New(&'a Inquiry),
}

/// What is to be found out about launches.
struct Inquiry {
    scheduler: Arc<Scheduler>,
    outline: Outline,
    /// Nothing if a program is not there yet.
    query: Option<Query>,
    wishes: Wishes,
    trust: Trust,
}

impl Inquiry {
    /// What is known already.
    fn known(&self) -> Option<Arc<Fusion>> {
        self.scheduler.shared().graph.known_fusion(self.query.as_ref()?)
    }

    async fn fusion(&self, sketch: &Sketch) -> Result<Arc<Fusion>> {
        for kernel in sketch.kernels() {
            kernel.resolve().await;
        }
        let request = self.request(sketch)?;
        self.scheduler.shared().graph.clone().fuse(request).await
    }

    fn request(&self, sketch: &Sketch) -> Result<FusionRequest> {
        let (launches, handle) = (sketch.launches(), self.scheduler.slot().handle());
        let device = handle.index();
        let plan = self.outline.plan(&launches, handle)?;
        // The plan has found all programs there.
        let query = self.query.clone();
        let query = query.or_else(|| self.outline.query(&launches, device, self.trust));
        Ok(FusionRequest {
            query: query.ok_or_else(|| Error::invalid("a program is not there yet"))?,
            device,
            kernels: sketch.kernels().cloned().collect(),
            plan,
            trust: self.trust,
        })
    }
}

/// The duty to have the launches of a scope run, in one way or the other. One by one if it is
/// dropped before.
struct Completion {
    queue: Queue,
    group: GroupId,
    is_required: bool,
    report: Arc<OnceLock<FusionReport>>,
    is_decided: bool,
}

impl Completion {
    /// Decides at once if all is known, else on the library's own thread.
    fn decide(self, seen: Seen, count: usize) -> Fusing {
        let shared = self.queue.scheduler.shared();
        let none = match count {
            0 => Some(Unfused::Empty),
            1 => Some(Unfused::Single),
            _ => {
                let is_off = shared.fusion == FusionMode::Never && !self.is_required;
                is_off.then_some(Unfused::Disabled)
            }
        };
        if let Some(why) = none {
            return Fusing::known(self.unfused(why));
        }
        let inquiry = match seen {
            Seen::Known(fusion, recent) => {
                let Recent { lost, together, .. } = &*recent;
                let findings = Findings { lost, rest: Rest::Known(together) };
                return Fusing::known(self.follow(&fusion, findings));
            }
            Seen::New(inquiry) => inquiry,
        };
        if let Some(fusion) = inquiry.known() {
            return Fusing::known(self.follow_new(&inquiry, &fusion));
        }
        let sketch = self.queue.scheduler.visit_group(self.group, Sketch::of);
        let Some((_, sketch)) = sketch.filter(|(_, sketch)| sketch.len() == count) else {
            let cause = self.queue.scheduler.failure_in_group(self.group);
            return Fusing::known(self.unfused(Unfused::of_failed(cause.as_ref())));
        };
        let (sender, receiver) = oneshot::channel();
        let host = shared.host.clone();
        let asked = host.spawn(async move {
            // A panic drops the completion, and the launches run.
            let found = AssertUnwindSafe(self.find_out(*inquiry, sketch)).catch_unwind().await;
            if let Ok(outcome) = found {
                // Perhaps nobody wants to know.
                let _ = sender.send(outcome);
            }
        });
        match asked {
            Ok(()) => Fusing::awaited(receiver),
            Err(error) => Fusing::known(Err(error.within("fusing; the launches run one by one"))),
        }
    }

    async fn find_out(self, inquiry: Inquiry, sketch: Sketch) -> Result<FusionOutcome> {
        let found = inquiry.fusion(&sketch).await;
        // Once the launches run, nobody may find their buffers held here.
        drop(sketch);
        match found {
            Ok(fusion) => self.follow_new(&inquiry, &fusion),
            Err(error) => self.unfused(Unfused::Failed(error)),
        }
    }

    /// Follows what was found out just now.
    fn follow_new(self, inquiry: &Inquiry, fusion: &Arc<Fusion>) -> Result<FusionOutcome> {
        let internalized = fusion.fused.as_ref().map_or(&[][..], |fused| &fused.internalized);
        let lost: SmallVec<[u64; 8]> = inquiry.outline.held(internalized).collect();
        self.follow(fusion, Findings { lost: &lost, rest: Rest::New(inquiry) })
    }

    /// Runs the launches in the way that is legal, faster, or asked for.
    fn follow(mut self, fusion: &Arc<Fusion>, findings: Findings<'_>) -> Result<FusionOutcome> {
        // Nobody else follows for this scope.
        let _ = self.report.set(fusion.report.clone());
        let Some(fused) = &fusion.fused else {
            let why = fusion.report.refusal().unwrap_or("no reason is known");
            return self.unfused(Unfused::Refused(why.to_owned()));
        };
        let choice = match self.queue.scheduler.shared().fusion {
            FusionMode::Auto if !self.is_required => fusion.choose(),
            _ => Choice::Fused,
        };
        let launches = fusion.report.launches().len();
        let stopwatch = |commands, run| {
            let fusion = fusion.clone();
            let tell = move |took| fusion.note(run, took);
            Some(Arc::new(Stopwatch::new(commands, Box::new(tell))))
        };
        let timed = match choice {
            Choice::Unfused(Fastest { fused, unfused }) => {
                return self.unfused(Unfused::Slower { fused, unfused });
            }
            Choice::Time(Run::Unfused) => {
                self.is_decided = true;
                let stopwatch = stopwatch(launches, Run::Unfused);
                self.queue.scheduler.run_separately(self.group, stopwatch);
                return self.unfused(Unfused::Timing);
            }
            Choice::Time(Run::Fused) => stopwatch(1, Run::Fused),
            Choice::Fused => None,
        };
        self.is_decided = true;
        let Findings { lost, rest } = findings;
        let unite = |launches: &[&LaunchWork]| {
            let launch = Box::new(plan::fused(launches, fused));
            let together = match rest {
                Rest::Known(together) => Arc::clone(together),
                Rest::New(Inquiry { wishes, trust, .. }) => {
                    launch.check(self.queue.device()).transpose()?;
                    let together = Arc::new(Together::of(launches, &launch, lost));
                    let mut recents = recents(&self.queue);
                    recents.learn(launches, (wishes, *trust), fusion, (lost, &together));
                    together
                }
            };
            Ok(United { launch, together })
        };
        match self.queue.scheduler.run_as_one(self.group, unite, lost, timed) {
            Ok(()) => {
                self.queue.scheduler.shared().counters.fusions.add_one();
                tracing::debug!(kernel = fused.kernel.name(), "launches run as one");
                Ok(FusionOutcome::Fused {
                    kernel: fused.kernel.name().to_owned(),
                    launches,
                    internalized: fused.internalized.len(),
                })
            }
            Err(hindrance) => {
                if choice == Choice::Time(Run::Fused) {
                    fusion.give_back();
                }
                self.unfused(Unfused::Refused(hindrance.to_string()))
            }
        }
    }

    /// Runs the launches one by one, if they do not yet.
    fn unfused(mut self, why: Unfused) -> Result<FusionOutcome> {
        self.run_separately();
        let counters = &self.queue.scheduler.shared().counters;
        let counter = match &why {
            // Those that were canceled are counted by then.
            Unfused::Empty | Unfused::Single | Unfused::Canceled => None,
            Unfused::Aborted(_) => Some(&counters.fusions_aborted),
            Unfused::Refused(_) | Unfused::Disabled => Some(&counters.fusions_refused),
            Unfused::Slower { .. } | Unfused::Timing => Some(&counters.fusions_slower),
            Unfused::Failed(_) => Some(&counters.fusions_failed),
        };
        if let Some(counter) = counter {
            counter.add_one();
        }
        tracing::debug!(%why, "launches are not fused");
        if self.is_required {
            let error =
                Error::new(ErrorKind::Unsupported, format!("required, but not fused: {why}"));
            return Err(match why {
                Unfused::Failed(cause) => error.with_source(cause),
                _ => error,
            });
        }
        Ok(FusionOutcome::Unfused { why })
    }

    fn run_separately(&mut self) {
        if !std::mem::replace(&mut self.is_decided, true) {
            self.queue.scheduler.run_separately(self.group, None);
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.run_separately();
    }
}
