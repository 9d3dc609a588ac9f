//! A module with a specialization constant.

use kiln::Module;
use rspirv::binary::Assemble as _;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv::*;

/// Returns a module whose kernel `write_number` stores a specialization constant with `SpecId` 7, whose default
/// is 16.
pub fn specialized() -> Module {
    let mut b = Builder::new();
    b.set_version(1, 0);
    b.capability(Capability::Addresses);
    b.capability(Capability::Kernel);
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    let uint = b.type_int(32, 0);
    let void = b.type_void();
    let pointer = b.type_pointer(None, StorageClass::CrossWorkgroup, uint);
    let signature = b.type_function(void, [pointer]);
    let number = b.spec_constant_bit32(uint, 16);
    b.decorate(number, Decoration::SpecId, [Operand::LiteralBit32(7)]);
    let kernel = b.begin_function(void, None, FunctionControl::NONE, signature).unwrap();
    let x = b.function_parameter(pointer).unwrap();
    b.begin_block(None).unwrap();
    b.store(x, number, Some(MemoryAccess::ALIGNED), [Operand::LiteralBit32(4)]).unwrap();
    b.ret().unwrap();
    b.end_function().unwrap();
    b.entry_point(ExecutionModel::Kernel, kernel, "write_number", []);
    let words = b.module().assemble();
    Module::spirv(bytemuck::cast_slice(&words)).unwrap()
}
