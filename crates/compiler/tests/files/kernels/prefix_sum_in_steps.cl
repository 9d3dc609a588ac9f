//@ check prefix_sum_in_steps(in[1024], out[1024], local:2048) over 256 in 256
//@ check prefix_sum_in_steps(in[1024], out[1024], local:1024) over 256 in 256

// Inclusive prefix sums of one work-group, with two buffers in local memory that are exchanged at each step.
kernel void prefix_sum_in_steps(global const int *in, global int *out, local int *sums) {
    int item = get_local_id(0), n = get_local_size(0), from = 0, to = n;
    sums[item] = in[item];
    for (int distance = 1; distance < n; distance *= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        int value = sums[from + item];
        if (item >= distance)
            value += sums[from + item - distance];
        sums[to + item] = value;
        int other = from;
        from = to;
        to = other;
    }
    out[item] = sums[from + item];
}
