//! Random kernels, lengths and images: each access that is proven stays inside its buffer or its image when the
//! kernel runs.

#![allow(clippy::print_stderr, reason = "a log tells what was tested")]

use std::sync::Mutex;

use super::interpreter::{Given, Grid, Machine, Memory};
use super::*;
use crate::analysis::access::random_tests::{self, Picture};
use crate::{Addressing, Sampler};

/// Returns the number of random kernels.
pub(super) fn cases() -> u32 {
    test_tools::tier::cases("KILN_BOUNDS_CASES", 150, 50) as u32
}

/// Launch of a random kernel.
pub(super) struct Random {
    scalar: i32,
    global: [u64; 2],
    offset: [u64; 2],
    local: u64,
    /// Whether the launch states the size of its work-groups.
    is_local_given: bool,
    lengths: Vec<usize>,
    images: Vec<Argument>,
    /// Sampler, if the kernel has images.
    sampler: Option<Sampler>,
}

/// Returns a random kernel `k` and a launch of it.
pub(super) fn random(seed: u64, has_images: bool) -> (Vec<u8>, Random) {
    if has_images {
        let (bytes, touches, pictures) = random_tests::random_with_images(seed);
        return (bytes, Random::of(seed, touches).with_images(seed, &pictures));
    }
    let (bytes, touches) = random_tests::random(seed);
    (bytes, Random::of(seed, touches))
}

impl Random {
    fn of(seed: u64, touches: usize) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x5eed);
        let global = [rng.u64(1..9), rng.u64(1..5)];
        let offset = if rng.u8(..3) == 0 { [rng.u64(..5), rng.u64(..3)] } else { [0; 2] };
        let lengths = (0..touches).map(|_| match rng.u8(..4) {
            0 => rng.usize(..16),
            1 => rng.usize(..200),
            _ => rng.usize(..48) * 4,
        });
        let lengths = lengths.collect();
        let is_local_given = rng.bool();
        let (scalar, local) = (rng.i32(-3..9), rng.u64(1..=global[0]));
        let (images, sampler) = (Vec::new(), None);
        Self { scalar, global, offset, local, is_local_given, lengths, images, sampler }
    }

    /// Adds images of integers, and a sampler that is defined at integer coordinates.
    fn with_images(mut self, seed: u64, pictures: &[Picture]) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed ^ 0x1a9e5);
        for picture in pictures {
            let (count, type_name) = (picture.coordinates(), picture.type_name());
            let size = std::array::from_fn(|d| if d < count { rng.usize(1..10) } else { 1 });
            let channel = if rng.bool() { Channel::Signed } else { Channel::Unsigned };
            self.images.push(Argument::Image { type_name, size, channel });
        }
        let all = [Addressing::None, Addressing::ClampToEdge, Addressing::Clamp];
        self.sampler = Some(Sampler::new().addressing(all[rng.usize(..all.len())]));
        self
    }

    pub(super) fn range(&self) -> NdRange {
        let pair = |[a, b]: [u64; 2]| NdSize::from([a as usize, b as usize]);
        let mut range = NdRange::from(pair(self.global));
        range.set_offset(pair(self.offset)).unwrap();
        if self.is_local_given {
            range.set_local(pair([self.local, 1])).unwrap();
        }
        range
    }

    pub(super) fn arguments(&self) -> Vec<Argument> {
        let buffers = self.lengths.iter().map(|&length| buffer(length));
        let images = self.images.iter().cloned().chain(self.sampler.map(Argument::Sampler));
        [scalar(self.scalar)].into_iter().chain(buffers).chain(images).collect()
    }

    pub(super) fn grid(&self) -> Grid {
        let [x, y] = self.global;
        let [a, b] = self.offset;
        Grid { global: [x, y, 1], offset: [a, b, 0], local: [self.local, 1, 1] }
    }

    pub(super) fn given(&self) -> (Memory, Vec<Given>) {
        Memory::of(&self.arguments(), 7)
    }
}

/// Numbers of what was checked.
#[derive(Debug, Default)]
struct Counts {
    /// Accesses that are proven, and others.
    accesses: [usize; 2],
    /// Launches whose work-items ran to their ends.
    executed: usize,
    launches: usize,
}

impl Counts {
    /// Checks a random launch, and runs it: no access that is proven may leave its memory.
    fn check(&mut self, seed: u64) {
        let (bytes, launch) = random(seed, seed.is_multiple_of(2));
        let module = Module::parse(&*bytes).unwrap();
        let kernel = Kernel::of(&module, "k", &[], &BTreeSet::new()).unwrap();
        let (range, arguments) = (launch.range(), launch.arguments());
        // The driver may choose work-groups of any size, which need not divide the global size.
        let report = check(
            &kernel,
            &Launch {
                range: &range,
                arguments: &arguments,
                uniform_groups: false,
                few_constants: seed % 4 < 2,
            },
        );
        let report = report.unwrap();
        let definitions = kernel.module.definitions();
        let (memory, given) = launch.given();
        let mut machine = Machine::new(&definitions, memory, launch.grid()).unwrap();
        // A kernel that runs for too long is judged by what it did.
        let ended = machine.run(kernel.function, &given).is_ok();
        let contradiction = machine.contradiction(&report);
        assert!(contradiction.is_none(), "KILN_SEED={seed}: {contradiction:?} of {report:#?}");
        for access in &report.accesses {
            self.accesses[usize::from(!access.is_in_bounds())] += 1;
        }
        self.executed += usize::from(ended);
        self.launches += 1;
    }

    fn add(&mut self, other: &Self) {
        self.accesses[0] += other.accesses[0];
        self.accesses[1] += other.accesses[1];
        self.executed += other.executed;
        self.launches += other.launches;
    }
}

/// `KILN_SEED` sets the first seed, and `KILN_BOUNDS_CASES` the number of launches.
#[test]
fn proven_accesses_stay_inside() {
    let first = std::env::var("KILN_SEED").map(|text| text.parse().expect("it is a number"));
    let first: u64 = first.unwrap_or_else(|_| fastrand::u64(..1 << 32));
    let seeds: Vec<_> = (0..u64::from(cases())).map(|at| first + at).collect();
    let parts: Vec<_> = seeds.chunks(256).collect();
    let all = Mutex::new(Counts::default());
    test_tools::at_once(&parts, |seeds| {
        let mut own = Counts::default();
        seeds.iter().for_each(|&seed| own.check(seed));
        all.lock().unwrap().add(&own);
    });
    let counts = all.into_inner().unwrap();
    eprintln!("KILN_SEED={first}: {counts:?}");
    let [proven, guarded] = counts.accesses;
    assert_eq!(counts.launches, cases() as usize);
    assert!(counts.executed * 2 > counts.launches, "{counts:?}");
    assert!(proven * 8 > guarded && guarded * 8 > proven, "{counts:?}");
}
