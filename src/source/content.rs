//! Content of modules: their digests, the symbols that applications state, and flaws of texts.

use kiln_spirv::{Reflection, Symbol};
use rspirv::spirv::LinkageType;

use super::made_for::MadeFor;
use crate::device::ModuleFormat;
use crate::digest::Digest;
use crate::error::{Error, ErrorKind};

/// Bit that is set in the first byte of a digest's input if stated names precede the code.
const STATED: u8 = 0x80;

/// Bit that is set in the first byte of a digest's input if the fields of a device precede the code.
const MADE_FOR: u8 = 0x40;

/// Returns the digest of a module. The first byte of its input shows what precedes the code, so that the
/// digests of modules that differ in that cannot coincide.
pub(super) fn digest(
    format: ModuleFormat,
    code: &[u8],
    Reflection { exports, imports, .. }: &Reflection,
    made_for: Option<&MadeFor>,
) -> Digest {
    let mut hasher = blake3::Hasher::new();
    let has_symbols = !exports.is_empty() || !imports.is_empty();
    let states_symbols = format != ModuleFormat::SpirV && has_symbols;
    let stated_bit = if states_symbols { STATED } else { 0 };
    let made_for_bit = if made_for.is_some() { MADE_FOR } else { 0 };
    hasher.update(&[format as u8 | stated_bit | made_for_bit]);
    if states_symbols {
        for symbols in [exports, imports] {
            let names: Vec<_> = symbols.iter().map(|symbol| symbol.name.as_str()).collect();
            hash_texts(&mut hasher, &names);
        }
    }
    if let Some(made_for) = made_for {
        let texts: Vec<_> = made_for.fields().flat_map(|(name, value)| [name, value]).collect();
        hash_texts(&mut hasher, &texts);
    }
    hasher.update(code);
    Digest(hasher.finalize().into())
}

/// Hashes the number of texts, and each text with its length.
fn hash_texts(hasher: &mut blake3::Hasher, texts: &[&str]) {
    hasher.update(&(texts.len() as u64).to_le_bytes());
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
}

/// Returns the symbols with these names, sorted, each once.
pub(super) fn stated<S: Into<String>>(
    names: impl IntoIterator<Item = S>,
    linkage: LinkageType,
) -> Vec<Symbol> {
    let mut names: Vec<String> = names.into_iter().map(Into::into).collect();
    names.sort_unstable();
    names.dedup();
    let symbol = |name| Symbol { name, linkage };
    names.into_iter().map(symbol).collect()
}

/// Returns the reason why an OpenCL C text cannot be built for any device, if there is one.
pub(super) fn flaw_of_text(text: &[u8]) -> Option<Error> {
    let flaw = |message: String| Some(Error::new(ErrorKind::InvalidModule, message));
    if text.trim_ascii().is_empty() {
        return flaw("the OpenCL C text is empty; give the source of at least one kernel".into());
    }
    // Drivers stop reading at a NUL character, and would ignore the rest of the text without a message.
    let at = text.iter().position(|byte| *byte == 0)?;
    flaw(format!("the OpenCL C text contains a NUL character at byte {at}; remove it"))
}
