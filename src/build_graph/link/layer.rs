//! One layer of device libraries.

use std::borrow::Cow;
use std::collections::HashMap;

use smallvec::SmallVec;

use crate::source::library::DeviceLibrary;

/// Layers in which a symbol is searched, in this order. A definition in an earlier layer hides those in later
/// layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LayerKind {
    /// The requested module itself.
    Requested,
    Preloaded,
    Registered,
    Embedded,
    Attached,
}

impl LayerKind {
    /// Layers of libraries.
    pub(super) const OF_LIBRARIES: [Self; 4] =
        [Self::Preloaded, Self::Registered, Self::Embedded, Self::Attached];
}

/// Device libraries of equal precedence.
#[derive(Debug, Default)]
pub(super) struct Layer {
    /// Libraries in the order in which they were added.
    libraries: Vec<DeviceLibrary>,
    /// Libraries that probably export each name, in the same order.
    exporters:
        HashMap<Cow<'static, str>, SmallVec<[DeviceLibrary; 1]>, foldhash::fast::RandomState>,
}

impl Layer {
    /// Adds a library that exports all of `names`, or some of them.
    pub(super) fn add(
        &mut self,
        library: &DeviceLibrary,
        names: impl IntoIterator<Item = Cow<'static, str>>,
    ) {
        let names = names.into_iter();
        self.libraries.push(library.clone());
        self.exporters.reserve(names.size_hint().0);
        for name in names {
            self.exporters.entry(name).or_default().push(library.clone());
        }
    }

    /// Removes a library, once if it was added several times.
    pub(super) fn remove(&mut self, library: &DeviceLibrary) {
        let Some(at) = self.libraries.iter().position(|known| known.is(library)) else { return };
        self.libraries.remove(at);
        for name in library.exports() {
            let Some(exporters) = self.exporters.get_mut(name) else { continue };
            if let Some(at) = exporters.iter().position(|known| known.is(library)) {
                exporters.remove(at);
            }
            if exporters.is_empty() {
                self.exporters.remove(name);
            }
        }
    }

    /// Puts a library in the place of another one that exports the same names.
    pub(super) fn replace(&mut self, old: &DeviceLibrary, new: &DeviceLibrary) {
        let exporters = self.exporters.values_mut().flatten();
        for library in self.libraries.iter_mut().chain(exporters).filter(|it| it.is(old)) {
            library.clone_from(new);
        }
    }

    pub(super) fn libraries(&self) -> &[DeviceLibrary] {
        &self.libraries
    }

    /// Returns the libraries that probably export a name, in the order in which they were added.
    pub(super) fn exporters(&self, name: &str) -> &[DeviceLibrary] {
        self.exporters.get(name).map_or(&[], SmallVec::as_slice)
    }

    /// Returns the names that the libraries probably export.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.exporters.keys().map(AsRef::as_ref)
    }
}
