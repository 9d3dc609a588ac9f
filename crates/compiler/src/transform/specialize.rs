//! Replaces specialization constants by the values that a launch's program was built with.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use kiln_spirv::edit::{Class, Definitions, Instruction, Section, Stream, literal_words};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{Decoration, Op};

/// Makes a module's specialization constants plain constants: those listed in `values` get the given bytes, the
/// others their defaults. Constants that are calculated (`OpSpecConstantOp`), and composites of them, stay. The
/// module is copied only if it has specialization constants.
///
/// # Errors
///
/// [`InvalidArgument`](kiln_spirv::ErrorKind::InvalidArgument) for a value whose constant does not exist or has
/// another size.
pub(crate) fn specialize<'m>(
    module: &'m Module,
    values: &[(u32, Vec<u8>)],
) -> Result<Cow<'m, Module>> {
    let annotations = module.section(Section::Annotations).iter();
    let ids: HashMap<_, _> = annotations
        .filter_map(|i| {
            let (constant, id) = i.decoration(Decoration::SpecId)?;
            Some((constant, id.get(0)?))
        })
        .collect();
    let known: HashSet<_> = ids.values().copied().collect();
    if let Some((id, _)) = values.iter().find(|(id, _)| !known.contains(id)) {
        return Err(Error::invalid(format!(
            "a value is given for the specialization constant {id}, but the module does not define \
             this constant"
        )));
    }
    let is_special = |i: Instruction<'_>| {
        i.class() == Some(Class::Specialized) && i.op() != Some(Op::SpecConstantOp)
    };
    if !module.section(Section::Globals).iter().any(is_special) {
        return Ok(Cow::Borrowed(module));
    }
    let definitions = module.definitions();
    // Ids of the constants that stay, because they are calculated.
    let (mut globals, mut calculated) = (Stream::default(), HashSet::new());
    for i in module.section(Section::Globals).iter() {
        let result = i.result().unwrap_or_default();
        let given = ids.get(&result);
        let given = given.and_then(|id| values.iter().find(|(known, _)| known == id));
        match i.op() {
            Some(Op::SpecConstantTrue | Op::SpecConstantFalse | Op::SpecConstant) => {
                push_fixed(&mut globals, &definitions, &i, given)?;
            }
            // A composite of calculated constants is not constant yet.
            Some(Op::SpecConstantComposite)
                if i.parts().all(|part| !calculated.contains(&part)) =>
            {
                globals.push(Op::ConstantComposite, i.words_from(0));
            }
            Some(Op::SpecConstantComposite | Op::SpecConstantOp) => {
                calculated.insert(result);
                globals.push_instruction(&i);
            }
            _ => globals.push_instruction(&i),
        }
    }
    let mut new = module.clone();
    *new.section_mut(Section::Globals) = globals;
    new.section_mut(Section::Annotations).retain(|i| i.decoration(Decoration::SpecId).is_none());
    Ok(Cow::Owned(new))
}

/// Appends a specialization constant as a plain constant, with the given value or its default. `given` is the
/// constant's `SpecId` and the value.
fn push_fixed(
    globals: &mut Stream,
    definitions: &Definitions<'_>,
    i: &Instruction<'_>,
    given: Option<&(u32, Vec<u8>)>,
) -> Result<()> {
    let wrong_size = |id: u32, given: usize, size: usize| {
        Error::invalid(format!(
            "the value of the specialization constant {id} has {given} bytes, but its type has \
             {size} bytes"
        ))
    };
    if i.op() == Some(Op::SpecConstant) {
        let ty = i.result_type().and_then(|ty| definitions.get(ty));
        let width = ty.as_ref().and_then(|ty| ty.width()).unwrap_or(32);
        match given.zip(ty) {
            Some(((id, bytes), ty)) => {
                let words = literal_words(&ty, bytes)
                    .ok_or_else(|| wrong_size(*id, bytes.len(), width as usize / 8))?;
                globals.push(Op::Constant, i.words_from(0).take(2).chain(words));
            }
            None => globals.push(Op::Constant, i.words_from(0)),
        }
        return Ok(());
    }
    let is_true = match given {
        Some((_, bytes)) if bytes.len() == 1 => bytes[0] != 0,
        Some((id, bytes)) => return Err(wrong_size(*id, bytes.len(), 1)),
        None => i.op() == Some(Op::SpecConstantTrue),
    };
    globals.push(if is_true { Op::ConstantTrue } else { Op::ConstantFalse }, i.words_from(0));
    Ok(())
}
