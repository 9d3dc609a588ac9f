//@ fuse over 1024x512 dead exposed,mapped
//@   expose(frame[8388608], exposed[8388608], 1.5)
//@   map(exposed[8388608], mapped[8388608])
//@   quantize(mapped[8388608], bytes[2097152])
//@ count 2 internalized, private
//@ check quantize(mapped[8388608], bytes[2097152]) over 1024x512
//@ accesses quantize(mapped[8388608], bytes[2097152]) over 1024x512

// Steps of a film look, each of which reads the pixels of the step before.
kernel void expose(global const float4 *in, global float4 *out, float stops) {
    size_t at = get_global_id(1) * get_global_size(0) + get_global_id(0);
    out[at] = in[at] * exp2(stops);
}

kernel void map(global const float4 *in, global float4 *out) {
    size_t at = get_global_id(1) * get_global_size(0) + get_global_id(0);
    float4 x = in[at];
    out[at] = x * (2.51f * x + 0.03f) / (x * (2.43f * x + 0.59f) + 0.14f);
}

kernel void quantize(global const float4 *in, global uchar4 *out) {
    size_t at = get_global_id(1) * get_global_size(0) + get_global_id(0);
    out[at] = convert_uchar4_sat(in[at] * 255.0f);
}
