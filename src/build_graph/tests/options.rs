//! Tests of how plans distribute the options for compiling and linking.

use std::sync::Arc;

use crate::build_graph::link::{Libraries, LinkTarget};
use crate::build_graph::option_report::OptionReport;
use crate::build_graph::options::EnvironmentOptions;
use crate::build_graph::plan::BuildPlan;
use crate::build_graph::spec::BuildSpec;
use crate::build_graph::strategy::BuildStrategy;
use crate::device::{Device, DeviceInfo, ModuleFormat};
use crate::error::{DriverCode, Error, ErrorKind};
use crate::source::module::Module;

/// Returns the plan of an application and its library, for a device whose linker takes SPIR-V.
fn plan(links_by_calls: bool, link_options: &str) -> BuildPlan {
    let [application, library] = [
        &include_bytes!("../../../tests/data/application.spv")[..],
        include_bytes!("../../../tests/data/library.spv"),
    ]
    .map(|code| Module::spirv(code).expect("it is a module"));
    let links = vec![ModuleFormat::SpirV];
    let device =
        Device::new(0, Arc::new(DeviceInfo { links, links_by_calls, ..DeviceInfo::fake() }));
    let mut spec = BuildSpec::new(application.with_options("-a"), 0);
    spec.set_options("-b").expect("there is no NUL");
    spec.set_link_options(link_options).expect("there is no NUL");
    let mut libraries = Libraries::default();
    assert!(libraries.register(&library.with_options("-c")).expect("it exports something"));
    let target = LinkTarget { device: &device, identity: &[] };
    let find = |module: &Module| libraries.resolve(module, &target);
    let environment = EnvironmentOptions::default();
    spec.resolve(&device, &target, true, &environment, find).expect("it can be built")
}

/// Returns the options of each module for the call that compiles it, sorted.
fn compile_options(plan: &BuildPlan) -> Vec<String> {
    let mut options: Vec<_> =
        plan.inputs().iter().map(|input| input.call_options().into_owned()).collect();
    options.sort();
    options
}

#[test]
fn a_linker_gets_the_link_options_and_each_object_its_own_options() {
    let plan = plan(false, "-l");
    assert_eq!(plan.strategy(), BuildStrategy::Link);
    assert_eq!(plan.link_options().text(), "-l");
    assert_eq!(compile_options(&plan), ["-a -b", "-c"]);
    assert!(plan.objects().all(|object| object.link_options().is_empty()));
}

#[test]
fn modules_are_merged_if_the_linker_takes_no_options_but_some_are_given() {
    let linked = plan(true, "");
    assert_eq!(linked.strategy(), BuildStrategy::LinkByCalls);
    assert_eq!(compile_options(&linked), ["-a -b", "-c"]);
    let merged = plan(true, "-l");
    assert_eq!(merged.strategy(), BuildStrategy::Merge);
    assert!(merged.link_options().is_empty());
    assert_eq!(compile_options(&merged), ["", "-a -b -l"]);
}

#[test]
fn errors_about_options_are_explained_by_their_source() {
    let report = OptionReport::of(&plan(false, "-l")).expect("there are options");
    let failed = |log: &str| Error::new(ErrorKind::BuildFailed, "refused").with_log(log);
    let explained = |error: Error| report.explain(error).message().to_owned();
    let (of_call, of_link) =
        ("`-b` comes from the build options of the request", "`-l` comes from the link options");
    for (error, parts) in [
        (failed("error: unknown argument: '-b'"), vec![of_call]),
        (failed("Unrecognized build options: -l -b"), vec![of_call, of_link]),
        (
            Error::unsupported("OpenCL C with the build option `-b` cannot be translated"),
            vec![of_call],
        ),
        (failed("").with_code(code(-67)), vec![of_link]),
        (failed("").with_code(code(-66)), vec!["`-a` comes from", of_call, "`-c` comes from"]),
        (failed("").with_code(code(-43)), vec!["`-a` comes from", of_call, "`-c` ", of_link]),
    ] {
        let text = explained(error);
        assert!(parts.iter().all(|part| text.contains(part)), "{text}: {parts:?}");
        assert_eq!(text.matches("comes from").count(), parts.len(), "{text}");
    }
}

#[test]
fn errors_about_other_things_are_unchanged() {
    let report = OptionReport::of(&plan(false, "-l")).expect("there are options");
    for log in [
        "1:5: error: no matching function for x -b",
        "warning: argument unused during compilation: '-b'\n1:5: error: expected ')'",
        "error: unknown argument: '-bb'",
    ] {
        let error =
            Error::new(ErrorKind::BuildFailed, "refused").with_log(log).with_code(code(-11));
        assert_eq!(report.explain(error).message(), "refused", "{log}");
    }
}

fn code(code: i32) -> DriverCode {
    DriverCode { code, name: "of OpenCL" }
}
