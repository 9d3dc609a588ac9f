//! The device libraries of a runtime.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::DuplicateExports;
use super::layer::{Layer, LayerKind};
use super::messages::{MAX_NAMES, describe, is_name_char};
use crate::device::ModuleFormat;
use crate::error::{Error, Result};
use crate::source::embed;
use crate::source::library::{DeviceLibrary, LibrarySource};
use crate::source::module::Module;
use crate::source::plugin::PluginLibraries;

/// Libraries that are embedded in the process. Their names are read when the first symbol is searched here.
static EMBEDDED: LazyLock<Layer> = LazyLock::new(|| {
    let mut layer = Layer::default();
    for (library, names) in embed::embedded() {
        layer.add(&library, names);
    }
    layer
});

/// The device libraries of a runtime, in layers.
#[derive(Debug, Default)]
pub(crate) struct Libraries {
    pub(super) duplicates: DuplicateExports,
    preloaded: Layer,
    registered: Layer,
    has_embedded: bool,
    attached: Layer,
}

impl Libraries {
    /// Creates the libraries of a runtime, with those that are embedded in the process if `has_embedded`.
    pub(crate) fn new(duplicates: DuplicateExports, has_embedded: bool) -> Self {
        Self { duplicates, has_embedded, ..Self::default() }
    }

    /// Adds a library. Returns `false` if it was registered already.
    pub(crate) fn register(&mut self, module: &Module) -> Result<bool> {
        add(&mut self.registered, module, LibrarySource::Registered)
    }

    /// Adds a module whose exports replace those of other libraries. Returns `false` if it was preloaded
    /// already.
    pub(crate) fn preload(&mut self, module: &Module) -> Result<bool> {
        add(&mut self.preloaded, module, LibrarySource::Preloaded)
    }

    /// Removes a library that was registered or preloaded. Returns `false` if it was neither.
    pub(crate) fn unregister(&mut self, module: &Module) -> bool {
        let layers = [&mut self.registered, &mut self.preloaded];
        let remove = |layer: &mut Layer| {
            let known = find(layer, module);
            known.inspect(|known| layer.remove(known)).is_some()
        };
        layers.map(remove).contains(&true)
    }

    /// Adds the libraries of a plug-in.
    pub(crate) fn attach(&mut self, plug_in: &PluginLibraries) {
        for library in plug_in.libraries() {
            self.attached.add(library, exports(library));
        }
    }

    /// Removes the libraries of a plug-in that was attached.
    pub(crate) fn detach(&mut self, plug_in: &PluginLibraries) {
        for library in plug_in.libraries() {
            self.attached.remove(library);
        }
    }

    /// Returns all libraries, in the order in which they are searched.
    pub(crate) fn all(&self) -> impl Iterator<Item = &DeviceLibrary> {
        LayerKind::OF_LIBRARIES
            .into_iter()
            .filter_map(|kind| self.layer(kind))
            .flat_map(Layer::libraries)
    }

    /// Returns a layer, unless it is left out.
    pub(super) fn layer(&self, kind: LayerKind) -> Option<&Layer> {
        match kind {
            LayerKind::Requested => None,
            LayerKind::Preloaded => Some(&self.preloaded),
            LayerKind::Registered => Some(&self.registered),
            LayerKind::Embedded => self.has_embedded.then(|| &*EMBEDDED),
            LayerKind::Attached => Some(&self.attached),
        }
    }

    /// Returns the libraries that probably export a name, in the order in which they are searched.
    pub(super) fn exporters(&self, name: &str) -> impl Iterator<Item = &DeviceLibrary> {
        LayerKind::OF_LIBRARIES
            .into_iter()
            .filter_map(|kind| self.layer(kind))
            .flat_map(move |layer| layer.exporters(name))
    }

    /// Returns the names that libraries probably export.
    pub(super) fn names(&self) -> BTreeSet<&str> {
        let layers = LayerKind::OF_LIBRARIES.into_iter().filter_map(|kind| self.layer(kind));
        layers.flat_map(Layer::names).collect()
    }

    /// Returns the names in a compiler's log that libraries in OpenCL C export, but that none of the compiled
    /// texts states as an import or export. One of the texts probably imports them without stating it.
    pub(crate) fn unstated_names(&self, texts: &[&Module], log: &str) -> Vec<String> {
        let is_stated = |name: &str| {
            texts.iter().any(|text| text.imports().chain(text.exports()).any(|own| own == name))
        };
        let is_text = |library: &DeviceLibrary| library.format() == ModuleFormat::OpenClC;
        let words: BTreeSet<_> = log.split(|c: char| !is_name_char(c)).collect();
        let names = words.into_iter().filter(|word| self.exporters(word).any(is_text));
        let names = names.filter(|name| !is_stated(name)).take(MAX_NAMES);
        names.map(|name| format!("`{name}`")).collect()
    }
}

/// Adds a module to a layer. Returns `false` if the layer has it already.
fn add(layer: &mut Layer, module: &Module, source: LibrarySource) -> Result<bool> {
    if module.exports().len() == 0 {
        return Err(Error::invalid(format!(
            "{} exports no symbols that other modules could import; SPIR-V exports symbols that have \
             a linkage decoration, and for OpenCL C, state the names with `Module::exporting`",
            describe(module)
        )));
    }
    if let Some(known) = find(layer, module) {
        if module.is_untrusted()
            && let Ok(trusted) = known.module()
        {
            layer.replace(&known, &DeviceLibrary::new(trusted.clone().untrusted(), source));
        }
        return Ok(false);
    }
    let library = DeviceLibrary::new(module.clone(), source);
    layer.add(&library, exports(&library));
    Ok(true)
}

/// Returns the library with the content of a module.
fn find(layer: &Layer, module: &Module) -> Option<DeviceLibrary> {
    let is_same = |library: &&DeviceLibrary| {
        library.module().is_ok_and(|known| known.digest() == module.digest())
    };
    layer.libraries().iter().find(is_same).cloned()
}

fn exports(library: &DeviceLibrary) -> impl Iterator<Item = Cow<'static, str>> {
    library.exports().into_iter().map(|name| Cow::Owned(name.to_owned()))
}
