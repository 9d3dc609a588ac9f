//! Damaged and random files never make the macro panic or run for long.

use std::fs;
use std::path::{Path, PathBuf};

use crate::parse::{preprocess::preprocess, read};
use crate::source::{Host, read_text};
use crate::spirv;

fn data() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "tests", "data"].iter().collect()
}

fn files(extension: &str) -> Vec<Vec<u8>> {
    let files = fs::read_dir(data()).expect("it is there");
    let paths = files.map(|file| file.expect("it can be listed").path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|it| it == extension)).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("it can be read")).collect()
}

/// Words that make texts of random words likely to reach every part of the parser.
const WORDS: [&str; 66] = [
    "kernel",
    "void",
    "k",
    "(",
    ")",
    "{",
    "}",
    "global",
    "float",
    "*",
    "x",
    ",",
    ";",
    "typedef",
    "struct",
    "s",
    "[",
    "]",
    "4",
    "const",
    "__attribute__",
    "((",
    "))",
    "packed",
    "aligned",
    "local",
    "int",
    "unsigned",
    "long",
    "enum",
    "=",
    "\n#define M(a, b) a##b #a\n",
    "M",
    "M(",
    "\n#if ",
    "\n#endif\n",
    "\n#else\n",
    "\n#ifdef x\n",
    "defined",
    "1",
    "+",
    "<<",
    "?",
    ":",
    "\"",
    "'",
    "/*",
    "*/",
    "//",
    "\n",
    "\\\n",
    "\n#line 3 \"a\"\n",
    "...",
    "_Atomic",
    "restrict",
    "image2d_t",
    "write_only",
    "sampler_t",
    "size_t",
    "constant",
    "float4",
    "union",
    "\n#undef M\n",
    "[[",
    "]]",
    "#",
];

fn read_anything(text: &str) -> usize {
    let kernels = preprocess(text, &"f.cl".into(), 120, &[]).map(|tokens| read(&tokens).0.len());
    kernels.unwrap_or_default()
}

#[test]
fn random_words_are_read_or_refused() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut kernels = 0;
    for _ in 0..20_000 {
        let length = random.usize(0..60);
        let words = std::iter::repeat_with(|| WORDS[random.usize(0..WORDS.len())]);
        let words: Vec<_> = words.take(length).collect();
        kernels += read_anything(&format!("kernel void k(int x) {{}} {}", words.join(" ")));
    }
    assert!(kernels > 1000, "{kernels} kernels were read");
}

#[test]
fn random_bytes_are_read_or_refused() {
    let mut random = fastrand::Rng::with_seed(8);
    for _ in 0..5_000 {
        let length = random.usize(0..300);
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(length).collect();
        read_anything(&String::from_utf8_lossy(&bytes));
        assert!(spirv::kernels(&bytes).is_err());
        let mut module = 0x0723_0203u32.to_le_bytes().to_vec();
        module.extend([0; 16]);
        module.extend(&bytes[..bytes.len() / 4 * 4]);
        let _ = spirv::kernels(&module);
    }
}

#[test]
fn damaged_texts_are_read_or_refused() {
    let mut random = fastrand::Rng::with_seed(9);
    let texts = files("cl");
    for round in 0..2_000 {
        let mut bytes = texts[round % texts.len()].clone();
        for _ in 0..random.usize(1..8) {
            damage(&mut random, &mut bytes);
        }
        bytes.truncate(20_000);
        read_anything(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn damaged_modules_are_read_or_refused() {
    let mut random = fastrand::Rng::with_seed(10);
    let modules = files("spv");
    let mut kernels = 0;
    for round in 0..3_000 {
        let mut bytes = modules[round % modules.len()].clone();
        for _ in 0..random.usize(1..8) {
            let at = random.usize(0..bytes.len() / 4) * 4;
            // Half of the changes keep the opcode.
            let offset = if random.bool() { 0 } else { 2 };
            bytes[at + offset] = random.u8(0..64);
        }
        kernels += spirv::kernels(&bytes).map_or(0, |kernels| kernels.len());
    }
    assert!(kernels > 1000, "{kernels} kernels were read");
}

fn damage(random: &mut fastrand::Rng, bytes: &mut Vec<u8>) {
    let at = random.usize(0..bytes.len());
    match random.u8(0..4) {
        0 => drop(bytes.drain(at..(at + random.usize(0..20)).min(bytes.len()))),
        1 => bytes[at] = b"(){}[];,*#\\\"'/\n "[random.usize(0..16)],
        2 => {
            let word = WORDS[random.usize(0..WORDS.len())].bytes();
            bytes.splice(at..at, word);
        }
        _ => {
            let piece = bytes[at..(at + random.usize(0..40)).min(bytes.len())].to_vec();
            bytes.splice(at..at, piece);
        }
    }
    if bytes.is_empty() {
        bytes.push(b' ');
    }
}

/// Texts whose parts repeat so often that work which grows faster than the text would take minutes.
#[test]
fn long_texts_take_time_in_proportion_to_their_length() {
    for part in [
        "{",
        "(",
        "[",
        "/*",
        "kernel void k(",
        "typedef struct {",
        "#if 1\n",
        "M(",
        "__attribute__((",
        "a ",
        "\"",
        ";",
    ] {
        let text = format!("#define M(a) a\n{}", part.repeat(100_000 / part.len()));
        read_anything(&text);
        read_text(&text, "f.cl", Path::new(""), &Host::default(), "");
    }
}
