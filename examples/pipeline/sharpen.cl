// Unsharp masking: adds what a Gaussian blur takes away. The blur is separable, so that two passes
// of nine samples do the work of one with eighty-one.

#define RADIUS 4

// Row 8 of Pascal's triangle, close to a Gaussian with a standard deviation of 1.4 pixels.
constant float weights[2 * RADIUS + 1] = {
    1 / 256.0f,  8 / 256.0f,  28 / 256.0f, 56 / 256.0f, 70 / 256.0f,
    56 / 256.0f, 28 / 256.0f, 8 / 256.0f,  1 / 256.0f,
};

kernel void blur_rows(global const float4 *in, global float4 *out) {
    int x = get_global_id(0), width = get_global_size(0);
    size_t row = get_global_id(1) * width;
    float4 sum = 0.0f;
    for (int dx = -RADIUS; dx <= RADIUS; ++dx)
        sum += weights[dx + RADIUS] * in[row + clamp(x + dx, 0, width - 1)];
    out[row + x] = sum;
}

kernel void blur_columns(global const float4 *in, global float4 *out) {
    int x = get_global_id(0), y = get_global_id(1);
    int width = get_global_size(0), height = get_global_size(1);
    float4 sum = 0.0f;
    for (int dy = -RADIUS; dy <= RADIUS; ++dy)
        sum += weights[dy + RADIUS] * in[clamp(y + dy, 0, height - 1) * width + x];
    out[y * width + x] = sum;
}

kernel void unsharp(global const float4 *in, global const float4 *blurred, float amount,
                    global float4 *out) {
    size_t i = get_global_id(1) * get_global_size(0) + get_global_id(0);
    out[i] = clamp(in[i] + amount * (in[i] - blurred[i]), 0.0f, 1.0f);
}
