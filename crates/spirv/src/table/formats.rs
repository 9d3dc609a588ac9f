//! Formats of instructions: the names and kinds of their operands, without the type and the id of the result.

use super::operands::{Access, Cases, ImageOperands, List, Pairs, Reader, Text};
use crate::words::Word;

/// Type that holds an operand of a kind.
macro_rules! operand {
    (Id) => { u32 };
    (MaybeId) => { Option<u32> };
    (Ids) => { List<'k> };
    (Number) => { u32 };
    (MaybeNumber) => { Option<u32> };
    (Numbers) => { List<'k> };
    (Bits) => { List<'k> };
    (Parameters) => { List<'k> };
    (Arguments) => { List<'k> };
    (Pairs) => { Pairs<'k> };
    (Members) => { Pairs<'k> };
    (Cases) => { Cases<'k> };
    (Text) => { Text<'k> };
    (MaybeText) => { Option<Text<'k>> };
    (Access) => { Access<'k> };
    (Image) => { ImageOperands<'k> };
    (MaybeImage) => { ImageOperands<'k> };
}

/// Reads an operand of a kind. The expression is an `Option`.
macro_rules! read {
    (Id, $reader:ident) => {
        $reader.word()
    };
    (MaybeId, $reader:ident) => {
        Some($reader.word())
    };
    (Ids, $reader:ident) => {
        Some($reader.rest())
    };
    (Number, $reader:ident) => {
        $reader.word()
    };
    (MaybeNumber, $reader:ident) => {
        Some($reader.word())
    };
    (Numbers, $reader:ident) => {
        Some($reader.rest())
    };
    (Bits, $reader:ident) => {
        $reader.bits()
    };
    (Parameters, $reader:ident) => {
        Some($reader.rest())
    };
    (Arguments, $reader:ident) => {
        Some($reader.rest())
    };
    (Pairs, $reader:ident) => {
        $reader.pairs()
    };
    (Members, $reader:ident) => {
        $reader.pairs()
    };
    (Cases, $reader:ident) => {
        Some($reader.cases())
    };
    (Text, $reader:ident) => {
        $reader.text()
    };
    (MaybeText, $reader:ident) => {
        $reader.maybe_text()
    };
    (Access, $reader:ident) => {
        $reader.access()
    };
    (Image, $reader:ident) => {
        $reader.image()
    };
    (MaybeImage, $reader:ident) => {
        $reader.maybe_image()
    };
}

/// Collects the ids of an operand of a kind.
#[cfg(test)]
macro_rules! ids {
    (Id, $operand:ident, $all:ident) => {
        $all.push(*$operand)
    };
    (MaybeId, $operand:ident, $all:ident) => {
        $all.extend(*$operand)
    };
    (Ids, $operand:ident, $all:ident) => {
        $all.extend($operand.iter())
    };
    (Pairs, $operand:ident, $all:ident) => {
        $all.extend($operand.iter().flat_map(|(a, b)| [a, b]))
    };
    (Members, $operand:ident, $all:ident) => {
        $all.extend($operand.iter().map(|(id, _)| id))
    };
    (Cases, $operand:ident, $all:ident) => {
        $all.extend($operand.iter(1).map(|(_, label)| label))
    };
    (Access, $operand:ident, $all:ident) => {
        $all.extend($operand.ids())
    };
    (Image, $operand:ident, $all:ident) => {
        $all.extend($operand.ids.iter())
    };
    (MaybeImage, $operand:ident, $all:ident) => {
        $all.extend($operand.ids.iter())
    };
    ($other:ident, $operand:ident, $all:ident) => {
        _ = $operand
    };
}

macro_rules! formats {
    ($($(#[$doc:meta])* $format:ident { $($field:ident: $kind:ident),* })*) => {
        /// Names and kinds of the operands of an instruction.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Format {
            $($(#[$doc])* $format,)*
        }

        /// Instruction with named operands. The type and the id of the result are not among them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum View<'k> {
            $($(#[$doc])* $format {
                $(#[doc = concat!("Operand `", stringify!($field), "` of the kind `", stringify!($kind), "`.")]
                $field: operand!($kind),)*
            },)*
            /// An instruction without a row in the table, or one whose words do not have the format of its opcode.
            Unknown,
        }

        impl Format {
            /// Reads the operand words of an instruction; `None` if they do not have the format.
            pub(super) fn read(self, words: &[Word]) -> Option<View<'_>> {
                #[allow(unused_mut, reason = "a format may have no operands")]
                let mut reader = Reader::of(words);
                let view = match self {
                    $(Self::$format => View::$format { $($field: read!($kind, reader)?),* },)*
                };
                reader.is_done().then_some(view)
            }

            /// Returns the name and the kind of each operand.
            #[cfg(test)]
            pub(super) fn operands(self) -> &'static [(&'static str, &'static str)] {
                match self {
                    $(Self::$format => &[$((stringify!($field), stringify!($kind))),*],)*
                }
            }
        }

        #[cfg(test)]
        impl View<'_> {
            /// Returns the ids among the operands, in the order of the words.
            pub(super) fn ids(&self) -> Vec<u32> {
                #[allow(unused_mut, reason = "a format may have no ids")]
                let mut all = Vec::new();
                match self {
                    $(Self::$format { $($field),* } => { $(ids!($kind, $field, all);)* })*
                    Self::Unknown => {}
                }
                all
            }
        }
    };
}

formats! {
    /// No operands.
    Plain {}

    // The module.
    /// Capability that the module needs.
    Capability { capability: Number }
    /// Name of an extension, of a processor of the module, or text of a source.
    Note { text: Text }
    /// Set of extended instructions.
    Import { name: Text }
    /// Addressing model and memory model.
    MemoryModel { addressing: Number, memory: Number }
    /// Kernel, or another entry point.
    EntryPoint { model: Number, function: Id, name: Text, interface: Ids }
    /// Execution mode of an entry point.
    ExecutionMode { entry: Id, mode: Number, parameters: Parameters }
    /// Execution mode whose parameters are ids.
    ExecutionModeId { entry: Id, mode: Number, parameters: Ids }
    /// Text, such as the name of a file.
    String { text: Text }
    /// Language of the source.
    Source { language: Number, version: Number, file: MaybeId, text: MaybeText }
    /// Name of an id.
    Name { target: Id, name: Text }
    /// Name of a member of a struct.
    MemberName { target: Id, member: Number, name: Text }
    /// Decoration of an id.
    Decorate { target: Id, decoration: Number, parameters: Parameters }
    /// Decoration of an id whose parameters are ids.
    DecorateId { target: Id, decoration: Number, parameters: Ids }
    /// Decoration of a member of a struct.
    MemberDecorate { target: Id, member: Number, decoration: Number, parameters: Parameters }
    /// Ids with the decorations of a group.
    GroupDecorate { group: Id, targets: Ids }
    /// Structs and members with the decorations of a group.
    GroupMemberDecorate { group: Id, targets: Members }
    /// Line of the source.
    Line { file: Id, line: Number, column: Number }

    // Types.
    /// Integer type.
    TypeInt { width: Number, signedness: Number }
    /// Floating-point type.
    TypeFloat { width: Number, encoding: MaybeNumber }
    /// Vector type.
    TypeVector { component: Id, count: Number }
    /// Array type; the length is a constant.
    TypeArray { element: Id, length: Id }
    /// Struct type.
    TypeStruct { members: Ids }
    /// Type that other modules define.
    TypeOpaque { name: Text }
    /// Pointer type.
    TypePointer { class: Number, pointee: Id }
    /// Declaration of a pointer type that follows.
    TypeForwardPointer { pointer: Id, class: Number }
    /// Pointer type without a pointee.
    TypeUntypedPointer { class: Number }
    /// Function type.
    TypeFunction { returned: Id, parameters: Ids }
    /// Image type.
    TypeImage {
        sampled: Id, dim: Number, depth: Number, arrayed: Number, multisampled: Number, sampling: Number,
        format: Number, access: MaybeNumber
    }
    /// Type of an image with a sampler.
    TypeSampledImage { image: Id }
    /// Pipe type.
    TypePipe { access: Number }

    // Constants and variables.
    /// Number. The literal has as many words as its type.
    Constant { bits: Bits }
    /// Composite value of constants or of other values.
    Composite { parts: Ids }
    /// Sampler.
    ConstantSampler { addressing: Number, normalized: Number, filter: Number }
    /// Storage of a pipe.
    ConstantPipeStorage { size: Number, alignment: Number, capacity: Number }
    /// Result of an operation on constants.
    SpecConstantOp { operation: Number, operands: Arguments }
    /// Variable.
    Variable { class: Number, initial: MaybeId }
    /// Variable whose pointer has no pointee.
    UntypedVariable { class: Number, contents: MaybeId, initial: MaybeId }

    // Functions and control flow.
    /// Function.
    Function { control: Number, ty: Id }
    /// Call of a function.
    Call { function: Id, arguments: Ids }
    /// Call of a function of a set of extended instructions.
    ExtInst { set: Id, function: Number, operands: Arguments }
    /// Values by the blocks that they come from.
    Phi { pairs: Pairs }
    /// Declaration of a loop.
    LoopMerge { merge: Id, continues: Id, control: Number, parameters: Parameters }
    /// Declaration of a selection.
    SelectionMerge { merge: Id, control: Number }
    /// Jump.
    Branch { target: Id }
    /// Jump that depends on a condition.
    BranchIf { condition: Id, yes: Id, no: Id, weights: Numbers }
    /// Jump that depends on a number. The literals are as wide as the selector's type.
    Switch { selector: Id, default: Id, cases: Cases }
    /// Return with a value.
    Return { value: Id }
    /// Start or end of the lifetime of a variable.
    Lifetime { pointer: Id, size: Number }
    /// Claim that a condition holds.
    Assume { condition: Id }

    // Values.
    /// Operation on one value.
    Unary { value: Id }
    /// Operation on two values.
    Binary { left: Id, right: Id }
    /// Choice between two values.
    Select { condition: Id, yes: Id, no: Id }
    /// Bits of a number.
    BitExtract { base: Id, offset: Id, count: Id }
    /// Number with other bits in a place.
    BitInsert { base: Id, insert: Id, offset: Id, count: Id }
    /// Part of a composite value.
    Extract { whole: Id, path: Numbers }
    /// Composite value with another part.
    Insert { part: Id, whole: Id, path: Numbers }
    /// Component of a vector, by an index that is a value.
    ExtractDynamic { vector: Id, index: Id }
    /// Vector with another component, by an index that is a value.
    InsertDynamic { vector: Id, part: Id, index: Id }
    /// Components of two vectors.
    Shuffle { first: Id, second: Id, lanes: Numbers }

    // Memory.
    /// Load.
    Load { pointer: Id, access: Access }
    /// Store.
    Store { pointer: Id, value: Id, access: Access }
    /// Copy of a value in memory.
    CopyMemory { target: Id, source: Id, access: Access, source_access: Access }
    /// Copy of bytes in memory.
    CopyMemorySized { target: Id, source: Id, size: Id, access: Access, source_access: Access }
    /// Pointer to a part.
    Chain { base: Id, indexes: Ids }
    /// Pointer to a part of an element.
    PtrChain { base: Id, element: Id, indexes: Ids }
    /// Pointer to a part of a value of a type.
    UntypedChain { ty: Id, base: Id, indexes: Ids }
    /// Pointer to a part of an element of a type.
    UntypedPtrChain { ty: Id, base: Id, element: Id, indexes: Ids }
    /// Conversion of a generic pointer to one of a storage class, or to null.
    CastExplicit { pointer: Id, class: Number }
    /// Atomic operation without a value.
    Atomic { pointer: Id, scope: Id, semantics: Id }
    /// Atomic operation with a value.
    AtomicUpdate { pointer: Id, scope: Id, semantics: Id, value: Id }
    /// Atomic comparison and exchange.
    AtomicCompare { pointer: Id, scope: Id, equal: Id, unequal: Id, value: Id, comparator: Id }

    // Groups of work-items.
    /// Fence.
    MemoryBarrier { memory: Id, semantics: Id }
    /// Barrier.
    ControlBarrier { execution: Id, memory: Id, semantics: Id }
    /// Fence of a named barrier.
    NamedBarrier { barrier: Id, memory: Id, semantics: Id }
    /// Choice of one work-item.
    GroupElect { scope: Id }
    /// Vote about a value, or its bits in all work-items.
    GroupVote { scope: Id, value: Id }
    /// Value of another work-item.
    GroupBroadcast { scope: Id, value: Id, index: Id }
    /// Reduction or scan.
    GroupReduce { scope: Id, operation: Number, value: Id }
    /// Reduction or scan, possibly of clusters.
    GroupCluster { scope: Id, operation: Number, value: Id, cluster: MaybeId }
    /// Copy by all work-items of a group.
    GroupCopy { scope: Id, target: Id, source: Id, count: Id, stride: Id, event: Id }
    /// Wait for the end of copies.
    GroupWait { scope: Id, count: Id, events: Id }
    /// Value of another work-item of a sub-group.
    SubgroupShuffle { value: Id, index: Id }
    /// Value of the work-item at a distance in this sub-group or in the next.
    SubgroupShift { current: Id, next: Id, delta: Id }

    // Images.
    /// Image with a sampler.
    SampledImage { image: Id, sampler: Id }
    /// Property of an image.
    ImageQuery { image: Id }
    /// Size of a level of an image.
    ImageQueryLod { image: Id, level: Id }
    /// Read of a pixel.
    ImageRead { image: Id, coordinate: Id, operands: MaybeImage }
    /// Write of a pixel.
    ImageWrite { image: Id, coordinate: Id, texel: Id, operands: MaybeImage }
    /// Read of an image with a sampler.
    ImageSample { image: Id, coordinate: Id, operands: Image }
}
