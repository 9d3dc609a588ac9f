// Kernels over images, for fusion.

constant sampler_t NEAREST = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_NEAREST;
constant sampler_t LINEAR = CLK_NORMALIZED_COORDS_TRUE | CLK_ADDRESS_CLAMP_TO_EDGE | CLK_FILTER_LINEAR;

#define HERE (int2)(get_global_id(0), get_global_id(1))

kernel void tone(read_only image2d_t photograph, write_only image2d_t toned, float gain) {
    int2 at = HERE;
    write_imagef(toned, at, read_imagef(photograph, at) * gain);
}

kernel void keyed(read_only image2d_t src, write_only image2d_t dst, float key) {
    int2 at = HERE;
    if (at.x >= get_image_width(src) || at.y >= get_image_height(src))
        return;
    float4 color = read_imagef(src, NEAREST, at);
    color.w = color.x < key ? 0.0f : 1.0f;
    write_imagef(dst, at, color);
}

kernel void overlay(read_only image2d_t above, read_only image2d_t below, write_only image2d_t mixed) {
    int2 at = HERE;
    float4 upper = read_imagef(above, at);
    write_imagef(mixed, at, upper.w > 0.5f ? upper : read_imagef(below, at));
}

kernel void with_sampler(read_only image2d_t src, sampler_t sampler, write_only image2d_t dst) {
    write_imagef(dst, HERE, -read_imagef(src, sampler, HERE));
}

kernel void scaled(read_only image2d_t src, write_only image2d_t dst) {
    float2 place = (convert_float2(HERE) + 0.5f) / convert_float2(get_image_dim(dst));
    write_imagef(dst, HERE, read_imagef(src, LINEAR, place));
}

kernel void smooth(read_only image2d_t sharp, write_only image2d_t smoothed) {
    float4 sum = (float4)(0.0f);
    for (int y = -1; y <= 1; ++y)
        for (int x = -1; x <= 1; ++x)
            sum += read_imagef(sharp, NEAREST, HERE + (int2)(x, y));
    write_imagef(smoothed, HERE, sum);
}

kernel void turned(read_only image2d_t src, write_only image2d_t dst) {
    write_imagef(dst, HERE, read_imagef(src, HERE.yx));
}

kernel void indexed(read_only image2d_t src, write_only image2d_t dst, global const int *indices) {
    int x = indices[get_global_id(0)];
    write_imagef(dst, HERE, read_imagef(src, (int2)(x, get_global_id(1))));
}

kernel void masked(read_only image2d_t src, write_only image2d_t dst, global const int *mask) {
    int2 at = HERE;
    if (mask[at.y * get_image_width(dst) + at.x])
        write_imagef(dst, at, read_imagef(src, at));
}

kernel void by_order(read_only image2d_t src, write_only image2d_t dst) {
    float4 color = read_imagef(src, HERE);
    write_imagef(dst, HERE, get_image_channel_order(src) == CLK_R ? -color : color);
}

kernel void accumulate(read_write image2d_t sums, float step) {
    int2 at = HERE;
    write_imagef(sums, at, read_imagef(sums, at) + step);
}

__attribute__((noinline)) static float4 dimmed(read_only image2d_t image, int2 at) {
    return read_imagef(image, at) * 0.5f;
}

kernel void by_helper(read_only image2d_t src, write_only image2d_t dst) {
    write_imagef(dst, HERE, dimmed(src, HERE));
}

kernel void count(read_only image2d_t numbers, write_only image2d_t counted, uint step) {
    write_imageui(counted, HERE, read_imageui(numbers, HERE) + step);
}

kernel void row(read_only image1d_t src, write_only image1d_t dst) {
    int x = get_global_id(0);
    write_imagef(dst, x, read_imagef(src, x) + get_image_width(src));
}

kernel void volume(read_only image3d_t src, write_only image2d_array_t dst) {
    int4 at = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);
    write_imagef(dst, at, read_imagef(src, at));
}

kernel void layers(read_only image2d_array_t src, write_only image2d_array_t dst) {
    int4 at = (int4)(get_global_id(0), get_global_id(1), get_global_id(2), 0);
    write_imagef(dst, at, read_imagef(src, at) + get_image_array_size(src));
}

kernel void filled(write_only image2d_t dst, float value) {
    write_imagef(dst, HERE, (float4)(value));
}

kernel void values(read_only image1d_buffer_t src, global float *dst) {
    dst[get_global_id(0)] = read_imagef(src, (int)get_global_id(0)).x;
}

kernel void doubled(global float *both) {
    both[get_global_id(0)] *= 2.0f;
}
