// OpenCL C 2.0: pointers of no stated address space.
static uint __attribute__((noinline)) sum(const uint *values, uint count)
{
    uint sum = 0;
    for (uint i = 0; i < count; ++i) sum = sum * 5 + values[i];
    return sum;
}

static uint *__attribute__((noinline)) later(uint *values, uint by) { return values + by; }

kernel void generic_pointers(global uint *out, local uint *scratch)
{
    size_t i = get_global_id(0), l = get_local_id(0);
    uint own[4] = {(uint)i, 1, 2, 3};
    scratch[l] = (uint)l * 7;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint result = sum(own, 4) + sum(scratch, (uint)get_local_size(0)) * 3;
    *later(own, 2) = 9;
    *later(out, (uint)i) = result + own[2];
}
