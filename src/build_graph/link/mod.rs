//! Selection of the modules that make up a program: imports are resolved against the exports of device
//! libraries, which form [layers](layer) that are searched in order.

mod layer;
mod libraries;
mod messages;
mod report;
mod resolve;
mod target;
#[cfg(test)]
mod tests;

pub(crate) use libraries::Libraries;
pub(crate) use messages::{describe, similar_names, undefined_functions};
pub use report::LinkedSymbol;
pub(crate) use resolve::{Member, Resolution};
pub(crate) use target::LinkTarget;

/// Handling of symbols that several libraries export, of those that have equal precedence: preloaded,
/// registered, embedded or attached ones.
///
/// # Examples
///
/// ```no_run
/// use kiln::libraries::DuplicateExports;
/// use kiln::{Module, Runtime};
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
    /// The import is resolved to the library that was registered first. Of several preloaded or attached
    /// ones, that is the one that was preloaded or attached first; of several embedded ones, the first by the
    /// name of its package, then by version, source file and line.
    FirstRegistered,
}
