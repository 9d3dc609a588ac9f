// Kernels whose accesses are not known, for the reasons that reports state.

kernel void fill(global float *dst) { dst[get_global_id(0)] = 1.0f; }

kernel void gathered(global const int *index, global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    dst[i] = src[index[i]];
}

kernel void strided(global const float *src, global float *dst, global const int *ends) {
    size_t i = get_global_id(0);
    float sum = 0.0f;
    for (int k = 0; k < ends[i]; k += 3)
        sum += src[k];
    dst[i] = sum;
}

__attribute__((noinline)) static int chosen(int i) {
    while (i > 9)
        i /= 2;
    return i;
}

kernel void returned(global const float *src, global float *dst) {
    int i = get_global_id(0);
    dst[i] = src[chosen(i)];
}

kernel void in_table(global const float *src, global float *dst, int n) {
    int i = get_global_id(0);
    int table[4] = {i, 2 * i, 3 * i, 4 * i};
    table[n & 3] += n;
    dst[i] = src[table[i & 3]];
}

kernel void window(global const float *src, global float *dst, int n) {
    int i = get_global_id(0);
    float sum = 0.0f;
    int d = -n;
    do {
        sum += src[i + d];
    } while (++d <= n);
    dst[i] = sum;
}

kernel void grouped(global const float *src, global float *dst) {
    size_t first = get_group_id(0) * get_local_size(0);
    float sum = 0.0f;
    for (size_t k = 0; k < get_local_size(0); ++k)
        sum += src[first + k];
    dst[get_global_id(0)] = sum;
}
