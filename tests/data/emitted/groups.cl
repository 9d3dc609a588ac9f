// Tables of constants, work-groups that share memory, and asynchronous copies.

constant uint SQUARES[16] = {0, 1, 4, 9, 16, 25, 36, 49, 64, 81, 100, 121, 144, 169, 196, 225};
constant float4 CORNERS[2] = {(float4)(1.0f, -0.5f, 0.25f, 3.0f), (float4)(0.1f, 0.2f, 0.3f, 0.4f)};

typedef struct {
    uchar tag;
    float weight;
    short steps[3];
} Entry;

constant Entry ENTRIES[3] = {{1, 0.5f, {-1, 2, -3}}, {2, -1.5f, {4, 5, 6}}, {200, 1e10f, {7, -8, 9}}};

__attribute__((noinline)) static uint pick(constant uint *table, uint at) { return table[at & 15]; }

kernel void tables(global uint *out, global const uint *in) {
    size_t i = get_global_id(0);
    uint n = in[i];
    const uint local_table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
    float4 corner = CORNERS[n & 1];
    Entry entry = ENTRIES[n % 3];
    uint sum = pick(SQUARES, n) + SQUARES[(n >> 4) & 15] * local_table[n & 7];
    sum = sum * 31 + as_uint(corner.x + corner.w * entry.weight);
    sum = sum * 31 + entry.tag + (uint)entry.steps[n & 1] + (uint)ENTRIES[1].steps[2];
    out[i] = sum;
}

__attribute__((noinline)) static void scan(local uint *values, uint size) {
    uint l = get_local_id(0);
    for (uint step = 1; step < size; step *= 2) {
        uint add = l >= step ? values[l - step] : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        values[l] += add;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

kernel void sums(global uint *out, global const uint *in, local uint *values) {
    local uint last[2];
    size_t i = get_global_id(0), l = get_local_id(0);
    values[l] = in[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    scan(values, get_local_size(0));
    if (l == 0) {
        last[0] = values[get_local_size(0) - 1];
        last[1] = in[get_group_id(0)];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    out[i] = values[l] ^ (last[0] * 31 + last[1]);
}

kernel void copies(global uint *out, global const uint *in, local uint *values, local uint *every_other) {
    size_t size = get_local_size(0), l = get_local_id(0), start = get_group_id(0) * size;
    event_t event = async_work_group_copy(values, in + start, size, 0);
    event = async_work_group_strided_copy(every_other, in, size / 2, 2, event);
    wait_group_events(1, &event);
    barrier(CLK_LOCAL_MEM_FENCE);
    uint mine = values[size - 1 - l] * 7 + every_other[l / 2];
    barrier(CLK_LOCAL_MEM_FENCE);
    values[l] = mine;
    barrier(CLK_LOCAL_MEM_FENCE);
    event_t back = async_work_group_copy(out + start, values, size, 0);
    wait_group_events(1, &back);
}
