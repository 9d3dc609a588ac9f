//! Errors that options cause: each names the source of the options.

use futures::executor::block_on;
use kiln::simulated::Simulator;
use kiln::{Error, ErrorKind, Module, Program};

use super::{Built, Job, assert_says, in_process, on_linkers, simulated};
use support::SAXPY;

/// Returns the error of a simulated device's build.
fn refused(result: kiln::Result<Program>, kind: ErrorKind, parts: &[&str]) -> Error {
    let error = result.expect_err("it is refused");
    assert_eq!(error.kind(), kind, "{error}");
    assert_says(&error.to_string(), parts);
    error
}

#[test]
fn options_that_a_compiler_refuses_are_named_with_their_source() {
    on_linkers(async |rt| {
        const BAD: &str = "--frobnicate";
        let [bad, more] = [BAD.to_owned(), format!("-w {BAD}")];
        let error = |built: Built| built.value.expect_err("it is refused");
        // In this order, an error that was kept for one source would be returned for the others.
        let of_call = error(Job::call(&bad).run(&rt).await);
        assert_says(&of_call, &["`--frobnicate` comes from the build options of the request"]);
        let of_module = error(Job::of_module(&bad).run(&rt).await);
        assert_says(&of_module, &["`--frobnicate` comes from the build options of ", "`app.cl`"]);
        let both = error(Job { module: Some("-w".to_owned()), ..Job::call(&bad) }.run(&rt).await);
        assert_says(&both, &["`--frobnicate` comes from the build options of the request"]);
        let library = Job { library: Some(more.clone()), ..Job::call("-w") };
        let of_library = error(library.run(&rt).await);
        assert_says(
            &of_library,
            &["--frobnicate", "comes from the build options of ", "library.cl"],
        );
        assert!(!of_library.contains("of the request"), "{of_library}");

        for name in ["KILN_COMPILE_OPTIONS", "KILN_APPEND_COMPILE_OPTIONS"] {
            let built = in_process(&rt, None, &[(name, &more)], vec![Job::call("-w")]);
            let of_variable = error(built.into_iter().next().unwrap());
            assert_says(
                &of_variable,
                &["--frobnicate", &format!("comes from the variable {name}")],
            );
        }
    });
}

#[test]
fn options_that_a_linker_refuses_are_named_with_their_source() {
    on_linkers(async |rt| {
        const BAD: &str = "--frobnicate";
        let linked = || Job { library: Some(String::new()), ..Job::call("-w") };
        let job = Job { call_link: Some(BAD.to_owned()), ..linked() };
        let of_call = job.run(&rt).await.value.expect_err("it is refused");
        assert_says(&of_call, &["`--frobnicate` comes from the link options of the request"]);
        let job = Job { module_link: Some(BAD.to_owned()), ..linked() };
        let of_module = job.run(&rt).await.value.expect_err("it is refused");
        assert_says(&of_module, &["`--frobnicate` comes from the link options of ", "`app.cl`"]);
        for name in ["KILN_LINK_OPTIONS", "KILN_APPEND_LINK_OPTIONS"] {
            let built = in_process(&rt, None, &[(name, BAD)], vec![linked(), Job::default()]);
            for built in built {
                let of_variable = built.value.expect_err("it is refused");
                let origin = format!("`--frobnicate` comes from the variable {name}");
                assert_says(&of_variable, &[&origin]);
            }
        }
    });
}

#[test]
fn a_kept_failure_names_the_source_of_each_request() {
    block_on(async {
        let simulator = Simulator::immediate();
        let rt = simulated(&simulator).await;
        let module = Module::opencl_c(SAXPY).with_label("saxpy.cl");
        let refused = |result| refused(result, ErrorKind::BuildFailed, &["`--refuse` comes from"]);
        let build = rt.build(&module).options("--refuse").start();
        let (first, other) = (refused(build.clone().await), refused(build.await));
        assert!(first.same(&other), "it is one failure");
        // SAFETY: it is never launched.
        let kernel = unsafe { rt.build(&module).options("--refuse").start().kernel("saxpy") };
        let x = rt.buffer::<f32>(1).unwrap();
        let launched = rt.queue().submit(kernel.launch(1).args((1.0f32, &x, &x)));
        let launched = match launched {
            Ok(event) => event.await.expect_err("its program is refused"),
            Err(error) => error,
        };
        assert!(launched.same(&first), "{launched}");
        assert_says(&launched.to_string(), &["`--refuse` comes from", "of the request"]);
        assert_says(&first.to_string(), &["of the request"]);
        let of_module = refused(rt.build(&module.clone().with_options("--refuse")).await);
        assert!(of_module.same(&first) && of_module.is_deterministic(), "it was kept");
        assert_says(&of_module.to_string(), &["of the OpenCL C module `saxpy.cl`"]);
        let of_link = refused(rt.build(&module).link_options("--refuse").await);
        assert_says(&of_link.to_string(), &["link options of the request"]);
        assert_eq!(simulator.counts().builds, 1);
        // Other failures are not attributed to options.
        simulator.fail_builds(1, kiln::simulated::Fault::Refused);
        let error = rt.build(&module).options("-w").await.unwrap_err();
        assert!(!error.to_string().contains("comes from"), "{error}");
    });
}

#[test]
fn nul_characters_and_open_quotations_are_errors_that_name_the_source() {
    block_on(async {
        let simulator = Simulator::immediate();
        let rt = simulated(&simulator).await;
        let module = Module::opencl_c(SAXPY).with_label("saxpy.cl");
        let invalid = ErrorKind::InvalidArgument;
        let request = rt.build(&module);
        let nul = &["NUL", "byte 3", "of the request"];
        refused(request.clone().options("-D \0").await, invalid, nul);
        refused(request.clone().link_options("-D \0").await, invalid, nul);
        assert_eq!(request.clone().link_options("\0").key().unwrap_err().kind(), invalid);
        for (bad, problem) in [
            ("-D \0", "NUL character at byte 3"),
            (r#"-D A="b"#, "not closed"),
            ("-w \\", "backslash"),
        ] {
            let parts = &[problem, "`saxpy.cl`"];
            refused(rt.build(&module.clone().with_options(bad)).await, invalid, parts);
            refused(rt.build(&module.clone().with_link_options(bad)).await, invalid, parts);
        }
        // A library is named like the requested module.
        let library = Module::opencl_c("void f() {}").exporting(["f"]).with_label("library.cl");
        rt.register(&library.with_options("'")).unwrap();
        let importing = module.importing(["f"]);
        refused(rt.build(&importing).await, invalid, &["not closed", "`library.cl`"]);
        assert_eq!(simulator.counts().builds, 0);
    });
}

#[cfg(unix)]
#[test]
fn variables_that_are_no_options_are_errors_of_the_runtime() {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    let start = |name: &str, value: &OsStr| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        let output = command.arg("devices").env(name, value).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text)
    };
    let invalid = OsString::from_vec(b"-D A=\xff".to_vec());
    for name in [
        "KILN_COMPILE_OPTIONS",
        "KILN_APPEND_COMPILE_OPTIONS",
        "KILN_LINK_OPTIONS",
        "KILN_APPEND_LINK_OPTIONS",
    ] {
        for (value, problem) in
            [(&*invalid, "not valid Unicode"), (OsStr::new("-D A=\"b"), "not closed")]
        {
            let (code, text) = start(name, value);
            assert_eq!(code, Some(2), "{text}");
            assert_says(&text, &[name, problem]);
        }
        let (code, text) = start(name, OsStr::new("-w"));
        assert_eq!((code, text.contains(name)), (Some(0), false), "{text}");
    }
}
