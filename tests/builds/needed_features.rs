//! A module that needs a feature that the device lacks is refused with the feature's name, in whatever form the
//! device would get it, and runs on devices with the feature.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use kiln::{Error, ErrorKind, Module, Runtime};
use rspirv::binary::Assemble;
use rspirv::dr::{Builder, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionModel, FunctionControl, MemoryModel,
    OpenclStd100Op as Std, StorageClass, Word,
};

/// Returns a kernel `k` that doubles each element of half-precision memory, through `double`, which gets the
/// element, its index, the memory and OpenCL's extended instructions.
fn doubling(double: impl FnOnce(&mut Builder, Word, Word, Word, Word)) -> Module {
    let mut b = Builder::new();
    b.set_version(1, 2);
    for capability in
        [Capability::Kernel, Capability::Addresses, Capability::Int64, Capability::Float16Buffer]
    {
        b.capability(capability);
    }
    let functions = b.ext_inst_import("OpenCL.std");
    b.memory_model(AddressingModel::Physical64, MemoryModel::OpenCL);
    let (void, half, long) = (b.type_void(), b.type_float(16, None), b.type_int(64, 0));
    let longs = b.type_vector(long, 3);
    let input = b.type_pointer(None, StorageClass::Input, longs);
    let id = b.variable(input, None, StorageClass::Input, None);
    b.decorate(id, Decoration::BuiltIn, [Operand::BuiltIn(BuiltIn::GlobalInvocationId)]);
    let pointer = b.type_pointer(None, StorageClass::CrossWorkgroup, half);
    let ty = b.type_function(void, [pointer]);
    let kernel = b.begin_function(void, None, FunctionControl::NONE, ty).unwrap();
    let memory = b.function_parameter(pointer).unwrap();
    b.entry_point(ExecutionModel::Kernel, kernel, "k", [id]);
    b.begin_block(None).unwrap();
    let ids = b.load(longs, None, id, None, []).unwrap();
    let at = b.composite_extract(long, None, ids, [0]).unwrap();
    let place = b.in_bounds_ptr_access_chain(pointer, None, memory, at, []).unwrap();
    double(&mut b, place, at, memory, functions);
    b.ret().unwrap();
    b.end_function().unwrap();
    let words = b.module().assemble();
    Module::spirv(words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap()
}

fn with_arithmetic() -> Module {
    doubling(|b, place, _, _, _| {
        let half = b.type_float(16, None);
        let value = b.load(half, None, place, None, []).unwrap();
        let sum = b.f_add(half, None, value, value).unwrap();
        b.store(place, sum, None, []).unwrap();
    })
}

fn with_memory_alone() -> Module {
    doubling(|b, _, at, memory, functions| {
        let (float, void) = (b.type_float(32, None), b.type_void());
        let ids = |ids: &[Word]| ids.iter().map(|id| Operand::IdRef(*id)).collect::<Vec<_>>();
        let load = Std::vload_half as u32;
        let value = b.ext_inst(float, None, functions, load, ids(&[at, memory])).unwrap();
        let sum = b.f_add(float, None, value, value).unwrap();
        let store = Std::vstore_half as u32;
        b.ext_inst(void, None, functions, store, ids(&[sum, at, memory])).unwrap();
    })
}

const ONE: u16 = 0x3c00;
const TWO: u16 = 0x4000;

async fn doubled(rt: &Runtime, module: &Module) -> Result<Vec<u16>, Error> {
    let program = rt.build(module).await?;
    // SAFETY: an item changes its own element.
    let kernel = unsafe { program.kernel("k") }?;
    let memory = rt.buffer_from(vec![ONE; 8]).await?;
    rt.queue().submit(kernel.launch(8).args((&memory,)))?;
    rt.queue().read(&memory).await
}

fn has_half(rt: &Runtime) -> bool {
    rt.device().extensions.iter().any(|name| name == "cl_khr_fp16")
}

#[test]
fn half_precision_arithmetic_is_rejected_by_name_on_devices_without_it() {
    futures::executor::block_on(support::on_each_device(async |rt| {
        let found = doubled(&rt, &with_arithmetic()).await;
        if has_half(&rt) {
            assert_eq!(found.unwrap(), [TWO; 8]);
            return;
        }
        let error = found.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let text = error.to_string();
        assert!(text.contains("needs `Float16` (half precision)"), "{text}");
        assert!(text.contains("(k)") && text.contains(&rt.device().to_string()), "{text}");
    }));
}

#[test]
fn half_precision_memory_can_be_read_and_written_on_all_devices() {
    futures::executor::block_on(support::on_each_device(async |rt| {
        assert_eq!(doubled(&rt, &with_memory_alone()).await.unwrap(), [TWO; 8]);
    }));
}

#[test]
fn opencl_c_with_half_precision_is_rejected_on_devices_without_it() {
    const TEXT: &str = "#pragma OPENCL EXTENSION cl_khr_fp16 : enable
        kernel void k(global half *x) { size_t i = get_global_id(0); x[i] = x[i] + x[i]; }";
    futures::executor::block_on(support::on_each_device(async |rt| {
        let found = doubled(&rt, &Module::opencl_c(TEXT)).await;
        if has_half(&rt) {
            assert_eq!(found.unwrap(), [TWO; 8]);
            return;
        }
        let error = found.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BuildFailed, "{error}");
        assert!(error.to_string().contains("needs `Float16` (half precision)"), "{error}");
        assert!(error.build_log().is_some_and(|log| log.contains("half")), "{error}");
    }));
}
