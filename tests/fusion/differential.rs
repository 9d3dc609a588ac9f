//! Random chains of random kernels compute the same result fused as one by one, byte for byte, or are refused
//! with a reason. Chains that must be refused are refused.
//!
//! The kernels are written in OpenCL C and translated by `clang-15` and `llvm-spirv-15`. They run as SPIR-V on
//! devices that take it, and as the OpenCL C that Kiln generates from it. `KILN_FUSION_CASES` is the number of
//! cases, and `KILN_FUSION_SEED` the first seed. Each batch of cases writes its modules below the directory
//! `KILN_FUSION_DUMP`, if it is set. A batch of cases shares a module.

use std::fmt::Write as _;
use std::path::Path;

use super::batches::{Reasons, assert_none, in_batches};
use super::cases::{CELL, CELLS, Case, Value, case};
use super::random_kernels::{Kernel, PRELUDE, pool};
use fastrand::Rng;
use kiln::devices::ModuleFormat;
use kiln::fusion::FusionForm;
use kiln::internal::fusion::{Fused, FusionOptions, fuse};
use kiln::internal::spirv::{emit, link};
use kiln::{Buffer, ErrorKind, Local, Module, NdRange, Program, Runtime};
use support::tools::{has_clang, has_tool, renamed, translate};

const KERNELS: usize = 40;
const BATCH: usize = 100;
/// Number of cases, one of which also runs as OpenCL C on drivers that take modules.
const EMITTED: usize = 2;
/// Likewise on drivers that take no modules: PoCL takes long for each kernel.
const ONLY_EMITTED: usize = 10;

type Cell = [u8; CELL];

/// Forms besides the direct one, each of which all cases are fused in, if that is legal.
const FORMS: [FusionForm; 5] = [
    FusionForm::Inlined,
    FusionForm::Tiles { width: 16, height: 4 },
    FusionForm::Tiles { width: 8, height: 8 },
    FusionForm::Strips { rows: 4 },
    FusionForm::Windows { rows: 8 },
];

/// A case that can be fused.
struct Chosen {
    at: usize,
    form: FusionForm,
    case: Case,
    fused: Fused,
}

/// Totals of all cases.
#[derive(Default)]
struct Tally {
    cases: usize,
    fused: usize,
    internalized: usize,
    private: usize,
    launches: usize,
    emitted: usize,
    wrong: usize,
    ranges: usize,
    forms: usize,
    reasons: Reasons,
    failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.cases += other.cases;
        self.fused += other.fused;
        self.internalized += other.internalized;
        self.private += other.private;
        self.launches += other.launches;
        self.emitted += other.emitted;
        self.wrong += other.wrong;
        self.ranges += other.ranges;
        self.forms += other.forms;
        self.reasons.add_all(other.reasons);
        self.failures.extend(other.failures);
    }
}

fn describe(case: &Case, pool: &[Kernel], fused: Option<&Fused>) -> String {
    let mut text = format!("dead {:?}\n", case.dead);
    for launch in &case.launches {
        let Kernel { name, text: kernel, .. } = &pool[launch.kernel];
        let range = &launch.range;
        let _ = writeln!(
            text,
            "{name} over {:?} from {:?} by {:?}: {:?}\n{kernel}",
            range.global(),
            range.offset(),
            range.local(),
            launch.arguments
        );
    }
    if let Some(fused) = fused {
        let _ = writeln!(text, "over {:?}, without {:?}", fused.range, fused.internalized);
    }
    text
}

struct Device<'a> {
    rt: &'a Runtime,
    original: Program,
    fused: Program,
    pool: &'a [Kernel],
}

impl Device<'_> {
    async fn buffers(&self, case: &Case, seed: u64) -> Vec<Buffer<Cell>> {
        let mut random = Rng::with_seed(seed);
        let mut buffers = Vec::new();
        for _ in 0..case.buffers {
            let mut cells = vec![[0; CELL]; CELLS];
            random.fill(cells.as_flattened_mut());
            buffers.push(self.rt.buffer_from(cells).await.expect("there is memory"));
        }
        buffers
    }

    fn submit(
        &self,
        program: &Program,
        kernel: &str,
        range: &NdRange,
        values: &[Value],
        buffers: &[Buffer<Cell>],
    ) {
        // SAFETY: kernels use a cell a work-item at most, and buffers have as many and more.
        let kernel = unsafe { program.kernel(kernel) }.expect("the kernel is there");
        let mut launch = support::launch_over(&kernel, range);
        for value in values {
            launch = match *value {
                Value::Buffer(at, 0) => launch.arg(&buffers[at as usize]),
                Value::Buffer(at, cell) => {
                    launch.arg(&buffers[at as usize].slice(cell..).expect("it is inside"))
                }
                Value::Number(number) => launch.arg(number),
                Value::Factor(factor) => launch.arg(factor),
                Value::Local(bytes) => launch.arg(Local::<[u8; 1]>::new(bytes)),
            };
        }
        self.rt.queue().submit(launch).expect("the arguments fit");
    }

    async fn contents(&self, case: &Case, buffers: &[Buffer<Cell>]) -> Vec<(u32, Vec<Cell>)> {
        let mut contents = Vec::new();
        for (at, buffer) in (0..).zip(buffers).filter(|(at, _)| !case.dead.contains(at)) {
            contents.push((at, self.rt.queue().read(buffer).await.expect("the launches succeed")));
        }
        contents
    }

    /// Returns the difference between the unfused and the fused results of a case.
    async fn difference(&self, chosen: &Chosen, name: &str) -> Option<String> {
        let Chosen { at, case, fused, .. } = chosen;
        let buffers = self.buffers(case, *at as u64).await;
        for launch in &case.launches {
            let kernel = &self.pool[launch.kernel].name;
            self.submit(&self.original, kernel, &launch.range, &launch.arguments, &buffers);
        }
        let expected = self.contents(case, &buffers).await;
        let buffers = self.buffers(case, *at as u64).await;
        let place =
            |&(launch, argument): &(usize, usize)| case.launches[launch].arguments[argument];
        let values: Vec<_> = fused.parameters.iter().map(place).collect();
        self.submit(&self.fused, name, &fused.range, &values, &buffers);
        let found = self.contents(case, &buffers).await;
        let differing = expected.iter().zip(&found).find(|(expected, found)| expected != found);
        differing.map(|((buffer, expected), (_, found))| {
            let (expected, found) = (expected.as_flattened(), found.as_flattened());
            let byte = expected.iter().zip(found).position(|(a, b)| a != b).unwrap_or_default();
            let range = byte / 8 * 8..(byte / 8 * 8 + 8);
            format!(
                "buffer {buffer} from byte {byte}: {:?}, fused {:?}",
                &expected[range.clone()],
                &found[range]
            )
        })
    }
}

fn fuse_case(
    case: &Case,
    pool: &[Kernel],
    module: &[u8],
    options: FusionOptions,
) -> Result<Fused, String> {
    let launches: Vec<_> = case.launches.iter().map(|launch| launch.planned(pool)).collect();
    let outcome = fuse(&[module], &launches, &case.dead, options);
    outcome.unwrap_or_else(|error| panic!("{error}\n{}", describe(case, pool, None)))
}

fn batch(number: usize, cases: usize, devices: &[Runtime]) -> Tally {
    let mut tally = Tally::default();
    let mut random = Rng::with_seed(number as u64);
    let pool = pool(&mut random, KERNELS);
    let folder = tempfile::tempdir().expect("there is room");
    let levels = [["-O1", "-O0", "-O2"], ["-O0", "-O1", "-O2"], ["-O2", "-O1", "-O0"]][number % 3];
    let mut text = String::from(PRELUDE);
    pool.iter().for_each(|kernel| text += &kernel.text);
    let module = translate(folder.path(), &text, &levels);
    let (mut chosen, mut all) = (Vec::new(), Vec::new());
    for at in 0..cases {
        let case = case(&mut random, &pool);
        tally.cases += 1;
        tally.wrong += usize::from(case.is_wrong);
        if case.launches.len() < 2 {
            continue;
        }
        all.push((at, case.clone()));
        match fuse_case(&case, &pool, &module, FusionOptions::default()) {
            Err(why) => tally.reasons.add(&why),
            Ok(fused) if case.is_wrong => {
                let description = describe(&case, &pool, Some(&fused));
                tally
                    .failures
                    .push(format!("batch {number}, case {at}: must be refused\n{description}"));
            }
            Ok(fused) => {
                tally.fused += 1;
                tally.launches += case.launches.len();
                tally.internalized += fused.internalized.len();
                tally.private += usize::from(!fused.internalized.is_empty());
                let range = case.launches[0].range.global();
                let differ = case.launches.iter().any(|launch| launch.range.global() != range);
                tally.ranges += usize::from(differ);
                chosen.push(Chosen { at, form: FusionForm::Direct, case, fused });
            }
        }
    }
    for rt in devices {
        let mut own = Vec::new();
        for Chosen { at, case, .. } in &chosen {
            match fuse_case(case, &pool, &module, FusionOptions::of(rt.device())) {
                Ok(fused) => {
                    let (at, form, case) = (*at, FusionForm::Direct, case.clone());
                    own.push(Chosen { at, form, case, fused });
                }
                Err(why) if why.contains("the device's compiler computes differently") => {
                    tally.reasons.add(&why);
                }
                Err(why) => panic!("device options are not a reason to refuse: {why}"),
            }
        }
        for ((at, case), form) in all.iter().flat_map(|case| FORMS.map(|form| (case, form))) {
            let options = FusionOptions { form, ..FusionOptions::of(rt.device()) };
            // A case that must not be fused directly may still be legal in a form that runs launches again.
            if let Ok(fused) = fuse_case(case, &pool, &module, options) {
                tally.forms += 1;
                own.push(Chosen { at: *at, form, case: case.clone(), fused });
            }
        }
        let chosen = own;
        let mut compare = |every: usize, is_emitted| {
            let some: Vec<_> = chosen.iter().step_by(every).collect();
            let compared = compare(number, rt, &pool, &module, &some, is_emitted, &mut tally);
            futures::executor::block_on(compared);
        };
        if rt.device().formats.contains(&ModuleFormat::SpirV) {
            compare(1, false);
            compare(EMITTED, true);
        } else {
            compare(ONLY_EMITTED, true);
        }
    }
    tally
}

async fn compare(
    number: usize,
    rt: &Runtime,
    pool: &[Kernel],
    module: &[u8],
    chosen: &[&Chosen],
    is_emitted: bool,
    tally: &mut Tally,
) {
    let name = |chosen: &Chosen| {
        let form = FORMS.iter().position(|form| *form == chosen.form);
        form.map_or_else(|| format!("case_{}", chosen.at), |f| format!("case_{}_{f}", chosen.at))
    };
    let modules: Vec<_> = chosen
        .iter()
        .map(|chosen| (name(chosen), renamed(&chosen.fused.spirv, &name(chosen))))
        .collect();
    let modules: Vec<_> =
        modules.iter().map(|(name, module)| (name.as_str(), &module[..])).collect();
    if modules.is_empty() {
        return;
    }
    let linked = link(&modules, false).expect("they have different names");
    // The modules are written first, since a driver may crash the test.
    let dump = std::env::var_os("KILN_FUSION_DUMP");
    let dump = dump.map(|folder| Path::new(&folder).join(number.to_string()));
    if let Some(folder) = &dump {
        std::fs::create_dir_all(folder).expect("there is room");
        std::fs::write(folder.join("original.spv"), module).expect("there is room");
        std::fs::write(folder.join("fused.spv"), &linked).expect("there is room");
        std::fs::write(
            folder.join("stage"),
            format!("batch {number} on {}, emitted: {is_emitted}", rt.device()),
        )
        .expect("there is room");
    }
    let made = |module: &[u8]| {
        if !is_emitted {
            return Some(Module::spirv(module).expect("it is a module"));
        }
        match emit(module) {
            Ok(text) => Some(Module::opencl_c(text)),
            Err(error) if error.kind() == ErrorKind::Unsupported => None,
            Err(error) => panic!("batch {number}: {error}"),
        }
    };
    let (Some(original), Some(fused)) = (made(module), made(&linked)) else {
        tally.reasons.add("not emitted");
        return;
    };
    let build = async |module: &Module| {
        let built = rt.build(module).await;
        built.unwrap_or_else(|error| panic!("batch {number} on {}: {error}", rt.device()))
    };
    let (original, fused) = (build(&original).await, build(&fused).await);
    let device = Device { rt, original, fused, pool };
    for chosen in chosen {
        tally.emitted += usize::from(is_emitted);
        if let Some(folder) = &dump {
            let description = describe(&chosen.case, pool, Some(&chosen.fused));
            std::fs::write(folder.join("case"), description).expect("there is room");
        }
        if let Some(difference) = device.difference(chosen, &name(chosen)).await {
            let description = describe(&chosen.case, pool, Some(&chosen.fused));
            tally.failures.push(format!(
                "batch {number}, case {}, {}, on {}{}: {difference}\n{description}",
                chosen.at,
                chosen.form,
                rt.device(),
                if is_emitted { ", emitted" } else { "" }
            ));
        }
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "what was covered is of interest")]
fn fused_random_launches_match_their_unfused_results() {
    if !has_clang() || !has_tool("spirv-val", &["spirv-val", "--version"]) {
        return;
    }
    let tally = in_batches([200, 30], BATCH, batch, Tally::add);
    eprintln!(
        "{} cases: {} fused, of {} launches, {} of them of different nd-ranges, {} with {} private \
         buffers; {} in other forms; {} run as OpenCL C; {} that must be refused",
        tally.cases,
        tally.fused,
        tally.launches,
        tally.ranges,
        tally.private,
        tally.internalized,
        tally.forms,
        tally.emitted,
        tally.wrong
    );
    tally.reasons.print();
    assert_none(&tally.failures);
    assert!(tally.fused > 0 && tally.private > 0 && tally.wrong > 0, "nothing was tried");
}
