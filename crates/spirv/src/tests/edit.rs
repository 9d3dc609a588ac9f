//! Tests of parsing, indexing, pruning and assembling modules.

use std::collections::HashMap;

use proptest::prelude::*;
use rspirv::spirv::{BuiltIn, Decoration, Op, StorageClass};

use test_tools::damage::{Random, test_changed};

use super::{ALL, Builder, swapped};
use crate::error::ErrorKind;
use crate::fuzzing::exercise;
use crate::grammar::{self, Role};
use crate::index::Uses;
use crate::intern::Interner;
use crate::module::{Module, Section};
use crate::prune::References;
use crate::words::{Instruction, Instructions};

fn parse(bytes: &[u8]) -> Module {
    Module::parse(bytes).unwrap()
}

fn data(name: &str) -> Module {
    parse(ALL.iter().find(|(known, _)| *known == name).unwrap().1)
}

/// Returns the ids of an instruction, in order.
fn ids(module: &Module, instruction: &Instruction<'_>) -> Vec<u32> {
    let mut ids = Vec::new();
    grammar::ids(instruction, &module.definitions(), |at, _| {
        ids.push(instruction.word(at).unwrap());
    })
    .unwrap();
    ids
}

fn all(module: &Module, op: Op) -> Vec<Instruction<'_>> {
    let instructions = module.streams().flat_map(|stream| stream.iter());
    instructions.filter(|instruction| instruction.op() == Some(op)).collect()
}

#[test]
fn modules_are_assembled_word_for_word() {
    for (name, bytes) in ALL {
        assert_eq!(parse(bytes).assemble(), bytes, "{name}");
        assert_eq!(parse(&swapped(bytes)).assemble(), bytes, "{name}");
    }
}

#[test]
fn sections_contain_the_instructions_of_the_layout() {
    let module = data("library_debug");
    let ops = |section| {
        let instructions = module.section(section).iter();
        let mut ops: Vec<_> = instructions.map(|instruction| instruction.op().unwrap()).collect();
        ops.dedup();
        ops
    };
    assert_eq!(ops(Section::Capabilities), [Op::Capability]);
    assert_eq!(ops(Section::ExtInstImports), [Op::ExtInstImport]);
    assert_eq!(ops(Section::MemoryModel), [Op::MemoryModel]);
    assert_eq!(ops(Section::EntryPoints), [Op::EntryPoint]);
    assert_eq!(ops(Section::Sources), [Op::String, Op::Source]);
    assert_eq!(ops(Section::Names), [Op::Name]);
    assert_eq!(ops(Section::Annotations), [Op::Decorate]);
    assert!(ops(Section::Globals).contains(&Op::ExtInst));
    assert_eq!(module.functions.len(), 5);
    let operations = data("operations");
    let group = operations.section(Section::Annotations).iter();
    assert_eq!(group.filter(|i| i.op() == Some(Op::DecorationGroup)).count(), 1);
}

#[test]
fn lines_before_a_function_belong_to_it() {
    let module = Builder::new()
        .op(Op::TypeVoid, &[90])
        .op(Op::Line, &[1, 7, 0])
        .function()
        .op(Op::NoLine, &[])
        .op(Op::Line, &[1, 8, 0])
        .op(Op::Function, &[90, 4, 0, 91])
        .op(Op::FunctionParameter, &[1, 5])
        .op(Op::FunctionEnd, &[]);
    let module = parse(&module.bytes());
    assert_eq!(module.section(Section::Globals).iter().count(), 1);
    let counts: Vec<_> = module.functions.iter().map(|f| f.body.iter().count()).collect();
    assert_eq!(counts, [4, 5]);
}

#[test]
fn modules_that_violate_the_layout_are_refused() {
    #[track_caller]
    fn assert_refused(module: &Builder, parts: &[&str]) {
        let error = Module::parse(module.bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidModule);
        let message = error.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    let late = Builder::new().op(Op::TypeVoid, &[1]).text(Op::Name, &[1], "void");
    assert_refused(&late, &["OpName", "follows types", "places names before"]);
    let between = Builder::new().function().op(Op::Capability, &[6]);
    assert_refused(&between, &["OpCapability", "follows types"]);
    assert_refused(&Builder::new().op(Op::FunctionEnd, &[]), &["OpFunctionEnd without OpFunction"]);
    let inside = Builder::new().op(Op::Function, &[90, 4, 0, 91]).function();
    assert_refused(&inside, &["inside another"]);
    assert_refused(&Builder::new().op(Op::TypeVoid, &[100]), &["OpTypeVoid", "100", "below 100"]);
    assert_refused(&Builder::new().op(Op::TypeVoid, &[]), &["OpTypeVoid", "no result id"]);
}

#[test]
fn randomly_changed_modules_do_not_panic() {
    let modules = ALL.map(|(_, bytes)| bytes);
    let changes = |random: &mut Random| 1 + random.below(3);
    test_changed(&modules, 400, changes, |bytes, _| exercise(&[bytes]));
}

/// Code that follows ids would otherwise go wrong, or never end.
#[test]
fn ids_that_are_defined_twice_or_by_themselves_are_refused_by_id() {
    let int = || Builder::new().op(Op::TypeInt, &[5, 32, 0]);
    for (module, part) in [
        (int().op(Op::TypeFloat, &[5, 32]), "OpTypeFloat of the SPIR-V module defines id 5"),
        (
            int().function().op(Op::Function, &[90, 3, 0, 91]).op(Op::FunctionEnd, &[]),
            "OpFunction of the SPIR-V module defines id 3",
        ),
        (
            int().function().op(Op::Function, &[90, 5, 0, 91]).op(Op::FunctionEnd, &[]),
            "defines id 5",
        ),
        (int().op(Op::TypeStruct, &[6, 5, 6]), "id 6, uses id 6"),
        (int().op(Op::TypeArray, &[6, 7, 5]).op(Op::TypeArray, &[7, 6, 5]), "id 6, uses id 7"),
        (int().op(Op::TypeStruct, &[6, 7]).op(Op::TypeStruct, &[7, 5]), "id 6, uses id 7"),
        (int().op(Op::Constant, &[7, 6, 1]).op(Op::TypeInt, &[7, 8, 0]), "id 6, uses id 7"),
        // The length of an array has the type of a pointer to the array.
        (
            int()
                .op(Op::Constant, &[8, 6, 4])
                .op(Op::TypeArray, &[7, 5, 6])
                .op(Op::TypePointer, &[8, 5, 7]),
            "id 6, uses id 8",
        ),
        // The type of a variable points to the variable.
        (
            int().op(Op::TypePointer, &[6, 5, 7]).op(Op::Variable, &[6, 7, 5]),
            "id 6, uses id 7 as a type",
        ),
        (int().op(Op::TypePointer, &[6, 5, 3]).function(), "id 6, uses id 3 as a type"),
        (
            int()
                .op(Op::Constant, &[5, 6, 1])
                .op(Op::Function, &[90, 3, 0, 91])
                .op(Op::FunctionParameter, &[6, 7])
                .op(Op::FunctionEnd, &[]),
            "id 7, uses id 6 as a type",
        ),
        (
            int().op(Op::Constant, &[5, 6, 1]).op(Op::TypeStruct, &[7, 5, 6]),
            "id 7, uses id 6 as a type",
        ),
        (
            int().op(Op::Constant, &[5, 6, 1]).op(Op::Constant, &[6, 7, 1]),
            "id 7, uses id 6 as a type",
        ),
        (int().op(Op::ConstantComposite, &[5, 6, 6]), "id 6, uses id 6"),
        (int().op(Op::SpecConstantOp, &[5, 6, Op::IAdd as u32, 6, 6]), "id 6, uses id 6"),
    ] {
        let error = Module::parse(module.bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidModule);
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    let deep = |depth: u32| {
        let bytes = (0..depth).fold(int(), |b, at| b.op(Op::TypeStruct, &[6 + at, 5 + at])).bytes();
        let mut words: Vec<u32> =
            bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect();
        words[3] = 1 << 20;
        Module::parse(words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>())
    };
    deep(255).unwrap();
    assert!(deep(100_000).unwrap_err().to_string().contains("deeper than 255 levels"));
    // Pointers come before their pointees, and literals are not ids.
    let list = int()
        .op(Op::TypeForwardPointer, &[7, 5])
        .op(Op::TypeStruct, &[6, 5, 7])
        .op(Op::TypePointer, &[7, 5, 6])
        .op(Op::SpecConstantOp, &[5, 8, Op::CompositeExtract as u32, 20, 9])
        .op(Op::Constant, &[5, 9, 1]);
    Module::parse(list.bytes()).unwrap();
}

#[test]
fn built_in_variables_are_found_through_group_decorations() {
    let [global, local] = [BuiltIn::GlobalInvocationId as u32, BuiltIn::LocalInvocationId as u32];
    let module = Builder::new()
        .decorate(10, Decoration::BuiltIn, global)
        .op(Op::DecorationGroup, &[10])
        .op(Op::GroupDecorate, &[10, 70, 71])
        .decorate(72, Decoration::BuiltIn, local)
        .decorate(73, Decoration::BuiltIn, local)
        .op(Op::Variable, &[5, 70, StorageClass::Input as u32])
        .op(Op::Variable, &[5, 71, StorageClass::Input as u32])
        .op(Op::Variable, &[5, 72, StorageClass::Input as u32])
        .op(Op::Variable, &[5, 73, StorageClass::Workgroup as u32]);
    let known: HashMap<_, _> = parse(&module.bytes()).built_ins().collect();
    assert_eq!([70, 71, 72].map(|id| known[&id]), [global, global, local]);
    assert!(!known.contains_key(&73), "other variables are not built-in, whatever is claimed");
}

/// Literals of a switch have 1 or 2 words, by the type of the selector.
#[test]
fn targets_of_switches_of_every_width_are_found() {
    for (name, expected) in [("switches", &[5, 5, 5][..]), ("operations", &[4, 3, 4, 3])] {
        let module = data(name);
        let definitions = module.definitions();
        let switches = all(&module, Op::Switch);
        let found: Vec<_> = switches.iter().map(|switch| ids(&module, switch).len()).collect();
        assert_eq!(found, expected, "{name}");
        for switch in &switches {
            for target in &ids(&module, switch)[1..] {
                assert_eq!(definitions.get(*target).unwrap().op(), Some(Op::Label), "{name}");
            }
        }
    }
}

#[test]
fn operands_of_specialized_operations_are_distinguished_from_literals() {
    let module = data("operations");
    let counts: Vec<_> =
        all(&module, Op::SpecConstantOp).iter().map(|op| ids(&module, op).len()).collect();
    // The indexes of an extraction and of a shuffle are literals.
    assert_eq!(counts, [4, 4, 5, 3, 4]);
}

/// An access chain without indexes, which rspirv's own parser takes for damaged.
#[test]
fn an_access_chain_without_indexes_is_understood() {
    let chain = [1, 2, Op::InBoundsPtrAccessChain as u32, 3, 4];
    let module = parse(&Builder::new().op(Op::SpecConstantOp, &chain).bytes());
    assert_eq!(ids(&module, &all(&module, Op::SpecConstantOp)[0]), [1, 2, 3, 4]);
}

#[test]
fn literals_of_memory_operands_and_extended_instructions_are_not_ids() {
    let module = Builder::new()
        .text(Op::ExtInstImport, &[9], "OpenCL.std")
        .text(Op::ExtInstImport, &[8], "Vendor.tomorrow")
        .text(Op::ExtInstImport, &[7], "NonSemantic.Anything")
        // Aligned 16, not aliased in the scope 6.
        .op(Op::Store, &[4, 5, 2 | 1 << 16, 16, 6])
        .op(Op::Store, &[4, 5, 1 << 30])
        // vloadn with n = 4.
        .op(Op::ExtInst, &[1, 2, 9, 171, 4, 5, 4])
        .op(Op::ExtInst, &[1, 20, 8, 0, 4])
        .op(Op::ExtInst, &[1, 21, 7, 12, 4, 5]);
    let module = parse(&module.bytes());
    let stores = all(&module, Op::Store);
    assert_eq!(ids(&module, &stores[0]), [4, 5, 6]);
    let extended = all(&module, Op::ExtInst);
    assert_eq!(ids(&module, &extended[0]), [1, 2, 9, 4, 5]);
    assert_eq!(ids(&module, &extended[2]), [1, 21, 7, 4, 5]);
    for unknown in [stores[1], extended[1]] {
        let error = grammar::ids(&unknown, &module.definitions(), |_, _| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn every_use_is_listed_and_every_id_defined() {
    for (name, bytes) in ALL {
        let module = parse(bytes);
        let definitions = module.definitions();
        let uses = Uses::of(&module, &definitions).unwrap();
        let mut listed = 0;
        for instruction in module.streams().flat_map(|stream| stream.iter()) {
            grammar::ids(&instruction, &definitions, |at, role| {
                let id = instruction.word(at).unwrap();
                assert!(definitions.get(id).is_some(), "{name}: {id} in {instruction:?}");
                if role == Role::Result {
                    assert_eq!(instruction.result(), Some(id));
                    return;
                }
                listed += 1;
                let mut users =
                    uses.of_id(id).iter().map(|use_| use_.instruction(&module).unwrap());
                assert!(users.any(|user| user.words() == instruction.words()), "{name}");
            })
            .unwrap();
        }
        let ids = 0..module.header.bound;
        assert_eq!(ids.map(|id| uses.of_id(id).len()).sum::<usize>(), listed, "{name}");
    }
}

#[test]
fn types_and_constants_are_declared_once() {
    let mut module = data("library");
    let before = module.clone();
    let mut interner = Interner::of(&module);
    let uint = interner.type_id(&mut module, Op::TypeInt, &[32, 0]).unwrap();
    interner.constant_id(&mut module, Op::Constant, uint, &[1]).unwrap();
    assert_eq!(module, before);
    let nine = interner.constant_id(&mut module, Op::Constant, uint, &[9]).unwrap();
    let class = StorageClass::Workgroup as u32;
    let pointer = interner.type_id(&mut module, Op::TypePointer, &[class, uint]).unwrap();
    assert_eq!((nine, pointer), (before.header.bound, before.header.bound + 1));
    assert_eq!(interner.constant_id(&mut module, Op::Constant, uint, &[9]).unwrap(), nine);
    assert_eq!(module.header.bound, before.header.bound + 2);
    assert_eq!(parse(&module.assemble()), module);
    assert_eq!(
        Interner::of(&module).type_id(&mut module, Op::TypePointer, &[class, uint]).unwrap(),
        pointer
    );
}

/// The first instruction alone does not describe such a constant or type completely.
#[test]
fn constants_and_types_that_take_several_instructions_are_refused() {
    for op in [
        Op::TypeStructContinuedINTEL,
        Op::ConstantCompositeContinuedINTEL,
        Op::SpecConstantCompositeContinuedINTEL,
    ] {
        let module = Builder::new().op(Op::TypeInt, &[1, 32, 0]).op(op, &[1, 1]);
        let module = parse(&module.bytes());
        let error = Uses::of(&module, &module.definitions())
            .err()
            .expect("a continued instruction is refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("65,532"), "{error}");
    }
}

/// A type with a decoration differs from the same type without one.
#[test]
fn decorated_types_are_not_shared() {
    let module = Builder::new()
        .decorate(2, Decoration::Alignment, 16)
        .op(Op::TypeInt, &[1, 32, 0])
        .op(Op::TypeStruct, &[2, 1]);
    let mut module = parse(&module.bytes());
    let mut interner = Interner::of(&module);
    assert_eq!(interner.type_id(&mut module, Op::TypeStruct, &[1]).unwrap(), 100);
    // The number of a member is not an id.
    let module = Builder::new()
        .op(Op::DecorationGroup, &[10])
        .op(Op::GroupMemberDecorate, &[10, 3, 1])
        .op(Op::TypeInt, &[1, 32, 0])
        .op(Op::TypeStruct, &[3, 1, 1]);
    let mut module = parse(&module.bytes());
    let mut interner = Interner::of(&module);
    assert_eq!(interner.type_id(&mut module, Op::TypeInt, &[32, 0]).unwrap(), 1);
    assert_eq!(interner.type_id(&mut module, Op::TypeStruct, &[1, 1]).unwrap(), 100);
}

#[test]
fn exhausted_ids_are_an_error() {
    let mut builder = Builder::new();
    builder.0[3] = u32::MAX;
    let mut module = parse(&builder.bytes());
    assert_eq!(module.fresh_id().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn dead_code_is_dropped_with_its_names_and_decorations() {
    let module = Builder::new()
        .kernel("k")
        .text(Op::String, &[20], "kernel_arg_type.k.float,")
        .text(Op::String, &[21], "dead.cl")
        .text(Op::Name, &[4], "dead")
        .text(Op::Name, &[3], "k")
        .decorate(30, Decoration::Alignment, 4)
        .decorate(4, Decoration::Alignment, 8)
        .op(Op::DecorationGroup, &[30])
        .op(Op::GroupDecorate, &[30, 2, 5])
        .op(Op::TypeVoid, &[90])
        .op(Op::TypeFloat, &[1, 32])
        .op(Op::TypeFunction, &[91, 90, 1])
        .op(Op::TypeInt, &[6, 32, 0])
        .op(Op::Constant, &[6, 7, 1])
        .function()
        .op(Op::Line, &[21, 1, 1])
        .op(Op::Function, &[90, 4, 0, 91])
        .op(Op::FunctionParameter, &[1, 5])
        .op(Op::FunctionEnd, &[]);
    let mut module = parse(&module.bytes());
    module.prune().unwrap();
    let expected = Builder::new()
        .kernel("k")
        .text(Op::String, &[20], "kernel_arg_type.k.float,")
        .text(Op::Name, &[3], "k")
        .decorate(30, Decoration::Alignment, 4)
        .op(Op::DecorationGroup, &[30])
        .op(Op::GroupDecorate, &[30, 2])
        .op(Op::TypeVoid, &[90])
        .op(Op::TypeFloat, &[1, 32])
        .op(Op::TypeFunction, &[91, 90, 1])
        .function();
    assert_eq!(module, parse(&expected.bytes()));
}

#[test]
fn functions_are_extracted_with_references_types_and_constants() {
    let module = Builder::new()
        .kernel("k")
        .text(Op::String, &[20], "kernel_arg_type.k.float,")
        .text(Op::String, &[21], "other.cl")
        .text(Op::Name, &[4], "wanted")
        .text(Op::Name, &[3], "k")
        .decorate(5, Decoration::Alignment, 8)
        .decorate(2, Decoration::Alignment, 4)
        .op(Op::TypeVoid, &[90])
        .op(Op::TypeFloat, &[1, 32])
        .op(Op::TypeFunction, &[91, 90, 1])
        .op(Op::TypeInt, &[6, 32, 0])
        .op(Op::Constant, &[6, 7, 1])
        .op(Op::TypePointer, &[8, 5, 6])
        .op(Op::Variable, &[8, 9, 5])
        .op(Op::Line, &[21, 1, 1])
        .function()
        .op(Op::Function, &[90, 4, 0, 91])
        .op(Op::FunctionParameter, &[1, 5])
        .op(Op::FunctionEnd, &[]);
    let module = parse(&module.bytes());
    let extract = References::of(&module).unwrap().extract(4).unwrap();
    assert_eq!(extract.header, module.header, "ids are unchanged");
    let names = |section| extract.section(section).iter().map(|i| i.name()).collect::<Vec<_>>();
    assert!(names(Section::EntryPoints).is_empty());
    assert_eq!(names(Section::Globals).len(), 6, "all but the variable: {extract:?}");
    let targets = |section| extract.section(section).iter().filter_map(|i| i.word(0));
    assert_eq!(targets(Section::Names).collect::<Vec<_>>(), [4]);
    assert_eq!(targets(Section::Annotations).collect::<Vec<_>>(), [5]);
    assert_eq!(targets(Section::Sources).collect::<Vec<_>>(), [20], "strings without references");
    assert_eq!(extract.functions, &module.functions[1..]);
}

#[test]
fn pruning_keeps_modules_without_dead_code() {
    for name in ["saxpy", "application", "library_O0"] {
        let mut module = data(name);
        let functions = module.functions.len();
        module.prune().unwrap();
        assert_eq!(module.functions.len(), functions, "{name}");
        let once = module.clone();
        module.prune().unwrap();
        assert_eq!(module, once, "{name}");
    }
}

#[derive(Clone, Debug)]
enum Damage {
    /// An operand of an instruction becomes another word.
    Operand(usize, usize, u32),
    Opcode(usize, u16),
    Remove(usize),
    /// A copy of an instruction is inserted before another.
    Copy(usize, usize),
    /// A byte changes, anywhere in the module.
    Byte(usize, u8),
    Truncate(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = || 0..2000_usize;
    let word = prop_oneof![1 => Just(0), 1 => Just(u32::MAX), 8 => 0..70_u32, 1 => any::<u32>()];
    prop_oneof![
        12 => (at(), at(), word).prop_map(|(at, operand, word)| Damage::Operand(at, operand, word)),
        2 => (at(), 0..400_u16).prop_map(|(at, opcode)| Damage::Opcode(at, opcode)),
        4 => at().prop_map(Damage::Remove),
        4 => (at(), at()).prop_map(|(from, to)| Damage::Copy(from, to)),
        1 => (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Byte(at, byte)),
        1 => at().prop_map(Damage::Truncate),
    ]
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let (header, words) = bytes.as_chunks::<4>().0.split_at(5);
        let mut instructions: Vec<Vec<u8>> =
            Instructions::of(words).map(|i| i.words().as_flattened().to_vec()).collect();
        let count = instructions.len();
        if count == 0 {
            return;
        }
        match *self {
            Self::Operand(at, operand, word) => {
                if let [_, operands @ ..] = instructions[at % count].as_chunks_mut::<4>().0
                    && !operands.is_empty()
                {
                    let operand = operand % operands.len();
                    operands[operand] = word.to_le_bytes();
                }
            }
            Self::Opcode(at, opcode) => {
                instructions[at % count][..2].copy_from_slice(&opcode.to_le_bytes());
            }
            Self::Remove(at) => drop(instructions.remove(at % count)),
            Self::Copy(from, to) => {
                let copy = instructions[from % count].clone();
                instructions.insert(to % count, copy);
            }
            Self::Byte(at, byte) => {
                let at = at % bytes.len();
                bytes[at] = byte;
                return;
            }
            Self::Truncate(at) => return bytes.truncate(at.max(32)),
        }
        *bytes = [header.as_flattened().to_vec(), instructions.concat()].concat();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_modules_do_not_panic(
        module in 0..ALL.len(),
        damages in prop::collection::vec(damage(), 1..6),
    ) {
        let mut bytes = ALL[module].1.to_vec();
        for damage in &damages {
            // Shorter modules have too little left to damage.
            if bytes.len() > 40 {
                damage.apply(&mut bytes);
            }
        }
        exercise(&[&bytes, &bytes]);
    }

    /// Combines opcodes that refer to one another, with so few ids that many references find a definition.
    #[test]
    fn random_instructions_do_not_panic(
        globals in instructions(&GLOBALS, 30),
        body in instructions(&BODY, 20),
    ) {
        let mut module = Builder::new()
            .text(Op::ExtInstImport, &[9], "OpenCL.std")
            .op(Op::MemoryModel, &[2, 2])
            .kernel("k")
            .text(Op::Decorate, &[4, Decoration::LinkageAttributes as u32], "symbol\0\0\0\0\0");
        for (op, operands) in globals {
            module = module.op(op, &operands);
        }
        module = module.op(Op::Function, &[1, 3, 0, 2]);
        for (op, operands) in body {
            module = module.op(op, &operands);
        }
        let bytes = module.op(Op::FunctionEnd, &[]).bytes();
        exercise(&[&bytes, &bytes]);
    }
}

/// Opcodes of globals, each with a number of operands that it has or can have.
const GLOBALS: [(Op, usize); 19] = [
    (Op::TypeVoid, 1),
    (Op::TypeInt, 3),
    (Op::TypeFloat, 2),
    (Op::TypeVector, 3),
    (Op::TypeArray, 3),
    (Op::TypeStruct, 3),
    (Op::TypePointer, 3),
    (Op::TypeForwardPointer, 2),
    (Op::TypeFunction, 3),
    (Op::Constant, 3),
    (Op::ConstantComposite, 4),
    (Op::SpecConstantOp, 5),
    (Op::Variable, 3),
    (Op::Variable, 4),
    (Op::Undef, 2),
    (Op::Line, 3),
    (Op::ExtInst, 4),
    (Op::ExtInst, 5),
    (Op::TypePointer, 3),
];

const BODY: [(Op, usize); 9] = [
    (Op::FunctionParameter, 2),
    (Op::Label, 1),
    (Op::Load, 3),
    (Op::Store, 2),
    (Op::Switch, 4),
    (Op::FunctionCall, 5),
    (Op::Phi, 4),
    (Op::ExtInst, 5),
    (Op::Line, 3),
];

fn instructions(
    ops: &'static [(Op, usize)],
    count: usize,
) -> impl Strategy<Value = Vec<(Op, Vec<u32>)>> {
    let instruction = prop::sample::select(ops)
        .prop_flat_map(|(op, count)| (Just(op), prop::collection::vec(0..14_u32, count)));
    prop::collection::vec(instruction, 0..count)
}
