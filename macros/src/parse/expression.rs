//! Integer constant expressions: conditions of the preprocessor, and lengths of arrays.

use super::token::{Kind, Token};

/// Maximum depth of nested expressions.
const MAX_DEPTH: usize = 64;

/// Returns the value of an expression; `None` if it is not valid or not known. `value_of` returns the values of
/// names.
pub(crate) fn evaluate(tokens: &[Token], value_of: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
    let mut parser = Parser { tokens, at: 0, depth: 0, value_of };
    let value = parser.conditional()?;
    (parser.at == tokens.len()).then_some(value)
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: usize,
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

    fn conditional(&mut self) -> Option<i64> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let condition = self.binary(0)?;
        let value = if self.eat("?") {
            let then = self.conditional()?;
            let otherwise = self.eat(":").then(|| self.conditional())??;
            if condition != 0 { then } else { otherwise }
        } else {
            condition
        };
        self.depth -= 1;
        Some(value)
    }

    fn binary(&mut self, level: usize) -> Option<i64> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| self.eat(operator)) {
            let right = self.binary(level + 1)?;
            left = apply(operator, left, right)?;
        }
        Some(left)
    }

    fn unary(&mut self) -> Option<i64> {
        let mut applied = Vec::new();
        while let Some(operator) = ["!", "-", "+", "~"].into_iter().find(|sign| self.eat(sign)) {
            applied.push(operator);
        }
        let mut value = self.primary()?;
        while let Some(operator) = applied.pop() {
            value = match operator {
                "!" => i64::from(value == 0),
                "-" => value.wrapping_neg(),
                "~" => !value,
                _ => value,
            };
        }
        Some(value)
    }

    fn primary(&mut self) -> Option<i64> {
        if self.eat("(") {
            let value = self.conditional()?;
            return self.eat(")").then_some(value);
        }
        let token = self.tokens.get(self.at)?;
        self.at += 1;
        match token.kind {
            Kind::Number => number(&token.text),
            Kind::Word => (self.value_of)(&token.text),
            Kind::Quoted => character(&token.text),
            Kind::Comment | Kind::Sign => None,
        }
    }
}

fn apply(operator: &str, left: i64, right: i64) -> Option<i64> {
    let shift = u32::try_from(right).ok().filter(|right| *right < 64);
    Some(match operator {
        "||" => i64::from(left != 0 || right != 0),
        "&&" => i64::from(left != 0 && right != 0),
        "|" => left | right,
        "^" => left ^ right,
        "&" => left & right,
        "==" => i64::from(left == right),
        "!=" => i64::from(left != right),
        "<" => i64::from(left < right),
        ">" => i64::from(left > right),
        "<=" => i64::from(left <= right),
        ">=" => i64::from(left >= right),
        "<<" => left.wrapping_shl(shift?),
        ">>" => left.wrapping_shr(shift?),
        "+" => left.wrapping_add(right),
        "-" => left.wrapping_sub(right),
        "*" => left.wrapping_mul(right),
        "/" => left.checked_div(right)?,
        "%" => left.checked_rem(right)?,
        _ => return None,
    })
}

/// Returns the value of an integer literal.
fn number(text: &str) -> Option<i64> {
    let text = text.to_ascii_lowercase().replace('\'', "");
    let digits = text.trim_end_matches(['u', 'l']);
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x', ..] => (&digits[2..], 16),
        [b'0', b'b', ..] => (&digits[2..], 2),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    u64::from_str_radix(digits, radix).ok().map(u64::cast_signed)
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

    fn value(text: &str) -> Option<i64> {
        evaluate(&tokens(text, &"f.cl".into()), &|name| (name == "N").then_some(4))
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
            ("18446744073709551615u", -1),
        ] {
            assert_eq!(value(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_texts_have_no_value() {
        for text in [
            "", "1 +", "M", "(1", "1 / 0", "1 % 0", "1 2", "1.5", "\"a\"", "1 << 64", "1 ? 2",
            "- -", "1 = 1",
        ] {
            assert_eq!(value(text), None, "{text}");
        }
        assert_eq!(value(&"(".repeat(100_000)), None);
        assert_eq!(value(&format!("{}1", "!".repeat(100_000))), Some(1));
    }
}
