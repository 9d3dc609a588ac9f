// Accesses to images of all kinds, for the interpreter of kernels, and for fuzzing.

constant sampler_t NEAREST = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;
constant sampler_t PLAIN = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_NONE | CLK_FILTER_NEAREST;
constant sampler_t SMOOTH = CLK_NORMALIZED_COORDS_TRUE | CLK_ADDRESS_REPEAT | CLK_FILTER_LINEAR;

__attribute__((noinline)) static float4 around(read_only image2d_t image, sampler_t sampler, int2 at, int radius) {
    float4 sum = (float4)(0.0f);
    for (int dx = -radius; dx <= radius; ++dx)
        sum += read_imagef(image, sampler, at + (int2)(dx, 0));
    return sum;
}

kernel void blur(read_only image2d_t in, write_only image2d_t out, sampler_t sampler, int radius) {
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    if (at.x >= get_image_width(out) || at.y >= get_image_height(out))
        return;
    float2 scaled = convert_float2(at) / convert_float2(get_image_dim(in));
    float4 sum = around(in, NEAREST, at, radius) + around(in, sampler, at, 1) + read_imagef(in, SMOOTH, scaled);
    write_imagef(out, at, sum);
}

kernel void shift(read_only image2d_t in, write_only image2d_t out, int dx, int dy) {
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    write_imageui(out, at, read_imageui(in, at + (int2)(dx, dy)) + read_imageui(in, PLAIN, at));
}

kernel void rows(read_only image1d_t row, read_only image1d_array_t rows, read_only image1d_buffer_t values,
                 write_only image1d_buffer_t out, sampler_t sampler) {
    int x = get_global_id(0), y = get_global_id(1);
    float4 sum = read_imagef(row, x) + read_imagef(rows, (int2)(x, y)) + read_imagef(row, sampler, x + 0.5f);
    int width = get_image_width(values);
    for (int at = x; at < width; at += 16)
        write_imagef(out, at, sum + read_imagef(values, at));
    write_imagef(out, x, read_imagef(rows, NEAREST, (int2)(x, y + 1)));
}

kernel void volumes(read_only image3d_t space, read_only image2d_array_t layers, write_only image2d_array_t out,
                    global uint *sizes) {
    int4 at = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);
    uint4 value = read_imageui(space, at) + read_imageui(layers, PLAIN, at);
    at.z = clamp(at.z, 0, (int)get_image_array_size(out) - 1);
    write_imageui(out, at, value);
    if (at.x == 0)
        sizes[get_image_depth(space) - 1] = get_image_array_size(layers);
}

kernel void gather(read_only image2d_t places, read_only image1d_t in, global int *indexes, global int *out, int n) {
    int x = get_global_id(0);
    int2 place = read_imagei(places, (int2)(x & 15, indexes[x])).xy;
    if (place.x >= 0 && place.x < n)
        out[place.x] = read_imagei(in, place.y / n).w;
}

kernel void exchange(read_write image2d_t both, read_write image1d_t row, int n) {
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    float4 here = read_imagef(both, at.yx);
    if (at.x < n && at.y < n)
        write_imagef(both, at, here + read_imagef(row, at.x));
    write_imagef(row, at.y, here);
}
