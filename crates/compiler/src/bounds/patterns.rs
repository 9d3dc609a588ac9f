//! Comparison of the types of values with those that an instruction [lists](Value).

use kiln_spirv::edit::{Definitions, Domain, Instruction, Value, View};
use rspirv::spirv::Op;

/// Largest number of components of a vector (OpenCL C, "Built-in Vector Data Types").
const MAX_COMPONENTS: u32 = 16;

/// Number, truth value, or vector of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    /// Id of the component's type.
    component: u32,
    op: Op,
    /// Bits of a number; 0 for a truth value.
    bits: u32,
    /// Number of components of a vector.
    count: Option<u32>,
}

impl Shape {
    fn is_of(self, domain: Domain) -> bool {
        match domain {
            Domain::Bool => self.op == Op::TypeBool,
            Domain::Int => self.op == Op::TypeInt,
            Domain::Int32 => self.op == Op::TypeInt && self.bits == 32,
            Domain::Float => self.op == Op::TypeFloat,
            Domain::Number => matches!(self.op, Op::TypeInt | Op::TypeFloat),
        }
    }
}

/// Types of a module.
pub(super) struct Patterns<'a, 'm> {
    pub(super) definitions: &'a Definitions<'m>,
}

impl<'m> Patterns<'_, 'm> {
    /// Returns whether the types of an instruction are those that its meaning lists. `given` has the operands.
    pub(super) fn fit(
        &self,
        i: &Instruction<'m>,
        given: &[u32],
        (result, operands): (Value, &[Value]),
    ) -> bool {
        let ty = i.result_type();
        let types: Vec<_> = given.iter().map(|&id| self.of(id)).collect();
        let one = types.first().copied().flatten();
        let fits = |(value, own): (&Value, &Option<u32>)| self.operand_fits(*value, *own, ty, one);
        self.result_fits(result, ty)
            && given.len() == operands.len()
            && operands.iter().zip(&types).all(fits)
    }

    fn of(&self, id: u32) -> Option<u32> {
        self.definitions.get(id)?.result_type()
    }

    fn shape(&self, ty: Option<u32>) -> Option<Shape> {
        let ty = self.definitions.get(ty?)?;
        let (part, count) = match ty.vector() {
            Some((component, count)) => (self.definitions.get(component)?, Some(count)),
            None => (ty, None),
        };
        let (op, component) = (part.op()?, part.result()?);
        let bits = match op {
            Op::TypeBool => 0,
            _ => part.width()?,
        };
        Some(Shape { component, op, bits, count })
    }

    fn result_fits(&self, value: Value, ty: Option<u32>) -> bool {
        let shape = || self.shape(ty);
        match value {
            Value::Any => true,
            Value::Like(domain) => shape().is_some_and(|shape| shape.is_of(domain)),
            Value::One(domain) => self.is_one(ty, domain),
            Value::Vector(domain) => {
                shape().is_some_and(|shape| shape.is_of(domain) && shape.count.is_some())
            }
            _ => false,
        }
    }

    /// Returns whether an operand of the type `own` fits. `result` is the type of the result, `first` that of the first
    /// operand.
    fn operand_fits(
        &self,
        value: Value,
        own: Option<u32>,
        result: Option<u32>,
        first: Option<u32>,
    ) -> bool {
        let like = |ty: Option<u32>, domain| match (self.shape(ty), self.shape(result)) {
            (Some(own), Some(result)) => own.is_of(domain) && own.count == result.count,
            _ => false,
        };
        let component = |ty: Option<u32>| self.shape(ty).map(|shape| shape.component);
        let bits = |ty: Option<u32>| self.shape(ty).map(|shape| shape.bits);
        match value {
            Value::Literal | Value::Any => true,
            Value::Same => own.is_some() && own == result,
            Value::First => own.is_some() && own == first,
            Value::Like(domain) => like(own, domain),
            Value::LikeBits(domain) => like(own, domain) && bits(own) == bits(result),
            Value::OtherBits(domain) => like(own, domain) && bits(own) != bits(result),
            Value::HalfBits(domain) => {
                let double = bits(own).and_then(|own| own.checked_mul(2));
                like(own, domain) && double == bits(result)
            }
            Value::One(_) | Value::Vector(_) => self.result_fits(value, own),
            Value::Component => own.is_some() && own == self.vector_component(result),
            Value::VectorOfResult => result.is_some() && self.vector_component(own) == result,
            Value::SameOrVectorOfResult => {
                result.is_some() && (own == result || self.vector_component(own) == result)
            }
            Value::VectorOfComponents => {
                component(own).is_some()
                    && component(own) == component(result)
                    && self.vector_component(own).is_some()
            }
            Value::Condition => self.is_one(own, Domain::Bool) || like(own, Domain::Bool),
            Value::Pointer => self.pointee(own).is_some(),
            Value::ToSame => result.is_some() && self.pointee(own) == result,
            Value::ToLike(domain) => like(self.pointee(own), domain),
        }
    }

    fn vector_component(&self, ty: Option<u32>) -> Option<u32> {
        self.shape(ty).filter(|shape| shape.count.is_some()).map(|shape| shape.component)
    }

    fn pointee(&self, ty: Option<u32>) -> Option<u32> {
        self.definitions.get(ty?)?.pointee()
    }

    /// Returns whether a type is that of a single value of a domain.
    pub(super) fn is_one(&self, ty: Option<u32>, domain: Domain) -> bool {
        self.shape(ty).is_some_and(|shape| shape.is_of(domain) && shape.count.is_none())
    }

    /// Returns whether a type is that of a value of a domain, or of a vector of such values.
    pub(super) fn is_like(&self, ty: Option<u32>, domain: Domain) -> bool {
        self.shape(ty).is_some_and(|shape| shape.is_of(domain))
    }

    /// Returns whether two types of numbers, or of vectors of numbers, have the same number of bits.
    pub(super) fn have_same_bits(&self, a: Option<u32>, b: Option<u32>) -> bool {
        let bits = |ty| {
            let shape = self.shape(ty).filter(|shape| shape.is_of(Domain::Number))?;
            shape.bits.checked_mul(shape.count.unwrap_or(1))
        };
        bits(a).is_some() && bits(a) == bits(b)
    }

    /// Returns the type of a part of a composite type, by the literal indexes that lead to the part.
    pub(super) fn part(&self, ty: Option<u32>, at: impl Iterator<Item = u32>) -> Option<u32> {
        let mut ty = ty?;
        for index in at {
            ty = match self.definitions.get(ty)?.view() {
                View::TypeVector { component, count } if index < count => component,
                View::TypeArray { element, .. } => element,
                View::TypeStruct { members } => members.get(usize::try_from(index).ok()?)?,
                _ => return None,
            };
        }
        Some(ty)
    }

    /// Returns whether a shuffle makes a vector of components of two others.
    pub(super) fn shuffle_fits(&self, i: &Instruction<'m>) -> bool {
        let View::Shuffle { first, second, lanes } = i.view() else { return false };
        let component = self.vector_component(i.result_type());
        let count = self.shape(i.result_type()).and_then(|shape| shape.count);
        let mut others = [first, second].into_iter();
        component.is_some()
            && others.all(|other| self.vector_component(self.of(other)) == component)
            && count.is_some_and(|count| count <= MAX_COMPONENTS && lanes.len() == count as usize)
    }

    /// Returns whether a composite value is made of values of its parts' types. Vectors are also made of vectors.
    pub(super) fn construction_fits(&self, i: &Instruction<'m>) -> bool {
        let given = || i.parts().map(|id| self.of(id));
        let Some(ty) = i.result_type().and_then(|ty| self.definitions.get(ty)) else {
            return false;
        };
        match ty.view() {
            View::TypeStruct { members } => given().eq(members.iter().map(Some)),
            View::TypeArray { element, length } => {
                let length = self.definitions.get(length).and_then(|i| i.literal()?.get(0));
                length.is_some_and(|length| given().count() == length as usize)
                    && given().all(|part| part == Some(element))
            }
            View::TypeVector { component, count } => {
                let counts = given().map(|part| {
                    let shape = self.shape(part).filter(|part| part.component == component)?;
                    Some(shape.count.unwrap_or(1))
                });
                counts.sum::<Option<u32>>() == Some(count)
            }
            _ => false,
        }
    }
}
