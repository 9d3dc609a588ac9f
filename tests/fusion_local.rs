//! Buffers that fused kernels do without, in local memory.

#![allow(clippy::unwrap_used, reason = "a test fails where something does")]

mod support;

use kiln::{Buffer, FusionMode, FusionOutcome, Image, Internalization, Kernel, Runtime};

/// Kernels of `data/patterns.cl`.
async fn kernels<const N: usize>(rt: &Runtime, names: [&str; N]) -> [Kernel; N] {
    let image = Image::spirv(include_bytes!("data/patterns.spv")).expect("it is a module");
    let program = rt.build(&image).await.expect("it builds");
    // SAFETY: they touch one element a work-item, which the buffers have.
    names.map(|name| unsafe { program.kernel(name) }.expect("it is there"))
}

/// Whose scopes fuse whatever can be.
async fn always(rt: &Runtime) -> Runtime {
    let builder = support::builder().fusion(FusionMode::Always);
    builder.device(rt.device().name.clone()).build().await.expect("the device is there")
}

const N: usize = 1024;
const GROUP: usize = 64;

fn numbers() -> Vec<f32> {
    (0..N).map(|n| n as f32 - 100.0).collect()
}

async fn buffers(rt: &Runtime) -> [Buffer<f32>; 3] {
    let source = rt.buffer_from(numbers()).await.expect("there is room");
    [source, rt.buffer(N).expect("there is room"), rt.buffer(N).expect("there is room")]
}

everywhere! {
    async fn what_only_a_work_group_passes_on_is_local_memory(rt: Runtime) {
        let rt = always(&rt).await;
        let [turn] = kernels(&rt, ["turned_in_memory"]).await;
        let queue = rt.queue();
        let [src, tmp, dst] = buffers(&rt).await;
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
    async fn what_is_asked_for_is_done_or_nothing(rt: Runtime) {
        let rt = always(&rt).await;
        let [turn, shift] = kernels(&rt, ["turned_in_memory", "split"]).await;
        let queue = rt.queue();
        for (form, is_local) in [(Internalization::Private, false), (Internalization::Local, true)] {
            let [src, tmp, dst] = buffers(&rt).await;
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

            // What can be both.
            let [src, tmp, dst] = buffers(&rt).await;
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
