//! Splits `fma` of vectors into components.
//!
//! A contraction in OpenCL C is not a call: the device's compiler sees a product and a sum, and replaces them
//! by the processor's instruction. After the translation, the contraction is a call of `fma`. Intel's CPU
//! runtime cannot optimise the vector form of that call when it maps work-items to the lanes of vectors. A
//! filter of `float4` then takes three times as long. The scalar form becomes one instruction.

use std::collections::HashSet;

use kiln_spirv::Module;
use kiln_spirv::edit::{Definitions, ExtendedSet, Instruction, Section, Stream, View};
use rspirv::spirv::{Op, OpenclStd100Op as Extended};

use crate::error::Result;

/// Maximum number of components of a vector (SPIR-V 2.16.1, with the capability `Vector16`).
const MAX_COMPONENTS: u32 = 16;

/// Replaces every `fma` of vectors by one `fma` for each component, which is equivalent.
///
/// # Errors
///
/// [`Unsupported`](crate::ErrorKind::Unsupported) if all ids are used up.
pub(super) fn split_vector_fma(module: &mut Module) -> Result<()> {
    // Calls with decorations are kept: a decoration may not apply to the instructions that replace the call.
    let decorated: HashSet<_> =
        module.section(Section::Annotations).iter().filter_map(|i| i.target()).collect();
    let sets = module.extended_sets();
    let definitions = module.definitions();
    let call = |i: Instruction<'_>| {
        let call = Call::of(&i, &definitions)?;
        let is_opencl = sets.get(&call.set) == Some(&ExtendedSet::OpenClStd);
        (is_opencl && !decorated.contains(&call.result)).then_some(call)
    };
    let functions = module.functions.iter();
    let calls: Vec<Vec<_>> =
        functions.map(|function| function.body.iter().map(call).collect()).collect();
    module.replace(calls, |call, module, body| call.split(module, body))
}

/// A call of `fma` for vectors.
struct Call {
    /// Type of the vectors.
    vector: u32,
    /// Type of a component.
    component: u32,
    /// Number of components.
    components: u32,
    result: u32,
    /// Extended instruction set of the call.
    set: u32,
    operands: [u32; 3],
}

impl Call {
    fn of(instruction: &Instruction<'_>, definitions: &Definitions<'_>) -> Option<Self> {
        let View::ExtInst { set, function, operands } = instruction.view() else { return None };
        if instruction.op() != Some(Op::ExtInst) || function != Extended::fma as u32 {
            return None;
        }
        let vector = instruction.result_type()?;
        let (component, components) = definitions.get(vector)?.vector()?;
        Some(Self {
            vector,
            component,
            components: Some(components).filter(|&count| count <= MAX_COMPONENTS)?,
            result: instruction.result()?,
            set,
            operands: [operands.get(0)?, operands.get(1)?, operands.get(2)?],
        })
    }

    /// Writes the instructions that replace the call.
    fn split(&self, module: &mut Module, body: &mut Stream) -> Result<()> {
        let mut results = Vec::new();
        for at in 0..self.components {
            let mut operands = [0; 3];
            for (component, operand) in operands.iter_mut().zip(self.operands) {
                *component = module.fresh_id()?;
                body.push(Op::CompositeExtract, [self.component, *component, operand, at]);
            }
            let result = module.fresh_id()?;
            let call = [self.component, result, self.set, Extended::fma as u32];
            body.push(Op::ExtInst, call.into_iter().chain(operands));
            results.push(result);
        }
        body.push(Op::CompositeConstruct, [self.vector, self.result].into_iter().chain(results));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rspirv::binary::Assemble;
    use rspirv::dr::{Builder, Operand};
    use rspirv::spirv::{AddressingModel, Capability, FunctionControl, MemoryModel};

    use super::*;

    /// Builds a function that calls `fma` once, for vectors of this number of components, or for scalars if
    /// `None`.
    fn calling(components: Option<u32>, decorates: bool) -> Module {
        let mut b = Builder::new();
        b.set_version(1, 2);
        b.capability(Capability::Kernel);
        let set = b.ext_inst_import("OpenCL.std");
        b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
        let float = b.type_float(32, None);
        let ty = components.map_or(float, |count| b.type_vector(float, count));
        let function = b.type_function(ty, [ty; 3]);
        b.begin_function(ty, None, FunctionControl::NONE, function).expect("it is the first");
        let operands = [(); 3].map(|()| b.function_parameter(ty).expect("it has three"));
        b.begin_block(None).expect("there is a function");
        let operands = operands.map(Operand::IdRef);
        let called = b.ext_inst(ty, None, set, Extended::fma as u32, operands).expect("a block");
        if decorates {
            b.decorate(called, rspirv::spirv::Decoration::RelaxedPrecision, []);
        }
        b.ret_value(called).expect("a block");
        b.end_function().expect("there is a function");
        let words = b.module().assemble();
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        Module::parse(bytes).expect("it is a module")
    }

    fn ops(module: &Module) -> Vec<Op> {
        module.functions[0].body.iter().filter_map(|i| i.op()).collect()
    }

    #[test]
    fn each_component_is_computed_from_the_corresponding_ones() {
        let mut module = calling(Some(3), false);
        let returned = module.functions[0].body.iter().find(|i| i.op() == Some(Op::ReturnValue));
        let returned = returned.and_then(|i| match i.view() {
            View::Return { value } => Some(value),
            _ => None,
        });
        split_vector_fma(&mut module).expect("there are ids");
        let one = [Op::CompositeExtract, Op::CompositeExtract, Op::CompositeExtract, Op::ExtInst];
        let all: Vec<_> = ops(&module).into_iter().skip(5).take(13).collect();
        assert_eq!(all, [&one[..], &one, &one, &[Op::CompositeConstruct]].concat());

        let body = || module.functions[0].body.iter();
        let parameters: Vec<_> =
            body().filter(|i| i.op() == Some(Op::FunctionParameter)).map(|i| i.result()).collect();
        let extracts: Vec<_> = body().filter(|i| i.op() == Some(Op::CompositeExtract)).collect();
        for (at, extract) in extracts.iter().enumerate() {
            let View::Extract { whole, path } = extract.view() else { panic!("{extract:?}") };
            assert_eq!(Some(whole), parameters[at % 3], "{at}");
            assert_eq!(path.single(), Some(at as u32 / 3), "{at}");
        }
        let made: Vec<_> =
            body().filter(|i| i.op() == Some(Op::ExtInst)).filter_map(|i| i.result()).collect();
        let whole = body().find(|i| i.op() == Some(Op::CompositeConstruct)).expect("it exists");
        assert_eq!(whole.words_from(2).collect::<Vec<_>>(), made);
        assert_eq!(whole.result(), returned, "the id of the result is unchanged");
        Module::parse(module.assemble()).expect("it is a module");
    }

    #[test]
    fn other_calls_are_unchanged() {
        for (components, decorates) in [(None, false), (Some(4), true), (Some(u32::MAX), false)] {
            let mut module = calling(components, decorates);
            let before = module.assemble();
            split_vector_fma(&mut module).expect("there are ids");
            assert_eq!(module.assemble(), before, "{components:?}");
        }
    }
}
