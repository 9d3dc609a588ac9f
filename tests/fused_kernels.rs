//! Fused kernels do what their launches do one by one, byte for byte, on every device.

mod support;

use kiln::fusion_internals::{Fused, fuse_buffers};
use kiln::spirv_internals::emit;
use kiln::{Buffer, Image, Kernel, Program, Runtime};

const OPTIMISED: &[u8] = include_bytes!("data/fusion.spv");
const UNOPTIMISED: &[u8] = include_bytes!("data/fusion_O0.spv");

const ITEMS: usize = 256;
const GROUP: usize = 64;
/// Of a buffer: as many as any of the kernels touches.
const FLOATS: usize = ITEMS * 4;

/// Kernels of a source and a target, which stay inside their buffers.
const KERNELS: [&str; 9] =
    ["vectors", "quads", "loaded", "points", "by_group", "helped", "reversed", "total", "turned"];

/// Launches in order: a kernel with its buffers.
type Chain = Vec<(&'static str, Vec<u32>)>;

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

fn launch(rt: &Runtime, kernel: &Kernel, buffers: &[&Buffer<f32>]) {
    let launch = kernel.launch(ITEMS).local(GROUP);
    let queue = rt.queue();
    let event = match *buffers {
        [a] => queue.submit(launch.args((a,))),
        [a, b] => queue.submit(launch.args((a, b))),
        [a, b, c] => queue.submit(launch.args((a, b, c))),
        [a, b, c, d] => queue.submit(launch.args((a, b, c, d))),
        [a, b, c, d, e] => queue.submit(launch.args((a, b, c, d, e))),
        [a, b, c, d, e, f] => queue.submit(launch.args((a, b, c, d, e, f))),
        _ => panic!("{} buffers", buffers.len()),
    };
    event.expect("the arguments fit");
}

/// What the buffers hold afterwards that are not dead, as bits.
async fn contents(rt: &Runtime, buffers: &[Buffer<f32>], dead: &[u32]) -> Vec<Vec<u32>> {
    let mut contents = Vec::new();
    for (_, buffer) in (0_u32..).zip(buffers).filter(|(at, _)| !dead.contains(at)) {
        let values = rt.queue().read(buffer).await.expect("the launches succeed");
        contents.push(values.into_iter().map(f32::to_bits).collect());
    }
    contents
}

async fn assert_same(
    rt: &Runtime,
    original: &Program,
    chain: &Chain,
    count: u32,
    dead: &[u32],
    fused: Fused,
) {
    let one_by_one = buffers(rt, count).await;
    for (name, places) in chain {
        let given: Vec<_> = places.iter().map(|&at| &one_by_one[at as usize]).collect();
        launch(rt, &kernel(original, name), &given);
    }
    let expected = contents(rt, &one_by_one, dead).await;

    let text = emit(&fused.spirv).expect("what it is made of can be expressed");
    let module = Image::spirv(fused.spirv).expect("it is a module");
    // Where the device takes no SPIR-V, they are the same.
    for (way, image) in [("as a module", module), ("as OpenCL C", Image::opencl_c(text))] {
        let program = rt.build(&image).await;
        let program = program.unwrap_or_else(|error| panic!("{chain:?}, {way}: {error}"));
        let at_once = buffers(rt, count).await;
        let given: Vec<_> = fused.parameters.iter().map(|&at| &at_once[at as usize]).collect();
        launch(rt, &kernel(&program, &fused.kernel), &given);
        assert!(
            contents(rt, &at_once, dead).await == expected,
            "fused, {way}, it differs: {chain:?}, without {:?}",
            fused.internalized
        );
    }
}

fn random_chain(random: &mut fastrand::Rng) -> (Chain, u32, Vec<u32>) {
    let count = random.u32(2..=6);
    // Few kinds in one chain, so that their work-items have the same elements.
    let kinds = random.usize(1..=3);
    let kinds = random.choose_multiple(KERNELS.iter().copied(), kinds);
    let mut chain = Chain::new();
    for at in 1..count {
        let source = if random.bool() { at - 1 } else { random.u32(0..at) };
        chain.push((random.choice(kinds.iter().copied()).expect("one"), vec![source, at]));
        if random.u8(..) < 40 {
            chain.push(("in_place", vec![random.u32(1..=at)]));
        }
    }
    let dead = (1..count - 1).filter(|_| random.u8(..) < 200).collect();
    (chain, count, dead)
}

#[test]
fn random_chains_compute_the_same_fused() {
    futures::executor::block_on(support::on_each_device(async |rt| {
        let mut random = fastrand::Rng::with_seed(5);
        let (mut fused_chains, mut private, mut refused) = (0, 0, 0);
        for module in [OPTIMISED, UNOPTIMISED] {
            let image = Image::spirv(module.to_vec()).expect("it is a module");
            let original = rt.build(&image).await.expect("the module builds");
            for _ in 0..60 {
                let (chain, count, dead) = random_chain(&mut random);
                let launches: Vec<_> =
                    chain.iter().map(|(kernel, places)| (*kernel, places.as_slice())).collect();
                let fused = fuse_buffers(module, &launches, (ITEMS, GROUP), FLOATS * 4, &dead);
                match fused.expect("the launches fit the module") {
                    Err(_) => refused += 1,
                    Ok(fused) => {
                        fused_chains += 1;
                        private += fused.internalized.len();
                        assert_same(&rt, &original, &chain, count, &dead, fused).await;
                    }
                }
            }
        }
        // Each kind of outcome is there.
        assert!(
            fused_chains > 30 && private > 20 && refused > 10,
            "{fused_chains} {private} {refused}"
        );
    }));
}
