//! Removal of `freeze` from LLVM assembly text. llvm-spirv 15 does not accept the instruction.
//!
//! `freeze` has the value of its operand, except that it chooses a value where the operand is undefined
//! (`undef` or `poison`). So it is replaced by its operand where the operand is certainly defined: where it is
//! calculated from arguments, from global or constant memory and from ids of work-items, by instructions whose
//! results are always defined. Other operands need the `freeze`: without it, a later compiler might take a
//! branch on an undefined value for unreachable code.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::assembly::{Kind, Token, tokens};

/// Returns the text without each `freeze` whose operand is certainly defined.
pub(super) fn without_freezes(text: &str) -> String {
    if !text.contains("freeze") {
        return text.to_owned();
    }
    let mut changed = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let mut function = vec![line];
        if line.starts_with("define ") {
            while function.last() != Some(&"}") && lines.peek().is_some() {
                function.extend(lines.next());
            }
        }
        for line in Values::of(&function).without_freezes(&function) {
            changed.push_str(&line);
            changed.push('\n');
        }
    }
    changed
}

/// Values of a function.
struct Values<'t> {
    /// Parameters that are declared to be defined.
    parameters: HashSet<&'t str>,
    /// Tokens of the instruction that calculates each value, after the `=`.
    instructions: BTreeMap<&'t str, Vec<Token<'t>>>,
}

impl<'t> Values<'t> {
    fn of(function: &[&'t str]) -> Self {
        let mut parameters = HashSet::new();
        // Attributes stand between the type of a parameter and its name.
        let mut is_defined = false;
        for token in function.first().map_or(Vec::new(), |line| tokens(line)) {
            match token.kind {
                Kind::Word if token.text == "noundef" => is_defined = true,
                Kind::Mark if [",", "("].contains(&token.text) => is_defined = false,
                Kind::Local if is_defined => _ = parameters.insert(token.text),
                _ => {}
            }
        }
        let instructions = function.iter().filter_map(|line| {
            let all = tokens(line);
            let is_result = all.first()?.kind == Kind::Local && all.get(1)?.text == "=";
            // The line of the source follows the instruction, after a comma.
            let line = all.iter().rposition(|token| token.text == "!dbg");
            let end = line.map_or(all.len(), |line| line - 1);
            is_result.then(|| (all[0].text, all.get(2..end).unwrap_or_default().to_vec()))
        });
        Self { parameters, instructions: instructions.collect() }
    }

    /// Returns the lines of the function without the instructions that are not needed.
    fn without_freezes(&self, function: &[&'t str]) -> Vec<String> {
        let mut operands = HashMap::new();
        for (&name, instruction) in &self.instructions {
            let is_freeze = instruction.first().is_some_and(|first| first.text == "freeze");
            let operand = instruction.iter().skip(1).rfind(|token| token.kind == Kind::Local);
            if let Some(operand) = operand.filter(|_| is_freeze)
                && instruction.last().is_some_and(|last| last == operand)
                && self.is_defined(operand.text, &mut HashSet::new())
            {
                operands.insert(name, operand.text);
            }
        }
        let origin = |name: &'t str| {
            let next = |name: &&'t str| operands.get(*name).copied();
            std::iter::successors(Some(name), next).take(operands.len() + 1).last()
        };
        let rewritten = function.iter().filter_map(|line| {
            let all = tokens(line);
            let is_result = all.get(1).is_some_and(|second| second.text == "=");
            let removed = all.first().filter(|name| is_result && operands.contains_key(name.text));
            if let Some(name) = removed {
                return self.placeholder(name.text, origin(name.text)?);
            }
            let (mut text, mut from) = (String::new(), 0);
            for token in all.iter().filter(|token| operands.contains_key(token.text)) {
                text.push_str(&line[from..token.start]);
                text.push_str(origin(token.text)?);
                from = token.end();
            }
            Some(text + &line[from..])
        });
        rewritten.collect()
    }

    /// Returns the instruction in place of a removed one whose name is a number, because numbers have no gaps.
    fn placeholder(&self, name: &str, operand: &str) -> Option<String> {
        name[1..].parse::<u32>().ok()?;
        let all = self.instructions.get(name)?;
        let ty: Vec<_> = all[1..all.len() - 1].iter().map(|token| token.text).collect();
        Some(format!("  {name} = select i1 true, {0} {operand}, {0} {operand}", ty.join(" ")))
    }

    /// Returns whether a value is certainly defined. `assumed` are the values that are being examined: a value
    /// that depends on itself is defined if everything else that it depends on is.
    fn is_defined(&self, name: &'t str, assumed: &mut HashSet<&'t str>) -> bool {
        if self.parameters.contains(name) || !assumed.insert(name) {
            return true;
        }
        if assumed.len() > MAX_VALUES {
            return false;
        }
        let Some(all) = self.instructions.get(name) else { return false };
        let calls = all.iter().take(2).any(|token| token.text == "call");
        let is_always_defined = match all.first().map(|first| first.text) {
            _ if calls => {
                let callee = all.iter().find(|token| token.kind == Kind::Global);
                return callee.is_some_and(|callee| is_work_item_function(callee.text));
            }
            Some("load") => return is_load_of_buffer(all),
            Some("freeze") => return true,
            Some("add" | "sub" | "mul" | "udiv" | "sdiv" | "urem" | "srem") => {
                !all.iter().any(|token| ["nsw", "nuw", "exact"].contains(&token.text))
            }
            Some("and" | "or" | "xor" | "icmp" | "zext" | "sext" | "trunc" | "select" | "phi") => {
                true
            }
            _ => false,
        };
        let is_undefined = all.iter().any(|token| ["undef", "poison"].contains(&token.text));
        if !is_always_defined || is_undefined || all.iter().any(|t| t.kind == Kind::Global) {
            return false;
        }
        let is_phi = all.first().is_some_and(|first| first.text == "phi");
        let operands = all.iter().enumerate().filter(|(at, token)| {
            // In a phi, a block follows each value: `[ %value, %block ]`.
            let is_block = is_phi && *at > 0 && all[at - 1].text == ",";
            token.kind == Kind::Local
                && !(is_block && all.get(at + 1).is_some_and(|t| t.text == "]"))
        });
        let operands: Vec<_> = operands.map(|(_, operand)| operand.text).collect();
        operands.into_iter().all(|operand| self.is_defined(operand, assumed))
    }
}

/// Maximum number of values on which one depends.
const MAX_VALUES: usize = 256;

/// Returns whether a function returns an id or a size of the nd-range, which are always defined.
fn is_work_item_function(name: &str) -> bool {
    const FUNCTIONS: [&str; 8] = [
        "@_Z13get_global_idj",
        "@_Z12get_local_idj",
        "@_Z12get_group_idj",
        "@_Z15get_global_sizej",
        "@_Z14get_local_sizej",
        "@_Z14get_num_groupsj",
        "@_Z17get_global_offsetj",
        "@_Z12get_work_dimv",
    ];
    FUNCTIONS.contains(&name)
}

/// Returns whether a load reads an integer or a floating-point number from global or constant memory. What a
/// buffer contains is not known to compilers, but it is defined.
fn is_load_of_buffer(load: &[Token<'_>]) -> bool {
    let comma = load.iter().position(|token| token.text == ",");
    let Some((ty, rest)) = comma.map(|comma| load.split_at(comma)) else { return false };
    let is_pointer = ty.iter().any(|token| ["*", "ptr"].contains(&token.text));
    let space = rest.iter().position(|token| token.text == "addrspace");
    let space = space.and_then(|at| rest.get(at + 2));
    !is_pointer && space.is_some_and(|space| ["1", "2"].contains(&space.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(body: &str) -> String {
        format!(
            "define noundef i32 @k(i32 %m, i32 addrspace(1)* noundef %a, i32 noundef %n) #0 {{\n\
             entry:\n{body}  ret void\n}}\n"
        )
    }

    #[test]
    fn the_operand_takes_the_place_of_a_freeze_if_it_is_defined() {
        let text = function(
            "  %x = load i32, i32 addrspace(1)* %a, align 4, !tbaa !3\n  \
             %i = tail call spir_func i64 @_Z13get_global_idj(i32 noundef 0) #3\n  \
             %y = add i32 %x, %n\n  %y.fr = freeze i32 %y\n  %z = urem i32 %y.fr, %y\n  \
             %w = freeze i32 %y.fr\n  %v = mul i32 %w, %y.fr1\n  %0 = freeze i64 %i\n  \
             %u = zext i1 %0 to i32\n",
        );
        let expected = function(
            "  %x = load i32, i32 addrspace(1)* %a, align 4, !tbaa !3\n  \
             %i = tail call spir_func i64 @_Z13get_global_idj(i32 noundef 0) #3\n  \
             %y = add i32 %x, %n\n  %z = urem i32 %y, %y\n  %v = mul i32 %y, %y.fr1\n  \
             %0 = select i1 true, i64 %i, i64 %i\n  %u = zext i1 %i to i32\n",
        );
        assert_eq!(without_freezes(&text), expected);
    }

    #[test]
    fn lines_of_the_source_make_no_difference() {
        let text = function(
            "  %y = add i32 %n, 1, !dbg !7\n  %z = freeze i32 %y, !dbg !8\n  \
             %0 = freeze i32 %n, !dbg !9\n  %v = mul i32 %z, %0, !dbg !9\n",
        );
        let expected = function(
            "  %y = add i32 %n, 1, !dbg !7\n  %0 = select i1 true, i32 %n, i32 %n\n  \
             %v = mul i32 %y, %n, !dbg !9\n",
        );
        assert_eq!(without_freezes(&text), expected);
    }

    #[test]
    fn a_freeze_of_a_value_that_may_be_undefined_stays() {
        for value in [
            "add nsw i32 %n, 1",
            "add i32 %n, undef",
            "add i32 %n, %m",
            "shl i32 %n, %n",
            "load i32, i32* %p",
            "load i32, i32 addrspace(3)* %a",
            "load i32 addrspace(1)*, i32 addrspace(1)* addrspace(1)* %a",
            "call i32 @helper(i32 %n)",
            "fptosi float 0.5 to i32",
            "select i1 true, i32 %n, i32 poison",
            "phi i32 [ %n, %entry ], [ %m, %loop ]",
            "or i32 %n, ptrtoint (i32* @x to i32)",
        ] {
            let text =
                function(&format!("  %x = {value}\n  %y = freeze i32 %x\n  %z = add i32 %y, 1\n"));
            assert_eq!(without_freezes(&text), text, "{value}");
        }
    }

    #[test]
    fn a_value_that_depends_on_itself_is_defined_if_all_others_are() {
        let text = |freeze: &str, last: &str, other: &str| {
            function(&format!(
                "loop:\n  %i = phi i32 [ 0, %entry ], [ %next, %loop ]\n{freeze}  \
                 %next = add i32 {last}, {other}\n  br i1 true, label %loop, label %entry\n"
            ))
        };
        let frozen = text("  %f = freeze i32 %i\n", "%f", "1");
        assert_eq!(without_freezes(&frozen), text("", "%i", "1"));
        let other = text("  %f = freeze i32 %i\n  %g = freeze i32 %next\n", "%i", "%m");
        assert_eq!(without_freezes(&other), other);
    }
}
