//! Compatibility of the types of linked symbols, and the casts where they differ.
//!
//! Compilers without pointee types infer them, separately for each module, or leave pointers untyped. A
//! parameter that is `global float *` in the source has this type in the module that defines the function,
//! but may be `global uchar *` in a module that only declares it. Pointers are therefore compatible if they
//! have the same storage class, and are cast where they are passed. Pointers to different structs of the
//! same name are not compatible, because such pointees are not inferred.

use std::collections::HashMap;

use rspirv::spirv::Op;

use super::super::describe::describe;
use super::super::index::Uses;
use super::super::intern::source_name;
use super::super::words::Instruction;
use super::{Ids, Source, merge_error};
use crate::error::{Error, Result};

/// Types of a function, each only where it differs from the type that the callers use.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Signature {
    pub(super) returned: Option<u32>,
    pub(super) parameters: Vec<Option<u32>>,
}

/// Two symbols of the same name.
#[derive(Clone)]
pub(super) struct Pair {
    pub(super) name: String,
    pub(super) first: (usize, u32),
    pub(super) second: (usize, u32),
}

/// Checks that each replacement has a compatible type. Returns, for each source, the functions whose calls
/// need casts.
pub(super) fn check(
    sources: &[Source<'_>],
    replaced: &[Pair],
    ids: &Ids,
) -> Result<Vec<HashMap<u32, Signature>>> {
    let mut calls = vec![HashMap::new(); sources.len()];
    for pair in replaced {
        let symbols = [pair.first, pair.second].map(|(index, id)| Symbol::new(sources, index, id));
        let [Some(first), Some(second)] = symbols else {
            return Err(mismatch_error(sources, pair));
        };
        let signature = fit(&first, &second, ids).ok_or_else(|| mismatch_error(sources, pair))?;
        if signature != Signature::default() {
            calls[pair.second.0].insert(pair.second.1, signature);
        }
    }
    for ((index, source), calls) in (0..).zip(sources).zip(&calls) {
        if calls.is_empty() {
            continue;
        }
        let uses = Uses::of(source.module, &source.definitions).map_err(|e| source.within(&e))?;
        let is_cast = |pair: &&Pair| pair.second.0 == index && calls.contains_key(&pair.second.1);
        for pair in replaced.iter().filter(is_cast) {
            let mut users = uses.of_id(pair.second.1).iter();
            if !users.all(|user| allows_cast(user.instruction(source.module))) {
                return Err(mismatch_error(sources, pair));
            }
        }
    }
    Ok(calls)
}

/// Returns whether the type of a function can change although `user` refers to it. Calls get casts, and some
/// instructions do not depend on the type. A pointer to the function does.
fn allows_cast(user: Option<Instruction<'_>>) -> bool {
    let independent = [Op::FunctionCall, Op::ExtInst, Op::Name, Op::Decorate, Op::GroupDecorate];
    user.and_then(|user| user.op()).is_some_and(|op| independent.contains(&op))
}

/// A function or a global variable of a source.
struct Symbol<'a, 'm> {
    source: &'a Source<'m>,
    index: usize,
    id: u32,
    op: Op,
    ty: u32,
}

impl<'a, 'm> Symbol<'a, 'm> {
    fn new(sources: &'a [Source<'m>], index: usize, id: u32) -> Option<Self> {
        let source = &sources[index];
        let (op, ty) = op_and_type(source, id)?;
        Some(Self { source, index, id, op, ty })
    }

    /// Returns the storage class of a type, if it is a pointer.
    fn storage_class(&self, ty: u32) -> Option<u32> {
        let ty = self.source.definitions.get(ty)?;
        let is_pointer = matches!(ty.op()?, Op::TypePointer | Op::TypeUntypedPointerKHR);
        if is_pointer { ty.word(1) } else { None }
    }

    /// Returns the source name of the struct that a pointer points to.
    fn struct_name(&self, pointer: u32) -> Option<&'m str> {
        let pointee = self.source.definitions.get(pointer)?.word(2)?;
        let is_struct = self.source.definitions.get(pointee)?.op() == Some(Op::TypeStruct);
        self.source.names.get(&pointee).filter(|_| is_struct).map(|name| source_name(name))
    }

    /// Returns the type of the value in an OpUntypedVariableKHR.
    fn content(&self) -> Option<u32> {
        self.source.definitions.get(self.id)?.word(3)
    }
}

/// Returns the casts that turn calls of the second symbol into calls of the first, or `None` if casts do not
/// suffice.
fn fit(first: &Symbol<'_, '_>, second: &Symbol<'_, '_>, ids: &Ids) -> Option<Signature> {
    let known = |symbol: &Symbol<'_, '_>, ty| ids.known(symbol.index, ty);
    let is_same = |one, other| Some(known(first, one)? == known(second, other)?);
    let is_same_type = is_same(first.ty, second.ty)? && first.op == second.op;
    let is_same_content = first.op != Op::UntypedVariableKHR
        || (is_same_type && is_same(first.content()?, second.content()?)?);
    if is_same_type && is_same_content {
        return Some(Signature::default());
    }
    if (first.op, second.op) != (Op::Function, Op::Function) {
        return None;
    }
    let [one, other] = [first, second].map(|symbol| {
        let ty = symbol.source.definitions.get(symbol.ty)?;
        (ty.op() == Some(Op::TypeFunction)).then_some(ty)
    });
    let (one, other) = (one?, other?);
    if one.words().len() != other.words().len() {
        return None;
    }
    let mut casts = Vec::new();
    for (one, other) in one.words_from(1).zip(other.words_from(1)) {
        if is_same(one, other)? {
            casts.push(None);
            continue;
        }
        let name = first.struct_name(one);
        if first.storage_class(one)? != second.storage_class(other)?
            || (name.is_some() && name == second.struct_name(other))
        {
            return None;
        }
        casts.push(known(first, one));
    }
    let mut casts = casts.into_iter();
    Some(Signature { returned: casts.next().flatten(), parameters: casts.collect() })
}

fn mismatch_error(sources: &[Source<'_>], pair: &Pair) -> Error {
    let [first, second] = [pair.first, pair.second].map(|(index, id)| {
        let source = &sources[index];
        (source.name, in_words(source, id))
    });
    let name = &pair.name;
    let is_import = sources[pair.second.0].imports(pair.second.1);
    let verb = if is_import { "imports" } else { "exports" };
    let hint = if first.1 == second.1 {
        "; these differ in the members of a struct, or in decorations"
    } else {
        ""
    };
    merge_error(format!(
        "{} {verb} `{name}` as {}, but {} exports it as {}{hint}; make the declaration match the \
         definition",
        second.0, second.1, first.0, first.1
    ))
}

/// Returns a description of the type of a function or global variable, for error messages.
pub(super) fn in_words(source: &Source<'_>, id: u32) -> String {
    let ty = op_and_type(source, id);
    ty.map_or_else(|| "something of unknown type".to_owned(), |(_, ty)| describe(ty, source))
}

/// Returns the opcode and the type of a function or variable. The type of a variable is a pointer.
fn op_and_type(source: &Source<'_>, id: u32) -> Option<(Op, u32)> {
    let definition = source.definitions.get(id)?;
    let op = definition.op()?;
    match op {
        Op::Function => Some((op, definition.word(3)?)),
        Op::Variable | Op::UntypedVariableKHR => Some((op, definition.word(0)?)),
        _ => None,
    }
}
