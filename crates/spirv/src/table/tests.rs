//! Tests of the table against the grammar of the specification and the code of the test data.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;

use proptest::prelude::*;
use rspirv::grammar::{INSTRUCTION_TABLE, LogicalOperand, OperandKind, OperandQuantifier};
use rspirv::spirv::Op;

use super::*;
use crate::grammar::{Role, ids};
use crate::index::Definitions;
use crate::instructions::Types::Of;
use crate::instructions::Value::{Any, Literal};
use crate::instructions::{Effect, Meaning};
use crate::words::{Instruction, Instructions, Word};
use crate::{Module, Words};

/// Opcodes of the test data without a row: transformations carry them, and analyses refuse them.
const CARRIED: &[Op] = &[Op::ConstantFunctionPointerINTEL, Op::FunctionPointerCallINTEL];

fn rows() -> impl Iterator<Item = (Op, &'static Row)> {
    opcodes::ROWS.iter().flat_map(|(ops, row)| ops.iter().map(move |&op| (op, row)))
}

/// Returns whether operands of the grammar have the kinds of a format.
fn agree(given: &[&LogicalOperand], kinds: &[&str]) -> bool {
    use OperandKind as K;
    use OperandQuantifier::{One, ZeroOrMore, ZeroOrOne};
    let Some((first, rest)) = given.split_first() else { return kinds.is_empty() };
    let is_id = matches!(first.kind, K::IdRef | K::IdScope | K::IdMemorySemantics);
    // The parameters of these are not in the grammar.
    let has_parameters = matches!(first.kind, K::Decoration | K::ExecutionMode | K::LoopControl);
    let is_called =
        matches!(first.kind, K::LiteralExtInstInteger | K::LiteralSpecConstantOpInteger);
    let (expected, rest): (&[&str], _) = match (first.kind, first.quantifier) {
        (K::LiteralString, One) => (&["Text"], rest),
        (K::LiteralString, ZeroOrOne) => (&["MaybeText"], rest),
        (K::LiteralContextDependentNumber, One) => (&["Bits"], rest),
        (K::MemoryAccess, ZeroOrOne) => (&["Access"], rest),
        (K::ImageOperands, One) => (&["Image"], rest),
        (K::ImageOperands, ZeroOrOne) => (&["MaybeImage"], rest),
        (K::PairIdRefIdRef, ZeroOrMore) => (&["Pairs"], rest),
        (K::PairIdRefLiteralInteger, ZeroOrMore) => (&["Members"], rest),
        (K::PairLiteralIntegerIdRef, ZeroOrMore) => (&["Cases"], rest),
        (_, One) if is_called => return kinds == ["Number", "Arguments"],
        (_, One) if has_parameters => {
            return kinds == ["Number", "Parameters"] || kinds == ["Number", "Ids"];
        }
        (_, One) if is_id => (&["Id"], rest),
        (_, ZeroOrOne) if is_id => (&["MaybeId"], rest),
        (_, ZeroOrMore) if is_id => (&["Ids"], rest),
        (_, One) => (&["Number"], rest),
        (_, ZeroOrOne) => (&["MaybeNumber"], rest),
        (K::LiteralInteger, ZeroOrMore) => (&["Numbers"], rest),
        _ => return false,
    };
    kinds.starts_with(expected) && agree(rest, &kinds[expected.len()..])
}

#[test]
fn each_format_agrees_with_the_grammar() {
    let known: BTreeMap<_, _> = INSTRUCTION_TABLE.iter().map(|i| (i.opcode, i.operands)).collect();
    for (op, row) in rows() {
        let operands = known[&op].iter().filter(|operand| {
            !matches!(operand.kind, OperandKind::IdResultType | OperandKind::IdResult)
        });
        let operands: Vec<_> = operands.collect();
        let kinds: Vec<_> = row.format.operands().iter().map(|(_, kind)| *kind).collect();
        assert!(agree(&operands, &kinds), "{op:?}: {kinds:?}");
    }
}

#[test]
fn each_instruction_is_in_the_table_once_at_most() {
    let mut seen = HashSet::new();
    assert!(rows().all(|(op, _)| seen.insert(op)));
    assert!(rows().all(|(op, row)| Row::of(op) == Some(row)));
}

/// The grammar of the specification says how many operands an instruction has, and which of them are values.
#[test]
fn types_are_listed_for_each_operand_of_the_grammar() {
    for known in INSTRUCTION_TABLE.iter() {
        let Some(meaning) = Meaning::of(known.opcode) else { continue };
        let Of(result, listed) = meaning.types else { continue };
        let (results, operands): (Vec<_>, Vec<_>) = known.operands.iter().partition(|operand| {
            matches!(operand.kind, OperandKind::IdResultType | OperandKind::IdResult)
        });
        let (op, count) = (known.opcode, operands.len());
        assert_eq!(count, listed.len(), "{op:?}");
        assert!(!results.is_empty() || result == Any, "{op:?} has no result");
        for (operand, value) in operands.iter().zip(listed) {
            let is_id = matches!(operand.kind, OperandKind::IdRef | OperandKind::IdScope);
            assert_eq!(is_id, *value != Literal, "{op:?}");
            assert_eq!(operand.quantifier, OperandQuantifier::One, "{op:?}");
        }
    }
}

#[test]
fn atomic_instructions_are_those_that_are_named_so() {
    for known in INSTRUCTION_TABLE.iter() {
        let op = known.opcode;
        let is_named = format!("{op:?}").starts_with("Atomic");
        assert_eq!(is_atomic(op), is_named, "{op:?}");
    }
}

/// A calculation has a result, and neither pointers nor labels among the operands that are listed.
#[test]
fn calculations_give_results() {
    for known in INSTRUCTION_TABLE.iter() {
        let Some(meaning) = Meaning::of(known.opcode) else { continue };
        let mut kinds = known.operands.iter().map(|operand| operand.kind);
        let is_calculation = meaning.effect == Effect::Calculation;
        let gives = kinds.any(|kind| kind == OperandKind::IdResult);
        assert!(gives || !is_calculation && !meaning.is_uniform, "{:?}", known.opcode);
        assert!(is_calculation || !meaning.has_range, "{:?}", known.opcode);
    }
}

/// Modules of the test data of all crates.
fn test_data() -> Vec<Vec<u8>> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pending =
        vec![root.join("tests/data"), root.join("benches/gpu"), root.join("examples")];
    let mut found = Vec::new();
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "spv") {
                found.push(std::fs::read(path).unwrap());
            }
        }
    }
    assert!(found.len() > 20);
    found
}

#[test]
fn each_opcode_of_the_test_data_has_a_row_or_is_carried() {
    let mut unknown = BTreeSet::new();
    for words in test_data().into_iter().filter_map(|bytes| Words::new(bytes).ok()) {
        let without = words.instructions().filter(|i| i.row().is_none());
        unknown.extend(without.map(|i| i.name()));
    }
    let carried: BTreeSet<_> = CARRIED.iter().map(|op| format!("Op{op:?}")).collect();
    assert_eq!(unknown, carried);
    assert!(CARRIED.iter().all(|op| Row::of(*op).is_none()));
}

/// Returns the ids by the grammar, without the result and its type; `None` if they are not known.
fn ids_by_grammar(definitions: &Definitions<'_>, i: &Instruction<'_>) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    let known = ids(i, definitions, |at, role| {
        if role == Role::Operand {
            all.extend(i.word(at));
        }
    });
    known.ok().map(|()| all)
}

#[test]
fn views_have_the_ids_of_the_grammar() {
    let mut compared = 0;
    for module in test_data().iter().filter_map(|bytes| Module::parse(&**bytes).ok()) {
        let definitions = module.definitions();
        for i in module.streams().flat_map(|stream| stream.iter()) {
            let Some(by_grammar) = ids_by_grammar(&definitions, &i) else { continue };
            let view = i.view();
            // Some of the operands of these are ids, and others literals.
            let is_open =
                matches!(view, View::Unknown | View::ExtInst { .. } | View::SpecConstantOp { .. });
            // The view does not know how wide the literals are.
            let is_wide = matches!(view, View::Switch { .. });
            if !is_open && !is_wide {
                assert_eq!(view.ids(), by_grammar, "{}", i.name());
                compared += 1;
            }
            assert!(i.row().is_none() || view != View::Unknown, "{}", i.name());
        }
    }
    assert!(compared > 10_000, "{compared}");
}

/// Returns an instruction of the given words.
fn instruction(op: u16, operands: &[u32]) -> Vec<Word> {
    let first = (operands.len() as u32 + 1) << 16 | u32::from(op);
    [first].iter().chain(operands).map(|word| word.to_le_bytes()).collect()
}

proptest! {
    /// Views of damaged instructions are unknown, or have the ids that the grammar finds.
    #[test]
    fn reading_is_total(at in 0..400_usize, operands in prop::collection::vec(0..40_u32, 0..12)) {
        let all: Vec<_> = rows().collect();
        let (op, _) = all[at % all.len()];
        let words = instruction(op as u16, &operands);
        let i = Instructions::of(&words).next().unwrap();
        let module = Module::parse(&*test_data_header()).unwrap();
        let view = i.view();
        let is_open = matches!(
            view,
            View::Unknown | View::ExtInst { .. } | View::SpecConstantOp { .. } | View::Switch { .. }
        );
        if let Some(by_grammar) = ids_by_grammar(&module.definitions(), &i).filter(|_| !is_open) {
            prop_assert_eq!(view.ids(), by_grammar, "{}", i.name());
        }
    }
}

/// Returns a module that has only a header.
fn test_data_header() -> Vec<u8> {
    let words = [rspirv::spirv::MAGIC_NUMBER, 0x0001_0000, 0, 64, 0];
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// Writes the opcodes of each value of a column but the `usual` one, which all other opcodes have.
fn column(text: &mut String, name: &str, usual: &str, value: impl Fn(&Row) -> String) {
    let mut values = BTreeMap::<_, Vec<_>>::new();
    rows().for_each(|(op, row)| values.entry(value(row)).or_default().push(format!("{op:?}")));
    writeln!(text, "[{name}]").unwrap();
    for (value, mut ops) in values.into_iter().filter(|(value, _)| value != usual) {
        ops.sort();
        let mut line = format!("{value}:");
        for op in ops {
            if line.len() + op.len() >= 120 {
                writeln!(text, "{line}").unwrap();
                line = "   ".to_owned();
            }
            write!(line, " {op}").unwrap();
        }
        writeln!(text, "{line}").unwrap();
    }
    writeln!(text).unwrap();
}

/// The columns, as `golden.txt` lists them, so that each change shows.
#[test]
fn columns_are_those_of_the_golden_list() {
    let mut text = String::new();
    column(&mut text, "format", "", |row| format!("{:?}", row.format));
    column(&mut text, "class", "Other", |row| format!("{:?}", row.class));
    column(&mut text, "address", "No", |row| format!("{:?}", row.address));
    column(&mut text, "evaluation", "No", |row| format!("{:?}", row.evaluation));
    column(&mut text, "global", "Refused", |row| format!("{:?}", row.global));
    let meaning = |value: fn(Meaning) -> String| {
        move |row: &Row| row.meaning.map_or_else(|| "refused".to_owned(), value)
    };
    let effect = meaning(|meaning| format!("{:?}", meaning.effect));
    column(&mut text, "effect", "refused", effect);
    let uniform = |row: &Row| row.meaning.is_some_and(|meaning| meaning.is_uniform).to_string();
    column(&mut text, "uniform", "false", uniform);
    let range = |row: &Row| row.meaning.is_some_and(|meaning| meaning.has_range).to_string();
    column(&mut text, "range", "false", range);
    column(&mut text, "types", "refused", meaning(|meaning| format!("{:?}", meaning.types)));
    assert!(text == include_str!("golden.txt"), "the columns are now:\n{text}");
}
