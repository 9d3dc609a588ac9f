//@ check histogram(pixels[65536], bins[1024], 65536) over 16384 in 256
//@ check histogram(pixels[65536], bins[1020], 65536) over 16384 in 256

// Histogram of bytes: each work-group counts in local memory, and adds its counts to the result.
kernel void histogram(global const uchar *pixels, global uint *bins, uint n) {
    local uint counts[256];
    for (uint bin = get_local_id(0); bin < 256; bin += get_local_size(0))
        counts[bin] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = get_global_id(0); i < n; i += get_global_size(0))
        atomic_inc(&counts[pixels[i]]);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint bin = get_local_id(0); bin < 256; bin += get_local_size(0))
        atomic_add(&bins[bin], counts[bin]);
}
