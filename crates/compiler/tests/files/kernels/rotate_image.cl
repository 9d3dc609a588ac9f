//@ check rotate_image(in[640x480], out[640x480], sampler:clamp+linear, 0.5, 0.5) over 640x480
//@ check rotate_image(in[640x480], out[640x480], sampler:none+linear, 0.5, 0.5) over 640x480
//@ check rotate_image(in[640x480], out[640x480], sampler:clamp+linear, 0.5, 0.5) over 656x480

// Rotated image, with numbers between pixels as coordinates, and a sampler that is an argument.
kernel void rotate_image(read_only image2d_t in, write_only image2d_t out, sampler_t between, float sine, float cosine) {
    int x = get_global_id(0), y = get_global_id(1);
    float2 centre = (float2)(get_image_width(in), get_image_height(in)) * 0.5f;
    float2 from = (float2)(x, y) - centre;
    float2 at = (float2)(cosine * from.x - sine * from.y, sine * from.x + cosine * from.y) + centre;
    write_imagef(out, (int2)(x, y), read_imagef(in, between, at));
}
