//! Finds the definition of each import.

use std::collections::{HashMap, HashSet};

use rspirv::spirv::LinkageType;

use super::super::module::{Linkage, Module, Section};
use super::types::{Pair, in_words};
use super::{Options, Source, failed};
use crate::error::Result;

/// The outcome of matching imports with exports.
pub(super) struct Resolution {
    /// For each input, the replaced ids, each with the input and the id that replace it.
    pub(super) redirects: Vec<HashMap<u32, (usize, u32)>>,
    /// Symbols that are exported more than once. A later check requires equal definitions.
    pub(super) duplicates: Vec<Pair>,
    /// Replacements of imports and of surplus definitions, each with what it replaces. A later check requires
    /// compatible types.
    pub(super) replaced: Vec<Pair>,
}

struct Exported {
    source: usize,
    id: u32,
    is_once: bool,
}

pub(super) fn resolve(sources: &[Source<'_>], options: Options) -> Result<Resolution> {
    let mut redirects = vec![HashMap::new(); sources.len()];
    let mut duplicates = Vec::new();
    let mut exports: HashMap<&str, Exported> = HashMap::new();
    for (source, linkage) in symbols(sources, |kind| kind != LinkageType::Import) {
        let is_once = linkage.kind == LinkageType::LinkOnceODR;
        let new = Exported { source, id: linkage.target, is_once };
        let Some(first) = exports.get_mut(linkage.name) else {
            exports.insert(linkage.name, new);
            continue;
        };
        if (first.source, first.id) == (source, linkage.target) {
            continue;
        }
        // An export replaces all definitions of linkage LinkOnceODR.
        let surplus = if first.is_once && !is_once { std::mem::replace(first, new) } else { new };
        if !first.is_once && !surplus.is_once {
            duplicates.push(Pair {
                name: linkage.name.to_owned(),
                first: (first.source, first.id),
                second: (surplus.source, surplus.id),
            });
        }
        redirects[surplus.source].insert(surplus.id, (first.source, first.id));
    }
    let mut replaced = Vec::new();
    // A replacement may have been replaced itself since.
    for (source, linkage) in symbols(sources, |kind| kind != LinkageType::Import) {
        if let Some(redirect) = redirects[source].get_mut(&linkage.target) {
            let last = &exports[linkage.name];
            *redirect = (last.source, last.id);
            let second = (source, linkage.target);
            replaced.push(Pair { name: linkage.name.to_owned(), first: *redirect, second });
        }
    }

    let entry_points: Vec<HashSet<u32>> = sources.iter().map(|s| entry_points(s.module)).collect();
    let mut unresolved: HashMap<&str, (usize, u32)> = HashMap::new();
    for (source, linkage) in symbols(sources, |kind| kind == LinkageType::Import) {
        if sources[source].built_ins.contains_key(&linkage.target) {
            continue;
        }
        let importer = (source, linkage.target);
        let exporter = match exports.get(linkage.name) {
            Some(export) if entry_points[export.source].contains(&export.id) => {
                return Err(failed(format!(
                    "{} imports `{}`, which is a kernel of {}; SPIR-V does not allow calls of \
                     kernels: move its code to a function, and export that function",
                    sources[source].name, linkage.name, sources[export.source].name
                )));
            }
            Some(export) => (export.source, export.id),
            None if !options.allow_unresolved => {
                return Err(failed(format!(
                    "{} imports `{}`, {}, which none of {} exports; add the module that exports it",
                    sources[source].name,
                    linkage.name,
                    in_words(&sources[source], linkage.target),
                    sources.iter().map(|source| source.name).collect::<Vec<_>>().join(", ")
                )));
            }
            // The first declaration is used for all importers.
            None => *unresolved.entry(linkage.name).or_insert(importer),
        };
        if exporter != importer {
            redirects[source].insert(linkage.target, exporter);
            let name = linkage.name.to_owned();
            replaced.push(Pair { name, first: exporter, second: importer });
        }
    }
    Ok(Resolution { redirects, duplicates, replaced })
}

fn symbols<'a, 'm>(
    sources: &'a [Source<'m>],
    is_wanted: impl Fn(LinkageType) -> bool + Copy + 'a,
) -> impl Iterator<Item = (usize, Linkage<'m>)> + 'a {
    sources.iter().enumerate().flat_map(move |(index, source)| {
        let wanted = source.linkages.iter().filter(move |linkage| is_wanted(linkage.kind));
        wanted.map(move |&linkage| (index, linkage))
    })
}

fn entry_points(module: &Module) -> HashSet<u32> {
    module.section(Section::EntryPoints).iter().filter_map(|entry| entry.word(1)).collect()
}
