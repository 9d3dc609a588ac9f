//! Finds the definition of each import.

use std::collections::{HashMap, HashSet};

use rspirv::spirv::LinkageType;

use super::super::module::{Linkage, Module, Section};
use super::types::{Pair, in_words};
use super::{Options, Source, merge_error};
use crate::error::Result;

/// Result of matching imports with exports.
pub(super) struct Resolution {
    /// For each input, the replaced ids, each with the input and the id that replace it.
    pub(super) redirects: Vec<HashMap<u32, (usize, u32)>>,
    /// Symbols that are exported more than once. A later check requires equal definitions.
    pub(super) duplicates: Vec<Pair>,
    /// Replacements of imports and of surplus definitions, each with what it replaces. A later check requires
    /// compatible types.
    pub(super) replaced: Vec<Pair>,
}

/// Definition that the imports of its name resolve to.
struct Exported {
    source: usize,
    id: u32,
    /// Whether its linkage is LinkOnceODR, which a plain export replaces.
    is_once: bool,
}

/// Matches the imports of all sources with their exports.
pub(super) fn resolve(sources: &[Source<'_>], options: Options) -> Result<Resolution> {
    let mut resolution = Resolution {
        redirects: vec![HashMap::new(); sources.len()],
        duplicates: Vec::new(),
        replaced: Vec::new(),
    };
    let exports = resolution.add_exports(sources);
    resolution.add_imports(sources, &exports, options)?;
    Ok(resolution)
}

impl Resolution {
    /// Chooses the definition of each exported name, and redirects the surplus definitions to it.
    fn add_exports<'m>(&mut self, sources: &[Source<'m>]) -> HashMap<&'m str, Exported> {
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
            let surplus =
                if first.is_once && !is_once { std::mem::replace(first, new) } else { new };
            if !first.is_once && !surplus.is_once {
                self.duplicates.push(Pair {
                    name: linkage.name.to_owned(),
                    first: (first.source, first.id),
                    second: (surplus.source, surplus.id),
                });
            }
            self.redirects[surplus.source].insert(surplus.id, (first.source, first.id));
        }
        // A replacement may have been replaced itself since.
        for (source, linkage) in symbols(sources, |kind| kind != LinkageType::Import) {
            if let Some(redirect) = self.redirects[source].get_mut(&linkage.target) {
                let last = &exports[linkage.name];
                *redirect = (last.source, last.id);
                let second = (source, linkage.target);
                let name = linkage.name.to_owned();
                self.replaced.push(Pair { name, first: *redirect, second });
            }
        }
        exports
    }

    /// Redirects each import to the definition of its name.
    fn add_imports(
        &mut self,
        sources: &[Source<'_>],
        exports: &HashMap<&str, Exported>,
        options: Options,
    ) -> Result<()> {
        let entry_points: Vec<HashSet<u32>> =
            sources.iter().map(|s| entry_points(s.module)).collect();
        let mut unresolved: HashMap<&str, (usize, u32)> = HashMap::new();
        for (source, linkage) in symbols(sources, |kind| kind == LinkageType::Import) {
            if sources[source].built_ins.contains_key(&linkage.target) {
                continue;
            }
            let importer = (source, linkage.target);
            let exporter = match exports.get(linkage.name) {
                Some(export) if entry_points[export.source].contains(&export.id) => {
                    return Err(merge_error(format!(
                        "{} imports `{}`, which is a kernel of {}; SPIR-V does not allow calls of \
                         kernels: move its code to a function, and export that function",
                        sources[source].name, linkage.name, sources[export.source].name
                    )));
                }
                Some(export) => (export.source, export.id),
                None if !options.allow_unresolved => {
                    return Err(merge_error(format!(
                        "{} imports `{}`, {}, which none of {} exports; add the module that \
                         exports it",
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
                self.redirects[source].insert(linkage.target, exporter);
                let name = linkage.name.to_owned();
                self.replaced.push(Pair { name, first: exporter, second: importer });
            }
        }
        Ok(())
    }
}

/// Returns the linkages of all sources whose kind `accepts` accepts, each with the index of its source.
fn symbols<'a, 'm>(
    sources: &'a [Source<'m>],
    accepts: impl Fn(LinkageType) -> bool + Copy + 'a,
) -> impl Iterator<Item = (usize, Linkage<'m>)> + 'a {
    sources.iter().enumerate().flat_map(move |(index, source)| {
        let linkages = source.linkages.iter().filter(move |linkage| accepts(linkage.kind));
        linkages.map(move |&linkage| (index, linkage))
    })
}

fn entry_points(module: &Module) -> HashSet<u32> {
    module.section(Section::EntryPoints).iter().filter_map(|entry| entry.word(1)).collect()
}
