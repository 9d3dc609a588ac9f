//! Files of device code, read with and without clang.

use std::fmt::Write;
use std::fs;

use super::*;
use crate::signature::{Passing, Shape};

/// Returns the folder of the modules that Kiln's own tests use.
fn data() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "tests", "data"].iter().collect()
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("there is room");
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("it is written");
    }
    folder
}

fn host(folder: &Path) -> Host {
    Host { folder: Some(folder.to_owned()), ..Host::default() }
}

/// Returns the hosts without clang and, where it is installed, with it.
fn hosts(folder: &Path) -> Vec<Host> {
    let clang = env::var_os("PATH").and_then(|path| clang::on_path(&path));
    let with_clang = clang.map(|clang| Host { clang: Some(clang), ..host(folder) });
    let hosts: Vec<_> = std::iter::once(host(folder)).chain(with_clang).collect();
    let required = env::var("KILN_REQUIRE_TOOLS").unwrap_or_default();
    assert!(
        hosts.len() == 2 || !required.split(',').any(|tool| tool == "clang"),
        "clang is required"
    );
    hosts
}

/// Returns kernels in words that show everything but the places.
fn in_words(kernels: &[Kernel]) -> String {
    let mut words = String::new();
    for kernel in kernels {
        let place = kernel.place.as_ref().map(ToString::to_string).unwrap_or_default();
        let _ =
            writeln!(words, "{place} {} {:?} {}", kernel.name, kernel.comment, kernel.declaration);
        for parameter in &kernel.parameters {
            let _ = writeln!(words, "    {parameter:?}");
        }
    }
    words
}

#[test]
fn clang_and_this_crate_read_the_same_from_every_file() {
    let read = |path: &Path, host: &Host| {
        // clang assumes a device without this extension.
        let options = "-D cl_khr_subgroups=1";
        let code = read_file(path.to_str().expect("it is UTF-8"), host, options);
        assert!(code.problems.is_empty(), "{}: {:?}", path.display(), code.problems);
        in_words(&code.kernels)
    };
    let mut count = 0;
    let folders = [data(), data().join("../../examples/pipeline"), data().join("emitted")];
    for file in folders.iter().flat_map(|folder| fs::read_dir(folder).expect("it is there")) {
        let path = file.expect("it can be listed").path();
        if path.extension().is_none_or(|extension| extension != "cl") {
            continue;
        }
        let read: Vec<_> = hosts(&data()).iter().map(|host| read(&path, host)).collect();
        assert!(read.iter().all(|words| *words == read[0]), "{}: {read:#?}", path.display());
        count += usize::from(!read[0].is_empty());
    }
    assert!(count > 10, "{count} files have kernels");
}

#[test]
fn macros_options_and_included_files_are_followed() {
    let folder = folder(&[
        ("types.h", "#pragma once\ntypedef T real;\n"),
        (
            "k.cl",
            "#include \"types.h\"\n#include \"types.h\"\n#include <more.h>\n\
             #define KERNEL(name) kernel void name##_##N(global const real *x, SIZE n)\n\
             // Adds.\nKERNEL(add) {}\n#ifdef EXTRA\nkernel void extra() {}\n#endif\n",
        ),
    ]);
    let include = tempfile::tempdir().expect("there is room");
    fs::write(include.path().join("more.h"), "#define SIZE uint\n").expect("it is written");
    let more = include.path().to_str().expect("it is UTF-8");
    for host in hosts(folder.path()) {
        let code = read_file("k.cl", &host, &format!("-D T=double -DEXTRA -I \"{more}\" -w"));
        assert_eq!(code.problems, Vec::<String>::new(), "{host:?}");
        let names: Vec<_> = code.kernels.iter().map(|kernel| &*kernel.name).collect();
        assert_eq!(names, ["add_N", "extra"]);
        let add = &code.kernels[0];
        assert_eq!(add.comment, ["Adds."]);
        assert_eq!(add.place.as_ref().map(ToString::to_string).as_deref(), Some("k.cl:6"));
        let parameters: Vec<_> = add.parameters.iter().flatten().collect();
        assert_eq!(parameters[0].passing, Passing::ReadBuffer);
        assert_eq!(&*parameters[0].element.names[1], "double");
        assert_eq!(code.options.as_deref(), Some("-D T=double -DEXTRA -w"));
        let files: Vec<_> = code.files.iter().filter_map(|file| file.file_name()).collect();
        assert_eq!(files, ["k.cl", "types.h", "more.h"]);
        let Code::Text(text) = &code.code else { panic!("{:?}", code.code) };
        assert!(text.contains("typedef T real;") && !text.contains("#include"), "{text}");
    }
}

#[test]
fn files_without_includes_are_embedded_as_they_are() {
    let folder = folder(&[("k.cl", "kernel void k() {}")]);
    for host in hosts(folder.path()) {
        let code = read_file("k.cl", &host, "");
        assert!(matches!(code.code, Code::TextFile), "{:?}", code.code);
        assert_eq!((code.files.len(), code.options), (1, None));
    }
}

#[test]
fn files_that_cannot_be_read_say_why() {
    let folder = folder(&[
        ("missing.cl", "\n#include \"no.h\"\nkernel void k() {}"),
        ("error.cl", "#error stop here"),
        ("short.spv", "no"),
        ("open.cl", "\nkernel void k(int x) {"),
    ]);
    fs::write(folder.path().join("bytes.cl"), b"ok\n\xff").expect("it is written");
    for host in hosts(folder.path()) {
        for (file, expected) in [
            ("none.cl", "cannot read `"),
            ("missing.cl", "missing.cl:2: "),
            ("missing.cl", "give the folder of the file"),
            ("error.cl", "error.cl:1: "),
            ("short.spv", "`short.spv`: the bytes begin with"),
            ("bytes.cl", "not UTF-8 in line 2"),
            ("open.cl", "open.cl:2: the body of this function does not end"),
        ] {
            let code = read_file(file, &host, "");
            assert!(code.kernels.is_empty(), "{file}");
            assert!(
                code.problems.iter().any(|it| it.contains(expected)),
                "{file}: {:?}",
                code.problems
            );
        }
    }
    let code = read_file("none.cl", &Host::default(), "");
    assert!(code.problems[0].contains("CARGO_MANIFEST_DIR"), "{:?}", code.problems);
    let code = read_file("open.cl", &host(folder.path()), "-D");
    assert!(code.problems[0].contains("`-D` has no value"), "{:?}", code.problems);
}

#[test]
fn a_chosen_clang_that_cannot_be_used_is_an_error() {
    let folder = folder(&[("k.cl", "kernel void k() {}")]);
    let found = Host { clang: Some("/nonexistent/clang".into()), ..host(folder.path()) };
    assert_eq!(read_file("k.cl", &found, "").problems, Vec::<String>::new());
    let chosen = Host { clang_is_chosen: true, ..found };
    let problems = read_file("k.cl", &chosen, "").problems;
    assert!(
        problems[0].contains("KILN_CLANG") && problems[0].contains("/nonexistent"),
        "{problems:?}"
    );
}

#[test]
fn modules_have_the_signatures_of_their_source() {
    let shape = |kernels: &[Kernel]| -> Vec<String> {
        let parameters = |kernel: &Kernel| {
            let all = kernel.parameters.iter().map(|parameter| match parameter {
                Ok(it) => format!("{:?} {:?} {:?}", it.name, it.passing, it.element.names),
                Err(why) => why.clone(),
            });
            all.collect::<Vec<_>>().join(", ")
        };
        let mut all: Vec<_> = kernels
            .iter()
            .map(|kernel| format!("{}({})", kernel.name, parameters(kernel)))
            .collect();
        all.sort();
        all
    };
    for name in ["saxpy", "double", "typed/images"] {
        let read = |extension: &str| {
            let path = data().join(format!("{name}.{extension}"));
            let code = read_file(path.to_str().expect("it is UTF-8"), &Host::default(), "");
            assert_eq!(code.problems, Vec::<String>::new());
            shape(&code.kernels)
        };
        let of_text = read("cl");
        assert_eq!(read("spv"), of_text);
        assert!(!of_text.is_empty());
    }
}

/// Returns how the parameters of each kernel are passed, and the sizes of their elements.
fn sizes(kernels: &[Kernel]) -> Vec<String> {
    let mut all: Vec<_> = kernels
        .iter()
        .map(|kernel| {
            let parameters = kernel.parameters.iter().map(|parameter| {
                let Ok(parameter) = parameter else { return "refused".to_owned() };
                let size = parameter.element.layout.map(|layout| layout.size);
                // Not every module keeps `const`.
                let passing = match parameter.passing {
                    Passing::ReadBuffer => Passing::Buffer,
                    other => other,
                };
                format!("{passing:?} {size:?}")
            });
            format!("{} {:?}", kernel.name, parameters.collect::<Vec<_>>())
        })
        .collect();
    all.sort();
    all
}

#[test]
fn modules_without_the_types_of_the_source_have_their_sizes() {
    let (mut count, mut with_kernels) = (0, 0);
    for file in fs::read_dir(data()).expect("it is there") {
        let module = file.expect("it can be listed").path();
        let text = module.with_extension("cl");
        // The compiler of this module only inferred what its pointers point to.
        let is_inferred = module.ends_with("inferred.spv");
        let is_module = module.extension().is_some_and(|extension| extension == "spv");
        if !is_module || !text.is_file() || is_inferred {
            continue;
        }
        let [of_module, of_text] = [&module, &text].map(|path| {
            let code = read_file(path.to_str().expect("it is UTF-8"), &Host::default(), "");
            assert_eq!(code.problems, Vec::<String>::new(), "{}", path.display());
            sizes(&code.kernels)
        });
        assert_eq!(of_module, of_text, "{}", module.display());
        count += 1;
        with_kernels += usize::from(!of_text.is_empty());
    }
    assert!(count > 10 && with_kernels > 10, "{count} modules, {with_kernels} with kernels");
}

/// Types whose sizes the macro itself does not compute, with their sizes.
const LAYOUTS: [(&str, &str, u64); 11] = [
    ("#pragma pack(2)\nstruct s { char c; int i; };", "struct s", 6),
    ("#pragma pack(push, 1)\nstruct s { char c; double d; };\n#pragma pack(pop)", "struct s", 9),
    ("_Pragma(\"pack(2)\") struct s { char c; int i; };", "struct s", 6),
    ("#define PACKED _Pragma(\"pack(1)\")\nPACKED\ntypedef struct { char c; long i; } t;", "t", 9),
    ("enum __attribute__((packed)) e { A, B };", "enum e", 1),
    ("typedef enum { A = 0x123456789 } t;", "t", 8),
    ("enum e { A = 1 } __attribute__((packed)); struct s { enum e e; char c; };", "struct s", 2),
    ("struct s { char c; int a __attribute__((aligned(16))); };", "struct s", 32),
    ("struct s { char c; int a __attribute__((packed)); };", "struct s", 5),
    ("struct s { char a[sizeof(long) * 3]; };", "struct s", 24),
    ("struct s { int a[(char) 258]; };", "struct s", 8),
];

#[test]
fn sizes_are_those_of_clang() {
    let Some(clang) = env::var_os("PATH").and_then(|path| clang::on_path(&path)) else {
        return;
    };
    let host = Host { clang: Some(clang), ..Host::default() };
    for (declaration, ty, size) in LAYOUTS {
        // The sizes are known although a function is not declared.
        let text = format!(
            "{declaration}\nkernel void k(global {ty} *x, {ty} y, constant {ty} (*z)[3]) {{ missing(x); }}"
        );
        let code = read_text(&text, "f.cl", Path::new(""), &host, "");
        assert_eq!(code.problems, Vec::<String>::new(), "{text}");
        let [x, y, z] = &code.kernels[0].parameters[..] else { panic!("{text}") };
        for (parameter, bytes) in [(x, size), (y, size), (z, size)] {
            let mut element = &parameter.as_ref().expect(&text).element;
            while let Shape::Array(inner, length) = &element.shape {
                assert_eq!(*length, 3, "{text}");
                element = inner;
            }
            assert_eq!(element.layout.map(|layout| layout.size), Some(bytes), "{text}");
        }
    }
    let text = "enum { N = sizeof(int2) }; typedef int row[N]; kernel void k(global row *x) {}";
    let code = read_text(text, "f.cl", Path::new(""), &host, "");
    let row = &code.kernels[0].parameters[0].as_ref().expect("it is known").element;
    assert!(matches!(row.shape, Shape::Array(_, 8)), "{row:?}");
}

#[test]
fn without_clang_types_of_unknown_size_are_refused() {
    for (declaration, ty, _) in LAYOUTS {
        let text = format!("{declaration}\nkernel void k(global {ty} *x) {{}}");
        let code = read_text(&text, "f.cl", Path::new(""), &Host::default(), "");
        let problems = code.problems.iter().cloned();
        let refused = code.kernels.iter().flat_map(|kernel| &kernel.parameters);
        let refused = refused.filter_map(|parameter| parameter.as_ref().err().cloned());
        let all: Vec<_> = problems.chain(refused).collect();
        assert!(all.iter().any(|why| why.contains("install clang")), "{text}: {all:?}");
    }
}

#[test]
fn conditions_find_the_macros_that_devices_define() {
    let clang = env::var_os("PATH").and_then(|path| clang::on_path(&path));
    for clang in [None, clang] {
        let host = Host { clang, ..Host::default() };
        for condition in [
            "!defined(__GNUC__)",
            "defined(__clang__)",
            "__OPENCL_VERSION__ >= CL_VERSION_1_2",
            "__OPENCL_C_VERSION__ == 120",
            "__STDC_VERSION__ >= 199901L",
        ] {
            let (then, otherwise) = ("kernel void k(float x) {}", "kernel void k(int x) {}");
            let text = format!("#if {condition}\n{then}\n#else\n{otherwise}\n#endif");
            let code = read_text(&text, "f.cl", Path::new(""), &host, "");
            let x = code.kernels[0].parameters[0].as_ref().expect("it is known");
            assert!(matches!(x.element.shape, Shape::Rust("f32")), "{text}: {x:?}");
        }
    }
}

#[test]
fn parameters_that_depend_on_the_version_of_the_device_are_refused() {
    let clang = env::var_os("PATH").and_then(|path| clang::on_path(&path));
    for clang in [None, clang] {
        let host = Host { clang, ..Host::default() };
        let read = |text: &str| read_text(text, "f.cl", Path::new(""), &host, "");
        let code = read(
            "#if __OPENCL_VERSION__ >= 200\nkernel void k(long x) {}\nkernel void l() {}\n#else\n\
             kernel void k(int x) {}\n#endif\nkernel void m(int x) {\n#if __OPENCL_VERSION__ > 200\nx++;\n#endif\n}",
        );
        let by_name = |name: &str| code.kernels.iter().find(|kernel| &*kernel.name == name);
        let why =
            by_name("k").expect("it is found").parameters[0].as_ref().expect_err("it differs");
        assert!(why.contains("f.cl:5") && why.contains("`__OPENCL_VERSION__`"), "{why}");
        assert!(by_name("l").is_some());
        assert!(by_name("m").expect("it is found").parameters[0].is_ok());
        let code =
            read("#if __OPENCL_VERSION__ < 200\n#error old\n#endif\nkernel void k(int x) {}");
        assert!(code.problems.is_empty() && code.kernels.len() == 1, "{code:?}");
        let code =
            read("#if __OPENCL_VERSION__ < 900\n#error old\n#endif\nkernel void k(int x) {}");
        assert_eq!(code.problems.len(), 1, "{code:?}");
    }
}

#[test]
fn without_clang_parameters_that_depend_on_extensions_are_refused() {
    let read = |text: &str| read_text(text, "f.cl", Path::new(""), &Host::default(), "");
    let code = read(
        "#ifdef cl_khr_fp16\ntypedef half real;\n#else\ntypedef float real;\n#endif\n\
         kernel void k(global real *x) {}\nkernel void l(global float *x) {}\n\
         #if __IMAGE_SUPPORT__\nkernel void m(read_only image2d_t x) {}\n#endif",
    );
    let names: Vec<_> = code.kernels.iter().map(|kernel| &*kernel.name).collect();
    assert_eq!(names, ["k", "l", "m"], "{code:?}");
    let why = code.kernels[0].parameters[0].as_ref().expect_err("it differs");
    assert!(why.contains("`cl_khr_fp16`"), "{why}");
    assert!(code.kernels[1..].iter().all(|kernel| kernel.parameters[0].is_ok()), "{code:?}");
    let conditions = (0..20).map(|at| format!("#ifdef cl_{at}\nint x{at};\n#endif\n"));
    let code = read(&conditions.collect::<String>());
    assert!(code.problems[0].contains("install clang"), "{code:?}");
}

#[test]
fn without_clang_other_languages_are_refused() {
    let text = "kernel void k(int x) {}";
    let code = read_text(text, "f.cl", Path::new(""), &Host::default(), "-cl-std=CLC++");
    assert!(code.problems[0].contains("install clang"), "{code:?}");
}
