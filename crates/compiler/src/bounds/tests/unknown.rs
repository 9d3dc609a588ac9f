//! Code that the analysis does not know: it is refused by name, whatever it does.

use kiln_spirv::edit::Meaning;
use rspirv::dr::{InsertPoint, Instruction, Operand};
use rspirv::grammar::{INSTRUCTION_TABLE, LogicalOperand, OperandKind, OperandQuantifier};
use rspirv::spirv::{BuiltIn, Decoration, Op, StorageClass};

use super::images::Code;
use super::*;

/// Returns the error for a kernel with an instruction, if it is refused.
fn refusal(op: Op, operands: &[LogicalOperand]) -> Option<String> {
    let mut code = Code::new();
    let (kernel, _) = code.function(code.void, &[]);
    let id = code.b.constant_bit32(code.int, 1);
    let mut given = Vec::new();
    let (mut ty, mut result) = (None, None);
    for operand in operands.iter().filter(|it| it.quantifier == OperandQuantifier::One) {
        match operand.kind {
            OperandKind::IdResultType => ty = Some(code.int),
            OperandKind::IdResult => result = Some(code.b.id()),
            OperandKind::IdRef | OperandKind::IdScope | OperandKind::IdMemorySemantics => {
                given.push(Operand::IdRef(id));
            }
            OperandKind::LiteralString => given.push(Operand::LiteralString("x".to_owned())),
            _ => given.push(Operand::LiteralBit32(0)),
        }
    }
    let i = Instruction::new(op, ty, result, given);
    code.b.insert_into_block(InsertPoint::End, i).unwrap();
    let module = code.finish(kernel);
    Kernel::of(&module, "k", &[], &BTreeSet::new()).err().map(|error| error.to_string())
}

#[test]
fn instructions_without_a_meaning_are_refused_by_name() {
    let mut count = 0;
    for known in INSTRUCTION_TABLE.iter().filter(|known| Meaning::of(known.opcode).is_none()) {
        // They would end the function.
        if matches!(known.opcode, Op::Function | Op::FunctionEnd) {
            continue;
        }
        let op = known.opcode;
        let error = refusal(op, known.operands).unwrap_or_else(|| panic!("{op:?} is accepted"));
        assert!(error.contains(&format!("Op{op:?}")), "{op:?}: {error}");
        count += 1;
    }
    assert!(count > 300, "only {count} instructions have no meaning");
}

#[test]
fn pointers_of_unknown_storage_classes_are_refused_by_name() {
    for class in [StorageClass::Private, StorageClass::Uniform, StorageClass::StorageBuffer] {
        let mut code = Code::new();
        let (kernel, _) = code.function(code.void, &[]);
        code.b.type_pointer(None, class, code.int);
        let module = code.finish(kernel);
        let error = Kernel::of(&module, "k", &[], &BTreeSet::new()).unwrap_err().to_string();
        assert!(error.contains(&format!("the storage class {class:?}")), "{error}");
    }
}

#[test]
fn writes_to_constant_memory_are_refused() {
    for (class, memory) in [
        (StorageClass::Input, "a built-in variable"),
        (StorageClass::UniformConstant, "constant memory"),
    ] {
        for is_atomic in [false, true] {
            let mut code = Code::new();
            let (kernel, _) = code.function(code.void, &[]);
            let (one, ty) = (code.b.constant_bit32(code.int, 1), code.int);
            let pointer = code.b.type_pointer(None, class, ty);
            let variable = code.b.variable(pointer, None, class, None);
            let id = Operand::IdRef;
            let (op, ty, result, operands) = match is_atomic {
                false => (Op::Store, None, None, vec![id(variable), id(one)]),
                true => {
                    let operands =
                        vec![id(variable), Operand::IdScope(one), Operand::IdMemorySemantics(one)];
                    (Op::AtomicIIncrement, Some(ty), Some(code.b.id()), operands)
                }
            };
            let i = Instruction::new(op, ty, result, operands);
            code.b.insert_into_block(InsertPoint::End, i).unwrap();
            if class == StorageClass::Input {
                let built_in = Operand::BuiltIn(BuiltIn::WorkDim);
                code.b.decorate(variable, Decoration::BuiltIn, [built_in]);
            }
            let module = code.finish(kernel);
            let error = Kernel::of(&module, "k", &[], &BTreeSet::new()).unwrap_err().to_string();
            assert!(error.contains(&format!("Op{op:?}, which writes to {memory}")), "{error}");
        }
    }
}
