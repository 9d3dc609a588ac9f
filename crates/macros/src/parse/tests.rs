//! Declarations of kernels, from plain ones to odd ones.

use super::preprocess::preprocess;
use super::read;
use crate::signature::{Element, Kernel, Passing, Shape};

fn element(element: &Element) -> String {
    match &element.shape {
        Shape::Rust(name) => (*name).to_owned(),
        Shape::Array(inner, length) => format!("[{}; {length}]", self::element(inner)),
        Shape::Image | Shape::Sampler => element.names[0].to_string(),
        Shape::Stated(_) => match element.layout {
            Some(layout) => format!("{}?{}", element.names[0], layout.size),
            None => format!("{}?", element.names[0]),
        },
    }
}

/// Returns a kernel in short: `saxpy(a: f32, x: &f32, y: &mut f32)`.
fn in_short(kernel: &Kernel) -> String {
    let parameters = kernel.parameters.iter().map(|parameter| match parameter {
        Err(why) => format!("!{why}"),
        Ok(parameter) => {
            let name = parameter.name.as_deref().unwrap_or("-");
            let passing = match parameter.passing {
                Passing::Value => "",
                Passing::ReadBuffer => "&",
                Passing::Buffer => "&mut ",
                Passing::Local => "local ",
                Passing::ReadImage => "&",
                Passing::Image => "&mut ",
            };
            format!("{name}: {passing}{}", element(&parameter.element))
        }
    });
    let parameters: Vec<_> = parameters.collect();
    format!("{}({})", kernel.name, parameters.join(", "))
}

fn kernels(text: &str) -> (Vec<Kernel>, Vec<String>) {
    let tokens = preprocess(text, &"f.cl".into(), 120, &[])
        .unwrap_or_else(|error| panic!("{text}: {error}"));
    let (kernels, problems) = read(&tokens);
    (kernels, problems.iter().map(ToString::to_string).collect())
}

/// Returns the kernels of a text in short, which has no problems.
fn read_all(text: &str) -> String {
    let (kernels, problems) = kernels(text);
    assert!(problems.is_empty(), "{text}: {problems:?}");
    let kernels: Vec<_> = kernels.iter().map(in_short).collect();
    kernels.join(" ")
}

/// Returns the parameters of the kernel `k` with these parameters, below these declarations.
fn parameters(above: &str, list: &str) -> String {
    let all = read_all(&format!("{above}\nkernel void k({list}) {{}}"));
    let inner = all.strip_prefix("k(").and_then(|all| all.strip_suffix(')'));
    inner.unwrap_or_else(|| panic!("{list}: {all}")).to_owned()
}

const SCALARS: [(&str, &str); 10] = [
    ("char", "i8"),
    ("uchar", "u8"),
    ("short", "i16"),
    ("ushort", "u16"),
    ("int", "i32"),
    ("uint", "u32"),
    ("long", "i64"),
    ("ulong", "u64"),
    ("float", "f32"),
    ("double", "f64"),
];

/// Types with their names in Rust: all scalars and vectors.
fn all_types() -> impl Iterator<Item = (String, String)> {
    SCALARS.into_iter().flat_map(|(name, rust)| {
        let vectors = [(2, 2), (3, 4), (4, 4), (8, 8), (16, 16)]
            .map(|(lanes, space)| (format!("{name}{lanes}"), format!("[{rust}; {space}]")));
        std::iter::once((name.to_owned(), rust.to_owned())).chain(vectors)
    })
}

#[test]
fn every_scalar_and_vector_is_passed_in_every_way() {
    for (name, rust) in all_types() {
        for (declaration, expected) in [
            (format!("{name} x"), format!("x: {rust}")),
            (format!("const {name} x"), format!("x: {rust}")),
            (format!("global {name} *x"), format!("x: &mut {rust}")),
            (format!("__global const {name}* restrict x"), format!("x: &{rust}")),
            (format!("constant {name} *x"), format!("x: &{rust}")),
            (format!("local {name} *x"), format!("x: local {rust}")),
            (format!("{name} __local*x"), format!("x: local {rust}")),
            (format!("global {name} x[]"), format!("x: &mut {rust}")),
            (format!("const global {name} x[16]"), format!("x: &{rust}")),
        ] {
            assert_eq!(parameters("", &declaration), expected, "{declaration}");
            let aliased = declaration.replace(&name, "real");
            assert_eq!(
                parameters(&format!("typedef {name} real;"), &aliased),
                expected,
                "{aliased}"
            );
        }
    }
}

#[test]
fn the_words_of_a_declaration_may_come_in_any_order() {
    for pointer in [
        "global const float *x",
        "global float const *x",
        "const global float *x",
        "const float global *x",
        "float global const *x",
        "float const global *x",
        "__global const volatile float * const restrict x",
        "const __global float*__restrict__ x",
        "global const float * __restrict const x",
        "__attribute__((unused)) global const float *x",
        "global __attribute__((aligned(16))) const float *x",
        "global const float *x __attribute__((nonnull))",
        "global const float * __attribute__((align_value(64))) x",
        "global const float (*x)",
        "global const float ((x))[]",
        "global const float x[restrict]",
        "global const float x[static 4]",
        "global const float x[const restrict static 2 * 4]",
        "global\nconst // the input\nfloat /* of */ *\\\nx",
        "[[maybe_unused]] global const float *x",
        "global const __extension__ float *x",
    ] {
        assert_eq!(parameters("", pointer), "x: &f32", "{pointer}");
    }
}

#[test]
fn basic_types_have_many_spellings() {
    for (spelling, expected) in [
        ("unsigned", "u32"),
        ("unsigned int", "u32"),
        ("int unsigned", "u32"),
        ("signed", "i32"),
        ("signed int", "i32"),
        ("unsigned char", "u8"),
        ("char unsigned", "u8"),
        ("signed char", "i8"),
        ("unsigned short", "u16"),
        ("unsigned short int", "u16"),
        ("short int", "i16"),
        ("short unsigned int", "u16"),
        ("long int", "i64"),
        ("unsigned long", "u64"),
        ("unsigned long int", "u64"),
        ("long unsigned int", "u64"),
        ("atomic_int", "i32"),
        ("atomic_uint", "u32"),
        ("volatile atomic_long", "i64"),
        ("_Atomic(uint)", "u32"),
        ("_Atomic int", "i32"),
    ] {
        assert_eq!(
            parameters("", &format!("global {spelling} *x")),
            format!("x: &mut {expected}"),
            "{spelling}"
        );
        let typedef = format!("typedef {spelling} t;");
        assert_eq!(
            parameters(&typedef, "global t *x"),
            format!("x: &mut {expected}"),
            "{spelling}"
        );
    }
    for spelling in ["long long", "unsigned float", "signed double", "long double"] {
        let (kernels, problems) = kernels(&format!("kernel void k({spelling} x) {{}}"));
        assert_eq!((kernels.len(), problems.len()), (0, 1), "{spelling}");
        assert!(problems[0].contains("not a type of OpenCL C"), "{problems:?}");
    }
}

#[test]
fn kernels_are_declared_in_many_ways() {
    for text in [
        "kernel void k(int x) {}",
        "__kernel void k(int x) {}",
        "void kernel k(int x) {}",
        "void __kernel k(int x) {}",
        "kernel __attribute__((reqd_work_group_size(8, 8, 1))) void k(int x) {}",
        "__attribute__((reqd_work_group_size(8, 8, 1))) kernel void k(int x) {}",
        "__attribute__((vec_type_hint(float4))) __attribute__((work_group_size_hint(1, 1, 1)))\n\
         kernel void k(int x) {}",
        "kernel void __attribute__((noinline)) k(int x) {}",
        "kernel void k(int x) __attribute__((annotate(\"a;{\"))) {}",
        "kernel [[clang::intel_reqd_sub_group_size(8)]] void k(int x) {}",
        "[[a, b(1)]] kernel void k(int x) {}",
        "extern kernel void k(int x) {}",
        "kernel inline static void k(int x) {}",
        "kernel void (k)(int x) {}",
        "kernel\nvoid\nk\n(\nint\nx\n)\n{\n}",
        "ker\\\nnel void k(int x) {}",
        "kernel void k(int x);\nkernel void k(int x) { return; }",
        "kernel void k(int x) { if (x) { int y[2] = { 1, 2 }; } }",
        "kernel void k(int x) { /* } */ const char *s = \"}\"; char c = '}'; }",
        "#define KERNEL kernel void\nKERNEL k(int x) {}",
        "#if 0\nkernel void k(float x) {}\n#else\nkernel void k(int x) {}\n#endif",
        "#define MAKE(name, T) kernel void name(T x) {}\nMAKE(k, int)",
        ";;kernel void k(int x) {};",
        "float f(float x) { return x; } kernel void k(int x) {}",
        "float f(float x);\nkernel void k(int x) {}",
        "constant float t[] = { 1, 2, 3 }, u = 2; kernel void k(int x) {}",
        "constant struct { int a; } t[2] = { { 1 }, { 2 } }; kernel void k(int x) {}",
        "struct S { int kernel_like; } s; kernel void k(int x) {}",
        "_Static_assert(sizeof(int) == 4, \"kernel\"); kernel void k(int x) {}",
        "static inline float4 f(float4 x, local int *y) { return x; } kernel void k(int x) {}",
        "typedef int (*callback)(int, float); kernel void k(int x) {}",
        "enum { A, B = 4, C }; kernel void k(int x) {}",
        "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\nkernel void k(int x) {}",
        "int x = ({ 1; }); kernel void k(int x) {}",
        "__attribute__((overloadable)) float f(float x) { return x; } kernel void k(int x) {}",
        "\u{feff}kernel void k(int x) {}",
        "kernel void k(int x) {}\r\n",
    ] {
        let (kernels, _) = kernels(text);
        assert_eq!(kernels.iter().map(in_short).collect::<Vec<_>>(), ["k(x: i32)"], "{text}");
    }
    assert_eq!(
        read_all("kernel void a() {} kernel void b(void) {} void c(int kernel_) {}"),
        "a() b()"
    );
    assert_eq!(read_all("kernel void k(int);"), "");
    assert_eq!(read_all("kernel void k(int, global float *) {}"), "k(-: i32, -: &mut f32)");
}

#[test]
fn names_of_typedefs_are_resolved() {
    let above = "typedef float real, *unused, row[4];\n\
                 typedef real real_t; typedef const real_t fixed; typedef global fixed *input;\n\
                 typedef __local int *scratch; typedef struct { real x; } point;\n\
                 typedef uint color __attribute__((ext_vector_type(4)));\n\
                 typedef global float *out, *out2; typedef row grid[2];";
    for (list, expected) in [
        ("real_t x", "x: f32"),
        ("global real *x", "x: &mut f32"),
        ("global fixed *x", "x: &f32"),
        ("input x", "x: &f32"),
        ("const input x", "x: &f32"),
        ("scratch x", "x: local i32"),
        ("color x, global color *y", "x: [u32; 4], y: &mut [u32; 4]"),
        ("out x, out2 y", "x: &mut f32, y: &mut f32"),
        ("global row *x", "x: &mut [f32; 4]"),
        ("global grid *x", "x: &mut [[f32; 4]; 2]"),
        ("global const row *x", "x: &[f32; 4]"),
        ("global row x", "x: &mut f32"),
        ("global float x[][4]", "x: &mut [f32; 4]"),
        ("global const float (*x)[2 + 2]", "x: &[f32; 4]"),
        ("constant point *x", "x: &point?4"),
    ] {
        assert_eq!(parameters(above, list), expected, "{list}");
    }
    assert_eq!(
        parameters("enum { N = 3, M }; typedef float r[M];", "global r *x"),
        "x: &mut [f32; 4]"
    );
}

#[test]
fn images_are_read_unless_their_access_says_otherwise() {
    for kind in [
        "image1d_t",
        "image1d_array_t",
        "image1d_buffer_t",
        "image2d_t",
        "image2d_array_t",
        "image3d_t",
    ] {
        for (declaration, expected) in [
            (format!("{kind} x"), format!("x: &{kind}")),
            (format!("const {kind} x"), format!("x: &{kind}")),
            (format!("read_only {kind} x"), format!("x: &{kind}")),
            (format!("__read_only {kind} x"), format!("x: &{kind}")),
            (format!("{kind} read_only x"), format!("x: &{kind}")),
            (format!("write_only {kind} x"), format!("x: &mut {kind}")),
            (format!("__write_only {kind} x"), format!("x: &mut {kind}")),
            (format!("read_write {kind} x"), format!("x: &mut {kind}")),
            (format!("__read_write {kind} x"), format!("x: &mut {kind}")),
            (format!("write_only {kind}"), format!("-: &mut {kind}")),
        ] {
            assert_eq!(parameters("", &declaration), expected, "{declaration}");
            let typedef = format!("typedef {kind} picture;");
            let aliased = declaration.replace(kind, "picture");
            assert_eq!(parameters(&typedef, &aliased), expected, "{aliased}");
        }
    }
    let typedefs = "typedef write_only image2d_t output; typedef sampler_t lookup;";
    assert_eq!(
        parameters(typedefs, "output x, sampler_t a, const lookup b, float c"),
        "x: &mut image2d_t, a: sampler_t, b: sampler_t, c: f32"
    );
}

#[test]
fn structures_have_the_layout_of_c() {
    for (declaration, size) in [
        ("struct s { float x, y; }", "8"),
        ("struct s { char c; double d; }", "16"),
        ("struct s { float4 p; float m; }", "32"),
        ("struct s { float3 p; float m; }", "32"),
        ("struct s { char a[3]; short b; }", "6"),
        ("struct __attribute__((packed)) s { char c; double d; }", "9"),
        ("struct s { char c; double d; } __attribute__((packed))", "9"),
        ("struct s { int a; } __attribute__((aligned(16)))", "16"),
        ("union s { int a; float4 b; }", "16"),
        ("struct s { struct { int a; char b; } i; char c; }", "12"),
        ("struct s { struct { int a; char b; }; char c; }", "12"),
        ("enum { N = 5 }; struct s { int a[N * 2][2]; }", "80"),
        ("struct t { long a; }; struct s { struct t t[3]; int b; }", "32"),
        ("struct s { half h; uchar3 c; }", "8"),
        ("struct s { enum e { A } e; char c; }", "8"),
        ("typedef struct s { int a; } s", "4"),
        ("enum e { A = -5, B = 0x7fffffff }; struct s { enum e e; }", "4"),
        ("enum e { A = 0xffffffff }; struct s { enum e e; }", ""),
        ("enum e { A = 1l << 40 }; struct s { enum e e; }", ""),
        ("enum e { A = UNKNOWN }; struct s { enum e e; }", ""),
        ("enum __attribute__((packed)) e { A }; struct s { enum e e; }", ""),
        ("enum e { A } __attribute__((packed)); struct s { enum e e; }", ""),
        ("enum e : uchar { A }; struct s { enum e e; }", ""),
        ("struct s { enum later e; }", ""),
        (
            "struct q { int a; }; typedef struct q t __attribute__((aligned(16))); struct s { t t; }",
            "16",
        ),
        ("enum { N = -1 < 0u ? 3 : 5 }; struct s { int a[N]; }", "20"),
        ("enum { N = 0xffffffff + 3 }; struct s { int a[N]; }", "8"),
        ("struct s { int a : 3; int b; }", ""),
        ("struct s { int : 0; int b; }", ""),
        ("struct s { size_t n; }", ""),
        ("struct s { unknown n; }", ""),
        ("struct s { int a __attribute__((aligned(8))); }", ""),
        ("struct s { int a[UNKNOWN]; }", ""),
        ("struct s", ""),
    ] {
        let keyword = if declaration.contains("union s") { "union" } else { "struct" };
        let list = format!("{keyword} s x, constant {keyword} s *y");
        let expected = format!("x: s?{size}, y: &s?{size}");
        assert_eq!(parameters(&format!("{declaration};"), &list), expected, "{declaration}");
    }
}

#[test]
fn parameters_that_launches_cannot_pass_say_what_to_do() {
    let above = "typedef float (*function)(int); typedef struct { global int *p; } linked;\n\
                 typedef event_t my_event;";
    for (list, expected) in [
        ("read_only image2d_depth_t x", "because Kiln has no such images; declare another kind"),
        ("image2d_array_msaa_t x", "`image2d_array_msaa_t` is not a valid argument"),
        ("global image2d_t *x", "`image2d_t` is not a valid element of a buffer"),
        ("image2d_t x[2]", "`image2d_t` is not a valid element of a buffer"),
        ("constant sampler_t *x", "`sampler_t` is not a valid element of a buffer"),
        ("size_t x", "its size depends on the device; declare `ulong`"),
        ("global ptrdiff_t *x", "declare `long`"),
        ("global atomic_size_t *x", "declare `ulong`"),
        ("uintptr_t x", "declare `ulong`"),
        ("bool x", "declare `uchar` or `int`"),
        ("global bool *x", "declare `uchar` or `int`"),
        ("_Bool x", "declare `uchar` or `int`"),
        ("global float **x", "pointer to pointers"),
        ("global float *global *x", "pointer to pointers"),
        ("global float *x[]", "pointer to pointers"),
        ("float *x", "address spaces"),
        ("private float *x", "address spaces"),
        ("generic float *x", "address spaces"),
        ("float x[4]", "address spaces"),
        ("float *global x", "address spaces"),
        ("function x", "pointer to a function"),
        ("global function *x", "pointer to pointers"),
        ("linked x", "contains pointers"),
        ("my_event x", "`event_t` is not a valid argument"),
        ("queue_t x", "`queue_t` is not"),
        ("read_only pipe int x", "`pipe` is not"),
        ("struct { int a; } x", "without a name"),
        ("void x", "`void` is not a value"),
        ("global float (*x)[]", "length of the array"),
    ] {
        let found = parameters(above, list);
        assert!(found.starts_with("!f.cl:3: parameter `"), "{list}: {found}");
        assert!(found.contains(list) && found.contains(expected), "{list}: {found}");
    }
    for (list, expected) in [
        ("half x", "x: half?2"),
        ("half4 x, global half *y", "x: [half?2; 4], y: &mut half?2"),
        ("enum mode x", "x: mode?"),
        ("unknown x", "x: unknown?"),
        ("global unknown *x", "x: &mut unknown?"),
        ("global void *x, constant void *y", "x: &mut u8, y: &u8"),
        ("global linked *x", "x: &mut linked?"),
    ] {
        assert_eq!(parameters(above, list), expected, "{list}");
    }
}

#[test]
fn kernels_that_cannot_be_read_are_reported_with_their_line() {
    for (text, expected) in [
        ("\nkernel void k(int x, ...) {}", "f.cl:2: kernels do not take `...`"),
        ("kernel void k(int x) {", "f.cl:1: the body of this function does not end"),
        ("kernel void k(int x {}", "f.cl:1: expected `)` at the end of the parameters, found `{`"),
        ("kernel void k(+) {}", "f.cl:1: expected a type"),
        ("garbage ( [ { ) ] } kernel void k(int x) {}", "f.cl:1: expected"),
        ("kernel int x = 4 {}", "f.cl:1: expected `;`"),
        ("kernel void k(struct { struct { int a } b; } x) {}", "f.cl:1: expected `;`"),
    ] {
        let (kernels, problems) = kernels(text);
        assert!(kernels.is_empty(), "{text}");
        assert!(
            problems.iter().any(|problem| problem.starts_with(expected)),
            "{text}: {problems:?}"
        );
    }
    let deep = format!("kernel void k({}int x{}) {{}}", "struct { ".repeat(500), "; }".repeat(500));
    assert!(kernels(&deep).1[0].contains("nested too deeply"));
    let deep = format!("kernel void k(int {}x{}) {{}}", "(".repeat(5000), ")".repeat(5000));
    assert!(kernels(&deep).1[0].contains("nested too deeply"));
    let deep = format!("kernel void k({}int x) {{}}", "_Atomic(".repeat(5000));
    assert!(kernels(&deep).1[0].contains("nested too deeply"));
}

#[test]
fn the_comment_above_a_kernel_documents_it() {
    let comment = |text: &str| kernels(text).0.pop().expect("there is a kernel").comment;
    for (text, expected) in [
        ("/// One\n// two\nkernel void k() {}", vec!["One", "two"]),
        ("/* One\n * two\n *   three\n */\nkernel void k() {}", vec!["One", "two", "  three"]),
        ("/** One. */ kernel void k() {}", vec!["One."]),
        ("/*** One. ***/\nkernel void k() {}", vec!["One."]),
        ("// licence\n\n// One\nkernel void k() {}", vec!["One"]),
        ("// One\n\nkernel void k() {}", vec![]),
        ("int x; // about x\nkernel void k() {}", vec![]),
        ("int x; // about x\n// One\nkernel void k() {}", vec!["One"]),
        ("//\n// One\n//\n// two\n//\nkernel void k() {}", vec!["One", "", "two"]),
        ("// One\n__attribute__((noinline))\nkernel void k() {}", vec!["One"]),
        ("#define M kernel void k() {}\n// One\nM", vec!["One"]),
        ("kernel void k(/* not this */) {}", vec![]),
    ] {
        assert_eq!(comment(text), expected, "{text}");
    }
}

#[test]
fn the_declaration_is_kept_for_documentation() {
    let (kernels, _) = kernels("kernel  void k(int x , // n\n  global float*y)\n{}");
    assert_eq!(kernels[0].declaration, "kernel void k(int x , global float*y)");
    assert_eq!(kernels[0].place.as_ref().map(ToString::to_string).as_deref(), Some("f.cl:1"));
}
