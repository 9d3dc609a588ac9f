// Between the 8-bit pixels of files and the float4 pixels, 0 to 1 as the file encodes them, that
// the other programs compute with. Every kernel here is launched with one work-item a pixel.

size_t here(void) {
    return get_global_id(1) * get_global_size(0) + get_global_id(0);
}

kernel void unpack(global const uchar4 *file, global float4 *pixels) {
    pixels[here()] = convert_float4(file[here()]) / 255.0f;
}

// Draws the edges onto the picture in ink: darker, never black.
kernel void overlay(global const float4 *pixels, global const float *edges, float ink,
                    global uchar4 *file) {
    float4 pixel = pixels[here()];
    pixel.xyz *= 1.0f - ink * edges[here()];
    file[here()] = convert_uchar4_sat_rte(pixel * 255.0f);
}

// The edges alone, as ink on paper.
kernel void sketch(global const float *edges, global uchar4 *file) {
    float paper = 1.0f - edges[here()];
    file[here()] = convert_uchar4_sat_rte((float4)(paper, paper, paper, 1.0f) * 255.0f);
}
