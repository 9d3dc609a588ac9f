//! Fixes errors that llvm-spirv makes with optimised code, and detects those that cannot be fixed.
//!
//! llvm-spirv 15 writes blocks in the order of LLVM, in which a block can precede one that defines a value it
//! uses, or one that dominates it. SPIR-V requires that definitions and dominators come first (2.16.1). It also
//! writes OpLoopMerge before an OpSwitch, which is not allowed; kernels do not need OpLoopMerge at all (2.11). And
//! where memory is set to one value, it writes a copy from an array of bytes, without the alignment that the copy
//! claims of both addresses. It declares the type of samplers once for each sampler at program scope, and once more
//! for parameters. And it selects vectors by a single condition, which SPIR-V allows from version 1.4 on.

use std::collections::{BTreeMap, HashMap, HashSet};

use kiln_spirv::edit::{
    Definitions, Instruction, Interner, Section, Stream, View, invalid, operand_ids,
};
use kiln_spirv::{Dominators, Module, remove_debug_info, reverse_postorder};
use rspirv::spirv::{Decoration, Op, StorageClass};

use crate::error::Result;

/// Parses a module and fixes its errors.
///
/// # Errors
///
/// [`InvalidModule`](crate::ErrorKind::InvalidModule) if the bytes are not a valid module, or if its functions
/// use a value that is not defined before; [`Unsupported`](crate::ErrorKind::Unsupported) if it has unknown
/// instructions.
pub(super) fn parse_and_fix(bytes: Vec<u8>) -> Result<Module> {
    let mut module = Module::parse(bytes)?;
    remove_debug_info(&mut module);
    merge_sampler_types(&mut module)?;
    widen_conditions(&mut module)?;
    for at in 0..module.functions.len() {
        let mut body = without_bad_merges(&module.functions[at].body);
        let definitions = module.definitions();
        let blocks = Blocks::of(&body, &definitions)?;
        if !is_in_order(&body, &definitions)? || !blocks.follow_dominators() {
            body = blocks.sorted();
            if !is_in_order(&body, &definitions)? {
                return Err(invalid(
                    "a function of the SPIR-V module uses a value before its definition",
                ));
            }
        }
        module.functions[at].body = body;
    }
    align_copied_constants(&mut module);
    Ok(module)
}

/// Merges the declarations of the type of samplers, and those of types that are equal then.
fn merge_sampler_types(module: &mut Module) -> Result<()> {
    let globals = module.section(Section::Globals).iter();
    if globals.filter(|i| i.op() == Some(Op::TypeSampler)).count() < 2 {
        return Ok(());
    }
    let old = module.clone();
    let definitions = old.definitions();
    let (mut first_of, mut known) = (HashMap::new(), HashMap::new());
    let mut globals = Stream::default();
    for i in old.section(Section::Globals).iter() {
        let is_merged =
            matches!(i.op(), Some(Op::TypeSampler | Op::TypePointer | Op::TypeFunction));
        let mut new = Stream::default();
        new.push_renumbered(&i, &definitions, |id, _| Ok(*first_of.get(&id).unwrap_or(&id)))?;
        if let (true, Some(id), Some(renumbered)) = (is_merged, i.result(), new.at(0)) {
            let operands: Vec<u32> = renumbered.words_from(1).collect();
            let first = *known.entry((i.op(), operands)).or_insert(id);
            if first != id {
                first_of.insert(id, first);
                continue;
            }
        }
        globals.append(&new);
    }
    *module.section_mut(Section::Globals) = globals;
    for section in [Section::Names, Section::Annotations] {
        let is_kept = |i: &Instruction<'_>| i.target().is_none_or(|id| !first_of.contains_key(&id));
        module.section_mut(section).retain(is_kept);
    }
    for (function, old) in module.functions.iter_mut().zip(&old.functions) {
        let mut body = Stream::default();
        for i in old.body.iter() {
            body.push_renumbered(&i, &definitions, |id, _| Ok(*first_of.get(&id).unwrap_or(&id)))?;
        }
        function.body = body;
    }
    Ok(())
}

/// Selection of a vector by a single condition.
struct VectorSelection {
    condition: u32,
    /// Type of the condition.
    bool: u32,
    components: u32,
    /// Words of the instruction.
    words: Vec<u32>,
}

/// Gives selections of vectors a condition for each component.
fn widen_conditions(module: &mut Module) -> Result<()> {
    let definitions = module.definitions();
    let selection = |i: Instruction<'_>| {
        let View::Select { condition, .. } = i.view() else { return None };
        let (_, components) = definitions.get(i.result_type()?)?.vector()?;
        let bool = definitions.type_of(condition)?;
        let bool = Some(bool).filter(|ty| ty.op() == Some(Op::TypeBool))?.result()?;
        Some(VectorSelection { condition, bool, components, words: i.words_from(0).collect() })
    };
    let functions = module.functions.iter();
    let selections: Vec<Vec<_>> =
        functions.map(|function| function.body.iter().map(selection).collect()).collect();
    let mut interner = Interner::of(module);
    module.replace(selections, |selection, module, body| {
        let VectorSelection { condition, bool, components, mut words } = selection;
        let ty = interner.type_id(module, Op::TypeVector, &[bool, components])?;
        let conditions = module.fresh_id()?;
        let all = std::iter::repeat_n(condition, components as usize);
        body.push(Op::CompositeConstruct, [ty, conditions].into_iter().chain(all));
        words[2] = conditions;
        body.push(Op::Select, words);
        Ok(())
    })
}

/// Gives constants the alignments that copies from them claim.
fn align_copied_constants(module: &mut Module) {
    let mut claimed = BTreeMap::new();
    {
        let definitions = module.definitions();
        for i in module.functions.iter().flat_map(|function| function.body.iter()) {
            let View::CopyMemorySized { source, access, .. } = i.view() else { continue };
            let source = definitions.get(source);
            let source = match source.filter(|source| source.op() == Some(Op::Bitcast)) {
                Some(cast) => cast.operand().and_then(|id| definitions.get(id)),
                None => source,
            };
            let constant = source.filter(|source| {
                let class = source.variable().map(|(class, _)| class);
                class == Some(StorageClass::UniformConstant as u32)
            });
            let constant = constant.and_then(|known| known.result());
            if let Some((id, bytes)) = constant.zip(access.alignment()) {
                let most = claimed.entry(id).or_insert(bytes);
                *most = bytes.max(*most);
            }
        }
    }
    let alignment = Decoration::Alignment as u32;
    let annotations = module.section_mut(Section::Annotations);
    let declared = annotations.iter().filter_map(|i| i.decoration(Decoration::Alignment));
    let declared: HashSet<_> = declared.map(|(id, _)| id).collect();
    for (id, bytes) in claimed.into_iter().filter(|(id, _)| !declared.contains(id)) {
        annotations.push(Op::Decorate, [id, alignment, bytes]);
    }
}

/// Returns a function without the OpLoopMerge instructions that no branch follows.
fn without_bad_merges(body: &Stream) -> Stream {
    let mut fixed = Stream::default();
    let mut instructions = body.iter().peekable();
    while let Some(instruction) = instructions.next() {
        let next = instructions.peek().and_then(Instruction::op);
        let is_bad = instruction.op() == Some(Op::LoopMerge)
            && !matches!(next, Some(Op::Branch | Op::BranchConditional));
        if !is_bad {
            fixed.push_instruction(&instruction);
        }
    }
    fixed
}

/// Returns the ids that an instruction uses as operands.
fn operands(instruction: &Instruction<'_>, definitions: &Definitions<'_>) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    operand_ids(instruction, definitions, |id| found.push(id))?;
    Ok(found)
}

/// Whether every value of a function is defined before it is used by an instruction other than a phi.
fn is_in_order(body: &Stream, definitions: &Definitions<'_>) -> Result<bool> {
    let own: HashSet<u32> = body
        .iter()
        .filter(|instruction| !matches!(instruction.op(), Some(Op::Function | Op::Label)))
        .filter_map(|instruction| instruction.result())
        .collect();
    let mut defined = HashSet::new();
    for instruction in body.iter() {
        if instruction.op() != Some(Op::Phi) {
            let used = operands(&instruction, definitions)?;
            if used.iter().any(|id| own.contains(id) && !defined.contains(id)) {
                return Ok(false);
            }
        }
        defined.extend(instruction.result());
    }
    Ok(true)
}

/// Blocks of a function.
struct Blocks {
    /// Instructions before the first block.
    head: Stream,
    all: Vec<Stream>,
    end: Stream,
    /// Indices of the blocks to which each block may branch.
    successors: Vec<Vec<usize>>,
}

impl Blocks {
    fn of(body: &Stream, definitions: &Definitions<'_>) -> Result<Self> {
        let (mut head, mut all, mut end) =
            (Stream::default(), Vec::<Stream>::new(), Stream::default());
        let mut labels = HashMap::new();
        for instruction in body.iter() {
            match instruction.op() {
                Some(Op::Label) => {
                    labels.extend(instruction.result().map(|label| (label, all.len())));
                    all.push(Stream::default());
                }
                Some(Op::FunctionEnd) => {
                    end.push_instruction(&instruction);
                    continue;
                }
                _ => {}
            }
            all.last_mut().unwrap_or(&mut head).push_instruction(&instruction);
        }
        let mut successors = Vec::with_capacity(all.len());
        for block in &all {
            let last = block.iter().last();
            let used = last.map_or(Ok(Vec::new()), |last| operands(&last, definitions))?;
            successors
                .push(used.iter().filter_map(|id| labels.get(id).copied()).collect::<Vec<_>>());
        }
        Ok(Self { head, all, end, successors })
    }

    /// Whether each block follows the block that dominates it.
    fn follow_dominators(&self) -> bool {
        if self.all.is_empty() {
            return true;
        }
        let blocks = self.successors.iter().enumerate();
        let edges = blocks.flat_map(|(from, to)| to.iter().map(move |&to| (from, to)));
        let dominators = Dominators::of(self.all.len(), edges, 0);
        (0..self.all.len()).all(|at| dominators.parent(at).is_none_or(|parent| parent < at))
    }

    /// Returns the function with its blocks in reverse postorder: each block follows the blocks that dominate
    /// it. Unreachable blocks come last.
    fn sorted(self) -> Stream {
        let mut sorted = self.head;
        let order = reverse_postorder(self.all.len(), |at| &self.successors[at]);
        let reached: HashSet<_> = order.iter().copied().collect();
        for at in order.into_iter().chain((0..self.all.len()).filter(|at| !reached.contains(at))) {
            sorted.append(&self.all[at]);
        }
        sorted.append(&self.end);
        sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_in_order_if_they_follow_their_dominators() {
        let follow = |successors: &[&[usize]]| {
            let all = successors.iter().map(|_| Stream::default()).collect();
            let successors = successors.iter().map(|successors| successors.to_vec()).collect();
            Blocks { head: Stream::default(), all, end: Stream::default(), successors }
                .follow_dominators()
        };
        // A loop of block 2, with its end before it and after it.
        assert!(!follow(&[&[2], &[], &[1, 2]]));
        assert!(follow(&[&[1], &[1, 2], &[]]));
        // No single block dominates the last one. Blocks that are not reached do not matter.
        assert!(follow(&[&[2, 3], &[2], &[3], &[]]));
        assert!(follow(&[]));
    }

    #[test]
    fn valid_modules_are_unchanged() {
        for bytes in [
            &include_bytes!("../../../tests/data/saxpy.spv")[..],
            include_bytes!("../../../tests/data/switches.spv"),
            include_bytes!("../../../tests/data/fusion.spv"),
            include_bytes!("../../../tests/data/emitted/control_O2.spv"),
        ] {
            let module = parse_and_fix(bytes.to_vec()).expect("it is a module");
            assert_eq!(module.assemble(), bytes);
        }
    }
}
