//! Scripts as programs, for tests of code that runs programs.

#![allow(unreachable_pub, reason = "suites and unit tests use it")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Creates a program. Another process writes the file: while this one has it open, no thread could run it.
pub fn place(path: &Path, script: &str) {
    let mut shell = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("there is a shell");
    let mut stdin = shell.stdin.take().expect("it is piped");
    write!(stdin, "#!/bin/sh\n{script}\n").expect("it reads");
    drop(stdin);
    assert!(shell.wait().expect("it ends").success());
}
