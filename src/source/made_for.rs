//! Devices for which Kiln made native objects.

use std::fmt;

/// Device for which Kiln made an object: the fields that identify it in keys, by name and value.
#[derive(Debug)]
pub(crate) struct MadeFor(Vec<(String, String)>);

impl MadeFor {
    pub(super) fn new(fields: Vec<(String, String)>) -> Self {
        Self(fields)
    }

    /// Returns the fields.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether these are the fields of the same device. An object that does not state the driver's compiler, as
    /// those of earlier versions, is for any.
    pub(crate) fn is(&self, fields: &[(&str, &str)]) -> bool {
        let is_stated =
            |(name, _): &(&str, &str)| *name != "compiler" || self.field(name).is_some();
        self.fields().eq(fields.iter().copied().filter(is_stated))
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.fields().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Describes the fields of a device that differ from these.
    pub(crate) fn differences(&self, other: &[(&str, &str)]) -> String {
        let differing = other.iter().filter(|(name, value)| self.field(name) != Some(value));
        let each = differing.map(|(name, value)| match self.field(name) {
            Some(made_for) => format!("{name} `{made_for}` instead of `{value}`"),
            None => format!("no {name}"),
        });
        each.collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for MadeFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.field("device").unwrap_or("an unnamed device"))?;
        match self.field("driver version") {
            Some(version) => write!(f, " (driver {version})"),
            None => Ok(()),
        }
    }
}
