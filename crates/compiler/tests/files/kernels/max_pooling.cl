//@ check max_pooling(in[401408], out[100352], 56, 56) over 28x28x32
//@ check max_pooling(in[401408], out[100352], 56, 56) over 28x28x33

// Maximum of each two by two elements, in the planes of a tensor.
kernel void max_pooling(global const float *in, global float *out, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1), plane = get_global_id(2);
    global const float *from = in + (plane * height + 2 * y) * width + 2 * x;
    float most = fmax(fmax(from[0], from[1]), fmax(from[width], from[width + 1]));
    out[(plane * (height / 2) + y) * (width / 2) + x] = most;
}
