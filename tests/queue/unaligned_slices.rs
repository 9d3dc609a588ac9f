//! Launches whose slices begin at no multiple of the device's alignment: the kernel adds the offset itself.

use kiln::{
    Buffer, CheckedProgram, Error, ErrorKind, Event, Kernel, Module, Program, Result, Runtime,
};
use support::everywhere;
use support::tools::has_clang;

const KERNELS: &str = "
kernel void saxpy(float a, global const float *x, global float *y) {
    size_t i = get_global_id(0);
    y[i] += a * x[i];
}
kernel void looked_up(constant uchar *table, global const uchar *at, global ushort *y) {
    size_t i = get_global_id(0);
    y[i] = table[at[i]] + 256 * get_global_offset(0);
}
kernel void sums(global const float4 *x, global float *y, local float *part) {
    size_t l = get_local_id(0);
    float4 all = x[get_global_id(0)];
    part[l] = all.x + all.y + all.z + all.w;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (l == 0)
        for (size_t k = 0; k < get_local_size(0); k++) y[get_group_id(0)] += part[k];
}
kernel void next(global const float *x, global float *y) {
    size_t i = get_global_id(0);
    y[i] = x[i + 1];
}
";

const LEN: usize = 96;

/// Returns the programs, unchecked and checked.
async fn programs(rt: &Runtime) -> (Program, CheckedProgram) {
    (support::program(rt, KERNELS).await, support::checked_program(rt, KERNELS).await)
}

/// Returns the kernel, unchecked and checked.
fn both((program, checked): &(Program, CheckedProgram), name: &str) -> [Kernel; 2] {
    // SAFETY: the kernels touch as many elements as the launches below have work-items.
    let unchecked = unsafe { program.kernel(name) };
    [unchecked.expect("it exists"), checked.kernel(name).expect("it can be checked")]
}

async fn floats(rt: &Runtime, len: usize) -> Buffer<f32> {
    rt.buffer_from((0..len).map(|at| at as f32).collect::<Vec<_>>()).await.expect("it fits")
}

async fn runs(submitted: Result<Event>) {
    submitted.expect("it is accepted").await.expect("it runs");
}

/// Returns the error of a launch that is refused: at once, or once its program is translated.
async fn refused(submitted: Result<Event>, parts: &[&str]) -> Error {
    let error = match submitted {
        Ok(event) => event.await.expect_err("it is refused"),
        Err(error) => error,
    };
    for part in parts {
        assert!(error.to_string().contains(part), "{part:?} is missing in: {error}");
    }
    error
}

everywhere! {
    async fn slices_begin_at_any_element(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let aligned = rt.device().limits.slice_alignment / size_of::<f32>();
        let programs = programs(&rt).await;
        for saxpy in both(&programs, "saxpy") {
            for (from, to) in [(0, 1), (3, 0), (1, 1), (aligned + 5, 2), (7, aligned), (31, 2 * aligned + 3)] {
                let len = 3 * aligned + LEN + 4;
                let (x, y) = (floats(&rt, len).await, floats(&rt, len).await);
                let (xs, ys) = (x.slice(from..from + LEN).unwrap(), y.slice(to..to + LEN).unwrap());
                runs(rt.queue().submit(saxpy.launch(LEN).args((2.0f32, &xs, &ys)))).await;
                let mut expected: Vec<f32> = (0..len).map(|at| at as f32).collect();
                for i in 0..LEN {
                    expected[to + i] += 2.0 * (from + i) as f32;
                }
                assert_eq!(rt.queue().read(&y).await.unwrap(), expected, "{from} {to} {saxpy:?}");
            }
        }
        // A variant is built once for all offsets of the same arguments: (0, 1), (3, 0) and (1, 1) are three, for
        // both kernels.
        assert!(rt.stats().builds.requested <= 12, "{:?}", rt.stats());
    }
}

everywhere! {
    async fn elements_of_any_size_and_constant_memory_have_offsets(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let programs = programs(&rt).await;
        let table = rt.buffer_from((0..=255).map(|at: u8| at ^ 0x5a).collect::<Vec<_>>()).await.unwrap();
        let at = rt.buffer_from((0..100).collect::<Vec<u8>>()).await.unwrap();
        for looked_up in both(&programs, "looked_up") {
            let y = rt.buffer_from(vec![7u16; 100]).await.unwrap();
            let (table, at) = (table.slice(9..).unwrap(), at.slice(3..83).unwrap());
            runs(rt.queue().submit(looked_up.launch(80).args((&table, &at, &y.slice(5..85).unwrap())))).await;
            let expected = (0..100).map(|i| match i {
                5..85 => u16::from((i as u8 - 5 + 3 + 9) ^ 0x5a),
                _ => 7,
            });
            assert_eq!(rt.queue().read(&y).await.unwrap(), expected.collect::<Vec<u16>>());
        }
        let x = floats(&rt, 80).await;
        for sums in both(&programs, "sums") {
            let y = rt.buffer_from(vec![0.5f32; 9]).await.unwrap();
            // The vectors are aligned to their size, and not to the device's alignment.
            let (from, to) = (x.slice(4..68).unwrap(), y.slice(1..5).unwrap());
            let launch = sums.launch(16).local(4).args((&from, &to, kiln::Local::<f32>::new(4)));
            runs(rt.queue().submit(launch)).await;
            let sum = |group: usize| (0..16).map(|i| (4 + 16 * group + i) as f32).sum::<f32>() + 0.5;
            let mut expected = vec![0.5; 9];
            (0..4).for_each(|group| expected[1 + group] = sum(group));
            assert_eq!(rt.queue().read(&y).await.unwrap(), expected);
        }
    }
}

everywhere! {
    async fn vectors_that_are_not_aligned_are_refused(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let programs = programs(&rt).await;
        let [unchecked, checked] = both(&programs, "sums");
        let x = floats(&rt, 80).await;
        let from = x.slice(1..65).unwrap();
        let y = rt.buffer_from(vec![0.0f32; 4]).await.unwrap();
        for (sums, parts) in [
            (unchecked, ["kernel `sums`", "parameter 0", "starts at byte 4", "aligned to 16 bytes"]),
            (checked, ["kernel `sums`", "`x`", "a multiple of 4 bytes", "a multiple of 16"]),
        ] {
            let launch = sums.launch(16).local(4).args((&from, &y, kiln::Local::<f32>::new(4)));
            let error = refused(rt.queue().submit(launch), &parts).await;
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }
}

everywhere! {
    async fn guards_know_the_lengths_of_slices(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let program = support::checked_program(&rt, KERNELS).await;
        let saxpy = program.kernel("saxpy").expect("it can be checked");
        let (x, y) = (floats(&rt, 64).await, rt.buffer_from(vec![1.0f32; 64]).await.unwrap());
        // The buffers go on where the slices end.
        let (from, to) = (x.slice(3..13).unwrap(), y.slice(5..21).unwrap());
        let launch = saxpy.launch(30).args((1.0f32, &from, &to));
        assert!(!launch.verdict().await.expect("it is checked").is_proven());
        runs(rt.queue().submit(launch)).await;
        let expected = (0..64).map(|at| match at {
            5..15 => 1.0 + (at - 5 + 3) as f32,
            _ => 1.0,
        });
        assert_eq!(rt.queue().read(&y).await.unwrap(), expected.collect::<Vec<f32>>());
        let stats = rt.stats();
        assert_eq!((stats.launches.guarded, stats.launches.proven), (1, 0));
        // A launch that only needs offsets is proven.
        let launch = saxpy.launch(10).args((1.0f32, &from, &y.slice(5..15).unwrap()));
        runs(rt.queue().submit(launch.require_proof())).await;
        let stats = rt.stats();
        assert_eq!((stats.launches.guarded, stats.launches.proven), (1, 1));
    }
}

everywhere! {
    async fn programs_may_still_be_building(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let build = rt.build(&Module::opencl_c(KERNELS)).start();
        // SAFETY: it touches as many elements as there are work-items.
        let unchecked = unsafe { build.kernel("saxpy") };
        let checked = rt.build(&Module::opencl_c(KERNELS)).checked().start().kernel("saxpy");
        let (x, y) = (floats(&rt, LEN).await, floats(&rt, LEN).await);
        let (xs, ys) = (x.slice(1..).unwrap(), y.slice(..LEN - 1).unwrap());
        for saxpy in [&unchecked, &checked] {
            drop(rt.queue().submit(saxpy.launch(LEN - 1).args((1.0f32, &xs, &ys))));
        }
        let expected = |at: usize| if at == LEN - 1 { at } else { 3 * at + 2 };
        let expected: Vec<f32> = (0..LEN).map(|at| expected(at) as f32).collect();
        assert_eq!(rt.queue().read(&y).await.unwrap(), expected);
    }
}

everywhere! {
    async fn neighbouring_slices_are_ordered_by_their_own_elements(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let programs = programs(&rt).await;
        for next in both(&programs, "next") {
            // Each launch reads the last element of the slice behind its own, and writes its own ones.
            let x = floats(&rt, LEN).await;
            for round in 0..8 {
                for at in 0..LEN / 8 - 1 {
                    let own = x.slice(8 * at + 1..8 * at + 9).unwrap();
                    let from = x.slice(8 * at + 2..8 * at + 11).unwrap();
                    let _ = (round, rt.queue().submit(next.launch(1).args((&from, &own))).expect("it fits"));
                }
            }
            let mut expected: Vec<f32> = (0..LEN).map(|at| at as f32).collect();
            for _ in 0..8 {
                for at in 0..LEN / 8 - 1 {
                    expected[8 * at + 1] = expected[8 * at + 3];
                }
            }
            assert_eq!(rt.queue().read(&x).await.unwrap(), expected);
        }
    }
}

everywhere! {
    async fn launches_with_offsets_are_not_fused(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let programs = programs(&rt).await;
        for saxpy in both(&programs, "saxpy") {
            let (x, y) = (floats(&rt, LEN).await, floats(&rt, LEN).await);
            let ys = y.slice(1..).unwrap();
            let scope = rt.queue().start_fusion();
            for _ in 0..3 {
                scope.submit(saxpy.launch(LEN - 1).args((1.0f32, &x, &ys))).expect("it fits");
            }
            scope.complete().await.expect("they run");
            let expected = |at: usize| if at == 0 { 0 } else { at + 3 * (at - 1) };
            let expected: Vec<f32> = (0..LEN).map(|at| expected(at) as f32).collect();
            assert_eq!(rt.queue().read(&y).await.unwrap(), expected);
        }
        assert_eq!(rt.stats().fusion.fused, 0);
    }
}

everywhere! {
    async fn kernels_without_known_code_refuse_such_slices(rt: Runtime) {
        let binary = support::program(&rt, KERNELS).await.binary().expect("the driver has one");
        let native = rt.build(&Module::native(binary).expect("it is a binary")).await.expect("it is loaded");
        // SAFETY: it touches as many elements as there are work-items.
        let saxpy = unsafe { native.kernel("saxpy") }.expect("it exists");
        let (x, y) = (floats(&rt, LEN).await, floats(&rt, LEN).await);
        let launch = |y: &Buffer<f32>| saxpy.launch(8).args((1.0f32, &x, y));
        let alignment = rt.device().limits.slice_alignment.to_string();
        let parts =
            ["kernel `saxpy`", "parameter 2", "starts at byte 4", "multiple of", &alignment, "native binary"];
        let error = refused(rt.queue().submit(launch(&y.slice(1..).unwrap())), &parts).await;
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        runs(rt.queue().submit(launch(&y))).await;
    }
}
