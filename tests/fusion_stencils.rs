//! Random chains of stencils compute the same result fused as one by one, byte for byte, in every form in which
//! they can be fused, or are refused with a reason.
//!
//! The kernels are written in OpenCL C and translated by `clang-15` and `llvm-spirv-15`. They run as SPIR-V on
//! devices that take it, and otherwise as the OpenCL C that Kiln generates from it. `KILN_FUSION_CASES` is the
//! number of cases, and `KILN_FUSION_SEED` the first seed.

#[path = "support/batches.rs"]
mod batches;
#[path = "support/stencils.rs"]
mod stencils;
mod support;
#[path = "support/tools.rs"]
mod tools;

use std::collections::BTreeMap;

use batches::{Reasons, assert_none, in_batches};
use kiln::internal::fusion::{Fused, FusionOptions, fuse};
use kiln::internal::spirv::{emit, link};
use kiln::{Buffer, Event, FusionForm, Module, ModuleFormat, Program, Runtime};
use stencils::{Case, Pixel, Pool, planned};
use tools::{has_clang, has_tool};

/// Number of cases whose kernels share a module.
const BATCH: usize = 12;

/// Fused kernel of a case in one form.
struct Attempt {
    case: usize,
    form: FusionForm,
    fused: Fused,
    name: String,
}

/// Totals of all cases.
#[derive(Default)]
struct Tally {
    cases: usize,
    fused: BTreeMap<String, usize>,
    reasons: Reasons,
    failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.cases += other.cases;
        for (form, count) in other.fused {
            *self.fused.entry(form).or_default() += count;
        }
        self.reasons.add_all(other.reasons);
        self.failures.extend(other.failures);
    }
}

/// Returns the forms to try, with sizes that do not divide those of the pictures.
fn forms(random: &mut fastrand::Rng) -> Vec<FusionForm> {
    let mut count = |most| random.u32(1..=most);
    vec![
        FusionForm::Direct,
        FusionForm::Inlined,
        FusionForm::Tiles { width: count(9), height: count(6) },
        FusionForm::Strips { rows: count(9) },
        FusionForm::Windows { rows: count(12) },
    ]
}

fn attempts(
    cases: &[Case],
    pool: &Pool,
    module: &[u8],
    rt: &Runtime,
    random: &mut fastrand::Rng,
    tally: &mut Tally,
) -> Vec<Attempt> {
    let mut all = Vec::new();
    for (at, case) in cases.iter().enumerate() {
        let launches = planned(case, pool);
        for form in forms(random) {
            let options = FusionOptions { form, ..FusionOptions::of(rt.device()) };
            match fuse(&[module], &launches, &case.dead, options).expect("the launches fit") {
                Err(why) => tally.reasons.add(&why),
                Ok(fused) => {
                    let kind = form.to_string().split(' ').next().unwrap_or_default().to_owned();
                    *tally.fused.entry(kind).or_default() += 1;
                    all.push(Attempt {
                        case: at,
                        form,
                        fused,
                        name: format!("fused{}", all.len()),
                    });
                }
            }
        }
    }
    all
}

async fn buffers(rt: &Runtime, case: &Case) -> Vec<Buffer<Pixel>> {
    let mut buffers = Vec::new();
    for at in 0..case.buffers {
        buffers.push(rt.buffer_from(case.contents(at)).await.expect("there is memory"));
    }
    buffers
}

async fn contents(rt: &Runtime, case: &Case, buffers: &[Buffer<Pixel>]) -> Vec<Vec<Pixel>> {
    let mut all = Vec::new();
    for (at, buffer) in buffers.iter().enumerate() {
        if !case.dead.contains(&(at as u32)) {
            all.push(rt.queue().read(buffer).await.expect("the launches succeed"));
        }
    }
    all
}

fn submit(
    rt: &Runtime,
    program: &Program,
    kernel: &str,
    range: &kiln::NdRange,
    arguments: &[stencils::Value],
    buffers: &[Buffer<Pixel>],
) -> Event {
    // SAFETY: kernels use one element for each work-item, and buffers have as many.
    let kernel = unsafe { program.kernel(kernel) }.expect("the kernel is there");
    let mut launch = support::launch_over(&kernel, range);
    for argument in arguments {
        launch = match *argument {
            stencils::Value::Buffer(at) => launch.arg(&buffers[at as usize]),
            stencils::Value::Number(number) => launch.arg(number),
        };
    }
    rt.queue().submit(launch).expect("the arguments fit")
}

async fn compare(
    number: usize,
    rt: &Runtime,
    (cases, pool): (&[Case], &Pool),
    module: &[u8],
    attempts: &[Attempt],
) -> Vec<String> {
    let renamed: Vec<_> = attempts
        .iter()
        .map(|attempt| (attempt.name.as_str(), tools::renamed(&attempt.fused.spirv, &attempt.name)))
        .collect();
    let renamed: Vec<_> = renamed.iter().map(|(name, module)| (*name, &module[..])).collect();
    let linked = link(&renamed, false).expect("the names are different");
    let takes_modules = rt.device().formats.contains(&ModuleFormat::SpirV);
    let made = |module: &[u8]| match takes_modules {
        true => Module::spirv(module).expect("it is a module"),
        false => Module::opencl_c(emit(module).expect("it can be emitted")),
    };
    let build = async |module: &[u8]| {
        let built = rt.build(&made(module)).await;
        built.unwrap_or_else(|error| panic!("batch {number} on {}: {error}", rt.device()))
    };
    let (original, fused) = (build(module).await, build(&linked).await);
    let mut failures = Vec::new();
    let mut expected: BTreeMap<usize, Vec<Vec<Pixel>>> = BTreeMap::new();
    for attempt in attempts {
        let case = &cases[attempt.case];
        if let std::collections::btree_map::Entry::Vacant(new) = expected.entry(attempt.case) {
            let own = buffers(rt, case).await;
            for launch in &case.launches {
                let kernel = &pool.kernels[launch.kernel].name;
                submit(rt, &original, kernel, &launch.range, &launch.arguments, &own);
            }
            new.insert(contents(rt, case, &own).await);
        }
        let own = buffers(rt, case).await;
        let place =
            |&(launch, argument): &(usize, usize)| case.launches[launch].arguments[argument];
        let arguments: Vec<_> = attempt.fused.parameters.iter().map(place).collect();
        submit(rt, &fused, &attempt.name, &attempt.fused.range, &arguments, &own);
        let found = contents(rt, case, &own).await;
        if expected[&attempt.case] != found {
            let description = stencils::describe(case, pool);
            let (form, device) = (attempt.form, rt.device());
            failures.push(format!("batch {number} on {device}, {form}: differs\n{description}"));
        }
    }
    failures
}

fn batch(number: usize, count: usize, devices: &[Runtime]) -> Tally {
    let mut random = fastrand::Rng::with_seed(number as u64);
    let pool = Pool::new(&mut random);
    let folder = tempfile::tempdir().expect("there is room");
    let levels = [["-O1", "-O0", "-O2"], ["-O2", "-O1", "-O0"]][number % 2];
    let module = tools::translate(folder.path(), &pool.text(), &levels);
    let cases: Vec<_> = (0..count).map(|_| Case::new(&mut random, &pool)).collect();
    let mut tally = Tally { cases: count, ..Tally::default() };
    for rt in devices {
        let attempts = attempts(&cases, &pool, &module, rt, &mut random, &mut tally);
        if attempts.is_empty() {
            continue;
        }
        let compared = compare(number, rt, (&cases, &pool), &module, &attempts);
        tally.failures.extend(futures::executor::block_on(compared));
    }
    tally
}

#[test]
#[allow(clippy::print_stderr, reason = "what was covered is of interest")]
fn fused_random_stencils_match_their_unfused_results_in_every_form() {
    if !has_clang() || !has_tool("spirv-val", &["spirv-val", "--version"]) {
        return;
    }
    let tally = in_batches(72, BATCH, batch, Tally::add);
    eprintln!("{} cases, fused: {:?}", tally.cases, tally.fused);
    tally.reasons.print();
    assert_none(&tally.failures);
    for form in ["inlined", "tiles", "strips", "windows"] {
        assert!(tally.fused.contains_key(form), "no case was fused in the form `{form}`");
    }
}
