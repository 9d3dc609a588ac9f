//@ check reduction(in[40000], sums[160], local:1024, 10000) over 10240 in 256
//@ check reduction(in[40000], sums[160], local:512, 10000) over 10240 in 256
//@ check reduction(in[40000], sums[160], local:1024, 10000) over 10240

// Sum of each work-group, by a tree in local memory with a barrier at each level.
kernel void reduction(global const float *in, global float *sums, local float *scratch, int n) {
    int i = get_global_id(0), item = get_local_id(0);
    scratch[item] = i < n ? in[i] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_size = get_local_size(0) / 2; half_size > 0; half_size /= 2) {
        if (item < half_size)
            scratch[item] += scratch[item + half_size];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (item == 0)
        sums[get_group_id(0)] = scratch[0];
}
