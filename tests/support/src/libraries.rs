//! Device libraries and applications for tests, in both formats that can be linked, generated from one
//! description.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use kiln::devices::ModuleFormat;
use kiln::{Module, Program, Runtime};
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionModel, FunctionControl, LinkageType,
    MemoryModel, StorageClass, Word,
};

/// The function `float name(float x)`, which returns `factor * inner(x) + term`, or `factor * x + term` without
/// `inner`.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    pub name: &'a str,
    pub factor: f32,
    pub inner: Option<&'a str>,
    pub term: f32,
    /// Id of the specialization constant that holds the term; in SPIR-V only.
    pub term_id: Option<u32>,
    /// Whether other modules may define the function as well; in SPIR-V only.
    pub mergeable: bool,
}

pub const fn function(name: &str) -> Function<'_> {
    Function { name, factor: 1.0, inner: None, term: 0.0, term_id: None, mergeable: false }
}

impl<'a> Function<'a> {
    pub const fn times(mut self, factor: f32) -> Self {
        self.factor = factor;
        self
    }

    pub const fn of(mut self, inner: &'a str) -> Self {
        self.inner = Some(inner);
        self
    }

    pub const fn plus(mut self, term: f32) -> Self {
        self.term = term;
        self
    }

    pub const fn mergeable(mut self) -> Self {
        self.mergeable = true;
        self
    }

    pub const fn plus_constant(mut self, id: u32, term: f32) -> Self {
        (self.term_id, self.term) = (Some(id), term);
        self
    }
}

/// Returns a module that exports functions and has kernels. Each kernel replaces each `x[i]` by the sum of the
/// results of its functions. Functions that are called but not defined are imported.
pub fn module(
    format: ModuleFormat,
    functions: &[Function<'_>],
    kernels: &[(&str, &[&str])],
) -> Module {
    module_that_imports(format, functions, kernels, &[])
}

/// Like [`module`], with further imports, which may include functions that it defines.
pub fn module_that_imports(
    format: ModuleFormat,
    functions: &[Function<'_>],
    kernels: &[(&str, &[&str])],
    more: &[&str],
) -> Module {
    let called = functions.iter().filter_map(|function| function.inner);
    let called = called.chain(kernels.iter().flat_map(|(_, calls)| calls.iter().copied()));
    let mut imports: Vec<_> =
        called.filter(|name| functions.iter().all(|known| known.name != *name)).collect();
    imports.extend_from_slice(more);
    imports.sort_unstable();
    imports.dedup();
    match format {
        ModuleFormat::SpirV => spirv_module(functions, kernels, &imports),
        _ => Module::opencl_c(text(functions, kernels, &imports))
            .exporting(functions.iter().map(|function| function.name))
            .importing(imports),
    }
}

fn text(functions: &[Function<'_>], kernels: &[(&str, &[&str])], imports: &[&str]) -> String {
    let mut text = String::new();
    for name in functions.iter().map(|function| function.name).chain(imports.iter().copied()) {
        let _ = writeln!(text, "float {name}(float x);");
    }
    for Function { name, factor, inner, term, .. } in functions {
        let inner = inner.map_or_else(|| "x".to_owned(), |inner| format!("{inner}(x)"));
        let _ =
            writeln!(text, "float {name}(float x) {{ return {factor:?}f * {inner} + {term:?}f; }}");
    }
    for (name, calls) in kernels {
        let calls: Vec<_> = calls.iter().map(|call| format!("{call}(v)")).collect();
        let _ = writeln!(
            text,
            "kernel void {name}(global float *x) {{
                 size_t i = get_global_id(0);
                 float v = x[i];
                 x[i] = {};
             }}",
            calls.join(" + ")
        );
    }
    text
}

fn spirv_module(
    functions: &[Function<'_>],
    kernels: &[(&str, &[&str])],
    imports: &[&str],
) -> Module {
    let mut b = Builder::new();
    b.set_version(1, 2);
    for capability in
        [Capability::Addresses, Capability::Kernel, Capability::Int64, Capability::Linkage]
    {
        b.capability(capability);
    }
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    let float = b.type_float(32, None);
    let of_float = b.type_function(float, [float]);

    let defined: BTreeMap<&str, Word> =
        functions.iter().map(|function| (function.name, b.id())).collect();
    let mut ids = defined.clone();
    for name in imports {
        let id = b.begin_function(float, None, FunctionControl::NONE, of_float);
        let id = id.expect("none is open");
        b.function_parameter(float).expect("a function is open");
        b.end_function().expect("it was begun");
        share(&mut b, id, name, LinkageType::Import);
        ids.insert(name, id);
    }
    if functions.iter().any(|function| function.mergeable) {
        b.extension("SPV_KHR_linkonce_odr");
    }
    for Function { name, factor, inner, term, term_id, mergeable } in functions {
        let factor = b.constant_bit32(float, factor.to_bits());
        let term = match term_id {
            None => b.constant_bit32(float, term.to_bits()),
            Some(id) => {
                let term = b.spec_constant_bit32(float, term.to_bits());
                b.decorate(term, Decoration::SpecId, [Operand::LiteralBit32(*id)]);
                term
            }
        };
        let id = defined[name];
        b.begin_function(float, Some(id), FunctionControl::NONE, of_float).expect("none is open");
        let mut value = b.function_parameter(float).expect("a function is open");
        b.begin_block(None).expect("a function is open");
        if let Some(inner) = inner {
            value = b.function_call(float, None, ids[inner], [value]).expect("a block is open");
        }
        let value = b.f_mul(float, None, factor, value).expect("a block is open");
        let value = b.f_add(float, None, value, term).expect("a block is open");
        b.ret_value(value).expect("a block is open");
        b.end_function().expect("it was begun");
        let linkage = if *mergeable { LinkageType::LinkOnceODR } else { LinkageType::Export };
        share(&mut b, id, name, linkage);
    }
    for (name, calls) in kernels {
        kernel(&mut b, float, name, calls, &ids);
    }
    let words = b.module().assemble();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Module::spirv(bytes).expect("it is a module")
}

fn share(b: &mut Builder, id: Word, name: &str, linkage: LinkageType) {
    let operands = [Operand::LiteralString(name.to_owned()), Operand::LinkageType(linkage)];
    b.decorate(id, Decoration::LinkageAttributes, operands);
}

fn kernel(b: &mut Builder, float: Word, name: &str, calls: &[&str], ids: &BTreeMap<&str, Word>) {
    let void = b.type_void();
    let long = b.type_int(64, 0);
    let vector = b.type_vector(long, 3);
    let input = b.type_pointer(None, StorageClass::Input, vector);
    let global = b.type_pointer(None, StorageClass::CrossWorkgroup, float);
    let of_pointer = b.type_function(void, [global]);
    let work_item = b.variable(input, None, StorageClass::Input, None);
    b.decorate(work_item, Decoration::BuiltIn, [Operand::BuiltIn(BuiltIn::GlobalInvocationId)]);
    let id = b.begin_function(void, None, FunctionControl::NONE, of_pointer).expect("none is open");
    let x = b.function_parameter(global).expect("a function is open");
    b.begin_block(None).expect("a function is open");
    let place = b.load(vector, None, work_item, None, []).expect("a block is open");
    let place = b.composite_extract(long, None, place, [0]).expect("a block is open");
    let at = b.in_bounds_ptr_access_chain(global, None, x, place, []).expect("a block is open");
    let value = b.load(float, None, at, None, []).expect("a block is open");
    let mut sum = None;
    for call in calls {
        let called = b.function_call(float, None, ids[call], [value]).expect("a block is open");
        sum = Some(match sum {
            None => called,
            Some(sum) => b.f_add(float, None, sum, called).expect("a block is open"),
        });
    }
    b.store(at, sum.unwrap_or(value), None, []).expect("a block is open");
    b.ret().expect("a block is open");
    b.end_function().expect("it was begun");
    b.entry_point(ExecutionModel::Kernel, id, name, [work_item]);
}

/// Returns an application whose kernel `apply` adds up the results of these library functions.
pub fn application(format: ModuleFormat, calls: &[&str]) -> Module {
    module(format, &[], &[("apply", calls)])
}

pub fn library(format: ModuleFormat, functions: &[Function<'_>]) -> Module {
    module(format, functions, &[])
}

/// Runs a kernel of linked modules on 1, 2, 3, and checks the result.
pub async fn expect(rt: &Runtime, program: &Program, kernel: &str, expected: [f32; 3]) {
    assert_eq!(run(rt, program, kernel).await, expected, "{kernel}");
}

/// Returns the result of a kernel on 1, 2, 3.
pub async fn run(rt: &Runtime, program: &Program, kernel: &str) -> Vec<f32> {
    // SAFETY: these kernels touch one element a work-item.
    let kernel = unsafe { program.kernel(kernel) }.expect("the kernel exists");
    let x = rt.buffer_from(vec![1.0f32, 2.0, 3.0]).await.expect("there is memory");
    let queue = rt.queue();
    queue.submit(kernel.launch(3).args((&x,))).expect("it fits");
    queue.read(&x).await.expect("it runs")
}

pub fn register(rt: &Runtime, libraries: &[&Module]) {
    for library in libraries {
        assert!(rt.register(library).expect("it exports something"), "it is new");
    }
}

/// Returns the number of compiled modules, and of linked programs.
pub fn work_counts(rt: &Runtime) -> (u64, u64) {
    (rt.stats().builds.compiles, rt.stats().builds.links)
}

/// Returns these numbers for one program of `modules` modules.
pub fn work_counts_of_one(rt: &Runtime, format: ModuleFormat, modules: u64) -> (u64, u64) {
    // Modules that the device does not link are compiled as one module.
    if links(rt, format) { (modules, 1) } else { (1, 0) }
}

/// Whether objects of a format are linked. For a device that takes no text, text counts as SPIR-V.
pub fn links(rt: &Runtime, format: ModuleFormat) -> bool {
    let device = rt.device();
    let becomes = if device.formats.contains(&format) { format } else { ModuleFormat::SpirV };
    device.links.contains(&becomes)
}
