// Kernels of pictures and rows that read neighbours, for the tests of recomputed launches.

size_t here(void) {
    return get_global_id(1) * get_global_size(0) + get_global_id(0);
}

kernel void unpack(global const uchar4 *file, global float4 *pixels) {
    pixels[here()] = convert_float4(file[here()]) / 255.0f;
}

kernel void scale(global const float4 *in, float factor, global float4 *out) {
    out[here()] = in[here()] * factor;
}

kernel void add(global const float4 *a, global const float4 *b, global float4 *out) {
    out[here()] = a[here()] + b[here()];
}

// Clamped borders.
kernel void blur_x(global const float4 *in, global float4 *out) {
    int x = get_global_id(0), width = get_global_size(0);
    size_t row = get_global_id(1) * width;
    float4 sum = 0.0f;
    for (int dx = -2; dx <= 2; ++dx)
        sum += in[row + clamp(x + dx, 0, width - 1)];
    out[row + x] = sum;
}

kernel void blur_y(global const float4 *in, global float4 *out) {
    int x = get_global_id(0), y = get_global_id(1);
    int width = get_global_size(0), height = get_global_size(1);
    float4 sum = 0.0f;
    for (int dy = -3; dy <= 3; ++dy)
        sum += in[clamp(y + dy, 0, height - 1) * width + x];
    out[y * width + x] = sum;
}

float luma(global const float4 *in, int x, int y) {
    int width = get_global_size(0), height = get_global_size(1);
    float4 pixel = in[clamp(y, 0, height - 1) * width + clamp(x, 0, width - 1)];
    return dot(pixel.xyz, (float3)(0.25f, 0.5f, 0.25f));
}

kernel void edges(global const float4 *in, global float *out) {
    int x = get_global_id(0), y = get_global_id(1);
    out[here()] = luma(in, x + 1, y) - luma(in, x - 1, y) + luma(in, x, y + 1) - luma(in, x, y - 1);
}

// Guarded borders: pixels of the border stay as they are.
kernel void guarded(global const float4 *in, global float4 *out) {
    int x = get_global_id(0), y = get_global_id(1);
    int width = get_global_size(0), height = get_global_size(1);
    int i = y * width + x;
    float4 value = in[i];
    if (x > 0 && x < width - 1 && y > 0 && y < height - 1)
        value = in[i - 1] + in[i + 1] + in[i - width] + in[i + width] - 4.0f * value;
    out[i] = value;
}

// Mirrored borders.
kernel void mirrored(global const float4 *in, global float4 *out) {
    int x = get_global_id(0), y = get_global_id(1);
    int width = get_global_size(0), height = get_global_size(1);
    int above = abs(y - 1), below = y + 1 < height ? y + 1 : 2 * height - 2 - (y + 1);
    out[y * width + x] = in[above * width + x] + in[below * width + x];
}

kernel void step_1d(global const float *in, global float *out) {
    int i = get_global_id(0), n = get_global_size(0);
    out[i] = 0.25f * in[max(i - 1, 0)] + 0.5f * in[i] + 0.25f * in[min(i + 1, n - 1)];
}

// One sum for each work-group, over a grid of work-items that advances.
kernel void sums(global const float4 *pixels, uint count, local float *scratch, global float *out) {
    float sum = 0.0f;
    for (size_t i = get_global_id(0); i < count; i += get_global_size(0))
        sum += pixels[i].x;
    size_t item = get_local_id(0);
    scratch[item] = sum;
    for (size_t half_size = get_local_size(0) / 2; half_size > 0; half_size /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < half_size)
            scratch[item] += scratch[item + half_size];
    }
    if (item == 0)
        out[get_group_id(0)] = scratch[0];
}

// Kernels whose launches cannot run again.
kernel void in_place(global float4 *pixels) {
    pixels[here()] *= 2.0f;
}

kernel void counted(global const float4 *in, global float4 *out, global uint *count) {
    out[here()] = in[here()];
    atomic_inc(count);
}

kernel void some(global const float4 *in, global float4 *out) {
    if (in[here()].x > 0.5f)
        out[here()] = in[here()];
}

kernel void shifted(global const float4 *in, global float4 *out) {
    out[here() + 1] = in[here()];
}

kernel void unclamped(global const float4 *in, global float4 *out) {
    out[here()] = in[here() + get_global_size(0)];
}

// The upper half of the rows is beyond the elements of a launch over the lower half.
kernel void beyond(global const float4 *in, global float4 *out) {
    int x = get_global_id(0), width = get_global_size(0);
    size_t row = get_global_id(1) * width;
    out[row + x] = in[row + min(x + 1, width - 1)] + in[get_global_size(1) * width + row + x];
}

// The result depends on the order of the two stores if both buffers are the same.
kernel void twice(global const float4 *in, global float4 *first, global float4 *second) {
    second[here()] = in[here()] * 3.0f;
    first[here()] = in[here()];
}

kernel void own_and_beyond(global const float4 *in, global float4 *out) {
    size_t all = get_global_size(0) * get_global_size(1);
    out[here()] = in[here()] + in[all + here()];
}
