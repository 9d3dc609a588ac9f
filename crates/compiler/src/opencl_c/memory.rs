//! Instructions that read, write and address memory.

use kiln_spirv::Result;
use kiln_spirv::edit::{Access as Operands, Instruction, View};
use rspirv::spirv::StorageClass;

use super::function::{Body, variable_class};
use super::types::{Scalar, Space, Type, pointer_to};
use super::{damaged, malformed, typed, unsupported};

/// Memory operands of an instruction, as far as they matter here.
#[derive(Clone, Copy, Debug, Default)]
struct Access {
    is_volatile: bool,
    alignment: Option<u32>,
}

impl Access {
    fn of(operands: Operands<'_>) -> Self {
        let alignment = operands.alignment().filter(|alignment| alignment.is_power_of_two());
        Self { is_volatile: operands.is_volatile(), alignment }
    }
}

impl Body<'_, '_> {
    /// Translates an instruction that accesses memory. Returns whether the instruction is one.
    pub(super) fn memory(&mut self, instruction: &Instruction<'_>) -> Result<bool> {
        match instruction.view() {
            View::Load { pointer, access } => {
                let (ty, id) = typed(instruction)?;
                let text = self.load(pointer, ty, Access::of(access))?;
                self.assign(id, ty, &text)?;
            }
            View::Store { pointer, value, access } => {
                let ty = self.emitter.type_of(value)?;
                let text = self.value(value)?;
                self.store(pointer, ty, &text, Access::of(access))?;
            }
            View::CopyMemory { target: to, source: from, access, source_access } => {
                let target_access = Access::of(access);
                // Since SPIR-V 1.4, operands for the source may follow those for the target.
                let source_access = match source_access.mask() {
                    Some(_) => Access::of(source_access),
                    None => target_access,
                };
                let ty = self.pointee(to)?;
                let text = self.load(from, ty, source_access)?;
                self.store(to, ty, &text, target_access)?;
            }
            View::CopyMemorySized { target: to, source: from, size, .. } => {
                let spaces = (self.space(to)?, self.space(from)?);
                let copy = self.emitter.copy_helper(spaces.0, spaces.1);
                let (to, from, size) = (self.value(to)?, self.value(from)?, self.value(size)?);
                let (to_space, from_space) = spaces;
                self.line(&format!(
                    "{copy}(({to_space} uchar *){to}, ({from_space} uchar *){from}, {size});"
                ));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn load(&mut self, pointer: u32, ty: u32, access: Access) -> Result<String> {
        let definition = self.emitter.definition(pointer)?;
        if variable_class(&definition) == Some(StorageClass::Input as u32) {
            return self.input(pointer, ty);
        }
        match self.accessed(pointer, ty, access)? {
            Accessed::Place(place) => Ok(place),
            Accessed::Three(pointer) => Ok(format!("vload3(0, {pointer})")),
            Accessed::Parts(vector, pointer) => {
                Ok(format!("({vector})({pointer}[0], {pointer}[1], {pointer}[2])"))
            }
        }
    }

    fn store(&mut self, pointer: u32, ty: u32, value: &str, access: Access) -> Result<()> {
        let statement = match self.accessed(pointer, ty, access)? {
            Accessed::Place(place) => format!("{place} = {value};"),
            Accessed::Three(pointer) => format!("vstore3({value}, 0, {pointer});"),
            Accessed::Parts(vector, pointer) => {
                // No value of the module has this name.
                let [a, b, c] = [0, 1, 2].map(|at| format!("{pointer}[{at}] = of_three.s{at};"));
                format!("{{ {vector} of_three = {value}; {a} {b} {c} }}")
            }
        };
        self.line(&statement);
        Ok(())
    }

    /// Returns the text for memory of type `ty` that a pointer points to.
    fn accessed(&mut self, pointer: u32, ty: u32, access: Access) -> Result<Accessed> {
        let pointer_ty = self.emitter.type_of(pointer)?;
        if !matches!(self.emitter.ty(pointer_ty)?, Type::Pointer { .. }) {
            return Err(malformed("a pointer"));
        }
        let is_same = self.pointee(pointer).ok() == Some(ty);
        if is_same
            && !access.is_volatile
            && let Some(place) = self.place(pointer)?
        {
            return Ok(Accessed::Place(place));
        }
        let space = self.space(pointer)?;
        self.check_layout(ty, space)?;
        let inner = self.inner_spaces(pointer);
        let name = self.emitter.type_name_in(ty, &inner)?;
        let natural = self.emitter.alignment(ty)?;
        // Assigning a vector of three components writes a fourth one.
        if let Type::Vector { component, count: 3 } = self.emitter.ty(ty)?
            && !access.is_volatile
            && self.emitter.lanes(ty)?.scalar != Scalar::Bool
        {
            let size = self.emitter.alignment(component)?;
            let lowered = access.alignment.filter(|&alignment| alignment < size);
            let component = self.emitter.type_name(component)?;
            let text = self.value(pointer)?;
            return Ok(self.accessed_three(name, &component, space, lowered, &text));
        }
        let lowered = access.alignment.filter(|&alignment| alignment < natural);
        let name = match self.emitter.ty(ty)? {
            _ if lowered.is_some() => self.emitter.access_name(&name, lowered),
            // In C, byte accesses alias with all others.
            Type::Scalar(scalar) if self.emitter.puns && scalar != Scalar::Int(8) => {
                self.emitter.access_name(&name, None)
            }
            Type::Vector { .. } | Type::Pointer { .. } | Type::Struct | Type::Array { .. }
                if self.emitter.puns =>
            {
                self.emitter.access_name(&name, None)
            }
            _ if is_same && !access.is_volatile => {
                let target = self.target(pointer)?;
                return Ok(Accessed::Place(unparenthesized(&target).to_owned()));
            }
            _ => name,
        };
        let text = self.value(pointer)?;
        let pointer = pointer_to(space, &name);
        let volatile = if access.is_volatile { "volatile " } else { "" };
        let cast = if name.ends_with('*') {
            // `volatile` qualifies the pointee, which is a pointer itself.
            format!("({name}{volatile}{space} *)")
        } else {
            format!("({volatile}{pointer})")
        };
        Ok(Accessed::Place(format!("*{cast}{text}")))
    }

    /// Returns the text for a vector of three components in memory. `lowered` is the alignment, if it is lower
    /// than that of a component; `pointer` is the text of the pointer.
    fn accessed_three(
        &mut self,
        vector: String,
        component: &str,
        space: Space,
        lowered: Option<u32>,
        pointer: &str,
    ) -> Accessed {
        match lowered {
            // `vload3` and `vstore3` take pointers that are aligned to the component.
            Some(alignment) => {
                let component = self.emitter.access_name(component, Some(alignment));
                Accessed::Parts(vector, format!("(({space} {component} *){pointer})"))
            }
            None => Accessed::Three(format!("({space} {component} *){pointer}")),
        }
    }

    /// Refuses types that a module lays out in memory differently from the text. These are vectors of Booleans,
    /// whose components take one bit each in the module and one byte each in the text, and integers whose
    /// number of bytes no type of OpenCL C has. Memory that the text itself declares has the text's own layout.
    fn check_layout(&self, ty: u32, space: Space) -> Result<()> {
        if !matches!(self.emitter.ty(ty)?, Type::Scalar(_) | Type::Vector { .. }) {
            return Ok(());
        }
        let lanes = self.emitter.lanes(ty)?;
        let is_own = matches!(space, Space::Private | Space::Local);
        if lanes.scalar == Scalar::Bool && lanes.is_vector() && !is_own {
            return Err(unsupported(format!("a vector of Booleans in {space} memory")));
        }
        if lanes.is_odd() && lanes.bits().div_ceil(8) != lanes.width() / 8 {
            return Err(unsupported(format!("an integer of {} bits in memory", lanes.bits())));
        }
        Ok(())
    }

    /// Returns a pointer to the memory to which an index and a path lead, from a pointer or from a type at that
    /// pointer.
    pub(super) fn access_chain(
        &mut self,
        base: u32,
        base_ty: Option<u32>,
        element: Option<u32>,
        path: &[u32],
    ) -> Result<String> {
        let space = self.space(base)?;
        if !matches!(self.emitter.ty(self.emitter.type_of(base)?)?, Type::Pointer { .. }) {
            return Err(malformed("an access chain"));
        }
        let pointee = self.pointee(base).ok();
        let mut ty = base_ty.or(pointee).ok_or_else(|| malformed("an access chain"))?;
        let is_first = match element {
            None => true,
            Some(element) => self.emitter.evaluate(element)? == Some(0),
        };
        let is_typed = pointee == Some(ty);
        let start = if is_typed {
            None
        } else {
            let pointer = pointer_to(space, &self.emitter.type_name(ty)?);
            Some(format!("(({pointer}){})", self.value(base)?))
        };
        let mut place = match (element.filter(|_| !is_first), start) {
            (None, None) => self.target(base)?,
            (None, Some(start)) => format!("(*{start})"),
            (Some(element), start) => {
                let base = match start {
                    Some(start) => start,
                    None => self.value(base)?,
                };
                let index = self.index(element)?;
                if path.is_empty() {
                    return Ok(format!("{base} + {index}"));
                }
                format!("{base}[{index}]")
            }
        };
        if path.is_empty() {
            return Ok(match dereferenced(&place) {
                Some(pointer) => pointer.to_owned(),
                None => format!("&{place}"),
            });
        }
        for &step in path {
            (place, ty) = self.part(&place, ty, step, space)?;
        }
        Ok(format!("&{place}"))
    }

    /// Returns the expression and the type of the part with the index `step` of a composite in memory.
    fn part(&mut self, place: &str, ty: u32, step: u32, space: Space) -> Result<(String, u32)> {
        Ok(match self.emitter.ty(ty)? {
            Type::Struct => {
                let index = self.emitter.integer(step)?;
                let at = usize::try_from(index).map_err(|_| malformed("an access chain"))?;
                let whole = self.emitter.definition(ty)?;
                let member = whole.members().nth(at).ok_or_else(|| damaged(&whole))?;
                let text = match dereferenced(place) {
                    Some(pointer) => format!("{pointer}->m{index}"),
                    None => format!("{place}.m{index}"),
                };
                (text, member)
            }
            Type::Array { element, .. } => {
                let text = match dereferenced(place) {
                    Some(pointer) => format!("{pointer}->e[{}]", self.index(step)?),
                    None => format!("{place}.e[{}]", self.index(step)?),
                };
                (text, element)
            }
            Type::Vector { component, .. } => {
                // The components of vectors have no addresses in OpenCL C.
                let name = match self.emitter.lanes(ty)?.scalar {
                    Scalar::Bool => return Err(unsupported("a pointer to a Boolean")),
                    _ => self.emitter.type_name(component)?,
                };
                (format!("(({space} {name} *)&{place})[{}]", self.index(step)?), component)
            }
            _ => return Err(malformed("an access chain")),
        })
    }

    /// Returns the text of an index. Indexes are signed, even those as wide as pointers: C compilers would take
    /// an unsigned -1 for a huge offset.
    fn index(&mut self, id: u32) -> Result<String> {
        let index = self.signed(id)?;
        Ok(match self.emitter.evaluate(id)? {
            Some(_) => index.trim_end_matches('l').to_owned(),
            None => index,
        })
    }
}

/// Text for the memory that a load or a store accesses.
enum Accessed {
    /// An expression that can be read and assigned.
    Place(String),
    /// A pointer to the first of three components.
    Three(String),
    /// The type of a vector of three components, and a pointer to the first one. Each component is accessed
    /// separately.
    Parts(String, String),
}

/// Returns the pointer, if the whole text is a dereference of one.
fn dereferenced(place: &str) -> Option<&str> {
    place.strip_prefix("(*")?.strip_suffix(')')
}

/// Removes the parentheses around a dereferenced pointer.
fn unparenthesized(target: &str) -> &str {
    match target.strip_prefix("(*") {
        Some(_) => target.get(1..target.len() - 1).unwrap_or(target),
        None => target,
    }
}

impl super::Emitter<'_> {
    /// Adds a helper function that copies bytes between two address spaces, and returns the helper's name.
    fn copy_helper(&mut self, to: Space, from: Space) -> String {
        let name = self.names.beside_fixed(format!("copy_to_{to}_from_{from}"));
        let text = format!(
            "\nstatic void {name}({to} uchar *to, {from} const uchar *from, size_t size)\n{{\n    \
             for (size_t i = 0; i < size; ++i)\n        to[i] = from[i];\n}}\n"
        );
        self.helpers.insert(name.clone(), text);
        name
    }
}
