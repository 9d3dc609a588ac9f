//! Declarations of OpenCL C: types and kernels. Bodies of functions are skipped.

use std::rc::Rc;

use super::cursor::{Attributes, Cursor};
use super::declarator::Declarator;
use super::parser::{KernelDefinition, Parser};
use super::types::{Alias, Enumeration, Layout, Structure, Type, structure_layout};
use super::unreadable::{Result, Unreadable};

/// Maximum depth of structures and parameters inside each other.
const MAX_DEPTH: usize = 16;

/// Kernels of a text, and the definitions that look like kernels but cannot be read.
pub(crate) type Kernels = (Vec<KernelDefinition>, Vec<Unreadable>);

/// Returns the kernels that a text defines.
pub(crate) fn kernels(cursor: Cursor<'_>) -> Kernels {
    let mut parser = Parser::new(cursor);
    while !parser.cursor.is_at_end() {
        parser.read_next();
    }
    (parser.kernels, parser.problems)
}

impl Parser<'_> {
    /// Reads a declaration. What is not one is skipped, unless it declares a kernel.
    fn read_next(&mut self) {
        let start = self.cursor.position();
        self.depth = 0;
        if let Err(problem) = self.external_declaration() {
            self.cursor.return_to(start);
            let skipped = self.cursor.skip_declaration();
            if skipped.iter().any(|token| token.is("kernel") || token.is("__kernel")) {
                self.problems.push(problem);
            }
        }
        if self.cursor.position() == start {
            self.cursor.skip();
        }
    }

    fn external_declaration(&mut self) -> Result<()> {
        if self.cursor.eat(";") {
            return Ok(());
        }
        for statement in ["_Static_assert", "static_assert", "asm", "__asm__", "__asm"] {
            if self.cursor.eat(statement) {
                self.cursor.skip_declaration();
                return Ok(());
            }
        }
        let start = self.cursor.position();
        let specifiers = self.specifiers()?;
        if self.cursor.eat(";") {
            return Ok(());
        }
        loop {
            let mut attributes = specifiers.attributes.clone();
            let declarator = self.declarator(specifiers.ty.clone())?;
            attributes.add(declarator.attributes.clone());
            if specifiers.is_typedef {
                self.add_alias(&declarator, &attributes)?;
            } else if self.cursor.peek().is_some_and(|token| token.is("{")) {
                return self.function_definition(specifiers.is_kernel, start, declarator);
            }
            if self.cursor.eat("=") {
                self.cursor.skip_initializer();
            }
            if !self.cursor.eat(",") {
                return self.cursor.expect(";", "a declaration");
            }
        }
    }

    fn add_alias(&mut self, declarator: &Declarator, attributes: &Attributes) -> Result<()> {
        let Some(name) = &declarator.name else {
            return Err(self.cursor.error("a `typedef` without a name"));
        };
        let target = attributes.applied(declarator.ty.clone());
        let alias = Alias { name: Rc::clone(name), target, aligned: attributes.aligned };
        self.aliases.insert(Rc::clone(name), Rc::new(alias));
        Ok(())
    }

    fn function_definition(
        &mut self,
        is_kernel: bool,
        start: usize,
        declarator: Declarator,
    ) -> Result<()> {
        let end = self.cursor.position();
        if !self.cursor.skip_group() {
            return Err(self
                .cursor
                .error("the body of this function does not end: a `}` is missing"));
        }
        if !is_kernel {
            return Ok(());
        }
        let (Some(name), Some(parameters)) = (declarator.name, declarator.parameters) else {
            self.cursor.return_to(end);
            return Err(self.cursor.error("this kernel is not declared as a function with a name"));
        };
        let comment = self.cursor.comment_above(start);
        let declaration = self.cursor.text(start, end);
        let place = declarator.place;
        self.kernels.push(KernelDefinition { name, place, comment, declaration, parameters });
        Ok(())
    }

    /// Enters a declaration inside another.
    pub(super) fn nest(&mut self) -> Result<()> {
        self.depth += 1;
        match self.depth > MAX_DEPTH {
            true => Err(self.cursor.error("declarations are nested too deeply")),
            false => Ok(()),
        }
    }

    /// Reads a `struct` or `union` behind its keyword.
    pub(super) fn structure(&mut self, keyword: &'static str) -> Result<Type> {
        let mut attributes = self.cursor.attributes();
        let tag = self.cursor.eat_word();
        if !self.cursor.peek().is_some_and(|token| token.is("{")) {
            let Some(tag) = tag else {
                return Err(self.cursor.error(format!("a `{keyword}` without a name")));
            };
            let declared = self.structures.get(&tag).cloned();
            return Ok(Type::Structure(declared.unwrap_or_else(|| {
                let (tag, layout, has_pointers) = (Some(tag), None, false);
                Rc::new(Structure { keyword, tag, layout, has_pointers, is_defined: false })
            })));
        }
        self.cursor.skip();
        let members = self.members()?;
        attributes.add(self.cursor.attributes());
        let layouts = members.iter().map(|member| member.layout);
        let layout =
            structure_layout(keyword == "union", layouts, attributes.is_packed, attributes.aligned)
                .filter(|_| !attributes.is_unknown && !self.has_unknown_pragmas);
        let has_pointers = members.iter().any(|member| member.has_pointers);
        let structure =
            Structure { keyword, tag: tag.clone(), layout, has_pointers, is_defined: true };
        let structure = Rc::new(structure);
        if let Some(tag) = tag {
            self.structures.insert(tag, Rc::clone(&structure));
        }
        Ok(Type::Structure(structure))
    }

    /// Reads the members of a structure, up to the closing brace.
    fn members(&mut self) -> Result<Vec<Member>> {
        self.nest()?;
        let mut members = Vec::new();
        while !self.cursor.eat("}") {
            if self.cursor.eat(";") {
                continue;
            }
            self.member_declaration(&mut members)?;
        }
        self.depth -= 1;
        Ok(members)
    }

    fn member_declaration(&mut self, members: &mut Vec<Member>) -> Result<()> {
        let specifiers = self.specifiers()?;
        // A structure without a name has its members here.
        if self.cursor.eat(";") {
            members.push(Member::of(&specifiers.ty.ty, &specifiers.attributes));
            return Ok(());
        }
        loop {
            let is_nameless_bit_field = self.cursor.peek().is_some_and(|token| token.is(":"));
            let declarator = match is_nameless_bit_field {
                true => None,
                false => Some(self.declarator(specifiers.ty.clone())?),
            };
            let mut attributes = specifiers.attributes.clone();
            if let Some(declarator) = &declarator {
                attributes.add(declarator.attributes.clone());
            }
            if self.cursor.eat(":") {
                self.cursor.skip_initializer();
                members.push(Member { layout: None, has_pointers: false });
            } else if let Some(declarator) = declarator {
                members.push(Member::of(&declarator.ty.ty, &attributes));
            }
            if !self.cursor.eat(",") {
                return self.cursor.expect(";", "a member of a structure");
            }
        }
    }

    /// Reads an `enum` behind its keyword.
    pub(super) fn enumeration(&mut self) -> Result<Type> {
        let mut attributes = self.cursor.attributes();
        let tag = self.cursor.eat_word();
        let has_stated_type = self.cursor.eat(":");
        if has_stated_type {
            self.specifiers()?;
        }
        if !self.cursor.eat("{") {
            let Some(tag) = tag else {
                return Err(self.cursor.error("an `enum` without a name"));
            };
            let declared = self.enumerations.get(&tag).cloned();
            return Ok(Type::Enumeration(declared.unwrap_or_else(|| {
                Rc::new(Enumeration { tag: Some(tag), layout: None, is_defined: false })
            })));
        }
        let values = self.enumerators()?;
        attributes.add(self.cursor.attributes());
        let is_plain = !(has_stated_type || attributes.is_packed || attributes.is_unknown)
            && attributes.aligned.is_none();
        let layout = values.filter(|_| is_plain).and_then(|values| enumeration_layout(&values));
        let enumeration = Rc::new(Enumeration { tag: tag.clone(), layout, is_defined: true });
        if let Some(tag) = tag {
            self.enumerations.insert(tag, Rc::clone(&enumeration));
        }
        Ok(Type::Enumeration(enumeration))
    }

    /// Reads the constants of an `enum`, up to the closing brace. Returns their values if all are known.
    fn enumerators(&mut self) -> Result<Option<Vec<i64>>> {
        let (mut next, mut values) = (Some(0i64), Some(Vec::new()));
        while !self.cursor.eat("}") {
            let Some(name) = self.cursor.eat_word() else {
                return Err(self.cursor.error("a constant of an `enum` without a name"));
            };
            self.cursor.attributes();
            if self.cursor.eat("=") {
                let value = self.cursor.skip_initializer();
                next = self.constant(&value);
            }
            match next {
                Some(value) => _ = self.constants.insert(name, value),
                None => _ = self.constants.remove(&name),
            }
            match (&mut values, next) {
                (Some(values), Some(value)) => values.push(value),
                _ => values = None,
            }
            next = next.and_then(|value| value.checked_add(1));
            if !self.cursor.eat(",") {
                self.cursor.expect("}", "an `enum`")?;
                break;
            }
        }
        Ok(values)
    }
}

/// Returns the layout of an `enum` with these values: that of an `int`, if one holds them all. Compilers differ
/// in what they do with others.
fn enumeration_layout(values: &[i64]) -> Option<Layout> {
    let fits = values.iter().all(|value| i32::try_from(*value).is_ok());
    fits.then_some(Layout { size: 4, align: 4 })
}

struct Member {
    layout: Option<Layout>,
    has_pointers: bool,
}

impl Member {
    fn of(ty: &Type, attributes: &Attributes) -> Self {
        // Attributes of single members change their places.
        let is_plain =
            !attributes.is_packed && attributes.aligned.is_none() && !attributes.is_unknown;
        let layout = ty.layout().filter(|_| is_plain);
        Self { layout, has_pointers: ty.has_pointers() }
    }
}
