//! Functions of a preprocessed OpenCL C text.
//!
//! A text that clang refuses because of one kernel, such as one that calls a function that only the device's
//! compiler knows, may be valid without it. Only the outline of the text is read: where functions are defined,
//! and which names they mention.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use super::assembly::Names;

/// Definition of a function.
#[derive(Debug)]
struct Function<'t> {
    name: &'t str,
    is_kernel: bool,
    /// Position in the text, from the specifiers to the closing brace.
    range: Range<usize>,
    identifiers: BTreeSet<&'t str>,
}

/// Returns the text without the kernels that are not in `kernels`, and without the functions that no other code
/// mentions then. The text must be preprocessed: what macros define is not found.
pub(super) fn with_kernels(text: &str, kernels: &Names) -> String {
    let functions = functions(text);
    let by_name: HashMap<_, _> =
        functions.iter().enumerate().map(|(at, function)| (function.name, at)).collect();
    let is_wanted =
        |function: &&Function<'_>| function.is_kernel && kernels.contains(function.name);
    let mut pending: Vec<_> = functions.iter().filter(is_wanted).collect();
    let mut kept: HashSet<_> = pending.iter().map(|function| function.name).collect();
    while let Some(function) = pending.pop() {
        for name in &function.identifiers {
            if let Some(&at) = by_name.get(name)
                && kept.insert(name)
            {
                pending.push(&functions[at]);
            }
        }
    }
    let (mut changed, mut from) = (String::new(), 0);
    for function in functions.iter().filter(|function| !kept.contains(function.name)) {
        changed.push_str(&text[from..function.range.start]);
        from = function.range.end;
    }
    changed + &text[from..]
}

/// Returns the functions that a text defines, in order.
fn functions(text: &str) -> Vec<Function<'_>> {
    let (mut found, mut item, mut depth) = (Vec::new(), Vec::<Token<'_>>::new(), 0_u32);
    // Whether the item at hand has a body in braces, as functions have.
    let mut is_function = false;
    for token in tokens(text) {
        item.push(token);
        let is_outside = depth == 0;
        match token.text {
            "{" => {
                let before = item.len().checked_sub(2).map(|at| item[at].text);
                is_function |= is_outside && before == Some(")");
                depth += 1;
            }
            "(" | "[" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && is_function {
                    found.extend(Function::of(&item));
                    (item, is_function) = (Vec::new(), false);
                }
            }
            ";" if is_outside => (item, is_function) = (Vec::new(), false),
            _ => {}
        }
    }
    found
}

impl<'t> Function<'t> {
    /// Returns the function that tokens define.
    fn of(item: &[Token<'t>]) -> Option<Self> {
        // The name is the first identifier before a parenthesis, except for attributes.
        let (mut depth, mut name) = (0_u32, None);
        for pair in item.windows(2) {
            if depth == 0
                && pair[0].is_identifier
                && pair[1].text == "("
                && !pair[0].text.starts_with("__attribute")
            {
                name = Some(pair[0].text);
                break;
            }
            match pair[0].text {
                "(" => depth += 1,
                ")" => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        let name = name?;
        let head = item.iter().take_while(|token| token.text != name);
        let is_kernel = head.into_iter().any(|token| ["kernel", "__kernel"].contains(&token.text));
        let (first, last) = (item.first()?, item.last()?);
        let identifiers = item.iter().filter(|token| token.is_identifier);
        Some(Self {
            name,
            is_kernel,
            range: first.start..last.start + last.text.len(),
            identifiers: identifiers.map(|token| token.text).collect(),
        })
    }
}

/// An identifier, a number, or a single other character. Strings and directives are left out.
#[derive(Clone, Copy, Debug)]
struct Token<'t> {
    text: &'t str,
    start: usize,
    is_identifier: bool,
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let (mut tokens, mut at, mut is_line_start) = (Vec::new(), 0, true);
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
    while at < bytes.len() {
        let start = at;
        at += 1;
        match bytes[start] {
            b'\n' => {
                is_line_start = true;
                continue;
            }
            b' ' | b'\t' | b'\r' => continue,
            // A marker of a line, or a pragma.
            b'#' if is_line_start => {
                at += bytes[at..].iter().take_while(|byte| **byte != b'\n').count();
                continue;
            }
            quote @ (b'"' | b'\'') => {
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at = (at + 1).min(bytes.len());
                is_line_start = false;
                continue;
            }
            byte if is_word(byte) => {
                at += bytes[at..].iter().take_while(|byte| is_word(**byte)).count();
            }
            _ => {}
        }
        is_line_start = false;
        let is_identifier = is_word(bytes[start]) && !bytes[start].is_ascii_digit();
        tokens.push(Token { text: &text[start..at], start, is_identifier });
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# 1 \"<stdin>\"\n\
        constant float table[2] = { 1.0f, 2.0f };\n\
        typedef struct { int a; float b; } Pair;\n\
        static float helper(global const float *x, int i) { if (i > 0) { return x[i]; } return table[1]; }\n\
        float other(int i);\n\
        float other(int i) { return special(i) + '}'; }\n\
        __attribute__((reqd_work_group_size(64, 1, 1)))\n\
        kernel void good(global float *x) { x[0] = helper(x, 1); }\n\
        __kernel __attribute__((vec_type_hint(float4))) void bad(global float *x)\n\
        {\n#pragma unroll\n  for (int i = 0; i < 4; ++i) { x[i] = other(i); printf(\"} %d\", i); }\n}\n\
        kernel void é(global Pair *x) { x->a = 3; }\n";

    #[test]
    fn functions_are_found_with_their_names() {
        let functions = functions(TEXT);
        let names: Vec<_> = functions.iter().map(|f| (f.name, f.is_kernel)).collect();
        let expected =
            [("helper", false), ("other", false), ("good", true), ("bad", true), ("é", true)];
        assert_eq!(names, expected);
    }

    #[test]
    fn only_wanted_kernels_and_what_they_mention_are_kept() {
        let text = with_kernels(TEXT, &Names::from(["good".to_owned()]));
        for kept in ["float helper(", "table[2]", "} Pair;", "(64, 1, 1)", "kernel void good"] {
            assert!(text.contains(kept), "{kept} is missing in {text}");
        }
        for dropped in ["special", "void bad", "vec_type_hint", "printf", "void é"] {
            assert!(!text.contains(dropped), "{dropped} is in {text}");
        }
        let text = with_kernels(TEXT, &Names::from(["bad".to_owned(), "é".to_owned()]));
        assert!(text.contains("special(i)") && text.contains("void é"), "{text}");
        assert!(!text.contains("float helper"), "{text}");
    }

    #[test]
    fn text_that_is_not_valid_is_no_error() {
        for text in ["", "}", "kernel void k(", "kernel void k() { \"", "'", "\\", "(((((", "#"] {
            assert_eq!(with_kernels(text, &Names::new()), text);
        }
    }
}
