// Kernels that are fused although they are not optimised: with loops, helpers and arrays.

static float step(float value, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; ++i)
        sum += value * i;
    return sum;
}
kernel void twice(global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    dst[i] = step(src[i], 3) + src[i];
}
kernel void square(global const float *src, global float *dst) {
    size_t i = get_global_id(0);
    float value[2] = {src[i], 1.0f};
    dst[i] = value[0] * value[0] + value[1];
}
