//! The parser of declarations: what it has read, and where it is.

use std::collections::HashMap;
use std::rc::Rc;

use super::cursor::{Attributes, Cursor};
use super::token::Place;
use super::types::{Alias, Enumeration, Qualified, Structure};
use super::unreadable::Unreadable;

/// Function that a text defines as a kernel.
#[derive(Debug)]
pub(crate) struct KernelDefinition {
    pub(crate) name: Rc<str>,
    pub(crate) place: Place,
    /// Lines of the comment above the definition.
    pub(crate) comment: Vec<String>,
    /// Definition as it is written, up to the body.
    pub(crate) declaration: String,
    pub(crate) parameters: Vec<ParameterDeclaration>,
}

/// Parameter as it is declared.
#[derive(Clone, Debug)]
pub(crate) struct ParameterDeclaration {
    pub(crate) name: Option<Rc<str>>,
    pub(crate) ty: Qualified,
    /// Declaration as it is written.
    pub(crate) declaration: String,
    pub(crate) place: Place,
}

/// State of reading the declarations of a preprocessed text.
pub(crate) struct Parser<'t> {
    pub(super) cursor: Cursor<'t>,
    pub(super) aliases: HashMap<Rc<str>, Rc<Alias>>,
    pub(super) structures: HashMap<Rc<str>, Rc<Structure>>,
    pub(super) enumerations: HashMap<Rc<str>, Rc<Enumeration>>,
    pub(super) constants: HashMap<Rc<str>, i64>,
    /// Whether a pragma may change the layouts of structures.
    pub(super) has_unknown_pragmas: bool,
    /// Attributes around the name that is being read.
    pub(super) attributes: Attributes,
    pub(super) depth: usize,
    pub(super) kernels: Vec<KernelDefinition>,
    pub(super) problems: Vec<Unreadable>,
}

impl<'t> Parser<'t> {
    pub(super) fn new(cursor: Cursor<'t>) -> Self {
        Self {
            has_unknown_pragmas: cursor.has_unknown_pragmas(),
            cursor,
            aliases: HashMap::new(),
            structures: HashMap::new(),
            enumerations: HashMap::new(),
            constants: HashMap::new(),
            attributes: Attributes::default(),
            depth: 0,
            kernels: Vec::new(),
            problems: Vec::new(),
        }
    }
}
