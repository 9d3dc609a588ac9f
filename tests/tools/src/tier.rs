//! The tier of a run: with `KILN_TEST_TIER=full`, as `make full` sets it, tests try all their cases under all
//! executors. Otherwise they try a sample.

use fastrand::Rng;

/// Whether tests try all their cases.
pub fn is_full() -> bool {
    std::env::var("KILN_TEST_TIER").is_ok_and(|tier| tier == "full")
}

/// Returns a number of random cases: `full` in the full tier, `fast` otherwise. The variable of a name sets another
/// number.
pub fn cases(variable: &str, full: usize, fast: usize) -> usize {
    let default = if is_full() { full } else { fast };
    std::env::var(variable).map_or(default, |text| text.parse().expect("it is a number"))
}

/// Returns all cases in the full tier, and otherwise as many as `fast`. Prints the seed that chose them;
/// `KILN_SEED` sets it.
pub fn sample<T>(mut all: Vec<T>, fast: usize) -> Vec<T> {
    if is_full() || all.len() <= fast {
        return all;
    }
    let seed = std::env::var("KILN_SEED").map(|text| text.parse().expect("it is a number"));
    let seed = seed.unwrap_or_else(|_| fastrand::u64(..1 << 32));
    eprintln!("KILN_SEED={seed}: {fast} of {} cases", all.len());
    let mut random = Rng::with_seed(seed);
    let mut chosen = Vec::with_capacity(fast);
    for _ in 0..fast {
        chosen.push(all.swap_remove(random.usize(..all.len())));
    }
    chosen
}
