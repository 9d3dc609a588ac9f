//! Imports whose types differ from those of the exports: on every device, they are refused before a driver
//! links them, with both types, both modules and the symbol.

use kiln::devices::ModuleFormat;
use kiln::{Error, ErrorKind, Module, Program, Result, Runtime};
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv::{
    AddressingModel, Capability, Decoration, FunctionControl, LinkageType, MemoryModel,
    StorageClass, Word,
};
use support::everywhere;
use support::libraries::{expect, register};
use support::tools;

/// Creates a runtime that has only the libraries of one test.
async fn fresh(like: &Runtime) -> Runtime {
    let device = like.device().index().to_string();
    support::builder().device(device).link_objects(true).build().await.expect("it starts")
}

/// Returns an application that declares a symbol, and uses it to compute results for 1, 2, 3.
fn application(declaration: &str, value: &str) -> Module {
    let text = format!(
        "{declaration}
         kernel void apply(global float *x) {{
             size_t i = get_global_id(0);
             float v = x[i];
             x[i] = {value};
         }}"
    );
    Module::opencl_c(text).importing(["tone"])
}

fn library(definition: &str) -> Module {
    Module::opencl_c(definition).exporting(["tone"])
}

async fn link(rt: &Runtime, library: &Module, application: &Module) -> Result<Program> {
    let rt = fresh(rt).await;
    register(&rt, &[library]);
    rt.build(application).await
}

#[track_caller]
fn assert_names(error: &Error, modules: [&Module; 2], types: [&str; 2]) {
    assert_eq!(error.kind(), ErrorKind::BuildFailed, "{error}");
    let text = error.to_string();
    let digests = modules.map(|module| format!("{:.8}", module.digest()));
    for part in digests.iter().map(String::as_str).chain(types).chain(["`tone`"]) {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// Whether the device takes texts whose types are known, since clang translates them.
async fn takes_text(rt: &Runtime) -> bool {
    rt.device().formats.contains(&ModuleFormat::OpenClC) && tools::has_clang()
}

everywhere! {
    async fn opencl_c_imports_with_mismatched_types_are_rejected(rt: Runtime) {
        if !takes_text(&rt).await {
            return;
        }
        let three = "float tone(float x, float y, float z) { return x + y + z; }";
        for (declaration, value, definition, types) in [
            ("float tone(float x);", "tone(v)", three, ["float(float)", "float(float, float, float)"]),
            (
                "float tone(float x);",
                "tone(v)",
                "typedef float real;\n#define NAME tone\nint NAME(real x) { return (int)x; }",
                ["float(float)", "uint(float)"],
            ),
            (
                "float tone(float2 x);",
                "tone((float2)(v))",
                "float tone(float4 x) { return x.w; }",
                ["float(float2)", "float(float4)"],
            ),
            (
                "float tone(global float *x);",
                "tone(x)",
                "float tone(constant float *x) { return x[0]; }",
                ["global float*", "constant float*"],
            ),
            (
                "float tone(long x);",
                "tone(i)",
                "float tone(int x) { return x; }",
                ["float(ulong)", "float(uint)"],
            ),
            (
                "typedef struct { float a; } P; float tone(P p);",
                "tone((P){v})",
                "typedef struct { float a, b; } P; float tone(P p) { return p.b; }",
                ["float(", "by value"],
            ),
        ] {
            let (library, application) = (library(definition), application(declaration, value));
            let error = link(&rt, &library, &application).await.expect_err(definition);
            assert_names(&error, [&application, &library], types);
        }
    }
}

everywhere! {
    async fn untrusted_libraries_with_mismatched_types_are_rejected(rt: Runtime) {
        if !takes_text(&rt).await {
            return;
        }
        let library = library("float tone(float x, float y) { return x + y; }").untrusted();
        let application = application("float tone(float x);", "tone(v)");
        let error = link(&rt, &library, &application).await.expect_err("a parameter is missing");
        assert_names(&error, [&application, &library], ["float(float)", "float(float, float)"]);
    }
}

everywhere! {
    async fn types_that_differ_only_in_signedness_are_linked(rt: Runtime) {
        if !takes_text(&rt).await {
            return;
        }
        let library = library("float tone(uint x) { return x * 2.0f; }");
        let application = application("float tone(int n);", "tone((int)v)");
        let rt = fresh(&rt).await;
        register(&rt, &[&library]);
        let program = rt.build(&application).await.expect("only signs differ");
        expect(&rt, &program, "apply", [2.0, 4.0, 6.0]).await;
    }
}

/// A type of a function's parameter or result.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Type {
    Float,
    Int(u32),
    Vector(u32),
    Pointer(StorageClass),
}

use Type::{Float, Int, Pointer, Vector};

fn declare(b: &mut Builder, ty: Type) -> Word {
    let float = b.type_float(32, None);
    match ty {
        Float => float,
        Int(width) => b.type_int(width, 0),
        Vector(count) => b.type_vector(float, count),
        Pointer(class) => b.type_pointer(None, class, float),
    }
}

/// Returns a module that imports or exports `tone`, and has a kernel that does nothing.
fn module(linkage: LinkageType, returned: Type, parameters: &[Type]) -> Module {
    let mut b = Builder::new();
    b.set_version(1, 2);
    for capability in
        [Capability::Addresses, Capability::Kernel, Capability::Int64, Capability::Linkage]
    {
        b.capability(capability);
    }
    b.capability(Capability::Vector16);
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    let returned = declare(&mut b, returned);
    let parameters: Vec<_> = parameters.iter().map(|ty| declare(&mut b, *ty)).collect();
    let ty = b.type_function(returned, parameters.iter().copied());
    let result = b.undef(returned, None);
    let tone = b.begin_function(returned, None, FunctionControl::NONE, ty).expect("none is open");
    for parameter in parameters {
        b.function_parameter(parameter).expect("a function is open");
    }
    if linkage == LinkageType::Export {
        b.begin_block(None).expect("a function is open");
        b.ret_value(result).expect("a block is open");
    }
    b.end_function().expect("it was begun");
    let operands = [Operand::LiteralString("tone".to_owned()), Operand::LinkageType(linkage)];
    b.decorate(tone, Decoration::LinkageAttributes, operands);
    let words = b.module().assemble();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Module::spirv(bytes).expect("it is a module")
}

everywhere! {
    async fn spirv_imports_with_mismatched_types_are_rejected(rt: Runtime) {
        let global = Pointer(StorageClass::CrossWorkgroup);
        for (import, export, types) in [
            ((Float, &[Float][..]), (Float, &[Float; 3][..]), ["float(float)", "float(float, float, float)"]),
            ((Float, &[Float]), (Int(32), &[Float]), ["float(float)", "uint(float)"]),
            ((Float, &[Vector(2)]), (Float, &[Vector(4)]), ["float2", "float4"]),
            ((Float, &[Int(64)]), (Float, &[Int(32)]), ["ulong", "uint"]),
            (
                (Float, &[global]),
                (Float, &[Pointer(StorageClass::Workgroup)]),
                ["global float*", "local float*"],
            ),
            ((Float, &[global]), (Float, &[Int(64)]), ["global float*", "ulong"]),
        ] {
            let application = module(LinkageType::Import, import.0, import.1);
            let library = module(LinkageType::Export, export.0, export.1);
            let error = link(&rt, &library, &application).await.expect_err("they do not fit");
            assert_names(&error, [&application, &library], types);
        }
    }
}
