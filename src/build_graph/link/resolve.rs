//! Resolution of imports, layer by layer.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;

use super::DuplicateExports;
use super::layer::LayerKind;
use super::libraries::Libraries;
use super::messages::{describe, similar_names};
use super::target::LinkTarget;
use crate::device::ModuleFormat;
use crate::digest::Digest;
use crate::error::{Error, ErrorKind, Result};
use crate::source::library::DeviceLibrary;
use crate::source::module::Module;

/// The modules of a program, and the module that each symbol comes from.
#[derive(Debug)]
pub(crate) struct Resolution {
    /// The requested module, then the libraries that it needs.
    pub(super) members: Vec<Member>,
    pub(super) bindings: Vec<Binding>,
}

/// A module that is part of a program.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) module: Module,
    /// `None` for the requested module.
    pub(super) library: Option<DeviceLibrary>,
    layer: LayerKind,
    /// Index of the member that needs this one, and the symbol that it needs; `None` for the requested module.
    needed_by: Option<(usize, String)>,
    /// Exports whose definitions are removed, because other members define them, in the order of the exports.
    pub(crate) replaced: Vec<String>,
}

impl Member {
    fn is_native_library(&self) -> bool {
        self.library.is_some() && self.module.format() == ModuleFormat::Native
    }
}

/// The member that a symbol of another member comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) importer: usize,
    pub(super) exporter: usize,
    pub(super) symbol: Symbol,
}

/// Symbol of an importer, by its index.
#[derive(Clone, Copy, Debug)]
pub(super) enum Symbol {
    Import(usize),
    /// An export whose definition another member replaces.
    Replaced(usize),
}

impl Resolution {
    /// Returns the libraries that the requested module needs.
    pub(crate) fn libraries(&self) -> &[Member] {
        self.members.get(1..).unwrap_or_default()
    }

    /// Fails if a definition would have to be removed from OpenCL C or from native code. That is so even where
    /// OpenCL C is translated to SPIR-V: the translation inlines functions, so that calls of the removed
    /// definition would remain.
    pub(crate) fn check_removals(&self) -> Result<()> {
        let replaced = |binding: &&Binding| matches!(binding.symbol, Symbol::Replaced(_));
        let is_fixed = |binding: &&Binding| {
            self.members[binding.importer].module.format() != ModuleFormat::SpirV
        };
        match self.bindings.iter().filter(replaced).find(is_fixed) {
            None => Ok(()),
            Some(binding) => Err(defined_twice_error(
                self.name(binding),
                [binding.exporter, binding.importer].map(|at| &self.members[at].module),
            )),
        }
    }

    /// Returns the name of the symbol of a binding.
    pub(super) fn name(&self, binding: &Binding) -> &str {
        let module = &self.members[binding.importer].module;
        match binding.symbol {
            Symbol::Import(at) => module.import(at),
            Symbol::Replaced(at) => module.export(at),
        }
    }
}

impl Libraries {
    /// Determines the libraries that a module needs, including those needed by these libraries.
    ///
    /// An import that the importing module exports itself refers to that export. Any other import is resolved
    /// against the requested module, then against the libraries of its format, and native ones where the driver
    /// links both. A native module takes libraries of all formats. Preloaded modules also replace the
    /// definitions that libraries export. Where two members define a symbol, the one in the later layer loses
    /// its definition.
    ///
    /// Within a layer, a native library hides those of other formats that export the same symbol: its twins. It
    /// is left out, in favour of its twins, if it is for another device, or if the program would need a part of
    /// it only.
    ///
    /// # Errors
    ///
    /// [`BuildFailed`](ErrorKind::BuildFailed) if no module, or more than one in a layer, exports a symbol.
    pub(crate) fn resolve(&self, module: &Module, target: &LinkTarget<'_>) -> Result<Resolution> {
        let mut left_out = HashSet::new();
        let mut first_error = None;
        loop {
            match self.resolve_without(&left_out, module, target) {
                Ok(resolution) => return Ok(resolution),
                Err(Failure { error, native: Some(native) }) if left_out.insert(native) => {
                    first_error.get_or_insert(error);
                }
                Err(Failure { error, .. }) => return Err(first_error.unwrap_or(error)),
            }
        }
    }

    /// Like [`resolve`](Self::resolve), without some native libraries.
    fn resolve_without(
        &self,
        left_out: &HashSet<Digest>,
        module: &Module,
        target: &LinkTarget<'_>,
    ) -> Result<Resolution, Failure> {
        let requested = Member {
            module: module.clone(),
            library: None,
            layer: LayerKind::Requested,
            needed_by: None,
            replaced: Vec::new(),
        };
        let mut resolver = Resolver {
            libraries: self,
            target,
            left_out,
            own: module.exports().collect(),
            indexes: HashMap::from([(module.digest(), 0)]),
            members: vec![requested],
            bindings: Vec::new(),
        };
        let mut at = 0;
        while at < resolver.members.len() {
            resolver.bind_imports(at)?;
            resolver.bind_preloaded(at)?;
            at += 1;
        }
        resolver.remove_hidden()?;
        resolver.check_natives()?;
        let Resolver { members, bindings, .. } = resolver;
        Ok(Resolution { members, bindings })
    }
}

/// Reason why a program cannot be resolved.
struct Failure {
    error: Error,
    /// Native library without which it may succeed.
    native: Option<Digest>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, native: None }
    }
}

struct Resolver<'a> {
    libraries: &'a Libraries,
    target: &'a LinkTarget<'a>,
    /// Native libraries that are not used.
    left_out: &'a HashSet<Digest>,
    /// Exports of the requested module.
    own: HashSet<&'a str>,
    /// Index of each member.
    indexes: HashMap<Digest, usize>,
    members: Vec<Member>,
    bindings: Vec<Binding>,
}

impl Resolver<'_> {
    /// Adds the members that a member imports from.
    fn bind_imports(&mut self, importer: usize) -> Result<()> {
        let module = self.members[importer].module.clone();
        if module.imports().len() == 0 {
            return Ok(());
        }
        let exports: HashSet<_> = module.exports().collect();
        for (index, name) in module.imports().enumerate() {
            if exports.contains(name) {
                continue;
            }
            let exporter = if self.own.contains(name) { 0 } else { self.search(name, importer)? };
            self.bindings.push(Binding { importer, exporter, symbol: Symbol::Import(index) });
        }
        Ok(())
    }

    /// Adds the preloaded modules that replace definitions of a library.
    fn bind_preloaded(&mut self, library: usize) -> Result<()> {
        let Member { module, layer, .. } = &self.members[library];
        let has_preloaded = self
            .libraries
            .layer(LayerKind::Preloaded)
            .is_some_and(|layer| !layer.libraries().is_empty());
        if *layer <= LayerKind::Preloaded || !has_preloaded {
            return Ok(());
        }
        let module = module.clone();
        for (index, name) in module.exports().enumerate() {
            if self.own.contains(name) {
                continue;
            }
            if let Some(found) = self.exporter_in(LayerKind::Preloaded, name, library)? {
                let exporter = self.member(&found, LayerKind::Preloaded, (library, name))?;
                self.replace(library, index, exporter);
            }
        }
        Ok(())
    }

    /// Removes a definition of a library, in favour of that of another member.
    fn replace(&mut self, library: usize, export: usize, exporter: usize) {
        let Member { module, replaced, .. } = &mut self.members[library];
        replaced.push(module.export(export).to_owned());
        let symbol = Symbol::Replaced(export);
        self.bindings.push(Binding { importer: library, exporter, symbol });
    }

    /// Returns the member that exports a name which another member imports. Adds it if it is not a member yet.
    fn search(&mut self, name: &str, importer: usize) -> Result<usize> {
        for layer in LayerKind::OF_LIBRARIES {
            if let Some(found) = self.exporter_in(layer, name, importer)? {
                return self.member(&found, layer, (importer, name));
            }
        }
        Err(self.unresolved_error(name, importer))
    }

    /// Returns the library of a layer that exports a name which a member needs.
    fn exporter_in(
        &self,
        layer: LayerKind,
        name: &str,
        importer: usize,
    ) -> Result<Option<DeviceLibrary>> {
        let exporters = self.libraries.layer(layer).map_or(&[][..], |layer| layer.exporters(name));
        let requested = &self.members[0].module;
        let mut found: Vec<(&DeviceLibrary, &Module)> = Vec::new();
        for library in exporters.iter().filter(|it| self.can_link(it.format())) {
            let module = library.module()?;
            let is_new = module.digest() != requested.digest()
                && found.iter().all(|(_, known)| known.digest() != module.digest());
            if is_new && self.is_usable(module) && module.exports().any(|export| export == name) {
                found.push((library, module));
            }
        }
        let preference = |(_, module): &(&DeviceLibrary, &Module)| self.preference(module.format());
        let best = found.iter().map(preference).min();
        found.retain(|candidate| Some(preference(candidate)) == best);
        let Some(&(first, module)) = found.first() else { return Ok(None) };
        // Functions that every module may define have the same definition everywhere.
        let is_mergeable = |module: &Module| module.exports_mergeably(name);
        let conflicts = |other: &Module| !(is_mergeable(module) && is_mergeable(other));
        if self.libraries.duplicates == DuplicateExports::Refuse
            && found[1..].iter().any(|(_, other)| conflicts(other))
        {
            return Err(ambiguous(name, &self.members[importer].module, &found));
        }
        Ok(Some(first.clone()))
    }

    /// Whether libraries of a format can be part of the program.
    fn can_link(&self, library: ModuleFormat) -> bool {
        let requested = self.members[0].module.format();
        if [requested, library].contains(&ModuleFormat::Native) {
            return [requested, library]
                .into_iter()
                .all(|format| self.target.links_native_with(format));
        }
        requested == library
    }

    /// Whether a module can be used on the device, and is not left out.
    fn is_usable(&self, module: &Module) -> bool {
        !self.target.is_foreign(module) && !self.left_out.contains(&module.digest())
    }

    /// Returns the rank of a format among those of libraries that export the same symbol; the lowest is
    /// preferred.
    fn preference(&self, format: ModuleFormat) -> usize {
        match format {
            ModuleFormat::Native => 0,
            _ if self.target.device.formats.contains(&format) => 1 + format as usize,
            _ => 4,
        }
    }

    /// Returns the index of a library among the members. Adds it if it is not a member yet. `needed_by` is the
    /// member that needs it, and the symbol.
    fn member(
        &mut self,
        library: &DeviceLibrary,
        layer: LayerKind,
        needed_by: (usize, &str),
    ) -> Result<usize> {
        let module = library.module()?;
        let next = self.members.len();
        let index = *self.indexes.entry(module.digest()).or_insert(next);
        if index == next {
            let (importer, symbol) = needed_by;
            self.members.push(Member {
                module: module.clone(),
                library: Some(library.clone()),
                layer,
                needed_by: Some((importer, symbol.to_owned())),
                replaced: Vec::new(),
            });
        }
        Ok(index)
    }

    /// Removes the definitions that those of other members hide. A linker takes one definition of each symbol.
    ///
    /// # Errors
    ///
    /// [`BuildFailed`](ErrorKind::BuildFailed) if two members of one layer define a symbol, unless every
    /// module may define it.
    fn remove_hidden(&mut self) -> Result<(), Failure> {
        for (name, definitions) in self.shared_definitions() {
            let layer_of = |definition: &Definition| self.members[definition.member].layer;
            let first = definitions.iter().map(layer_of).min();
            let (top, hidden): (Vec<Definition>, Vec<Definition>) =
                definitions.into_iter().partition(|definition| Some(layer_of(definition)) == first);
            let alone: Vec<_> = top.iter().filter(|it| !it.is_mergeable).collect();
            if let [one, other, ..] = alone[..] {
                let members = [one, other].map(|it| &self.members[it.member]);
                let native = members.iter().find(|member| member.is_native_library());
                return Err(Failure {
                    error: defined_twice_error(&name, members.map(|member| &member.module)),
                    native: native.map(|member| member.module.digest()),
                });
            }
            let Some(winner) = alone.first().copied().or(top.first()) else { continue };
            let winner = winner.member;
            // Linkers themselves drop mergeable definitions.
            for Definition { member, export, .. } in
                hidden.into_iter().filter(|it| !it.is_mergeable)
            {
                self.replace(member, export, winner);
            }
        }
        Ok(())
    }

    /// Fails if native members cannot be linked with the others, or if a definition would have to be removed
    /// from one.
    fn check_natives(&self) -> Result<(), Failure> {
        let mut members = self.members.iter().map(|member| &member.module);
        if members.all(|module| module.format() != ModuleFormat::Native) {
            return Ok(());
        }
        self.check_obstacles()?;
        let removed = self.bindings.iter().find_map(|binding| match binding.symbol {
            Symbol::Replaced(export) if self.members[binding.importer].is_native_library() => {
                Some((binding, export))
            }
            _ => None,
        });
        let Some((binding, export)) = removed else { return Ok(()) };
        let [exporter, native] =
            [binding.exporter, binding.importer].map(|at| &self.members[at].module);
        Err(Failure {
            error: defined_twice_error(native.export(export), [exporter, native]),
            native: Some(native.digest()),
        })
    }

    /// Fails if the driver cannot link a member with native code.
    fn check_obstacles(&self) -> Result<(), Failure> {
        let target = self.target;
        for Member { module, .. } in &self.members {
            let Some(obstacle) = target.obstacle(module) else { continue };
            let native = self.members.iter().find(|member| member.is_native_library());
            let error = Error::unsupported(format!(
                "{} {obstacle}, so the driver of `{}` cannot link it with native code; give all \
                 modules of the program in SPIR-V",
                describe(module),
                target.device.name
            ));
            return Err(Failure { error, native: native.map(|it| it.module.digest()) });
        }
        Ok(())
    }

    /// Returns the symbols that several members define, sorted by name. Definitions that preloaded modules
    /// replace are left out.
    fn shared_definitions(&self) -> BTreeMap<String, Vec<Definition>> {
        let mut first: HashMap<&str, Definition> = HashMap::new();
        let mut shared = BTreeMap::<String, Vec<Definition>>::new();
        for (member, Member { module, replaced, .. }) in self.members.iter().enumerate() {
            let replaced: HashSet<_> = replaced.iter().map(String::as_str).collect();
            for (export, name) in module.exports().enumerate() {
                if replaced.contains(name) {
                    continue;
                }
                let is_mergeable = module.is_mergeable(export);
                let new = Definition { member, export, is_mergeable };
                if let Some(&known) = first.get(name) {
                    shared.entry(name.to_owned()).or_insert_with(|| vec![known]).push(new);
                } else {
                    first.insert(name, new);
                }
            }
        }
        shared
    }

    /// Returns the reason why a library that exports a symbol cannot be part of the program.
    fn obstacle(&self, library: &Module) -> String {
        let requested = &self.members[0].module;
        let natives = [(library, requested), (requested, library)];
        let native = natives.iter().find(|(native, _)| native.format() == ModuleFormat::Native);
        let refusal = native.and_then(|(native, with)| self.target.refusal(native, with.format()));
        refusal.unwrap_or_else(|| "modules of different formats cannot be linked".to_owned())
    }

    /// Creates the error for a name that no fitting library exports.
    fn unresolved_error(&self, name: &str, importer: usize) -> Error {
        let (libraries, requested) = (self.libraries, &self.members[0].module);
        let mut message = format!("{} imports `{name}`", describe(&self.members[importer].module));
        let exports_name = |module: &&Module| module.exports().any(|export| export == name);
        let exporters = libraries.exporters(name).filter_map(|library| library.module().ok());
        let other = exporters.filter(exports_name).find(|it| it.digest() != requested.digest());
        if let Some(other) = other {
            let _ = write!(message, ", which only {} exports; ", describe(other));
            message.push_str(&self.obstacle(other));
        } else {
            message.push_str(", which no registered library exports");
        }
        message.push_str(&import_chain(&self.members, importer));
        let (valid, invalid): (Vec<_>, Vec<_>) =
            libraries.all().map(DeviceLibrary::module).partition(Result::is_ok);
        let has_kernel = |module: &&Module| module.kernels().iter().any(|kernel| kernel == name);
        let kernel = [requested].into_iter().chain(valid.iter().flatten().copied());
        if let Some(module) = kernel.into_iter().find(has_kernel) {
            let _ = write!(
                message,
                "; there is a kernel of this name in {}, but kernels cannot be imported: export a \
                 function that the kernel calls",
                describe(module)
            );
        } else if other.is_none() {
            match &similar_names(name, libraries.names().into_iter())[..] {
                [] if valid.is_empty() => {
                    message.push_str("; no libraries are registered: see `Runtime::register`");
                }
                [] => {}
                similar => {
                    let similar: Vec<_> = similar.iter().map(|name| format!("`{name}`")).collect();
                    let _ = write!(message, "; similar exported names: {}", similar.join(", "));
                }
            }
        }
        for error in invalid.into_iter().filter_map(Result::err) {
            let _ = write!(message, "; not all libraries are valid: {error}");
        }
        Error::new(ErrorKind::BuildFailed, message)
    }
}

/// Definition of a symbol: a member, and the index among its exports.
#[derive(Clone, Copy)]
struct Definition {
    member: usize,
    export: usize,
    is_mergeable: bool,
}

fn defined_twice_error(name: &str, [first, second]: [&Module; 2]) -> Error {
    let (first, second) = (describe(first), describe(second));
    Error::new(
        ErrorKind::BuildFailed,
        format!(
            "`{name}` is exported by {first} and by {second}, and the program needs both; a program \
             can have only one definition of a symbol"
        ),
    )
}

fn ambiguous(name: &str, importer: &Module, exporters: &[(&DeviceLibrary, &Module)]) -> Error {
    let exporters: Vec<_> = exporters
        .iter()
        .map(|(library, module)| format!("{} ({})", describe(module), library.source()))
        .collect();
    Error::new(
        ErrorKind::BuildFailed,
        format!(
            "{} needs `{name}`, which several modules export: {}; unregister all but one, or select \
             the first one with `RuntimeBuilder::duplicate_exports`",
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
