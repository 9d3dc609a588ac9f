//! Types of instructions: those that a check accepts are valid for the validator of SPIR-V, too.

use kiln_spirv::edit::{Meaning, Types, Value};
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, InsertPoint, Instruction, Operand};
use rspirv::grammar::{INSTRUCTION_TABLE, OperandKind};
use rspirv::spirv::{
    AddressingModel, Capability, ExecutionModel, FunctionControl, GroupOperation, MemoryModel, Op,
    OpenclStd100Op as Extended, Scope, StorageClass,
};
use test_tools::programs::{has_tool, validate};

use super::super::types::unfit;
use super::*;

/// Positions of the types that instructions with several operands are tried with: truth values, integers, floating-point
/// numbers, vectors of these, and pointers.
const FEW: [usize; 10] = [0, 2, 3, 4, 7, 9, 10, 11, 13, 14];

/// Instruction of a kernel, without its result.
#[derive(Clone, Debug)]
struct Candidate {
    op: Op,
    /// Function of OpenCL, if the instruction calls one.
    function: Option<u32>,
    /// Type of the result; `None` if the instruction has none.
    result: Option<u32>,
    operands: Vec<Operand>,
}

/// Module whose kernel has a value of each of some types.
struct Values {
    b: Builder,
    functions: u32,
    kernel: u32,
    void: u32,
    /// Types of results.
    types: Vec<u32>,
    /// Values of these types, and pointers.
    values: Vec<u32>,
    /// Scope of a work-group.
    scope: u32,
}

impl Values {
    fn new() -> Self {
        let mut b = Builder::new();
        b.set_version(1, 4);
        for capability in [
            Capability::Addresses,
            Capability::Kernel,
            Capability::Linkage,
            Capability::Int8,
            Capability::Int64,
            Capability::Float64,
            Capability::Groups,
            Capability::BitInstructions,
        ] {
            b.capability(capability);
        }
        b.extension("SPV_KHR_bit_instructions");
        let functions = b.ext_inst_import("OpenCL.std");
        b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
        let (void, truth) = (b.type_void(), b.type_bool());
        let [byte, int, long] = [8, 32, 64].map(|width| b.type_int(width, 0));
        let [float, double] = [32, 64].map(|width| b.type_float(width, None));
        let four = [truth, byte, int, float].map(|ty| b.type_vector(ty, 4));
        let three = b.type_vector(float, 3);
        let mut types = vec![truth, byte, int, long, float, double, three];
        types.extend(four);
        let scope = b.constant_bit32(int, Scope::Workgroup as u32);
        let mut values: Vec<_> = types.iter().map(|&ty| b.constant_null(ty)).collect();
        let pointers =
            [int, float, four[3], byte].map(|ty| b.type_pointer(None, StorageClass::Function, ty));
        let signature = b.type_function(void, []);
        let kernel = b.begin_function(void, None, FunctionControl::NONE, signature).unwrap();
        b.begin_block(None).unwrap();
        values.extend(pointers.map(|ty| b.variable(ty, None, StorageClass::Function, None)));
        Self { b, functions, kernel, void, types, values, scope }
    }

    /// Returns all combinations of types for an instruction. Those with several operands have fewer types.
    fn candidates(&self, op: Op, function: Option<u32>, listed: &[Value]) -> Vec<Candidate> {
        let is_many = listed.iter().filter(|value| **value != Value::Literal).count() > 1;
        let chosen = |at: &usize| !is_many || FEW.contains(at);
        let of = |all: &[u32]| -> Vec<u32> {
            let all = all.iter().enumerate().filter(|(at, _)| chosen(at));
            all.map(|(_, id)| *id).collect()
        };
        let values = of(&self.values);
        let mut all: Vec<_> = match gives_result(op, function) {
            true => of(&self.types).into_iter().map(Some).collect(),
            false => vec![None],
        };
        if function.is_some() {
            all.push(Some(self.void));
        }
        let mut all: Vec<_> = (all.into_iter())
            .map(|result| Candidate { op, function, result, operands: Vec::new() })
            .collect();
        for (at, value) in listed.iter().enumerate() {
            let is_scope = at == 0 && format!("{op:?}").starts_with("Group");
            let choices: Vec<_> = match value {
                Value::Literal => vec![Operand::GroupOperation(GroupOperation::Reduce)],
                _ if is_scope => vec![Operand::IdScope(self.scope)],
                _ => values.iter().copied().map(Operand::IdRef).collect(),
            };
            let with = |candidate: &Candidate| {
                let extended = choices.iter().map(|choice| {
                    let mut new = candidate.clone();
                    new.operands.push(choice.clone());
                    new
                });
                extended.collect::<Vec<_>>()
            };
            all = all.iter().flat_map(with).collect();
        }
        all
    }

    fn push(&mut self, candidate: &Candidate) {
        let result = candidate.result.map(|_| self.b.id());
        let mut operands = Vec::new();
        if let Some(function) = candidate.function {
            operands.push(Operand::IdRef(self.functions));
            operands.push(Operand::LiteralExtInstInteger(function));
        }
        operands.extend(candidate.operands.iter().cloned());
        let i = Instruction::new(candidate.op, candidate.result, result, operands);
        self.b.insert_into_block(InsertPoint::End, i).unwrap();
    }

    fn finish(mut self) -> Vec<u8> {
        self.b.ret().unwrap();
        self.b.end_function().unwrap();
        self.b.entry_point(ExecutionModel::Kernel, self.kernel, "k", []);
        bytemuck::cast_slice::<u32, u8>(&self.b.module().assemble()).to_vec()
    }
}

fn gives_result(op: Op, function: Option<u32>) -> bool {
    let known = INSTRUCTION_TABLE.iter().find(|known| known.opcode == op).unwrap();
    let mut kinds = known.operands.iter().map(|operand| operand.kind);
    function.is_some() || kinds.any(|kind| kind == OperandKind::IdResult)
}

/// Returns the combinations of types of an instruction that a check accepts.
fn accepted(op: Op, function: Option<u32>, listed: &[Value]) -> Vec<Candidate> {
    let mut values = Values::new();
    let candidates = values.candidates(op, function, listed);
    candidates.iter().for_each(|candidate| values.push(candidate));
    let module = Module::parse(&*values.finish()).unwrap();
    let definitions = module.definitions();
    let body = &module.functions[0];
    let own = body.body.iter().filter(|i| i.op() == Some(op));
    let fits = own.map(|i| unfit(&definitions, body, &i).is_none());
    let fits: Vec<_> = fits.collect();
    assert_eq!(fits.len(), candidates.len(), "{op:?}");
    candidates.into_iter().zip(fits).filter(|(_, fits)| *fits).map(|(own, _)| own).collect()
}

/// The validator compares more than a check needs, such as where a pointer to elements leads.
fn is_compared(listed: &[Value]) -> bool {
    !listed.contains(&Value::Pointer)
}

#[test]
fn accepted_types_are_valid() {
    if !has_tool("spirv-val", &["spirv-val", "--version"]) {
        return;
    }
    let instructions = INSTRUCTION_TABLE.iter().map(|known| (known.opcode, None));
    let functions = (0..256).filter_map(Extended::from_u32);
    let functions = functions.map(|function| (Op::ExtInst, Some(function)));
    let mut module = Values::new();
    for (op, function) in instructions.chain(functions) {
        let meaning = match function {
            Some(function) => Meaning::of_function(function),
            None => Meaning::of(op),
        };
        let Some(Types::Of(_, listed)) = meaning.map(|meaning| meaning.types) else { continue };
        if !is_compared(listed) || listed.first() == Some(&Value::Any) {
            continue;
        }
        let accepted = accepted(op, function.map(|function| function as u32), listed);
        assert!(!accepted.is_empty(), "no types of {op:?} {function:?} are accepted");
        accepted.iter().for_each(|candidate| module.push(candidate));
    }
    assert_eq!(validate(&module.finish()), Ok(()));
}
