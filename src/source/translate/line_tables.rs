//! LLVM assembly text with the lines of the source.

use std::collections::HashSet;

/// Returns LLVM assembly text without the metadata of loops that has nothing but lines of the source. llvm-spirv
/// rearranges the blocks of loops with metadata, and without lines such a loop has none.
pub(super) fn without_lines_of_loops(text: &str) -> String {
    const LOOP: &str = ", !llvm.loop ";
    let nodes = || {
        let assignments = text.lines().filter_map(|line| line.split_once(" = "));
        assignments.filter(|(name, _)| name.starts_with('!'))
    };
    let locations: HashSet<_> = nodes()
        .filter(|(_, value)| value.trim_start_matches("distinct ").starts_with("!DILocation("))
        .map(|(name, _)| name)
        .collect();
    let has_only_lines = |(name, value): &(&str, &str)| {
        let parts = value.strip_prefix("distinct !{").and_then(|rest| rest.strip_suffix('}'));
        let mut parts = parts.into_iter().flat_map(|parts| parts.split(", "));
        parts.next() == Some(*name) && parts.all(|part| locations.contains(part))
    };
    let loops: HashSet<_> = nodes().filter(has_only_lines).map(|(name, _)| name).collect();
    let mut changed = String::with_capacity(text.len());
    for line in text.lines() {
        let rest = line.split_once(LOOP).filter(|_| line.starts_with(' '));
        let rest = rest.and_then(|(before, after)| {
            let end = after.find(',').unwrap_or(after.len());
            loops.contains(&after[..end]).then(|| [before, &after[end..]])
        });
        match rest {
            Some(kept) => changed.extend(kept),
            None => changed.push_str(line),
        }
        changed.push('\n');
    }
    changed
}

#[cfg(all(test, unix))]
mod tests {
    use std::fs;

    use futures::executor::block_on;
    use rspirv::spirv::Op;

    use super::super::tests::device;
    use super::super::{FrontEnd, LIMIT, Translation};
    use super::*;
    use kiln_spirv::edit::Instruction;
    use kiln_spirv::{Module, is_same_code};

    /// Texts with loops, branches, local memory, images, and code that llvm-spirv refuses at first.
    const FILES: [&str; 6] = [
        "patterns.cl",
        "neighbours.cl",
        "bounds/hazards.cl",
        "chains/transformer.cl",
        "emitted/control.cl",
        "emitted/images.cl",
    ];

    /// Loop with a hint, for which llvm-spirv rearranges blocks.
    const HINT: &str = "kernel void sums(global float *x, int n) {
        float sum = 0;
        #pragma unroll 4
        for (int i = 0; i < n; i++)
            sum += x[i];
        x[0] = sum;
    }";

    #[test]
    fn code_with_lines_is_the_same() {
        let front_end = FrontEnd::new(None, None).expect("the environment is valid");
        // Without compilers, nothing is translated.
        let Ok(tools) = block_on(front_end.tools()) else { return };
        let file = |name: &&str| {
            let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
            fs::read(path).expect("it is there")
        };
        for text in FILES.iter().map(file).chain([HINT.into()]) {
            let translation = || Translation::new(tools, LIMIT, "", &device()).expect("no options");
            let plain = translation().run(&text).expect("it is valid");
            let with_lines = translation().with_lines().run(&text).expect("it is valid");
            let [plain, with_lines] = [plain, with_lines]
                .map(|translated| Module::parse(translated.module.code()).expect("it is SPIR-V"));
            assert!(is_same_code(&plain, &with_lines), "{}", String::from_utf8_lossy(&text));
            let is_line = |i: Instruction<'_>| i.op() == Some(Op::Line);
            let count = |module: &Module| {
                let bodies = module.functions.iter().flat_map(|function| function.body.iter());
                bodies.map(is_line).filter(|is_line| *is_line).count()
            };
            assert_eq!(count(&plain), 0);
            assert!(count(&with_lines) > 0);
        }
    }

    #[test]
    fn only_loops_without_hints_lose_their_metadata() {
        let text = "  br i1 %a, label %b, label %c, !dbg !4, !llvm.loop !5, !prof !9\n\
                    \x20 br i1 %d, label %e, label %f, !dbg !4, !llvm.loop !6\n\
                    \x20 br i1 %g, label %h, label %i, !llvm.loop !8\n\
                    !4 = !DILocation(line: 10, column: 5, scope: !1)\n\
                    !5 = distinct !{!5, !4, !4}\n\
                    !6 = distinct !{!6, !4, !7}\n\
                    !7 = !{!\"llvm.loop.unroll.count\", i32 4}\n\
                    !8 = distinct !{!8, !7}\n";
        let expected = text.replace(", !llvm.loop !5", "");
        assert_eq!(without_lines_of_loops(text), expected);
    }
}
