//! Adapts kernels to an nd-range that is larger than that of their launch.
//!
//! A kernel still reads the ids and sizes of its own launch: constants where these are the same for all
//! work-items, else functions of the linear id in the fused kernel.

use std::collections::{HashMap, HashSet};

use kiln_spirv::edit::{
    Class, Function, Instruction, Interner, Row, Section, Stream, View, located, operand_ids,
};
use kiln_spirv::{Error, Module, Result};
use rspirv::spirv::{BuiltIn, FunctionControl, Op, StorageClass};

use super::built_ins::{BuiltInType, Global, number, vector};
use super::remainder::Remainder;
use super::repetition;
use crate::NdRange;
use crate::analysis::declaration::Declaration;
use crate::ranges::{Assignment, Mapping, Ranges, Shape, Sizes, padded};

/// Replacement for one of the device's built-in values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// Constant that is the same for all work-items, by dimension; the first if the value is a single number.
    Constant(Sizes),
    /// Global id, calculated from the linear id.
    GlobalId,
    /// Id that follows from the global id which a parameter of the function gives.
    Given(GivenId),
    /// Remainder of the device's value.
    Remainder(Remainder),
}

/// Id of a work-item that follows from its global id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenId {
    Global,
    /// Local id, in work-groups of this size.
    Local(Sizes),
    /// Id of the work-group, in work-groups of this size.
    Group(Sizes),
}

/// Adapts a slot's module to the fused kernel's nd-range.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported), naming the value or feature that the kernel would not get.
pub(crate) fn remap(
    module: &mut Module,
    kernel: &str,
    mapping: &Mapping,
    ranges: &Ranges,
) -> Result<()> {
    let whole = &ranges.whole;
    if mapping.shape == Shape::Same && mapping.range.dimensions() == whole.dimensions() {
        return Ok(());
    }
    if !mapping.keeps_groups
        && let Some(what) = work_group_feature(module)
    {
        return Err(no_groups_error(kernel, what, mapping, whole));
    }
    check_inputs(module, kernel)?;
    let mut variables = HashMap::new();
    for (variable, built_in) in module.built_ins().collect::<Vec<_>>() {
        match value(built_in, mapping, whole) {
            Ok(value) => variables.extend(value.map(|value| (variable, value))),
            Err(what) => return Err(no_groups_error(kernel, &what, mapping, whole)),
        }
    }
    if mapping.assignment.repeats() {
        let function = repetition::kernel(module)?;
        let ids = add_id_parameters(module, function, &variables)?;
        rewrite(module, kernel, &variables, mapping, whole, &ids)?;
        repetition::repeat(module, function, mapping, whole)?;
    } else if variables.is_empty() {
        return Ok(());
    } else {
        rewrite(module, kernel, &variables, mapping, whole, &HashMap::new())?;
    }
    module.prune()
}

/// Checks that a kernel depends on nothing of its work-group, so that other work-items can run it.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported), naming the feature that the kernel uses.
pub(crate) fn check_groups(module: &Module, kernel: &str) -> Result<()> {
    work_group_feature(module).map_or(Ok(()), |what| Err(no_id_error(kernel, what)))
}

/// Makes a kernel's function take its global id as a last parameter, a vector of three components, instead of
/// reading the device's. So a work-item can run it for any work-item of `range`. Its sizes are constants.
/// The function must not depend on its [work-group](check_groups).
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported), naming the value that the kernel would not get.
pub(crate) fn take_id(
    module: &mut Module,
    kernel: &str,
    function: u32,
    range: &NdRange,
) -> Result<()> {
    let refuse = |what: &str| no_id_error(kernel, what);
    check_inputs(module, kernel)?;
    let sizes = padded(range.global(), 1);
    let mut variables = HashMap::new();
    for (variable, built_in) in module.built_ins().collect::<Vec<_>>() {
        let value = match BuiltIn::from_u32(built_in) {
            Some(BuiltIn::WorkDim) => Value::Constant([range.dimensions(); 3]),
            Some(BuiltIn::GlobalSize) => Value::Constant(sizes),
            Some(BuiltIn::GlobalOffset) => Value::Constant(padded(range.offset(), 0)),
            Some(BuiltIn::GlobalInvocationId) => Value::Given(GivenId::Global),
            Some(known) => return Err(refuse(&format!("the built-in value {known:?}"))),
            None => return Err(refuse(&format!("the built-in value {built_in}"))),
        };
        variables.insert(variable, value);
    }
    let ids = add_id_parameters(module, function, &variables)?;
    let mapping = Mapping {
        range: *range,
        shape: Shape::Remapped,
        guard: None,
        keeps_groups: false,
        assignment: Assignment::Single,
    };
    rewrite(module, kernel, &variables, &mapping, range, &ids)?;
    module.prune()
}

/// Gives a kernel the ids and sizes of its own launch in a fused kernel that runs the work-groups of several
/// launches with the nd-range `range`, one launch after another along `dimension`. The size of work-groups is
/// that of `range`, and there is no offset.
///
/// # Errors
///
/// [`Unsupported`](kiln_spirv::ErrorKind::Unsupported), naming the value that the kernel would not get.
pub(crate) fn take_portion(
    module: &mut Module,
    kernel: &str,
    range: &NdRange,
    dimension: usize,
) -> Result<()> {
    check_inputs(module, kernel)?;
    let mut variables = HashMap::new();
    for (variable, built_in) in module.built_ins().collect::<Vec<_>>() {
        let value = portion_value(built_in, range, dimension).map_err(|what| {
            Error::unsupported(format!(
                "`{kernel}` uses {what}, which it does not have where it runs in a batch"
            ))
        })?;
        variables.extend(value.map(|value| (variable, value)));
    }
    if variables.is_empty() {
        return Ok(());
    }
    let mapping = Mapping {
        range: *range,
        shape: Shape::Same,
        guard: None,
        keeps_groups: true,
        assignment: Assignment::Single,
    };
    rewrite(module, kernel, &variables, &mapping, range, &HashMap::new())?;
    module.prune()
}

/// Returns the replacement for a built-in value in a [portion](take_portion) of a fused kernel, or `None` if the
/// launch has the device's value. Fails with the name of a value that is not known.
fn portion_value(
    built_in: u32,
    range: &NdRange,
    dimension: usize,
) -> Result<Option<Value>, String> {
    let Some(built_in) = BuiltIn::from_u32(built_in) else {
        return Err(format!("the built-in value {built_in}"));
    };
    let sizes = padded(range.global(), 1);
    let local = padded(range.local().unwrap_or_default(), 1);
    let groups: Sizes = std::array::from_fn(|d| sizes[d] / local[d].max(1));
    let along = |sizes: Sizes| {
        let size = sizes[dimension] as u64;
        Value::Remainder(Remainder { dimension: Some(dimension), size })
    };
    Ok(match built_in {
        BuiltIn::WorkDim => Some(Value::Constant([range.dimensions(); 3])),
        BuiltIn::GlobalSize => Some(Value::Constant(sizes)),
        BuiltIn::NumWorkgroups => Some(Value::Constant(groups)),
        BuiltIn::GlobalInvocationId => Some(along(sizes)),
        BuiltIn::WorkgroupId => Some(along(groups)),
        BuiltIn::GlobalLinearId => {
            let size = sizes.iter().map(|&size| size as u64).product();
            Some(Value::Remainder(Remainder { dimension: None, size }))
        }
        BuiltIn::GlobalOffset
        | BuiltIn::LocalInvocationId
        | BuiltIn::LocalInvocationIndex
        | BuiltIn::WorkgroupSize
        | BuiltIn::EnqueuedWorkgroupSize
        | BuiltIn::SubgroupSize
        | BuiltIn::SubgroupMaxSize
        | BuiltIn::NumSubgroups
        | BuiltIn::NumEnqueuedSubgroups
        | BuiltIn::SubgroupId
        | BuiltIn::SubgroupLocalInvocationId => None,
        _ => return Err(format!("the built-in value {built_in:?}")),
    })
}

/// Returns the error for a kernel that uses something that other work-items do not have.
fn no_id_error(kernel: &str, what: &str) -> Error {
    Error::unsupported(format!(
        "`{kernel}` uses {what}, which it does not have where it runs again for other work-items"
    ))
}

/// Adds a last parameter for the global id to a function and to all functions that read the id, and passes it
/// on in their calls. Returns the id of each function's new parameter.
fn add_id_parameters(
    module: &mut Module,
    function: u32,
    variables: &HashMap<u32, Value>,
) -> Result<HashMap<u32, u32>> {
    let mut interner = Interner::of(module);
    let (_, value_type) = vector(module, &mut interner, BuiltIn::GlobalInvocationId)?;
    let is_id = |id: u32| matches!(variables.get(&id), Some(Value::Given(_)));
    let mut given = variables.keys().filter(|&&id| is_id(id));
    if given.any(|&id| BuiltInType::of(module, id).is_some_and(|known| known.ty != value_type.ty)) {
        return Err(Error::unsupported("a kernel reads ids of its work-items in several types"));
    }
    let mut reading = HashSet::from([function]);
    loop {
        let before = reading.len();
        for known in &module.functions {
            let mut words = known.body.iter().flat_map(|i| i.words_from(0).collect::<Vec<_>>());
            let is_reading =
                |i: Instruction<'_>| i.called().is_some_and(|function| reading.contains(&function));
            if words.any(is_id) || known.body.iter().any(is_reading) {
                reading.insert(known.id);
            }
        }
        if reading.len() == before {
            break;
        }
    }
    let mut parameters = HashMap::new();
    for at in 0..module.functions.len() {
        let id = module.functions[at].id;
        if reading.contains(&id) {
            parameters.insert(id, module.fresh_id()?);
        }
    }
    for at in 0..module.functions.len() {
        let id = module.functions[at].id;
        let Some(&parameter) = parameters.get(&id) else { continue };
        let body = std::mem::take(&mut module.functions[at].body);
        let mut declaration = Declaration::of(&body);
        let is_bare = declaration.parameters.is_empty();
        declaration.parameters.push((parameter, value_type.ty));
        let mut new = Stream::default();
        for i in body.iter() {
            if declaration.rewrite(&i, module, &mut interner, &mut new)? {
                // A function without parameters has no instruction that the new one takes the place of.
                if is_bare && i.op() == Some(Op::Function) {
                    new.push(Op::FunctionParameter, [value_type.ty, parameter]);
                }
            } else if i.called().is_some_and(|callee| parameters.contains_key(&callee)) {
                new.push(Op::FunctionCall, i.words_from(0).chain([parameter]));
            } else {
                new.push_instruction(&i);
            }
        }
        module.functions[at].body = new;
    }
    Ok(parameters)
}

/// Checks that all input variables are known to be built-in values.
fn check_inputs(module: &Module, kernel: &str) -> Result<()> {
    let known: HashSet<_> = module.built_ins().map(|(variable, _)| variable).collect();
    let mut inputs = module.section(Section::Globals).iter().filter(|i| match i.view() {
        View::Variable { class, .. } | View::UntypedVariable { class, .. } => {
            class == StorageClass::Input as u32
        }
        _ => false,
    });
    if inputs.any(|input| input.result().is_none_or(|input| !known.contains(&input))) {
        return Err(Error::unsupported(format!(
            "`{kernel}` reads an input variable that its module does not declare as a known \
             built-in value"
        )));
    }
    Ok(())
}

/// Returns the error for a kernel that uses something of its work-groups.
fn no_groups_error(kernel: &str, what: &str, mapping: &Mapping, whole: &NdRange) -> Error {
    Error::unsupported(format!(
        "`{kernel}` uses {what}, but among the {:?} work-items of the fused kernel, its {:?} \
         work-items would not have their own work-groups",
        whole.global(),
        mapping.range.global()
    ))
}

/// Returns a feature of the kernel that depends on its work-group, in words; `None` if there is none.
pub(crate) fn work_group_feature(module: &Module) -> Option<&'static str> {
    let globals = module.section(Section::Globals).iter();
    let mut pointers = globals.filter(|i| i.op() == Some(Op::TypePointer));
    if pointers.any(|i| i.storage_class() == Some(StorageClass::Workgroup as u32)) {
        return Some("local memory");
    }
    let instructions = module.functions.iter().flat_map(|function| function.body.iter());
    instructions.filter_map(|i| i.op()).find_map(|op| {
        let name = format!("{op:?}");
        match op {
            _ if is_barrier(op) => Some("barriers"),
            _ if name.contains("Subgroup") => Some("sub-group operations"),
            _ if name.starts_with("Group") => Some("work-group operations"),
            _ => None,
        }
    })
}

/// Returns whether work-items wait for each other at an operation, or begin to.
pub(crate) fn is_barrier(op: Op) -> bool {
    Row::of(op).is_some_and(|row| row.class == Class::Barrier)
}

/// Returns the replacement for a built-in value, or `None` if the slot's kernel keeps the device's value. Fails
/// with the name of a value that the kernel must not read.
fn value(built_in: u32, mapping: &Mapping, whole: &NdRange) -> Result<Option<Value>, String> {
    let sizes = padded(mapping.range.global(), 1);
    let local = mapping.range.local().map(|local| padded(local, 1));
    let constant_if = |differs: bool, sizes| differs.then_some(Value::Constant(sizes));
    let repeats = mapping.assignment.repeats();
    let Some(built_in) = BuiltIn::from_u32(built_in) else {
        return Err(format!("the built-in value {built_in}"));
    };
    Ok(match built_in {
        BuiltIn::WorkDim => {
            let dimensions = mapping.range.dimensions();
            constant_if(dimensions != whole.dimensions(), [dimensions; 3])
        }
        BuiltIn::GlobalSize => constant_if(mapping.shape != Shape::Same, sizes),
        BuiltIn::GlobalInvocationId if repeats => Some(Value::Given(GivenId::Global)),
        BuiltIn::LocalInvocationId if repeats => {
            let local = local.ok_or("get_local_id")?;
            Some(Value::Given(GivenId::Local(local)))
        }
        BuiltIn::WorkgroupId if repeats => {
            let local = local.ok_or("get_group_id")?;
            Some(Value::Given(GivenId::Group(local)))
        }
        BuiltIn::GlobalInvocationId if mapping.shape == Shape::Remapped => Some(Value::GlobalId),
        BuiltIn::GlobalInvocationId | BuiltIn::GlobalOffset | BuiltIn::GlobalLinearId => None,
        BuiltIn::NumWorkgroups => match local {
            _ if mapping.shape == Shape::Same => None,
            Some(local) => {
                Some(Value::Constant(std::array::from_fn(|d| sizes[d] / local[d].max(1))))
            }
            None => return Err("get_num_groups".into()),
        },
        BuiltIn::WorkgroupSize | BuiltIn::EnqueuedWorkgroupSize => match local {
            _ if mapping.keeps_groups => None,
            Some(local) => Some(Value::Constant(local)),
            None => return Err("get_local_size".into()),
        },
        _ if mapping.keeps_groups => None,
        BuiltIn::LocalInvocationId => return Err("get_local_id".into()),
        BuiltIn::WorkgroupId => return Err("get_group_id".into()),
        BuiltIn::LocalInvocationIndex => return Err("get_local_linear_id".into()),
        _ => return Err(format!("the built-in value {built_in:?}")),
    })
}

/// Replaces loads of variables by values. `ids` has the parameters that give functions their global ids.
fn rewrite(
    module: &mut Module,
    kernel: &str,
    variables: &HashMap<u32, Value>,
    mapping: &Mapping,
    whole: &NdRange,
    ids: &HashMap<u32, u32>,
) -> Result<()> {
    let with_type = |&variable: &u32| Some((variable, BuiltInType::of(module, variable)?));
    let globals = variables.keys().filter_map(with_type).collect();
    let mut writer = Writer {
        interner: Interner::of(module),
        globals,
        values: HashMap::new(),
        new: Vec::new(),
        module,
        mapping,
        whole,
    };
    for at in 0..writer.module.functions.len() {
        // Cloned, not taken: meanwhile, the definitions of the body's ids are looked up in the module.
        let body = writer.module.functions[at].body.clone();
        let given = ids.get(&writer.module.functions[at].id).copied();
        writer.module.functions[at].body = writer.function(kernel, &body, variables, given)?;
    }
    let new = writer.new;
    writer.module.functions.extend(new);
    Ok(())
}

/// Rewriter of a slot's module.
struct Writer<'a> {
    module: &'a mut Module,
    interner: Interner,
    /// Types of the variables, by their ids.
    globals: HashMap<u32, BuiltInType>,
    /// Constants or functions that give the variables' values, by the variables' ids.
    values: HashMap<u32, u32>,
    new: Vec<Function>,
    mapping: &'a Mapping,
    whole: &'a NdRange,
}

/// Instructions of a function that read built-in values, by their word offset in its body.
struct Reads {
    /// Loads, each with the variable and the id of the component's index, if only a component is loaded.
    loads: HashMap<u32, (u32, Option<u32>)>,
    /// Calculations of the addresses of components.
    dropped: HashSet<u32>,
}

impl Writer<'_> {
    /// Returns the body of a function with values in place of loads of the variables. `given` is the parameter
    /// that gives it the global id, if there is one.
    fn function(
        &mut self,
        kernel: &str,
        body: &Stream,
        variables: &HashMap<u32, Value>,
        given: Option<u32>,
    ) -> Result<Stream> {
        let Reads { loads, dropped } = self.reads(kernel, body, variables)?;
        let mut new = Stream::default();
        for (location, i) in located((0, body)) {
            if dropped.contains(&location.offset) {
                continue;
            }
            let load = loads.get(&location.offset);
            let load = load.and_then(|&(id, index)| Some((id, index, *variables.get(&id)?)));
            let Some((variable, index, kind)) = load else {
                new.push_instruction(&i);
                continue;
            };
            let (Some(ty), Some(id)) = (i.result_type(), i.result()) else { continue };
            let value_type = self.globals.get(&variable).copied().filter(|known| {
                let is_component = index.is_some() && known.is_vector;
                let expected = if is_component { known.component } else { known.ty };
                ty == expected && (index.is_none() || known.is_vector)
            });
            let value_type = value_type.ok_or_else(|| {
                Error::unsupported(format!("`{kernel}` reads a built-in value as another type"))
            })?;
            let value = match (kind, given) {
                (Value::Given(kind), Some(parameter)) => {
                    self.given_id(kind, parameter, value_type, &mut new)?
                }
                _ => self.value(variable, kind, value_type)?,
            };
            let whole = if index.is_some() { self.module.fresh_id()? } else { id };
            match kind {
                Value::GlobalId | Value::Remainder(_) => {
                    new.push(Op::FunctionCall, [value_type.ty, whole, value]);
                }
                _ => new.push(Op::CopyObject, [value_type.ty, whole, value]),
            }
            if let Some(index) = index {
                new.push(Op::VectorExtractDynamic, [ty, id, whole, index]);
            }
        }
        Ok(new)
    }

    /// Emits the calculation of an id from the global id `given`. Returns its id.
    fn given_id(
        &mut self,
        kind: GivenId,
        given: u32,
        value_type: BuiltInType,
        new: &mut Stream,
    ) -> Result<u32> {
        let (op, sizes) = match kind {
            GivenId::Global => return Ok(given),
            GivenId::Local(sizes) => (Op::UMod, sizes),
            GivenId::Group(sizes) => (Op::UDiv, sizes),
        };
        let (sizes, id) = (self.constant(value_type, sizes)?, self.module.fresh_id()?);
        new.push(op, [value_type.ty, id, given, sizes]);
        Ok(id)
    }

    /// Finds the loads of the variables and of their components. Fails if something else uses a variable's
    /// address.
    fn reads(&self, kernel: &str, body: &Stream, variables: &HashMap<u32, Value>) -> Result<Reads> {
        let mut reads = Reads { loads: HashMap::new(), dropped: HashSet::new() };
        // Addresses of components: the variable and the index of the component.
        let mut chains = HashMap::new();
        let definitions = self.module.definitions();
        let refuse = |i: &Instruction<'_>| {
            let name = i.name();
            Error::unsupported(format!("`{kernel}` uses the address of a built-in value in {name}"))
        };
        for (location, i) in located((0, body)) {
            let mut used = Vec::new();
            operand_ids(&i, &definitions, |id| {
                if variables.contains_key(&id) || chains.contains_key(&id) {
                    used.push(id);
                }
            })?;
            let Some(&id) = used.first() else { continue };
            match (i.view(), chains.get(&id).copied()) {
                (View::Load { pointer, .. }, None) if pointer == id => {
                    reads.loads.insert(location.offset, (id, None));
                }
                (View::Load { pointer, .. }, Some((variable, index))) if pointer == id => {
                    reads.loads.insert(location.offset, (variable, Some(index)));
                }
                (View::Chain { base, indexes }, None) if base == id && used.len() == 1 => {
                    let index = indexes.single().ok_or_else(|| refuse(&i))?;
                    let chain = i.result().ok_or_else(|| refuse(&i))?;
                    chains.insert(chain, (id, index));
                    reads.dropped.insert(location.offset);
                }
                _ => return Err(refuse(&i)),
            }
        }
        Ok(reads)
    }

    /// Returns the constant or the function that gives a variable's value.
    fn value(&mut self, variable: u32, kind: Value, value_type: BuiltInType) -> Result<u32> {
        if let Some(&known) = self.values.get(&variable) {
            return Ok(known);
        }
        let id = match kind {
            Value::Constant(sizes) if value_type.is_vector => self.constant(value_type, sizes)?,
            Value::Constant([first, ..]) => {
                number(self.module, &mut self.interner, value_type, first as u64)?
            }
            Value::GlobalId => self.global_id(variable, value_type)?,
            Value::Remainder(remainder) => {
                let (module, interner) = (&mut *self.module, &mut self.interner);
                let function = remainder.function(module, interner, variable, value_type)?;
                let id = function.id;
                self.new.push(function);
                id
            }
            Value::Given(_) => {
                return Err(Error::unsupported(
                    "a function reads a global id that it is not given",
                ));
            }
        };
        self.values.insert(variable, id);
        Ok(id)
    }

    /// Returns the constant vector of sizes.
    fn constant(&mut self, value_type: BuiltInType, sizes: Sizes) -> Result<u32> {
        let mut parts = [0; 3];
        for (part, size) in parts.iter_mut().zip(sizes) {
            *part = number(self.module, &mut self.interner, value_type, size as u64)?;
        }
        self.interner.constant_id(self.module, Op::ConstantComposite, value_type.ty, &parts)
    }

    /// Adds a function that returns the slot's global id.
    fn global_id(&mut self, variable: u32, value_type: BuiltInType) -> Result<u32> {
        let (module, interner) = (&mut *self.module, &mut self.interner);
        if !value_type.is_vector {
            return Err(Error::unsupported("the global id is not a vector of three components"));
        }
        let mut body = Stream::default();
        let ty = interner.type_id(module, Op::TypeFunction, &[value_type.ty])?;
        let (id, label) = (module.fresh_id()?, module.fresh_id()?);
        body.push(Op::Function, [value_type.ty, id, FunctionControl::INLINE.bits(), ty]);
        body.push(Op::Label, [label]);
        let global = Global { variable, value_type };
        let mut linear = global.linear_id(module, interner, &mut body, self.whole)?;
        if let Assignment::Strided { stride, index } = self.mapping.assignment {
            let stride = number(module, interner, value_type, stride)?;
            let index = number(module, interner, value_type, index)?;
            let (product, sum) = (module.fresh_id()?, module.fresh_id()?);
            body.push(Op::IMul, [value_type.component, product, linear, stride]);
            body.push(Op::IAdd, [value_type.component, sum, product, index]);
            linear = sum;
        }
        let sizes = padded(self.mapping.range.global(), 1);
        let whole = value_type.id_vector(module, interner, &mut body, linear, sizes)?;
        body.push(Op::ReturnValue, [whole]);
        body.push(Op::FunctionEnd, []);
        self.new.push(Function { id, body });
        Ok(id)
    }
}
