// A layer of a neural network around a product of matrices.

// Sets weight[i] to small integers, so that products are exact.
kernel void spread(global float *weights, uint modulus) {
    uint i = get_global_id(0);
    weights[i] = (float)(i % modulus) - (float)(modulus / 2);
}

// Adds the bias of each column, and replaces negative sums by zero.
kernel void activate(global float *sums, global const float *bias, uint columns) {
    uint i = get_global_id(0);
    sums[i] = fmax(sums[i] + bias[i % columns], 0.0f);
}
