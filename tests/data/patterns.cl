// Kernels whose work-items reach their elements in the ways that programs are written in.

// Guards.

kernel void guarded_inside(global const float *src, global float *dst, uint n) {
    size_t i = get_global_id(0);
    if (i < n) dst[i] = src[i] * 2.0f;
}

kernel void guarded_plane(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) return;
    dst[y * 16 + x] = src[y * 16 + x] + 1.0f;
}

kernel void guarded_by_data(global const float *src, global float *dst, float limit) {
    size_t i = get_global_id(0);
    if (src[i] < limit) dst[i] = 0.0f;
}

kernel void guarded_in_place(global float *x, uint n) {
    size_t i = get_global_id(0);
    if (i >= n) return;
    x[i] = x[i] + 1.0f;
}

// Indexes.

kernel void split(global const float *src, global float *dst, uint width) {
    uint i = get_global_id(0);
    uint x = i % width, y = i / width;
    dst[y * width + x] = src[y * width + x] + 1.0f;
}

kernel void split_signed(global const float *src, global float *dst, int width) {
    int i = get_global_id(0);
    int x = i % width, y = i / width;
    dst[y * width + x] = src[y * width + x] * 3.0f;
}

kernel void split_transposed(global const float *src, global float *dst, uint width, uint height) {
    uint i = get_global_id(0);
    uint x = i % width, y = i / width;
    dst[x * height + y] = src[i];
}

kernel void strided(global const float *src, global float *dst, uint n) {
    size_t i;
    for (i = get_global_id(0); i < n; i += get_global_size(0))
        dst[i] = src[i] + 1.0f;
}

kernel void strided_int(global const float *src, global float *dst, int n) {
    int i, step = get_global_size(0);
    for (i = get_global_id(0); i < n; i += step)
        dst[i] = src[i] * 2.0f;
}

kernel void pairs(global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    dst[2 * i] = src[2 * i + 1];
    dst[2 * i + 1] = src[2 * i];
}

kernel void first_of_four(global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    dst[4 * i] = src[4 * i];
}

kernel void rolled(global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    int k;
    #pragma unroll 1
    for (k = 0; k < 4; k++)
        dst[4 * i + k] = src[4 * i + k] + (float)k;
}

float square(float x) { return x * x; }

void __attribute__((noinline)) put(global float *x, size_t i, float value) { x[i] = value; }

kernel void squared(global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    put(dst, i, square(src[i]));
}

kernel void squared_plane(global const float *src, global float *dst, uint width) {
    uint x = get_global_id(0), y = get_global_id(1);
    put(dst, y * width + x, square(src[y * width + x]));
}

// Work-groups.

kernel void turned_in_memory(global const float *src, global float *dst) {
    size_t l = get_local_id(0), first = get_group_id(0) * get_local_size(0);
    dst[first + l] = src[first + get_local_size(0) - 1 - l];
}

kernel void group_most(global const float *src, global float *dst) {
    size_t l = get_local_id(0), first = get_group_id(0) * get_local_size(0);
    if (l != 0) return;
    float most = 0.0f;
    size_t k;
    for (k = 0; k < get_local_size(0); k++) most = fmax(most, src[first + k]);
    dst[get_group_id(0)] = most;
}

kernel void group_scaled(global const float *src, global const float *factors, global float *dst) {
    size_t i = get_global_id(0);
    dst[i] = src[i] * factors[get_group_id(0)];
}

// In place, with the old contents read after the new ones were written.

kernel void shifted(global float *x) {
    size_t i = get_global_id(0);
    int k;
    #pragma unroll 1
    for (k = 0; k < 3; k++) {
        float old = x[i];
        x[i] = old * 0.5f + 1.0f;
    }
}

// The same for two buffers, which may be one.
kernel void repeated(global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    int k;
    #pragma unroll 1
    for (k = 0; k < 3; k++)
        dst[i] = src[i] * 0.5f;
}

kernel void sum_of_products(global const float *src, global float *dst) {
    #pragma OPENCL FP_CONTRACT OFF
    size_t i = get_global_id(0);
    dst[i] = src[i] * 1.1f + 0.3f;
}

// Pointers that are not followed.

kernel void twice_stored(global float *a, global float *b) {
    size_t i = get_global_id(0);
    global float *to = a;
    to[i] = 1.0f;
    to = b;
    to[i] = 2.0f;
}

kernel void one_of_several(global float *a, global float *b, global const int *which) {
    size_t i = get_global_id(0);
    global float *all[2] = {a, b};
    all[which[i] & 1][i] = 3.0f;
}

kernel void walked(global float *a, uint n) {
    global float *to = a + get_global_id(0);
    uint k = 0;
    do {
        *to = 4.0f;
        to += get_global_size(0);
    } while (++k < n);
}

kernel void volatile_twice(global volatile float *a) {
    size_t i = get_global_id(0);
    a[i] = a[i] + 1.0f;
}
