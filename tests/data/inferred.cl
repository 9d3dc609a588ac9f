typedef struct {
    float low, high;
} Interval;

kernel void inferred(float3 origin,
                     int count,
                     Interval interval,
                     local float *scratch,
                     constant float *table,
                     global const float *input,
                     global Interval *output,
                     read_only image2d_t source,
                     write_only image2d_array_t target,
                     sampler_t sampler)
{
    size_t i = get_global_id(0);
    scratch[i & 1] = ((global const float4 *)input)[i].y + table[i] + interval.low;
    output->low = scratch[0] + origin.x;
    write_imagef(target, (int4)(count), read_imagef(source, sampler, (float2)(0)));
}
