// Kernels that are refused, that are guarded, or whose code has other hazards.

kernel void writes_const(global const float *in) {
    ((global float *)in)[get_global_id(0)] = 1.0f;
}

kernel void stores_pointers(global float *a, global float *b, global int *chosen) {
    global float *all[4];
    for (int i = 0; i < 4; i++)
        all[i] = chosen[i] ? a + i : b + i;
    *all[chosen[4] & 3] = 1.0f;
}

kernel void as_integer(global float *a, global ulong *out) {
    out[get_global_id(0)] = (ulong)(a + get_global_id(0));
}

kernel void prints(global int *a) {
    printf("%d\n", a[get_global_id(0)]);
}

kernel void divergent_barrier(global float *a, local float *scratch, int n) {
    int i = get_global_id(0), item = get_local_id(0);
    if (i >= n)
        return;
    scratch[item] = a[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    a[i] = scratch[item ^ 1];
}

kernel void uniform_barrier(global float *a, local float *scratch, int n) {
    int i = get_global_id(0), item = get_local_id(0);
    scratch[item] = a[i];
    for (int k = 0; k < n; k++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        scratch[item] += 1.0f;
    }
    a[i] = scratch[item];
}

kernel void gathers(global const int *indexes, global const float *in, global float *out) {
    int i = get_global_id(0);
    out[i] = in[indexes[i]];
}

kernel void gathers_inside(global const int *indexes, global const float *in, global float *out, int n) {
    int i = get_global_id(0), at = indexes[i];
    if (at >= 0 && at < n)
        out[i] = in[at];
}

kernel void divides(global const int *a, global int *out, int by) {
    int i = get_global_id(0);
    out[i] = a[i] / by;
}

kernel void shifts(global const int *a, global int *out, int by) {
    int i = get_global_id(0);
    out[i] = a[i] << by;
}

kernel void chooses(global float *a, global float *b, int which) {
    int i = get_global_id(0);
    global float *to = which ? a : b;
    to[i] = i;
}

kernel void keeps_in_array(global const float *in, global float *out) {
    int i = get_global_id(0);
    float window[8];
    for (int k = 0; k < 8; k++)
        window[k] = in[i * 8 + k];
    float sum = 0.0f;
    for (int k = 0; k < 8; k++)
        sum += window[(k * i) & 7];
    out[i] = sum;
}

kernel void keeps_in_local(global const float *in, global float *out) {
    local float tile[64 + 2];
    int i = get_global_id(0), item = get_local_id(0);
    tile[item + 1] = in[i];
    if (item == 0)
        tile[0] = tile[65] = 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    out[i] = tile[item] + tile[item + 2];
}

kernel void counts(global const uchar *in, global uint *bins) {
    atomic_inc(bins + in[get_global_id(0)]);
}

kernel void reversed(global const float *in, global float *out, int n) {
    int i = get_global_id(0);
    if (i < n)
        out[n - 1 - i] = in[i];
}

kernel void triangle(global const float *in, global float *out, int n) {
    int row = get_global_id(0);
    float sum = 0.0f;
    if (row < n)
        for (int k = 0; k <= row; k++)
            sum += in[row * (row + 1) / 2 + k];
    out[row] = sum;
}

kernel void vectors(global const float *in, global float *out, uint n) {
    uint i = get_global_id(0);
    if (i < n / 4)
        vstore4(vload4(i, in), i, out);
}
