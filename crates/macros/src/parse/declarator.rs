//! Specifiers and declarators: the parts of a declaration in front of and around its name.

use std::rc::Rc;

use super::cursor::Attributes;
use super::expression::{Context, evaluate};
use super::parser::{ParameterDeclaration, Parser};
use super::token::{Place, Token};
use super::types::{ImageAccess, Qualified, Scalar, Space, Type};
use super::unreadable::Result;

/// Maximum depth of declarators inside others.
const MAX_DEPTH: usize = 16;

/// Beginning of a declaration, which all its names share.
pub(super) struct Specifiers {
    pub(super) ty: Qualified,
    pub(super) is_kernel: bool,
    pub(super) is_typedef: bool,
    pub(super) attributes: Attributes,
}

/// A name with its type.
#[derive(Debug)]
pub(super) struct Declarator {
    pub(super) name: Option<Rc<str>>,
    pub(super) place: Place,
    pub(super) ty: Qualified,
    /// Attributes around the name.
    pub(super) attributes: Attributes,
    /// Parameters, if the name is that of a function.
    pub(super) parameters: Option<Vec<ParameterDeclaration>>,
}

/// A step from the type that a declaration begins with to the type of its name.
enum Step {
    Pointer { is_const: bool, space: Option<Space> },
    Array(Option<u64>),
    Function(Vec<ParameterDeclaration>),
}

/// Words without a meaning for types.
const IGNORED: [&str; 15] = [
    "static",
    "extern",
    "inline",
    "__inline",
    "__inline__",
    "register",
    "auto",
    "volatile",
    "__volatile__",
    "restrict",
    "__restrict",
    "__restrict__",
    "_Noreturn",
    "__extension__",
    "_Thread_local",
];

/// Words for the basic types of C.
#[derive(Default)]
struct Basic {
    is_signed: bool,
    is_unsigned: bool,
    longs: u8,
    base: Option<Scalar>,
}

impl Basic {
    /// Adds a word. Returns whether it belongs to a basic type.
    fn add(&mut self, word: &str) -> bool {
        match word {
            "signed" | "__signed__" => self.is_signed = true,
            "unsigned" => self.is_unsigned = true,
            "long" => self.longs += 1,
            "short" if self.base.is_none_or(|base| base == Scalar::Int) => {
                self.base = Some(Scalar::Short);
            }
            "int" if matches!(self.base, None | Some(Scalar::Short)) => {
                self.base = self.base.or(Some(Scalar::Int));
            }
            "char" if self.base.is_none() => self.base = Some(Scalar::Char),
            "float" if self.base.is_none() => self.base = Some(Scalar::Float),
            "double" if self.base.is_none() => self.base = Some(Scalar::Double),
            _ => return false,
        }
        true
    }

    fn is_empty(&self) -> bool {
        !self.is_signed && !self.is_unsigned && self.longs == 0 && self.base.is_none()
    }

    /// Returns the scalar that the words denote; `None` for `long long` and the like.
    fn scalar(&self) -> Option<Scalar> {
        let is_integer =
            self.base.is_none_or(|base| matches!(base, Scalar::Char | Scalar::Short | Scalar::Int));
        let signed = match (self.base, self.longs) {
            (None | Some(Scalar::Int), 0) => Scalar::Int,
            (None | Some(Scalar::Int), 1) => Scalar::Long,
            (Some(base), 0) => base,
            _ => return None,
        };
        match (self.is_unsigned, self.is_signed) {
            (false, false) => Some(signed),
            (false, true) if is_integer => Some(signed),
            (true, false) if is_integer => Some(match signed {
                Scalar::Char => Scalar::UChar,
                Scalar::Short => Scalar::UShort,
                Scalar::Long => Scalar::ULong,
                _ => Scalar::UInt,
            }),
            _ => None,
        }
    }
}

pub(super) fn space(word: &str) -> Option<Space> {
    Some(match word.strip_prefix("__").unwrap_or(word) {
        "global" => Space::Global,
        "constant" => Space::Constant,
        "local" => Space::Local,
        "private" => Space::Private,
        "generic" => Space::Generic,
        _ => return None,
    })
}

/// Returns the access to an image or a pipe that a word states.
fn access(word: &str) -> Option<ImageAccess> {
    Some(match word.strip_prefix("__").unwrap_or(word) {
        "read_only" => ImageAccess::ReadOnly,
        "write_only" | "read_write" => ImageAccess::Writable,
        _ => return None,
    })
}

fn is_const(word: &str) -> bool {
    matches!(word, "const" | "__const" | "__const__")
}

impl Parser<'_> {
    /// Reads what comes before the first name of a declaration.
    pub(super) fn specifiers(&mut self) -> Result<Specifiers> {
        let mut attributes = Attributes::default();
        let (mut basic, mut ty) = (Basic::default(), None);
        let (mut is_kernel, mut is_typedef, mut constant) = (false, false, false);
        let (mut space, mut access) = (None, None);
        loop {
            attributes.add(self.cursor.attributes());
            let Some(token) = self.cursor.peek().filter(|token| token.is_word()) else { break };
            let word = &*token.text;
            match word {
                "kernel" | "__kernel" => is_kernel = true,
                "typedef" => is_typedef = true,
                _ if is_const(word) => constant = true,
                _ if self::space(word).is_some() => space = self::space(word),
                _ if self::access(word).is_some() => access = self::access(word),
                _ if IGNORED.contains(&word) => {}
                "struct" | "union" | "enum" if ty.is_none() && basic.is_empty() => {
                    self.cursor.skip();
                    ty = Some(match word {
                        "struct" => self.structure("struct")?,
                        "union" => self.structure("union")?,
                        _ => self.enumeration()?,
                    });
                    continue;
                }
                "_Atomic" => {
                    // `_Atomic(int)` has the layout of `int`.
                    self.cursor.skip();
                    if self.cursor.eat("(") {
                        self.nest()?;
                        ty = Some(self.specifiers()?.ty.ty);
                        self.cursor.expect(")", "`_Atomic`")?;
                        self.depth -= 1;
                    }
                    continue;
                }
                _ if ty.is_none() && basic.add(word) => {}
                // A second name of a type is that of the declaration.
                _ if ty.is_some() || !basic.is_empty() => {
                    let is_pipe = matches!(&ty, Some(Type::Unsupported(name)) if &**name == "pipe");
                    if !is_pipe {
                        break;
                    }
                }
                _ => ty = Some(self.named_type(&token.text)),
            }
            self.cursor.skip();
        }
        let ty = match ty {
            Some(ty) => ty,
            None if basic.is_empty() => return Err(self.cursor.error("expected a type")),
            None => match basic.scalar() {
                Some(scalar) => Type::Scalar(scalar),
                None => return Err(self.cursor.error("this is not a type of OpenCL C")),
            },
        };
        let ty = Qualified { ty, is_const: constant, space, access };
        Ok(Specifiers { ty, is_kernel, is_typedef, attributes })
    }

    /// Returns the type that a name denotes.
    fn named_type(&self, name: &Rc<str>) -> Type {
        // A `typedef` can replace the name of a built-in vector.
        match self.aliases.get(name) {
            Some(alias) => Type::Alias(Rc::clone(alias)),
            None => Type::built_in(name).unwrap_or_else(|| Type::Unknown(Rc::clone(name))),
        }
    }

    /// Reads a name with the pointers, arrays and parameters around it.
    pub(super) fn declarator(&mut self, base: Qualified) -> Result<Declarator> {
        let mut place = self.cursor.place();
        let outer = std::mem::take(&mut self.attributes);
        let (name, steps) = self.steps(&mut place, 0)?;
        let attributes = std::mem::replace(&mut self.attributes, outer);
        let mut ty = base;
        let mut parameters = None;
        for step in steps {
            // Only the parameters of the name itself are those of a function.
            parameters = None;
            ty = match step {
                Step::Pointer { is_const, space } => {
                    Qualified { ty: Type::Pointer(Rc::new(ty)), is_const, space, access: None }
                }
                Step::Array(length) => {
                    let space = ty.space;
                    let ty = Type::Array(Rc::new(ty), length);
                    Qualified { ty, is_const: false, space, access: None }
                }
                Step::Function(declared) => {
                    parameters = Some(declared);
                    Qualified { ty: Type::Function, is_const: false, space: None, access: None }
                }
            };
        }
        Ok(Declarator { name, place, ty, attributes, parameters })
    }

    fn steps(&mut self, place: &mut Place, depth: usize) -> Result<(Option<Rc<str>>, Vec<Step>)> {
        if depth > MAX_DEPTH {
            return Err(self.cursor.error("declarations are nested too deeply"));
        }
        let mut steps = Vec::new();
        self.attributes.add(self.cursor.attributes());
        while self.cursor.eat("*") {
            steps.push(self.pointer());
        }
        let mut name = None;
        let mut inner = Vec::new();
        let next = self.cursor.peek();
        if next.is_some_and(|token| token.is("(")) && self.begins_declarator() {
            self.cursor.skip();
            (name, inner) = self.steps(place, depth + 1)?;
            self.cursor.expect(")", "a declaration in parentheses")?;
        } else if next.is_some_and(|token| token.is_word()) {
            *place = self.cursor.place();
            name = self.cursor.eat_word();
        }
        let suffixes = self.suffixes()?;
        steps.extend(suffixes.into_iter().rev());
        steps.extend(inner);
        Ok((name, steps))
    }

    /// Reads the qualifiers behind the `*` of a pointer.
    fn pointer(&mut self) -> Step {
        let (mut constant, mut space) = (false, None);
        loop {
            self.cursor.attributes();
            let Some(token) = self.cursor.peek() else { break };
            let word = &*token.text;
            if is_const(word) {
                constant = true;
            } else if let Some(found) = self::space(word) {
                space = Some(found);
            } else if !IGNORED.contains(&word) {
                break;
            }
            self.cursor.skip();
        }
        Step::Pointer { is_const: constant, space }
    }

    /// Whether a parenthesis opens a declarator rather than parameters.
    fn begins_declarator(&self) -> bool {
        self.cursor.peek_second().is_some_and(|token| {
            let is_name = token.is_word()
                && !self.aliases.contains_key(&token.text)
                && Type::built_in(&token.text).is_none()
                && !is_const(&token.text)
                && space(&token.text).is_none()
                && !matches!(&*token.text, "unsigned" | "signed" | "struct" | "union" | "enum");
            token.is("*") || token.is("(") || is_name
        })
    }

    /// Reads arrays and parameters behind a name.
    fn suffixes(&mut self) -> Result<Vec<Step>> {
        let mut suffixes = Vec::new();
        loop {
            self.attributes.add(self.cursor.attributes());
            if self.cursor.eat("[") {
                let mut length = Vec::new();
                while self.cursor.peek().is_some_and(|token| !token.is("]")) {
                    length.extend(self.cursor.skip_initializer());
                    if !self.cursor.peek().is_some_and(|token| token.is("]")) {
                        return Err(self.cursor.error("the length of this array cannot be read"));
                    }
                }
                self.cursor.expect("]", "the length of an array")?;
                // Qualifiers of a parameter, as in `float x[restrict static 4]`.
                length.retain(|token| !is_const(&token.text) && !IGNORED.contains(&&*token.text));
                suffixes
                    .push(Step::Array(self.constant(&length).and_then(|it| it.try_into().ok())));
            } else if self.cursor.eat("(") {
                suffixes.push(Step::Function(self.parameters()?));
            } else {
                return Ok(suffixes);
            }
        }
    }

    /// Reads parameters, up to the closing parenthesis.
    fn parameters(&mut self) -> Result<Vec<ParameterDeclaration>> {
        self.nest()?;
        let mut parameters = Vec::new();
        let is_void = self.cursor.peek().is_some_and(|token| token.is("void"))
            && self.cursor.peek_second().is_some_and(|token| token.is(")"));
        if is_void {
            self.cursor.skip();
        }
        while !self.cursor.eat(")") {
            if self.cursor.eat("...") {
                return Err(self.cursor.error("kernels do not take `...`"));
            }
            parameters.push(self.parameter()?);
            if !self.cursor.eat(",") {
                self.cursor.expect(")", "the parameters")?;
                break;
            }
        }
        self.depth -= 1;
        Ok(parameters)
    }

    fn parameter(&mut self) -> Result<ParameterDeclaration> {
        let start = self.cursor.position();
        let mut specifiers = self.specifiers()?;
        let declarator = self.declarator(specifiers.ty)?;
        specifiers.attributes.add(self.cursor.attributes());
        let declaration = self.cursor.text(start, self.cursor.position());
        let Declarator { name, place, ty, .. } = declarator;
        Ok(ParameterDeclaration { name, ty, declaration, place })
    }

    /// Returns the value of a constant expression, if it is known.
    pub(super) fn constant(&self, expression: &[Token]) -> Option<i64> {
        evaluate(expression, Context::Declaration, &|name| self.constants.get(name).copied())
    }
}
