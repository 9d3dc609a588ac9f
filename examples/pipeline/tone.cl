// Filmic tone mapping with automatic exposure: how bright the picture is, the exposure that follows
// from that, and the curve.

// Files encode light with an exponent near 2.2. A square is near enough to that, and costs little.
float3 to_light(float3 encoded) {
    return encoded * encoded;
}

float3 from_light(float3 light) {
    return sqrt(light);
}

float luminance(float3 light) {
    return dot(light, (float3)(0.2126f, 0.7152f, 0.0722f));
}

// Sums log2 of the luminance: one sum a work-group. The size of a work-group is a power of two.
kernel void measure(global const float4 *pixels, uint count, local float *scratch,
                    global float *sums) {
    float sum = 0.0f;
    for (size_t i = get_global_id(0); i < count; i += get_global_size(0))
        sum += log2(luminance(to_light(pixels[i].xyz)) + 1e-3f);
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

// The exposure that brings the picture's mean luminance to `grey`, within one stop. One work-item.
kernel void expose(global const float *sums, uint groups, uint count, float grey,
                   global float *exposure) {
    float sum = 0.0f;
    for (uint i = 0; i < groups; ++i)
        sum += sums[i];
    *exposure = clamp(grey / exp2(sum / count), 0.5f, 2.0f);
}

// Krzysztof Narkowicz's fit of the ACES film curve.
float3 film_curve(float3 light) {
    return (light * (2.51f * light + 0.03f)) / (light * (2.43f * light + 0.59f) + 0.14f);
}

// Exposes the picture, makes its colours stronger, and applies the curve. What was white stays white.
kernel void filmic(global const float4 *in, global const float *exposure, float saturation,
                   global float4 *out) {
    size_t i = get_global_id(1) * get_global_size(0) + get_global_id(0);
    float3 light = to_light(in[i].xyz);
    float3 vivid = max(mix((float3)(luminance(light)), light, saturation), 0.0f);
    float3 film = film_curve(vivid * *exposure) / film_curve((float3)(*exposure));
    out[i] = (float4)(from_light(clamp(film, 0.0f, 1.0f)), in[i].w);
}
