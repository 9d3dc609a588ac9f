// Image filters over pixels of bytes and of floats.

kernel void grey(global const uchar4 *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    float4 p = convert_float4(src[y * width + x]);
    dst[y * width + x] = 0.299f * p.x + 0.587f * p.y + 0.114f * p.z;
}

kernel void threshold(global const float *src, global uchar *dst, float limit, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    dst[y * width + x] = src[y * width + x] > limit ? 255 : 0;
}

// Over all pixels as one line.
kernel void invert(global const uchar *src, global uchar *dst, int count) {
    int i = get_global_id(0);
    if (i < count) {
        dst[i] = 255 - src[i];
    }
}

kernel void blur_rows(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    float sum = 0.0f;
    for (int d = -2; d <= 2; d++) {
        sum += src[y * width + clamp(x + d, 0, width - 1)];
    }
    dst[y * width + x] = sum / 5.0f;
}

kernel void blur_columns(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    float sum = 0.0f;
    for (int d = -2; d <= 2; d++) {
        sum += src[clamp(y + d, 0, height - 1) * width + x];
    }
    dst[y * width + x] = sum / 5.0f;
}

kernel void sobel(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    int left = max(x - 1, 0), right = min(x + 1, width - 1);
    int above = max(y - 1, 0), below = min(y + 1, height - 1);
    float h = src[above * width + right] + 2.0f * src[y * width + right] + src[below * width + right]
        - src[above * width + left] - 2.0f * src[y * width + left] - src[below * width + left];
    float v = src[below * width + left] + 2.0f * src[below * width + x] + src[below * width + right]
        - src[above * width + left] - 2.0f * src[above * width + x] - src[above * width + right];
    dst[y * width + x] = sqrt(h * h + v * v);
}

kernel void unsharp(global const float *src, global const float *blurred, global float *dst, float amount, int count) {
    int i = get_global_id(0);
    if (i < count) {
        dst[i] = src[i] + amount * (src[i] - blurred[i]);
    }
}

kernel void gamma_of(global const float *src, global float *dst, float exponent, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    dst[y * width + x] = pow(fmax(src[y * width + x], 0.0f), exponent);
}

kernel void dilate(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    float most = src[y * width + x];
    for (int dy = -1; dy <= 1; dy++) {
        for (int dx = -1; dx <= 1; dx++) {
            most = fmax(most, src[clamp(y + dy, 0, height - 1) * width + clamp(x + dx, 0, width - 1)]);
        }
    }
    dst[y * width + x] = most;
}

kernel void erode(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    float least = src[y * width + x];
    for (int dy = -1; dy <= 1; dy++) {
        for (int dx = -1; dx <= 1; dx++) {
            least = fmin(least, src[clamp(y + dy, 0, height - 1) * width + clamp(x + dx, 0, width - 1)]);
        }
    }
    dst[y * width + x] = least;
}

// Four pixels for each work-item, and the rest one by one.
kernel void difference4(global const float *a, global const float *b, global float *dst, int count) {
    int i = get_global_id(0) * 4;
    if (i + 3 < count) {
        vstore4(vload4(0, a + i) - vload4(0, b + i), 0, dst + i);
    } else {
        for (; i < count; i++) {
            dst[i] = a[i] - b[i];
        }
    }
}

// Brightness of all pixels, and colour of every second pixel in every second row.
kernel void luma(global const uchar *rgb, global uchar *y_plane, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    int i = y * width + x;
    int r = rgb[3 * i], g = rgb[3 * i + 1], b = rgb[3 * i + 2];
    y_plane[i] = ((66 * r + 129 * g + 25 * b + 128) >> 8) + 16;
}

kernel void chroma(global const uchar *rgb, global uchar *u_plane, global uchar *v_plane, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width / 2 || y >= height / 2) {
        return;
    }
    int i = 2 * y * width + 2 * x;
    int r = rgb[3 * i], g = rgb[3 * i + 1], b = rgb[3 * i + 2];
    u_plane[y * (width / 2) + x] = ((-38 * r - 74 * g + 112 * b + 128) >> 8) + 128;
    v_plane[y * (width / 2) + x] = ((112 * r - 94 * g - 18 * b + 128) >> 8) + 128;
}

kernel void stretch_luma(global uchar *y_plane, int least, int most, int count) {
    int i = get_global_id(0);
    if (i < count) {
        y_plane[i] = clamp((y_plane[i] - least) * 255 / (most - least), 0, 255);
    }
}

kernel void blend(global const float4 *above, global const float4 *below, global float4 *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    float4 a = above[y * width + x], b = below[y * width + x];
    float4 mixed = a * a.w + b * (1.0f - a.w);
    mixed.w = a.w + b.w * (1.0f - a.w);
    dst[y * width + x] = mixed;
}

kernel void expose(global const float4 *src, global float4 *dst, float gain, int count) {
    int i = get_global_id(0);
    if (i < count) {
        dst[i] = src[i] * gain;
    }
}

kernel void pack(global const float4 *src, global uchar4 *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    dst[y * width + x] = convert_uchar4_sat(src[y * width + x] * 255.0f);
}

kernel void halve(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    int columns = width / 2;
    if (x >= columns || y >= height / 2) {
        return;
    }
    global const float *own = src + 2 * y * width + 2 * x;
    dst[y * columns + x] = 0.25f * (own[0] + own[1] + own[width] + own[width + 1]);
}

kernel void tone(global const float *src, global float *dst, int count) {
    int i = get_global_id(0);
    if (i < count) {
        float x = fmax(src[i], 0.0f);
        dst[i] = x / (1.0f + x);
    }
}
