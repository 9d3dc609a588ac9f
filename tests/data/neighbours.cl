// Kernels that read neighbours, and guard or clamp their indices at the borders, in the forms that people write.

kernel void clamped(global const float *src, global float *dst, int width) {
    int x = get_global_id(0);
    float sum = 0.0f;
    for (int d = -4; d <= 4; ++d) sum += src[clamp(x + d, 0, width - 1)];
    dst[x] = sum;
}

kernel void clamped_plane(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    float sum = 0.0f;
    for (int dy = -1; dy <= 1; ++dy)
        for (int dx = -2; dx <= 2; ++dx)
            sum += src[clamp(y + dy, 0, height - 1) * width + clamp(x + dx, 0, width - 1)];
    dst[y * width + x] = sum;
}

kernel void clamped_by_size(global const float *src, global float *dst) {
    int x = get_global_id(0), last = (int)get_global_size(0) - 1;
    dst[x] = src[max(x - 3, 0)] + src[min(x + 2, last)];
}

kernel void clamped_unsigned(global const float *src, global float *dst) {
    uint x = get_global_id(0), last = get_global_size(0) - 1;
    dst[x] = src[x > 0 ? x - 1 : 0] + src[min(x + 1, last)];
}

kernel void chosen_border(global const float *src, global float *dst, int width) {
    int x = get_global_id(0);
    int left = x - 1 < 0 ? 0 : x - 1;
    int right = x + 1 >= width ? width - 1 : x + 1;
    dst[x] = src[left] + src[x] + src[right];
}

kernel void mirrored(global const float *src, global float *dst, int width) {
    int x = get_global_id(0);
    float sum = 0.0f;
    for (int d = -4; d <= 4; ++d) {
        int at = x + d;
        at = at < 0 ? -at : at;
        at = at >= width ? 2 * width - 2 - at : at;
        sum += src[at];
    }
    dst[x] = sum;
}

kernel void mirrored_by_abs(global const float *src, global float *dst) {
    int x = get_global_id(0);
    dst[x] = src[abs(x - 2)];
}

kernel void inner(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    int at = y * width + x;
    float sum = src[at];
    if (x > 0 && x < width - 1 && y > 0 && y < height - 1)
        sum = src[at - width] + src[at + width] + src[at - 1] + src[at + 1];
    dst[at] = sum;
}

kernel void outer_returns(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x < 1 || x >= width - 1 || y < 1 || y >= height - 1) return;
    int at = y * width + x;
    dst[at] = src[at - width - 1] + src[at + width + 1];
}

kernel void loaded_if_inside(global const float *src, global float *dst) {
    int x = get_global_id(0), width = get_global_size(0);
    float left = x > 0 ? src[x - 1] : 0.0f;
    float right = x + 1 < width ? src[x + 1] : 0.0f;
    dst[x] = left + right;
}

kernel void taps_inside(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    float sum = 0.0f;
    for (int dy = -2; dy <= 2; ++dy)
        for (int dx = -2; dx <= 2; ++dx) {
            int u = x + dx, v = y + dy;
            if (u >= 0 && u < width && v >= 0 && v < height) sum += src[v * width + u];
        }
    dst[y * width + x] = sum;
}

kernel void with_tail(global const float *src, global float *dst, uint n) {
    uint row = get_global_id(0);
    src += row * n;
    float sum = 0.0f;
    uint i = 0;
    for (; i + 4 <= n; i += 4) {
        float4 four = vload4(0, src + i);
        sum += four.x + four.y + four.z + four.w;
    }
    for (; i < n; ++i) sum += src[i];
    dst[row] = sum;
}

kernel void first_half(global float *x) {
    uint row = get_global_id(0);
    for (uint i = 0; i < 4; ++i) x[row * 8 + i] = i;
}

kernel void second_half(global float *x, global float *sums) {
    uint row = get_global_id(0);
    float sum = 0.0f;
    for (uint i = 0; i < 4; ++i) sum += x[row * 8 + i + 4];
    sums[row] = sum;
}

kernel void by_parts(global const float *src, global float *dst) {
    size_t i = get_group_id(0) * get_local_size(0) + get_local_id(0);
    dst[i] = src[i] * 2.0f;
}

kernel void compared(global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    if (src != dst) dst[i] = src[i];
}

kernel void rows_by_group(global const float *src, global float *dst, int columns) {
    size_t row = get_group_id(0);
    for (int i = get_local_id(0); i < columns; i += get_local_size(0))
        dst[row * columns + i] = src[row * columns + i] * 2.0f;
}

kernel void wrapped_around(global const float *src, global float *dst, int width) {
    int x = get_global_id(0);
    dst[x] = src[(x + width - 1) % width] + src[(x + 1) % width];
}

int reflected(int at, int width) {
    if (at < 0) return -at;
    if (at >= width) return 2 * width - 2 - at;
    return at;
}

kernel void reflected_by_helper(global const float *src, global float *dst, int width) {
    int x = get_global_id(0);
    dst[x] = src[reflected(x - 3, width)] + src[reflected(x + 3, width)];
}

kernel void by_all_groups(global const float *src, global float *dst, int n) {
    for (int i = get_global_id(0); i < n; i += get_num_groups(0) * get_local_size(0))
        dst[i] = src[i] * 2.0f;
}

kernel void from_the_end(global const float *src, global float *dst) {
    int row = get_global_id(0);
    float sum = 0.0f;
    for (int i = 7; i >= 0; --i) sum = sum * 0.5f + src[row * 8 + i];
    dst[row] = sum;
}

kernel void without_branches(global const float *src, global float *dst, int width) {
    int x = get_global_id(0);
    dst[x] = src[x - (x > 0)] + src[x + (x < width - 1)];
}

kernel void saturated(global const float *src, global float *dst) {
    uint x = get_global_id(0);
    dst[x] = src[sub_sat(x, 2u)];
}

kernel void chosen_row(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    global const float *above = y > 0 ? src + (y - 1) * width : src;
    dst[y * width + x] = above[x];
}

kernel void flat_inner(global const float *src, global float *dst, uint width) {
    uint i = get_global_id(0), x = i % width;
    float sum = 0.0f;
    if (x > 1 && x < width - 3) sum = src[i - 2] + src[i + 3];
    dst[i] = sum;
}

kernel void lower_rows(global const float *src, global float *dst, uint width) {
    uint i = get_global_id(0), y = i / width;
    dst[i] = y > 1 ? src[i - 2 * width] : src[i];
}

kernel void clamped_vector(global const float *src, global float *dst, int width, int height) {
    int2 at = (int2)(get_global_id(0), get_global_id(1)), last = (int2)(width, height) - 1;
    int2 low = clamp(at - (int2)(2, 1), (int2)(0), last), high = min(at + 1, last);
    dst[at.y * width + at.x] = src[low.y * width + low.x] + src[high.y * width + high.x];
}
