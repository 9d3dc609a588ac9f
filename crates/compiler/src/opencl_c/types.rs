//! Types, as OpenCL C declares them.
//!
//! * Integers are unsigned throughout, because SPIR-V's have no sign. An instruction that takes signed operands
//!   casts them.
//! * A Boolean is `bool`. A vector of Booleans is a vector of `char`, each 0 or -1, as comparisons of vectors
//!   yield.
//! * An integer of a width that OpenCL C lacks is kept in the next wider type, with zeros above its own bits.
//! * Arrays are members of structs, so that they can be assigned.

use std::fmt;

use kiln_spirv::edit::View;
use kiln_spirv::{Demand, Result};
use rspirv::spirv::{Decoration, Op, StorageClass};

use super::{Emitter, damaged, malformed, unsupported};

/// An address space of OpenCL C 1.2, which has no generic one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Space {
    Private,
    Local,
    Global,
    Constant,
}

impl Space {
    /// Returns the address space of a storage class, or `None` for the generic one.
    pub(super) fn of(class: StorageClass) -> Result<Option<Self>> {
        Ok(Some(match class {
            StorageClass::Function | StorageClass::Input => Self::Private,
            StorageClass::Workgroup => Self::Local,
            StorageClass::CrossWorkgroup => Self::Global,
            StorageClass::UniformConstant => Self::Constant,
            StorageClass::Generic => return Ok(None),
            _ => return Err(unsupported(format!("storage class {class:?}"))),
        }))
    }
}

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Private => "private",
            Self::Local => "local",
            Self::Global => "global",
            Self::Constant => "constant",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Void,
    Scalar(Scalar),
    Vector {
        component: u32,
        count: u32,
    },
    /// An array, whose `length` is the id of a constant.
    Array {
        element: u32,
        length: u32,
    },
    Struct,
    /// A type that is only pointed to.
    Opaque,
    /// The event of an asynchronous copy.
    Event,
    Image,
    Sampler,
    /// An image with a sampler, which has no type in OpenCL C.
    SampledImage,
    Pointer {
        class: StorageClass,
        pointee: Option<u32>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scalar {
    Bool,
    Int(u32),
    Float(u32),
}

/// A scalar type, or a vector of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lanes {
    pub(super) scalar: Scalar,
    pub(super) count: u32,
}

impl Lanes {
    pub(super) fn is_vector(self) -> bool {
        self.count > 1
    }

    pub(super) fn with(self, scalar: Scalar) -> Self {
        Self { scalar, ..self }
    }

    pub(super) fn single(self) -> Self {
        Self { count: 1, ..self }
    }

    /// Returns a call of `rint`. A single number is rounded as a vector: PoCL (3.1) takes code for unreachable that
    /// rounds a constant which no integer type has, or NaN.
    pub(super) fn rint(self, value: &str) -> String {
        if self.is_vector() {
            format!("rint({value})")
        } else {
            format!("rint(({self}2)({value})).x")
        }
    }

    /// Returns the number of bits of the OpenCL C type that holds one component.
    pub(super) fn width(self) -> u32 {
        match self.scalar {
            Scalar::Bool => 8,
            Scalar::Int(width) => width.next_power_of_two().max(8),
            Scalar::Float(width) => width,
        }
    }

    /// Returns the number of bits of one component's value.
    pub(super) fn bits(self) -> u32 {
        match self.scalar {
            Scalar::Bool => 1,
            Scalar::Int(width) | Scalar::Float(width) => width,
        }
    }

    /// Returns whether the components are integers of a width that OpenCL C does not have.
    pub(super) fn is_odd(self) -> bool {
        matches!(self.scalar, Scalar::Int(_)) && self.bits() != self.width()
    }

    /// Returns the type with signed integers of the same width, which comparisons and `select` use.
    pub(super) fn signed(self) -> String {
        self.spelled(match self.width() {
            8 => "char",
            16 => "short",
            32 => "int",
            _ => "long",
        })
    }

    fn spelled(self, name: &str) -> String {
        if self.is_vector() { format!("{name}{}", self.count) } else { name.to_owned() }
    }
}

impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.scalar {
            Scalar::Bool if self.is_vector() => "char",
            Scalar::Bool => "bool",
            Scalar::Int(_) => match self.width() {
                8 => "uchar",
                16 => "ushort",
                32 => "uint",
                _ => "ulong",
            },
            Scalar::Float(16) => "half",
            Scalar::Float(32) => "float",
            Scalar::Float(_) => "double",
        };
        f.write_str(&self.spelled(name))
    }
}

/// Maximum nesting depth of types. Compilers do not produce deeper ones.
const MAX_DEPTH: u32 = 64;

impl Emitter<'_> {
    pub(super) fn ty(&self, id: u32) -> Result<Type> {
        let ty = self.definition(id)?;
        Ok(match ty.view() {
            View::TypeInt { width, .. } => match width {
                1..=64 => Type::Scalar(Scalar::Int(width)),
                _ => return Err(unsupported(format!("OpTypeInt of {width} bits"))),
            },
            View::TypeFloat { width, encoding } => match (width, encoding) {
                (width @ (16 | 32 | 64), None) => Type::Scalar(Scalar::Float(width)),
                (width, None) => {
                    return Err(unsupported(format!("OpTypeFloat of {width} bits")));
                }
                _ => return Err(unsupported("OpTypeFloat with an encoding other than IEEE 754")),
            },
            View::TypeVector { component, count } => {
                if !matches!(count, 2 | 3 | 4 | 8 | 16) {
                    return Err(unsupported(format!("OpTypeVector of {count} components")));
                }
                Type::Vector { component, count }
            }
            View::TypeArray { element, length } => Type::Array { element, length },
            View::TypeStruct { .. } => Type::Struct,
            View::TypeOpaque { .. } => Type::Opaque,
            View::TypeImage { .. } => Type::Image,
            View::TypeSampledImage { .. } => Type::SampledImage,
            View::TypePointer { class: number, pointee } => {
                Type::Pointer { class: class(number)?, pointee: Some(pointee) }
            }
            View::TypeUntypedPointer { class: number } => {
                Type::Pointer { class: class(number)?, pointee: None }
            }
            View::Unknown if ty.row().is_some() => return Err(damaged(&ty)),
            _ => match ty.op() {
                Some(Op::TypeVoid) => Type::Void,
                Some(Op::TypeBool) => Type::Scalar(Scalar::Bool),
                Some(Op::TypeEvent) => Type::Event,
                Some(Op::TypeSampler) => Type::Sampler,
                _ => return Err(unsupported(ty.name())),
            },
        })
    }

    /// Returns the scalar or vector type with the given id. Fails for other types, on which there is no
    /// arithmetic.
    pub(super) fn lanes(&self, ty: u32) -> Result<Lanes> {
        match self.ty(ty)? {
            Type::Scalar(scalar) => Ok(Lanes { scalar, count: 1 }),
            Type::Vector { component, count } => match self.ty(component)? {
                Type::Scalar(scalar) => match (Lanes { scalar, count }) {
                    lanes if lanes.is_odd() => {
                        Err(unsupported(format!("a vector of integers of {} bits", lanes.bits())))
                    }
                    lanes => Ok(lanes),
                },
                _ => Err(malformed("a vector of elements other than scalars")),
            },
            other => Err(unsupported(format!("arithmetic of type {other:?}"))),
        }
    }

    pub(super) fn is_void(&self, ty: u32) -> Result<bool> {
        Ok(self.ty(ty)? == Type::Void)
    }

    /// Returns the storage classes of a pointer, of the pointer that it points to, and so on.
    pub(super) fn levels(&self, ty: u32) -> Result<Vec<StorageClass>> {
        let mut levels = Vec::new();
        let mut next = Some(ty);
        while let Some(ty) = next.take() {
            if self.definition(ty)?.op() == Some(Op::TypePointer)
                || self.definition(ty)?.op() == Some(Op::TypeUntypedPointerKHR)
            {
                let Type::Pointer { class, pointee } = self.ty(ty)? else { break };
                levels.push(class);
                next = pointee;
            }
            if levels.len() > MAX_DEPTH as usize {
                return Err(malformed("a pointer to itself"));
            }
        }
        Ok(levels)
    }

    /// Returns the name of a type that contains no generic pointers.
    pub(super) fn type_name(&mut self, ty: u32) -> Result<String> {
        self.type_name_in(ty, &[])
    }

    /// Returns the name of a type. `spaces` replaces the declared address spaces of its pointers, by level.
    pub(super) fn type_name_in(&mut self, ty: u32, spaces: &[Space]) -> Result<String> {
        self.nested(|this| {
            Ok(match this.ty(ty)? {
                Type::Void => "void".to_owned(),
                Type::Event => "event_t".to_owned(),
                Type::Image => this.image_name(ty)?,
                Type::Sampler => "sampler_t".to_owned(),
                Type::SampledImage => {
                    return Err(unsupported("a value of type OpTypeSampledImage"));
                }
                Type::Scalar(_) | Type::Vector { .. } => {
                    let lanes = this.lanes(ty)?;
                    this.use_scalar(lanes.scalar);
                    lanes.to_string()
                }
                Type::Array { .. } | Type::Struct => {
                    this.need_aggregate(ty)?;
                    format!("struct {}", this.name(ty, "type_"))
                }
                Type::Opaque => {
                    this.opaque.insert(ty);
                    format!("struct {}", this.name(ty, "type_"))
                }
                Type::Pointer { class, pointee } => {
                    let space = match spaces.first() {
                        Some(&space) => space,
                        None => Space::of(class)?.ok_or_else(|| {
                            unsupported(
                                "a pointer of the generic address space, whose actual address \
                                 space the module does not show,",
                            )
                        })?,
                    };
                    let pointee = match pointee {
                        Some(pointee) => {
                            this.pointee_name(pointee, spaces.get(1..).unwrap_or_default())?
                        }
                        None => "void".to_owned(),
                    };
                    pointer_to(space, &pointee)
                }
            })
        })
    }

    /// Returns the name of the type that a pointer points to.
    ///
    /// Beyond half of the maximum nesting depth, structs are only declared, so that long chains of structs that
    /// point to each other do not reach the limit.
    fn pointee_name(&mut self, ty: u32, spaces: &[Space]) -> Result<String> {
        match self.ty(ty)? {
            Type::Struct if self.nesting > MAX_DEPTH / 2 => {
                self.opaque.insert(ty);
                Ok(format!("struct {}", self.name(ty, "type_")))
            }
            // A pointer to `half`, such as `vload_half` takes, does not need the extension.
            Type::Scalar(scalar @ Scalar::Float(16)) => Ok(Lanes { scalar, count: 1 }.to_string()),
            _ => self.type_name_in(ty, spaces),
        }
    }

    fn nested<T>(&mut self, f: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.nesting > MAX_DEPTH {
            return Err(unsupported("types nested deeper than 64 levels"));
        }
        self.nesting += 1;
        let result = f(self);
        self.nesting -= 1;
        result
    }

    pub(super) fn use_scalar(&mut self, scalar: Scalar) {
        match scalar {
            Scalar::Float(16) => self.demands.insert(Demand::Half),
            Scalar::Float(64) => self.demands.insert(Demand::Double),
            Scalar::Int(33..) => self.demands.insert(Demand::Long),
            _ => true,
        };
    }

    fn need_aggregate(&mut self, ty: u32) -> Result<()> {
        // A module defines types before the types that contain them.
        let location = self.definitions.location(ty).ok_or_else(|| malformed("a type"))?;
        if self.aggregates.contains_key(&location) {
            return Ok(());
        }
        // Marks the type as seen, because it may contain a pointer to itself.
        self.aggregates.insert(location, String::new());
        let name = self.name(ty, "type_");
        let text = match self.ty(ty)? {
            Type::Array { element, length } => {
                let element = self.type_name(element)?;
                let length = self.integer(length)?;
                format!("struct {name} {{\n    {element} e[{length}];\n}};\n")
            }
            _ => {
                let members: Vec<_> = self.definition(ty)?.members().collect();
                let mut text = format!("struct {name} {{\n");
                for (index, member) in members.into_iter().enumerate() {
                    text += &format!("    {} m{index};\n", self.type_name(member)?);
                }
                text += if self.decorated(ty, Decoration::CPacked) {
                    "} __attribute__((packed));\n"
                } else {
                    "};\n"
                };
                text
            }
        };
        self.aggregates.insert(location, text);
        Ok(())
    }

    /// Returns the alignment of a type in bytes, which holds where no other is stated.
    pub(super) fn alignment(&mut self, ty: u32) -> Result<u32> {
        if let Some(&known) = self.alignments.get(&ty) {
            return Ok(known);
        }
        let alignment = self.nested(|this| {
            Ok(match this.ty(ty)? {
                Type::Void | Type::Opaque => 1,
                Type::Scalar(_) | Type::Vector { .. } => {
                    let lanes = this.lanes(ty)?;
                    lanes.width() / 8 * lanes.count.next_power_of_two()
                }
                Type::Array { element, .. } => this.alignment(element)?,
                Type::Struct if this.decorated(ty, Decoration::CPacked) => 1,
                Type::Struct => {
                    let members: Vec<_> = this.definition(ty)?.members().collect();
                    let mut most = 1;
                    for member in members {
                        most = most.max(this.alignment(member)?);
                    }
                    most
                }
                Type::Pointer { .. } | Type::Event => this.pointer_bytes,
                Type::Image | Type::Sampler | Type::SampledImage => this.pointer_bytes,
            })
        })?;
        self.alignments.insert(ty, alignment);
        Ok(alignment)
    }

    /// Returns the name of a type for accesses to memory that may hold another type, or whose alignment is not
    /// the type's.
    pub(super) fn access_name(&mut self, name: &str, alignment: Option<u32>) -> String {
        let plain = name.trim_start_matches("struct ").replace(' ', "_").replace('*', "p");
        let alias = match alignment {
            Some(alignment) => format!("{plain}_at{alignment}"),
            None => format!("{plain}_any"),
        };
        let aligned = alignment.map(|to| format!(", aligned({to})")).unwrap_or_default();
        let alias = self.names.beside_fixed(alias);
        let text = format!("typedef {name} {alias} __attribute__((may_alias{aligned}));\n");
        self.accesses.insert(alias.clone(), text);
        alias
    }
}

fn class(word: u32) -> Result<StorageClass> {
    StorageClass::from_u32(word).ok_or_else(|| unsupported(format!("storage class {word}")))
}

pub(super) fn pointer_to(space: Space, pointee: &str) -> String {
    if pointee.ends_with('*') {
        format!("{pointee}{space} *")
    } else {
        format!("{space} {pointee} *")
    }
}
