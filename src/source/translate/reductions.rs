//! Reductions of vectors of integers in LLVM assembly text, as operations on the elements. llvm-spirv 15 does
//! not accept the intrinsic functions `llvm.vector.reduce`.

use std::fmt::Write as _;

/// Returns the text with operations on elements in place of the reductions of vectors of integers. The order of
/// the elements does not matter for these; reductions of floating-point numbers stay.
pub(super) fn without_reductions(text: &str) -> String {
    if !text.contains("@llvm.vector.reduce.") {
        return text.to_owned();
    }
    let mut changed = String::with_capacity(text.len());
    for line in text.lines() {
        match Reduction::of(line) {
            Some(reduction) => reduction.write(&mut changed),
            None => {
                changed.push_str(line);
                changed.push('\n');
            }
        }
    }
    changed
}

/// Call of a reduction, as in `%sum = call i32 @llvm.vector.reduce.add.v4i32(<4 x i32> %values)`.
struct Reduction<'t> {
    result: &'t str,
    operation: &'t str,
    /// Type of the elements, as in `i32`.
    element: &'t str,
    count: u32,
    /// Type and value of the vector.
    vector: &'t str,
}

impl<'t> Reduction<'t> {
    fn of(line: &'t str) -> Option<Self> {
        let (result, call) = line.trim_start().split_once(" = ")?;
        let (call, rest) = call.split_once("@llvm.vector.reduce.")?;
        if !call.trim_end().split(' ').any(|word| word == "call") || !result.starts_with('%') {
            return None;
        }
        let (name, arguments) = rest.split_once('(')?;
        let (operation, shape) = name.split_once('.')?;
        let (count, element) = shape.strip_prefix('v')?.split_once('i')?;
        let (vector, _) = arguments.split_once(')')?;
        let element = &shape[shape.len() - element.len() - 1..];
        // A value follows its type, `<4 x i32>`; a constant expression would have parentheses of its own.
        let (_, value) = vector.split_once('>')?;
        let is_value = value.trim().starts_with('%') && !value.trim().contains([' ', ',']);
        let count = count.parse().ok().filter(|count| (1..=64).contains(count))?;
        let is_known = OPERATIONS.iter().any(|(known, _)| *known == operation);
        let is_integer = element[1..].parse::<u32>().is_ok();
        (is_value && is_known && is_integer).then_some(Self {
            result,
            operation,
            element,
            count,
            vector,
        })
    }

    fn write(&self, text: &mut String) {
        let Self { result, operation, element, count, vector } = self;
        let stem = result.trim_start_matches('%').trim_matches('"');
        let part = |at: u32| format!("%\"{stem}.element{at}\"");
        let step = |at: u32| match at + 1 == *count {
            true => (*result).to_owned(),
            false => format!("%\"{stem}.reduced{at}\""),
        };
        for at in 0..*count {
            // The only element of a vector is the result.
            let name = if *count == 1 { (*result).to_owned() } else { part(at) };
            let _ = writeln!(text, "  {name} = extractelement {vector}, i64 {at}");
        }
        for at in 1..*count {
            let (before, own) = (if at == 1 { part(0) } else { step(at - 1) }, part(at));
            let (_, is_comparison) =
                OPERATIONS.iter().find(|(known, _)| known == operation).unwrap_or(&("", None));
            match is_comparison {
                Some(predicate) => {
                    let test = format!("%\"{stem}.test{at}\"");
                    let _ = writeln!(text, "  {test} = icmp {predicate} {element} {before}, {own}");
                    let _ = writeln!(
                        text,
                        "  {} = select i1 {test}, {element} {before}, {element} {own}",
                        step(at)
                    );
                }
                None => {
                    let _ =
                        writeln!(text, "  {} = {operation} {element} {before}, {own}", step(at));
                }
            }
        }
    }
}

/// Operations of reductions, with the comparison of those that choose one of two elements.
const OPERATIONS: [(&str, Option<&str>); 9] = [
    ("add", None),
    ("mul", None),
    ("and", None),
    ("or", None),
    ("xor", None),
    ("smin", Some("slt")),
    ("smax", Some("sgt")),
    ("umin", Some("ult")),
    ("umax", Some("ugt")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_become_operations_on_elements() {
        let text = "  %0 = tail call i32 @llvm.vector.reduce.add.v3i32(<3 x i32> %v) #2\n  \
                    %m = call i16 @llvm.vector.reduce.smin.v2i16(<2 x i16> %w)\n";
        let expected = "  %\"0.element0\" = extractelement <3 x i32> %v, i64 0\n  \
                        %\"0.element1\" = extractelement <3 x i32> %v, i64 1\n  \
                        %\"0.element2\" = extractelement <3 x i32> %v, i64 2\n  \
                        %\"0.reduced1\" = add i32 %\"0.element0\", %\"0.element1\"\n  \
                        %0 = add i32 %\"0.reduced1\", %\"0.element2\"\n  \
                        %\"m.element0\" = extractelement <2 x i16> %w, i64 0\n  \
                        %\"m.element1\" = extractelement <2 x i16> %w, i64 1\n  \
                        %\"m.test1\" = icmp slt i16 %\"m.element0\", %\"m.element1\"\n  \
                        %m = select i1 %\"m.test1\", i16 %\"m.element0\", i16 %\"m.element1\"\n";
        assert_eq!(without_reductions(text), expected);
    }

    #[test]
    fn other_text_is_unchanged() {
        for text in [
            "declare i32 @llvm.vector.reduce.add.v4i32(<4 x i32>)\n",
            "  %x = call float @llvm.vector.reduce.fadd.v4f32(float 0.0, <4 x float> %v)\n",
            "  %x = call i32 @llvm.vector.reduce.add.v4i32(<4 x i32> <i32 1, i32 2, i32 3, i32 4>)\n",
            "  %x = call i32 @llvm.vector.reduce.next.v4i32(<4 x i32> %v)\n",
            "@x = constant [9 x i8] c\"@llvm.vector.reduce.\"\n",
        ] {
            assert_eq!(without_reductions(text), text);
        }
    }
}
