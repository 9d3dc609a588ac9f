//@ check sobel(in[640x480], out[640x480]) over 640x480
//@ check sobel(in[640x480], out[600x480]) over 640x480
//@ guard sobel(in[640x480], out[600x480]) over 640x480

constant sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;

// Edges of an image, whose borders the sampler continues.
kernel void sobel(read_only image2d_t in, write_only image2d_t out) {
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    float4 x = (float4)(0.0f), y = (float4)(0.0f);
    for (int d = -1; d <= 1; d++) {
        float weight = d == 0 ? 2.0f : 1.0f;
        x += weight * (read_imagef(in, nearest, at + (int2)(1, d)) - read_imagef(in, nearest, at + (int2)(-1, d)));
        y += weight * (read_imagef(in, nearest, at + (int2)(d, 1)) - read_imagef(in, nearest, at + (int2)(d, -1)));
    }
    write_imagef(out, at, sqrt(x * x + y * y));
}
