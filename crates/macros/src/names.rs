//! Names of device code as names of Rust.

use std::collections::HashSet;

use proc_macro2::{Ident, Span};

/// Keywords that cannot be raw identifiers, and names that patterns take for values of the prelude.
const IMPOSSIBLE: [&str; 9] = ["self", "Self", "super", "crate", "_", "None", "Some", "Ok", "Err"];

/// Returns an identifier with a name. A keyword becomes a raw identifier; a name that Rust cannot have gets an
/// underscore.
pub(crate) fn identifier(name: &str, span: Span) -> Ident {
    let name: String = name.chars().map(|c| if c == '$' { '_' } else { c }).collect();
    if IMPOSSIBLE.contains(&&*name) {
        return Ident::new(&format!("{name}_"), span);
    }
    let parsed = syn::parse_str::<Ident>(&name);
    match parsed {
        // A keyword since the edition of 2024.
        _ if name == "gen" => Ident::new_raw(&name, span),
        Ok(_) => Ident::new(&name, span),
        // A keyword, or a letter that C allows and Rust does not.
        Err(_) if name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric()) => {
            Ident::new_raw(&name, span)
        }
        Err(_) => {
            let ascii = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
            Ident::new(&format!("_{}", ascii.collect::<String>()), span)
        }
    }
}

/// Returns a name that is not taken yet, and takes it.
pub(crate) fn unique(name: &str, taken: &mut HashSet<String>) -> String {
    let mut name = name.replace('$', "_");
    while !taken.insert(name.clone())
        || (IMPOSSIBLE.contains(&&*name) && !taken.insert(format!("{name}_")))
    {
        name.push('_');
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_an_identifier() {
        for (name, expected) in [
            ("x", "x"),
            ("type", "r#type"),
            ("in", "r#in"),
            ("self", "self_"),
            ("None", "None_"),
            ("_", "__"),
            ("größe", "größe"),
            ("a$b", "a_b"),
            ("$", "__"),
            ("async", "r#async"),
            ("gen", "r#gen"),
        ] {
            assert_eq!(identifier(name, Span::call_site()).to_string(), expected, "{name}");
        }
    }

    #[test]
    fn repeated_names_differ() {
        let mut taken = HashSet::new();
        let names = ["x", "x", "x_", "a$", "a_", "range"].map(|name| unique(name, &mut taken));
        assert_eq!(names, ["x", "x_", "x__", "a_", "a__", "range"]);
    }
}
