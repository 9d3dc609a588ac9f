//! Native modules: binaries as a driver made them, and objects that Kiln made, which state their device and
//! their symbols.

use kiln_spirv::{Reflection, Symbol};
use rspirv::spirv::LinkageType;

use super::made_for::MadeFor;
use super::module::Module;
use crate::cache::store::{ObjectRecord, decode, has_footer};
use crate::error::{Error, ErrorKind, Result};

impl Module {
    /// Creates a module from native code whose symbols and device are known. `exports` states for each name
    /// whether other modules of a program may define it as well.
    pub(crate) fn described_native(
        code: Vec<u8>,
        exports: impl IntoIterator<Item = (String, bool)>,
        imports: impl IntoIterator<Item = String>,
        made_for: Option<Vec<(String, String)>>,
    ) -> Self {
        let export = |(name, is_mergeable)| {
            let linkage = if is_mergeable { LinkageType::LinkOnceODR } else { LinkageType::Export };
            Symbol { name, linkage }
        };
        let import = |name| Symbol { name, linkage: LinkageType::Import };
        let exports = exports.into_iter().map(export).collect();
        let symbols = Reflection::of_symbols(exports, imports.into_iter().map(import).collect());
        Self::of_native(code, symbols, made_for.map(MadeFor::new))
    }

    /// Creates a module from native code, for exactly the device and driver on which it will run:
    ///
    /// * a program, from [`Program::binary`](crate::Program::binary) or a driver's own tool;
    /// * the file of an [`Object`](crate::libraries::Object) that Kiln made. It states the device, the driver, and the
    ///   symbols of its code. For another device or driver it is refused by name, or replaced by a library in
    ///   SPIR-V or OpenCL C that exports the same symbols;
    /// * an object or a library that a driver's own tool made, such as an OpenCL program of the type
    ///   `CL_PROGRAM_BINARY_TYPE_COMPILED_OBJECT` or `CL_PROGRAM_BINARY_TYPE_LIBRARY`. State its symbols with
    ///   [`exporting`](Self::exporting) and [`importing`](Self::importing). Kiln reads neither its symbols nor
    ///   its device, so only the driver can refuse it.
    ///
    /// The types of a native module's symbols are not compared with those that other modules declare.
    ///
    /// # Errors
    ///
    /// [`InvalidModule`](ErrorKind::InvalidModule) if there are no bytes, or if the file of an object is
    /// damaged or was made by a newer version of Kiln. Only the driver can detect other errors, when the module
    /// is built.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use kiln::Module;
    ///
    /// # async fn example(rt: kiln::Runtime, module: Module, tone: Module) -> kiln::Result<()> {
    /// let binary = rt.build(&module).await?.binary()?;
    /// // Later, for the same device and driver:
    /// let program = rt.build(&Module::native(binary)?).await?;
    ///
    /// let object = rt.build(&tone).object().await?;
    /// rt.register(&Module::native(object.bytes())?)?; // a library, without its source
    /// # Ok(())
    /// # }
    /// ```
    pub fn native(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidModule,
                "the native binary is empty; give the bytes that `Program::binary` returned",
            ));
        }
        if !has_footer(&bytes) {
            return Ok(Self::of_native(bytes, Reflection::default(), None));
        }
        let entry = decode(bytes).map_err(|unusable| {
            Error::new(
                ErrorKind::InvalidModule,
                format!("the file of the native object cannot be used: {unusable}; make it again"),
            )
        })?;
        let code = entry.payload().to_vec();
        Ok(match &entry.record().object {
            Some(record) => {
                Self::of_native(code, symbols(record), Some(MadeFor::new(record.device.clone())))
            }
            None => Self::of_native(code, Reflection::default(), None),
        })
    }
}

/// Returns the symbols of an object, sorted, each once.
fn symbols(record: &ObjectRecord) -> Reflection {
    let symbols = |kinds: &[(&[String], LinkageType)]| {
        let mut symbols: Vec<_> = kinds
            .iter()
            .flat_map(|&(names, linkage)| {
                names.iter().map(move |name| Symbol { name: name.clone(), linkage })
            })
            .collect();
        symbols.sort_by(|a, b| a.name.cmp(&b.name));
        symbols.dedup_by(|a, b| a.name == b.name);
        symbols
    };
    let ObjectRecord { exports, mergeable, imports, .. } = record;
    let exports = [(&exports[..], LinkageType::Export), (mergeable, LinkageType::LinkOnceODR)];
    Reflection::of_symbols(symbols(&exports), symbols(&[(imports, LinkageType::Import)]))
}
