//! Tests of how plans distribute the options for compiling and linking.

use std::sync::Arc;

use crate::build_graph::options::EnvironmentOptions;
use crate::build_graph::plan::{BuildPlan, BuildSpec, BuildStrategy};
use crate::device::{Device, DeviceInfo, ModuleFormat};
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
    let mut spec = BuildSpec::new(application.options("-a"), 0);
    spec.set_options("-b").expect("there is no NUL");
    spec.set_link_options(link_options).expect("there is no NUL");
    let find = |_: &Module| Ok(vec![library.options("-c")]);
    spec.resolve(&device, true, &EnvironmentOptions::default(), find).expect("it can be built")
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
