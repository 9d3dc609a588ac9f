//! `kiln fuse`: examines how launches would run: as one kernel, or in parts.

use std::path::{Path, PathBuf};

use kiln::fusion::{
    BufferReport, FusionForm, FusionLaunchReport, FusionReport, FusionVerdict, StepReport,
};
use kiln::{CacheConfig, ErrorKind, FusionScope, NdRange, Runtime};
use serde::Serialize;

use crate::args::{Code, Fuse};
use crate::bind::{self, Call, NamedBuffer};
use crate::file;
use crate::launch::ArgumentText;
use crate::memory::NamedImage;
use crate::output::{Failure, Outcome, Output, Result, bytes, in_full, note, plain};
use crate::progress::while_building;
use crate::request::Setup;

pub(crate) async fn run(out: &mut Output, fuse: &Fuse, config: CacheConfig) -> Result {
    if fuse.launches.len() < 2 {
        return Err(Failure::usage(
            "fusion needs at least two launches; give --launch two or more times",
        ));
    }
    if fuse.code == Code::Spirv && fuse.output.is_none() {
        return Err(Failure::usage("SPIR-V is binary; give --output FILE"));
    }
    let files: Vec<_> = fuse.files.iter().map(PathBuf::as_path).collect();
    let setup = Setup::new(&fuse.settings, config, &files).await?;
    let ended = fuse_with(&setup, out, fuse, &files).await;
    // Drivers may crash if the process ends while they compile.
    setup.rt.drain().await;
    ended
}

async fn fuse_with(setup: &Setup<'_>, out: &mut Output, fuse: &Fuse, files: &[&Path]) -> Result {
    let programs = while_building(&setup.rt, bind::build(setup, files)).await?;
    let calls = fuse.launches.iter().map(|launch| Call::new(launch, &programs));
    let calls = calls.collect::<Result<Vec<_>>>()?;
    let buffers = bind::name_buffers((&fuse.bytes, &fuse.format), &fuse.keep, &calls)?;
    let examining = examine(&setup.rt, fuse, &calls, &buffers);
    let report = while_building(&setup.rt, examining).await?;
    let device = setup.rt.device().name.clone();
    write_results(out, fuse, &Examination { device, calls, buffers, report })
}

/// A fusion scope whose launches never run: it is discarded when it is dropped.
struct DiscardedScope(FusionScope);

impl Drop for DiscardedScope {
    fn drop(&mut self) {
        self.0.discard();
    }
}

async fn examine(
    rt: &Runtime,
    fuse: &Fuse,
    calls: &[Call<'_>],
    named_buffers: &[NamedBuffer],
) -> Result<FusionReport> {
    let buffers = bind::allocate(rt, named_buffers)?;
    let scope = DiscardedScope(rt.queue().start_fusion());
    if fuse.fix_scalars {
        scope.0.fix_scalars();
    }
    if fuse.assume_legal {
        // SAFETY: none of its launches runs.
        unsafe { scope.0.assume_legal() };
    }
    for NamedBuffer { name, .. } in named_buffers.iter().filter(|buffer| buffer.is_kept) {
        if let Some(buffer) = buffers.get(name) {
            buffer.keep(&scope.0);
        }
    }
    for call in calls {
        scope.0.submit(call.bind(&buffers)?).map_err(|error| match error.kind() {
            ErrorKind::InvalidArgument => Failure::usage(in_full(&error)),
            _ => error.into(),
        })?;
    }
    // Buffers without a handle are not read later.
    drop(buffers);
    Ok(scope.0.examine().await?)
}

/// The launches, their buffers and the report about them.
struct Examination<'a> {
    device: String,
    calls: Vec<Call<'a>>,
    buffers: Vec<NamedBuffer>,
    report: FusionReport,
}

impl Examination<'_> {
    /// Returns the launches as they were given, with their reports.
    fn launches(&self) -> impl Iterator<Item = (&Call<'_>, &FusionLaunchReport)> {
        self.calls.iter().zip(self.report.launches())
    }

    /// Returns the steps in which the launches would run: of each part, those of the fastest way, if it is
    /// known from runs of an application, and otherwise those of the first way with a kernel.
    fn steps(&self) -> impl Iterator<Item = &StepReport> {
        let ways = self.report.parts().iter().filter_map(|part| {
            let fastest = part.ways.iter().find(|way| way.is_chosen);
            fastest.or(part.ways.get(1)).or(part.ways.first())
        });
        ways.flat_map(|way| &way.steps)
    }

    /// Returns the report about a buffer, or `None` if the kernels could not be examined.
    fn report_of(&self, buffer: &NamedBuffer) -> Option<&BufferReport> {
        self.report.buffers().iter().find(|report| {
            let mut names =
                report.parameters.iter().map(|&(launch, at)| self.buffer_name(launch, at));
            names.any(|name| name == Some(&buffer.name))
        })
    }

    /// Returns the name of the buffer that a launch has as the argument with this index, if it is a buffer.
    fn buffer_name(&self, launch: usize, at: usize) -> Option<&str> {
        match self.calls.get(launch)?.text.arguments.get(at)? {
            ArgumentText::Buffer(name) => Some(name),
            _ => None,
        }
    }

    /// Returns the parameters for which a buffer is given.
    fn uses(&self, buffer: &NamedBuffer) -> Vec<Use> {
        let launches = self.calls.iter().enumerate();
        let uses = launches.flat_map(|(launch, call)| {
            let indices = (0..call.text.arguments.len())
                .filter(move |&at| self.buffer_name(launch, at) == Some(&buffer.name));
            indices.map(move |index| Use { launch, index, name: self.parameter(launch, index) })
        });
        uses.collect()
    }

    /// Returns the name of a parameter.
    fn parameter(&self, launch: usize, at: usize) -> Option<String> {
        let examined = self.report.launches().get(launch)?;
        let known = examined.parameters.get(at).cloned().flatten();
        known.or_else(|| self.calls.get(launch)?.parameters().get(at)?.name.clone())
    }

    /// Returns whether the launches can run as one kernel.
    fn is_fused(&self) -> bool {
        self.report.refusal().is_none()
    }
}

/// Writes or prints the code, and prints the report.
fn write_results(out: &mut Output, fuse: &Fuse, examination: &Examination<'_>) -> Result {
    let (mut code, mut failed) = (None, false);
    if let Some(module) = examination.report.spirv() {
        let written = match fuse.code {
            Code::Spirv => Ok(module.to_vec()),
            Code::C => examination.report.opencl_c().map(String::into_bytes),
        };
        match (written, &fuse.output) {
            (Ok(text), Some(path)) => {
                file::write_output(path, text).map_err(|error| {
                    Failure::failed(format_args!("cannot write {}: {error}", path.display()))
                })?;
            }
            (Ok(text), None) => code = String::from_utf8(text).ok(),
            (Err(error), _) => {
                failed = true;
                note(format_args!(
                    "the code cannot be shown: {}; use --code spirv --output FILE to write SPIR-V",
                    in_full(&error)
                ));
            }
        }
    }
    let output = fuse.output.as_deref().filter(|_| examination.report.spirv().is_some() && !failed);
    if out.is_json() {
        out.value(&ReportJson::of(fuse, examination, code, output))?;
    } else {
        print(out, examination, code.as_deref(), output)?;
    }
    Ok(Outcome::success_if(examination.is_fused() && !failed))
}

fn print(
    out: &mut Output,
    examination: &Examination<'_>,
    code: Option<&str>,
    output: Option<&Path>,
) -> Result<()> {
    for (at, (call, report)) in examination.launches().enumerate() {
        let arguments: Vec<_> = call.text.arguments.iter().map(ArgumentText::text).collect();
        let (kernel, arguments) = (&call.text.kernel, arguments.join(", "));
        out.line(format_args!("launch {at}: {kernel}({arguments}) {}", in_words(&report.range)))?;
        for note in report.notes() {
            out.line(format_args!("  {}", plain(note)))?;
        }
    }
    for buffer in &examination.buffers {
        let uses = examination.uses(buffer).into_iter().map(|used| match used.name {
            Some(name) => format!("`{name}` of launch {}", used.launch),
            None => format!("parameter {} of launch {}", used.index, used.launch),
        });
        let uses = uses.collect::<Vec<_>>().join(", ");
        let kept = if buffer.is_kept { ", kept" } else { "" };
        let size = match &buffer.image {
            Some(image) => in_pixels(image),
            None => bytes(buffer.bytes as u64),
        };
        out.line(format_args!("\n{}, {size}{kept}: {}", buffer.name, plain(uses)))?;
        if let Some(report) = examination.report_of(buffer) {
            out.line(plain(report).trim_end())?;
        }
    }
    let is_divided = examination.report.parts().len() > 1;
    match (examination.report.refusal(), examination.report.kernel()) {
        (Some(why), _) if is_divided => {
            out.line("")?;
            for step in examination.steps() {
                out.line(plain(step))?;
            }
            out.line(format_args!("\nfused in parts: {}", plain(why)))?;
        }
        (Some(why), _) => out.line(format_args!("\nnot fused: {}", plain(why)))?,
        (None, kernel) => {
            let form = examination.steps().next().and_then(|step| step.form);
            let form = form.filter(|form| *form != FusionForm::Direct);
            let form = form.map(|form| format!(", {form}")).unwrap_or_default();
            out.line(format_args!("\nfused: `{}`{form}", plain(kernel.unwrap_or("?"))))?;
        }
    }
    match (code, output) {
        (Some(code), _) => out.line(format_args!("\n{}", plain(code.trim_end())))?,
        (None, Some(file)) => out.line(format_args!("code written to {}", file.display()))?,
        (None, None) => {}
    }
    Ok(())
}

/// Describes the sizes and the format of an image.
fn in_pixels(image: &NamedImage) -> String {
    let sizes: Vec<_> = image.sizes().iter().map(ToString::to_string).collect();
    format!("{} pixels of {}", sizes.join("x"), image.format)
}

/// Formats a range as on the command line.
fn in_words(range: &NdRange) -> String {
    let size =
        |sizes: &[usize]| sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
    let mut text = format!("over {}", size(range.global()));
    if range.offset().iter().any(|&offset| offset != 0) {
        text.push_str(&format!(" from {}", size(range.offset())));
    }
    if let Some(local) = range.local() {
        text.push_str(&format!(" in {}", size(local)));
    }
    text
}

/// The report in the form that is printed as JSON.
#[derive(Serialize)]
struct ReportJson<'a> {
    device: &'a str,
    launches: Vec<LaunchJson<'a>>,
    buffers: Vec<BufferJson<'a>>,
    kernel: Option<&'a str>,
    /// Reason why the launches are not one kernel.
    refusal: Option<&'a str>,
    /// Kernels and single launches in the order in which they run.
    steps: Vec<StepJson<'a>>,
    /// Code in OpenCL C, unless it is written to a file.
    code: Option<String>,
    format: &'static str,
    /// File of the code.
    output: Option<String>,
}

#[derive(Serialize)]
struct LaunchJson<'a> {
    kernel: &'a str,
    file: String,
    arguments: Vec<String>,
    /// Names of the kernel's parameters.
    parameters: Vec<Option<String>>,
    global: &'a [usize],
    offset: &'a [usize],
    local: Option<&'a [usize]>,
    barrier: bool,
    remapped: bool,
    guard: Option<u64>,
    /// Positions of parameters.
    fixed: &'a [usize],
    presumed: &'a [usize],
}

/// A kernel that does the work of several launches, or a launch by itself.
#[derive(Serialize)]
struct StepJson<'a> {
    launches: &'a [usize],
    /// Launches of other steps that the kernel runs again.
    repeated: &'a [usize],
    kernel: Option<&'a str>,
    form: Option<String>,
}

#[derive(Serialize)]
struct BufferJson<'a> {
    name: &'a str,
    bytes: usize,
    kept: bool,
    parameters: Vec<Use>,
    /// Verdict; null if the kernels could not be examined.
    verdict: Option<&'static str>,
    reason: Option<&'a str>,
    internalized: Option<String>,
    in_memory: Option<&'a str>,
    pairs: Vec<PairJson<'a>>,
}

/// A parameter of a launch.
#[derive(Serialize)]
struct Use {
    launch: usize,
    index: usize,
    name: Option<String>,
}

#[derive(Serialize)]
struct PairJson<'a> {
    launches: (usize, usize),
    verdict: &'static str,
    reason: Option<&'a str>,
    barrier: bool,
}

impl<'a> ReportJson<'a> {
    fn of(
        fuse: &Fuse,
        examination: &'a Examination<'_>,
        code: Option<String>,
        output: Option<&Path>,
    ) -> Self {
        let launches =
            examination.launches().enumerate().map(|(launch, (call, report))| LaunchJson {
                kernel: &call.text.kernel,
                file: call.file.display().to_string(),
                arguments: call.text.arguments.iter().map(ArgumentText::text).collect(),
                parameters: (0..call.parameters().len())
                    .map(|at| examination.parameter(launch, at))
                    .collect(),
                global: report.range.global(),
                offset: report.range.offset(),
                local: report.range.local(),
                barrier: report.has_barrier,
                remapped: report.is_remapped,
                guard: report.guard,
                fixed: &report.fixed,
                presumed: &report.presumed,
            });
        let buffers = examination.buffers.iter().map(|buffer| {
            let report = examination.report_of(buffer);
            let pairs = report.into_iter().flat_map(|report| &report.pairs);
            BufferJson {
                name: &buffer.name,
                bytes: buffer.bytes,
                kept: buffer.is_kept,
                parameters: examination.uses(buffer),
                verdict: report.map(|report| word(&report.verdict)),
                reason: report.and_then(|report| report.verdict.reason()),
                internalized: report
                    .and_then(|report| report.internalized)
                    .map(|form| form.to_string()),
                in_memory: report.and_then(|report| report.why_in_memory.as_deref()),
                pairs: pairs
                    .map(|pair| PairJson {
                        launches: pair.launches,
                        verdict: word(&pair.verdict),
                        reason: pair.verdict.reason(),
                        barrier: pair.needs_barrier,
                    })
                    .collect(),
            }
        });
        Self {
            device: &examination.device,
            launches: launches.collect(),
            buffers: buffers.collect(),
            kernel: examination.report.kernel(),
            refusal: examination.report.refusal(),
            steps: examination
                .steps()
                .map(|step| StepJson {
                    launches: &step.launches,
                    repeated: &step.repeated,
                    kernel: step.kernel.as_deref(),
                    form: step.form.map(|form| form.to_string()),
                })
                .collect(),
            code,
            format: match fuse.code {
                Code::C => "opencl-c",
                Code::Spirv => "spirv",
            },
            output: output.map(|file| file.display().to_string()),
        }
    }
}

/// Returns the name of a verdict in JSON.
fn word(verdict: &FusionVerdict) -> &'static str {
    match verdict {
        FusionVerdict::Proven => "proven",
        FusionVerdict::NeedsTrust(_) => "needs-trust",
        FusionVerdict::Refuted(_) => "refuted",
        _ => "other",
    }
}
