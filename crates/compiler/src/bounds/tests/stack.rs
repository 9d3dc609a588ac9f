//! Memory of work-items on a thread's stack.

use rspirv::dr::Operand;
use rspirv::spirv::{Decoration, FunctionParameterAttribute, MemorySemantics, Scope, StorageClass};

use super::images::Code;
use super::*;

/// Returns the bytes of a kernel that `write` writes, which gets a pointer to global memory.
fn bytes(write: impl FnOnce(&mut Code, u32)) -> u64 {
    let mut code = Code::new();
    let pointer = code.b.type_pointer(None, StorageClass::CrossWorkgroup, code.int);
    let (kernel, parameters) = code.function(code.void, &[pointer]);
    write(&mut code, parameters[0]);
    let module = code.finish(kernel);
    let kernel = Kernel::of(&module, "k", &[], &BTreeSet::new()).unwrap();
    kernel.private_bytes().unwrap()
}

impl Code {
    /// Adds a variable that is an array of integers, and writes an element of it.
    fn array(&mut self, length: u32) {
        let length = self.b.constant_bit32(self.int, length);
        let array = self.b.type_array(self.int, length);
        let pointer = self.b.type_pointer(None, StorageClass::Function, array);
        let variable = self.b.variable(pointer, None, StorageClass::Function, None);
        let element = self.b.type_pointer(None, StorageClass::Function, self.int);
        let first = self.b.constant_bit32(self.int, 0);
        let at = self.b.in_bounds_access_chain(element, None, variable, [first]).unwrap();
        self.store(at, first);
    }

    fn barrier(&mut self) {
        let group = self.b.constant_bit32(self.int, Scope::Workgroup as u32);
        let order = MemorySemantics::SEQUENTIALLY_CONSISTENT | MemorySemantics::WORKGROUP_MEMORY;
        let order = self.b.constant_bit32(self.int, order.bits());
        self.b.control_barrier(group, group, order).unwrap();
    }

    fn load(&mut self, from: u32) -> u32 {
        self.b.load(self.int, None, from, None, []).unwrap()
    }

    fn store(&mut self, to: u32, value: u32) {
        self.b.store(to, value, None, []).unwrap();
    }
}

#[test]
fn variables_count_in_full() {
    assert_eq!(bytes(|_, _| {}), 0);
    assert_eq!(bytes(|code, _| code.array(100)), 400);
}

#[test]
fn values_that_are_used_after_a_barrier_count() {
    let value = |has_barrier: bool, is_used: bool| {
        bytes(|code, x| {
            let loaded = code.load(x);
            if has_barrier {
                code.barrier();
            }
            if is_used {
                code.store(x, loaded);
            }
        })
    };
    assert_eq!(value(false, true), 0);
    assert_eq!(value(true, false), 0);
    assert_eq!(value(true, true), 8);
}

#[test]
fn values_of_each_call_count() {
    // Drivers inline the function, so that its variables exist once for each call.
    let calls = |count: u32| {
        let mut code = Code::new();
        let (function, _) = code.function(code.void, &[]);
        code.array(100);
        code.end();
        let (kernel, _) = code.function(code.void, &[]);
        (0..count).for_each(|_| code.call(function, &[]));
        let module = code.finish(kernel);
        let kernel = Kernel::of(&module, "k", &[], &BTreeSet::new()).unwrap();
        kernel.private_bytes().unwrap()
    };
    assert_eq!([calls(0), calls(1), calls(3)], [0, 400, 1200]);
}

#[test]
fn copies_of_structs_that_are_passed_count() {
    let passed = |is_copied: bool| {
        let mut code = Code::new();
        let length = code.b.constant_bit32(code.int, 50);
        let array = code.b.type_array(code.int, length);
        let record = code.b.type_struct([array]);
        let pointer = code.b.type_pointer(None, StorageClass::Function, record);
        let (function, parameters) = code.function(code.void, &[pointer]);
        if is_copied {
            let by_value = Operand::FunctionParameterAttribute(FunctionParameterAttribute::ByVal);
            code.b.decorate(parameters[0], Decoration::FuncParamAttr, [by_value]);
        }
        code.end();
        let (kernel, _) = code.function(code.void, &[]);
        let variable = code.b.variable(pointer, None, StorageClass::Function, None);
        code.call(function, &[variable]);
        let module = code.finish(kernel);
        let kernel = Kernel::of(&module, "k", &[], &BTreeSet::new()).unwrap();
        kernel.private_bytes().unwrap()
    };
    assert_eq!([passed(false), passed(true)], [200, 400]);
}
