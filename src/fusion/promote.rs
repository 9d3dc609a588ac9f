//! Buffers that become variables of the work-item.
//!
//! Every access to such a buffer is, in every work-item, a constant number of bytes behind the
//! [base](super::legality::Promotion) that the work-item has for itself. So the buffer's parameter
//! becomes a pointer to a variable of the new kernel, and each access goes to that constant place
//! in it. What calculated addresses before is dropped.

use std::collections::{HashMap, HashSet};

use rspirv::spirv::{Capability, Op, OpenclStd100Op as Extended, StorageClass};

use super::access::Layouts;
use super::merge::{require, unsupported};
use crate::error::Result;
use crate::spirv::Module;
use crate::spirv::edit::{Definitions, Instruction, Interner, Role, Stream, ids, located};

/// A parameter to be made a pointer to private memory.
pub(super) struct Private {
    pub(super) parameter: usize,
    /// The accesses, by the word of the function's body, and how many bytes from the base they are.
    pub(super) places: HashMap<u32, i128>,
}

/// How a function uses a parameter: instructions by their word in its body.
struct Uses {
    parameter: u32,
    /// Address calculation, which goes.
    dropped: HashSet<u32>,
    /// With the operand that is the pointer.
    accesses: HashMap<u32, usize>,
}

/// Whether the parameter is used for nothing but loads and stores that are known.
///
/// # Errors
///
/// The reason why not, to be said behind the kernel's name.
pub(super) fn check(module: &Module, function: u32, private: &Private) -> Result<(), String> {
    uses(module, function, private).map(|_| ())
}

fn uses(module: &Module, function: u32, private: &Private) -> Result<Uses, String> {
    let definitions = module.definitions();
    let function = module.functions.iter().find(|known| known.id == function);
    let body = function.map(|function| &function.body).ok_or("has no function")?;
    let parameters = body.iter().filter(|i| i.op() == Some(Op::FunctionParameter));
    let parameter = parameters.filter_map(|i| i.result()).nth(private.parameter);
    let parameter = parameter.ok_or("has no such parameter")?;
    let mut pointers = HashSet::from([parameter]);
    let mut uses = Uses { parameter, dropped: HashSet::new(), accesses: HashMap::new() };
    // Variables that such pointers are spilled to, and casts of these that mark where they live.
    let mut variables = HashSet::new();
    loop {
        let before = (pointers.len(), variables.len());
        for (location, i) in located((0, body)) {
            let (mut pointer, mut variable) = (Vec::new(), Vec::new());
            ids(&i, &definitions, |word, role| {
                let id = i.word(word).unwrap_or_default();
                if role == Role::Operand && pointers.contains(&id) {
                    pointer.push(word);
                }
                if role == Role::Operand && variables.contains(&id) {
                    variable.push(word);
                }
            })
            .map_err(|error| error.to_string())?;
            if i.op() == Some(Op::Variable) && i.result().is_some_and(|id| variables.contains(&id))
            {
                uses.dropped.insert(location.offset);
            }
            let used = match (pointer.as_slice(), variable.as_slice()) {
                ([], []) => continue,
                (&[word], []) => used(&definitions, &i, word),
                ([], &[word]) => match i.op() {
                    Some(Op::Load) => Used::Address,
                    Some(Op::LifetimeStart | Op::LifetimeStop) => Used::Nothing,
                    Some(Op::Bitcast) if word == 2 => Used::Mark,
                    _ => Used::Otherwise,
                },
                (&[1], &[0]) if i.op() == Some(Op::Store) => Used::Nothing,
                _ => Used::Otherwise,
            };
            match used {
                Used::Address => {
                    pointers.extend(i.result());
                    uses.dropped.insert(location.offset);
                }
                Used::Spill(variable) => {
                    variables.insert(variable);
                    uses.dropped.insert(location.offset);
                }
                Used::Mark => {
                    variables.extend(i.result());
                    uses.dropped.insert(location.offset);
                }
                Used::Nothing => _ = uses.dropped.insert(location.offset),
                Used::Access(word) => {
                    if !private.places.contains_key(&location.offset) {
                        return Err("has accesses that may never run".into());
                    }
                    uses.accesses.insert(location.offset, word);
                }
                Used::Otherwise => return Err(format!("uses its address in {}", i.name())),
            }
        }
        if before == (pointers.len(), variables.len()) {
            return Ok(uses);
        }
    }
}

enum Used {
    /// To make another address of it.
    Address,
    /// As the pointer of a load or a store, which is this operand.
    Access(usize),
    /// Stored to a variable.
    Spill(u32),
    Mark,
    Nothing,
    Otherwise,
}

fn used(definitions: &Definitions<'_>, i: &Instruction<'_>, word: usize) -> Used {
    match i.op() {
        Some(
            Op::AccessChain
            | Op::InBoundsAccessChain
            | Op::PtrAccessChain
            | Op::InBoundsPtrAccessChain
            | Op::PtrCastToGeneric
            | Op::GenericCastToPtr
            | Op::CopyObject
            | Op::Bitcast,
        ) if word == 2 => Used::Address,
        Some(Op::Load) if word == 2 => Used::Access(word),
        Some(Op::Store) if word == 0 => Used::Access(word),
        Some(Op::Store) if word == 1 => {
            let variable = i.word(0).and_then(|id| definitions.get(id));
            match variable.filter(|variable| variable.op() == Some(Op::Variable)) {
                Some(variable) if variable.word(3).is_none() => {
                    variable.result().map_or(Used::Otherwise, Used::Spill)
                }
                _ => Used::Otherwise,
            }
        }
        Some(Op::ExtInst) => {
            let set = i.word(2).and_then(|set| definitions.get(set));
            let is_opencl = set.and_then(|set| set.string(1)) == Some("OpenCL.std");
            match i.word(3).and_then(Extended::from_u32).filter(|_| is_opencl) {
                Some(Extended::vloadn) if word == 5 => Used::Access(word),
                Some(Extended::vstoren) if word == 6 => Used::Access(word),
                Some(Extended::prefetch) => Used::Nothing,
                _ => Used::Otherwise,
            }
        }
        _ => Used::Otherwise,
    }
}

/// Makes parameters of a function pointers to private memory.
///
/// # Errors
///
/// As [`check`], and if ids run out.
pub(super) fn promote(module: &mut Module, function: u32, privates: &[Private]) -> Result<()> {
    if privates.is_empty() {
        return Ok(());
    }
    let found = privates.iter().map(|private| uses(module, function, private));
    let found = found.collect::<Result<Vec<_>, _>>().map_err(unsupported)?;
    let at = module.functions.iter().position(|known| known.id == function);
    let at = at.ok_or_else(|| unsupported("a kernel has no function"))?;
    let body = std::mem::take(&mut module.functions[at].body);
    let mut snapshot = module.clone();
    snapshot.functions[at].body.clone_from(&body);
    let definitions = snapshot.definitions();
    let layouts = Layouts::of(&snapshot, &definitions);
    let interner = Interner::of(module);
    let mut writer = Writer { module, interner, layouts, new: Stream::default() };
    for (location, i) in located((0, &body)) {
        let offset = location.offset;
        if found.iter().any(|uses| uses.dropped.contains(&offset)) {
            continue;
        }
        let access = found.iter().zip(privates).find_map(|(uses, private)| {
            Some((uses.parameter, *uses.accesses.get(&offset)?, *private.places.get(&offset)?))
        });
        match (i.op(), access) {
            (Some(Op::Function), _) => {
                let parameters = body.iter().filter(|i| i.op() == Some(Op::FunctionParameter));
                let mut types = Vec::new();
                for parameter in parameters {
                    let own = found.iter().find(|uses| Some(uses.parameter) == parameter.result());
                    let ty = parameter.word(0).unwrap_or_default();
                    types.push(match own {
                        Some(_) => writer.private(&definitions, ty)?,
                        None => ty,
                    });
                }
                let returned = i.word(0).unwrap_or_default();
                let types: Vec<_> = [returned].into_iter().chain(types).collect();
                let ty = writer.interner.type_id(writer.module, Op::TypeFunction, &types)?;
                let words = i.words_from(0).enumerate();
                let words: Vec<_> = words.map(|(at, w)| if at == 3 { ty } else { w }).collect();
                writer.new.push(Op::Function, words);
            }
            (Some(Op::FunctionParameter), _)
                if found.iter().any(|uses| Some(uses.parameter) == i.result()) =>
            {
                let ty = writer.private(&definitions, i.word(0).unwrap_or_default())?;
                writer.new.push(Op::FunctionParameter, [ty, i.word(1).unwrap_or_default()]);
            }
            (Some(op), Some((parameter, word, place))) => {
                let pointer = i.word(word).unwrap_or_default();
                let address = writer.address(&definitions, parameter, pointer, place)?;
                let mut words: Vec<_> = i.words_from(0).collect();
                words[word] = address;
                if op == Op::ExtInst {
                    // The offset stands before the pointer.
                    let ty = definitions.get(words[word - 1]).and_then(|i| i.result_type());
                    let ty = ty.ok_or_else(|| unsupported("an offset has no type"))?;
                    words[word - 1] =
                        writer.interner.constant_id(writer.module, Op::ConstantNull, ty, &[])?;
                }
                writer.new.push(op, words);
            }
            _ => writer.new.push_instruction(&i),
        }
    }
    let new = writer.new;
    module.functions[at].body = new;
    Ok(())
}

struct Writer<'m> {
    module: &'m mut Module,
    interner: Interner,
    layouts: Layouts,
    new: Stream,
}

impl Writer<'_> {
    /// The type of pointers to private memory that holds what a pointer of some type points to.
    fn private(&mut self, definitions: &Definitions<'_>, pointer: u32) -> Result<u32> {
        let pointee = definitions.get(pointer).and_then(|ty| ty.word(2));
        let pointee = pointee.ok_or_else(|| unsupported("a pointer has no type"))?;
        self.pointer(pointee)
    }

    fn pointer(&mut self, pointee: u32) -> Result<u32> {
        let operands = [StorageClass::Function as u32, pointee];
        self.interner.type_id(self.module, Op::TypePointer, &operands)
    }

    /// An address so many bytes behind a parameter, of the type of `pointer` but for where it points.
    fn address(
        &mut self,
        definitions: &Definitions<'_>,
        parameter: u32,
        pointer: u32,
        place: i128,
    ) -> Result<u32> {
        let pointee = |id| definitions.type_of(id).and_then(|ty| ty.word(2));
        let (own, wanted) = pointee(parameter)
            .zip(pointee(pointer))
            .ok_or_else(|| unsupported("a pointer has no type"))?;
        let size = self.layouts.size(wanted).filter(|&size| size > 0);
        if let Some(size) = size.filter(|size| place % size == 0) {
            let base = if own == wanted { parameter } else { self.cast(parameter, wanted)? };
            return self.behind(base, wanted, place / size);
        }
        let byte = self.byte()?;
        let base = self.cast(parameter, byte)?;
        let address = self.behind(base, byte, place)?;
        self.cast(address, wanted)
    }

    fn byte(&mut self) -> Result<u32> {
        require(self.module, Capability::Int8);
        self.interner.type_id(self.module, Op::TypeInt, &[8, 0])
    }

    fn cast(&mut self, pointer: u32, pointee: u32) -> Result<u32> {
        let (ty, id) = (self.pointer(pointee)?, self.module.fresh_id()?);
        self.new.push(Op::Bitcast, [ty, id, pointer]);
        Ok(id)
    }

    fn behind(&mut self, pointer: u32, pointee: u32, count: i128) -> Result<u32> {
        if count == 0 {
            return Ok(pointer);
        }
        let uint = self.interner.type_id(self.module, Op::TypeInt, &[32, 0])?;
        let index = self.interner.constant_id(self.module, Op::Constant, uint, &[count as u32])?;
        let (ty, id) = (self.pointer(pointee)?, self.module.fresh_id()?);
        self.new.push(Op::InBoundsPtrAccessChain, [ty, id, pointer, index]);
        Ok(id)
    }
}
