//! SPIR-V modules linked to one, which drivers' compilers build.

use kiln::devices::ModuleFormat;
use kiln::internal::spirv::link;
use kiln::{ErrorKind, Kernel, Module, Runtime};
use support::everywhere;
use support::libraries::{application, expect, function, library, register};

const APPLICATION: &[u8] = include_bytes!("../data/application.spv");
const LIBRARY: &[u8] = include_bytes!("../data/library.spv");
const APPLICATION_INTEL: &[u8] = include_bytes!("../data/application_intel.spv");
const LIBRARY_INTEL: &[u8] = include_bytes!("../data/library_intel.spv");
const APPLICATION_INFERRED: &[u8] = include_bytes!("../data/application_inferred.spv");
const LIBRARY_INFERRED: &[u8] = include_bytes!("../data/library_inferred.spv");
const LIBRARY_O0: &[u8] = include_bytes!("../data/library_O0.spv");
const LIBRARY_DEBUG: &[u8] = include_bytes!("../data/library_debug.spv");

/// Returns the expected result of `run` of application.cl for a value, with library.cl.
fn expected(x: f32, by: f32, at: usize) -> f32 {
    let bumped = x + by;
    (bumped + 1.0) * 2.0 * by + (x + 1.0) + [1.0, 2.0, 3.0, 4.0][at & 3]
}

async fn kernel(rt: &Runtime, module: &Module, name: &str) -> Kernel {
    let program = rt.build(module).await.expect("the linked module builds");
    // SAFETY: the kernels touch one element a work-item.
    unsafe { program.kernel(name) }.expect("the kernel is there")
}

async fn runs(rt: &Runtime, module: &Module) -> kiln::Result<()> {
    const UNTYPED: &str = "SPV_KHR_untyped_pointers";
    let is_untyped = module.code().windows(UNTYPED.len()).any(|bytes| bytes == UNTYPED.as_bytes());
    if is_untyped && rt.device().backend == "level-zero" {
        // The driver's compiler would end the process.
        let error = rt.build(module).await.expect_err("the compiler does not know the extension");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains(UNTYPED), "{error}");
        return Ok(());
    }
    let queue = rt.queue();
    let values: Vec<f32> = (0..64_u8).map(f32::from).collect();
    let buffer = rt.buffer_from(values.clone()).await?;
    let run = kernel(rt, module, "run").await;
    queue.submit(run.launch(64).args((&buffer, 3.0_f32)))?;
    let expected: Vec<_> = values.iter().enumerate().map(|(at, &x)| expected(x, 3.0, at)).collect();
    assert_eq!(queue.read(&buffer).await?, expected);

    let own = kernel(rt, module, "own").await;
    queue.submit(own.launch(64).args((&buffer,)))?;
    assert_eq!(queue.read(&buffer).await?, [4.0; 64]);
    Ok(())
}

#[test]
fn linked_modules_build_and_run() {
    futures::executor::block_on(support::on_each_device(async |rt| {
        for library in [LIBRARY, LIBRARY_O0, LIBRARY_DEBUG] {
            let (application, library) = (("application", APPLICATION), ("library", library));
            for modules in [[application, library], [library, application]] {
                for keep_exports in [true, false] {
                    let linked = link(&modules, keep_exports).unwrap();
                    let module = Module::spirv(linked).unwrap();
                    assert_eq!(module.imports().len(), 0);
                    assert_eq!(module.exports().len(), if keep_exports { 3 } else { 0 });
                    runs(&rt, &module).await.unwrap();
                }
            }
        }
    }));
}

/// One compiler types all pointers, one types none, and one infers the types that they point to.
#[test]
fn modules_of_different_compilers_build_and_run_together() {
    futures::executor::block_on(support::on_each_device(async |rt| {
        for application in [APPLICATION, APPLICATION_INTEL, APPLICATION_INFERRED] {
            for library in [LIBRARY, LIBRARY_INTEL, LIBRARY_INFERRED] {
                let modules = [("application", application), ("library", library)];
                let module = Module::spirv(link(&modules, false).unwrap()).unwrap();
                runs(&rt, &module).await.unwrap();
            }
        }
    }));
}

#[test]
fn spirv_modules_list_their_exports_and_imports() {
    let application = Module::spirv(APPLICATION).unwrap();
    assert_eq!(application.exports().collect::<Vec<_>>(), [""; 0], "kernels are not imported");
    assert_eq!(application.imports().collect::<Vec<_>>(), ["table", "bump", "scale"]);
    let library = Module::spirv(LIBRARY).unwrap();
    assert_eq!(library.exports().collect::<Vec<_>>(), ["table", "scale", "bump"]);
    assert_eq!(library.imports().len(), 0);
    // A SPIR-V module declares its symbols itself.
    let stated = library.clone().exporting(["more"]).importing(["more"]);
    assert_eq!((stated.exports().len(), stated.imports().len()), (3, 0));
    assert_eq!(stated.digest(), library.digest());
}

#[test]
fn declared_symbols_of_opencl_c_are_part_of_the_digest() {
    let plain = || Module::opencl_c("float scale(float x) { return by(x); }");
    let stated = plain().exporting(["scale", "bump", "scale"]).importing(["by"]);
    assert_eq!(stated.exports().collect::<Vec<_>>(), ["bump", "scale"]);
    assert_eq!(stated.imports().collect::<Vec<_>>(), ["by"]);
    assert_eq!(stated.code(), plain().code());
    assert_eq!(plain().exports().len(), 0);

    let same = plain().importing(["by"]).exporting(vec!["bump".to_owned(), "scale".to_owned()]);
    assert_eq!(stated.digest(), same.digest());
    let nothing = plain().exporting([""; 0]);
    assert_eq!(nothing.digest(), plain().digest());
    let modules = [
        plain(),
        plain().exporting(["by"]),
        plain().importing(["by"]),
        plain().exporting(["scale", "bump"]),
        plain().exporting(["scalebump"]),
        stated,
    ];
    let digests: std::collections::HashSet<_> = modules.iter().map(Module::digest).collect();
    assert_eq!(digests.len(), modules.len());
}

/// Returns a module that calls `scale`, of another module, through a pointer.
fn with_function_pointers() -> Module {
    Module::spirv(*include_bytes!("../data/function_pointers.spv")).expect("it is a module")
}

everywhere! {
    async fn pointers_to_functions_of_other_modules_are_linked(rt: Runtime) {
        // Libraries are registered with a runtime of this test alone.
        let device = rt.device().index().to_string();
        let rt = support::builder().device(device).link_objects(true).build().await.unwrap();
        register(&rt, &[&library(ModuleFormat::SpirV, &[function("scale").times(3.0)])]);
        match rt.build(&with_function_pointers()).await {
            Ok(program) => expect(&rt, &program, "apply", [3.0, 6.0, 9.0]).await,
            Err(error) => {
                assert!(!rt.device().formats.contains(&ModuleFormat::SpirV), "{error}");
                assert_eq!(error.kind(), ErrorKind::Unsupported);
            }
        }
    }
}

/// Kiln links the libraries for a device that links no SPIR-V. `benches/link.rs` measures the time.
#[test]
fn ten_thousand_symbols_of_a_hundred_libraries_are_resolved() {
    const LIBRARIES: usize = 100;
    const SYMBOLS: usize = 100;
    smol::block_on(support::on_each_device(async |rt| {
        let name = |n: usize| format!("function_{n}");
        let names: Vec<_> = (0..LIBRARIES * SYMBOLS).map(name).collect();
        let calls: Vec<_> = names.iter().map(String::as_str).collect();
        // A format that the device takes has a key without being translated.
        let takes_text = rt.device().formats.contains(&ModuleFormat::OpenClC);
        let format = if takes_text { ModuleFormat::OpenClC } else { ModuleFormat::SpirV };
        let application = application(format, &calls);
        let libraries: Vec<_> = names
            .chunks(SYMBOLS)
            .map(|names| {
                let functions: Vec<_> = names.iter().map(|name| function(name)).collect();
                library(format, &functions)
            })
            .collect();
        let key = async |order: &mut dyn Iterator<Item = &Module>| {
            // A runtime without any of the libraries.
            let device = rt.device().index().to_string();
            let rt = support::builder().device(device).build().await.expect("it starts");
            register(&rt, &order.collect::<Vec<_>>());
            rt.build(&application).key_fields().expect("they are all there")
        };
        let forth = key(&mut libraries.iter()).await;
        assert_eq!(forth.iter().filter(|(name, _)| name == "module").count(), LIBRARIES + 1);
        assert_eq!(key(&mut libraries.iter().rev()).await, forth);
    }));
}

#[cfg(feature = "simulated")]
mod without_a_linker {
    use super::*;
    use kiln::build::Origin;
    use kiln::simulated::{Fault, Simulator};
    use support::libraries::{application, module};

    async fn start(simulator: &Simulator) -> Runtime {
        Runtime::builder().simulator(simulator).build().await.expect("it starts")
    }

    #[test]
    fn modules_are_linked_before_they_are_built() {
        smol::block_on(async {
            let simulator = Simulator::new();
            let rt = start(&simulator).await;
            let format = ModuleFormat::SpirV;
            assert!(!rt.device().links.contains(&format));
            let libraries = [
                library(format, &[function("outer").of("inner")]),
                module(format, &[function("inner").plus_constant(3, 1.0)], &[("own", &["inner"])]),
                library(format, &[function("stranger")]),
            ];
            register(&rt, &libraries.each_ref());
            let application = application(format, &["outer"]);
            let program = rt.build(&application).specialize(3, 2.0f32).await;
            let program = program.expect("the simulator takes what is one valid module");
            let mut kernels = program.kernel_names();
            kernels.sort_unstable();
            assert_eq!(kernels, ["apply", "own"]);
            assert_eq!((simulator.counts().builds, simulator.counts().links), (1, 0));

            let error = rt.build(&module(format, &[], &[("k", &["nobody"])])).await;
            assert_eq!(error.expect_err("as everywhere").kind(), ErrorKind::BuildFailed);
        });
    }

    /// All modules that are linked into one are compiled with the same options.
    #[test]
    fn a_linked_program_is_reused_only_for_the_same_options() {
        smol::block_on(async {
            let simulator = Simulator::new();
            let rt = start(&simulator).await;
            let format = ModuleFormat::SpirV;
            let inner = library(format, &[function("inner")]);
            let outer = module(format, &[function("outer").of("inner")], &[("own", &["inner"])]);
            register(&rt, &[&inner, &outer]);
            let options = "-cl-finite-math-only";
            let application = application(format, &["outer"]);
            rt.build(&application).options(options).await.expect("it builds");
            let plain = rt.build(&outer).await.expect("it builds");
            assert_eq!(plain.origin(), Origin::Compiled);
            let alike = rt.build(&outer).options(options).await.expect("it is there");
            assert_eq!(alike.origin(), Origin::Memory);
            assert_eq!(simulator.counts().builds, 2);
        });
    }

    #[test]
    fn a_mergeable_definition_does_not_hide_a_duplicate_definition() {
        smol::block_on(async {
            let rt = start(&Simulator::new()).await;
            let format = ModuleFormat::SpirV;
            let (twice, once) = (function("f").mergeable(), function("f"));
            let libraries = [[once, function("p")], [twice, function("q")], [once, function("r")]];
            let libraries = libraries.map(|functions| library(format, &functions));
            register(&rt, &libraries.each_ref());
            let error = rt.build(&application(format, &["p", "q", "r"])).await;
            let error = error.expect_err("two of them are the program's");
            assert_eq!(error.kind(), ErrorKind::BuildFailed);
            assert!(error.to_string().contains("the program needs both"), "{error}");
        });
    }

    #[test]
    fn a_build_error_mentions_pointers_to_functions() {
        smol::block_on(async {
            let simulator = Simulator::new();
            let rt = start(&simulator).await;
            register(&rt, &[&library(ModuleFormat::SpirV, &[function("scale")])]);
            simulator.fail_builds(1, Fault::Refused);
            let error = rt.build(&with_function_pointers()).await.expect_err("it is refused");
            assert_eq!(error.kind(), ErrorKind::BuildFailed);
            assert!(error.to_string().contains("function pointers"), "{error}");
        });
    }
}
