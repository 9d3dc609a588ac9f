// Images and samplers, of every kind that a launch can give.

// Turns a picture by a quarter, and mixes it with another one.
kernel void turn(read_only image2d_t from, sampler_t at, write_only image2d_t to, image2d_t other, float share) {
    int2 here = (int2)(get_global_id(0), get_global_id(1));
    int2 there = (int2)(here.y, get_image_height(from) - 1 - here.x);
    float4 pixel = read_imagef(from, at, there);
    write_imagef(to, here, mix(pixel, read_imagef(other, at, here), share));
}

// Counts the pixels of layers, planes and rows.
kernel void count(read_only image1d_t line, read_only image1d_array_t lines, read_only image2d_array_t layers,
                  read_only image3d_t volume, global uint *counts) {
    counts[0] = get_image_width(line);
    counts[1] = get_image_width(lines) * get_image_array_size(lines);
    counts[2] = get_image_width(layers) * get_image_height(layers) * get_image_array_size(layers);
    counts[3] = get_image_width(volume) * get_image_height(volume) * get_image_depth(volume);
}
