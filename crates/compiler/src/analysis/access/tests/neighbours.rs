//! Accesses of kernels that read neighbours, with indices that are guarded, clamped or reflected.

use super::*;

const NEIGHBOURS: [&[u8]; 2] = [
    include_bytes!("../../../../../../tests/data/neighbours.spv"),
    include_bytes!("../../../../../../tests/data/neighbours_O1.spv"),
];

/// Returns descriptions of all accesses, with the limits of their starts: `4x+0..8 4 in 0..396`.
fn limited(bytes: &[u8], kernel: &str, values: &[Value], range: &NdRange) -> Vec<String> {
    let module = Module::parse(bytes).unwrap();
    let (_, function) = function_of(&module, kernel).unwrap();
    let space = Space::new(range);
    let definitions = module.definitions();
    let found = analyse_values(&definitions, function, values, &space).unwrap().accesses;
    let limits = found.all.iter().map(|access| {
        let bounds = access.bytes.map(|bytes| bytes.start.bounds(&space));
        bounds.map_or_else(String::new, |(low, high)| format!(" in {low}..{high}"))
    });
    described(&found).into_iter().zip(limits).map(|(text, limits)| text + &limits).collect()
}

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
fn clamped_indices_keep_their_relation_to_the_id() {
    let line = [4, 0, 0];
    assert_reads("clamped", &[B, B, int(100)], 100, line, (-16, 16), (0, 396));
    assert_reads("clamped_by_size", &[B, B], 100, line, (-12, 8), (0, 396));
    assert_reads("clamped_unsigned", &[B, B], 100, line, (-4, 4), (0, 396));
    assert_reads("chosen_border", &[B, B, int(100)], 100, line, (-4, 4), (0, 396));
}

#[test]
fn indices_that_are_clamped_without_branches_keep_their_relation_to_the_id() {
    let line = [4, 0, 0];
    assert_reads("without_branches", &[B, B, int(100)], 100, line, (-4, 4), (0, 396));
    assert_reads("saturated", &[B, B], 100, line, (-8, 0), (0, 388));
}

#[test]
fn pointers_to_rows_keep_their_relation_to_the_id() {
    let values = [B, B, int(100), int(50)];
    assert_reads("chosen_row", &values, [100, 50], [4, 400, 0], (-400, 0), (0, 19596));
}

#[test]
fn guards_of_rows_and_columns_limit_the_linear_id() {
    let values = [B, B, int(100)];
    assert_reads("flat_inner", &values, 5000, [4, 0, 0], (-8, 12), (0, 19996));
    assert_reads("lower_rows", &values, 5000, [4, 0, 0], (-800, 0), (0, 19196));
}

#[test]
fn reflected_indices_keep_their_relation_to_the_id() {
    let line = [4, 0, 0];
    assert_reads("mirrored", &[B, B, int(100)], 100, line, (-16, 16), (0, 396));
    assert_reads("mirrored_by_abs", &[B, B], 100, line, (-8, 8), (0, 388));
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
fn an_index_that_is_clamped_to_other_bounds_goes_further() {
    // The image is narrower than the launch: the last work-items all read its last element.
    let line = [4, 0, 0];
    assert_reads("clamped", &[B, B, int(90)], 100, line, (-40, 16), (0, 356));
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
fn vectors_of_coordinates_are_clamped_by_component() {
    let values = [B, B, int(100), int(50)];
    assert_reads("clamped_vector", &values, [100, 50], [4, 400, 0], (-408, 404), (0, 19996));
}

#[test]
fn guards_limit_what_is_accessed() {
    let plane = [4, 400, 0];
    let values = [B, B, int(100), int(50)];
    assert_reads("inner", &values, [100, 50], plane, (-400, 400), (0, 19996));
    assert_reads("outer_returns", &values, [100, 50], plane, (-404, 404), (0, 19996));
    assert_reads("taps_inside", &values, [100, 50], plane, (-808, 808), (0, 19996));
    assert_reads("loaded_if_inside", &[B, B], 100, [4, 0, 0], (-4, 4), (0, 396));
    // Each access has limits of its own.
    let range = NdRange::from(NdSize::from([100, 50]));
    let expected = [
        "0 reads 4x+400y+-404 4 in 0..19188",
        "0 reads 4x+400y+404 4 in 808..19996",
        "1 writes 4x+400y+0 4 in 404..19592",
    ];
    assert_eq!(limited(NEIGHBOURS[0], "outer_returns", &values, &range), expected);
}

#[test]
fn scalars_that_only_limit_accesses_are_not_relied_on() {
    let (range, values) = (NdRange::from(NdSize::from([100, 50])), [B, B, int(100), int(50)]);
    for bytes in NEIGHBOURS {
        let module = Module::parse(bytes).unwrap();
        let (_, function) = function_of(&module, "outer_returns").unwrap();
        let space = Space::new(&range);
        let definitions = module.definitions();
        let found = analyse(&definitions, function, &values, &space).unwrap();
        assert_eq!(found.constants, BTreeSet::from([2]));
        let (_, highest) = found.all[1].bytes.unwrap().start.bounds(&space);
        assert_eq!(highest, 404 + 4 * 98 + 400 * 49);
        let exact = analyse_values(&definitions, function, &values, &space).unwrap();
        assert_eq!(exact.accesses.constants, BTreeSet::from([2, 3]));
    }
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

#[test]
fn loops_that_never_run_are_left_out() {
    let range = NdRange::from(NdSize::from(100));
    for bytes in NEIGHBOURS {
        let whole = limited(bytes, "with_tail", &[B, B, int(64)], &range);
        let expected =
            ["0 reads 256x+0..240 16 always in 0..25584", "1 writes 4x+0 4 always in 0..396"];
        assert_eq!(whole, expected);
        let tail = limited(bytes, "with_tail", &[B, B, int(66)], &range);
        assert_eq!(tail[1], "0 reads 264x+256..260 4 always in 256..26396");
    }
}

#[test]
fn loops_that_count_down_are_bounded() {
    assert_reads("from_the_end", &[B, B], 100, [32, 0, 0], (0, 28), (0, 3196));
}

#[test]
fn all_work_groups_together_have_the_global_size() {
    let range = NdRange::from(NdSize::from(100));
    for bytes in NEIGHBOURS {
        let found = limited(bytes, "by_all_groups", &[B, B, int(1000)], &range);
        assert_eq!(found[0], "0 reads 4x+0..3600 4 always in 0..3996", "{found:?}");
    }
}

#[test]
fn starts_of_work_groups_are_known_without_their_size() {
    let range = NdRange::from(NdSize::from(100));
    for bytes in NEIGHBOURS {
        let expected = ["0 reads 4x+0 4 always in 0..396", "1 writes 4x+0 4 always in 0..396"];
        assert_eq!(limited(bytes, "by_parts", &[B, B], &range), expected);
    }
}

#[test]
fn compared_pointers_do_not_escape() {
    let range = NdRange::from(NdSize::from(100));
    let region =
        |memory, offset| Value::Buffer(Region { memory: Memory(memory), offset, length: 400 });
    for bytes in NEIGHBOURS {
        let described = |values: &[Value]| described(&found_in(bytes, "compared", values, &range));
        let certain = ["0 reads 4x+0 4 always", "1 writes 4x+0 4 always"];
        assert_eq!(described(&[region(0, 0), region(1, 0)]), certain);
        assert_eq!(described(&[region(0, 0), region(0, 400)]), certain);
        assert_eq!(described(&[region(0, 0), region(0, 0)]), [""; 0]);
    }
}
