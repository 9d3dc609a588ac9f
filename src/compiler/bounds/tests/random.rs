//! Random kernels and lengths: each access that is proven stays inside its buffer when the kernel runs.

use proptest::prelude::*;

use super::interpreter::{Given, Grid, Machine};
use super::*;
use crate::compiler::fusion::access::random_tests;

/// Number of random kernels, unless `KILN_BOUNDS_CASES` says another one.
const CASES: u32 = 150;

pub(super) fn cases() -> u32 {
    std::env::var("KILN_BOUNDS_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(CASES)
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
}

impl Random {
    pub(super) fn of(seed: u64, touches: usize) -> Self {
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
        Self { scalar, global, offset, local, is_local_given, lengths }
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
        [scalar(self.scalar)].into_iter().chain(buffers).collect()
    }

    pub(super) fn grid(&self) -> Grid {
        let [x, y] = self.global;
        let [a, b] = self.offset;
        Grid { global: [x, y, 1], offset: [a, b, 0], local: [self.local, 1, 1] }
    }

    pub(super) fn given(&self) -> (Vec<Vec<u8>>, Vec<Given>) {
        let objects = self.lengths.iter().map(|&length| vec![7; length]).collect();
        let bytes = Given::Bytes(self.scalar.to_le_bytes().to_vec());
        let buffers = (0..self.lengths.len()).map(Given::Object);
        (objects, [bytes].into_iter().chain(buffers).collect())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn proven_accesses_stay_inside(seed in any::<u64>()) {
        let (bytes, touches) = random_tests::random(seed);
        let launch = Random::of(seed, touches);
        let module = Module::parse(&*bytes).unwrap();
        let kernel = Kernel::of(&module, "k", &[], &BTreeSet::new()).unwrap();
        let (range, arguments) = (launch.range(), launch.arguments());
        // The driver may choose work-groups of any size, which need not divide the global size.
        let report = check(&kernel, &Launch { range: &range, arguments: &arguments, uniform_groups: false, few_constants: seed % 2 == 0 });
        let report = report.unwrap();
        let definitions = kernel.module.definitions();
        let (objects, given) = launch.given();
        let mut machine = Machine::new(&definitions, objects, launch.grid()).unwrap();
        // A kernel that runs for too long is judged by what it did.
        _ = machine.run(kernel.function, &given);
        let contradiction = machine.contradiction(&report);
        prop_assert!(contradiction.is_none(), "{contradiction:?} of {report:#?}");
    }
}
