// A bilateral filter: every pixel becomes the mean of its neighbours, weighted by how near they are
// and by how much they look like it. Grain goes, edges stay.

#define RADIUS 2

kernel void denoise(global const float4 *in, float spatial_sigma, float range_sigma,
                    global float4 *out) {
    int x = get_global_id(0), y = get_global_id(1);
    int width = get_global_size(0), height = get_global_size(1);
    float per_distance = -0.5f / (spatial_sigma * spatial_sigma);
    float per_difference = -0.5f / (range_sigma * range_sigma);
    float4 centre = in[y * width + x];
    float4 sum = 0.0f;
    float weights = 0.0f;
    for (int dy = -RADIUS; dy <= RADIUS; ++dy) {
        int row = clamp(y + dy, 0, height - 1) * width;
        for (int dx = -RADIUS; dx <= RADIUS; ++dx) {
            float4 pixel = in[row + clamp(x + dx, 0, width - 1)];
            float4 difference = pixel - centre;
            float weight = native_exp((dx * dx + dy * dy) * per_distance +
                                      dot(difference, difference) * per_difference);
            sum += weight * pixel;
            weights += weight;
        }
    }
    out[y * width + x] = sum / weights;
}
