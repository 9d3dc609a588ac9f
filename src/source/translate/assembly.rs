//! LLVM assembly text of a module: its functions, what they refer to, and their attributes.
//!
//! clang writes each construct outside of functions in one line, and closes each function with a line of its
//! own. Other text has no functions here, and is left as it is.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write as _;

/// Attribute of the functions that [`Assembly::excluding`] excludes from optimisation. Its value lists the
/// function's own attributes that the exclusion replaced.
const EXCLUDED: &str = "kiln-excluded";

/// Attributes that cannot be combined with `optnone`, or that `optnone` requires.
const REPLACED: [&str; 4] = ["alwaysinline", "minsize", "noinline", "optsize"];

/// Names of functions, without the `@`.
pub(crate) type Names = BTreeSet<String>;

/// Kind of a token, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `%name`: a value, a label or a type of the module.
    Local,
    /// `@name`.
    Global,
    /// `#0`.
    AttributeGroup,
    /// A keyword, type, label, number or name of metadata.
    Word,
    /// A string in quotation marks.
    Text,
    /// A single other character.
    Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'t> {
    pub(super) kind: Kind,
    /// Position in the line.
    pub(super) start: usize,
    /// The token; for `Local` and `Global` with the first character.
    pub(super) text: &'t str,
}

impl Token<'_> {
    pub(super) fn end(&self) -> usize {
        self.start + self.text.len()
    }

    fn name(&self) -> &str {
        self.text.get(1..).unwrap_or_default()
    }
}

/// Returns the tokens of a line without its comment.
pub(super) fn tokens(line: &str) -> Vec<Token<'_>> {
    let bytes = line.as_bytes();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-$._".contains(&byte);
    let (mut tokens, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let start = at;
        let kind = match bytes[at] {
            b' ' | b'\t' => {
                at += 1;
                continue;
            }
            b';' => break,
            b'"' => Kind::Text,
            b'%' => Kind::Local,
            b'@' => Kind::Global,
            b'#' => Kind::AttributeGroup,
            byte if is_name(byte) || byte == b'!' => Kind::Word,
            _ => Kind::Mark,
        };
        at += 1;
        match kind {
            Kind::Text => at = after_quote(bytes, at),
            Kind::Local | Kind::Global if bytes.get(at) == Some(&b'"') => {
                at = after_quote(bytes, at + 1);
            }
            Kind::Mark => {}
            _ => at += bytes[at..].iter().take_while(|byte| is_name(**byte)).count(),
        }
        // Tokens begin and end at ASCII characters, except where the line ends within a quotation.
        match line.get(start..at) {
            Some(text) => tokens.push(Token { kind, start, text }),
            None => break,
        }
    }
    tokens
}

/// Returns the position after the quotation mark that closes the quotation at `at`. LLVM escapes quotation
/// marks within it.
fn after_quote(bytes: &[u8], at: usize) -> usize {
    let length = bytes[at..].iter().position(|byte| *byte == b'"');
    length.map_or(bytes.len(), |length| at + length + 1)
}

/// A function that is defined in the text.
#[derive(Debug)]
pub(super) struct Function<'t> {
    pub(super) name: &'t str,
    /// Lines from `define` to `}`.
    pub(super) lines: Vec<&'t str>,
    /// Names of the functions and global variables that it refers to.
    references: HashSet<&'t str>,
}

/// Line outside of functions, or a function.
#[derive(Debug)]
enum Item<'t> {
    Line(&'t str),
    Function(Function<'t>),
}

/// LLVM assembly text, divided into its functions and the lines between them.
#[derive(Debug)]
pub(super) struct Assembly<'t>(Vec<Item<'t>>);

impl<'t> Assembly<'t> {
    pub(super) fn of(text: &'t str) -> Self {
        let (mut items, mut open) = (Vec::new(), None::<Function<'_>>);
        for line in text.lines() {
            if let Some(function) = &mut open {
                function.lines.push(line);
                function.refer(line);
                if line == "}" {
                    items.extend(open.take().map(Item::Function));
                }
                continue;
            }
            match Function::defined(line) {
                Some(function) => open = Some(function),
                None => items.push(Item::Line(line)),
            }
        }
        let unclosed = open.into_iter().flat_map(|function| function.lines);
        items.extend(unclosed.map(Item::Line));
        Self(items)
    }

    pub(super) fn functions(&self) -> impl Iterator<Item = &Function<'t>> {
        self.0.iter().filter_map(|item| match item {
            Item::Function(function) => Some(function),
            Item::Line(_) => None,
        })
    }

    /// Returns the names of all functions.
    pub(super) fn names(&self) -> Names {
        self.functions().map(|function| function.name.to_owned()).collect()
    }

    /// Returns the functions among `names` that call no others among them, directly or through others. If all
    /// call each other, returns all of them.
    pub(super) fn innermost(&self, names: &Names) -> Names {
        let is_innermost = |name: &&String| {
            let reached = self.reachable(&Names::from([(*name).clone()]));
            !names.iter().any(|other| other != *name && reached.contains(other.as_str()))
        };
        let innermost: Names = names.iter().filter(is_innermost).cloned().collect();
        if innermost.is_empty() { names.clone() } else { innermost }
    }

    /// Returns the names that functions refer to, directly or through others, with the functions themselves.
    fn reachable(&self, names: &Names) -> HashSet<&str> {
        let functions: HashMap<_, _> = self.functions().map(|known| (known.name, known)).collect();
        let variables: HashMap<_, _> = self.0.iter().filter_map(variable).collect();
        let known = functions.keys().filter(|name| names.contains(**name));
        let mut pending: Vec<&str> = known.copied().collect();
        let mut reached: HashSet<_> = pending.iter().copied().collect();
        while let Some(name) = pending.pop() {
            let of_function = functions.get(name).into_iter().flat_map(|known| &known.references);
            let of_variable = variables.get(name).into_iter().flatten();
            pending.extend(of_function.chain(of_variable).filter(|name| reached.insert(name)));
        }
        reached
    }

    /// Returns the text with only those functions and global variables that these functions refer to, directly
    /// or through others.
    pub(super) fn restricted(&self, names: &Names) -> String {
        let reached = self.reachable(names);
        let mut text = String::new();
        for item in &self.0 {
            match item {
                Item::Function(function) if !reached.contains(function.name) => {}
                Item::Line(_)
                    if variable(item).is_some_and(|(name, _)| !reached.contains(name)) => {}
                _ => item.write(&mut text),
            }
        }
        text
    }

    /// Returns the text in which clang does not optimise these functions, nor inlines them.
    /// [`including`](Self::including) reverts this.
    pub(super) fn excluding(&self, names: &Names) -> String {
        let groups: HashMap<_, _> = self.0.iter().filter_map(attribute_group).collect();
        let mut next = groups.keys().filter_map(|group| group[1..].parse().ok()).max().unwrap_or(0);
        let (mut text, mut added) = (String::new(), String::new());
        for item in &self.0 {
            let Item::Function(function) = item else {
                item.write(&mut text);
                continue;
            };
            let own = function.attribute_group();
            let attributes = own.and_then(|own| groups.get(own.text));
            match own.zip(attributes).filter(|_| names.contains(function.name)) {
                Some((own, attributes)) => {
                    next += 1;
                    let _ = writeln!(added, "attributes #{next} = {{{}}}", excluded(attributes));
                    let line = function.lines[0];
                    let (before, after) = (&line[..own.start], &line[own.end()..]);
                    let _ = writeln!(text, "{before}#{next}{after}");
                    function.lines[1..].iter().for_each(|line| push_line(&mut text, line));
                }
                None => item.write(&mut text),
            }
        }
        text + &added
    }

    /// Returns the text with the own attributes of the functions that [`excluding`](Self::excluding) excluded.
    pub(super) fn including(&self) -> String {
        let mut text = String::new();
        for item in &self.0 {
            match attribute_group(item) {
                Some((group, attributes)) if attributes.contains(EXCLUDED) => {
                    let _ = writeln!(text, "attributes {group} = {{{}}}", included(attributes));
                }
                _ => item.write(&mut text),
            }
        }
        text
    }
}

impl<'t> Function<'t> {
    /// Returns the function whose definition the line begins.
    fn defined(line: &'t str) -> Option<Self> {
        if !line.starts_with("define ") || !line.ends_with('{') {
            return None;
        }
        let name = tokens(line).into_iter().find(|token| token.kind == Kind::Global)?;
        let name = name.text.get(1..)?;
        Some(Self { name, lines: vec![line], references: HashSet::new() })
    }

    fn refer(&mut self, line: &'t str) {
        let globals = tokens(line).into_iter().filter(|token| token.kind == Kind::Global);
        self.references.extend(globals.filter_map(|token| token.text.get(1..)));
    }

    /// Returns the attribute group of the function, which follows its parameters.
    fn attribute_group(&self) -> Option<Token<'t>> {
        let mut depth = 0;
        let all = tokens(self.lines[0]);
        let parameters = all.iter().position(|token| {
            depth += i32::from(token.text == "(") - i32::from(token.text == ")");
            depth == 0 && token.text == ")"
        })?;
        all[parameters..].iter().find(|token| token.kind == Kind::AttributeGroup).copied()
    }
}

impl Item<'_> {
    fn write(&self, text: &mut String) {
        match self {
            Item::Line(line) => push_line(text, line),
            Item::Function(function) => {
                function.lines.iter().for_each(|line| push_line(text, line));
            }
        }
    }
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// Returns the name of the global variable that an item defines, and the names that its value refers to. Lists
/// for the linker, such as `@llvm.used`, are not variables here.
fn variable<'t>(item: &Item<'t>) -> Option<(&'t str, Vec<&'t str>)> {
    let Item::Line(line) = item else { return None };
    if !line.starts_with('@') || line.starts_with("@llvm.") {
        return None;
    }
    let mut globals = tokens(line).into_iter().filter(|token| token.kind == Kind::Global);
    let name = globals.next()?.text.get(1..)?;
    Some((name, globals.filter_map(|token| token.text.get(1..)).collect()))
}

/// Returns the number of the attribute group that an item defines, as in `#0`, and its attributes.
fn attribute_group<'t>(item: &Item<'t>) -> Option<(&'t str, &'t str)> {
    let Item::Line(line) = item else { return None };
    let (group, attributes) = line.strip_prefix("attributes ")?.split_once(" = {")?;
    let attributes = attributes.strip_suffix('}')?;
    group.strip_prefix('#').filter(|number| number.parse::<u32>().is_ok())?;
    Some((group, attributes))
}

/// Returns the attributes of a function that is excluded from optimisation.
fn excluded(attributes: &str) -> String {
    let all = tokens(attributes);
    let is_replaced = |token: &&Token<'_>| REPLACED.contains(&token.text);
    let replaced: Vec<_> = all.iter().filter(is_replaced).map(|token| token.text).collect();
    let kept = without(attributes, &REPLACED);
    format!("{kept} noinline optnone \"{EXCLUDED}\"=\"{}\" ", replaced.join(" "))
}

/// Returns the attributes of a function before it was excluded from optimisation.
fn included(attributes: &str) -> String {
    let all = tokens(attributes);
    let marker = format!("\"{EXCLUDED}\"");
    let at = all.iter().position(|token| token.text == marker);
    let Some(at) = at else { return attributes.to_owned() };
    let replaced = all.get(at + 2).map_or("", |value| value.text.trim_matches('"'));
    let end = all.get(at + 2).map_or(attributes.len(), Token::end);
    let others = [&attributes[..all[at].start], &attributes[end..]].concat();
    format!("{} {replaced} ", without(&others, &["noinline", "optnone"]))
}

/// Returns attributes without those of these names.
fn without(attributes: &str, names: &[&str]) -> String {
    let (mut kept, mut from) = (String::new(), 0);
    for token in tokens(attributes).iter().filter(|token| names.contains(&token.text)) {
        kept.push_str(&attributes[from..token.start]);
        from = token.end();
    }
    kept + &attributes[from..]
}

/// Returns the functions that llvm-spirv cannot translate: those that use `freeze`, integers of other widths
/// than those of OpenCL C, a reduction of a vector, or one of the intrinsic functions in `refused`.
pub(super) fn untranslatable(assembly: &Assembly<'_>, refused: &HashSet<String>) -> Names {
    let is_untranslatable = |function: &&Function<'_>| {
        function.lines.iter().any(|line| {
            let all = tokens(line);
            let mut neighbours = all.iter().enumerate();
            neighbours.any(|(at, token)| match token.kind {
                Kind::Word => {
                    let is_label = all.get(at + 1).is_some_and(|next| next.text == ":");
                    let is_freeze = token.text == "freeze" && at > 0 && all[at - 1].text == "=";
                    is_freeze || (!is_label && has_odd_width(token.text))
                }
                Kind::Global => {
                    token.name().starts_with("llvm.vector.reduce.")
                        || refused.contains(token.name())
                }
                _ => false,
            })
        })
    };
    let found = assembly.functions().filter(is_untranslatable);
    found.map(|function| function.name.to_owned()).collect()
}

/// Returns whether a word is an integer type of a width that OpenCL C does not have.
fn has_odd_width(word: &str) -> bool {
    let width = word.strip_prefix('i').and_then(|width| width.parse::<u32>().ok());
    width.is_some_and(|width| !matches!(width, 1 | 8 | 16 | 32 | 64))
}

/// Returns the intrinsic functions that a message of llvm-spirv names.
pub(super) fn intrinsics_in(log: &str) -> impl Iterator<Item = String> {
    let words = log.split(|c: char| !(c.is_ascii_alphanumeric() || "._".contains(c)));
    words.filter(|word| word.starts_with("llvm.")).map(|word| word.trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
target triple = \"spir64\"
@table = internal addrspace(2) constant [2 x i32] [i32 1, i32 2]
@other = internal addrspace(3) global i7 undef

; Function Attrs: alwaysinline
define internal spir_func i32 @helper(i32 noundef %i7) #0 {
entry:
  ret i32 %i7
}

define spir_kernel void @first(i32 addrspace(1)* align 4 %a) local_unnamed_addr #1 !kernel_arg_type !4 {
i7:
  %x = call spir_func i32 @helper(i32 1) ; a comment @second
  %y = load i32, i32 addrspace(2)* getelementptr ([2 x i32], [2 x i32] addrspace(2)* @table, i64 0, i64 0)
  br label %i7
}

define spir_kernel void @second() #1 {
  %z = freeze i32 3
  ret void
}

define spir_kernel void @third() #1 {
  %z = call i32 @llvm.some.thing(i33 7), !note !\"i9\"
  ret void
}

attributes #0 = { alwaysinline nounwind \"a\"=\"noinline\" }
attributes #1 = { nounwind noinline }
!4 = !{!\"int*\"}
";

    fn names(all: &[&str]) -> Names {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn functions_that_cannot_be_translated_are_found() {
        let assembly = Assembly::of(TEXT);
        assert_eq!(assembly.names(), names(&["first", "helper", "second", "third"]));
        let none = HashSet::new();
        assert_eq!(untranslatable(&assembly, &none), names(&["second", "third"]));
        let text = TEXT.replace("i33", "i32");
        let assembly = Assembly::of(&text);
        assert_eq!(untranslatable(&assembly, &none), names(&["second"]));
        let log =
            "InvalidFunctionCall: Unexpected llvm intrinsic:\n llvm.some.thing [Src: x.cpp:1 ]";
        let refused = intrinsics_in(log).collect();
        assert_eq!(untranslatable(&assembly, &refused), names(&["second", "third"]));
    }

    #[test]
    fn restriction_keeps_what_a_kernel_refers_to() {
        let text = Assembly::of(TEXT).restricted(&names(&["first"]));
        for kept in ["@first(", "define internal spir_func i32 @helper(", "@table =", "#0 =", "!4"]
        {
            assert!(text.contains(kept), "{kept} is missing in {text}");
        }
        for dropped in ["define spir_kernel void @second", "freeze", "@other"] {
            assert!(!text.contains(dropped), "{dropped} is in {text}");
        }
    }

    #[test]
    fn excluded_functions_get_their_attributes_back() {
        let assembly = Assembly::of(TEXT);
        let text = assembly.excluding(&names(&["helper", "first"]));
        let of = |text: &str, function: &str| {
            let assembly = Assembly::of(text);
            let group = assembly.functions().find(|known| known.name == function);
            let group = group.and_then(Function::attribute_group).expect("it has one").text;
            let groups: HashMap<_, _> = assembly.0.iter().filter_map(attribute_group).collect();
            let mut all: Vec<_> = tokens(groups[group]).iter().map(|token| token.text).collect();
            all.sort_unstable();
            all.join(" ")
        };
        for function in ["helper", "first"] {
            assert!(of(&text, function).contains("noinline nounwind optnone"), "{text}");
            assert!(!of(&text, function).contains(" alwaysinline"), "{text}");
        }
        assert_eq!(of(&text, "second"), of(TEXT, "second"));
        let text = Assembly::of(&text).including();
        for function in ["helper", "first", "second"] {
            assert_eq!(of(&text, function), of(TEXT, function), "{text}");
        }
        assert!(text.contains("local_unnamed_addr #"), "{text}");
        assert!(!text.contains("optnone"), "{text}");
    }

    #[test]
    fn innermost_functions_call_no_others() {
        let assembly = Assembly::of(TEXT);
        let found = assembly.innermost(&names(&["first", "helper", "second"]));
        assert_eq!(found, names(&["helper", "second"]));
    }

    #[test]
    fn other_text_is_unchanged() {
        let none = Names::new();
        for text in ["", "kernel void k() {}\n", "define i32 @open() {\n  ret\n", "é \"é\n#\n%\n"]
        {
            let assembly = Assembly::of(text);
            assert_eq!(assembly.functions().count(), 0);
            for same in [assembly.excluding(&names(&["open"])), assembly.restricted(&none)] {
                assert_eq!(same, text);
            }
        }
    }
}
