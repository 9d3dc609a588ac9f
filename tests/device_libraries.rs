//! Device libraries: imports resolved at run time, each image compiled once, and programs linked from
//! them kept in memory and on disk.

mod support;

use std::path::Path;

use kiln::{CacheConfig, DuplicateExports, ErrorKind, Image, Origin, Program, Runtime};
use support::{builder, on_each_device};

/// Writes `f(x)` for every `x`, `f` being a function of some library.
fn application(function: &str) -> Image {
    Image::opencl_c(format!(
        "float {function}(float x);
         kernel void apply(global float *x) {{
             size_t i = get_global_id(0);
             x[i] = {function}(x[i]);
         }}"
    ))
    .importing([function])
}

/// Exports `name(x)`, which is `body`.
fn library(name: &str, body: &str) -> Image {
    Image::opencl_c(format!("float {name}(float x) {{ return {body}; }}")).exporting([name])
}

/// The same, calling a function of another library.
fn library_over(name: &str, body: &str, imported: &str) -> Image {
    let text = format!("float {imported}(float x); float {name}(float x) {{ return {body}; }}");
    Image::opencl_c(text).exporting([name]).importing([imported])
}

/// What a kernel makes of 1, 2, 3.
async fn run(rt: &Runtime, program: &Program, kernel: &str) -> Vec<f32> {
    // SAFETY: the kernels of this suite touch one element a work-item.
    let kernel = unsafe { program.kernel(kernel) }.expect("the kernel is there");
    let x = rt.buffer_from(vec![1.0f32, 2.0, 3.0]).await.expect("there is memory");
    let queue = rt.queue();
    queue.submit(kernel.launch(3).args((&x,))).expect("it fits");
    queue.read(&x).await.expect("it runs")
}

fn register(rt: &Runtime, libraries: &[&Image]) {
    for library in libraries {
        assert!(rt.register(library).expect("it exports something"), "it is new");
    }
}

/// A runtime that shares nothing with `like`, so that counts and libraries are its own.
async fn fresh(like: &Runtime) -> Runtime {
    let device = like.device().index().to_string();
    builder().device(device).build().await.expect("it starts")
}

async fn fresh_at(like: &Runtime, directory: &Path) -> Runtime {
    let device = like.device().index().to_string();
    let builder = Runtime::builder().device(device).cache(CacheConfig::at(directory));
    builder.build().await.expect("it starts")
}

fn compiles(rt: &Runtime) -> (u64, u64) {
    (rt.stats().compiles, rt.stats().links)
}

everywhere! {
    async fn a_chain_of_four_libraries_is_linked(rt: Runtime) {
        let rt = fresh(&rt).await;
        let libraries = [
            library_over("one", "two(x) + 1", "two"),
            library_over("two", "three(x) * 2", "three"),
            library_over("three", "four(x) + 3", "four"),
            library("four", "x * 4"),
        ];
        register(&rt, &libraries.each_ref());
        let program = rt.build(&application("one")).await.expect("it links");
        assert_eq!(run(&rt, &program, "apply").await, [15.0, 23.0, 31.0]);
        assert_eq!(compiles(&rt), (5, 1));
    }
}

everywhere! {
    async fn images_may_import_from_each_other(rt: Runtime) {
        let rt = fresh(&rt).await;
        let application = Image::opencl_c(
            "float even(float x);
             float odd(float x) { return x == 0 ? 0 : even(x - 1); }
             kernel void apply(global float *x) {
                 size_t i = get_global_id(0);
                 x[i] = odd(x[i]);
             }",
        )
        .exporting(["odd"])
        .importing(["even"]);
        let library = Image::opencl_c(
            "float odd(float x);
             float even(float x) { return x == 0 ? 1 : odd(x - 1); }
             kernel void other(global float *x) {
                 size_t i = get_global_id(0);
                 x[i] = even(x[i]);
             }",
        )
        .exporting(["even"])
        .importing(["odd"]);
        register(&rt, &[&application, &library]);
        // Not every compiler takes recursion, which OpenCL C does not allow.
        match rt.build(&application).await {
            Ok(program) => {
                assert_eq!(program.kernel_names().len(), 2);
                let again = rt.build(&library).await.expect("it is the same program");
                assert_eq!((again.origin(), again.key()), (Origin::Memory, program.key()));
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::BuildFailed),
        }
        assert_eq!(compiles(&rt), (2, 1));
    }
}

/// Two images that call functions of each other, without recursion.
fn mutual() -> [Image; 2] {
    let application = Image::opencl_c(
        "float twice(float x);
         float bias(void) { return 10; }
         kernel void apply(global float *x) {
             size_t i = get_global_id(0);
             x[i] = twice(x[i]);
         }",
    );
    let library = Image::opencl_c(
        "float bias(void);
         float twice(float x) { return 2 * x + bias(); }
         kernel void own(global float *x) {
             size_t i = get_global_id(0);
             x[i] = twice(x[i]) + 1;
         }",
    );
    [
        application.exporting(["bias"]).importing(["twice"]),
        library.exporting(["twice"]).importing(["bias"]),
    ]
}

everywhere! {
    async fn mutual_imports_are_one_program_from_either_side(rt: Runtime) {
        let [application, library] = mutual();
        for first in [&application, &library] {
            let rt = fresh(&rt).await;
            register(&rt, &[&application, &library]);
            let program = rt.build(first).await.expect("it links");
            assert_eq!(run(&rt, &program, "apply").await, [12.0, 14.0, 16.0]);
            assert_eq!(run(&rt, &program, "own").await, [13.0, 15.0, 17.0]);
            for image in [&application, &library] {
                let again = rt.build(image).await.expect("it is there");
                assert_eq!((again.origin(), again.key()), (Origin::Memory, program.key()));
            }
            assert_eq!(compiles(&rt), (2, 1));
        }
    }
}

everywhere! {
    async fn an_unregistered_application_may_be_imported_from(rt: Runtime) {
        let rt = fresh(&rt).await;
        let [application, library] = mutual();
        register(&rt, &[&library]);
        let program = rt.build(&application).await.expect("it links");
        assert_eq!(run(&rt, &program, "apply").await, [12.0, 14.0, 16.0]);
        let error = rt.build(&library).await.expect_err("nobody else exports `bias`");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
    }
}

everywhere! {
    async fn a_library_of_two_applications_is_compiled_once(rt: Runtime) {
        let rt = fresh(&rt).await;
        let library = library("scale", "x * 3");
        register(&rt, &[&library]);
        let other = Image::opencl_c(
            "float scale(float x);
             kernel void other(global float *x) { x[get_global_id(0)] = scale(1) + 4; }",
        )
        .importing(["scale"]);
        let (first, second) =
            futures::join!(rt.build(&application("scale")).into_future(), rt.build(&other).into_future());
        assert_eq!(run(&rt, &first.expect("it links"), "apply").await, [3.0, 6.0, 9.0]);
        assert_eq!(run(&rt, &second.expect("it links"), "other").await, [7.0; 3]);
        assert_eq!(compiles(&rt), (3, 2), "two applications and one library");
    }
}

/// Exports a function, and has a kernel of its own.
fn library_with_kernel() -> Image {
    Image::opencl_c(
        "float scale(float x) { return 3 * x; }
         kernel void own(global float *x) {
             size_t i = get_global_id(0);
             x[i] = scale(x[i]) + 1;
         }",
    )
    .exporting(["scale"])
}

everywhere! {
    async fn kernels_of_a_library_come_before_or_after_an_application_s(rt: Runtime) {
        let (library, application) = (library_with_kernel(), application("scale"));

        let before = fresh(&rt).await;
        register(&before, &[&library]);
        let own = before.build(&library).await.expect("it builds");
        assert_eq!(run(&before, &own, "own").await, [4.0, 7.0, 10.0]);
        let program = before.build(&application).await.expect("it links");
        assert_eq!(run(&before, &program, "apply").await, [3.0, 6.0, 9.0]);
        assert_eq!(compiles(&before), (2, 2), "the library is not compiled again");

        let after = fresh(&rt).await;
        register(&after, &[&library]);
        let program = after.build(&application).await.expect("it links");
        assert_eq!(run(&after, &program, "apply").await, [3.0, 6.0, 9.0]);
        let own = after.build(&library).await.expect("it is there");
        assert_eq!(own.origin(), Origin::Memory, "the program that is there has its kernel");
        assert_eq!(run(&after, &own, "own").await, [4.0, 7.0, 10.0]);
        assert_eq!(compiles(&after), (2, 1));
    }
}

everywhere! {
    async fn the_same_images_in_another_order_are_the_same_program(rt: Runtime) {
        let directory = tempfile::tempdir().expect("there is room");
        let application = Image::opencl_c(
            "float a(float x); float b(float x);
             kernel void apply(global float *x) {
                 size_t i = get_global_id(0);
                 x[i] = a(x[i]) + b(x[i]);
             }",
        )
        .importing(["a", "b"]);
        let (a, b) = (library("a", "x + 1"), library("b", "x * 10"));
        let first = fresh_at(&rt, directory.path()).await;
        register(&first, &[&a, &b]);
        let program = first.build(&application).await.expect("it links");
        assert_eq!(program.origin(), Origin::Compiled);
        first.unregister(&a);
        register(&first, &[&a]);
        let again = first.build(&application).await.expect("it is there");
        assert_eq!((again.origin(), again.key()), (Origin::Memory, program.key()));
        assert_eq!(compiles(&first), (3, 1));
        first.drain().await;

        let second = fresh_at(&rt, directory.path()).await;
        register(&second, &[&b, &a]);
        let loaded = second.build(&application).await.expect("it loads");
        assert_eq!((loaded.origin(), loaded.key()), (Origin::Disk, program.key()));
        assert_eq!(run(&second, &loaded, "apply").await, [12.0, 23.0, 34.0]);
        assert_eq!(compiles(&second), (0, 0));

        // Objects are on disk as well: another application compiles itself only.
        let third = fresh_at(&rt, directory.path()).await;
        register(&third, &[&a, &b]);
        let other = Image::opencl_c(
            "float a(float x);
             kernel void apply(global float *x) { x[get_global_id(0)] = a(5); }",
        )
        .importing(["a"]);
        let program = third.build(&other).await.expect("it links");
        assert_eq!(run(&third, &program, "apply").await, [6.0; 3]);
        assert_eq!(compiles(&third), (1, 1));
    }
}

everywhere! {
    async fn what_nobody_exports_is_an_error_that_tells_the_way_there(rt: Runtime) {
        let rt = fresh(&rt).await;
        let error = rt.build(&application("scale")).await.expect_err("there is no library");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        let text = error.to_string();
        assert!(text.contains("`scale`") && text.contains("Runtime::register"), "{text}");

        register(&rt, &[
            &library_over("outer", "scale(x)", "scale"),
            &library("scales", "x"),
            &library("unlike", "x"),
        ]);
        let text = rt.build(&application("outer")).await.expect_err("no `scale`").to_string();
        for part in ["imports `scale`", "(outer)", "needed for `outer` by", "`scales`"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        assert!(!text.contains("`unlike`"), "{text}");
        assert_eq!(compiles(&rt), (0, 0), "no driver was asked");

        register(&rt, &[&library("scale", "x + 1")]);
        let program = rt.build(&application("outer")).await.expect("now it is there");
        assert_eq!(run(&rt, &program, "apply").await, [2.0, 3.0, 4.0]);
    }
}

everywhere! {
    async fn several_exporters_are_an_error_unless_the_first_is_to_win(rt: Runtime) {
        let (first, second) = (library("scale", "x * 2"), library("scale", "x * 3"));
        let strict = fresh(&rt).await;
        register(&strict, &[&first, &second]);
        assert!(!strict.register(&first).expect("it exports"), "once is enough");
        let text = strict.build(&application("scale")).await.expect_err("which?").to_string();
        for image in [&first, &second] {
            assert!(text.contains(&format!("{:.8}", image.digest())), "{text}");
        }
        assert!(strict.unregister(&second));
        assert!(!strict.unregister(&second), "it is gone");
        let program = strict.build(&application("scale")).await.expect("one is left");
        assert_eq!(run(&strict, &program, "apply").await, [2.0, 4.0, 6.0]);

        let device = rt.device().index().to_string();
        let lax = builder().device(device).duplicate_exports(DuplicateExports::FirstRegistered);
        let lax = lax.build().await.expect("it starts");
        register(&lax, &[&second, &first]);
        let program = lax.build(&application("scale")).await.expect("the first is taken");
        assert_eq!(run(&lax, &program, "apply").await, [3.0, 6.0, 9.0]);
    }
}

everywhere! {
    async fn what_two_needed_images_define_is_an_error(rt: Runtime) {
        let device = rt.device().index().to_string();
        let rt = builder().device(device).duplicate_exports(DuplicateExports::FirstRegistered);
        let rt = rt.build().await.expect("it starts");
        let pair = Image::opencl_c("float a(float x) { return 1; } float b(float x) { return 2; }");
        register(&rt, &[&library("a", "x"), &pair.exporting(["a", "b"])]);
        let both = Image::opencl_c(
            "float a(float x); float b(float x);
             kernel void apply(global float *x) { *x = a(1) + b(1); }",
        );
        let error = rt.build(&both.importing(["a", "b"])).await.expect_err("`a` is there twice");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        assert!(error.to_string().contains("`a` is exported by"), "{error}");
    }
}

everywhere! {
    async fn an_image_s_own_definition_comes_first(rt: Runtime) {
        let rt = fresh(&rt).await;
        register(&rt, &[&library("scale", "x * 100")]);
        let own = Image::opencl_c(
            "float scale(float x) { return x + 1; }
             kernel void apply(global float *x) {
                 size_t i = get_global_id(0);
                 x[i] = scale(x[i]);
             }",
        )
        .exporting(["scale"])
        .importing(["scale"]);
        let program = rt.build(&own).await.expect("it needs nobody");
        assert_eq!(run(&rt, &program, "apply").await, [2.0, 3.0, 4.0]);
        assert_eq!(compiles(&rt), (1, 1));
    }
}

everywhere! {
    async fn images_of_another_format_are_not_linked(rt: Runtime) {
        let rt = fresh(&rt).await;
        let module = include_bytes!("data/library.spv");
        register(&rt, &[&Image::spirv(*module).expect("it is a module")]);
        let error = rt.build(&application("scale")).await.expect_err("that is SPIR-V");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        assert!(error.to_string().contains("different formats"), "{error}");

        let nothing = Image::opencl_c("kernel void f() {}");
        let error = rt.register(&nothing).expect_err("it exports nothing");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let native = Image::native(*b"\x7fELF").expect("it is not empty");
        assert_eq!(rt.register(&native).expect_err("nor does it").kind(), ErrorKind::InvalidArgument);
    }
}

everywhere! {
    async fn kernels_cannot_be_imported(rt: Runtime) {
        let rt = fresh(&rt).await;
        register(&rt, &[&Image::spirv(*include_bytes!("data/library.spv")).expect("a module")]);
        let error = rt.build(&application("own")).await.expect_err("`own` is a kernel");
        let text = error.to_string();
        assert!(text.contains("kernels cannot be imported"), "{text}");
    }
}

everywhere! {
    async fn a_linker_s_refusal_is_kept_with_what_it_says(rt: Runtime) {
        let rt = fresh(&rt).await;
        // States what it does not have.
        let liar = Image::opencl_c("float other(float x) { return x; }").exporting(["scale"]);
        register(&rt, &[&liar]);
        let error = rt.build(&application("scale")).await.expect_err("the linker finds nothing");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        assert!(error.driver_code().is_some(), "{error}");
        let again = rt.build(&application("scale")).await.expect_err("as before");
        assert!(again.same(&error));
        assert_eq!(compiles(&rt), (2, 1));
    }
}

everywhere! {
    async fn a_library_that_does_not_compile_is_named(rt: Runtime) {
        let rt = fresh(&rt).await;
        let broken = library("scale", "undeclared");
        register(&rt, &[&broken]);
        let error = rt.build(&application("scale")).await.expect_err("it does not compile");
        assert_eq!(error.kind(), ErrorKind::BuildFailed);
        assert!(error.to_string().contains(&format!("{:.8}", broken.digest())), "{error}");
        assert!(error.build_log().is_some_and(|log| log.contains("undeclared")), "{error}");
    }
}

everywhere! {
    async fn unregistering_leaves_what_is_in_use_and_what_is_being_built(rt: Runtime) {
        let rt = fresh(&rt).await;
        let (old, new) = (library("scale", "x * 2"), library("scale", "x * 3"));
        let application = application("scale");
        register(&rt, &[&old]);
        let building = rt.build(&application).start();
        assert!(rt.unregister(&old));
        let held = building.await.expect("it had begun");
        assert_eq!(run(&rt, &held, "apply").await, [2.0, 4.0, 6.0]);
        rt.build(&application).await.expect_err("nobody exports `scale` now");

        // While launches of the old program are in flight.
        // SAFETY: it touches one element a work-item.
        let kernel = unsafe { held.kernel("apply") }.expect("it is there");
        let (queue, x) = (rt.queue(), rt.buffer_from(vec![1.0f32; 3]).await.expect("memory"));
        for _ in 0..10 {
            queue.submit(kernel.launch(3).args((&x,))).expect("it fits");
        }
        register(&rt, &[&new]);
        let program = rt.build(&application).await.expect("it links");
        assert_eq!(run(&rt, &program, "apply").await, [3.0, 6.0, 9.0]);
        assert_eq!(queue.read(&x).await.expect("they ran"), [1024.0; 3]);
        assert_eq!(compiles(&rt), (3, 2), "the application is not compiled again");
    }
}

everywhere! {
    async fn programs_of_an_unregistered_library_leave_the_memory(rt: Runtime) {
        let rt = fresh(&rt).await;
        let library = library("scale", "x * 2");
        register(&rt, &[&library]);
        let program = rt.build(&application("scale")).await.expect("it links");
        let kept = rt.stats().programs_in_memory;
        rt.unregister(&library);
        assert_eq!(rt.stats().programs_in_memory, kept, "it is held");
        drop(program);
        register(&rt, &[&library]);
        rt.unregister(&library);
        assert_eq!(rt.stats().programs_in_memory, kept - 1);
    }
}

#[test]
fn overlapping_sets_that_are_built_at_once_compile_each_image_once() {
    smol::block_on(on_each_device(async |rt| {
        let rt = fresh(&rt).await;
        let libraries: Vec<_> =
            (0..6).map(|n| library(&format!("f{n}"), &format!("x + {n}"))).collect();
        register(&rt, &libraries.iter().collect::<Vec<_>>());
        let applications: Vec<_> = (0..8)
            .map(|n| {
                let names = [0, 1, 2].map(|k| format!("f{}", (n + k * (1 + n / 6)) % 6));
                let declared: String =
                    names.iter().map(|name| format!("float {name}(float x);")).collect();
                let called: Vec<_> = names.iter().map(|name| format!("{name}(x[i])")).collect();
                Image::opencl_c(format!(
                    "{declared} kernel void apply{n}(global float *x) {{
                         size_t i = get_global_id(0);
                         x[i] = {};
                     }}",
                    called.join("+")
                ))
                .importing(names)
            })
            .collect();
        let builds = applications.iter().map(|image| rt.build(image).into_future());
        let programs = futures::future::join_all(builds).await;
        for (n, program) in programs.into_iter().enumerate() {
            let expected: usize = (0..3).map(|k| (n + k * (1 + n / 6)) % 6).sum();
            let found = run(&rt, &program.expect("it links"), &format!("apply{n}")).await;
            assert_eq!(found, [1, 2, 3].map(|x| (3 * x + expected) as f32), "apply{n}");
        }
        assert_eq!(compiles(&rt), (14, 8));
    }));
}
