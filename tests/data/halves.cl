// Kernels that keep numbers of half precision in memory, as scalars and as vectors.

kernel void pack(global const float *src, global half *dst) {
    size_t i = get_global_id(0);
    vstore_half_rtz(src[i], i, dst);
}

kernel void unpack(global const half *src, global float *dst) {
    size_t i = get_global_id(0);
    dst[i] = vload_half(i, src);
}

kernel void pack_fours(global const float4 *src, global half *dst) {
    size_t i = get_global_id(0);
    vstorea_half4_rte(src[i], i, dst);
}

kernel void unpack_fours(global const half *src, global float4 *dst) {
    size_t i = get_global_id(0);
    dst[i] = vload_half4(i, src);
}

kernel void pack_threes(global const float *src, global half *dst) {
    size_t i = get_global_id(0);
    vstorea_half3((float3)(src[i]), i, dst);
}

kernel void unpack_threes(global const half *src, global float *dst) {
    size_t i = get_global_id(0);
    dst[i] = vloada_half3(i, src).z;
}

kernel void bits(global const ushort *src, global ushort *dst) {
    size_t i = get_global_id(0);
    dst[i] = src[i];
}

kernel void next(global const half *src, global float *dst) {
    size_t i = get_global_id(0);
    dst[i] = vload_half(i + 1, src);
}
