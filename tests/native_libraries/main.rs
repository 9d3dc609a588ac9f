//! Native device code as libraries, in a suite of its own, since every runtime of a process finds the libraries that
//! it embeds: objects that Kiln made for a device, and binaries without a description, linked with OpenCL C, with
//! SPIR-V and with each other.

mod cl_library;

use futures::executor::block_on;
use kiln::build::Origin;
use kiln::devices::ModuleFormat;
use kiln::libraries::LibrarySource;
use kiln::simulated::Simulator;
use kiln::{CacheConfig, DeviceInfo, Error, ErrorKind, Module, Program, Runtime, RuntimeBuilder};
use support::everywhere;
use support::libraries::{
    Function, application, expect, function, library, module, module_that_imports, register,
};
use support::{builder, on_each_device};

// The object of `TIMES` for the simulated device, and its twin for other devices, with another factor.
kiln::device_library!("../data/simulated.o");
kiln::device_library!(
    opencl_c: "float embedded_times(float x) { return 3.0f * x; }",
    exporting: ["embedded_times"],
);

const TIMES: Function<'_> = function("embedded_times").times(2.0);

const FORMATS: [ModuleFormat; 2] = [ModuleFormat::OpenClC, ModuleFormat::SpirV];

/// Creates a runtime on the device of another one, whose libraries are its own.
async fn start(like: &Runtime, builder: RuntimeBuilder) -> Runtime {
    let device = like.device().index().to_string();
    builder.device(device).build().await.expect("it starts")
}

async fn fresh(like: &Runtime) -> Runtime {
    start(like, builder()).await
}

/// Compiles a module to an object, and reads it as a native module.
async fn native(rt: &Runtime, module: &Module) -> Module {
    let object = rt.build(module).object().await.expect("it compiles");
    Module::native(object.bytes()).expect("Kiln made it")
}

/// Returns the binary of an object alone, as a driver's own tool would make it.
fn bare(object: &Module) -> Module {
    Module::native(object.code()).expect("it is not empty")
}

/// Returns the fields of a device, as if it had another version of the driver.
fn with_other_driver(device: &DeviceInfo) -> Vec<(String, String)> {
    let field = |(name, value): (&str, &str)| {
        let value = if name == "driver version" { "0.0-other" } else { value };
        (name.to_owned(), value.to_owned())
    };
    device.identity().into_iter().map(field).collect()
}

/// Compiles a module to an object that states another version of the driver.
async fn of_other_driver(rt: &Runtime, module: &Module) -> Module {
    let config = CacheConfig::memory_only().device_identity(with_other_driver);
    let other = start(rt, Runtime::builder().cache(config)).await;
    native(&other, module).await.with_label("old.o")
}

/// Returns the formats of the modules that a program takes symbols from.
fn exporters(program: &Program) -> Vec<ModuleFormat> {
    program.linked_symbols().iter().map(|symbol| symbol.exporter.format()).collect()
}

async fn refused(rt: &Runtime, module: &Module) -> Error {
    rt.build(module).await.expect_err("it cannot be built")
}

everywhere! {
    async fn objects_state_their_symbols_and_serve_applications_in_each_format(like: Runtime) {
        for made_from in FORMATS {
            let source = library(made_from, &[function("twice").times(2.0), function("plain")]);
            let object = native(&like, &source).await;
            assert_eq!(object.format(), ModuleFormat::Native);
            assert!(object.exports().eq(["plain", "twice"]), "{object:?}");
            assert_eq!(object.imports().len(), 0);
            for format in FORMATS {
                let rt = fresh(&like).await;
                register(&rt, &[&object]);
                let program = rt.build(&application(format, &["twice"])).await;
                let program = program.unwrap_or_else(|error| panic!("{format}: {error}"));
                expect(&rt, &program, "apply", [2.0, 4.0, 6.0]).await;
                assert_eq!(exporters(&program), [ModuleFormat::Native]);
                let [symbol] = &program.linked_symbols()[..] else { panic!("one symbol") };
                assert_eq!(symbol.source, Some(LibrarySource::Registered));
            }
        }
    }
}

everywhere! {
    async fn native_applications_import_from_libraries_in_each_format(like: Runtime) {
        for format in FORMATS {
            let source = application(format, &["twice"]);
            let object = native(&like, &source).await;
            assert!(object.imports().eq(["twice"]), "{object:?}");
            let rt = fresh(&like).await;
            let error = refused(&rt, &object).await;
            assert_eq!(error.kind(), ErrorKind::BuildFailed);
            assert!(error.to_string().contains("imports `twice`"), "{error}");
            let portable = library(format, &[function("twice").times(2.0)]);
            register(&rt, &[&portable]);
            let program = rt.build(&object).await.expect("`twice` is registered");
            expect(&rt, &program, "apply", [2.0, 4.0, 6.0]).await;

            let all_native = fresh(&like).await;
            register(&all_native, &[&native(&like, &portable).await]);
            let program = all_native.build(&object).await.expect("`twice` is registered");
            expect(&all_native, &program, "apply", [2.0, 4.0, 6.0]).await;
        }
    }
}

everywhere! {
    async fn native_and_portable_libraries_form_chains_and_cycles(like: Runtime) {
        for format in FORMATS {
            let rt = fresh(&like).await;
            let first = library(format, &[function("one").of("two").plus(1.0)]);
            let second = library(format, &[
                function("two").of("three").times(2.0),
                function("base").times(5.0),
            ]);
            let third = library(format, &[function("three").of("base").plus(3.0)]);
            register(&rt, &[&first, &native(&like, &second).await, &third]);
            let program = rt.build(&application(format, &["one"])).await;
            let program = program.unwrap_or_else(|error| panic!("{format}: {error}"));
            // 2 * (5 * x + 3) + 1
            expect(&rt, &program, "apply", [17.0, 27.0, 37.0]).await;
            assert_eq!(program.linked_symbols().len(), 4);
        }
    }
}

everywhere! {
    async fn objects_without_symbols_are_whole_programs(rt: Runtime) {
        let text = "kernel void apply(global float *x) { x[get_global_id(0)] += 1; }";
        let program = rt.build(&native(&rt, &Module::opencl_c(text)).await).await;
        expect(&rt, &program.expect("nothing is missing"), "apply", [2.0, 3.0, 4.0]).await;
        let spirv = module(ModuleFormat::SpirV, &[], &[("apply", &[])]);
        let program = rt.build(&native(&rt, &spirv).await).await;
        expect(&rt, &program.expect("nothing is missing"), "apply", [1.0, 2.0, 3.0]).await;
    }
}

everywhere! {
    async fn binaries_without_a_description_have_the_stated_symbols(like: Runtime) {
        let format = ModuleFormat::OpenClC;
        let rt = fresh(&like).await;
        let source = library(format, &[function("outer").of("inner").plus(1.0)]);
        let binary = bare(&native(&like, &source).await);
        let error = rt.register(&binary).expect_err("it states no symbols");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("`Module::exporting`"), "{error}");
        let stated = binary.clone().exporting(["outer"]).importing(["inner"]);
        assert_ne!(stated.digest(), binary.digest());
        assert!(stated.exports().eq(["outer"]) && stated.imports().eq(["inner"]));
        register(&rt, &[&stated, &library(format, &[function("inner").times(3.0)])]);
        let program = rt.build(&application(format, &["outer"])).await.expect("all are stated");
        expect(&rt, &program, "apply", [4.0, 7.0, 10.0]).await;
    }
}

everywhere! {
    async fn wrongly_stated_symbols_are_errors_and_the_process_goes_on(like: Runtime) {
        let format = ModuleFormat::OpenClC;
        let source = library(format, &[function("outer").of("inner").plus(1.0)]);
        let binary = bare(&native(&like, &source).await);
        let inner = library(format, &[function("inner")]);
        let cases = [
            // It does not export this.
            ("wrong", binary.clone().exporting(["wrong"]).importing(["inner"]).with_label("stated.o")),
            // It imports `inner`, but does not say so.
            ("outer", binary.clone().exporting(["outer"]).with_label("stated.o")),
        ];
        for (name, stated) in cases {
            let rt = fresh(&like).await;
            register(&rt, &[&stated, &inner]);
            let error = refused(&rt, &application(format, &[name])).await;
            assert_eq!(error.kind(), ErrorKind::BuildFailed, "{name}: {error}");
            assert!(error.to_string().contains("`stated.o`"), "{name}: {error}");
            let program = rt.build(&application(format, &["inner"])).await.expect("it is right");
            expect(&rt, &program, "apply", [1.0, 2.0, 3.0]).await;
        }
    }
}

everywhere! {
    async fn objects_of_another_driver_version_are_refused_by_name(like: Runtime) {
        for format in FORMATS {
            let rt = fresh(&like).await;
            let source = library(format, &[function("twice").times(2.0)]);
            let old = of_other_driver(&like, &source).await;
            register(&rt, &[&old]);
            let error = refused(&rt, &application(format, &["twice"])).await;
            assert_eq!(error.kind(), ErrorKind::BuildFailed);
            let text = error.to_string();
            let (name, version) = (&rt.device().name, &rt.device().driver_version);
            for part in ["`old.o`", "0.0-other", version, name, "kiln build --object"] {
                assert!(text.contains(part), "`{part}` is not in: {text}");
            }
            // So is one that is requested itself.
            let old = of_other_driver(&like, &application(format, &["twice"])).await;
            register(&rt, &[&source]);
            let error = refused(&rt, &old).await;
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.to_string().contains("0.0-other"), "{error}");
        }
    }
}

everywhere! {
    async fn the_portable_twin_takes_the_place_of_an_object_of_another_driver(like: Runtime) {
        for format in FORMATS {
            let rt = fresh(&like).await;
            let twin = library(format, &[function("twice").times(2.0)]);
            // The functions differ, so that the result shows which one was linked.
            let other = library(format, &[function("twice").times(3.0)]);
            let (old, fitting) = (of_other_driver(&like, &other).await, native(&like, &other).await);
            register(&rt, &[&old, &twin]);
            let application = application(format, &["twice"]);
            let program = rt.build(&application).await.expect("the twin is used");
            expect(&rt, &program, "apply", [2.0, 4.0, 6.0]).await;
            let with_twin = program.key();
            register(&rt, &[&fitting]);
            let program = rt.build(&application).await.expect("the fitting object is used");
            expect(&rt, &program, "apply", [3.0, 6.0, 9.0]).await;
            assert_ne!(program.key(), with_twin);
            assert!(rt.unregister(&fitting));
            let program = rt.build(&application).await.expect("the twin is used again");
            assert_eq!(program.key(), with_twin);
        }
    }
}

everywhere! {
    async fn two_fitting_objects_are_duplicates(like: Runtime) {
        let format = ModuleFormat::OpenClC;
        let rt = fresh(&like).await;
        let one = library(format, &[function("twice").times(2.0)]);
        let other = library(format, &[function("twice").plus(1.0)]);
        register(&rt, &[&native(&like, &one).await, &native(&like, &other).await, &one]);
        let error = refused(&rt, &application(format, &["twice"])).await;
        assert!(error.to_string().contains("several modules export"), "{error}");
    }
}

everywhere! {
    async fn the_twin_serves_programs_that_need_a_part_of_the_object_only(like: Runtime) {
        for format in FORMATS {
            let source = library(format, &[
                function("outer").of("single").plus(1.0),
                function("single").times(2.0),
            ]);
            let object = native(&like, &source).await;
            let single = library(format, &[function("single").times(10.0)]);
            let rt = fresh(&like).await;
            register(&rt, &[&object]);
            rt.preload(&single).expect("it exports");
            let error = refused(&rt, &application(format, &["outer"])).await;
            assert_eq!(error.kind(), ErrorKind::BuildFailed);
            assert!(error.to_string().contains("`single` is exported by"), "{error}");
            register(&rt, &[&source]);
            // Kiln removes definitions from SPIR-V only.
            let is_text = format == ModuleFormat::OpenClC;
            match rt.build(&application(format, &["outer"])).await {
                Ok(program) => {
                    assert!(!is_text);
                    expect(&rt, &program, "apply", [11.0, 21.0, 31.0]).await;
                }
                Err(error) => assert!(is_text, "{error}"),
            }
        }
    }
}

everywhere! {
    async fn preloaded_objects_replace_functions_of_spirv(like: Runtime) {
        let format = ModuleFormat::SpirV;
        let rt = fresh(&like).await;
        register(&rt, &[&library(format, &[
            function("outer").of("single").plus(1.0),
            function("single").times(2.0),
        ])]);
        let single = library(format, &[function("single").times(10.0)]);
        assert!(rt.preload(&native(&like, &single).await).expect("it exports"));
        let program = rt.build(&application(format, &["outer"])).await.expect("it is replaced");
        expect(&rt, &program, "apply", [11.0, 21.0, 31.0]).await;
    }
}

everywhere! {
    async fn programs_linked_with_objects_are_found_on_disk(like: Runtime) {
        for format in FORMATS {
            let folder = tempfile::tempdir().expect("there is room");
            let at = || Runtime::builder().cache(CacheConfig::at(folder.path()));
            let source = library(format, &[function("twice").times(2.0)]);
            let object = native(&like, &source).await;
            let mut keys = Vec::new();
            for origin in [Origin::Compiled, Origin::Disk] {
                let rt = start(&like, at()).await;
                register(&rt, &[&object]);
                let program = rt.build(&application(format, &["twice"])).await.expect("it links");
                assert_eq!(program.origin(), origin, "{format}");
                expect(&rt, &program, "apply", [2.0, 4.0, 6.0]).await;
                keys.push(program.key());
                rt.drain().await;
            }
            assert_eq!(keys[0], keys[1]);
            let rt = start(&like, at()).await;
            let object = rt.build(&application(format, &["twice"])).object().await.expect("stored");
            let is_merged = format == ModuleFormat::SpirV && rt.device().links == [ModuleFormat::OpenClC];
            assert!(object.origin() == Origin::Disk || is_merged, "the object was stored, too");
        }
    }
}

everywhere! {
    async fn linked_programs_are_not_libraries(like: Runtime) {
        let format = ModuleFormat::OpenClC;
        if !like.device().formats.contains(&format) {
            // Level Zero links any module.
            return;
        }
        let rt = fresh(&like).await;
        let whole = module(format, &[function("twice").times(2.0)], &[("own", &["twice"])]);
        let binary = rt.build(&whole).await.expect("it builds").binary().expect("it has one");
        let binary = Module::native(binary).expect("it is not empty").exporting(["twice"]);
        register(&rt, &[&binary.with_label("program.bin")]);
        let error = refused(&rt, &application(format, &["twice"])).await;
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        for part in ["`program.bin`", "a linked program", "kiln build --object"] {
            assert!(error.to_string().contains(part), "`{part}` is not in: {error}");
        }
    }
}

#[test]
fn damaged_files_of_objects_are_refused() {
    block_on(async {
        let simulator = Simulator::new();
        let rt = Runtime::builder().cache(CacheConfig::memory_only()).simulator(&simulator);
        let rt = rt.build().await.expect("it starts");
        let source = library(ModuleFormat::OpenClC, &[function("twice")]);
        let object = rt.build(&source).object().await.expect("it compiles");
        assert_eq!((object.origin(), object.device().index()), (Origin::Compiled, 0));
        let bytes = object.bytes();
        for at in (0..bytes.len() - 8).step_by(7) {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= 0x10;
            let error = Module::native(damaged).expect_err("it is damaged");
            assert_eq!(error.kind(), ErrorKind::InvalidModule, "byte {at}: {error}");
        }
        let again = rt.build(&source).object().await.expect("it is in memory");
        assert_eq!((again.origin(), again.key()), (Origin::Memory, object.key()));
    });
}

#[test]
fn objects_are_not_made_of_native_or_untrusted_modules() {
    block_on(on_each_device(async |rt| {
        let source = library(ModuleFormat::OpenClC, &[function("twice")]);
        let object = native(&rt, &source).await;
        for module in [object, source.untrusted()] {
            let error = rt.build(&module).object().await.expect_err("it is refused");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }));
}

#[test]
fn objects_for_another_device_are_refused_there() {
    block_on(async {
        let (Ok(intel), Ok(pocl)) =
            (builder().device("intel:cpu").build().await, builder().device("pocl").build().await)
        else {
            return;
        };
        let source = library(ModuleFormat::OpenClC, &[function("twice").times(2.0)]);
        let [for_intel, for_pocl] = [native(&intel, &source).await, native(&pocl, &source).await];
        // Each device takes its own, in one set of libraries.
        for (rt, other) in [(&intel, &for_pocl), (&pocl, &for_intel)] {
            let own =
                if rt.device().index() == intel.device().index() { &for_intel } else { &for_pocl };
            register(rt, &[other]);
            let error = refused(rt, &application(ModuleFormat::OpenClC, &["twice"])).await;
            assert!(error.to_string().contains("was made for"), "{error}");
            register(rt, &[own]);
            let program = rt.build(&application(ModuleFormat::OpenClC, &["twice"])).await;
            expect(rt, &program.expect("one fits"), "apply", [2.0, 4.0, 6.0]).await;
        }
    });
}

everywhere! {
    async fn the_twin_serves_modules_that_the_driver_cannot_link_with_objects(like: Runtime) {
        let format = ModuleFormat::SpirV;
        let rt = fresh(&like).await;
        let twin = library(format, &[function("twice").times(2.0)]);
        register(&rt, &[&native(&like, &twin).await]);
        // Drivers report a duplicate definition for a module that imports a symbol of its own.
        let functions = [function("own").plus(1.0), function("outer").of("twice")];
        let own = module_that_imports(format, &functions, &[("apply", &["own", "outer"])], &["own"]);
        let error = refused(&rt, &own).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("cannot link it with native code"), "{error}");
        register(&rt, &[&twin]);
        let program = rt.build(&own).await.expect("the twin is merged with it");
        expect(&rt, &program, "apply", [4.0, 7.0, 10.0]).await;
    }
}

#[test]
fn a_driver_that_links_text_only_takes_no_objects_for_spirv() {
    block_on(async {
        let simulator = Simulator::new();
        simulator.kernel("apply", |_| {});
        let rt = Runtime::builder().cache(CacheConfig::memory_only()).simulator(&simulator);
        let rt = rt.build().await.expect("it starts");
        let [text, spirv] = FORMATS.map(|format| library(format, &[function("twice")]));
        let error = rt.build(&spirv).object().await.expect_err("the driver links text only");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("links no objects made of SPIR-V"), "{error}");
        register(&rt, &[&native(&rt, &text).await.with_label("twice.o")]);
        rt.build(&application(ModuleFormat::OpenClC, &["twice"])).await.expect("it is linked");
        let application = application(ModuleFormat::SpirV, &["twice"]);
        let error = refused(&rt, &application).await;
        for part in ["`twice.o`", &rt.device().name, "does not link native code with SPIR-V"] {
            assert!(error.to_string().contains(part), "`{part}` is not in: {error}");
        }
        register(&rt, &[&spirv]);
        rt.build(&application).await.expect("the twin is merged with it");
    });
}

/// Returns the object of `TIMES` for the simulated device. With the variable `KILN_TEST_BLESS`, writes the file
/// that is embedded.
async fn embedded_object() -> Module {
    let rt = Runtime::builder().cache(CacheConfig::memory_only()).simulator(&Simulator::new());
    let rt = rt.build().await.expect("it starts");
    let source = library(ModuleFormat::OpenClC, &[TIMES]);
    let object = rt.build(&source).object().await.expect("it compiles");
    if std::env::var_os("KILN_TEST_BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/simulated.o");
        std::fs::write(path, object.bytes()).expect("the directory is there");
    }
    Module::native(object.bytes()).expect("Kiln made it")
}

#[test]
fn embedded_objects_serve_their_device_and_their_twins_serve_others() {
    let application = application(ModuleFormat::OpenClC, &["embedded_times"]);
    block_on(async {
        let made_now = embedded_object().await;
        let simulator = Simulator::new();
        simulator.kernel("apply", |_| {});
        let rt = Runtime::builder().cache(CacheConfig::memory_only()).simulator(&simulator);
        let rt = rt.build().await.expect("it starts");
        let program = rt.build(&application).await.expect("the object is embedded");
        let [symbol] = &program.linked_symbols()[..] else { panic!("one symbol") };
        assert_eq!(symbol.exporter.digest(), made_now.digest(), "see tests/data/README.md");
        let Some(LibrarySource::Embedded(embedding)) = &symbol.source else { panic!("{symbol}") };
        assert_eq!(embedding.file, "../data/simulated.o");
    });
    block_on(on_each_device(async |rt| {
        let program = rt.build(&application).await.expect("the twin is embedded");
        assert_eq!(exporters(&program), [ModuleFormat::OpenClC]);
        expect(&rt, &program, "apply", [3.0, 6.0, 9.0]).await;
    }));
}

#[test]
fn libraries_that_the_driver_itself_made_are_linked() {
    block_on(on_each_device(async |rt| {
        if rt.device().backend != "opencl" {
            return;
        }
        let text = "float inner(float x); float outer(float x) { return 2.0f * inner(x); }";
        let binary = cl_library::binary(&rt.device().name, text);
        let outer = Module::native(binary).expect("it is not empty");
        let inner = library(ModuleFormat::SpirV, &[function("inner").plus(1.0)]);
        register(&rt, &[&outer.exporting(["outer"]).importing(["inner"]), &inner]);
        let program = rt.build(&application(ModuleFormat::SpirV, &["outer"])).await;
        expect(&rt, &program.expect("it is linked"), "apply", [4.0, 6.0, 8.0]).await;
    }));
}
