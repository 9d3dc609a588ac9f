//! Modules with words that are wrong, or in a wrong place, which no compiler has seen.

#![allow(clippy::print_stderr, reason = "a log tells what came of the modules")]

use std::collections::BTreeMap;
use std::time::Duration;

use kiln::{ErrorKind, Module};

use super::{SAXPY_SPIRV, assert_still_builds, on_each_device_within, tool};

/// Modules of the suites, from which others are derived.
const MODULES: [&[u8]; 8] = [
    SAXPY_SPIRV,
    include_bytes!("../../data/fusion.spv"),
    include_bytes!("../../data/library.spv"),
    include_bytes!("../../data/library_debug.spv"),
    include_bytes!("../../data/mixed.spv"),
    include_bytes!("../../data/operations.spv"),
    include_bytes!("../../data/shapes.spv"),
    include_bytes!("../../data/switches.spv"),
];

/// Size of SPIR-V's header in bytes.
const HEADER: usize = 20;

/// Returns a module with a few words that are wrong or in a wrong place.
fn mutated(random: &mut fastrand::Rng) -> Vec<u8> {
    let mut module = MODULES[random.usize(..MODULES.len())].to_vec();
    for _ in 0..random.usize(1..=4) {
        let words = module.len() / 4;
        let at = 4 * random.usize(HEADER / 4..words);
        let other = 4 * random.usize(HEADER / 4..words);
        match random.u8(..6) {
            0 => module[at + random.usize(..4)] ^= 1 << random.u8(..8),
            1 => module[at..at + 4].copy_from_slice(&random.u32(..64).to_le_bytes()),
            2 => module[at..at + 4].copy_from_slice(&random.u32(..).to_le_bytes()),
            3 => module.copy_within(other..other + 4, at),
            // The bound of all ids.
            4 => module[12..16].copy_from_slice(&random.u32(..4096).to_le_bytes()),
            _ => {
                let word: [u8; 4] = module[at..at + 4].try_into().unwrap();
                let next = u32::from_le_bytes(word).wrapping_add(1);
                module[at..at + 4].copy_from_slice(&next.to_le_bytes());
            }
        }
    }
    module
}

/// Returns modules that are known to crash compilers, as far as Kiln accepts them as modules.
fn known_crashers() -> Vec<Vec<u8>> {
    let with = |at: usize, value: u32| {
        let mut module = SAXPY_SPIRV.to_vec();
        module[at..at + 4].copy_from_slice(&value.to_le_bytes());
        module
    };
    vec![
        Vec::new(),
        SAXPY_SPIRV[..HEADER].to_vec(),
        with(0, 0x0102_0304),
        with(4, 0x0001_0600),
        with(4, 0x0009_0900),
        with(4, u32::MAX),
        with(12, 0),
        with(12, 1),
        with(16, 7),
        // Without its capabilities and memory model.
        [&SAXPY_SPIRV[..HEADER], &SAXPY_SPIRV[60..]].concat(),
    ]
}

#[test]
fn mutated_modules_build_or_fail_in_time() {
    /// Default number of modules; `KILN_TEST_MODULES` sets another one.
    const COUNT: usize = 12;
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().expect("it is a number"))
    };
    let count = number("KILN_TEST_MODULES").map_or(COUNT, |count| count as usize);
    let seed = number("KILN_TEST_SEED").unwrap_or(1);
    on_each_device_within(Duration::from_secs(20), &format!("exec {}", tool()), async |rt, _| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut modules = Vec::new();
        let mut refused = 0;
        let mut known_crashers = known_crashers().into_iter();
        while modules.len() < count {
            let module = known_crashers.next().unwrap_or_else(|| mutated(&mut random));
            match Module::spirv(module) {
                Ok(module) => modules.push(module.untrusted()),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidModule, "{error}");
                    refused += 1;
                }
            }
        }
        let mut tally = BTreeMap::<&str, usize>::new();
        for (at, module) in modules.iter().enumerate() {
            // If the process ends unexpectedly, the last line identifies the module.
            eprintln!("{at}: {}", module.digest());
            let outcome = match rt.build(module).await {
                Ok(_) => "programs",
                Err(error) => match error.kind() {
                    ErrorKind::BuildFailed if error.to_string().contains("crashed on") => {
                        eprintln!("{error}");
                        "crashes of the child"
                    }
                    ErrorKind::Driver if error.to_string().contains("did not end") => "time-outs",
                    ErrorKind::OutOfResources => "out of memory",
                    ErrorKind::BuildFailed | ErrorKind::InvalidModule | ErrorKind::Unsupported => {
                        "errors"
                    }
                    kind => panic!("{kind} is not an expected kind: {error}"),
                },
            };
            *tally.entry(outcome).or_default() += 1;
        }
        let device = &rt.device().name;
        eprintln!("{device}: {tally:?}, {refused} more that are not modules");
        assert_still_builds(&rt, 0).await;
    });
}
