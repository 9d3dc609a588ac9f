// The stages of the pipeline over images instead of buffers, with the same results. The sampler `edge` repeats
// the pixels at the edge of a picture, so that no kernel has to clamp its coordinates. Files stay in buffers.
// Every kernel here but `measure` is launched with one work-item a pixel.

int2 here(void) {
    return (int2)(get_global_id(0), get_global_id(1));
}

size_t place_in_file(void) {
    return get_global_id(1) * get_global_size(0) + get_global_id(0);
}

kernel void unpack(global const uchar4 *file, write_only image2d_t pixels) {
    write_imagef(pixels, here(), convert_float4(file[place_in_file()]) / 255.0f);
}

// A bilateral filter: every pixel becomes the mean of its neighbours, weighted by how near they are and by how
// much they look like it.
kernel void denoise(read_only image2d_t in, sampler_t edge, float spatial_sigma, float range_sigma,
                    write_only image2d_t out) {
    const int radius = 2;
    float per_distance = -0.5f / (spatial_sigma * spatial_sigma);
    float per_difference = -0.5f / (range_sigma * range_sigma);
    float4 centre = read_imagef(in, edge, here());
    float4 sum = 0.0f;
    float weights = 0.0f;
    for (int dy = -radius; dy <= radius; ++dy) {
        for (int dx = -radius; dx <= radius; ++dx) {
            float4 pixel = read_imagef(in, edge, here() + (int2)(dx, dy));
            float4 difference = pixel - centre;
            float weight = native_exp((dx * dx + dy * dy) * per_distance +
                                      dot(difference, difference) * per_difference);
            sum += weight * pixel;
            weights += weight;
        }
    }
    write_imagef(out, here(), sum / weights);
}

// Row 8 of Pascal's triangle, close to a Gaussian with a standard deviation of 1.4 pixels.
constant float weights[9] = {
    1 / 256.0f,  8 / 256.0f,  28 / 256.0f, 56 / 256.0f, 70 / 256.0f,
    56 / 256.0f, 28 / 256.0f, 8 / 256.0f,  1 / 256.0f,
};

// One pass of a separable blur: along the rows if `step` is (1, 0), along the columns if it is (0, 1).
kernel void blur(read_only image2d_t in, sampler_t edge, int2 step, write_only image2d_t out) {
    float4 sum = 0.0f;
    for (int d = -4; d <= 4; ++d)
        sum += weights[d + 4] * read_imagef(in, edge, here() + d * step);
    write_imagef(out, here(), sum);
}

kernel void unsharp(read_only image2d_t in, read_only image2d_t blurred, float amount,
                    write_only image2d_t out) {
    float4 pixel = read_imagef(in, here());
    write_imagef(out, here(), clamp(pixel + amount * (pixel - read_imagef(blurred, here())), 0.0f, 1.0f));
}

float luminance(float3 light) {
    return dot(light, (float3)(0.2126f, 0.7152f, 0.0722f));
}

// Sums log2 of the luminance: one sum a work-group. The size of a work-group is a power of two.
kernel void measure(read_only image2d_t pixels, local float *scratch, global float *sums) {
    uint width = get_image_width(pixels), count = width * get_image_height(pixels);
    float sum = 0.0f;
    for (uint i = get_global_id(0); i < count; i += get_global_size(0)) {
        float3 encoded = read_imagef(pixels, (int2)(i % width, i / width)).xyz;
        sum += log2(luminance(encoded * encoded) + 1e-3f);
    }
    size_t item = get_local_id(0);
    scratch[item] = sum;
    for (size_t half_size = get_local_size(0) / 2; half_size > 0; half_size /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (item < half_size)
            scratch[item] += scratch[item + half_size];
    }
    if (item == 0)
        sums[get_group_id(0)] = scratch[0];
}

float luma(read_only image2d_t in, sampler_t edge, int dx, int dy) {
    float4 pixel = read_imagef(in, edge, here() + (int2)(dx, dy));
    return dot(pixel.xyz, (float3)(0.299f, 0.587f, 0.114f));
}

// Sobel's operator. Gradients up to `low` count for nothing, those from `high` on in full.
kernel void sobel(read_only image2d_t in, sampler_t edge, float low, float high, write_only image2d_t edges) {
    float nw = luma(in, edge, -1, -1), n = luma(in, edge, 0, -1), ne = luma(in, edge, 1, -1);
    float w = luma(in, edge, -1, 0), e = luma(in, edge, 1, 0);
    float sw = luma(in, edge, -1, 1), s = luma(in, edge, 0, 1), se = luma(in, edge, 1, 1);
    float gx = (ne + 2.0f * e + se) - (nw + 2.0f * w + sw);
    float gy = (sw + 2.0f * s + se) - (nw + 2.0f * n + ne);
    write_imagef(edges, here(), (float4)(smoothstep(low, high, length((float2)(gx, gy)))));
}

// Krzysztof Narkowicz's fit of the ACES film curve.
float3 film_curve(float3 light) {
    return (light * (2.51f * light + 0.03f)) / (light * (2.43f * light + 0.59f) + 0.14f);
}

// Exposes the picture, makes its colours stronger, and applies the curve. What was white stays white.
kernel void filmic(read_only image2d_t in, global const float *exposure, float saturation,
                   write_only image2d_t out) {
    float4 pixel = read_imagef(in, here());
    float3 light = pixel.xyz * pixel.xyz;
    float3 vivid = max(mix((float3)(luminance(light)), light, saturation), 0.0f);
    float3 film = film_curve(vivid * *exposure) / film_curve((float3)(*exposure));
    write_imagef(out, here(), (float4)(sqrt(clamp(film, 0.0f, 1.0f)), pixel.w));
}

// Draws the edges onto the picture in ink: darker, never black.
kernel void overlay(read_only image2d_t pixels, read_only image2d_t edges, float ink, global uchar4 *file) {
    float4 pixel = read_imagef(pixels, here());
    pixel.xyz *= 1.0f - ink * read_imagef(edges, here()).x;
    file[place_in_file()] = convert_uchar4_sat_rte(pixel * 255.0f);
}

// The edges alone, as ink on paper.
kernel void sketch(read_only image2d_t edges, global uchar4 *file) {
    float paper = 1.0f - read_imagef(edges, here()).x;
    file[place_in_file()] = convert_uchar4_sat_rte((float4)(paper, paper, paper, 1.0f) * 255.0f);
}
