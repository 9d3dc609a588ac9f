//! Checks that modules agree on the types of shared symbols, as far as they state them.
//!
//! Not all drivers compare these types when they link. A call whose parameters differ from those of the
//! function then computes something else, or ends the process. The types are therefore compared before
//! modules are linked, by a driver or by Kiln. Only definite mismatches are rejected:
//!
//! * Many compilers infer what pointers point to. Pointers match if they have the same storage class. The
//!   members of structs are compared if the structs are passed by value or have the same name.
//! * SPIR-V does not keep the signs of integers.
//! * An array of unknown length matches one of any length, and an unknown struct matches any struct.

use std::collections::{HashMap, HashSet};

use rspirv::spirv::{Decoration, FunctionParameterAttribute, LinkageType, Op};

use super::super::intern::source_name;
use super::super::module::{Linkage, Section};
use super::super::words::Instruction;
use super::types::in_words;
use super::{Input, Source, merge_error};
use crate::error::{Error, Result};

/// Maximum nesting depth of compared types. Types that are nested deeper count as equal.
const MAX_DEPTH: usize = 64;

/// Checks that each import has the type of the export that it stands for.
///
/// # Errors
///
/// [`BuildFailed`](crate::ErrorKind::BuildFailed), naming both modules, the symbol and both types.
pub fn check_signatures(inputs: &[Input<'_>]) -> Result<()> {
    let sources: Vec<_> = inputs.iter().map(|&input| Source::new(input)).collect();
    check(&sources)
}

/// Like [`check_signatures`], for indexed inputs.
pub(super) fn check(sources: &[Source<'_>]) -> Result<()> {
    let modules: Vec<_> = sources.iter().map(Signatures::of).collect();
    let mut exports: HashMap<&str, Vec<(&Signatures<'_, '_>, Linkage<'_>)>> = HashMap::new();
    for module in &modules {
        for &export in &module.source.linkages {
            if export.kind != LinkageType::Import {
                exports.entry(export.name).or_default().push((module, export));
            }
        }
    }
    for module in &modules {
        for &import in &module.source.linkages {
            if import.kind != LinkageType::Import {
                continue;
            }
            for &(exporter, export) in exports.get(import.name).into_iter().flatten() {
                let mut comparison =
                    Comparison { modules: [module, exporter], seen: HashSet::new() };
                if !comparison.symbols([import.target, export.target]) {
                    return Err(mismatch([(module, import), (exporter, export)]));
                }
            }
        }
    }
    Ok(())
}

fn mismatch([import, export]: [(&Signatures<'_, '_>, Linkage<'_>); 2]) -> Error {
    let name = import.1.name;
    let [imported, exported] =
        [import, export].map(|(module, symbol)| in_words(module.source, symbol.target));
    let hint = if imported == exported {
        "; these differ in the members of a struct, or in the parameters passed by value"
    } else {
        ""
    };
    merge_error(format!(
        "{} imports `{name}` as {imported}, but {} exports it as {exported}{hint}; make the \
         declaration match the definition",
        import.0.source.name, export.0.source.name
    ))
}

/// Module with the parameters that its functions take by value.
struct Signatures<'a, 'm> {
    source: &'a Source<'m>,
    /// Parameters that are pointers only in form: the struct itself is passed.
    by_value: HashSet<u32>,
}

impl<'a, 'm> Signatures<'a, 'm> {
    fn of(source: &'a Source<'m>) -> Self {
        let mut by_value = HashSet::new();
        for instruction in source.module.section(Section::Annotations).iter() {
            let word = |index| instruction.word(index);
            match instruction.op() {
                Some(Op::Decorate)
                    if word(1) == Some(Decoration::FuncParamAttr as u32)
                        && word(2) == Some(FunctionParameterAttribute::ByVal as u32) =>
                {
                    by_value.extend(word(0));
                }
                Some(Op::GroupDecorate) if word(0).is_some_and(|id| by_value.contains(&id)) => {
                    by_value.extend(instruction.words_from(1));
                }
                _ => {}
            }
        }
        Self { source, by_value }
    }

    fn get(&self, id: u32) -> Option<Instruction<'m>> {
        self.source.definitions.get(id)
    }

    /// Returns, for each parameter of a function, whether it is passed by value.
    fn passes_by_value(&self, function: u32) -> Vec<bool> {
        let module = self.source.module;
        let location = self.source.definitions.location(function);
        let Some(at) = location.and_then(|location| location.function(module)) else {
            return Vec::new();
        };
        let instructions = module.functions[at].body.iter();
        let header = instructions.take_while(|i| i.op() != Some(Op::Label));
        let parameters = header.filter(|i| i.op() == Some(Op::FunctionParameter));
        let ids = parameters.filter_map(|parameter| parameter.result());
        ids.map(|id| self.by_value.contains(&id)).collect()
    }

    /// Returns the name of a struct in the source.
    fn struct_name(&self, id: u32) -> Option<&'m str> {
        self.source.names.get(&id).map(|name| source_name(name))
    }

    fn is_unknown_struct(&self, ty: &Instruction<'_>) -> bool {
        ty.op() == Some(Op::TypeOpaque) || (ty.op() == Some(Op::TypeStruct) && ty.word(1).is_none())
    }

    /// Returns the length of an array, if it is known.
    fn length(&self, array: &Instruction<'_>) -> Option<Vec<u32>> {
        let length = self.get(array.word(2)?)?;
        let mut words: Vec<_> = length.words_from(2).collect();
        // Trailing zero words are removed, so that lengths of 32 and of 64 bits are comparable.
        while words.last() == Some(&0) {
            words.pop();
        }
        (length.op() == Some(Op::Constant) && !words.is_empty()).then_some(words)
    }
}

/// Comparison of the types of two modules, side by side.
struct Comparison<'a, 'm> {
    modules: [&'a Signatures<'a, 'm>; 2],
    /// Pairs of structs that have been compared, or are being compared.
    seen: HashSet<[u32; 2]>,
}

impl<'m> Comparison<'_, 'm> {
    /// Returns the definitions of two ids, if both modules have them.
    fn get(&self, ids: [u32; 2]) -> Option<[Instruction<'m>; 2]> {
        let [one, other] = self.modules;
        Some([one.get(ids[0])?, other.get(ids[1])?])
    }

    fn symbols(&mut self, ids: [u32; 2]) -> bool {
        let Some(pair) = self.get(ids) else { return true };
        let is_variable = |symbol: Instruction<'_>| {
            matches!(symbol.op(), Some(Op::Variable | Op::UntypedVariableKHR))
        };
        match pair.map(is_variable) {
            [true, true] => {
                let pointers = words(pair, 0);
                // A variable's declaration states its type exactly, unlike the types of other pointers.
                pointers.is_none_or(|types| {
                    self.types(types, 0)
                        && self.pointees(types).is_none_or(|pointees| self.types(pointees, 0))
                })
            }
            [false, false] => words(pair, 3).is_none_or(|types| self.functions(ids, types)),
            _ => false,
        }
    }

    fn functions(&mut self, ids: [u32; 2], types: [u32; 2]) -> bool {
        let Some([one, other]) = self.get(types) else { return true };
        if one.words().len() != other.words().len() {
            return false;
        }
        let [imported, exported] = self.modules;
        let by_value = [imported.passes_by_value(ids[0]), exported.passes_by_value(ids[1])];
        let types = one.words_from(1).zip(other.words_from(1));
        types.enumerate().all(|(at, (one, other))| {
            // The first type is the return type.
            let is_by_value = |parameters: &Vec<bool>| {
                at.checked_sub(1).and_then(|at| parameters.get(at)).is_some_and(|is| *is)
            };
            let types = [one, other];
            match by_value.each_ref().map(is_by_value) {
                [true, true] => self.pointees(types).is_none_or(|structs| self.types(structs, 0)),
                [false, false] => self.types(types, 0),
                _ => false,
            }
        })
    }

    /// Returns the types that two typed pointers point to.
    fn pointees(&self, pointers: [u32; 2]) -> Option<[u32; 2]> {
        words(self.get(pointers)?, 2)
    }

    fn types(&mut self, ids: [u32; 2], depth: usize) -> bool {
        let Some(pair @ [one, other]) = self.get(ids) else { return true };
        if depth > MAX_DEPTH {
            return true;
        }
        let ops = pair.map(|ty| ty.op());
        let is_pointer = |op| matches!(op, Some(Op::TypePointer | Op::TypeUntypedPointerKHR));
        let is_array = |op| matches!(op, Some(Op::TypeArray | Op::TypeRuntimeArray));
        match ops {
            _ if ops.into_iter().all(is_pointer) => {
                one.word(1) == other.word(1) && self.named_structs(ids, depth)
            }
            _ if ops.into_iter().all(is_array) => {
                let [imported, exported] = self.modules;
                let lengths = [imported.length(&one), exported.length(&other)];
                let is_fitting =
                    lengths[0].is_none() || lengths[1].is_none() || lengths[0] == lengths[1];
                is_fitting && self.parts(pair, 1, depth)
            }
            [Some(Op::TypeStruct | Op::TypeOpaque), Some(Op::TypeStruct | Op::TypeOpaque)] => {
                self.structs(ids, pair, depth)
            }
            [Some(Op::TypeVector), Some(Op::TypeVector)] => {
                one.word(2) == other.word(2) && self.parts(pair, 1, depth)
            }
            [Some(Op::TypeInt), Some(Op::TypeInt)] => one.word(1) == other.word(1),
            [Some(Op::TypeFloat), Some(Op::TypeFloat)] => {
                one.operands()[1..] == other.operands()[1..]
            }
            [Some(Op::TypeImage), Some(Op::TypeImage)] => one.words_from(2).eq(other.words_from(2)),
            [one, other] => one == other,
        }
    }

    /// Compares the types at one operand of two types.
    fn parts(&mut self, pair: [Instruction<'_>; 2], index: usize, depth: usize) -> bool {
        words(pair, index).is_none_or(|parts| self.types(parts, depth + 1))
    }

    /// Compares the pointees of two pointers, if they have the same name.
    fn named_structs(&mut self, pointers: [u32; 2], depth: usize) -> bool {
        let Some(structs) = self.pointees(pointers) else { return true };
        let [imported, exported] = self.modules;
        let name = imported.struct_name(structs[0]);
        name.is_none() || name != exported.struct_name(structs[1]) || self.types(structs, depth + 1)
    }

    fn structs(&mut self, ids: [u32; 2], pair: [Instruction<'_>; 2], depth: usize) -> bool {
        let [one, other] = pair;
        let [imported, exported] = self.modules;
        if imported.is_unknown_struct(&one)
            || exported.is_unknown_struct(&other)
            || !self.seen.insert(ids)
        {
            return true;
        }
        one.words().len() == other.words().len()
            && one
                .words_from(1)
                .zip(other.words_from(1))
                .all(|(one, other)| self.types([one, other], depth + 1))
    }
}

/// Returns the operands of two instructions at the same index.
fn words(pair: [Instruction<'_>; 2], index: usize) -> Option<[u32; 2]> {
    Some([pair[0].word(index)?, pair[1].word(index)?])
}
