//! Differences between two texts, line by line.

use std::fmt::Write as _;

/// Number of equal lines that are shown around each difference.
const CONTEXT: usize = 3;

/// Line of one of the texts, or of both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line<'t> {
    Both(&'t str),
    Expected(&'t str),
    Found(&'t str),
}

/// Returns all differences between two texts: lines that are expected but were not found begin with `-`, lines that
/// were found but are not expected begin with `+`.
pub(super) fn differences(expected: &str, found: &str) -> String {
    let lines = compared(&expected.lines().collect::<Vec<_>>(), &found.lines().collect::<Vec<_>>());
    let is_near = |at: usize| {
        let around = at.saturating_sub(CONTEXT)..(at + CONTEXT + 1).min(lines.len());
        lines[around].iter().any(|line| !matches!(line, Line::Both(_)))
    };
    let (mut text, mut is_skipped) = (String::new(), false);
    for (at, line) in lines.iter().enumerate() {
        if !is_near(at) {
            is_skipped = true;
            continue;
        }
        if std::mem::take(&mut is_skipped) {
            text += "  ..\n";
        }
        let (mark, line) = match line {
            Line::Both(line) => (' ', line),
            Line::Expected(line) => ('-', line),
            Line::Found(line) => ('+', line),
        };
        _ = writeln!(text, "{mark} {line}");
    }
    text
}

/// Returns the lines of both texts in order, with as many as possible in common.
fn compared<'t>(expected: &[&'t str], found: &[&'t str]) -> Vec<Line<'t>> {
    let start = expected.iter().zip(found).take_while(|(a, b)| a == b).count();
    let rests = (&expected[start..], &found[start..]);
    let end = rests.0.iter().rev().zip(rests.1.iter().rev()).take_while(|(a, b)| a == b).count();
    let (a, b) = (&rests.0[..rests.0.len() - end], &rests.1[..rests.1.len() - end]);
    // `common[i][j]` is the length of the longest common part of `a[i..]` and `b[j..]`.
    let mut common = vec![vec![0_u32; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            common[i][j] = match a[i] == b[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let mut lines: Vec<_> = expected[..start].iter().map(|line| Line::Both(line)).collect();
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            lines.push(Line::Both(a[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || (i < a.len() && common[i + 1][j] >= common[i][j + 1]) {
            lines.push(Line::Expected(a[i]));
            i += 1;
        } else {
            lines.push(Line::Found(b[j]));
            j += 1;
        }
    }
    lines.extend(expected[expected.len() - end..].iter().map(|line| Line::Both(line)));
    lines
}
