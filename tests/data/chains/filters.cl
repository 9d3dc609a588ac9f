// Image filters with other borders, layouts and index arithmetic than `images.cl`.

#define INSIDE(x, y, w, h) ((x) < (w) && (y) < (h))

// Three bytes for each pixel, in rows of `pitch` bytes.
kernel void luma_of_bytes(global const uchar *rgb, global float *dst, uint pitch, uint width, uint height) {
    uint x = get_global_id(0), y = get_global_id(1);
    if (!INSIDE(x, y, width, height)) {
        return;
    }
    global const uchar *p = rgb + y * pitch + 3 * x;
    dst[y * width + x] = (p[0] * 77 + p[1] * 150 + p[2] * 29) / 256.0f;
}

// Mean of those neighbours that exist.
kernel void box_blur(global const float *src, global float *dst, int radius, int width, int height) {
    const int x = get_global_id(0);
    const int y = get_global_id(1);
    if (x >= width || y >= height)
        return;
    float sum = 0.0f;
    int count = 0;
    for (int py = max(y - radius, 0); py <= min(y + radius, height - 1); ++py) {
        for (int dx = -radius; dx <= radius; ++dx) {
            int px = x + dx;
            if (px >= 0 && px < width) {
                sum += src[py * width + px];
                ++count;
            }
        }
    }
    dst[y * width + x] = sum / count;
}

int mirrored(int i, int n) {
    if (i < 0) {
        return -i - 1;
    }
    if (i >= n) {
        return 2 * n - 1 - i;
    }
    return i;
}

constant float weights[5] = {0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f};

kernel void gauss_rows(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    float sum = 0.0f;
    for (int k = -2; k <= 2; k++) {
        sum += weights[k + 2] * src[y * width + mirrored(x + k, width)];
    }
    dst[y * width + x] = sum;
}

kernel void gauss_columns(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    float sum = 0.0f;
    for (int k = -2; k <= 2; k++) {
        sum += weights[k + 2] * src[mirrored(y + k, height) * width + x];
    }
    dst[y * width + x] = sum;
}

kernel void subtract(global const float *a, global const float *b, global float *dst, uint count) {
    uint i = get_global_id(0);
    if (i < count) {
        dst[i] = a[i] - b[i];
    }
}

// A torus: the neighbours of the last column are in the first one.
kernel void laplacian_wrapped(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    int left = (x + width - 1) % width, right = (x + 1) % width;
    int above = (y + height - 1) % height, below = (y + 1) % height;
    dst[y * width + x] = src[y * width + left] + src[y * width + right] + src[above * width + x]
        + src[below * width + x] - 4.0f * src[y * width + x];
}

// Like `laplacian_wrapped`, by comparisons.
kernel void diffuse_wrapped(
    global const float *src, global const float *lap, global float *dst, float rate, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    int left = x == 0 ? width - 1 : x - 1;
    int right = x == width - 1 ? 0 : x + 1;
    float bend = 0.5f * (lap[y * width + left] + lap[y * width + right]);
    dst[y * width + x] = src[y * width + x] + rate * (lap[y * width + x] + 0.25f * bend);
}

// Pixels on the border stay as they are.
kernel void sharpen_inside(global const float *in, global float *out, int w, int h) {
    int x = get_global_id(0);
    int y = get_global_id(1);
    if (x >= w || y >= h) {
        return;
    }
    int i = y * w + x;
    if (x == 0 || y == 0 || x == w - 1 || y == h - 1) {
        out[i] = in[i];
        return;
    }
    out[i] = 5.0f * in[i] - in[i - 1] - in[i + 1] - in[i - w] - in[i + w];
}

// Median of five, with the border copied in a branch of its own.
kernel void median_cross(global const float *in, global float *out, int w, int h) {
    int x = get_global_id(0);
    int y = get_global_id(1);
    if (x >= w || y >= h) {
        return;
    }
    if (x > 0 && x < w - 1 && y > 0 && y < h - 1) {
        float a = in[(y - 1) * w + x], b = in[(y + 1) * w + x], c = in[y * w + x - 1], d = in[y * w + x + 1];
        float e = in[y * w + x];
        float least = fmax(fmin(a, b), fmin(c, d)), most = fmin(fmax(a, b), fmax(c, d));
        out[y * w + x] = fmax(fmin(least, most), fmin(fmax(least, most), e));
    } else {
        out[y * w + x] = in[y * w + x];
    }
}

// Only pixels inside are written.
kernel void gradient_inside(
    global const float *src, global float *strength, global uchar *direction, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x > 0 && x < width - 1 && y > 0 && y < height - 1) {
        int i = y * width + x;
        float gx = src[i + 1] - src[i - 1], gy = src[i + width] - src[i - width];
        strength[i] = hypot(gx, gy);
        direction[i] = fabs(gx) > fabs(gy) ? 0 : 1;
    }
}

kernel void thin_inside(
    global const float *strength, global const uchar *direction, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x > 1 && x < width - 2 && y > 1 && y < height - 2) {
        int i = y * width + x;
        int step = direction[i] == 0 ? 1 : width;
        float own = strength[i];
        dst[i] = own >= strength[i - step] && own >= strength[i + step] ? own : 0.0f;
    }
}

kernel void bilateral(
    global const float *src, global float *dst, float space, float range, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    float own = src[y * width + x], sum = 0.0f, total = 0.0f;
    for (int j = max(y - 2, 0); j <= min(y + 2, height - 1); j++) {
        for (int i = max(x - 2, 0); i <= min(x + 2, width - 1); i++) {
            float other = src[j * width + i];
            float d = other - own;
            float weight = exp(-((i - x) * (i - x) + (j - y) * (j - y)) * space - d * d * range);
            sum += weight * other;
            total += weight;
        }
    }
    dst[y * width + x] = sum / total;
}

// Detail that a filter took away, enlarged and added again.
kernel void add_detail(
    global const float *src, global const float *smooth, global float *dst, float gain, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x < width && y < height) {
        int i = mad24(y, width, x);
        dst[i] = smooth[i] + gain * (src[i] - smooth[i]);
    }
}

// Every second pixel of every second row, after a filter over columns.
kernel void pyramid_down(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    int columns = (width + 1) / 2, rows = (height + 1) / 2;
    if (x >= columns || y >= rows) {
        return;
    }
    float sum = 0.0f;
    for (int k = -2; k <= 2; k++) {
        sum += weights[k + 2] * src[clamp(2 * y + k, 0, height - 1) * width + min(2 * x, width - 1)];
    }
    dst[y * columns + x] = sum;
}

kernel void black_level(global const ushort *raw, global float *dst, uint black, float scale, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    dst[y * width + x] = sub_sat((uint)raw[y * width + x], black) * scale;
}

// Colours of a mosaic of red, green and blue, four numbers for each pixel.
kernel void demosaic(global const float *raw, global float4 *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    int l = max(x - 1, 0), r = min(x + 1, width - 1), u = max(y - 1, 0), d = min(y + 1, height - 1);
    float own = raw[y * width + x];
    float across = 0.5f * (raw[y * width + l] + raw[y * width + r]);
    float along = 0.5f * (raw[u * width + x] + raw[d * width + x]);
    float corners = 0.25f * (raw[u * width + l] + raw[u * width + r] + raw[d * width + l] + raw[d * width + r]);
    float4 pixel;
    if ((y & 1) == 0) {
        pixel = (x & 1) == 0 ? (float4)(own, 0.5f * (across + along), corners, 1.0f)
                             : (float4)(across, own, along, 1.0f);
    } else {
        pixel = (x & 1) == 0 ? (float4)(along, own, across, 1.0f)
                             : (float4)(corners, 0.5f * (across + along), own, 1.0f);
    }
    dst[y * width + x] = pixel;
}

kernel void colour_matrix(global const float4 *src, global float4 *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    float4 p = src[y * width + x];
    dst[y * width + x] = (float4)(
        1.6f * p.x - 0.4f * p.y - 0.2f * p.z, -0.3f * p.x + 1.5f * p.y - 0.2f * p.z,
        0.1f * p.x - 0.6f * p.y + 1.5f * p.z, p.w);
}

typedef struct {
    float h, s, v, a;
} Hsv;

kernel void to_hsv(global const float4 *src, global Hsv *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    float4 p = src[y * width + x];
    float most = fmax(p.x, fmax(p.y, p.z)), least = fmin(p.x, fmin(p.y, p.z)), d = most - least;
    float h = 0.0f;
    if (d > 0.0f) {
        if (most == p.x) {
            h = (p.y - p.z) / d;
        } else if (most == p.y) {
            h = 2.0f + (p.z - p.x) / d;
        } else {
            h = 4.0f + (p.x - p.y) / d;
        }
    }
    Hsv own = {h, d, most, p.w};
    dst[y * width + x] = own;
}

kernel void saturate(global Hsv *pixels, float by, int count) {
    int i = get_global_id(0);
    if (i < count) {
        pixels[i].s = pixels[i].s * by;
        pixels[i].h = pixels[i].h < 0.0f ? pixels[i].h + 6.0f : pixels[i].h;
    }
}

kernel void from_hsv(global const Hsv *src, global float4 *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    global const Hsv *p = &src[y * width + x];
    float f = p->h - floor(p->h), low = p->v - p->s, falling = p->v - p->s * f, rising = low + p->s * f;
    float4 rgb;
    switch ((int)p->h) {
    case 0: rgb = (float4)(p->v, rising, low, p->a); break;
    case 1: rgb = (float4)(falling, p->v, low, p->a); break;
    case 2: rgb = (float4)(low, p->v, rising, p->a); break;
    case 3: rgb = (float4)(low, falling, p->v, p->a); break;
    case 4: rgb = (float4)(rising, low, p->v, p->a); break;
    default: rgb = (float4)(p->v, low, falling, p->a); break;
    }
    dst[y * width + x] = rgb;
}

// Twice as wide and high, each pixel four times.
kernel void enlarge(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= 2 * width || y >= 2 * height) {
        return;
    }
    dst[y * 2 * width + x] = src[(y / 2) * width + x / 2];
}

// Over all pixels as one line.
kernel void smooth_line(global const float *src, global float *dst, int width, int height) {
    int i = get_global_id(0);
    if (i >= width * height) {
        return;
    }
    int x = i % width, y = i / width;
    float sum = src[i];
    sum += src[y * width + (x > 0 ? x - 1 : x)];
    sum += src[y * width + (x < width - 1 ? x + 1 : x)];
    sum += src[(y > 0 ? y - 1 : y) * width + x];
    sum += src[(y < height - 1 ? y + 1 : y) * width + x];
    dst[i] = 0.2f * sum;
}

kernel void invert_line(global const float *src, global float *dst, int count) {
    int i = get_global_id(0);
    if (i < count) {
        dst[i] = 1.0f - src[i];
    }
}

kernel void scale_in_place(global float *data, float by, int count) {
    int i = get_global_id(0);
    if (i < count) {
        data[i] *= by;
    }
}

kernel void gamma_in_place(global float *data, float exponent, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x < width && y < height) {
        data[y * width + x] = pow(fabs(data[y * width + x]), exponent);
    }
}

// Four pixels of a row for each work-item, with vectors at places that are no multiples of four.
kernel void brighten4(global const float *src, global float *dst, float by, int count) {
    int i = get_global_id(0);
    if (4 * i < count) {
        vstore4(vload4(i, src) * by, i, dst);
    }
}

kernel void blur4(global const float *src, global float *dst, int width, int height) {
    int x = 4 * (int)get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    global const float *row = src + y * width;
    float4 own = vload4(0, row + x);
    float before = x > 0 ? row[x - 1] : own.x;
    float after = x + 4 < width ? row[x + 4] : own.w;
    float4 left = (float4)(before, own.xyz), right = (float4)(own.yzw, after);
    vstore4(0.25f * (left + 2.0f * own + right), 0, dst + y * width + x);
}

kernel void blur4_inside(global const float *src, global float *dst, int width, int height) {
    int x = 4 * (int)get_global_id(0) + 4, y = get_global_id(1);
    if (x + 4 >= width || y >= height) {
        return;
    }
    global const float *p = src + y * width + x;
    float4 sum = vload4(0, p - 1) + vload4(0, p) + vload4(0, p + 1);
    vstore4(sum / 3.0f, 0, dst + y * width + x);
}

// Rows become columns.
kernel void turn(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= height || y >= width) {
        return;
    }
    dst[y * height + x] = src[(height - 1 - x) * width + y];
}

// With 64-bit indices.
kernel void emboss(global const float *src, global float *dst, const uint width, const uint height) {
    const size_t x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    const size_t i = y * (size_t)width + x;
    if (x > 0 && y > 0 && x < width - 1 && y < height - 1) {
        dst[i] = src[i + width + 1] - src[i - width - 1] + 0.5f;
    } else {
        dst[i] = 0.5f;
    }
}

// Part of a larger image.
kernel void crop(global const float *src, global float *dst, int left, int top, int pitch, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    dst[y * width + x] = src[(y + top) * pitch + x + left];
}

// Local contrast, in planes of red, green and blue.
kernel void to_planes(global const uchar4 *src, global float *planes, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    int i = y * width + x, plane = width * height;
    float4 p = convert_float4(src[i]) / 255.0f;
    planes[i] = p.x;
    planes[i + plane] = p.y;
    planes[i + 2 * plane] = p.z;
}

kernel void contrast_of_planes(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1), c = get_global_id(2);
    if (x >= width || y >= height || c >= 3) {
        return;
    }
    global const float *plane = src + c * width * height;
    float mean = 0.0f;
    for (int k = -1; k <= 1; k++) {
        mean += plane[clamp(y + k, 0, height - 1) * width + x];
    }
    float own = plane[y * width + x];
    dst[(c * height + y) * width + x] = own + 0.5f * (own - mean / 3.0f);
}

// Mean along a row, by a pointer that moves.
kernel void slide(global const float *src, global float *dst, int radius, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    int first = max(x - radius, 0), last = min(x + radius, width - 1);
    global const float *p = src + y * width + first;
    float sum = 0.0f;
    for (int i = first; i <= last; i++) {
        sum += *p++;
    }
    dst[y * width + x] = sum / (last - first + 1);
}

// Nine pixels from a tile that a work-group shares.
kernel void blur_tile(global const float *src, global float *dst, int width, int height) {
    local float tile[10 * 18];
    int x = get_global_id(0), y = get_global_id(1), lx = get_local_id(0), ly = get_local_id(1);
    int left = 16 * (int)get_group_id(0) - 1, top = 8 * (int)get_group_id(1) - 1;
    for (int i = ly * 16 + lx; i < 180; i += 128) {
        int column = clamp(left + i % 18, 0, width - 1), row = clamp(top + i / 18, 0, height - 1);
        tile[i] = src[row * width + column];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (x < width && y < height) {
        float sum = 0.0f;
        for (int j = 0; j < 3; j++) {
            for (int i = 0; i < 3; i++) {
                sum += tile[(ly + j) * 18 + lx + i];
            }
        }
        dst[y * width + x] = sum / 9.0f;
    }
}

kernel void to_halves(global const float *src, global half *dst, float gain, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x < width && y < height) {
        vstore_half(src[y * width + x] * gain, y * width + x, dst);
    }
}

kernel void blur_halves(global const half *src, global half *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    float sum = 0.0f;
    for (int d = -1; d <= 1; d++) {
        sum += vload_half(clamp(y + d, 0, height - 1) * width + x, src);
    }
    vstore_half(sum / 3.0f, y * width + x, dst);
}

// Four bytes for each pixel, one by one.
kernel void tint(global const uchar *src, global uchar *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    int i = 4 * (y * width + x);
    dst[i] = src[i] / 2;
    dst[i + 1] = src[i + 1];
    dst[i + 2] = add_sat(src[i + 2], (uchar)30);
    dst[i + 3] = 255;
}

// The second of four bytes, of neighbouring pixels.
kernel void edges_of_green(global const uchar *src, global uchar *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    int left = max(x - 1, 0), right = min(x + 1, width - 1);
    dst[y * width + x] = abs_diff(src[4 * (y * width + left) + 1], src[4 * (y * width + right) + 1]);
}

// Sum of a pixel's neighbour and of one in a second image, which follows the first in the same buffer.
kernel void add_below(global const float *src, global float *dst, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= width || y >= height) {
        return;
    }
    dst[y * width + x] = src[max(y - 1, 0) * width + x] + src[(y + height) * width + x];
}
