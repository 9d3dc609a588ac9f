//@ check transpose(in[260000], out[260000], 325, 200) over 336x208 in 16x16
//@ check transpose(in[260000], out[130000], 325, 200) over 336x208 in 16x16

// Transposed matrix, element by element.
kernel void transpose(global const float *in, global float *out, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x < width && y < height)
        out[x * height + y] = in[y * width + x];
}
