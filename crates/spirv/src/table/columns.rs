//! Columns of the table besides the format and the [meaning](crate::instructions): one answer for each opcode.

/// Group of opcodes that analyses and transformations treat alike. Each opcode is in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Line of the source.
    Line,
    /// Start of a function, or a parameter.
    Head,
    /// End of a function.
    End,
    /// Start of a block.
    Label,
    /// Variable with a pointee.
    Variable,
    /// Values by the blocks that they come from.
    Phi,
    /// Declaration of a loop or of a selection.
    Merge,
    /// Start or end of the lifetime of a variable.
    Lifetime,
    /// No operation.
    Nothing,
    /// End of a block that other blocks follow.
    Branch,
    /// End of a block that none follows.
    Exit,
    /// Type of numbers or of truth values.
    Scalar,
    /// Type of vectors, arrays or structs.
    Aggregate,
    /// Type of images or samplers.
    Object,
    /// Constant, or an undefined value.
    Constant,
    /// Specialization constant.
    Specialized,
    /// Decoration of an id.
    Decoration,
    /// Decoration of a member.
    MemberDecoration,
    /// Group of decorations, or its members.
    DecorationGroup,
    /// Quotient or remainder of integers, which is not defined for each divisor.
    Division,
    /// Shift, which is not defined for each amount.
    Shift,
    /// Comparison of integers that does not read their sign: equal or not equal.
    Equality,
    /// Comparison of integers that are not negative.
    Unsigned,
    /// Comparison of integers with a sign.
    Signed,
    /// Conversion of numbers that keeps their value as far as possible.
    Conversion,
    /// Operation on integers with two results.
    TwoResults,
    /// Sum or difference of floating-point numbers.
    FloatSum,
    /// Operation that multiplies floating-point numbers.
    FloatProduct,
    /// Barrier, or one of its halves.
    Barrier,
    /// Function of a work-group or sub-group.
    Group,
    /// Atomic operation that the first extension of OpenCL for 64 bits has.
    LongAtomic,
    /// Atomic operation that the second extension of OpenCL for 64 bits has.
    ExtendedAtomic,
    /// Any other opcode.
    Other,
}

impl Class {
    /// Returns whether the instruction is the last one of its block.
    #[must_use]
    pub fn is_terminator(self) -> bool {
        matches!(self, Self::Branch | Self::Exit)
    }

    /// Returns whether the instruction directs optimizers and debuggers only, or names what belongs together.
    #[must_use]
    pub fn is_note(self) -> bool {
        matches!(self, Self::Nothing | Self::Line | Self::Merge | Self::Lifetime)
    }

    /// Returns whether the instruction compares integers.
    #[must_use]
    pub fn is_comparison(self) -> bool {
        matches!(self, Self::Equality | Self::Unsigned | Self::Signed)
    }

    /// Returns whether the instruction stands before the code of a function: as a part of its head, or as a variable of
    /// its first block.
    #[must_use]
    pub fn precedes_code(self) -> bool {
        matches!(self, Self::Head | Self::Label | Self::Variable | Self::Line)
    }

    /// Returns whether the instruction frames the code of a function, and is not part of a block.
    #[must_use]
    pub fn is_frame(self) -> bool {
        matches!(self, Self::Head | Self::End | Self::Line)
    }
}

/// Address of the result, compared with that of the first operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// The result has no address, or another one.
    No,
    /// The result has the same value.
    Copy,
    /// The result has the same address as a pointer of another storage class.
    Cast,
    /// The result has the same address, or is null.
    Checked,
    /// The result is the address of a part, or of another element.
    Part,
}

impl Address {
    /// Returns whether the result always has the address of the first operand.
    #[must_use]
    pub fn is_kept(self) -> bool {
        matches!(self, Self::Copy | Self::Cast)
    }

    /// Returns whether the result is an address in the memory of the first operand.
    #[must_use]
    pub fn is_derived(self) -> bool {
        self.is_kept() || self == Self::Part
    }
}

/// Extent to which integers are calculated from what is known of the operands. Each value includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Evaluation {
    /// Not by name.
    No,
    /// Equal results of equal operands.
    Symbolic,
    /// And again where conditions are known to hold.
    Recomputed,
    /// And as a value that a loop does not change.
    Invariant,
}

/// Treatment of an instruction outside of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Global {
    /// Checks refuse a module with the instruction.
    Refused,
    /// Checks follow the instruction.
    Followed,
    /// Checks follow the instruction, and two with equal operands are interchangeable.
    Interned,
    /// Checks refuse a module with the instruction. Two with equal operands are interchangeable.
    InternedOnly,
}

impl Global {
    /// Returns whether checks follow the instruction outside of functions.
    #[must_use]
    pub fn is_followed(self) -> bool {
        matches!(self, Self::Followed | Self::Interned)
    }

    /// Returns whether instructions with equal operands are interchangeable.
    #[must_use]
    pub fn is_interned(self) -> bool {
        matches!(self, Self::Interned | Self::InternedOnly)
    }
}
