//! Device libraries that crates and plug-ins embed, in a suite of their own, since every runtime of a process finds
//! them; preloaded modules; and the order in which symbols are searched.

#![cfg(all(target_os = "linux", target_env = "gnu"))]

use futures::executor::block_on;
use kiln::devices::ModuleFormat;
use kiln::libraries::{
    DuplicateExports, Embedding, ExportedLibraries, LibrarySource, LinkedSymbol, PluginLibraries,
};
use kiln::{ErrorKind, Program, Runtime, RuntimeBuilder};
use support::children;
use support::everywhere;
use support::libraries;
use support::libraries::{application, expect, function, library, module, register};
use support::plug_ins;
use support::plug_ins::PlugIn;

// Ten functions. `tone_9(x)` is `tone_3(x) + tone_5(x)`, and `tone_n(x)` is `x + n` otherwise.
const TONES: u32 = line!() + 1;
kiln::device_library!("data/tones.spv");

// `library.spv` with other names: it exports `wreck` and ends within a function.
const DAMAGED: u32 = line!() + 1;
kiln::device_library!("data/damaged.spv");

kiln::device_library!(opencl_c: "float layered(float x) { return x + 4; }", exporting: ["layered"]);
kiln::device_library!(
    opencl_c: "float layered(float x); float outer(float x) { return layered(x) * 10; }",
    exporting: ["outer"],
    importing: ["layered"],
);

// Two definitions of one symbol.
const TWICE: u32 = line!() + 1;
kiln::device_library!(opencl_c: "float twice(float x) { return x * 2; }", exporting: ["twice"]);
kiln::device_library!(opencl_c: "float twice(float x) { return x + x; }", exporting: ["twice"]);

/// Embeds a library for each combination of two digits.
macro_rules! embed_hundred {
    ($($tens:literal)*) => { $(embed_hundred!(@ten $tens: 0 1 2 3 4 5 6 7 8 9);)* };
    (@ten $tens:literal: $($ones:literal)*) => {
        $(kiln::device_library!(
            opencl_c: concat!(
                "float numbered_", $tens, $ones, "(float x) { return x + ", $tens, $ones, ".0f; }"
            ),
            exporting: [concat!("numbered_", $tens, $ones)],
        );)*
    };
}
embed_hundred!(0 1 2 3 4 5 6 7 8 9);

const EMBEDDED: usize = 106;

const FORMATS: [ModuleFormat; 2] = [ModuleFormat::SpirV, ModuleFormat::OpenClC];

/// Creates a runtime on the device of another one, whose libraries are its own.
async fn start(like: &Runtime, builder: RuntimeBuilder) -> Runtime {
    let device = like.device().index().to_string();
    builder.device(device).build().await.expect("it starts")
}

async fn fresh(like: &Runtime) -> Runtime {
    start(like, support::builder()).await
}

/// Returns the place of a macro in this file, as messages state it.
fn place(line: u32) -> String {
    format!("{}:{line}", file!())
}

/// Returns the symbol of a program that a module takes from another one.
fn symbol(program: &Program, name: &str, replaces: bool) -> LinkedSymbol {
    let symbols = program.linked_symbols();
    let mut found = symbols.into_iter().filter(|it| it.name == name && it.replaces == replaces);
    found.next().unwrap_or_else(|| panic!("`{name}` is not among {:?}", program.linked_symbols()))
}

/// Loads the plug-in's libraries, and unloads the plug-in.
fn plug_in() -> PluginLibraries {
    let path = plug_ins::build(&children::this_binary());
    let plug_in = PlugIn::load(path.to_str().expect("it is text"));
    libraries_of(&plug_in)
}

fn libraries_of(plug_in: &PlugIn) -> PluginLibraries {
    let function = plug_in.function(c"kiln_device_libraries");
    // SAFETY: `export_device_libraries` defines the function with this type.
    let function: extern "C" fn() -> ExportedLibraries = unsafe { std::mem::transmute(function) };
    // SAFETY: the plug-in is loaded.
    unsafe { PluginLibraries::read(&function()) }.expect("its libraries are valid")
}

everywhere! {
    async fn embedded_libraries_are_found_without_registration(rt: Runtime) {
        let calls = application(ModuleFormat::SpirV, &["tone_9"]);
        let program = rt.build(&calls).await.expect("`tone_9` is embedded");
        expect(&rt, &program, "apply", [10.0, 12.0, 14.0]).await;
        let symbols = program.linked_symbols();
        let [LinkedSymbol { name, importer, exporter, source, .. }] = &symbols[..] else {
            panic!("one symbol: {symbols:?}");
        };
        assert_eq!((name.as_str(), importer.digest()), ("tone_9", calls.digest()));
        assert!(exporter.kernels().iter().eq(["tones"]));
        let Some(LibrarySource::Embedded(Embedding { package, version, file, line, .. })) = source
        else {
            panic!("{source:?}");
        };
        assert_eq!((package.as_str(), file.as_str()), ("kiln", "data/tones.spv"));
        assert_eq!((version.as_str(), *line), (env!("CARGO_PKG_VERSION"), TONES));
        let text = symbols[0].to_string();
        for part in ["`tone_9`", "data/tones.spv", "kiln 0.1.0", &place(TONES)] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }
}

everywhere! {
    async fn embedded_libraries_can_be_left_out(rt: Runtime) {
        let without = start(&rt, support::builder().embedded_libraries(false)).await;
        assert_eq!(without.libraries().len(), 0);
        for format in FORMATS {
            let name = if format == ModuleFormat::SpirV { "tone_1" } else { "layered" };
            let calls = application(format, &[name]);
            let error = without.build(&calls).await.expect_err("no library has it");
            assert_eq!(error.kind(), ErrorKind::BuildFailed);
            // The other runtime of this process has the library all the same.
            rt.build(&calls).await.expect("it is embedded");
        }
    }
}

#[test]
fn symbols_are_searched_in_the_requested_module_then_layer_by_layer() {
    let plug_in = plug_in();
    block_on(support::on_each_device(async |rt| {
        let format = ModuleFormat::OpenClC;
        let rt = fresh(&rt).await;
        let layered = |term: f32| library(format, &[function("layered").plus(term)]);
        let (preloaded, registered) = (layered(2.0), layered(3.0));
        let attached = rt.attach(&plug_in).expect("it is attached");
        register(&rt, &[&registered]);
        assert!(rt.preload(&preloaded).expect("it exports"));

        let own = module(format, &[function("layered").plus(1.0)], &[("apply", &["outer"])]);
        let program = rt.build(&own).await.expect("it links");
        expect(&rt, &program, "apply", [20.0, 30.0, 40.0]).await;
        assert_eq!(symbol(&program, "layered", false).source, None, "the requested module");

        let calls = application(format, &["outer"]);
        let check = async |rt: &Runtime, term: f32, expected: fn(&LibrarySource) -> bool| {
            let program = rt.build(&calls).await.expect("it links");
            expect(rt, &program, "apply", [1.0, 2.0, 3.0].map(|x| (x + term) * 10.0)).await;
            let source = symbol(&program, "layered", false).source.expect("it is a library");
            assert!(expected(&source), "{source}");
        };
        check(&rt, 2.0, |source| *source == LibrarySource::Preloaded).await;
        assert!(rt.unregister(&preloaded));
        check(&rt, 3.0, |source| *source == LibrarySource::Registered).await;
        assert!(rt.unregister(&registered));
        check(&rt, 4.0, |source| matches!(source, LibrarySource::Embedded(_))).await;

        let rt = start(&rt, support::builder().embedded_libraries(false)).await;
        let outer = library(format, &[function("outer").of("layered").times(10.0)]);
        register(&rt, &[&outer]);
        rt.build(&calls).await.expect_err("nothing is attached to this runtime");
        let again = rt.attach(&plug_in).expect("it is attached");
        check(&rt, 5.0, |source| matches!(source, LibrarySource::Attached(_))).await;
        drop(again);
        rt.build(&calls).await.expect_err("nothing is attached any more");
        drop(attached);
    }));
}

everywhere! {
    async fn one_of_ten_functions_is_preloaded(rt: Runtime) {
        for link_objects in [false, true] {
            let rt = start(&rt, support::builder().link_objects(link_objects)).await;
            let calls = application(ModuleFormat::SpirV, &["tone_9", "tone_1", "tone_3"]);
            let plain = rt.build(&calls).await.expect("it links");
            // (x + 3 + x + 5) + (x + 1) + (x + 3)
            expect(&rt, &plain, "apply", [16.0, 20.0, 24.0]).await;

            let faster = library(ModuleFormat::SpirV, &[function("tone_3").plus(100.0)]);
            assert!(rt.preload(&faster).expect("it exports"));
            assert!(!rt.preload(&faster).expect("it exports"), "it is preloaded already");
            let program = rt.build(&calls).await.expect("it links");
            // (x + 100 + x + 5) + (x + 1) + (x + 100)
            expect(&rt, &program, "apply", [210.0, 214.0, 218.0]).await;
            expect(&rt, &program, "tones", [107.0, 109.0, 111.0]).await;
            assert_ne!(program.key(), plain.key());
            let own = symbol(&program, "tone_3", false);
            assert_eq!(own.source, Some(LibrarySource::Preloaded));
            assert_eq!(own.importer.digest(), calls.digest());
            let replaced = symbol(&program, "tone_3", true);
            assert_eq!(replaced.exporter.digest(), faster.digest());
            assert!(replaced.importer.kernels().iter().eq(["tones"]));
            for name in ["tone_9", "tone_1"] {
                let source = symbol(&program, name, false).source;
                assert!(matches!(source, Some(LibrarySource::Embedded(_))), "{source:?}");
            }
            let fields = rt.build(&calls).key_fields().expect("it links");
            assert!(fields.contains(&("replaced".to_owned(), "tone_3".to_owned())), "{fields:?}");

            assert!(rt.unregister(&faster));
            assert!(!rt.unregister(&faster), "it is gone");
            let again = rt.build(&calls).await.expect("it links");
            assert_eq!(again.key(), plain.key());
            expect(&rt, &again, "apply", [16.0, 20.0, 24.0]).await;
        }
    }
}

everywhere! {
    async fn definitions_of_the_requested_module_are_not_replaced(rt: Runtime) {
        let rt = fresh(&rt).await;
        let format = ModuleFormat::SpirV;
        assert!(rt.preload(&library(format, &[function("tone_3").plus(100.0)])).expect("valid"));
        let functions = [function("tone_3").plus(50.0)];
        let own = module(format, &functions, &[("apply", &["tone_9", "tone_3"])]);
        let program = rt.build(&own).await.expect("it links");
        // (x + 50 + x + 5) + (x + 50)
        expect(&rt, &program, "apply", [108.0, 111.0, 114.0]).await;
        let replaced = symbol(&program, "tone_3", true);
        assert_eq!((replaced.source, replaced.exporter.digest()), (None, own.digest()));
    }
}

everywhere! {
    async fn the_earlier_of_two_layers_defines_what_both_define(rt: Runtime) {
        let rt = fresh(&rt).await;
        let format = ModuleFormat::SpirV;
        register(&rt, &[&library(format, &[function("tone_5").plus(70.0)])]);
        // Without an import of it, a library keeps its own definition.
        let program = rt.build(&application(format, &["tone_9"])).await.expect("it links");
        expect(&rt, &program, "apply", [10.0, 12.0, 14.0]).await;
        let program = rt.build(&application(format, &["tone_9", "tone_5"])).await;
        let program = program.expect("it links");
        // (x + 3 + x + 70) + (x + 70)
        expect(&rt, &program, "apply", [146.0, 149.0, 152.0]).await;
        assert_eq!(symbol(&program, "tone_5", true).source, Some(LibrarySource::Registered));
    }
}

everywhere! {
    async fn modules_of_different_layers_import_from_each_other(rt: Runtime) {
        let rt = fresh(&rt).await;
        let format = ModuleFormat::SpirV;
        // The application needs a registered library, that needs an embedded one, that needs a preloaded one,
        // and all of these need the application or each other.
        let preloaded = library(format, &[function("tone_3").of("tone_1").plus(10.0)]);
        let outer = [function("outer_tone").of("tone_9"), function("inner").of("bias").times(2.0)];
        assert!(rt.preload(&preloaded).expect("it exports"));
        register(&rt, &[&library(format, &outer)]);
        let kernels: [(&str, &[&str]); 1] = [("apply", &["outer_tone", "inner"])];
        let application = module(format, &[function("bias").plus(1000.0)], &kernels);
        let program = rt.build(&application).await.expect("it links");
        // ((x + 1 + 10) + (x + 5)) + 2 (x + 1000)
        expect(&rt, &program, "apply", [2020.0, 2024.0, 2028.0]).await;
    }
}

everywhere! {
    async fn a_preloaded_text_replaces_a_library_that_is_not_needed_otherwise(rt: Runtime) {
        let rt = fresh(&rt).await;
        let format = ModuleFormat::OpenClC;
        let pair = library(format, &[function("a"), function("b").of("a").times(2.0)]);
        register(&rt, &[&pair]);
        assert!(rt.preload(&library(format, &[function("a").plus(7.0)])).expect("it exports"));
        let program = rt.build(&application(format, &["a"])).await.expect("only one is needed");
        expect(&rt, &program, "apply", [8.0, 9.0, 10.0]).await;
        let error = rt.build(&application(format, &["b"])).await;
        let error = error.expect_err("both texts define `a`");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        let text = error.to_string();
        assert!(text.contains("`a` is exported by"), "{text}");
        assert!(text.contains(&format!("{:.8}", pair.digest())), "{text}");
    }
}

#[test]
fn a_library_that_is_embedded_twice_under_one_name_is_ambiguous() {
    block_on(support::on_each_device(async |rt| {
        let calls = application(ModuleFormat::OpenClC, &["twice"]);
        let text = rt.build(&calls).await.expect_err("`twice` is ambiguous").to_string();
        assert!(text.contains("`twice`, which several modules export"), "{text}");
        assert!(text.contains(&place(TWICE)) && text.contains(&place(TWICE + 1)), "{text}");
        let first = support::builder().duplicate_exports(DuplicateExports::FirstRegistered);
        let rt = start(&rt, first).await;
        let program = rt.build(&calls).await.expect("the first is taken");
        expect(&rt, &program, "apply", [2.0, 4.0, 6.0]).await;
        assert!(symbol(&program, "twice", false).exporter.code().ends_with(b"x * 2; }"));
        // A registered library comes first in any case.
        let rt = fresh(&rt).await;
        register(&rt, &[&library(ModuleFormat::OpenClC, &[function("twice").plus(9.0)])]);
        let program = rt.build(&calls).await.expect("it is registered once");
        expect(&rt, &program, "apply", [10.0, 11.0, 12.0]).await;
    }));
}

everywhere! {
    async fn a_damaged_library_fails_only_the_builds_that_could_need_it(rt: Runtime) {
        for name in ["wreck", "nobody_has_this"] {
            let error = rt.build(&application(ModuleFormat::SpirV, &[name])).await;
            let text = error.expect_err("no valid library has it").to_string();
            for part in ["data/damaged.spv", "kiln 0.1.0", &place(DAMAGED)] {
                assert!(text.contains(part), "{part} is not in: {text}");
            }
        }
        rt.build(&application(ModuleFormat::SpirV, &["tone_1"])).await.expect("it is valid");
    }
}

everywhere! {
    async fn a_hundred_libraries_are_embedded(rt: Runtime) {
        let names = ["numbered_00", "numbered_42", "numbered_99"];
        let program = rt.build(&application(ModuleFormat::OpenClC, &names)).await;
        let program = program.expect("they are embedded");
        expect(&rt, &program, "apply", [144.0, 147.0, 150.0]).await;
        assert_eq!(program.linked_symbols().len(), 3);
        assert_eq!(rt.libraries().len(), EMBEDDED);
    }
}

#[test]
fn libraries_are_listed_in_the_order_of_search() {
    let plug_in = plug_in();
    block_on(support::on_each_device(async |rt| {
        let rt = fresh(&rt).await;
        let attached = rt.attach(&plug_in).expect("it is attached");
        let registered = library(ModuleFormat::SpirV, &[function("a"), function("b")]);
        register(&rt, &[&registered]);
        let preloaded = library(ModuleFormat::SpirV, &[function("c")]).with_label("faster.spv");
        assert!(rt.preload(&preloaded).expect("it exports"));
        let listed = rt.libraries();
        assert_eq!(listed.len(), EMBEDDED + 3);
        assert_eq!(*listed[0].source(), LibrarySource::Preloaded);
        assert_eq!(listed[0].module().expect("valid").label(), Some("faster.spv"));
        assert_eq!(*listed[1].source(), LibrarySource::Registered);
        assert_eq!(listed[1].exports(), ["a", "b"]);
        let embedded = &listed[2..EMBEDDED + 2];
        assert!(embedded.iter().all(|it| matches!(it.source(), LibrarySource::Embedded(_))));
        let lines: Vec<_> = embedded.iter().map(|it| it.source().to_string()).collect();
        assert!(lines[0].contains("data/tones.spv"), "{lines:?}");
        assert_eq!(embedded[1].exports(), [""; 0]);
        let error = embedded[1].module().expect_err("it is damaged");
        assert_eq!(error.kind(), ErrorKind::InvalidModule);
        assert!(matches!(listed[EMBEDDED + 2].source(), LibrarySource::Attached(_)));
        assert_eq!(listed[EMBEDDED + 2].exports(), ["layered", "plugged"]);
        drop(attached);
        assert_eq!(rt.libraries().len(), EMBEDDED + 2);
    }));
}

#[test]
fn a_plug_in_can_be_unloaded_while_programs_build_and_run() {
    let path = plug_ins::build(&children::this_binary());
    block_on(support::on_each_device(async |rt| {
        let rt = fresh(&rt).await;
        let plug_in = PlugIn::load(path.to_str().expect("it is text"));
        let libraries = libraries_of(&plug_in);
        let attached = rt.attach(&libraries).expect("it is attached");
        let again = rt.attach(&libraries).expect("it is attached a second time");
        let calls = application(ModuleFormat::OpenClC, &["plugged"]);
        let first = rt.build(&calls).await.expect("it links");
        // SAFETY: each work-item accesses one element.
        let kernel = unsafe { first.kernel("apply") }.expect("it is there");
        let (queue, x) = (rt.queue(), rt.buffer_from(vec![1.0f32; 3]).await.expect("memory"));
        let launch = || queue.submit(kernel.launch(3).args((&x,))).expect("it fits");
        launch();
        let building = rt.build(&calls).options("-cl-mad-enable").start();

        drop(attached);
        rt.build(&calls).options("-w").await.expect("it is attached once more");
        drop(again);
        drop((plug_in, libraries));
        let error = rt.build(&calls).options("-cl-no-signed-zeros").await;
        assert_eq!(error.expect_err("it is detached").kind(), ErrorKind::BuildFailed);
        let program = building.await.expect("the build had begun");
        expect(&rt, &program, "apply", [5.0, 10.0, 15.0]).await;
        launch();
        assert_eq!(queue.read(&x).await.expect("they ran"), [25.0; 3]);
    }));
}

#[test]
fn a_plug_in_is_detached_whatever_its_runtime_does() {
    block_on(support::on_each_device(async |rt| {
        let rt = fresh(&rt).await;
        let attached = rt.attach(&plug_in()).expect("it is attached");
        drop(rt);
        drop(attached);
    }));
}

#[cfg(feature = "simulated")]
mod simulated {
    use std::collections::HashSet;

    use super::*;
    use kiln::simulated::Simulator;

    #[test]
    fn a_program_needs_all_of_a_hundred_embedded_libraries() {
        block_on(async {
            let simulator = Simulator::immediate();
            let rt = Runtime::builder().simulator(&simulator).build().await.expect("it starts");
            let names: Vec<_> = (0..100).map(|number| format!("numbered_{number:02}")).collect();
            let calls: Vec<_> = names.iter().map(String::as_str).collect();
            let program = rt.build(&application(ModuleFormat::OpenClC, &calls)).await;
            let program = program.expect("they are embedded");
            let symbols = program.linked_symbols();
            let libraries: HashSet<_> = symbols.iter().map(|it| it.exporter.digest()).collect();
            assert_eq!((symbols.len(), libraries.len()), (100, 100));
            assert_eq!(libraries::work_counts(&rt), (101, 1));
        });
    }

    #[test]
    fn preloaded_and_registered_modules_of_one_layer_must_differ_in_their_exports() {
        block_on(async {
            let simulator = Simulator::immediate();
            let rt = Runtime::builder().simulator(&simulator).build().await.expect("it starts");
            let format = ModuleFormat::SpirV;
            for term in [1.0, 2.0] {
                let twin = library(format, &[function("tone_2").plus(term)]);
                assert!(rt.preload(&twin).expect("it exports"));
            }
            let error = rt.build(&application(format, &["tone_9"])).await;
            let text = error.expect_err("two modules replace `tone_2`").to_string();
            assert!(text.contains("needs `tone_2`, which several modules export"), "{text}");
            assert_eq!(text.matches("(preloaded)").count(), 2, "{text}");
        });
    }

    #[test]
    fn a_module_without_exports_cannot_be_preloaded() {
        block_on(async {
            let simulator = Simulator::immediate();
            let rt = Runtime::builder().simulator(&simulator).build().await.expect("it starts");
            let error = rt.preload(&kiln::Module::opencl_c("kernel void k() {}"));
            assert_eq!(error.expect_err("it exports nothing").kind(), ErrorKind::InvalidArgument);
        });
    }
}
