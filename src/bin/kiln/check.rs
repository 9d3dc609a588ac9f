//! `kiln check`: verdicts on launches: whether they stay inside their buffers, and what is guarded otherwise.

use std::path::{Path, PathBuf};

use kiln::launch::{Finding, LaunchVerdict};
use kiln::{CacheConfig, ErrorKind};
use serde::Serialize;

use crate::args::Check;
use crate::bind::{self, Call, NamedBuffer};
use crate::launch::ArgumentText;
use crate::output::{Failure, Outcome, Output, Result, bytes, in_full, plain};
use crate::progress::while_building;
use crate::request::Setup;

pub(crate) async fn run(out: &mut Output, check: &Check, config: CacheConfig) -> Result {
    let files: Vec<_> = check.files.iter().map(PathBuf::as_path).collect();
    let setup = Setup::new(&check.settings, config, &files).await?;
    let ended = check_with(&setup, out, check, &files).await;
    // Drivers may crash if the process ends while they compile.
    setup.rt.drain().await;
    ended
}

async fn check_with(setup: &Setup<'_>, out: &mut Output, check: &Check, files: &[&Path]) -> Result {
    let programs = while_building(&setup.rt, bind::build(setup, files)).await?;
    let calls = check.launches.iter().map(|launch| Call::new(launch, &programs));
    let calls = calls.collect::<Result<Vec<_>>>()?;
    let named = bind::name_buffers((&check.bytes, &check.format), &[], &calls)?;
    let buffers = bind::allocate(&setup.rt, &named)?;
    let mut checked = Vec::new();
    for call in &calls {
        let verdict = match call.bind(&buffers)?.verdict().await {
            Ok(verdict) => Ok(verdict),
            Err(error) if error.kind() == ErrorKind::Unsupported => Err(in_full(&error)),
            Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                return Err(Failure::usage(in_full(&error)));
            }
            Err(error) => return Err(error.into()),
        };
        checked.push((call, verdict));
    }
    if out.is_json() {
        out.value(&ReportJson::of(&setup.rt.device().name, &checked, &named))?;
    } else {
        print(out, &checked, &named)?;
    }
    let is_proven = |verdict: &Verdict| verdict.as_ref().is_ok_and(LaunchVerdict::is_proven);
    Ok(Outcome::success_if(checked.iter().all(|(_, verdict)| is_proven(verdict))))
}

/// Verdict on a launch, or the reason why it is refused.
type Verdict = std::result::Result<LaunchVerdict, String>;

fn print(
    out: &mut Output,
    checked: &[(&Call<'_>, Verdict)],
    buffers: &[NamedBuffer],
) -> Result<()> {
    for (at, (call, verdict)) in checked.iter().enumerate() {
        let arguments: Vec<_> = call.text.arguments.iter().map(ArgumentText::text).collect();
        let (kernel, arguments) = (&call.text.kernel, arguments.join(", "));
        out.line(format_args!("launch {at}: {kernel}({arguments})"))?;
        match verdict {
            Ok(verdict) => {
                for line in plain(verdict).lines() {
                    out.line(format_args!("  {line}"))?;
                }
            }
            Err(reason) => out.line(format_args!("  refused: {}", plain(reason)))?,
        }
    }
    for NamedBuffer { name, bytes: size, .. } in buffers {
        out.line(format_args!("buffer {name}: {}", bytes(*size as u64)))?;
    }
    Ok(())
}

/// The verdicts in the form that is printed as JSON.
#[derive(Serialize)]
struct ReportJson<'a> {
    device: &'a str,
    launches: Vec<LaunchJson<'a>>,
    buffers: Vec<BufferJson<'a>>,
}

#[derive(Serialize)]
struct LaunchJson<'a> {
    kernel: &'a str,
    file: String,
    arguments: Vec<String>,
    /// Names of the kernel's parameters.
    parameters: Vec<Option<&'a str>>,
    verdict: &'static str,
    /// Number of accesses; null for a launch that is refused.
    accesses: Option<usize>,
    findings: Vec<FindingJson<'a>>,
    /// Reason why the launch cannot be checked.
    refusal: Option<&'a str>,
}

#[derive(Serialize)]
struct FindingJson<'a> {
    parameter: Option<&'a str>,
    what: &'a str,
    reason: Option<&'a str>,
    line: Option<&'a str>,
}

#[derive(Serialize)]
struct BufferJson<'a> {
    name: &'a str,
    bytes: usize,
}

impl<'a> ReportJson<'a> {
    fn of(
        device: &'a str,
        checked: &'a [(&Call<'_>, Verdict)],
        buffers: &'a [NamedBuffer],
    ) -> Self {
        let launches = checked.iter().map(|(call, verdict)| LaunchJson::of(call, verdict));
        let buffers = buffers
            .iter()
            .map(|NamedBuffer { name, bytes, .. }| BufferJson { name, bytes: *bytes });
        Self { device, launches: launches.collect(), buffers: buffers.collect() }
    }
}

impl<'a> LaunchJson<'a> {
    fn of(call: &'a Call<'_>, verdict: &'a Verdict) -> Self {
        let findings = verdict.as_ref().map_or(&[][..], LaunchVerdict::findings);
        Self {
            kernel: &call.text.kernel,
            file: call.file.display().to_string(),
            arguments: call.text.arguments.iter().map(ArgumentText::text).collect(),
            parameters: call.parameters().iter().map(|known| known.name.as_deref()).collect(),
            verdict: match verdict {
                Ok(verdict) if verdict.is_proven() => "proven",
                Ok(_) => "guarded",
                Err(_) => "refused",
            },
            accesses: verdict.as_ref().ok().map(LaunchVerdict::accesses),
            findings: findings.iter().map(FindingJson::of).collect(),
            refusal: verdict.as_ref().err().map(String::as_str),
        }
    }
}

impl<'a> FindingJson<'a> {
    fn of(finding: &'a Finding) -> Self {
        let Finding { parameter, what, reason, line, .. } = finding;
        Self {
            parameter: parameter.as_deref(),
            what,
            reason: reason.as_deref(),
            line: line.as_deref(),
        }
    }
}
