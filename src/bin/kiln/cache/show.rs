//! `show`: all information about an entry.

use kiln::store::{EntryInfo, EntryRecord, KernelRecord, Store};
use serde::Serialize;

use super::{OBJECT, SPIRV, TIMING, find, kind_of, read_entry};
use crate::args::KeyPrefix;
use crate::output::{Failure, Listing, Outcome, Output, Result, age, bytes, plain, seconds, time};

#[derive(Serialize)]
struct Shown<'a> {
    key: String,
    file: String,
    /// Size of the file.
    bytes: u64,
    /// Size of the device's binary.
    binary_bytes: u64,
    /// Time of the last use, in seconds since 1970.
    used: u64,
    #[serde(flatten)]
    record: &'a EntryRecord,
}

pub(super) async fn run(out: &mut Output, store: &Store, key: &KeyPrefix) -> Result {
    let info = find(store, key).await?;
    let entry = read_entry(store, &info).await.map_err(|why| {
        Failure::failed(format_args!("the entry of {} cannot be used: {why}", info.key()))
    })?;
    let shown = Shown {
        key: info.key().to_string(),
        file: info.path().display().to_string(),
        bytes: info.bytes(),
        binary_bytes: entry.payload().len() as u64,
        used: seconds(info.used()),
        record: entry.record(),
    };
    if out.is_json() {
        out.value(&shown)?;
    } else {
        print(out, &shown, &info)?;
    }
    Ok(Outcome::Success)
}

fn print(out: &mut Output, shown: &Shown<'_>, info: &EntryInfo) -> Result<()> {
    let Shown { key, file, record, .. } = shown;
    let milliseconds = record.build_microseconds as f64 / 1e3;
    // Printed outside of the table, which would break long values.
    out.line(format_args!("key      {key}"))?;
    out.line(format_args!("file     {}", plain(file)))?;
    let (all, created) = (bytes(shown.bytes), age(time(record.created)));
    if kind_of(record) == TIMING {
        out.line(format_args!("size     {all}"))?;
        out.line(format_args!("timed    {created} ago"))?;
    } else {
        let binary = bytes(shown.binary_bytes);
        out.line(format_args!("size     {all}, including the binary of {binary}"))?;
        out.line(format_args!("built    {created} ago, in {milliseconds:.1} ms"))?;
    }
    out.line(format_args!("used     {} ago", age(info.used())))?;
    for (_, label) in &record.labels {
        out.line(format_args!("label    {}", plain(label)))?;
    }
    for (name, version) in &record.tools {
        out.line(format_args!("made by  {} {}", plain(name), plain(version)))?;
    }

    out.line("\nThe key covers:")?;
    let mut fields = Listing::of_pairs();
    for (name, value) in &record.fields {
        fields.tall_row([format!("  {name}"), value.clone()]);
    }
    out.table(fields)?;

    match kind_of(record) {
        OBJECT => {
            out.line("\nAn object: programs that have the kernels are linked from it.")?;
            for (what, names) in symbols(record) {
                out.line(format_args!("  {what} {}", plain(names.join(", "))))?;
            }
        }
        TIMING => {
            out.line(
                "\nMeasured times of a part of a fusion scope: as fused kernels, and its launches one \
                 by one.",
            )?;
        }
        kind => {
            if kind == SPIRV {
                out.line(
                    "\nSPIR-V translated from OpenCL C: programs are built and kernels are fused \
                     from it.",
                )?;
            }
            out.line("\nKernels:")?;
            let mut kernels = Listing::of_pairs();
            for kernel in &record.kernels {
                kernels.tall_row([format!("  {}", kernel.name), parameters(kernel)]);
            }
            out.table(kernels)?;
        }
    }

    if !record.build_log.trim().is_empty() {
        out.line("\nBuild log:")?;
        out.line(plain(record.build_log.trim_end()))?;
    }
    Ok(())
}

/// Returns the symbols of an object, as far as there are any.
fn symbols(record: &EntryRecord) -> impl Iterator<Item = (&'static str, Vec<&str>)> {
    let lists = record.object.iter().flat_map(|object| {
        let exports = object.exports.iter().chain(&object.mergeable).map(String::as_str).collect();
        let imports = object.imports.iter().map(String::as_str).collect();
        [("exports", exports), ("imports", imports)]
    });
    lists.filter(|(_, names): &(_, Vec<_>)| !names.is_empty())
}

/// Formats the parameters as OpenCL C declares them, as far as they are known.
fn parameters(kernel: &KernelRecord) -> String {
    let each = kernel.parameters.iter().map(|parameter| {
        let space = parameter.address_space.as_deref().filter(|space| *space != "private");
        let parts = [space, parameter.type_name.as_deref(), parameter.name.as_deref()];
        let known: Vec<_> = parts.into_iter().flatten().collect();
        if known.is_empty() { "?".to_owned() } else { known.join(" ") }
    });
    format!("({})", each.collect::<Vec<_>>().join(", "))
}
