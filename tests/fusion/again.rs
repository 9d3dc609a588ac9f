//! Fusion scopes that follow others with nearly the same launches: the findings about one scope apply to the
//! next only where the two are equal.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use std::time::Duration;

use kiln::fusion::{FusionOutcome, Internalization};
use kiln::{Kernel, Runtime};
use support::everywhere;
use support::scopes::{Chain, FUSION, always, buffers, kernels, kernels_of_text};
use support::tools::has_clang;

const N: usize = 256;

async fn chain(rt: &Runtime, start: f32) -> Chain {
    Chain::new(rt, (0..N).map(|n| n as f32 + start).collect(), 3.0).await
}

/// Returns the number of buffers that the fused kernel does not need.
fn internalized(outcome: &FusionOutcome) -> usize {
    match outcome {
        FusionOutcome::Fused { internalized, .. } => *internalized,
        other => panic!("{other}"),
    }
}

everywhere! {
    async fn changed_scalar_values_are_used(rt: Runtime) {
        let rt = always(&rt).await;
        let mut chain = chain(&rt, 0.0).await;
        for fixed in [false, true, false] {
            for factor in [2.0, 2.0, 3.0, 2.0, 5.0] {
                chain.factor = factor;
                let (fusion, _) = chain.begin();
                if fixed {
                    fusion.fix_scalars();
                }
                assert_eq!(internalized(&fusion.complete().await.unwrap()), 0);
                assert_eq!(chain.queue.read(&chain.tmp).await.unwrap(), chain.scaled());
                assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), chain.result());
            }
        }
    }
}

everywhere! {
    async fn a_buffer_is_internalized_only_if_both_guards_are_equal(rt: Runtime) {
        let rt = always(&rt).await;
        let [guarded] = kernels(&rt, FUSION, ["guarded"]).await;
        let numbers = vec![2.0f32; N];
        let [src, tmp, dst] = buffers(&rt, &numbers).await;
        let queue = rt.queue();
        for (first, second) in [(200, 199), (200, 200), (100, 101), (100, 100), (200, 199)] {
            let fusion = queue.start_fusion();
            fusion.submit(guarded.launch(N).args((&src, &tmp, first))).unwrap();
            fusion.submit(guarded.launch(N).args((&tmp, &dst, second))).unwrap();
            fusion.internalize(&tmp, Internalization::Private);
            let outcome = fusion.complete().await.unwrap();
            assert_eq!(internalized(&outcome), usize::from(first == second), "{first}, {second}");
        }
    }
}

/// Kernels that need 20 KiB of private memory for each work-item. Some drivers accept fewer work-items in a
/// work-group of the fused kernel. How many they accept depends on the driver and the processor.
const MUCH_MEMORY: &str = "
    #define KERNEL(name, factor) \\
        kernel void name(global float *x, int step) { \\
            float kept[5120]; \\
            for (int k = 0; k < 5120; k++) kept[k] = x[get_global_id(0)] + k * factor; \\
            for (int k = 0; k < 9; k++) kept[k * 7 & 4095] += kept[k * step & 4095]; \\
            int all = 0; \\
            for (int k = 0; k < 5120; k++) all ^= as_int(kept[k * step & 4095]); \\
            x[get_global_id(0)] = all; \\
        }
    KERNEL(first, 2.0f)
    KERNEL(second, 3.0f)";

everywhere! {
    async fn a_driver_accepts_or_rejects_a_fused_kernel_each_time(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let rt = always(&rt).await;
        let [first, second] = kernels_of_text(&rt, MUCH_MEMORY, ["first", "second"]).await;
        // The work-groups that the driver accepts for each of the kernels.
        let largest = |kernel: &Kernel| kernel.work_group().unwrap().size_up_to(8);
        let local = 1 << largest(&first).min(largest(&second)).ilog2();
        let queue = rt.queue();
        let x = rt.buffer_from(vec![1.0f32; N]).await.unwrap();
        let mut fused = Vec::new();
        for _ in 0..4 {
            let fusion = queue.start_fusion();
            for kernel in [&first, &second] {
                fusion.submit(kernel.launch(N).local(local).args((&x, 5))).unwrap();
            }
            let outcome = fusion.complete().await.unwrap();
            if !outcome.is_fused() {
                let why = outcome.to_string();
                assert!(why.contains("the fused kernel does not fit"), "{why}");
            }
            fused.push(outcome.is_fused());
        }
        queue.read(&x).await.unwrap();
        assert!(fused.iter().all(|is_fused| *is_fused == fused[0]), "{fused:?}");
    }
}

everywhere! {
    async fn changed_buffers_are_used(rt: Runtime) {
        let rt = always(&rt).await;
        let mut chains = Vec::new();
        for start in 0..12 {
            chains.push(chain(&rt, start as f32).await);
        }
        let queue = rt.queue();
        for chain in &mut chains {
            chain.queue = queue.clone();
        }
        // More chains than are remembered, then few, then more again.
        for taking_turns in [12, 2, 1, 3, 12] {
            for turn in 0..40 {
                let chain = &chains[turn % taking_turns];
                queue.fill(&chain.dst, -1.0).unwrap();
                let (fusion, _) = chain.begin();
                let outcome = fusion.complete().await.unwrap();
                assert!(outcome.is_fused(), "{outcome}");
                assert_eq!(queue.read(&chain.dst).await.unwrap(), chain.result());
            }
        }
    }
}

everywhere! {
    async fn changed_slices_of_the_same_buffers_are_used(rt: Runtime) {
        let rt = always(&rt).await;
        let chain = chain(&rt, 0.0).await;
        let half = N / 2;
        for part in [0..N, 0..half, half..N, 0..half, 0..N] {
            chain.queue.fill(&chain.dst, -1.0).unwrap();
            let [src, tmp, dst] = [&chain.src, &chain.tmp, &chain.dst]
                .map(|buffer| buffer.slice(part.clone()).unwrap());
            let fusion = chain.queue.start_fusion();
            fusion.submit(chain.scale.launch(part.len()).args((&src, &tmp, 3.0f32))).unwrap();
            fusion.submit(chain.offset.launch(part.len()).args((&tmp, &dst, 1.0f32))).unwrap();
            let outcome = fusion.complete().await.unwrap();
            assert!(outcome.is_fused(), "{outcome}");
            let expected: Vec<_> = (chain.result().into_iter().enumerate())
                .map(|(at, result)| if part.contains(&at) { result } else { -1.0 })
                .collect();
            assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), expected);
        }
    }
}

everywhere! {
    async fn a_failed_slice_fails_only_scopes_that_read_it(rt: Runtime) {
        let rt = always(&rt).await;
        let chain = chain(&rt, 0.0).await;
        let part = |at: usize| {
            let range = at * N / 2..(at + 1) * N / 2;
            [&chain.src, &chain.tmp, &chain.dst].map(|buffer| buffer.slice(range.clone()).unwrap())
        };
        let failing = chain.queue.host_task(async { Err::<(), _>("on purpose") }).unwrap();
        let [src, ..] = part(1);
        let launch = chain.in_place.launch(N / 2).args((&src,));
        chain.queue.submit(launch.after(&failing)).unwrap().await.expect_err("it fails");
        for at in [0, 0, 1, 0, 1] {
            let [src, tmp, dst] = part(at);
            let fusion = chain.queue.start_fusion();
            fusion.submit(chain.scale.launch(N / 2).args((&src, &tmp, 3.0f32))).unwrap();
            let last = fusion.submit(chain.offset.launch(N / 2).args((&tmp, &dst, 1.0f32))).unwrap();
            assert_eq!(fusion.complete().await.is_ok(), at == 0);
            assert_eq!(last.await.is_ok(), at == 0);
        }
    }
}

everywhere! {
    async fn two_handles_of_one_slice_are_treated_as_the_same_memory(rt: Runtime) {
        let rt = always(&rt).await;
        let chain = chain(&rt, 1.0).await;
        let expected: Vec<_> = chain.numbers.iter().map(|n| n * 9.0 + 1.0).collect();
        for _ in 0..4 {
            // The source is scaled twice in place, and the result is then written to another buffer.
            chain.queue.write(&chain.src, chain.numbers.clone()).unwrap();
            let again = chain.src.slice(..).unwrap();
            let fusion = chain.queue.start_fusion();
            for buffer in [&chain.src, &again] {
                fusion.submit(chain.scale.launch(N).args((buffer, buffer, 3.0f32))).unwrap();
            }
            fusion.submit(chain.offset.launch(N).args((&again, &chain.dst, 1.0f32))).unwrap();
            fusion.complete().await.unwrap();
            assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), expected);
        }
    }
}

everywhere! {
    async fn the_need_for_buffer_contents_is_determined_for_each_scope(rt: Runtime) {
        let rt = always(&rt).await;
        let mut chain = chain(&rt, 0.0).await;
        let mut internalized_unheld = 0;
        for _ in 0..10 {
            // A new queue has no remembered results.
            chain.queue = rt.queue();
            for _ in 0..2 {
                let (fusion, _) = chain.begin();
                assert_eq!(internalized(&fusion.complete().await.unwrap()), 0);
                assert_eq!(chain.queue.read(&chain.tmp).await.unwrap(), chain.scaled());
            }
            for _ in 0..2 {
                let (fusion, _) = chain.begin();
                fusion.internalize(&chain.tmp, Internalization::Private);
                assert_eq!(internalized(&fusion.complete().await.unwrap()), 1);
                chain.queue.read(&chain.tmp).await.expect_err("its contents are lost");
                assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), chain.result());
            }
            let (fusion, _) = chain.begin();
            fusion.internalize(&chain.tmp, Internalization::Private).keep(&chain.tmp);
            assert_eq!(internalized(&fusion.complete().await.unwrap()), 0);
            assert_eq!(chain.queue.read(&chain.tmp).await.unwrap(), chain.scaled());
            // The last handle is dropped after the earlier commands have released theirs.
            std::thread::sleep(Duration::from_millis(5));
            let (fusion, _) = chain.begin();
            chain.tmp = rt.buffer(N).unwrap();
            internalized_unheld += internalized(&fusion.complete().await.unwrap());
            assert_eq!(chain.queue.read(&chain.dst).await.unwrap(), chain.result());
        }
        assert!(internalized_unheld > 0, "a buffer without handles is internalized");
    }
}

everywhere! {
    async fn the_declared_access_to_a_buffer_applies_to_its_scope_only(rt: Runtime) {
        let rt = always(&rt).await;
        let chain = chain(&rt, 0.0).await;
        let failing = || chain.queue.host_task(async { Err::<(), _>("on purpose") }).unwrap();
        for round in 0..6 {
            // The content of `dst` is failed, unless the launch is known to write all of it.
            let after = failing();
            let launch = chain.in_place.launch(N).args((&chain.dst,));
            let failed = chain.queue.submit(launch.after(&after)).unwrap();
            failed.await.expect_err("it comes after what failed");
            let is_stated = round % 2 == 1;
            let fusion = chain.queue.start_fusion();
            chain.first(&fusion);
            let offset = chain.offset.launch(N);
            let second = match is_stated {
                true => offset.args((&chain.tmp, chain.dst.write_only(), 1.0f32)),
                false => offset.args((&chain.tmp, chain.dst.read_write(), 1.0f32)),
            };
            let second = fusion.submit(second).unwrap();
            assert_eq!(fusion.complete().await.is_ok(), is_stated);
            assert_eq!(second.await.is_ok(), is_stated);
            assert_eq!(chain.queue.read(&chain.dst).await.is_ok(), is_stated);
        }
    }
}
