//! Error messages name the object that they are about, and what to do.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use kiln::devices::ModuleFormat;
use kiln::{Error, Module, Runtime};
use support::everywhere;
#[cfg(feature = "simulated")]
use support::simulation;
use support::specialized::specialized;
use support::{SAXPY, kernel};

#[track_caller]
fn assert_contains(error: &Error, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

/// Whether the driver itself reads text, and so writes the logs that the test checks.
fn takes_text(rt: &Runtime) -> bool {
    rt.device().formats.contains(&ModuleFormat::OpenClC)
}

everywhere! {
    async fn labels_appear_in_errors_and_do_not_affect_keys(rt: Runtime) {
        let plain = Module::opencl_c(SAXPY);
        let module = plain.clone().with_label("tone mapping");
        assert_eq!((module.label(), plain.label()), (Some("tone mapping"), None));
        assert_eq!(module.digest(), plain.digest());
        assert_eq!(rt.build(&module).key().unwrap(), rt.build(&plain).key().unwrap());

        // A launch.
        let program = rt.build(&module).await.unwrap();
        // SAFETY: it is not run.
        let saxpy = unsafe { program.kernel("saxpy") }.unwrap();
        let x = rt.buffer::<f32>(16).unwrap();
        let error = rt.queue().submit(saxpy.launch(16).args((1u8, &x, &x))).unwrap_err();
        assert_contains(&error, &["`tone mapping`", "kernel `saxpy`"]);

        // A build, in memory and from a file.
        let broken = "kernel void broken() { mistake; }";
        let error = rt.build(&Module::opencl_c(broken).with_label("grading")).await.unwrap_err();
        assert_contains(&error, &["`grading`", "mistake"]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file.cl");
        std::fs::write(&file, format!("{broken} ")).unwrap();
        let module = Module::open(&file).await.unwrap();
        let error = rt.build(&module).await.unwrap_err();
        assert_contains(&error, &[file.to_str().unwrap()]);
        // The error of a missing import names the label.
        let module = Module::opencl_c(SAXPY).importing(["nowhere"]).with_label("needy");
        let error = rt.build(&module).await.unwrap_err();
        assert_contains(&error, &["`needy`", "imports `nowhere`"]);
        assert!(module.untrusted().label().is_some());
    }
}

#[cfg(feature = "simulated")]
#[test]
fn errors_of_failed_launches_and_traces_name_the_module() {
    let simulator = simulation::with_kernels(kiln::simulated::Simulator::new());
    futures::executor::block_on(async {
        let rt = simulation::runtime(&simulator).await;
        let module = Module::opencl_c(simulation::KERNELS).with_label("tone mapping");
        let program = rt.build(&module).await.unwrap();
        // SAFETY: the launch is within the buffer.
        let scale = unsafe { program.kernel("scale") }.unwrap();
        let x = rt.buffer::<u32>(16).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let trace = rt.trace_to(&path);
        simulator.fail_launches("scale", 1, kiln::simulated::Fault::Refused);
        let failed = rt.queue().submit(scale.launch(16).args((2u32, &x))).unwrap();
        assert_contains(&failed.await.unwrap_err(), &["`tone mapping`: ", "`scale`"]);
        trace.finish().await.unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let launch = events.iter().find(|event| event["name"] == "scale").unwrap();
        assert_eq!(launch["args"]["module"], "tone mapping");
    });
}

everywhere! {
    async fn the_error_for_an_undefined_function_suggests_importing_it(rt: Runtime) {
        if !takes_text(&rt) {
            return;
        }
        let uses = "kernel void k(global float *x) { x[0] = tone(x[0]); }";
        let error = rt.build(&Module::opencl_c(uses)).await.unwrap_err();
        assert_contains(
            &error,
            &["`tone` is not defined", "`Module::importing([\"tone\"])`", "Runtime::register"],
        );
        // With a declaration, it is missing only when the program is linked, which some drivers defer.
        let declares = format!("float tone(float x); {uses}");
        if let Err(error) = rt.build(&Module::opencl_c(declares)).await {
            assert_contains(&error, &["`tone` is not defined", "`Module::importing([\"tone\"])`"]);
        }
    }
}

everywhere! {
    async fn compiler_warnings_appear_only_in_the_build_log(rt: Runtime) {
        if !takes_text(&rt) {
            return;
        }
        let text = "#warning hello from the preprocessor\nkernel void k() { mistake; }";
        let error = rt.build(&Module::opencl_c(text)).await.unwrap_err();
        assert_contains(&error, &["mistake"]);
        assert!(!error.to_string().contains("hello"), "{error}");
        assert!(error.build_log().unwrap().contains("hello"), "{error}");
        assert!(!error.summary().contains("mistake"), "{}", error.summary());
    }
}

everywhere! {
    async fn the_error_for_a_wrong_buffer_type_names_both_types_and_the_cast(rt: Runtime) {
        let source = "kernel void k(global char *bytes, global int *numbers) {}";
        let k = kernel(&rt, source, "k").await;
        let (floats, unsigned) = (rt.buffer::<f32>(4).unwrap(), rt.buffer::<u32>(4).unwrap());
        let submit = |launch| rt.queue().submit(launch);
        let error = submit(k.launch(4).args((&floats, &unsigned))).unwrap_err();
        assert_contains(
            &error,
            &["given `f32`", "`char*", "`Buffer<i8>`", "`&buffer.cast::<i8>()?`"],
        );
        let bytes = floats.cast::<i8>().unwrap();
        let error = submit(k.launch(4).args((&bytes, &unsigned))).unwrap_err();
        assert_contains(
            &error,
            &["given `u32`", "`int*", "`Buffer<i32>`", "`&buffer.cast::<i32>()?`"],
        );
        let numbers = unsigned.cast::<i32>().unwrap();
        submit(k.launch(4).args((&bytes, &numbers))).unwrap().await.unwrap();
    }
}

everywhere! {
    async fn a_specialization_constant_of_the_wrong_type_is_rejected(rt: Runtime) {
        let module = specialized();
        let request = || rt.build(&module);
        for (error, given) in [
            (request().specialize(7, 1.0f32).await, "`f32`"),
            (request().specialize(7, true).await, "`bool`"),
            (request().specialize(7, 1u64).await, "`u64`"),
        ] {
            assert_contains(
                &error.unwrap_err(),
                &[given, "uint", "give `u32` or `i32`, such as `5u32`"],
            );
        }
        request().specialize(7, 17i32).await.unwrap();
    }
}

everywhere! {
    async fn the_failure_of_a_launch_is_the_error_of_its_scope(rt: Runtime) {
        let saxpy = kernel(&rt, SAXPY, "saxpy").await;
        let (x, y) = (rt.buffer::<f32>(16).unwrap(), rt.buffer::<f32>(16).unwrap());
        let queue = rt.queue();
        let failing = queue.host_task(async { Err::<(), _>("the lamp is broken") }).unwrap();
        failing.clone().await.unwrap_err();
        let scope = queue.start_fusion();
        scope.require();
        scope.submit(saxpy.launch(16).args((1.0f32, &x, &y))).unwrap();
        scope.submit(saxpy.launch(16).args((1.0f32, &x, &y)).after(&failing)).unwrap();
        let error = scope.complete().await.unwrap_err();
        assert_contains(&error, &["a launch of its scope failed before it started", "the lamp is broken"]);
    }
}
