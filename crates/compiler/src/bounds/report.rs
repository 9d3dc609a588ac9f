//! Report on a launch: a verdict for each instruction that touches memory, in words if these are asked for.

use std::collections::BTreeSet;

use kiln_spirv::edit::Location;

use super::hazards::Hazard;
use super::kernel::Kernel;
use super::verdict::{Finding, LaunchVerdict};
use crate::analysis::access::Kind;
use crate::analysis::explain::{self, line};

/// Report on a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Instructions that touch memory, by their location in the kernel's module.
    pub accesses: Vec<CheckedAccess>,
    /// Other code that a guarded variant has to mend.
    pub hazards: BTreeSet<(Location, Hazard)>,
    /// Positions of the scalars on whose values the verdicts depend.
    pub constants: BTreeSet<usize>,
}

/// Instruction that touches memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedAccess {
    pub location: Location,
    pub kind: Kind,
    pub memory: Memory,
    pub verdict: AccessVerdict,
    /// Whether the address may not be a multiple of the alignment that the instruction requires.
    pub is_unaligned: bool,
}

/// Memory that an instruction touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// One of the arguments at these positions.
    Arguments(BTreeSet<usize>),
    /// Variable, by its id.
    Variable(u32),
}

/// Verdict on an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessVerdict {
    /// Every work-item stays inside the memory.
    InBounds,
    /// This is not proven: the instruction needs a guard.
    Guarded(Reason),
}

/// Reason why an instruction is not proven to stay inside its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Some work-item may touch bytes outside of the memory. `first` and `end` limit the bytes.
    Outside { first: i128, end: i128, length: i128 },
    /// Nothing is known of the offsets.
    UnknownOffsets { length: i128 },
    /// The size of the variable is not known.
    UnknownLength,
    /// Some work-item may touch a pixel outside of the image. `low` and `high` limit one of its coordinates.
    OutsideImage { dimension: usize, low: i128, high: i128, size: usize },
    /// The address may not be a multiple of the alignment that the instruction requires.
    Unaligned { alignment: i128 },
}

impl CheckedAccess {
    pub fn is_in_bounds(&self) -> bool {
        self.verdict == AccessVerdict::InBounds
    }

    /// Returns whether the instruction needs a check of its offset.
    pub(super) fn needs_check(&self) -> bool {
        !matches!(
            self.verdict,
            AccessVerdict::InBounds | AccessVerdict::Guarded(Reason::Unaligned { .. })
        )
    }
}

impl Report {
    /// Returns whether every instruction is proven to stay inside its memory, and nothing else needs to be
    /// mended.
    pub fn is_proven(&self) -> bool {
        self.hazards.is_empty() && self.accesses.iter().all(CheckedAccess::is_in_bounds)
    }

    /// Describes the instructions that are not proven, and the hazards, one by one.
    pub fn describe(&self, kernel: &Kernel) -> Vec<String> {
        self.findings(kernel).iter().map(ToString::to_string).collect()
    }

    /// Returns the verdict on a launch, in words.
    #[must_use]
    pub fn verdict(&self, kernel: &Kernel) -> LaunchVerdict {
        let definitions = kernel.module.definitions();
        let is_memory = |checked: &&CheckedAccess| match &checked.memory {
            Memory::Arguments(_) => true,
            Memory::Variable(id) => !kernel.is_constant(&definitions, *id),
        };
        LaunchVerdict {
            kernel: kernel.name.clone(),
            accesses: self.accesses.iter().filter(is_memory).count(),
            findings: self.findings(kernel),
        }
    }

    /// Returns the positions of the arguments whose memory may be written.
    #[must_use]
    pub fn written(&self) -> BTreeSet<usize> {
        let writes = self.accesses.iter().filter(|checked| checked.kind.writes());
        let arguments = writes.filter_map(|checked| match &checked.memory {
            Memory::Arguments(all) => Some(all.iter().copied()),
            Memory::Variable(_) => None,
        });
        arguments.flatten().collect()
    }

    fn findings(&self, kernel: &Kernel) -> Vec<Finding> {
        let definitions = kernel.module.definitions();
        let guarded = self.accesses.iter().filter(|checked| !checked.is_in_bounds());
        let access = |checked: &CheckedAccess| {
            let mut what = format!(
                "{} {}",
                verb(checked.kind),
                kernel.describe(&definitions, &checked.memory)
            );
            if let Some(cause) = explain::origin(&definitions, checked.location) {
                what += &format!(" {cause}");
            }
            let reason = match checked.verdict {
                AccessVerdict::Guarded(reason) => reason.describe(),
                AccessVerdict::InBounds => String::new(),
            };
            let line = line(&definitions, checked.location);
            Finding {
                parameter: kernel.named_memory(&checked.memory),
                what,
                reason: Some(reason),
                line,
            }
        };
        let hazard = |(location, hazard): &(Location, Hazard)| {
            let what = hazard.describe().to_owned();
            Finding { parameter: None, what, reason: None, line: line(&definitions, *location) }
        };
        let hazards = self.hazards.iter().map(hazard);
        let mut findings = Vec::new();
        for finding in guarded.map(access).chain(hazards) {
            if !findings.contains(&finding) {
                findings.push(finding);
            }
        }
        findings
    }
}

impl Kernel {
    /// Returns the name of the parameter whose memory an instruction touches, if it is one parameter with a
    /// name.
    fn named_memory(&self, memory: &Memory) -> Option<String> {
        let Memory::Arguments(all) = memory else { return None };
        let [at] = *all.iter().collect::<Vec<_>>() else { return None };
        self.parameters[*at].name.clone()
    }
}

impl Reason {
    fn describe(&self) -> String {
        match self {
            Self::Outside { first, end, length } => {
                format!("it may touch the bytes {first} to {end}, but there are {length}")
            }
            Self::UnknownOffsets { length } => {
                format!("it may touch any bytes, but there are {length}")
            }
            Self::OutsideImage { dimension, low, high, size } => {
                let name = ["x", "y", "z"].get(*dimension).unwrap_or(&"z");
                let is_any = *low == i32::MIN.into() && *high == i32::MAX.into();
                let limits = match is_any {
                    true => "any number".to_owned(),
                    false => format!("{low} to {high}"),
                };
                format!("its coordinate {name} may be {limits}, but the image has {size}")
            }
            Self::UnknownLength => "the size of the variable is not known".to_owned(),
            Self::Unaligned { alignment } => {
                format!("the address may not be a multiple of {alignment} bytes")
            }
        }
    }
}

/// Returns the verb for a touch of memory.
pub(super) fn verb(kind: Kind) -> &'static str {
    match kind {
        Kind::Read => "reads",
        Kind::Write => "writes",
        Kind::Atomic | Kind::Escape => "changes",
    }
}
