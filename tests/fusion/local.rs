//! Buffers that fused kernels replace by local memory.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

use kiln::fusion::{FusionOutcome, Internalization};
use support::everywhere;
use support::scopes::{PATTERNS, always, buffers, is_imitated, kernels, kernels_of_text};
use support::tools::has_clang;

const N: usize = 1024;
const GROUP: usize = 64;

fn numbers() -> Vec<f32> {
    (0..N).map(|n| n as f32 - 100.0).collect()
}

everywhere! {
    async fn a_buffer_shared_only_within_work_groups_becomes_local_memory(rt: Runtime) {
        let rt = always(&rt).await;
        let [turn] = kernels(&rt, PATTERNS, ["turned_in_memory"]).await;
        let queue = rt.queue();
        let [src, tmp, dst] = buffers(&rt, &numbers()).await;
        let fusion = queue.start_fusion();
        fusion.submit(turn.launch(N).local(GROUP).args((&src, &tmp))).unwrap();
        fusion.submit(turn.launch(N).local(GROUP).args((&tmp, &dst))).unwrap();
        drop(tmp);
        let outcome = fusion.complete().await.unwrap();
        let report = fusion.report();
        assert!(matches!(outcome, FusionOutcome::Fused { internalized: 1, .. }), "{report}");
        assert_eq!(report.buffers()[1].internalized, Some(Internalization::Local));
        assert_eq!(report.buffers()[1].why_in_memory, None);
        assert_eq!(queue.read(&dst).await.unwrap(), numbers());
    }
}

everywhere! {
    async fn a_requested_internalization_is_applied_as_requested_or_not_at_all(rt: Runtime) {
        let rt = always(&rt).await;
        let [turn, shift] = kernels(&rt, PATTERNS, ["turned_in_memory", "split"]).await;
        let queue = rt.queue();
        for (form, is_local) in [(Internalization::Private, false), (Internalization::Local, true)] {
            let [src, tmp, dst] = buffers(&rt, &numbers()).await;
            let fusion = queue.start_fusion();
            fusion.submit(turn.launch(N).local(GROUP).args((&src, &tmp))).unwrap();
            fusion.submit(turn.launch(N).local(GROUP).args((&tmp, &dst))).unwrap();
            let outcome = fusion.internalize(&tmp, form).complete().await.unwrap();
            let report = fusion.report();
            assert!(outcome.is_fused(), "{report}");
            let buffer = &report.buffers()[1];
            assert_eq!(buffer.internalized.is_some(), is_local, "{report}");
            assert_eq!(buffer.why_in_memory.is_none(), is_local, "{report}");
            assert_eq!(queue.read(&dst).await.unwrap(), numbers());

            // A buffer for which both forms are possible.
            let [src, tmp, dst] = buffers(&rt, &numbers()).await;
            let fusion = queue.start_fusion();
            fusion.submit(shift.launch(N).local(GROUP).args((&src, &tmp, 16_u32))).unwrap();
            fusion.submit(shift.launch(N).local(GROUP).args((&tmp, &dst, 16_u32))).unwrap();
            fusion.internalize(&tmp, form).complete().await.unwrap();
            let report = fusion.report();
            assert_eq!(report.buffers()[1].internalized, Some(form), "{report}");
            let expected: Vec<_> = numbers().iter().map(|n| n + 2.0).collect();
            assert_eq!(queue.read(&dst).await.unwrap(), expected);
        }
    }
}

/// Intel's compiler for CPUs reads the negated number of another work-item if a barrier lies between.
const NEGATED: &str = "
    kernel void split(global const float *src, global float *negated, global float *turned) {
        size_t i = get_global_id(0), l = get_local_id(0);
        negated[i] = -src[i];
        turned[i - l + 63 - l] = src[i];
    }
    kernel void joined(global const float *negated, global const float *turned, global float *dst) {
        size_t i = get_global_id(0);
        dst[i] = 3 * negated[i] + turned[i];
    }";

everywhere! {
    async fn private_values_are_preserved_across_a_barrier(rt: Runtime) {
        if !has_clang() || is_imitated() {
            return;
        }
        let rt = always(&rt).await;
        let [split, joined] = kernels_of_text(&rt, NEGATED, ["split", "joined"]).await;
        let queue = rt.queue();
        let [src, negated, dst] = buffers(&rt, &numbers()).await;
        let turned = rt.buffer::<f32>(N).unwrap();
        let fusion = queue.start_fusion();
        fusion.submit(split.launch(N).local(GROUP).args((&src, &negated, &turned))).unwrap();
        fusion.submit(joined.launch(N).local(GROUP).args((&negated, &turned, &dst))).unwrap();
        drop((negated, turned));
        let outcome = fusion.complete().await.unwrap();
        let report = fusion.report();
        assert!(matches!(outcome, FusionOutcome::Fused { internalized: 2, .. }), "{report}");
        let numbers = numbers();
        let turned = |i: usize| numbers[i / GROUP * GROUP + GROUP - 1 - i % GROUP];
        let expected: Vec<_> = (0..N).map(|i| turned(i) - 3.0 * numbers[i]).collect();
        let wrong = |(a, b): &(&f32, &f32)| a != b;
        let values = queue.read(&dst).await.unwrap();
        assert_eq!(values.iter().zip(&expected).find(wrong), None);
    }
}
