// Kernels to be fused, for the tests of the access analysis and of fusion.

kernel void scale(global const float *src, global float *dst, float factor) {
    size_t i = get_global_id(0);
    dst[i] = src[i] * factor;
}

kernel void offset(global const float *src, global float *dst, float term) {
    int i = get_global_id(0);
    dst[i] = src[i] + term;
}

kernel void in_place(global float *x) {
    size_t i = get_global_id(0);
    x[i] = x[i] * x[i];
}

// Cross-item: reads what a neighbour wrote.
kernel void blur(global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    dst[i] = src[i - 1] + src[i] + src[i + 1];
}

kernel void guarded(global const float *src, global float *dst, uint n) {
    size_t i = get_global_id(0);
    if (i >= n) return;
    dst[i] = src[i] + 1.0f;
}

kernel void transpose(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    dst[x * height + y] = src[y * width + x];
}

kernel void plane(global const float *src, global float *dst, int width) {
    int x = get_global_id(0), y = get_global_id(1);
    dst[y * width + x] = src[y * width + x] - 1.0f;
}

kernel void vectors(global const float4 *src, global float4 *dst) {
    size_t i = get_global_id(0);
    dst[i] = src[i].wzyx;
}

kernel void quads(global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    for (int k = 0; k < 4; k++)
        dst[4 * i + k] = src[4 * i + k] + (float)k;
}

kernel void loaded(global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    vstore4(vload4(i, src) * 2.0f, i, dst);
}

kernel void rows(global const float *src, global float *dst, uint columns) {
    size_t row = get_global_id(0);
    float sum = 0.0f;
    for (uint k = 0; k < columns; k++)
        sum += src[row * columns + k];
    dst[row] = sum;
}

typedef struct { float x; float y; int tag; } Point;

kernel void points(global const Point *src, global Point *dst) {
    size_t i = get_global_id(0);
    dst[i].x = src[i].y;
    dst[i].y = src[i].x;
    dst[i].tag = src[i].tag;
}

kernel void gather(global const float *src, global const uint *index, global float *dst) {
    size_t i = get_global_id(0);
    dst[i] = src[index[i]];
}

kernel void count(global const uint *src, global uint *bins) {
    atomic_inc(&bins[src[get_global_id(0)] & 15]);
}

kernel void total(global const float *src, global float *dst) {
    dst[0] = src[get_global_id(0)];
}

kernel void chosen(global const float *a, global const float *b, global float *dst, global const int *which) {
    size_t i = get_global_id(0);
    global const float *src = which[i] ? a : b;
    dst[i] = src[i];
}

kernel void escaping(global float *src, global ulong *dst) {
    dst[get_global_id(0)] = (ulong)src;
}

kernel void group_sums(global const float *src, global float *dst, local float *scratch) {
    size_t l = get_local_id(0);
    scratch[l] = src[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (l == 0) {
        float sum = 0.0f;
        for (size_t k = 0; k < get_local_size(0); k++) sum += scratch[k];
        dst[get_group_id(0)] = sum;
    }
}

kernel void by_group(global const float *src, global float *dst) {
    size_t i = get_group_id(0) * get_local_size(0) + get_local_id(0);
    dst[i] = src[i] + 2.0f;
}

kernel void reversed(global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    dst[get_global_size(0) - 1 - i] = src[i];
}

float __attribute__((noinline)) at(global const float *x, size_t i) { return x[i]; }

kernel void helped(global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    dst[i] = at(src, i);
}

kernel void table(constant float *weights, global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    dst[i] = weights[i & 3] * src[i];
}

typedef struct { float a; float b; } Coefficients;

kernel void by_value(global const float *src, global float *dst, Coefficients c) {
    size_t i = get_global_id(0);
    dst[i] = src[i] * c.a + c.b;
}

kernel void __attribute__((reqd_work_group_size(64, 1, 1))) grouped(global float *x) {
    size_t i = get_global_id(0);
    x[i] += 1.0f;
}

// Within groups of 64.
kernel void __attribute__((reqd_work_group_size(64, 1, 1))) turned(global const float *src, global float *dst) {
    local float scratch[64];
    size_t i = get_global_id(0), l = get_local_id(0);
    scratch[l] = src[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    dst[i] = scratch[63 - l];
}
