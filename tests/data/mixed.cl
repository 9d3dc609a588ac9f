typedef struct {
    float scale;
    int shift;
    uchar4 mask;
} Settings;

kernel void mixed(int count,
                  uint seed,
                  float4 bias,
                  Settings settings,
                  constant float *table,
                  local float *scratch,
                  global const uchar *restrict input,
                  global uint2 *output)
{
    size_t i = get_global_id(0);
    size_t l = get_local_id(0);
    scratch[l] = table[l] * settings.scale + bias.y;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i < (size_t)count)
        output[i] = (uint2)(input[i] + seed, (uint)(scratch[l ^ 1]) >> settings.shift);
}

kernel void clear(global uint2 *output)
{
    output[get_global_id(0)] = 0;
}
