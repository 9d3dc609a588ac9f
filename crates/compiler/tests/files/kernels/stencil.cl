//@ check stencil(in[160000], out[160000], 200, 200) over 208x200 in 16x8
//@ check stencil(in[160000], out[160000], 200, 201) over 208x208 in 16x8

// Heat equation: five points of a plane, with a guard for its border.
kernel void stencil(global const float *in, global float *out, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x == 0 || y == 0 || x >= width - 1 || y >= height - 1)
        return;
    int at = y * width + x;
    out[at] = 0.2f * (in[at] + in[at - 1] + in[at + 1] + in[at - width] + in[at + width]);
}
