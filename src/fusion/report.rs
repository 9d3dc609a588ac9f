//! What is told of a fusion: what was judged and why, and the code that came of it.

use std::fmt;
use std::sync::Arc;

use super::Outcome;
use super::legality::Verdict;
use super::plan::{Internalization, Memory, Plan};
use crate::emit;
use crate::error::{Error, ErrorKind, Result};
use crate::nd_range::NdRange;
use crate::spirv::Module;

/// What is known of launches that were to run as one: the verdict on every buffer that they share,
/// and the code of the kernel that they became. Cheap to clone; its display is a text for people.
#[derive(Clone, Debug)]
pub struct FusionReport(Arc<Content>);

#[derive(Clone, Debug, Default)]
struct Content {
    launches: Vec<(String, NdRange)>,
    buffers: Vec<BufferReport>,
    /// The kernel's name and its module.
    kernel: Option<(String, Vec<u8>)>,
    /// Why there is none.
    refusal: Option<String>,
}

/// What is known of one buffer that launches use.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BufferReport {
    /// The launches' parameters that it was given for: their positions among the launches, and their
    /// positions among the kernel's parameters.
    pub parameters: Vec<(usize, usize)>,
    /// Whether sharing it lets the launches run as one.
    pub verdict: Verdict,
    /// Whether the fused kernel does without it.
    pub is_internalized: bool,
    /// What it became if so.
    pub internalized_as: Option<Internalization>,
    /// Why it was not made private to the work-items, if it was not, nor local to the work-groups.
    pub why_in_memory: Option<String>,
}

impl FusionReport {
    /// Of launches of which nothing is known.
    pub(crate) fn of_none() -> Self {
        Self(Arc::default())
    }

    /// Of a plan that could not be examined.
    pub(crate) fn refused(plan: &Plan, why: String) -> Self {
        let content = Content { launches: launches(plan), ..Content::default() };
        Self(Arc::new(Content { refusal: Some(why), ..content }))
    }

    pub(crate) fn of(plan: &Plan, outcome: &Outcome) -> Self {
        let fused = outcome.fused.as_ref();
        let internalized = |memory| fused.is_ok_and(|f| f.internalized.contains(&memory));
        let parameters = |memory: Memory| {
            plan.regions(memory).map(|(place, _)| (place.slot, place.argument)).collect()
        };
        let buffers = outcome.judgements.iter().map(|judgement| BufferReport {
            parameters: parameters(judgement.memory),
            verdict: judgement.verdict.clone(),
            is_internalized: internalized(judgement.memory),
            internalized_as: fused.ok().and_then(|fused| fused.form(judgement.memory)),
            why_in_memory: judgement.why_in_memory(),
        });
        Self(Arc::new(Content {
            launches: launches(plan),
            buffers: buffers.collect(),
            kernel: fused.ok().map(|fused| (fused.kernel.clone(), fused.module.assemble())),
            refusal: fused.err().cloned(),
        }))
    }

    /// There is no kernel, for this reason.
    pub(crate) fn refuse(&mut self, why: String) {
        Arc::make_mut(&mut self.0).refusal = Some(why);
    }

    /// The names of the launches' kernels, in order.
    #[must_use]
    pub fn launches(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.launches.iter().map(|(kernel, _)| kernel.as_str())
    }

    /// The buffers that the launches use, in the order in which they are first named.
    #[must_use]
    pub fn buffers(&self) -> &[BufferReport] {
        &self.0.buffers
    }

    /// Why there is no fused kernel; `None` if there is one.
    #[must_use]
    pub fn refusal(&self) -> Option<&str> {
        self.0.refusal.as_deref()
    }

    /// The name of the fused kernel.
    #[must_use]
    pub fn kernel(&self) -> Option<&str> {
        self.0.kernel.as_ref().map(|(name, _)| name.as_str())
    }

    /// The module of the fused kernel.
    #[must_use]
    pub fn spirv(&self) -> Option<&[u8]> {
        self.0.kernel.as_ref().map(|(_, module)| module.as_slice())
    }

    /// The fused kernel in OpenCL C, as a device gets it that takes no SPIR-V.
    ///
    /// # Errors
    ///
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) if there is no fused kernel,
    /// [`Unsupported`](ErrorKind::Unsupported) for what OpenCL C cannot express.
    pub fn opencl_c(&self) -> Result<String> {
        match self.spirv() {
            Some(module) => emit::opencl_c(&Module::parse(module)?),
            None => Err(Error::new(ErrorKind::InvalidArgument, "there is no fused kernel")),
        }
    }
}

fn launches(plan: &Plan) -> Vec<(String, NdRange)> {
    plan.slots.iter().map(|slot| (slot.kernel.clone(), slot.range)).collect()
}

impl fmt::Display for FusionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Content { launches, buffers, kernel, refusal } = &*self.0;
        for (at, (name, range)) in launches.iter().enumerate() {
            writeln!(f, "launch {at}: `{name}` over {:?}", range.global())?;
        }
        for (at, buffer) in buffers.iter().enumerate() {
            let names = buffer.parameters.iter().map(|&(launch, parameter)| {
                let name = launches.get(launch).map_or("?", |(name, _)| name);
                format!("parameter {parameter} of launch {launch}, `{name}`")
            });
            writeln!(f, "buffer {at}: {}", names.collect::<Vec<_>>().join("; "))?;
            writeln!(f, "  {}", buffer.verdict)?;
            match (&buffer.why_in_memory, buffer.is_internalized) {
                (_, true) if buffer.internalized_as == Some(Internalization::Local) => {
                    writeln!(f, "  internalized, in local memory")?;
                }
                (_, true) => writeln!(f, "  internalized")?,
                (Some(why), false) => writeln!(f, "  in memory: {why}")?,
                (None, false) => {}
            }
        }
        match (refusal, kernel) {
            (Some(why), _) => write!(f, "not fused: {why}"),
            (None, Some((name, _))) => write!(f, "fused: `{name}`"),
            (None, None) => write!(f, "not examined"),
        }
    }
}
