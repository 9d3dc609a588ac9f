//@ check reduction_with_early_return(in[40000], sums[160], local:1024, 10000) over 10240 in 256

// Sum of each work-group. Work-items behind the end return before the barriers that the others wait at.
kernel void reduction_with_early_return(global const float *in, global float *sums, local float *scratch, int n) {
    int i = get_global_id(0), item = get_local_id(0);
    if (i >= n)
        return;
    scratch[item] = in[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_size = get_local_size(0) / 2; half_size > 0; half_size /= 2) {
        if (item < half_size)
            scratch[item] += scratch[item + half_size];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (item == 0)
        sums[get_group_id(0)] = scratch[0];
}
