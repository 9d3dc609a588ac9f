//! Integer constant expressions: conditions of the preprocessor, and lengths of arrays.

use super::token::{Kind, Token};

/// Maximum depth of nested expressions.
const MAX_DEPTH: usize = 64;

/// Where an expression stands, which determines the types of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// In a condition of the preprocessor: all values have 64 bits.
    Condition,
    /// In a declaration of OpenCL C: values have the types that C gives them.
    Declaration,
}

/// Returns the value of an expression; `None` if it is not valid, not known or not in the range of an `i64`.
/// `value_of` returns the values of names. Operands that C does not evaluate need no value: those after `0 &&` and
/// `1 ||`, and one of the two after a `?`.
pub(crate) fn evaluate(
    tokens: &[Token],
    context: Context,
    value_of: &dyn Fn(&str) -> Option<i64>,
) -> Option<i64> {
    let mut parser = Parser { tokens, at: 0, depth: 0, unused: 0, context, value_of };
    let value = parser.conditional()?;
    (parser.at == tokens.len()).then_some(i64::try_from(value.number).ok()?)
}

/// Value of a type of C.
#[derive(Clone, Copy, Debug)]
struct Value {
    number: i128,
    ty: Integer,
}

/// Integer type, without those that C promotes to `int`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Integer {
    is_long: bool,
    is_unsigned: bool,
}

const INT: Integer = Integer { is_long: false, is_unsigned: false };

impl Integer {
    fn bits(self) -> u32 {
        if self.is_long { 64 } else { 32 }
    }

    fn holds(self, number: i128) -> bool {
        let bits = self.bits();
        let range = match self.is_unsigned {
            true => 0..1i128 << bits,
            false => -(1i128 << (bits - 1))..1i128 << (bits - 1),
        };
        range.contains(&number)
    }

    /// Returns the type to which C converts the operands of an operator.
    fn common(self, other: Self) -> Self {
        match self.is_long == other.is_long {
            true => Self { is_unsigned: self.is_unsigned || other.is_unsigned, ..self },
            false if self.is_long => self,
            false => other,
        }
    }

    /// Converts a number to the type.
    fn converted(self, number: i128) -> Value {
        let wrapped = number.rem_euclid(1i128 << self.bits());
        let number = if self.holds(wrapped) { wrapped } else { wrapped - (1i128 << self.bits()) };
        Value { number, ty: self }
    }

    /// Returns a result of the type: unsigned ones wrap around, signed ones have no value if they overflow.
    fn result(self, number: i128) -> Option<Value> {
        let has_value = self.is_unsigned || self.holds(number);
        has_value.then(|| self.converted(number))
    }
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: usize,
    /// Number of expressions around the current one whose value is not needed.
    unused: usize,
    context: Context,
    value_of: &'a dyn Fn(&str) -> Option<i64>,
}

/// Binary operators by their precedence, the weakest first.
const LEVELS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<", ">", "<=", ">="],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

impl Parser<'_> {
    fn eat(&mut self, sign: &str) -> bool {
        let found = self.tokens.get(self.at).is_some_and(|token| token.is(sign));
        self.at += usize::from(found);
        found
    }

    fn conditional(&mut self) -> Option<Value> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let condition = self.binary(0)?;
        let value = if self.eat("?") {
            let holds = condition.number != 0;
            let then = self.read(holds, Self::conditional)?;
            let otherwise = self.eat(":").then(|| self.read(!holds, Self::conditional))??;
            let ty = then.ty.common(otherwise.ty);
            ty.converted(if holds { then.number } else { otherwise.number })
        } else {
            condition
        };
        self.depth -= 1;
        Some(value)
    }

    fn binary(&mut self, level: usize) -> Option<Value> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| self.eat(operator)) {
            let is_used = match *operator {
                "||" => left.number == 0,
                "&&" => left.number != 0,
                _ => true,
            };
            let right = self.read(is_used, |parser| parser.binary(level + 1))?;
            let value = self.apply(operator, left, right);
            left = self.or_unused(value)?;
        }
        Some(left)
    }

    /// Reads an expression whose value is needed or not.
    fn read(
        &mut self,
        is_used: bool,
        expression: impl FnOnce(&mut Self) -> Option<Value>,
    ) -> Option<Value> {
        self.unused += usize::from(!is_used);
        let value = expression(self);
        self.unused -= usize::from(!is_used);
        value
    }

    /// Returns a value; zero if there is none but none is needed.
    fn or_unused(&self, value: Option<Value>) -> Option<Value> {
        value.or_else(|| (self.unused > 0).then_some(Value { number: 0, ty: self.int() }))
    }

    fn unary(&mut self) -> Option<Value> {
        let mut applied = Vec::new();
        while let Some(operator) = ["!", "-", "+", "~"].into_iter().find(|sign| self.eat(sign)) {
            applied.push(operator);
        }
        let mut value = self.primary()?;
        while let Some(operator) = applied.pop() {
            value = match operator {
                "!" => self.truth(value.number == 0),
                "-" => self.or_unused(value.ty.result(-value.number))?,
                "~" => value.ty.converted(!value.number),
                _ => value,
            };
        }
        Some(value)
    }

    fn primary(&mut self) -> Option<Value> {
        if self.eat("(") {
            let value = self.conditional()?;
            return self.eat(")").then_some(value);
        }
        let token = self.tokens.get(self.at)?;
        self.at += 1;
        match token.kind {
            Kind::Number => self.number(&token.text),
            // Constants have the type `int`; what becomes of larger ones depends on the compiler.
            Kind::Word if self.unused > 0 => self.or_unused(None),
            Kind::Word => self.int().result((self.value_of)(&token.text)?.into()),
            Kind::Quoted => self.int().result(character(&token.text)?.into()),
            Kind::Comment | Kind::Sign => None,
        }
    }

    /// Returns the type of a value that is `int` in C.
    fn int(&self) -> Integer {
        Integer { is_long: self.context == Context::Condition, ..INT }
    }

    fn truth(&self, holds: bool) -> Value {
        Value { number: i128::from(holds), ty: self.int() }
    }

    fn apply(&self, operator: &str, left: Value, right: Value) -> Option<Value> {
        let ty = left.ty.common(right.ty);
        let (a, b) = (ty.converted(left.number).number, ty.converted(right.number).number);
        let shift = || u32::try_from(right.number).ok().filter(|by| *by < left.ty.bits());
        Some(match operator {
            "||" => self.truth(left.number != 0 || right.number != 0),
            "&&" => self.truth(left.number != 0 && right.number != 0),
            "|" => ty.converted(a | b),
            "^" => ty.converted(a ^ b),
            "&" => ty.converted(a & b),
            "==" => self.truth(a == b),
            "!=" => self.truth(a != b),
            "<" => self.truth(a < b),
            ">" => self.truth(a > b),
            "<=" => self.truth(a <= b),
            ">=" => self.truth(a >= b),
            "<<" => left.ty.result(left.number << shift()?)?,
            ">>" => left.ty.converted(left.number >> shift()?),
            "+" => ty.result(a + b)?,
            "-" => ty.result(a - b)?,
            "*" => ty.result(a.checked_mul(b)?)?,
            "/" => ty.result(a.checked_div(b)?)?,
            "%" => ty.result(a.checked_rem(b)?)?,
            _ => return None,
        })
    }

    /// Returns the value of an integer literal, with the first type that C tries for it and that holds it.
    fn number(&self, text: &str) -> Option<Value> {
        let text = text.to_ascii_lowercase().replace('\'', "");
        let digits = text.trim_end_matches(['u', 'l']);
        let suffix = &text[digits.len()..];
        let (digits, radix) = match digits.as_bytes() {
            [b'0', b'x', ..] => (&digits[2..], 16),
            [b'0', b'b', ..] => (&digits[2..], 2),
            [b'0', _, ..] => (&digits[1..], 8),
            _ => (digits, 10),
        };
        let number = i128::from(u64::from_str_radix(digits, radix).ok()?);
        let is_stated_unsigned = suffix.contains('u');
        let is_stated_long = suffix.contains('l') || self.context == Context::Condition;
        let may_be_unsigned = is_stated_unsigned || radix != 10;
        let mut types = [false, true]
            .into_iter()
            .flat_map(|is_long| [false, true].map(|is_unsigned| Integer { is_long, is_unsigned }));
        let ty = types.find(|ty| {
            let is_tried = match ty.is_unsigned {
                true => may_be_unsigned || self.context == Context::Condition,
                false => !is_stated_unsigned,
            };
            is_tried && (ty.is_long || !is_stated_long) && ty.holds(number)
        });
        Some(Value { number, ty: ty? })
    }
}

/// Returns the value of a character literal of one character.
fn character(text: &str) -> Option<i64> {
    let inner = text.strip_prefix('\'')?.strip_suffix('\'')?;
    let mut characters = inner.chars();
    let value = match (characters.next()?, characters.next()) {
        (c, None) => c,
        ('\\', Some('n')) => '\n',
        ('\\', Some('t')) => '\t',
        ('\\', Some('0')) => '\0',
        ('\\', Some(c @ ('\\' | '\''))) => c,
        _ => return None,
    };
    characters.next().is_none().then(|| i64::from(u32::from(value)))
}

#[cfg(test)]
mod tests {
    use super::super::token::tokens;
    use super::*;

    fn value_in(context: Context, text: &str) -> Option<i64> {
        evaluate(&tokens(text, &"f.cl".into()), context, &|name| (name == "N").then_some(4))
    }

    fn value(text: &str) -> Option<i64> {
        value_in(Context::Declaration, text)
    }

    #[test]
    fn expressions_have_the_values_that_c_gives_them() {
        for (text, expected) in [
            ("1 + 2 * 3", 7),
            ("(1 + 2) * 3", 9),
            ("10 - 4 - 3", 3),
            ("1 << 4 | 1", 17),
            ("0x10u + 010 + 0b11", 27),
            ("!0 && !!5", 1),
            ("-1 < 0", 1),
            ("N * N - 1", 15),
            ("N > 3 ? N == 4 ? 7 : 8 : 9", 7),
            ("~0 & 0xff", 255),
            ("7 % 4 / 3", 1),
            ("'A' == 65", 1),
            ("-1 < 0u", 0),
            ("-1 < 0ul", 0),
            ("-1l < 0u", 1),
            ("0xffffffff + 1", 0),
            ("0xffffffffl + 1", 1 << 32),
            ("4294967295 + 1", 1 << 32),
            ("1u - 2 > 0 ? 3 : 5", 3),
            ("-1 / 2u", 0x7fff_ffff),
            ("-8 >> 1", -4),
            ("~0u", 0xffff_ffff),
            ("18446744073709551615u == -1", 1),
        ] {
            assert_eq!(value(text), Some(expected), "{text}");
        }
        for (text, expected) in [
            ("-1 < 0u", 0),
            ("0xffffffff + 1", 1 << 32),
            ("1u - 2 > 0xffffffff", 1),
            ("18446744073709551615 == -1", 1),
            ("1 << 40", 1 << 40),
        ] {
            assert_eq!(value_in(Context::Condition, text), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_have_no_value() {
        for text in [
            "",
            "1 +",
            "M",
            "(1",
            "1 / 0",
            "1 % 0",
            "1 2",
            "1.5",
            "\"a\"",
            "1 << 64",
            "1 ? 2",
            "- -",
            "1 = 1",
            "1 << 31",
            "2147483647 + 1",
            "18446744073709551615u",
            "(long) 1",
        ] {
            assert_eq!(value(text), None, "{text}");
        }
        assert_eq!(value(&"(".repeat(100_000)), None);
        assert_eq!(value(&format!("{}1", "!".repeat(100_000))), Some(1));
    }
}
