//! Functions: signatures, declarations and calls.
//!
//! All values are declared at the top, because a `goto` must not jump over an initialization. Compilers turn
//! such variables back into values at once.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;

use kiln_spirv::Result;
use kiln_spirv::edit::{Instruction, List, View};
use rspirv::spirv::{Decoration, FunctionControl, FunctionParameterAttribute, Op, StorageClass};

use super::constants::{Place, bounded};
use super::generic::Spaces;
use super::types::{Scalar, Space, Type};
use super::{Emitter, damaged, malformed, typed, unsupported};

/// Maximum depth of nested calls. Compilers do not produce deeper ones, and following them needs a large stack.
const MAX_DEPTH: usize = 64;

/// Maximum number of words of function bodies.
///
/// A body counts each time it is emitted: for each kernel whose function it is, and for each combination of
/// address spaces of its generic parameters. The number of combinations can double with each level of calls.
const MAX_WORDS: usize = 1 << 23;

/// An emitted function.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) name: String,
    /// Address spaces of the returned pointer, by level, if it is generic.
    pub(super) returns: Vec<Space>,
    /// Variables of local memory to which the function takes pointers, after its own parameters.
    pub(super) locals: BTreeSet<u32>,
}

/// A function during its translation.
pub(super) struct Body<'e, 'm> {
    pub(super) emitter: &'e mut Emitter<'m>,
    is_kernel: bool,
    /// Address spaces of the values that have generic pointers.
    spaces: Spaces,
    locals: BTreeSet<u32>,
    pub(super) inputs: BTreeSet<u32>,
    /// Images and samplers that are stored to variables, by the variable.
    pub(super) stored_images: HashMap<u32, u32>,
    /// Names of the declared values by type, in the order of the types' first use.
    declarations: Vec<(String, Vec<String>)>,
    variables: String,
    pub(super) text: String,
}

/// Specifiers of a function that takes local memory and is not to be inlined. The attribute is left out for
/// PoCL, which miscompiles such functions.
const NOINLINE_WITH_LOCAL: &str =
    "#ifndef POCL_DEVICE_ADDRESS_BITS\n__attribute__((noinline))\n#endif\nstatic";

impl<'m> Emitter<'m> {
    /// Returns the types of a function's parameters.
    pub(super) fn function_type(&self, function: u32) -> Result<List<'m>> {
        let function = self.definition(function)?;
        let View::Function { ty, .. } = function.view() else { return Err(damaged(&function)) };
        let ty = self.definition(ty)?;
        match ty.view() {
            View::TypeFunction { parameters, .. } => Ok(parameters),
            _ => Err(damaged(&ty)),
        }
    }

    /// Returns the address spaces that distinguish the instance of a function for a call with these arguments.
    pub(super) fn instance_key(
        &self,
        callee: u32,
        arguments: &[u32],
        spaces: &Spaces,
    ) -> Result<Vec<Space>> {
        let parameters = self.function_type(callee)?;
        let mut key = Vec::new();
        for (parameter, argument) in parameters.iter().zip(arguments) {
            for level in self.generic_levels(parameter)? {
                let space = spaces.get(argument).and_then(|levels| levels.get(level)).copied();
                let is_null = self.definition(*argument)?.op() == Some(Op::ConstantNull);
                key.push(space.or(is_null.then_some(Space::Private)).ok_or_else(|| {
                    unsupported(
                        "an argument of the generic address space, whose actual address space the \
                         module does not show,",
                    )
                })?);
            }
        }
        Ok(key)
    }

    /// Emits a function, unless the instance for these address spaces is emitted already. `kernel` holds the
    /// name and the attributes of a kernel.
    pub(super) fn emit_function(
        &mut self,
        id: u32,
        parameters: &[Space],
        kernel: Option<(&str, &str)>,
    ) -> Result<Instance> {
        let key = (id, parameters.to_vec());
        if kernel.is_none()
            && let Some(done) = self.instances.get(&key)
        {
            return Ok(done.clone());
        }
        if self.calling.contains(&id) {
            return Err(unsupported("recursion"));
        }
        if self.calling.len() >= MAX_DEPTH {
            return Err(unsupported("calls nested deeper than 64 levels"));
        }
        self.calling.push(id);
        let label = self.name(id, "function_");
        let instance = self.emit_body(id, parameters, kernel);
        self.calling.pop();
        let instance = if kernel.is_some() {
            instance?
        } else {
            instance.map_err(|error| error.within(format!("in function `{label}`")))?
        };
        if kernel.is_none() {
            self.instances.insert(key, instance.clone());
        }
        Ok(instance)
    }

    /// Emits a function with its body. The arguments are those of [`emit_function`](Self::emit_function).
    fn emit_body(
        &mut self,
        id: u32,
        parameters: &[Space],
        kernel: Option<(&str, &str)>,
    ) -> Result<Instance> {
        let Some(&function) = self.functions.get(&id) else {
            return Err(unsupported(format!("a call of id {id}, which is not a function")));
        };
        let linked_name = self.linked_name(id)?;
        if function.is_declaration() && linked_name.is_none() {
            let name = self.import(id).unwrap_or("without a name");
            return Err(unsupported(format!("function `{name}`, which no module defines,")));
        }
        self.words = self.words.saturating_add(function.body.words().len());
        if self.words > MAX_WORDS {
            return Err(unsupported(
                "functions of more than 32 MiB, counting each as often as it is emitted,",
            ));
        }
        let (spaces, returns) = self.infer(function, parameters)?;
        let stored_images = self.stored_images(function)?;
        let name = match kernel {
            Some((name, _)) => name.to_owned(),
            None => match linked_name {
                Some(name) => name.to_owned(),
                None => self.instance_name(id, parameters),
            },
        };
        let mut body = Body {
            emitter: self,
            is_kernel: kernel.is_some(),
            spaces,
            locals: BTreeSet::new(),
            inputs: BTreeSet::new(),
            stored_images,
            declarations: Vec::new(),
            variables: String::new(),
            text: String::new(),
        };
        let mut signature = Vec::new();
        let (mut result, mut control) = (None, FunctionControl::NONE);
        for instruction in function.body.iter() {
            match instruction.op() {
                Some(Op::Function) => {
                    let View::Function { control: flags, .. } = instruction.view() else {
                        return Err(damaged(&instruction));
                    };
                    result = instruction.result_type();
                    control = FunctionControl::from_bits_truncate(flags);
                }
                Some(Op::FunctionParameter) => signature.push(body.parameter(&instruction)?),
                Some(Op::FunctionEnd) => break,
                _ => {}
            }
        }
        let result = result.ok_or_else(|| malformed("a function"))?;
        if function.is_declaration() {
            let result = body.emitter.type_name_in(result, &returns)?;
            body.emitter.declare_function(&name, &result, &signature);
            return Ok(Instance::imported(&name));
        }
        body.blocks(function)?;
        let result = body.emitter.type_name_in(result, &returns)?;
        let locals = body.locals.clone();
        let is_local = |parameter: &String| parameter.starts_with("local ");
        let takes_local = !locals.is_empty() || signature.iter().any(is_local);
        let specifiers = match kernel {
            Some((_, attributes)) => format!("{attributes}kernel "),
            None => match body.emitter.exported_specifiers(id, control) {
                Some(specifiers) => specifiers.to_owned(),
                None => format!("{} ", specifiers(control, takes_local)),
            },
        };
        body.write(&name, &result, signature, &specifiers)?;
        Ok(Instance { name, returns, locals })
    }

    /// Returns the name of an instance of a function that is not a kernel.
    fn instance_name(&self, id: u32, parameters: &[Space]) -> String {
        let mut name = self.name(id, "function_");
        for space in parameters {
            let _ = write!(name, "_{space}");
        }
        self.names.beside_fixed(name)
    }
}

/// Returns the specifiers of a function that is not a kernel. `takes_local` is whether it takes local memory.
fn specifiers(control: FunctionControl, takes_local: bool) -> &'static str {
    if control.contains(FunctionControl::INLINE) {
        // `inline` alone is a hint, which Intel's CPU runtime follows too late to see through the call.
        "static inline __attribute__((always_inline))"
    } else if !control.contains(FunctionControl::DONT_INLINE) {
        "static"
    } else if takes_local {
        NOINLINE_WITH_LOCAL
    } else {
        "static __attribute__((noinline))"
    }
}

/// Returns a function's result, name and parameters, as its declaration and its definition have them.
pub(super) fn prototype(name: &str, result: &str, parameters: &[String]) -> String {
    let parameters = if parameters.is_empty() { "void".to_owned() } else { parameters.join(", ") };
    let separator = if result.ends_with('*') { "" } else { " " };
    format!("{result}{separator}{name}({parameters})")
}

impl<'m> Body<'_, 'm> {
    fn parameter(&mut self, parameter: &Instruction<'_>) -> Result<String> {
        let (ty, id) = typed(parameter)?;
        let name = self.name(id);
        if self.is_by_value(id) {
            let Type::Pointer { pointee: Some(pointee), .. } = self.emitter.ty(ty)? else {
                return Err(malformed("a parameter that is passed by value"));
            };
            return Ok(format!("{} {name}", self.emitter.type_name(pointee)?));
        }
        let mut text = self.type_of(id, ty)?;
        if self.is_kernel
            && let Ok(lanes) = self.emitter.lanes(ty)
            && (lanes.scalar == Scalar::Bool || lanes.is_odd())
        {
            let what = self.emitter.definition(ty)?.name();
            return Err(unsupported(format!(
                "a kernel's parameter of {} bits ({what})",
                lanes.bits()
            )));
        }
        if self.is_kernel
            && let Type::Pointer { class, .. } = self.emitter.ty(ty)?
            && !matches!(
                class,
                StorageClass::CrossWorkgroup
                    | StorageClass::Workgroup
                    | StorageClass::UniformConstant
            )
        {
            return Err(unsupported(format!("a kernel's parameter that points to {class:?}")));
        }
        if self.is_kernel
            && let Type::Pointer { pointee: Some(pointee), .. } = self.emitter.ty(ty)?
            && matches!(self.emitter.ty(pointee)?, Type::Pointer { .. })
        {
            return Err(unsupported("a kernel's parameter that points to pointers"));
        }
        if !text.ends_with('*') {
            text.push(' ');
        } else if self.emitter.has_attribute(id, FunctionParameterAttribute::NoAlias) {
            text += "restrict ";
        }
        Ok(text + &name)
    }

    fn is_by_value(&self, id: u32) -> bool {
        self.emitter.has_attribute(id, FunctionParameterAttribute::ByVal)
    }

    fn write(
        self,
        name: &str,
        result: &str,
        mut signature: Vec<String>,
        specifiers: &str,
    ) -> Result<()> {
        let mut top = String::new();
        for &local in &self.locals {
            let pointee = self.pointee(local)?;
            let (ty, name) = (self.emitter.type_name(pointee)?, self.emitter.name(local, "local_"));
            if self.is_kernel {
                let aligned = self.emitter.aligned(local);
                let _ = writeln!(top, "    local {ty} {name}{aligned};");
            } else {
                signature.push(format!("local {ty} *{name}"));
            }
        }
        let text = format!("\n{specifiers}{}\n{{\n", prototype(name, result, &signature));
        for (ty, names) in &self.declarations {
            let separator = if ty.ends_with('*') { "" } else { " " };
            // Each pointer has a line of its own, because in C the `*` belongs to the declared name.
            let chunk = if ty.ends_with('*') { 1 } else { 8 };
            for names in names.chunks(chunk) {
                let _ = writeln!(top, "    {ty}{separator}{};", names.join(", "));
            }
        }
        top += &self.variables;
        self.emitter.code += &(text + &top);
        if !top.is_empty() {
            self.emitter.code.push('\n');
        }
        self.emitter.code += &self.text;
        self.emitter.code += "}\n";
        Ok(())
    }

    pub(super) fn variable(&mut self, variable: &Instruction<'_>) -> Result<()> {
        let (_, id) = typed(variable)?;
        let ty = self.pointee(id)?;
        if self.emitter.ty(ty)?.is_image() {
            return Ok(());
        }
        let inner = self.inner_spaces(id);
        let ty = self.emitter.type_name_in(ty, &inner)?;
        let separator = if ty.ends_with('*') { "" } else { " " };
        let (name, aligned) = (self.name(id), self.emitter.aligned(id));
        let _ = writeln!(self.variables, "    {ty}{separator}{name}{aligned};");
        Ok(())
    }

    pub(super) fn pointee(&self, pointer: u32) -> Result<u32> {
        self.emitter.pointee(pointer)
    }

    pub(super) fn name(&self, id: u32) -> String {
        self.emitter.name(id, "v")
    }

    /// Returns the name of a value's type.
    pub(super) fn type_of(&mut self, id: u32, ty: u32) -> Result<String> {
        let spaces = self.spaces.get(&id).cloned().unwrap_or_default();
        self.emitter.type_name_in(ty, &spaces)
    }

    pub(super) fn space(&self, pointer: u32) -> Result<Space> {
        if let Some(space) = self.spaces.get(&pointer).and_then(|spaces| spaces.first()) {
            return Ok(*space);
        }
        let Type::Pointer { class, .. } = self.emitter.ty(self.emitter.type_of(pointer)?)? else {
            return Err(malformed("a pointer"));
        };
        Space::of(class)?.ok_or_else(|| {
            unsupported(
                "a pointer of the generic address space, whose actual address space the module \
                 does not show,",
            )
        })
    }

    /// Returns the address spaces of the pointers that a pointer points to, by level.
    pub(super) fn inner_spaces(&self, pointer: u32) -> Vec<Space> {
        let spaces = self.spaces.get(&pointer).and_then(|spaces| spaces.get(1..));
        spaces.unwrap_or_default().to_vec()
    }

    pub(super) fn declare(&mut self, id: u32, ty: u32) -> Result<()> {
        let (ty, name) = (self.type_of(id, ty)?, self.name(id));
        match self.declarations.iter_mut().find(|(known, _)| *known == ty) {
            Some((_, names)) => names.push(name),
            None => self.declarations.push((ty, vec![name])),
        }
        Ok(())
    }

    pub(super) fn line(&mut self, statement: &str) {
        let _ = writeln!(self.text, "    {statement}");
    }

    /// Declares an instruction's result and assigns its value.
    pub(super) fn assign(&mut self, id: u32, ty: u32, value: &str) -> Result<()> {
        self.declare(id, ty)?;
        let name = self.name(id);
        self.line(&format!("{name} = {value};"));
        Ok(())
    }

    /// Returns the name of the memory that a pointer points to, if it has a name in this function.
    pub(super) fn place(&mut self, pointer: u32) -> Result<Option<String>> {
        let definition = self.emitter.definition(pointer)?;
        let is_named = match definition.op() {
            Some(Op::Variable | Op::UntypedVariableKHR) => {
                let class = variable_class(&definition).and_then(StorageClass::from_u32);
                match class {
                    Some(StorageClass::Function) if self.emitter.is_in_function(pointer) => true,
                    Some(StorageClass::Function) => {
                        let name = self.emitter.name(pointer, "variable_");
                        return Err(unsupported(format!(
                            "the variable `{name}` in private memory, but outside of functions"
                        )));
                    }
                    Some(StorageClass::Workgroup) => {
                        if initializer(&definition)
                            .is_some_and(|value| !self.emitter.is_undefined(value))
                        {
                            return Err(unsupported(
                                "a variable of local memory with an initial value",
                            ));
                        }
                        self.locals.insert(pointer);
                        if !self.is_kernel {
                            return Ok(None);
                        }
                        return Ok(Some(self.emitter.name(pointer, "local_")));
                    }
                    Some(StorageClass::UniformConstant) => {
                        return self.emitter.constant_variable(pointer).map(Some);
                    }
                    Some(StorageClass::Input) => {
                        if self.inputs.insert(pointer) {
                            let ty = self.pointee(pointer)?;
                            let ty = self.emitter.type_name(ty)?;
                            let name = self.name(pointer);
                            let _ = writeln!(self.variables, "    {ty} {name};");
                        }
                        true
                    }
                    _ => {
                        let name = self.emitter.name(pointer, "variable_");
                        return Err(unsupported(format!("the global variable `{name}`")));
                    }
                }
            }
            Some(Op::FunctionParameter) => self.is_by_value(pointer),
            _ => false,
        };
        Ok(is_named.then(|| self.name(pointer)))
    }

    /// Returns the text of a value, to which operators and members can be attached.
    pub(super) fn value(&mut self, id: u32) -> Result<String> {
        let id = match self.emitter.ty(self.emitter.type_of(id)?) {
            Ok(ty) if ty.is_image() => self.image_source(id)?,
            _ => id,
        };
        if let Some(place) = self.place(id)? {
            return Ok(format!("(&{place})"));
        }
        let definition = self.emitter.definition(id)?;
        if let Some(text) = self.emitter.constant(id, Place::Expression)? {
            return Ok(text);
        }
        match definition.op() {
            Some(Op::SpecConstantOp | Op::ConstantComposite | Op::SpecConstantComposite) => {
                self.emitter.enter_constant()?;
                let text = self.constant_expression(&definition);
                self.emitter.leave_constant();
                text
            }
            Some(Op::Variable | Op::UntypedVariableKHR) => Ok(self.emitter.name(id, "local_")),
            Some(op) if format!("{op:?}").contains("Constant") => {
                Err(unsupported(definition.name()))
            }
            _ => Ok(self.name(id)),
        }
    }

    fn constant_expression(&mut self, constant: &Instruction<'_>) -> Result<String> {
        let (ty, id) = typed(constant)?;
        let (number, operands) = match constant.view() {
            View::Composite { parts } => {
                let mut texts = Vec::new();
                for part in parts.iter() {
                    texts.push(self.value(part)?);
                }
                return self.emitter.composite(ty, &texts, Place::Expression);
            }
            View::SpecConstantOp { operation, operands } => (operation, operands),
            _ => return Err(damaged(constant)),
        };
        let op = Op::from_u32(number).ok_or_else(|| unsupported(format!("opcode {number}")))?;
        let operands: Vec<_> = operands.iter().collect();
        let text = self.expression(op, ty, id, &operands)?;
        let text = text.ok_or_else(|| unsupported(format!("OpSpecConstantOp with Op{op:?}")));
        let text = bounded(text?)?;
        let ty = self.type_of(id, ty)?;
        Ok(if ty.starts_with("struct") { format!("({text})") } else { format!("(({ty})({text}))") })
    }

    /// Returns the expression of the memory that a pointer points to.
    pub(super) fn target(&mut self, pointer: u32) -> Result<String> {
        match self.place(pointer)? {
            Some(place) => Ok(place),
            None => Ok(format!("(*{})", self.value(pointer)?)),
        }
    }

    pub(super) fn call(&mut self, call: &Instruction<'_>) -> Result<()> {
        let (ty, id) = typed(call)?;
        let callee = call.called().ok_or_else(|| damaged(call))?;
        let arguments: Vec<_> = call.arguments().collect();
        let key = self.emitter.instance_key(callee, &arguments, &self.spaces)?;
        let instance = self.emitter.emit_function(callee, &key, None)?;
        let function = self.emitter.functions.get(&callee);
        let parameters = function.map(|function| {
            let head = function.body.iter().take_while(|i| i.op() != Some(Op::Label));
            head.filter(|parameter| parameter.op() == Some(Op::FunctionParameter))
        });
        let parameters: Vec<_> = parameters.into_iter().flatten().collect();
        let mut texts = Vec::new();
        for (&argument, parameter) in arguments.iter().zip(&parameters) {
            texts.push(if self.is_by_value(typed(parameter)?.1) {
                self.target(argument)?
            } else {
                self.value(argument)?
            });
        }
        for &local in &instance.locals {
            texts.push(self.value(local)?);
        }
        let text = format!("{}({})", instance.name, texts.join(", "));
        if self.emitter.is_void(ty)? {
            self.line(&format!("{text};"));
            return Ok(());
        }
        self.assign(id, ty, &text)
    }
}

/// Returns the initial value of a variable, if it has one.
pub(super) fn initializer(variable: &Instruction<'_>) -> Option<u32> {
    match variable.view() {
        View::Variable { initial, .. } | View::UntypedVariable { initial, .. } => initial,
        _ => None,
    }
}

/// Returns the storage class of a variable.
pub(super) fn variable_class(variable: &Instruction<'_>) -> Option<u32> {
    match variable.view() {
        View::Variable { class, .. } | View::UntypedVariable { class, .. } => Some(class),
        _ => None,
    }
}

impl Emitter<'_> {
    /// Returns the type that a pointer points to.
    fn pointee(&self, pointer: u32) -> Result<u32> {
        let definition = self.definition(pointer)?;
        if let View::UntypedVariable { contents: Some(ty), .. } = definition.view() {
            return Ok(ty);
        }
        match self.ty(self.type_of(pointer)?)? {
            Type::Pointer { pointee: Some(pointee), .. } => Ok(pointee),
            _ => Err(unsupported("memory of an unknown type")),
        }
    }

    fn aligned(&self, variable: u32) -> String {
        match self.decoration(variable, Decoration::Alignment) {
            Some(&[alignment, ..]) if alignment.is_power_of_two() => {
                format!(" __attribute__((aligned({alignment})))")
            }
            _ => String::new(),
        }
    }

    /// Declares a variable of constant memory, once, and returns its name.
    pub(super) fn constant_variable(&mut self, id: u32) -> Result<String> {
        let linked_name = self.linked_name(id)?.map(str::to_owned);
        let is_linked = linked_name.is_some();
        let name = linked_name.unwrap_or_else(|| self.name(id, "constant_"));
        let location = self.definitions.location(id).ok_or_else(|| malformed("a variable"))?;
        if self.constants.contains_key(&location) {
            return Ok(name);
        }
        let variable = self.definition(id)?;
        let initializer = initializer(&variable);
        let Some(initializer) = initializer else {
            if is_linked {
                let pointee = self.pointee(id)?;
                let ty = self.type_name(pointee)?;
                self.constants.insert(location, format!("\nextern constant {ty} {name};\n"));
                return Ok(name);
            }
            return Err(unsupported(match self.import(id) {
                Some(import) => format!("variable `{import}`, which no module defines,"),
                None => format!("variable `{name}` of constant memory without an initial value"),
            }));
        };
        let pointee = self.pointee(id)?;
        let ty = self.type_name(pointee)?;
        let value = self.constant(initializer, Place::Initializer)?;
        let value =
            value.ok_or_else(|| unsupported(format!("the initial value of variable `{name}`")))?;
        let aligned = self.aligned(id);
        let text = format!("\nconstant {ty} {name}{aligned} = {value};\n");
        self.constants.insert(location, text);
        Ok(name)
    }
}
