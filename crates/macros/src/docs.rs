//! Documentation of generated functions.

use proc_macro2::Ident;

use crate::signature::{Kernel, Parameter, Passing};

/// Returns the lines of documentation of a kernel's function: the comment above the kernel, its declaration,
/// and the kinds of its images. `names` are those of the function's parameters.
pub(crate) fn of_kernel(
    kernel: &Kernel,
    names: &[Ident],
    range: &Ident,
    file: &str,
) -> Vec<String> {
    let mut lines = as_markdown(&kernel.comment);
    if lines.is_empty() {
        lines.push(format!(" Launches the kernel `{}`.", kernel.name));
    }
    let place = kernel.place.as_ref().map_or_else(|| file.to_owned(), ToString::to_string);
    lines.push(String::new());
    lines
        .push(format!(" Kernel `{}` of `{place}`, over the work-items of `{range}`.", kernel.name));
    if !kernel.declaration.is_empty() {
        lines.push(String::new());
        lines.push(" ```c".to_owned());
        lines.push(format!(" {}", kernel.declaration.replace("```", "` ` `")));
        lines.push(" ```".to_owned());
    }
    let parameters = kernel.parameters.iter().flatten().zip(names);
    let images: Vec<_> = parameters.filter_map(|(it, name)| about_image(it, name)).collect();
    if !images.is_empty() {
        lines.push(String::new());
        lines.extend(images);
    }
    lines
}

/// Returns a line about a parameter that is an image; `None` for others. Images of all kinds have the same
/// type in Rust, so that only the documentation names the kind.
fn about_image(parameter: &Parameter, name: &Ident) -> Option<String> {
    let usage = match parameter.passing {
        Passing::ReadImage => "reads",
        Passing::Image => "writes",
        _ => return None,
    };
    let kind = parameter.element.names.first()?;
    Some(format!(" * `{name}`: image of the kind `{kind}`, which the kernel {usage}."))
}

/// Returns the lines of a comment as Markdown that reads as the comment does: without links, HTML and code for
/// tests.
fn as_markdown(comment: &[String]) -> Vec<String> {
    let all = comment.join("\n");
    // A single backquote would quote the rest of the text.
    let has_quotes =
        all.matches('`').count().is_multiple_of(2) && !all.contains("```") && !all.contains("~~~");
    comment
        .iter()
        .map(|line| format!(" {}", escaped(line, has_quotes)).trim_end().to_owned())
        .collect()
}

fn escaped(line: &str, has_quotes: bool) -> String {
    // Four blanks would begin a block of code.
    let indent = line.len() - line.trim_start().len();
    let mut text = " ".repeat(indent.min(2));
    let mut is_quoted = false;
    for c in line.trim_start().chars() {
        match c {
            '`' if has_quotes => is_quoted = !is_quoted,
            '[' | ']' | '<' | '>' | '`' | '~' | '*' | '_' | '\\' if !is_quoted => text.push('\\'),
            '\t' => {
                text.push(' ');
                continue;
            }
            _ => {}
        }
        text.push(c);
    }
    // A list may begin with an asterisk.
    match text.trim_start().strip_prefix("\\* ") {
        Some(item) => format!("{}* {item}", " ".repeat(indent.min(2))),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn markdown(comment: &[&str]) -> Vec<String> {
        as_markdown(&comment.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn comments_read_as_they_are_written() {
        assert_eq!(
            markdown(&["y[i] += a * x[i], `y[i]` stays"]),
            [r" y\[i\] += a \* x\[i\], `y[i]` stays"]
        );
        assert_eq!(markdown(&["        code();", "* item"]), ["   code();", " * item"]);
        assert_eq!(markdown(&["a ` b <T>"]), [r" a \` b \<T\>"]);
        assert_eq!(markdown(&["```", "loop {}", "```"]), [r" \`\`\`", " loop {}", r" \`\`\`"]);
        assert_eq!(markdown(&["", "a_b"]), ["", r" a\_b"]);
    }
}
