//! Types of OpenCL C, and their layout in memory.

use std::rc::Rc;

/// Type with its qualifiers.
#[derive(Clone, Debug)]
pub(crate) struct Qualified {
    pub(crate) ty: Type,
    pub(crate) is_const: bool,
    pub(crate) space: Option<Space>,
    /// Stated access to an image.
    pub(crate) access: Option<ImageAccess>,
}

/// Access of a kernel to an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImageAccess {
    ReadOnly,
    /// The kernel writes the image, and may read it as well.
    Writable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Constant,
    Local,
    Private,
    Generic,
}

#[derive(Clone, Debug)]
pub(crate) enum Type {
    Void,
    Scalar(Scalar),
    Vector(Scalar, u8),
    /// Image of the kind that the name denotes.
    Image(Rc<str>),
    Sampler,
    /// Type that kernels cannot take, such as `size_t` or `image2d_depth_t`.
    Unsupported(Rc<str>),
    Structure(Rc<Structure>),
    Enumeration(Rc<Enumeration>),
    /// Name of a `typedef`.
    Alias(Rc<Alias>),
    /// Name that nothing declares.
    Unknown(Rc<str>),
    Pointer(Rc<Qualified>),
    Array(Rc<Qualified>, Option<u64>),
    Function,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    Bool,
    Char,
    UChar,
    Short,
    UShort,
    Int,
    UInt,
    Long,
    ULong,
    Half,
    Float,
    Double,
}

#[derive(Debug)]
pub(crate) struct Alias {
    pub(crate) name: Rc<str>,
    pub(crate) target: Qualified,
    /// Alignment that an attribute of the name states.
    pub(crate) aligned: Option<u64>,
}

/// A `struct` or `union`.
#[derive(Debug)]
pub(crate) struct Structure {
    pub(crate) keyword: &'static str,
    pub(crate) tag: Option<Rc<str>>,
    /// Size and alignment, if they are known.
    pub(crate) layout: Option<Layout>,
    /// Whether a member is a pointer.
    pub(crate) has_pointers: bool,
    pub(crate) is_defined: bool,
}

/// An `enum`.
#[derive(Debug)]
pub(crate) struct Enumeration {
    pub(crate) tag: Option<Rc<str>>,
    /// Size and alignment, if they are known.
    pub(crate) layout: Option<Layout>,
    pub(crate) is_defined: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) size: u64,
    pub(crate) align: u64,
}

/// Size, in bytes, above which a layout counts as unknown.
const MAX_SIZE: u64 = 1 << 40;

impl Scalar {
    pub(crate) const ALL: [(&'static str, Self); 12] = [
        ("bool", Self::Bool),
        ("char", Self::Char),
        ("uchar", Self::UChar),
        ("short", Self::Short),
        ("ushort", Self::UShort),
        ("int", Self::Int),
        ("uint", Self::UInt),
        ("long", Self::Long),
        ("ulong", Self::ULong),
        ("half", Self::Half),
        ("float", Self::Float),
        ("double", Self::Double),
    ];

    /// Returns the name in OpenCL C.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, scalar)| *scalar == self).map_or("", |(name, _)| name)
    }

    pub(crate) fn size(self) -> u64 {
        match self {
            Self::Bool | Self::Char | Self::UChar => 1,
            Self::Short | Self::UShort | Self::Half => 2,
            Self::Int | Self::UInt | Self::Float => 4,
            Self::Long | Self::ULong | Self::Double => 8,
        }
    }

    /// Returns the type in Rust; `None` for types that Rust does not have, or not with the same values.
    pub(crate) fn in_rust(self) -> Option<&'static str> {
        Some(match self {
            Self::Bool | Self::Half => return None,
            Self::Char => "i8",
            Self::UChar => "u8",
            Self::Short => "i16",
            Self::UShort => "u16",
            Self::Int => "i32",
            Self::UInt => "u32",
            Self::Long => "i64",
            Self::ULong => "u64",
            Self::Float => "f32",
            Self::Double => "f64",
        })
    }
}

/// Number of elements that a vector takes the space of: a vector of three takes that of four.
pub(crate) fn lanes_in_memory(lanes: u8) -> u64 {
    u64::from(lanes).next_power_of_two()
}

impl Type {
    /// Returns the type that a name of OpenCL C denotes without a declaration.
    pub(crate) fn built_in(name: &str) -> Option<Self> {
        if name == "void" {
            return Some(Self::Void);
        }
        if let Some(scalar) = scalar(name) {
            return Some(Self::Scalar(scalar));
        }
        if let Some(scalar) = name.strip_prefix("atomic_").and_then(scalar) {
            let is_atomic = !matches!(scalar, Scalar::Bool | Scalar::Half) && scalar.size() >= 4;
            return is_atomic.then_some(Self::Scalar(scalar));
        }
        if IMAGES.contains(&name) {
            return Some(Self::Image(name.into()));
        }
        if name == SAMPLER {
            return Some(Self::Sampler);
        }
        if is_unsupported(name) {
            return Some(Self::Unsupported(name.into()));
        }
        let base = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let lanes = match &name[base.len()..] {
            "2" => 2,
            "3" => 3,
            "4" => 4,
            "8" => 8,
            "16" => 16,
            _ => return None,
        };
        scalar(base).map(|scalar| Self::Vector(scalar, lanes))
    }

    /// Returns the type behind all names of `typedef`s, with the qualifiers that they add.
    pub(crate) fn resolved(&self) -> Qualified {
        let mut resolved =
            Qualified { ty: self.clone(), is_const: false, space: None, access: None };
        while let Self::Alias(alias) = &resolved.ty {
            let Qualified { ty, is_const, space, access } = alias.target.clone();
            resolved = Qualified {
                ty,
                is_const: resolved.is_const || is_const,
                space: resolved.space.or(space),
                access: resolved.access.or(access),
            };
        }
        resolved
    }

    pub(crate) fn layout(&self) -> Option<Layout> {
        match self {
            Self::Alias(alias) => {
                let layout = alias.target.ty.layout()?;
                let align = alias.aligned.unwrap_or(layout.align);
                align.is_power_of_two().then_some(Layout { align, ..layout })
            }
            Self::Scalar(Scalar::Bool) => None,
            Self::Scalar(scalar) => Some(Layout { size: scalar.size(), align: scalar.size() }),
            Self::Vector(scalar, lanes) => {
                let size = scalar.size() * lanes_in_memory(*lanes);
                Some(Layout { size, align: size })
            }
            Self::Structure(structure) => structure.layout,
            Self::Enumeration(enumeration) => enumeration.layout,
            Self::Array(element, Some(length)) => {
                let Layout { size, align } = element.ty.layout()?;
                let size = size.checked_mul(*length).filter(|size| *size <= MAX_SIZE)?;
                Some(Layout { size, align })
            }
            _ => None,
        }
    }

    /// Whether a value of the type contains a pointer.
    pub(crate) fn has_pointers(&self) -> bool {
        match &self.resolved().ty {
            Self::Pointer(_) => true,
            Self::Structure(structure) => structure.has_pointers,
            Self::Array(element, _) => element.ty.has_pointers(),
            _ => false,
        }
    }

    /// Returns how the source writes the type, if it is one with a layout of its own that has a name.
    pub(crate) fn spelling(&self) -> Option<String> {
        match self {
            Self::Alias(alias) => match alias.target.ty.resolved().ty {
                Self::Structure(_) | Self::Enumeration(_) | Self::Array(..) => {
                    Some(alias.name.to_string())
                }
                _ => None,
            },
            Self::Structure(structure) => {
                structure.tag.as_ref().map(|tag| format!("{} {tag}", structure.keyword))
            }
            Self::Enumeration(enumeration) => {
                enumeration.tag.as_ref().map(|tag| format!("enum {tag}"))
            }
            _ => None,
        }
    }

    /// Whether the type is defined, but its layout is not known.
    pub(crate) fn has_unknown_layout(&self) -> bool {
        match &self.resolved().ty {
            Self::Structure(structure) => structure.is_defined && structure.layout.is_none(),
            Self::Enumeration(known) => known.is_defined && known.layout.is_none(),
            Self::Array(_, length) => length.is_none(),
            _ => false,
        }
    }

    /// Returns the names that the type has in the source, the one that was written first.
    pub(crate) fn names(&self) -> Vec<Rc<str>> {
        let mut names = Vec::new();
        let mut ty = self;
        while let Self::Alias(alias) = ty {
            names.push(Rc::clone(&alias.name));
            ty = &alias.target.ty;
        }
        match ty {
            Self::Void => names.push("void".into()),
            Self::Scalar(scalar) => names.push(scalar.name().into()),
            Self::Vector(scalar, lanes) => names.push(format!("{}{lanes}", scalar.name()).into()),
            Self::Structure(structure) => names.extend(structure.tag.clone()),
            Self::Enumeration(enumeration) => names.extend(enumeration.tag.clone()),
            Self::Unknown(name) | Self::Unsupported(name) | Self::Image(name) => {
                names.push(Rc::clone(name));
            }
            Self::Sampler => names.push(SAMPLER.into()),
            _ => {}
        }
        names
    }
}

fn scalar(name: &str) -> Option<Scalar> {
    let found = Scalar::ALL.iter().find(|(known, _)| *known == name);
    found.map(|(_, scalar)| *scalar).or((name == "_Bool").then_some(Scalar::Bool))
}

/// Types of the images that Kiln creates.
const IMAGES: [&str; 6] = [
    "image1d_t",
    "image1d_array_t",
    "image1d_buffer_t",
    "image2d_t",
    "image2d_array_t",
    "image3d_t",
];

pub(crate) const SAMPLER: &str = "sampler_t";

/// Whether a name is that of a type of OpenCL C that has no counterpart in arguments of Kiln.
fn is_unsupported(name: &str) -> bool {
    let is_object = matches!(
        name,
        "queue_t" | "event_t" | "clk_event_t" | "reserve_id_t" | "ndrange_t" | "pipe"
    );
    is_object || is_image(name) || size_type(name).is_some() || name == "atomic_flag"
}

/// Whether a name is that of a type of images, also of those that Kiln lacks.
pub(crate) fn is_image(name: &str) -> bool {
    name.starts_with("image") && name.ends_with("_t")
}

/// Returns the type to use instead of one whose size differs between devices.
pub(crate) fn size_type(name: &str) -> Option<&'static str> {
    match name.strip_prefix("atomic_").unwrap_or(name) {
        "size_t" | "uintptr_t" => Some("ulong"),
        "ptrdiff_t" | "intptr_t" => Some("long"),
        _ => None,
    }
}

/// Computes the layout of a `struct` or `union` from those of its members.
pub(crate) fn structure_layout(
    is_union: bool,
    members: impl IntoIterator<Item = Option<Layout>>,
    is_packed: bool,
    aligned: Option<u64>,
) -> Option<Layout> {
    let mut layout = Layout { size: 0, align: 1 };
    for member in members {
        let Layout { size, align } = member?;
        let align = if is_packed { 1 } else { align };
        if is_union {
            layout.size = layout.size.max(size);
        } else {
            layout.size = layout.size.checked_next_multiple_of(align)?.checked_add(size)?;
        }
        layout.align = layout.align.max(align);
    }
    if let Some(aligned) = aligned {
        layout.align = layout.align.max(Some(aligned).filter(|align| align.is_power_of_two())?);
    }
    layout.size = layout.size.checked_next_multiple_of(layout.align)?;
    (layout.size <= MAX_SIZE && layout.size > 0).then_some(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_opencl_c_denote_types() {
        for (name, size) in
            [("uchar", 1), ("int", 4), ("float3", 16), ("double16", 128), ("half2", 4)]
        {
            let ty = Type::built_in(name).expect("it is built in");
            assert_eq!(ty.layout(), Some(Layout { size, align: size }), "{name}");
            assert_eq!(&*ty.names()[0], name);
        }
        for name in
            ["float5", "floats", "16", "", "unsigned2", "atomic_char", "atomic_half", "float04"]
        {
            assert!(Type::built_in(name).is_none(), "{name}");
        }
        for name in [
            "size_t",
            "atomic_size_t",
            "event_t",
            "image2d_depth_t",
            "image2d_array_depth_t",
            "image2d_msaa_t",
        ] {
            assert!(matches!(Type::built_in(name), Some(Type::Unsupported(_))), "{name}");
        }
        for name in IMAGES {
            assert!(matches!(Type::built_in(name), Some(Type::Image(kind)) if &*kind == name));
        }
        assert!(matches!(Type::built_in("sampler_t"), Some(Type::Sampler)));
        assert!(matches!(Type::built_in("atomic_uint"), Some(Type::Scalar(Scalar::UInt))));
    }

    #[test]
    fn structures_are_laid_out_as_in_c() {
        let [byte, word, vector] = [1, 4, 16].map(|size| Some(Layout { size, align: size }));
        let layout = |members: &[_], packed, aligned| {
            structure_layout(false, members.iter().copied(), packed, aligned)
                .map(|layout| (layout.size, layout.align))
        };
        assert_eq!(layout(&[byte, word, byte], false, None), Some((12, 4)));
        assert_eq!(layout(&[byte, word, byte], true, None), Some((6, 1)));
        assert_eq!(layout(&[byte, vector], false, None), Some((32, 16)));
        assert_eq!(layout(&[word], false, Some(16)), Some((16, 16)));
        assert_eq!(layout(&[byte, word], true, Some(4)), Some((8, 4)));
        assert_eq!(layout(&[byte, None], false, None), None);
        assert_eq!(layout(&[], false, None), None);
        assert_eq!(layout(&[word], false, Some(3)), None);
        let union = structure_layout(true, [byte, vector, word], false, None);
        assert_eq!(union, Some(Layout { size: 16, align: 16 }));
        let huge = Some(Layout { size: u64::MAX, align: 1 });
        assert_eq!(layout(&[huge, huge], false, None), None);
    }
}
