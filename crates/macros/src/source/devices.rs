//! Texts whose kernels depend on the device: they are read for each kind of device, and the kernels that differ are
//! refused.

use std::rc::Rc;

use crate::parse::predefined::{DEVICE_VERSION, DEVICE_VERSIONS, is_optional};
use crate::parse::unreadable::Unreadable;
use crate::signature::Kernel;

/// Maximum number of kinds of devices for which a text is read.
const MAX_KINDS: usize = 64;

/// Kind of device, as far as the conditions of a text ask for it.
#[derive(Clone, Debug)]
pub(super) struct Device {
    /// Version of OpenCL, such as 120.
    pub(super) version: u32,
    /// Macros that some devices define, with whether this one does.
    pub(super) optional: Vec<(String, bool)>,
}

/// Kernels of a text.
#[derive(Debug)]
pub(super) struct Signatures {
    pub(super) kernels: Vec<Kernel>,
    /// Reasons why parts of the text cannot be used.
    pub(super) problems: Vec<String>,
}

/// Reason why a text cannot be read for a kind of device.
#[derive(Debug)]
pub(super) struct Refusal {
    problem: String,
    /// Macro that has to be known for the text.
    depends_on: Option<Rc<str>>,
}

impl From<String> for Refusal {
    fn from(problem: String) -> Self {
        Self { problem, depends_on: None }
    }
}

impl From<Unreadable> for Refusal {
    fn from(unreadable: Unreadable) -> Self {
        Self { problem: unreadable.to_string(), depends_on: unreadable.depends_on }
    }
}

/// Returns the kernels that a text has for the devices of any kind. Kernels whose parameters differ are refused.
/// Kinds of devices for which the text is not valid do not count, unless it is valid for none.
///
/// # Errors
///
/// With the first reason why the text cannot be read.
pub(super) fn for_all(
    depends_on_version: bool,
    read: impl Fn(&Device) -> Result<Signatures, Refusal>,
) -> Result<Signatures, String> {
    let versions = if depends_on_version { &DEVICE_VERSIONS[..] } else { &DEVICE_VERSIONS[..1] };
    let kinds = versions.iter().map(|version| Device { version: *version, optional: Vec::new() });
    let mut open: Vec<_> = kinds.rev().collect();
    let mut found = open.len();
    let mut all: Option<Merged> = None;
    let mut first_problem = None;
    while let Some(device) = open.pop() {
        match read(&device) {
            Ok(signatures) => match &mut all {
                Some(all) => all.add(signatures, &device),
                None => all = Some(Merged { signatures, first: device, differing: Vec::new() }),
            },
            Err(Refusal { depends_on: Some(name), .. })
                if is_optional(&name) && found < MAX_KINDS =>
            {
                found += 1;
                open.extend([false, true].map(|defines| device.with(&name, defines)));
            }
            // Whether the text is valid for the device is not known.
            Err(Refusal { problem, depends_on: Some(_) }) => return Err(problem),
            Err(Refusal { problem, .. }) => first_problem = first_problem.or(Some(problem)),
        }
    }
    all.map(Merged::finish).ok_or_else(|| first_problem.unwrap_or_default())
}

impl Device {
    fn with(&self, name: &str, defines: bool) -> Self {
        let mut device = self.clone();
        device.optional.push((name.to_owned(), defines));
        device
    }

    /// Returns the macro that this device has a different value of than another.
    fn difference<'a>(&'a self, other: &'a Self) -> &'a str {
        if self.version != other.version {
            return DEVICE_VERSION;
        }
        let optional = self.optional.iter().find(|optional| !other.optional.contains(optional));
        optional.map_or(DEVICE_VERSION, |(name, _)| name)
    }
}

/// Kernels for several kinds of devices.
struct Merged {
    signatures: Signatures,
    /// Device of the first kernels.
    first: Device,
    /// Kernels that differ between devices, each once, with the macro that decides.
    differing: Vec<(Rc<str>, String)>,
}

impl Merged {
    /// Adds the kernels that the same text has for another kind of device.
    fn add(&mut self, other: Signatures, device: &Device) {
        let Signatures { kernels, problems } = &mut self.signatures;
        for kernel in other.kernels {
            match kernels.iter().find(|known| known.name == kernel.name) {
                Some(known) if known.parameters == kernel.parameters => {}
                Some(known) if self.differing.iter().any(|(name, _)| *name == known.name) => {}
                Some(_) => {
                    let decides = device.difference(&self.first).to_owned();
                    self.differing.push((kernel.name, decides));
                }
                None => kernels.push(kernel),
            }
        }
        for problem in other.problems {
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
    }

    /// Refuses the kernels that differ.
    fn finish(self) -> Signatures {
        let mut signatures = self.signatures;
        for (name, decides) in self.differing {
            let refused = signatures.kernels.iter_mut().filter(|kernel| kernel.name == name);
            for kernel in refused {
                let place =
                    kernel.place.as_ref().map(|place| format!("{place}: ")).unwrap_or_default();
                kernel.parameters = vec![Err(format!(
                    "{place}the parameters of `{name}` depend on the macro `{decides}`, which differs between \
                     devices; give kernels with different parameters different names"
                ))];
            }
        }
        signatures
    }
}
