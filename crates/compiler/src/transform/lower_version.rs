//! Lowering of a module to a version of SPIR-V that the device accepts.

use kiln_spirv::edit::{Class, Definitions, Instruction, Section, View};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{Capability, Decoration, ExecutionMode, LoopControl, Op};

/// Major and minor version.
type Version = (u8, u8);

const NO_WRAP: &str = "SPV_KHR_no_integer_wrap_decoration";

/// Lowers a module's version to `most`, the latest one that a device accepts.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported), naming the feature that needs a later version.
pub(crate) fn lower(module: &mut Module, most: Version) -> Result<()> {
    if module.header.version <= most {
        return Ok(());
    }
    let extensions: Vec<_> = module
        .section(Section::Extensions)
        .iter()
        .filter_map(|i| i.text().map(str::to_owned))
        .collect();
    let has = |name: &str| extensions.iter().any(|extension| extension == name);
    if most < (1, 4) && !has(NO_WRAP) {
        // These decorations only permit optimisations.
        module.section_mut(Section::Annotations).retain(|i| {
            let only_permits = [Decoration::NoSignedWrap, Decoration::NoUnsignedWrap];
            !only_permits.iter().any(|decoration| i.decoration(*decoration).is_some())
        });
    }
    let definitions = module.definitions();
    for i in module.streams().flat_map(|stream| stream.iter()) {
        if let Some((version, what)) = needed(&i, &definitions, &has)
            && version > most
        {
            let (major, minor) = most;
            return Err(Error::unsupported(format!(
                "the kernels use {what}, which needs SPIR-V {}.{}, but the device accepts at most \
                 {major}.{minor}",
                version.0, version.1
            )));
        }
    }
    module.header.version = most;
    Ok(())
}

/// Returns the version that an instruction needs if that is later than 1.0, and a name for what needs it.
fn needed(
    i: &Instruction<'_>,
    definitions: &Definitions<'_>,
    has: &impl Fn(&str) -> bool,
) -> Option<(Version, String)> {
    let op = i.op()?;
    let minor = match op {
        Op::Capability => {
            let View::Capability { capability } = i.view() else { return None };
            let capability = Capability::from_u32(capability)?;
            let minor = capability_minor(capability, has);
            return (minor > 0).then(|| ((1, minor), format!("the capability {capability:?}")));
        }
        Op::ExecutionMode | Op::ExecutionModeId => {
            let (View::ExecutionMode { mode, .. } | View::ExecutionModeId { mode, .. }) = i.view()
            else {
                return None;
            };
            let mode = ExecutionMode::from_u32(mode)?;
            let minor = match mode {
                ExecutionMode::Initializer
                | ExecutionMode::Finalizer
                | ExecutionMode::SubgroupSize
                | ExecutionMode::SubgroupsPerWorkgroup => 1,
                _ if op == Op::ExecutionModeId => 2,
                _ => 0,
            };
            return (minor > 0).then(|| ((1, minor), format!("the execution mode {mode:?}")));
        }
        Op::Decorate | Op::MemberDecorate => {
            let (View::Decorate { decoration, .. } | View::MemberDecorate { decoration, .. }) =
                i.view()
            else {
                return None;
            };
            let decoration = Decoration::from_u32(decoration)?;
            let minor = u8::from(decoration == Decoration::MaxByteOffset);
            return (minor > 0).then(|| ((1, minor), format!("the decoration {decoration:?}")));
        }
        Op::LoopMerge => {
            let View::LoopMerge { control, .. } = i.view() else { return None };
            let control = LoopControl::from_bits_retain(control);
            let first = LoopControl::UNROLL | LoopControl::DONT_UNROLL;
            let second = first | LoopControl::DEPENDENCY_INFINITE | LoopControl::DEPENDENCY_LENGTH;
            // Higher bits belong to extensions.
            let third = LoopControl::from_bits_retain(0x1ff);
            match control & third {
                control if first.contains(control) => 0,
                control if second.contains(control) => 1,
                _ => 4,
            }
        }
        Op::SizeOf
        | Op::TypePipeStorage
        | Op::ConstantPipeStorage
        | Op::CreatePipeFromPipeStorage
        | Op::GetKernelLocalSizeForSubgroupCount
        | Op::GetKernelMaxNumSubgroups
        | Op::TypeNamedBarrier
        | Op::NamedBarrierInitialize
        | Op::MemoryNamedBarrier
        | Op::ModuleProcessed => 1,
        Op::DecorateId => 2,
        Op::CopyLogical | Op::PtrEqual | Op::PtrNotEqual | Op::PtrDiff => 4,
        Op::DecorateString | Op::MemberDecorateString if !has("SPV_GOOGLE_decorate_string") => 4,
        // With operands for both sides, a copy needs SPIR-V 1.4.
        Op::CopyMemory | Op::CopyMemorySized => match i.view() {
            View::CopyMemory { source_access, .. }
            | View::CopyMemorySized { source_access, .. }
                if source_access.mask().is_some() =>
            {
                4
            }
            _ => 0,
        },
        // Selecting whole composites by a scalar condition needs SPIR-V 1.4.
        Op::Select => {
            let View::Select { condition, .. } = i.view() else { return None };
            let is_scalar = |ty: Option<Instruction<'_>>| {
                ty.and_then(|ty| ty.class()) != Some(Class::Aggregate)
            };
            let condition = Some(definitions.type_of(condition)?);
            if is_scalar(condition) && !is_scalar(definitions.get(i.result_type()?)) {
                4
            } else {
                0
            }
        }
        Op::TerminateInvocation => 6,
        _ if format!("{op:?}").starts_with("GroupNonUniform") => 3,
        _ => 0,
    };
    (minor > 0).then(|| ((1, minor), i.name()))
}

fn capability_minor(capability: Capability, has: &impl Fn(&str) -> bool) -> u8 {
    match capability {
        Capability::SubgroupDispatch | Capability::NamedBarrier | Capability::PipeStorage => 1,
        _ if format!("{capability:?}").starts_with("GroupNonUniform") => 3,
        Capability::UntypedPointersKHR => 4,
        Capability::DenormPreserve
        | Capability::DenormFlushToZero
        | Capability::SignedZeroInfNanPreserve
        | Capability::RoundingModeRTE
        | Capability::RoundingModeRTZ
            if !has("SPV_KHR_float_controls") =>
        {
            4
        }
        Capability::DotProduct
        | Capability::DotProductInputAll
        | Capability::DotProductInput4x8Bit
        | Capability::DotProductInput4x8BitPacked
            if !has("SPV_KHR_integer_dot_product") =>
        {
            6
        }
        Capability::UniformDecoration => 6,
        _ => 0,
    }
}
