//! Scripts as programs, for tests of code that runs programs.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Creates a program that runs a shell script.
pub fn place(path: &Path, script: &str) {
    place_bytes(path, format!("#!/bin/sh\n{script}\n").as_bytes());
}

/// Creates an executable file with these contents. Another process writes the file: while this one, or a child
/// that it forks meanwhile, has the file open for writing, no thread can run it.
pub fn place_bytes(path: &Path, contents: &[u8]) {
    let mut shell = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("there is a shell");
    let mut stdin = shell.stdin.take().expect("it is piped");
    stdin.write_all(contents).expect("it reads");
    drop(stdin);
    assert!(shell.wait().expect("it ends").success());
}
