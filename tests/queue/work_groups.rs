//! Properties of kernels for those who choose the sizes of work-groups.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in helpers too")]

use kiln::launch::WorkGroup;
use kiln::{ErrorKind, Kernel, Runtime};
use support::everywhere;
use support::program;

const SOURCE: &str = "
kernel void reverse(global int *x) {
    local int shared[64];
    size_t i = get_local_id(0), n = get_local_size(0);
    shared[i] = x[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    x[get_global_id(0)] = shared[n - 1 - i];
}
kernel __attribute__((reqd_work_group_size(8, 2, 1))) void required(global int *x) {
    x[get_global_id(1) * get_global_size(0) + get_global_id(0)] += 1;
}";

async fn kernels(rt: &Runtime) -> [Kernel; 2] {
    let program = program(rt, SOURCE).await;
    // SAFETY: a work-item touches elements of its work-group, and the buffers have one for each work-item.
    ["reverse", "required"].map(|name| unsafe { program.kernel(name) }.unwrap())
}

everywhere! {
    async fn properties_are_those_of_the_kernels_code(rt: Runtime) {
        let [reverse, required] = kernels(&rt).await;
        let limits = &rt.device().limits;
        let group = reverse.work_group().unwrap();
        assert!(group.local_bytes >= 256 && group.local_bytes <= limits.local_memory, "{group:?}");
        assert!(group.max_size.unwrap() <= limits.max_work_group_size, "{group:?}");
        assert!(group.preferred_multiple.unwrap() >= 1, "{group:?}");
        assert!(group.private_bytes.is_some(), "{group:?}");
        assert_eq!(group.required, None);
        let group = required.work_group().unwrap();
        assert_eq!((group.required, group.size_up_to(256)), (Some([8, 2, 1]), 16));
        assert!(group.max_size.unwrap() >= 16, "{group:?}");
    }
}

everywhere! {
    async fn chosen_sizes_can_be_launched_and_larger_ones_than_the_maximum_cannot(rt: Runtime) {
        let [reverse, _] = kernels(&rt).await;
        let group: WorkGroup = reverse.work_group().unwrap();
        let size = group.size_up_to(64);
        let numbers: Vec<i32> = (0..4 * size as i32).collect();
        let x = rt.buffer_from(numbers.clone()).await.unwrap();
        rt.queue().submit(reverse.launch(4 * size).local(size).args((&x,))).unwrap();
        let expected: Vec<i32> =
            numbers.chunks(size).flat_map(|chunk| chunk.iter().rev()).copied().collect();
        assert_eq!(rt.queue().read(&x).await.unwrap(), expected);
        let too_large = 2 * group.max_size.unwrap();
        let refused = rt.queue().submit(reverse.launch(too_large).local(too_large).args((&x,)));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
