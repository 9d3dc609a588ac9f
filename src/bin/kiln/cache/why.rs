//! `why`: shows how two keys differ, or why a source is not in the store.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::path::Path;

use futures::stream::StreamExt;
use kiln::CacheConfig;
use kiln::build::BuildKey;
use kiln::devices::ModuleFormat;
use kiln::store::{EntryInfo, Store};
use serde::Serialize;

use super::remote::{RemoteEntry, look_up};
use super::{PROGRAM, find, find_exactly, kind_of, read_entry};
use crate::args::{Operand, Settings};
use crate::options::{Kind, SourcedOptions, source_of, sourced_options};
use crate::output::{Failure, Listing, Outcome, Output, Result, Width, age, plain, short};
use crate::request::{Problem, Setup};

type Fields = Vec<(String, String)>;

/// A key and the fields that it covers.
struct Side {
    /// Name for people.
    name: String,
    key: BuildKey,
    /// Name of its entry in every store.
    entry: String,
    fields: Fields,
    /// Whether the store may have an entry: native binaries are loaded without a compile, and are not stored.
    is_storable: bool,
}

#[derive(Serialize)]
struct Difference {
    field: String,
    a: Option<String>,
    b: Option<String>,
    /// Where the options come from that differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<SourceDifference>,
    /// Files that differ, if the field stands for several: those that the text includes, and those with which the
    /// driver compiles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<FileDifference>,
}

/// A file that differs, with what identifies its contents on each side.
#[derive(Serialize)]
struct FileDifference {
    name: String,
    a: Option<String>,
    b: Option<String>,
}

/// Options from one source that differ.
#[derive(Serialize)]
struct SourceDifference {
    kind: Kind,
    source: String,
    a: Option<String>,
    b: Option<String>,
}

pub(super) async fn run(
    out: &mut Output,
    store: &Store,
    config: &CacheConfig,
    (a, b): (Operand, Option<Operand>),
    settings: &Settings,
) -> Result {
    let files: Vec<_> = [Some(&a), b.as_ref()].into_iter().flatten().filter_map(file_of).collect();
    let setup = if files.is_empty() {
        None
    } else {
        // The runtime stores nothing, and translates a text once for any number of requests.
        Some(Setup::new(settings, CacheConfig::memory_only(), &files).await?)
    };
    let side = async |operand: &Operand| match (operand, &setup) {
        (Operand::File(file), Some(setup)) => of_file(setup, file).await,
        (Operand::Key(key), _) => of_entry(store, &find(store, key).await?).await,
        (Operand::File(file), None) => Err(no_device(file)),
    };
    match (&a, &b) {
        (a, Some(b)) => compare(out, store, &side(a).await?, &side(b).await?).await,
        (file @ Operand::File(_), None) => explain(out, store, config, &side(file).await?).await,
        (Operand::Key(key), None) => Err(Failure::usage(format_args!(
            "give a second key or a source file to compare {} with",
            key.as_str()
        ))),
    }
}

fn file_of(operand: &Operand) -> Option<&Path> {
    match operand {
        Operand::File(file) => Some(file),
        Operand::Key(_) => None,
    }
}

fn no_device(file: &Path) -> Failure {
    Failure::failed(format_args!("there is no device to build {} for", file.display()))
}

async fn of_entry(store: &Store, info: &EntryInfo) -> Result<Side> {
    let key = info.key();
    let record = store.record(info).await.map_err(|error| {
        Failure::failed(format_args!("the entry of {key} cannot be used: {error}"))
    })?;
    let entry = info.name();
    Ok(Side { name: short(&key), key, entry, fields: record.fields, is_storable: true })
}

async fn of_file(setup: &Setup<'_>, file: &Path) -> Result<Side> {
    let name = file.display().to_string();
    let side = async {
        let (module, request) = setup.request(file).await?;
        let (key, fields) = (request.key()?, request.key_fields()?);
        let is_storable = module.format() != ModuleFormat::Native;
        let entry = request.entry_name()?;
        Ok(Side { name: name.clone(), key, entry, fields, is_storable })
    };
    side.await
        .map_err(|problem: Problem| Failure::failed(format_args!("{name}: {}", problem.message)))
}

/// Returns the fields that differ, in their order. A field can have several values. For the modules, returns
/// only the values that one side alone has.
fn differences(a: &Fields, b: &Fields) -> Vec<Difference> {
    let values = |fields: &Fields, name: &str| {
        let values = fields.iter().filter(|(known, _)| known == name);
        values.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in a.iter().chain(b) {
        // Sources of options and single files are listed with the field that differs.
        let is_listed = source_of(name).is_some() || name.starts_with(INCLUDED_FILE);
        if !names.contains(&&**name) && !is_listed {
            names.push(name);
        }
    }
    let has_link_field = names.contains(&LINK_OPTIONS);
    let each = names.into_iter().filter_map(|name| {
        let sources = match name {
            OPTIONS if has_link_field => differing_sources(a, b, &[Kind::Compile]),
            OPTIONS => differing_sources(a, b, &[Kind::Compile, Kind::Link]),
            LINK_OPTIONS => differing_sources(a, b, &[Kind::Link]),
            _ => Vec::new(),
        };
        let files = match name {
            INCLUDED_FILES => differing_files([a, b].map(included_files)),
            COMPILER => differing_files([a, b].map(compiler_files)),
            _ => Vec::new(),
        };
        let (a, b) = (values(a, name), values(b, name));
        let differing = |own: &[String], other: &[String]| {
            let differing = own.iter().filter(|value| name != "module" || !other.contains(value));
            let differing: Vec<_> = differing.map(String::as_str).collect();
            (!differing.is_empty()).then(|| differing.join(", "))
        };
        (a != b).then(|| Difference {
            field: name.to_owned(),
            a: differing(&a, &b),
            b: differing(&b, &a),
            sources,
            files,
        })
    });
    each.collect()
}

/// Field with the options of the compiler, and of the linker if both are one call.
const OPTIONS: &str = "options";

/// Field with the options of the linker, if it is called separately.
const LINK_OPTIONS: &str = "link options";

/// Field with the digest of all included files, and the beginning of the fields with one each.
const INCLUDED_FILES: &str = "included files";
const INCLUDED_FILE: &str = "included file ";

/// Field with the files with which the driver compiles.
const COMPILER: &str = "compiler";

/// Files by name, with what identifies their contents.
type Files<'a> = Vec<(&'a str, &'a str)>;

/// Returns the included files, in their order.
fn included_files(fields: &Fields) -> Files<'_> {
    let files = fields
        .iter()
        .filter_map(|(name, digest)| Some((name.strip_prefix(INCLUDED_FILE)?, digest.as_str())));
    files.collect()
}

/// Returns the files with which the driver compiles, in their order.
fn compiler_files(fields: &Fields) -> Files<'_> {
    let lists = fields.iter().filter(|(name, _)| name == COMPILER);
    lists.flat_map(|(_, list)| list.split(", ")).filter_map(|file| file.rsplit_once(' ')).collect()
}

/// Returns the files that differ. None if one side does not list its files, as entries of earlier versions.
fn differing_files([a, b]: [Files<'_>; 2]) -> Vec<FileDifference> {
    if a.is_empty() || b.is_empty() {
        return Vec::new();
    }
    let find = |files: &Files<'_>, name: &str| {
        let found = files.iter().find(|(known, _)| *known == name);
        found.map(|(_, digest)| (*digest).to_owned())
    };
    let only_b = b.iter().filter(|(name, _)| find(&a, name).is_none());
    let each = a.iter().chain(only_b).map(|(name, _)| FileDifference {
        name: (*name).to_owned(),
        a: find(&a, name),
        b: find(&b, name),
    });
    each.filter(|file| file.a != file.b).collect()
}

/// Returns the sources whose options of these kinds differ.
fn differing_sources(a: &Fields, b: &Fields, kinds: &[Kind]) -> Vec<SourceDifference> {
    let [a, b] = [a, b].map(|fields| {
        let mut all = sourced_options(fields);
        all.retain(|options| kinds.contains(&options.kind));
        all
    });
    let texts = |all: &[SourcedOptions], kind, source: &str| {
        let of_source = all.iter().filter(|part| part.kind == kind && part.source == source);
        let texts: Vec<_> = of_source.map(|part| part.text.as_str()).collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    };
    let mut differences: Vec<SourceDifference> = Vec::new();
    for SourcedOptions { kind, source, .. } in a.iter().chain(&b) {
        let (kind, source) = (*kind, source.clone());
        let (a, b) = (texts(&a, kind, &source), texts(&b, kind, &source));
        let is_known = differences.iter().any(|known| known.kind == kind && known.source == source);
        if a != b && !is_known {
            differences.push(SourceDifference { kind, source, a, b });
        }
    }
    differences
}

/// Number of digits of a file's digest that people are shown.
const SHOWN_DIGITS: usize = 16;

fn print_differences(
    out: &mut Output,
    [a, b]: [&str; 2],
    differences: &[Difference],
) -> Result<()> {
    let mut listing =
        Listing::new(&[("FIELD", Width::Whole), (a, Width::Flexible), (b, Width::Flexible)]);
    let value = |value: &Option<String>| match value.as_deref() {
        None => "(none)".to_owned(),
        Some("") => "(empty)".to_owned(),
        Some(value) => value.to_owned(),
    };
    for Difference { field, a, b, sources, files } in differences {
        if files.is_empty() {
            listing.tall_row([field.clone(), value(a), value(b)]);
        }
        for FileDifference { name, a, b } in files {
            let kind = if field == INCLUDED_FILES { INCLUDED_FILE.trim_end() } else { field };
            let [a, b] = [a, b].map(|digest| match digest {
                Some(digest) => digest.chars().take(SHOWN_DIGITS).collect(),
                None => value(&None),
            });
            listing.tall_row([format!("{kind} {name}"), a, b]);
        }
        for SourceDifference { kind, source, a, b } in sources {
            let kind = if field == OPTIONS && *kind == Kind::Link { "link options " } else { "" };
            listing.tall_row([format!("  {kind}from {source}"), value(a), value(b)]);
        }
    }
    out.table(listing)?;
    Ok(())
}

#[derive(Serialize)]
struct Compared {
    equal: bool,
    a: SideJson,
    b: SideJson,
    differences: Vec<Difference>,
}

#[derive(Serialize)]
struct SideJson {
    name: String,
    key: String,
    stored: bool,
}

impl SideJson {
    async fn of(store: &Store, side: &Side) -> Self {
        Self {
            name: side.name.clone(),
            key: side.key.to_string(),
            stored: find_exactly(store, &side.key).await.is_some(),
        }
    }
}

async fn compare(out: &mut Output, store: &Store, a: &Side, b: &Side) -> Result {
    let compared = Compared {
        equal: a.key == b.key,
        a: SideJson::of(store, a).await,
        b: SideJson::of(store, b).await,
        differences: differences(&a.fields, &b.fields),
    };
    let outcome = Outcome::success_if(compared.equal);
    if out.is_json() {
        out.value(&compared)?;
        return Ok(outcome);
    }
    for SideJson { name, key, stored } in [&compared.a, &compared.b] {
        let stored = if *stored { "in the cache" } else { "not in the cache" };
        out.line(format_args!("{key}  {}, {stored}", plain(name)))?;
    }
    out.line("")?;
    if compared.equal {
        out.line("The keys are equal.")?;
    } else if compared.differences.is_empty() {
        // The fields contain the closest text for variables that are not Unicode, so they can be equal.
        out.line("The keys differ in the value of a variable that is not Unicode text.")?;
    } else {
        print_differences(out, [&a.name, &b.name], &compared.differences)?;
    }
    Ok(outcome)
}

#[derive(Serialize)]
struct Explained {
    name: String,
    key: String,
    /// Whether a build would load the entry.
    stored: bool,
    /// Reason why the existing entry would not be loaded.
    unusable: Option<String>,
    /// State in the remote cache; null if it was not queried, or there is none.
    remote: Option<RemoteEntry>,
    nearest: Option<Nearest>,
}

/// A similar entry, with its differences.
#[derive(Serialize)]
struct Nearest {
    key: String,
    /// Labels of the entry's modules.
    labels: Vec<String>,
    same_module: bool,
    /// Differences, in which `a` is the source and `b` is the entry.
    differences: Vec<Difference>,
    #[serde(skip)]
    info: EntryInfo,
}

async fn explain(out: &mut Output, store: &Store, config: &CacheConfig, side: &Side) -> Result {
    let found = match find_exactly(store, &side.key).await {
        Some(info) => Some(read_entry(store, &info).await),
        None => None,
    };
    let is_absent = found.is_none();
    let stored = matches!(found, Some(Ok(_)));
    let unusable = found.and_then(std::result::Result::err);
    let queries_remote = !stored && side.is_storable;
    let remote = if queries_remote { look_up(config, &side.entry).await? } else { None };
    let nearest = if is_absent && side.is_storable { nearest(store, side).await } else { None };
    let (name, key) = (side.name.clone(), side.key.to_string());
    let loaded = stored || remote.as_ref().is_some_and(RemoteEntry::is_whole);
    let explained = Explained { name, key, stored, unusable, remote, nearest };
    if out.is_json() {
        out.value(&explained)?;
    } else {
        print(out, side, &explained)?;
    }
    Ok(Outcome::success_if(loaded))
}

/// Returns the program with the fewest differing modules, then with the fewest differing fields, then the one
/// that was used last.
async fn nearest(store: &Store, side: &Side) -> Option<Nearest> {
    let all = store.entries().filter_map(async |info| {
        let record = store.record(&info).await.ok()?;
        // A build of a source requests a program.
        if kind_of(&record) != PROGRAM {
            return None;
        }
        let differences = differences(&side.fields, &record.fields);
        let other_modules = other_modules(&side.fields, &record.fields);
        let same_module = other_modules == 0;
        let labels = record.labels.into_iter().map(|(_, label)| label).collect();
        let key = info.key().to_string();
        let nearest = Nearest { key, labels, same_module, differences, info };
        Some((other_modules, nearest))
    });
    let all: Vec<_> = all.collect().await;
    let nearest = all.into_iter().min_by_key(|(other_modules, nearest)| {
        (*other_modules, nearest.differences.len(), Reverse(nearest.info.used()))
    });
    nearest.map(|(_, nearest)| nearest)
}

/// Returns the number of modules that only one side has.
fn other_modules(a: &Fields, b: &Fields) -> usize {
    let [a, b] = [a, b].map(|fields| {
        let modules = fields.iter().filter(|(name, _)| name == "module");
        modules.map(|(_, digest)| digest.as_str()).collect::<HashSet<_>>()
    });
    a.symmetric_difference(&b).count()
}

fn print(out: &mut Output, side: &Side, explained: &Explained) -> Result<()> {
    let stored = if explained.stored { "in the cache" } else { "not in the cache" };
    out.line(format_args!("{}  {}, {stored}", explained.key, plain(&side.name)))?;
    if let Some(remote) = &explained.remote {
        out.line(plain(remote.in_words()))?;
    }
    if let Some(reason) = &explained.unusable {
        out.line(format_args!("The entry is not used: {}.", plain(reason)))?;
    } else if !side.is_storable {
        out.line("Native binaries are loaded, not compiled, so they are not stored.")?;
    } else if let Some(Nearest { same_module, labels, differences, info, .. }) = &explained.nearest
    {
        let (key, ago) = (short(&info.key()), age(info.used()));
        let linked = side.fields.iter().filter(|(name, _)| name == "module").count() > 1;
        let (these, modules) =
            if linked { ("these modules", "modules") } else { ("this module", "module") };
        out.line(if *same_module {
            format!("The most similar entry, {key}, has the same {modules}. It was used {ago} ago.")
        } else {
            format!(
                "No program was built from {these}. The most similar, {key}, was used {ago} ago."
            )
        })?;
        if !labels.is_empty() {
            out.line(format_args!("It was built from {}.", plain(labels.join(", "))))?;
        }
        out.line("")?;
        print_differences(out, [&side.name, &key], differences)?;
    } else if !explained.stored {
        out.line("The cache has no programs.")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(fields: &[(&str, &str)]) -> Fields {
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn differing(a: &Fields, b: &Fields) -> Vec<(String, String, String)> {
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let each = differences(a, b).into_iter();
        each.map(|difference| (difference.field, text(difference.a), text(difference.b))).collect()
    }

    #[test]
    fn missing_and_repeated_fields_are_compared() {
        let a = fields(&[("schema", "1"), ("module", "x"), ("module", "y"), ("options", "-w")]);
        let b = fields(&[
            ("schema", "1"),
            ("module", "x"),
            ("module", "z"),
            ("module", "w"),
            ("constant 0", "0x10"),
        ]);
        let row = |name: &str, a: &str, b: &str| (name.to_owned(), a.to_owned(), b.to_owned());
        assert_eq!(
            differing(&a, &b),
            [row("module", "y", "z, w"), row("options", "-w", "-"), row("constant 0", "-", "0x10")]
        );
        assert_eq!(differing(&a, &a), []);
    }

    #[test]
    fn files_that_differ_are_named() {
        let of = |digest: &str, files: &[(&str, &str)], compiler: &str| {
            let mut all = fields(&[("module", "x"), ("included files", digest)]);
            let each = files.iter().map(|(name, digest)| (format!("included file {name}"), digest));
            all.extend(each.map(|(name, digest)| (name, (*digest).to_owned())));
            all.push(("compiler".to_owned(), compiler.to_owned()));
            all
        };
        let a =
            of("1", &[("a.h", "11"), ("b.h", "12"), ("c.h", "13")], "libx.so 1, f* (2 files) 2");
        let b =
            of("2", &[("a.h", "11"), ("b.h", "22"), ("d.h", "24")], "libx.so 1, f* (3 files) 4");
        let differences = differences(&a, &b);
        let named: Vec<_> = differences
            .iter()
            .flat_map(|difference| &difference.files)
            .map(|file| (file.name.as_str(), file.a.as_deref(), file.b.as_deref()))
            .collect();
        assert_eq!(
            named,
            [
                ("b.h", Some("12"), Some("22")),
                ("c.h", Some("13"), None),
                ("d.h", None, Some("24")),
                ("f* (2 files)", Some("2"), None),
                ("f* (3 files)", None, Some("4")),
            ]
        );
        let fields: Vec<_> = differences.iter().map(|difference| &*difference.field).collect();
        assert_eq!(fields, ["included files", "compiler"]);

        // An entry of an earlier version states the digest of all files only.
        let [old] = &super::differences(&of("3", &[], ""), &of("2", &[("a.h", "1")], ""))[..]
        else {
            panic!("one field differs")
        };
        assert!(old.files.is_empty() && old.a.as_deref() == Some("3"));
    }

    #[test]
    fn sources_are_shown_for_options_that_differ() {
        let a = fields(&[("module", "x"), ("options", "-w")]);
        let b = fields(&[
            ("module", "x"),
            ("options", "-w -g"),
            ("options from the module", "-w"),
            ("link options from KILN_LINK_OPTIONS", "-g"),
        ]);
        let [options] = &differences(&a, &b)[..] else { panic!("one field differs") };
        let sources: Vec<_> = options
            .sources
            .iter()
            .map(|of| (of.kind, of.source.as_str(), of.a.as_deref(), of.b.as_deref()))
            .collect();
        assert_eq!(
            sources,
            [
                (Kind::Compile, "the call", Some("-w"), None),
                (Kind::Compile, "the module", None, Some("-w")),
                (Kind::Link, "KILN_LINK_OPTIONS", None, Some("-g")),
            ]
        );
        // Equal options from another source have the same key.
        let c = fields(&[("module", "x"), ("options", "-w"), ("options from the module", "-w")]);
        assert_eq!(differing(&a, &c), []);
    }
}
