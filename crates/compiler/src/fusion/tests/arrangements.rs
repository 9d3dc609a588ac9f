//! Launches that are fused in another arrangement of their work-items than by linear ids.

use super::*;

const ROWS: &[u8] = include_bytes!("../../../../../tests/data/rows.spv");
const ALGEBRA: &[u8] = include_bytes!("../../../../../tests/data/chains/linear_algebra.spv");

const COLUMNS: u32 = 24;
const GROUP: usize = 8;
/// Number of rows.
const COUNT: usize = 64;
const ALL_ELEMENTS: usize = COLUMNS as usize * COUNT;

fn grouped(global: impl Into<NdSize>, local: impl Into<NdSize>) -> NdRange {
    let mut range = over(global);
    range.set_local(local.into()).unwrap();
    range
}

fn elements(from: u32, to: u32) -> Ranged {
    ("scale_elements", over(ALL_ELEMENTS), vec![buffer(from), buffer(to), float(3.0)])
}

fn vectors(from: u32, to: u32) -> Ranged {
    ("scale_vectors", over(ALL_ELEMENTS / 4), vec![buffer(from), buffer(to), float(0.5)])
}

fn rows(kernel: &'static str, group: usize, from: u32, to: u32) -> Ranged {
    let columns = int(COLUMNS as i32);
    (kernel, grouped(COUNT * group, group), vec![buffer(from), buffer(to), columns])
}

#[track_caller]
fn assert_refused(launches: &[Ranged]) -> String {
    fuse_in(ROWS, &plan_of(launches, &[]), Trust::ProofOnly).fused.unwrap_err()
}

#[test]
fn a_work_item_runs_all_elements_of_its_vector() {
    for launches in [[vectors(0, 1), elements(1, 2)], [elements(0, 1), vectors(1, 2)]] {
        let (fused, text) = fused(ROWS, &plan_of(&launches, &[1]));
        assert_eq!(fused.range, over(ALL_ELEMENTS / 4));
        assert_eq!(fused.internalized, [Memory(1)]);
        assert!(fused.barriers.is_empty());
        // Each argument is one parameter, though the elements are calculated by four functions.
        assert_eq!(fused.parameters.len(), 4, "{text}");
        assert_eq!(fused.kernel.matches("elements").count(), 4);
    }
}

#[test]
fn a_work_item_whose_elements_are_fewer_does_not_run_the_others() {
    let below = ("offset_below", over(90), vec![buffer(1), buffer(2), int(1000)]);
    let launches = [vectors(0, 1), below];
    let mut launches = plan_of(&launches, &[]);
    launches.slots[0].range = over(23);
    let (fused, text) = fused(ROWS, &launches);
    assert_eq!(fused.range, over(23));
    // The third and the fourth element are missing in the last vector.
    assert_eq!(text.matches("OpULessThan").count(), 2, "{text}");
}

#[test]
fn ranges_are_trimmed_to_the_sizes_that_kernels_compare_ids_with() {
    let line = |size, from, to| {
        ("offset_below", grouped(size, 32), vec![buffer(from), buffer(to), int(150)])
    };
    let plane = |from, to| {
        let arguments = vec![buffer(from), buffer(to), int(15), int(10)];
        ("offset_pixels", grouped([16, 12], [16, 4]), arguments)
    };
    for launches in [[line(160, 0, 1), plane(1, 2)], [plane(0, 1), line(192, 1, 2)]] {
        let plan = plan_of(&launches, &[1]);
        let (fused, _) = fused(ROWS, &plan);
        assert_eq!(fused.range.global().iter().product::<usize>(), 150);
        assert_eq!(fused.internalized, [Memory(1)]);
        let outcome = fuse_in(ROWS, &plan, Trust::ProofOnly);
        let place = |slot, argument| Place { slot, argument };
        let relied = match launches[0].0 {
            "offset_below" => [place(0, 2), place(1, 2), place(1, 3)],
            _ => [place(0, 2), place(0, 3), place(1, 2)],
        };
        assert!(outcome.constants.is_superset(&BTreeSet::from(relied)));
    }
    // Another kernel writes all elements, whatever their ids are compared with.
    let all = ("offset_all", grouped(160, 32), vec![buffer(0), buffer(1), int(150)]);
    let (fused, _) = fused(ROWS, &plan_of(&[all, plane(1, 2)], &[]));
    assert_eq!(fused.range, over(160));
}

#[test]
fn a_work_group_runs_the_elements_of_its_row() {
    for kernel in ["normalize_rows", "shift_rows"] {
        let before = plan_of(&[elements(0, 1), rows(kernel, GROUP, 1, 2)], &[1]);
        let after = plan_of(&[rows(kernel, GROUP, 0, 1), vectors(1, 2)], &[1]);
        for plan in [before, after] {
            let (fused, text) = fused(ROWS, &plan);
            assert_eq!(fused.range, grouped(COUNT * GROUP, GROUP));
            assert_eq!(Vec::from_iter(fused.barriers), [1]);
            assert!(text.contains("OpLoopMerge"), "{text}");
        }
    }
}

#[test]
fn rows_need_not_be_multiples_of_the_work_groups() {
    let row = |kernel, from, to| {
        let arguments = vec![buffer(from), buffer(to), int(20)];
        (kernel, grouped(COUNT * GROUP, GROUP), arguments)
    };
    let launches = [row("normalize_rows", 0, 1), row("shift_rows", 1, 2)];
    let (fused, _) = fused(ROWS, &plan_of(&launches, &[]));
    assert_eq!(Vec::from_iter(fused.barriers), [1]);
    let elements = ("scale_elements", over(20 * COUNT), vec![buffer(1), buffer(2), float(3.0)]);
    super::fused(ROWS, &plan_of(&[row("normalize_rows", 0, 1), elements], &[]));
}

#[test]
fn rows_in_groups_of_other_sizes_run_in_the_groups_that_share_local_memory() {
    let launches = [
        rows("shift_rows", 4, 0, 1),
        rows("normalize_rows", GROUP, 1, 2),
        rows("shift_rows", 2, 2, 3),
    ];
    let (fused, text) = fused(ROWS, &plan_of(&launches, &[]));
    assert_eq!(fused.range, grouped(COUNT * GROUP, GROUP));
    assert_eq!(Vec::from_iter(fused.barriers), [1, 2]);
    // Local ids and the ids of work-groups follow from global ids.
    assert!(text.contains("OpUMod") && text.contains("OpUDiv"), "{text}");
}

#[test]
fn helpers_get_the_ids_of_the_elements_in_a_row() {
    let copy = ("copy_by_helper", over(ALL_ELEMENTS), vec![buffer(1), buffer(2)]);
    let launches = [rows("normalize_rows", GROUP, 0, 1), copy];
    let (fused, _) = fused(ROWS, &plan_of(&launches, &[]));
    assert_eq!(fused.range, grouped(COUNT * GROUP, GROUP));
}

#[test]
fn a_work_item_runs_the_elements_of_its_row_or_column() {
    let (columns, count) = (int(COLUMNS as i32), int(COUNT as i32));
    let row = ("sum_row", over(COUNT), vec![buffer(0), buffer(1), columns.clone()]);
    let column = ("sum_column", over(COUNT), vec![buffer(0), buffer(1), count, columns]);
    for launch in [row, column] {
        let (fused, text) = fused(ROWS, &plan_of(&[launch, elements(1, 2)], &[1]));
        assert_eq!(fused.range, over(COUNT));
        assert!(text.contains("OpLoopMerge"), "{text}");
    }
}

#[test]
fn long_sums_keep_their_nd_range_where_their_order_depends_on_it() {
    let size = int(100);
    let plane = |kernel, buffers: &[u32], more: &[Argument]| {
        let buffers: Vec<_> = buffers.iter().map(|&at| buffer(at)).collect();
        (kernel, grouped([128, 104], [32, 8]), [&buffers, more].concat())
    };
    let scale = plane("times_beta", &[2], &[float(0.5), size.clone(), size.clone()]);
    let product = plane("add_product", &[0, 1, 2], &[size.clone(), size.clone(), size.clone()]);
    let mut planes = plan_of(&[scale, product], &[]);
    assert_eq!(fused(ALGEBRA, &planes).0.range, over([100, 100]));
    planes.target.separate_functions = true;
    let (kernel, text) = fused(ALGEBRA, &planes);
    assert_eq!(kernel.range, grouped([128, 104], [32, 8]));
    assert!(text.contains("DontInline"), "{text}");
    // The elements adapt to the rows.
    let sums = ("sum_row", over(COUNT), vec![buffer(0), buffer(1), int(COLUMNS as i32)]);
    let mut rows = plan_of(&[sums, elements(1, 2)], &[]);
    rows.target.separate_functions = true;
    assert_eq!(fused(ROWS, &rows).0.range, over(COUNT));
    // They use no ids of work-groups, so they run in those of the rows.
    let (kernel, _, arguments) = elements(1, 2);
    let other = (kernel, grouped(ALL_ELEMENTS, 32), arguments);
    let sums = ("sum_row", grouped(COUNT, 8), vec![buffer(0), buffer(1), int(COLUMNS as i32)]);
    let mut groups = plan_of(&[sums, other], &[]);
    groups.target.separate_functions = true;
    assert_eq!(fused(ROWS, &groups).0.range, grouped(COUNT, 8));
}

#[test]
fn rows_that_do_not_match_are_refused() {
    let elements = |count| ("scale_elements", over(count), vec![buffer(1), buffer(2), float(3.0)]);
    // There are more elements than those of the rows, or the rows are shorter.
    assert_refused(&[rows("normalize_rows", GROUP, 0, 1), elements(ALL_ELEMENTS + COUNT)]);
    assert_refused(&[rows("normalize_rows", GROUP, 0, 1), elements(ALL_ELEMENTS - COUNT)]);
    assert_refused(&[rows("normalize_rows", GROUP, 0, 1), elements(ALL_ELEMENTS + 1)]);
    // Few work-items would do all the work.
    let row = ("sum_row", over(4), vec![buffer(0), buffer(1), int(ALL_ELEMENTS as i32 / 4)]);
    assert_refused(&[row, elements(ALL_ELEMENTS)]);
    // Two launches share local memory in work-groups of different sizes.
    let others = rows("normalize_rows", 4, 1, 2);
    assert_refused(&[rows("normalize_rows", GROUP, 0, 1), others]);
}

#[test]
fn a_launch_that_needs_the_results_of_all_work_groups_is_refused_with_that_reason() {
    let scratch = Argument::Local(4 * GROUP);
    let sum = ("sum_groups", grouped(ALL_ELEMENTS, GROUP), vec![buffer(0), buffer(1), scratch]);
    let groups = int((ALL_ELEMENTS / GROUP) as i32);
    let arguments = vec![buffer(0), buffer(1), buffer(2), groups];
    let divide = ("divide_by_sums", grouped(ALL_ELEMENTS, GROUP), arguments);
    let why = "`divide_by_sums` needs the results of all work-groups of `sum_groups` in `sums`, and \
               work-groups cannot wait for each other within a kernel";
    assert_eq!(assert_refused(&[sum, divide]), why);
}
