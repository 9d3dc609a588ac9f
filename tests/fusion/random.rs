//! Random chains of stencils, rows, reductions and elementwise kernels compute the same result fused as one by
//! one, byte for byte, in every form in which they can be fused, or are refused with a reason.
//!
//! The kernels are written in OpenCL C and translated to SPIR-V. `KILN_FUSION_CASES` is the number of chains,
//! and `KILN_FUSION_SEED` the seed of the first batch of chains; the seeds of the others follow. A failure
//! states both for its chain. Each batch writes its modules below the directory `KILN_FUSION_DUMP`, if it is
//! set.
//!
//! Build children compile, since Intel's compiler (2026.22) does not end for some kernels, such as one with
//! `uchar4 v = (uchar4)((uchar)i); if (i > 1) v = v * (uchar)5 ^ v; out[i] = v.x;`.

use super::batches;
use super::random_chains;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use super::batches::{Reasons, assert_none, in_batches};
use super::random_chains::{CELL, Case, Pool, Value};
use fastrand::Rng;
use kiln::fusion::{FusionForm, FusionOutcome};
use kiln::internal::fusion::{Fused, FusionOptions, fuse};
use kiln::internal::spirv::link;
use kiln::internal::translate::spirv_of;
use kiln::{Buffer, FusionMode, Launch, Local, Module, NdRange, Program, Runtime};
use support::tools;
use support::tools::{has_clang, has_tool};

/// Number of chains whose kernels share a module.
const BATCH: usize = 12;

/// Number of batches of which one also runs in scopes, which takes longer.
const BATCHES_FOR_SCOPES: usize = 4;

/// Number of chains of which at least one must be fused in each form on each device.
const CHAINS_FOR_ONE: usize = 20;

/// Number of batches of which one may be left out, because a driver's compiler does not end.
const BATCHES_FOR_ENDLESS: usize = 4;

/// Totals of all chains.
#[derive(Default)]
struct Tally {
    chains: usize,
    batches: usize,
    /// Batches and devices whose compiler did not end.
    endless: Vec<String>,
    /// Number of chains that were fused, by the platform of the device and the form.
    fused: BTreeMap<(String, &'static str), usize>,
    reasons: Reasons,
    failures: Vec<String>,
}

impl Tally {
    fn count(&mut self, rt: &Runtime, kind: &'static str, fused: usize) {
        *self.fused.entry((rt.device().platform.clone(), kind)).or_default() += fused;
    }

    fn add(&mut self, other: Self) {
        self.chains += other.chains;
        self.batches += other.batches;
        self.endless.extend(other.endless);
        for (kind, count) in other.fused {
            *self.fused.entry(kind).or_default() += count;
        }
        self.reasons.add_all(other.reasons);
        self.failures.extend(other.failures);
    }
}

/// Returns all forms, with sizes that mostly do not divide those of the pictures.
fn forms(random: &mut Rng) -> [(&'static str, FusionForm); 5] {
    let mut count = |most| random.u32(1..=most);
    [
        ("direct", FusionForm::Direct),
        ("inlined", FusionForm::Inlined),
        ("tiles", FusionForm::Tiles { width: count(9), height: count(6) }),
        ("strips", FusionForm::Strips { rows: count(9) }),
        ("windows", FusionForm::Windows { rows: count(12) }),
    ]
}

/// Chains whose kernels share a module.
struct Batch {
    seed: usize,
    pool: Pool,
    module: Vec<u8>,
    cases: Vec<Case>,
}

/// Fused kernel of a chain in one form.
struct Attempt {
    case: usize,
    form: FusionForm,
    fused: Fused,
    name: String,
}

impl Batch {
    fn new(seed: usize, count: usize, rt: &Runtime) -> Self {
        let mut random = Rng::with_seed(seed as u64);
        let dimensions = [2, 1, 2, 3][seed % 4];
        let pool = Pool::new(&mut random, dimensions);
        let sizes = [(); 2].map(|()| random_chains::size(&mut random, dimensions));
        let cases = (0..count).map(|_| {
            let size = &sizes[random.usize(..sizes.len())];
            Case::new(&mut random, &pool, size)
        });
        let cases = cases.collect();
        let module = translated(seed, &pool.text(), rt);
        Self { seed, pool, module, cases }
    }

    /// Returns the settings that repeat the chains up to `case`, and describes that chain.
    fn describe(&self, case: usize) -> String {
        let description = self.cases[case].describe(&self.pool);
        format!("KILN_FUSION_SEED={} KILN_FUSION_CASES={}\n{description}", self.seed, case + 1)
    }

    /// Fuses the chains for a device in all forms.
    fn attempts(&self, rt: &Runtime, tally: &mut Tally) -> Vec<Attempt> {
        let mut all = Vec::new();
        for (at, case) in self.cases.iter().enumerate() {
            let launches = case.planned(&self.pool);
            let mut random = Rng::with_seed((self.seed * BATCH + at) as u64);
            for (kind, form) in forms(&mut random) {
                let options = FusionOptions { form, ..FusionOptions::of(rt.device()) };
                let fused = fuse(&[&self.module], &launches, &case.dead, options);
                let fused = fused.unwrap_or_else(|error| panic!("{error}\n{}", self.describe(at)));
                match fused {
                    Err(why) => {
                        tally.count(rt, kind, 0);
                        tally.reasons.add(&why);
                    }
                    Ok(fused) => {
                        tally.count(rt, kind, 1);
                        let name = format!("fused{}", all.len());
                        all.push(Attempt { case: at, form, fused, name });
                    }
                }
            }
        }
        all
    }

    /// Builds a module. `None` if the driver's compiler does not end.
    async fn build(&self, rt: &Runtime, module: &[u8]) -> Option<Program> {
        let (seed, device) = (self.seed, rt.device());
        let module = Module::spirv(module).expect("it is a module").untrusted();
        match rt.build(&module).await {
            Ok(program) => Some(program),
            Err(error) if error.to_string().contains("did not end within") => None,
            Err(error) => panic!("KILN_FUSION_SEED={seed} on {device}: {error}"),
        }
    }

    /// Returns descriptions of the chains whose results differ on a device. `None` if the driver's compiler does
    /// not end.
    async fn failures(&self, rt: &Runtime, attempts: &[Attempt]) -> Option<Vec<String>> {
        let fused = linked(attempts);
        self.dump(rt, &fused);
        let (mut failures, mut expected) = (Vec::new(), BTreeMap::new());
        // llvm-spirv may select vectors by one condition, which is not valid before SPIR-V 1.4.
        if tools::validate(&self.module).is_ok()
            && let Err(why) = tools::validate(&fused)
        {
            failures.push(format!("KILN_FUSION_SEED={} on {}: {why}", self.seed, rt.device()));
        }
        let (original, fused) =
            (self.build(rt, &self.module).await?, self.build(rt, &fused).await?);
        for Attempt { case: at, form, fused: own, name } in attempts {
            let case = &self.cases[*at];
            if let Entry::Vacant(unknown) = expected.entry(*at) {
                let run = Run::new(rt, case).await;
                run.submit(run.launches(&self.pool, &original));
                unknown.insert(run.contents().await);
            }
            let place = |&(launch, at): &(usize, usize)| case.launches[launch].arguments[at];
            let arguments: Vec<_> = own.parameters.iter().map(place).collect();
            let run = Run::new(rt, case).await;
            run.submit([run.launch(&fused, name, &own.range, &arguments)]);
            if let Some(difference) = difference(&expected[at], &run.contents().await) {
                let (device, description) = (rt.device(), self.describe(*at));
                failures.push(format!("on {device}, {form}: {difference}\n{description}"));
            }
        }
        Some(failures)
    }

    /// Writes the modules to the directory that is set, since a driver may crash the test.
    fn dump(&self, rt: &Runtime, fused: &[u8]) {
        let Some(folder) = std::env::var_os("KILN_FUSION_DUMP") else { return };
        let folder = Path::new(&folder).join(self.seed.to_string());
        std::fs::create_dir_all(&folder).expect("there is room");
        let device = rt.device().index();
        for (name, module) in [("original", &self.module[..]), ("fused", fused)] {
            let path = folder.join(format!("{name}{device}.spv"));
            std::fs::write(path, module).expect("there is room");
        }
    }
}

/// Translates a text as for scopes, or without optimisation.
fn translated(seed: usize, text: &str, rt: &Runtime) -> Vec<u8> {
    if seed.is_multiple_of(3) {
        let folder = tempfile::tempdir().expect("there is room");
        return tools::translate(folder.path(), text, &["-O0"]);
    }
    let module = futures::executor::block_on(spirv_of(rt, &Module::opencl_c(text), ""));
    let module = module.unwrap_or_else(|error| panic!("KILN_FUSION_SEED={seed}: {error}\n{text}"));
    module.code().to_vec()
}

/// Links the kernels of all attempts to one module.
fn linked(attempts: &[Attempt]) -> Vec<u8> {
    let renamed = |attempt: &Attempt| tools::renamed(&attempt.fused.spirv, &attempt.name);
    let renamed: Vec<_> = attempts.iter().map(renamed).collect();
    let modules = attempts.iter().zip(&renamed);
    let modules: Vec<_> =
        modules.map(|(attempt, module)| (attempt.name.as_str(), &module[..])).collect();
    link(&modules, false).expect("the names are different")
}

/// Returns the first difference of the contents of buffers, in words.
fn difference(expected: &Contents, found: &Contents) -> Option<String> {
    let mut pairs = expected.iter().zip(found);
    let ((buffer, expected), (_, found)) = pairs.find(|(expected, found)| expected != found)?;
    let (expected, found) = (expected.as_flattened(), found.as_flattened());
    let byte = expected.iter().zip(found).position(|(a, b)| a != b)?;
    let end = expected.len().min(byte + 8);
    let (expected, found) = (&expected[byte..end], &found[byte..end]);
    Some(format!("buffer {buffer} from byte {byte}: {expected:?}, fused {found:?}"))
}

/// Contents of buffers, by their numbers.
type Contents = Vec<(u32, Vec<[u8; CELL]>)>;

/// Run of a chain on a device.
struct Run<'a> {
    rt: &'a Runtime,
    case: &'a Case,
    buffers: BTreeMap<u32, Buffer<[u8; CELL]>>,
}

impl<'a> Run<'a> {
    async fn new(rt: &'a Runtime, case: &'a Case) -> Self {
        let mut buffers = BTreeMap::new();
        for at in case.buffers() {
            let buffer = rt.buffer_from(case.contents(at)).await;
            buffers.insert(at, buffer.expect("there is memory"));
        }
        Self { rt, case, buffers }
    }

    fn launch(
        &self,
        program: &Program,
        kernel: &str,
        range: &NdRange,
        arguments: &[Value],
    ) -> Launch {
        // SAFETY: kernels access only elements of their pictures, which the buffers contain.
        let kernel = unsafe { program.kernel(kernel) }.expect("the kernel is there");
        let launch = support::launch_over(&kernel, range);
        arguments.iter().fold(launch, |launch, argument| match *argument {
            Value::Buffer(at, start, length) => {
                let slice = self.buffers[&at].slice(start / CELL..(start + length) / CELL);
                launch.arg(&slice.expect("it is inside"))
            }
            Value::Int(number) => launch.arg(number),
            Value::Uint(number) => launch.arg(number),
            Value::Ulong(number) => launch.arg(number),
            Value::Float(number) => launch.arg(number),
            Value::Local(bytes) => launch.arg(Local::<[u8; 1]>::new(bytes)),
        })
    }

    /// Returns the launches of the chain, with the kernels of the pool's program.
    fn launches(&self, pool: &Pool, program: &Program) -> Vec<Launch> {
        let launches = self.case.launches.iter().map(|launch| {
            let kernel = &pool.kernels[launch.kernel].name;
            self.launch(program, kernel, &launch.range, &launch.arguments)
        });
        launches.collect()
    }

    fn submit(&self, launches: impl IntoIterator<Item = Launch>) {
        for launch in launches {
            self.rt.queue().submit(launch).expect("the arguments fit");
        }
    }

    /// Drops the buffers that are not read afterwards.
    fn drop_dead(&mut self) {
        self.buffers.retain(|at, _| !self.case.dead.contains(at));
    }

    /// Returns the contents of the buffers that are read afterwards.
    async fn contents(mut self) -> Contents {
        self.drop_dead();
        let mut all = Vec::new();
        for (&at, buffer) in &self.buffers {
            let cells = self.rt.queue().read(buffer).await;
            all.push((at, cells.expect("the launches succeed")));
        }
        all
    }
}

/// Runs a chain in a scope, and again with other scalars, and notes differences. `None` if the driver's compiler
/// does not end for the kernels as they are.
async fn run_in_scopes(rt: &Runtime, batch: &Batch, at: usize, tally: &mut Tally) -> Option<()> {
    let builder = batches::builder().fusion(FusionMode::Always);
    let fusing = builder.device(rt.device().index().to_string()).build().await;
    let fusing = fusing.expect("the device exists");
    let original = batch.build(rt, &batch.module).await?;
    let program = batch.build(&fusing, &batch.module).await?;
    let case = &batch.cases[at];
    let other = case.with_other_scalars(&mut Rng::with_seed(at as u64), &batch.pool);
    for case in [case, &other] {
        let run = Run::new(rt, case).await;
        run.submit(run.launches(&batch.pool, &original));
        let expected = run.contents().await;
        let mut run = Run::new(&fusing, case).await;
        let scope = fusing.queue().start_fusion();
        for launch in run.launches(&batch.pool, &program) {
            scope.submit(launch).expect("the arguments fit");
        }
        run.drop_dead();
        let outcome = scope.complete().await.expect("nothing fails");
        let is_fused = !matches!(outcome, FusionOutcome::Unfused { .. });
        tally.count(rt, IN_SCOPES, is_fused.into());
        if let Some(difference) = difference(&expected, &run.contents().await) {
            let (device, report, own) = (rt.device(), scope.report(), batch.describe(at));
            let actual = case.describe(&batch.pool);
            tally.failures.push(format!("on {device}: {difference}\n{report}\n{own}{actual}"));
        }
    }
    Some(())
}

/// Name under which chains are counted that were fused in scopes, whole or in parts.
const IN_SCOPES: &str = "in scopes";

#[allow(clippy::print_stderr, reason = "a driver may end the process")]
fn run(seed: usize, count: usize, devices: &[Runtime]) -> Tally {
    let Some(first) = devices.first() else { return Tally::default() };
    eprintln!("chains of KILN_FUSION_SEED={seed}");
    let batch = Batch::new(seed, count, first);
    let mut tally = Tally { chains: count, batches: 1, ..Tally::default() };
    for rt in devices {
        let attempts = batch.attempts(rt, &mut tally);
        let ended = futures::executor::block_on(async {
            if !attempts.is_empty() {
                tally.failures.extend(batch.failures(rt, &attempts).await?);
            }
            if seed % BATCHES_FOR_SCOPES == 1 {
                run_in_scopes(rt, &batch, 0, &mut tally).await?;
            }
            Some(())
        });
        if ended.is_none() {
            tally.endless.push(format!("KILN_FUSION_SEED={seed} on {}", rt.device()));
        }
    }
    tally.failures.iter().for_each(|failure| eprintln!("{failure}"));
    tally
}

/// Checks that chains were fused in all forms that a device has, and in scopes.
fn assert_fused(tally: &Tally) {
    for ((platform, kind), fused) in &tally.fused {
        let least = match *kind {
            // Launches that must be functions of their own have no tiles.
            "tiles" if platform.contains("Intel") => 0,
            IN_SCOPES => tally.chains / (2 * BATCH * BATCHES_FOR_SCOPES),
            _ => tally.chains / CHAINS_FOR_ONE,
        };
        let all = tally.chains;
        assert!(*fused >= least, "{fused} of {all} chains were fused on {platform}: {kind}");
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "what was covered is of interest")]
fn fused_random_chains_match_their_unfused_results_in_every_form() {
    if !has_clang() || !has_tool("spirv-val", &["spirv-val", "--version"]) {
        return;
    }
    let tally = in_batches([24, 12], BATCH, run, Tally::add);
    eprintln!("{} chains, fused:", tally.chains);
    for ((device, kind), count) in &tally.fused {
        eprintln!("{count:6} {kind} on {device}");
    }
    tally.reasons.print();
    eprintln!("left out, because the compiler does not end: {:?}", tally.endless);
    assert_none(&tally.failures);
    let most = tally.batches.div_ceil(BATCHES_FOR_ENDLESS);
    assert!(tally.endless.len() <= most, "at most {most} batches may be left out");
    assert_fused(&tally);
}

/// Seeds of batches of which a chain had other results in a fused kernel, with its position.
const FOUND: [(usize, usize); 1] = [
    // Intel's runtime passes vectors of three components wrongly to functions that it does not inline.
    (324, 0),
];

#[test]
fn chains_whose_results_were_wrong_match_their_unfused_results() {
    if !has_clang() || !has_tool("spirv-val", &["spirv-val", "--version"]) {
        return;
    }
    let devices = batches::devices();
    for (seed, at) in FOUND {
        let tally = run(seed, at + 1, &devices);
        assert_none(&tally.failures);
        assert!(tally.endless.is_empty(), "{:?}", tally.endless);
    }
}
