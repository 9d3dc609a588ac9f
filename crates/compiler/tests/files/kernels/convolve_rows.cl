//@ check convolve_rows(in[262144], weights[68], out[262144], 256, 8) over 256x256
//@ check convolve_rows(in[262144], weights[64], out[262144], 256, 8) over 256x256

// Filter of rows with weights in constant memory. Indices outside of the row are clamped.
kernel void convolve_rows(global const float *in, constant float *weights, global float *out, int width, int radius) {
    int x = get_global_id(0), y = get_global_id(1);
    float sum = 0.0f;
    for (int d = -radius; d <= radius; d++)
        sum += weights[d + radius] * in[y * width + clamp(x + d, 0, width - 1)];
    out[y * width + x] = sum;
}
