//! Basic blocks of functions.

use std::collections::HashMap;

use kiln_spirv::edit::{Class, Definitions, Instruction, Location, operand_ids};
use rspirv::spirv::Op;

pub(crate) struct Block<'m> {
    pub(crate) label: u32,
    pub(crate) body: Vec<(Location, Instruction<'m>)>,
    /// Indexes of the blocks that may run next.
    pub(crate) next: Vec<usize>,
}

/// Returns the parameters and the blocks of a function.
pub(crate) fn blocks<'m>(
    definitions: &Definitions<'m>,
    body: impl Iterator<Item = (Location, Instruction<'m>)>,
) -> (Vec<u32>, Vec<Block<'m>>) {
    let (mut parameters, mut blocks) = (Vec::new(), Vec::<Block<'m>>::new());
    for (location, i) in body {
        match i.op() {
            Some(Op::FunctionParameter) => parameters.extend(i.result()),
            Some(Op::Label) => blocks.push(Block {
                label: i.result().unwrap_or_default(),
                body: Vec::new(),
                next: Vec::new(),
            }),
            _ => {
                if let Some(block) = blocks.last_mut() {
                    block.body.push((location, i));
                }
            }
        }
    }
    let labels: HashMap<_, _> =
        blocks.iter().enumerate().map(|(at, block)| (block.label, at)).collect();
    for block in &mut blocks {
        let last = block.body.iter().find(|(_, i)| i.class() == Some(Class::Branch));
        let Some((_, last)) = last else { continue };
        _ = operand_ids(last, definitions, |id| block.next.extend(labels.get(&id)));
    }
    (parameters, blocks)
}
