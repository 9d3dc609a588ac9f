//@ fuse over 64x128 dead sums,biased not-validated
//@   product(a[65536], weights[32768], sums[32768], 128, 64)
//@   add_bias(sums[32768], bias[256], biased[32768], 64)
//@   rectify(biased[32768], out[32768], 64)
//@ count 2 internalized, private
//@ check product(a[65536], weights[32768], sums[32768], 128, 64) over 64x128

// Layer of a neural network: product, bias and rectifier.
kernel void product(global const float *a, global const float *weights, global float *sums, int inner, int width) {
    int x = get_global_id(0), y = get_global_id(1);
    float sum = 0.0f;
    for (int k = 0; k < inner; k++)
        sum += a[y * inner + k] * weights[k * width + x];
    sums[y * width + x] = sum;
}

kernel void add_bias(global const float *sums, global const float *bias, global float *out, int width) {
    int x = get_global_id(0), y = get_global_id(1);
    out[y * width + x] = sums[y * width + x] + bias[x];
}

kernel void rectify(global const float *in, global float *out, int width) {
    int at = get_global_id(1) * width + get_global_id(0);
    out[at] = fmax(in[at], 0.0f);
}
