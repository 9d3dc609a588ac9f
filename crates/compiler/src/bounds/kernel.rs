//! Kernel that is prepared for the proof: on its own, without variables where values do.

use std::collections::{BTreeSet, HashMap, HashSet};

use kiln_spirv::edit::{Definitions, Instruction, Location, Section};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{Decoration, FunctionParameterAttribute as Attribute, Op, StorageClass};

use super::hazards::{Hazard, hazards};
use super::stack::Stack;
use super::{claims, refusal};
use crate::analysis::access::{Layouts, deciding_parameters};
use crate::analysis::images::{ImageType, Images};
use crate::analysis::uniformity::collective_beside_irreducible_loop;
use crate::transform::extract;
use crate::transform::modes::Modes;
use crate::transform::specialize::specialize;
use crate::transform::written;

/// Kernel that is prepared for the proof. Launches are [checked](super::check()) against it.
#[derive(Debug)]
pub struct Kernel {
    pub(super) name: String,
    /// Module of the kernel's function and the functions that it calls.
    pub(super) module: Module,
    /// Id of the kernel's function.
    pub(super) function: u32,
    pub(super) parameters: Vec<Parameter>,
    /// Execution modes of the kernel's entry point.
    pub(super) modes: Modes,
    /// Work-group size that the kernel's code requires.
    pub(super) required: Option<[usize; 3]>,
    /// Positions of the parameters on whose values verdicts may depend.
    pub(super) deciding: BTreeSet<usize>,
    /// Hazards that do not depend on the arguments.
    pub(super) hazards: BTreeSet<(Location, Hazard)>,
    pub(super) images: Images,
}

/// Parameter of a kernel.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub(super) name: Option<String>,
    pub(super) memory: ParameterMemory,
    /// Whether the kernel's declaration promises not to write through the parameter.
    pub(super) is_read_only: bool,
    /// Size in bytes of a value or of a struct that is passed by value, if it is known.
    pub(super) size: Option<i128>,
    /// Number of bytes of which the declaration says that addresses are multiples.
    pub(super) alignment: i128,
    /// Size in bytes of the struct that the parameter points to, if it points to one.
    pub(super) pointee: Option<usize>,
    /// Whether the parameter is a pointer to constant memory.
    pub(super) is_constant: bool,
    /// Whether the memory may not be written through another argument: the declaration promises that no other
    /// pointer leads to it (`restrict`), it is constant memory, or it is an image that is only read.
    pub(super) is_restricted: bool,
}

/// Memory that a parameter points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParameterMemory {
    Buffer,
    Local,
    /// Struct that is passed by value. The parameter's type is a pointer to it.
    ByValue,
    Image(ImageType),
    Sampler,
    /// No memory: the parameter is a value.
    None,
}

impl Kernel {
    /// Prepares a kernel. Specialization constants get the given values. `read_only` has the positions of the
    /// parameters that are declared `const`, besides those that the module itself declares so.
    ///
    /// # Errors
    ///
    /// [`UnknownKernel`](kiln_spirv::ErrorKind::UnknownKernel) if the module has no such kernel.
    /// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported) if the kernel is refused: for code that the proof does
    /// not cover. [`InvalidModule`](kiln_spirv::ErrorKind::InvalidModule) and
    /// [`InvalidArgument`](kiln_spirv::ErrorKind::InvalidArgument) for a damaged module, and for constants that it
    /// does not have.
    pub fn of(
        module: &Module,
        name: &str,
        constants: &[(u32, Vec<u8>)],
        read_only: &BTreeSet<usize>,
    ) -> Result<Self> {
        Self::prepare(module, name, constants, read_only, false)
    }

    /// Prepares the kernel of a module that fusion made, which knows that its
    /// [variables](crate::transform::written) are written before they are read.
    ///
    /// # Errors
    ///
    /// As for [`of`](Self::of).
    pub fn of_fused(module: &Module, name: &str, read_only: &BTreeSet<usize>) -> Result<Self> {
        Self::prepare(module, name, &[], read_only, true)
    }

    fn prepare(
        module: &Module,
        name: &str,
        constants: &[(u32, Vec<u8>)],
        read_only: &BTreeSet<usize>,
        is_fused: bool,
    ) -> Result<Self> {
        let named = |error: Error| error.within(format!("`{name}`"));
        let plain = extract::ungrouped(module).map_err(named)?;
        let special = specialize(&plain, constants).map_err(named)?;
        let kernel = extract::single(&special, name)?;
        let required = kernel.modes.local_size();
        let extract::Kernel { module, function, modes, .. } = kernel;
        if let Some(reason) = claims::refused_mode(&modes) {
            return Err(refusal::refuse(name, &reason));
        }
        let (parameters, images, hazards) = {
            let definitions = module.definitions();
            refusal::check_code(&definitions, function, name)?;
            let parameters = parameters(&definitions, function, read_only)
                .map_err(|reason| refusal::refuse(name, &reason))?;
            let images = Images::of(&definitions, function).map_err(|(location, reason)| {
                refusal::refuse(name, &refusal::at_line(&definitions, location, reason))
            })?;
            let written = match is_fused {
                true => written::variables(&definitions),
                false => HashSet::new(),
            };
            (parameters, images, hazards(&definitions, function, written))
        };
        let barrier = hazards.iter().find(|(_, hazard)| *hazard == Hazard::Barrier);
        if let Some(&(location, hazard)) = barrier {
            let reason = format!("it {}", hazard.describe());
            let reason = refusal::at_line(&module.definitions(), location, reason);
            return Err(refusal::refuse(name, &reason));
        }
        if let Some(location) = collective_beside_irreducible_loop(&module.definitions()) {
            let reason = "it has a barrier, or a function of the work-group, beside a loop that is entered in several \
                          places, as by `goto` or by a `switch` into it; write the loop with one entry";
            let reason = refusal::at_line(&module.definitions(), location, reason.to_owned());
            return Err(refusal::refuse(name, &reason));
        }
        let deciding = deciding_parameters(&module.definitions(), function);
        let name = name.to_owned();
        Ok(Self { name, module, function, parameters, modes, required, deciding, hazards, images })
    }

    /// Returns the number of bytes that a work-item needs on the [stack] of a thread, at most; `None` if the size of a
    /// value is not known.
    ///
    /// [stack]: super::stack
    #[must_use]
    pub fn private_bytes(&self) -> Option<u64> {
        let definitions = self.module.definitions();
        let layouts = Layouts::of(&self.module, &definitions);
        Stack::of(&definitions, &layouts).bytes(self.function)
    }

    /// Returns the positions of the parameters whose memory may not overlap with that of other arguments,
    /// unless neither is written.
    pub fn restricted(&self) -> impl Iterator<Item = usize> {
        let parameters = self.parameters.iter().enumerate();
        parameters.filter(|(_, known)| known.is_restricted).map(|(at, _)| at)
    }

    /// Returns why the memory of a parameter may not overlap with that of other arguments, in words that follow
    /// the name of the parameter.
    #[must_use]
    pub fn restriction(&self, at: usize) -> &'static str {
        match self.parameters.get(at).map(|known| known.memory) {
            Some(ParameterMemory::Image(_)) => "is declared `read_only`",
            _ if self.parameters.get(at).is_some_and(|known| known.is_constant) => {
                "is declared `constant`"
            }
            _ => "is declared `restrict`",
        }
    }

    /// Returns the positions of the parameters that point to structs, and the sizes of these in bytes.
    pub fn structs(&self) -> impl Iterator<Item = (usize, usize)> {
        let parameters = self.parameters.iter().enumerate();
        parameters.filter_map(|(at, known)| Some((at, known.pointee?)))
    }

    /// Returns the name of the kernel.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a parameter in words.
    #[must_use]
    pub fn parameter(&self, at: usize) -> String {
        self.parameters.get(at).map_or_else(|| format!("argument {at}"), |known| known.describe(at))
    }
}

impl Parameter {
    /// Returns the parameter in words: its name, or its position.
    pub(super) fn describe(&self, at: usize) -> String {
        match &self.name {
            Some(name) => format!("`{name}`"),
            None => format!("its argument {at}"),
        }
    }
}

/// Returns the parameters of a function, or the reason why one of them is refused.
fn parameters(
    definitions: &Definitions<'_>,
    function: u32,
    read_only: &BTreeSet<usize>,
) -> Result<Vec<Parameter>, String> {
    let module = definitions.module();
    let names = module.section(Section::Names).iter();
    let names: HashMap<_, _> = names.filter_map(|i| i.named()).collect();
    let attributes = module.section(Section::Annotations).iter().filter_map(|i| {
        let (id, attribute) = i.decoration(Decoration::FuncParamAttr)?;
        Some((id, attribute.get(0)?))
    });
    let attributes: BTreeSet<_> = attributes.collect();
    let layouts = Layouts::of(module, definitions);
    let alignments = claims::alignments(definitions, function)?;
    let decorated = |id: u32, decoration: Decoration| {
        let mut all = module.section(Section::Annotations).iter();
        all.any(|i| i.decoration(decoration).is_some_and(|(target, _)| target == id))
    };
    let body = module.functions.iter().find(|known| known.id == function);
    let body = body.into_iter().flat_map(|function| function.body.iter());
    let declared = body.filter(|i| i.op() == Some(Op::FunctionParameter));
    let parameter = |(at, i): (usize, Instruction<'_>)| {
        let id = i.result().unwrap_or_default();
        let has = |attribute: Attribute| attributes.contains(&(id, attribute as u32));
        let name = names.get(&id).map(|&name| name.to_owned());
        let mut parameter = Parameter {
            name,
            memory: ParameterMemory::None,
            is_read_only: read_only.contains(&at)
                || has(Attribute::NoWrite)
                || has(Attribute::NoReadWrite)
                || decorated(id, Decoration::NonWritable),
            size: None,
            alignment: alignments.get(&id).copied().unwrap_or(1),
            pointee: None,
            is_constant: false,
            is_restricted: has(Attribute::NoAlias)
                || decorated(id, Decoration::Restrict)
                || decorated(id, Decoration::RestrictPointer),
        };
        let ty = i.result_type().and_then(|ty| definitions.get(ty));
        let class = ty.as_ref().and_then(|ty| ty.storage_class()).and_then(StorageClass::from_u32);
        let pointee = ty.as_ref().and_then(|ty| definitions.get(ty.pointee()?));
        let pointee = pointee.filter(|pointee| pointee.op() == Some(Op::TypeStruct));
        let size = pointee.and_then(|pointee| layouts.size(pointee.result()?));
        parameter.pointee = size.and_then(|size| usize::try_from(size).ok());
        match (ty.as_ref().and_then(Instruction::op), class) {
            (Some(Op::TypePointer), Some(StorageClass::CrossWorkgroup)) => {
                parameter.memory = ParameterMemory::Buffer;
            }
            (Some(Op::TypePointer), Some(StorageClass::UniformConstant)) => {
                (parameter.memory, parameter.is_read_only) = (ParameterMemory::Buffer, true);
                // The analysis relies on it that constant memory does not change during a launch.
                (parameter.is_constant, parameter.is_restricted) = (true, true);
            }
            (Some(Op::TypePointer), Some(StorageClass::Workgroup)) => {
                parameter.memory = ParameterMemory::Local;
            }
            (Some(Op::TypePointer), Some(StorageClass::Function)) if has(Attribute::ByVal) => {
                parameter.memory = ParameterMemory::ByValue;
                parameter.size = ty.as_ref().and_then(|ty| layouts.size(ty.pointee()?));
            }
            (Some(Op::TypeImage), _) => {
                let image = ty.as_ref().and_then(ImageType::of);
                let image = image.ok_or_else(|| {
                    let name = parameter.describe(at);
                    format!("{name} is an image of a kind that launches cannot pass")
                })?;
                parameter.memory = ParameterMemory::Image(image);
                parameter.is_read_only = image.is_read_only();
                parameter.is_restricted = image.is_read_only();
            }
            (Some(Op::TypeSampler), _) => parameter.memory = ParameterMemory::Sampler,
            (
                Some(Op::TypeInt | Op::TypeFloat | Op::TypeVector | Op::TypeStruct | Op::TypeArray),
                _,
            ) => parameter.size = i.result_type().and_then(|ty| layouts.size(ty)),
            _ => {
                return Err(format!(
                    "{} is an object or a pointer whose use is not followed",
                    parameter.describe(at)
                ));
            }
        }
        Ok(parameter)
    };
    declared.enumerate().map(parameter).collect()
}
