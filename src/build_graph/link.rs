//! Selection of the modules that make up a program: imports are resolved against the exports of registered
//! libraries.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;

use crate::device::ModuleFormat;
use crate::digest::Digest;
use crate::error::{Error, ErrorKind, Result};
use crate::source::module::Module;

/// Handling of symbols that several libraries export.
///
/// # Examples
///
/// ```no_run
/// use kiln::{DuplicateExports, Module, Runtime};
///
/// # async fn example(patched: Module, original: Module) -> kiln::Result<()> {
/// let builder = Runtime::builder().duplicate_exports(DuplicateExports::FirstRegistered);
/// let rt = builder.build().await?;
/// rt.register(&patched)?; // its functions replace those of the same name in the other library
/// rt.register(&original)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DuplicateExports {
    /// The build fails with an error that names the libraries.
    #[default]
    Refuse,
    /// The import is resolved to the library that was registered first.
    FirstRegistered,
}

/// Minimum similarity of a name to be suggested in a message; equal names have a similarity of 1.
const MIN_SIMILARITY: f64 = 0.7;

/// Maximum number of names listed in a message.
const MAX_NAMES: usize = 3;

/// The device libraries of a runtime.
#[derive(Debug, Default)]
pub(crate) struct Libraries {
    duplicates: DuplicateExports,
    /// Libraries in the order of their registration.
    modules: Vec<Module>,
    /// Libraries that export each name, in the order of their registration.
    exporters: HashMap<String, Vec<Module>>,
}

/// A module that is part of a program.
struct Member {
    module: Module,
    /// Index of the member that needs this one, and the symbol that it imports; `None` for the requested
    /// module.
    needed_by: Option<(usize, String)>,
}

impl Libraries {
    pub(crate) fn new(duplicates: DuplicateExports) -> Self {
        Self { duplicates, ..Self::default() }
    }

    /// Adds a library. Returns `false` if it was registered already.
    pub(crate) fn register(&mut self, module: &Module) -> Result<bool> {
        if module.exports().len() == 0 {
            return Err(Error::invalid(format!(
                "{} exports no symbols that other modules could import; SPIR-V exports symbols \
                 that have a linkage decoration, and for OpenCL C, state the names with \
                 `Module::exporting`",
                describe(module)
            )));
        }
        if self.modules.iter().any(|known| known.digest() == module.digest()) {
            if module.is_untrusted() {
                self.distrust(module.digest());
            }
            return Ok(false);
        }
        self.modules.push(module.clone());
        for name in module.exports() {
            match self.exporters.get_mut(name) {
                Some(exporters) => exporters.push(module.clone()),
                None => drop(self.exporters.insert(name.to_owned(), vec![module.clone()])),
            }
        }
        Ok(true)
    }

    /// Marks a registered library as untrusted, when the application registers it again as untrusted.
    fn distrust(&mut self, digest: Digest) {
        let all = self.modules.iter_mut().chain(self.exporters.values_mut().flatten());
        for module in all.filter(|module| module.digest() == digest) {
            *module = module.clone().untrusted();
        }
    }

    /// Removes a library. Returns `false` if it was not registered.
    pub(crate) fn unregister(&mut self, module: &Module) -> bool {
        let before = self.modules.len();
        self.modules.retain(|known| known.digest() != module.digest());
        for name in module.exports() {
            if let Some(exporters) = self.exporters.get_mut(name) {
                exporters.retain(|known| known.digest() != module.digest());
                if exporters.is_empty() {
                    self.exporters.remove(name);
                }
            }
        }
        self.modules.len() < before
    }

    /// Returns the libraries that a module needs, including those needed by these libraries, without the module
    /// itself.
    ///
    /// An import that the importing module exports itself refers to that export. Any other import is resolved
    /// against the requested module and the libraries of its format, since a linker takes one format.
    ///
    /// # Errors
    ///
    /// [`BuildFailed`](ErrorKind::BuildFailed) if no module, or more than one, exports a symbol.
    pub(crate) fn resolve(&self, module: &Module) -> Result<Vec<Module>> {
        let requested: HashSet<_> = module.exports().collect();
        let mut members = vec![Member { module: module.clone(), needed_by: None }];
        let mut digests = HashSet::from([module.digest()]);
        let mut at = 0;
        while let Some(Member { module: importer, .. }) = members.get(at) {
            let importer = importer.clone();
            let own: HashSet<_> = importer.exports().collect();
            for name in importer.imports().filter(|name| !own.contains(name)) {
                let is_requested = requested.contains(name);
                let Some(exporter) = self.exporter(name, is_requested, &members, at)? else {
                    continue;
                };
                if digests.insert(exporter.digest()) {
                    let needed_by = Some((at, name.to_owned()));
                    members.push(Member { module: exporter, needed_by });
                }
            }
            at += 1;
        }
        check_exports(&members)?;
        Ok(members.into_iter().skip(1).map(|member| member.module).collect())
    }

    /// Returns the library that exports a name which the member at `at` imports. Returns `None` if the
    /// requested module, which is the first member, exports the name: `is_requested`.
    fn exporter(
        &self,
        name: &str,
        is_requested: bool,
        members: &[Member],
        at: usize,
    ) -> Result<Option<Module>> {
        let requested = &members[0].module;
        let exporters = self.exporters.get(name).map_or(&[][..], Vec::as_slice);
        let fits = |library: &&Module| {
            library.format() == requested.format() && library.digest() != requested.digest()
        };
        let mut fitting = exporters.iter().filter(fits);
        let first = fitting.next();
        if is_requested {
            return match first {
                Some(library) if self.duplicates == DuplicateExports::Refuse => {
                    Err(ambiguous(name, &members[at].module, &[requested, library]))
                }
                _ => Ok(None),
            };
        }
        let Some(first) = first else { return Err(self.unresolved(name, exporters, members, at)) };
        let others: Vec<_> = fitting.collect();
        // Functions that every module may define have the same definition everywhere.
        let is_mergeable = |module: &Module| module.exports_mergeably(name);
        if self.duplicates == DuplicateExports::Refuse
            && others.iter().any(|other| !(is_mergeable(first) && is_mergeable(other)))
        {
            let all: Vec<_> = [first].into_iter().chain(others).collect();
            return Err(ambiguous(name, &members[at].module, &all));
        }
        Ok(Some(first.clone()))
    }

    /// Creates the error for a name that no fitting library exports. `exporters` are libraries of other
    /// formats.
    fn unresolved(&self, name: &str, exporters: &[Module], members: &[Member], at: usize) -> Error {
        let importer = &members[at].module;
        let mut message = format!("{} imports `{name}`", describe(importer));
        if let Some(other) = exporters.first() {
            let _ = write!(
                message,
                ", which only {} exports; modules of different formats cannot be linked",
                describe(other)
            );
        } else {
            message.push_str(", which no registered library exports");
        }
        message.push_str(&import_chain(members, at));
        let requested = &members[0].module;
        let has_kernel = |module: &&Module| module.kernels().iter().any(|kernel| kernel == name);
        if let Some(module) = [requested].into_iter().chain(&self.modules).find(has_kernel) {
            let _ = write!(
                message,
                "; there is a kernel of this name in {}, but kernels cannot be imported: export a \
                 function that the kernel calls",
                describe(module)
            );
        } else if exporters.is_empty() {
            match &similar_names(name, self.exporters.keys().map(String::as_str))[..] {
                [] if self.modules.is_empty() => {
                    message.push_str("; no libraries are registered: see `Runtime::register`");
                }
                [] => {}
                similar => {
                    let similar: Vec<_> = similar.iter().map(|name| format!("`{name}`")).collect();
                    let _ = write!(message, "; similar exported names: {}", similar.join(", "));
                }
            }
        }
        Error::new(ErrorKind::BuildFailed, message)
    }

    /// Returns the names in a compiler's log that libraries in OpenCL C export, but that none of the compiled
    /// texts states as an import or export. One of the texts probably imports them without stating it.
    pub(crate) fn unstated_names(&self, texts: &[&Module], log: &str) -> Vec<String> {
        let is_stated = |name: &str| {
            texts.iter().any(|text| text.imports().chain(text.exports()).any(|own| own == name))
        };
        let is_text = |library: &Module| library.format() == ModuleFormat::OpenClC;
        let words = log.split(|c: char| !is_name_char(c));
        let names: BTreeSet<_> = words
            .filter_map(|word| self.exporters.get_key_value(word))
            .filter(|(name, exporters)| exporters.iter().any(is_text) && !is_stated(name))
            .map(|(name, _)| name)
            .collect();
        names.into_iter().take(MAX_NAMES).map(|name| format!("`{name}`")).collect()
    }
}

/// Phrases in logs of compilers and linkers that precede the name of a missing function, in lower case.
const MISSING_FUNCTION_PHRASES: [&str; 9] = [
    "implicit declaration of function",
    "undefined reference to",
    "undefined symbol",
    "undefined external",
    "undefined function",
    "unresolved extern function",
    "unresolved external symbol",
    "cannot find symbol",
    "symbols not found",
];

/// Phrase in logs of compilers that precedes an undeclared name, which may be a function.
const UNDECLARED_NAME_PHRASE: &str = "use of undeclared identifier";

/// Whether a name in OpenCL C may contain this character.
fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether a text calls a function of this name.
fn calls(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        !before.ends_with(is_name_char) && after.trim_start().starts_with('(')
    })
}

/// Returns the functions of these texts that a log reports as undefined.
pub(crate) fn undefined_functions<'log>(log: &'log str, texts: &[&str]) -> BTreeSet<&'log str> {
    let found = log.lines().filter_map(|line| {
        // `to_ascii_lowercase` keeps the length.
        let lower = line.to_ascii_lowercase();
        let end = |phrase: &&str| lower.find(phrase).map(|at| at + phrase.len());
        let missing = MISSING_FUNCTION_PHRASES.iter().filter_map(end).min();
        let rest = &line[missing.or_else(|| end(&UNDECLARED_NAME_PHRASE))?..];
        // `: name`, `'name'`, `` `name(float)'``, `"name"`
        let rest = rest.trim_start_matches(|c: char| !c.is_alphabetic() && c != '_');
        let name = &rest[..rest.find(|c| !is_name_char(c)).unwrap_or(rest.len())];
        let is_function = || missing.is_some() || texts.iter().any(|text| calls(text, name));
        (!name.is_empty() && is_function()).then_some(name)
    });
    found.collect()
}

/// Returns the known names that are similar to `name`, the most similar first.
pub(super) fn similar_names<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut similar: Vec<_> = known
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .collect();
    similar.sort_by(|(a, first), (b, second)| b.total_cmp(a).then(first.cmp(second)));
    similar.into_iter().take(MAX_NAMES).map(|(_, known)| known).collect()
}

/// Fails if two members export the same symbol, unless every module may define that symbol. A linker takes one
/// definition for all members.
fn check_exports(members: &[Member]) -> Result<()> {
    let mut exporters: HashMap<&str, &Module> = HashMap::new();
    for Member { module, .. } in members {
        for name in module.exports_alone() {
            let Some(other) = exporters.insert(name, module) else { continue };
            return Err(Error::new(
                ErrorKind::BuildFailed,
                format!(
                    "`{name}` is exported by {} and by {}, and the program needs both; a program \
                     can have only one definition of a symbol",
                    describe(other),
                    describe(module)
                ),
            ));
        }
    }
    Ok(())
}

fn ambiguous(name: &str, importer: &Module, exporters: &[&Module]) -> Error {
    let exporters: Vec<_> = exporters.iter().map(|module| describe(module)).collect();
    Error::new(
        ErrorKind::BuildFailed,
        format!(
            "{} imports `{name}`, which several modules export: {}; unregister all but one, or \
             select the first one with `RuntimeBuilder::duplicate_exports`",
            describe(importer),
            exporters.join("; ")
        ),
    )
}

/// Describes why the member at `at` is part of the program.
fn import_chain(members: &[Member], at: usize) -> String {
    let mut text = String::new();
    let mut member = &members[at];
    while let Some((by, symbol)) = &member.needed_by {
        member = &members[*by];
        let _ = write!(text, ", needed for `{symbol}` by {}", describe(&member.module));
    }
    text
}

/// Describes a module for messages: by its label, and by its exports and kernels.
pub(crate) fn describe(module: &Module) -> String {
    let digest: Digest = module.digest();
    let label = module.get_label().map(|label| format!("`{label}` ")).unwrap_or_default();
    let mut text = format!("the {} module {label}{digest:.8}", module.format());
    let kernels = module.kernels().iter().map(String::as_str);
    let mut names: Vec<_> = module.exports().chain(kernels).take(MAX_NAMES + 1).collect();
    if names.len() > MAX_NAMES {
        names[MAX_NAMES] = "..";
    }
    if !names.is_empty() {
        let _ = write!(text, " ({})", names.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(exports: &[&str], imports: &[&str]) -> Module {
        let text = format!("// {exports:?} {imports:?}");
        Module::opencl_c(text).exporting(exports.to_vec()).importing(imports.to_vec())
    }

    fn libraries(modules: &[&Module]) -> Libraries {
        let mut libraries = Libraries::default();
        for module in modules {
            assert!(libraries.register(module).expect("it exports something"));
        }
        libraries
    }

    fn digests(modules: &[Module]) -> HashSet<Digest> {
        modules.iter().map(Module::digest).collect()
    }

    #[test]
    fn only_needed_libraries_are_resolved_transitively() {
        let chain = [module(&["a"], &["b", "c"]), module(&["b"], &["c"]), module(&["c"], &["a"])];
        let stranger = module(&["d"], &["nobody"]);
        let [a, b, c] = &chain;
        let application = module(&[], &["a"]);
        for order in [[a, b, c, &stranger], [&stranger, c, b, a], [b, &stranger, a, c]] {
            let found = libraries(&order).resolve(&application).expect("all exist");
            assert_eq!(found.len(), chain.len(), "each once");
            assert_eq!(digests(&found), digests(&chain));
        }
        let found = libraries(&[a, b, c]).resolve(a).expect("all exist");
        assert_eq!(digests(&found), digests(&chain[1..]), "without itself");
    }

    #[test]
    fn exported_names_in_a_log_are_listed_unless_modules_state_them() {
        let libraries = libraries(&[&module(&["a", "b", "c", "ab"], &[])]);
        let log = "x.cl:1: error: 'b' is undeclared, in a.c of x.ab: 'c' 'b' abc";
        assert_eq!(libraries.unstated_names(&[&module(&[], &["c"])], log), ["`a`", "`ab`", "`b`"]);
        let both = [&module(&["a"], &["c"]), &module(&["ab"], &[])];
        assert_eq!(libraries.unstated_names(&both, log), ["`b`"]);
        assert!(libraries.unstated_names(&both, "nothing of the kind").is_empty());
    }

    #[test]
    fn functions_that_are_not_defined_are_found_in_the_logs_of_all_linkers() {
        for log in [
            "x.cl:3:9: error: implicit declaration of function 'tone' is invalid in OpenCL",
            "error: undefined reference to `tone'",
            "error: undefined reference to `tone(float)'",
            "ptxas fatal   : Unresolved extern function 'tone'",
            "nvlink error   : Undefined reference to 'tone' in 'x.o'",
            "ld.lld: error: undefined symbol: tone",
            "error : undefined external \"tone\"",
            "Cannot find symbol tone in kernel library",
            "JIT session error: Symbols not found: [ tone ]",
        ] {
            assert!(undefined_functions(log, &[]).into_iter().eq(["tone"]), "{log}");
        }
        let log = "warning: behavior is undefined\nundefined symbol:";
        assert!(undefined_functions(log, &[]).is_empty());
        let log = "error: x.cl:1:41: use of undeclared identifier 'tone'; did you mean 'true'?";
        assert!(undefined_functions(log, &["x = tone (y);"]).into_iter().eq(["tone"]));
        assert!(undefined_functions(log, &["x = tone + semitone(tones(1));"]).is_empty());
    }

    #[test]
    fn unregistered_libraries_are_not_found() {
        let (library, application) = (module(&["a", "b"], &[]), module(&[], &["b"]));
        let mut libraries = libraries(&[&library]);
        assert_eq!(libraries.resolve(&application).expect("it exists").len(), 1);
        assert!(libraries.unregister(&library));
        assert!(!libraries.unregister(&library));
        assert!(libraries.resolve(&application).is_err());
        assert!(libraries.exporters.is_empty() && libraries.modules.is_empty());
    }

    #[test]
    fn a_library_that_is_registered_again_as_untrusted_is_untrusted() {
        let (library, application) = (module(&["a"], &[]), module(&[], &["a"]));
        let mut libraries = libraries(&[&library]);
        let found = |libraries: &Libraries| {
            let found = libraries.resolve(&application).expect("it exists");
            found[0].is_untrusted()
        };
        assert!(!found(&libraries));
        assert!(!libraries.register(&library.clone().untrusted()).expect("it exports something"));
        assert!(found(&libraries));
        assert!(!libraries.register(&library).expect("it exports something"));
        assert!(found(&libraries), "trust cannot be regained");
    }

    #[test]
    fn errors_list_every_import_up_to_the_requested_module() {
        let (a, b) = (module(&["a"], &["b"]), module(&["b"], &["missing"]));
        let text = libraries(&[&a, &b]).resolve(&module(&[], &["a"])).expect_err("one is missing");
        let text = text.to_string();
        let steps = ["(b) imports `missing`", "needed for `b` by", "(a)", "needed for `a` by"];
        let mut rest = text.as_str();
        for step in steps {
            let at = rest.find(step).unwrap_or_else(|| panic!("{step} is not next in: {text}"));
            rest = &rest[at + step.len()..];
        }
    }

    #[test]
    fn modules_are_described_by_their_format_and_exports() {
        let few = describe(&module(&["a", "b", "c"], &[]));
        assert!(few.starts_with("the OpenCL C module ") && few.ends_with(" (a, b, c)"), "{few}");
        let many = describe(&module(&["a", "b", "c", "d"], &[]));
        assert!(many.ends_with(" (a, b, c, ..)"), "{many}");
        let nothing = describe(&module(&[], &[]));
        assert!(!nothing.contains('('), "{nothing}");
    }
}
