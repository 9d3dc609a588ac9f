//! Use of the work-group by a kernel, in its function and in the functions that it calls.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use kiln_spirv::edit::{Definitions, OPCODES, Section, operand_ids};
use rspirv::spirv::{Op, StorageClass};

use super::layout::Layouts;

/// Use of the work-group by a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupUse {
    /// Whether work-items may wait for each other, or observe the order of each other's operations.
    pub synchronizes: bool,
    /// Local memory in bytes that variables take, with padding for alignment. Arguments are not counted.
    pub local_bytes: usize,
}

/// Maximum alignment of local variables of most types, in bytes.
const ALIGN: i128 = 16;

/// Returns the use of the work-group by a function and by the functions that it calls.
pub(crate) fn group_use(definitions: &Definitions<'_>, function: u32) -> GroupUse {
    let module = definitions.module();
    let layouts = Layouts::of(module, definitions);
    let functions: HashMap<_, _> = module.functions.iter().map(|known| (known.id, known)).collect();
    let mut sizes = HashMap::new();
    for i in module.section(Section::Globals).iter() {
        if i.variable().is_some_and(|(class, _)| class == StorageClass::Workgroup as u32) {
            let pointee = i.result_type().and_then(|ty| definitions.get(ty)?.pointee());
            let size = pointee.and_then(|ty| layouts.size(ty)).unwrap_or(i128::MAX - ALIGN);
            i.result().map(|id| sizes.insert(id, (size + ALIGN - 1) / ALIGN * ALIGN));
        }
    }
    let mut found = GroupUse::default();
    let (mut seen, mut pending) = (HashSet::from([function]), vec![function]);
    while let Some(id) = pending.pop() {
        let Some(known) = functions.get(&id).filter(|known| !known.is_declaration()) else {
            found.synchronizes = true;
            continue;
        };
        for i in known.body.iter() {
            let used = operand_ids(&i, definitions, |id| {
                if let Some(size) = sizes.remove(&id) {
                    let size = usize::try_from(size).unwrap_or(usize::MAX);
                    found.local_bytes = found.local_bytes.saturating_add(size);
                }
            });
            found.synchronizes |= used.is_err();
            pending.extend(i.called().filter(|&id| seen.insert(id)));
            found.synchronizes |= i.op().is_some_and(synchronizes);
        }
    }
    found
}

/// Returns whether an operation synchronizes work-items, as judged by its name.
fn synchronizes(op: Op) -> bool {
    static ALL: LazyLock<HashSet<Op>> = LazyLock::new(|| {
        let is_order = |op: &Op| {
            let name = format!("{op:?}");
            let orders = ["Barrier", "Atomic", "Group", "Subgroup", "AsyncCopy", "Pipe"];
            orders.iter().any(|order| name.contains(order))
        };
        (0..u32::from(OPCODES)).filter_map(Op::from_u32).filter(is_order).collect()
    });
    ALL.contains(&op)
}
