//! `show`: everything that is known of an entry.

use kiln::store::{Checked, EntryInfo, KernelRecord, Manifest, Store};
use serde::Serialize;

use super::{OBJECT, SPIRV, find, kind_of};
use crate::args::KeyPrefix;
use crate::output::{Ending, Failure, Listing, Output, Result, age, bytes, plain, seconds, time};

#[derive(Serialize)]
struct Shown<'a> {
    key: String,
    file: String,
    /// Those of the file.
    bytes: u64,
    /// Those of the device's binary.
    binary_bytes: u64,
    /// In seconds since 1970.
    used: u64,
    #[serde(flatten)]
    manifest: &'a Manifest,
}

pub(super) fn run(out: &mut Output, store: &Store, key: &KeyPrefix) -> Result {
    let info = find(store, key)?;
    let why = match store.check(&info) {
        Checked::Whole(entry) => {
            let shown = Shown {
                key: info.key().to_string(),
                file: info.path().display().to_string(),
                bytes: info.bytes(),
                binary_bytes: entry.payload().len() as u64,
                used: seconds(info.used()),
                manifest: entry.manifest(),
            };
            if out.is_json() {
                out.value(&shown)?;
            } else {
                print(out, &shown, &info)?;
            }
            return Ok(Ending::Well);
        }
        Checked::Unusable(reason) => reason.to_string(),
        Checked::Unreadable(error) => error.to_string(),
        _ => "it is of an unknown form".to_owned(),
    };
    let key = info.key();
    Err(Failure::failed(format_args!("the entry of {key} cannot be used: {why}")))
}

fn print(out: &mut Output, shown: &Shown<'_>, info: &EntryInfo) -> Result<()> {
    let Shown { key, file, manifest, .. } = shown;
    let milliseconds = manifest.build_microseconds as f64 / 1e3;
    // Not in a table, which would break them.
    out.line(format_args!("key      {key}"))?;
    out.line(format_args!("file     {}", plain(file)))?;
    let (all, binary) = (bytes(shown.bytes), bytes(shown.binary_bytes));
    out.line(format_args!("size     {all}, of which the binary has {binary}"))?;
    let created = age(time(manifest.created));
    out.line(format_args!("built    {created} ago, in {milliseconds:.1} ms"))?;
    out.line(format_args!("used     {} ago", age(info.used())))?;
    for (name, version) in &manifest.tools {
        out.line(format_args!("made by  {} {}", plain(name), plain(version)))?;
    }

    out.line("\nThe key covers:")?;
    let mut fields = Listing::of_pairs();
    for (name, value) in &manifest.fields {
        fields.tall_row([format!("  {name}"), value.clone()]);
    }
    out.table(fields)?;

    if kind_of(manifest) == OBJECT {
        out.line("\nAn object: programs are linked from it, and those have the kernels.")?;
    } else {
        if kind_of(manifest) == SPIRV {
            out.line("\nThe SPIR-V of OpenCL C, from which kernels are fused.")?;
        }
        out.line("\nKernels:")?;
        let mut kernels = Listing::of_pairs();
        for kernel in &manifest.kernels {
            kernels.tall_row([format!("  {}", kernel.name), parameters(kernel)]);
        }
        out.table(kernels)?;
    }

    if !manifest.build_log.trim().is_empty() {
        out.line("\nThe compiler said:")?;
        out.line(plain(manifest.build_log.trim_end()))?;
    }
    Ok(())
}

/// As OpenCL C declares them, as far as they are known.
fn parameters(kernel: &KernelRecord) -> String {
    let each = kernel.parameters.iter().map(|parameter| {
        let space = parameter.address_space.as_deref().filter(|space| *space != "private");
        let parts = [space, parameter.type_name.as_deref(), parameter.name.as_deref()];
        let known: Vec<_> = parts.into_iter().flatten().collect();
        if known.is_empty() { "?".to_owned() } else { known.join(" ") }
    });
    format!("({})", each.collect::<Vec<_>>().join(", "))
}
