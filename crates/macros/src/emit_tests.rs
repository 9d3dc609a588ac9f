//! Generated code, as text.

use std::fs;

use proc_macro2::{TokenStream, TokenTree};
use syn::LitStr;

use crate::emit::expand;
use crate::input::Input;
use crate::source::Host;

/// Returns the code that the macro generates, without blanks.
fn generated(modules: &str) -> String {
    generated_in(modules, &Host::default())
}

fn generated_in(modules: &str, host: &Host) -> String {
    let input: Input = syn::parse_str(&format!("[kiln] {modules}")).expect("it is valid input");
    let output = expand(&input, &|_| host.clone());
    without_blanks(&output.to_string())
}

fn without_blanks(text: &str) -> String {
    text.replace([' ', '\n'], "")
}

/// Returns the errors in generated code.
fn errors(modules: &str) -> Vec<String> {
    let input: Input = match syn::parse_str(&format!("[kiln] {modules}")) {
        Ok(input) => input,
        Err(error) => return vec![error.to_string()],
    };
    messages(expand(&input, &|_| Host::default()))
}

/// Returns the messages of all `compile_error!` in code.
fn messages(code: TokenStream) -> Vec<String> {
    let mut messages = Vec::new();
    let mut is_error = false;
    for token in code {
        match token {
            TokenTree::Ident(name) => is_error = name == "compile_error",
            TokenTree::Group(group) if is_error => {
                let text: LitStr = syn::parse2(group.stream()).expect("it is a text");
                messages.push(text.value());
                is_error = false;
            }
            TokenTree::Group(group) => messages.extend(self::messages(group.stream())),
            _ => {}
        }
    }
    messages
}

fn assert_contains(text: &str, expected: &str) {
    assert!(text.contains(&without_blanks(expected)), "expected {expected} in {text}");
}

#[test]
fn each_kernel_becomes_a_function() {
    let code = generated(
        r#"/// Docs. #[cfg(test)]
        pub(crate) mod m = opencl_c("
            // Adds.
            kernel void saxpy(float a, global const float *x, global float *y) {}
            kernel void sum(local int4 *scratch, constant uchar *table, double3 by) {}
        ");"#,
    );
    assert_contains(
        &code,
        "pub fn saxpy(&self, range: impl kiln::launch::IntoNdSize, a: f32, x: &kiln::Buffer<f32>, \
         y: impl kiln::launch::WritableBuffer<f32>) -> kiln::Launch { \
         self.saxpy.launch(range).arg(a).arg(x.read_only()).arg(y) }",
    );
    assert_contains(
        &code,
        "pub fn sum(&self, range: impl kiln::launch::IntoNdSize, scratch: kiln::Local<[i32; 4]>, \
         table: &kiln::Buffer<u8>, by: [f64; 4]) -> kiln::Launch",
    );
    assert_contains(&code, "pub(crate) mod m {");
    assert_contains(&code, r#"#[doc = " Docs. #[cfg(test)]"]"#);
    assert_contains(&code, r#"#[doc = " Adds."]"#);
    assert_contains(&code, r#"saxpy: program.kernel("saxpy")?"#);
    assert_contains(&code, r#"sum: build.kernel("sum")"#);
}

#[test]
fn images_and_samplers_have_types_of_their_own() {
    let code = generated(
        r#"mod m = opencl_c("
            kernel void k(image2d_t from, sampler_t at, write_only image2d_array_t to, read_write image3d_t in) {}
        ");"#,
    );
    assert_contains(
        &code,
        "pub fn k(&self, range: impl kiln::launch::IntoNdSize, \
         from: &kiln::Image<impl kiln::images::Pixel>, at: kiln::images::Sampler, \
         to: impl kiln::launch::WritableImage, r#in: impl kiln::launch::WritableImage) -> kiln::Launch { \
         self.k.launch(range).arg(from).arg(at).arg(to).arg(r#in) }",
    );
    for line in [
        " * `from`: image of the kind `image2d_t`, which the kernel reads.",
        " * `to`: image of the kind `image2d_array_t`, which the kernel writes.",
        " * `r#in`: image of the kind `image3d_t`, which the kernel writes.",
    ] {
        assert_contains(&code, &format!("#[doc = {line:?}]"));
    }
}

#[test]
fn names_that_rust_lacks_are_replaced() {
    let code = generated(
        r#"mod m = opencl_c("kernel void module(int range, int self, int None, int type, int, int argument_4) {}");"#,
    );
    assert_contains(
        &code,
        "pub fn module_(&self, range_: impl kiln::launch::IntoNdSize, range: i32, self_: i32, None_: i32, \
         r#type: i32, argument_4: i32, argument_4_: i32)",
    );
    assert_contains(&code, r#"module_: program.kernel("module")?"#);
}

#[test]
fn stated_types_replace_those_of_the_file() {
    let code = generated(
        r#"mod m = opencl_c("
            typedef struct { float4 p; } Particle;
            kernel void k(global Particle *x, half2 h, Particle y, float8 f, int i) {}
        ") { type Particle = crate::Particle; type half = u16; type float8 = crate::Eight; }"#,
    );
    assert_contains(
        &code,
        "x: impl kiln::launch::WritableBuffer<crate::Particle>, h: [u16; 2], y: crate::Particle, \
         f: crate::Eight, i: i32",
    );
    assert_contains(&code, "size_of::<crate::Particle>() as u64 == 16u64");
    assert_contains(&code, "size_of::<crate::Eight>() as u64 == 32u64");
    assert_contains(&code, "size_of::<u16>() as u64 == 2u64");
    assert_contains(&code, "is_pod::<crate::Particle>()");
}

#[test]
fn files_and_variables_are_watched() {
    let folder = tempfile::tempdir().expect("there is room");
    let write =
        |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("it is written");
    write("plain.cl", "kernel void k() {}");
    write("more.h", "#define N 4\n");
    write("including.cl", "#include \"more.h\"\nkernel void k() {}");
    let host = Host { folder: Some(folder.path().to_owned()), ..Host::default() };
    let path = |name: &str| format!("{:?}", folder.path().join(name));

    let plain = generated_in(r#"mod m = "plain.cl";"#, &host);
    assert_contains(&plain, &format!("opencl_c(::core::include_str!({}))", path("plain.cl")));
    assert_contains(&plain, r#"option_env!("KILN_CLANG")"#);

    let including = generated_in(r#"mod m = "including.cl" { options = "-D M -I ."; }"#, &host);
    for file in ["including.cl", "more.h"] {
        assert_contains(&including, &format!("include_bytes!({})", path(file)));
    }
    assert!(!including.contains("include_str!"), "{including}");
    assert_contains(&including, r#".with_label("including.cl").with_options("-D M")"#);

    let variable = generated_in(
        r#"mod m = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/saxpy.spv");"#,
        &host,
    );
    assert_contains(&variable, r#"::core::env!("CARGO_MANIFEST_DIR")"#);
    assert_contains(&variable, "kiln::Module::spirv(&::core::include_bytes!(");
    assert!(!variable.contains("KILN_CLANG"), "{variable}");
}

#[test]
fn errors_say_what_to_do() {
    for (modules, expected) in [
        (r#"mod m = opencl_c("int x;");"#, "`m` defines no kernel"),
        (
            r#"mod m = opencl_c("kernel void k(){} kernel void k(){}");"#,
            "defines the kernel `k` twice",
        ),
        (
            r#"mod m = opencl_c("kernel void a$(){} kernel void a_(){}");"#,
            "would both be functions `a_`",
        ),
        (
            r#"mod m = opencl_c("kernel void k(image2d_depth_t i){}");"#,
            "kernel `k`: m:1: parameter `image2d_depth_t i`",
        ),
        (
            r#"mod m = opencl_c("kernel void k(image2d_t i){}") { type image2d_t = crate::T; }"#,
            "no parameter of these kernels",
        ),
        (
            r#"mod m = opencl_c("kernel void k(half h){}");"#,
            "write `{ type half = crate::..; }` behind the path",
        ),
        (r#"mod m = opencl_c("kernel void k(struct s h){}");"#, "`struct s` needs a type of Rust"),
        (
            r#"mod m = opencl_c("kernel void k(){}") { kernels = [l]; }"#,
            "no kernel is named `l`; there are `k`",
        ),
        (
            r#"mod m = opencl_c("kernel void k(){}") { type t = crate::T; }"#,
            "no parameter of these kernels",
        ),
        (r#"mod m = opencl_c("kernel void k(){}") { type t = T; }"#, "write `super::T`"),
        (r#"mod m = opencl_c("kernel void k(){}") { type t = u8; type t = u8; }"#, "stated twice"),
        (r#"mod m = opencl_c("kernel void k(){}") { option = "x"; }"#, "`option` is not a setting"),
        (r#"mod m = opencl_c("kernel void k(){}") { options = "a"; options = "b"; }"#, "set twice"),
        (r#"mod m = opencl_c("kernel void k(){}") { options = "-I"; }"#, "`-I` has no value"),
        (r#"mod m = opencl_c("a", "b");"#, "expected one text"),
        (r#"mod m = opencl("a");"#, "expected the path of a file"),
        (r#"mod m = PATH;"#, "expected a string"),
        (r#"mod m = concat!(file!());"#, "expected a string"),
        (r#"mod m = env!("KILN_NO_SUCH_VARIABLE");"#, "`KILN_NO_SUCH_VARIABLE` is not set"),
        (r#"mod m = "a" mod n = "b";"#, "expected `;`, or settings"),
        (r#"mod m = opencl_c("kernel void k(){}"); mod m = "b";"#, "`m` is declared twice"),
        (r#"mod m = "/nonexistent/k.cl";"#, "cannot read `/nonexistent/k.cl`"),
        (r#"mod m = "k.cl";"#, "cannot find `k.cl`"),
    ] {
        let errors = errors(modules);
        assert!(errors.iter().any(|error| error.contains(expected)), "{modules}: {errors:?}");
    }
}

#[test]
fn other_kernels_remain_if_one_cannot_be_launched() {
    let code =
        generated(r#"mod m = opencl_c("kernel void a(event_t s) {} kernel void b(int x) {}");"#);
    assert!(
        code.contains("compile_error!") && code.contains("pubfnb(") && !code.contains("pubfna("),
        "{code}"
    );
    let chosen = generated(
        r#"mod m = opencl_c("kernel void a(event_t s) {} kernel void b(int x) {}") { kernels = [b]; }"#,
    );
    assert!(!chosen.contains("compile_error!") && chosen.contains("pubfnb("), "{chosen}");
}
