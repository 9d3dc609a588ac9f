// A function that is not inlined and is given local memory.
static uint __attribute__((noinline)) pick(local const uint *values, uint at) { return values[at & 31] + at; }

kernel void __attribute__((reqd_work_group_size(32, 1, 1))) apart(global uint *out, global const uint *in)
{
    local uint values[32];
    size_t i = get_global_id(0), l = get_local_id(0);
    values[l] = in[i] * 3;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint sum = 0;
    for (uint step = 0; step < 5; step++) sum = sum * 31 + pick(values, in[i] + step * (uint)l);
    out[i] = sum;
}
