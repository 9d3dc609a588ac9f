//! On every device, the results of fused kernels equal those of their launches one by one, byte for byte.

use kiln::fusion::Internalization;
use kiln::internal::fusion::{Argument, Fused, FusionOptions, Launch, fuse, range};
use kiln::internal::spirv::emit;
use kiln::launch::NdSize;
use kiln::{Buffer, Kernel, Module, NdRange, Program, Runtime};
use support::tier;

const OPTIMISED: [&[u8]; 2] =
    [include_bytes!("../data/fusion.spv"), include_bytes!("../data/patterns.spv")];
const UNOPTIMISED: [&[u8]; 2] =
    [include_bytes!("../data/fusion_O0.spv"), include_bytes!("../data/patterns_O0.spv")];

const ITEMS: usize = 256;
const GROUP: usize = 64;
/// Number of floats in a buffer: the most that any of the kernels accesses.
const FLOATS: usize = ITEMS * 4;

/// A kernel with a source and a target, which stays inside their buffers: its module, its name and its scalars.
type Shape = (usize, &'static str, &'static [u32]);

/// Families of kernels. In each, work-items of different kernels mostly access the same elements.
const FAMILIES: [&[Shape]; 4] = [
    // One or four elements for each work-item.
    &[
        (0, "vectors", &[]),
        (0, "quads", &[]),
        (0, "loaded", &[]),
        (1, "first_of_four", &[]),
        (1, "rolled", &[]),
    ],
    // One element for each work-item, in all or in some work-items.
    &[
        (0, "by_group", &[]),
        (0, "helped", &[]),
        (0, "guarded", &[200]),
        (1, "guarded_inside", &[200]),
        (0, "guarded", &[100]),
        (1, "split", &[16]),
        (1, "split_signed", &[5]),
        (1, "squared", &[]),
        (1, "repeated", &[]),
        (0, "by_group", &[]),
        (1, "guarded_inside", &[1000]),
    ],
    // Elements within groups.
    &[
        (0, "by_group", &[]),
        (1, "turned_in_memory", &[]),
        (0, "turned", &[]),
        (1, "group_most", &[]),
        (0, "guarded", &[100]),
    ],
    // Any elements.
    &[
        (0, "points", &[]),
        (0, "reversed", &[]),
        (1, "pairs", &[]),
        (1, "strided", &[1000]),
        (1, "strided_int", &[700]),
        (1, "strided", &[200]),
        (0, "by_group", &[]),
        (1, "split_transposed", &[16, 16]),
    ],
];
/// Kernels with one buffer.
const IN_PLACE: [Shape; 3] =
    [(0, "in_place", &[]), (1, "guarded_in_place", &[200]), (1, "shifted", &[])];

fn kernel(program: &Program, name: &str) -> Kernel {
    // SAFETY: the kernels touch at most four floats a work-item, which the buffers have.
    unsafe { program.kernel(name) }.expect("the kernel is there")
}

async fn buffers(rt: &Runtime, count: u32) -> Vec<Buffer<f32>> {
    let mut buffers = Vec::new();
    for buffer in 0..count {
        let values = (0..FLOATS).map(|at| (at as f32).mul_add(0.37, buffer as f32));
        buffers.push(rt.buffer_from(values.collect::<Vec<_>>()).await.expect("there is memory"));
    }
    buffers
}

/// Returns the contents of the buffers that are not dead, as bits.
async fn contents(rt: &Runtime, buffers: &[Buffer<f32>], dead: &[u32]) -> Vec<Vec<u32>> {
    let mut contents = Vec::new();
    for (_, buffer) in (0_u32..).zip(buffers).filter(|(at, _)| !dead.contains(at)) {
        let values = rt.queue().read(buffer).await.expect("the launches succeed");
        contents.push(values.into_iter().map(f32::to_bits).collect());
    }
    contents
}

struct Chain {
    launches: Vec<Launch>,
    buffers: u32,
    dead: Vec<u32>,
}

async fn assert_same(rt: &Runtime, originals: &[Program], chain: &Chain, fused: Fused) {
    let one_by_one = buffers(rt, chain.buffers).await;
    for Launch { module, kernel: name, arguments, range, .. } in &chain.launches {
        submit(rt, &kernel(&originals[*module], name), range, arguments, &one_by_one);
    }
    let expected = contents(rt, &one_by_one, &chain.dead).await;

    let text = emit(&fused.spirv).expect("what it is made of can be expressed");
    let module = Module::spirv(fused.spirv).expect("it is a module");
    // Where the device takes no SPIR-V, the two are the same.
    for (way, module) in [("as a module", module), ("as OpenCL C", Module::opencl_c(text))] {
        let program = rt.build(&module).await;
        let program =
            program.unwrap_or_else(|error| panic!("{:?}, {way}: {error}", chain.launches));
        let at_once = buffers(rt, chain.buffers).await;
        let kernel = kernel(&program, &fused.kernel);
        let given = |&(launch, at): &(usize, usize)| &chain.launches[launch].arguments[at];
        submit(rt, &kernel, &fused.range, fused.parameters.iter().map(given), &at_once);
        assert!(
            contents(rt, &at_once, &chain.dead).await == expected,
            "fused, {way}, it differs: {:?}, dead {:?}, kept {:?}, without {:?}, local {:?}",
            chain.launches,
            chain.dead,
            fused.kept,
            fused.internalized,
            fused.local
        );
    }
}

fn launch_of(&(module, kernel, numbers): &Shape, buffers: &[u32]) -> Launch {
    let length = FLOATS * size_of::<f32>();
    let buffers = buffers.iter().map(|&buffer| Argument::Buffer { buffer, offset: 0, length });
    let numbers = numbers.iter().map(|&number| Argument::Scalar(number.to_le_bytes().into()));
    Launch {
        module,
        kernel: kernel.to_owned(),
        range: range(ITEMS.into(), None, Some(GROUP.into())).expect("both have one dimension"),
        arguments: buffers.chain(numbers).collect(),
        constants: Vec::new(),
    }
}

fn items(range: &NdRange) -> usize {
    range.global().iter().product()
}

fn random_chain(random: &mut fastrand::Rng) -> Chain {
    let count = random.u32(2..=6);
    // Few kinds are used in one chain, so that their work-items have the same elements.
    let family = FAMILIES[random.usize(0..FAMILIES.len())];
    let kinds = random.usize(1..=3);
    let kinds = random.choose_multiple(family.iter(), kinds);
    let mut launches = Vec::new();
    for at in 1..count {
        let source = if random.bool() { at - 1 } else { random.u32(0..at) };
        let kind = random.choice(kinds.iter()).expect("one");
        launches.push(launch_of(kind, &[source, at]));
        if random.u8(..) < 60 {
            let kind = random.choice(IN_PLACE.iter()).expect("one");
            launches.push(launch_of(kind, &[random.u32(1..=at)]));
        }
    }
    let dead = (1..count).filter(|_| random.u8(..) < 150).collect();
    Chain { launches, buffers: count, dead }
}

/// Number of random chains of each kind of module in the full tier.
const ROUNDS: usize = 40;

#[test]
#[allow(clippy::print_stderr, reason = "what was covered is of interest")]
fn fused_random_chains_match_their_unfused_results() {
    support::on_all_devices_at_once(async |rt| {
        let mut random = fastrand::Rng::with_seed(5);
        let rounds = tier::cases("KILN_FUSION_ROUNDS", ROUNDS, 10);
        let (mut fused_chains, mut refused, mut kept, mut private, mut barriers) = (0, 0, 0, 0, 0);
        let mut local = 0;
        let mut wide = 0;
        for modules in [OPTIMISED, UNOPTIMISED] {
            let mut originals = Vec::new();
            for module in modules {
                let module = Module::spirv(module.to_vec()).expect("it is a module");
                originals.push(rt.build(&module).await.expect("the module builds"));
            }
            for _ in 0..rounds {
                let chain = random_chain(&mut random);
                let into = random.bool().then_some(Internalization::Local);
                let fused = |width| {
                    let options = FusionOptions { into, width, ..FusionOptions::of(rt.device()) };
                    fuse(&modules, &chain.launches, &chain.dead, options)
                        .expect("the launches fit the modules")
                };
                let width = random.choice([2, 4]).expect("one");
                match fused(1) {
                    Err(_) => refused += 1,
                    Ok(fused_by_one) => {
                        let fused_wide =
                            fused(width).expect("coarsening is not a reason to refuse");
                        if items(&fused_wide.range) < ITEMS {
                            assert_eq!(items(&fused_wide.range), ITEMS / width);
                            wide += 1;
                            assert_same(&rt, &originals, &chain, fused_wide).await;
                        }
                        let fused = fused_by_one;
                        fused_chains += 1;
                        local += fused.local.len();
                        let own = fused.internalized.len() - fused.local.len();
                        private += own;
                        kept += fused.kept.len() - own;
                        barriers += fused.barriers;
                        assert_same(&rt, &originals, &chain, fused).await;
                    }
                }
            }
        }
        let all = (fused_chains, refused, kept, private, local, barriers, wide);
        eprintln!("fused, refused, kept, private, local, barriers, wide: {all:?}");
        // Each kind of outcome occurs.
        assert!(fused_chains > 0 && refused > 0 && kept > 0 && private > 0, "{all:?}");
        if rounds >= ROUNDS {
            assert!(fused_chains > 25 && refused > 10 && kept > 10 && private > 10, "{all:?}");
            assert!(barriers > 2 && wide > 5 && local > 10, "{all:?}");
        }
    });
}

#[test]
fn kernels_coarsened_by_four_match_their_unfused_results() {
    let ranges: [(NdSize, Option<NdSize>, Option<NdSize>); 10] = [
        (1024.into(), None, None),
        (512.into(), Some(256.into()), None),
        (128.into(), Some(3.into()), Some(32.into())),
        (768.into(), Some(100.into()), Some(96.into())),
        ([32, 16].into(), None, None),
        ([32, 16].into(), Some([7, 5].into()), None),
        ([256, 1].into(), Some([64, 2].into()), None),
        ([16, 8].into(), Some([5, 1].into()), Some([16, 2].into())),
        ([8, 64].into(), Some([3, 2].into()), None),
        ([16, 16, 1].into(), Some([3, 2, 0].into()), None),
    ];
    support::on_all_devices_at_once(async |rt| {
        for modules in [OPTIMISED, UNOPTIMISED] {
            let module = Module::spirv(modules[0].to_vec()).expect("it is a module");
            let originals = [rt.build(&module).await.expect("the module builds")];
            for (global, offset, local) in ranges {
                let range = range(global, offset, local).expect("they have as many dimensions");
                let rows =
                    range.global().get(1).unwrap_or(&1) + range.offset().get(1).unwrap_or(&0);
                let width = (FLOATS / rows) as u32;
                let launch = |from| {
                    let launch = launch_of(&(0, "plane", &[]), &[from, from + 1]);
                    let mut arguments = launch.arguments;
                    arguments.push(Argument::Scalar(width.to_le_bytes().into()));
                    Launch { range, arguments, ..launch }
                };
                let launches = vec![launch(0), launch(1)];
                let chain = Chain { launches, buffers: 3, dead: vec![1] };
                let options = FusionOptions { width: 4, ..FusionOptions::of(rt.device()) };
                let fused = fuse(&modules, &chain.launches, &chain.dead, options);
                let fused = fused.expect("the launches fit").expect("it is proven");
                assert_eq!(items(&fused.range), items(&range) / 4, "{range:?}");
                assert_same(&rt, &originals, &chain, fused).await;
            }
        }
    });
}

/// Runs a kernel with a data race, which a device that detects races must report.
#[test]
#[ignore = "for such a device: scripts/test-races"]
fn work_items_that_race() {
    futures::executor::block_on(support::on_each_device(async |rt| {
        let text = "kernel void last(global uint *x) { x[0] = get_global_id(0); }";
        let program = rt.build(&Module::opencl_c(text)).await.expect("it builds");
        let x = rt.buffer::<u32>(1).expect("there is room");
        // SAFETY: the kernel touches the one element that the buffer has.
        let last = unsafe { program.kernel("last") }.expect("it is there");
        let launch = last.launch(GROUP).arg(&x);
        rt.queue().submit(launch).expect("it is right").await.expect("it runs");
    }));
}

fn submit<'a>(
    rt: &Runtime,
    kernel: &Kernel,
    range: &NdRange,
    arguments: impl IntoIterator<Item = &'a Argument>,
    buffers: &[Buffer<f32>],
) {
    let mut all = support::launch_over(kernel, range);
    for argument in arguments {
        all = match argument {
            Argument::Buffer { buffer, .. } => all.arg(&buffers[*buffer as usize]),
            Argument::Scalar(bytes) => {
                all.arg(u32::from_le_bytes(bytes[..].try_into().expect("numbers have four bytes")))
            }
            Argument::Local(_) => panic!("no kernel here is given local memory"),
        };
    }
    rt.queue().submit(all).expect("the arguments fit");
}
