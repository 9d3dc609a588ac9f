//! Inference of the address spaces of generic pointers, which OpenCL C 1.2 does not have.
//!
//! Within a function, a pointer points to the same address space as the pointers it is copied from and stored
//! to. Each instruction yields such an equation; union-find solves them. A value has a node for each level of
//! indirection, so that a stored pointer and its pointee are distinguished. A set of nodes with two address
//! spaces is refused.

use std::collections::HashMap;

use kiln_spirv::edit::{Address, Function, Instruction, Section, View, operand_ids};
use kiln_spirv::{Module, Result};
use rspirv::spirv::{Op, StorageClass};

use super::types::Space;
use super::{Emitter, damaged, typed, unsupported};

/// Address spaces of values by level: of the pointer, of the pointer that it points to, and so on.
pub(super) type Spaces = HashMap<u32, Vec<Space>>;

/// Name of a construct in messages: a copy of generic pointers through pointers of another type.
const COPIED: &str = "pointers of the generic address space that are copied as another type, which \
                      loses their actual address space,";

/// Maximum number of steps from a pointer through its casts to a variable.
const MAX_CASTS: usize = 8;

/// Union-find over the address spaces of a function's values.
struct Solver<'e, 'm> {
    emitter: &'e mut Emitter<'m>,
    /// Nodes of each value, by level.
    nodes: HashMap<u32, Vec<usize>>,
    /// Parent of each node; a root is its own parent.
    parents: Vec<usize>,
    /// Address spaces of the roots, where known.
    spaces: Vec<Option<Space>>,
    /// Pointers to generic pointers that were cast to pointers to something else, with the ids from before the
    /// cast.
    disguised: HashMap<u32, u32>,
}

/// Returns whether a module uses generic pointers at all.
pub(super) fn has_generic(module: &Module) -> bool {
    module.section(Section::Globals).iter().any(|ty| match ty.view() {
        View::TypePointer { class, .. } | View::TypeUntypedPointer { class } => {
            class == StorageClass::Generic as u32
        }
        _ => false,
    })
}

impl<'m> Emitter<'m> {
    /// Returns the levels of a parameter's type that are generic pointers.
    pub(super) fn generic_levels(&self, ty: u32) -> Result<Vec<usize>> {
        let levels = self.levels(ty)?;
        let levels = levels.iter().enumerate();
        Ok(levels.filter(|(_, class)| **class == StorageClass::Generic).map(|(at, _)| at).collect())
    }

    /// Infers the address spaces of the function's values and of its returned pointer, given those of the
    /// generic parameters, in order. A value is left out if the function does not show its address spaces.
    pub(super) fn infer(
        &mut self,
        function: &'m Function,
        parameters: &[Space],
    ) -> Result<(Spaces, Vec<Space>)> {
        if !self.has_generic {
            return Ok((Spaces::new(), Vec::new()));
        }
        let mut solver = Solver {
            emitter: self,
            nodes: HashMap::new(),
            parents: Vec::new(),
            spaces: Vec::new(),
            disguised: HashMap::new(),
        };
        solver.add_equations(function, parameters)?;
        solver.resolve_calls(function)?;
        let mut spaces = Spaces::new();
        let values: Vec<_> = solver.nodes.keys().copied().collect();
        for value in values {
            let levels = solver.nodes.get(&value).cloned().unwrap_or_default();
            let found: Option<Vec<_>> = levels.into_iter().map(|node| solver.space(node)).collect();
            if let Some(found) = found {
                spaces.insert(value, found);
            }
        }
        let returned = spaces.remove(&function.id).unwrap_or_default();
        Ok((spaces, returned))
    }
}

impl<'m> Solver<'_, 'm> {
    /// Adds the equations that the function's instructions yield.
    fn add_equations(&mut self, function: &'m Function, parameters: &[Space]) -> Result<()> {
        let mut parameters = parameters.iter();
        for instruction in function.body.iter() {
            let Some(op) = instruction.op() else { continue };
            self.track_generic_pointers(op, &instruction)?;
            let result = || instruction.result().ok_or_else(|| damaged(&instruction));
            match instruction.view() {
                View::Function { .. } => {
                    self.levels(function.id, typed(&instruction)?.0)?;
                }
                View::Chain { base, .. }
                | View::PtrChain { base, .. }
                | View::UntypedChain { base, .. }
                | View::UntypedPtrChain { base, .. } => self.join(result()?, 0, base, 0)?,
                View::CastExplicit { pointer, .. } => self.join(result()?, 1, pointer, 1)?,
                View::Load { pointer, .. } => self.join(result()?, 0, pointer, 1)?,
                View::Store { pointer, value, .. } => self.join(value, 0, pointer, 1)?,
                View::CopyMemory { target, source, .. } => self.join(target, 1, source, 1)?,
                View::CopyMemorySized { target, source, .. } => {
                    let original =
                        |pointer| self.disguised.get(&pointer).copied().unwrap_or(pointer);
                    let (to, from) = (original(target), original(source));
                    if self.points_to_zeros(from)? {
                        // Null belongs to every address space.
                        continue;
                    }
                    if self.holds_generic(to)? != self.holds_generic(from)? {
                        return Err(unsupported(COPIED));
                    }
                    self.join(to, 1, from, 1)?;
                }
                View::Phi { pairs } => {
                    for (value, _) in pairs.iter() {
                        self.join(result()?, 0, value, 0)?;
                    }
                }
                View::Select { yes, no, .. } => {
                    self.join(result()?, 0, yes, 0)?;
                    self.join(result()?, 0, no, 0)?;
                }
                View::Return { value } => self.join(function.id, 0, value, 0)?,
                View::Unary { value }
                    if instruction.row().is_some_and(|row| row.address.is_kept()) =>
                {
                    self.join(result()?, 0, value, 0)?;
                }
                _ if op == Op::FunctionParameter => {
                    let (ty, id) = typed(&instruction)?;
                    let nodes = self.levels(id, ty)?;
                    for at in self.emitter.generic_levels(ty)? {
                        if let (Some(&node), Some(&space)) = (nodes.get(at), parameters.next()) {
                            self.set(node, space)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Tracks pointers to generic pointers that are cast to pointers to something else.
    ///
    /// A copy of memory through such a pointer is followed. Any other use would lose the address space and is
    /// refused.
    fn track_generic_pointers(&mut self, op: Op, instruction: &Instruction<'_>) -> Result<()> {
        match op {
            Op::Bitcast | Op::CopyObject => {
                let (_, to) = typed(instruction)?;
                let from = instruction.operand().ok_or_else(|| damaged(instruction))?;
                let original = self.disguised.get(&from).copied().unwrap_or(from);
                if self.holds_generic(original)? && !self.holds_generic(to)? {
                    self.disguised.insert(to, original);
                }
                Ok(())
            }
            Op::CopyMemorySized | Op::LifetimeStart | Op::LifetimeStop => Ok(()),
            _ if self.disguised.is_empty() => Ok(()),
            _ => {
                let mut is_used = false;
                operand_ids(instruction, &self.emitter.definitions, |id| {
                    is_used |= self.disguised.contains_key(&id);
                })?;
                if is_used { Err(unsupported(COPIED)) } else { Ok(()) }
            }
        }
    }

    /// Returns whether a pointer points to generic pointers.
    fn holds_generic(&self, pointer: u32) -> Result<bool> {
        let Some(ty) = self.emitter.definition(pointer)?.result_type() else { return Ok(false) };
        Ok(self.emitter.generic_levels(ty)?.last().is_some_and(|&level| level > 0))
    }

    /// Returns whether a pointer points to a constant variable of all zeros, from which compilers clear other
    /// variables.
    fn points_to_zeros(&self, mut pointer: u32) -> Result<bool> {
        // In malformed modules, casts may form a cycle.
        for _ in 0..MAX_CASTS {
            let definition = self.emitter.definition(pointer)?;
            let is_copy = definition.row().is_some_and(|row| row.address == Address::Copy);
            match definition.view() {
                View::Unary { value } if is_copy => pointer = value,
                View::Variable { class, initial: Some(value) } => {
                    let value = self.emitter.definition(value)?;
                    return Ok(class == StorageClass::UniformConstant as u32
                        && value.op() == Some(Op::ConstantNull));
                }
                _ => break,
            }
        }
        Ok(false)
    }

    /// Sets the address spaces of pointers that called functions return. They depend on the arguments.
    fn resolve_calls(&mut self, function: &'m Function) -> Result<()> {
        let calls = function.body.iter().filter(|call| call.op() == Some(Op::FunctionCall));
        let mut pending = Vec::new();
        for call in calls {
            if !self.emitter.generic_levels(typed(&call)?.0)?.is_empty() {
                pending.push(call);
            }
        }
        loop {
            let before = pending.len();
            let mut unresolved = Vec::new();
            for call in pending {
                let arguments: Vec<_> = call.arguments().collect();
                let callee = call.called().ok_or_else(|| damaged(&call))?;
                let key = {
                    let mut spaces = Spaces::new();
                    for &argument in &arguments {
                        let nodes = self.nodes_of(argument)?;
                        let found: Option<Vec<_>> =
                            nodes.into_iter().map(|node| self.space(node)).collect();
                        spaces.extend(found.map(|found| (argument, found)));
                    }
                    self.emitter.instance_key(callee, &arguments, &spaces)
                };
                let Ok(key) = key else {
                    unresolved.push(call);
                    continue;
                };
                let returns = self.emitter.emit_function(callee, &key, None)?.returns;
                let nodes = self.nodes_of(typed(&call)?.1)?;
                for (node, space) in nodes.into_iter().zip(returns) {
                    self.set(node, space)?;
                }
            }
            if unresolved.is_empty() || unresolved.len() == before {
                return Ok(());
            }
            pending = unresolved;
        }
    }

    /// Returns the nodes of a value's levels. There are none if the value is not a pointer, or is null or
    /// undefined, which belongs to every address space.
    fn nodes_of(&mut self, value: u32) -> Result<Vec<usize>> {
        if let Some(nodes) = self.nodes.get(&value) {
            return Ok(nodes.clone());
        }
        let definition = self.emitter.definition(value)?;
        if matches!(definition.op(), Some(Op::ConstantNull | Op::Undef)) {
            return Ok(Vec::new());
        }
        match definition.result_type() {
            Some(ty) => self.levels(value, ty),
            None => Ok(Vec::new()),
        }
    }

    /// Adds the nodes of a value of the type `ty`.
    fn levels(&mut self, value: u32, ty: u32) -> Result<Vec<usize>> {
        let mut nodes = Vec::new();
        for class in self.emitter.levels(ty)? {
            nodes.push(self.parents.len());
            self.parents.push(self.parents.len());
            self.spaces.push(Space::of(class)?);
        }
        self.nodes.insert(value, nodes.clone());
        Ok(nodes)
    }

    /// Equates the address spaces of two values, from the given levels on.
    fn join(&mut self, a: u32, a_from: usize, b: u32, b_from: usize) -> Result<()> {
        let (a, b) = (self.nodes_of(a)?, self.nodes_of(b)?);
        let a = a.into_iter().skip(a_from);
        for (a, b) in a.zip(b.into_iter().skip(b_from)) {
            let (a, b) = (self.root(a), self.root(b));
            if let Some(space) = self.spaces[b] {
                self.set(a, space)?;
            }
            self.parents[b] = a;
        }
        Ok(())
    }

    fn set(&mut self, node: usize, space: Space) -> Result<()> {
        let root = self.root(node);
        match self.spaces[root].replace(space) {
            Some(other) if other != space => Err(unsupported(format!(
                "a pointer of the generic address space that points to {other} and to {space} memory"
            ))),
            _ => Ok(()),
        }
    }

    fn space(&mut self, node: usize) -> Option<Space> {
        let root = self.root(node);
        self.spaces[root]
    }

    fn root(&mut self, mut node: usize) -> usize {
        while self.parents[node] != node {
            self.parents[node] = self.parents[self.parents[node]];
            node = self.parents[node];
        }
        node
    }
}
