//! Checked launches: what is proven runs as it is, what is not runs guarded, and nothing leaves its buffers.

use kiln::devices::{DeviceKind, ModuleFormat};
use kiln::internal::translate::spirv_of;
use kiln::launch::CheckMode;
use kiln::{Buffer, ErrorKind, Kernel, Local, Module, Runtime};
use support::everywhere;
use support::tools::has_clang;

const KERNELS: &str = "
kernel void saxpy(float a, global const float *x, global float *y) {
    size_t i = get_global_id(0);
    y[i] += a * x[i];
}
kernel void gather(global const float *x, global const int *at, global float *y) {
    size_t i = get_global_id(0);
    y[i] = x[at[i]];
}
kernel void bounded(global float *x, int n) {
    int i = get_global_id(0);
    if (i < n) x[i] += 1.0f;
}
kernel void count(global int *counts, global const int *at) {
    atomic_inc(&counts[at[get_global_id(0)]]);
}
kernel void divide(global int *x, int by) { x[get_global_id(0)] /= by; }
kernel void sums(global const float *x, local float *part, global float *sum) {
    size_t l = get_local_id(0);
    part[l] = x[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (size_t step = get_local_size(0) / 2; step > 0; step /= 2) {
        if (l < step) part[l] += part[l + step];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (l == 0) sum[get_group_id(0)] = part[0];
}
kernel void printed(global float *x) { printf(\"%f\", x[get_global_id(0)]); }
kernel void cast(global const float *x) { ((global float *)x)[get_global_id(0)] = 1.0f; }
kernel void clamped(global float *x, int low, int high) {
    x[clamp((int)get_global_id(0), low, high)] = 1.0f;
}
kernel void large(global int *x) {
    int all[4096];
    int i = get_global_id(0);
    for (int k = 0; k < 4096; k++) all[k] = x[i] * k;
    for (int k = 0; k < 64; k++) x[i] += all[(x[i] + k) & 4095];
}
kernel void partly(global int *x, int mask) {
    int i = get_global_id(0);
    int all[13] = { i, 2, 3 };
    all[x[i] & 3] += 7;
    x[i] = all[(i + x[i]) & mask];
}
kernel void marked(global const float *at, global int *y, int n) {
    int k = as_int(at[get_global_id(0)]);
    if (0 <= k && k < n) y[k] = 1;
}
kernel void marked_by_size(global const float *at, global int *y, int n) {
    float size = at[get_global_id(0)];
    int k = size < 4.0f ? convert_int_sat(size) : 3;
    if (0 <= k && k < n) y[k] = 1;
}
kernel void scattered(global const int *pairs, global int *y, int n) {
    int2 pair = vload2(get_global_id(0), pairs);
    if (0 <= pair.x && pair.x < n) y[pair.x] = pair.y;
}
kernel void restricted(global float *restrict x, global float *restrict y) {
    size_t i = get_global_id(0);
    y[i] = 2.0f * x[i];
}
";

/// Kernels that are not refused.
const ACCEPTED: [&str; 6] = ["saxpy", "gather", "bounded", "count", "divide", "sums"];

/// Returns the kernels as OpenCL C and as SPIR-V, as far as the device takes these.
async fn modules(rt: &Runtime) -> Vec<Module> {
    let text = Module::opencl_c(KERNELS);
    let spirv = spirv_of(rt, &text, "").await.expect("the front end is installed");
    vec![text, spirv]
}

async fn upload<T: bytemuck::Pod + Send>(rt: &Runtime, elements: Vec<T>) -> Buffer<T> {
    rt.buffer_from(elements).await.expect("there is memory")
}

async fn checked(rt: &Runtime, module: &Module, name: &str) -> Kernel {
    rt.build(module).checked().await.expect("it builds").kernel(name).expect("it can be checked")
}

everywhere! {
    async fn proven_launches_run_as_they_are(rt: Runtime) {
        if !has_clang() {
            return;
        }
        for module in modules(&rt).await {
            let saxpy = checked(&rt, &module, "saxpy").await;
            let (x, y) = (upload(&rt, vec![2.0f32; 64]).await, upload(&rt, vec![1.0f32; 64]).await);
            let launch = || saxpy.launch(64).args((3.0f32, &x, &y));
            let verdict = launch().verdict().await.expect("it is checked");
            assert!(verdict.is_proven(), "{verdict}");
            assert_eq!(verdict.to_string(), "`saxpy` is proven: all 3 accesses stay inside their memory");
            rt.queue().submit(launch()).expect("it fits").await.expect("it runs");
            assert_eq!(rt.queue().read(&y).await.expect("it runs"), vec![7.0; 64]);
            let stats = rt.stats();
            assert_eq!((stats.launches.guarded, stats.launches.guarded_variants), (0, 0));
        }
        assert_eq!(rt.stats().launches.proven, 2);
    }
}

everywhere! {
    async fn accesses_outside_are_dropped_or_zero(rt: Runtime) {
        if !has_clang() {
            return;
        }
        for module in modules(&rt).await {
            let saxpy = checked(&rt, &module, "saxpy").await;
            // The last slices end before the last elements, which must stay as they are.
            let (x, y) = (upload(&rt, vec![2.0f32; 64]).await, upload(&rt, vec![1.0f32; 64]).await);
            let (short_x, short_y) = (x.slice(..24).expect("it fits"), y.slice(..48).expect("it fits"));
            let launch = saxpy.launch(64).args((3.0f32, &short_x, &short_y));
            let verdict = launch.verdict().await.expect("it is checked");
            let parameters: Vec<_> = verdict.findings().iter().map(|found| found.parameter.as_deref()).collect();
            assert!(parameters.contains(&Some("x")) && parameters.contains(&Some("y")), "{verdict}");
            rt.queue().submit(launch).expect("it fits").await.expect("it runs");
            let expected: Vec<_> = (0..64).map(|i| match i {
                0..24 => 7.0,
                _ => 1.0,
            }).collect();
            assert_eq!(rt.queue().read(&y).await.expect("it runs"), expected);
        }
        let stats = rt.stats();
        assert_eq!((stats.launches.guarded, stats.launches.proven), (2, 0));
        assert!(stats.launches.guarded_variants >= 1);
    }
}

everywhere! {
    async fn dimensions_that_do_not_exist_have_the_values_of_opencl_c(rt: Runtime) {
        if !has_clang() {
            return;
        }
        const SOURCE: &str = "kernel void sizes(global ulong *y) {
            y[get_global_id(0)] = get_global_id(3) + get_local_id(5) + get_group_id(77) + get_global_offset(3)
                + 10 * get_global_size(7) + 100 * get_local_size(4) + 1000 * get_num_groups(UINT_MAX);
        }";
        let sizes = checked(&rt, &Module::opencl_c(SOURCE), "sizes").await;
        let y = upload(&rt, vec![0u64; 64]).await;
        let launch = sizes.launch(64).args((&y,));
        assert!(launch.verdict().await.expect("it is checked").is_proven());
        rt.queue().submit(launch).expect("it fits").await.expect("it runs");
        assert_eq!(rt.queue().read(&y).await.expect("it runs"), [1110; 64]);
    }
}

const LOOPS: &str = "
kernel void zeroed(global int *x, int n) { for (int i = 0; i < n; i++) x[i] = 0; }
kernel void copied(global int *restrict x, global const int *restrict y, int n) {
    for (int i = 0; i < n; i++) x[i] = y[i];
}
kernel void moved(global int *restrict x, global const int *restrict y) {
    for (int i = 0; i < 16; i++) x[i] = y[i];
}
kernel void summed(global int *x, global const int *y) { x[0] = y[0] + y[1] + y[2] + y[3]; }
kernel void filled(global int *x) {
    x[0] = 1;
    x[1] = 1;
    x[2] = 1;
    x[3] = 1;
}
kernel void some(global int *x, global const int *y, int from) {
    int sum = 0;
    for (int i = 0; i < 6; i++) sum += y[from + i];
    x[from] = sum;
}";

everywhere! {
    async fn accesses_that_a_compiler_may_merge_are_guarded_one_by_one(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let spirv = spirv_of(&rt, &Module::opencl_c(LOOPS), "").await.expect("it is valid");
        for module in [Module::opencl_c(LOOPS), spirv] {
            let x = upload(&rt, vec![7; 16]).await;
            let y = upload(&rt, (1..=16).collect::<Vec<i32>>()).await;
            let (xs, ys) = (x.slice(..10).expect("it fits"), y.slice(..3).expect("it fits"));
            let after = async |name: &str, launch: &(dyn Fn(&Kernel) -> kiln::Launch + Sync)| {
                rt.queue().fill(&x, 7).expect("it fits");
                let kernel = checked(&rt, &module, name).await;
                rt.queue().submit(launch(&kernel)).expect("it fits").await.expect("it runs");
                rt.queue().read(&x).await.expect("it runs")
            };
            let with = |first: &[i32]| [first, &vec![7; 16 - first.len()]].concat();
            let zeros = after("zeroed", &|kernel| kernel.launch(1).args((&xs, 16))).await;
            assert_eq!(zeros, with(&[0; 10]));
            let copied = after("copied", &|kernel| kernel.launch(1).args((&xs, &ys, 16))).await;
            assert_eq!(copied, with(&[1, 2, 3, 0, 0, 0, 0, 0, 0, 0]));
            let moved = after("moved", &|kernel| kernel.launch(1).args((&xs, &ys))).await;
            assert_eq!(moved, copied);
            let summed = after("summed", &|kernel| kernel.launch(1).args((&xs, &ys))).await;
            assert_eq!(summed, with(&[6]));
            let two = x.slice(..2).expect("it fits");
            let filled = after("filled", &|kernel| kernel.launch(1).args((&two,))).await;
            assert_eq!(filled, with(&[1, 1]));
            let some = after("some", &|kernel| kernel.launch(1).args((&xs, &ys, 1))).await;
            assert_eq!(some, with(&[7, 5]));
        }
    }
}

everywhere! {
    async fn indexes_from_memory_are_guarded(rt: Runtime) {
        if !has_clang() {
            return;
        }
        for module in modules(&rt).await {
            let (gather, count) = (checked(&rt, &module, "gather").await, checked(&rt, &module, "count").await);
            let at = upload(&rt, vec![0, 7, -1, 8, i32::MAX, i32::MIN, 3, 1_000_000]).await;
            let x = upload(&rt, (1..=8_u8).map(f32::from).collect()).await;
            let (y, counts) = (rt.buffer::<f32>(8).expect("it fits"), rt.buffer::<i32>(8).expect("it fits"));
            rt.queue().submit(gather.launch(8).args((&x, &at, &y))).expect("it fits").await.expect("it runs");
            rt.queue().submit(count.launch(8).args((&counts, &at))).expect("it fits").await.expect("it runs");
            let y = rt.queue().read(&y).await.expect("it runs");
            assert_eq!(y, [1.0, 8.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0]);
            let counts = rt.queue().read(&counts).await.expect("it runs");
            assert_eq!(counts, [1, 0, 0, 1, 0, 0, 0, 1]);
        }
    }
}

everywhere! {
    async fn values_that_choose_an_address_are_read_once(rt: Runtime) {
        if !has_clang() {
            return;
        }
        for module in modules(&rt).await {
            let bits = [2_u32, 900, u32::MAX, 0].map(f32::from_bits).to_vec();
            let sizes = vec![1.0_f32, -3.0, 1e30, 0.5];
            for (name, at, expected) in
                [("marked", bits, [1, 0, 1, 0]), ("marked_by_size", sizes, [1, 1, 0, 1])]
            {
                let marked = checked(&rt, &module, name).await;
                let (at, y) = (upload(&rt, at).await, upload(&rt, vec![0; 4]).await);
                let launch = || marked.launch(4).args((&at, &y, 4));
                let verdict = launch().verdict().await.expect("it can be checked").to_string();
                assert!(verdict.contains("other work-items change"), "{verdict}");
                rt.queue().submit(launch()).expect("it fits").await.expect("it runs");
                assert_eq!(rt.queue().read(&y).await.expect("it runs"), expected, "{name}");
            }
            let scattered = checked(&rt, &module, "scattered").await;
            let pairs = upload(&rt, vec![3, 5, 900, 6, -1, 7, 0, 8]).await;
            for len in [4, 3] {
                let y = upload(&rt, vec![0; len]).await;
                let launch = scattered.launch(4).args((&pairs, &y, 4));
                rt.queue().submit(launch).expect("it fits").await.expect("it runs");
                let y = rt.queue().read(&y).await.expect("it runs");
                assert_eq!(y, [8, 0, 0, 5][..len], "{len}");
            }
        }
    }
}

everywhere! {
    async fn divisions_by_zero_give_zero(rt: Runtime) {
        if !has_clang() {
            return;
        }
        for module in modules(&rt).await {
            let divide = checked(&rt, &module, "divide").await;
            let x = upload(&rt, vec![i32::MIN, 6, -7]).await;
            let launch = |by: i32| divide.launch(3).args((&x, by));
            assert!(launch(2).verdict().await.expect("it is checked").is_proven());
            for by in [2, -1, 0] {
                rt.queue().submit(launch(by)).expect("it fits");
            }
            assert_eq!(rt.queue().read(&x).await.expect("it runs"), [0; 3]);
            let verdict = launch(0).verdict().await.expect("it is checked");
            assert!(verdict.to_string().contains("divide by zero"), "{verdict}");
        }
    }
}

everywhere! {
    async fn limits_in_the_wrong_order_are_guarded(rt: Runtime) {
        if !has_clang() {
            return;
        }
        for module in modules(&rt).await {
            let clamped = checked(&rt, &module, "clamped").await;
            let x = rt.buffer::<f32>(8).expect("it fits");
            let launch = |low: i32, high: i32| clamped.launch(4).args((&x, low, high));
            let proven = async |low, high| launch(low, high).verdict().await.expect("it is checked").is_proven();
            assert!(proven(2, 7).await && !proven(7, 2).await && !proven(8, 8).await);
            for (low, high) in [(2, 3), (9, 6), (5, i32::MIN), (i32::MAX, -1), (8, 8)] {
                rt.queue().submit(launch(low, high)).expect("it fits").await.expect("it runs");
            }
            let expected = [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0];
            assert_eq!(rt.queue().read(&x).await.expect("it runs"), expected);
        }
    }
}

everywhere! {
    async fn variables_that_exceed_a_stack_are_refused(rt: Runtime) {
        if !has_clang() || rt.device().kind == DeviceKind::Gpu {
            return;
        }
        for module in modules(&rt).await {
            let large = checked(&rt, &module, "large").await;
            let x = upload(&rt, vec![1; 256]).await;
            let error = match rt.queue().submit(large.launch(256).local(256).args((&x,))) {
                Ok(event) => event.await.expect_err("it needs 4 MiB"),
                Err(error) => error,
            };
            assert!(error.to_string().contains("16384 bytes of variables"), "{error}");
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let small = large.launch(4).local(1).args((&x,));
            rt.queue().submit(small).expect("it fits").await.expect("it runs");
        }
    }
}

everywhere! {
    async fn arrays_that_are_set_in_part_are_checked(rt: Runtime) {
        if !has_clang() {
            return;
        }
        // The compiler sets the rest of the array by a copy of bytes.
        for module in modules(&rt).await {
            let partly = checked(&rt, &module, "partly").await;
            for (mask, is_in_array) in [(7, true), (15, false)] {
                let x = upload(&rt, (0..32).collect()).await;
                let launch = partly.launch(32).args((&x, mask));
                // The index depends on memory that is written, so that the load is mended, too.
                let verdict = launch.verdict().await.expect("it is checked");
                let finds = |what: &str| verdict.findings().iter().any(|found| found.to_string().contains(what));
                assert!(!finds("multiple of"), "{verdict}");
                assert_eq!(finds("`all`") || finds("a variable"), !is_in_array, "{verdict}");
                rt.queue().submit(launch).expect("it fits").await.expect("it runs");
                let expected: Vec<_> = (0..32_usize).map(|i| {
                    let mut all = [i, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                    all[i & 3] += 7;
                    all.get((2 * i) & mask as usize).map_or(0, |&element| element as i32)
                }).collect();
                assert_eq!(rt.queue().read(&x).await.expect("it runs"), expected);
            }
        }
    }
}

everywhere! {
    async fn local_memory_that_is_too_small_is_guarded(rt: Runtime) {
        if !has_clang() {
            return;
        }
        for module in modules(&rt).await {
            let sums = checked(&rt, &module, "sums").await;
            let x = upload(&rt, vec![1.0f32; 64]).await;
            for (items, expected) in [(16, 16.0), (4, 4.0)] {
                let sum = rt.buffer::<f32>(4).expect("it fits");
                let launch = sums.launch(64).local(16).args((&x, Local::<f32>::new(items), &sum));
                rt.queue().submit(launch).expect("it fits").await.expect("it runs");
                assert_eq!(rt.queue().read(&sum).await.expect("it runs"), [expected; 4]);
            }
        }
    }
}

everywhere! {
    async fn kernels_that_cannot_be_checked_are_refused_by_name(rt: Runtime) {
        if !has_clang() {
            return;
        }
        for module in modules(&rt).await {
            let program = rt.build(&module).checked().await.expect("other kernels can be checked");
            let printed = program.kernel("printed").expect_err("`printf` is not checked");
            assert_eq!(printed.kind(), ErrorKind::Unsupported);
            let message = printed.to_string();
            assert!(message.contains("`printed`") && message.contains("printf"), "{message}");
            assert!(message.contains("unsafe program.kernel(\"printed\")"), "{message}");
            let unknown = program.kernel("saxpi").expect_err("there is no such kernel");
            assert_eq!(unknown.kind(), ErrorKind::UnknownKernel);
            assert!(unknown.to_string().contains("did you mean `saxpy`"), "{unknown}");
            for name in ACCEPTED {
                program.kernel(name).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            // A launch that is submitted before the build has ended has the same error.
            let x = rt.buffer::<f32>(4).expect("it fits");
            let printed = rt.build(&module).checked().start().kernel("printed");
            let error = match rt.queue().submit(printed.launch(4).args((&x,))) {
                Ok(event) => event.await.expect_err("it is refused"),
                Err(error) => error,
            };
            assert!(error.to_string().contains("printf"), "{error}");
        }
    }
}

everywhere! {
    async fn writes_through_what_is_only_read_are_refused(rt: Runtime) {
        if !has_clang() {
            return;
        }
        for module in modules(&rt).await {
            let x = rt.buffer::<f32>(4).expect("it fits");
            let cast = checked(&rt, &module, "cast").await;
            let refused = cast.launch(4).args((x.read_write(),)).verdict().await;
            let refused = refused.expect_err("it writes").to_string();
            assert!(refused.contains("`x`") && refused.contains("const"), "{refused}");
            let bounded = checked(&rt, &module, "bounded").await;
            let launch = || bounded.launch(4).args((x.read_only(), 4));
            let error = match rt.queue().submit(launch()) {
                Ok(event) => event.await.expect_err("it writes"),
                Err(error) => error,
            };
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("`x`"), "{error}");
        }
    }
}

everywhere! {
    async fn restricted_memory_must_not_overlap(rt: Runtime) {
        if !has_clang() {
            return;
        }
        for module in modules(&rt).await {
            let restricted = checked(&rt, &module, "restricted").await;
            let (x, y) = (rt.buffer::<f32>(64).expect("it fits"), rt.buffer::<f32>(64).expect("it fits"));
            rt.queue().submit(restricted.launch(64).args((&x, &y))).expect("they are apart").await.expect("it runs");
            let half = x.slice(32..).expect("it fits");
            let error = match rt.queue().submit(restricted.launch(32).args((&x, &half))) {
                Ok(event) => event.await.expect_err("they overlap"),
                Err(error) => error,
            };
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("restrict"), "{error}");
            let verdict = restricted.launch(32).args((&x, &half)).verdict().await;
            assert!(verdict.expect_err("they overlap").to_string().contains("restrict"));
        }
    }
}

everywhere! {
    async fn proof_can_be_required(rt: Runtime) {
        if !has_clang() {
            return;
        }
        for module in modules(&rt).await {
            let saxpy = checked(&rt, &module, "saxpy").await;
            let (x, y) = (rt.buffer::<f32>(8).expect("it fits"), rt.buffer::<f32>(8).expect("it fits"));
            let launch = |items: usize| saxpy.launch(items).args((1.0f32, &x, &y)).require_proof();
            rt.queue().submit(launch(8)).expect("it is proven").await.expect("it runs");
            let error = rt.queue().submit(launch(9)).expect_err("it is not proven");
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let message = error.to_string();
            assert!(message.contains("`saxpy`") && message.contains("the bytes 0 to 36, but there are 32"), "{message}");
            // SAFETY: it stays inside its buffers.
            let unchecked = unsafe { rt.build(&module).await.expect("it builds").kernel("saxpy") };
            let launch = unchecked.expect("it is there").launch(8).args((1.0f32, &x, &y)).require_proof();
            let error = rt.queue().submit(launch).expect_err("it is not checked");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }
}

everywhere! {
    async fn proof_is_required_of_kernels_that_are_not_built_yet(rt: Runtime) {
        let x = rt.buffer::<f32>(8).expect("it fits");
        let text = "kernel void one(global float *x) { x[get_global_id(0)] = 1; }";
        let build = rt.build(&Module::opencl_c(text)).start();
        // SAFETY: it stays inside its buffer.
        let unchecked = unsafe { build.kernel("one") };
        let launch = || unchecked.launch(8).args((&x,)).require_proof();
        let submitted = rt.queue().submit(launch()).map(drop);
        let recorded = rt.queue().record().submit(launch());
        for refused in [submitted, recorded] {
            let error = refused.expect_err("it is not checked");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("the kernel is not checked"), "{error}");
        }
        build.await.expect("it builds");
    }
}

#[test]
fn a_runtime_can_require_proof_of_all_launches() {
    if !has_clang() {
        return;
    }
    let builder = || support::builder().checked(CheckMode::Proven);
    let test = async |rt: Runtime| {
        let module = modules(&rt).await.pop().expect("there are two");
        let saxpy = checked(&rt, &module, "saxpy").await;
        let x = rt.buffer::<f32>(8).expect("it fits");
        rt.queue()
            .submit(saxpy.launch(8).args((1.0f32, &x, &x)))
            .expect("it is proven")
            .await
            .expect("it runs");
        let error = rt.queue().submit(saxpy.launch(9).args((1.0f32, &x, &x)));
        assert_eq!(error.expect_err("it is not proven").kind(), ErrorKind::Unsupported);
    };
    futures::executor::block_on(support::on_each_device_with(builder, test));
}

everywhere! {
    async fn kernels_of_unfinished_builds_are_checked(rt: Runtime) {
        if !has_clang() {
            return;
        }
        for module in modules(&rt).await {
            let build = rt.build(&module).checked().start();
            let (saxpy, none) = (build.kernel("saxpy"), build.kernel("none"));
            let (x, y) = (upload(&rt, vec![2.0f32; 8]).await, rt.buffer::<f32>(16).expect("it fits"));
            let launch = |kernel: &Kernel| kernel.launch(16).args((1.0f32, &x, &y));
            let other = rt.buffer::<f32>(16).expect("it fits");
            let missing = match rt.queue().submit(none.launch(16).args((1.0f32, x.read_only(), &other))) {
                Ok(event) => event.await.expect_err("there is no such kernel"),
                Err(error) => error,
            };
            assert_eq!(missing.kind(), ErrorKind::UnknownKernel);
            rt.queue().submit(launch(&saxpy)).expect("it fits").await.expect("it runs");
            let expected: Vec<f32> = [2.0; 8].into_iter().chain([0.0; 8]).collect();
            assert_eq!(rt.queue().read(&y).await.expect("it runs"), expected);
            let verdict = launch(&saxpy).verdict().await.expect("it is checked");
            assert!(verdict.findings().iter().all(|found| found.parameter.as_deref() == Some("x")), "{verdict}");
        }
    }
}

everywhere! {
    async fn what_a_launch_that_is_refused_late_was_to_write_is_lost(rt: Runtime) {
        if !has_clang() {
            return;
        }
        let queue = rt.queue();
        // The analysis refuses the first and the second, clang the third, and the last one has no such kernel.
        let printed = "kernel void k(global float *x) { printf(\"%f\", x[0]); x[0] = 2; } kernel void fit(global float *x) {}";
        let divergent = "kernel void k(global float *x) {
            if (get_local_id(0) == 1) barrier(CLK_LOCAL_MEM_FENCE);
            x[0] = 2;
        }";
        let untranslated = "#if !defined(POCL_DEVICE_ADDRESS_BITS) && !defined(__INTEL_LLVM_COMPILER)
            #error for drivers only
            #endif
            kernel void k(global float *x) { x[0] = 2; }";
        for text in [printed, divergent, untranslated, support::SAXPY] {
            let x = upload(&rt, vec![1.0f32; 16]).await;
            let y = upload(&rt, vec![3.0f32; 16]).await;
            let k = rt.build(&Module::opencl_c(text)).checked().start().kernel("k");
            let submitted = queue.submit(k.launch(16).args((&x,))).map(drop);
            if let Err(error) = submitted {
                // It is known already, so that nothing has happened.
                assert!(queue.read(&x).await.is_ok(), "{error}");
                continue;
            }
            let root = queue.read(&x).await.expect_err("it was not written");
            assert!(queue.read(&x).await.expect_err("it was not written").same(&root), "{root}");
            assert_eq!(queue.read(&y).await.expect("it is another buffer"), [3.0; 16]);
            queue.fill(&x, 5.0).expect("it fits").await.expect("it is written");
            assert_eq!(queue.read(&x).await.expect("it was written"), [5.0; 16]);
        }
    }
}

everywhere! {
    async fn native_binaries_are_refused_by_name(rt: Runtime) {
        if !rt.device().formats.contains(&ModuleFormat::Native) {
            return;
        }
        let program = rt.build(&Module::opencl_c(support::SAXPY)).await.expect("it builds");
        let native = Module::native(program.binary().expect("it has one")).expect("it is a module");
        let error = rt.build(&native).checked().await.expect_err("nothing is known of its code");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("native binary"), "{error}");
    }
}

/// Kernel that passes indexes to a function in vectors of three, for some of the work-items only. The function returns
/// such a vector, too.
const VECTORS: &str = "
    __attribute__((noinline)) uint3 moved(uint3 at, uint by) {
        if (at.x > 3) return (uint3)(at.x - by, at.y, at.z);
        return (uint3)(at.x, at.y - by, at.z);
    }
    __attribute__((noinline)) float get(global const float *src, uint3 at, uint w) {
        return src[at.y * w + at.x];
    }
    kernel void pick(global const float *src, global float *dst) {
        uint x = get_global_id(0), y = get_global_id(1), w = get_global_size(0);
        float v = 0.0f;
        if (x >= 2 && y >= 1 && x < w - 2) {
            uint3 at = moved((uint3)(x, y, 7), 1);
            v = get(src, at, w) + 0.25f * at.z;
        }
        dst[y * w + x] = v;
    }";

everywhere! {
    async fn functions_get_their_own_components_of_vectors_of_three(rt: Runtime) {
        if !has_clang() {
            return;
        }
        const SIZE: [usize; 2] = [23, 7];

        // Intel's runtime for CPUs, which passes such vectors wrongly, may stand in for a GPU.
        if std::env::var_os("KILN_STAND_INS_OPENCL").is_some() {
            return;
        }
        let program = support::checked_program(&rt, VECTORS).await;
        let pick = program.kernel("pick").unwrap();
        let numbers: Vec<f32> = (0..SIZE[0] * SIZE[1]).map(|n| n as f32).collect();
        let src = rt.buffer_from(numbers.clone()).await.unwrap();
        let dst = rt.buffer::<f32>(numbers.len()).unwrap();
        rt.queue().submit(pick.launch(SIZE).args((&src, &dst))).unwrap();
        let expected = |n: usize| {
            let (x, y) = (n % SIZE[0], n / SIZE[0]);
            let at = if x > 3 { n - 1 } else { n.saturating_sub(SIZE[0]) };
            if x >= 2 && y >= 1 && x < SIZE[0] - 2 { numbers[at] + 0.25 * 7.0 } else { 0.0 }
        };
        let expected: Vec<_> = (0..numbers.len()).map(expected).collect();
        assert_eq!(rt.queue().read(&dst).await.unwrap(), expected);
    }
}

everywhere! {
    async fn functions_that_are_inline_alone_are_defined(rt: Runtime) {
        if !has_clang() {
            return;
        }
        // C99 expects the definition in another module if the call is not inlined.
        const SOURCE: &str = "
            __attribute__((noinline)) inline int square(int x) { return x * x; }
            kernel void squares(global int *y) { y[get_global_id(0)] = square(get_global_id(0)); }";
        let squares = checked(&rt, &Module::opencl_c(SOURCE), "squares").await;
        let y = rt.buffer::<i32>(8).expect("it fits");
        let launch = squares.launch(8).args((&y,));
        assert!(launch.verdict().await.expect("it is checked").is_proven());
        rt.queue().submit(launch).expect("it fits").await.expect("it runs");
        assert_eq!(rt.queue().read(&y).await.expect("it runs"), [0, 1, 4, 9, 16, 25, 36, 49]);
    }
}
