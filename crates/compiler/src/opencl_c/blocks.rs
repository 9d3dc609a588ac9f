//! Blocks and the edges between them.
//!
//! Control flow is preserved: each block is a label, and each branch a `goto`, which is left out if its target
//! comes next. Phis are variables of the function. They are assigned on the edges, inside the branch that takes
//! the edge, so that no edge has to be split. If a phi would read a variable that another phi has already
//! overwritten, all values are read first.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use kiln_spirv::Result;
use kiln_spirv::edit::{Cases, Class, Function, Instruction, View};
use rspirv::spirv::Op;

use super::function::Body;
use super::types::{Lanes, Scalar};
use super::{damaged, malformed, typed};

/// A block of a function.
struct Block<'m> {
    label: u32,
    /// Ids and types of the phis.
    phis: Vec<(u32, u32)>,
    /// Values of the phis, in order, by predecessor block.
    values: HashMap<u32, Vec<u32>>,
    instructions: Vec<Instruction<'m>>,
}

impl<'m> Block<'m> {
    /// Returns the blocks of a function, in order.
    fn all_of(function: &'m Function) -> Result<Vec<Self>> {
        let mut blocks = Vec::<Self>::new();
        for instruction in function.body.iter() {
            match instruction.op() {
                Some(Op::Label) => {
                    let label = instruction.result().ok_or_else(|| damaged(&instruction))?;
                    blocks.push(Self::new(label));
                }
                Some(Op::Function | Op::FunctionParameter) => {}
                Some(Op::FunctionEnd) => break,
                _ => {
                    if let Some(block) = blocks.last_mut() {
                        block.add(instruction)?;
                    }
                }
            }
        }
        Ok(blocks)
    }

    fn new(label: u32) -> Self {
        Self { label, phis: Vec::new(), values: HashMap::new(), instructions: Vec::new() }
    }

    fn add(&mut self, instruction: Instruction<'m>) -> Result<()> {
        if instruction.op() != Some(Op::Phi) {
            self.instructions.push(instruction);
            return Ok(());
        }
        let View::Phi { pairs } = instruction.view() else { return Err(damaged(&instruction)) };
        let (known, (ty, id)) = (self.phis.len(), typed(&instruction)?);
        self.phis.push((id, ty));
        for (value, from) in pairs.iter() {
            let values = self.values.entry(from).or_default();
            // If a phi lists a predecessor twice, its first value is used.
            if values.len() == known {
                values.push(value);
            }
        }
        Ok(())
    }

    /// Returns the phis whose values change on entry from the block `from`, with their types and new values.
    fn copies(&self, from: u32) -> Result<Vec<(u32, u32, u32)>> {
        let values = self.values.get(&from).map_or(&[][..], Vec::as_slice);
        if values.len() != self.phis.len() {
            return Err(malformed("OpPhi"));
        }
        let copies = self.phis.iter().zip(values).map(|(&(id, ty), &value)| (id, ty, value));
        Ok(copies.filter(|&(id, _, value)| value != id).collect())
    }
}

/// Context in which a block's terminator is translated.
struct Edges<'b, 'm> {
    from: u32,
    next: Option<u32>,
    blocks: &'b HashMap<u32, &'b Block<'m>>,
    targets: &'b mut HashSet<u32>,
}

impl<'m> Body<'_, 'm> {
    /// Translates the blocks of a function.
    pub(super) fn blocks(&mut self, function: &'m Function) -> Result<()> {
        let blocks = Block::all_of(function)?;
        let by_label: HashMap<_, _> = blocks.iter().map(|block| (block.label, block)).collect();
        for input in blocks.iter().flat_map(|block| &block.instructions) {
            if matches!(input.op(), Some(Op::Variable | Op::UntypedVariableKHR)) {
                self.variable(input)?;
            }
        }
        for &(id, ty) in blocks.iter().flat_map(|block| &block.phis) {
            self.declare(id, ty)?;
        }
        let mut texts = Vec::new();
        let mut targets = HashSet::new();
        for (index, block) in blocks.iter().enumerate() {
            let next = blocks.get(index + 1).map(|block| block.label);
            for instruction in &block.instructions {
                let mut edges =
                    Edges { from: block.label, next, blocks: &by_label, targets: &mut targets };
                if !self.terminator(instruction, &mut edges)? {
                    self.instruction(instruction)?;
                }
            }
            texts.push((block.label, std::mem::take(&mut self.text)));
        }
        for (label, text) in texts {
            if targets.contains(&label) {
                let _ = writeln!(self.text, "{}:;", self.emitter.name(label, "block_"));
            }
            self.text += &text;
        }
        let mut inputs = String::new();
        for input in self.inputs.clone() {
            let ty = self.pointee(input)?;
            let value = self.input(input, ty)?;
            let _ = writeln!(inputs, "    {} = {value};", self.name(input));
        }
        self.text.insert_str(0, &inputs);
        Ok(())
    }

    /// Translates an instruction that ends a block. Returns whether the instruction is one.
    fn terminator(
        &mut self,
        instruction: &Instruction<'_>,
        edges: &mut Edges<'_, 'm>,
    ) -> Result<bool> {
        match instruction.view() {
            View::Branch { target } => {
                let text = self.edge(target, edges, "    ", false)?;
                self.text += &text;
            }
            View::BranchIf { condition, yes, no, .. } => {
                let condition = self.value(condition)?;
                // A branch to the next block needs no jump, so the `if` takes the other branch.
                let (condition, taken, other) = if Some(yes) == edges.next && yes != no {
                    (format!("!{condition}"), no, yes)
                } else {
                    (condition, yes, no)
                };
                let inner = self.edge(taken, edges, "        ", true)?;
                let _ = match inner.trim().lines().count() {
                    1 => writeln!(self.text, "    if ({condition}) {}", inner.trim()),
                    _ => writeln!(self.text, "    if ({condition}) {{\n{inner}    }}"),
                };
                let text = self.edge(other, edges, "    ", false)?;
                self.text += &text;
            }
            View::Switch { selector, default, cases } => {
                self.switch(selector, default, cases, edges)?;
            }
            View::Return { value } => {
                let value = self.value(value)?;
                let _ = writeln!(self.text, "    return {value};");
            }
            _ => match instruction.op() {
                Some(Op::Return) => self.text += "    return;\n",
                Some(Op::Unreachable) => self.text += "    __builtin_unreachable();\n",
                _ if instruction.class() == Some(Class::Branch) => {
                    return Err(damaged(instruction));
                }
                _ => return Ok(false),
            },
        }
        Ok(true)
    }

    fn switch(
        &mut self,
        selector: u32,
        default: u32,
        literals: Cases<'_>,
        edges: &mut Edges<'_, 'm>,
    ) -> Result<()> {
        let lanes = self.emitter.lanes(self.emitter.type_of(selector)?)?;
        let Lanes { scalar: Scalar::Int(width), count: 1 } = lanes else {
            return Err(malformed("OpSwitch"));
        };
        let value = self.value(selector)?;
        let _ = writeln!(self.text, "    switch ({value}) {{");
        // Cases with the same target share one edge.
        let mut cases = Vec::<(u32, String)>::new();
        let mut positions = HashMap::<u32, usize>::new();
        for (literal, target) in literals.iter(if width > 32 { 2 } else { 1 }) {
            // Narrow literals may be sign-extended.
            let literal = match width {
                64 => format!("{literal}ul"),
                33.. => format!("{}ul", literal & ((1 << width) - 1)),
                32 => format!("{literal}u"),
                _ => (literal & ((1 << width) - 1)).to_string(),
            };
            let label = format!("    case {literal}:\n");
            match positions.entry(target) {
                Entry::Occupied(known) => cases[*known.get()].1 += &label,
                Entry::Vacant(new) => {
                    new.insert(cases.len());
                    cases.push((target, label));
                }
            }
        }
        let label = "    default:\n";
        match positions.get(&default) {
            Some(&known) => cases[known].1 += label,
            None => cases.push((default, label.to_owned())),
        }
        for (target, labels) in cases {
            let edge = self.edge(target, edges, "        ", true)?;
            let _ = write!(self.text, "{labels}{edge}");
        }
        self.text += "    }\n";
        Ok(())
    }

    /// Returns the text of an edge: the assignments to the target's phis, which take effect all at once, and
    /// the jump.
    fn edge(
        &mut self,
        target: u32,
        edges: &mut Edges<'_, 'm>,
        indent: &str,
        always_jump: bool,
    ) -> Result<String> {
        let block = edges.blocks.get(&target).ok_or_else(|| malformed("a branch"))?;
        let copies = block.copies(edges.from)?;
        let mut text = String::new();
        let mut written = HashSet::new();
        let is_overwritten = copies.iter().any(|&(id, _, value)| {
            let is_overwritten = written.contains(&value);
            written.insert(id);
            is_overwritten
        });
        if is_overwritten {
            let (mut reads, mut writes) = (String::new(), String::new());
            for &(id, ty, value) in &copies {
                let (ty, name, value) = (self.type_of(id, ty)?, self.name(id), self.value(value)?);
                let separator = if ty.ends_with('*') { "" } else { " " };
                let _ = writeln!(reads, "{indent}    {ty}{separator}next_{name} = {value};");
                let _ = writeln!(writes, "{indent}    {name} = next_{name};");
            }
            let _ = write!(text, "{indent}{{\n{reads}{writes}{indent}}}\n");
        } else {
            for &(id, _, value) in &copies {
                let _ = writeln!(text, "{indent}{} = {};", self.name(id), self.value(value)?);
            }
        }
        if always_jump || edges.next != Some(target) {
            edges.targets.insert(target);
            let _ = writeln!(text, "{indent}goto {};", self.emitter.name(target, "block_"));
        }
        Ok(text)
    }
}
