// Reads, writes and sizes of images of all kinds that OpenCL C 1.2 has. The kernels are only built.

constant sampler_t NEAREST = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;

__attribute__((noinline)) static float4 around(read_only image2d_t image, sampler_t sampler, int2 at) {
    float4 sum = (float4)(0.0f);
    for (int dx = -1; dx <= 1; ++dx)
        sum += read_imagef(image, sampler, at + (int2)(dx, 0));
    return sum;
}

kernel void planes(read_only image2d_t in, write_only image2d_t out, sampler_t sampler) {
    const sampler_t linear = CLK_NORMALIZED_COORDS_TRUE | CLK_ADDRESS_MIRRORED_REPEAT | CLK_FILTER_LINEAR;
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    if (at.x >= get_image_width(in) || at.y >= get_image_height(in))
        return;
    float2 scaled = convert_float2(at) / convert_float2(get_image_dim(in));
    float4 sum = around(in, NEAREST, at) + around(in, sampler, at) + read_imagef(in, linear, scaled);
    write_imagef(out, at, sum + read_imagef(in, at));
}

kernel void integers(read_only image2d_t in, write_only image2d_t out, write_only image2d_t other) {
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    int4 value = read_imagei(in, NEAREST, at) + read_imagei(in, at);
    write_imagei(out, at, value);
    write_imageui(other, at, read_imageui(in, NEAREST, at));
}

kernel void lines(read_only image1d_t line, read_only image1d_array_t lines, read_only image1d_buffer_t values,
                  write_only image1d_t out) {
    int at = get_global_id(0);
    float4 sum = read_imagef(line, NEAREST, at) + read_imagef(line, NEAREST, at + 0.5f);
    sum += read_imagef(lines, NEAREST, (int2)(at, 1)) + read_imagef(values, at);
    write_imagef(out, at, sum * (float)(get_image_width(line) + get_image_array_size(lines)));
}

kernel void spaces(read_only image3d_t space, read_only image2d_array_t planes, global uint *sizes,
                   write_only image2d_array_t out) {
    int4 at = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);
    write_imagef(out, at, read_imagef(space, NEAREST, at) + read_imagef(planes, NEAREST, convert_float4(at)));
    int4 size = get_image_dim(space);
    sizes[0] = size.x + size.y * size.z + get_image_depth(space);
    sizes[1] = get_image_array_size(planes) + get_image_channel_data_type(space);
    sizes[2] = get_image_channel_order(planes) == CLK_RGBA;
}
