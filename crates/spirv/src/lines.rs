//! Lines of the source in a module, and the comparison of modules without regard to lines.

use std::collections::{BTreeSet, HashMap, HashSet};

use rspirv::spirv::Op;

use super::grammar::ids;
use super::index::Definitions;
use super::module::{Module, Section};
use super::stream::{Stream, string_words};
use super::words::Instruction;

/// Names of the files of a text that a compiler reads from its standard input.
const STANDARD_INPUT: [&str; 2] = ["-", "<stdin>"];

/// Beginnings of the names of extended instruction sets that describe a program to debuggers.
const DEBUG_SETS: [&str; 3] = ["OpenCL.DebugInfo.", "NonSemantic.Shader.DebugInfo.", "SPIRV.debug"];

/// Removes the instructions that describe the program to debuggers. The lines of the source stay.
pub fn remove_debug_info(module: &mut Module) {
    let is_debug_set = |i: &Instruction<'_>| {
        i.string(1).is_some_and(|name| DEBUG_SETS.iter().any(|known| name.starts_with(known)))
    };
    let imports = module.section(Section::ExtInstImports).iter().filter(is_debug_set);
    let sets: HashSet<_> = imports.filter_map(|import| import.word(0)).collect();
    if sets.is_empty() {
        return;
    }
    let is_kept = |i: &Instruction<'_>| {
        i.op() != Some(Op::ExtInst) || i.word(2).is_none_or(|set| !sets.contains(&set))
    };
    module.section_mut(Section::ExtInstImports).retain(|i| !is_debug_set(i));
    module.section_mut(Section::ModuleProcessed).retain(|_| false);
    module.section_mut(Section::Globals).retain(is_kept);
    module.tail.retain(is_kept);
    for function in &mut module.functions {
        function.body.retain(is_kept);
    }
}

/// Sets the name of the file in the lines of a text that a compiler read from its standard input.
pub fn name_standard_input(module: &mut Module, name: &str) {
    let mut named = Stream::default();
    for i in module.section(Section::Sources).iter() {
        let file = i.string(1).map(file_name);
        match (i.op(), i.word(0)) {
            (Some(Op::String), Some(id))
                if file.is_some_and(|file| STANDARD_INPUT.contains(&file)) =>
            {
                named.push(Op::String, [id].into_iter().chain(string_words(name)));
            }
            _ => named.push_instruction(&i),
        }
    }
    *module.section_mut(Section::Sources) = named;
}

/// Returns the last component of a path.
#[must_use]
pub fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// Returns whether two modules have the same kernels and functions, whose code is the same except for its lines,
/// the names of values, and the numbers of ids. Returns `false` if a module has unknown instructions.
#[must_use]
pub fn is_same_code(one: &Module, other: &Module) -> bool {
    let sections = [Section::MemoryModel, Section::EntryPoints, Section::ExecutionModes];
    let sections = sections.map(|at| (one.section(at), other.section(at)));
    let functions = one.functions.iter().zip(&other.functions);
    let functions = functions.map(|(one, other)| (&one.body, &other.body));
    let mut pairs = Pairs {
        sides: [one.definitions(), other.definitions()],
        counterparts: [HashMap::new(), HashMap::new()],
        pending: Vec::new(),
    };
    one.functions.len() == other.functions.len()
        && sections.into_iter().chain(functions).all(|(one, other)| pairs.unite(one, other))
        && pairs.unite_definitions()
        && pairs.have_same_annotations()
}

/// Ids of two modules that stand for the same things.
struct Pairs<'m> {
    sides: [Definitions<'m>; 2],
    /// Ids of the second module by those of the first one, and the other way round.
    counterparts: [HashMap<u32, u32>; 2],
    /// Pairs whose definitions are not compared yet.
    pending: Vec<(u32, u32)>,
}

impl Pairs<'_> {
    /// Compares instructions one by one. Returns `false` if they differ.
    fn unite(&mut self, one: &Stream, other: &Stream) -> bool {
        let is_code = |i: &Instruction<'_>| !matches!(i.op(), Some(Op::Line | Op::NoLine));
        let (mut one, mut other) = (one.iter().filter(is_code), other.iter().filter(is_code));
        loop {
            match (one.next(), other.next()) {
                (None, None) => return true,
                (Some(one), Some(other)) if self.unite_instructions(&one, &other) => {}
                _ => return false,
            }
        }
    }

    fn unite_instructions(&mut self, one: &Instruction<'_>, other: &Instruction<'_>) -> bool {
        let length = one.operands().len();
        if one.opcode() != other.opcode() || length != other.operands().len() {
            return false;
        }
        let [own, others] = [(one, &self.sides[0]), (other, &self.sides[1])].map(|(i, side)| {
            let mut places = BTreeSet::new();
            ids(i, side, |at, _| _ = places.insert(at)).ok().map(|()| places)
        });
        let Some(places) = own.filter(|own| Some(own) == others.as_ref()) else { return false };
        (0..length).all(|at| match (one.word(at), other.word(at)) {
            (Some(one), Some(other)) if places.contains(&at) => self.pair(one, other),
            (one, other) => one == other,
        })
    }

    /// Notes that two ids stand for the same thing. Returns `false` if one of them stands for another one.
    fn pair(&mut self, one: u32, other: u32) -> bool {
        let [of_one, of_other] = &mut self.counterparts;
        match (of_one.get(&one), of_other.get(&other)) {
            (None, None) => {
                of_one.insert(one, other);
                of_other.insert(other, one);
                self.pending.push((one, other));
                true
            }
            (Some(known), _) => *known == other,
            (None, Some(_)) => false,
        }
    }

    /// Compares the definitions of all pairs outside of functions.
    fn unite_definitions(&mut self) -> bool {
        while let Some((one, other)) = self.pending.pop() {
            let [one, other] =
                [(one, &self.sides[0]), (other, &self.sides[1])].map(|(id, side)| {
                    let location = side.location(id)?;
                    let is_global = location.function(side.module()).is_none();
                    location.instruction(side.module()).filter(|_| is_global)
                });
            let is_same = match (one, other) {
                (Some(one), Some(other)) => self.unite_instructions(&one, &other),
                // The instructions of functions are compared in order.
                (None, None) => true,
                _ => false,
            };
            if !is_same {
                return false;
            }
        }
        true
    }

    /// Returns whether the decorations of all pairs are the same.
    fn have_same_annotations(&self) -> bool {
        let [one, other] = [0, 1].map(|side| {
            let definitions = &self.sides[side];
            let annotations = definitions.module().section(Section::Annotations).iter();
            let used = annotations.filter(|i| {
                i.word(0).is_some_and(|target| self.counterparts[side].contains_key(&target))
            });
            let words = used.map(|i| {
                let mut words: Vec<_> = i.words_from(0).collect();
                if side == 0 {
                    let counterpart = |id| self.counterparts[0].get(&id).copied().unwrap_or(id);
                    ids(&i, definitions, |at, _| words[at] = counterpart(words[at])).ok()?;
                }
                Some((i.opcode(), words))
            });
            words.collect::<Option<BTreeSet<_>>>()
        });
        one.is_some() && one == other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FUSION: &[u8] = include_bytes!("../../../tests/data/fusion.spv");
    const DEBUG: &[u8] = include_bytes!("../../../tests/data/library_debug.spv");

    fn fusion() -> Module {
        Module::parse(FUSION).expect("it is valid")
    }

    /// Returns the module with the last instruction of an opcode changed in a section.
    fn changed(section: Section, op: Op, word: usize) -> Module {
        let mut module = fusion();
        let last = module.section(section).iter().filter(|i| i.op() == Some(op)).count() - 1;
        let (mut stream, mut at) = (Stream::default(), 0);
        for i in module.section(section).iter() {
            let is_counted = i.op() == Some(op);
            let mut words: Vec<_> = i.words_from(0).collect();
            if is_counted && at == last {
                words[word] ^= 1;
            }
            at += usize::from(is_counted);
            stream.push(i.op().expect("it is known"), words);
        }
        *module.section_mut(section) = stream;
        module
    }

    #[test]
    fn lines_names_and_numbers_of_ids_make_no_difference() {
        let mut other = fusion();
        let old = other.definitions();
        let bound = other.header.bound;
        let renumbered = |stream: &Stream| {
            let mut new = Stream::default();
            for i in stream.iter() {
                if i.op() == Some(Op::Label) {
                    new.push(Op::NoLine, []);
                }
                new.push_renumbered(&i, &old, |id, _| Ok(bound - id)).expect("it is known");
            }
            new
        };
        let sections = Section::ALL.map(|section| renumbered(other.section(section)));
        let bodies: Vec<_> =
            other.functions.iter().map(|function| renumbered(&function.body)).collect();
        other.sections = sections;
        for (function, body) in other.functions.iter_mut().zip(bodies) {
            (function.id, function.body) = (bound - function.id, body);
        }
        other.section_mut(Section::Names).retain(|_| false);
        assert!(is_same_code(&fusion(), &other));
    }

    #[test]
    fn other_constants_decorations_and_functions_are_other_code() {
        assert!(!is_same_code(&fusion(), &changed(Section::Globals, Op::Constant, 2)));
        assert!(!is_same_code(&fusion(), &changed(Section::Globals, Op::TypeInt, 1)));
        assert!(!is_same_code(&fusion(), &changed(Section::Annotations, Op::Decorate, 2)));
        let mut fewer = fusion();
        fewer.functions.pop();
        assert!(!is_same_code(&fusion(), &fewer));
        let mut longer = fusion();
        let body = &mut longer.functions[0].body;
        let mut copy = Stream::default();
        for i in body.iter() {
            if i.op() == Some(Op::Store) {
                copy.push_instruction(&i);
            }
            copy.push_instruction(&i);
        }
        assert_ne!(copy, *body);
        *body = copy;
        assert!(!is_same_code(&fusion(), &longer));
    }

    #[test]
    fn only_lines_stay_of_what_debuggers_read() {
        let mut module = Module::parse(DEBUG).expect("it is valid");
        let count = |module: &Module, op: Op| {
            let all = module.streams().flat_map(Stream::iter);
            all.filter(|i| i.op() == Some(op)).count()
        };
        let (lines, extended) = (count(&module, Op::Line), count(&module, Op::ExtInst));
        assert!(lines > 0 && extended > 0);
        remove_debug_info(&mut module);
        assert_eq!(count(&module, Op::Line), lines);
        assert!(count(&module, Op::ExtInst) < extended);
        assert_eq!(count(&module, Op::ModuleProcessed), 0);
        name_standard_input(&mut module, "library.cl");
        assert!(module.section(Section::Sources).iter().all(|i| i.string(1) != Some("<stdin>")));
    }
}
