//! Signatures of kernels, in terms of what Kiln's launches take.

use std::rc::Rc;

use crate::parse::token::Place;
use crate::parse::types::Layout;

/// A kernel with its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) name: Rc<str>,
    /// Place of the definition, if the file states it.
    pub(crate) place: Option<Place>,
    /// Lines of the comment above the definition.
    pub(crate) comment: Vec<String>,
    /// Definition as it is written, without its body; empty if the file does not contain it.
    pub(crate) declaration: String,
    /// Parameters, or for each that a launch cannot give, the reason.
    pub(crate) parameters: Vec<Result<Parameter, String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub(crate) name: Option<Rc<str>>,
    /// Declaration in the source, for messages.
    pub(crate) declaration: String,
    pub(crate) passing: Passing,
    pub(crate) element: Element,
}

/// Kind of argument that a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    Value,
    /// Buffer that the kernel declares to read only.
    ReadBuffer,
    Buffer,
    Local,
    /// Image that the kernel declares to read only.
    ReadImage,
    /// Image that the kernel may write.
    Image,
}

/// Type of a value, of an image, or of the elements of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    /// Names in the source, for which the application can state a type; the one that was written first.
    pub(crate) names: Vec<Rc<str>>,
    pub(crate) shape: Shape,
    pub(crate) layout: Option<Layout>,
    /// How the source writes the type, if clang can tell its size.
    pub(crate) spelling: Option<String>,
    /// Whether the source defines the type in a way that only clang knows the layout of.
    pub(crate) needs_clang: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Type of Rust.
    Rust(&'static str),
    Array(Box<Element>, u64),
    /// Image of the kind that the element's name denotes, with pixels of any format.
    Image,
    Sampler,
    /// Type that the application has to state, with the reason.
    Stated(String),
}

impl Element {
    pub(crate) fn new(name: &str, shape: Shape, layout: Option<Layout>) -> Self {
        let names = vec![name.into()];
        Self { names, shape, layout, spelling: None, needs_clang: false }
    }

    /// Adds the types for which clang can tell the size, each once.
    pub(crate) fn add_spellings(&self, types: &mut Vec<String>) {
        types.extend(
            self.spelling.iter().filter(|ty| !types.contains(ty)).cloned().collect::<Vec<_>>(),
        );
        if let Shape::Array(inner, _) = &self.shape {
            inner.add_spellings(types);
        }
    }

    /// Takes the sizes that clang knows of types, and the lengths of arrays that follow.
    pub(crate) fn take_sizes(&mut self, size_of: &dyn Fn(&str) -> Option<u64>) {
        let size = self.spelling.as_deref().and_then(size_of);
        if let Shape::Array(inner, length) = &mut self.shape {
            inner.take_sizes(size_of);
            let element = inner.layout.map(|layout| layout.size).filter(|size| *size > 0);
            if let (Some(size), Some(element)) = (size, element) {
                *length = size / element;
            }
        }
        if let Some(size) = size {
            let align = self.layout.map_or(1, |layout| layout.align);
            self.layout = Some(Layout { size, align });
        }
    }

    /// Returns the name of the type whose size only clang knows, if it is not known.
    pub(crate) fn of_unknown_size(&self) -> Option<&str> {
        if self.needs_clang && self.layout.is_none() {
            return Some(self.names.first().map_or("type", |name| name));
        }
        match &self.shape {
            Shape::Array(inner, _) => inner.of_unknown_size(),
            _ => None,
        }
    }
}
