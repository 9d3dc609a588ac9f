//@ check prefix_sum(in[2048], out[2048], local:2048) over 256 in 256
//@ check prefix_sum(in[2048], out[2048], local:1024) over 256 in 256

// Exclusive prefix sums of one work-group, which sweeps a tree up and down in local memory.
kernel void prefix_sum(global const int *in, global int *out, local int *sums) {
    int item = get_local_id(0), n = 2 * get_local_size(0), offset = 1;
    sums[2 * item] = in[2 * item];
    sums[2 * item + 1] = in[2 * item + 1];
    for (int d = n >> 1; d > 0; d >>= 1) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < d)
            sums[offset * (2 * item + 2) - 1] += sums[offset * (2 * item + 1) - 1];
        offset *= 2;
    }
    if (item == 0)
        sums[n - 1] = 0;
    for (int d = 1; d < n; d *= 2) {
        offset >>= 1;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < d) {
            int a = offset * (2 * item + 1) - 1, b = offset * (2 * item + 2) - 1;
            int kept = sums[a];
            sums[a] = sums[b];
            sums[b] += kept;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    out[2 * item] = sums[2 * item];
    out[2 * item + 1] = sums[2 * item + 1];
}
