//! Guarantees for the types of the public interface, checked at compile time: they can be sent between threads,
//! shared, moved while they are polled, and used after a caught panic.

use std::panic::{RefUnwindSafe, UnwindSafe};

use futures::Stream;
use kiln::build::{Build, BuildKey, Digest, OpenModule, Origin, SpecializationConstant};
use kiln::commands::{Drain, DrainTimeout, Profile, Ready, Status};
use kiln::devices::Limits;
use kiln::fusion::{
    CompleteFusion, ExamineFusion, FusedPart, FusionForm, FusionOutcome, FusionReport, PartReport,
    StepReport, WayReport,
};
use kiln::graph::{GraphScalar, RecordGraph, Replay};
use kiln::launch::{Access, AddressSpace, NdSize, Parameter, WorkGroup};
use kiln::libraries::{
    Attached, CompileObject, DeviceLibrary, Embedding, ExportedLibraries, LibrarySource,
    LinkedSymbol, Object, PluginLibraries,
};
use kiln::memory::Upload;
use kiln::stats::{DeviceStats, Trace, WriteTrace};
use kiln::store::{
    Collected, Durability, Entries, Entry, EntryCheck, EntryInfo, EntryRecord, KernelRecord,
    ObjectRecord, Operation, ParameterRecord, Store, Unusable, Verify,
};
use kiln::{
    Buffer, BuildRequest, Device, DeviceInfo, Error, Event, FusionScope, Graph, Kernel, Launch,
    Local, Module, NdRange, Program, Queue, Read, Recorder, Runtime, RuntimeBuilder, StartRuntime,
    Stats,
};

fn send<T: Send + 'static>() {}
fn sync<T: Sync + 'static>() {}
fn unpin<T: Unpin>() {}
fn unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}
fn future<T: Future + Send + Unpin + 'static>() {}
fn stream<T: Stream + Send + Unpin + 'static>() {}
fn future_of<T: Future<Output = O>, O>() {}

macro_rules! table {
    ($($check:ident: $($type:ty),+;)*) => {
        #[test]
        fn public_types_have_the_required_auto_traits() {
            $($($check::<$type>();)+)*
        }
    };
}

table! {
    // Handles and values: used from any thread, and by many at the same time.
    send: Runtime, RuntimeBuilder, Device, Module, BuildRequest, Build, Program, Kernel, Launch, Queue, Event,
        Buffer<f32>, FusionScope, FusionReport, FusionOutcome, Trace, Error;
    sync: Runtime, RuntimeBuilder, Device, Module, BuildRequest, Build, Program, Kernel, Queue, Event,
        Buffer<f32>, FusionScope, FusionReport, FusionOutcome, Trace, Error;
    send: Graph, GraphScalar<f32>, Recorder, Replay;
    sync: Graph, GraphScalar<f32>;
    send: Store, Entry, EntryInfo, EntryCheck;
    send: Attached, DeviceLibrary, Object, PluginLibraries;
    sync: Store, Entry, EntryInfo, EntryCheck;
    sync: Attached, DeviceLibrary, Object, PluginLibraries;
    // Plain data.
    send: Access, AddressSpace, BuildKey, DeviceInfo, Digest, Limits, Local<f32>, NdRange, NdSize, Origin, Parameter,
        Embedding, ExportedLibraries, FusionForm, LibrarySource, LinkedSymbol, Profile, SpecializationConstant, Stats,
        Status, Collected, Durability, KernelRecord, EntryRecord, ObjectRecord, ParameterRecord, Unusable, FusedPart,
        PartReport, StepReport, WayReport, DeviceStats, WorkGroup;
    sync: Access, AddressSpace, BuildKey, DeviceInfo, Digest, Limits, Local<f32>, NdRange, NdSize, Origin, Parameter,
        Embedding, ExportedLibraries, FusionForm, LibrarySource, LinkedSymbol, Profile, SpecializationConstant, Stats,
        Status, Collected, Durability, KernelRecord, EntryRecord, ObjectRecord, ParameterRecord, Unusable, FusedPart,
        PartReport, StepReport, WayReport, DeviceStats, WorkGroup;
    // All futures: sent to any executor, and moved between polls.
    future: StartRuntime, Drain, DrainTimeout, Build, CompileObject, Event, Read<f32>, Ready, Upload<f32>,
        OpenModule, ExamineFusion, CompleteFusion, RecordGraph, WriteTrace, Operation<kiln::Result<Store>>,
        Operation<EntryCheck>, Operation<bool>;
    stream: Entries, Verify;
    unpin: Store, Runtime, Program, Kernel, Launch, Queue, Buffer<f32>, FusionScope;
    // Plain data is unchanged after a caught panic.
    unwind_safe: BuildKey, Digest, Limits, NdRange, NdSize, Origin, Parameter, Profile, Stats;
}

#[test]
fn futures_have_the_documented_outputs() {
    future_of::<StartRuntime, kiln::Result<Runtime>>();
    future_of::<Drain, ()>();
    future_of::<DrainTimeout, kiln::Result<()>>();
    future_of::<Build, kiln::Result<Program>>();
    future_of::<CompileObject, kiln::Result<Object>>();
    future_of::<Event, kiln::Result<()>>();
    future_of::<Read<f32>, kiln::Result<Vec<f32>>>();
    future_of::<Ready, ()>();
    future_of::<Upload<f32>, kiln::Result<Buffer<f32>>>();
    future_of::<OpenModule, kiln::Result<Module>>();
    future_of::<ExamineFusion, kiln::Result<FusionReport>>();
    future_of::<CompleteFusion, kiln::Result<FusionOutcome>>();
    future_of::<RecordGraph, kiln::Result<Graph>>();
    future_of::<WriteTrace, kiln::Result<()>>();
    future_of::<Operation<kiln::Result<Store>>, kiln::Result<Store>>();
    future_of::<Operation<bool>, bool>();
}
