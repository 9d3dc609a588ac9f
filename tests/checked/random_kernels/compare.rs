//! Comparison of checked launches with the reference, and with the kernels as they are.

use kiln::{Kernel, Module, Program, Runtime};

use super::launches::{After, BUFFERS, Given, INPUTS, Range, run};
use super::{RandomKernel, text_of};

/// Kernels of a program.
const KERNELS: usize = 8;

/// Number of programs after which the progress is printed.
const PROGRESS_EVERY: u64 = 16;

/// Launches of each kernel, unless `KILN_CHECKED_LAUNCHES` says another number.
const LAUNCHES: u64 = 4;

fn unchecked(program: &Program, name: &str) -> Kernel {
    // SAFETY: the reference guards its accesses, and the plain kernel is only launched with arguments for which
    // the reference needs no guard.
    unsafe { program.kernel(name) }.expect("the kernel is there")
}

/// Counts of launches.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) launches: u64,
    /// Launches for which the reference needed a guard.
    pub(crate) guarded: u64,
    /// Launches whose pointers are not followed.
    pub(crate) refused: u64,
}

/// Returns the first byte that is not as after the reference, in words. Inputs must not have changed.
fn difference(
    after: &After,
    expected: &After,
    known: &RandomKernel,
    given: &Given,
) -> Option<String> {
    BUFFERS.into_iter().enumerate().find_map(|(at, name)| {
        let before = given.content(known, at);
        let expected = if at < INPUTS { &before } else { &expected.buffers[at] };
        let mut pairs = after.buffers[at].iter().zip(expected).enumerate();
        let (byte, (own, expected)) = pairs.find(|(_, (own, expected))| own != expected)?;
        Some(format!("byte {byte} of `{name}` is {own}, not {expected}"))
    })
}

/// Launches a program's kernels, and compares the memory.
async fn check_program(rt: &Runtime, seed: u64, counts: &mut Counts) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let kernels: Vec<_> =
        (0..KERNELS).map(|at| RandomKernel::random(&mut rng, format!("k{at}"))).collect();
    let [plain, reference] =
        [false, true].map(|is_reference| Module::opencl_c(text_of(&kernels, is_reference)));
    let build = async |module: &Module| {
        rt.build(module).await.unwrap_or_else(|error| panic!("KILN_SEED={seed}: {error}"))
    };
    let program = rt.build(&plain).checked().await;
    let program = program.unwrap_or_else(|error| panic!("KILN_SEED={seed}: {error}"));
    let (plain, reference) = (build(&plain).await, build(&reference).await);
    let launches = variable("KILN_CHECKED_LAUNCHES", LAUNCHES);
    for known in &kernels {
        let checked = program.kernel(&known.name).expect("it can be checked");
        let by_hand = unchecked(&reference, &known.name);
        let range = Range::random(&mut rng, known.needs_local);
        for _ in 0..launches {
            let given = Given::random(&mut rng, known, &range);
            let what = || format!("KILN_SEED={seed} `{}`: {given:?}\n{known:?}", known.name);
            let expected = run(rt, &by_hand, known, &given, true).await;
            let expected = expected.unwrap_or_else(|error| panic!("{}\n{error}", what()));
            let mut runs = vec![(&checked, "checked")];
            let as_it_is;
            if !expected.is_guarded {
                as_it_is = unchecked(&plain, &known.name);
                runs.push((&as_it_is, "unchecked"));
            }
            let mut differences = Vec::new();
            for (kernel, how) in runs {
                let after = match run(rt, kernel, known, &given, false).await {
                    Ok(after) => after,
                    // A compiler may join two loads to one, through a pointer to a parameter or to a variable.
                    Err(error) if error.to_string().contains("whose memory is not known") => {
                        counts.refused += 1;
                        continue;
                    }
                    Err(error) => panic!("{how}, {}\n{error}", what()),
                };
                let found = difference(&after, &expected, known, &given);
                differences.extend(found.map(|found| format!("{how}: {found}")));
            }
            assert!(differences.is_empty(), "{}: {}", differences.join("; "), what());
            counts.launches += 1;
            counts.guarded += u64::from(expected.is_guarded);
        }
    }
}

/// Returns the number in an environment variable.
fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Checks random programs, as many as `KILN_CHECKED_CASES` says or `cases`, from the seed `KILN_SEED`. Returns the
/// number of launches.
#[allow(clippy::print_stderr, reason = "a log tells what was tested")]
pub(crate) async fn check(rt: &Runtime, cases: u64) -> u64 {
    let (first, cases) = (variable("KILN_SEED", 1), variable("KILN_CHECKED_CASES", cases));
    let mut counts = Counts::default();
    for seed in first..first + cases {
        check_program(rt, seed, &mut counts).await;
        if (seed - first) % PROGRESS_EVERY == PROGRESS_EVERY - 1 {
            eprintln!("{}: up to seed {seed}: {counts:?}", rt.device());
        }
    }
    let stats = rt.stats();
    eprintln!("{counts:?}, {} proven", stats.launches.proven);
    assert!(counts.guarded > 0 && counts.guarded < counts.launches, "{counts:?}");
    assert!(counts.refused <= counts.launches / 50, "{counts:?}");
    assert!(stats.launches.guarded > 0 && stats.launches.proven > 0, "{stats:?}");
    counts.launches
}
