//! Meaning of the instructions of functions for analyses.
//!
//! An analysis that proves something accepts only what it knows. The [table](super::table) of opcodes says of each known
//! instruction what it does besides giving a result, whether its result is the same for work-items with the same
//! operands, whether ranges of integers are calculated through it, and which types it takes (SPIR-V, section 3.49). An
//! instruction that is not in the table, such as one of a new extension, has no meaning, so that it is refused by name.
//!
//! The functions of the set `OpenCL.std` have a [table](super::functions) of their own.

/// Effect of an instruction besides its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It shapes the code: it declares, begins or ends a function, a block or a variable, branches, or joins values.
    Structure,
    /// Nothing: the result depends on the values of the operands alone.
    Calculation,
    /// It makes, converts or compares pointers.
    Address,
    /// It reads or writes memory.
    Memory,
    /// It accesses memory atomically.
    Atomic,
    /// It orders accesses to memory.
    Fence,
    /// The work-items of a group take part together, and wait for each other.
    Group,
    /// It is about an image or a sampler, but not about pixels.
    Image,
    /// It reads or writes a pixel.
    Pixel,
    /// It calls a function of a set of extended instructions.
    Extended,
}

/// Kind of numbers, or of values that are not numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Booleans.
    Bool,
    /// Integers.
    Int,
    /// Integers of 32 bits.
    Int32,
    /// Floating-point numbers.
    Float,
    /// Integers or floating-point numbers.
    Number,
}

/// Type of a result or of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Any type. As a result: there may be none.
    Any,
    /// The type of the result.
    Same,
    /// The type of the first operand.
    First,
    /// A value or a vector of a domain; for an operand, with as many components as the result.
    Like(Domain),
    /// A value or a vector of a domain, with as many components as the result, each of as many bits.
    LikeBits(Domain),
    /// A value or a vector as for `LikeBits`, with components of another number of bits.
    OtherBits(Domain),
    /// A value or a vector as for `LikeBits`, with components of half as many bits.
    HalfBits(Domain),
    /// A value of a domain that is not a vector.
    One(Domain),
    /// A vector of a domain.
    Vector(Domain),
    /// The type of a component of the result, which is a vector.
    Component,
    /// A vector of components of the result's type.
    VectorOfResult,
    /// The type of the result, or a vector of components of that type.
    SameOrVectorOfResult,
    /// A vector of components of the type of the result's components.
    VectorOfComponents,
    /// A condition for the whole result, or one for each component.
    Condition,
    /// A pointer.
    Pointer,
    /// A pointer to a value of the result's type.
    ToSame,
    /// A pointer to a value of a domain, with as many components as the result.
    ToLike(Domain),
    /// A literal.
    Literal,
}

/// Types of an instruction's result and operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Types {
    /// The instruction takes no values, or values of any type.
    Any,
    /// A list of types does not say which types fit: literals, labels or several operands decide.
    Own,
    /// The type of the result, and the types of the operands in their order.
    Of(Value, &'static [Value]),
}

/// Meaning of an instruction for analyses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// Effect besides the result.
    pub effect: Effect,
    /// Whether work-items whose operands are the same have the same result.
    pub is_uniform: bool,
    /// Whether the range of the result is calculated from those of integer operands.
    pub has_range: bool,
    /// Types of the result and of the operands.
    pub types: Types,
}

impl Meaning {
    /// A calculation.
    #[must_use]
    pub const fn calculation(types: Types) -> Self {
        Self { effect: Effect::Calculation, is_uniform: true, has_range: false, types }
    }

    /// A calculation whose results' ranges are calculated.
    #[must_use]
    pub const fn range(types: Types) -> Self {
        Self { has_range: true, ..Self::calculation(types) }
    }

    /// An instruction that gives no result, or one that each work-item may have for itself.
    #[must_use]
    pub const fn effect(effect: Effect, types: Types) -> Self {
        Self { effect, is_uniform: false, has_range: false, types }
    }

    /// An instruction whose result is the same for work-items whose operands are the same.
    pub(super) const fn uniform(effect: Effect, types: Types) -> Self {
        Self { is_uniform: true, ..Self::effect(effect, types) }
    }
}
