//! Expressions of a kernel's scalars and of the work-item's ids, which can be compared for equality.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use kiln_spirv::edit::{Definitions, Evaluation, Instruction, View};
use rspirv::spirv::Op;

use super::blocks::Blocks;
use crate::analysis::pixel_access::is_first_level;

/// Expression with one value for the whole run of a work-item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Symbol {
    /// Scalar parameter of the kernel, by its index.
    Scalar(usize),
    Constant(Vec<u32>),
    /// Built-in variable, by its `BuiltIn` number.
    BuiltIn(u32),
    /// Operation on other symbols, with the width of the result in bits, and literal operands.
    Operation {
        op: Op,
        width: u32,
        literals: Vec<u32>,
        operands: Vec<Rc<Symbol>>,
        /// Number of symbols in this expression, including itself.
        size: usize,
        /// See [`Symbol::likeness`].
        likeness: u64,
    },
}

/// Condition that a symbol of type `bool` is true, or that it is false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub symbol: Rc<Symbol>,
    pub holds: bool,
}

impl Condition {
    /// Adds the conditions that together make up this one to `found`.
    pub(super) fn split(self, found: &mut Vec<Self>) {
        if let Symbol::Operation { op, operands, .. } = self.symbol.as_ref() {
            let part = |symbol: &Rc<Symbol>, holds| Self { symbol: Rc::clone(symbol), holds };
            match (op, operands.as_slice(), self.holds) {
                (Op::LogicalNot, [a], holds) => return part(a, !holds).split(found),
                (Op::LogicalAnd, [a, b], true) | (Op::LogicalOr, [a, b], false) => {
                    part(a, self.holds).split(found);
                    part(b, self.holds).split(found);
                    return;
                }
                _ => {}
            }
        }
        found.push(self);
    }
}

impl Symbol {
    /// Builds an operation. Returns `None` if it is made of more than [`MAX_SIZE`] symbols.
    fn operation(op: Op, width: u32, literals: Vec<u32>, operands: Vec<Rc<Self>>) -> Option<Self> {
        let size = operands.iter().fold(1, |size: usize, operand| size + operand.size());
        let mut hasher = DefaultHasher::new();
        (op, width, &literals).hash(&mut hasher);
        operands.iter().for_each(|operand| operand.likeness().hash(&mut hasher));
        let likeness = hasher.finish();
        let operation = Self::Operation { op, width, literals, operands, size, likeness };
        (size <= MAX_SIZE).then_some(operation)
    }

    /// Returns a hash that is equal for symbols that differ only in their scalars.
    pub(crate) fn likeness(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match self {
            Self::Operation { likeness, .. } => return *likeness,
            Self::Scalar(_) => {}
            other => other.hash(&mut hasher),
        }
        hasher.finish()
    }

    fn size(&self) -> usize {
        match self {
            Self::Operation { size, .. } => *size,
            _ => 1,
        }
    }

    /// Returns whether the symbol holds, as far as that follows from the symbols for which `known`
    /// returns a value.
    pub(crate) fn decide(&self, known: &impl Fn(&Self) -> Option<bool>) -> Option<bool> {
        if let Some(holds) = known(self) {
            return Some(holds);
        }
        let Self::Operation { op, operands, .. } = self else { return None };
        match (op, operands.as_slice()) {
            (Op::LogicalNot, [a]) => Some(!a.decide(known)?),
            (Op::LogicalAnd | Op::LogicalOr, [a, b]) => {
                // Operand value that decides the result alone.
                let deciding = *op == Op::LogicalOr;
                match (a.decide(known), b.decide(known)) {
                    (Some(a), Some(b)) => Some(if deciding { a || b } else { a && b }),
                    (Some(one), None) | (None, Some(one)) if one == deciding => Some(deciding),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Adds the scalars in this expression to `found`.
    pub(crate) fn scalars(&self, found: &mut Vec<usize>) {
        match self {
            Self::Scalar(parameter) => found.push(*parameter),
            Self::Constant(_) | Self::BuiltIn(_) => {}
            Self::Operation { operands, .. } => operands.iter().for_each(|o| o.scalars(found)),
        }
    }

    /// Returns whether two symbols are the same. `same` compares a scalar of this symbol with one of the
    /// other.
    pub(crate) fn equals(&self, other: &Self, same: &impl Fn(usize, usize) -> bool) -> bool {
        match (self, other) {
            (Self::Scalar(a), Self::Scalar(b)) => same(*a, *b),
            (
                Self::Operation { op, width, literals, operands, likeness, .. },
                Self::Operation {
                    op: o, width: w, literals: l, operands: others, likeness: i, ..
                },
            ) => {
                likeness == i
                    && (op, width, literals, operands.len()) == (o, w, l, others.len())
                    && operands.iter().zip(others).all(|(a, b)| a.equals(b, same))
            }
            (a, b) => a == b,
        }
    }
}

/// Returns the symbol of a number.
fn constant(number: usize, width: u32) -> Symbol {
    let number = number as u64;
    let words = [number as u32, (number >> 32) as u32];
    let count = width.div_ceil(32).max(1) as usize;
    Symbol::Constant([width].into_iter().chain(words.into_iter().take(count)).collect())
}

/// Symbols of a function's values.
pub(super) struct Symbols<'a> {
    parameters: HashMap<u32, usize>,
    built_ins: &'a HashMap<u32, u32>,
    /// Values of variables that are stored to once, by the variable's id.
    stored: HashMap<u32, u32>,
    /// Sizes of images, by the ids of the parameters that stand for them. They count as constants.
    image_sizes: HashMap<u32, [usize; 3]>,
    known: HashMap<u32, Option<Rc<Symbol>>>,
}

const MAX_DEPTH: usize = 24;
/// Maximum number of symbols in an expression. A comparison visits a shared operand each time it occurs,
/// so each occurrence counts, however few symbols are in memory.
const MAX_SIZE: usize = 256;

impl<'a> Symbols<'a> {
    pub(super) fn of_function(
        blocks: &Blocks<'_>,
        spilled: &std::collections::HashSet<u32>,
        built_ins: &'a HashMap<u32, u32>,
        image_sizes: HashMap<u32, [usize; 3]>,
    ) -> Self {
        let instructions = blocks.all.iter().flat_map(|block| &block.body).map(|(_, i)| i);
        let stored = instructions.filter_map(|i| match i.view() {
            View::Store { pointer, value, .. } => Some((pointer, value)),
            _ => None,
        });
        Self {
            parameters: blocks.parameters.iter().enumerate().map(|(at, &id)| (id, at)).collect(),
            built_ins,
            stored: stored.filter(|(variable, _)| spilled.contains(variable)).collect(),
            image_sizes,
            known: HashMap::new(),
        }
    }

    /// Returns the symbol of a value; `None` if the value depends on memory, or changes while the kernel
    /// runs.
    pub(super) fn of(&mut self, definitions: &Definitions<'_>, id: u32) -> Option<Rc<Symbol>> {
        self.symbol(definitions, id, 0)
    }

    fn symbol(
        &mut self,
        definitions: &Definitions<'_>,
        id: u32,
        depth: usize,
    ) -> Option<Rc<Symbol>> {
        if let Some(known) = self.known.get(&id) {
            return known.clone();
        }
        let found = if depth < MAX_DEPTH { self.build(definitions, id, depth + 1) } else { None };
        let found = found.map(Rc::new);
        self.known.insert(id, found.clone());
        found
    }

    /// Returns a size of an image that an instruction asks for.
    fn image_size(
        &self,
        definitions: &Definitions<'_>,
        queried: &Instruction<'_>,
        dimension: usize,
    ) -> Option<usize> {
        let (View::ImageQuery { image } | View::ImageQueryLod { image, .. }) = queried.view()
        else {
            return None;
        };
        let sizes = self.image_sizes.get(&image)?;
        sizes.get(dimension).copied().filter(|_| is_first_level(definitions, queried))
    }

    fn build(&mut self, definitions: &Definitions<'_>, id: u32, depth: usize) -> Option<Symbol> {
        if let Some(&parameter) = self.parameters.get(&id) {
            let ty = definitions.type_of(id)?;
            return (ty.op() == Some(Op::TypeInt)).then_some(Symbol::Scalar(parameter));
        }
        let i = definitions.get(id)?;
        let op = definitions.value_op(&i)?;
        let ty = definitions.get(i.result_type()?)?;
        let width = match ty.op()? {
            Op::TypeBool => 1,
            Op::TypeInt => ty.width()?,
            // Vectors are loaded to extract components from them.
            Op::TypeVector if op == Op::Load => 0,
            _ => return None,
        };
        let operation = |op, literals, operands| Symbol::operation(op, width, literals, operands);
        match op {
            Op::Constant => {
                Some(Symbol::Constant([width].into_iter().chain(i.literal()?.iter()).collect()))
            }
            Op::ConstantNull => {
                let words = [0].into_iter().cycle().take(width.div_ceil(32).max(1) as usize);
                Some(Symbol::Constant([width].into_iter().chain(words).collect()))
            }
            Op::ConstantTrue => Some(Symbol::Constant(vec![1, 1])),
            Op::ConstantFalse => Some(Symbol::Constant(vec![1, 0])),
            Op::Load => {
                let pointer = i.pointer()?;
                if let Some(&built_in) = self.built_ins.get(&pointer) {
                    return Some(Symbol::BuiltIn(built_in));
                }
                let stored = *self.stored.get(&pointer)?;
                self.symbol(definitions, stored, depth).map(|symbol| (*symbol).clone())
            }
            Op::ImageQuerySize | Op::ImageQuerySizeLod => {
                self.image_size(definitions, &i, 0).map(|size| constant(size, width))
            }
            Op::CompositeExtract => {
                let View::Extract { whole, path } = i.view() else { return None };
                let queried = definitions.get(whole);
                let is_size = |i: &Instruction<'_>| {
                    matches!(i.op(), Some(Op::ImageQuerySize | Op::ImageQuerySizeLod))
                };
                if let Some(queried) = queried.filter(is_size) {
                    let size = self.image_size(definitions, &queried, path.get(0)? as usize);
                    return size.map(|size| constant(size, width));
                }
                let whole = self.symbol(definitions, whole, depth)?;
                operation(op, path.iter().collect(), vec![whole])
            }
            Op::UGreaterThan
            | Op::SGreaterThan
            | Op::ULessThanEqual
            | Op::SLessThanEqual
            | Op::UGreaterThanEqual
            | Op::SGreaterThanEqual
            | Op::INotEqual => {
                let (op, is_swapped, is_negated) = match op {
                    Op::UGreaterThan => (Op::ULessThan, true, false),
                    Op::SGreaterThan => (Op::SLessThan, true, false),
                    Op::ULessThanEqual => (Op::ULessThan, true, true),
                    Op::SLessThanEqual => (Op::SLessThan, true, true),
                    Op::UGreaterThanEqual => (Op::ULessThan, false, true),
                    Op::SGreaterThanEqual => (Op::SLessThan, false, true),
                    _ => (Op::IEqual, false, true),
                };
                let (left, right) = i.both()?;
                let mut operands = vec![
                    self.symbol(definitions, left, depth)?,
                    self.symbol(definitions, right, depth)?,
                ];
                if is_swapped {
                    operands.reverse();
                }
                let compared = operation(op, Vec::new(), operands)?;
                if is_negated {
                    operation(Op::LogicalNot, Vec::new(), vec![Rc::new(compared)])
                } else {
                    Some(compared)
                }
            }
            Op::Select if width == 1 => {
                // Compilers translate `a && b` and `a || b` to a selection.
                let View::Select { condition, yes, no } = i.view() else { return None };
                let operands = [condition, yes, no].into_iter();
                let operands = operands.map(|id| self.symbol(definitions, id, depth));
                let operands = operands.collect::<Option<Vec<_>>>()?;
                let [condition, yes, no] = operands.as_slice() else { return None };
                let is = |symbol: &Symbol, value| *symbol == Symbol::Constant(vec![1, value]);
                let both = |other: &Rc<Symbol>| vec![Rc::clone(condition), Rc::clone(other)];
                match () {
                    () if is(no, 0) => operation(Op::LogicalAnd, Vec::new(), both(yes)),
                    () if is(yes, 1) => operation(Op::LogicalOr, Vec::new(), both(no)),
                    () => operation(op, Vec::new(), operands),
                }
            }
            _ if i.row().is_some_and(|row| row.evaluation >= Evaluation::Symbolic) => {
                let operands = match i.view() {
                    View::Unary { value } => vec![value],
                    View::Binary { left, right } => vec![left, right],
                    _ => return None,
                };
                let operands = operands.into_iter().map(|id| self.symbol(definitions, id, depth));
                operation(op, Vec::new(), operands.collect::<Option<_>>()?)
            }
            _ => None,
        }
    }
}
