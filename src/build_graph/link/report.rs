//! Report of the modules that the symbols of a program come from.

use std::fmt;

use super::resolve::{Binding, Resolution, Symbol};
use crate::source::library::LibrarySource;
use crate::source::module::Module;

/// Symbol of a linked program, with the modules that use and define it. From
/// [`Program::linked_symbols`](crate::Program::linked_symbols).
///
/// # Examples
///
/// ```no_run
/// # async fn example(rt: kiln::Runtime, application: kiln::Module) -> kiln::Result<()> {
/// for symbol in rt.build(&application).await?.linked_symbols() {
///     println!("{symbol}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkedSymbol {
    /// Name of the function or variable.
    pub name: String,
    /// Module that imports the symbol, or whose own definition is replaced.
    pub importer: Module,
    /// Module that defines the symbol.
    pub exporter: Module,
    /// Origin of the exporter; `None` if it is the requested module.
    pub source: Option<LibrarySource>,
    /// Whether the importer defines the symbol, too, and Kiln removed that definition.
    pub replaces: bool,
}

impl fmt::Display for LinkedSymbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, importer, exporter, source, replaces } = self;
        write!(f, "`{name}` from {}", short(exporter))?;
        match source {
            Some(source) => write!(f, " ({source})")?,
            None => f.write_str(" (the requested module)")?,
        }
        let use_of = if *replaces { "in place of the definition of" } else { "for" };
        write!(f, ", {use_of} {}", short(importer))
    }
}

/// Returns the label of a module, or its abbreviated digest.
fn short(module: &Module) -> String {
    module.label().map_or_else(
        || format!("{} {:.8}", module.format(), module.digest()),
        |label| format!("`{label}`"),
    )
}

impl Resolution {
    /// Returns the symbols that modules of the program take from other modules.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = LinkedSymbol> {
        self.bindings.iter().map(|binding| self.symbol(binding))
    }

    fn symbol(&self, binding: &Binding) -> LinkedSymbol {
        let (importer, exporter) =
            (&self.members[binding.importer], &self.members[binding.exporter]);
        LinkedSymbol {
            name: self.name(binding).to_owned(),
            importer: importer.module.clone(),
            exporter: exporter.module.clone(),
            source: exporter.library.as_ref().map(|library| library.source().clone()),
            replaces: matches!(binding.symbol, Symbol::Replaced(_)),
        }
    }
}
