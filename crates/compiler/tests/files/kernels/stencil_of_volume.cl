//@ check stencil_of_volume(in[1000000], out[1000000], 50, 50, 100, 0.4, 0.1) over 50x50
//@ check stencil_of_volume(in[1000000], out[1000000], 50, 50, 101, 0.4, 0.1) over 50x50

// Seven points of a volume: each work-item marches along the third dimension and keeps three planes in registers.
kernel void stencil_of_volume(global const float *in, global float *out, int nx, int ny, int nz, float c0, float c1) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x < 1 || y < 1 || x >= nx - 1 || y >= ny - 1)
        return;
    int plane = nx * ny, at = y * nx + x;
    float below = in[at], here = in[at + plane];
    for (int z = 1; z < nz - 1; z++) {
        at += plane;
        float above = in[at + plane];
        out[at] = c1 * (below + above + in[at - 1] + in[at + 1] + in[at - nx] + in[at + nx]) + c0 * here;
        below = here;
        here = above;
    }
}
