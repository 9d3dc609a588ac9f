// Further kernels of transformers and of convolutional networks.

kernel void soft_cap(global const float *src, global float *dst, float cap) {
    dst[get_global_id(0)] = cap * tanh(src[get_global_id(0)] / cap);
}

kernel void leaky_relu(global const float *src, global float *dst, float slope, const uint n) {
    const uint i = get_global_id(0);
    if (i >= n)
        return;
    const float x = src[i];
    dst[i] = (x > 0 ? x : 0) + slope * (x < 0.0f ? x : 0.0f);
}

kernel void scale_by(global const float *src, global float *dst, float by) {
    dst[get_global_id(0)] = src[get_global_id(0)] * by;
}

kernel void square(global const float *src, global float *dst, ulong n) {
    for (ulong i = get_global_id(0); i < n; i += get_global_size(0)) {
        dst[i] = src[i] * src[i];
    }
}

// One work-item for each row.
kernel void sum_rows(
    global const float *src, ulong offset0, global float *dst, ulong offsetd, int ne00, int ne01, int ne02,
    ulong nb01, ulong nb02, ulong nb1, ulong nb2) {
    src = (global const float *)((global const char *)src + offset0);
    dst = (global float *)((global char *)dst + offsetd);
    int i2 = get_global_id(1), i1 = get_global_id(0);
    if (i2 >= ne02 || i1 >= ne01) {
        return;
    }
    global const float *row = (global const float *)((global const char *)src + i1 * nb01 + i2 * nb02);
    global float *to = (global float *)((global char *)dst + i1 * nb1 + i2 * nb2);
    float sum = 0;
    for (int i = 0; i < ne00; i++) {
        sum += row[i];
    }
    to[0] = sum;
}

// A work-group for each row.
kernel void sum_rows_by_groups(global const float *src, global float *dst, int ne00, local float *buf) {
    int row = get_group_id(0);
    float sum = 0;
    for (int i = get_local_id(0); i < ne00; i += get_local_size(0)) {
        sum += src[row * ne00 + i];
    }
    buf[get_local_id(0)] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int left = get_local_size(0) / 2; left > 0; left /= 2) {
        if (get_local_id(0) < left) {
            buf[get_local_id(0)] += buf[get_local_id(0) + left];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (get_local_id(0) == 0) {
        dst[row] = buf[0];
    }
}

kernel void divide_rows(global const float *src, global const float *sums, global float *dst, int ne00) {
    int i = get_global_id(0);
    dst[i] = src[i] / (sums[i / ne00] + 1.0f);
}

// Groups of channels are normalised together.
kernel void group_norm(
    global const float *src, global float *dst, int ne, int group_size, float eps, local float *buf) {
    int start = get_group_id(0) * group_size;
    int end = start + group_size;
    if (end > ne) {
        end = ne;
    }
    float part = 0.0f;
    for (int j = start + get_local_id(0); j < end; j += get_local_size(0)) {
        part += src[j];
    }
    buf[get_local_id(0)] = part;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = get_local_size(0) / 2; i > 0; i /= 2) {
        if (get_local_id(0) < i) {
            buf[get_local_id(0)] += buf[get_local_id(0) + i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float mean = buf[0] / group_size;
    barrier(CLK_LOCAL_MEM_FENCE);
    part = 0.0f;
    for (int j = start + get_local_id(0); j < end; j += get_local_size(0)) {
        float d = src[j] - mean;
        dst[j] = d;
        part += d * d;
    }
    buf[get_local_id(0)] = part;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = get_local_size(0) / 2; i > 0; i /= 2) {
        if (get_local_id(0) < i) {
            buf[get_local_id(0)] += buf[get_local_id(0) + i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float by = 1.0f / sqrt(buf[0] / group_size + eps);
    for (int j = start + get_local_id(0); j < end; j += get_local_size(0)) {
        dst[j] *= by;
    }
}

kernel void silu_flat(global const float *src, global float *dst) {
    float x = src[get_global_id(0)];
    dst[get_global_id(0)] = x / (1.0f + exp(-x));
}

// Two tensors one after the other, in the first dimension.
kernel void concat(
    global const float *src0, global const float *src1, global float *dst, int ne00, int ne01, int ne0) {
    int i0 = get_global_id(0), i1 = get_global_id(1), i2 = get_global_id(2);
    if (i0 >= ne0) {
        return;
    }
    int i = (i2 * ne01 + i1) * ne0 + i0;
    if (i0 < ne00) {
        dst[i] = src0[(i2 * ne01 + i1) * ne00 + i0];
    } else {
        dst[i] = src1[(i2 * ne01 + i1) * (ne0 - ne00) + i0 - ne00];
    }
}

// The halves of a row are a value and its gate.
kernel void swiglu(
    global const char *src0, global char *dst, ulong nb01, int ne0, ulong nb1, int gates) {
    global const float *x = (global const float *)(src0 + get_group_id(0) * nb01);
    global const float *gate = x + gates;
    global float *to = (global float *)(dst + get_group_id(0) * nb1);
    for (int i = get_local_id(0); i < ne0; i += get_local_size(0)) {
        const float a = x[i], b = gate[i];
        to[i] = a / (1.0f + exp(-a)) * b;
    }
}

kernel void geglu(global const float *src0, global const float *src1, global float *dst, int n) {
    int i = get_global_id(0);
    if (i < n) {
        const float x = src0[i];
        dst[i] = 0.5f * x * (1.0f + tanh(0.79788456f * x * (1.0f + 0.044715f * x * x))) * src1[i];
    }
}

kernel void to_half(global const float *src, global half *dst, int n) {
    int i = get_global_id(0);
    if (i < n) {
        vstore_half(src[i], i, dst);
    }
}

kernel void from_half(
    global const half *src0, global float *dst, int ne00, int ne01, ulong nb00, ulong nb01, ulong nb02, ulong nb0,
    ulong nb1, ulong nb2) {
    int i2 = get_group_id(1), i1 = get_group_id(0);
    for (int i0 = get_local_id(0); i0 < ne00; i0 += get_local_size(0)) {
        global const half *from =
            (global const half *)((global const char *)src0 + i2 * nb02 + i1 * nb01 + i0 * nb00);
        global float *to = (global float *)((global char *)dst + i2 * nb2 + i1 * nb1 + i0 * nb0);
        to[0] = vload_half(0, from);
    }
}

kernel void add_flat(global const float *a, global const float *b, global float *dst) {
    const size_t i = get_global_id(0);
    dst[i] = a[i] + b[i];
}

// Rotates neighbouring pairs, with the pairs' positions in rows.
kernel void rope_pairs(
    global const float *src, global const int *positions, global float *dst, int ne0, int ne1, float base) {
    int i0 = 2 * (int)get_global_id(0), i1 = get_global_id(1), i2 = get_global_id(2);
    if (i0 >= ne0) {
        return;
    }
    float theta = positions[i2] * pow(base, -(float)i0 / ne0);
    float c = cos(theta), s = sin(theta);
    int i = (i2 * ne1 + i1) * ne0 + i0;
    float x = src[i], y = src[i + 1];
    dst[i] = x * c - y * s;
    dst[i + 1] = x * s + y * c;
}

// From heads of rows to rows of heads.
kernel void permute(global const float *src, global float *dst, int ne0, int ne1, int ne2) {
    int i0 = get_global_id(0), i1 = get_global_id(1), i2 = get_global_id(2);
    dst[(i1 * ne2 + i2) * ne0 + i0] = src[(i2 * ne1 + i1) * ne0 + i0];
}

// Zeros around a plane.
kernel void pad(
    global const float *src, global float *dst, int ne00, int ne01, int ne0, int ne1) {
    int i0 = get_global_id(0), i1 = get_global_id(1), i2 = get_global_id(2);
    if (i0 >= ne0 || i1 >= ne1) {
        return;
    }
    float x = 0.0f;
    if (i0 < ne00 && i1 < ne01) {
        x = src[(i2 * ne01 + i1) * ne00 + i0];
    }
    dst[(i2 * ne1 + i1) * ne0 + i0] = x;
}

// Patches of a plane as rows of a matrix.
kernel void im2col(
    global const float *src, global float *dst, int width, int height, int out_width, int kw, int kh, int pw, int ph) {
    int k = get_global_id(0), place = get_global_id(1);
    int ox = place % out_width, oy = place / out_width, kx = k % kw, ky = k / kw;
    int x = ox + kx - pw, y = oy + ky - ph;
    float value = 0.0f;
    if (x >= 0 && x < width && y >= 0 && y < height) {
        value = src[y * width + x];
    }
    dst[place * kw * kh + k] = value;
}

kernel void upscale(
    global const float *src, global float *dst, int ne00, int ne01, int ne0, int ne1, int factor) {
    int index = get_global_id(0);
    int i0 = index % ne0, i1 = (index / ne0) % ne1, i2 = index / (ne0 * ne1);
    dst[index] = src[(i2 * ne01 + i1 / factor) * ne00 + i0 / factor];
}

// As libraries do it, with factors that are no integers.
kernel void upscale_by_floats(
    global const float *src, global float *dst, int ne00, int ne01, int ne0, int ne1, float sf0, float sf1) {
    int i0 = get_global_id(0), i1 = get_global_id(1);
    if (i0 >= ne0 || i1 >= ne1) {
        return;
    }
    int from0 = min((int)(i0 / sf0), ne00 - 1), from1 = min((int)(i1 / sf1), ne01 - 1);
    dst[i1 * ne0 + i0] = src[max(from1, 0) * ne00 + max(from0, 0)];
}

typedef struct {
    ushort d;
    char qs[32];
} Block;

kernel void dequantise(global const Block *src, global float *dst) {
    int i = get_global_id(0);
    global const Block *block = src + i / 32;
    dst[i] = vload_half(0, (global const half *)&block->d) * block->qs[i % 32];
}

kernel void batch_norm_relu(
    global const float *src, global const float *scale, global const float *shift, global float *dst, int channels,
    int places) {
    int i = get_global_id(0), c = get_global_id(1), n = get_global_id(2);
    if (i < places) {
        int at = (n * channels + c) * places + i;
        dst[at] = fmax(src[at] * scale[c] + shift[c], 0.0f);
    }
}

kernel void max_pool(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1), c = get_global_id(2);
    int w = width / 2, h = height / 2;
    if (x >= w || y >= h) {
        return;
    }
    float most = -FLT_MAX;
    for (int j = 0; j < 2; j++) {
        for (int i = 0; i < 2; i++) {
            most = fmax(most, src[(c * height + 2 * y + j) * width + 2 * x + i]);
        }
    }
    dst[(c * h + y) * w + x] = most;
}

// Each channel for itself, with zeros outside.
kernel void depthwise(
    global const float *src, global const float *weights, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1), c = get_global_id(2);
    if (x >= width || y >= height) {
        return;
    }
    float sum = 0.0f;
    for (int ky = 0; ky < 3; ky++) {
        for (int kx = 0; kx < 3; kx++) {
            int sx = x + kx - 1, sy = y + ky - 1;
            if (sx >= 0 && sx < width && sy >= 0 && sy < height) {
                sum += weights[c * 9 + ky * 3 + kx] * src[(c * height + sy) * width + sx];
            }
        }
    }
    dst[(c * height + y) * width + x] = sum;
}

// Sum and maximum over the places of a channel.
kernel void pool_places(global const float *src, global float *dst, int planes, int places) {
    int nc = get_global_id(0);
    if (nc < planes) {
        float sum = 0.0f, most = 0.0f;
        for (int i = 0; i < places; i++) {
            float x = src[nc * places + i];
            sum += x;
            most = fmax(most, x);
        }
        dst[nc] = sum / places;
        dst[planes + nc] = most;
    }
}

kernel void extract_channel(global const float *src, global float *dst, int channels, int places) {
    int i = get_global_id(0), n = get_global_id(1);
    if (i < places) {
        dst[n * places + i] = src[n * channels * places + i];
    }
}

kernel void mirror_board(global const float *src, global float *dst, int size, int planes) {
    int x = get_global_id(0), y = get_global_id(1), p = get_global_id(2);
    if (x < size && y < size && p < planes) {
        dst[(p * size + y) * size + x] = src[(p * size + y) * size + size - 1 - x];
    }
}

// Channels last.
kernel void add_bias_last(global const float *src, global const float *bias, global float *dst, int channels, int n) {
    int i = get_global_id(0);
    if (i < n) {
        dst[i] = src[i] + bias[i % channels];
    }
}

// One work-item for each row.
kernel void norm_rows(global const float *src, global float *dst, int columns, int rows) {
    int row = get_global_id(0);
    if (row < rows) {
        float mean = 0.0f, square = 0.0f;
        int i = 0;
        do {
            mean += src[row * columns + i];
        } while (++i < columns);
        mean /= columns;
        for (i = 0; i < columns; i++) {
            float d = src[row * columns + i] - mean;
            square += d * d;
        }
        float by = 1.0f / sqrt(square / columns + 1e-5f);
        for (i = 0; i < columns; i++) {
            dst[row * columns + i] = (src[row * columns + i] - mean) * by;
        }
    }
}

kernel void add_slope(global const float *src, global float *dst, float slope, int columns, int rows) {
    int i0 = get_global_id(0), i1 = get_global_id(1);
    if (i0 < columns && i1 < rows) {
        dst[i1 * columns + i0] = src[i1 * columns + i0] + slope * (i0 - i1);
    }
}

// Two vectors for each work-item.
kernel void mask_diagonal8(global const float4 *src, global float4 *dst, int ne00, int ne01, int past) {
    int i = 2 * get_global_id(0);
    dst[i] = src[i];
    dst[i + 1] = src[i + 1];
    int i4 = 4 * i;
    int row = i4 / ne00;
    int column = i4 - row * ne00;
    for (int k = 4; k >= 0; k -= 4) {
        for (int j = 3; j >= 0; j--) {
            if (column + k + j <= past + row % ne01) {
                break;
            }
            ((global float *)(dst + i))[k + j] = -INFINITY;
        }
    }
}
