//! Times of checks. Run with `--release -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use super::*;

/// Number of checks, of which the fastest counts.
const ROUNDS: usize = 20;

fn fastest<T>(mut run: impl FnMut() -> T) -> Duration {
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        std::hint::black_box(run());
        start.elapsed()
    });
    times.min().unwrap()
}

#[test]
#[ignore = "measures times"]
#[allow(clippy::print_stdout)]
fn times_of_first_checks() {
    let photograph = photograph::launches(2048);
    let polyhedral = polyhedral::launches_of(polyhedral::OPTIMISED);
    let mut checks = Vec::new();
    for (name, module, range, arguments) in photograph.into_iter().chain(polyhedral) {
        let module = Module::parse(module).unwrap();
        let prepare = || Kernel::of(&module, name, &[], &BTreeSet::new()).unwrap();
        let kernel = prepare();
        let launch = Launch {
            range: &range,
            arguments: &arguments,
            uniform_groups: true,
            few_constants: false,
        };
        let own = fastest(|| check(&kernel, &launch).unwrap());
        println!("{name}: prepared in {:?}, checked in {own:?}", fastest(prepare));
        checks.push(own);
    }
    checks.sort();
    println!("median {:?}, slowest {:?}", checks[checks.len() / 2], checks.last().unwrap());
}
