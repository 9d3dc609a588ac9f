// Sobel's operator: the gradient of the luma, as the strength of an edge from 0 to 1.

float luma(global const float4 *in, int x, int y) {
    int width = get_global_size(0), height = get_global_size(1);
    float4 pixel = in[clamp(y, 0, height - 1) * width + clamp(x, 0, width - 1)];
    return dot(pixel.xyz, (float3)(0.299f, 0.587f, 0.114f));
}

// Gradients up to `low` count for nothing, those from `high` on in full.
kernel void sobel(global const float4 *in, float low, float high, global float *edges) {
    int x = get_global_id(0), y = get_global_id(1);
    float nw = luma(in, x - 1, y - 1), n = luma(in, x, y - 1), ne = luma(in, x + 1, y - 1);
    float w = luma(in, x - 1, y), e = luma(in, x + 1, y);
    float sw = luma(in, x - 1, y + 1), s = luma(in, x, y + 1), se = luma(in, x + 1, y + 1);
    float gx = (ne + 2.0f * e + se) - (nw + 2.0f * w + sw);
    float gy = (sw + 2.0f * s + se) - (nw + 2.0f * n + ne);
    edges[y * get_global_size(0) + x] = smoothstep(low, high, length((float2)(gx, gy)));
}
