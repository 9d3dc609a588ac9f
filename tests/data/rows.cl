// Kernels with a row for each work-group or work-item, and kernels with an item for each element, vector or
// pixel, for the tests of launches that are fused in other arrangements of their work-items.

kernel void normalize_rows(global const float *src, global float *dst, uint columns) {
    local float sums[8];
    uint row = get_group_id(0), l = get_local_id(0);
    float sum = 0.0f;
    for (uint i = l; i < columns; i += get_local_size(0)) sum += src[row * columns + i];
    sums[l] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    sum = 0.0f;
    for (uint i = 0; i < get_local_size(0); i++) sum += sums[i];
    for (uint i = l; i < columns; i += get_local_size(0)) dst[row * columns + i] = src[row * columns + i] / sum;
}

kernel void shift_rows(global const float *src, global float *dst, uint columns) {
    uint row = get_group_id(0);
    for (uint i = get_local_id(0); i < columns; i += get_local_size(0))
        dst[row * columns + i] = src[row * columns + i] + get_num_groups(0);
}

kernel void scale_elements(global const float *src, global float *dst, float factor) {
    dst[get_global_id(0)] = src[get_global_id(0)] * factor;
}

kernel void scale_vectors(global const float4 *src, global float4 *dst, float factor) {
    dst[get_global_id(0)] = src[get_global_id(0)] * factor;
}

float __attribute__((noinline)) element(global const float *src) { return src[get_global_id(0)]; }

kernel void copy_by_helper(global const float *src, global float *dst) {
    dst[get_global_id(0)] = element(src);
}

kernel void offset_below(global const float *src, global float *dst, int count) {
    int i = get_global_id(0);
    if (i >= count) return;
    dst[i] = src[i] + 1.0f;
}

kernel void offset_pixels(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x < width && y < height) dst[y * width + x] = src[y * width + x] + 2.0f;
}

// All work-items, whatever the condition.
kernel void offset_all(global const float *src, global float *dst, int count) {
    int i = get_global_id(0);
    dst[i] = i < count ? src[i] : 0.0f;
}

kernel void sum_row(global const float *src, global float *dst, uint columns) {
    uint row = get_global_id(0);
    float sum = 0.0f;
    for (uint i = 0; i < columns; i++) {
        sum += src[row * columns + i];
        dst[row * columns + i] = sum;
    }
}

kernel void sum_column(global const float *src, global float *dst, uint columns, uint rows) {
    uint column = get_global_id(0);
    float sum = 0.0f;
    for (uint i = 0; i < rows; i++) {
        sum += src[i * columns + column];
        dst[i * columns + column] = sum;
    }
}

kernel void sum_groups(global const float *src, global float *sums, local float *scratch) {
    uint l = get_local_id(0);
    scratch[l] = src[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (l == 0) {
        float sum = 0.0f;
        for (uint i = 0; i < get_local_size(0); i++) sum += scratch[i];
        sums[get_group_id(0)] = sum;
    }
}

kernel void divide_by_sums(global const float *src, global const float *sums, global float *dst, uint count) {
    float sum = 0.0f;
    for (uint i = 0; i < count; i++) sum += sums[i];
    dst[get_global_id(0)] = src[get_global_id(0)] / sum;
}
