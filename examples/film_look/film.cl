// Steps of a film look. Each kernel is launched with one work-item a pixel. Between `unsharp` and `dither`, a picture
// is three planes of floats: red, green and blue, 0 to 1 as files encode them.

size_t here(void) {
    return get_global_id(1) * get_global_size(0) + get_global_id(0);
}

// Sharpened sample, of an 8-bit sample and the sum of its four neighbours.
float sharpened(int sample, int neighbours, float amount) {
    float difference = 4 * sample - neighbours;
    return (sample + 0.25f * amount * difference) * (1 / 255.0f);
}

// Sharpens the 8-bit picture of a file, which has a margin of one pixel on each side: adds the difference to the mean
// of the four neighbours.
kernel void unsharp(global const uint *file, float amount, global float *r, global float *g, global float *b) {
    size_t i = here(), stride = get_global_size(0) + 2;
    size_t at = (get_global_id(1) + 1) * stride + get_global_id(0) + 1;
    uint pixel = file[at], left = file[at - 1], right = file[at + 1];
    uint above = file[at - stride], below = file[at + stride];
    int reds = (left & 255) + (right & 255) + (above & 255) + (below & 255);
    int greens = (left >> 8 & 255) + (right >> 8 & 255) + (above >> 8 & 255) + (below >> 8 & 255);
    int blues = (left >> 16 & 255) + (right >> 16 & 255) + (above >> 16 & 255) + (below >> 16 & 255);
    r[i] = sharpened(pixel & 255, reds, amount);
    g[i] = sharpened(pixel >> 8 & 255, greens, amount);
    b[i] = sharpened(pixel >> 16 & 255, blues, amount);
}

// Multiplies each colour by a gain: exposure and white balance.
kernel void expose(global const float *r, global const float *g, global const float *b, float4 gain,
                   global float *r_out, global float *g_out, global float *b_out) {
    size_t i = here();
    r_out[i] = gain.x * r[i];
    g_out[i] = gain.y * g[i];
    b_out[i] = gain.z * b[i];
}

// Multiplies the colours by a matrix, whose rows are given.
kernel void colour_matrix(global const float *r, global const float *g, global const float *b, float4 to_r,
                          float4 to_g, float4 to_b, global float *r_out, global float *g_out, global float *b_out) {
    size_t i = here();
    float red = r[i], green = g[i], blue = b[i];
    r_out[i] = to_r.x * red + to_r.y * green + to_r.z * blue;
    g_out[i] = to_g.x * red + to_g.y * green + to_g.z * blue;
    b_out[i] = to_b.x * red + to_b.y * green + to_b.z * blue;
}

// Curve in the shape of an S: dark tones become darker, and bright ones brighter.
float curve(float tone, float contrast) {
    return tone + contrast * tone * (1.0f - tone) * (2.0f * tone - 1.0f);
}

kernel void tone_curve(global const float *r, global const float *g, global const float *b, float contrast,
                       global float *r_out, global float *g_out, global float *b_out) {
    size_t i = here();
    r_out[i] = curve(r[i], contrast);
    g_out[i] = curve(g[i], contrast);
    b_out[i] = curve(b[i], contrast);
}

// Gives shadows one colour, and highlights another one.
kernel void split_tone(global const float *r, global const float *g, global const float *b, float4 shadows,
                       float4 highlights, global float *r_out, global float *g_out, global float *b_out) {
    size_t i = here();
    float red = r[i], green = g[i], blue = b[i];
    float bright = 0.299f * red + 0.587f * green + 0.114f * blue, dark = 1.0f - bright;
    r_out[i] = red + dark * shadows.x + bright * highlights.x;
    g_out[i] = green + dark * shadows.y + bright * highlights.y;
    b_out[i] = blue + dark * shadows.z + bright * highlights.z;
}

// Darkens the picture towards its corners, as a lens does. `scale` is 2 over the width and the height.
kernel void vignette(global const float *r, global const float *g, global const float *b, float2 scale,
                     float strength, global float *r_out, global float *g_out, global float *b_out) {
    size_t i = here();
    int column = get_global_id(0), row = get_global_id(1);
    float x = column * scale.x - 1.0f, y = row * scale.y - 1.0f;
    float light = 1.0f - strength * (x * x + y * y);
    r_out[i] = light * r[i];
    g_out[i] = light * g[i];
    b_out[i] = light * b[i];
}

// Adds grain, most of it to the middle tones.
kernel void grain(global const float *r, global const float *g, global const float *b, float strength, uint seed,
                  global float *r_out, global float *g_out, global float *b_out) {
    size_t i = here();
    uint bits = ((uint)i + seed) * 0x7feb352du;
    bits = (bits ^ (bits >> 15)) * 0x846ca68bu;
    float noise = strength * ((int)(bits >> 16) * (1 / 65535.0f) - 0.5f);
    r_out[i] = r[i] + noise * r[i] * (1.0f - r[i]);
    g_out[i] = g[i] + noise * g[i] * (1.0f - g[i]);
    b_out[i] = b[i] + noise * b[i] * (1.0f - b[i]);
}

// Converts to 8-bit pixels. Instead of rounding, it adds a threshold that differs from pixel to pixel and cuts off, so
// that smooth areas have no bands.
kernel void dither(global const float *r, global const float *g, global const float *b, global uint *file) {
    size_t i = here();
    int x = get_global_id(0), y = get_global_id(1), z = x ^ y;
    // Bayer's matrix of four by four thresholds: the bits of `z` and `y`, interleaved from the lowest on.
    int order = (z & 1) << 3 | (y & 1) << 2 | (z & 2) | (y & 2) >> 1;
    float threshold = (order + 0.5f) * (1 / 16.0f);
    int red = clamp((int)(255.0f * r[i] + threshold), 0, 255);
    int green = clamp((int)(255.0f * g[i] + threshold), 0, 255);
    int blue = clamp((int)(255.0f * b[i] + threshold), 0, 255);
    file[i] = red | green << 8 | blue << 16 | 255 << 24;
}
