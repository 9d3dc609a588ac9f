use super::*;

fn with(definitions: &[&str], text: &str) -> Result<String> {
    let definitions: Vec<_> = definitions.iter().map(|it| ((*it).to_owned(), true)).collect();
    let tokens = preprocess(text, &"f.cl".into(), 120, &definitions)?;
    let texts: Vec<_> = tokens.iter().map(|token| token.text.to_string()).collect();
    Ok(texts.join(" "))
}

fn output(text: &str) -> String {
    with(&[], text).unwrap_or_else(|error| panic!("{error}"))
}

fn problem(text: &str) -> String {
    with(&[], text).expect_err("it is not valid").to_string()
}

#[test]
fn macros_are_expanded() {
    for (text, expected) in [
        ("#define N 4\nN M", "4 M"),
        ("#define ADD(a, b) a + b\nADD(1, (2, 3)) ADD", "1 + ( 2 , 3 ) ADD"),
        ("#define NAME(t) add_##t\nNAME(float) (x)", "add_float ( x )"),
        ("#define A(x) B(x)\n#define B(x) <x>\nA(A(1))", "< < 1 > >"),
        ("#define X X + Y\n#define Y X\nX", "X + X"),
        ("#define F(x) x(x)\nF(F)", "F ( F )"),
        ("#define S(x) #x\nS(a  b \"c\")", r#""a b \"c\"""#),
        ("#define V(f, ...) f(__VA_ARGS__)\nV(g, 1, 2) V(g)", "g ( 1 , 2 ) g ( )"),
        ("#define V(f, args...) f(0, ##args)\nV(g, 1, 2) V(g)", "g ( 0 , 1 , 2 ) g ( 0 )"),
        ("#define E\n#define P(a, b) [a ## b]\nP(, x) P(x, ) P(,) E", "[ x ] [ x ] [ ]"),
        ("#define T(x) x\n#define U(x) T(x)T(x)\nU(U(1))", "1 1 1 1"),
        ("#define F() 5\nF() F( 1 )", "5 F ( 1 )"),
        ("#define F(x) <x>\nF\n(\n1\n)", "< 1 >"),
        ("#define N 1\n#undef N\nN", "N"),
        ("#define N 1\n#define N 2\nN", "2"),
        ("#define LONG a \\\n b\nLONG", "a b"),
        ("#define C /* c */ 1 // d\nC", "1"),
        ("#define OPEN (\n#define F(x) x\nF OPEN 1)", "F ( 1 )"),
        ("__LINE__\n__LINE__ __FILE__", "1 2 \"f.cl\""),
        (
            "#define K(T) kernel void f_##T(global T *x)\nK(int) {}",
            "kernel void f_int ( global int * x ) { }",
        ),
        ("NULL __OPENCL_VERSION__", "0 120"),
    ] {
        assert_eq!(output(text), expected, "{text}");
    }
}

#[test]
fn conditions_choose_lines() {
    for (text, expected) in [
        ("#if 1\na\n#else\nb\n#endif\nc", "a c"),
        ("#if 0\na\n#elif 1\nb\n#elif 1\nc\n#else\nd\n#endif", "b"),
        ("#ifdef N\na\n#endif\n#ifndef N\nb\n#endif", "b"),
        ("#define N\n#ifdef N\na\n#elifdef M\nb\n#endif", "a"),
        ("#ifdef N\na\n#elifndef M\nb\n#endif", "b"),
        ("#if defined(N) || !defined M && N == 0\na\n#endif", "a"),
        ("#define N 3\n#define SQ(x) (x * x)\n#if SQ(N) > 8 && N\na\n#endif", "a"),
        ("#if 0\n#if 1\na\n#else\nb\n#endif\n#error no\n#include \"x\"\n#endif\nc", "c"),
        (
            "#if N && 1 / N\na\n#endif\n#if 1 || 1 / N\nb\n#endif\n#if N ? 1 / N : 2\nc\n#endif",
            "b c",
        ),
        ("#if 0\ndon't\n#endif", ""),
        ("  #  if 1\n a\n # endif", "a"),
        ("#if __ENDIAN_LITTLE__ && __OPENCL_VERSION__ >= CL_VERSION_1_2\na\n#endif", "a"),
        ("#if 1 // c\na\n#endif /* d */", "a"),
        ("#if 1 /* c\n */ - 1\na\n#endif", ""),
        ("#if 0\n#elif 0\n#else\na\n#endif", "a"),
    ] {
        assert_eq!(output(text), expected, "{text}");
    }
}

#[test]
fn conditions_by_macros_that_only_compilers_know_are_refused() {
    for (name, condition) in [
        ("__SIZEOF_POINTER__", "#if __SIZEOF_POINTER__ == 8"),
        ("__x86_64__", "#ifdef __x86_64__"),
        ("__SPIRV__", "#ifndef __SPIRV__"),
        ("__FAST_RELAXED_MATH__", "#if !defined(__FAST_RELAXED_MATH__)"),
        ("__has_attribute", "#if defined __has_attribute && __has_attribute(packed)"),
        ("__has_include", "#if __has_include(\"x.h\") + 1"),
        ("__has_builtin", "#if 1 && __has_builtin(__builtin_popcount)"),
        ("cl_intel_subgroups", "#if 0\n#elifdef cl_intel_subgroups"),
        ("_M_X64", "#if 0\n#elif _M_X64"),
        ("INT_MAX", "#if INT_MAX > 40000"),
        ("M_PI", "#if defined(M_PI) || N"),
        ("FP_FAST_FMA", "#if 1\n#ifdef FP_FAST_FMA"),
    ] {
        for code in [
            "a",
            "#else\na",
            "#define N 1",
            "#undef N",
            "#pragma pack(1)",
            "#if N\n#else\na\n#endif",
        ] {
            let ends = "\n#endif".repeat(if condition.starts_with("#if 1\n") { 2 } else { 1 });
            let text = format!("{condition}\n{code}{ends}");
            let problem = problem(&text);
            let expected = format!("only the compiler of a device knows the macro `{name}`");
            assert!(problem.contains(&expected), "{text}: {problem}");
            assert!(problem.starts_with("f.cl:"), "{text}: {problem}");
        }
    }
}

#[test]
fn conditions_may_name_macros_that_only_compilers_know() {
    for (text, expected) in [
        // Nothing depends on the condition.
        (
            "#ifdef cl_khr_subgroups\n#pragma OPENCL EXTENSION cl_khr_subgroups : enable\n// c\n#endif\na",
            "a",
        ),
        ("#ifndef cl_khr_subgroups\n#error \"no subgroups\"\n#endif\na", "a"),
        // Another part of the condition decides.
        ("#if 1 || __x86_64__\na\n#endif", "a"),
        ("#if defined(N) && __has_builtin(f)\na\n#else\nb\n#endif", "b"),
        ("#if 0\n#ifdef __x86_64__\na\n#endif\n#if __BYTE_ORDER__ ==\n#endif\n#endif\nb", "b"),
        ("#if 1\na\n#elif __x86_64__\nb\n#endif", "a"),
        // The text owns the name.
        ("#ifndef __A_H__\n#define __A_H__\na\n#endif\n#ifndef __A_H__\nb\n#endif", "a"),
        ("#if !defined(_A_H)\n#define _A_H\na\n#endif", "a"),
        ("#undef __N\n#ifdef __N\na\n#endif", ""),
        // No compiler for OpenCL C defines the macro.
        (
            "#ifdef __cplusplus\na\n#elif defined(__CUDACC__) || __GNUC__ > 4\nb\n#else\nc\n#endif",
            "c",
        ),
    ] {
        assert_eq!(output(text), expected, "{text}");
    }
    assert_eq!(with(&["__N=2"], "#if __N > 1\na\n#endif").expect("valid"), "a");
    let removed = [("__N".to_owned(), false)];
    let tokens = preprocess("#ifdef __N\na\n#endif", &"f.cl".into(), 120, &removed).expect("valid");
    assert!(tokens.is_empty(), "{tokens:?}");
}

#[test]
fn options_define_macros() {
    assert_eq!(with(&["N=4", "M", "F(x)=<x>", "E="], "N M F(1) E;").expect("valid"), "4 1 < 1 > ;");
    let removed = [("N".to_owned(), true), ("N".to_owned(), false)];
    let tokens = preprocess("N", &"f.cl".into(), 120, &removed).expect("valid");
    assert_eq!(&*tokens[0].text, "N");
}

#[test]
fn other_directives_have_no_effect() {
    assert_eq!(
        output("#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#\n#warning x\n#foo\na"),
        "a"
    );
    assert_eq!(output("a # b\n"), "a # b");
}

#[test]
fn line_markers_state_files_and_lines() {
    let text = "a\n#line 10 \"b.h\"\nb\n\nc\n# 3 \"f.cl\" 2\nd\n#line 7\ne";
    let tokens = preprocess(text, &"f.cl".into(), 120, &[]).expect("valid");
    let places: Vec<_> = tokens.iter().map(|token| token.place().to_string()).collect();
    assert_eq!(places, ["f.cl:1", "b.h:10", "b.h:12", "f.cl:3", "f.cl:7"]);
    let followed = follow_line_markers(text, &"f.cl".into()).expect("valid");
    assert_eq!(followed.len(), 5);
}

#[test]
fn problems_have_their_line() {
    for (text, expected) in [
        ("\n#if 1\n", "f.cl:2: `#endif` is missing"),
        ("#endif", "f.cl:1: `#endif` without"),
        ("a\n#else", "f.cl:2: `#else` without"),
        ("#include \"x.h\"", "f.cl:1: includes \"x.h\", which is not found"),
        ("#include <a/x.h>", "f.cl:1: includes <a/x.h>, which is not found"),
        ("#error one two", "f.cl:1: `#error one two`"),
        ("#if 1 +\n#endif", "f.cl:1: the condition `1 +` cannot be evaluated"),
        ("#define 1", "f.cl:1: this `#define` cannot be read"),
        ("#define F(x\n", "f.cl:1: this `#define` cannot be read"),
        ("#line 5 \"g.cl\"\n#error x", "g.cl:5: `#error x`"),
    ] {
        let problem = problem(text);
        assert!(problem.starts_with(expected), "{text}: {problem}");
    }
}

#[test]
fn expansions_that_explode_are_refused() {
    let mut text = "#define A0 x x x x x x x x\n".to_owned();
    for level in 1..20 {
        let inner = format!("A{} ", level - 1).repeat(8);
        text.push_str(&format!("#define A{level} {inner}\n"));
    }
    text.push_str("A19");
    assert!(problem(&text).contains("expand to too much"));
    let nested = format!("#define F(x) x\n{}1{}", "F(".repeat(10_000), ")".repeat(10_000));
    assert!(problem(&nested).contains("expand to too much"));
    let open = format!("#define F(x) x\n{}", "F( ".repeat(10_000));
    assert!(problem(&open).contains("expand to too much"));
}
