//! Kernels with the shapes of benchmarks for polyhedral compilers, in launches that are rounded up to whole
//! work-groups.

use super::*;

pub(super) const OPTIMISED: &[u8] =
    include_bytes!("../../../../../tests/data/bounds/polyhedral.spv");
pub(super) const PLAIN: &[u8] =
    include_bytes!("../../../../../tests/data/bounds/polyhedral_O0.spv");

/// Sizes, none of which is a multiple of a work-group's size.
const NI: usize = 1000;
const NJ: usize = 900;
const NK: usize = 1100;
const NL: usize = 950;
const NM: usize = 1050;

enum A {
    /// Buffer of so many floats.
    F(usize),
    /// Integer.
    I(usize),
    /// Floating-point number.
    X,
}

use A::{F, I, X};

/// Returns the launches: each kernel, the sizes of its range before they are rounded up, and its arguments.
#[rustfmt::skip]
fn launches() -> Vec<(&'static str, Vec<usize>, Vec<A>)> {
    let n = NI;
    let nn = n * n;
    vec![
        ("convolve_plane", vec![NJ, NI], vec![F(NI * NJ), F(NI * NJ), I(NI), I(NJ)]),
        ("convolve_volume", vec![70, 60], vec![F(50 * 60 * 70), F(50 * 60 * 70), I(50), I(60), I(70), I(7)]),
        ("product_first", vec![NJ, NI], vec![F(NI * NK), F(NK * NJ), F(NI * NJ), I(NI), I(NJ), I(NK)]),
        ("product_second", vec![NL, NJ], vec![F(NJ * NM), F(NM * NL), F(NJ * NL), I(NJ), I(NL), I(NM)]),
        ("product_third", vec![NL, NI], vec![F(NI * NJ), F(NJ * NL), F(NI * NL), I(NI), I(NJ), I(NL)]),
        ("two_products_first", vec![NJ, NI], vec![F(NI * NJ), F(NI * NK), F(NK * NJ), I(NI), I(NJ), I(NK), X]),
        ("two_products_second", vec![NL, NI], vec![F(NI * NJ), F(NJ * NL), F(NI * NL), I(NI), I(NL), I(NJ), X]),
        ("rows_times_vector", vec![NI], vec![F(NI * NJ), F(NJ), F(NI), I(NI), I(NJ)]),
        ("columns_times_vector", vec![NJ], vec![F(NI * NJ), F(NJ), F(NI), I(NI), I(NJ)]),
        ("conjugate_rows", vec![NI], vec![F(NI * NJ), F(NJ), F(NI), I(NI), I(NJ)]),
        ("conjugate_columns", vec![NJ], vec![F(NI * NJ), F(NI), F(NJ), I(NI), I(NJ)]),
        ("means", vec![NM], vec![F(NM), F(NM * NI), X, I(NM), I(NI)]),
        ("deviations", vec![NM], vec![F(NM), F(NM), F(NM * NI), X, I(NM), I(NI)]),
        ("normalize_data", vec![NM, NI], vec![F(NM), F(NM), F(NM * NI), X, I(NM), I(NI)]),
        ("correlations", vec![NM], vec![F(NM * NM), F(NM * NI), I(NM), I(NI)]),
        ("means_to_subtract", vec![NM], vec![F(NM), F(NM * NI), X, I(NM), I(NI)]),
        ("subtract_means", vec![NM, NI], vec![F(NM), F(NM * NI), I(NM), I(NI)]),
        ("covariances", vec![NM], vec![F(NM * NM), F(NM * NI), I(NM), I(NI)]),
        ("analysis_sums", vec![70, 60], vec![I(50), I(60), I(70), F(50 * 60 * 70), F(70 * 70), F(50 * 60 * 70), I(7)]),
        ("analysis_copy", vec![70, 60], vec![I(50), I(60), I(70), F(50 * 60 * 70), F(50 * 60 * 70), I(7)]),
        ("field_y", vec![NJ, NI], vec![F(500), F((NI + 1) * NJ), F(NI * NJ), I(3), I(NI), I(NJ)]),
        ("field_x", vec![NJ, NI], vec![F(NI * (NJ + 1)), F(NI * NJ), I(NI), I(NJ)]),
        ("field_z", vec![NJ, NI], vec![F(NI * (NJ + 1)), F((NI + 1) * NJ), F(NI * NJ), I(NI), I(NJ)]),
        ("matrix_product", vec![NJ, NI], vec![F(NI * NK), F(NK * NJ), F(NI * NJ), X, X, I(NI), I(NJ), I(NK)]),
        ("rank_two_update", vec![n, n], vec![F(nn), F(n), F(n), F(n), F(n), I(n)]),
        ("transposed_product", vec![n], vec![F(nn), F(n), F(n), F(n), X, I(n)]),
        ("vector_product", vec![n], vec![F(nn), F(n), F(n), X, I(n)]),
        ("sum_of_products", vec![n], vec![F(nn), F(nn), F(n), F(n), F(n), X, X, I(n)]),
        ("column_norm", vec![1], vec![F(NM * n), F(nn), I(5), I(NM), I(n)]),
        ("normalize_column", vec![NM], vec![F(NM * n), F(nn), F(NM * n), I(5), I(NM), I(n)]),
        ("subtract_column", vec![n], vec![F(NM * n), F(nn), F(NM * n), I(5), I(NM), I(n)]),
        ("line_stencil", vec![n], vec![F(n), F(n), I(n)]),
        ("line_copy", vec![n], vec![F(n), F(n), I(n)]),
        ("plane_stencil", vec![n, n], vec![F(nn), F(nn), I(n)]),
        ("plane_copy", vec![n, n], vec![F(nn), F(nn), I(n)]),
        ("pivot_row", vec![n], vec![F(nn), I(5), I(n)]),
        ("eliminate", vec![n, n], vec![F(nn), I(5), I(n)]),
        ("vector_and_rows", vec![n], vec![F(nn), F(n), F(n), I(n)]),
        ("vector_and_columns", vec![n], vec![F(nn), F(n), F(n), I(n)]),
        ("symmetric_two", vec![n, n], vec![F(n * NM), F(n * NM), F(nn), X, X, I(NM), I(n)]),
        ("symmetric_one", vec![n, n], vec![F(n * NM), F(nn), X, X, I(NM), I(n)]),
        ("rows_forward", vec![n], vec![F(nn), F(nn), F(nn), I(n)]),
        ("rows_end", vec![n], vec![F(nn), F(nn), I(n)]),
        ("rows_backward", vec![n], vec![F(nn), F(nn), F(nn), I(n)]),
        ("columns_forward", vec![n], vec![F(nn), F(nn), F(nn), I(5), I(n)]),
        ("columns_end", vec![n], vec![F(nn), F(nn), I(n)]),
        ("columns_backward", vec![n], vec![F(nn), F(nn), F(nn), I(5), I(n)]),
    ]
}

fn argument(argument: &A) -> Argument {
    match argument {
        F(count) => buffer(count * 4),
        I(value) => scalar(*value as i32),
        X => scalar(0.5_f32),
    }
}

/// Returns the range in whole work-groups.
fn range(sizes: &[usize]) -> NdRange {
    let (size, local): (NdSize, NdSize) = match *sizes {
        [x, y] => ([x.next_multiple_of(32), y.next_multiple_of(8)].into(), [32, 8].into()),
        _ => (sizes[0].next_multiple_of(256).into(), 256.into()),
    };
    let mut range = NdRange::from(size);
    range.set_local(local).unwrap();
    range
}

/// Returns the launches of a module's kernels.
pub(super) fn launches_of(
    module: &'static [u8],
) -> Vec<(&'static str, &'static [u8], NdRange, Vec<Argument>)> {
    let launch = |(name, sizes, arguments): (_, Vec<usize>, Vec<A>)| {
        (name, module, range(&sizes), arguments.iter().map(argument).collect())
    };
    launches().into_iter().map(launch).collect()
}

#[test]
fn all_kernels_are_proven() {
    for module in [OPTIMISED, PLAIN] {
        let mut failed = Vec::new();
        for (name, module, range, arguments) in launches_of(module) {
            let guarded = guarded(module, name, &range, &arguments);
            if !guarded.is_empty() {
                failed.push(format!("{name}: {guarded:#?}"));
            }
        }
        assert!(failed.is_empty(), "{} kernels:\n{}", failed.len(), failed.join("\n"));
    }
}

#[test]
fn all_kernels_are_proven_with_their_values_defined() {
    for module in [OPTIMISED, PLAIN] {
        let mut defined = Module::parse(module).unwrap();
        define(&mut defined).unwrap();
        let bytes = defined.assemble();
        for (name, _, range, arguments) in launches_of(module) {
            let guarded = guarded(&bytes, name, &range, &arguments);
            assert!(guarded.is_empty(), "{name}: {guarded:#?}");
        }
    }
}

#[test]
fn buffers_that_are_too_short_are_noticed() {
    for (name, sizes, arguments) in launches() {
        for (at, short) in arguments.iter().enumerate() {
            let F(count) = short else { continue };
            let mut arguments: Vec<_> = arguments.iter().map(argument).collect();
            arguments[at] = buffer(count * 2 - 4);
            let guarded = guarded(OPTIMISED, name, &range(&sizes), &arguments);
            assert!(!guarded.is_empty() || reads_little(name, at), "{name} {at}");
        }
    }
}

/// Returns whether a kernel uses less than half of a buffer.
fn reads_little(kernel: &str, argument: usize) -> bool {
    matches!(
        (kernel, argument),
        ("convolve_volume" | "analysis_copy", _)
            | ("analysis_sums", 3 | 5)
            | ("field_y", 0)
            | ("column_norm" | "normalize_column", 1)
            | ("subtract_column", 1)
            | ("pivot_row", 0)
            | ("columns_forward", _)
    )
}
