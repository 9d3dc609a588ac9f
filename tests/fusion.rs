//! Fusion scopes: launches that run as one kernel, or one by one, with the same results.

mod support;

use kiln::{Buffer, FusionMode, FusionOutcome, Image, Internalization, Kernel, Runtime, Unfused};

/// The kernels of `data/fusion.cl`.
async fn kernels<const N: usize>(rt: &Runtime, names: [&str; N]) -> [Kernel; N] {
    let image = Image::spirv(include_bytes!("data/fusion.spv")).expect("it is a module");
    let program = rt.build(&image).await.expect("it builds");
    // SAFETY: they touch what belongs to their work-item, or to its neighbours, of which there are
    // some on both sides.
    names.map(|name| unsafe { program.kernel(name) }.expect("it is there"))
}

/// Whose scopes fuse whatever can be.
async fn always(rt: &Runtime) -> Runtime {
    let builder = support::builder().fusion(FusionMode::Always);
    builder.device(rt.device().name.clone()).build().await.expect("the device is there")
}

const N: usize = 1024;

fn numbers() -> Vec<f32> {
    (0..N).map(|n| n as f32 - 100.0).collect()
}

async fn source(rt: &Runtime) -> Buffer<f32> {
    rt.buffer_from(numbers()).await.expect("there is room")
}

fn none(rt: &Runtime) -> Buffer<f32> {
    rt.buffer(N).expect("there is room")
}

everywhere! {
    async fn a_chain_runs_as_one_kernel_and_computes_the_same(rt: Runtime) {
        let rt = always(&rt).await;
        let [scale, offset, in_place] = kernels(&rt, ["scale", "offset", "in_place"]).await;
        let queue = rt.queue();
        let (src, tmp, dst) = (source(&rt).await, none(&rt), none(&rt));
        let fusion = queue.start_fusion();
        assert!(queue.is_fusing() && fusion.is_fusing());
        let first = fusion.submit(scale.launch(N).args((&src, &tmp, 3.0f32))).unwrap();
        fusion.submit(offset.launch(N).args((&tmp, &dst, 1.0f32))).unwrap();
        let last = fusion.submit(in_place.launch(N).args((&dst,))).unwrap();
        drop(tmp);
        let outcome = fusion.complete().await.unwrap();
        assert!(!queue.is_fusing() && !fusion.is_fusing());
        match &outcome {
            FusionOutcome::Fused { launches: 3, internalized: 1, .. } => {}
            other => panic!("{other:?}: {}", fusion.report()),
        }
        last.await.unwrap();
        first.await.unwrap();
        let expected: Vec<_> = numbers().iter().map(|n| (n * 3.0 + 1.0) * (n * 3.0 + 1.0)).collect();
        assert_eq!(queue.read(&dst).await.unwrap(), expected);
        assert_eq!(rt.stats().fusions, 1);
    }
}

everywhere! {
    async fn a_buffer_that_somebody_holds_has_its_contents(rt: Runtime) {
        let rt = always(&rt).await;
        let [scale, offset] = kernels(&rt, ["scale", "offset"]).await;
        let queue = rt.queue();
        let (src, tmp, dst) = (source(&rt).await, none(&rt), none(&rt));
        let fusion = queue.start_fusion();
        fusion.submit(scale.launch(N).args((&src, &tmp, 3.0f32))).unwrap();
        fusion.submit(offset.launch(N).args((&tmp, &dst, 1.0f32))).unwrap();
        let outcome = fusion.complete().await.unwrap();
        assert!(outcome.is_fused(), "{outcome}");
        let scaled: Vec<_> = numbers().iter().map(|n| n * 3.0).collect();
        assert_eq!(queue.read(&tmp).await.unwrap(), scaled);
        let offset: Vec<_> = scaled.iter().map(|n| n + 1.0).collect();
        assert_eq!(queue.read(&dst).await.unwrap(), offset);
    }
}

everywhere! {
    async fn what_was_internalized_on_request_is_not_read_by_mistake(rt: Runtime) {
        let rt = always(&rt).await;
        let [scale, offset] = kernels(&rt, ["scale", "offset"]).await;
        let queue = rt.queue();
        let (src, tmp, dst) = (source(&rt).await, none(&rt), none(&rt));
        let fusion = queue.start_fusion();
        fusion.submit(scale.launch(N).args((&src, &tmp, 3.0f32))).unwrap();
        fusion.submit(offset.launch(N).args((&tmp, &dst, 1.0f32))).unwrap();
        fusion.internalize(&tmp, Internalization::Private);
        let outcome = fusion.complete().await.unwrap();
        assert!(matches!(outcome, FusionOutcome::Fused { internalized: 1, .. }), "{outcome}");
        let error = queue.read(&tmp).await.expect_err("its contents are lost");
        assert!(error.to_string().contains("internalized"), "{error}");
        queue.fill(&tmp, 7.0).unwrap();
        assert_eq!(queue.read(&tmp).await.unwrap(), [7.0; N]);
        let expected: Vec<_> = numbers().iter().map(|n| n * 3.0 + 1.0).collect();
        assert_eq!(queue.read(&dst).await.unwrap(), expected);
    }
}

everywhere! {
    async fn what_would_change_the_result_runs_one_by_one(rt: Runtime) {
        let rt = always(&rt).await;
        let [scale, blur] = kernels(&rt, ["scale", "blur"]).await;
        let queue = rt.queue();
        let (src, tmp, dst) = (source(&rt).await, none(&rt), none(&rt));
        queue.fill(&dst, 0.0).unwrap();
        let fusion = queue.start_fusion();
        fusion.submit(scale.launch(N).args((&src, &tmp, 2.0f32))).unwrap();
        fusion.submit(blur.launch(N - 2).offset(1).args((&tmp, &dst))).unwrap();
        fusion.submit(blur.launch(N - 2).offset(1).args((&tmp, &dst))).unwrap();
        let outcome = fusion.complete().await.unwrap();
        assert!(matches!(outcome, FusionOutcome::Unfused { why: Unfused::Refused(_), .. }));
        let read = queue.read(&dst).await.unwrap();
        let scaled: Vec<_> = numbers().iter().map(|n| n * 2.0).collect();
        assert!((1..N - 1).all(|i| read[i] == scaled[i - 1] + scaled[i] + scaled[i + 1]));
    }
}

everywhere! {
    async fn a_scope_that_requires_fusion_says_why_not_and_runs_all_the_same(rt: Runtime) {
        let [scale, blur] = kernels(&rt, ["scale", "blur"]).await;
        let queue = rt.queue();
        let (src, tmp, dst) = (source(&rt).await, none(&rt), none(&rt));
        queue.fill(&dst, 0.0).unwrap();
        let fusion = queue.start_fusion();
        fusion.submit(scale.launch(N).args((&src, &tmp, 2.0f32))).unwrap();
        let last = fusion.submit(blur.launch(N - 2).args((&tmp, &dst))).unwrap();
        let error = fusion.require().complete().await.expect_err("it cannot be fused");
        assert_eq!(error.kind(), kiln::ErrorKind::Unsupported);
        last.await.unwrap();
    }
}
