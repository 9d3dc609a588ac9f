//! Build options in the fields of a key, with their sources.

use serde::Serialize;

/// Source of options that have none named.
const CALL: &str = "the call";

/// Options from one source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SourcedOptions {
    pub(crate) kind: Kind,
    /// The module, a variable, or the call.
    pub(crate) source: String,
    pub(crate) text: String,
}

/// Whether options are for compiling or for linking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Compile,
    Link,
}

/// Returns the source that a field names, if the field does not list options themselves but their source.
pub(crate) fn source_of(field: &str) -> Option<(Kind, &str)> {
    let compile = field.strip_prefix("options from ").map(|source| (Kind::Compile, source));
    compile.or_else(|| Some((Kind::Link, field.strip_prefix("link options from ")?)))
}

/// Returns all options of a key with their sources, each once.
pub(crate) fn sourced_options(fields: &[(String, String)]) -> Vec<SourcedOptions> {
    let mut all = Vec::new();
    let mut add = |kind, source: &str, text: &str| {
        let options = SourcedOptions { kind, source: source.to_owned(), text: text.to_owned() };
        if !all.contains(&options) {
            all.push(options);
        }
    };
    for (at, (name, value)) in fields.iter().enumerate() {
        let next = fields.get(at + 1).and_then(|(next, _)| source_of(next));
        match source_of(name) {
            Some((kind, source)) => add(kind, source, value),
            None if name == "options" && next.is_none() => add(Kind::Compile, CALL, value),
            None => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_without_a_named_source_come_from_the_call() {
        let fields = [
            ("module", "x"),
            ("options", "-a"),
            ("module", "y"),
            ("options", "-b -c"),
            ("options from the module", "-b"),
            ("options from KILN_APPEND_COMPILE_OPTIONS", "-c"),
            ("link options", "-d"),
            ("link options from the call", "-d"),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let found = sourced_options(&fields);
        let found: Vec<_> =
            found.iter().map(|o| (o.kind, o.source.as_str(), o.text.as_str())).collect();
        assert_eq!(
            found,
            [
                (Kind::Compile, "the call", "-a"),
                (Kind::Compile, "the module", "-b"),
                (Kind::Compile, "KILN_APPEND_COMPILE_OPTIONS", "-c"),
                (Kind::Link, "the call", "-d"),
            ]
        );
    }
}
