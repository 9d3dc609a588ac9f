//! Classifies the log of a compiler that failed: is the program at fault, or the system that the compiler ran
//! on?
//!
//! Compilers report both as the same failure. For example, Intel's compiler for CPUs reports that it failed to
//! load one of its own libraries if the process has no file descriptors left. Such a failure must not be cached
//! as the program's.

/// The cause of a compiler's failure, as far as its log shows one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The program: the log names a place in its text, or one of its symbols.
    Program,
    /// A system resource was exhausted, such as memory or files.
    Exhaustion,
    /// The log shows neither cause.
    Unknown,
}

/// Phrases of compilers and the C library that report an exhausted resource, or a disk that fails, with the
/// resource in words.
const EXHAUSTION: [(&str, &str); 13] = [
    ("out of memory", "memory"),
    ("memory exhausted", "memory"),
    ("bad_alloc", "memory"),
    ("Cannot allocate memory", "memory"),
    ("No space left on device", "disk space"),
    ("File too large", "the size that a file may have"),
    ("Disk quota exceeded", "the disk quota"),
    ("Input/output error", "working disk"),
    ("Read-only file system", "writable disk"),
    ("Too many open files", "file descriptors"),
    ("Resource temporarily unavailable", "threads, processes or another resource"),
    ("pthread_create failed", "threads"),
    ("thread constructor failed", "threads"),
];

/// Words in messages of linkers and assemblers that quote a symbol or an option of the program.
const SYMBOL_WORDS: [&str; 13] = [
    "undefined",
    "undeclared",
    "unresolved",
    "unknown",
    "unsupported",
    "invalid",
    "redefin",
    "defined",
    "duplicate",
    "mismatch",
    "uses too much",
    "recursi",
    "no matching",
];

/// Phrases of linkers that precede an unquoted symbol.
const UNQUOTED_SYMBOL_PHRASES: [&str; 5] = [
    "cannot find symbol ",
    "symbols not found: [",
    "unresolved external ",
    "unresolved symbol <",
    "undefined reference to ",
];

/// Returns the cause that a log shows.
pub(crate) fn cause(log: &str) -> Cause {
    if resource(log).is_some() {
        return Cause::Exhaustion;
    }
    let mut complaints = log.lines().filter(|line| is_error_line(line));
    if complaints.any(|line| names_source_position(line) || names_symbol(line)) {
        return Cause::Program;
    }
    Cause::Unknown
}

/// Returns the resource, in words, of which a log says that it is exhausted.
pub(crate) fn resource(log: &str) -> Option<&'static str> {
    let in_line = |line: &str| {
        let found = EXHAUSTION.iter().find(|(phrase, _)| contains(line, phrase));
        found.map(|(_, resource)| *resource)
    };
    lines_about_compiler(log).find_map(in_line).or_else(|| {
        let unreadable = log.lines().find(|line| is_unreadable_file(line));
        unreadable.and_then(in_line)
    })
}

/// Returns the lines that are about the compiler itself. Lines about a place in its input are skipped, and so
/// are the lines quoted below them, up to the line whose marker points into the quoted text.
fn lines_about_compiler(log: &str) -> impl Iterator<Item = &str> {
    let mut is_quoting = false;
    log.lines().filter(move |line| {
        let is_marker = line.contains(['^', '~']) && line.chars().all(|c| " \t|^~".contains(c));
        let is_end = is_marker || line.ends_with(" generated.");
        let is_quoted = is_quoting || names_source_position(line);
        is_quoting = is_quoted && !is_end;
        !is_quoted
    })
}

/// Returns whether a line reports that an included file could not be opened because of an exhausted resource.
fn is_unreadable_file(line: &str) -> bool {
    line.contains("cannot open file '")
        && EXHAUSTION.iter().any(|(phrase, _)| line.trim_end().ends_with(&format!("': {phrase}")))
}

/// Returns whether a line names a place in a text: `file:1:2: `, `1:2:3: `, `file(1): `, `file(1:2): ` or, as
/// in messages of NVIDIA's assembler, `input, line 1;`.
fn names_source_position(line: &str) -> bool {
    line.split(": ").any(|part| ends_with_position(part.trim_end_matches(':')))
        || line.contains(" input, line ")
}

fn ends_with_position(part: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if let Some((_, place)) = part.strip_suffix(')').and_then(|part| part.rsplit_once('(')) {
        return place.split([':', ',']).all(is_number);
    }
    let mut numbers = part.rsplitn(3, ':');
    let mut next_is_number = || numbers.next().is_some_and(is_number);
    next_is_number() && next_is_number()
}

/// Returns whether a line may be the reason for a compiler's failure. Warnings, notes and remarks are not.
fn is_error_line(line: &str) -> bool {
    !["warning:", "warning :", "note:", "remark:", "info:"].iter().any(|word| contains(line, word))
}

/// Returns whether a line complains about a symbol or an option. Quoted paths do not count: they are not the
/// program's.
fn names_symbol(line: &str) -> bool {
    if UNQUOTED_SYMBOL_PHRASES.iter().any(|phrase| contains(line, phrase)) {
        return true;
    }
    let has_word = SYMBOL_WORDS.iter().any(|phrase| contains(line, phrase));
    has_word
        && line
            .split(['\'', '`', '"'])
            .skip(1)
            .step_by(2)
            .any(|quoted| !quoted.is_empty() && !quoted.contains(['/', '\\']))
}

/// Returns whether a line contains a phrase, ignoring case.
fn contains(line: &str, phrase: &str) -> bool {
    line.to_ascii_lowercase().contains(&phrase.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compile_errors_are_attributed_to_the_program() {
        let logs = [
            // PoCL 3.1.
            "error: /cache/tempfile_byLHln.cl:1:42: use of undeclared identifier 'absent'\n\
             Device pthread-skylake-avx512-AMD EPYC failed to build the program\n",
            "Error(s) while linking: \nCannot find symbol tone in kernel library\n\
             Device pthread-skylake-avx512-AMD EPYC failed to build the program\n",
            // Intel's runtime for CPUs.
            "Compilation started\n1:1:42: error: use of undeclared identifier 'absent'\n    \
             1 | kernel void bad(global uint *x) { x[0] = absent; }\n      \
             |                                          ^~~~~~\nCompilation failed\n",
            "Failed to build device program\nremark: <unknown>:0:0: 15 instructions in function\n\
             CompilerException Failed to lookup symbol k\n\
             JIT session error: Symbols not found: [ tone ]\n\
             Failed to materialize symbols: { (main, { k }) }\n",
            // Intel's driver of Level Zero.
            "Unresolved Symbol <tone>\n",
            // NVIDIA.
            "<kernel>:2:5: error: use of undeclared identifier 'absent'\n    absent = 1;\n    ^\n",
            "ptxas application ptx input, line 20; error   : Arguments mismatch for instruction 'mov'\n\
             ptxas fatal   : Ptx assembly aborted due to errors\n",
            "ptxas fatal   : Unresolved extern function 'tone'\n",
            "ptxas error   : Entry function 'k' uses too much shared data (0x10000 bytes, 0xc000 max)\n",
            // Clang, and compilers that write messages in its format or that of Windows.
            "<stdin>:1:1: error: unknown type name 'floa'\nfloa x;\n^\n1 error generated.\n",
            "kernel.cl(12): error: expected an expression\n",
            "error: undefined reference to `tone(float)'\n",
        ];
        for log in logs {
            assert_eq!(cause(log), Cause::Program, "{log}");
        }
    }

    #[test]
    fn exhausted_resources_are_not_errors_of_the_program() {
        let logs = [
            "LLVM ERROR: out of memory\n",
            "terminate called after throwing an instance of 'std::bad_alloc'\n",
            "clang: error: unable to make temporary file: No space left on device\n",
            "<stdin>:1:10: fatal error: cannot open file '/include/a.h': Too many open files\n",
            "<stdin>:3:4: warning: unused variable 'x'\nint x;\n    ^\n1 warning generated.\n\
             clang: error: unable to execute command: Resource temporarily unavailable\n",
        ];
        for log in logs {
            assert_eq!(cause(log), Cause::Exhaustion, "{log}");
        }
        // A program may contain such a phrase itself.
        let quoted = "<stdin>:1:1: error: expected ';'\nerror: f(\"out of memory\")\n      ^\n";
        assert_eq!(cause(quoted), Cause::Program);
        assert_eq!(cause("<stdin>:1:2: error: No space left on device\n"), Cause::Program);
    }

    #[test]
    fn the_exhausted_resource_is_named() {
        for (log, expected) in [
            ("LLVM ERROR: out of memory\n", Some("memory")),
            ("error: unable to make temporary file: No space left on device\n", Some("disk space")),
            (
                "<stdin>:1:10: fatal error: cannot open file '/a.h': Too many open files\n",
                Some("file descriptors"),
            ),
            ("<stdin>:1:2: error: No space left on device\n", None),
            ("", None),
        ] {
            assert_eq!(resource(log), expected, "{log}");
        }
    }

    #[test]
    fn other_logs_have_an_unknown_cause() {
        let logs = [
            "",
            "Failed to load the builtins rtl library\n",
            "Compilation started\nCompilation failed\n",
            "error: backend compiler failed build.\n",
            // Neither a warning nor a remark is the reason, and a file of the compiler's own is not the
            // program's.
            "1:3:4: warning: unused variable 'x'\nFailed to load the builtins rtl library\n",
            "remark: <unknown>:0:0: 15 instructions in function\nFailed to build device program\n",
            "/usr/bin/ld: symbol lookup error: /lib/libx.so: undefined symbol: f\n",
            "Cannot load '/opt/lib/clbltfn.rtl': undefined\n",
        ];
        for log in logs {
            assert_eq!(cause(log), Cause::Unknown, "{log}");
        }
    }
}
