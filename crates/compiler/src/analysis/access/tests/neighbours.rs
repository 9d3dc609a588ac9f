//! Accesses of kernels that read neighbours, with indices that are guarded, clamped or reflected.

use super::*;

const NEIGHBOURS: [&[u8]; 2] = [
    include_bytes!("../../../../../../tests/data/neighbours.spv"),
    include_bytes!("../../../../../../tests/data/neighbours_O1.spv"),
];

/// Asserts that the reads of a kernel, each in a compiler's form of its own, together reach from the first to
/// the last of these bytes around the work-item's own, within the limits.
#[track_caller]
fn assert_reads(
    kernel: &str,
    values: &[Value],
    range: impl Into<NdSize>,
    coefficients: [i128; 3],
    reach: (i128, i128),
    limits: (i128, i128),
) {
    let range = NdRange::from(range.into());
    let space = Space::new(&range);
    for bytes in NEIGHBOURS {
        let module = Module::parse(bytes).unwrap();
        let (_, function) = function_of(&module, kernel).unwrap();
        let definitions = module.definitions();
        let found = analyse_values(&definitions, function, values, &space).unwrap().accesses;
        let reads = found.all.iter().filter(|access| access.parameter == 0);
        let starts: Vec<_> = reads.map(|access| access.bytes.unwrap().start).collect();
        assert!(starts.iter().all(|start| start.coefficients() == coefficients), "{starts:?}");
        let all = |ends: &dyn Fn(&Form) -> (i128, i128)| {
            let ends = starts.iter().map(ends);
            ends.reduce(|(a, b), (c, d)| (a.min(c), b.max(d))).unwrap()
        };
        assert_eq!(all(&|start| (start.low, start.high)), reach, "{starts:?}");
        assert_eq!(all(&|start| start.bounds(&space)), limits, "{starts:?}");
    }
}

#[test]
fn an_index_that_runs_backwards_is_near_the_id_where_it_is_used() {
    let range = NdRange::from(NdSize::from(100));
    let space = Space::new(&range);
    for bytes in NEIGHBOURS {
        let module = Module::parse(bytes).unwrap();
        let (_, function) = function_of(&module, "reflected_by_helper").unwrap();
        let (definitions, values) = (module.definitions(), [B, B, int(100)]);
        let found = analyse_values(&definitions, function, &values, &space).unwrap().accesses;
        for read in found.all.iter().filter(|access| access.parameter == 0) {
            let index = read.bytes.unwrap().start.quotient(4, &space);
            let (low, high) = index.distance(0, &space).unwrap();
            assert!(-5 <= low && high <= 5, "{read:?}");
        }
    }
}

#[test]
fn neighbourhoods_are_boxes() {
    let plane = [4, 400, 0];
    let values = [B, B, int(100), int(50)];
    assert_reads("clamped_plane", &values, [100, 50], plane, (-408, 408), (0, 19996));
    let range = NdRange::from(NdSize::from([100, 50]));
    let found = found_in(NEIGHBOURS[1], "clamped_plane", &values, &range);
    let ranges: Vec<_> = found.all[0].bytes.unwrap().start.ranges().collect();
    assert_eq!(ranges.iter().map(|r| (r.step, r.count)).collect::<Vec<_>>(), [(400, 2), (4, 4)]);
}

#[test]
fn values_are_known_where_they_are_used() {
    let range = NdRange::from(NdSize::from([100, 50]));
    let module = Module::parse(NEIGHBOURS[0]).unwrap();
    let (_, function) = function_of(&module, "outer_returns").unwrap();
    let space = Space::new(&range);
    let definitions = module.definitions();
    let values = [B, B, int(100), int(50)];
    let found = analyse_values(&definitions, function, &values, &space).unwrap();
    let at = found.accesses.all[0].location.unwrap();
    let body = &module.functions.iter().find(|known| known.id == function).unwrap().body;
    let named = |op| body.iter().find(|i| i.op() == Some(op)).and_then(|i| i.result()).unwrap();
    // The first conversion is that of the id in the first dimension.
    let x = named(rspirv::spirv::Op::UConvert);
    assert_eq!(found.form(x, at).unwrap().bounds(&space), (1, 98));
    let load = named(rspirv::spirv::Op::Load);
    assert_eq!(found.form(load, at), None);
}
