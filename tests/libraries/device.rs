//! Device libraries: imports are resolved at run time, each module is compiled once, and linked programs are
//! kept in memory and on disk. All tests run with OpenCL C and SPIR-V, which Kiln links and translates for
//! devices that take neither.

use std::path::Path;

use kiln::build::Origin;
use kiln::devices::ModuleFormat;
use kiln::libraries::DuplicateExports;
use kiln::store::EntryInfo;
use kiln::{CacheConfig, ErrorKind, Module, Runtime, RuntimeBuilder};
use support::entries::Parts;
use support::everywhere;
use support::libraries::{
    application, expect, function, library, links, module, module_that_imports, register,
    work_counts, work_counts_of_one,
};
use support::stores;
use support::tier;
use support::{builder, on_each_device};

/// Creates a runtime that shares nothing with `like`, so that counts and libraries are its own.
async fn fresh(like: &Runtime) -> Runtime {
    start(like, builder()).await
}

async fn fresh_at(like: &Runtime, directory: &Path) -> Runtime {
    start(like, Runtime::builder().cache(CacheConfig::at(directory))).await
}

async fn start(like: &Runtime, builder: RuntimeBuilder) -> Runtime {
    let device = like.device().index().to_string();
    builder.device(device).link_objects(true).build().await.expect("it starts")
}

/// Defines a test that runs under every executor, on every device, with both formats that have symbols.
macro_rules! with_each_format {
    ($($test:tt)*) => {
        with_formats! { |_| [ModuleFormat::OpenClC, ModuleFormat::SpirV], $($test)* }
    };
}

/// Like `with_each_format`, with the formats of which the device links objects itself.
macro_rules! with_each_linked_format {
    ($($test:tt)*) => {
        with_formats! {
            |rt: &Runtime| {
                let mut formats = vec![ModuleFormat::OpenClC, ModuleFormat::SpirV];
                formats.retain(|format| links(rt, *format));
                formats
            },
            $($test)*
        }
    };
}

macro_rules! with_formats {
    (
        $formats:expr, $(#[$meta:meta])*
        async fn $name:ident($rt:ident, $format:ident) $body:block
    ) => {
        everywhere! {
            $(#[$meta])*
            async fn $name(like: Runtime) {
                for $format in ($formats)(&like) {
                    let $rt = fresh(&like).await;
                    $body
                }
            }
        }
    };
}

#[test]
fn drivers_link_exactly_the_formats_that_they_accept() {
    smol::block_on(on_each_device(async |rt| {
        let device = rt.device();
        for format in [ModuleFormat::OpenClC, ModuleFormat::SpirV] {
            let takes = device.formats.contains(&format);
            assert_eq!(device.links.contains(&format), takes, "{device}, {format}");
        }
    }));
}

/// Returns two modules that call functions of each other.
fn mutual(format: ModuleFormat) -> [Module; 2] {
    [
        module(format, &[function("bias").plus(10.0)], &[("apply", &["twice"])]),
        // `twice(x)` is 2x + 10, which equals `bias(x) + x`.
        module(
            format,
            &[
                function("twice").of("bias").times(2.0).plus(-10.0),
                function("more").of("twice").plus(1.0),
            ],
            &[("own", &["more"])],
        ),
    ]
}

/// Creates a runtime that uses the first registered of several exports of the same name.
async fn permissive(like: &Runtime) -> Runtime {
    let builder = builder().device(like.device().index().to_string()).link_objects(true);
    let builder = builder.duplicate_exports(DuplicateExports::FirstRegistered);
    builder.build().await.expect("it starts")
}

with_each_format! {
    async fn a_chain_of_four_libraries_is_linked(rt, format) {
        let libraries = [
            library(format, &[function("one").of("two").plus(1.0)]),
            library(format, &[function("two").of("three").times(2.0)]),
            library(format, &[function("three").of("four").plus(3.0)]),
            library(format, &[function("four").times(4.0)]),
        ];
        register(&rt, &libraries.each_ref());
        let program = rt.build(&application(format, &["one"])).await.expect("it links");
        expect(&rt, &program, "apply", [15.0, 23.0, 31.0]).await;
        assert_eq!(work_counts(&rt), work_counts_of_one(&rt, format, 5));
    }
}

with_each_format! {
    async fn modules_that_import_from_each_other_share_one_program(rt, format) {
        let [application, library] = mutual(format);
        for first in [&application, &library] {
            let rt = fresh(&rt).await;
            register(&rt, &[&application, &library]);
            let program = rt.build(first).await.expect("it links");
            expect(&rt, &program, "apply", [12.0, 14.0, 16.0]).await;
            expect(&rt, &program, "own", [13.0, 15.0, 17.0]).await;
            for module in [&application, &library] {
                let again = rt.build(module).await.expect("it is there");
                assert_eq!((again.origin(), again.key()), (Origin::Memory, program.key()));
            }
            assert_eq!(work_counts(&rt), work_counts_of_one(&rt, format, 2));
        }
    }
}

with_each_format! {
    async fn a_library_may_import_from_the_application_that_imports_from_it(rt, format) {
        let [application, library] = mutual(format);
        register(&rt, &[&library]);
        let program = rt.build(&application).await.expect("it links");
        expect(&rt, &program, "apply", [12.0, 14.0, 16.0]).await;
        let error = rt.build(&library).await.expect_err("no other module exports `bias`");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
    }
}

with_each_linked_format! {
    async fn a_library_of_two_applications_is_compiled_once(rt, format) {
        register(&rt, &[&library(format, &[function("scale").times(3.0)])]);
        let other = module(format, &[], &[("other", &["scale", "scale"])]);
        let one = rt.build(&application(format, &["scale"])).start();
        let (one, other) = futures::join!(one, rt.build(&other).into_future());
        expect(&rt, &one.expect("it links"), "apply", [3.0, 6.0, 9.0]).await;
        expect(&rt, &other.expect("it links"), "other", [6.0, 12.0, 18.0]).await;
        assert_eq!(work_counts(&rt), (3, 2), "two applications and one library");
    }
}

with_each_linked_format! {
    async fn a_library_with_kernels_can_be_built_before_or_after_an_application(rt, format) {
        let library =
            module(format, &[function("scale").times(3.0)], &[("own", &["scale", "scale"])]);
        let application = application(format, &["scale"]);

        let before = fresh(&rt).await;
        register(&before, &[&library]);
        let own = before.build(&library).await.expect("it builds");
        expect(&before, &own, "own", [6.0, 12.0, 18.0]).await;
        let program = before.build(&application).await.expect("it links");
        expect(&before, &program, "apply", [3.0, 6.0, 9.0]).await;
        assert_eq!(work_counts(&before), (2, 2), "the library is not compiled again");

        let after = fresh(&rt).await;
        register(&after, &[&library]);
        let program = after.build(&application).await.expect("it links");
        expect(&after, &program, "apply", [3.0, 6.0, 9.0]).await;
        let own = after.build(&library).await.expect("it is there");
        assert_eq!(own.origin(), Origin::Memory, "the existing program has its kernel");
        expect(&after, &own, "own", [6.0, 12.0, 18.0]).await;
        assert_eq!(work_counts(&after), (2, 1));
    }
}

with_each_linked_format! {
    async fn a_library_is_linked_without_the_options_of_an_application(rt, format) {
        const OPTIONS: &str = "-cl-fast-relaxed-math";
        let library = module(format, &[function("scale").times(3.0)], &[("own", &["scale"])]);
        register(&rt, &[&library]);
        let application = application(format, &["scale"]);
        rt.build(&application).options(OPTIONS).await.expect("it links");
        let own = rt.build(&library).options(OPTIONS).await.expect("it builds");
        assert_eq!(own.origin(), Origin::Compiled, "the existing program has no options");
        let plain = rt.build(&library).await.expect("it is there");
        assert_eq!(plain.origin(), Origin::Memory);
    }
}

with_each_linked_format! {
    async fn the_order_of_registration_does_not_change_the_program(rt, format) {
        let directory = tempfile::tempdir().expect("there is room");
        let (a, b) = (
            library(format, &[function("a").plus(1.0)]),
            library(format, &[function("b").times(10.0)]),
        );
        let application = application(format, &["a", "b"]);
        let first = fresh_at(&rt, directory.path()).await;
        register(&first, &[&a, &b]);
        let program = first.build(&application).await.expect("it links");
        assert_eq!(program.origin(), Origin::Compiled);
        first.unregister(&a);
        register(&first, &[&a]);
        let again = first.build(&application).await.expect("it is there");
        assert_eq!((again.origin(), again.key()), (Origin::Memory, program.key()));
        assert_eq!(work_counts(&first), (3, 1));
        first.drain().await;

        let second = fresh_at(&rt, directory.path()).await;
        register(&second, &[&b, &a]);
        let loaded = second.build(&application).await.expect("it loads");
        assert_eq!((loaded.origin(), loaded.key()), (Origin::Disk, program.key()));
        expect(&second, &loaded, "apply", [12.0, 23.0, 34.0]).await;
        assert_eq!(work_counts(&second), (0, 0));

        // Objects are on disk as well: another application compiles only its own module.
        let third = fresh_at(&rt, directory.path()).await;
        register(&third, &[&a, &b]);
        let other = module(format, &[], &[("other", &["a"])]);
        let program = third.build(&other).await.expect("it links");
        expect(&third, &program, "other", [2.0, 3.0, 4.0]).await;
        assert_eq!(work_counts(&third), (1, 1));
    }
}

with_each_linked_format! {
    async fn a_stored_object_of_another_module_is_compiled_again(rt, format) {
        if !rt.device().formats.contains(&format) {
            // The objects of OpenCL C are built from its SPIR-V.
            continue;
        }
        let directory = tempfile::tempdir().expect("there is room");
        let scale = library(format, &[function("scale").times(3.0)]);
        let application = application(format, &["scale"]);
        let first = fresh_at(&rt, directory.path()).await;
        register(&first, &[&scale]);
        first.build(&application).await.expect("it links");
        first.drain().await;

        // The application's object replaces the library's, with a valid checksum, and the program is removed.
        let store = stores::open(directory.path());
        let entry_of = |kind: &str, module: &Module| {
            let digest = module.digest().to_string();
            let fits = |entry: &EntryInfo| {
                let record = smol::block_on(store.record(entry)).expect("it is whole");
                record.field("kind") == Some(kind)
                    && record.fields.contains(&("module".to_owned(), digest.clone()))
            };
            let mut entries = stores::entries(&store).into_iter();
            let path = entries.find(fits).expect("it is stored").path().to_owned();
            (Parts::of(&std::fs::read(&path).expect("it is there")), path)
        };
        let (wrong, _) = entry_of("object", &application);
        let (right, path) = entry_of("object", &scale);
        let forged = Parts { payload: wrong.payload, ..right };
        std::fs::write(path, forged.file()).expect("there is room");
        std::fs::remove_file(entry_of("program", &application).1).expect("it is ours");

        let second = fresh_at(&rt, directory.path()).await;
        register(&second, &[&scale]);
        let program = second.build(&application).await.expect("it is repaired");
        expect(&second, &program, "apply", [3.0, 6.0, 9.0]).await;
        assert_eq!(second.stats().disk.refused, 1);
        second.drain().await;

        // The repaired objects are used, in memory and on disk: only the application itself is compiled.
        let third = fresh_at(&rt, directory.path()).await;
        register(&third, &[&scale]);
        for (rt, kernel) in [(&second, "other"), (&third, "another")] {
            let (compiles, links) = work_counts(rt);
            let module = module(format, &[], &[(kernel, &["scale", "scale"])]);
            let program = rt.build(&module).await.expect("it links");
            expect(rt, &program, kernel, [6.0, 12.0, 18.0]).await;
            assert_eq!(work_counts(rt), (compiles + 1, links + 1));
        }
        assert_eq!(third.stats().disk.refused, 0);
    }
}

with_each_linked_format! {
    async fn the_binary_of_a_linked_program_can_be_loaded(rt, format) {
        register(&rt, &[&library(format, &[function("scale").times(3.0)])]);
        let linked = rt.build(&application(format, &["scale"])).await.expect("it links");
        let binary = linked.binary().expect("it has one");
        let program = rt.build(&Module::native(binary.clone()).expect("it is not empty")).await;
        let program = program.expect("the driver made it");
        assert_eq!(program.kernel_names(), linked.kernel_names());
        expect(&rt, &program, "apply", [3.0, 6.0, 9.0]).await;
        // Other drivers have formats of their own, which not all of them check.
        if rt.device().backend == "level-zero" {
            assert_eq!(program.binary().expect("it has one"), binary);
            let cuts = [17, 31, binary.len() / 2, binary.len() - 1].map(|at| &binary[..at]);
            for damaged in cuts.into_iter().chain([&[&binary[..], b"more"].concat()[..]]) {
                let module = Module::native(damaged).expect("it is not empty");
                let error = rt.build(&module).await.expect_err("it is damaged");
                assert_eq!(error.kind(), ErrorKind::BuildFailed, "{error}");
            }
        }
    }
}

/// PoCL treats the programs as one, which it keeps in one file, and rewrites the file for each of them.
#[test]
fn programs_that_differ_only_in_a_comment_link_concurrently() {
    smol::block_on(on_each_device(async |like| {
        if !links(&like, ModuleFormat::OpenClC) {
            return;
        }
        let rt = fresh(&like).await;
        register(&rt, &[&library(ModuleFormat::OpenClC, &[function("scale").times(3.0)])]);
        let text =
            String::from_utf8(application(ModuleFormat::OpenClC, &["scale"]).code().to_vec());
        let text = text.expect("it is text");
        let build = async |thread, round| {
            let module =
                Module::opencl_c(format!("{text}// {thread}, {round}")).importing(["scale"]);
            let linked = rt.build(&module).await.expect("it links");
            let binary = linked.binary().expect("it has one");
            let module = Module::native(binary).expect("it is not empty");
            let program = rt.build(&module).await.expect("the driver made it");
            assert_eq!(program.kernel_names(), ["apply"]);
        };
        let rounds = tier::cases("KILN_TEST_ROUNDS", 20, 6);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let build = &build;
                let builds = async move || {
                    for round in 0..rounds {
                        build(thread, round).await;
                    }
                };
                scope.spawn(move || smol::block_on(builds()));
            }
        });
    }));
}

everywhere! {
    async fn drivers_that_do_not_inline_linked_calls_link_only_on_request(rt: Runtime) {
        let library = library(ModuleFormat::SpirV, &[function("scale").times(3.0)]);
        let application = application(ModuleFormat::SpirV, &["scale"]);
        let calls = rt.device().backend == "level-zero";
        let mut keys = Vec::new();
        for link in [false, true] {
            let device = rt.device().index().to_string();
            let rt = builder().device(device).link_objects(link).build().await.expect("it starts");
            register(&rt, &[&library]);
            let program = rt.build(&application).await.expect("it links");
            let is_linked = links(&rt, ModuleFormat::SpirV) && (link || !calls);
            assert_eq!(work_counts(&rt), if is_linked { (2, 1) } else { (1, 0) });
            assert_eq!(program.kernel_names(), ["apply"]);
            keys.push(program.key());
        }
        assert_eq!(keys[0] != keys[1], calls, "the keys differ if the programs do");
    }
}

everywhere! {
    async fn functions_with_much_private_memory_are_not_linked_as_objects(rt: Runtime) {
        if rt.device().backend != "level-zero" {
            return;
        }
        let rt = fresh(&rt).await;
        let text = |size: usize| {
            format!(
                "float scale(float x) {{
                     volatile float all[{size}];
                     for (int i = 0; i < {size}; i++) all[i] = x;
                     return all[(int)x & 7];
                 }}"
            )
        };
        let application = application(ModuleFormat::OpenClC, &["scale"]);
        for (size, expected) in [(16, (2, 1)), (1024, (1, 0))] {
            let before = work_counts(&rt);
            let library = Module::opencl_c(text(size)).exporting(["scale"]);
            register(&rt, &[&library]);
            rt.build(&application).await.expect("it links");
            rt.unregister(&library);
            let after = work_counts(&rt);
            assert_eq!((after.0 - before.0, after.1 - before.1), expected, "{size}");
        }
    }
}

with_each_format! {
    async fn missing_exports_are_reported_with_the_import_chain(rt, format) {
        let scale = application(format, &["scale"]);
        let error = rt.build(&scale).await.expect_err("there is no library");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        let text = error.to_string();
        assert!(text.contains("`scale`") && text.contains("Runtime::register"), "{text}");

        let libraries = [
            library(format, &[function("outer").of("scale")]),
            library(format, &[function("scales")]),
            library(format, &[function("unlike")]),
        ];
        register(&rt, &libraries.each_ref());
        let outer = application(format, &["outer"]);
        let text = rt.build(&outer).await.expect_err("no `scale`").to_string();
        for part in ["imports `scale`", "(outer)", "needed for `outer` by", "`scales`"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        assert!(!text.contains("`unlike`"), "{text}");
        assert_eq!(work_counts(&rt), (0, 0), "no driver was called");

        register(&rt, &[&library(format, &[function("scale").plus(1.0)])]);
        let program = rt.build(&outer).await.expect("`scale` is exported now");
        expect(&rt, &program, "apply", [2.0, 3.0, 4.0]).await;
    }
}

with_each_format! {
    async fn duplicate_exports_are_an_error_unless_the_first_is_preferred(rt, format) {
        let first = library(format, &[function("scale").times(2.0)]);
        let second = library(format, &[function("scale").times(3.0)]);
        let application = application(format, &["scale"]);
        register(&rt, &[&first, &second]);
        assert!(!rt.register(&first).expect("it exports"), "it is registered already");
        let text = rt.build(&application).await.expect_err("`scale` is ambiguous").to_string();
        for module in [&first, &second] {
            assert!(text.contains(&format!("{:.8}", module.digest())), "{text}");
        }
        assert!(rt.unregister(&second));
        assert!(!rt.unregister(&second), "it is no longer registered");
        let program = rt.build(&application).await.expect("one is left");
        expect(&rt, &program, "apply", [2.0, 4.0, 6.0]).await;

        let permissive = permissive(&rt).await;
        register(&permissive, &[&second, &first]);
        let program = permissive.build(&application).await.expect("the first is taken");
        expect(&permissive, &program, "apply", [3.0, 6.0, 9.0]).await;
    }
}

with_each_format! {
    async fn a_symbol_that_two_linked_modules_define_is_an_error(rt, format) {
        let rt = permissive(&rt).await;
        let pair = library(format, &[function("a"), function("b")]);
        register(&rt, &[&library(format, &[function("a").plus(1.0)]), &pair]);
        let error = rt.build(&application(format, &["a", "b"])).await;
        let error = error.expect_err("`a` would be defined twice");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        assert!(error.to_string().contains("`a` is exported by"), "{error}");
    }
}

everywhere! {
    async fn mergeable_functions_are_not_duplicate_exports(rt: Runtime) {
        let rt = fresh(&rt).await;
        let shared = function("shared").plus(1.0).mergeable();
        let one = |name| library(ModuleFormat::SpirV, &[shared, function(name).of("shared")]);
        register(&rt, &[&one("a"), &one("b")]);
        let both = application(ModuleFormat::SpirV, &["a", "b"]);
        let program = rt.build(&both).await.expect("they have the same definition");
        expect(&rt, &program, "apply", [4.0, 6.0, 8.0]).await;
        let direct = application(ModuleFormat::SpirV, &["shared"]);
        let program = rt.build(&direct).await.expect("either definition can be used");
        expect(&rt, &program, "apply", [2.0, 3.0, 4.0]).await;
    }
}

with_each_format! {
    async fn modules_of_another_format_are_not_linked(rt, format) {
        let other = match format {
            ModuleFormat::SpirV => ModuleFormat::OpenClC,
            _ => ModuleFormat::SpirV,
        };
        register(&rt, &[&library(other, &[function("scale")])]);
        let error = rt.build(&application(format, &["scale"])).await;
        let error = error.expect_err("the library has another format");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        assert!(error.to_string().contains("different formats"), "{error}");
    }
}

with_each_format! {
    async fn kernels_cannot_be_imported(rt, format) {
        let library = module(ModuleFormat::SpirV, &[function("f")], &[("own", &["f"])]);
        register(&rt, &[&library]);
        let error = rt.build(&application(format, &["own"])).await.expect_err("it is a kernel");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        assert!(error.to_string().contains("kernels cannot be imported"), "{error}");
    }
}

with_each_linked_format! {
    async fn unregistering_does_not_affect_programs_in_use_or_in_flight_builds(rt, format) {
        let old = library(format, &[function("scale").times(2.0)]);
        let new = library(format, &[function("scale").times(3.0)]);
        let application = application(format, &["scale"]);
        register(&rt, &[&old]);
        let building = rt.build(&application).start();
        assert!(rt.unregister(&old));
        let held = building.await.expect("the build had started");
        expect(&rt, &held, "apply", [2.0, 4.0, 6.0]).await;
        rt.build(&application).await.expect_err("no library exports `scale` now");

        // Launches of the old program are in flight meanwhile.
        // SAFETY: each work-item accesses one element.
        let kernel = unsafe { held.kernel("apply") }.expect("it is there");
        let (queue, x) = (rt.queue(), rt.buffer_from(vec![1.0f32; 3]).await.expect("memory"));
        for _ in 0..10 {
            queue.submit(kernel.launch(3).args((&x,))).expect("it fits");
        }
        register(&rt, &[&new]);
        let program = rt.build(&application).await.expect("it links");
        expect(&rt, &program, "apply", [3.0, 6.0, 9.0]).await;
        assert_eq!(queue.read(&x).await.expect("they ran"), [1024.0; 3]);
        assert_eq!(work_counts(&rt), (3, 2), "the application is not compiled again");
    }
}

with_each_format! {
    async fn programs_of_an_unregistered_library_are_evicted_unless_held(rt, format) {
        let library = library(format, &[function("scale")]);
        register(&rt, &[&library]);
        let program = rt.build(&application(format, &["scale"])).await.expect("it links");
        let kept = rt.stats().memory.programs;
        rt.unregister(&library);
        assert_eq!(rt.stats().memory.programs, kept, "it is held");
        drop(program);
        register(&rt, &[&library]);
        rt.unregister(&library);
        assert_eq!(rt.stats().memory.programs, kept - 1);
    }
}

with_each_format! {
    async fn a_modules_own_definition_takes_precedence(rt, format) {
        register(&rt, &[&library(format, &[function("scale").times(100.0)])]);
        let functions = [function("scale").plus(1.0)];
        let own = module_that_imports(format, &functions, &[("apply", &["scale"])], &["scale"]);
        assert_eq!(own.imports().collect::<Vec<_>>(), ["scale"]);
        let program = rt.build(&own).await.expect("it defines what it imports");
        expect(&rt, &program, "apply", [2.0, 3.0, 4.0]).await;
        assert_eq!(rt.stats().builds.compiles, 1);
    }
}

#[test]
fn modules_without_exports_are_refused_as_libraries() {
    smol::block_on(on_each_device(async |rt| {
        let native = Module::native(*b"\x7fELF").expect("it is not empty");
        for module in [application(ModuleFormat::OpenClC, &["f"]), native] {
            let error = rt.register(&module).expect_err("it exports nothing");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(!rt.unregister(&module), "it is not registered");
        }
    }));
}

everywhere! {
    async fn link_errors_that_name_the_symbol_are_cached(rt: Runtime) {
        let rt = fresh(&rt).await;
        // Exports a function that it does not define.
        let broken = Module::opencl_c("float other(float x) { return x; }").exporting(["scale"]);
        register(&rt, &[&broken]);
        let application = application(ModuleFormat::OpenClC, &["scale"]);
        let error = rt.build(&application).await.expect_err("the linker finds nothing");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        assert!(error.driver_code().is_some(), "{error}");
        let again = rt.build(&application).await.expect_err("as before");
        assert_eq!(again.kind(), ErrorKind::BuildFailed);
        // A refusal without a reason may be temporary: PoCL gives no log of a failed link.
        let names_symbol = error.build_log().is_some_and(|log| log.contains("scale"));
        let is_kept = error.is_deterministic();
        assert!(is_kept || !names_symbol, "{error}");
        assert_eq!(again.same(&error), is_kept, "{error}");
        assert_eq!(work_counts(&rt), (2, if is_kept { 1 } else { 2 }));
    }
}

everywhere! {
    async fn a_library_that_does_not_compile_is_named(rt: Runtime) {
        let rt = fresh(&rt).await;
        let text = "float scale(float x) { return undeclared; }";
        let broken = Module::opencl_c(text).exporting(["scale"]);
        register(&rt, &[&broken]);
        let error = rt.build(&application(ModuleFormat::OpenClC, &["scale"])).await;
        let error = error.expect_err("it does not compile");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        assert!(error.to_string().contains(&format!("{:.8}", broken.digest())), "{error}");
        assert!(error.build_log().is_some_and(|log| log.contains("undeclared")), "{error}");
    }
}

everywhere! {
    async fn a_library_is_opened_and_registered_in_one_step(rt: Runtime) {
        let rt = fresh(&rt).await;
        let directory = tempfile::tempdir().expect("there is room");
        let path = directory.path().join("library.spv");
        let library = library(ModuleFormat::SpirV, &[function("scale")]);
        std::fs::write(&path, library.code()).expect("there is room");
        let opened = rt.open_library(&path).await.expect("it exports something");
        assert_eq!(opened.digest(), library.digest());
        assert!(rt.unregister(&library));

        let path = directory.path().join("text.cl");
        std::fs::write(&path, "kernel void f() {}").expect("there is room");
        let error = rt.open_library(&path).await.expect_err("it states no exports");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("text.cl"), "{error}");
    }
}

with_each_linked_format! {
    async fn concurrent_builds_with_shared_libraries_compile_each_module_once(rt, format) {
        const LIBRARIES: usize = 6;
        const APPLICATIONS: usize = 8;
        let names: Vec<_> = (0..LIBRARIES).map(|n| format!("f{n}")).collect();
        let one = |n: usize| library(format, &[function(&names[n]).plus(n as f32)]);
        let libraries: Vec<_> = (0..LIBRARIES).map(one).collect();
        register(&rt, &libraries.iter().collect::<Vec<_>>());
        let called = |n: usize| [0, 1, 2].map(|k| (n + k * (1 + n / LIBRARIES)) % LIBRARIES);
        let applications: Vec<_> = (0..APPLICATIONS)
            .map(|n| {
                let calls = called(n).map(|library| names[library].as_str());
                module(format, &[], &[(&format!("apply{n}"), &calls)])
            })
            .collect();
        let builds = applications.iter().map(|module| rt.build(module).into_future());
        let programs = futures::future::join_all(builds).await;
        for (n, program) in programs.into_iter().enumerate() {
            let sum: usize = called(n).iter().sum();
            let expected = [1, 2, 3].map(|x| (3 * x + sum) as f32);
            expect(&rt, &program.expect("it links"), &format!("apply{n}"), expected).await;
        }
        assert_eq!(work_counts(&rt), ((LIBRARIES + APPLICATIONS) as u64, APPLICATIONS as u64));
    }
}

everywhere! {
    async fn constants_of_every_linked_module_can_be_set(rt: Runtime) {
        let rt = fresh(&rt).await;
        let format = ModuleFormat::SpirV;
        // Both constants have the id 7.
        let a = library(format, &[function("a").plus_constant(7, 1.0)]);
        let b = library(
            format,
            &[function("b").plus_constant(7, 2.0), function("c").plus_constant(8, 4.0)],
        );
        register(&rt, &[&a, &b]);
        let application = module(
            format,
            &[function("own").plus_constant(9, 8.0)],
            &[("apply", &["a", "b", "c", "own"])],
        );
        // The result is 4x and the terms.
        let apply = async |request: kiln::BuildRequest, terms: f32| {
            let program = request.await.expect("it links");
            expect(&rt, &program, "apply", [1.0, 2.0, 3.0].map(|x| 4.0 * x + terms)).await;
        };
        let request = || rt.build(&application);
        apply(request(), 15.0).await;
        apply(request().specialize(9, 80.0f32), 87.0).await;
        // Only one library has the constant.
        apply(request().specialize(8, 40.0f32), 51.0).await;
        let both = request().specialize_in(&a, 7, 10.0f32).specialize_in(&b, 7, 20.0f32);
        apply(both, 42.0).await;
        // The last value is used.
        let last = request().specialize_in(&a, 7, 10.0f32).specialize_in(&a, 7, 20.0f32);
        apply(last, 34.0).await;

        let refused = async |request: kiln::BuildRequest| {
            let error = request.await.expect_err("the value is invalid");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            error.to_string()
        };
        let text = refused(request().specialize(7, 1.0f32)).await;
        for module in [&a, &b] {
            assert!(text.contains(&format!("{:.8}", module.digest())), "{text}");
        }
        let text = refused(request().specialize(3, 1.0f32)).await;
        for id in ["7 ", "8 ", "9 "] {
            assert!(text.contains(id), "all ids are listed: {text}");
        }
        let text = refused(request().specialize_in(&b, 8, 1u8)).await;
        assert!(text.contains("1 bytes") && text.contains("7 "), "{text}");
        let unlinked = library(format, &[function("d").plus_constant(7, 1.0)]);
        let text = refused(request().specialize_in(&unlinked, 7, 1.0f32)).await;
        assert!(text.contains("not part of the program"), "{text}");
    }
}
