// Kernels of a network over boards, with tensors in the order of samples, channels, places.

kernel void scale_bias_mask(
    global const float *input, global float *output, global const float *scale, global const float *bias,
    global const float *mask, int batch, int channels, int places) {
    const int xy = get_global_id(0);
    const int c = get_global_id(1);
    const int n = get_global_id(2);
    if (xy < places && c < channels && n < batch) {
        int i = (n * channels + c) * places + xy;
        output[i] = (input[i] * scale[c] + bias[c]) * mask[n * places + xy];
    }
}

kernel void scale_bias_mask_relu(
    global const float *input, global float *output, global const float *scale, global const float *bias,
    global const float *mask, int batch, int channels, int places) {
    const int xy = get_global_id(0);
    const int c = get_global_id(1);
    const int n = get_global_id(2);
    if (xy < places && c < channels && n < batch) {
        int i = (n * channels + c) * places + xy;
        output[i] = fmax(input[i] * scale[c] + bias[c], 0.0f) * mask[n * places + xy];
    }
}

kernel void add_point_wise(global float *accumulator, global const float *value, int size) {
    const int s = get_global_id(0);
    if (s < size) {
        accumulator[s] += value[s];
    }
}

// A plane of places for each pair of sample and channel.
kernel void add_channel_biases(global float *accumulator, global const float *biases, int planes, int places) {
    const int xy = get_global_id(0);
    const int nc = get_global_id(1);
    if (xy < places && nc < planes) {
        accumulator[nc * places + xy] += biases[nc];
    }
}

kernel void mish(global const float *input, global float *output, int size) {
    const int s = get_global_id(0);
    if (s < size) {
        float x = input[s];
        output[s] = x * tanh(x > 20.0f ? x : log(1.0f + exp(x)));
    }
}
