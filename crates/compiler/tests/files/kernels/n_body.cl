//@ check n_body(positions[16384], velocities[16384], next[16384], local:1024, 1024, 0.01) over 1024 in 64
//@ check n_body(positions[16384], velocities[16384], next[16384], local:1008, 1024, 0.01) over 1024 in 64

// Gravity between all bodies, which pass through local memory in tiles.
kernel void n_body(global const float4 *positions, global float4 *velocities, global float4 *next,
                   local float4 *tile, int count, float step) {
    int i = get_global_id(0), item = get_local_id(0), size = get_local_size(0);
    float4 position = positions[i], force = (float4)(0.0f);
    for (int start = 0; start < count; start += size) {
        tile[item] = positions[start + item];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int j = 0; j < size; j++) {
            float4 way = tile[j] - position;
            way.w = 0.0f;
            float inverse = rsqrt(dot(way, way) + 0.01f);
            force += way * (tile[j].w * inverse * inverse * inverse);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    velocities[i] += force * step;
    next[i] = position + velocities[i] * step;
}
