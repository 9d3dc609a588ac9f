//! Variables that emitted text cannot have.

use super::*;

/// LLVM makes such variables of tables, although SPIR-V forbids them.
#[test]
fn private_variables_outside_of_functions_are_refused_by_name() {
    let module = module_of(|b| {
        let uint = b.type_int(32, 0);
        let pointer = b.type_pointer(None, StorageClass::Function, uint);
        let one = b.constant_bit32(uint, 1);
        let table = b.variable(pointer, None, StorageClass::Function, Some(one));
        b.name(table, "switch.table");
        let k = function(b, &[], |b, _| {
            b.load(uint, None, table, None, []).unwrap();
        });
        vec![(k, "k")]
    });
    refused(&module, "`switch_table` in private memory, but outside of functions");
}
