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

#[derive(Clone, Debug)]
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
#[derive(Clone, Debug)]
pub(crate) struct Element {
    /// Names in the source, for which the application can state a type; the one that was written first.
    pub(crate) names: Vec<Rc<str>>,
    pub(crate) shape: Shape,
    pub(crate) layout: Option<Layout>,
}

#[derive(Clone, Debug)]
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
        Self { names: vec![name.into()], shape, layout }
    }
}
