//! Evaluation of a kernel and of the functions that it calls: an abstract interpretation in one pass,
//! without a fixed point.
//!
//! Each block is evaluated at most once, in reverse postorder, and only if an edge that leads to it is
//! live. A branch on a known value makes one of its edges dead. A phi joins the values of its live
//! predecessors that were evaluated before it. If one more value comes from the end of a loop,
//! [`loops`](super::loops) bounds the values of the phi; where that fails, the phi is unknown. So the
//! knowledge of a value holds whenever the value's instruction runs.
//!
//! The first evaluation takes the launch's scalars as known. Then the scalars are made unknown one by
//! one. If this changes the accesses that are found, a proof relies on the scalar, which stays known. Limits
//! that follow from a comparison with the scalar do not count, and are dropped with it.
//!
//! Where a condition is known to hold, the values in it are known to be in a smaller range. Each block has the
//! [facts](super::facts) of the branches that lead to it.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use foldhash::fast::RandomState;
use kiln_spirv::edit::{Definitions, Instruction, Location};
use kiln_spirv::{Error, ErrorKind, Module, Result};
use rspirv::spirv::{Op, StorageClass};

use super::arithmetic::Arithmetic;
use super::blocks::{Blocks, no_blocks_error, spilled};
use super::budget::Budget;
use super::facts::{Facts, Known, join};
use super::flow::Flow;
use super::images::Images;
use super::layout::Layouts;
use super::pointers::{Base, Pointer};
use super::symbols::Symbols;
use super::{Access, Accesses, Value};
use crate::analysis::affine::{Form, Space};
use crate::plan::Region;

/// Maximum depth of nested calls.
const MAX_DEPTH: usize = 16;
/// Maximum number of instructions in one evaluation of a kernel. The instructions of a called function
/// count once per call.
const MAX_STEPS: usize = 1 << 18;
/// Number of steps that an evaluation may take which was given no budget.
const MAX_LOOKS: usize = 1 << 22;
/// Maximum number of components of a vector whose values are kept.
pub(super) const MAX_PARTS: usize = 16;

pub(super) struct Evaluation<'m> {
    pub(super) definitions: &'m Definitions<'m>,
    pub(super) layouts: Layouts,
    pub(super) space: &'m Space,
    module: &'m Module,
    functions: HashMap<u32, usize>,
    /// `BuiltIn` numbers of the built-in variables, by the variable's id.
    pub(super) built_ins: HashMap<u32, u32>,
    known_functions: HashMap<usize, Option<Rc<Body<'m>>>>,
    /// Regions of the buffers, by the index of the kernel's parameter.
    pub(super) buffers: BTreeMap<usize, Region>,
    /// Storage classes of the memory that the kernel's parameters point to.
    pub(super) parameter_classes: Vec<Option<StorageClass>>,
    steps: usize,
    /// Budget of all evaluations.
    budget: Budget,
    /// Budget that takes its place, if one was given.
    given_budget: Option<&'m Budget>,
    /// Whether a loop was found that may add up more than [`SHORT_SUM`](super::SHORT_SUM) floating-point
    /// numbers.
    has_long_sums: bool,
    /// Whether nothing is assumed about the launch: buffers may overlap, and a variable may be read before it
    /// is written.
    pub(super) is_strict: bool,
    pub(super) images: Images,
    /// Sizes of images in pixels, by the ids of the parameters that stand for them. Layers are the last of them.
    pub(super) image_sizes: HashMap<u32, [usize; 3]>,
    /// Touches of memory, if they are asked for.
    pub(super) watch: Option<super::watch::Watch>,
}

/// Function that is prepared for evaluation.
pub(super) struct Body<'m> {
    pub(super) blocks: Blocks<'m>,
    /// Variables that are stored to once and otherwise only loaded.
    pub(super) spilled: HashSet<u32>,
    /// Index of the block that immediately dominates each block; `None` for the first block and for blocks
    /// that are not reachable.
    parents: Vec<Option<usize>>,
}

/// State of one call of a function.
pub(super) struct Frame<'m> {
    pub(super) function: Rc<Body<'m>>,
    /// Values by id. They are large, so that a table of them would be costly to enlarge.
    pub(super) values: HashMap<u32, Box<Known>, RandomState>,
    /// Values stored to spilled variables, by the variable's id.
    pub(super) stored: HashMap<u32, Known, RandomState>,
    /// Accesses found so far, each with the index of its block.
    pub(super) accesses: Vec<(usize, Access)>,
    /// Values that the function returns, each with the facts that hold where it does.
    pub(super) returned: Vec<(Known, Rc<Facts>)>,
    /// Live edges, as pairs of block indices: from, to.
    live: HashSet<(usize, usize), RandomState>,
    pub(super) is_evaluated: Vec<bool>,
    /// Facts that hold in the block that is evaluated.
    pub(super) facts: Rc<Facts>,
    /// Facts that hold in each block that was evaluated.
    pub(super) block_facts: Vec<Rc<Facts>>,
    /// Differences of the counters of loops from their first values, by the ids of both.
    pub(super) distances: RefCell<HashMap<[u32; 2], Form>>,
    /// Facts that hold on edges, as far as they have been asked for.
    pub(super) edge_facts: RefCell<HashMap<(usize, usize), Rc<Facts>>>,
    depth: usize,
}

impl Body<'_> {
    /// Returns the indices of the reachable blocks that lead to a block, each once.
    pub(super) fn reachable_before(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        let previous = &self.blocks.all[at].previous;
        let reachable = previous.iter().enumerate().filter(move |&(position, &from)| {
            let is_first = !previous[..position].contains(&from);
            is_first && (from == 0 || self.parents[from].is_some())
        });
        reachable.map(|(_, &from)| from)
    }

    /// Returns whether every path to the second block passes the first.
    fn dominates(&self, first: usize, second: usize) -> bool {
        let parents = std::iter::successors(Some(second), |&at| self.parents[at]);
        parents.into_iter().any(|at| at == first)
    }

    /// Returns the block that immediately dominates another one.
    pub(super) fn parent(&self, at: usize) -> Option<usize> {
        self.parents[at]
    }
}

impl Frame<'_> {
    /// Takes the accesses that were found, without duplicates.
    fn take_accesses(&mut self) -> Vec<Access> {
        let found = std::mem::take(&mut self.accesses);
        if found.is_empty() {
            return Vec::new();
        }
        let certain = self.function.blocks.certain(|from, to| self.is_live(from, to));
        let (mut accesses, mut known) = (Vec::new(), HashSet::new());
        for (at, mut access) in found {
            access.is_certain &= certain[at];
            if known.insert(access.clone()) {
                accesses.push(access);
            }
        }
        accesses
    }

    /// Returns the values of a difference of a loop's counter and its first value.
    pub(super) fn distance(&self, difference: &Instruction<'_>) -> Option<Form> {
        let (a, b) = difference.both()?;
        let distances = self.distances.borrow();
        distances.get(&[a, b]).copied().or_else(|| distances.get(&[b, a])?.times(-1))
    }

    /// Returns the largest number of values that a loop's counter has, if that is known.
    pub(super) fn number_of_values(&self, counter: u32) -> Option<i128> {
        let distances = self.distances.borrow();
        let (_, distances) = distances.iter().find(|([phi, _], _)| *phi == counter)?;
        Some(distances.ranges().map(|range| range.count).sum::<i128>() + 1)
    }

    pub(super) fn is_live(&self, from: usize, to: usize) -> bool {
        self.live.contains(&(from, to))
    }
}

/// Index of the block of an instruction, and the location of the instruction.
pub(super) type At = (usize, Location);

impl<'m> Evaluation<'m> {
    pub(super) fn new(definitions: &'m Definitions<'m>, space: &'m Space) -> Self {
        let module = definitions.module();
        let layouts = Layouts::of(module, definitions);
        let functions = module.functions.iter().enumerate();
        Self {
            layouts,
            space,
            module,
            functions: functions.map(|(at, function)| (function.id, at)).collect(),
            built_ins: module.built_ins().collect(),
            known_functions: HashMap::new(),
            buffers: BTreeMap::new(),
            parameter_classes: Vec::new(),
            steps: 0,
            budget: Budget::of(MAX_LOOKS),
            given_budget: None,
            has_long_sums: false,
            is_strict: false,
            images: Images::of(definitions),
            image_sizes: HashMap::new(),
            watch: None,
            definitions,
        }
    }

    pub(super) fn set_budget(&mut self, budget: &'m Budget) {
        self.given_budget = Some(budget);
    }

    pub(super) fn budget(&self) -> &Budget {
        self.given_budget.unwrap_or(&self.budget)
    }

    pub(super) fn run(mut self, kernel: u32, values: &[Value]) -> Result<Accesses> {
        let (found, _) = self.with_few_scalars(kernel, values, |found, other| {
            found.all == other.all || places(&found.all) == places(&other.all)
        })?;
        Ok(found)
    }

    /// Evaluates the kernel with the values of as few scalars as give the same accesses.
    pub(super) fn with_few_scalars(
        &mut self,
        kernel: u32,
        values: &[Value],
        is_same: impl Fn(&Accesses, &Accesses) -> bool,
    ) -> Result<(Accesses, Frame<'m>)> {
        let mut values = values.to_vec();
        self.drop_uninterpreted(kernel, &mut values);
        let mut found = self.evaluate(kernel, &values)?;
        let is_scalar = |&at: &usize| matches!(values[at], Value::Scalar(_));
        let scalars: Vec<_> = (0..values.len()).filter(is_scalar).collect();
        // Most often, the accesses depend on no scalar at all, or on the only one.
        if scalars.len() > 1 {
            let mut without = values.clone();
            scalars.iter().for_each(|&at| without[at] = Value::Other);
            let other = self.evaluate(kernel, &without)?;
            if is_same(&found.0, &other.0) {
                return Ok(other);
            }
        }
        for at in scalars {
            let value = std::mem::replace(&mut values[at], Value::Other);
            let other = self.evaluate(kernel, &values)?;
            if is_same(&found.0, &other.0) {
                // The accesses and the flow must hold without the value, too.
                found = other;
            } else {
                values[at] = value;
            }
        }
        let is_scalar = |&at: &usize| matches!(values[at], Value::Scalar(_));
        found.0.constants = (0..values.len()).filter(is_scalar).collect();
        Ok(found)
    }

    /// Drops the scalars that the evaluation does not interpret, such as floating-point numbers.
    pub(super) fn drop_uninterpreted(&mut self, kernel: u32, values: &mut [Value]) {
        let at = self.functions.get(&kernel).copied();
        let Some(body) = at.and_then(|at| self.body(at)) else { return };
        for (&parameter, value) in body.blocks.parameters.iter().zip(values) {
            if let Value::Scalar(bytes) = value
                && !matches!(self.scalar(parameter, bytes), Known::Integer(form) if form.value().is_some())
            {
                *value = Value::Other;
            }
        }
    }

    /// Evaluates the kernel once, for the given arguments.
    pub(super) fn evaluate(
        &mut self,
        kernel: u32,
        values: &[Value],
    ) -> Result<(Accesses, Frame<'m>)> {
        (self.steps, self.has_long_sums) = (0, false);
        let at = self.functions.get(&kernel).copied();
        let function = at.and_then(|at| self.module.functions.get(at));
        let body = at.and_then(|at| self.body(at));
        let body = body.ok_or_else(|| no_blocks_error(function, "the kernel's function"))?;
        let parameters = &body.blocks.parameters;
        if parameters.len() != values.len() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the kernel has {} parameters, but the launch has {} arguments",
                    parameters.len(),
                    values.len()
                ),
            ));
        }
        self.buffers.clear();
        let definitions = self.definitions;
        let class = |id: &u32| {
            let ty = definitions.type_of(*id).filter(|ty| ty.op() == Some(Op::TypePointer))?;
            StorageClass::from_u32(ty.storage_class()?)
        };
        self.parameter_classes = parameters.iter().map(class).collect();
        let mut arguments = Vec::new();
        for (at, (&parameter, value)) in parameters.iter().zip(values).enumerate() {
            arguments.push(match value {
                Value::Buffer(region) => {
                    self.buffers.insert(at, *region);
                    let offset = Some(Form::constant(0));
                    Known::Pointer(Pointer { base: Base::Parameter(at), offset })
                }
                Value::Image(shape) => {
                    self.images.add(self.definitions, (at, parameter), shape);
                    Known::Pointer(Pointer::to(Base::Parameter(at)))
                }
                Value::Sampler(sampler) => {
                    self.images.samplers.insert(parameter, *sampler);
                    self.argument(parameter)
                }
                Value::Scalar(bytes) => self.scalar(parameter, bytes),
                Value::Other => self.argument(parameter),
            });
        }
        let mut frame = self.call(&body, arguments, Facts::default(), 0)?;
        let blocks = &body.blocks;
        let sizes = self.images.sizes(parameters);
        let mut symbols = Symbols::of_function(blocks, &body.spilled, &self.built_ins, sizes);
        let is_live = |from, to| frame.is_live(from, to);
        let flow = Flow::of(blocks, self.definitions, &mut symbols, is_live);
        let all = frame.take_accesses();
        let has_long_sums = self.has_long_sums;
        Ok((Accesses { all, flow, has_long_sums, ..Accesses::default() }, frame))
    }

    fn scalar(&self, parameter: u32, bytes: &[u8]) -> Known {
        let ty = self.definitions.type_of(parameter);
        let width = ty.filter(|ty| ty.op() == Some(Op::TypeInt)).and_then(|ty| ty.width());
        match width {
            Some(width) if width <= 64 && bytes.len() * 8 == width as usize => {
                let mut value = [0; 16];
                value[..bytes.len()].copy_from_slice(bytes);
                let form = Form::constant(i128::from_le_bytes(value));
                let arithmetic = Arithmetic { space: self.space, width };
                Known::Integer(arithmetic.signed(&form))
            }
            _ => self.argument(parameter),
        }
    }

    /// Returns the value of an argument of which only the type is known. A pointer of this kind points
    /// outside of buffers.
    fn argument(&self, parameter: u32) -> Known {
        let ty = self.definitions.type_of(parameter);
        match ty.and_then(|ty| ty.op()) {
            Some(Op::TypePointer) => Known::Pointer(Pointer::to(Base::Harmless)),
            _ => ty.and_then(|ty| ty.result()).map_or(Known::Other, |ty| self.unknown(ty)),
        }
    }

    fn body(&mut self, at: usize) -> Option<Rc<Body<'m>>> {
        if let Some(known) = self.known_functions.get(&at) {
            return known.clone();
        }
        let blocks = Blocks::of(self.module, self.definitions, at);
        let body = blocks.map(|blocks| {
            let spilled = spilled(&blocks, self.definitions);
            let parents = blocks.parents();
            Rc::new(Body { blocks, spilled, parents })
        });
        self.known_functions.insert(at, body.clone());
        body
    }

    /// Evaluates a function, where facts hold.
    fn call(
        &mut self,
        body: &Rc<Body<'m>>,
        arguments: Vec<Known>,
        facts: Facts,
        depth: usize,
    ) -> Result<Frame<'m>> {
        let blocks = &body.blocks;
        let facts = Rc::new(facts);
        let mut frame = Frame {
            function: Rc::clone(body),
            values: blocks
                .parameters
                .iter()
                .copied()
                .zip(arguments.into_iter().map(Box::new))
                .collect(),
            stored: HashMap::default(),
            accesses: Vec::new(),
            returned: Vec::new(),
            live: HashSet::default(),
            is_evaluated: vec![false; blocks.all.len()],
            block_facts: vec![Rc::clone(&facts); blocks.all.len()],
            facts,
            distances: RefCell::default(),
            edge_facts: RefCell::default(),
            depth,
        };
        for &at in &blocks.order {
            let is_reached = at == 0 || {
                // An edge from a block that this one dominates leads back to it, not to it in the first place.
                let is_open = |from| match frame.is_evaluated[from] {
                    true => frame.is_live(from, at),
                    false => !body.dominates(at, from),
                };
                body.reachable_before(at).any(is_open)
            };
            if is_reached {
                frame.facts = self.facts_at(&frame, at);
                frame.block_facts[at] = Rc::clone(&frame.facts);
                self.block(&mut frame, at)?;
            }
            frame.is_evaluated[at] = true;
        }
        Ok(frame)
    }

    fn block(&mut self, frame: &mut Frame<'m>, at: usize) -> Result<()> {
        let function = Rc::clone(&frame.function);
        let block = &function.blocks.all[at];
        for &(location, instruction) in &block.body {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Err(Error::unsupported(
                    "the kernel is too large to determine which bytes it accesses",
                ));
            }
            if !self.budget().step() {
                return Err(Error::unsupported(
                    "the kernel is too complex to determine which bytes it accesses",
                ));
            }
            let known = match instruction.op() {
                Some(Op::Phi) => self.phi(frame, at, &instruction),
                Some(Op::FunctionCall) => {
                    self.function_call(frame, (at, location), &instruction)?
                }
                _ => self.instruction(frame, (at, location), &instruction),
            };
            if let Some(id) = instruction.result() {
                let known = known.or_else(|| Some(self.unknown(instruction.result_type()?)));
                known.map(|known| frame.values.insert(id, Box::new(known)));
            }
        }
        self.has_long_sums |= self.has_long_sum(frame, at);
        let last = block.body.last().map(|(_, last)| *last);
        let mut next = block.next.as_slice();
        if let Some(branch) = last.filter(|last| last.op() == Some(Op::BranchConditional))
            && let [yes, no] = next
            && let Some(Known::Integer(condition)) =
                branch.condition().map(|id| self.value(frame, id))
            && let Some(condition) = condition.value()
        {
            next = std::slice::from_ref(if condition == 0 { no } else { yes });
        }
        frame.live.extend(next.iter().map(|&next| (at, next)));
        Ok(())
    }

    pub(super) fn phi(&self, frame: &Frame<'m>, at: usize, phi: &Instruction<'m>) -> Option<Known> {
        let blocks = &frame.function.blocks;
        let (mut cases, mut latches) = (Vec::new(), Vec::new());
        for (value, from) in phi.incoming() {
            let from = blocks.index(from)?;
            if !frame.is_evaluated[from] {
                latches.push((value, from));
            } else if frame.is_live(from, at) {
                let facts = self.facts_on(frame, from, at);
                cases.push((self.value_where(frame, &facts, value, 0), facts));
            }
        }
        match (latches.as_slice(), self.joined(&cases)?) {
            ([], joined) => Some(joined),
            (&[latch], Known::Integer(initial)) => {
                let width = self.width(phi.result_type()?)?;
                let arithmetic = Arithmetic { space: self.space, width };
                let (incoming, phi) = (phi.incoming(), phi.result()?);
                let Some(counted) = self.counted(frame, at, phi, &initial, latch, &arithmetic)
                else {
                    let delayed = self.delayed(frame, at, &initial, latch);
                    let shrinking = || self.shrinking(frame, phi, &initial, latch.0, &arithmetic);
                    let found = if self.is_strict { delayed.or_else(shrinking) } else { delayed };
                    return found.map(Known::Integer);
                };
                let mut first = incoming.filter(|&(value, _)| value != latch.0);
                if let (Some((first, _)), None) = (first.next(), first.next()) {
                    frame.distances.borrow_mut().insert([phi, first], counted.distances);
                }
                Some(Known::Integer(counted.values))
            }
            _ => None,
        }
    }

    /// Joins values, each with the facts that hold where it is chosen. Returns `None` if nothing but their
    /// type is known.
    pub(super) fn joined(&self, cases: &[(Known, Rc<Facts>)]) -> Option<Known> {
        let forms = cases.iter().map(|(known, facts)| match known {
            Known::Integer(form) => Some((*form, facts.as_ref())),
            _ => None,
        });
        if let Some(forms) = forms.collect::<Option<Vec<_>>>() {
            return join(&forms, self.space).map(Known::Integer);
        }
        let ((first, _), others) = cases.split_first()?;
        if let Known::Pointer(Pointer { base, .. }) = first {
            let offsets = cases.iter().map(|(known, facts)| match known {
                Known::Pointer(Pointer { base: same, offset }) if same == base => {
                    Some(((*offset)?, facts.as_ref()))
                }
                _ => None,
            });
            if let Some(offsets) = offsets.collect::<Option<Vec<_>>>() {
                let offset = join(&offsets, self.space);
                return Some(Known::Pointer(Pointer { base: base.clone(), offset }));
            }
        }
        others.iter().try_fold(first.clone(), |joined, (known, _)| joined.or(known, self.space))
    }

    fn function_call(
        &mut self,
        frame: &mut Frame<'m>,
        at: At,
        call: &Instruction<'m>,
    ) -> Result<Option<Known>> {
        let arguments: Vec<_> = call.arguments().map(|id| self.value(frame, id)).collect();
        let called = call.called().and_then(|id| self.functions.get(&id).copied());
        let body = called.filter(|_| frame.depth < MAX_DEPTH).and_then(|at| self.body(at));
        let fits = |body: &Rc<Body<'_>>| body.blocks.parameters.len() == arguments.len();
        let Some(body) = body.filter(fits) else {
            if self.is_strict {
                // The function may also access memory that is not passed to it.
                let function = called.and_then(|at| self.module.functions.get(at));
                return Err(no_blocks_error(function, "a function that the kernel calls"));
            }
            for argument in &arguments {
                self.escape(frame, at, argument, "is passed to an unknown function");
            }
            return Ok(None);
        };
        let facts = frame.facts.only_lines();
        let mut called = self.call(&body, arguments, facts, frame.depth + 1)?;
        for access in called.take_accesses() {
            frame.accesses.push((at.0, Access { location: None, ..access }));
        }
        Ok(self.result(&called.returned).map(|returned| match returned {
            // The variable ends with the called function.
            Known::Pointer(Pointer { base: Base::Variable(id), .. })
                if called.values.contains_key(&id) =>
            {
                Known::Pointer(Pointer::to(Base::Harmless))
            }
            other => other,
        }))
    }

    /// Returns the result of a function that returns one of several values.
    fn result(&self, returned: &[(Known, Rc<Facts>)]) -> Option<Known> {
        let is_pointer = |(known, _): &(Known, _)| matches!(known, Known::Pointer(_));
        let anything = Known::Pointer(Pointer::to(Base::Anything));
        match self.joined(returned) {
            None if returned.iter().any(is_pointer) => Some(anything),
            joined => joined,
        }
    }

    /// Returns what is known of a value wherever it is used.
    pub(super) fn value_anywhere(&self, frame: &Frame<'_>, id: u32) -> Known {
        if let Some(known) = frame.values.get(&id) {
            return Known::clone(known);
        }
        let Some(instruction) = self.definitions.get(id) else { return Known::Other };
        let Some(ty) = instruction.result_type() else { return Known::Other };
        self.constant(&instruction, ty).unwrap_or_else(|| self.unknown(ty))
    }

    /// Returns the value of a constant or variable that is defined outside of functions; `None` if only
    /// its type is known.
    fn constant(&self, instruction: &Instruction<'_>, ty: u32) -> Option<Known> {
        if instruction.op() == Some(Op::ConstantNull)
            && let Some((part, count)) = self.parts_of(ty)
        {
            self.width(part)?;
            return Some(Known::Parts(vec![Known::Integer(Form::constant(0)); count]));
        }
        if instruction.op() != Some(Op::ConstantComposite) {
            return self.single(instruction, ty);
        }
        if !self.is_vector(ty, instruction) {
            return None;
        }
        let parts = instruction.parts().map(|id| {
            let part = self.definitions.get(id)?;
            let ty = part.result_type()?;
            Some(self.single(&part, ty).unwrap_or_else(|| self.unknown(ty)))
        });
        parts.collect::<Option<_>>().map(Known::Parts)
    }

    /// Returns whether a composite of type `ty` is a vector of at most [`MAX_PARTS`] components. The
    /// parts of other composites are not kept: a composite of few words can have more parts, and parts of
    /// parts, than fit in memory.
    pub(super) fn is_vector(&self, ty: u32, made: &Instruction<'_>) -> bool {
        let is_vector = self.definitions.get(ty).is_some_and(|ty| ty.op() == Some(Op::TypeVector));
        is_vector && made.parts().count() <= MAX_PARTS
    }

    /// Returns the value of a constant that is not a composite, or of a variable.
    fn single(&self, instruction: &Instruction<'_>, ty: u32) -> Option<Known> {
        let integer = |value| Some(Known::Integer(Form::constant(value)));
        match instruction.op()? {
            Op::Constant => {
                let width = self.width(ty).filter(|_| self.is_integer(ty))?;
                let bits = i128::from(instruction.literal()?.number()?);
                let arithmetic = Arithmetic { space: self.space, width };
                let bits = bits & ((1 << width) - 1);
                Some(Known::Integer(arithmetic.signed(&Form::constant(bits))))
            }
            Op::ConstantTrue => integer(1),
            Op::ConstantFalse => integer(0),
            Op::ConstantNull if self.width(ty).is_some() => integer(0),
            Op::ConstantNull => match self.definitions.get(ty)?.op()? {
                Op::TypePointer => Some(Known::Pointer(Pointer::to(Base::Null))),
                _ => None,
            },
            Op::Variable => {
                let id = instruction.result()?;
                let is_built_in = self.built_ins.contains_key(&id);
                // Such variables are not visible to other modules, and fusion rejects those that can be
                // written.
                let base = if is_built_in { Base::BuiltIn(id) } else { Base::Variable(id) };
                Some(Known::Pointer(Pointer { base, offset: Some(Form::constant(0)) }))
            }
            _ => None,
        }
    }

    fn is_integer(&self, ty: u32) -> bool {
        self.definitions.get(ty).is_some_and(|ty| ty.op() == Some(Op::TypeInt))
    }

    /// Returns the width of an integer or boolean type in bits; `None` for other types, and for integers of no bits
    /// or more than 64.
    pub(super) fn width(&self, ty: u32) -> Option<u32> {
        let ty = self.definitions.get(ty)?;
        match ty.op()? {
            Op::TypeBool => Some(1),
            Op::TypeInt => ty.width().filter(|width| (1..=64).contains(width)),
            _ => None,
        }
    }

    pub(super) fn width_of(&self, id: u32) -> Option<u32> {
        self.width(self.definitions.get(id)?.result_type()?)
    }

    /// Returns what is known of a value by its type alone.
    pub(super) fn unknown(&self, ty: u32) -> Known {
        if let Some(width) = self.width(ty) {
            return Known::Integer(Arithmetic { space: self.space, width }.unknown());
        }
        let Some(ty) = self.definitions.get(ty) else { return Known::Other };
        match ty.op() {
            Some(Op::TypePointer) => {
                let class = ty.storage_class().and_then(StorageClass::from_u32);
                let own = [StorageClass::Function, StorageClass::Workgroup, StorageClass::Input];
                let is_own = class.is_some_and(|class| own.contains(&class));
                let base = if is_own { Base::Harmless } else { Base::Anything };
                Known::Pointer(Pointer::to(base))
            }
            Some(Op::TypeUntypedPointerKHR) => Known::Pointer(Pointer::to(Base::Anything)),
            _ => Known::Other,
        }
    }

    /// Returns the location of an access, if it is in the kernel's own function.
    pub(super) fn own_location(&self, frame: &Frame<'_>, location: Location) -> Option<Location> {
        (frame.depth == 0).then_some(location)
    }
}

/// Returns accesses without the limits of their bytes, and without duplicates.
fn places(all: &[Access]) -> Vec<Access> {
    let mut known = HashSet::new();
    let places = all.iter().cloned().map(|mut access| {
        if let Some(bytes) = &mut access.bytes {
            bytes.start = bytes.start.unclipped();
            bytes.group = bytes.group.map(|group| group.unclipped());
        }
        access
    });
    places.filter(|access| known.insert(access.clone())).collect()
}
