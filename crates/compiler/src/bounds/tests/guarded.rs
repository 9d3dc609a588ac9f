//! Guarded variants: they stay inside their memory, and compute the same where nothing is outside.

use proptest::prelude::*;

use super::interpreter::{Event, Given, Machine};
use super::random::{cases, random};
use super::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn guarded_kernels_stay_inside_and_compute_the_same(seed in any::<u64>(), has_images in any::<bool>()) {
        let (bytes, launch) = random(seed, has_images);
        let module = Module::parse(&*bytes).unwrap();
        let kernel = Kernel::of(&module, "k", &[], &BTreeSet::new()).unwrap();
        let (range, arguments) = (launch.range(), launch.arguments());
        let own = Launch { range: &range, arguments: &arguments, uniform_groups: false, few_constants: seed % 2 == 0 };
        let report = check(&kernel, &own).unwrap();
        let guarded = match variant(&kernel, Some(&report), &[]) {
            Ok(guarded) => guarded,
            // Pixels that other work-items may write are not followed.
            Err(error) if error.to_string().contains("`read_write` image") => return Ok(()),
            Err(error) => panic!("{error}"),
        };
        let guarded_bytes = guarded.module.assemble();
        prop_assert_eq!(&Module::parse(&*guarded_bytes).unwrap().assemble(), &guarded_bytes);
        let (memory, given) = launch.given();
        let definitions = kernel.module.definitions();
        let mut plain = Machine::new(&definitions, memory.clone(), launch.grid()).unwrap();
        let is_complete = plain.run(kernel.function, &given).is_ok();
        let definitions = guarded.module.definitions();
        let mut machine = Machine::new(&definitions, memory, launch.grid()).unwrap();
        machine.fuel *= 16;
        let given = Given::with_lengths(&given, &arguments, &guarded.lengths);
        let ran = machine.run(kernel.function, &given);
        let events: Vec<_> = machine.events.iter().map(|(_, event)| *event).collect();
        prop_assert!(events.is_empty(), "{events:?} of {report:#?}");
        if is_complete && ran.is_ok() {
            prop_assert_eq!(&plain.objects, &machine.objects);
            prop_assert_eq!(&plain.images, &machine.images);
        }
        let happened = plain.events.iter().any(|(_, event)| matches!(event, Event::Outside { .. }));
        let is_noticed = if has_images { !report.is_proven() } else { !guarded.lengths.is_empty() };
        prop_assert!(!happened || is_noticed);
    }
}

#[test]
fn kernels_without_hazards_stay_as_they_are() {
    for (name, module, range, arguments) in photograph::launches(512) {
        let (kernel, report) = checked(module, name, &range, &arguments);
        let guarded = variant(&kernel, Some(&report), &[]).unwrap();
        assert!(guarded.lengths.is_empty(), "{name}");
        let bodies = |module: &Module| -> Vec<_> {
            module.functions.iter().map(|function| function.body.clone()).collect()
        };
        assert_eq!(bodies(&guarded.module), bodies(&kernel.module), "{name}");
    }
}

/// Returns the guarded variants of kernels whose buffers are all too short.
fn variants() -> Vec<(String, Vec<u8>)> {
    let photograph = photograph::launches(512);
    let plain = polyhedral::launches_of(polyhedral::PLAIN);
    let all = polyhedral::launches_of(polyhedral::OPTIMISED).into_iter().chain(plain);
    let all = all.chain(photograph).map(|(name, module, range, mut arguments)| {
        for argument in &mut arguments {
            if let Argument::Buffer { length, .. } | Argument::Local(length) = argument {
                *length = 4;
            }
        }
        let (kernel, report) = checked(module, name, &range, &arguments);
        let guarded = variant(&kernel, Some(&report), &[]).unwrap();
        (name.to_owned(), guarded.module.assemble())
    });
    all.collect()
}

#[test]
fn variants_are_the_same_in_every_process() {
    // Maps iterate in another order each time.
    let again = variants();
    assert!(variants().iter().zip(&again).all(|(one, other)| one == other));
}

#[test]
fn all_kernels_can_be_guarded() {
    for (name, bytes) in variants() {
        let module = Module::parse(&*bytes).unwrap();
        assert_eq!(module.assemble(), bytes, "{name}");
        assert!(Kernel::of(&module, &name, &[], &BTreeSet::new()).is_ok(), "{name}");
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "the log reports skipped checks")]
fn guarded_variants_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guarded.spv");
    let random = (0..100_u64).filter_map(|seed| {
        let (bytes, launch) = random(seed, seed % 2 == 1);
        let kernel =
            Kernel::of(&Module::parse(&*bytes).unwrap(), "k", &[], &BTreeSet::new()).unwrap();
        let (range, arguments) = (launch.range(), launch.arguments());
        let own = Launch {
            range: &range,
            arguments: &arguments,
            uniform_groups: false,
            few_constants: seed % 2 == 0,
        };
        let report = check(&kernel, &own).unwrap();
        // Kernels that read pixels which other work-items may write have no guarded variant.
        let guarded = variant(&kernel, Some(&report), &[]).ok()?;
        Some((format!("random {seed}"), guarded.module.assemble()))
    });
    for (name, bytes) in variants().into_iter().chain(random) {
        std::fs::write(&path, bytes).unwrap();
        let done = match std::process::Command::new("spirv-val").arg(&path).output() {
            Ok(done) => done,
            Err(error) => return eprintln!("skipped: spirv-val: {error}"),
        };
        let text = String::from_utf8_lossy(&done.stderr);
        // The translator of the test data emits blocks before those that dominate them.
        let is_order = text.contains("dominator") || text.contains("has not been defined");
        assert!(done.status.success() || is_order, "{name}: {text}");
    }
}
